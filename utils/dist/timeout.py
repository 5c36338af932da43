"""Fit the limits of the watchdog to the time-out of the process group.

The watchdog and the process group both end a run that hangs. Only the watchdog can name the rank
that stands still, and its phase. So each limit of the watchdog has to be shorter than the time-out
of the process group. A user may set this time-out by NCCL_TIMEOUT, in seconds, and make it shorter
than a limit.

The limits themselves, e.g. the limit `stall_s` of a silent rank, are options:
utils/options/watchdog_options.py. QUIET_S (utils/dist/verdict.py) is the limit of a silent rank
while a rank looks for the cause of a wait.

Tests: tests/faults/test_startup.py, the tests with "time_out_of_collectives" in their names.
"""

import logging

from utils.dist.identity import is_main_process
from utils.dist.state import RUN
from utils.errors import DistError
from utils.options.watchdog_options import SLOW_LIMIT_FACTORS, WatchdogOptions

logger = logging.getLogger(__name__)

# The options of `watchdog` that are limits of phases: stall_s, and the limits of the slow phases.
LIMIT_NAMES = ("stall_s", *SLOW_LIMIT_FACTORS)


def fitted_to_timeout(budgets: WatchdogOptions) -> WatchdogOptions:
    """Return the limits of the watchdog, fitted to the time-out of the process group.

    E.g. if the time-out is 200 s:

        stall_s   longest other limit   the time-out comes first   result
        100       150                   never                      the limits
        100       300                   in some slow phases        the limits; logs a warning
        300       900                   in every phase             raises DistError

    Test: test_a_time_out_of_collectives_that_comes_before_the_watchdog_is_refused.

    budgets: the options `watchdog`, in seconds. `stall_s` is the limit of most phases. start_s,
        validate_s and save_s (the keys of SLOW_LIMIT_FACTORS) are the limits of the slow phases.
    """
    # launch.timeout_s is NCCL_TIMEOUT, or 0 if the user has not set it. RUN.timeout_s is the
    # time-out of the process group.
    if RUN.launch.timeout_s:
        budgets = _raised_to_timeout(budgets)

    # Find the limits that are as long as the time-out, or longer. In these phases, the time-out
    # would end the run before the watchdog.
    late_limits = []
    for name in LIMIT_NAMES:
        limit_s = budgets.limit(name)
        if limit_s >= RUN.timeout_s:
            late_limits.append(f"{name} is {limit_s:g} s")
    if not late_limits:
        return budgets
    limits_in_words = ", ".join(late_limits)
    what = f"watchdog: {limits_in_words}; the time-out of the process group is {RUN.timeout_s:g} s"
    if budgets.stall_s >= RUN.timeout_s:
        raise DistError(
            what=what,
            where="NCCL_TIMEOUT",
            expected="the watchdog first: only it can say which rank stands still, and where",
            do="raise or unset NCCL_TIMEOUT, or lower watchdog.stall_s",
        )
    if is_main_process():
        logger.warning("%s: a rank that takes so long is ended without a name", what)
    return budgets


def _raised_to_timeout(budgets: WatchdogOptions) -> WatchdogOptions:
    """Return the limits of the watchdog, with longer limits of the slow phases. Logs all limits.

    A user sets NCCL_TIMEOUT if a rank may be slow while the other ranks wait for it. So each limit
    of a slow phase becomes at least 90 % of the time-out, e.g. 3240 s for NCCL_TIMEOUT=3600. With a
    larger share, the watchdog might not come before the time-out. The 90 % are chosen by hand. A
    limit that the user has set (not None) stays. Test:
    test_a_longer_time_out_of_collectives_makes_the_limits_of_the_watchdog_longer.
    """
    raised_limits = {}
    for name in SLOW_LIMIT_FACTORS:
        if getattr(budgets, name) is None:
            raised_limits[name] = max(budgets.limit(name), 0.9 * RUN.timeout_s)
    budgets = budgets.model_copy(update=raised_limits)
    limits = ", ".join(f"{name} {budgets.limit(name):g}" for name in LIMIT_NAMES)
    logger.info(
        "NCCL_TIMEOUT is %g s; the limits of the watchdog are then: %s", RUN.timeout_s, limits
    )
    return budgets

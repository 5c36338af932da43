"""The checks of doctor.py: host, environment, ranks, and with an option file its training.

    examine                all checks, as a table
        check_host         each rank for itself                 (doctor_host.py)
        check_ranks        all ranks together                   (doctor_ranks.py)
        check_training     options, data, network and a step    (doctor_training.py)

Each check gives a `Finding`: what was seen and, if something is wrong, why it matters and the cure.
A rank is one process of a training. A function whose docstring says "Collective" waits for all
ranks.

What must stay: all ranks make the checks in the same order, because several checks wait for all
ranks (test_two_ranks_are_examined_together). Free to add: a check, which yields its findings in one
of the three functions.

Tests: tests/parts/scripts/test_doctor.py
"""

import time
from collections.abc import Sequence

from scripts.parts.doctor.doctor_failures import FAIL, OK, Finding, table
from scripts.parts.doctor.doctor_host import check_host
from scripts.parts.doctor.doctor_ranks import check_ranks, from_all_ranks
from scripts.parts.doctor.doctor_training import check_training
from utils import utils_dist
from utils.dist import watchdog

# Seconds that ranks wait for one another at the start. A rank that is still missing after this time
# counts as failed.
LONGEST_WAIT_S = 120


def examine(file: str | None, overrides: Sequence[str]) -> int:
    """Print what all checks found. Return the exit code: 1 if a check failed. Collective.

    file: option file. None: only the host and the ranks are checked.
    """
    begin = time.perf_counter()
    with utils_dist.ranks(log=False):
        utils_dist.init_dist(LONGEST_WAIT_S)
        seconds = time.perf_counter() - begin
        findings = [Finding(OK, "rendezvous", f"all ranks met in {seconds:.1f} s")]
        # If a rank does not finish a check, the report of the watchdog names the phase.
        watchdog.phase("check the host")
        findings += from_all_ranks(list(check_host()))
        watchdog.phase("check the ranks")
        findings += check_ranks()
        if file:
            findings += check_training(["--opt", file, *overrides])
        is_main = utils_dist.is_main_process()
    if is_main:
        print(table(findings), flush=True)
    has_failed = any(finding.status == FAIL for finding in findings)
    return 1 if has_failed else 0

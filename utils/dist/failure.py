"""Report the error that ends a run once, and find the exit code with which every rank ends.

If one rank fails, the other ranks soon fail as well, because their connections to this rank break.
A user should read the first error, and not one error of each rank. So the ranks agree through the
store which rank reports: the first rank that writes its failure there.

    report_error          what happens to every error: who reports, and the exit code
    _ending_with_store    the agreement, as a table of four rows
    closed_after_report   reports an error before a resource is closed, which may hang

What must stay: one report and one exit code for all ranks
(test_an_error_ends_all_ranks_with_one_message_and_one_code). Free to change: the seconds of the
waits, within the limits that their comments name.

Tests: tests/dist/test_dist.py, tests/dist/test_trust.py, tests/dist/test_life.py, tests/faults.
"""

import os
import re
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from utils.dist.agreement import PeerFailed
from utils.dist.beats import claim_failure
from utils.dist.claims import first_to_claim
from utils.dist.identity import get_rank, get_world_size
from utils.dist.launchers import process_count
from utils.dist.leave import (
    REPORTED,
    is_first_to_report_foreign_value,
    leave,
    write_to_log_and_stderr,
)
from utils.dist.lost_contact import is_caused_by_peer, lost_contact_error
from utils.dist.state import RUN, Reported
from utils.dist.store_values import Failure, ForeignValueError
from utils.errors import SpikeVRTError, StallError


class _Ending(NamedTuple):
    """How this rank ends after an error."""

    cause: BaseException  # the error to report. `lost_contact_error` may replace the raised error
    code: int  # the exit code
    is_reporter: bool  # whether this rank reports the cause; if not, another rank does


def report_error(error: BaseException) -> int:
    """Report the error that ends this rank, unless another rank reports. Returns the exit code.

    Only the rank that failed first reports, so a user reads one error and not one of each rank.
    """
    if RUN.reported is not None and RUN.reported.error is error:
        return RUN.reported.code  # `closed_after_report` has reported it
    if isinstance(error, PeerFailed):  # raised on this rank because another rank failed
        ending = _Ending(error, error.exit_code, is_reporter=False)
    elif RUN.store is None:
        ending = _Ending(error, _exit_code(error), _is_reporter_without_store(error))
    else:
        ending = _ending_with_store(error)
    if ending.is_reporter:
        write_to_log_and_stderr(_text_of(ending.cause))
        # A RuntimeError means that the store is gone. Then no other rank waits for the report.
        with suppress(RuntimeError):
            if RUN.store is not None:
                # The other ranks wait for this key before they end.
                RUN.store.set(REPORTED, "1")
    RUN.reported = Reported(error, ending.code)
    return ending.code


def _exit_code(error: BaseException) -> int:
    """Return the exit code for an error: 130 for Ctrl-C as in a shell, 1 for unknown errors."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return getattr(error, "exit_code", 1)


def _is_reporter_without_store(error: BaseException) -> bool:
    """Return whether this process reports an error that comes before the ranks have a store.

    The ranks open the store when they meet. A single process always reports. If one launcher has
    started several ranks on this host, only the first rank with this error reports
    (test_ranks_of_one_launch_report_the_same_error_once). A rank of a later start reports again,
    because its launcher is another process.
    """
    if process_count(os.environ) == 1:
        return True
    # The text of one error differs between ranks in the number of the rank, e.g. "rank 3 of 8 on
    # host a". So leave the number out. The errors of utils/errors.py have the attributes `what` and
    # `where`, and other errors only have a text.
    where_without_rank = re.sub(r"rank \d+", "rank", getattr(error, "where", ""))
    what = getattr(error, "what", error)
    launcher_pid = os.getppid()
    # `first_to_claim` is True for the first process of this host that claims this text.
    return first_to_claim(f"{what} {where_without_rank} {launcher_pid}")


# Seconds that the main thread of a rank waits if a watchdog reports the failure. The watchdog of
# this rank ends the rank within EXIT_S (leave.py), 8 s. The wait is longer, so that the watchdog
# always comes first.
WAIT_FOR_WATCHDOG_S = 10.0


def _ending_with_store(error: BaseException) -> _Ending:
    """Return how this rank ends after an error. The ranks agree through the store who reports.

    The store is the key-value store of all ranks. This rank writes its failure into the store,
    unless the store has an earlier failure (`claim_failure`). The value that the store then has
    decides:

        value in the store                 who reports           exit code of this rank
        1  the failure of this rank        this rank             the code of the cause
        2  an earlier failure of another   the other rank        the code of the earlier failure
           rank
        3  a value that no rank wrote      see `_ending_after_foreign_value`
        4  no answer: the store is gone    a watchdog            the code of a stall

    In row 4, the rank that hosts the store is gone. The watchdogs report this as a stall. So every
    rank ends with the code of a stall, whatever its own error is, and a launcher sees one code.
    Tests:

        rows 1, 2   test_an_error_ends_all_ranks_with_one_message_and_one_code
                    test_a_lost_connection_without_a_cause_is_reported_once_in_the_words_of_torch
        row 3       test_a_forged_failure_ends_the_run_with_a_report
        row 4       test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end, kind "kill"
    """
    cause = error
    if is_caused_by_peer(error):
        # A connection broke, because the rank at its other end is gone. torch's error does not name
        # this rank, so report an error that does.
        cause = lost_contact_error(error)
    code = _exit_code(cause)

    own_failure = Failure(rank=get_rank(), code=code, by=get_rank())  # failed here, reported here
    try:
        first_failure = claim_failure(RUN.store, own_failure, get_world_size())
    except ForeignValueError as e:  # row 3
        return _ending_after_foreign_value(error, e)
    except RuntimeError:  # row 4; torch raises this error if the store does not answer
        time.sleep(WAIT_FOR_WATCHDOG_S)
        return _Ending(cause, StallError.exit_code, is_reporter=False)
    if first_failure == own_failure:  # row 1
        return _Ending(cause, code, is_reporter=True)
    # Row 2. A stall is reported by a watchdog, which may need some seconds for its report.
    if first_failure.code == StallError.exit_code:
        time.sleep(WAIT_FOR_WATCHDOG_S)
    return _Ending(cause, first_failure.code, is_reporter=False)


def _ending_after_foreign_value(error: BaseException, foreign: ForeignValueError) -> _Ending:
    """Return how this rank ends if the ranks cannot agree who reports.

    A process that is not a rank of this run has written into the store, at the place of the
    failure.

    error: the error that was raised on this rank.
    foreign: the error of the value in the store.
    """
    if is_caused_by_peer(error):
        # The other ranks have left because of the foreign value, which broke the connection to
        # them. So the foreign value is the cause, and one rank of each host reports it.
        return _Ending(foreign, foreign.exit_code, is_first_to_report_foreign_value())
    return _Ending(error, _exit_code(error), is_reporter=True)


def _text_of(cause: BaseException) -> str:
    """Return the text that reports an error to the user."""
    if isinstance(cause, SpikeVRTError):
        return str(cause)
    if isinstance(cause, KeyboardInterrupt):
        return "Interrupted (Ctrl-C). The same command continues from what was saved last."
    # For an unforeseen error, return the whole traceback, with the rank in front of each line.
    prefix = f"[rank {get_rank()}] " if get_world_size() > 1 else ""
    text = "".join(traceback.format_exception(cause)).rstrip()
    lines = text.splitlines(keepends=True)
    return "".join(f"{prefix}{line}" for line in lines)


# Seconds that closing a resource may take after an error. The number is chosen by hand. It must be
# below EXIT_S (leave.py), 8 s, because a rank has to end within EXIT_S after an error.
CLOSE_S = 5.0


@contextmanager
def closed_after_report(resource: Any) -> Generator[Any]:
    """Call `resource.close()` after the block, as contextlib.closing does.

    Closing may hang, e.g. closing a dashboard without a network. So an error in the block is
    reported before `close` is called. If `close` then takes longer than CLOSE_S (5 s), this rank
    ends.

    resource: any object with a method `close`.
    """

    def end_rank() -> None:
        """End this rank with the exit code of the error. The timer calls this."""
        assert RUN.reported is not None  # the timer starts only after the report of an error
        leave(RUN.reported.code, RUN.store)

    timer = threading.Timer(CLOSE_S, end_rank)
    timer.daemon = True
    with ExitStack() as at_end:
        # An ExitStack calls its callbacks in reverse order. So at the end it closes the resource
        # first, and then cancels the timer.
        at_end.callback(timer.cancel)
        at_end.callback(resource.close)
        try:
            yield resource
        except BaseException as e:
            report_error(e)
            timer.start()  # runs while the resource is closed
            raise

"""Tell whether the main thread waits for a paused terminal, which is not a fault of the run.

A paused terminal (Ctrl-S, a selection, `less`) takes no output, so a main thread that writes to it
waits. The watchdog thread asks with each beat, and does not count this time as time in the phase.

Free to change: both times, and the text in the log file.

Test: test_a_paused_terminal_is_no_stall (tests/dist/test_dist.py).
"""

from utils.dist import process
from utils.dist.leave import write_to_log_file

# Seconds of a phase after which the system is asked whether the main thread waits for a terminal.
# Most phases are shorter, so most beats need no such question.
LONG_PHASE_S = 1.0
# Seconds after which the wait is written to the log file. A shorter wait, e.g. while a user selects
# text in the terminal, needs no line. Chosen by hand.
TELL_AFTER_S = 10.0


class PausedTerminal:
    """Notes whether the main thread of this rank waits for its terminal, and since when."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.waits_since: float | None = None  # None if the main thread does not wait
        self.has_told = False  # whether the log file has the line about this wait

    def holds_main_thread(self, now: float, in_phase_s: float) -> bool:
        """Return whether the main thread waits for its terminal.

        The watchdog thread calls this with each beat. The cases:

            waited at the last beat   time in the phase     waits now      result
            no                        below LONG_PHASE_S    is not asked   False
            no                        longer                no             False
            no                        longer                yes            True, a wait begins
            yes                       any                   yes            True, the wait goes on
            yes                       any                   no             False, the wait is over

        If a wait is longer than TELL_AFTER_S, this writes a line into the log file, once.

        now: present time, on the clock of the beats (`Beats.clock`).
        in_phase_s: seconds of the present phase that count so far. If the result is True, the
            caller lets this number begin at 0 again.
        """
        # Asking the system costs time, so do not ask in a new phase. During a wait, in_phase_s
        # begins at 0 with each beat, so a long phase looks new. So if the main thread waited at the
        # last beat, ask in any case.
        is_new_phase = in_phase_s < LONG_PHASE_S
        if is_new_phase and self.waits_since is None:
            return False
        if not process.main_thread_writes():
            self.waits_since = None
            self.has_told = False
            return False
        if self.waits_since is None:
            self.waits_since = now
        if now - self.waits_since > TELL_AFTER_S and not self.has_told:
            self.has_told = True
            write_to_log_file(
                f"rank {self.rank} waits for its terminal, which takes no output (Ctrl-S, a "
                "selection, a pager); the run goes on as soon as the terminal does"
            )
        return True

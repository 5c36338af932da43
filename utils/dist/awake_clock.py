"""Measure time with `AwakeClock`, which counts only the seconds in which this process ran.

What must stay: a suspension, however long, adds at most some seconds to the clock (`slice_s`).
If a suspension added more, a run that was suspended would seem to hang when it wakes.

Test: test_a_run_that_is_suspended_as_a_whole_goes_on_when_it_wakes (tests/faults/test_stalls.py).
"""

import threading
import time


class AwakeClock:
    """Counts the seconds in which this process ran, for limits of time.

    Ctrl-Z, `scontrol suspend`, `docker pause` and the stop of a virtual machine suspend a process,
    while all clocks of the system go on. This clock nearly stands still then. From one call of
    `now` to the next, the clock counts the time, but at most slice_s. E.g. with slice_s = 1:

        seconds since the last call    0.5    1    3600
        counted seconds                0.5    1    1

    `now` must be called at least once in slice_s seconds. If it is called less often, the clock
    does not count all seconds in which the process ran.
    """

    def __init__(self, slice_s: float = 5.0) -> None:
        """Start the clock at 0.

        slice_s: the most seconds that the clock counts between two calls of `now`.
        """
        self.slice_s = slice_s
        self.awake_s = 0.0
        self.last_call = time.monotonic()  # when `now` was called last
        self.lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds in which this process ran since the clock was made."""
        with self.lock:
            now = time.monotonic()
            self.awake_s += min(now - self.last_call, self.slice_s)
            self.last_call = now
            return self.awake_s

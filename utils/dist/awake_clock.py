"""Measure time with `AwakeClock`, which counts only the seconds in which this process ran.

What must stay: a suspension, however long, adds at most some seconds to the clock (`slice_s`).
Otherwise a run that was suspended would seem to hang when it wakes.

Test: test_a_run_that_is_suspended_as_a_whole_goes_on_when_it_wakes (tests/faults/test_stalls.py).
"""

import threading
import time


class AwakeClock:
    """Counts the seconds in which this process ran, for limits of time.

    Ctrl-Z, `scontrol suspend`, `docker pause` and the stop of a virtual machine suspend a process,
    while all clocks of the system go on. This clock stands still instead: it counts the time
    between two calls of `now`, but at most slice_s. E.g. with slice_s = 1, a call 0.5 s after the
    last one adds 0.5 s, and a call an hour after the last one adds 1 s.

    `now` must be called at least once in slice_s seconds. Otherwise the clock does not count all
    seconds in which the process ran.
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

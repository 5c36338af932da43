"""What is a stall: a rank that stands still while its observer runs. A pause of the whole run is none."""

from __future__ import annotations

import threading
import time


class AwakeClock:
    """Seconds in which this process ran, for limits of time. Ask it at least every slice_s seconds.

    Ctrl-Z, `scontrol suspend`, `docker pause` and the stop of a virtual machine suspend a process while all clocks of the
    system go on; so the time between two questions counts as slice_s at most.
    """

    def __init__(self, slice_s: float = 5.0) -> None:
        self.slice_s, self.awake_s, self.asked = slice_s, 0.0, time.monotonic()
        self.lock = threading.Lock()

    def now(self) -> float:
        with self.lock:
            now = time.monotonic()
            self.awake_s += min(now - self.asked, self.slice_s)
            self.asked = now
            return self.awake_s


def kind_of_stall(is_gone: bool, silent_s: float, age_s: float, budget_s: float, stall_s: float | None) -> str:
    """DEAD, SILENT or STUCK; "" where the rank does not stand still.

    is_gone: its process is seen to be gone. silent_s: since its last beat came. age_s: in its phase, which may take
    budget_s; 0 before it is watched. stall_s: None before the observer is. All seconds are those of AwakeClocks, so a rank
    is late only by the time in which the observer ran: a run that is suspended as a whole ages by one slice, one rank
    that is stopped alone falls silent.
    """
    if is_gone:
        return "DEAD"
    if stall_s is None or not budget_s:
        return ""
    if silent_s > stall_s - 0.5:  # a beat is half a second
        return "SILENT"
    return "STUCK" if age_s > budget_s else ""

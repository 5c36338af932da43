"""How long a device computes, without waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceClock:
    """Sums the seconds that the device spends on the blocks `measured`; on the CPU, wall-clock seconds.

    On a GPU each block lies between two events of the current stream. They are read when they have passed: the host
    never waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self.events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def measured(self) -> Iterator[None]:
        if self.device.type != "cuda":
            begin = time.perf_counter()
            yield
            self.seconds += time.perf_counter() - begin
            return
        self._collect()
        events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        events[0].record()
        yield
        events[1].record()
        self.events.append(events)

    def read(self) -> float:
        """Seconds since the last call, of the blocks that the device has finished."""
        self._collect()
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _collect(self) -> None:
        while self.events and self.events[0][1].query():
            begin, end = self.events.popleft()
            self.seconds += begin.elapsed_time(end) / 1000

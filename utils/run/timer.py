"""Where the time of a step goes: data, compute, everything else; how long a step takes, and how much memory."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from utils.dist.process import peak_process_gb


def seconds_of(run: Callable[[], Any], device: torch.device, repeats: int = 3, warmup: int = 0) -> float:
    """Median seconds of `run`, to the end of its work on the device."""
    seconds = []
    for _ in range(warmup + repeats):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[warmup:])


def peak_memory_gb() -> float:
    """Most memory so far, in GB (1e9 bytes): of torch's tensors on this rank's GPU, of the process without one."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 1e9
    return peak_process_gb()


class StepTimer:
    """Sums of wall-clock seconds by part, read and cleared at each log line.

    On a GPU the parts show what the host waited for; no device synchronisation is added.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.start = time.perf_counter()
        self.steps = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The body, a validation or a save, does not count."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.start += time.perf_counter() - begin

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin

    def read(self) -> dict[str, float]:
        """Iterations per second and, per part, its share of the time since the last call (0..1); `peak_memory_gb`."""
        elapsed = time.perf_counter() - self.start
        values = {"it_per_s": self.steps / elapsed}
        values |= {f"{name}_share": seconds / elapsed for name, seconds in self.seconds.items()}
        values["memory_gb"] = peak_memory_gb()
        self.seconds.clear()
        self.steps, self.start = 0, time.perf_counter()
        return values

"""Where the time of a step goes: data, compute, everything else; the time that remains; memory."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from utils.dist.process import peak_process_gb

WINDOW_S = 300.0  # the speed within about this time counts for the time that remains


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


class Span:
    """Steps, and seconds by part, since it began. Pauses do not count."""

    def __init__(self) -> None:
        self.begin, self.paused, self.steps = time.perf_counter(), 0.0, 0
        self.parts: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin - self.paused

    def values(self) -> dict[str, float]:
        """Iterations per second and, per part, its share of the time (0..1); empty without a step."""
        if not self.steps:
            return {}
        seconds = self.seconds
        return {"it_per_s": self.steps / seconds} | {f"{k}_share": part / seconds for k, part in self.parts.items()}


class StepTimer:
    """Wall-clock time of the steps by part, since the last log line and in the epoch; and of the pauses between them.

    The first step of a process does not count: it also starts the workers, builds DDP, compiles and tunes kernels.
    On a GPU the parts show what the host waited for; no device synchronisation is added.
    """

    def __init__(self) -> None:
        self.line, self.epoch = Span(), Span()
        self.epoch_begin = time.perf_counter()
        self.pauses: dict[str, list[float]] = defaultdict(list)  # kind -> seconds of each
        self._is_warm = False
        self._recent = (0.0, 0.0)  # steps and seconds before the last log line, fading

    @contextmanager
    def paused(self, kind: str) -> Iterator[None]:
        """The body, a "validation" or a "save", does not count."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self.pauses[kind].append(seconds)
            self.line.paused += seconds
            self.epoch.paused += seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self.line.parts[name] += seconds
            self.epoch.parts[name] += seconds

    def step_done(self) -> None:
        if self._is_warm:
            self.line.steps += 1
            self.epoch.steps += 1
        else:
            self._is_warm = True
            self.line, self.epoch = Span(), Span()

    def read(self) -> dict[str, float]:
        """`Span.values` since the last call, and `memory_gb`."""
        values = self.line.values()
        self._recent = self._faded()
        self.line = Span()
        return values | {"memory_gb": peak_memory_gb()}

    def begin_epoch(self) -> None:
        self.epoch, self.epoch_begin = Span(), time.perf_counter()

    def pace(self) -> float | None:
        """Seconds a step, of the last minutes; None before the second step."""
        steps, seconds = self._faded()
        return seconds / steps if steps else None

    def remaining(self, steps: int, pauses: dict[str, int]) -> float | None:
        """Seconds for so many more steps and pauses of each kind, as long as those so far; None where unknown."""
        pace = self.pace()
        if pace is None:
            return None
        known = {kind: self.pauses[kind] for kind in pauses if self.pauses.get(kind)}
        return steps * pace + sum(pauses[kind] * statistics.fmean(known[kind]) for kind in known)

    def _faded(self) -> tuple[float, float]:
        """Steps and seconds up to now, where what is WINDOW_S ago counts 1/e."""
        if not self.line.steps:
            return self._recent
        seconds = self.line.seconds
        fade = math.exp(-seconds / WINDOW_S)
        return self._recent[0] * fade + self.line.steps, self._recent[1] * fade + seconds

"""What a run measures of itself: time by part, work of the device, memory; of one rank and of all."""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from utils import utils_dist
from utils.dist import gpu
from utils.dist.process import peak_process_gb

GB = 1e9
Use = tuple[float, float]  # used, total, in GB (1e9 bytes)
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


def gpu_memory(device: torch.device) -> Use | None:
    """Peak of torch's tensors plus what others hold of the GPU.

    Memory that torch keeps for reuse does not count: it grows to the size of the GPU in a healthy run.
    """
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return None
    others = max(0, total - free - torch.cuda.memory_reserved(device))
    return (torch.cuda.max_memory_allocated(device) + others) / GB, total / GB


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Use | None:
    """The fullest of the host and the control groups with a limit around this process (containers, SLURM jobs).

    The kernel counts all processes of a group. proc, groups: where the kernel mounts them.
    """
    found: list[Use | None] = []
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        total, free = (int(lines[key].split()[0]) * 1024 / GB for key in ("MemTotal", "MemAvailable"))
        found.append((total - free, total))
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):  # version 1
                root, names = groups / "memory", ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_")
            elif not controllers:  # version 2
                root, names = groups, ("memory.current", "memory.max", "")
            else:
                continue
            inner = root / path.lstrip("/")
            # In a container the path may be that of the host, which the container does not see.
            folders = [inner, *inner.parents] if inner.is_dir() else [root]
            found += [_group(folder, *names) for folder in folders if folder.is_relative_to(root)]
    return max((use for use in found if use and use[1] > 0), key=lambda use: use[0] / use[1], default=None)


def _group(folder: Path, used: str, limit: str, prefix: str) -> Use | None:
    """None without a limit. The file cache does not count, also what was read twice: the kernel drops it first."""
    with suppress(OSError, ValueError, KeyError):  # "max": no limit
        total = int((folder / limit).read_text())
        if total >= 2**60:  # version 1 says so where there is none
            return None
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        cache = sum(int(stat[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
        return (int((folder / used).read_text()) - cache) / GB, total / GB
    return None


@dataclass(frozen=True)
class Measured:
    """Of one rank. Times in seconds, over `steps` steps; the first step of a process is left out.

    data_s: waiting for batches, without the first one of an epoch, which waits for new workers. forward_s: computing
    forward passes: these wait for no other rank, as the backward pass does. compute_s: all of the steps. values: of
    the log line. cores: that the process may use. memory: of "GPU" and "host", those that are known.
    """

    host: str
    cores: frozenset[int]
    steps: int
    seconds: float
    data_s: float
    forward_s: float
    compute_s: float
    values: dict[str, float]
    memory: dict[str, Use]
    gpu: dict[str, float] | None


def measured(steps: int, model_log: dict[str, Any], timed: dict[str, float]) -> Measured:
    """Of this rank. model_log: `current_log` of the model. timed: `StepTimer.read`, of `steps` steps."""
    values, device = model_log | timed, utils_dist.get_device()
    forward_s, norms = values.pop("forward_s"), values.pop("grad_norms")
    if norms:
        values["grad_norm"] = statistics.median(norms)
    seconds = steps / timed["it_per_s"] if steps else 0.0
    data_s = (timed.get("data_share", 0.0) - values.pop("epoch_start_share", 0.0)) * seconds
    uses = {"GPU": gpu_memory(device) if device.type == "cuda" else None, "host": host_memory()}
    memory = {name: use for name, use in uses.items() if use}
    return Measured(
        socket.gethostname(), frozenset(os.sched_getaffinity(0)), steps, seconds, data_s, forward_s,
        timed.get("compute_share", 0.0) * seconds, values, memory, gpu.usage(device),
    )  # fmt: skip


def log_values(ranks: list[Measured]) -> dict[str, float]:
    """For the log line: means over the ranks; of memory_gb the most. Where all ranks report their GPU: the idlest and
    the mean one, and the fullest."""
    names = [name for name in ranks[0].values if all(name in rank.values for rank in ranks)]
    values = {name: statistics.fmean(rank.values[name] for rank in ranks) for name in names}
    values["memory_gb"] = max(rank.values["memory_gb"] for rank in ranks)
    uses = [rank.gpu for rank in ranks if rank.gpu]
    if len(uses) == len(ranks):
        busy = [use["busy"] for use in uses]
        values |= {"gpu_busy_min": min(busy), "gpu_busy_mean": statistics.fmean(busy)}
        values["gpu_used_gb_max"] = max(use["used_gb"] for use in uses)
    return values


def rank_values(ranks: list[Measured]) -> dict[str, float]:
    """For the writers: seconds per step of each rank, as "data_s/<rank>" and so on; empty without a step."""
    names = ("data_s", "forward_s", "compute_s") if ranks[0].steps else ()
    return {f"{name}/{i}": getattr(rank, name) / rank.steps for name in names for i, rank in enumerate(ranks)}

"""Measurements of a run: its time, memory, and work of the device, on one rank and on all ranks.

The numbers go this way, from a step to the log line:

    StepTimer, DeviceClock   measure the steps of this rank
    measured(...)            collects what this rank measured since the last log line: `Measured`
    gather_objects           brings the `Measured` of all ranks together (utils_dist)
    log_values(...)          makes the numbers of the log line from them
    Health.logged(...)       judges them

`Health` warns if something makes a run slow or useless, and says what to do. Each warning comes
once per start of a run, on rank 0. Its thresholds are constants, because they do not depend on the
options: a run that stays below them needs no attention. A threshold may change if a healthy run is
warned; docs and tests quote the texts.

Tests: tests/parts/utils/test_health.py, tests/stories/test_main_train.py.
"""

import logging
import math
import socket
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from utils import device as devices
from utils import system, utils_dist
from utils.dist import gpu
from utils.files import free_bytes
from utils.options.models import DatasetsOptions, TrainOptions

logger = logging.getLogger(__name__)

GB = 1e9
Use = tuple[float, float]  # (used, total) of a memory, in GB (1e9 bytes)

# The work between two steps that does not count as time of the steps.
PAUSES = ("validation", "save")
# The remaining time is predicted from the speed of the last five minutes, roughly.
WINDOW_S = 300.0

# ---- Thresholds of `Health` ----

# Share of the time that a rank may wait for data. Below this share, a faster loader would gain less
# than the speeds of two equal runs differ.
DATA_WAIT = 0.10
# A rank is slow if it takes more than 1.2 times the median of the other ranks, ...
SLOWER = 1.2
# ... and if the difference is more than this share of a step. A smaller delay is not noticeable.
LEAST_EFFECT = 0.05
# The speed is judged over a window of at least this many steps. With long steps, several log lines
# make a window.
WINDOW_STEPS = 10
# A warning of the speed needs this many bad windows in a row, because another program may slow down
# a single window.
IN_A_ROW = 3
# Above this share a memory is "nearly full". netG.checkpoint "auto" plans with 0.90, so it stays
# below.
MEMORY = 0.95
# A gradient norm explodes if it grows by this factor. With too high a learning rate it grows by
# orders of magnitude; in a healthy run it grows by less than 3.
NORM_FACTOR = 10.0
# The median of at least 10 newest steps is compared with that of at least 50 steps before them.
NORM_RECENT = 10
NORM_BEFORE = 50
KEPT = 1000  # number of newest gradient norms and losses that are remembered
# Share of a run in which the learning rate may stay at its floor. Many schedules end with a short
# constant part.
FLOOR_TAIL = 0.10
# The network overfits if the validation PSNR falls three times in a row, by at least 0.1 dB in all.
# PSNR varies by some hundredths of a dB anyway.
FALLS = 3
FALL_DB = 0.1
# With room for this many saves on the disk, nobody is warned: the user has a day or more to react
# with usual options.
SAVES = 20


# ---- Time ------------------------------------------------------------------------------------


def seconds_of(
    run: Callable[[], Any], device: torch.device, repeats: int = 3, warmup: int = 0
) -> float:
    """Return the median seconds of a call of `run`, until its work on the device is done.

    repeats: number of calls that count.
    warmup: number of calls before them, which do not count.
    """
    seconds = []
    for _ in range(warmup + repeats):
        begin = time.perf_counter()
        run()
        devices.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[warmup:])


class Span:
    """The number of steps in a time of the run, and the seconds of each kind of work in it.

    `PAUSES` do not count. The kinds of work are the names given to `StepTimer.part`: "data" (wait
    for a batch), "compute", ...
    """

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.paused = 0.0  # seconds of PAUSES
        self.steps = 0
        self.parts: dict[str, float] = defaultdict(float)  # e.g. "data" -> seconds

    @property
    def seconds(self) -> float:
        """The seconds since the span began, without the pauses."""
        return time.perf_counter() - self.begin - self.paused

    def values(self) -> dict[str, float]:
        """Return iterations per second, and the share of each kind of work in the time (0..1).

        E.g. {"it_per_s": 2.1, "data_share": 0.03, "compute_share": 0.95}. Returns {} if there was
        no step.
        """
        if not self.steps:
            return {}
        seconds = self.seconds
        values = {"it_per_s": self.steps / seconds}
        for name, part in self.parts.items():
            values[f"{name}_share"] = part / seconds
        return values


class StepTimer:
    """Measures wall-clock time: of the steps since the last log line, of the epoch, and of pauses.

    The first step of a process does not count, because it also starts the loader processes, builds
    DDP, and compiles and tunes kernels. On a GPU the times show what the host waited for: the timer
    must not wait for the device itself, because this would slow down every step.
    """

    def __init__(self) -> None:
        self.line = Span()  # since the last log line
        self.epoch = Span()
        self.epoch_begin = time.perf_counter()
        self.pauses: dict[str, list[float]] = defaultdict(list)  # "save" -> seconds of each save
        self._is_warm = False  # whether the first step is done
        # (steps, seconds) up to the last log line, in which older ones count less; see `_faded`.
        self._recent = (0.0, 0.0)

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """Measure the block.

        name: the kind of work, e.g. "data" or "compute", or one of PAUSES.
        """
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            for span in (self.line, self.epoch):
                if name in PAUSES:
                    span.paused += seconds
                else:
                    span.parts[name] += seconds
            if name in PAUSES:
                self.pauses[name].append(seconds)

    def step_done(self) -> None:
        """Count a step. After the first one of the process, begin to measure."""
        if self._is_warm:
            self.line.steps += 1
            self.epoch.steps += 1
        else:
            self._is_warm = True
            self.line = Span()
            self.epoch = Span()

    def read(self) -> dict[str, float]:
        """Return `Span.values` since the last call, and "memory_gb".

        memory_gb is the largest memory so far. On a GPU it is the memory of torch's tensors, on the
        CPU the memory of the process.
        """
        values = self.line.values()
        self._recent = self._faded()
        self.line = Span()
        peak = devices.peak_gb(utils_dist.get_device())
        values["memory_gb"] = system.peak_process_gb() if peak is None else peak
        return values

    def begin_epoch(self) -> None:
        """Begin to measure a new epoch."""
        self.epoch = Span()
        self.epoch_begin = time.perf_counter()

    def pace(self) -> float | None:
        """Return the seconds of a step in the last minutes, or None before the second step."""
        steps, seconds = self._faded()
        return seconds / steps if steps else None

    def _faded(self) -> tuple[float, float]:
        """Return (steps, seconds) up to now, in which older steps and seconds count less.

        The steps and seconds of the current line count 1. Those of t seconds before the current
        line count exp(-t / WINDOW_S), e.g. 0.37 after five minutes. So the speed follows a change
        within minutes, and a single slow step hardly changes it.
        """
        if not self.line.steps:
            return self._recent
        steps_before, seconds_before = self._recent
        seconds = self.line.seconds
        fade = math.exp(-seconds / WINDOW_S)
        return steps_before * fade + self.line.steps, seconds_before * fade + seconds


class DeviceClock:
    """Sums the seconds that the device spends on the blocks `measured`.

    On the CPU these are wall-clock seconds. On a GPU the clock puts an event (a time stamp) before
    and after each block into the queue of the GPU. The GPU stamps an event when it has worked up to
    it. `read` takes only events that are stamped, so the host never waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0  # seconds of finished blocks since the last `read`
        # (begin, end) of blocks that are not read yet, the oldest first.
        self.events: deque[tuple[torch.Event, torch.Event]] = deque()

    @contextmanager
    def measured(self) -> Generator[None]:
        """Measure the block."""
        if self.device.type == "cpu":
            begin = time.perf_counter()
            yield
            self.seconds += time.perf_counter() - begin
            return
        begun = torch.Event(self.device, enable_timing=True)
        ended = torch.Event(self.device, enable_timing=True)
        begun.record()
        yield
        ended.record()
        self.events.append((begun, ended))

    def read(self) -> float:
        """Return the seconds since the last call, of the blocks that the device has finished."""
        while self.events:
            begun, ended = self.events[0]
            if not ended.query():  # the device has not finished this block yet
                break
            self.events.popleft()
            self.seconds += begun.elapsed_time(ended) / 1000  # elapsed_time is in ms
        seconds = self.seconds
        self.seconds = 0.0
        return seconds


# ---- Memory ----------------------------------------------------------------------------------


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Use | None:
    """Return (used, total) in GB of the fullest memory that this process may use.

    A process is in control groups of Linux, one within another. Containers and SLURM jobs limit the
    memory of such a group. So a group may be full while the host has much free memory. Of the host
    and these groups, the one with the largest used / total is returned, or None if none is known.

    `used` is the memory of all processes of a group. Files that the kernel keeps in memory (the
    file cache) do not count, because the kernel drops them when memory is short.

    proc, groups: where the kernel mounts its files.
    """
    found: list[Use] = []
    with suppress(OSError, KeyError, ValueError):
        found.append(_use_of_host(proc))
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            found += _uses_of_groups(line, groups)
    # Linux shows about 2**63 bytes as the limit of a group of version 1 without a limit. No host
    # has 2**60 bytes, so a larger limit is none.
    no_limit = 2**60 / GB
    fullest = None
    fullest_share = -math.inf
    for used, total in found:
        if 0 < total < no_limit and used / total > fullest_share:
            fullest = (used, total)
            fullest_share = used / total
    return fullest


def _use_of_host(proc: Path) -> Use:
    """Return (used, total) in GB of the host. Raises OSError, KeyError or ValueError."""
    # Lines such as "MemTotal:       32768000 kB".
    lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024 / GB
    free = int(lines["MemAvailable"].split()[0]) * 1024 / GB
    return total - free, total


def _uses_of_groups(line: str, groups: Path) -> list[Use]:
    """Return (used, total) of a control group and of the groups around it, the innermost first.

    line: a line of /proc/self/cgroup, "<number>:<what the group counts>:<path>". Linux has two
        versions of groups: "4:memory:/slurm/job_7" is one of version 1, "0::/user.slice" of
        version 2.

    Returns [] if the group counts no memory, or has no limit.
    """
    _, controllers, path = line.split(":", 2)
    if "memory" in controllers.split(","):  # version 1
        root = groups / "memory"
        used_file = "memory.usage_in_bytes"
        limit_file = "memory.limit_in_bytes"
        prefix = "total_"
    elif not controllers:  # version 2
        root = groups
        used_file = "memory.current"
        limit_file = "memory.max"
        prefix = ""
    else:
        return []
    inner = root / path.lstrip("/")
    if inner.is_dir():
        folders = [inner, *inner.parents]
    else:
        # In a container, the line may have the path on the host, which the container does not see.
        folders = [root]

    uses = []
    for folder in folders:
        # A folder above the root has no such files. A file with "max" says that there is no limit.
        with suppress(OSError, ValueError, KeyError):
            total = int((folder / limit_file).read_text())
            # Lines such as "active_file 1048576".
            lines = (folder / "memory.stat").read_text().splitlines()
            counts = dict(line.split(" ", 1) for line in lines)
            cache = int(counts[f"{prefix}active_file"]) + int(counts[f"{prefix}inactive_file"])
            used = int((folder / used_file).read_text()) - cache
            uses.append((used / GB, total / GB))
    return uses


# ---- What a rank measured, and the numbers of the log line -----------------------------------


@dataclass(frozen=True)
class Measured:
    """The measurements of one rank since the last log line.

    The first step of a process is left out, because it also starts loader processes and compiles.
    The ranks exchange these fields as plain types, so a new field must be a plain type too.
    """

    host: str  # name of the host
    cores: tuple[int, ...]  # numbers of the cores that the process may use
    steps: int  # number of steps that were measured
    # Wall-clock seconds of all these steps.
    seconds: float
    # Of these, the seconds of waiting for batches. The first batch of an epoch does not count,
    # because it waits for new loader processes.
    data_s: float
    # Seconds of the forward passes. A forward pass waits for no other rank; a backward pass does.
    forward_s: float
    compute_s: float  # seconds of all computing of the steps
    values: dict[str, float]  # numbers of the log line, e.g. "loss", "lr", "memory_gb"
    memory: dict[str, Use]  # "GPU" and "host" -> (used, total) in GB, as far as they are known
    gpu: dict[str, float] | None  # how busy the GPU is, see `gpu.usage`; None if it is not known


def measured(steps: int, model_log: dict[str, Any], timed: dict[str, float]) -> Measured:
    """Return the measurements of this rank since the last log line.

    steps: number of steps that were measured.
    model_log: the values of `StepLog.read_line` (utils.run.steps), and "forward_s", the seconds of
        the forward passes.
    timed: the values of `StepTimer.read` for these steps.
    """
    values: dict[str, Any] = model_log | timed
    forward_s = values.pop("forward_s")
    norms = values.pop("grad_norms")
    if norms:
        values["grad_norm"] = statistics.median(norms)
    # Without a step there is no speed, and each time is 0.
    seconds = steps / timed["it_per_s"] if steps else 0.0
    # `data_share` includes the wait for the first batch of an epoch, which does not count.
    data_share = timed.get("data_share", 0.0) - values.pop("epoch_start_share", 0.0)
    device = utils_dist.get_device()
    return Measured(
        host=socket.gethostname(),
        cores=system.cores(),
        steps=steps,
        seconds=seconds,
        data_s=data_share * seconds,
        forward_s=forward_s,
        compute_s=timed.get("compute_share", 0.0) * seconds,
        values=values,
        memory=_memory(device),
        gpu=gpu.usage(device),
    )


def _memory(device: torch.device) -> dict[str, Use]:
    """Return "GPU" and "host" -> (used, total) in GB, as far as they are known."""
    memory = {}
    host = host_memory()
    if host:
        memory["host"] = host
    with suppress(RuntimeError):  # the driver does not report its memory
        use = devices.memory_gb(device)
        if use:
            memory["GPU"] = use
    return memory


def log_values(ranks: list[Measured]) -> dict[str, float]:
    """Return the numbers of the log line: means over the ranks, and the largest memory_gb.

    If all ranks report their GPU, three numbers are added: "gpu_busy_min" (of the GPU that works
    least), "gpu_busy_mean", and "gpu_used_gb_max" (memory of the fullest GPU).
    """
    values = {}
    for name in ranks[0].values:
        if all(name in rank.values for rank in ranks):
            values[name] = statistics.fmean(rank.values[name] for rank in ranks)
    values["memory_gb"] = max(rank.values["memory_gb"] for rank in ranks)

    uses = [rank.gpu for rank in ranks if rank.gpu]
    if len(uses) == len(ranks):
        busy = [use["busy"] for use in uses]
        values["gpu_busy_min"] = min(busy)
        values["gpu_busy_mean"] = statistics.fmean(busy)
        values["gpu_used_gb_max"] = max(use["used_gb"] for use in uses)
    return values


# ---- Health ----------------------------------------------------------------------------------


class Health:
    """Judges a run at its log lines, saves and validations. All ranks may call it; rank 0 warns."""

    def __init__(
        self, folder: Path, train: TrainOptions, datasets: DatasetsOptions, total_iter: int
    ) -> None:
        """folder: the folder of the run.
        train: the section `train` of the options.
        datasets: the section `datasets` of the options.
        total_iter: number of steps of the run.
        """
        self.folder = folder
        self.train = train
        self.datasets = datasets
        self.total_iter = total_iter
        self.warned: set[str] = set()  # names of the warnings that were logged

        # The speed is judged in windows of one or several log lines. These are the lines that are
        # not judged yet; each line has the measurements of every rank.
        self.window: list[list[Measured]] = []
        # Whether no window was judged. The first window is left out: it also starts loader
        # processes, builds DDP and compiles.
        self.is_first = True
        self.in_a_row: Counter[str] = Counter()  # name of a warning -> bad windows in a row

        self.norms: deque[float] = deque(maxlen=KEPT)  # gradient norms of the newest steps
        # Losses of the log lines since the last validation.
        self.losses: deque[float] = deque(maxlen=KEPT)
        # (PSNR, mean loss since the validation before) of each validation.
        self.validations: list[tuple[float, float]] = []

    def planned(self, lr_floor: int | None, key: str) -> None:
        """Warn if the learning rate stays at its floor for a long part of the run.

        lr_floor: first step at which the learning rate is at its floor, or None if it never is.
        key: the option that makes the schedule longer, e.g. "train.G_linear_steps".
        """
        if lr_floor is None or self.total_iter - lr_floor <= FLOOR_TAIL * self.total_iter:
            return
        self._warn(
            "learning rate",
            "the learning rate is at its floor from iter %d on, for %.0f %% of the run, in which "
            "hardly anything is learned: stretch %s to the end (iter %d), or set "
            "train.total_iter=%d",
            lr_floor,
            100 * (1 - lr_floor / self.total_iter),
            key,
            self.total_iter,
            lr_floor,
        )

    # ---- At a log line ----

    def logged(self, ranks: list[Measured], grad_norms: list[float]) -> None:
        """Judge the steps since the last log line.

        ranks: the measurements of each rank.
        grad_norms: gradient norms of the steps. They are the same on all ranks.
        """
        if not utils_dist.is_main_process():
            return
        if grad_norms:  # empty if all steps of the line were skipped; then there is no loss
            self.losses.append(statistics.fmean(rank.values["loss"] for rank in ranks))
        self._check_norms(grad_norms)
        self._check_memory(ranks)

        # All ranks have made the same number of steps, so `line[0]`, rank 0, tells the number.
        self.window.append(ranks)
        if sum(line[0].steps for line in self.window) < WINDOW_STEPS:
            return
        lines = self.window
        self.window = []
        if not self.is_first:
            self._check_speed(lines)
        self.is_first = False

    def _check_norms(self, grad_norms: list[float]) -> None:
        """Warn if the gradient norm explodes.

        The median norm of the newest steps is compared with the median norm of the steps before.

        grad_norms: gradient norms of the steps since the last log line.
        """
        known = [*self.norms, *grad_norms]
        recent = max(NORM_RECENT, len(grad_norms))
        self.norms.extend(grad_norms)
        if len(known) < recent + NORM_BEFORE:
            return
        before = statistics.median(known[:-recent])
        now = statistics.median(known[-recent:])
        if now > NORM_FACTOR * before:
            self._warn(
                "gradient norm",
                "the gradient norm explodes: median %.3g over the last %d steps, %.3g before: "
                "lower train.G_optimizer_lr (now %g), or set train.G_optimizer_clipgrad=%.1g",
                now,
                recent,
                before,
                self.train.G_optimizer_lr,
                2 * before,
            )

    def _check_memory(self, ranks: list[Measured]) -> None:
        """Warn if the memory of a GPU or of a host is nearly full."""
        for kind in ("GPU", "host"):
            # The rank with the fullest memory of this kind.
            fullest = None
            fullest_share = -math.inf
            for number, rank in enumerate(ranks):
                if kind in rank.memory:
                    used, total = rank.memory[kind]
                    if used / total > fullest_share:
                        fullest = number
                        fullest_share = used / total
            if fullest is None or fullest_share <= MEMORY:
                continue
            used, total = ranks[fullest].memory[kind]
            self._warn(
                f"memory {kind}",
                "the memory of the %s is nearly full on rank %d, host %s: %.1f of %.1f GB: %s",
                kind,
                fullest,
                ranks[fullest].host,
                used,
                total,
                self._memory_advice(kind, total),
            )

    def _memory_advice(self, kind: str, total: float) -> str:
        """Return what to do about a full memory.

        kind: "GPU" or "host".
        total: size of the memory in GB.
        """
        if kind == "GPU":
            # Advise less than the 0.90 of the memory that "auto" plans with by itself.
            budget = f"{0.85 * total:.3g}"
            return (
                f'netG.checkpoint="auto" with netG.memory_budget_gb={budget} or less, or a '
                "smaller gt_size"
            )
        loader = self.datasets.train
        workers = loader.dataloader_num_workers if loader is not None else 0
        return (
            f"lower datasets.train.dataloader_num_workers (now {workers}), or ask for more memory"
        )

    def _check_speed(self, lines: list[list[Measured]]) -> None:
        """Warn if a rank waits for data, or is slower than the others.

        Ranks are compared by their wait for data and their forward pass, which a rank does alone.
        The backward pass takes equally long on all ranks, because the fast ranks wait there for the
        slow rank.

        lines: log lines, each with the measurements of every rank.
        """
        # Seconds of a step, for each rank.
        seconds = _per_step(lines, "seconds")
        waits = _per_step(lines, "data_s")
        forwards = _per_step(lines, "forward_s")
        newest = lines[-1]
        self._check_waits(newest, waits, seconds)

        alone = [wait + forward for wait, forward in zip(waits, forwards, strict=True)]
        for rank, own in enumerate(alone):
            others = [*alone[:rank], *alone[rank + 1 :]]
            # A rank without others is compared with itself, and is never slow.
            usual = statistics.median(others or alone)
            is_slow = own > SLOWER * usual and own - usual > LEAST_EFFECT * seconds[rank]
            self._warn_if_again(
                f"slow rank {rank}",
                is_slow,
                "rank %d on %s is slower than the others, which wait for it at every step: data "
                "%.3f s + forward %.3f s a step, the others %.3f s in all. On %s look for other "
                "programs on its GPU, cores and disk and for heat (nvidia-smi -q -d PERFORMANCE), "
                "or leave that host out",
                rank,
                newest[rank].host,
                waits[rank],
                forwards[rank],
                usual,
                newest[rank].host,
            )

    def _check_waits(
        self, newest: list[Measured], waits: list[float], seconds: list[float]
    ) -> None:
        """Warn if a rank waits for data for a large share of the time.

        newest: the newest measurements of every rank.
        waits: seconds of a step in which each rank waits for data.
        seconds: seconds of a step of each rank.
        """
        shares = [wait / whole for wait, whole in zip(waits, seconds, strict=True)]
        share = max(shares)
        worst = shares.index(share)
        # SLURM may give each rank different cores. Otherwise the ranks of a host have the same
        # cores, and share them. Count the ranks with the same host and cores.
        cores = [(rank.host, rank.cores) for rank in newest]
        sharing = cores.count(cores[worst])
        cores_of_rank = max(1, len(newest[worst].cores) // sharing)
        self._warn_if_again(
            "data",
            share > DATA_WAIT,
            "rank %d on %s waits for data %.0f %% of the time, and all others with it: %s",
            worst,
            newest[worst].host,
            100 * share,
            loader_advice(self.datasets.train, share, cores_of_rank),
        )

    def _warn_if_again(self, name: str, is_bad: bool, text: str, *values: Any) -> None:
        """Warn if something is bad in IN_A_ROW windows in a row. Call this once for each window.

        name: name of the warning.
        is_bad: whether it is bad in this window.
        text, values: format and values of the warning.
        """
        if is_bad:
            self.in_a_row[name] += 1
        else:
            self.in_a_row[name] = 0
        if self.in_a_row[name] >= IN_A_ROW:
            self._warn(name, text, *values)

    # ---- At a validation and at a save ----

    def validated(self, psnr: float) -> None:
        """Warn if the validation PSNR falls while the loss falls: the network overfits.

        psnr: mean PSNR of the validation, in dB.
        """
        if not self.losses or not math.isfinite(psnr):
            return
        self.validations.append((psnr, statistics.fmean(self.losses)))
        self.losses.clear()

        # Three falls need four validations.
        if len(self.validations) <= FALLS:
            return
        newest = self.validations[-(FALLS + 1) :]
        psnrs = [value for value, _ in newest]
        losses = [loss for _, loss in newest]
        always_falls = all(later < earlier for earlier, later in pairwise(psnrs))
        if not always_falls or psnrs[0] - psnrs[-1] < FALL_DB or losses[-1] >= losses[0]:
            return
        self._warn(
            "overfitting",
            "the validation PSNR falls while the loss falls: %s dB, loss %.4f to %.4f: the network "
            "overfits, or the test clips differ from the training clips. checkpoint_best.pth keeps "
            "the best weights; add clips, set datasets.train.use_hflip=true and use_rot=true, or "
            "compare the two splits with scripts/show_sample.py",
            " > ".join(f"{psnr:.2f}" for psnr in psnrs),
            losses[0],
            losses[-1],
        )

    def saved(self, step: int) -> None:
        """Warn if the disk has no room for the next saves.

        step: step of the save that was just made.
        """
        if not utils_dist.is_main_process():
            return
        saves_to_come = -(-(self.total_iter - step) // self.train.checkpoint_save)  # rounded up

        # A new checkpoint replaces the oldest of its former versions, so the folder `checkpoints`
        # grows only until all versions exist. The files of the weights are never deleted, so they
        # fill the disk.
        weights = 0
        for path in (self.folder / "models").glob(f"{step}_*.pth"):
            weights += path.stat().st_size
        if not saves_to_come or not weights:
            return
        free = free_bytes(self.folder) - self._growth_of_checkpoints()
        room = max(0, free / weights)
        if room < min(SAVES, saves_to_come):
            self._warn(
                "disk",
                "the disk of %s has room for %d more saves of %.3g GB, the run makes %d: free some "
                "space, or raise train.checkpoint_save (now %d)",
                self.folder,
                room,
                weights / 1e9,
                saves_to_come,
                self.train.checkpoint_save,
            )

    def _growth_of_checkpoints(self) -> int:
        """Return the bytes by which the folder `checkpoints` may still grow."""
        sizes = {}
        for path in (self.folder / "checkpoints").glob("checkpoint_*.pth"):
            sizes[path.name] = path.stat().st_size
        # checkpoint_latest has former versions and so has checkpoint_best, which a run with a test
        # split writes.
        kinds = 1 if self.datasets.test is None else 2
        versions = 1 + self.train.keep_checkpoints
        missing = max(0, kinds * versions - len(sizes))
        # One more file is needed, because a new file is written before an old one is deleted.
        return sizes.get("checkpoint_latest.pth", 0) * (1 + missing)

    def _warn(self, name: str, text: str, *values: Any) -> None:
        """Log a warning on rank 0, once for each name."""
        if name not in self.warned and utils_dist.is_main_process():
            self.warned.add(name)
            logger.warning(text, *values)


def _per_step(lines: list[list[Measured]], name: str) -> list[float]:
    """Return the mean seconds of a step, for each rank.

    lines: log lines, each with the measurements of every rank.
    name: name of a field of `Measured` in seconds, e.g. "data_s".
    """
    steps = sum(line[0].steps for line in lines)
    means = []
    for rank in range(len(lines[0])):
        seconds = sum(getattr(line[rank], name) for line in lines)
        means.append(seconds / steps)
    return means


def loader_advice(section: Any, share: float, cores: int) -> str:
    """Return what to set if training waits for data.

    section: the options datasets.train.
    share: share of the time in which training waits for data, 0 to 1.
    cores: number of cores of a rank.
    """
    workers = section.dataloader_num_workers
    # Now n workers make a batch in the time of a step, which includes the wait. Without the wait a
    # step takes (1 - share) of this time, so n / (1 - share) workers are needed. E.g. with 6
    # workers and a wait of 25 %, 8 workers.
    wanted = math.ceil(workers / (1 - share)) if workers else 2
    advice = []
    if wanted <= cores:
        advice.append(f"set datasets.train.dataloader_num_workers={wanted} (now {workers})")
    backend = getattr(section, "io_backend", None)  # a dataset of another kind may lack it
    if getattr(backend, "type", "") != "cache":
        advice.append("build a clip cache with scripts/build_clip_cache.py")
    advice.append(f"copy the data to a faster disk (a rank has {cores} CPU cores)")
    return ", or ".join(advice)

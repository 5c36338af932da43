"""What a run measures of itself: time by part, work of the device, memory; of one rank and of all.

`Health` warns of what makes a run slow, or wastes it, and says what to do. Each warning comes once
per start of a run, on rank 0. The thresholds are constants: a run that stays below them needs no
attention, whatever its options.
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
Use = tuple[float, float]  # used, total, in GB (1e9 bytes)
PAUSES = ("validation", "save")
WINDOW_S = 300.0  # the speed within about this time counts for the time that remains

# ---- Thresholds of `Health` ----

# Share of the time. Below it, a faster loader gains less than the noise between two runs.
DATA_WAIT = 0.10
SLOWER = 1.2  # times the median of the other ranks
LEAST_EFFECT = 0.05  # of a step: a rank that is slower by less than this delays nobody noticeably
WINDOW_STEPS = 10  # fewer steps are judged together with the next ones
IN_A_ROW = 3  # windows: a single one may coincide with other load
MEMORY = 0.95  # netG.checkpoint "auto" plans with 0.90
# A learning rate that is too high raises the norm by orders of magnitude, a healthy run by less
# than 3.
NORM_FACTOR = 10.0
NORM_RECENT = 10  # steps, at least
NORM_BEFORE = 50  # steps
KEPT = 1000  # steps
FLOOR_TAIL = 0.10  # of the run; many schedules end on a short constant part
FALLS = 3  # validations in a row
FALL_DB = 0.1  # in all: PSNR wavers by some hundredths of a dB
SAVES = 20  # to come: time enough to react, a day or more with usual options


def seconds_of(
    run: Callable[[], Any], device: torch.device, repeats: int = 3, warmup: int = 0
) -> float:
    """Return the median seconds of `run`, to the end of its work on the device."""
    seconds = []
    for _ in range(warmup + repeats):
        begin = time.perf_counter()
        run()
        devices.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[warmup:])


class Span:
    """Steps, and seconds by part, since it began. `PAUSES` do not count."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.paused = 0.0
        self.steps = 0
        self.parts: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin - self.paused

    def values(self) -> dict[str, float]:
        """Return iterations per second, and of each part its share of the time (0..1).

        Returns {} if there was no step.
        """
        if not self.steps:
            return {}
        seconds = self.seconds
        values = {"it_per_s": self.steps / seconds}
        for name, part in self.parts.items():
            values[f"{name}_share"] = part / seconds
        return values


class StepTimer:
    """Wall-clock time of the steps by part, since the last log line and in the epoch; and of the
    pauses between them.

    The first step of a process does not count: it also starts the workers, builds DDP, compiles and
    tunes kernels. On a GPU the parts show what the host waited for; no device synchronisation is
    added.
    """

    def __init__(self) -> None:
        self.line, self.epoch = Span(), Span()
        self.epoch_begin = time.perf_counter()
        self.pauses: dict[str, list[float]] = defaultdict(list)  # kind -> seconds of each
        self._is_warm = False
        self._recent = (0.0, 0.0)  # steps and seconds before the last log line, fading

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """The body is a part of the steps, or one of PAUSES between them, which does not count."""
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
        if self._is_warm:
            self.line.steps += 1
            self.epoch.steps += 1
        else:
            self._is_warm = True
            self.line, self.epoch = Span(), Span()

    def read(self) -> dict[str, float]:
        """Return `Span.values` since the last call, and memory_gb.

        memory_gb is the most so far: of torch's tensors on a GPU, else of the process.
        """
        values = self.line.values()
        self._recent = self._faded()
        self.line = Span()
        peak = devices.peak_gb(utils_dist.get_device())
        values["memory_gb"] = system.peak_process_gb() if peak is None else peak
        return values

    def begin_epoch(self) -> None:
        self.epoch, self.epoch_begin = Span(), time.perf_counter()

    def pace(self) -> float | None:
        """Return the seconds of a step in the last minutes, or None before the second step."""
        steps, seconds = self._faded()
        return seconds / steps if steps else None

    def _faded(self) -> tuple[float, float]:
        """Return steps and seconds up to now. What is WINDOW_S ago counts 1/e."""
        if not self.line.steps:
            return self._recent
        steps_before, seconds_before = self._recent
        seconds = self.line.seconds
        fade = math.exp(-seconds / WINDOW_S)
        return steps_before * fade + self.line.steps, seconds_before * fade + seconds


class DeviceClock:
    """Sums the seconds that the device spends on the blocks `measured`; on the CPU, wall-clock
    seconds.

    On a GPU each block lies between two events of the current stream. They are read when they have
    passed: the host never waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self.events: deque[tuple[torch.Event, torch.Event]] = deque()

    @contextmanager
    def measured(self) -> Generator[None]:
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
        while self.events and self.events[0][1].query():
            begin, end = self.events.popleft()
            self.seconds += begin.elapsed_time(end) / 1000
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Use | None:
    """Return the use of the fullest of the host and the control groups around this process.

    These are the groups with a limit, of containers and SLURM jobs. Returns None if nothing is
    known. The kernel counts all processes of a group. The file cache does not count, also what was
    read twice, because the kernel drops it first.

    proc, groups: where the kernel mounts them.
    """
    found: list[Use] = []
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        total, free = (
            int(lines[key].split()[0]) * 1024 / GB for key in ("MemTotal", "MemAvailable")
        )
        found.append((total - free, total))
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            found += _uses_of_groups(line, groups)
    # Version 1 has a limit of 2**63 bytes where there is none.
    limited = [use for use in found if 0 < use[1] < 2**60 / GB]
    return max(limited, key=lambda use: use[0] / use[1], default=None)


def _uses_of_groups(line: str, groups: Path) -> list[Use]:
    """Return the use of a control group and of the groups around it, in the order of their depth.

    line: a line of /proc/self/cgroup. Returns [] if the group counts no memory, or has no limit.
    """
    _, controllers, path = line.split(":", 2)
    if "memory" in controllers.split(","):  # version 1
        root = groups / "memory"
        used, limit, prefix = "memory.usage_in_bytes", "memory.limit_in_bytes", "total_"
    elif not controllers:  # version 2
        root = groups
        used, limit, prefix = "memory.current", "memory.max", ""
    else:
        return []
    inner = root / path.lstrip("/")
    # In a container the path may be that of the host, which the container does not see.
    folders = [inner, *inner.parents] if inner.is_dir() else [root]
    uses = []
    for folder in folders:
        with suppress(OSError, ValueError, KeyError):  # above the root, or "max": no limit
            total = int((folder / limit).read_text())
            stat = dict(
                line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines()
            )
            cache = int(stat[f"{prefix}active_file"]) + int(stat[f"{prefix}inactive_file"])
            held = int((folder / used).read_text())
            uses.append(((held - cache) / GB, total / GB))
    return uses


@dataclass(frozen=True)
class Measured:
    """What one rank measured. Times are in seconds, over `steps` steps.

    The first step of a process is left out.

    cores: the cores that the process may use.
    data_s: wait for batches, without the first batch of an epoch, which waits for new workers.
    forward_s: forward passes. They wait for no other rank, as the backward pass does.
    compute_s: all of the steps.
    values: numbers of the log line.
    memory: "GPU" and "host" -> use, if it is known.
    """

    host: str
    cores: tuple[int, ...]
    steps: int
    seconds: float
    data_s: float
    forward_s: float
    compute_s: float
    values: dict[str, float]
    memory: dict[str, Use]
    gpu: dict[str, float] | None


def measured(steps: int, model_log: dict[str, Any], timed: dict[str, float]) -> Measured:
    """Return what this rank measured.

    model_log: `StepLog.read` of the model. timed: `StepTimer.read`, of `steps` steps.
    """
    values: dict[str, Any] = model_log | timed
    forward_s = values.pop("forward_s")
    norms = values.pop("grad_norms")
    if norms:
        values["grad_norm"] = statistics.median(norms)
    seconds = steps / timed["it_per_s"] if steps else 0.0
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
    memory = {}
    host = host_memory()
    if host:
        memory["host"] = host
    with suppress(RuntimeError):
        use = devices.memory_gb(device)
        if use:
            memory["GPU"] = use
    return memory


def log_values(ranks: list[Measured]) -> dict[str, float]:
    """Return the values of the log line: means over the ranks, and the most of memory_gb.

    If all ranks report their GPU, the idlest, the mean and the fullest GPU are added.
    """
    names = [name for name in ranks[0].values if all(name in rank.values for rank in ranks)]
    values = {name: statistics.fmean(rank.values[name] for rank in ranks) for name in names}
    values["memory_gb"] = max(rank.values["memory_gb"] for rank in ranks)
    uses = [rank.gpu for rank in ranks if rank.gpu]
    if len(uses) == len(ranks):
        busy = [use["busy"] for use in uses]
        values |= {"gpu_busy_min": min(busy), "gpu_busy_mean": statistics.fmean(busy)}
        values["gpu_used_gb_max"] = max(use["used_gb"] for use in uses)
    return values


class Health:
    """Judges a run at its log lines, saves and validations. All ranks may call it; rank 0 warns."""

    def __init__(
        self, folder: Path, train: TrainOptions, datasets: DatasetsOptions, total_iter: int
    ) -> None:
        self.folder = folder
        self.train = train
        self.datasets = datasets
        self.total_iter = total_iter
        self.said: set[str] = set()
        self.window: list[list[Measured]] = []  # log lines that are not judged yet
        self.is_first = True  # of this process: it also starts workers, builds DDP, compiles
        self.in_a_row: Counter[str] = Counter()
        self.norms: deque[float] = deque(maxlen=KEPT)
        self.losses: deque[float] = deque(maxlen=KEPT)  # of the log lines since the last validation
        self.validations: list[tuple[float, float]] = []  # PSNR, mean loss before it

    def planned(self, lr_floor: int | None, key: str) -> None:
        """Warn if the learning rate stays at its floor for a long part of the run.

        lr_floor: first step of the floor, None if there is none. key: the option that makes the
        schedule longer.
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

    def logged(self, ranks: list[Measured], grad_norms: list[float]) -> None:
        """Judge the steps since the last log line.

        ranks: what each rank measured. grad_norms: norms of the steps, the same on all ranks.
        """
        if not utils_dist.is_main_process():
            return
        if grad_norms:  # else all steps of the line were skipped, and have no loss
            self.losses.append(statistics.fmean(rank.values["loss"] for rank in ranks))
        self._check_norms(grad_norms)
        self._check_memory(ranks)
        self.window.append(ranks)
        if sum(line[0].steps for line in self.window) < WINDOW_STEPS:
            return
        lines = self.window
        self.window = []
        if not self.is_first:
            self._check_speed(lines)
        self.is_first = False

    def _check_norms(self, grad_norms: list[float]) -> None:
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
        loader = self.datasets.train
        workers = loader.dataloader_num_workers if loader is not None else 0
        for kind in ("GPU", "host"):
            uses = {i: rank.memory[kind] for i, rank in enumerate(ranks) if kind in rank.memory}
            if not uses:
                continue
            fullest = max(uses, key=lambda i: uses[i][0] / uses[i][1])
            used, total = uses[fullest]
            if used / total <= MEMORY:
                continue
            if kind == "GPU":
                do = (
                    f'netG.checkpoint="auto" with netG.memory_budget_gb={0.85 * total:.3g} or '
                    "less, or a smaller gt_size"
                )
            else:
                do = (
                    f"lower datasets.train.dataloader_num_workers (now {workers}), or ask for more "
                    "memory"
                )
            self._warn(
                f"memory {kind}",
                "the memory of the %s is nearly full on rank %d, host %s: %.1f of %.1f GB: %s",
                kind,
                fullest,
                ranks[fullest].host,
                used,
                total,
                do,
            )

    def _check_speed(self, lines: list[list[Measured]]) -> None:
        """Judge waits for data, and what a rank does alone.

        In the backward pass the fast ranks wait for the slow one, so it is not compared.
        """
        last = lines[-1]
        # Seconds of a step, per rank.
        seconds = _per_step(lines, "seconds")
        waits = _per_step(lines, "data_s")
        forwards = _per_step(lines, "forward_s")

        shares = [wait / whole for wait, whole in zip(waits, seconds, strict=True)]
        worst = max(range(len(shares)), key=lambda rank: shares[rank])
        share = shares[worst]
        # SLURM may give each rank cores of its own; otherwise the ranks of a host share them.
        cores = [(rank.host, rank.cores) for rank in last]
        own = max(1, len(last[worst].cores) // cores.count(cores[worst]))
        self._warn_if_again(
            "data",
            share > DATA_WAIT,
            "rank %d on %s waits for data %.0f %% of the time, and all others with it: %s",
            worst,
            last[worst].host,
            100 * share,
            loader_advice(self.datasets.train, share, own),
        )

        alone = [wait + forward for wait, forward in zip(waits, forwards, strict=True)]
        for rank, mine in enumerate(alone):
            others = statistics.median([*alone[:rank], *alone[rank + 1 :]] or alone)
            is_slow = mine > SLOWER * others and mine - others > LEAST_EFFECT * seconds[rank]
            self._warn_if_again(
                f"slow rank {rank}",
                is_slow,
                "rank %d on %s is slower than the others, which wait for it at every step: data "
                "%.3f s + forward %.3f s a step, the others %.3f s in all. On %s look for other "
                "programs on its GPU, cores and disk and for heat (nvidia-smi -q -d PERFORMANCE), "
                "or leave that host out",
                rank,
                last[rank].host,
                waits[rank],
                forwards[rank],
                others,
                last[rank].host,
            )

    def _warn_if_again(self, name: str, is_bad: bool, text: str, *values: Any) -> None:
        """Warn if something is bad in IN_A_ROW windows."""
        self.in_a_row[name] = self.in_a_row[name] + 1 if is_bad else 0
        if self.in_a_row[name] >= IN_A_ROW:
            self._warn(name, text, *values)

    def validated(self, psnr: float) -> None:
        """Judge a validation. psnr: its mean in dB."""
        if not self.losses or not math.isfinite(psnr):
            return
        self.validations.append((psnr, statistics.fmean(self.losses)))
        self.losses.clear()
        last = self.validations[-FALLS - 1 :]
        psnrs = [psnr for psnr, _ in last]
        first_loss = last[0][1]
        last_loss = last[-1][1]
        has_fallen = psnrs == sorted(set(psnrs), reverse=True) and psnrs[0] - psnrs[-1] >= FALL_DB
        if len(last) <= FALLS or not has_fallen or last_loss >= first_loss:
            return
        self._warn(
            "overfitting",
            "the validation PSNR falls while the loss falls: %s dB, loss %.4f to %.4f: the network "
            "overfits, or the test clips differ from the training clips. checkpoint_best.pth keeps "
            "the best weights; add clips, set datasets.train.use_hflip=true and use_rot=true, or "
            "compare the two splits with scripts/show_sample.py",
            " > ".join(f"{psnr:.2f}" for psnr in psnrs),
            first_loss,
            last_loss,
        )

    def saved(self, step: int) -> None:
        """Warn if the disk has no room for the next saves. step: of the save just done."""
        if not utils_dist.is_main_process():
            return
        left = -(-(self.total_iter - step) // self.train.checkpoint_save)
        # The latest checkpoint and, with a test split, the best one keep former versions; a new one
        # is written before an old one goes. The weights of all steps stay.
        kinds = 1 + (self.datasets.test is not None)
        sizes = {}
        for path in (self.folder / "checkpoints").glob("checkpoint_*.pth"):
            sizes[path.name] = path.stat().st_size
        missing = kinds * (1 + self.train.keep_checkpoints) - len(sizes)
        whole = sizes.get("checkpoint_latest.pth", 0) * (1 + max(0, missing))
        models = self.folder / "models"
        weights = sum(path.stat().st_size for path in models.glob(f"{step}_*.pth"))
        if not left or not weights:
            return
        room = max(0, (free_bytes(self.folder) - whole) / weights)
        if room < min(SAVES, left):
            self._warn(
                "disk",
                "the disk of %s has room for %d more saves of %.3g GB, the run makes %d: free some "
                "space, or raise train.checkpoint_save (now %d)",
                self.folder,
                room,
                weights / 1e9,
                left,
                self.train.checkpoint_save,
            )

    def _warn(self, name: str, text: str, *values: Any) -> None:
        if name not in self.said and utils_dist.is_main_process():
            self.said.add(name)
            logger.warning(text, *values)


def _per_step(lines: list[list[Measured]], name: str) -> list[float]:
    """Return the mean of a time over the steps of the log lines, for each rank."""
    steps = sum(line[0].steps for line in lines)
    means = []
    for of_rank in zip(*lines, strict=True):
        means.append(sum(getattr(line, name) for line in of_rank) / steps)
    return means


def loader_advice(section: Any, share: float, cores: int) -> str:
    """What to set where training waits for data `share` of the time. cores: of a rank."""
    workers, advice = section.dataloader_num_workers, []
    # With n workers a batch takes as long as the step and the wait; without the wait it must come
    # so much sooner.
    wanted = math.ceil(workers / (1 - share)) if workers else 2
    if wanted <= cores:
        advice.append(f"set datasets.train.dataloader_num_workers={wanted} (now {workers})")
    if getattr(getattr(section, "io_backend", None), "type", "") != "cache":
        advice.append("build a clip cache with scripts/build_clip_cache.py")
    advice.append(f"copy the data to a faster disk (a rank has {cores} CPU cores)")
    return ", or ".join(advice)

"""Measurements of a run: its time, memory, and work of the device, on one rank and on all ranks.

The numbers go this way, from a step to the log line:

    StepTimer, DeviceClock   measure the steps of this rank
    measurements(...)        collects what this rank measured since the last log line: `Measured`
    gather_objects           brings the `Measured` of all ranks together (utils_dist)
    log_values(...)          makes the numbers of the log line from them
    Health.judge_log_line    judges them

`Health` warns if something makes a run slow or useless, and says what to do. Each warning comes
once per start of a run, on rank 0.

What must stay: the names of the numbers of a log line (`log_values`), because they are the tags of
a run's history; and no wait for the device in a step. The texts of the warnings are quoted in
documents and tests, so change them everywhere at once.

Free to change: each threshold of `Health`, if it warns of healthy runs. tests/parts/utils/
test_health.py then shows which warnings move. A new warning is a new method `_check_...`.

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
from typing import Any, NamedTuple

import torch

from utils import device as devices
from utils import system, utils_dist
from utils.dist import gpu
from utils.files import free_bytes
from utils.options.models import DatasetsOptions, TrainOptions

logger = logging.getLogger(__name__)

GB = 1e9  # bytes
Use = tuple[float, float]  # (used, total) of a memory, in GB

# The kinds of work between two steps that do not count as time of the steps.
PAUSES = ("validation", "save")
# Seconds after which an old speed counts 37 % (1 / e) in the predicted speed. A shorter time would
# let the predicted end jump at each slow step; with a longer one it would follow a change late.
FADE_S = 300.0

# ---- Thresholds of `Health` ----

# Largest share of the time that a rank may wait for data. Below this share, a faster loader would
# gain less than the speeds of two equal runs differ.
MOST_DATA_SHARE = 0.10
# A rank is slow if it takes more than 1.2 times the median of the other ranks, ...
SLOW_FACTOR = 1.2
# ... and if the difference is more than this share of a step. A smaller delay is not noticeable.
LEAST_DELAY_SHARE = 0.05
# The speed is judged over a window of at least this many steps. With long steps, several log lines
# make a window.
WINDOW_STEPS = 10
# A warning of the speed needs this many bad windows in a row, because another program may slow down
# a single window.
BAD_WINDOWS_IN_A_ROW = 3
# Above this share a memory is "nearly full". netG.checkpoint "auto" plans with 0.90, so it stays
# below.
MOST_MEMORY_SHARE = 0.95
# A gradient norm that grows tenfold has exploded. With too high a learning rate it grows by orders
# of magnitude, and in a healthy run by a factor of less than 3.
NORM_FACTOR = 10.0
# The median norm of at least 10 newest steps is compared with the median norm of at least 50 steps
# before them. With fewer steps a few large batches could look like an explosion.
NEW_NORM_STEPS = 10
OLD_NORM_STEPS = 50
# Number of newest gradient norms and losses that are remembered. More would only let an early part
# of the run, in which the norm is large, hide an explosion.
MOST_REMEMBERED = 1000
# Share of a run in which the learning rate may stay at its floor. Many schedules end with a short
# constant part.
MOST_FLOOR_SHARE = 0.10
# The network overfits if the validation PSNR falls three times in a row, by at least 0.1 dB in all.
# PSNR varies by some hundredths of a dB anyway.
FALLS_IN_A_ROW = 3
LEAST_FALL_DB = 0.1
# With room for this many saves on the disk, nobody is warned: the user has a day or more to react
# with usual options.
ENOUGH_SAVES = 20


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
        # A GPU is still computing when the call returns.
        devices.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    seconds_that_count = seconds[warmup:]
    return statistics.median(seconds_that_count)


class Span:
    """A time of the run, e.g. an epoch: its number of steps, and the seconds of each kind of work.

    `PAUSES` do not count. The kinds of work are the names given to `StepTimer.part`: "data" (wait
    for a batch), "compute", ...
    """

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.paused_s = 0.0  # seconds of PAUSES
        self.steps = 0
        self.seconds_of: dict[str, float] = defaultdict(float)  # kind of work -> seconds

    @property
    def seconds(self) -> float:
        """The seconds since the span began, without the pauses."""
        return time.perf_counter() - self.begin - self.paused_s

    def values(self) -> dict[str, float]:
        """Return iterations per second, and the share of each kind of work in the time (0..1).

        E.g. {"it_per_s": 2.1, "data_share": 0.03, "compute_share": 0.95}. Returns {} if there was
        no step.
        """
        if not self.steps:
            return {}
        seconds = self.seconds
        values = {"it_per_s": self.steps / seconds}
        for name, seconds_of_name in self.seconds_of.items():
            values[f"{name}_share"] = seconds_of_name / seconds
        return values


class StepTimer:
    """Measures wall-clock time: of the steps since the last log line, of the epoch, and of pauses.

    The first step of a process does not count, because it also starts the loader processes, builds
    DDP, and compiles and tunes kernels. On a GPU the times show what the host waited for: the timer
    must not wait for the device itself, because this would slow down every step.

    Tests in test_progress.py: test_the_first_step_of_a_process_does_not_count,
    test_validations_do_not_count_in_the_pace, test_the_remaining_time_follows_a_change_of_speed.
    """

    def __init__(self) -> None:
        self.line = Span()  # since the last log line
        self.epoch = Span()
        self.epoch_begin = time.perf_counter()
        self.pauses: dict[str, list[float]] = defaultdict(list)  # "save" -> seconds of each save
        self._is_warm = False  # whether the first step is done
        # What `_faded_sums` returned at the last log line: (faded steps, faded seconds).
        self._sums_at_line = (0.0, 0.0)

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
                    span.paused_s += seconds
                else:
                    span.seconds_of[name] += seconds
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
        # `_faded_sums` reads the current line, so call it before a new line begins.
        self._sums_at_line = self._faded_sums()
        self.line = Span()
        device_peak_gb = devices.peak_gb(utils_dist.get_device())  # None on the CPU
        if device_peak_gb is None:
            values["memory_gb"] = system.peak_process_gb()
        else:
            values["memory_gb"] = device_peak_gb
        return values

    def begin_epoch(self) -> None:
        """Begin to measure a new epoch."""
        self.epoch = Span()
        self.epoch_begin = time.perf_counter()

    def pace(self) -> float | None:
        """Return the seconds of a step in the last minutes, or None before the second step."""
        steps, seconds = self._faded_sums()
        return seconds / steps if steps else None

    def _faded_sums(self) -> tuple[float, float]:
        """Return (steps, seconds) up to now, in which older steps and seconds count less.

        So seconds / steps follows a change of speed within minutes, and a single slow step hardly
        changes it. Here t is the time since the last log line without the pauses, in seconds, and
        FADE_S is five minutes:

            fade          = exp(-t / FADE_S)                      e.g. 0.37 if t is five minutes
            faded steps   = fade * faded steps at the last line   + steps since then
            faded seconds = fade * faded seconds at the last line + t
        """
        # Without a new step there is no new speed, so the speed of the last log line stays.
        if not self.line.steps:
            return self._sums_at_line
        steps_at_line, seconds_at_line = self._sums_at_line
        seconds = self.line.seconds
        fade = math.exp(-seconds / FADE_S)
        return steps_at_line * fade + self.line.steps, seconds_at_line * fade + seconds


class DeviceClock:
    """Sums the seconds that the device spends on blocks of `with clock.measure():`.

    On the CPU these are wall-clock seconds. On a GPU the clock puts an event before and after each
    block into the queue of the GPU. When the GPU comes to an event in its queue, it writes the time
    into the event. `read` takes only events that have their time, so the host never waits for the
    device. Keep it so: a wait in a step would slow down every step.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0  # seconds of finished blocks since the last `read`
        # (begin, end) of blocks that are not read yet, the oldest first.
        self.events: deque[tuple[torch.Event, torch.Event]] = deque()

    @contextmanager
    def measure(self) -> Generator[None]:
        """Measure the block."""
        if self.device.type == "cpu":
            begin = time.perf_counter()
            yield
            self.seconds += time.perf_counter() - begin
            return
        begin_event = torch.Event(self.device, enable_timing=True)
        end_event = torch.Event(self.device, enable_timing=True)
        begin_event.record()
        yield
        end_event.record()
        self.events.append((begin_event, end_event))

    def read(self) -> float:
        """Return the seconds since the last call, of the blocks that the device has finished."""
        while self.events:
            begin_event, end_event = self.events[0]
            if not end_event.query():  # the device has not finished this block yet
                break
            self.events.popleft()
            self.seconds += begin_event.elapsed_time(end_event) / 1000  # elapsed_time is in ms
        seconds = self.seconds
        self.seconds = 0.0
        return seconds


# ---- Memory ----------------------------------------------------------------------------------


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Use | None:
    """Return (used, total) in GB of the fullest memory that this process may use.

    A process is in control groups of Linux, one within another. Containers and SLURM jobs limit the
    memory of a control group. So a group may be full while the host has much free memory. E.g. with
    (40, 500) for the host and (15, 16) for a container, this function returns (15, 16): 15 of 16 GB
    are a larger share. Returns None if no memory is known.

    `used` is the memory of all processes of a group. Files that the kernel keeps in memory (the
    file cache) do not count, because the kernel drops them when memory is short.

    proc, groups: where the kernel mounts its files. Only tests give other folders:
        test_the_memory_of_a_container_is_its_limit has the files of a container, and
        test_the_limit_of_the_first_version_of_cgroups_is_read the files of an old Linux.
    """
    uses: list[Use] = []  # of the host and of each group
    with suppress(OSError, KeyError, ValueError):  # a system without /proc, or with another form
        uses.append(_use_of_host(proc))
    with suppress(OSError):
        # The file has a line for each group of this process, e.g. "0::/user.slice".
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            uses += _uses_of_groups(line, groups)
    # If a group of version 1 has no limit, Linux gives a limit of about 2**63 bytes. No host has
    # 2**60 bytes, so a larger number means that there is no limit.
    no_limit_gb = 2**60 / GB
    fullest = None
    fullest_share = -math.inf
    for used, total in uses:
        if 0 < total < no_limit_gb and used / total > fullest_share:
            fullest = (used, total)
            fullest_share = used / total
    return fullest


def _use_of_host(proc: Path) -> Use:
    """Return (used, total) in GB of the host. Raises OSError, KeyError or ValueError."""
    # Lines such as "MemTotal:       32768000 kB" -> "MemTotal": "       32768000 kB".
    texts = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, text = line.split(":", 1)
        texts[name] = text
    total_kb = int(texts["MemTotal"].split()[0])
    free_kb = int(texts["MemAvailable"].split()[0])
    total = total_kb * 1024 / GB
    free = free_kb * 1024 / GB
    return total - free, total


def _uses_of_groups(line: str, groups: Path) -> list[Use]:
    """Return (used, total) of a control group and of the groups around it, the innermost first.

    line: a line of /proc/self/cgroup, "<number>:<what the group counts>:<path>". Linux has two
        versions of groups: "4:memory:/slurm/job_7" is a group of version 1, "0::/user.slice" is a
        group of version 2.

    Returns [] if the group counts no memory, or has no limit.
    """
    _, controllers, path = line.split(":", 2)
    if "memory" in controllers.split(","):  # version 1
        root = groups / "memory"
        names = _GroupFiles(
            used="memory.usage_in_bytes", limit="memory.limit_in_bytes", prefix="total_"
        )
    elif not controllers:  # version 2
        root = groups
        names = _GroupFiles(used="memory.current", limit="memory.max", prefix="")
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
            uses.append(_use_of_group(folder, names))
    return uses


class _GroupFiles(NamedTuple):
    """How a version of control groups names what this program reads."""

    used: str  # name of the file with the used bytes
    limit: str  # name of the file with the largest number of bytes
    prefix: str  # what the names in memory.stat begin with, e.g. "total_" in "total_active_file"


def _use_of_group(folder: Path, names: _GroupFiles) -> Use:
    """Return (used, total) in GB of one control group of Linux, which limits some processes.

    folder: the folder with the files of the group. test_the_memory_of_a_container_is_its_limit has
        such files.

    Raises OSError, ValueError or KeyError if a file is missing or has another form.
    """
    total_bytes = int((folder / names.limit).read_text())
    # memory.stat has lines such as "active_file 1048576". The file cache is in two lists of the
    # kernel. It is not counted as used, because the kernel frees it when memory is short.
    texts = {}
    for stat_line in (folder / "memory.stat").read_text().splitlines():
        name, text = stat_line.split(" ", 1)
        texts[name] = text
    active_bytes = int(texts[f"{names.prefix}active_file"])
    inactive_bytes = int(texts[f"{names.prefix}inactive_file"])
    cache_bytes = active_bytes + inactive_bytes
    used_bytes = int((folder / names.used).read_text()) - cache_bytes
    return used_bytes / GB, total_bytes / GB


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
    # Wall-clock seconds of all these steps. They contain the three times below, as in
    #
    #     seconds  =  data_s  +  compute_s                                     +  others
    #                            forward_s  +  backward pass, optimizer, ...
    seconds: float
    # Seconds of waiting for batches. The first batch of an epoch does not count, because it waits
    # for new loader processes.
    data_s: float
    # Seconds of the forward passes, a part of compute_s. A forward pass waits for no other rank; a
    # backward pass does. So forward_s shows a rank that is slow itself.
    forward_s: float
    compute_s: float  # seconds of all computing of the steps: forward, backward, optimizer
    values: dict[str, float]  # numbers of the log line, e.g. "loss", "lr", "memory_gb"
    memory: dict[str, Use]  # "GPU" and "host" -> (used, total) in GB, as far as they are known
    gpu: dict[str, float] | None  # name -> how busy the GPU is, from `gpu.usage`; None if not known


def measurements(steps: int, model_log: dict[str, Any], timed: dict[str, float]) -> Measured:
    """Return the measurements of this rank since the last log line.

    steps: number of steps that were measured.
    model_log: what `StepLog.read_line` (utils.run.steps) returns, and the seconds of the forward
        passes: {"loss": ..., other losses, "lr": ..., "grad_norms": [...], "forward_s": ...}.
    timed: what `StepTimer.read` returns for these steps: {"it_per_s": ..., "data_share": ...,
        "epoch_start_share": ..., "compute_share": ..., other shares, "memory_gb": ...}. A share
        that took no time may be missing. Without a step there is only "memory_gb".
    """
    values: dict[str, Any] = model_log | timed
    # Take out the three values that are no numbers of the log line.
    forward_s = values.pop("forward_s")
    grad_norms = values.pop("grad_norms")
    epoch_start_share = values.pop("epoch_start_share", 0.0)
    if grad_norms:  # empty if all steps were skipped
        values["grad_norm"] = statistics.median(grad_norms)
    # The timer gives steps per second and shares, as the log line shows them, and no seconds. E.g.
    # 10 steps at 2 steps a second took 5 s, and a share of 0.3 is 1.5 s of them. Without a step
    # there is no speed, and each time is 0.
    seconds = steps / timed["it_per_s"] if steps else 0.0
    # `data_share` holds the wait for the first batch of an epoch, too (`epoch_start_share`). Take
    # it out here, because this wait does not mean that the loader is slow. The log line shows the
    # whole `data_share`, so `values` keeps it.
    data_share = values.get("data_share", 0.0) - epoch_start_share
    compute_share = values.get("compute_share", 0.0)
    device = utils_dist.get_device()
    return Measured(
        host=socket.gethostname(),
        cores=system.cores(),
        steps=steps,
        seconds=seconds,
        data_s=data_share * seconds,
        forward_s=forward_s,
        compute_s=compute_share * seconds,
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
    least), "gpu_busy_mean", and "gpu_used_gb_max" (memory of the fullest GPU). The names are tags
    of the history of a run, so they must stay
    (test_the_log_line_has_the_idlest_and_the_fullest_gpu).
    """
    values = {}
    for name in ranks[0].values:
        # A number that only some ranks have would be a mean of another set of ranks: leave it out.
        if all(name in rank.values for rank in ranks):
            values[name] = statistics.fmean(rank.values[name] for rank in ranks)
    values["memory_gb"] = max(rank.values["memory_gb"] for rank in ranks)

    gpus = [rank.gpu for rank in ranks if rank.gpu]
    if len(gpus) == len(ranks):
        busy_shares = [use["busy"] for use in gpus]
        values["gpu_busy_min"] = min(busy_shares)
        values["gpu_busy_mean"] = statistics.fmean(busy_shares)
        values["gpu_used_gb_max"] = max(use["used_gb"] for use in gpus)
    return values


# ---- Health ----------------------------------------------------------------------------------


class _Validation(NamedTuple):
    """The numbers of a validation that tell whether the network overfits."""

    psnr: float  # mean over the clips, in dB
    loss: float  # mean training loss since the validation before


class Health:
    """Judges a run at its log lines, saves and validations. All ranks may call it; rank 0 warns.

    A new warning is a new `_check_...` method, which gives `_warn` a name that no other warning
    has. The method must contain no collective, because only rank 0 comes so far: the other ranks
    leave `judge_log_line` and `judge_save` at once, and rank 0 would wait for them for ever.
    """

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
        # Whether the present window is the first one. It is not judged, because it also starts
        # loader processes, builds DDP and compiles.
        self.is_first_window = True
        self.in_a_row: Counter[str] = Counter()  # name of a warning -> bad windows in a row

        # Gradient norms of the newest steps, and losses of the log lines since the last validation.
        self.norms: deque[float] = deque(maxlen=MOST_REMEMBERED)
        self.losses: deque[float] = deque(maxlen=MOST_REMEMBERED)
        self.validations: list[_Validation] = []

    def judge_schedule(self, lr_floor: int | None, key: str) -> None:
        """Warn if the learning rate stays at its floor for a long part of the run.

        lr_floor: first step at which the learning rate is at its floor, or None if it never is.
        key: the option that makes the schedule longer, e.g. "train.G_linear_steps".
        """
        if lr_floor is None:
            return
        steps_at_floor = self.total_iter - lr_floor
        if steps_at_floor <= MOST_FLOOR_SHARE * self.total_iter:
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

    def judge_log_line(self, ranks: list[Measured], grad_norms: list[float]) -> None:
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
        steps_of_window = sum(line[0].steps for line in self.window)
        if steps_of_window < WINDOW_STEPS:
            return
        lines = self.window
        self.window = []
        if not self.is_first_window:
            self._check_speed(lines)
        self.is_first_window = False

    def _check_norms(self, grad_norms: list[float]) -> None:
        """Warn if the gradient norm explodes.

        The median norm of the newest steps is compared with the median norm of the steps before.
        Tests: test_an_exploding_gradient_norm_is_named_once,
        test_a_log_line_of_a_thousand_steps_is_compared_with_the_line_before.

        grad_norms: gradient norms of the steps since the last log line.
        """
        # The newest steps are the steps of this log line. If the line has few steps, a few steps
        # before it count as well.
        all_norms = [*self.norms, *grad_norms]
        newest_count = max(NEW_NORM_STEPS, len(grad_norms))
        self.norms.extend(grad_norms)
        if len(all_norms) < newest_count + OLD_NORM_STEPS:
            return
        median_before = statistics.median(all_norms[:-newest_count])
        median_now = statistics.median(all_norms[-newest_count:])
        if median_now > NORM_FACTOR * median_before:
            self._warn(
                "gradient norm",
                "the gradient norm explodes: median %.3g over the last %d steps, %.3g before: "
                "lower train.G_optimizer_lr (now %g), or set train.G_optimizer_clipgrad=%.1g",
                median_now,
                newest_count,
                median_before,
                self.train.G_optimizer_lr,
                2 * median_before,  # clips the explosion, but no usual gradient
            )

    def _check_memory(self, ranks: list[Measured]) -> None:
        """Warn if the memory of a GPU or of a host is nearly full."""
        for kind in ("GPU", "host"):
            fullest_rank = _fullest_rank(ranks, kind)
            if fullest_rank is None:
                continue
            used, total = ranks[fullest_rank].memory[kind]
            if used / total <= MOST_MEMORY_SHARE:
                continue
            self._warn(
                f"memory {kind}",
                "the memory of the %s is nearly full on rank %d, host %s: %.1f of %.1f GB: %s",
                kind,
                fullest_rank,
                ranks[fullest_rank].host,
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
        slow rank. Tests: test_a_slow_rank_is_named_after_three_windows_in_a_row,
        test_small_differences_between_ranks_are_healthy,
        test_a_delay_of_less_than_a_twentieth_of_a_step_is_healthy.

        lines: log lines, each with the measurements of every rank.
        """
        # Seconds in a step, one number for each rank: of the whole step, of waiting, of forward.
        step_s = _seconds_per_step(lines, "seconds")
        waits = _seconds_per_step(lines, "data_s")
        forwards = _seconds_per_step(lines, "forward_s")
        newest = lines[-1]
        self._check_waits(newest, waits, step_s)

        alone_s = []  # for each rank: seconds in a step in which it does not depend on other ranks
        for wait, forward in zip(waits, forwards, strict=True):
            alone_s.append(wait + forward)
        for rank, own_s in enumerate(alone_s):
            others_s = [*alone_s[:rank], *alone_s[rank + 1 :]]
            # A rank without others is compared with itself, and is never slow.
            usual_s = statistics.median(others_s or alone_s)
            is_much_slower = own_s > SLOW_FACTOR * usual_s
            is_noticed = own_s - usual_s > LEAST_DELAY_SHARE * step_s[rank]
            is_slow = is_much_slower and is_noticed
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
                usual_s,
                newest[rank].host,
            )

    def _check_waits(self, newest: list[Measured], waits: list[float], step_s: list[float]) -> None:
        """Warn if a rank waits for data for a large share of the time.

        newest: the newest measurements of every rank.
        waits: for each rank, the seconds of a step in which it waits for data.
        step_s: for each rank, the seconds of a step.
        """
        shares = []
        for wait, seconds in zip(waits, step_s, strict=True):
            shares.append(wait / seconds)
        worst_share = max(shares)
        worst_rank = shares.index(worst_share)
        # SLURM may give each rank different cores. Otherwise the ranks of a host have the same
        # cores, and share them. Count the ranks with the same host and cores.
        cores_of_ranks = [(rank.host, rank.cores) for rank in newest]
        sharing_count = cores_of_ranks.count(cores_of_ranks[worst_rank])
        cores_per_rank = max(1, len(newest[worst_rank].cores) // sharing_count)
        self._warn_if_again(
            "data",
            worst_share > MOST_DATA_SHARE,
            "rank %d on %s waits for data %.0f %% of the time, and all others with it: %s",
            worst_rank,
            newest[worst_rank].host,
            100 * worst_share,
            loader_advice(self.datasets.train, worst_share, cores_per_rank),
        )

    def _warn_if_again(self, name: str, is_bad: bool, text: str, *values: Any) -> None:
        """Warn if something is bad in several windows in a row. Call this once for each window.

        name: name of the warning.
        is_bad: whether it is bad in this window.
        text, values: format and values of the warning.
        """
        if is_bad:
            self.in_a_row[name] += 1
        else:
            self.in_a_row[name] = 0
        if self.in_a_row[name] >= BAD_WINDOWS_IN_A_ROW:
            self._warn(name, text, *values)

    # ---- At a validation and at a save ----

    def judge_validation(self, psnr: float) -> None:
        """Warn if the validation PSNR falls while the loss falls: the network overfits.

        Tests: test_psnr_that_falls_while_the_loss_falls_is_named_once, and
        test_two_falls_of_psnr_are_healthy_if_it_rises_again.

        psnr: mean PSNR of the validation, in dB.
        """
        # Leave out two kinds of validation, which cannot be compared. A resumed run may repeat a
        # validation, and then no step and no loss lies between the two. Perfect frames have the
        # PSNR Inf, and broken frames NaN.
        if not self.losses or not math.isfinite(psnr):
            return
        self.validations.append(_Validation(psnr, loss=statistics.fmean(self.losses)))
        self.losses.clear()

        # Three falls need four validations.
        validation_count = FALLS_IN_A_ROW + 1
        if len(self.validations) < validation_count:
            return
        newest = self.validations[-validation_count:]
        psnrs = [validation.psnr for validation in newest]
        losses = [validation.loss for validation in newest]
        always_falls = all(later < earlier for earlier, later in pairwise(psnrs))
        fall_db = psnrs[0] - psnrs[-1]
        is_loss_higher = losses[-1] >= losses[0]
        if not always_falls or fall_db < LEAST_FALL_DB or is_loss_higher:
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

    def judge_save(self, step: int) -> None:
        """Warn if the disk has no room for the next saves.

        Test: test_a_disk_without_room_for_the_next_saves_is_named_once.

        step: step of the save that was just made.
        """
        if not utils_dist.is_main_process():
            return
        steps_to_come = self.total_iter - step
        # math.ceil rounds up: the last save comes at the end of the run, if not before.
        saves_to_come = math.ceil(steps_to_come / self.train.checkpoint_save)

        # A new checkpoint replaces the oldest of its former versions, so the folder `checkpoints`
        # grows only until all versions exist. The files of the weights are never deleted, so they
        # fill the disk.
        weights_bytes = 0
        for path in (self.folder / "models").glob(f"{step}_*.pth"):
            weights_bytes += path.stat().st_size
        if not saves_to_come or not weights_bytes:
            return
        free = free_bytes(self.folder) - self._growth_of_checkpoints()
        room = max(0, free / weights_bytes)  # number of saves
        if room < min(ENOUGH_SAVES, saves_to_come):
            self._warn(
                "disk",
                "the disk of %s has room for %d more saves of %.3g GB, the run makes %d: free some "
                "space, or raise train.checkpoint_save (now %d)",
                self.folder,
                room,
                weights_bytes / GB,
                saves_to_come,
                self.train.checkpoint_save,
            )

    def _growth_of_checkpoints(self) -> int:
        """Return the bytes by which the folder `checkpoints` may still grow."""
        sizes = {}
        for path in (self.folder / "checkpoints").glob("checkpoint_*.pth"):
            sizes[path.name] = path.stat().st_size
        # A run writes checkpoint_latest. A run with a test split also writes checkpoint_best. Each
        # of them has the newest file and its former versions. E.g. with one former version these
        # are 4 files. If 2 of them exist, 2 are missing.
        kinds = 1 if self.datasets.test is None else 2
        versions = 1 + self.train.keep_checkpoints
        missing_files = max(0, kinds * versions - len(sizes))
        # All have nearly one size. One more file is needed, because a new file is written before an
        # old one is deleted.
        return sizes.get("checkpoint_latest.pth", 0) * (missing_files + 1)

    def _warn(self, name: str, text: str, *values: Any) -> None:
        """Log a warning on rank 0, once for each name."""
        if name not in self.warned and utils_dist.is_main_process():
            self.warned.add(name)
            logger.warning(text, *values)


def _fullest_rank(ranks: list[Measured], kind: str) -> int | None:
    """Return the number of the rank with the fullest memory, or None if no rank reports it.

    Of several equally full memories, the rank with the lowest number is returned.

    kind: "GPU" or "host"
    """
    fullest_rank = None
    fullest_share = -math.inf
    for rank, measured_on_rank in enumerate(ranks):
        if kind in measured_on_rank.memory:
            used, total = measured_on_rank.memory[kind]
            if used / total > fullest_share:
                fullest_rank = rank
                fullest_share = used / total
    return fullest_rank


def _seconds_per_step(lines: list[list[Measured]], name: str) -> list[float]:
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

    Test: test_the_advice_is_the_number_of_workers_that_ends_the_wait.

    section: the options datasets.train.
    share: share of the time in which training waits for data, 0 to 1.
    cores: number of cores of a rank.
    """
    workers = section.dataloader_num_workers
    # Now n workers make a batch in the time of a step, which includes the wait. Without the wait a
    # step takes (1 - share) of this time, so n / (1 - share) workers are needed. E.g. with 6
    # workers and a wait of 25 %, 8 workers. With 0 workers the training process itself reads: try
    # the default, 2.
    wanted_workers = math.ceil(workers / (1 - share)) if workers else 2
    advice = []
    if wanted_workers <= cores:
        advice.append(f"set datasets.train.dataloader_num_workers={wanted_workers} (now {workers})")
    # A clip cache is not advised twice. A dataset of another kind has no `io_backend`.
    backend = getattr(section, "io_backend", None)
    if getattr(backend, "type", "") != "cache":
        advice.append("build a clip cache with scripts/build_clip_cache.py")
    advice.append(f"copy the data to a faster disk (a rank has {cores} CPU cores)")
    return ", or ".join(advice)

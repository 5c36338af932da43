"""Warn if something makes a run slow or useless, and say what to do.

`Health` judges the numbers of a run at its log lines, validations and saves. Each warning comes
once per start of a run, on rank 0.

The texts of the warnings are quoted in documents and tests, so change them everywhere at once.

Free to change: each threshold, if it warns of healthy runs. tests/parts/utils/test_health.py then
shows which warnings move. A new warning is a new method `_check_...`.
"""

import logging
import math
import statistics
from collections import Counter, deque
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from utils import utils_dist
from utils.files import free_bytes
from utils.host_memory import GB
from utils.options.models import DatasetsOptions, TrainOptions
from utils.run.measured import Measured

logger = logging.getLogger(__name__)

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

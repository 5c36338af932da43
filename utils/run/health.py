"""Warn if something makes a run slow or useless, and say what to do.

A run calls `Health` at four moments. Each warning comes once per start of a run, on rank 0.

    judge_schedule      at the start       the learning rate stays at its floor too long
    judge_log_line      at a log line      the gradient norm explodes, a memory is full, a rank
                                           waits or is slow (utils/run/speed.py)
    judge_validation    at a validation    the network overfits
    judge_save          at a save          the disk has no room for the next saves

What must stay: the texts of the warnings, because documents and tests quote them. A changed text
must be changed there, too. Free to change: each threshold, if it warns of healthy runs.
tests/parts/utils/test_health.py then shows which warnings change. A new warning is a new method
`_check_...`.
"""

import logging
import math
import statistics
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from utils import utils_dist
from utils.files import free_bytes
from utils.host_memory import GB
from utils.options.loader_options import DatasetsOptions
from utils.options.train_options import TrainOptions
from utils.run.measured import Measured
from utils.run.speed import SpeedJudge

logger = logging.getLogger(__name__)

# ---- Thresholds of `Health` ----
#
# The numbers are chosen by hand, for the reasons that their comments give.

# Above this share a memory is "nearly full". A run with netG.checkpoint "auto" stays below, because
# "auto" plans with 0.90.
MOST_MEMORY_SHARE = 0.95
# A gradient norm that grows tenfold has exploded. In a healthy run the norm grows by a factor of
# less than 3. If the learning rate is too high, the norm grows by orders of magnitude.
NORM_FACTOR = 10.0
# The median norm of at least 10 newest steps is compared with the median norm of at least 50 steps
# before them. With fewer steps a few large batches could look like an explosion.
NEW_NORM_STEPS = 10
OLD_NORM_STEPS = 50
# Number of newest gradient norms and losses that are remembered. The norms are large in an early
# part of a run. If this part were remembered for longer, it could hide an explosion.
MOST_REMEMBERED = 1000
# Largest share of a run in which the learning rate may stay at its floor without a warning. Many
# schedules end with a short constant part.
MOST_FLOOR_SHARE = 0.10
# The network overfits if the validation PSNR falls three times in a row, by at least 0.1 dB in all.
# PSNR varies by some hundredths of a dB anyway.
FALLS_IN_A_ROW = 3
LEAST_FALL_DB = 0.1
# If the disk has room for this many saves, there is no warning, because with usual options the user
# still has a day or more to free some space.
ENOUGH_SAVES = 20


class _Validation(NamedTuple):
    """The numbers of a validation that tell whether the network overfits."""

    psnr: float  # mean over the clips, in dB
    loss: float  # mean training loss since the previous validation


class Health:
    """Judges a run at its log lines, saves and validations. All ranks may call it; rank 0 warns.

    To add a warning, add a method `_check_...`, which calls `_warn` with a name that no other
    warning has. Only rank 0 calls the method, so the method must contain no collective. In a
    collective, rank 0 would wait for the other ranks forever.
    """

    def __init__(
        self, folder: Path, train: TrainOptions, datasets: DatasetsOptions, total_iter: int
    ) -> None:
        """Begin to judge a run.

        folder: the folder of the run.
        train: the section `train` of the options.
        datasets: the section `datasets` of the options.
        total_iter: number of steps of the run.
        """
        self.folder = folder
        self.train = train
        self.datasets = datasets
        self.total_iter = total_iter
        self.warned: set[str] = set()  # names of the warnings that were logged
        self.speed = SpeedJudge(datasets, self._warn)

        # Gradient norms of the newest steps, and losses of the log lines since the last validation.
        self.norms: deque[float] = deque(maxlen=MOST_REMEMBERED)
        self.losses: deque[float] = deque(maxlen=MOST_REMEMBERED)
        self.validations: list[_Validation] = []

    def judge_schedule(self, floor_step: int | None, key: str) -> None:
        """Warn if the learning rate stays at its floor for a long part of the run.

        The floor is the lowest learning rate of the schedule, at which hardly anything is learned.

        floor_step: first step at which the learning rate is at its floor, or None if it never is.
        key: the option that makes the schedule longer, e.g. "train.G_linear_steps".
        """
        if floor_step is None:
            return
        steps_at_floor = self.total_iter - floor_step
        if steps_at_floor <= MOST_FLOOR_SHARE * self.total_iter:
            return
        self._warn(
            "learning rate",
            "the learning rate is at its floor from iter %d on, for %.0f %% of the run, in which "
            "hardly anything is learned: stretch %s to the end (iter %d), or set "
            "train.total_iter=%d",
            floor_step,
            100 * (1 - floor_step / self.total_iter),
            key,
            self.total_iter,
            floor_step,
        )

    # ---- At a log line ----

    def judge_log_line(self, ranks: list[Measured], grad_norms: list[float]) -> None:
        """Judge the steps since the last log line.

        ranks: the measurements of each rank.
        grad_norms: gradient norms of the steps. They are the same on all ranks.
        """
        if not utils_dist.is_main_process():
            return
        # If all steps of the line were skipped, there are no norms and no loss.
        if grad_norms:
            losses_of_ranks = [measured.values["loss"] for measured in ranks]
            self.losses.append(statistics.fmean(losses_of_ranks))
        self._check_norms(grad_norms)
        self._check_memory(ranks)
        self.speed.judge(ranks)

    def _check_norms(self, grad_norms: list[float]) -> None:
        """Warn if the gradient norm explodes.

        The median norm of the newest steps is compared with the median norm of the steps before.
        Tests: test_an_exploding_gradient_norm_is_named_once,
        test_a_log_line_of_a_thousand_steps_is_compared_with_the_line_before.

        grad_norms: gradient norms of the steps since the last log line.
        """
        # The newest steps are the steps of this log line, but at least NEW_NORM_STEPS (10) steps.
        # E.g. if a line has 4 steps, the newest are these 4 and the last 6 steps before the line.
        # Make `all_norms` before `extend`, because `extend` drops norms beyond MOST_REMEMBERED.
        all_norms = [*self.norms, *grad_norms]
        newest_count = max(NEW_NORM_STEPS, len(grad_norms))
        self.norms.extend(grad_norms)
        if len(all_norms) < newest_count + OLD_NORM_STEPS:
            return
        newest_norms = all_norms[-newest_count:]
        norms_before = all_norms[:-newest_count]
        median_now = statistics.median(newest_norms)
        median_before = statistics.median(norms_before)
        if median_now > NORM_FACTOR * median_before:
            self._warn(
                "gradient norm",
                "the gradient norm explodes: median %.3g over the last %d steps, %.3g before: "
                "lower train.G_optimizer_lr (now %g), or set train.G_optimizer_clipgrad=%.1g",
                median_now,
                newest_count,
                median_before,
                self.train.G_optimizer_lr,
                2 * median_before,  # twice the usual norm, so that usual gradients are not clipped
            )

    def _check_memory(self, ranks: list[Measured]) -> None:
        """Warn if the memory of a GPU or of a host is nearly full."""
        for kind in ("GPU", "host"):
            fullest = _fullest_memory(ranks, kind)
            if fullest is None or fullest.share <= MOST_MEMORY_SHARE:
                continue
            self._warn(
                f"memory {kind}",
                "the memory of the %s is nearly full on rank %d, host %s: %.1f of %.1f GB: %s",
                kind,
                fullest.rank,
                ranks[fullest.rank].host,
                fullest.used_gb,
                fullest.total_gb,
                self._memory_advice(kind, fullest.total_gb),
            )

    def _memory_advice(self, kind: str, total_gb: float) -> str:
        """Return what to do about a full memory.

        kind: "GPU" or "host".
        total_gb: size of the memory in GB.
        """
        if kind == "GPU":
            # checkpoint "auto" already plans with 0.90 of the memory, so advise a smaller share.
            budget = f"{0.85 * total_gb:.3g}"
            return (
                f'netG.checkpoint="auto" with netG.memory_budget_gb={budget} or less, or a '
                "smaller gt_size"
            )
        loader = self.datasets.train
        workers = loader.dataloader_num_workers if loader is not None else 0
        return (
            f"lower datasets.train.dataloader_num_workers (now {workers}), or ask for more memory"
        )

    # ---- At a validation and at a save ----

    def judge_validation(self, psnr: float) -> None:
        """Warn if the network overfits: the validation PSNR falls while the loss falls.

        Tests: test_psnr_that_falls_while_the_loss_falls_is_named_once, and
        test_two_falls_of_psnr_are_healthy_if_it_rises_again.

        psnr: mean PSNR of the validation, in dB.
        """
        # Skip a validation that cannot be compared with others. There are no losses if no step was
        # logged since the last validation, e.g. if a resumed run repeats a validation. The PSNR is
        # Inf if all frames are perfect, and NaN if frames are broken.
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
        if not _always_falls(psnrs) or psnrs[0] - psnrs[-1] < LEAST_FALL_DB:
            return
        # If the training loss has risen or stayed equal, this is not overfitting.
        if losses[-1] >= losses[0]:
            return
        psnrs_text = " > ".join(f"{psnr:.2f}" for psnr in psnrs)  # e.g. "31.20 > 31.15 > ..."
        self._warn(
            "overfitting",
            "the validation PSNR falls while the loss falls: %s dB, loss %.4f to %.4f: the network "
            "overfits, or the test clips differ from the training clips. checkpoint_best.pth keeps "
            "the best weights; add clips, set datasets.train.use_hflip=true and use_rot=true, or "
            "compare the two splits with scripts/show_sample.py",
            psnrs_text,
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
        # Round up, because the end of the run has a save, too. E.g. if 250 steps are left, and a
        # save comes every 100 steps, there are 3 saves to come.
        saves_to_come = math.ceil(steps_to_come / self.train.checkpoint_save)

        # The files of the weights in `models` are never deleted, so they fill the disk. The folder
        # `checkpoints` grows only until all former versions exist. From then on, each new
        # checkpoint replaces the oldest version.
        weights_bytes = 0
        # `save_weights` (models/model_state.py) writes <step>_G.pth and perhaps <step>_E.pth.
        for path in (self.folder / "models").glob(f"{step}_*.pth"):
            weights_bytes += path.stat().st_size
        if not saves_to_come or not weights_bytes:
            return  # no save is left, or the last save has written no weights
        free_for_weights = free_bytes(self.folder) - self._growth_of_checkpoints()
        room = max(0, free_for_weights / weights_bytes)  # number of saves
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
        """Return the bytes by which the folder `checkpoints` may still grow.

        utils/run/checkpoint.py gives the files their names.
        """
        sizes = {}
        for path in (self.folder / "checkpoints").glob("checkpoint_*.pth"):
            sizes[path.name] = path.stat().st_size
        # A run writes checkpoint_latest and, if it has a test split, checkpoint_best. Each of them
        # has a newest file and its former versions. E.g. with one former version:
        #
        #     2 kinds * 2 versions = 4 files, of which 2 exist -> 2 are missing
        kinds = 1 if self.datasets.test is None else 2
        versions = 1 + self.train.keep_checkpoints
        missing_files = max(0, kinds * versions - len(sizes))
        # One more file is needed, because a new file is written before an old one is deleted.
        files_to_come = missing_files + 1
        # All checkpoints have nearly the size of the latest one.
        return files_to_come * sizes.get("checkpoint_latest.pth", 0)

    def _warn(self, name: str, text: str, *values: Any) -> None:
        """Log a warning on rank 0, once for each name."""
        if name not in self.warned and utils_dist.is_main_process():
            self.warned.add(name)
            logger.warning(text, *values)


def _always_falls(values: list[float]) -> bool:
    """Return whether each value is smaller than the value before it, as in [31.2, 31.1, 30.9]."""
    return all(later < earlier for earlier, later in pairwise(values))


class _RankMemory(NamedTuple):
    """The memory of a GPU or of a host, as a rank has measured it."""

    rank: int  # number of the rank
    used_gb: float
    total_gb: float

    @property
    def share(self) -> float:
        """The share of the memory that is used."""
        return self.used_gb / self.total_gb


def _fullest_memory(ranks: list[Measured], kind: str) -> _RankMemory | None:
    """Return the fullest memory of all ranks, or None if no rank reports its memory.

    If several memories are equally full, returns the memory of the lowest of these ranks.

    kind: "GPU" or "host".
    """
    fullest = None
    for rank, measured_on_rank in enumerate(ranks):
        if kind not in measured_on_rank.memory:
            continue
        used_gb, total_gb = measured_on_rank.memory[kind]
        memory = _RankMemory(rank, used_gb, total_gb)
        if fullest is None or memory.share > fullest.share:
            fullest = memory
    return fullest

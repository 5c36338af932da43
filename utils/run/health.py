"""Warnings of what makes a run slow, or wastes it, and what to do. They read only what is measured anyway.

Each comes once per start of a run, on rank 0. The thresholds are constants: a run that stays below them needs no
attention, whatever its options.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter, deque
from itertools import pairwise
from pathlib import Path
from typing import Any

from utils import utils_dist
from utils.files import free_bytes
from utils.options.models import DatasetsOptions, TrainOptions
from utils.run.measure import Measured

logger = logging.getLogger(__name__)

DATA_WAIT = 0.10  # share of the time; below it, a faster loader gains less than the noise between two runs
SLOWER = 1.2  # times the median of the other ranks
LEAST_EFFECT = 0.05  # of a step: a rank that is slower by less than this delays nobody noticeably
WINDOW_STEPS = 10  # fewer steps are judged together with the next ones
IN_A_ROW = 3  # windows: a single one may coincide with other load
MEMORY = 0.95  # netG.checkpoint "auto" plans with 0.90
# A learning rate that is too high raises the norm by orders of magnitude; a healthy run, by less than 3.
NORM_FACTOR, NORM_RECENT, NORM_BEFORE, KEPT = 10.0, 10, 50, 1000
FLOOR_TAIL = 0.10  # of the run; many schedules end on a short constant part
FALLS, FALL_DB = 3, 0.1  # validations in a row, and in all: PSNR wavers by some hundredths of a dB
SAVES = 20  # to come: time enough to react, a day or more with usual options


class Health:
    """Judges a run at its log lines, saves and validations. All ranks may call it; rank 0 warns."""

    def __init__(self, folder: Path, train: TrainOptions, datasets: DatasetsOptions, total_iter: int) -> None:
        self.folder, self.train, self.datasets, self.total_iter = folder, train, datasets, total_iter
        self.said: set[str] = set()
        self.window: list[list[Measured]] = []  # log lines that are not judged yet
        self.is_first = True  # of this process: it also starts workers, builds DDP, compiles
        self.in_a_row: Counter[str] = Counter()
        self.norms: deque[float] = deque(maxlen=KEPT)
        self.losses: deque[float] = deque(maxlen=KEPT)  # of the log lines since the last validation
        self.validations: list[tuple[float, float]] = []  # PSNR, mean loss before it

    def planned(self, lr_floor: int | None) -> None:
        """lr_floor: from this step on, the learning rate stays at its floor; None: not before the end."""
        if lr_floor is None or self.total_iter - lr_floor <= FLOOR_TAIL * self.total_iter:
            return
        is_cosine = self.train.G_scheduler_type == "CosineAnnealingWarmRestarts"
        key = "train.G_scheduler_periods" if is_cosine else "train.G_scheduler_milestones"
        self._warn(
            "learning rate",
            "the learning rate is at its floor from iter %d on, for %.0f %% of the run, in which hardly anything is "
            "learned: stretch %s to the end (iter %d), or set train.total_iter=%d",
            lr_floor, 100 * (1 - lr_floor / self.total_iter), key, self.total_iter, lr_floor,
        )  # fmt: skip

    def logged(self, ranks: list[Measured], grad_norms: list[float]) -> None:
        """ranks: since the last log line. grad_norms: of its steps; the same on all ranks."""
        if not utils_dist.is_main_process():
            return
        if grad_norms:  # else all steps of the line were skipped, and have no loss
            self.losses.append(statistics.fmean(rank.values["loss"] for rank in ranks))
        self._check_memory(ranks)
        self._check_norms(grad_norms)
        self.window.append(ranks)
        if sum(line[0].steps for line in self.window) < WINDOW_STEPS:
            return
        lines, self.window = self.window, []
        if not self.is_first:
            self._check_speed(lines)
        self.is_first = False

    def _check_speed(self, lines: list[list[Measured]]) -> None:
        """Waits for data, and what a rank does alone: in the backward pass the fast ranks wait for the slow one."""
        steps, last = sum(line[0].steps for line in lines), lines[-1]
        seconds, waits, forwards = (
            [sum(getattr(line, name) for line in of_rank) / steps for of_rank in zip(*lines, strict=True)]
            for name in ("seconds", "data_s", "forward_s")
        )
        shares = [wait / all_s for wait, all_s in zip(waits, seconds, strict=True)]
        worst, share = max(enumerate(shares), key=lambda entry: entry[1])
        if self._is_confirmed("data", share > DATA_WAIT):
            # SLURM may give each rank cores of its own; otherwise the ranks of a host share them.
            cores = [(rank.host, rank.cores) for rank in last]
            own = max(1, len(last[worst].cores) // cores.count(cores[worst]))
            self._warn(
                "data", "rank %d on %s waits for data %.0f %% of the time, and all others with it: %s",
                worst, last[worst].host, 100 * share, loader_advice(self.datasets.train, share, own),
            )  # fmt: skip
        alone = [wait + forward for wait, forward in zip(waits, forwards, strict=True)]
        for rank, mine in enumerate(alone):
            others = statistics.median([*alone[:rank], *alone[rank + 1 :]] or alone)
            is_slow = mine > SLOWER * others and mine - others > LEAST_EFFECT * seconds[rank]
            if self._is_confirmed(f"slow rank {rank}", is_slow):
                self._warn(
                    f"slow rank {rank}",
                    "rank %d on %s is slower than the others, which wait for it at every step: data %.3f s + forward "
                    "%.3f s a step, the others %.3f s in all. On %s look for other programs on its GPU, cores and disk "
                    "and for heat (nvidia-smi -q -d PERFORMANCE), or leave that host out",
                    rank, last[rank].host, waits[rank], forwards[rank], others, last[rank].host,
                )  # fmt: skip

    def _check_memory(self, ranks: list[Measured]) -> None:
        for kind, do in (
            ("GPU", 'netG.checkpoint="auto" with netG.memory_budget_gb={:.3g} or less, or a smaller gt_size'),
            ("host", "lower datasets.train.dataloader_num_workers (now {workers}), or ask for more memory"),
        ):
            known = {i: rank.memory[kind] for i, rank in enumerate(ranks) if kind in rank.memory}
            shares = {i: used / total for i, (used, total) in known.items()}
            fullest = max(shares, key=shares.__getitem__, default=0)
            if shares.get(fullest, 0.0) > MEMORY:
                used, total = known[fullest]
                self._warn(
                    f"memory {kind}", "the memory of the %s is nearly full on rank %d, host %s: %.1f of %.1f GB: %s",
                    kind, fullest, ranks[fullest].host, used, total,
                    do.format(0.85 * total, workers=self.datasets.train.dataloader_num_workers),
                )  # fmt: skip

    def _check_norms(self, norms: list[float]) -> None:
        known, recent = [*self.norms, *norms], max(NORM_RECENT, len(norms))
        self.norms.extend(norms)
        if len(known) < recent + NORM_BEFORE:
            return
        before, now = statistics.median(known[:-recent]), statistics.median(known[-recent:])
        if now > NORM_FACTOR * before:
            self._warn(
                "gradient norm",
                "the gradient norm explodes: median %.3g over the last %d steps, %.3g before: lower "
                "train.G_optimizer_lr (now %g), or set train.G_optimizer_clipgrad=%.1g",
                now, recent, before, self.train.G_optimizer_lr, 2 * before,
            )  # fmt: skip

    def validated(self, psnr: float) -> None:
        """psnr: in dB, mean of the validation."""
        if not self.losses or not math.isfinite(psnr):
            return
        self.validations.append((psnr, statistics.fmean(self.losses)))
        self.losses.clear()
        last = self.validations[-FALLS - 1 :]
        psnrs = [psnr for psnr, _ in last]
        is_falling = all(later < earlier for earlier, later in pairwise(psnrs))
        if len(last) <= FALLS or not is_falling or psnrs[0] - psnrs[-1] < FALL_DB or last[-1][1] >= last[0][1]:
            return
        self._warn(
            "overfitting",
            "the validation PSNR falls while the loss falls: %s dB, loss %.4f to %.4f: the network overfits, or the "
            "test clips differ from the training clips. checkpoint_best.pth keeps the best weights; add clips, set "
            "datasets.train.use_hflip=true and use_rot=true, or compare the two splits with scripts/show_sample.py",
            " > ".join(f"{psnr:.2f}" for psnr in psnrs), last[0][1], last[-1][1],
        )  # fmt: skip

    def saved(self, step: int) -> None:
        """After a save at `step`: is there room for the next ones?"""
        if not utils_dist.is_main_process():
            return
        left = -(-(self.total_iter - step) // self.train.checkpoint_save)
        # The latest checkpoint and, with a test split, the best one keep former versions; a new one is written before
        # an old one goes. The weights of all steps stay.
        kinds, folder = 1 + (self.datasets.test is not None), self.folder / "checkpoints"
        missing = kinds * (1 + self.train.keep_checkpoints) - len(list(folder.glob("checkpoint_*.pth")))
        whole = _size(folder / "checkpoint_latest.pth") * (1 + max(0, missing))
        weights = sum(_size(path) for path in (self.folder / "models").glob(f"{step}_*.pth"))
        if not left or not weights:
            return
        room = max(0, (free_bytes(self.folder) - whole) / weights)
        if room < min(SAVES, left):
            self._warn(
                "disk",
                "the disk of %s has room for %d more saves of %.3g GB, the run makes %d: free some space, or raise "
                "train.checkpoint_save (now %d)",
                self.folder, room, weights / 1e9, left, self.train.checkpoint_save,
            )  # fmt: skip

    def _is_confirmed(self, name: str, is_bad: bool) -> bool:
        """Whether it was so in enough windows in a row."""
        self.in_a_row[name] = self.in_a_row[name] + 1 if is_bad else 0
        return self.in_a_row[name] >= IN_A_ROW

    def _warn(self, name: str, text: str, *values: Any) -> None:
        if name not in self.said and utils_dist.is_main_process():
            self.said.add(name)
            logger.warning(text, *values)


def loader_advice(section: Any, share: float, cores: int) -> str:
    """What to set where training waits for data `share` of the time. cores: of a rank."""
    workers, advice = section.dataloader_num_workers, []
    # With n workers a batch takes as long as the step and the wait; without the wait it must come so much sooner.
    wanted = math.ceil(workers / (1 - share)) if workers else 2
    if wanted <= cores:
        advice.append(f"set datasets.train.dataloader_num_workers={wanted} (now {workers})")
    if getattr(getattr(section, "io_backend", None), "type", "") != "cache":
        advice.append("build a clip cache with scripts/build_clip_cache.py")
    advice.append(f"copy the data to a faster disk (a rank has {cores} CPU cores)")
    return ", or ".join(advice)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

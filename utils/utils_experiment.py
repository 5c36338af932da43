"""The folder of a run, where it stands, and what it writes: everything here happens on rank 0 only."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from utils import utils_checkpoint, utils_dist
from utils.utils_errors import CheckpointError, OptionError
from utils.utils_image import imwrite_rgb
from utils.utils_logger import WandbWriter, Writers, best_effort, build_writers
from utils.utils_option import redact

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where a run stands: optimizer steps done, and the position of the next one in the data."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # next global batch of the epoch
    best_psnr: float | None = None
    best_step: int = 0
    wandb_id: str | None = None

    def advance(self) -> None:
        self.step += 1
        self.batch += 1

    def next_epoch(self) -> None:
        self.epoch, self.batch = self.epoch + 1, 0


class Experiment:
    """The log line, numbers, pictures and checkpoints of a run. On every rank but 0 its methods write nothing."""

    def __init__(self, opt: dict[str, Any], progress: Progress) -> None:
        self.folder = Path(opt["path"]["task"])
        self.last_values = ""  # of the newest log line, for the progress bar
        self.opt, self.is_main = redact(opt), utils_dist.is_main_process()
        self.writers = build_writers(opt, self.folder, progress.step, progress.wandb_id) if self.is_main else Writers()
        wandb = next((w for w in self.writers.writers if isinstance(w, WandbWriter)), None)
        progress.wandb_id = wandb.run_id if wandb else progress.wandb_id

    def log_training(self, progress: Progress, values: dict[str, float]) -> None:
        """One line ``Epoch: 1, Iter: 100, Loss: 0.0234, ...`` and the same values to the writers."""
        extra = dict(values)
        loss, lr = extra.pop("loss"), extra.pop("lr")
        self.last_values = f"loss {loss:.4f}, lr {lr:.2e}"
        fields = "".join(f", {name}: {value:.3g}" for name, value in extra.items())
        logger.info("Epoch: %d, Iter: %d, Loss: %.4f, lr: %.3e%s", progress.epoch + 1, progress.step, loss, lr, fields)
        self.writers.scalars({f"train/{name}": value for name, value in values.items()}, progress.step)

    def log_validation(self, progress: Progress, scalars: dict[str, float], pictures: dict[str, np.ndarray]) -> None:
        """The validation's means as one line and curves; its pictures to images/<clip>/<step>.png."""
        logger.info(
            "Epoch: %d, Iter: %d, validation PSNR: %.2f dB, SSIM: %.4f (blurry input %.2f dB, %.4f)",
            progress.epoch + 1, progress.step,
            scalars["val/psnr"], scalars["val/ssim"], scalars["val/psnr_input"], scalars["val/ssim_input"],
        )  # fmt: skip
        self.writers.scalars(scalars, progress.step)
        for name, picture in pictures.items():
            with best_effort("pictures of the validation"):
                imwrite_rgb(self.folder / "images" / name / f"{progress.step}.png", picture)
            self.writers.image(f"val/{name}", picture, progress.step)

    def save(self, name: str, state: dict[str, Any], progress: Progress) -> None:
        """checkpoints/checkpoint_<name>.pth: the state of the model plus the position, the options and the versions."""
        if not self.is_main:
            return
        begin = time.perf_counter()
        path = self.folder / "checkpoints" / f"checkpoint_{name}.pth"
        utils_checkpoint.save(
            {**state, **asdict(progress), "world_size": utils_dist.get_world_size(), "options": self.opt},
            path,
            keep=self.opt["train"]["keep_checkpoints"],
        )
        logger.info("saved %s at iter %d (%.1f s)", path, progress.step, time.perf_counter() - begin)

    def close(self) -> None:
        self.writers.close()


def is_better(psnr: float, best: float | None) -> bool:
    """Whether a finite PSNR improves on the best one so far."""
    return math.isfinite(psnr) and (best is None or psnr > best)


def find_state(opt: dict[str, Any]) -> dict[str, Any] | None:
    """The full checkpoint that this run goes on from, or None for a fresh start, as `path.resume` says.

    "auto": the run's own latest one, if there is any. null: none, refused where the folder already holds a run.
    A path: that file, or the run's own latest one where that is further, so that a command with a path can be repeated
    after an interruption and overwrites nothing. Raises CheckpointError where a named file is missing or damaged.
    """
    resume = opt["path"]["resume"]
    latest = Path(opt["path"]["task"]) / "checkpoints" / "checkpoint_latest.pth"
    if resume is None:
        if utils_checkpoint.exists(latest):
            raise OptionError(
                "path.resume is null, yet the folder holds a run", str(latest),
                "an empty folder for a run from zero",
                "--resume auto goes on with it; for a new run set another task name or move the folder away",
            )  # fmt: skip
        return None
    if resume != "auto" and not Path(resume).exists():
        raise CheckpointError("no such checkpoint", str(resume), "an existing file", "correct --resume or use auto")
    path = latest if resume == "auto" else Path(resume)
    if resume == "auto" and not utils_checkpoint.exists(latest):
        logger.info("fresh start: %s does not exist", latest)
        return None
    state = utils_checkpoint.load(path)
    if resume != "auto" and (own := _further(latest, state["step"])):
        if utils_dist.is_main_process():
            logger.warning(
                "%s is at iter %d, this run itself at iter %d already, and goes on from there; "
                "to go back, choose another task name", path, state["step"], own["step"],
            )  # fmt: skip
        path, state = latest, own
    logger.info("resumed from %s at iter %d", path, state["step"])
    return state


def _further(latest: Path, step: int) -> dict[str, Any] | None:
    """The run's own state, where it is further than `step`."""
    if not utils_checkpoint.exists(latest):
        return None
    with suppress(CheckpointError):  # damaged: then there is nothing to lose
        own = utils_checkpoint.load(latest)
        return own if own["step"] > step else None
    return None


def check_total_batch(state: dict[str, Any], opt: dict[str, Any], total_batch: int) -> None:
    """Raises OptionError where a step takes more or fewer samples than before: the position in the data counts steps.

    With the same total a run goes on with the very next sample, on any number of ranks.
    """

    def factors(options: dict[str, Any]) -> tuple[int, int]:
        return options["datasets"]["train"]["dataloader_batch_size"], options["train"]["accumulation_steps"]

    was, ranks = state["world_size"] * math.prod(factors(state["options"])), utils_dist.get_world_size()
    if total_batch != was:
        per_gpu, accumulated = factors(opt)
        raise OptionError(
            f"a step takes {total_batch} samples now, and took {was} before the checkpoint",
            f"batch {per_gpu} x {ranks} ranks x {accumulated} accumulated", f"a product of {was}, to resume",
            "set datasets.train.dataloader_batch_size and train.accumulation_steps to that, or start a new task from "
            "the weights (path.pretrained_netG)",
        )  # fmt: skip


def restore_progress(state: dict[str, Any] | None) -> Progress:
    if state is None:
        return Progress()
    return Progress(**{name: state[name] for name in asdict(Progress())})

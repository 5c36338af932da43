"""The folder of a run and the files that rank 0 writes there."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from utils import utils_dist
from utils.files import claim_run_folder, write_whole
from utils.image import comparison_strip, imwrite_rgb
from utils.options.load import redact
from utils.options.models import Options
from utils.run import checkpoint
from utils.run.health import Health
from utils.run.history import HISTORY_NAME, LINES_NAME
from utils.run.logger import best_effort
from utils.run.measure import Measured, StepTimer, log_values, rank_values
from utils.run.progress import duration
from utils.run.report import CURVES_NAME, ENVIRONMENT_NAME, PANELS_NAME, REPORT_NAME
from utils.run.resume import DataOrder, Progress, own_checkpoint
from utils.run.writers import WandbWriter, Writers, build_writers

logger = logging.getLogger(__name__)

Panels = dict[str, np.ndarray]  # see utils.image.comparison

# What a run writes into its folder.
WRITTEN = (
    "log", "options", "checkpoints", "models", "images", LINES_NAME, HISTORY_NAME, CURVES_NAME, REPORT_NAME,
    ENVIRONMENT_NAME, "tb_logger", "wandb", ".lock", "nonfinite_*.json",
)  # fmt: skip


class Experiment:
    """The log line, numbers, pictures and checkpoints of a run. Only rank 0 writes.

    opt: all options, for each checkpoint holds them. is_finished: nothing is left to write.
    """

    def __init__(
        self, opt: Options, progress: Progress, order: DataOrder, health: Health, is_finished: bool = False
    ) -> None:
        self.folder, self.order, self.health = opt.folder, order, health
        self.table = ""  # of the newest validation
        self.last_values = ""  # of the newest log line, for the progress bar
        self.keep, self.is_main = opt.train.keep_checkpoints, utils_dist.is_main_process()
        self.options = redact(opt.plain())
        self.writers = Writers()
        if self.is_main and not is_finished:
            self.writers = build_writers(opt, progress.step, progress.wandb_id)
        wandb = next((w for w in self.writers.writers if isinstance(w, WandbWriter)), None)
        progress.wandb_id = wandb.run_id if wandb else progress.wandb_id

    def log_training(self, progress: Progress, ranks: list[Measured], grad_norms: list[float], eta: str) -> None:
        """One line ``Epoch: 1, Iter: 100, Loss: 0.0234, ...``; its values, and those of each rank, to the writers.

        ranks: of the steps since the last line. grad_norms: of these steps. eta: see RunProgress.eta.
        """
        values = log_values(ranks)
        loss, lr, speed = values["loss"], values["lr"], values.get("it_per_s")
        said = f"{loss:.4f}" if grad_norms else "none (all steps skipped)"
        self.last_values = f"loss {said}, lr {lr:.1e}"
        fields = (f", it/s: {speed:.3g}" if speed else "") + (f", eta: {eta}" if eta else "")
        logger.info("Epoch: %d, Iter: %d, Loss: %s, lr: %.3e%s", progress.epoch + 1, progress.step, said, lr, fields)
        tagged = {f"train/{name}": value for name, value in values.items()}
        self.writers.scalars(tagged | {f"ranks/{k}": value for k, value in rank_values(ranks).items()}, progress.step)
        self.health.logged(ranks, grad_norms)

    def log_epoch(self, epoch: int, values: dict[str, float], timer: StepTimer) -> None:
        """One line on the epoch that ended, the `epoch`-th. values: see ModelVRT.epoch_log."""
        speed, skipped = timer.epoch.values(), values["skipped"]
        pauses = f" ({duration(timer.epoch.paused)} of it validation and saving)" if timer.epoch.paused >= 1 else ""
        parts = [f"{values['steps']:,} steps", f"mean loss {values['loss']:.4f}"]
        parts += [f"{speed['it_per_s']:.3g} it/s", f"data wait {100 * speed['data_share']:.0f} %"] if speed else []
        parts += [f"took {duration(time.perf_counter() - timer.epoch_begin)}{pauses}"]
        parts += [f"{skipped} steps skipped"] if skipped else []
        logger.info("Epoch %d ended: %s", epoch, ", ".join(parts))
        timer.begin_epoch()

    def log_validation(
        self, progress: Progress, scalars: dict[str, float], panels: dict[str, dict[str, np.ndarray]]
    ) -> None:
        """The validation's means as one line and curves; strips of its panels to images/<clip>/<step>.png."""
        logger.info(
            "Epoch: %d, Iter: %d, validation PSNR: %.2f dB, SSIM: %.4f (input %.2f, %.4f)",
            progress.epoch + 1, progress.step,
            scalars["val/psnr"], scalars["val/ssim"], scalars["val/psnr_input"], scalars["val/ssim_input"],
        )  # fmt: skip
        self.health.validated(scalars["val/psnr"])
        for name, images in panels.items():
            strip = comparison_strip(images)
            with best_effort("images of the validation"):
                imwrite_rgb(self.folder / "images" / name / f"{progress.step}.png", strip)
                write_whole(self.folder / "images" / PANELS_NAME, json.dumps(list(images)).encode())
            self.writers.image(f"val/{name}", strip, progress.step)
        self.writers.scalars(scalars, progress.step)  # last: the report shows the pictures

    def save(self, name: str, state: Callable[[], dict[str, Any]], progress: Progress) -> None:
        """checkpoints/checkpoint_<name>.pth: the state of the model plus the position, the options and the versions.

        state: called on rank 0 only, for it copies all weights and moments to the CPU.
        """
        is_again = name == "latest" and progress.saved == progress.step
        if name == "latest":
            progress.saved = progress.step
        if not self.is_main:
            return
        begin = time.perf_counter()
        path = own_checkpoint(self.folder, name)
        position = {**asdict(progress), "order": asdict(self.order), "world_size": utils_dist.get_world_size()}
        checkpoint.save({**state(), **position, "options": self.options}, path, keep=0 if is_again else self.keep)
        logger.info("saved %s at iter %d (%.1f s)", path, progress.step, time.perf_counter() - begin)

    def close(self) -> None:
        self.writers.close()


def is_better(psnr: float, best: float | None) -> bool:
    """Whether a finite PSNR improves on the best one so far."""
    return math.isfinite(psnr) and (best is None or psnr > best)


def claim(folder: Path) -> None:
    """Mark the folder of the run. Raises OptionError where files that no run made have the names of ours."""
    # Runs of former versions left no mark. Those of others have options/*.json, models/*.pth and checkpoints, too.
    claim_run_folder(folder, WRITTEN, is_ours=any(folder.glob("checkpoints/checkpoint_*.pth.sha256")))

"""What a run says and leaves: the text log, and the writers that take its numbers and pictures.

Rank 0 holds the real writers; every other rank holds an empty list of them and speaks only in warnings.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm

from utils.utils_curves import HISTORY_NAME, draw_curves

logger = logging.getLogger(__name__)


class _TqdmHandler(logging.Handler):
    """Prints above an open progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


def setup_logging(rank: int, log_file: Path | None = None) -> None:
    """Rank 0: INFO to stdout and, when given, to `log_file` (appended). Others: warnings to stderr as ``[rank 2]``."""
    root = logging.getLogger()
    root.handlers.clear()
    if rank != 0:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(f"[rank {rank}] %(message)s"))
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
        return
    root.setLevel(logging.INFO)
    handlers = [_TqdmHandler()]
    if log_file is not None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(log_file))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
        root.addHandler(handler)


class Writer(Protocol):
    """Takes what a run measures. tag: e.g. "train/loss"; step: optimizer steps so far."""

    def scalars(self, values: dict[str, float], step: int) -> None: ...

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """rgb: (H, W, 3) uint8."""

    def close(self) -> None: ...


class TensorBoardWriter:
    """Scalars and pictures for TensorBoard; entries after the step of a resume are hidden (`purge_step`)."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def scalars(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        self.writer.add_image(tag, rgb, step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WandbWriter:
    """Weights & Biases; goes on with the same run after a resume.

    The key reaches wandb through the environment of this process only: its own login would write it to a file.
    """

    def __init__(self, folder: Path, name: str, options: dict[str, Any], run_id: str | None) -> None:
        import wandb

        if key := options["wandb_api_key"]:
            os.environ["WANDB_API_KEY"] = key
            # wandb notes the command line in its files, and the key may stand there.
            sys.argv = [argument.replace(key, "***") for argument in sys.argv]
        self.run = wandb.init(
            project=options["wandb_project"], entity=options["wandb_entity"], name=name, dir=str(folder),
            id=run_id, resume="allow" if run_id else None,
        )  # fmt: skip
        self.run_id = self.run.id

    def scalars(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        import wandb

        self.run.log({tag: wandb.Image(rgb)}, step=step)

    def close(self) -> None:
        self.run.finish()


class HistoryWriter:
    """training_history.json, {"train/loss": [[step, value], ...], ...}, rewritten at each entry; and curves.png."""

    def __init__(self, folder: Path, step: int) -> None:
        self.file, self.curves = folder / HISTORY_NAME, folder / "curves.png"
        old = json.loads(self.file.read_text()) if step and self.file.exists() else {}
        self.history = {tag: [entry for entry in entries if entry[0] <= step] for tag, entries in old.items()}

    def scalars(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            self.history.setdefault(tag, []).append([step, value])
        temp = self.file.with_suffix(".tmp")
        temp.write_text(json.dumps(self.history))
        os.replace(temp, self.file)
        if any(tag.startswith("val/") for tag in values):  # rare enough to draw, and a killed run has its curves too
            draw_curves({"": self.history}, self.curves)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """Pictures are not history."""

    def close(self) -> None:
        if self.history:
            draw_curves({"": self.history}, self.curves)


def build_writers(opt: dict[str, Any], folder: Path, step: int, wandb_id: str | None) -> list[Writer]:
    """The writers that the options ask for; `step` > 0 and `wandb_id` belong to the run that is resumed."""
    logging_opt = opt["logging"]
    writers: list[Writer] = [HistoryWriter(folder, step)]
    if logging_opt["use_tensorboard"]:
        writers.append(TensorBoardWriter(folder / "tb_logger", step))
    if logging_opt["use_wandb"]:
        writers.append(WandbWriter(folder, opt["task"], logging_opt, wandb_id))
    return writers

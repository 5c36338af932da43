"""The writers of the numbers and pictures of a run: history, TensorBoard, W&B, and those of `logging.writers`.

Only rank 0 has writers.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from utils.files import OTHER_ROOT, writing
from utils.options.file import shown_argument
from utils.options.load import redact
from utils.options.models import Options
from utils.options.registry import Registry, import_parts
from utils.run.history import HistoryWriter
from utils.run.logger import best_effort
from utils.run.report import ReportWriter

logger = logging.getLogger(__name__)

HPARAMS, METRICS = ("datasets", "netG", "train"), ("val/psnr", "val/ssim", "train/loss")

WRITERS = Registry("log writer")  # of `logging.writers`; the others have keys of their own


class Writer(Protocol):
    """Takes what a run measures. tag: e.g. "train/loss"; step: optimizer steps so far."""

    def scalars(self, values: dict[str, float], step: int) -> None: ...

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """rgb: (H, W, 3) uint8."""

    def close(self) -> None: ...


class Writers:
    """Passes everything on to several writers. One that fails is left out from then on, with one warning.

    No error in TensorBoard or W&B (a full disk, a lost connection) ends a run.
    """

    def __init__(self, writers: Sequence[Writer] = ()) -> None:
        self.writers = list(writers)

    def scalars(self, values: dict[str, float], step: int) -> None:
        self._each(lambda writer: writer.scalars(values, step))

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        self._each(lambda writer: writer.image(tag, rgb, step))

    def close(self) -> None:
        self._each(lambda writer: writer.close())
        self.writers.clear()

    def _each(self, call: Callable[[Writer], None]) -> None:
        for writer in tuple(self.writers):
            try:
                call(writer)
            except Exception as e:
                self.writers.remove(writer)
                name = type(writer).__name__
                logger.warning("%s failed and is left out from now on: %s: %s", name, type(e).__name__, e)


class TensorBoardWriter:
    """Scalars and pictures for TensorBoard; entries after the step of a start are hidden (`purge_step`).

    options: without secrets; shown as text, and those of HPARAMS as hyperparameters beside the newest METRICS.
    """

    def __init__(self, folder: Path, step: int, options: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        before = set(threading.enumerate())
        with writing(folder, OTHER_ROOT):
            self.writer = SummaryWriter(str(folder), purge_step=step + 1)
        # Its thread raises an error in the next call here, and prints it as an uncaught one as well.
        threads, hook = set(threading.enumerate()) - before, threading.excepthook
        threading.excepthook = lambda args: None if args.thread in threads else hook(args)
        with best_effort(str(folder)):
            self._describe(options, step)

    def _describe(self, options: dict[str, Any], step: int) -> None:
        from torch.utils.tensorboard.summary import hparams

        lines = json.dumps(options, indent=2).splitlines()
        self.writer.add_text("options", "\n".join(f"    {line}" for line in lines), step)  # indented: verbatim
        # Not by add_hparams, which would write a second run. TensorBoard takes the metrics from the scalars of the run.
        values = {key: value for name in HPARAMS for key, value in flat(options.get(name), name)}
        for summary in hparams(values, dict.fromkeys(METRICS)):
            self.writer.file_writer.add_summary(summary)

    def scalars(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        self.writer.add_image(tag, rgb, step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WandbWriter:
    """Weights & Biases; continues the same W&B run after a resume.

    The key reaches wandb through the environment of this process only: its own login would write it to a file.
    """

    def __init__(self, opt: Options, options: dict[str, Any], run_id: str | None) -> None:
        """options: those of the run without secrets, as W&B's config."""
        import wandb

        if key := opt.logging.wandb_api_key:
            os.environ["WANDB_API_KEY"] = key
        # wandb copies the command line into its files.
        sys.argv = [shown_argument(argument) for argument in sys.argv]
        about = {
            "project": opt.logging.wandb_project, "entity": opt.logging.wandb_entity, "name": opt.task,
            "dir": str(opt.folder), "id": run_id, "resume": "allow" if run_id else None, "config": options,
        }  # fmt: skip
        try:
            with _no_terminal():
                self.run = wandb.init(**about)
        except wandb.Error as e:  # no key, a wrong one, or no network
            self.run = wandb.init(**about, mode="offline")
            logger.warning(
                "W&B cannot be used (%s): this run is recorded offline; upload it later with: wandb sync %s",
                str(e).splitlines()[0], Path(self.run.dir).parent,
            )  # fmt: skip
        self.run_id = self.run.id

    def scalars(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        import wandb

        self.run.log({tag: wandb.Image(rgb)}, step=step)

    def close(self) -> None:
        self.run.finish()


@contextmanager
def _no_terminal() -> Iterator[None]:
    """Without a key wandb would wait for one on a terminal, and store it."""
    stdin = sys.stdin
    with open(os.devnull, encoding="utf-8") as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = stdin


def check_writers(opt: Options) -> None:
    """OptionError where `logging.writers` names one that does not exist, or a wrong key of it."""
    for section in opt.logging.writers:
        WRITERS.resolve(section, "logging.writers")


def build_writers(opt: Options, step: int, wandb_id: str | None) -> Writers:
    """The writers that the options ask for; `step` > 0 and `wandb_id` belong to the run that is resumed."""
    folder, wanted, options = opt.folder, opt.logging, redact(opt.plain())
    # The report reads what the history has written.
    writers: list[Writer] = [HistoryWriter(folder, step), ReportWriter(folder)]
    writers += [WRITERS.build(section, "logging.writers", folder=folder, step=step) for section in wanted.writers]
    if wanted.use_tensorboard:
        writers.append(TensorBoardWriter(folder / "tb_logger", step, options))
    if wanted.use_wandb:
        writers.append(WandbWriter(opt, options, wandb_id))
    return Writers(writers)


def flat(value: Any, name: str) -> Iterator[tuple[str, bool | int | float | str]]:
    """(dotted key, value) of all options below `name`; a list as its JSON. Options that are null are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}")
    elif value is not None:
        yield name, value if isinstance(value, (bool, int, float, str)) else json.dumps(value)


import_parts("utils", "writer_*")

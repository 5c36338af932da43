"""The text log of a run, and the writers of its numbers and pictures.

Only rank 0 has writers; the other ranks log warnings only. What cannot be written, on a full disk for example, is
reported once and does not end the run: only a checkpoint that cannot be saved does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from tqdm import tqdm

from utils.errors import DataError
from utils.files import OTHER_ROOT, write_whole, writing
from utils.options.models import LoggingOptions, Options
from utils.options.registry import Registry, import_parts
from utils.run.curves import HISTORY_NAME, draw_curves, read_history

logger = logging.getLogger(__name__)

WRITERS = Registry("log writer")  # of `logging.writers`; the others have keys of their own

_unwritten: set[str] = set()  # what could not be written at the last attempt


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """The body writes something that the run does not need: on an error warn once and go on."""
    try:
        yield
    except (OSError, DataError) as e:
        if what not in _unwritten:
            _unwritten.add(what)
            text = str(e.what if isinstance(e, DataError) else e)
            logger.warning("cannot write %s (%s); the run goes on without it", what, text)
    else:
        if what in _unwritten:
            _unwritten.discard(what)
            logger.warning("%s: can be written again", what)


class _SaysOnce(logging.Handler):
    """A handler that reports once, on stderr, that it cannot write; logging would print a traceback for each line."""

    has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (OSError, ValueError)):  # ValueError: a closed stream
            super().handleError(record)
        elif not self.has_failed:
            self.has_failed = True
            with suppress(OSError):
                os.write(2, f"cannot write the log ({self.name}: {error}); the run goes on without it\n".encode())


class _LogFile(_SaysOnce, logging.FileHandler):
    """Appends to a file."""


class _TqdmHandler(_SaysOnce):
    """Prints above an open progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stdout)
            sys.stdout.flush()
        except (OSError, ValueError):
            self.handleError(record)


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
    handlers: list[logging.Handler] = [_TqdmHandler()]
    handlers[0].set_name("stdout")
    if log_file is not None:
        with writing(log_file, OTHER_ROOT):
            log_file.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(_LogFile(log_file))
        handlers[-1].set_name(str(log_file))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
        root.addHandler(handler)


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
    """Scalars and pictures for TensorBoard; entries after the step of a resume are hidden (`purge_step`)."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        before = set(threading.enumerate())
        with writing(folder, OTHER_ROOT):
            self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        # Its thread raises an error in the next call here, and prints it as an uncaught one as well.
        threads, hook = set(threading.enumerate()) - before, threading.excepthook
        threading.excepthook = lambda args: None if args.thread in threads else hook(args)

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

    def __init__(self, folder: Path, name: str, options: LoggingOptions, run_id: str | None) -> None:
        import wandb

        if key := options.wandb_api_key:
            os.environ["WANDB_API_KEY"] = key
            # wandb copies the command line into its files, and the key may be part of it.
            sys.argv = [argument.replace(key, "***") for argument in sys.argv]
        self.run = wandb.init(
            project=options.wandb_project, entity=options.wandb_entity, name=name, dir=str(folder),
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
        old = read_history(self.file) if step and self.file.exists() else {}
        self.history = {tag: [entry for entry in entries if entry[0] <= step] for tag, entries in old.items()}
        self.is_drawn = True

    def scalars(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            # A validation that was interrupted is done again, at the same step.
            self.history[tag] = [*(entry for entry in self.history.get(tag, ()) if entry[0] < step), [step, value]]
        with best_effort(str(self.file)):
            write_whole(self.file, json.dumps(self.history).encode())
        self.is_drawn = False
        if any(tag.startswith("val/") for tag in values):  # rare enough; and a run that is killed later has its curves
            self._draw()

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """The history has no pictures."""

    def close(self) -> None:
        if not self.is_drawn:
            self._draw()

    def _draw(self) -> None:
        self.is_drawn = True
        with best_effort(str(self.curves)):
            draw_curves({"": self.history}, self.curves)


def check_writers(opt: Options) -> None:
    """OptionError where `logging.writers` names one that does not exist, or a wrong key of it."""
    for section in opt.logging.writers:
        WRITERS.resolve(section, "logging.writers")


def build_writers(options: LoggingOptions, task: str, folder: Path, step: int, wandb_id: str | None) -> Writers:
    """The writers that the options ask for; `step` > 0 and `wandb_id` belong to the run that is resumed."""
    writers: list[Writer] = [HistoryWriter(folder, step)]
    writers += [WRITERS.build(section, "logging.writers", folder=folder, step=step) for section in options.writers]
    if options.use_tensorboard:
        writers.append(TensorBoardWriter(folder / "tb_logger", step))
    if options.use_wandb:
        writers.append(WandbWriter(folder, task, options, wandb_id))
    return Writers(writers)


import_parts("utils", "writer_*")

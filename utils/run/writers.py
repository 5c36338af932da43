"""The writers of the numbers and pictures of a run: history, TensorBoard, W&B, and those of `logging.writers`.

Only rank 0 has writers.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import DataError
from utils.files import OTHER_ROOT, write_whole, writing
from utils.logger import best_effort
from utils.options.load import shown_argument
from utils.options.models import LoggingOptions
from utils.options.section import Registry, flat, import_parts
from utils.run.checkpoint import Progress
from utils.run.history import (
    CURVES_NAME,
    HISTORY_NAME,
    LINES_NAME,
    REPORT_NAME,
    History,
    build_report,
    draw_panels,
    encoded,
    entry_of,
    read_history,
    read_whole,
)

logger = logging.getLogger(__name__)

HPARAMS, METRICS = ("datasets", "netG", "train"), ("val/psnr", "val/ssim", "train/loss")

WRITERS = Registry("log writer")  # of `logging.writers`; the others have keys of their own


class Writer:
    """Takes what a run measures. tag: e.g. "train/loss"; step: optimizer steps so far."""

    def scalars(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError

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


class HistoryWriter(Writer):
    """Appends a line per entry, at once: a process that dies loses at most the line that it is writing.

    An entry costs the same at any length of the file.
    At a resume, lines of later steps and a last line that was cut off are dropped, once.
    step: of the checkpoint that the run resumes from, or 0.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.file, self.start = folder, folder / LINES_NAME, step
        self.is_ready = False
        with best_effort(str(self.file)):
            self._prepare()

    def scalars(self, values: dict[str, float], step: int) -> None:
        with best_effort(str(self.file)):
            self._prepare()
            if step == self.start:
                # A validation that was killed after its entry, and before its save, is done again.
                self._keep(lambda entry: entry["step"] < step or entry.keys().isdisjoint(values))
            line = _line(step, values)
            with writing(self.file, OTHER_ROOT), open(self.file, "ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                try:
                    if file.write(line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:  # all of the line, or nothing of it
                    file.truncate(size)
                    raise

    def _prepare(self) -> None:
        """Drop what a resume writes again. Later than at the start where the disk was full then."""
        if self.is_ready:
            return
        with writing(self.file, OTHER_ROOT):
            if self.file.exists():
                self._keep(lambda entry: entry["step"] <= self.start)
            elif self.start and (whole := self.folder / HISTORY_NAME).is_file():  # of an older version
                lines: list[bytes] = []
                with suppress(DataError):
                    lines = [_line(step, values) for step, values in read_whole(whole) if step <= self.start]
                write_whole(self.file, b"".join(lines))
        self.is_ready = True

    def _keep(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Replace the file, whole or not at all, by the lines that are `is_kept`. Lines that are no entry go too."""
        kept, broken = [], 0
        lines = self.file.read_bytes().splitlines(keepends=True) if self.file.exists() else []
        for number, line in enumerate(lines, 1):
            entry = entry_of(line)
            if entry is not None and line.endswith(b"\n"):
                kept += [line] if is_kept(entry) else []
            elif number < len(lines):
                broken += 1
        if broken:
            logger.warning("%s: %d lines are no entries and are left out", self.file, broken)
        if len(kept) < len(lines):
            write_whole(self.file, b"".join(kept))


def history_bytes(history: History) -> bytes:
    """The content of training_history.json."""
    plain = {tag: [[step, _plain(value)] for step, value in entries] for tag, entries in history.items()}
    return json.dumps(plain, allow_nan=False).encode()


def _line(step: int, values: Mapping[str, float | None]) -> bytes:
    plain = {tag: _plain(value) for tag, value in values.items()}
    return f"{json.dumps({'step': step, **plain}, allow_nan=False)}\n".encode()


def _plain(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


class ReportWriter(Writer):
    """Writes the three files after each validation and at the end: a run that is killed later has them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_behind = folder, False

    def scalars(self, values: dict[str, float], step: int) -> None:
        self.is_behind = True
        if "val/psnr" in values:
            self._write()

    def close(self) -> None:
        if self.is_behind:
            self._write()

    def _write(self) -> None:
        self.is_behind = False
        with best_effort("the report of the run"):
            history = read_history(self.folder)
            curves = encoded(draw_panels({"": history}))
            write_whole(self.folder / HISTORY_NAME, history_bytes(history))
            write_whole(self.folder / CURVES_NAME, curves)
            write_whole(self.folder / REPORT_NAME, build_report(self.folder, history, curves).encode())


class TensorBoardWriter(Writer):
    """Scalars and pictures for TensorBoard; entries after the step of a start are hidden (`purge_step`).

    options: without secrets; shown as text, and those of HPARAMS as hyperparameters beside the newest METRICS.
    """

    def __init__(self, folder: Path, step: int, options: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        before = set(threading.enumerate())
        with writing(folder, OTHER_ROOT):
            self.writer = SummaryWriter(str(folder), purge_step=step + 1)
        # Its thread raises an error in the next call here, and prints it as an uncaught one as well.
        threads, hook = set(threading.enumerate()) - before, threading.excepthook
        threading.excepthook = lambda args: None if args.thread in threads else hook(args)
        lines = json.dumps(options, indent=2).splitlines()
        values = {key: value for name in HPARAMS for key, value in flat(options.get(name), name)}
        with best_effort(str(folder)):
            self.writer.add_text("options", "\n".join(f"    {line}" for line in lines), step)  # indented: verbatim
            # add_hparams would write a second run. TensorBoard takes the metrics from the scalars of this one.
            for summary in hparams(values, dict.fromkeys(METRICS)):
                self.writer.file_writer.add_summary(summary)

    def scalars(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        self.writer.add_image(tag, rgb, step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WandbWriter(Writer):
    """Weights & Biases; continues the same W&B run after a resume.

    The key reaches wandb through the environment of this process only: its own login would write it to a file.
    """

    def __init__(self, section: LoggingOptions, folder: Path, options: dict[str, Any], run_id: str | None) -> None:
        """options: those of the run without secrets, as W&B's config."""
        import wandb

        if key := section.wandb_api_key:
            os.environ["WANDB_API_KEY"] = key
        # wandb copies the command line into its files.
        sys.argv = [shown_argument(argument) for argument in sys.argv]
        about = {
            "project": section.wandb_project, "entity": section.wandb_entity, "name": options["task"],
            "dir": str(folder), "id": run_id, "resume": "allow" if run_id else None, "config": options,
        }  # fmt: skip
        stdin = sys.stdin
        try:
            # On a terminal, without a key, wandb would wait for one, and store it.
            with open(os.devnull, encoding="utf-8") as sys.stdin:
                try:
                    self.run = wandb.init(**about)
                finally:
                    sys.stdin = stdin
        except wandb.Error as e:  # no key, a wrong one, or no network
            self.run = wandb.init(**about, mode="offline")
            logger.warning(
                "W&B cannot be used (%s): this run is recorded offline; upload it later with: wandb sync %s",
                str(e).splitlines()[0], Path(self.run.dir).parent,
            )  # fmt: skip

    def scalars(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        import wandb

        self.run.log({tag: wandb.Image(rgb)}, step=step)

    def close(self) -> None:
        self.run.finish()


def check_writers(sections: Sequence[str | dict[str, Any]]) -> None:
    """OptionError where `logging.writers` names one that does not exist, or a wrong key of it."""
    for section in sections:
        WRITERS.resolve(section, "logging.writers")


def build_writers(section: LoggingOptions, folder: Path, options: dict[str, Any], progress: Progress) -> Writers:
    """The writers of `logging`. progress: where the run starts; its W&B run is continued, or noted there."""
    # The report reads what the history has written.
    writers: list[Writer] = [HistoryWriter(folder, progress.step), ReportWriter(folder)]
    for wanted in section.writers:
        writers.append(WRITERS.build(wanted, "logging.writers", folder=folder, step=progress.step))
    if section.use_tensorboard:
        writers.append(TensorBoardWriter(folder / "tb_logger", progress.step, options))
    if section.use_wandb:
        writers.append(WandbWriter(section, folder, options, progress.wandb_id))
        progress.wandb_id = writers[-1].run.id
    return Writers(writers)


import_parts("utils", "writer_*")

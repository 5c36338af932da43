"""The history of a run: training_history.jsonl, one line per entry; and training_history.json, the whole as one value.

A line: {"step": 100, "train/loss": 0.0234, ...}. The whole: {"train/loss": [[100, 0.0234], ...], ...}. Both are valid
JSON: NaN and Inf are null there.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import DataError
from utils.files import OTHER_ROOT, write_whole, writing
from utils.run.logger import best_effort

LINES_NAME, HISTORY_NAME = "training_history.jsonl", "training_history.json"
History = dict[str, list[list[float]]]  # {"train/loss": [[step, value], ...], ...}; a value that is not finite is NaN

logger = logging.getLogger(__name__)


def read_history(run: Path) -> History:
    """The history of a run, given as its folder or as one of its two files. Raises DataError where there is none.

    A last line that is not complete, because the run is writing it or was killed in it, does not count. A run of an
    older version has only the .json.
    """
    path = run
    if run.suffix not in (".json", ".jsonl"):
        path = next((file for name in (LINES_NAME, HISTORY_NAME) if (file := run / name).is_file()), run / LINES_NAME)
    if not path.is_file():
        expected = f"the folder of a run, or its {LINES_NAME} or {HISTORY_NAME}"
        raise DataError(f"no {path}", "the command line", expected, "correct the path")
    entries = _read_whole(path) if path.suffix == ".json" else _read_lines(path)
    history: History = {}
    for step, values in entries:
        for tag, value in values.items():
            history.setdefault(tag, []).append([step, math.nan if value is None else value])
    return history


def run_names(runs: list[Path]) -> list[str]:
    """What a figure calls each run: its folder's name, with as many parents as tell different folders apart."""
    folders = [(run.parent if run.suffix in (".json", ".jsonl") else run).resolve() for run in runs]
    names = []
    for folder in folders:
        others = [other.parts[::-1] for other in folders if other != folder]
        parts = folder.parts[::-1]
        count = next(n for n in range(1, len(parts) + 1) if all(other[:n] != parts[:n] for other in others))
        names.append("/".join(parts[:count][::-1]))
    return names


def history_bytes(history: History) -> bytes:
    """The content of training_history.json."""
    plain = {tag: [[step, _plain(value)] for step, value in entries] for tag, entries in history.items()}
    return json.dumps(plain, allow_nan=False).encode()


def is_history(path: Path) -> bool:
    """Whether the file is a training_history.json: lists of [step, value] under tags such as "train/loss"."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        return isinstance(whole, dict) and all(
            "/" in tag and all(isinstance(step, int) for step, _ in entries) for tag, entries in whole.items()
        )
    except (OSError, ValueError, TypeError):
        return False


class HistoryWriter:
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
            self._append(_line(step, values))

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """The history has no pictures."""

    def close(self) -> None: ...

    def _prepare(self) -> None:
        """Drop what a resume writes again. Later than at the start where the disk was full then."""
        if self.is_ready:
            return
        with writing(self.file, OTHER_ROOT):
            if self.file.exists():
                self._keep(lambda entry: entry["step"] <= self.start)
            elif self.start and is_history(whole := self.folder / HISTORY_NAME):  # of an older version
                entries = [_line(step, values) for step, values in _read_whole(whole) if step <= self.start]
                write_whole(self.file, b"".join(entries))
        self.is_ready = True

    def _keep(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Replace the file, whole or not at all, by the lines that are `is_kept`. Lines that are no entry go too."""
        kept, broken = [], 0
        lines = self.file.read_bytes().splitlines(keepends=True) if self.file.exists() else []
        for number, line in enumerate(lines, 1):
            entry = _entry(line)
            if entry is not None and line.endswith(b"\n"):
                kept += [line] if is_kept(entry) else []
            elif number < len(lines):
                broken += 1
        if broken:
            logger.warning("%s: %d lines are no entries and are left out", self.file, broken)
        if len(kept) < len(lines):
            write_whole(self.file, b"".join(kept))

    def _append(self, line: bytes) -> None:
        """All of the line, or nothing of it."""
        with writing(self.file, OTHER_ROOT), open(self.file, "ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)
                raise


def _line(step: int, values: Mapping[str, float | None]) -> bytes:
    plain = {tag: _plain(value) for tag, value in values.items()}
    return f"{json.dumps({'step': step, **plain}, allow_nan=False)}\n".encode()


def _plain(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _entry(line: bytes) -> dict[str, Any] | None:
    """A line's entry; None for anything else."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("step"), int) else None


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, float | None]]]:
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        if (entry := _entry(line)) is None:
            raise _no_history(f"line {number} is no entry", path)
        yield entry.pop("step"), entry


def _read_whole(path: Path) -> Iterator[tuple[int, dict[str, float | None]]]:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        steps: dict[int, dict[str, float | None]] = {}
        for tag, entries in whole.items():
            for step, value in entries:
                steps.setdefault(step, {})[tag] = value
    except (ValueError, TypeError, AttributeError) as e:
        raise _no_history(f"no history: {e}", path) from e
    return iter(sorted(steps.items()))


def _no_history(what: str, path: Path) -> DataError:
    expected = f"{HISTORY_NAME} or {LINES_NAME}, as a run writes them"
    return DataError(what, str(path), expected, "give another run, or a copy of the file")

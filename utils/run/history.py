"""Read the history of a run: its numbers over the steps.

The history is kept in two files. NaN and Inf become null there, because JSON has no such numbers.

* training_history.jsonl has a line for each entry, in the order of the steps:
  `{"step": 100, "train/loss": 0.0234, "train/lr": 0.0004}`
* training_history.json has a curve for each scalar, as pairs of step and value:
  `{"train/loss": [[100, 0.0234], [200, 0.0229]], "train/lr": [...]}`

utils/run/history_writer.py writes both files. It appends to the .jsonl, and makes the .json from
the .jsonl, so the .json can be made again at any time.

A tag is the name of a scalar, e.g. "train/loss". An entry has the scalars that were logged together
at one step. A curve is one scalar over all steps.

What must stay: the form of both files and the tags. Users' own scripts read them, and resumed runs
read files of earlier versions (test_a_run_of_an_older_version_is_read).

Tests: tests/parts/utils/test_history.py.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from utils.errors import DataError

LINES_NAME = "training_history.jsonl"
HISTORY_NAME = "training_history.json"


# {"train/loss": [[step, value], ...], ...}; a value that is not finite is NaN.
History = dict[str, list[list[float]]]


def read_history(run: Path) -> History:
    """Return the history of a run.

    run: the folder of the run, or one of its two files. Old runs have only the .json.

    Raises DataError if there is no such file, or if it is not a history.
    """
    path = _file_of(run)
    if not path.is_file():
        raise DataError(
            what=f"no {path}",
            where="the command line",
            expected=f"the folder of a run, or its {LINES_NAME} or {HISTORY_NAME}",
            do="correct the path",
        )
    history: History = {}
    for line_number, entry in enumerate(entries_of(path), 1):
        if entry is None:  # `entries_of` returns None for a line that is not an entry
            raise _no_history(f"line {line_number} is no entry", path)
        step = entry.pop("step")
        for tag, value in entry.items():
            if not isinstance(value, int | float | None):
                raise _no_history(f"{tag} is {value!r} at step {step}", path)
            scalar = math.nan if value is None else value
            curve = history.setdefault(tag, [])
            curve.append([step, scalar])
    return history


def _file_of(run: Path) -> Path:
    """Return the file with the history of a run. The file may not exist.

    run: the folder of the run, or the file itself.
    """
    if run.suffix in (".json", ".jsonl"):
        return run
    lines = run / LINES_NAME
    curves = run / HISTORY_NAME
    if curves.is_file() and not lines.is_file():  # an old run
        return curves
    return lines


def training_scalars(folder: Path, step: int) -> dict[str, float]:
    """Return the scalars of training (tags without "val/") that the history has for `step`.

    E.g. {"train/loss": 0.0234, "train/lr": 0.0004}. Returns {} without a history.
    """
    path = folder / LINES_NAME
    if not path.is_file():
        return {}
    # A step may have several entries: a log line, and a validation.
    entry_of_step: dict[str, Any] = {}
    for entry in entries_of(path):
        if entry is not None and entry["step"] == step:
            entry_of_step.update(entry)
    scalars = {}
    for tag, value in entry_of_step.items():
        if tag != "step" and not tag.startswith("val/"):
            scalars[tag] = math.nan if value is None else value
    return scalars


def entries_of(path: Path) -> list[dict[str, Any] | None]:
    """Return the entries of a file of a history, in the order of their steps.

    A line of a .jsonl that is not an entry becomes None, so that the caller can name or count such
    lines. A last line without an end of line is left out, because the run is still writing the
    line, or was killed while it wrote.
    """
    if path.suffix == ".jsonl":
        # The last item of the split is the text after the last end of line. It is empty, or a line
        # without an end.
        lines = path.read_bytes().split(b"\n")[:-1]
        return [_entry_of(line) for line in lines]
    return _entries_of_curves(path)


def _entries_of_curves(path: Path) -> list[dict[str, Any] | None]:
    """Return the entries of a .json, which holds a curve for each scalar.

    E.g. {"train/loss": [[100, 0.02]], "train/lr": [[100, 0.0004]]} has one entry,
    {"step": 100, "train/loss": 0.02, "train/lr": 0.0004}.

    Raises DataError if the file has another form.
    """
    try:
        # Older versions wrote NaN into the file, which is not valid JSON. Python's json reads such
        # a file, and calls parse_constant for each NaN or Infinity. None takes their place.
        curves = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        entry_at: dict[int, dict[str, Any]] = {}  # step -> entry
        for tag, curve in curves.items():
            for step, value in curve:
                if step not in entry_at:
                    entry_at[step] = {"step": step}
                entry_at[step][tag] = value
        return [entry_at[step] for step in sorted(entry_at)]
    except (ValueError, TypeError, AttributeError) as e:
        raise _no_history(f"no history: {e}", path) from e


def _entry_of(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line of the .jsonl, or None if the line holds something else."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    is_entry = isinstance(entry, dict) and isinstance(entry.get("step"), int)
    return entry if is_entry else None


def _no_history(what: str, path: Path) -> DataError:
    """Return the error of a file that is not a history.

    what: what is wrong with it.
    """
    return DataError(
        what=what,
        where=str(path),
        expected=f"{HISTORY_NAME} or {LINES_NAME}, as a run writes them",
        do="give another run, or a copy of the file",  # an undamaged copy, e.g. of a backup
    )


def folder_of(run: Path) -> Path:
    """Return the folder of a run.

    run: the folder itself, or one of the two files of the history in it.
    """
    return run.parent if run.suffix in (".json", ".jsonl") else run


def run_names(runs: list[Path]) -> list[str]:
    """Return a short, unique name of each run, for figures and tables.

    The name is the last part of the folder's path. If several runs have the same last part, the
    folders above it are put in front until the names differ. E.g. /a/x/run and /a/y/run are called
    "x/run" and "y/run".

    Raises DataError if a run is given twice.
    """
    all_parts = [folder_of(run).resolve().parts for run in runs]  # e.g. ("/", "a", "x", "run")
    names = []
    for parts in all_parts:
        # Take the last part, then the last two parts, ..., until no other folder ends with these
        # parts. If a run is given twice, both paths get the same name, which is refused below.
        others = [other for other in all_parts if other != parts]
        count = 1
        while any(other[-count:] == parts[-count:] for other in others):
            count += 1
        last_parts = parts[-count:]
        names.append("/".join(last_parts))
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                what=f"a run is given twice: {name}",
                where="the command line",
                expected="each run once",
                do="leave one out",
            )
    return names


def names_of_own_metrics(tags: Iterable[str]) -> list[str]:
    """Return the names of the metrics of the option `metric.more`, e.g. ["lpips"].

    Each metric is measured on the restored frames and on the blurry input, so it has two tags, e.g.
    "val/lpips" and "val/lpips_input". Other tags, such as "clips/lpips/clip_01", have no second
    tag.

    tags: the tags of a history or of a validation.
    """
    all_tags = set(tags)
    names = set()
    for tag in all_tags:
        if f"{tag}_input" in all_tags:
            names.add(tag.removeprefix("val/"))
    return sorted(names - {"psnr", "ssim"})  # PSNR and SSIM are always measured

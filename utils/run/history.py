"""The history of a run, and its curves: training_history.jsonl, one line per entry; training_history.json, the whole.

A line: {"step": 100, "train/loss": 0.0234, ...}. The whole: {"train/loss": [[100, 0.0234], ...], ...}. Both are valid
JSON: NaN and Inf are null there.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from utils.errors import DataError
from utils.files import OTHER_ROOT, write_whole, writing
from utils.run.logger import best_effort

if TYPE_CHECKING:  # matplotlib is imported only where a figure is drawn; pyplot, which wants a display, nowhere
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES_NAME, HISTORY_NAME = "training_history.jsonl", "training_history.json"
History = dict[str, list[list[float]]]  # {"train/loss": [[step, value], ...], ...}; a value that is not finite is NaN
COLOURS = tuple(f"C{number}" for number in range(10))
# A running mean over a twentieth of the entries: smooth enough to compare runs, short enough to show a change.
SMOOTHED_SHARE, SMOOTHED_LEAST, SMOOTHED_MOST = 20, 3, 200
GREY = "0.35"

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
            if not isinstance(value, int | float | None):
                raise _no_history(f"{tag} is {value!r} at step {step}", path)
            history.setdefault(tag, []).append([step, math.nan if value is None else value])
    return history


def folder_of(run: Path) -> Path:
    """The folder of a run that is given as its folder or as one of its two files."""
    return run.parent if run.suffix in (".json", ".jsonl") else run


def run_names(runs: list[Path]) -> list[str]:
    """What a figure or table calls each run: its folder's name, with as many parents as tell the folders apart.

    Raises DataError where a run is given twice.
    """
    paths = [folder_of(run).resolve().parts[::-1] for run in runs]
    names = []
    for parts in paths:
        others = [other for other in paths if other != parts]
        count = next(n for n in range(1, len(parts) + 1) if all(other[:n] != parts[:n] for other in others))
        names.append("/".join(parts[:count][::-1]))
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"a run is given twice: {twice[0]}", "the command line", "each run once", "leave one out")
    return names


def history_bytes(history: History) -> bytes:
    """The content of training_history.json."""
    plain = {tag: [[step, _plain(value)] for step, value in entries] for tag, entries in history.items()}
    return json.dumps(plain, allow_nan=False).encode()


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
        """The history has no images."""

    def close(self) -> None: ...

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
                    lines = [_line(step, values) for step, values in _read_whole(whole) if step <= self.start]
                write_whole(self.file, b"".join(lines))
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


def draw_panels(histories: Mapping[str, History]) -> Figure:
    """Four panels over the iteration: loss, PSNR, learning rate, speed. histories: name of the run -> its history."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.5))
    if len(histories) == 1:  # written after each validation; to have these margins computed doubles its time
        figure.subplots_adjust(left=0.07, bottom=0.075, right=0.94, top=0.945, wspace=0.2, hspace=0.32)
    else:
        figure.set_layout_engine("constrained")
    panels = (("loss", _loss), ("PSNR, dB", _psnr), ("learning rate", _rate), ("speed", _speed))
    for axis, (title, draw) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        _dress(axis, title)
        draw(axis, histories)
    _name_runs(figure, histories)
    return figure


def draw_scalars(histories: Mapping[str, History]) -> Figure:
    """One panel per scalar over the iteration."""
    from matplotlib.figure import Figure

    tags = sorted({tag for history in histories.values() for tag in history})
    columns = min(3, len(tags))
    rows = -(-len(tags) // columns)
    figure = Figure(figsize=(4.5 * columns, 3 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(tags) :]:
        axis.set_visible(False)
    for axis, tag in zip(axes.flat, tags, strict=False):
        _dress(axis, tag)
        _each(axis, histories, tag, lambda x, y, colour, axis=axis: axis.plot(x, y, color=colour))
    _name_runs(figure, histories)
    return figure


def encoded(figure: Figure, kind: str = "png") -> bytes:
    """The figure as a file of an image format, e.g. "png", "svg", "pdf"."""
    from matplotlib import rc_context

    image = io.BytesIO()
    # Without it, a curve of 300,000 entries is refused as too complex.
    with rc_context({"agg.path.chunksize": 10000}):
        figure.savefig(image, dpi=100, format=kind)
    return image.getvalue()


def smoothed(values: Sequence[float]) -> tuple[np.ndarray, int]:
    """Centred running mean, (n,), and its number of entries; NaN is left out, and the window is shorter at the ends."""
    y = np.asarray(values, float)
    half = int(np.clip(len(y) // SMOOTHED_SHARE, SMOOTHED_LEAST, SMOOTHED_MOST)) // 2
    is_finite = np.isfinite(y)
    sums, counts = (np.concatenate(([0.0], np.cumsum(part))) for part in (np.where(is_finite, y, 0.0), is_finite))
    first = np.clip(np.arange(len(y)) - half, 0, None)
    last = np.clip(np.arange(len(y)) + half + 1, None, len(y))
    count = counts[last] - counts[first]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), np.nan), 2 * half + 1


def _loss(axis: Axes, histories: Mapping[str, History]) -> None:
    finite, window = [], 0

    def draw(x: np.ndarray, y: np.ndarray, colour: str) -> None:
        nonlocal window
        mean, window = smoothed(y)
        axis.plot(x, y, color=colour, linewidth=0.6, alpha=0.35)
        axis.plot(x, mean, color=colour, linewidth=2.2)
        finite.extend(mean[np.isfinite(mean)])

    if _each(axis, histories, "train/loss", draw):
        if finite and min(finite) > 0 and max(finite) > 10 * min(finite):
            axis.set_yscale("log")
        name = f"mean of {window} entries" if len(histories) == 1 else "running mean"
        _explain(
            axis, histories, "upper right", {name: {"linewidth": 2.2}, "each entry": {"linewidth": 0.6, "alpha": 0.5}}
        )


def _psnr(axis: Axes, histories: Mapping[str, History]) -> None:
    def restored(x: np.ndarray, y: np.ndarray, colour: str) -> None:
        axis.plot(x, y, color=colour, marker="o", markersize=3.5)
        if np.isfinite(y).any():
            best = int(np.nanargmax(np.where(np.isfinite(y), y, np.nan)))
            axis.plot(x[best], y[best], color=colour, marker="*", markersize=14, markeredgecolor="white")
            if len(histories) == 1:
                axis.set_title(f"best {y[best]:.2f} at {x[best]:,.0f}", loc="right", fontsize="medium", color=GREY)

    if _each(axis, histories, "val/psnr", restored):
        _each(axis, histories, "val/psnr_input", lambda x, y, c: axis.plot(x, y, color=c, linestyle="--"), False)
        kinds = {"restored": {"marker": "o", "markersize": 3.5}, "blurry input": {"linestyle": "--"}}
        _explain(axis, histories, "center right", kinds | {"best": {"linestyle": "", "marker": "*", "markersize": 11}})


def _rate(axis: Axes, histories: Mapping[str, History]) -> None:
    if _each(axis, histories, "train/lr", lambda x, y, c: axis.plot(x, y, color=c, linewidth=1.8)):
        axis.set_ylim(bottom=0)
        axis.ticklabel_format(axis="y", scilimits=(-2, 3))


def _speed(axis: Axes, histories: Mapping[str, History]) -> None:
    if not _each(axis, histories, "train/it_per_s", lambda x, y, c: axis.plot(x, y, color=c, linewidth=1.2)):
        return
    axis.set_ylim(bottom=0)
    axis.set_ylabel("iterations per second")
    waits = axis.twinx()
    waits.spines[["top"]].set_visible(False)
    waits.set(ylim=(0, 100), ylabel="data wait, % of the time")
    wait = {"linestyle": ":"} | ({"color": COLOURS[1]} if len(histories) == 1 else {})
    _each(waits, histories, "train/data_share", lambda x, y, c: waits.plot(x, 100 * y, **{"color": c} | wait), False)
    kinds = {"iterations per second": {"linewidth": 1.2}, "data wait": wait}
    _explain(axis, histories, "center left", kinds)


def _each(
    axis: Axes,
    histories: Mapping[str, History],
    tag: str,
    draw: Callable[[np.ndarray, np.ndarray, str], object],
    say_nothing: bool = True,
) -> bool:
    """Draw (steps, values, colour) of each run that has the scalar; whether one has. say_nothing: else note that."""
    found = False
    for number, history in enumerate(histories.values()):
        if entries := history.get(tag):
            found = True
            draw(*np.asarray(entries, float).T, COLOURS[number % len(COLOURS)])
    if not found and say_nothing:
        axis.text(0.5, 0.5, f"no {tag} yet", transform=axis.transAxes, ha="center", va="center", color=GREY)
    return found


def _dress(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontweight="bold", fontsize="large")
    axis.set_xlabel("iteration")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.get_major_locator().set_params(integer=True)  # no tick between two iterations
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _explain(axis: Axes, histories: Mapping[str, History], place: str, kinds: Mapping[str, dict]) -> None:
    """A legend of the kinds of lines, in grey where the colours are those of several runs.

    place: where curves seldom are; to search for an empty one takes long with many entries.
    """
    from matplotlib.lines import Line2D

    colour = COLOURS[0] if len(histories) == 1 else GREY
    lines = [Line2D([], [], **{"color": colour} | style) for style in kinds.values()]
    axis.legend(lines, list(kinds), loc=place, fontsize="small", framealpha=0.8)


def _name_runs(figure: Figure, histories: Mapping[str, History]) -> None:
    from matplotlib.lines import Line2D

    if len(histories) > 1:
        lines = [Line2D([], [], color=COLOURS[i % len(COLOURS)], linewidth=3) for i in range(len(histories))]
        figure.legend(lines, list(histories), loc="outside upper center", ncols=min(4, len(histories)))

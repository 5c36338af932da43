"""What a run leaves to judge it by: its history, the curves of it, and report.html.

The history is training_history.jsonl, one line per entry, and training_history.json, the whole.

A line: {"step": 100, "train/loss": 0.0234, ...}. The whole: {"train/loss": [[100, 0.0234], ...], ...}. Both are valid
JSON: NaN and Inf are null there.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from utils.errors import DataError
from utils.files import natural_key
from utils.image import ERROR, imread_rgb, panels_of, render
from utils.logger import WARNINGS_NAME

if TYPE_CHECKING:  # matplotlib is imported only where a figure is drawn; pyplot, which wants a display, nowhere
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES_NAME, HISTORY_NAME = "training_history.jsonl", "training_history.json"
History = dict[str, list[list[float]]]  # {"train/loss": [[step, value], ...], ...}; a value that is not finite is NaN
COLOURS = tuple(f"C{number}" for number in range(10))
# A running mean over a twentieth of the entries: smooth enough to compare runs, short enough to show a change.
SMOOTHED_SHARE, SMOOTHED_LEAST, SMOOTHED_MOST = 20, 3, 200
GREY = "0.35"
REPORT_NAME, CURVES_NAME, ENVIRONMENT_NAME = "report.html", "curves.png", "environment.json"
# At most 12 clips have strips; at this width a page takes about 5 MB, and never more than 16.
STRIP_WIDTH = 640
SHOWN_ROWS, SHOWN_WARNINGS = 50, 40  # the newest ones
PANELS_NAME = "panels.json"  # in images/: names of the panels of a strip, from left to right


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
    entries = read_whole(path) if path.suffix == ".json" else _read_lines(path)
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


def entry_of(line: bytes) -> dict[str, Any] | None:
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
        if (entry := entry_of(line)) is None:
            raise _no_history(f"line {number} is no entry", path)
        yield entry.pop("step"), entry


def read_whole(path: Path) -> Iterator[tuple[int, dict[str, float | None]]]:
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
    loss, psnr, rate, speed = axes = figure.subplots(2, 2).ravel()
    for axis, title in zip(axes, ("loss", "PSNR, dB", "learning rate", "speed"), strict=True):
        _dress(axis, title)
    _draw_loss(loss, histories)
    _draw_psnr(psnr, histories)
    for x, y, colour in _curves(histories, "train/lr"):
        rate.plot(x, y, color=colour, linewidth=1.8)
    rate.ticklabel_format(axis="y", scilimits=(-2, 3))
    rate.set_ylim(bottom=0)
    _draw_speed(speed, histories)
    for axis, tag in zip(axes, ("train/loss", "val/psnr", "train/lr", "train/it_per_s"), strict=True):
        if not axis.lines:
            axis.text(0.5, 0.5, f"no {tag} yet", transform=axis.transAxes, ha="center", va="center", color=GREY)
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
        for x, y, colour in _curves(histories, tag):
            axis.plot(x, y, color=colour)
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


def _curves(histories: Mapping[str, History], tag: str) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """(steps, values, colour) of each run that has the scalar."""
    for number, history in enumerate(histories.values()):
        if entries := history.get(tag):
            yield *np.asarray(entries, float).T, COLOURS[number % len(COLOURS)]


def _draw_loss(axis: Axes, histories: Mapping[str, History]) -> None:
    finite, name = [], ""
    for x, y, colour in _curves(histories, "train/loss"):
        mean, window = smoothed(y)
        axis.plot(x, y, color=colour, linewidth=0.6, alpha=0.35)
        axis.plot(x, mean, color=colour, linewidth=2.2)
        finite.extend(mean[np.isfinite(mean)])
        name = f"mean of {window} entries" if len(histories) == 1 else "running mean"
    if finite and min(finite) > 0 and max(finite) > 10 * min(finite):
        axis.set_yscale("log")
    kinds = {name: {"linewidth": 2.2}, "each entry": {"linewidth": 0.6, "alpha": 0.5}}
    _explain(axis, histories, "upper right", kinds)


def _draw_psnr(axis: Axes, histories: Mapping[str, History]) -> None:
    for x, y, colour in _curves(histories, "val/psnr"):
        axis.plot(x, y, color=colour, marker="o", markersize=3.5)
        if np.isfinite(y).any():
            best = int(np.nanargmax(np.where(np.isfinite(y), y, np.nan)))
            axis.plot(x[best], y[best], color=colour, marker="*", markersize=14, markeredgecolor="white")
            if len(histories) == 1:
                axis.set_title(f"best {y[best]:.2f} at {x[best]:,.0f}", loc="right", fontsize="medium", color=GREY)
    for x, y, colour in _curves(histories, "val/psnr_input"):
        axis.plot(x, y, color=colour, linestyle="--")
    kinds = {"restored": {"marker": "o", "markersize": 3.5}, "blurry input": {"linestyle": "--"}}
    _explain(axis, histories, "center right", kinds | {"best": {"linestyle": "", "marker": "*", "markersize": 11}})


def _draw_speed(axis: Axes, histories: Mapping[str, History]) -> None:
    for x, y, colour in _curves(histories, "train/it_per_s"):
        axis.plot(x, y, color=colour, linewidth=1.2)
    if not axis.lines:
        return
    axis.set_ylim(bottom=0)
    axis.set_ylabel("iterations per second")
    waits = axis.twinx()
    waits.spines[["top"]].set_visible(False)
    waits.set(ylim=(0, 100), ylabel="data wait, % of the time")
    wait = {"linestyle": ":"} | ({"color": COLOURS[1]} if len(histories) == 1 else {})
    for x, y, colour in _curves(histories, "train/data_share"):
        waits.plot(x, 100 * y, **{"color": colour} | wait)
    kinds = {"iterations per second": {"linewidth": 1.2}, "data wait": wait}
    _explain(axis, histories, "center left", kinds)


def _dress(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontweight="bold", fontsize="large")
    axis.set_xlabel("iteration")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.get_major_locator().set_params(integer=True)  # no tick between two iterations
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _explain(axis: Axes, histories: Mapping[str, History], place: str, kinds: Mapping[str, dict]) -> None:
    """A legend of the kinds of lines of a panel that has any, in grey where the colours are those of several runs.

    place: where curves seldom are; to search for an empty one takes long with many entries.
    """
    from matplotlib.lines import Line2D

    if not axis.lines:
        return
    colour = COLOURS[0] if len(histories) == 1 else GREY
    lines = [Line2D([], [], **{"color": colour} | style) for style in kinds.values()]
    axis.legend(lines, list(kinds), loc=place, fontsize="small", framealpha=0.8)


def _name_runs(figure: Figure, histories: Mapping[str, History]) -> None:
    from matplotlib.lines import Line2D

    if len(histories) > 1:
        lines = [Line2D([], [], color=COLOURS[i % len(COLOURS)], linewidth=3) for i in range(len(histories))]
        figure.legend(lines, list(histories), loc="outside upper center", ncols=min(4, len(histories)))


def build_report(folder: Path, history: History, curves: bytes) -> str:
    """One self-contained page on the run in `folder`. curves: a PNG."""
    columns = [dict(history.get(f"val/{name}", [])) for name in ("psnr", "psnr_input", "ssim", "ssim_input")]
    steps, scores = list(columns[0]), {step: psnr for step, psnr in columns[0].items() if math.isfinite(psnr)}
    best = max(scores, key=scores.get, default=None)
    state = [f"iteration {max(entries[-1][0] for entries in history.values()):,}" if history else "no entry yet"]
    if losses := history.get("train/loss"):
        state.append(f"loss {losses[-1][1]:.4f}")
    if scores:
        last = list(scores.values())[-1]
        state.append(f"PSNR {last:.2f} dB, best {scores[best]:.2f} dB at iteration {best:,}")
    shown = [step for step in steps if step == best or step in steps[-SHOWN_ROWS:]][::-1]
    environment = {}
    with suppress(OSError, ValueError):  # the page of a run without it is shown all the same
        environment = json.loads((folder / ENVIRONMENT_NAME).read_text(encoding="utf-8"))
    return render(
        "run",
        title=f"Training: {folder.resolve().name}",
        state="; ".join(state),
        curves=base64.b64encode(curves).decode("ascii"),
        warnings=list(_warnings(folder / WARNINGS_NAME).items()),
        shown_warnings=SHOWN_WARNINGS,
        validations=[[step, *(column.get(step, math.nan) for column in columns)] for step in shown],
        best=best,
        left_out=len(steps) - len(shown),
        clips=_panels(folder / "images", steps[-1]) if steps else {},
        strip_width=STRIP_WIDTH,
        environment=environment,
        options=newest_options(folder / "options"),
    )


def _warnings(path: Path) -> dict[str, tuple[str, int]]:
    """Text -> (time of the last one, how often) of each recorded warning, the newest last."""
    found: dict[str, tuple[str, int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):  # a line that was cut by a kill
            record = json.loads(line)
            _, count = found.pop(record["text"], ("", 0))
            found[record["text"]] = record["time"], count + 1
    return found


def _panels(images: Path, step: int) -> dict[str, dict[str, np.ndarray]]:
    """Clip -> name -> (H, W, 3) uint8 of the panels of the strips of one validation, without the error."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with suppress(OSError, ValueError, DataError):  # the report of a run must not end it
        names = json.loads((images / PANELS_NAME).read_text(encoding="utf-8"))
        for file in sorted(images.rglob(f"{step}.png"), key=natural_key):
            panels = panels_of(imread_rgb(file), names)
            found[file.parent.relative_to(images).as_posix()] = {k: v for k, v in panels.items() if k != ERROR}
    return found


def newest_options(folder: Path) -> Path | None:
    """The options that a run was started with last; None where the folder holds none."""
    return max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)

"""Figures of the history of runs: four panels (loss, PSNR, learning rate, speed), or one panel per scalar."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.errors import OptionError
from utils.files import write_whole
from utils.run.history import History

if TYPE_CHECKING:  # matplotlib is imported only where a figure is drawn; pyplot, which wants a display, nowhere
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = tuple(f"C{number}" for number in range(10))
# A running mean over a twentieth of the entries: smooth enough to compare runs, short enough to show a change.
SMOOTHED_SHARE, SMOOTHED_LEAST, SMOOTHED_MOST = 20, 3, 200
GREY = "0.35"


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


def encoded(figure: Figure, kind: str = "png", title: str | None = None) -> bytes:
    """The figure as a file of a picture format, e.g. "png", "svg", "pdf". title: of the file, not shown."""
    from matplotlib import rc_context

    picture = io.BytesIO()
    # Without it, a curve of 300,000 entries is refused as too complex.
    with rc_context({"agg.path.chunksize": 10000}):
        figure.savefig(picture, dpi=100, format=kind, metadata={"Title": title} if title else None)
    return picture.getvalue()


def write_figure(figure: Figure, path: Path) -> None:
    """Write it in the format that the suffix names. Raises OptionError for one that does not exist."""
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix[1:] not in kinds:
        raise OptionError(
            f"no picture format {path.suffix!r}", str(path), ", ".join(sorted(kinds)), "use another suffix"
        )
    write_whole(path, encoded(figure, path.suffix[1:]))


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

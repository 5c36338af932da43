"""Draw the curves of one or several runs.

    draw_panels     four panels: loss, PSNR, learning rate, speed
    draw_scalars    one panel for each scalar
    encode          the figure as a file, e.g. a PNG

In this file, `axis` is one panel (an Axes of matplotlib), and `histories` has the curves to draw:
name of a run -> its history. An entry is one point of a curve: a step and a value.

No program reads a figure, so the figures may be changed freely. Only `running_mean` has an exact
test, because numbers are easy to check and pictures are not.

Tests: tests/parts/utils/test_history.py.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from utils.run.history import History

# Margins of the figure of one run, as fractions of its width and height. E.g. the left panel begins
# at 7 % of the width. The margins are fixed numbers, chosen by hand. If matplotlib computed the
# margins, drawing would take twice as long, and the figure is drawn after each validation.
MARGINS = {
    "left": 0.07,
    "bottom": 0.075,
    "right": 0.94,
    "top": 0.945,
    "wspace": 0.2,
    "hspace": 0.32,
}
GREY = "0.35"  # matplotlib's name of a dark grey, where "0" is black and "1" is white


def draw_panels(histories: Mapping[str, History]) -> Any:
    """Draw four panels over the iteration: loss, PSNR, learning rate, speed.

    Returns a figure of matplotlib. The report of a run draws one history, and a comparison of runs
    draws several.

    histories: name of the run -> its history.
    """
    is_one_run = len(histories) == 1
    # Tag (name of a scalar) -> title of the panel that shows it. The tags are names of
    # `measured.log_values` after "train/", and names of scores after "val/".
    titles = {
        "train/loss": "loss",
        "val/psnr": "PSNR, dB",
        "train/lr": "learning rate",
        "train/it_per_s": "speed",
    }
    # If there are several runs, their names stand above the panels. The height of these names is
    # not known here, so let matplotlib compute the margins (None).
    margins = MARGINS if is_one_run else None
    figure, panels = _empty_figure(histories, titles, columns=2, size=(6, 3.75), margins=margins)
    loss = panels["train/loss"]
    psnr = panels["val/psnr"]
    rate = panels["train/lr"]
    speed = panels["train/it_per_s"]
    _draw_loss(loss, histories)
    _draw_psnr(psnr, histories)
    _draw_rate(rate, histories)
    _draw_speed(speed, histories)

    # If a panel has no curve, write in its middle which scalar is missing.
    for tag, axis in panels.items():
        if not axis.lines:
            # With transAxes, (0.5, 0.5) is the middle of the panel, and not step 0.5, value 0.5.
            style = {"transform": axis.transAxes, "ha": "center", "va": "center", "color": GREY}
            axis.text(0.5, 0.5, f"no {tag} yet", **style)

    # Put each legend where the curves rarely are. E.g. a loss falls, so the upper right of its
    # panel is empty. By default matplotlib searches an empty place, which takes long if the curves
    # have many entries. The learning rate needs no legend, because a run has only one curve in this
    # panel.
    _draw_legend(loss, "upper right", is_one_run)
    _draw_legend(psnr, "center right", is_one_run)
    _draw_legend(speed, "center left", is_one_run)
    return figure


def _draw_loss(axis: Any, histories: Mapping[str, History]) -> None:
    """Draw the loss of each log line as a thin line, and its running mean as a thick line."""
    means: list[float] = []
    for curve in _curves(histories, "train/loss"):
        mean, window = running_mean(curve.values)
        # The window depends on the number of entries of a curve. So the label of several runs does
        # not tell the window.
        label = f"mean of {window} entries" if len(histories) == 1 else "running mean"
        thin = {"color": curve.colour, "linewidth": 0.6, "alpha": 0.35, "label": "each entry"}
        axis.plot(curve.steps, curve.values, **thin)
        axis.plot(curve.steps, mean, color=curve.colour, linewidth=2.2, label=label)
        means.extend(mean[np.isfinite(mean)])
    # If the loss falls by more than a factor of 10, a linear axis would show the end of the curve
    # as a flat line at the bottom. A logarithmic axis needs values above 0.
    if means and min(means) > 0 and max(means) > 10 * min(means):
        axis.set_yscale("log")


def _draw_psnr(axis: Any, histories: Mapping[str, History]) -> None:
    """Draw the PSNR of the restored frames, with a star at the best, and of the blurry input."""
    star = {
        "linestyle": "",
        "marker": "*",
        "markersize": 14,
        "markeredgecolor": "white",
        "label": "best",
    }
    for curve in _curves(histories, "val/psnr"):
        steps = curve.steps
        values = curve.values
        axis.plot(steps, values, color=curve.colour, marker="o", markersize=3.5, label="restored")
        is_finite = np.isfinite(values)
        if not is_finite.any():
            continue
        # nanargmax ignores NaN. Replace Inf by NaN, because Inf must not be the best value.
        finite_or_nan = np.where(is_finite, values, np.nan)
        best_index = int(np.nanargmax(finite_or_nan))
        best_step = steps[best_index]
        best_psnr = values[best_index]
        axis.plot(best_step, best_psnr, color=curve.colour, **star)
        if len(histories) == 1:
            text = f"best {best_psnr:.2f} at {best_step:,.0f}"
            axis.set_title(text, loc="right", fontsize="medium", color=GREY)
    for curve in _curves(histories, "val/psnr_input"):
        axis.plot(
            curve.steps, curve.values, color=curve.colour, linestyle="--", label="blurry input"
        )


def _draw_rate(axis: Any, histories: Mapping[str, History]) -> None:
    """Draw the learning rate."""
    for curve in _curves(histories, "train/lr"):
        axis.plot(curve.steps, curve.values, color=curve.colour, linewidth=1.8)
    # Numbers below 10^-2 or above 10^3 are written with a power of ten. E.g. 0.0004 is written as a
    # 4 beside the axis, and 1e-4 above the axis.
    axis.ticklabel_format(axis="y", scilimits=(-2, 3))
    axis.set_ylim(bottom=0)


def _draw_speed(axis: Any, histories: Mapping[str, History]) -> None:
    """Draw iterations per second and, on a second axis at the right, the wait for data.

    The wait is the share of the time in which training waits for the next batch.
    """
    for curve in _curves(histories, "train/it_per_s"):
        label = "iterations per second"
        axis.plot(curve.steps, curve.values, color=curve.colour, linewidth=1.2, label=label)
    if not axis.lines:
        return
    axis.set_ylim(bottom=0)
    axis.set_ylabel("iterations per second")
    waits = axis.twinx()
    waits.spines["top"].set_visible(False)
    waits.set(ylim=(0, 100), ylabel="data wait, % of the time")
    for curve in _curves(histories, "train/data_share"):
        # If there is one run, speed and data wait have two colours. If there are several runs, both
        # curves of a run have the colour of the run, so that the reader can tell the runs apart.
        colour = "C1" if len(histories) == 1 else curve.colour
        dotted_style = {"color": colour, "linestyle": ":"}
        waits.plot(curve.steps, 100 * curve.values, **dotted_style)
        # The legend shows only the curves of the first axis. So draw an empty curve on the first
        # axis, to give the data wait a label in the legend.
        axis.plot([], [], label="data wait", **dotted_style)


def _draw_legend(axis: Any, place: str, is_one_run: bool) -> None:
    """Draw a legend with each label once.

    place: one of matplotlib's names of places, e.g. "upper right".
    is_one_run: whether the figure shows only one run. If it shows several runs, each run has its
        own colour, and a label, e.g. "restored", stands for one curve of each run. So the label's
        line in the legend is grey.
    """
    lines, labels = axis.get_legend_handles_labels()
    line_of_label = {}
    for label, line in zip(labels, lines, strict=True):
        line_of_label[label] = line  # if several runs have the same label, the last line stays
    if not line_of_label:
        return
    legend = axis.legend(
        line_of_label.values(),
        line_of_label.keys(),
        loc=place,
        fontsize="small",
        framealpha=0.8,
    )
    if not is_one_run:
        for line in legend.get_lines():
            line.set_color(GREY)


def draw_scalars(histories: Mapping[str, History]) -> Any:
    """Draw one panel per scalar over the iteration. Returns a figure of matplotlib.

    histories: name of the run -> its history.
    """
    all_tags = set()
    for history in histories.values():
        all_tags.update(history)
    tags = sorted(all_tags)
    columns = min(3, len(tags))
    titles = {tag: tag for tag in tags}
    figure, panels = _empty_figure(histories, titles, columns=columns, size=(4.5, 3))
    for tag, axis in panels.items():
        for curve in _curves(histories, tag):
            axis.plot(curve.steps, curve.values, color=curve.colour)
    return figure


def encode(figure: Any, kind: str = "png") -> bytes:
    """Return the figure as a file of an image format, e.g. "png", "svg", "pdf"."""
    from matplotlib import rc_context

    image = io.BytesIO()
    # Draw long curves in chunks of 10,000 entries. Without chunks, matplotlib refuses a curve of
    # 300,000 entries as too complex.
    with rc_context({"agg.path.chunksize": 10_000}):
        figure.savefig(image, dpi=100, format=kind)
    return image.getvalue()


class _Curve(NamedTuple):
    """A scalar of a run over its steps."""

    steps: np.ndarray  # (n,)
    values: np.ndarray  # (n,); may have NaN
    colour: str  # colour of the run in the figure, e.g. "C0"


def _curves(histories: Mapping[str, History], tag: str) -> Iterator[_Curve]:
    """Yield the curve of each run that has the scalar `tag`."""
    for number, history in enumerate(histories.values()):
        entries = history.get(tag)
        if entries:
            table = np.asarray(entries, float)  # (n, 2)
            yield _Curve(steps=table[:, 0], values=table[:, 1], colour=_colour(number))


def _colour(number: int) -> str:
    """Return the colour of run `number`, from 0.

    matplotlib has ten colours, "C0" to "C9". Run 10 has the colour of run 0 again.
    """
    return f"C{number % 10}"


def _empty_figure(
    histories: Mapping[str, History],
    titles: Mapping[str, str],
    columns: int,
    size: tuple[float, float],
    margins: dict[str, float] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return a figure of matplotlib, and its empty panels: tag -> axes of matplotlib.

    If there are several runs, their names stand above the panels.

    titles: tag of a scalar -> title of its panel, in the order of the panels.
    columns: number of panels side by side.
    size: width and height of a panel in inches.
    margins: MARGINS, or None to let matplotlib compute the margins, which takes longer.
    """
    # Import matplotlib here and not at the top of this file, because it takes long to load and most
    # programs draw nothing. Use Figure and not pyplot, because pyplot needs a display.
    from matplotlib.figure import Figure

    rows = math.ceil(len(titles) / columns)
    width, height = size
    size_of_figure = (width * columns, height * rows)
    if margins:
        figure = Figure(figsize=size_of_figure)
        figure.subplots_adjust(**margins)
    else:
        figure = Figure(figsize=size_of_figure, layout="constrained")  # computes the margins
    panels = {}
    for number, tag in enumerate(titles, start=1):  # matplotlib counts the panels from 1
        panels[tag] = figure.add_subplot(rows, columns, number)
        _style_panel(panels[tag], titles[tag])
    if len(histories) > 1:
        _write_names(figure, list(histories))
    return figure, panels


def _write_names(figure: Any, names: list[str]) -> None:
    """Write the names of the runs above the panels, each beside a line of its colour."""
    from matplotlib.lines import Line2D

    lines = []
    for number in range(len(names)):
        lines.append(Line2D([], [], color=_colour(number), linewidth=3))
    figure.legend(lines, names, loc="outside upper center", ncols=min(4, len(names)))


def _style_panel(axis: Any, title: str) -> None:
    """Give an empty panel its title, an axis of iterations and a grid."""
    axis.set_title(title, loc="left", fontweight="bold", fontsize="large")
    axis.set_xlabel("iteration")
    axis.xaxis.set_major_formatter("{x:,.0f}")  # 4000 as "4,000"
    locator: Any = axis.xaxis.get_major_locator()  # a MaxNLocator, by default
    locator.set_params(integer=True)  # no tick between two iterations
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


# The running mean of a curve takes a window of a twentieth of all entries, but at least 3 and at
# most 200. The mean is then smooth enough to compare runs, and still shows a change.
WINDOWS_IN_A_CURVE = 20
LEAST_WINDOW = 3  # entries
MOST_WINDOW = 200  # entries


def running_mean(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, int]:
    """Return the centred running mean (n,), and the number of entries in its window.

    The window of entry i has the entries i - half ... i + half. At the ends of the curve the window
    is shorter. E.g. with half = 1, [1, 2, 6] has the means [1.5, 3, 4]. NaN and Inf do not count. A
    window without finite entries has the mean NaN.

    values: (n,).

    Test: test_the_smoothed_curve_is_a_running_mean_that_leaves_nan_out.
    """
    y = np.asarray(values, float)
    n = len(y)
    wanted_window = int(np.clip(n // WINDOWS_IN_A_CURVE, LEAST_WINDOW, MOST_WINDOW))
    # The window is centred, so it has an odd number of entries. E.g. with 1000 entries, 50 are
    # wanted, and the window has 25 + 1 + 25 = 51.
    half = wanted_window // 2  # entries on each side of the middle
    window = 2 * half + 1

    # sums[i] is the sum of the first i entries, counts[i] the number of finite entries among them.
    # Both have n + 1 elements, and begin with 0.
    is_finite = np.isfinite(y)
    finite_or_zero = np.where(is_finite, y, 0.0)
    sums = np.concatenate(([0.0], np.cumsum(finite_or_zero)))
    counts = np.concatenate(([0.0], np.cumsum(is_finite)))

    # The window of each entry: first ... end - 1, within the curve. E.g. with half = 1 and 4
    # entries, first is [0, 0, 1, 2] and end is [2, 3, 4, 4].
    index = np.arange(n)
    first = np.clip(index - half, 0, None)
    end = np.clip(index + half + 1, None, n)

    # The sum over a window is a difference of two cumulative sums.
    sum_of_window = sums[end] - sums[first]
    count_of_window = counts[end] - counts[first]
    # If a window has no finite entry, its count is 0. Divide by 1, and return NaN for this window.
    mean = sum_of_window / np.maximum(count_of_window, 1)
    return np.where(count_of_window > 0, mean, np.nan), window

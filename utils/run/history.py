"""The history of a run (its numbers over the steps), its curves, and its report.html.

The history is kept in two files. NaN and Inf are null in them, because JSON has neither.

* training_history.jsonl has a line for each entry, in the order of the steps:
  `{"step": 100, "train/loss": 0.0234, "train/lr": 0.0004}`
* training_history.json has a curve for each scalar, as pairs of step and value:
  `{"train/loss": [[100, 0.0234], [200, 0.0229]], "train/lr": [...]}`

The .jsonl is the source: the .json is written from it, and can be made anew at any time.

A tag is the name of a scalar, e.g. "train/loss". An entry has the scalars that were logged together
at one step. A curve is one scalar over all steps.

`HistoryWriter` is one of the writers of a run (utils.run.writers). It appends lines, and after each
validation it writes the .json, curves.png and report.html anew. scripts/compare_runs.py uses
`read_history`, `run_names` and the functions that draw.

What must stay: the form of both files and the tags. Users' own scripts read them, and resumed runs
read files of earlier versions (test_a_run_of_an_older_version_is_read,
test_a_resume_drops_later_entries_once_and_doubles_no_step). Free to change: figures and report.

Tests: tests/parts/utils/test_history.py, tests/parts/utils/test_results.py.
"""

import io
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from utils.errors import DataError
from utils.files import natural_key, open_kept, write_whole
from utils.image import ERROR, data_uri, imread_rgb, panels_of, render
from utils.logger import WARNINGS_NAME, best_effort

logger = logging.getLogger(__name__)

LINES_NAME = "training_history.jsonl"
HISTORY_NAME = "training_history.json"
REPORT_NAME = "report.html"
CURVES_NAME = "curves.png"
ENVIRONMENT_NAME = "environment.json"
# A file in images/. A strip is a row of pictures (panels), e.g. input, restored, sharp. The file
# lists their titles from left to right.
PANELS_NAME = "panels.json"

# {"train/loss": [[step, value], ...], ...}; a value that is not finite is NaN.
History = dict[str, list[list[float]]]

# The running mean of a curve takes a window of a twentieth of all entries, but at least 3 and at
# most 200. The mean is then smooth enough to compare runs, and still shows a change.
WINDOWS_IN_A_CURVE = 20
LEAST_WINDOW = 3  # entries
MOST_WINDOW = 200  # entries
# Margins of the figure of one run, in parts of its width and height. The figure is written after
# each validation. If matplotlib computed its margins, the figure would take twice as long.
MARGINS = {
    "left": 0.07,
    "bottom": 0.075,
    "right": 0.94,
    "top": 0.945,
    "wspace": 0.2,
    "hspace": 0.32,
}
GREY = "0.35"  # matplotlib's name of a dark grey, where "0" is black and "1" is white
# Width of a strip on the report page, in pixels. At most 12 clips have strips. At this width a page
# has about 5 MB, and never more than 16 MB.
STRIP_WIDTH = 640
# The numbers of newest validations and of newest warnings that the page shows. With larger numbers
# a reader would have to scroll to the figures below them.
SHOWN_ROWS = 50
SHOWN_WARNINGS = 40


# ---- Writing the history ---------------------------------------------------------------------


class HistoryWriter:
    """Writes the history of a run, and after each validation its curves and its report.

    An entry is appended to the file at once, so a killed process loses at most the line that it is
    writing. The time to append does not grow with the file.
    """

    def __init__(self, folder: Path, start: int) -> None:
        """folder: the folder of the run.
        start: step of the checkpoint that the run resumes from, or 0 for a fresh start.
        """
        self.folder = folder
        self.file = folder / LINES_NAME
        self.resumed_step = start
        # A resumed run repeats the steps after its checkpoint, so it writes their entries again.
        # The earlier entries of these steps are removed before the first new entry is written.
        # True after that.
        self.are_repeated_removed = False
        self.is_report_old = False  # whether curves and report lack the newest entry

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Append an entry. values: tag -> value, e.g. "train/loss" -> 0.0234."""
        self.is_report_old = True
        with best_effort(str(self.file)):
            # Before the first new entry, remove the entries that will be written again.
            if not self.are_repeated_removed:
                earlier = self._entries_that_stay(values, step)
                write_whole(self.file, b"".join(map(_line, earlier)))
                self.are_repeated_removed = True
            entry: dict[str, Any] = {"step": step}
            for tag, value in values.items():
                entry[tag] = float(value) if math.isfinite(value) else None
            self._append(_line(entry))
        # Only the entry of a validation has this tag. Drawing after each entry would take too long.
        if "val/psnr" in values:
            self._update_report()

    def _entries_that_stay(self, values: Mapping[str, float], step: int) -> list[dict[str, Any]]:
        """Return the entries in the file that this run of the program does not write again.

        The program resumes from a checkpoint, so it repeats all later steps and writes their
        entries again. It may also repeat the validation at the step of the checkpoint. This happens
        if the earlier run of the program wrote the entry of the validation and was killed before it
        saved the checkpoint with the score. E.g. the checkpoint has step 200, and the first new
        entry is the validation of step 200. These entries of the file

            {"step": 100, "train/loss": ...}   stays
            {"step": 200, "train/loss": ...}   stays: the new entry has no "train/loss"
            {"step": 200, "val/psnr": ...}     is left out: the new entry replaces it
            {"step": 300, "train/loss": ...}   is left out: step 300 comes again

        values: scalars of the first new entry.
        step: step of this entry, the step of the checkpoint or a later one.

        Tests: test_a_resume_drops_later_entries_once_and_doubles_no_step,
        test_a_validation_that_is_repeated_at_the_step_of_the_resume_replaces_the_former_one.
        """
        if not self.resumed_step:
            return []  # a fresh start keeps no entry
        # Old versions of this program wrote only the .json.
        earlier_file = self.file if self.file.is_file() else self.folder / HISTORY_NAME
        if not earlier_file.is_file():
            return []
        entries = _entries(earlier_file)
        broken_count = entries.count(None)
        if broken_count:
            text = "%s: %d lines are no entries and are left out"
            logger.warning(text, earlier_file, broken_count)
        remaining_entries = []
        for entry in entries:
            if entry is None or entry["step"] > self.resumed_step:
                continue
            # The earlier entry is not after resumed_step, and the new entry is not before it. So >=
            # is true only if both are at resumed_step.
            is_same_step = entry["step"] >= step
            # A step may have two entries: a log line and a validation. The earlier entry is written
            # again only if the new entry has a scalar of the same name.
            has_same_scalar = any(tag in entry for tag in values)
            if not (is_same_step and has_same_scalar):
                remaining_entries.append(entry)
        return remaining_entries

    def _append(self, line: bytes) -> None:
        """Append the whole line, or nothing of it. Raises OSError if the line cannot be written.

        Test: test_a_full_disk_cuts_no_line_and_later_entries_are_written_again.
        """
        # `open_kept` writes without a buffer, so `write` returns how many bytes are in the file. It
        # does not follow a link that somebody has made.
        with open_kept(self.file, "ab") as file:
            # If the disk gets full in the middle of the line, cut the file back to this size.
            size = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise

    def close(self) -> None:
        """Bring the report up to date at the end of a run. No file stays open in between."""
        self._update_report()

    def _update_report(self) -> None:
        """Bring curves, report and training_history.json up to date."""
        if not self.is_report_old:
            return
        self.is_report_old = False
        # `best_effort` logs an error and goes on, by default after OSError and DataError. Here it
        # catches every Exception, because an error in a plot must not end the run.
        with best_effort("the report of the run", Exception):
            history = read_history(self.folder)
            # The name of the run is "", because the legend of a single run shows no name.
            curves = encode(draw_panels({"": history}))
            page = build_report(self.folder, history, curves)
            write_whole(self.folder / HISTORY_NAME, _as_json(history))
            write_whole(self.folder / CURVES_NAME, curves)
            write_whole(self.folder / REPORT_NAME, page.encode())


def _line(entry: dict[str, Any]) -> bytes:
    """Return an entry as a line of the .jsonl. Raises ValueError for NaN and Inf."""
    return f"{json.dumps(entry, allow_nan=False)}\n".encode()


def _as_json(history: History) -> bytes:
    """Return a history as training_history.json: NaN becomes null."""
    plain: dict[str, list[list[float | None]]] = {}
    for tag, curve in history.items():
        plain[tag] = []
        for step, value in curve:
            plain[tag].append([step, value if math.isfinite(value) else None])
    return json.dumps(plain, allow_nan=False).encode()


# ---- Reading the history ---------------------------------------------------------------------


def training_scalars(folder: Path, step: int) -> dict[str, float]:
    """Return the scalars of training (tags without "val/") that the history has for `step`.

    E.g. {"train/loss": 0.0234, "train/lr": 0.0004}. Returns {} without a history.
    """
    path = folder / LINES_NAME
    if not path.is_file():
        return {}
    # A step may have several entries: a log line, and a validation.
    entry_of_step: dict[str, Any] = {}
    for entry in _entries(path):
        if entry is not None and entry["step"] == step:
            entry_of_step.update(entry)
    scalars = {}
    for tag, value in entry_of_step.items():
        if tag != "step" and not tag.startswith("val/"):
            scalars[tag] = math.nan if value is None else value
    return scalars


def read_history(run: Path) -> History:
    """Return the history of a run.

    run: the folder of the run, or one of its two files. Old runs have only the .json.

    Raises DataError if there is no such file, or if it is no history.
    """
    path = run
    if run.suffix not in (".json", ".jsonl"):
        path = run / LINES_NAME
        if not path.is_file() and (run / HISTORY_NAME).is_file():
            path = run / HISTORY_NAME
    if not path.is_file():
        raise DataError(
            what=f"no {path}",
            where="the command line",
            expected=f"the folder of a run, or its {LINES_NAME} or {HISTORY_NAME}",
            do="correct the path",
        )
    history: History = {}
    for line_number, entry in enumerate(_entries(path), 1):
        if entry is None:
            raise _no_history(f"line {line_number} is no entry", path)
        step = entry.pop("step")
        for tag, value in entry.items():
            if not isinstance(value, int | float | None):
                raise _no_history(f"{tag} is {value!r} at step {step}", path)
            scalar = math.nan if value is None else value
            curve = history.setdefault(tag, [])
            curve.append([step, scalar])
    return history


def _entries(path: Path) -> list[dict[str, Any] | None]:
    """Return the entries of a file of a history, in the order of their steps.

    A line of a .jsonl that is no entry becomes None, so that the caller can count or number such
    lines. A last line without an end of line is left out, because the run is still writing it, or
    was killed while it wrote.
    """
    if path.suffix == ".jsonl":
        # The last item of the split is the text behind the last end of line: no complete line.
        lines = path.read_bytes().split(b"\n")[:-1]
        return [_entry_of(line) for line in lines]
    # A .json. An error of any kind here means that the file has another form.
    try:
        # Older versions wrote NaN, which is no JSON. json calls parse_constant for NaN and Inf.
        curves = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        # From a curve for each scalar to an entry for each step.
        entry_at: dict[int, dict[str, Any]] = {}
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
    """Return the error of a file that is no history. what: what is wrong with it."""
    return DataError(
        what=what,
        where=str(path),
        expected=f"{HISTORY_NAME} or {LINES_NAME}, as a run writes them",
        do="give another run, or a copy of the file",
    )


def folder_of(run: Path) -> Path:
    """Return the folder of a run that is given as its folder or as one of its two files."""
    return run.parent if run.suffix in (".json", ".jsonl") else run


def run_names(runs: list[Path]) -> list[str]:
    """Return a short, unique name of each run, for figures and tables.

    The name is the last part of the folder's path, with as many parents in front as make it unique.
    E.g. the folders /a/x/run and /a/y/run are called "x/run" and "y/run".

    Raises DataError if a run is given twice.
    """
    all_parts = [folder_of(run).resolve().parts for run in runs]  # e.g. ("/", "a", "x", "run")
    names = []
    for parts in all_parts:
        # Take the last part, then the last two parts, ..., until no other folder ends with them. A
        # run that is given twice is no other folder. Its name comes twice, which is refused below.
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


# ---- Curves ----------------------------------------------------------------------------------
#
# No program reads a figure, so what is drawn, and how, may be changed freely. `running_mean` has
# tests of its own in test_history.py.


def draw_panels(histories: Mapping[str, History]) -> Any:
    """Draw four panels over the iteration: loss, PSNR, learning rate, speed.

    Returns a figure of matplotlib. The report of a run has one history, a comparison of runs has
    several.

    histories: name of the run -> its history.
    """
    is_one_run = len(histories) == 1
    titles = ("loss", "PSNR, dB", "learning rate", "speed")
    # If there are several runs, their names stand above the panels. They need unknown room, so
    # matplotlib computes the margins.
    margins = MARGINS if is_one_run else None
    figure, axes = _empty_figure(histories, titles, columns=2, size=(6, 3.75), margins=margins)
    loss, psnr, rate, speed = axes
    _draw_loss(loss, histories)
    _draw_psnr(psnr, histories)
    for curve in _curves(histories, "train/lr"):
        rate.plot(curve.steps, curve.values, color=curve.colour, linewidth=1.8)
    # A learning rate such as 0.0004 is written with a power of ten.
    rate.ticklabel_format(axis="y", scilimits=(-2, 3))
    rate.set_ylim(bottom=0)
    _draw_speed(speed, histories)

    # If a panel has no curve, write in its middle which scalar is missing. The tags are in the
    # order of the panels.
    tags = ("train/loss", "val/psnr", "train/lr", "train/it_per_s")
    for axis, tag in zip(axes, tags, strict=True):
        if not axis.lines:
            # With transAxes, (0.5, 0.5) is the middle of the panel, and not step 0.5, value 0.5.
            style = {"transform": axis.transAxes, "ha": "center", "va": "center", "color": GREY}
            axis.text(0.5, 0.5, f"no {tag} yet", **style)

    # Put each legend at a place where such curves seldom are: a loss falls, so its upper right is
    # empty. matplotlib could search for an empty place, but with many entries this takes long.
    _draw_legend(loss, "upper right", is_one_run)
    _draw_legend(psnr, "center right", is_one_run)
    _draw_legend(speed, "center left", is_one_run)
    return figure


def _draw_loss(axis: Any, histories: Mapping[str, History]) -> None:
    """Draw each entry of the loss as a thin line, and its running mean as a thick one."""
    means: list[float] = []
    for curve in _curves(histories, "train/loss"):
        mean, window = running_mean(curve.values)
        # The window depends on the number of entries, so several runs have several windows.
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
        # One run: its two curves have two colours. Several runs: each run has one colour, so that
        # the reader can tell the runs apart.
        colour = "C1" if len(histories) == 1 else curve.colour
        dotted_style = {"color": colour, "linestyle": ":"}
        waits.plot(curve.steps, 100 * curve.values, **dotted_style)
        # The legend belongs to the first axis, so draw an empty curve there for its entry.
        axis.plot([], [], label="data wait", **dotted_style)


def _draw_legend(axis: Any, place: str, is_one_run: bool) -> None:
    """Draw a legend with each label once.

    place: one of matplotlib's names of places, e.g. "upper right".
    is_one_run: whether the figure shows only one run. With several runs each run has its own
        colour. Then a line in the legend stands for all runs, so it is grey.
    """
    lines, labels = axis.get_legend_handles_labels()
    # Label -> line. If several runs have a line with the same label, the last line stays.
    line_of = dict(zip(labels, lines, strict=True))
    if not line_of:
        return
    legend = axis.legend(
        line_of.values(), line_of.keys(), loc=place, fontsize="small", framealpha=0.8
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
    figure, axes = _empty_figure(histories, tags, columns=columns, size=(4.5, 3))
    for axis, tag in zip(axes, tags, strict=True):
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


def running_mean(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, int]:
    """Return the centred running mean (n,), and the number of entries in its window.

    The window of entry i has the entries i - half ... i + half. At the ends of the curve the window
    is shorter. NaN and Inf do not count. A window without finite entries has the mean NaN.

    values: (n,).

    Test: test_the_smoothed_curve_is_a_running_mean_that_leaves_nan_out.
    """
    y = np.asarray(values, float)
    n = len(y)
    # A twentieth of the entries, but at least 3 and at most 200: 1000 entries -> 50.
    wanted_window = int(np.clip(n // WINDOWS_IN_A_CURVE, LEAST_WINDOW, MOST_WINDOW))
    # The window is centred, so it has an odd number of entries: 50 -> 25 + 1 + 25 = 51.
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

    # The sum over a window is the sum up to its end, less the sum before it.
    sum_of_window = sums[end] - sums[first]
    count_of_window = counts[end] - counts[first]
    # A window without finite entries has the count 0. Divide by 1 there, and give NaN afterwards.
    mean = sum_of_window / np.maximum(count_of_window, 1)
    return np.where(count_of_window > 0, mean, np.nan), window


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
            # matplotlib has ten colours, "C0" to "C9". Run 10 has the colour of run 0 again.
            yield _Curve(steps=table[:, 0], values=table[:, 1], colour=f"C{number % 10}")


def _empty_figure(
    histories: Mapping[str, History],
    titles: Sequence[str],
    columns: int,
    size: tuple[float, float],
    margins: dict[str, float] | None = None,
) -> tuple[Any, list[Any]]:
    """Return a figure and its empty panels (axes of matplotlib), one for each title.

    If there are several runs, their names stand above the panels.

    titles: titles of the panels.
    columns: number of panels beside each other.
    size: width and height of a panel in inches.
    margins: MARGINS, or None to let matplotlib compute the margins, which takes longer.
    """
    # Import matplotlib here and not at the top of this file, because it takes long to load and most
    # programs draw nothing. Use Figure and not pyplot, because pyplot wants a display.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = math.ceil(len(titles) / columns)
    width, height = size
    figure = Figure(
        figsize=(width * columns, height * rows), layout=None if margins else "constrained"
    )
    if margins:
        figure.subplots_adjust(**margins)
    axes = [figure.add_subplot(rows, columns, number) for number in range(1, len(titles) + 1)]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, loc="left", fontweight="bold", fontsize="large")
        axis.set_xlabel("iteration")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        locator: Any = axis.xaxis.get_major_locator()  # a MaxNLocator, by default
        locator.set_params(integer=True)  # no tick between two iterations
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    if len(histories) > 1:
        lines = []
        for number in range(len(histories)):
            lines.append(Line2D([], [], color=f"C{number % 10}", linewidth=3))
        columns_of_names = min(4, len(histories))
        figure.legend(lines, list(histories), loc="outside upper center", ncols=columns_of_names)
    return figure, axes


# ---- Report ----------------------------------------------------------------------------------


def further_metrics(tags: Iterable[str]) -> list[str]:
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


def _values_by_step(history: History, tag: str) -> dict[float, float]:
    """Return step -> value of a scalar. If a step has several values, the last value counts."""
    column: dict[float, float] = {}
    for step, value in history.get(tag, []):
        column[step] = value
    return column


def build_report(folder: Path, history: History, curves: bytes) -> str:
    """Return the report of a run as one HTML page, which needs no other file.

    The page is made from templates/run.html. A new argument of `render` is a new variable there.
    Words and order of the page are free to change. What must be on it is in test_results.py
    (test_the_page_of_a_run_shows_its_scores, and the tests after it).

    folder: the folder of the run.
    history: the history of the run.
    curves: the figure of `draw_panels` as the bytes of a PNG.
    """
    own_metrics = further_metrics(history)
    psnr_at = _values_by_step(history, "val/psnr")
    steps = list(psnr_at)  # the steps with a validation
    finite_psnr_at = {step: psnr for step, psnr in psnr_at.items() if math.isfinite(psnr)}
    best_step = None
    if finite_psnr_at:
        best_step = max(finite_psnr_at, key=lambda step: finite_psnr_at[step])

    # The rows: the newest validations, and the best validation. The newest comes first. If no
    # validation has a finite PSNR, best_step is None, which equals no step.
    shown_steps = {best_step, *steps[-SHOWN_ROWS:]}
    newest_first = [step for step in reversed(steps) if step in shown_steps]
    rows = _validation_rows(history, newest_first, metrics=("psnr", "ssim", *own_metrics))

    environment: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # without this file, the page is made without its table
        environment = json.loads((folder / ENVIRONMENT_NAME).read_text(encoding="utf-8"))
    return render(
        "run",
        title=f"Training: {folder.resolve().name}",
        state=_state_in_words(history, finite_psnr_at, best_step),
        curves=data_uri("image/png", curves),
        warnings=_warnings_once(folder / WARNINGS_NAME),
        shown_warnings=SHOWN_WARNINGS,
        validations=rows,
        further_metrics=own_metrics,
        best=best_step,
        left_out=len(steps) - len(rows),
        clips=_panels_of_step(folder / "images", steps[-1]) if steps else {},
        strip_width=STRIP_WIDTH,
        environment=environment,
        options=newest_options(folder / "options"),
    )


class _Score(NamedTuple):
    """The value of a metric in a validation, NaN if it is missing."""

    restored: float  # of the restored frames
    input: float  # of the blurry input


class _ValidationRow(NamedTuple):
    """A row of the table of validations. The page templates/run.html reads these names."""

    step: float
    scores: dict[str, _Score]  # name of a metric -> its values, e.g. "psnr" -> (31.2, 25.0)


def _validation_rows(
    history: History, steps: Sequence[float], metrics: Sequence[str]
) -> list[_ValidationRow]:
    """Return a row of the table of validations for each step."""
    restored = {name: _values_by_step(history, f"val/{name}") for name in metrics}
    blurry = {name: _values_by_step(history, f"val/{name}_input") for name in metrics}
    rows = []
    for step in steps:
        scores = {}
        for name in metrics:
            scores[name] = _Score(
                restored=restored[name].get(step, math.nan),
                input=blurry[name].get(step, math.nan),
            )
        rows.append(_ValidationRow(step, scores))
    return rows


def _state_in_words(
    history: History, psnr_at: Mapping[float, float], best_step: float | None
) -> str:
    """Return the state of the run, e.g. "iteration 4,000; loss 0.0213; PSNR 31.20 dB, best ...".

    psnr_at: step -> PSNR of its validation. All values are finite.
    best_step: the step with the best PSNR, or None if there is none.
    """
    if history:
        # The last pair of each curve has its newest step.
        newest_step = max(curve[-1][0] for curve in history.values())
        state = [f"iteration {newest_step:,}"]
    else:
        state = ["no entry yet"]
    losses = history.get("train/loss")
    if losses:
        _, loss = losses[-1]
        state.append(f"loss {loss:.4f}")
    if best_step is not None:
        last = list(psnr_at.values())[-1]
        best = psnr_at[best_step]
        state.append(f"PSNR {last:.2f} dB, best {best:.2f} dB at iteration {best_step:,}")
    return "; ".join(state)


class _Warning(NamedTuple):
    """A warning of the run. The page templates/run.html reads these names."""

    text: str  # e.g. "the disk is nearly full"
    time: str  # of its last occurrence, e.g. "2026-11-27 12:03:55"
    times: int  # number of its occurrences


def _warnings_once(recorded: Path) -> list[_Warning]:
    """Return the warnings of a run, each once. The warning that occurred last comes last.

    Test: test_the_page_of_a_run_shows_a_repeated_warning_once.

    recorded: the file of warnings of the run. Each line is a record {"time": ..., "text": ...}.
    """
    lines = recorded.read_text(encoding="utf-8").splitlines() if recorded.is_file() else []
    warnings: dict[str, _Warning] = {}  # text -> its warning
    for line in lines:
        # A line is no JSON if the process was killed while it wrote the line.
        with suppress(ValueError):
            record = json.loads(line)
            text = record["text"]
            times = 1
            if text in warnings:
                # Remove the text, so that it is put at the end below, where the newest warning is.
                times += warnings.pop(text).times
            warnings[text] = _Warning(text, record["time"], times)
    return list(warnings.values())


def _panels_of_step(images: Path, step: float) -> dict[str, dict[str, np.ndarray]]:
    """Return the pictures of a validation: clip -> title -> picture.

    A file has the pictures (panels) of one clip side by side, e.g. blurry, restored, sharp. The
    panel with the error of the restored frame is left out.

    images: the folder `images` of the run, with files <clip>/<step>.png.
    step: the step of the validation.
    """
    clips: dict[str, dict[str, np.ndarray]] = {}
    # If a picture is missing or damaged, the page is made with the pictures before it.
    with suppress(OSError, ValueError, DataError):
        titles = json.loads((images / PANELS_NAME).read_text(encoding="utf-8"))
        for file in sorted(images.rglob(f"{step}.png"), key=natural_key):
            panels = panels_of(imread_rgb(file), titles)
            panels.pop(ERROR, None)
            clip = file.parent.relative_to(images).as_posix()
            clips[clip] = panels
    return clips


def newest_options(folder: Path) -> Path | None:
    """Return the options that a run was started with last, or None if the folder holds none."""
    return max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)

"""What a run leaves to judge it by: its history, the curves of it, and report.html.

The history is training_history.jsonl, a line {"step": 100, "train/loss": 0.0234, ...} per entry,
and training_history.json, the whole, {"train/loss": [[100, 0.0234], ...], ...}. Both are valid
JSON: NaN and Inf are null.
"""

import io
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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
PANELS_NAME = "panels.json"  # in images/: names of the panels of a strip, from left to right

# {"train/loss": [[step, value], ...], ...}; a value that is not finite is NaN.
History = dict[str, list[list[float]]]

# A running mean over a twentieth of the entries: smooth enough to compare runs, short enough to
# show a change.
SMOOTHED_SHARE = 20
SMOOTHED_LEAST = 3
SMOOTHED_MOST = 200
# Of the figure of one run, written after each validation: to have them computed doubles its time.
MARGINS = {
    "left": 0.07,
    "bottom": 0.075,
    "right": 0.94,
    "top": 0.945,
    "wspace": 0.2,
    "hspace": 0.32,
}
GREY = "0.35"
# At most 12 clips have strips; at this width a page takes about 5 MB, and never more than 16.
STRIP_WIDTH = 640
# On the page, the newest ones.
SHOWN_ROWS = 50
SHOWN_WARNINGS = 40


class HistoryWriter:
    """Writes the history of a run, and after each validation its curves and its report.

    An entry is appended at once, at the same cost at any length of the file: a process that dies
    loses at most the line that it is writing.

    start: step of the checkpoint that the run resumes from, or 0.
    """

    def __init__(self, folder: Path, start: int) -> None:
        self.folder = folder
        self.file = folder / LINES_NAME
        self.start = start
        self.is_ready = False  # whether the file has the earlier entries that are kept
        self.is_behind = False  # whether curves and report lack an entry

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Append an entry."""
        self.is_behind = True
        with best_effort(str(self.file)):
            if not self.is_ready:
                kept = self._kept_entries(values, step)
                write_whole(self.file, b"".join(map(_line, kept)))
                self.is_ready = True
            entry: dict[str, Any] = {"step": step}
            for tag, value in values.items():
                entry[tag] = float(value) if math.isfinite(value) else None
            self._append(_line(entry))
        if "val/psnr" in values:
            self.close()

    def _kept_entries(self, values: Mapping[str, float], step: int) -> list[dict[str, Any]]:
        """Return the entries of earlier starts, without what this run writes again.

        It repeats the steps after its start, and a validation that was killed after its entry and
        before its save. values, step: the first entry of this start.
        """
        if not self.start:
            return []
        # An older version wrote the .json alone.
        older = self.file if self.file.is_file() else self.folder / HISTORY_NAME
        if not older.is_file():
            return []
        entries = _entries(older)
        broken = entries.count(None)
        if broken:
            logger.warning("%s: %d lines are no entries and are left out", older, broken)
        kept = []
        for entry in entries:
            if entry and entry["step"] <= self.start:
                is_another = entry["step"] < step or entry.keys().isdisjoint(values)
                if is_another:
                    kept.append(entry)
        return kept

    def _append(self, line: bytes) -> None:
        """Append all of the line, or nothing of it. Raises OSError."""
        with open_kept(self.file, "ab") as file:
            size = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise

    def close(self) -> None:
        """Bring curves, report and training_history.json up to date."""
        if not self.is_behind:
            return
        self.is_behind = False
        # A fault of the plot does not cost the history either.
        with best_effort("the report of the run", Exception):
            history = read_history(self.folder)
            curves = encoded(draw_panels({"": history}))
            plain: dict[str, list[list[float | None]]] = {}
            for tag, curve in history.items():
                plain[tag] = [[x, y if math.isfinite(y) else None] for x, y in curve]
            page = build_report(self.folder, history, curves)
            write_whole(self.folder / HISTORY_NAME, json.dumps(plain, allow_nan=False).encode())
            write_whole(self.folder / CURVES_NAME, curves)
            write_whole(self.folder / REPORT_NAME, page.encode())


def _line(entry: dict[str, Any]) -> bytes:
    return f"{json.dumps(entry, allow_nan=False)}\n".encode()


def training_scalars(folder: Path, step: int) -> dict[str, float]:
    """Return what the history in `folder` records of `step`, without its validation."""
    path = folder / LINES_NAME
    if not path.is_file():
        return {}
    found: dict[str, float] = {}
    for entry in _entries(path):
        if entry is not None and entry["step"] == step:
            found |= entry
    return {
        tag: math.nan if value is None else value
        for tag, value in found.items()
        if tag != "step" and not tag.startswith("val/")
    }


def read_history(run: Path) -> History:
    """Return the history of a run, given as its folder or as one of its two files.

    Old runs have the .json alone. Raises DataError.
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
    for number, entry in enumerate(_entries(path), 1):
        if entry is None:
            raise _no_history(f"line {number} is no entry", path)
        step = entry.pop("step")
        for tag, value in entry.items():
            if not isinstance(value, int | float | None):
                raise _no_history(f"{tag} is {value!r} at step {step}", path)
            history.setdefault(tag, []).append([step, math.nan if value is None else value])
    return history


def _entries(path: Path) -> list[dict[str, Any] | None]:
    """Return the entries of a file of a history, in the order of their steps.

    An entry is None for a line of a .jsonl that is no entry. A last line that is not complete,
    because the run is writing it or was killed in it, does not count.
    """
    if path.suffix == ".jsonl":
        lines = path.read_bytes().split(b"\n")[:-1]
        return [_entry_of(line) for line in lines]
    try:
        # Older versions wrote NaN.
        whole = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        steps: dict[int, dict[str, Any]] = {}
        for tag, curve in whole.items():
            for step, value in curve:
                steps.setdefault(step, {"step": step})[tag] = value
        return [steps[step] for step in sorted(steps)]
    except (ValueError, TypeError, AttributeError) as e:
        raise _no_history(f"no history: {e}", path) from e


def _entry_of(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    is_entry = isinstance(entry, dict) and isinstance(entry.get("step"), int)
    return entry if is_entry else None


def _no_history(what: str, path: Path) -> DataError:
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
    """Return what a figure or table calls each run.

    This is the name of its folder, with as many parents as tell the folders apart.
    Raises DataError if a run is given twice.
    """
    paths = [folder_of(run).resolve().parts[::-1] for run in runs]  # the folder's name first
    names = []
    for parts in paths:
        others = [other for other in paths if other != parts]
        count = 1
        while any(other[:count] == parts[:count] for other in others):
            count += 1
        names.append("/".join(parts[:count][::-1]))
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


def draw_panels(histories: Mapping[str, History]) -> Any:
    """Draw four panels over the iteration: loss, PSNR, learning rate, speed.

    histories: name of the run -> its history.
    """
    is_one = len(histories) == 1
    titles = ("loss", "PSNR, dB", "learning rate", "speed")
    figure, axes = _empty_figure(histories, titles, 2, (6, 3.75), MARGINS if is_one else None)
    loss, psnr, rate, speed = axes
    _draw_loss(loss, histories)
    _draw_psnr(psnr, histories)
    for x, y, colour in _curves(histories, "train/lr"):
        rate.plot(x, y, color=colour, linewidth=1.8)
    rate.ticklabel_format(axis="y", scilimits=(-2, 3))
    rate.set_ylim(bottom=0)
    _draw_speed(speed, histories)

    tags = ("train/loss", "val/psnr", "train/lr", "train/it_per_s")
    for axis, tag in zip(axes, tags, strict=True):
        if not axis.lines:
            where = {"transform": axis.transAxes, "ha": "center", "va": "center"}
            axis.text(0.5, 0.5, f"no {tag} yet", color=GREY, **where)
    # Places where curves seldom are; to search for an empty one takes long with many entries.
    for axis, place in ((loss, "upper right"), (psnr, "center right"), (speed, "center left")):
        _draw_legend(axis, place, is_one)
    return figure


def _draw_loss(axis: Any, histories: Mapping[str, History]) -> None:
    means: list[float] = []
    for x, y, colour in _curves(histories, "train/loss"):
        mean, window = smoothed(y)
        label = f"mean of {window} entries" if len(histories) == 1 else "running mean"
        axis.plot(x, y, color=colour, linewidth=0.6, alpha=0.35, label="each entry")
        axis.plot(x, mean, color=colour, linewidth=2.2, label=label)
        means.extend(mean[np.isfinite(mean)])
    if means and min(means) > 0 and max(means) > 10 * min(means):
        axis.set_yscale("log")


def _draw_psnr(axis: Any, histories: Mapping[str, History]) -> None:
    star = {
        "linestyle": "",
        "marker": "*",
        "markersize": 14,
        "markeredgecolor": "white",
        "label": "best",
    }
    for x, y, colour in _curves(histories, "val/psnr"):
        axis.plot(x, y, color=colour, marker="o", markersize=3.5, label="restored")
        if not np.isfinite(y).any():
            continue
        best = int(np.nanargmax(np.where(np.isfinite(y), y, np.nan)))
        axis.plot(x[best], y[best], color=colour, **star)
        if len(histories) == 1:
            text = f"best {y[best]:.2f} at {x[best]:,.0f}"
            axis.set_title(text, loc="right", fontsize="medium", color=GREY)
    for x, y, colour in _curves(histories, "val/psnr_input"):
        axis.plot(x, y, color=colour, linestyle="--", label="blurry input")


def _draw_speed(axis: Any, histories: Mapping[str, History]) -> None:
    """Draw iterations per second and, on a second axis, the wait for data."""
    for x, y, colour in _curves(histories, "train/it_per_s"):
        axis.plot(x, y, color=colour, linewidth=1.2, label="iterations per second")
    if not axis.lines:
        return
    axis.set_ylim(bottom=0)
    axis.set_ylabel("iterations per second")
    waits = axis.twinx()
    waits.spines[["top"]].set_visible(False)
    waits.set(ylim=(0, 100), ylabel="data wait, % of the time")
    for x, y, colour in _curves(histories, "train/data_share"):
        wait = {"color": "C1" if len(histories) == 1 else colour, "linestyle": ":"}
        waits.plot(x, 100 * y, **wait)
        axis.plot([], [], label="data wait", **wait)  # for the legend


def _draw_legend(axis: Any, place: str, is_one: bool) -> None:
    """Draw a legend with each kind of line once, in grey if the colours are those of the runs."""
    lines, names = axis.get_legend_handles_labels()
    kinds = dict(zip(names, lines, strict=True))
    if not kinds:
        return
    legend = axis.legend(kinds.values(), kinds.keys(), loc=place, fontsize="small", framealpha=0.8)
    if not is_one:
        for line in legend.get_lines():
            line.set_color(GREY)


def draw_scalars(histories: Mapping[str, History]) -> Any:
    """Draw one panel per scalar over the iteration."""
    tags = sorted({tag for history in histories.values() for tag in history})
    figure, axes = _empty_figure(histories, tags, min(3, len(tags)), (4.5, 3))
    for axis, tag in zip(axes, tags, strict=True):
        for x, y, colour in _curves(histories, tag):
            axis.plot(x, y, color=colour)
    return figure


def encoded(figure: Any, kind: str = "png") -> bytes:
    """Return the figure as a file of an image format, e.g. "png", "svg", "pdf"."""
    from matplotlib import rc_context

    image = io.BytesIO()
    # Without it, a curve of 300,000 entries is refused as too complex.
    with rc_context({"agg.path.chunksize": 10000}):
        figure.savefig(image, dpi=100, format=kind)
    return image.getvalue()


def smoothed(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, int]:
    """Return the centred running mean (n,) and its number of entries.

    NaN is left out, and the window is shorter at the ends.
    """
    y = np.asarray(values, float)
    half = int(np.clip(len(y) // SMOOTHED_SHARE, SMOOTHED_LEAST, SMOOTHED_MOST)) // 2
    is_finite = np.isfinite(y)
    # Sums of the entries before each place.
    sums = np.concatenate(([0.0], np.cumsum(np.where(is_finite, y, 0.0))))
    counts = np.concatenate(([0.0], np.cumsum(is_finite)))
    first = np.clip(np.arange(len(y)) - half, 0, None)
    last = np.clip(np.arange(len(y)) + half + 1, None, len(y))
    count = counts[last] - counts[first]
    mean = (sums[last] - sums[first]) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan), 2 * half + 1


def _curves(
    histories: Mapping[str, History], tag: str
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Yield (steps, values, colour) of each run that has the scalar."""
    for number, history in enumerate(histories.values()):
        entries = history.get(tag)
        if entries:
            steps, values = np.asarray(entries, float).T
            yield steps, values, f"C{number % 10}"


def _empty_figure(
    histories: Mapping[str, History],
    titles: Sequence[str],
    columns: int,
    size: tuple[float, float],
    margins: dict[str, float] | None = None,
) -> tuple[Any, list[Any]]:
    """Return a figure and its empty panels of `size` (inches), one for each title.

    The names of the runs stand above the panels, if there are several.
    """
    # Not before a figure is drawn. Not pyplot, which wants a display.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = -(-len(titles) // columns)
    figure = Figure(
        figsize=(size[0] * columns, size[1] * rows), layout=None if margins else "constrained"
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
        lines = [
            Line2D([], [], color=f"C{number % 10}", linewidth=3) for number in range(len(histories))
        ]
        figure.legend(
            lines, list(histories), loc="outside upper center", ncols=min(4, len(histories))
        )
    return figure, axes


# ---- Report ----------------------------------------------------------------------------------


def further_metrics(tags: Iterable[str]) -> list[str]:
    """Return the names of the metrics of `metric.more` among the tags of a validation."""
    known = set(tags)
    names = [tag.removeprefix("val/") for tag in known if f"{tag}_input" in known]
    return sorted(set(names) - {"psnr", "ssim"})


def _by_step(history: History, tag: str) -> dict[float, float]:
    columns: dict[float, float] = {}
    for step, value in history.get(tag, []):
        columns[step] = value
    return columns


def build_report(folder: Path, history: History, curves: bytes) -> str:
    """Return one self-contained page on the run in `folder`. curves: a PNG."""
    further = further_metrics(history)
    columns = []
    for name in ("psnr", "ssim", *further):
        columns.append(_by_step(history, f"val/{name}"))
        columns.append(_by_step(history, f"val/{name}_input"))
    psnr = columns[0]
    steps = list(psnr)
    finite = {step: value for step, value in psnr.items() if math.isfinite(value)}
    best = max(finite, key=lambda step: finite[step]) if finite else None
    rows = []
    for step in reversed(steps):  # the newest first
        if step == best or step in steps[-SHOWN_ROWS:]:
            rows.append([step, *(column.get(step, math.nan) for column in columns)])
    environment: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # the page of a run without it is shown all the same
        environment = json.loads((folder / ENVIRONMENT_NAME).read_text(encoding="utf-8"))
    return render(
        "run",
        title=f"Training: {folder.resolve().name}",
        state=_state(history, finite, best),
        curves=data_uri("image/png", curves),
        warnings=_warnings(folder / WARNINGS_NAME),
        shown_warnings=SHOWN_WARNINGS,
        validations=rows,
        further_metrics=further,
        best=best,
        left_out=len(steps) - len(rows),
        clips=_panels(folder / "images", steps[-1]) if steps else {},
        strip_width=STRIP_WIDTH,
        environment=environment,
        options=newest_options(folder / "options"),
    )


def _state(history: History, psnr: Mapping[float, float], best: float | None) -> str:
    """Return where the run stands. psnr: step -> its PSNR. best: the step with the best one."""
    if history:
        newest = max(entries[-1][0] for entries in history.values())
        state = [f"iteration {newest:,}"]
    else:
        state = ["no entry yet"]
    losses = history.get("train/loss")
    if losses:
        state.append(f"loss {losses[-1][1]:.4f}")
    if best is not None:
        last = list(psnr.values())[-1]
        state.append(f"PSNR {last:.2f} dB, best {psnr[best]:.2f} dB at iteration {best:,}")
    return "; ".join(state)


def _warnings(recorded: Path) -> list[tuple[str, tuple[str, int]]]:
    """Return (text, (time of the last one, how often)) of each warning, the newest last."""
    warnings: dict[str, tuple[str, int]] = {}
    lines = recorded.read_text(encoding="utf-8").splitlines() if recorded.is_file() else []
    for line in lines:
        with suppress(ValueError):  # a line that was cut by a kill
            record = json.loads(line)
            _, count = warnings.pop(record["text"], ("", 0))
            warnings[record["text"]] = record["time"], count + 1
    return list(warnings.items())


def _panels(images: Path, step: float) -> dict[str, dict[str, np.ndarray]]:
    """Return clip -> the panels of its strip after `step`, without the error."""
    clips: dict[str, dict[str, np.ndarray]] = {}
    with suppress(OSError, ValueError, DataError):  # a page without them is shown all the same
        names = json.loads((images / PANELS_NAME).read_text(encoding="utf-8"))
        for file in sorted(images.rglob(f"{step}.png"), key=natural_key):
            panels = panels_of(imread_rgb(file), names)
            panels.pop(ERROR, None)
            clips[file.parent.relative_to(images).as_posix()] = panels
    return clips


def newest_options(folder: Path) -> Path | None:
    """Return the options that a run was started with last, or None if the folder holds none."""
    return max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)

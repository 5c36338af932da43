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

LINES_NAME, HISTORY_NAME = "training_history.jsonl", "training_history.json"
History = dict[
    str, list[list[float]]
]  # {"train/loss": [[step, value], ...], ...}; a value that is not finite is NaN
# A running mean over a twentieth of the entries: smooth enough to compare runs, short enough to
# show a change.
SMOOTHED_SHARE, SMOOTHED_LEAST, SMOOTHED_MOST = 20, 3, 200
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
REPORT_NAME, CURVES_NAME, ENVIRONMENT_NAME = "report.html", "curves.png", "environment.json"
# At most 12 clips have strips; at this width a page takes about 5 MB, and never more than 16.
STRIP_WIDTH = 640
SHOWN_ROWS, SHOWN_WARNINGS = 50, 40  # the newest ones
PANELS_NAME = "panels.json"  # in images/: names of the panels of a strip, from left to right


class HistoryWriter:
    """Writes the history of a run; after each validation and at the end also its curves and its
    report.

    An entry is appended at once, at the same cost at any length of the file: a process that dies
    loses at most the line that it is writing. start: step of the checkpoint that the run resumes
    from, or 0.
    """

    def __init__(self, folder: Path, start: int) -> None:
        self.folder, self.file, self.start = folder, folder / LINES_NAME, start
        self.is_ready, self.is_behind = False, False

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.is_behind = True
        with best_effort(str(self.file)):
            if not self.is_ready:
                # Keep no line that is no entry, and none that this run writes again: it repeats the
                # steps after its start, and a validation that was killed after its entry and before
                # its save.
                older = (
                    self.file if self.file.is_file() else self.folder / HISTORY_NAME
                )  # that of an older version
                entries = _entries(older) if self.start and older.is_file() else []
                if broken := entries.count(None):
                    logger.warning("%s: %d lines are no entries and are left out", older, broken)
                before = [entry for entry in entries if entry and entry["step"] <= self.start]
                kept = [
                    entry
                    for entry in before
                    if entry["step"] < step or entry.keys().isdisjoint(values)
                ]
                write_whole(self.file, b"".join(map(_line, kept)))
                self.is_ready = True
            finite = {
                tag: float(value) if math.isfinite(value) else None for tag, value in values.items()
            }
            line = _line({"step": step} | finite)
            with open_kept(self.file, "ab") as file:
                size = file.tell()
                try:
                    if file.write(line) < len(line):
                        raise OSError("the disk is full")
                except OSError:  # all of the line, or nothing of it
                    file.truncate(size)
                    raise
        if "val/psnr" in values:
            self.close()

    def close(self) -> None:
        """Bring curves, report and training_history.json up to date."""
        if not self.is_behind:
            return
        self.is_behind = False
        with best_effort(
            "the report of the run", Exception
        ):  # nor does a fault of the plot cost the history
            history = read_history(self.folder)
            curves = encoded(draw_panels({"": history}))
            plain = {
                tag: [[x, y if math.isfinite(y) else None] for x, y in curve]
                for tag, curve in history.items()
            }
            write_whole(self.folder / HISTORY_NAME, json.dumps(plain, allow_nan=False).encode())
            write_whole(self.folder / CURVES_NAME, curves)
            write_whole(
                self.folder / REPORT_NAME, build_report(self.folder, history, curves).encode()
            )


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
    """The history of a run (its folder, or one of its two files; old runs have the .json alone),
    else DataError.
    """
    path = run
    if run.suffix not in (".json", ".jsonl"):
        path = next(
            (file for name in (LINES_NAME, HISTORY_NAME) if (file := run / name).is_file()),
            run / LINES_NAME,
        )
    if not path.is_file():
        expected = f"the folder of a run, or its {LINES_NAME} or {HISTORY_NAME}"
        raise DataError(f"no {path}", "the command line", expected, "correct the path")
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
    """The entries of a file of a history by step; None for a line of a .jsonl that is none.

    A last line that is not complete, because the run is writing it or was killed in it, does not
    count.
    """
    if path.suffix == ".jsonl":
        entries: list[Any] = []
        for line in path.read_bytes().split(b"\n")[:-1]:
            entries.append(None)
            with suppress(ValueError):
                entries[-1] = json.loads(line)
        return [
            e if isinstance(e, dict) and isinstance(e.get("step"), int) else None for e in entries
        ]
    try:
        whole = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=lambda _: None
        )  # older versions wrote NaN
        steps: dict[int, dict[str, Any]] = {}
        for tag, curve in whole.items():
            for step, value in curve:
                steps.setdefault(step, {"step": step})[tag] = value
        return [steps[step] for step in sorted(steps)]
    except (ValueError, TypeError, AttributeError) as e:
        raise _no_history(f"no history: {e}", path) from e


def _no_history(what: str, path: Path) -> DataError:
    expected = f"{HISTORY_NAME} or {LINES_NAME}, as a run writes them"
    return DataError(what, str(path), expected, "give another run, or a copy of the file")


def folder_of(run: Path) -> Path:
    """The folder of a run that is given as its folder or as one of its two files."""
    return run.parent if run.suffix in (".json", ".jsonl") else run


def run_names(runs: list[Path]) -> list[str]:
    """What a figure or table calls each run: its folder's name, with as many parents as tell the
    folders apart.

    Raises DataError where a run is given twice.
    """
    paths, names = [folder_of(run).resolve().parts[::-1] for run in runs], []
    for parts in paths:
        others = [other for other in paths if other != parts]
        count = next(
            n for n in range(1, len(parts) + 1) if all(other[:n] != parts[:n] for other in others)
        )
        names.append("/".join(parts[:count][::-1]))
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(
            f"a run is given twice: {twice[0]}",
            "the command line",
            "each run once",
            "leave one out",
        )
    return names


def draw_panels(histories: Mapping[str, History]) -> Any:
    """Four panels over the iteration: loss, PSNR, learning rate, speed. histories: name of the run
    -> its history.
    """
    is_one = len(histories) == 1
    titles = ("loss", "PSNR, dB", "learning rate", "speed")
    figure, axes = _empty_figure(histories, titles, 2, (6, 3.75), MARGINS if is_one else None)
    loss, psnr, rate, speed = axes

    means: list[float] = []
    for x, y, colour in _curves(histories, "train/loss"):
        mean, window = smoothed(y)
        loss.plot(x, y, color=colour, linewidth=0.6, alpha=0.35, label="each entry")
        loss.plot(
            x,
            mean,
            color=colour,
            linewidth=2.2,
            label=f"mean of {window} entries" if is_one else "running mean",
        )
        means.extend(mean[np.isfinite(mean)])
    if means and min(means) > 0 and max(means) > 10 * min(means):
        loss.set_yscale("log")

    star = {
        "linestyle": "",
        "marker": "*",
        "markersize": 14,
        "markeredgecolor": "white",
        "label": "best",
    }
    for x, y, colour in _curves(histories, "val/psnr"):
        psnr.plot(x, y, color=colour, marker="o", markersize=3.5, label="restored")
        if np.isfinite(y).any():
            best = int(np.nanargmax(np.where(np.isfinite(y), y, np.nan)))
            psnr.plot(x[best], y[best], color=colour, **star)
            if is_one:
                psnr.set_title(
                    f"best {y[best]:.2f} at {x[best]:,.0f}",
                    loc="right",
                    fontsize="medium",
                    color=GREY,
                )
    for x, y, colour in _curves(histories, "val/psnr_input"):
        psnr.plot(x, y, color=colour, linestyle="--", label="blurry input")

    for x, y, colour in _curves(histories, "train/lr"):
        rate.plot(x, y, color=colour, linewidth=1.8)
    rate.ticklabel_format(axis="y", scilimits=(-2, 3))
    rate.set_ylim(bottom=0)

    for x, y, colour in _curves(histories, "train/it_per_s"):
        speed.plot(x, y, color=colour, linewidth=1.2, label="iterations per second")
    if speed.lines:
        speed.set_ylim(bottom=0)
        speed.set_ylabel("iterations per second")
        waits = speed.twinx()
        waits.spines[["top"]].set_visible(False)
        waits.set(ylim=(0, 100), ylabel="data wait, % of the time")
        for x, y, colour in _curves(histories, "train/data_share"):
            wait = {"color": "C1" if is_one else colour, "linestyle": ":"}
            waits.plot(x, 100 * y, **wait)
            speed.plot([], [], label="data wait", **wait)

    for axis, tag in zip(
        axes, ("train/loss", "val/psnr", "train/lr", "train/it_per_s"), strict=True
    ):
        if not axis.lines:
            axis.text(
                0.5,
                0.5,
                f"no {tag} yet",
                transform=axis.transAxes,
                ha="center",
                va="center",
                color=GREY,
            )
    # Places where curves seldom are; to search for an empty one takes long with many entries.
    for axis, place in ((loss, "upper right"), (psnr, "center right"), (speed, "center left")):
        lines, names = axis.get_legend_handles_labels()
        # Each kind once, grey where the colours are those of the runs.
        if kinds := dict(zip(names, lines, strict=True)):
            legend = axis.legend(
                kinds.values(), kinds.keys(), loc=place, fontsize="small", framealpha=0.8
            )
            for line in () if is_one else legend.get_lines():
                line.set_color(GREY)
    return figure


def draw_scalars(histories: Mapping[str, History]) -> Any:
    """One panel per scalar over the iteration."""
    tags = sorted({tag for history in histories.values() for tag in history})
    figure, axes = _empty_figure(histories, tags, min(3, len(tags)), (4.5, 3))
    for axis, tag in zip(axes, tags, strict=True):
        for x, y, colour in _curves(histories, tag):
            axis.plot(x, y, color=colour)
    return figure


def encoded(figure: Any, kind: str = "png") -> bytes:
    """The figure as a file of an image format, e.g. "png", "svg", "pdf"."""
    from matplotlib import rc_context

    image = io.BytesIO()
    # Without it, a curve of 300,000 entries is refused as too complex.
    with rc_context({"agg.path.chunksize": 10000}):
        figure.savefig(image, dpi=100, format=kind)
    return image.getvalue()


def smoothed(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, int]:
    """Centred running mean, (n,), and its number of entries; NaN is left out, and the window is
    shorter at the ends.
    """
    y = np.asarray(values, float)
    half = int(np.clip(len(y) // SMOOTHED_SHARE, SMOOTHED_LEAST, SMOOTHED_MOST)) // 2
    is_finite = np.isfinite(y)
    sums, counts = (
        np.concatenate(([0.0], np.cumsum(part)))
        for part in (np.where(is_finite, y, 0.0), is_finite)
    )
    first = np.clip(np.arange(len(y)) - half, 0, None)
    last = np.clip(np.arange(len(y)) + half + 1, None, len(y))
    count = counts[last] - counts[first]
    return np.where(
        count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), np.nan
    ), 2 * half + 1


def _curves(
    histories: Mapping[str, History], tag: str
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """(steps, values, colour) of each run that has the scalar."""
    for number, history in enumerate(histories.values()):
        if entries := history.get(tag):
            yield *np.asarray(entries, float).T, f"C{number % 10}"


def _empty_figure(
    histories: Mapping[str, History], titles: Sequence[str], columns: int,
    size: tuple[float, float],
    margins: dict[str, float] | None = None,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """A figure with an empty panel of `size` (inches) for each title and, where there are several,
    the runs' names.
    """
    from matplotlib.figure import (
        Figure,  # not before a figure is drawn; not pyplot, which wants a display
    )
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
    """One self-contained page on the run in `folder`. curves: a PNG."""
    further = further_metrics(history)
    columns = []
    for name in ("psnr", "ssim", *further):
        columns.append(_by_step(history, f"val/{name}"))
        columns.append(_by_step(history, f"val/{name}_input"))
    steps, scores = (
        list(columns[0]),
        {step: psnr for step, psnr in columns[0].items() if math.isfinite(psnr)},
    )
    best: Any = max(scores, key=lambda step: scores[step]) if scores else None
    state = [
        f"iteration {max(entries[-1][0] for entries in history.values()):,}"
        if history
        else "no entry yet"
    ]
    if losses := history.get("train/loss"):
        state.append(f"loss {losses[-1][1]:.4f}")
    if scores:
        last = list(scores.values())[-1]
        state.append(f"PSNR {last:.2f} dB, best {scores[best]:.2f} dB at iteration {best:,}")
    shown = [step for step in steps if step == best or step in steps[-SHOWN_ROWS:]][::-1]

    warnings: dict[
        str, tuple[str, int]
    ] = {}  # text -> time of the last one, how often; the newest last
    recorded = folder / WARNINGS_NAME
    for line in recorded.read_text(encoding="utf-8").splitlines() if recorded.is_file() else ():
        with suppress(ValueError):  # a line that was cut by a kill
            record = json.loads(line)
            _, count = warnings.pop(record["text"], ("", 0))
            warnings[record["text"]] = record["time"], count + 1
    environment: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # the page of a run without it is shown all the same
        environment = json.loads((folder / ENVIRONMENT_NAME).read_text(encoding="utf-8"))
    images, clips = folder / "images", {}
    with suppress(OSError, ValueError, DataError):  # likewise
        names = json.loads((images / PANELS_NAME).read_text(encoding="utf-8"))
        for file in sorted(images.rglob(f"{steps[-1]}.png"), key=natural_key) if steps else ():
            panels = panels_of(imread_rgb(file), names)
            clips[file.parent.relative_to(images).as_posix()] = {
                k: v for k, v in panels.items() if k != ERROR
            }
    return render(
        "run",
        title=f"Training: {folder.resolve().name}",
        state="; ".join(state),
        curves=data_uri("image/png", curves),
        warnings=list(warnings.items()),
        shown_warnings=SHOWN_WARNINGS,
        validations=[[step, *(column.get(step, math.nan) for column in columns)] for step in shown],
        further_metrics=further,
        best=best,
        left_out=len(steps) - len(shown),
        clips=clips,
        strip_width=STRIP_WIDTH,
        environment=environment,
        options=newest_options(folder / "options"),
    )


def newest_options(folder: Path) -> Path | None:
    """The options that a run was started with last; None where the folder holds none."""
    return max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)

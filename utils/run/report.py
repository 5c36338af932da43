"""Make the report of a run: one HTML page with its scores, curves, warnings and pictures.

`build_report` collects the content of the page from the history of the run and from the files in
its folder, and gives it to utils/templates/run.html. If a file is missing, its part of the page is
left out.

What must stay: the names that run.html reads, i.e. the arguments of `render` and the fields of
`_Score`, `_ValidationRow` and `_Warning`. A new name needs a place in run.html.

Tests: tests/parts/utils/test_results.py.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from utils.errors import DataError
from utils.image import ERROR, data_uri, imread_rgb, panels_of, render
from utils.logger import WARNINGS_NAME
from utils.name_order import natural_key
from utils.run.history import History, names_of_own_metrics

ENVIRONMENT_NAME = "environment.json"
# A validation writes a strip of each clip: a row of pictures (panels), e.g. blurry, restored and
# sharp. This file in the folder images/ of the run lists the titles of the panels from left to
# right.
PANELS_NAME = "panels.json"

# Width of a strip on the report page, in pixels. At most 12 clips have strips. With this width, a
# page has about 5 MB, and never more than 16 MB.
STRIP_WIDTH = 640
# Largest numbers of validations and of warnings that the page shows, the newest ones. With longer
# tables, a reader would have to scroll far down to the parts below them.
SHOWN_ROWS = 50
SHOWN_WARNINGS = 40


def build_report(folder: Path, history: History, curves: bytes) -> str:
    """Return the report of a run as one HTML page, which needs no other file.

    The page is made from templates/run.html. A new argument of `render` is a new variable there.
    Words and order of the page are free to change. test_the_page_of_a_run_shows_its_scores, and the
    tests after this test, say what the page must show.

    folder: the folder of the run.
    history: the history of the run.
    curves: the figure of `draw_panels` as the bytes of a PNG.
    """
    own_metrics = names_of_own_metrics(history)
    psnr_at = _values_by_step(history, "val/psnr")
    steps = list(psnr_at)  # the steps with a validation
    finite_psnr_at = {}
    for step, psnr in psnr_at.items():
        if math.isfinite(psnr):
            finite_psnr_at[step] = psnr
    best_step = _step_of_best(finite_psnr_at)

    # The rows of the table: the best validation and the newest validations, the newest first.
    shown_steps = set(steps[-SHOWN_ROWS:])
    if best_step is not None:
        shown_steps.add(best_step)
    newest_first = [step for step in reversed(steps) if step in shown_steps]
    rows = _validation_rows(history, newest_first, metrics=("psnr", "ssim", *own_metrics))
    # The pictures of the newest validation: clip -> title -> picture.
    pictures = _panels_of_step(folder / "images", steps[-1]) if steps else {}

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
        own_metrics=own_metrics,
        best=best_step,
        left_out=len(steps) - len(rows),
        clips=pictures,
        strip_width=STRIP_WIDTH,
        environment=environment,
        options=newest_options(folder / "options"),
    )


def _step_of_best(psnr_at: Mapping[float, float]) -> float | None:
    """Return the first step with the highest PSNR, or None if `psnr_at` is empty.

    psnr_at: step -> PSNR. All values are finite.
    """
    best_step = None
    for step, psnr in psnr_at.items():
        if best_step is None or psnr > psnr_at[best_step]:
            best_step = step
    return best_step


def _values_by_step(history: History, tag: str) -> dict[float, float]:
    """Return step -> value of a scalar. If a step has several values, the last value is used."""
    column: dict[float, float] = {}
    for step, value in history.get(tag, []):
        column[step] = value
    return column


class _Score(NamedTuple):
    """The value of a metric in a validation, NaN if it is missing."""

    restored: float  # the value for the restored frames
    input: float  # the value for the blurry input


class _ValidationRow(NamedTuple):
    """A row of the table of validations. The page templates/run.html reads these names."""

    step: float  # a whole number; a float, as all numbers of a `History`
    scores: dict[str, _Score]  # name of a metric -> its values, e.g. "psnr" -> (31.2, 25.0)


def _validation_rows(
    history: History, steps: Sequence[float], metrics: Sequence[str]
) -> list[_ValidationRow]:
    """Return a row of the table of validations for each step.

    steps: the steps that have a validation.
    metrics: names of the metrics, e.g. "psnr".
    """
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

    psnr_at: step -> PSNR of its validation, the newest last. All values are finite.
    best_step: the step with the best PSNR, or None if there is none.
    """
    if history:
        # The last pair (step, value) of each curve has its newest step.
        newest_steps = []
        for curve in history.values():
            step, _ = curve[-1]
            newest_steps.append(step)
        newest_step = max(newest_steps)
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

    text: str  # e.g. "the disk of ... has room for 3 more saves"
    time: str  # of its last occurrence, e.g. "2026-11-27 12:03:55"
    times: int  # number of its occurrences


def _warnings_once(recorded: Path) -> list[_Warning]:
    """Return the warnings of a run, each once. The warning that occurred last comes last.

    Test: test_the_page_of_a_run_shows_a_repeated_warning_once.

    recorded: the file of warnings of the run. Each line is a record {"time": ..., "text": ...}.
    """
    lines = []
    if recorded.is_file():
        lines = recorded.read_text(encoding="utf-8").splitlines()
    warnings: dict[str, _Warning] = {}  # text -> its warning
    for line in lines:
        # A line is not JSON if the process was killed while it wrote the line.
        with suppress(ValueError):
            record = json.loads(line)
            text = record["text"]
            # Remove an earlier warning of this text. The last line of the loop puts the warning at
            # the end of `warnings`, where the newest warning is.
            earlier = warnings.pop(text, None)
            times = 1 if earlier is None else 1 + earlier.times
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
    # If a picture is missing or damaged, the page shows only the pictures that were read before.
    with suppress(OSError, ValueError, DataError):
        titles = json.loads((images / PANELS_NAME).read_text(encoding="utf-8"))
        for file in sorted(images.rglob(f"{step}.png"), key=natural_key):
            panels = panels_of(imread_rgb(file), titles)  # title -> picture
            panels.pop(ERROR, None)  # ERROR: title of the panel with the error
            # E.g. images/gopro/clip_01/4000.png is a picture of the clip "gopro/clip_01".
            clip = file.parent.relative_to(images).as_posix()
            clips[clip] = panels
    return clips


def newest_options(folder: Path) -> Path | None:
    """Return the file with the options of the newest start, or None if there is no such file.

    folder: the folder `options` of a run, which has a file of each start.
    """

    def time_of_change(path: Path) -> float:
        return path.stat().st_mtime

    # Each start writes its file once, so the newest file is the file that was changed last.
    return max(folder.glob("*.json"), key=time_of_change, default=None)

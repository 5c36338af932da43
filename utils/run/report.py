"""What a person opens to judge a run: training_history.json, curves.png and report.html in its folder."""

from __future__ import annotations

import base64
import json
import math
from contextlib import suppress
from pathlib import Path

import numpy as np

from utils.errors import DataError
from utils.files import natural_key, write_whole
from utils.image import ERROR, imread_rgb, panels_of
from utils.page import render
from utils.run.history import HISTORY_NAME, History, draw_panels, encoded, history_bytes, read_history
from utils.run.logger import WARNINGS_NAME, best_effort

REPORT_NAME, CURVES_NAME, ENVIRONMENT_NAME = "report.html", "curves.png", "environment.json"
# At most 12 clips have strips; at this width a page takes about 5 MB, and never more than 16.
STRIP_WIDTH = 640
SHOWN_ROWS, SHOWN_WARNINGS = 50, 40  # the newest ones
PANELS_NAME = "panels.json"  # in images/: names of the panels of a strip, from left to right


class ReportWriter:
    """Writes the three files after each validation and at the end: a run that is killed later has them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_behind = folder, False

    def scalars(self, values: dict[str, float], step: int) -> None:
        self.is_behind = True
        if "val/psnr" in values:
            self._write()

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """Strips are read from images/."""

    def close(self) -> None:
        if self.is_behind:
            self._write()

    def _write(self) -> None:
        self.is_behind = False
        with best_effort("the report of the run"):
            history = read_history(self.folder)
            curves = encoded(draw_panels({"": history}))
            write_whole(self.folder / HISTORY_NAME, history_bytes(history))
            write_whole(self.folder / CURVES_NAME, curves)
            write_whole(self.folder / REPORT_NAME, build_report(self.folder, history, curves).encode())


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

"""What a person opens to judge a run: training_history.json, curves.png and report.html in its folder."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import DataError
from utils.files import natural_key, write_own
from utils.image import ERROR, imread_rgb, panels_of
from utils.page import render
from utils.run.curves import draw_panels, encoded
from utils.run.history import HISTORY_NAME, History, history_bytes, is_history, read_history
from utils.run.logger import WARNINGS_NAME, best_effort

REPORT_NAME, CURVES_NAME, ENVIRONMENT_NAME = "report.html", "curves.png", "environment.json"
# Another's file of one of these names, in the folder of a run of a former version, stays. Ours are known by this title
# of the page and of the picture near their beginning, and by the form of the JSON.
TITLE, HEAD_BYTES = "Training: ", 4096
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
            curves = curves_of(self.folder, history)
            self._put(HISTORY_NAME, history_bytes(history), is_history)
            self._put(CURVES_NAME, curves, lambda path: begins_with(path, f"Title\0{TITLE}"))
            page = build_report(self.folder, history, curves)
            self._put(REPORT_NAME, page.encode(), lambda path: begins_with(path, f"<title>{TITLE}"))

    def _put(self, name: str, content: bytes, is_ours: Callable[[Path], bool]) -> None:
        path = self.folder / name
        with best_effort(str(path)):
            write_own(path, content, is_ours)


def curves_of(folder: Path, history: History) -> bytes:
    """The curves of the run in `folder`, a PNG."""
    return encoded(draw_panels({"": history}), title=title_of(folder))


def title_of(folder: Path) -> str:
    return f"{TITLE}{folder.resolve().name}"


def begins_with(path: Path, text: str) -> bool:
    """Whether the text is in the first HEAD_BYTES of the file."""
    with path.open("rb") as file:
        return text.encode() in file.read(HEAD_BYTES)


def build_report(folder: Path, history: History, curves: bytes) -> str:
    """One self-contained page on the run in `folder`. curves: a PNG."""
    scores = _finite(history.get("val/psnr", []))
    best = max(scores, key=lambda entry: entry[1], default=[None])[0]
    columns = [dict(history.get(f"val/{name}", [])) for name in ("psnr", "psnr_input", "ssim", "ssim_input")]
    steps = list(columns[0])
    shown = [step for step in steps if step == best or step in steps[-SHOWN_ROWS:]][::-1]
    return render(
        "run",
        title=title_of(folder),
        state=_state(history),
        curves=base64.b64encode(curves).decode("ascii"),
        warnings=list(_warnings(folder / WARNINGS_NAME).items()),
        shown_warnings=SHOWN_WARNINGS,
        validations=[[step, *(column.get(step, math.nan) for column in columns)] for step in shown],
        best=best,
        left_out=len(steps) - len(shown),
        clips=_panels(folder / "images", steps[-1]) if steps else {},
        strip_width=STRIP_WIDTH,
        environment=environment_of(folder / ENVIRONMENT_NAME),
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


def _state(history: History) -> str:
    losses, scores = history.get("train/loss"), _finite(history.get("val/psnr", []))
    said = [f"iteration {max(entries[-1][0] for entries in history.values()):,}" if history else "no entry yet"]
    if losses:
        said.append(f"loss {losses[-1][1]:.4f}")
    if scores:
        step, best = max(scores, key=lambda entry: entry[1])
        said.append(f"PSNR {scores[-1][1]:.2f} dB, best {best:.2f} dB at iteration {step:,}")
    return "; ".join(said)


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


def environment_of(path: Path) -> dict[str, Any]:
    """What environment.json says; {} where there is none, or another's file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and {"command", "torch"} <= found.keys() else {}


def _finite(entries: list[list[float]]) -> list[list[float]]:
    return [entry for entry in entries if math.isfinite(entry[1])]

"""What a person opens to judge a run: training_history.json, curves.png and report.html in its folder."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import DataError
from utils.files import natural_key, write_own
from utils.image import imread_rgb, split_strip
from utils.page import facts, page, slider, text
from utils.run.curves import draw_panels, encoded
from utils.run.history import HISTORY_NAME, History, history_bytes, is_history, read_history
from utils.run.logger import best_effort

REPORT_NAME, CURVES_NAME, ENVIRONMENT_NAME = "report.html", "curves.png", "environment.json"
# Another's file of one of these names, in the folder of a run of a former version, stays. Ours are known by this title
# of the page and of the picture near their beginning, and by the form of the JSON.
TITLE, HEAD_BYTES = "Training: ", 4096
# At most 12 clips have strips; at this width a page takes about 5 MB, and never more than 16.
STRIP_WIDTH = 640
SHOWN_ROWS, SHOWN_WARNINGS = 50, 40  # the newest ones
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] (.*)")
_WARNING = "WARNING: "


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
    found, environment = warnings_of(folder / "log" / "train.log"), environment_of(folder / ENVIRONMENT_NAME)
    options = _newest_options(folder / "options")
    parts = (
        _state(history),
        f'<img class="wide" alt="curves" src="data:image/png;base64,{base64.b64encode(curves).decode("ascii")}">',
        f"<h2>Warnings: {len(found)}</h2>{_warnings(found)}",
        f"<h2>Validations</h2>{_table(history)}",
        f"<h2>Last validation</h2>{_strips(folder / 'images', history)}",
        f"<h2>Environment</h2>{facts(environment) if environment else '<p>not recorded</p>'}",
        f"<h2>Options</h2><details><summary>{text(options.name)}</summary>"
        f"<pre>{text(options.read_text(encoding='utf-8'))}</pre></details>" if options else "",
    )  # fmt: skip
    return page(title_of(folder), "\n".join(parts))


def warnings_of(log: Path) -> list[tuple[str, str, int]]:
    """(time of the last one, text, how often) of each warning in a log, the newest last."""
    found: dict[str, tuple[str, int]] = {}
    for when, said in _records(log):
        if said.startswith(_WARNING):
            _, count = found.pop(said, ("", 0))
            found[said] = when, count + 1
    return [(when, said.removeprefix(_WARNING), count) for said, (when, count) in found.items()]


def _records(log: Path) -> Iterator[tuple[str, str]]:
    """(time, text) of each record, with the lines that belong to it."""
    when, lines = "", []
    if log.is_file():
        with open(log, encoding="utf-8", errors="replace") as file:
            for line in file:
                if match := _LINE.match(line):
                    yield when, "\n".join(lines)
                    when, lines = match[1], [match[2]]
                else:
                    lines.append(line.rstrip("\n"))
    yield when, "\n".join(lines)


def _state(history: History) -> str:
    losses, scores = history.get("train/loss"), _finite(history.get("val/psnr", []))
    said = [f"iteration {max(entries[-1][0] for entries in history.values()):,}" if history else "no entry yet"]
    if losses:
        said.append(f"loss {losses[-1][1]:.4f}")
    if scores:
        step, best = max(scores, key=lambda entry: entry[1])
        said.append(f"PSNR {scores[-1][1]:.2f} dB, best {best:.2f} dB at iteration {step:,}")
    return f"<p>{'; '.join(said)}</p>"


def _warnings(found: list[tuple[str, str, int]]) -> str:
    items = [
        f"<li>{text(when)} {text(said)}{f' ({count} times)' if count > 1 else ''}</li>"
        for when, said, count in found[-SHOWN_WARNINGS:][::-1]
    ]
    more = f"<p>The newest {SHOWN_WARNINGS}; log/train.log has all.</p>" if len(found) > SHOWN_WARNINGS else ""
    return f'{more}<ul class="warnings">{"".join(items)}</ul>' if items else "<p>none</p>"


def _table(history: History) -> str:
    """The validations, the newest first, and the best one in any case."""
    columns = {name: dict(history.get(f"val/{name}", [])) for name in ("psnr", "psnr_input", "ssim", "ssim_input")}
    steps = list(columns["psnr"])
    if not steps:
        return "<p>none yet</p>"
    best = max(_finite(history["val/psnr"]), key=lambda entry: entry[1], default=[None])[0]
    shown = [step for step in steps if step == best or step in steps[-SHOWN_ROWS:]][::-1]
    rows = []
    for step in shown:
        psnr, given, ssim, ssim_given = (column.get(step, math.nan) for column in columns.values())
        rows.append(
            f'<tr class="{"best" if step == best else ""}"><td>{step:,}{" (best)" if step == best else ""}</td>'
            f"<td>{psnr:.2f}</td><td>{given:.2f}</td><td>{psnr - given:+.2f}</td>"
            f"<td>{ssim:.4f}</td><td>{ssim_given:.4f}</td></tr>"
        )
    left = f"<p>{len(steps) - len(shown)} earlier ones are in {HISTORY_NAME}.</p>" if len(shown) < len(steps) else ""
    head = "<th>iteration</th><th>PSNR dB</th><th>input</th><th>gain dB</th><th>SSIM</th><th>input</th>"
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>{left}"


def _strips(images: Path, history: History) -> str:
    """A slider for each clip that has a strip of the last validation."""
    if not (scores := history.get("val/psnr")):
        return "<p>none yet</p>"
    files = sorted(images.rglob(f"{scores[-1][0]}.png"), key=natural_key)
    sliders = []
    for file in files:
        try:
            panels = split_strip(imread_rgb(file))
        except DataError:  # the report of a run must not end it
            continue
        panels.pop("error", None)
        if panels:
            sliders.append(slider(file.parent.relative_to(images).as_posix(), panels, STRIP_WIDTH))
    return f"<p>Frames after iteration {scores[-1][0]:,}.</p>{''.join(sliders)}"


def _newest_options(folder: Path) -> Path | None:
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

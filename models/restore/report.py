"""report.html: one self-contained page with the numbers of a test and a slider between blurry and restored."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

TEMPLATE = Path(__file__).with_name("report_template.html")
# Pages beyond some tens of megabytes open slowly: so many clips get pictures, at most so wide.
MAX_PICTURES = 24
MAX_WIDTH = 1280
# Smaller pictures are enlarged by repetition, as often as they fit into this.
LEAST_WIDTH = 640
COLUMNS = {"psnr": "PSNR dB", "ssim": "SSIM", "psnr_y": "PSNR-Y dB", "ssim_y": "SSIM-Y", "lpips": "LPIPS"}


def build_report(title: str, results: Mapping[str, Any], pictures: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """The page as text.

    results: what metrics.json holds: "protocol" {name: text}, "clips" {name: {"frames", "stems", "restored" and, where
    there is a reference, "input": {metric: mean}, "per_frame": {"restored": {metric: [...]}, "input": ...}}},
    "averages" {"restored": ..., "input": ...} as `utils.metrics.averages` gives them.
    pictures: clip -> {"blurry", "restored" and, if there is one, "sharp"}: (H, W, 3) uint8 of one frame.
    """
    fill = {
        "title": html.escape(title),
        "warning": _warning(results["averages"].get("restored")),
        "table": _table(results),
        "protocol": "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in results["protocol"].items()),
        "plot": _plot_section(results["clips"]),
        "clips": "".join(_clip_section(name, pictures[name]) for name in list(pictures)[:MAX_PICTURES]),
    }
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, content in fill.items():
        page = page.replace("{{" + name + "}}", content)
    return page


def format_value(metric: str, value: float | str | None) -> str:
    """A metric for a table: decibels with two decimals, the others with four; a dash where there is none."""
    if value is None:
        return "-"
    number = float(value)
    return f"{number:.2f}" if metric.startswith("psnr") else f"{number:.4f}"


def _warning(averages: Mapping[str, Any] | None) -> str:
    if not averages or averages["complete"]:
        return ""
    return (
        f'<p class="incomplete">Incomplete: {averages["clips_found"]} of {averages["clips_expected"]} clips. '
        "The averages below are not those of the whole set.</p>"
    )


def _table(results: Mapping[str, Any]) -> str:
    clips, averages = results["clips"], results["averages"]
    metrics = [m for m in COLUMNS if any(m in clip.get("restored", {}) for clip in clips.values())]
    if not metrics:
        rows = "".join(f"<tr><td>{_text(name)}</td><td>{clip['frames']}</td></tr>" for name, clip in clips.items())
        return f"<table><tr><th>clip</th><th>frames</th></tr>{rows}</table>"
    head = "".join(f"<th>{COLUMNS[m]}</th><th>input</th>" for m in metrics)
    lines = [f"<tr><th>clip</th><th>frames</th>{head}<th>gain dB</th></tr>"]
    for name, clip in clips.items():
        lines.append(_row(name, clip["frames"], clip["restored"], clip.get("input", {}), metrics))
    total = averages["restored"]
    lines.append(_row("mean over clips", total["frames"], total, averages.get("input", {}), metrics, "mean"))
    by_frame = [{m: a.get(f"{m}_frame_mean") for m in metrics} for a in (total, averages.get("input", {}))]
    lines.append(_row("mean over frames", total["frames"], *by_frame, metrics))
    found = f"clips found {total['clips_found']}, expected {total['clips_expected']}"
    return f"<table>{''.join(lines)}</table><p>{found}</p>"


def _row(
    name: str,
    frames: int,
    restored: Mapping[str, Any],
    given: Mapping[str, Any],
    metrics: Sequence[str],
    kind: str = "",
) -> str:
    cells = "".join(
        f"<td>{format_value(m, restored.get(m))}</td><td>{format_value(m, given.get(m))}</td>" for m in metrics
    )
    both = restored.get("psnr"), given.get("psnr")
    gain = "-" if None in both else f"{float(both[0]) - float(both[1]):+.2f}"
    return f'<tr class="{kind}"><td>{_text(name)}</td><td>{frames}</td>{cells}<td>{gain}</td></tr>'


def _plot_section(clips: Mapping[str, Any]) -> str:
    """PSNR of every frame, one drawing per clip; restored and input."""
    parts = []
    for name, clip in clips.items():
        lines = {
            kind: [float(v) for v in values["psnr"]]
            for kind, values in clip.get("per_frame", {}).items()
            if "psnr" in values
        }
        if lines:
            parts.append(f"<h3>{_text(name)}</h3>{psnr_plot(lines)}")
    if not parts:
        return ""
    keys = "".join(
        f'<span class="key" style="background:var(--{colour})"></span>{kind}'
        for kind, colour in (("restored", "restored"), ("input", "blurry"))
    )
    return f"<h2>PSNR of each frame</h2><p>{keys}</p>{''.join(parts)}"


def psnr_plot(lines: Mapping[str, Sequence[float]], width: int = 760, height: int = 150) -> str:
    """An SVG of PSNR over the frame number. lines: "restored" and "input" -> dB per frame; infinite values are cut."""
    finite = [v for values in lines.values() for v in values if math.isfinite(v)] or [0.0]
    low, high = math.floor(min(finite)), math.ceil(max(finite)) or 1
    high = high if high > low else low + 1
    count = max(len(values) for values in lines.values())

    def point(index: int, value: float) -> str:
        x = 44 + (width - 54) * (index / max(count - 1, 1))
        y = 10 + (height - 34) * (1 - (min(value, high) - low) / (high - low))
        return f"{x:.1f},{y:.1f}"

    curves = "".join(
        f'<polyline fill="none" stroke-width="1.6" class="plot-{"blurry" if kind == "input" else kind}" '
        f'points="{" ".join(point(i, v) for i, v in enumerate(values))}"><title>{kind}</title></polyline>'
        for kind, values in lines.items()
    )
    bottom = height - 24
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="PSNR per frame">'
        f'<rect x="44" y="10" width="{width - 54}" height="{height - 34}" fill="none" stroke="#8886"/>'
        f'<text x="2" y="16">{high} dB</text><text x="2" y="{bottom}">{low} dB</text>'
        f'<text x="44" y="{height - 6}">frame 1</text>'
        f'<text x="{width - 10}" y="{height - 6}" text-anchor="end">{count}</text>{curves}</svg>'
    )


def _clip_section(name: str, pictures: Mapping[str, np.ndarray]) -> str:
    """The slider: blurry on the left of the bar, restored (or sharp, by a button) on its right."""
    stored = {key: data_uri(image) for key, image in pictures.items()}
    shown = [key for key in ("restored", "sharp") if key in stored]
    buttons = "".join(
        f'<button type="button" data-show="{key}" aria-pressed="{str(key == "restored").lower()}">{key}</button> '
        for key in shown
    )
    stores = "".join(f'<img hidden alt="" data-store="{key}" src="{stored[key]}">' for key in shown)
    height, width = pictures["restored"].shape[:2]
    enlarged = max(1, LEAST_WIDTH // width)
    label = f"{_text(name)}: blurry left of the bar"
    return (
        f'<section id="clip-{_text(name)}"><h3>{_text(name)}</h3>'
        f'<p class="choose">left: blurry, right: {buttons}</p>'
        f'<span class="slider{" small" if enlarged > 1 else ""}"><img class="under" alt="restored" '
        f'width="{enlarged * width}" height="{enlarged * height}" '
        f'style="height:auto" src="{stored["restored"]}">'
        f'<span class="over"><img alt="blurry" style="height:100%" src="{stored["blurry"]}"></span>'
        f'<span class="bar"></span>'
        f'<input type="range" min="0" max="100" step="0.1" value="50" aria-label="{label}"></span>{stores}</section>'
    )


def data_uri(image: np.ndarray) -> str:
    """(H, W, 3) uint8 RGB -> an inline JPEG, at most MAX_WIDTH wide."""
    if image.shape[1] > MAX_WIDTH:
        height = round(image.shape[0] * MAX_WIDTH / image.shape[1])
        image = cv2.resize(image, (MAX_WIDTH, height), interpolation=cv2.INTER_AREA)
    _, encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 93])
    return f"data:image/jpeg;base64,{base64.b64encode(encoded).decode('ascii')}"


def _text(value: Any) -> str:
    return html.escape(str(value))

"""report.html: one self-contained page with the numbers of a test and a slider between blurry and restored."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.restore.job import Job
from models.restore.results import (
    COLUMNS,
    Row,
    collect,
    format_value,
    instants_psnr,
    json_bytes,
    load_clip,
    table_rows,
    text_table,
)
from utils import utils_dist
from utils.dist import watchdog
from utils.dist.gpu import device_name
from utils.image import imread_rgb
from utils.metrics import PROTOCOL, tensor_to_uint8
from utils.page import facts, page, slider, text

# Pages of more than some tens of megabytes open slowly.
MAX_PICTURES = 24

logger = logging.getLogger(__name__)


def write_report(job: Job) -> None:
    """metrics.json, table.txt and report.html over the clips of the job; the table goes to the log too."""
    watchdog.phase("report")
    folder, made = job.outputs.folder, job.outputs.made
    entries = [entry for clip in job.clips if (entry := load_clip(folder, clip.name)) is not None]
    results = {"protocol": protocol(job, entries), **collect(entries, job.expected)}
    made.write(folder / "metrics.json", json_bytes(results))
    table = text_table(results)
    lines = "\n".join(f"{key}: {value}" for key, value in results["protocol"].items())
    made.write(folder / "table.txt", f"{table}\n\n{lines}\n".encode())
    pictures = {entry["name"]: example_pictures(job, entry) for entry in entries[:MAX_PICTURES]}
    made.write(folder / "report.html", build_report(job.title, results, pictures).encode())
    logger.info("%s\n%s\n%s", job.title, table, lines)
    logger.info("results are in %s (open report.html)", folder)


def protocol(job: Job, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the numbers were measured. entries: JSON of the clips."""
    paces = [entry["s_per_frame"] for entry in entries if entry.get("s_per_frame")]
    roots = {
        kind: _first_of([clip.origin[kind] for clip in job.clips if kind in clip.origin])
        for kind in ("input", "gt", "spike")
    }
    about = job.method.protocol()
    return {
        **about,
        **{kind: place for kind, place in roots.items() if place},
        "frames": about.get("frames", job.frames_note),
        "crop": "none", "border": "nothing excluded",
        "tile": ", or ".join(sorted({entry["tile"] for entry in entries})),
        "metrics": PROTOCOL + ("; LPIPS: AlexNet, version 0.1" if job.args.lpips else ""),
        "device": device_name(utils_dist.get_device()),
        **({"speed": f"{np.mean(paces):.3f} s/frame per process"} if paces else {}),
    }  # fmt: skip


def _first_of(paths: list[str]) -> str:
    return f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else "".join(paths)


def example_pictures(job: Job, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """blurry, restored and, if there is one, sharp of the clip's example frame: (H, W, 3) uint8."""
    clip = next(c for c in job.clips if c.name == entry["name"])
    item = clip.frame(list(clip.stems).index(entry["example"]))
    pictures = {
        "blurry": tensor_to_uint8(item["lq"][:3]),
        "restored": imread_rgb(job.outputs.example_file(clip.name)),
    }
    return pictures | ({"sharp": tensor_to_uint8(item["gt"])} if "gt" in item else {})


def build_report(title: str, results: Mapping[str, Any], pictures: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """The page as text.

    results: the content of metrics.json, see `collect`. pictures: clip -> see `example_pictures`.
    """
    parts = (
        _warning(results["averages"].get("restored")),
        _table(results),
        "<h2>Look</h2>",
        *(slider(name, images) for name, images in pictures.items()),
        _plot_section(results["clips"]),
        "<h2>Protocol</h2>",
        facts(results["protocol"]),
    )
    return page(title, "\n".join(parts))


def _warning(averages: Mapping[str, Any] | None) -> str:
    if not averages or averages["complete"]:
        return ""
    return (
        f'<p class="incomplete">Incomplete: {averages["clips_found"]} of {averages["clips_expected"]} clips. '
        "The averages below do not cover the whole set.</p>"
    )


def _table(results: Mapping[str, Any]) -> str:
    metrics, rows = table_rows(results)
    lines = "".join(_row(row, metrics) for row in rows)
    if not metrics:
        return f"<table><tr><th>clip</th><th>frames</th></tr>{lines}</table>"
    head = "".join(f"<th>{COLUMNS[m]}</th><th>input</th>" for m in metrics)
    total = results["averages"]["restored"]
    found = f"clips found {total['clips_found']}, expected {total['clips_expected']}"
    if instants := instants_psnr(results):
        found += f"<br>PSNR dB of the instants, mean over clips: {', '.join(instants)}"
    head = f"<tr><th>clip</th><th>frames</th>{head}<th>gain dB</th></tr>"
    return f"<table>{head}{lines}</table><p>{found}</p>"


def _row(row: Row, metrics: Sequence[str]) -> str:
    name, frames, restored, given = row
    cells = "".join(
        f"<td>{format_value(m, restored.get(m))}</td><td>{format_value(m, given.get(m))}</td>" for m in metrics
    )
    if metrics:
        both = restored.get(metrics[0]), given.get(metrics[0])
        gain = "-" if None in both else f"{float(both[0]) - float(both[1]):+.2f}"
        cells += f"<td>{gain}</td>"
    kind = "mean" if name == "mean over clips" else ""
    return f'<tr class="{kind}"><td>{text(name)}</td><td>{frames}</td>{cells}</tr>'


def _plot_section(clips: Mapping[str, Any]) -> str:
    """PSNR of every frame (PSNR-Y of grey frames), one drawing per clip; restored and input."""
    parts, metric = [], "psnr"
    for name, clip in clips.items():
        scores = clip.get("per_frame", {})
        metric = next((m for m in ("psnr", "psnr_y") if m in scores.get("restored", {})), "psnr")
        lines = {kind: [float(v) for v in values[metric]] for kind, values in scores.items() if metric in values}
        if lines:
            parts.append(f"<h3>{text(name)}</h3>{psnr_plot(lines)}")
    if not parts:
        return ""
    keys = "".join(
        f'<span class="key" style="background:var(--{colour})"></span>{kind}'
        for kind, colour in (("restored", "restored"), ("input", "blurry"))
    )
    return f"<h2>{COLUMNS[metric].removesuffix(' dB')} of each frame</h2><p>{keys}</p>{''.join(parts)}"


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

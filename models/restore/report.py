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
from utils.files import write_whole
from utils.image import imread_rgb
from utils.metrics import PROTOCOL, tensor_to_uint8
from utils.page import render

# Pages of more than some tens of megabytes open slowly.
MAX_CLIPS = 24
# Of the protocol in the log, which never has both of the first; table.txt and metrics.json have all of it.
SHOWN = ("weights", "method", "tile", "speed")

logger = logging.getLogger(__name__)


def write_report(job: Job) -> None:
    """metrics.json, table.txt and report.html over the clips of the job; the table goes to the log too."""
    watchdog.phase("report")
    folder = job.outputs.folder
    entries = [entry for clip in job.clips if (entry := load_clip(folder, clip.name)) is not None]
    results = {"protocol": protocol(job, entries), **collect(entries, job.expected)}
    write_whole(folder / "metrics.json", json_bytes(results))
    table = text_table(results)
    lines = "\n".join(f"{key}: {value}" for key, value in results["protocol"].items())
    write_whole(folder / "table.txt", f"{table}\n\n{lines}\n".encode())
    images = {entry["name"]: example_images(job, entry) for entry in entries[:MAX_CLIPS]}
    write_whole(folder / "report.html", build_report(job.title, results, images).encode())
    shown = [f"{key}: {results['protocol'][key]}" for key in SHOWN if key in results["protocol"]]
    logger.info("%s\n%s\n%s", job.title, table, "\n".join(shown))
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


def example_images(job: Job, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """blurry, restored and, if there is one, sharp of the clip's example frame: (H, W, 3) uint8."""
    clip = next(c for c in job.clips if c.name == entry["name"])
    item = clip.frame(list(clip.stems).index(entry["example"]))
    images = {
        "blurry": tensor_to_uint8(item["lq"][:3]),
        "restored": imread_rgb(job.outputs.example_file(clip.name)),
    }
    return images | ({"sharp": tensor_to_uint8(item["gt"])} if "gt" in item else {})


def build_report(title: str, results: Mapping[str, Any], clips: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """The page as text. results: the content of metrics.json, see `collect`. clips: name -> see `example_images`."""
    metrics, rows = table_rows(results)
    scores = {name: clip["per_frame"] for name, clip in results["clips"].items() if clip.get("per_frame")}
    # Grey frames have PSNR-Y only.
    plotted = next((m for m in metrics if m.startswith("psnr")), "")
    lines = {name: {kind: [*map(float, v[plotted])] for kind, v in kinds.items()} for name, kinds in scores.items()}
    columns = [name for m in metrics for name in (COLUMNS[m], "input")]
    return render(
        "test",
        title=title,
        total=results["averages"].get("restored"),
        head=["clip", "frames", *columns, *["gain dB"] * bool(metrics)],
        rows=[_cells(row, metrics) for row in rows],
        instants=instants_psnr(results) if metrics else [],
        clips=clips,
        metric=COLUMNS[plotted].removesuffix(" dB") if plotted else "",
        plots={name: psnr_plot(values) for name, values in lines.items()},
        protocol=results["protocol"],
    )


def _cells(row: Row, metrics: Sequence[str]) -> list[str]:
    name, frames, restored, given = row
    if not metrics:
        return [name, str(frames)]
    both = restored.get(metrics[0]), given.get(metrics[0])
    gain = "-" if None in both else f"{float(both[0]) - float(both[1]):+.2f}"
    return [name, str(frames), *(format_value(m, kind.get(m)) for m in metrics for kind in (restored, given)), gain]


def psnr_plot(lines: Mapping[str, Sequence[float]], width: int = 760, height: int = 150) -> dict[str, Any]:
    """An SVG of PSNR over the frame number, as the template draws it; infinite values are cut.

    lines: "restored" and "input" -> dB per frame.
    """
    finite = [v for values in lines.values() for v in values if math.isfinite(v)] or [0.0]
    low, high = math.floor(min(finite)), math.ceil(max(finite)) or 1
    high = high if high > low else low + 1
    count = max(len(values) for values in lines.values())

    def point(index: int, value: float) -> str:
        x = 44 + (width - 54) * (index / max(count - 1, 1))
        y = 10 + (height - 34) * (1 - (min(value, high) - low) / (high - low))
        return f"{x:.1f},{y:.1f}"

    points = {kind: " ".join(point(i, v) for i, v in enumerate(values)) for kind, values in lines.items()}
    return {"width": width, "height": height, "low": low, "high": high, "count": count, "lines": points}

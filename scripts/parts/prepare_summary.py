"""The summary of prepared clips: summary.html, one page with a table and pictures, and summary.json, its numbers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.files import FrameSource
from data.prepare import Job, Recipe
from data.spike.formats import SpikeGeometry, read_spikes
from data.spike.represent import represent
from data.spike.simulate import to_grey, to_uint8
from utils.errors import DataError
from utils.files import write_whole
from utils.image import render, side_by_side

NAMES = {"summary.html": " prepared clips</title>", "summary.json": '{\n  "recipe": {'}  # -> how it begins
WIDTH, LEAST_WIDTH = 320, 160  # of one picture
FILES = 8  # spike files of a clip that are read for its rates
HALF_WINDOW = 10  # planes before and after the sharp one, as in the default of tfp
COLUMNS = {
    "split": "split", "frames": "frames", "planes": "planes a file", "gt_plane": "sharp plane", "offset": "offset",
    "firing_rate": "spikes per plane", "light_rate": "from the light", "correlation": "correlation",
}  # fmt: skip


@dataclass(frozen=True)
class ClipSummary:
    """The numbers of one clip, see summary.html, and the frame that is shown: blurry, sharp, spikes (H, W, 3) uint8."""

    numbers: dict[str, Any]
    strip: np.ndarray


def summarise(job: Job, recipe: Recipe, offset: int) -> ClipSummary:
    """Read back a part of the files of a clip."""
    cv2.setNumThreads(1)
    sharp = FrameSource(job.sharp or job.rgb / "sharp")
    files = [job.spikes / "spike" / f"{stem}.dat" for stem in sharp.stems]
    geometry = SpikeGeometry(*(side // recipe.ratio for side in sharp.size))
    # Evenly spaced, with the middle one, which is shown.
    shown = len(files) // 2
    chosen = {shown, *np.linspace(0, len(files) - 1, min(FILES, len(files)) - 1, dtype=int).tolist()}
    rates, expected = [], []
    for number in sorted(chosen):
        stream, values = read_spikes(files[number], geometry), sharp.read(number).astype(np.float32) / 255
        values = np.power(values, np.float32(recipe.gamma)) if recipe.light == "linear" else values
        light = cv2.resize(to_grey(values), (geometry.width, geometry.height), interpolation=cv2.INTER_AREA)
        rates.append(float(stream.mean()))
        expected.append(recipe.rate * float(light.mean()) + recipe.dark_rate)
        if number == shown:
            rate = {"rate": recipe.rate, "light": recipe.light}
            center = min(recipe.gt_plane_of(job.name), len(stream) - 1)
            seen = represent("tfp", stream, center, half_window=HALF_WINDOW, gamma=2.2, **rate)[0]
            spikes = to_uint8(seen)[..., None].repeat(3, axis=2)
            both = [np.power(light, 1 / 2.2 if recipe.light == "linear" else 1.0).ravel(), seen.ravel()]
            correlation = float(np.corrcoef(both)[0, 1]) if min(map(np.std, both)) > 0 else None
    numbers = {
        "clip": job.name, "split": job.split, "frames": len(sharp), "size": list(sharp.size),
        "spike_size": [geometry.height, geometry.width], "planes": recipe.planes_of(job.name),
        "gt_plane": recipe.gt_plane_of(job.name), "offset": offset, "firing_rate": round(float(np.mean(rates)), 5),
        "light_rate": round(float(np.mean(expected)), 5),
        "correlation": correlation if correlation is None else round(correlation, 4), "shown": sharp.stems[shown],
    }  # fmt: skip
    blurry = blurry_frame(job, sharp.stems[shown])
    panels = {**({} if blurry is None else {"blurry": blurry}), "sharp": sharp.read(shown), "spikes (tfp)": spikes}
    # Side by side, each between LEAST_WIDTH and WIDTH pixels wide.
    height, width = sharp.size
    scale = WIDTH / width if width > WIDTH else max(1, LEAST_WIDTH // width)
    size = (round(height * scale), round(width * scale))
    small = [
        cv2.resize(p, size[::-1], interpolation=cv2.INTER_AREA) if p.shape[1] > size[1] else p for p in panels.values()
    ]
    return ClipSummary(numbers, side_by_side(small, list(panels), size))


def blurry_frame(job: Job, stem: str) -> np.ndarray | None:
    """The blurry frame that belongs to the sharp one: made here, or beside existing sharp frames; None without one."""
    if job.sharp is None:
        folder = job.rgb / "blur"
    elif job.sharp.name == "sharp":
        folder = job.sharp.parent / "blur"
    else:
        folder = job.sharp.parent.with_name(f"{job.sharp.parent.name}_blurred") / job.sharp.name
    found = sorted(folder.glob(f"{stem}.*"))
    return FrameSource(found[0]).read(0) if found else None


def check_summary(folder: Path) -> None:
    """Raises DataError where files of the names of a summary are not ours."""
    for name, begin in NAMES.items():
        path = folder / name
        if os.path.lexists(path) and not (path.is_file() and begin.encode() in path.read_bytes()[:200]):
            raise DataError(
                f"{name} was not made by this program", str(path), "a summary of an earlier run, or none",
                "move it away",
            )  # fmt: skip


def write_summary(folder: Path, recipe: Recipe, clips: list[ClipSummary]) -> Path:
    """Write both files into the folder; the path of the page. An unchanged file is left as it is."""
    settings = recipe.record()
    page = render(
        "summary", title=f"{len(clips)} prepared clips", files=FILES, columns=COLUMNS, clips=clips,
        recipe=", ".join(f"{key} {value}" for key, value in settings.items() if value is not None),
    )  # fmt: skip
    numbers = json.dumps({"recipe": settings, "clips": [clip.numbers for clip in clips]}, indent=2) + "\n"
    for name, content in zip(NAMES, (page.encode(), numbers.encode()), strict=True):
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            write_whole(path, content)
    return folder / next(iter(NAMES))

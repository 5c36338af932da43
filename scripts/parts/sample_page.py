"""The page of scripts/show_sample.py: one HTML file that holds its pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from torch import Tensor

from data.clip_dataset import Draw
from data.spike_grid import Grid
from utils.metrics import tensor_to_uint8
from utils.page import render

KINDS = ("lq", "gt")
LEAST_WIDTH = 256  # smaller pictures are enlarged by repetition
Section = tuple[str, list[tuple[str, list[tuple[str, np.ndarray]]]]]  # title, rows: name, images with names
YELLOW, CYAN, GREEN = (255, 220, 0), (0, 220, 255), (0, 255, 60)


@dataclass(frozen=True)
class Sample:
    """One sample and how it was drawn.

    item: of the dataset. whole: the first lq frame before the crop, (H, W, 3) uint8. stems: names of the frames of
    "lq" and "gt". sharp: what the spikes of the middle frame show of its sharp instant, (H, W). pixel: RGB pixels per
    spike pixel. aligned: name of a frame, the frame before the crop (sH, sW, 3) uint8 (with a calibration: its region)
    and the spikes there (H, W).
    """

    title: str
    item: dict[str, Any]
    draw: Draw
    whole: np.ndarray
    stems: dict[str, list[str]]
    grid: Grid | None
    pixel: int
    sharp: np.ndarray | None
    facts: dict[str, str]
    verdict: str = "This data set has no spikes."
    is_right: bool | None = None
    numbers: str = ""
    aligned: tuple[str, np.ndarray, np.ndarray] | None = None


def build_page(sample: Sample) -> str:
    return render(
        "sample",
        title=sample.title,
        verdict=sample.verdict,
        verdict_class={None: "none", True: "right", False: "wrong"}[sample.is_right],
        numbers=sample.numbers,
        about=sample.facts,
        sections=[
            _whole(sample),
            *_overlays(sample),
            *(_frames(sample, kind) for kind in KINDS if kind in sample.item),
            *_channels(sample),
        ],
    )


def _whole(sample: Sample) -> Section:
    picture, aug = _enlarged(sample.whole), sample.draw.aug
    factor = picture.shape[1] // sample.whole.shape[1]
    line = max(1, round(picture.shape[1] / 500))
    boxes = [((aug.top, aug.left, aug.height, aug.width), YELLOW)]
    note = "yellow: the crop"
    if sample.grid is not None and sample.grid.coverage < 1:
        boxes.insert(0, (sample.grid.region, CYAN))
        note += "; blue: the region that crops are drawn from"
    for (top, left, height, width), colour in boxes:
        start, stop = (factor * left, factor * top), (factor * (left + width) - 1, factor * (top + height) - 1)
        cv2.rectangle(picture, start, stop, colour, line)
    return f"Whole frame {sample.stems['lq'][0]}", [("", [(note, picture)])]


def _overlays(sample: Sample) -> list[Section]:
    """Edges of the spikes around the sharp instant over the frames in the middle of the sample."""
    if sample.sharp is None:
        return []
    middle, shown = len(sample.item["spike"]) // 2, []
    for kind in KINDS:
        if kind in sample.item:
            frames = sample.item[kind]
            number = min(middle, len(frames) - 1)
            name = f"{kind} {_name(sample.stems[kind], number)}"
            shown.append((name, edges_over(tensor_to_uint8(frames[number][:3]), sample.sharp, sample.pixel)))
    if sample.aligned:
        name, frame, around = sample.aligned
        shown.append((f"{name}, before the crop", edges_over(frame, around, sample.pixel)))
    return [("Alignment: edges of the spikes around the sharp instant over the frame", [("", shown)])]


def edges_over(picture: np.ndarray, spikes: np.ndarray, pixel: int) -> np.ndarray:
    """Picture (sH, sW, 3) uint8 with the strongest edges of spikes (H, W) in green. pixel: see `Sample`."""
    shown = _enlarged(picture)
    height, width = shown.shape[:2]
    large = cv2.resize(spikes.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    smooth = cv2.GaussianBlur(large, (0, 0), max(1.0, pixel * width / spikes.shape[1]))
    x, y = cv2.Sobel(smooth, cv2.CV_32F, 1, 0), cv2.Sobel(smooth, cv2.CV_32F, 0, 1)
    scale = 10000 / max(float(np.abs(x).max()), float(np.abs(y).max()), 1e-6)
    high, low = (float(np.percentile(scale * (abs(x) + abs(y)), share)) for share in (92, 80))
    lines = cv2.Canny((scale * x).astype(np.int16), (scale * y).astype(np.int16), low, high)
    shown[lines > 0] = GREEN
    return shown


def _frames(sample: Sample, kind: str) -> Section:
    frames, stems = sample.item[kind], sample.stems[kind]
    images = [(_name(stems, i), _enlarged(tensor_to_uint8(frame[:3]))) for i, frame in enumerate(frames)]
    more = f"; channel 3, the noise level, is {float(frames[0, 3].mean()):.3f}" if frames.shape[1] > 3 else ""
    return f"{kind}: {_shape(frames)}{more}", [("", images)]


def _channels(sample: Sample) -> list[Section]:
    if "spike" not in sample.item:
        return []
    spikes = sample.item["spike"]
    white = max(float(np.percentile(spikes.numpy(), 99.5)), 1e-6)
    groups = []
    for number, channels in enumerate(spikes):
        images = [
            (f"channel {i}: {c.min():.2f} to {c.max():.2f}, mean {c.mean():.3f}", _grey(c / white))
            for i, c in enumerate(channels)
        ]
        groups.append((_name(sample.stems["lq"], number), images))
    return [(f"spike: {_shape(spikes)}; white is {white:.3g}", groups)]


def _shape(values: Tensor) -> str:
    return f"{' x '.join(map(str, values.shape))}, {float(values.min()):.3g} to {float(values.max()):.3g}"


def _name(stems: list[str], number: int) -> str:
    """Of frame `number`; a padded sequence has more frames than names."""
    return stems[number] if number < len(stems) else f"{stems[-1]}, repeated"


def _grey(values: Tensor) -> np.ndarray:
    return _enlarged(tensor_to_uint8(values.clamp(0, 1)[None].expand(3, -1, -1)))


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """A copy, enlarged by repetition where it is small."""
    factor = -(-LEAST_WIDTH // picture.shape[1])
    return np.ascontiguousarray(picture.repeat(factor, axis=0).repeat(factor, axis=1))

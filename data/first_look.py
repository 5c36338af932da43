"""Do the spikes of a dataset lie where its frames show the same? Measured on a few samples, before any training.

Spikes around the sharp instant are compared with the sharp frame; without one, those of the whole exposure with the
blurry frame, in which strong motion leaves nothing of the sharp instant.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from torch import Tensor

from data.agreement import Agreement, judge, sharp_picture, with_mean_of_exposure
from data.augment import Augment
from data.clip_dataset import Draw, TrainClips
from data.clip_reader import DatasetClip
from data.registration import scale_of
from data.spike.simulate import to_grey
from utils.metrics import tensor_to_uint8

SAMPLES, FRAMES = 4, 2  # about a second with frames of 720p
# A clip without texture cannot be judged, and looks wrong; a single sample proves nothing.
LEAST_WRONG = 0.75


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Of `measured` whole frames of a sample (with a calibration: of its region) with their spikes.

    kind: of the frames, "gt" or "lq". shown: name of the middle one, the frame (sH, sW, 3) uint8, the spikes (H, W).
    """

    found: Agreement
    is_right: bool
    sentence: str
    kind: str
    measured: int
    shown: tuple[str, np.ndarray, np.ndarray]


def warning_of(dataset: Any, option_file: str) -> str | None:
    """A sentence if the spikes of nearly all samples looked at lie wrongly; None too where nothing can be compared."""
    if not isinstance(dataset, TrainClips) or not dataset.spikes:
        return None
    looks = {index: compare(dataset, dataset.draw((0, index)), FRAMES) for index in _spread(len(dataset))}
    wrong = {index: look.sentence for index, look in looks.items() if not look.is_right}
    if not _is_clear(len(wrong), len(looks)):
        return None
    index, sentence = next(iter(wrong.items()))
    return (
        f"spikes and frames of {len(wrong)} of {len(looks)} training samples do not show the same. Sample {index}: "
        f"{sentence} Look at it: python scripts/show_sample.py --opt {option_file} --index {index} --out page.html"
    )


def warning_of_clips(clips: Sequence[DatasetClip]) -> str | None:
    """As `warning_of`, of a user's own clips."""
    places = [(clip, index) for clip in clips if clip.dataset.spikes for index in range(len(clip.stems))]
    looks = {
        (clip, index): compare(clip.dataset, clip.dataset.draw(clip.index, index, 1), 1)
        for clip, index in (places[i] for i in _spread(len(places)))
    }
    wrong = {place: look.sentence for place, look in looks.items() if not look.is_right}
    if not _is_clear(len(wrong), len(looks)):
        return None
    (clip, index), sentence = next(iter(wrong.items()))
    return (
        f"spikes and frames of {len(wrong)} of {len(looks)} frames do not show the same. {clip.name}/"
        f"{clip.stems[index]}: {sentence} What the spikes may be: python scripts/spike_tool.py info "
        f"{clip.dataset.clips[clip.index].spike[index]}"
    )


def _spread(count: int) -> list[int]:
    return sorted({round(i) for i in np.linspace(0, count - 1, SAMPLES)}) if count else []


def _is_clear(wrong: int, looks: int) -> bool:
    return looks >= 2 and wrong >= LEAST_WRONG * looks


def compare(dataset: Any, draw: Draw, count: int) -> Comparison:
    """count: frames of the sample to measure, and the middle one. A crop would show less than the whole frames."""
    region = Augment(*dataset.spikes.grid(draw.clip.size).region)
    played = list(zip(*draw.played, strict=True))
    middle = len(played) // 2
    chosen = sorted({middle, *(round(i) for i in np.linspace(0, len(played) - 1, count))})
    kind = "gt" if draw.clip.gt else "lq"
    if kind == "lq":
        dataset = copy.copy(dataset)
        dataset.spikes, clip = with_mean_of_exposure(dataset.spikes, draw.clip)
        draw = dataclasses.replace(draw, clip=clip)
    pairs = []
    for place in chosen:
        frame, back = played[place]
        item = dataset.read(dataclasses.replace(draw, frames=[frame], backwards=[back], aug=region))
        spikes = sharp_picture(dataset.spikes, item["spike"][0].numpy(), draw.clip.exposures[frame], back)
        pairs.append((spikes, grey_of(item[kind][0], region)))
        if place == middle:
            shown = (f"{kind} {draw.clip.stems[frame]}", tensor_to_uint8(item[kind][0][:3]), spikes)
    calibrated = dataset.spikes.calibration is not None
    found, is_right, sentence = judge(pairs, pixel_of(dataset, draw), kind == "gt", calibrated)
    return Comparison(found, is_right, sentence, kind, len(pairs), shown)


def pixel_of(dataset: Any, draw: Draw) -> int:
    """RGB pixels per spike pixel, at least 1."""
    calibration = dataset.spikes.calibration
    return max(1, round(scale_of(calibration.to_rgb()))) if calibration else dataset.spikes.grid(draw.clip.size).step


def grey_of(frame: Tensor, size: Augment) -> np.ndarray:
    """(3, sH, sW) -> (H, W) float32, of the size of the lq frame."""
    grey = to_grey(frame[:3].permute(1, 2, 0).numpy())
    return cv2.resize(grey, (size.width, size.height), interpolation=cv2.INTER_AREA)

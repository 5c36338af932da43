"""Check on a few samples, before training, that spikes and frames show the same at the same place.

Spikes around the sharp instant are compared with the sharp frame; without one, those of the whole
exposure with the blurry frame, in which strong motion leaves nothing of the sharp instant.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from data.augment import Augment
from data.clip import Exposure
from data.clip_dataset import Draw, TrainClips
from data.spike.simulate import to_grey
from utils.image import tensor_to_uint8

# Measured on 8 clips of the sample set, 5 frames each, with voxel and tfi. In place, gradients
# correlate with 0.86 and more (blurry frames: 0.65), flipped, mirrored, transposed or foreign ones
# with 0.28 and less. The phase correlation responds with 0.80 and more (blurry: 0.44), with 0.53
# and more where the spikes are shifted, else with 0.39 and less.
LEAST_CORRELATION, LEAST_RESPONSE = 0.4, 0.42
# In spike pixels. A frame that is blurred by motion may lie a little beside the sharp moment.
SHARP_TOLERANCE, BLURRY_TOLERANCE = 0.5, 2.0
SAMPLES, FRAMES = 4, 2  # about a second with frames of 720p
# A clip without texture cannot be judged, and looks wrong; a single sample proves nothing.
LEAST_WRONG = 0.75

Pair = tuple[np.ndarray, np.ndarray]  # display values (H, W) float32 of the spikes and of the frame
# Correlation, shift and response, see `Comparison`
Measures = tuple[float, tuple[float, float], float]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Of `measured` whole frames of a sample (with a calibration: of its region) with their spikes.

    correlation: of the gradients' magnitudes, mean over the frames. shift: (right, down) offset of
    the spikes from the frame in RGB pixels, median over the frames. response: of the phase
    correlation, at most about 1.
    kind: of the frames, "gt" or "lq". shown: name of the middle one, the frame (sH, sW, 3) uint8,
    the spikes (H, W).
    """

    correlation: float
    shift: tuple[float, float]
    response: float
    is_right: bool
    sentence: str
    kind: str
    measured: int
    shown: tuple[str, np.ndarray, np.ndarray]


def warning_of(source: Any, option_file: str = "") -> str | None:
    """A sentence if the spikes of nearly all samples looked at lie wrongly; None too where nothing
    can be compared.

    source: a training set, of this option file; or the list of a user's own clips.
    """
    is_own = isinstance(source, list)
    every: Sequence[Any] = ()
    if isinstance(source, TrainClips) and source.clips[0].spikes:
        every = range(len(source))
    if is_own:
        every = [
            (clip, index) for clip in source if clip.clip.spikes for index in range(len(clip.stems))
        ]
    looked, wrong = _spread(len(every), SAMPLES), []
    for number in looked:
        place: Any = every[number]
        if is_own:
            reader, index = place
            dataset = reader.dataset
            draw = dataset.draw(reader.index, index, 1)
        else:
            dataset = source
            draw = dataset.draw((0, place))
        found = compare(dataset, draw, FRAMES)
        wrong += [] if found.is_right else [(place, draw, found.sentence)]
    if len(looked) < 2 or len(wrong) < LEAST_WRONG * len(looked):
        return None
    place, draw, sentence = wrong[0]
    kind, frame = ("frames" if is_own else "training samples"), draw.frames[0]
    name = f"{draw.clip.name}/{draw.clip.stems[frame]}" if is_own else f"Sample {place}"
    look = (
        f"Look at it: python scripts/show_sample.py --opt {option_file} --index {place} "
        "--out page.html"
    )
    if is_own:
        look = f"What the spikes may be: python scripts/spike_tool.py info {draw.clip.spike[frame]}"
    return (
        f"spikes and frames of {len(wrong)} of {len(looked)} {kind} do not show the same. "
        f"{name}: {sentence} {look}"
    )


def _spread(count: int, wanted: int) -> list[int]:
    """About `wanted` of the numbers 0 ... count - 1, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, wanted)}) if count else []


def compare(dataset: Any, draw: Draw, count: int) -> Comparison:
    """count: frames of the sample to measure, and the middle one.

    A crop would show less than the whole frames.
    """
    grid, spikes = draw.clip.grid, draw.clip.spikes
    region, kind = Augment(*grid.region), "gt" if draw.clip.gt else "lq"
    # One channel, the mean of all planes of a frame, is as blurry as the RGB frame
    if kind == "lq":
        spikes = spikes.changed(
            name="voxel", options={"num_bins": 1}, channels=1, ignored=frozenset(), rate=1.0
        )
        own = [
            Exposure(e.own, (e.own,), 0, (e.own.count - 1) / 2, e.origin)
            for e in draw.clip.exposures
        ]
        clip = dataclasses.replace(draw.clip, exposures=tuple(own), spikes=spikes)
        draw = dataclasses.replace(draw, clip=clip)
    played, pairs = list(zip(draw.frames, draw.backwards, strict=True)), []
    middle = len(played) // 2
    for place in sorted({middle, *_spread(len(played), count)}):
        frame, back = played[place]
        item = dataset.read(dataclasses.replace(draw, frames=[frame], backwards=[back], aug=region))
        light = spikes.sharp_image(item["spike"][0].numpy(), draw.clip.exposures[frame], back)
        image = item[kind][0, :3]
        grey = to_grey(image.permute(1, 2, 0).numpy())
        pairs.append(
            (light, cv2.resize(grey, (region.width, region.height), interpolation=cv2.INTER_AREA))
        )
        if place == middle:
            shown = (f"{kind} {draw.clip.stems[frame]}", tensor_to_uint8(image), light)
    measures = correlation, shift, _ = measure(pairs, grid.pixel)
    distance, tolerance = (
        float(np.hypot(*shift)),
        grid.pixel * (SHARP_TOLERANCE if kind == "gt" else BLURRY_TOLERANCE),
    )
    sentence = f"Spikes and frame agree to {max(distance, 0.1):.1f} px."
    if not (is_right := correlation >= LEAST_CORRELATION and distance <= tolerance):
        wrong = _what_differs(pairs, measures, grid.pixel, spikes.calibration is not None)
        sentence = f"They do not agree: {wrong}."
    return Comparison(*measures, is_right, sentence, kind, len(pairs), shown)


def _what_differs(
    pairs: Sequence[Pair], measures: Measures, pixel: int, is_calibrated: bool
) -> str:
    """What may be wrong with the geometry."""
    correlation, shift, response = measures
    turned = {
        "upside down (spike.flip)": np.s_[::-1],
        "mirrored left to right (spike.calibration, key mirror)": np.s_[:, ::-1],
        "turned by 180 degrees (spike.calibration, key mirror, and spike.flip)": np.s_[::-1, ::-1],
    }
    for name, order in turned.items():
        other, _, _ = measure([(spikes[order], frame) for spikes, frame in pairs], pixel)
        if other >= LEAST_CORRELATION > correlation:
            return f"the spikes are {name}; correlation {correlation:.2f}, turned {other:.2f}"
    if response >= LEAST_RESPONSE:
        sides = [
            f"{abs(value):.1f} px {names[value < 0]}"
            for value, names in zip(
                shift, (("to the right", "to the left"), ("down", "up")), strict=True
            )
            if abs(value) >= 0.35
        ]
        keys = (
            "two cameras, spike.head_columns, and the planes (spike.first, spike.exposure, "
            "spike.center)"
        )
        return f"the spikes are shifted by {' and '.join(sides)}: check spike.calibration of {keys}"
    keys = (
        "spike.calibration, spike.flip"
        if is_calibrated
        else "spike.flip, spike.h and spike.w, spike.calibration"
    )
    text = "and that these are the spikes of this frame. Without texture, no geometry can be judged"
    return f"check {keys}, {text}: look at other samples"


def measure(pairs: Sequence[Pair], pixel: int) -> Measures:
    """correlation, shift and response, see `Comparison`. pixel: RGB pixels per spike pixel, each
    way.
    """
    found = []
    for pair in pairs:
        spikes, frame = (_gradients(image, pixel) for image in pair)
        if spikes.std() < 1e-6 or frame.std() < 1e-6:
            found.append((0.0, 0.0, 0.0, 0.0))
            continue
        correlation = np.corrcoef(spikes.ravel(), frame.ravel())[0, 1]
        window = cv2.createHanningWindow(spikes.shape[::-1], cv2.CV_32F)
        # It multiplies its arguments by the window, in place, and gives where the frame lies
        # relative to the spikes.
        (right, down), response = cv2.phaseCorrelate(spikes, frame, window)
        found.append((correlation, -pixel * right, -pixel * down, response))
    correlation, _, _, response = np.mean(found, axis=0).tolist()
    _, right, down, _ = np.median(found, axis=0).tolist()
    return correlation, (right, down), response


def _gradients(image: np.ndarray, pixel: int) -> np.ndarray:
    """Magnitude of the gradient on the grid of the spikes, (H / pixel, W / pixel) float32, without
    its border.

    Without 2 pixels at the border: the gradient across it is 0 in every image, which would
    correlate. Of an even length that needs no padding: cv2.phaseCorrelate pads others, and is half
    a pixel off where the result is odd.
    """
    sides = [max(1, side // pixel) for side in image.shape]
    small = cv2.resize(image, sides[::-1], interpolation=cv2.INTER_AREA) if pixel > 1 else image
    smooth = cv2.GaussianBlur(np.ascontiguousarray(small, np.float32), (0, 0), 1.0)
    found = cv2.magnitude(cv2.Sobel(smooth, cv2.CV_32F, 1, 0), cv2.Sobel(smooth, cv2.CV_32F, 0, 1))
    inner = []
    for side in sides:
        shorter = range(side - 4, min(side, 8) - 1, -1)
        length = next((n for n in shorter if n % 2 == 0 and cv2.getOptimalDFTSize(n) == n), side)
        inner.append(slice((side - length) // 2, (side - length) // 2 + length))
    return np.ascontiguousarray(found[inner[0], inner[1]])

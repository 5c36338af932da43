"""Do spikes and frames show the same picture at the same place? A wrong geometry shows here before any training."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from data.clip import Clip, Exposure
from data.spike.represent import REPRESENTATIONS, represent
from data.spike.represent_relative import sharp_light
from data.spike.simulate import DISPLAY_GAMMA
from data.spike_source import DatSpikes

# Measured on 8 clips of the sample set, 5 frames each, with voxel and tfi. In place, gradients correlate with 0.86 and
# more (blurry frames: 0.65), flipped, mirrored, transposed or foreign ones with 0.28 and less. The phase correlation
# responds with 0.80 and more (blurry: 0.44), with 0.53 and more where the spikes are shifted, else with 0.39 and less.
LEAST_CORRELATION, LEAST_RESPONSE = 0.4, 0.42
# In spike pixels. A frame that is blurred by motion may lie a little beside the sharp moment.
SHARP_TOLERANCE, BLURRY_TOLERANCE = 0.5, 2.0
NEAR = 10  # planes around the sharp frame; single planes are averaged over as many

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Agreement:
    """correlation: of the gradients' magnitudes, mean over the pairs. shift: (right, down) in RGB pixels by which the
    spikes lie beside the frame, median over the pairs. response: of the phase correlation, at most about 1.
    """

    correlation: float
    shift: tuple[float, float]
    response: float

    @property
    def distance(self) -> float:
        return float(np.hypot(*self.shift))


def measure(pairs: Sequence[Pair], pixel: int) -> Agreement:
    """pairs: display values (H, W) float32 of spikes and of the frame. pixel: RGB pixels per spike pixel, each way."""
    found = [_measure_one(_gradients(spikes, pixel), _gradients(frame, pixel)) for spikes, frame in pairs]
    correlation, response = (float(np.mean([one[i] for one in found])) for i in (0, 3))
    # phaseCorrelate gives where the frame lies relative to the spikes.
    right, down = (-pixel * float(np.median([one[i] for one in found])) for i in (1, 2))
    return Agreement(correlation, (right, down), response)


def judge(pairs: Sequence[Pair], pixel: int, is_sharp: bool, is_calibrated: bool) -> tuple[Agreement, bool, str]:
    """(numbers, whether the geometry looks right, one sentence). is_sharp: the frames are not blurred by motion."""
    found = measure(pairs, pixel)
    keys = "spike.calibration, spike.flip" if is_calibrated else "spike.flip, spike.h and spike.w, spike.calibration"
    tolerance = pixel * (SHARP_TOLERANCE if is_sharp else BLURRY_TOLERANCE)
    if found.correlation >= LEAST_CORRELATION and found.distance <= tolerance:
        return found, True, f"Spikes and frame agree to {max(found.distance, 0.1):.1f} px."
    turned = {
        "upside down (spike.flip)": np.s_[::-1],
        "mirrored left to right (spike.calibration, key mirror)": np.s_[:, ::-1],
        "turned by 180 degrees (spike.calibration, key mirror, and spike.flip)": np.s_[::-1, ::-1],
    }
    for name, order in turned.items():
        other = measure([(spikes[order], frame) for spikes, frame in pairs], pixel)
        if other.correlation >= LEAST_CORRELATION > found.correlation:
            text = f"correlation {found.correlation:.2f}, turned {other.correlation:.2f}"
            return found, False, f"They do not agree: the spikes are {name}; {text}."
    if found.response >= LEAST_RESPONSE:
        sides = [
            f"{abs(value):.1f} px {names[value < 0]}"
            for value, names in zip(found.shift, (("to the right", "to the left"), ("down", "up")), strict=True)
            if abs(value) >= 0.35
        ]
        return found, False, (
            f"They do not agree: the spikes are shifted by {' and '.join(sides)}: check spike.calibration of "
            "two cameras, spike.head_columns, and the planes (spike.first, spike.exposure, spike.center)."
        )  # fmt: skip
    return found, False, (
        f"They do not agree: check {keys}, and that these are the spikes of this frame. Without texture, no geometry "
        "can be judged: look at other samples."
    )  # fmt: skip


def sharp_channels(spikes: DatSpikes, exposure: Exposure, reverse: bool) -> list[int]:
    """The channels nearest to the instant of the sharp frame: the two middle ones of an even number of bins.

    reverse: the frame is played backwards.
    """
    offsets = spikes.options.get("offsets")
    if offsets and spikes.options.get("num_bins") is None:
        return [int(np.argmin(np.abs(offsets)))]
    # How much each plane counts in each channel: plane t of pixel t alone fires.
    count, center = exposure.own.count, exposure.center
    impulses = np.eye(count, dtype=np.uint8)[:, None]
    weights = represent(spikes.name, impulses, center, reverse=reverse, **spikes.options)[:, 0]
    distances = np.abs(np.arange(count) - center)
    mean = (weights @ distances) / np.maximum(weights.sum(axis=1), 1e-9)
    near = 0.51 if REPRESENTATIONS[spikes.name].proportional else NEAR
    return np.flatnonzero(mean <= mean.min() + near).tolist()


def sharp_picture(spikes: DatSpikes, channels: np.ndarray, exposure: Exposure, reverse: bool) -> np.ndarray:
    """What the channels (S, H, W) of a frame show of the sharp instant, in display values (H, W) float32, >= 0.

    Ratios to the light of the exposure are turned into light. exposure, reverse: see `sharp_channels`.
    """
    if spikes.name == "relative":
        return sharp_light(channels, spikes.options["half_windows"], spikes.gamma, spikes.light)
    is_display = not REPRESENTATIONS[spikes.name].proportional and spikes.light == "display"
    mean = np.maximum(channels[sharp_channels(spikes, exposure, reverse)].mean(0), 0)
    return mean if is_display else mean ** (spikes.gamma / DISPLAY_GAMMA)


def with_mean_of_exposure(spikes: DatSpikes, clip: Clip) -> tuple[DatSpikes, Clip]:
    """The same spikes, represented by one channel: the mean of all planes of a frame, as blurry as the RGB frame."""
    mean = copy.copy(spikes)
    mean.name, mean.options, mean.channels, mean.ignored = "voxel", {"num_bins": 1}, 1, set()
    mean.rate = 1.0
    exposures = (Exposure(e.own, (e.own,), 0, 0, (e.own.count - 1) / 2, e.origin) for e in clip.exposures)
    return mean, dataclasses.replace(clip, exposures=tuple(exposures))


def _gradients(picture: np.ndarray, pixel: int) -> np.ndarray:
    """Magnitude of the gradient on the grid of the spikes, (H / pixel, W / pixel) float32, without its border."""
    height, width = (max(1, side // pixel) for side in picture.shape)
    small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA) if pixel > 1 else picture
    smooth = cv2.GaussianBlur(np.ascontiguousarray(small, np.float32), (0, 0), 1.0)
    found = cv2.magnitude(cv2.Sobel(smooth, cv2.CV_32F, 1, 0), cv2.Sobel(smooth, cv2.CV_32F, 0, 1))
    return np.ascontiguousarray(found[_inner(height), _inner(width)])


def _inner(side: int) -> slice:
    """The part that is compared, in the middle.

    Without 2 pixels at the border: the gradient across it is 0 in every picture, which would correlate. Of an even
    length that needs no padding: cv2.phaseCorrelate pads others, and is half a pixel off where the result is odd.
    """
    least = min(side, 8)
    fits = (n for n in range(side - 4, least - 1, -1) if n % 2 == 0 and cv2.getOptimalDFTSize(n) == n)
    length = next(fits, side)
    return slice((side - length) // 2, (side - length) // 2 + length)


def _measure_one(spikes: np.ndarray, frame: np.ndarray) -> tuple[float, float, float, float]:
    """(correlation, shift in columns and rows of the frame relative to the spikes, response)."""
    if spikes.std() < 1e-6 or frame.std() < 1e-6:
        return 0.0, 0.0, 0.0, 0.0
    window = cv2.createHanningWindow(spikes.shape[::-1], cv2.CV_32F)
    # Copies: it multiplies its arguments by the window, in place.
    (right, down), response = cv2.phaseCorrelate(spikes.copy(), frame.copy(), window)
    return float(np.corrcoef(spikes.ravel(), frame.ravel())[0, 1]), right, down, response

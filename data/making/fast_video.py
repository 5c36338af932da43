"""Make the pictures and the spikes of a clip from a fast video, without a rig.

A rig is a pair of simulated cameras. prepare.py uses a rig for other videos and for photographs.

    make_images   averages raw frames to blurry frames, and writes sharp frames
    make_spikes   simulates a sensor that sees the light between the raw frames, and writes spikes

An exposure is a group of `average` raw frames, e.g. 7. Raw frames after the last whole exposure are
left out. E.g. 20 raw frames give 2 exposures, and 6 raw frames are left out.

What must stay: every bit of the files, because data sets are published, and interrupted data sets
are continued. If a change makes an image or a spike differ, raise VERSION in data/making/recipe.py.
Free to change: speed and memory.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from data.clips.user_frames import FrameSource
from data.making.frame_light import grey_light
from data.making.light_path import LightPath
from data.making.recipe import Recipe
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_linear
from data.spike.simulate import IntegrateAndFire
from utils.image import imwrite_rgb
from utils.random_streams import published_stream

# ---- Pictures ----------------------------------------------------------------------------------


def make_images(average: int, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write the frames of all exposures into four folders in `folder`.

    The names of the folders must stay: option files name them (`lq_folder`).

        blur         mean of the display values, as in GoPro
        blur_gamma   mean of linear light
        sharp        the middle raw frame
        instants     raw frames spread over the exposure: the exposure is divided into
                     `recipe.instants` equal parts, and the raw frame nearest to the middle of each
                     part is written

    average: number of raw frames in an exposure. frames: all raw frames of the clip.
    If a change of this function changes any bit of an image, raise VERSION (recipe.py).
    """
    middle = average // 2
    instant_indexes = _instant_indexes(average, recipe.instants)

    # The first raw frame of each whole exposure. E.g. with average 7, 20 raw frames give 0 and 7,
    # because an exposure that begins at raw frame 14 would need 21 raw frames.
    first_raw_frames = range(0, len(frames) - average + 1, average)
    for number, first in enumerate(first_raw_frames):
        written_indexes = {middle, *instant_indexes}
        exposure = _expose(frames, range(first, first + average), recipe.gamma, written_indexes)
        images = {
            f"blur/{number:06d}": exposure.blur,
            f"blur_gamma/{number:06d}": exposure.blur_gamma,
            f"sharp/{number:06d}": exposure.raw_frames[middle],
        }
        for instant, index in enumerate(instant_indexes):
            images[f"instants/{number:06d}_{instant}"] = exposure.raw_frames[index]
        for name, image in images.items():
            imwrite_rgb(folder / f"{name}.png", image)


class _Exposure(NamedTuple):
    """The pictures of one exposure, (H, W, 3) uint8 each."""

    blur: np.ndarray  # mean of the display values
    blur_gamma: np.ndarray  # mean of linear light, as display values
    # {index in the exposure: raw frame}, only for the raw frames that are written to files
    raw_frames: dict[int, np.ndarray]


def _expose(frames: FrameSource, numbers: range, gamma: float, written: set[int]) -> _Exposure:
    """Average the raw frames of one exposure. v are the display values of a pixel, 0 ... 255:

        blur       = mean(v)
        blur_gamma = 255 * mean((v / 255) ** gamma) ** (1 / gamma)

    The raw frames must be added in the order of `numbers`, because the order decides the last bits
    of the sums.

    numbers: numbers of the raw frames. gamma: exponent from display values to light.
    written: indices of the raw frames that are returned, e.g. {3} for the fourth raw frame of the
    exposure. Not all raw frames are returned, because all raw frames would take much memory.
    """
    # Linear light of each display value 0 ... 255, as float32.
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, gamma)
    # Both sums begin with a single number, and have the shape (H, W, 3) after the first addition.
    display_sum = np.float32(0.0)
    light_sum = np.float32(0.0)
    raw_frames = {}
    for index, number in enumerate(numbers):
        image = frames.read(number)  # (H, W, 3) uint8
        if index in written:
            raw_frames[index] = np.ascontiguousarray(image)
        display_sum = display_sum + image.astype(np.float32)
        light_sum = light_sum + cv2.LUT(image, curve)
    blur = display_sum / len(numbers)
    # The mean light as a display value: 255 * light ** (1 / gamma).
    mean_light = light_sum / len(numbers)
    blur_gamma = 255.0 * np.power(mean_light, np.float32(1.0 / gamma))
    return _Exposure(
        blur=np.rint(blur).astype(np.uint8),
        blur_gamma=np.rint(blur_gamma).astype(np.uint8),
        raw_frames=raw_frames,
    )


def _instant_indexes(average: int, instants: int) -> list[int]:
    """Return the raw frame of each instant, as its index in the exposure.

    The instants are average / K raw frames apart, and the middle instant is the middle raw frame.
    Each index is rounded to a whole number:

        index(k) = average // 2 + round((k - K // 2) * average / K),   k = 0 ... K - 1

    E.g. average 7 and K = 3 give the indexes 1, 3 and 5:

        k = 0    3 + round(-7 / 3) = 3 - 2 = 1
        k = 1    3 + round(0)      = 3 + 0 = 3
        k = 2    3 + round(7 / 3)  = 3 + 2 = 5

    average: number of raw frames in an exposure, odd. instants: number of instants K, odd or 0.

    The instants must be symmetric about the middle, so that reversed time has the same instants.
    The formula is symmetric, because round(-x) = -round(x) for every x in Python.
    test_the_instants_are_raw_frames_spread_over_the_exposure fails for other instants.
    """
    middle = average // 2
    indexes = []
    for k in range(instants):
        instants_from_middle = k - instants // 2
        frames_from_middle = round(instants_from_middle * average / instants)
        indexes.append(middle + frames_from_middle)
    return indexes


# ---- Spikes ------------------------------------------------------------------------------------


def make_spikes(clip: str, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write the spikes of a clip, one .dat for each exposure.

    Plane p of exposure e shows the light of the time t, in raw frames:

        t = e * average + p / interpolate

    E.g. with average 7 and interpolate 8, plane 4 of exposure 1 shows the light at 7 + 4 / 8 = 7.5,
    half way from raw frame 7 to raw frame 8.
    After the last raw frame the light is unknown, so the last file may have fewer planes.

    If a change of this function changes any spike, raise VERSION (recipe.py).

    clip: name of the clip. recipe: the settings. frames: raw frames of the clip.
    folder: folder of the .dat files.
    """
    average = recipe.raw_frames_per_exposure(clip)
    planes = recipe.planes_of(clip)
    frame_height, frame_width = frames.size
    height = frame_height // recipe.ratio
    width = frame_width // recipe.ratio
    # With light "display", the sensor integrates display values as they are. So the exponent is 1.
    gamma = recipe.gamma if recipe.light == "linear" else 1.0
    light_of_frame = grey_light(frames, (height, width), gamma)  # number of a raw frame -> (h, w)
    light_path = LightPath(light_of_frame, count=len(frames), method=recipe.method)
    sensor = IntegrateAndFire(
        height,
        width,
        rate=recipe.rate,
        threshold=recipe.threshold,
        # The published data were made with this generator. Its key is the seed and then the bytes
        # of the name of the clip, e.g. (0, 97, 98) for seed 0 and clip "ab".
        rng=published_stream(recipe.seed, *clip.encode()),
        initial_charge=recipe.initial_charge,
        shot_noise=recipe.shot_noise,
        dark_rate=recipe.dark_rate,
        threshold_mismatch=recipe.threshold_mismatch,
    )

    def planes_in(e: int) -> Iterator[np.ndarray]:
        """Yield the planes (1, h, w) of exposure e, as far as the light is known."""
        for p in range(planes):
            t = e * average + p / recipe.interpolate
            if t <= len(frames) - 1:  # the last raw frame
                plane = sensor.step(light_path.at(t))  # (h, w)
                yield plane[None]

    # The exposures must be made in the order of time, because the charge at the end of an exposure
    # is the first charge of the next exposure.
    for number in range(len(frames) // average):
        geometry = SpikeGeometry(height, width)
        write_spikes(folder / f"{number:06d}.dat", planes_in(number), geometry)

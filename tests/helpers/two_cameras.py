"""A scene, for tests, that an RGB camera and a spike camera with another lens record at the same
time.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.cameras.spike_grid import load_calibration, mirroring
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_display, to_linear, to_uint8

Size = tuple[int, int]
LIMIT_PX = 0.3  # of the largest error of a calibration, in RGB pixels


def texture(rng: np.random.Generator, size: Size) -> np.ndarray:
    """(H, W) float32 display values in [0, 1]: shapes with edges at all angles on soft clouds."""
    height, width = size
    clouds = cv2.resize(
        rng.random((max(height // 24, 2), max(width // 24, 2)), np.float32), (width, height)
    )
    picture = 0.25 + 0.5 * clouds
    for _ in range(height * width // 500):
        x, y, grey = (
            int(rng.integers(width)),
            int(rng.integers(height)),
            float(rng.uniform(0.05, 0.95)),
        )
        corners = np.array([x, y]) + rng.uniform(-1, 1, (int(rng.integers(3, 7)), 2)) * rng.uniform(
            4, height / 12
        )
        cv2.fillPoly(picture, [corners.astype(np.int32)], grey, cv2.LINE_AA)
    return np.clip(cv2.GaussianBlur(picture, (0, 0), 0.7), 0, 1)


def similarity(
    angle_deg: float, scale: float, spike: Size, rgb: Size, shift: Sequence[float]
) -> np.ndarray:
    """(3, 3): spike pixel -> RGB pixel, turned and enlarged about the pictures' centres, then
    shifted by (x, y).
    """
    of_spike, of_rgb = (((size[1] - 1) / 2, (size[0] - 1) / 2) for size in (spike, rgb))
    matrix = np.vstack((cv2.getRotationMatrix2D(of_spike, -angle_deg, scale), (0, 0, 1)))
    matrix[:2, 2] += np.subtract(of_rgb, of_spike) + shift
    return matrix


def record(
    rng: np.random.Generator, to_rgb: np.ndarray, rgb: Size, spike: Size, *,
    motion: Sequence[float] = (0.0, 0.0), planes: int = 40, around: int = 0, noise: float = 0.0,
    rate: float = 0.6,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """RGB frame (H, W) uint8 and spikes (around + T + around, h, w): the exposure, and planes
    before and after it.

    The scene moves by `motion` (x, y) RGB pixels during the exposure. noise: standard deviation of
    the frame's noise in display values; with it, the spikes have shot noise and fixed patterns.
    """
    margin = max(rgb) // 3
    light = to_linear(texture(rng, (rgb[0] + 2 * margin, rgb[1] + 2 * margin)))
    times = (np.arange(-around, planes + around) + 0.5) / planes - 0.5
    places = [
        np.array([[1, 0, margin - motion[0] * t], [0, 1, margin - motion[1] * t], [0, 0, 1.0]])
        for t in times
    ]
    noisy = {"shot_noise": 0.1, "threshold_mismatch": 0.03} if noise else {}
    sensor = IntegrateAndFire(*spike, rate=rate, rng=rng, **noisy)
    spikes = sensor.run(
        _views(light, (place @ to_rgb for place in places), spike, any(motion), fine=3)
    )
    exposed = places[around : around + planes]
    frame = to_display(np.mean(list(_views(light, exposed, rgb, any(motion), fine=1)), axis=0))
    return to_uint8(frame + noise * rng.standard_normal(rgb)), spikes


def _views(
    light: np.ndarray, places: Iterable[np.ndarray], size: Size, is_moving: bool, fine: int
) -> Iterator:
    """What a camera of `size` sees of the light from these places: the mean of fine x fine points
    in each pixel.
    """
    # The centre of point i of n in a pixel is at (i + 0.5) / n - 0.5.
    to_pixel = np.array(
        [[1 / fine, 0, 0.5 / fine - 0.5], [0, 1 / fine, 0.5 / fine - 0.5], [0, 0, 1]]
    )
    from scipy.ndimage import map_coordinates  # takes a second, and every worker reads this file

    view = None
    for place in places:
        if view is None or is_moving:
            # Coordinates in float: warpPerspective would round them to 1/32 pixel.
            x, y = np.meshgrid(np.arange(size[1] * fine), np.arange(size[0] * fine))
            u, v, depth = np.tensordot(place @ to_pixel, np.stack((x, y, np.ones_like(x))), 1)
            points = map_coordinates(light, (v / depth, u / depth), order=1, output=np.float64)
            view = points.reshape(size[0], fine, size[1], fine).mean(axis=(1, 3))
        yield view


def write_pair(
    folder: Path, name: str, truth: np.ndarray, mirror: str, rng: np.random.Generator, **made: Any
) -> list:
    """The flags --pair DAT FRAME of a new pair. made: arguments of `record`."""
    frame, spikes = record(rng, truth @ mirroring(mirror, made["spike"]), **made)
    write_spikes(folder / f"{name}.dat", spikes, SpikeGeometry(*made["spike"]))
    assert cv2.imwrite(str(folder / f"{name}.png"), frame)
    return ["--pair", folder / f"{name}.dat", folder / f"{name}.png"]


def error_px(path: Path, truth: np.ndarray, mirror: str) -> tuple[float, float]:
    """Mean and largest error in RGB pixels of the calibration in a file."""
    found = load_calibration(path)
    y, x = np.mgrid[: found.spike_size[0] : 4, : found.spike_size[1] : 4]
    places = np.stack((x.ravel(), y.ravel()), axis=1).astype(np.float64)
    height, width = found.spike_size
    true = cv2.perspectiveTransform(places[None], truth @ mirroring(mirror, (height, width)))[0]
    inside = ((true >= 0) & (true <= np.array(found.rgb_size[::-1]) - 1)).all(axis=1)
    distances = np.hypot(
        *(cv2.perspectiveTransform(places[None], found.to_rgb())[0] - true)[inside].T
    )
    return float(distances.mean()), float(distances.max())

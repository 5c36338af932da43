"""A scene that an RGB camera and a spike camera with another lens record at the same time.

Tests of calibration make a matrix (`similarity`), record the scene through it (`record`,
`write_pair`), and compare the matrix that a program finds with the true matrix (`error_px`).
A size is always (height, width). A matrix (3, 3) maps a spike pixel (x, y, 1) to an RGB pixel.

What must stay: the order of the random draws in `texture` and `record`. Another order gives another
picture, on which a calibration has other errors. The tests compare these errors with limits, e.g.
LIMIT_PX.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.cameras.calibration import load_calibration, mirroring
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_display, to_linear, to_uint8
from data.spike.simulate import IntegrateAndFire

Size = tuple[int, int]

# The largest error of a calibration that a test accepts, in RGB pixels.
LIMIT_PX = 0.3


def texture(rng: np.random.Generator, size: Size) -> np.ndarray:
    """Return a grey picture (H, W) of display values in [0, 1], float32.

    The picture has polygons on soft clouds. The edges of the polygons have all angles. The numbers
    below were chosen by hand.
    """
    height, width = size
    # Clouds: random values, about one per 24 x 24 pixels, enlarged to the whole picture.
    coarse = (max(height // 24, 2), max(width // 24, 2))
    clouds = cv2.resize(rng.random(coarse, np.float32), (width, height))
    picture = 0.25 + 0.5 * clouds

    # One polygon for each 500 pixels. Later polygons cover earlier ones.
    polygons = height * width // 500
    for _ in range(polygons):
        x = int(rng.integers(width))
        y = int(rng.integers(height))
        grey = float(rng.uniform(0.05, 0.95))
        number_of_corners = int(rng.integers(3, 7))
        directions = rng.uniform(-1, 1, (number_of_corners, 2))
        radius = rng.uniform(4, height / 12)
        corners = np.array([x, y]) + directions * radius
        cv2.fillPoly(picture, [corners.astype(np.int32)], grey, cv2.LINE_AA)

    return np.clip(cv2.GaussianBlur(picture, (0, 0), 0.7), 0, 1)


def similarity(
    angle_deg: float, scale: float, spike: Size, rgb: Size, shift: Sequence[float]
) -> np.ndarray:
    """Return the matrix (3, 3) of a turn, an enlargement and a shift.

    The spike picture is turned (clockwise on the screen, for angle_deg > 0) and enlarged about its
    centre. Its centre then goes to the centre of the RGB picture, plus `shift` (x, y) in RGB
    pixels.
    """
    spike_center = ((spike[1] - 1) / 2, (spike[0] - 1) / 2)
    rgb_center = ((rgb[1] - 1) / 2, (rgb[0] - 1) / 2)
    # For positive angles, OpenCV turns against the clock, and our angles turn with the clock. So
    # the sign changes.
    turn = cv2.getRotationMatrix2D(spike_center, -angle_deg, scale)
    matrix = np.vstack((turn, (0, 0, 1)))
    # The turn does not move the centre of the spike picture. The third column of the matrix is
    # added to each point. So add to it the vector from this centre to the centre of the RGB
    # picture, and the shift.
    matrix[:2, 2] += np.subtract(rgb_center, spike_center) + shift
    return matrix


def record(
    rng: np.random.Generator,
    to_rgb: np.ndarray,
    rgb: Size,
    spike: Size,
    *,
    motion: Sequence[float] = (0.0, 0.0),
    planes: int = 40,
    around: int = 0,
    noise: float = 0.0,
    rate: float = 0.6,
) -> tuple[np.ndarray, np.ndarray]:
    """Record a new scene. Returns the RGB frame (H, W) uint8 and spikes (T, h, w).

    to_rgb: the matrix from spike pixels to RGB pixels.
    rgb, spike: the sizes of the two pictures, (height, width).
    motion: the shift of the scene (x, y) during the exposure, in RGB pixels.
    planes: number of spike planes during the exposure.
    around: number of spike planes before the exposure, and again after it. So T is planes + 2
        around.
    noise: standard deviation of the frame's noise, in display values. If it is not 0, the spikes
        have shot noise and fixed patterns, too.
    rate: spikes per plane at full light.
    """
    # The scene has a margin around the frame. So the points that a camera sees lie within the
    # scene, although the scene moves and the spike camera may see more than the frame.
    margin = max(rgb) // 3
    light = to_linear(texture(rng, (rgb[0] + 2 * margin, rgb[1] + 2 * margin)))

    # The time of the middle of each plane. The unit is an exposure, which lasts from -0.5 to 0.5.
    # E.g. with planes = 4 and around = 1: -0.625 | -0.375, -0.125, 0.125, 0.375 | 0.625.
    times = (np.arange(-around, planes + around) + 0.5) / planes - 0.5
    # For each plane, the matrix from an RGB pixel to the point of the scene that the pixel sees.
    # The first pixel of the frame lies `margin` pixels from the edges of the scene. If the scene
    # moves to the right, a pixel sees a point farther to the left. So the shift is subtracted.
    shift_x, shift_y = motion
    to_scene = [_translation(margin - shift_x * t, margin - shift_y * t) for t in times]
    is_moving = any(motion)

    # The strengths 0.1 and 0.03 were chosen by hand.
    imperfections = {"shot_noise": 0.1, "threshold_mismatch": 0.03} if noise else {}
    camera = IntegrateAndFire(*spike, rate=rate, rng=rng, **imperfections)
    # `to_rgb` maps a spike pixel to an RGB pixel. Then `matrix` maps the RGB pixel to the scene.
    spike_matrices = [matrix @ to_rgb for matrix in to_scene]
    # In most tests, a spike pixel is larger than a pixel of the scene. So the light of a spike
    # pixel is the mean of 3 x 3 points within it.
    spikes = camera.run(
        _render_views(light, spike_matrices, spike, is_moving=is_moving, points_per_side=3)
    )

    # The frame is the mean of the light during the exposure. Its pixels are as large as the pixels
    # of the scene, so one point for each is enough.
    exposure_matrices = to_scene[around : around + planes]
    views = list(
        _render_views(light, exposure_matrices, rgb, is_moving=is_moving, points_per_side=1)
    )
    frame = to_display(np.mean(views, axis=0))
    return to_uint8(frame + noise * rng.standard_normal(rgb)), spikes


def _translation(x: float, y: float) -> np.ndarray:
    """Return the matrix (3, 3) of a shift."""
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1.0]])


def _render_views(
    light: np.ndarray,
    matrices: Iterable[np.ndarray],
    size: Size,
    *,
    is_moving: bool,
    points_per_side: int,
) -> Iterator[np.ndarray]:
    """Yield what a camera sees of the light (H, W) with each matrix: a picture of `size`.

    A matrix maps pixels of the camera to pixels of the light. A pixel of the camera is the mean of
    points_per_side x points_per_side points. If nothing moves, the first view is yielded again and
    again.
    """
    # This import is not at the top, because it takes a second, and every worker of pytest reads
    # this file.
    from scipy.ndimage import map_coordinates

    # This matrix maps the number of a point to its position in pixels. Point i of the n points of a
    # pixel is at (i + 0.5) / n - 0.5, seen from the centre of the pixel. E.g. three points are at
    # -1/3, 0 and 1/3.
    fine = points_per_side
    offset = 0.5 / fine - 0.5
    to_pixel = np.array([[1 / fine, 0, offset], [0, 1 / fine, offset], [0, 0, 1]])
    height, width = size

    view = None
    for matrix in matrices:
        if view is None or is_moving:
            x, y = np.meshgrid(np.arange(width * fine), np.arange(height * fine))
            points = np.stack((x, y, np.ones_like(x)))  # (3, fine h, fine w)
            u, v, depth = np.tensordot(matrix @ to_pixel, points, 1)  # each (fine h, fine w)
            # cv2.warpPerspective would be faster, but it rounds coordinates to 1/32 of a pixel.
            coordinates = (v / depth, u / depth)
            values = map_coordinates(light, coordinates, order=1, output=np.float64)
            view = values.reshape(height, fine, width, fine).mean(axis=(1, 3))
        yield view


def write_pair(
    folder: Path, name: str, truth: np.ndarray, mirror: str, rng: np.random.Generator, **scene: Any
) -> list:
    """Record a scene into <name>.dat and <name>.png. Returns the flags --pair DAT FRAME.

    truth: the matrix from spike pixels, mirrored back, to RGB pixels.
    mirror: how the spike camera mirrors its picture, as in the file of a calibration.
    scene: arguments of `record`.
    """
    size = scene["spike"]
    frame, spikes = record(rng, truth @ mirroring(mirror, size), **scene)
    dat = folder / f"{name}.dat"
    png = folder / f"{name}.png"
    write_spikes(dat, spikes, SpikeGeometry(*size))
    assert cv2.imwrite(str(png), frame)
    return ["--pair", dat, png]


def error_px(path: Path, truth: np.ndarray, mirror: str) -> tuple[float, float]:
    """Return the mean and the largest error of the calibration in a file, in RGB pixels.

    The error is measured at each fourth spike pixel that the RGB camera sees.

    truth, mirror: the true calibration, as for `write_pair`.
    """
    found = load_calibration(path)
    height, width = found.spike_size
    y, x = np.mgrid[:height:4, :width:4]
    pixels = np.stack((x.ravel(), y.ravel()), axis=1)  # (n, 2)
    pixels = pixels.astype(np.float64)[None]  # (1, n, 2), as OpenCV wants them

    # The positions of these pixels in the RGB frame, (n, 2).
    true_matrix = truth @ mirroring(mirror, (height, width))
    expected = cv2.perspectiveTransform(pixels, true_matrix)[0]
    actual = cv2.perspectiveTransform(pixels, found.to_rgb())[0]

    # Count only spike pixels that lie within the RGB frame.
    rgb_height, rgb_width = found.rgb_size
    last_pixel = np.array([rgb_width - 1, rgb_height - 1])  # x, y
    is_inside = np.all((expected >= 0) & (expected <= last_pixel), axis=1)
    errors = (actual - expected)[is_inside]
    distances = np.hypot(errors[:, 0], errors[:, 1])
    return float(distances.mean()), float(distances.max())

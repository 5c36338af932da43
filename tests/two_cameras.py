"""A scene, for tests, that an RGB camera and a spike camera with another lens record at the same time."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np

from data.spike.simulate import IntegrateAndFire, to_display, to_linear, to_uint8


def texture(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """(H, W) float32 display values in [0, 1]: shapes with edges at all angles on soft clouds."""
    height, width = size
    clouds = cv2.resize(rng.random((max(height // 24, 2), max(width // 24, 2)), np.float32), (width, height))
    picture = 0.25 + 0.5 * clouds
    for _ in range(height * width // 500):
        x, y, grey = int(rng.integers(width)), int(rng.integers(height)), float(rng.uniform(0.05, 0.95))
        corners = np.array([x, y]) + rng.uniform(-1, 1, (int(rng.integers(3, 7)), 2)) * rng.uniform(4, height / 12)
        cv2.fillPoly(picture, [corners.astype(np.int32)], grey, cv2.LINE_AA)
    return cv2.GaussianBlur(picture, (0, 0), 0.7)


def similarity(
    angle_deg: float, scale: float, spike: tuple[int, int], rgb: tuple[int, int], shift: tuple
) -> np.ndarray:
    """(3, 3): spike pixel -> RGB pixel, turned and enlarged about the pictures' centres, then shifted by (x, y)."""
    angle = np.deg2rad(angle_deg)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = [np.array([(size[1] - 1) / 2, (size[0] - 1) / 2]) for size in (spike, rgb)]
    matrix = np.eye(3)
    matrix[:2, :2], matrix[:2, 2] = turn, middle[1] + shift - turn @ middle[0]
    return matrix


def seen_by_spikes(scene: np.ndarray, to_rgb: np.ndarray, size: tuple[int, int], fine: int = 3) -> np.ndarray:
    """The picture (h, w) that a camera at `to_rgb` sees of a scene in RGB pixels: the mean light over each pixel.

    The border of the scene lies `margin` pixels outside of the RGB frame, see `Rig`.
    """
    # The centre of sub-pixel i of n per pixel is at (i + 0.5) / n - 0.5.
    to_pixel = np.array([[1 / fine, 0, 0.5 / fine - 0.5], [0, 1 / fine, 0.5 / fine - 0.5], [0, 0, 1]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    warped = cv2.warpPerspective(scene, to_rgb @ to_pixel, (size[1] * fine, size[0] * fine), flags=flags)
    return warped.reshape(size[0], fine, size[1], fine).mean(axis=(1, 3))


def record(
    rng: np.random.Generator,
    to_rgb: np.ndarray,
    rgb: tuple[int, int],
    spike: tuple[int, int],
    *,
    motion: tuple[float, float] = (0.0, 0.0),
    planes: int = 40,
    noise: float = 0.0,
    rate: float = 0.6,
    scene: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """RGB frame (H, W) uint8 and spikes (T, h, w) of one exposure of a scene that moves by `motion` (x, y) RGB pixels.

    noise: standard deviation of the frame's noise in display values; the spikes have shot noise and fixed patterns.
    scene: (H + 2 margin, W + 2 margin) display values, margin = `margin_of(rgb)`.
    """
    margin = margin_of(rgb)
    scene = texture(rng, (rgb[0] + 2 * margin, rgb[1] + 2 * margin)) if scene is None else scene
    light, to_scene = to_linear(scene), np.array([[1, 0, margin], [0, 1, margin], [0, 0, 1.0]])
    lights, frames = [], []
    for step in (np.arange(planes) + 0.5) / planes - 0.5:
        moved = to_scene.copy()
        moved[:2, 2] -= np.multiply(motion, step)
        lights.append((moved, to_rgb))
    sensor = IntegrateAndFire(
        *spike, rate=rate, rng=rng, shot_noise=0.1 if noise else 0.0, threshold_mismatch=0.03 if noise else 0.0
    )
    spikes = sensor.run(_views(light, (moved @ to_rgb for moved, _ in lights), spike, bool(any(motion))))
    frames = _views(light, (moved for moved, _ in lights), rgb, bool(any(motion)), fine=1)
    frame = to_display(np.mean(list(frames), axis=0)) + noise * rng.standard_normal(rgb)
    return to_uint8(frame), spikes


def margin_of(rgb: tuple[int, int]) -> int:
    return max(rgb) // 3


def _views(light: np.ndarray, places: Iterable[np.ndarray], size: tuple[int, int], is_moving: bool, fine: int = 3):
    view = None
    for place in places:
        if view is None or is_moving:
            view = seen_by_spikes(light, place, size, fine)
        yield view

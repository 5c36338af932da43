"""Scenes of the full set: what the sample set lacks, in linear light.

Objects that turn and occlude one another, zoom, stripes finer than a spike pixel, edges of colour at equal brightness
(of which spikes see nothing), lamps that saturate both cameras, and dark scenes. Rendered at twice the RGB resolution.
"""

import cv2
import numpy as np

from data.moving import smooth_walk
from data.spike import simulate
from scripts.make_sample_data import MARGIN, PLANES, SIZE, Size, blob, texture

FINE = 2  # rendered pixels per RGB pixel
SHEET = FINE * (SIZE + 2 * MARGIN)
OBJECTS = 4
# Mean light of a scene; 0.9 spikes per plane at full light make 0.17 to 0.29 of it.
EXPOSED, DARK = (0.19, 0.32), (0.03, 0.08)
LAMPS_EVERY, DARK_EVERY = 3, 4  # clips 0, 3, 6, ... have lamps; 3, 7, ... are dark


class FullScene:
    """Scene `index` over `planes` planes; call it with a plane for the light (SIZE, SIZE, 3) float32, >= 0.

    Light above 1 saturates both cameras.
    """

    def __init__(self, rng: np.random.Generator, planes: int, index: int) -> None:
        walk = (3.0 * PLANES, 9.0 * PLANES)
        shake = FINE * np.stack([smooth_walk(rng, planes, size, walk) for size in (14.0, 10.0)], axis=1)
        turn, zoom = smooth_walk(rng, planes, 0.1, walk), smooth_walk(rng, planes, 0.1, walk)
        time = (np.arange(planes) - planes / 2)[:, None] / PLANES  # in exposures
        self.layers = []
        for depth in range(OBJECTS + 1):
            near = 1.0 + 0.35 * depth
            own, spin = rng.uniform(-1, 1, 2) * FINE * 2.5, rng.uniform(-0.15, 0.15)
            is_ground = depth == 0
            shift = near * shake + (0.0 if is_ground else own * time)
            angle = turn + (0.0 if is_ground else spin * time[:, 0])
            # Of an object: light times opacity, and opacity.
            opacity = 1.0 if is_ground else cv2.resize(blob(rng, SHEET // FINE), (SHEET, SHEET))[..., None]
            sheet = ground(rng) * opacity
            self.layers.append((sheet, np.column_stack((shift, angle, np.exp(near * zoom)))))
        if index % LAMPS_EVERY == 0:
            add_lamps(rng, self.layers[0][0])
        low, high = DARK if index % DARK_EVERY == DARK_EVERY - 1 else EXPOSED
        self.gain = 1.0
        mean = float(simulate.to_grey(np.minimum(self(planes // 2), 1.0)).mean())
        self.gain = float(rng.uniform(low, high)) / mean

    def __call__(self, plane: int) -> np.ndarray:
        canvas = np.zeros((FINE * SIZE, FINE * SIZE, 3), np.float32)
        for sheet, path in self.layers:
            seen = placed(sheet, *path[plane])
            canvas *= 1.0 - seen[..., 3:]
            canvas += seen[..., :3]
        light = cv2.resize(canvas, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
        return light * np.float32(self.gain)


def placed(sheet: np.ndarray, x: float, y: float, angle: float, zoom: float) -> np.ndarray:
    """The sheet (n, n, 4) as the camera sees it: turned and zoomed about its centre, then shifted by (x, y)."""
    cos, sin = np.cos(angle) / zoom, np.sin(angle) / zoom
    n, c = sheet.shape[0] / 2, FINE * SIZE / 2
    inverse = np.array([[cos, -sin, n + x - c * cos + c * sin], [sin, cos, n + y - c * sin - c * cos]], np.float64)
    size = (FINE * SIZE, FINE * SIZE)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(sheet, inverse, size, flags=flags, borderMode=cv2.BORDER_REFLECT)


def ground(rng: np.random.Generator) -> np.ndarray:
    """An opaque sheet (SHEET, SHEET, 4)."""
    light = simulate.to_linear(texture(rng, SHEET))
    for _ in range(24):
        # Stripes whose period is at most two spike pixels.
        light *= (1.0 + 0.7 * polygon(rng) * waves(rng, 2.2, 4.0))[..., None]
    for _ in range(24):
        light *= tints(rng, polygon(rng))
    return np.concatenate((light, np.ones((SHEET, SHEET, 1), np.float32)), axis=2)


def polygon(rng: np.random.Generator) -> np.ndarray:
    """(SHEET, SHEET) float32: 1 in a random polygon, else 0."""
    corners = rng.uniform(0, SHEET, 2) + rng.uniform(-60, 60, (int(rng.integers(3, 7)), 2))
    inside = np.zeros((SHEET, SHEET), np.float32)
    return cv2.fillPoly(inside, [cv2.convexHull(corners.astype(np.int32))], 1.0, cv2.LINE_AA)


def waves(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """(SHEET, SHEET) a sine in [-1, 1] of any direction, with a period of `low` to `high` RGB pixels."""
    angle, period = rng.uniform(0, np.pi), FINE * rng.uniform(low, high)
    steps = np.arange(SHEET)
    across = np.cos(angle) * steps[None] + np.sin(angle) * steps[:, None]
    return np.sin(2 * np.pi * across / period, dtype=np.float32)


def tints(rng: np.random.Generator, inside: np.ndarray) -> np.ndarray:
    """(SHEET, SHEET, 3) factor of the light: within, another colour, or stripes of two, at the same brightness."""
    first, second = (colour / float(simulate.LUMA @ colour) for colour in rng.uniform(0.4, 1.6, (2, 3)))
    is_first = (waves(rng, 4.0, 16.0) > 0)[..., None] if rng.random() < 0.5 else True
    colour = np.where(is_first, first, second).astype(np.float32)
    return 1.0 + inside[..., None] * (colour - 1.0)


def add_lamps(rng: np.random.Generator, sheet: np.ndarray) -> None:
    """Add lamps of 4 to 12 times full light before exposure to the sheet (SHEET, SHEET, 4), in place."""
    for x, y, radius, light in rng.uniform((0, 0, 3, 4), (SHEET, SHEET, 8, 12), (40, 4)):
        lamp = np.zeros((SHEET, SHEET), np.float32)
        cv2.circle(lamp, (int(x), int(y)), int(radius), 1.0, -1, cv2.LINE_AA)
        colour = np.array([1.0, rng.uniform(0.7, 1.0), rng.uniform(0.4, 0.9)], np.float32)
        sheet[..., :3] += lamp[..., None] * np.float32(light) * colour


FULL = Size("full", {"train": 32, "test": 4}, 6, FullScene, 1)

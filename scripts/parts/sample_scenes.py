"""The sample set: its scenes, and the files of what an RGB camera and a spike camera record of them.

A scene is moving textured layers that occlude one another under a shaking camera, in linear light.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from data.spike import simulate
from data.spike.formats import SpikeGeometry, write_spikes
from utils.image import imwrite_rgb

SIZE = 128  # RGB pixels
PLANES = 88  # spike planes in one exposure, as in GoPro clips of 11 frames
MARGIN = 96  # pixels of texture around the frame, for the motion of the camera
GT_PLANE = PLANES // 2  # the plane of the sharp frame
RGB, SPIKES = "GOPRO_Large", "GOPRO_Large_spike_seq"


@dataclass(frozen=True)
class Layer:
    """A textured sheet, (N, N, 4): linear colour times opacity, and opacity; and its path over the planes."""

    sheet: np.ndarray
    path: np.ndarray  # (planes, 3): shift x, shift y in pixels, angle in radians

    def at(self, plane: int) -> np.ndarray:
        """Colour times opacity, and opacity, in the camera frame at `plane`: (SIZE, SIZE, 4) float32."""
        x, y, angle = self.path[plane]
        n, c = self.sheet.shape[0], SIZE / 2
        cos, sin = np.cos(angle), np.sin(angle)
        # Camera pixel -> sheet pixel: rotate about the centre, then shift.
        inverse = np.array(
            [[cos, -sin, n / 2 + x - c * cos + c * sin], [sin, cos, n / 2 + y - c * sin - c * cos]], np.float64
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        return cv2.warpAffine(self.sheet, inverse, (SIZE, SIZE), flags=flags, borderMode=cv2.BORDER_REFLECT)


def smooth_walk(rng: np.random.Generator, planes: int, amplitude: float, periods: tuple[float, float]) -> np.ndarray:
    """(planes,) sum of four sines with random periods in the range `periods` (in planes); peak near `amplitude`."""
    t = np.arange(planes)
    walk = np.zeros(planes)
    for weight in (0.4, 0.3, 0.2, 0.1):
        period = np.exp(rng.uniform(*np.log(periods)))
        walk += weight * np.sin(2 * np.pi * (t / period + rng.uniform()))
    return amplitude * walk


def texture(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, n, 3) display values: coloured 1/f noise with painted edges, smooth at the scale of one spike pixel."""
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.rfftfreq(n)[None])
    frequency[0, 0] = 1.0
    spectrum = frequency ** -rng.uniform(1.2, 1.6)
    spectrum[0, 0] = 0.0
    clouds = np.stack([np.fft.irfft2(spectrum * np.fft.rfft2(rng.standard_normal((n, n))), (n, n)) for _ in range(3)])
    clouds /= clouds.std(axis=(1, 2), keepdims=True)
    grey, *tint = clouds
    base = rng.uniform(0.35, 0.65, 3)
    picture = base + 0.13 * grey[..., None] + 0.04 * np.stack((tint[0], tint[1], -tint[0]), axis=2)
    picture = simulate.to_uint8(picture)
    paint(rng, picture)
    return np.clip(cv2.GaussianBlur(picture.astype(np.float32) / 255, (0, 0), 0.9), 0.04, 0.98)


def paint(rng: np.random.Generator, picture: np.ndarray) -> None:
    """Draw bars, discs, polygons and letters on the uint8 display picture (n, n, 3), in place."""
    n = picture.shape[0]
    for _ in range(int(n * n / 900)):
        colour = tuple(float(v) for v in 255 * np.clip(rng.uniform(0.05, 0.95) + 0.2 * rng.uniform(-1, 1, 3), 0, 1))
        x, y = (int(v) for v in rng.integers(0, n, 2))
        size, kind = int(rng.integers(4, 16)), int(rng.integers(4))
        if kind == 0:
            cv2.circle(picture, (x, y), size // 2 + 2, colour, -1, cv2.LINE_AA)
        elif kind == 1:
            angle = rng.uniform(0, np.pi)
            end = (int(x + 3 * size * np.cos(angle)), int(y + 3 * size * np.sin(angle)))
            cv2.line(picture, (x, y), end, colour, int(rng.integers(2, 6)), cv2.LINE_AA)
        elif kind == 2:
            corners = np.array([x, y]) + rng.uniform(-size, size, (int(rng.integers(3, 6)), 2))
            cv2.fillPoly(picture, [corners.astype(np.int32)], colour, cv2.LINE_AA)
        else:
            letter = "ABCDEFGHKLMNPRSTVXYZ2345689"[int(rng.integers(27))]
            cv2.putText(picture, letter, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size / 14, colour, 2, cv2.LINE_AA)


def blob(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, n, 1) opacity of one rounded object near the middle of the sheet."""
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    radii = rng.uniform(14, 34, 9)
    centre = n / 2 + rng.uniform(-36, 36, 2)
    corners = centre + np.stack((radii * np.cos(angles), radii * np.sin(angles)), axis=1)
    opacity = np.zeros((n, n), np.float32)
    cv2.fillPoly(opacity, [corners.astype(np.int32)], 1.0, cv2.LINE_AA)
    return cv2.GaussianBlur(opacity, (0, 0), 0.9)[..., None]


def make_layers(rng: np.random.Generator, planes: int) -> list[Layer]:
    """A background and three objects; nearer layers shift more with the camera, and objects also move by themselves."""
    n = SIZE + 2 * MARGIN
    periods = (3.0 * PLANES, 9.0 * PLANES)
    shake = np.stack([smooth_walk(rng, planes, 22.0, periods), smooth_walk(rng, planes, 16.0, periods)], axis=1)
    turn = smooth_walk(rng, planes, 0.05, periods)
    layers = []
    for depth in range(4):
        own = rng.uniform(-1, 1, 2) * (0.0 if depth == 0 else 3.5 / PLANES) * (np.arange(planes) - planes / 2)[:, None]
        shift = shake * (1.0 + 0.35 * depth) + own
        opacity = np.ones((n, n, 1), np.float32) if depth == 0 else blob(rng, n)
        colour = simulate.to_linear(texture(rng, n))
        sheet = np.concatenate((colour * opacity, opacity), axis=2)
        layers.append(Layer(sheet, np.column_stack((shift, turn))))
    return layers


def render(layers: list[Layer], plane: int) -> np.ndarray:
    """Linear light (SIZE, SIZE, 3) float32 at `plane`."""
    picture = np.zeros((SIZE, SIZE, 3), np.float32)
    for layer in layers:
        seen = layer.at(plane)
        picture = picture * (1.0 - seen[..., 3:]) + seen[..., :3]
    return np.clip(picture, 0.0, 1.0)


@dataclass(frozen=True)
class Cameras:
    """Both cameras and the light.

    rate: spikes per plane at full light. shot_noise, dark_rate, threshold_mismatch: see IntegrateAndFire.
    light: factor of the light of the scene, for both cameras.
    rgb_shot, rgb_read: standard deviations of the blurry frame's noise in linear light, at full light and in darkness.
    """

    rate: float = 0.9
    shot_noise: float = 0.03
    dark_rate: float = 0.001
    threshold_mismatch: float = 0.01
    light: float = 1.0
    rgb_shot: float = 0.0
    rgb_read: float = 0.0


def instant_planes(count: int) -> list[int]:
    """Planes of `count` sharp instants, evenly spread over the exposure; that of the sharp frame is the middle one."""
    return [round(GT_PLANE + (k - count // 2) * PLANES / count) for k in range(count)]


class Recording:
    """One clip below `root` of both cameras: {blur,sharp}/NNNNNN.png and spike/NNNNNN.dat, one of each per frame.

    rng: draws the noise; the caller's generator stays as it is. instants: number of sharp pictures per exposure that
    are written to instants/NNNNNN_K.png as well.
    """

    def __init__(
        self, root: Path, split: str, name: str, cameras: Cameras, rng: np.random.Generator, instants: int = 0
    ) -> None:
        half = SIZE // 2
        self.cameras, self.instants = cameras, instant_planes(instants)
        self.rng = copy.deepcopy(rng)
        self.sensor = simulate.IntegrateAndFire(
            half, half, rate=cameras.rate, rng=self.rng, shot_noise=cameras.shot_noise, dark_rate=cameras.dark_rate,
            threshold_mismatch=cameras.threshold_mismatch,
        )  # fmt: skip
        self.geometry = SpikeGeometry(half, half)
        self.clip, self.spikes = root / RGB / split / name, root / SPIKES / split / name / "spike"
        self.spikes.mkdir(parents=True)

    def add(self, frame: int, planes: Sequence[np.ndarray]) -> None:
        """Write frame `frame`. planes: PLANES pictures (SIZE, SIZE, 3) of linear light; above 1 is saturated."""
        cameras, stem = self.cameras, f"{frame:06d}"
        if cameras.light != 1.0:
            planes = [cameras.light * plane for plane in planes]
        blurry = np.mean(planes, axis=0)
        if cameras.rgb_shot or cameras.rgb_read:  # variance: rgb_shot^2 light + rgb_read^2
            deviation = np.sqrt(cameras.rgb_shot**2 * np.maximum(blurry, 0.0) + cameras.rgb_read**2)
            blurry = blurry + deviation * self.rng.standard_normal(blurry.shape, dtype=np.float32)
        images = {f"instants/{stem}_{k}": planes[plane] for k, plane in enumerate(self.instants)}
        images |= {f"sharp/{stem}": planes[GT_PLANE], f"blur/{stem}": blurry}
        for name, image in images.items():
            imwrite_rgb(self.clip / f"{name}.png", simulate.to_uint8(simulate.to_display(image)))
        grey = (simulate.bin_pixels(simulate.to_grey(plane), 2) for plane in planes)
        write_spikes(self.spikes / f"{stem}.dat", self.sensor.run(grey), self.geometry)

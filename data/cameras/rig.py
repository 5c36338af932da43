"""A simulated pair of cameras: an RGB camera and a spike camera that see the same light from
different places.

Light is linear, 1 at full scale, one picture (H, W, 3) on the RGB grid per spike plane; `planes` of
them are one frame interval. Coordinates are those of a calibration file
(data/cameras/spike_grid.py): (0, 0) is the centre of the upper left pixel, x grows to the right, y
down. `Rig.calibration` gives the true one of a rig.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice, repeat
from typing import Any, Literal

import cv2
import numpy as np

from data.cameras.spike_grid import Calibration
from data.spike.simulate import DISPLAY_GAMMA, LUMA, IntegrateAndFire, to_display, to_uint8
from utils.errors import OptionError
from utils.random_streams import random_stream

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class RgbCamera:
    """exposure: share of the frame interval, in its middle. rolling: share of the exposure by which
    the last row is exposed later than the first; all rows end within the interval, so exposure (1 +
    rolling) is at most 1. gamma, contrast: display value v = light ** (1 / gamma), then v +
    contrast (v^2 (3 - 2 v) - v). shot, read: standard deviations of the noise in linear light, at
    full light and in darkness. jpeg: quality; 0: none. sum_gamma: the exposure is the mean of light
    ** (1 / sum_gamma), as where display values are averaged instead of light; no camera does that.
    """

    exposure: float = 1.0
    rolling: float = 0.0
    gamma: float = DISPLAY_GAMMA
    contrast: float = 0.0
    shot: float = 0.0
    read: float = 0.0
    jpeg: int = 0
    sum_gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.exposure <= 0 or self.exposure * (1 + self.rolling) > 1 + 1e-9:
            raise ValueError(
                f"exposure {self.exposure} with rolling {self.rolling} does not fit into the "
                "interval"
            )

    def develop(self, light: np.ndarray) -> np.ndarray:
        """Linear light -> uint8 display values of this camera, without noise: the sharp frames are
        shown with it.
        """
        value = np.power(np.clip(light, 0, 1), np.float32(1 / self.gamma))
        return to_uint8(
            value + np.float32(self.contrast) * (value * value * (3 - 2 * value) - value)
        )

    def _summed(self, light: np.ndarray) -> np.ndarray:
        """Return what an exposure adds up of linear light."""
        if self.sum_gamma == 1:
            return light
        return np.power(np.clip(light, 0, 1), np.float32(1 / self.sum_gamma))

    def _light_of_sum(self, mean: np.ndarray) -> np.ndarray:
        """Return the linear light of a mean over an exposure, see `_summed`."""
        return mean if self.sum_gamma == 1 else np.power(mean, np.float32(self.sum_gamma))

    def frame(self, light: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The light (H, W, 3) of an exposure -> the blurry frame, uint8 RGB."""
        if self.shot or self.read:
            deviation = np.sqrt(self.shot**2 * np.maximum(light, 0) + self.read**2)
            light = light + deviation * rng.standard_normal(light.shape, dtype=np.float32)
        picture = self.develop(light)
        if self.jpeg:
            quality = [cv2.IMWRITE_JPEG_QUALITY, self.jpeg]
            _, coded = cv2.imencode(".jpg", picture[..., ::-1], quality)
            decoded: Any = cv2.imdecode(coded, cv2.IMREAD_COLOR)
            picture = np.ascontiguousarray(decoded[..., ::-1])
        return picture


# Test conditions. ideal: aligned, its sensor nearly ideal in time and uneven in space, as the real
# stream of a bright wall. rig: two plausible cameras; dim: the same at a mean of about 0.03 spikes
# per plane, as the real stream of a dim scene. other: aligned, the sensor as another group models
# it (RSIR: dark current and response of each pixel, display values).
_PAIR = {
    "shift_x": 0.6, "shift_y": -0.4, "rotation_deg": 0.15, "scale": 1.003, "lens_blur": 0.5,
    "parallax": 1.0,
    "time_offset": 1.0, "mix": (0.25, 0.55, 0.2), "dark_rate": 0.0005, "pattern": 0.03,
    "dead": 0.0005, "hot": 0.0005, "exposure": 0.8, "rolling": 0.1, "contrast": 0.1, "shot": 0.01,
    "read": 0.002,
    "jpeg": 95,
}  # fmt: skip
NAMED: dict[str, dict[str, Any]] = {
    "ideal": {"rate": 0.9, "jitter": 0.01, "dark_rate": 0.001, "pattern": 0.02},
    "rig": {**_PAIR, "rate": 0.3, "jitter": 0.02},
    "dim": {**_PAIR, "rate": 0.08, "jitter": 0.035},
    "other": {
        "rate": 0.5,
        "light": "display",
        "dark_rate": 0.02,
        "dark_spread": 0.3,
        "pattern": 0.05,
    },
}

# Uniform between both; the rate and the RGB noise in their logarithms. Wider than the few captures
# that are known. Mean rates are about 0.4 times the rate at full light: 0.03 to 0.3.
RANGES: dict[str, tuple[Any, Any]] = {
    "shift_x": (-2, 2), "shift_y": (-2, 2), "rotation_deg": (-0.5, 0.5), "scale": (0.99, 1.01),
    "lens_blur": (0, 1),
    "parallax": (0, 2), "time_offset": (-6, 6), "mix": ((0.2, 0.4, 0.05), (0.4, 0.7, 0.25)),
    "rate": (0.06, 0.8),
    "jitter": (0, 0.06), "dark_rate": (0, 0.002), "dark_spread": (0, 0.5), "pattern": (0, 0.05),
    "dead": (0, 0.001), "hot": (0, 0.001), "exposure": (0.5, 1), "rolling": (0, 0.3),
    "gamma": (2, 2.4),
    "contrast": (-0.1, 0.3), "shot": (0.002, 0.02), "read": (0.0005, 0.005), "jpeg": (85, 100),
}  # fmt: skip
LOGARITHMIC = ("rate", "shot", "read")


@dataclass(frozen=True)
class Rig(RgbCamera):
    """Both cameras: also where the spike camera looks, its lens and its sensor; by default without
    a flaw.

    shift_x, shift_y: RGB pixels to the right and down by which its view is off; rotation_deg: turns
    x towards y, about the middle of the frame; scale: of its pixels, 1: `ratio` RGB pixels each.
    lens_blur: sigma in spike pixels.
    parallax: RGB pixels between the nearest and the farthest layer, of mean 0. time_offset: planes;
    plane p shows the light of time p - time_offset, as `Calibration.time_offset_planes` says. mix:
    weights of R, G and B.
    rate: spikes per plane at full light. light: what it integrates. jitter: relative deviation of
    the time between two spikes, alike at all lights. dark_rate: spikes per plane without light;
    dark_spread: its relative deviation between the pixels; pattern: that of their thresholds.
    dead, hot: shares of the pixels that never and always fire.
    seed: of noise, fixed patterns and the layers of the parallax.
    """

    shift_x: float = 0.0
    shift_y: float = 0.0
    rotation_deg: float = 0.0
    scale: float = 1.0
    lens_blur: float = 0.0
    parallax: float = 0.0
    time_offset: float = 0.0
    mix: tuple[float, float, float] = (float(LUMA[0]), float(LUMA[1]), float(LUMA[2]))
    rate: float = 0.9
    light: Literal["linear", "display"] = "linear"
    jitter: float = 0.0
    dark_rate: float = 0.0
    dark_spread: float = 0.0
    pattern: float = 0.0
    dead: float = 0.0
    hot: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mix", tuple(self.mix))  # a list where it comes from JSON

    @classmethod
    def asked(cls, text: str, rng: np.random.Generator) -> "Rig":
        """The rig of --rig: a name in NAMED, or random, and other values behind it.

        Raises OptionError.
        """
        name, *changes = text.split(",")
        try:
            own = (
                cls.random(rng)
                if name == "random"
                else cls(seed=int(rng.integers(2**31)), **NAMED[name])
            )
            values: dict[str, Any] = asdict(own)
            for change in changes:
                key, _, value = change.partition("=")
                number = float(value)
                # A whole number is an integer, as jpeg wants it.
                values[key] = int(number) if number.is_integer() else number
            return cls(**values)
        except (KeyError, TypeError, ValueError) as e:
            expected = (
                f"{', '.join(NAMED)} or random, and behind it field=number of data/cameras/rig.py"
            )
            raise OptionError(f"--rig is {text}: {e}", "--rig", expected, "correct it") from e

    @classmethod
    def random(cls, rng: np.random.Generator) -> "Rig":
        """Every field drawn from RANGES; the rolling shutter ends within the frame interval."""
        values: dict[str, Any] = {}
        for name, (low, high) in RANGES.items():
            drawn = (
                np.exp(rng.uniform(np.log(low), np.log(high)))
                if name in LOGARITHMIC
                else rng.uniform(low, high)
            )
            values[name] = (
                tuple(drawn.round(4).tolist()) if np.ndim(drawn) else round(float(drawn), 4)
            )
        values |= {
            "rolling": min(values["rolling"], 1 / values["exposure"] - 1),
            "jpeg": round(values["jpeg"]),
        }
        return cls(**values, seed=int(rng.integers(2**31)))

    def matrix(self, spike: Size, rgb: Size) -> np.ndarray:
        """(3, 3): spike pixel (x, y, 1) -> RGB pixel, without parallax."""
        ratio, angle = rgb[1] / spike[1] * self.scale, np.deg2rad(self.rotation_deg)
        matrix = np.eye(3)
        matrix[:2, :2] = ratio * np.array(
            [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        )
        middle_rgb, middle_spike = ((np.array(size[::-1]) - 1) / 2 for size in (rgb, spike))
        matrix[:2, 2] = (
            middle_rgb + np.array((self.shift_x, self.shift_y)) - matrix[:2, :2] @ middle_spike
        )
        return matrix

    def views(self, lights: Iterable[np.ndarray], spike: Size) -> Iterator[np.ndarray]:
        """Light (H, W, 3) -> what the sensor integrates (h, w) float32: means over each pixel;
        edges are mirrored.
        """
        mix, places = np.array(self.mix, np.float32) / np.float32(sum(self.mix)), None
        for light in lights:
            rgb = light.shape[:2]
            grey = (
                to_display(light) if self.light == "display" else light.astype(np.float32)
            ) @ mix
            if places is None:
                fine = max(1, round(rgb[1] / spike[1]))
                places = self._places(spike, rgb, fine)
                is_aligned = places.shape[1:] == rgb and np.allclose(
                    places, np.indices(rgb)[::-1], atol=1e-3
                )
            if self.lens_blur:
                sigma = self.lens_blur * rgb[1] / spike[1]
                grey = cv2.GaussianBlur(grey, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101)
            if not is_aligned:
                x, y = places
                grey = cv2.remap(grey, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
            yield cv2.resize(grey, spike[::-1], interpolation=cv2.INTER_AREA)

    def _places(self, spike: Size, rgb: Size, fine: int) -> np.ndarray:
        """(2, h fine, w fine) float32: x and y in the frame of fine x fine points in each spike
        pixel.
        """
        y, x = ((np.arange(side * fine) + 0.5) / fine - 0.5 for side in spike)
        grid = np.stack(np.broadcast_arrays(x[None], y[:, None], 1.0))
        places = np.tensordot(self.matrix(spike, rgb)[:2], grid, 1)
        if self.parallax:  # layers with soft edges, along a random baseline
            rng = random_stream("parallax of a rig", self.seed)
            clouds = cv2.resize(
                rng.random((4, 5)), grid.shape[:0:-1], interpolation=cv2.INTER_CUBIC
            )
            ranks = np.linspace(0, 1, 4)[
                np.searchsorted(np.quantile(clouds, (0.25, 0.5, 0.75)), clouds)
            ]
            depth = cv2.GaussianBlur(ranks, (0, 0), 1.0 * fine) * self.parallax
            angle = rng.uniform(0, 2 * np.pi)
            places += np.array([np.cos(angle), np.sin(angle)])[:, None, None] * (
                depth - depth.mean()
            )
        return places.astype(np.float32)

    def spikes(self, lights: Iterable[np.ndarray], spike: Size) -> Iterator[np.ndarray]:
        """Light (H, W, 3) -> as many planes (h, w) uint8 in {0, 1}."""
        sensor = IntegrateAndFire(
            *spike, rate=self.rate, rng=random_stream("sensor of a rig", self.seed),
            shot_noise=self.jitter * np.sqrt(self.rate),  # it adds up over 1 / rate planes
            threshold_mismatch=self.pattern,
        )  # fmt: skip
        rng = random_stream("pixels of a rig", self.seed)
        dark = (
            np.maximum(self.dark_rate * (1 + self.dark_spread * rng.standard_normal(spike)), 0)
            / self.rate
        )
        place = rng.random(spike)
        for view in delayed(self.views(lights, spike), self.time_offset):
            plane = sensor.step(view + dark.astype(np.float32))
            plane[place < self.dead] = 0
            plane[place >= 1 - self.hot] = 1
            yield plane

    def record(
        self, lights: Iterable[np.ndarray], planes: int, spike: Size
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """The blurry and the sharp frame (H, W, 3) uint8 and the spikes (planes, h, w) uint8 of
        each frame interval.

        lights: (H, W, 3) linear light, `planes` for each interval; what remains after the last
        whole one is left out. The sharp frame is that of plane planes // 2, without noise. Only one
        interval is kept in memory.
        """
        frames: deque[tuple[np.ndarray, np.ndarray]] = deque()
        stream = self.spikes(self._exposed(lights, planes, frames), spike)
        while len(part := list(islice(stream, planes))) == planes:
            yield *frames.popleft(), np.stack(part)

    def _exposed(
        self, lights: Iterable[np.ndarray], planes: int, frames: deque[Any]
    ) -> Iterator[np.ndarray]:
        """The lights; each whole interval adds its blurry and its sharp frame to `frames`."""
        rng, length, plane = (
            random_stream("frames of a rig", self.seed),
            self.exposure * planes,
            np.arange(planes),
        )
        for number, light in enumerate(lights):
            if (
                number == 0
                # (planes, H, 1, 1): the share of each plane in the blurry frame, row by row; 1 in
                # all
            ):
                late = (
                    (np.arange(len(light)) / max(1, len(light) - 1) - 0.5) * self.rolling * length
                )
                start = (planes - length) / 2 + late[None]
                overlap = np.minimum(plane[:, None] + 1, start + length) - np.maximum(
                    plane[:, None], start
                )
                shares = (np.clip(overlap, 0, 1) / length).astype(np.float32)[..., None, None]
            if number % planes == 0:
                seen = np.zeros(light.shape, np.float32)
            if number % planes == planes // 2:
                sharp = self.develop(light)
            seen += shares[number % planes] * self._summed(light)
            if number % planes == planes - 1:
                frames.append((self.frame(self._light_of_sum(seen), rng), sharp))
            yield light

    def calibration(self, spike: Size, rgb: Size) -> Calibration:
        """The true calibration; parallax, whose mean is 0, has no part in it.

        `Rig(**made["rig"])` is the rig again.
        """
        return Calibration(
            matrix=self.matrix(spike, rgb).tolist(), spike_size=list(spike), rgb_size=list(rgb),
            time_offset_planes=self.time_offset, made={"rig": {"seed": self.seed, **asdict(self)}},
        )  # fmt: skip


def delayed(views: Iterable[np.ndarray], offset: float) -> Iterator[np.ndarray]:
    """As many views; number p is that of time p - offset: two neighbours mixed, or the first or the
    last view.
    """
    whole = int(np.floor(offset))
    lag, lead, share = max(whole, 0), max(-whole, 0), np.float32(offset - whole)
    recent: deque[np.ndarray] = deque(maxlen=lag + 2)
    for number, view in enumerate(chain(views, repeat(None, lead))):
        if view is None and not recent:
            return
        recent.extend([recent[-1] if view is None else view] * (1 if recent else lag + 2))
        if number >= lead:
            yield (1 - share) * recent[1] + share * recent[0] if share else recent[1]

"""A simulated pair of cameras: an RGB camera and a spike camera that see the same light from different places.

Light is linear, 1 at full scale, one picture (H, W, 3) on the RGB grid per spike plane; `planes` of them are one frame
interval. Coordinates are those of a calibration file (data/spike_grid.py): (0, 0) is the centre of the upper left
pixel, x grows to the right, y down. `Rig.calibration` gives the true one of a rig.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from data.rgb_camera import RgbCamera
from data.spike.simulate import LUMA, IntegrateAndFire, to_display
from utils.errors import OptionError
from utils.random_streams import random_stream

if TYPE_CHECKING:  # it imports torch, and programs that only prepare data start without
    from data.spike_grid import Calibration

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class SpikeCamera:
    """Where the spike camera looks, its lens and its sensor.

    shift_x, shift_y: RGB pixels to the right and down by which its view is off; rotation_deg: turns x towards y, about
    the middle of the frame; scale: of its pixels, 1: `ratio` RGB pixels each. lens_blur: sigma in spike pixels.
    parallax: RGB pixels between the nearest and the farthest layer, of mean 0. time_offset: planes; plane p shows the
    light of time p - time_offset, as `Calibration.time_offset_planes` says. mix: weights of R, G and B.
    rate: spikes per plane at full light. light: what it integrates. jitter: relative deviation of the time between two
    spikes, alike at all lights. dark_rate: spikes per plane without light; dark_spread: its relative deviation between
    the pixels; pattern: that of their thresholds.
    dead, hot: shares of the pixels that never and always fire.
    """

    shift_x: float = 0.0
    shift_y: float = 0.0
    rotation_deg: float = 0.0
    scale: float = 1.0
    lens_blur: float = 0.0
    parallax: float = 0.0
    time_offset: float = 0.0
    mix: tuple[float, float, float] = tuple(float(weight) for weight in LUMA)
    rate: float = 0.9
    light: Literal["linear", "display"] = "linear"
    jitter: float = 0.0
    dark_rate: float = 0.0
    dark_spread: float = 0.0
    pattern: float = 0.0
    dead: float = 0.0
    hot: float = 0.0

    def matrix(self, spike: Size, rgb: Size) -> np.ndarray:
        """(3, 3): spike pixel (x, y, 1) -> RGB pixel, without parallax."""
        ratio, angle = rgb[1] / spike[1] * self.scale, np.deg2rad(self.rotation_deg)
        matrix = np.eye(3)
        matrix[:2, :2] = ratio * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        middle_rgb, middle_spike = ((np.array(size[::-1]) - 1) / 2 for size in (rgb, spike))
        matrix[:2, 2] = middle_rgb + np.array((self.shift_x, self.shift_y)) - matrix[:2, :2] @ middle_spike
        return matrix

    def views(self, lights: Iterable[np.ndarray], spike: Size, seed: int) -> Iterator[np.ndarray]:
        """Light (H, W, 3) -> what the sensor integrates (h, w) float32, plane by plane. The frame's edge is mirrored.

        Each pixel is the mean of as many points as it covers RGB pixels.
        """
        mix, places = np.array(self.mix, np.float32) / np.float32(sum(self.mix)), None
        for light in lights:
            rgb = light.shape[:2]
            grey = (to_display(light) if self.light == "display" else light.astype(np.float32)) @ mix
            if places is None:
                fine = max(1, round(rgb[1] / spike[1]))
                places = self._places(spike, rgb, fine, seed)
                is_aligned = places.shape[1:] == rgb and np.allclose(places, np.indices(rgb)[::-1], atol=1e-3)
            if self.lens_blur:
                sigma = self.lens_blur * rgb[1] / spike[1]
                grey = cv2.GaussianBlur(grey, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101)
            if not is_aligned:
                grey = cv2.remap(grey, *places, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
            yield cv2.resize(grey, spike[::-1], interpolation=cv2.INTER_AREA)

    def _places(self, spike: Size, rgb: Size, fine: int, seed: int) -> np.ndarray:
        """(2, h fine, w fine) float32: x and y in the frame of fine x fine points in each spike pixel."""
        y, x = ((np.arange(side * fine) + 0.5) / fine - 0.5 for side in spike)
        grid = np.stack(np.broadcast_arrays(x[None], y[:, None], 1.0))
        places = np.tensordot(self.matrix(spike, rgb)[:2], grid, 1)
        if self.parallax:  # layers with soft edges, along a random baseline
            rng = random_stream("parallax of a rig", seed)
            clouds = cv2.resize(rng.random((4, 5)), grid.shape[:0:-1], interpolation=cv2.INTER_CUBIC)
            ranks = np.linspace(0, 1, 4)[np.searchsorted(np.quantile(clouds, (0.25, 0.5, 0.75)), clouds)]
            depth = cv2.GaussianBlur(ranks, (0, 0), 1.0 * fine) * self.parallax
            angle = rng.uniform(0, 2 * np.pi)
            places += np.array([np.cos(angle), np.sin(angle)])[:, None, None] * (depth - depth.mean())
        return places.astype(np.float32)

    def spikes(self, lights: Iterable[np.ndarray], spike: Size, seed: int) -> Iterator[np.ndarray]:
        """Light (H, W, 3) -> as many planes (h, w) uint8 in {0, 1}."""
        sensor = IntegrateAndFire(
            *spike, rate=self.rate, rng=random_stream("sensor of a rig", seed), 
            shot_noise=self.jitter * np.sqrt(self.rate),  # it adds up over 1 / rate planes
            threshold_mismatch=self.pattern,
        )  # fmt: skip
        rng = random_stream("pixels of a rig", seed)
        dark = np.maximum(self.dark_rate * (1 + self.dark_spread * rng.standard_normal(spike)), 0) / self.rate
        place = rng.random(spike)
        for view in delayed(self.views(lights, spike, seed), self.time_offset):
            plane = sensor.step(view + dark.astype(np.float32))
            plane[place < self.dead] = 0
            plane[place >= 1 - self.hot] = 1
            yield plane


# Test conditions. ideal: aligned, its sensor nearly ideal in time and uneven in space, as the real stream of a bright
# wall. rig: two plausible cameras; dim: the same at a mean of about 0.03 spikes per plane, as the real stream of a dim
# scene. other: aligned, the sensor as another group models it (RSIR: dark current and response of each pixel, display
# values).
_PAIR = {
    "shift_x": 0.6, "shift_y": -0.4, "rotation_deg": 0.15, "scale": 1.003, "lens_blur": 0.5, "parallax": 1.0,
    "time_offset": 1.0, "mix": (0.25, 0.55, 0.2), "dark_rate": 0.0005, "pattern": 0.03,
    "dead": 0.0005, "hot": 0.0005, "exposure": 0.8, "rolling": 0.1, "contrast": 0.1, "shot": 0.01, "read": 0.002,
    "jpeg": 95,
}  # fmt: skip
NAMED: dict[str, dict[str, Any]] = {
    "ideal": {"rate": 0.9, "jitter": 0.01, "dark_rate": 0.001, "pattern": 0.02},
    "rig": {**_PAIR, "rate": 0.3, "jitter": 0.02},
    "dim": {**_PAIR, "rate": 0.08, "jitter": 0.035},
    "other": {"rate": 0.5, "light": "display", "dark_rate": 0.02, "dark_spread": 0.3, "pattern": 0.05},
}

# Uniform between both; the rate and the RGB noise in their logarithms. Wider than the few captures that are known. Mean
# rates are about 0.4 times the rate at full light: 0.03 to 0.3.
RANGES: dict[str, tuple[Any, Any]] = {
    "shift_x": (-2, 2), "shift_y": (-2, 2), "rotation_deg": (-0.5, 0.5), "scale": (0.99, 1.01), "lens_blur": (0, 1),
    "parallax": (0, 2), "time_offset": (-6, 6), "mix": ((0.2, 0.4, 0.05), (0.4, 0.7, 0.25)), "rate": (0.06, 0.8),
    "jitter": (0, 0.06), "dark_rate": (0, 0.002), "dark_spread": (0, 0.5), "pattern": (0, 0.05),
    "dead": (0, 0.001), "hot": (0, 0.001), "exposure": (0.5, 1), "rolling": (0, 0.3), "gamma": (2, 2.4),
    "contrast": (-0.1, 0.3), "shot": (0.002, 0.02), "read": (0.0005, 0.005), "jpeg": (85, 100),
}  # fmt: skip
LOGARITHMIC = ("rate", "shot", "read")


@dataclass(frozen=True)
class Rig:
    """Both cameras. seed: of noise, fixed patterns and the layers of the parallax."""

    rgb: RgbCamera = field(default_factory=RgbCamera)
    spike: SpikeCamera = field(default_factory=SpikeCamera)
    seed: int = 0

    @classmethod
    def of(cls, seed: int = 0, **values: Any) -> Rig:
        """A rig of fields of both cameras by name; without a flaw in all others."""
        spike = {f.name: values.pop(f.name) for f in fields(SpikeCamera) if f.name in values}
        spike["mix"] = tuple(spike.get("mix", SpikeCamera.mix))
        return cls(RgbCamera(**values), SpikeCamera(**spike), seed)

    @classmethod
    def asked(cls, text: str, rng: np.random.Generator) -> Rig:
        """The rig of --rig: a name in NAMED, or random, with other values behind it as in "rig,parallax=0,rate=0.2".

        Raises OptionError.
        """
        name, *changes = text.split(",")
        try:
            own = cls.random(rng) if name == "random" else cls.of(int(rng.integers(2**31)), **NAMED[name])
            numbers = {key: float(value) for key, _, value in (change.partition("=") for change in changes)}
            whole = {key: int(number) for key, number in numbers.items() if number.is_integer()}  # as jpeg wants it
            return cls.of(**own.plain() | numbers | whole)
        except (KeyError, TypeError, ValueError) as e:
            expected = f"{', '.join(NAMED)} or random, and behind it field=number of data/rig.py"
            raise OptionError(f"--rig is {text}: {e}", "--rig", expected, "correct it") from e

    @classmethod
    def random(cls, rng: np.random.Generator) -> Rig:
        """Every field drawn from RANGES; the rolling shutter ends within the frame interval."""
        values: dict[str, Any] = {}
        for name, (low, high) in RANGES.items():
            drawn = np.exp(rng.uniform(np.log(low), np.log(high))) if name in LOGARITHMIC else rng.uniform(low, high)
            values[name] = tuple(drawn.round(4).tolist()) if np.ndim(drawn) else round(float(drawn), 4)
        values |= {"rolling": min(values["rolling"], 1 / values["exposure"] - 1), "jpeg": round(values["jpeg"])}
        return cls.of(int(rng.integers(2**31)), **values)

    def record(self, lights: Iterable[np.ndarray], planes: int, spike: Size) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The blurry frame (H, W, 3) uint8 and the spikes (planes, h, w) uint8 of one frame interval after another.

        lights: (H, W, 3) linear light, `planes` for each interval; what remains after the last whole one is left out.
        Only the spikes of one interval and the sum of its light are kept.
        """
        frames: deque[np.ndarray] = deque()
        stream = self.spike.spikes(self._exposed(lights, planes, frames), spike, self.seed)
        while len(part := list(islice(stream, planes))) == planes:
            yield frames.popleft(), np.stack(part)

    def _exposed(self, lights: Iterable[np.ndarray], planes: int, frames: deque[np.ndarray]) -> Iterator[np.ndarray]:
        """The lights; each whole interval adds its blurry frame to `frames`."""
        rng, shares = random_stream("frames of a rig", self.seed), None
        for number, light in enumerate(lights):
            if number % planes == 0:
                seen = np.zeros(light.shape, np.float32)
            if shares is None:
                shares = self.rgb.shares(planes, len(light))[..., None, None]
            seen += shares[number % planes] * light
            if number % planes == planes - 1:
                frames.append(self.rgb.frame(seen, rng))
            yield light

    def exposed(self, planes: int) -> tuple[float, float]:
        """(first plane, number of planes) of the middle row's exposure in a frame interval, as the spikes count it."""
        length = self.rgb.exposure * planes
        return (planes - length) / 2 + self.spike.time_offset, length

    def calibration(self, spike: Size, rgb: Size) -> Calibration:
        """The true calibration; parallax, whose mean is 0, has no part in it."""
        from data.spike_grid import Calibration

        return Calibration(
            matrix=self.spike.matrix(spike, rgb).tolist(), spike_size=list(spike), rgb_size=list(rgb),
            time_offset_planes=self.spike.time_offset, made={"rig": self.plain()},
        )  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """All fields as JSON: those of both cameras, and the seed. `Rig.of` makes the rig of them again."""
        return {"seed": self.seed, **asdict(self.rgb), **asdict(self.spike)}


def delayed(views: Iterable[np.ndarray], offset: float) -> Iterator[np.ndarray]:
    """As many views; number p is that of time p - offset: two neighbours mixed, or the first or the last view."""
    whole = int(np.floor(offset))
    lag, lead, share = max(whole, 0), max(-whole, 0), np.float32(offset - whole)
    recent: deque[np.ndarray] = deque(maxlen=lag + 2)
    for number, view in enumerate(chain(views, repeat(None, lead))):
        if view is None and not recent:
            return
        recent.extend([recent[-1] if view is None else view] * (1 if recent else lag + 2))
        if number >= lead:
            yield (1 - share) * recent[1] + share * recent[0] if share else recent[1]

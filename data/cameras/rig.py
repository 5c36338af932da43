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
    """The RGB camera of a rig.

    exposure: share of the frame interval, in its middle.
    rolling: share of the exposure by which the last row is exposed later than the first. All rows
    end within the interval, so exposure (1 + rolling) is at most 1.
    gamma, contrast: a display value is v = light ** (1 / gamma), then
    v + contrast (v^2 (3 - 2 v) - v).
    shot, read: standard deviations of the noise in linear light, at full light and in darkness.
    jpeg: quality, or 0 for no JPEG.
    sum_gamma: the exposure is the mean of light ** (1 / sum_gamma), as where display values are
    averaged instead of light. No camera does that.
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
        """Return linear light as uint8 display values of this camera, without noise.

        The sharp frames are shown with it.
        """
        v = np.power(np.clip(light, 0, 1), np.float32(1 / self.gamma))
        return to_uint8(v + np.float32(self.contrast) * (v * v * (3 - 2 * v) - v))

    def _summed(self, light: np.ndarray) -> np.ndarray:
        """Return what an exposure adds up of linear light."""
        if self.sum_gamma == 1:
            return light
        return np.power(np.clip(light, 0, 1), np.float32(1 / self.sum_gamma))

    def _light_of_sum(self, mean: np.ndarray) -> np.ndarray:
        """Return the linear light of a mean over an exposure, see `_summed`."""
        return mean if self.sum_gamma == 1 else np.power(mean, np.float32(self.sum_gamma))

    def frame(self, light: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the blurry frame, uint8 RGB, of the light (H, W, 3) of an exposure."""
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
    "parallax": 1.0, "time_offset": 1.0, "mix": (0.25, 0.55, 0.2), "dark_rate": 0.0005,
    "pattern": 0.03, "dead": 0.0005, "hot": 0.0005, "exposure": 0.8, "rolling": 0.1,
    "contrast": 0.1, "shot": 0.01, "read": 0.002, "jpeg": 95,
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
    "lens_blur": (0, 1), "parallax": (0, 2), "time_offset": (-6, 6),
    "mix": ((0.2, 0.4, 0.05), (0.4, 0.7, 0.25)), "rate": (0.06, 0.8), "jitter": (0, 0.06),
    "dark_rate": (0, 0.002), "dark_spread": (0, 0.5), "pattern": (0, 0.05),
    "dead": (0, 0.001), "hot": (0, 0.001), "exposure": (0.5, 1), "rolling": (0, 0.3),
    "gamma": (2, 2.4), "contrast": (-0.1, 0.3), "shot": (0.002, 0.02), "read": (0.0005, 0.005),
    "jpeg": (85, 100),
}  # fmt: skip
LOGARITHMIC = ("rate", "shot", "read")


@dataclass(frozen=True)
class Rig(RgbCamera):
    """Both cameras. By default the spike camera has no flaw, and looks where the RGB camera looks.

    shift_x, shift_y: RGB pixels to the right and down by which the view of the spike camera is off.
    rotation_deg: turns x towards y, about the middle of the frame.
    scale: size of its pixels. At 1 each covers `ratio` RGB pixels.
    lens_blur: sigma in spike pixels.
    parallax: RGB pixels between the nearest and the farthest layer, of mean 0.
    time_offset: planes. Plane p shows the light of time p - time_offset, as
    `Calibration.time_offset_planes` says.
    mix: weights of R, G and B.
    rate: spikes per plane at full light.
    light: what the sensor integrates.
    jitter: relative deviation of the time between two spikes, alike at all lights.
    dark_rate: spikes per plane without light. dark_spread: its relative deviation between pixels.
    pattern: relative deviation of the thresholds between pixels.
    dead, hot: shares of the pixels that never and always fire.
    seed: seed of noise, fixed patterns and the layers of the parallax.
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
        """Return the rig of --rig: a name in NAMED, or random, and other values behind it.

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
        """Draw every field from RANGES. The rolling shutter ends within the frame interval."""
        values: dict[str, Any] = {}
        for name, (low, high) in RANGES.items():
            if name in LOGARITHMIC:
                drawn = np.exp(rng.uniform(np.log(low), np.log(high)))
            else:
                drawn = rng.uniform(low, high)
            if np.ndim(drawn):
                values[name] = tuple(drawn.round(4).tolist())
            else:
                values[name] = round(float(drawn), 4)
        values["rolling"] = min(values["rolling"], 1 / values["exposure"] - 1)
        values["jpeg"] = round(values["jpeg"])
        return cls(**values, seed=int(rng.integers(2**31)))

    def matrix(self, spike: Size, rgb: Size) -> np.ndarray:
        """Return the matrix (3, 3) from a spike pixel (x, y, 1) to an RGB pixel.

        Parallax is left out.
        """
        ratio = rgb[1] / spike[1] * self.scale
        angle = np.deg2rad(self.rotation_deg)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        middle_rgb = (np.array(rgb[::-1]) - 1) / 2
        middle_spike = (np.array(spike[::-1]) - 1) / 2
        shift = np.array((self.shift_x, self.shift_y))
        matrix = np.eye(3)
        matrix[:2, :2] = ratio * turn
        matrix[:2, 2] = middle_rgb + shift - matrix[:2, :2] @ middle_spike
        return matrix

    def views(self, lights: Iterable[np.ndarray], spike: Size) -> Iterator[np.ndarray]:
        """Yield what the sensor integrates, (h, w) float32: means over each of its pixels.

        Beyond its edges the picture is mirrored. lights: (H, W, 3).
        """
        mix = np.array(self.mix, np.float32) / np.float32(sum(self.mix))
        places = None
        is_aligned = False
        for light in lights:
            rgb = light.shape[:2]
            shown = to_display(light) if self.light == "display" else light.astype(np.float32)
            grey = shown @ mix
            if places is None:
                fine = max(1, round(rgb[1] / spike[1]))
                places = self._places(spike, rgb, fine)
                own = np.indices(rgb)[::-1]  # x, y of the frame's pixels
                is_aligned = places.shape[1:] == rgb and np.allclose(places, own, atol=1e-3)
            if self.lens_blur:
                sigma = self.lens_blur * rgb[1] / spike[1]
                grey = cv2.GaussianBlur(grey, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101)
            if not is_aligned:
                x, y = places
                grey = cv2.remap(grey, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
            yield cv2.resize(grey, spike[::-1], interpolation=cv2.INTER_AREA)

    def _places(self, spike: Size, rgb: Size, fine: int) -> np.ndarray:
        """Return (2, h fine, w fine) float32: x and y in the frame of points in the spike pixels.

        Each spike pixel has fine x fine points.
        """
        y, x = ((np.arange(side * fine) + 0.5) / fine - 0.5 for side in spike)
        grid = np.stack(np.broadcast_arrays(x[None], y[:, None], 1.0))  # (3, h fine, w fine)
        places = np.tensordot(self.matrix(spike, rgb)[:2], grid, 1)
        if self.parallax:
            places += self._parallax(grid.shape[1:], fine)
        return places.astype(np.float32)

    def _parallax(self, size: Size, fine: int) -> np.ndarray:
        """Return (2, *size), the shift of each point: layers with soft edges, of mean 0."""
        rng = random_stream("parallax of a rig", self.seed)
        clouds = cv2.resize(rng.random((4, 5)), size[::-1], interpolation=cv2.INTER_CUBIC)
        # Four layers of equal area.
        layer = np.searchsorted(np.quantile(clouds, (0.25, 0.5, 0.75)), clouds)
        depth = cv2.GaussianBlur(np.linspace(0, 1, 4)[layer], (0, 0), 1.0 * fine) * self.parallax
        angle = rng.uniform(0, 2 * np.pi)
        baseline = np.array([np.cos(angle), np.sin(angle)])
        return baseline[:, None, None] * (depth - depth.mean())

    def spikes(self, lights: Iterable[np.ndarray], spike: Size) -> Iterator[np.ndarray]:
        """Yield a plane (h, w) uint8 in {0, 1} for each light (H, W, 3)."""
        sensor = IntegrateAndFire(
            *spike,
            rate=self.rate,
            rng=random_stream("sensor of a rig", self.seed),
            shot_noise=self.jitter * np.sqrt(self.rate),  # it adds up over 1 / rate planes
            threshold_mismatch=self.pattern,
        )
        rng = random_stream("pixels of a rig", self.seed)
        dark_rates = self.dark_rate * (1 + self.dark_spread * rng.standard_normal(spike))
        dark = (np.maximum(dark_rates, 0) / self.rate).astype(np.float32)  # as light
        stuck = rng.random(spike)
        is_dead = stuck < self.dead
        is_hot = stuck >= 1 - self.hot
        for view in delayed(self.views(lights, spike), self.time_offset):
            plane = sensor.step(view + dark)
            plane[is_dead] = 0
            plane[is_hot] = 1
            yield plane

    def record(
        self, lights: Iterable[np.ndarray], planes: int, spike: Size
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield blurry frame, sharp frame and spikes of each frame interval.

        The frames are (H, W, 3) uint8, the spikes (planes, h, w) uint8. The sharp frame is that of
        plane planes // 2, without noise. Only one interval is kept in memory.

        lights: (H, W, 3) linear light, `planes` for each interval. What remains after the last
        whole interval is left out.
        """
        frames: deque[tuple[np.ndarray, np.ndarray]] = deque()
        stream = self.spikes(self._exposed(lights, planes, frames), spike)
        while True:
            part = list(islice(stream, planes))
            if len(part) < planes:
                return
            blurry, sharp = frames.popleft()
            yield blurry, sharp, np.stack(part)

    def _exposed(
        self, lights: Iterable[np.ndarray], planes: int, frames: deque[Any]
    ) -> Iterator[np.ndarray]:
        """Yield the lights. Each whole interval adds its blurry and its sharp frame to `frames`."""
        rng = random_stream("frames of a rig", self.seed)
        shares = seen = sharp = np.empty(0)  # set at the first plane of an interval, or its middle
        for number, light in enumerate(lights):
            plane = number % planes
            if number == 0:
                shares = self._shares(len(light), planes)
            if plane == 0:
                seen = np.zeros(light.shape, np.float32)
            if plane == planes // 2:
                sharp = self.develop(light)
            seen += shares[plane] * self._summed(light)
            if plane == planes - 1:
                frames.append((self.frame(self._light_of_sum(seen), rng), sharp))
            yield light

    def _shares(self, rows: int, planes: int) -> np.ndarray:
        """Return (planes, rows, 1, 1): the share of each plane in the blurry frame, row by row.

        The shares of a row add up to 1.
        """
        length = self.exposure * planes
        late = (np.arange(rows) / max(1, rows - 1) - 0.5) * self.rolling * length
        start = (planes - length) / 2 + late[None]
        plane = np.arange(planes)[:, None]
        overlap = np.minimum(plane + 1, start + length) - np.maximum(plane, start)
        return (np.clip(overlap, 0, 1) / length).astype(np.float32)[..., None, None]

    def calibration(self, spike: Size, rgb: Size) -> Calibration:
        """Return the true calibration, without parallax, whose mean is 0.

        `Rig(**made["rig"])` is the rig again.
        """
        return Calibration(
            matrix=self.matrix(spike, rgb).tolist(),
            spike_size=list(spike),
            rgb_size=list(rgb),
            time_offset_planes=self.time_offset,
            made={"rig": {"seed": self.seed, **asdict(self)}},
        )


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

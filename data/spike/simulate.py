"""Simulate a spike camera from a high-frame-rate sequence of sharp frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

# Display values of images: light = value ** 2.2.
DISPLAY_GAMMA = 2.2

# Rec. 601 weights, as in the published spike simulators.
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class IntegrateAndFire:
    """A spike sensor that takes one plane of light at a time.

    Per pixel and read-out tick, with I >= 0, 1 at full light:
        A <- A + rate * threshold * I + noise;   s = A >= threshold;   A <- A mod threshold where s
    so `rate` is the firing rate at I = 1 in spikes per tick (gain / threshold; 0.5 for the threshold 2 and gain 1
    of SpkDeblurNet's v2s, 0.9925 for S-SDM).

    A pixel resets whenever its charge reaches the threshold, and its read-out has one bit per tick: light of more than
    one threshold per tick resets it several times and gives one spike, and only the charge since the last reset
    remains. Hence the modulo, as in S-SDM's simulator (SimulationSimple_Video); below one threshold
    per tick it equals the subtraction of SpkDeblurNet's v2s. Source of the pixel: Huang et al., "1000x Faster Camera
    and Machine Vision with Ordinary Devices", Engineering 25, 2023.

    initial_charge: upper end of the uniform first charge, in thresholds (0: all pixels start empty).
    shot_noise: standard deviation of the charge of one tick at I = 1, in thresholds; grows with sqrt(I).
    dark_rate: spikes per tick without light. threshold_mismatch: relative standard deviation of the threshold
    over the pixels, fixed in time (fixed-pattern noise). `rng` draws all random numbers.
    """

    def __init__(
        self,
        height: int,
        width: int,
        *,
        rate: float,
        threshold: float = 1.0,
        rng: np.random.Generator,
        initial_charge: float = 1.0,
        shot_noise: float = 0.0,
        dark_rate: float = 0.0,
        threshold_mismatch: float = 0.0,
    ) -> None:
        if rate <= 0 or threshold <= 0:
            raise ValueError(f"rate and threshold are positive, not {rate} and {threshold}")
        self.rng = rng
        self.shot_noise = shot_noise * threshold
        self.dark = dark_rate * threshold
        self.gain = rate * threshold
        spread = 1.0 + threshold_mismatch * rng.standard_normal((height, width))
        self.threshold = np.maximum(threshold * spread, 0.1 * threshold).astype(np.float32)
        self.charge = (rng.uniform(0.0, 1.0, (height, width)) * initial_charge * self.threshold).astype(np.float32)

    def step(self, light: np.ndarray) -> np.ndarray:
        """Light (H, W), 1 at full scale -> spikes (H, W) uint8 in {0, 1} of this tick."""
        self.charge += self.gain * light.astype(np.float32) + self.dark
        if self.shot_noise:
            noise = self.rng.standard_normal(light.shape, dtype=np.float32)
            self.charge += self.shot_noise * np.sqrt(np.clip(light, 0.0, None)) * noise
        fired = self.charge >= self.threshold
        np.fmod(self.charge, self.threshold, out=self.charge, where=fired)
        return fired.astype(np.uint8)

    def run(self, lights: Iterable[np.ndarray]) -> np.ndarray:
        """T light planes (H, W) -> spikes (T, H, W) uint8; the charge continues from the last call."""
        return np.stack([self.step(light) for light in lights])

    def run_parts(self, lights: Iterable[np.ndarray], planes: int = 64) -> Iterator[np.ndarray]:
        """`run` in parts of at most `planes` planes, for streams that do not fit into memory."""
        lights = iter(lights)
        while part := list(itertools.islice(lights, planes)):
            yield self.run(part)


def to_linear(picture: np.ndarray, gamma: float = DISPLAY_GAMMA) -> np.ndarray:
    """Display values in [0, 1] -> linear light in [0, 1], float32."""
    return np.power(picture, gamma, dtype=np.float32)


def to_display(light: np.ndarray, gamma: float = DISPLAY_GAMMA) -> np.ndarray:
    """Linear light -> display values in [0, 1], float32."""
    return np.power(np.clip(light, 0.0, 1.0), 1.0 / gamma, dtype=np.float32)


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """(..., H, W, 3) in R, G, B order -> (..., H, W) float32."""
    return rgb.astype(np.float32) @ LUMA


def to_uint8(picture: np.ndarray) -> np.ndarray:
    """Display values in [0, 1] -> uint8, rounded to the nearest."""
    return (np.clip(picture, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def bin_pixels(light: np.ndarray, factor: int) -> np.ndarray:
    """Light (H, W) -> (H / factor, W / factor): the mean of each factor x factor block, as for a larger pixel."""
    height, width = light.shape
    if height % factor or width % factor:
        raise ValueError(f"{height} x {width} is not divisible by {factor}")
    return light.reshape(height // factor, factor, width // factor, factor).mean(axis=(1, 3), dtype=np.float32)

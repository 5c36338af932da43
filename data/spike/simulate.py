"""Simulate the spike sensor: spikes from light, and spikes of a sensor with another threshold.

A pixel of the sensor collects charge from light. When the charge reaches the threshold, the pixel
gives a spike and is reset. A plane is one read-out of all pixels. A spike is a 1 in the next plane.

    IntegrateAndFire   light -> spikes
    change_threshold   spikes -> spikes of another sensor; training varies the camera in this way

Light is linear, and 1 at full light. Both functions add the light of plane after plane to the
charge A of each pixel, in float32, and the pixel fires where A has reached the threshold.

What must stay: all numbers, bit for bit, because made data sets and training samples consist of
them. So the order of random draws and of sums is fixed. Free: how the numbers are computed, if it
is as fast. test_spike_simulate.py compares with plain loops over pixels and planes,
test_published_streams.py with published simulators.
"""

from collections.abc import Iterable

import numpy as np

from .light import plane_light


class IntegrateAndFire:
    """A spike sensor that takes one plane of light at a time.

    Per pixel and plane, with the light I >= 0 (1 at full light) and the charge A:

        A <- A + rate * threshold * I + noise
        s = A >= threshold
        A <- A mod threshold   where s

    So `rate` is the firing rate at I = 1 in spikes per plane, which is gain / threshold: 0.5 for
    the threshold 2 and gain 1 of SpkDeblurNet's v2s, 0.9925 for S-SDM.

    Why a modulo? Light of more than one threshold per plane resets a pixel several times in a
    plane. The pixel still gives one spike, and only the charge since the last reset remains. The
    simulator of S-SDM does the same (SimulationSimple_Video). Below one threshold per plane, the
    modulo equals the subtraction of SpkDeblurNet's v2s.

    Source of the pixel: Huang et al., "1000x Faster Camera and Machine Vision with Ordinary
    Devices", Engineering 25, 2023.

    initial_charge: largest first charge of a pixel, in thresholds. The first charge is drawn
    uniformly from 0 to this value.
    shot_noise: standard deviation of the charge of one plane at I = 1, in thresholds. The deviation
    grows with sqrt(I).
    dark_rate: spikes per plane without light.
    threshold_mismatch: relative standard deviation of the threshold over the pixels, fixed in time.
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
        # Charges of one plane: of the noise, without light, and at full light.
        self.shot_noise = shot_noise * threshold
        self.dark = dark_rate * threshold
        self.gain = rate * threshold
        # The order of the two draws decides which spikes a seed gives: do not change it.
        spread = 1.0 + threshold_mismatch * rng.standard_normal((height, width))
        # A pixel with a threshold near 0 or below would fire in every plane, so a threshold is at
        # least a tenth of the mean.
        least_threshold = 0.1 * threshold
        self.threshold = np.maximum(threshold * spread, least_threshold).astype(np.float32)
        first_charge = rng.uniform(0.0, 1.0, (height, width)) * initial_charge * self.threshold
        self.charge = first_charge.astype(np.float32)

    def step(self, light: np.ndarray) -> np.ndarray:
        """Integrate one plane of light (H, W). Returns its spikes (H, W) uint8 in {0, 1}."""
        # A <- A + rate * threshold * I + noise
        self.charge += self.gain * light.astype(np.float32) + self.dark
        if self.shot_noise:
            noise = self.rng.standard_normal(light.shape, dtype=np.float32)
            deviation = self.shot_noise * np.sqrt(np.clip(light, 0.0, None))
            self.charge += deviation * noise
        # s = A >= threshold, and A <- A mod threshold where s. fmod changes the charge in place.
        has_fired = self.charge >= self.threshold
        np.fmod(self.charge, self.threshold, out=self.charge, where=has_fired)
        return has_fired.astype(np.uint8)

    def run(self, lights: Iterable[np.ndarray]) -> np.ndarray:
        """Return the spikes (T, H, W) uint8 of T planes of light (H, W).

        The charge continues from the last call.
        """
        return np.stack([self.step(light) for light in lights])


# ---- Spikes of another threshold ---------------------------------------------------------------


# Number of values of a stream that `change_threshold` works on at a time. They fit into the cache
# of a core. With a larger or a smaller number it is slower, with the same result.
BLOCK = 2**18


def change_threshold(
    stream: np.ndarray, factor: float, rng: np.random.Generator, dark: float = 0.0
) -> np.ndarray:
    """Return the spikes that a sensor with `factor` times the threshold would have recorded.

    E.g. factor 4 gives one spike for four, and factor 0.5 gives two spikes for one.

    stream: recorded spikes (T, h, w) uint8.
    rng: the generator of the first charge of each pixel.
    dark: dark current, in spikes per plane, that is added to the light.
    Returns spikes (T, h, w) uint8. With factor 1 and no dark current, this is `stream` itself.

    The light L of each plane (`plane_light`) is integrated again. A is the charge of a pixel in new
    thresholds, at first a random number between 0 and 1:

        A <- A + L / factor + dark
        s = A >= 1
        A <- A - s

    A plane has at most one spike, as in the sensor. With a lower threshold, a plane may bring more
    charge than that. There are three rules for the charge that is left:

        left: 1 to 2      kept, so the next plane has the spike. A read-out rounds spike times to
                          planes: constant light of 0.9 spikes per plane gives intervals of 1 and 2
                          planes, and only their mean is right. Without the kept charge, the new
                          sensor would fire too rarely.
        left: 2 or more   lost but for one kept spike: A <- 1 + A mod 1
        it becomes dark   the kept spike is dropped before the plane is added: A <- A mod 1.
                          Otherwise a dark plane would fire from the light before it.
                          `_has_decreased` says where it becomes dark.

    Another rule or order fails test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says.
    """
    if factor == 1.0 and not dark:
        return stream
    charges = rng.random(stream.shape[1:], dtype=np.float32)  # (h, w), A of each pixel
    # If the factor is above 1 and there is no dark current, a plane adds less than 1 to a charge
    # below 1. Then the charge stays below 2, and the three rules have no effect.
    may_reach_two = factor <= 1 or dark > 0
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, BLOCK // (planes * width))
    for top in range(0, height, rows):
        block = slice(top, top + rows)
        light = plane_light(stream[:, block])  # (T, rows, w)
        charge = charges[block]  # (rows, w), a view

        has_decreased = _has_decreased(light)

        # L / factor + dark, in place.
        light /= np.float32(factor)
        if dark:
            light += np.float32(dark)

        # `_collect` overwrites each plane of `light` with the whole thresholds in the charge, 0, 1,
        # 2, ... The pixel fires where they are 1 or more.
        for plane, is_darker in zip(light, has_decreased, strict=True):
            _collect(charge, plane, is_darker, may_reach_two)
        whole_thresholds = light
        # As bool, because `out` is uint8 in {0, 1}, which has the same bytes.
        spikes = out[:, block].view(bool)
        np.greater_equal(whole_thresholds, np.float32(1.0), out=spikes)
    return out


def _collect(
    charge: np.ndarray, plane: np.ndarray, is_darker: np.ndarray, may_reach_two: bool
) -> None:
    """Add the light of one plane to the charge, and spend the charge of its spikes.

    All arrays are (h, w). `change_threshold` explains the three rules.

    charge: charge in thresholds, changed in place.
    plane: the light of the plane, overwritten with the whole thresholds in the charge.
    is_darker: bool, where the light has decreased, so that a kept spike is dropped.
    may_reach_two: whether the charge may become 2 or more.
    """
    one = np.float32(1.0)
    if may_reach_two:
        # A <- A mod 1 where it is darker. The charge is below 2 here, so 1 is subtracted where the
        # charge is 1 or more: True counts as 1.
        charge -= is_darker & (charge >= one)
    charge += plane
    whole_thresholds = np.floor(charge, out=plane)
    spent = whole_thresholds
    if may_reach_two:
        # At most one threshold is kept. E.g. a charge of 3.4 has 3 whole thresholds: one for the
        # spike, one is lost, and one is kept. So 2 are spent, and 1.4 remains. A charge of 1.4 has
        # only the one for the spike, and 0.4 remains.
        for_spike = np.minimum(whole_thresholds, one)  # 0 or 1
        spent = np.maximum(for_spike, whole_thresholds - one)
    charge -= spent


def _has_decreased(light: np.ndarray) -> np.ndarray:
    """Return where the light has become darker since the plane before.

    The interval must have become longer by more than one plane. A read-out rounds spike times to
    planes, so a difference of one plane may be only rounding.

    light: (T, h, w) of `plane_light`. Returns bool (T, h, w).
    """
    # The length of an interval is 1 / light. So the condition is 1 / now > 1 / before + 1. Times
    # now and before, this is before > now (1 + before), without a division by 0 in the dark. 0.999
    # is a margin for rounding errors. Plane 0 has no interval before it, so it stays False.
    has_decreased = np.zeros(light.shape, bool)
    before = light[:-1]
    now = light[1:]
    np.less(now * (np.float32(1.0) + before), np.float32(0.999) * before, out=has_decreased[1:])
    return has_decreased

"""Simulate the spike sensor: spikes from light.

A pixel of the sensor collects charge from light. When the charge reaches the threshold, the pixel
gives a spike and is reset. The spike is a 1 in the next plane. A plane is one read-out of all
pixels.

    camera = IntegrateAndFire(32, 48, rate=0.5, rng=np.random.default_rng(0))
    spikes = camera.run([light] * 97)  # (97, 32, 48); a spike in every second plane at light 1

Light is linear, and 1 at full light. The callers choose the amounts of noise:

    data/cameras/rig.py       for a simulated rig, with the values in data/cameras/rig_values.py
    data/making/recipe.py     for made data sets without a rig
    scripts/spike_tool.py     for one video, by its flags

What must stay: all numbers, bit for bit, because made data sets (with simulated spikes) consist of
them. So the order of random draws and of sums is fixed.

Tests: tests/parts/data/test_spike_simulate.py (compares with a plain loop over pixels and planes,
and with a published simulator)
"""

from collections.abc import Iterable

import numpy as np

from .moved import moved_names


class IntegrateAndFire:
    """A spike sensor that takes one plane of light at a time.

    Per pixel and plane, with the light I >= 0 (1 at full light) and the charge A:

        A <- A + rate * threshold * I + dark + noise        dark: dark_rate * threshold
        s = A >= threshold
        A <- A mod threshold   where s

    `rate` is the firing rate at I = 1, in spikes per plane. Other simulators have a gain in place
    of a rate, with rate = gain / threshold. E.g. the rate is 1 / 2 = 0.5 for SpkDeblurNet's v2s,
    and 0.9925 for S-SDM.

    Why a modulo? If one plane brings a charge of several thresholds, the pixel is reset several
    times, but gives only one spike. Only the charge since the last reset remains, as in the
    simulator of S-SDM (SimulationSimple_Video). If each plane brings less than one threshold, the
    modulo is equal to a subtraction of the threshold, as in SpkDeblurNet's v2s.

    Source of the pixel: Huang et al., "1000x Faster Camera and Machine Vision with Ordinary
    Devices", Engineering 25, 2023.

    The defaults must stay. data/cameras/rig.py relies on `threshold`, `initial_charge` and
    `dark_rate`, and scripts/parts/spike_tool/ relies on the first two. The recipes of made data
    sets (data/making/recipe.py) have defaults of their own.

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
            raise ValueError(f"rate is {rate}, threshold is {threshold}, expected numbers above 0")
        self.rng = rng
        # Charges that a pixel collects during one plane.
        self.shot_noise = shot_noise * threshold  # standard deviation of the charge at full light
        self.dark = dark_rate * threshold  # charge without light
        self.gain = rate * threshold  # charge at full light
        # The order of the two draws decides which spikes a seed gives: do not change it.
        spread = 1.0 + threshold_mismatch * rng.standard_normal((height, width))
        # A threshold near 0 or below would make the pixel fire in every plane, so the threshold is
        # at least a tenth of the mean.
        least_threshold = 0.1 * threshold
        self.threshold = np.maximum(threshold * spread, least_threshold).astype(np.float32)
        first_charge = rng.uniform(0.0, 1.0, (height, width)) * initial_charge * self.threshold
        self.charge = first_charge.astype(np.float32)

    def step(self, light: np.ndarray) -> np.ndarray:
        """Integrate one plane of light (H, W). Returns its spikes (H, W) uint8 in {0, 1}.

        Tests: test_the_published_simulator_is_reproduced,
        test_a_pixel_in_the_dark_does_not_fire_for_light_of_earlier_planes
        """
        # A <- A + rate * threshold * I + dark + noise
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

        The pixels keep the charge that is left from the call before.
        """
        return np.stack([self.step(light) for light in lights])


# Names that stood here in version 0.9.0.
__getattr__ = moved_names(
    __name__,
    {
        "to_linear": "data.spike.pictures",
        "to_display": "data.spike.pictures",
        "to_grey": "data.spike.pictures",
    },
)

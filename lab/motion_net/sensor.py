"""Simulate the spike camera, which turns light into spikes.

data/spike/simulate.py has a similar sensor, for the clips of users. The sensor of this file is
faster, because its noise is uniform instead of normal.

What must stay: the order of the draws and of the multiplications. With another order, the same seed
gives other spikes than in the shipped training.
"""

from dataclasses import dataclass

import numpy as np

from data.spike.pictures import DISPLAY_GAMMA
from lab.motion_net.instants import STEP

# Before the scene, the sensor sees its first instant for this number of planes. After these planes,
# the charge of a pixel no longer depends on its initial value. After the scene, it sees the last
# instant for this number of planes, because `spike_windows` looks for the first spike after the
# last window.
WARM_UP = 24


@dataclass(frozen=True)
class Sensor:
    """A spike camera. Charges are counted in thresholds: a pixel fires at a charge of about 1."""

    rate: float  # charge that a white pixel collects in a plane
    is_display: bool  # whether the camera integrates display values instead of light
    jitter: float  # the noise of a charge c has the standard deviation jitter * sqrt(c)
    pattern: float  # relative standard deviation of the thresholds between pixels
    dark: float  # mean charge in a plane without any light


def spikes_of(rng: np.random.Generator, light: np.ndarray, sensor: Sensor) -> np.ndarray:
    """Record light (N, h, w) by a spike camera. Returns its planes (T, h, w) bool.

    A pixel collects charge in each plane. If the charge reaches the threshold, the pixel fires in
    this plane, and the threshold is subtracted from the charge. Each instant of `light` gives STEP
    = 2 planes. Before the first instant and after the last instant, nothing moves for WARM_UP = 24
    planes. So T = 24 + 2 N + 24.
    """
    size = light.shape[1:]
    # For each instant: the charge that each pixel collects in a plane, (N, h, w).
    charge_of_plane = collected_charge(rng, light, sensor)
    # A threshold is at least 0.1, because a pixel with a threshold near 0 would fire in every
    # plane.
    threshold = np.maximum(1 + sensor.pattern * rng.standard_normal(size), 0.1).astype(np.float32)
    charge = (rng.random(size) * threshold).astype(np.float32)  # before the first plane, (h, w)
    noise = noise_of_plane(light, charge_of_plane, sensor)  # (N, h, w)

    planes = []
    for plane in range(-WARM_UP, len(light) * STEP + WARM_UP):
        instant_index = instant_of_plane(plane, instants=len(light))
        charge += charge_of_plane[instant_index]
        # Uniform noise, because it is drawn faster than normal noise:
        #
        #     noise                   range              variance
        #     uniform                 -0.5 to 0.5        1/12
        #     sqrt(12) * uniform      -1.73 to 1.73      1
        uniform = rng.random(size, dtype=np.float32) - np.float32(0.5)
        charge += noise[instant_index] * uniform * np.float32(12**0.5)
        has_fired = charge >= threshold
        # Subtract the threshold, or a multiple of the threshold: fmod gives the remainder of charge
        # / threshold. `where` chooses the pixels that have fired.
        np.fmod(charge, threshold, out=charge, where=has_fired)
        planes.append(has_fired)

    stream = np.array(planes)
    # Half of the cameras have broken pixels.
    if rng.random() < 0.5:
        break_pixels(rng, stream)
    return stream


def instant_of_plane(plane: int, instants: int) -> int:
    """Return the index of the instant that a plane sees.

    STEP = 2 planes see the same instant, e.g. the planes 0 and 1 see the instant 0. The WARM_UP
    planes before the scene have negative numbers. They see the instant 0, too. The WARM_UP planes
    after the scene see the last instant.

    instants: number of instants of the scene.
    """
    return min(max(plane // STEP, 0), instants - 1)


def collected_charge(rng: np.random.Generator, light: np.ndarray, sensor: Sensor) -> np.ndarray:
    """Return the charge (N, h, w) that each pixel collects in a plane, without noise.

    The formula depends on the camera:

        charge = rate * light + dark charge              if the camera integrates light
        charge = rate * display value + dark charge      if it integrates display values
    """
    integrated = light
    if sensor.is_display:
        integrated = np.power(light, np.float32(1 / DISPLAY_GAMMA))
    # The dark charge differs between pixels by 30 % (standard deviation), and is never negative.
    differences = rng.standard_normal(light.shape[1:])  # (h, w)
    dark_charge = sensor.dark * np.maximum(1 + 0.3 * differences, 0)
    return (sensor.rate * integrated + dark_charge).astype(np.float32)


def noise_of_plane(light: np.ndarray, charge_of_plane: np.ndarray, sensor: Sensor) -> np.ndarray:
    """Return the standard deviation (N, h, w) of the noise of a charge c: jitter * sqrt(c).

        c = charge of a plane, with the dark charge    if the camera integrates display values
        c = rate * light, without the dark charge      if it integrates light

    So a black pixel has no noise if the camera integrates light. The shipped network was trained
    with these formulas, and no measurement of other formulas is recorded.

    charge_of_plane: (N, h, w), with the dark charge.
    """
    # In both cases c = rate * `relative`. For display values, the rate is divided out here and
    # multiplied again below. Both operations together change the last bits, and the shipped
    # training had the changed bits.
    if sensor.is_display:
        relative = charge_of_plane / sensor.rate
    else:
        relative = light
    # Neither light nor charge is negative, so `maximum` changes nothing. It only makes sure that
    # the root exists.
    c = np.float32(sensor.rate) * np.maximum(relative, 0)
    return np.float32(sensor.jitter) * np.sqrt(c)


def break_pixels(rng: np.random.Generator, stream: np.ndarray) -> None:
    """Let 0.07 % of the pixels never fire, and 0.07 % always. Changes `stream`, (T, h, w) bool.

    A scene of 64 x 64 pixels has about three of each kind.
    """
    size = stream.shape[1:]
    is_dead = rng.random(size) < 0.0007
    stream[:, is_dead] = False
    is_hot = rng.random(size) < 0.0007
    stream[:, is_hot] = True

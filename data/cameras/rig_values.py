"""Name the values of rigs (pairs of simulated cameras): test conditions, and ranges of random rigs.

    NAMED     name for the flag --rig, e.g. "dim" -> values of fields of `Rig`
    RANGES    field of `Rig` -> lowest and highest value that the rig "random" may draw

data/cameras/rig.py and data/cameras/rgb_camera.py explain the fields and their units.

What must stay: the values of NAMED, because the benchmarks were measured with them. The ranges and
their order must stay, too, because they decide the rig of a seed. Free to add: a condition in
NAMED. `Rig.random` draws the seed of the noise after all ranges. So a new range changes this seed,
even if it is at the end of RANGES. So if you add a range, raise VERSION in data/making/recipe.py.

Tests: tests/parts/data/test_seeds.py notices a new range and a changed order
(test_a_seed_gives_its_rig).
"""

from typing import Any

import numpy as np

# Two plausible cameras with small flaws. The firing rate and its jitter are left out, because "rig"
# and "dim" (in NAMED) have different values.
_TWO_CAMERAS = {
    # Where the spike camera looks, and when.
    "shift_x": 0.6,  # RGB pixels
    "shift_y": -0.4,
    "rotation_deg": 0.15,
    "scale": 1.003,
    "lens_blur": 0.5,  # spike pixels
    "parallax": 1.0,  # RGB pixels
    "time_offset": 1.0,  # planes
    # The spike camera: its weights of R, G and B, and its sensor.
    "mix": (0.25, 0.55, 0.2),
    "dark_rate": 0.0005,  # spikes per plane
    "pattern": 0.03,
    "dead": 0.0005,  # fraction of the pixels
    "hot": 0.0005,
    # The RGB camera.
    "exposure": 0.8,  # fraction of the frame interval
    "rolling": 0.1,  # fraction of the exposure
    "contrast": 0.1,
    "shot": 0.01,
    "read": 0.002,
    "jpeg": 95,  # quality
}
# Test conditions: name for the flag --rig -> fields of `Rig`.
# ideal: aligned cameras. The spikes of a pixel come at nearly equal intervals, but the thresholds
#   of the pixels differ, as in the real stream of a bright wall.
# rig: two plausible cameras.
# dim: the cameras of "rig" at a mean of about 0.03 spikes per plane, as in the real stream of a dim
#   scene.
# other: aligned cameras. The sensor integrates display values. The dark current and the threshold
#   differ from pixel to pixel, as in the sensor model of the method RSIR.
NAMED: dict[str, dict[str, Any]] = {
    "ideal": {"rate": 0.9, "jitter": 0.01, "dark_rate": 0.001, "pattern": 0.02},
    "rig": {**_TWO_CAMERAS, "rate": 0.3, "jitter": 0.02},
    "dim": {**_TWO_CAMERAS, "rate": 0.08, "jitter": 0.035},
    "other": {
        "rate": 0.5,
        "light": "display",
        "dark_rate": 0.02,
        "dark_spread": 0.3,
        "pattern": 0.05,
    },
}

# The values of a random rig: field -> (lowest, highest). The ranges are wider than the values of
# the few known captures. A value is drawn uniformly, except for the fields in LOGARITHMIC. The
# order of the fields is the order of the draws (test_a_seed_gives_its_rig notices a changed order).
RANGES: dict[str, tuple[Any, Any]] = {
    # Where the spike camera looks, and when.
    "shift_x": (-2, 2),  # RGB pixels
    "shift_y": (-2, 2),
    "rotation_deg": (-0.5, 0.5),
    "scale": (0.99, 1.01),
    "lens_blur": (0, 1),  # spike pixels
    "parallax": (0, 2),  # RGB pixels
    "time_offset": (-6, 6),  # planes
    # The spike camera: its weights of R, G and B, and its sensor.
    "mix": ((0.2, 0.4, 0.05), (0.4, 0.7, 0.25)),
    # Spikes per plane at full light. The mean of a scene is about 0.4 times as high: 0.03 to 0.3.
    "rate": (0.06, 0.8),
    "jitter": (0, 0.06),
    "dark_rate": (0, 0.002),  # spikes per plane
    "dark_spread": (0, 0.5),
    "pattern": (0, 0.05),
    "dead": (0, 0.001),  # fraction of the pixels
    "hot": (0, 0.001),
    # The RGB camera.
    "exposure": (0.5, 1),  # fraction of the frame interval
    "rolling": (0, 0.3),  # fraction of the exposure
    "gamma": (2, 2.4),
    "contrast": (-0.1, 0.3),
    "shot": (0.002, 0.02),
    "read": (0.0005, 0.005),
    "jpeg": (85, 100),  # quality
}
# Fields whose logarithm is drawn uniformly. So half of a usual value is as likely as twice the
# usual value.
LOGARITHMIC = ("rate", "shot", "read")


def draw_values(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the fields of a random rig: field -> value, in the order of RANGES.

    `rolling` becomes smaller than its draw if the exposures of all rows would not fit into the
    frame interval.
    """
    values: dict[str, Any] = {}
    for name, (low, high) in RANGES.items():
        if name in LOGARITHMIC:
            value = np.exp(rng.uniform(np.log(low), np.log(high)))
        else:
            value = rng.uniform(low, high)
        # Round the numbers, so that they are short in dataset.json. `mix` has three numbers.
        if name == "mix":
            values[name] = tuple(value.round(4).tolist())
        else:
            values[name] = round(float(value), 4)
    # All rows must be exposed within the frame interval:
    #     exposure * (1 + rolling) <= 1,  so  rolling <= 1 / exposure - 1
    most_rolling = 1 / values["exposure"] - 1
    values["rolling"] = min(values["rolling"], most_rolling)
    values["jpeg"] = round(values["jpeg"])  # OpenCV needs a whole number
    return values


def numbers_of_changes(changes: list[str]) -> dict[str, Any]:
    """Return {field: number} from the changes of a flag --rig.

    E.g. ["parallax=0", "rate=0.2"] gives {"parallax": 0, "rate": 0.2}. A whole number becomes an
    int, because the fields jpeg and seed need an int. Raises ValueError if a value is not a number.
    """
    numbers: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        number = float(value)
        numbers[key] = int(number) if number.is_integer() else number
    return numbers

"""Try the calibration of clips on 50 random pairs of cameras whose true calibration is known.

    python -m lab.calibration_trials

For each pair of cameras (a rig, data/cameras/rig.py) a made scene is recorded, and
data/cameras/registration finds the calibration from the frames and spikes of the clip.
docs/benchmarks/calibration.md has the figures. The program prints a line of JSON for each trial:

    {"number": 0, "px": 0.05, "planes": -0.2, "share": 0.01, "sure": [true, true, true],
     "bits": "5f0a...", "rig": ...}

px: distance between where the found and the true matrix map a spike pixel, the mean over the plane.
planes: error of the time of the middle of the exposure, in spike planes.
share: error of the exposure time, as a fraction of the frame interval.
sure: whether the registration says that it is sure of matrix, middle and exposure time.
bits: a digest of all numbers of the fit. After a change of the code, it is the same only if all
    numbers are the same.
rig: the true rig.

After the trials it prints a line for all trials, and a line for each group of similar rigs. A cell
says which share of the errors is within LIMITS, and how many of the sure results are right:

    all (50) | 92% (45 of 46 sure) | ...

What must stay: the random numbers of a trial, and their order. The figures of another version can
only be compared if both see the same 50 pairs of cameras. No test runs this file.
"""

import hashlib
import json
from dataclasses import asdict
from typing import Any

import numpy as np

from data.cameras.registration.fit import fit
from data.cameras.registration.matrix import nominal_matrix
from data.cameras.registration.result import FitResult
from data.cameras.registration.view import View
from data.cameras.rig import Rig
from scripts.parts.make_sample_data.sample_layers import PLANES, make_layers, render

FRAMES = 8  # number of frames of a clip
SIDE = 160  # side of a frame, in pixels
RGB = (SIDE, SIDE)  # height and width of a frame
SPIKE = (SIDE // 2, SIDE // 2)  # height and width of a spike plane
# Planes before and after the interval of a frame that the registration gets too. The clocks of the
# cameras differ, so the exposure may lie partly outside of the interval.
AROUND = 40

# The largest error that counts as right. The keys have the order of the registration's `is_sure`,
# because `print_summary` finds the flag of an error in "sure" by its index here.
LIMITS = {"px": 0.2, "planes": 1.0, "share": 0.05}

# Fields of a rig by which the trials are grouped, and the two limits between three groups of each.
GROUPS = {
    "rate": (0.15, 0.35),  # spikes per plane at full light
    "parallax": (0.7, 1.3),  # RGB pixels between the shifts of the nearest and the farthest layer
    "rolling": (0.1, 0.2),  # delay of the last row after the first, as a fraction of the exposure
}
ABOVE_ALL = 9  # upper limit of the third group; all values of these fields are smaller


def main() -> None:
    """Make 50 trials, and print them and their summaries."""
    trials = [trial(number) for number in range(50)]
    for result in trials:
        print(json.dumps(result))

    print_summary(trials, "all")
    for key, (first_limit, second_limit) in GROUPS.items():
        ranges = ((0, first_limit), (first_limit, second_limit), (second_limit, ABOVE_ALL))
        for low, high in ranges:
            group = [result for result in trials if low <= result["rig"][key] < high]
            if group:
                print_summary(group, f"{key} {low} to {high}")


def trial(number: int) -> dict[str, Any]:
    """Record a clip with a random rig, and calibrate it. Returns a line of the output.

    number: seed of the rig and of the scene.
    """
    # 26 is arbitrary: another number would give 50 other rigs, and other figures in
    # docs/benchmarks/calibration.md.
    rng = np.random.default_rng([26, number])
    rig = Rig.random(rng)
    # `fit` begins at the matrix of two cameras with the same view, `nominal_matrix`. It knows only
    # one fact of the true rig: whether the spike camera sees linear light or display values.
    found = fit(record_views(rig, rng), nominal_matrix(SPIKE, RGB), rig.light)

    errors = {
        "px": mean_distance(found.matrix, rig.matrix(SPIKE, RGB)),
        "planes": found.offset - rig.time_offset,
        "share": found.share - rig.exposure,
    }
    rounded = {key: round(float(error), 3) for key, error in errors.items()}
    are_sure = [bool(is_sure) for is_sure in found.is_sure]  # matrix, middle, exposure time
    about = {"sure": are_sure, "bits": digest_of(found), "rig": asdict(rig)}
    return {"number": number, **rounded, **about}


def digest_of(found: FitResult) -> str:
    """Return 12 hex digits that change with the last bit of any number of a fit."""
    # JSON has all digits of a float64. `tolist` makes a list of an array, and a Python number of a
    # number of numpy.
    text = json.dumps(asdict(found), default=lambda value: value.tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def record_views(rig: Rig, rng: np.random.Generator) -> list[View]:
    """Record a made scene. Returns each frame with the planes of its interval and AROUND it.

    E.g. an interval has 88 planes. Frame 0 gets the planes 0 ... 127: no plane comes before its
    interval, 0 ... 87. Frame 1 gets the planes 48 ... 215, of which 40 come before its interval,
    88 ... 175.
    """
    layers = make_layers(rng, PLANES * FRAMES, SIDE)
    pictures = (render(layers, plane) for plane in range(PLANES * FRAMES))
    clip = list(rig.record(pictures, PLANES, SPIKE))  # (blurry, sharp, spikes) of each frame
    stream = np.concatenate([spikes for _, _, spikes in clip])  # spikes (T, h, w) of the clip
    views = []
    for frame_index, (blurry, _, _) in enumerate(clip):
        begin = frame_index * PLANES
        end = begin + PLANES
        first = max(0, begin - AROUND)
        planes = stream[first : end + AROUND]
        # before: planes of `planes` that come before the interval. count: planes of the interval.
        views.append(View(blurry, planes, before=begin - first, count=PLANES))
    return views


def mean_distance(found: np.ndarray, true: np.ndarray) -> float:
    """Return the mean distance in RGB pixels between where two matrices map a spike pixel.

    found, true: (2, 3) or (3, 3).
    """
    y, x = np.indices(SPIKE).reshape(2, -1)  # row and column of each spike pixel
    pixels = np.stack((x, y, np.ones_like(x)))  # (3, pixels): homogeneous coordinates
    # found p - true p = (found - true) p
    offsets = (found - true) @ pixels
    return np.hypot(offsets[0], offsets[1]).mean()


def print_summary(trials: list[dict[str, Any]], title: str) -> None:
    """Print a line on some trials: for each error in LIMITS, how many are within the limit.

    "92% (45 of 46 sure)": 92 % of all trials are right; the registration was sure of 46 trials, and
    45 of these are right.
    """
    cells = [f"{title} ({len(trials)})"]
    for error_index, (key, limit) in enumerate(LIMITS.items()):
        # Two arrays of bool, with an entry for each trial.
        is_right = np.array([abs(result[key]) <= limit for result in trials])
        is_sure = np.array([result["sure"][error_index] for result in trials])
        right_among_sure = (is_right & is_sure).sum()
        cells.append(f"{is_right.mean():.0%} ({right_among_sure} of {is_sure.sum()} sure)")
    print(" | ".join(cells))


if __name__ == "__main__":
    main()

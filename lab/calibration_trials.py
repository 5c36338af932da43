"""Try the calibration of clips on random pairs of cameras whose true calibration is known.

    python -m lab.calibration_trials [--trials 50] [--shift PIXELS]

Each pair of cameras (a rig, data/cameras/rig.py) records a simulated scene. Then
data/cameras/registration finds the calibration from the frames and spikes of this clip. The
calibration is the matrix from spike pixels to RGB pixels, and the middle and the length of the
exposure. docs/benchmarks/calibration.md has the figures. The program prints a line of JSON for each
trial:

    {"number": 0, "px": 0.05, "planes": -0.2, "share": 0.01, "sure": [true, true, true],
     "bits": "5f0a...", "rig": ...}

number: number of the trial. It is also the seed of its rig and its scene.
px: error of the matrix. The found matrix and the true matrix put a spike pixel at two places. `px`
    is the distance between these places, the mean over all spike pixels, in RGB pixels.
planes: error of the time of the middle of the exposure, in spike planes.
share: error of the exposure time, as a fraction of the frame interval.
sure: whether the registration is sure of the matrix, of the middle, and of the exposure time.
bits: digest of all numbers of the fit. If a change of the code changes any bit, the digest changes.
rig: the true rig.

After the trials the program prints a line for all trials, and a line for each group of similar
rigs. A line has a cell for each of px, planes and share. A result is right if its error is within
LIMITS. E.g.

    all (50) | 92% (45 of 46 sure) | ...

says: 92 % of the 50 results are right in px. The registration was sure of 46 results, and 45 of
these 46 are right.

What must stay: the random numbers of a trial, and their order. Figures of two versions can only be
compared if both versions see the same pairs of cameras. No test runs this file.
"""

import argparse
import hashlib
import json
import math
from dataclasses import asdict, replace
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
# The registration gets the planes of the interval of a frame, and this number of planes before and
# after the interval. The clocks of the cameras differ, so a part of the exposure may be outside of
# the interval.
AROUND = 40

# The largest errors that count as right, chosen by hand. The keys must have the order of "sure"
# (matrix, middle, exposure time), because `print_summary` takes the n-th flag for the n-th key.
LIMITS = {"px": 0.2, "planes": 1.0, "share": 0.05}

# Fields of a rig by which the trials are grouped. The two limits of a field divide its trials into
# three groups. The limits are chosen by hand.
GROUPS = {
    "rate": (0.15, 0.35),  # spikes per plane at full light
    "parallax": (0.7, 1.3),  # RGB pixels between the shifts of the nearest and the farthest layer
    "rolling": (0.1, 0.2),  # delay of the last row after the first, as a fraction of the exposure
}
ABOVE_ALL = 9  # upper limit of the third group. All values of these fields are smaller


def main() -> None:
    """Make the trials, and print them and their summaries."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=50, help="number of trials")
    parser.add_argument(
        "--shift",
        type=float,
        help="distance between the two views, in RGB pixels. Without it, the rig has its own shift",
    )
    args = parser.parse_args()
    trials = [trial(number, args.shift) for number in range(args.trials)]
    for result in trials:
        print(json.dumps(result))

    print_summary(trials, "all")
    for key, (first_limit, second_limit) in GROUPS.items():
        # E.g. for "rate": 0 to 0.15, 0.15 to 0.35, and 0.35 to 9. A group has low <= value < high.
        ranges = ((0, first_limit), (first_limit, second_limit), (second_limit, ABOVE_ALL))
        for low, high in ranges:
            group = [result for result in trials if low <= result["rig"][key] < high]
            if group:  # with other limits a group may be empty
                print_summary(group, f"{key} {low} to {high}")


def trial(number: int, shift: float | None = None) -> dict[str, Any]:
    """Record a clip with a random rig, and calibrate it. Returns a line of the output.

    number: seed of the rig and of the scene.
    shift: distance between the two views, in RGB pixels. None: the shift of the rig stays.
    """
    # 26 is chosen by hand. Another number would give other rigs, and other figures in
    # docs/benchmarks/calibration.md.
    rng = np.random.default_rng([26, number])
    rig = Rig.random(rng)
    if shift is not None:
        # The trials take turns with six directions, 60 degrees (pi / 3) apart.
        direction = number * math.pi / 3
        rig = replace(rig, shift_x=shift * math.cos(direction), shift_y=shift * math.sin(direction))
    # `fit` begins at `nominal_matrix`, the matrix of two cameras with the same view. Of the true
    # rig, `fit` gets only `light`, which says whether the spike camera sees linear light or display
    # values.
    found = fit(record_views(rig, rng), nominal_matrix(SPIKE, RGB), rig.light)

    # The errors: found value - true value.
    errors = {
        "px": mean_distance(found.matrix, rig.matrix(SPIKE, RGB)),
        "planes": found.offset - rig.time_offset,
        "share": found.share - rig.exposure,
    }
    rounded = {key: round(float(error), 3) for key, error in errors.items()}
    are_sure = [bool(is_sure) for is_sure in found.is_sure]  # matrix, middle, exposure time
    about = {"sure": are_sure, "bits": digest_of(found), "rig": asdict(rig)}
    # The keys in this order: number, px, planes, share, sure, bits, rig.
    return {"number": number, **rounded, **about}


def digest_of(found: FitResult) -> str:
    """Return 12 hex digits that change with the last bit of any number of a fit."""
    # JSON has all digits of a float64. `tolist` turns a numpy array into a list, and a numpy number
    # into a Python number.
    text = json.dumps(asdict(found), default=lambda value: value.tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def record_views(rig: Rig, rng: np.random.Generator) -> list[View]:
    """Record a simulated scene. Returns a `View` for each frame.

    A view has the blurry frame, the planes of its interval, and AROUND planes on each side. E.g.
    for intervals of 88 planes and AROUND = 40:

        frame    its interval    planes of the view    planes before the interval
        0        0 ... 87        0 ... 127             0, because the clip begins here
        1        88 ... 175      48 ... 215            40
    """
    layers = make_layers(rng, PLANES * FRAMES, SIDE)
    # The light of each plane, (SIDE, SIDE, 3).
    pictures = (render(layers, plane) for plane in range(PLANES * FRAMES))
    clip = list(rig.record(pictures, PLANES, SPIKE))  # (blurry, sharp, spikes) of each frame
    stream = np.concatenate([spikes for _, _, spikes in clip])  # spikes (T, h, w) of the clip
    views = []
    for frame_index, (blurry, _, _) in enumerate(clip):
        begin = frame_index * PLANES
        end = begin + PLANES
        first = max(0, begin - AROUND)
        planes = stream[first : end + AROUND]
        # before: number of `planes` before the interval. count: number of planes of the interval.
        views.append(View(blurry, planes, before=begin - first, count=PLANES))
    return views


def mean_distance(found: np.ndarray, true: np.ndarray) -> float:
    """Return the mean distance between the places to which two matrices map a spike pixel.

    The distance is in RGB pixels, and the mean is over all spike pixels.

    found, true: (2, 3) or (3, 3). The last row of a (3, 3) matrix is not used.
    """
    y, x = np.indices(SPIKE).reshape(2, -1)  # row and column of each spike pixel
    pixels = np.stack((x, y, np.ones_like(x)))  # (3, pixels): homogeneous coordinates
    # For a pixel p: found @ p - true @ p = (found - true) @ p
    offsets = (found - true) @ pixels
    return np.hypot(offsets[0], offsets[1]).mean()


def print_summary(trials: list[dict[str, Any]], title: str) -> None:
    """Print a line for some trials, with a cell for each error in LIMITS.

    E.g. the cell "92% (45 of 46 sure)": 92 % of the trials have an error within the limit. The
    registration was sure in 46 trials, and 45 of them have an error within the limit.
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

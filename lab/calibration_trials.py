"""50 random rigs, whose true calibration is known, calibrated from the clip: python -m
lab.calibration_trials

docs/benchmarks/calibration.md has the figures. px: mean distance, over the spike plane, between
where the found and the true matrix map a pixel; planes: of the middle of the exposure; share: of
the planes of a frame that was exposed.
"""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from data.cameras.registration import View, fit, nominal
from data.cameras.rig import Rig
from scripts.make_sample_data import PLANES, make_layers, render

SIDE, FRAMES, AROUND = 160, 8, 40
SPIKE, RGB = (SIDE // 2, SIDE // 2), (SIDE, SIDE)
LIMITS = {"px": 0.2, "planes": 1.0, "share": 0.05}


def trial(number: int) -> dict[str, Any]:
    rng = np.random.default_rng([26, number])
    rig, layers = Rig.random(rng), make_layers(rng, PLANES * FRAMES, SIDE)
    clip = list(
        rig.record((render(layers, plane) for plane in range(PLANES * FRAMES)), PLANES, SPIKE)
    )
    stream, views = np.concatenate([spikes for *_, spikes in clip]), []
    for index, (frame, *_) in enumerate(clip):
        first = max(0, index * PLANES - AROUND)
        views.append(
            View(
                frame, stream[first : (index + 1) * PLANES + AROUND], index * PLANES - first, PLANES
            )
        )
    found, true = fit(views, nominal(SPIKE, RGB), rig.light), rig.matrix(SPIKE, RGB)
    y, x = np.indices(SPIKE).reshape(2, -1)
    offsets = (found.matrix - true) @ np.stack((x, y, np.ones_like(x)))
    errors = (
        np.hypot(*offsets[:2]).mean(),
        found.offset - rig.time_offset,
        found.share - rig.exposure,
    )
    errors = {key: round(float(error), 3) for key, error in zip(LIMITS, errors, strict=True)}
    return {"number": number, **errors, "sure": list(map(bool, found.is_sure)), "rig": asdict(rig)}


def table(trials: list[dict[str, Any]], title: str) -> None:
    """One line: of each measure the share within its limit, of all and of those that are sure, and
    the share sure.
    """
    line = [f"{title} ({len(trials)})"]
    for place, (key, limit) in enumerate(LIMITS.items()):
        right = np.array([abs(each[key]) <= limit for each in trials])
        sure = np.array([each["sure"][place] for each in trials])
        line.append(f"{right.mean():.0%} ({right[sure].sum()} of {sure.sum()} sure)")
    print(" | ".join(line))


if __name__ == "__main__":
    trials = [trial(number) for number in range(50)]
    print(*map(json.dumps, trials), sep="\n")
    table(trials, "all")
    for key, limits in {
        "rate": (0.15, 0.35),
        "parallax": (0.7, 1.3),
        "rolling": (0.1, 0.2),
    }.items():
        for low, high in zip((0, *limits), (*limits, 9), strict=True):
            if part := [t for t in trials if low <= t["rig"][key] < high]:
                table(part, f"{key} {low} to {high}")

"""Calibrate 20 made pairs of two cameras, whose true geometry is known: python -m lab.calibration_trials

docs/benchmarks/calibration.md says how a pair is made. The error is the distance, in RGB pixels, between where the
found and the true matrix map a spike pixel, over all spike pixels that lie in the frame.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from data.spike_grid import load_calibration
from scripts import calibrate
from tests.two_cameras import LIMIT_PX, error_px, similarity, write_pair

PLANE = (250, 400)
FRAMES = ((360, 640), (540, 960), (720, 1280))


def trial(folder: Path, number: int) -> dict[str, object]:
    """One made pair, calibrated. Number 0: turned by 2 degrees, enlarged by 1.37, shifted."""
    rng = np.random.default_rng([16, number])
    rgb, mirror = FRAMES[number % 3], "columns" if number % 4 == 3 else "none"
    angle, scale = rng.uniform(-5, 5), rng.uniform(1.0, 1.3) * rgb[0] / 360
    shift = rng.uniform(-0.04, 0.04, 2) * rgb[1]
    if number == 0:
        angle, scale, shift = 2.0, 1.37, np.array((11.3, -7.8))
    truth = similarity(angle, scale, PLANE, rgb, shift)
    tilt = np.eye(3)
    tilt[2, :2] = rng.uniform(-0.03, 0.03, 2) / rgb[1] if number % 2 else 0
    truth = tilt @ truth / (tilt @ truth)[2, 2]
    made = {"motion": rng.uniform(-12, 12, 2), "noise": rng.uniform(0.01, 0.03), "rgb": rgb, "spike": PLANE}
    pair, out = write_pair(folder, f"{number}", truth, mirror, rng, **made), folder / f"{number}.json"
    overlay = folder / f"{number}_overlay.png"
    command = [*pair, "--size", *PLANE, "--out", out, "--overlay", overlay]
    assert calibrate.main([*map(str, command)]) == 0
    mean, largest = error_px(out, truth, mirror)
    found = {"mean_px": mean, "max_px": largest, "residual_px": load_calibration(out).made["residual_px"]}
    return {"rgb": rgb, "angle_deg": angle, "scale": scale, "mirror": mirror, **found}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trials = [trial(Path(folder), number) for number in range(20)]
    print(*map(json.dumps, trials), sep="\n")
    worst = max(each["max_px"] for each in trials)
    print(f"mean error {np.mean([each['mean_px'] for each in trials]):.3f} px, largest {worst:.3f} px")
    sys.exit(int(worst > LIMIT_PX))

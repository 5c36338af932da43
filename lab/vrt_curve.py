#!/usr/bin/env python3
"""Measure how much attention over frames improves a restoration, at equal training time.

    python lab/vrt_curve.py --videos VIDEOS --out FOLDER --form FORM [--minutes 8 16 24] [--seed 0]

A Video Restoration Transformer (VRT) uses attention over frames: it restores a frame with the help
of the other frames of its clip. The default weights of this project have no attention over frames.
They restore a frame in three steps:

    1  weights/operator.pth, the operator, restores each blurry frame with the help of its spikes
    2  a small network finds the motion within the exposure, from the spikes, too
    3  the learned steps of weights/motion.pth improve the frame along this motion

--form says where attention over frames is added:

    motion   in step 2, the network that finds the motion and its expected error
    prior    in step 3, between the learned steps
    behind   after step 1, on the frames of the operator, as VRT is used in the option files

For each form two networks are trained: one with attention over frames, and a control without it.
Both networks have about the same number of parameters, and see the same training data in the same
order. The tests show videos on which no network is trained.

Each time of --minutes is a point of the curve: both networks are tested after this time. It is the
CPU time of one thread, so other programs on the machine do not change it. The scores are written to
FOLDER/vrt_curve_FORM.json (see `measure`).

If the program is stopped, repeat the command: it resumes from the state of the training in FOLDER,
which is saved each minute. docs/benchmarks/quality_networks.md has the figures.

What must stay:

    the order of the random draws, so that a seed gives the same training data
    the keys of the written JSON, because such files are in docs/benchmarks/quality
    both networks of a form get the same time and the same data
        (test_both_networks_of_a_form_are_trained_for_the_same_time)
    the control sees no other frame
        (test_attention_sees_the_other_frames_and_the_control_does_not)

Free to add: a form, i.e. a module of lab/vrt_forms/ and an entry of FORMS.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.quality_suite.outcomes import difference
from lab.tools import environment
from lab.vrt_forms.behind import BehindForm
from lab.vrt_forms.form import ARMS, ATTENTION, CONTROL, LIGHTS, Form
from lab.vrt_forms.motion import MotionForm
from lab.vrt_forms.prior import PriorForm
from lab.vrt_forms.training import Training

# Value of --form -> its class. The value is also `name` of the class, and in the names of files.
FORMS: dict[str, type[Form]] = {
    "motion": MotionForm,
    "prior": PriorForm,
    "behind": BehindForm,
}


def main(argv: Sequence[str]) -> int:
    """Train both networks of a form, test them at each point, and write the scores.

    Returns the exit code 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--out", type=Path, required=True, help="folder of the data, the weights and the scores")
    add("--form", choices=FORMS, required=True, help="where attention over frames is added")
    add(
        "--minutes",
        type=float,
        nargs="+",
        default=[8, 16, 24],
        help="CPU minutes of training at the points of the curve, default 8 16 24",
    )
    add("--seed", type=int, default=0, help="seed of all random numbers, default %(default)s")
    args = parser.parse_args(argv)
    # With one thread, numbers are always added in the same order, and the CPU time contains no
    # overhead of threads.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    form = FORMS[args.form].make(args.videos, args.out)
    minutes = sorted(set(args.minutes))
    measure(form, args.out, minutes, args.seed)
    return 0


def measure(form: Form, out: Path, minutes: Sequence[float], seed: int) -> None:
    """Train and test both networks of a form, and write <out>/vrt_curve_<form>.json.

    A point of the written file looks like this (shortened):

        {"minutes": 3,
         "attention": {"steps": 110, "scores": {"dim": {"coffee_00": 3.55, ...}, ...}},
         "control": {"steps": ..., "scores": ...},
         "attention - control": {"dim": [0.06, 0.08], ...}}     see `differences`

    minutes: CPU minutes of training at the points, in rising order. A training goes on from one
        point to the next.
    """
    points: list[dict[str, Any]] = [{"minutes": minute} for minute in minutes]
    # The content of the written file. `points` is filled below.
    content: dict[str, Any] = {
        "environment": environment(),
        "form": form.name,
        "score": form.score,  # what the scores are, with their unit
        "seed": seed,
        "parameters": {},
        "points": points,
        # The scores of methods that are not trained here. Some forms have none.
        **form.references(),
    }
    # An arm is one of the two networks. ARMS is (ATTENTION, CONTROL), so the control is tested
    # last. `differences` needs the scores of both arms, so it is called after the control is
    # tested.
    for arm in ARMS:
        training = Training(form, arm, seed, out / f"{form.name}_{arm}_seed{seed}.pt")
        content["parameters"][arm] = training.parameter_count
        for point in points:
            weights = training.weights_after(seconds=60 * point["minutes"])
            scores = form.scores_of_weights(arm, weights.averaged)
            point[arm] = {"steps": weights.steps, "scores": scores}
            if arm == CONTROL:
                point["attention - control"] = differences(point)
            print_point(form.name, arm, point)
            # Write the file after each point, so that a stop loses one point at most.
            file = out / f"vrt_curve_{form.name}.json"
            file.write_text(json.dumps(content, indent=1) + "\n")


def print_point(form_name: str, arm: str, point: Mapping[str, Any]) -> None:
    """Print the mean scores of a network at a point, and the differences if the point has them.

    point: a point of the written file, see `measure`.
    """
    means = {}  # the mean score in each light, e.g. {"dim": 3.2}
    for light, scores in point[arm]["scores"].items():
        means[light] = float(np.mean(list(scores.values())))
    minutes = f"{point['minutes']:g} minutes"
    print(f"{form_name} {arm} {minutes} {point[arm]['steps']} steps: {means}")
    if "attention - control" in point:
        print(f"  attention - control: {point['attention - control']}")
    sys.stdout.flush()


def differences(point: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return light -> [mean of attention - control, half of its 95 % interval].

    E.g. {"dim": [0.06, 0.08]}: in dim light the true difference is between -0.02 and 0.14.

    point: a point of the written file, see `measure`. It must have the scores of both networks.
    """
    difference_of_light: dict[str, list[float | None]] = {}
    for light in LIGHTS:
        spread = difference(
            point[ATTENTION]["scores"][light],
            point[CONTROL]["scores"][light],
        )
        assert spread is not None  # both networks are tested on the same data
        difference_of_light[light] = [spread.mean, spread.margin]
    return difference_of_light


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

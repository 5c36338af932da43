#!/usr/bin/env python3
"""Train the learned steps of weights/motion.pth, which improve the frames of the operator.

    python lab/train_motion_net.py --videos VIDEOS --out FILE
    python lab/train_motion.py --videos VIDEOS --network FILE [--steps 2000] [--begin WEIGHTS]

The network of weights/motion.pth is the fusion "motion" (models/fusion/fusion_motion.py). It
restores a frame in this order:

    1  the operator (weights/operator.pth, a network) makes z_0, a first estimate of the sharp frame
    2  the motion within the exposure gives equations of the frame (data/motion/joint/equations.py).
       A frame that solves the equations is the proposal
    3  the learned steps (MotionSteps, three passes of a small network) improve z_0 with the
       proposal and the equations

This program trains only the learned steps, on one thread of a CPU. They have two parts, each with
its own weights: "few" for frames with few spikes, and "good" for good light. --part says which part
is trained. The other part keeps the weights of --begin.

A sample is one frame of a clip, with everything that its equations need. lab/motion_steps/sets.py
says what the clips show. Clips and samples that are already in <out> are used again.

--plain trains a control: the same network on the same samples, without the motion and its
equations. So the gain without --plain, minus the gain with --plain, is what the motion and its
equations add.

An update is a step of the optimizer, and --steps is the number of updates. The program writes
<out>/motion.pth every 500 updates and at the end. Every 100 updates it prints by how many dB the
learned steps improve on the operator.

What must stay: the order of the random draws, because with another order a seed gives other
weights. The keys of the written weights must stay, too, because models/fusion/fusion_motion.py
reads them. Free to change, for the next training: the values at the head of each module of
lab/motion_steps/.

Tests: tests/parts/house/test_train_motion.py trains for 12 updates on one sample. No test makes the
clips and samples.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.motion_steps.loss import SQUARE_SIDE, WORSE_WEIGHT
from lab.motion_steps.made_samples import SOLVER, samples_of_part, training_samples
from lab.motion_steps.network import (
    OPERATOR_WEIGHTS,
    begin_at,
    motion_network,
    steps_of,
    write_weights,
)
from lab.motion_steps.sample import hide_motion
from lab.motion_steps.training import RATE, train
from lab.tools import ROOT
from models.portable import read_saved


def main(argv: Sequence[str]) -> int:
    """Make the samples, train the learned steps, and write their weights. Returns 0, the exit code.

    scripts/prepare_gopro_spike.py makes the clips of the samples. If making clips fails, this
    program ends, too.
    """
    args = read_arguments(argv)
    out = (args.out or ROOT / "experiments/train_motion").resolve()
    # With one thread the sums have one order, so a seed gives the same weights on each run.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    torch.manual_seed(args.seed)  # for the initial weights of the steps

    # Build the fusion "motion". Its operator makes a first estimate, and its learned steps improve
    # the estimate. The learned steps are new, or the steps of the file --begin.
    operator = read_saved(OPERATOR_WEIGHTS)
    description, net = motion_network(operator, args.network)
    if args.begin:
        begin_at(net, args.begin)
    # One of the two parts of the learned steps: "few" for frames with few spikes, "good" for frames
    # in good light.
    trained = steps_of(net, args.part)

    samples = training_samples(out, args.videos, operator, net)
    samples = samples_of_part(samples, args.part)
    if args.plain:
        # Train the control: its steps see neither the motion nor its equations. Changes `samples`.
        hide_motion(samples)
    sample_count = sum(len(samples_of_set) for samples_of_set in samples.values())
    parameter_count = sum(parameter.numel() for parameter in trained.parameters())
    print(f"{sample_count} samples, {parameter_count:,} parameters", flush=True)

    # The written file gets the average of the weights over many updates, but the training continues
    # with the newest weights. So the newest weights stay in `net`, and the average is put into a
    # second network.
    _, net_of_file = motion_network(operator, args.network)

    def save(averaged: Mapping[str, Tensor], updates: int) -> None:
        """Write motion.pth with the averaged weights of the trained steps.

        updates: number of updates so far.
        """
        # First copy all weights, because the file also has weights that are not trained. Then
        # replace the trained weights by their average.
        net_of_file.load_state_dict(net.state_dict())
        steps_of(net_of_file, args.part).load_state_dict(averaged)
        write_weights(out / "motion.pth", description, net_of_file, updates)

    train(
        trained,
        samples,
        # `train` also draws wrong motions, because the steps must learn when not to trust the
        # motion. For each wrong motion, the solver computes the proposal: the frame that solves the
        # equations along this motion.
        solver=SOLVER,
        updates=args.steps,
        seed=args.seed,
        save=save,
        rate=args.rate,
        worse_weight=args.worse_weight,
    )
    return 0


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--steps", type=int, default=2000, help="number of optimizer steps, default %(default)s")
    add("--seed", type=int, default=0, help="seed of all random numbers, default %(default)s")
    add("--network", type=Path, required=True, help="weights file of lab/train_motion_net.py")
    help_of_part = (
        'which learned steps are trained: "few" trains the steps for exposures with few spikes, '
        'and "good" trains the steps for exposures with more spikes; default %(default)s'
    )
    add("--part", choices=("few", "good"), default="few", help=help_of_part)
    help_of_begin = (
        'weights file with the fusion "motion". The training begins with the learned steps of this '
        "file. By default it begins with new steps, which change nothing"
    )
    add("--begin", type=Path, help=help_of_begin)
    add("--rate", type=float, default=RATE, help="largest learning rate, default %(default)s")
    help_of_worse_weight = (
        f"The loss also counts the squares of {SQUARE_SIDE} x {SQUARE_SIDE} pixels in which the "
        "frame became worse. This is their weight, default %(default)s"
    )
    add("--worse-weight", type=float, default=WORSE_WEIGHT, help=help_of_worse_weight)
    add("--plain", action="store_true", help="hide the motion and its equations, as a control")
    add("--out", type=Path, help="results folder (default experiments/train_motion)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Train the learned steps of all runs.

The operator (weights/operator.pth) makes a sharp frame from a blurry frame and its spikes. The
learned steps are three small passes that improve this frame. They have two parts: one for "good"
light, and one for "few" spikes. A run is a training of the learned steps with one seed, with or
without the motion within the exposure (runs.py).

Steps that are already in <out>/steps are not trained again. So delete <out>/samples and <out>/steps
after a change of the training. No test trains here. tests/parts/house/test_train_motion.py tests
`train`.

What must stay: all runs of a part get the same samples. The CPU time of a training does not include
the time for making the samples.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.motion_runs.runs import EQUATIONS, PLAIN, Run, TrainedRun
from lab.motion_steps.hidden_equations import HiddenEquations
from lab.motion_steps.made_samples import SOLVER, samples_of_part, training_samples
from lab.motion_steps.network import (
    OPERATOR_WEIGHTS,
    SHIPPED_WEIGHTS,
    motion_network,
    network_of,
    steps_of,
)
from lab.motion_steps.sample import Sample
from lab.motion_steps.training import train
from models.fusion.fusion_motion import MotionSteps
from models.portable import read_saved

# The sets of clips on which each part of the steps is trained, in the order of SETS in
# lab/motion_steps/sets.py. A part is trained only on samples in its own light (SPIKES_OF_PART).
# Sets with few of these samples are left out, because making their clips takes longer than a
# training here. E.g. for the part "good", seven_rig and photos_rig would add 15 samples to 359.
SETS_OF_PART = {
    "good": (
        "seven_ideal",
        "seven_means",
        "usual_other",
        "stills_ideal",
        "stills_other",
        "stills_random",
        "photos_ideal",
    ),
    "few": (
        "seven_rig",
        "seven_dim",
        "seven_random",
        "stills_dim",
        "stills_random",
        "photos_rig",
        "photos_dim",
    ),
}


def write_motion_net(out: Path) -> Path:
    """Write the network that finds the motion, from the shipped weights. Returns its file.

    lab/train_motion_net.py writes the same kind of file.
    """
    file = out / "network.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # DIS is an optical flow of OpenCV. A fusion that finds the motion by DIS alone has no
        # `motion_net`.
        motion_net = network_of(SHIPPED_WEIGHTS).motion_net
        assert motion_net is not None, f"{SHIPPED_WEIGHTS} finds the motion only by DIS"
        torch.save(motion_net.state_dict(), file)
    return file


def train_all(
    out: Path, videos: Path, motion_net_file: Path, part: str, trained_runs: Sequence[TrainedRun]
) -> None:
    """Add the learned steps of a part to each run.

    Steps that an earlier call has trained are read from their files in <out>/steps.

    videos: folder of the videos.
    motion_net_file: weights of the network that finds the motion.
    part: "good" or "few", a key of SETS_OF_PART.
    """
    operator = read_saved(OPERATOR_WEIGHTS)
    # The samples of both kinds of runs, EQUATIONS and PLAIN (runs.py): {kind: {name of a set: its
    # samples}}. The samples are made only if a training needs them.
    samples: dict[str, dict[str, list[Sample]]] = {}
    for trained_run in trained_runs:
        run = trained_run.run
        # The seed of the initial weights, as in lab/train_motion.py.
        torch.manual_seed(run.seed)
        _, fusion = motion_network(operator, motion_net_file)
        learned_steps = steps_of(fusion, part)

        file = out / "steps" / f"{run.name}_{part}.pt"
        if not file.exists():
            if not samples:
                samples = samples_of_kinds(out, videos, motion_net_file, part)
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(train_run(run, learned_steps, samples[run.kind]), file)
        saved = torch.load(file)
        learned_steps.load_state_dict(saved["weights"])  # the averaged weights
        trained_run.steps[part] = learned_steps.eval()
        trained_run.cpu_s[part] = saved["cpu_s"]
        print(f"{run.name}, {part}: {saved['cpu_s']:.0f} CPU seconds", flush=True)


def train_run(
    run: Run, learned_steps: MotionSteps, samples: Mapping[str, list[Sample]]
) -> dict[str, Any]:
    """Train new learned steps. Returns their averaged weights, and the CPU time of the updates.

    The result has the keys "weights" and "cpu_s", as in the files of <out>/steps. At the end,
    `learned_steps` has the newest weights. They are not averaged.
    """
    last_weights: dict[str, Tensor] = {}

    def keep(weights: Mapping[str, Tensor], updates: int) -> None:
        """Keep a copy of the weights. `train` calls it every SAVE_EVERY updates and at the end."""
        last_weights.update({name: value.clone() for name, value in weights.items()})

    # Take the process time, because it does not contain the time of other programs.
    begin = time.process_time()
    train(learned_steps, samples, solver=SOLVER, updates=run.updates, seed=run.seed, save=keep)
    return {"weights": last_weights, "cpu_s": time.process_time() - begin}


def samples_of_kinds(
    out: Path, videos: Path, motion_net_file: Path, part: str
) -> dict[str, dict[str, list[Sample]]]:
    """Return the samples of a part for both kinds of runs: {kind: {name of a set: its samples}}.

    `hidden_sample` makes the equations of each sample here, before the trainings. If the first
    training made the equations, it would take more CPU time than the next trainings.
    """
    operator = read_saved(OPERATOR_WEIGHTS)
    _, fusion = motion_network(operator, motion_net_file)
    all_samples = training_samples(
        out, videos, operator=operator, net=fusion, names=SETS_OF_PART[part]
    )
    with_equations = samples_of_part(all_samples, part)
    of_control = {}
    for name, samples_of_set in with_equations.items():
        of_control[name] = [hidden_sample(sample) for sample in samples_of_set]
    return {EQUATIONS: with_equations, PLAIN: of_control}


def hidden_sample(sample: Sample) -> Sample:
    """Return a sample for the control: without the motion, its equations and their proposal."""
    # The equations are computed once, for both samples. `HiddenEquations` passes on only what the
    # control may see. Equations without motion propose z_0, the frame of the operator.
    equations = sample.measured_equations(SOLVER)
    return replace(sample, equations=HiddenEquations(equations), is_plain=True, proposal=sample.z_0)

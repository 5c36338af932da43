"""lab/motion_seeds.py: runs of the learned steps are compared on the frames of main_test_vrt.py."""

import pytest
import torch

from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from data.motion.joint import Solver
from data.motion.learned import finder_of
from lab.motion_seeds import (
    EQUATIONS,
    OF_OPERATOR,
    OF_SHIPPED,
    PLAIN,
    SHIPPED,
    EachWay,
    Run,
    TrainedRun,
    clip_scores,
    network_of,
    table_of,
)
from lab.train_motion import OF_OPERATOR_DATA, OPERATOR, motion_network
from models.portable import SavedNetwork, read_saved
from tests.helpers.checked import present
from tests.helpers.moving_scene import Scene
from tests.helpers.weights_files import metrics, restore

CPU = torch.device("cpu")


# The last layer of the conv net has four outputs (2 x 2 pixels) for each of its six channels. The
# last channel is the gate of the way to the proposal.
GATE_OF_PROPOSAL = slice(20, 24)


def learned_with(run: Run, gate: float) -> TrainedRun:
    """Return a run whose steps go this share of the way to the proposal, and do nothing else."""
    _, net = motion_network(read_saved(OPERATOR))
    with torch.no_grad():
        present(net.steps.tail.bias)[GATE_OF_PROPOSAL] = gate
    return TrainedRun(run, steps={"good": net.steps.eval()}, cpu_s={"good": 1.0})


def reader_of(clip, operator: SavedNetwork) -> DatasetClip:
    """Open a clip of `Scene.write` in the form on which the operator was trained."""
    spike = {}
    for key, value in present(operator.spike).items():
        if key not in OF_OPERATOR_DATA:
            spike[key] = value
    trained = operator.spike_data
    [reader] = user_clips(clip / "blur", clip / "spike", clip / "sharp", spike, 1, trained)
    return reader


def test_all_ways_restore_as_the_test_program_and_the_control_does_not_see_the_motion(tmp_path):
    clip = Scene(velocity=(11.0, -5.0), rate=0.9).write(tmp_path / "clip")
    operator = read_saved(OPERATOR)
    new = Run(EQUATIONS, seed=0, updates=0)
    seeing = Run(EQUATIONS, seed=1, updates=1)
    plain = Run(PLAIN, seed=1, updates=1)
    trained_runs = [learned_with(new, 0.0), learned_with(seeing, 0.5), learned_with(plain, 0.5)]
    shipped = network_of(SHIPPED)
    solver = Solver(
        groups=shipped.groups,
        linearisations=shipped.linearisations,
        steps=shipped.proposal_steps,
    )
    find = finder_of(shipped.motion_by, shipped.motion_net, CPU)
    ways = EachWay(shipped, trained_runs)
    scores = clip_scores(reader_of(clip, operator), operator, ways, find, solver)

    for way, weights in ((OF_OPERATOR, OPERATOR), (OF_SHIPPED, SHIPPED)):
        out = tmp_path / way
        restore(
            "--weights", weights, "--input", clip / "blur", "--spike", clip / "spike",
            "--gt", clip / "sharp", "--output", out,
        )  # fmt: skip
        expected = metrics(out)["averages"]["restored"]["psnr"]
        assert scores[way] == pytest.approx(expected, abs=1e-3)

    # New steps change nothing. The control has no other proposal than the operator's frame.
    assert scores[new.name] == scores[OF_OPERATOR]
    assert scores[seeing.name] > scores[OF_OPERATOR] + 1
    assert ways.frames_without_steps == 0
    assert scores[plain.name] == pytest.approx(scores[OF_OPERATOR], abs=1e-6)


def test_the_table_has_the_spread_over_the_seeds_and_the_worst_clip_of_any_seed():
    runs = [
        Run(EQUATIONS, 0, 10),
        Run(EQUATIONS, 1, 10),
        Run(PLAIN, 0, 10),
        Run(PLAIN, 1, 10),
        Run(PLAIN, 0, 20),
    ]
    gains = {
        "operator": (0.0, 0.0),
        "shipped": (4.0, 3.0),
        "equations_seed0_10": (3.0, 1.0),
        "equations_seed1_10": (4.0, 2.0),
        "plain_seed0_10": (0.5, 0.3),
        "plain_seed1_10": (0.5, -0.1),
        "plain_seed0_20": (0.5, 0.5),
    }
    scores = {}
    for way, (of_camel, of_park) in gains.items():
        scores[way] = {"camel_00": 25.0 + of_camel, "park_00": 23.0 + of_park}

    # The first two lines are the header and its rule.
    line = table_of({"report_ideal": scores}, runs).splitlines()[2]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "report_ideal",
        "24.00",
        "+3.50",
        "+2.50 ± 0.71",
        "+1.00 (park_00)",
        "+0.30 ± 0.14",
        "-0.10 (park_00)",
        "+0.50",
    ]

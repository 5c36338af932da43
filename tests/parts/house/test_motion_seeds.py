"""lab/motion_seeds.py: runs of the learned steps are compared on the frames of main_test_vrt.py.

A method restores a clip. It is the operator, the shipped weights, or the steps that a run has
trained. A run has a kind, a seed, and a number of updates. The kind is EQUATIONS, or PLAIN for the
control, from which the motion is hidden.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from data.motion.finder import finder_of
from data.motion.joint.equations import Solver
from lab.motion_runs.restoring import OPERATOR_METHOD, SHIPPED_METHOD, AllMethods, clip_scores
from lab.motion_runs.runs import EQUATIONS, PLAIN, Run, TrainedRun
from lab.motion_runs.table import table_of
from lab.motion_steps.made_samples import KEYS_OF_OPERATOR_DATA
from lab.motion_steps.network import OPERATOR_WEIGHTS, SHIPPED_WEIGHTS, motion_network, network_of
from models.portable import read_saved
from models.saved_network import SavedNetwork
from tests.helpers.checked import not_none
from tests.helpers.moving_scene import Scene
from tests.helpers.weights_files import read_metrics, restore

# The tests are slow: 4 seconds of a core, for a program that is not part of the product.
pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


# The last layer of the steps has 6 channels with 4 outputs each (2 x 2 pixels). The last channel,
# number 5, is the gate of the proposal: a step moves the frame by this share of the way to the
# proposal. The outputs of channel 5 are 5 x 4 = 20 to 23.
GATE_OF_PROPOSAL = slice(20, 24)


def learned_with(run: Run, gate: float) -> TrainedRun:
    """Return a run whose steps only go a share of the way to the proposal. gate: this share.

    The steps are new, so all other weights of their last layer are 0. "good" is the part of the
    steps for many spikes.
    """
    _, net = motion_network(read_saved(OPERATOR_WEIGHTS))
    with torch.no_grad():
        not_none(net.steps.tail.bias)[GATE_OF_PROPOSAL] = gate
    return TrainedRun(run, steps={"good": net.steps.eval()}, cpu_s={"good": 1.0})


def reader_of(clip, operator: SavedNetwork) -> DatasetClip:
    """Open a clip of `Scene.write`. Its spikes are read as in the training of the operator."""
    spike = {}
    for key, value in not_none(operator.spike).items():
        if key not in KEYS_OF_OPERATOR_DATA:
            spike[key] = value
    trained = operator.spike_data
    [reader] = user_clips(
        clip / "blur",
        clip / "spike",
        gt=clip / "sharp",
        spike_options=spike,
        scale=1,
        trained=trained,
    )
    return reader


class Comparison(NamedTuple):
    """A clip that all methods have restored."""

    clip: Path
    scores: dict[str, float]  # name of a method -> its PSNR in dB
    methods: AllMethods


# The steps of NEW stay at the first estimate, as untrained steps do. The steps of the other two
# runs go half of the way to the proposal.
NEW = Run(EQUATIONS, seed=0, updates=0)
SEEING = Run(EQUATIONS, seed=1, updates=1)
CONTROL = Run(PLAIN, seed=1, updates=1)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Comparison:
    """Give a clip that moves, and its scores by each method."""
    clip = Scene(velocity=(11.0, -5.0), rate=0.9).write(tmp_path_factory.mktemp("a") / "clip")
    operator = read_saved(OPERATOR_WEIGHTS)
    shipped = network_of(SHIPPED_WEIGHTS)
    solver = Solver(
        groups=shipped.groups,
        linearisations=shipped.linearisations,
        steps=shipped.proposal_steps,
    )
    find_motion = finder_of(shipped.motion_by, shipped.motion_net, CPU)
    trained = [
        learned_with(NEW, gate=0.0),
        learned_with(SEEING, gate=0.5),
        learned_with(CONTROL, gate=0.5),
    ]
    methods = AllMethods(shipped, trained)
    scores = clip_scores(reader_of(clip, operator), operator, methods, find_motion, solver)
    return Comparison(clip, scores, methods)


@pytest.mark.parametrize(
    ("method", "weights"), [(OPERATOR_METHOD, OPERATOR_WEIGHTS), (SHIPPED_METHOD, SHIPPED_WEIGHTS)]
)
def test_a_method_scores_as_the_test_program_with_its_weights(
    comparison, tmp_path, method, weights
):
    clip = comparison.clip
    files = ("--input", clip / "blur", "--spike", clip / "spike", "--gt", clip / "sharp")

    restore("--weights", weights, *files, "--output", tmp_path)

    expected = read_metrics(tmp_path)["averages"]["restored"]["psnr"]
    assert comparison.scores[method] == pytest.approx(expected, abs=1e-3)


def test_new_steps_change_nothing(comparison):
    assert comparison.scores[NEW.name] == comparison.scores[OPERATOR_METHOD]


def test_steps_that_go_half_of_the_way_to_the_proposal_gain(comparison):
    # 1 dB is far above the differences by rounding. The clip moves, so the proposal is better.
    assert comparison.scores[SEEING.name] > comparison.scores[OPERATOR_METHOD] + 1


def test_the_control_does_not_see_the_motion(comparison):
    # The proposal of the control is the operator's frame itself, so half of the way changes
    # nothing.
    operator = comparison.scores[OPERATOR_METHOD]
    assert comparison.scores[CONTROL.name] == pytest.approx(operator, abs=1e-6)


def test_all_frames_of_a_clip_that_moves_are_restored_by_the_steps(comparison):
    assert comparison.methods.frames_without_steps == 0


def test_the_table_has_the_spread_over_the_seeds_and_the_worst_clip_of_any_seed():
    runs = [
        Run(EQUATIONS, seed=0, updates=10),
        Run(EQUATIONS, seed=1, updates=10),
        Run(PLAIN, seed=0, updates=10),
        Run(PLAIN, seed=1, updates=10),
        Run(PLAIN, seed=0, updates=20),
    ]
    # Method -> its gain over the operator on two clips, in dB.
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
    for method, (of_camel, of_park) in gains.items():
        scores[method] = {"camel_00": 25.0 + of_camel, "park_00": 23.0 + of_park}

    # The first two lines are the header and its rule.
    line = table_of({"report_ideal": scores}, runs).splitlines()[2]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "report_ideal",
        "24.00",  # the operator: (25 + 23) / 2
        "+3.50",  # the shipped weights: (4 + 3) / 2
        # Equations: the means of the two seeds are 2 and 3. Their standard deviation is
        # sqrt((0.5^2 + 0.5^2) / (2 - 1)) = 0.71.
        "+2.50 ± 0.71",
        "+1.00 (park_00)",  # the worst clip, with seed 0
        "+0.30 ± 0.14",  # the control after 10 updates: means of 0.4 and 0.2
        "-0.10 (park_00)",  # its worst clip, with seed 1
        "+0.50",  # the control after 20 updates, with one seed
    ]

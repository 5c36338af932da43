"""lab/train_motion.py: the steps of weights/motion.pth are trained on frames of clips.

A sample is one frame of a clip with everything that its equations are made of. Here it is the
middle frame of a clip that moves, 64 x 64 pixels. Its first estimate z_0 is the blurry frame. In a
real training, z_0 is the frame of the operator, the network of weights/operator.pth.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from data.motion.flow import motion_of
from data.motion.joint.equations import Solver
from data.motion.recording import RecordedClip
from lab.motion_steps.loss import loss_of
from lab.motion_steps.made_samples import LEAST_SAMPLES, samples_of_part
from lab.motion_steps.network import (
    OPERATOR_WEIGHTS,
    STEP_COUNT,
    begin_at,
    motion_network,
    steps_of,
    write_weights,
)
from lab.motion_steps.sample import Sample
from lab.motion_steps.sets import SETS
from lab.motion_steps.training import train
from lab.motion_steps.wrong_motion import wrong_motion
from models.fusion.fusion_motion import MotionSteps
from models.fusion.fusion_motion import motion_of as motion_fusion_of
from models.fusion.motion_net import MotionNet
from models.portable import read_saved
from tests.helpers.checked import not_none
from tests.helpers.moving_scene import Scene, reader_of

# The tests are slow: 4 seconds of a core, for a program that is not part of the product.
pytestmark = pytest.mark.slow

# A cheap solver of the equations. A real training has 12 groups and 8 steps.
SOLVER = Solver(groups=6, linearisations=1, steps=4)
# Number of updates of a training. They are enough for the frame to become better.
UPDATES = 12
# The two parts of the learned steps: for good light, which has many spikes, and for few spikes.
GOOD_LIGHT = "good"
FEW_SPIKES = "few"


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Give the middle frame of a clip that moves, as a sample."""
    scene = Scene(velocity=(9.0, -4.0), size=(64, 64))
    # `write` makes the folder of the clip, here "b". The names "a" and "b" have no meaning.
    reader = reader_of(scene.write(tmp_path_factory.mktemp("a") / "b"))
    clip = RecordedClip(reader, None)  # None: half an exposure of planes around each exposure
    gain, is_good = clip.gain()
    frame = reader.frame(1)
    recording = clip.read(1)
    z_0 = frame["lq"].clone()
    found = Sample(
        recording=recording,
        view=clip.view,  # where the spike pixels lie on the frame
        motion=motion_of(recording, clip.view, gain),
        gain=gain,  # spikes per plane at full light, for each spike pixel
        is_good=is_good,  # whether the gain of a spike pixel can be trusted
        z_0=z_0,
        proposal=z_0,  # a placeholder, because only a finished sample can make its equations
        sharp=frame["gt"].clone(),
    )
    # The proposal is the frame that solves the equations along the measured motion, beginning at
    # z_0. A learned step may go towards the proposal.
    found.proposal = found.measured_equations(SOLVER).proposal(z_0)
    return found


@pytest.fixture(scope="module")
def operator():
    """Give the network of weights/operator.pth, as its file describes it."""
    return read_saved(OPERATOR_WEIGHTS)


# ---- The training ----


class TrainedSteps(NamedTuple):
    """A training of the learned steps."""

    steps: MotionSteps
    # The averaged weights that the training has saved last, by the names of the parameters.
    saved: dict[str, torch.Tensor]


def train_on(sample, operator):
    """Train new steps on one sample. Return them with the weights that were saved last."""
    torch.manual_seed(0)  # for the initial weights
    _, net = motion_network(operator)
    saved = {}

    def save(weights, updates):
        saved.update(weights)

    # SETS has the names of the sets of clips from which a real training draws. Here each set has
    # this one sample.
    samples = {name: [sample] for name in SETS}
    train(net.steps, samples, SOLVER, UPDATES, seed=0, save=save)
    return TrainedSteps(net.steps, saved)


@pytest.fixture(scope="module")
def trained_steps(sample, operator):
    """Give steps that were trained on the sample."""
    return train_on(sample, operator)


def frames_after_steps(steps, sample):
    """Return the frame (3, H, W) after each step."""
    equations = sample.equations_along(sample.motion, SOLVER)
    with torch.no_grad():
        return steps.all_steps(sample.z_0, sample.proposal, equations)


def test_training_lowers_the_loss(trained_steps, sample):
    # Untrained steps leave the first estimate as it is.
    untrained = [sample.z_0] * STEP_COUNT
    before, _ = loss_of(untrained, sample.z_0, sample.sharp)

    after, _ = loss_of(frames_after_steps(trained_steps.steps, sample), sample.z_0, sample.sharp)

    assert after < before


def test_trained_steps_make_the_frame_better(trained_steps, sample):
    _, gain_db = loss_of(frames_after_steps(trained_steps.steps, sample), sample.z_0, sample.sharp)

    # 12 updates are few, so the limit is low. Untrained steps gain 0 dB.
    assert gain_db > 0.5


def test_a_training_is_repeated_by_its_seed(trained_steps, sample, operator):
    again = train_on(sample, operator)

    assert again.saved.keys() == trained_steps.saved.keys()
    for name, value in trained_steps.saved.items():
        assert torch.equal(again.saved[name], value), name


def mean_square(difference):
    """Return the mean of the squares of all numbers."""
    return float(difference.square().mean())


def test_a_loss_counts_a_square_that_became_worse_more_than_one_that_became_better():
    # The loss compares squares of 12 x 12 pixels. A frame of 24 x 24 pixels has four squares. The
    # first estimate is wrong by 0.1 everywhere.
    sharp = torch.full((3, 24, 24), 0.5)
    z_0 = sharp + 0.1
    # `better` is half as wrong everywhere: its mean square error is 0.05^2 = 0.0025.
    better = sharp + 0.05
    # `mixed` is right in three squares. In the fourth square it is wrong by 0.12. This is worse
    # than the first estimate. Its mean square error is 0.12^2 / 4 = 0.0036.
    mixed = sharp.clone()
    mixed[:, :12, :12] += 0.12
    assert mean_square(better - sharp) == pytest.approx(0.0025)
    assert mean_square(mixed - sharp) == pytest.approx(0.0036)

    loss_of_better, _ = loss_of([better] * STEP_COUNT, z_0, sharp)
    loss_of_mixed, _ = loss_of([mixed] * STEP_COUNT, z_0, sharp)
    loss_of_mean_only, _ = loss_of([mixed] * STEP_COUNT, z_0, sharp, worse_weight=0)

    assert loss_of_better < loss_of_mixed
    # With worse_weight=0, a square that became worse does not count, so the loss is lower.
    assert loss_of_mean_only < loss_of_mixed


# ---- Files of weights ----


# The fixture `operator` gives the network of weights/operator.pth, to which the steps are added.
def test_the_written_weights_keep_all_of_the_operator_but_its_fusion(tmp_path, operator):
    saved, net = motion_network(operator)

    write_weights(tmp_path / "motion.pth", saved, net, updates=3)

    again = read_saved(tmp_path / "motion.pth")
    assert again.spike == operator.spike
    assert again.netG["fusion"]["type"] == "motion"
    built = again.build().state_dict()
    for name, value in operator.weights.items():
        assert torch.equal(built[name], value), name


@pytest.fixture
def finder(tmp_path):
    """Give a file of random weights of a network that finds the motion.

    In other files, a `Finder` is a function that finds the motion.
    """
    torch.manual_seed(1)
    path = tmp_path / "network.pt"
    torch.save(MotionNet().state_dict(), path)
    return path


def test_a_network_that_finds_the_motion_is_taken_over_with_the_weights_of_the_steps(
    tmp_path, operator, finder
):
    saved, net = motion_network(operator, finder)

    write_weights(tmp_path / "motion.pth", saved, net, updates=3)

    fusion = not_none(motion_fusion_of(read_saved(tmp_path / "motion.pth").build()))
    assert fusion.motion_by == "both"
    found = not_none(fusion.motion_net).state_dict()
    expected = torch.load(finder)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.fixture
def begun(tmp_path, operator, finder):
    """Give a new network, and the old network from whose weights file its steps were copied.

    `begin_at` copies the steps. The old network has one set of steps, for all light. The new
    network has two sets: one for good light and one for few spikes.
    """
    saved, old = motion_network(operator)
    # The last layer of each new network begins with zeros. Other weights show whether they are
    # copied.
    torch.nn.init.normal_(old.steps.tail.weight)
    write_weights(tmp_path / "motion.pth", saved, old, updates=3)
    _, new = motion_network(operator, finder)
    begin_at(new, tmp_path / "motion.pth")
    return new, old


@pytest.mark.parametrize("part", [GOOD_LIGHT, FEW_SPIKES])
def test_both_parts_begin_at_the_steps_of_weights_with_a_single_part(begun, part):
    new, old = begun

    assert torch.equal(steps_of(new, part).tail.weight, old.steps.tail.weight)


def test_few_spikes_and_good_light_have_different_steps(begun):
    new, _ = begun

    assert steps_of(new, GOOD_LIGHT) is not steps_of(new, FEW_SPIKES)


# ---- Samples ----


# `wrong_motion` first draws one of five ways to be wrong. The seeds 0 to 21 draw all five ways.
@pytest.fixture(params=range(22), ids=lambda seed: f"seed {seed}")
def false_motion(request, sample):
    """Give a wrong motion."""
    # One of the ways takes the motion of another frame. There is no other frame here. So give
    # `wrong_motion` the motion of a scene that moves in the opposite direction.
    other = replace(sample.motion, shifts=-sample.motion.shifts)
    return wrong_motion(sample.motion, other, np.random.default_rng(request.param))


def test_a_wrong_motion_has_other_finite_shifts(sample, false_motion):
    right = sample.motion

    assert false_motion.shifts.shape == right.shifts.shape
    assert false_motion.shifts.dtype == np.float32
    assert np.isfinite(false_motion.shifts).all()
    assert not np.array_equal(false_motion.shifts, right.shifts)


def test_a_wrong_motion_keeps_its_expected_error(sample, false_motion):
    assert false_motion.errors is sample.motion.errors


# The control is a training without the motion, for comparison. Its samples have `is_plain`, so
# their equations hide the motion.
def test_the_control_sees_neither_the_motion_nor_its_equations(sample):
    plain = replace(sample, is_plain=True)
    still = replace(sample.motion, shifts=np.zeros_like(sample.motion.shifts))
    z_0 = sample.z_0

    known = sample.equations_along(sample.motion, SOLVER)
    hidden = plain.equations_along(sample.motion, SOLVER)
    hidden_still = plain.equations_along(still, SOLVER)

    assert torch.equal(hidden.proposal(z_0), z_0)
    assert not torch.equal(known.pulls(z_0), hidden.pulls(z_0))
    # The control gets the same inputs, whether its equations are made along the right motion or
    # along no motion.
    assert torch.equal(hidden.evidence(), hidden_still.evidence())
    assert torch.equal(hidden.pulls(z_0), hidden_still.pulls(z_0))
    # The last channel is not hidden: it compares the frame with the spikes of the sharp instant,
    # and needs no motion.
    assert hidden.pulls(z_0)[-1].any()


def with_a_spike_every(planes, sample):
    """Return the sample with other spikes: each pixel fires once in this number of planes."""
    stream = np.zeros_like(sample.recording.stream)
    stream[::planes] = 1
    return replace(sample, recording=replace(sample.recording, stream=stream))


@pytest.mark.parametrize(
    ("part", "sets"), [(FEW_SPIKES, ["seven_dim"]), (GOOD_LIGHT, ["seven_ideal"])]
)
def test_each_part_is_trained_on_the_light_in_which_it_is_used(sample, part, sets):
    # An exposure has 60 planes. A spike in every second plane makes 30 spikes: good light. A spike
    # in every 30th plane makes 2 spikes: few spikes. The names of sets are keys of SETS. In
    # "seven_dim", the exposure is the mean of seven real frames, and the rig is "dim".
    bright = with_a_spike_every(2, sample)
    dim = with_a_spike_every(30, sample)
    samples = {
        "seven_ideal": LEAST_SAMPLES * [bright],
        "seven_rig": (LEAST_SAMPLES - 1) * [bright],  # one sample too few: this set is left out
        "seven_dim": LEAST_SAMPLES * [dim],
    }

    assert list(samples_of_part(samples, part)) == sets

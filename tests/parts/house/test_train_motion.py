"""lab/train_motion.py: the steps of weights/motion.pth are trained on frames of clips."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.motion.flow import motion_of
from data.motion.joint import Solver
from data.motion.recording import RecordedClip
from lab.train_motion import (
    LEAST_SAMPLES,
    OPERATOR,
    SETS,
    STEP_COUNT,
    Sample,
    begin_at,
    loss_of,
    motion_network,
    samples_of_part,
    steps_of,
    train,
    write_weights,
    wrong_motion,
)
from models.fusion.fusion_motion import motion_of as motion_fusion_of
from models.fusion.motion_net import MotionNet
from models.portable import read_saved
from tests.helpers.checked import present
from tests.helpers.moving_scene import Scene, reader_of

SOLVER = Solver(groups=6, linearisations=1, steps=4)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The middle frame of a clip that moves. Its first estimate is the blurry frame."""
    reader = reader_of(
        Scene(velocity=(9.0, -4.0), size=(64, 64)).write(tmp_path_factory.mktemp("a") / "b")
    )
    clip = RecordedClip(reader, None)
    gain, is_good = clip.gain()
    frame = reader.frame(1)
    recording = clip.read(1)
    motion = motion_of(recording, clip.view, gain)
    z_0 = frame["lq"].clone()
    found = Sample(recording, clip.view, motion, gain, is_good, z_0, z_0, frame["gt"].clone())
    found.proposal = found.equations_along(motion, SOLVER).proposal(z_0)
    return found


def test_training_lowers_the_loss_and_is_repeated_by_its_seed(sample):
    operator = read_saved(OPERATOR)
    saved = {}
    for run in ("first", "again"):
        torch.manual_seed(0)
        _, net = motion_network(operator)
        before, _ = loss_of([sample.z_0] * net.steps.count, sample.z_0, sample.sharp)
        train(
            net.steps, {name: [sample] for name in SETS}, SOLVER, 12, 0,
            lambda weights, step, run=run: saved.update({run: dict(weights)}),
        )  # fmt: skip
        equations = sample.equations_along(sample.motion, SOLVER)
        with torch.no_grad():
            frames = net.steps.all_steps(sample.z_0, sample.proposal, equations)
        after, gain = loss_of(frames, sample.z_0, sample.sharp)
        assert after < before
        assert gain > 0.5

    assert all(torch.equal(saved["first"][key], saved["again"][key]) for key in saved["first"])


def test_the_weights_are_read_again_and_begin_as_the_operator(tmp_path):
    operator = read_saved(OPERATOR)
    saved, net = motion_network(operator)
    write_weights(tmp_path / "motion.pth", saved, net, 3)
    again = read_saved(tmp_path / "motion.pth")
    assert again.spike == operator.spike
    assert again.netG["fusion"]["type"] == "motion"
    built = again.build().state_dict()

    assert all(torch.equal(built[key], value) for key, value in operator.weights.items())


def test_a_loss_counts_a_square_that_became_worse_more_than_one_that_became_better(sample):
    sharp = torch.full((3, 24, 24), 0.5)
    z_0 = torch.full((3, 24, 24), 0.6)
    better = torch.full_like(z_0, 0.55)
    mixed = torch.full_like(z_0, 0.5)
    mixed[:, :12, :12] = 0.6 + 0.02
    error = [float(((each - sharp) ** 2).mean()) for each in (better, mixed)]
    assert error[0] < error[1] * 1.05
    losses = [float(loss_of([each] * STEP_COUNT, z_0, sharp)[0]) for each in (better, mixed)]

    assert losses[0] < losses[1]


def test_wrong_motion_differs_and_keeps_its_expected_error(sample):
    rng = np.random.default_rng(0)
    for _ in range(20):
        wrong = wrong_motion(sample.motion, sample.motion, rng)
        assert wrong.shifts.shape == sample.motion.shifts.shape
        assert wrong.shifts.dtype == np.float32
        assert np.isfinite(wrong.shifts).all()
        assert wrong.errors is sample.motion.errors


def test_a_network_that_finds_the_motion_is_taken_over_with_the_weights_of_the_steps(tmp_path):
    torch.manual_seed(1)
    torch.save(MotionNet().state_dict(), tmp_path / "network.pt")
    saved, net = motion_network(read_saved(OPERATOR), tmp_path / "network.pt")
    write_weights(tmp_path / "motion.pth", saved, net, 3)
    again = motion_fusion_of(read_saved(tmp_path / "motion.pth").build())
    assert again is not None
    assert again.motion_by == "both"
    wanted = torch.load(tmp_path / "network.pt")
    found = present(again.motion_net).state_dict()

    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


def test_steps_for_few_spikes_begin_at_those_of_weights_without_them(tmp_path):
    operator = read_saved(OPERATOR)
    saved, by_dis = motion_network(operator)
    torch.nn.init.normal_(by_dis.steps.tail.weight)
    write_weights(tmp_path / "motion.pth", saved, by_dis, 3)
    torch.save(MotionNet().state_dict(), tmp_path / "network.pt")
    _, net = motion_network(operator, tmp_path / "network.pt")
    begin_at(net, tmp_path / "motion.pth")
    for part in ("good", "few"):
        assert torch.equal(steps_of(net, part).tail.weight, by_dis.steps.tail.weight)

    assert steps_of(net, "good") is not steps_of(net, "few")


def test_the_control_sees_neither_the_motion_nor_its_equations(sample):
    known = sample.equations_along(sample.motion, SOLVER)
    plain = replace(sample, is_plain=True)
    still = replace(sample.motion, shifts=np.zeros_like(sample.motion.shifts))
    hidden, hidden_still = (plain.equations_along(m, SOLVER) for m in (sample.motion, still))
    z_0 = sample.z_0

    assert torch.equal(hidden.proposal(z_0), z_0)
    assert not torch.equal(known.pulls(z_0), hidden.pulls(z_0))
    assert torch.equal(hidden.evidence(), hidden_still.evidence())
    assert torch.equal(hidden.pulls(z_0), hidden_still.pulls(z_0))
    assert hidden.pulls(z_0)[-1].any()  # the spikes of the sharp instant stay


@pytest.mark.parametrize(("part", "sets"), [("few", ["seven_dim"]), ("good", ["seven_ideal"])])
def test_each_part_is_trained_on_the_light_in_which_it_is_used(sample, part, sets):
    def sample_with_a_spike_every(planes):
        stream = np.zeros_like(sample.recording.stream)
        stream[::planes] = 1
        return replace(sample, recording=replace(sample.recording, stream=stream))

    bright = sample_with_a_spike_every(2)
    dim = sample_with_a_spike_every(30)
    samples = {
        "seven_ideal": [bright] * LEAST_SAMPLES,
        "seven_rig": [bright] * (LEAST_SAMPLES - 1),  # too few: this set is left out
        "seven_dim": [dim] * LEAST_SAMPLES,
    }

    assert list(samples_of_part(samples, part)) == sets

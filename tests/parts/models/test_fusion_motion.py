"""The fusion "motion": it begins as "exposure", and its steps begin as no change."""

import pytest
import torch

from data.motion.flow import motion_of
from data.motion.joint import Equations, Solver, SpikePixels
from data.motion.recording import RecordedClip
from models.fusion.fusion_motion import AT_HALF, AT_PIXELS, MotionSteps, Turn
from models.fusion.operators import FUSIONS
from models.network_fusion import FusionNet
from tests.helpers.checked import present
from tests.helpers.moving_scene import Scene, reader_of

S = 4
CPU = torch.device("cpu")
SMALL = {"features": 8, "layers": 1}


def built(name):
    torch.manual_seed(0)
    return FUSIONS.build({"type": name, **SMALL}, "netG.fusion", spike_channels=S)


@pytest.fixture(scope="module", params=[(96, 96), (90, 80)], ids=str)
def equations(request, tmp_path_factory):
    """Those of the middle frame of a clip that moves."""
    scene = Scene(velocity=(9.0, -4.0), size=request.param)
    clip = RecordedClip(reader_of(scene.write(tmp_path_factory.mktemp("clip") / "a")), None)
    gain, is_good = clip.gain()
    recording = clip.read(1)
    motion = motion_of(recording, clip.view, gain)
    solver = Solver(groups=6, linearisations=1, steps=3)
    return Equations(recording, SpikePixels(clip.view, CPU), motion, gain, is_good, solver, CPU)


def test_its_first_estimate_is_that_of_exposure_with_the_same_weights():
    exposure, motion = built("exposure"), built("motion")
    lacking = motion.load_state_dict(exposure.state_dict(), strict=False)
    assert not lacking.unexpected_keys
    assert all(key.startswith("steps.") for key in lacking.missing_keys)
    lq, spike = torch.rand(1, 2, 3, 32, 32), torch.rand(1, 2, S, 32, 32)
    assert torch.equal(motion.on_input(lq, spike), exposure.on_input(lq, spike))


def test_a_network_of_it_alone_gives_the_first_estimate():
    net = FusionNet({"type": "motion", **SMALL}, spike_channels=S)
    lq, spike = torch.rand(1, 2, 3, 32, 32), torch.rand(1, 2, S, 32, 32)
    assert torch.equal(net(lq, spike), net.fusion.on_input(lq, spike))


def test_untrained_steps_change_nothing_and_all_of_them_learn(equations):
    torch.manual_seed(0)
    steps = MotionSteps(features=8, layers=1, steps=2)
    z_0 = equations.blurry.clone()
    assert torch.equal(steps(z_0, equations), z_0)
    torch.nn.init.normal_(steps.tail.weight, 0, 0.1)
    frames = steps.all_steps(z_0, equations.proposal(z_0), equations)
    assert [frame.shape for frame in frames] == [z_0.shape] * 2
    (frames[-1] - z_0).square().mean().backward()
    assert all(present(parameter.grad).any() for parameter in steps.parameters())


def test_what_the_steps_see_is_finite_and_of_the_size_of_one(equations):
    for values in (equations.evidence(), equations.pulls(equations.blurry)):
        assert values.isfinite().all() and values.abs().mean() < 2


def test_the_net_sees_a_turned_picture_and_its_changes_are_turned_back():
    picture = torch.rand(5, 6, 8)
    for number in range(8):
        turn = Turn(bool(number & 1), bool(number & 2), bool(number & 4))
        assert torch.equal(turn.undone(turn.of(picture)), picture)
        assert turn.of(picture).shape == ((5, 8, 6) if turn.transposed else (5, 6, 8))


def test_frames_of_odd_sizes_are_padded_and_cut_again():
    steps = MotionSteps(features=8, layers=1, steps=1)
    torch.nn.init.normal_(steps.tail.weight)
    at_pixels, at_half = torch.rand(AT_PIXELS, 15, 21), torch.rand(AT_HALF, 15, 21)
    changes = steps.net(at_pixels, at_half)
    assert changes.shape == (6, 15, 21) and changes.isfinite().all()

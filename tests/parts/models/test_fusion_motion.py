"""models/fusion/fusion_motion.py: the fusion "motion", learned steps along the motion of a clip.

The first estimate of this fusion, z_0, is the result of the fusion "exposure". Steps then change
the estimate so that it fits the equations of both cameras better (data/motion/joint/). The
equations of these tests belong to the middle frame of a rendered scene that moves
(tests/helpers/moving_scene.py).

Words of a step:

    evidence    what is known of each pixel before any step, e.g. how far it moves
    pulls       how the equations would change the frame, and their errors
    proposal    a frame that solves the equations. A step may move the frame towards it
"""

import itertools

import pytest
import torch

from data.motion.flow import motion_of
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.recording import RecordedClip
from models.fusion.fusion_motion import (
    CHANNELS_AT_FULL_SIZE,
    CHANNELS_AT_HALF_SIZE,
    MotionSteps,
    Turn,
)
from models.fusion.operators import FUSIONS
from models.network_fusion import FusionNet
from tests.helpers.checked import not_none
from tests.helpers.moving_scene import Scene, reader_of

# Spike channels of a frame.
S = 4
CPU = torch.device("cpu")
# Arguments of the smallest operator. An operator is the class of a fusion. A fusion joins frames
# and spikes.
SMALL = {"features": 8, "layers": 1}


def operator(name):
    """Return a small operator with the weights of seed 0."""
    torch.manual_seed(0)
    return FUSIONS.build({"type": name, **SMALL}, "netG.fusion", spike_channels=S)


def random_clip():
    """Return frames (1, 2, 3, 32, 32) and spike planes (1, 2, S, 32, 32)."""
    return torch.rand(1, 2, 3, 32, 32), torch.rand(1, 2, S, 32, 32)


def small_steps(steps):
    """Return an untrained module that takes this number of steps."""
    torch.manual_seed(0)
    return MotionSteps(**SMALL, steps=steps)


@pytest.fixture(scope="module", params=[(96, 96), (90, 80)], ids=["square", "not square"])
def equations(request, tmp_path_factory):
    """Give the equations of the middle frame of a clip that moves."""
    scene = Scene(velocity=(9.0, -4.0), size=request.param)
    folder = scene.write(tmp_path_factory.mktemp("clip") / "a")
    clip = RecordedClip(reader_of(folder), context=None)
    gain, is_good = clip.gain()
    recording = clip.read(1)
    motion = motion_of(recording, clip.view, gain)
    # These numbers are smaller than the defaults of Solver, so that the tests are quick.
    solver = Solver(groups=6, linearisations=1, steps=3)
    pixels = SpikePixels(clip.view, CPU)
    return Equations(
        recording=recording,
        pixels=pixels,
        motion=motion,
        gain=gain,
        is_good=is_good,
        solver=solver,
        device=CPU,
    )


# ---- The first estimate ----


def test_the_weights_of_exposure_fit_all_but_the_steps():
    weights = operator("exposure").state_dict()

    differing = operator("motion").load_state_dict(weights, strict=False)

    assert not differing.unexpected_keys  # "motion" has all modules of "exposure"
    for key in differing.missing_keys:
        assert key.startswith("steps.")


def test_the_first_estimate_equals_the_frame_of_exposure_with_the_same_weights():
    exposure = operator("exposure")
    motion = operator("motion")
    motion.load_state_dict(exposure.state_dict(), strict=False)
    lq, spike = random_clip()

    assert torch.equal(motion.on_input(lq, spike), exposure.on_input(lq, spike))


def test_motion_by_decides_which_networks_the_operator_has():
    def modules_with_weights(motion_by: str) -> set[str]:
        """Return the names of the operator's modules, e.g. {"head", "body", "steps"}."""
        section = {"type": "motion", **SMALL, "motion_by": motion_by}
        fusion = FUSIONS.build(section, "netG.fusion", spike_channels=S)
        return {name.partition(".")[0] for name in fusion.state_dict()}

    by_dis = modules_with_weights("dis")
    assert not {"motion_net", "few_steps"} & by_dis
    assert modules_with_weights("network") - by_dis == {"motion_net"}
    assert modules_with_weights("both") - by_dis == {"motion_net", "few_steps"}


def test_a_network_of_only_this_operator_gives_the_first_estimate():
    net = FusionNet({"type": "motion", **SMALL}, spike_channels=S)
    lq, spike = random_clip()

    assert torch.equal(net(lq, spike), net.fusion.on_input(lq, spike))


# ---- The steps ----


def test_untrained_steps_change_nothing(equations):
    z_0 = equations.blurry.clone()

    assert torch.equal(small_steps(2)(z_0, equations), z_0)


def test_each_step_gives_a_frame(equations):
    z_0 = equations.blurry.clone()

    frames = small_steps(2).all_steps(z_0, equations.proposal(z_0), equations)

    assert len(frames) == 2
    for frame in frames:
        assert frame.shape == z_0.shape


def test_all_weights_of_the_steps_learn(equations):
    z_0 = equations.blurry.clone()
    steps = small_steps(2)
    # The last layer of untrained steps is 0, so no gradient would reach the layers before it. Give
    # the last layer random weights.
    torch.nn.init.normal_(steps.tail.weight, 0, 0.1)
    frames = steps.all_steps(z_0, equations.proposal(z_0), equations)

    (frames[-1] - z_0).square().mean().backward()

    for parameter in steps.parameters():
        assert not_none(parameter.grad).any()


@pytest.mark.parametrize("kind", ["evidence", "pulls"])
def test_what_the_steps_see_is_finite_and_about_one(equations, kind):
    if kind == "evidence":
        values = equations.evidence()
    else:
        values = equations.pulls(equations.blurry)

    assert values.isfinite().all()
    assert values.abs().mean() < 2


# All eight turns and mirrorings of a picture. A `Turn` has three fields, each of which is False or
# True.
ALL_TURNS = [Turn(*fields) for fields in itertools.product((False, True), repeat=3)]


@pytest.mark.parametrize("turn", ALL_TURNS, ids=str)
def test_a_turned_picture_is_turned_back_exactly(turn):
    picture = torch.rand(5, 6, 8)

    assert torch.equal(turn.turn_back(turn.apply(picture)), picture)


@pytest.mark.parametrize("turn", ALL_TURNS, ids=str)
def test_a_transposed_picture_has_the_other_shape(turn):
    shape = turn.apply(torch.rand(5, 6, 8)).shape

    if turn.transposed:
        assert shape == (5, 8, 6)
    else:
        assert shape == (5, 6, 8)


def test_a_frame_of_odd_sides_keeps_its_size():
    steps = small_steps(1)
    torch.nn.init.normal_(steps.tail.weight)
    at_full_size = torch.rand(CHANNELS_AT_FULL_SIZE, 15, 21)
    at_half_size = torch.rand(CHANNELS_AT_HALF_SIZE, 15, 21)

    changes = steps.net(at_full_size, at_half_size)

    assert changes.shape == (3 + 3, 15, 21)  # the change of three colours, and three gates
    assert changes.isfinite().all()

"""lab/vrt_curve.py measures how much attention over frames gains, at equal training time.

A form is a place where attention over frames is added:

    PriorForm     between the learned steps of weights/motion.pth
    BehindForm    in a VRT that improves the frames of the network of weights/operator.pth
    MotionForm    in the network that finds the motion

Each form has two networks, its arms: one with attention over frames, and a control without
attention. Here they are trained for less than a second, on two frames of 72 x 72.
"""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from data.motion.flow import motion_of
from data.motion.joint.equations import Solver
from data.motion.recording import RecordedClip
from lab.motion_steps.sample import Sample
from lab.quality_suite.sources import VIDEOS
from lab.vrt_curve import main, measure
from lab.vrt_forms.behind import BehindForm
from lab.vrt_forms.clip_equations import split_frames, stack_frames
from lab.vrt_forms.form import ARMS, ATTENTION, CONTROL, LIGHTS
from lab.vrt_forms.motion import MotionForm
from lab.vrt_forms.prior import PriorForm, steps_of_clip
from lab.vrt_forms.training import Training
from tests.helpers.moving_scene import Scene, reader_of

# The tests are slow: 15 seconds of a core, for a program that is not part of the product.
pytestmark = pytest.mark.slow

# Training times at which the networks are tested, in minutes: 0.05 s and 0.1 s. A step may take
# longer.
POINTS = [0.05 / 60, 0.1 / 60]
# A cheap solver of the equations of a frame.
SOLVER = Solver(groups=4, linearisations=1, steps=2)
# The form "prior" compares its networks with this file.
SHIPPED = "weights/motion.pth"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Give two frames of a clip that moves. Their first estimate is the blurry frame."""
    scene = Scene(velocity=(9.0, -4.0), size=(72, 72))
    reader = reader_of(scene.write(tmp_path_factory.mktemp("clip") / "a"))
    recorded = RecordedClip(reader, None)
    gain, is_good = recorded.gain()
    samples = []
    for index in (0, 1):
        frame = reader.frame(index)
        recording = recorded.read(index)
        motion = motion_of(recording, recorded.view, gain)
        z_0 = frame["lq"].clone()  # the first estimate, here the blurry frame
        sharp = frame["gt"].clone()
        sample = Sample(
            recording=recording,
            view=recorded.view,  # where the spike pixels lie on the frame
            motion=motion,
            gain=gain,  # spikes per plane at full light, for each spike pixel
            is_good=is_good,  # whether the gain of a spike pixel can be trusted
            z_0=z_0,
            proposal=z_0,  # replaced below
            sharp=sharp,
        )
        # The proposal is the solution of the equations. The sample computes the equations, so the
        # sample must exist first, and its proposal is set afterwards.
        sample.proposal = sample.measured_equations(SOLVER).proposal(z_0)
        samples.append(sample)
    return samples


def form_of_clips(form, clip):
    """Build a form that is trained and tested on one clip.

    A form is tested on clips in each light. Here all lights have the same clip.

    form: a class, PriorForm or BehindForm. clip: its samples.
    """
    tests = {}
    for light in LIGHTS:
        # `replace`, because the form for "prior" changes the proposals of its tests.
        tests[light] = {"a": [replace(sample) for sample in clip]}
    return form([[clip]], tests)


def file_of_measure(folder: Path, form: str) -> dict:
    """Return the file that `measure` writes, e.g. vrt_curve_prior.json."""
    return json.loads((folder / f"vrt_curve_{form}.json").read_text())


def assert_networks_are_of_one_size(found: dict) -> None:
    """Check that the networks of a written file have the same number of parameters within 5 %."""
    parameters = [found["parameters"][arm] for arm in ARMS]
    assert max(parameters) < 1.05 * min(parameters)


@pytest.mark.parametrize("form", [PriorForm, BehindForm])
def test_both_networks_of_a_form_are_trained_for_the_same_time(form, clip, tmp_path):
    measure(form_of_clips(form, clip), tmp_path, POINTS, seed=0)

    found = file_of_measure(tmp_path, form.name)
    assert_networks_are_of_one_size(found)
    first, second = found["points"]
    assert [first["minutes"], second["minutes"]] == POINTS
    for arm in ARMS:
        assert first[arm]["steps"] > 0
        # The numbers are equal if one step takes longer than the times of both points.
        assert second[arm]["steps"] >= first[arm]["steps"]
        assert set(second[arm]["scores"]) == set(LIGHTS)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("form", [PriorForm, BehindForm])
def test_a_new_network_changes_nothing(form, arm, clip):
    curve = form_of_clips(form, clip)
    net = curve.network(arm).eval()

    with torch.no_grad():
        scores = curve.scores(net)

    # The score is the gain over the first estimate, in dB. "rig" is one of the lights, and "a" is
    # the name of the clip.
    if form is PriorForm:
        # The network has the learned steps of SHIPPED with a prior between them. A new prior adds
        # 0. So its gain is the gain of the steps without a prior. `references` returns this gain.
        expected = curve.references()[SHIPPED]["rig"]["a"]
    else:
        # The network gets the first estimates as its input. A new network returns them unchanged,
        # so it gains nothing over them.
        expected = 0.0
    assert scores["rig"]["a"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("arm", "sees_others"), [(ATTENTION, True), (CONTROL, False)])
@pytest.mark.parametrize("form", [PriorForm, BehindForm])
def test_attention_sees_the_other_frames_and_the_control_does_not(form, arm, sees_others, clip):
    curve = form_of_clips(form, clip)
    torch.manual_seed(0)
    net = curve.network(arm).eval()
    # The last layer of a new network is 0, so that the network changes nothing. Give this layer
    # random weights.
    for parameter in net.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    first, second = clip

    def first_frame_beside(second: Sample) -> torch.Tensor:
        """Restore the clip of `first` and `second`. Returns the first frame, (3, H, W)."""
        with torch.no_grad():
            if form is PriorForm:
                frames_of_steps = steps_of_clip(net, [first, second], SOLVER)
                frames = split_frames(frames_of_steps[-1], count=2)  # (2, 3, H, W)
            else:
                [frames] = net(torch.stack([first.z_0, second.z_0])[None])  # a batch of one clip
        return frames[0]

    # Mirror the second frame, and see whether the first frame changes.
    mirrored = replace(second, z_0=second.z_0.flip(-1), proposal=second.proposal.flip(-1))
    difference = first_frame_beside(second) - first_frame_beside(mirrored)

    # 1e-6: a rounding error of numbers near 1 in float32 is 6e-8, and a result has several such
    # errors.
    is_changed = bool(difference.abs().max() > 1e-6)
    assert is_changed == sees_others


def test_a_stopped_training_goes_on_where_it_was(clip, tmp_path):
    curve = form_of_clips(BehindForm, clip)

    # One training takes six steps without a stop. The other one takes three steps, stops, and takes
    # three more steps.
    whole = Training(curve, CONTROL, seed=0, file=tmp_path / "whole.pt")
    for _ in range(6):
        whole.step()
    stopped = Training(curve, CONTROL, seed=0, file=tmp_path / "state.pt")
    for _ in range(3):
        stopped.step()
    stopped.save()
    resumed = Training(curve, CONTROL, seed=0, file=tmp_path / "state.pt")
    for _ in range(3):
        resumed.step()

    assert resumed.steps == whole.steps == 6
    assert resumed.averaged.keys() == whole.averaged.keys()
    for name, value in whole.averaged.items():
        assert torch.equal(resumed.averaged[name], value), name


def test_a_point_before_the_saved_training_is_refused(clip, tmp_path):
    curve = form_of_clips(BehindForm, clip)
    training = Training(curve, CONTROL, seed=0, file=tmp_path / "state.pt")
    # Points are in CPU seconds. The first point is shorter than a step, so one step passes it. The
    # second point lies just after this step, so a second step passes it.
    first_point = 2e-6
    weights_at_first_point = training.weights_after(first_point)
    second_point = training.seconds + 1e-6
    training.weights_after(second_point)

    # The weights of a point that was reached are kept.
    assert training.weights_after(first_point) is weights_at_first_point
    # The weights of another point before the last step are gone.
    other_point = 1e-6
    with pytest.raises(SystemExit, match="another --out"):
        training.weights_after(other_point)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with videos of noise, three frames of 80 x 80, named as in lab/quality.py."""
    folder = tmp_path_factory.mktemp("videos")
    rng = np.random.default_rng(0)
    for name in (*VIDEOS["train"], *VIDEOS["choose"]):
        fourcc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(folder / f"{name}.mp4"), fourcc, 25, (80, 80))
        for _ in range(3):
            writer.write(rng.integers(0, 256, (80, 80, 3), dtype=np.uint8))
        writer.release()
    return folder


def test_the_motion_is_found_by_both_networks(videos, tmp_path):
    form = MotionForm(videos, training_scenes=2, test_scenes=2)

    measure(form, tmp_path, POINTS[:1], seed=0)

    found = file_of_measure(tmp_path, "motion")
    assert_networks_are_of_one_size(found)
    # "no motion": the errors of a network that finds no motion at all.
    for scores in (found["no motion"], found["points"][0][ATTENTION]["scores"]):
        assert list(scores) == list(LIGHTS)
        assert len(scores["dim"]) == 2  # two test scenes
    # A scene moves by the same length in each light, so these errors do not depend on the light.
    assert found["no motion"]["dim"] == found["no motion"]["ideal"]


def test_frames_below_one_another_come_apart():
    frames = torch.rand(3, 2, 4, 5)  # three frames of two channels, 4 x 5 pixels

    one_frame = stack_frames(frames)

    assert one_frame.shape == (2, 3 * 4, 5)
    assert torch.equal(split_frames(one_frame, count=3), frames)


def test_an_unknown_form_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--videos", "a", "--out", "b", "--form", "none"])

    # The message names the forms that there are.
    assert "motion" in capsys.readouterr().err

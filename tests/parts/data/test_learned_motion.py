"""What the network of motion sees of the spikes, and how its curves become shifts of pixels.

The network estimates how each spike pixel moves within an exposure: a curve of six numbers, a
polynomial of time along x and along y, and the logarithm of an expected error. The networks of
these tests give the same curve for each pixel, so the expected shifts can be worked out.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from data.motion.drawing import motion_picture, not_trusted, way_picture
from data.motion.flow import Motion, motion_of
from data.motion.learned import (
    finder_of,
    learned_motion,
    mean_motion,
    network_inputs,
    pictures_of,
    spike_windows,
)
from data.motion.recording import RecordedClip, Recording
from models.fusion.motion_net import CHANGES, EDGES, INSIDE, LEVELS, MotionNet
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")
# Planes at which the windows of the network begin and end. The exposure has 88 planes from plane 0
# on, so its middle is plane 44. It is divided into eleven windows of 8 planes, from edge -5.5 to
# edge 5.5. Further windows lie before and after it.
INSTANT = np.array([round(44 + 8 * edge) for edge in EDGES])  # of 88 planes from plane 0 on


def network(curve=(0.0,) * 6, log_error=0.0):
    """Return a network that gives the same curve everywhere, because its weights are 0.

    The result then is the bias of the last layer: `curve` and `log_error`.
    """
    net = MotionNet().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        bias = net.get_parameter(f"nets.{len(LEVELS) - 1}.6.bias")  # of its last layer
        bias.copy_(torch.tensor([*curve, log_error]))
    assert len(bias) == CHANGES
    return net


def clip_of(tmp_path, scene):
    """Write a scene as a clip of a user, and open it."""
    return RecordedClip(reader_of(scene.write(tmp_path / "clip")), None)


def test_spikes_and_light_of_windows_are_counted():
    stream = np.zeros((12, 1, 2), np.uint8)
    stream[[2, 5, 8], 0, 0] = 1  # intervals end at 3, 6 and 9; the second pixel never fires
    found = spike_windows(stream, np.array([-2, 0, 4, 6, 12, 14]))

    assert found.counts[:, 0, 0].tolist() == [0, 1, 1, 1, 0]
    # Of the interval from 3 to 6, a third has passed at 4. The last one ends after the stream.
    assert found.light[:, 0, 0] == pytest.approx([0, 4 / 3, 2 / 3, 1.75, 0])
    assert found.light[:, 0, 1].sum() < 1
    assert not found.counts[:, 0, 1].any()
    assert found.are_recorded.tolist() == [False, True, True, True, False]


def test_what_the_network_sees_hardly_depends_on_the_light_and_on_the_length_of_the_exposure():
    rng = np.random.default_rng(0)
    blurry = rng.random((16, 20)).astype(np.float32)
    stream = np.zeros((176, 16, 20), np.uint8)
    stream[::4] = 1
    usual = pictures_of(spike_windows(stream, INSTANT), blurry, INSIDE, 8.0)
    twice = pictures_of(spike_windows(stream[::2], INSTANT // 2), blurry, INSIDE, 4.0)
    for a, b in zip(usual, twice, strict=True):
        assert np.isfinite(a).all()
        assert np.abs(a).max() < 5
        assert np.allclose(a[2:13], b[2:13], atol=0.3)


@pytest.mark.parametrize("rate", [0.6, 0.001])
def test_its_inputs_are_finite_in_all_light_and_at_the_edges_of_a_clip(tmp_path, rate):
    clip = clip_of(tmp_path, Scene(velocity=(5.0, 0.0), rate=rate))
    for frame in range(3):
        pictures, scene = network_inputs(clip.read(frame), clip.view, network())
        assert np.isfinite(pictures).all()
        assert np.isfinite(scene).all()
        is_recorded = np.abs(pictures).max(axis=(1, 2, 3)) > 0
        if rate > 0.1:
            # The first frame has no planes before it, and the last one has none after it.
            assert is_recorded[:2].any() == (frame > 0)
            assert is_recorded[13:].any() == (frame < 2)


def test_a_curve_becomes_shifts_in_pixels_of_the_frame_with_an_error_that_grows_with_time(tmp_path):
    clip = clip_of(tmp_path, Scene(size=(88, 84)))
    curve = (3.0, -1.0, 0.5, 0.25, 0.0, -0.5)
    recording = clip.read(1)
    found = learned_motion(recording, clip.view, network(curve, np.log(0.4)), CPU)
    tau = (found.times / 30).astype(np.float32)  # an exposure has 60 planes
    # A spike pixel is as wide as two pixels of the frame.
    x = 2 * (3.0 * tau + 0.5 * tau**2)
    y = 2 * (-1.0 * tau + 0.25 * tau**2 - 0.5 * tau**3)

    assert found.shifts.shape == (9, 88, 84, 2)
    assert np.allclose(found.shifts[..., 0], x[:, None, None], atol=1e-4)
    assert np.allclose(found.shifts[..., 1], y[:, None, None], atol=1e-4)
    assert np.allclose(found.errors, 2 * 0.4 * 2 * np.abs(tau)[:, None, None], atol=1e-4)


def test_the_curves_of_a_mirrored_spike_camera_are_mirrored_back(tmp_path):
    folder = Scene().write(tmp_path / "clip")
    about = {
        "format": 1, "matrix": [[2, 0, 0.5], [0, 2, 0.5]], "mirror": "columns", "spike_size": [48,
        48], "rgb_size": [96, 96],
    }  # fmt: skip
    (tmp_path / "cameras.json").write_text(json.dumps(about))
    clip = RecordedClip(reader_of(folder, calibration=str(tmp_path / "cameras.json")), None)
    found = learned_motion(clip.read(1), clip.view, network((2.0, 1.0, 0, 0, 0, 0)), CPU)

    assert np.allclose(found.shifts[-1, 48, 48] / found.times[-1] * 30, (-4, 2), atol=1e-3)


def read_clip(folder: Path, rate: float) -> tuple[RecordedClip, Recording, np.ndarray]:
    """Return a clip with its frame 1 and its gain. rate: spikes per plane at full light."""
    clip = RecordedClip(reader_of(Scene(rate=rate).write(folder)), None)
    gain, _ = clip.gain()
    return clip, clip.read(1), gain


def test_in_dim_light_both_is_the_mean_of_network_and_dis(tmp_path):
    net = network((3.0, 0, 0, 0, 0, 0))
    clip, recording, gain = read_clip(tmp_path, rate=0.05)

    both = finder_of("both", net, CPU)(recording, clip.view, gain)

    alone = finder_of("network", net, CPU)(recording, clip.view, gain)
    begun = motion_of(recording, clip.view, gain, begin=alone)
    assert np.array_equal(both.shifts, mean_motion(alone, begun).shifts)


def test_in_bright_light_both_is_dis(tmp_path):
    net = network((3.0, 0, 0, 0, 0, 0))
    clip, recording, gain = read_clip(tmp_path, rate=0.95)

    both = finder_of("both", net, CPU)(recording, clip.view, gain)

    assert np.array_equal(both.shifts, motion_of(recording, clip.view, gain).shifts)


@pytest.mark.parametrize("rate", [0.05, 0.95], ids=["dim", "bright"])
def test_dis_does_not_ask_the_network(tmp_path, rate):
    net = network((3.0, 0, 0, 0, 0, 0))
    clip, recording, gain = read_clip(tmp_path, rate)

    dis = finder_of("dis", net, CPU)(recording, clip.view, gain)

    assert np.array_equal(dis.shifts, motion_of(recording, clip.view, gain).shifts)


def test_a_mean_of_motions_lies_where_less_error_is_expected():
    times = np.array([-10.0, 0, 10])
    here = np.zeros((3, 4, 4, 2), np.float32)
    there = np.full((3, 4, 4, 2), 5, np.float32)
    small = np.full((3, 4, 4), 0.5, np.float32)
    large = np.full((3, 4, 4), 1, np.float32)
    # At the sharp instant nothing has moved, and nothing is wrong.
    small[1] = 0
    large[1] = 0

    found = mean_motion(Motion(times, here, large), Motion(times, there, small))

    # The weights are 1 / error^2. So half the error counts four times: (1 * 0 + 4 * 5) / 5 = 4.
    assert np.allclose(found.shifts[[0, 2]], 4.0)
    assert np.array_equal(found.errors, small)
    assert np.isfinite(found.shifts).all()


def test_a_picture_shows_the_direction_and_covers_what_was_not_trusted():
    shifts = np.zeros((3, 20, 30, 2), np.float32)
    shifts[0, :, :10, 0], shifts[2, :, :10, 0] = -4, 4  # to the right
    shifts[0, :, 10:20, 1], shifts[2, :, 10:20, 1] = -4, 4  # down
    errors = np.full((3, 20, 30), 0.2, np.float32)
    errors[:, :5] = 6.0
    motion = Motion(np.array([-10.0, 0, 10]), shifts, errors)
    assert not_trusted(motion)[:5].all()
    assert not not_trusted(motion)[5:].any()
    picture = motion_picture(motion)

    assert picture.dtype == np.uint8
    assert picture.shape == (20, 30, 3)
    assert picture[10, 2].tolist() == [255, 0, 0]
    assert picture[10, 15, 1] > picture[10, 15, 2]  # more green than blue
    assert picture[10, 25].tolist() == [255, 255, 255]
    assert len(set(picture[2, 12].tolist())) == 1  # grey
    assert way_picture(np.zeros((4, 4, 2), np.float32)).min() == 255

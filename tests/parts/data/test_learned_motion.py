"""What the network of motion sees of the spikes, and how its curves become shifts of pixels.

The network estimates how each spike pixel moves within an exposure. It gives a curve of six
numbers (a polynomial of time along x, and one along y) and the logarithm of an expected error. The
networks of these tests give the same curve for each pixel, so the expected shifts can be worked
out.

    plane      one bit for each spike pixel: whether it fired at one instant
    window     some planes in a row; the network sees the spikes and the light of each window
    edge       where a window begins or ends
    tau        time from the middle of the exposure, -1 at its begin and 1 at its end
    motion     how far each pixel of the frame has moved at several instants (its shifts), and the
               expected error of each shift
    "dis"      optical flow of pictures made of the spikes, without a network
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from data.motion.drawing import motion_picture, untrusted_pixels, way_picture
from data.motion.flow import Motion, motion_of
from data.motion.learned import (
    NetworkInputs,
    Windows,
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
# Planes at which the windows of the network begin and end, for an exposure of the planes 0 to 87.
# Its middle is plane 44. Eleven windows of 8 planes divide it, from the edge -5.5 (plane 0) to the
# edge 5.5 (plane 88). Further windows lie before and after it.
PLANES_OF_EDGES = np.array([round(44 + 8 * edge) for edge in EDGES])


def network(curve: Sequence[float] = (0.0,) * 6, log_error: float = 0.0) -> MotionNet:
    """Return a network that gives the same curve everywhere.

    All its weights are 0. So the result is the bias of the last layer, which is set to `curve` and
    `log_error`.

    curve: x1, y1, x2, y2, x3, y3. The shift along x at time tau is x1 tau + x2 tau^2 + x3 tau^3, in
    spike pixels.
    """
    net = MotionNet().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        # The last net works at the finest level. Its layer 6 is its last layer.
        bias = net.get_parameter(f"nets.{len(LEVELS) - 1}.6.bias")
        bias.copy_(torch.tensor([*curve, log_error]))
    assert len(bias) == CHANGES
    return net


def clip_of(folder: Path, scene: Scene) -> RecordedClip:
    """Write a scene as a clip of a user, and open it. The clip has three frames."""
    reader = reader_of(scene.write(folder / "clip"))
    return RecordedClip(reader, context=None)


# ---- What the network sees ----


@pytest.fixture(scope="module")
def windows() -> Windows:
    """Give five windows, from 12 planes of two pixels.

        window    0          1         2       3          4
        planes    -2, -1     0 to 3    4, 5    6 to 11    12, 13

    The windows 0 and 4 lie outside of the planes. The first pixel fires in the planes 2, 5 and 8.
    The second pixel never fires.
    """
    stream = np.zeros((12, 1, 2), np.uint8)
    stream[[2, 5, 8], 0, 0] = 1
    return spike_windows(stream, np.array([-2, 0, 4, 6, 12, 14]))


def test_the_spikes_of_a_window_are_counted(windows):
    assert windows.counts[:, 0, 0].tolist() == [0, 1, 1, 1, 0]
    assert not windows.counts[:, 0, 1].any()


def test_the_light_of_a_window_follows_from_the_intervals_in_it(windows):
    # A spike in plane p ends an interval at time p + 1: here 3, 6 and 9. An interval has the light
    # of one spike, so a part of an interval has a part of this light.
    #
    #     window 1, times 0 to 4     the interval 0 to 3, and 1/3 of 3 to 6        4/3
    #     window 2, times 4 to 6     the other 2/3 of 3 to 6                       2/3
    #     window 3, times 6 to 12    the interval 6 to 9, and 3/4 of 9 to 13       1.75
    #
    # No spike ends the last interval. It counts as if a spike came one plane after the stream, at
    # 13.
    assert windows.light[:, 0, 0] == pytest.approx([0, 4 / 3, 2 / 3, 1.75, 0])


def test_a_pixel_without_spikes_has_less_light_than_one_spike(windows):
    assert windows.light[:, 0, 1].sum() < 1


def test_windows_outside_of_the_planes_are_not_recorded(windows):
    assert windows.are_recorded.tolist() == [False, True, True, True, False]


def test_what_the_network_sees_has_the_order_of_its_training():
    # Three windows of 8 planes. In each, the left half has 4 spikes, and the right half has 1.
    light = np.ones((3, 4, 8), np.float32)
    light[:, :, :4] = 4
    lengths = np.full(3, 8, np.float32)
    windows = Windows(counts=light, light=light, lengths=lengths, are_recorded=np.ones(3, bool))
    blurry = np.zeros((4, 8), np.float32)
    blurry[0] = 0.5  # the mean is 1/8

    inputs = pictures_of(windows, blurry, inside=slice(0, 3), planes_per_eleventh=8)

    # Light relative to its mean, sqrt(4 / 2.5) - 1. Then the change of the number of spikes: none.
    assert inputs.pictures[:, 0, :, 0] == pytest.approx(0.2649, abs=1e-4)
    assert inputs.pictures[:, 1] == pytest.approx(0)
    # Spikes around each pixel, in the mean, and the contrast of the blurry frame.
    around, mean, contrast = inputs.scene
    assert around[0, 0] > around[0, 7]
    assert mean == pytest.approx(np.log(2.5))
    assert contrast[0] == pytest.approx(2 * (0.5 - 0.125))


def test_what_the_network_sees_hardly_depends_on_the_length_of_the_exposure():
    rng = np.random.default_rng(0)
    blurry = rng.random((16, 20)).astype(np.float32)
    # Each pixel fires each 4 planes. If every other plane is left out, it fires each 2 planes, and
    # an eleventh of the exposure has 4 planes in place of 8.
    stream = np.zeros((176, 16, 20), np.uint8)
    stream[::4] = 1
    half_as_many_planes = stream[::2]

    usual_windows = spike_windows(stream, PLANES_OF_EDGES)
    usual = pictures_of(usual_windows, blurry, INSIDE, planes_per_eleventh=8.0)
    short_windows = spike_windows(half_as_many_planes, PLANES_OF_EDGES // 2)
    short = pictures_of(short_windows, blurry, INSIDE, planes_per_eleventh=4.0)

    for of_usual, of_short in zip(usual, short, strict=True):  # the pictures, then the scene
        assert np.isfinite(of_usual).all()
        assert np.isfinite(of_short).all()
        assert np.abs(of_usual).max() < 5  # usual are values of about 1 or less
    # INSIDE are the eleven windows that divide the exposure.
    assert np.allclose(usual.pictures[INSIDE], short.pictures[INSIDE], atol=0.3)
    assert np.allclose(usual.scene, short.scene, atol=0.3)


@pytest.fixture(scope="module", params=[0.6, 0.001], ids=["bright", "nearly dark"])
def inputs_of_frames(request, tmp_path_factory) -> list[NetworkInputs]:
    """Give the inputs of the network for each of three frames."""
    scene = Scene(velocity=(5.0, 0.0), rate=request.param)
    clip = clip_of(tmp_path_factory.mktemp("inputs"), scene)
    return [network_inputs(clip.read(frame), clip.view, network()) for frame in range(3)]


def test_the_inputs_are_finite_in_all_light(inputs_of_frames):
    for pictures, scene in inputs_of_frames:
        assert np.isfinite(pictures).all()
        assert np.isfinite(scene).all()


@pytest.mark.parametrize("inputs_of_frames", [0.6], ids=["bright"], indirect=True)
def test_the_windows_outside_of_a_clip_are_empty(inputs_of_frames):
    for frame, (pictures, _) in enumerate(inputs_of_frames):
        is_recorded = np.abs(pictures).max(axis=(1, 2, 3)) > 0  # (15,): a window has an input
        # Two of the 15 windows lie before the exposure (0 and 1), and two after it (13 and 14).
        # The first frame has no planes before it, and the last frame has no planes after it.
        assert is_recorded[:2].any() == (frame > 0)
        assert is_recorded[13:].any() == (frame < 2)


# ---- From curves to motion ----


@pytest.fixture(scope="module")
def motion(tmp_path_factory) -> Motion:
    """Give the motion of a network with one curve, and an expected error of 0.4 spike pixels."""
    clip = clip_of(tmp_path_factory.mktemp("motion"), Scene(size=(88, 84)))
    net = network(curve=(3.0, -1.0, 0.5, 0.25, 0.0, -0.5), log_error=np.log(0.4))
    return learned_motion(clip.read(1), clip.view, net, CPU)


def tau_of(motion: Motion) -> np.ndarray:
    """Return the instants of a motion, from -1 at the begin of the exposure to 1 at its end."""
    half_exposure = 30  # planes
    return (motion.times / half_exposure).astype(np.float32)


# A spike pixel is as wide as two RGB pixels.
PIXELS_OF_SPIKE_PIXEL = 2


def test_a_curve_becomes_shifts_in_pixels_of_the_frame(motion):
    tau = tau_of(motion)
    x = PIXELS_OF_SPIKE_PIXEL * (3.0 * tau + 0.5 * tau**2)
    y = PIXELS_OF_SPIKE_PIXEL * (-1.0 * tau + 0.25 * tau**2 - 0.5 * tau**3)

    # 9 instants of frames of 88 x 84 pixels. All pixels move alike.
    assert motion.shifts.shape == (9, 88, 84, 2)
    assert np.allclose(motion.shifts[..., 0], x[:, None, None], atol=1e-4)
    assert np.allclose(motion.shifts[..., 1], y[:, None, None], atol=1e-4)


def test_the_expected_error_grows_with_the_time_from_the_middle(motion):
    # The mean of 2 |tau| over the exposure is 1. So the mean of the errors is 0.4 spike pixels.
    expected = PIXELS_OF_SPIKE_PIXEL * 0.4 * 2 * np.abs(tau_of(motion))

    assert np.allclose(motion.errors, expected[:, None, None], atol=1e-4)


def test_the_curves_of_a_mirrored_spike_camera_are_mirrored_back(tmp_path):
    folder = Scene().write(tmp_path / "clip")
    calibration = {
        "format": 1,
        "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
        "mirror": "columns",
        "spike_size": [48, 48],
        "rgb_size": [96, 96],
    }
    (tmp_path / "cameras.json").write_text(json.dumps(calibration))
    reader = reader_of(folder, calibration=str(tmp_path / "cameras.json"))
    clip = RecordedClip(reader, context=None)

    # 2 spike pixels along x and 1 along y in half an exposure, at constant speed.
    found = learned_motion(clip.read(1), clip.view, network((2.0, 1.0, 0, 0, 0, 0)), CPU)

    # The shift (x, y) of the middle pixel at the last instant, which is a little before tau = 1.
    # The speed is constant, so divided by its tau it is the shift at tau = 1.
    shift_at_the_end = found.shifts[-1, 48, 48] / tau_of(found)[-1]
    # 2 and 1 spike pixels are 4 and 2 RGB pixels. Columns are mirrored, so x changes its sign.
    assert np.allclose(shift_at_the_end, (-4, 2), atol=1e-3)


# ---- Which motion is used ----


def read_clip(folder: Path, rate: float) -> tuple[RecordedClip, Recording, np.ndarray]:
    """Return (clip, recording of its frame 1, gain of its spike pixels).

    rate: spikes per plane at full light.
    """
    reader = reader_of(Scene(rate=rate).write(folder))
    clip = RecordedClip(reader, context=None)
    gain, _ = clip.gain()  # (h, w): spikes per plane at full light
    return clip, clip.read(1), gain


def test_in_dim_light_both_is_the_mean_of_network_and_dis(tmp_path):
    net = network((3.0, 0, 0, 0, 0, 0))
    clip, recording, gain = read_clip(tmp_path, rate=0.05)

    both = finder_of("both", net, CPU)(recording, clip.view, gain)

    alone = finder_of("network", net, CPU)(recording, clip.view, gain)
    begun = motion_of(recording, clip.view, gain, start_motion=alone)
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


def test_a_mean_of_motions_lies_nearer_to_the_motion_with_less_expected_error():
    times = np.array([-10.0, 0, 10])
    shifts_of_0 = np.zeros((3, 4, 4, 2), np.float32)
    shifts_of_5 = np.full((3, 4, 4, 2), 5, np.float32)
    small_errors = np.full((3, 4, 4), 0.5, np.float32)
    large_errors = np.full((3, 4, 4), 1, np.float32)
    # At the sharp instant, time 0, the expected errors are 0. A weight 1 / error^2 would be
    # infinite.
    small_errors[1] = 0
    large_errors[1] = 0

    still = Motion(times, shifts_of_0, large_errors)
    moving = Motion(times, shifts_of_5, small_errors)
    found = mean_motion(still, moving)

    # The weights are 1 / error^2. So half the error has four times the weight:
    # (1 * 0 + 4 * 5) / 5 = 4.
    assert np.allclose(found.shifts[[0, 2]], 4.0)
    assert np.array_equal(found.errors, small_errors)
    assert np.isfinite(found.shifts).all()


# ---- Pictures of a motion ----


@pytest.fixture(scope="module")
def random_motion() -> Motion:
    """Give a motion of 20 x 30 pixels.

    columns 0 to 9      move right
    columns 10 to 19    move down
    columns 20 to 29    stand still
    rows 0 to 4         have an expected error of 6 pixels, the other rows of 0.2 pixels
    """
    shifts = np.zeros((3, 20, 30, 2), np.float32)  # (instants, H, W, xy)
    # From 4 pixels before (instant 0) to 4 pixels after (instant 2): a way of 8 pixels.
    for instant, shift in ((0, -4), (2, 4)):
        shifts[instant, :, :10, 0] = shift
        shifts[instant, :, 10:20, 1] = shift
    errors = np.full((3, 20, 30), 0.2, np.float32)
    errors[:, :5] = 6.0
    return Motion(np.array([-10.0, 0, 10]), shifts, errors)


def test_pixels_of_a_large_expected_error_are_not_trusted(random_motion):
    is_untrusted = untrusted_pixels(random_motion)

    assert is_untrusted[:5].all()
    assert not is_untrusted[5:].any()


def test_a_motion_is_not_trusted_if_its_error_is_above_half_a_pixel_and_half_of_its_length():
    # One row of four pixels: two are 5 pixels away from their places, and two stand still.
    shifts = np.zeros((2, 1, 4, 2), np.float32)
    shifts[:, :, :2, 0] = 5
    errors = np.broadcast_to(np.array([2.6, 2.4, 0.6, 0.4], np.float32), (2, 1, 4))

    is_untrusted = untrusted_pixels(Motion(np.array([-10.0, 10.0]), shifts, errors))

    assert is_untrusted.tolist() == [[True, False, True, False]]


def test_a_picture_of_a_motion_shows_the_direction(random_motion):
    picture = motion_picture(random_motion)

    assert picture.dtype == np.uint8
    assert picture.shape == (20, 30, 3)
    assert picture[10, 2].tolist() == [255, 0, 0]  # right: red
    _, green, blue = picture[10, 15].tolist()  # down: yellow to green
    assert green > blue
    assert picture[10, 25].tolist() == [255, 255, 255]  # still: white


def test_a_picture_of_a_motion_is_grey_where_the_motion_is_not_trusted(random_motion):
    # A pixel that moves down (column 12) and is not trusted (row 2).
    red, green, blue = motion_picture(random_motion)[2, 12].tolist()

    assert red == green == blue


def test_a_picture_of_no_motion_is_white():
    assert way_picture(np.zeros((4, 4, 2), np.float32)).min() == 255

"""data/motion/learned.py: how the curves of the network become shifts of the pixels of a frame.

The network gives a curve for each spike pixel, and the logarithm of an expected error. A curve has
six numbers (x1, y1, x2, y2, x3, y3), in spike pixels. The six numbers are the coefficients of two
polynomials:

    shift along x = x1 tau + x2 tau^2 + x3 tau^3
    shift along y = y1 tau + y2 tau^2 + y3 tau^3

The networks of these tests (tests/helpers/motion_network.py) give the same curve for each pixel. So
the expected shifts can be worked out. tests/helpers/moving_scene.py renders the clips.

    tau       time from the middle of the exposure, -1 at its begin and 1 at its end
    motion    how far each pixel of the frame has moved at several instants (its shifts), and the
              expected error of each shift
"""

import json

import numpy as np
import pytest
import torch

from data.motion.learned import motion_by_network
from data.motion.recording import RecordedClip
from data.motion.shifts import Motion
from tests.helpers.motion_network import constant_network
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def motion(tmp_path_factory) -> Motion:
    """Give the motion of a network with one curve, and an expected error of 0.4 spike pixels."""
    folder = tmp_path_factory.mktemp("motion")
    reader = reader_of(Scene(size=(88, 84)).write(folder / "clip"))
    clip = RecordedClip(reader, context=None)
    net = constant_network(curve=(3.0, -1.0, 0.5, 0.25, 0.0, -0.5), log_error=np.log(0.4))
    return motion_by_network(clip.read(1), clip.view, net, CPU)


def tau_of(motion: Motion) -> np.ndarray:
    """Return the instants (n,) of a motion: -1 at the begin of the exposure, 1 at its end."""
    half_exposure = 30  # planes
    return (motion.times / half_exposure).astype(np.float32)


# A spike pixel is as wide as two RGB pixels.
PIXELS_OF_SPIKE_PIXEL = 2


def test_a_curve_becomes_shifts_in_pixels_of_the_frame(motion):
    tau = tau_of(motion)
    x = PIXELS_OF_SPIKE_PIXEL * (3.0 * tau + 0.5 * tau**2)
    y = PIXELS_OF_SPIKE_PIXEL * (-1.0 * tau + 0.25 * tau**2 - 0.5 * tau**3)

    # The frames have 88 x 84 pixels, and the motion has 9 instants. All pixels move alike.
    assert motion.shifts.shape == (9, 88, 84, 2)
    assert np.allclose(motion.shifts[..., 0], x[:, None, None], atol=1e-4)
    assert np.allclose(motion.shifts[..., 1], y[:, None, None], atol=1e-4)


def test_the_expected_error_grows_with_the_time_from_the_middle(motion):
    # The error grows with 2 |tau|, whose mean over the exposure is 1. So the mean error is 0.4
    # spike pixels.
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

    # The pixels move by 2 spike pixels along x and 1 along y in half an exposure, at constant
    # speed.
    net = constant_network((2.0, 1.0, 0, 0, 0, 0))
    found = motion_by_network(clip.read(1), clip.view, net, CPU)

    # Take the shift (x, y) of the middle pixel at the last instant, a little before the end of the
    # exposure. The speed is constant, so this shift divided by its tau is the shift at tau = 1.
    # E.g. a shift of 1.8 at tau = 0.9 gives 2.
    shift_at_the_end = found.shifts[-1, 48, 48] / tau_of(found)[-1]
    # 2 and 1 spike pixels are 4 and 2 RGB pixels. The columns are mirrored, so x changes its sign.
    assert np.allclose(shift_at_the_end, (-4, 2), atol=1e-3)

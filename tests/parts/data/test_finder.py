"""data/motion/finder.py: which motion is used: of optical flow ("dis"), a network, or both.

DIS is the optical flow of OpenCV. With "both", a frame in dim light gets the mean of both motions,
and a frame in bright light gets the motion of DIS. Dim light means less than 5 spikes per exposure
in a pixel of median light (DIM_SPIKES). An exposure has 60 planes. So a rate of 0.05 is dim: at
most 60 x 0.05 = 3 spikes. A rate of 0.95 is bright.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from data.motion.exposure import Recording
from data.motion.finder import finder_of, mean_motion
from data.motion.flow import motion_of
from data.motion.recording import RecordedClip
from data.motion.shifts import Motion
from tests.helpers.motion_network import constant_network
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")
# The motion that the network gives: 3 spike pixels along x in half an exposure, at constant speed.
# The other five numbers of the curve are 0 (test_learned.py explains them).
CURVE = (3.0, 0, 0, 0, 0, 0)


def read_clip(folder: Path, rate: float) -> tuple[RecordedClip, Recording, np.ndarray]:
    """Return (clip, recording of its frame 1, gain of its spike pixels).

    rate: spikes per plane at full light.
    """
    reader = reader_of(Scene(rate=rate).write(folder))
    clip = RecordedClip(reader, context=None)
    gain, _ = clip.gain()  # (h, w): spikes per plane at full light
    return clip, clip.read(1), gain


def test_in_dim_light_both_is_the_mean_of_network_and_dis(tmp_path):
    # A network that gives the same curve everywhere.
    net = constant_network(CURVE)
    clip, recording, gain = read_clip(tmp_path, rate=0.05)

    both = finder_of("both", net, CPU)(recording, clip.view, gain)

    of_network = finder_of("network", net, CPU)(recording, clip.view, gain)
    # With "both", DIS begins its search at the motion of the network.
    of_dis = motion_of(recording, clip.view, gain, start_motion=of_network)
    assert np.array_equal(both.shifts, mean_motion(of_network, of_dis).shifts)


def test_in_bright_light_both_is_dis(tmp_path):
    net = constant_network(CURVE)
    clip, recording, gain = read_clip(tmp_path, rate=0.95)

    both = finder_of("both", net, CPU)(recording, clip.view, gain)

    assert np.array_equal(both.shifts, motion_of(recording, clip.view, gain).shifts)


@pytest.mark.parametrize("rate", [0.05, 0.95], ids=["dim", "bright"])
def test_dis_does_not_ask_the_network(tmp_path, rate):
    net = constant_network(CURVE)
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
    # The expected error of the mean is the smaller one of the two errors. The expected error is not
    # less, because the errors of the two motions are not independent.
    assert np.array_equal(found.errors, small_errors)
    assert np.isfinite(found.shifts).all()

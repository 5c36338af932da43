"""data/motion/joint/spike_equations.py: which spike pixels have equations."""

import numpy as np

from data.motion.joint.spike_equations import spike_equations
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.view import View
from tests.helpers.joint_case import CPU
from tests.helpers.made_exposures import ALIGNED, PLANES, exposure_with


def columns_with_equations(to_rgb: np.ndarray, is_good: np.ndarray) -> list[bool]:
    """Return for each of 8 columns of spike pixels whether all of its pixels have equations.

    Each pixel has 30 spikes. A frame has 16 x 16 pixels. is_good: (8, 8).
    """
    recording = exposure_with(30)
    pixels = SpikePixels(View((16, 16), (8, 8), to_rgb, is_display=False), CPU)
    gain = np.ones((8, 8), np.float32)
    edges = np.linspace(0, PLANES, 7)  # six groups of planes
    made_of_spikes = spike_equations(
        recording, pixels, group_edges=edges, gain=gain, is_good=is_good, device=CPU
    )
    # weights: (intervals, 8, 8). A pixel has equations if one of its intervals has a weight.
    return (made_of_spikes.weights > 0).any(0).all(0).tolist()


def test_a_spike_pixel_that_cannot_be_trusted_has_no_equation():
    is_good = np.ones((8, 8), bool)
    is_good[:, 2] = False

    assert columns_with_equations(ALIGNED, is_good) == is_good[0].tolist()


def test_a_spike_pixel_beside_the_frame_has_no_equation():
    # The spike camera looks 6 RGB pixels further to the right, which are three spike pixels. So its
    # last three columns lie beside the frame.
    to_the_right = ALIGNED + np.array([[0, 0, 6.0], [0, 0, 0], [0, 0, 0]])

    found = columns_with_equations(to_the_right, is_good=np.ones((8, 8), bool))

    assert found == 5 * [True] + 3 * [False]

"""Choose what finds the motion within an exposure: DIS, a network, or both.

Tests: tests/parts/data/test_finder.py
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from data.motion.exposure import Recording
from data.motion.flow import motion_of as motion_by_dis
from data.motion.learned import learned_motion
from data.motion.light import DIM_SPIKES, median_spikes
from data.motion.shifts import Motion
from data.motion.view import View
from utils.contract import MotionNetwork

FinderName = Literal["dis", "network", "both"]
# A function that finds a motion: (recording, view, gain) -> motion. The gain (h, w) is the number
# of spikes per plane of each spike pixel at full light.
Finder = Callable[[Recording, View, np.ndarray], Motion]
# Least expected error in the weights of a mean, in pixels. At the sharp instant both errors are 0,
# so both weights would be infinite. Everywhere else errors are far larger than this value.
LEAST_ERROR = 1e-3


def finder_of(name: FinderName, network: MotionNetwork | None, device: torch.device) -> Finder:
    """Return the function that finds a motion: by DIS, by the network, or by both.

    network: may be None if the name is "dis". device: where the network computes.
    """
    if name == "dis":
        return motion_by_dis
    assert network is not None  # weights that say "network" or "both" have a network

    # The network needs no gain, but all finders are called with the same arguments.
    def by_network(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        return learned_motion(recording, view, network, device)

    def by_both(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        # DIM_SPIKES is 5 spikes in a pixel of median light. With fewer spikes, the mean of both
        # motions gives the better frames. Measured on dim frames of the training videos and stills:
        # the PSNR of the joint solution (data/motion/joint/) along the mean motion, minus its
        # PSNR along the motion of DIS.
        #
        #     spikes in a pixel of median light    difference of the PSNR
        #     below 5                              +0.1 to +0.3 dB
        #     5 to 18                              down to -0.1 dB
        if median_spikes(recording) >= DIM_SPIKES:
            return motion_by_dis(recording, view, gain)
        of_network = by_network(recording, view, gain)
        of_dis = motion_by_dis(recording, view, gain, start_motion=of_network)
        return mean_motion(of_network, of_dis)

    return by_network if name == "network" else by_both


def mean_motion(a: Motion, b: Motion) -> Motion:
    """Return the mean of two motions at the same times.

    The weight of a shift is 1 / (expected error)^2. E.g. with the expected errors 1 and 2 pixels,
    the first motion has four times the weight. The expected error of the mean is the smaller of the
    two expected errors: 1 pixel. It is not less than that, because the errors of a and b are not
    independent.
    """
    weight_a = 1 / np.maximum(a.errors, LEAST_ERROR) ** 2  # (K, H, W)
    weight_b = 1 / np.maximum(b.errors, LEAST_ERROR) ** 2
    share_a = (weight_a / (weight_a + weight_b))[..., None]  # (K, H, W, 1)
    shifts = share_a * a.shifts + (1 - share_a) * b.shifts
    return Motion(a.times, shifts.astype(np.float32), np.minimum(a.errors, b.errors))

"""Choose what finds the motion within an exposure: DIS, a network, or both.

The fusion operator "motion" (models/fusion/fusion_motion.py) is a part of a network. It improves a
first estimate of the sharp frame by learned steps along the motion. Its weights say which of the
three finds the motion (`finder_of`):

    dis      DIS, an optical flow (flow.py), also used by `--method joint`
    network  a small network (learned.py)
    both     in good light only DIS. In dim light DIS begins its search at the motion of the
             network, and the result is the mean of the two motions

In good light DIS is at least as good as the network. In dim light each has an advantage: the
network hardly follows noise, and only DIS finds small things that move on their own.

What must stay: the three names, because weights files contain them, and the arguments of a
`Finder`, because MotionRestorer (restorer.py) and the programs of lab/ call it. A new way to find
the motion is one more name here, and in the option `motion_by` of the fusion.

Tests: tests/parts/data/test_finder.py
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from data.motion.exposure import Recording
from data.motion.flow import motion_of as motion_by_dis
from data.motion.learned import motion_by_network
from data.motion.light import DIM_SPIKES, median_spikes
from data.motion.shifts import Motion
from data.motion.view import View
from utils.contract import MotionNetwork

FinderName = Literal["dis", "network", "both"]
# A function that finds a motion: (recording, view, gain) -> motion. The gain (h, w) is the number
# of spikes per plane of each spike pixel at full light. The network needs no gain, but all finders
# are called with the same arguments.
Finder = Callable[[Recording, View, np.ndarray], Motion]


def finder_of(name: FinderName, network: MotionNetwork | None, device: torch.device) -> Finder:
    """Return the function that finds a motion: by DIS, by the network, or by both.

    name: what the weights say. "both" is DIS in good light, and the mean of both motions in dim
    light.
    network: the network of motion. It may be None if the name is "dis". device: where the network
    computes.
    """
    if name == "dis":
        return motion_by_dis
    assert network is not None  # weights that say "network" or "both" have a network

    def by_network(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        """Return the motion that the network finds."""
        return motion_by_network(recording, view, network, device)

    def by_both(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        """Return the motion of DIS in good light, and the mean of both motions in dim light."""
        # DIM_SPIKES = 5 was chosen on dim frames of the training videos and stills, by the PSNR of
        # frames that solve the equations of both cameras (data/motion/joint/). Below 5 spikes in a
        # pixel of median light, the mean of both motions gains 0.1 to 0.3 dB over the motion of
        # DIS. With 5 to 18 spikes, the mean loses up to 0.1 dB. With the limit 0,
        # test_in_dim_light_both_is_the_mean_of_network_and_dis fails.
        if median_spikes(recording) >= DIM_SPIKES:
            return motion_by_dis(recording, view, gain)
        motion_of_network = by_network(recording, view, gain)
        motion_of_dis = motion_by_dis(recording, view, gain, start_motion=motion_of_network)
        return mean_motion(motion_of_network, motion_of_dis)

    return by_network if name == "network" else by_both


# Least expected error in the weights of a mean, in pixels. At the sharp instant both errors are 0,
# so both weights would be infinite. Everywhere else errors are far larger than this value. (flow.py
# has another constant LEAST_ERROR: the expected error of a still pixel, 0.15 pixels.)
LEAST_ERROR = 1e-3


def mean_motion(a: Motion, b: Motion) -> Motion:
    """Return the mean of two motions at the same times, pixel by pixel.

        shift = (w_a shift_a + w_b shift_b) / (w_a + w_b)        w = 1 / (expected error)^2

    E.g. with the expected errors 1 and 2 pixels, the first motion has four times the weight. The
    expected error of the mean is the smaller of the two errors: 1 pixel. If the errors of a and b
    were independent, the expected error of the mean would be even smaller, but they are not
    independent.
    """
    w_a = 1 / np.maximum(a.errors, LEAST_ERROR) ** 2  # (K, H, W)
    w_b = 1 / np.maximum(b.errors, LEAST_ERROR) ** 2
    share_a = (w_a / (w_a + w_b))[..., None]  # (K, H, W, 1)
    shifts = share_a * a.shifts + (1 - share_a) * b.shifts
    return Motion(a.times, shifts.astype(np.float32), np.minimum(a.errors, b.errors))

"""Find the motion within an exposure by a small network, by DIS, or by both.

The weights say what finds the motion (`finder_of`):

    dis      DIS, an optical flow (data/motion/flow.py), also used by `--method joint`
    network  the network alone
    both     in good light DIS alone. In dim light DIS begins its search at the motion of the
             network, and the result is the mean of the two motions.

In good light DIS is at least as good as the network. In dim light each of the two is better at some
pixels: the network hardly follows noise, and DIS finds small things that move by themselves. The
network and DIS both give an expected error for each pixel. In the mean of both motions, the motion
with the smaller expected error counts more.

The fusion "motion" (models/fusion/fusion_motion.py) calls `finder_of`. A plane is one binary
picture (h, w) of the spike camera. RGB frames have H x W pixels.

The network (models/fusion/motion_net.py) sees the spikes in windows of time around the sharp
instant, the time of the wanted sharp frame. The data flow is

    spike_windows     spike planes -> number of spikes and light in each window
    pictures_of       windows -> inputs of the network: two pictures for each window, and the scene
    network           inputs -> a curve in time for each spike pixel
    _on_frame         curves -> shifts of RGB pixels

The light of a window comes from the intervals between spikes. In dim light an interval reaches over
several windows. Then the light is the same in all of these windows, and only the number of spikes
tells when light came. So the network sees both light and number.

What must stay: the inputs of the network, in values and order. weights/motion.pth was trained on
them. In other inputs the network finds a wrong motion, and no error says so.
test_what_the_network_sees_has_the_order_of_its_training notices another order or unit. Whoever
changes the inputs trains the network anew with lab/train_motion_net.py, which also calls
`pictures_of`.

Tests: tests/parts/data/test_learned.py (what the network
makes of them)
"""

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from data.motion.exposure import Recording
from data.motion.network_inputs import network_inputs
from data.motion.shifts import Motion, motion_times
from data.motion.view import View, mapped
from utils.contract import MotionNetwork

# The network takes inputs whose sides are multiples of this number, because a pixel of its coarsest
# level covers 8 x 8 spike pixels.
MULTIPLE = 8
# Range of the logarithm of the expected error in spike pixels: the error is between 0.007 and 55.
# The training had the same range (lab/train_motion_net.py), so values beyond it mean nothing.
LOG_ERRORS = (-5.0, 4.0)


@torch.no_grad()
def learned_motion(
    recording: Recording, view: View, network: MotionNetwork, device: torch.device
) -> Motion:
    """Find the motion within an exposure by the network."""
    inputs = network_inputs(recording, view, network)

    # The sides must be multiples of 8. So the last row and column are repeated up to the next
    # multiple. E.g. 250 rows need 6 more rows: -250 % 8 = 6.
    height, width = view.plane
    below = -height % MULTIPLE
    right = -width % MULTIPLE

    def padded(values: np.ndarray) -> torch.Tensor:
        """Return an input (..., h, w) with repeated edges, as a batch of one, on the device."""
        larger = F.pad(torch.from_numpy(values), (0, right, 0, below), mode="replicate")
        return larger[None].to(device)

    # The network returns its result at several resolutions, the finest last.
    levels = network(padded(inputs.pictures), padded(inputs.scene))
    finest = levels[-1]
    # The only exposure of the batch, without the padding. The six coefficients of a curve are x and
    # y of c_1, c_2 and c_3 (`_on_frame`).
    curve = finest.coefficients[0, :, :height, :width]  # (6, h, w)
    log_error = finest.log_error[0, 0, :height, :width]  # (h, w)
    log_error = log_error.clamp(*LOG_ERRORS)
    return _on_frame(recording, view, curve.cpu().numpy(), log_error.cpu().numpy())


def _on_frame(recording: Recording, view: View, curve: np.ndarray, log_error: np.ndarray) -> Motion:
    """Turn the curves of spike pixels into the motion of RGB pixels.

    A point moves from the sharp instant to the time tau by

        q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3

    tau counts halves of an exposure. If the sharp instant is the middle of the exposure, tau is -1
    at its begin and 1 at its end.

    curve: (6, h, w) in spike pixels: x and y of c_1, then of c_2, then of c_3.
    log_error: (h, w), the logarithm of the expected error of q in spike pixels, where the error is
    the mean over the exposure.
    """
    on_plane = view.pixels_on_plane()  # (H, W, 2): x and y of each RGB pixel on the spike plane
    coefficients = []  # c_1, c_2, c_3 at each RGB pixel: (H, W, 2) each
    for x_index in range(0, len(curve), 2):  # 0, 2 and 4; y follows x
        c_x = _interpolated(curve[x_index], on_plane)
        c_y = _interpolated(curve[x_index + 1], on_plane)
        coefficients.append(np.stack((c_x, c_y), axis=-1))

    # The error in RGB pixels. A spike pixel with an area of e.g. 9 RGB pixels is 3 of them wide.
    error_on_plane = _interpolated(np.exp(log_error), on_plane)  # (H, W) in spike pixels
    mean_error = error_on_plane * np.float32(np.sqrt(view.pixel_area))  # (H, W) in RGB pixels

    # The times of `motion_by_dis`, because `mean_motion` needs two motions at the same times.
    times = sorted([0.0, *motion_times(recording)])
    without_motion = mapped(view.to_rgb, on_plane)
    shifts = []  # (H, W, 2) in RGB pixels, for each time
    errors = []  # (H, W) in RGB pixels, for each time
    for time in times:
        tau = np.float32(time / (recording.length / 2))
        q = np.zeros_like(on_plane)  # (H, W, 2) in spike pixels
        for power, c in enumerate(coefficients, start=1):
            q = q + c * tau**power
        # q moves each point on the spike plane. The shift is the way of the point on the frame.
        shifts.append(mapped(view.to_rgb, on_plane + q) - without_motion)
        # The error is 0 at the sharp instant, and is taken to grow in proportion to |tau|. The mean
        # of |tau| over the exposure is 1/2. So with the factor 2, the mean error is `mean_error`.
        errors.append((mean_error * 2 * abs(tau)).astype(np.float32))
    return Motion(np.array(times), np.stack(shifts), np.stack(errors))


def _interpolated(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Interpolate values (h, w) of spike pixels at places (H, W, 2) on the spike plane.

    Returns (H, W) float32. Places beyond the edge get the value of the nearest edge pixel.
    """
    x = places[..., 0]
    y = places[..., 1]
    values = values.astype(np.float32)
    return cv2.remap(values, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

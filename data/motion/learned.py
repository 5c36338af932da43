"""Find the motion within an exposure by a small network.

    network_inputs    spikes and blurry frame -> inputs of the network (network_inputs.py)
    network           inputs -> a curve in time and an expected error for each spike pixel
                      (models/fusion/motion_net.py)
    _on_frame         curves of spike pixels -> shifts of RGB pixels, the `Motion` (shifts.py)

A point moves from the sharp instant, the time of the wanted sharp frame, to the time tau by

    q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3        x and y, in spike pixels

tau counts halves of an exposure. If the sharp instant is the middle of the exposure, tau is -1 at
the beginning of the exposure and 1 at its end. A frame has H x W RGB pixels, and the spike camera
has h x w spike pixels.

What must stay: the meaning of q, of tau and of the expected error, because weights/motion.pth was
trained with them. test_learned.py compares shifts and errors with curves that were chosen by hand.

Tests: tests/parts/data/test_learned.py
"""

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.network_inputs import NetworkInputs, network_inputs
from data.motion.shifts import Motion, motion_times
from data.motion.view import View, mapped
from utils.contract import MotionCurves, MotionNetwork

# Range of the logarithm of the expected error in spike pixels. So the error is between about 0.007
# and 55, e^-5 and e^4. The training had the same range, so values beyond it mean nothing.
# lab/motion_net/loss.py has a second copy of these numbers: change both, and train the network
# anew.
LOG_ERRORS = (-5.0, 4.0)


@torch.no_grad()
def motion_by_network(
    recording: Recording, view: View, network: MotionNetwork, device: torch.device
) -> Motion:
    """Find the motion within an exposure by the network, as shifts of the RGB pixels.

    recording: the blurry frame and the spikes. view: where the spike pixels lie on the frame.
    device: where the network computes. The rest is computed on the CPU.
    """
    inputs = network_inputs(recording, view, network)
    curves = _run(network, inputs, device)
    # The only exposure of the batch, without the padding.
    height, width = view.plane
    coefficients = curves.coefficients[0, :, :height, :width]  # (6, h, w)
    log_error = curves.log_error[0, 0, :height, :width]  # (h, w)
    log_error = log_error.clamp(*LOG_ERRORS)
    return _on_frame(recording, view, coefficients.cpu().numpy(), log_error.cpu().numpy())


# The network takes inputs whose sides are multiples of this number, because a pixel of its coarsest
# level covers 8 x 8 spike pixels.
MULTIPLE = 8


def _run(network: MotionNetwork, inputs: NetworkInputs, device: torch.device) -> MotionCurves:
    """Return what the network finds at its finest level, for a batch of one, with padding.

    Below and at the right, the last row and column of the inputs are repeated up to the next
    multiple of 8. E.g. 250 rows need 6 more rows: -250 % 8 = 6.
    """
    height, width = inputs.scene.shape[-2:]
    rows_to_add = -height % MULTIPLE
    columns_to_add = -width % MULTIPLE
    padding = (0, columns_to_add, 0, rows_to_add)  # left, right, above, below

    def padded(values: np.ndarray) -> Tensor:
        """Return an input (..., h, w) with repeated edges, as a batch of one, on the device."""
        larger = F.pad(torch.from_numpy(values), padding, mode="replicate")
        return larger[None].to(device)

    # The network returns its result at several resolutions, the finest last.
    levels = network(padded(inputs.pictures), padded(inputs.scene))
    return levels[-1]


def _on_frame(
    recording: Recording, view: View, coefficients: np.ndarray, log_error: np.ndarray
) -> Motion:
    """Turn the curves of spike pixels into the motion of RGB pixels.

    recording: it gives the times of the motion. view: where the spike pixels lie on the frame.
    A spike pixel moves by q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3. There is no constant term,
    because q is 0 at the sharp instant, tau = 0.

    coefficients: (6, h, w) in spike pixels: x and y of c_1, then of c_2, then of c_3.
    log_error: (h, w), the logarithm of an error in spike pixels. The error is the expected error of
    q, as the mean over the exposure.

    If shifts stay in spike pixels, test_a_curve_becomes_shifts_in_pixels_of_the_frame fails. With
    another error, test_the_expected_error_grows_with_the_time_from_the_middle fails.
    """
    on_plane = view.pixels_on_plane()  # (H, W, 2): x and y of each RGB pixel on the spike plane
    c = _coefficients_at(coefficients, on_plane)  # c_1, c_2, c_3

    # The error in RGB pixels. E.g. a spike pixel with an area of 9 RGB pixels is 3 RGB pixels wide.
    error_on_plane = _interpolated(np.exp(log_error), on_plane)  # (H, W) in spike pixels
    mean_error = error_on_plane * np.float32(np.sqrt(view.pixel_area))  # (H, W) in RGB pixels

    times = sorted({0.0, *motion_times(recording)})  # each time once, also if 0 is among them
    # `mapped` multiplies points by a matrix, here from the spike plane to the RGB frame.
    without_motion = mapped(view.to_rgb, on_plane)
    shifts = []  # (H, W, 2) in RGB pixels, for each time
    errors = []  # (H, W) in RGB pixels, for each time
    for time in times:
        # Halves of the exposure: e.g. 15 planes after the sharp instant, of 60 planes, are 0.5.
        tau = np.float32(time / (recording.length / 2))
        q = np.zeros_like(on_plane)  # (H, W, 2) in spike pixels
        for power, c_power in enumerate(c, start=1):
            q = q + c_power * tau**power
        # q is the displacement on the spike plane, and the shift is the displacement on the frame.
        shifts.append(mapped(view.to_rgb, on_plane + q) - without_motion)
        # The error is taken to grow in proportion to |tau|, from 0 at the sharp instant. The mean
        # of |tau| over the exposure is 1/2, so with the factor 2 the mean error is `mean_error`.
        errors.append((mean_error * 2 * abs(tau)).astype(np.float32))
    return Motion(np.array(times), np.stack(shifts), np.stack(errors))


def _coefficients_at(coefficients: np.ndarray, on_plane: np.ndarray) -> list[np.ndarray]:
    """Return c_1, c_2 and c_3 at each RGB pixel, (H, W, 2) each.

    coefficients: (6, h, w), as in `_on_frame`. on_plane: (H, W, 2), positions of the RGB pixels.
    """
    coefficients_at_pixels = []
    for x_index in range(0, len(coefficients), 2):  # 0, 2 and 4; y follows x
        c_x = _interpolated(coefficients[x_index], on_plane)
        c_y = _interpolated(coefficients[x_index + 1], on_plane)
        coefficients_at_pixels.append(np.stack((c_x, c_y), axis=-1))
    return coefficients_at_pixels


def _interpolated(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Interpolate values (h, w) of spike pixels at places (H, W, 2) on the spike plane.

    Returns (H, W) float32. Places beyond the edge get the value of the nearest edge pixel.
    """
    x = places[..., 0]
    y = places[..., 1]
    values = values.astype(np.float32)
    return cv2.remap(values, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

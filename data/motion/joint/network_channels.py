"""Show the equations to a network: what is known of each pixel, and how a frame should change.

The fusion "motion" (models/fusion/fusion_motion.py) takes learned steps on the equations B x = b of
the blurry frame and S l = y of the spikes (system.py). Its conv net sees the equations as channels,
with a value for each RGB pixel:

    evidence    six channels, known before any step: how far the equations can be trusted
    pulls       seven channels, for a frame z: how the equations would change z, and the residuals

A frame z fits the equations better if it changes along their gradients. With the residuals r and
the weights w of the equations, a gradient is B^T (w^2 r) for the blurry frame, and S^T (w^2 r) for
the spikes. The network sees both as changes of display values:

    change of a colour    slope * B^T (r / slope_b^2)                r = b - B x
    change of grey        slope_l * S^T (w_s^2 r) / (p + p_0)        r = y - S l

    z, x       the frame in display values, and its light x = z^2.2
    l          the grey value that the spike camera integrates: luma of x, or luma of z
    slope      dx / dz at z, (3, H, W): it turns a gradient by light into a gradient by display
               values
    slope_b    dx / dz at the blurry frame: an error in light divided by slope_b is an error in
               display values. 1 / slope_b is the weight w_b without its factor 1 / sigma_b
               (rgb_equations.py)
    slope_l    dl / d(grey display value), (1, H, W). In the formula above, slope_l is taken at z.
               In p, slope_l is taken at the blurry frame
    w_s        1 / (expected error) of a spike equation, (M, h, w)
    p          precision (1 / variance) of the grey value by the spikes, slope_l^2 * S^T w_s^2
    p_0        PRIOR_PRECISION. The division by p + p_0 turns the gradient into a Newton step

E.g. a pixel that does not move has z = 0.5 (light 0.218, slope 0.958), and is 0.533 in the blurry
frame (light 0.25, slope_b 1.033). So r is 0.032, and the colour changes by
0.958 * 0.032 / 1.033^2 = 0.029. The difference of the display values is 0.033.

Residuals are limited first, and changes at the end, because an equation may be wrong. In the code,
r_b and r_s are the limited residuals. r_b is already divided by slope_b, and r_s is already
multiplied by w_s.

Shapes: a frame is (3, H, W). The spike camera has h x w pixels, and each has M equations, one for
each interval between two spikes: (M, h, w).

What must stay: the channels, their order, and their scales, because the network was trained on
them. With other channels the network still runs, but its frames are worse. So another value of a
constant below needs a new training, too.

Tests: tests/stories/test_motion_weights.py notices another order of the first two channels of
`evidence`. tests/parts/data/joint/test_network_channels.py notices if the changes of colours and of
grey change places in `pulls`, or have another sign. No test notices a channel of another scale.
"""

import math

import numpy as np
import torch
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.joint.groups import PlaneGroups
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.joint.system import CAUCHY, Residuals, System
from data.motion.joint.values import display_of_light, light_of, luma, slope_of, tensor_of

# The spikes in INSTANT_PLANES planes around the sharp instant count as the spikes of the sharp
# instant. The number is chosen by hand. (GUARD_PLANES in guard.py has the same value, but it is a
# constant of its own, which may change without a new training.)
INSTANT_PLANES = 9
# Least noise of a frame, in display values, chosen by hand. The network sees the logarithm of the
# noise, and log(0) is infinite.
LEAST_NOISE = 3e-4


class NetworkChannels:
    """What a network sees of the equations of an exposure.

    utils.contract.JointEquations lists the channels.

    system: the equations.
    pixels: the map between a frame and the spike pixels. Calling `pixels` gives what the spike
        pixels see of a frame. Its method `to_frame` takes a value for each spike pixel, and
        interpolates a value for each RGB pixel.
    recording: what was recorded of the frame. groups: the motion within the exposure.
    gain: (h, w), spikes per plane of each spike pixel at full light.
    """

    def __init__(
        self,
        system: System,
        pixels: SpikePixels,
        recording: Recording,
        groups: PlaneGroups,
        gain: np.ndarray,
    ) -> None:
        self._system = system
        self._pixels = pixels
        self._motion_length = groups.motion_length
        self._motion_error = groups.motion_error
        device = groups.shifts.device

        # What the spikes around the sharp instant show, in display values (h, w). rate / gain is
        # what the spike camera has integrated, 1 at full light: light, or display values if
        # `is_display`. E.g. 0.3 spikes per plane with the gain 0.6 are 0.5.
        window = recording.window(recording.sharp, INSTANT_PLANES)
        [rate] = recording.spike_rates([window])  # spikes per plane, (h, w)
        integrated = tensor_of(rate / gain, device)
        self._spikes_at_instant = _display_of(integrated, system.is_display)
        # The result of `_precision`, or None if it is not computed yet. It does not depend on z,
        # and the steps of a network need it several times.
        self._kept_precision: Tensor | None = None

    def evidence(self) -> Tensor:
        """Return what is known of each pixel before any step: six channels (6, H, W).

        0  logarithm of the precision (1 / variance) of the grey value by the spikes
        1  square root of the length of the motion of the pixel
        2  square root of the expected error of this motion
        3  logarithm of the median rate (spikes per plane) of all intervals between two spikes
        4  logarithm of the noise of the blurry frame
        5  share of the pixels that move by more than one pixel

        Channels 3 to 5 are the same in all pixels. The factors and offsets bring the usual values
        of each channel to between -3 and 1. A new channel needs another number of channels in
        models/fusion/fusion_motion.py, and new training.
        """
        # Numbers of each pixel, (H, W) each. A pixel without spikes has the precision 0. `clamp`
        # raises this precision to 1, because log(0) is infinite. E.g.
        #
        #     no spikes     precision 0                          channel -3
        #     error 0.03    precision 1 / 0.03^2, about 1000     channel 0
        #
        precision = self._precision().clamp(min=1).log10() - 3
        motion_length = 0.3 * self._motion_length.sqrt()  # e.g. 11 pixels -> 1
        motion_error = 0.3 * self._motion_error.sqrt()

        # Numbers of the whole frame.
        median_rate = self._system.spikes.median_rate  # above 0
        rate_of_frame = math.log10(median_rate) + 1  # e.g. 0.1 -> 0
        noise = max(self._system.rgb.noise, LEAST_NOISE)
        noise_of_frame = math.log10(noise) + 2.5  # e.g. 0.003 -> 0
        moving_of_frame = (self._motion_length > 1).float().mean()  # 0 to 1

        channels = [precision, motion_length, motion_error]
        for number in (rate_of_frame, noise_of_frame, moving_of_frame):
            # Bring the number to the device and the type of the other channels.
            number = torch.as_tensor(number).to(motion_length)
            channels.append(number.expand(motion_length.shape))  # the same in all pixels
        return torch.stack(channels)

    def pulls(self, z: Tensor) -> Tensor:
        """Return how the equations would change a frame z (3, H, W): seven channels (7, H, W).

        0 to 2  change of each colour by the RGB equations, in display values
        3       change of the grey value by the spike equations, in display values
        4       size of the residuals of the RGB equations at this pixel, in display values
        5       size of the residuals of the spike equations at this pixel, 0 to 1
        6       grey value by the spikes of the sharp instant, minus the grey value of z
        """
        # The limited residuals, r_b (3, H, W) of the RGB equations, in display values, and r_s
        # (M, h, w) of the spike equations, in multiples of their expected errors. Each of the
        # h x w spike pixels has M equations.
        r_b, r_s = _limited_residuals(self._system, z)
        precision = self._precision()  # (H, W)
        colour_change, grey_change = _changes(self._system, z, (r_b, r_s), precision)
        size_of_r_b = luma(r_b.abs())  # (1, H, W)

        # Channels 5 and 6 are known for spike pixels (h, w), and are interpolated to RGB pixels.
        # Channel 5, (h, w), is at most 1, because `_limited_residuals` limits |r_s| to CAUCHY.
        size_of_r_s = r_s.abs().mean(0) / CAUCHY
        # Channel 6, (h, w), is in display values. It is above 0 where z is darker than the spikes
        # say.
        brightness_missing = self._spikes_at_instant - self._seen_at_instant(z)
        on_spike_pixels = torch.stack((size_of_r_s, brightness_missing))  # (2, h, w)
        spike_channels = self._pixels.to_frame(on_spike_pixels)  # (2, H, W)
        # 3 + 1 + 1 + 2 channels
        return torch.cat((colour_change, grey_change, size_of_r_b, spike_channels))

    def _seen_at_instant(self, z: Tensor) -> Tensor:
        """Return what the spike pixels see of a frame z (3, H, W), in display values (h, w)."""
        is_display = self._system.is_display
        integrated = luma(z) if is_display else luma(light_of(z))  # (1, H, W)
        [seen] = self._pixels(integrated)  # one grey picture in, one out
        return _display_of(seen, is_display)

    def _precision(self) -> Tensor:
        """Return 1 / variance (H, W) of the grey display values that the spikes measure."""
        if self._kept_precision is None:
            self._kept_precision = _grey_precision(self._system)
        return self._kept_precision


# Limit of a residual of the RGB equations, in display values. A larger residual comes from a wrong
# equation, e.g. where one thing hides another, and would only disturb the network. Chosen by hand.
MOST_RESIDUAL = 0.5


def _limited_residuals(system: System, z: Tensor) -> Residuals:
    """Return the residuals of a frame z (3, H, W) without large values.

    Returns the residuals of the RGB equations in display values, (3, H, W), and the residuals of
    the spike equations in multiples of their error, (M, h, w).
    """
    residuals_of_light, residuals_of_y = system.residuals(z)
    # The division by the slope turns residuals in light into residuals in display values.
    r_b = (residuals_of_light / slope_of(system.rgb.blurry)).clamp(-MOST_RESIDUAL, MOST_RESIDUAL)
    # e / sqrt(1 + (e / c)^2) limits the multiples e of the error to c = CAUCHY. E.g. with c = 2:
    # 0.1 stays 0.1, and 20 becomes 1.99.
    in_errors = system.spikes.weights * residuals_of_y
    r_s = in_errors / (1 + (in_errors / CAUCHY) ** 2).sqrt()
    return r_b, r_s


# Limit of a change of z, in display values. A larger change comes from equations that are wrong.
# Chosen by hand.
MOST_PULL = 0.3
# The spikes measure a grey value with a precision p = 1 / variance. The grey value is changed by a
# Newton step, times p / (p + PRIOR_PRECISION), so a grey value with a low precision hardly changes:
#
#     error 0.01    p = 10000    0.96 of the step
#     error 0.05    p = 400      half of the step
#
# Chosen by hand.
PRIOR_PRECISION = 400.0


def _changes(
    system: System, z: Tensor, limited_residuals: Residuals, precision: Tensor
) -> tuple[Tensor, Tensor]:
    """Return how the equations would change a frame z (3, H, W), in display values.

    Returns the change of each colour by the RGB equations, (3, H, W), and the change of the grey
    value by the spike equations, (1, H, W).

    limited_residuals: from `_limited_residuals`. precision: from `_grey_precision`, (H, W).
    """
    # B and S are the maps from a frame to what both cameras see of the frame. The limited residuals
    # contain one factor of each gradient already:
    #
    #     camera   gradient by light       limited residual    factor that is left
    #     RGB      B^T (r / slope_b^2)     r / slope_b         1 / slope_b
    #     spikes   S^T (w_s^2 r)           w_s r               w_s
    #
    r_b, r_s = limited_residuals
    slope_of_blurry = slope_of(system.rgb.blurry)
    gradient_x, gradient_l = system.cameras.adjoint(
        r_b / slope_of_blurry, system.spikes.weights * r_s
    )
    # The gradients by display values.
    colour_change = gradient_x * slope_of(z)
    gradient_grey = gradient_l * _slope_of_grey(z, system.is_display)
    # A Newton step of the grey value.
    grey_change = gradient_grey / (precision + PRIOR_PRECISION)
    return (
        colour_change.clamp(-MOST_PULL, MOST_PULL),
        grey_change.clamp(-MOST_PULL, MOST_PULL),
    )


def _grey_precision(system: System) -> Tensor:
    """Return 1 / variance (H, W) of the grey display values that the spikes measure.

    Each spike equation adds its weight w_s^2 to the pixels that it sees: S^T w_s^2. The square of
    the slope turns 1 / variance of light into 1 / variance of display values. E.g. an error of 0.02
    in light (w_s^2 = 2500) at a slope of 2 is an error of 0.01 in display values: 2500 * 2^2 =
    1 / 0.01^2.
    """
    in_light = system.cameras.adjoint_of_spikes(system.spikes.weights**2)  # (1, H, W)
    slope = _slope_of_grey(system.rgb.blurry, system.is_display)
    return in_light[0] * slope[0] ** 2


def _slope_of_grey(z: Tensor, is_display: bool) -> Tensor:
    """Return the slope (1, H, W) from grey display values to what the spike camera integrates.

    If the camera integrates display values (`is_display`), the slope is 1. z: (3, H, W).
    """
    return torch.ones_like(z[:1]) if is_display else slope_of(luma(z))


def _display_of(integrated: Tensor, is_display: bool) -> Tensor:
    """Return the display values of what the spike camera integrated, in the same shape.

    is_display: True if the camera integrates display values. False if it integrates light.
    """
    return integrated.clamp(0, 1) if is_display else display_of_light(integrated)

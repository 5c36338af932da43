"""Say how exactly two spikes of a pixel measure its mean grey value in the time between them.

spike_equations.py measures the grey value y = n / (gain (end - begin)). The pixel has passed n
thresholds of light in the time from begin to end, in planes. The error of n has two causes:

    rounding      the times of both spikes are rounded to whole planes. Each rounding has the
                  variance 1/12 plane^2, so the time between them has the variance 1/6. An error of
                  one plane changes n by the rate r, so n has the variance r^2 / 6
    thresholds    each threshold differs from the mean threshold by chance. The standard deviation
                  is j = JITTER thresholds, so n thresholds have the variance j^2 n

    var(n) = r^2 / 6 + j^2 n        r = n / (end - begin), the rate in spikes per plane

The variance of Poisson noise would be n, which is far larger. E.g. an interval between two
neighbouring spikes (n = 1) at 0.12 spikes per plane: var(n) = 0.0024 + 0.0004 = 0.0028, so the
error of n is 0.05. One interval measures the light within about 5 %.

Errors of the motion and of the optics add sigma_s, in display values. So the error is computed in
display values, and at the end it is turned into the unit of y, by the slope of light over display
values.

What must stay: the errors. The weight of a spike equation is 1 / (error of y). The fusion operator
"motion" (models/fusion/fusion_motion.py) improves frames by learned steps along the motion. Its
network was trained with these weights.

Tests notice only errors that are far too small. The tests pass with much larger values of SIGMA_S
and JITTER, e.g. 0.3 and 0.5, so measure the effect of another value
(docs/benchmarks/quality_details.md, "Its constants").
"""

import torch
from torch import Tensor

from data.motion.joint.values import DARK, display_of_light, slope_of
from data.spike.pictures import DISPLAY_GAMMA

# sigma_s: the error of a spike equation that motion and optics cause, in display values. 0.02 is
# about 5 of 255. sigma_s matters for bright pixels, because their other errors are smaller. With a
# smaller value, a motion that is a little wrong would change bright pixels. With a larger value,
# the frame z would stay nearer to the first estimate z_0. The value is chosen by hand.
SIGMA_S = 0.02
# j: standard deviation of a threshold, as a share of the threshold. j matters for intervals with
# many spikes. E.g. 50 spikes in 100 planes: var(n) = 0.04 by rounding + 0.02^2 * 50 = 0.02 by the
# thresholds. With a larger value, such an interval would be trusted less. The value is chosen by
# hand.
JITTER = 0.02


def grey_errors(y: Tensor, r: Tensor, n: Tensor, is_display: bool) -> Tensor:
    """Return the expected error of each measured grey value y, in the unit of y.

    y: grey values, light or display values. r: spikes per plane. n: number of thresholds between
    two spikes, 0 where there is no interval. All three and the result are (M, h, w).
    is_display: whether the camera integrates display values, so that y is a display value.
    """
    # var(n) = r^2 / 6 + j^2 n. y is proportional to n, so both have the relative error
    # sqrt(var(n)) / n. Divide by at least 1, because n is 0 where there is no interval.
    variance_of_n = r**2 / 6 + JITTER**2 * n
    relative_error = variance_of_n.sqrt() / n.clamp(min=1)

    # The error in display values, and the slope dy / dz from display values to the unit of y. A
    # display value below DARK counts as DARK, as in `slope_of`.
    if is_display:
        error_of_display = y.clamp(DARK, 1) * relative_error
        slope = torch.ones_like(y)
    else:
        # z = y^(1 / 2.2), so the relative error of z is the relative error of y over 2.2.
        display = display_of_light(y)
        error_of_display = display.clamp(DARK, 1) * relative_error / DISPLAY_GAMMA
        slope = slope_of(display)

    # The errors of motion and optics are independent of the errors of n, so the squares add up.
    variance = error_of_display.square() + SIGMA_S**2
    return variance.sqrt() * slope

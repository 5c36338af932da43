"""Explain the spikes by the frames: find coefficients a, residuals r = s - F a, and weights w.

Each view has n compared pixels. At these pixels, s (n,) are the details of the summed spikes, and
F (n, 5) the details of the features of the frame (details.py). All views have the same coefficients
a (5,).

A spike pixel may show an object that the frame does not show at the same point, e.g. because of
parallax. Such a pixel has a large residual, and must not change the result much. So the weight w is
1 for most pixels, and below 1 for large residuals (Huber).

What must stay: every round (rounds.py) calls `explain` first, and computes its step with the same
residuals and weights.

Tests: tests/parts/data/test_registration_all_pixels.py tries the weights. Without weights, whole
fits change so little that no test fails, but lab/calibration_trials.py shows other bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.cameras.registration.details import Details


@dataclass(frozen=True)
class Explanation:
    """The coefficients of the features with which the frames explain the spikes best."""

    a: np.ndarray  # (5,), the coefficients of the features
    residuals: list[np.ndarray]  # r (n,) of the compared pixels of each view
    weights: list[np.ndarray]  # w (n,) of the same pixels of each view, 1 or less
    explained: float  # fraction of the variance of s that F a explains, e.g. 0.9


# A residual above this number of standard deviations gets a weight below 1. If the noise is normal,
# this is 1 residual in 80. With a smaller number, many good pixels would get a smaller weight, too.
# In the scene of test_registration_fit.py, whose true offset is 0, the fit finds 0.03 planes with
# this limit, and 0.17 planes without a limit.
HUBER_DEVIATIONS = 2.5
# The standard deviation of normal noise is 1.4826 times the median of its absolute values. So the
# median of the residuals gives their standard deviation. A few large residuals hardly change the
# median.
DEVIATION_OF_MEDIAN = 1.4826


def explain(views: Sequence[Details]) -> Explanation:
    """Find the coefficients with which the frames explain the spikes best.

    The equations are solved twice: first with all weights 1, and then with the weights of the first
    residuals. The result has the second coefficients, the second residuals, and their weights.
    """
    # The compared pixels of each view.
    features = []  # F (n, 5) of each view
    spikes = []  # s (n,) of each view
    for details in views:
        features.append(details.features[details.is_compared].astype(float))
        spikes.append(details.spikes[details.is_compared].astype(float))

    weights = [np.ones(len(s)) for s in spikes]  # w (n,) of each view
    for _ in range(2):
        a = _coefficients(features, spikes, weights)
        # r (n,) of each view
        residuals = [s - F @ a for F, s in zip(features, spikes, strict=True)]
        # All views have one limit. If all residuals are 0, the limit would be 0. But
        # `huber_weights` divides by the limit, so 1e-9 is added.
        sizes = np.abs(np.concatenate(residuals))
        limit = HUBER_DEVIATIONS * DEVIATION_OF_MEDIAN * np.median(sizes) + 1e-9
        weights = [huber_weights(r, limit) for r in residuals]

    # The fraction of s that F a explains: 1 if all residuals are 0, and 0 if F a explains nothing.
    square_of_residuals = sum((r**2).sum() for r in residuals)
    square_of_spikes = sum((s**2).sum() for s in spikes)
    explained = float(1 - square_of_residuals / square_of_spikes)
    return Explanation(a, residuals, weights, explained)


def _coefficients(
    features: list[np.ndarray], spikes: list[np.ndarray], weights: list[np.ndarray]
) -> np.ndarray:
    """Return the coefficients a (5,) with the smallest weighted sum of (s - F a)^2.

        a = (F' W F)^-1 F' W s     F' W F and F' W s are summed over the views, W = diag(w)

    features, spikes, weights: F (n, 5), s (n,) and w (n,) of each view.
    """
    FWF = 0.0  # F' W F, (5, 5)
    FWs = 0.0  # F' W s, (5,)
    for F, s, w in zip(features, spikes, weights, strict=True):
        WF = F * w[:, None]
        FWF = FWF + WF.T @ F
        FWs = FWs + WF.T @ s
    # If a feature is 0 everywhere, the equations can be solved only with an addition to the
    # diagonal. 1e-5 of the diagonal hardly changes the coefficients (chosen by hand). If a diagonal
    # element is 0, 1e-5 of it is 0, too, so 1e-12 is added.
    added_to_diagonal = 1e-5 * np.diag(FWF) + 1e-12
    return np.linalg.solve(FWF + np.diag(added_to_diagonal), FWs)


def huber_weights(r: np.ndarray, limit: float) -> np.ndarray:
    """Return the weights of residuals r: 1 where |r| <= limit, and limit / |r| elsewhere.

    test_pixels_with_large_residuals_count_less notices other weights.
    """
    # E.g. with a limit of 2, residuals of 1, 2 and 4 have a size of 0.5, 1 and 2 limits. The
    # maximum turns the sizes into 1, 1 and 2, and the weights are 1, 1 and 1/2.
    size_in_limits = np.abs(r) / limit
    return 1 / np.maximum(1, size_in_limits)


def shared_noise(explanation: Explanation, sigma: float, stride: int) -> float:
    """Return the variance of a residual, times the number of compared pixels that share its noise.

    A round sums over pixels as if the noise of each pixel were independent. But after the blur,
    neighbours share their noise. E.g. if 20 pixels share it, a mean over 1000 pixels is only as
    exact as a mean over 50 independent pixels. The sums are right again if each pixel is given 20
    times its noise. So priors and variances of shifts are computed with this larger noise.

    sigma: sigma of the blur, in spike pixels. stride: distance of the compared pixels.
    """
    squares = []
    for r, w in zip(explanation.residuals, explanation.weights, strict=True):
        squares.append(r**2 * w)
    mean_square = np.concatenate(squares).mean()
    # After a Gaussian blur, the noise of two pixels at the distance d has the correlation
    # exp(-d^2 / (4 sigma^2)). The sum of these correlations over all pixels is 4 pi sigma^2. This
    # is the number of pixels that share the noise of one pixel, e.g. 18 for sigma 1.2. Only one of
    # stride^2 pixels is compared.
    sharing_pixels = 4 * np.pi * sigma**2 / stride**2
    return mean_square * sharing_pixels

"""Compute the details of spikes and frames, which a round of the fit compares.

A round improves the matrix and the times of the estimate once (rounds.py). "Details" are what a
band-pass filter keeps of an image: structures between sigma and 8 sigma pixels, without slow
changes of brightness and without the noise of single pixels. At the present matrix and times, a
view (a blurry frame and its spikes) has two kinds of details:

    s  (h, w)       details of the summed spikes of the exposure
    F  (h, w, 5)    details of five features of the frame, at the points of the frame to which the
                    matrix maps the spike pixels

rounds.py calls `frame_features` and `comparable_views`. The equations of a round use `Details`.

What must stay: spikes and frame get equal blur and equal filters, and show the same points and
times, because they are compared pixel by pixel.

Tests (in tests/parts/data), and what they notice:

    test_registration_fit.py           a changed blur of the frame, a changed filter, a changed time
                                       of the rows
    test_registration_all_pixels.py    a changed variance of the counts
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from data.cameras.calibration import scale_of
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.view import LEAST_REACH, Features, Pair, blur


class Noise(NamedTuple):
    """Expected squared noise of the details of a view, summed over the compared pixels."""

    of_sums: float  # noise of the summed spikes of the exposure
    # Noise of the spikes in 2 `reach` planes (read-outs of the spike camera) around the start of
    # the exposure, or around its end.
    of_ends: float


@dataclass(frozen=True)
class Details:
    """The details of one view, with the present matrix and times.

    Details are computed only at each `stride`-th pixel of the plane, in both directions. E.g. with
    stride 2, a plane of 100 x 100 pixels has details of 50 x 50 pixels, which is (h, w).
    """

    spikes: np.ndarray  # s (h, w), details of the summed spikes
    features: np.ndarray  # F (h, w, 5), details of the features of the frame at the same pixels
    # Details (h, w) of the spikes per plane, around the start of the exposure and around its end.
    # E.g. with reach = 8, `rate_at_start` is from the 8 planes before the start and the 8 planes
    # after it.
    rate_at_start: np.ndarray
    rate_at_end: np.ndarray
    reach: float  # number of planes on each side of start and end
    is_compared: np.ndarray  # bool (h, w), the pixels to compare. n is the number of these pixels
    noise: Noise
    stride: int  # distance of the pixels, in spike pixels


def frame_features(estimate: Estimate, sigma: float) -> list[Features]:
    """Return the features of each frame, blurred as much as spikes that are blurred by `sigma`.

        sigma_in_frame^2 + 1/12 = (sigma^2 + 1/12) scale^2

    scale is the number of RGB pixels per spike pixel. sigma is in spike pixels, and sigma_in_frame
    in RGB pixels. A pixel blurs by its area: 1/12 is the variance of a square of side 1. The
    variances of two blurs add up.
    """
    scale = scale_of(estimate.matrix)
    variance = (sigma**2 + 1 / 12) * scale**2 - 1 / 12
    # E.g. sigma 1.2 and scale 0.2 (a spike pixel is much smaller than an RGB pixel) give the
    # variance -0.02, which has no root. So sigma_in_frame is at least half an RGB pixel (variance
    # 0.25).
    sigma_in_frame = np.sqrt(max(variance, 0.25))
    return [pair.features(sigma_in_frame) for pair in estimate.pairs]


def comparable_views(estimate: Estimate, features: list[Features], sigma: float) -> list[Details]:
    """Return the details of each view that can be compared at the present estimate.

    A view is left out if its stream is too short, or if none of its pixels can be compared.

    features: the result of `frame_features`, for the frame of each pair.
    sigma: size of the details in spike pixels.
    """
    views = []
    for pair, features_of_pair in zip(estimate.pairs, features, strict=True):
        details = details_of(estimate, pair, features_of_pair, sigma)
        if details is not None and details.is_compared.any():
            views.append(details)
    return views


def details_of(estimate: Estimate, pair: Pair, features: Features, sigma: float) -> Details | None:
    """Return the details of a view at the present estimate.

    Returns None if the times are fitted, but the stream has too few planes around the exposure to
    compute the rates at its start and end.

    features: the features of the frame. sigma: size of the details in spike pixels.
    """
    start, end = estimate.ends_of_exposure()  # (h,) each, the times of each row
    reach = pair.reach(start, end)
    if estimate.fits_times and reach < LEAST_REACH:
        return None
    # If the times are not fitted, the reach may be 0. In this case nothing uses the rates at start
    # and end. But the rates are computed, and divided by the reach, so the reach must be at least
    # 1.
    reach = max(reach, 1.0)
    stride = _stride_of(sigma)

    # Spike counts of every spike pixel, (height, width): in the exposure, in the 2 * reach planes
    # around its start, and in the 2 * reach planes around its end.
    exposure_counts = pair.spikes_until(end) - pair.spikes_until(start)
    around_start = pair.spikes_until(start + reach) - pair.spikes_until(start - reach)
    around_end = pair.spikes_until(end + reach) - pair.spikes_until(end - reach)

    # From here on, arrays (h, w) have one element for every `stride`-th spike pixel in x and in y.
    # The positions of these spike pixels in the frame are u and v, (h, w) each. Neighbours in these
    # arrays are `stride` spike pixels apart, so details of `sigma` spike pixels are `sigma /
    # stride` elements large.
    u, v = _places_in_frame(estimate.matrix, exposure_counts.shape, stride)
    features_at_places = _details_at(features.values, u, v, sigma_in_places=sigma / stride)
    is_compared = _compared_pixels(
        estimate, u, v, overexposed=features.overexposed, sigma=sigma, stride=stride
    )

    def details_of_counts(counts: np.ndarray) -> np.ndarray:
        """Return the details (h, w) of spike counts (height, width)."""
        return _band_pass(counts, sigma)[::stride, ::stride]

    return Details(
        spikes=details_of_counts(exposure_counts),
        features=features_at_places,
        rate_at_start=details_of_counts(around_start) / (2 * reach),  # spikes per plane
        rate_at_end=details_of_counts(around_end) / (2 * reach),
        is_compared=is_compared,
        noise=_noise(
            exposure_counts,
            length=estimate.length,
            is_compared=is_compared,
            sigma=sigma,
            reach=reach,
        ),
        reach=reach,
        stride=stride,
    )


def _stride_of(sigma: float) -> int:
    """Return the stride, in spike pixels, at which details of size `sigma` are computed.

    Large details vary slowly, so fewer pixels are enough:

        sigma     1.2    2    3    10
        stride    1      1    2    6
    """
    return max(1, int(sigma / 1.5))


# ---- Where a spike pixel is in the frame -------------------------------------------------------


def _places_in_frame(
    matrix: np.ndarray, size: tuple[int, int], stride: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the column u and the row v of the frame for each `stride`-th spike pixel.

    u and v are (h, w) float32, as cv2.remap needs them.

    matrix: M, spike pixel -> RGB pixel. size: (height, width) of the plane.
    """
    height, width = size
    y = np.arange(0, height, stride, dtype=np.float32)
    x = np.arange(0, width, stride, dtype=np.float32)
    x, y = np.meshgrid(x, y)  # (h, w) each
    # (u, v, depth) = M (x, y, 1), and the position is (u / depth, v / depth).
    M = matrix
    u = M[0, 0] * x + M[0, 1] * y + M[0, 2]
    v = M[1, 0] * x + M[1, 1] * y + M[1, 2]
    depth = M[2, 0] * x + M[2, 1] * y + M[2, 2]
    return (u / depth).astype(np.float32), (v / depth).astype(np.float32)


def _compared_pixels(
    estimate: Estimate,
    u: np.ndarray,
    v: np.ndarray,
    overexposed: np.ndarray,
    sigma: float,
    stride: int,
) -> np.ndarray:
    """Return which pixels are compared, bool (h, w). Three kinds of pixels are left out:

        * pixels outside of the frame or near its edge, because the blur repeats edge pixels there
        * pixels that are overexposed in the frame, because the frame does not show their light
        * pixels at the edge of the spike plane, because the blur repeats edge pixels there, too

    No test guards the first two kinds: test_registration_fit.py passes with a margin of 0, and with
    overexposed pixels. So after a change, measure with lab/calibration_trials.py whether the fits
    are as exact as before.

    u, v: column and row of the pixels in the frame, (h, w).
    overexposed: fraction of overexposed pixels around each pixel of the frame, (H, W).
    sigma: size of the details in spike pixels. stride: distance of the pixels in spike pixels.
    """
    # A pixel is near the edge of the frame if its distance from the edge is at most this margin:
    # (sigma + 1) / 2 spike pixels, in RGB pixels. E.g. with sigma 3 and 2 RGB pixels per spike
    # pixel, the margin is 2 spike pixels, or 4 RGB pixels.
    margin = (sigma + 1) * scale_of(estimate.matrix) / 2
    height, width = overexposed.shape
    is_compared = (u > margin) & (v > margin)
    is_compared &= (u < width - 1 - margin) & (v < height - 1 - margin)

    # `overexposed` is blurred, so it is a little above 0 even far from an overexposed lamp.
    # Therefore a fraction below 2 % (chosen by hand) is accepted.
    is_compared &= cv2.remap(overexposed, u, v, cv2.INTER_LINEAR) < 0.02

    # Leave out two spike pixels at each edge of the plane. The pixels of the result are `stride`
    # spike pixels apart. So `border` is 2 for stride 1, and 1 for a larger stride.
    border = math.ceil(2 / stride)
    is_compared[:border] = False
    is_compared[-border:] = False
    is_compared[:, :border] = False
    is_compared[:, -border:] = False
    return is_compared


# ---- The noise of the spikes -------------------------------------------------------------------


def _noise(
    exposure_counts: np.ndarray, length: float, is_compared: np.ndarray, sigma: float, reach: float
) -> Noise:
    """Return the expected squared noise of the details, summed over the compared pixels.

        n v / (4 pi sigma^2)        n: number of compared pixels
                                    v: variance of a spike count, the mean over the pixels

    E.g. 10000 pixels, the variance 0.2 and sigma 2: 10000 * 0.2 / 50 = 40.

    The divisor is the effect of the blur: a Gaussian of `sigma` divides the variance of independent
    noise by 4 pi sigma^2. For `of_sums`, the spikes of the whole exposure are counted. For
    `of_ends`, the spikes of 2 reach planes are counted.

    exposure_counts: spikes of the exposure, of every pixel of the plane (height, width).
    length: length of the exposure in planes. is_compared: the compared pixels, bool (h, w).
    sigma: size of the details in spike pixels.
    reach: number of planes on each side of start and end.
    """
    # A blur of 3 pixels removes most of the noise of the counts. So the blurred counts, divided by
    # the planes, are taken as the expected firing rate of each pixel.
    rates = np.maximum(blur(exposure_counts, 3.0), 0) / length  # spikes per plane, of every pixel
    # n / (4 pi sigma^2). The number must be an np.float64, because `_noise_of_times` (equations.py)
    # divides the noise by an np.float32. From a Python number, the quotient would be an np.float32,
    # and the last bits of the results would differ.
    independent_pixels = np.float64(is_compared.sum() / (4 * np.pi * sigma**2))
    return Noise(
        of_sums=independent_pixels * variance_of_counts(rates, planes=length),
        of_ends=independent_pixels * variance_of_counts(rates, planes=2 * reach),
    )


def variance_of_counts(rates: np.ndarray, planes: float) -> float:
    """Return the variance of the spike counts of a number of planes, the mean over the pixels.

    A pixel adds up light, and only its first charge is random. E.g. if 4.3 spikes are expected, the
    pixel counts 4 spikes, and with the probability p = 0.3 a fifth spike. So the variance of the
    count is the variance of the fifth spike, p (1 - p) = 0.21.

    rates: spikes per plane of each pixel, an array of any shape.

    test_a_count_varies_by_its_part_behind_the_point has this example.
    """
    p = rates * planes % 1  # the fractional part: 0.3 of 4.3
    return float((p * (1 - p)).mean())


# ---- The band-pass filter ----------------------------------------------------------------------


def _band_pass(image: np.ndarray, sigma: float) -> np.ndarray:
    """Keep the details of an image (h, w) that are between `sigma` and 8 `sigma` pixels large."""
    side = _odd(8 * sigma)
    blurred = blur(image, sigma)
    return blurred - cv2.blur(blurred, (side, side))


def _details_at(
    features: np.ndarray, u: np.ndarray, v: np.ndarray, sigma_in_places: float
) -> np.ndarray:
    """Return the details of the features at positions in the frame, (h, w, 5).

    features: (H, W, 5), already blurred. So only their slow part, a mean over 8 sigma, must be
    subtracted.
    u, v: column and row of each position, (h, w). sigma_in_places: size of the details, in elements
    of u and v.
    """
    at_places = cv2.remap(features, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    side = _odd(8 * sigma_in_places)
    slow_part = cv2.blur(at_places, (side, side))
    return at_places - slow_part


def _odd(x: float) -> int:
    """Return the smallest odd number at or above the integer part of x: 48.7 -> 49, 47.2 -> 47.

    The side of a box filter must be odd, so that the box has a middle pixel.
    """
    # An odd number has the last bit 1. E.g. 48 is 110000, and with the last bit 1 it is 49.
    return int(x) | 1

"""Find where and when two cameras saw the same scene, from blurry frames and their spikes.

`fit` finds the place and the time. `data/cameras/self_calibration.py` calls `fit` for
`spike.calibration` "auto", and `scripts/calibrate.py` calls it for recordings of a calibration.

Idea. The sum of the spikes of an exposure, mapped to the RGB camera, is the blurry frame. If the
map or the times are wrong, the sum and the frame differ. So we look for the map and the times with
the smallest difference.

Symbols of one spike pixel. "Details" are what a band-pass filter keeps of an image: structures of a
chosen size. The filter removes slow changes of brightness and the noise of single pixels.

    M  the matrix (3, 3) that maps the spike pixel to a place in the frame
    s  the details of the summed spikes of the pixel
    F  the details of five features of the frame at the place of the pixel:
       three colours, response curve, lens blur (`view.Pair.features`)
    a  the five coefficients of the features
    r  the residual, r = s - F a

F depends on M. s depends on three times of the exposure, in planes: its middle, its length, and the
roll. The roll is for a rolling shutter, which exposes the rows at the bottom later. A row at y is
exposed roll y planes later than the middle row, where y goes from -1 to 1 from the top of a square
plane to its bottom. If M, the times and a are right, then r is noise.

A round improves M, the times and a together (Gauss-Newton). With n compared pixels, k unknowns,
and ' for a transposed matrix:

    J = dr / d(changes of M, middle, length, roll, a)      (n, k)
    W = diag(w)                                            (n, n)  w is small where r is large
    H = J' W J,  g = J' W r                                (k, k), (k,)  summed over all views
    step = -(H + P)^-1 (g + P p)                           (k,)

A view is one blurry frame with its spikes. P and p come from the priors: a time is probably near
the value that the files say, its nominal value. P (k, k) is diagonal and holds the weight of each
prior, and p (k,) holds how far each time is now from its nominal value.

Order of the rounds. A round uses details of one size, first coarse, then fine, and all views
together. In the last rounds, parts of the plane are matched separately (parts.py).
Objects at other depths move differently (parallax), so the spread of the parts gives the error of
the matrix.

A value that the clip does not determine is not applied (`FitResult.is_applied`). If everything
moves at one speed (a pan), a shift of the camera and a time offset look the same. Then the offset
keeps its nominal value (`times.LEAST_OWN_MIDDLE`). The shift may be wrong if the true offset is
another one, but both together are right.

To change this file:

    * Names, and how the code is split into functions, are free.
    * The same clip must give the same numbers, equal to the bit, because results are kept between
      runs. Another order of a sum or of a product changes the last bits. To check a change, run
      `python -m lab.calibration_trials` before and after it. The program fits 50 random pairs of
      cameras in about three minutes, and "bits" in its output must stay.
    * If the bits must change, raise FORMAT in data/cameras/self_calibration.py. Then old results
      are computed anew. The last lines of the same program say whether the fits are still as exact.

Tests: tests/parts/data/test_registration_*.py try the steps of a round alone, e.g. they compare J
with finite differences. tests/parts/data/test_self_calibration.py and
tests/parts/scripts/test_calibrate.py find simulated cameras again.
"""

import math
from collections.abc import Sequence

import cv2
import numpy as np

from data.cameras.registration.estimate import Estimate
from data.cameras.registration.matrix import mean_distance, nominal
from data.cameras.registration.result import FitResult
from data.cameras.registration.rounds import best_estimate
from data.cameras.registration.view import Pair, View

# Larger planes are binned (2 x 2 or 3 x 3 pixels become one) to at most this number of pixels. With
# more pixels, a fit would take longer. With fewer pixels, fine details would be lost.
MOST_PIXELS = 120_000
# Largest offset in planes that is searched, if the caller gives no other limit.
MOST_OFFSET = 20.0


def fit(
    views: Sequence[View],
    start: np.ndarray,
    light: str = "linear",
    model: str | None = "similarity",
    most_offset: float = MOST_OFFSET,
) -> FitResult:
    """Fit the matrix and times that explain the spikes best.

    views: at least one, all of one size and with exposures of one length.
    start: the matrix (3, 3) to begin with, spike pixel -> RGB pixel.
    light: what the spikes integrate, "linear" light or "display" values.
    model: which changes of the matrix the last rounds fit: "similarity" (shift, scale and turn),
    "affine" or "homography", see MODELS. Earlier rounds fit shift, scale and turn with any of them.
    None: the matrix is fixed, and its error is infinite.
    most_offset: largest offset that is searched, in planes.
    """
    # Large planes are binned, and their frames as well: factor x factor pixels become one. The
    # factor is 1 for planes of up to MOST_PIXELS pixels.
    height, width = views[0].stream.shape[1:]
    factor = int(np.ceil(np.sqrt(height * width / MOST_PIXELS)))
    pairs = [Pair(view, factor, light) for view in views]
    # A binned pixel covers factor x factor pixels, as a pixel of a spike camera covers pixels of
    # the frame. So `nominal` gives this matrix, too. It holds for the plane and for the frame.
    to_pixel = nominal(spike=(1, 1), rgb=(factor, factor))  # binned pixel -> pixel
    to_binned = np.linalg.inv(to_pixel)
    start_of_binned = to_binned @ start @ to_pixel
    state = best_estimate(pairs, start_of_binned, model, most_offset)

    # Back to the pixels before binning. A binned pixel has factor^2 times the spikes of a pixel, so
    # the gain is divided. A pixel of the binned frame is `factor` pixels of the frame wide, so
    # distances are multiplied.
    matrix = to_pixel @ state.matrix @ to_binned
    gain, dark = gain_and_dark(state)
    nominal_planes = pairs[0].count
    nominal_middle = nominal_planes / 2
    offset_error, share_error = state.time_errors
    # The last rounds fit the matrix and keep the offset. If the offset is wrong, the matrix is also
    # wrong by `error_by_offset`. The two errors are taken as independent, so their squares add up.
    matrix_error = math.hypot(state.matrix_error, state.error_by_offset)
    return FitResult(
        matrix=matrix,
        offset=state.middle - nominal_middle,
        share=state.length / nominal_planes,
        gain=gain / factor**2,
        dark=dark / factor**2,
        errors=(matrix_error * factor, offset_error, share_error),
        explained=state.explained,
        moved=mean_distance(start, matrix, width, height),
        residuals=tuple((state.residuals * factor).tolist()),
    )


def gain_and_dark(estimate: Estimate) -> tuple[float, float]:
    """Fit spikes per plane of a (binned) pixel = gain light + dark, by least squares.

    gain = cov(light, rate) / var(light)
    dark = mean(rate) - gain mean(light)
    """
    # All pixels of all pairs, in one row.
    light = np.concatenate([_light(estimate, pair).ravel() for pair in estimate.pairs]).astype(
        float
    )
    rate = np.concatenate([_rate(estimate, pair).ravel() for pair in estimate.pairs]).astype(float)
    covariance = ((light - light.mean()) * (rate - rate.mean())).mean()
    # Frames of one brightness have no variance. 1e-9: no division by 0.
    gain = float(covariance / max(light.var(), 1e-9))
    dark = float(rate.mean() - gain * light.mean())
    return gain, dark


def _light(estimate: Estimate, pair: Pair) -> np.ndarray:
    """Return the grey light (h, w) of a frame at the places of the spike pixels."""
    height, width = pair.sums.shape[1:]
    # With WARP_INVERSE_MAP, `estimate.matrix` maps a pixel of the result to one of the frame.
    return cv2.warpPerspective(
        pair.light.mean(axis=2),
        estimate.matrix,
        (width, height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )


def _rate(estimate: Estimate, pair: Pair) -> np.ndarray:
    """Return the spikes per plane (h, w) during the exposure of the middle row."""
    # The same start and end for each row, (h,): the roll is left out.
    start = np.full(len(estimate.coordinates.y), estimate.middle - estimate.length / 2)
    end = np.full(len(estimate.coordinates.y), estimate.middle + estimate.length / 2)
    return (pair.spikes_until(end) - pair.spikes_until(start)) / estimate.length

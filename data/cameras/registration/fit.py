"""Find where and when two cameras saw the same scene, from blurry frames and their spikes.

`fit` finds a matrix, which maps a spike pixel to its place in the RGB frame, and three times of the
exposure. `data/cameras/self_calibration.py` calls it for `spike.calibration` "auto", and
`scripts/calibrate.py` for recordings of a calibration.

The idea: the sum of the spikes of an exposure, mapped to the RGB camera, shows the same as the
blurry frame. If the matrix or the times are wrong, the sum and the frame differ. So the fit looks
for the matrix and the times with the smallest difference, by Gauss-Newton. All modules of this
folder (listed in its `__init__.py`) use the same symbols. For one spike pixel, they are

    M  the matrix (3, 3) that maps the spike pixel to a point of the frame
    s  the details of the summed spikes of the pixel
    F  the details of five features of the frame at this point: three colours, the square of grey
       (for the response curve), the Laplacian of grey (for the blur of the lens)
    a  the five coefficients of the features
    r  the residual, r = s - F a

"Details" are what a band-pass filter keeps of an image, e.g. edges and texture. F depends on M. s
depends on three times of the exposure: its middle, its length, and the roll (a rolling shutter
exposes the rows at the bottom later than the rows at the top). The unit of times is a plane, i.e.
one read-out of the spike camera. If M, the times and a are right, then r is noise.

The fit runs rounds (rounds.py). A round goes from the present M and times to better values:

    details.py        compute s and F
    explanation.py    find a, the residuals r, and their weights
    all_pixels.py     coarse details: find a step of M and the times that makes r smaller
    parts.py          fine details: find a step of M only, in place of all_pixels.py
    estimate.py       change M and the times by the step, within limits

If the clip does not determine a value, the value is not applied. E.g. in a pan (everything moves at
one speed), a shift of the camera and a later exposure look the same. So the middle of the exposure
stays as the files say, and only the shift is fitted. If the files are wrong, the shift is wrong,
too, but the two errors cancel in this clip.

What must stay, in all modules of this folder: the same clip gives the same numbers, equal to the
bit, because results are kept between runs. Another order of a sum or of a product changes the last
bits. To check a change, run `python -m lab.calibration_trials` before and after it (three minutes).
The line "bits" of its output must stay, and its last lines say whether the fits are still as exact.
If the bits must change, raise FORMAT in data/cameras/self_calibration.py, so that kept results are
computed again. Free to change: names, and how the code is split into functions.

Tests: tests/parts/data/test_registration_*.py try whole fits and single steps.
tests/parts/data/test_self_calibration.py and tests/parts/scripts/test_calibrate.py find simulated
cameras again.
"""

import math
from collections.abc import Sequence

import cv2
import numpy as np

from data.cameras.registration.estimate import Estimate
from data.cameras.registration.matrix import mean_distance, nominal_matrix
from data.cameras.registration.result import FitResult
from data.cameras.registration.rounds import best_estimate
from data.cameras.registration.view import Pair, View

# Larger planes are binned (2 x 2 or 3 x 3 pixels become one) to at most this number of pixels. With
# more pixels, a fit would take longer. With fewer pixels, fine details would be lost.
MOST_PIXELS = 120_000
# Largest offset in planes that is searched, if the caller gives no other limit. If you raise the
# limit, raise AROUND in self_calibration.py, too: the fit needs the planes that it searches.
MOST_OFFSET = 20.0


def fit(
    views: Sequence[View],
    start: np.ndarray,
    light: str = "linear",
    model: str | None = "similarity",
    most_offset: float = MOST_OFFSET,
) -> FitResult:
    """Fit the matrix and times that explain the spikes best.

    views: frames with their spikes, at least one, all of one size and with exposures of one length.
    start: the matrix (3, 3) to begin with, spike pixel -> RGB pixel.
    light: what the spikes integrate, "linear" light or "display" values.
    model: changes of the matrix that the last rounds fit: "similarity" (shift, scale and turn),
    "affine" or "homography" (MODELS in matrix.py). The earlier rounds fit only shift, scale and
    turn, whatever the model is. None: the matrix stays as it is, and its error is infinite.
    most_offset: largest offset that is searched, in planes.
    """
    # Large planes and their frames are binned: factor x factor pixels become one. E.g. a plane of
    # 1000 x 1000 pixels has the factor 3, because 1000^2 / 3^2 is below MOST_PIXELS, and
    # 1000^2 / 2^2 is above it.
    height, width = views[0].stream.shape[1:]
    factor = int(np.ceil(np.sqrt(height * width / MOST_PIXELS)))
    pairs = [Pair(view, factor, light) for view in views]
    # `nominal_matrix` maps the pixels of a coarse grid to a fine grid, e.g. binned pixels to
    # pixels: with factor 2, binned pixel 0 is at 0.5, between the pixels 0 and 1. Planes and frames
    # are binned by the same factor, so one matrix serves both.
    to_pixel = nominal_matrix(spike=(1, 1), rgb=(factor, factor))  # binned pixel -> pixel
    to_binned = np.linalg.inv(to_pixel)
    # From right to left: binned spike pixel -> spike pixel -> RGB pixel -> binned RGB pixel.
    start_of_binned = to_binned @ start @ to_pixel
    estimate = best_estimate(pairs, start_of_binned, model, most_offset)

    # Convert the results from binned pixels to the pixels of the files. If the gain is not
    # converted, test_a_camera_is_found_from_a_start_that_is_off fails for binned planes.
    #
    #     matrix       spike pixel -> binned spike pixel -> binned RGB pixel -> RGB pixel
    #     gain, dark   divided by factor^2, because a binned spike pixel has the spikes of factor^2
    #                  pixels
    #     distances    multiplied by factor, because a binned RGB pixel is factor RGB pixels wide
    matrix = to_pixel @ estimate.matrix @ to_binned
    gain, dark = _gain_and_dark(estimate)
    offset_error, share_error = estimate.time_errors
    # The last rounds fit only the matrix, with the offset of the earlier rounds. The error of this
    # offset causes an additional error of the matrix, `error_by_offset`. The two errors are taken
    # as independent, so their squares add up. test_registration_fit.py does not notice if
    # `error_by_offset` is left out.
    matrix_error = math.hypot(estimate.matrix_error, estimate.error_by_offset)
    return FitResult(
        matrix=matrix,
        offset=estimate.offset,
        share=estimate.length / estimate.nominal_planes,
        gain=gain / factor**2,
        dark=dark / factor**2,
        errors=(matrix_error * factor, offset_error, share_error),
        explained=estimate.explained,
        moved=mean_distance(start, matrix, width, height),
        residuals=tuple((estimate.remaining_shifts * factor).tolist()),
    )


# ---- The brightness of the spikes --------------------------------------------------------------


def _gain_and_dark(estimate: Estimate) -> tuple[float, float]:
    """Fit rate = gain * light + dark, by least squares. rate: spikes per plane of a binned pixel.

    gain = cov(light, rate) / var(light)
    dark = mean(rate) - gain mean(light)

    E.g. two pixels with the light 0.2 and 0.6 and the rates 0.11 and 0.31: gain 0.5, dark 0.01.
    """
    # All pixels of all pairs, in one row.
    pairs = estimate.pairs
    light = np.concatenate([_light(estimate, pair).ravel() for pair in pairs]).astype(float)
    rate = np.concatenate([_rate(estimate, pair).ravel() for pair in pairs]).astype(float)
    covariance = ((light - light.mean()) * (rate - rate.mean())).mean()
    # Frames of one brightness have no variance. 1e-9 prevents a division by 0.
    gain = float(covariance / max(light.var(), 1e-9))
    dark = float(rate.mean() - gain * light.mean())
    return gain, dark


def _light(estimate: Estimate, pair: Pair) -> np.ndarray:
    """Return the grey light (h, w) of a frame at the positions of the spike pixels."""
    height, width = pair.sums.shape[1:]  # size of the spike plane
    # By default, OpenCV expects a matrix from the source (frame) to the result (spike plane).
    # estimate.matrix maps in the opposite direction, so WARP_INVERSE_MAP is needed.
    return cv2.warpPerspective(
        pair.integrated.mean(axis=2),
        estimate.matrix,
        (width, height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )


def _rate(estimate: Estimate, pair: Pair) -> np.ndarray:
    """Return the spikes per plane (h, w) during the exposure of the middle row."""
    # The same start and end for each row, (h,), because the roll is left out. The times are no
    # whole planes, so `spikes_until` interpolates.
    height = pair.sums.shape[1]
    start = np.full(height, estimate.middle - estimate.length / 2)
    end = np.full(height, estimate.middle + estimate.length / 2)
    return (pair.spikes_until(end) - pair.spikes_until(start)) / estimate.length

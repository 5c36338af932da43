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
       three colours, response curve, lens blur (`Pair.features`)
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
together. In the last rounds, parts of the plane are matched separately (`State._step_from_parts`).
Objects at other depths move differently (parallax), so the spread of the parts gives the error of
the matrix.

A value that the clip does not determine is not applied (`FitResult.is_applied`). If everything
moves at one speed (a pan), a shift of the camera and a time offset look the same. Then the offset
keeps its nominal value (`LEAST_OWN_MIDDLE`). The shift may be wrong if the true offset is another
one, but both together are right.

To change this file:

    * Names, and how the code is split into functions, are free.
    * The same clip must give the same numbers, equal to the bit, because results are kept between
      runs. Another order of a sum or of a product changes the last bits. To check a change, run
      `python -m lab.calibration_trials` before and after it. The program fits 50 random pairs of
      cameras in about three minutes, and "bits" in its output must stay.
    * If the bits must change, raise FORMAT in data/cameras/self_calibration.py. Then old results
      are computed anew. The last lines of the same program say whether the fits are still as exact.

Tests: tests/parts/data/test_registration.py tries the steps of a round alone, e.g. it compares J
with finite differences. tests/parts/data/test_self_calibration.py and
tests/parts/scripts/test_calibrate.py find simulated cameras again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from data.cameras.calibration import scale_of, share_to_read
from data.spike.pictures import to_linear

# Larger planes are binned (2 x 2 or 3 x 3 pixels become one) to at most this number of pixels. With
# more pixels, a fit would take longer. With fewer pixels, fine details would be lost.
MOST_PIXELS = 120_000
# Largest offset in planes that is searched, if the caller gives no other limit.
MOST_OFFSET = 20.0
# The change of the sums with time is measured over MOST_REACH planes before and after a time. Near
# the ends of a stream there are fewer planes. The fit needs at least LEAST_REACH planes, because
# the change over fewer planes would be mostly noise. More than MOST_REACH planes would blur the
# change of fast motion: with 20, the scene of test_registration.py has an offset of 0.3 planes
# where 0 is true, and with 8 or 3 an offset of 0.03.
MOST_REACH = 8
LEAST_REACH = 3

# Small changes of the spike plane, as matrices on homogeneous coordinates (x, y, 1). x and y go
# from -1 to 1 along the longer side. The sum of the changes, each times its amount, is added to the
# identity matrix. For example, 0.01 of "right" and 0.02 of "larger" give [[1.02, 0, 0.01],
# [0, 1.02, 0], [0, 0, 1]]. The order is the order of the first columns of J.
CHANGES = np.array([
    [[0, 0, 1], [0, 0, 0], [0, 0, 0]],  # right
    [[0, 0, 0], [0, 0, 1], [0, 0, 0]],  # down
    [[1, 0, 0], [0, 1, 0], [0, 0, 0]],  # larger
    [[0, -1, 0], [1, 0, 0], [0, 0, 0]],  # turned
    [[1, 0, 0], [0, -1, 0], [0, 0, 0]],  # wider
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]],  # sheared
    [[0, 0, 0], [0, 0, 0], [-1, 0, 0]],  # nearer at the right
    [[0, 0, 0], [0, 0, 0], [0, -1, 0]],  # nearer at the bottom
], float)  # fmt: skip
# How many of CHANGES each model of the matrix uses: "affine" uses the first six.
MODELS = {"similarity": 4, "affine": 6, "homography": 8}

# Columns of J and of a step. Columns 0 ... 3 are changes of the matrix (right, down, larger,
# turned). Columns 4 ... 6 are the times, if they are fitted. The five coefficients a are the last.
MATRIX_CHANGES = 4  # number of columns for the matrix
MIDDLE_COLUMN = 4
LENGTH_COLUMN = 5
ROLL_COLUMN = 6
MATRIX_AND_TIMES = 7  # number of columns before the coefficients, if the times are fitted
FEATURES = 5  # number of features, and of coefficients
# Columns of the times in J and in a step, for slices.
TIME_COLUMNS = slice(MIDDLE_COLUMN, MATRIX_AND_TIMES)

# In the last rounds the plane is cut into PARTS x PARTS parts, which are matched separately. More
# parts have fewer pixels each, and their shifts are noisier.
PARTS = 5
# For the errors of the times, the plane is cut into TILES x TILES tiles. Pixels near one another
# have similar errors, e.g. all pixels of one moving object. A tile should hold these pixels
# together: with smaller tiles, the errors of the times would come out too small.
TILES = 4

# Size of the finest details in (binned) spike pixels, for the times and for the matrix. A time
# changes the sum of the spikes only by planes at the two ends of the exposure. This change is small
# and noisy, so it is measured on larger details.
TIME_SIGMA = 2.0
FINE_SIGMA = 1.2
# Standard deviations of the priors of the times. With wider priors, a clip with little motion would
# give times that are mostly noise. With narrower priors, a clip with motion could not change them.
SPREAD_OFFSET = 15.0  # planes
SPREAD_SHARE = 0.3  # of the planes of the exposure
SPREAD_ROLL = 0.1  # of the planes of the exposure; from the middle row to the bottom row
# Weight of a prior that keeps a value, as a multiple of the weight of the data.
KEEPS = 1e9

# ---- Limits: what a clip tells, and what counts as found ----
#
# Two measures decide whether a fitted time is used:
#
#     own(time) = |c - nearest sum of the other columns|^2 / |c|^2
#
#         c is the column of the time in J, and the other columns are those of the matrix and of
#         the coefficients. own is 0 if another value has the same effect on the residuals as the
#         time, so that the clip cannot tell them apart. It is 1 if no other value has a similar
#         effect. The noise of the spikes is subtracted from both squares. If nothing remains of
#         |c|^2, the time is not used (`State._middle_of`).
#
#     ratio(A, B) = unexplained(A) / unexplained(B)         unexplained = 1 - `explained`
#
#         A and B are two estimates for the same clip. Above 1, B explains the spikes better.
#
# Each limit lies between wrong results and right results that were measured:
#
#     measure                                    limit    wrong results    right results
#     own(middle)                                0.04     up to 0.002      from 0.044
#     own(length)                                0.15     up to 0.08       from 0.33
#     ratio(nominal offset, offset of the fit)   1.1      up to 1.094      from 1.116 (7 of 8)

# B is clearly better than A if ratio(A, B) > CLEARLY_BETTER (`_fits_clearly_better`). If the start
# is clearly better than the result of the rounds, the rounds have gone astray: in three pans,
# ratio(rounds, start) was 50 or more. With 1, a right result could fail by a little noise.
CLEARLY_BETTER = 1.1
# own(middle) above which the middle of the exposure is fitted. In a pan (everything moves at one
# speed), a later middle looks like a shift of the camera. The wrong results are four pans. With a
# limit of 0, aligned cameras that pan were moved by up to 3.6 RGB pixels, with a small error.
LEAST_OWN_MIDDLE = 0.04
# own(middle) up to which the offset is doubtful, because it may be right or wrong. Then the ratio
# decides: the offset is used only if the spikes are explained worse with the nominal offset, by the
# factor CLEARLY_BETTER. The wrong results are six clips with aligned clocks. Of the eight clips
# that needed their offset, one loses it, but its matrix makes up for it within 0.3 RGB pixels. In
# none of the 50 pairs of cameras of lab/calibration_trials.py is the offset doubtful: own(middle)
# is 0.84 or more.
DOUBTFUL_OWN_MIDDLE = 0.3
# own(length) above which the share counts as found. In a pan, a shorter exposure looks like a
# sharper lens. The wrong results are pans whose share was wrong by 0.03 or more.
LEAST_OWN_LENGTH = 0.15

# The limits below decide `FitResult.is_sure` and `FitResult.is_applied`. If one of them is left
# out, test_a_value_is_applied_if_it_is_sure_and_differs_from_the_start fails, or
# test_a_value_with_a_large_error_is_not_sure.

# The matrix counts as found if the frames explain at least this fraction of the variance of the
# spikes' details (another scene explains nothing), and if its error is at most FOUND_WITHIN_PX, in
# RGB pixels.
LEAST_EXPLAINED = 0.25
FOUND_WITHIN_PX = 0.5
# A value is sure if its error is at most this limit. On 100 random rigs, 95 % of the sure matrices
# were within 0.2 RGB pixels of the true matrix.
SURE_WITHIN_PX = 0.15  # error of the matrix, in RGB pixels
SURE_WITHIN_PLANES = 0.7  # error of the offset, in planes
SURE_WITHIN_SHARE = 0.03  # error of the share, which is a fraction of the planes
# A smaller change of matrix, offset or share is not applied. With 0, the noise of the fit would
# change a clip although its cameras agree.
LEAST_CHANGE_PX = 0.15
LEAST_CHANGE_PLANES = 0.75
LEAST_CHANGE_SHARE = 0.04
# A change must be at least this many times its error. Three standard errors are rarely chance.
LEAST_CHANGE_IN_ERRORS = 3


# ---- What goes in and what comes out -----------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A blurry frame and the spikes around its exposure.

    E.g. with before = 20 and count = 40, the planes 20 ... 59 of the stream are the exposure.

    A stream of one plane (before = 0, count = 1) may hold the spike counts of a whole exposure.
    Then only the matrix is fitted.
    """

    frame: np.ndarray  # (H, W, 3) uint8, R, G, B
    stream: np.ndarray  # spikes (T, h, w); it begins before the exposure and ends after it
    before: int  # number of planes of the stream before the exposure
    count: int  # number of planes of the exposure


class Decisions(NamedTuple):
    """A yes or no for each value that a fit finds. The order is the order of `FitResult.errors`."""

    matrix: bool
    offset: bool
    share: bool


@dataclass(frozen=True)
class FitResult:
    """The result of a fit.

    data/cameras/self_calibration.py applies some of the values to a clip: `is_applied` says which.
    scripts/calibrate.py writes the values to a file, and refuses large errors.

    What must stay: the fields are kept in a file beside the run (data/cameras/self_calibration.py).
    A new or another field needs a new FORMAT there.
    """

    matrix: np.ndarray  # (3, 3), spike pixel -> RGB pixel
    offset: float  # by how many planes the middle of the exposure is later than the files say
    share: float  # exposed fraction of the planes, e.g. 0.8
    gain: float  # spikes per plane = gain light + dark, with light from 0 to 1
    dark: float
    # Standard errors of matrix, offset and share. The properties matrix_error, offset_error and
    # share_error give each error, and its unit. An error is infinite if the clip does not show the
    # value.
    errors: tuple[float, float, float]
    explained: float  # fraction of the variance of the spikes' details that the frames explain
    # How far the fit moved a spike pixel on the frame. It is the distance in RGB pixels between its
    # place by the starting matrix and its place by `matrix`, the mean over the plane.
    moved: float
    # For each part of the plane that was matched alone: the distance in RGB pixels between the
    # place where the part fits best and the place where the matrix puts it.
    residuals: tuple[float, ...] = ()

    @property
    def matrix_error(self) -> float:
        """The standard error of the matrix in RGB pixels, the mean over the plane."""
        return self.errors[0]

    @property
    def offset_error(self) -> float:
        """The standard error of the offset in planes."""
        return self.errors[1]

    @property
    def share_error(self) -> float:
        """The standard error of the share."""
        return self.errors[2]

    @property
    def share_to_read(self) -> float:
        """The fraction of the planes to read: 1.12 times the exposed share, and at most 1.

        The channels are better if they are made of a few more planes (data/cameras/calibration.py).
        """
        return share_to_read(self.share)

    @property
    def is_matrix_found(self) -> bool:
        """Return whether the matrix can be trusted at all.

        The frames must explain the spikes (LEAST_EXPLAINED), and the error must be small
        (FOUND_WITHIN_PX). For example, a clip without texture has a large error.
        """
        return self.explained >= LEAST_EXPLAINED and self.matrix_error <= FOUND_WITHIN_PX

    @property
    def is_sure(self) -> Decisions:
        """Return whether a value was found, and its error is small."""
        return Decisions(
            matrix=self.is_matrix_found and self.matrix_error <= SURE_WITHIN_PX,
            offset=self.is_matrix_found and self.offset_error <= SURE_WITHIN_PLANES,
            share=self.is_matrix_found and self.share_error <= SURE_WITHIN_SHARE,
        )

    @property
    def is_applied(self) -> Decisions:
        """Whether a value is applied to the clip, in place of the value at the start.

        A change must be at least three times its error, and not below the least change
        (LEAST_CHANGE_PX and its neighbours). The offset and the share must also be sure. The matrix
        need not be sure: if it moved by three times its error, it is nearer to the truth than the
        start, as it was for all of the 50 random pairs of cameras.

        test_cameras_that_are_aligned_stay_as_they_are notices if too much is applied.
        """
        is_sure = self.is_sure
        least_moved = max(LEAST_CHANGE_PX, LEAST_CHANGE_IN_ERRORS * self.matrix_error)
        least_offset = max(LEAST_CHANGE_PLANES, LEAST_CHANGE_IN_ERRORS * self.offset_error)
        least_shortening = max(LEAST_CHANGE_SHARE, LEAST_CHANGE_IN_ERRORS * self.share_error)
        # Compare the share that is read, because only this share changes what is read: with a share
        # of 0.9 all planes are read, as at the start.
        shortened_by = 1 - self.share_to_read
        return Decisions(
            matrix=self.is_matrix_found and self.moved >= least_moved,
            offset=is_sure.offset and abs(self.offset) >= least_offset,
            share=is_sure.share and shortened_by >= least_shortening,
        )

    def sentence(self) -> str:
        """Describe the result for the log, e.g. (in the log this is one line)

        moved by 2.69 px, turned by 0.36 degrees, 2.0014 RGB pixels per spike pixel (error
        0.19 px), not sure, yet nearer; exposed +0.9 planes later (error 0.6), left as it was;
        for 74% of the planes (error 2.7%), 83% are read; spikes per plane = 0.304 light -0.0024
        """
        if not self.is_matrix_found:
            return (
                f"not sure (the frames explain {self.explained:.0%} of the spikes' details, error "
                f"of the place {self.matrix_error:.2f} px): nothing is changed"
            )
        matrix_note, offset_note, share_note = self._notes()
        # The first column of the matrix is where a step to the right leads: (right, down).
        right = self.matrix[0, 0]
        down = self.matrix[1, 0]
        angle = np.degrees(np.arctan2(down, right))
        place = (
            f"moved by {self.moved:.2f} px, turned by {angle:.2f} degrees, "
            f"{scale_of(self.matrix):.4f} RGB pixels per spike pixel "
            f"(error {self.matrix_error:.2f} px){matrix_note}"
        )
        time = (
            f"exposed {self.offset:+.1f} planes later (error {self.offset_error:.1f}){offset_note}"
        )
        share = f"for {self.share:.0%} of the planes (error {self.share_error:.1%}){share_note}"
        spikes = f"spikes per plane = {self.gain:.3f} light {self.dark:+.4f}"
        return "; ".join([place, time, share, spikes])

    def _notes(self) -> list[str]:
        """Return a note for the log on matrix, offset and share, in this order.

        A note says why a value is not applied. The note is "" if the value is applied as it was
        found.
        """
        notes = []
        for is_sure, is_applied in zip(self.is_sure, self.is_applied, strict=True):
            if is_applied:
                notes.append("")
            elif is_sure:
                notes.append(", left as it was")
            else:
                notes.append(", not sure: left")
        matrix_note, offset_note, share_note = notes

        # A matrix may be applied although it is not sure (`is_applied` says why).
        if self.is_applied.matrix and not self.is_sure.matrix:
            matrix_note = ", not sure, yet nearer"
        # 1.12 times the share is read, so the log says both numbers.
        if self.is_applied.share:
            share_note = f", {self.share_to_read:.0%} are read"
        return [matrix_note, offset_note, share_note]


def nominal(spike: Sequence[int], rgb: Sequence[int]) -> np.ndarray:
    """Return the matrix (3, 3), spike pixel -> RGB pixel, of two cameras with the same view.

    spike, rgb: sizes (height, width). Other modules call this for the matrix without calibration.
    """
    spike_height, spike_width = spike
    rgb_height, rgb_width = rgb
    x_scale = rgb_width / spike_width  # RGB pixels per spike pixel
    y_scale = rgb_height / spike_height
    # Pixel centres are whole numbers, so pixel 0 begins at -1/2 in both images. The spike pixel 0
    # covers the RGB pixels 0 ... scale - 1, and its centre lies in the middle of them. For a scale
    # of 2, the centre is at 1/2, between the RGB pixels 0 and 1.
    left = (x_scale - 1) / 2
    top = (y_scale - 1) / 2
    return np.array([[x_scale, 0, left], [0, y_scale, top], [0, 0, 1.0]])


# ---- The fit -----------------------------------------------------------------------------------


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
    state = _best_estimate(pairs, start_of_binned, model, most_offset)

    # Back to the pixels before binning. A binned pixel has factor^2 times the spikes of a pixel, so
    # the gain is divided. A pixel of the binned frame is `factor` pixels of the frame wide, so
    # distances are multiplied.
    matrix = to_pixel @ state.matrix @ to_binned
    gain, dark = state.gain_and_dark()
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
        moved=_mean_distance(start, matrix, width, height),
        residuals=tuple((state.residuals * factor).tolist()),
    )


def _best_estimate(
    pairs: Sequence["Pair"], start: np.ndarray, model: str | None, most_offset: float
) -> "State":
    """Run all rounds, and return their estimate, or another one if they went astray.

    In a pan (everything moves at one speed), a wrong offset with a moved camera fits the clip about
    as well as the truth, and the rounds may follow it. So there are three estimates:

        found                the result of all rounds
        at_nominal_offset    the result of all rounds that keep the offset at its nominal value
        at_start             the start, without any round. Its errors are infinite, so nothing is
                             applied

    Two questions decide. "Better" stands for `_fits_clearly_better`.

        1. Is the offset of `found` right? Three signs of a wrong offset:

               at_start is better than `found`
               offset_error > SURE_WITHIN_PLANES
               the offset is doubtful: own(middle) <= DOUBTFUL_OWN_MIDDLE

           Without any sign, keep `found`. With a sign, compute at_nominal_offset, and take it if

               it is better than `found`
               or the clip does not show the matrix of `found` (its error is infinite)
               or the offset is doubtful, and `found` is not better than at_nominal_offset

        2. Is at_start better than the estimate of question 1? Then take at_start.

    Without both other estimates, test_rounds_that_go_astray_are_undone fails. Without one of them:

        at_nominal_offset    test_a_moved_camera_is_found_although_the_length_steps_to_its_limit
        at_start             test_a_repeated_pattern_does_not_move_aligned_cameras_by_half_a_period

    Arguments: as in `State`.
    """
    found = _after_all_rounds(State(pairs, start, model, most_offset))
    if not model:
        return found  # a fixed matrix cannot move in place of the offset
    at_start = State(pairs, start, model, most_offset)
    at_start.explained = at_start.explained_share(TIME_SIGMA)

    # 1. Is the offset right?
    best = found
    offset_error, _ = found.time_errors
    is_unsure = (
        _fits_clearly_better(at_start, than=found)
        or offset_error > SURE_WITHIN_PLANES
        or found.is_middle_doubtful
    )
    if is_unsure:
        at_nominal_offset = _after_all_rounds(
            State(pairs, start, model, most_offset, fits_middle=False)
        )
        is_worse = _fits_clearly_better(at_nominal_offset, than=found)
        shows_no_matrix = not math.isfinite(found.matrix_error)
        # A doubtful offset is used only if it is needed: if the spikes are explained worse without.
        is_needed = _fits_clearly_better(found, than=at_nominal_offset)
        is_doubtful_and_not_needed = found.is_middle_doubtful and not is_needed
        if is_worse or shows_no_matrix or is_doubtful_and_not_needed:
            best = at_nominal_offset

    # 2. Was the start better?
    if _fits_clearly_better(at_start, than=best):
        best = at_start
    return best


def _after_all_rounds(state: "State") -> "State":
    """Run all rounds on a new state, and return it.

    Other sizes of details, or other numbers of rounds, give other results.
    docs/benchmarks/calibration.md says how exact the results of these rounds are.
    """
    # From coarse to fine: if the start is off by many pixels, fine details match at wrong places.
    # The first details are a tenth of the shorter side, so that a start which is off by about this
    # length is corrected. A plane with a side below 60 pixels begins with details of 6 pixels. The
    # numbers of rounds are limits: `run_rounds` ends earlier if a round changes nearly nothing.
    shorter_side = min(state.pairs[0].sums.shape[1:])
    coarse_sigma = max(6.0, shorter_side / 10)
    state.run_rounds(sigma=coarse_sigma, rounds=8)
    state.run_rounds(sigma=3.0, rounds=6)
    state.run_rounds(sigma=TIME_SIGMA, rounds=8)
    # The last rounds change the matrix only, so a fixed matrix needs none of them.
    state.run_rounds(sigma=FINE_SIGMA, rounds=4 if len(state.changes) else 0)
    # Compute `explained` anew: a round computes it before its step, and the last rounds on finer
    # details. It must be of the final estimate, and on details of one size for all estimates.
    state.explained = state.explained_share(TIME_SIGMA)
    return state


def _fits_clearly_better(estimate: "State", than: "State") -> bool:
    """Return whether an estimate explains the spikes clearly better than another one.

    E.g. if the frames explain 99 % and 98.8 % of the spikes' details, 1 % and 1.2 % are
    unexplained. 1.2 is more than CLEARLY_BETTER = 1.1 times 1, so the first estimate is clearly
    better.
    """
    unexplained = 1 - estimate.explained
    unexplained_by_other = 1 - than.explained
    return unexplained_by_other > CLEARLY_BETTER * unexplained


def _mean_distance(before: np.ndarray, after: np.ndarray, width: int, height: int) -> float:
    """Return the mean distance in RGB pixels between the results of two matrices.

    before, after: matrices (3, 3). The mean is over 9 x 9 spike pixels, spread evenly over the
    plane of width x height pixels, because a map of the plane is smooth.
    """
    columns = np.linspace(0, width - 1, 9)
    rows = np.linspace(0, height - 1, 9)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1)  # (9, 9, 2)
    points = grid.reshape(1, -1, 2)  # (1, 81, 2), as OpenCV needs them
    places_after = cv2.perspectiveTransform(points, after)
    places_before = cv2.perspectiveTransform(points, before)
    shifts = places_after - places_before
    x, y = shifts[0].T  # (81,) each
    return float(np.hypot(x, y).mean())


# ---- The data of a view, and the records of a round --------------------------------------------


class Features(NamedTuple):
    """The features of a frame that are compared with the spikes, on the pixels of the frame."""

    # (H, W, 5). The channels are
    #     0, 1, 2  the three colours
    #     3        the square of grey, which describes the response curve
    #     4        the Laplacian of grey, which describes the blur of the spike camera's lens
    values: np.ndarray
    overexposed: np.ndarray  # (H, W), the fraction of overexposed pixels around a pixel, 0 ... 1


class Pair:
    """A frame and its spikes, as the fit needs them. Nothing changes a pair after it was made."""

    light: np.ndarray  # (H, W, 3) float32, the frame in the unit that the spikes integrate
    overexposed: np.ndarray  # (H, W) float32, 1 where the frame is overexposed
    sums: np.ndarray  # (T + 1, h, w). sums[p]: number of spikes in the planes 0 ... p - 1
    before: int  # number of planes of the stream before the exposure
    count: int  # number of planes of the exposure

    def __init__(self, view: View, factor: int, light: str) -> None:
        """Prepare a view.

        factor: factor x factor pixels become one.
        light: what the spikes integrate, "linear" light or "display" values.
        """
        values = view.frame.astype(np.float32) / 255
        self.light = to_linear(values) if light == "linear" else values
        # A display value of 252 or more (of 255) is nearly saturated: it does not show the light.
        self.overexposed = (view.frame.max(axis=2) >= 252).astype(np.float32)
        self.before = view.before
        self.count = view.count

        stream = view.stream
        if factor > 1:
            self.light = _binned(self.light, factor)
            self.overexposed = _binned(self.overexposed, factor)
            stream = _binned_stream(stream, factor)

        # With cumulative sums, the sum of any range of planes is one difference. Take the smaller
        # type that holds the largest sum, because the sums are the largest array of a fit.
        planes, height, width = stream.shape
        largest_sum = planes * int(stream.max())
        sum_type = np.uint16 if largest_sum < 2**16 else np.uint32
        self.sums = np.zeros((planes + 1, height, width), sum_type)
        np.cumsum(stream, axis=0, dtype=sum_type, out=self.sums[1:])
        self._mend_pixels()

    def has_room(self) -> bool:
        """Return whether the stream has enough planes around the exposure to fit its times."""
        planes_of_stream = len(self.sums) - 1
        after = planes_of_stream - self.before - self.count
        return min(self.before, after) >= LEAST_REACH

    def _mend_pixels(self) -> None:
        """Replace pixels that always or never fire by the median of their neighbours.

        Changes `sums` in place.
        """
        total = self.sums[-1].astype(np.float32)  # (h, w), number of spikes of each pixel
        usual = cv2.medianBlur(total, ksize=5)  # the same of the pixels around
        # A pixel is wrong if it fires more than three times, or less than a third, as often as its
        # neighbours. The margin of 8 spikes is for dark pixels: their counts differ by chance.
        is_wrong = (total > 3 * usual + 8) | (total < usual / 3 - 8)
        for y, x in np.argwhere(is_wrong):
            # 3 x 3 pixels around (y, x): rows y - 1 ... y + 1. Fewer at an edge of the plane. A
            # neighbour that was wrong is replaced already if it comes before (y, x).
            top = max(y - 1, 0)
            left = max(x - 1, 0)
            around = self.sums[:, top : y + 2, left : x + 2]  # (T + 1, 3, 3)
            self.sums[:, y, x] = np.median(around, axis=(1, 2))

    def features(self, sigma: float) -> Features:
        """Return the features of the frame, blurred by `sigma` RGB pixels.

        To add a feature, add a channel here and raise FEATURES. No other line depends on the order
        of the channels.
        """
        grey = self.light.mean(axis=2)  # (H, W)
        colours = _blur(self.light, sigma)  # (H, W, 3)
        curve = _blur(grey**2, sigma)
        # The factor 2 is a choice of unit: the fitted coefficient of this feature makes up for it.
        lens = 2 * cv2.Laplacian(_blur(grey, sigma), cv2.CV_32F)
        curve_and_lens = np.stack((curve, lens), axis=2)  # (H, W, 2)
        values = np.concatenate((colours, curve_and_lens), axis=2)  # (H, W, 5)
        return Features(values, overexposed=_blur(self.overexposed, sigma))

    def spikes_until(self, times: np.ndarray) -> np.ndarray:
        """Return the number of spikes of each pixel up to the time of its row, (h, w) float32.

        times: one for each row, (h,), in planes from the nominal start of the exposure. A time of
        2.25 gives three quarters of sums[2] and one quarter of sums[3], if before is 0.
        """
        # From the clock of the exposure to the clock of the stream, where plane 0 is at time 0.
        last = len(self.sums) - 1
        times = np.clip(times + self.before, 0, last)
        plane = np.minimum(times.astype(int), last - 1)  # (h,). The minimum: plane + 1 must exist
        fraction = (times - plane).astype(np.float32)  # (h,)

        # Row y of the result comes from row y of sums[plane[y]].
        rows = np.arange(self.sums.shape[1])
        at_plane = self.sums[plane, rows].astype(np.float32)  # (h, w)
        at_next = self.sums[plane + 1, rows].astype(np.float32)
        return at_plane + fraction[:, None] * (at_next - at_plane)


class Noise(NamedTuple):
    """Expected squared noise of the details of a view, summed over the compared pixels."""

    of_sums: float  # of the summed spikes of the exposure
    of_ends: float  # of the sums over 2 `reach` planes around the start, or around the end


@dataclass(frozen=True)
class Details:
    """The details of one view, with the present matrix and times.

    They are computed at every `every`-th pixel of the plane, in both directions. E.g. with every =
    2, a plane of 100 x 100 pixels has details of 50 x 50 pixels (h, w).
    """

    spikes: np.ndarray  # s (h, w), details of the summed spikes
    features: np.ndarray  # F (h, w, 5), details of the features of the frame at the same pixels
    # Details (h, w) of the spikes per plane, in the planes around the start of the exposure, and
    # around its end. `reach` is the number of these planes on each side of start and end.
    rate_at_start: np.ndarray
    rate_at_end: np.ndarray
    reach: float
    is_compared: np.ndarray  # bool (h, w), the pixels to compare. "n" below is their number
    noise: Noise
    every: int


@dataclass(frozen=True)
class Explanation:
    """The coefficients of the features with which the frames explain the spikes best."""

    a: np.ndarray  # (5,), the coefficients of the features
    residuals: list[np.ndarray]  # r (n,) of the compared pixels of each view
    weights: list[np.ndarray]  # w (n,) of the same pixels of each view, 1 or less
    explained: float  # fraction of the variance of s that F a explains


@dataclass(frozen=True)
class NormalEquations:
    """The sums over all views of a round: H = J' W J and g = J' W r.

    k is the number of unknowns: changes of the matrix, times, coefficients. A step needs H and g.
    The choices and the errors of the times need the other fields, too.
    """

    H: np.ndarray  # (k, k)
    g: np.ndarray  # (k,)
    of_tiles: list[np.ndarray]  # for each tile of each view: what its pixels add to g, (k,)
    # Noise of the spikes makes the diagonal of H larger. This is what it adds for middle, length
    # and roll, (3,) (`State._noise_of_times`).
    time_noise: np.ndarray
    removed_pull: float  # what was subtracted from g for the length (`State._pull_of_misfit`)


@dataclass(frozen=True)
class JointChange:
    """The one change of the matrix that fits the shifts of t parts best (`_joint_change`).

    It is a sum of the k changes of the model, each times its amount.
    """

    amounts: np.ndarray  # c (k,)
    covariance: np.ndarray  # (k, k), the covariance of the amounts
    remaining: np.ndarray  # (t, 2), shifts of the parts minus the shifts that this change makes


class PartEquations(NamedTuple):
    """The normal equations of the shifts of t parts, for each of v views: H d = -g.

    d is the shift of a part: d_0 to the right, and d_1 down. With r_i for the derivative of r by
    d_i,

        H_ij = sum of w r_i r_j        g_i = sum of w r_i r

    The sums are over the compared pixels of the part.
    """

    H: np.ndarray  # (v, t, 2, 2)
    g: np.ndarray  # (v, t, 2)
    # (t, 3): the sum of x, the sum of y, and the number of the compared pixels of a part, in all
    # views together.
    center_sums: np.ndarray

    @property
    def pixels(self) -> np.ndarray:
        """The number of compared pixels of each part, (t,)."""
        return self.center_sums[:, 2]

    @property
    def centers(self) -> np.ndarray:
        """The center of each part, as mean x, mean y, 1: (t, 3). Each part must have a pixel."""
        return self.center_sums / self.pixels[:, None]

    def selected(self, is_selected: np.ndarray) -> "PartEquations":
        """Return the equations of some of the parts. is_selected: bool (t,)."""
        return PartEquations(
            H=self.H[:, is_selected],
            g=self.g[:, is_selected],
            center_sums=self.center_sums[is_selected],
        )


# ---- The present estimate ----------------------------------------------------------------------

# `State.run_rounds` stops early if a round changes the four values of shift, scale and turn by less
# than SMALL_SHIFT pixels at the edge of the plane, and all other values by less than SMALL_CHANGE.
# The other values are times in planes or, on the finest details, more changes of the matrix. Both
# limits are far below the errors that count as sure (SURE_WITHIN_PX, SURE_WITHIN_PLANES). Larger
# limits would stop before the values are exact. Smaller limits would cost rounds that change
# nothing.
SMALL_SHIFT = 0.003
SMALL_CHANGE = 0.03
# Largest amount of a change of the matrix in one step. The coordinates of the plane go from -1 to 1
# along its longer side, so 0.1 is a twentieth of the side. The equations are derived for small
# changes, so a larger step could lead away from the result. With smaller steps the rounds of `fit`
# end too early: with 0.002, test_a_camera_is_found_from_a_start_that_is_off fails.
LARGEST_STEP = 0.1
# Largest change of a time in one step, in planes. It is MOST_REACH, because the change of the sums
# with time was measured over MOST_REACH planes on each side.
LARGEST_TIME_STEP = 8
# The length is searched between these fractions of the exposure's planes. A shorter exposure is not
# found: the search ends at the limit. More than 1 is allowed, because noise moves a true length of
# 1 up as often as down.
LEAST_LENGTH = 0.4
MOST_LENGTH = 1.05
# Largest roll that is searched, as a fraction of the exposure's planes, in both directions. If
# the true roll is larger, the search ends at this limit.
MOST_ROLL = 0.2


class Middle(NamedTuple):
    """What a round can say of the middle of the exposure."""

    is_fitted: bool  # False: the middle keeps its nominal value
    # Whether it is fitted, but looks nearly like a moved camera (DOUBTFUL_OWN_MIDDLE).
    is_doubtful: bool
    # How far the camera seems to be moved if the middle is wrong by a plane, in RGB pixels. In a
    # pan it is the speed of the pan.
    shift_per_plane: float


# For streams without room to fit the times.
NO_MIDDLE = Middle(is_fitted=False, is_doubtful=False, shift_per_plane=0.0)


class Coordinates(NamedTuple):
    """Coordinates x and y of the spike plane: 0 in its middle, -1 to 1 along its longer side.

    In these coordinates, the same amount of each of the CHANGES moves the edge of the plane about
    equally far. So one limit serves all of them (LARGEST_STEP).
    """

    x: np.ndarray  # (h, w) float32, for each pixel
    y: np.ndarray  # (h, w) float32
    half_side: float  # half of the longer side of the plane, in pixels
    from_pixels: np.ndarray  # the matrix (3, 3) from pixels to these coordinates


def _coordinates(height: int, width: int) -> Coordinates:
    """Return the coordinates of a plane of height x width pixels."""
    center_x = (width - 1) / 2
    center_y = (height - 1) / 2
    half_side = max(height, width) / 2
    y, x = np.mgrid[:height, :width].astype(np.float32)
    # The same two lines as below, as a matrix. Its last row becomes 0 0 1.
    from_pixels = np.array([[1, 0, -center_x], [0, 1, -center_y], [0, 0, half_side]]) / half_side
    x = (x - center_x) / half_side
    y = (y - center_y) / half_side
    return Coordinates(x, y, half_side, from_pixels)


class State:
    """The present estimate, and its rounds of Gauss-Newton. The module has the equations.

    The estimate is four fields. Only `_change_matrix` and `_change_times` change them, in place:

        matrix   M (3, 3), spike pixel -> RGB pixel, both binned
        middle   middle of the exposure, in planes from the nominal start of the exposure
        length   length of the exposure, in planes
        roll     the row at y is exposed roll y planes later than the middle row

    `run_rounds` does some rounds on details of one size. A round has two parts:

        _comparable_views    the details of each view at the present estimate
        _step                a step of matrix and times, from all pixels together
        or _step_from_parts  on the finest details: a step of the matrix, from the parts

    `fit` makes a State. After the rounds it reads the estimate and four results of the last round:
    matrix_error, time_errors, explained and residuals. They are the values of `FitResult`, but in
    pixels of the binned frame.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        matrix: np.ndarray,
        model: str | None,
        most_offset: float,
        fits_middle: bool = True,
    ) -> None:
        """Begin with a matrix and the nominal times.

        model: which CHANGES are fitted, a key of MODELS. None: the matrix is fixed.
        most_offset: largest offset that is searched, in planes.
        fits_middle: False keeps the middle of the exposure at its nominal value.
        """
        self.pairs = pairs
        self.matrix = matrix
        self.most_offset = most_offset
        self.fits_middle = fits_middle
        # The changes of the model, (k, 3, 3). k is 0 if the matrix is fixed.
        number_of_changes = MODELS[model] if model else 0
        self.changes = CHANGES[:number_of_changes]

        # The times. Nominally the whole exposure collects light, and all rows at once.
        self.nominal_planes = pairs[0].count
        self.middle = self.nominal_planes / 2
        self.length = float(self.nominal_planes)
        self.roll = 0.0

        height, width = pairs[0].sums.shape[1:]
        self.coordinates = _coordinates(height, width)

        # Whether the times are fitted. Without room they keep their nominal values.
        self.has_room = any(pair.has_room() for pair in pairs)

        # Results beside the estimate. No round has run yet, so no error is known.
        self.matrix_error = np.inf
        self.time_errors = (np.inf, np.inf)
        # Error of the matrix because the offset has an error, in pixels of the binned frame.
        self.error_by_offset = 0.0
        self.is_middle_doubtful = False  # `Middle.is_doubtful` of the last round on all pixels
        self.explained = 0.0
        self.residuals = np.empty(0)

    def run_rounds(self, sigma: float, rounds: int) -> None:
        """Run up to `rounds` rounds on details of size `sigma` (spike pixels).

        Stops early if a round changes nearly nothing, or if no view can be compared. Details finer
        than TIME_SIGMA say little of the times. So there only the matrix is changed, from parts of
        the plane.
        """
        # The features do not depend on the estimate, so they are computed once for all rounds.
        blur = self._blur_of_frame(sigma)
        features = [pair.features(blur) for pair in self.pairs]
        for _ in range(rounds):
            views = self._comparable_views(features, sigma)
            if not views:
                return
            if sigma < TIME_SIGMA:
                step = self._step_from_parts(views, sigma)
            else:
                step = self._step(views, sigma)

            # The first four values (right, down, larger, turned) are in half sides of the plane.
            # The others are times or more changes of the matrix, if there are any (`initial`).
            edge_moved = (
                np.abs(step[:MATRIX_CHANGES]).max() * self.coordinates.half_side
            )  # in pixels
            largest_other = np.abs(step[MATRIX_CHANGES:]).max(initial=0)
            if edge_moved < SMALL_SHIFT and largest_other < SMALL_CHANGE:
                return

    def explained_share(self, sigma: float) -> float:
        """Return the share of the spikes' details that the frames explain at the present estimate.

        Returns 0 if no view can be compared. sigma: size of the details in spike pixels.
        """
        blur = self._blur_of_frame(sigma)
        views = self._comparable_views([pair.features(blur) for pair in self.pairs], sigma)
        return _explain(views).explained if views else 0.0

    def _blur_of_frame(self, sigma: float) -> float:
        """Return the blur of the frame, in RGB pixels, that is equal to `sigma` spike pixels.

        Blurs add up by their variances. A pixel has an area, which blurs too: the variance of a
        square of side 1 is 1/12. So blurred spikes have the variance sigma^2 + 1/12 in spike
        pixels. With `scale` RGB pixels per spike pixel, this is (sigma^2 + 1/12) scale^2 in RGB
        pixels. An RGB pixel has the variance 1/12 already, and the blur adds the rest.
        """
        scale = scale_of(self.matrix)
        variance = (sigma**2 + 1 / 12) * scale**2 - 1 / 12
        # If a spike pixel is much smaller than an RGB pixel, the variance is below 0, and has no
        # root. So the blur is at least half an RGB pixel (variance 0.25).
        return np.sqrt(max(variance, 0.25))

    # ---- The details of a view -----------------------------------------------------------------
    #
    # Spikes and frame are compared pixel by pixel. So both must be blurred and filtered alike, and
    # be taken at the same places and times. test_a_camera_is_found_from_a_start_that_is_off notices
    # if another blur is taken for the frame, another filter, or another time for the rows.

    def _comparable_views(self, features: list[Features], sigma: float) -> list[Details]:
        """Return the details of each view that can be compared at the present estimate.

        Other views are left out: their stream is too short, or no pixel of them can be compared.

        features: the features of the frame of each pair. sigma: size of details in spike pixels.
        """
        views = []
        for pair, features_of_pair in zip(self.pairs, features, strict=True):
            details = self._details(pair, features_of_pair, sigma)
            if details is not None and details.is_compared.any():
                views.append(details)
        return views

    def _details(self, pair: Pair, features: Features, sigma: float) -> Details | None:
        """Return the details of a view at the present estimate.

        Returns None if the times are fitted, but the stream has too few planes around the exposure
        for the rates at its start and end.

        features: the features of the frame. sigma: size of the details in spike pixels.
        """
        start, end = self._ends_of_exposure()
        reach = self._reach(pair, start, end)
        if reach < LEAST_REACH and self.has_room:
            return None
        # If the times are not fitted, nothing uses the rates at start and end. The reach only must
        # not be 0, because it is a divisor.
        reach = max(reach, 1.0)

        # Blurred details vary slowly, so every `every`-th pixel is enough: with a sigma of 3, every
        # second pixel.
        every = max(1, int(sigma / 1.5))

        def details_of(spikes: np.ndarray) -> np.ndarray:
            """Return the details of spike counts (h, w), at every `every`-th pixel."""
            return _band_pass(spikes, sigma)[::every, ::every]

        # The spikes of the exposure, and of 2 reach planes around its start and its end, (h, w).
        of_exposure = pair.spikes_until(end) - pair.spikes_until(start)
        around_start = pair.spikes_until(start + reach) - pair.spikes_until(start - reach)
        around_end = pair.spikes_until(end + reach) - pair.spikes_until(end - reach)

        # Where each `every`-th spike pixel is in the frame, and which of them are compared. The
        # features are taken at these places. Their distance is `every` spike pixels, so details of
        # `sigma` spike pixels have the size sigma / every there.
        u, v = self._places_in_frame(of_exposure.shape, every)
        is_compared = self._compared_pixels(u, v, features.overexposed, sigma, every)
        return Details(
            spikes=details_of(of_exposure),
            features=_details_at(features.values, u, v, sigma / every),
            rate_at_start=details_of(around_start) / (2 * reach),  # spikes per plane
            rate_at_end=details_of(around_end) / (2 * reach),
            is_compared=is_compared,
            noise=self._noise(of_exposure, is_compared, sigma, reach),
            reach=reach,
            every=every,
        )

    def _ends_of_exposure(self) -> tuple[np.ndarray, np.ndarray]:
        """Return start and end (h,) of each row's exposure, in planes from its nominal start."""
        y_of_rows = self.coordinates.y[:, 0]  # (h,), -1 ... 1 from top to bottom of a square plane
        later = self.roll * y_of_rows
        start = self.middle - self.length / 2 + later
        end = self.middle + self.length / 2 + later
        return start, end

    def _reach(self, pair: Pair, start: np.ndarray, end: np.ndarray) -> float:
        """Return the reach: the number of planes on each side of start and end that are measured.

        The reach is MOST_REACH, or as many planes as the stream has before the first start and
        after the last end. start, end: from `_ends_of_exposure`.
        """
        # `start` and `end` count from the nominal start of the exposure, which is `before` planes
        # after the begin of the stream.
        planes_of_stream = len(pair.sums) - 1
        planes_before = start.min() + pair.before
        planes_after = planes_of_stream - pair.before - end.max()
        return min(MOST_REACH, planes_before, planes_after)

    def _places_in_frame(self, size: tuple[int, int], every: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the column u and the row v of the frame for every `every`-th spike pixel.

        u, v: (h, w) float32, as cv2.remap needs them. size: (height, width) of the plane.
        """
        height, width = size
        y = np.arange(0, height, every, dtype=np.float32)
        x = np.arange(0, width, every, dtype=np.float32)
        x, y = np.meshgrid(x, y)  # (h, w) each
        # (u, v, 1) = M (x, y, 1), up to a factor: the third coordinate divides the other two. M is
        # the matrix from spike pixels to RGB pixels.
        M = self.matrix
        u = M[0, 0] * x + M[0, 1] * y + M[0, 2]
        v = M[1, 0] * x + M[1, 1] * y + M[1, 2]
        depth = M[2, 0] * x + M[2, 1] * y + M[2, 2]
        return (u / depth).astype(np.float32), (v / depth).astype(np.float32)

    def _compared_pixels(
        self, u: np.ndarray, v: np.ndarray, overexposed: np.ndarray, sigma: float, every: int
    ) -> np.ndarray:
        """Select the pixels to compare: within the frame, and not overexposed there.

        u, v: places of the pixels in the frame, (h, w). overexposed: blurred, (H, W).
        Returns bool (h, w).
        """
        # At the edge of the frame, the blur mixes in repeated pixels. So keep a distance of half of
        # the blur, in RGB pixels.
        height, width = overexposed.shape
        margin = (sigma + 1) * scale_of(self.matrix) / 2
        is_compared = (u > margin) & (v > margin)
        is_compared &= (u < width - 1 - margin) & (v < height - 1 - margin)
        # An overexposed pixel does not show its light. 2 % of the blurred area may be overexposed:
        # with 0, the far tails of the blur would remove whole surroundings of a lamp.
        is_compared &= cv2.remap(overexposed, u, v, cv2.INTER_LINEAR) < 0.02

        # Leave out two spike pixels at the edge of the plane: the blur repeats pixels there, too.
        border = math.ceil(2 / every)  # in pixels of the result
        is_compared[:border] = False
        is_compared[-border:] = False
        is_compared[:, :border] = False
        is_compared[:, -border:] = False
        return is_compared

    def _noise(
        self, of_exposure: np.ndarray, is_compared: np.ndarray, sigma: float, reach: float
    ) -> Noise:
        """Return the expected squared noise of the details, summed over the compared pixels.

            n v / (4 pi sigma^2)        n: number of compared pixels

        v is the variance of a spike count, the mean over the pixels. A Gaussian blur by sigma
        divides the variance of independent noise by 4 pi sigma^2.

        of_exposure: spikes of the exposure, (h, w). reach: planes on each side of start and end.
        """
        # A blur of 3 pixels removes most of the noise of the counts, so that the light remains.
        rates = np.maximum(_blur(of_exposure, 3.0), 0) / self.length  # (h, w), spikes per plane
        blurred_pixels = is_compared.sum() / (4 * np.pi * sigma**2)  # n / (4 pi sigma^2)
        return Noise(
            of_sums=blurred_pixels * _variance_of_counts(rates, planes=self.length),
            of_ends=blurred_pixels * _variance_of_counts(rates, planes=2 * reach),
        )

    # ---- One round on all pixels ---------------------------------------------------------------

    def _step(self, views: list[Details], sigma: float) -> np.ndarray:
        """Change the estimate by one round of Gauss-Newton. Returns the changes (7,).

        The first four changes are shift right, shift down, scale and turn, in half sides of the
        plane. The last three are middle, length and roll, in planes. If the streams have no room to
        fit times, the last three are 0.
        """
        # The best coefficients of the features, with the present matrix and times.
        explanation = _explain(views)
        self.explained = explanation.explained
        # step = -(H + P)^-1 (g + P p). The views give H and g, as in least squares: H = J' W J and
        # g = J' W r, with the derivatives J and weights W of the residuals r. The priors pull a
        # value that is p away from its nominal value back to it, with the weights P.
        equations = self._normal_equations(views, explanation)
        noise = _shared_noise(explanation, sigma, views[0].every)
        middle = self._middle_of(equations) if self.has_room else NO_MIDDLE
        P, p = self._priors(equations.H, noise, middle.is_fitted)  # (k,) each, P as its diagonal
        A = _with_larger_diagonal(equations.H, P)  # H + P, (k, k)
        step = _step_within_limits(A, equations.g + P * p, self._limits_of_times())

        # Both methods change the estimate in place, and keep each value within its limits.
        change = self._change_matrix(step[:MATRIX_CHANGES])
        if not self.has_room:
            return np.concatenate((change, np.zeros(3)))
        self._change_times(step[TIME_COLUMNS])
        offset_error, share_error = self._time_errors(equations, A)
        self.is_middle_doubtful = middle.is_doubtful
        if middle.is_fitted:
            self.error_by_offset = middle.shift_per_plane * offset_error
        else:
            # The middle was kept, so nothing but the prior is known of the offset. Matrix and
            # offset are right together, so the error of the offset adds nothing to the matrix.
            offset_error = SPREAD_OFFSET
            self.error_by_offset = 0.0
        if not self._tells_length(equations):
            share_error = SPREAD_SHARE  # nothing but the prior is known
        self.time_errors = (offset_error, share_error)
        return np.concatenate((change, step[TIME_COLUMNS]))

    def _normal_equations(self, views: list[Details], explanation: Explanation) -> NormalEquations:
        """Sum H = J' W J and g = J' W r over the views.

        A view with n compared pixels has the residuals r (n,), their weights w (n,), which are the
        diagonal of W, and their derivatives J (n, k) by the k unknowns. What pixel i adds to g is
        row i of W J, times r_i.
        """
        number_of_changes = MATRIX_AND_TIMES if self.has_room else MATRIX_CHANGES
        k = number_of_changes + FEATURES
        H = np.zeros((k, k))
        g = np.zeros(k)
        of_tiles = []
        time_noise = np.zeros(3)
        removed_pull = 0.0
        of_views = zip(views, explanation.weights, explanation.residuals, strict=True)
        for details, w, r in of_views:
            J = self._jacobian(details, explanation.a, number_of_changes)  # (n, k)
            WJ = J * w[:, None]  # W J
            H = H + WJ.T @ J
            of_pixels = WJ * r[:, None]  # (n, k): what each pixel adds to g
            g = g + of_pixels.sum(axis=0)
            of_tiles += self._sums_of_tiles(details, of_pixels)
            if self.has_room:  # the times are fitted, too
                pull = self._pull_of_misfit(details, w, r)
                g[LENGTH_COLUMN] -= pull
                removed_pull += pull
                time_noise += self._noise_of_times(details, w)
        return NormalEquations(H, g, of_tiles, time_noise, removed_pull)

    def _sums_of_tiles(self, details: Details, of_pixels: np.ndarray) -> list[np.ndarray]:
        """Return what the pixels of each tile add to g, (k,) for each tile that has a pixel.

        of_pixels: what each compared pixel adds to g, (n, k).
        """
        sums = []
        tile_of_pixel = self._tiles(details, TILES)  # (n,)
        for tile in np.unique(tile_of_pixel):
            is_in_tile = tile_of_pixel == tile
            sums.append(of_pixels[is_in_tile].sum(axis=0))
        return sums

    def _pull_of_misfit(self, details: Details, w: np.ndarray, r: np.ndarray) -> float:
        """Return the part of g = J' W r, of one view, that would only shorten the exposure.

        The residuals have two parts: noise, and misfit. Misfit is what the frame cannot explain at
        any length, e.g. an object of another depth. A sum over more planes has more misfit. So
        least squares would shorten the exposure although its length is right, and
        `_normal_equations` subtracts this part of g.

        The misfit grows in proportion to the length L. So its square is c L^2, with a constant c.
        g is half of the derivative of the square by L:

            g = (1 / 2) d(c L^2) / dL = c L = (c L^2) / L = (square of the misfit) / L

        Without this part, test_a_camera_is_found_from_a_start_that_is_off finds the share 0.52
        where 1 is true.
        """
        mean_weight = float(w.mean())
        square_of_noise = mean_weight * details.noise.of_sums
        square_of_residuals = (w * r**2).sum()
        square_of_misfit = max(0.0, square_of_residuals - square_of_noise)
        return square_of_misfit / self.length

    def _noise_of_times(self, details: Details, w: np.ndarray) -> np.ndarray:
        """Return the part of the diagonal of J' W J that is noise: of middle, length, roll (3,).

        The columns of J for the times are made of two rates, at the start and at the end: the
        middle has their difference, and the length half of their sum (`_columns`). Rates have the
        noise of the spikes. A rate is a sum of spikes over 2 reach planes, divided by 2 reach. So
        the variance of a rate is the variance of the sum, divided by (2 reach)^2.
        """
        mean_weight = float(w.mean())
        rate_noise = mean_weight * details.noise.of_ends / (4 * details.reach**2)
        of_middle = 2  # a difference of two rates has twice the variance of one rate
        of_length = 0.5  # half of a sum of two rates has half the variance
        of_roll = 1  # no result depends on the noise of the roll, so any number will do
        return rate_noise * np.array((of_middle, of_length, of_roll))

    def _middle_of(self, equations: NormalEquations) -> "Middle":
        """Return whether the clip tells the middle of the exposure from a moved camera.

        In a pan (everything moves at one speed), a later middle changes the residuals as a shift of
        the camera does. Then the column of the middle in J is a sum of other columns. So we look
        for the best such sum, and for what it leaves. With m for the column of the middle, and o
        for the columns of matrix and coefficients, H = J' W J has the products of two columns:

            b = H_oo^-1 H_om        amounts of the other columns in the best sum
            left = H_mm - H_mo b    square of the column of the middle, minus this sum

        Without the noise of the spikes in both, left / H_mm is own(middle), see LEAST_OWN_MIDDLE.
        If the matrix is fixed, no camera can move, so the middle is always fitted.

        test_a_pan_leaves_aligned_cameras_as_they_are notices.
        """
        b, left = self._nearest_sum_of_others(equations, MIDDLE_COLUMN)
        H_mm = equations.H[MIDDLE_COLUMN, MIDDLE_COLUMN]
        noise = equations.time_noise[0]
        # own(middle) = left_without_noise / whole. Do not divide: if nearly all of the column is
        # noise, `whole` may be 0 or less. `left` is H_mm or less, so both comparisons are false
        # then, as they should be.
        left_without_noise = float(left - noise)
        whole = float(H_mm - noise)
        is_matrix_fixed = len(self.changes) == 0
        is_told_apart = is_matrix_fixed or left_without_noise > LEAST_OWN_MIDDLE * whole
        is_clear = is_matrix_fixed or left_without_noise > DOUBTFUL_OWN_MIDDLE * whole
        is_fitted = self.fits_middle and is_told_apart
        # A middle that is wrong by a plane looks like a shift by b[0] right and b[1] down, in half
        # sides of the plane.
        rgb_per_half_side = self.coordinates.half_side * scale_of(self.matrix)
        return Middle(
            is_fitted=is_fitted,
            is_doubtful=is_fitted and not is_clear,
            shift_per_plane=rgb_per_half_side * float(np.hypot(b[0], b[1])),
        )

    def _tells_length(self, equations: NormalEquations) -> bool:
        """Return whether the clip tells the length of the exposure from a sharper lens.

        In a pan, the motion blur has one direction and one length everywhere. A shorter exposure
        then looks nearly like a sharper lens, which is one of the features. So own(length) must be
        above LEAST_OWN_LENGTH.

        test_a_share_that_looks_like_a_sharper_lens_is_not_used notices if this function is always
        true. It does not notice a limit of 0.
        """
        _, left = self._nearest_sum_of_others(equations, LENGTH_COLUMN)
        H_ll = equations.H[LENGTH_COLUMN, LENGTH_COLUMN]
        noise = equations.time_noise[1]
        # own(length) = left_without_noise / whole. Not divided, as in `_middle_of`.
        left_without_noise = left - noise
        whole = H_ll - noise
        return bool(left_without_noise > LEAST_OWN_LENGTH * whole)

    def _nearest_sum_of_others(
        self, equations: NormalEquations, column: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the sum of the other columns of J that is nearest to the column of a time.

        The other columns are those of matrix and coefficients. Returns their amounts in the sum,
        and the square of what the sum leaves of the column (b and `left` in `_middle_of`).

        column: MIDDLE_COLUMN or LENGTH_COLUMN.
        """
        H = equations.H
        others = [*range(MATRIX_CHANGES), *range(MATRIX_AND_TIMES, len(H))]
        H_oo = _with_larger_diagonal(H[np.ix_(others, others)], np.zeros(len(others)))
        H_ot = H[others, column]
        b = np.linalg.solve(H_oo, H_ot)
        return b, H[column, column] - H_ot @ b

    def _priors(
        self, H: np.ndarray, noise: float, fits_middle: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the priors: the diagonal of P (k,), which has their weights, and p (k,).

        p is how far a value is from the value of the files. A value without a prior has 0 in both.
        A prior has the weight noise / spread^2: the noisier the clip, the more the prior counts.

        noise: from `_shared_noise`.
        fits_middle: False lets the middle go back to its nominal value.
        """
        P = np.zeros(len(H))
        p = np.zeros(len(H))
        # Priors so strong that a value is kept: KEEPS times as strong as the data.
        strong = KEEPS * np.diag(H)
        if self.has_room:
            spread_of_length = SPREAD_SHARE * self.nominal_planes
            spread_of_roll = SPREAD_ROLL * self.nominal_planes
            spread = np.array((SPREAD_OFFSET, spread_of_length, spread_of_roll))
            P[TIME_COLUMNS] = noise / spread**2
            # Distances from the nominal times: the middle of the planes, all planes, no roll.
            p[MIDDLE_COLUMN] = self.middle - self.nominal_planes / 2
            p[LENGTH_COLUMN] = self.length - self.nominal_planes
            p[ROLL_COLUMN] = self.roll
            if not fits_middle:
                P[MIDDLE_COLUMN] = strong[MIDDLE_COLUMN]
        is_matrix_fixed = len(self.changes) == 0
        if is_matrix_fixed:
            P[:MATRIX_CHANGES] = strong[:MATRIX_CHANGES]
        return P, p

    def _jacobian(self, details: Details, a: np.ndarray, number_of_changes: int) -> np.ndarray:
        """Return J (n, k) of one view: the derivatives of the residuals of its n compared pixels.

        The first columns are for matrix and times, and the last five for the coefficients.

        a: the coefficients of the features, (5,).
        number_of_changes: how many columns of `_columns` are used. 4 are for the matrix alone, 7
        are for matrix and times.
        """
        predicted = details.features @ a.astype(np.float32)  # F a, (h, w)
        columns = self._columns(details, predicted)[:number_of_changes]
        compared = [column[details.is_compared] for column in columns]  # (n,) each
        of_changes = np.stack(compared, axis=1).astype(float)  # (n, number_of_changes)
        # r = s - F a, so its derivative by a is -F.
        of_coefficients = -details.features[details.is_compared]  # (n, 5)
        return np.concatenate((of_changes, of_coefficients), axis=1)

    def _columns(self, details: Details, predicted: np.ndarray) -> list[np.ndarray]:
        """Return the derivatives of the residuals r = s - F a, each (h, w).

        s are the details of the summed spikes. F a is how the frame predicts them: the details F of
        its features, times their coefficients a.

        Order: shift right, shift down, scale, turn, middle, length, roll. Columns of J and steps
        have the same order (MIDDLE_COLUMN, LENGTH_COLUMN, ROLL_COLUMN).
        test_each_column_is_the_derivative_of_the_residuals notices a wrong column.

        predicted: F a, (h, w).
        """
        # The gradients of F a: change per half side of the plane. Neighbours in `predicted` are
        # `every` spike pixels apart.
        down, right = np.gradient(predicted)
        down = down * self.coordinates.half_side / details.every
        right = right * self.coordinates.half_side / details.every

        # The changes of the matrix. A move by (dx, dy) changes F a by right dx + down dy, and r by
        # minus this. A change of the scale moves the pixel at (x, y) by (x, y). A turn moves it by
        # (-y, x).
        x = self._thinned(self.coordinates.x, details)
        y = self._thinned(self.coordinates.y, details)
        larger = -(right * x + down * y)
        turned = right * y - down * x

        # The derivatives of the sum s by the times. If the planes begin and end one plane later,
        # the sum gains the plane at the end and loses the plane at the start.
        later = details.rate_at_end - details.rate_at_start
        # If they are one plane more, the sum gains half a plane at both ends. Larger coefficients a
        # would explain the mean part of this gain, F a / length, so the mean part is subtracted.
        gained = (details.rate_at_start + details.rate_at_end) / 2
        longer = gained - predicted / np.float32(self.length)
        # A row at y is exposed y * roll planes later than the middle row.
        rolled = later * y
        return [-right, -down, larger, turned, later, longer, rolled]

    def _thinned(self, image: np.ndarray, details: Details) -> np.ndarray:
        """Keep every `every`-th pixel of an image of the plane, as in `details`."""
        return image[:: details.every, :: details.every]

    def _tiles(self, details: Details, count: int) -> np.ndarray:
        """Return the number of the tile (n,) of each compared pixel, in a grid of count x count.

        Tiles are numbered row by row. With count = 4, the tiles of the second row are 4 ... 7.
        """
        x = self._thinned(self.coordinates.x, details)[details.is_compared]
        y = self._thinned(self.coordinates.y, details)[details.is_compared]
        # -1 ... 1 becomes 0 ... count, and the whole part is the number of the column or row. The
        # upper limit keeps the last pixel in the last tile.
        columns = np.clip((x + 1) * count / 2, 0, count - 0.01).astype(int)
        rows = np.clip((y + 1) * count / 2, 0, count - 0.01).astype(int)
        return count * rows + columns

    def _change_matrix(self, step: np.ndarray) -> np.ndarray:
        """Change the matrix by a step (k,), the amounts of the first k CHANGES.

        If a value of the step is above LARGEST_STEP, all values are scaled down so that the largest
        is LARGEST_STEP. Returns the change that was made, (k,).
        """
        largest = np.abs(step).max() + 1e-12  # not 0, because it is a divisor
        change = step * min(1.0, LARGEST_STEP / largest)
        total = np.zeros((3, 3))
        for amount, one_change in zip(change, CHANGES[: len(change)], strict=True):
            total = total + amount * one_change
        # The new matrix acts in four steps, and a product of matrices acts from right to left: from
        # pixels to coordinates of -1 to 1, change these, back to pixels, and to the frame.
        changed = np.eye(3) + total
        from_pixels = self.coordinates.from_pixels
        self.matrix = self.matrix @ np.linalg.inv(from_pixels) @ changed @ from_pixels
        # A homogeneous matrix is the same map with any factor. Keep its last element at 1.
        self.matrix /= self.matrix[2, 2]
        return change

    def _limits_of_times(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest change of middle, length and roll, (3,) each.

        There are none without room to fit the times: (0,) each.
        """
        if not self.has_room:
            return np.empty(0), np.empty(0)
        # The limits of the values: of the offset (in place of the middle), of length and roll.
        planes = self.nominal_planes
        values = np.array((self.middle - planes / 2, self.length, self.roll))
        lowest = np.array((-self.most_offset, LEAST_LENGTH * planes, -MOST_ROLL * planes))
        highest = np.array((self.most_offset, MOST_LENGTH * planes, MOST_ROLL * planes))
        # A change must keep these limits, and the limit of a single step.
        least_change = np.maximum(lowest - values, -LARGEST_TIME_STEP)
        most_change = np.minimum(highest - values, LARGEST_TIME_STEP)
        return least_change, most_change

    def _change_times(self, step: np.ndarray) -> None:
        """Change middle, length and roll by a step (3,), which is within the limits."""
        later, longer, rolled = step.tolist()
        self.middle += later
        self.length += longer
        self.roll += rolled

    def _time_errors(self, equations: NormalEquations, A: np.ndarray) -> tuple[float, float]:
        """Return the standard errors of the offset in planes, and of the share.

        equations: the sums H and g of the round. A: H with the priors, as solved in `_step`.
        """
        middle_and_length = slice(MIDDLE_COLUMN, LENGTH_COLUMN + 1)
        # Noise in the columns of J makes H larger, as if the clip showed more motion. Then the
        # errors would be too small. So they are divided by the fraction of H that is motion.
        with_noise = np.diag(equations.H)[middle_and_length]
        without_noise = with_noise - equations.time_noise[:2]
        # Without motion the fraction may be 0 or below. Then the limit of 1e-3 makes the errors a
        # thousand times larger, so that the times count as unsure.
        motion = np.maximum(without_noise / with_noise, 1e-3)
        errors = _standard_errors(equations.of_tiles, A)  # (k,)
        middle_error, length_error = errors[middle_and_length] / motion

        # `_normal_equations` subtracted `removed_pull` from g, because it would have changed the
        # length by removed_pull / H. But some of it may come from a wrong length after all. How
        # much is not known, so half of this change is added to the error. 1e-9: no division by 0.
        length_error += 0.5 * equations.removed_pull / max(float(without_noise[1]), 1e-9)
        return float(middle_error), float(length_error) / self.nominal_planes

    # ---- One round on parts of the plane -------------------------------------------------------

    def _step_from_parts(self, views: list[Details], sigma: float) -> np.ndarray:
        """Estimate one shift for each of PARTS x PARTS parts, and change the matrix to fit them.

        Returns the amounts (k,) of the change, one for each of the k changes of the model.
        """
        explanation = _explain(views)
        equations = self._equations_of_parts(views, explanation)

        # Use only parts with texture. If there are fewer parts than changes, the change is not
        # determined, and the matrix stays.
        H_of_all_views = equations.H.sum(axis=0)  # (PARTS^2, 2, 2)
        is_usable = _usable_parts(H_of_all_views, equations.pixels)  # (PARTS^2,)
        if is_usable.sum() < len(self.changes):
            self.matrix_error = np.inf
            self.residuals = np.empty(0)
            # A step of zeros ends the rounds (`run_rounds`).
            return np.zeros(MATRIX_CHANGES)

        # The shift of each usable part, and its variance.
        equations = equations.selected(is_usable)
        noise = _shared_noise(explanation, sigma, views[0].every)
        shifts, variances = _shifts(equations.H, equations.g, noise)

        # Turn the shifts of the parts into one change of the matrix.
        joint = _join_shifts(shifts, variances, equations.centers, self.changes)
        self._set_errors(joint)
        return self._change_matrix(joint.amounts)

    def _equations_of_parts(self, views: list[Details], explanation: Explanation) -> PartEquations:
        """Sum J' W J and J' W r over the pixels of each part, for the shift of the part.

        J are the derivatives of the residuals r by a shift to the right and by a shift down. W has
        the weights of the residuals.
        """
        a = explanation.a.astype(np.float32)
        count = PARTS * PARTS
        H = np.zeros((len(views), count, 2, 2))
        g = np.zeros((len(views), count, 2))
        center_sums = np.zeros((count, 3))
        of_views = zip(views, explanation.weights, explanation.residuals, strict=True)
        for v, (details, w, r) in enumerate(of_views):
            parts = self._tiles(details, PARTS)  # (n,), the part of each compared pixel
            columns = self._columns(details, predicted=details.features @ a)
            by_right = columns[0][details.is_compared]  # (n,), dr / d(shift right)
            by_down = columns[1][details.is_compared]
            J = (by_right, by_down)  # the two columns of J (n, 2)
            # np.bincount(parts, values, count) sums the values of each part: it returns (count,).
            for i in (0, 1):
                g[v, :, i] = np.bincount(parts, w * J[i] * r, count)
                for j in (0, 1):
                    H[v, :, i, j] = np.bincount(parts, w * J[i] * J[j], count)
            center_sums += self._sums_of_places(details, parts)
        return PartEquations(H, g, center_sums)

    def _sums_of_places(self, details: Details, parts: np.ndarray) -> np.ndarray:
        """Return the sums of x, of y and of 1 over the compared pixels of each part, (parts, 3).

        parts: (n,), the part of each compared pixel.
        """
        x = self._thinned(self.coordinates.x, details)
        y = self._thinned(self.coordinates.y, details)
        sums = []
        for values in (x, y, np.ones_like(x)):
            sums.append(np.bincount(parts, values[details.is_compared], PARTS * PARTS))
        return np.stack(sums, axis=1)

    def _set_errors(self, joint: JointChange) -> None:
        """Set matrix_error and residuals, both in pixels of the binned frame.

            error^2 = (variance of both shifts) + mean(x^2 + y^2) (variance of all other changes)

        This is the mean over the plane: a shift moves all places alike, and any other change moves
        a place in proportion to its distance from the middle.

        Call this before the matrix is changed, because the scale of the present matrix turns half
        sides of the plane into pixels of the frame.
        """
        rgb_per_half_side = self.coordinates.half_side * scale_of(self.matrix)
        variance_of_change = np.diag(joint.covariance)  # (k,)
        mean_square_distance = float((self.coordinates.x**2 + self.coordinates.y**2).mean())
        of_shift = variance_of_change[:2].sum()
        of_others = mean_square_distance * variance_of_change[2:].sum()
        variance = of_shift + of_others
        self.matrix_error = rgb_per_half_side * float(np.sqrt(variance))
        # What remains of the shift of each part, as a length.
        remaining_x, remaining_y = joint.remaining.T
        self.residuals = rgb_per_half_side * np.hypot(remaining_x, remaining_y)

    # ---- Brightness ----------------------------------------------------------------------------

    def gain_and_dark(self) -> tuple[float, float]:
        """Fit spikes per plane of a (binned) pixel = gain light + dark, by least squares.

        gain = cov(light, rate) / var(light)
        dark = mean(rate) - gain mean(light)
        """
        # All pixels of all pairs, in one row.
        light = np.concatenate([self._light(pair).ravel() for pair in self.pairs]).astype(float)
        rate = np.concatenate([self._rate(pair).ravel() for pair in self.pairs]).astype(float)
        covariance = ((light - light.mean()) * (rate - rate.mean())).mean()
        # Frames of one brightness have no variance. 1e-9: no division by 0.
        gain = float(covariance / max(light.var(), 1e-9))
        dark = float(rate.mean() - gain * light.mean())
        return gain, dark

    def _light(self, pair: Pair) -> np.ndarray:
        """Return the grey light (h, w) of a frame at the places of the spike pixels."""
        height, width = pair.sums.shape[1:]
        # With WARP_INVERSE_MAP, `self.matrix` maps a pixel of the result to one of the frame.
        return cv2.warpPerspective(
            pair.light.mean(axis=2),
            self.matrix,
            (width, height),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )

    def _rate(self, pair: Pair) -> np.ndarray:
        """Return the spikes per plane (h, w) during the exposure of the middle row."""
        # The same start and end for each row, (h,): the roll is left out.
        start = np.full(len(self.coordinates.y), self.middle - self.length / 2)
        end = np.full(len(self.coordinates.y), self.middle + self.length / 2)
        return (pair.spikes_until(end) - pair.spikes_until(start)) / self.length


# ---- The algebra of a round on all pixels ------------------------------------------------------

# A residual beyond this number of standard deviations counts less. Of normal noise, only 1 residual
# in 80 is beyond. A smaller number would also give good pixels a smaller weight. A larger number
# would let pixels of another object pull at the result. Without a limit (1e9),
# test_a_camera_is_found_from_a_start_that_is_off finds the offset -3 planes where 0 is true.
HUBER_DEVIATIONS = 2.5
# Standard deviation of normal noise, divided by the median of its absolute values.
DEVIATION_OF_MEDIAN = 1.4826


def _explain(views: Sequence[Details]) -> Explanation:
    """Find the coefficients a (5,) of the features with which the frames explain the spikes best.

    Every round calls this first, and computes its step with the residuals and weights of the
    result. The equations are solved twice. The first time all weights w are 1. The second time,
    pixels with large residuals have smaller weights (Huber).
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
        # One limit for all views. The median is not moved by the few large residuals. 1e-9: the
        # limit is a divisor, and would be 0 if all residuals are 0.
        sizes = np.abs(np.concatenate(residuals))
        limit = HUBER_DEVIATIONS * DEVIATION_OF_MEDIAN * np.median(sizes) + 1e-9
        weights = [_huber_weights(r, limit) for r in residuals]

    # The share of s that F a explains: 1 without any residuals, 0 if a explains nothing.
    square_of_residuals = sum((r**2).sum() for r in residuals)
    square_of_spikes = sum((s**2).sum() for s in spikes)
    explained = float(1 - square_of_residuals / square_of_spikes)
    return Explanation(a, residuals, weights, explained)


def _coefficients(
    features: list[np.ndarray], spikes: list[np.ndarray], weights: list[np.ndarray]
) -> np.ndarray:
    """Return the coefficients a (5,) with the smallest weighted sum of (s - F a)^2.

        a = (F' W F)^-1 F' W s     F' W F and F' W s are summed over the views

    features, spikes, weights: of the n compared pixels of each view. F (n, 5) are the details of
    the features, s (n,) of the summed spikes, and w (n,) the weights. W = diag(w).
    """
    FWF = 0.0  # F' W F, (5, 5)
    FWs = 0.0  # F' W s, (5,)
    for F, s, w in zip(features, spikes, weights, strict=True):
        WF = F * w[:, None]
        FWF = FWF + WF.T @ F
        FWs = FWs + WF.T @ s
    # A little more on the diagonal makes it solvable if a feature is 0 everywhere.
    added_to_diagonal = 1e-5 * np.diag(FWF) + 1e-12
    return np.linalg.solve(FWF + np.diag(added_to_diagonal), FWs)


def _huber_weights(r: np.ndarray, limit: float) -> np.ndarray:
    """Return the weights of residuals r: 1 where |r| <= limit, and limit / |r| elsewhere."""
    # E.g. with a limit of 2, residuals of 1, 2 and 4 have a size of 0.5, 1 and 2 limits. The
    # maximum turns the sizes into 1, 1 and 2, and the weights are 1, 1 and 1/2.
    size_in_limits = np.abs(r) / limit
    return 1 / np.maximum(1, size_in_limits)


def _shared_noise(explanation: Explanation, sigma: float, every: int) -> float:
    """Return the variance of a residual, times the number of compared pixels that share its noise.

    H counts each pixel as if its noise were its own. But the blur makes the noise of neighbours
    alike, so the clip tells less than H says. Priors and variances of shifts are computed with this
    larger noise.

    sigma: of the blur, in spike pixels. every: distance of the compared pixels.
    """
    squares = []
    for r, w in zip(explanation.residuals, explanation.weights, strict=True):
        squares.append(r**2 * w)
    mean_square = np.concatenate(squares).mean()
    # After a Gaussian blur, the noise of two pixels at the distance d has the correlation
    # exp(-d^2 / (4 sigma^2)). Its sum over all pixels is 4 pi sigma^2. So n pixels tell as much as
    # n / (4 pi sigma^2) independent pixels would. Of each every^2 pixels, one is compared.
    return mean_square * (4 * np.pi * sigma**2 / every**2)


def _with_larger_diagonal(H: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Return H + P, with a little more on the diagonal, (k, k). P: (k,), a diagonal.

    Without texture, H is nearly 0, and the equations could not be solved. 1e-7 of the diagonal
    moves a step by far less than SMALL_SHIFT. 1e-12 serves a diagonal of 0.
    """
    added_to_diagonal = P + 1e-7 * np.diag(H) + 1e-12
    return H + np.diag(added_to_diagonal)


def _step_within_limits(
    A: np.ndarray, gradient: np.ndarray, limits: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return the step -A^-1 gradient (k,), with the times within their limits.

    A time that would step beyond a limit steps to the limit. With l for the times at a limit, the
    other values f are solved again:

        step_f = -A_ff^-1 (gradient_f + A_fl step_l)

    If the times were only cut off, the other values would still make up for a change of the times
    that is not made. In a slow pan, a longer exposure looks like a sharper lens, and the length
    would step by 200 planes: the matrix then moved by 10 pixels back and forth, round by round.

    A: H + P, the sums over the pixels with the weights of the priors, (k, k). gradient: g + P p,
    the sums J' W r with the pull of the priors, (k,).
    limits: smallest and largest step of each time, (3,) each, or (0,) each if no times are fitted.
    """
    step = -np.linalg.solve(A, gradient)
    least, most = limits
    times = np.arange(len(least)) + MIDDLE_COLUMN  # columns of the times
    is_at_limit = np.zeros(len(step), bool)
    # Each turn puts at least one more time at a limit, so the turns end.
    while True:
        is_beyond = (step[times] < least) | (step[times] > most)
        if not is_beyond.any():
            return step
        is_at_limit[times[is_beyond]] = True
        step[times] = np.clip(step[times], least, most)

        at_limit = np.flatnonzero(is_at_limit)  # l
        others = np.flatnonzero(~is_at_limit)  # f
        A_ff = A[np.ix_(others, others)]
        A_fl = A[np.ix_(others, at_limit)]
        step[others] = -np.linalg.solve(A_ff, gradient[others] + A_fl @ step[at_limit])


def _standard_errors(of_tiles: list[np.ndarray], A: np.ndarray) -> np.ndarray:
    """Return the standard errors (k,) of a step -A^-1 g: the roots of the diagonal of C.

        C = A^-1 G A^-1                     covariance of the step, (k, k)
        G = sum over the tiles of g g'      g = J' W r (k,), summed over the pixels of one tile

    A is H + P: the sums over all pixels, with the priors.

    G takes the errors within a tile as correlated, and the errors of two tiles as independent.
    """
    g = np.array(of_tiles)  # (tiles of all views, k)
    inverse = np.linalg.inv(A)
    # G is g' g. The product runs from left to right, so G itself is not computed.
    covariance = inverse @ g.T @ g @ inverse
    return np.sqrt(np.diag(covariance))


def _variance_of_counts(rates: np.ndarray, planes: float) -> float:
    """Return the variance of the spike counts of a number of planes, the mean over the pixels.

    A pixel counts whole spikes from a random phase. Suppose that it expects 4.3 spikes. Then it
    counts 5 with the probability p = 0.3, and else 4. The variance of the count is p (1 - p).

    rates: spikes per plane of each pixel, (h, w).
    """
    p = rates * planes % 1  # the part behind the point: 0.3 of 4.3
    return float((p * (1 - p)).mean())


# ---- The algebra of a round on parts of the plane ----------------------------------------------
#
# `State._step_from_parts` calls these functions in three steps:
#
#     _usable_parts   selects the parts that have enough texture
#     _shifts         finds the shift d of each part by itself, with its variance
#     _join_shifts    finds the one change of the matrix that makes these shifts
#
# np.einsum names the axes of its arrays by letters, and sums over each letter that is not behind
# the arrow. E.g. np.einsum("tij,tj->ti", A, x) computes, for each t and i,
#
#     result[t, i] = sum over j of A[t, i, j] x[t, j]
#
# which is the product A x of each part t. The letters in this section are v: view, t: part,
# i and j: directions (0 right, 1 down), a and b: changes of the matrix.
#
# An einsum must not become a product `@`: the product may sum in another order, so that the last
# bit of a result would change.

# Limits of `_usable_parts`. They are low on purpose: a part with weak texture gets a large variance
# in `_shifts`, and counts little. With limits of 0, H of a part could perhaps not be inverted.
# Larger limits would leave out parts that still tell something.
LEAST_PIXELS_OF_PART = 0.3  # of the pixels of the largest part
LEAST_TEXTURE_OF_PART = 1e-3  # of the usual texture of a part
# H has two eigenvalues l1 and l2, the strengths of the texture along its two main directions. This
# limit is for l1 l2 / (l1 + l2)^2, which is 1/4 for equal strengths, and 0 if all texture has one
# direction, as at an edge. The limit lets the weak direction have 1/10000 of the sum.
LEAST_OF_TWO_DIRECTIONS = 1e-4


def _usable_parts(H: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Select the parts with enough pixels, and with texture in two directions.

    H: (t, 2, 2), the structure tensor of each of t parts: sums of the products of the gradients
        right and down.
    pixels: (t,), number of compared pixels of a part.

    Returns bool (t,).
    """
    # The trace l1 + l2 is the sum of the squared gradients, right and down together.
    texture = np.trace(H, axis1=1, axis2=2)  # (t,)
    usual_texture = np.median(texture[texture > 0])
    has_pixels = pixels > LEAST_PIXELS_OF_PART * pixels.max()
    has_texture = texture > LEAST_TEXTURE_OF_PART * usual_texture
    # The determinant is l1 l2.
    has_two_directions = np.linalg.det(H) > LEAST_OF_TWO_DIRECTIONS * texture**2
    return has_pixels & has_texture & has_two_directions


def _shifts(H: np.ndarray, g: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the shifts d (t, 2) of the parts and their variances (t, 2, 2).

        d_t = -H_t^-1 g_t          H_t and g_t: sums of H_vt and g_vt over the views v

    H, g: (v, t, 2, 2) and (v, t, 2), the normal equations of each view and part.
    noise: variance of a residual, times the number of pixels that share their noise.

    All views share the shift of a part. With several views, the variance of the shift is the mean
    of two estimates: one from the noise, and one from the spread of the views.
    """
    inverse = np.linalg.inv(H.sum(axis=0))  # H_t^-1, (t, 2, 2)
    # d[t, i] = -(sum over v and j of inverse[t, i, j] g[v, t, j])
    shifts = -np.einsum("tij,vtj->ti", inverse, g)  # (t, 2)
    from_noise = inverse * noise  # (t, 2, 2)
    if len(H) == 1:
        # One view has no spread.
        return shifts, from_noise
    from_spread = _variance_from_spread(H, g, inverse, shifts)
    return shifts, (from_noise + from_spread) / 2


def _variance_from_spread(
    H: np.ndarray, g: np.ndarray, inverse: np.ndarray, shifts: np.ndarray
) -> np.ndarray:
    """Return the variance (t, 2, 2) of the shift of each part, from how far the views disagree.

        m_vt = H_t^-1 (g_vt + H_vt d_t)                      (2,)
        variance = n / (n - 1) sum over v of m_vt m_vt'      n: number of views, at least 2

    The bracket is the gradient of view v at the common shift d_t. So m_vt says how far the view
    alone would move the shift. It is 0 if the view agrees with the common shift. Its sign does not
    matter, because only squares are used. The common shift is the sum of what the views add to it,
    and the variance of a sum is the sum of the variances. So the squares are added, and not
    averaged. n / (n - 1) is the usual correction, because d was fitted to the same views.

    H, g: (v, t, 2, 2) and (v, t, 2). inverse: H_t^-1 (t, 2, 2). shifts: d (t, 2).
    """
    views = len(H)
    # gradient[v, t, i] = g[v, t, i] + sum over j of H[v, t, i, j] d[t, j]
    gradient = g + np.einsum("vtij,tj->vti", H, shifts)  # (v, t, 2)
    # m[v, t, i] = sum over j of inverse[t, i, j] gradient[v, t, j]
    moves = np.einsum("tij,vtj->vti", inverse, gradient)  # m, (v, t, 2)
    # The sum over v of m[v, t, i] m[v, t, j], which is m m' of each part.
    sum_of_squares = np.einsum("vti,vtj->tij", moves, moves)  # (t, 2, 2)
    return sum_of_squares * views / (views - 1)


def _join_shifts(
    shifts: np.ndarray, variances: np.ndarray, places: np.ndarray, changes: np.ndarray
) -> JointChange:
    """Find the one change of the matrix that moves t parts by their shifts.

    shifts: d (t, 2) of the parts. variances: (t, 2, 2) of the shifts.
    places: centers of the parts, (t, 3): x, y, 1. changes: (k, 3, 3).

    Parts at other depths have another shift (parallax). Parallax is taken as one more variance,
    `extra`, the same for all parts and directions. It is chosen so that the shifts that remain are
    as large as their variances say (Paule-Mandel): the sum of their weighted squares is then the
    number of shifts minus the number of changes, the degrees of freedom.

    test_the_joint_change_makes_the_shifts_of_the_parts notices a wrong change, and
    test_parallax_makes_the_change_less_sure a wrong variance.
    """
    J = _motions_of_places(changes, places)  # (t, 2, k)
    degrees_of_freedom = 2 * len(shifts) - len(changes)
    # Bisection: more extra variance makes the weights smaller, and so the sum of the squares. It
    # ends if `extra` is known within 0.1 %, or if `extra` is below 1e-9, which is 0 in effect.
    low = 0.0
    high = 1.0  # in squared half sides of the plane, larger than any parallax
    while high > 1e-9:
        extra = (low + high) / 2
        _, squares = _joint_change(J, shifts, variances, extra)
        if squares > degrees_of_freedom:
            low = extra
        else:
            high = extra
        if high - low < 1e-3 * high:
            break
    joint, _ = _joint_change(J, shifts, variances, high)
    return joint


def _motions_of_places(changes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return J (t, 2, k): how far each of k changes moves each of t places right and down.

    test_a_change_of_the_matrix_moves_places_as_computed compares J with moved places.

    changes: (k, 3, 3). places: (t, 3), homogeneous coordinates x, y, z with z = 1.
    """
    # A change moves x, y and z of a place by its product with (x, y, z). So, with coordinates i, j,
    # moved[t, k, i] = sum over j of changes[k, i, j] places[t, j].
    moved = np.einsum("kij,tj->tki", changes, places)  # (t, k, 3)
    dx_dy = moved[..., :2]  # (t, k, 2)
    dz = moved[..., 2:]  # (t, k, 1)
    # The point in the image is (x / z, y / z). At z = 1, x / z changes by dx - x dz, and y / z by
    # dy - y dz.
    x_y = places[:, None, :2]  # (t, 1, 2)
    J = dx_dy - x_y * dz  # (t, k, 2)
    return J.swapaxes(1, 2)


def _joint_change(
    J: np.ndarray, shifts: np.ndarray, variances: np.ndarray, extra: float
) -> tuple[JointChange, float]:
    """Find the change that moves the parts as their shifts say, with a given extra variance.

        W = (V + extra I)^-1                     weight of a part, (2, 2). V: variance of its shift
        c = (sum J' W J)^-1 sum J' W d           amounts of the changes, (k,). Sums over the parts
        e = d - J c                              what remains of the shift of a part, (2,)

    J: (t, 2, k), how far each change moves each part. shifts: d (t, 2). variances: V (t, 2, 2).
    Returns the change, and the sum of e' W e over the parts.

    This is a weighted least-squares fit of d = J c. A part with a large variance has a small
    weight. A larger `extra` makes the weights of all parts smaller and more equal.
    """
    W = np.linalg.inv(variances + extra * np.eye(2))  # (t, 2, 2)
    # JWJ[a, b] = sum over t, i and j of J[t, i, a] W[t, i, j] J[t, j, b]
    JWJ = np.einsum("tia,tij,tjb->ab", J, W, J)  # (k, k)
    # JWd[a] = sum over t, i and j of J[t, i, a] W[t, i, j] d[t, j]
    JWd = np.einsum("tia,tij,tj->a", J, W, shifts)  # (k,)
    covariance = np.linalg.inv(JWJ)  # of c, (k, k)
    c = covariance @ JWd
    e = shifts - J @ c  # (t, 2)
    # The sum over t, i and j of e[t, i] W[t, i, j] e[t, j]: one number.
    squares = float(np.einsum("ti,tij,tj->", e, W, e))
    return JointChange(amounts=c, covariance=covariance, remaining=e), squares


# ---- Images ------------------------------------------------------------------------------------


def _binned(image: np.ndarray, factor: int) -> np.ndarray:
    """Replace factor x factor pixels of an image (H, W, ...) by their mean."""
    height = image.shape[0] // factor
    width = image.shape[1] // factor
    whole = image[: height * factor, : width * factor]  # without an incomplete last block
    return cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)


def _binned_stream(stream: np.ndarray, factor: int) -> np.ndarray:
    """Replace factor x factor pixels of each plane of a stream (T, H, W) by their sum."""
    planes, height, width = stream.shape
    height = height // factor
    width = width // factor
    whole = stream[:, : height * factor, : width * factor]  # without incomplete last blocks
    # A sum of factor^2 spikes may not fit into 8 bits.
    sum_type = np.promote_types(np.uint16, stream.dtype)
    blocks = whole.reshape(planes, height, factor, width, factor)
    return blocks.sum(axis=(2, 4), dtype=sum_type)  # (T, h, w)


def _band_pass(image: np.ndarray, sigma: float) -> np.ndarray:
    """Keep the details of an image (h, w) that are between `sigma` and 8 `sigma` pixels large."""
    side = _odd(8 * sigma)
    blurred = _blur(image, sigma)
    return blurred - cv2.blur(blurred, (side, side))


def _details_at(
    features: np.ndarray, u: np.ndarray, v: np.ndarray, sigma_in_places: float
) -> np.ndarray:
    """Return the details of the features at places of the frame, (h, w, 5).

    features: (H, W, 5), blurred already. So only their slow part, a mean over 8 sigma, must be
    subtracted.
    u, v: column and row of each place, (h, w). sigma_in_places: size of the details, measured in
    the distance of two neighbours among the places.
    """
    at_places = cv2.remap(features, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    side = _odd(8 * sigma_in_places)
    slow_part = cv2.blur(at_places, (side, side))
    return at_places - slow_part


def _odd(x: float) -> int:
    """Return the odd number at or above the whole part of x: 48.7 -> 49, 47.2 -> 47.

    The side of a box filter must be odd, so that the box has a middle pixel.
    """
    # The last bit of an odd number is 1.
    return int(x) | 1


def _blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Blur with a Gaussian. The size (0, 0) lets OpenCV choose the size of the kernel."""
    return cv2.GaussianBlur(image, (0, 0), float(sigma))

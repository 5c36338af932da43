"""Find the motion within an exposure from the spikes, by optical flow.

The sharp instant is the time of the wanted sharp frame. The motion is the shift of each pixel from
the sharp instant to nine times of the exposure (shifts.py; the sharp instant is one of them).
`motion_of` searches the motion twice. The first search finds shifts between noisy pictures. Along
these shifts, the pictures are averaged to one picture with little noise. The second search begins
from this picture, so it is more exact.

    1   pictures      grey pictures at all times, made of the spikes (spike_pictures.py)
        first search  DIS, an optical flow (Kroeger et al., ECCV 2016), from the picture of the
                      sharp instant to each other picture
        curves        a smooth curve in time for each pixel, near its shifts (curves.py)
    2   mean picture  all pictures, moved back to the sharp instant along the curves
        second search DIS from the mean picture to each other picture (the shifts there), and from
                      every second of these pictures to the mean picture (the shifts back)
        errors        the expected errors of the shifts. An error is large if the way there and
                      back does not end where it began
        curves        near the shifts there, each weighted by its expected error

A picture of some planes (binary pictures of the spike camera) is far sharper than the blurry frame,
but it has no colour and more noise. Shifts are x and y in RGB pixels, times are planes after the
sharp instant, and a frame has H x W pixels.

Few spikes make noisy pictures, so two limits on the number of spikes (light.py) change the search:

    noisy    below NOISY_SPIKES: DIS compares larger squares, and larger errors are expected
    dim      below DIM_SPIKES, so even fewer: all searches use the exact form of DIS in place of
             the quick form, and no shake of the camera is added to the curves

What must stay: the motions and the expected errors. The fusion operator "motion"
(models/fusion/fusion_motion.py) improves frames by learned steps along the motion. Its weights were
trained with the motions of this file. If you change a constant, the weights fit a little worse
until they are trained anew. docs/benchmarks/quality_details.md, "What finds the motion", says what
each part of the search gains.

Tests: tests/parts/data/test_flow.py. It compares motions and expected errors with the true motion
of simulated scenes.
"""

import cv2
import numpy as np

from data.motion.curves import curves_of
from data.motion.exposure import Recording
from data.motion.light import DIM_SPIKES, NOISY_SPIKES, median_spikes
from data.motion.shifts import INSTANTS, Motion, lengths_of, motion_times, values_at_shifts
from data.motion.spike_pictures import pictures_at
from data.motion.view import View

# Factor of all expected errors if the pictures are noisy. Noise misleads the search there and the
# search back in the same way. E.g. the true motion is 1 pixel, but the search there finds 3 pixels,
# and the search back -3. The two agree, so an expected error computed from their difference is too
# small. The factor makes the expected error larger. No measurement of other values is recorded, and
# test_flow.py passes without the factor.
FACTOR_IF_NOISY = 2.5


def motion_of(
    recording: Recording, view: View, gain: np.ndarray, start_motion: Motion | None = None
) -> Motion:
    """Measure the motion within an exposure.

    recording: what both cameras recorded, of which only the spikes are used.
    view: where the spike pixels lie on the frame.
    gain: (h, w), spikes per plane of each spike pixel at full light.
    start_motion: a motion at which the search of each time begins, e.g. the motion of a network.
    If it is None, each search begins at the shifts of a nearer time (`_first_search`).
    """
    # Number of spikes in the exposure, for a pixel of median light.
    spikes = median_spikes(recording)
    is_noisy = spikes < NOISY_SPIKES
    is_dim = spikes < DIM_SPIKES
    exact_dis = _make_dis(is_noisy)
    quick_dis = exact_dis if is_dim else _make_quick_dis(is_noisy)

    search_times = motion_times(recording)  # in the order of the first search
    times = sorted({0.0, *search_times})  # K times in ascending order; 0 is the sharp instant
    pictures = pictures_at(recording, view, gain, times, spikes)
    picture_at = dict(zip(times, pictures, strict=True))  # time -> (H, W) uint8

    shifts_at = _first_search(quick_dis, picture_at, search_times, start_motion)
    shifts = np.stack([shifts_at[time] for time in times])  # (K, H, W, 2)
    # The first search has no shifts back, so the errors follow from the lengths of the shifts only.
    curves = curves_of(times, shifts, _error_by_length(shifts), with_shake=not is_dim)

    shifts, errors = _second_search(exact_dis, quick_dis, pictures, times, curves)
    if is_noisy:
        errors *= FACTOR_IF_NOISY
    curves = curves_of(times, shifts, errors, with_shake=not is_dim)
    return Motion(np.array(times), curves, errors)


# ---- The two searches --------------------------------------------------------------------------


def _first_search(
    dis: cv2.DenseOpticalFlow,
    picture_at: dict[float, np.ndarray],
    search_times: list[float],
    start_motion: Motion | None,
) -> dict[float, np.ndarray]:
    """Search the shifts (H, W, 2) from the sharp instant to each time. Return time -> shifts.

    dis: the optical flow that searches. picture_at: time -> its picture, (H, W) uint8.
    search_times: 8 times, in the order of `motion_times`: four before the sharp instant, then four
    after it, and on each side the nearest time first.
    start_motion: a motion at which the search of each time begins. If it is None, a search begins
    at the shifts of the previous time in `search_times`, continued at the same speed. The nearest
    time on each side begins without motion.
    """
    # `motion_times` gives first the four times before the sharp instant, then the four after it.
    times_before = search_times[: len(INSTANTS)]
    times_after = search_times[len(INSTANTS) :]
    sharp_picture = picture_at[0.0]
    height, width = sharp_picture.shape
    shifts_at = {0.0: np.zeros((height, width, 2), np.float32)}
    for times_of_side in (times_before, times_after):
        previous_time = 0.0  # nearer to the sharp instant than `time`
        for time in times_of_side:
            if start_motion is not None:
                start, _ = start_motion.at(time)
            else:
                start = _extrapolate(shifts_at[previous_time], previous_time, time)
            shifts_at[time] = _search_shifts(dis, sharp_picture, picture_at[time], start)
            previous_time = time
    return shifts_at


def _extrapolate(shifts: np.ndarray, previous_time: float, time: float) -> np.ndarray:
    """Return the shifts (H, W, 2) at a time if the motion goes on at the same speed.

    E.g. the shifts at 20 planes after the sharp instant are twice the shifts at 10 planes.

    shifts: (H, W, 2), the shifts at `previous_time`.
    """
    if previous_time == 0:  # the sharp instant: the shifts are 0, and the speed is not known
        return shifts
    return shifts * np.float32(time / previous_time)


def _second_search(
    exact_dis: cv2.DenseOpticalFlow,
    quick_dis: cv2.DenseOpticalFlow,
    pictures: list[np.ndarray],
    times: list[float],
    curves: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Search the shifts from the mean picture to each picture, and their expected errors.

    The mean picture is the mean of all pictures, moved back to the sharp instant. The mean picture
    has less noise than the picture of the sharp instant, from which the first search began. For
    each time there is a search there (from the mean picture to the picture of the time), and for
    every second time also a search back (from this picture to the mean picture).

    exact_dis, quick_dis: the optical flow that searches. All searches back use the quick one. A
    search there uses the exact one if its time has a search back, else the quick one.
    pictures: K pictures (H, W) uint8, in the order of `times`.
    curves: (K, H, W, 2), shifts from the sharp instant to each time, where the search begins.
    Returns the shifts (K, H, W, 2) and the errors (K, H, W), both 0 at the sharp instant.
    """
    mean_picture = _mean_picture(pictures, curves)
    # Positions in `times`: `sharp` is the sharp instant, e.g. 4 of 0 ... 8. The others are the
    # times to which shifts are searched, e.g. 0 ... 3 and 5 ... 8.
    sharp = times.index(0)
    other_indices = [index for index in range(len(times)) if index != sharp]
    shifts = np.zeros_like(curves)
    # The difference of the shifts there and back, in pixels. The difference stays 0 at the sharp
    # instant.
    differences = np.zeros(curves.shape[:3], np.float32)  # (K, H, W)
    for index in other_indices:
        picture = pictures[index]
        has_search_back = _has_search_back(index, sharp)
        dis = exact_dis if has_search_back else quick_dis
        shifts[index] = _search_shifts(dis, mean_picture, picture, curves[index])
        if has_search_back:
            start = _about_inverse(shifts[index])
            shifts_back = _search_shifts(quick_dis, picture, mean_picture, start)
            differences[index] = mean_difference(shifts[index], shifts_back)

    errors = np.zeros_like(differences)
    for index in other_indices:
        if not _has_search_back(index, sharp):
            # Take the mean of the times before and after. The differences of these two times are
            # known, because only every second time lacks the search back, and the first and the
            # last time have it.
            differences[index] = (differences[index - 1] + differences[index + 1]) / 2
        errors[index] = expected_error(shifts[index], differences[index])
    return shifts, errors


def _has_search_back(index: int, sharp: int) -> bool:
    """Return whether a time has a search back, from the picture of the time to the mean picture.

    (The search there, from the mean picture to the picture, is made for all times.) There are four
    times on each side of the sharp instant (INSTANTS in shifts.py). Every second time has a search
    back, also the first and the last time:

        index           0   1   2   3   4 (sharp)   5   6   7   8
        search back     x       x                       x       x

    With a search back at all times, finding the motion takes a sixth more time, and the PSNR
    changes by -0.02 to +0.01 dB.

    index, sharp: positions of the time and of the sharp instant among all times.
    """
    return (index - sharp) % 2 == 0


def _about_inverse(shifts: np.ndarray) -> np.ndarray:
    """Return about the inverse of shifts (H, W, 2): the shifts that lead back.

    Say that q moves to p, so p = q + shifts(q). The exact inverse at p is -shifts(q). But q is not
    known, so p - shifts(p) is taken in its place. E.g. in one direction, with shifts(p) = 0.1 p:

                             exact              result
        p                    11                 11
        q                    10                 11 - shifts(11) = 11 - 1.1 = 9.9
        the shift back       -shifts(10) = -1   -shifts(9.9) = -0.99

    The result is only the start of a search, so it need not be exact.
    """
    # `values_at_shifts(shifts, -shifts)` at p is shifts(p - shifts(p)).
    return -values_at_shifts(shifts, -shifts)


def _mean_picture(pictures: list[np.ndarray], shifts: np.ndarray) -> np.ndarray:
    """Return the mean (H, W) uint8 of all pictures, moved back to the sharp instant.

    pictures: K pictures (H, W) uint8. shifts: (K, H, W, 2), from the sharp instant to each picture.
    """
    total = np.zeros(shifts.shape[1:3], np.float32)
    for picture, shift in zip(pictures, shifts, strict=True):
        total += values_at_shifts(picture.astype(np.float32), shift)
    return np.rint(total / len(pictures)).astype(np.uint8)


# ---- DIS of OpenCV -----------------------------------------------------------------------------

# DIS compares squares of two pictures.
#
#                                                    noisy pictures    others (preset MEDIUM)
#     side of a square in pixels                     16, PATCH         8
#     from the edge of a square to the next square   4, STRIDE         3
#
# Small squares find small things that move on their own, but follow the noise. Chosen by hand.
PATCH = 16
STRIDE = 4
# Largest number of steps in which DIS moves a square towards the place that fits best. The preset
# MEDIUM has 25. With 12 steps, finding the motion takes 15 % less time, and the PSNR changes by
# -0.01 to +0.02 dB. With 6 steps, it would take 25 % less time, but the photograph "rocket", a few
# bright points on black, would lose 0.2 dB.
DESCENT_STEPS = 12


def _make_dis(is_noisy: bool) -> cv2.DISOpticalFlow:
    """Make the optical flow DIS. If the pictures are noisy, DIS compares larger squares."""
    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    dis.setGradientDescentIterations(DESCENT_STEPS)
    if is_noisy:
        dis.setPatchSize(PATCH)
        dis.setPatchStride(STRIDE)
    return dis


# A quick DIS has squares that are farther apart, and fewer refinement steps on each scale (MEDIUM
# has 5). No test notices other values. `_make_quick_dis` says how much time a quick DIS saves, and
# how much PSNR it costs.
QUICK_STRIDE_MORE = 1  # pixels that are added to the stride
QUICK_REFINEMENT = 2  # refinement steps on each scale


def _make_quick_dis(is_noisy: bool) -> cv2.DISOpticalFlow:
    """Make the optical flow DIS, faster and less exact than from `_make_dis`.

    A quick DIS saves a tenth of the time of a frame and costs 0.01 dB. In dim light it would cost
    0.04 dB, so in dim light `motion_of` uses the exact DIS for all searches. In other light:

        first search                                            quick
        second search there, at times with a search back        exact
        second search there, at times without a search back     quick
        search back                                             quick
    """
    dis = _make_dis(is_noisy)
    dis.setPatchStride(dis.getPatchStride() + QUICK_STRIDE_MORE)
    dis.setVariationalRefinementIterations(QUICK_REFINEMENT)
    return dis


# Least side of a picture that DIS gets. Smaller pictures are padded. With squares of 16 x 16 pixels
# (PATCH), DIS refuses e.g. a picture of 16 x 16 pixels. Twice PATCH is large enough.
LEAST_SIDE = 2 * PATCH


def _search_shifts(
    dis: cv2.DenseOpticalFlow, from_picture: np.ndarray, to_picture: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Search the shifts (H, W, 2) from one picture to another, both (H, W) uint8, by DIS.

    What is at p in `from_picture` is at p + shifts[p] in `to_picture`.

    start: (H, W, 2), shifts where the search begins. The array is not changed.
    """
    # Small pictures are padded below and at the right by repeating their edges.
    height, width = from_picture.shape
    rows_below = max(LEAST_SIDE - height, 0)
    columns_right = max(LEAST_SIDE - width, 0)

    def pad(values: np.ndarray) -> np.ndarray:
        """Return values (H, W) or (H, W, 2) with repeated edges, as a copy."""
        return cv2.copyMakeBorder(values, 0, rows_below, 0, columns_right, cv2.BORDER_REPLICATE)

    # DIS overwrites its third argument with the result, so it gets a copy of `start`.
    shifts = dis.calc(pad(from_picture), pad(to_picture), pad(start))
    return np.ascontiguousarray(shifts[:height, :width])


# ---- The expected error ------------------------------------------------------------------------

# The expected error of a shift, in pixels. Its three parts were chosen on scenes whose motion is
# known (tests/parts/data/test_flow.py).
LEAST_ERROR = 0.15  # error of a still pixel
ERROR_BY_LENGTH = 0.05  # added for each pixel of the shift
ERROR_BY_DIFFERENCE = 0.7  # added for each pixel by which the shifts there and back differ
# The difference of the shifts there and back is a Gaussian mean with this sigma in pixels. At a
# single pixel, wrong shifts may agree by chance. The mean is still large there, because most of the
# pixels around it do not agree.
DIFFERENCE_SIGMA = 4.0


def expected_error(shifts: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """Return the expected length of the error (H, W) of shifts, in pixels.

        LEAST_ERROR + ERROR_BY_LENGTH |shift| + ERROR_BY_DIFFERENCE difference

    shifts: (H, W, 2), from the sharp instant to another time.
    difference: (H, W), by how much the shifts there and back differ (`mean_difference`).

    Without the difference, test_the_expected_error_is_larger_where_the_motion_is_wrong fails.
    """
    return _error_by_length(shifts) + ERROR_BY_DIFFERENCE * difference


def mean_difference(shifts_there: np.ndarray, shifts_back: np.ndarray) -> np.ndarray:
    """Return by how much shifts there and back differ (H, W), in pixels, as Gaussian means.

        difference(p) = |there(p) + back(p + there(p))|

    The difference is the distance between a pixel and the point where the way there and back ends.
    If the difference is not 0, one of the two shifts is wrong. Causes are noise, an occlusion, and
    a thing that is too small and too fast for the search.

    shifts_there: (H, W, 2), from the sharp instant to another time.
    shifts_back: (H, W, 2), from this other time to the sharp instant.
    """
    there_and_back = shifts_there + values_at_shifts(shifts_back, shifts_there)
    difference = lengths_of(there_and_back)
    # The size (0, 0) lets OpenCV choose the size of the kernel for this sigma.
    return cv2.GaussianBlur(difference, (0, 0), DIFFERENCE_SIGMA)


def _error_by_length(shifts: np.ndarray) -> np.ndarray:
    """Return the expected errors (...) of shifts (..., 2) whose shifts back are not known."""
    return LEAST_ERROR + ERROR_BY_LENGTH * lengths_of(shifts)

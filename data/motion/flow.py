"""Find the motion within an exposure from the spikes, by optical flow.

    spikes -> pictures   grey pictures of nine instants of the exposure, one of them the sharp
                         instant
    pictures -> shifts   DIS, an optical flow (Kroeger et al., ECCV 2016), from the sharp instant to
                         each other instant
    shifts -> curves     a smooth curve in time for each pixel, near its shifts (curves.py)
    curves -> picture    all nine pictures, moved back to the sharp instant: their mean has less
                         noise than the picture of the sharp instant
    picture -> shifts    DIS again, from this mean to each other instant (the shifts there), and
                         from the other instant to this mean (the shifts back)
    shifts -> Motion     curves near the shifts there, and their expected errors. An error is large
                         if the shifts there and back do not end at the pixel where they began

A picture is the light of some planes, where a plane is one binary picture of the spike camera. So a
picture is far sharper than the blurry frame, but it has no colour and more noise.

Called by data/motion/method.py (`--method joint`) and data/motion/learned.py (the fusion "motion").
The sharp instant is the time of the wanted sharp frame. A shift moves a point by x and y, in RGB
pixels. Times are planes after the sharp instant. H x W is the size of a frame, h x w the size of a
plane. "A pixel of median light" is a spike pixel: half of the spike pixels have less light.

What must stay:

    * The nine times of `motion_times`, because learned.py evaluates its curves at the same times.
    * The weights of the fusion "motion" were trained with these motions and these expected errors.
      So another constant here makes them a little worse until they are trained anew.

Tests: tests/parts/data/test_flow.py. It compares motions and expected errors with the true motion
of simulated scenes.
"""

import cv2
import numpy as np

from data.motion.curves import curves_of
from data.motion.exposure import Recording
from data.motion.light import DIM_SPIKES, FEW_SPIKES, median_spikes
from data.motion.shifts import INSTANTS, Motion, motion_times, values_at_shifts
from data.motion.spike_pictures import pictures_at
from data.motion.view import View

# If spikes are few, DIS compares squares of the side PATCH, and their distance is STRIDE, in
# pixels. The defaults of DIS are 8 and 3. Small squares find small things that move by themselves,
# but with few spikes they follow the noise.
PATCH = 16
STRIDE = 4
# Unless light is dim, the first search and the search back are less exact. The distance of the
# squares is one pixel more, and fewer steps refine each scale (the default of DIS is 5). It saves a
# tenth of the time of a frame and costs 0.01 dB. In dim light it would cost 0.04 dB. No test
# notices.
QUICK_STRIDE_MORE = 1
QUICK_REFINEMENT = 2
# Least side of a picture. DIS refuses pictures that are smaller than its squares.
LEAST_SIDE = 2 * PATCH
# The difference of the shifts there and back, in the expected error, is a Gaussian mean with this
# sigma in pixels: at a single pixel, both may agree by chance.
DIFFERENCE_SIGMA = 4.0
# The expected error of a shift, in pixels. Its three parts were chosen on scenes whose motion is
# known (tests/parts/data/test_flow.py).
LEAST_ERROR = 0.15  # error of a still pixel
ERROR_BY_DIFFERENCE = 0.7  # more for each pixel by which the shifts there and back differ
ERROR_BY_LENGTH = 0.05  # more for each pixel of the shift
# If spikes are few, noise misleads the shifts there and back alike, so their difference says too
# little. So all expected errors are multiplied by this factor.
FACTOR_IF_FEW = 2.5


def motion_of(
    recording: Recording, view: View, gain: np.ndarray, start_motion: Motion | None = None
) -> Motion:
    """Measure the motion within an exposure.

    gain: (h, w), spikes per plane of each spike pixel at full light.
    start_motion: a motion at which the search of each time begins, e.g. the motion of a network.
    None: a search begins at the motion of the nearer time, continued at the same speed. The first
    search on each side of the sharp instant begins without motion.
    """
    search_times = motion_times(recording)
    spikes = median_spikes(recording)
    is_dim = spikes < DIM_SPIKES
    has_few_spikes = spikes < FEW_SPIKES
    all_times = [0.0, *search_times]
    pictures = pictures_at(recording, view, gain, all_times, spikes)
    picture_at = dict(zip(all_times, pictures, strict=True))  # time -> (H, W) uint8
    times = sorted(picture_at)
    exact_dis = _make_dis(has_few_spikes)
    quick_dis = exact_dis if is_dim else _make_quick_dis(has_few_spikes)

    # The first search, from the picture of the sharp instant.
    shifts_at = _first_search(quick_dis, picture_at, search_times, start_motion)
    shifts = np.stack([shifts_at[time] for time in times])
    curves = curves_of(times, shifts, _error_by_length(shifts), with_shake=not is_dim)

    # The second search begins at the curves. It looks from the mean of all pictures, which has less
    # noise than the picture of the sharp instant.
    pictures = [picture_at[time] for time in times]
    mean_picture = _mean_picture(pictures, curves)
    shifts = np.zeros_like(curves)
    errors = np.zeros(curves.shape[:3], np.float32)
    for index, time in enumerate(times):
        if time == 0:  # the sharp instant itself: no shift, no error
            continue
        shifts_there = _search_shifts(exact_dis, mean_picture, pictures[index], curves[index])
        # The search back begins at about the inverse of the shifts there.
        inverse = -values_at_shifts(shifts_there, -shifts_there)
        shifts_back = _search_shifts(quick_dis, pictures[index], mean_picture, inverse)
        shifts[index] = shifts_there
        errors[index] = expected_error(shifts_there, shifts_back)
    if has_few_spikes:
        errors *= FACTOR_IF_FEW
    # The last curves: now each shift counts by its own expected error.
    curves = curves_of(times, shifts, errors, with_shake=not is_dim)
    return Motion(np.array(times), curves, errors)


def _first_search(
    dis: cv2.DenseOpticalFlow,
    picture_at: dict[float, np.ndarray],
    search_times: list[float],
    start_motion: Motion | None,
) -> dict[float, np.ndarray]:
    """Search the shifts (H, W, 2) from the sharp instant to each time. Return time -> shifts.

    picture_at: time -> its picture, (H, W) uint8. search_times: in the order of `motion_times`.
    start_motion: where the searches begin, as in `motion_of`.
    """
    # The times before, and the times after, lead away from the sharp instant. So the result of one
    # time is a good start for the next time.
    times_before = search_times[: len(INSTANTS)]
    times_after = search_times[len(INSTANTS) :]
    sharp_picture = picture_at[0.0]
    shifts_at = {0.0: np.zeros((*sharp_picture.shape, 2), np.float32)}
    for times_of_side in (times_before, times_after):
        former_time = 0.0  # nearer to the sharp instant than `time`
        for time in times_of_side:
            if start_motion is not None:
                start, _ = start_motion.at(time)
            else:
                start = _extrapolate(shifts_at[former_time], former_time, time)
            shifts_at[time] = _search_shifts(dis, sharp_picture, picture_at[time], start)
            former_time = time
    return shifts_at


def _mean_picture(pictures: list[np.ndarray], shifts: np.ndarray) -> np.ndarray:
    """Return the mean (H, W) uint8 of all pictures, moved back to the sharp instant.

    pictures: K pictures (H, W) uint8. shifts: (K, H, W, 2), from the sharp instant to each picture.
    """
    total = np.zeros(shifts.shape[1:3], np.float32)
    for picture, shift in zip(pictures, shifts, strict=True):
        total += values_at_shifts(picture.astype(np.float32), shift)
    return np.rint(total / len(pictures)).astype(np.uint8)


def _make_dis(has_few_spikes: bool) -> cv2.DISOpticalFlow:
    """Make the optical flow DIS. With few spikes, it compares larger squares."""
    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    if has_few_spikes:
        dis.setPatchSize(PATCH)
        dis.setPatchStride(STRIDE)
    return dis


def _make_quick_dis(has_few_spikes: bool) -> cv2.DISOpticalFlow:
    """Make the optical flow DIS, faster and less exact than from `_make_dis`."""
    dis = _make_dis(has_few_spikes)
    dis.setPatchStride(dis.getPatchStride() + QUICK_STRIDE_MORE)
    dis.setVariationalRefinementIterations(QUICK_REFINEMENT)
    return dis


def _extrapolate(shifts: np.ndarray, former_time: float, time: float) -> np.ndarray:
    """Return the shifts (H, W, 2) at a time if the motion goes on at the same speed.

    E.g. at 20 planes after the sharp instant they are twice the shifts at 10 planes.
    shifts: (H, W, 2), the shifts at `former_time`.
    """
    if former_time == 0:  # the sharp instant: the shifts are 0, and the speed is not known
        return shifts
    return shifts * np.float32(time / former_time)


def _search_shifts(
    dis: cv2.DenseOpticalFlow, from_picture: np.ndarray, to_picture: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Search the shifts (H, W, 2) from one picture to another, both (H, W) uint8.

    What is at p in `from_picture` is at p + shifts[p] in `to_picture`.
    start: (H, W, 2), shifts where the search begins. It stays as it is.
    """
    # DIS refuses small pictures. They are padded below and at the right by repeating their edges.
    height, width = from_picture.shape
    rows_below = max(LEAST_SIDE - height, 0)
    columns_right = max(LEAST_SIDE - width, 0)

    def pad(values: np.ndarray) -> np.ndarray:
        """Return values (H, W) or (H, W, 2) with repeated edges, as a copy."""
        return cv2.copyMakeBorder(values, 0, rows_below, 0, columns_right, cv2.BORDER_REPLICATE)

    # DIS overwrites its third argument with the result, so it gets a copy of `start`.
    shifts = dis.calc(pad(from_picture), pad(to_picture), pad(start))
    return np.ascontiguousarray(shifts[:height, :width])


def expected_error(shifts_there: np.ndarray, shifts_back: np.ndarray) -> np.ndarray:
    """Return the expected length of the error (H, W) of `shifts_there`, in pixels.

    Follow the shift of a pixel there, and from the point where it ends the shift back. If this does
    not end at the pixel, one of both shifts is wrong: because of noise, of an occlusion, or of a
    thing that is too small and too fast for the search.

    shifts_there: (H, W, 2), from the sharp instant to another time.
    shifts_back: (H, W, 2), from this other time to the sharp instant.
    """
    # Distance between a pixel and the point where the shifts there and back end, (H, W).
    there_and_back = shifts_there + values_at_shifts(shifts_back, shifts_there)
    difference = np.linalg.norm(there_and_back, axis=-1)
    # The size (0, 0) lets OpenCV choose the size of the kernel for this sigma.
    mean_difference = cv2.GaussianBlur(difference, (0, 0), DIFFERENCE_SIGMA)
    return _error_by_length(shifts_there) + ERROR_BY_DIFFERENCE * mean_difference


def _error_by_length(shifts: np.ndarray) -> np.ndarray:
    """Return the expected errors (...) of shifts (..., 2) whose shifts back are not known."""
    return LEAST_ERROR + ERROR_BY_LENGTH * np.linalg.norm(shifts, axis=-1)

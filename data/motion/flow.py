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

Tests: tests/parts/data/test_motion.py. It compares motions and expected errors with the true motion
of simulated scenes.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from data.motion.curves import curves_of
from data.motion.recording import Recording, View
from data.spike.light import window_light
from data.spike.pictures import to_display, to_uint8

# Instants at which motion is measured on each side of the sharp instant, as shares of the time from
# the sharp instant to the begin or the end of the exposure.
INSTANTS = (0.25, 0.5, 0.75, 1.0)
# A pixel of a picture has as many planes as bring this number of spikes. With fewer spikes it
# would have more noise. With more spikes it would have more blur.
SPIKES_OF_PICTURE = 3.0
# A picture has at least this share of the planes of the exposure. It matters in bright light: a
# larger value would blur, a smaller value would make the pictures of few planes uneven. The
# nine instants are about an eighth of an exposure (0.125) apart, so these pictures do not overlap.
LEAST_PICTURE = 0.11
# A picture has at most this share of the planes of the exposure. It matters in dim light: a larger
# value would blur, a smaller value would leave more noise.
MOST_PICTURE = 0.4
# The light around a pixel decides how many planes it has. It is a Gaussian mean with this sigma, in
# spike pixels. The same number of planes for all pixels lost 0.05 dB on the photographs of
# lab/joint_gain.py and 0.12 dB on its part "seven". No test notices.
LIGHT_SIGMA = 1.5
# Least number of spikes in an exposure where it is a divisor: without it, an exposure without any
# spike would divide by 0.
LEAST_SPIKES = 1e-6
# Light is dim if a pixel of median light has fewer spikes than this in an exposure. In dim light,
# the curves have no shake (curves.py), learned.py asks the network, too (`by_both` there has what
# was measured), and joint.py makes fewer groups of planes.
DIM_SPIKES = 5.0
# Spikes are few if a pixel of median light has fewer spikes than this in an exposure: fewer than
# two in a ninth of the exposure. Then DIS compares larger squares, each picture is read from its
# own planes alone, and larger errors are expected. tests/parts/data/test_motion.py passes with 0,
# too, so measure another value as joint.py says for its constants.
FEW_SPIKES = 18.0
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
# Sigma in RGB pixels by which pictures are smoothed before DIS sees them. A smaller value leaves
# more noise of the spikes, a larger value blurs small things.
PICTURE_SIGMA = 1.5
# Number of steps in which a field of shifts is inverted. Each step multiplies the error by about
# the gradient of the field, which is far below 1 where neighbours move alike. E.g. with a gradient
# of 0.1, four steps leave 1/10,000 of the error. With 0 steps,
# test_the_way_back_is_the_inverse_of_the_way_there fails.
INVERSION_STEPS = 4
# The difference of the shifts there and back, in the expected error, is a Gaussian mean with this
# sigma in pixels: at a single pixel, both may agree by chance.
DIFFERENCE_SIGMA = 4.0
# The expected error of a shift, in pixels. Its three parts were chosen on scenes whose motion is
# known (tests/parts/data/test_motion.py).
LEAST_ERROR = 0.15  # error of a still pixel
ERROR_BY_DIFFERENCE = 0.7  # more for each pixel by which the shifts there and back differ
ERROR_BY_LENGTH = 0.05  # more for each pixel of the shift
# If spikes are few, noise misleads the shifts there and back alike, so their difference says too
# little. So all expected errors are multiplied by this factor.
FACTOR_IF_FEW = 2.5


@dataclass(frozen=True)
class Motion:
    """Shifts of the pixels of the sharp instant to other times of the exposure.

    What is at p in the sharp instant is at p + shifts[k][p] at the time times[k].
    """

    times: np.ndarray  # (K,) planes after the sharp instant, ascending; 0 is one of them
    shifts: np.ndarray  # (K, H, W, 2) float32, x and y in RGB pixels
    errors: np.ndarray  # (K, H, W) float32, expected length of the error of each shift, in pixels

    def at(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the shifts (H, W, 2) and their errors (H, W) at any time.

        Both are interpolated linearly between the two nearest measured times. Before the first and
        after the last measured time, they are extrapolated from the two nearest measured times.
        """
        # The indices `left` and `right` of the two times between which the shifts are interpolated,
        # or from which they are extrapolated. E.g. with the times -10, 0, 10:
        #
        #     time     left, right
        #     4        1, 2
        #     -15      0, 1           right is at least 1
        #     15       1, 2           right is at most 2
        first_not_before = int(np.searchsorted(self.times, time))
        right = int(np.clip(first_not_before, 1, len(self.times) - 1))
        left = right - 1
        time_left = self.times[left]
        time_right = self.times[right]
        # 0 at time_left and 1 at time_right. It is float32, so that the results are float32, too.
        weight_right = np.float32((time - time_left) / (time_right - time_left))
        weight_left = 1 - weight_right
        shifts = weight_left * self.shifts[left] + weight_right * self.shifts[right]
        errors = weight_left * self.errors[left] + weight_right * self.errors[right]
        return shifts, errors

    def back(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the shifts from the pixels of another time back to the sharp instant.

        Returns the shifts (H, W, 2) and their errors (H, W). What is at the pixel p at this time
        lies at p + back[p] in the sharp instant. From the point p + back[p], the shift of the sharp
        instant leads to p. So

            back[p] = -shifts[p + back[p]]

        The equation is solved by repetition: each step puts the last `back` into the right side.
        """
        shifts, errors = self.at(time)
        negative_shifts = np.negative(shifts, out=shifts)  # in place, because `at` made a new array
        back = negative_shifts  # exact if all pixels move alike
        for _ in range(INVERSION_STEPS):
            back = values_at_shifts(negative_shifts, back)
        return back, values_at_shifts(errors, back)


def motion_times(recording: Recording) -> list[float]:
    """Return the times at which motion is measured, in planes after the sharp instant.

    First come the times before the sharp instant, then the times after it. On both sides the times
    lead away from the sharp instant. E.g. an exposure from 40 planes before the sharp instant to 48
    planes after it has the times -10, -20, -30, -40, 12, 24, 36, 48. `motion_of` relies on this
    order.
    """
    planes_before = recording.sharp - recording.begin
    planes_after = recording.end - recording.sharp
    times_before = [-instant * planes_before for instant in INSTANTS]
    times_after = [instant * planes_after for instant in INSTANTS]
    return times_before + times_after


def median_spikes(recording: Recording) -> float:
    """Return the number of spikes in the exposure of a pixel of median light."""
    [rates] = recording.spike_rates([(recording.begin, recording.end)])  # spikes per plane, (h, w)
    return float(np.median(rates)) * recording.length


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
    pictures = _pictures_at(recording, view, gain, all_times, spikes)
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


def _pictures_at(
    recording: Recording, view: View, gain: np.ndarray, times: list[float], spikes: float
) -> list[np.ndarray]:
    """Return pictures (H, W) uint8 on the RGB grid, one for each time.

    times: planes after the sharp instant. spikes: number of spikes of a pixel of median light in
    the exposure.
    """
    rates = _rates_at(recording, times, spikes)

    # Where the RGB pixels lie on the spike plane, (H, W) each.
    on_plane = view.pixels_on_plane()  # (H, W, 2)
    x = on_plane[..., 0]
    y = on_plane[..., 1]
    pictures = []
    for rate in rates:
        # A spike pixel at full light has the rate `gain`, so rate / gain is what it integrates.
        integrated = np.clip(rate / gain, 0, 1).astype(np.float32)  # (h, w)
        display = integrated if view.is_display else to_display(integrated)
        picture = cv2.remap(display, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        # The size (0, 0) lets OpenCV choose the size of the kernel for this sigma.
        smooth_picture = cv2.GaussianBlur(picture, (0, 0), PICTURE_SIGMA)
        pictures.append(to_uint8(smooth_picture))
    return pictures


def _rates_at(recording: Recording, times: list[float], spikes: float) -> list[np.ndarray]:
    """Return the spikes per plane (h, w) around each time.

    The number of planes differs from pixel to pixel: it brings about SPIKES_OF_PICTURE = 3 spikes.
    So a star moves sharply through a dark sky, whose pixels have many planes and so little noise.

    A window is the planes around a time that make a picture. Its length is a share of the exposure.
    Rates are measured in the shortest and in the longest window only, and each pixel mixes both.
    times, spikes: as in `_pictures_at`.
    """
    has_few_spikes = spikes < FEW_SPIKES
    # 1. The shortest windows. E.g. 30 spikes in the exposure: 3 / 30 = 0.1 of it brings 3 spikes,
    # which is less than LEAST_PICTURE, so all pixels have the shortest window.
    share_at_median = SPIKES_OF_PICTURE / max(spikes, LEAST_SPIKES)
    longest_share = float(np.clip(share_at_median, LEAST_PICTURE, MOST_PICTURE))
    short_rates = _rates_of_windows(recording, times, LEAST_PICTURE, has_few_spikes)  # (K, h, w)
    if longest_share <= LEAST_PICTURE:
        return list(short_rates)

    # 2. The share of the exposure that each pixel needs. The most light that it sees at any time
    # decides: if a star comes by, the pixel has the shortest window in all nine pictures. A pixel
    # of less light than the median has the longest window.
    rates_around = [cv2.GaussianBlur(rate, (0, 0), LIGHT_SIGMA) for rate in short_rates]
    most_spikes = np.max(rates_around, axis=0) * recording.length  # in the exposure, (h, w)
    needed_share = SPIKES_OF_PICTURE / np.maximum(most_spikes, max(spikes, LEAST_SPIKES))
    share = np.clip(needed_share, LEAST_PICTURE, longest_share)

    # 3. The mix: 0 at the shortest share, 1 at the longest share, linear in the logarithm between.
    weight_of_long = np.log(share / LEAST_PICTURE) / np.log(longest_share / LEAST_PICTURE)
    weight_of_long = weight_of_long.astype(np.float32)  # (h, w)
    long_rates = _rates_of_windows(recording, times, longest_share, has_few_spikes)
    return list((1 - weight_of_long) * short_rates + weight_of_long * long_rates)


def _rates_of_windows(
    recording: Recording, times: list[float], share: float, has_few_spikes: bool
) -> np.ndarray:
    """Return the spikes per plane in a window around each time, (K, h, w) float32.

    times: planes after the sharp instant. share: length of a window, as a share of the exposure.
    """
    planes = share * recording.length
    windows = [recording.window(recording.sharp + time, planes) for time in times]
    if not has_few_spikes:
        return recording.spike_rates(windows)
    # With few spikes, an interval between two spikes reaches into several windows. All of these
    # windows would show the same light, so nothing would seem to move. So each window is read as if
    # no other planes had been recorded.
    rates = []
    for first, end in windows:
        planes_of_window = recording.stream[first:end]
        count = end - first
        [light] = window_light(planes_of_window, [(0, count)])
        rates.append(light / count)
    return np.stack(rates).astype(np.float32)


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


def values_at_shifts(picture: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Return the values of a picture (H, W[, C]) float32 at p + shifts[p], for each pixel p.

    The values are interpolated bilinearly, and the edges of the picture are repeated.
    """
    height, width = shifts.shape[:2]
    x = np.arange(width, dtype=np.float32)[None] + shifts[..., 0]
    y = np.arange(height, dtype=np.float32)[:, None] + shifts[..., 1]
    return cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

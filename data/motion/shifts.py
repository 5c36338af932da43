"""Hold the motion within an exposure: the shifts of all pixels to nine times.

The sharp instant is the time of the wanted sharp frame. A plane is one binary picture of the spike
camera, and time is counted in planes from the sharp instant. E.g. the time 12 is 12 planes after
it, and -10 is 10 planes before it. A shift moves a point by x and y, in RGB pixels. A frame has H x
W pixels.

    Motion              shifts and their expected errors. What is at p at the sharp instant is at
                        p + shifts[k][p] at the time times[k]
    motion_times        the times at which all motions are given
    values_at_shifts    the values of a picture at p + shifts[p]
    lengths_of          lengths of shifts

What must stay: the times of `motion_times`. In dim light, finder.py takes the mean of two motions,
and both motions must have the same times. Also, the weights of the fusion operator "motion"
(models/fusion/fusion_motion.py) were trained with motions at these times. The tests notice a wrong
interpolation and wrong shifts back.

Tests: tests/parts/data/test_shifts.py, tests/parts/data/test_flow.py
"""

from dataclasses import dataclass

import cv2
import numpy as np

from data.motion.exposure import Recording

# Number of steps in which `Motion.back` inverts the shifts. Each step multiplies the error by about
# the gradient of the shifts, i.e. by how much the shift changes from one pixel to the next. E.g.
# with a gradient of 0.1, four steps leave 1/10,000 of the error. With 0 steps,
# test_the_way_back_is_the_inverse_of_the_way_there fails.
INVERSION_STEPS = 4
# Number of steps if `Motion.back` gets a start. A start is wrong by only about 0.1 pixels. With the
# same gradient, two steps leave 1/100 of this error: 0.001 pixels. With 0 steps,
# test_a_near_start_gives_the_same_way_back fails.
STEPS_FROM_START = 2


@dataclass(frozen=True)
class Motion:
    """The shifts of all pixels from the sharp instant to K times of the exposure."""

    # (K,) ascending, in planes after the sharp instant: the times of `motion_times`, and 0.
    times: np.ndarray
    shifts: np.ndarray  # (K, H, W, 2) float32, x and y in RGB pixels
    errors: np.ndarray  # (K, H, W) float32, expected length of the error of each shift, in pixels

    def at(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the shifts (H, W, 2) and their errors (H, W) at any time.

        Both are interpolated linearly between the two nearest measured times. Before the first and
        after the last measured time, they are extrapolated from the two nearest measured times.
        """
        # Find the indices `left` and `right` of the two measured times. `right` is the first
        # measured time that is not before `time`. `right` is limited to 1 ... K - 1, so that it
        # exists and has a left neighbour. E.g. with the measured times -10, 0, 10:
        #
        #     time    first_not_before    left    right
        #     4       2                   1       2
        #     -15     0                   0       1
        #     15      3                   1       2
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

    def back(self, time: float, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the shifts from the pixels of another time back to the sharp instant.

        Returns the shifts (H, W, 2) and their errors (H, W).

        `at` says where a point of the sharp instant moves. This method is the inverse: a point that
        is at p at the other time was at q = p + back[p] at the sharp instant. The shift of q leads
        from q to p, which is the opposite way:

            back[p] = -shifts[q] = -shifts[p + back[p]]

        `back` is on both sides, so it is found by a fixed-point iteration: each step puts the last
        `back` into the right side. E.g. on a line, with shifts[q] = 0.1 q, the point 10 moves by 1
        to 11. So back[11] must become -1:

            begin     back[11] = -shifts[11]        = -0.1 x 11    = -1.1
            step 1    back[11] = -shifts[11 - 1.1]  = -0.1 x 9.9   = -0.99
            step 2    back[11] = -shifts[11 - 0.99] = -0.1 x 10.01 = -1.001

        start: (H, W, 2), the first `back`, e.g. the result for a near time. With a start, fewer
        steps are needed. If start is None, the first `back` is -shifts, which is right if all
        pixels move alike.
        """
        shifts, errors = self.at(time)
        negative_shifts = np.negative(shifts, out=shifts)  # in place, because `at` made a new array
        if start is None:
            back = negative_shifts
            steps = INVERSION_STEPS
        else:
            back = start
            steps = STEPS_FROM_START
        for _ in range(steps):
            back = values_at_shifts(negative_shifts, back)
        return back, values_at_shifts(errors, back)


def values_at_shifts(picture: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Return the values of a picture (H, W[, C]) float32 at p + shifts[p], for each pixel p.

    The values are interpolated bilinearly, and the edges of the picture are repeated. E.g. the row
    10, 20, 30 with the shift 0.5 to the right at each pixel gives 15, 25, 30.

    shifts: (H, W, 2) float32, x and y in pixels.
    """
    height, width = shifts.shape[:2]
    x = np.arange(width, dtype=np.float32)[None] + shifts[..., 0]
    y = np.arange(height, dtype=np.float32)[:, None] + shifts[..., 1]
    return cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def lengths_of(shifts: np.ndarray) -> np.ndarray:
    """Return the lengths (...) of shifts (..., 2), in pixels."""
    # `np.linalg.norm(shifts, axis=-1)` has the same results and takes three times as long.
    x = shifts[..., 0]
    y = shifts[..., 1]
    return np.sqrt(x * x + y * y)


# Where motion is measured on each side of the sharp instant, as shares of the time from the sharp
# instant (0) to the beginning or the end of the exposure (1). Two places rely on these shares:
#
#     flow.py              `_has_search_back` needs an even number of shares
#     spike_pictures.py    LEAST_PICTURE follows from the distance of two times, 1/8 exposure
INSTANTS = (0.25, 0.5, 0.75, 1.0)


def motion_times(recording: Recording) -> list[float]:
    """Return the times at which motion is measured, in planes after the sharp instant.

    E.g. an exposure from 40 planes before the sharp instant to 48 planes after it:

        before the sharp instant    -10, -20, -30, -40
        after the sharp instant     12, 24, 36, 48

    The times are in the order of the search (`motion_of` in flow.py), which leads away from the
    sharp instant on both sides. `motion_of` then sorts them, and adds 0, the sharp instant.

    With another order on a side, test_the_times_of_a_motion_lead_away_from_the_sharp_instant fails.
    """
    planes_before = recording.sharp - recording.begin
    planes_after = recording.end - recording.sharp
    times_before = [-instant * planes_before for instant in INSTANTS]
    times_after = [instant * planes_after for instant in INSTANTS]
    return times_before + times_after

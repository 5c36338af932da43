"""data/motion/shifts.py: the motion at times between the measured times, and the way back.

A motion has the shift of each pixel at some times. Time 0 is the sharp instant, where all shifts
are 0. The shift at time t says where a pixel of the sharp frame is at time t. The way back says
where a pixel of time t was at the sharp instant.
"""

import numpy as np
import pytest

from data.motion.exposure import Recording
from data.motion.shifts import Motion, motion_times, values_at_shifts

# Rows and columns of a frame, in pixels.
SIZE = (6, 8)


def motion_by(x_at_times: dict[float, float]) -> Motion:
    """Return a motion of all pixels along x. x_at_times: time -> shift in pixels.

    The error of a shift is a tenth of its distance in time from the sharp instant, e.g. 1.0 at the
    times -10 and 10.
    """
    shifts = np.zeros((len(x_at_times), *SIZE, 2), np.float32)
    errors = np.zeros((len(x_at_times), *SIZE), np.float32)
    for index, (time, x) in enumerate(x_at_times.items()):
        shifts[index, ..., 0] = x
        errors[index] = abs(time) / 10
    return Motion(np.array(list(x_at_times)), shifts, errors)


# Between two measured times, the shift and its error are on a straight line: 4/10 of the way from
# 0 to 5 at time 4. Time 30 lies beyond the measured times. After the last measured time, the motion
# keeps its last speed, 0.5 pixels per plane.
@pytest.mark.parametrize(
    ("time", "x", "error"),
    [(-10.0, -3.0, 1.0), (-5.0, -1.5, 0.5), (0.0, 0.0, 0.0), (4.0, 2.0, 0.4), (30.0, 15.0, 3.0)],
)
def test_a_shift_between_measured_times_is_interpolated(time, x, error):
    shifts, errors = motion_by({-10.0: -3.0, 0.0: 0.0, 10.0: 5.0}).at(time)

    assert shifts[..., 0] == pytest.approx(np.full(SIZE, x))
    assert shifts[..., 1] == pytest.approx(np.zeros(SIZE))
    assert errors == pytest.approx(np.full(SIZE, error))


def test_the_way_back_of_an_even_motion_is_its_negative():
    back, _ = motion_by({-10.0: -3.0, 0.0: 0.0, 10.0: 5.0}).back(10.0)

    assert back[..., 0] == pytest.approx(np.full(SIZE, -5.0))


def test_a_near_start_gives_the_same_way_back():
    # A zoom: at time 10, the pixel of column c has moved to column 1.2 c. `back` repeats a step
    # that improves its result. In this zoom, each step leaves a fifth of the error.
    zoom = motion_by({-10.0: 0.0, 0.0: 0.0, 10.0: 0.0})
    zoom.shifts[2, ..., 0] = 0.2 * np.arange(SIZE[1], dtype=np.float32)
    former, _ = zoom.back(9.0)

    back, _ = zoom.back(10.0, start=former)

    # At time 10, column c is moved by 0.2 c. So a pixel that is at column c at time 10 was at
    # column c / 1.2 at the sharp instant.
    columns = np.arange(SIZE[1])
    assert back[..., 0] == pytest.approx(np.tile(columns / 1.2 - columns, (SIZE[0], 1)), abs=0.01)


def test_the_times_of_a_motion_lead_away_from_the_sharp_instant():
    stream = np.zeros((100, 2, 2), np.uint8)
    # There are 40 planes before the sharp instant, and 48 planes after it.
    recording = Recording(np.zeros((4, 4, 3), np.float32), stream, begin=5, end=93, sharp=45.0)

    assert motion_times(recording) == [-10, -20, -30, -40, 12, 24, 36, 48]


def test_a_picture_is_read_at_the_point_to_which_a_shift_leads():
    picture = np.tile(np.arange(8, dtype=np.float32), (6, 1))  # the value of a pixel is its column
    shifts = np.zeros((*SIZE, 2), np.float32)
    shifts[..., 0] = 1.5

    values = values_at_shifts(picture, shifts)

    # Pixel c reads at column c + 1.5. Beyond the last column, 7, the last column is repeated.
    assert values[0] == pytest.approx([1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7, 7])

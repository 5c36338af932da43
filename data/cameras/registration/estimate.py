"""Hold the present estimate of a fit, and change it within its limits.

An estimate is a matrix and three times: middle, length and roll of the exposure. Each round of a
fit changes them by a step: an amount for each of the CHANGES of the matrix (matrix.py), and a
change of each time. Steps have limits, because the equations of a step hold only for small changes.
The times themselves have limits, too.

What must stay: the limits, because other limits give other results.

Tests: tests/parts/data/test_registration_rounds.py has the limits of the times.
tests/parts/data/test_registration_fit.py fails if LARGEST_STEP is too small.
"""

from collections.abc import Sequence

import numpy as np

from data.cameras.calibration import scale_of
from data.cameras.registration.matrix import CHANGES, MODELS, changed_matrix, coordinates_of
from data.cameras.registration.view import MOST_REACH, Pair

# Largest amount of a change of the matrix in one step. The coordinates of the plane go from -1 to 1
# along its longer side, so a shift of 0.1 is a twentieth of this side. A larger step could lead
# away from the result. With 0.002, the rounds would end before the result is reached.
LARGEST_STEP = 0.1
# Largest change of a time in one step, in planes. A step is computed from the spikes in up to
# MOST_REACH planes before and after the start and the end of the exposure. A larger step would
# reach planes from which nothing was computed.
LARGEST_TIME_STEP = MOST_REACH
# The ranges of the three times. `limits_of_time_steps` below keeps the times in their ranges.
#
#     offset    -most_offset ... most_offset, an argument of `Estimate`. `fit` passes MOST_OFFSET
#               (fit.py, 20 planes), or the number of --search-planes of scripts/calibrate.py
#     length    LEAST_LENGTH ... MOST_LENGTH, as fractions of the exposure's planes
#     roll      -MOST_ROLL ... MOST_ROLL, as fractions of the exposure's planes
#
# If the true time is outside of its range, the search ends at the limit. A length of more than 1 is
# allowed, because noise makes a true length of 1 longer as often as shorter. Chosen by hand.
LEAST_LENGTH = 0.4
MOST_LENGTH = 1.05
MOST_ROLL = 0.2


class Estimate:
    """The present estimate: a matrix and three times.

    The times are in planes. The middle counts from the nominal start of the exposure, which is the
    start that the files say.

        matrix   M (3, 3), spike pixel -> RGB pixel, both binned (fit.py joins pixels of large
                 planes)
        middle   middle of the exposure
        length   length of the exposure
        roll     a row at y is exposed roll * y planes later than the middle row. In a square plane,
                 y goes from -1 at the top to 1 at the bottom

    Only the methods `change_matrix` and `change_times` change the matrix and the times. The rounds
    also store the errors of the estimate here. Errors of the matrix are in pixels of the binned
    frame.
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
        fits_middle: whether the middle of the exposure is fitted. If not, the middle keeps its
        nominal value, so the offset stays 0.
        """
        # What is given.
        self.pairs = pairs
        self.most_offset = most_offset
        self.fits_middle = fits_middle
        number_of_changes = MODELS[model] if model else 0
        self.changes = CHANGES[:number_of_changes]  # (k, 3, 3)
        self.nominal_planes = pairs[0].count
        # Whether the times are fitted. If no stream has enough planes around the exposure, the
        # times keep their nominal values.
        self.fits_times = any(pair.has_room() for pair in pairs)
        height, width = pairs[0].sums.shape[1:]
        self.coordinates = coordinates_of(height, width)

        # The estimate begins with the nominal times: light is collected during all planes of the
        # exposure, and all rows are exposed at the same time.
        self.matrix = matrix
        self.middle = self.nominal_planes / 2
        self.length = float(self.nominal_planes)
        self.roll = 0.0

        # All further attributes are results of the rounds. No round has run yet, so the errors are
        # infinite.

        # Fraction of the variance of the spikes' details that the frames explain.
        self.explained = 0.0

        # The last round on all pixels (all_pixels.py) sets the next three attributes.
        # Standard errors of the offset in planes, and of the share (length / nominal planes).
        self.time_errors = (np.inf, np.inf)
        # Whether a moved camera may explain the clip nearly as well as the offset
        # (`Middle.is_doubtful` in times.py).
        self.is_middle_doubtful = False
        # The part of the error of the matrix that comes from the error of the offset.
        self.error_by_offset = 0.0

        # The last round on parts of the plane (parts.py) sets the next two attributes.
        self.matrix_error = np.inf  # standard error, without `error_by_offset`
        self.remaining_shifts = np.empty(0)  # (t,), what remains of the shift of each part

    @property
    def is_matrix_fixed(self) -> bool:
        """Return whether the matrix keeps its value."""
        return len(self.changes) == 0

    @property
    def offset(self) -> float:
        """The number of planes by which the middle is later than the files say."""
        return self.middle - self.nominal_planes / 2

    @property
    def rgb_per_half_side(self) -> float:
        """RGB pixels per unit of the coordinates, which go from -1 to 1."""
        return self.coordinates.half_side * scale_of(self.matrix)

    def ends_of_exposure(self) -> tuple[np.ndarray, np.ndarray]:
        """Return start and end (h,) of each row's exposure, in planes from the nominal start.

        E.g. middle 28, length 56 and roll 4: the top row of a square plane (y = -1) is exposed from
        -4 to 52, the middle row from 0 to 56, and the bottom row from 4 to 60.
        """
        y_of_rows = self.coordinates.y[:, 0]  # (h,), -1 ... 1 from top to bottom of a square plane
        later = self.roll * y_of_rows
        start = self.middle - self.length / 2 + later
        end = self.middle + self.length / 2 + later
        return start, end

    def change_matrix(self, step: np.ndarray) -> np.ndarray:
        """Change the matrix by a step (k,), the amounts of the first k CHANGES.

        If the largest amount is above LARGEST_STEP, all amounts are scaled down by one factor, so
        that the largest amount is LARGEST_STEP. Returns the amounts that were applied, (k,).
        """
        # E.g. LARGEST_STEP 0.1 and the step (0.2, 0.1, 0, 0) give the change (0.1, 0.05, 0, 0).
        largest = np.abs(step).max() + 1e-12  # not 0, because it is a divisor
        change = step * min(1.0, LARGEST_STEP / largest)
        self.matrix = changed_matrix(self.matrix, change, self.coordinates.from_pixels)
        return change

    def limits_of_time_steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest change of middle, length and roll, (3,) each.

        If the times are not fitted, both arrays are empty.

        With other limits, test_the_first_step_of_times_is_within_its_limits fails.
        """
        if not self.fits_times:
            return np.empty(0), np.empty(0)
        # The limits of the values: offset, length and roll. A change of the middle changes the
        # offset by the same amount. most_offset is MOST_OFFSET (fit.py) or --search-planes.
        planes = self.nominal_planes
        values = np.array((self.offset, self.length, self.roll))
        lowest = np.array((-self.most_offset, LEAST_LENGTH * planes, -MOST_ROLL * planes))
        highest = np.array((self.most_offset, MOST_LENGTH * planes, MOST_ROLL * planes))
        # A change must keep the values within these limits, and must itself be at most
        # LARGEST_TIME_STEP. E.g. most_offset 20 and an offset of 15: the middle may change by
        # -8 ... 5 planes.
        least_change = np.maximum(lowest - values, -LARGEST_TIME_STEP)
        most_change = np.minimum(highest - values, LARGEST_TIME_STEP)
        return least_change, most_change

    def change_times(self, step: np.ndarray) -> None:
        """Change middle, length and roll by a step (3,), which is within the limits."""
        later, longer, rolled = step.tolist()
        self.middle += later
        self.length += longer
        self.roll += rolled

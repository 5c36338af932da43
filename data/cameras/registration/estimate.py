"""Hold the present estimate of a fit, and change it within its limits."""

from collections.abc import Sequence

import numpy as np

from data.cameras.registration.matrix import CHANGES, MODELS, coordinates_of
from data.cameras.registration.view import Pair

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


class Estimate:
    """The present estimate.

    It is four fields. Only `change_matrix` and `change_times` change them, in place:

        matrix   M (3, 3), spike pixel -> RGB pixel, both binned
        middle   middle of the exposure, in planes from the nominal start of the exposure
        length   length of the exposure, in planes
        roll     the row at y is exposed roll y planes later than the middle row

    `fit` makes an Estimate. After the rounds it reads the estimate and four results of the last
    round: matrix_error, time_errors, explained and residuals. They are the values of `FitResult`,
    but in pixels of the binned frame.
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
        self.coordinates = coordinates_of(height, width)

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

    def ends_of_exposure(self) -> tuple[np.ndarray, np.ndarray]:
        """Return start and end (h,) of each row's exposure, in planes from its nominal start."""
        y_of_rows = self.coordinates.y[:, 0]  # (h,), -1 ... 1 from top to bottom of a square plane
        later = self.roll * y_of_rows
        start = self.middle - self.length / 2 + later
        end = self.middle + self.length / 2 + later
        return start, end

    def change_matrix(self, step: np.ndarray) -> np.ndarray:
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

    def limits_of_times(self) -> tuple[np.ndarray, np.ndarray]:
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

    def change_times(self, step: np.ndarray) -> None:
        """Change middle, length and roll by a step (3,), which is within the limits."""
        later, longer, rolled = step.tolist()
        self.middle += later
        self.length += longer
        self.roll += rolled

"""Find the region of the frame in which crops for training lie. Both cameras see the whole region.

A spike camera with a view of its own may see only a part of the frame. The region is a rectangle in
this part. If the calibration file gives a region, this region is used. If not, the region is the
largest rectangle in this part.

What must stay: the chosen rectangle, because the crops of a seed are drawn from it. Of two
rectangles of equal area, the one that begins nearer to the top is chosen, and then the one with
fewer rows. Free to change: how the rectangle is found.

Tests: tests/parts/data/test_spike_grid.py
"""

import numpy as np

from data.cameras.calibration import Calibration
from data.spike.geometry import Crop
from utils.errors import DataError


def usable_region(calibration: Calibration, covered: np.ndarray, path: str) -> Crop:
    """Return the region in the calibration file, or the largest rectangle if the file has none.

    covered: (H, W) bool, the pixels of the whole frame that the spike camera sees.
    path: file of the calibration, for messages.
    Raises DataError if the spike camera sees no pixel of the frame, or not all of the region.
    """
    largest = largest_rectangle(covered)
    if largest is None:
        raise DataError(
            what="the calibration maps all spike pixels outside of the frame",
            where=f"{path}, matrix",
            expected="cameras with a common view",
            do="calibrate again",
        )
    region = largest
    if calibration.region:
        top, left, height, width = calibration.region
        region = Crop(top, left, height, width)
    # Without this check, test_a_region_that_the_spike_camera_does_not_see_is_refused fails.
    if not _is_covered(region, covered):
        raise DataError(
            what=f"the spike camera does not see all of the region {calibration.region}",
            where=f"{path}, region",
            expected=f"within {largest.as_list()}",
            do="correct the region, or set it to null",
        )
    return region


def _is_covered(region: Crop, covered: np.ndarray) -> bool:
    """Return whether a region lies in the frame and the spike camera sees all of it.

    covered: (H, W) bool of the whole frame.
    """
    if region.top < 0 or region.left < 0 or region.height < 1 or region.width < 1:
        return False
    height, width = covered.shape
    if region.bottom > height or region.right > width:
        return False
    return bool(covered[region.slices].all())


def largest_rectangle(covered: np.ndarray) -> Crop | None:
    """Return the largest rectangle of true pixels. Returns None if no pixel is true.

    All pairs of rows are tried. The true pixels form a convex area, because the view of a camera is
    convex. So a column that is true in two rows is true in all rows between them. So it is enough
    to look at the rows i and j: each column that is true in both rows belongs to the rectangle.
    E.g. the largest rectangle here has the rows 1 and 2, and the columns 0 to 3:

        row 0    . # # . .    columns 1 ... 2
        row 1    # # # # #    columns 0 ... 4
        row 2    # # # # .    columns 0 ... 3

    covered: (H, W) bool.
    """
    rows = np.flatnonzero(covered.any(axis=1))  # (n,), the rows with true pixels
    if not len(rows):
        return None
    # The true pixels of row i are first[i] ... after[i] - 1. argmax finds the first true pixel of a
    # row. To find the last true pixel, mirror the row. E.g. row 0 of the example:
    #
    #     row         . # # . .    argmax 1, so `first` is 1
    #     mirrored    . . # # .    argmax 2, so `after` is 5 - 2 = 3
    first = covered[rows].argmax(axis=1)  # (n,)
    mirrored = covered[rows, ::-1]
    after = covered.shape[1] - mirrored.argmax(axis=1)  # (n,)

    # Compute the rectangle of each pair. A column (n, 1) and a row (1, n) give an array (n, n). Its
    # element (i, j) is for the rows i to j, e.g. left[i, j] is the larger one of first[i] and
    # first[j]. The columns left ... right - 1 are true in row i and in row j.
    left = np.maximum(first[:, None], first[None])
    right = np.minimum(after[:, None], after[None])
    widths = np.maximum(right - left, 0)
    # E.g. the rows 1 to 2 have the height 2 - 1 + 1 = 2. The height is below 1 if row j lies above
    # row i. Such a pair is no rectangle, so its area is set to 0.
    heights = rows[None] - rows[:, None] + 1
    areas = np.where(heights > 0, widths * heights, 0)

    # argmax returns a flat index. Of equal areas, argmax takes the first one: the first row
    # nearest to the top, then fewer rows. unravel_index turns the index into (i, j), e.g. 7 into
    # (2, 1) if n is 3.
    i, j = np.unravel_index(areas.argmax(), areas.shape)
    if not areas[i, j]:
        return None
    return Crop(
        top=int(rows[i]),
        left=int(left[i, j]),
        height=int(heights[i, j]),
        width=int(widths[i, j]),
    )

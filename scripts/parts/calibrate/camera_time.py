"""Find when frames were exposed: the time offset, and the share of the planes.

    find_time   finds offset and share, if the cameras' positions are known and the scene moves
    share_of    returns the share that is written to the calibration file

The flag --planes gives the planes first ... first + count - 1. The true exposure of a frame may lie
at another time and be shorter. Its middle is the plane m, and it has the share s of the count
planes:

    m = first + (count - 1) / 2 + offset
    number of exposed planes = s * count

E.g. for the 56 planes 0 ... 55 with an offset of 2 and a share of 0.893: m is 29.5, and 50 planes
were exposed.

What must stay: the offset is found (test_the_time_offset_is_found_if_the_scene_moves), and refused
if the scene does not move (test_a_time_offset_is_refused_if_the_scene_does_not_move).
Free to change: MOST_OFFSET_ERROR, and the words.
"""

from collections.abc import Sequence
from typing import Literal

from data.cameras.calibration import Calibration
from data.cameras.registration.fit import fit
from data.cameras.registration.result import (
    LEAST_CHANGE_IN_ERRORS,
    LEAST_CHANGE_SHARE,
    LEAST_EXPLAINED,
    SURE_WITHIN_SHARE,
    FitResult,
)
from data.cameras.registration.view import LEAST_REACH, View
from scripts.parts.calibrate.camera_pairs import cannot_calibrate, mirror_views

# Largest error of a time offset that is accepted, in planes, chosen by hand. With a larger limit,
# offsets from scenes that hardly move would be accepted.
MOST_OFFSET_ERROR = 1.0


def find_time(
    calibration: Calibration,
    views: Sequence[View],
    light: Literal["linear", "display"],
    search: int,
    where: str,
) -> FitResult:
    """Fit only the time of the exposures: their offset and their share. The matrix is not changed.

    The offset is the number of planes by which the middle of the exposures is later than the middle
    of --planes. Raises DataError if the scene moves too little to tell, or if the offset is at the
    end of the search.

    calibration: the known calibration. Its matrix stays as it is.
    views: for each pair, the frame and the spikes around its exposure.
    light: what the spike camera integrates.
    search: largest offset that is searched, in planes.
    where: the files, for errors.
    """
    # `mirror_views` below mirrors the views, so the matrix must not mirror them once more. Take the
    # matrix of a copy of the calibration whose `mirror` is "none".
    matrix = calibration.model_copy(update={"mirror": "none"}).to_rgb()
    result = fit(
        mirror_views(views, calibration.mirror),
        matrix,
        light,
        model=None,  # the matrix stays as it is
        most_offset=search,
    )
    offset = result.offset  # planes
    error = result.offset_error  # planes
    # `explained` is the fraction of the spikes' details that the frames explain.
    if result.explained < LEAST_EXPLAINED or error > MOST_OFFSET_ERROR:
        raise cannot_calibrate(
            f"the scene moves too little: the offset would be {offset:.1f} planes, error "
            f"{error:.1f}",
            where,
        )
    # If the best offset is at the end of the search, a better offset may lie beyond the end. The
    # last LEAST_REACH (3) planes of the search count as its end.
    if abs(offset) > search - LEAST_REACH:
        raise cannot_calibrate(
            f"the best offset, {offset:.1f} planes, is the last one searched", where
        )
    return result


def share_of(result: FitResult) -> float | None:
    """Return the share of the planes of --planes during which the frames were exposed.

    E.g. --planes gives 56 planes, and the frames were exposed during 50 of them: 50 / 56 = 0.893.
    Returns None if the error of the share is too large (above SURE_WITHIN_SHARE, 0.03). Returns 1
    if the share is so near to 1 that the difference may be an error of the measurement.

    result: what `find_time` has returned.
    """
    error = result.share_error  # as a share, e.g. 0.02 for 2 % of the planes
    if error > SURE_WITHIN_SHARE:
        return None
    # The share must differ from 1 by at least 0.04, and by at least 3 standard errors. E.g. with
    # the error 0.02, by at least 0.06. `FitResult.is_applied` has the same limits, for
    # `spike.calibration` "auto".
    least_difference = max(LEAST_CHANGE_SHARE, LEAST_CHANGE_IN_ERRORS * error)
    difference_from_1 = 1 - result.share
    if difference_from_1 < least_difference:
        return 1.0
    return round(result.share, 3)

"""Find how two cameras lie to one another: the matrix from the spike image to the frame.

    find_position   1. a rough position from features (camera_features.py)
                    2. the exact position (data/cameras/registration)
                    3. whether the exact position is good enough (`Quality`)

A view is a frame and the spikes of its exposure. A matrix, (3, 3), maps a point (x, y, 1) of the
spike image to a point of the frame. A patch is one of the 25 parts of the spike image that
data/cameras/registration/parts.py matches separately.

tests/parts/scripts/test_calibrate.py simulates two cameras and compares the matrix that is found
with the true one.

What must stay: the matrix is found (test_a_turned_camera_is_found_in_noise_with_blur,
test_a_mirrored_camera_is_found), and pairs of different scenes are refused
(test_pictures_of_different_scenes_are_refused).
Free to change: the limits below (test_a_model_that_cannot_map_all_patches_is_refused), and the
words.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from data.cameras.calibration import scale_of
from data.cameras.registration.fit import fit
from data.cameras.registration.result import LEAST_EXPLAINED, FitResult
from data.cameras.registration.view import View
from scripts.parts.calibrate.camera_features import Mirror, RoughPosition, find_rough_position
from scripts.parts.calibrate.camera_pairs import cannot_calibrate, mirror_views

# The three limits are chosen by hand. A calibration with fewer features, or with fewer patches, is
# refused. With smaller limits, matrices that agree by chance would be accepted.
LEAST_INLIERS = 15  # features that agree
LEAST_PATCHES = 6  # patches that were found in the frame
# Largest error that is accepted: the median over the patches, in pixels of the coarser camera.
MOST_RESIDUAL = 1.0


class Quality(NamedTuple):
    """How well a matrix fits."""

    correlation: float  # how well the details of both images correlate
    patches: int  # number of patches that were found in the frame
    # The error of a patch is the distance in RGB pixels between the point where the patch was found
    # and the point where the matrix puts the patch. `residual` is the median of all patches, and
    # `p90` is the 90th percentile.
    residual: float
    p90: float


class Position(NamedTuple):
    """How the spike image lies in the frame."""

    matrix: np.ndarray  # (3, 3), from a point of the mirrored spike image to a point of the frame
    mirror: Mirror  # how the spike image is mirrored before the matrix maps it
    rough: RoughPosition
    quality: Quality

    def in_words(self) -> str:
        """Return what was found, in two lines for the terminal.

        E.g. "60 of 81 features agree; correlation 0.912; mirrored: none; turned by 3.10 degrees".
        """
        rough = self.rough
        quality = self.quality
        # If a point of the spike image moves by one pixel along x, its point of the frame moves by
        # the first column of the matrix (for a homography, nearly so). E.g. the first column (0, 2)
        # is a turn by 90 degrees.
        step_x = self.matrix[0, 0]
        step_y = self.matrix[1, 0]
        angle = np.degrees(np.arctan2(step_y, step_x))
        return (
            f"{rough.inliers} of {rough.matches} features agree; correlation "
            f"{quality.correlation:.3f}; mirrored: {self.mirror}; turned by "
            f"{angle:.2f} degrees, {scale_of(self.matrix):.3f} RGB pixels per spike pixel\n"
            f"residual of {quality.patches} single patches: median {quality.residual:.2f}, 90 % "
            f"below {quality.p90:.2f} RGB pixels"
        )


def find_position(
    views: Sequence[View],
    light: Literal["linear", "display"],
    model: str,
    mirror: Mirror | Literal["auto"],
    where: str,
) -> Position:
    """Return the one position that fits all views.

    Raises DataError if the images do not show the same scene, or show too little to judge by.

    views: for each pair, the frame and the spikes of its exposure.
    light: what the spike camera integrates.
    model: which matrices are allowed, e.g. "homography".
    mirror: how the spike image is mirrored. "auto" finds it.
    where: the files, for errors.
    """
    # 1. A rough position, from features.
    found_mirror, rough = find_rough_position(views, mirror, light)
    if rough.inliers < LEAST_INLIERS:
        raise cannot_calibrate(
            f"only {rough.inliers} of {rough.matches} features match in one position", where
        )
    # 2. The exact position. most_offset 0: the time is known.
    mirrored_views = mirror_views(views, found_mirror)
    result = fit(mirrored_views, rough.matrix, light, model, most_offset=0.0)
    # 3. Is it good enough?
    quality = _quality_of(result, model, where)
    return Position(result.matrix, found_mirror, rough, quality)


def _quality_of(result: FitResult, model: str, where: str) -> Quality:
    """Return how well the matrix of a fit maps the spikes to the frames.

    Raises DataError if the matrix is not good enough.

    where: the files, for the error.
    """
    # `explained` is the squared correlation. It is below 0 if the fit is worse than a constant
    # image. Then the correlation counts as 0.
    correlation = float(np.sqrt(max(result.explained, 0)))
    distances = result.residuals  # one for each patch that was found in the frame
    if result.explained < LEAST_EXPLAINED:
        raise cannot_calibrate(f"the correlation of the aligned images is {correlation:.2f}", where)
    if len(distances) < LEAST_PATCHES:
        raise cannot_calibrate(
            f"only {len(distances)} patches have enough texture to measure the residual", where
        )
    residual = float(np.median(distances))
    p90 = float(np.percentile(distances, 90))
    # The limit is in pixels of the camera with the larger pixels. E.g. with 4 RGB pixels per spike
    # pixel, a residual of up to 4 RGB pixels is accepted. With a scale below 1, the RGB camera has
    # the larger pixels.
    scale = scale_of(result.matrix)  # RGB pixels per spike pixel
    if residual > MOST_RESIDUAL * max(1.0, scale):
        raise cannot_calibrate(
            f"single patches lie {residual:.2f} RGB pixels from where the {model} maps them", where
        )
    return Quality(correlation, len(distances), residual, p90)

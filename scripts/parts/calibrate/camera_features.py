"""Find the rough position of a spike image in a frame, from features that both images have.

    find_rough_position    how the spike image is mirrored, and its `RoughPosition`

A feature is a point with a descriptor, a vector that tells how the image looks around the point
(SIFT). Features of both images are matched by their descriptors. Some matches are wrong. RANSAC
finds the affine matrix with which most matches agree, for any turn, scale and mirroring.
camera_position.py makes the position exact.

A view is a frame and the spikes of its exposure. Points of an image are (x, y), and pixel centres
are at whole numbers, as in data/cameras/calibration.py.

What must stay: the same pairs give the same matrix, so RANSAC keeps its seed. A mirrored camera is
found (test_a_mirrored_camera_is_found).
Free to change: the limits below, and the settings of SIFT and RANSAC. All are chosen by hand, and
decide which pairs are refused (test_pictures_of_different_scenes_are_refused).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import cv2
import numpy as np

from data.cameras.registration.view import View
from scripts.parts.calibrate.camera_pairs import images_of, mirror_views

# The three values are chosen by hand.
#
# Width in pixels to which wider frames are reduced, because the spike image has few pixels.
FEATURE_WIDTH = 1200
# Largest distance between a feature and the point where the matrix puts it, divided by the longer
# side of the frame: e.g. 10 pixels of 1280. The distance must allow for perspective, because an
# affine matrix cannot express it. With a larger distance, wrong matches would count, too.
FEATURE_TOLERANCE = 0.008
# Lowe's ratio test: a match counts if the distance to the nearest descriptor is below this fraction
# of the distance to the second nearest. With 1, features that resemble many others would count, and
# most of their matches are wrong.
CLEAR_MATCH = 0.85

# How a spike image may be mirrored, the values of `Calibration.mirror`.
Mirror = Literal["none", "columns", "rows", "both"]


class RoughPosition(NamedTuple):
    """The rough position of the spike image in the frame, from features."""

    matrix: np.ndarray  # (3, 3), affine: point in the spike image -> point in the frame
    inliers: int  # features that agree with the matrix
    matches: int  # features that were found in both images, some of them by mistake


def find_rough_position(
    views: Sequence[View], mirror: Mirror | Literal["auto"], light: str
) -> tuple[Mirror, RoughPosition]:
    """Return how the spike image is mirrored, e.g. "columns", and its rough position.

    views: for each pair, the frame and the spikes of its exposure. All frames have one size.
    mirror: how the spike image is mirrored. "auto" tries the image as it is, and mirrored, and
        returns the case in which more features agree.
    light: what the spike camera integrates, "linear" light or "display" values.
    """
    if mirror != "auto":
        return mirror, _from_features(mirror_views(views, mirror), light)
    # Two trials are enough, because the matrix can also turn the image. "rows" is "columns" turned
    # by 180 degrees, and "both" is "none" turned by 180 degrees.
    as_it_is = _from_features(mirror_views(views, "none"), light)
    mirrored = _from_features(mirror_views(views, "columns"), light)
    if mirrored.inliers > as_it_is.inliers:
        return "columns", mirrored
    return "none", as_it_is


def _from_features(views: Sequence[View], light: str) -> RoughPosition:
    """Return the affine matrix with which most features of all views together agree.

    If there is no such matrix, the result is the identity with 0 inliers. `find_position`
    (camera_position.py) then refuses the pairs, because no feature agrees.

    light: what the spike camera integrates, "linear" light or "display" values.
    """
    matches: list[Match] = []
    for view in views:
        spikes, frame = images_of(view, light)
        matches += _matches(spikes, frame)
    # All frames have the size of the first one (`refuse_different_sizes` in camera_pairs.py).
    tolerance = FEATURE_TOLERANCE * max(views[0].frame.shape[:2])  # in pixels
    position = _fit_affine(matches, tolerance)
    if position is None:
        return RoughPosition(np.eye(3), inliers=0, matches=len(matches))
    return position


class Match(NamedTuple):
    """A feature that is in both images. The points are (x, y)."""

    in_spikes: Sequence[float]  # point in the spike image, in spike pixels
    in_frame: np.ndarray  # point in the frame, in RGB pixels


def _fit_affine(matches: Sequence[Match], tolerance: float) -> RoughPosition | None:
    """Return the affine matrix with which most matches agree, or None without such a matrix.

    tolerance: distance in RGB pixels up to which a match agrees with a matrix.
    """
    if len(matches) < 4:  # an affine matrix fits any three matches exactly
        return None
    in_spikes = np.array([match.in_spikes for match in matches], np.float64)  # (matches, 2)
    in_frame = np.array([match.in_frame for match in matches], np.float64)  # (matches, 2)
    # RANSAC draws at random. With this seed the same pairs give the same matrix.
    cv2.setRNGSeed(0)
    # RANSAC draws three matches in each round, and counts how many matches agree with their matrix.
    # It stops as soon as a better matrix is unlikely (`confidence`). If many matches are wrong,
    # RANSAC needs many rounds, at most `maxIters`.
    #
    #     affine       (2, 3), or None
    #     is_inlier    (matches, 1): 1 if a match agrees with the matrix, else 0
    affine, is_inlier = cv2.estimateAffine2D(
        in_spikes,
        in_frame,
        method=cv2.RANSAC,
        ransacReprojThreshold=tolerance,
        maxIters=20000,
        confidence=0.9999,
    )
    if affine is None:
        return None
    # The determinant says how many times larger the matrix makes an area. If the determinant is
    # above 1000 or below 1/1000, the images do not show the same scene. If it is negative, the
    # matrix mirrors the image. A matrix that mirrors is refused, too, because `find_rough_position`
    # tries mirrored images separately.
    determinant = np.linalg.det(affine[:, :2])
    if not 1e-3 < determinant < 1e3:
        return None
    matrix = np.vstack((affine, (0, 0, 1)))
    return RoughPosition(matrix, inliers=int(is_inlier.sum()), matches=len(matches))


def _matches(spikes: np.ndarray, frame: np.ndarray) -> list[Match]:
    """Return the features that are in both images.

    spikes, frame: grey images.
    """
    # A wide frame is reduced by a whole factor, because the spike image has few pixels. A narrow
    # frame stays as it is: factor 1.
    factor = max(1, round(frame.shape[1] / FEATURE_WIDTH))
    small = cv2.resize(frame, None, fx=1 / factor, fy=1 / factor, interpolation=cv2.INTER_AREA)
    # A blur of 0.8 pixels (chosen by hand) reduces the noise of single spikes.
    smooth = cv2.GaussianBlur(spikes, (0, 0), 0.8)
    # Find at most 5000 features of each image (chosen by hand). The least contrast is below
    # OpenCV's default, 0.04, so that features of low contrast are found as well.
    sift = cv2.SIFT.create(nfeatures=5000, contrastThreshold=0.02)
    points_of_spikes, spike_descriptors = sift.detectAndCompute(
        _stretch_contrast(smooth), mask=None
    )
    points_of_frame, frame_descriptors = sift.detectAndCompute(_stretch_contrast(small), mask=None)
    if spike_descriptors is None or frame_descriptors is None:  # an image without features
        return []

    matches = []
    for spike_index, frame_index in _matching_indices(spike_descriptors, frame_descriptors):
        # Convert the point from the small image to the frame. E.g. with the factor 2, pixel 0 of
        # the small image covers the pixels 0 and 1 of the frame, whose middle is 0.5. Pixel centres
        # are at whole numbers, so both images begin at -0.5: add 0.5, scale, and subtract 0.5.
        in_small = np.array(points_of_frame[frame_index].pt)
        in_frame = (in_small + 0.5) * factor - 0.5
        matches.append(Match(points_of_spikes[spike_index].pt, in_frame))
    return matches


def _matching_indices(
    spike_descriptors: np.ndarray, frame_descriptors: np.ndarray
) -> list[tuple[int, int]]:
    """Return which features match, as pairs (index in the spikes, index in the frame).

    The distance of two features is the distance of their SIFT descriptors. Let f be the feature of
    the frame that is nearest to a feature s of the spikes. Then s and f match if both hold:

        is_mutual    s is also the feature of the spikes that is nearest to f
        is_clear     the second nearest feature of the frame is clearly farther away (CLEAR_MATCH)

    spike_descriptors, frame_descriptors: one row for each feature.
    """
    if len(frame_descriptors) < 2:  # there is no second nearest
        return []
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    # Find, for each feature of the frame, the nearest feature of the spikes. OpenCV's queryIdx is
    # the index of the feature that was asked for, and trainIdx the index of the answer.
    nearest_in_spikes = {}
    for answer in matcher.match(frame_descriptors, spike_descriptors):
        nearest_in_spikes[answer.queryIdx] = answer.trainIdx

    indices = []
    # Find, for each feature of the spikes, the nearest and the second nearest feature of the frame.
    for nearest, second in matcher.knnMatch(spike_descriptors, frame_descriptors, k=2):
        spike_index = nearest.queryIdx
        frame_index = nearest.trainIdx
        is_clear = nearest.distance < CLEAR_MATCH * second.distance
        is_mutual = nearest_in_spikes[frame_index] == spike_index
        if is_clear and is_mutual:
            indices.append((spike_index, frame_index))
    return indices


def _stretch_contrast(image: np.ndarray) -> np.ndarray:
    """Return an image as uint8, with more contrast: 0.5 % of its pixels are black, 0.5 % white."""
    low, high = np.percentile(image, (0.5, 99.5))
    contrast = max(high - low, 1e-6)  # above 0, for an image of one value
    stretched = np.clip((image - low) / contrast, 0, 1)
    return (255 * stretched).astype(np.uint8)

"""Find where the pixels of a spike camera lie in the frames of an RGB camera, from images of the same moments.

Features (SIFT, RANSAC) give an affine start for any turn, scale and mirroring; maximising the correlation of the whole
images (ECC: Evangelidis and Psarakis, "Parametric Image Alignment Using Enhanced Correlation Coefficient
Maximization", TPAMI 30, 2008) makes it exact. Patches that are matched on their own, by phase correlation, measure what
is left. All places are (x, y) with pixel centres at whole numbers, see data/spike_grid.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from data.spike.simulate import to_display
from data.spike_grid import scale_of
from utils.errors import DataError

MODELS = {"similarity": cv2.MOTION_AFFINE, "affine": cv2.MOTION_AFFINE, "homography": cv2.MOTION_HOMOGRAPHY}
FEATURE_WIDTH = 1200  # wider frames are reduced to find features
LEAST_INLIERS = 15
LEAST_CORRELATION = 0.5
LEAST_PATCHES = 6
MOST_RESIDUAL = 1.0  # median over the patches, in the larger of the two cameras' pixels
LEAST_RISE = 0.01  # of the correlation over the offsets searched
PATCH = 48  # side of a patch in spike pixels
BLURS = (3.0, 1.0, 1.0)  # sigmas in spike pixels: far from the optimum first; the common view is exact only at last
BORDER = 2  # spike pixels at the edge of the plane that are not compared


@dataclass(frozen=True)
class View:
    """One moment: display values in [0, 1] of the upright spike image (h, w) and of the frame (H, W), float32."""

    spikes: np.ndarray
    frame: np.ndarray

    def mirrored(self, mirror: str) -> View:
        """The view with a mirrored spike image."""
        axes = {"none": (), "columns": (1,), "rows": (0,), "both": (0, 1)}[mirror]
        return View(np.ascontiguousarray(np.flip(self.spikes, axes)), self.frame)


def register(
    views: Sequence[View], model: str, where: str, mirrors: Sequence[str] = ("none", "columns")
) -> tuple[np.ndarray, str, dict[str, Any]]:
    """The matrix (3, 3), mirrored spike pixel -> RGB pixel, that fits all views, its mirror, and how well it fits.

    model: "similarity", "affine" or "homography". mirrors: the mirrorings to try; rows are mirrored where columns are
    and the image is turned by 180 degrees. How well: features that agree, of how many; correlation of the two images,
    blurred by one spike pixel, without their slow changes of brightness; residual_px, residual_p90_px: median and 90th
    percentile, over `patches` patches, of the distance in RGB pixels between where a patch is and where it is mapped.
    Raises DataError where the images do not show the same, or give too little to judge by.
    """
    starts = {mirror: _from_features([view.mirrored(mirror) for view in views]) for mirror in mirrors}
    mirror = max(starts, key=lambda name: starts[name][1])
    start, inliers, matches = starts[mirror]
    if inliers < LEAST_INLIERS:
        raise _wrong(f"only {inliers} of {matches} features match in one position", where)
    upright = [view.mirrored(mirror) for view in views]
    refined = [_refined(view, start, model, where) for view in upright]
    matrix = joint([each[0] for each in refined], model, upright[0].spikes.shape)
    correlation = float(np.mean([each[1] for each in refined]))
    if correlation < LEAST_CORRELATION:
        raise _wrong(f"the correlation of the aligned images is {correlation:.2f}", where)
    distances = np.concatenate([patch_distances(view, matrix) for view in upright])
    if len(distances) < LEAST_PATCHES:
        raise _wrong(f"only {len(distances)} patches have enough texture to measure the residual", where)
    residual, p90 = float(np.median(distances)), float(np.percentile(distances, 90))
    if residual > MOST_RESIDUAL * max(1.0, scale_of(matrix)):
        raise _wrong(f"single patches lie {residual:.2f} RGB pixels from where the {model} maps them", where)
    return matrix, mirror, {
        "features": [inliers, matches], "correlation": round(correlation, 4), "residual_px": round(residual, 3),
        "residual_p90_px": round(p90, 3), "patches": len(distances),
    }  # fmt: skip


def _from_features(views: Sequence[View]) -> tuple[np.ndarray, int, int]:
    """(affine matrix, inliers, matches) from the features of all views together."""
    pairs = np.concatenate([_matches(view) for view in views])
    if len(pairs) < 4:
        return np.eye(3), 0, len(pairs)
    tolerance = 0.008 * max(views[0].frame.shape)  # the perspective of a homography is no part of an affine matrix
    cv2.setRNGSeed(0)
    found, used = cv2.estimateAffine2D(
        pairs[:, 0].copy(), pairs[:, 1].copy(), method=cv2.RANSAC, ransacReprojThreshold=tolerance, maxIters=20000,
        confidence=0.9999,
    )  # fmt: skip
    # A mirrored image is tried on its own; what collapses or mirrors is no view of the same scene.
    if found is None or not 1e-3 < np.linalg.det(found[:, :2]) < 1e3:
        return np.eye(3), 0, len(pairs)
    return np.vstack((found, (0, 0, 1))), int(used.sum()), len(pairs)


def _matches(view: View) -> np.ndarray:
    """(n, 2, 2): places in the spike image and in the frame of features that are each other's nearest."""
    factor, features = max(1, round(view.frame.shape[1] / FEATURE_WIDTH)), []
    small = cv2.resize(view.frame, None, fx=1 / factor, fy=1 / factor, interpolation=cv2.INTER_AREA)
    sift = cv2.SIFT_create(nfeatures=5000, contrastThreshold=0.02)
    for image in (cv2.GaussianBlur(view.spikes, (0, 0), 0.8), small):
        low, high = np.percentile(image, (0.5, 99.5))
        stretched = 255 * np.clip((image - low) / max(high - low, 1e-6), 0, 1)
        features.append(sift.detectAndCompute(stretched.astype(np.uint8), None))
    (ours, a), (theirs, b) = features
    if a is None or b is None or len(b) < 2:
        return np.empty((0, 2, 2))
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    back = {match.queryIdx: match.trainIdx for match in matcher.match(b, a)}
    found = [
        first
        for first, second in matcher.knnMatch(a, b, k=2)
        if first.distance < 0.85 * second.distance and back[first.trainIdx] == first.queryIdx
    ]
    places = [(ours[m.queryIdx].pt, (np.array(theirs[m.trainIdx].pt) + 0.5) * factor - 0.5) for m in found]
    return np.array(places, np.float64).reshape(-1, 2, 2)


def _masks(view: View, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where spike pixels lie in the frame (h, w), and where RGB pixels lie in the plane (H, W): 1 or 0, float32."""
    (h, w), (height, width) = view.spikes.shape, view.frame.shape
    in_frame = cv2.warpPerspective(
        np.ones((height, width), np.float32), matrix, (w, h), flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    )
    in_plane = cv2.warpPerspective(np.ones((h, w), np.float32), matrix, (width, height), flags=cv2.INTER_NEAREST)
    return in_frame, in_plane


def _details(view: View, matrix: np.ndarray, blur: float) -> tuple[np.ndarray, np.ndarray]:
    """The details that both cameras can show, of the spike image (h, w) and of the frame (H, W).

    blur: in spike pixels; an RGB pixel larger than a spike pixel limits it.
    """
    scale, (in_frame, in_plane) = scale_of(matrix), _masks(view, matrix)
    fine = max(blur, 0.7 / scale)
    # A pixel is a mean over its area, of variance 1 / 12.
    fine_rgb = np.sqrt(max((fine**2 + 1 / 12) * scale**2 - 1 / 12, 0.25))
    return _band(view.spikes, in_frame, fine, 8 * fine), _band(view.frame, in_plane, fine_rgb, 8 * fine * scale)


def _band(image: np.ndarray, mask: np.ndarray, fine: float, coarse: float) -> np.ndarray:
    """Details between two sizes, in pixels: without noise, and without slow changes of the brightness.

    Everything outside of the mask, the overlap of the two views, is left out before blurring.
    """
    small, large = (
        cv2.GaussianBlur(image * mask, (0, 0), sigma, borderType=cv2.BORDER_CONSTANT)
        / np.maximum(cv2.GaussianBlur(mask, (0, 0), sigma, borderType=cv2.BORDER_CONSTANT), 1e-3)
        for sigma in (fine, coarse)
    )
    return (small - large) * mask


def _refined(view: View, start: np.ndarray, model: str, where: str) -> tuple[np.ndarray, float]:
    """(matrix, correlation) where the images of one view correlate best, from `start`."""
    matrix, correlation, motion = start, 0.0, MODELS[model]
    rows = 3 if motion == cv2.MOTION_HOMOGRAPHY else 2
    to_inner = np.array([[1, 0, BORDER], [0, 1, BORDER], [0, 0, 1.0]])
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 200, 1e-7)
    for blur in BLURS:
        spikes, frame = _details(view, matrix, blur)
        in_plane, reach = _masks(view, matrix)[1].astype(np.uint8), max(1, round(scale_of(matrix)))
        seen = cv2.erode(in_plane, np.ones((3, 3)), iterations=reach)
        template = np.ascontiguousarray(spikes[BORDER:-BORDER, BORDER:-BORDER])
        warp = (matrix @ to_inner).astype(np.float32)
        warp = np.ascontiguousarray(warp[:rows] / warp[2, 2])
        try:
            correlation, warp = cv2.findTransformECC(template, frame, warp, motion, criteria, seen, 1)
        except cv2.error as e:
            raise _wrong("the images cannot be aligned from their features (ECC does not converge)", where) from e
        matrix = np.eye(3)
        matrix[:rows] = warp
        matrix = matrix @ np.linalg.inv(to_inner)
    return matrix / matrix[2, 2], float(correlation)


def joint(matrices: Sequence[np.ndarray], model: str, size: tuple[int, int]) -> np.ndarray:
    """The matrix of `model` that is nearest to all matrices over a plane of `size` (h, w): the median of each place."""
    y, x = np.meshgrid(np.linspace(0, size[0] - 1, 9), np.linspace(0, size[1] - 1, 9), indexing="ij")
    places = np.stack((x.ravel(), y.ravel()), axis=1)
    mapped = np.median([cv2.perspectiveTransform(places[None], matrix)[0] for matrix in matrices], axis=0)
    if model == "homography":
        return cv2.findHomography(places, mapped, 0)[0]
    ones = np.ones(len(places))
    if model == "similarity":  # with complex numbers, x' + i y' = turn (x + i y) + shift
        turn, shift = np.linalg.lstsq(np.column_stack((places @ [1, 1j], ones)), mapped @ [1, 1j], rcond=None)[0]
        return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag], [0, 0, 1.0]])
    rows = np.linalg.lstsq(np.column_stack((places, ones)), mapped, rcond=None)[0].T
    return np.vstack((rows, (0, 0, 1.0)))


def patch_distances(view: View, matrix: np.ndarray) -> np.ndarray:
    """Distances in RGB pixels by which patches of a mirrored view lie beside the place that `matrix` maps them to."""
    scale, (height, width) = scale_of(matrix), view.spikes.shape
    spikes, frame, seen = _side_by_side(view, matrix)
    window, found = cv2.createHanningWindow((PATCH, PATCH), cv2.CV_32F), []
    texture = 0.25 * float(spikes[seen].std()) if seen.any() else 0.0
    for top in range(0, height - PATCH + 1, PATCH // 2):
        for left in range(0, width - PATCH + 1, PATCH // 2):
            place = np.s_[top : top + PATCH, left : left + PATCH]
            if not seen[place].all() or spikes[place].std() < texture:
                continue
            # phaseCorrelate multiplies its arguments by the window in place, and patches overlap.
            shift, response = cv2.phaseCorrelate(spikes[place].copy(), frame[place].copy(), window)
            if response > 0.1:
                found.append(np.hypot(*shift) * scale)
    return np.array(found)


def _side_by_side(view: View, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Details of the spike image, those of the frame on the spike grid, and where both are seen, each (h, w)."""
    spikes, frame = _details(view, matrix, BLURS[-1])
    size = view.spikes.shape[::-1]
    frame = cv2.warpPerspective(frame, matrix, size, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    return spikes, frame, cv2.erode(_masks(view, matrix)[0], np.ones((3, 3))) > 0


def find_offset(moments: Sequence[tuple[np.ndarray, View]], count: int, matrix: np.ndarray, where: str) -> float:
    """By how many planes the exposures start later than the middle of the range that is searched, for a known matrix.

    moments: for each frame a mirrored stream (T, h, w), whose first T - count + 1 planes are tried as the start of the
    exposure of `count` planes, and its view. The offset with the highest correlation of all frames together is taken,
    by a parabola through its neighbours.
    Raises DataError where the scene moves too little to tell, and where the best offset is the last one tried.
    """
    found, fine = [], max(BLURS[-1], 0.7 / scale_of(matrix))
    for stream, view in moments:
        _, frame, seen = _side_by_side(view, matrix)
        mask, total, scores = _masks(view, matrix)[0], stream[:count].sum(axis=0, dtype=np.int32), []
        for start in range(len(stream) - count + 1):
            if start:
                total += stream[start + count - 1].astype(np.int32) - stream[start - 1]
            spikes = _band(to_display((total / count).astype(np.float32)), mask, fine, 8 * fine)
            scores.append(float(np.corrcoef(spikes[seen], frame[seen])[0, 1]))
        found.append(scores)
    scores = np.mean(found, axis=0)
    best, middle = int(scores.argmax()), len(scores) // 2
    if scores[best] - scores.min() < LEAST_RISE:
        raise _wrong(f"the scene moves too little: all offsets correlate with {scores[best]:.3f}", where)
    if not 0 < best < len(scores) - 1:
        raise _wrong(f"the best offset, {best - middle} planes, is the last one searched", where)
    before, top, after = scores[best - 1 : best + 2]
    return best - middle + float((before - after) / (2 * (before - 2 * top + after)))


def _wrong(what: str, where: str) -> DataError:
    return DataError(
        f"the two cameras cannot be calibrated with this pair: {what}", where,
        "the same moment of one scene with much texture, sharp in both cameras, of which they see a good part together",
        "use other pairs, check the spike size and flip (spike_tool.py view), or try --model similarity or affine",
    )  # fmt: skip

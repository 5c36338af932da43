#!/usr/bin/env python3
"""Calibrate a spike camera and an RGB camera with different views, from captures of the same
moments.

    python scripts/calibrate.py --pair a.dat a.png --pair b.dat b.png --size 250 400 \\
        --out calibration.json
    python scripts/calibrate.py --pair moving.dat moving.png --planes 100 40 \\
        --geometry calibration.json --search-planes 30 --out synchronised.json

The first form finds the geometry. Capture flat or distant scenes with much texture. Cameras and
scene are at rest, or the planes are exactly the planes of the frame's exposure. The second form
takes the geometry from a file, and finds two things: the delay of the exposure behind --planes, in
planes, and the share of these planes in which the frame was exposed. The scene has to move. Each
form writes the file for `spike.calibration`, and an overlay image beside it to look at. Nothing is
overwritten. docs/data_format.md, section "Two cameras".

Features (SIFT, RANSAC) give an affine start for any turn, scale and mirroring. The fit of
`spike.calibration` "auto" (data/cameras/registration) makes it exact, and finds the time. Parts
of the plane that are matched on their own measure the error that is left. All places are (x, y)
with pixel centres at whole numbers, as in data/cameras/calibration.py.
"""

# Words of this file:
#   plane      one readout of the spike camera: a bit for each spike pixel
#   view       a frame and the spikes of its exposure (View)
#   matrix     (3, 3), from a place (x, y, 1) of the spike image to a place of the frame
#   geometry   in the code: height, width and storage of the planes of a spike file (SpikeGeometry).
#              In the text above and in --geometry: how the cameras lie to one another, which the
#              code calls alignment
#
# What must stay: the keys of the written file, a `Calibration`, which docs/data_format.md describes
# (test_the_file_says_the_clock_with_the_sizes). The same pairs give the same file, so RANSAC keeps
# its seed.
# Free to change: the limits below, which decide which pairs are refused
# (test_pictures_of_different_scenes_are_refused,
# test_a_model_that_cannot_map_all_patches_is_refused), and the printed words.
# Test: tests/parts/scripts/test_calibrate.py

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.calibration import Calibration, load_calibration, save_calibration, scale_of
from data.cameras.registration.fit import fit
from data.cameras.registration.matrix import MODELS
from data.cameras.registration.result import (
    LEAST_CHANGE_IN_ERRORS,
    LEAST_CHANGE_SHARE,
    LEAST_EXPLAINED,
    SURE_WITHIN_SHARE,
    FitResult,
)
from data.cameras.registration.view import LEAST_REACH, MOST_REACH, View
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clips.user_frames import FrameSource
from data.spike.formats import count_planes, read_spikes
from data.spike.geometry import Crop, SpikeGeometry
from data.spike.pictures import to_display, to_grey
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.spike_geometry import (
    GeometryOptions,
    add_geometry,
    given_geometry,
    single_geometry,
)
from utils.errors import DataError, OptionError
from utils.image import encode_rgb, imwrite_rgb
from utils.output_folder import refuse_existing

# Side of a square of the overlay, in RGB pixels. Smaller squares are too small to compare by eye,
# larger squares leave long stretches without a border between frame and spikes.
TILE = 64
# Wider frames are reduced to this width to find features, because the spike image has few pixels.
FEATURE_WIDTH = 1200
# How far a feature may lie from the place where the matrix puts it, as a share of the longer side
# of the frame: e.g. 10 pixels of 1280. This is wide, because an affine matrix cannot follow the
# perspective of a homography. A larger share would count wrong matches.
FEATURE_TOLERANCE = 0.008
# A match counts if the nearest feature is nearer than this share of the distance to the second
# nearest. With a share of 1, features that resemble many others would count, and most are wrong.
CLEAR_MATCH = 0.85
# A calibration with fewer features that agree, or fewer parts of the plane to measure, is refused.
# Smaller numbers would accept matrices that agree by chance.
LEAST_INLIERS = 15
LEAST_PATCHES = 6
# Largest error that is accepted: the median over the parts of the plane, in pixels of the coarser
# camera; and the error of a time offset, in planes.
MOST_RESIDUAL = 1.0
MOST_OFFSET_ERROR = 1.0


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Calibrate, and write the file and the overlay. Returns the exit code 0."""
    command = parse(arguments)
    refuse_existing(command.out, "--out")
    refuse_existing(command.overlay, "--overlay")
    # Encode an image of one pixel, in memory. This raises an error for an unknown suffix before the
    # long work.
    encode_rgb(command.overlay, np.zeros((1, 1, 3), np.uint8))

    with spike_errors_as_data_errors():
        first_spikes, _ = command.pairs[0]
        known = load_calibration(command.geometry) if command.geometry else None
        # The planes have the size of the known calibration, if nothing else says their size.
        options = GeometryOptions.of(command)
        if known and given_geometry(first_spikes, options) is None:
            height, width = known.spike_size
            options = replace(options, size=(height, width))
        geometry = single_geometry(first_spikes, options)
        views = [view_of(spikes, frame, geometry, command) for spikes, frame in command.pairs]
        refuse_sizes(views, command)
        if known:
            calibration = with_offset(known, geometry, views, command)
        else:
            calibration = with_geometry(geometry, views, command)

    # The region is the part of the frame that the spike camera sees. The grid finds it from the
    # matrix, so it can be added only now.
    grid = CalibratedGrid(calibration, geometry, str(command.out))
    calibration = calibration.model_copy(update={"region": grid.region.as_list()})
    save_calibration(command.out, calibration)
    imwrite_rgb(command.overlay, overlay(views[0], command.light, grid))
    print(
        f"{command.out}: the spikes cover {grid.coverage:.1%} of the frame; "
        f"{grid.region.in_words()} are used for training. Look at {command.overlay}"
    )
    return 0


def refuse_sizes(views: Sequence[View], command: argparse.Namespace) -> None:
    """Raise DataError if the frames differ in size: then they are not of one camera."""
    sizes = {}  # shape of a frame -> a file of this shape
    for view, (_, frame) in zip(views, command.pairs, strict=True):
        sizes[view.frame.shape] = frame
    if len(sizes) == 1:
        return
    found = []
    for (height, width, _), path in sizes.items():
        found.append(f"{path} has {height} x {width}")
    raise DataError(
        what=f"the frames differ in size: {', '.join(found)}",
        where="--pair",
        expected="frames of one camera",
        do="leave out the others",
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line. `pairs` is a list of [spike file, frame]."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    text = (
        "file of spikes, and an image of the same time; of a folder or a video the mean image is "
        "taken; may be repeated"
    )
    add(
        "--pair",
        dest="pairs",
        nargs=2,
        type=Path,
        action="append",
        required=True,
        metavar=("SPIKES", "FRAME"),
        help=text,
    )
    add_geometry(parser)
    add(
        "--planes",
        type=int,
        nargs=2,
        metavar=("FIRST", "COUNT"),
        help="first plane and number of planes of the exposure; default: all planes of the file",
    )
    add(
        "--light",
        choices=("linear", "display"),
        default="linear",
        help="what the spike camera integrates (default: %(default)s)",
    )
    add(
        "--model",
        choices=tuple(MODELS),
        default="homography",
        help="which matrices are allowed (default: %(default)s)",
    )
    add(
        "--mirror",
        choices=("auto", "none", "columns", "rows", "both"),
        default="auto",
        help="how the spike image is mirrored; auto: tried as it is and mirrored (default: "
        "%(default)s)",
    )
    add(
        "--geometry",
        type=Path,
        metavar="FILE",
        help="calibration to take matrix and mirror from, and the size of a plane if nothing else "
        "says it",
    )
    add(
        "--search-planes",
        type=int,
        metavar="N",
        help="with --geometry: search offsets from -N to N planes",
    )
    add("--tick-hz", type=float, help="planes per second; only written to the file")
    add("--out", type=Path, required=True, help="new file of the calibration, JSON")
    add("--overlay", type=Path, help="new image; default: the name of --out with .png")
    command = parser.parse_args(arguments)
    if command.overlay is None:
        command.overlay = command.out.with_suffix(".png")
    # --geometry and --search-planes go together, and they need --planes. --planes may stand alone.
    is_one_missing = bool(command.geometry) != bool(command.search_planes)
    are_planes_missing = bool(command.geometry) and not command.planes
    if is_one_missing or are_planes_missing:
        raise OptionError(
            what="--geometry and --search-planes need each other, and --planes",
            where="the command line",
            expected="all three, to find the time offset",
            do="add the missing ones",
        )
    return command


def view_of(path: Path, frame: Path, geometry: SpikeGeometry, command: argparse.Namespace) -> View:
    """Read one pair: the frame and the spikes of its exposure.

    path: the spike file.
    frame: an image. Of a folder or a video, the mean of all images is taken.
    """
    if command.search_planes:
        first, count = command.planes  # given, as `parse` makes sure
        stream, before = _stream_around(path, geometry, first, count, command.search_planes)
    else:
        # To find the geometry, one picture is enough: the sum of all planes of the exposure. It is
        # given as a stream with one plane, (1, h, w), whose exposure is this plane.
        # Without --planes, we read all planes of the file: count_in_file is None.
        first, count_in_file = command.planes or (0, None)
        spikes = read_spikes(path, geometry, first, count_in_file)  # (planes, h, w)
        stream = spikes.sum(axis=0, dtype=np.uint32)[None]
        before = 0
        count = 1
    frames = FrameSource(frame)
    image = np.mean([frames.read(i) for i in range(len(frames))], axis=0, dtype=np.float32)
    rounded = (image + 0.5).astype(np.uint8)
    return View(frame=rounded, stream=stream, before=before, count=count)


def _stream_around(
    path: Path, geometry: SpikeGeometry, first: int, count: int, search_planes: int
) -> tuple[np.ndarray, int]:
    """Read the planes of an exposure, and planes before and after it, to find the time.

    Returns the planes (T, h, w), and how many of them lie before the exposure.

    first, count: the planes of the exposure. search_planes: largest offset that is searched.
    """
    # An exposure with any searched offset must lie within the stream. The fit measures the change
    # with time over MOST_REACH further planes on each side.
    end = first + count
    around = search_planes + MOST_REACH
    begin = max(first - around, 0)  # the file may begin later
    stop = min(end + around, count_planes(path, geometry))  # the file may end earlier
    # If the file ends before the end of the exposure, read up to this end nevertheless. Then the
    # reader raises the error that names the missing planes.
    stop = max(stop, end)
    stream = read_spikes(path, geometry, begin, stop - begin)
    planes_before = first - begin
    return stream, planes_before


# ---- The geometry -----------------------------------------------------------------------------
#
# test_calibrate.py simulates two cameras and compares the matrix that is found with the true one
# (test_a_turned_camera_is_found_in_noise_with_blur, test_a_mirrored_camera_is_found). Pairs of
# different scenes must be refused (test_pictures_of_different_scenes_are_refused).


def with_geometry(
    geometry: SpikeGeometry, views: list[View], command: argparse.Namespace
) -> Calibration:
    """Return the calibration that fits all views: one matrix, and whether the image is mirrored.

    `made` of the calibration notes how well it fits, for the person who opens the file:
    features: number of features that agree with the matrix, and number of all features.
    correlation, patches, residual_px, residual_p90_px: the fields of `Quality`.

    Raises DataError if the images do not show the same, or give too little to judge by.
    """
    where = ", ".join(f"{spikes} and {frame}" for spikes, frame in command.pairs)  # for errors
    model = command.model  # e.g. "homography": which matrices are allowed

    # 1. A rough position, from features.
    mirror, start = _best_start(views, command)
    if start.inliers < LEAST_INLIERS:
        raise _cannot_calibrate(
            f"only {start.inliers} of {start.matches} features match in one position", where
        )
    # 2. The exact position. most_offset 0: the time is known.
    found = fit(mirrored(views, mirror), start.matrix, command.light, model, most_offset=0.0)
    # 3. Is it good enough?
    quality = _quality_of(found, model, where)

    print(alignment_in_words(start, mirror, found.matrix, quality))
    # Only a homography needs its third row. The third row of the other models is 0, 0, 1.
    rows = 3 if model == "homography" else 2
    frame_height, frame_width = views[0].frame.shape[:2]
    return Calibration(
        matrix=found.matrix[:rows].tolist(),
        mirror=mirror,
        tick_hz=command.tick_hz,
        spike_size=[geometry.height, geometry.width],
        rgb_size=[frame_height, frame_width],
        made={
            "by": "scripts/calibrate.py",
            "model": model,
            "pairs": len(views),
            "frames": [frame.name for _, frame in command.pairs],
            "features": [start.inliers, start.matches],
            "correlation": round(quality.correlation, 4),
            "residual_px": round(quality.residual, 3),
            "residual_p90_px": round(quality.p90, 3),
            "patches": quality.patches,
        },
    )


class Quality(NamedTuple):
    """How well a matrix fits."""

    correlation: float  # of the details of both images
    patches: int  # parts of the plane that were found in the frame one by one
    # Distance in RGB pixels between the place where a part was found and the place where the matrix
    # puts the part: the median of all parts, and the 90th percentile.
    residual: float
    p90: float


def _quality_of(found: FitResult, model: str, where: str) -> Quality:
    """Return how well the matrix of a fit maps the spikes to the frames.

    Raises DataError if the matrix is not good enough.

    where: the files, for the error.
    """
    # `explained` is the squared correlation. It is below 0 if the fit is worse than a constant, the
    # mean of the spikes. Then the correlation counts as 0.
    correlation = float(np.sqrt(max(found.explained, 0)))
    distances = found.residuals  # one for each part of the plane that could be matched
    if found.explained < LEAST_EXPLAINED:
        raise _cannot_calibrate(
            f"the correlation of the aligned images is {correlation:.2f}", where
        )
    if len(distances) < LEAST_PATCHES:
        raise _cannot_calibrate(
            f"only {len(distances)} patches have enough texture to measure the residual", where
        )
    residual = float(np.median(distances))
    p90 = float(np.percentile(distances, 90))
    # The limit is in pixels of the camera with the larger pixels. E.g. with 4 RGB pixels per spike
    # pixel, a residual of up to 4 RGB pixels is accepted. With a scale below 1, the RGB camera has
    # the larger pixels.
    scale = scale_of(found.matrix)  # RGB pixels per spike pixel
    if residual > MOST_RESIDUAL * max(1.0, scale):
        raise _cannot_calibrate(
            f"single patches lie {residual:.2f} RGB pixels from where the {model} maps them", where
        )
    return Quality(correlation, len(distances), residual, p90)


def mirrored(views: Sequence[View], mirror: str) -> list[View]:
    """Return the views with mirrored spike images."""
    # The axes along which a stream (planes, h, w) is reversed.
    axes = {"none": (), "columns": (2,), "rows": (1,), "both": (1, 2)}[mirror]
    mirrored_views = []
    for view in views:
        stream = np.ascontiguousarray(np.flip(view.stream, axes))
        mirrored_views.append(replace(view, stream=stream))
    return mirrored_views


def images_of(view: View, light: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the spikes (h, w) and the frame (H, W) as grey display values in [0, 1], float32.

    light: what the spike camera integrates, "linear" light or "display" values.
    """
    # The stream begins `before` planes before the exposure, which has `count` planes.
    end = view.before + view.count
    exposure = view.stream[view.before : end]
    rates = exposure.mean(axis=0, dtype=np.float32)  # (h, w), spikes per plane
    # The brightest half percent is white. At least 1e-6, because a dark image is divided by it,
    # too.
    white = max(float(np.percentile(rates, 99.5)), 1e-6)
    rates /= white
    spikes = to_display(rates) if light == "linear" else np.clip(rates, 0, 1)
    return spikes, to_grey(view.frame).astype(np.float32) / 255


# How a spike image may be mirrored, the values of `Calibration.mirror`.
Mirror = Literal["none", "columns", "rows", "both"]


class Start(NamedTuple):
    """The rough position of the spike image in the frame, from features."""

    matrix: np.ndarray  # (3, 3), affine: place in the spike image -> place in the frame
    inliers: int  # features that agree with the matrix
    matches: int  # features that were found in both images


def alignment_in_words(start: Start, mirror: str, matrix: np.ndarray, quality: Quality) -> str:
    """Return what was found, in two lines for the terminal.

    E.g. "60 of 81 features agree; correlation 0.912; mirrored: none; turned by 3.10 degrees, ...".

    start: the rough position. mirror: how the spike image is mirrored. matrix: the exact position.
    """
    # The first column of the matrix is the step in the frame for a step of one spike pixel along x.
    # For a homography this holds only nearly.
    step_x = matrix[0, 0]
    step_y = matrix[1, 0]
    angle = np.degrees(np.arctan2(step_y, step_x))
    return (
        f"{start.inliers} of {start.matches} features agree; correlation "
        f"{quality.correlation:.3f}; mirrored: {mirror}; turned by "
        f"{angle:.2f} degrees, {scale_of(matrix):.3f} RGB pixels per spike pixel\n"
        f"residual of {quality.patches} single patches: median {quality.residual:.2f}, 90 % below "
        f"{quality.p90:.2f} RGB pixels"
    )


def _best_start(views: Sequence[View], command: argparse.Namespace) -> tuple[Mirror, Start]:
    """Return how the spike image is mirrored, e.g. "columns", and its rough position.

    With --mirror auto, the image is tried as it is and mirrored. The way in which more features
    agree is returned.
    """
    # Mirrored rows need no trial. They are mirrored columns and a turn by 180 degrees, and a
    # position may have any turn.
    mirrors: tuple[Mirror, ...] = (command.mirror,)
    if command.mirror == "auto":
        mirrors = ("none", "columns")
    best_mirror = mirrors[0]
    best_start = _from_features(mirrored(views, best_mirror), command.light)
    for mirror in mirrors[1:]:
        start = _from_features(mirrored(views, mirror), command.light)
        if start.inliers > best_start.inliers:
            best_mirror = mirror
            best_start = start
    return best_mirror, best_start


def _from_features(views: Sequence[View], light: str) -> Start:
    """Return the affine matrix with which most features of all views together agree."""
    matches: list[Match] = []
    for view in views:
        spikes, frame = images_of(view, light)
        matches += _matches(spikes, frame)
    nothing = Start(np.eye(3), inliers=0, matches=len(matches))
    if len(matches) < 4:  # three matches always agree with some affine matrix
        return nothing
    in_spikes = np.array([match.in_spikes for match in matches], np.float64)  # (matches, 2)
    in_frame = np.array([match.in_frame for match in matches], np.float64)  # (matches, 2)
    tolerance = FEATURE_TOLERANCE * max(views[0].frame.shape[:2])  # in pixels
    # RANSAC draws at random. With this seed the same pairs give the same matrix.
    cv2.setRNGSeed(0)
    # affine is (2, 3). is_inlier is (matches, 1), 0 or 1. RANSAC stops earlier if it is sure by the
    # confidence. With many wrong matches it needs many of its rounds (maxIters).
    affine, is_inlier = cv2.estimateAffine2D(
        in_spikes,
        in_frame,
        method=cv2.RANSAC,
        ransacReprojThreshold=tolerance,
        maxIters=20000,
        confidence=0.9999,
    )
    if affine is None:
        return nothing
    # The determinant says by how much an area grows. A determinant below 0 means that the matrix
    # mirrors. It is refused, because `_best_start` tries mirrored images separately. If an area
    # becomes 1000 times larger or smaller, the two images are no views of the same scene.
    determinant = np.linalg.det(affine[:, :2])
    if not 1e-3 < determinant < 1e3:
        return nothing
    matrix = np.vstack((affine, (0, 0, 1)))
    return Start(matrix, inliers=int(is_inlier.sum()), matches=len(matches))


class Match(NamedTuple):
    """A feature that is in both images. The places are (x, y)."""

    in_spikes: Sequence[float]  # place in the spike image, in spike pixels
    in_frame: np.ndarray  # place in the frame, in RGB pixels


def _matches(spikes: np.ndarray, frame: np.ndarray) -> list[Match]:
    """Return the features that are in both images.

    Two features match if each is the nearest of the other, and clearly nearer than the second
    nearest (CLEAR_MATCH). "Near" compares their descriptors, which say what a feature looks like.
    """
    # A wide frame is reduced by a whole factor, because the spike image has few pixels. A narrow
    # frame stays as it is: factor 1.
    factor = max(1, round(frame.shape[1] / FEATURE_WIDTH))
    small = cv2.resize(frame, None, fx=1 / factor, fy=1 / factor, interpolation=cv2.INTER_AREA)
    smooth = cv2.GaussianBlur(spikes, (0, 0), 0.8)  # less of the noise of single spikes
    # At most 5000 features of each image. OpenCV's default for the least contrast is 0.04. The
    # lower value finds features of low contrast as well.
    sift = cv2.SIFT.create(nfeatures=5000, contrastThreshold=0.02)
    points_of_spikes, spike_descriptors = sift.detectAndCompute(_stretched(smooth), mask=None)
    points_of_frame, frame_descriptors = sift.detectAndCompute(_stretched(small), mask=None)
    if spike_descriptors is None or frame_descriptors is None:
        return []
    if len(frame_descriptors) < 2:  # there is no second nearest
        return []
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    # For each feature of the frame, the nearest feature of the spikes. OpenCV's queryIdx is the
    # index of the feature that was asked for, and trainIdx the index of the answer.
    nearest_in_spikes = {}
    for answer in matcher.match(frame_descriptors, spike_descriptors):
        nearest_in_spikes[answer.queryIdx] = answer.trainIdx
    found = []
    # For each feature of the spikes, the nearest and the second nearest feature of the frame.
    for first, second in matcher.knnMatch(spike_descriptors, frame_descriptors, k=2):
        is_clear = first.distance < CLEAR_MATCH * second.distance
        is_mutual = nearest_in_spikes[first.trainIdx] == first.queryIdx
        if is_clear and is_mutual:
            # Pixel centres are at whole numbers, so the corner of the image is at -0.5.
            in_small = np.array(points_of_frame[first.trainIdx].pt)
            in_frame = (in_small + 0.5) * factor - 0.5
            found.append(Match(points_of_spikes[first.queryIdx].pt, in_frame))
    return found


def _stretched(image: np.ndarray) -> np.ndarray:
    """Return an image as uint8, with more contrast: 0.5 % of its pixels are black, 0.5 % white."""
    low, high = np.percentile(image, (0.5, 99.5))
    contrast = max(high - low, 1e-6)  # above 0, for an image of one value
    stretched = np.clip((image - low) / contrast, 0, 1)
    return (255 * stretched).astype(np.uint8)


# ---- The time ---------------------------------------------------------------------------------
#
# Tests: test_the_time_offset_is_found_if_the_scene_moves,
# test_a_time_offset_is_refused_if_the_scene_does_not_move,
# test_all_planes_count_as_exposed_if_the_frame_was_exposed_during_all_of_them


def with_offset(
    known: Calibration,
    geometry: SpikeGeometry,
    views: list[View],
    command: argparse.Namespace,
) -> Calibration:
    """Return the known calibration with the time offset and the exposure share.

    The offset is the number of planes by which the middle of the exposures is later than the middle
    of --planes. Raises DataError if the scene moves too little to tell, or if the offset is at the
    end of what is searched.
    """
    CalibratedGrid(known, geometry, str(command.geometry)).check_size(views[0].frame.shape[:2])
    search = command.search_planes
    where = ", ".join(str(frame) for _, frame in command.pairs)
    # The views are mirrored here, so the matrix must not mirror them again.
    matrix = known.model_copy(update={"mirror": "none"}).to_rgb()
    found = fit(
        mirrored(views, known.mirror),
        matrix,
        command.light,
        model=None,  # the matrix stays as it is
        most_offset=search,
    )
    offset = found.offset  # planes
    error = found.offset_error  # planes
    if found.explained < LEAST_EXPLAINED or error > MOST_OFFSET_ERROR:
        raise _cannot_calibrate(
            f"the scene moves too little: the offset would be {offset:.1f} planes, error "
            f"{error:.1f}",
            where,
        )
    # If the best offset is at the end of the search, a better offset may lie behind the end.
    if abs(offset) > search - LEAST_REACH:
        raise _cannot_calibrate(
            f"the best offset, {offset:.1f} planes, is the last one searched", where
        )
    print(
        f"the exposures are {offset:+.2f} planes later than --planes says, error {error:.2f}; "
        f"exposed for {found.share:.0%} of these planes, error {found.share_error:.1%}"
    )
    changes = {
        "time_offset_planes": round(offset, 3),
        "exposure_share": share_of(found, known),
        "tick_hz": command.tick_hz or known.tick_hz,
    }
    return known.model_copy(update=changes)


def share_of(found: FitResult, known: Calibration) -> float:
    """Return the share of the planes of --planes during which the frames were exposed.

    The share is 1 if the found share differs from 1 by less than its error allows. If the pairs do
    not show the share, it is the share of the known calibration.
    """
    error = found.share_error
    if error > SURE_WITHIN_SHARE:
        print(f"the share is not sure: it stays {known.exposure_share:g}")
        return known.exposure_share
    # The same limits as for `spike.calibration` "auto", in `FitResult.is_applied`.
    least_change = max(LEAST_CHANGE_SHARE, LEAST_CHANGE_IN_ERRORS * error)
    shortened_by = 1 - found.share
    if shortened_by < least_change:
        return 1.0
    return round(found.share, 3)


# ---- Errors and the overlay -------------------------------------------------------------------


def _cannot_calibrate(what: str, where: str) -> DataError:
    """Return the error for a pair that cannot be calibrated. what: the reason. where: the files."""
    return DataError(
        what=f"the two cameras cannot be calibrated with this pair: {what}",
        where=where,
        expected="the same moment of one scene with much texture, sharp in both cameras, of which "
        "they see a good part together",
        do="use other pairs, check the spike size and flip (spike_tool.py view), or try --model "
        "similarity or affine",
    )


def overlay(view: View, light: str, grid: CalibratedGrid) -> np.ndarray:
    """Return an image (2 H, W, 3) uint8 that shows whether frame and spikes agree.

    The upper half has the frame in magenta and the spikes in green. Both are grey where they agree.
    The lower half shows squares of the frame and of the spikes in turn.
    """
    rates, frame = images_of(view, light)  # (h, w) of the spike camera, (H, W) of the frame
    height, width = frame.shape
    # Bring the spikes to the pixels of the whole frame. `to_rgb` takes and returns several
    # channels. Here it is one channel.
    window = grid.window(Crop(top=0, left=0, height=height, width=width))
    seen = window.covered  # (H, W): the pixels that the spike camera sees
    needed_rates = rates[window.crop.slices]  # the spike pixels that show a part of the frame
    spikes = window.to_rgb(needed_rates[None])[0]  # (H, W)
    # Give the spikes the mean and the contrast of the frame, where both cameras see. An image of
    # one value has the deviation 0, so divide by at least 1e-6.
    normal = (spikes - spikes[seen].mean()) / max(spikes[seen].std(), 1e-6)
    spikes = normal * frame[seen].std() + frame[seen].mean()
    spikes = np.where(seen, np.clip(spikes, 0, 1), 0)

    upper = np.stack((frame, spikes, frame), axis=2)  # red and blue make magenta
    # Squares as on a chessboard. y and x: the row and the column of squares of each pixel.
    y, x = np.mgrid[:height, :width] // TILE
    is_frame = (x + y) % 2 == 0
    squares = np.where(is_frame, frame, spikes)
    lower = np.repeat(squares[..., None], 3, axis=2)
    image = np.concatenate((upper, lower))
    image = np.ascontiguousarray((255 * image + 0.5).astype(np.uint8))
    # A yellow line of one pixel around the region that the spike camera sees. OpenCV takes the
    # corners as (column, row).
    region = grid.region
    upper_left = (region.left, region.top)
    lower_right = (region.right - 1, region.bottom - 1)
    cv2.rectangle(image, upper_left, lower_right, color=(255, 255, 0), thickness=1)
    return image


if __name__ == "__main__":
    sys.exit(main())

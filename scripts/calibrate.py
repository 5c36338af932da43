#!/usr/bin/env python3
"""Calibrate a spike camera and an RGB camera with different views, from captures of the same
moments.

    python scripts/calibrate.py --pair a.dat a.png --pair b.dat b.png --size 250 400 \\
        --out calibration.json
    python scripts/calibrate.py --pair moving.dat moving.png --planes 100 40 \\
        --geometry calibration.json --search-planes 30 --out synchronised.json

The first form finds the geometry. Capture flat or distant scenes with much texture. Cameras and
scene are at rest, or the planes are exactly those of the frame's exposure. The second form takes
the geometry from a file, and finds by how many planes the exposure is later than --planes says, and
during which share of these planes the frame was exposed. The scene has to move. Each form writes
the file for `spike.calibration`, and an overlay image beside it to look at. Nothing is overwritten.
docs/data_format.md, section "Two cameras".

Features (SIFT, RANSAC) give an affine start for any turn, scale and mirroring. The fit of
`spike.calibration` "auto" (data/cameras/registration.py) makes it exact, and finds the time. Parts
of the plane that are matched on their own measure the error that is left. All places are (x, y)
with pixel centres at whole numbers, see data/cameras/spike_grid.py.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.cameras import registration
from data.cameras.spike_grid import (
    CalibratedGrid,
    Calibration,
    load_calibration,
    save_calibration,
    scale_of,
)
from data.cameras.spike_info import spike_errors_as_data_errors
from data.clips.files import FrameSource
from data.spike.formats import Crop, SpikeGeometry, count_planes, read_spikes
from data.spike.simulate import to_display, to_grey
from scripts.parts.exit_codes import with_exit_code
from scripts.spike_tool import add_geometry, the_geometry
from utils.errors import DataError, OptionError
from utils.files import refuse_existing
from utils.image import encode_rgb, imwrite_rgb

TILE = 64  # RGB pixels of a square of the overlay
FEATURE_WIDTH = 1200  # wider frames are reduced to find features
# A calibration with fewer features that agree, or fewer parts of the plane to measure, is refused.
LEAST_INLIERS = 15
LEAST_PATCHES = 6
# Largest error that is accepted: the median over the parts of the plane, in the larger of the two
# cameras' pixels; and the error of a time offset, in planes.
MOST_RESIDUAL = 1.0
MOST_OFFSET_ERROR = 1.0


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    refuse_existing(command.out, "--out")
    refuse_existing(command.overlay, "--overlay")
    # Write an image of one pixel, in memory: this refuses an unknown suffix before the work.
    encode_rgb(command.overlay, np.zeros((1, 1, 3), np.uint8))

    with spike_errors_as_data_errors():
        first_spikes, _ = command.pairs[0]
        geometry = the_geometry(first_spikes, command)
        views = [view_of(spikes, frame, geometry, command) for spikes, frame in command.pairs]
        refuse_sizes(views, command)
        if command.geometry:
            calibration = with_offset(load_calibration(command.geometry), geometry, views, command)
        else:
            calibration = with_geometry(geometry, views, command)

    # The region is the part of the frame that the spike camera sees.
    grid = CalibratedGrid(calibration, geometry, str(command.out))
    calibration = calibration.model_copy(update={"region": list(grid.region)})
    save_calibration(command.out, calibration)
    imwrite_rgb(command.overlay, overlay(views[0], command.light, grid))
    top, left, height, width = grid.region
    print(
        f"{command.out}: the spikes cover {grid.coverage:.1%} of the frame; rows {top} to "
        f"{top + height - 1}, columns {left} to {left + width - 1} are used for training. Look at "
        f"{command.overlay}"
    )
    return 0


def refuse_sizes(views: Sequence[registration.View], command: argparse.Namespace) -> None:
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
        "spikes, and an image of that time (or a folder or video, of which the mean is "
        "taken); may be repeated"
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
        help="planes of the exposure; default: all",
    )
    add(
        "--light",
        choices=("linear", "display"),
        default="linear",
        help="what the spike camera integrates",
    )
    add(
        "--model",
        choices=tuple(registration.MODELS),
        default="homography",
        help="default %(default)s",
    )
    add(
        "--mirror",
        choices=("auto", "none", "columns", "rows", "both"),
        default="auto",
        help="default: try both ways",
    )
    add("--geometry", type=Path, metavar="FILE", help="calibration to take matrix and mirror from")
    add(
        "--search-planes",
        type=int,
        metavar="N",
        help="with --geometry: offsets from -N to N planes",
    )
    add("--tick-hz", type=float, help="planes per second, for the file")
    add("--out", type=Path, required=True, help="the calibration, JSON")
    add("--overlay", type=Path, help="default: beside --out, .png")
    command = parser.parse_args(arguments)
    command.overlay = command.overlay or command.out.with_suffix(".png")
    has_one_of_both = bool(command.geometry) != bool(command.search_planes)
    has_no_planes = bool(command.geometry) and not command.planes
    if has_one_of_both or has_no_planes:
        raise OptionError(
            what="--geometry, --search-planes and --planes belong together",
            where="the command line",
            expected="all three, to find the time offset",
            do="add the missing ones",
        )
    return command


def view_of(
    path: Path, frame: Path, geometry: SpikeGeometry, command: argparse.Namespace
) -> registration.View:
    """Read one pair: the frame and the spikes of its exposure.

    path: the spike file; frame: an image, or a folder or video, whose mean is taken
    """
    if command.search_planes:
        # To find the time, the planes are read one by one, and planes before and after the
        # exposure as well: the offsets that are searched, and MOST_REACH planes to measure the
        # change with time.
        first, count = command.planes  # given, as `parse` makes sure
        end = first + count
        around = command.search_planes + registration.MOST_REACH
        begin = max(first - around, 0)
        last = max(min(end + around, count_planes(path, geometry)), end)
        stream = read_spikes(path, geometry, begin, last - begin)
        before = first - begin
    else:
        # To find the geometry, the sum of the planes is enough. It is a stream of one plane
        # (1, h, w), and this plane is the exposure.
        first, planes = command.planes or (0, None)
        stream = read_spikes(path, geometry, first, planes).sum(axis=0, dtype=np.uint32)[None]
        before = 0
        count = 1
    frames = FrameSource(frame)
    image = np.mean([frames.read(i) for i in range(len(frames))], axis=0, dtype=np.float32)
    rounded = (image + 0.5).astype(np.uint8)
    return registration.View(rounded, stream, before, count)


# ---- The geometry -----------------------------------------------------------------------------


def with_geometry(
    geometry: SpikeGeometry, views: list[registration.View], command: argparse.Namespace
) -> Calibration:
    """Return the calibration that fits all views: one matrix, and whether the image is mirrored.

    `made` of the calibration notes how well it fits:
    features: number of features that agree with the matrix, and number of all features.
    correlation: of the details of both images.
    patches: number of parts of the plane that were found in the frame one by one.
    residual_px: distance in RGB pixels between the place where a part was found and the place where
        the matrix puts it, the median of all parts.
    residual_p90_px: the 90th percentile of the same distances.

    Raises DataError if the images do not show the same, or give too little to judge by.
    """
    where = ", ".join(f"{spikes} and {frame}" for spikes, frame in command.pairs)
    model = command.model

    # Try the image as it is and mirrored, and take the way in which more features agree. Mirrored
    # rows need no trial: they are mirrored columns and a turn by 180 degrees.
    mirrors: tuple[Any, ...] = (command.mirror,)
    if command.mirror == "auto":
        mirrors = ("none", "columns")
    starts = {mirror: _from_features(mirrored(views, mirror), command.light) for mirror in mirrors}
    mirror: Any = max(starts, key=lambda name: starts[name].inliers)
    start = starts[mirror]
    if start.inliers < LEAST_INLIERS:
        raise _wrong(
            f"only {start.inliers} of {start.matches} features match in one position", where
        )

    # Make it exact. most_offset 0: the time is known.
    found = registration.fit(
        mirrored(views, mirror), start.matrix, command.light, model, most_offset=0.0
    )
    matrix = found.matrix
    # `explained` is the squared correlation. It is below 0 if the frame explains less than a
    # constant would.
    correlation = float(np.sqrt(max(found.explained, 0)))
    distances = found.residuals  # one for each part of the plane that could be matched
    if found.explained < registration.LEAST_EXPLAINED:
        raise _wrong(f"the correlation of the aligned images is {correlation:.2f}", where)
    if len(distances) < LEAST_PATCHES:
        raise _wrong(
            f"only {len(distances)} patches have enough texture to measure the residual", where
        )
    residual = float(np.median(distances))
    p90 = float(np.percentile(distances, 90))
    scale = scale_of(matrix)  # RGB pixels per spike pixel
    # The limit is in pixels of the coarser camera. If a spike pixel is smaller than an RGB pixel
    # (scale below 1), the RGB camera is the coarser one.
    if residual > MOST_RESIDUAL * max(1.0, scale):
        raise _wrong(
            f"single patches lie {residual:.2f} RGB pixels from where the {model} maps them", where
        )

    angle = np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0]))
    print(
        f"{start.inliers} of {start.matches} features agree; correlation {correlation:.3f}; "
        f"mirrored: {mirror}; turned by "
        f"{angle:.2f} degrees, {scale:.3f} RGB pixels per spike pixel\n"
        f"residual of {len(distances)} single patches: median {residual:.2f}, 90 % below "
        f"{p90:.2f} RGB pixels"
    )
    rows = 3 if model == "homography" else 2  # the third row of the others is 0, 0, 1
    frame_height, frame_width = views[0].frame.shape[:2]
    return Calibration(
        matrix=matrix[:rows].tolist(),
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
            "correlation": round(correlation, 4),
            "residual_px": round(residual, 3),
            "residual_p90_px": round(p90, 3),
            "patches": len(distances),
        },
    )


def mirrored(views: Sequence[registration.View], mirror: str) -> list[registration.View]:
    """Return the views with mirrored spike images."""
    # The axes along which a stream (planes, h, w) is reversed.
    axes = {"none": (), "columns": (2,), "rows": (1,), "both": (1, 2)}[mirror]
    found = []
    for view in views:
        stream = np.ascontiguousarray(np.flip(view.stream, axes))
        found.append(replace(view, stream=stream))
    return found


def images_of(view: registration.View, light: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the spikes (h, w) and the frame (H, W) as grey display values in [0, 1], float32.

    light: what the spike camera integrates, "linear" or "display"
    """
    exposure = view.stream[view.before : view.before + view.count]
    rates = exposure.mean(axis=0, dtype=np.float32)
    # The brightest half percent is white. Above 0, because the rates are divided by it.
    rates /= max(float(np.percentile(rates, 99.5)), 1e-6)
    spikes = to_display(rates) if light == "linear" else np.clip(rates, 0, 1)
    return spikes, to_grey(view.frame).astype(np.float32) / 255


class Start(NamedTuple):
    """The rough position of the spike image in the frame, from features."""

    matrix: np.ndarray  # (3, 3), affine: place in the spike image -> place in the frame
    inliers: int  # features that agree with the matrix
    matches: int  # features that were found in both images


def _from_features(views: Sequence[registration.View], light: str) -> Start:
    """Return the affine matrix with which most features of all views together agree."""
    places = []  # (place in the spike image, place in the frame) of each match
    for view in views:
        spikes, frame = images_of(view, light)
        places += _matches(spikes, frame)
    nothing = Start(np.eye(3), 0, len(places))
    if len(places) < 4:  # three matches always agree with some affine matrix
        return nothing
    # In pixels. So wide, because an affine matrix cannot follow the perspective of a homography.
    tolerance = 0.008 * max(views[0].frame.shape[:2])
    cv2.setRNGSeed(0)  # RANSAC draws at random; the same pairs give the same matrix
    in_spikes, in_frame = np.array(places, np.float64).swapaxes(0, 1).copy()  # (matches, 2) each
    found, used = cv2.estimateAffine2D(
        in_spikes,
        in_frame,
        method=cv2.RANSAC,
        ransacReprojThreshold=tolerance,
        maxIters=20000,
        confidence=0.9999,
    )
    # A determinant below 0 mirrors, and mirrored images are tried on their own. A very small or
    # large one is no view of the same scene.
    if found is None or not 1e-3 < np.linalg.det(found[:, :2]) < 1e3:
        return nothing
    return Start(np.vstack((found, (0, 0, 1))), int(used.sum()), len(places))


def _matches(spikes: np.ndarray, frame: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    """Return (place in the spikes, place in the frame) of features that are in both images.

    Two features match if each is the nearest of the other, and clearly nearer than the second
    nearest.
    """
    # A wide frame is reduced, because the spike image has few pixels.
    factor = max(1, round(frame.shape[1] / FEATURE_WIDTH))
    small = cv2.resize(frame, None, fx=1 / factor, fy=1 / factor, interpolation=cv2.INTER_AREA)
    smooth = cv2.GaussianBlur(spikes, (0, 0), 0.8)  # less of the noise of single spikes
    sift = cv2.SIFT.create(nfeatures=5000, contrastThreshold=0.02)
    of_spikes, a = sift.detectAndCompute(_stretched(smooth), None)
    of_frame, b = sift.detectAndCompute(_stretched(small), None)
    if a is None or b is None or len(b) < 2:
        return []
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    back = {match.queryIdx: match.trainIdx for match in matcher.match(b, a)}  # frame -> spikes
    found = []
    for first, second in matcher.knnMatch(a, b, k=2):
        is_clear = first.distance < 0.85 * second.distance
        if is_clear and back[first.trainIdx] == first.queryIdx:
            # Pixel centres are at whole numbers, so the corner of the image is at -0.5.
            in_frame = (np.array(of_frame[first.trainIdx].pt) + 0.5) * factor - 0.5
            found.append((of_spikes[first.queryIdx].pt, in_frame))
    return found


def _stretched(image: np.ndarray) -> np.ndarray:
    """Return an image as uint8, stretched so that 0.5 % of the pixels are black and white each."""
    low, high = np.percentile(image, (0.5, 99.5))
    return (255 * np.clip((image - low) / max(high - low, 1e-6), 0, 1)).astype(np.uint8)


# ---- The time ---------------------------------------------------------------------------------


def with_offset(
    known: Calibration,
    geometry: SpikeGeometry,
    views: list[registration.View],
    command: argparse.Namespace,
) -> Calibration:
    """Return the known calibration with the time offset and the exposure share.

    The offset is the number of planes by which the middle of the exposures is later than that of
    --planes. Raises DataError if the scene moves too little to tell, or if the offset is at the end
    of what is searched.
    """
    CalibratedGrid(known, geometry, str(command.geometry)).check_size(views[0].frame.shape[:2])
    search = command.search_planes
    where = ", ".join(str(frame) for _, frame in command.pairs)
    # The views are mirrored here, so the matrix must not mirror them again.
    matrix = known.model_copy(update={"mirror": "none"}).to_rgb()
    found = registration.fit(mirrored(views, known.mirror), matrix, command.light, None, search)
    offset = found.offset
    error = found.errors[1]  # of the offset, in planes
    if found.explained < registration.LEAST_EXPLAINED or error > MOST_OFFSET_ERROR:
        raise _wrong(
            f"the scene moves too little: the offset would be {offset:.1f} planes, error "
            f"{error:.1f}",
            where,
        )
    # An offset at the end of the search may be cut short.
    if abs(offset) > search - registration.LEAST_REACH:
        raise _wrong(f"the best offset, {offset:.1f} planes, is the last one searched", where)
    print(
        f"the exposures are {offset:+.2f} planes later than --planes says, error {error:.2f}; "
        f"exposed for {found.share:.0%} of these planes, error {found.errors[2]:.1%}"
    )
    changes = {
        "time_offset_planes": round(offset, 3),
        "exposure_share": share_of(found, known),
        "tick_hz": command.tick_hz or known.tick_hz,
    }
    return known.model_copy(update=changes)


def share_of(found: registration.Found, known: Calibration) -> float:
    """Return the share of the planes of --planes during which the frames were exposed.

    It is 1 if the found share differs from 1 by less than its error allows. It is the share of the
    known calibration if the pairs do not tell it.
    """
    error = found.errors[2]
    if error > registration.MOST_SHARE:
        print(f"the share is not sure: it stays {known.exposure_share:g}")
        return known.exposure_share
    # The limits are those of `spike.calibration` "auto", see `registration.Found.is_changed`.
    shortened_by = 1 - found.share
    if shortened_by < max(registration.LEAST_SHARE, registration.LEAST_ERRORS * error):
        return 1.0
    return round(found.share, 3)


# ---- Errors and the overlay -------------------------------------------------------------------


def _wrong(what: str, where: str) -> DataError:
    """Return the error for a pair that cannot be calibrated. what: the reason; where: its files."""
    return DataError(
        what=f"the two cameras cannot be calibrated with this pair: {what}",
        where=where,
        expected="the same moment of one scene with much texture, sharp in both cameras, of which "
        "they see a good part together",
        do="use other pairs, check the spike size and flip (spike_tool.py view), or try --model "
        "similarity or affine",
    )


def overlay(view: registration.View, light: str, grid: CalibratedGrid) -> np.ndarray:
    """Return an image (2 H, W, 3) uint8 that shows whether frame and spikes agree.

    The upper half has the frame in magenta and the spikes in green. Both are grey where they agree.
    The lower half shows squares of the frame and of the spikes in turn.
    """
    rates, frame = images_of(view, light)
    height, width = frame.shape
    window = grid.window(Crop(0, 0, height, width))  # the whole frame
    seen = window.covered  # (H, W): the pixels that the spike camera sees
    spikes = window.to_rgb(rates[window.crop.slices][None])[0]
    # Give the spikes the mean and the contrast of the frame, where both see.
    normal = (spikes - spikes[seen].mean()) / max(spikes[seen].std(), 1e-6)
    spikes = normal * frame[seen].std() + frame[seen].mean()
    spikes = np.where(seen, np.clip(spikes, 0, 1), 0)

    upper = np.stack((frame, spikes, frame), axis=2)  # red and blue make magenta
    y, x = np.mgrid[:height, :width] // TILE  # the number of the square of each pixel
    is_frame = (x + y) % 2 == 0
    squares = np.where(is_frame, frame, spikes)
    lower = np.repeat(squares[..., None], 3, axis=2)
    image = np.concatenate((upper, lower))
    image = np.ascontiguousarray((255 * image + 0.5).astype(np.uint8))
    top, left, rows, cols = grid.region
    cv2.rectangle(image, (left, top), (left + cols - 1, top + rows - 1), (255, 255, 0), 1)
    return image


if __name__ == "__main__":
    sys.exit(main())

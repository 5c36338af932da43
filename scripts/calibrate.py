#!/usr/bin/env python3
"""Calibrate a spike camera and an RGB camera with different views, from captures of the same
moments.

    python scripts/calibrate.py --pair a.dat a.png --pair b.dat b.png --size 250 400 --out
    calibration.json python scripts/calibrate.py --pair moving.dat moving.png --planes 100 40
    --geometry calibration.json \\
        --search-planes 30 --out synchronised.json

The first form finds the geometry: capture flat or distant scenes with much texture, cameras and
scene at rest, or planes of exactly the exposure of the frame. The second takes the geometry from a
file and finds by how many planes the exposure starts later than --planes says; the scene has to
move. Each writes the file for `spike.calibration`, and an overlay image beside it to look at.
Nothing is overwritten. docs/data_format.md, section "Two cameras".

Features (SIFT, RANSAC) give an affine start for any turn, scale and mirroring; the fit of
`spike.calibration` "auto" (data/cameras/registration.py) makes it exact, and finds the time. Parts
of the plane that are matched on their own measure what is left. All places are (x, y) with pixel
centres at whole numbers, see data/cameras/spike_grid.py.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
LEAST_INLIERS = 15
LEAST_PATCHES = 6
MOST_RESIDUAL = 1.0  # median over the patches, in the larger of the two cameras' pixels
MOST_OFFSET_ERROR = 1.0  # planes


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    for path, flag in ((command.out, "--out"), (command.overlay, "--overlay")):
        refuse_existing(path, flag)
    # Refuses an unknown suffix before the work
    encode_rgb(command.overlay, np.zeros((1, 1, 3), np.uint8))
    with spike_errors_as_data_errors():
        geometry = the_geometry(command.pairs[0][0], command)
        views = [view_of(spikes, frame, geometry, command) for spikes, frame in command.pairs]
        sizes = {
            view.frame.shape: frame for view, (_, frame) in zip(views, command.pairs, strict=True)
        }
        if len(sizes) > 1:
            found = ", ".join(
                f"{path} has {height} x {width}" for (height, width, _), path in sizes.items()
            )
            what = f"the frames differ in size: {found}"
            raise DataError(what, "--pair", "frames of one camera", "leave out the others")
        if command.geometry:
            calibration = with_offset(load_calibration(command.geometry), geometry, views, command)
        else:
            calibration = with_geometry(geometry, views, command)
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


def parse(arguments: list[str] | None) -> argparse.Namespace:
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
    if bool(command.geometry) != bool(command.search_planes) or (
        command.geometry and not command.planes
    ):
        what, do = (
            "--geometry, --search-planes and --planes belong together",
            "add the missing ones",
        )
        raise OptionError(what, "the command line", "all three, to find the time offset", do)
    return command


def view_of(
    path: Path, frame: Path, geometry: SpikeGeometry, command: argparse.Namespace
) -> registration.View:
    if command.search_planes:  # the change in time is measured around each plane
        first, count = command.planes  # given, as _arguments makes sure
        end = first + count
        around = command.search_planes + registration.STEP
        begin = max(first - around, 0)
        last = max(min(end + around, count_planes(path, geometry)), end)
        stream = read_spikes(path, geometry, begin, last - begin)
        before = first - begin
    else:
        first, planes = command.planes or (0, None)
        stream = read_spikes(path, geometry, first, planes).sum(axis=0, dtype=np.uint32)[None]
        before = 0
        count = 1
    frames = FrameSource(frame)
    image = np.mean([frames.read(i) for i in range(len(frames))], axis=0, dtype=np.float32)
    return registration.View((image + 0.5).astype(np.uint8), stream, before, count)


def with_geometry(
    geometry: SpikeGeometry, views: list[registration.View], command: argparse.Namespace
) -> Calibration:
    """The calibration that fits all views: the joint matrix of the mirroring with more features
    that agree.

    Rows are mirrored where columns are and the image is turned by 180 degrees. How well it fits is
    noted in `made`: features that agree, of how many; correlation of the details of both images;
    residual_px, residual_p90_px: median and 90th percentile, over `patches` parts of the plane, of
    the distance in RGB pixels between where one is and where it is mapped.
    Raises DataError where the images do not show the same, or give too little to judge by.
    """
    where, model = (
        ", ".join(f"{spikes} and {frame}" for spikes, frame in command.pairs),
        command.model,
    )
    mirrors: tuple[Any, ...] = (command.mirror,)
    if command.mirror == "auto":
        mirrors = ("none", "columns")
    starts = {mirror: _from_features(mirrored(views, mirror), command.light) for mirror in mirrors}
    mirror: Any = max(starts, key=lambda name: starts[name][1])
    start, inliers, matches = starts[mirror]
    if inliers < LEAST_INLIERS:
        raise _wrong(f"only {inliers} of {matches} features match in one position", where)
    found = registration.fit(mirrored(views, mirror), start, command.light, model, most_offset=0.0)
    matrix = found.matrix
    correlation = float(np.sqrt(max(found.explained, 0)))
    distances = found.residuals
    if found.explained < registration.LEAST_EXPLAINED:
        raise _wrong(f"the correlation of the aligned images is {correlation:.2f}", where)
    if len(distances) < LEAST_PATCHES:
        raise _wrong(
            f"only {len(distances)} patches have enough texture to measure the residual", where
        )
    residual, p90, scale = (
        float(np.median(distances)),
        float(np.percentile(distances, 90)),
        scale_of(matrix),
    )
    if residual > MOST_RESIDUAL * max(1.0, scale):
        raise _wrong(
            f"single patches lie {residual:.2f} RGB pixels from where the {model} maps them", where
        )
    angle = np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0]))
    print(
        f"{inliers} of {matches} features agree; correlation {correlation:.3f}; mirrored: "
        f"{mirror}; turned by "
        f"{angle:.2f} degrees, {scale:.3f} RGB pixels per spike pixel\n"
        f"residual of {len(distances)} single patches: median {residual:.2f}, 90 % below "
        f"{p90:.2f} RGB pixels"
    )
    return Calibration(
        matrix=matrix[: 3 if model == "homography" else 2].tolist(),
        mirror=mirror, tick_hz=command.tick_hz,
        spike_size=[geometry.height, geometry.width], rgb_size=list(views[0].frame.shape[:2]),
        made={
            "by": "scripts/calibrate.py", "model": model, "pairs": len(views),
            "frames": [frame.name for _, frame in command.pairs], "features": [inliers, matches],
            "correlation": round(correlation, 4), "residual_px": round(residual, 3),
            "residual_p90_px": round(p90, 3), "patches": len(distances),
        },
    )  # fmt: skip


def mirrored(views: Sequence[registration.View], mirror: str) -> list[registration.View]:
    """The views with mirrored spike images."""
    axes = {"none": (), "columns": (2,), "rows": (1,), "both": (1, 2)}[mirror]
    return [
        replace(view, stream=np.ascontiguousarray(np.flip(view.stream, axes))) for view in views
    ]


def images_of(view: registration.View, light: str) -> tuple[np.ndarray, np.ndarray]:
    """The spikes (h, w) and the frame (H, W), grey float32: display values in [0, 1]."""
    rates = view.stream[view.before : view.before + view.count].mean(axis=0, dtype=np.float32)
    rates /= max(float(np.percentile(rates, 99.5)), 1e-6)
    spikes = to_display(rates) if light == "linear" else np.clip(rates, 0, 1)
    return spikes, to_grey(view.frame).astype(np.float32) / 255


def _from_features(views: Sequence[registration.View], light: str) -> tuple[np.ndarray, int, int]:
    """(affine matrix, inliers, matches) from features of all views together, those that are each
    other's nearest.
    """
    pairs = []  # places in the spike image and in the frame
    for spikes, grey in (images_of(view, light) for view in views):
        factor, features = max(1, round(grey.shape[1] / FEATURE_WIDTH)), []
        small = cv2.resize(grey, None, fx=1 / factor, fy=1 / factor, interpolation=cv2.INTER_AREA)
        sift = cv2.SIFT.create(nfeatures=5000, contrastThreshold=0.02)
        for image in (cv2.GaussianBlur(spikes, (0, 0), 0.8), small):
            low, high = np.percentile(image, (0.5, 99.5))
            stretched = 255 * np.clip((image - low) / max(high - low, 1e-6), 0, 1)
            features.append(sift.detectAndCompute(stretched.astype(np.uint8), None))
        (ours, a), (theirs, b) = features
        if a is None or b is None or len(b) < 2:
            continue
        matcher = cv2.BFMatcher(cv2.NORM_L2)
        back = {match.queryIdx: match.trainIdx for match in matcher.match(b, a)}
        for first, second in matcher.knnMatch(a, b, k=2):
            if first.distance < 0.85 * second.distance and back[first.trainIdx] == first.queryIdx:
                place = (np.array(theirs[first.trainIdx].pt) + 0.5) * factor - 0.5
                pairs.append((ours[first.queryIdx].pt, place))
    if len(pairs) < 4:
        return np.eye(3), 0, len(pairs)
    # The perspective of a homography is no part of an affine matrix
    tolerance = 0.008 * max(views[0].frame.shape[:2])
    cv2.setRNGSeed(0)
    found, used = cv2.estimateAffine2D(
        *np.array(pairs, np.float64).swapaxes(0, 1).copy(),
        method=cv2.RANSAC,
        ransacReprojThreshold=tolerance,
        maxIters=20000,
        confidence=0.9999,
    )
    # A mirrored image is tried on its own; what collapses or mirrors is no view of the same scene.
    if found is None or not 1e-3 < np.linalg.det(found[:, :2]) < 1e3:
        return np.eye(3), 0, len(pairs)
    return np.vstack((found, (0, 0, 1))), int(used.sum()), len(pairs)


def with_offset(
    known: Calibration,
    geometry: SpikeGeometry,
    views: list[registration.View],
    command: argparse.Namespace,
) -> Calibration:
    """The known calibration, with by how many planes the exposures start later than --planes says.

    Raises DataError where the scene moves too little to tell, and where the offset is at the end of
    what is searched.
    """
    CalibratedGrid(known, geometry, str(command.geometry)).check_size(views[0].frame.shape[:2])
    search, where = command.search_planes, ", ".join(str(frame) for _, frame in command.pairs)
    matrix = known.model_copy(update={"mirror": "none"}).to_rgb()
    found = registration.fit(mirrored(views, known.mirror), matrix, command.light, None, search)
    offset, error = found.offset, found.errors[1]
    if found.explained < registration.LEAST_EXPLAINED or error > MOST_OFFSET_ERROR:
        raise _wrong(
            f"the scene moves too little: the offset would be {offset:.1f} planes, error "
            f"{error:.1f}",
            where,
        )
    if abs(offset) > search - registration.LEAST_ROOM:
        raise _wrong(f"the best offset, {offset:.1f} planes, is the last one searched", where)
    print(
        f"the exposures start {offset:+.2f} planes later than plane {command.planes[0]}, error "
        f"{error:.2f}"
    )
    changes = {"time_offset_planes": round(offset, 3), "tick_hz": command.tick_hz or known.tick_hz}
    return known.model_copy(update=changes)


def _wrong(what: str, where: str) -> DataError:
    return DataError(
        what=f"the two cameras cannot be calibrated with this pair: {what}",
        where=where,
        expected="the same moment of one scene with much texture, sharp in both cameras, of which "
        "they see a good part together",
        do="use other pairs, check the spike size and flip (spike_tool.py view), or try --model "
        "similarity or affine",
    )


def overlay(view: registration.View, light: str, grid: CalibratedGrid) -> np.ndarray:
    """(2 H, W, 3) uint8: frame magenta and spikes green, grey where they agree; below, squares of
    one and the other.
    """
    rates, frame = images_of(view, light)
    height, width = frame.shape
    window = grid.window(Crop(0, 0, height, width))
    spikes, seen = window.to_rgb(rates[window.crop.slices][None])[0], window.covered
    # Same mean and contrast where both see.
    spikes = (spikes - spikes[seen].mean()) / max(spikes[seen].std(), 1e-6) * frame[
        seen
    ].std() + frame[seen].mean()
    spikes = np.where(seen, np.clip(spikes, 0, 1), 0)
    y, x = np.mgrid[:height, :width] // TILE
    squares = np.where((x + y) % 2 == 0, frame, spikes)
    image = np.concatenate(
        (np.stack((frame, spikes, frame), axis=2), np.repeat(squares[..., None], 3, axis=2))
    )
    image = np.ascontiguousarray((255 * image + 0.5).astype(np.uint8))
    top, left, rows, cols = grid.region
    cv2.rectangle(image, (left, top), (left + cols - 1, top + rows - 1), (255, 255, 0), 1)
    return image


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Calibrate a spike camera and an RGB camera with different views, from captures of the same
moments.

    python scripts/calibrate.py --pair a.dat a.png --pair b.dat b.png --size 250 400 \\
        --out calibration.json
    python scripts/calibrate.py --pair moving.dat moving.png --planes 100 40 \\
        --geometry calibration.json --search-planes 30 --out synchronised.json

The first form finds the position, i.e. how the cameras lie to one another. Capture flat or distant
scenes with much texture. The cameras and the scene must be at rest, or the planes must be exactly
the planes of the frame's exposure. The second form takes the position from a file, and finds two
numbers: by how many planes the middle of the exposure is later than the middle of --planes, and the
fraction of these planes during which the frame was exposed. The scene has to move. Each form writes
the file for `spike.calibration`, and an overlay image beside it to look at. No file is overwritten.
More: docs/data_format.md, section "Making a calibration file".

How the position is found: features of both images (SIFT, RANSAC) give a rough position, for any
turn, scale and mirroring. The fit of `spike.calibration` "auto" (data/cameras/registration) makes
the position exact. Then single parts of the plane are matched on their own, to measure the error
that is left. The second form uses the same fit, but does not change the matrix. All points are
(x, y) with pixel centres at whole numbers, as in data/cameras/calibration.py.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.calibration import Calibration, load_calibration, save_calibration
from data.cameras.registration.matrix import MODELS
from data.cameras.registration.view import View
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.spike.geometry import SpikeGeometry
from scripts.parts.calibrate.camera_overlay import overlay
from scripts.parts.calibrate.camera_pairs import read_view, refuse_different_sizes
from scripts.parts.calibrate.camera_position import find_position
from scripts.parts.calibrate.camera_time import find_time, share_of
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.spike_tool.spike_geometry import (
    GeometryOptions,
    add_geometry,
    given_geometry,
    single_geometry,
)
from utils.arguments import plane_rate
from utils.errors import OptionError
from utils.image import encode_rgb, imwrite_rgb
from utils.output_folder import refuse_existing

# This file has the command line, what is printed, and what is written. The work is in
# scripts/parts/calibrate/:
#
#     camera_pairs.py      reads the pairs
#     camera_position.py   how the cameras lie to one another
#     camera_features.py   a rough position, from which the exact position is found
#     camera_time.py       when the frames were exposed
#     camera_overlay.py    the image to look at
#
# Words of this file:
#     plane      one readout of the spike camera: a bit for each spike pixel
#     view       a frame and the spikes of its exposure (View)
#     geometry   height, width and storage of the planes of a spike file (SpikeGeometry). Only the
#                option --geometry means something else: a calibration with the position
#     position   how the cameras lie to one another: the matrix, and how the image is mirrored
#
# What must stay: the keys of the written file, a `Calibration`, which docs/data_reference.md
# describes (test_the_file_says_the_clock_with_the_sizes). The same pairs give the same file.
# Free to change: the printed words.
# Test: tests/parts/scripts/test_calibrate.py


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Calibrate, and write the file and the overlay. Returns the exit code 0."""
    command = parse(arguments)
    refuse_existing(command.out, "--out")
    refuse_existing(command.overlay, "--overlay")
    # Encode an image of one pixel, in memory. If the suffix is unknown, this call raises an error
    # before the long work.
    encode_rgb(command.overlay, np.zeros((1, 1, 3), np.uint8))

    with spike_errors_as_data_errors():
        earlier = load_calibration(command.geometry) if command.geometry else None
        geometry = geometry_of(command, earlier)
        views = []
        frames = []  # paths of the frames, for errors
        for spikes, frame in command.pairs:
            view = read_view(
                spikes,
                frame,
                geometry=geometry,
                planes=command.planes,
                search_planes=command.search_planes,
            )
            views.append(view)
            frames.append(frame)
        refuse_different_sizes(views, frames)
        if earlier:
            calibration = with_time(earlier, geometry, views, command)
        else:
            calibration = with_position(geometry, views, command)

    # The region is the rectangle of the frame that is used for training, e.g. "rows 0 to 719,
    # columns 30 to 1249". The spike camera sees the whole region. The grid finds the region from
    # the matrix, so the region is added after the matrix is known.
    grid = CalibratedGrid(calibration, geometry, str(command.out))
    calibration = calibration.model_copy(update={"region": grid.region.as_list()})
    save_calibration(command.out, calibration)
    imwrite_rgb(command.overlay, overlay(views[0], command.light, grid))
    print(
        f"{command.out}: the spikes cover {grid.coverage:.1%} of the frame; "
        f"{grid.region.in_words()} are used for training. Look at {command.overlay}"
    )
    return 0


def geometry_of(command: argparse.Namespace, earlier: Calibration | None) -> SpikeGeometry:
    """Return the geometry of the first spike file. All spike files are read with this geometry.

    If neither the command line nor the first file says the size of a plane, the size comes from the
    earlier calibration (--geometry).

    earlier: the calibration of --geometry, or None.
    """
    first_spikes, _ = command.pairs[0]
    options = GeometryOptions.of(command)
    is_size_known = given_geometry(first_spikes, options) is not None
    if earlier and not is_size_known:
        height, width = earlier.spike_size
        options = replace(options, size=(height, width))
    return single_geometry(first_spikes, options)


# ---- The two forms of a calibration -----------------------------------------------------------


def with_position(
    geometry: SpikeGeometry, views: Sequence[View], command: argparse.Namespace
) -> Calibration:
    """Return the calibration that fits all views: one matrix, and whether the image is mirrored.

    The field `made` says how well the calibration fits, for the person who opens the file:

        features           number of features that agree with the rough matrix, and number of
                           features that were found in both images
        correlation, patches, residual_px, residual_p90_px
                           the fields of `Quality` (scripts/parts/calibrate/camera_position.py)

    geometry: height, width and storage of the planes.
    views: for each pair, the frame and the spikes of its exposure.
    command: the command line, e.g. with the model and the paths of the pairs.

    Raises DataError if the images do not show the same scene, or show too little to judge by.

    Test: test_the_file_says_how_well_the_pictures_fit
    """
    where = ", ".join(f"{spikes} and {frame}" for spikes, frame in command.pairs)  # for errors
    model = command.model  # e.g. "homography": which matrices are allowed
    position = find_position(
        views, light=command.light, model=model, mirror=command.mirror, where=where
    )
    print(position.in_words())

    # Only a homography needs its third row. The third row of the other models is 0, 0, 1.
    rows = 3 if model == "homography" else 2
    frame_height, frame_width = views[0].frame.shape[:2]
    quality = position.quality
    return Calibration(
        matrix=position.matrix[:rows].tolist(),
        mirror=position.mirror,
        tick_hz=command.tick_hz,
        spike_size=[geometry.height, geometry.width],
        rgb_size=[frame_height, frame_width],
        made={
            "by": "scripts/calibrate.py",
            "model": model,
            "pairs": len(views),
            "frames": [frame.name for _, frame in command.pairs],
            "features": [position.rough.inliers, position.rough.matches],
            "correlation": round(quality.correlation, 4),
            "residual_px": round(quality.residual, 3),
            "residual_p90_px": round(quality.p90, 3),
            "patches": quality.patches,
        },
    )


def with_time(
    earlier: Calibration,
    geometry: SpikeGeometry,
    views: Sequence[View],
    command: argparse.Namespace,
) -> Calibration:
    """Return the calibration of --geometry, completed with the time offset and the exposure share.

    earlier: the calibration of --geometry.
    geometry, views, command: as in `with_position`.

    Raises DataError if the views do not show the time offset.

    Test: test_the_time_offset_is_found_if_the_scene_moves
    """
    # Raises an error if the frames do not have the size for which the earlier calibration is.
    grid = CalibratedGrid(earlier, geometry, str(command.geometry))
    grid.check_size(views[0].frame.shape[:2])
    where = ", ".join(str(frame) for _, frame in command.pairs)  # for errors
    timing = find_time(
        earlier, views, light=command.light, search=command.search_planes, where=where
    )
    print(
        f"the exposures are {timing.offset:+.2f} planes later than --planes says, error "
        f"{timing.offset_error:.2f}; exposed for {timing.share:.0%} of these planes, error "
        f"{timing.share_error:.1%}"
    )
    share = share_of(timing)
    if share is None:  # the error of the measured share is too large
        share = earlier.exposure_share
        print(f"the share is not sure: it stays {share:g}")
    changes = {
        "time_offset_planes": round(timing.offset, 3),
        "exposure_share": share,
        "tick_hz": command.tick_hz or earlier.tick_hz,  # the earlier value if --tick-hz is missing
    }
    return earlier.model_copy(update=changes)


# ---- The command line -------------------------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line. `pairs` is a list of [spike file, frame]."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    text = (
        "a file of spikes, and an image of the same time. For a folder or a video, the mean of its "
        "images is taken. The flag may be repeated"
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
        help="what the spike camera integrates: linear light, or the display values of an image "
        "(default: %(default)s)",
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
        help="how the spike image is mirrored. auto tries the image as it is, and mirrored, and "
        "takes what fits better (default: %(default)s)",
    )
    add(
        "--geometry",
        type=Path,
        metavar="FILE",
        help="a calibration. Its matrix and its mirror are taken. Its size of a plane is taken if "
        "nothing else says the size",
    )
    add(
        "--search-planes",
        type=int,
        metavar="N",
        help="with --geometry: search offsets from -N to N planes",
    )
    add("--tick-hz", type=plane_rate, help="planes per second, which the new file will say")
    add("--out", type=Path, required=True, help="new file of the calibration, JSON")
    add("--overlay", type=Path, help="new image; default: the name of --out with _overlay.png")
    command = parser.parse_args(arguments)
    if command.overlay is None:
        # The name has _overlay, because cal.png may be a frame of --pair if --out is cal.json.
        command.overlay = command.out.with_name(f"{command.out.stem}_overlay.png")
    refuse_incomplete_options(command)
    return command


def refuse_incomplete_options(command: argparse.Namespace) -> None:
    """Raise OptionError if only some of --geometry, --search-planes and --planes are given.

    --geometry and --search-planes need each other, and both need --planes. --planes may be given
    without the other two.
    """
    # E.g. --geometry FILE alone: is_one_missing. --geometry FILE --search-planes 30 without
    # --planes: are_planes_missing. --search-planes 0 counts as missing, because it would search
    # nothing.
    has_geometry = bool(command.geometry)
    has_search = bool(command.search_planes)
    is_one_missing = has_geometry != has_search
    are_planes_missing = has_geometry and not command.planes
    if is_one_missing or are_planes_missing:
        raise OptionError(
            what="--geometry and --search-planes need each other, and --planes",
            where="the command line",
            expected="all three, to find the time offset",
            do="add the missing ones",
        )


if __name__ == "__main__":
    sys.exit(main())

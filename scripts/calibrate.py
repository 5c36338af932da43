#!/usr/bin/env python3
"""Calibrate a spike camera and an RGB camera with different views, from captures of the same moments.

    python scripts/calibrate.py --pair a.dat a.png --pair b.dat b.png --size 250 400 --out calibration.json
    python scripts/calibrate.py --pair moving.dat moving.png --planes 100 40 --geometry calibration.json \\
        --search-planes 30 --out synchronised.json

The first form finds the geometry: capture flat or distant scenes with much texture, cameras and scene at rest, or
planes of exactly the exposure of the frame. The second takes the geometry from a file and finds by how many planes the
exposure starts later than --planes says; the scene has to move. Each writes the file for `spike.calibration`, and an
overlay image beside it to look at. Nothing is overwritten. docs/data_format.md, section "Two cameras".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.augment import Augment
from data.files import FrameSource
from data.registration import MODELS, View, find_offset, patch_distances, register
from data.spike.formats import SpikeGeometry, read_spikes
from data.spike.simulate import to_display, to_grey
from data.spike_grid import CalibratedGrid, Calibration, load_calibration, save_calibration, scale_of
from data.spike_info import spike_errors_as_data_errors
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.spike_guess import add_geometry, the_geometry
from utils.errors import DataError, OptionError
from utils.files import refuse_existing
from utils.image import encode_rgb, imwrite_rgb

TILE = 64  # RGB pixels of a square of the overlay


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    for path, flag in ((command.out, "--out"), (command.overlay, "--overlay")):
        refuse_existing(path, flag)
    encode_rgb(command.overlay, np.zeros((1, 1, 3), np.uint8))  # refuses an unknown suffix before the work
    with spike_errors_as_data_errors():
        geometry = the_geometry(command.pairs[0][0], command)
        views = [view_of(spikes, frame, geometry, command) for spikes, frame in command.pairs]
        sizes = {view.frame.shape: frame for view, (_, frame) in zip(views, command.pairs, strict=True)}
        if len(sizes) > 1:
            found = ", ".join(f"{path} has {height} x {width}" for (height, width), path in sizes.items())
            what = f"the frames differ in size: {found}"
            raise DataError(what, "--pair", "frames of one camera", "leave out the others")
        if command.geometry:
            calibration = with_offset(load_calibration(command.geometry), geometry, views, command)
        else:
            calibration = with_geometry(geometry, views, command)
    grid = CalibratedGrid(calibration, geometry, str(command.out))
    calibration = calibration.model_copy(update={"region": list(grid.region)})
    save_calibration(command.out, calibration)
    imwrite_rgb(command.overlay, overlay(views[0], grid, calibration))
    top, left, height, width = grid.region
    print(
        f"{command.out}: the spikes cover {grid.coverage:.1%} of the frame; rows {top} to {top + height - 1}, columns "
        f"{left} to {left + width - 1} are used for training. Look at {command.overlay}"
    )
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    text = "spikes, and an image of that time (or a folder or video, of which the mean is taken); may be repeated"
    pair = {"nargs": 2, "type": Path, "action": "append", "required": True, "metavar": ("SPIKES", "FRAME")}
    add("--pair", dest="pairs", **pair, help=text)
    add_geometry(parser)
    add("--planes", type=int, nargs=2, metavar=("FIRST", "COUNT"), help="planes of the exposure; default: all")
    add("--light", choices=("linear", "display"), default="linear", help="what the spike camera integrates")
    add("--model", choices=tuple(MODELS), default="homography", help="default %(default)s")
    add("--mirror", choices=("auto", "none", "columns", "rows", "both"), default="auto", help="default: try both ways")
    add("--geometry", type=Path, metavar="FILE", help="calibration to take matrix and mirror from")
    add("--search-planes", type=int, metavar="N", help="with --geometry: offsets from -N to N planes")
    add("--tick-hz", type=float, help="planes per second, for the file")
    add("--out", type=Path, required=True, help="the calibration, JSON")
    add("--overlay", type=Path, help="default: beside --out, .png")
    command = parser.parse_args(arguments)
    command.overlay = command.overlay or command.out.with_suffix(".png")
    if bool(command.geometry) != bool(command.search_planes) or (command.geometry and not command.planes):
        raise OptionError(
            "--geometry, --search-planes and --planes belong together", "the command line",
            "all three, to find the time offset", "add the missing ones, or drop --geometry and --search-planes",
        )  # fmt: skip
    return command


def view_of(path: Path, frame: Path, geometry: SpikeGeometry, command: argparse.Namespace) -> View:
    stream = read_spikes(path, geometry, *(command.planes or (0, None)))
    rates = stream.mean(axis=0, dtype=np.float32)
    rates /= max(float(np.percentile(rates, 99.5)), 1e-6)
    frames = FrameSource(frame)
    grey = np.mean([to_grey(frames.read(i)) for i in range(len(frames))], axis=0, dtype=np.float32) / 255
    return View(to_display(rates) if command.light == "linear" else np.clip(rates, 0, 1), grey)


def with_geometry(geometry: SpikeGeometry, views: list[View], command: argparse.Namespace) -> Calibration:
    where = ", ".join(f"{spikes} and {frame}" for spikes, frame in command.pairs)
    mirrors = ("none", "columns") if command.mirror == "auto" else (command.mirror,)
    matrix, mirror, found = register(views, command.model, where, mirrors)
    angle = np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0]))
    print(
        "{} of {} features agree; ".format(*found["features"]) + f"correlation {found['correlation']:.3f}; mirrored: "
        f"{mirror}; turned by {angle:.2f} degrees, {scale_of(matrix):.3f} RGB pixels per spike pixel\n"
        f"residual of {found['patches']} single patches: median {found['residual_px']:.2f}, 90 % below "
        f"{found['residual_p90_px']:.2f} RGB pixels"
    )
    return Calibration(
        matrix=matrix[: 3 if command.model == "homography" else 2].tolist(),
        spike_size=[geometry.height, geometry.width],
        rgb_size=list(views[0].frame.shape),
        mirror=mirror,
        tick_hz=command.tick_hz,
        made={
            "by": "scripts/calibrate.py", "model": command.model, "pairs": len(views),
            "frames": [frame.name for _, frame in command.pairs], **found,
        },
    )  # fmt: skip


def with_offset(
    known: Calibration, geometry: SpikeGeometry, views: list[View], command: argparse.Namespace
) -> Calibration:
    """The known calibration with the time offset that fits these moments best."""
    CalibratedGrid(known, geometry, str(command.geometry)).check_size(views[0].frame.shape)
    first, count = command.planes
    search, moments = command.search_planes, []
    for (path, _), view in zip(command.pairs, views, strict=True):
        stream = read_spikes(path, geometry, first - search, count + 2 * search)
        sides = View(np.moveaxis(stream, 0, 2), view.frame).mirrored(known.mirror)
        moments.append((np.moveaxis(sides.spikes, 2, 0), view))
    matrix = known.model_copy(update={"mirror": "none"}).to_rgb()
    offset = find_offset(moments, count, matrix, ", ".join(str(frame) for _, frame in command.pairs))
    residual = np.concatenate([patch_distances(view.mirrored(known.mirror), matrix) for view in views])
    text = f", residual there {np.median(residual):.2f} RGB pixels" if len(residual) else ""
    print(f"the exposures start {offset:+.2f} planes later than plane {first}{text} before the correction")
    changes = {"time_offset_planes": round(offset, 3), "tick_hz": command.tick_hz or known.tick_hz}
    return known.model_copy(update=changes)


def overlay(view: View, grid: CalibratedGrid, calibration: Calibration) -> np.ndarray:
    """(2 H, W, 3) uint8: frame magenta and spikes green, grey where they agree; below, squares of one and the other."""
    height, width = view.frame.shape
    window = grid.window(Augment.whole((height, width)))
    spikes = window.to_rgb(view.spikes[window.crop.slices][None])[0]
    seen, frame = window.covered, view.frame
    # Same mean and contrast where both see.
    spikes = (spikes - spikes[seen].mean()) / max(spikes[seen].std(), 1e-6) * frame[seen].std() + frame[seen].mean()
    spikes = np.where(seen, np.clip(spikes, 0, 1), 0)
    y, x = np.mgrid[:height, :width] // TILE
    squares = np.where((x + y) % 2 == 0, frame, spikes)
    image = np.concatenate((np.stack((frame, spikes, frame), axis=2), np.repeat(squares[..., None], 3, axis=2)))
    image = np.ascontiguousarray((255 * image + 0.5).astype(np.uint8))
    top, left, rows, cols = grid.region
    cv2.rectangle(image, (left, top), (left + cols - 1, top + rows - 1), (255, 255, 0), 1)
    made = calibration.made
    if "residual_px" in made:
        text = f"residual {made['residual_px']:.2f} px (90%: {made['residual_p90_px']:.2f}), {made['patches']} patches"
        cv2.rectangle(image, (0, 0), (min(width, 9 * len(text)), 28), (0, 0, 0), -1)
        cv2.putText(image, text, (8, 20), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (255, 255, 0), 1, cv2.LINE_AA)
    return image


if __name__ == "__main__":
    sys.exit(main())

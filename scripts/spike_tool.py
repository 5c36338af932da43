#!/usr/bin/env python3
"""Inspect spike files, look at them, and make them from images or video.

info FILE       say which height and width the file most likely has. The length of the file allows
                some sizes. They are listed with the smoothest image first. The list says what
                speaks against each size. Then follow the bit order and the firing rates.
                With --picture (a frame of the same time) only sizes of the frame's shape are
                tried. The frame also shows the rate, the light that the spikes integrate, and the
                order of the rows
view FILE       show the mean image as read and flipped, side by side: are the rows flipped or not?
play FILE       make a video of the single planes beside their reconstruction
recon FILE --planes 100 200
                reconstruct the image at these planes (--method tfp, tfi or tfstp), as a picture, a
                folder or a video
convert FILE OUT
                write the planes in the format of OUT's suffix (.dat, .bin, .npy, .npz). Files of
                any length fit, because only a part of the file is in memory
simulate INPUT OUT.dat
                write one .dat with the spikes of a folder of images, an image or a video

    python scripts/spike_tool.py play capture.dat --size 250 400 --tick-hz 20000 --out capture.mp4
    python scripts/spike_tool.py recon capture.dat --planes 150 --out plane150.png \
        method.half_window=5
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.cameras.dataset_info import nearest_info
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clips.pictures import read_bgr
from data.clips.user_frames import FrameSource
from data.clips.user_spike_files import check_same_view
from data.making.frame_light import grey_light
from data.making.light_path import LightPath
from data.spike import formats, simulate
from data.spike.errors import SpikeFileError
from data.spike.geometry import SPS100_SIDE, SpikeGeometry
from data.spike.headers import HEAD_BYTES, refuse_other_format
from data.spike.known_geometries import KNOWN_GEOMETRIES
from data.spike.light_fit import fit_light
from data.spike.pictures import DISPLAY_GAMMA, to_grey, to_uint8
from data.spike.represent import REPRESENTATIONS, represent
from data.spike.spike_file import SpikeFile
from scripts.parts.default_output import default_output
from scripts.parts.exit_codes import tracked, with_exit_code
from scripts.parts.spike_sizes import (
    TRIED,
    correlation,
    has_shape,
    sizes_that_fit,
    smoothest_first,
    smoothness,
)
from utils.arguments import frame_rate, seed
from utils.errors import DataError, OptionError
from utils.image import IMAGE_SUFFIXES, comparison_strip, imwrite_rgb
from utils.options.override import apply_override
from utils.options.sources import Sources
from utils.output_folder import publish_folder, refuse_existing, scratch_folder
from utils.video.container import WRITABLE_SUFFIXES
from utils.video.writer import VideoWriter

# A spike file is a sequence of planes. A plane has one bit per pixel: 1 if the pixel fired. A
# packed file (.dat, .bin) holds the bits without a header. So its height, width and storage, a
# `SpikeGeometry`, come from the command line, from dataset.json, or from the length of the file.
#
# Words of a `SpikeGeometry`:
#   head columns   columns without image at the end of each row, which some cameras store
#   bit order      which bit of a byte is the first pixel
#   flip           the bottom row of a plane comes first in the file
#   layout         "raster": row after row. "sps100": the lines of the camera SPS100, 1000 x 1000
#
# What must stay: other programs use parts of this file: uploaded_clip.py `Ranking`, calibrate.py
# `add_geometry`, `given_geometry` and `single_geometry`, show_sample.py `in_words`. A file that
# fits in memory only in parts is read in parts (test_a_long_stream_is_never_whole_in_memory). No
# size is named if two are as good (test_info_names_no_size_if_two_are_as_good).
# Free to change: the limits below, and the printed texts, except where
# tests/parts/scripts/test_spike_tool.py quotes them.

# ---- Constants --------------------------------------------------------------------------------

# Methods of data/reconstruct.py that make a grey image from the spikes alone.
GREY_METHODS = ("tfp", "tfi", "tfstp")

# Images that are lower than this number of pixels are enlarged by a whole factor, so that single
# pixels can be seen.
LEAST_HEIGHT = 320
# tfstp has no option `half_window`, because it remembers all planes before the center. It gets this
# number of planes on either side. More planes take more time, and change the image less and less.
HISTORY = 128
# `play` makes at most this number of video frames, unless --step is given: 20 s at 25 frames a
# second.
MOST_FRAMES = 500

# Suffix of the file that a command writes if --out is not given.
DEFAULT_SUFFIX = {
    "view": ".png",
    "recon": ".png",
    "play": ".mp4",
}
# Suffixes that --out may have. "" is a folder. A command that is missing here takes any suffix.
ALLOWED_SUFFIXES = {
    "recon": ("", *IMAGE_SUFFIXES, *WRITABLE_SUFFIXES),
    "play": WRITABLE_SUFFIXES,
    "convert": formats.FORMATS,
}

# `info` judges a size by the mean of this number of planes in the middle of the file. More planes
# make the mean less noisy, and blur what moves.
AVERAGED_PLANES = 64
# Smoothness is the correlation of neighbouring pixels, from -1 to 1 (scripts/parts/spike_sizes.py).
# The smoothest size is taken for the right one only if its smoothness is larger than the smoothness
# of each other size by more than this. A larger value leaves more files undecided, so the user must
# give --size. A smaller value would sometimes decide for a wrong size.
CLEAR_LEAD = 0.05
# Below this smoothness an image is hardly better than noise, for which the smoothness is 0.
LEAST_SMOOTHNESS = 0.3
# The mean spikes per plane and pixel of real streams lie in this range. With a wrong geometry, a
# header or an array of other numbers may be read as spikes, and the mean may lie outside.
USUAL_RATES = (0.001, 0.98)
# Hundreds of sizes may fit the length of a file. Only this number of the smoothest sizes are shown
# as rows of a table. For each row an image is made, so a larger number takes more time.
SHOWN_DERIVED = 8
# The other sizes are named in one line below the table, at most this number. More would fill the
# screen.
MOST_NAMED = 40

# Value of --bit-order -> its meaning, for sentences that are printed.
BIT_ORDERS = {
    "little": "the least significant bit is the first pixel",
    "big": "the most significant bit is the first pixel",
}


# ---- The command line -------------------------------------------------------------------------


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Run one command, e.g. `info`. Returns the exit code 0. `with_exit_code` handles errors."""
    command = parse(arguments)
    with spike_errors_as_data_errors():
        if "out" in command:  # `info` writes no file
            check_output(command)
        command.run(command)
    return 0


def check_output(command: argparse.Namespace) -> None:
    """Give the output its default name if --out is not given: sets `command.out`.

    Raises OptionError if the output exists, or if its suffix does not fit the command.
    """
    action = command.action
    if command.out is None:
        command.out = default_output(f"{command.file.stem}_{action}{DEFAULT_SUFFIX[action]}")
    refuse_existing(command.out, "the output")

    allowed = ALLOWED_SUFFIXES.get(action)
    suffix = command.out.suffix.lower()
    if allowed is None or suffix in allowed:
        return
    expected = ", ".join(suffix for suffix in allowed if suffix)  # without "", a folder
    if action == "recon":
        expected += ", or a folder"
    do = "choose one of them"
    if action == "play":
        do = "choose one, or use spike_tool.py recon for images"
    raise OptionError(
        what=f"the suffix of the output is {suffix!r}",
        where=str(command.out),
        expected=expected,
        do=do,
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of one command.

    Besides the options, the result has `action` (the name of the command), `run` (its function) and
    `overrides` (words such as "method.half_window=5").
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)

    action = actions.add_parser("info")
    action.set_defaults(run=info)
    add_file(action)
    action.add_argument("--picture", type=Path, help="the frame of the time in the middle of FILE")

    action = actions.add_parser("view")
    action.set_defaults(run=view)
    add_file(action)
    add_output(action, "view", "image")

    action = actions.add_parser("recon")
    action.set_defaults(run=recon)
    add_file(action)
    add_output(
        action,
        "recon",
        "one plane gives an image; several planes give a .png with the images side by side, a "
        "folder with a .png for each plane, or a video (.mp4)",
    )
    add_method(action)
    action.add_argument(
        "--planes",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of the planes, from 0; default: the plane in the middle of the file",
    )

    action = actions.add_parser("play")
    action.set_defaults(run=play)
    add_file(action)
    add_output(action, "play", ".mp4")
    add_method(action)
    add_range(action)
    action.add_argument(
        "--step",
        type=int,
        help=f"planes per video frame; default: as few as give at most {MOST_FRAMES} frames",
    )

    action = actions.add_parser("convert")
    action.set_defaults(run=convert)
    add_file(action)
    add_range(action)
    action.add_argument("out", type=Path)
    action.add_argument("--out-no-flip", action="store_true", help="store rows top first")
    action.add_argument("--out-bit-order", choices=("little", "big"), default="little")

    action = actions.add_parser("simulate")
    action.set_defaults(run=simulate_stream)
    add_simulation(action)

    # argparse cannot read words such as method.half_window=20 after FILE and its options. So
    # `parse_known_args` returns these words as unknown. `recon` and `play` read them later. All
    # other unknown words are refused here.
    command, unknown_words = parser.parse_known_args(arguments)
    command.overrides = unknown_words
    wrong_words = unknown_words
    if command.action in ("recon", "play"):
        wrong_words = [word for word in unknown_words if not word.startswith("method.")]
    if wrong_words:
        parser.error(f"unrecognized arguments: {' '.join(wrong_words)}")
    return command


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the spike file that a command reads, and the options of its geometry."""
    parser.add_argument("file", type=Path)
    add_geometry(parser)


def add_geometry(parser: argparse.ArgumentParser) -> None:
    """Add the options that `geometries` reads. scripts/calibrate.py adds them, too."""
    parser.add_argument(
        "--size",
        type=int,
        nargs=2,
        metavar=("H", "W"),
        help="size of a spike plane; default: the size of the array, else the size in "
        "dataset.json, else the size of a known camera that fits the file",
    )
    parser.add_argument(
        "--head-columns",
        type=int,
        default=0,
        help="number of head columns, which stand at the end of each row and hold no pixels "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--bit-order",
        choices=("little", "big"),
        default="little",
        help="whether the first pixel of a byte is its least significant bit (little) or its most "
        "significant bit (big); default: %(default)s",
    )
    parser.add_argument(
        "--layout",
        choices=("raster", "sps100"),
        default="raster",
        help="how the lines of a packed plane are stored; sps100: as the camera SPS100 does "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-flip",
        action="store_true",
        help="the top row of a plane comes first in the file (default: as dataset.json says, else "
        "the bottom row)",
    )


def add_output(parser: argparse.ArgumentParser, name: str, output: str) -> None:
    """Add --out, and the options that decide the brightness of an image.

    name: name of the command. output: what the file shows, for the help.
    """
    parser.add_argument(
        "--out",
        type=Path,
        help=f"{output}; default: the name of FILE with _{name}{DEFAULT_SUFFIX[name]}, in the "
        "current folder, or in a temporary folder if the current folder is the repository",
    )
    parser.add_argument(
        "--rate",
        type=float,
        help="spikes per plane at full light; default: the rate in dataset.json, else the "
        "rate with which the brightest half percent of the pixels is white",
    )
    parser.add_argument(
        "--light",
        choices=("linear", "display"),
        help="what the sensor integrates; default: as dataset.json says, else linear",
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add the method of the reconstruction, and the options of a video."""
    parser.add_argument(
        "--method",
        choices=GREY_METHODS,
        default="tfp",
        help=f"method of the reconstruction, as in main_test_vrt.py; tfstp sees the last {HISTORY} "
        "planes (default: %(default)s)",
    )
    parser.add_argument("--tick-hz", type=float, help="planes per second, to show the time")
    parser.add_argument(
        "--fps",
        type=frame_rate,
        default=25.0,
        help="video frames per second; default %(default)g",
    )


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the planes first ... first + count - 1."""
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first plane (default: %(default)s)"
    )
    parser.add_argument(
        "--count", type=int, help="number of planes; default: all to the end of the file"
    )


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add the options of `simulate`: the files, the time and size of planes, and the sensor."""
    parser.add_argument("input", type=Path, help="a video, or a folder of images")
    parser.add_argument("out", type=Path, help="spike file that is written")
    parser.add_argument(
        "--planes-per-frame",
        type=int,
        default=8,
        help="planes from one frame of the input to the next (default: %(default)s)",
    )
    parser.add_argument(
        "--ratio",
        type=int,
        default=1,
        help="width of a spike pixel in pixels of the input (default: %(default)s)",
    )
    parser.add_argument(
        "--method",
        choices=("flow", "linear"),
        default="flow",
        help="how the light between two frames is interpolated (default: %(default)s)",
    )
    parser.add_argument(
        "--gamma",
        type=float,
        default=2.2,
        help="gamma of the input; 1: the sensor integrates display values (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=seed,
        default=0,
        help="of the random numbers of the sensor (default: %(default)s)",
    )
    # The sensor, simulate.IntegrateAndFire.
    parser.add_argument(
        "--rate",
        type=float,
        default=0.5,
        help="spikes per plane at full light (default: %(default)s)",
    )
    parser.add_argument(
        "--shot-noise",
        type=float,
        default=0.0,
        help="noise of the charge that a pixel collects in a plane at full light, as a fraction of "
        "the charge at which it fires (default: %(default)s)",
    )
    parser.add_argument(
        "--dark-rate",
        type=float,
        default=0.0,
        help="spikes per plane without light (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold-mismatch",
        type=float,
        default=0.0,
        help="relative standard deviation, over the pixels, of the charge at which they fire "
        "(default: %(default)s)",
    )


# ---- Geometry of a file: height, width and storage of its planes ------------------------------
#
# Who knows the geometry, in the order in which they are asked:
#
#     given_geometry     --size, else the shape of an array, else the layout "sps100", else
#                        dataset.json, else None
#     camera_geometries  those of the cameras whose planes fit the length of the file
#     Ranking            any size that fits the length of the file (`info` only)
#
# Tests: test_info_takes_the_size_from_dataset_json,
# test_info_knows_the_format_of_a_camera_with_words_between_the_pixels, and for `Ranking`
# test_info_derives_a_size_of_no_known_camera_from_the_length.


def single_geometry(path: Path, command: argparse.Namespace) -> SpikeGeometry:
    """Return the geometry of a spike file. Raises DataError if none fits, or if several fit.

    command: has the options of `add_geometry`.
    """
    found = possible_geometries(path, command)
    if len(found) > 1:
        names = ", ".join(f"{g.height} x {g.width} {g.layout}" for g in found)
        raise DataError(
            what=f"several geometries fit the file: {names}",
            where=str(path),
            expected="one geometry",
            do="give --size H W; spike_tool.py info ranks them",
        )
    return found[0]


def possible_geometries(path: Path, command: argparse.Namespace) -> list[SpikeGeometry]:
    """Return the given geometry. If none is given, return those of the cameras that fit the file.

    Raises DataError if no geometry fits.

    command: has the options of `add_geometry`.
    """
    given = given_geometry(path, command)
    if given is not None:
        return [given]
    found = camera_geometries(path, command)
    if not found:
        raise no_geometry(path)
    return found


def given_geometry(path: Path, command: argparse.Namespace) -> SpikeGeometry | None:
    """Return the geometry that the options, the shape of an array or dataset.json say.

    Returns None if none of them says it. Raises DataError if there is no such file, or if the file
    is an array of a wrong shape.
    """
    if not path.is_file():
        what = "a folder" if path.is_dir() else "cannot read: No such file or directory"
        raise DataError(what=what, where=str(path), expected="a spike file", do="correct the path")

    # What dataset.json says: h, w and flip, each None if it is not there. An array does not need
    # it. It is read all the same, so that a damaged dataset.json is an error for each file.
    about = nearest_info(path)

    # An array (.npy, .npz) has a shape. It is not packed, so it has no bit order and no layout.
    shape = formats.array_shape(path)
    if shape is not None:
        if len(shape) != 3:
            raise DataError(
                what=f"an array of shape {shape}",
                where=str(path),
                expected="(planes, h, w)",
                do="save the array in this form",
            )
        # As for packed files, --size counts before what the file and dataset.json say. If the shape
        # differs from it, opening the file is refused.
        if command.size:
            height, width = command.size
        else:
            height, width = shape[1:]
        return SpikeGeometry(height, width, head_columns=command.head_columns)

    # A packed file: the option, else the only size of the layout "sps100", else dataset.json.
    if command.size:
        height, width = command.size
    elif command.layout == "sps100":  # of the camera SPS100
        height = width = SPS100_SIDE
    else:
        height = about.h
        width = about.w
    if not height or not width:  # dataset.json does not say height and width
        return None
    return SpikeGeometry(
        height,
        width,
        flipud=is_flipped(path, command),
        head_columns=command.head_columns,
        bit_order=command.bit_order,
        layout=command.layout,
    )


def is_flipped(path: Path, command: argparse.Namespace) -> bool:
    """Return whether the bottom row of a packed plane comes first in the file.

    This is so for all known files, except for the files of the SPS100 camera. --no-flip or
    dataset.json may say that the top row comes first.
    """
    if command.no_flip or command.layout != "raster":
        return False
    # `flip` is True, False, or None if dataset.json does not say it. None counts as True.
    return nearest_info(path).flip is not False


def camera_geometries(path: Path, command: argparse.Namespace) -> list[SpikeGeometry]:
    """Return the geometries of known cameras for which the file has a whole number of planes."""
    flip = is_flipped(path, command)
    known = []
    for height, width, head_columns in KNOWN_GEOMETRIES:
        geometry = SpikeGeometry(
            height, width, flip, head_columns=head_columns, bit_order=command.bit_order
        )
        known.append(geometry)
    side = SPS100_SIDE
    known.append(SpikeGeometry(side, side, flipud=False, layout="sps100"))

    fitting = []
    for geometry in known:
        with suppress(SpikeFileError):  # raised if the geometry does not fit
            formats.open_spikes(path, geometry)
            fitting.append(geometry)
    return fitting


def no_geometry(path: Path) -> DataError:
    """Return the error for a file that none of the known geometries fits.

    Raises SpikeFileError if the file begins as a file of another format.
    """
    with open(path, "rb") as file:
        refuse_other_format(file.read(HEAD_BYTES), path)
    size = path.stat().st_size
    if not size:
        return DataError(
            what="the file is empty",
            where=str(path),
            expected="spike planes",
            do="copy or make the file again",
        )
    # Name the bytes that are left over, because a few of them may be a header or a cut end.
    expected = "whole planes of h x w / 8 bytes"
    for height, width, head_columns in KNOWN_GEOMETRIES:
        plane_bytes = height * (width + head_columns) // 8  # a byte holds 8 pixels
        planes, left = divmod(size, plane_bytes)
        head_text = f" + {head_columns} head columns" if head_columns else ""
        if planes:  # a file that is shorter than a plane says nothing about this size
            expected += (
                f"\n    {height} x {width}{head_text}: {planes} planes, {left} bytes left over"
            )
    return DataError(
        what=f"no known geometry fits {size} bytes",
        where=str(path),
        expected=expected,
        do="copy the file again if it is cut short; give --size H W if the camera is another one",
    )


def in_words(geometry: SpikeGeometry) -> str:
    """Return size and storage of packed planes in words.

    E.g. "250 x 400, bottom row first, the least significant bit is the first pixel".
    """
    head = f" + {geometry.head_columns} head columns" if geometry.head_columns else ""
    rows = "bottom" if geometry.flipud else "top"
    bit = BIT_ORDERS[geometry.bit_order]
    layout = ", lines of an SPS100" if geometry.layout == "sps100" else ""
    return f"{geometry.height} x {geometry.width}{head}, {rows} row first, {bit}{layout}"


# ---- info: which geometry a file most likely has ----------------------------------------------
#
# A wrong size must never be called likely: a file of another size, or without an image, stays
# unclear (test_info_names_no_size_if_two_are_as_good,
# test_info_names_no_size_if_none_gives_a_picture).


class Candidate:
    """One geometry that a file may have, and how smooth its images would be.

    With a wrong width each row begins at a wrong pixel, and with a wrong height the planes begin at
    wrong rows. Then neighbouring pixels resemble one another less than in the right image.

    file: the open spike file.
    spikes: the planes in the middle of the file, (planes, h, w), 0 or 1.
    rates: (h, w), spikes per plane of each pixel.
    smooth: "columns" -> correlation of each column with the next column, "rows" -> correlation of
        each row with the next row.
    score: the smaller number of `smooth`, by which candidates are ranked.
    name: e.g. "250 x 400".
    """

    def __init__(self, path: Path, geometry: SpikeGeometry) -> None:
        self.file = formats.open_spikes(path, geometry)
        # The planes in the middle of the file.
        count = min(self.file.planes, AVERAGED_PLANES)
        first = (self.file.planes - count) // 2
        self.spikes = self.file.read(first, count)
        self.rates = self.spikes.mean(axis=0)
        self.smooth = smoothness(self.rates)
        self.score = min(self.smooth.values())

        # The name, e.g. "250 x 400"; "250 x 400 + 16" if 16 columns without image are at the end
        # of each row; or "1000 x 1000 (SPS100)" for the camera of this name.
        extra = ""
        if geometry.head_columns:
            extra = f" + {geometry.head_columns}"
        elif geometry.layout == "sps100":
            extra = " (SPS100)"
        self.name = f"{geometry.height} x {geometry.width}{extra}"

    def doubts(self, best: "Candidate") -> list[str]:
        """Return what speaks against this candidate, a text for each reason.

        `Ranking.is_clear` trusts the best candidate only if it has no doubts, so a new doubt makes
        more files unclear.

        best: the candidate with the smoothest image. It may be this candidate.
        """
        planes = self.file.planes
        height, width = self.file.size
        rate = self.rates.mean()
        known_sizes = {(h, w) for h, w, _ in KNOWN_GEOMETRIES}
        # The direction in which the image is least smooth: "columns" or "rows".
        direction = min(self.smooth, key=lambda name: self.smooth[name])
        smoothness_there = self.smooth[direction]
        best_smoothness_there = best.smooth[direction]

        doubts = []
        # E.g. an array of shape (250, 400, 1000), in which the last axis is the planes. Read as
        # (planes, h, w), it has 250 planes of 400 x 1000.
        if (planes, height) in known_sizes and (height, width) not in known_sizes:
            doubts.append(
                f"{planes} x {height} is the size of a camera: the axes seem to be (h, w, planes), "
                "but (planes, h, w) is expected"
            )
        if smoothness_there < best_smoothness_there - CLEAR_LEAD:
            doubts.append(
                f"neighbouring {direction} resemble one another less ({smoothness_there:.2f}, not "
                f"{best_smoothness_there:.2f})"
            )
        if self.score < LEAST_SMOOTHNESS:
            doubts.append(f"neighbouring {direction} do not resemble one another")
        if planes == 1:
            doubts.append("a single plane")
        lowest_rate, highest_rate = USUAL_RATES
        if not lowest_rate < rate < highest_rate:
            doubts.append(f"{100 * rate:.0f} % of the pixels fire in each plane")
        return doubts


class Ranking:
    """The candidates for the geometry of a file.

    shown: the candidates, the smoothest image first.
    others: sizes (h, w) that fit the length of the file too, but are less smooth. Their images are
        not made, because each image takes time.
    is_given: whether the file, the options or dataset.json say the geometry.

    The page of app.py uses `shown`, `is_given` and `is_clear`, too.

    command: has the options of `add_geometry` and the file.
    picture: height and width of a frame of the same view. Only sizes with its ratio of height to
        width are tried. None: no frame is given.
    """

    def __init__(self, command: argparse.Namespace, picture: tuple[int, int] | None) -> None:
        path = command.file
        self.picture = picture
        self.others: list[tuple[int, int]] = []

        given = given_geometry(path, command)
        self.is_given = given is not None
        if given is not None:
            self.shown = [Candidate(path, given)]
            return

        geometries = camera_geometries(path, command)
        if picture is not None:
            geometries = [g for g in geometries if has_shape((g.height, g.width), picture)]
        # The camera SPS100 stores lines with a pattern that no other file has. If the file has this
        # pattern, its size is known, so no other size is tried.
        has_sps100_lines = any(geometry.layout == "sps100" for geometry in geometries)
        if not has_sps100_lines:
            sizes = self._derived_sizes(command, known=geometries)
            self.others = sizes[SHOWN_DERIVED:]
            flip = is_flipped(path, command)
            for height, width in sizes[:SHOWN_DERIVED]:
                geometries.append(SpikeGeometry(height, width, flip, bit_order=command.bit_order))
        if not geometries:
            raise self._nothing_fits(path)
        candidates = [Candidate(path, geometry) for geometry in geometries]
        self.shown = sorted(candidates, key=lambda candidate: -candidate.score)

    @property
    def is_clear(self) -> bool:
        """Whether the size is given, or the smoothest size leads clearly and without a doubt."""
        if self.is_given:
            return True
        best = self.shown[0]
        if best.doubts(best):
            return False
        if len(self.shown) == 1:
            return True
        second = self.shown[1]
        return best.score > second.score + CLEAR_LEAD

    def print_verdict(self) -> None:
        """Print the most likely size, or the sizes that may be right, and which were tried.

        Prints nothing if the size is given.
        """
        if self.is_given:
            return
        best = self.shown[0]
        if self.is_clear:
            print(f"  most likely {best.name}: neighbouring pixels resemble one another")
        else:
            if best.doubts(best):
                reason = "none of them gives an image without doubt"
            else:
                # The best candidate, and the candidates that are nearly as smooth.
                names = [best.name]
                for other in self.shown[1:]:
                    if other.score >= best.score - CLEAR_LEAD:
                        names.append(other.name)
                reason = f"it may be {' or '.join(names)}"
            do = "--size H W" if self.picture else "--size H W, or --picture FRAME for its shape"
            print(f"  the size is not clear: {reason}; give {do}")

        print(f"  tried: {self.tried()}")
        if self.others:
            names = [f"{height} x {width}" for height, width in self.others[:MOST_NAMED]]
            unnamed = len(self.others) - len(names)
            more = f" and {unnamed} more" if unnamed else ""
            print(f"  fit too: {', '.join(names)}{more}")

    def tried(self) -> str:
        """Return in words which sizes were tried."""
        if self.picture is None:
            return f"the known cameras; {TRIED}"
        height, width = self.picture
        # TRIED is a text of spike_sizes.py. It says the limits of the sizes, and after ", not" the
        # shapes that are tried without a picture. The shapes do not hold here.
        limits = TRIED.split(", not")[0]
        return f"the sizes of the shape of the picture, {height} x {width}; {limits}"

    def _derived_sizes(
        self, command: argparse.Namespace, known: Sequence[SpikeGeometry]
    ) -> list[tuple[int, int]]:
        """Return the sizes (h, w) that the length of the file allows, the smoothest first.

        known: geometries of known cameras that fit the file. Their sizes are left out.
        """
        path = command.file
        # A file of another format, e.g. a picture, is refused by its first bytes.
        with open(path, "rb") as file:
            refuse_other_format(file.read(HEAD_BYTES), path)
        length = path.stat().st_size
        # A derived size has no head columns. So no size is derived if the user gave head columns.
        if command.head_columns or not length:
            return []
        known_sizes = {(g.height, g.width + g.head_columns) for g in known}
        sizes = sizes_that_fit(length, self.picture)
        new_sizes = [size for size in sizes if size not in known_sizes]
        return smoothest_first(path, new_sizes, command.bit_order)

    def _nothing_fits(self, path: Path) -> DataError:
        """Return the error for a file that no size fits."""
        if self.picture is None:
            return no_geometry(path)
        return DataError(
            what=f"no size of the picture's shape fits {path.stat().st_size} bytes",
            where=str(path),
            expected=f"whole planes; tried: {self.tried()}",
            do="give --size H W; leave --picture out if the cameras have different views",
        )


def info(command: argparse.Namespace) -> None:
    """Print which geometries the file may have, and, if one is clear, what its spikes show."""
    path = command.file
    shape = formats.array_shape(path)  # None for a packed file
    # The picture of --picture, if the user gave one.
    grey = None
    picture_size = None
    if command.picture:
        bgr = read_bgr(str(command.picture))  # (h, w, 3), blue first
        rgb = bgr[..., ::-1]
        grey = to_grey(rgb) / 255.0  # (h, w) in [0, 1]
        picture_size = grey.shape

    ranking = Ranking(command, picture_size)
    form = f"an array {shape}" if shape else "packed planes"
    print(f"{path}: {path.stat().st_size} bytes, {form}")
    print_candidates(ranking.shown)
    ranking.print_verdict()
    # What follows needs the right geometry.
    if not ranking.is_clear:
        return

    best = ranking.shown[0]
    # An array has no bit order, and the bit order of an SPS100 file is known.
    if not shape and best.file.geometry.layout == "raster":
        print_bit_order(path, best.file.geometry)
    print_intervals(best.spikes)
    if grey is not None:
        print_fit_to_picture(best.rates, grey, command.picture)
    elif not shape:
        print("  only the image shows whether rows are flipped: spike_tool.py view, or --picture")


def print_candidates(shown: Sequence[Candidate]) -> None:
    """Print a row for each candidate, and below it what speaks against it."""
    best = shown[0]
    print("  smoothness  height x width  planes  spikes per plane and pixel")
    for candidate in shown:
        rates = candidate.rates
        print(
            f"  {candidate.score:10.3f}  {candidate.name:>14}  {candidate.file.planes:6}  "
            f"{rates.mean():.4f} (pixels {rates.min():.3f} to {rates.max():.3f})"
        )
        # The doubts stand below the last column. So each line begins with three empty columns of
        # the same widths as above.
        for doubt in candidate.doubts(best):
            print(f"  {'':10}  {'':>14}  {'':6}  against it: {doubt}")


# By how much the smoothness of the right bit order must be larger. This number is smaller than
# CLEAR_LEAD, because a wrong bit order changes the correlation along the rows only.
CLEAR_ORDER = 0.01


def print_bit_order(path: Path, geometry: SpikeGeometry) -> None:
    """Print which bit of a byte is its first pixel.

    A wrong bit order mirrors each group of 8 pixels in a row. So neighbouring columns resemble one
    another less.
    """
    little = Candidate(path, replace(geometry, bit_order="little")).smooth["columns"]
    big = Candidate(path, replace(geometry, bit_order="big")).smooth["columns"]
    order = "little" if little >= big else "big"
    verdict = "the bit order cannot be judged"
    if abs(little - big) >= CLEAR_ORDER:
        verdict = f"bit order {order}: {BIT_ORDERS[order]}"
    print(f"  {verdict} (smoothness along rows: little {little:.3f}, big {big:.3f})")


def print_intervals(spikes: np.ndarray) -> None:
    """Print how many planes lie between two spikes of a pixel: least, most and median.

    spikes: (planes, h, w), 0 or 1.
    """
    spikes_of_pixels = spikes.reshape(len(spikes), -1).T  # (pixels, planes)
    # Pixel and plane of each spike. np.nonzero goes row by row, and a row is a pixel: first the
    # spikes of pixel 0 in the order of time, then the spikes of pixel 1, and so on. Two spikes that
    # follow one another make an interval if they belong to one pixel. E.g. pixels 0 0 1 and planes
    # 3 7 2: one interval, 7 - 3 = 4.
    pixels, times = np.nonzero(spikes_of_pixels)
    is_same_pixel = np.diff(pixels) == 0
    intervals = np.diff(times)[is_same_pixel]
    if intervals.size:
        print(
            f"  planes between spikes: {intervals.min()} to {intervals.max()}, median "
            f"{np.median(intervals):.0f}"
        )


def print_fit_to_picture(rates: np.ndarray, grey: np.ndarray, path: Path) -> None:
    """Print whether the rows are upside down. If not, print light and rate for dataset.json.

    The light is what the sensor integrates: "linear" light, or "display" values, as a screen shows.

    rates: (h, w), spikes per plane.
    grey: the picture, (H, W) in [0, 1].
    path: path of the picture, for errors.
    """
    check_same_view(grey.shape, rates.shape, str(path))
    height, width = rates.shape
    grey = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    upright = correlation(grey, rates)
    flipped = correlation(grey, rates[::-1])  # the rows in reversed order
    # Both kinds of light are fitted to the picture. `errors` has the relative error of each fit.
    fit = fit_light(rates, grey)
    errors = ", ".join(f"{light} {100 * error:.0f} %" for light, error in fit.errors.items())
    if flipped > upright:
        text = (
            f"the rows seem upside down: correlation with the picture {upright:.2f}, "
            f"flipped {flipped:.2f}"
        )
    elif fit.is_clear:
        text = (
            f'for dataset.json: "light": "{fit.light}", "rate": {fit.rate:.3f} (error of '
            f"the fits: {errors})"
        )
    else:
        text = (
            "the picture does not show which light the spikes integrate (error of the "
            f"fits: {errors})"
        )
    print(f"  {text}")


# ---- Images from spikes: view, recon, play ----------------------------------------------------
#
# What must stay: an image shows what data/spike/represent.py makes of its planes
# (test_recon_is_the_registered_representation), and only some planes are in memory at a time
# (test_a_long_stream_is_never_whole_in_memory).


def method_of(command: argparse.Namespace, **fixed: object) -> dict[str, Any]:
    """Return the method as {"type": its name, ...}, with its options checked and completed.

    command: the parsed command line. Its words method.key=value set options of the method.
    fixed: the method of a command that has no flag --method, e.g. type="tfp", half_window=32.
    """
    # Imported here, because --help and info do not need torch.
    from data.reconstruct import method_options

    # `apply_override` sets the value of each word in `sections`, in place.
    sections = {"method": fixed if fixed else {"type": command.method}}
    for word in command.overrides:
        apply_override(sections, word, Sources("the command line"))
    return method_options(sections["method"])


def smoothest_candidate(command: argparse.Namespace) -> Candidate:
    """Return the geometry of the file. If several fit, return the one with the smoothest image."""
    fitting = possible_geometries(command.file, command)  # one, if the user gave it
    candidates = [Candidate(command.file, geometry) for geometry in fitting]
    return max(candidates, key=lambda candidate: candidate.score)  # score: smoothness


class Rendering:
    """How the spikes of a file become grey images.

    The method comes from --method and method.key=value, as in main_test_vrt.py. The brightness
    comes from the rate at full light and from the light that the sensor integrates. If the rate is
    not known, the brightest half percent of the pixels is white.

    name: name of the method, e.g. "tfp". label: the name with its options.
    options: the options of the method, e.g. {"half_window": 20}.
    file: the open spike file. size: size of a plane in words, e.g. "250 x 400".
    last: number of the last plane that has an image.
    brightness: the arguments rate, light and gamma of `represent`.
    """

    def __init__(self, command: argparse.Namespace, **fixed_method: object) -> None:
        """Choose method and geometry, and open the file.

        command: the parsed command line of view, recon or play.
        fixed_method: see `method_of`.
        """
        self.options = method_of(command, **fixed_method)
        self.name = self.options.pop("type")
        best = smoothest_candidate(command)
        self.file = best.file
        height, width = best.file.size
        self.size = f"{height} x {width}"
        self.brightness = brightness(command, best.rates)

        self.last = self.file.planes - 1
        # The lag is the time that an image shows, minus the time of its plane. E.g. tfi shows the
        # time half a plane later, between its plane and the next one. Such an image needs the next
        # plane, too, so the last plane has no image.
        lag = REPRESENTATIONS[self.name].lag_in_half_planes(**self.options)
        if lag > 0:
            self.last -= 1

        options = [f"{key} {value:g}" for key, value in self.options.items()]
        self.label = ", ".join([self.name, *options])  # e.g. "tfp, half_window 20"

    def images(self, centers: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield for each center: the center, its plane (h, w) in {0, 1}, its image (h, w) uint8.

        The file is read once, from the first to the last plane needed. Only the planes around the
        current center are in memory, because a long file does not fit.

        centers: numbers of planes, rising.
        """
        # A method without `half_window` (tfstp) gets HISTORY planes on either side. At the ends of
        # the file there are fewer planes.
        half = self.options.get("half_window", HISTORY)
        # The planes first_needed ... end_needed - 1 are read, as far as the file has them.
        first_needed = max(centers[0] - half, 0)
        end_needed = min(centers[-1] + half + 1, self.file.planes)
        reader = PlaneReader(self.file, first_needed, end_needed)
        arguments = {**self.brightness, **self.options}
        for center in centers:
            begin = max(center - half, 0)
            end = min(center + half + 1, end_needed)
            window = reader.planes(begin, end)
            center_in_window = center - begin
            try:
                values = represent(self.name, window, center_in_window, **arguments)
            except ValueError as e:
                raise DataError(
                    what=f"no {self.name} of these planes: {e}",
                    where=self.file.path,
                    expected="planes on both sides",
                    do="choose others",
                ) from e
            image = to_uint8(values[0])  # grey methods return one channel
            yield center, window[center_in_window], image


def brightness(command: argparse.Namespace, rates: np.ndarray) -> dict[str, Any]:
    """Return what `represent` needs to know of the brightness: its arguments rate, light, gamma.

    Rate and light come from the options, else from dataset.json, else from a guess.

    rates: (h, w), spikes per plane of each pixel.
    """
    about = nearest_info(command.file)
    # The guess for the rate at full light: all pixels but the brightest 0.5 % are at most white. A
    # guess from all pixels would follow a few hot pixels, and the image would be dark. The guess
    # must be above 0 also for a file without spikes, because the rates are divided by it.
    brightest_rate = float(np.percentile(rates, 99.5))
    white = max(brightest_rate, 1e-6)
    # `or`: a rate of None or 0 counts as not given.
    return {
        "rate": command.rate or about.rate or white,
        "light": command.light or about.light or "linear",
        "gamma": DISPLAY_GAMMA,
    }


class PlaneReader:
    """Reads a spike file once from front to back, and returns windows of its planes.

    Only `Rendering.images` uses this class. The memory holds the latest window and the block of
    planes that was read last.

    in_memory: planes (n, h, w).
    first_in_memory: number of the first plane in memory, counted from the begin of the file.
    """

    def __init__(self, file: SpikeFile, first: int, end: int) -> None:
        """first, end: the windows lie within the planes first ... end - 1 of the file."""
        self.blocks = file.parts(first, end - first)  # yields some planes at a time
        self.in_memory = np.empty((0, *file.size), np.uint8)
        self.first_in_memory = first

    def planes(self, begin: int, end: int) -> np.ndarray:
        """Return the planes begin ... end - 1 of the file, (end - begin, h, w).

        The windows of successive calls must move forwards, because planes before a window may be
        forgotten. E.g. the planes 0 ... 31 are in memory, and the window 20 ... 40 is asked for.
        Then 0 ... 19 are forgotten, and the next block is read behind 31.
        """
        while self.first_in_memory + len(self.in_memory) < end:
            # A window may begin behind all planes in memory. Then all of them are forgotten.
            before_window = max(begin - self.first_in_memory, 0)
            forgotten = min(before_window, len(self.in_memory))
            kept = self.in_memory[forgotten:]
            self.in_memory = np.concatenate((kept, next(self.blocks)))
            self.first_in_memory += forgotten
        # From numbers in the file to positions in memory.
        first = begin - self.first_in_memory
        stop = end - self.first_in_memory
        return self.in_memory[first:stop]


def view(command: argparse.Namespace) -> None:
    """Write the middle of the file as read and flipped, to see which image is upright."""
    # A mean over 65 planes (32 on either side of the middle) shows the shapes of a scene, also in
    # dim light. It is sharp enough to see which image is upright.
    rendering = Rendering(command, type="tfp", half_window=32)
    middle = rendering.file.planes // 2
    _, _, image = next(rendering.images([middle]))  # one center, so one image
    imwrite_rgb(command.out, panels({"as read": image, "flipped": image[::-1]}))
    print(f"{command.out}: {rendering.size}, left as read, right flipped; the upright one is right")


def recon(command: argparse.Namespace) -> None:
    """Write the images at the chosen planes: a picture, a folder of pictures, or a video."""
    rendering = Rendering(command)
    name = rendering.name
    planes = sorted(set(command.planes or [rendering.file.planes // 2]))
    outside = [plane for plane in planes if not 0 <= plane <= rendering.last]
    if outside:
        raise OptionError(
            what=f"no {name} at plane {', '.join(map(str, outside))}",
            where="--planes",
            expected=f"0 to {rendering.last}",
            do="correct them",
        )

    # Each image is made only when it is written. So a video or a folder of many planes needs the
    # memory of one image. `_` is the plane itself, which recon does not show.
    images = tracked(rendering.images(planes), len(planes), name, "planes")
    out = command.out
    suffix = out.suffix.lower()
    if suffix in WRITABLE_SUFFIXES:
        with VideoWriter(out, command.fps) as video:
            for plane, _, image in images:
                title = f"{name}  {moment(plane, command.tick_hz)}"
                video.write(panels({title: image}))
    elif suffix == "":
        # A folder appears under its name only when it is complete.
        scratch = scratch_folder(out.with_name(f".{out.name}.partial"))
        for plane, _, image in images:
            imwrite_rgb(scratch / f"{plane:06d}.png", cv2.cvtColor(image, cv2.COLOR_GRAY2RGB))
        publish_folder(scratch, out)
    elif len(planes) == 1:
        for _, _, image in images:
            imwrite_rgb(out, cv2.cvtColor(image, cv2.COLOR_GRAY2RGB))
    else:  # one picture of several planes
        side_by_side = {moment(plane, command.tick_hz): image for plane, _, image in images}
        imwrite_rgb(out, panels(side_by_side))
    print(f"{out}: {rendering.label} at {len(planes)} planes of {rendering.size}")


def play(command: argparse.Namespace) -> None:
    """Write a video: each plane, white where a pixel fired, beside its reconstruction."""
    rendering = Rendering(command)
    label = rendering.label
    centers = planes_to_play(command, rendering.last)
    images = tracked(rendering.images(centers), len(centers), "video", "frames")
    with VideoWriter(command.out, command.fps) as video:
        for center, plane, image in images:
            title = f"spikes  {moment(center, command.tick_hz)}"
            black_and_white = 255 * plane
            video.write(panels({title: black_and_white, label: image}))

    step = centers.step
    slowness = ""
    if command.tick_hz:
        planes_per_second_of_video = step * command.fps
        slowness = f", {command.tick_hz / planes_per_second_of_video:.4g} x slower"
    planes = "planes" if step > 1 else "plane"
    print(
        f"{command.out}: {len(centers)} video frames of {rendering.size}, planes {centers[0]} to "
        f"{centers[-1]}, {step} {planes} per video frame{slowness}; right: {label}"
    )


def planes_to_play(command: argparse.Namespace, last: int) -> range:
    """Return the planes that --first, --count and --step choose, one for each video frame.

    Raises OptionError if a chosen plane does not exist, or if the step is negative.

    last: number of the last plane that has an image.
    """
    first = command.first
    stop = last + 1
    if command.count is not None:
        stop = min(first + command.count, stop)
    is_step_wrong = command.step is not None and command.step < 0
    if not 0 <= first < stop or is_step_wrong:
        raise OptionError(
            what=f"planes {first} to {stop - 1}",
            where="--first, --count, --step",
            expected=f"planes within 0 to {last}, a step of at least 1 (0: as without --step)",
            do="correct them",
        )
    # Without --step (or with 0), take the smallest step with at most MOST_FRAMES frames, e.g. step
    # 3 for 1001 planes.
    step = command.step
    if not step:
        step = math.ceil((stop - first) / MOST_FRAMES)
    return range(first, stop, step)


def moment(plane: int, tick_hz: float | None) -> str:
    """Return the title of an image, e.g. "plane 150  7.50 ms", or without the time."""
    if not tick_hz:
        return f"plane {plane}"
    return f"plane {plane}  {1e3 * plane / tick_hz:.2f} ms"


def panels(images: dict[str, np.ndarray]) -> np.ndarray:
    """Return grey images side by side under their names, as one RGB image (H, W, 3) uint8.

    images: name -> (h, w) uint8, all of one size. Small images are enlarged by a whole factor.
    """
    first_image = next(iter(images.values()))
    height, width = first_image.shape
    factor = max(1, LEAST_HEIGHT // height)
    shown = {name: cv2.cvtColor(image, cv2.COLOR_GRAY2RGB) for name, image in images.items()}
    return comparison_strip(shown, (factor * height, factor * width))


# ---- Spike files: convert, simulate -----------------------------------------------------------
#
# What must stay: a file that is converted to another format and back has the same bytes
# (test_convert_goes_through_every_format_and_back_to_the_same_bytes). The mean of simulated spikes
# is the image (test_simulated_spikes_give_the_picture_back).


def convert(command: argparse.Namespace) -> None:
    """Write some planes of a spike file in another format."""
    # The geometry of the file that is read, and of the file that is written.
    stored = single_geometry(command.file, command)
    # Head columns hold no image, so they are not written.
    written = SpikeGeometry(
        stored.height,
        stored.width,
        flipud=not command.out_no_flip,
        bit_order=command.out_bit_order,
    )
    # A candidate is a file read with one geometry. It can say what speaks against the geometry.
    candidate = Candidate(command.file, stored)
    planes = candidate.file.planes
    count = command.count
    if count is None:
        count = planes - command.first

    # Print how the file is read, so that the user notices a wrong size before the file is used.
    if formats.is_array(command.file):
        form = f"{stored.height} x {stored.width}, an array"
    elif command.size:
        form = in_words(stored)
    else:
        form = in_words(stored)
        form += " (no --size: from dataset.json, or the only known size that fits)"
    print(f"{command.file}: {planes} planes of {form}")
    # There is no other candidate, so this one is the best.
    for doubt in candidate.doubts(best=candidate):
        print(f"  warning: {doubt}")

    # Each block holds some planes, (t, h, w). `tracked` yields the blocks and shows how many planes
    # were yielded: a block has `len(block)` planes.
    blocks = candidate.file.parts(command.first, count)
    blocks = tracked(blocks, count, "converting", "planes", size=len)
    formats.write_spikes(command.out, blocks, written)
    if formats.is_array(command.out):
        form = f"{written.height} x {written.width}, an array of uint8"
    else:
        form = in_words(written)
    print(f"{command.out}: {count} planes of {form}")


def simulate_stream(command: argparse.Namespace) -> None:
    """Write the spikes that a simulated sensor fires while it sees the frames of a clip."""
    refuse_simulation(command)
    frames = FrameSource(command.input)
    frame_height, frame_width = frames.size
    height = frame_height // command.ratio
    width = frame_width // command.ratio
    if height * width % 8:  # a byte of a packed plane holds 8 pixels
        raise DataError(
            what=f"spike planes of {height} x {width} do not fill whole bytes",
            where=str(command.input),
            expected="pixels divisible by 8",
            do="choose another --ratio, or crop the input",
        )
    # The light (h, w) of a frame, and at any time between two frames.
    light_of_frame = grey_light(frames, (height, width), command.gamma)
    light = LightPath(light_of_frame, len(frames), command.method)
    sensor = simulate.IntegrateAndFire(
        height,
        width,
        rate=command.rate,
        rng=np.random.default_rng(command.seed),
        shot_noise=command.shot_noise,
        dark_rate=command.dark_rate,
        threshold_mismatch=command.threshold_mismatch,
    )
    count = len(frames) * command.planes_per_frame

    def planes() -> Iterator[np.ndarray]:
        """Yield each plane as (1, h, w), so that only one plane is in memory."""
        for plane in tracked(range(count), count, "simulating", "planes"):
            time = plane / command.planes_per_frame  # in frames, e.g. plane 12 of 8 a frame: 1.5
            yield sensor.step(light.at(time))[None]

    formats.write_spikes(command.out, planes(), SpikeGeometry(height, width))
    print(f"{command.out}: {count} planes of {height} x {width}, rate {command.rate}")


def refuse_simulation(command: argparse.Namespace) -> None:
    """Raise OptionError if an option of `simulate` is out of range."""
    # A pixel fires at most once in a plane.
    if not 0 < command.rate <= 1:
        raise OptionError(
            what=f"--rate is {command.rate}",
            where="--rate",
            expected="above 0, at most 1 spike a plane",
            do="correct it",
        )
    if command.planes_per_frame < 1 or command.ratio < 1:
        raise OptionError(
            what=f"--planes-per-frame is {command.planes_per_frame}, --ratio is {command.ratio}",
            where="the command line",
            expected="at least 1 each",
            do="correct them",
        )


if __name__ == "__main__":
    sys.exit(main())

"""Find which geometry a spike file has: the height, width and storage of its planes.

A spike file is a sequence of planes. A plane has one bit per pixel: 1 if the pixel fired. A packed
file (.dat, .bin) holds the bits without a header. So its geometry comes from the command line, from
dataset.json, or from the length of the file. These sources are tried in this order:

    given_geometry      --size, else the shape of an array, else the layout "sps100" (it has one
                        size), else dataset.json, else None
    camera_geometries   the geometry of each camera whose planes fit the length of the file
    Ranking             any size that fits the length of the file (spike_ranking.py, for `info`)

`single_geometry` tries the first two. If several cameras fit, it raises an error.

Words of a geometry (`SpikeGeometry` in data/spike/geometry.py):

    head columns   columns without image. Some cameras store them at the end of each row (despite
                   their name)
    bit order      which bit of a byte is the first pixel
    flip           the bottom row of a plane comes first in the file
    layout         "raster": row after row. "sps100": the lines of the camera SPS100, 1000 x 1000

scripts/spike_tool.py and scripts/calibrate.py take the options of `add_geometry`,
scripts/show_sample.py uses `in_words`, and uploaded_clip.py asks without options.

What must stay: the order of the sources (test_info_takes_the_size_from_dataset_json), and that a
file of the camera SPS100 is known by its pattern
(test_info_knows_the_format_of_a_camera_with_words_between_the_pixels). Free to change: the words,
except where tests/parts/scripts/test_spike_tool.py quotes them.

Tests: tests/parts/scripts/test_spike_tool.py
"""

import argparse
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.cameras.dataset_info import nearest_info
from data.spike import formats
from data.spike.errors import SpikeFileError
from data.spike.geometry import SPS100_SIDE, SpikeGeometry
from data.spike.headers import HEAD_BYTES, refuse_other_format
from data.spike.known_geometries import KNOWN_GEOMETRIES
from utils.arguments import plane_side
from utils.errors import DataError

# The meaning of each value of --bit-order, for sentences that are printed.
BIT_ORDERS = {
    "little": "the least significant bit is the first pixel",
    "big": "the most significant bit is the first pixel",
}

# ---- What the user says -----------------------------------------------------------------------


@dataclass(frozen=True)
class GeometryOptions:
    """What the command line says about the geometry of a spike file. By default it says nothing."""

    size: tuple[int, int] | None = None  # height, width
    head_columns: int = 0
    bit_order: Literal["little", "big"] = "little"
    layout: Literal["raster", "sps100"] = "raster"
    no_flip: bool = False  # whether the top row of a plane comes first in the file

    @classmethod
    def of(cls, command: argparse.Namespace) -> "GeometryOptions":
        """Return the options of `add_geometry` in a parsed command line."""
        size = None
        if command.size:
            height, width = command.size
            size = (height, width)
        return cls(
            size=size,
            head_columns=command.head_columns,
            bit_order=command.bit_order,
            layout=command.layout,
            no_flip=command.no_flip,
        )


def add_geometry(parser: argparse.ArgumentParser) -> None:
    """Add the options that `GeometryOptions.of` reads."""
    parser.add_argument(
        "--size",
        type=plane_side,
        nargs=2,
        metavar=("H", "W"),
        help="size of a spike plane; default: the size of the array, else the size in "
        "dataset.json, else the size of a known camera that fits the file",
    )
    parser.add_argument(
        "--head-columns",
        type=int,
        default=GeometryOptions.head_columns,
        help="number of head columns, which stand at the end of each row and hold no pixels "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--bit-order",
        choices=("little", "big"),
        default=GeometryOptions.bit_order,
        help="whether the first pixel of a byte is its least significant bit (little) or its most "
        "significant bit (big); default: %(default)s",
    )
    parser.add_argument(
        "--layout",
        choices=("raster", "sps100"),
        default=GeometryOptions.layout,
        help="how the lines of a packed plane are stored; sps100: as the camera SPS100 does "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-flip",
        action="store_true",
        help="the top row of a plane comes first in the file (default: as dataset.json says, else "
        "the bottom row)",
    )


# ---- The geometries of a file -----------------------------------------------------------------


def single_geometry(path: Path, options: GeometryOptions) -> SpikeGeometry:
    """Return the geometry of a spike file. Raises DataError if none fits, or if several fit."""
    geometries = possible_geometries(path, options)
    if len(geometries) > 1:
        refuse_several(path, geometries)
    return geometries[0]


def possible_geometries(path: Path, options: GeometryOptions) -> list[SpikeGeometry]:
    """Return the given geometry. If none is given, return each camera geometry that fits the file.

    Raises DataError if no geometry fits.
    """
    given = given_geometry(path, options)
    if given is not None:
        return [given]
    geometries = camera_geometries(path, options)
    if not geometries:
        raise no_geometry(path)
    return geometries


def given_geometry(path: Path, options: GeometryOptions) -> SpikeGeometry | None:
    """Return the geometry that the options, the shape of an array or dataset.json say.

    Returns None if no source says the geometry. Raises DataError if there is no such file, or if
    the file is an array of a wrong shape.
    """
    refuse_missing_file(path)

    # What dataset.json says. `h` and `w` are None if dataset.json lacks them, or if there is no
    # dataset.json. An array needs no dataset.json. But dataset.json is read first for every kind of
    # file, so that a damaged dataset.json always raises an error.
    info = nearest_info(path)

    # An array (.npy, .npz) has a shape. It is not packed, so it has no bit order and no layout.
    shape = formats.array_shape(path)
    if shape is not None:
        return geometry_of_array(path, shape, options)

    # The file is packed, so it does not say its size.
    if options.size:
        height, width = options.size
    elif options.layout == "sps100":  # all planes of the camera SPS100 have one size
        height = width = SPS100_SIDE
    else:
        height = info.h
        width = info.w
    if not height or not width:  # dataset.json does not say height and width
        return None
    return SpikeGeometry(
        height,
        width,
        flipud=is_flipped(path, options),
        head_columns=options.head_columns,
        bit_order=options.bit_order,
        layout=options.layout,
    )


def geometry_of_array(
    path: Path, shape: tuple[int, ...], options: GeometryOptions
) -> SpikeGeometry:
    """Return the geometry of an array (planes, h, w). Raises DataError for another shape."""
    if len(shape) != 3:
        raise DataError(
            what=f"an array of shape {shape}",
            where=str(path),
            expected="(planes, h, w)",
            do="save the array in this form",
        )
    # As for packed files, --size has priority. If --size differs from the shape of the array,
    # `open_spikes` refuses the size later, with an error that names the allowed shapes.
    if options.size:
        height, width = options.size
    else:
        _, height, width = shape
    return SpikeGeometry(height, width, head_columns=options.head_columns)


def is_flipped(path: Path, options: GeometryOptions) -> bool:
    """Return whether the bottom row of a packed plane comes first in the file.

    The result is False if --no-flip or dataset.json say that the top row comes first, and for the
    camera SPS100. In all other cases it is True, as for the files of all other known cameras.
    """
    # The layout is "raster" for all cameras but the SPS100, which stores the top row first.
    if options.no_flip or options.layout != "raster":
        return False
    # `flip` is True, False or None. If `flip` is None, dataset.json does not say which row comes
    # first. In this case, assume that the bottom row comes first, as in nearly all known files.
    return nearest_info(path).flip is not False


def camera_geometries(path: Path, options: GeometryOptions) -> list[SpikeGeometry]:
    """Return the geometries of known cameras for which the file has a whole number of planes."""
    flip = is_flipped(path, options)
    known_geometries = []
    # The table has the head columns of each camera, so the option --head-columns is not used here.
    # The third argument of `SpikeGeometry` is `flipud`.
    for height, width, head_columns in KNOWN_GEOMETRIES:
        geometry = SpikeGeometry(
            height, width, flip, head_columns=head_columns, bit_order=options.bit_order
        )
        known_geometries.append(geometry)
    # The options are not used for the SPS100 either. Each of its files has the bit order "little"
    # and no head columns, and `SpikeGeometry` raises an error for other values.
    side = SPS100_SIDE
    known_geometries.append(SpikeGeometry(side, side, flipud=False, layout="sps100"))

    fitting = []
    for geometry in known_geometries:
        with suppress(SpikeFileError):  # raised if the geometry does not fit
            formats.open_spikes(path, geometry)
            fitting.append(geometry)
    return fitting


# ---- In words ---------------------------------------------------------------------------------


def in_words(geometry: SpikeGeometry) -> str:
    """Return size and storage of packed planes in words.

    E.g. "250 x 400, bottom row first, the least significant bit is the first pixel".
    """
    head = f" + {geometry.head_columns} head columns" if geometry.head_columns else ""
    rows = "bottom" if geometry.flipud else "top"
    bit = BIT_ORDERS[geometry.bit_order]
    layout = ", lines of an SPS100" if geometry.layout == "sps100" else ""
    return f"{geometry.height} x {geometry.width}{head}, {rows} row first, {bit}{layout}"


# ---- What is refused --------------------------------------------------------------------------


def refuse_missing_file(path: Path) -> None:
    """Raise DataError if there is no file `path`."""
    if path.is_file():
        return
    what = "a folder" if path.is_dir() else "cannot read: No such file or directory"
    raise DataError(what=what, where=str(path), expected="a spike file", do="correct the path")


def refuse_several(path: Path, geometries: list[SpikeGeometry]) -> None:
    """Raise DataError for a file that several geometries fit."""
    names = ", ".join(f"{g.height} x {g.width} {g.layout}" for g in geometries)
    raise DataError(
        what=f"several geometries fit the file: {names}",
        where=str(path),
        expected="one geometry",
        do="give --size H W; spike_tool.py info ranks them",
    )


def no_geometry(path: Path) -> DataError:
    """Return the error for a file that none of the known geometries fits.

    Raises SpikeFileError if the file begins as a file of another format.

    Test: test_info_refuses_a_file_without_spikes
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
    return DataError(
        what=f"no known geometry fits {size} bytes",
        where=str(path),
        expected=bytes_left_over(size),
        do="copy the file again if it is cut short; give --size H W if the camera is another one",
    )


def bytes_left_over(size: int) -> str:
    """Return how many planes of each known camera a file has, and how many bytes are left over.

    A few bytes that are left over may be a header or a cut end.

    size: number of bytes of the file
    """
    text = "whole planes of h x w / 8 bytes"
    for height, width, head_columns in KNOWN_GEOMETRIES:
        plane_bytes = height * (width + head_columns) // 8  # a byte holds 8 pixels
        planes, left = divmod(size, plane_bytes)
        if not planes:  # a file that is shorter than a plane says nothing about this size
            continue
        head_text = f" + {head_columns} head columns" if head_columns else ""
        text += f"\n    {height} x {width}{head_text}: {planes} planes, {left} bytes left over"
    return text

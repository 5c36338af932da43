"""spike_tool.py info: what a spike file most likely is; and, for all scripts, the geometries that fit a file."""

import argparse
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from data.files import check_same_view, read_bgr
from data.spike import formats
from data.spike.formats import SpikeGeometry
from data.spike.simulate import fit_light, to_grey
from data.spike_info import nearest_info
from utils.errors import DataError

SHOWN_PLANES = 64  # planes in the middle of the file that `info` averages
SMOOTHER = 0.05  # difference in smoothness that counts
CLEAR_ORDER = 0.01  # the same for the bit order, which changes the rows alone
BITS = {name: f"the {bit} significant bit is the first pixel" for name, bit in (("little", "least"), ("big", "most"))}


def add_geometry(parser: argparse.ArgumentParser) -> None:
    """The options of `geometries`."""
    add = parser.add_argument
    text = "of a spike plane; default: of an array its own, else dataset.json, else what fits the file size"
    add("--size", type=int, nargs=2, metavar=("H", "W"), help=text)
    add("--head-columns", type=int, default=0)
    add("--bit-order", choices=("little", "big"), default="little", help="first pixel of a byte")
    add("--layout", choices=("raster", "sps100"), default="raster", help="of packed planes")
    add("--no-flip", action="store_true", help="rows are stored top first (default: dataset.json, else bottom first)")


def the_geometry(path: Path, command: argparse.Namespace) -> SpikeGeometry:
    """The only one of `geometries`. Raises DataError where several fit."""
    found = geometries(path, command)
    if len(found) > 1:
        what = f"several geometries fit the file: {', '.join(f'{g.height} x {g.width} {g.layout}' for g in found)}"
        raise DataError(what, str(path), "one geometry", "give --size H W; spike_tool.py info ranks them")
    return found[0]


def geometries(path: Path, command: argparse.Namespace) -> list[SpikeGeometry]:
    """The geometry of the array, of the options or of dataset.json, else all known ones that fit. Raises DataError.

    command: with the options of `add_geometry`.
    """
    if path.is_dir():
        raise DataError("a folder", str(path), "a spike file", "name one of its files")
    if not path.is_file():
        raise DataError("cannot read: No such file or directory", str(path), "a spike file", "correct the path")
    about, head = nearest_info(path), command.head_columns
    if (shape := formats.array_shape(path)) is not None:
        if len(shape) != 3:
            raise DataError(f"an array of shape {shape}", str(path), "(planes, h, w)", "save the array in this form")
        return [SpikeGeometry(*(command.size or shape[1:]), head_columns=head)]
    flip = not command.no_flip and about.flip is not False and command.layout == "raster"
    sps100 = (formats.SPS100_SIDE, formats.SPS100_SIDE)
    size = command.size or (sps100 if command.layout == "sps100" else (about.h, about.w))
    if all(size):
        return [SpikeGeometry(*size, flip, head, command.bit_order, command.layout)]
    size = path.stat().st_size
    fitting = formats.candidate_geometries(size)
    known = [SpikeGeometry(h, w, flip, head, command.bit_order) for h, w, head, _ in fitting]
    found = []
    for geometry in (*known, SpikeGeometry(*sps100, flipud=False, layout="sps100")):
        with suppress(formats.SpikeFileError):
            formats.open_spikes(path, geometry)
            found.append(geometry)
    if found:
        return found
    with open(path, "rb") as file:
        formats.refuse_header(file.read(64), path)
    if not size:
        raise DataError("the file is empty", str(path), "spike planes", "copy or make the file again")
    expected = "whole planes of h x w / 8 bytes"
    for h, w, head in formats.KNOWN_GEOMETRIES:
        planes, left = divmod(size, h * (w + head) // 8)
        name = f"{h} x {w}{f' + {head} head columns' if head else ''}"
        expected += f"\n    {name}: {planes} planes, {left} bytes left over" if planes else ""
    do = "copy the file again if it is cut short; give --size H W if the camera is another one"
    raise DataError(f"no known geometry fits {size} bytes", str(path), expected, do)


def in_words(geometry: SpikeGeometry) -> str:
    """The size and storage of packed planes."""
    head = f" + {geometry.head_columns} head columns" if geometry.head_columns else ""
    rows, bit = "bottom" if geometry.flipud else "top", BITS[geometry.bit_order]
    layout = ", lines of an SPS100" if geometry.layout == "sps100" else ""
    return f"{geometry.height} x {geometry.width}{head}, {rows} row first, {bit}{layout}"


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two pictures; 0 where one of them is even, or has too few pixels to tell."""
    is_even = min(a.shape) < 2 or a.std() == 0 or b.std() == 0
    return 0.0 if is_even else float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


class Candidate:
    """One way to read a file: the planes in its middle, (at most SHOWN_PLANES, h, w), and how smooth their mean is.

    smooth: correlation of neighbouring columns and of neighbouring rows; lower for a wrong geometry. score: the lesser.
    """

    def __init__(self, path: Path, geometry: SpikeGeometry) -> None:
        self.file = formats.open_spikes(path, geometry)
        count = min(self.file.planes, SHOWN_PLANES)
        self.spikes = self.file.read((self.file.planes - count) // 2, count)
        self.rates = self.spikes.mean(axis=0)
        pairs = {"columns": (self.rates[:, 1:], self.rates[:, :-1]), "rows": (self.rates[1:], self.rates[:-1])}
        self.smooth = {name: correlation(a, b) for name, (a, b) in pairs.items()}
        self.score = min(self.smooth.values())
        head, is_sps100 = geometry.head_columns, geometry.layout == "sps100"
        self.name = f"{geometry.height} x {geometry.width}{f' + {head}' if head else ' (SPS100)' * is_sps100}"

    def doubts(self, best: "Candidate") -> list[str]:
        """What speaks against this candidate."""
        name, least = min(self.smooth.items(), key=lambda item: item[1])
        planes, (h, w), rate = self.file.planes, self.file.size, self.rates.mean()
        known = {known[:2] for known in formats.KNOWN_GEOMETRIES}
        found = {
            f"{planes} x {h} is the size of a camera: (h, w, planes), where (planes, h, w) is expected": (
                (planes, h) in known and (h, w) not in known
            ),
            f"neighbouring {name} resemble one another less ({least:.2f}, not {best.smooth[name]:.2f})": (
                least < best.smooth[name] - SMOOTHER
            ),
            f"neighbouring {name} do not resemble one another": self.score < 0.3,
            "a single plane": planes == 1,
            f"{100 * rate:.0f} % of the pixels fire in each plane": not 0.001 < rate < 0.98,
        }
        return [text for text, is_so in found.items() if is_so]


def candidates(path: Path, command: argparse.Namespace) -> list[Candidate]:
    """All `geometries`, the one with the smoothest picture first."""
    found = [Candidate(path, geometry) for geometry in geometries(path, command)]
    return sorted(found, key=lambda one: -one.score)


def info(command: argparse.Namespace) -> None:
    path, shape = command.file, formats.array_shape(command.file)
    best, *others = found = candidates(path, command)
    print(f"{path}: {path.stat().st_size} bytes, {f'an array {shape}' if shape else 'packed planes'}")
    print("  smoothness  height x width  planes  spikes per plane and pixel")
    for one in found:
        pixels = f"{one.rates.min():.3f} to {one.rates.max():.3f}"
        print(f"  {one.score:10.3f}  {one.name:>14}  {one.file.planes:6}  {one.rates.mean():.4f} (pixels {pixels})")
        for text in one.doubts(best):
            print(f"  {'':10}  {'':>14}  {'':6}  against it: {text}")
    if others and best.score > others[0].score + SMOOTHER:
        print(f"  most likely {best.name}: neighbouring pixels resemble one another")
    if not shape and best.file.geometry.layout == "raster":
        # A wrong order of the bits mirrors each group of 8 pixels: the rows are less smooth.
        ways = {order: Candidate(path, replace(best.file.geometry, bit_order=order)) for order in BITS}
        little, big = (one.smooth["columns"] for one in ways.values())
        order = "little" if little >= big else "big"
        is_clear = abs(little - big) >= CLEAR_ORDER
        said = f"bit order {order}: {BITS[order]}" if is_clear else "the bit order cannot be judged"
        print(f"  {said} (smoothness along rows: little {little:.3f}, big {big:.3f})")
    pixels, times = np.nonzero(best.spikes.reshape(len(best.spikes), -1).T)
    intervals = np.diff(times)[np.diff(pixels) == 0]
    if intervals.size:
        print(f"  planes between spikes: {intervals.min()} to {intervals.max()}, median {np.median(intervals):.0f}")
    if command.picture:
        print(describe_light(best.rates, command.picture))
    elif not shape:
        print("  only the image shows whether rows are flipped: spike_tool.py view, or --picture")


def describe_light(rates: np.ndarray, picture: Path) -> str:
    """One line on `light` and `rate` of the spikes, from their mean (h, w) and a frame of the same field of view."""
    grey = to_grey(read_bgr(str(picture))[..., ::-1]) / 255.0
    check_same_view(grey.shape, rates.shape, str(picture))
    grey = cv2.resize(grey, rates.shape[::-1], interpolation=cv2.INTER_AREA)
    upright, flipped = (correlation(grey, picture) for picture in (rates, rates[::-1]))
    if flipped > upright:
        return f"  the rows seem upside down: correlation with the picture {upright:.2f}, flipped {flipped:.2f}"
    fit = fit_light(rates, grey)
    errors = ", ".join(f"{light} {100 * error:.0f} %" for light, error in fit.errors.items())
    if not fit.is_clear:
        return f"  the picture does not show which light the spikes integrate (error of the fits: {errors})"
    return f'  for dataset.json: "light": "{fit.light}", "rate": {fit.rate:.3f} (error of the fits: {errors})'

"""spike_tool.py info: what a spike file most likely is; and, for all scripts, the geometries that fit a file."""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from data.files import check_same_view, read_bgr
from data.spike.formats import (
    KNOWN_GEOMETRIES,
    SPS100_SIDE,
    SpikeFile,
    SpikeFileError,
    SpikeGeometry,
    array_shape,
    candidate_geometries,
    open_spikes,
    refuse_header,
)
from data.spike.simulate import fit_light, to_grey
from data.spike_info import nearest_info
from utils.errors import DataError

SHOWN_PLANES = 64  # planes in the middle of the file that `info` averages
SMOOTHER = 0.05  # difference in smoothness that counts
CLEAR_ORDER = 0.01  # the same for the bit order, which changes the rows alone


def add_geometry(parser: argparse.ArgumentParser) -> None:
    """The options of `geometries`."""
    add = parser.add_argument
    add(
        "--size", type=int, nargs=2, metavar=("H", "W"),
        help="of a spike plane; default: of an array its own, else dataset.json, else what fits the file size",
    )  # fmt: skip
    add("--head-columns", type=int, default=0)
    add("--bit-order", choices=("little", "big"), default="little", help="first pixel of a byte")
    add("--layout", choices=("raster", "sps100"), default="raster", help="of packed planes")
    add("--no-flip", action="store_true", help="rows are stored top first (default: dataset.json, else bottom first)")


def the_geometry(path: Path, command: argparse.Namespace) -> SpikeGeometry:
    """The only one of `geometries`. Raises DataError where several fit."""
    found = geometries(path, command)
    if len(found) > 1:
        raise DataError(
            f"several geometries fit the file: {', '.join(f'{g.height} x {g.width} {g.layout}' for g in found)}",
            str(path), "one geometry", "give --size H W; spike_tool.py info ranks them",
        )  # fmt: skip
    return found[0]


def geometries(path: Path, command: argparse.Namespace) -> list[SpikeGeometry]:
    """The geometry of the array, of the options or of dataset.json, else all known ones that fit. Raises DataError.

    command: with the options of `add_geometry`.
    """
    if not path.is_file():
        what = "a folder" if path.is_dir() else "cannot read: No such file or directory"
        raise DataError(
            what, str(path), "a spike file", "name one of its files" if path.is_dir() else "correct the path"
        )
    about = nearest_info(path)
    if (shape := array_shape(path)) is not None:
        if len(shape) != 3:
            raise DataError(f"an array of shape {shape}", str(path), "(planes, h, w)", "save the array in this form")
        return [SpikeGeometry(*(command.size or shape[1:]), head_columns=command.head_columns)]
    flip = not command.no_flip and about.flip is not False and command.layout == "raster"
    size = command.size or ((SPS100_SIDE, SPS100_SIDE) if command.layout == "sps100" else (about.h, about.w))
    if all(size):
        return [SpikeGeometry(*size, flip, command.head_columns, command.bit_order, command.layout)]
    size = path.stat().st_size
    known = [SpikeGeometry(h, w, flip, head, command.bit_order) for h, w, head, _ in candidate_geometries(size)]
    known.append(SpikeGeometry(SPS100_SIDE, SPS100_SIDE, flipud=False, layout="sps100"))
    found = []
    for geometry in known:
        with suppress(SpikeFileError):
            open_spikes(path, geometry)
            found.append(geometry)
    if found:
        return found
    with open(path, "rb") as file:
        refuse_header(file.read(64), path)
    if not size:
        raise DataError("the file is empty", str(path), "spike planes", "copy or make the file again")
    near = [(h, w, head, *divmod(size, h * (w + head) // 8)) for h, w, head in KNOWN_GEOMETRIES]
    texts = [
        f"\n    {h} x {w}{f' + {head} head columns' if head else ''}: {planes} planes, {left} bytes left over"
        for h, w, head, planes, left in near
        if planes
    ]
    raise DataError(
        f"no known geometry fits {size} bytes", str(path), f"whole planes of h x w / 8 bytes{''.join(texts)}",
        "copy the file again if it is cut short; give --size H W if the camera is another one",
    )  # fmt: skip


def in_words(geometry: SpikeGeometry) -> str:
    """The size and storage of packed planes."""
    head = f" + {geometry.head_columns} head columns" if geometry.head_columns else ""
    rows, bit = "bottom" if geometry.flipud else "top", "least" if geometry.bit_order == "little" else "most"
    layout = ", lines of an SPS100" if geometry.layout == "sps100" else ""
    size = f"{geometry.height} x {geometry.width}{head}"
    return f"{size}, {rows} row first, the {bit} significant bit is the first pixel{layout}"


def middle(file: SpikeFile) -> np.ndarray:
    """The planes around the middle of the file: (at most SHOWN_PLANES, h, w)."""
    count = min(file.planes, SHOWN_PLANES)
    return file.read((file.planes - count) // 2, count)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two pictures; 0 where one of them is even, or has too few pixels to tell."""
    is_even = min(a.shape) < 2 or a.std() == 0 or b.std() == 0
    return 0.0 if is_even else float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


@dataclass(frozen=True)
class Candidate:
    """One way to read a file: the planes in its middle, and the smoothness of their mean."""

    geometry: SpikeGeometry
    planes: int
    spikes: np.ndarray
    smooth: dict[str, float]

    @property
    def score(self) -> float:
        return min(self.smooth.values())

    @property
    def name(self) -> str:
        g = self.geometry
        extra = f" + {g.head_columns}" if g.head_columns else " (SPS100)" if g.layout == "sps100" else ""
        return f"{g.height} x {g.width}{extra}"

    def doubts(self, best: Candidate) -> list[str]:
        """What speaks against this candidate."""
        name, least = min(self.smooth.items(), key=lambda item: item[1])
        rate, shape, known = self.spikes.mean(), self.geometry, {(h, w) for h, w, _ in KNOWN_GEOMETRIES}
        is_turned = (self.planes, shape.height) in known and (shape.height, shape.width) not in known
        camera = f"{self.planes} x {shape.height} is the size of a camera"
        found = {
            f"{camera}: (h, w, planes), where (planes, h, w) is expected": is_turned,
            f"neighbouring {name} resemble one another less ({least:.2f}, not {best.smooth[name]:.2f})": (
                least < best.smooth[name] - SMOOTHER
            ),
            f"neighbouring {name} do not resemble one another": self.score < 0.3,
            "a single plane": self.planes == 1,
            f"{100 * rate:.0f} % of the pixels fire in each plane": not 0.001 < rate < 0.98,
        }
        return [text for text, is_so in found.items() if is_so]


def candidate(path: Path, geometry: SpikeGeometry) -> Candidate:
    """A geometry with the correlation of neighbouring columns and rows, which is lower for a wrong one."""
    file = open_spikes(path, geometry)
    spikes = middle(file)
    mean = spikes.mean(axis=0)
    pairs = {"columns": (mean[:, 1:], mean[:, :-1]), "rows": (mean[1:], mean[:-1])}
    return Candidate(geometry, file.planes, spikes, {name: correlation(a, b) for name, (a, b) in pairs.items()})


def best_geometry(command: argparse.Namespace) -> SpikeGeometry:
    """The one of `geometries` that gives the smoothest picture."""
    return max(geometries(command.file, command), key=lambda geometry: candidate(command.file, geometry).score)


def info(command: argparse.Namespace) -> None:
    shape = array_shape(command.file)
    found = sorted((candidate(command.file, g) for g in geometries(command.file, command)), key=lambda c: -c.score)
    best = found[0]
    print(
        f"{command.file}: {command.file.stat().st_size} bytes" + (f", an array {shape}" if shape else ", packed planes")
    )
    print("  smoothness  height x width  planes  spikes per plane and pixel")
    for one in found:
        rates = one.spikes.mean(axis=0)
        print(f"  {one.score:10.3f}  {one.name:>14}  {one.planes:6}  {rates.mean():.4f} (pixels {_range(rates)})")
        for text in one.doubts(best):
            print(f"  {'':10}  {'':>14}  {'':6}  against it: {text}")
    if len(found) > 1 and best.score > found[1].score + SMOOTHER:
        print(f"  most likely {best.name}: neighbouring pixels resemble one another")
    if not shape and best.geometry.layout == "raster":
        print(describe_bit_order(command.file, best))
    pixels, times = np.nonzero(best.spikes.reshape(len(best.spikes), -1).T)
    intervals = np.diff(times)[np.diff(pixels) == 0]
    if intervals.size:
        print(f"  planes between spikes: {_range(intervals, '.0f')}, median {np.median(intervals):.0f}")
    if command.picture:
        print(describe_light(best.spikes.mean(axis=0), command.picture))
    elif not shape:
        print("  only the image shows whether rows are flipped: spike_tool.py view, or --picture")


def describe_bit_order(path: Path, best: Candidate) -> str:
    """Which order of the bits gives the smoother rows; a wrong one mirrors each group of 8 pixels."""
    other = "big" if best.geometry.bit_order == "little" else "little"
    known = {best.geometry.bit_order: best, other: candidate(path, replace(best.geometry, bit_order=other))}
    scores = {order: one.smooth["columns"] for order, one in known.items()}
    likely = max(scores, key=lambda order: scores[order])
    text = f"(smoothness along rows: little {scores['little']:.3f}, big {scores['big']:.3f})"
    if abs(scores["little"] - scores["big"]) < CLEAR_ORDER:
        return f"  the bit order cannot be judged {text}"
    bit = "least" if likely == "little" else "most"
    return f"  bit order {likely}: the {bit} significant bit is the first pixel {text}"


def describe_light(rates: np.ndarray, picture: Path) -> str:
    """One line on `light` and `rate` of the spikes, from their mean (h, w) and a frame of the same field of view."""
    grey = to_grey(read_bgr(str(picture))[..., ::-1]) / 255.0
    check_same_view(grey.shape, rates.shape, str(picture))
    grey = cv2.resize(grey, rates.shape[::-1], interpolation=cv2.INTER_AREA)
    upright, flipped = (correlation(grey, picture) for picture in (rates, rates[::-1]))
    if flipped > upright:
        text = f"correlation with the picture {upright:.2f}, upside down {flipped:.2f}"
        return f"  the rows seem to be stored in the other order: {text}"
    fit = fit_light(rates, grey)
    errors = ", ".join(f"{light} {100 * error:.0f} %" for light, error in fit.errors.items())
    if not fit.is_clear:
        return f"  the picture does not show which light the spikes integrate (error of the fits: {errors})"
    return f'  for dataset.json: "light": "{fit.light}", "rate": {fit.rate:.3f} (error of the fits: {errors})'


def _range(values: np.ndarray, form: str = ".3f") -> str:
    return f"{values.min():{form}} to {values.max():{form}}"

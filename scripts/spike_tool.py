#!/usr/bin/env python3
"""Inspect spike files, and make them from images or video.

info FILE                  what the file most likely is: the geometries that fit it, ranked by the smoothness of the
                           image each gives, what speaks against each, the bit order, firing rates; with --picture,
                           the frame of that time: the rate, which light the spikes integrate, the order of rows
convert FILE OUT           to the format of OUT's suffix (.dat, .bin, .npy, .npz), part by part
view FILE --out a.png      the mean image as read and flipped, side by side; --out a.mp4: a video preview
simulate INPUT OUT.dat     a folder of images, an image or a video -> one .dat
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np
from tqdm import tqdm

from data.frame_io import read_bgr
from data.pictures import Pictures, check_same_view
from data.raw_video import LightPath
from data.spike.formats import (
    FORMATS,
    array_shape,
    candidate_geometries,
    format_of,
    open_spikes,
    refuse_header,
    write_spikes,
)
from data.spike.light import fit_light
from data.spike.simulate import IntegrateAndFire, to_display, to_grey
from data.spike.stream import SPS100_SIDE, SpikeFileError, SpikeGeometry
from data.spike_info import nearest_info
from data.spike_source import spike_errors_as_data_errors
from scripts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import refuse_existing
from utils.image import imwrite_rgb
from utils.video import VideoWriter

SHOWN_PLANES = 64  # planes in the middle of the file that `info` and `view` average
SMOOTHER = 0.05  # difference in smoothness that counts
CLEAR_ORDER = 0.01  # the same for the bit order, which changes the rows alone


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    with spike_errors_as_data_errors():
        if "out" in command:
            refuse_existing(command.out, "the output")
        {"info": info, "view": view, "convert": convert, "simulate": simulate}[command.action](command)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("info", "convert", "view"):
        action = actions.add_parser(name)
        action.add_argument("file", type=Path)
        action.add_argument(
            "--size", type=int, nargs=2, metavar=("H", "W"), help="default: dataset.json, else what fits the file size"
        )
        action.add_argument("--head-columns", type=int, default=0)
        action.add_argument("--bit-order", choices=("little", "big"), default="little", help="first pixel of a byte")
        action.add_argument("--layout", choices=("raster", "sps100"), default="raster", help="of packed planes")
        action.add_argument(
            "--no-flip",
            action="store_true",
            help="rows are stored top first (default: dataset.json, else bottom first)",
        )
        if name == "info":
            action.add_argument("--picture", type=Path, help="the frame of the time in the middle of FILE")
        if name == "convert":
            action.add_argument("out", type=Path)
            action.add_argument("--first", type=int, default=0, help="plane")
            action.add_argument("--count", type=int, help="planes; default: to the end")
            action.add_argument("--out-no-flip", action="store_true", help="store rows top first")
            action.add_argument("--out-bit-order", choices=("little", "big"), default="little")
    action.add_argument("--out", type=Path, required=True, help="picture, or .mp4 / .avi")
    action.add_argument("--window", type=int, default=21, help="planes per frame of the preview")
    action.add_argument(
        "--rate", type=float, help="spikes per plane at full light; default: dataset.json, else the brightest"
    )
    make = actions.add_parser("simulate")
    make.add_argument("input", type=Path)
    make.add_argument("out", type=Path)
    make.add_argument("--planes-per-frame", type=int, default=8)
    make.add_argument("--ratio", type=int, default=1, help="pixels of the input per spike pixel, each way")
    make.add_argument("--method", choices=("flow", "linear"), default="flow", help="between the frames")
    make.add_argument("--rate", type=float, default=0.5)
    make.add_argument("--gamma", type=float, default=2.2, help="of the input; 1: integrate the display values")
    make.add_argument("--shot-noise", type=float, default=0.0)
    make.add_argument("--dark-rate", type=float, default=0.0)
    make.add_argument("--threshold-mismatch", type=float, default=0.0)
    make.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def geometries(command: argparse.Namespace) -> list[SpikeGeometry]:
    """The geometry of the array, of the options or of dataset.json, else all known ones that fit. Raises DataError."""
    path, about = command.file, nearest_info(command.file)
    if shape := array_shape(path):
        return [SpikeGeometry(*(command.size or shape[1:]))]
    flip = not command.no_flip and about.flip is not False and command.layout == "raster"
    storage = (flip, command.head_columns, command.bit_order, command.layout)
    if command.layout == "sps100" and not command.size:
        return [SpikeGeometry(SPS100_SIDE, SPS100_SIDE, *storage)]
    if command.size:
        return [SpikeGeometry(*command.size, *storage)]
    if about.h and about.w:
        return [SpikeGeometry(about.h, about.w, *storage)]
    try:
        size = path.stat().st_size
    except OSError as e:
        raise DataError(f"cannot read: {e.strerror}", str(path), "a spike file", "correct the path") from e
    known = [SpikeGeometry(h, w, flip, head, command.bit_order) for h, w, head, _ in candidate_geometries(size)]
    known.append(SpikeGeometry(SPS100_SIDE, SPS100_SIDE, flipud=False, layout="sps100"))
    found = [geometry for geometry in known if opens(path, geometry)]
    if not found:
        refuse_header(path.read_bytes()[:64], path)
        raise DataError(
            f"no known geometry fits {size} bytes",
            str(path),
            "whole planes of h x w / 8 bytes",
            "give --size H W",
        )
    return found


def opens(path: Path, geometry: SpikeGeometry) -> bool:
    try:
        open_spikes(path, geometry)
    except SpikeFileError:
        return False
    return True


def middle(path: Path, geometry: SpikeGeometry) -> np.ndarray:
    """The planes around the middle of the file: (at most SHOWN_PLANES, h, w)."""
    file = open_spikes(path, geometry)
    count = min(file.planes, SHOWN_PLANES)
    return file.read((file.planes - count) // 2, count)


def smoothness(picture: np.ndarray) -> dict[str, float]:
    """Correlation of neighbouring columns and of neighbouring rows; it is lower for a wrong geometry."""
    pairs = {"columns": (picture[:, 1:], picture[:, :-1]), "rows": (picture[1:], picture[:-1])}
    return {name: correlation(a, b) for name, (a, b) in pairs.items()}


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
        rate = self.spikes.mean()
        found = {
            f"neighbouring {name} resemble one another less ({least:.2f}, not {best.smooth[name]:.2f})": (
                least < best.smooth[name] - SMOOTHER
            ),
            f"neighbouring {name} do not resemble one another": self.score < 0.3,
            "a single plane": self.planes == 1,
            f"{100 * rate:.0f} % of the pixels fire in each plane": not 0.001 < rate < 0.98,
        }
        return [text for text, is_so in found.items() if is_so]


def candidate(path: Path, geometry: SpikeGeometry) -> Candidate:
    spikes = middle(path, geometry)
    return Candidate(geometry, open_spikes(path, geometry).planes, spikes, smoothness(spikes.mean(axis=0)))


def info(command: argparse.Namespace) -> None:
    shape = array_shape(command.file)
    found = sorted((candidate(command.file, g) for g in geometries(command)), key=lambda c: -c.score)
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
    else:
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


def convert(command: argparse.Namespace) -> None:
    if command.out.suffix.lower() not in FORMATS:
        raise OptionError(
            f"the suffix of the output is {command.out.suffix!r}", str(command.out), ", ".join(FORMATS), "choose one"
        )
    found = geometries(command)
    if len(found) > 1:
        raise DataError(
            f"several geometries fit the file: {', '.join(f'{g.height} x {g.width} {g.layout}' for g in found)}",
            str(command.file), "one geometry", "give --size H W; spike_tool.py info ranks them",
        )  # fmt: skip
    file = open_spikes(command.file, found[0])
    count = file.planes - command.first if command.count is None else command.count
    made = SpikeGeometry(found[0].height, found[0].width, not command.out_no_flip, bit_order=command.out_bit_order)
    parts = tqdm(file.parts(command.first, count), unit=" parts", disable=None)
    write_spikes(command.out, parts, made)
    form = repr(made) if format_of(command.out).is_packed else "an array of uint8, row 0 at the top"
    print(f"{command.out}: {count} planes of {made.height} x {made.width}; {form}")


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


def view(command: argparse.Namespace) -> None:
    found = geometries(command)
    geometry = max(found, key=lambda g: candidate(command.file, g).score)
    about = nearest_info(command.file)
    rate = command.rate or about.rate
    if command.out.suffix.lower() in (".mp4", ".avi"):
        preview(command, geometry, rate, about.light)
    else:
        light = middle(command.file, geometry).mean(axis=0, dtype=np.float32)
        shown = as_shown(light / (rate or max(float(light.max()), 1e-6)), about.light)
        pair = np.concatenate((shown, np.ones((geometry.height, 8), np.float32), shown[::-1]), axis=1)
        imwrite_rgb(command.out, grey_picture(pair))
    print(f"{command.out}: {geometry.height} x {geometry.width}, left as read, right flipped; the upright one is right")


def as_shown(values: np.ndarray, light: str | None) -> np.ndarray:
    """Display values of the integrated light, 1 at full scale."""
    return values if light == "display" else to_display(values)


def preview(command: argparse.Namespace, geometry: SpikeGeometry, rate: float | None, light: str | None) -> None:
    file = open_spikes(command.file, geometry)
    half = command.window // 2
    scale = rate or max(float(middle(command.file, geometry).mean(axis=0).max()), 1e-6)
    with VideoWriter(command.out, fps=25) as video:
        for center in range(half, max(file.planes - half, half + 1), max(half, 1)):
            first = max(center - half, 0)
            spikes = file.read(first, min(command.window, file.planes - first))
            video.write(grey_picture(as_shown(spikes.mean(axis=0, dtype=np.float32) / scale, light)))


def grey_picture(values: np.ndarray) -> np.ndarray:
    """Display values (H, W) -> (H, W, 3) uint8, enlarged where small, with even sides for video codecs."""
    factor = max(1, 320 // values.shape[0])
    grey = np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8).repeat(factor, axis=0).repeat(factor, axis=1)
    grey = grey[: grey.shape[0] // 2 * 2, : grey.shape[1] // 2 * 2]
    return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)


def simulate(command: argparse.Namespace) -> None:
    if command.planes_per_frame < 1 or command.ratio < 1:
        raise OptionError("--planes-per-frame and --ratio", "command line", "at least 1", "correct them")
    frames = Pictures(command.input)
    height, width = (side // command.ratio for side in frames.size)
    if height * width % 8:
        raise DataError(
            f"spike planes of {height} x {width} do not fill whole bytes", str(command.input),
            "height x width / ratio^2 divisible by 8", "choose another --ratio, or crop the input",
        )  # fmt: skip
    light = LightPath(frames, (height, width), command.gamma, command.method)
    sensor = IntegrateAndFire(
        height, width, rate=command.rate, rng=np.random.default_rng(command.seed), shot_noise=command.shot_noise,
        dark_rate=command.dark_rate, threshold_mismatch=command.threshold_mismatch,
    )  # fmt: skip
    count = len(frames) * command.planes_per_frame
    times = (p / command.planes_per_frame for p in tqdm(range(count), unit=" planes", disable=None))
    write_spikes(command.out, sensor.run_parts(light.at(time) for time in times), SpikeGeometry(height, width))
    print(f"{command.out}: {count} planes of {height} x {width}, rate {command.rate}")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Inspect spike files, look at them, and make them from images or video.

info FILE                  what the file most likely is: the sizes that its length allows, ranked by
the smoothness
                           of the image each gives, what speaks against each, the bit order, firing
                           rates; with --picture, the frame of that time: sizes of its shape alone,
                           the rate, which light the spikes integrate, the order of rows
view FILE                  flipped or not? the mean image as read and flipped, side by side
play FILE                  a video: the single planes beside their reconstruction
recon FILE --planes 100 200
                           the reconstruction (--method tfp, tfi or tfstp) at these planes: a
                           picture, folder or video
convert FILE OUT           to the format of OUT's suffix (.dat, .bin, .npy, .npz), part by part
simulate INPUT OUT.dat     a folder of images, an image or a video -> one .dat

    python scripts/spike_tool.py play capture.dat --size 250 400 --tick-hz 20000 --out capture.mp4
    python scripts/spike_tool.py recon capture.dat --planes 150 --out plane150.png
    method.half_window=5
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.cameras.spike_info import nearest_info, spike_errors_as_data_errors
from data.clips.files import FrameSource, check_same_view, read_bgr
from data.making.light_in_motion import LightPath, grey_light
from data.spike import formats, simulate
from data.spike.formats import SpikeGeometry
from data.spike.represent import REPRESENTATIONS, represent
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
from utils.files import publish_folder, refuse_existing, scratch_folder
from utils.image import IMAGE_SUFFIXES, comparison_strip, imwrite_rgb
from utils.options.load import Sources, apply_override
from utils.video import VIDEO_SUFFIXES, VideoWriter

GREY_METHODS = ("tfp", "tfi", "tfstp")  # of data/reconstruct.py
LEAST_HEIGHT = 320  # smaller images are enlarged by repetition, to see single pixels
HISTORY = 128  # planes on either side that a method without a window gets
LONGEST = 500  # video frames of `play`, unless --step says otherwise
# Of the file that a command writes by default
SUFFIXES = {
    "view": ".png",
    "recon": ".png",
    "play": ".mp4",
}
ALLOWED = {
    "recon": ("", *IMAGE_SUFFIXES, *VIDEO_SUFFIXES),
    "play": VIDEO_SUFFIXES,
    "convert": formats.FORMATS,
}
SHOWN_PLANES = 64  # planes in the middle of the file that `info` averages
SMOOTHER = 0.05  # difference in smoothness that counts
LISTED = 8  # sizes that `info` shows with what speaks against them
NAMED = 40  # sizes that `info` names
CLEAR_ORDER = 0.01  # the same for the bit order, which changes the rows alone
BITS = {
    name: f"the {bit} significant bit is the first pixel"
    for name, bit in (("little", "least"), ("big", "most"))
}


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    with spike_errors_as_data_errors():
        if "out" in command:
            action, allowed = command.action, ALLOWED.get(command.action)
            if command.out is None:
                command.out = default_output(f"{command.file.stem}_{action}{SUFFIXES[action]}")
            refuse_existing(command.out, "the output")
            if allowed and (suffix := command.out.suffix.lower()) not in allowed:
                expected = ", ".join(filter(None, allowed)) + ", or a folder" * (action == "recon")
                do = (
                    "choose one, or use spike_tool.py recon for images"
                    if action == "play"
                    else "choose one of them"
                )
                raise OptionError(
                    f"the suffix of the output is {suffix!r}", str(command.out), expected, do
                )
        command.run(command)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions, add = parser.add_subparsers(dest="action", required=True), {}
    verbs = {
        "info": info,
        "view": view,
        "recon": recon,
        "play": play,
        "convert": convert,
        "simulate": simulate_stream,
    }
    for name, run in verbs.items():
        action = actions.add_parser(name)
        action.set_defaults(run=run)
        add[name] = action.add_argument
        if name != "simulate":
            action.add_argument("file", type=Path)
            add_geometry(action)
    add["info"]("--picture", type=Path, help="the frame of the time in the middle of FILE")
    recon_out = (
        "one plane: the image; several: .png shows them side by side, a folder gets one "
        ".png each, .mp4 a video"
    )
    for name, output in {"view": "image", "recon": recon_out, "play": ".mp4"}.items():
        text = (
            f"{output}; default: FILE's name with _{name}{SUFFIXES[name]}, in this folder, in the "
        )
        text += "repository a temporary one"
        add[name]("--out", type=Path, help=text)
        text = "spikes per plane at full light; default: dataset.json, else bright pixels are white"
        add[name]("--rate", type=float, help=text)
        text = "what the sensor integrates; default: dataset.json, else linear"
        add[name]("--light", choices=("linear", "display"), help=text)
    for name in ("recon", "play"):
        text = (
            f"as in main_test_vrt.py --method; tfstp sees the last {HISTORY} planes; default "
            "%(default)s"
        )
        add[name]("--method", choices=GREY_METHODS, default="tfp", help=text)
        add[name]("--tick-hz", type=float, help="planes per second, to show the time")
        add[name](
            "--fps",
            type=frame_rate,
            default=25.0,
            help="video frames per second; default %(default)g",
        )
    add["recon"](
        "--planes",
        type=int,
        nargs="+",
        metavar="N",
        help="the first is 0; default: the one in the middle",
    )
    for name in ("play", "convert"):
        add[name]("--first", type=int, default=0, help="plane")
        add[name]("--count", type=int, help="planes; default: to the end")
    add["play"](
        "--step",
        type=int,
        help=f"planes per video frame; default: 1, or more for at most {LONGEST} frames",
    )
    add["convert"]("out", type=Path)
    add["convert"]("--out-no-flip", action="store_true", help="store rows top first")
    add["convert"]("--out-bit-order", choices=("little", "big"), default="little")
    add["simulate"]("input", type=Path)
    add["simulate"]("out", type=Path)
    add["simulate"]("--planes-per-frame", type=int, default=8)
    add["simulate"](
        "--ratio", type=int, default=1, help="pixels of the input per spike pixel, each way"
    )
    add["simulate"](
        "--method", choices=("flow", "linear"), default="flow", help="between the frames"
    )
    add["simulate"](
        "--gamma", type=float, default=2.2, help="of the input; 1: integrate the display values"
    )
    add["simulate"]("--seed", type=seed, default=0)
    for name, default in {
        "rate": 0.5,
        "shot-noise": 0.0,
        "dark-rate": 0.0,
        "threshold-mismatch": 0.0,
    }.items():
        add["simulate"](f"--{name}", type=float, default=default)
    # argparse cannot take the overrides method.key=value after a file and options.
    command, command.overrides = parser.parse_known_args(arguments)
    can_override = command.action in ("recon", "play")
    if wrong := [
        word for word in command.overrides if not can_override or not word.startswith("method.")
    ]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    return command


def add_geometry(parser: argparse.ArgumentParser) -> None:
    """The options of `geometries`."""
    add = parser.add_argument
    text = (
        "of a spike plane; default: of an array its own, else dataset.json, else what fits "
        "the file size"
    )
    add("--size", type=int, nargs=2, metavar=("H", "W"), help=text)
    add("--head-columns", type=int, default=0)
    add("--bit-order", choices=("little", "big"), default="little", help="first pixel of a byte")
    add("--layout", choices=("raster", "sps100"), default="raster", help="of packed planes")
    add(
        "--no-flip",
        action="store_true",
        help="rows are stored top first (default: dataset.json, else bottom first)",
    )


def the_geometry(path: Path, command: argparse.Namespace) -> SpikeGeometry:
    """The only one of `geometries`. Raises DataError where several fit."""
    found = geometries(path, command)
    if len(found) > 1:
        what = (
            "several geometries fit the file: "
            f"{', '.join(f'{g.height} x {g.width} {g.layout}' for g in found)}"
        )
        raise DataError(
            what, str(path), "one geometry", "give --size H W; spike_tool.py info ranks them"
        )
    return found[0]


def geometries(path: Path, command: argparse.Namespace) -> list[SpikeGeometry]:
    """Return the geometry that is given, else all known ones that fit the length of the file.

    command: with the options of `add_geometry`. Raises DataError if none fits.
    """
    given = given_geometry(path, command)
    found = known_geometries(path, command) if given is None else [given]
    if not found:
        raise no_geometry(path)
    return found


def given_geometry(path: Path, command: argparse.Namespace) -> SpikeGeometry | None:
    """Return the geometry of the array, of the options or of dataset.json, else None.

    Raises DataError if there is no such file, or it is an array of another form.
    """
    if not path.is_file():
        what = "a folder" if path.is_dir() else "cannot read: No such file or directory"
        raise DataError(what, str(path), "a spike file", "correct the path")
    about, head = nearest_info(path), command.head_columns
    if (shape := formats.array_shape(path)) is not None:
        if len(shape) != 3:
            raise DataError(
                f"an array of shape {shape}",
                str(path),
                "(planes, h, w)",
                "save the array in this form",
            )
        return SpikeGeometry(*(command.size or shape[1:]), head_columns=head)
    sps100 = (formats.SPS100_SIDE, formats.SPS100_SIDE)
    size = command.size or (sps100 if command.layout == "sps100" else (about.h, about.w))
    height, width = size
    if not height or not width:
        return None
    flip = is_flipped(path, command)
    return SpikeGeometry(height, width, flip, head, command.bit_order, command.layout)


def is_flipped(path: Path, command: argparse.Namespace) -> bool:
    """Return whether the rows of packed planes are taken to be stored bottom first."""
    is_raster = command.layout == "raster"
    return not command.no_flip and nearest_info(path).flip is not False and is_raster


def known_geometries(path: Path, command: argparse.Namespace) -> list[SpikeGeometry]:
    """Return the geometries of known cameras of which the file holds whole planes."""
    flip, side = is_flipped(path, command), formats.SPS100_SIDE
    known = [
        SpikeGeometry(h, w, flip, head, command.bit_order)
        for h, w, head in formats.KNOWN_GEOMETRIES
    ]
    found = []
    for geometry in (*known, SpikeGeometry(side, side, flipud=False, layout="sps100")):
        with suppress(formats.SpikeFileError):
            formats.open_spikes(path, geometry)
            found.append(geometry)
    return found


def no_geometry(path: Path) -> DataError:
    """Make the error about a file that none of the known geometries fits."""
    with open(path, "rb") as file:
        formats.refuse_header(file.read(64), path)
    if not (size := path.stat().st_size):
        return DataError(
            "the file is empty", str(path), "spike planes", "copy or make the file again"
        )
    expected = "whole planes of h x w / 8 bytes"
    for h, w, head in formats.KNOWN_GEOMETRIES:
        planes, left = divmod(size, h * (w + head) // 8)
        name = f"{h} x {w}{f' + {head} head columns' if head else ''}"
        expected += f"\n    {name}: {planes} planes, {left} bytes left over" if planes else ""
    do = "copy the file again if it is cut short; give --size H W if the camera is another one"
    return DataError(f"no known geometry fits {size} bytes", str(path), expected, do)


def in_words(geometry: SpikeGeometry) -> str:
    """The size and storage of packed planes."""
    head = f" + {geometry.head_columns} head columns" if geometry.head_columns else ""
    rows, bit = "bottom" if geometry.flipud else "top", BITS[geometry.bit_order]
    layout = ", lines of an SPS100" if geometry.layout == "sps100" else ""
    return f"{geometry.height} x {geometry.width}{head}, {rows} row first, {bit}{layout}"


class Candidate:
    """One way to read a file: the planes in its middle, (at most SHOWN_PLANES, h, w), and how
    smooth their mean is.

    smooth: correlation of neighbouring columns and of neighbouring rows; lower for a wrong
    geometry. score: the lesser.
    """

    def __init__(self, path: Path, geometry: SpikeGeometry) -> None:
        self.file = formats.open_spikes(path, geometry)
        count = min(self.file.planes, SHOWN_PLANES)
        self.spikes = self.file.read((self.file.planes - count) // 2, count)
        self.rates = self.spikes.mean(axis=0)
        self.smooth = smoothness(self.rates)
        self.score = min(self.smooth.values())
        head, is_sps100 = geometry.head_columns, geometry.layout == "sps100"
        self.name = (
            f"{geometry.height} x "
            f"{geometry.width}{f' + {head}' if head else ' (SPS100)' * is_sps100}"
        )

    def doubts(self, best: "Candidate") -> list[str]:
        """What speaks against this candidate."""
        name, least = min(self.smooth.items(), key=lambda item: item[1])
        planes, (h, w), rate = self.file.planes, self.file.size, self.rates.mean()
        known = {known[:2] for known in formats.KNOWN_GEOMETRIES}
        is_turned, is_rougher = (
            (planes, h) in known and (h, w) not in known,
            least < best.smooth[name] - SMOOTHER,
        )
        found = {
            f"{planes} x {h} is the size of a camera: (h, w, planes), where (planes, h, w) is "
            "expected": is_turned,
            f"neighbouring {name} resemble one another less ({least:.2f}, not "
            f"{best.smooth[name]:.2f})": is_rougher,
            f"neighbouring {name} do not resemble one another": self.score < 0.3,
            "a single plane": planes == 1,
            f"{100 * rate:.0f} % of the pixels fire in each plane": not 0.001 < rate < 0.98,
        }
        return [text for text, is_so in found.items() if is_so]


class Ranking:
    """The ways to read a file, the smoothest image first, and whether the first is without doubt.

    picture: height and width of a frame of the same view, or None.
    """

    def __init__(self, command: argparse.Namespace, picture: tuple[int, int] | None) -> None:
        path = command.file
        given = given_geometry(path, command)
        self.picture, self.others = picture, []
        if given is not None:
            self.shown = [Candidate(path, given)]
            self.is_given = True
            return
        self.is_given = False
        geometries = known_geometries(path, command)
        if picture is not None:
            geometries = [g for g in geometries if has_shape((g.height, g.width), picture)]
        if all(geometry.layout == "raster" for geometry in geometries):
            geometries += self._derived(command, geometries)
        if not geometries:
            raise self._nothing_fits(path)
        self.shown = sorted((Candidate(path, g) for g in geometries), key=lambda one: -one.score)

    @property
    def is_clear(self) -> bool:
        """Whether one size is given, or is by far the smoothest and nothing speaks against it."""
        best, *others = self.shown
        leads = not others or best.score > others[0].score + SMOOTHER
        return self.is_given or (leads and not best.doubts(best))

    def print_verdict(self) -> None:
        """Print which size it is, or between which ones it is not clear; and which were tried."""
        best, *others = self.shown
        if self.is_given:
            return
        if self.is_clear:
            print(f"  most likely {best.name}: neighbouring pixels resemble one another")
        else:
            near = [one.name for one in others if one.score >= best.score - SMOOTHER]
            if best.doubts(best):
                said = "none of them gives an image without doubt"
            else:
                said = f"it may be {' or '.join([best.name, *near])}"
            do = "--size H W" if self.picture else "--size H W, or --picture FRAME for its shape"
            print(f"  the size is not clear: {said}; give {do}")
        print(f"  tried: {self.tried()}")
        if self.others:
            names = [f"{h} x {w}" for h, w in self.others[:NAMED]]
            more = len(self.others) - len(names)
            print(f"  fit too: {', '.join(names)}{f' and {more} more' if more else ''}")

    def tried(self) -> str:
        """Return in words which sizes were tried."""
        if self.picture is None:
            return f"the known cameras; {TRIED}"
        height, width = self.picture
        return (
            f"the sizes of the shape of the picture, {height} x {width}; {TRIED.split(', not')[0]}"
        )

    def _derived(
        self, command: argparse.Namespace, known: Sequence[SpikeGeometry]
    ) -> list[SpikeGeometry]:
        """Return the smoothest sizes that follow from the length of the file, but no known ones."""
        path, flip = command.file, is_flipped(command.file, command)
        with open(path, "rb") as file:
            formats.refuse_header(file.read(64), path)
        if command.head_columns or not path.stat().st_size:
            return []
        named = {(g.height, g.width + g.head_columns) for g in known}
        sizes = [s for s in sizes_that_fit(path.stat().st_size, self.picture) if s not in named]
        ranked = smoothest_first(path, sizes, command.bit_order)
        self.others = ranked[LISTED:]
        return [SpikeGeometry(h, w, flip, 0, command.bit_order) for h, w in ranked[:LISTED]]

    def _nothing_fits(self, path: Path) -> DataError:
        if self.picture is None:
            return no_geometry(path)
        return DataError(
            what=f"no size of the picture's shape fits {path.stat().st_size} bytes",
            where=str(path),
            expected=f"whole planes; tried: {self.tried()}",
            do="give --size H W; leave --picture out if the cameras have different views",
        )


def info(command: argparse.Namespace) -> None:
    path, shape = command.file, formats.array_shape(command.file)
    grey = None
    if command.picture:
        grey = simulate.to_grey(read_bgr(str(command.picture))[..., ::-1]) / 255.0
    ranking = Ranking(command, None if grey is None else grey.shape)
    best = ranking.shown[0]
    print(
        f"{path}: {path.stat().st_size} bytes, {f'an array {shape}' if shape else 'packed planes'}"
    )
    print("  smoothness  height x width  planes  spikes per plane and pixel")
    for one in ranking.shown:
        pixels = f"{one.rates.min():.3f} to {one.rates.max():.3f}"
        print(
            f"  {one.score:10.3f}  {one.name:>14}  {one.file.planes:6}  {one.rates.mean():.4f} "
            f"(pixels {pixels})"
        )
        for text in one.doubts(best):
            print(f"  {'':10}  {'':>14}  {'':6}  against it: {text}")
    ranking.print_verdict()
    if not ranking.is_clear:
        return
    if not shape and best.file.geometry.layout == "raster":
        # A wrong order of the bits mirrors each group of 8 pixels: the rows are less smooth.
        ways = [Candidate(path, replace(best.file.geometry, bit_order=order)) for order in BITS]
        little, big = (one.smooth["columns"] for one in ways)
        order = "little" if little >= big else "big"
        is_clear = abs(little - big) >= CLEAR_ORDER
        said = f"bit order {order}: {BITS[order]}" if is_clear else "the bit order cannot be judged"
        print(f"  {said} (smoothness along rows: little {little:.3f}, big {big:.3f})")
    pixels, times = np.nonzero(best.spikes.reshape(len(best.spikes), -1).T)
    intervals = np.diff(times)[np.diff(pixels) == 0]
    if intervals.size:
        print(
            f"  planes between spikes: {intervals.min()} to {intervals.max()}, median "
            f"{np.median(intervals):.0f}"
        )
    if grey is not None:
        check_same_view(grey.shape, best.rates.shape, str(command.picture))
        grey = cv2.resize(grey, best.rates.shape[::-1], interpolation=cv2.INTER_AREA)
        upright, flipped = (correlation(grey, rates) for rates in (best.rates, best.rates[::-1]))
        fit = simulate.fit_light(best.rates, grey)
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
    elif not shape:
        print("  only the image shows whether rows are flipped: spike_tool.py view, or --picture")


class Rendering:
    """How the spikes of a file become grey values: a representation, the rate at full light, the
    light they integrate.

    By --method and method.key=value, as in main_test_vrt.py. Without a known rate, bright pixels
    are white.
    last: the last plane of the file with an image; one that lies half a plane later needs the next
    plane.
    """

    def __init__(self, command: argparse.Namespace, **method: object) -> None:
        """method: in place of --method, which the command lacks."""
        from data.reconstruct import (
            method_options,  # imports torch, which --help and info do not need
        )

        table = {"method": method or {"type": command.method}}
        for override in command.overrides:
            apply_override(table, override, Sources("the command line"))
        self.options, about = method_options(table["method"]), nearest_info(command.file)
        self.name = self.options.pop("type")
        found = (
            Candidate(command.file, geometry) for geometry in geometries(command.file, command)
        )
        best = max(found, key=lambda one: one.score)
        white, gamma = max(float(np.percentile(best.rates, 99.5)), 1e-6), simulate.DISPLAY_GAMMA
        light = command.light or about.light or "linear"
        self.how: dict[str, Any] = {
            "rate": command.rate or about.rate or white,
            "light": light,
            "gamma": gamma,
            **self.options,
        }
        self.file, self.size = best.file, "{} x {}".format(*best.file.size)
        self.last = self.file.planes - 1 - int(REPRESENTATIONS[self.name].lag(**self.options) > 0)
        self.label = ", ".join(
            [self.name, *(f"{key} {value:g}" for key, value in self.options.items())]
        )

    def images(self, centers: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For rising centers: the center, its plane (h, w) in {0, 1}, and the image (h, w) uint8
        around it.

        The file is read once, from its first to its last plane needed.
        """
        half = self.options.get("half_window", HISTORY)
        first, stop = max(centers[0] - half, 0), min(centers[-1] + half + 1, self.file.planes)
        parts = self.file.parts(first, stop - first)
        held = np.empty((0, *self.file.size), np.uint8)
        for center in centers:
            low, end = max(center - half, 0), min(center + half + 1, stop)
            while first + len(held) < end:
                gone = min(max(low - first, 0), len(held))
                held = np.concatenate((held[gone:], next(parts)))
                first += gone
            try:
                values = represent(
                    self.name, held[low - first : end - first], center - low, **self.how
                )
            except ValueError as e:
                what, expected = f"no {self.name} of these planes: {e}", "planes on both sides"
                raise DataError(what, self.file.path, expected, "choose others") from e
            yield center, held[center - first], simulate.to_uint8(values[0])


def view(command: argparse.Namespace) -> None:
    """The middle of the file as read and flipped, to see which one is upright."""
    rendering = Rendering(command, type="tfp", half_window=32)
    _, _, image = next(rendering.images([rendering.file.planes // 2]))
    imwrite_rgb(command.out, panels({"as read": image, "flipped": image[::-1]}))
    print(f"{command.out}: {rendering.size}, left as read, right flipped; the upright one is right")


def recon(command: argparse.Namespace) -> None:
    """Images of a method at the chosen planes."""
    rendering, suffix = Rendering(command), command.out.suffix.lower()
    planes, name = sorted(set(command.planes or [rendering.file.planes // 2])), rendering.name
    if outside := [plane for plane in planes if not 0 <= plane <= rendering.last]:
        what = f"no {name} at plane {', '.join(map(str, outside))}"
        raise OptionError(what, "--planes", f"0 to {rendering.last}", "correct them")
    images = tracked(rendering.images(planes), len(planes), name, "planes")
    if suffix in VIDEO_SUFFIXES:
        with VideoWriter(command.out, command.fps) as video:
            for plane, _, image in images:
                video.write(panels({f"{name}  {moment(plane, command.tick_hz)}": image}))
    elif suffix and len(planes) > 1:
        imwrite_rgb(
            command.out,
            panels({moment(plane, command.tick_hz): image for plane, _, image in images}),
        )
    else:
        scratch = (
            None
            if suffix
            else scratch_folder(command.out.with_name(f".{command.out.name}.partial"))
        )
        for plane, _, image in images:
            path = scratch / f"{plane:06d}.png" if scratch else command.out
            imwrite_rgb(path, cv2.cvtColor(image, cv2.COLOR_GRAY2RGB))
        if scratch:
            publish_folder(scratch, command.out)
    print(f"{command.out}: {rendering.label} at {len(planes)} planes of {rendering.size}")


def play(command: argparse.Namespace) -> None:
    """A video of single planes, white where a pixel fired, beside the reconstruction at the same
    plane.
    """
    rendering = Rendering(command)
    last, label = rendering.last, rendering.label
    stop = last + 1 if command.count is None else min(command.first + command.count, last + 1)
    if not 0 <= command.first < stop or (command.step or 1) < 1:
        what, expected = (
            f"planes {command.first} to {stop - 1}",
            f"planes within 0 to {last}, a step of at least 1",
        )
        raise OptionError(what, "--first, --count, --step", expected, "correct them")
    step = command.step or -(-(stop - command.first) // LONGEST)
    centers = range(command.first, stop, step)
    with VideoWriter(command.out, command.fps) as video:
        for center, plane, image in tracked(
            rendering.images(centers), len(centers), "video", "frames"
        ):
            video.write(
                panels({f"spikes  {moment(center, command.tick_hz)}": 255 * plane, label: image})
            )
    slow = f", {command.tick_hz / (step * command.fps):.4g} x slower" if command.tick_hz else ""
    print(
        f"{command.out}: {len(centers)} video frames of {rendering.size}, planes {centers[0]} to "
        f"{centers[-1]}, {step} plane{'s' if step > 1 else ''} per video frame{slow}; right: "
        f"{label}"
    )


def moment(plane: int, tick_hz: float | None) -> str:
    return f"plane {plane}" + (f"  {1e3 * plane / tick_hz:.2f} ms" if tick_hz else "")


def panels(images: dict[str, np.ndarray]) -> np.ndarray:
    """Grey images (h, w) uint8 side by side under their names, enlarged where small: (H, W, 3)
    uint8.
    """
    height, width = next(iter(images.values())).shape
    factor = max(1, LEAST_HEIGHT // height)
    shown = {name: cv2.cvtColor(image, cv2.COLOR_GRAY2RGB) for name, image in images.items()}
    return comparison_strip(shown, (factor * height, factor * width))


def convert(command: argparse.Namespace) -> None:
    stored = the_geometry(command.file, command)
    found = Candidate(command.file, stored)
    count = found.file.planes - command.first if command.count is None else command.count
    made = SpikeGeometry(
        stored.height, stored.width, not command.out_no_flip, bit_order=command.out_bit_order
    )
    taken = (
        "" if command.size else " (no --size: from dataset.json, or the only known size that fits)"
    )
    is_array = formats.is_array(command.file)
    form = f"{stored.height} x {stored.width}, an array" if is_array else in_words(stored) + taken
    print(f"{command.file}: {found.file.planes} planes of {form}")
    for text in found.doubts(found):
        print(f"  warning: {text}")
    parts = tracked(found.file.parts(command.first, count), count, "converting", "planes", len)
    formats.write_spikes(command.out, parts, made)
    form = (
        f"{made.height} x {made.width}, an array of uint8"
        if formats.is_array(command.out)
        else in_words(made)
    )
    print(f"{command.out}: {count} planes of {form}")


def simulate_stream(command: argparse.Namespace) -> None:
    if not 0 < command.rate <= 1:
        raise OptionError(
            f"--rate is {command.rate}", "--rate", "above 0, at most 1 spike a plane", "correct it"
        )
    if command.planes_per_frame < 1 or command.ratio < 1:
        raise OptionError(
            "--planes-per-frame and --ratio", "command line", "at least 1", "correct them"
        )
    frames = FrameSource(command.input)
    height, width = (side // command.ratio for side in frames.size)
    if height * width % 8:
        what, expected = (
            f"spike planes of {height} x {width} do not fill whole bytes",
            "pixels divisible by 8",
        )
        raise DataError(
            what, str(command.input), expected, "choose another --ratio, or crop the input"
        )
    light = LightPath(
        grey_light(frames, (height, width), command.gamma), len(frames), command.method
    )
    sensor = simulate.IntegrateAndFire(
        height, width, rate=command.rate, rng=np.random.default_rng(command.seed),
        shot_noise=command.shot_noise,
        dark_rate=command.dark_rate, threshold_mismatch=command.threshold_mismatch,
    )  # fmt: skip
    count = len(frames) * command.planes_per_frame
    times = (
        p / command.planes_per_frame for p in tracked(range(count), count, "simulating", "planes")
    )
    formats.write_spikes(
        command.out, (sensor.step(light.at(t))[None] for t in times), SpikeGeometry(height, width)
    )
    print(f"{command.out}: {count} planes of {height} x {width}, rate {command.rate}")


if __name__ == "__main__":
    sys.exit(main())

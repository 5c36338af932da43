#!/usr/bin/env python3
"""Inspect spike files, and make them from images or video.

info FILE                  the geometries that fit the file, the smoothness of the image each gives, firing rates;
                           with --picture, the frame of that time: the rate, and which light the spikes integrate
view FILE --out a.png      the mean image as read and flipped, side by side; --out a.mp4: a video preview
simulate INPUT OUT.dat     a folder of images, an image or a video -> one .dat
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np
from tqdm import tqdm

from data.frame_io import read_bgr
from data.pictures import Pictures, check_same_view
from data.raw_video import LightPath
from data.spike.formats import candidate_geometries, count_planes, read_spikes, write_spikes
from data.spike.light import fit_light
from data.spike.simulate import IntegrateAndFire, to_display, to_grey
from data.spike.stream import SpikeGeometry
from data.spike_info import nearest_info
from data.spike_source import spike_errors_as_data_errors
from scripts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import refuse_existing
from utils.image import imwrite_rgb
from utils.video import VideoWriter

SHOWN_PLANES = 64  # planes in the middle of the file that `info` and `view` average


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    with spike_errors_as_data_errors():
        if "out" in command:
            refuse_existing(command.out, "the output")
        {"info": info, "view": view, "simulate": simulate}[command.action](command)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("info", "view"):
        action = actions.add_parser(name)
        action.add_argument("file", type=Path)
        action.add_argument(
            "--size", type=int, nargs=2, metavar=("H", "W"), help="default: dataset.json, else what fits the file size"
        )
        action.add_argument("--head-columns", type=int, default=0)
        action.add_argument(
            "--no-flip",
            action="store_true",
            help="rows are stored top first (default: dataset.json, else bottom first)",
        )
        if name == "info":
            action.add_argument("--picture", type=Path, help="the frame of the time in the middle of FILE")
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
    """The geometry of --size, else of dataset.json, else all known ones that fit. Raises DataError if none fits."""
    about = nearest_info(command.file)
    flip = not command.no_flip and about.flip is not False
    if command.size:
        return [SpikeGeometry(*command.size, flip, command.head_columns)]
    if about.h and about.w:
        return [SpikeGeometry(about.h, about.w, flip, command.head_columns)]
    try:
        size = command.file.stat().st_size
    except OSError as e:
        raise DataError(f"cannot read: {e.strerror}", str(command.file), "a .dat file", "correct the path") from e
    found = [SpikeGeometry(h, w, flip, head) for h, w, head, _ in candidate_geometries(size)]
    if not found:
        raise DataError(
            f"no known geometry fits {size} bytes",
            str(command.file),
            "whole planes of h x w / 8 bytes",
            "give --size H W",
        )
    return found


def middle(path: Path, geometry: SpikeGeometry) -> np.ndarray:
    """The planes around the middle of the file: (at most SHOWN_PLANES, h, w)."""
    planes = count_planes(path, geometry)
    count = min(planes, SHOWN_PLANES)
    return read_spikes(path, geometry, (planes - count) // 2, count)


def smoothness(picture: np.ndarray) -> float:
    """Correlation of neighbouring pixels, the lower one of both directions; it is lower for a wrong geometry."""
    pairs = ((picture[:, 1:], picture[:, :-1]), (picture[1:], picture[:-1]))
    if picture.std() == 0 or min(picture.shape) < 3:
        return 0.0
    return min(float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) for a, b in pairs)


def info(command: argparse.Namespace) -> None:
    rows = []
    for geometry in geometries(command):
        spikes = middle(command.file, geometry)
        rows.append((smoothness(spikes.mean(axis=0)), geometry, count_planes(command.file, geometry), spikes))
    rows.sort(key=lambda row: -row[0])
    print(f"{command.file}: {command.file.stat().st_size} bytes")
    print("  smoothness  height x width  planes  spikes per plane and pixel")
    for score, geometry, planes, spikes in rows:
        size = f"{geometry.height} x {geometry.width}" + (
            f" + {geometry.head_columns}" if geometry.head_columns else ""
        )
        print(f"  {score:10.3f}  {size:>14}  {planes:6}  {spikes.mean():.4f} (pixels {_range(spikes.mean(axis=0))})")
    if len(rows) > 1 and rows[0][0] > rows[1][0] + 0.05:
        print(f"  most likely {rows[0][1].height} x {rows[0][1].width}: neighbouring pixels resemble one another")
    intervals = np.concatenate([np.diff(np.flatnonzero(pixel)) for pixel in rows[0][3].reshape(len(rows[0][3]), -1).T])
    if intervals.size:
        print(f"  planes between spikes: {_range(intervals, '.0f')}, median {np.median(intervals):.0f}")
    if command.picture:
        print(describe_light(rows[0][3].mean(axis=0), command.picture))
    print("  only the image shows whether rows are flipped: spike_tool.py view")


def describe_light(rates: np.ndarray, picture: Path) -> str:
    """One line on `light` and `rate` of the spikes, from their mean (h, w) and a frame of the same field of view."""
    grey = to_grey(read_bgr(str(picture))[..., ::-1]) / 255.0
    check_same_view(grey.shape, rates.shape, str(picture))
    fit = fit_light(rates, cv2.resize(grey, rates.shape[::-1], interpolation=cv2.INTER_AREA))
    errors = ", ".join(f"{light} {100 * error:.0f} %" for light, error in fit.errors.items())
    if not fit.is_clear:
        return f"  the picture does not show which light the spikes integrate (error of the fits: {errors})"
    return f'  for dataset.json: "light": "{fit.light}", "rate": {fit.rate:.3f} (error of the fits: {errors})'


def _range(values: np.ndarray, form: str = ".3f") -> str:
    return f"{values.min():{form}} to {values.max():{form}}"


def view(command: argparse.Namespace) -> None:
    found = geometries(command)
    geometry = max(found, key=lambda g: smoothness(middle(command.file, g).mean(axis=0)))
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
    planes = count_planes(command.file, geometry)
    half = command.window // 2
    scale = rate or max(float(middle(command.file, geometry).mean(axis=0).max()), 1e-6)
    with VideoWriter(command.out, fps=25) as video:
        for center in range(half, max(planes - half, half + 1), max(half, 1)):
            first = max(center - half, 0)
            spikes = read_spikes(command.file, geometry, first, min(command.window, planes - first))
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

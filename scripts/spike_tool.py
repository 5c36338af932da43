#!/usr/bin/env python3
"""Inspect spike files, look at them, and make them from images or video.

info FILE                  what the file most likely is: the geometries that fit it, ranked by the smoothness of the
                           image each gives, what speaks against each, the bit order, firing rates; with --picture,
                           the frame of that time: the rate, which light the spikes integrate, the order of rows
view FILE                  flipped or not? the mean image as read and flipped, side by side
play FILE                  a video: the single planes beside their reconstruction
recon FILE --planes 100 200
                           the reconstruction (--method tfp, tfi or tfstp) at these planes: a picture, folder or video
convert FILE OUT           to the format of OUT's suffix (.dat, .bin, .npy, .npz), part by part
simulate INPUT OUT.dat     a folder of images, an image or a video -> one .dat

    python scripts/spike_tool.py play capture.dat --size 250 400 --tick-hz 20000 --out capture.mp4
    python scripts/spike_tool.py recon capture.dat --planes 150 --out plane150.png method.half_window=5
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from data.files import FrameSource
from data.prepare import LightPath
from data.spike.formats import FORMATS, SpikeGeometry, is_array, open_spikes, write_spikes
from data.spike.simulate import IntegrateAndFire
from data.spike_info import spike_errors_as_data_errors
from scripts.parts import spike_views
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.shown import tracked
from scripts.parts.spike_guess import add_geometry, candidate, in_words, info, the_geometry
from utils.errors import DataError, OptionError
from utils.files import refuse_existing

VIEWS = {"view": spike_views.view, "recon": spike_views.recon, "play": spike_views.play}


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    with spike_errors_as_data_errors():
        if "out" in command:
            suffix = spike_views.SUFFIXES.get(command.action)
            command.out = command.out or Path(f"{command.file.stem}_{command.action}{suffix}")
            refuse_existing(command.out, "the output")
        {"info": info, **VIEWS, "convert": convert, "simulate": simulate}[command.action](command)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("info", *VIEWS, "convert"):
        action = actions.add_parser(name)
        action.add_argument("file", type=Path)
        add_geometry(action)
        if name == "info":
            action.add_argument("--picture", type=Path, help="the frame of the time in the middle of FILE")
        if name in VIEWS:
            spike_views.add_arguments(action, name)
        if name == "convert":
            action.add_argument("out", type=Path)
            action.add_argument("--first", type=int, default=0, help="plane")
            action.add_argument("--count", type=int, help="planes; default: to the end")
            action.add_argument("--out-no-flip", action="store_true", help="store rows top first")
            action.add_argument("--out-bit-order", choices=("little", "big"), default="little")
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
    # argparse cannot take the overrides method.key=value after a file and options.
    command, command.overrides = parser.parse_known_args(arguments)
    can_override = command.action in ("recon", "play")
    if wrong := [word for word in command.overrides if not can_override or not word.startswith("method.")]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    return command


def convert(command: argparse.Namespace) -> None:
    if command.out.suffix.lower() not in FORMATS:
        raise OptionError(
            f"the suffix of the output is {command.out.suffix!r}", str(command.out), ", ".join(FORMATS), "choose one"
        )
    stored = the_geometry(command.file, command)
    file = open_spikes(command.file, stored)
    count = file.planes - command.first if command.count is None else command.count
    made = SpikeGeometry(stored.height, stored.width, not command.out_no_flip, bit_order=command.out_bit_order)
    if is_array(command.file):
        print(f"{command.file}: {file.planes} planes of {stored.height} x {stored.width}, an array")
    else:
        taken = "" if command.size else " (no --size: from dataset.json, or the only known size that fits)"
        print(f"{command.file}: {file.planes} planes of {in_words(stored)}{taken}")
    found = candidate(command.file, stored)
    for text in found.doubts(found):
        print(f"  warning: {text}")
    parts = tracked(file.parts(command.first, count), count, "converting", "planes", len)
    write_spikes(command.out, parts, made)
    array = f"{made.height} x {made.width}, an array of uint8, row 0 at the top"
    form = array if is_array(command.out) else in_words(made)
    print(f"{command.out}: {count} planes of {form}")


def simulate(command: argparse.Namespace) -> None:
    if not 0 < command.rate <= 1:
        what = "above 0, at most 1: a pixel fires once per plane at most"
        raise OptionError(f"--rate is {command.rate}", "--rate", what, "correct it")
    if command.planes_per_frame < 1 or command.ratio < 1:
        raise OptionError("--planes-per-frame and --ratio", "command line", "at least 1", "correct them")
    frames = FrameSource(command.input)
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
    times = (p / command.planes_per_frame for p in tracked(range(count), count, "simulating", "planes"))
    write_spikes(command.out, sensor.run_parts(light.at(time) for time in times), SpikeGeometry(height, width))
    print(f"{command.out}: {count} planes of {height} x {width}, rate {command.rate}")


if __name__ == "__main__":
    sys.exit(main())

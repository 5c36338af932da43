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

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from data.files import FrameSource
from data.moving import LightPath, grey_light
from data.spike.formats import FORMATS, SpikeGeometry, is_array, open_spikes, write_spikes
from data.spike.represent import REPRESENTATIONS, represent
from data.spike.simulate import DISPLAY_GAMMA, IntegrateAndFire, to_uint8
from data.spike_info import nearest_info, spike_errors_as_data_errors
from scripts.parts.exit_codes import tracked, with_exit_code
from scripts.parts.spike_guess import Candidate, add_geometry, candidates, in_words, info, the_geometry
from utils.errors import DataError, OptionError
from utils.files import publish_folder, refuse_existing, scratch_folder
from utils.image import IMAGE_SUFFIXES, comparison_strip, imwrite_rgb
from utils.options.load import Sources, apply_override
from utils.video import VIDEO_SUFFIXES, VideoWriter

GREY_METHODS = ("tfp", "tfi", "tfstp")  # of data/reconstruct.py
LEAST_HEIGHT = 320  # smaller images are enlarged by repetition, to see single pixels
HISTORY = 128  # planes on either side that a method without a window gets
LONGEST = 500  # video frames of `play`, unless --step says otherwise
VIEW = {"type": "tfp", "half_window": 32}  # the method of `view`
SUFFIXES = {"view": ".png", "recon": ".png", "play": ".mp4"}  # of the file that a command writes by default
ALLOWED = {"recon": ("", *IMAGE_SUFFIXES, *VIDEO_SUFFIXES), "play": VIDEO_SUFFIXES, "convert": FORMATS}
RECON = """one plane: the image; several: .png shows them side by side, a folder gets one .png each, .mp4 a video frame
each"""


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    action = command.action
    with spike_errors_as_data_errors():
        if "out" in command:
            command.out = command.out or Path(f"{command.file.stem}_{action}{SUFFIXES[action]}")
            refuse_existing(command.out, "the output")
            suffix = command.out.suffix.lower()
            if suffix not in ALLOWED.get(action, (suffix,)):
                expected = ", ".join(filter(None, ALLOWED[action])) + ", or a folder" * (action == "recon")
                do = "choose one, or use spike_tool.py recon for images" if action == "play" else "choose one of them"
                raise OptionError(f"the suffix of the output is {suffix!r}", str(command.out), expected, do)
        actions = {"info": info, "view": view, "recon": recon, "play": play, "convert": convert, "simulate": simulate}
        actions[action](command)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    add = {}
    for name in ("info", *SUFFIXES, "convert", "simulate"):
        action = actions.add_parser(name)
        add[name] = action.add_argument
        if name != "simulate":
            action.add_argument("file", type=Path)
            add_geometry(action)
    add["info"]("--picture", type=Path, help="the frame of the time in the middle of FILE")
    for name, output in {"view": "image", "recon": RECON, "play": ".mp4"}.items():
        text = f"{output}; default: FILE's name with _{name}{SUFFIXES[name]}, in this folder"
        add[name]("--out", type=Path, help=text)
        text = "spikes per plane at full light; default: dataset.json, else bright pixels are white"
        add[name]("--rate", type=float, help=text)
        text = "what the sensor integrates; default: dataset.json, else linear"
        add[name]("--light", choices=("linear", "display"), help=text)
    for name in ("recon", "play"):
        text = f"as in main_test_vrt.py --method; tfstp sees the last {HISTORY} planes; default %(default)s"
        add[name]("--method", choices=GREY_METHODS, default="tfp", help=text)
        add[name]("--tick-hz", type=float, help="planes per second, to show the time")
        add[name]("--fps", type=float, default=25.0, help="video frames per second; default %(default)g")
    text = "the first is 0; default: the one in the middle"
    add["recon"]("--planes", type=int, nargs="+", metavar="N", help=text)
    for name in ("play", "convert"):
        add[name]("--first", type=int, default=0, help="plane")
        add[name]("--count", type=int, help="planes; default: to the end")
    text = f"planes per video frame; default: 1, or more for at most {LONGEST} video frames"
    add["play"]("--step", type=int, help=text)
    add["convert"]("out", type=Path)
    add["convert"]("--out-no-flip", action="store_true", help="store rows top first")
    add["convert"]("--out-bit-order", choices=("little", "big"), default="little")
    make = add["simulate"]
    make("input", type=Path)
    make("out", type=Path)
    make("--planes-per-frame", type=int, default=8)
    make("--ratio", type=int, default=1, help="pixels of the input per spike pixel, each way")
    make("--method", choices=("flow", "linear"), default="flow", help="between the frames")
    make("--rate", type=float, default=0.5)
    make("--gamma", type=float, default=2.2, help="of the input; 1: integrate the display values")
    make("--shot-noise", type=float, default=0.0)
    make("--dark-rate", type=float, default=0.0)
    make("--threshold-mismatch", type=float, default=0.0)
    make("--seed", type=int, default=0)
    # argparse cannot take the overrides method.key=value after a file and options.
    command, command.overrides = parser.parse_known_args(arguments)
    can_override = command.action in ("recon", "play")
    if wrong := [word for word in command.overrides if not can_override or not word.startswith("method.")]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    return command


class Rendering:
    """How the spikes of a file become grey values: a representation, the rate at full light, the light they integrate.

    By --method and method.key=value, as in main_test_vrt.py. Without a known rate, bright pixels are white.
    last: the last plane of the file with an image; one that lies half a plane later needs the next plane.
    """

    def __init__(self, command: argparse.Namespace) -> None:
        from data.reconstruct import method_options  # imports torch, which --help and info do not need

        table: dict[str, Any] = {"method": VIEW if command.action == "view" else {"type": command.method}}
        for override in command.overrides:
            apply_override(table, override, Sources("the command line"))
        self.options, about = method_options(table["method"]), nearest_info(command.file)
        self.name = self.options.pop("type")
        best, *_ = candidates(command.file, command)
        white = max(float(np.percentile(best.rates, 99.5)), 1e-6)
        light = command.light or about.light or "linear"
        self.how = {"rate": command.rate or about.rate or white, "light": light, "gamma": DISPLAY_GAMMA, **self.options}
        self.file = best.file
        self.last = self.file.planes - 1 - int(REPRESENTATIONS[self.name].lag(**self.options) > 0)
        self.label = ", ".join([self.name, *(f"{key} {value:g}" for key, value in self.options.items())])

    def images(self, centers: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For rising centers: the center, its plane (h, w) in {0, 1}, and the image (h, w) uint8 around it.

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
                values = represent(self.name, held[low - first : end - first], center - low, **self.how)
            except ValueError as e:
                what, expected = f"no {self.name} of these planes: {e}", "planes on both sides"
                raise DataError(what, self.file.path, expected, "choose others") from e
            yield center, held[center - first], to_uint8(values[0])


def view(command: argparse.Namespace) -> None:
    """The middle of the file as read and flipped, to see which one is upright."""
    rendering = Rendering(command)
    _, _, image = next(rendering.images([rendering.file.planes // 2]))
    imwrite_rgb(command.out, panels({"as read": image, "flipped": image[::-1]}))
    height, width = rendering.file.size
    print(f"{command.out}: {height} x {width}, left as read, right flipped; the upright one is right")


def recon(command: argparse.Namespace) -> None:
    """Images of a method at the chosen planes."""
    rendering, suffix = Rendering(command), command.out.suffix.lower()
    file, name = rendering.file, rendering.name
    planes = sorted(set(command.planes or [file.planes // 2]))
    if outside := [plane for plane in planes if not 0 <= plane <= rendering.last]:
        what = f"no {name} at plane {', '.join(map(str, outside))}"
        raise OptionError(what, "--planes", f"0 to {rendering.last}", "correct them")
    images = tracked(rendering.images(planes), len(planes), name, "planes")
    if suffix in VIDEO_SUFFIXES:
        with VideoWriter(command.out, command.fps) as video:
            for plane, _, image in images:
                video.write(panels({f"{name}  {moment(plane, command.tick_hz)}": image}))
    elif suffix and len(planes) > 1:
        imwrite_rgb(command.out, panels({moment(plane, command.tick_hz): image for plane, _, image in images}))
    else:
        scratch = None if suffix else scratch_folder(command.out.with_name(f".{command.out.name}.partial"))
        for plane, _, image in images:
            path = scratch / f"{plane:06d}.png" if scratch else command.out
            imwrite_rgb(path, np.repeat(image[..., None], 3, axis=2))
        if scratch:
            publish_folder(scratch, command.out)
    print(f"{command.out}: {rendering.label} at {len(planes)} planes of {file.size[0]} x {file.size[1]}")


def play(command: argparse.Namespace) -> None:
    """A video of single planes, white where a pixel fired, beside the reconstruction at the same plane."""
    rendering = Rendering(command)
    last, label, size = rendering.last, rendering.label, "{} x {}".format(*rendering.file.size)
    stop = last + 1 if command.count is None else min(command.first + command.count, last + 1)
    if not 0 <= command.first < stop or (command.step or 1) < 1:
        what, expected = f"planes {command.first} to {stop - 1}", f"planes within 0 to {last}, a step of at least 1"
        raise OptionError(what, "--first, --count, --step", expected, "correct them")
    step = command.step or -(-(stop - command.first) // LONGEST)
    centers = range(command.first, stop, step)
    with VideoWriter(command.out, command.fps) as video:
        for center, plane, image in tracked(rendering.images(centers), len(centers), "video", "frames"):
            video.write(panels({f"spikes  {moment(center, command.tick_hz)}": 255 * plane, label: image}))
    slow = f", {command.tick_hz / (step * command.fps):.4g} x slower" if command.tick_hz else ""
    print(
        f"{command.out}: {len(centers)} video frames of {size}, planes {centers[0]} to {centers[-1]}, "
        f"{step} plane{'s' if step > 1 else ''} per video frame{slow}; right: {label}"
    )


def moment(plane: int, tick_hz: float | None) -> str:
    return f"plane {plane}" + (f"  {1e3 * plane / tick_hz:.2f} ms" if tick_hz else "")


def panels(images: dict[str, np.ndarray]) -> np.ndarray:
    """Grey images (h, w) uint8 side by side under their names, enlarged where small: (H, W, 3) uint8."""
    height, width = next(iter(images.values())).shape
    factor = max(1, LEAST_HEIGHT // height)
    shown = {name: np.repeat(image[..., None], 3, axis=2) for name, image in images.items()}
    return comparison_strip(shown, (factor * height, factor * width))


def convert(command: argparse.Namespace) -> None:
    stored = the_geometry(command.file, command)
    file = open_spikes(command.file, stored)
    count = file.planes - command.first if command.count is None else command.count
    made = SpikeGeometry(stored.height, stored.width, not command.out_no_flip, bit_order=command.out_bit_order)
    if is_array(command.file):
        print(f"{command.file}: {file.planes} planes of {stored.height} x {stored.width}, an array")
    else:
        taken = "" if command.size else " (no --size: from dataset.json, or the only known size that fits)"
        print(f"{command.file}: {file.planes} planes of {in_words(stored)}{taken}")
    found = Candidate(command.file, stored)
    for text in found.doubts(found):
        print(f"  warning: {text}")
    parts = tracked(file.parts(command.first, count), count, "converting", "planes", len)
    write_spikes(command.out, parts, made)
    form = f"{made.height} x {made.width}, an array of uint8" if is_array(command.out) else in_words(made)
    print(f"{command.out}: {count} planes of {form}")


def simulate(command: argparse.Namespace) -> None:
    if not 0 < command.rate <= 1:
        raise OptionError(f"--rate is {command.rate}", "--rate", "above 0, at most 1 spike a plane", "correct it")
    if command.planes_per_frame < 1 or command.ratio < 1:
        raise OptionError("--planes-per-frame and --ratio", "command line", "at least 1", "correct them")
    frames = FrameSource(command.input)
    height, width = (side // command.ratio for side in frames.size)
    if height * width % 8:
        what, expected = f"spike planes of {height} x {width} do not fill whole bytes", "pixels divisible by 8"
        raise DataError(what, str(command.input), expected, "choose another --ratio, or crop the input")
    light = LightPath(grey_light(frames, (height, width), command.gamma), len(frames), command.method)
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

"""spike_tool.py view, recon and play: images and videos of a spike file, of which a part is in memory at a time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.spike.formats import SpikeFile, open_spikes
from data.spike.represent import REPRESENTATIONS, represent
from data.spike.simulate import DISPLAY_GAMMA, to_uint8
from data.spike_info import nearest_info
from scripts.parts.shown import tracked
from scripts.parts.spike_guess import best_geometry, middle
from utils.errors import DataError, OptionError
from utils.files import publish_folder, scratch_folder
from utils.image import IMAGE_SUFFIXES, imwrite_rgb, side_by_side
from utils.options.load import Sources, apply_override
from utils.video import VIDEO_SUFFIXES, VideoWriter

GREY_METHODS = ("tfp", "tfi", "tfstp")  # of data/reconstruct.py
LEAST_HEIGHT = 320  # smaller images are enlarged by repetition, to see single pixels
HISTORY = 128  # planes on either side that a method without a window gets
LONGEST = 500  # video frames of `play`, unless --step says otherwise
VIEW = {"type": "tfp", "half_window": 32}  # the method of `view`
SUFFIXES = {"view": ".png", "recon": ".png", "play": ".mp4"}  # of the file that a command writes by default


@dataclass(frozen=True)
class Rendering:
    """How spikes become grey values: a representation, the rate at full light, and the light that they integrate.

    last: the last plane of the file with an image; one that lies half a plane later needs the next plane.
    """

    file: SpikeFile
    name: str
    options: dict[str, Any]
    rate: float
    light: str
    last: int

    @classmethod
    def of(cls, command: argparse.Namespace, file: SpikeFile) -> Rendering:
        """By --method and method.key=value, as in main_test_vrt.py. Without a known rate, bright pixels are white."""
        from data.reconstruct import method_options  # imports torch, which --help and info do not need

        table: dict[str, Any] = {"method": VIEW if command.action == "view" else {"type": command.method}}
        for override in command.overrides:
            apply_override(table, override, Sources("the command line"))
        options, about = method_options(table["method"]), nearest_info(command.file)
        rate = command.rate or about.rate
        if rate is None:
            rate = max(float(np.percentile(middle(file).mean(axis=0, dtype=np.float32), 99.5)), 1e-6)
        name = options.pop("type")
        last = file.planes - 1 - int(REPRESENTATIONS[name].lag(**options) > 0)
        return cls(file, name, options, rate, command.light or about.light or "linear", last)

    def images(self, centers: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For rising centers: the center, its plane (h, w) in {0, 1}, and the image (h, w) uint8 around it.

        The file is read once, from its first to its last plane needed.
        """
        half = self.options.get("half_window", HISTORY)
        first, stop = max(centers[0] - half, 0), min(centers[-1] + half + 1, self.file.planes)
        parts = self.file.parts(first, stop - first)
        held = np.empty((0, *self.file.size), np.uint8)
        how = {"rate": self.rate, "light": self.light, "gamma": DISPLAY_GAMMA, **self.options}
        for center in centers:
            low, end = max(center - half, 0), min(center + half + 1, stop)
            while first + len(held) < end:
                gone = min(max(low - first, 0), len(held))
                held = np.concatenate((held[gone:], next(parts)))
                first += gone
            stream = held[low - first : end - first]
            try:
                values = represent(self.name, stream, center - low, **how)
            except ValueError as e:
                raise DataError(
                    f"no {self.name} of these planes: {e}", self.file.path, "planes on both sides", "choose others"
                ) from e
            yield center, stream[center - low], to_uint8(values[0])

    def label(self) -> str:
        return ", ".join([self.name, *(f"{key} {value:g}" for key, value in self.options.items())])


def view(command: argparse.Namespace) -> None:
    """The middle of the file as read and flipped, to see which one is upright."""
    file = open_spikes(command.file, best_geometry(command))
    _, _, image = next(Rendering.of(command, file).images([file.planes // 2]))
    imwrite_rgb(command.out, panels({"as read": image, "flipped": image[::-1]}))
    height, width = file.size
    print(f"{command.out}: {height} x {width}, left as read, right flipped; the upright one is right")


def recon(command: argparse.Namespace) -> None:
    """Images of a method at the chosen planes."""
    suffix = command.out.suffix.lower()
    if suffix not in ("", *IMAGE_SUFFIXES, *VIDEO_SUFFIXES):
        raise OptionError(
            f"the suffix of the output is {suffix!r}", f"--out {command.out}",
            "an image (.png), a video (.mp4), or a folder without a suffix", "choose one of them",
        )  # fmt: skip
    file = open_spikes(command.file, best_geometry(command))
    rendering = Rendering.of(command, file)
    planes = sorted(set(command.planes or [file.planes // 2]))
    if outside := [plane for plane in planes if not 0 <= plane <= rendering.last]:
        raise OptionError(
            f"no {rendering.name} at plane {', '.join(map(str, outside))}", "--planes", f"0 to {rendering.last}",
            "correct them",
        )  # fmt: skip
    images = tracked(rendering.images(planes), len(planes), rendering.name, "planes")
    if not suffix:
        scratch = scratch_folder(command.out.with_name(f".{command.out.name}.partial"))
        for plane, _, image in images:
            imwrite_rgb(scratch / f"{plane:06d}.png", np.repeat(image[..., None], 3, axis=2))
        publish_folder(scratch, command.out)
    elif suffix in VIDEO_SUFFIXES:
        with VideoWriter(command.out, command.fps) as video:
            for plane, _, image in images:
                video.write(panels({f"{rendering.name}  {moment(plane, command.tick_hz)}": image}))
    elif len(planes) == 1:
        imwrite_rgb(command.out, np.repeat(next(images)[2][..., None], 3, axis=2))
    else:
        imwrite_rgb(command.out, panels({moment(plane, command.tick_hz): image for plane, _, image in images}))
    print(f"{command.out}: {rendering.label()} at {len(planes)} planes of {file.size[0]} x {file.size[1]}")


def play(command: argparse.Namespace) -> None:
    """A video of single planes, white where a pixel fired, beside the reconstruction at the same plane."""
    if command.out.suffix.lower() not in VIDEO_SUFFIXES:
        raise OptionError(
            f"the suffix of the output is {command.out.suffix!r}", f"--out {command.out}",
            f"a video: {', '.join(VIDEO_SUFFIXES)}", "choose one, or use spike_tool.py recon for images",
        )  # fmt: skip
    file = open_spikes(command.file, best_geometry(command))
    rendering = Rendering.of(command, file)
    last = rendering.last
    stop = last + 1 if command.count is None else min(command.first + command.count, last + 1)
    if not 0 <= command.first < stop or (command.step or 1) < 1:
        raise OptionError(
            f"planes {command.first} to {stop - 1}, step {command.step or 1}", "--first, --count, --step",
            f"planes within 0 to {last}, and a step of at least 1", "correct them",
        )  # fmt: skip
    step = command.step or -(-(stop - command.first) // LONGEST)
    centers, label = range(command.first, stop, step), rendering.label()
    with VideoWriter(command.out, command.fps) as video:
        for center, plane, image in tracked(rendering.images(centers), len(centers), "video", "frames"):
            video.write(panels({f"spikes  {moment(center, command.tick_hz)}": 255 * plane, label: image}))
    slow = f", {command.tick_hz / (step * command.fps):.4g} x slower" if command.tick_hz else ""
    print(
        f"{command.out}: {len(centers)} video frames of {file.size[0]} x {file.size[1]}, planes {centers[0]} to "
        f"{centers[-1]}, {step} plane{'s' if step > 1 else ''} per video frame{slow}; right: {label}"
    )


def moment(plane: int, tick_hz: float | None) -> str:
    return f"plane {plane}" + (f"  {1e3 * plane / tick_hz:.2f} ms" if tick_hz else "")


def panels(images: dict[str, np.ndarray]) -> np.ndarray:
    """Grey images (h, w) uint8 side by side under their names, enlarged where small: (H, W, 3) uint8."""
    height, width = next(iter(images.values())).shape
    factor = max(1, LEAST_HEIGHT // height)
    shown = [np.repeat(image[..., None], 3, axis=2) for image in images.values()]
    return side_by_side(shown, list(images), (factor * height, factor * width))


def add_arguments(action: argparse.ArgumentParser, name: str) -> None:
    """The options of `view`, `recon` or `play` beside those of the geometry."""
    add = action.add_argument
    outputs = {
        "view": "image",
        "recon": "one plane: the image; several: .png shows them side by side, a folder gets one .png each, .mp4 a "
        "video frame each",
        "play": ".mp4",
    }
    add("--out", type=Path, help=f"{outputs[name]}; default: FILE's name with _{name}{SUFFIXES[name]}, in this folder")
    add(
        "--rate", type=float, help="spikes per plane at full light; default: dataset.json, else bright pixels are white"
    )
    add("--light", choices=("linear", "display"), help="what the sensor integrates; default: dataset.json, else linear")
    if name == "view":
        return
    add(
        "--method", choices=GREY_METHODS, default="tfp",
        help=f"as in main_test_vrt.py --method; tfstp sees the last {HISTORY} planes; default %(default)s",
    )  # fmt: skip
    add("--tick-hz", type=float, help="planes per second, to show the time")
    add("--fps", type=float, default=25.0, help="video frames per second; default %(default)g")
    if name == "recon":
        add("--planes", type=int, nargs="+", metavar="N", help="the first is 0; default: the one in the middle")
    else:
        add("--first", type=int, default=0, help="plane")
        add("--count", type=int, help="planes; default: to the end")
        add("--step", type=int, help=f"planes per video frame; default: 1, or more for at most {LONGEST} video frames")

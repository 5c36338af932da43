"""spike_tool.py view, recon and play: pictures and videos of a spike file, of which a part is in memory at a time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.reconstruct import METHODS, method_options
from data.spike.formats import open_spikes
from data.spike.represent import REPRESENTATIONS, represent
from data.spike.simulate import DISPLAY_GAMMA, to_uint8
from data.spike.stream import SpikeFile
from data.spike_info import nearest_info
from scripts.parts.shown import tracked
from scripts.parts.spike_guess import best_geometry, middle
from utils.errors import DataError, OptionError
from utils.files import publish_folder, scratch_folder
from utils.image import IMAGE_SUFFIXES, imwrite_rgb, side_by_side
from utils.options.file import Sources, apply_override
from utils.video import VIDEO_SUFFIXES, VideoWriter

GREY_METHODS = [name for name, formula in METHODS.items() if formula.is_grey]
LEAST_HEIGHT = 320  # smaller pictures are enlarged by repetition, to see single pixels
HISTORY = 128  # planes on either side that a method without a window gets
LONGEST = 500  # video frames of `play`, unless --step says otherwise
VIEW_HALF_WINDOW = 32
SUFFIXES = {"view": ".png", "recon": ".png", "play": ".mp4"}  # of the file that a command writes by default


@dataclass(frozen=True)
class Look:
    """How spikes become grey values: a representation, the rate at full light, and the light that they integrate."""

    name: str
    options: dict[str, Any]
    rate: float
    light: str

    @classmethod
    def of(cls, command: argparse.Namespace, file: SpikeFile, section: dict[str, Any]) -> Look:
        """section: a method of data/reconstruct.py, with its options. Without a known rate, bright pixels are white."""
        about = nearest_info(command.file)
        rate = command.rate or about.rate
        if rate is None:
            rate = max(float(np.percentile(middle(file).mean(axis=0, dtype=np.float32), 99.5)), 1e-6)
        options = method_options(section)
        return cls(options.pop("type"), options, rate, command.light or about.light or "linear")

    @property
    def half_window(self) -> int:
        return self.options.get("half_window", HISTORY)

    def last_plane(self, planes: int) -> int:
        """The last plane with a picture: one that lies half a plane later needs the next plane."""
        return planes - 1 - int(REPRESENTATIONS[self.name].lag(**self.options) > 0)

    def picture(self, stream: np.ndarray, center: int, where: str) -> np.ndarray:
        """(h, w) uint8 around plane `center` of stream (T, h, w)."""
        try:
            values = represent(
                self.name, stream, center, rate=self.rate, light=self.light, gamma=DISPLAY_GAMMA, **self.options
            )
        except ValueError as e:
            raise DataError(
                f"no {self.name} of these planes: {e}", where, "planes on both sides", "choose others"
            ) from e
        return to_uint8(values[0])

    def label(self) -> str:
        return ", ".join([self.name, *(f"{key} {value:g}" for key, value in self.options.items())])


def windows(file: SpikeFile, centers: Sequence[int], half: int) -> Iterator[tuple[int, np.ndarray, int]]:
    """For rising centers (center, planes (T, h, w), the first of them): at most `half` planes on either side of it.

    The file is read once, from its first to its last plane needed.
    """
    first, stop = max(centers[0] - half, 0), min(centers[-1] + half + 1, file.planes)
    parts = file.parts(first, stop - first)
    held = np.empty((0, *file.size), np.uint8)
    for center in centers:
        low, end = max(center - half, 0), min(center + half + 1, stop)
        while first + len(held) < end:
            gone = min(max(low - first, 0), len(held))
            held = np.concatenate((held[gone:], next(parts)))
            first += gone
        yield center, held[low - first : end - first], low


def view(command: argparse.Namespace) -> None:
    """The middle of the file as read and flipped, to see which one is upright."""
    geometry = best_geometry(command)
    file = open_spikes(command.file, geometry)
    look = Look.of(command, file, {"type": "tfp", "half_window": VIEW_HALF_WINDOW})
    center, stream, first = next(windows(file, [file.planes // 2], look.half_window))
    shown = look.picture(stream, center - first, str(command.file))
    imwrite_rgb(command.out, panels({"as read": shown, "flipped": shown[::-1]}))
    print(f"{command.out}: {geometry.height} x {geometry.width}, left as read, right flipped; the upright one is right")


def recon(command: argparse.Namespace) -> None:
    """Pictures of a method at the chosen planes."""
    suffix = command.out.suffix.lower()
    if suffix not in ("", *IMAGE_SUFFIXES, *VIDEO_SUFFIXES):
        raise OptionError(
            f"the suffix of the output is {suffix!r}", f"--out {command.out}",
            "a picture (.png), a video (.mp4), or a folder without a suffix", "choose one of them",
        )  # fmt: skip
    file = open_spikes(command.file, best_geometry(command))
    look = Look.of(command, file, method_section(command))
    planes, last = sorted(set(command.planes or [file.planes // 2])), look.last_plane(file.planes)
    if outside := [plane for plane in planes if not 0 <= plane <= last]:
        raise OptionError(
            f"no {look.name} at plane {', '.join(map(str, outside))}", "--planes", f"0 to {last}", "correct them"
        )
    pictures = (
        (center, look.picture(stream, center - first, str(command.file)))
        for center, stream, first in tracked(windows(file, planes, look.half_window), len(planes), look.name, "planes")
    )
    if not suffix:
        scratch = scratch_folder(command.out.with_name(f".{command.out.name}.partial"))
        for plane, picture in pictures:
            imwrite_rgb(scratch / f"{plane:06d}.png", np.repeat(picture[..., None], 3, axis=2))
        publish_folder(scratch, command.out)
    elif suffix in VIDEO_SUFFIXES:
        with VideoWriter(command.out, command.fps) as video:
            for plane, picture in pictures:
                video.write(panels({f"{look.name}  {moment(plane, command.tick_hz)}": picture}))
    elif len(planes) == 1:
        imwrite_rgb(command.out, np.repeat(next(pictures)[1][..., None], 3, axis=2))
    else:
        imwrite_rgb(command.out, panels({moment(plane, command.tick_hz): picture for plane, picture in pictures}))
    print(f"{command.out}: {look.label()} at {len(planes)} planes of {file.size[0]} x {file.size[1]}")


def play(command: argparse.Namespace) -> None:
    """A video of single planes, white where a pixel fired, beside the reconstruction at the same plane."""
    if command.out.suffix.lower() not in VIDEO_SUFFIXES:
        raise OptionError(
            f"the suffix of the output is {command.out.suffix!r}", f"--out {command.out}",
            f"a video: {', '.join(VIDEO_SUFFIXES)}", "choose one, or use spike_tool.py recon for pictures",
        )  # fmt: skip
    file = open_spikes(command.file, best_geometry(command))
    look = Look.of(command, file, method_section(command))
    last = look.last_plane(file.planes)
    stop = last + 1 if command.count is None else min(command.first + command.count, last + 1)
    if not 0 <= command.first < stop or (command.step or 1) < 1:
        raise OptionError(
            f"planes {command.first} to {stop - 1}, step {command.step or 1}", "--first, --count, --step",
            f"planes within 0 to {last}, and a step of at least 1", "correct them",
        )  # fmt: skip
    step = command.step or -(-(stop - command.first) // LONGEST)
    centers = range(command.first, stop, step)
    with VideoWriter(command.out, command.fps) as video:
        for center, stream, first in tracked(windows(file, centers, look.half_window), len(centers), "video", "frames"):
            plane = 255 * stream[center - first]
            picture = look.picture(stream, center - first, str(command.file))
            video.write(panels({f"spikes  {moment(center, command.tick_hz)}": plane, look.label(): picture}))
    slow = f", {command.tick_hz / (step * command.fps):.4g} x slower" if command.tick_hz else ""
    print(
        f"{command.out}: {len(centers)} video frames of {file.size[0]} x {file.size[1]}, planes {centers[0]} to "
        f"{centers[-1]}, {step} plane{'s' if step > 1 else ''} per video frame{slow}; right: {look.label()}"
    )


def method_section(command: argparse.Namespace) -> dict[str, Any]:
    """The section of --method with the overrides method.key=value, as in main_test_vrt.py."""
    table: dict[str, Any] = {"method": {"type": command.method}}
    for override in command.overrides:
        apply_override(table, override, Sources("the command line"))
    return table["method"]


def moment(plane: int, tick_hz: float | None) -> str:
    return f"plane {plane}" + (f"  {1e3 * plane / tick_hz:.2f} ms" if tick_hz else "")


def panels(pictures: dict[str, np.ndarray]) -> np.ndarray:
    """Grey pictures (h, w) uint8 side by side under their names, enlarged where small: (H, W, 3) uint8."""
    height, width = next(iter(pictures.values())).shape
    factor = max(1, LEAST_HEIGHT // height)
    shown = [np.repeat(picture[..., None], 3, axis=2) for picture in pictures.values()]
    return side_by_side(shown, list(pictures), (factor * height, factor * width))


def default_out(command: argparse.Namespace) -> Path:
    return Path(f"{command.file.stem}_{command.action}{SUFFIXES[command.action]}")


def add_arguments(action: argparse.ArgumentParser, name: str) -> None:
    """The options of `view`, `recon` or `play` beside those of the geometry."""
    add = action.add_argument
    outputs = {
        "view": "picture",
        "recon": "one plane: the picture; several: .png shows them side by side, a folder gets one .png each, .mp4 a "
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
    method = f"the reconstruction, as in main_test_vrt.py --method; tfstp sees the last {HISTORY} planes"
    add("--method", choices=GREY_METHODS, default="tfp", help=f"{method}; default %(default)s")
    add("--tick-hz", type=float, help="planes per second, to show the time")
    add("--fps", type=float, default=25.0, help="video frames per second; default %(default)g")
    if name == "recon":
        add("--planes", type=int, nargs="+", metavar="N", help="the first is 0; default: the one in the middle")
    else:
        add("--first", type=int, default=0, help="plane")
        add("--count", type=int, help="planes; default: to the end")
        add("--step", type=int, help=f"planes per video frame; default: 1, or more for at most {LONGEST} video frames")

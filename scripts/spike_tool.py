#!/usr/bin/env python3
"""Inspect spike files, look at them, and make them from images or video.

info FILE       say which height and width the file most likely has. The length of the file allows
                some sizes. They are listed with the smoothest image first. The list says what
                speaks against each size. The bit order and the firing rates come after the list.
                With --picture (a frame of the same time) only sizes of the frame's shape are
                tried. The frame also shows the rate, the light that the spikes integrate, and the
                order of the rows
view FILE       show the mean image as read and flipped, side by side: are the rows flipped or not?
play FILE       make a video of the single planes beside their reconstruction
recon FILE --planes 100 200
                reconstruct the image at these planes (--method tfp, tfi or tfstp), as a picture, a
                folder or a video
convert FILE OUT
                write the planes in the format of OUT's suffix (.dat, .bin, .npy, .npz). Files of
                any length fit, because only a part of the file is in memory
simulate INPUT OUT.dat
                write one .dat with the spikes of a folder of images, an image or a video

    python scripts/spike_tool.py play capture.dat --size 250 400 --tick-hz 20000 --out capture.mp4
    python scripts/spike_tool.py recon capture.dat --planes 150 --out plane150.png \
        method.half_window=5
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.cameras.spike_errors import spike_errors_as_data_errors
from data.spike import formats
from data.spike.geometry import SpikeGeometry
from scripts.parts.default_output import default_output
from scripts.parts.exit_codes import with_exit_code, with_progress
from scripts.parts.spike_tool.spike_geometry import (
    GeometryOptions,
    add_geometry,
    in_words,
    single_geometry,
)
from scripts.parts.spike_tool.spike_info import print_info
from scripts.parts.spike_tool.spike_ranking import Candidate
from scripts.parts.spike_tool.spike_rendering import GREY_METHODS, HISTORY, Rendering, method_of
from scripts.parts.spike_tool.spike_simulation import Simulation, add_simulation
from scripts.parts.spike_tool.spike_views import (
    MOST_FRAMES,
    panels,
    planes_to_play,
    planes_to_show,
    write_images,
    write_video,
)
from utils.arguments import frame_rate, full_rate, plane_rate
from utils.errors import OptionError
from utils.image import IMAGE_SUFFIXES, imwrite_rgb
from utils.output_folder import refuse_existing
from utils.video.container import WRITABLE_SUFFIXES

# This file has the command line, and a function for each command. The function calls the parts
# that do the work, and prints what was done. The parts are in scripts/parts/spike_tool/:
#
#     spike_geometry.py     height, width and storage of the planes of a file
#     spike_sizes.py        sizes that the length of a file allows
#     spike_ranking.py      which geometry a file most likely has
#     spike_info.py         what `info` prints
#     spike_rendering.py    grey images of planes
#     spike_views.py        pictures and videos of these images
#     spike_simulation.py   spikes of a clip
#
# What must stay: a file that is converted to another format and back has the same bytes
# (test_convert_goes_through_every_format_and_back_to_the_same_bytes). A file may be larger than the
# memory, so only some planes are read at a time (test_a_long_stream_is_never_whole_in_memory).
# Free to change: the printed texts, except where tests/parts/scripts/test_spike_tool.py quotes
# them.

# Suffix of the file that a command writes if --out is not given.
DEFAULT_SUFFIX = {
    "view": ".png",
    "recon": ".png",
    "play": ".mp4",
}
# Suffixes that --out may have. "" is a folder. A command that is missing here takes any suffix.
ALLOWED_SUFFIXES = {
    "recon": ("", *IMAGE_SUFFIXES, *WRITABLE_SUFFIXES),
    "play": WRITABLE_SUFFIXES,
    "convert": formats.FORMATS,
}


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Run one command, e.g. `info`. Returns the exit code 0. `with_exit_code` handles errors."""
    command = parse(arguments)
    with spike_errors_as_data_errors():
        if "out" in command:  # `info` writes no file
            name_output(command)
            refuse_output(command)
        command.run(command)
    return 0


def name_output(command: argparse.Namespace) -> None:
    """Give the output its default name if --out is not given: sets `command.out`."""
    if command.out is None:
        action = command.action
        command.out = default_output(f"{command.file.stem}_{action}{DEFAULT_SUFFIX[action]}")


# ---- The commands -----------------------------------------------------------------------------


def info(command: argparse.Namespace) -> None:
    """Print which geometries the file may have, and, if one is clear, what its spikes show."""
    print_info(command.file, GeometryOptions.of(command), command.picture)


def view(command: argparse.Namespace) -> None:
    """Write the mean image of the middle planes twice: as read, and flipped.

    The user sees which of the two is upright.
    """
    # A mean over 65 planes (32 on either side of the middle) shows the shapes of a scene, also in
    # dim light. The mean is sharp enough to see which image is upright.
    rendering = rendering_of(command, {"type": "tfp", "half_window": 32})
    middle = rendering.file.planes // 2
    (shown,) = rendering.images([middle])  # one center, so one image
    image = shown.image
    # The left panel shows the image as read, and the right panel shows it flipped. If the right
    # panel is upright, the file was read with its rows in the wrong order.
    imwrite_rgb(command.out, panels({"as read": image, "flipped": image[::-1]}))
    print(f"{command.out}: {rendering.size}, left as read, right flipped; the upright one is right")


def recon(command: argparse.Namespace) -> None:
    """Write the images at the chosen planes: a picture, a folder of pictures, or a video."""
    rendering = rendering_of(command, {"type": command.method})
    planes = planes_to_show(command.planes, rendering)
    write_images(command.out, rendering, planes, fps=command.fps, tick_hz=command.tick_hz)
    print(f"{command.out}: {rendering.label} at {len(planes)} planes of {rendering.size}")


def play(command: argparse.Namespace) -> None:
    """Write a video: each plane, white where a pixel fired, beside its reconstruction."""
    rendering = rendering_of(command, {"type": command.method})
    planes = planes_to_play(command.first, command.count, command.step, rendering.last)
    write_video(command.out, rendering, planes, fps=command.fps, tick_hz=command.tick_hz)

    # How many times slower than the scene the video plays. E.g. a second of a camera with 20000
    # planes per second takes 400 seconds in a video of 25 frames per second, with 2 planes each.
    slowness = ""
    if command.tick_hz:
        planes_per_second_of_video = planes.step * command.fps
        slowness = f", {command.tick_hz / planes_per_second_of_video:.4g} x slower"
    noun = "planes" if planes.step > 1 else "plane"
    print(
        f"{command.out}: {len(planes)} video frames of {rendering.size}, planes {planes[0]} to "
        f"{planes[-1]}, {planes.step} {noun} per video frame{slowness}; right: {rendering.label}"
    )


def rendering_of(command: argparse.Namespace, method: dict[str, object]) -> Rendering:
    """Return the object that makes images of the planes of the file.

    Words of the command line such as method.half_window=5 change options of the method.
    """
    return Rendering(
        command.file,
        method=method_of(method, command.overrides),
        geometry=GeometryOptions.of(command),
        rate=command.rate,
        light=command.light,
    )


def convert(command: argparse.Namespace) -> None:
    """Write some planes of a spike file in another format."""
    # The geometry of the file that is read, and of the file that is written.
    stored = single_geometry(command.file, GeometryOptions.of(command))
    # Some cameras store head columns, columns without an image, at the end of each row. The written
    # file has no head columns.
    written = SpikeGeometry(
        stored.height,
        stored.width,
        flipud=not command.out_no_flip,
        bit_order=command.out_bit_order,
    )
    # A `Candidate` (spike_ranking.py) is the file, read with one geometry. Its method `doubts` says
    # what speaks against this geometry, and `print_how_read` prints the doubts.
    candidate = Candidate(command.file, stored)
    count = command.count
    if count is None:
        count = candidate.file.planes - command.first
    print_how_read(command, candidate)

    # Each block holds some planes, (t, h, w). `with_progress` passes the blocks on, and shows how
    # many planes have passed. size=len, because a block counts as len(block) planes.
    blocks = candidate.file.parts(command.first, count)
    blocks = with_progress(blocks, count, "converting", "planes", size=len)
    formats.write_spikes(command.out, blocks, written)

    if formats.is_array(command.out):
        form = f"{written.height} x {written.width}, an array of uint8"
    else:
        form = in_words(written)
    print(f"{command.out}: {count} planes of {form}")


def print_how_read(command: argparse.Namespace, candidate: Candidate) -> None:
    """Print geometry and doubts, so that the user notices a wrong size before the file is used."""
    stored = candidate.file.geometry
    if formats.is_array(command.file):
        form = f"{stored.height} x {stored.width}, an array"
    else:
        form = in_words(stored)
        if not command.size:
            form += " (no --size: from dataset.json, or the only known size that fits)"
    print(f"{command.file}: {candidate.file.planes} planes of {form}")
    # `doubts` compares a candidate with the best one. Here there is one candidate only, so this
    # candidate is the best one, too.
    for doubt in candidate.doubts(best=candidate):
        print(f"  warning: {doubt}")


def simulate(command: argparse.Namespace) -> None:
    """Write the spikes that a simulated sensor fires while it sees the frames of a clip."""
    simulation = Simulation(command)
    height = simulation.height
    width = simulation.width
    formats.write_spikes(command.out, simulation.planes(), SpikeGeometry(height, width))
    print(f"{command.out}: {simulation.count} planes of {height} x {width}, rate {command.rate}")


# ---- The command line -------------------------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of one command.

    Besides the options, the result has `action` (the name of the command), `run` (its function) and
    `overrides` (words such as "method.half_window=5").
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    add_command(actions, "info", info, add_info)
    add_command(actions, "view", view, add_view)
    add_command(actions, "recon", recon, add_recon)
    add_command(actions, "play", play, add_play)
    add_command(actions, "convert", convert, add_convert)
    add_command(actions, "simulate", simulate, add_simulation)

    # argparse cannot read words such as method.half_window=20 after FILE and its options. So
    # `parse_known_args` returns these words as a second value, which becomes `overrides`. The next
    # call refuses all words that no method takes, and `rendering_of` later reads the others.
    command, command.overrides = parser.parse_known_args(arguments)
    refuse_unknown_words(parser, command)
    return command


def add_command(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], None],
    add_options: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add a command to the program.

    run: function that executes the command. add_options: function that adds its options to its
    parser.
    """
    parser = actions.add_parser(name)
    parser.set_defaults(run=run)
    add_options(parser)


def add_info(parser: argparse.ArgumentParser) -> None:
    """Add the options of `info`."""
    add_file(parser)
    parser.add_argument("--picture", type=Path, help="a frame that was taken in the middle of FILE")


def add_view(parser: argparse.ArgumentParser) -> None:
    """Add the options of `view`."""
    add_file(parser)
    add_output(parser, "view", "the image file")


def add_recon(parser: argparse.ArgumentParser) -> None:
    """Add the options of `recon`."""
    add_file(parser)
    add_output(
        parser,
        "recon",
        "one plane gives an image; several planes give a .png with the images side by side, a "
        "folder with a .png for each plane, or a video (.mp4)",
    )
    add_method(parser)
    parser.add_argument(
        "--planes",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of the planes, from 0; default: the plane in the middle of the file",
    )


def add_play(parser: argparse.ArgumentParser) -> None:
    """Add the options of `play`."""
    add_file(parser)
    add_output(parser, "play", "the video file (.mp4)")
    add_method(parser)
    add_range(parser)
    parser.add_argument(
        "--step",
        type=int,
        help="planes from one video frame to the next; default: the smallest number with which "
        f"the video has at most {MOST_FRAMES} frames",
    )


def add_convert(parser: argparse.ArgumentParser) -> None:
    """Add the options of `convert`."""
    add_file(parser)
    add_range(parser)
    parser.add_argument("out", type=Path)
    parser.add_argument("--out-no-flip", action="store_true", help="store rows top first")
    parser.add_argument("--out-bit-order", choices=("little", "big"), default="little")


# Options that several commands have.


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the spike file that a command reads, and the options of its geometry."""
    parser.add_argument("file", type=Path)
    add_geometry(parser)


def add_output(parser: argparse.ArgumentParser, name: str, output: str) -> None:
    """Add --out, and the options that decide the brightness of an image.

    name: name of the command. output: what is written, for the help.
    """
    parser.add_argument(
        "--out",
        type=Path,
        help=f"{output}; default: the name of FILE with _{name}{DEFAULT_SUFFIX[name]}, in the "
        "current folder (if this is the repository, in a temporary folder)",
    )
    parser.add_argument(
        "--rate",
        type=full_rate,
        help="spikes per plane at full light; default: the rate in dataset.json. Without it, the "
        "rate is chosen so that the brightest 0.5 percent of the pixels are white",
    )
    parser.add_argument(
        "--light",
        choices=("linear", "display"),
        help="what the sensor integrates; default: as dataset.json says, else linear",
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add the method of the reconstruction, and the options of a video.

    docs/options.md explains the methods: tfp takes a mean over planes, tfi the interval between two
    spikes, and tfstp a model of synapses.
    """
    parser.add_argument(
        "--method",
        choices=GREY_METHODS,
        default="tfp",
        help="method of the reconstruction, as in main_test_vrt.py; tfstp uses the "
        f"{HISTORY} planes before each shown plane (default: %(default)s)",
    )
    parser.add_argument("--tick-hz", type=plane_rate, help="planes per second, to show the time")
    parser.add_argument(
        "--fps",
        type=frame_rate,
        default=25.0,
        help="video frames per second; default %(default)g",
    )


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the planes first ... first + count - 1."""
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first plane (default: %(default)s)"
    )
    parser.add_argument(
        "--count", type=int, help="number of planes; default: all to the end of the file"
    )


# ---- What is refused --------------------------------------------------------------------------


def refuse_unknown_words(parser: argparse.ArgumentParser, command: argparse.Namespace) -> None:
    """End the program if a word of the command line is neither an option nor an override.

    `recon` and `play` take overrides of their method, e.g. "method.half_window=5". Other commands
    take none.
    """
    wrong_words = command.overrides
    if command.action in ("recon", "play"):
        wrong_words = [word for word in wrong_words if not word.startswith("method.")]
    if wrong_words:
        parser.error(f"unrecognized arguments: {' '.join(wrong_words)}")


def refuse_output(command: argparse.Namespace) -> None:
    """Raise OptionError if the output exists, or if its suffix does not fit the command."""
    refuse_existing(command.out, "the output")

    action = command.action
    allowed = ALLOWED_SUFFIXES.get(action)
    suffix = command.out.suffix.lower()
    if allowed is None or suffix in allowed:
        return
    expected = ", ".join(suffix for suffix in allowed if suffix)  # without "", a folder
    if action == "recon":
        expected += ", or a folder"
    do = "choose one of them"
    if action == "play":
        do = "choose one, or use spike_tool.py recon for images"
    raise OptionError(
        what=f"the suffix of the output is {suffix!r}",
        where=str(command.out),
        expected=expected,
        do=do,
    )


if __name__ == "__main__":
    sys.exit(main())

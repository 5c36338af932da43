#!/usr/bin/env python3
"""Show how each pixel moves within an exposure, found from the spikes, and how sure this motion is.

    python scripts/show_motion.py --input CLIP --spike FILE --spike-size H W
    python scripts/show_motion.py --input CLIP --spike FILE --frames 0 3 --out motion.html

The program writes a page of one file. For each frame, the page shows the blurry frame, the way of
each pixel within the exposure, and the expected error of this way. main_test_vrt.py uses the same
motion with the same weights and spike options. If the input has several clips, the first clip is
shown.
"""

# The program in its order:
#
#     read_command    the command line
#     request_of      the same flags as main_test_vrt.py understands them
#     read_weights    the weights, and the fusion of their network, i.e. the part that joins frames
#                     and spikes. The fusion says how motion is found
#     first_clip      the frames, and the spikes as main_test_vrt.py reads them with these weights
#     section_of      for each frame: its motion as pictures
#     page            everything as one HTML file, by utils/templates/sample.html
#
# What must stay: the page shows the motion that main_test_vrt.py takes, so weights and spikes are
# read by its functions. Modules that import torch are imported within functions, so that --help
# does not wait for torch.
# Free to change: texts and pictures of the page, which are for people.
# Test: tests/parts/scripts/test_show_motion.py

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from scripts.parts.default_output import ROOT, default_output
from scripts.parts.exit_codes import with_exit_code
from utils.arguments import plane_side
from utils.errors import OptionError
from utils.files import write_whole
from utils.image import render
from utils.output_folder import refuse_existing

if TYPE_CHECKING:
    from data.clips.readers import DatasetClip
    from data.motion.shifts import Motion
    from models.restore.request import TestRequest
    from models.saved_network import SavedNetwork

WEIGHTS = ROOT / "weights/motion.pth"  # used if --weights is not given
# The argument `context` of `RecordedClip` is the number of planes that are read before and after an
# exposure. None means half as many planes as the longest exposure has: 44 for an exposure of 88.
HALF_OF_EXPOSURE = None


class Picture(NamedTuple):
    """A picture of the page and the text below it.

    utils/templates/sample.html reads the fields by their names, as it reads `Picture` of
    scripts/parts/show_sample/sample_page.py. So rename a field in all three places.
    """

    caption: str
    image: np.ndarray  # (H, W, 3) uint8


class Section(NamedTuple):
    """The pictures of one frame."""

    title: str  # name of the frame
    pictures: list[Picture]


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Write the page, and print its path. Returns the exit code 0."""
    command = read_command(arguments)
    refuse_existing(command.out, "--out")
    import torch

    from data.motion.finder import finder_of
    from data.motion.recording import RecordedClip

    request = request_of(command)
    saved, fusion = read_weights(command.weights)
    reader = first_clip(command, request, saved)
    clip = RecordedClip(reader, context=HALF_OF_EXPOSURE)
    refuse_other_frames(command.frames, clip.frames)

    # `find` estimates the motion within an exposure, by optical flow or by a network. The weights
    # say which.
    find = finder_of(fusion.motion_by, fusion.motion_net, torch.device("cpu"))
    # The gain of each spike pixel, (h, w): its spikes per plane at full light. A pixel whose gain
    # cannot be trusted has the usual gain (`RecordedClip.gain`), so `find` can use all pixels.
    gain, _is_trusted = clip.gain()
    sections = []
    for frame in command.frames:
        recording = clip.read(frame)  # the blurry frame and the spikes of its exposure
        # `clip.view` says how the spike pixels lie on the frame.
        motion = find(recording, clip.view, gain)
        sections.append(section_of(reader.stems[frame], recording.blurry, motion))

    about = {"weights": str(command.weights), "motion by": fusion.motion_by}
    write_whole(command.out, page(reader.name, sections, about).encode())
    print(f"{command.out}: the motion of {reader.name}, frames {command.frames}")
    return 0


def request_of(command: argparse.Namespace) -> "TestRequest":
    """Return the request (options, weights and files) that main_test_vrt.py reads from these flags.

    The parser of main_test_vrt.py reads the flags, so that both programs read the spikes in the
    same way. Raises OptionError as main_test_vrt.py does.
    """
    from models.restore.request import read_request

    words = ["--input", command.input, "--spike", command.spike, "--output", str(command.out)]
    words += ["--weights", str(command.weights), *command.overrides]
    if command.spike_size:
        words += ["--spike-size", *(str(side) for side in command.spike_size)]
    return read_request(words, description=None)


def read_weights(path: Path) -> tuple["SavedNetwork", Any]:
    """Return the network of a weights file, and its fusion "motion", a torch module.

    Raises OptionError if the fusion of the network is not "motion".
    """
    from models.fusion.fusion_motion import motion_of
    from models.portable import read_saved

    saved = read_saved(path)
    fusion = motion_of(saved.build())
    if fusion is None:
        raise OptionError(
            what=f"{path} has no fusion motion",
            where="--weights",
            expected="weights that follow the motion, such as weights/motion.pth",
            do="choose other weights",
        )
    return saved, fusion


def first_clip(
    command: argparse.Namespace, request: "TestRequest", saved: "SavedNetwork"
) -> "DatasetClip":
    """Return the first clip of --input, with its spikes read as main_test_vrt.py reads them."""
    from data.clips.clip_reader import user_clips
    from models.restore.own_spikes import spikes_for_network

    files = request.own_files
    assert files is not None  # the command line has --input
    clips = user_clips(
        command.input,
        command.spike,
        gt=None,
        spike_options=spikes_for_network(saved, files, request.network),
        scale=1,  # the frames are shown in the size of the input
        trained=saved.spike_data,
    )
    return clips[0]


def page(name: str, sections: list[Section], about: dict[str, str]) -> str:
    """Return the HTML page. name: name of the clip. about: the table at the top of the page."""
    from data.motion.drawing import LEGEND

    # `chapters` is what the template calls `sections`: a list of (title, rows), where a row is
    # (title, pictures). Here each frame has one row, without a title.
    chapters = []
    for section in sections:
        row = ("", section.pictures)
        chapters.append((section.title, [row]))
    return render(
        "sample",
        title=f"Motion of {name}",
        verdict="Colours show where each pixel goes within the exposure. Grey lines cover motion "
        "that was not trusted.",
        verdict_class="none",  # grey: neither right nor wrong
        numbers=LEGEND,  # the text below the verdict. Here it explains the colours
        about=about,
        sections=chapters,
    )


def read_command(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line. `out` is the path of a new page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--input", required=True, metavar="PATH", help="video or folder of frames")
    add(
        "--spike", required=True, metavar="PATH", help="spikes of the clip, as for main_test_vrt.py"
    )
    add("--spike-size", nargs=2, type=plane_side, metavar=("H", "W"), help="size of a spike plane")
    add("--weights", type=Path, default=WEIGHTS, help="weights; default weights/motion.pth")
    add(
        "--frames", type=int, nargs="+", default=[0], metavar="N", help="numbers, from 0; default 0"
    )
    add(
        "--out",
        type=Path,
        metavar="PAGE",
        help="a new file; default: motion.html in the current folder, or in a temporary folder if "
        "the current folder is the repository",
    )
    add("overrides", nargs="*", metavar="spike.key=value")
    command = parser.parse_intermixed_args(arguments)
    if command.out is None:
        command.out = default_output("motion.html")
    return command


def refuse_other_frames(frames: list[int], count: int) -> None:
    """Raise OptionError if a frame is not in the clip.

    frames: the numbers after --frames. count: number of frames of the clip.

    Test: test_other_frames_and_weights_are_refused
    """
    for frame in frames:
        if not 0 <= frame < count:
            raise OptionError(
                what=f"frame {frame} does not exist",
                where="--frames",
                expected=f"numbers of 0 to {count - 1}",
                do="correct --frames",
            )


def section_of(name: str, blurry: np.ndarray, motion: "Motion") -> Section:
    """Return the pictures of one frame: the blurry frame, then its motion.

    name: name of the frame. blurry: (H, W, 3) float32 in [0, 1].
    """
    from data.motion.drawing import pictures_of

    pictures = [Picture("blurry", np.rint(255 * blurry).astype(np.uint8))]
    # The template reads caption and image. A picture of `pictures_of` also has a name, which the
    # page does not show.
    for picture in pictures_of(motion):
        pictures.append(Picture(picture.caption, picture.image))
    return Section(name, pictures)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Show the motion within an exposure that the spikes tell, and where it was not trusted.

    python scripts/show_motion.py --input CLIP --spike FILE --spike-size H W
    python scripts/show_motion.py --input CLIP --spike FILE --frames 0 3 --out motion.html

Writes a page of one file. It shows, for each frame, the blurry frame, the way of each pixel within
the exposure, and the error that is expected of it. The motion is the one that main_test_vrt.py
takes with the same weights and spike options. Of several clips the first one is shown.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from scripts.parts.default_output import ROOT, default_output
from scripts.parts.exit_codes import with_exit_code
from utils.errors import OptionError
from utils.files import refuse_existing, write_whole
from utils.image import render

if TYPE_CHECKING:
    from data.motion.flow import Motion

WEIGHTS = ROOT / "weights/motion.pth"
# A title, and pictures (H, W, 3) uint8 with their captions.
Section = tuple[str, list[tuple[str, np.ndarray]]]


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = read_command(arguments)
    refuse_existing(command.out, "--out")
    # Not before --help, because they bring torch.
    import torch

    from data.clips.clip_reader import user_clips
    from data.motion.drawing import LEGEND
    from data.motion.learned import finder_of
    from data.motion.recording import RecordedClip
    from models.fusion.fusion_motion import motion_of
    from models.portable import read_saved
    from models.restore.own_spikes import spikes_for_network
    from models.restore.request import read_request

    words = ["--input", command.input, "--spike", command.spike, "--output", str(command.out)]
    words += ["--weights", str(command.weights), *command.overrides]
    if command.spike_size:
        words += ["--spike-size", *(str(side) for side in command.spike_size)]
    request = read_request(words, description=None)
    saved = read_saved(command.weights)
    fusion = motion_of(saved.build())
    if fusion is None:
        raise OptionError(
            what=f"{command.weights} has no fusion motion",
            where="--weights",
            expected="weights that follow the motion, such as weights/motion.pth",
            do="choose other weights",
        )
    spike = spikes_for_network(saved, request)
    clips = user_clips(
        command.input,
        command.spike,
        gt=None,
        spike_options=spike,
        scale=1,  # the frames are shown in the size of the input
        trained=saved.spike_data,
    )
    reader = clips[0]
    clip = RecordedClip(reader, context=None)
    refuse_other_frames(command.frames, clip.frames)

    find = finder_of(fusion.motion_by, fusion.motion_net, torch.device("cpu"))
    gain, _ = clip.gain()
    sections = []
    for frame in command.frames:
        recording = clip.read(frame)
        motion = find(recording, clip.view, gain)
        sections.append(section_of(reader.stems[frame], recording.blurry, motion))
    page = render(
        "sample",
        title=f"Motion of {reader.name}",
        verdict="Colours show where each pixel goes within the exposure. Grey lines cover motion "
        "that was not trusted.",
        verdict_class="none",
        numbers=LEGEND,
        about={"weights": str(command.weights), "motion by": fusion.motion_by},
        sections=[(title, [("", pictures)]) for title, pictures in sections],
    )
    write_whole(command.out, page.encode())
    print(f"{command.out}: the motion of {reader.name}, frames {command.frames}")
    return 0


def read_command(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line. `out` is the path of a new page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--input", required=True, metavar="PATH", help="video or folder of frames")
    add("--spike", required=True, metavar="PATH", help="its spikes, as for main_test_vrt.py")
    add("--spike-size", nargs=2, type=int, metavar=("H", "W"), help="size of a spike plane")
    add("--weights", type=Path, default=WEIGHTS, help="default weights/motion.pth")
    add("--frames", type=int, nargs="+", default=[0], metavar="N", help="the first is 0; default 0")
    add(
        "--out",
        type=Path,
        metavar="PAGE",
        help="a new file; default: motion.html in this folder, in the repository a temporary one",
    )
    add("overrides", nargs="*", metavar="spike.key=value")
    command = parser.parse_intermixed_args(arguments)
    if command.out is None:
        command.out = default_output("motion.html")
    return command


def refuse_other_frames(frames: list[int], count: int) -> None:
    """Raise OptionError if the clip has not all of these frames. count: frames of the clip."""
    for frame in frames:
        if not 0 <= frame < count:
            raise OptionError(
                what=f"frame {frame} does not exist",
                where="--frames",
                expected=f"numbers of 0 to {count - 1}",
                do="correct --frames",
            )


def section_of(name: str, blurry: np.ndarray, motion: "Motion") -> Section:
    """Draw a frame. blurry: (H, W, 3) float32 in [0, 1]."""
    from data.motion.drawing import pictures_of

    pictures = [("blurry", np.rint(255 * blurry).astype(np.uint8))]
    for picture in pictures_of(motion):
        pictures.append((picture.caption, picture.image))
    return name, pictures


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Measure how much better than the shipped operator a restoration along the motion is.

    python lab/joint_gain.py --videos VIDEOS [--part report] [--conditions ideal rig]
    python lab/joint_gain.py --videos VIDEOS --ways motion [--part photos]

A way is a method of main_test_vrt.py: the operator, `--method joint`, or weights/motion.pth. All
ways restore the same clips. A part says what the clips show:

    choose, report  the test sets of lab/quality.py
    seven           the training videos, with seven real frames in an exposure. The parts above have
                    one to four, and optical flow makes the light between them. Here it makes less.
    seven_others    the same with the videos of choose and report. Nothing was trained on them.
    photos          photographs under exact motion: layers cover each other, and no optical flow is
                    used

A condition says how the clips are recorded. The conditions are those of data/cameras/rig.py, and
two false models of the frame: `means` of display values instead of light, and another `curve`.

The ways are told nothing about the cameras. All read the clips with spike.calibration=auto, which
finds the place of the spike camera and the time and length of the exposures.

The program writes <out>/<way>_<part>_<condition>.json for the last way, and prints a table with a
row for each condition. docs/benchmarks/quality.md has the figures. Clips and frames that are there
are not made again.

What must stay: the names of the written files, and what a clip is made from. A program that is
called again takes the clips and figures that are there, even if this file would make others now.
tests/parts/house/test_joint_gain.py tests the table alone.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.quality import (
    CLIPS,
    CONDITIONS,
    FRAMES,
    VIDEOS,
    call,
    difference,
    link_files,
    make_clips,
    moving_psnr,
    photographs,
    table_cell,
    video_files,
)
from lab.tools import ROOT, environment
from scripts.make_sample_data import RGB, SPIKES
from utils.results import markdown_table, read_json

# Way -> its flags of main_test_vrt.py. A way is a column of the table, in this order. The gains of
# the table are those of the last way over BASE.
OPERATOR = str(ROOT / "weights/operator.pth")
BASE = "operator"
WAYS = {
    BASE: ("--weights", OPERATOR),
    "joint from operator": ("--method", "joint", "--weights", OPERATOR),
    "motion": ("--weights", str(ROOT / "weights/motion.pth")),
}
# Ways that need no weights. They are columns before the others if --formulas is given.
FORMULAS = {"exposure": ("--method", "exposure"), "joint": ("--method", "joint")}


@dataclass(frozen=True)
class Part:
    """What the clips are made from, and their number and length."""

    videos: tuple[str, ...]  # names of videos; () for the photographs
    clips: int  # number of clips of each video or photograph
    frames: int  # number of frames of a clip
    average: int | None = None  # real frames in an exposure; None: as the program chooses


PARTS = {
    "choose": Part(VIDEOS["choose"], clips=CLIPS["choose"], frames=FRAMES),
    "report": Part(VIDEOS["report"], clips=CLIPS["report"], frames=FRAMES),
    "seven": Part(VIDEOS["train"], clips=2, frames=4, average=7),
    "seven_others": Part(VIDEOS["choose"] + VIDEOS["report"], clips=2, frames=4, average=7),
    "photos": Part((), clips=2, frames=3),
}
# Condition -> value of --rig, where the condition is no rig. The joint solution assumes a model of
# the blurry frame, and these frames break it: means of display values, or another camera curve.
FALSE_FRAMES = {"means": "ideal,sum_gamma=2.2", "curve": "ideal,gamma=1.8,contrast=0.3"}


@dataclass(frozen=True)
class Scores:
    """The scores of a restored clip. The names of the fields are keys of the written files."""

    psnr: float  # dB, of the restored frames
    blurry: float  # dB, of the input frames
    moving: float  # dB, of the restored pixels at which blurry and sharp frame differ
    s_per_frame: float | None  # seconds; None if an earlier call restored the clip


def main(argv: Sequence[str]) -> int:
    """Make the clips, restore them in each way, write the scores, and print the table.

    Returns the exit code, which is 0. An error ends the program before.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--part", choices=PARTS, default="report", help="default %(default)s")
    names = f"{', '.join((*CONDITIONS, *FALSE_FRAMES))}; default the first four"
    add("--conditions", nargs="+", default=CONDITIONS, metavar="NAME", help=names)
    add("--ways", nargs="+", default=list(WAYS)[1:], metavar="NAME", help="default %(default)s")
    add("--formulas", action="store_true", help="also the methods exposure and joint alone")
    add("--out", type=Path, help="results folder (default experiments/joint_gain)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/joint_gain").resolve()
    # The operator is always restored, too, because the gains are over it.
    asked = {BASE, *args.ways}
    ways = {way: flags for way, flags in WAYS.items() if way in asked}
    if args.formulas:
        ways = FORMULAS | ways
    last_way = list(ways)[-1]

    sources = linked_sources(args.videos, out / "sources" / args.part, args.part)
    # condition -> way -> clip -> scores.
    found: dict[str, dict[str, dict[str, Scores]]] = {}
    for condition in args.conditions:
        folder = made_clips(out, args.part, condition, sources)
        found[condition] = {}
        for way, flags in ways.items():
            results = out / "tests" / folder.name / way.replace(" ", "_")
            found[condition][way] = scores_of(out, folder, results, flags)

        # A file for each condition, e.g. motion_report_rig.json, so that a stop loses one
        # condition at most. The first word of the way is enough for its name.
        first_word = last_way.split()[0]
        write_scores(
            out / f"{first_word}_{folder.name}.json", args.part, condition, found[condition]
        )
    print(table_of(found))
    return 0


def write_scores(
    file: Path, part: str, condition: str, ways: Mapping[str, Mapping[str, Scores]]
) -> None:
    """Write the scores of a condition as JSON. ways: way -> clip -> scores."""
    plain = {}
    for way, clips in ways.items():
        plain[way] = {clip: asdict(scores) for clip, scores in clips.items()}
    about = {
        "measured": environment(),
        "part": part,
        "condition": condition,
        "ways": plain,
    }
    file.write_text(json.dumps(about, indent=1) + "\n")


def linked_sources(videos: Path, folder: Path, part: str) -> Path:
    """Make a folder with links to the videos or photographs of a part. Return the folder.

    Ends the program if a video is missing.

    videos: folder with the files <name>.<any ending>. folder: where the links are made.
    """
    if part == "photos":
        files = photographs()
    else:
        files = video_files(videos, PARTS[part].videos)
    link_files(files, folder)
    return folder


def made_clips(out: Path, part: str, condition: str, sources: Path) -> Path:
    """Make the clips of a condition, as lab/quality.py makes its clips. Return their folder.

    prepare_gopro_spike.py keeps clips that are there. sources: folder of `linked_sources`.
    """
    return make_clips(
        out,
        name=f"{part}_{condition}",
        source=sources,
        rig=FALSE_FRAMES.get(condition, condition),
        clips=PARTS[part].clips,
        frames=PARTS[part].frames,
        average=PARTS[part].average,
    )


def scores_of(out: Path, folder: Path, results: Path, flags: Sequence[str]) -> dict[str, Scores]:
    """Restore the clips of a folder in one way. Return clip -> its scores.

    folder: the clips. results: where the frames go. flags: of main_test_vrt.py, for this way.
    """
    # Input and sharp frames lie below one folder: <clip>/blur and <clip>/sharp.
    frames = folder / RGB / "train"
    call(
        "main_test_vrt.py",
        out,
        folder.name,
        *flags,
        "--input",
        str(frames),
        "--spike",
        str(folder / SPIKES / "train"),
        "--gt",
        str(frames),
        "--output",
        str(results),
        "--save",
        "frames",
        # The way finds place and time of the spike camera itself.
        "spike.calibration=auto",
    )
    scores = {}
    for clip, about in read_json(results / "metrics.json")["clips"].items():
        moving = moving_psnr(results / clip, frames / clip)
        scores[clip] = Scores(
            psnr=about["restored"]["psnr"],
            blurry=about["input"]["psnr"],
            moving=moving["restored"],
            s_per_frame=about.get("s_per_frame"),
        )
    return scores


def table_of(found: Mapping[str, Mapping[str, Mapping[str, Scores]]]) -> str:
    """Return the table in Markdown, one row for each condition.

    The gains are those of the last way over the operator. The header and the cells of a row have
    the same order.

    found: condition -> way -> clip -> scores.
    """
    ways = list(next(iter(found.values())))
    columns = ["gain over operator", "moving pixels", "worst clip", "s/frame"]
    rows = []
    for condition, scores in found.items():
        rows.append(row_of(condition, scores))
    return markdown_table(rows, ["", "blurry", *ways, *columns])


def row_of(condition: str, scores: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """Return the cells of a condition. scores: way -> clip -> scores."""
    base = scores[BASE]
    last = list(scores.values())[-1]
    blurry = statistics.fmean(of_clip.blurry for of_clip in base.values())
    cells = [condition, f"{blurry:.2f}"]
    for clips in scores.values():
        psnr = statistics.fmean(of_clip.psnr for of_clip in clips.values())
        cells.append(f"{psnr:.2f}")

    # The gain in the mean with its confidence interval, and the gain at moving pixels.
    psnr_of_last = {clip: of_clip.psnr for clip, of_clip in last.items()}
    psnr_of_base = {clip: of_clip.psnr for clip, of_clip in base.items()}
    cells.append(table_cell(difference(psnr_of_last, psnr_of_base), sign="+"))
    gains_of_moving = [last[clip].moving - base[clip].moving for clip in last]
    cells.append(f"{statistics.fmean(gains_of_moving):+.2f}")

    # The clip that gains least. Among equal gains, the first name is taken.
    gains = [(psnr_of_last[clip] - psnr_of_base[clip], clip) for clip in last]
    least_gain, worst_clip = min(gains)
    cells.append(f"{least_gain:+.2f} ({worst_clip})")

    # The time is None if an earlier call restored the clip. To measure the time of all clips,
    # delete <out>/tests first.
    seconds = [of_clip.s_per_frame for of_clip in last.values()]
    measured = [time_s for time_s in seconds if time_s is not None]
    cells.append(f"{statistics.median(measured):.2f}" if measured else "unknown")
    return cells


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

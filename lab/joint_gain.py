#!/usr/bin/env python3
"""Measure how much a restoration along the motion is better than the shipped operator.

    python lab/joint_gain.py --videos VIDEOS [--part report] [--conditions ideal rig]
    python lab/joint_gain.py --videos VIDEOS --ways motion [--part photos]

A "way" is how main_test_vrt.py restores the clips. There are three ways:

    operator               uses weights/operator.pth, a network that does not use the motion
    joint from operator    uses `--method joint`, which solves equations along the motion. The
                           solver begins at the frame of the operator
    motion                 uses weights/motion.pth, which adds learned steps to the equations

All ways restore the same clips, and --part says what the clips show:

    choose, report    the test sets of lab/quality.py. An exposure has one to four real frames, and
                      optical flow makes the light between them
    seven             the training videos, with seven real frames in an exposure
    seven_others      the videos of choose and report, with seven real frames in an exposure
    photos            photographs that move as layers in front of one another. Their motion is
                      exact, because no optical flow is used

A condition says how the clips are recorded. Most conditions are rigs, i.e. pairs of simulated
cameras (data/cameras/rig.py), e.g. `ideal`. Two conditions break an assumption of `--method joint`:

    means    a blurry frame is the mean of display values. `--method joint` assumes a mean of light
    curve    a display value is an S-shaped curve of the light. `--method joint` assumes a power

No way gets the true calibration: spike.calibration=auto finds the position of the spike camera and
the times of the exposures.

The program writes the scores of each condition to <out>/<way>_<part>_<condition>.json, e.g.
motion_report_rig.json, and prints a table. <way> is the first word of the last way. The order of
the ways is the order of WAYS, not the order in the command line. docs/benchmarks/quality.md has the
figures.

What must stay: the names of the written files, and how a clip is made. Clips and frames that are
already in <out> are used again. So if new clips were made in another way, old and new clips would
be compared. lab/true_motion.py uses PARTS and the two functions that make clips. Free to change:
the table. Free to add: a way, a part or a condition.
Test: tests/parts/house/test_joint_gain.py tests only the table, and which ways are refused.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.quality_suite.moving import moving_psnr
from lab.quality_suite.outcomes import difference
from lab.quality_suite.programs import call
from lab.quality_suite.sets import CLIPS, CONDITIONS, FRAMES, make_clips
from lab.quality_suite.sources import VIDEOS, link_files, photographs, video_files
from lab.quality_suite.tables import table_cell
from lab.tools import ROOT, environment
from scripts.make_sample_data import RGB, SPIKES
from utils.results import markdown_table, read_json

# Way -> its flags of main_test_vrt.py. Each way is a column of the table, in this order. The table
# shows how much better the last way is than BASE. The names of the ways are in the written files,
# so they must stay.
OPERATOR_WEIGHTS = str(ROOT / "weights/operator.pth")
BASE = "operator"
WAYS = {
    BASE: ("--weights", OPERATOR_WEIGHTS),
    "joint from operator": ("--method", "joint", "--weights", OPERATOR_WEIGHTS),
    "motion": ("--weights", str(ROOT / "weights/motion.pth")),
}
# Ways that need no weights. With --formulas, they are the first columns of the table. "joint"
# begins with the frames of "exposure", and "joint from operator" with the frames of the operator.
FORMULAS = {"exposure": ("--method", "exposure"), "joint": ("--method", "joint")}


@dataclass(frozen=True)
class Part:
    """What the clips are made from, and their number and length."""

    videos: tuple[str, ...]  # names of videos, or () for the photographs
    clips: int  # number of clips of each video or photograph
    frames: int  # number of frames of a clip
    # Number of real frames in an exposure. With None, scripts/prepare_gopro_spike.py chooses it.
    average: int | None = None


PARTS = {
    "choose": Part(VIDEOS["choose"], clips=CLIPS["choose"], frames=FRAMES),
    "report": Part(VIDEOS["report"], clips=CLIPS["report"], frames=FRAMES),
    "seven": Part(VIDEOS["train"], clips=2, frames=4, average=7),
    "seven_others": Part(VIDEOS["choose"] + VIDEOS["report"], clips=2, frames=4, average=7),
    "photos": Part((), clips=2, frames=3),
}
# Condition -> value of --rig of scripts/prepare_gopro_spike.py. For every other condition, the
# value is the name of the condition itself. --method joint assumes that a blurry frame is the mean
# of light, and that light = (display value)^2.2. Each condition of FALSE_FRAMES breaks one
# assumption, with fields of `RgbCamera` (data/cameras/rgb_camera.py):
#
#     means   sum_gamma=2.2: a blurry frame is the mean of light^(1 / 2.2), i.e. of display values
#     curve   gamma=1.8 and contrast=0.3: a display value is an S-shaped curve of light^(1 / 1.8)
FALSE_FRAMES = {"means": "ideal,sum_gamma=2.2", "curve": "ideal,gamma=1.8,contrast=0.3"}


@dataclass(frozen=True)
class Scores:
    """The scores of a restored clip. The names of the fields are keys of the written files."""

    psnr: float  # PSNR of the restored frames, dB
    blurry: float  # PSNR of the input frames, dB
    moving: float  # PSNR of the moving pixels of the restored frames, dB (`moving_psnr`)
    s_per_frame: float | None  # seconds, or None if an earlier call restored the clip


# Way -> clip -> its scores.
ScoresOfWays = Mapping[str, Mapping[str, Scores]]


# ---- The program -------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Make the clips, restore them in each way, write the scores, and print the table.

    Returns the exit code 0. An error ends the program earlier.
    """
    args = read_arguments(argv)
    out = (args.out or ROOT / "experiments/joint_gain").resolve()
    # Always restore with BASE, because the table compares the last way with BASE. `ways` has the
    # order of WAYS, not the order of the command line.
    names = {BASE, *args.ways}
    ways = {way: flags for way, flags in WAYS.items() if way in names}
    if args.formulas:
        ways = FORMULAS | ways
    last_way = list(ways)[-1]  # e.g. "motion". Its first word names the files

    sources = link_sources_of_part(args.videos, out / "sources" / args.part, args.part)
    scores_of_conditions: dict[str, ScoresOfWays] = {}
    for condition in args.conditions:
        # Folder of the clips. Its name is the part and the condition, e.g. report_rig.
        clips = make_clips_of_condition(out, args.part, condition, sources)
        scores = {}
        for way, flags in ways.items():
            results = out / "tests" / clips.name / way.replace(" ", "_")
            scores[way] = scores_of(clips, flags, results=results, out=out)
        scores_of_conditions[condition] = scores

        # Write a file for each condition, so that a stop loses at most the scores of one condition.
        # E.g. the last way "joint from operator" and the folder report_rig of the clips give
        # joint_report_rig.json.
        first_word = last_way.split()[0]
        file = out / f"{first_word}_{clips.name}.json"
        write_scores(file, args.part, condition, scores)
    print(table_of(scores_of_conditions))
    return 0


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--part", choices=PARTS, default="report", help="what the clips show, default %(default)s")
    conditions = ", ".join((*CONDITIONS, *FALSE_FRAMES))
    add(
        "--conditions",
        nargs="+",
        default=CONDITIONS,
        metavar="NAME",
        help=f"some of {conditions}; default the first {len(CONDITIONS)}",
    )
    compared_ways = list(WAYS)[1:]  # all but BASE, which is always restored
    add(
        "--ways",
        nargs="+",
        choices=compared_ways,
        default=compared_ways,
        metavar="NAME",
        help="which ways are compared with the operator, default %(default)s",
    )
    add(
        "--formulas",
        action="store_true",
        help="also measure the methods exposure and joint without weights",
    )
    add("--out", type=Path, help="results folder (default experiments/joint_gain)")
    return parser.parse_args(argv)


def write_scores(file: Path, part: str, condition: str, scores_of_ways: ScoresOfWays) -> None:
    """Write the scores of a condition as JSON: {..., "ways": {way: {clip: {"psnr": ...}}}}."""
    plain = {}  # dicts in place of `Scores`
    for way, clips in scores_of_ways.items():
        plain[way] = {clip: asdict(scores) for clip, scores in clips.items()}
    about = {
        "measured": environment(),
        "part": part,
        "condition": condition,
        "ways": plain,
    }
    file.write_text(json.dumps(about, indent=1) + "\n")


# ---- Clips and their scores --------------------------------------------------------------------


def link_sources_of_part(videos: Path, folder: Path, part: str) -> Path:
    """Link the videos or photographs of a part into `folder`. Return `folder`.

    Ends the program if a video is missing.

    videos: folder with the files <name>.<any ending>. For the part "photos" this folder is not
        used: the photographs are in installed packages.
    """
    if part == "photos":
        files = photographs()
    else:
        files = video_files(videos, PARTS[part].videos)
    link_files(files, folder)
    return folder


def make_clips_of_condition(out: Path, part: str, condition: str, sources: Path) -> Path:
    """Make the clips of a condition, as lab/quality.py makes its clips. Return their folder.

    A condition says which cameras (which rig) record the clips, e.g. a spike camera in dim light.
    Clips that already exist are kept.

    sources: folder of `link_sources_of_part`.
    """
    # FALSE_FRAMES has the rigs of two conditions. All other conditions are names of rigs.
    rig = FALSE_FRAMES.get(condition, condition)
    what_to_make = PARTS[part]
    return make_clips(
        out,
        name=f"{part}_{condition}",
        source=sources,
        rig=rig,
        clips=what_to_make.clips,
        frames=what_to_make.frames,
        average=what_to_make.average,  # number of real frames in an exposure
    )


def scores_of(folder: Path, flags: Sequence[str], results: Path, out: Path) -> dict[str, Scores]:
    """Restore the clips of a folder in one way. Return clip -> its scores.

    folder: folder of the clips.
    flags: flags of main_test_vrt.py, a value of WAYS or FORMULAS.
    results: folder to which the frames are written.
    out: the log is <out>/logs/<name of the folder of the clips>.txt.
    """
    # `make_clips` writes all clips below "train", even if they are only for a test. It writes the
    # frames to <clip>/blur and <clip>/sharp, so --input and --gt are the same folder.
    frames = folder / RGB / "train"
    call(
        "main_test_vrt.py",
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
        # main_test_vrt.py finds the position of the spike camera, and when frames were exposed.
        "spike.calibration=auto",
        out=out,
        name=folder.name,
    )
    scores = {}
    # clip -> {"restored": {"psnr": dB}, "input": {"psnr": dB}, "s_per_frame": seconds, ...}.
    # "s_per_frame" is missing if an earlier call restored the clip.
    clips = read_json(results / "metrics.json")["clips"]
    for clip, about in clips.items():
        moving = moving_psnr(results / clip, frames / clip)  # {"restored": dB, "input": dB}
        scores[clip] = Scores(
            psnr=about["restored"]["psnr"],
            blurry=about["input"]["psnr"],
            moving=moving["restored"],
            s_per_frame=about.get("s_per_frame"),
        )
    return scores


# ---- The table ---------------------------------------------------------------------------------


def table_of(scores_of_conditions: Mapping[str, ScoresOfWays]) -> str:
    """Return the table in Markdown, one row for each condition.

    The table shows how much better the last way is than the way "operator" (BASE), in dB.

    scores_of_conditions: condition -> scores of its ways. All conditions have the same ways.
    """
    rows = [row_of(condition, scores) for condition, scores in scores_of_conditions.items()]
    columns = list(rows[0])  # the same in all rows
    return markdown_table([list(row.values()) for row in rows], columns)


def row_of(condition: str, scores: ScoresOfWays) -> dict[str, str]:
    """Return the row of a condition: name of a column -> cell.

    The gains are gains of the last way over the way "operator" (BASE), in dB.

    E.g. {"": "dim", "blurry": "20.00", "operator": "25.00", ..., "motion": "26.17",
    "gain over operator": "+1.17 ± 4.36", ..., "worst clip": "-0.50 (park_00)", ...}
    """
    base = scores[BASE]
    last_way = list(scores)[-1]
    measured = scores[last_way]
    # The name of the condition, the mean score of the blurry frames, and the mean of each way.
    blurry = statistics.fmean(of_clip.blurry for of_clip in base.values())
    row = {"": condition, "blurry": f"{blurry:.2f}"}
    for way, clips in scores.items():
        psnr = statistics.fmean(of_clip.psnr for of_clip in clips.values())
        row[way] = f"{psnr:.2f}"

    # Add the mean gain with its confidence interval, e.g. "+1.17 ± 4.36", and the mean gain at
    # moving pixels.
    psnr_of_measured = {clip: of_clip.psnr for clip, of_clip in measured.items()}
    psnr_of_base = {clip: of_clip.psnr for clip, of_clip in base.items()}
    row["gain over operator"] = table_cell(difference(psnr_of_measured, psnr_of_base), sign="+")
    gains_of_moving = [measured[clip].moving - base[clip].moving for clip in measured]
    row["moving pixels"] = f"{statistics.fmean(gains_of_moving):+.2f}"

    # The clip that gains least. `min` compares the pairs (gain, name) by the gain. If several clips
    # gain equally, `min` takes the first name in the alphabet.
    gains = [(psnr_of_measured[clip] - psnr_of_base[clip], clip) for clip in measured]
    least_gain, worst_clip = min(gains)
    row["worst clip"] = f"{least_gain:+.2f} ({worst_clip})"

    # The median time of the clips that this call has restored. A clip that an earlier call has
    # restored has the time None. To measure all clips, delete <out>/tests before the call.
    times = [of_clip.s_per_frame for of_clip in measured.values()]
    known_times = [time_s for time_s in times if time_s is not None]
    row["s/frame"] = f"{statistics.median(known_times):.2f}" if known_times else "unknown"
    return row


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

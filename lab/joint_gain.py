#!/usr/bin/env python3
"""Gain over the shipped operator of the frames along the motion of the spikes: of `--method joint`
and of weights/motion.pth, by clip, with one setting, nothing told.

    python lab/joint_gain.py --videos VIDEOS [--part report] [--conditions ideal rig]
    python lab/joint_gain.py --videos VIDEOS --ways motion [--part photos]

The parts:
    choose, report  the test sets of lab/quality.py
    seven           the training videos with seven real frames in an exposure instead of one to
                    four, so that less of the light in between is made by optical flow
    seven_others    the videos of choose and report, likewise; nothing was trained on them
    photos          photographs under exact motion: layers that cover each other, no optical flow

The conditions are those of data/cameras/rig.py, and false models of the frame: `means` of display
values instead of light, and another `curve`. All methods read the clips with
spike.calibration=auto, which finds place, time and length of the exposures.

Writes <out>/<way>_<part>_<condition>.json, with the way as file name, and prints a table.
docs/benchmarks/quality.md has the figures. Clips and frames that are there are not made again.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.quality import (
    CLIPS,
    CONDITIONS,
    FRAMES,
    PHOTOS,
    VIDEOS,
    _cell,
    call,
    difference,
    moving_psnr,
)
from lab.tools import ROOT, environment
from scripts.make_sample_data import RGB, SPIKES
from utils.results import markdown_table, read_json

OPERATOR = str(ROOT / "weights/operator.pth")
# Way to restore -> the flags of main_test_vrt.py. A way is a column of the table.
FORMULAS = {"exposure": ("--method", "exposure"), "joint": ("--method", "joint")}
START = "operator"  # the way with which the others are compared
WAYS = {
    START: ("--weights", OPERATOR),
    "joint from operator": ("--method", "joint", "--weights", OPERATOR),
    "motion": ("--weights", str(ROOT / "weights/motion.pth")),
}
# Part -> the names of its videos (none for photographs), and the flags of prepare_gopro_spike.py.
# clips: number per video. frames: number per clip. average: real frames in an exposure.
SEVEN = {"clips": 2, "frames": 4, "average": 7}
PARTS: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "choose": (VIDEOS["choose"], {"clips": CLIPS["choose"], "frames": FRAMES}),
    "report": (VIDEOS["report"], {"clips": CLIPS["report"], "frames": FRAMES}),
    "seven": (VIDEOS["train"], SEVEN),
    "seven_others": (VIDEOS["choose"] + VIDEOS["report"], SEVEN),
    "photos": ((), {"clips": 2, "frames": 3}),
}
# Condition -> the value of --rig, for the conditions that are no rigs themselves. Their blurry
# frames do not follow the model of the solution: means of display values, or another camera curve.
FALSE_FRAMES = {"means": "ideal,sum_gamma=2.2", "curve": "ideal,gamma=1.8,contrast=0.3"}


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
    # The operator is always restored, too, because the gains are over it. The order of `ways` is
    # that of the columns, and the gains are those of the last.
    sources = linked_sources(args.videos, out / "sources" / args.part, args.part)
    asked = {START, *args.ways}
    ways = {way: flags for way, flags in WAYS.items() if way in asked}
    if args.formulas:
        ways = FORMULAS | ways
    # condition -> way -> clip -> scores. A file is written after each condition, so that a stop
    # loses one condition at most.
    found: dict[str, dict[str, Any]] = {}
    for condition in args.conditions:
        folder = made_clips(out, args.part, condition, sources)
        found[condition] = {}
        for way, flags in ways.items():
            results = out / "tests" / folder.name / way.replace(" ", "_")
            found[condition][way] = scores(out, folder, results, flags)
        # The file has the name of the last way, e.g. motion_report_rig.json.
        about = {"measured": environment(), "part": args.part, "condition": condition}
        text = json.dumps({**about, "ways": found[condition]}, indent=1)
        last = list(ways)[-1].partition(" ")[0]
        (out / f"{last}_{folder.name}.json").write_text(text + "\n")
    print(table_of(found))
    return 0


def linked_sources(videos: Path, folder: Path, part: str) -> Path:
    """Make a folder with links to the videos or photographs of a part. Return the folder.

    videos: folder with the files <name>.<any ending>. folder: where the links are made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in PARTS[part][0]:
        found = sorted(videos.glob(f"{name}.*"))
        if not found:
            sys.exit(f"--videos {videos} has no {name}")
        files.append(found[0])
    # Photographs are files of installed Python packages, e.g. scikit-image.
    if part == "photos":
        for name, photos in PHOTOS.items():
            package = find_spec(name)
            assert package is not None and package.origin is not None
            files += [next(Path(package.origin).parent.rglob(photo)) for photo in photos]
    for file in files:
        link = folder / file.name
        link.exists() or link.symlink_to(file.resolve())
    return folder


def made_clips(out: Path, part: str, condition: str, sources: Path) -> Path:
    """Make the clips of a condition, as lab/quality.py makes its clips. Return their folder.

    prepare_gopro_spike.py keeps clips that are there. sources: folder of `linked_sources`.
    """
    folder = out / "data" / f"{part}_{condition}"
    rig = FALSE_FRAMES.get(condition, condition)
    how = {"source": sources, "rig": rig, "out": folder, **PARTS[part][1]}
    # {"clips": 2} -> ["--clips", "2"]
    words = [word for key, value in how.items() for word in (f"--{key}", str(value))]
    fixed = ["--test-share", "0", "--workers", "1"]
    call("scripts/prepare_gopro_spike.py", out, folder.name, *words, *fixed)
    return folder


def scores(out: Path, folder: Path, results: Path, flags: Sequence[str]) -> dict[str, Any]:
    """Restore the clips of a folder in one way. Return clip -> its scores.

    The scores: "psnr" of the restored and "blurry" of the input frames, "moving" of the restored
    moving pixels, all in dB; "s_per_frame" in seconds, None if the clip was restored before.

    folder: the clips. results: where the frames go. flags: of the way, see `WAYS`.
    """
    # Sharp and blurry frames are in the same folder of a clip. Nothing is told to the methods: they
    # find place and time of the spike camera themselves (calibration=auto).
    frames, spikes = str(folder / RGB / "train"), str(folder / SPIKES / "train")
    places = ["--input", frames, "--spike", spikes, "--gt", frames, "--output", str(results)]
    fixed = ["--save", "frames", "spike.calibration=auto"]
    call("main_test_vrt.py", out, folder.name, *flags, *places, *fixed)
    found = {}
    for clip, about in read_json(results / "metrics.json")["clips"].items():
        moving = moving_psnr(results / clip, folder / RGB / "train" / clip)
        found[clip] = {
            "psnr": about["restored"]["psnr"],
            "blurry": about["input"]["psnr"],
            "moving": moving["restored"],
            "s_per_frame": about.get("s_per_frame"),
        }
    return found


def table_of(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the table in Markdown, one row per condition.

    found: condition -> way -> clip -> scores, see `scores`. The gains are those of the last way
    over the operator.
    """
    rows = []
    last = list(next(iter(found.values())))[-1]
    for condition, ways in found.items():
        # way -> clip -> PSNR in dB, of all and of moving pixels.
        psnr = {way: {clip: s["psnr"] for clip, s in clips.items()} for way, clips in ways.items()}
        moving = {
            way: {clip: s["moving"] for clip, s in clips.items()} for way, clips in ways.items()
        }
        start, best = psnr[START], psnr[last]
        # Gain of each clip, the clip with the smallest gain, and the gain at moving pixels.
        gains = {clip: best[clip] - start[clip] for clip in best}
        least, worst = min((gain, clip) for clip, gain in gains.items())
        of_moving = [moving[last][c] - moving[START][c] for c in gains]
        blurry = statistics.fmean(s["blurry"] for s in ways[START].values())
        seconds = [s["s_per_frame"] for s in ways[last].values()]  # of one thread
        # The order of the cells is that of the header below.
        row = [condition, f"{blurry:.2f}"]
        row += [f"{statistics.fmean(psnr[way].values()):.2f}" for way in ways]
        row += [_cell(difference(best, start), "+"), f"{statistics.fmean(of_moving):+.2f}"]
        row += [f"{least:+.2f} ({worst})", f"{statistics.median(seconds):.2f}"]
        rows.append(row)
    ways = next(iter(found.values()))
    gains = ["gain over operator", "moving pixels", "worst clip", "s/frame"]
    return markdown_table(rows, ["", "blurry", *ways, *gains])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Gain of `--method joint` over the shipped operator: by clip, with one setting, nothing told.

    python lab/joint_gain.py --videos VIDEOS [--part report] [--conditions ideal rig]

The parts `choose` and `report` are the test sets of lab/quality.py. `seven` has the videos on which
the operator was trained, with seven real frames in an exposure instead of one to four, so that less
of the light in between is made by optical flow. Both methods read the clips with
spike.calibration=auto, which finds place, time and length of the exposures.

Writes <out>/joint_<part>_<condition>.json and prints a table. docs/benchmarks/quality.md has the
figures. Clips and frames that are there are not made again.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.quality import CLIPS, CONDITIONS, FRAMES, VIDEOS, _cell, call, difference, moving_psnr
from lab.tools import ROOT, environment
from scripts.make_sample_data import RGB, SPIKES
from utils.results import markdown_table, read_json

OPERATOR = str(ROOT / "weights/operator.pth")
FORMULAS = {"exposure": ("--method", "exposure"), "joint": ("--method", "joint")}
WAYS = {
    "operator": ("--weights", OPERATOR),
    "joint from operator": ("--method", "joint", "--weights", OPERATOR),
}
PARTS = ("choose", "report", "seven")
# Of the part "seven": real frames in an exposure, clips of a video, frames of a clip.
AVERAGE, SEVEN_CLIPS, SEVEN_FRAMES = 7, 2, 4


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--part", choices=PARTS, default="report", help="default %(default)s")
    add("--conditions", nargs="+", default=CONDITIONS, metavar="NAME", help="of a rig; default all")
    add("--formulas", action="store_true", help="also the methods exposure and joint alone")
    add("--out", type=Path, help="results folder (default experiments/joint_gain)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/joint_gain").resolve()
    sources = linked_videos(args.videos, out / "sources" / args.part, args.part)
    ways = WAYS
    if args.formulas:
        ways = FORMULAS | WAYS
    found: dict[str, dict[str, Any]] = {}
    for condition in args.conditions:
        folder = made_clips(out, args.part, condition, sources)
        found[condition] = {}
        for way, flags in ways.items():
            results = out / "tests" / folder.name / way.replace(" ", "_")
            found[condition][way] = scores(out, folder, results, flags)
        about = {"measured": environment(), "part": args.part, "condition": condition}
        text = json.dumps({**about, "ways": found[condition]}, indent=1)
        (out / f"joint_{folder.name}.json").write_text(text + "\n")
    print(table_of(found))
    return 0


def linked_videos(videos: Path, folder: Path, part: str) -> Path:
    """A folder with links to the videos of a part."""
    names = VIDEOS["train" if part == "seven" else part]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = sorted(videos.glob(f"{name}.*"))
        if not found:
            sys.exit(f"--videos {videos} has no {name}")
        link = folder / found[0].name
        link.exists() or link.symlink_to(found[0].resolve())
    return folder


def made_clips(out: Path, part: str, condition: str, sources: Path) -> Path:
    """The folder of the clips of a condition, made as lab/quality.py makes them."""
    folder = out / "data" / f"{part}_{condition}"
    clips, frames, more = CLIPS.get(part), FRAMES, []
    if part == "seven":
        clips, frames, more = SEVEN_CLIPS, SEVEN_FRAMES, ["--average", str(AVERAGE)]
    how = {"source": sources, "rig": condition, "clips": clips, "frames": frames, "out": folder}
    words = [word for key, value in how.items() for word in (f"--{key}", str(value))]
    fixed = ["--test-share", "0", "--workers", "1"]
    call("scripts/prepare_gopro_spike.py", out, folder.name, *words, *fixed, *more)
    return folder


def scores(out: Path, folder: Path, results: Path, flags: Sequence[str]) -> dict[str, Any]:
    """Clip -> PSNR in dB of restored, blurry and restored moving pixels; seconds a frame."""
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
    """The table in Markdown. found: condition -> way -> see `scores`."""
    rows = []
    for condition, ways in found.items():
        psnr = {way: {clip: s["psnr"] for clip, s in clips.items()} for way, clips in ways.items()}
        moving = {
            way: {clip: s["moving"] for clip, s in clips.items()} for way, clips in ways.items()
        }
        start, joint = psnr["operator"], psnr["joint from operator"]
        gains = {clip: joint[clip] - start[clip] for clip in joint}
        least, worst = min((gain, clip) for clip, gain in gains.items())
        of_moving = [moving["joint from operator"][c] - moving["operator"][c] for c in gains]
        blurry = statistics.fmean(s["blurry"] for s in ways["operator"].values())
        seconds = [s["s_per_frame"] for s in ways["joint from operator"].values()]  # of one thread
        row = [condition, f"{blurry:.2f}"]
        row += [f"{statistics.fmean(psnr[way].values()):.2f}" for way in ways]
        row += [_cell(difference(joint, start), "+"), f"{statistics.fmean(of_moving):+.2f}"]
        row += [f"{least:+.2f} ({worst})", f"{statistics.median(seconds):.2f}"]
        rows.append(row)
    ways = next(iter(found.values()))
    gains = ["gain over operator", "moving pixels", "worst clip", "s/frame"]
    return markdown_table(rows, ["", "blurry", *ways, *gains])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

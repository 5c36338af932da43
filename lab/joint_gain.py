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
FORMULAS = {"exposure": ("--method", "exposure"), "joint": ("--method", "joint")}
START = "operator"
WAYS = {
    START: ("--weights", OPERATOR),
    "joint from operator": ("--method", "joint", "--weights", OPERATOR),
    "motion": ("--weights", str(ROOT / "weights/motion.pth")),
}
# Of each part its videos, or photographs, and how its clips are made.
SEVEN = {"clips": 2, "frames": 4, "average": 7}
PARTS: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "choose": (VIDEOS["choose"], {"clips": CLIPS["choose"], "frames": FRAMES}),
    "report": (VIDEOS["report"], {"clips": CLIPS["report"], "frames": FRAMES}),
    "seven": (VIDEOS["train"], SEVEN),
    "seven_others": (VIDEOS["choose"] + VIDEOS["report"], SEVEN),
    "photos": ((), {"clips": 2, "frames": 3}),
}
# Rigs of the conditions that have other names.
FALSE_FRAMES = {"means": "ideal,sum_gamma=2.2", "curve": "ideal,gamma=1.8,contrast=0.3"}


def main(argv: Sequence[str]) -> int:
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
    sources = linked_sources(args.videos, out / "sources" / args.part, args.part)
    asked = {START, *args.ways}
    ways = {way: flags for way, flags in WAYS.items() if way in asked}
    if args.formulas:
        ways = FORMULAS | ways
    found: dict[str, dict[str, Any]] = {}
    for condition in args.conditions:
        folder = made_clips(out, args.part, condition, sources)
        found[condition] = {}
        for way, flags in ways.items():
            results = out / "tests" / folder.name / way.replace(" ", "_")
            found[condition][way] = scores(out, folder, results, flags)
        about = {"measured": environment(), "part": args.part, "condition": condition}
        text = json.dumps({**about, "ways": found[condition]}, indent=1)
        last = list(ways)[-1].partition(" ")[0]
        (out / f"{last}_{folder.name}.json").write_text(text + "\n")
    print(table_of(found))
    return 0


def linked_sources(videos: Path, folder: Path, part: str) -> Path:
    """A folder with links to the videos or photographs of a part."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in PARTS[part][0]:
        found = sorted(videos.glob(f"{name}.*"))
        if not found:
            sys.exit(f"--videos {videos} has no {name}")
        files.append(found[0])
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
    """The folder of the clips of a condition, made as lab/quality.py makes them."""
    folder = out / "data" / f"{part}_{condition}"
    rig = FALSE_FRAMES.get(condition, condition)
    how = {"source": sources, "rig": rig, "out": folder, **PARTS[part][1]}
    words = [word for key, value in how.items() for word in (f"--{key}", str(value))]
    fixed = ["--test-share", "0", "--workers", "1"]
    call("scripts/prepare_gopro_spike.py", out, folder.name, *words, *fixed)
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
    """The table in Markdown; its gains are those of the last way.

    found: condition -> way -> see `scores`.
    """
    rows = []
    last = list(next(iter(found.values())))[-1]
    for condition, ways in found.items():
        psnr = {way: {clip: s["psnr"] for clip, s in clips.items()} for way, clips in ways.items()}
        moving = {
            way: {clip: s["moving"] for clip, s in clips.items()} for way, clips in ways.items()
        }
        start, best = psnr[START], psnr[last]
        gains = {clip: best[clip] - start[clip] for clip in best}
        least, worst = min((gain, clip) for clip, gain in gains.items())
        of_moving = [moving[last][c] - moving[START][c] for c in gains]
        blurry = statistics.fmean(s["blurry"] for s in ways[START].values())
        seconds = [s["s_per_frame"] for s in ways[last].values()]  # of one thread
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

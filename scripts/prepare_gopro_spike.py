#!/usr/bin/env python3
"""Make RGB + spike clips from high-frame-rate video, in the layout that training reads.

    python scripts/prepare_gopro_spike.py --source GOPRO_Large_all --out trainsets/gopro
    python scripts/prepare_gopro_spike.py --source clip.mp4 --out trainsets/mine
    python scripts/prepare_gopro_spike.py --spikes-for GOPRO_Large --out trainsets/gopro

The first makes blur, blur_gamma, sharp and spikes from raw 240-fps clips, the second the same from any video, the third
spikes only, for existing frames: the light between two sharp frames is interpolated, or comes from --source.

The source is only read. All clips are checked before the first one is made. Existing clips are kept, so the same
command continues an interrupted run; other settings and changed sources need another --out. The settings are recorded
in dataset.json, and in made.json beside the frames of each clip. summary.html beside dataset.json shows each clip.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.pool import run_parallel
from data.prepare import Job, Plan, Recipe, make_folder, plan_clip
from data.raw_video import SPLITS, RawClip, find_raw_clips
from data.spike_info import FILE_NAME, FORMAT
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.prepare_summary import check_summary, summarise, write_summary
from scripts.parts.shown import shown
from utils.errors import DataError, OptionError
from utils.files import free_bytes, natural_key, refuse_overlap, write_whole


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", type=Path, help="raw clips: folders of images or videos, with or without train/ and test/"
    )
    parser.add_argument("--spikes-for", type=Path, metavar="DIR", help="an existing GOPRO_Large: make its spikes only")
    parser.add_argument("--out", type=Path, required=True, help="gets GOPRO_Large/ and GOPRO_Large_spike_seq/")
    parser.add_argument("--test-share", type=float, default=0.2, help="share of test clips, if the source has no split")
    parser.add_argument(
        "--offset", action="append", default=[], metavar="[CLIP=]N",
        help="the sharp frames of --spikes-for are N raw frames later than expected; detected where it is unambiguous",
    )  # fmt: skip
    parser.add_argument("--leave-out", action="append", default=[], metavar="CLIP", help="make all clips but this one")
    parser.add_argument("--average", type=int, help="raw frames per exposure, odd; default: from GoPro names, else 7")
    parser.add_argument("--interpolate", type=int, default=8, help="spike planes per raw frame")
    parser.add_argument("--method", choices=("flow", "linear"), default="flow", help="interpolation between raw frames")
    parser.add_argument("--ratio", type=int, default=2, help="RGB pixels per spike pixel, each way")
    parser.add_argument("--gamma", type=float, default=2.2)
    parser.add_argument("--light", choices=("linear", "display"), default="linear", help="what the sensor integrates")
    parser.add_argument("--rate", type=float, default=0.5, help="spikes per plane at full light (gain / threshold)")
    parser.add_argument("--threshold", type=float, default=1.0, help="of the sensor; noise values are relative to it")
    parser.add_argument(
        "--initial-charge", type=float, default=1.0, help="upper end of the uniform first charge, in thresholds"
    )
    parser.add_argument(
        "--shot-noise", type=float, default=0.0, help="standard deviation per plane at full light, in thresholds"
    )
    parser.add_argument("--dark-rate", type=float, default=0.0, help="spikes per plane without light")
    parser.add_argument(
        "--threshold-mismatch", type=float, default=0.0, help="relative standard deviation between pixels"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--instants", type=int, default=0, metavar="K", help="also write K sharp instants of each exposure (K odd)"
    )
    parser.add_argument("--workers", type=int, default=cores(), help="processes; default: one for each core")
    parser.add_argument("--dry-run", action="store_true", help="print what would be made, and its size")
    return parser.parse_args(arguments)


POSITIVE = ("gamma", "threshold")
WORDS = ("what", "where", "expected", "do")  # the parts of an error
NOISE = ("initial_charge", "shot_noise", "dark_rate", "threshold_mismatch")


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    check_numbers(command)
    inputs = {"--source": command.source, "--spikes-for": command.spikes_for}
    for name in ("GOPRO_Large_spike_seq", *(() if command.spikes_for else ("GOPRO_Large",))):
        refuse_overlap(command.out / name, inputs, "--out")
    recipe = Recipe(**{key: getattr(command, key) for key in Recipe.__dataclass_fields__})
    jobs = find_jobs(command)
    check_recipe(command.out, recipe)
    plans = plan_all(jobs, recipe, command.workers)
    todo = [job for job in jobs if plans[job].todo]
    total = sum(plans[job].bytes for job in todo)
    print(f"{len(jobs)} clips, {len(jobs) - len(todo)} of them made already; about {total / 1e9:.2f} GB to write")
    for job in todo:
        print_offset(job, plans[job].offset, recipe)
    if command.dry_run:
        print_plans(plans, recipe)
        return 0
    check_room(command.out, total)
    check_summary(info_path(command.out).parent)
    write_info(command.out, recipe, plans)
    make_all(plans, recipe, command.workers)
    calls = [(job, recipe, plan.offset) for job, plan in plans.items()]
    clips = run_counted(command.workers, summarise, calls, [1] * len(calls), "summary", "clips")
    page = write_summary(info_path(command.out).parent, recipe, clips)
    print(f"made {command.out}: see {page}; check it with scripts/doctor.py --data --opt FILE")
    return 0


def print_plans(plans: dict[Job, Plan], recipe: Recipe) -> None:
    for job, plan in plans.items():
        state = f"{plan.bytes / 1e6:9.1f} MB" if plan.todo else "     made"
        average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
        print(f"  {state}  {job.split}/{job.name}: {average} frames averaged, {planes} planes a file")


def make_all(plans: dict[Job, Plan], recipe: Recipe, workers: int) -> None:
    """Make the missing folders. The longest come first, so that no process is left alone with one at the end."""
    todo = [(job, plan, kind) for job, plan in plans.items() for kind in plan.todo]
    todo.sort(key=lambda item: (-item[1].frames, item[2] != "spikes"))  # spikes take longer than pictures
    calls = [(job, recipe, plan.record, kind) for job, plan, kind in todo]
    peaks = run_counted(workers, make_folder, calls, [plan.frames for _, plan, _ in todo], "making", "frames")
    if peaks:
        print(f"peak memory of a process: {1000 * max(peaks):.0f} MB")


def run_counted(
    workers: int, function: Callable[..., Any], calls: list[tuple[Any, ...]], counts: list[int], name: str, unit: str
) -> list[Any]:
    """The results of function(*call) in order, while the progress over all calls is shown.

    counts: units of work of each call.
    """
    results = [None] * len(calls)
    with shown(sum(counts), name, unit, quiet_s=0) as progress:
        for number, result in run_parallel(function, calls, workers):
            results[number] = result
            progress.update(counts[number])
    return results


def check_numbers(command: argparse.Namespace) -> None:
    """Raise OptionError for numbers out of range."""
    if not command.source and not command.spikes_for:
        raise OptionError("nothing to read", "--source, --spikes-for", "at least one of them", "see --help")
    average, instants = command.average, command.instants
    wrong = [
        ("--average", average, average is not None and (average < 1 or average % 2 == 0), "an odd number >= 1"),
        ("--test-share", command.test_share, not 0 <= command.test_share < 1, "0 <= share < 1"),
        *((f"--{key}", getattr(command, key), getattr(command, key) < 1, ">= 1") for key in ("interpolate", "ratio")),
        *((f"--{k}", getattr(command, k), not 0 < getattr(command, k) < inf, "> 0") for k in POSITIVE),
        ("--rate", command.rate, not 0 < command.rate <= 1, "above 0, at most 1: a pixel fires once per plane at most"),
        *((f"--{k.replace('_', '-')}", getattr(command, k), not 0 <= getattr(command, k) < inf, ">= 0") for k in NOISE),
        ("--instants", instants, instants < 0 or (instants > 0 and instants % 2 == 0), "0, or an odd number"),
        ("--instants", instants, bool(instants and command.spikes_for), "0 with --spikes-for, which makes no pictures"),
        ("--workers", command.workers, command.workers < 1, ">= 1"),
    ]
    for flag, value, is_wrong, expected in wrong:
        if is_wrong:
            raise OptionError(f"{flag} is {value}", flag, expected, "correct it")


def find_jobs(command: argparse.Namespace) -> list[Job]:
    """Every clip to make, with its split. Raises DataError where --source lacks clips of --spikes-for."""
    raw = find_raw_clips(command.source) if command.source else []
    if not command.spikes_for:
        splits = choose_splits(raw, command.test_share, command.out)
        jobs = [Job(clip.name, splits[clip.name], clip, None, command.out) for clip in raw]
    else:
        jobs = find_existing(command, {clip.name: clip for clip in raw})
    refuse_unknown(command, jobs)
    jobs = [job for job in jobs if job.name not in command.leave_out]
    missing = [job.name for job in jobs if raw and job.raw is None]
    if missing:
        raise DataError(
            f"the raw video of {len(missing)} clips is missing: {', '.join(missing[:5])}", str(command.source),
            "a raw clip for each clip of --spikes-for", "add them, or leave these clips out (--leave-out)",
        )  # fmt: skip
    if not jobs:
        raise OptionError("no clip is left to make", "--leave-out", "at least one clip", "leave out fewer clips")
    return jobs


def refuse_unknown(command: argparse.Namespace, jobs: list[Job]) -> None:
    """Raise OptionError where --leave-out or --offset names an unknown clip, or where --offset has no effect."""
    names = {job.name for job in jobs}
    unknown = [f"--leave-out {name}" for name in command.leave_out if name not in names]
    unknown += [
        f"--offset {name}={n}" for name, n in read_offsets(command.offset).items() if name and name not in names
    ]
    if unknown:
        raise OptionError(f"no such clip: {', '.join(unknown)}", "the command line", "names of clips", "correct them")
    if command.offset and not (command.source and command.spikes_for):
        raise OptionError(
            "--offset has no effect", "--offset", "--source and --spikes-for, whose frames it aligns", "drop --offset"
        )


def find_existing(command: argparse.Namespace, raw: dict[str, RawClip]) -> list[Job]:
    """The clips of --spikes-for, with their raw clips by name. Raises DataError for none, or for two of one name."""
    jobs, offsets = [], read_offsets(command.offset)
    for split in SPLITS:
        folders = [(path.parent.name, path) for path in command.spikes_for.glob(f"{split}/*/sharp")]
        folders += [(path.name, path) for path in command.spikes_for.glob(f"{split}_GT/*") if path.is_dir()]
        for name, sharp in sorted(folders, key=lambda folder: natural_key(folder[0])):
            offset = offsets.get(name, offsets.get(""))
            jobs.append(Job(name, split, raw.get(name), sharp, command.out, offset))
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if twice or not jobs:
        what = f"two clips of the same name: {', '.join(twice[:5])}" if twice else "no clip found"
        raise DataError(
            what, str(command.spikes_for), "<split>/<clip>/sharp or <split>_GT/<clip>", "correct the folders"
        )
    return jobs


def read_offsets(texts: list[str]) -> dict[str, int]:
    """Clip name ("" for all others) -> offset, from values of --offset."""
    offsets = {}
    for text in texts:
        clip, _, number = text.rpartition("=")
        try:
            offsets[clip] = int(number)
        except ValueError as e:
            raise OptionError(
                f"--offset is {text!r}", "--offset", "N, or CLIP=N", "for instance 1 or GOPR0372_07_00=1"
            ) from e
    return offsets


def choose_splits(raw: list[RawClip], share: float, out: Path) -> dict[str, str]:
    """Clip name -> split. Where the source has none, `share` of the clips are for testing: at least one, never all.

    Clips of an earlier start keep their split: those in dataset.json, which is written before any clip is made.
    """
    names = [clip.name for clip in raw if not clip.split]
    here = {n: s for s in SPLITS for n in names if (out / "GOPRO_Large" / s / n).is_dir()}
    here |= {n: clip["split"] for n, clip in read_info(out)["clips"].items() if n in names and "split" in clip}
    free = [name for name in names if name not in here]
    wanted = min(max(1, round(share * len(names))), len(names) - 1) if share > 0 and len(names) > 1 else 0
    count = min(max(0, wanted - sum(split == "test" for split in here.values())), len(free))
    test = {free[(i + 1) * len(free) // count - 1] for i in range(count)}
    return {c.name: c.split or here.get(c.name) or ("test" if c.name in test else "train") for c in raw}


def plan_all(jobs: list[Job], recipe: Recipe, workers: int) -> dict[Job, Plan]:
    """Check every clip, before anything is written. Raises DataError with the problems of all clips."""
    results = run_counted(workers, plan_clip, [(job, recipe) for job in jobs], [1] * len(jobs), "checking", "clips")
    found: dict[Job, Plan | DataError] = dict(zip(jobs, results, strict=True))
    errors = {job: error for job, error in found.items() if isinstance(error, DataError)}
    plans = {job: plan for job, plan in found.items() if job not in errors}
    errors |= other_sizes(plans)
    if errors:
        raise wrong_clips(errors, is_any_left=len(errors) < len(jobs))
    return plans


def other_sizes(plans: dict[Job, Plan]) -> dict[Job, DataError]:
    """The errors of clips of another size than most have."""
    if not plans:
        return {}
    (height, width), _ = Counter(plan.size for plan in plans.values()).most_common(1)[0]
    return {
        job: DataError(
            f"clip {job.name} has another size than the others: {plan.size[0]} x {plan.size[1]}", job.where,
            f"frames of one size, as {height} x {width}: spikes of one data set have one size",
            "make clips of another size in a run of their own, with another --out",
        )
        for job, plan in plans.items() if plan.size != (height, width)
    }  # fmt: skip


def wrong_clips(errors: dict[Job, DataError], is_any_left: bool) -> DataError:
    """One error for all clips that cannot be made. is_any_left: whether others can be made."""
    what, where, expected, do = ([getattr(e, part) for e in errors.values()] for part in WORDS)
    if is_any_left:
        do.append(f"make only the others: {' '.join(f'--leave-out {job.name}' for job in errors)}")
    text = what[0]
    if len(errors) > 1:
        lines = "".join(f"\n    {problem}  [{place}]" for problem, place in zip(what, where, strict=True))
        text, where = f"{len(errors)} clips cannot be made:{lines}", ["the clips named"]
    return DataError(text, where[0], *("; ".join(dict.fromkeys(words)) for words in (expected, do)))


def print_offset(job: Job, offset: int, recipe: Recipe) -> None:
    if offset:
        when = "later" if offset > 0 else "earlier"
        print(
            f"{job.name}: its sharp frames are {abs(offset)} raw frames {when} than expected; recorded in dataset.json"
        )
    if offset < 0:
        print(f"{job.name}: the first {-offset * recipe.interpolate} planes repeat the light of its first raw frame")


def check_room(out: Path, need: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    free = free_bytes(out)
    if need > 0.95 * free:
        raise DataError(
            f"about {need / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free",
            str(out),
            "enough free space",
            "choose another disk",
        )


def info_path(out: Path) -> Path:
    return out / "GOPRO_Large_spike_seq" / FILE_NAME


def read_info(out: Path) -> dict[str, Any]:
    """The dataset.json of an earlier run; empty where there is none. Raises DataError if another program made it."""
    path = info_path(out)
    try:
        table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"recipe": None, "clips": {}}
        if not isinstance(table["clips"], dict) or "recipe" not in table:
            raise KeyError("recipe")
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(
            f"dataset.json was not made by this script: {e}", str(path), "no such file, or one of an earlier run",
            "choose another --out, or move the file away",
        ) from e  # fmt: skip
    return table


def check_recipe(out: Path, recipe: Recipe) -> None:
    """Refuse to mix clips of two recipes in one folder."""
    path, made = info_path(out), read_info(out)["recipe"]
    if made is not None and made != recipe.record():
        wanted = recipe.record()
        differing = ", ".join(key for key in {**wanted, **made} if made.get(key) != wanted.get(key))
        raise DataError(
            f"{out} was made with other settings: {differing}", str(path), "the same settings",
            "choose another --out, or remove the folder",
        )  # fmt: skip


def write_info(out: Path, recipe: Recipe, plans: dict[Job, Plan]) -> None:
    """dataset.json: the geometry, planes per clip, and the offset of clips that have one."""
    height, width = (side // recipe.ratio for side in next(iter(plans.values())).size)
    table = read_info(out)
    if table.get("h", height) != height or table.get("w", width) != width:
        raise DataError(
            f"spikes of {height} x {width} would join those of {table['h']} x {table['w']}", str(info_path(out)),
            "one size of spikes in a data set", "choose another --out",
        )  # fmt: skip
    clips = table["clips"]
    for job, plan in plans.items():
        planes, gt_plane = recipe.planes_of(job.name), recipe.gt_plane_of(job.name)
        clips[job.name] = {"split": job.split, "planes": planes, "gt_plane": gt_plane}
        if plan.offset:
            clips[job.name]["offset"] = plan.offset
    counts = Counter(clip["planes"] for clip in clips.values())
    common = next(clip for clip in clips.values() if clip["planes"] == counts.most_common(1)[0][0])
    about: dict[str, Any] = {
        "format": FORMAT, "h": height, "w": width, "flip": True, "planes": common["planes"],
        "gt_plane": common["gt_plane"], "rate": recipe.rate, "light": recipe.light, "clips": clips,
        "recipe": recipe.record(), "made_by": "scripts/prepare_gopro_spike.py",
    }  # fmt: skip
    write_whole(info_path(out), (json.dumps(about, indent=2) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())

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

import argparse
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.files import FrameSource
from data.prepare import SPLITS, Job, Plan, RawClip, Recipe, find_raw_clips, make_folder, plan_clip
from data.spike.formats import SpikeGeometry, read_spikes
from data.spike.represent import represent
from data.spike.simulate import to_grey, to_uint8
from data.spike_info import FILE_NAME, FORMAT
from scripts.parts.exit_codes import shown, with_exit_code
from utils.dist.process import die_with_parent
from utils.errors import DataError, OptionError
from utils.files import free_bytes, natural_key, refuse_overlap, write_whole
from utils.image import render, side_by_side
from utils.options.section import read_section

INFO = Path("GOPRO_Large_spike_seq", FILE_NAME)
SUMMARY = {"summary.html": " prepared clips</title>", "summary.json": '{\n  "recipe": {'}  # -> how it begins
WIDTH, LEAST_WIDTH = 320, 160  # of one picture of the summary
SUMMARY_FILES = 8  # spike files of a clip that are read for its rates
HALF_WINDOW = 10  # planes before and after the sharp one, as in the default of tfp
COLUMNS = {
    "split": "split", "frames": "frames", "planes": "planes a file", "gt_plane": "sharp plane", "offset": "offset",
    "firing_rate": "spikes per plane", "light_rate": "from the light", "correlation": "correlation",
}  # fmt: skip


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    inputs = {"--source": command.source, "--spikes-for": command.spikes_for}
    for name in ("GOPRO_Large_spike_seq", *(() if command.spikes_for else ("GOPRO_Large",))):
        refuse_overlap(command.out / name, inputs, "--out")
    recipe, jobs = command.recipe, find_jobs(command)
    info, folder = read_info(command.out, recipe), (command.out / INFO).parent
    plans = plan_all(jobs, recipe, command.workers)
    todo = [job for job in jobs if plans[job].todo]
    total = sum(plans[job].bytes for job in todo)
    print(f"{len(jobs)} clips, {len(jobs) - len(todo)} of them made already; about {total / 1e9:.2f} GB to write")
    for job in todo:
        if offset := plans[job].record["offset"]:
            when = f"{abs(offset)} raw frames {'later' if offset > 0 else 'earlier'} than expected"
            print(f"{job.name}: its sharp frames are {when}; recorded in dataset.json")
        if offset < 0:
            planes = -offset * recipe.interpolate
            print(f"{job.name}: the first {planes} planes repeat the light of its first raw frame")
    if command.dry_run:
        for job, plan in plans.items():
            state = f"{plan.bytes / 1e6:9.1f} MB" if plan.todo else "     made"
            average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
            print(f"  {state}  {job.split}/{job.name}: {average} frames averaged, {planes} planes a file")
        return 0
    command.out.mkdir(parents=True, exist_ok=True)
    if total > 0.95 * (free := free_bytes(command.out)):
        what = f"about {total / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        raise DataError(what, str(command.out), "enough free space", "choose another disk")
    check_summary(folder)
    write_info(command.out, info, recipe, plans)
    # The longest come first, so that no process is left alone with one at the end; spikes take longer than images.
    parts = [(job, plan, kind) for job, plan in plans.items() for kind in plan.todo]
    parts.sort(key=lambda part: (-part[1].frames, part[2] != "spikes"))
    calls = [(job, recipe, plan.record, kind) for job, plan, kind in parts]
    peaks = run_counted(command.workers, make_folder, calls, [plan.frames for _, plan, _ in parts], "making", "frames")
    if peaks:
        print(f"peak memory of a process: {1000 * max(peaks):.0f} MB")
    calls = [(job, recipe, plan.record["offset"]) for job, plan in plans.items()]
    clips = run_counted(command.workers, summarise, calls, [1] * len(calls), "summary", "clips")
    page = write_summary(folder, recipe, clips)
    print(f"made {command.out}: see {page}; check it with scripts/doctor.py --data --opt FILE")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, with its `recipe`. Raises OptionError for numbers out of range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", type=Path, help="raw clips: folders of images or videos, with or without train/ and test/")
    add("--spikes-for", type=Path, metavar="DIR", help="an existing GOPRO_Large: make its spikes only")
    add("--out", type=Path, required=True, help="gets GOPRO_Large/ and GOPRO_Large_spike_seq/")
    add("--test-share", type=float, default=0.2, help="share of test clips, if the source has no split")
    add(
        "--offset", action="append", default=[], metavar="[CLIP=]N",
        help="the sharp frames of --spikes-for are N raw frames later than expected; detected where it is unambiguous",
    )  # fmt: skip
    add("--leave-out", action="append", default=[], metavar="CLIP", help="make all clips but this one")
    for name, setting in Recipe.model_fields.items():
        kind = int if setting.default is None else type(setting.default)
        choices = get_args(setting.annotation) if kind is str else None
        add(
            f"--{name.replace('_', '-')}", type=kind, default=setting.default, choices=choices, help=setting.description
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    add("--workers", type=int, default=cores, help="processes; default: one for each core")
    add("--dry-run", action="store_true", help="print what would be made, and its size")
    command = parser.parse_args(arguments)
    if not command.source and not command.spikes_for:
        raise OptionError("nothing to read", "--source, --spikes-for", "at least one of them", "see --help")
    try:
        command.recipe = read_section(Recipe, {name: getattr(command, name) for name in Recipe.model_fields}, "")
    except OptionError as e:
        flag = f"--{e.where.replace('_', '-')}"
        raise OptionError(f"{flag} is {getattr(command, e.where)}", flag, e.expected, "correct it") from None
    for flag, value, is_wrong, expected in (
        ("--average", command.average, (command.average or 1) % 2 == 0, "an odd number"),
        ("--instants", command.instants, command.instants and command.instants % 2 == 0, "0, or an odd number"),
        ("--instants", command.instants, command.instants and command.spikes_for, "0 with --spikes-for"),
        ("--workers", command.workers, command.workers < 1, "at least 1"),
        ("--test-share", command.test_share, not 0 <= command.test_share < 1, "0 <= share < 1"),
    ):
        if is_wrong:
            raise OptionError(f"{flag} is {value}", flag, expected, "correct it")
    return command


def run_counted(
    workers: int, function: Callable[..., Any], calls: list[tuple[Any, ...]], counts: list[int], name: str, unit: str
) -> list[Any]:
    """The results of function(*call) in order, from parallel processes, while the progress over all calls is shown.

    counts: units of work of each call. The calls are begun in their order; one worker or a single call runs in this
    process. The first error is raised and ends the other calls. Raises DataError where a process dies.
    """
    results: list[Any] = [None] * len(calls)
    with shown(sum(counts), name, unit, quiet_s=0) as progress:
        workers = min(workers, len(calls))
        if workers <= 1:
            for number, call in enumerate(calls):
                results[number] = function(*call)
                progress.update(counts[number])
            return results
        # spawn, as OpenCV's threads do not survive a fork. A process that outlived its parent would write into the
        # folders of the next run.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), die_with_parent) as pool:
            # Ctrl-C reaches all processes; the parent ends these. They inherit the mask.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                numbers = {pool.submit(function, *call): number for number, call in enumerate(calls)}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                for future in as_completed(numbers):
                    results[numbers[future]] = future.result()
                    progress.update(counts[numbers[future]])
            except BrokenProcessPool as e:
                expected, do = f"memory for {workers} of them", "lower --workers, then start the same command again"
                raise DataError("a process of the pool died", function.__name__, expected, do) from e
            except BaseException:
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    return results


def find_jobs(command: argparse.Namespace) -> list[Job]:
    """Every clip to make, with its split.

    Raises DataError where --source lacks clips of --spikes-for, OptionError where --leave-out or --offset names an
    unknown clip, or where --offset has no effect.
    """
    raw, offsets = find_raw_clips(command.source) if command.source else [], {}
    for text in command.offset:
        clip, _, number = text.rpartition("=")
        try:
            offsets[clip] = int(number)
        except ValueError as e:
            raise OptionError(f"--offset is {text!r}", "--offset", "N, or CLIP=N", "for instance c=1") from e
    if command.spikes_for:
        jobs = find_existing(command, {clip.name: clip for clip in raw}, offsets)
    else:
        splits = choose_splits(raw, command.test_share, command.out)
        jobs = [Job(clip.name, splits[clip.name], clip, None, command.out) for clip in raw]
    names = {job.name for job in jobs}
    unknown = [f"--leave-out {name}" for name in command.leave_out if name not in names]
    unknown += [f"--offset {name}={n}" for name, n in offsets.items() if name and name not in names]
    if unknown:
        raise OptionError(f"no such clip: {', '.join(unknown)}", "the command line", "names of clips", "correct them")
    if offsets and not (command.source and command.spikes_for):
        expected = "--source and --spikes-for, whose frames it aligns"
        raise OptionError("--offset has no effect", "--offset", expected, "drop --offset")
    jobs = [job for job in jobs if job.name not in command.leave_out]
    missing = [job.name for job in jobs if raw and job.raw is None]
    if missing:
        what = f"the raw video of {len(missing)} clips is missing: {', '.join(missing[:5])}"
        raise DataError(what, str(command.source), "one for each clip of --spikes-for", "add them, or --leave-out them")
    if not jobs:
        raise OptionError("no clip is left to make", "--leave-out", "at least one clip", "leave out fewer clips")
    return jobs


def find_existing(command: argparse.Namespace, raw: dict[str, RawClip], offsets: dict[str, int]) -> list[Job]:
    """The clips of --spikes-for, with their raw clips by name. Raises DataError for none, or for two of one name."""
    jobs = []
    for split in SPLITS:
        folders = [(path.parent.name, path) for path in command.spikes_for.glob(f"{split}/*/sharp")]
        folders += [(path.name, path) for path in command.spikes_for.glob(f"{split}_GT/*") if path.is_dir()]
        for name, sharp in sorted(folders, key=lambda folder: natural_key(folder[0])):
            offset = offsets.get(name, offsets.get(""))  # "": of all others
            jobs.append(Job(name, split, raw.get(name), sharp, command.out, offset))
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if twice or not jobs:
        what = f"two clips of the same name: {', '.join(twice[:5])}" if twice else "no clip found"
        expected = "<split>/<clip>/sharp or <split>_GT/<clip>"
        raise DataError(what, str(command.spikes_for), expected, "correct the folders")
    return jobs


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
    common = Counter(plan.size for plan in plans.values()).most_common(1)
    for job, plan in plans.items():
        if plan.size != common[0][0]:
            what = "clip {} has another size than the others: {} x {}".format(job.name, *plan.size)
            expected = "frames of one size, as {} x {}".format(*common[0][0])
            do = "make clips of another size in a run of their own, with another --out"
            errors[job] = DataError(what, str(job.source), expected, do)
    if not errors:
        return plans
    (what, where), *more = [(error.what, error.where) for error in errors.values()]
    expected, do = ("; ".join(dict.fromkeys(getattr(e, part) for e in errors.values())) for part in ("expected", "do"))
    if more:
        lines = "".join(f"\n    {error.what}  [{error.where}]" for error in errors.values())
        what, where = f"{len(errors)} clips cannot be made:{lines}", "the clips named"
    if len(errors) < len(jobs):
        do += f"; make only the others: {' '.join(f'--leave-out {job.name}' for job in errors)}"
    raise DataError(what, where, expected, do)


def read_info(out: Path, recipe: Recipe | None = None) -> dict[str, Any]:
    """The dataset.json of an earlier run; empty where there is none.

    Raises DataError if another program, or this one with another recipe, made it.
    """
    path = out / INFO
    try:
        table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"recipe": None, "clips": {}}
        made = table["recipe"]
        if not isinstance(table["clips"], dict):
            raise TypeError("no clips")
    except (OSError, ValueError, KeyError, TypeError) as e:
        what, do = f"dataset.json was not made by this script: {e}", "choose another --out, or move the file away"
        raise DataError(what, str(path), "none, or one of an earlier run", do) from e
    if recipe and made is not None and made != (wanted := recipe.record()):
        differing = ", ".join(key for key in {**wanted, **made} if made.get(key) != wanted.get(key))
        what, do = f"{out} was made with other settings: {differing}", "choose another --out, or remove the folder"
        raise DataError(what, str(path), "the same settings", do)
    return table


def write_info(out: Path, table: dict[str, Any], recipe: Recipe, plans: dict[Job, Plan]) -> None:
    """dataset.json: the geometry, planes per clip, and the offset of clips that have one; table: that of before."""
    height, width = (side // recipe.ratio for side in next(iter(plans.values())).size)
    if table.get("h", height) != height or table.get("w", width) != width:
        what = f"spikes of {height} x {width} would join those of {table['h']} x {table['w']}"
        raise DataError(what, str(out / INFO), "one size of spikes in a data set", "choose another --out")
    clips = table["clips"]
    for job, plan in plans.items():
        planes, gt_plane = recipe.planes_of(job.name), recipe.gt_plane_of(job.name)
        clips[job.name] = {"split": job.split, "planes": planes, "gt_plane": gt_plane}
        if offset := plan.record["offset"]:
            clips[job.name]["offset"] = offset
    counts = Counter(clip["planes"] for clip in clips.values())
    common = next(clip for clip in clips.values() if clip["planes"] == counts.most_common(1)[0][0])
    about: dict[str, Any] = {
        "format": FORMAT, "h": height, "w": width, "flip": True, "planes": common["planes"],
        "gt_plane": common["gt_plane"], "rate": recipe.rate, "light": recipe.light, "clips": clips,
        "recipe": recipe.record(), "made_by": "scripts/prepare_gopro_spike.py",
    }  # fmt: skip
    write_whole(out / INFO, (json.dumps(about, indent=2) + "\n").encode())


def summarise(job: Job, recipe: Recipe, offset: int) -> dict[str, Any]:
    """Read back a part of the files of a clip: its "numbers", see summary.html, and one frame as a picture, "strip".

    strip: blurry, sharp and spikes side by side, (H, W, 3) uint8.
    """
    cv2.setNumThreads(1)
    sharp = FrameSource(job.sharp or job.rgb / "sharp")
    files = [job.spikes / "spike" / f"{stem}.dat" for stem in sharp.stems]
    geometry = SpikeGeometry(*(side // recipe.ratio for side in sharp.size))
    # Evenly spaced, with the middle one, which is shown.
    shown = len(files) // 2
    chosen = {shown, *np.linspace(0, len(files) - 1, min(SUMMARY_FILES, len(files)) - 1, dtype=int).tolist()}
    rates, expected = [], []
    for number in sorted(chosen):
        stream, values = read_spikes(files[number], geometry), sharp.read(number).astype(np.float32) / 255
        values = np.power(values, np.float32(recipe.gamma)) if recipe.light == "linear" else values
        light = cv2.resize(to_grey(values), (geometry.width, geometry.height), interpolation=cv2.INTER_AREA)
        rates.append(float(stream.mean()))
        expected.append(recipe.rate * float(light.mean()) + recipe.dark_rate)
        if number == shown:
            rate = {"rate": recipe.rate, "light": recipe.light}
            center = min(recipe.gt_plane_of(job.name), len(stream) - 1)
            seen = represent("tfp", stream, center, half_window=HALF_WINDOW, gamma=2.2, **rate)[0]
            spikes = to_uint8(seen)[..., None].repeat(3, axis=2)
            both = [np.power(light, 1 / 2.2 if recipe.light == "linear" else 1.0).ravel(), seen.ravel()]
            correlation = float(np.corrcoef(both)[0, 1]) if min(map(np.std, both)) > 0 else None
    numbers = {
        "clip": job.name, "split": job.split, "frames": len(sharp), "size": list(sharp.size),
        "spike_size": [geometry.height, geometry.width], "planes": recipe.planes_of(job.name),
        "gt_plane": recipe.gt_plane_of(job.name), "offset": offset, "firing_rate": round(float(np.mean(rates)), 5),
        "light_rate": round(float(np.mean(expected)), 5),
        "correlation": correlation if correlation is None else round(correlation, 4), "shown": sharp.stems[shown],
    }  # fmt: skip
    # The blurry frames were made here, or lie beside the existing sharp ones in one of the two layouts.
    beside = sharp.path.with_name("blur")
    if sharp.path.name != "sharp":
        beside = sharp.path.parent.with_name(f"{sharp.path.parent.name}_blurred") / sharp.path.name
    panels = {"sharp": sharp.read(shown), "spikes (tfp)": spikes}
    if found := sorted(beside.glob(f"{sharp.stems[shown]}.*")):
        panels = {"blurry": FrameSource(found[0]).read(0), **panels}
    # Side by side, each between LEAST_WIDTH and WIDTH pixels wide.
    height, width = sharp.size
    scale = WIDTH / width if width > WIDTH else max(1, LEAST_WIDTH // width)
    size = (round(height * scale), round(width * scale))
    small = [
        cv2.resize(p, size[::-1], interpolation=cv2.INTER_AREA) if p.shape[1] > size[1] else p for p in panels.values()
    ]
    return {"numbers": numbers, "strip": side_by_side(small, list(panels), size)}


def check_summary(folder: Path) -> None:
    """Raises DataError where files of the names of a summary are not ours."""
    for name, begin in SUMMARY.items():
        path = folder / name
        if os.path.lexists(path) and not (path.is_file() and begin.encode() in path.read_bytes()[:200]):
            what = f"{name} was not made by this program"
            raise DataError(what, str(path), "a summary of an earlier run, or none", "move it away")


def write_summary(folder: Path, recipe: Recipe, clips: list[dict[str, Any]]) -> Path:
    """Write both files into the folder; the path of the page. An unchanged file is left as it is."""
    settings = recipe.record()
    page = render(
        "summary", title=f"{len(clips)} prepared clips", files=SUMMARY_FILES, columns=COLUMNS, clips=clips,
        recipe=", ".join(f"{key} {value}" for key, value in settings.items() if value is not None),
    )  # fmt: skip
    numbers = json.dumps({"recipe": settings, "clips": [clip["numbers"] for clip in clips]}, indent=2) + "\n"
    for name, content in zip(SUMMARY, (page.encode(), numbers.encode()), strict=True):
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            write_whole(path, content)
    return folder / next(iter(SUMMARY))


if __name__ == "__main__":
    sys.exit(main())

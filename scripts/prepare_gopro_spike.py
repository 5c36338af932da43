#!/usr/bin/env python3
"""Make RGB + spike clips from video or photographs, in the layout that training reads.

    python scripts/prepare_gopro_spike.py --source GOPRO_Large_all --out trainsets/gopro
    python scripts/prepare_gopro_spike.py --source my_videos --rig random --out trainsets/mine

The first makes blur, blur_gamma, sharp and spikes from video of a high frame rate, whose frames are
averaged. The second takes videos of any rate, folders of frames and photographs: two simulated
cameras (data/cameras/rig.py) record the light between the frames, which moves along the optical
flow, or what a moving camera sees of the photograph. Sharp frames are real ones.

The source is only read. All clips are checked before the first one is made. Existing clips are
kept, so the same command continues an interrupted run; other settings and changed sources need
another --out. The settings are recorded in dataset.json, and in made.json beside the frames of each
clip.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.cameras.spike_info import FILE_NAME, FORMAT
from data.making import prepare
from data.making.prepare import Job, Plan, RawClip, Recipe
from scripts.parts.exit_codes import shown, with_exit_code
from utils.dist.process import die_with_parent
from utils.errors import DataError, OptionError
from utils.files import free_bytes, refuse_overlap, write_whole
from utils.options.section import read_section

INFO = Path("GOPRO_Large_spike_seq", FILE_NAME)


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    recipe, out = command.recipe, command.out
    for name in ("GOPRO_Large_spike_seq", "GOPRO_Large"):
        refuse_overlap(out / name, {"--source": command.source}, "--out")
    jobs = find_jobs(command)
    info = read_info(out, recipe)
    plans = plan_all(jobs, recipe, command.workers)
    todo = [job for job in jobs if plans[job].todo]
    total = sum(plans[job].bytes for job in todo)
    print(
        f"{len(jobs)} clips, {len(jobs) - len(todo)} of them made already; about "
        f"{total / 1e9:.2f} GB to write"
    )
    if command.dry_run:
        for job, plan in plans.items():
            state = f"{plan.bytes / 1e6:9.1f} MB" if plan.todo else "     made"
            average = job.cut.average if job.cut else recipe.average_of(job.name)
            planes = recipe.planes_of(job.name)
            print(
                f"  {state}  {job.split}/{job.name}: {average} frames averaged, {planes} planes "
                "a file"
            )
        return 0
    out.mkdir(parents=True, exist_ok=True)
    if total > 0.95 * (free := free_bytes(out)):
        what = f"about {total / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        raise DataError(what, str(out), "enough free space", "choose another disk")
    write_info(out, info, recipe, plans)
    # The longest come first, so that no process is left alone with one at the end.
    todo.sort(key=lambda job: -plans[job].frames)
    calls = [(job, recipe, plans[job].record) for job in todo]
    run_counted(
        command.workers,
        prepare.make_clip,
        calls,
        "making",
        "frames",
        [plans[job].frames for job in todo],
    )
    print(
        f"made {out}: look at it with scripts/show_sample.py, check it with scripts/doctor.py "
        "--data --opt FILE"
    )
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, with its `recipe`. Raises OptionError for numbers out of range."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--source",
        type=Path,
        required=True,
        help="a video, or videos and folders of images, also in train/ and test/",
    )
    add("--out", type=Path, required=True, help="gets GOPRO_Large/ and GOPRO_Large_spike_seq/")
    add(
        "--test-share",
        type=float,
        default=0.2,
        help="share of test clips, if the source has no split",
    )
    add(
        "--leave-out",
        action="append",
        default=[],
        metavar="CLIP",
        help="make all clips but this one",
    )
    for name, setting in Recipe.model_fields.items():
        kind = int if setting.default is None else type(setting.default)
        choices = get_args(setting.annotation) or None if kind is str else None
        add(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=setting.default,
            choices=choices,
            help=setting.description,
        )
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    add("--workers", type=int, default=cores, help="processes; default: one for each core")
    add("--dry-run", action="store_true", help="print what would be made, and its size")
    command = parser.parse_args(arguments)
    try:
        command.recipe = read_section(
            Recipe, {name: getattr(command, name) for name in Recipe.model_fields}, ""
        )
    except OptionError as e:
        flag = f"--{e.where.replace('_', '-')}"
        raise OptionError(
            f"{flag} is {getattr(command, e.where)}", flag, e.expected, "correct it"
        ) from None
    command.recipe.rig_of("")  # refuses an unknown rig
    for flag, value, is_wrong, expected in (
        (
            "--average",
            command.average,
            command.rig == "none" and (command.average or 1) % 2 == 0,
            "an odd number",
        ),
        (
            "--instants",
            command.instants,
            command.instants and command.instants % 2 == 0,
            "0, or an odd number",
        ),
        ("--crop", command.crop, command.crop > command.side, f"at most --side {command.side}"),
        ("--workers", command.workers, command.workers < 1, "at least 1"),
        ("--test-share", command.test_share, not 0 <= command.test_share < 1, "0 <= share < 1"),
    ):
        if is_wrong:
            raise OptionError(f"{flag} is {value}", flag, expected, "correct it")
    for name in sorted(prepare.RAW_ONLY if command.recipe.has_rig else prepare.RIG_ONLY):
        if getattr(command, name) != Recipe.model_fields[name].default:
            flag, when = (
                f"--{name.replace('_', '-')}",
                "with" if command.recipe.has_rig else "without",
            )
            raise OptionError(
                f"{flag} has no effect {when} --rig",
                flag,
                "settings with an effect",
                f"drop {flag}",
            )
    return command


def run_counted(
    workers: int,
    function: Callable[..., Any],
    calls: Sequence[Any],
    name: str,
    unit: str,
    counts: Sequence[int] = (),
) -> list[Any]:
    """The results of function(*call) in order, from parallel processes, while the progress over all
    calls is shown.

    counts: units of work of each call, 1 by default. The calls are begun in their order; one worker
    or a single call runs in this process. The first error is raised and ends the other calls.
    Raises DataError where a process dies.
    """
    results, counts = [None] * len(calls), counts or [1] * len(calls)
    with shown(sum(counts), name, unit, quiet_s=0) as progress:
        workers = min(workers, len(calls))
        if workers <= 1:
            for number, call in enumerate(calls):
                results[number] = function(*call)
                progress.update(counts[number])
            return results
        # spawn, as OpenCV's threads do not survive a fork. A process that outlived its parent would
        # write into the folders of the next run.
        with ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), die_with_parent
        ) as pool:
            # Ctrl-C reaches all processes; the parent ends these. They inherit the mask.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                numbers = {
                    pool.submit(function, *call): number for number, call in enumerate(calls)
                }
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                for future in as_completed(numbers):
                    results[numbers[future]] = future.result()
                    progress.update(counts[numbers[future]])
            except BrokenProcessPool as e:
                expected, do = (
                    f"memory for {workers} of them",
                    "lower --workers, then start the same command again",
                )
                raise DataError(
                    "a process of the pool died", getattr(function, "__name__", ""), expected, do
                ) from e
            except BaseException:
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    return results


def find_jobs(command: argparse.Namespace) -> list[Job]:
    """Every clip to make, with its split; with a rig, the parts of each source that it can record.

    Raises OptionError where --leave-out names an unknown clip or all, DataError where a rig can
    record none.
    """
    recipe, raw = command.recipe, prepare.find_raw_clips(command.source, command.recipe.has_rig)
    splits = choose_splits(raw, command.test_share, command.out)
    jobs = [Job(clip.name, splits[clip.name], clip, command.out) for clip in raw]
    if recipe.has_rig:
        found = run_counted(
            command.workers, prepare.cuts_of, [(clip, recipe) for clip in raw], "cutting", "clips"
        )
        whole, jobs = jobs, []
        for job, cuts in zip(whole, found, strict=True):
            if isinstance(cuts, DataError):
                print(
                    f"{job.name}: left out: {cuts.what}  [{cuts.where}]; expected: "
                    f"{cuts.expected}; {cuts.do}"
                )
            else:
                jobs += [
                    replace(job, name=f"{job.name}_{number:02d}", cut=cut)
                    for number, cut in enumerate(cuts)
                ]
        if not jobs:
            raise DataError(
                "no source can be used",
                str(command.source),
                "one of those named above",
                "see there",
            )
    names = {job.name for job in jobs}
    if unknown := [name for name in command.leave_out if name not in names]:
        what = f"no such clip: --leave-out {', '.join(unknown)}"
        raise OptionError(what, "the command line", "names of clips", "correct them")
    if left := [job for job in jobs if job.name not in command.leave_out]:
        return left
    raise OptionError(
        "no clip is left to make", "--leave-out", "at least one clip", "leave out fewer clips"
    )


def choose_splits(raw: list[RawClip], share: float, out: Path) -> dict[str, str]:
    """Source name -> split: its own, that of an earlier start, else `share` of all test: at least
    one, never all.
    """
    names = [clip.name for clip in raw if not clip.split]
    here = {n: s for s in prepare.SPLITS for n in names if (out / "GOPRO_Large" / s / n).is_dir()}
    made = {
        clip.get("source", name): clip.get("split")
        for name, clip in read_info(out)["clips"].items()
    }
    here |= {n: made[n] for n in names if made.get(n)}
    free = [name for name in names if name not in here]
    wanted = (
        min(max(1, round(share * len(names))), len(names) - 1)
        if share > 0 and len(names) > 1
        else 0
    )
    count = min(max(0, wanted - sum(split == "test" for split in here.values())), len(free))
    test = {free[(i + 1) * len(free) // count - 1] for i in range(count)}
    return {
        c.name: c.split or here.get(c.name) or ("test" if c.name in test else "train") for c in raw
    }


def plan_all(jobs: list[Job], recipe: Recipe, workers: int) -> dict[Job, Plan]:
    """Check every clip, before anything is written.

    Raises DataError with the problems of all clips.
    """
    results = run_counted(
        workers, prepare.plan_clip, [(job, recipe) for job in jobs], "checking", "clips"
    )
    found: dict[Job, Plan | DataError] = dict(zip(jobs, results, strict=True))
    errors: dict[Job, DataError] = {}
    plans: dict[Job, Plan] = {}
    for job, plan in found.items():
        if isinstance(plan, DataError):
            errors[job] = plan
        else:
            plans[job] = plan
    common = Counter(plan.size for plan in plans.values()).most_common(1)
    for job, plan in plans.items():
        if plan.size != common[0][0]:
            what = "clip {} has another size than the others: {} x {}".format(job.name, *plan.size)
            expected = "frames of one size, as {} x {}".format(*common[0][0])
            do = "make clips of another size in a run of their own, with another --out"
            errors[job] = DataError(what, str(job.raw.path), expected, do)
    if not errors:
        return plans
    (what, where), *more = [(error.what, error.where) for error in errors.values()]
    expected, do = (
        "; ".join(dict.fromkeys(getattr(e, part) for e in errors.values()))
        for part in ("expected", "do")
    )
    if more:
        lines = "".join(f"\n    {error.what}  [{error.where}]" for error in errors.values())
        what, where = f"{len(errors)} clips cannot be made:{lines}", "the clips named"
    if len(errors) < len(jobs):
        do += f"; make only the others: {' '.join(f'--leave-out {job.name}' for job in errors)}"
    raise DataError(what, where, expected, do)


def read_info(out: Path, recipe: Recipe | None = None) -> dict[str, Any]:
    """The dataset.json of an earlier run, or an empty one.

    Raises DataError for another program's or recipe's.
    """
    path = out / INFO
    try:
        table = (
            json.loads(path.read_text(encoding="utf-8"))
            if path.exists()
            else {"recipe": None, "clips": {}}
        )
        made = table["recipe"]
        if not isinstance(table["clips"], dict):
            raise TypeError("no clips")
    except (OSError, ValueError, KeyError, TypeError) as e:
        what, do = (
            f"dataset.json was not made by this script: {e}",
            "choose another --out, or move the file away",
        )
        raise DataError(what, str(path), "none, or one of an earlier run", do) from e
    if recipe and made is not None and made != (wanted := recipe.record()):
        differing = ", ".join(key for key in {**wanted, **made} if made.get(key) != wanted.get(key))
        what, do = (
            f"{out} was made with other settings: {differing}",
            "choose another --out, or remove the folder",
        )
        raise DataError(what, str(path), "the same settings", do)
    return table


def write_info(out: Path, table: dict[str, Any], recipe: Recipe, plans: dict[Job, Plan]) -> None:
    """dataset.json: the geometry, planes per clip, with a rig also its cameras; table: that of
    before.
    """
    height, width = (side // recipe.ratio for side in next(iter(plans.values())).size)
    if table.get("h", height) != height or table.get("w", width) != width:
        what = f"spikes of {height} x {width} would join those of {table['h']} x {table['w']}"
        raise DataError(
            what, str(out / INFO), "one size of spikes in a data set", "choose another --out"
        )
    clips = table["clips"]
    for job, plan in plans.items():
        planes = recipe.planes_of(job.name)
        gt_plane = (
            planes // 2 if job.cut else recipe.interpolate * (recipe.average_of(job.name) // 2)
        )
        clips[job.name] = {"split": job.split, "planes": planes, "gt_plane": gt_plane}
        if job.cut:
            rig = recipe.rig_of(job.name)
            about = {
                "source": job.raw.name,
                "cut": asdict(job.cut),
                "rate": rig.rate,
                "light": rig.light,
            }
            clips[job.name] |= about | {
                "calibration": rig.calibration((height, width), plan.size).plain()
            }
    counts = Counter(clip["planes"] for clip in clips.values())
    common = next(clip for clip in clips.values() if clip["planes"] == counts.most_common(1)[0][0])
    rig = None if recipe.rig.startswith("random") else recipe.rig_of("")
    about: dict[str, Any] = {
        "format": FORMAT, "h": height, "w": width, "flip": True, "planes": common["planes"],
        "gt_plane": common["gt_plane"], "rate": rig and rig.rate,
        "light": rig.light if rig else "linear",
        "clips": clips, "recipe": recipe.record(), "made_by": "scripts/prepare_gopro_spike.py",
    }  # fmt: skip
    write_whole(out / INFO, (json.dumps(about, indent=2) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Make RGB + spike clips from video or photographs, in the layout that training reads.

    python scripts/prepare_gopro_spike.py --source GOPRO_Large_all --out trainsets/gopro
    python scripts/prepare_gopro_spike.py --source my_videos --rig random --out trainsets/mine

The first command is for video of a high frame rate. It averages frames to blurry frames (in the
folders blur and blur_gamma), and makes sharp frames and spikes. The second command takes videos of
any rate, folders of frames and photographs. Two simulated cameras (data/cameras/rig.py)
record the light. Between the frames of a video, the light moves along the optical flow. A
photograph is seen by a moving camera. The sharp frames are real frames.

The source is only read. All clips are checked before the first clip is made. Existing clips are
kept, so the same command continues an interrupted run. Other settings and changed sources need
another --out. The settings are recorded in dataset.json, and in made.json beside the frames of each
clip.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.threads import usable_cores
from data.making.clip_plan import Job, Plan
from data.making.prepare import make_clip
from data.making.recipe import ONLY_WITH_RIG, ONLY_WITHOUT_RIG, Recipe
from data.making.sources import cuts_of, find_sources
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.prepare_gopro_spike.clip_checks import plan_all
from scripts.parts.prepare_gopro_spike.clip_splits import choose_splits
from scripts.parts.prepare_gopro_spike.made_info import read_info, write_info
from scripts.parts.prepare_gopro_spike.parallel_calls import run_in_parallel
from utils.errors import DataError, OptionError
from utils.files import free_bytes
from utils.options.section import read_section
from utils.output_folder import refuse_overlap
from utils.words import counted

# This file has the command line, the order of the work, and what is printed. The checks come before
# the first write, in this order:
#
#     parse        the settings
#     find_jobs    the clips to make, and their splits (clip_splits.py)
#     read_info    dataset.json of an earlier run (made_info.py)
#     plan_all     each clip, e.g. its source and the size of its frames (clip_checks.py)
#
# parallel_calls.py cuts, checks and makes several clips at a time.
#
# What must stay: a refused command leaves nothing behind, so a new check belongs to one of these
# functions (test_wrong_input_is_refused_before_anything_is_written). A second start changes no file
# (test_a_second_start_changes_no_file).
# Free to change: printed texts.
# Test: tests/parts/scripts/test_prepare_gopro_spike.py
#
# Words of this file. The classes are in data/making/:
#   rig           the two simulated cameras of --rig: an RGB camera and a spike camera
#   Recipe        the settings of a data set, one flag for each
#   ClipSource    what clips are made from: a video, a folder of frames, or a photograph
#   Cut           a part of a source that a rig records: first frame, averaged frames, and size
#   Job           a clip to make: its name, its split ("train" or "test"), its source and its cut
#   Plan          what a checked job will write: frames, bytes, size of a frame

# This share of the free bytes of the disk may be used. A full disk would stop other programs.
USABLE_SHARE_OF_DISK = 0.95


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Check all clips, then make them. Returns the exit code 0. `with_exit_code` handles errors.

    Nothing is written before all checks have passed.
    """
    command = parse(arguments)
    recipe = command.recipe
    out = command.out
    # The source may lie in --out, but not in the two folders of --out into which the clips are
    # written: the spikes into GOPRO_Large_spike_seq, and the frames into GOPRO_Large.
    for name in ("GOPRO_Large_spike_seq", "GOPRO_Large"):
        refuse_overlap(out / name, inputs={"--source": command.source}, flag="--out")

    # Find and check everything.
    jobs = find_jobs(command)
    info = read_info(out, recipe)
    plans = plan_all(jobs, recipe, command.workers)
    jobs_to_do = [job for job in jobs if plans[job].is_to_make]
    made_already = len(jobs) - len(jobs_to_do)
    bytes_to_write = sum(plans[job].bytes for job in jobs_to_do)
    print(
        f"{counted(len(jobs), 'clip')}, {made_already} of them made already; about "
        f"{bytes_to_write / 1e9:.2f} GB to write"
    )
    if command.dry_run:
        print_plans(plans, recipe)
        return 0

    refuse_full_disk(out, bytes_to_write)
    # Make the clips. dataset.json is written first, so that an interrupted run can be continued.
    out.mkdir(parents=True, exist_ok=True)
    write_info(out, info, recipe, plans)
    # Begin with the longest clips, so that all processes end at about the same time.
    jobs_to_do.sort(key=lambda job: -plans[job].frames)
    run_in_parallel(
        command.workers,
        make_clip,
        # Each tuple has the arguments of a call. `record` is what made.json of the clip will say.
        calls=[(job, recipe, plans[job].record) for job in jobs_to_do],
        name="making",
        unit="frames",
        counts=[plans[job].frames for job in jobs_to_do],
    )
    print(
        f"made {out}: look at it with scripts/show_sample.py, check it with scripts/doctor.py "
        "--data --opt FILE"
    )
    return 0


def print_plans(plans: dict[Job, Plan], recipe: Recipe) -> None:
    """Print a line for each clip: its size on the disk, or "made" if it exists already.

    The line also says how many frames are averaged, and how many planes a spike file has.

    plans: for each clip to make, what will be written.
    """
    # E.g. "       12.3 MB  train/street: 11 frames averaged, 88 planes a file".
    for job, plan in plans.items():
        state = f"{plan.bytes / 1e6:9.1f} MB" if plan.is_to_make else "     made"
        # How many frames of the source are averaged to a blurry frame. With a rig, each cut (the
        # part of a source from which a clip is made) has its own number. Without a rig there are no
        # cuts, and the recipe has the number.
        if job.cut:
            average = job.cut.average
        else:
            average = recipe.raw_frames_per_exposure(job.name)
        # The number of planes in each spike file. Each blurry frame has a spike file of its own.
        planes = recipe.planes_of(job.name)
        print(
            f"  {state}  {job.split}/{job.name}: {average} frames averaged, {planes} planes a file"
        )


# ---- Which clips are made ---------------------------------------------------------------------


def find_jobs(command: argparse.Namespace) -> list[Job]:
    """Return a job for every clip to make.

    A source is a video, a folder of images or a photograph. Without a rig, a source becomes one
    clip. With a rig, it becomes several clips: the cuts of the source that the rig can record.

    Raises OptionError if --leave-out names an unknown clip or all clips, and DataError if a rig can
    record no source.
    """
    recipe = command.recipe
    sources = find_sources(command.source, recipe.has_rig)
    splits = choose_splits(sources, command.test_share, command.out)
    jobs = []
    for source in sources:
        split = splits[source.name]
        jobs.append(Job(source.name, split, source=source, out=command.out))
    if recipe.has_rig:
        jobs = cut_jobs(jobs, command)

    refuse_unknown_names(command.leave_out, jobs)
    wanted_jobs = [job for job in jobs if job.name not in command.leave_out]
    refuse_no_job(wanted_jobs)
    return wanted_jobs


def cut_jobs(jobs: list[Job], command: argparse.Namespace) -> list[Job]:
    """Return a job for each cut of the sources.

    A cut is a part of a source that the rig can record: successive frames of a video or folder, or
    one motion over a photograph. A clip is made from each cut.

    Prints which sources the rig cannot record, and leaves them out. Raises DataError if no source
    is left.

    jobs: a job for each source, without a cut.

    Test: test_a_source_that_is_too_small_is_left_out
    """
    # Each result is the list of the cuts of a source, or the DataError that says why it has none.
    results = run_in_parallel(
        command.workers,
        cuts_of,
        calls=[(job.source, command.recipe) for job in jobs],  # the arguments of each call
        name="cutting",
        unit="clips",
    )
    jobs_of_cuts = []
    for job, result in zip(jobs, results, strict=True):
        if isinstance(result, DataError):
            print(
                f"{job.name}: left out: {result.what}  [{result.where}]; expected: "
                f"{result.expected}; {result.do}"
            )
            continue
        for cut_index, cut in enumerate(result):
            # The name of the clip has the number of the cut, e.g. camel_00 and camel_01.
            jobs_of_cuts.append(replace(job, name=f"{job.name}_{cut_index:02d}", cut=cut))
    refuse_no_source(jobs_of_cuts, command.source)
    return jobs_of_cuts


# ---- The command line -------------------------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line. Its attribute `recipe` is a `Recipe`, the settings of the clips.

    Raises OptionError if a number is out of range or a setting has no effect.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source",
        type=Path,
        required=True,
        help="a video, or a folder with videos and folders of images, which may be in train/ and "
        "test/",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder that gets GOPRO_Large/ and GOPRO_Large_spike_seq/",
    )
    parser.add_argument(
        "--test-share",
        type=float,
        default=0.2,
        help="share of the clips that become test clips, if the source has no train/ and test/",
    )
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="CLIP",
        help="do not make this clip; may be repeated",
    )
    add_settings(parser)
    parser.add_argument(
        "--workers",
        type=int,
        default=usable_cores(),
        help="number of processes; default: one for each core",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be made, and its size"
    )
    command = parser.parse_args(arguments)
    command.recipe = read_recipe(command)
    # Look for flags without effect first. If such a flag also has a wrong value, the error must say
    # that the flag has no effect.
    refuse_without_effect(command)
    refuse_numbers(command)
    return command


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting of the recipe, with its type, default and description.

    E.g. the setting `shot_noise` becomes the flag --shot-noise. So a new field of `Recipe` is a
    flag without any change here.
    """
    for name, setting in Recipe.model_fields.items():
        # argparse turns the text of the flag into the type of the default: str, int or float. A
        # setting with the default None is an int. No setting may be a bool, because argparse would
        # call bool("false"), which is True.
        kind = int if setting.default is None else type(setting.default)
        # If the annotation is Literal["a", "b"], only "a" and "b" are allowed. If the annotation is
        # str, every text is allowed: get_args returns ().
        choices = None
        if kind is str:
            choices = get_args(setting.annotation) or None
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=setting.default,
            choices=choices,
            help=setting.description,
        )


def read_recipe(command: argparse.Namespace) -> Recipe:
    """Return the settings of a command line as a recipe. Raises OptionError with the flag."""
    values = {name: getattr(command, name) for name in Recipe.model_fields}
    try:
        # `where` is the section that an error puts before the name of a wrong setting. Flags are in
        # no section, so the error has only the name, e.g. "dark_rate".
        recipe = read_section(Recipe, values, where="")
    except OptionError as e:
        setting = e.where
        flag = f"--{setting.replace('_', '-')}"  # e.g. "--dark-rate"
        raise OptionError(
            what=f"{flag} is {getattr(command, setting)}",
            where=flag,
            expected=e.expected,
            do="correct it",
        ) from None
    recipe.refuse_unknown_rig()
    return recipe


# ---- What is refused --------------------------------------------------------------------------


def refuse_numbers(command: argparse.Namespace) -> None:
    """Raise OptionError for a number that is out of range, or does not fit another number.

    command: the command line, with its settings as `command.recipe`.

    Test: test_wrong_input_is_refused_before_anything_is_written
    """
    # Without a rig, the sharp frame is the middle one of the averaged frames, so their number must
    # be odd. Without --average (None), the recipe chooses an odd number. With a rig, any number of
    # frames may be averaged.
    if not command.recipe.has_rig and command.average:
        is_even = command.average % 2 == 0
        refuse_if(is_even, "--average", command.average, "an odd number")
    # The sharp frame is the middle one of the instants, so their number must be odd. With 0, no
    # instants are made.
    if command.instants:
        is_even = command.instants % 2 == 0
        refuse_if(is_even, "--instants", command.instants, "0, or an odd number")
    # A crop is cut from the scaled source, whose shorter side is --side.
    refuse_if(command.crop > command.side, "--crop", command.crop, f"at most --side {command.side}")
    refuse_if(command.workers < 1, "--workers", command.workers, "at least 1")
    is_in_range = 0 <= command.test_share < 1
    refuse_if(not is_in_range, "--test-share", command.test_share, "0 <= share < 1")


def refuse_if(is_wrong: bool, flag: str, value: Any, expected: str) -> None:
    """Raise OptionError about the value of a flag, if it is wrong."""
    if is_wrong:
        raise OptionError(what=f"{flag} is {value}", where=flag, expected=expected, do="correct it")


def refuse_without_effect(command: argparse.Namespace) -> None:
    """Raise OptionError for a setting that has no effect in this case: with a rig, or without one.

    ONLY_WITH_RIG and ONLY_WITHOUT_RIG list the settings of the two cases.
    """
    if command.recipe.has_rig:
        without_effect = ONLY_WITHOUT_RIG
        case = "with --rig"
    else:
        without_effect = ONLY_WITH_RIG
        case = "without --rig"
    for name in sorted(without_effect):  # name of a setting, e.g. "dark_rate"
        is_given = getattr(command, name) != Recipe.model_fields[name].default
        if is_given:
            flag = f"--{name.replace('_', '-')}"  # e.g. "--dark-rate"
            raise OptionError(
                what=f"{flag} has no effect {case}",
                where=flag,
                expected="settings with an effect",
                do=f"drop {flag}",
            )


def refuse_unknown_names(names: list[str], jobs: list[Job]) -> None:
    """Raise OptionError if --leave-out names a clip that no job makes.

    names: the names after --leave-out.
    """
    clip_names = {job.name for job in jobs}
    unknown = [name for name in names if name not in clip_names]
    if unknown:
        raise OptionError(
            what=f"no such clip: --leave-out {', '.join(unknown)}",
            where="the command line",
            expected="names of clips",
            do="correct them",
        )


def refuse_no_job(jobs: list[Job]) -> None:
    """Raise OptionError if --leave-out leaves no clip to make."""
    if not jobs:
        raise OptionError(
            what="no clip is left to make",
            where="--leave-out",
            expected="at least one clip",
            do="leave out fewer clips",
        )


def refuse_no_source(jobs: list[Job], source: Path) -> None:
    """Raise DataError if a rig can record no source. jobs: the jobs of all cuts."""
    if not jobs:
        raise DataError(
            what="no source can be used",
            where=str(source),
            expected="at least one source that can be used",
            do="follow the advice above",
        )


def refuse_full_disk(out: Path, needed: int) -> None:
    """Raise DataError if the clips would not fit on the disk. needed: their bytes."""
    free = free_bytes(out)
    if needed > USABLE_SHARE_OF_DISK * free:
        raise DataError(
            what=f"about {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free",
            where=str(out),
            expected="enough free space",
            do="choose another disk",
        )


if __name__ == "__main__":
    sys.exit(main())

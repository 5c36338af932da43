#!/usr/bin/env python3
"""Make RGB + spike clips from video or photographs, in the layout that training reads.

    python scripts/prepare_gopro_spike.py --source GOPRO_Large_all --out trainsets/gopro
    python scripts/prepare_gopro_spike.py --source my_videos --rig random --out trainsets/mine

The first command is for video of a high frame rate. It averages frames, which gives blurry frames
(blur, blur_gamma), and makes sharp frames and spikes. The second command takes videos of any rate,
folders of frames and photographs. Two simulated cameras (data/cameras/rig.py) record the light.
Between the frames of a video, the light moves along the optical flow. A photograph is seen by a
moving camera. The sharp frames are real frames.

The source is only read. All clips are checked before the first clip is made. Existing clips are
kept, so the same command continues an interrupted run. Other settings and changed sources need
another --out. The settings are recorded in dataset.json, and in made.json beside the frames of each
clip.
"""

import argparse
import json
import multiprocessing
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

from data.cameras.dataset_info import FILE_NAME, FORMAT
from data.clips.threads import usable_cores
from data.making import prepare
from data.making.prepare import ClipSource, Job, Plan, Recipe
from scripts.parts.exit_codes import shown, with_exit_code
from utils.dist.process import die_with_parent
from utils.errors import DataError, OptionError
from utils.files import free_bytes, write_whole
from utils.options.section import read_section
from utils.output_folder import refuse_overlap

# The checks come before the first write, in this order:
#
#     parse        the settings
#     find_jobs    the clips to make, and their splits
#     read_info    dataset.json of an earlier run
#     plan_all     each clip
#
# What must stay: a refused command leaves nothing behind, so a new check belongs to one of these
# functions (test_wrong_input_is_refused_before_anything_is_written). A second start changes no file
# (test_a_second_start_changes_no_file), and a clip keeps its split
# (test_clips_that_are_made_keep_their_split_if_more_clips_come).
# Free to change: printed texts, and how many processes work at a time.
# Test: tests/parts/scripts/test_prepare_gopro_spike.py
#
# Words of this file. The classes are in data/making/prepare.py:
#   rig           the two simulated cameras of --rig: an RGB camera and a spike camera
#   Recipe        the settings of a data set, one flag for each
#   ClipSource    what clips are made from: a video, a folder of frames, or a photograph
#   Cut           a part of a source, which a rig records: first frame, averaged frames, and size
#   Job           a clip to make: its name, its split ("train" or "test"), its source and its cut
#   Plan          what a checked job will write: frames, bytes, size of a frame

# dataset.json, below --out. It says how to read the spikes, and how the clips were made.
INFO = Path("GOPRO_Large_spike_seq", FILE_NAME)
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
    for name in ("GOPRO_Large_spike_seq", "GOPRO_Large"):
        refuse_overlap(out / name, {"--source": command.source}, "--out")

    # Find and check everything.
    jobs = find_jobs(command)
    info = read_info(out, recipe)
    plans = plan_all(jobs, recipe, command.workers)
    jobs_to_do = [job for job in jobs if plans[job].is_to_make]
    made_already = len(jobs) - len(jobs_to_do)
    bytes_to_write = sum(plans[job].bytes for job in jobs_to_do)
    print(
        f"{len(jobs)} clips, {made_already} of them made already; about "
        f"{bytes_to_write / 1e9:.2f} GB to write"
    )
    if command.dry_run:
        print_plans(plans, recipe)
        return 0

    # Make the clips. dataset.json is written first, so that an interrupted run can be continued.
    out.mkdir(parents=True, exist_ok=True)
    refuse_full_disk(out, bytes_to_write)
    write_info(out, info, recipe, plans)
    # The longest clips come first, so that no process is left alone with a long one at the end.
    jobs_to_do.sort(key=lambda job: -plans[job].frames)
    run_counted(
        command.workers,
        prepare.make_clip,
        # The arguments of each call. `record` is what made.json of the clip will say.
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
    """Print a line for each clip: its size on the disk, or that it is made, and how it is made."""
    for job, plan in plans.items():
        state = f"{plan.bytes / 1e6:9.1f} MB" if plan.is_to_make else "     made"
        # With a rig, the cut of a clip says how many frames are averaged. Without a rig, the recipe
        # says it.
        if job.cut:
            average = job.cut.average
        else:
            average = recipe.raw_frames_per_exposure(job.name)
        planes = recipe.planes_of(job.name)  # in the spike file of a blurry frame
        print(
            f"  {state}  {job.split}/{job.name}: {average} frames averaged, {planes} planes a file"
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


# ---- The command line -------------------------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line. `recipe` has its settings as a `Recipe`.

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
    refuse_numbers(command)
    refuse_without_effect(command)
    return command


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting of the recipe, with its type, default and description.

    E.g. the setting `shot_noise` becomes the flag --shot-noise. So a new field of `Recipe` is a
    flag without any change here.
    """
    for name, setting in Recipe.model_fields.items():
        # A setting with the default None is a number.
        kind = int if setting.default is None else type(setting.default)
        # A setting with some allowed texts has the type Literal["a", "b"].
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
        # where="": the settings are not part of a section, so an error names the setting alone.
        recipe = read_section(Recipe, values, where="")
    except OptionError as e:
        flag = f"--{e.where.replace('_', '-')}"  # e.where is the name of the setting
        raise OptionError(
            what=f"{flag} is {getattr(command, e.where)}",
            where=flag,
            expected=e.expected,
            do="correct it",
        ) from None
    recipe.refuse_unknown_rig()
    return recipe


def refuse_numbers(command: argparse.Namespace) -> None:
    """Raise OptionError for a number that is out of range, or does not fit another number.

    command: the command line; `parse` has put the result of `read_recipe` in as `command.recipe`.
    """
    # Without a rig, the sharp frame is the middle frame of the averaged frames, so their number is
    # odd. Without a number (None), the recipe chooses an odd one. A rig takes any number.
    has_even_average = bool(command.average) and command.average % 2 == 0
    if not command.recipe.has_rig:
        refuse_if(has_even_average, "--average", command.average, "an odd number")
    # The middle instant is the sharp frame, so the number of instants is odd. 0: no instants.
    has_even_instants = bool(command.instants) and command.instants % 2 == 0
    refuse_if(has_even_instants, "--instants", command.instants, "0, or an odd number")
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
    """Raise OptionError for a setting that has no effect with a rig, or without one."""
    if command.recipe.has_rig:
        without_effect = prepare.ONLY_WITHOUT_RIG
        case = "with --rig"
    else:
        without_effect = prepare.ONLY_WITH_RIG
        case = "without --rig"
    for name in sorted(without_effect):  # a field of Recipe, and a flag, e.g. "dark_rate"
        if getattr(command, name) != Recipe.model_fields[name].default:
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(
                what=f"{flag} has no effect {case}",
                where=flag,
                expected="settings with an effect",
                do=f"drop {flag}",
            )


# ---- Which clips are made ---------------------------------------------------------------------
#
# What must stay: the same source gives the same clips, and a clip keeps its split
# (test_the_share_for_testing_takes_neither_all_clips_nor_none,
# test_clips_that_are_made_keep_their_split_if_more_clips_come).


def find_jobs(command: argparse.Namespace) -> list[Job]:
    """Return a job for every clip to make.

    A source is a video, a folder of images or a photograph. Without a rig, a source becomes one
    clip. With a rig, it becomes several clips: the cuts of the source that the rig can record.

    Raises OptionError if --leave-out names an unknown clip or all clips, and DataError if a rig can
    record no source.
    """
    recipe = command.recipe
    sources = prepare.find_sources(command.source, recipe.has_rig)
    splits = choose_splits(sources, command.test_share, command.out)
    jobs = []
    for source in sources:
        split = splits[source.name]
        jobs.append(Job(source.name, split, source=source, out=command.out))
    if recipe.has_rig:
        jobs = cut_jobs(jobs, command)

    names = {job.name for job in jobs}
    unknown = [name for name in command.leave_out if name not in names]
    if unknown:
        raise OptionError(
            what=f"no such clip: --leave-out {', '.join(unknown)}",
            where="the command line",
            expected="names of clips",
            do="correct them",
        )
    wanted = [job for job in jobs if job.name not in command.leave_out]
    if not wanted:
        raise OptionError(
            what="no clip is left to make",
            where="--leave-out",
            expected="at least one clip",
            do="leave out fewer clips",
        )
    return wanted


def cut_jobs(jobs: list[Job], command: argparse.Namespace) -> list[Job]:
    """Return a job for each cut. A cut is a part of a source in time, and the rig can record it.

    Prints which sources the rig cannot record, and leaves them out. Raises DataError if no source
    is left.

    jobs: a job for each source
    """
    # For each source: the list of its cuts, or the DataError that says why it has none.
    results = run_counted(
        command.workers,
        prepare.cuts_of,
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
            # E.g. camel_00, camel_01: the names of the clips.
            jobs_of_cuts.append(replace(job, name=f"{job.name}_{cut_index:02d}", cut=cut))
    if not jobs_of_cuts:
        raise DataError(
            what="no source can be used",
            where=str(command.source),
            expected="at least one source that can be used",
            do="follow the advice above",
        )
    return jobs_of_cuts


def choose_splits(sources: list[ClipSource], share: float, out: Path) -> dict[str, str]:
    """Return source name -> split, "train" or "test".

    A source in a folder train/ or test/ gets the split of this folder. Of all other sources,
    `share` become test clips: at least one, but never all. None does if `share` is 0, or if there
    is only one of them. A source that an earlier start has put into a split stays there, so
    that no frame of a test clip is ever trained on.

    share: --test-share. out: --out, with the clips of an earlier start.

    E.g. with share 0.2: 10 sources give 2 test clips, 3 sources give 1, and 1 source gives 0.
    """
    names = [source.name for source in sources if not source.split]
    earlier = earlier_splits(names, out)  # source name -> split

    # How many test clips are wanted. A single source is for training.
    wanted_count = 0
    if share > 0 and len(names) > 1:
        rounded = round(share * len(names))
        wanted_count = min(max(1, rounded), len(names) - 1)
    # How many are still missing: 0 if there are too many already, because --test-share was larger
    # before.
    existing_count = list(earlier.values()).count("test")
    missing_count = max(0, wanted_count - existing_count)
    # Only new sources can become test clips. There may be too few of them, if earlier starts have
    # put most sources into "train".
    undecided = [name for name in names if name not in earlier]
    new_test_names = evenly_chosen(undecided, min(missing_count, len(undecided)))

    # The folder decides first, then the earlier start, and the choice above only for new sources.
    splits = {}
    for source in sources:
        name = source.name
        if source.split:
            splits[name] = source.split
        elif name in earlier:
            splits[name] = earlier[name]
        elif name in new_test_names:
            splits[name] = "test"
        else:
            splits[name] = "train"
    return splits


def earlier_splits(names: Sequence[str], out: Path) -> dict[str, str]:
    """Return source name -> split, for the sources that an earlier start has put into a split.

    names: the sources that have no split by their folder. out: --out.
    """
    # By the folders of the clips. Without a rig, a clip has the name of its source.
    earlier = {}
    for split in prepare.SPLITS:
        for name in names:
            if (out / "GOPRO_Large" / split / name).is_dir():
                earlier[name] = split
    # By dataset.json. With a rig, a source becomes several clips. dataset.json lists them by their
    # own names, e.g. camel_00, and the name of the source is their key "source". It decides if the
    # folders say something else: the folder camel_00 may be of a source "camel" or "camel_00".
    recorded = {}
    for name, clip in read_info(out)["clips"].items():
        source = clip.get("source", name)
        recorded[source] = clip.get("split")
    for name in names:
        if recorded.get(name):
            earlier[name] = recorded[name]
    return earlier


def evenly_chosen(names: Sequence[str], count: int) -> set[str]:
    """Choose `count` names at equal distances, because neighbours in the list are often alike.

    The last name of each of `count` equal groups is chosen. E.g. 2 of 6 names: the groups are 0 to
    2 and 3 to 5, so the names 2 and 5. A second start must choose the same names, so there is no
    random choice here.
    """
    chosen = set()
    for group in range(count):
        end_of_group = (group + 1) * len(names) // count
        chosen.add(names[end_of_group - 1])
    return chosen


# ---- Checks of all clips ----------------------------------------------------------------------
#
# A user learns all faults in one run (test_all_wrong_clips_are_named_at_once,
# test_the_flags_that_leave_the_wrong_clips_out_are_said).


def plan_all(jobs: list[Job], recipe: Recipe, workers: int) -> dict[Job, Plan]:
    """Check every clip, before anything is written. Raises one DataError for all clips."""
    # For each job: its plan, or the DataError that says what is wrong with the clip.
    results = run_counted(
        workers,
        prepare.plan_clip,
        calls=[(job, recipe) for job in jobs],  # the arguments of each call
        name="checking",
        unit="clips",
    )
    errors: dict[Job, DataError] = {}
    plans: dict[Job, Plan] = {}
    for job, plan in zip(jobs, results, strict=True):
        if isinstance(plan, DataError):
            errors[job] = plan
        else:
            plans[job] = plan

    errors |= errors_of_size(plans)
    if errors:
        raise joined_errors(errors, len(jobs))
    return plans


def errors_of_size(plans: dict[Job, Plan]) -> dict[Job, DataError]:
    """Return an error for each clip that has another frame size than most clips.

    All clips of a data set must have frames of one size.
    """
    if not plans:  # there is no most common size
        return {}
    sizes = Counter(plan.size for plan in plans.values())
    most_common_size, _ = sizes.most_common(1)[0]
    usual_height, usual_width = most_common_size
    errors = {}
    for job, plan in plans.items():
        if plan.size == most_common_size:
            continue
        height, width = plan.size
        errors[job] = DataError(
            what=f"clip {job.name} has another size than the others: {height} x {width}",
            where=str(job.source.path),
            expected=f"frames of one size, as {usual_height} x {usual_width}",
            do="make clips of another size in a run of their own, with another --out",
        )
    return errors


def joined_errors(errors: dict[Job, DataError], count: int) -> DataError:
    """Return the errors of several clips as one error. count: number of all clips."""
    first = next(iter(errors.values()))
    what = first.what
    where = first.where
    if len(errors) > 1:
        what = f"{len(errors)} clips cannot be made:"
        for error in errors.values():
            what += f"\n    {error.what}  [{error.where}]"
        where = "the clips named above"
    # Each text once, in the order of the clips: dict.fromkeys keeps the first of equal texts.
    expected = "; ".join(dict.fromkeys(error.expected for error in errors.values()))
    do = "; ".join(dict.fromkeys(error.do for error in errors.values()))
    if len(errors) < count:
        flags = " ".join(f"--leave-out {job.name}" for job in errors)
        do += f"; make only the others: {flags}"
    return DataError(what, where, expected, do)


# ---- dataset.json -----------------------------------------------------------------------------
#
# Tests: test_dataset_json_has_the_plane_of_the_sharp_frame,
# test_the_rig_in_dataset_json_has_the_calibration_beside_it,
# test_clips_of_a_rig_are_read_with_the_brightness_that_was_simulated


def read_info(out: Path, recipe: Recipe | None = None) -> dict[str, Any]:
    """Return the dataset.json of an earlier run. Without one, return a table without clips.

    Raises DataError if another program made the file, or this program with another recipe. Clips of
    two recipes in one data set would be mixed in the training without a word.

    recipe: the settings of this run. None accepts an earlier run with any settings.
    """
    path = out / INFO
    table: dict[str, Any] = {"recipe": None, "clips": {}}
    try:
        if path.exists():
            table = json.loads(path.read_text(encoding="utf-8"))
        made = table["recipe"]  # the settings of the earlier run, None without an earlier run
        if not isinstance(table["clips"], dict):
            raise TypeError("no clips")
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(
            what=f"dataset.json was not made by this script: {e}",
            where=str(path),
            expected="none, or one of an earlier run",
            do="choose another --out, or move the file away",
        ) from e
    wanted = recipe.record() if recipe else None
    if wanted is not None and made is not None and made != wanted:
        # A version of this program may have fewer settings, so look at the settings of both.
        differing = []
        for key in {**wanted, **made}:
            if made.get(key) != wanted.get(key):
                differing.append(key)
        raise DataError(
            what=f"{out} was made with other settings: {', '.join(differing)}",
            where=str(path),
            expected="the same settings",
            do="choose another --out, or remove the folder",
        )
    return table


def write_info(out: Path, table: dict[str, Any], recipe: Recipe, plans: dict[Job, Plan]) -> None:
    """Write dataset.json: the size of a plane, and for each clip its planes and its cameras.

    docs/data_format.md describes the keys. Every reader of spikes depends on them, so they must
    stay. Clips of an earlier run stay in the file. Raises DataError if their planes have another
    size.

    table: what `read_info` returns. Its "clips" are changed in place.
    plans: for each job (a clip to make), its plan with the size of its frames.
    """
    # `plan_all` has checked that the frames of all jobs have one size.
    first_plan = next(iter(plans.values()))
    frame_height, frame_width = first_plan.size
    height = frame_height // recipe.ratio  # a spike pixel is `ratio` pixels of a frame wide
    width = frame_width // recipe.ratio
    if table.get("h", height) != height or table.get("w", width) != width:
        raise DataError(
            what=f"spikes of {height} x {width} would join spikes of {table['h']} x {table['w']}",
            where=str(out / INFO),
            expected="one size of spikes in a data set",
            do="choose another --out",
        )

    clips = table["clips"]
    for job, plan in plans.items():
        clips[job.name] = clip_info(job, plan, recipe, (height, width))

    # The set as a whole has the number of planes that most clips have.
    counts = Counter(clip["planes"] for clip in clips.values())
    most_common_planes, _ = counts.most_common(1)[0]
    usual_clips = [clip for clip in clips.values() if clip["planes"] == most_common_planes]
    usual_clip = usual_clips[0]
    # The cameras of --rig random differ from clip to clip, so only the clips have a rate. Other
    # cameras are the same for all clips but for their seed, which follows from the name of the clip
    # and changes neither rate nor light. So any name will do here, e.g. "".
    rig = None if recipe.rig.startswith("random") else recipe.rig_of("")
    about: dict[str, Any] = {
        "format": FORMAT,
        "h": height,
        "w": width,
        "flip": True,  # within a plane, the rows are stored from bottom to top
        "planes": usual_clip["planes"],
        "gt_plane": usual_clip["gt_plane"],
        "rate": rig.rate if rig else None,
        # With random cameras, each clip has a light of its own in "clips", which counts instead.
        "light": rig.light if rig else "linear",
        "clips": clips,
        "recipe": recipe.record(),
        "made_by": "scripts/prepare_gopro_spike.py",
    }
    write_whole(out / INFO, (json.dumps(about, indent=2) + "\n").encode())


def clip_info(job: Job, plan: Plan, recipe: Recipe, spike_size: tuple[int, int]) -> dict[str, Any]:
    """Return what dataset.json says of one clip. spike_size: height and width of a plane."""
    planes = recipe.planes_of(job.name)
    # Without a cut, the job is a whole video, and its frames are averaged (the command without
    # --rig). With --rig, the job is a part of a video or photograph, and the cut says which part.
    if job.cut is None:
        # The sharp frame is the middle one of the averaged frames, and a frame has `interpolate`
        # planes. E.g. of 7 frames with 8 planes each: frame 3, so plane 24.
        middle_frame = recipe.raw_frames_per_exposure(job.name) // 2
        gt_plane = recipe.interpolate * middle_frame
        return {"split": job.split, "planes": planes, "gt_plane": gt_plane}
    rig = recipe.rig_of(job.name)
    return {
        "split": job.split,
        "planes": planes,
        "gt_plane": planes // 2,
        "source": job.source.name,
        "cut": asdict(job.cut),
        "rate": rig.rate,
        "light": rig.light,
        "calibration": rig.calibration(spike_size, plan.size).plain(),
    }


# ---- Parallel processes -----------------------------------------------------------------------
#
# What must stay: no process outlives the program
# (test_a_killed_run_leaves_no_process_and_continues_to_the_same_bytes), and an error is raised at
# once, not after all other clips (test_an_error_in_a_process_ends_the_other_processes_at_once takes
# ten minutes otherwise).


def run_counted(
    workers: int,
    function: Callable[..., Any],
    calls: Sequence[Any],
    name: str,
    unit: str,
    counts: Sequence[int] = (),
) -> list[Any]:
    """Run function(*call) for each call in parallel processes, and show the progress.

    Returns the results in the order of the calls. The first error is raised and ends the other
    calls. Raises DataError if a process dies.

    workers: number of processes. With one worker or one call, this process does the work.
    function: a function at the top level of a module, because a process gets it by its name.
    calls: the arguments of each call. The calls begin in this order.
    name, unit: what the progress shows, e.g. "making" and "frames".
    counts: how much of the progress each call is, in units. Empty: 1 for each call.
    """
    results = [None] * len(calls)
    counts = counts or [1] * len(calls)
    workers = min(workers, len(calls))
    # quiet_s=0: show the progress from the start, not only after some seconds.
    with shown(sum(counts), name, unit, quiet_s=0) as progress:

        def on_result(call_index: int, result: Any) -> None:
            results[call_index] = result
            progress.update(counts[call_index])

        if workers > 1:
            _run_in_processes(workers, function, calls, on_result)
        else:
            for call_index, call in enumerate(calls):
                on_result(call_index, function(*call))
    return results


def _run_in_processes(
    workers: int,
    function: Callable[..., Any],
    calls: Sequence[Any],
    on_result: Callable[[int, Any], None],
) -> None:
    """Run function(*call) for each call in a pool of processes.

    workers, function, calls: arguments of `run_counted`.
    on_result: is called with (index of the call, its result) as soon as a call has ended.
    """
    # The start method is spawn, because OpenCV's threads do not survive a fork.
    # die_with_parent: a process ends with its parent, because otherwise it would write into the
    # folders of the next run.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, die_with_parent) as pool:
        # Ctrl-C sends SIGINT to all processes. Only the parent shall react, and end the other
        # processes. A process inherits the blocked signals of its parent, and the pool starts its
        # processes in `submit`. So SIGINT is blocked during `submit`.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            index_of_call = {}  # future -> index of its call
            for call_index, call in enumerate(calls):
                future = pool.submit(function, *call)
                index_of_call[future] = call_index
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            for future in as_completed(index_of_call):
                on_result(index_of_call[future], future.result())
        except BrokenProcessPool as e:
            raise DataError(
                what="a process of the pool died",
                where=getattr(function, "__name__", ""),
                expected=f"memory for {workers} processes",
                do="lower --workers, then start the same command again",
            ) from e
        except BaseException:
            # An error of a call, or Ctrl-C. Without `terminate`, the end of the `with` block would
            # wait until the processes have made all other clips.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


if __name__ == "__main__":
    sys.exit(main())

"""Check all clips of prepare_gopro_spike.py before the first clip is made.

What must stay, and which test notices:

    one error names all wrong clips       test_all_wrong_clips_are_named_at_once
    the error advises --leave-out flags   test_the_error_gives_flags_to_leave_out_the_wrong_clips

Free to add: a check that compares several clips, beside `errors_of_size`. A check of a single clip
belongs to data/making/clip_plan.py.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

from collections import Counter

from data.making.clip_plan import Job, Plan, plan_clip
from data.making.recipe import Recipe
from scripts.parts.prepare_gopro_spike.parallel_calls import run_in_parallel
from utils.errors import DataError


def plan_all(jobs: list[Job], recipe: Recipe, workers: int) -> dict[Job, Plan]:
    """Check every clip before anything is written. Returns the plan of each clip.

    Raises one DataError that names all wrong clips.

    workers: number of processes.
    """
    # For each job: its plan, or the DataError that says what is wrong with the clip. `plan_clip`
    # returns this error and does not raise it, because a raised error would end the other checks.
    results = run_in_parallel(
        workers,
        plan_clip,
        calls=[(job, recipe) for job in jobs],  # the arguments of each call
        name="checking",
        unit="clips",
    )
    errors: dict[Job, DataError] = {}
    plans: dict[Job, Plan] = {}
    for job, result in zip(jobs, results, strict=True):
        if isinstance(result, DataError):
            errors[job] = result
        else:
            plans[job] = result

    errors |= errors_of_size(plans)
    if errors:
        raise joined_errors(errors, len(jobs))
    return plans


def errors_of_size(plans: dict[Job, Plan]) -> dict[Job, DataError]:
    """Return an error for each clip that has another frame size than most clips.

    All clips of a data set must have frames of one size.

    plans: the plans of the clips without another error.

    Test: test_a_clip_with_a_frame_of_another_size_is_not_made
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
    """Return the errors of several clips as one error, in the order of `errors`.

    A single error keeps its text. The text of several errors names each clip, for example:

        3 clips cannot be made:
            clip car has another size than the others: 480 x 640  [videos/car.mp4]
            ...

    In both cases, the advice ends with the flags that leave out the wrong clips:

        make only the others: --leave-out car ...

    count: number of all clips.
    """
    if len(errors) == 1:
        only_error = next(iter(errors.values()))
        what = only_error.what
        where = only_error.where
    else:
        what = f"{len(errors)} clips cannot be made:"
        for error in errors.values():
            what += f"\n    {error.what}  [{error.where}]"
        where = "the clips named above"
    # Each text once, in the order of `errors`: dict.fromkeys keeps the first of equal texts.
    expected = "; ".join(dict.fromkeys(error.expected for error in errors.values()))
    do = "; ".join(dict.fromkeys(error.do for error in errors.values()))
    if len(errors) < count:  # if all clips are wrong, no clip would be left
        flags = " ".join(f"--leave-out {job.name}" for job in errors)
        do += f"; make only the others: {flags}"
    return DataError(what, where, expected, do)

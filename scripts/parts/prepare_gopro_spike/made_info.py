"""Read and write the dataset.json of prepare_gopro_spike.py.

dataset.json says how to read the spikes, and how the clips were made. docs/data_reference.md
describes its keys.

What must stay: the keys, because every reader of spikes depends on them
(test_dataset_json_has_the_plane_of_the_sharp_frame,
test_the_rig_in_dataset_json_has_the_calibration_beside_it,
test_clips_of_a_rig_are_read_with_the_brightness_that_was_simulated).
Free to add: keys of a clip.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data.cameras.dataset_info import FILE_NAME, FORMAT
from data.making.clip_plan import Job, Plan
from data.making.recipe import Recipe
from utils.errors import DataError
from utils.files import write_whole

# dataset.json, below --out.
INFO = Path("GOPRO_Large_spike_seq", FILE_NAME)


def read_info(out: Path, recipe: Recipe | None = None) -> dict[str, Any]:
    """Return the dataset.json of an earlier run. Without one, return a table without clips.

    Raises DataError if another program made the file, or this program with another recipe. Clips of
    two recipes in one data set would be mixed in the training without a message.

    recipe: the settings of this run. None accepts an earlier run with any settings.

    Test: test_a_folder_made_with_instants_is_refused_without_them
    """
    path = out / INFO
    table: dict[str, Any] = {"recipe": None, "clips": {}}  # the table without an earlier run
    # If the file is not of this program, a line of the `try` block raises an error, because the
    # file is unreadable or a key is missing.
    try:
        if path.exists():
            table = json.loads(path.read_text(encoding="utf-8"))
        earlier_settings = table["recipe"]  # None without an earlier run
        if not isinstance(table["clips"], dict):
            raise TypeError("no clips")
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(
            what=f"dataset.json was not made by this script: {e}",
            where=str(path),
            expected="none, or one of an earlier run",
            do="choose another --out, or move the file away",
        ) from e
    if recipe is not None and earlier_settings is not None:
        refuse_other_settings(out, earlier_settings, recipe.record())
    return table


def write_info(out: Path, table: dict[str, Any], recipe: Recipe, plans: dict[Job, Plan]) -> None:
    """Write dataset.json: the size of a plane, and for each clip its planes and its cameras.

    Clips of an earlier run stay in the file. Raises DataError if their planes have another size.

    table: what `read_info` returns. The new clips are added to its dict "clips", in place.
    plans: for each job (a clip to make), its plan with the size of its frames.
    """
    # `plan_all` (clip_checks.py) has checked that the frames of all jobs have one size.
    first_plan = next(iter(plans.values()))
    frame_height, frame_width = first_plan.size
    height = frame_height // recipe.ratio  # a spike pixel is `ratio` pixels of a frame wide
    width = frame_width // recipe.ratio
    refuse_other_size(out, table, height, width)

    clips = table["clips"]
    for job, plan in plans.items():
        clips[job.name] = clip_info(job, plan, recipe, (height, width))

    # The planes of the set as a whole.
    usual = usual_clip(list(clips.values()))
    # With --rig random, each clip has other cameras, so the set as a whole has no rate. With any
    # other --rig, and without --rig, rate and light do not depend on the name of the clip. So
    # `rig_of` may get any name, here "".
    rig = None if recipe.rig.startswith("random") else recipe.rig_of("")
    about: dict[str, Any] = {
        "format": FORMAT,
        "h": height,
        "w": width,
        "flip": True,  # the rows of a plane are stored from bottom to top, as usual for .dat files
        "planes": usual["planes"],
        "gt_plane": usual["gt_plane"],
        "rate": rig.rate if rig else None,
        # With --rig random, each clip in "clips" has its own light, and the light of a clip takes
        # precedence. So no clip uses this "linear", the default of spike.light.
        "light": rig.light if rig else "linear",
        "clips": clips,
        "recipe": recipe.record(),
        "made_by": "scripts/prepare_gopro_spike.py",
    }
    write_whole(out / INFO, (json.dumps(about, indent=2) + "\n").encode())


def usual_clip(clips: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first clip with the usual number of planes, which most clips have.

    clips: entries of "clips" in dataset.json, at least one.
    """
    counts = Counter(clip["planes"] for clip in clips)
    most_common_planes, _ = counts.most_common(1)[0]
    return next(clip for clip in clips if clip["planes"] == most_common_planes)


def clip_info(job: Job, plan: Plan, recipe: Recipe, spike_size: tuple[int, int]) -> dict[str, Any]:
    """Return what dataset.json says of one clip.

    "gt_plane" is the plane of the sharp frame, in the middle of the exposure.

    spike_size: height and width of a plane.
    """
    planes = recipe.planes_of(job.name)
    # Without --rig, a job has no cut: it is a whole video, whose frames are averaged. With --rig,
    # the job is the part of a video or photograph that the cut says.
    if job.cut is None:
        # The sharp frame is the middle frame of the averaged frames. Plane p shows the light at the
        # time p / interpolate, counted in frames. So plane interpolate * f shows frame f itself,
        # and the planes after it lead to frame f + 1. E.g. of 7 frames with 8 planes each, the
        # sharp frame is frame 3, which plane 24 shows.
        middle_frame = recipe.raw_frames_per_exposure(job.name) // 2
        gt_plane = recipe.interpolate * middle_frame
        return {"split": job.split, "planes": planes, "gt_plane": gt_plane}
    # With --rig, the sharp frame is the light in the middle of the exposure.
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


# ---- What is refused --------------------------------------------------------------------------


def refuse_other_settings(out: Path, earlier: dict[str, Any], present: dict[str, Any]) -> None:
    """Raise DataError if the settings of an earlier run differ from the settings of this run.

    earlier, present: the settings of the earlier run, and of this run
    """
    if earlier == present:
        return
    # Another version of this program may have other settings, so look at the settings of both runs.
    # {**present, **earlier} has the keys of both, each once. Its values are not used.
    differing = []
    for key in {**present, **earlier}:
        if earlier.get(key) != present.get(key):
            differing.append(key)
    raise DataError(
        what=f"{out} was made with other settings: {', '.join(differing)}",
        where=str(out / INFO),
        expected="the same settings",
        do="choose another --out, or remove the folder",
    )


def refuse_other_size(out: Path, table: dict[str, Any], height: int, width: int) -> None:
    """Raise DataError if planes of height x width would join planes of another size.

    table: what `read_info` returns. It has a size if there was an earlier run.
    """
    earlier_size = (table.get("h", height), table.get("w", width))  # by default the new size
    if earlier_size != (height, width):
        raise DataError(
            what=f"spikes of {height} x {width} would join spikes of {table['h']} x {table['w']}",
            where=str(out / INFO),
            expected="one size of spikes in a data set",
            do="choose another --out",
        )

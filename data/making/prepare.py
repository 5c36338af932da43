"""Make one clip of RGB frames and spikes: the last step of scripts/prepare_gopro_spike.py.

The steps, in the order in which the program takes them:

    find_sources     sources.py     finds the sources: folders of images, videos, photographs
    cuts_of          sources.py     with a rig (two simulated cameras): chooses the parts of a
                                    source, one clip each
    plan_clip        clip_plan.py   checks a clip before anything is written
    make_clip        prepare.py     writes the pictures and the spikes of a clip

recipe.py has the settings. The program runs the last three steps in several processes, so their
arguments and results must be objects that can be pickled.

What must stay: a folder of a clip appears only when it is complete
(test_a_killed_run_leaves_no_process_and_continues_to_the_same_bytes), and the bytes of the files.
If the bytes must change, raise VERSION in data/making/recipe.py.
Free to change: speed.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import cv2

from data.clips.user_frames import FrameSource
from data.making.clip_plan import RECORD, Job
from data.making.fast_video import make_images, make_spikes
from data.making.photo_scene import PhotoScene
from data.making.recipe import Recipe
from data.making.video_parts import Cut
from data.making.video_scene import video_scene
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from utils.files import write_whole
from utils.image import imwrite_rgb
from utils.output_folder import publish_folder, scratch_folder
from utils.random_streams import random_stream


def make_clip(job: Job, recipe: Recipe, record: dict[str, Any]) -> None:
    """Make the pictures and the spikes of one clip. Each folder appears only when it is complete.

    `plan_clip` must have accepted the clip before, because nothing is checked here.

    record: `Plan.record` of the clip. It is written last, so a folder with a record is complete.
    """
    # This changes OpenCV in the whole process. The program runs one process on each core, so more
    # threads would compete for the cores.
    cv2.setNumThreads(1)
    frames = FrameSource(job.source.path)
    # Everything is written into two hidden folders beside the final folders. `job.folders` has the
    # folder of the pictures, then the folder of the spikes.
    scratch_folders = []
    for folder in job.folders:
        # `scratch_folder` makes an empty folder, in place of a folder that a killed run has left.
        scratch_folders.append(scratch_folder(folder.with_name(f".{job.name}.tmp")))
    pictures, spikes = scratch_folders
    (spikes / "spike").mkdir()
    if job.cut:
        _record_with_rig(job, job.cut, recipe, frames, pictures=pictures, spikes=spikes / "spike")
    else:
        frames_per_exposure = recipe.raw_frames_per_exposure(job.name)  # averaged to a blurry frame
        make_images(frames_per_exposure, recipe, frames, pictures)
        make_spikes(job.name, recipe, frames, spikes / "spike")

    # The folders get their final names.
    text = json.dumps(record, indent=2) + "\n"
    for folder, scratch in zip(job.folders, scratch_folders, strict=True):
        write_whole(scratch / RECORD, text.encode())
        # The final folder may exist, if an earlier run was killed after it had published one of the
        # two folders. The existing folder stays, because `plan_clip` has checked that it has the
        # same source and recipe.
        if os.path.lexists(folder):
            shutil.rmtree(scratch)
        else:
            publish_folder(scratch, folder)  # renames it


def _record_with_rig(
    job: Job, cut: Cut, recipe: Recipe, frames: FrameSource, pictures: Path, spikes: Path
) -> None:
    """Write the recordings of a rig (two simulated cameras) that looks at a source.

    The rig records blurry frames, sharp frames and spikes. The folders blur and sharp have the same
    names as without a rig (fast_video.py), because option files name them (`lq_folder`).

    job: the clip to make. cut: the part of the source that is recorded.
    recipe: the settings. frames: the frames of the source. A photograph has a single frame.
    pictures: folder in which the folders blur and sharp are made. spikes: folder of the .dat files.
    """
    rng = random_stream(f"scene of clip {job.name}", recipe.seed)
    crop = recipe.crop  # side of the made frames in pixels
    # lights: an iterator over the light of each plane, (crop, crop, 3). The number of lights is
    # recipe.frames * recipe.planes.
    if job.source.is_photo:
        scene = PhotoScene(
            frames.read(0),
            side=cut.side,  # the shorter side of the photograph is scaled down to this length
            intervals=recipe.frames,  # from one made frame to the next
            planes=recipe.planes,
            crop=crop,
            rng=rng,
        )
        lights = scene.lights()
    else:
        lights = video_scene(
            frames, cut, intervals=recipe.frames, planes=recipe.planes, crop=crop, rng=rng
        )
    # For each frame, the two cameras give a blurry frame, a sharp frame and the planes.
    spike_side = crop // recipe.ratio  # side of a spike plane in pixels
    rig = recipe.rig_of(job.name)
    recorded = rig.record(lights, recipe.planes, spike_size=(spike_side, spike_side))
    for number, (blurry, sharp, stream) in enumerate(recorded):
        imwrite_rgb(pictures / f"blur/{number:06d}.png", blurry)
        imwrite_rgb(pictures / f"sharp/{number:06d}.png", sharp)
        geometry = SpikeGeometry(spike_side, spike_side)
        write_spikes(spikes / f"{number:06d}.dat", stream, geometry)

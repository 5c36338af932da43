"""Check a clip before anything is written, and plan it.

    Job         a clip to make: its name, its split, its source
    plan_clip   checks a job, and returns its `Plan`: sizes, whether the clip must be made, record

A finished clip has two folders, each with a record (made.json) of its settings and source:

    <out>/GOPRO_Large/<split>/<clip>/blur, sharp, ...       000000.png, ...
    <out>/GOPRO_Large_spike_seq/<split>/<clip>/spike        000000.dat, ...

With a rig, two simulated cameras record any video or photograph (data/making/recipe.py). Without a
rig, the raw frames of a fast video are averaged.

The program runs `plan_clip` in several processes, so the arguments and the result can be pickled.
If a clip cannot be made, `plan_clip` returns the error and does not raise it. So the program can
show the errors of all clips.

What must stay: the record of a clip, because a data set is continued only if the record of each
clip equals the record stored in its made.json. Free to change: the texts, and the estimate of
bytes. Free to add: checks.

Tests: tests/parts/data/test_made_records.py (the record),
tests/parts/scripts/test_prepare_gopro_spike.py
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2

from data.clips.listed_files import stamp
from data.clips.pictures import image_size
from data.clips.user_frames import FrameSource
from data.making.recipe import VERSION, Recipe
from data.making.sources import ClipSource
from data.making.video_parts import Cut
from utils.errors import DataError
from utils.words import counted

# Name of the record in each folder of a clip.
RECORD = "made.json"


@dataclass(frozen=True)
class Job:
    """One clip to make."""

    name: str  # name of the clip
    split: str  # "train" or "test"
    source: ClipSource  # what the clip is made from
    out: Path  # folder of the data set
    # With a rig (two simulated cameras), the part of the source that is recorded. In a video,
    # `cut.first` is the number of the first frame of the part. A photograph is one frame, so there
    # `cut.first` is only the number of the clip. Without a rig, `cut` is None.
    cut: Cut | None = None

    @property
    def folders(self) -> tuple[Path, Path]:
        """Return the folder of the frames, and the folder of the spikes, in this order.

        Both names must stay: the published data set has these folders, and so users' option files
        name them.
        """
        clip = Path(self.split) / self.name  # e.g. train/GOPR0372_07_00
        return self.out / "GOPRO_Large" / clip, self.out / "GOPRO_Large_spike_seq" / clip


@dataclass(frozen=True)
class Plan:
    """The values that the program needs to make a clip."""

    # (height, width) of the frames of the source. With a rig: of the made frames.
    size: tuple[int, int]
    bytes: int  # estimated size of the files of the clip
    is_to_make: bool  # whether the clip must be made, because one of its two folders is missing
    # Number of raw frames of the source. With a rig: number of made frames.
    frames: int
    record: dict[str, Any]  # the contents of made.json


def plan_clip(job: Job, recipe: Recipe) -> Plan | DataError:
    """Check a clip before it is made. Nothing is written.

    A DataError is returned and not raised, so that the program can show the errors of all clips.
    """
    # This changes OpenCV in the whole process. The program runs one process on each core, so more
    # threads would compete for the cores.
    cv2.setNumThreads(1)
    try:
        return _plan(job, recipe)
    except DataError as e:
        return e


def _plan(job: Job, recipe: Recipe) -> Plan:
    """Do the work of `plan_clip`. Raises DataError if the clip cannot be made."""
    if job.cut:  # With a rig, two simulated cameras record a part (cut) of the source.
        # `cuts_of` (sources.py) has already checked the frames of the source, so they are not
        # opened here. The cameras see a square (crop) of the source, which is the made frame.
        raw = None
        size = (recipe.crop, recipe.crop)
        frames = recipe.frames  # made frames, each of one exposure
        exposures = frames
    else:  # without a rig
        raw = FrameSource(job.source.path)  # the raw frames
        size = raw.size
        frames = len(raw)
        # Raw frames after the last whole exposure are left out.
        exposures = frames // recipe.raw_frames_per_exposure(job.name)

    _refuse_ratio(size, recipe.ratio, job.source.path)
    _refuse_too_few_frames(job, recipe, frames, exposures)

    files = _files_of(job.source.path, raw)
    record = {
        # Increase VERSION (recipe.py) if the changed program makes other files from the same recipe
        # and source.
        "version": VERSION,
        "recipe": recipe.record(),
        "source": _digest_of(files),
    }
    # `lexists` is also true for a broken link, which must not be replaced either.
    existing = [folder for folder in job.folders if os.path.lexists(folder)]
    # An existing folder must have been made from the same source with the same recipe.
    _refuse_other_folders(job.name, existing, record)
    is_to_make = len(existing) < len(job.folders)
    # `_refuse_other_sizes` reads the headers of all frames, so it is only called if the clip must
    # be made.
    if is_to_make and raw:
        _refuse_other_sizes(job.name, files, size)
    return Plan(
        size=size,
        bytes=exposures * _bytes_per_exposure(job.name, recipe, size, raw),
        is_to_make=is_to_make,
        frames=frames,
        record=record,
    )


def _bytes_per_exposure(
    clip: str, recipe: Recipe, size: tuple[int, int], raw: FrameSource | None
) -> int:
    """Return an estimate: how many bytes the spikes and images of one exposure need.

    clip: name of the clip. recipe: the settings.
    size: (height, width) of the frames.
    raw: the raw frames. None with a rig (two simulated cameras), because the frames are made later.
    """
    height, width = size
    spike_pixels = (height // recipe.ratio) * (width // recipe.ratio)
    # A spike pixel has one bit in each plane.
    spike_bytes = recipe.planes_of(clip) * spike_pixels // 8
    if raw:
        # We assume that each image takes as many bytes as the first raw frame takes as a PNG.
        # `make_images` (fast_video.py) writes three images of an exposure (blur, blur_gamma, sharp)
        # and its instants, i.e. raw frames at several times of the exposure.
        _, first_png = cv2.imencode(".png", raw.read(0))
        image_bytes = len(first_png) * (3 + recipe.instants)
    else:
        # No frame exists yet. `_record_with_rig` (prepare.py) writes two images of an exposure,
        # blur and sharp, with 3 bytes for a pixel. We assume that PNG halves the size, so a pixel
        # takes 2 * 3 / 2 = 3 bytes.
        image_bytes = 3 * height * width
    return spike_bytes + image_bytes


def _files_of(path: Path, raw: FrameSource | None) -> list[Path]:
    """Return the files of a source, each once.

    path: the source. raw: frames of the source. None with a rig (two simulated cameras).
    The order of the files is part of the digest of the source (`_digest_of`), so it must stay.
    """
    if raw:
        files = raw.files
    elif path.is_dir():
        files = sorted(path.iterdir())
    else:
        files = [path]
    # A video is in `raw.files` once for each frame. dict.fromkeys keeps the order.
    return list(dict.fromkeys(files))


def _digest_of(files: list[Path]) -> str:
    """Return 16 hex digits that change with the name, size or time of change of any file.

    What must stay: the form of the lines below, e.g. "raw/000001.png 81234 1700000000000000000".
    made.json stores the digits. With other digits, older data sets could not be continued. The
    lines begin with raw/, because an earlier version also had other kinds of sources, and wrote the
    kind before the name.
    """
    digest = hashlib.sha256()
    for file in files:
        size, mtime_ns = stamp(str(file))  # bytes, and the time of change in nanoseconds
        line = f"raw/{file.name} {size} {mtime_ns}\n"
        # A name may have bytes that are not valid UTF-8. Python stores such bytes as surrogates,
        # and "surrogateescape" turns the surrogates into the same bytes again.
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _refuse_other_folders(clip: str, existing: list[Path], record: dict[str, Any]) -> None:
    """Refuse folders of a clip that were not made from this source with this recipe.

    A folder of other files or settings is never overwritten.

    clip: name of the clip. existing: its folders that exist.
    record: the contents of made.json that the clip would get.
    """
    for folder in existing:
        differing = _differences(folder, record)
        if differing:
            raise DataError(
                what=f"clip {clip} exists already, but differs from what would be made: "
                f"{', '.join(differing)}",
                where=str(folder),
                expected="no such folder, or a folder that was made from these files with these "
                f"settings ({RECORD})",
                do="choose another --out, or move the folder away",
            )


def _differences(folder: Path, record: dict[str, Any]) -> list[str]:
    """Compare a record with the made.json of a folder. Return the keys with different values.

    If made.json cannot be compared, the result is one text that says so.
    """
    try:
        made = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return [key for key in record if made[key] != record[key]]
    except (OSError, ValueError, KeyError, TypeError):
        # The file is missing or is not JSON, or the JSON lacks a key or is not an object.
        return [f"there is no usable {RECORD}"]


# ---- What is refused ---------------------------------------------------------------------------


def _refuse_too_few_frames(job: Job, recipe: Recipe, frames: int, exposures: int) -> None:
    """Refuse a clip with no whole exposure, or with more instants than an exposure has raw frames.

    The instants are raw frames at several times of an exposure. They are written as sharp frames.
    E.g. with --instants 3, an exposure must average at least 3 raw frames.

    frames, exposures: number of frames and of whole exposures of the clip.
    """
    average = recipe.raw_frames_per_exposure(job.name)
    if recipe.instants > average:
        raise DataError(
            what=f"clip {job.name} averages {average} raw frames, fewer than --instants "
            f"{recipe.instants}",
            where=str(job.source.path),
            expected="a raw frame for each instant",
            do="lower --instants, or raise --average",
        )
    if exposures == 0:
        raise DataError(
            what=f"clip {job.name} has {counted(frames, 'frame')}",
            where=str(job.source.path),
            expected=f"at least {average} frames, for one exposure",
            do="lower --average, or remove the clip",
        )


def _refuse_ratio(size: tuple[int, int], ratio: int, path: Path) -> None:
    """Refuse frames if their spike planes would not have whole pixels and whole bytes.

    A plane of a .dat has one bit for each spike pixel, so the number of spike pixels must be a
    multiple of 8.

    size: (height, width) of the frames. ratio: RGB pixels along a spike pixel. path: the source.
    """
    height, width = size
    is_divisible = height % ratio == 0 and width % ratio == 0
    spike_pixels = (height // ratio) * (width // ratio)
    has_whole_bytes = spike_pixels % 8 == 0
    if not (is_divisible and has_whole_bytes):
        raise DataError(
            what=f"frames of {height} x {width} do not divide by --ratio {ratio} into whole bytes",
            where=str(path),
            expected="both sides divisible, and their product / ratio^2 by 8",
            do="choose another --ratio",
        )


def _refuse_other_sizes(clip: str, files: list[Path], size: tuple[int, int]) -> None:
    """Raise DataError if the size (height, width) of an image is not the size of the first image.

    Only PNGs are checked, because their header has the size. Images of other formats must be
    decoded to find the size, so they are checked later, when they are read.
    """
    for file in files:
        if file.suffix.lower() != ".png":
            continue
        found = image_size(str(file))
        if found == size:
            continue
        height, width = size
        found_height, found_width = found
        raise DataError(
            what=f"clip {clip} has a frame of {found_height} x {found_width}",
            where=str(file),
            expected=f"{height} x {width}, as the first frame",
            do="remove the frame, or make it again",
        )

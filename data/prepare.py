"""Make one clip of RGB frames and spikes from high-frame-rate video: settings, checks, files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.alignment import find_offset
from data.pictures import Pictures
from data.raw_video import LightPath, RawClip, exposures
from data.spike.simulate import IntegrateAndFire
from data.spike.stream import SpikeGeometry, write_dat
from utils.errors import DataError
from utils.files import publish_folder, scratch_folder, write_whole
from utils.image import imwrite_rgb, list_images

# To be raised when the same recipe and source give other files than before (2: the sensor's modulo reset).
VERSION = 2
RECORD = "made.json"
KINDS = ("blur", "blur_gamma", "sharp")


@dataclass(frozen=True)
class Recipe:
    """The settings that clips are made with; recorded in dataset.json."""

    average: int | None  # raw frames per exposure; None: from the clip's name, as in GOPR0372_07_00
    interpolate: int
    method: str
    ratio: int
    gamma: float
    light: str
    rate: float
    threshold: float
    initial_charge: float
    shot_noise: float
    dark_rate: float
    threshold_mismatch: float
    seed: int

    def average_of(self, clip: str) -> int:
        found = re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)
        return self.average or (int(found.group(1)) if found else 7)

    def planes_of(self, clip: str) -> int:
        return self.interpolate * self.average_of(clip)

    def gt_plane_of(self, clip: str) -> int:
        return self.interpolate * (self.average_of(clip) // 2)


@dataclass(frozen=True)
class Job:
    """One clip to make. raw: its raw video, if any; sharp: the folder of its existing frames (--spikes-for), if any.

    offset: raw frames by which the sharp ones are later than the middle of their exposures, if the user gave it.
    """

    name: str
    split: str
    raw: RawClip | None
    sharp: Path | None
    out: Path
    offset: int | None = None

    @property
    def rgb(self) -> Path:
        return self.out / "GOPRO_Large" / self.split / self.name

    @property
    def spikes(self) -> Path:
        return self.out / "GOPRO_Large_spike_seq" / self.split / self.name

    @property
    def where(self) -> str:
        return str(self.sharp or self.raw.path)


@dataclass(frozen=True)
class Plan:
    """The result of checking a job. size: of its frames; bytes: to write; record: contents of made.json."""

    size: tuple[int, int]
    bytes: int
    is_made: bool
    record: dict[str, Any]

    @property
    def offset(self) -> int:
        return self.record["offset"]


def plan_clip(job: Job, recipe: Recipe) -> Plan | DataError:
    """Check a clip before it is made. An error is returned, so that the errors of all clips can be shown."""
    cv2.setNumThreads(1)
    try:
        # Exposures and spike files are counted by the sharp frames where they exist, else by the raw ones.
        frames = Pictures(job.sharp or job.raw.path)
        height, width = spike_size(frames.size, recipe, job)
        count = len(frames) if job.sharp else len(frames) // recipe.average_of(job.name)
        if count == 0:
            raise DataError(
                f"clip {job.name} has {len(frames)} frames", job.where,
                f"at least {recipe.average_of(job.name)}, which make one exposure",
                "lower --average, or remove the clip",
            )  # fmt: skip
        record = {"version": VERSION, "recipe": asdict(recipe), "source": source_digest(job)}
        made = _made_before(job, record)
        record["offset"] = made["offset"] if made else _offset(job, recipe)
    except DataError as e:
        return e
    pictures = 0 if job.sharp else len(KINDS) * len(cv2.imencode(".png", frames.read(0))[1])
    size = count * (pictures + recipe.planes_of(job.name) * height * width // 8)
    is_made = job.spikes.is_dir() and (job.sharp is not None or job.rgb.is_dir())
    return Plan(frames.size, size, is_made, record)


def source_digest(job: Job) -> str:
    """16 hex digits that change with the name, size or time of change of any file that the clip is made from."""
    table = hashlib.sha256()
    for kind, files in (
        ("raw", job.raw.files() if job.raw else []),
        ("sharp", list_images(job.sharp) if job.sharp else []),
    ):
        for path in files:
            about = path.stat()
            table.update(f"{kind}/{path.name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return table.hexdigest()[:16]


def _made_before(job: Job, record: dict[str, Any]) -> dict[str, Any] | None:
    """The record of the existing folders. Raises DataError for those not made from this source with this recipe."""
    made = None
    expected = record if job.offset is None else {**record, "offset": job.offset}
    for folder in (job.spikes, *(() if job.sharp else (job.rgb,))):
        if not os.path.lexists(folder):
            continue
        try:
            made = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            differing = [key for key in ("offset", *record) if made[key] != expected.get(key, made[key])]
        except (OSError, ValueError, KeyError, TypeError):
            differing = [f"there is no usable {RECORD}"]
        if differing:
            raise DataError(
                f"clip {job.name} exists already, but differs from what would be made: {', '.join(differing)}",
                str(folder), f"no such folder, or one made from these files with these settings ({RECORD})",
                "choose another --out, or move the folder away to make the clip again",
            )  # fmt: skip
    return made


def _offset(job: Job, recipe: Recipe) -> int:
    if not (job.raw and job.sharp):
        return 0
    raw, sharp, where = Pictures(job.raw.path), Pictures(job.sharp), f"{job.raw.path}, {job.sharp}"
    return find_offset(raw, sharp, recipe.average_of(job.name), job.name, where, job.offset)


def spike_size(frame: tuple[int, int], recipe: Recipe, job: Job) -> tuple[int, int]:
    """(h, w) of the spike camera for frames of size (H, W). Raises DataError where --ratio does not divide it."""
    height, width = (side // recipe.ratio for side in frame)
    if (height * recipe.ratio, width * recipe.ratio) != frame or height * width % 8:
        raise DataError(
            f"frames of {frame[0]} x {frame[1]} do not divide by --ratio {recipe.ratio} into whole bytes",
            job.where, "both sides divisible, and their product / ratio^2 by 8",
            "choose another --ratio, or crop the video",
        )  # fmt: skip
    return height, width


def make_clip(job: Job, recipe: Recipe, record: dict[str, Any]) -> None:
    """Write the missing folders of one clip; each appears when it is complete."""
    cv2.setNumThreads(1)
    if job.sharp is None and not job.rgb.is_dir():
        scratch = scratch_folder(job.rgb.with_name(f".{job.name}.tmp"))
        for number, pictures in enumerate(exposures(Pictures(job.raw.path), recipe.average_of(job.name), recipe.gamma)):
            for kind, picture in pictures.items():
                imwrite_rgb(scratch / kind / f"{number:06d}.png", picture)
        _publish(scratch, job.rgb, record)
    if not job.spikes.is_dir():
        scratch = scratch_folder(job.spikes.with_name(f".{job.name}.tmp"))
        (scratch / "spike").mkdir()
        make_spikes(job, recipe, record["offset"], scratch / "spike")
        _publish(scratch, job.spikes, record)


def _publish(scratch: Path, folder: Path, record: dict[str, Any]) -> None:
    write_whole(scratch / RECORD, (json.dumps(record, indent=2) + "\n").encode())
    publish_folder(scratch, folder)


def make_spikes(job: Job, recipe: Recipe, offset: int, folder: Path) -> None:
    """Write one .dat per sharp frame, from raw frames where there are any, else interpolated between sharp frames.

    offset: raw frames between the middle of an exposure and its sharp frame. Before the first raw frame the light is
    assumed constant; after the last one it is unknown, so the last file may be short.
    """
    average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
    sharp = Pictures(job.sharp or job.rgb / "sharp")
    frames = Pictures(job.raw.path) if job.raw else sharp
    size = spike_size(frames.size, recipe, job)
    light = LightPath(frames, size, recipe.gamma if recipe.light == "linear" else 1.0, recipe.method)
    rng = np.random.default_rng([recipe.seed, *job.name.encode()])
    sensor = IntegrateAndFire(
        *size, rate=recipe.rate, threshold=recipe.threshold, rng=rng, initial_charge=recipe.initial_charge,
        shot_noise=recipe.shot_noise, dark_rate=recipe.dark_rate, threshold_mismatch=recipe.threshold_mismatch,
    )  # fmt: skip
    for number, stem in enumerate(sharp.stems):
        if job.raw:
            times = [number * average + offset + p / recipe.interpolate for p in range(planes)]
            times = [time for time in times if time <= len(frames) - 1]
        else:
            times = [number + (p - recipe.gt_plane_of(job.name)) / planes for p in range(planes)]
        write_dat(folder / f"{stem}.dat", sensor.run(light.at(time) for time in times), SpikeGeometry(*size))

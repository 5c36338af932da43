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

from data.alignment import find_offset
from data.frame_io import picture_size
from data.pictures import Pictures
from data.raw_video import LightPath, RawClip, exposures
from data.spike.formats import write_spikes
from data.spike.simulate import IntegrateAndFire
from data.spike.stream import SpikeGeometry
from utils.dist.process import peak_process_gb
from utils.errors import DataError
from utils.files import publish_folder, scratch_folder, write_whole
from utils.image import imwrite_rgb, list_images
from utils.random_streams import published_stream

# To be raised when the same recipe and source give other files than before (2: the sensor's modulo reset).
VERSION = 2
RECORD = "made.json"
KINDS = ("blur", "blur_gamma", "sharp")


@dataclass(frozen=True)
class Recipe:
    """The settings that clips are made with; recorded in dataset.json. instants: sharp frames of an exposure, or 0."""

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
    instants: int = 0

    def record(self) -> dict[str, Any]:
        """The settings as JSON. Without instants as before there were any, so that older clips are still continued."""
        return {key: value for key, value in asdict(self).items() if key != "instants" or value}

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
    """The result of checking a job. size: of its frames; bytes: of its files.

    todo: the folders that are missing ("pictures", "spikes"); frames: of its files.
    record: contents of made.json.
    """

    size: tuple[int, int]
    bytes: int
    todo: tuple[str, ...]
    frames: int
    record: dict[str, Any]

    @property
    def offset(self) -> int:
        return self.record["offset"]


def plan_clip(job: Job, recipe: Recipe) -> Plan | DataError:
    """Check a clip before it is made. An error is returned, so that the errors of all clips can be shown."""
    cv2.setNumThreads(1)
    try:
        # Exposures and spike files are counted by the sharp frames where they exist, else by the raw ones.
        frames, average = Pictures(job.sharp or job.raw.path), recipe.average_of(job.name)
        height, width = spike_size(frames.size, recipe, job)
        count = len(frames) if job.sharp else len(frames) // average
        if recipe.instants > average:
            raise DataError(
                f"clip {job.name} averages {average} raw frames, fewer than --instants {recipe.instants}", job.where,
                "a raw frame for each sharp instant", "lower --instants, or raise --average",
            )  # fmt: skip
        if count == 0:
            raise DataError(
                f"clip {job.name} has {len(frames)} frames", job.where,
                f"at least {average}, which make one exposure", "lower --average, or remove the clip",
            )  # fmt: skip
        record = {"version": VERSION, "recipe": recipe.record(), "source": source_digest(job)}
        made = _made_before(job, record)
        todo = missing_folders(job)
        if todo:
            check_frame_sizes(job)
        record["offset"] = made["offset"] if made else _offset(job, recipe)
    except DataError as e:
        return e
    pictures = 0 if job.sharp else (len(KINDS) + recipe.instants) * len(cv2.imencode(".png", frames.read(0))[1])
    size = count * (pictures + recipe.planes_of(job.name) * height * width // 8)
    return Plan(frames.size, size, todo, count * average if job.raw else count, record)


def missing_folders(job: Job) -> tuple[str, ...]:
    """The folders of a clip that are still to be made: "pictures", "spikes"."""
    pictures = () if job.sharp or job.rgb.is_dir() else ("pictures",)
    return (*pictures, *(() if job.spikes.is_dir() else ("spikes",)))


def check_frame_sizes(job: Job) -> None:
    """Raise DataError where PNGs of a clip differ in size.

    Only their headers are read. Frames of other formats are checked when they are decoded.
    """
    for files in (job.raw.files() if job.raw else [], list_images(job.sharp) if job.sharp else []):
        sizes = {path: picture_size(str(path)) for path in files if path.suffix.lower() == ".png"}
        first = next(iter(sizes.values()), None)
        odd = [path for path, size in sizes.items() if size != first]
        if odd:
            height, width = sizes[odd[0]]
            raise DataError(
                f"clip {job.name}: {len(odd)} frames of another size, the first of them a frame of {height} x {width}",
                str(odd[0]), f"{first[0]} x {first[1]}, as the first frame of the clip",
                "remove the frames, or make them again",
            )  # fmt: skip


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


def make_folder(job: Job, recipe: Recipe, record: dict[str, Any], kind: str) -> float:
    """Make the "pictures" or the "spikes" of one clip; the folder appears when it is complete.

    Returns the peak memory of the process, in GB.
    """
    cv2.setNumThreads(1)
    folder = job.rgb if kind == "pictures" else job.spikes
    scratch = scratch_folder(folder.with_name(f".{job.name}.tmp"))
    if kind == "pictures":
        make_pictures(job, recipe, scratch)
    else:
        (scratch / "spike").mkdir()
        make_spikes(job, recipe, record["offset"], scratch / "spike")
    write_whole(scratch / RECORD, (json.dumps(record, indent=2) + "\n").encode())
    publish_folder(scratch, folder)
    return peak_process_gb()


def make_pictures(job: Job, recipe: Recipe, folder: Path) -> None:
    """Write the blurry and sharp frames of all exposures, and their instants, below `folder`."""
    average = recipe.average_of(job.name)
    for number, pictures in enumerate(exposures(Pictures(job.raw.path), average, recipe.gamma, recipe.instants)):
        for kind, picture in pictures.items():
            name = f"{kind}/{number:06d}" if kind in KINDS else f"instants/{number:06d}_{kind}"
            imwrite_rgb(folder / f"{name}.png", picture)


def make_spikes(job: Job, recipe: Recipe, offset: int, folder: Path) -> None:
    """Write one .dat per sharp frame, from raw frames where there are any, else interpolated between sharp frames.

    offset: raw frames between the middle of an exposure and its sharp frame. Before the first raw frame the light is
    assumed constant; after the last one it is unknown, so the last file may be short.
    """
    average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
    sharp = Pictures(job.sharp) if job.sharp else None
    frames = Pictures(job.raw.path) if job.raw else sharp
    stems = sharp.stems if sharp else [f"{number:06d}" for number in range(len(frames) // average)]
    size = spike_size(frames.size, recipe, job)
    light = LightPath(frames, size, recipe.gamma if recipe.light == "linear" else 1.0, recipe.method)
    rng = published_stream(recipe.seed, *job.name.encode())
    sensor = IntegrateAndFire(
        *size, rate=recipe.rate, threshold=recipe.threshold, rng=rng, initial_charge=recipe.initial_charge,
        shot_noise=recipe.shot_noise, dark_rate=recipe.dark_rate, threshold_mismatch=recipe.threshold_mismatch,
    )  # fmt: skip
    for number, stem in enumerate(stems):
        if job.raw:
            times = [number * average + offset + p / recipe.interpolate for p in range(planes)]
            times = [time for time in times if time <= len(frames) - 1]
        else:
            times = [number + (p - recipe.gt_plane_of(job.name)) / planes for p in range(planes)]
        lights = map(light.at, times)
        write_spikes(folder / f"{stem}.dat", sensor.run_parts(lights), SpikeGeometry(*size))

"""RGB + spike clips from high-frame-rate video, any video or photographs: settings, checks, light
and files.
"""

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from pydantic import Field

from data.cameras.rig import Rig
from data.clip import checked_name
from data.clips.files import FrameSource, clips_in, image_size, stamp
from data.making.light_in_motion import (
    Cut,
    LightPath,
    find_cuts,
    grey_light,
    photo_scene,
    video_scene,
)
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_linear
from utils.errors import DataError
from utils.files import natural_key, publish_folder, scratch_folder, write_whole
from utils.image import IMAGE_SUFFIXES, imwrite_rgb
from utils.options.section import Section
from utils.random_streams import published_stream, random_stream

SPLITS = ("train", "test")
# To be raised when the same recipe and source give other files than before (2: the sensor's modulo
# reset).
VERSION = 2
RECORD = "made.json"
# Settings that have no effect with a rig, and without one.
RAW_ONLY = {
    "interpolate", "method", "gamma", "light", "rate", "threshold", "initial_charge", "shot_noise",
    "dark_rate", "threshold_mismatch", "instants",
}  # fmt: skip
RIG_ONLY = {"rig", "side", "crop", "clips", "frames", "planes"}
MARGIN = 1.1  # shortest side of the scaled frames in crops, so that the crop can move


class Recipe(Section):
    """The settings that clips are made with; recorded in dataset.json."""

    average: int | None = Field(
        None,
        ge=1,
        description="raw frames per exposure, odd; default: from GoPro names, else 7; with a "
        "rig 1 to 4",
    )
    interpolate: int = Field(8, ge=1, description="spike planes per raw frame")
    method: Literal["flow", "linear"] = Field(
        "flow", description="interpolation between raw frames"
    )
    ratio: int = Field(2, ge=1, description="RGB pixels per spike pixel, each way")
    gamma: float = Field(2.2, gt=0, description="exponent from display values to light")
    light: Literal["linear", "display"] = Field("linear", description="what the sensor integrates")
    # A pixel fires once per plane at most.
    rate: float = Field(
        0.5, gt=0, le=1, description="spikes per plane at full light (gain / threshold)"
    )
    threshold: float = Field(
        1.0, gt=0, description="of the sensor; noise values are relative to it"
    )
    initial_charge: float = Field(
        1.0, ge=0, description="upper end of the uniform first charge, in thresholds"
    )
    shot_noise: float = Field(
        0.0, ge=0, description="standard deviation per plane at full light, in thresholds"
    )
    dark_rate: float = Field(0.0, ge=0, description="spikes per plane without light")
    threshold_mismatch: float = Field(
        0.0, ge=0, description="relative standard deviation between pixels"
    )
    seed: int = Field(0, ge=0, description="of the sensor's noise and first charge")
    instants: int = Field(
        0, ge=0, description="also write so many sharp instants of each exposure, an odd number"
    )

    rig: str = Field(
        "none",
        description="two cameras record any video or photograph: ideal, rig, dim, other, or random "
        "for each clip; also with other values of data/cameras/rig.py: rig,parallax=0,rate=0.2",
    )  # fmt: skip
    side: int = Field(
        288, ge=16, description="with a rig: shorter side that videos and photographs are scaled to"
    )
    crop: int = Field(192, ge=16, description="with a rig: side of the frames, a part that moves")
    clips: int = Field(4, ge=1, description="with a rig: most clips of one source")
    frames: int = Field(8, ge=1, description="with a rig: frames of a clip")
    planes: int = Field(88, ge=2, description="with a rig: spike planes per frame")

    @property
    def has_rig(self) -> bool:
        return self.rig != "none"

    def record(self) -> dict[str, Any]:
        """The settings with an effect, as JSON.

        Older clips without instants are still continued.
        """
        unused = (RAW_ONLY if self.has_rig else RIG_ONLY) | (
            set() if self.instants else {"instants"}
        )
        return {key: value for key, value in self.plain().items() if key not in unused}

    def rig_of(self, clip: str) -> Rig:
        """The rig that records a clip; without --rig, what is known of the sensor."""
        if self.has_rig:
            return Rig.asked(self.rig, random_stream(f"rig of clip {clip}", self.seed))
        return Rig(rate=self.rate, light=self.light)

    def average_of(self, clip: str) -> int:
        found = re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)
        return self.average or (int(found.group(1)) if found else 7)

    def planes_of(self, clip: str) -> int:
        return self.planes if self.has_rig else self.interpolate * self.average_of(clip)


class RawClip(NamedTuple):
    """A source of clips: a folder of images, a video file or, with a rig, a photograph. split: ""
    without folders.
    """

    name: str
    path: Path
    split: str

    @property
    def is_photo(self) -> bool:
        return self.path.suffix.lower() in IMAGE_SUFFIXES and self.path.is_file()


def find_raw_clips(source: Path, photos: bool = False) -> list[RawClip]:
    """The clips in `source`, or in its `train` and `test`; photos: also image files.

    Raises DataError for none.
    """
    if source.is_file():
        return [RawClip(source.stem, source, "")]
    splits = [(source / split, split) for split in SPLITS if (source / split).is_dir()]
    roots = splits or [(source, "")] * source.is_dir()
    clips = [RawClip(*clip, split) for root, split in roots for clip in clips_in(root)]
    for root, split in roots if photos else ():
        files = sorted(root.iterdir(), key=lambda path: natural_key(path.name))
        clips += [clip for path in files if (clip := RawClip(path.stem, path, split)).is_photo]
    for clip in clips:
        checked_name(clip.name, str(source))
    if not clips:
        expected = "folders of images or video files, with or without train/ and test/"
        raise DataError("no raw clip found", str(source), expected, "correct --source")
    twice = [name for name, count in Counter(clip.name for clip in clips).items() if count > 1]
    if twice:
        what = f"two raw clips of the same name: {', '.join(twice[:5])}"
        raise DataError(what, str(source), "one clip per name", "rename one")
    return clips


def cuts_of(raw: RawClip, recipe: Recipe) -> list[Cut] | DataError:
    """The parts of a source that a rig records.

    An error is returned, so that the other sources are still made.
    """
    cv2.setNumThreads(1)
    try:
        frames = FrameSource(raw.path)
        if min(frames.size) < recipe.crop:
            what = "frames of {} x {}".format(*frames.size)
            raise DataError(
                what, str(raw.path), f"both sides at least --crop {recipe.crop}", "lower --crop"
            )
        if raw.is_photo:
            return [Cut(number, 1, recipe.side) for number in range(recipe.clips)]
        sides = (min(round(MARGIN * recipe.crop), recipe.side), recipe.side)
        rng = random_stream(f"cuts of {raw.name}", recipe.seed)
        cuts = find_cuts(frames, recipe.frames, sides, recipe.average, rng)
    except DataError as e:
        return e
    if not cuts:
        what, do = (
            "no part without a cut and with small motion",
            "lower --frames, --average or --crop",
        )
        return DataError(
            what, str(raw.path), f"{recipe.frames} exposures whose frames can be interpolated", do
        )
    chosen = np.linspace(0, len(cuts) - 1, min(recipe.clips, len(cuts))).round().astype(int)
    return [cuts[number] for number in chosen]


@dataclass(frozen=True)
class Job:
    """One clip to make. cut: with a rig, the part of the source; of a photograph, its number."""

    name: str
    split: str
    raw: RawClip
    out: Path
    cut: Cut | None = None

    @property
    def folders(self) -> tuple[Path, Path]:
        """Of the frames, and of the spikes."""
        place = Path(self.split) / self.name
        return self.out / "GOPRO_Large" / place, self.out / "GOPRO_Large_spike_seq" / place


@dataclass(frozen=True)
class Plan:
    """size: of the frames of a job; bytes: of its files; todo: whether a folder is missing; frames:
    to read or, with a rig, to make; record: contents of made.json.
    """

    size: tuple[int, int]
    bytes: int
    todo: bool
    frames: int
    record: dict[str, Any]


def plan_clip(job: Job, recipe: Recipe) -> Plan | DataError:
    """Check a clip before it is made.

    An error is returned, so that the errors of all clips can be shown.
    """
    cv2.setNumThreads(1)
    where, average, path = str(job.raw.path), recipe.average_of(job.name), job.raw.path
    try:
        source = None if job.cut else FrameSource(path)  # whose frames were read already
        size = source.size if source else (recipe.crop, recipe.crop)
        height, width = (side // recipe.ratio for side in size)
        frames = len(source) if source else recipe.frames
        count = frames // average if source else frames
        if (height * recipe.ratio, width * recipe.ratio) != size or height * width % 8:
            what = "frames of {} x {} do not divide by --ratio {} into whole bytes".format(
                *size, recipe.ratio
            )
            need = "both sides divisible, and their product / ratio^2 by 8"
            raise DataError(what, where, need, "choose another --ratio")
        if recipe.instants > average:
            what = (
                f"clip {job.name} averages {average} raw frames, fewer than --instants "
                f"{recipe.instants}"
            )
            raise DataError(
                what, where, "a raw frame for each instant", "lower --instants, or raise --average"
            )
        if count == 0:
            what, need = (
                f"clip {job.name} has {frames} frames",
                f"at least {average}, for one exposure",
            )
            raise DataError(what, where, need, "lower --average, or remove the clip")
        # Changes with the name, size or time of change of any file of the source
        digest = hashlib.sha256()
        files = source.files if source else sorted(path.iterdir()) if path.is_dir() else [path]
        for file in dict.fromkeys(files):
            digest.update(
                "raw/{} {} {}\n".format(file.name, *stamp(str(file))).encode(
                    errors="surrogateescape"
                )
            )
        record = {"version": VERSION, "recipe": recipe.record(), "source": digest.hexdigest()[:16]}
        todo = not _is_made(job, record)
        # Only the headers of PNGs are read. Frames of other formats are checked when they are
        # decoded.
        for file in dict.fromkeys(files) if todo and source else ():
            found = image_size(str(file)) if file.suffix.lower() == ".png" else size
            if found != size:
                what, need = (
                    "a frame of {} x {}".format(*found),
                    "{} x {}, as the first".format(*size),
                )
                raise DataError(
                    f"clip {job.name} has {what}", str(file), need, "remove it, or make it again"
                )
    except DataError as e:
        return e
    # Bytes of the spikes of a frame, and of its three images
    each = recipe.planes_of(job.name) * height * width // 8
    each += (
        len(cv2.imencode(".png", source.read(0))[1]) * (3 + recipe.instants)
        if source
        else 3 * recipe.crop**2
    )
    return Plan(size, count * each, todo, frames, record)


def _is_made(job: Job, record: dict[str, Any]) -> bool:
    """Whether both folders exist.

    Raises DataError for one not made from this source with this recipe.
    """
    folders = [folder for folder in job.folders if os.path.lexists(folder)]
    for folder in folders:
        try:
            made = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            differing = [key for key in record if made[key] != record[key]]
        except (OSError, ValueError, KeyError, TypeError):
            differing = [f"there is no usable {RECORD}"]
        if differing:
            what = (
                f"clip {job.name} exists already, but differs from what would be made: "
                f"{', '.join(differing)}"
            )
            expected = f"none, or one made from these files with these settings ({RECORD})"
            raise DataError(
                what, str(folder), expected, "choose another --out, or move the folder away"
            )
    return len(folders) == 2


def make_clip(job: Job, recipe: Recipe, record: dict[str, Any]) -> None:
    """Make the pictures and the spikes of one clip; each folder appears when it is complete."""
    cv2.setNumThreads(1)
    frames = FrameSource(job.raw.path)
    pictures, spikes = scratch = [
        scratch_folder(folder.with_name(f".{job.name}.tmp")) for folder in job.folders
    ]
    (spikes / "spike").mkdir()
    if job.cut:
        # What the rig records: blur, the mean of the linear light, sharp and spikes.
        how = (
            recipe.frames,
            recipe.planes,
            recipe.crop,
            random_stream(f"scene of clip {job.name}", recipe.seed),
        )
        is_photo, side = job.raw.is_photo, recipe.crop // recipe.ratio
        lights = (
            photo_scene(frames.read(0), job.cut.side, *how)
            if is_photo
            else video_scene(frames, job.cut, *how)
        )
        recorded = recipe.rig_of(job.name).record(lights, recipe.planes, (side, side))
        for number, (blurry, sharp, stream) in enumerate(recorded):
            imwrite_rgb(pictures / f"blur/{number:06d}.png", blurry)
            imwrite_rgb(pictures / f"sharp/{number:06d}.png", sharp)
            write_spikes(spikes / f"spike/{number:06d}.dat", stream, SpikeGeometry(side, side))
    else:
        make_images(recipe.average_of(job.name), recipe, frames, pictures)
        make_spikes(job.name, recipe, frames, spikes / "spike")
    for folder, made in zip(job.folders, scratch, strict=True):
        write_whole(made / RECORD, (json.dumps(record, indent=2) + "\n").encode())
        if os.path.lexists(folder):  # a killed run made only this one
            shutil.rmtree(made)
        else:
            publish_folder(made, folder)


def make_images(average: int, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write the frames of all exposures, each of `average` raw frames, below `folder`.

    blur: mean of the display values, as in GoPro; blur_gamma: mean of linear light; sharp: the
    middle raw frame;
    instants: the raw frames nearest to the middles of equal parts of the exposure.
    """
    instants = recipe.instants
    # round() takes halves to the even number on both sides of 0, so that reversed time has the same
    # instants.
    offsets = [
        average // 2 + round((k - instants // 2) * average / instants) for k in range(instants)
    ]
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, recipe.gamma)
    for number, first in enumerate(range(0, len(frames) - average + 1, average)):
        plain = linear = np.float32(0.0)
        kept = {}
        for index in range(average):
            image = frames.read(first + index)
            if index in (average // 2, *offsets):
                kept[index] = np.ascontiguousarray(image)
            plain = plain + image.astype(np.float32)
            linear = linear + cv2.LUT(image, curve)
        blur_gamma = 255.0 * np.power(linear / average, np.float32(1.0 / recipe.gamma))
        made = {
            f"blur/{number:06d}": np.rint(plain / average).astype(np.uint8),
            f"blur_gamma/{number:06d}": np.rint(blur_gamma).astype(np.uint8),
            f"sharp/{number:06d}": kept[average // 2],
            **{f"instants/{number:06d}_{k}": kept[offset] for k, offset in enumerate(offsets)},
        }
        for name, image in made.items():
            imwrite_rgb(folder / f"{name}.png", image)


def make_spikes(clip: str, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write one .dat per exposure.

    After the last raw frame the light is unknown, so the last file may be short.
    """
    average, planes = recipe.average_of(clip), recipe.planes_of(clip)
    size = (frames.size[0] // recipe.ratio, frames.size[1] // recipe.ratio)
    light = grey_light(frames, size, recipe.gamma if recipe.light == "linear" else 1.0)
    path = LightPath(light, len(frames), recipe.method)
    rng = published_stream(recipe.seed, *clip.encode())
    sensor = IntegrateAndFire(
        *size,
        rate=recipe.rate,
        threshold=recipe.threshold,
        rng=rng,
        initial_charge=recipe.initial_charge,
        shot_noise=recipe.shot_noise,
        dark_rate=recipe.dark_rate,
        threshold_mismatch=recipe.threshold_mismatch,
    )
    for number in range(len(frames) // average):
        times = [number * average + p / recipe.interpolate for p in range(planes)]
        stream = (sensor.step(path.at(time))[None] for time in times if time <= len(frames) - 1)
        write_spikes(folder / f"{number:06d}.dat", stream, SpikeGeometry(*size))

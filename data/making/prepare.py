"""Make clips of RGB frames and spikes from fast video, any video, or photographs.

`scripts/prepare_gopro_spike.py` is the program; this module has its steps. There are two ways to
make a clip:

    without a rig   The raw frames of a fast video (240 fps) are averaged in groups of `average`,
                    which gives the blurry frames. The light between them is interpolated, and a
                    simulated sensor turns it into spikes.
    with a rig      Any video or photograph is shown to a simulated pair of cameras
                    (data/cameras/rig.py), which move and have flaws.

The steps, in the order in which the program takes them:

    find_raw_clips   the sources: folders of images, videos, photographs
    cuts_of          with a rig: the parts of a source that are recorded, one clip each
    plan_clip        checks a clip before anything is written, and says what it needs
    make_clip        writes its pictures and spikes

The program runs the last three in several processes. So they take and return plain values, and an
expected error is returned instead of raised: the other clips go on, and all errors are shown.

A finished clip has two folders, each with a record (made.json) of its settings and source:

    <out>/GOPRO_Large/<split>/<clip>/blur, sharp, ...       000000.png, ...
    <out>/GOPRO_Large_spike_seq/<split>/<clip>/spike        000000.dat, ...

A recipe and a source give the same files on every machine, so that a set can be continued and
published. Whoever changes the files must raise VERSION.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
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
# Raise it if the same recipe and source give other files than before. Clips of another version are
# then refused instead of continued. Version 2 came with the modulo reset of the sensor.
VERSION = 2
# Name of the record in each folder of a clip.
RECORD = "made.json"
# Settings that have no effect with a rig, and without one.
RAW_ONLY = {
    "interpolate", "method", "gamma", "light", "rate", "threshold", "initial_charge", "shot_noise",
    "dark_rate", "threshold_mismatch", "instants",
}  # fmt: skip
RIG_ONLY = {"rig", "side", "crop", "clips", "frames", "planes"}
# The shorter side of the scaled frames is at least this many times the side of the crop, so that
# the crop has room to move.
MARGIN = 1.1


# ---- Settings ----------------------------------------------------------------------------------


class Recipe(Section):
    """The settings with which clips are made: flags of the program, and recorded in dataset.json.

    The first group has an effect without a rig, the second with a rig (RAW_ONLY and RIG_ONLY say
    which). `average`, `ratio` and `seed` have an effect with both.
    """

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
    # At most 1, because a pixel fires once per plane at most.
    rate: float = Field(0.5, gt=0, le=1, description="spikes per plane at full light")
    threshold: float = Field(
        1.0,
        gt=0,
        description="charge at which a pixel fires; rate, noise and first charge are relative to "
        "it, so it hardly changes the spikes",
    )
    initial_charge: float = Field(
        1.0,
        ge=0,
        description="largest first charge of a pixel, in thresholds; drawn uniformly from 0 on",
    )
    shot_noise: float = Field(
        0.0, ge=0, description="standard deviation per plane at full light, in thresholds"
    )
    dark_rate: float = Field(0.0, ge=0, description="spikes per plane without light")
    threshold_mismatch: float = Field(
        0.0, ge=0, description="relative standard deviation of the threshold between pixels"
    )
    seed: int = Field(0, ge=0, description="seed of the sensor's noise and first charge")
    instants: int = Field(
        0, ge=0, description="number of sharp instants of each exposure to write as well, odd"
    )

    rig: str = Field(
        "none",
        description="two cameras record any video or photograph: ideal, rig, dim, other, or random "
        "for each clip (what they are: data/cameras/rig.py, NAMED); also with other values of its "
        "fields: rig,parallax=0,rate=0.2",
    )  # fmt: skip
    side: int = Field(
        288, ge=16, description="with a rig: shorter side that videos and photographs are scaled to"
    )
    crop: int = Field(
        192, ge=16, description="with a rig: side of the frames, a crop that moves over the source"
    )
    clips: int = Field(4, ge=1, description="with a rig: largest number of clips of one source")
    frames: int = Field(8, ge=1, description="with a rig: frames of a clip")
    # 88 = 8 * 11: as many planes as 11 averaged raw frames of GoPro give with `interpolate` 8.
    planes: int = Field(88, ge=2, description="with a rig: spike planes per frame")

    @property
    def has_rig(self) -> bool:
        return self.rig != "none"

    def record(self) -> dict[str, Any]:
        """Return the settings with an effect, as JSON.

        Two recipes with equal records give equal clips. A new setting must be left out while it has
        its default, as `instants` is: otherwise clips that were made before could not be continued.
        """
        unused = set(RAW_ONLY if self.has_rig else RIG_ONLY)
        if not self.instants:
            unused.add("instants")
        return {key: value for key, value in self.plain().items() if key not in unused}

    def rig_of(self, clip: str) -> Rig:
        """Return the rig that records a clip.

        Without --rig, the result stands for the simulated sensor alone: only its rate and light
        have a meaning, and dataset.json gets these two.
        Raises OptionError if --rig names no rig.
        """
        if self.has_rig:
            return Rig.asked(self.rig, random_stream(f"rig of clip {clip}", self.seed))
        return Rig(rate=self.rate, light=self.light)

    def average_of(self, clip: str) -> int:
        """Return the number of raw frames in an exposure of a clip.

        The setting counts first, then the name of the clip (GOPR0372_07_00 has 7), then 7.
        """
        if self.average:
            return self.average
        named = re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)
        return int(named.group(1)) if named else 7

    def planes_of(self, clip: str) -> int:
        """Return the number of spike planes in a frame of a clip."""
        if self.has_rig:
            return self.planes
        return self.interpolate * self.average_of(clip)


# ---- Sources -----------------------------------------------------------------------------------


class RawClip(NamedTuple):
    """A source of clips.

    name: name of the file or folder, without suffix.
    path: a folder of images, a video file or, with a rig, a photograph.
    split: "train" or "test" if the source has such folders, else "".
    """

    name: str
    path: Path
    split: str

    @property
    def is_photo(self) -> bool:
        return self.path.suffix.lower() in IMAGE_SUFFIXES and self.path.is_file()


def find_raw_clips(source: Path, photos: bool = False) -> list[RawClip]:
    """Return the sources in a folder, or in its folders `train` and `test`.

    source: a folder, or one file. photos: whether image files are sources too.
    Raises DataError if there is no source, and if two sources have the same name.
    """
    if source.is_file():
        return [RawClip(source.stem, source, "")]
    roots = [(source / split, split) for split in SPLITS if (source / split).is_dir()]
    if not roots and source.is_dir():
        roots = [(source, "")]

    clips = []
    for root, split in roots:
        for name, path in clips_in(root):
            clips.append(RawClip(name, path, split))
    if photos:
        for root, split in roots:
            for path in sorted(root.iterdir(), key=lambda path: natural_key(path.name)):
                clip = RawClip(path.stem, path, split)
                if clip.is_photo:
                    clips.append(clip)

    for clip in clips:
        checked_name(clip.name, str(source))
    if not clips:
        raise DataError(
            what="no raw clip found",
            where=str(source),
            expected="folders of images or video files, with or without train/ and test/",
            do="correct --source",
        )
    counts = Counter(clip.name for clip in clips)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise DataError(
            what=f"two raw clips of the same name: {', '.join(twice[:5])}",
            where=str(source),
            expected="one clip per name",
            do="rename one",
        )
    return clips


def cuts_of(raw: RawClip, recipe: Recipe) -> list[Cut] | DataError:
    """Return the parts of a source that a rig records, at most `recipe.clips`.

    A DataError is returned, not raised, so that the other sources are still made.
    """
    cv2.setNumThreads(1)  # the program runs as many processes as there are cores
    try:
        frames = FrameSource(raw.path)
        if min(frames.size) < recipe.crop:
            height, width = frames.size
            raise DataError(
                what=f"frames of {height} x {width}",
                where=str(raw.path),
                expected=f"both sides at least --crop {recipe.crop}",
                do="lower --crop",
            )
        if raw.is_photo:
            # Each clip is another motion over the same photograph. `first` is its number.
            return [Cut(number, 1, recipe.side) for number in range(recipe.clips)]
        least_side = min(round(MARGIN * recipe.crop), recipe.side)
        rng = random_stream(f"cuts of {raw.name}", recipe.seed)
        sides = (least_side, recipe.side)
        cuts = find_cuts(frames, recipe.frames, sides, recipe.average, rng)
    except DataError as e:
        return e
    if not cuts:
        return DataError(
            what="no part without a cut and with small motion",
            where=str(raw.path),
            expected=f"{recipe.frames} exposures whose frames can be interpolated",
            do="lower --frames, --average or --crop",
        )
    # Spread the clips evenly over the video.
    count = min(recipe.clips, len(cuts))
    chosen = np.linspace(0, len(cuts) - 1, count).round().astype(int)
    return [cuts[number] for number in chosen]


# ---- Plans -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One clip to make.

    name: name of the clip. split: "train" or "test".
    raw: source of the clip. out: folder of the data set.
    cut: with a rig, the part of the source that is recorded. For a photograph, `cut.first` is the
    number of the clip. None without a rig.
    """

    name: str
    split: str
    raw: RawClip
    out: Path
    cut: Cut | None = None

    @property
    def folders(self) -> tuple[Path, Path]:
        """The folder of the frames, and the folder of the spikes."""
        place = Path(self.split) / self.name
        return self.out / "GOPRO_Large" / place, self.out / "GOPRO_Large_spike_seq" / place


@dataclass(frozen=True)
class Plan:
    """What making a clip needs.

    size: (height, width) of the source's frames, or with a rig of the frames of the clip.
    bytes: estimated size of the files of the clip.
    todo: whether the clip must be made, because one of its two folders is missing.
    frames: number of raw frames to read or, with a rig, of frames to make.
    record: the contents of made.json.
    """

    size: tuple[int, int]
    bytes: int
    todo: bool
    frames: int
    record: dict[str, Any]


def plan_clip(job: Job, recipe: Recipe) -> Plan | DataError:
    """Check a clip before it is made. Nothing is written.

    A DataError is returned, not raised, so that the errors of all clips can be shown.
    """
    cv2.setNumThreads(1)  # the program runs as many processes as there are cores
    try:
        return _plan(job, recipe)
    except DataError as e:
        return e


def _plan(job: Job, recipe: Recipe) -> Plan:
    """Check a clip, see `plan_clip`. Raises DataError."""
    average = recipe.average_of(job.name)
    # With a cut, `cuts_of` has read the frames already.
    source = None if job.cut else FrameSource(job.raw.path)
    if source is None:
        size = (recipe.crop, recipe.crop)
        frames = recipe.frames
        exposures = frames
    else:
        size = source.size
        frames = len(source)
        exposures = frames // average

    # The size of a spike plane, whose bits must fill whole bytes.
    height = size[0] // recipe.ratio
    width = size[1] // recipe.ratio
    is_divisible = (height * recipe.ratio, width * recipe.ratio) == size
    if not is_divisible or height * width % 8:
        raise DataError(
            what=f"frames of {size[0]} x {size[1]} do not divide by --ratio {recipe.ratio} into "
            "whole bytes",
            where=str(job.raw.path),
            expected="both sides divisible, and their product / ratio^2 by 8",
            do="choose another --ratio",
        )
    if recipe.instants > average:
        raise DataError(
            what=f"clip {job.name} averages {average} raw frames, fewer than --instants "
            f"{recipe.instants}",
            where=str(job.raw.path),
            expected="a raw frame for each instant",
            do="lower --instants, or raise --average",
        )
    if exposures == 0:
        raise DataError(
            what=f"clip {job.name} has {frames} frames",
            where=str(job.raw.path),
            expected=f"at least {average}, for one exposure",
            do="lower --average, or remove the clip",
        )

    files = _files_of(job.raw.path, source)
    record = {
        "version": VERSION,
        "recipe": recipe.record(),
        "source": _digest_of(files),
    }
    todo = not _is_made(job, record)
    if todo and source:
        _refuse_other_sizes(job.name, files, size)

    # Bytes of the spikes of a frame, and of its images. An image is estimated from the first frame.
    # There are three images (blur, blur_gamma, sharp) and the instants.
    spike_bytes = recipe.planes_of(job.name) * height * width // 8
    if source:
        _, first_png = cv2.imencode(".png", source.read(0))
        image_bytes = len(first_png) * (3 + recipe.instants)
    else:
        # With a rig, no frame exists yet. blur and sharp together have 6 bytes a pixel before they
        # are compressed; half of this is assumed.
        image_bytes = 3 * recipe.crop**2
    return Plan(size, exposures * (spike_bytes + image_bytes), todo, frames, record)


def _files_of(path: Path, source: FrameSource | None) -> list[Path]:
    """Return the files of a source, each once: a video is the file of all its frames."""
    if source:
        files = source.files
    elif path.is_dir():
        files = sorted(path.iterdir())
    else:
        files = [path]
    return list(dict.fromkeys(files))


def _digest_of(files: list[Path]) -> str:
    """Return 16 hex digits that change with the name, size or time of change of any file."""
    digest = hashlib.sha256()
    for file in files:
        line = "raw/{} {} {}\n".format(file.name, *stamp(str(file)))
        # Names may have bytes that are no text.
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _refuse_other_sizes(clip: str, files: list[Path], size: tuple[int, int]) -> None:
    """Raise DataError if an image has another size (height, width) than the first one.

    Only the headers of PNGs are read. Frames of other formats are checked when they are decoded.
    """
    for file in files:
        if file.suffix.lower() != ".png":
            continue
        found = image_size(str(file))
        if found != size:
            raise DataError(
                what="clip {} has a frame of {} x {}".format(clip, *found),
                where=str(file),
                expected="{} x {}, as the first".format(*size),
                do="remove it, or make it again",
            )


def _is_made(job: Job, record: dict[str, Any]) -> bool:
    """Return whether both folders of a clip exist.

    Raises DataError if a folder was not made from this source with this recipe.
    """
    folders = [folder for folder in job.folders if os.path.lexists(folder)]
    for folder in folders:
        try:
            made = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            differing = [key for key in record if made[key] != record[key]]
        except (OSError, ValueError, KeyError, TypeError):
            differing = [f"there is no usable {RECORD}"]
        if differing:
            raise DataError(
                what=f"clip {job.name} exists already, but differs from what would be made: "
                f"{', '.join(differing)}",
                where=str(folder),
                expected=f"none, or one made from these files with these settings ({RECORD})",
                do="choose another --out, or move the folder away",
            )
    return len(folders) == 2


# ---- Making a clip -----------------------------------------------------------------------------


def make_clip(job: Job, recipe: Recipe, record: dict[str, Any]) -> None:
    """Make the pictures and the spikes of one clip. Each folder appears when it is complete.

    record: `Plan.record` of the clip. It is written last, so a folder with a record is complete.
    """
    cv2.setNumThreads(1)  # the program runs as many processes as there are cores
    frames = FrameSource(job.raw.path)
    scratch = [scratch_folder(folder.with_name(f".{job.name}.tmp")) for folder in job.folders]
    pictures, spikes = scratch
    (spikes / "spike").mkdir()
    if job.cut:
        _record_with_rig(job, job.cut, recipe, frames, pictures, spikes / "spike")
    else:
        make_images(recipe.average_of(job.name), recipe, frames, pictures)
        make_spikes(job.name, recipe, frames, spikes / "spike")
    for folder, made in zip(job.folders, scratch, strict=True):
        write_whole(made / RECORD, (json.dumps(record, indent=2) + "\n").encode())
        # If a run was killed between the two folders, one folder exists. `plan_clip` has checked
        # that it was made from the same source with the same recipe.
        if os.path.lexists(folder):
            shutil.rmtree(made)
        else:
            publish_folder(made, folder)


def _record_with_rig(
    job: Job, cut: Cut, recipe: Recipe, frames: FrameSource, pictures: Path, spikes: Path
) -> None:
    """Write what a rig records of a cut: blurry frames, sharp frames and spikes.

    pictures: folder in which the folders blur and sharp are made. spikes: folder of the .dat files.
    """
    rng = random_stream(f"scene of clip {job.name}", recipe.seed)
    count = recipe.frames
    planes = recipe.planes
    crop = recipe.crop
    if job.raw.is_photo:
        lights = photo_scene(frames.read(0), cut.side, count, planes, crop, rng)
    else:
        lights = video_scene(frames, cut, count, planes, crop, rng)
    side = crop // recipe.ratio  # of a spike plane
    rig = recipe.rig_of(job.name)
    recorded = rig.record(lights, planes, (side, side))
    for number, (blurry, sharp, stream) in enumerate(recorded):
        imwrite_rgb(pictures / f"blur/{number:06d}.png", blurry)
        imwrite_rgb(pictures / f"sharp/{number:06d}.png", sharp)
        write_spikes(spikes / f"{number:06d}.dat", stream, SpikeGeometry(side, side))


def make_images(average: int, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write the frames of all exposures, each of `average` raw frames, below `folder`.

    blur: mean of the display values, as in GoPro.
    blur_gamma: mean of linear light.
    sharp: the middle raw frame.
    instants: the raw frames nearest to the middles of equal parts of the exposure.
    """
    middle = average // 2
    instants = recipe.instants
    # The instants must be symmetric about the middle, so that reversed time has the same instants.
    # round() is symmetric: it rounds 0.5 to 0 and -0.5 to 0. For average 7 and 3 instants, the raw
    # frames are 3 + round(-7 / 3) = 1, 3 and 5.
    offsets = []
    for k in range(instants):
        offsets.append(middle + round((k - instants // 2) * average / instants))
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, recipe.gamma)

    # Raw frames after the last whole exposure are left out.
    starts = range(0, len(frames) - average + 1, average)
    for number, first in enumerate(starts):
        display_sum = np.float32(0.0)
        light_sum = np.float32(0.0)
        kept = {}  # raw frames that are written as they are
        for index in range(average):
            image = frames.read(first + index)
            if index == middle or index in offsets:
                kept[index] = np.ascontiguousarray(image)
            display_sum = display_sum + image.astype(np.float32)
            light_sum = light_sum + cv2.LUT(image, curve)
        blur = display_sum / average
        blur_gamma = 255.0 * np.power(light_sum / average, np.float32(1.0 / recipe.gamma))

        made = {
            f"blur/{number:06d}": np.rint(blur).astype(np.uint8),
            f"blur_gamma/{number:06d}": np.rint(blur_gamma).astype(np.uint8),
            f"sharp/{number:06d}": kept[middle],
        }
        for k, offset in enumerate(offsets):
            made[f"instants/{number:06d}_{k}"] = kept[offset]
        for name, image in made.items():
            imwrite_rgb(folder / f"{name}.png", image)


def make_spikes(clip: str, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write one .dat per exposure.

    After the last raw frame the light is unknown, so the last file may be short.
    """
    average = recipe.average_of(clip)
    planes = recipe.planes_of(clip)
    size = (frames.size[0] // recipe.ratio, frames.size[1] // recipe.ratio)
    gamma = recipe.gamma if recipe.light == "linear" else 1.0
    path = LightPath(grey_light(frames, size, gamma), len(frames), recipe.method)
    sensor = IntegrateAndFire(
        *size,
        rate=recipe.rate,
        threshold=recipe.threshold,
        # The stream of random numbers of the published data: the same seed gives the same files.
        rng=published_stream(recipe.seed, *clip.encode()),
        initial_charge=recipe.initial_charge,
        shot_noise=recipe.shot_noise,
        dark_rate=recipe.dark_rate,
        threshold_mismatch=recipe.threshold_mismatch,
    )

    def fired_in(exposure: int) -> Iterator[np.ndarray]:
        """Yield the planes (1, h, w) of an exposure, as far as the light is known."""
        for plane in range(planes):
            time = exposure * average + plane / recipe.interpolate  # in raw frames
            if time <= len(frames) - 1:
                yield sensor.step(path.at(time))[None]

    # The charge of the sensor goes on from one exposure to the next.
    for number in range(len(frames) // average):
        write_spikes(folder / f"{number:06d}.dat", fired_in(number), SpikeGeometry(*size))

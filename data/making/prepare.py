"""Make clips of RGB frames and spikes from fast video, any video, or photographs.

`scripts/prepare_gopro_spike.py` is the program; this module has its steps. There are two ways to
make a clip:

    without a rig   The raw frames of a fast video (240 fps) are averaged in groups of `average`,
                    which gives the blurry frames. The light between them is interpolated, and a
                    simulated sensor turns it into spikes.
    with a rig      Any video or photograph is shown to a simulated pair of cameras
                    (data/cameras/rig.py), which move and have flaws.

The steps, in the order in which the program takes them:

    find_sources     finds the sources: folders of images, videos, photographs
    cuts_of          with a rig: chooses the parts of a source that are recorded, one clip each
    plan_clip        checks a clip before anything is written, and says what the clip needs
    make_clip        writes the pictures and the spikes of a clip

The program runs the last three steps in several processes. So they take and return values that can
be pickled. If a source cannot be used, `cuts_of` and `plan_clip` return the error and do not raise
it. So the program goes on with the other clips, and shows all errors at the end.

A finished clip has two folders, each with a record (made.json) of its settings and source:

    <out>/GOPRO_Large/<split>/<clip>/blur, sharp, ...       000000.png, ...
    <out>/GOPRO_Large_spike_seq/<split>/<clip>/spike        000000.dat, ...

What must stay: a recipe (the settings, `Recipe`) and a source give the same files on every machine,
because data sets are continued and published. So neither the order of random draws nor the
arithmetic may change. Whoever changes the files must raise VERSION. What may change: the checks
before a clip is made, the texts, and speed.

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
from data.clips.listed_files import stamp
from data.clips.pictures import image_size
from data.clips.user_folders import clips_in
from data.clips.user_frames import FrameSource
from data.making.frame_light import grey_light
from data.making.light_path import LightPath
from data.making.photo_scene import PhotoScene
from data.making.video_parts import Cut, find_cuts
from data.making.video_scene import video_scene
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_linear
from data.spike.simulate import IntegrateAndFire
from utils.errors import DataError
from utils.files import write_whole
from utils.image import IMAGE_SUFFIXES, imwrite_rgb
from utils.name_order import natural_key
from utils.options.section import Section
from utils.output_folder import publish_folder, scratch_folder
from utils.random_streams import published_stream, random_stream

SPLITS = ("train", "test")
# Raise it if the same recipe and source give other files than before. The program then refuses to
# continue a data set of another version, because its clips would be of two kinds. Since version 2,
# a pixel of the simulated sensor that fires keeps its charge modulo the threshold.
VERSION = 2
# Name of the record in each folder of a clip.
RECORD = "made.json"
# Settings that have an effect only without a rig. If a new setting is in neither of the two sets,
# it is recorded with and without a rig, and old data sets cannot be continued.
ONLY_WITHOUT_RIG = {
    "interpolate", "method", "gamma", "light", "rate", "threshold", "initial_charge", "shot_noise",
    "dark_rate", "threshold_mismatch", "instants",
}  # fmt: skip
# Settings that have an effect only with a rig.
ONLY_WITH_RIG = {"rig", "side", "crop", "clips", "frames", "planes"}
# The shorter side of the scaled frames is at least this many times the side of the crop, so that
# the crop has room to move. A larger value would leave less choice between sides, and so fewer
# parts of fast videos. With 1, the crop could not move along the shorter side.
LEAST_SIDE_PER_CROP = 1.1


# ---- Settings ----------------------------------------------------------------------------------


class Recipe(Section):
    """The settings of the made clips: flags of the program, which dataset.json records.

    ONLY_WITHOUT_RIG and ONLY_WITH_RIG list the settings that have an effect in one case only. The
    settings `average`, `ratio` and `seed` always have an effect.

    What must stay: names and defaults, because users' commands and the records of made clips have
    them. `record` says what a new setting needs.
    """

    # Settings of clips without a rig. Of these, `average`, `ratio` and `seed` also act with a rig.
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

    # Settings of clips with a rig.
    rig: str = Field(
        "none",
        description="two cameras record any video or photograph: ideal, rig, dim, other, or random "
        "for each clip (what they are: NAMED in data/cameras/rig_values.py); also with other "
        "values of its fields: rig,parallax=0,rate=0.2",
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

        Two recipes with equal records give equal clips. So the record is stored with each clip, and
        it is compared when a data set is continued. The records of older data sets lack a setting
        that is added later. So a new setting must be left out here while it has its default, as
        `instants` is. Otherwise older data sets could not be continued.
        """
        if self.has_rig:
            without_effect = set(ONLY_WITHOUT_RIG)
        else:
            without_effect = set(ONLY_WITH_RIG)
        if not self.instants:
            without_effect.add("instants")
        return {key: value for key, value in self.plain().items() if key not in without_effect}

    def refuse_unknown_rig(self) -> None:
        """Raise OptionError if --rig names no rig."""
        # Any name of a clip would do, because the name only changes the random numbers of a rig.
        self.rig_of("")

    def rig_of(self, clip: str) -> Rig:
        """Return the rig that records a clip.

        Without --rig, there is no second camera. Then the result describes the simulated sensor
        alone, and the program reads only its fields `rate` and `light`, for dataset.json.
        Raises OptionError if --rig names no rig.
        """
        if self.has_rig:
            return Rig.of_flag(self.rig, random_stream(f"rig of clip {clip}", self.seed))
        return Rig(rate=self.rate, light=self.light)

    def raw_frames_per_exposure(self, clip: str) -> int:
        """Return the number of raw frames that are averaged to a blurry frame of a clip.

        The setting `average` counts first. Without this setting, the number in a name of GoPro is
        used, e.g. 7 for GOPR0372_07_00. Clips with other names have 7.
        """
        if self.average:
            return self.average
        name_of_gopro = re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)
        if name_of_gopro:
            return int(name_of_gopro.group(1))
        return 7

    def planes_of(self, clip: str) -> int:
        """Return the number of spike planes in a frame of a clip."""
        if self.has_rig:
            return self.planes
        return self.interpolate * self.raw_frames_per_exposure(clip)


# ---- Sources -----------------------------------------------------------------------------------


class ClipSource(NamedTuple):
    """What a clip is made from. With a rig, several clips may be made from one source."""

    name: str  # name of the file or folder, without suffix
    path: Path  # a folder of images, a video file or, with a rig, a photograph
    split: str  # "train" or "test" if the source has such folders, else ""

    @property
    def is_photo(self) -> bool:
        return self.path.suffix.lower() in IMAGE_SUFFIXES and self.path.is_file()


def find_sources(path: Path, photos: bool = False) -> list[ClipSource]:
    """Return the sources in a folder, or in its folders `train` and `test`.

    path: --source, a folder or one file. photos: whether image files are sources too.
    Raises DataError if there is no source, and if two sources have the same name.
    """
    if path.is_file():
        return [ClipSource(path.stem, path, split="")]
    # The folders to search, as (folder, name of the split).
    roots = []
    for split in SPLITS:
        folder = path / split
        if folder.is_dir():
            roots.append((folder, split))
    if not roots and path.is_dir():
        roots = [(path, "")]

    # Folders of images and videos come first, then photographs. Clips are made and shown in this
    # order.
    sources = []
    for root, split in roots:
        for name, file_or_folder in clips_in(root):
            sources.append(ClipSource(name, file_or_folder, split))
    if photos:
        for root, split in roots:
            for file in sorted(root.iterdir(), key=lambda file: natural_key(file.name)):
                source = ClipSource(file.stem, file, split)
                if source.is_photo:
                    sources.append(source)

    # The names become names of folders, so a name that no folder can have is refused.
    for source in sources:
        checked_name(source.name, str(path))
    if not sources:
        raise DataError(
            what="no raw clip found",
            where=str(path),
            expected="folders of images or video files, with or without train/ and test/",
            do="correct --source",
        )
    _refuse_equal_names(sources, path)
    return sources


def _refuse_equal_names(sources: list[ClipSource], path: Path) -> None:
    """Refuse two sources of one name, because their clips would have one folder.

    path: --source, for the message.
    """
    counts = Counter(source.name for source in sources)
    repeated_names = [name for name, count in counts.items() if count > 1]
    if repeated_names:
        raise DataError(
            what=f"two raw clips of the same name: {', '.join(repeated_names[:5])}",
            where=str(path),
            expected="a different name for each clip",
            do="rename one of the clips",
        )


def cuts_of(source: ClipSource, recipe: Recipe) -> list[Cut] | DataError:
    """Return the parts of a source that a rig records, at most `recipe.clips`.

    A DataError is returned and not raised, so that the program goes on with the other sources.
    """
    try:
        return _find_cuts_of(source, recipe)
    except DataError as e:
        return e


def _find_cuts_of(source: ClipSource, recipe: Recipe) -> list[Cut]:
    """Return the parts of a source that a rig records. Raises DataError if there are none.

    What must stay: the parts for a source and a recipe. `random_stream` gives the same numbers on
    every machine. Another order of the draws would give other data sets (VERSION).
    """
    # This changes OpenCV in the whole process. The program runs as many processes as there are
    # cores, so more threads would compete for them.
    cv2.setNumThreads(1)
    frames = FrameSource(source.path)
    if min(frames.size) < recipe.crop:
        height, width = frames.size
        raise DataError(
            what=f"frames of {height} x {width}",
            where=str(source.path),
            expected=f"both sides at least --crop {recipe.crop}",
            do="lower --crop",
        )
    if source.is_photo:
        # A photograph has no parts. Each clip is another motion over the same photograph, and
        # `first` is only the number of the clip.
        return [Cut(first=i, average=1, side=recipe.side) for i in range(recipe.clips)]

    least_side = min(round(LEAST_SIDE_PER_CROP * recipe.crop), recipe.side)
    cuts = find_cuts(
        frames,
        intervals=recipe.frames,
        sides=(least_side, recipe.side),
        frames_per_interval=recipe.average,
        rng=random_stream(f"cuts of {source.name}", recipe.seed),
    )
    if not cuts:
        raise DataError(
            what="no part without a cut and with small motion",
            where=str(source.path),
            expected=f"{recipe.frames} exposures whose frames can be interpolated",
            do="lower --frames, --average or --crop",
        )
    # Spread the clips evenly over the video: 3 clips of 9 parts are the parts 0, 4 and 8.
    number_of_clips = min(recipe.clips, len(cuts))
    chosen = np.linspace(0, len(cuts) - 1, number_of_clips).round().astype(int)
    return [cuts[number] for number in chosen]


# ---- Plans -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One clip to make."""

    name: str  # name of the clip
    split: str  # "train" or "test"
    source: ClipSource  # what the clip is made from
    out: Path  # folder of the data set
    # With a rig, the part of the source that is recorded. For a photograph, `cut.first` is the
    # number of the clip. None without a rig.
    cut: Cut | None = None

    @property
    def folders(self) -> tuple[Path, Path]:
        """The folder of the frames, and the folder of the spikes.

        The names are the names of the published data set, and users' option files have them.
        """
        clip = Path(self.split) / self.name  # e.g. train/GOPR0372_07_00
        return self.out / "GOPRO_Large" / clip, self.out / "GOPRO_Large_spike_seq" / clip


@dataclass(frozen=True)
class Plan:
    """What making a clip needs."""

    size: tuple[int, int]  # (height, width) of the source's frames; with a rig, of the made frames
    bytes: int  # estimated size of the files of the clip
    is_to_make: bool  # whether the clip must be made, because one of its two folders is missing
    frames: int  # number of raw frames to read; with a rig, number of frames to make
    record: dict[str, Any]  # the contents of made.json


def plan_clip(job: Job, recipe: Recipe) -> Plan | DataError:
    """Check a clip before it is made. Nothing is written.

    A DataError is returned and not raised, so that the program can show the errors of all clips.
    """
    cv2.setNumThreads(1)  # for the whole process, because the program runs one on each core
    try:
        return _plan(job, recipe)
    except DataError as e:
        return e


def _plan(job: Job, recipe: Recipe) -> Plan:
    """Check a clip, and say what making it needs. Raises DataError."""
    # A job with a cut has a rig. `cuts_of` has checked its frames already, so they are not opened
    # here.
    raw = None if job.cut else FrameSource(job.source.path)  # the raw frames
    if raw is None:
        size = (recipe.crop, recipe.crop)
        frames = recipe.frames
        exposures = frames
    else:
        size = raw.size
        frames = len(raw)
        # Raw frames after the last whole exposure are left out.
        exposures = frames // recipe.raw_frames_per_exposure(job.name)

    _refuse_ratio(size, recipe.ratio, job.source.path)
    _refuse_too_few_frames(job, recipe, frames, exposures)

    files = _files_of(job.source.path, raw)
    record = {
        "version": VERSION,
        "recipe": recipe.record(),
        "source": _digest_of(files),
    }
    is_to_make = not _is_made(job, record)
    # The headers of all frames are read only if the frames are needed.
    if is_to_make and raw:
        _refuse_other_sizes(job.name, files, size)
    return Plan(
        size=size,
        bytes=exposures * _bytes_per_exposure(job.name, recipe, size, raw),
        is_to_make=is_to_make,
        frames=frames,
        record=record,
    )


def _refuse_too_few_frames(job: Job, recipe: Recipe, frames: int, exposures: int) -> None:
    """Refuse a clip with no whole exposure, or with more instants than an exposure has raw frames.

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
            what=f"clip {job.name} has {frames} frames",
            where=str(job.source.path),
            expected=f"at least {average} frames, for one exposure",
            do="lower --average, or remove the clip",
        )


def _refuse_ratio(size: tuple[int, int], ratio: int, path: Path) -> None:
    """Refuse frames if their spike planes would not have whole pixels and whole bytes.

    A plane of a .dat has one bit for each spike pixel, so its number of pixels must divide by 8.
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


def _bytes_per_exposure(
    clip: str, recipe: Recipe, size: tuple[int, int], raw: FrameSource | None
) -> int:
    """Return the estimated bytes of the spikes and images of an exposure.

    size: (height, width) of the frames. raw: the raw frames; None with a rig.
    """
    height, width = size
    spike_pixels = (height // recipe.ratio) * (width // recipe.ratio)
    # A spike pixel has one bit in each plane.
    spike_bytes = recipe.planes_of(clip) * spike_pixels // 8
    if raw:
        # All images are assumed to have the size of the first frame as a PNG. There are three
        # images (blur, blur_gamma, sharp) and the instants.
        _, first_png = cv2.imencode(".png", raw.read(0))
        image_bytes = len(first_png) * (3 + recipe.instants)
    else:
        # No frame exists yet. A pixel has 3 bytes in blur and 3 bytes in sharp. We assume that PNG
        # halves these 6 bytes.
        image_bytes = 3 * recipe.crop**2
    return spike_bytes + image_bytes


def _files_of(path: Path, raw: FrameSource | None) -> list[Path]:
    """Return the files of a source, each once.

    path: the source. raw: its frames; None with a rig.
    The order is part of the digest of the source (`_digest_of`), so it must stay.
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

    They are stored in made.json. If the hashed lines change, no older data set can be continued.
    """
    digest = hashlib.sha256()
    for file in files:
        size, mtime_ns = stamp(str(file))
        line = f"raw/{file.name} {size} {mtime_ns}\n"
        # Names may have bytes that are no text. Python reads such bytes as lone surrogates.
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _refuse_other_sizes(clip: str, files: list[Path], size: tuple[int, int]) -> None:
    """Raise DataError if an image has another size (height, width) than the first image.

    Only PNGs are checked, because their header tells the size. To find the size of another format,
    the image would have to be decoded. So these images are checked later, when they are read.
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


def _is_made(job: Job, record: dict[str, Any]) -> bool:
    """Return whether both folders of a clip exist.

    record: the contents of made.json that the clip would get.
    Raises DataError if a folder was not made from this source with this recipe. Such a folder is
    never overwritten.
    """
    # lexists is also true for a broken link. A broken link must not be replaced either.
    folders = [folder for folder in job.folders if os.path.lexists(folder)]
    for folder in folders:
        try:
            made = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            differing = [key for key in record if made[key] != record[key]]
        # There is no file, the file is no JSON, or the JSON has other keys or is no object.
        except (OSError, ValueError, KeyError, TypeError):
            differing = [f"there is no usable {RECORD}"]
        if differing:
            raise DataError(
                what=f"clip {job.name} exists already, but differs from what would be made: "
                f"{', '.join(differing)}",
                where=str(folder),
                expected="no such folder, or a folder that was made from these files with these "
                f"settings ({RECORD})",
                do="choose another --out, or move the folder away",
            )
    return len(folders) == 2


# ---- Making a clip -----------------------------------------------------------------------------


def make_clip(job: Job, recipe: Recipe, record: dict[str, Any]) -> None:
    """Make the pictures and the spikes of one clip. Each folder appears when it is complete.

    record: `Plan.record` of the clip. It is written last, so a folder with a record is complete.
    `plan_clip` must have accepted the clip before, because nothing is checked here.
    """
    cv2.setNumThreads(1)  # for the whole process, because the program runs one on each core
    frames = FrameSource(job.source.path)
    # Everything is written into two hidden folders beside the final folders.
    scratch_folders = []
    for folder in job.folders:
        scratch_folders.append(scratch_folder(folder.with_name(f".{job.name}.tmp")))
    pictures, spikes = scratch_folders
    (spikes / "spike").mkdir()
    if job.cut:
        _record_with_rig(job, job.cut, recipe, frames, pictures=pictures, spikes=spikes / "spike")
    else:
        make_images(recipe.raw_frames_per_exposure(job.name), recipe, frames, pictures)
        make_spikes(job.name, recipe, frames, spikes / "spike")

    # The folders get their final names.
    text = json.dumps(record, indent=2) + "\n"
    for folder, scratch in zip(job.folders, scratch_folders, strict=True):
        write_whole(scratch / RECORD, text.encode())
        # An earlier run may have been killed after it had finished one of the two folders. This
        # folder stays, because `plan_clip` has checked that it was made from the same source with
        # the same recipe.
        if os.path.lexists(folder):
            shutil.rmtree(scratch)
        else:
            publish_folder(scratch, folder)


def _record_with_rig(
    job: Job, cut: Cut, recipe: Recipe, frames: FrameSource, pictures: Path, spikes: Path
) -> None:
    """Write what a rig records of a cut: blurry frames, sharp frames and spikes.

    job: the clip to make. cut: the part of its source that is recorded.
    recipe: the settings. frames: the frames of the source; a photograph is a single frame.
    pictures: folder in which the folders blur and sharp are made. spikes: folder of the .dat files.
    """
    rng = random_stream(f"scene of clip {job.name}", recipe.seed)
    crop = recipe.crop  # side of the made frames in pixels
    # lights: an iterator over the light of each plane, (crop, crop, 3). The number of lights is
    # recipe.frames * recipe.planes.
    if job.source.is_photo:
        scene = PhotoScene(
            frames.read(0),
            side=cut.side,  # to which the shorter side of the photograph is scaled down
            count=recipe.frames,
            planes=recipe.planes,
            crop=crop,
            rng=rng,
        )
        lights = scene.lights()
    else:
        lights = video_scene(
            frames, cut, count=recipe.frames, planes=recipe.planes, crop=crop, rng=rng
        )
    # For each frame, the two cameras give a blurry frame, a sharp frame and the planes.
    spike_side = crop // recipe.ratio  # side of a spike plane in pixels
    rig = recipe.rig_of(job.name)
    recorded = rig.record(lights, recipe.planes, spike=(spike_side, spike_side))
    for number, (blurry, sharp, stream) in enumerate(recorded):
        imwrite_rgb(pictures / f"blur/{number:06d}.png", blurry)
        imwrite_rgb(pictures / f"sharp/{number:06d}.png", sharp)
        geometry = SpikeGeometry(spike_side, spike_side)
        write_spikes(spikes / f"{number:06d}.dat", stream, geometry)


def make_images(average: int, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write the frames of all exposures below `folder`.

    blur: mean of the display values, as in GoPro.
    blur_gamma: mean of linear light.
    sharp: the middle raw frame.
    instants: the exposure is divided into equal parts, and the raw frame nearest to the middle of
    each part is written.

    average: number of raw frames in an exposure. frames: all raw frames of the clip.
    If a change makes an image differ in any bit, raise VERSION.
    """
    middle = average // 2
    instant_indexes = _instant_indexes(average, recipe.instants)

    # Raw frames after the last whole exposure are left out.
    first_raw_frames = range(0, len(frames) - average + 1, average)
    for number, first in enumerate(first_raw_frames):
        written_indexes = {middle, *instant_indexes}
        exposure = _expose(frames, range(first, first + average), recipe.gamma, written_indexes)
        images = {
            f"blur/{number:06d}": exposure.blur,
            f"blur_gamma/{number:06d}": exposure.blur_gamma,
            f"sharp/{number:06d}": exposure.raw_frames[middle],
        }
        for instant, index in enumerate(instant_indexes):
            images[f"instants/{number:06d}_{instant}"] = exposure.raw_frames[index]
        for name, image in images.items():
            imwrite_rgb(folder / f"{name}.png", image)


class _Exposure(NamedTuple):
    """The pictures of one exposure, (H, W, 3) uint8 each."""

    blur: np.ndarray  # mean of the display values
    blur_gamma: np.ndarray  # mean of linear light, as display values
    # {index in the exposure: raw frame}, only for the raw frames that are written to files
    raw_frames: dict[int, np.ndarray]


def _expose(frames: FrameSource, numbers: range, gamma: float, written: set[int]) -> _Exposure:
    """Average the raw frames of one exposure.

    numbers: numbers of the raw frames. gamma: exponent from display values to light.
    written: which raw frames of the exposure are kept, e.g. {3}: the fourth one. The other raw
    frames are dropped at once, because all raw frames of an exposure would take much memory.

    The raw frames must be added in this order, because the order decides the last bits of the sums.
    """
    # Linear light of each display value 0 ... 255, as float32.
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, gamma)
    display_sum = np.float32(0.0)
    light_sum = np.float32(0.0)
    raw_frames = {}
    for index, number in enumerate(numbers):
        image = frames.read(number)  # (H, W, 3) uint8
        if index in written:
            raw_frames[index] = np.ascontiguousarray(image)
        display_sum = display_sum + image.astype(np.float32)
        light_sum = light_sum + cv2.LUT(image, curve)
    blur = display_sum / len(numbers)
    # The mean light as a display value: 255 * light ** (1 / gamma).
    mean_light = light_sum / len(numbers)
    blur_gamma = 255.0 * np.power(mean_light, np.float32(1.0 / gamma))
    return _Exposure(
        blur=np.rint(blur).astype(np.uint8),
        blur_gamma=np.rint(blur_gamma).astype(np.uint8),
        raw_frames=raw_frames,
    )


def _instant_indexes(average: int, instants: int) -> list[int]:
    """Return the raw frame of each instant, as its index in the exposure.

        index(k) = average // 2 + round((k - K // 2) * average / K),   k = 0 ... K - 1

    E.g. average 7 and K = 3 give the indexes 1, 3 and 5:

        k = 0    3 + round(-7 / 3) = 3 - 2 = 1
        k = 1    3 + round(0)      = 3 + 0 = 3
        k = 2    3 + round(7 / 3)  = 3 + 2 = 5

    average: number of raw frames in an exposure, odd. instants: number of instants K, odd or 0.

    The instants must be symmetric about the middle, so that reversed time has the same instants.
    They are symmetric because round(-x) = -round(x) for every x in Python. Other instants fail
    test_the_instants_are_raw_frames_spread_over_the_exposure.
    """
    middle = average // 2
    indexes = []
    for k in range(instants):
        instants_from_middle = k - instants // 2
        frames_from_middle = round(instants_from_middle * average / instants)
        indexes.append(middle + frames_from_middle)
    return indexes


def make_spikes(clip: str, recipe: Recipe, frames: FrameSource, folder: Path) -> None:
    """Write the spikes of a clip, one .dat for each exposure.

    clip: name of the clip. frames: its raw frames. folder: folder of the .dat files.
    After the last raw frame the light is unknown, so the last file may have fewer planes. If a
    change makes any other spike, raise VERSION.
    """
    average = recipe.raw_frames_per_exposure(clip)
    planes = recipe.planes_of(clip)
    frame_height, frame_width = frames.size
    height = frame_height // recipe.ratio
    width = frame_width // recipe.ratio
    # With light "display", the sensor integrates display values, so the curve is a straight line.
    gamma = recipe.gamma if recipe.light == "linear" else 1.0
    path = LightPath(grey_light(frames, (height, width), gamma), len(frames), recipe.method)
    sensor = IntegrateAndFire(
        height,
        width,
        rate=recipe.rate,
        threshold=recipe.threshold,
        # The published data were made with this generator. Its key is the seed, and then each byte
        # of the name of the clip.
        rng=published_stream(recipe.seed, *clip.encode()),
        initial_charge=recipe.initial_charge,
        shot_noise=recipe.shot_noise,
        dark_rate=recipe.dark_rate,
        threshold_mismatch=recipe.threshold_mismatch,
    )

    def planes_in(exposure: int) -> Iterator[np.ndarray]:
        """Yield the planes (1, h, w) of an exposure, as far as the light is known."""
        for plane in range(planes):
            # In raw frames: `interpolate` planes lie between two raw frames.
            time = exposure * average + plane / recipe.interpolate
            if time <= len(frames) - 1:
                yield sensor.step(path.at(time))[None]  # (1, h, w)

    # The exposures must be made in the order of time, because the sensor is changed by each plane:
    # the charge of a pixel goes on from one exposure to the next.
    for number in range(len(frames) // average):
        geometry = SpikeGeometry(height, width)
        write_spikes(folder / f"{number:06d}.dat", planes_in(number), geometry)

"""RGB + spike clips from high-frame-rate video: the light between its frames, settings, checks and files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.files import Frames, FrameSource, clips_in, image_size
from data.frame_matching import find_offset
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_grey
from utils.dist.process import peak_process_gb
from utils.errors import DataError
from utils.files import publish_folder, scratch_folder, write_whole
from utils.image import imwrite_rgb, list_images
from utils.random_streams import published_stream

SPLITS = ("train", "test")
# To be raised when the same recipe and source give other files than before (2: the sensor's modulo reset).
VERSION = 2
RECORD = "made.json"
KINDS = ("blur", "blur_gamma", "sharp")


def _setting(default: Any, text: str, choices: tuple[str, ...] | None = None, **bounds: float) -> Any:
    """A field of `Recipe` and what a command line needs of it. bounds: at_least, above, at_most."""
    return field(default=default, metadata={"help": text, "choices": choices, "bounds": bounds})


@dataclass(frozen=True)
class Recipe:
    """The settings that clips are made with; recorded in dataset.json."""

    average: int | None = _setting(None, "raw frames per exposure, odd; default: from GoPro names, else 7", at_least=1)
    interpolate: int = _setting(8, "spike planes per raw frame", at_least=1)
    method: str = _setting("flow", "interpolation between raw frames", ("flow", "linear"))
    ratio: int = _setting(2, "RGB pixels per spike pixel, each way", at_least=1)
    gamma: float = _setting(2.2, "exponent from display values to light", above=0)
    light: str = _setting("linear", "what the sensor integrates", ("linear", "display"))
    # A pixel fires once per plane at most.
    rate: float = _setting(0.5, "spikes per plane at full light (gain / threshold)", above=0, at_most=1)
    threshold: float = _setting(1.0, "of the sensor; noise values are relative to it", above=0)
    initial_charge: float = _setting(1.0, "upper end of the uniform first charge, in thresholds", at_least=0)
    shot_noise: float = _setting(0.0, "standard deviation per plane at full light, in thresholds", at_least=0)
    dark_rate: float = _setting(0.0, "spikes per plane without light", at_least=0)
    threshold_mismatch: float = _setting(0.0, "relative standard deviation between pixels", at_least=0)
    seed: int = _setting(0, "of the sensor's noise and first charge")
    instants: int = _setting(0, "also write so many sharp instants of each exposure, an odd number", at_least=0)

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
class RawClip:
    """A clip of raw video: a folder of images or a video file. split: "" without split folders."""

    name: str
    path: Path
    split: str

    def files(self) -> list[Path]:
        return [self.path] if self.path.is_file() else list_images(self.path)


def find_raw_clips(source: Path) -> list[RawClip]:
    """The clips in `source` or, where there are such folders, in its `train` and `test`. Raises DataError for none."""
    if source.is_file():
        return [RawClip(source.stem, source, "")]
    roots = [(source / split, split) for split in SPLITS if (source / split).is_dir()] or [(source, "")]
    clips = [RawClip(*clip, split) for root, split in roots if root.is_dir() for clip in clips_in(root)]
    if not clips:
        raise DataError(
            "no raw clip found", str(source), "folders of images or video files, with or without train/ and test/",
            "correct --source",
        )  # fmt: skip
    twice = [name for name, count in Counter(clip.name for clip in clips).items() if count > 1]
    if twice:
        raise DataError(
            f"two raw clips of the same name: {', '.join(twice[:5])}", str(source), "one clip per name", "rename one"
        )
    return clips


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
    def source(self) -> Path:
        """The frames that its exposures and spike files are counted by."""
        return self.sharp or self.raw.path

    @property
    def where(self) -> str:
        return str(self.source)


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
        frames, average = FrameSource(job.source), recipe.average_of(job.name)
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
        sources = {"raw": job.raw.files() if job.raw else [], "sharp": list_images(job.sharp) if job.sharp else []}
        digest = hashlib.sha256()  # changes with the name, size or time of change of any file of the source
        for kind, files in sources.items():
            for path in files:
                about = path.stat()
                digest.update(f"{kind}/{path.name} {about.st_size} {about.st_mtime_ns}\n".encode())
        record = {"version": VERSION, "recipe": recipe.record(), "source": digest.hexdigest()[:16]}
        made = _made_before(job, record)
        pictures = () if job.sharp or job.rgb.is_dir() else ("pictures",)
        todo = (*pictures, *(() if job.spikes.is_dir() else ("spikes",)))
        if todo:
            for files in sources.values():
                _check_frame_sizes(job, files)
        record["offset"] = made["offset"] if made else 0
        if not made and job.raw and job.sharp:
            where = f"{job.raw.path}, {job.sharp}"
            record["offset"] = find_offset(FrameSource(job.raw.path), frames, average, job.name, where, job.offset)
    except DataError as e:
        return e
    images = 0 if job.sharp else (len(KINDS) + recipe.instants) * len(cv2.imencode(".png", frames.read(0))[1])
    size = count * (images + recipe.planes_of(job.name) * height * width // 8)
    return Plan(frames.size, size, todo, count * average if job.raw else count, record)


def _check_frame_sizes(job: Job, files: list[Path]) -> None:
    """Raise DataError where PNGs of a clip differ in size.

    Only their headers are read. Frames of other formats are checked when they are decoded.
    """
    sizes = {path: image_size(str(path)) for path in files if path.suffix.lower() == ".png"}
    first = next(iter(sizes.values()), None)
    odd = [path for path, size in sizes.items() if size != first]
    if odd:
        height, width = sizes[odd[0]]
        raise DataError(
            f"clip {job.name}: {len(odd)} frames of another size, the first of them a frame of {height} x {width}",
            str(odd[0]), f"{first[0]} x {first[1]}, as the first frame of the clip",
            "remove the frames, or make them again",
        )  # fmt: skip


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
        make_images(job, recipe, scratch)
    else:
        (scratch / "spike").mkdir()
        make_spikes(job, recipe, record["offset"], scratch / "spike")
    write_whole(scratch / RECORD, (json.dumps(record, indent=2) + "\n").encode())
    publish_folder(scratch, folder)
    return peak_process_gb()


def make_images(job: Job, recipe: Recipe, folder: Path) -> None:
    """Write the frames of all exposures, each of `average` raw frames, below `folder`.

    blur: mean of the display values, as in GoPro; blur_gamma: mean of linear light; sharp: the middle raw frame;
    instants: the raw frames nearest to the middles of equal parts of the exposure.
    """
    average, instants, frames = recipe.average_of(job.name), recipe.instants, FrameSource(job.raw.path)
    # round() takes halves to the even number on both sides of 0, so that reversed time has the same instants.
    offsets = [average // 2 + round((k - instants // 2) * average / instants) for k in range(instants)]
    curve = (np.arange(256, dtype=np.float32) / 255.0) ** np.float32(recipe.gamma)
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


def make_spikes(job: Job, recipe: Recipe, offset: int, folder: Path) -> None:
    """Write one .dat per sharp frame, from raw frames where there are any, else interpolated between sharp frames.

    offset: raw frames between the middle of an exposure and its sharp frame. Before the first raw frame the light is
    assumed constant; after the last one it is unknown, so the last file may be short.
    """
    average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
    sharp = FrameSource(job.sharp) if job.sharp else None
    frames = FrameSource(job.raw.path) if job.raw else sharp
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


class LightPath:
    """The grey light at any time between the frames of a clip, at the resolution of the spike camera.

    size: (h, w) of the spike camera; the frame size is a multiple of it.
    gamma: exponent from display values to light (1: the sensor integrates display values, as most simulators do).
    method: "flow" warps along the optical flow (DIS) between neighbouring frames, "linear" blends them.
    """

    def __init__(self, frames: Frames, size: tuple[int, int], gamma: float, method: str) -> None:
        self.frames, self.size, self.method = frames, size, method
        self.curve = (np.arange(256, dtype=np.float32) / 255.0) ** np.float32(gamma)
        self._lights: dict[int, np.ndarray] = {}
        self._flows: tuple[int, np.ndarray, np.ndarray] | None = None
        self._dis = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def at(self, time: float) -> np.ndarray:
        """Light (h, w) float32 at `time` in frames; constant before the first and after the last frame."""
        time = min(max(time, 0.0), len(self.frames) - 1.0)
        index = min(int(time), max(len(self.frames) - 2, 0))
        part = time - index
        if part < 1e-9:
            return self._light(index)
        if part > 1 - 1e-9:
            return self._light(index + 1)
        if self.method == "linear":
            return (1 - part) * self._light(index) + part * self._light(index + 1)
        return self._along_flow(index, np.float32(part))

    def _light(self, index: int) -> np.ndarray:
        if index not in self._lights:
            grey = to_grey(cv2.LUT(self.frames.read(index), self.curve))
            self._lights[index] = cv2.resize(grey, self.size[::-1], interpolation=cv2.INTER_AREA)
            for old in [i for i in self._lights if abs(i - index) > 1]:
                del self._lights[old]
        return self._lights[index]

    def _along_flow(self, index: int, part: np.float32) -> np.ndarray:
        before, after = self._light(index), self._light(index + 1)
        if self._flows is None or self._flows[0] != index:
            a, b = ((np.sqrt(np.clip(light, 0, 1)) * 255).astype(np.uint8) for light in (before, after))
            self._flows = (index, self._dis.calc(a, b, None), self._dis.calc(b, a, None))
        _, forward, backward = self._flows
        return (1 - part) * _warp(before, -part * forward) + part * _warp(after, (part - 1) * backward)


def _warp(light: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Light (h, w) sampled at (x, y) + shift(x, y), with shift (h, w, 2)."""
    height, width = light.shape
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return cv2.remap(light, x + shift[..., 0], y + shift[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

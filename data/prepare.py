"""RGB + spike clips from high-frame-rate video: settings, checks, where sharp frames lie in it, light and files."""

import hashlib
import itertools
import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from pydantic import Field

from data.files import FrameSource, clips_in, image_size
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_grey, to_linear
from utils.dist.process import peak_process_gb
from utils.errors import DataError
from utils.files import publish_folder, scratch_folder, write_whole
from utils.image import imwrite_rgb
from utils.options.section import Section
from utils.random_streams import published_stream

SPLITS = ("train", "test")
# To be raised when the same recipe and source give other files than before (2: the sensor's modulo reset).
VERSION = 2
RECORD = "made.json"
KINDS = ("blur", "blur_gamma", "sharp")
GREY_WIDTH = 160  # pixels of the reduced frames that are compared to find a sharp frame in the raw video
# Mean differences in grey levels: of identical frames, of a re-encoded frame, and the least that separates the
# neighbours of a re-encoded frame.
IDENTICAL, REENCODED, TIE = 0.02, 2.0, 0.1


class Recipe(Section):
    """The settings that clips are made with; recorded in dataset.json."""

    average: int | None = Field(
        None, ge=1, description="raw frames per exposure, odd; default: from GoPro names, else 7"
    )
    interpolate: int = Field(8, ge=1, description="spike planes per raw frame")
    method: Literal["flow", "linear"] = Field("flow", description="interpolation between raw frames")
    ratio: int = Field(2, ge=1, description="RGB pixels per spike pixel, each way")
    gamma: float = Field(2.2, gt=0, description="exponent from display values to light")
    light: Literal["linear", "display"] = Field("linear", description="what the sensor integrates")
    # A pixel fires once per plane at most.
    rate: float = Field(0.5, gt=0, le=1, description="spikes per plane at full light (gain / threshold)")
    threshold: float = Field(1.0, gt=0, description="of the sensor; noise values are relative to it")
    initial_charge: float = Field(1.0, ge=0, description="upper end of the uniform first charge, in thresholds")
    shot_noise: float = Field(0.0, ge=0, description="standard deviation per plane at full light, in thresholds")
    dark_rate: float = Field(0.0, ge=0, description="spikes per plane without light")
    threshold_mismatch: float = Field(0.0, ge=0, description="relative standard deviation between pixels")
    seed: int = Field(0, description="of the sensor's noise and first charge")
    instants: int = Field(0, ge=0, description="also write so many sharp instants of each exposure, an odd number")

    def record(self) -> dict[str, Any]:
        """The settings as JSON. Without instants as before there were any, so that older clips are still continued."""
        return {key: value for key, value in self.plain().items() if key != "instants" or value}

    def average_of(self, clip: str) -> int:
        found = re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)
        return self.average or (int(found.group(1)) if found else 7)

    def planes_of(self, clip: str) -> int:
        return self.interpolate * self.average_of(clip)

    def gt_plane_of(self, clip: str) -> int:
        return self.interpolate * (self.average_of(clip) // 2)


class RawClip(NamedTuple):
    """A clip of raw video: a folder of images or a video file. split: "" without split folders."""

    name: str
    path: Path
    split: str


def find_raw_clips(source: Path) -> list[RawClip]:
    """The clips in `source` or, where there are such folders, in its `train` and `test`. Raises DataError for none."""
    if source.is_file():
        return [RawClip(source.stem, source, "")]
    roots = [(source / split, split) for split in SPLITS if (source / split).is_dir()] or [(source, "")]
    clips = [RawClip(*clip, split) for root, split in roots if root.is_dir() for clip in clips_in(root)]
    if not clips:
        expected = "folders of images or video files, with or without train/ and test/"
        raise DataError("no raw clip found", str(source), expected, "correct --source")
    twice = [name for name, count in Counter(clip.name for clip in clips).items() if count > 1]
    if twice:
        what = f"two raw clips of the same name: {', '.join(twice[:5])}"
        raise DataError(what, str(source), "one clip per name", "rename one")
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


def plan_clip(job: Job, recipe: Recipe) -> Plan | DataError:
    """Check a clip before it is made. An error is returned, so that the errors of all clips can be shown."""
    cv2.setNumThreads(1)
    try:
        paths = {"raw": job.raw.path if job.raw else None, "sharp": job.sharp}
        sources = {kind: FrameSource(path) for kind, path in paths.items() if path}
        frames, average, where = sources["sharp" if job.sharp else "raw"], recipe.average_of(job.name), str(job.source)
        height, width = (side // recipe.ratio for side in frames.size)
        count = len(frames) if job.sharp else len(frames) // average
        if (height * recipe.ratio, width * recipe.ratio) != frames.size or height * width % 8:
            raise DataError(
                "frames of {} x {} do not divide by --ratio {} into whole bytes".format(*frames.size, recipe.ratio),
                where, "both sides divisible, and their product / ratio^2 by 8", "choose another --ratio",
            )  # fmt: skip
        if recipe.instants > average:
            what = f"clip {job.name} averages {average} raw frames, fewer than --instants {recipe.instants}"
            raise DataError(what, where, "a raw frame for each instant", "lower --instants, or raise --average")
        if count == 0:
            what, need = f"clip {job.name} has {len(frames)} frames", f"at least {average}, for one exposure"
            raise DataError(what, where, need, "lower --average, or remove the clip")
        files = [(kind, path) for kind, source in sources.items() for path in dict.fromkeys(source.files)]
        digest = hashlib.sha256()  # changes with the name, size or time of change of any file of the source
        for kind, path in files:
            about = path.stat()
            digest.update(f"{kind}/{path.name} {about.st_size} {about.st_mtime_ns}\n".encode())
        record = {"version": VERSION, "recipe": recipe.record(), "source": digest.hexdigest()[:16]}
        made = _made_before(job, record)
        pictures = () if job.sharp or job.rgb.is_dir() else ("pictures",)
        todo = (*pictures, *(() if job.spikes.is_dir() else ("spikes",)))
        # Only the headers of PNGs are read. Frames of other formats are checked when they are decoded.
        for kind, path in files if todo else ():
            size = image_size(str(path)) if path.suffix.lower() == ".png" else sources[kind].size
            if size != sources[kind].size:
                what, need = "a frame of {} x {}".format(*size), "{} x {}, as the first".format(*sources[kind].size)
                raise DataError(f"clip {job.name} has {what}", str(path), need, "remove it, or make it again")
        record["offset"] = made["offset"] if made else 0
        if not made and len(sources) == 2:
            where = f"{job.raw.path}, {job.sharp}"
            record["offset"] = find_offset(sources["raw"], frames, average, job.name, where, job.offset)
    except DataError as e:
        return e
    images = 0 if job.sharp else (len(KINDS) + recipe.instants) * len(cv2.imencode(".png", frames.read(0))[1])
    size = count * (images + recipe.planes_of(job.name) * height * width // 8)
    return Plan(frames.size, size, todo, count * average if job.raw else count, record)


def find_offset(
    raw: FrameSource, sharp: FrameSource, average: int, clip: str, where: str, given: int | None = None
) -> int:
    """How many raw frames later than the middle of its exposure every sharp frame is; usually 0.

    Without an offset, sharp frame i is raw frame i * average + average // 2. given: the offset stated by the user.
    Raises DataError with the offsets found where a sharp frame matches no raw frame near that one, where the offset
    changes within the clip, and where it is not the given one.
    """
    start, is_video, greys, decoded = given or 0, getattr(raw, "is_video", True), {}, -1
    offsets = sorted(range(start - average, start + average + 1), key=abs)
    costs, wrong = np.full((len(sharp), len(offsets)), np.inf), ""
    if raw.read(0).shape != sharp.read(0).shape:
        wrong = f"raw frames of {raw.read(0).shape[:2]}, sharp frames of {sharp.read(0).shape[:2]}"
    for index, cost in enumerate(costs if not wrong else ()):
        expected, grey = index * average + average // 2, _grey(sharp.read(index))
        greys = {number: seen for number, seen in greys.items() if number >= expected + start - average}
        for offset in sorted(offsets, key=lambda o: abs(o - start)):
            number = expected + offset
            if 0 <= number < len(raw):
                # A video is decoded in order, each frame once: it cannot seek backwards cheaply.
                for seen in range(min(decoded + 1, number) if is_video else number, number + 1):
                    if seen not in greys:
                        greys[seen], decoded = _grey(raw.read(seen)), max(decoded, seen)
                cost[offsets.index(offset)] = np.abs(greys[number] - grey).mean()
            # An identical frame at the expected place, as in most clips, needs no search around it.
            if offset == start and cost[offsets.index(offset)] <= IDENTICAL:
                break
        if np.isinf(cost).all():
            wrong = f"sharp frame {sharp.stems[index]} would be raw frame {expected + start} of only {len(raw)}"
            break
    if not wrong:
        least, best = costs.min(axis=1), [offsets[number] for number in costs.argmin(axis=1)]
        # About the same, and no other raw frame is clearly more similar.
        fits = costs <= np.minimum(REENCODED, least + np.where(least <= IDENTICAL, IDENTICAL, TIE))[:, None]
        candidates = [start, *(offset for offset, _ in Counter(best).most_common())]
        offset = next((o for o in candidates if fits[:, offsets.index(o)].all()), None)
        if offset is not None and given in (None, offset):
            return offset
        wrong = _runs(sharp.stems, best, least.tolist())
    raise DataError(
        f"clip {clip}: its sharp frames are not the middle raw frames: {wrong}", where,
        "sharp frame i is raw frame i * average + average // 2 + offset, with one offset for the clip",
        "correct --source or --average, or give the offset (--offset CLIP=N)",
    )  # fmt: skip


def _grey(frame: np.ndarray) -> np.ndarray:
    """The frame in grey, reduced to about GREY_WIDTH pixels, (h, w) float32."""
    height, width = frame.shape[:2]
    factor = max(1, width // GREY_WIDTH)
    size = (max(1, width // factor), max(1, height // factor))
    return cv2.resize(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA).astype(np.float32)


def _runs(stems: list[str], best: list[int], least: list[float]) -> str:
    """Which frames are at which offset: "000000-000007 at offset +1, ...". least: their differences there."""
    texts, places = [], itertools.groupby(range(len(stems)), key=lambda i: (best[i], least[i] <= REENCODED))
    for (offset, is_near), group in places:
        frames = list(group)
        names = stems[frames[0]] + (f"-{stems[frames[-1]]}" if len(frames) > 1 else "")
        cost = max(least[i] for i in frames)
        far = "" if is_near else f", {cost:.1f} grey levels off (at most {REENCODED:g})"
        texts.append(f"{names} at offset {offset:+d}{far}")
    more = f"; and {len(texts) - 8} further changes" if len(texts) > 8 else ""
    return f"sharp frames {'; '.join(texts[:8])}{more}"


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
            what = f"clip {job.name} exists already, but differs from what would be made: {', '.join(differing)}"
            expected = f"none, or one made from these files with these settings ({RECORD})"
            raise DataError(what, str(folder), expected, "choose another --out, or move the folder away")
    return made


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


def make_spikes(job: Job, recipe: Recipe, offset: int, folder: Path) -> None:
    """Write one .dat per sharp frame, from raw frames where there are any, else interpolated between sharp frames.

    offset: raw frames between the middle of an exposure and its sharp frame. Before the first raw frame the light is
    assumed constant; after the last one it is unknown, so the last file may be short.
    """
    average, planes = recipe.average_of(job.name), recipe.planes_of(job.name)
    sharp = FrameSource(job.sharp) if job.sharp else None
    frames = FrameSource(job.raw.path) if job.raw else sharp
    stems = sharp.stems if sharp else [f"{number:06d}" for number in range(len(frames) // average)]
    size = (frames.size[0] // recipe.ratio, frames.size[1] // recipe.ratio)
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

    def __init__(self, frames: FrameSource, size: tuple[int, int], gamma: float, method: str) -> None:
        self.frames, self.size, self.method = frames, size, method
        self.curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, gamma)
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
        before, after = self._light(index), self._light(index + 1)
        if self.method == "linear":
            return (1 - part) * before + part * after
        if self._flows is None or self._flows[0] != index:
            a, b = ((np.sqrt(np.clip(light, 0, 1)) * 255).astype(np.uint8) for light in (before, after))
            self._flows = (index, self._dis.calc(a, b, None), self._dis.calc(b, a, None))
        part, (_, forward, backward) = np.float32(part), self._flows
        return (1 - part) * _warp(before, -part * forward) + part * _warp(after, (part - 1) * backward)

    def _light(self, index: int) -> np.ndarray:
        if index not in self._lights:
            grey = to_grey(cv2.LUT(self.frames.read(index), self.curve))
            self._lights[index] = cv2.resize(grey, self.size[::-1], interpolation=cv2.INTER_AREA)
            for old in [i for i in self._lights if abs(i - index) > 1]:
                del self._lights[old]
        return self._lights[index]


def _warp(light: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Light (h, w) sampled at (x, y) + shift(x, y), with shift (h, w, 2)."""
    height, width = light.shape
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return cv2.remap(light, x + shift[..., 0], y + shift[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

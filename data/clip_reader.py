"""Clips to restore, frame by frame: those of a test dataset, or a user's own frames or video with their spikes."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from data.agreement import sharp_picture
from data.augment import Augment
from data.clip import Clip, Exposure
from data.clip_cache import INDEX as CACHE_INDEX
from data.clip_cache import CacheReader
from data.clip_dataset import TestClips
from data.io_backend import DiskFiles
from data.pictures import Pictures, check_same_view, clips_in, holds_images, subfolder
from data.roots import FROM_START, LMDB_MARK, is_read_from_start
from data.spike.formats import FORMATS, array_shape, count_planes
from data.spike_grid import warn_uncovered
from data.spike_info import DatasetInfo, nearest_info
from data.spike_source import SPIKE_SOURCES, DatSpikes, spike_errors_as_data_errors, user_spikes
from utils.errors import DataError, OptionError
from utils.files import natural_key
from utils.image import IMAGE_SUFFIXES
from utils.options.section import Section
from utils.video import VIDEO_SUFFIXES

logger = logging.getLogger(__name__)


class DatasetClip:
    """Clip `index` of a test dataset, frame by frame."""

    def __init__(self, dataset: Any, index: int) -> None:
        clip = dataset.clips[index]
        self.dataset, self.index = dataset, index
        self.name, self.stems = clip.name, clip.stems[: dataset.frame_count(index)]
        paths = {"input": clip.lq, "gt": clip.gt, "spike": clip.spike}
        self.origin = {kind: str(Path(files[0]).parent) for kind, files in paths.items() if files}
        self.fps = self.times = self.sound = None

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        item = self.dataset.read_frames(self.index, index, 1, reverse)
        return {kind: item[kind][0] for kind in ("lq", "spike", "gt", "gt_instants") if kind in item}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        exposure = self.dataset.clips[self.index].exposures[index]
        return sharp_picture(self.dataset.spikes, spike.numpy(), exposure, reverse=False)

    def digest(self) -> str:
        """Of the names, sizes and times of change of the files, of the stems, and of what the spikes mean."""
        clip, reader, spikes = self.dataset.clips[self.index], self.dataset.files, self.dataset.spikes
        about = dataclasses.replace(spikes.info, path="") if spikes else None
        table = hashlib.sha256(repr((about, list(self.stems))).encode())
        table.update(spikes.timing.describe().encode() if spikes else b"")
        if spikes and spikes.calibration:
            table.update(spikes.calibration.digest().encode())
        cache = [str(Path(reader.path, CACHE_INDEX))] if isinstance(reader, CacheReader) else []
        for file in dict.fromkeys([*cache, *clip.lq, *clip.gt, *clip.gt_instants, *clip.spike]):
            root, is_lmdb, _ = file.partition(LMDB_MARK)
            place = f"{root}.lmdb/data.mdb" if is_lmdb else file
            found = os.stat(place) if os.path.exists(place) else None  # None where only the cache of the file exists
            size, time = (found.st_size, found.st_mtime_ns) if found else (0, 0)
            table.update(f"{Path(file).name} {size} {time}\n".encode())
        return table.hexdigest()[:16]


def dataset_clips(dataset: Any) -> list[DatasetClip]:
    """The clips of a test dataset (see data.clip_dataset)."""
    return [DatasetClip(dataset, index) for index in range(len(dataset))]


class UserFiles(DiskFiles):
    """The frames of a user's clip as they were opened, and its spike files. frames: "lq", "gt" -> the frames."""

    def __init__(self, frames: dict[str, Pictures]) -> None:
        super().__init__()
        self.frames = frames

    def pictures(self, clip: Clip, kind: str, frames: Sequence[int], aug: Augment) -> np.ndarray:
        scale = clip.scale_of(kind)
        return np.stack([aug.crop(self.frames[kind].read(i)[..., ::-1], scale) for i in frames])


class UserDataset(TestClips):
    """The one clip of a user's files."""

    def __init__(self, clip: Clip, files: UserFiles, spikes: DatSpikes | None) -> None:
        self.clips, self.files, self.spikes = [clip], files, spikes
        self.camera, self.seed, self.num_frame = None, 0, -1


def user_clip(
    name: str,
    frames: Pictures,
    gt: Pictures | None = None,
    spike: Path | None = None,
    spikes: DatSpikes | None = None,
    trained: dict[str, Any] | None = None,
) -> DatasetClip:
    """The clip of a user's frames, checked, with their sharp frames and spikes where there are any.

    spike: a folder with one file per frame, or one file for the clip; spikes: what it means. Of one file, a frame has
    the planes that `spike.exposure` says; without it, the frames share all planes evenly.
    trained: what is known of the spikes in training, see data.spike_source.describe_spikes.
    Raises DataError where frames and spikes do not belong together.
    """
    names = {"lq": frames, **({"gt": gt} if gt else {})}
    files: tuple[str, ...] = ()
    planes: tuple[int, ...] = ()
    exposures: tuple[Exposure, ...] = ()
    if spikes:
        files, planes, exposures = _user_spikes(name, spike, frames, spikes, trained)
        spikes.is_stretched = True
        grid = spikes.grid(frames.size)
        if spikes.calibration is None:
            check_same_view(frames.size, (spikes.geometry.height, spikes.geometry.width), str(spike))
        warn_uncovered(grid, f"clip {name}", str(frames.path))
    paths = {kind: _paths(pictures) for kind, pictures in names.items()}
    size, gt_size = frames.size, gt.size if gt else frames.size
    clip = Clip(
        name, tuple(frames.stems), paths["lq"], paths.get("gt", ()), files, planes, size, gt_size, exposures=exposures
    )
    found = DatasetClip(UserDataset(clip, UserFiles(names), spikes), 0)
    found.fps, found.times, found.sound = frames.fps, frames.times, frames.path if frames.is_video else None
    places = {"input": frames.path, "gt": gt.path if gt else None, "spike": spike if spikes else None}
    found.origin = {kind: str(place) for kind, place in places.items() if place}
    return found


def _paths(pictures: Pictures) -> tuple[str, ...]:
    """The file of each frame."""
    files = tuple(map(str, pictures.files))
    return files if len(files) == len(pictures) else files * len(pictures)


def _user_spikes(
    clip: str, path: Path, frames: Pictures, spikes: DatSpikes, trained: dict[str, Any] | None
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[Exposure, ...]]:
    """The spike file of each frame, its planes, and the planes of the frame."""
    files, count = spike_files(path) if path.is_dir() else [path], len(frames)
    is_per_frame = path.is_dir() and not spikes.timing.is_one_file
    if is_per_frame:
        files = _paired(files, frames, path)
    elif len(files) != 1:
        raise DataError(
            f"{len(files)} spike files", str(path), "one file for the clip, with spike.exposure",
            "give the name of the file",
        )  # fmt: skip
    with spike_errors_as_data_errors():
        planes = [count_planes(file, spikes.geometry, spikes.remainder) for file in files]
    is_shared = not is_per_frame and not spikes.timing.is_one_file
    if is_shared and planes[0] < count:
        raise DataError(
            f"{planes[0]} planes for {count} frames", str(path), "at least one plane per frame",
            "give the spikes of this clip, and check --spike-size",
        )  # fmt: skip
    if not is_per_frame and count > 1 and is_read_from_start(str(files[0])):
        logger.warning("spikes of %s: %s", clip, FROM_START)
    known = [(str(file), number) for file, number in zip(files, planes, strict=True)]
    try:
        exposures = spikes.exposures(clip, known, count, is_shared)
    except OptionError:
        used = _choose_center(spikes, clip, known[0][1], trained, count if is_shared else 0)
        logger.warning("spikes of %s: the plane of the sharp frame is unknown, %s", clip, used)
        exposures = spikes.exposures(clip, known, count, is_shared)
    paths, counts = zip(*(known if is_per_frame else known * count), strict=True)
    return paths, counts, exposures


def _choose_center(spikes: DatSpikes, clip: str, planes: int, trained: dict[str, Any] | None, shared: int) -> str:
    """Set the plane of the sharp frame, which nobody gives: as in training, else the middle; in words."""
    timing = spikes.timing
    span = timing.share(clip, 0, shared, planes) if shared else timing.span(clip, 0, planes)
    is_alike = trained is not None and trained["planes"] == span.length and trained["gt_plane"] is not None
    spikes.center = trained["gt_plane"] if is_alike else "file"
    return f"plane {spikes.center} is used, as in training" if is_alike else "the middle one is used"


def user_clips(
    path: str | Path,
    spike: str | Path | None = None,
    gt: str | Path | None = None,
    spike_options: dict[str, Any] | None = None,
    scale: int = 1,
    trained: dict[str, Any] | None = None,
) -> list[DatasetClip]:
    """The clips of a user's `path`: a video, a folder of frames, or a folder of either.

    spike, gt: laid out in the same way. spike_options: a `spike` section of the options (None: the network takes no
    spikes). scale: size of the sharp frames over that of the input. trained: the spikes in training
    (data.spike_source.describe_spikes), used where nothing is known of the user's spikes.
    Raises DataError, naming the files, where frames, spikes and reference do not belong together.
    """
    root = Path(path)
    if not root.exists():
        raise DataError("no such file or folder", str(root), "a folder of frames or a video", "check --input")
    if root.is_file() and root.suffix.lower() not in VIDEO_SUFFIXES + IMAGE_SUFFIXES:
        logger.info("%s has no known suffix of a video; trying to decode it", root)
    section = None if spike_options is None else SPIKE_SOURCES.resolve(spike_options, "spike")
    clips = [
        (name, inner, _beside(spike, "spike", name, tuple(FORMATS)), _beside(gt, "sharp", name, VIDEO_SUFFIXES))
        for name, inner in _inner_clips(root).items()
    ] or [(_clip_name(root), root, spike, gt)]
    return [_opened(*clip, section, scale, trained) for clip in clips]


def _opened(
    name: str,
    path: Path,
    spike: str | Path | None,
    gt: str | Path | None,
    section: Section | None,
    scale: int,
    trained: dict[str, Any] | None,
) -> DatasetClip:
    frames, source = _user_pictures(path), None
    if section is not None and spike is not None:
        section, info = described(section, Path(spike))
        source, assumed = user_spikes(section, trained, info, name)
        if assumed:
            logger.warning(assumed)
    reference = _user_pictures(Path(gt)) if gt is not None else None
    if reference is not None:
        check_reference(frames, reference, scale)
    return user_clip(name, frames, reference, Path(spike) if source else None, source, trained)


def described(section: Section, spike: Path) -> tuple[Section, DatasetInfo]:
    """The spike section, completed by `_with_size`, and the nearest dataset.json of the spikes of that size."""
    info = nearest_info(spike)
    section = _with_size(section, info, spike)
    sizes = ((section.h, info.h), (section.w, info.w))
    is_of_another_size = not all(None in pair or pair[0] == pair[1] for pair in sizes)
    return section, DatasetInfo() if is_of_another_size else info


def _with_size(section: Section, info: DatasetInfo, spike: Path) -> Section:
    """The spike section with the size of the arrays (.npy, .npz), where nobody gives the size of a plane."""
    files = spike_files(spike) if spike.is_dir() else [spike]
    if not files or not {section.h, section.w, info.h, info.w} <= {None}:
        return section
    with spike_errors_as_data_errors():
        shape = array_shape(files[0])
    return section.model_copy(update={"h": shape[1], "w": shape[2]}) if shape and len(shape) == 3 else section


def _user_pictures(path: Path) -> Pictures:
    """The frames of a user's folder or video. Raises DataError where two frames have the same name."""
    pictures = Pictures(path)
    twice = sorted(stem for stem, count in Counter(pictures.stems).items() if count > 1)
    if twice:
        raise DataError(
            f"frames with the same name: {', '.join(twice[:5])}", str(path), "one file per frame", "remove the others"
        )
    return pictures


def check_reference(frames: Pictures, gt: Pictures, scale: int) -> None:
    """Raise DataError where gt does not have one picture for every frame, `scale` times as large."""
    if len(gt) != len(frames) or (not gt.is_video and not frames.is_video and gt.stems != frames.stems):
        odd = sorted(set(gt.stems) ^ set(frames.stems))
        raise DataError(
            f"{len(frames)} frames and {len(gt)} reference frames do not match ({', '.join(odd[:5])})", str(gt.path),
            "one sharp frame of the same name for every frame", "check --gt",
        )  # fmt: skip
    wanted = (frames.size[0] * scale, frames.size[1] * scale)
    if gt.size != wanted:
        raise DataError(
            f"reference of {gt.size[1]}x{gt.size[0]} for frames of {frames.size[1]}x{frames.size[0]}", str(gt.path),
            f"{wanted[1]}x{wanted[0]}, as the network enlarges by {scale}", "check --gt",
        )  # fmt: skip


def spike_files(folder: Path) -> list[Path]:
    """The spike files of a folder in natural order; where it holds several formats, those of the first of `FORMATS`."""
    found = [[p for p in folder.iterdir() if p.suffix.lower() == suffix] for suffix in FORMATS]
    return sorted(next(filter(None, found), []), key=lambda path: natural_key(path.name))


def _paired(files: list[Path], frames: Pictures, folder: Path) -> list[Path]:
    """The spike file of every frame, matched by name, or by order for a video. Raises DataError for unmatched ones."""
    by_stem = {file.stem: file for file in files}
    pairs = files if frames.is_video else [by_stem[stem] for stem in frames.stems if stem in by_stem]
    if len(pairs) != len(frames) or len(files) != len(frames):
        odd = sorted(set(by_stem) ^ set(frames.stems))
        raise DataError(
            f"{len(frames)} frames, {len(files)} spike files" + (f"; unpaired: {', '.join(odd[:5])}" if odd else ""),
            str(folder), "one spike file per frame, of the same name", "restore the files, or give one for the clip",
        )  # fmt: skip
    return pairs


def _clip_name(path: Path) -> str:
    """The name of a file or folder; that of the parent folder where clips are laid out as <clip>/blur."""
    folder = path.resolve()
    return path.stem if path.is_file() else folder.parent.name if folder.name.startswith("blur") else folder.name


def _inner_clips(root: Path) -> dict[str, Path]:
    """Name -> folder of frames or video, of the clips in `root`; none where `root` itself holds frames."""
    if not root.is_dir() or holds_images(root):
        return {}
    found: dict[str, Path] = {}
    for name, path in clips_in(root, "blur"):
        if name in found:
            raise DataError(
                f"two clips are named {name}", f"{found[name]}, {path}", "names that differ", "rename one of them"
            )
        found[name] = path
    return found


def _beside(base: str | Path | None, kind: str, name: str, suffixes: Sequence[str]) -> Path | None:
    """The spikes or the sharp frames of clip `name` in `base`: a file of this name, else a folder."""
    if base is None:
        return None
    files = [Path(base) / f"{name}{suffix}" for suffix in suffixes]
    return next((file for file in files if file.is_file()), subfolder(Path(base) / name, kind))

"""Clips to restore, frame by frame: those of a test dataset, or a user's own folder or video with spikes beside it."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from data.clip_cache import INDEX as CACHE_INDEX
from data.clip_cache import CacheReader
from data.frame_io import read_bgr
from data.roots import LMDB_MARK
from data.spike.stream import count_planes, read_dat
from data.spike_info import DatasetInfo, load_info
from data.spike_source import SPIKE_SOURCES, DatSpikes, spike_errors_as_data_errors, user_spikes
from utils.contract import ClipReader
from utils.errors import DataError, OptionError
from utils.files import natural_key
from utils.image import IMAGE_SUFFIXES, list_images
from utils.options.section import Section
from utils.video import VIDEO_SUFFIXES, VideoReader

logger = logging.getLogger(__name__)


class DatasetClip:
    """Clip `index` of a test dataset."""

    fps = times = sound = None

    def __init__(self, dataset: Any, index: int) -> None:
        clip = dataset.clips[index]
        self._dataset, self._index = dataset, index
        self.name, self.stems = clip.name, clip.stems[: dataset.frame_count(index)]
        paths = {"input": clip.lq, "gt": clip.gt, "spike": clip.spike}
        self.origin = {kind: str(Path(files[0]).parent) for kind, files in paths.items() if files}

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        item = self._dataset.read_frames(self._index, index, 1, reverse)
        return {kind: item[kind][0] for kind in ("lq", "spike", "gt") if kind in item}

    def digest(self) -> str:
        clip, files = self._dataset.clips[self._index], self._dataset.files
        cache = [Path(files.path, CACHE_INDEX)] if isinstance(files, CacheReader) else []
        return _digest([*cache, *clip.lq, *clip.gt, *clip.spike], self._dataset.spikes, self.stems)


class Pictures:
    """The frames of a folder, in the order of their names, or of a video."""

    def __init__(self, path: Path) -> None:
        self.path, self.fps, self.times, self.sound = path, None, None, None
        self._video, self._files = None, []
        if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
            self._files = list_images(path) if path.is_dir() else [path]
            self.stems = [file.stem for file in self._files]
            twice = sorted({stem for stem in self.stems if self.stems.count(stem) > 1})
            if twice:
                raise DataError(
                    f"frames with the same name: {', '.join(twice[:5])}",
                    str(path),
                    "one file per frame",
                    "remove the others",
                )
        else:
            self._video = VideoReader(path)
            self.fps, self.times, self.sound = self._video.fps, self._video.times, path
            digits = max(6, len(str(self._video.num_frames)))
            self.stems = [f"{i:0{digits}d}" for i in range(self._video.num_frames)]
        self.size = self.read(0).shape[:2]

    def __len__(self) -> int:
        return len(self.stems)

    @property
    def files(self) -> list[Path]:
        return self._files or [self.path]

    @property
    def is_video(self) -> bool:
        return self._video is not None

    def read(self, index: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB. Raises DataError for an unreadable frame or one of another size."""
        if self._video is not None:
            return self._video.read(index)
        picture = np.ascontiguousarray(read_bgr(str(self._files[index]))[..., ::-1])
        if index and picture.shape[:2] != self.size:
            raise DataError(
                f"frame of {picture.shape[1]}x{picture.shape[0]}", str(self._files[index]),
                f"{self.size[1]}x{self.size[0]}, as the first frame", "take it out, or make it again",
            )  # fmt: skip
        return picture


class UserSpikes:
    """Spikes of a user's clip: a folder with one .dat per frame, or one .dat whose planes the frames share evenly."""

    def __init__(
        self, path: Path, frames: Pictures, clip: str, source: DatSpikes, trained: dict[str, Any] | None = None
    ) -> None:
        """trained: what is known of the spikes in training, see data.spike_source.describe_spikes."""
        self.clip, self._frames, self._source = clip, frames, source
        self.channels = source.channels
        self._files = _dat_files(path, frames) if path.is_dir() else None
        self._stream, self._planes = path, 0
        self.files, self.source = self._files or [path], source
        with spike_errors_as_data_errors():
            first = str(self._files[0] if self._files else path)
            self._planes = count_planes(first, source.geometry, source.remainder)
        if self._files is None and self._planes < len(frames):
            raise DataError(
                f"{self._planes} planes for {len(frames)} frames", str(path), "at least one plane per frame",
                "give the spikes of this very clip, and check --spike-size",
            )  # fmt: skip
        self._check_shape()
        each = self._planes if self._files else self._span(0)[1]
        try:
            source.center_plane(clip, each)
        except OptionError:
            is_alike = trained is not None and trained["planes"] == each and trained["gt_plane"] is not None
            source.center = trained["gt_plane"] if is_alike else "file"
            said = f"plane {source.center} is taken, as in training" if is_alike else "the middle one is taken"
            logger.warning("spikes of %s: the plane of the sharp frame is unknown, %s", clip, said)
        source.check_planes(clip, each)

    def frame(self, index: int, picture: np.ndarray, reverse: bool = False) -> Tensor:
        """The channels of frame `index` on the RGB grid, (S, H, W) float32. picture: the frame, (H, W, 3) uint8 RGB.

        reverse: those of reversed time.
        """
        path = str(self._files[index] if self._files else self._stream)
        first, count = (0, None) if self._files else self._span(index)
        with spike_errors_as_data_errors():
            stream = read_dat(path, self._source.geometry, first, count, remainder=self._source.remainder)
        rate = self._source.rate_of(stream, np.ascontiguousarray(picture[..., ::-1]))
        channels = self._source.represent(stream, self.clip, path, rate, reverse)
        height, width = self._frames.size
        if channels.shape[1:] != (height, width):
            channels = np.stack(
                [cv2.resize(c, (width, height), interpolation=self._source.interpolation) for c in channels]
            )
        return torch.from_numpy(channels)

    def _span(self, index: int) -> tuple[int, int]:
        """First plane and number of planes of frame `index` in a stream of the whole clip."""
        first, after = (i * self._planes // len(self._frames) for i in (index, index + 1))
        return first, after - first

    def _check_shape(self) -> None:
        (height, width), plane = self._frames.size, self._source.geometry
        if abs(width * plane.height - height * plane.width) > 0.02 * width * plane.height:
            raise DataError(
                f"spikes of {plane.height} x {plane.width} for frames of {height} x {width}", str(self._stream),
                "the same field of view, that is the same ratio of height to width",
                "correct --spike-size H W, or crop the frames to what the spike camera sees",
            )  # fmt: skip


class UserClip:
    """A folder of frames or a video, with spikes and a sharp reference where the user has them."""

    def __init__(self, name: str, frames: Pictures, spikes: UserSpikes | None, gt: Pictures | None) -> None:
        self.name, self.stems = name, frames.stems
        self.fps, self.times, self.sound = frames.fps, frames.times, frames.sound
        self._frames, self._spikes, self._gt = frames, spikes, gt
        parts = {"input": frames.path, "gt": gt.path if gt else None, "spike": spikes._stream if spikes else None}
        self.origin = {kind: str(path) for kind, path in parts.items() if path}

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        picture = self._frames.read(index)
        item = {"lq": _to_tensor(picture)}
        if self._spikes:
            item["spike"] = self._spikes.frame(index, picture, reverse)
        if self._gt:
            item["gt"] = _to_tensor(self._gt.read(index))
        return item

    def digest(self) -> str:
        files = [file for part in (self._frames, self._spikes, self._gt) if part for file in part.files]
        return _digest(files, self._spikes.source if self._spikes else None, self.stems)


def _digest(files: Iterable[str | Path], spikes: DatSpikes | None, stems: Sequence[str]) -> str:
    """Over names, sizes and times of the files, and what dataset.json says of the spikes."""
    about = dataclasses.replace(spikes.info, path="") if spikes else None
    table = hashlib.sha256(repr((about, list(stems))).encode())
    for file in map(str, files):
        root, is_lmdb, _ = file.partition(LMDB_MARK)
        place = f"{root}.lmdb/data.mdb" if is_lmdb else file
        found = os.stat(place) if os.path.exists(place) else None  # absent where a cache stands for it
        size, time = (found.st_size, found.st_mtime_ns) if found else (0, 0)
        table.update(f"{Path(file).name} {size} {time}\n".encode())
    return table.hexdigest()[:16]


def _to_tensor(picture: np.ndarray) -> Tensor:
    """(H, W, 3) uint8 -> (3, H, W) float32 in [0, 1]."""
    return torch.from_numpy(picture).permute(2, 0, 1).to(torch.float32).div_(255.0)


def dataset_clips(dataset: Any) -> list[ClipReader]:
    """The clips of a test dataset (see data.dataset_video_rgbspike)."""
    return [DatasetClip(dataset, index) for index in range(len(dataset))]


def user_clips(
    path: str | Path,
    spike: str | Path | None = None,
    gt: str | Path | None = None,
    spike_options: dict[str, Any] | None = None,
    scale: int = 1,
    trained: dict[str, Any] | None = None,
) -> list[ClipReader]:
    """The clips a user points at: a video, a folder of frames, or a folder of either.

    spike, gt: laid out in the same way. spike_options: a `spike` section of the options (None: the network takes no
    spikes). scale: size of the sharp frames over that of the input. trained: what is known of the spikes in training
    (data.spike_source.describe_spikes), for what the user's do not say.
    Raises DataError, naming the files, where frames, spikes and reference do not belong together.
    """
    root = Path(path)
    if not root.exists():
        raise DataError("no such file or folder", str(root), "a folder of frames or a video", "check --input")
    if root.is_file() and root.suffix.lower() not in VIDEO_SUFFIXES + IMAGE_SUFFIXES:
        logger.info("%s has no known suffix of a video; trying to decode it", root)
    section = None if spike_options is None else SPIKE_SOURCES.resolve(spike_options, "spike")
    inner, network = _inner_clips(root), (section, scale, trained)
    if not inner:
        return [_user_clip(_clip_name(root), root, spike, gt, network)]

    def beside(base: str | Path | None, kind: str, name: str, suffixes: Sequence[str]) -> Path | None:
        """The spikes or the reference of a clip: a folder of its name, or a file."""
        if base is None:
            return None
        files = [Path(base) / f"{name}{suffix}" for suffix in suffixes]
        return next((file for file in files if file.is_file()), _within(Path(base) / name, kind))

    return [
        _user_clip(
            name, path, beside(spike, "spike", name, (".dat",)), beside(gt, "sharp", name, VIDEO_SUFFIXES), network
        )
        for name, path in inner.items()
    ]  # fmt: skip


def _user_clip(
    name: str,
    path: Path,
    spike: str | Path | None,
    gt: str | Path | None,
    network: tuple[Section | None, int, dict[str, Any] | None],
) -> UserClip:
    """network: spike_options, scale and trained of `user_clips`."""
    spike_options, scale, trained = network
    frames = Pictures(path)
    spikes = None
    if spike_options is not None and spike is not None:
        info = _nearest_info(Path(spike), spike_options)
        source, assumed = user_spikes(spike_options, trained, info, name)
        if assumed:
            logger.warning(assumed)
        spikes = UserSpikes(Path(spike), frames, name, source, trained)
    reference = Pictures(Path(gt)) if gt is not None else None
    if reference is not None:
        _check_reference(frames, reference, scale)
    return UserClip(name, frames, spikes, reference)


def _check_reference(frames: Pictures, gt: Pictures, scale: int) -> None:
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


def _dat_files(folder: Path, frames: Pictures) -> list[Path]:
    """The .dat of every frame, by name; for a video by order. Raises DataError where they do not pair up."""
    files = [p for p in folder.iterdir() if p.suffix.lower() == ".dat"]
    files.sort(key=lambda path: natural_key(path.name))
    by_stem = {file.stem: file for file in files}
    pairs = files if frames.is_video else [by_stem[stem] for stem in frames.stems if stem in by_stem]
    if len(pairs) != len(frames) or len(files) != len(frames):
        odd = sorted(set(by_stem) ^ set(frames.stems))
        raise DataError(
            f"{len(frames)} frames, {len(files)} spike files" + (f"; unpaired: {', '.join(odd[:5])}" if odd else ""),
            str(folder), "one .dat per frame, of the same name", "restore the files, or give one .dat for the clip",
        )  # fmt: skip
    return pairs


def _nearest_info(spike: Path, options: Any) -> DatasetInfo:
    """The dataset.json near the spikes; one that gives another size than the user did is not of these files."""
    folder = spike if spike.is_dir() else spike.parent
    for place in (folder, *list(folder.resolve().parents)[:3]):
        info = load_info(str(place))
        if info.path:
            sizes = ((options.h, info.h), (options.w, info.w))
            fits = all(None in pair or pair[0] == pair[1] for pair in sizes)
            return info if fits else DatasetInfo()
    return DatasetInfo()


def _clip_name(path: Path) -> str:
    """The name of a file or folder; that of the folder above where clips are laid out as <clip>/blur."""
    folder = path.resolve()
    return path.stem if path.is_file() else folder.parent.name if folder.name.startswith("blur") else folder.name


def _inner_clips(root: Path) -> dict[str, Path]:
    """Name -> folder of frames or video, of the clips in `root`; none where `root` itself holds frames."""
    if not root.is_dir() or any(p.suffix.lower() in IMAGE_SUFFIXES for p in root.iterdir()):
        return {}
    found: dict[str, Path] = {}
    for path in sorted(root.iterdir(), key=lambda p: natural_key(p.name)):
        if path.name.startswith("."):
            continue
        folder = _within(path, "blur")
        is_clip = folder.is_dir() and any(f.suffix.lower() in IMAGE_SUFFIXES for f in folder.iterdir())
        is_video = path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES
        if not is_clip and not is_video:
            continue
        name = path.stem if is_video else path.name
        if name in found:
            raise DataError(
                f"two clips are named {name}", f"{found[name]}, {path}", "names that differ", "rename one of them"
            )
        found[name] = path if is_video else folder
    return found


def _within(folder: Path, kind: str) -> Path:
    return folder / kind if (folder / kind).is_dir() else folder

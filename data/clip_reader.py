"""Clips to restore, frame by frame: those of a test dataset, or a user's own frames or video with their spikes."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.augment import Augment
from data.clip_cache import INDEX as CACHE_INDEX
from data.clip_cache import CacheReader
from data.pictures import Pictures, check_same_view, clips_in, holds_images, subfolder
from data.roots import FROM_START, LMDB_MARK, is_read_from_start
from data.spike.formats import FORMATS, array_shape, count_planes, open_spikes
from data.spike_grid import ScaledWindow, Window, warn_uncovered
from data.spike_info import DatasetInfo, nearest_info
from data.spike_source import SPIKE_SOURCES, DatSpikes, spike_errors_as_data_errors, user_spikes
from data.spike_timing import Span, with_context
from utils.contract import ClipReader
from utils.errors import DataError, OptionError
from utils.files import natural_key
from utils.image import IMAGE_SUFFIXES
from utils.options.section import Section
from utils.video import VIDEO_SUFFIXES

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
        return {kind: item[kind][0] for kind in ("lq", "spike", "gt", "gt_instants") if kind in item}

    def digest(self) -> str:
        clip, reader = self._dataset.clips[self._index], self._dataset.files
        cache = [Path(reader.path, CACHE_INDEX)] if isinstance(reader, CacheReader) else []
        files = [*cache, *clip.lq, *clip.gt, *clip.gt_instants, *clip.spike]
        return _digest(files, self._dataset.spikes, self.stems)


class UserSpikes:
    """Spikes of a user's clip: a folder with one file per frame, or one file for the clip.

    Of one file, a frame has the planes that `spike.exposure` says; without it, the frames share all planes evenly.
    """

    def __init__(
        self, path: Path, frames: Pictures, clip: str, source: DatSpikes, trained: dict[str, Any] | None = None
    ) -> None:
        """trained: what is known of the spikes in training, see data.spike_source.describe_spikes."""
        self.path, self.clip, self.source, self._frames = path, clip, source, frames
        self.files = spike_files(path) if path.is_dir() else [path]
        self._is_per_frame = path.is_dir() and not source.timing.is_one_file
        if self._is_per_frame:
            self.files = _paired(self.files, frames, path)
        elif len(self.files) != 1:
            raise DataError(
                f"{len(self.files)} spike files", str(path), "one file for the clip, with spike.exposure",
                "give the name of the file",
            )  # fmt: skip
        with spike_errors_as_data_errors():
            self._planes = count_planes(self.files[0], source.geometry, source.remainder)
        if not path.is_dir() and not source.timing.is_one_file and self._planes < len(frames):
            raise DataError(
                f"{self._planes} planes for {len(frames)} frames", str(path), "at least one plane per frame",
                "give the spikes of this clip, and check --spike-size",
            )  # fmt: skip
        if not self._is_per_frame and len(frames) > 1 and is_read_from_start(str(self.files[0])):
            logger.warning("spikes of %s: %s", clip, FROM_START)
        self._window = self._whole_window()
        span = self.span(0)
        try:
            source.center_plane(clip, span.count, span)
        except OptionError:
            is_alike = trained is not None and trained["planes"] == span.length and trained["gt_plane"] is not None
            source.center = trained["gt_plane"] if is_alike else "file"
            used = f"plane {source.center} is used, as in training" if is_alike else "the middle one is used"
            logger.warning("spikes of %s: the plane of the sharp frame is unknown, %s", clip, used)
        for index in range(1 if self._is_per_frame else len(frames)):
            source.check_span(clip, self.span(index))

    def frame(self, index: int, picture: np.ndarray, reverse: bool = False) -> Tensor:
        """The channels of frame `index` on the RGB grid, (S, H, W) float32. picture: the frame, (H, W, 3) uint8 RGB.

        reverse: those of the time-reversed stream.
        """
        own, far = index if self._is_per_frame else 0, 1 if self.source.context else 0
        with spike_errors_as_data_errors():
            files = {
                number: open_spikes(str(self.files[number]), self.source.geometry, self.source.remainder)
                for number in range(max(own - far, 0), min(own + far + 1, len(self.files)))
            }
            span = self.span(index, files[own].planes)
            lengths = {number: file.planes for number, file in files.items()}
            pieces, before, after = with_context(span, own, lengths, self.source.context)
            planes = [files[piece.frame].read(piece.first, piece.count, self._window.crop) for piece in pieces]
            stream = np.concatenate(planes)
        exposed = stream[before : len(stream) - after]
        rate = self.source.rate_of(exposed, np.ascontiguousarray(picture[..., ::-1]), self._window)
        path = self.file_of(index)
        channels = self.source.represent(stream, self.clip, path, rate, reverse, span, (before, after))
        return torch.from_numpy(self._window.to_rgb(channels))

    def file_of(self, index: int) -> str:
        return str(self.files[index if self._is_per_frame else 0])

    def _whole_window(self) -> Window:
        """How whole planes lie on the frames: as in the calibration, else stretched to the frame."""
        source, size = self.source, self._frames.size
        if source.calibration is None:
            plane = source.geometry
            check_same_view(size, (plane.height, plane.width), str(self.path))
            return ScaledWindow.whole(plane, size, source.interpolation)
        grid = source.grid(size)
        warn_uncovered(grid, f"clip {self.clip}", str(self._frames.path))
        return grid.window(Augment.whole(size))

    def span(self, index: int, planes: int | None = None) -> Span:
        """The planes of frame `index`. planes: of its file."""
        planes, timing = self._planes if planes is None else planes, self.source.timing
        if self._is_per_frame or timing.is_one_file:
            return timing.span(self.clip, index, planes)
        return timing.share(self.clip, index, len(self._frames), planes)


class UserClip:
    """A folder of frames or a video, with spikes and a sharp reference where the user has them."""

    def __init__(self, name: str, frames: Pictures, spikes: UserSpikes | None, gt: Pictures | None) -> None:
        self.name, self.stems = name, frames.stems
        self.fps, self.times, self.sound = frames.fps, frames.times, frames.path if frames.is_video else None
        self._frames, self.spikes, self._gt = frames, spikes, gt
        parts = {"input": frames.path, "gt": gt.path if gt else None, "spike": spikes.path if spikes else None}
        self.origin = {kind: str(path) for kind, path in parts.items() if path}

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        picture = self._frames.read(index)
        item = {"lq": _to_tensor(picture)}
        if self.spikes:
            item["spike"] = self.spikes.frame(index, picture, reverse)
        if self._gt:
            item["gt"] = _to_tensor(self._gt.read(index))
        return item

    def digest(self) -> str:
        files = [file for part in (self._frames, self.spikes, self._gt) if part for file in part.files]
        return _digest(files, self.spikes.source if self.spikes else None, self.stems)


def _digest(files: Iterable[str | Path], spikes: DatSpikes | None, stems: Sequence[str]) -> str:
    """Digest of the names, sizes and times of change of the files, of the stems, and of what the spikes mean."""
    about = dataclasses.replace(spikes.info, path="") if spikes else None
    table = hashlib.sha256(repr((about, list(stems))).encode())
    table.update(spikes.timing.describe().encode() if spikes else b"")
    if spikes and spikes.calibration:
        table.update(spikes.calibration.digest().encode())
    for file in map(str, files):
        root, is_lmdb, _ = file.partition(LMDB_MARK)
        place = f"{root}.lmdb/data.mdb" if is_lmdb else file
        found = os.stat(place) if os.path.exists(place) else None  # None where only the cache of the file exists
        size, time = (found.st_size, found.st_mtime_ns) if found else (0, 0)
        table.update(f"{Path(file).name} {size} {time}\n".encode())
    return table.hexdigest()[:16]


def _to_tensor(picture: np.ndarray) -> Tensor:
    """(H, W, 3) uint8 -> (3, H, W) float32 in [0, 1]."""
    return torch.from_numpy(picture).permute(2, 0, 1).to(torch.float32).div_(255.0)


def dataset_clips(dataset: Any) -> list[ClipReader]:
    """The clips of a test dataset (see data.clip_dataset)."""
    return [DatasetClip(dataset, index) for index in range(len(dataset))]


def user_clips(
    path: str | Path,
    spike: str | Path | None = None,
    gt: str | Path | None = None,
    spike_options: dict[str, Any] | None = None,
    scale: int = 1,
    trained: dict[str, Any] | None = None,
) -> list[ClipReader]:
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
    return [_user_clip(*clip, section, scale, trained) for clip in clips]


def _user_clip(
    name: str,
    path: Path,
    spike: str | Path | None,
    gt: str | Path | None,
    section: Section | None,
    scale: int,
    trained: dict[str, Any] | None,
) -> UserClip:
    frames = _user_pictures(path)
    spikes = None
    if section is not None and spike is not None:
        section, info = described(section, Path(spike))
        source, assumed = user_spikes(section, trained, info, name)
        if assumed:
            logger.warning(assumed)
        spikes = UserSpikes(Path(spike), frames, name, source, trained)
    reference = _user_pictures(Path(gt)) if gt is not None else None
    if reference is not None:
        check_reference(frames, reference, scale)
    return UserClip(name, frames, spikes, reference)


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

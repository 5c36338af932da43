"""Clips of a test set, frame by frame: `Reader`, the base of readers, and `DatasetClip`.

A test set is a dataset with a method `readers()`, which returns one reader for each clip.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from data.clips import files, io_backend
from data.clips.content import digest_of_clips


class Reader:
    """One clip to test on (utils.contract.ClipReader).

    A subclass sets `name` and `stems`, the names of the frames, and has `frame`. The rest follows
    from them; a subclass that knows better overrides it.

    origin: "input", "gt", "spike" -> path that the report shows.
    fps, times: of a film, frames a second and the time of each frame in seconds; else None.
    pixel_aspect: width over height of a pixel of a film; 1 for other frames.
    """

    name: str
    stems: Sequence[str]
    fps: float | None = None
    times: Sequence[Fraction] | None = None
    pixel_aspect: Fraction = Fraction(1)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        """Return the tensors of a frame, float32.

        lq (C, H, W) in [0, 1], and if the clip has them gt (3, s H, s W), spike (S, H, W) and
        gt_instants (3 K, s H, s W). reverse: whether time runs backwards within the spikes.
        """
        raise NotImplementedError

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return what spikes (S, H, W) of a frame show of its sharp moment: (H, W), >= 0.

        It is shown beside the frame as it is, in display values.
        """
        return np.maximum(spike.numpy().mean(axis=0), 0)

    @property
    def origin(self) -> dict[str, str]:
        return {}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors of the first frame. The tensors would fill the memory."""
        return {kind: tuple(tensor.shape) for kind, tensor in self.frame(0).items()}

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the blurry frames."""
        height, width = self.shapes["lq"][-2:]
        return height, width

    @property
    def gt_size(self) -> tuple[int, int]:
        """(height, width) of the sharp frames, or of the blurry ones if there are none."""
        height, width = self.shapes["gt" if self.has_gt else "lq"][-2:]
        return height, width

    @property
    def has_gt(self) -> bool:
        """Whether there is a sharp frame for each frame."""
        return "gt" in self.shapes

    @property
    def gt_place(self) -> str:
        """Where the sharp frames are, for messages."""
        return self.origin.get("gt", f"clip {self.name}")

    @property
    def scale(self) -> int:
        return self.gt_size[0] // self.size[0]

    @property
    def instants(self) -> int:
        """K, the sharp frames of each exposure; 0 if the clip has none."""
        channels = self.shapes.get("gt_instants", (0,))[0]  # three for each
        return channels // 3

    def digest(self) -> str:
        """Return 16 hex digits that change with the clip."""
        return digest_of_clips([self])


class DatasetClip(Reader):
    """Clip `index` of a test dataset, frame by frame."""

    def __init__(self, dataset: Any, index: int) -> None:
        self.clip = clip = dataset.clips[index]
        self.dataset = dataset
        self.index = index
        self.name = clip.name
        self.stems = clip.stems[: dataset.frame_count(index)]
        if clip.opened:
            self.fps = clip.opened["lq"].fps
            self.times = clip.opened["lq"].times
            self.pixel_aspect = clip.opened["lq"].pixel_aspect

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        item = self.dataset.read_frames(self.index, index, 1, reverse)
        kinds = ("lq", "spike", "gt", "gt_instants")
        return {kind: item[kind][0] for kind in kinds if kind in item}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        return self.clip.spikes.sharp_image(spike.numpy(), self.clip.exposures[index])

    @property
    def origin(self) -> dict[str, str]:
        clip = self.clip
        if clip.origin:
            return clip.origin
        places = {"input": clip.lq, "gt": clip.gt, "spike": clip.spike}
        return {kind: str(Path(paths[0]).parent) for kind, paths in places.items() if paths}

    @property
    def size(self) -> tuple[int, int]:
        return self.clip.size

    @property
    def gt_size(self) -> tuple[int, int]:
        return self.clip.gt_size

    @property
    def has_gt(self) -> bool:
        return bool(self.clip.gt)

    @property
    def instants(self) -> int:
        return self.clip.instants

    def described(self) -> str:
        """Return sizes and stems of the clip, and how its spikes are read, in one line."""
        clip = self.clip
        parts: list[Any] = [clip.size, clip.gt_size, clip.planes, list(self.stems)]
        spikes = clip.spikes
        if spikes:
            # Another place of the same dataset.json is no other data.
            parts.append(dataclasses.replace(spikes.info, path=""))
            parts.append([spikes.rate, spikes.light, spikes.center, spikes.timing.describe()])
            if spikes.calibration:
                parts.append(spikes.calibration.digest())
        return repr(parts)

    def paths(self) -> list[str]:
        """Return the files of the tested frames.

        If they are not on this machine: the arrays of the clip cache that is read in their place.
        """
        clip = self.clip
        count = len(self.stems)
        found = [*clip.lq[:count], *clip.gt[:count], *clip.spike[:count]]
        found += clip.gt_instants[: count * clip.instants]
        # One spike file may be listed for all frames.
        found = list(dict.fromkeys(found))
        cache = self.dataset.files
        if isinstance(cache, io_backend.CacheReader) and files.stamp(found[0]) == (0, 0):
            return cache.arrays_of(clip)
        return found

    def digest(self) -> str:
        """Return 16 hex digits that change with names, sizes and times of change of the files.

        They also change with the stems and with how the spikes are read.
        """
        clip = self.clip
        spikes = clip.spikes
        about = dataclasses.replace(spikes.info, path="") if spikes else None
        table = hashlib.sha256(repr((about, list(self.stems))).encode())
        if spikes:
            table.update(spikes.timing.describe().encode())
            if spikes.calibration:
                table.update(spikes.calibration.digest().encode())

        paths = [*clip.lq, *clip.gt, *clip.gt_instants, *clip.spike]
        cache = self.dataset.files
        if isinstance(cache, io_backend.CacheReader):
            # Its index changes if the cache is built anew, also from sources that are not here.
            for source in reversed(self.dataset.sources):
                paths.insert(0, str(Path(cache.path, source.name_prefix, io_backend.INDEX)))
        for path in dict.fromkeys(paths):
            size, time = files.stamp(path)
            table.update(f"{Path(path).name} {size} {time}\n".encode())
        return table.hexdigest()[:16]

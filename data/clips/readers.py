"""Readers: the clips of a test set, frame by frame.

A test set is a dataset with a method `readers()`, which returns one reader for each clip. Tests and
validations ask only the readers. `Reader` is the base of all readers: whoever adds a test set of
another kind derives from it (docs/extending.md). `DatasetClip` reads a clip of a `TestClips`.

Tests: tests/parts/data/test_readers.py, tests/stories/test_extending.py
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

    A subclass sets `name` and `stems`, the names of the frames, and defines `frame`. Everything
    else follows from these three. A subclass may override a property to answer it faster, for
    example `size`, for which this class reads a frame.

    origin: {"input", "gt", "spike": path} that the report shows.
    fps, times: frames a second of a film, and the time of each frame in seconds; else None.
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
        gt_instants (3 K, s H, s W). s is the scale, S the number of spike channels, K the number of
        sharp frames of each exposure.
        reverse: whether time runs backwards within the spikes.
        """
        raise NotImplementedError

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return a picture of what the spikes of a frame show at its sharp instant.

        spike: channels (S, H, W) of frame `index`. Returns display values (H, W), >= 0, which are
        shown beside the frame.
        """
        return np.maximum(spike.numpy().mean(axis=0), 0)

    @property
    def origin(self) -> dict[str, str]:
        return {}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors of the first frame.

        Only the shapes are kept, because the tensors of all clips would fill the memory.
        """
        return {kind: tuple(tensor.shape) for kind, tensor in self.frame(0).items()}

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the blurry frames."""
        height, width = self.shapes["lq"][-2:]
        return height, width

    @property
    def gt_size(self) -> tuple[int, int]:
        """(height, width) of the sharp frames, or of the blurry ones if there are none."""
        kind = "gt" if self.has_gt else "lq"
        height, width = self.shapes[kind][-2:]
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
        """Size of the sharp frames over the size of the blurry ones."""
        return self.gt_size[0] // self.size[0]

    @property
    def instants(self) -> int:
        """K, the number of sharp frames of each exposure; 0 if the clip has none."""
        if "gt_instants" not in self.shapes:
            return 0
        channels = self.shapes["gt_instants"][0]
        return channels // 3  # each sharp frame has three

    def digest(self) -> str:
        """Return 16 hex digits that change with the clip."""
        return digest_of_clips([self])


class DatasetClip(Reader):
    """Clip `index` of a test dataset, frame by frame."""

    def __init__(self, dataset: Any, index: int) -> None:
        """dataset: a `TestClips`. index: number of the clip."""
        clip = dataset.clips[index]
        self.clip = clip
        self.dataset = dataset
        self.index = index
        self.name = clip.name
        # The dataset may test only the first frames of a clip.
        self.stems = clip.stems[: dataset.frame_count(index)]
        # A user's clip has open films or folders, as {"lq": FrameSource, ...}. They know times and
        # pixel aspect of a film. `opened` is empty for the clips of a data set.
        if clip.opened:
            self.fps = clip.opened["lq"].fps
            self.times = clip.opened["lq"].times
            self.pixel_aspect = clip.opened["lq"].pixel_aspect

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        # `self.index` is the number of the clip, `index` the number of the frame.
        count = 1
        item = self.dataset.read_frames(self.index, index, count, reverse)
        found = {}
        for kind in ("lq", "spike", "gt", "gt_instants"):
            if kind in item:
                found[kind] = item[kind][0]  # of (1, C, H, W)
        return found

    # The methods and properties below override `Reader`, and answer from the record of the clip.

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return the picture that the spikes show of frame `index`: display values (H, W)."""
        return self.clip.spikes.sharp_image(spike.numpy(), self.clip.exposures[index])

    @property
    def origin(self) -> dict[str, str]:
        clip = self.clip
        if clip.origin:
            return clip.origin
        # The report and the messages call the blurry frames "input".
        paths = {"input": clip.lq, "gt": clip.gt, "spike": clip.spike}
        folders = {}
        for kind, files_of_kind in paths.items():
            if files_of_kind:
                folders[kind] = str(Path(files_of_kind[0]).parent)
        return folders

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
        """Return sizes and stems of the clip, and how its spikes are read, in one line.

        The line becomes part of a digest that is stored with scores, see data/clips/content.py.
        """
        clip = self.clip
        parts: list[Any] = [clip.size, clip.gt_size, clip.planes, list(self.stems)]
        spikes = clip.spikes
        if spikes:
            # Without the path of dataset.json: a copy of the data in another place is the same.
            parts.append(dataclasses.replace(spikes.info, path=""))
            parts.append([spikes.rate, spikes.light, spikes.center, spikes.timing.describe()])
            if spikes.calibration:
                parts.append(spikes.calibration.digest())
        return repr(parts)

    def paths(self) -> list[str]:
        """Return the files of the tested frames, each once.

        If the files are not on this machine, the frames are read from the clip cache. Then this
        returns the files of the cache that hold the arrays of the clip.
        """
        clip = self.clip
        count = len(self.stems)
        found = [*clip.lq[:count], *clip.gt[:count], *clip.spike[:count]]
        found += clip.gt_instants[: count * clip.instants]
        # One spike file may be listed for all frames. dict.fromkeys keeps the order.
        found = list(dict.fromkeys(found))
        cache = self.dataset.files
        if isinstance(cache, io_backend.CacheReader):
            is_here = files.stamp(found[0]) != (0, 0)
            if not is_here:
                return cache.paths_of(clip)
        return found

    def digest(self) -> str:
        """Return 16 hex digits that change with names, sizes and times of change of the files.

        The digits also change with the stems and with how the spikes are read. A test stores the
        digest with its results, so whoever changes the hashed texts makes the data of old results
        look changed.
        """
        clip = self.clip
        spikes = clip.spikes
        about = None
        if spikes:
            about = dataclasses.replace(spikes.info, path="")  # see `described`
        table = hashlib.sha256(repr((about, list(self.stems))).encode())
        if spikes:
            table.update(spikes.timing.describe().encode())
            if spikes.calibration:
                table.update(spikes.calibration.digest().encode())

        paths = []
        cache = self.dataset.files
        if isinstance(cache, io_backend.CacheReader):
            # The index changes if the cache is built anew, also if its sources are not here.
            for source in self.dataset.sources:
                paths.append(str(Path(cache.path, source.name_prefix, io_backend.INDEX)))
        paths += [*clip.lq, *clip.gt, *clip.gt_instants, *clip.spike]
        for path in dict.fromkeys(paths):
            size, time = files.stamp(path)
            table.update(f"{Path(path).name} {size} {time}\n".encode())
        return table.hexdigest()[:16]

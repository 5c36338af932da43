"""Read the clips of a test set, frame by frame.

A test set is a dataset with a method `readers()`, which returns one reader for each clip. Tests and
validations use only the readers, and never the dataset. `Reader` is the base class of all readers.
For a new kind of test set, derive a class from it (docs/extending.md). `DatasetClip` reads a clip
of a `TestClips`, the test sets of this project:

    DatasetClip.frame             one frame with its spikes
      TestClips.read_frames       consecutive frames (data/clip_dataset.py)
        ClipDataset.read          files, crops and channels (data/clip_reading.py)

What must stay:

* the names, arguments and results of the methods of `Reader`, because readers of users are derived
  from it (test_the_clips_of_a_test_set_of_ones_own_are_tested),
* the hashed values in `DatasetClip.described` and `digest`.

Free to add: a method of `Reader`, with a body that works for the readers of users. Free to change:
how `DatasetClip` computes its results.

Tests: tests/parts/data/test_readers.py, tests/parts/data/test_content.py (digests),
tests/stories/test_extending.py (a test set of a user)
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

from data.cameras.sharp_image import sharp_image
from data.clips.cache_format import INDEX
from data.clips.clip_cache import CacheReader
from data.clips.content import digest_of_clips
from data.clips.listed_files import stamp
from data.clips.sample_check import refuse_wrong_frame


class Reader:
    """One clip to test on (utils.contract.ClipReader).

    A subclass sets `name` and `stems`, the names of the frames, and defines `frame`. All other
    members follow from these three. A subclass may override the other members to answer faster.
    E.g. for `size`, this class reads a frame.

    What must stay: names and meanings of all members, because users derive from this class. A new
    property needs a body here that is right for every subclass (tests/stories/test_extending.py).

    origin: paths that the report shows, e.g. {"input": "/data/a", "gt": ..., "spike": ...}.
    fps: frames per second of a film. None for other frames.
    times: time of each frame of a film in seconds. None for other frames.
    pixel_aspect: width over height of a pixel of a film. 1 for other frames.
    """

    name: str
    stems: Sequence[str]
    fps: float | None = None
    times: Sequence[Fraction] | None = None
    pixel_aspect: Fraction = Fraction(1)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        """Return the tensors of a frame, float32.

        s is the scale, S the number of spike channels, K the number of sharp frames of each
        exposure. The result is {"lq": (C, H, W) in [0, 1]}. If the clip has such files, the result
        also has

            "gt": (3, s H, s W), "spike": (S, H, W), "gt_instants": (3 K, s H, s W).

        index: number of the frame, from 0.
        reverse: whether time runs backwards within the spikes.
        """
        raise NotImplementedError

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return a picture that shows the spikes of a frame at its sharp instant.

        Returns display values (H, W), at least 0. The picture is shown beside the frame. This class
        does not know what the channels mean, so the picture is their mean.

        spike: channels (S, H, W) of frame `index`.
        """
        return np.maximum(spike.numpy().mean(axis=0), 0)

    @property
    def origin(self) -> dict[str, str]:
        """Return {kind: path} for the report. This class knows no paths."""
        return {}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of the first frame, e.g. {"lq": (3, 720, 1280)}.

        Only the shapes are kept, because the tensors of all clips would fill the memory.

        Raises DataError if the frame is not a dict of tensors.

        Test: test_sizes_follow_from_the_first_frame
        """
        frame = self.frame(0)
        refuse_wrong_frame(frame, f"clip {self.name}, frame {self.stems[0]}")
        return {kind: tuple(tensor.shape) for kind, tensor in frame.items()}

    @property
    def size(self) -> tuple[int, int]:
        """Return (height, width) of the blurry frames."""
        height, width = self.shapes["lq"][-2:]  # (C, H, W) -> H, W
        return height, width

    @property
    def gt_size(self) -> tuple[int, int]:
        """Return (height, width) of the sharp frames, or of the blurry frames without gt."""
        kind = "gt" if self.has_gt else "lq"
        height, width = self.shapes[kind][-2:]
        return height, width

    @property
    def has_gt(self) -> bool:
        """Return whether there is a sharp frame for each frame."""
        return "gt" in self.shapes

    @property
    def gt_place(self) -> str:
        """Return the path of the sharp frames for messages, or else the name of the clip."""
        return self.origin.get("gt", f"clip {self.name}")

    @property
    def scale(self) -> int:
        """Return the height of the sharp frames divided by the height of the blurry frames."""
        gt_height, _ = self.gt_size
        height, _ = self.size
        return gt_height // height

    @property
    def instants(self) -> int:
        """Return K, the number of sharp frames of each exposure.

        The result is 0 for a clip without gt_instants.
        """
        if "gt_instants" not in self.shapes:
            return 0
        channels = self.shapes["gt_instants"][0]
        return channels // 3  # a sharp frame has three channels

    def digest(self) -> str:
        """Return 16 hex digits that change with the clip."""
        return digest_of_clips([self])


class DatasetClip(Reader):
    """A clip of a test dataset, frame by frame."""

    def __init__(self, dataset: Any, clip_index: int) -> None:
        """Prepare to read a clip.

        dataset: a `TestClips` (data/clip_dataset.py).
        clip_index: number of the clip in the dataset.
        """
        clip = dataset.clips[clip_index]
        self.clip = clip
        self.dataset = dataset
        self.clip_index = clip_index
        self.name = clip.name
        # The dataset may test only the first frames of a clip.
        self.stems = clip.stems[: dataset.frame_count(clip_index)]
        # A user's clip has `opened`, {"lq": FrameSource, ...}. A FrameSource knows the times and
        # the pixel aspect of a film. For the clips of a data set, `opened` is None.
        if clip.opened:
            frames = clip.opened["lq"]
            self.fps = frames.fps
            self.times = frames.times
            self.pixel_aspect = frames.pixel_aspect

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        """Return the tensors (C, H, W) of frame `index`, as `Reader.frame` describes them.

        reverse: whether time runs backwards within the spikes.
        """
        item = self.dataset.read_frames(self.clip_index, first=index, count=1, reverse=reverse)
        tensors = {}
        for kind in ("lq", "spike", "gt", "gt_instants"):
            if kind in item:
                tensors[kind] = item[kind][0]  # (1, C, H, W) -> (C, H, W)
        return tensors

    # The methods and properties below override `Reader`, too. They answer from the `Clip`, and
    # decode no frame.

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return a picture that shows the spikes of frame `index`: display values (H, W).

        `Reader.spike_light` gives only the mean of the channels. `DatasetClip` has the settings by
        which spikes became channels, so it computes the light at the sharp instant.
        """
        return sharp_image(self.clip.spikes, spike.numpy(), self.clip.exposures[index])

    @property
    def origin(self) -> dict[str, str]:
        """Return {kind: path}: the path that the user gave, or the folder of the data set's files.

        The kinds are "input", "gt" and "spike".
        """
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

        The values and their order must stay. The line is hashed for a digest that is stored with
        scores (data/clips/content.py). If the line changed, stored scores would count as scores of
        other clips (test_the_digest_that_is_stored_with_a_score_stays).

        There are two digests. The digest of a score does not contain times of change, so it is the
        same for a copy of the data. `DatasetClip.digest` is stored with results. This second digest
        changes with the times of change.
        """
        clip = self.clip
        # E.g. [(720, 1280), (720, 1280), (40, 40), ["000000", "000001"]] for two frames.
        values: list[Any] = [clip.size, clip.gt_size, clip.planes, list(self.stems)]
        spikes = clip.spikes
        if spikes:
            # The path of dataset.json is left out, because a copy of the data in another folder is
            # the same data.
            values.append(dataclasses.replace(spikes.info, path=""))
            values.append([spikes.rate, spikes.light, spikes.center, spikes.timing.describe()])
            if spikes.calibration:
                values.append(spikes.calibration.digest())
        return repr(values)

    def paths(self) -> list[str]:
        """Return the files of the tested frames, each once.

        If the clip is read from a clip cache and its source files are not on this machine, the
        result is the files of the cache that hold the clip.
        """
        clip = self.clip
        count = len(self.stems)  # number of tested frames
        paths = [*clip.lq[:count], *clip.gt[:count], *clip.spike[:count]]
        # Each frame has `clip.instants` files, frame after frame.
        paths += clip.gt_instants[: count * clip.instants]
        # One spike file may be listed for all frames. dict.fromkeys keeps the order.
        paths = list(dict.fromkeys(paths))
        backend = self.dataset.backend
        if isinstance(backend, CacheReader):
            # `stamp` returns (0, 0) for a file that is not on this machine. Only the first file is
            # looked up. All other files are taken to be on the same machine.
            is_here = stamp(paths[0]) != (0, 0)
            if not is_here:
                return backend.paths_of(clip)
        return paths

    def digest(self) -> str:
        """Return 16 hex digits that change with names, sizes and times of change of the files.

        The digits also change with the stems and with how the spikes are read. A test stores the
        digest with its results, and a repeated test compares it. So the hashed texts and their
        order must stay. With other digits, the data of all old results would seem to have changed
        (test_the_digest_that_is_stored_with_results_stays).
        """
        clip = self.clip
        spikes = clip.spikes
        info = None
        if spikes:
            # Leave out the path of dataset.json, because a copy of the data has a different path.
            info = dataclasses.replace(spikes.info, path="")
        info_and_stems = repr((info, list(self.stems)))
        sha256 = hashlib.sha256(info_and_stems.encode())
        if spikes:
            sha256.update(spikes.timing.describe().encode())
            if spikes.calibration:
                sha256.update(spikes.calibration.digest().encode())

        paths = []
        backend = self.dataset.backend
        if isinstance(backend, CacheReader):
            # The source files of the cache may be on another machine, so a change of these files
            # may not show. But each build of the cache writes its index anew, so hash the index,
            # too. E.g. /data/cache/index.json, or /data/cache/0/index.json with several data roots.
            for source in self.dataset.sources:
                paths.append(str(Path(backend.path, source.name_prefix, INDEX)))
        # All files of the clip are hashed, also the files of frames that are not tested.
        paths += [*clip.lq, *clip.gt, *clip.gt_instants, *clip.spike]
        for path in dict.fromkeys(paths):  # each path once, in this order
            size, mtime_ns = stamp(path)
            sha256.update(f"{Path(path).name} {size} {mtime_ns}\n".encode())
        return sha256.hexdigest()[:16]

"""Read samples of clips: what was drawn becomes tensors.

A sample is made in two steps. First its clip, frames, crop and flips are chosen (`Draw`). Then
`ClipDataset.read` opens the files and returns tensors:

    lq           (T, 3, h, w)         blurry frames, in [0, 1]
    gt           (T, 3, s h, s w)     sharp frames, in [0, 1]
    gt_instants  (T, 3 K, s h, s w)   K sharp frames (instants) of each exposure
    spike        (T, S, h, w)         spike channels

T is the number of frames of the draw, s the scale, S the number of spike channels. Spike channels
are what a network sees of the spikes of a frame. Nothing is random here, so equal draws give equal
tensors.

`ClipDataset` is the base of the training and test datasets in data/clip_dataset.py, which choose
what is read.

What must stay:

* keys, shapes and values of the tensors, because networks and losses expect them (`check_input` of
  models/vrt/requirements.py refuses a wrong shape of lq),
* the names that docs/extending.md promises to users.

Free to change: how files are read, as long as a draw gives the same pixels.

Tests: tests/parts/data/test_dataset_video_rgbspike.py, tests/parts/data/test_instants.py
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from data.augment import CAMERAS, Augment, CameraDraw
from data.cameras import spike_grid, spike_source
from data.cameras.channels_of_frame import read_channels
from data.cameras.frame_planes import warn_of_overlap
from data.cameras.self_calibration import calibrate_clips
from data.clip import Clip
from data.clip_sources import ClipSources
from data.clips.clip_cache import CacheReader
from data.clips.clip_lists import join_clips, one_of_each_form
from data.clips.disk_files import DiskFiles
from data.clips.io_backend import IO_BACKENDS
from data.clips.ranges import begins_of
from data.root_spikes import is_auto
from utils import contract
from utils.errors import OptionError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Draw:
    """The choices that make a sample. `ClipDataset.read` turns them into tensors.

    What must stay: the names of the fields, because scripts and `data/alignment.py` make
    changed copies with `dataclasses.replace`.
    """

    clip: Clip  # the clip from which frames are read
    frames: list[int]  # numbers of the frames, in the order in which the network sees them
    backwards: list[bool]  # for each frame, whether time runs backwards within its exposure
    aug: Augment  # the crop, the flips and the turn
    camera: CameraDraw | None  # simulated changes of the spike camera. None: spikes as recorded


class ClipDataset(ClipSources, Dataset):
    """The base of the training and test datasets: their clips, and reading frames of one clip.

    Subclasses may override these methods. `frames_of` is below, the other methods are in
    data/clip_sources.py:

    * `places` for other folders or keys,
    * `sources_of` and `check` for other kinds of files,
    * `frames_of` to read other frames of a kind, e.g. to leave out every second blurry frame,
    * `may_share_frames` to allow that blurry and sharp frames are the same files, e.g. because
      `frames_of` reads different frames of them.

    docs/extending.md promises these names and arguments to users, so they must stay.

    Files are opened when a sample is read, and closed at once. Loader workers are forked from the
    main process, so they would share a file that the main process keeps open.
    """

    is_training = False

    def __init__(self, section: Any, seed: int = 0) -> None:
        """Check the options, and list the clips.

        section: the keys of this dataset, for example the section `datasets.train`.
        seed: seed of all random choices.
        """
        self.seed = seed
        self.num_frame = section.num_frame
        # The keys of the section, for subclasses. They are a dict, because a Section cannot be sent
        # to a loader process.
        self.options = section.plain()
        # For each root: its folders, and how its spikes are read.
        self.sources = self.sources_of(section)
        # `self.camera` is the simulated spike camera, or None. A dataset without spikes has no key
        # `camera`, so ask with a default. The second argument of `build` is the name of the
        # section, for errors.
        camera = getattr(section, "camera", None)
        self.camera = CAMERAS.build(camera, "camera") if camera else None
        # Refuse camera.known_rate if it would have no effect. The spike options are the same for
        # all roots, so the first root is enough.
        _refuse_known_rate_without_effect(self.camera, self.sources[0].spikes)

        # The reader of frames and spike files: from files, from an LMDB or from a clip cache. Only
        # the classes for files and LMDBs get `cache_data` (data/clips/io_backend.py, `given`).
        self.backend: DiskFiles | CacheReader = IO_BACKENDS.build(
            section.io_backend, "io_backend", cache_data=section.cache_data
        )
        self._list_clips()
        # Warn if the spike camera does not see the whole frame. A training needs no warning,
        # because all of its crops lie within the view of the spike camera.
        if not self.is_training:
            self._warn_uncovered()

    def _list_clips(self) -> None:
        """Set `clips`, the clips of all roots, one root after the other, and `first_clips`."""
        clips_of_roots = [self.backend.clips(source) for source in self.sources]
        self.clips: Sequence[Clip] = join_clips(clips_of_roots)
        # Clips of one form may have other exposures. But spike.exposure is usually wrong for all
        # clips, and a loop over all clips would be slow (`_warn_uncovered`).
        for clip in one_of_each_form(self.clips):
            if clip.spikes:
                warn_of_overlap(clip.name, clip.exposures)
        # With spike.calibration "auto", the calibration of a clip is estimated from its own frames
        # and spikes. `calibrate_clips` returns as many clips, in the same order, with calibrations.
        if any(is_auto(source) for source in self.sources):
            self.clips = calibrate_clips(self.clips, self.backend)
        # Number of the first clip of each root, then the number of all clips. E.g. two roots of 2
        # clips and 1 clip give [0, 2, 3].
        self.first_clips = begins_of([len(clips) for clips in clips_of_roots])

    def _warn_uncovered(self) -> None:
        """Warn once for each frame size if the spike camera does not see the whole frame."""
        warned_sizes = set()
        # One clip of each form is enough. (A form is a combination of size, number of instants and
        # spike settings.) A loop over all clips would be slow: `self.clips` may be a table of a
        # million clips, and such a table makes a `Clip` only when it is read.
        for clip in one_of_each_form(self.clips):
            if clip.spikes and clip.size not in warned_sizes:
                warned_sizes.add(clip.size)
                name = f"clip {clip.name} and all others of its size"
                first_frame = clip.lq[0]  # a file name, which the warning shows
                spike_grid.warn_uncovered(clip.grid, what=name, where=first_frame)

    def read(self, draw: Draw) -> dict[str, torch.Tensor]:
        """Read the tensors of a draw, cropped and flipped.

        Returns {kind: tensor}. The head of this file lists the kinds and their shapes. Each result
        has lq, and has the other kinds only if the clip has them.
        """
        # draw.aug holds the crop and the flips. `_read_images` reads only the pixels of the crop,
        # and `_to_tensor` makes the flips.
        images = self._read_images(draw)
        item = {}
        for kind, pixels in images.items():
            item[kind] = self._to_tensor(pixels, draw.aug)
        instants = draw.clip.instants  # K
        if instants:
            # The K instants of a frame become its channels. In two steps, the shape
            # (T K, 3, s h, s w) becomes (T, K, 3, s h, s w), and then (T, 3 K, s h, s w). s is the
            # scale.
            by_frame = item["gt_instants"].unflatten(0, (len(draw.frames), instants))
            stacked = by_frame.flatten(1, 2)
            item["gt_instants"] = stacked
            # `_read_images` has read no gt, because gt is the middle instant.
            item["gt"] = contract.middle_instant(stacked, instants)
        if draw.clip.spikes:
            # If spike.rate is "match", the firing rate is measured: `_read_spikes` compares the
            # spikes with the brightness of the blurry frames, so it needs their pictures. These
            # pictures already have the noise of a simulated RGB camera.
            item["spike"] = self._read_spikes(draw, images["lq"])
        return item

    def _read_images(self, draw: Draw) -> dict[str, np.ndarray]:
        """Return {kind: (frames, h, w, 3) uint8 in B, G, R}, cropped but not yet flipped."""
        numbers = {}  # {kind: numbers of the pictures to read}
        for kind in draw.clip.image_kinds:
            numbers[kind] = self.frames_of(kind, draw.frames)
        if draw.clip.instants:
            numbers["gt_instants"] = self._instants_of(draw)
            # The files of gt are not read, because the middle instant is the same frame. `read`
            # takes gt from gt_instants.
            del numbers["gt"]

        images = {}
        for kind, wanted in numbers.items():
            # Only the crop of draw.aug is used here. The flips come in `_to_tensor`.
            images[kind] = self.backend.images(draw.clip, kind, wanted, draw.aug)
        # The simulated camera of this sample, or None. If it also has an RGB camera (`rgb`),
        # `photograph` adds noise and JPEG errors to the blurry frames. The noise depends on the
        # number of the frame. A camera class of a user may lack `rgb`.
        camera = draw.camera
        if camera and getattr(camera, "rgb", None):
            photographs = []
            for picture, frame in zip(images["lq"], draw.frames, strict=True):
                photographs.append(camera.photograph(picture, frame))
            images["lq"] = np.stack(photographs)
        return images

    def frames_of(self, kind: str, frames: list[int]) -> list[int]:
        """Return the numbers of the frames to read for one kind.

        kind: "lq" or "gt".
        frames: frames of the draw.

        Subclasses may override this method, for example to leave out every second blurry frame.
        """
        return frames

    def _instants_of(self, draw: Draw) -> list[int]:
        """Return the numbers of the sharp instants of each frame, in the order of playing.

        Instants are the K sharp frames of one exposure. They are numbered through the clip, K for
        each frame. E.g. with K = 3, frame 2 has the instants 6, 7, 8.
        """
        count = draw.clip.instants  # K
        numbers: list[int] = []
        for frame, is_backwards in zip(draw.frames, draw.backwards, strict=True):
            instants_of_frame = list(range(frame * count, (frame + 1) * count))
            if is_backwards:
                instants_of_frame.reverse()
            numbers.extend(instants_of_frame)
        return numbers

    def _to_tensor(self, pixels: np.ndarray, aug: Augment) -> torch.Tensor:
        """Convert pictures to a tensor, flipped and turned.

        pixels: (T, h, w, 3) uint8, B, G, R. Returns (T, 3, h, w) float32, R, G, B in [0, 1].
        """
        rgb = pixels[..., ::-1]  # the colours in the order R, G, B
        channels_first = rgb.transpose(0, 3, 1, 2)  # (T, 3, h, w)
        flipped = aug.flip(channels_first)
        return torch.from_numpy(flipped).to(torch.float32).div_(255.0)

    def _read_spikes(self, draw: Draw, lq: np.ndarray) -> torch.Tensor:
        """Read the spike channels (T, S, h, w).

        lq: pictures of the blurry frames as read, (T, h, w, 3). With spike.rate "match", the spikes
        are scaled to the brightness of these pictures.
        """
        spikes = draw.clip.spikes
        channels_of_frames = []  # (S, h, w) each
        for frame, image, is_backwards in zip(draw.frames, lq, draw.backwards, strict=True):
            channels = read_channels(
                spikes,
                self.backend,
                draw.clip,
                frame,
                aug=draw.aug,
                image=image,
                reverse=is_backwards,
                camera=draw.camera,
            )
            channels_of_frames.append(channels)
        stacked = np.stack(channels_of_frames)  # (T, S, h, w), cropped but not yet flipped
        return torch.from_numpy(draw.aug.flip(stacked))


def _refuse_known_rate_without_effect(camera: Any, spikes: spike_source.DatSpikes | None) -> None:
    """Refuse camera.known_rate if the channels are not divided by a given rate.

    A simulated camera changes the firing rate at full light. With camera.known_rate, the channels
    are divided by the changed rate. If the channels are not divided by a given rate, the key has no
    effect, and the user has probably made a mistake.

    camera: the simulated camera, or None.
    spikes: how the spikes are read, or None.
    """
    if not camera or not camera.known_rate or not spikes:
        return
    # With "match", the rate is measured from each clip, so the options do not give it. Some
    # representations ignore the rate. `without_effect` lists the keys that the representation
    # ignores (`Representation.ignored` in data/spike/registry.py).
    is_measured = spikes.rate == "match"
    is_ignored = "rate" in spikes.without_effect
    if is_measured or is_ignored:
        raise OptionError(
            what="camera.known_rate has no effect: the representation is not divided by a given "
            "rate",
            where="camera.known_rate",
            expected="a proportional representation, and spike.rate other than match",
            do="remove camera.known_rate",
        )

"""Clips of blurry RGB frames, sharp RGB frames and spike files: random samples to train on, whole clips to test on."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data.augment import Augment
from data.camera import CAMERAS, CameraDraw
from data.clip import Clip
from data.clip_index import Source, held_out
from data.io_backend import IO_BACKENDS
from data.select_dataset import DATASETS
from data.spike_source import SPIKE_SOURCES, build_spikes
from utils.utils_errors import DataError, OptionError

logger = logging.getLogger(__name__)

SpikeSection = Annotated[dict[str, Any] | str, SPIKE_SOURCES]
CameraSection = Annotated[dict[str, Any] | str | None, CAMERAS]
IoSection = Annotated[dict[str, Any] | str, IO_BACKENDS]


class _Clips(Dataset):
    """What training and testing share: the clips, and reading a run of frames of one of them.

    Files are opened when a sample is read and closed at once; nothing open crosses a fork.
    """

    is_training = False

    def __init__(
        self,
        source: Source,
        *,
        io_backend: dict[str, Any] | str,
        cache_data: bool,
        seed: int,
        camera: dict[str, Any] | str | None = None,
    ) -> None:
        self.seed, self.spikes = seed, source.spikes
        self.camera = CAMERAS.build(camera, "camera") if camera else None
        if (
            self.camera
            and self.camera.known_rate
            and (source.spikes.rate == "match" or "rate" in source.spikes.ignored)
        ):
            raise OptionError(
                "camera.known_rate has no effect: the representation is not divided by a given rate",
                "camera.known_rate", "a proportional representation, and spike.rate other than match", "remove it",
            )  # fmt: skip
        self.files = IO_BACKENDS.build(io_backend, "io_backend", cache_data=cache_data)
        self.clips: list[Clip] = self.files.clips(source)

    def read(
        self,
        clip: Clip,
        frames: list[int],
        aug: Augment,
        backwards: list[bool],
        camera: CameraDraw | None = None,
    ) -> dict[str, Tensor]:
        """lq (T, 3, h, w), gt (T, 3, s h, s w) in [0, 1] and spike (T, S, h, w) of these frames, cut and turned.

        backwards: whether time runs backwards within each frame, before `aug.reverse` turns all of them round.
        camera: another spike camera than the recorded one.
        """
        if aug.reverse:
            frames, backwards = frames[::-1], [not b for b in backwards[::-1]]
        pictures = {kind: self.files.pictures(clip, kind, frames, aug) for kind in ("lq", "gt") if getattr(clip, kind)}
        item = {kind: _to_tensor(values, aug) for kind, values in pictures.items()}
        if self.spikes:
            channels = [
                self.spikes.read(self.files, clip, i, aug, picture, back, camera)
                for i, picture, back in zip(frames, pictures["lq"], backwards, strict=True)
            ]
            item["spike"] = torch.from_numpy(aug.turn(np.stack(channels)))
        return item


def _to_tensor(pictures: np.ndarray, aug: Augment) -> Tensor:
    """(T, h, w, 3) uint8 in the order B, G, R -> (T, 3, h, w) float32 in [0, 1] in the order R, G, B, turned."""
    frames = aug.turn(pictures[..., ::-1].transpose(0, 3, 1, 2))
    return torch.from_numpy(frames).to(torch.float32).div_(255.0)


class _TrainClips(_Clips):
    is_training = True

    def __init__(
        self,
        source: Source,
        *,
        num_frame: int,
        gt_size: int,
        interval_list: list[int] | tuple[int, ...],
        random_reverse: bool,
        use_hflip: bool,
        use_rot: bool,
        **shared: Any,
    ) -> None:
        if num_frame < 1 or not interval_list or min(interval_list) < 1:
            raise OptionError(
                f"num_frame is {num_frame}, interval_list {interval_list}", "datasets.train.num_frame", "numbers >= 1",
                "correct them",
            )  # fmt: skip
        super().__init__(source, **shared)
        self.num_frame, self.gt_size = num_frame, gt_size
        self.intervals = interval_list
        self.turns = {"hflip": use_hflip, "rot": use_rot, "reverse": random_reverse}
        self.ends = np.cumsum([len(clip) for clip in self.clips])
        self._check_fit()

    def _check_fit(self) -> None:
        for clip in self.clips:
            step = self.spikes.ratio(clip.size) if self.spikes else 1
            if self.gt_size % (clip.scale * step):
                raise OptionError(
                    f"datasets.train.gt_size is {self.gt_size}", "datasets.train.gt_size",
                    f"a multiple of {clip.scale * step}: gt pixels per lq pixel x lq pixels per spike pixel",
                    "correct gt_size",
                )  # fmt: skip
            if self.gt_size > min(clip.gt_size):
                raise DataError(
                    f"crops of {self.gt_size} do not fit into clip {clip.name}", clip.gt[0],
                    f"pictures of at least {self.gt_size} x {self.gt_size}, not {clip.gt_size[0]} x {clip.gt_size[1]}",
                    "lower datasets.train.gt_size",
                )  # fmt: skip
        short = [clip.name for clip in self.clips if len(clip) < self.num_frame]
        if short:
            names = ", ".join(short[:5]) + (", ..." if len(short) > 5 else "")
            logger.warning(
                "%d clips have fewer than %d frames and are played back and forth: %s",
                len(short),
                self.num_frame,
                names,
            )

    def sample_names(self) -> list[str]:
        """clip/frame of every sample, in order, after what is known of its clip and of the spikes.

        A run that resumes compares them with those of its checkpoint.
        """
        about = [f"{clip.name}: {clip.size} {clip.gt_size} {clip.planes}" for clip in self.clips]
        spikes = self.spikes
        about += [f"{spikes.geometry} {spikes.rate} {spikes.light} {spikes.info.gt_plane}"] if spikes else []
        return about + [f"{clip.name}/{stem}" for clip in self.clips for stem in clip.stems]

    def __len__(self) -> int:
        """One sample for every frame that one could start at."""
        return int(self.ends[-1])

    def __getitem__(self, sample_id: tuple[int, int]) -> dict[str, Any]:
        """Sample `index` as seen in `epoch`; depends on (seed, epoch, index) and on nothing else.

        An index beyond the dataset's length is a further, different draw of the same frame (dataloader_epoch_repeat).
        """
        epoch, index = sample_id
        rng = np.random.default_rng([self.seed, epoch, index])
        number = int(np.searchsorted(self.ends, index % len(self), side="right"))
        clip = self.clips[number]
        first = index % len(self) - int(self.ends[number] - len(clip))
        interval = int(rng.choice(self.intervals))
        last = len(clip) - 1 - (self.num_frame - 1) * interval
        redrawn = int(rng.integers(0, max(last, 0) + 1))
        first = first if first <= last else redrawn
        step = self.spikes.ratio(clip.size) if self.spikes else 1
        aug = Augment.draw(rng, clip.size, self.gt_size // clip.scale, step, **self.turns)
        positions = [first + i * interval for i in range(self.num_frame)]
        frames, backwards = zip(*(bounce(p, len(clip)) for p in positions), strict=True)
        camera = self.camera.draw([self.seed, epoch, index]) if self.camera else None
        item = self.read(clip, list(frames), aug, list(backwards), camera)
        return {**item, "key": f"{clip.name}/{clip.stems[frames[0]]}"}


class _TestClips(_Clips):
    def __init__(self, source: Source, *, num_frame: int, **shared: Any) -> None:
        super().__init__(source, **shared)
        self.num_frame = num_frame

    def __len__(self) -> int:
        return len(self.clips)

    def frame_count(self, index: int) -> int:
        """Frames of clip `index` that are read: all, or the first num_frame."""
        count = len(self.clips[index])
        return count if self.num_frame < 1 else min(count, self.num_frame)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The whole clip: lq, spike, gt as in training, key: its name, frames: the stems of its frames."""
        return self.read_frames(index, 0, self.frame_count(index))

    def read_frames(self, index: int, first: int, count: int, reverse: bool = False) -> dict[str, Any]:
        """Frames first ... first + count - 1 of clip `index`, in the form of `__getitem__`.

        reverse: in this order all the same, but each with the spikes of reversed time.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        clip = self.clips[index]
        frames = list(range(first, first + count))
        camera = self.camera.draw([self.seed, index]) if self.camera else None
        item = self.read(clip, frames, Augment.whole(clip.size), [reverse] * count, camera)
        return {**item, "key": clip.name, "frames": [clip.stems[i] for i in frames]}


def bounce(position: int, length: int) -> tuple[int, bool]:
    """Frame number and whether time runs backwards there, for a clip that is played back and forth: 0 1 2 1 0 1 ..."""
    if position < length:
        return position, False
    period = max(2 * (length - 1), 1)
    phase = position % period
    return (phase, False) if phase < length else (period - phase, True)


@DATASETS.register("TrainDatasetRGBSpike", given=("seed",))
class TrainDatasetRGBSpike(_TrainClips):
    """Random crops of blurry RGB frames, their spikes and their sharp frames.

    Items: lq (T, 3, h, w), spike (T, S, h, w), gt (T, 3, s h, s w) float32, key "clip/first_frame".
    lq_folder: name of the blurry frames within a clip, where it has such folders ("blur" or "blur_gamma").
    camera: changes of the spike camera to train against, "perturb" or its options; null for none.
    Clips shorter than num_frame are played back and forth.
    """

    def __init__(
        self,
        dataroot_gt: str,
        dataroot_lq: str,
        dataroot_spike: str,
        num_frame: int,
        gt_size: int,
        spike: SpikeSection = "dat",
        camera: CameraSection = None,
        lq_folder: str = "blur",
        meta_info_file: str | None = None,
        filename_tmpl: str | None = None,
        filename_ext: str = "png",
        io_backend: IoSection = "disk",
        interval_list: list[int] | tuple[int, ...] = (1,),
        random_reverse: bool = False,
        use_hflip: bool = False,
        use_rot: bool = False,
        cache_data: bool = False,
        seed: int = 0,
    ) -> None:
        source = Source(
            dataroot_lq, dataroot_gt, dataroot_spike, lq_folder, meta_info_file, filename_tmpl, filename_ext,
            build_spikes(spike, dataroot_spike, "datasets.train.spike"),
        )  # fmt: skip
        super().__init__(
            source, num_frame=num_frame, gt_size=gt_size, interval_list=list(interval_list),
            random_reverse=random_reverse, use_hflip=use_hflip, use_rot=use_rot, io_backend=io_backend,
            cache_data=cache_data, seed=seed, camera=camera,
        )  # fmt: skip


@DATASETS.register("VideoRecurrentTrainDataset", given=("seed",))
class VideoRecurrentTrainDataset(_TrainClips):
    """As TrainDatasetRGBSpike, without spikes; KAIR's name and keys.

    val_partition: leave out the clips of REDS that are kept for validation.
    """

    def __init__(
        self,
        dataroot_gt: str,
        dataroot_lq: str,
        num_frame: int,
        gt_size: int,
        lq_folder: str = "blur",
        meta_info_file: str | None = None,
        filename_tmpl: str | None = None,
        filename_ext: str = "png",
        io_backend: IoSection = "disk",
        interval_list: list[int] | tuple[int, ...] = (1,),
        random_reverse: bool = False,
        use_hflip: bool = False,
        use_rot: bool = False,
        cache_data: bool = False,
        val_partition: Literal["REDS4", "official"] | None = None,
        seed: int = 0,
    ) -> None:
        source = Source(
            dataroot_lq,
            dataroot_gt,
            None,
            lq_folder,
            meta_info_file,
            filename_tmpl,
            filename_ext,
            left_out=held_out(val_partition),
        )
        super().__init__(
            source, num_frame=num_frame, gt_size=gt_size, interval_list=list(interval_list),
            random_reverse=random_reverse, use_hflip=use_hflip, use_rot=use_rot, io_backend=io_backend,
            cache_data=cache_data, seed=seed,
        )  # fmt: skip


@DATASETS.register("TestDatasetRGBSpike", given=("seed",))
class TestDatasetRGBSpike(_TestClips):
    """Whole clips with their spikes. dataroot_gt: null for real data; num_frame: only so many frames, -1 for all."""

    __test__ = False  # no test case, whatever pytest reads into the name

    def __init__(
        self,
        dataroot_lq: str,
        dataroot_spike: str,
        dataroot_gt: str | None = None,
        spike: SpikeSection = "dat",
        camera: CameraSection = None,
        lq_folder: str = "blur",
        meta_info_file: str | None = None,
        filename_tmpl: str | None = None,
        filename_ext: str = "png",
        io_backend: IoSection = "disk",
        num_frame: int = -1,
        cache_data: bool = False,
        seed: int = 0,
    ) -> None:
        source = Source(
            dataroot_lq, dataroot_gt, dataroot_spike, lq_folder, meta_info_file, filename_tmpl, filename_ext,
            build_spikes(spike, dataroot_spike, "datasets.test.spike"),
        )  # fmt: skip
        super().__init__(
            source, num_frame=num_frame, io_backend=io_backend, cache_data=cache_data, seed=seed, camera=camera
        )


@DATASETS.register("VideoRecurrentTestDataset", given=("seed",))
class VideoRecurrentTestDataset(_TestClips):
    """As TestDatasetRGBSpike, without spikes; KAIR's name and keys."""

    def __init__(
        self,
        dataroot_lq: str,
        dataroot_gt: str | None = None,
        lq_folder: str = "blur",
        meta_info_file: str | None = None,
        filename_tmpl: str | None = None,
        filename_ext: str = "png",
        io_backend: IoSection = "disk",
        num_frame: int = -1,
        cache_data: bool = False,
        seed: int = 0,
    ) -> None:
        source = Source(dataroot_lq, dataroot_gt, None, lq_folder, meta_info_file, filename_tmpl, filename_ext)
        super().__init__(source, num_frame=num_frame, io_backend=io_backend, cache_data=cache_data, seed=seed)

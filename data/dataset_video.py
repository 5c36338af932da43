"""The datasets of clips: RGB frames with spikes, and the datasets of KAIR without spikes.

KAIR is the program in which VRT was published. The datasets without spikes have its names and keys,
so that its option files work here.

Each dataset is a class, and `dataset_type` in an option file names it. The keys of its section are
in a class named ...Keys, which combines base classes of data/clip_options.py: `TrainKeys` has the
keys of `Crops`, `Spikes` and `ClipFiles`. `DATASETS.register` puts a dataset and its keys together.
Its argument `given` names what the program passes to the constructor beside the section.

The datasets derive from `TrainClips` (random crops) or `TestClips` (whole clips) in
data/clip_dataset.py, and override only what differs:

* `places`: which keys name the folders,
* `frames_of`: which frames of the clip are read,
* `transform`: what is done with a finished training sample,
* `may_share_frames`: whether lq and gt may be the same files.

What must stay:

* names and keys, because option files have them (test_the_files_of_kair_load_unchanged),
* the order of random draws, because a resumed run must see the same samples
  (test_a_seed_gives_the_noise_that_it_always_gave).

Free to add: a key with a default that leaves all samples as they are, or a dataset in a file of its
own (docs/extending.md).

Tests: tests/parts/data/test_dataset_video_rgbspike.py, tests/stories/test_kair_files.py (KAIR's
datasets), tests/stories/test_protocols.py (published test protocols)
"""

import zlib
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from data.clip_dataset import TestClips, TrainClips
from data.clip_options import (
    ClipFiles,
    Crops,
    FrameFiles,
    Root,
    SharpFiles,
    Spikes,
    WholeClips,
)
from data.select_dataset import DATASETS
from utils.errors import OptionError
from utils.random_streams import published_stream

# Largest change by the option color_jitter. Brightness, contrast and saturation are multiplied by
# 0.95 to 1.05. The hue is turned by up to 5 % of the colour circle. Another value would change the
# samples of existing runs.
JITTER = 0.05


# ---- RGB and spikes --------------------------------------------------------------------------


class SpikeFiles(Spikes, ClipFiles):
    """Folders of a dataset with spikes."""

    dataroot_spike: Root = Field(description="Folder of the spike files.")
    dataroot_gt_instants: Root | None = Field(
        None,
        description="Folder with several sharp frames for each blurry frame; null: there is no "
        "such folder.",
    )


class TrainKeys(Crops, SpikeFiles):
    """Keys of TrainDatasetRGBSpike."""


# given: the constructor also gets the seed.
@DATASETS.register("TrainDatasetRGBSpike", given=("seed",), section=TrainKeys)
class TrainDatasetRGBSpike(TrainClips):
    """Random crops of blurry RGB frames, their spikes and their sharp frames.

    Items: lq (T, 3, h, w), spike (T, S, h, w), gt (T, 3, s h, s w) float32, key "clip/first_frame".
    T is the number of frames, S the channels of spikes of a frame, s the scale of the network.
    Clips shorter than num_frame are played back and forth.

    With dataroot_gt_instants, an item also has gt_instants (T, 3 K, s h, s w): K sharp frames of
    each exposure in the order of time.
    """

    # {key of former versions: its old default}. An old option file with this value is accepted, and
    # the key has no effect. Another value is refused.
    GONE: ClassVar[dict[str, Any]] = {"rate_windows": 0}


class TestKeys(WholeClips, SpikeFiles):
    """Keys of TestDatasetRGBSpike."""

    __test__ = False  # not a test case for pytest


# given: the constructor also gets the seed.
@DATASETS.register("TestDatasetRGBSpike", given=("seed",), section=TestKeys)
class TestDatasetRGBSpike(TestClips):
    """Whole clips with their spikes. The tensors have the form of TrainDatasetRGBSpike."""


# ---- RGB: deblurring and super-resolution ----------------------------------------------------


class RecurrentTrainKeys(Crops, SharpFiles, ClipFiles):
    """Keys of VideoRecurrentTrainDataset."""

    val_partition: Literal["REDS4", "official"] | None = Field(
        None, description="Leave out the REDS clips kept for validation."
    )


# given: the constructor also gets the seed.
@DATASETS.register("VideoRecurrentTrainDataset", given=("seed",), section=RecurrentTrainKeys)
class VideoRecurrentTrainDataset(TrainClips):
    """The same as TrainDatasetRGBSpike, but without spikes. Name and keys are as in KAIR."""


# ---- RGB: denoising --------------------------------------------------------------------------


class DenoisingTrainKeys(Crops, SharpFiles, FrameFiles):
    """Keys of VideoRecurrentTrainNonblindDenoisingDataset."""

    dataroot_lq: Root | None = Field(
        None, description="In denoising: null, or the same as dataroot_gt."
    )
    sigma_min: float = Field(0.0, ge=0, le=255, description="Lowest noise level, of 255.")
    sigma_max: float = Field(50.0, ge=0, le=255, description="Highest noise level, of 255.")


# given: the constructor also gets the seed.
@DATASETS.register(
    "VideoRecurrentTrainNonblindDenoisingDataset", given=("seed",), section=DenoisingTrainKeys
)
class VideoRecurrentTrainNonblindDenoisingDataset(TrainClips):
    """The same as VideoRecurrentTrainDataset, but noise is added to the sharp frames.
    Name and keys are as in KAIR.

    lq (T, 4, h, w): channels 0 ... 2 are the noisy frames, and channel 3 is the noise map. A
    network with netG.nonblind_denoising needs the noise map.

    The noise level sigma is drawn uniformly, once for each sample. The noise is drawn for each
    pixel and channel. The noise map is sigma / 255 everywhere. Noisy values are not clipped to
    [0, 1]. Sigma and noise depend only on (seed, epoch, index).
    """

    @classmethod
    def places(cls, section: DenoisingTrainKeys) -> dict[str, Any]:
        """Return the folders: the sharp frames are read as lq, and there is no folder of gt.

        `transform` makes lq and gt from these frames. Raises OptionError for keys that contradict
        one another.
        """
        _refuse_other_blurry_frames(section)
        _refuse_empty_range(section)
        places = super().places(section)
        places["dataroot_lq"] = section.dataroot_gt
        places["dataroot_gt"] = None
        return places

    def transform(self, item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the sample with noisy frames as lq (T, 4, h, w), and the sharp frames as gt.

        item: its "lq" are the sharp frames (T, 3, h, w).
        rng: the generator of the sample.
        """
        gt = item["lq"]  # the sharp frames, see `places`
        # What must stay: first sigma is drawn, then the noise. Another order would give other
        # samples.
        sigma = rng.uniform(self.options["sigma_min"], self.options["sigma_max"])
        noisy = add_noise(gt, sigma, rng)
        noise_map = torch.full_like(gt[:, :1], sigma / 255)  # (T, 1, h, w)
        lq = torch.cat((noisy, noise_map), dim=1)
        return {**item, "lq": lq, "gt": gt}


class RecurrentTestKeys(WholeClips, ClipFiles):
    """Keys of VideoRecurrentTestDataset."""

    sigma: float | None = Field(
        None, ge=0, le=255, description="Noise level of a denoising test, of 255; null: no noise."
    )


# given: the constructor also gets the seed.
@DATASETS.register("VideoRecurrentTestDataset", given=("seed",), section=RecurrentTestKeys)
class VideoRecurrentTestDataset(TestClips):
    """The same as TestDatasetRGBSpike, but without spikes. Name and keys are as in KAIR.

    If sigma is given, Gaussian noise is added to the frames of dataroot_lq. The noise depends only
    on the seed and on the names of clip and frame. So the scores do not depend on the number of
    ranks or on the tiles.
    """

    # KAIR's test sections give no filename_ext, and some of its test sets are JPEG.
    accepts_other_images = True

    @classmethod
    def may_share_frames(cls, section: RecurrentTestKeys) -> bool:
        """Return whether dataroot_lq and dataroot_gt may have the same files.

        They may be the same in a denoising test, because it adds noise to the frames of
        dataroot_lq.
        """
        return section.sigma is not None

    def read_frames(
        self, index: int, first: int, count: int, reverse: bool = False
    ) -> dict[str, Any]:
        """Return frames first ... first + count - 1 of a clip, with noise if sigma is given.

        index: number of the clip.
        reverse: has no effect here, because these clips have no spikes.
        """
        item = super().read_frames(index, first, count, reverse)
        sigma = self.options["sigma"]
        if sigma is None:
            return item
        noisy_frames = []
        # item["frames"] are the names of the frames, item["lq"] (T, 3, h, w) are their pixels.
        for stem, frame in zip(item["frames"], item["lq"], strict=True):
            # The generator depends on the name of the frame, because several tiles may read one
            # frame and must see the same noise. crc32 turns the name into a number. From the seed
            # and this number, `published_stream` makes the generator. The newer function
            # `random_stream` would make a generator of other noise, so published scores could not
            # be computed again.
            name = f"{item['key']}/{stem}"
            number = zlib.crc32(name.encode())
            rng = published_stream(self.seed, number)
            noisy_frames.append(add_noise(frame, sigma, rng))
        item["lq"] = torch.stack(noisy_frames)
        return item


def add_noise(frames: torch.Tensor, sigma: float, rng: np.random.Generator) -> torch.Tensor:
    """Add white Gaussian noise of standard deviation sigma / 255 to `frames` in [0, 1].

    The result is not clipped, so values may be below 0 or above 1.
    """
    drawn = rng.standard_normal(frames.shape, dtype=np.float32)
    noise = torch.from_numpy(drawn).mul_(sigma / 255)
    return frames + noise


def _refuse_other_blurry_frames(section: DenoisingTrainKeys) -> None:
    """Refuse a dataroot_lq that differs from dataroot_gt.

    The noisy frames are made of the sharp frames. So frames in another folder would never be read.
    """
    if section.dataroot_lq in (None, section.dataroot_gt):
        return
    raise OptionError(
        what=f"datasets.train.dataroot_lq is {section.dataroot_lq}",
        where="datasets.train.dataroot_lq",
        expected="the same as dataroot_gt, of which the noisy frames are made",
        do="remove dataroot_lq",
    )


def _refuse_empty_range(section: DenoisingTrainKeys) -> None:
    """Refuse a lowest noise level above the highest one."""
    low = section.sigma_min
    high = section.sigma_max
    if low <= high:
        return
    raise OptionError(
        what=f"datasets.train.sigma_min is {low:g}, sigma_max {high:g}",
        where="datasets.train.sigma_min",
        expected="at most sigma_max",
        do="correct sigma_min or sigma_max",
    )


# ---- RGB: Vimeo-90K --------------------------------------------------------------------------


class Septuplets(ClipFiles):
    """Folders of Vimeo-90K. A clip has seven frames, im1 ... im7, and is called a septuplet."""

    meta_info_file: Root = Field(description="List of the clips to use.")


class VimeoTrainKeys(Crops, SharpFiles, Septuplets):
    """Keys of VideoRecurrentTrainVimeoDataset."""

    pad_sequence: bool = Field(False, description="Repeat the last frame: 7 frames become 8.")


# given: the constructor also gets the seed.
@DATASETS.register("VideoRecurrentTrainVimeoDataset", given=("seed",), section=VimeoTrainKeys)
class VideoRecurrentTrainVimeoDataset(TrainClips):
    """Random crops of Vimeo-90K clips, one sample for each clip. Name and keys are as in KAIR."""

    # With `septuplets`, data/clip_dataset.py makes one sample of each clip, and not one of each
    # frame. The modules of data/clips/ expect im1 ... im7 in each clip.
    septuplets = True

    def transform(self, item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the sample with its last frame repeated, if pad_sequence is set.

        item: {"lq" or "gt": frames (T, 3, h, w)}.
        """
        if not self.options["pad_sequence"]:
            return item
        padded = {}
        for kind, frames in item.items():
            last_frame = frames[-1:]  # (1, c, h, w)
            padded[kind] = torch.cat((frames, last_frame))
        return padded


class VFIKeys(Crops, SharpFiles, Septuplets):
    """Keys of VideoRecurrentTrainVimeoVFIDataset. VFI is video frame interpolation."""

    temporal_scale: Literal[2] = Field(
        2, description="2: the network gets every second frame (interpolation)."
    )
    color_jitter: bool = Field(
        False, description="Change brightness, contrast, saturation and hue by up to 5 %."
    )


# given: the constructor also gets the seed.
@DATASETS.register("VideoRecurrentTrainVimeoVFIDataset", given=("seed",), section=VFIKeys)
class VideoRecurrentTrainVimeoVFIDataset(TrainClips):
    """Samples for frame interpolation from Vimeo-90K, one for each clip.
    Name and keys are as in KAIR.

    lq (n, 3, h, w): every second frame of num_frame frames, e.g. im1, im3, im5 and im7 of seven
    frames, so n = 4. n must equal netG.img_size[0].
    gt (1, 3, h, w): the frame in the middle, im4.
    """

    septuplets = True

    @classmethod
    def may_share_frames(cls, section: VFIKeys) -> bool:
        """Return True: lq and gt come from the same files, but are different frames of a clip."""
        return True

    def frames_of(self, kind: str, frames: list[int]) -> list[int]:
        """Return every second frame for lq, and the middle frame for gt.

        From the frames 0 ... 6 (im1 ... im7), lq gets 0, 2, 4, 6, and gt gets 3.
        """
        if kind == "lq":
            return frames[::2]
        middle = len(frames) // 2
        return [frames[middle]]

    def transform(self, item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the sample with changed colours, if color_jitter is set.

        item: lq (n, 3, h, w) and gt (1, 3, h, w). All frames get the same change.
        rng: the generator of the sample.
        """
        if not self.options["color_jitter"]:
            return item
        # All frames must get the same change. So gt is appended to lq before the change, and is
        # split off afterwards.
        frames = torch.cat((item["lq"], item["gt"]))  # (n + 1, 3, h, w)
        changed = jitter_colors(frames, rng)
        return {"lq": changed[:-1], "gt": changed[-1:]}


def jitter_colors(frames: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Change brightness, contrast, saturation and hue of frames (T, 3, h, w) in [0, 1].

    The changes are the same for all frames, and are made in random order. Returns new frames.
    """
    # torchvision is imported here and not at the top, because it imports torch's compiler. This
    # takes seconds.
    from torchvision.transforms import functional as F

    # What must stay: the order of these draws, and the order of `changes`. The permutation below
    # has the numbers of the changes. Another order would give other samples.
    brightness, contrast, saturation = rng.uniform(1 - JITTER, 1 + JITTER, size=3)
    hue = rng.uniform(-JITTER, JITTER)
    changes = (
        (F.adjust_brightness, brightness),
        (F.adjust_contrast, contrast),
        (F.adjust_saturation, saturation),
        (F.adjust_hue, hue),
    )
    for change_index in rng.permutation(len(changes)):
        change, amount = changes[change_index]
        frames = change(frames, float(amount))
    return frames


class VimeoTestKeys(WholeClips, Septuplets):
    """Keys of VideoTestVimeo90KDataset."""

    temporal_scale: Literal[1, 2] = Field(
        1, description="2: the network gets every second frame (interpolation)."
    )
    pad_sequence: bool = Field(False, description="Repeat the last frame: 7 frames become 8.")


# given: the constructor also gets the seed.
@DATASETS.register("VideoTestVimeo90KDataset", given=("seed",), section=VimeoTestKeys)
class VideoTestVimeo90KDataset(TestClips):
    """Whole Vimeo-90K clips. Name and keys are as in KAIR.

    With temporal_scale 2 the network gets im1, im3, im5 and im7, and its frame is compared with
    im4. For super-resolution, set val.center_frame_only to score only im4, because published
    results score only im4.
    """

    septuplets = True

    @classmethod
    def may_share_frames(cls, section: VimeoTestKeys) -> bool:
        """Return whether lq and gt may be the same files.

        They may be the same in interpolation, because the scored frame is not an input of the
        network.
        """
        return section.temporal_scale == 2

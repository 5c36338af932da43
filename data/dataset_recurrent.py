"""Clips of RGB frames without spikes, under the names and keys of KAIR: restoration, super-resolution, denoising."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from data.clip_dataset import TestClips, TrainClips
from data.clip_options import ClipFiles, Crops, SharpFiles, WholeClips
from data.noise import add_noise
from data.select_dataset import DATASETS
from utils.errors import OptionError
from utils.image import IMAGE_SUFFIXES
from utils.random_streams import published_stream


class RecurrentTrainKeys(Crops, SharpFiles, ClipFiles):
    val_partition: Literal["REDS4", "official"] | None = Field(
        None, description="Leave out the REDS clips kept for validation."
    )


@DATASETS.register("VideoRecurrentTrainDataset", given=("seed",))
class VideoRecurrentTrainDataset(TrainClips):
    """As TrainDatasetRGBSpike, without spikes; KAIR's name and keys."""

    def __init__(self, section: RecurrentTrainKeys, seed: int = 0) -> None:
        super().__init__(section, seed)


class DenoisingTrainKeys(Crops, SharpFiles, ClipFiles):
    dataroot_lq: str | None = Field(None, description="In denoising: null, or the same as dataroot_gt.")
    sigma_min: float = Field(0.0, ge=0, le=255, description="Lowest noise level, as pixels have 0 ... 255.")
    sigma_max: float = Field(50.0, ge=0, le=255, description="Highest noise level, as pixels have 0 ... 255.")


@DATASETS.register("VideoRecurrentTrainNonblindDenoisingDataset", given=("seed",))
class VideoRecurrentTrainNonblindDenoisingDataset(TrainClips):
    """As VideoRecurrentTrainDataset, with noise added to the sharp frames; KAIR's name and keys.

    The noise level sigma is drawn uniformly for each sample, the noise for each pixel and channel. lq (T, 4, h, w) are
    the noisy frames, not clipped, and the noise map sigma / 255 that a network with netG.nonblind_denoising takes.
    Sigma and noise depend only on (seed, epoch, index).
    """

    def __init__(self, section: DenoisingTrainKeys, seed: int = 0) -> None:
        super().__init__(section, seed)
        self.sigmas = section.sigma_min, section.sigma_max

    @classmethod
    def places(cls, section: DenoisingTrainKeys) -> dict[str, Any]:
        """The sharp frames alone, read as lq. Raises OptionError for keys that contradict one another."""
        if section.dataroot_lq not in (None, section.dataroot_gt):
            raise OptionError(
                f"datasets.train.dataroot_lq is {section.dataroot_lq}", "datasets.train.dataroot_lq",
                "the same as dataroot_gt: the noisy frames are made from the sharp ones", "remove dataroot_lq",
            )  # fmt: skip
        if section.sigma_min > section.sigma_max:
            raise OptionError(
                f"datasets.train.sigma_min is {section.sigma_min:g}, sigma_max {section.sigma_max:g}",
                "datasets.train.sigma_min", "at most sigma_max", "correct one of them",
            )  # fmt: skip
        return {**super().places(section), "dataroot_lq": section.dataroot_gt, "dataroot_gt": None}

    def transform(self, item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        gt, sigma = item["lq"], rng.uniform(*self.sigmas)
        noise_map = torch.full_like(gt[:, :1], sigma / 255)
        return {**item, "lq": torch.cat((add_noise(gt, sigma, rng), noise_map), dim=1), "gt": gt}


def picture_extension(root: Path, folder: str, expected: str) -> str:
    """`expected`, or the ending of the pictures in the first clip below `root` if they all have another one."""
    clips = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    inner = [path for path in (clips[0] / folder, clips[0]) if path.is_dir()] if clips else []
    found = {path.suffix[1:] for path in inner[0].iterdir() if path.suffix in IMAGE_SUFFIXES} if inner else set()
    return found.pop() if len(found) == 1 and expected not in found else expected


class RecurrentTestKeys(WholeClips, ClipFiles):
    sigma: float | None = Field(
        None, ge=0, le=255, description="Noise level, as pixels have 0 ... 255, to test a denoiser; null: no noise."
    )


@DATASETS.register("VideoRecurrentTestDataset", given=("seed",))
class VideoRecurrentTestDataset(TestClips):
    """As TestDatasetRGBSpike, without spikes; KAIR's name and keys.

    sigma: white Gaussian noise is added to the frames of dataroot_lq. It depends only on the seed and the names of clip
    and frame, so that scores are the same for any number of ranks and any tiles.
    """

    def __init__(self, section: RecurrentTestKeys, seed: int = 0) -> None:
        super().__init__(section, seed)
        self.sigma = section.sigma

    @classmethod
    def places(cls, section: RecurrentTestKeys) -> dict[str, Any]:
        """KAIR's test sections give no filename_ext, and some of its test sets are JPEG."""
        ext = picture_extension(Path(section.dataroot_lq), section.lq_folder, section.filename_ext)
        return {**super().places(section), "filename_ext": ext}

    def read_frames(self, index: int, first: int, count: int, reverse: bool = False) -> dict[str, Any]:
        item = super().read_frames(index, first, count, reverse)
        if self.sigma is not None:
            seeds = ([self.seed, zlib.crc32(f"{item['key']}/{stem}".encode())] for stem in item["frames"])
            noisy = [
                add_noise(frame, self.sigma, published_stream(*seed))
                for frame, seed in zip(item["lq"], seeds, strict=True)
            ]
            item["lq"] = torch.stack(noisy)
        return item

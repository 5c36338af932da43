"""Vimeo-90K: septuplets, that is, independent clips of seven frames, for super-resolution and frame interpolation.

Files: <root>/00001/0001/im1.png ... im7.png, or an LMDB with the keys 00001/0001/im1; a meta file lists the clips of a
split. Data set: Xue et al., Video Enhancement with Task-Oriented Flow, IJCV 2019.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from data.clip import Clip
from data.clip_dataset import ClipDataset, TestClips, TrainClips
from data.clip_options import ClipFiles, Crops, SharpFiles, WholeClips
from data.select_dataset import DATASETS

JITTER = 0.05  # largest relative change of brightness, contrast and saturation; of the hue, in turns of the circle


class Septuplets(ClipFiles):
    meta_info_file: str = Field(description='List of the clips to use, e.g. "00001/0001 7 (256,448,3)".')


class OfSeptuplets(ClipDataset):
    """Reads the clips of the meta file only: the folders of Vimeo-90K hold 91,701."""

    @classmethod
    def places(cls, section: Any) -> dict[str, Any]:
        return {**super().places(section), "septuplets": True}


class TrainSeptuplets(OfSeptuplets, TrainClips):
    """One sample for each clip: its middle num_frame frames."""

    def samples_of(self, clip: Clip) -> int:
        return 1

    def first_of(self, sample: int, last: int, rng: np.random.Generator) -> int:
        return max(last, 0) // 2


class VimeoTrainKeys(Crops, SharpFiles, Septuplets):
    pad_sequence: bool = Field(False, description="Repeat the last frame: 7 frames become 8.")


@DATASETS.register("VideoRecurrentTrainVimeoDataset", given=("seed",))
class VideoRecurrentTrainVimeoDataset(TrainSeptuplets):
    """Random crops of Vimeo-90K clips and their sharp frames, one sample for each clip; KAIR's name and keys."""

    def __init__(self, section: VimeoTrainKeys, seed: int = 0) -> None:
        super().__init__(section, seed)
        self.pad_sequence = section.pad_sequence

    def transform(self, item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if not self.pad_sequence:
            return item
        return {kind: torch.cat((frames, frames[-1:])) for kind, frames in item.items()}


class VFIKeys(Crops, SharpFiles, Septuplets):
    temporal_scale: Literal[2] = Field(2, description="2: every second frame is given, for frame interpolation.")
    color_jitter: bool = Field(
        False,
        description="Change brightness, contrast, saturation and hue by up to 5 %, alike in all frames of a sample.",
    )


@DATASETS.register("VideoRecurrentTrainVimeoVFIDataset", given=("seed",))
class VideoRecurrentTrainVimeoVFIDataset(TrainSeptuplets):
    """Samples for frame interpolation from Vimeo-90K, one for each clip; KAIR's name and keys.

    lq (n, 3, h, w): every second of num_frame frames, im1, im3, im5, im7 of seven; gt (1, 3, h, w): the one in the
    middle, im4. n is netG.img_size[0].
    """

    def __init__(self, section: VFIKeys, seed: int = 0) -> None:
        super().__init__(section, seed)
        self.temporal_scale, self.color_jitter = section.temporal_scale, section.color_jitter

    def frames_of(self, kind: str, frames: list[int]) -> list[int]:
        return frames[:: self.temporal_scale] if kind == "lq" else [frames[len(frames) // 2]]

    def transform(self, item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if not self.color_jitter:
            return item
        frames = jitter_colors(torch.cat((item["lq"], item["gt"])), rng)
        return {"lq": frames[:-1], "gt": frames[-1:]}


def jitter_colors(frames: Tensor, rng: np.random.Generator) -> Tensor:
    """(T, 3, h, w) in [0, 1] -> the same with other brightness, contrast, saturation and hue, in random order."""
    from torchvision.transforms import functional as F  # imports torch's compiler, which takes seconds

    brightness, contrast, saturation = rng.uniform(1 - JITTER, 1 + JITTER, 3)
    changes = (
        (F.adjust_brightness, brightness), (F.adjust_contrast, contrast), (F.adjust_saturation, saturation),
        (F.adjust_hue, rng.uniform(-JITTER, JITTER)),
    )  # fmt: skip
    for number in rng.permutation(len(changes)):
        change, amount = changes[number]
        frames = change(frames, float(amount))
    return frames


class VimeoTestKeys(WholeClips, Septuplets):
    temporal_scale: Literal[1, 2] = Field(
        1, description="2: every second frame is given, for frame interpolation; 1: all frames are."
    )
    pad_sequence: bool = Field(
        False, description="In testing: repeat the last frame before restoring, as val.pad_seq does."
    )


@DATASETS.register("VideoTestVimeo90KDataset", given=("seed",))
class VideoTestVimeo90KDataset(OfSeptuplets, TestClips):
    """Whole Vimeo-90K clips; KAIR's name and keys.

    With temporal_scale 2 the network gets im1, im3, im5, im7 and its frame is compared with im4. For super-resolution
    set val.center_frame_only to score im4 alone, as published.
    """

    def __init__(self, section: VimeoTestKeys, seed: int = 0) -> None:
        super().__init__(section, seed)

    def count_folders(self) -> int:
        """0: the meta file says which clips belong to the test split."""
        return 0

"""Clips of blurry RGB frames, sharp RGB frames and spike files."""

from __future__ import annotations

from pydantic import Field

from data.clip_dataset import TestClips, TrainClips
from data.clip_options import Crops, Instants, SpikeFiles, WholeClips
from data.select_dataset import DATASETS


class TrainKeys(Crops, Instants, SpikeFiles):
    rate_windows: int = Field(
        0,
        ge=0,
        description='In training: firing rates in so many parts of each exposure, for the loss "reblur"; 0: none.',
    )


@DATASETS.register("TrainDatasetRGBSpike", given=("seed",))
class TrainDatasetRGBSpike(TrainClips):
    """Random crops of blurry RGB frames, their spikes and their sharp frames.

    Items: lq (T, 3, h, w), spike (T, S, h, w), gt (T, 3, s h, s w) float32, key "clip/first_frame".
    Clips shorter than num_frame are played back and forth.

    With dataroot_gt_instants also gt_instants (T, 3 K, s h, s w): K sharp frames of each exposure in the order of time.
    With rate_windows W also rates (T, W, h, w): spikes per plane, as linear light, in W equal parts of the exposure,
    evenly around the instant of gt.
    """

    def __init__(self, section: TrainKeys, seed: int = 0) -> None:
        super().__init__(section, seed)


class TestKeys(WholeClips, Instants, SpikeFiles):
    __test__ = False


@DATASETS.register("TestDatasetRGBSpike", given=("seed",))
class TestDatasetRGBSpike(TestClips):
    """Whole clips with their spikes, as in training."""

    def __init__(self, section: TestKeys, seed: int = 0) -> None:
        super().__init__(section, seed)

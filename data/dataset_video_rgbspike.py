"""Clips of blurry RGB frames, sharp RGB frames and spike files."""

from __future__ import annotations

from data.clip_dataset import TestClips, TrainClips
from data.clip_options import Crops, SharpFiles, SpikeFiles, WholeClips
from data.select_dataset import DATASETS


class TrainKeys(Crops, SharpFiles, SpikeFiles):
    pass


@DATASETS.register("TrainDatasetRGBSpike", given=("seed",))
class TrainDatasetRGBSpike(TrainClips):
    """Random crops of blurry RGB frames, their spikes and their sharp frames.

    Items: lq (T, 3, h, w), spike (T, S, h, w), gt (T, 3, s h, s w) float32, key "clip/first_frame".
    Clips shorter than num_frame are played back and forth.
    """

    def __init__(self, section: TrainKeys, seed: int = 0) -> None:
        super().__init__(section, seed)


class TestKeys(WholeClips, SpikeFiles):
    __test__ = False


@DATASETS.register("TestDatasetRGBSpike", given=("seed",))
class TestDatasetRGBSpike(TestClips):
    """Whole clips with their spikes, as in training."""

    def __init__(self, section: TestKeys, seed: int = 0) -> None:
        super().__init__(section, seed)

"""Datasets by name. A new dataset is a new data/dataset_<name>.py whose class registers itself here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

from utils.errors import OptionError
from utils.options.models import LoaderOptions
from utils.options.registry import Registry, import_parts

DATASETS = Registry("dataset", "dataset_type", base=LoaderOptions)


def build_dataset(section: LoaderOptions | Mapping[str, Any], split: str, seed: int) -> Dataset:
    """The dataset of a `datasets.<split>` section, or of a mapping with its keys (for notebooks).

    seed: the random numbers of a sample depend only on (seed, epoch, index).
    Raises OptionError for a dataset of the other split, DataError (with all problems) for wrong files.
    """
    section = DATASETS.resolve(section, f"datasets.{split}")
    name = section.dataset_type
    # A plain torch Dataset is one for training.
    is_training = {n: getattr(DATASETS.constructor(n), "is_training", True) for n in DATASETS.names()}
    if is_training[name] != (split == "train"):
        raise OptionError(
            f"datasets.{split}.dataset_type is {name}", f"datasets.{split}.dataset_type",
            f"a dataset for {'training' if split == 'train' else 'testing'}: "
            f"{', '.join(n for n in is_training if is_training[n] == (split == 'train'))}", "choose one of these",
        )  # fmt: skip
    return DATASETS.build(section, f"datasets.{split}", seed=seed)


import_parts("data", "dataset_*")

"""Datasets by name. A new dataset is a new data/dataset_<name>.py whose class registers itself here."""

from typing import Any

from torch.utils.data import Dataset

from utils.errors import OptionError
from utils.options.models import LoaderOptions
from utils.options.section import Registry, import_parts

DATASETS = Registry("dataset", "dataset_type", base=LoaderOptions)


def build_dataset(section: LoaderOptions | dict[str, Any], split: str, seed: int) -> Dataset:
    """The dataset of a `datasets.<split>` section, or of a mapping with its keys (for notebooks).

    seed: the random numbers of a sample depend only on (seed, epoch, index).
    Raises OptionError for a dataset of the other split, DataError (with all problems) for wrong files.
    """
    where, is_training = f"datasets.{split}", split == "train"
    section = DATASETS.resolve(section, where)
    fit = [
        name
        for name in DATASETS.names()
        if _is_for_training(DATASETS.model(name).constructor) == is_training
    ]
    if section.dataset_type not in fit:
        key, expected = (
            f"{where}.dataset_type",
            f"a dataset for {'training' if is_training else 'testing'}",
        )
        raise OptionError(
            f"{key} is {section.dataset_type}", key, f"{expected}: {', '.join(fit)}", "choose one"
        )
    return DATASETS.build(section, where, seed=seed)


def _is_for_training(dataset: type) -> bool:
    """Whether a dataset is one to train on: a plain torch Dataset is, one with readers is not."""
    return getattr(dataset, "is_training", not hasattr(dataset, "readers"))


import_parts("data", "dataset_*")

"""Datasets by name. A new dataset is a new data/dataset_<name>.py whose class registers itself."""

from typing import Any

from torch.utils.data import Dataset

from utils.errors import OptionError
from utils.options.models import LoaderOptions
from utils.options.section import Registry, import_parts

DATASETS = Registry("dataset", "dataset_type", base=LoaderOptions)


def build_dataset(section: LoaderOptions | dict[str, Any], split: str, seed: int) -> Dataset:
    """Return the dataset of a section `datasets.<split>`, or of a mapping with its keys.

    split: "train" or "test". seed: the random numbers of a sample depend only on (seed, epoch,
    index).
    Raises OptionError for a dataset of the other split, DataError (with all problems) for wrong
    files.
    """
    where = f"datasets.{split}"
    resolved: Any = DATASETS.resolve(section, where)
    is_training = split == "train"
    fitting = []
    for name in DATASETS.names():
        if _is_for_training(DATASETS.model(name).constructor) == is_training:
            fitting.append(name)
    if resolved.dataset_type not in fitting:
        purpose = "training" if is_training else "testing"
        raise OptionError(
            what=f"{where}.dataset_type is {resolved.dataset_type}",
            where=f"{where}.dataset_type",
            expected=f"a dataset for {purpose}: {', '.join(fitting)}",
            do="choose one",
        )
    return DATASETS.build(resolved, where, seed=seed)


def _is_for_training(dataset: Any) -> bool:
    """Whether a dataset is one to train on: a plain torch Dataset is, one with readers is not."""
    return getattr(dataset, "is_training", not hasattr(dataset, "readers"))


import_parts("data", "dataset_*")

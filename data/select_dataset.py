"""Choose a dataset by its name.

A new dataset is a new file data/dataset_<name>.py, whose class registers itself in `DATASETS`
(docs/extending.md). `build_dataset` makes the dataset of a section of the option file.

What must stay: the arguments and the errors of `build_dataset`, because the main programs and
users' scripts call it.

Tests: tests/parts/data/test_dataset_video_rgbspike.py, tests/stories/test_extending.py
"""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

from utils.errors import OptionError
from utils.options.loader_options import LoaderOptions
from utils.options.registry import Registry, import_parts
from utils.options.section import Section


class DatasetRegistry(Registry):
    """A registry whose error names a dataset that is in the section of the wrong split.

    The splits are "train" and "test". E.g. a training dataset in `datasets.test` lacks keys that
    only training needs, such as `num_frame`. An error about these keys would mislead the user,
    because the cause is the wrong name of the dataset.
    """

    def resolve(self, section: Section | Mapping[str, Any] | str, where: str) -> Any:
        """Return a section checked and completed with defaults, as `Registry.resolve` does.

        If the keys have an error and the dataset is for the other split, the error names the
        dataset. If the keys have no error, a dataset for the other split is not refused here,
        because the program need not read this split. E.g. main_test_vrt.py does not read
        `datasets.train`. For a split that is read, `build_dataset` refuses the dataset.
        """
        try:
            return super().resolve(section, where)
        except OptionError:
            _, _, split = where.rpartition(".")  # "datasets.test" -> "test"
            # A section is a mapping, or only the name of the dataset.
            name = section.get("dataset_type") if isinstance(section, Mapping) else section
            # If the dataset is for the other split, `refuse_wrong_purpose` raises its own error.
            if name in self.names():
                refuse_wrong_purpose(name, split)
            raise


DATASETS = DatasetRegistry("dataset", "dataset_type", base=LoaderOptions)


def build_dataset(section: LoaderOptions | dict[str, Any], split: str, seed: int) -> Dataset:
    """Return the dataset of a section `datasets.<split>`, or of a mapping with its keys.

    split: "train" or "test".
    seed: seed of the random numbers. A sample depends only on (seed, epoch, index).

    Raises OptionError if the dataset is not for this split, e.g. a test set as datasets.train, and
    DataError (with all problems) for wrong files.
    """
    where = f"datasets.{split}"
    resolved: Any = DATASETS.resolve(section, where)
    refuse_wrong_purpose(resolved.dataset_type, split)
    return DATASETS.build(resolved, where, seed=seed)


def refuse_wrong_purpose(dataset_type: str, split: str) -> None:
    """Raise OptionError if a dataset is not for this split, e.g. a test set as datasets.train.

    dataset_type: name of a registered dataset.
    split: "train" or "test".
    """
    where = f"datasets.{split}"
    is_training = split == "train"
    fitting_names = []  # names of the datasets for this split
    for name in DATASETS.names():
        dataset_class = DATASETS.model(name).constructor
        if _is_for_training(dataset_class) == is_training:
            fitting_names.append(name)
    if dataset_type not in fitting_names:
        purpose = "training" if is_training else "testing"
        raise OptionError(
            what=f"{where}.dataset_type is {dataset_type}",
            where=f"{where}.dataset_type",
            expected=f"a dataset for {purpose}: {', '.join(fitting_names)}",
            do="choose one of these datasets",
        )


def _is_for_training(dataset_class: Any) -> bool:
    """Return whether a dataset class is for training. If not, it is for testing.

    The attribute `is_training` decides, if the class has it. A user's class may lack it. Such a
    class is for testing if it has the method `readers`. If not, e.g. a plain torch Dataset, it is
    for training.
    """
    if hasattr(dataset_class, "is_training"):
        return dataset_class.is_training
    return not hasattr(dataset_class, "readers")


# Load every data/dataset_*.py, so that their classes register themselves. The call must be the last
# line, because these files import `DATASETS` from this module.
import_parts("data", "dataset_*")

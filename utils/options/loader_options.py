"""Keys of `datasets`: the loader of the clips, which reads samples in the background.

`datasets.train` and `datasets.test` also have the keys of their dataset, e.g. `gt_size`. These keys
stand in data/clip_options.py and data/dataset_video.py.

What must stay and what is free to change: see the head of models.py. How the keys are used:
data/loader.py.

Tests: tests/parts/utils/test_option.py; for the time-out tests/stories/test_checkpoint.py
(test_the_loader_speaks_before_the_watchdog_by_default)
"""

from typing import Any

from pydantic import Field

from utils.options.section import Section


class LoaderOptions(Section):
    """Keys of `datasets.train` and `datasets.test` that configure the loader; the others belong to
    the dataset.
    """

    name: str = Field("", description="A name for messages; no effect.")
    dataloader_shuffle: bool = Field(
        True, description="Draw a new order in each epoch (training only)."
    )
    dataloader_num_workers: int = Field(
        2, ge=0, description="Loader processes per GPU; 0 loads in the main process."
    )
    dataloader_batch_size: int = Field(
        1, ge=1, description="Clips per GPU and step (the log says the total)."
    )
    dataloader_persistent_workers: bool = Field(
        False, description="Keep the loader processes from epoch to epoch."
    )
    dataloader_prefetch_factor: int = Field(
        2, ge=1, description="Batches that each loader process prepares ahead."
    )
    dataloader_timeout_s: float | None = Field(
        None,
        gt=0,
        description="Seconds; a batch that takes longer stops the run. null: 4/5 of "
        "watchdog.stall_s.",
    )
    dataloader_epoch_repeat: int = Field(
        1, ge=1, description="Passes over the dataset that count as one epoch."
    )

    @property
    def spike_channels(self) -> int:
        """Return S, the number of spike channels of a sample, e.g. 12. S is 0 without spikes."""
        # `constructor` is the class of the data set that `dataset_type` names. The class of a data
        # set without spikes may lack the function `spike_channels`.
        dataset_class = self.constructor
        if not hasattr(dataset_class, "spike_channels"):
            return 0
        return dataset_class.spike_channels(self)

    @property
    def spike_data(self) -> dict[str, Any] | None:
        """Return the facts about the training spikes that a user of the weights needs.

        E.g. the spikes per plane at full light (`rate`). `ClipSources.spike_data`
        (data/clip_sources.py) lists the keys. Returns None for a data set without spikes. Reads the
        file dataset.json beside the spikes.
        """
        dataset_class = self.constructor
        if not hasattr(dataset_class, "spike_data"):
            return None
        return dataset_class.spike_data(self)


class DatasetsOptions(Section):
    """The clips of training and of tests, or null if there are none.

    Each section has the keys of its dataset and the keys of the loader.
    """

    train: LoaderOptions | None = Field(None, description="The training clips.")
    test: LoaderOptions | None = Field(None, description="The clips for validation and testing.")

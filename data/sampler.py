"""The order of the training samples and their ranks, a function of (seed, epoch), so a run can resume at any batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from utils.errors import OptionError
from utils.random_streams import published_stream


class ResumableDistributedSampler(Sampler[tuple[int, int]]):
    """Yields (epoch, index) for one rank.

    The order of an epoch is one permutation P of all samples, drawn from (seed, epoch). Global batch b is
    P[b G : (b + 1) G] with G = world_size * batch_size; rank r takes every world_size-th of it from r on. So a step has
    the same samples for any number of ranks with the same G. An incomplete last batch is dropped.

    The index comes with `epoch` because persistent workers do not see later changes of the dataset object.
    Set `start_batch` to the next global batch to resume within an epoch; `set_epoch` resets it to 0.
    Raises OptionError where the dataset cannot fill one global batch.
    """

    def __init__(
        self, dataset_len: int, *, world_size: int, rank: int, batch_size: int, seed: int, shuffle: bool = True
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self.dataset_len, self.world_size, self.rank = dataset_len, world_size, rank
        self.batch_size, self.seed, self.shuffle = batch_size, seed, shuffle
        self.epoch = self.start_batch = 0
        if dataset_len < self.global_batch:
            raise OptionError(
                f"{dataset_len} training samples are fewer than one batch of {self.global_batch}",
                "datasets.train",
                f"at least {world_size} ranks x {batch_size} samples each",
                "add clips, lower dataloader_batch_size or the number of ranks, or raise dataloader_epoch_repeat",
            )

    @property
    def global_batch(self) -> int:
        return self.world_size * self.batch_size

    @property
    def batches_per_epoch(self) -> int:
        return self.dataset_len // self.global_batch

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.start_batch = epoch, 0

    def order(self) -> np.ndarray:
        """(dataset_len,) sample indices of all ranks in the order of this epoch."""
        if not self.shuffle:
            return np.arange(self.dataset_len)
        return published_stream(self.seed, self.epoch).permutation(self.dataset_len)

    def __len__(self) -> int:
        """How many samples this rank has left in this epoch."""
        return (self.batches_per_epoch - self.start_batch) * self.batch_size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = self.order()
        for batch in range(self.start_batch, self.batches_per_epoch):
            start = batch * self.global_batch
            for index in order[start + self.rank : start + self.global_batch : self.world_size]:
                yield self.epoch, int(index)

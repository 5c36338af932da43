"""Choose which samples a rank reads in an epoch, and in which order.

The loader (data/loader.py) asks the sampler here for the samples of its rank. The order of the
samples in an epoch depends only on the seed and the epoch. Each step takes the next samples of this
order, as many as a global batch (the samples of all ranks in one step) has. So a run that resumes
within an epoch continues with the next sample. The numbers of ranks and workers may change if the
size of the global batch stays the same.

What must stay: the order of a seed and an epoch (test_a_seed_gives_the_order_that_it_always_gave).

Tests: tests/parts/data/test_sample_numbers.py, tests/parts/data/test_dataset_video_rgbspike.py (the
samples of each rank), tests/dist/test_resume.py (the order after a resume)
"""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from utils import random_streams
from utils.errors import OptionError
from utils.words import are, counted


class ResumableDistributedSampler(Sampler[tuple[int, int]]):
    """Yields pairs (epoch, index), one for each sample of one rank. index: number of the sample.

    A global batch has the samples of all ranks in one step: G = world_size * samples_per_step.
    The samples of an epoch are chosen in three steps:

    1. P is a permutation of all samples. P depends only on (seed, epoch).
    2. Global batch b is P[b G : (b + 1) G]. An incomplete last batch is dropped.
    3. Rank r takes every world_size-th sample of a global batch, beginning with number r.

    With the same G, a step has the same samples for any number of ranks. E.g. 2 ranks,
    samples_per_step 2 and P = 5 3 0 4 2 1: G is 4, so there is one global batch, 5 3 0 4. Rank 0
    gets 5 and 0, rank 1 gets 3 and 4.

    Each index comes with its epoch. Persistent workers have a copy of the dataset, so they would
    not see an epoch that is set later in the main process.

    What must stay: the result for each seed, epoch and G, because runs resume within an epoch.

    dataset_len: number of samples of an epoch.
    world_size: number of ranks.
    rank: number of this rank, from 0.
    samples_per_step: samples of one rank in a step, all its micro-batches together.
    seed: seed of the permutation.
    shuffle: if false, P is 0, 1, 2, ... in every epoch.
    Raises OptionError if the dataset cannot fill one global batch.
    """

    def __init__(
        self,
        dataset_len: int,
        *,
        world_size: int,
        rank: int,
        samples_per_step: int,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self.dataset_len = dataset_len
        self.world_size = world_size
        self.rank = rank
        self.samples_per_step = samples_per_step
        self.seed = seed
        self.shuffle = shuffle
        self.global_batch = world_size * samples_per_step
        self.batches_per_epoch = dataset_len // self.global_batch
        # The next iteration begins at global batch `start_batch` of `epoch`. The loader calls
        # `seek` before each epoch, which sets both numbers. An iteration changes neither number.
        self.epoch = 0
        self.start_batch = 0
        if dataset_len < self.global_batch:
            raise OptionError(
                what=f"{counted(dataset_len, 'training sample')} {are(dataset_len)} fewer than one "
                f"batch of {self.global_batch}",
                where="datasets.train",
                expected=f"at least {counted(world_size, 'rank')} x "
                f"{counted(samples_per_step, 'sample')} each",
                do="add clips, lower train.global_batch_size, train.accumulation_steps, "
                "dataloader_batch_size or the number of ranks, or raise dataloader_epoch_repeat",
            )

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Let the next iteration begin with global batch `batch` of `epoch`."""
        self.epoch = epoch
        self.start_batch = batch

    def order(self) -> np.ndarray:
        """Return the permutation P of this epoch: (dataset_len,) indices of the samples."""
        if not self.shuffle:
            return np.arange(self.dataset_len)
        # `published_stream` is older than `random_stream`. It stays here, because with other random
        # numbers an older run would resume with other samples.
        rng = random_streams.published_stream(self.seed, self.epoch)
        return rng.permutation(self.dataset_len)

    def __len__(self) -> int:
        """Return how many samples of this rank the next iteration yields.

        The number does not change during or after an iteration. Only `seek` changes it.
        """
        return (self.batches_per_epoch - self.start_batch) * self.samples_per_step

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = self.order()
        for batch in range(self.start_batch, self.batches_per_epoch):
            # Take P[b G : (b + 1) G], the global batch b.
            start = batch * self.global_batch
            global_batch = order[start : start + self.global_batch]
            # E.g. rank 1 of 2 takes the entries 1, 3, 5, ... of the global batch.
            samples_of_rank = global_batch[self.rank :: self.world_size]
            for index in samples_of_rank:
                yield self.epoch, int(index)

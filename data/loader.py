"""The training loader: the samples that this rank reads, their order, and the workers that read
them.
"""

import hashlib
import itertools
import re
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    Sampler,
    default_collate,
    get_worker_info,
)

from utils import device as devices
from utils import random_streams, utils_dist
from utils.dist import process, watchdog
from utils.errors import DataError, OptionError, SpikeVRTError
from utils.options.models import LoaderOptions
from utils.run.checkpoint import DataOrder

# What torch says where /dev/shm, through which workers hand over their batches, has no room.
OUT_OF_SHM = re.compile(r"</torch_\w+>|shared memory|[Bb]us error")
FEWER = "lower dataloader_num_workers or dataloader_prefetch_factor"
LARGER_SHM = (
    "enlarge /dev/shm (docker run --shm-size=8g; Kubernetes: an emptyDir of medium "
    f"Memory), or {FEWER}"
)
SOCKET_ROOM = 74  # letters of a folder in which a name of a worker's socket still fits


class ResumableDistributedSampler(Sampler[tuple[int, int]]):
    """Yields (epoch, index) for one rank.

    The order of an epoch is one permutation P of all samples, drawn from (seed, epoch). Global
    batch b is P[b G : (b + 1) G] with G = world_size * batch_size; rank r takes every world_size-th
    of it from r on. So a step has the same samples for any number of ranks with the same G. An
    incomplete last batch is dropped.

    The index comes with `epoch` because persistent workers do not see later changes of the dataset
    object.
    Raises OptionError where the dataset cannot fill one global batch.
    """

    def __init__(
        self,
        dataset_len: int,
        *,
        world_size: int,
        rank: int,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self.dataset_len, self.world_size, self.rank = dataset_len, world_size, rank
        self.batch_size, self.seed, self.shuffle = batch_size, seed, shuffle
        self.global_batch = world_size * batch_size
        self.batches_per_epoch = dataset_len // self.global_batch
        self.epoch = self.start_batch = 0
        if dataset_len < self.global_batch:
            what = f"{dataset_len} training samples are fewer than one batch of {self.global_batch}"
            do = (
                "add clips, lower dataloader_batch_size or the number of ranks, or raise "
                "dataloader_epoch_repeat"
            )
            raise OptionError(
                what,
                "datasets.train",
                f"at least {world_size} ranks x {batch_size} samples each",
                do,
            )

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Continue with the first sample of this rank in that global batch."""
        self.epoch, self.start_batch = epoch, batch

    def order(self) -> np.ndarray:
        """(dataset_len,) sample indices of all ranks in the order of this epoch."""
        if not self.shuffle:
            return np.arange(self.dataset_len)
        return random_streams.published_stream(self.seed, self.epoch).permutation(self.dataset_len)

    def __len__(self) -> int:
        """How many samples this rank has left in this epoch."""
        return (self.batches_per_epoch - self.start_batch) * self.batch_size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = self.order()
        for batch in range(self.start_batch, self.batches_per_epoch):
            start = batch * self.global_batch
            for index in order[start + self.rank : start + self.global_batch : self.world_size]:
                yield self.epoch, int(index)


class TrainLoader:
    """Yields the micro-batches of one optimizer step at a time.

    Positions count steps of batch_size * accumulation_steps * world_size samples. A run that
    resumes at (epoch, batch) therefore continues with the next sample, whatever its number of
    workers.
    """

    def __init__(
        self,
        dataset: Any,
        section: LoaderOptions,
        accumulation_steps: int,
        seed: int,
        stall_s: float = 300,
    ) -> None:
        """dataset: a torch Dataset with a length. stall_s: time limit of the watchdog.

        The loader, which can name the samples, must raise its error earlier.
        """
        self.dataset, self.section, self.accumulation_steps = dataset, section, accumulation_steps
        self.rank, workers = utils_dist.get_rank(), section.dataloader_num_workers
        self.sampler = ResumableDistributedSampler(
            len(dataset) * section.dataloader_epoch_repeat,
            world_size=utils_dist.get_world_size(),
            rank=self.rank,
            batch_size=section.dataloader_batch_size * accumulation_steps,
            seed=seed,
            shuffle=section.dataloader_shuffle,
        )
        self.steps_per_epoch = self.sampler.batches_per_epoch
        if workers:
            _refuse_long_folder_for_sockets(tempfile.gettempdir())
        self.timeout_s = section.dataloader_timeout_s or 0.8 * stall_s
        names = dataset.sample_names() if hasattr(dataset, "sample_names") else []
        self.sample_list = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
        samples: Any = self.sampler  # of (epoch, index): torch's annotation knows numbers alone
        self.loader = DataLoader(
            _Batches(dataset),
            batch_size=None,  # _Batches makes them
            sampler=BatchSampler(samples, section.dataloader_batch_size, drop_last=False),
            num_workers=workers,
            pin_memory=devices.pins_memory(utils_dist.get_device()),
            # Also limits the wait between two epochs with persistent workers, where torch waits for
            # ever by default.
            timeout=self.timeout_s if workers else 0,
            prefetch_factor=section.dataloader_prefetch_factor if workers else None,
            persistent_workers=section.dataloader_persistent_workers and workers > 0,
            worker_init_fn=_init_worker,
        )

    def order(self) -> DataOrder:
        """What a position refers to; stored in checkpoints."""
        s = self.sampler
        return DataOrder(
            s.dataset_len, self.sample_list, s.seed if s.shuffle else None, s.batches_per_epoch
        )

    def start(self, epoch: int, batch: int) -> Iterator[list[dict[str, Any]]]:
        """Return an iterator over the steps of `epoch` from `batch` on, with workers started."""
        self.sampler.seek(epoch, batch)
        # Not within the generator, which would start them at its first next()
        with process.signals_held():
            iterator = self._answer_of(lambda: iter(self.loader), 0)
        return self._steps(iterator)

    def _steps(self, iterator: Iterator[Any]) -> Iterator[list[dict[str, Any]]]:
        """The micro-batches of each step. Raises DataError, naming the sample and the rank."""
        step = []
        for count in itertools.count():
            batch = self._answer_of(lambda: next(iterator, None), count)
            if batch is None:
                return
            if isinstance(batch, SpikeVRTError):
                batch.where += f", rank {self.rank}"
                raise batch
            # a step may take several batches, and each of them up to dataloader_timeout_s
            watchdog.go_on()
            step.append(batch)
            if len(step) == self.accumulation_steps:
                yield step
                step = []

    @contextmanager
    def deaths_named(self) -> Generator[None]:
        """Name a loader worker that dies while something else than this loader waits.

        torch's signal handler raises its error wherever the main thread is then, within a step for
        example. Raises DataError in its place.
        """
        try:
            yield
        except RuntimeError as e:
            if "DataLoader worker" not in str(e) or "killed by signal" not in str(e):
                raise
            do = "check the memory of this host (dmesg names what the kernel killed); " + FEWER
            raise DataError(
                what=f"a loader worker died: {str(e).splitlines()[0]}",
                where=f"rank {self.rank}",
                expected="workers that live as long as the run",
                do=LARGER_SHM if OUT_OF_SHM.search(str(e)) else do,
            ) from e

    def _answer_of(self, read: Callable[[], Any], count: int) -> Any:
        """read(); again where the run was suspended for more than half of torch's time-out: its
        clock goes on.

        Raises DataError where a loader worker hangs or dies while it reads batch `count` of this
        iterator.
        """
        while True:
            asleep_s = watchdog.asleep_s()
            try:
                return read()
            except RuntimeError as e:
                self.loader._iterator = (
                    None  # kept workers that did not answer: the next iterator starts others
                )
                is_late = "timed out" in str(e)
                # Not for any sleep: threads that wait for a core, too, look asleep. The watchdog
                # limits all waits.
                if is_late and watchdog.asleep_s() - asleep_s > self.timeout_s / 2:
                    continue
                is_out_of_shm = OUT_OF_SHM.search(str(e))
                if not is_late and not is_out_of_shm and "killed by signal" not in str(e):
                    raise
                size, workers = (
                    self.section.dataloader_batch_size,
                    self.section.dataloader_num_workers,
                )
                samples = list(itertools.islice(self.sampler, count * size, (count + 1) * size))
                # in turns
                where = (
                    f"(epoch, index) {samples}, loader worker {count % workers}, rank {self.rank}"
                )
                expected = (
                    f"a batch within datasets.train.dataloader_timeout_s = {self.timeout_s:g} s"
                )
                do = "check the disk and the memory of this host, or raise the time-out"
                if is_out_of_shm:
                    expected, do = "room in /dev/shm for the batches of all workers", LARGER_SHM
                # Where a worker raised the error, its own line comes last.
                lines = str(e).strip().splitlines()
                line = lines[-1] if "Caught" in lines[0] else lines[0]
                raise DataError(f"no batch: {line}", where, expected, do) from e


@dataclass
class _Batches(Dataset):
    """Returns an error of the project as the batch: torch would hide its message in a worker's
    traceback.
    """

    dataset: Dataset

    def __getitem__(self, index: list[tuple[int, int]]) -> Any:
        items = []
        for sample_id in index:
            try:
                items.append(self.dataset[sample_id])
            except SpikeVRTError as e:
                worker = get_worker_info()
                e.where += f" (epoch, index) {sample_id}" + (
                    f", loader worker {worker.id}" if worker else ""
                )
                return type(e)(e.what, e.where, e.expected, e.do)
        return default_collate(items)


def _init_worker(worker_id: int) -> None:
    process.die_with_parent()
    process.leave_signals_to_parent()
    # OpenCV's threads would compete with the other workers for the cores, and can deadlock after a
    # fork.
    cv2.setNumThreads(0)


def _refuse_long_folder_for_sockets(folder: str) -> None:
    """Raise OptionError if the workers' sockets would have longer names than the system allows."""
    if len(folder.encode()) > SOCKET_ROOM:
        raise OptionError(
            f"the folder for temporary files has a name of {len(folder.encode())} letters",
            f"TMPDIR={folder}",
            f"at most {SOCKET_ROOM} letters, for the sockets of the loader workers",
            "set TMPDIR=/tmp, or datasets.train.dataloader_num_workers=0",
        )

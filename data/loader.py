"""The training loader: the samples that this rank reads, their order, and the workers that read them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from data.sampler import ResumableDistributedSampler
from utils.dist import watchdog
from utils.dist.process import die_with_parent, leave_signals_to_parent, signals_held
from utils.errors import DataError, SpikeVRTError
from utils.options.models import LoaderOptions
from utils.run.resume import DataOrder


class TrainLoader:
    """Yields the micro-batches of one optimizer step at a time.

    Positions count steps of batch_size * accumulation_steps * world_size samples. A run that resumes at (epoch, batch)
    therefore continues with the next sample, whatever its number of workers.
    """

    def __init__(
        self,
        dataset: Dataset,
        section: LoaderOptions,
        *,
        accumulation_steps: int,
        seed: int,
        rank: int,
        world_size: int,
        stall_s: float = 300,
    ) -> None:
        """stall_s: time limit of the watchdog. The loader, which can name the samples, must raise its error earlier."""
        self.dataset, self.accumulation_steps = dataset, accumulation_steps
        self.sampler = ResumableDistributedSampler(
            len(dataset) * section.dataloader_epoch_repeat,
            world_size=world_size,
            rank=rank,
            batch_size=section.dataloader_batch_size * accumulation_steps,
            seed=seed,
            shuffle=section.dataloader_shuffle,
        )
        workers = section.dataloader_num_workers
        self.rank, self.section = rank, section
        self.timeout_s = section.dataloader_timeout_s or 0.8 * stall_s
        names = dataset.sample_names() if hasattr(dataset, "sample_names") else []
        self.sample_list = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
        self.loader = DataLoader(
            _ErrorsAsItems(dataset),
            batch_size=section.dataloader_batch_size,
            sampler=self.sampler,
            num_workers=workers,
            pin_memory=torch.cuda.is_available(),
            # Also limits the wait between two epochs with persistent workers, where torch waits for ever by default.
            timeout=self.timeout_s if workers else 0,
            prefetch_factor=section.dataloader_prefetch_factor if workers else None,
            persistent_workers=section.dataloader_persistent_workers and workers > 0,
            collate_fn=_collate,
            worker_init_fn=_init_worker,
        )

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def order(self) -> DataOrder:
        """What a position refers to; stored in checkpoints."""
        s = self.sampler
        return DataOrder(s.dataset_len, self.sample_list, s.seed if s.shuffle else None, s.batches_per_epoch)

    def seek(self, epoch: int, batch: int) -> None:
        """Continue with the first sample of this rank in that global batch."""
        self.sampler.set_epoch(epoch)
        self.sampler.start_batch = batch

    def start(self, epoch: int, batch: int) -> Iterator[list[dict[str, Any]]]:
        """An iterator over the steps of `epoch` from `batch` on, with its workers already started."""
        self.seek(epoch, batch)
        with self._loader_errors(0), signals_held():
            iterator = self._unless_suspended(self._start_workers)
        return self._steps(self._batches(iterator))

    def _batches(self, iterator: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """The batches. Raises DataError, naming the sample and the rank."""
        for count in itertools.count():
            try:
                with self._loader_errors(count):
                    batch = self._unless_suspended(lambda: next(iterator))
            except StopIteration:
                return
            if isinstance(batch, SpikeVRTError):
                batch.where += f", rank {self.rank}"
                raise batch
            watchdog.go_on()  # a step may take several batches, and each of them up to dataloader_timeout_s
            yield batch

    def _start_workers(self) -> Iterator[Any]:
        try:
            return iter(self.loader)  # a generator alone would start them at its first next()
        except RuntimeError:
            self.loader._iterator = None  # kept workers that did not answer: the next iterator starts others
            raise

    def _unless_suspended(self, read: Callable[[], Any]) -> Any:
        """read(); again where torch's time-out passed while the run was suspended."""
        begin = watchdog.awake_s()
        while True:
            try:
                return read()
            except RuntimeError as e:
                if "timed out" not in str(e) or watchdog.awake_s() - begin > self.timeout_s / 2:
                    raise

    @contextmanager
    def _loader_errors(self, count: int) -> Iterator[None]:
        """Raise a DataError where a loader worker hangs or dies while it reads batch `count` of this iterator."""
        try:
            yield
        except RuntimeError as e:
            if "timed out" not in str(e) and "killed by signal" not in str(e):
                raise
            size, workers = self.section.dataloader_batch_size, self.section.dataloader_num_workers
            samples = list(itertools.islice(self.sampler, count * size, (count + 1) * size))
            raise DataError(
                f"no batch: {str(e).splitlines()[0]}",
                f"(epoch, index) {samples}, loader worker {count % workers}, rank {self.rank}",  # workers take turns
                f"a batch within datasets.train.dataloader_timeout_s = {self.timeout_s:g} s",
                "check the disk and the memory of this host, or raise the time-out",
            ) from e  # fmt: skip

    def _steps(self, batches: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        while micro_batches := list(itertools.islice(batches, self.accumulation_steps)):
            yield micro_batches


class _ErrorsAsItems(Dataset):
    """Returns an error of the project as the item: torch would hide its message in a worker's traceback."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, sample_id: tuple[int, int]) -> Any:
        try:
            return self.dataset[sample_id]
        except SpikeVRTError as e:
            worker = get_worker_info()
            e.where += f" (epoch, index) {sample_id}" + (f", loader worker {worker.id}" if worker else "")
            return type(e)(e.what, e.where, e.expected, e.do)


def _collate(items: list[Any]) -> Any:
    return next((item for item in items if isinstance(item, SpikeVRTError)), None) or default_collate(items)


def _init_worker(worker_id: int) -> None:
    die_with_parent()
    leave_signals_to_parent()
    # OpenCV's threads would compete with the other workers for the cores, and can deadlock after a fork.
    cv2.setNumThreads(0)

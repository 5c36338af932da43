"""The training loader: which samples this rank reads, in which order, with which workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from data.sampler import ResumableDistributedSampler


class TrainLoader:
    """Hands out the micro-batches of one optimizer step at a time.

    The unit of position is the step: batch_size * accumulation_steps * world_size samples. A resume at (epoch, batch)
    therefore goes on with the very next sample, at any number of workers.
    """

    def __init__(
        self,
        dataset: Dataset,
        section: dict[str, Any],
        *,
        accumulation_steps: int,
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.accumulation_steps = accumulation_steps
        self.sampler = ResumableDistributedSampler(
            len(dataset) * section["dataloader_epoch_repeat"],
            world_size=world_size,
            rank=rank,
            batch_size=section["dataloader_batch_size"] * accumulation_steps,
            seed=seed,
            shuffle=section["dataloader_shuffle"],
        )
        workers = section["dataloader_num_workers"]
        self.loader = DataLoader(
            dataset,
            batch_size=section["dataloader_batch_size"],
            sampler=self.sampler,
            num_workers=workers,
            pin_memory=torch.cuda.is_available(),
            # Also covers the epoch turn of persistent workers, where torch's default waits for ever.
            timeout=section["dataloader_timeout_s"] if workers else 0,
            prefetch_factor=section["dataloader_prefetch_factor"] if workers else None,
            persistent_workers=section["dataloader_persistent_workers"] and workers > 0,
            worker_init_fn=_init_worker,
        )

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def start(self, epoch: int, batch: int) -> Iterator[list[dict[str, Any]]]:
        """An iterator over the steps of `epoch` from `batch` on, with its workers already started."""
        self.sampler.set_epoch(epoch)
        self.sampler.start_batch = batch
        iterator = iter(self.loader)  # starts the workers; a generator alone would wait for its first next()
        return self._steps(iterator)

    def _steps(self, iterator: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        while micro_batches := [b for _, b in zip(range(self.accumulation_steps), iterator, strict=False)]:
            yield micro_batches


def _init_worker(worker_id: int) -> None:
    # A worker that starts OpenCV's own threads fights the other workers for the cores (and can deadlock after a fork).
    cv2.setNumThreads(0)

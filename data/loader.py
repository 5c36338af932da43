"""The training loader: the workers that read samples, and the errors if a worker hangs or dies.

A micro-batch is what one rank puts through the network at once. An optimizer step uses one or more
micro-batches of each rank (accumulation_steps). A global batch is the samples of all ranks in one
step.

    sampler (data/sample_order.py)          yields (epoch, index) of each sample of this rank
      -> BatchSampler of torch              groups these pairs into micro-batches
      -> loader workers (_Batches)          read the samples of a micro-batch
      -> TrainLoader                        yields the micro-batches of one optimizer step

A loader worker is a process that hands over its micro-batches through shared memory, /dev/shm. If a
worker hangs or dies, an error names the samples that this worker had to read. main_train_vrt.py
makes the `TrainLoader`.

What must stay: a worker that hangs or dies ends the run with an error that names its samples and
its rank. Free to change: how the workers read, because a sample depends only on its (epoch, index).

Tests: tests/dist/test_resume.py (the order after a resume),
tests/faults/test_startup.py and tests/parts/utils/test_system.py (workers that hang or die)
"""

import hashlib
import itertools
import logging
import re
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cv2
from torch.utils.data import BatchSampler, DataLoader, Dataset, default_collate, get_worker_info

from data.clips.sample_check import refuse_wrong_samples, warning_of_range
from data.sample_order import ResumableDistributedSampler
from utils import device as devices
from utils import utils_dist
from utils.dist import process, watchdog
from utils.errors import DataError, OptionError, SpikeVRTError
from utils.options.loader_options import LoaderOptions
from utils.run.position import DataOrder

logger = logging.getLogger(__name__)

# Texts of torch's errors if /dev/shm has no room for a micro-batch. The first text is the name of a
# file in /dev/shm, e.g. "</torch_4711_815>". torch has no error class for this case, so a new
# version of torch may need another text (test_a_small_shared_memory_is_named_with_its_cure).
OUT_OF_SHM = re.compile(r"</torch_\w+>|shared memory|[Bb]us error")
# Advice in the errors of this module.
USE_LESS_MEMORY = "lower dataloader_num_workers or dataloader_prefetch_factor"
ENLARGE_SHM = (
    "enlarge /dev/shm (docker run --shm-size=8g; Kubernetes: an emptyDir of medium "
    f"Memory), or {USE_LESS_MEMORY}"
)
# Longest path of the folder for temporary files in bytes. The socket of a loader worker lies in
# this folder, under a name of 32 letters, e.g. /pymp-19py7i_4/listener-evjgjau1. The system limits
# the whole path of a socket to about 108 bytes. Here the path has at most 74 + 32 = 106 bytes.
MOST_BYTES_OF_TEMPORARY_FOLDER = 74
# Share of the watchdog's time limit after which the loader gives up waiting, if
# dataloader_timeout_s is not set. E.g. with a limit of 300 seconds, the loader waits for 240
# seconds. The share is below 1, so that the loader gives up before the watchdog, because only the
# error of the loader names the samples. Chosen by hand. `refuse_slow_loader`
# (utils/options/conflicts.py) says 4/5 in its docstring.
SHARE_OF_STALL = 0.8


class TrainLoader:
    """Yields the micro-batches of one optimizer step at a time.

    A position in the data is (epoch, batch). batch: number of finished global batches of the epoch.
    A global batch has dataloader_batch_size * accumulation_steps * world_size samples. A run that
    resumes at a position continues with the next sample, with any number of workers.

    Each rank makes its own TrainLoader, with the same arguments, and reads only its own samples.

    dataset: a torch Dataset with a length.
    section: the section `datasets.train`.
    accumulation_steps: number of micro-batches of a step.
    seed: seed of the shuffling.
    stall_s: time limit of the watchdog in seconds, the option watchdog.stall_s. The default is the
    default of the option.
    """

    def __init__(
        self,
        dataset: Any,
        section: LoaderOptions,
        accumulation_steps: int,
        seed: int,
        stall_s: float = 300,
    ) -> None:
        self.dataset = dataset
        self.section = section
        self.accumulation_steps = accumulation_steps
        self.rank = utils_dist.get_rank()
        workers = section.dataloader_num_workers
        self.sampler = ResumableDistributedSampler(
            len(dataset) * section.dataloader_epoch_repeat,
            world_size=utils_dist.get_world_size(),
            rank=self.rank,
            samples_per_step=section.dataloader_batch_size * accumulation_steps,  # of this rank
            seed=seed,
            shuffle=section.dataloader_shuffle,
        )
        # An optimizer step takes one global batch, so an epoch has as many steps as global batches.
        # The training loop (utils/run/run.py) begins a new epoch after this number of steps.
        self.steps_per_epoch = self.sampler.batches_per_epoch
        # A worker hands over the shared memory of its micro-batches through a socket, a file in the
        # folder for temporary files. Without workers there is no such socket.
        if workers:
            _refuse_long_folder_for_sockets(tempfile.gettempdir())
        # Seconds to wait for a micro-batch. The option is None if it is not set.
        self.timeout_s = section.dataloader_timeout_s or SHARE_OF_STALL * stall_s
        # A resumed run compares this digest with the digest in its checkpoint.
        self.sample_digest = _digest_of_samples(dataset)
        self.is_range_checked = False  # whether `warning_of_range` has seen a micro-batch
        self.loader = self._loader_of_torch()

    def _loader_of_torch(self) -> DataLoader:
        """Return torch's loader, which yields one micro-batch after the other."""
        section = self.section
        workers = section.dataloader_num_workers
        # Any, because torch's annotation of BatchSampler allows only plain numbers.
        samples: Any = self.sampler
        return DataLoader(
            _Batches(self.dataset),
            # No batching by torch: an item of `_Batches` is a whole micro-batch.
            batch_size=None,
            sampler=BatchSampler(samples, section.dataloader_batch_size, drop_last=False),
            num_workers=workers,
            # Whether batches lie in pinned memory, from which copies to a GPU are faster.
            pin_memory=devices.pins_memory(utils_dist.get_device()),
            # Longest wait for a micro-batch in seconds. Persistent workers also begin a new epoch
            # within this time. With torch's default, the wait for a dead worker would never end.
            # Without workers, torch demands 0 here and None in the next line.
            timeout=self.timeout_s if workers else 0,
            prefetch_factor=section.dataloader_prefetch_factor if workers else None,
            persistent_workers=section.dataloader_persistent_workers and workers > 0,
            worker_init_fn=_init_worker,
        )

    def order(self) -> DataOrder:
        """Return what fixes the order of the samples. Checkpoints store it.

        With the same order, a position (epoch, batch) means the same samples. A resumed run
        compares the order in its checkpoint with its own order, so the values must keep their
        meaning.
        """
        sampler = self.sampler
        seed = sampler.seed if sampler.shuffle else None
        return DataOrder(
            samples=sampler.dataset_len,
            sample_list=self.sample_digest,
            seed=seed,
            steps=sampler.batches_per_epoch,
        )

    def start(self, epoch: int, batch: int) -> Iterator[list[dict[str, Any]]]:
        """Start the workers. Returns an iterator over the steps of `epoch`, from `batch` on.

        Each item of the iterator is the list of the micro-batches of a step. (A micro-batch is what
        this rank puts through the network at once.)

        batch: number of the first global batch within the epoch. A global batch is the samples of
        all ranks in one step, so this is also the number of the first step.
        """

        def micro_batches() -> Iterator[Any]:
            """Return an iterator over the micro-batches. torch then starts the workers."""
            return iter(self.loader)

        self.sampler.seek(epoch, batch)
        # Start the workers here and not in `_steps`. The code of a generator such as `_steps` runs
        # only when the first step is asked for. Hold back signals until all workers have started,
        # because a signal at this moment would leave only a part of the workers started.
        with process.signals_held():
            iterator = self._wait_for_workers(micro_batches, number=0)
        return self._steps(iterator)

    def _steps(self, iterator: Iterator[Any]) -> Iterator[list[dict[str, Any]]]:
        """Yield the micro-batches of each step. Raises DataError, naming the sample and the rank.

        iterator: an iterator over the micro-batches.
        """

        def next_micro_batch() -> Any:
            """Return the next micro-batch, or None at the end of the epoch."""
            return next(iterator, None)

        step = []
        for number in itertools.count():
            micro_batch = self._wait_for_workers(next_micro_batch, number)
            # None marks the end of the epoch. `step` is empty here, because the sampler drops an
            # incomplete global batch.
            if micro_batch is None:
                return
            # `_Batches` returns an error in place of a micro-batch.
            if isinstance(micro_batch, SpikeVRTError):
                error = micro_batch
                error.where += f", rank {self.rank}"
                raise error
            if not self.is_range_checked:
                self.is_range_checked = True
                self._warn_of_range(micro_batch)
            # Each micro-batch of a step may take up to dataloader_timeout_s. So tell the watchdog
            # of each micro-batch, and not only of each step.
            watchdog.go_on()
            step.append(micro_batch)
            if len(step) == self.accumulation_steps:
                yield step
                step = []

    def _warn_of_range(self, micro_batch: dict[str, Any]) -> None:
        """Warn on rank 0 if the first micro-batch of the run has values far from 0 to 1."""
        if self.rank != 0:
            return
        warning = warning_of_range(micro_batch)
        if warning:
            logger.warning("%s", warning)

    # ---- Workers that hang or die -----------------------------------------------------------

    @contextmanager
    def deaths_named(self) -> Generator[None]:
        """Turn torch's error for a dead loader worker into a DataError, within a `with` block.

        If a worker dies, torch's signal handler raises a RuntimeError in the main thread at any
        point, e.g. within a training step. So the whole training loop runs in this block.

        The error is known by two texts of torch, "DataLoader worker" and "killed by signal".
        Test: test_a_loader_process_that_is_killed_while_the_step_computes_is_named
        """
        try:
            yield
        except RuntimeError as e:
            is_death_of_worker = "DataLoader worker" in str(e) and "killed by signal" in str(e)
            if not is_death_of_worker:
                raise
            do = (
                "check the memory of this host (dmesg names what the kernel killed); "
                f"{USE_LESS_MEMORY}"
            )
            if OUT_OF_SHM.search(str(e)):
                do = ENLARGE_SHM
            raise DataError(
                what=f"a loader worker died: {str(e).splitlines()[0]}",
                where=f"rank {self.rank}",
                expected="workers that live as long as the run",
                do=do,
            ) from e

    def _wait_for_workers(self, read: Callable[[], Any], number: int) -> Any:
        """Call `read`, which waits for the loader workers, and return its result.

        The clock of torch's time-out also runs while the run is suspended, e.g. by Ctrl-Z, although
        no worker can work. So a time-out after a suspension proves nothing, and `read` is called
        again. The watchdog limits the time of all calls together.

        read: a function that waits, e.g. for the next micro-batch.
        number: number of the micro-batch in this iterator, for the message.
        Raises DataError if a loader worker hangs or dies.
        """
        while True:
            # The difference to a later value is the time for which the run was suspended.
            asleep_before_s = watchdog.asleep_s()
            try:
                return read()
            except RuntimeError as e:
                # torch keeps the iterator of persistent workers in `_iterator`, for the next epoch.
                # An iterator that timed out while it started cannot be started again. So forget it
                # here, and the next call of `iter` starts new workers. Within an epoch, `read` has
                # its own reference to the iterator, so the next call waits for the same workers.
                self.loader._iterator = None
                # torch raises a RuntimeError in three cases. Only its text tells which case it is.
                is_late = "timed out" in str(e)
                is_out_of_shm = OUT_OF_SHM.search(str(e)) is not None
                was_killed = "killed by signal" in str(e)
                # Any other error is a mistake in the code. Its traceback helps more than a message.
                if not (is_late or is_out_of_shm or was_killed):
                    raise
                # A thread that waits for a core also looks asleep for a short time. So only a long
                # sleep means that the run was suspended: more than half of the time-out, a fraction
                # that was chosen by hand.
                slept_s = watchdog.asleep_s() - asleep_before_s
                was_suspended = slept_s > self.timeout_s / 2
                if not (is_late and was_suspended):
                    raise self._missing_batch_error(e, number, is_out_of_shm) from e
                # The run was suspended, so the loop calls `read` again.

    def _missing_batch_error(
        self, error: RuntimeError, number: int, is_out_of_shm: bool
    ) -> DataError:
        """Return the error for a micro-batch that did not come, naming its samples and worker.

        error: torch's error.
        number: number of the micro-batch in its iterator.
        is_out_of_shm: whether /dev/shm has no room.
        """
        size = self.section.dataloader_batch_size
        # torch gives the micro-batches to the workers in turn: 0, 1, 2, 0, 1, 2, ...
        worker = number % self.section.dataloader_num_workers
        # A new iterator over the sampler yields the same samples from the beginning. Skip the
        # samples of the micro-batches before this one. E.g. with 2 samples in a micro-batch,
        # micro-batch 5 has the samples 10 and 11 of this rank.
        first_sample = number * size
        samples = list(itertools.islice(self.sampler, first_sample, first_sample + size))
        expected = f"a batch within datasets.train.dataloader_timeout_s = {self.timeout_s:g} s"
        do = "check the disk and the memory of this host, or raise the time-out"
        if is_out_of_shm:
            expected = "room in /dev/shm for the batches of all workers"
            do = ENLARGE_SHM
        # An error from a worker begins with e.g. "Caught OSError in DataLoader worker process 0.".
        # The traceback follows, and the last line is the error itself. In any other error, the
        # first line says most.
        lines = str(error).strip().splitlines()
        reason = lines[-1] if "Caught" in lines[0] else lines[0]
        return DataError(
            what=f"no batch: {reason}",
            where=f"(epoch, index) {samples}, loader worker {worker}, rank {self.rank}",
            expected=expected,
            do=do,
        )


@dataclass
class _Batches(Dataset):
    """A dataset of micro-batches: an item is what one rank puts through the network at once.

    The index of an item is a list with (epoch, index) of each sample.

    If a sample raises an error of this project, the error is returned in place of the micro-batch,
    and `TrainLoader._steps` raises the error. If the error were raised here, in a worker, torch
    would hide its message in a traceback.
    """

    dataset: Dataset

    def __getitem__(self, index: list[tuple[int, int]]) -> Any:
        items = []
        for sample_id in index:
            try:
                # E.g. `TrainClips.__getitem__` (data/clip_dataset.py).
                items.append(self.dataset[sample_id])
            except SpikeVRTError as e:
                where = f"{e.where} (epoch, index) {sample_id}"
                worker = get_worker_info()  # None in the main process
                if worker:
                    where += f", loader worker {worker.id}"
                # Make a new error that has only the four texts, because the old error may refer to
                # objects that cannot be sent to the main process.
                return type(e)(e.what, where, e.expected, e.do)
        try:
            refuse_wrong_samples(items, f"{type(self.dataset).__name__}, (epoch, index) {index}")
        except DataError as e:
            return e
        return default_collate(items)


def _digest_of_samples(dataset: Any) -> str:
    """Return 12 hex digits that change with the samples of a dataset.

    The digits are made from the lines of `TrainClips.sample_names`: properties of the clips, spike
    settings, and the name of every sample. A user's dataset need not have this method. Checkpoints
    store the digits, so they must stay the same for the same lines.
    """
    names = dataset.sample_names() if hasattr(dataset, "sample_names") else []
    lines = "\n".join(names)
    # 48 bits, so two different lists have the same digest with a probability of 4e-15.
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def _init_worker(worker_id: int) -> None:
    """Prepare a loader worker, in its process."""
    process.die_with_parent()
    # Ctrl-C reaches all processes of a terminal. The parent decides when the workers end.
    process.leave_signals_to_parent()
    # OpenCV's threads would compete with the other workers for the cores. After a fork, these
    # threads may also deadlock.
    cv2.setNumThreads(0)


def _refuse_long_folder_for_sockets(folder: str) -> None:
    """Raise OptionError if the workers' sockets would have longer names than the system allows."""
    length = len(folder.encode())
    if length > MOST_BYTES_OF_TEMPORARY_FOLDER:
        raise OptionError(
            what=f"the folder for temporary files has a name of {length} letters",
            where=f"TMPDIR={folder}",
            expected=f"at most {MOST_BYTES_OF_TEMPORARY_FOLDER} letters, for the sockets of the "
            "loader workers",
            do="set TMPDIR=/tmp, or datasets.train.dataloader_num_workers=0",
        )

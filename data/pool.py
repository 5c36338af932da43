"""Run calls in parallel processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from utils.dist.process import die_with_parent
from utils.errors import DataError


def run_parallel(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, Any]]:
    """function(*call) for every call, begun in this order; yields (index of the call, result) as each one ends.

    One worker or a single call runs in this process. The first error is raised and ends the other calls. Raises
    DataError where a process dies.
    """
    workers = min(workers, len(calls))
    if workers <= 1:
        yield from ((i, function(*call)) for i, call in enumerate(calls))
        return
    # spawn, as OpenCV's threads do not survive a fork. A process that outlived its parent would write into the folders
    # of the next run.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), die_with_parent) as pool:
        # Ctrl-C reaches all processes; the parent ends these. They inherit the mask.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            numbers = {pool.submit(function, *call): number for number, call in enumerate(calls)}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        except BrokenProcessPool as e:
            raise DataError(
                "a process of the pool died", function.__name__, f"memory for {workers} of them",
                "lower --workers, then start the same command again",
            ) from e  # fmt: skip
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise

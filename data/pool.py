"""Run calls in parallel processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from utils.errors import DataError


def run_all(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int) -> Iterator[tuple[int, Any]]:
    """function(*call) for every call, `workers` at a time; yields (index of the call, result) in order of completion.

    The first error stops all other calls and is raised. Raises DataError where a process dies.
    """
    if workers <= 1 or len(calls) <= 1:
        yield from ((number, function(*call)) for number, call in enumerate(calls))
        return
    others = set(multiprocessing.active_children())
    # spawn, as OpenCV's threads do not survive a fork.
    pool = ProcessPoolExecutor(min(workers, len(calls)), mp_context=multiprocessing.get_context("spawn"))
    try:
        numbers = {pool.submit(function, *call): number for number, call in enumerate(calls)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()
    except BaseException as e:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        if isinstance(e, BrokenProcessPool):
            raise DataError(
                "a process of the pool died", function.__name__, f"memory for {min(workers, len(calls))} of them",
                "lower --workers, then start the same command again",
            ) from e  # fmt: skip
        raise
    pool.shutdown()

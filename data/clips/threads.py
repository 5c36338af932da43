"""Look up or read many files at once, in threads.

A network file system answers each call slowly, but answers many calls at the same time.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_manifest.py
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

# Number of threads. The threads wait for the file system and compute little, so there may be more
# threads than cores.
THREADS = 16
# Number of items that a thread takes at once. With one item each, the pool's own work for a million
# files would take long.
ITEMS = 32

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    at_once: int = ITEMS,
    go_on: Callable[[], object] = lambda: None,
) -> Iterator[Result]:
    """Yield function(item) of each item, in the order of the items, computed in threads.

    at_once: number of items that a thread takes at once.
    go_on: called after each item, by the thread that did it.
    The results come in the order of the items, whichever thread is faster: callers rely on this.
    The first error of an item is raised here. Items that no thread has begun are then left out.
    """
    todo = iter(items)

    def work(some: list[Item]) -> list[Result]:
        """Compute the results of some items. Runs in a thread."""
        results = []
        for item in some:
            results.append(function(item))
            go_on()
        return results

    def next_job() -> Future[list[Result]] | None:
        """Give the next items to the pool. Returns None if there are no more."""
        some = list(itertools.islice(todo, at_once))
        if not some:
            return None
        return pool.submit(work, some)

    with ThreadPoolExecutor(THREADS) as pool:
        # Two jobs for each thread: one in progress, and one that waits. So no thread is idle, and
        # only the results of a few jobs are in memory.
        jobs: deque[Future[list[Result]]] = deque()
        try:
            for _ in range(2 * THREADS):
                job = next_job()
                if job is not None:
                    jobs.append(job)
            while jobs:
                oldest = jobs.popleft()
                yield from oldest.result()
                job = next_job()
                if job is not None:
                    jobs.append(job)
        finally:
            # After an error, or if the caller stops early.
            for job in jobs:
                job.cancel()

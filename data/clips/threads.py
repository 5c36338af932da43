"""Ask for many files at once, because each answer of a network file system takes its time."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
# A job of the pool takes so many items, because the pool keeps a record of each job.
ITEMS = 32

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    at_once: int = ITEMS,
    go_on: Callable[[], object] = lambda: None,
) -> Iterator[Result]:
    """Yield function(item) of each item, in the order of the items, from threads.

    at_once: number of items of one job. go_on: called after each item, by the thread that did it.
    The first error is raised, and what has not begun then is left undone.
    """
    todo = iter(items)

    def done(some: list[Item]) -> list[Result]:
        results = []
        for item in some:
            results.append(function(item))
            go_on()
        return results

    def next_job() -> Future[list[Result]] | None:
        some = list(itertools.islice(todo, at_once))
        return pool.submit(done, some) if some else None

    with ThreadPoolExecutor(THREADS) as pool:
        jobs: deque[Future[list[Result]]] = deque()
        try:
            for _ in range(2 * THREADS):
                job = next_job()
                if job is not None:
                    jobs.append(job)
            while jobs:
                yield from jobs.popleft().result()
                job = next_job()
                if job is not None:
                    jobs.append(job)
        finally:
            for job in jobs:
                job.cancel()

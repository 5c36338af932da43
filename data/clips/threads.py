"""Look up, read or make many files at once, in threads.

A network file system answers each call slowly, but answers many calls at the same time. Computing
pictures is faster in threads, too, because OpenCV and NumPy let other threads work meanwhile.

What must stay: the results come in the order of the items, and an error of an item reaches the
caller. All checks of data rely on the order and on the error. E.g.
test_sound_data_are_not_read_again fails if the order changes.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_manifest.py
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

# Number of threads. There may be more threads than cores, because most threads wait for the file
# system and compute little. Fewer threads would make a check on a network file system slower, and
# more threads would take more memory. The number is chosen by hand.
THREADS = 16
# Number of items that a thread takes at once. Giving items to a thread takes some microseconds, so
# a smaller number would be slow for a million files. With a larger number, a few threads would
# still work at the end while the others are idle. The number is chosen by hand. root_check.py and
# unchanged_data.py pass smaller numbers, because an item is a whole clip, and a clip takes longer.
ITEMS_AT_ONCE = 32

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    at_once: int = ITEMS_AT_ONCE,
    go_on: Callable[[], object] = lambda: None,
    threads: int = THREADS,
) -> Iterator[Result]:
    """Yield function(item) for each item, computed in threads.

    The results come in the order of the items, because callers zip them with the items. The first
    error of an item is raised. After an error, items that no thread has begun are left out.

    function: must not change shared values, because several threads call it at the same time.
    at_once: number of items that a thread takes at once.
    go_on: called after each item, by the thread that computed it.
    threads: number of threads. If `function` computes, more threads than cores only take memory.
    """

    def results_of(some_items: list[Item]) -> list[Result]:
        """Compute the results of some items. Runs in a thread."""
        results = []
        for item in some_items:
            results.append(function(item))
            go_on()
        return results

    remaining_items = iter(items)
    # A job is `at_once` items that one thread computes. The oldest job comes first.
    jobs: deque[Future[list[Result]]] = deque()
    with ThreadPoolExecutor(threads) as pool:

        def add_job() -> None:
            """Give the next items to the threads, if there are any."""
            some_items = list(itertools.islice(remaining_items, at_once))
            if some_items:
                jobs.append(pool.submit(results_of, some_items))

        try:
            # Two jobs for each thread, one in progress and one that waits, so that no thread is
            # idle until the next job is given out. More jobs would keep more results in memory.
            for _ in range(2 * threads):
                add_job()
            while jobs:
                oldest = jobs.popleft()
                yield from oldest.result()
                add_job()
        finally:
            # There are jobs left after an error, or if the caller stops early.
            for job in jobs:
                job.cancel()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    # Linux may give a process only a part of the cores, e.g. in a job of SLURM.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

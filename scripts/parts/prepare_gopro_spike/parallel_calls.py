"""Call a function many times in parallel processes, and show the progress.

    run_in_parallel    returns the results in the order of the calls

scripts/prepare_gopro_spike.py cuts, checks and makes clips with `run_in_parallel`.

What must stay:

* No process outlives the program
  (test_a_killed_run_leaves_no_process_and_continues_to_the_same_bytes).
* An error is raised at once, not after all other calls
  (test_an_error_in_a_process_ends_the_other_processes_at_once takes ten minutes if the other calls
  go on).

Free to change: how many processes work at a time.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from scripts.parts.exit_codes import show_progress
from utils.dist.process import die_with_parent
from utils.errors import DataError


def run_in_parallel(
    workers: int,
    function: Callable[..., Any],
    calls: Sequence[Any],
    name: str,
    unit: str,
    counts: Sequence[int] = (),
) -> list[Any]:
    """Run function(*call) for each call in parallel processes, and show the progress.

    Returns the results in the order of the calls. The first error is raised and ends the other
    calls. Raises DataError if a process dies.

    workers: number of processes. With one worker or one call, this process does the work.
    function: a function at the top level of a module, because a process imports it by its name.
    calls: the arguments of each call. The calls begin in this order.
    name, unit: what the progress shows, e.g. "making" and "frames".
    counts: number of units of each call for the progress, e.g. its frames. If it is empty, each
    call is one unit.
    """
    results = [None] * len(calls)
    units_of_calls = counts if counts else [1] * len(calls)
    processes = min(workers, len(calls))
    # quiet_s=0: show the progress from the start, not only after some seconds.
    with show_progress(sum(units_of_calls), name, unit, quiet_s=0) as progress:

        def on_result(call_index: int, result: Any) -> None:
            """Store the result of a call, and show the progress."""
            results[call_index] = result
            progress.update(units_of_calls[call_index])

        if processes > 1:
            _run_in_processes(processes, function, calls, on_result)
        else:
            for call_index, call in enumerate(calls):
                on_result(call_index, function(*call))
    return results


def _run_in_processes(
    workers: int,
    function: Callable[..., Any],
    calls: Sequence[Any],
    on_result: Callable[[int, Any], None],
) -> None:
    """Run function(*call) for each call in a pool of processes.

    workers: number of processes.
    function: a function at the top level of a module.
    calls: the arguments of each call.
    on_result: is called with (index of the call, its result) as soon as a call has ended.
    """
    # The start method is spawn, because OpenCV's threads do not survive a fork. Each process calls
    # `die_with_parent` first, so that the process ends with its parent. If a process went on after
    # its parent was killed, it would write into the folders of the next run.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=die_with_parent) as pool:
        # Ctrl-C sends SIGINT to all processes, but only the parent should react, and end the other
        # processes. A process inherits the blocked signals of its parent. So block SIGINT during
        # `submit`, which starts the processes of the pool.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            index_of_call = {}  # future -> index of its call
            for call_index, call in enumerate(calls):
                future = pool.submit(function, *call)
                index_of_call[future] = call_index
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            for future in as_completed(index_of_call):
                on_result(index_of_call[future], future.result())
        except BrokenProcessPool as e:
            raise DataError(
                what="a process of the pool died",
                where=getattr(function, "__name__", ""),
                expected=f"memory for {workers} processes",
                do="lower --workers, then start the same command again",
            ) from e
        except BaseException:
            # An error of a call, or Ctrl-C. Without `terminate`, the end of the `with` block would
            # wait until the processes have made all other clips.
            for process in multiprocessing.active_children():
                process.terminate()
            raise

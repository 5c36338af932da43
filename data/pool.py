"""Run calls in parallel processes that report how far they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from utils.dist.process import die_with_parent
from utils.errors import DataError

Tick = Callable[[int], object]


class Pool:
    """Up to `workers` processes, started when they are needed and kept for later calls. Use as a context manager.

    Every function gets one argument more than its call holds, `tick`: tick(n) reports n more units of work as done.
    One worker or a single call runs in this process.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._links: list[tuple[Connection, BaseProcess]] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for _, process in self._links:
            process.terminate()
        for link, process in self._links:
            process.join()
            link.close()
        self._links = []

    def run(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], on_tick: Callable[[int, int], object]
    ) -> Iterator[tuple[int, Any]]:
        """function(*call, tick) for every call, in this order; yields (index of the call, result) as each one ends.

        on_tick: gets the index of the call and n for each tick(n). The first error is raised; leaving the context then
        ends the other calls. Raises DataError where a process dies.
        """
        if self.workers <= 1 or len(calls) <= 1:
            yield from ((i, function(*call, partial(on_tick, i))) for i, call in enumerate(calls))
            return
        while len(self._links) < min(self.workers, len(calls)):
            self._links.append(_start())
        waiting, busy = deque(enumerate(calls)), {}
        idle = [link for link, _ in self._links]
        while waiting or busy:
            while waiting and idle:
                link, (number, call) = idle.pop(), waiting.popleft()
                busy[link] = number
                try:
                    link.send((function, call))
                except OSError as e:
                    raise self._died(link, function) from e
            for link in wait(list(busy)):
                kind, value = self._receive(link, function)
                if kind == "tick":
                    on_tick(busy[link], value)
                    continue
                idle.append(link)
                yield busy.pop(link), value

    def _receive(self, link: Connection, function: Callable[..., Any]) -> tuple[str, Any]:
        """The next message of a process: ("tick", n) or ("result", value). Raises the error that it sent."""
        try:
            kind, value = link.recv()
        except (EOFError, OSError) as e:
            raise self._died(link, function) from e
        if kind == "error":
            error, trace = value
            raise error from RuntimeError(f"in a process of the pool:\n{trace}")
        return kind, value

    def _died(self, link: Connection, function: Callable[..., Any]) -> DataError:
        process = next(process for other, process in self._links if other is link)
        process.join()
        return DataError(
            f"a process of the pool died (exit code {process.exitcode})", function.__name__,
            f"memory for {len(self._links)} of them", "lower --workers, then start the same command again",
        )  # fmt: skip


def _start() -> tuple[Connection, BaseProcess]:
    # spawn, as OpenCV's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    # Ctrl-C reaches all processes; the parent ends this one. Until it ignores Ctrl-C itself, it inherits the mask.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()  # so that the end of the process closes the pipe
    return ours, process


def _serve(link: Connection) -> None:
    """Answer calls until the pipe is closed."""
    # A process that outlived its parent would write into the folders of the next run.
    die_with_parent()
    if not multiprocessing.parent_process().is_alive():
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            function, call = link.recv()
        except EOFError:
            return
        try:
            answer = ("result", function(*call, lambda n: link.send(("tick", n))))
        except Exception as e:
            answer = ("error", (e, traceback.format_exc()))
        link.send(answer)

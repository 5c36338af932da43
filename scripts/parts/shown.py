"""How far a script is: a bar on a terminal, else lines on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from utils.run.progress import QUIET_S, open_progress

T = TypeVar("T")


def shown(total: int, name: str, unit: str, quiet_s: float = QUIET_S) -> AbstractContextManager[Any]:
    """The progress of `total` units; see utils.run.progress. quiet_s: seconds before the first line."""
    return open_progress("bar", total, name, unit, say=_say, quiet_s=quiet_s, is_kept=True)


def tracked(
    items: Iterable[T], total: int, name: str, unit: str, size: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:  # fmt: skip
    """The items, while their progress is shown. size: of an item, in units."""
    with shown(total, name, unit) as progress:
        for item in items:
            yield item
            progress.update(size(item))


def _say(line: str) -> None:
    print(line, flush=True)  # whoever reads a pipe or a file is to see it now

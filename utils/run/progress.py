"""Progress of an epoch or a test: a bar, ten lines in the log, or nothing. On rank 0 only."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

from utils import utils_dist

LINES = 10

logger = logging.getLogger(__name__)


@contextmanager
def open_progress(kind: str, total: int, name: str, unit: str = "it") -> Iterator[Bar | Lines]:
    """kind: "bar" (where stderr is a terminal), "line" (ten lines in the log), "none". TQDM_DISABLE=1 means none."""
    if not utils_dist.is_main_process() or os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        kind = "none"
    progress = Lines(total, name, unit) if kind == "line" else Bar(total, name, unit, is_hidden=kind == "none")
    try:
        yield progress
    finally:
        progress.close()


class Bar:
    """A bar of tqdm. A lost terminal does not end the run."""

    def __init__(self, total: int, name: str, unit: str, is_hidden: bool) -> None:
        # disable=None: hidden where stderr is no terminal.
        self._bar: Any = tqdm(total=total, desc=name, unit=unit, disable=is_hidden or None, dynamic_ncols=True)

    def update(self, values: str = "") -> None:
        """One more is done. values: what to show beside it."""
        with suppress(OSError):
            self._bar.set_postfix_str(values, refresh=False)
            self._bar.update()

    def close(self) -> None:
        with suppress(OSError):
            self._bar.close()


class Lines:
    """A line of the log at each tenth."""

    def __init__(self, total: int, name: str, unit: str) -> None:
        self.total, self.name, self.unit, self.done = total, name, unit, 0

    def update(self, values: str = "") -> None:
        self.done += 1
        if self.done * LINES // self.total > (self.done - 1) * LINES // self.total:
            share = 100 * self.done // self.total
            text = f", {values}" if values else ""
            logger.info("%s: %d %%, %d of %d %s%s", self.name, share, self.done, self.total, self.unit, text)

    def close(self) -> None: ...

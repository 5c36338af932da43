"""How far a long script is: a bar on a terminal, else lines; both with the rate and the time that remains."""

from __future__ import annotations

import os
import time

from tqdm import tqdm

LINES = 10
LINE_S = 60.0


class CountDisplay:
    """Shows how many of `total` units are done. Use as a context manager. TQDM_DISABLE=1 shows nothing.

    On a terminal (stderr) a bar; otherwise a line on stdout at each tenth, and after a minute without one.
    """

    def __init__(self, total: int, name: str, unit: str) -> None:
        self.total, self.name, self.unit, self.done = max(total, 1), name, unit, 0
        is_hidden = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        self._bar = tqdm(total=total, desc=name, unit=f" {unit}", disable=is_hidden or None, dynamic_ncols=True)
        self._has_lines = self._bar.disable and not is_hidden
        self._begin = self._shown = time.monotonic()

    def __enter__(self) -> CountDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, count: int) -> None:
        """`count` more units are done."""
        self._bar.update(count)
        before, self.done = self.done, self.done + count
        now = time.monotonic()
        is_tenth = self.done * LINES // self.total > before * LINES // self.total
        if self._has_lines and (is_tenth or now - self._shown > LINE_S):
            self._shown = now
            print(self._line(now - self._begin), flush=True)

    def _line(self, seconds: float) -> str:
        rate = self.done / max(seconds, 1e-6)
        left = tqdm.format_interval((self.total - self.done) / rate) if self.done else "?"
        share = 100 * self.done // self.total
        return f"{self.name}: {share} %, {self.done} of {self.total} {self.unit}, {rate:.1f} a second, {left} left"

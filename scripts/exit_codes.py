"""How scripts end after an error of the project."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from utils.errors import SpikeVRTError


def with_exit_code(main: Callable[..., int]) -> Callable[..., int]:
    """Decorator of a script's `main`: an error of the project is printed, and its exit code is returned."""

    @functools.wraps(main)
    def run(*arguments: list[str] | None) -> int:
        try:
            return main(*arguments)
        except SpikeVRTError as e:
            print(e, file=sys.stderr)
            return e.exit_code

    return run

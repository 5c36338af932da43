"""Permissions hold for an ordinary user only: root reads everything."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """The block runs without root's rights."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def readable_folder() -> Iterator[Path]:
    """An empty folder that every user may enter (those of pytest belong to one user)."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)

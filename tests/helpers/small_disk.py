"""A file system that is soon full."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(folder: Path, size: str, files: int = 1000) -> Generator[Path]:
    """A file system of that size, and for so many files, on `folder`."""
    folder.mkdir(parents=True)
    options = f"size={size},nr_inodes={files + 1}"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("needs root, to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)

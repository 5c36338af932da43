"""A small file system in memory, for tests of a full disk. Only root can mount it."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(folder: Path, size: str, files: int = 1000) -> Generator[Path]:
    """Give `folder` as a file system of its own, which is removed afterwards.

    size: how much it holds, e.g. "5m" or "16k". files: how many files and folders it holds. Skips
    the test if it cannot be mounted.
    """
    folder.mkdir(parents=True)
    # The folder itself takes one inode (an entry in the table of files), so add 1.
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

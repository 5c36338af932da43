"""A small file system in memory, for tests of a full disk. Only root can mount it."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(folder: Path, size: str, files: int = 1000) -> Generator[Path]:
    """Make `folder` a file system of its own within the block. Yields the folder.

    Skips the test if the file system cannot be mounted.

    size: number of bytes that it holds, e.g. "5m" or "16k".
    files: number of files and folders that it holds.
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

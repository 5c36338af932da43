"""Decoded images in memory that all loader workers of a rank share (`cache_data`)."""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from typing import IO

import numpy as np

logger = logging.getLogger(__name__)


class PictureMemory:
    """One slot per image, filled by the first process that decodes it and read by all, for the whole run.

    The slots are in an anonymous file (in memory on Linux) that forked workers inherit, so the workers of the next
    epoch find what those of the last one decoded. Memory is allocated as slots are filled.
    sizes: path -> (height, width). A pickled copy, which start methods other than fork make, starts empty.
    """

    def __init__(self, sizes: dict[str, tuple[int, int]]) -> None:
        self._sizes, self._slots = sizes, {}
        end = len(sizes)  # the file begins with one byte per image: whether its slot is filled
        for number, (path, (height, width)) in enumerate(sizes.items()):
            self._slots[path] = (number, end, (height, width, 3))
            end += height * width * 3
        self._file = _anonymous_file()
        self._file.truncate(end)
        self._map = mmap.mmap(self._file.fileno(), end, access=mmap.ACCESS_READ)
        self._is_full = False
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if end > 0.8 * memory:
            logger.warning(
                'cache_data keeps %.1f GB of images, this host has %.1f GB of memory: use io_backend "cache" instead',
                end / 1e9, memory / 1e9,
            )  # fmt: skip

    def __reduce__(self) -> tuple[type, tuple[dict[str, tuple[int, int]]]]:
        return PictureMemory, (self._sizes,)

    def get(self, path: str) -> np.ndarray | None:
        """(H, W, 3) uint8, read-only; None where no process has stored it yet."""
        number, start, shape = self._slots[path]
        if os.pread(self._file.fileno(), 1, number) != b"\1":
            return None
        return np.frombuffer(self._map, np.uint8, math.prod(shape), start).reshape(shape)

    def put(self, path: str, picture: np.ndarray) -> None:
        """Store an image of the stated size. Two processes may do so at once: they write the same bytes."""
        if self._is_full:
            return
        number, start, _ = self._slots[path]
        try:
            left = memoryview(np.ascontiguousarray(picture)).cast("B")
            while left:
                written = os.pwrite(self._file.fileno(), left, start)
                left, start = left[written:], start + written
            os.pwrite(self._file.fileno(), b"\1", number)  # after the image: it marks the slot as complete
        except OSError as e:
            self._is_full = True
            logger.warning("cache_data: no memory for more images (%s); the others are read from their files", e)


def _anonymous_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("cache_data"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)

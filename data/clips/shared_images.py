"""Keep decoded images in memory that all loader workers of a rank share: the option cache_data.

A loader worker is a process that is forked from the rank. It inherits memory that was reserved
before the fork, so all workers fill and read one copy of each image.

What must stay:

* `reserve` is called before the workers are forked, because memory that is reserved later belongs
  to only one worker
  (test_pictures_kept_in_memory_outlive_the_loader_processes_that_decoded_them),
* the first byte of a row is set after its image, so that no worker reads half an image. No test
  notices the wrong order.

Tests: tests/parts/data/test_dataset_video_rgbspike.py, tests/parts/data/test_manifest.py
"""

import logging
import math
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np

from data.clip import Clip

logger = logging.getLogger(__name__)

# Largest fraction of the host's memory that decoded images may take. The rest is for the run,
# because the system ends a run that needs more memory than there is. The fraction is chosen by
# hand.
LARGEST_MEMORY_FRACTION = 0.8


class SharedImages:
    """Decoded images of the clips of one rank."""

    def __init__(self) -> None:
        # {(clip, kind): array (frames, 1 + H W 3) uint8}, with a row for each frame. The first byte
        # of a row says whether the image was decoded: 0 or 1. The other bytes are the image.
        self._rows: dict[tuple[str, str], np.ndarray] = {}

    def reserve(self, clips: Sequence[Clip]) -> bool:
        """Reserve memory for the images of these clips. Returns whether the host has enough memory.

        If the host has too little memory, nothing is reserved, and a warning says so. Only the
        images of this rank are counted, and not the images of other ranks on the host. Reserving
        takes no memory yet: the system takes the memory of an image when the image is written.
        """
        # {(clip, kind): shape of its array in `_rows`}.
        shapes = {}
        for clip in clips:
            for kind in clip.image_kinds:  # e.g. "lq" and "gt": names of fields of the clip
                frames = len(getattr(clip, kind))
                height, width = clip.size_of(kind)
                # E.g. (40, 1 + 720 * 1280 * 3): a byte that says "decoded", and then the image.
                shapes[clip.name, kind] = (frames, 1 + height * width * 3)
        bytes_of_clips = sum(math.prod(shape) for shape in shapes.values())
        # A data set may have several data folders (roots), and `reserve` is called once for each.
        # So the images of earlier roots count as well.
        bytes_of_earlier_roots = sum(images.size for images in self._rows.values())
        bytes_needed = bytes_of_clips + bytes_of_earlier_roots
        bytes_of_host = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        if bytes_needed > LARGEST_MEMORY_FRACTION * bytes_of_host:
            text = (
                "cache_data is ignored: it would keep %.1f GB of images, "
                'this host has %.1f GB of memory; use io_backend "cache" instead'
            )
            logger.warning(text, bytes_needed / 1e9, bytes_of_host / 1e9)
            return False
        for key, shape in shapes.items():
            # -1 asks for memory without a file, filled with zeros.
            shared = mmap.mmap(-1, math.prod(shape))
            self._rows[key] = np.frombuffer(shared, np.uint8).reshape(shape)
        return True

    def image(
        self, clip: Clip, kind: str, number: int, decode: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Return image `number` of one kind, (H, W, 3) uint8. An image is decoded at its first use.

        decode: a function that decodes the image.
        """
        row = self._rows[clip.name, kind][number]  # a view: writing changes the shared memory
        is_decoded = row[0] == 1
        if not is_decoded:
            # Two workers may decode an image at once. Both write the same bytes, so no lock is
            # needed. The first byte is set last, so that no worker reads half an image. This is
            # safe only if the other cores of the processor see the writes in the same order, as on
            # x86.
            row[1:] = decode().ravel()
            row[0] = 1
        return row[1:].reshape(*clip.size_of(kind), 3)

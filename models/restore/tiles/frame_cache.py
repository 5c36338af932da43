"""Keep the frames of a clip that were read last, so that a frame in two tiles is decoded once.

A `FrameCache` wraps a reader of a clip (`utils.contract.FrameReader`), and is a reader of the same
frames. restorer.py makes a cache as large as one tile in time. validated_clip.py reads the frames
of the last tile once more, from the cache.

What must stay: a frame and the same frame in reversed time are different entries, because their
spikes differ. Free to change: the capacity, which changes no result.

Tests: tests/parts/models/test_tiling.py
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from utils.contract import FrameReader

# Number of frames that a cache keeps in addition to the frames that are needed at once. They are a
# reserve, because one frame more must not push out a frame that is still needed. 2 was chosen
# without a measurement.
SPARE_FRAMES = 2


class FrameCache:
    """Reads selected frames of a clip, and keeps the frames that were read last in memory.

    So a frame that lies in two overlapping tiles is decoded once.
    """

    def __init__(
        self, clip: FrameReader, capacity: int, selection: Sequence[int] | None = None
    ) -> None:
        """Wrap a reader.

        clip: the reader of all frames.
        capacity: number of frames that are kept.
        selection: indices of frames of the clip, in any order, e.g. [0, 1, 2, 3, 1, 2, 3, 4]. An
            index may come several times. None selects all frames.
        """
        self.name = clip.name
        self._selection = range(len(clip.stems)) if selection is None else selection
        self.stems = [clip.stems[index] for index in self._selection]
        self._cached_frame = lru_cache(capacity)(clip.frame)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the tensors of a frame: "lq", and "spike" if the clip has spikes.

        index: position in the selection. reverse: whether the spikes are given as in reversed time.
        """
        return self._cached_frame(self._selection[index], reverse)

"""`io_backend`: where the frames and spikes of clips are read from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.augment import Augment
from data.clip import Clip, Piece
from data.clip_cache import CacheReader
from data.clip_index import Source, find_clips
from data.frame_io import read_bgr
from data.picture_memory import PictureMemory
from data.roots import is_lmdb, open_spike_file
from data.spike.stream import Crop
from data.spike_source import DatSpikes
from utils.errors import DataError, OptionError
from utils.options.registry import Registry

IO_BACKENDS = Registry("io backend", "type")


@IO_BACKENDS.register("disk", given=("cache_data",))
class DiskFiles:
    """PNG or JPEG and spike files, each opened when it is read.

    cache_data: decoded images stay in memory, shared by all loader workers of a rank.
    """

    def __init__(self, cache_data: bool = False) -> None:
        self.cache_data = cache_data
        self._kept: PictureMemory | None = None

    def clips(self, source: Source) -> list[Clip]:
        """The clips of the source, checked. Raises DataError with all problems."""
        self._check_roots(source)
        clips = find_clips(source)
        if self.cache_data:
            pictures = [(clip, kind) for clip in clips for kind in clip.picture_kinds]
            sizes = {path: clip.size_of(kind) for clip, kind in pictures for path in getattr(clip, kind)}
            self._kept = PictureMemory(sizes)
        return clips

    def _check_roots(self, source: Source) -> None:
        databases = [root for root, _, _ in source.kinds().values() if is_lmdb(root)]
        if databases:
            raise OptionError(
                'io_backend.type is "disk", but a dataroot is an LMDB', databases[0], '"lmdb"',
                'set io_backend to {"type": "lmdb"}',
            )  # fmt: skip

    def pictures(self, clip: Clip, kind: str, frames: Sequence[int], aug: Augment) -> np.ndarray:
        """The crop of `aug` in pictures of one kind (data.clip.PICTURE_KINDS): (T, h, w, 3) uint8, B, G, R."""
        paths, size, scale = getattr(clip, kind), clip.size_of(kind), clip.scale_of(kind)
        return np.stack([aug.crop(self._picture(paths[i], size), scale) for i in frames])

    def stream(self, clip: Clip, piece: Piece, spikes: DatSpikes, crop: Crop) -> np.ndarray:
        """Planes of one file within the crop: (T, h, w) uint8 in {0, 1}."""
        file, known = open_spike_file(piece.file, spikes.geometry, spikes.remainder), clip.spike_files[piece.file]
        if file.planes != known:
            raise DataError(
                f"spike file has {file.planes} planes now", piece.file, f"{known}, as when the run started",
                "restore the file",
            )  # fmt: skip
        return file.read(piece.first, piece.count, crop)

    def _picture(self, path: str, size: tuple[int, int]) -> np.ndarray:
        picture = self._kept.get(path) if self._kept else None
        if picture is None:
            picture = read_bgr(path, size)
            if self._kept:
                self._kept.put(path, picture)
        return picture


@IO_BACKENDS.register("lmdb", given=("cache_data",))
class LmdbFiles(DiskFiles):
    """As "disk", but each dataroot whose name ends in .lmdb is a database, in the layout of KAIR and BasicSR."""

    def _check_roots(self, source: Source) -> None:
        if not any(is_lmdb(root) for root, _, _ in source.kinds().values()):
            raise OptionError(
                'io_backend.type is "lmdb", but no dataroot is an LMDB', source.dataroot_lq, "a folder named *.lmdb",
                "correct the dataroots, or io_backend.type",
            )  # fmt: skip


IO_BACKENDS.register("cache")(CacheReader)

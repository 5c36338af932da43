"""Read frames and spikes from the files of a data set: `io_backend` "disk" and "lmdb".

    clips(source)   lists the clips of a data root
    images(...)     reads crops of frames
    stream(...)     reads planes of a spike file

What must stay: the numbers that are read, because a run may be resumed with another io_backend
(test_a_cache_gives_the_samples_of_the_files,
test_an_lmdb_of_frames_gives_the_samples_of_the_files).
Free to change: how the files are read, and how much stays in memory.

Tests: tests/parts/data/test_io_backend.py
"""

import logging
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from data.augment import Augment
from data.clip import Clip, Piece
from data.clips import manifest
from data.clips.file_content import open_spike_file
from data.clips.kept import checked_clips
from data.clips.manifest import Source
from data.clips.pictures import read_bgr
from data.spike.geometry import Crop
from utils.errors import DataError

logger = logging.getLogger(__name__)
# Largest fraction of the host's memory that decoded images may take (cache_data). The rest is for
# the run. A larger fraction would risk that the system ends the run for lack of memory.
LARGEST_MEMORY_FRACTION = 0.8


@dataclass
class DiskFiles:
    """PNG or JPEG and spike files, each opened when it is read.

    cache_data: whether decoded images stay in memory, shared by all loader workers of a rank.
    """

    cache_data: bool = False
    # Memory for decoded images, {(clip, kind): array (frames, 1 + H W 3) uint8}. A row belongs to a
    # frame. Its first byte is 1 once the image was decoded; the other bytes are the image.
    _decoded: dict[tuple[str, str], np.ndarray] = field(default_factory=dict, init=False)

    def __getstate__(self) -> dict[str, Any]:
        # A loader worker that is not forked gets a pickled copy of this object. Only forked
        # processes share memory, so the copy keeps no images and reads the files.
        return {
            "cache_data": False,
            "_decoded": {},
        }

    def clips(self, source: Source) -> Sequence[Clip]:
        """Return the clips of the source. Raises DataError with all problems.

        If this run has checked the data already, this returns the clips that the check found.
        Otherwise it checks the files now.

        With cache_data, call this before loader workers are forked, because the method reserves the
        memory that they share. A later call would give each worker memory of its own.
        """
        clips: Sequence[Clip] | None = checked_clips(source)
        if clips is None:
            found, problems = manifest.scan(source)
            manifest.raise_problems([(source, problems)])
            clips = [replace(clip, name=source.name_prefix + clip.name) for clip in found]
        if self.cache_data:
            self._allocate_memory(clips)
        return clips

    def _allocate_memory(self, clips: Sequence[Clip]) -> None:
        """Reserve memory for the decoded images of these clips, if the host has enough.

        If not, this sets `cache_data` to False, and a warning says so.

        Reserving takes no memory yet: the system gives a page when an image is written to it.
        Forked loader workers inherit the memory, so all workers fill and read one copy.
        """
        # {(clip, kind): shape of its array in `_decoded`}.
        shapes = {}
        for clip in clips:
            for kind in clip.image_kinds:
                frames = len(getattr(clip, kind))
                height, width = clip.size_of(kind)
                # For each frame a byte that says whether it was decoded, and then the image.
                shapes[clip.name, kind] = (frames, 1 + height * width * 3)
        bytes_of_root = sum(math.prod(shape) for shape in shapes.values())
        # `clips` is called once for each root, so the images of earlier roots count as well.
        bytes_of_earlier_roots = sum(images.size for images in self._decoded.values())
        bytes_needed = bytes_of_root + bytes_of_earlier_roots
        bytes_of_host = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        if bytes_needed > LARGEST_MEMORY_FRACTION * bytes_of_host:
            text = (
                "cache_data is ignored: it would keep %.1f GB of images, "
                'this host has %.1f GB of memory; use io_backend "cache" instead'
            )
            logger.warning(text, bytes_needed / 1e9, bytes_of_host / 1e9)
            self.cache_data = False
            return
        for key, shape in shapes.items():
            # -1 asks for memory without a file, filled with zeros.
            shared = mmap.mmap(-1, math.prod(shape))
            self._decoded[key] = np.frombuffer(shared, np.uint8).reshape(shape)

    def images(self, clip: Clip, kind: str, frames: Sequence[int], augment: Augment) -> np.ndarray:
        """Return crops of some images of one kind: (T, h, w, 3) uint8 in B, G, R.

        kind: "lq", "gt" or "gt_instants". frames: numbers of the images within the clip.
        augment: the crop, in pixels of lq, and its flips.
        """
        # Images of this kind may be larger than lq: with scale 4, gt has 4 times its height. `crop`
        # multiplies its pixel numbers by the scale.
        height, _ = clip.size_of(kind)
        height_of_lq, _ = clip.size
        scale = height // height_of_lq
        crops = []
        for number in frames:
            image = self._image(clip, kind, number)
            crops.append(augment.crop(image, scale))
        return np.stack(crops)

    def _image(self, clip: Clip, kind: str, number: int) -> np.ndarray:
        """Return image `number` of one kind, (H, W, 3) uint8 in B, G, R."""
        # `opened` is set only for a user's clip, which may be a film. Its readers return R, G, B.
        if clip.opened:
            return clip.opened[kind].read(number)[..., ::-1]
        path = getattr(clip, kind)[number]
        size = clip.size_of(kind)
        if not self.cache_data:
            return read_bgr(path, size)
        row = self._decoded[clip.name, kind][number]  # a view: writing changes the shared memory
        is_decoded = row[0] == 1
        if not is_decoded:
            # Two workers may do this at once. They write the same bytes, so no lock is needed. The
            # first byte is set after the image, so that no worker reads half an image. (An x86
            # processor writes in this order.)
            row[1:] = read_bgr(path, size).ravel()
            row[0] = 1
        return row[1:].reshape(*size, 3)

    def stream(self, clip: Clip, piece: Piece, crop: Crop) -> np.ndarray:
        """Return planes of one spike file within the crop: (T, h, w) uint8 in {0, 1}.

        piece: the file and its planes. crop: in spike pixels. Raises DataError if the file has
        another number of planes than at the check of the data, because its frames would then have
        other planes.
        """
        geometry = clip.spikes.geometry
        file = open_spike_file(piece.file, geometry, clip.spikes.remainder)
        planes_at_check = clip.planes_of_spike_files[piece.file]
        if file.planes != planes_at_check:
            raise DataError(
                what=f"spike file has {file.planes} planes now",
                where=piece.file,
                expected=f"{planes_at_check}, as at the start",
                do="restore the file",
            )
        return file.read(piece.first, piece.count, crop)


class LmdbFiles(DiskFiles):
    """As "disk", but each dataroot whose name ends in .lmdb is a database, in the layout of KAIR
    and BasicSR.
    """

    # All methods are inherited, because data/clips/file_content.py reads both files and databases.

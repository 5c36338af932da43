"""Read frames and spikes from the files of a data set: `io_backend` "disk" and "lmdb".

    clips(source)   lists the clips of a data root
    images(...)     reads crops of frames
    stream(...)     reads planes of a spike file

What must stay: the numbers that are read, because a run may be resumed with another io_backend
(test_a_cache_gives_the_samples_of_the_files,
test_an_lmdb_of_frames_gives_the_samples_of_the_files).
Free to change: how the files are read, and how much stays in memory.

Tests: tests/parts/data/test_io_backend.py, tests/parts/data/test_clip_cache.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from data.augment import Augment
from data.clip import Clip, Piece
from data.clips import manifest
from data.clips.file_content import open_spike_file
from data.clips.kept import checked_clips
from data.clips.manifest import Source
from data.clips.pictures import read_bgr
from data.clips.shared_images import SharedImages
from data.spike.geometry import Crop
from utils.errors import DataError
from utils.words import counted


@dataclass
class DiskFiles:
    """Reads PNG, JPEG and spike files. A file is opened when it is read.

    cache_data: whether decoded images stay in memory, shared by all loader workers of a rank.
    """

    cache_data: bool = False
    _shared_images: SharedImages = field(default_factory=SharedImages, init=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a pickled copy. The copy keeps no images in memory."""
        # A loader worker that is not forked gets a pickled copy of this object. Such a worker
        # shares no memory, so its copy keeps no images and reads the files.
        return {
            "cache_data": False,
            "_shared_images": SharedImages(),
        }

    def clips(self, source: Source) -> Sequence[Clip]:
        """Return the clips of the source. Raises DataError with all problems.

        If this run has checked the data already (data/clips/preflight.py), the clips that the check
        found are returned. If not, the files are checked now.

        Call `clips` before loader workers are forked, because with cache_data it reserves the
        memory that the workers share. A later call would give each worker memory of its own.
        """
        clips: Sequence[Clip] | None = checked_clips(source)
        if clips is None:
            found, problems = manifest.scan(source)
            manifest.raise_problems([(source, problems)])
            # With several roots, the names begin with the number of the root, e.g. "1/clip_07".
            clips = [replace(clip, name=source.name_prefix + clip.name) for clip in found]
        if self.cache_data:
            # If the host has too little memory, `reserve` returns False, and the images are decoded
            # at each use.
            self.cache_data = self._shared_images.reserve(clips)
        return clips

    def images(self, clip: Clip, kind: str, frames: Sequence[int], augment: Augment) -> np.ndarray:
        """Return crops of some images of one kind: (T, h, w, 3) uint8 in B, G, R.

        kind: "lq", "gt" or "gt_instants".
        frames: numbers of the images within the clip.
        augment: the crop, in pixels of lq. The caller (data/clip_reading.py) makes the flips of
        `augment`.
        """
        # The crop of `augment` is in pixels of lq. `augment.crop` multiplies it by the scale. E.g.
        # with scale 4, gt has 4 times the height of lq.
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
        # `opened` is set only for a user's clip, which may be a film. `read` returns R, G, B, and
        # the slice turns it into B, G, R.
        if clip.opened:
            return clip.opened[kind].read(number)[..., ::-1]
        path = getattr(clip, kind)[number]
        size = clip.size_of(kind)
        if not self.cache_data:
            return read_bgr(path, size)
        # `image` calls the partial function, i.e. read_bgr(path, size), only at the first use.
        return self._shared_images.image(clip, kind, number, partial(read_bgr, path, size))

    def stream(self, clip: Clip, piece: Piece, crop: Crop) -> np.ndarray:
        """Return planes of one spike file within the crop: (T, h, w) uint8 in {0, 1}.

        piece: the file and its planes.
        crop: in spike pixels.
        Raises DataError if the number of planes of the file has changed since the check of the
        data, because a frame could get the planes of a different frame.
        """
        geometry = clip.spikes.geometry
        file = open_spike_file(piece.file, geometry, clip.spikes.remainder)
        planes_at_check = clip.planes_of_spike_files[piece.file]
        if file.planes != planes_at_check:
            raise DataError(
                what=f"spike file has {counted(file.planes, 'plane')} now",
                where=piece.file,
                expected=f"{planes_at_check}, as at the start",
                do="restore the file",
            )
        return file.read(piece.first, piece.count, crop)


class LmdbFiles(DiskFiles):
    """Reads files as "disk" does. A dataroot whose name ends in .lmdb is a database in the
    layout of KAIR and BasicSR.
    """

    # All methods are inherited, because the functions that they call (data/clips/file_content.py)
    # read files and databases.

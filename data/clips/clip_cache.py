"""Read a clip cache (`io_backend` "cache"), which has every clip as raw arrays on disk.

Only the crop of the frames of a sample is read, and nothing is decoded. data/clips/cache_format.py
shows the files of a cache.

    clips(source)   lists the clips of a data root
    images(...)     reads crops of frames
    stream(...)     reads planes of a spike file

What must stay: the cache gives the same numbers as the files
(test_a_cache_gives_the_samples_of_the_files). If a cache does not fit its files or options, the
cache is refused. Free to change: how the arrays are mapped and read.

Tests: tests/parts/data/test_clip_cache.py, tests/parts/data/test_io_backend.py
"""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.augment import Augment
from data.cameras.frame_planes import exposures_of
from data.clip import Clip, Piece
from data.clips import manifest
from data.clips.cache_format import (
    BUILD_COMMAND,
    STORED_FIELDS_OF_CLIP,
    load_index,
    selection_of,
    shapes_of_arrays,
)
from data.clips.manifest import Source
from data.spike.geometry import Crop, SpikeGeometry
from data.spike.spike_file import SpikeFile
from utils.errors import DataError

logger = logging.getLogger(__name__)


@dataclass
class CacheReader:
    """A clip cache made by scripts/build_clip_cache.py in the folder `path`.

    Each read maps its file and releases it afterwards, so memory does not grow. `images` and
    `stream` must return the same numbers as the methods of `DiskFiles`.
    """

    path: str

    def clips(self, source: Source) -> list[Clip]:
        """Return the cached clips, after a check that the cache still matches the source.

        Source folders that are not on this machine are not compared. Raises DataError for a cache
        that does not match or is broken.

        What must stay: every check. Each check refuses a change of data or of options that would
        make the cached frames wrong. A new option that changes what the cache must hold needs a
        check here (test_clip_cache.py).
        """
        # `index` is the content of index.json, which `_index_of` in cache_builder.py makes. For
        # example:
        #
        #     {"format": ...,
        #      "source": {"lq": digest of the lq files, "gt": ...},
        #      "selection": which clips were chosen,
        #      "spike": {"height": 250, "width": 400, ...}, or null without spikes,
        #      "clips": [{"name": "clip_a", "lq": [paths], ...}, ...]}
        #
        # With several data roots, each root has a prefix "0/", "1/", ... for the names of its
        # clips. The cache of a root is in a folder with the name of the prefix.
        index = load_index(os.path.join(self.path, source.name_prefix))
        self._refuse_other_options(index, source)
        self._refuse_changed_source(index, source)
        clips = []
        for record in index["clips"]:
            clip = self._clip_of(record, source)  # the name of the clip has no prefix yet
            self._refuse_arrays_of_other_size(clip, source)
            if source.spikes:
                clip = self._with_exposures(clip, source)
            clips.append(replace(clip, name=source.name_prefix + clip.name))
        return clips

    def _refuse_other_options(self, index: dict[str, Any], source: Source) -> None:
        """Refuse a cache if the data set had different options when the cache was built.

        index: content of index.json (`_index_of` in data/clips/cache_builder.py makes it).

        Test: test_a_cache_that_does_not_fit_its_source_or_is_broken_is_refused
        """
        # Kinds of files ("lq", ...) that the data set needs, but the cache does not have. E.g.
        # {"lq", "gt"} - {"lq"} is {"gt"}.
        missing_kinds = sorted(source.kinds().keys() - index["source"].keys())
        if missing_kinds:
            raise self._does_not_fit(f"it holds no {', '.join(missing_kinds)}")
        if source.spikes:
            # A cache stores planes row by row ("raster"), even if the spike files do not. If an
            # older index lacks some fields of `SpikeGeometry`, the fields get their defaults
            # (test_a_cache_of_an_earlier_version_is_read). "spike" is not null here, because the
            # cache has spikes, as checked above.
            stored_geometry = SpikeGeometry(**index["spike"])
            if stored_geometry != source.spikes.geometry.as_raster():
                raise self._does_not_fit(f"its spikes are {index['spike']}")
        if index["selection"] != selection_of(source):
            raise self._does_not_fit(
                "it was built for another selection of clips (meta_info_file, val_partition)"
            )

    def _refuse_changed_source(self, index: dict[str, Any], source: Source) -> None:
        """Refuse a cache if files of its source have changed since the cache was built.

        A kind of files is compared if its root (folder) is on this machine. If a root is missing,
        the log says so.

        index: the content of index.json, whose "source" has a digest for each kind.

        Test: test_a_cache_can_be_read_without_its_source
        """
        # Name of a kind, e.g. "lq" -> where its files are: root, folder and suffixes.
        kinds = source.kinds()
        kinds_here = [name for name, kind in kinds.items() if os.path.exists(kind.root)]
        changed_kinds = []  # names of kinds
        # `listing` has the files of one kind. Their digest changes if the name, the size or the
        # modification time of any file changes. The index holds the digest that was computed when
        # the cache was built.
        for name, listing in manifest.list_source(source, kinds_here).items():
            if index["source"][name] != manifest.digest(name, listing):
                changed_kinds.append(name)
        if changed_kinds:
            raise self._does_not_fit(
                f"{', '.join(changed_kinds)} files of the source have changed since"
            )
        if len(kinds_here) < len(kinds):
            logger.info(
                "the source of cache %s is not on this machine: not checked for changes", self.path
            )

    def _clip_of(self, record: dict[str, Any], source: Source) -> Clip:
        """Return a clip of the index. The clip still lacks two things, which `clips` adds:

            exposures, the planes of each frame             `_with_exposures`
            the prefix of the name, "clip_a" -> "0/clip_a"  `Source.name_prefix`

        record: the entry of the clip in the index, e.g. {"name": "clip_a", ...}.

        Test: test_a_cache_with_spikes_serves_a_training_without_spikes
        """
        kinds = source.kinds()
        values: dict[str, Any] = {}
        for key in STORED_FIELDS_OF_CLIP:
            value = record[key]
            # JSON has no tuples, and a Clip has no lists.
            values[key] = tuple(value) if isinstance(value, list) else value
        # A cache may hold kinds of files that these options do not use. The clip then has () for
        # such a kind, as if there were no such files.
        for kind in ("gt", "gt_instants", "spike"):
            if kind not in kinds:
                values[kind] = ()
        # `own_spikes`: name of a clip -> its spike settings, only for clips that have settings of
        # their own. All other clips have `source.spikes`.
        spikes = source.own_spikes.get(record["name"], source.spikes)
        return Clip(**values, spikes=spikes)

    def _refuse_arrays_of_other_size(self, clip: Clip, source: Source) -> None:
        """Refuse a cache if a file of a clip is missing or has a wrong size.

        clip: result of `_clip_of`, whose name has no prefix yet.
        """
        name_with_prefix = source.name_prefix + clip.name
        for kind, shape in shapes_of_arrays(clip).items():
            path = self._path_of(name_with_prefix, kind)
            size = path.stat().st_size if path.exists() else 0
            expected_size = math.prod(shape)  # a uint8 is one byte
            if size != expected_size:
                raise self._does_not_fit(f"{path} has {size} bytes, expected {expected_size}")

    def _with_exposures(self, clip: Clip, source: Source) -> Clip:
        """Return the clip with its exposures: for each frame, the spike planes that it needs.

        The cache does not store the exposures, because they follow from the spike options.

        Test: test_a_cache_of_one_file_per_clip_is_refused_for_files_per_frame
        """
        # The cache and the options must agree whether a clip has one spike file for all frames, or
        # a spike file for each frame. For a clip of one frame, the two cases are the same.
        is_one_file = _has_one_spike_file(clip)
        if len(clip) > 1 and is_one_file != source.has_one_spike_file:
            held = "one spike file" if is_one_file else "a spike file of each frame"
            raise self._does_not_fit(f"it holds {held} of clip {clip.name} (spike.exposure)")
        planes_of_files = list(clip.planes_of_spike_files.items())  # (path, number of planes) each
        exposures = exposures_of(clip.spikes, clip.name, planes_of_files, len(clip))
        return replace(clip, exposures=exposures)

    def images(self, clip: Clip, kind: str, frames: Sequence[int], augment: Augment) -> np.ndarray:
        """Return crops of some images of one kind: (T, h, w, 3) uint8 in B, G, R.

        kind: "lq", "gt" or "gt_instants".
        frames: numbers of the images within the clip.
        augment: the crop, in pixels of lq. The caller (data/clip_reading.py) makes the flips of
        `augment`.
        """
        stored_images = self._map_array(clip, kind)  # (frames, H, W, 3)
        # The crop of `augment` is in pixels of lq. `augment.crop` multiplies it by the scale. E.g.
        # with scale 4, gt has 4 times the height of lq.
        height, _ = clip.size_of(kind)
        height_of_lq, _ = clip.size
        scale = height // height_of_lq
        return np.stack([augment.crop(stored_images[number], scale) for number in frames])

    def stream(self, clip: Clip, piece: Piece, crop: Crop) -> np.ndarray:
        """Return planes of one spike file within the crop: (T, h, w) uint8 in {0, 1}.

        piece: the source file and its planes.
        crop: in spike pixels.
        """
        # The array has the planes of all files of the clip, so read it like one large packed file
        # (a bit for each pixel). cache_builder.py has stored its planes row by row ("raster").
        stored_planes = self._map_array(clip, "spike")  # (planes, bytes of a plane)
        geometry = clip.spikes.geometry.as_raster()
        all_planes = SpikeFile(
            piece.file, geometry, planes=len(stored_planes), packed=stored_planes
        )
        # Skip the planes of the earlier files. E.g. if the first file has 40 planes, plane 5 of the
        # second file is plane 45 of the array (test_a_cache_gives_the_samples_of_the_files).
        planes_before = 0
        for file, planes in clip.planes_of_spike_files.items():
            if file == piece.file:
                break
            planes_before += planes
        return all_planes.read(planes_before + piece.first, piece.count, crop)

    def paths_of(self, clip: Clip) -> list[str]:
        """Return the paths of the files of the cache that hold a clip."""
        return [str(self._path_of(clip.name, kind)) for kind in shapes_of_arrays(clip)]

    def _path_of(self, name_with_prefix: str, kind: str) -> Path:
        """Return the path of one array of a clip in the cache: <path>/<clip>/<kind>.u8.

        name_with_prefix: the name of a clip that `clips` returned.
        """
        return Path(self.path, name_with_prefix, f"{kind}.u8")

    def _map_array(self, clip: Clip, kind: str) -> np.ndarray:
        """Map an array of the cache into memory. Raises DataError.

        clip: a clip that `clips` returned.

        Test: test_an_array_that_is_removed_during_the_run_is_named
        """
        path = self._path_of(clip.name, kind)
        shape = shapes_of_arrays(clip)[kind]
        try:
            return np.memmap(path, np.uint8, mode="r", shape=shape)
        # np.memmap raises ValueError if the file has fewer bytes than the array.
        except (OSError, ValueError) as e:
            raise DataError(
                what=f"cannot map cached clip: {e}",
                where=str(path),
                expected=f"{math.prod(shape)} bytes",
                do=f"build the cache again: {BUILD_COMMAND}",
            ) from e

    def _does_not_fit(self, why: str) -> DataError:
        """Return the error for a cache that must be built again.

        why: a clause for the message, e.g. "it holds no gt".
        """
        return DataError(
            what=f"the clip cache does not fit the data: {why}",
            where=self.path,
            expected="a cache built from the data as they are now",
            do=f"build the cache again: {BUILD_COMMAND}",
        )


def _has_one_spike_file(clip: Clip) -> bool:
    """Return whether a clip has one spike file for all frames, and not one for each frame."""
    # `planes_of_spike_files` has each file once.
    return len(clip.planes_of_spike_files) < len(clip)

"""Where a dataset reads the frames and spikes of its clips from, the option `io_backend`.

* "disk" (`DiskFiles`) reads PNG or JPEG files and spike files.
* "lmdb" (`LmdbFiles`) reads frames and spikes from databases.
* "cache" (`CacheReader`) reads a clip cache: every clip as raw arrays on disk. Then only the crop
  of the frames of a sample is read, and nothing is decoded. `build_cache` makes a clip cache.

Each class has three methods, which data/clip_reading.py calls:

    clips(source)   lists the clips of a data root
    images(...)     reads crops of frames
    stream(...)     reads planes of a spike file

What must stay: all classes return the same numbers for the same data, because a run may be resumed
with another io_backend (test_a_cache_gives_the_samples_of_the_files,
test_an_lmdb_of_frames_gives_the_samples_of_the_files). Free to change: how a class reads,
and how much it keeps in memory. A new backend needs these three methods and the decorator
`IO_BACKENDS.register`.

Files of a clip cache:

    <path>/index.json              format, digest of the source files, spike geometry, and the
                                   fields `STORED` of every clip
    <path>/<clip>/lq.u8            (frames, H, W, 3) uint8 in the order B, G, R
    <path>/<clip>/gt.u8            the sharp frames, in the same form
    <path>/<clip>/gt_instants.u8   the K sharp instants of each frame: (frames K, H, W, 3)
    <path>/<clip>/spike.u8         (planes, bytes of a plane) uint8: the planes of all spike files
                                   of the clip one after the other, packed as in a .dat

Whoever changes the content of these files must raise `FORMAT`, so that old caches are refused.

Tests: tests/parts/data/test_io_backend.py, tests/parts/data/test_clip_cache.py
"""

import json
import logging
import math
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.augment import Augment
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clip import IMAGE_KINDS, Clip, Piece, checked_name
from data.clips import manifest
from data.clips.file_content import open_spike_file
from data.clips.kept import checked_clips
from data.clips.manifest import Source
from data.clips.pictures import read_bgr
from data.spike.geometry import Crop, SpikeGeometry
from data.spike.packing import pack
from data.spike.spike_file import SpikeFile
from utils.errors import DataError
from utils.files import (
    MARK,
    free_bytes,
    publish_folder,
    refuse_foreign,
    refuse_overlap,
    scratch_folder,
    write_whole,
)
from utils.json_file import read_json
from utils.options.section import Registry

logger = logging.getLogger(__name__)

IO_BACKENDS = Registry("io backend", "type")

# Version of the files of a clip cache. A cache of another version is refused.
FORMAT = 1
INDEX = "index.json"
# Fields of a `Clip` that the index stores. The other fields follow from the options at each start.
# These names are keys of the index, so a change needs another FORMAT
# (test_a_cache_of_an_earlier_version_is_read).
STORED = (
    "name",
    "stems",
    "lq",
    "gt",
    "spike",
    "planes",
    "size",
    "gt_size",
    "gt_instants",
)
# Largest index in bytes that is read. The index of the 64,612 clips of Vimeo-90K is far smaller.
LARGEST_INDEX = 2**32
# Largest fraction of the host's memory that decoded images may take (cache_data). The rest is for
# the run. A larger fraction would risk that the system ends the run for lack of memory.
LARGEST_MEMORY_FRACTION = 0.8
# Largest fraction of the free space that a new clip cache may take, so that the disk is never full.
LARGEST_DISK_FRACTION = 0.95
# The command that error messages advise.
BUILD_COMMAND = "python scripts/build_clip_cache.py --opt FILE --split SPLIT"


# ---- Files on disk ---------------------------------------------------------------------------


# cache_data is an option of the data set, and io_backend has no such key. So the data set passes
# the value to the constructor (`given`).
@IO_BACKENDS.register("disk", given=("cache_data",))
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


@IO_BACKENDS.register("lmdb", given=("cache_data",))
class LmdbFiles(DiskFiles):
    """As "disk", but each dataroot whose name ends in .lmdb is a database, in the layout of KAIR
    and BasicSR.
    """

    # All methods are inherited, because data/clips/file_content.py reads both files and databases.


# ---- Read a clip cache -----------------------------------------------------------------------


@IO_BACKENDS.register("cache")
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

        What must stay: every check. Each refuses a change of data or of options that would make the
        cached frames wrong. A new option of this kind needs a check here (test_clip_cache.py).
        """
        index = _load_index(os.path.join(self.path, source.name_prefix))
        self._refuse_other_options(index, source)
        self._refuse_changed_source(index, source)
        clips = []
        for record in index["clips"]:
            clip = self._clip_of(record, source)
            self._refuse_other_arrays(clip, source)
            if source.spikes:
                clip = self._with_exposures(clip, source)
            clips.append(replace(clip, name=source.name_prefix + clip.name))
        return clips

    def _refuse_other_options(self, index: dict[str, Any], source: Source) -> None:
        """Refuse a cache that was built with other options than the data set has now.

        index: content of index.json, as `_index_of` made it for the cache.
        """
        # Kinds of files ("lq", ...) that the data set needs and the cache does not have.
        missing = sorted(source.kinds().keys() - index["source"].keys())
        if missing:
            raise self._does_not_fit(f"it holds no {', '.join(missing)}")
        if source.spikes:
            # A cache stores planes row by row ("raster"), also if the spike files do not.
            stored_geometry = SpikeGeometry(**index["spike"])
            if stored_geometry != source.spikes.geometry.as_raster():
                raise self._does_not_fit(f"its spikes are {index['spike']}")
        if index["selection"] != _selection_of(source):
            raise self._does_not_fit(
                "it was built for another selection of clips (meta_info_file, val_partition)"
            )

    def _refuse_changed_source(self, index: dict[str, Any], source: Source) -> None:
        """Refuse a cache if files of its source have changed since it was built.

        A kind of files is not compared if its root is not on this machine. The log says so.
        """
        kinds = source.kinds()  # {name of the kind, e.g. "lq": its root and form}
        kinds_here = [name for name, kind in kinds.items() if os.path.exists(kind.root)]
        changed = []  # names of kinds
        for name, listing in manifest.list_source(source, kinds_here).items():
            if index["source"][name] != manifest.digest(name, listing):
                changed.append(name)
        if changed:
            raise self._does_not_fit(f"{', '.join(changed)} files of the source have changed since")
        if len(kinds_here) < len(kinds):
            logger.info(
                "the source of cache %s is not on this machine: not checked for changes", self.path
            )

    def _clip_of(self, record: dict[str, Any], source: Source) -> Clip:
        """Return a clip without its exposures, the planes of each frame.

        `_with_exposures` adds the exposures. record: the entry of the clip in the index. The name
        of the clip has no prefix yet (`Source.name_prefix`); `clips` adds it.
        """
        kinds = source.kinds()
        values: dict[str, Any] = {}
        for key in STORED:
            value = record[key]
            # JSON has no tuples, and a Clip has no lists.
            values[key] = tuple(value) if isinstance(value, list) else value
        # These three fields have paths of files, one or more for each frame. A cache may hold kinds
        # of files that these options do not use. () says that the clip has no files of this kind.
        for kind in ("gt", "gt_instants", "spike"):
            if kind not in kinds:
                values[kind] = ()
        # `own_spikes` has the clips with other spike settings than most clips have.
        spikes = source.own_spikes.get(record["name"], source.spikes)
        return Clip(**values, spikes=spikes)

    def _refuse_other_arrays(self, clip: Clip, source: Source) -> None:
        """Refuse a cache in which a file of a clip is missing or has another size.

        clip: result of `_clip_of`. Its name has no prefix yet, so the path needs the prefix here.
        """
        for kind, shape in _shapes_of_arrays(clip).items():
            path = Path(self.path, source.name_prefix, clip.name, f"{kind}.u8")
            size = path.stat().st_size if path.exists() else 0
            expected_size = math.prod(shape)
            if size != expected_size:
                raise self._does_not_fit(f"{path} has {size} bytes, expected {expected_size}")

    def _with_exposures(self, clip: Clip, source: Source) -> Clip:
        """Return the clip with the planes of each frame, which follow from the spike options."""
        # The cache and the options must agree whether a clip has one spike file for all frames, or
        # a spike file for each frame. `planes_of_spike_files` has each file once, so one file for
        # all frames means fewer files than frames. For a clip of one frame, both forms are the
        # same.
        is_one_file = len(clip.planes_of_spike_files) < len(clip)
        if len(clip) > 1 and is_one_file != source.has_one_spike_file:
            held = "one spike file" if is_one_file else "a spike file of each frame"
            raise self._does_not_fit(f"it holds {held} of clip {clip.name} (spike.exposure)")
        planes_of_files = list(clip.planes_of_spike_files.items())  # (path, number of planes) each
        exposures = clip.spikes.exposures(clip.name, planes_of_files, len(clip))
        return replace(clip, exposures=exposures)

    def images(self, clip: Clip, kind: str, frames: Sequence[int], augment: Augment) -> np.ndarray:
        """Return crops of some images of one kind: (T, h, w, 3) uint8 in B, G, R.

        kind: "lq", "gt" or "gt_instants". frames: numbers of the images within the clip.
        augment: the crop, in pixels of lq.
        """
        stored = self._map_array(clip, kind)  # (frames, H, W, 3)
        # `crop` multiplies its pixel numbers by the scale, because they are in pixels of lq.
        height, _ = clip.size_of(kind)
        height_of_lq, _ = clip.size
        scale = height // height_of_lq
        return np.stack([augment.crop(stored[number], scale) for number in frames])

    def stream(self, clip: Clip, piece: Piece, crop: Crop) -> np.ndarray:
        """Return planes of one spike file within the crop: (T, h, w) uint8 in {0, 1}.

        piece: the source file and its planes. crop: in spike pixels.
        """
        geometry = clip.spikes.geometry.as_raster()
        # (planes of all files of the clip, bytes of a plane)
        stored = self._map_array(clip, "spike")
        # Skip the planes of the files before this file. For example, plane 5 of the second file is
        # plane 45 of the array if the first file has 40 planes
        # (test_a_cache_gives_the_samples_of_the_files).
        planes_before = 0
        for file, planes in clip.planes_of_spike_files.items():
            if file == piece.file:
                break
            planes_before += planes
        file_in_cache = SpikeFile(piece.file, geometry, planes=len(stored), packed=stored)
        return file_in_cache.read(planes_before + piece.first, piece.count, crop)

    def paths_of(self, clip: Clip) -> list[str]:
        """Return the paths of the files of the cache that hold a clip."""
        return [str(Path(self.path, clip.name, f"{kind}.u8")) for kind in _shapes_of_arrays(clip)]

    def _map_array(self, clip: Clip, kind: str) -> np.ndarray:
        """Map an array of the cache into memory. Raises DataError.

        clip: a clip that `clips` returned. Its name has the prefix already.
        """
        path = Path(self.path, clip.name, f"{kind}.u8")
        shape = _shapes_of_arrays(clip)[kind]
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


# ---- Build a clip cache ----------------------------------------------------------------------


def build_cache(
    source: Source, path: str, track: Callable[[list[Clip]], Iterable[Clip]] = iter
) -> list[Clip]:
    """Write the clips of `source` to the folder `path`. Returns the clips.

    The folder appears complete or not at all. After an interruption, a second call writes only the
    missing clips.
    track: a function that yields the clips that it gets, and shows the progress.
    Raises DataError for wrong data, and for a disk without enough room.

    What must stay: every refusal comes before the first clip is written, and the old cache is only
    removed when the new cache is complete. Only a cache with a clip in common is ever replaced
    (test_a_cache_is_not_replaced_by_one_of_another_split,
    test_nothing_foreign_makes_room_for_a_cache).
    """
    target = Path(os.path.abspath(path))
    # Refuse a folder within a data root, or around one.
    refuse_overlap(target, source.roots(), "--out")
    cached = _cached_clips(target)  # names of the clips of an older cache
    clips, problems = manifest.scan(source)
    manifest.raise_problems([(source, problems)])
    _refuse_cache_of_others(cached, clips, target)

    # The clips are written into this folder, which gets its final name at the end.
    partial = target.with_name(f".{target.name}.partial")
    index = json.dumps(_index_of(source, clips))
    # Continue an interrupted build only if it was for the same clips and files. Otherwise
    # `scratch_folder` removes the old folder and makes an empty one.
    if not _has_begun(partial, index):
        scratch_folder(partial)
        write_whole(partial / INDEX, index.encode())
    clips_to_write = [clip for clip in clips if not (partial / clip.name).exists()]
    _refuse_full_disk(clips_to_write, partial)
    for clip in track(clips_to_write):
        _write_clip(clip, partial)
    if target.exists():
        # Check the old cache again before it is removed, because somebody may have put files into
        # its folder while the new cache was written.
        _cached_clips(target)
        shutil.rmtree(target)
    publish_folder(partial, target)  # gives the folder its final name
    return clips


def _selection_of(source: Source) -> list[Any]:
    """Return which clips of the folders belong to the data set, in the form of the index.

    The two entries are the clips that the meta file lists, and the clips that are left out.
    """
    return [source.meta_entries or {}, sorted(source.excluded_clips)]


def _index_of(source: Source, clips: Sequence[Clip]) -> dict[str, Any]:
    """Return the content of index.json.

    The keys are the format of a clip cache. A change needs another FORMAT.
    """
    digests = {}
    for kind, listing in manifest.list_source(source).items():
        digests[kind] = manifest.digest(kind, listing)
    spike = None
    if source.spikes:
        spike = asdict(source.spikes.geometry.as_raster())
    return {
        "format": FORMAT,
        "source": digests,
        "selection": _selection_of(source),
        "spike": spike,
        "clips": [{key: getattr(clip, key) for key in STORED} for clip in clips],
    }


def _has_begun(partial: Path, index: str) -> bool:
    """Return whether `partial` is our folder of an interrupted build with the same index.

    `scratch_folder` puts a file named MARK into each folder that it makes.
    """
    index_file = partial / INDEX
    if not (partial / MARK).is_file() or not index_file.is_file():
        return False
    return index_file.read_text(encoding="utf-8") == index


def _refuse_cache_of_others(cached: set[str], clips: Sequence[Clip], target: Path) -> None:
    """Refuse to replace a cache that has no clip in common with the new one.

    If no clip is the same, the folder is probably the cache of another split, e.g. "test", and the
    user has named it by mistake.
    cached: names of the clips in the cache. clips: the clips of the new cache.
    """
    names = {clip.name for clip in clips}
    if cached and cached.isdisjoint(names):
        raise DataError(
            what="the folder holds the cache of other clips: "
            f"{min(cached)} and {len(cached) - 1} more",
            where=str(target),
            expected="a cache of the same clips",
            do="choose another --out for each split",
        )


def _refuse_full_disk(clips: Sequence[Clip], partial: Path) -> None:
    """Refuse to write these clips if the disk has too little room."""
    need = 0  # bytes
    for clip in clips:
        need += sum(math.prod(shape) for shape in _shapes_of_arrays(clip).values())
    free = free_bytes(partial)
    if need > LARGEST_DISK_FRACTION * free:
        raise DataError(
            what=f"the clip cache needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            where=str(partial.parent),
            expected="enough free space",
            do="free some space, or choose another disk",
        )


def _cached_clips(target: Path) -> set[str]:
    """Return the names of the clips in the cache `target`. If there is nothing, returns no names.

    Raises DataError if the folder holds anything but a clip cache, because the folder is going to
    be replaced.
    """
    # lexists is also true for a broken link. A broken link must not be replaced either.
    if not os.path.lexists(target):
        return set()
    clips = set()
    if (target / INDEX).is_file():
        index = _load_index(str(target), do="move it away, or choose another --out")
        clips = {clip["name"] for clip in index["clips"]}
    # All files that a cache of these clips may have. Any other file makes `refuse_foreign` raise.
    names = [INDEX]
    for clip in clips:
        for kind in (*IMAGE_KINDS, "spike"):
            names.append(f"{clip}/{kind}.u8")
    size_of_file = {}
    for name in names:
        if (target / name).is_file():
            size_of_file[name] = (target / name).stat().st_size
    refuse_foreign(target, size_of_file, "a clip cache")
    return clips


def _write_clip(clip: Clip, folder: Path) -> None:
    """Write the arrays of a clip to <folder>/<clip>, which appears complete or not at all."""
    temporary = folder / ".clip.tmp"
    # An interrupted build may have left this folder.
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for kind in clip.image_kinds:
        with open(temporary / f"{kind}.u8", "wb") as file:
            for path in getattr(clip, kind):
                image = read_bgr(path, clip.size_of(kind))
                file.write(image.tobytes())
    if clip.spike:
        _write_planes(clip, temporary / "spike.u8")
    # A clip "a/b" lies in a folder "a".
    (folder / clip.name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, folder / clip.name)


def _write_planes(clip: Clip, target: Path) -> None:
    """Write the planes of all spike files of a clip to one file, packed row by row."""
    geometry = clip.spikes.geometry
    raster = geometry.as_raster()  # the geometry of the cache: row by row
    with open(target, "wb") as file, spike_errors_as_data_errors():
        for path in clip.planes_of_spike_files:
            spike_file = open_spike_file(path, geometry, clip.spikes.remainder)
            if spike_file.packed is not None and geometry == raster:
                # The file has the form of the cache already.
                file.write(spike_file.packed.data)
            else:
                # Unpack and pack again, some planes at a time, to bound the memory.
                for some_planes in spike_file.parts(0, spike_file.planes):
                    file.write(pack(some_planes, raster).data)


def _shapes_of_arrays(clip: Clip) -> dict[str, tuple[int, ...]]:
    """Return {kind: shape of its array in a cache}. All arrays are uint8.

    E.g. {"lq": (40, 720, 1280, 3), "spike": (1600, 28800)} for 40 frames with 40 planes each. The
    result is compared with the sizes of the files, so it is part of the format (FORMAT).
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for kind in clip.image_kinds:
        images = getattr(clip, kind)  # the paths of the images
        height, width = clip.size_of(kind)
        shapes[kind] = (len(images), height, width, 3)
    if clip.spike:
        planes = sum(clip.planes_of_spike_files.values())
        shapes["spike"] = (planes, clip.spikes.geometry.as_raster().plane_bytes)
    return shapes


def _load_index(
    path: str, do: str = f"move it away, if there is one, and build it: {BUILD_COMMAND}"
) -> dict[str, Any]:
    """Read the index of a cache. Raises DataError.

    path: folder of the cache. do: advice in the error if the index cannot be read.
    """
    where = Path(path, INDEX)
    try:
        index = read_json(where, largest=LARGEST_INDEX)
        if index["format"] != FORMAT:
            raise ValueError(f"format {index['format']}, not {FORMAT}")
        # Names become paths below the folder of the cache.
        for clip in index["clips"]:
            checked_name(clip["name"], str(where))
    except (OSError, ValueError, KeyError, TypeError) as e:
        # The text of a KeyError is the name of the missing key alone, e.g. 'format'. So write "no"
        # before it.
        why = f"no {e}" if isinstance(e, KeyError) else str(e)
        raise DataError(
            what=f"cannot read the clip cache: {why}",
            where=str(where),
            expected="a folder made by scripts/build_clip_cache.py",
            do=do,
        ) from e
    return index

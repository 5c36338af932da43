"""Build a clip cache: files with every clip of a data set as raw arrays.

scripts/build_clip_cache.py calls `build_cache`. data/clips/cache_format.py has the form of the
files, and data/clips/clip_cache.py reads them.

The cache appears complete or not at all, because its files are written to a folder with a temporary
name. At the end, the folder gets the name of the cache. After an interruption, a second call writes
only the missing clips.

What must stay:

* every refusal comes before the first clip is written,
* the old cache is removed only when the new cache is complete,
* an old cache is replaced only if it has a clip in common with the new cache
  (test_a_cache_is_not_replaced_by_one_of_another_split),
* other files are never replaced (test_a_cache_replaces_no_foreign_file).

Tests: tests/parts/data/test_clip_cache.py
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clip import IMAGE_KINDS, Clip
from data.clips import manifest
from data.clips.cache_format import (
    FORMAT,
    INDEX,
    STORED_FIELDS_OF_CLIP,
    load_index,
    selection_of,
    shapes_of_arrays,
)
from data.clips.file_content import open_spike_file
from data.clips.manifest import Source
from data.clips.pictures import read_bgr
from data.spike.packing import pack
from utils.errors import DataError
from utils.files import MARK, free_bytes, write_whole
from utils.output_folder import publish_folder, refuse_foreign, refuse_overlap, scratch_folder


def build_cache(
    source: Source, path: str, track: Callable[[list[Clip]], Iterable[Clip]] = iter
) -> list[Clip]:
    """Write the clips of `source` to the folder `path`. Returns the clips.

    track: a function that yields the given clips one after the other, and shows the progress. The
    default `iter` only yields the clips.
    Raises DataError for wrong data, and for a disk without enough room.

    Test: test_an_interrupted_build_goes_on_where_it_stopped
    """
    # Refuse a wrong folder and wrong data before anything is written.
    target = Path(os.path.abspath(path))
    # Refuse a target within a data root, and a target that contains a data root.
    refuse_overlap(target, source.roots(), "--out")
    # `_cached_clips` returns the names of the clips in an older cache. It raises DataError if
    # `target` holds anything else.
    cached_names = _cached_clips(target)
    clips, problems = manifest.scan(source)
    manifest.raise_problems([(source, problems)])
    _refuse_cache_of_others(cached_names, clips, target)

    # The clips are written into the folder `partial`, which gets its final name at the end. If an
    # interrupted build for the same clips and files has left this folder, only the missing clips
    # are added. In all other cases, `scratch_folder` makes an empty folder, in place of an old
    # folder if there is one.
    partial = target.with_name(f".{target.name}.partial")
    index = json.dumps(_index_of(source, clips))
    if not _has_begun(partial, index):
        scratch_folder(partial)  # makes an empty folder
        write_whole(partial / INDEX, index.encode())
    # A clip has a folder only if all its arrays were written (`_write_clip`).
    clips_to_write = [clip for clip in clips if not (partial / clip.name).exists()]
    _refuse_full_disk(clips_to_write, partial)
    for clip in track(clips_to_write):
        _write_clip(clip, partial)
    if target.exists():
        # Check the old cache again before it is removed, because somebody may have put files into
        # its folder while the new cache was written. `_cached_clips` is called for its error. The
        # returned names are not used here.
        _cached_clips(target)
        shutil.rmtree(target)
    publish_folder(partial, target)  # gives the folder its final name
    return clips


def _index_of(source: Source, clips: Sequence[Clip]) -> dict[str, Any]:
    """Return the content of index.json.

    The keys are part of the format of a clip cache. If a key changes, raise FORMAT
    (cache_format.py).
    """
    digests = {}
    for kind, listing in manifest.list_source(source).items():  # e.g. "lq" and its files
        # The digest changes with the name, size or modification time of any file.
        digests[kind] = manifest.digest(kind, listing)
    spike = None
    if source.spikes:
        # A cache stores planes row by row ("raster"), even if the spike files do not.
        spike = asdict(source.spikes.geometry.as_raster())
    stored_clips = []
    for clip in clips:
        stored_clips.append({key: getattr(clip, key) for key in STORED_FIELDS_OF_CLIP})
    return {
        "format": FORMAT,
        "source": digests,
        "selection": selection_of(source),
        "spike": spike,
        "clips": stored_clips,
    }


def _has_begun(partial: Path, index: str) -> bool:
    """Return whether `partial` is our folder of an interrupted build with the same index.

    `scratch_folder` puts a file named MARK into each folder that it makes.

    index: content of index.json as text. The text has digests of the source files. So if clips,
    files or options have changed since the interruption, the text differs, and the build begins
    anew.
    """
    index_file = partial / INDEX
    if not (partial / MARK).is_file() or not index_file.is_file():
        return False
    return index_file.read_text(encoding="utf-8") == index


def _refuse_cache_of_others(cached_names: set[str], clips: Sequence[Clip], target: Path) -> None:
    """Refuse to replace a cache that has no clip in common with the new cache.

    If no clip is in common, the old cache is probably for a different split, e.g. "test", and the
    user has given its folder by mistake.

    cached_names: names of the clips in the old cache. It is empty if there is no old cache.
    clips: the clips of the new cache.

    Test: test_a_cache_is_not_replaced_by_one_of_another_split
    """
    names = {clip.name for clip in clips}
    if cached_names and cached_names.isdisjoint(names):
        raise DataError(
            what="the folder holds the cache of other clips: "
            f"{min(cached_names)} and {len(cached_names) - 1} more",
            where=str(target),
            expected="a cache of the same clips",
            do="choose another --out for each split",
        )


# Largest fraction of the free space that a new clip cache may take, so that the disk is never full.
# The fraction is chosen by hand.
LARGEST_DISK_FRACTION = 0.95


def _refuse_full_disk(clips: Sequence[Clip], partial: Path) -> None:
    """Refuse to write these clips if the disk has too little room."""
    need = 0  # bytes
    for clip in clips:
        for shape in shapes_of_arrays(clip).values():
            need += math.prod(shape)  # uint8, so one byte for each value
    free = free_bytes(partial)  # of the disk on which `partial` is
    if need > LARGEST_DISK_FRACTION * free:
        raise DataError(
            what=f"the clip cache needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            where=str(partial.parent),
            expected="enough free space",
            do="free some space, or choose another disk",
        )


def _cached_clips(target: Path) -> set[str]:
    """Return the names of the clips in the cache `target`. The set is empty if there is no cache.

    Raises DataError if the folder holds anything but a clip cache, because the folder is going to
    be replaced.

    Test: test_a_cache_replaces_no_foreign_file
    """
    # `lexists` is also true for a broken link, which must not be replaced.
    if not os.path.lexists(target):
        return set()
    clips = set()
    if (target / INDEX).is_file():
        index = load_index(str(target), do="move it away, or choose another --out")
        clips = {clip["name"] for clip in index["clips"]}
    # Names of all files that a cache of these clips may have (cache_format.py describes the .u8
    # files). `refuse_foreign` raises an error if the folder has any other file.
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
    """Write the arrays of a clip to <folder>/<clip>. The folder appears complete or not at all.

    The images are in the order of `Clip.lq` (or gt, gt_instants), because `CacheReader.images`
    finds an image by its number in this order.
    """
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
    # If the name of the clip is "a/b", make the folder "a" first.
    (folder / clip.name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, folder / clip.name)


def _write_planes(clip: Clip, target: Path) -> None:
    """Write the planes of all spike files of a clip to one file, packed row by row.

    The spike files are written in the order of `Clip.planes_of_spike_files`, because
    `CacheReader.stream` counts the planes of earlier files in the same order.
    """
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

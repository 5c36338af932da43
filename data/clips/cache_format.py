"""Give the form of a clip cache: its files, its index, and the shapes of its arrays.

A clip cache has every clip of a data set as raw arrays on disk. data/clips/cache_builder.py writes
it, and data/clips/clip_cache.py reads it:

    <path>/index.json              format, digest of the source files, spike geometry, and the
                                   fields `STORED_FIELDS_OF_CLIP` of every clip
    <path>/<clip>/lq.u8            (frames, H, W, 3) uint8 in the order B, G, R
    <path>/<clip>/gt.u8            the sharp frames, in the form of lq.u8
    <path>/<clip>/gt_instants.u8   the K sharp instants of each frame: (frames * K, H, W, 3)
    <path>/<clip>/spike.u8         (planes, bytes of a plane) uint8: the planes of all spike files
                                   of the clip one after the other, packed as in a .dat

What must stay: the names and the content of these files
(test_a_cache_has_the_form_that_it_always_had). If the content must change, add 1 to the number
`FORMAT`, so that old caches are refused.

Tests: tests/parts/data/test_clip_cache.py
"""

from pathlib import Path
from typing import Any

from data.clip import Clip, checked_name
from data.clips.manifest import Source
from utils.errors import DataError
from utils.json_file import read_json

# Version of the files of a clip cache. A cache of another version is refused.
FORMAT = 1
INDEX = "index.json"  # the file of a cache that lists its clips
# Fields of a `Clip` that the index stores. All other fields follow from the options at each start.
# The names of the fields are keys of the index, so a change needs a new FORMAT.
STORED_FIELDS_OF_CLIP = (
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


def selection_of(source: Source) -> list[Any]:
    """Return which clips of the folders belong to the data set, as the index stores it.

    The result has two entries. The first entry has the clips that the meta file (the list of the
    clips) names: {clip: [number of frames, number of the first frame]}. The second entry has the
    names of the clips that are left out. E.g. [{"000": [100, "0"]}, ["011"]]. If the entries were
    computed differently, no existing cache would fit.
    """
    return [source.meta_entries or {}, sorted(source.excluded_clips)]


def shapes_of_arrays(clip: Clip) -> dict[str, tuple[int, ...]]:
    """Return {kind: shape of its array in a cache}. All arrays are uint8.

    E.g. {"lq": (40, 720, 1280, 3), "spike": (1600, 28800)} for 40 frames with 40 planes each. A
    plane of 360 x 640 pixels has a bit for each pixel, so 360 * 640 / 8 = 28800 bytes.
    `CacheReader` compares the shapes with the sizes of the files, so the shapes are part of the
    format (FORMAT).
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


# Largest index in bytes that is read. The index of the 64,612 clips of Vimeo-90K is far smaller.
LARGEST_INDEX = 2**32
# The command that error messages advise.
BUILD_COMMAND = "python scripts/build_clip_cache.py --opt FILE --split SPLIT"


def load_index(
    path: str, do: str = f"move it away, if there is one, and build it: {BUILD_COMMAND}"
) -> dict[str, Any]:
    """Return the content of index.json. `_index_of` (cache_builder.py) shows its keys.

    path: folder of the cache.
    do: advice in the error if the index cannot be read.
    Raises DataError if there is no index, if the index has a different FORMAT, or if the name of a
    clip cannot be the name of a folder.
    """
    where = Path(path, INDEX)
    try:
        index = read_json(where, largest=LARGEST_INDEX)
        if index["format"] != FORMAT:
            raise ValueError(f"format {index['format']}, not {FORMAT}")
        # The names of clips become paths below the folder of the cache.
        for clip in index["clips"]:
            checked_name(clip["name"], str(where))
    except (OSError, ValueError, KeyError, TypeError) as e:
        # The text of a KeyError is only the name of the missing key, e.g. 'format'. Write "no"
        # before this name.
        why = f"no {e}" if isinstance(e, KeyError) else str(e)
        raise DataError(
            what=f"cannot read the clip cache: {why}",
            where=str(where),
            expected="a folder made by scripts/build_clip_cache.py",
            do=do,
        ) from e
    return index

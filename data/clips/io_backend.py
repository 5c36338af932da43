"""`io_backend`: where the frames and spikes of clips are read from: their files, or a clip cache.

A clip cache holds every clip as raw arrays on disk, from which a sample reads only its frames and
its crop:

<path>/index.json       format, digest of the source files, spike geometry, and the `Clip` record of
every clip <path>/<clip>/lq.u8     (frames, H, W, 3) uint8 in the order B, G, R; gt.u8 and
gt_instants.u8 likewise <path>/<clip>/spike.u8  the planes of all spike files, packed as in a .dat:
(all planes, plane_bytes) uint8
"""

import itertools
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
from data.cameras.spike_info import spike_errors_as_data_errors
from data.clip import IMAGE_KINDS, Clip, Piece, checked_name
from data.clips import files, manifest
from data.clips.kept import checked_clips
from data.clips.manifest import Source
from data.spike.formats import Crop, SpikeFile, SpikeGeometry, pack
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
FORMAT = 1
INDEX = "index.json"
# Fields of each clip
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
BUILD = "python scripts/build_clip_cache.py --opt FILE --split SPLIT"


@IO_BACKENDS.register("disk", given=("cache_data",))
@dataclass
class DiskFiles:
    """PNG or JPEG and spike files, each opened when it is read.

    cache_data: decoded images stay in memory, shared by all loader workers of a rank.
    """

    cache_data: bool = False
    # Clip and kind -> for each frame, a byte that is 1 once its image is there, and the image.
    _kept: dict[tuple[str, str], np.ndarray] = field(default_factory=dict, init=False)

    def __getstate__(self) -> dict[str, Any]:
        # Only forked processes share memory; others read the files
        return {
            "cache_data": False,
            "_kept": {},
        }

    def clips(self, source: Source) -> Sequence[Clip]:
        """The clips of the source, checked: as this run has found them, else as they are now.

        Raises DataError with all problems.
        """
        clips: Sequence[Clip] | None = checked_clips(source)
        if clips is None:
            found, problems = manifest.scan(source)
            manifest.raise_problems([(source, problems)])
            clips = [replace(clip, name=source.part + clip.name) for clip in found]
        if not self.cache_data:
            return clips
        # Forked workers inherit this memory; it is allocated as images are decoded.
        kinds = [(clip, kind) for clip in clips for kind in clip.image_kinds]
        shapes = [
            (len(getattr(clip, kind)), 1 + 3 * math.prod(clip.size_of(kind)))
            for clip, kind in kinds
        ]
        total = sum(map(math.prod, shapes)) + sum(kept.size for kept in self._kept.values())
        if total > 0.8 * (memory := os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE):
            text = (
                "cache_data is ignored: it would keep %.1f GB of images, "
                "this host has %.1f GB of memory; "
            )
            logger.warning(text + 'use io_backend "cache" instead', total / 1e9, memory / 1e9)
            self.cache_data = False
            return clips
        for (clip, kind), shape in zip(kinds, shapes, strict=True):
            self._kept[clip.name, kind] = np.frombuffer(
                mmap.mmap(-1, math.prod(shape)), np.uint8
            ).reshape(shape)
        return clips

    def images(self, clip: Clip, kind: str, frames: Sequence[int], aug: Augment) -> np.ndarray:
        """The crop of `aug` in images of one kind (data.clip.IMAGE_KINDS): (T, h, w, 3) uint8, B,
        G, R.
        """
        found, size, paths = [], clip.size_of(kind), getattr(clip, kind)
        for number in frames:
            if clip.opened:
                image = clip.opened[kind].read(number)[..., ::-1]
            elif not self.cache_data:
                image = files.read_bgr(paths[number], size)
            else:
                kept = self._kept[clip.name, kind][number]
                if not kept[0]:  # two processes may fill it at once: they write the same bytes
                    kept[1:] = files.read_bgr(paths[number], size).ravel()
                    kept[0] = 1
                image = kept[1:].reshape(*size, 3)
            found.append(aug.crop(image, size[0] // clip.size[0]))
        return np.stack(found)

    def stream(self, clip: Clip, piece: Piece, crop: Crop) -> np.ndarray:
        """Planes of one file within the crop: (T, h, w) uint8 in {0, 1}."""
        file, known = (
            files.open_spike_file(piece.file, clip.spikes.geometry, clip.spikes.remainder),
            clip.spike_files,
        )
        if file.planes != known[piece.file]:
            what, expected = (
                f"spike file has {file.planes} planes now",
                f"{known[piece.file]}, as at the start",
            )
            raise DataError(what, piece.file, expected, "restore the file")
        return file.read(piece.first, piece.count, crop)


@IO_BACKENDS.register("lmdb", given=("cache_data",))
class LmdbFiles(DiskFiles):
    """As "disk", but each dataroot whose name ends in .lmdb is a database, in the layout of KAIR
    and BasicSR.
    """


@IO_BACKENDS.register("cache")
@dataclass
class CacheReader:
    """A clip cache made by scripts/build_clip_cache.py in the folder `path`.

    Each read maps its file and releases it afterwards, so memory does not grow.
    """

    path: str

    def clips(self, source: Source) -> list[Clip]:
        """The cached clips, after a check that the cache still matches the source.

        Source folders that are not on this machine are not compared. Raises DataError for a stale
        or broken cache.
        """
        index, kinds, spikes = (
            _load_index(os.path.join(self.path, source.part)),
            source.kinds(),
            source.spikes,
        )
        if missing := sorted(kinds.keys() - index["source"].keys()):
            raise self._stale(f"it holds no {', '.join(missing)}")
        if spikes and SpikeGeometry(**index["spike"]) != spikes.geometry.stored_as_raster:
            raise self._stale(f"its spikes are {index['spike']}")
        if index["selection"] != [source.listed or {}, sorted(source.left_out)]:
            raise self._stale(
                "it was built for another selection of clips (meta_info_file, val_partition)"
            )
        here = [kind for kind, (root, _, _) in kinds.items() if os.path.exists(root)]
        found = manifest.list_source(source, here)
        changed = [
            kind for kind in found if index["source"][kind] != manifest.digest({kind: found[kind]})
        ]
        if changed:
            raise self._stale(f"{', '.join(changed)} files of the source have changed since")
        if len(here) < len(kinds):
            logger.info(
                "the source of cache %s is not on this machine: not checked for changes", self.path
            )
        unused: dict[str, Any] = {
            kind: () for kind in ("gt", "gt_instants", "spike") if kind not in kinds
        }
        clips = []
        for record in index["clips"]:
            values: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in record.items()
            }
            own = source.own_spikes.get(record["name"], spikes)
            clip = Clip(**{key: values[key] for key in STORED} | unused, spikes=own)
            for kind, shape in _arrays(clip).items():
                path = Path(self.path, source.part, clip.name, f"{kind}.u8")
                found, need = path.stat().st_size if path.exists() else 0, math.prod(shape)
                if found != need:
                    raise self._stale(f"{path} has {found} bytes, expected {need}")
            if spikes:
                is_one_file = len(clip.spike_files) < len(clip)
                if len(clip) > 1 and is_one_file != source.has_one_spike_file:
                    held = "one spike file" if is_one_file else "a spike file of each frame"
                    raise self._stale(f"it holds {held} of clip {clip.name} (spike.exposure)")
                exposures = clip.spikes.exposures(
                    clip.name, list(clip.spike_files.items()), len(clip)
                )
                clip = replace(clip, exposures=exposures)
            clips.append(replace(clip, name=source.part + clip.name))
        return clips

    # `images` and `stream` are those of `DiskFiles`, from the raw arrays.

    def images(self, clip: Clip, kind: str, frames: Sequence[int], aug: Augment) -> np.ndarray:
        stored, scale = self._map(clip, kind), clip.size_of(kind)[0] // clip.size[0]
        return np.stack([aug.crop(stored[i], scale) for i in frames])

    def stream(self, clip: Clip, piece: Piece, crop: Crop) -> np.ndarray:
        geometry, stored = clip.spikes.geometry.stored_as_raster, self._map(clip, "spike")
        before = itertools.takewhile(lambda file: file != piece.file, clip.spike_files)
        first = sum(clip.spike_files[file] for file in before) + piece.first
        return SpikeFile(piece.file, geometry, len(stored), stored).read(first, piece.count, crop)

    def arrays_of(self, clip: Clip) -> list[str]:
        """Return the files of the cache that hold a clip."""
        return [str(Path(self.path, clip.name, f"{kind}.u8")) for kind in _arrays(clip)]

    def _map(self, clip: Clip, kind: str) -> np.ndarray:
        path, shape = Path(self.path, clip.name, f"{kind}.u8"), _arrays(clip)[kind]
        try:
            return np.memmap(path, np.uint8, "r", shape=shape)
        except (OSError, ValueError) as e:
            what, expected = f"cannot map cached clip: {e}", f"{math.prod(shape)} bytes"
            raise DataError(what, str(path), expected, f"build the cache again: {BUILD}") from e

    def _stale(self, why: str) -> DataError:
        what, expected = (
            f"the clip cache does not fit the data: {why}",
            "a cache built from the data as they are now",
        )
        return DataError(what, self.path, expected, f"build it again: {BUILD}")


def build_cache(
    source: Source, path: str, track: Callable[[list[Clip]], Iterable[Clip]] = iter
) -> list[Clip]:
    """Write the clips of `source` to the folder `path`, which appears complete or not at all.

    After an interruption, a second call writes only the missing clips. track: shows the progress
    over the clips.
    Raises DataError for wrong data and, before anything is written, for a disk without enough room.
    """
    target = Path(os.path.abspath(path))
    refuse_overlap(target, source.roots(), "--out")
    cached, (clips, problems) = _cached_clips(target), manifest.scan(source)
    manifest.raise_problems([(source, problems)])
    if cached and not cached & {clip.name for clip in clips}:
        what = (
            f"the folder holds the cache of other clips: {min(cached)} and {len(cached) - 1} more"
        )
        raise DataError(
            what, str(target), "a cache of the same clips", "choose another --out for each split"
        )
    partial = target.with_name(f".{target.name}.partial")
    index = {
        "format": FORMAT,
        "source": {
            kind: manifest.digest({kind: found})
            for kind, found in manifest.list_source(source).items()
        },
        "selection": [source.listed or {}, sorted(source.left_out)],
        "spike": asdict(source.spikes.geometry.stored_as_raster) if source.spikes else None,
        "clips": [{key: getattr(clip, key) for key in STORED} for clip in clips],
    }
    begun, wanted = partial / INDEX, json.dumps(index)
    if (
        not (partial / MARK).is_file()
        or not begun.is_file()
        or begun.read_text(encoding="utf-8") != wanted
    ):
        scratch_folder(partial)
        write_whole(begun, wanted.encode())
    left = [clip for clip in clips if not (partial / clip.name).exists()]
    need = sum(math.prod(shape) for clip in left for shape in _arrays(clip).values())
    if need > 0.95 * (free := free_bytes(partial)):
        what = f"the clip cache needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        raise DataError(
            what, str(partial.parent), "enough free space", "free some, or choose another disk"
        )
    for clip in track(left):
        _write_clip(clip, partial)
    if target.exists():
        _cached_clips(target)
        shutil.rmtree(target)
    publish_folder(partial, target)
    return clips


def _cached_clips(target: Path) -> set[str]:
    """The names of the clips in the cache `target`; none where there is nothing.

    Raises DataError where it holds anything but a clip cache: only that is replaced.
    """
    if not os.path.lexists(target):
        return set()
    do = "move it away, or choose another --out"
    clips = (
        {clip["name"] for clip in _load_index(str(target), do)["clips"]}
        if (target / INDEX).is_file()
        else set()
    )
    names = {INDEX, *(f"{clip}/{kind}.u8" for clip in clips for kind in (*IMAGE_KINDS, "spike"))}
    refuse_foreign(
        target,
        {n: (target / n).stat().st_size for n in names if (target / n).is_file()},
        "a clip cache",
    )
    return clips


def _write_clip(clip: Clip, folder: Path) -> None:
    temporary = folder / ".clip.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for kind in clip.image_kinds:
        with open(temporary / f"{kind}.u8", "wb") as file:
            for path in getattr(clip, kind):
                file.write(files.read_bgr(path, clip.size_of(kind)).tobytes())
    if clip.spike:
        geometry = clip.spikes.geometry
        stored = geometry.stored_as_raster
        with open(temporary / "spike.u8", "wb") as file, spike_errors_as_data_errors():
            for path in clip.spike_files:
                planes = files.open_spike_file(path, geometry, clip.spikes.remainder)
                if planes.packed is not None and geometry == stored:
                    file.write(planes.packed.data)
                else:
                    for part in planes.parts(0, planes.planes):
                        file.write(pack(part, stored).data)
    (folder / clip.name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, folder / clip.name)


def _arrays(clip: Clip) -> dict[str, tuple[int, ...]]:
    """Kind of array -> its shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    for kind in clip.image_kinds:
        shapes[kind] = (len(getattr(clip, kind)), *clip.size_of(kind), 3)
    if clip.spike:
        plane_bytes = clip.spikes.geometry.stored_as_raster.plane_bytes
        shapes["spike"] = (sum(clip.spike_files.values()), plane_bytes)
    return shapes


def _load_index(
    path: str, do: str = f"move it away, if there is one, and build it: {BUILD}"
) -> dict[str, Any]:
    where = Path(path, INDEX)
    try:
        index = read_json(where, largest=2**32)  # Vimeo-90K has 64,612 clips
        if index["format"] != FORMAT:
            raise ValueError(f"format {index['format']}, not {FORMAT}")
        for clip in index["clips"]:
            checked_name(clip["name"], str(where))
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = f"no {e}" if isinstance(e, KeyError) else str(e)
        what, expected = (
            f"cannot read the clip cache: {why}",
            "a folder made by scripts/build_clip_cache.py",
        )
        raise DataError(what, str(where), expected, do) from e
    return index

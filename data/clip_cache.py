"""A clip cache: every clip as raw arrays on disk, from which a sample reads only its frames and its crop.

<path>/index.json       format, digest of the source files, spike geometry, and the `Clip` record of every clip
<path>/<clip>/lq.u8     (frames, H, W, 3) uint8 in the order B, G, R; gt.u8 and gt_instants.u8 likewise
<path>/<clip>/spike.u8  the planes of all spike files, packed as in a .dat: (all planes, plane_bytes) uint8
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.augment import Augment
from data.clip import PICTURE_KINDS, Clip, Piece
from data.clip_index import Source, digest, find_clips, list_source
from data.frame_io import read_bgr
from data.meta_file import read_meta
from data.names import checked_name
from data.roots import open_spike_file
from data.spike.formats import PackedPlanes
from data.spike.stream import Crop, SpikeGeometry, pack
from data.spike_source import DatSpikes, spike_errors_as_data_errors
from utils.errors import DataError
from utils.files import MARK, free_bytes, publish_folder, refuse_foreign, refuse_overlap, scratch_folder, write_whole

logger = logging.getLogger(__name__)

FORMAT = 1
INDEX = "index.json"


class CacheReader:
    """A clip cache made by scripts/build_clip_cache.py in the folder `path`.

    Each read maps its file and releases it afterwards, so memory does not grow.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._first_plane: dict[str, dict[str, int]] = {}  # clip -> spike file -> its first plane in spike.u8

    def clips(self, source: Source) -> list[Clip]:
        """The cached clips, after a check that the cache still matches the source.

        Source folders that are not on this machine are not compared. Raises DataError for a stale or broken cache.
        """
        index, kinds = _load_index(self.path), source.kinds()
        missing = sorted(kinds.keys() - index["source"].keys())
        if missing:
            raise self._stale(f"it holds no {', '.join(missing)}")
        if source.spikes and SpikeGeometry(**index["spike"]) != source.spikes.geometry.stored_as_raster:
            raise self._stale(f"its spikes are {index['spike']}")
        if index["selection"] != _selection(source):
            raise self._stale("it was built for another selection of clips (meta_info_file, val_partition)")
        here = [kind for kind, (root, _, _) in kinds.items() if os.path.exists(root)]
        changed = [kind for kind, value in _digests(source, here).items() if index["source"][kind] != value]
        if changed:
            raise self._stale(f"{', '.join(changed)} files of the source have changed since")
        if len(here) < len(kinds):
            logger.info("the source of cache %s is not on this machine: not checked for changes", self.path)
        clips = [_clip_from(record, kinds.keys()) for record in index["clips"]]
        for clip in clips:
            ends = itertools.accumulate(clip.spike_files.values(), initial=0)
            self._first_plane[clip.name] = dict(zip(clip.spike_files, ends, strict=False))
            self._check_sizes(clip, _plane_bytes(source))
        return [self._with_exposures(clip, source) for clip in clips] if source.spikes else clips

    def pictures(self, clip: Clip, kind: str, frames: Sequence[int], aug: Augment) -> np.ndarray:
        """The crop of `aug` in pictures of one kind (data.clip.PICTURE_KINDS): (T, h, w, 3) uint8, B, G, R."""
        stored = self._map(clip, kind, (len(getattr(clip, kind)), *clip.size_of(kind), 3))
        return np.stack([aug.crop(stored[i], clip.scale_of(kind)) for i in frames])

    def stream(self, clip: Clip, piece: Piece, spikes: DatSpikes, crop: Crop) -> np.ndarray:
        """Planes of one file within the crop: (T, h, w) uint8 in {0, 1}."""
        geometry = spikes.geometry.stored_as_raster
        stored = self._map(clip, "spike", (sum(clip.spike_files.values()), geometry.plane_bytes))
        first = self._first_plane[clip.name][piece.file] + piece.first
        return PackedPlanes(piece.file, geometry, stored).read(first, piece.count, crop)

    def _map(self, clip: Clip, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        path = Path(self.path, clip.name, f"{kind}.u8")
        try:
            return np.memmap(path, np.uint8, "r", shape=shape)
        except (OSError, ValueError) as e:
            raise DataError(
                f"cannot map cached clip: {e}", str(path), f"{math.prod(shape)} bytes",
                "build the cache again: scripts/build_clip_cache.py",
            ) from e  # fmt: skip

    def _with_exposures(self, clip: Clip, source: Source) -> Clip:
        one_file = len(clip.spike_files) < len(clip)
        if len(clip) > 1 and one_file != source.has_one_spike_file:
            held = "one spike file" if one_file else "a spike file of each frame"
            raise self._stale(f"it holds {held} of clip {clip.name} (spike.exposure)")
        exposures = source.spikes.exposures(clip.name, list(clip.spike_files.items()), len(clip))
        return dataclasses.replace(clip, exposures=exposures)

    def _check_sizes(self, clip: Clip, plane_bytes: int) -> None:
        for kind, need in _sizes(clip, plane_bytes).items():
            path = Path(self.path, clip.name, f"{kind}.u8")
            found = path.stat().st_size if path.exists() else 0
            if found != need:
                raise self._stale(f"{path} has {found} bytes, expected {need}")

    def _stale(self, why: str) -> DataError:
        return DataError(
            f"the clip cache does not fit the data: {why}", self.path, "a cache built from the data as they are now",
            "build it again: python scripts/build_clip_cache.py --opt FILE --split SPLIT",
        )  # fmt: skip


def build_cache(
    source: Source, path: str, track: Callable[[list[Clip]], Iterable[Clip]] = iter
) -> list[Clip]:  # fmt: skip
    """Write the clips of `source` to the folder `path`, which appears complete or not at all.

    After an interruption, a second call writes only the missing clips. track: shows the progress over the clips.
    Raises DataError for wrong data and, before anything is written, for a disk without enough room.
    """
    target = Path(os.path.abspath(path))
    refuse_overlap(target, {f"dataroot_{kind}": root for kind, (root, _, _) in source.kinds().items()}, "--out")
    _refuse_foreign_files(target)
    clips = find_clips(source)
    _refuse_other_clips(target, clips)
    partial = target.with_name(f".{target.name}.partial")
    index = {
        "format": FORMAT,
        "source": _digests(source, source.kinds()),
        "selection": _selection(source),
        "spike": dataclasses.asdict(source.spikes.geometry.stored_as_raster) if source.spikes else None,
        "clips": [dataclasses.asdict(dataclasses.replace(clip, exposures=())) for clip in clips],
    }
    begun, wanted = partial / INDEX, json.dumps(index)
    if not (partial / MARK).is_file() or not begun.is_file() or begun.read_text(encoding="utf-8") != wanted:
        scratch_folder(partial)
        write_whole(begun, wanted.encode())
    _check_room(clips, source, partial)
    for clip in track(clips):
        if not (partial / clip.name).exists():
            _write_clip(clip, source, partial)
    if target.exists():
        _refuse_foreign_files(target)
        shutil.rmtree(target)
    publish_folder(partial, target)
    return clips


def _refuse_foreign_files(target: Path) -> None:
    """Raise DataError where `target` holds anything but a clip cache: only that is replaced."""
    if not os.path.lexists(target):
        return
    names = {INDEX}
    if (target / INDEX).is_file():
        index = _load_index(str(target), any_format=True)
        kinds = (*PICTURE_KINDS, "spike")
        names |= {f"{clip['name']}/{kind}.u8" for clip in index["clips"] for kind in kinds}
    ours = {name: (target / name).stat().st_size for name in names if (target / name).is_file()}
    refuse_foreign(target, ours, "a clip cache")


def _refuse_other_clips(target: Path, clips: list[Clip]) -> None:
    """Raise DataError where `target` is the cache of other clips, such as those of the other split."""
    if (target / INDEX).is_file():
        cached = {clip["name"] for clip in _load_index(str(target), any_format=True)["clips"]}
        if cached and not cached & {clip.name for clip in clips}:
            raise DataError(
                f"the folder holds the cache of other clips: {min(cached)} and {len(cached) - 1} more", str(target),
                "a cache of the same clips, to be replaced", "choose another --out for each split",
            )  # fmt: skip


def _write_clip(clip: Clip, source: Source, folder: Path) -> None:
    temporary = folder / ".clip.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for kind in clip.picture_kinds:
        with open(temporary / f"{kind}.u8", "wb") as file:
            for path in getattr(clip, kind):
                file.write(read_bgr(path, clip.size_of(kind)).tobytes())
    if clip.spike:
        with open(temporary / "spike.u8", "wb") as file, spike_errors_as_data_errors():
            for path in clip.spike_files:
                for part in _packed_parts(path, source.spikes):
                    file.write(part)
    (folder / clip.name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, folder / clip.name)


def _packed_parts(path: str, spikes: DatSpikes) -> Iterator[np.ndarray]:
    """The planes of a file as they are stored, in parts; unchanged where they are packed already."""
    stored = spikes.geometry.stored_as_raster
    file = open_spike_file(path, spikes.geometry, spikes.remainder)
    if isinstance(file, PackedPlanes) and spikes.geometry == stored:
        yield file.packed
    else:
        yield from (pack(part, stored) for part in file.parts(0, file.planes))


def _plane_bytes(source: Source) -> int:
    return source.spikes.geometry.stored_as_raster.plane_bytes if source.spikes else 0


def _sizes(clip: Clip, plane_bytes: int) -> dict[str, int]:
    """Kind of array -> its size in bytes."""
    sizes = {kind: len(getattr(clip, kind)) * math.prod(clip.size_of(kind)) * 3 for kind in clip.picture_kinds}
    if clip.spike:
        sizes["spike"] = sum(clip.spike_files.values()) * plane_bytes
    return sizes


def _check_room(clips: list[Clip], source: Source, folder: Path) -> None:
    need = sum(sum(_sizes(clip, _plane_bytes(source)).values()) for clip in clips if not (folder / clip.name).exists())
    free = free_bytes(folder)
    if need > 0.95 * free:
        raise DataError(
            f"the clip cache needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free", str(folder.parent),
            "enough free space", "free some space, or choose another disk",
        )  # fmt: skip


def _digests(source: Source, kinds: Collection[str]) -> dict[str, str]:
    """Kind of file -> digest of all its files, for these kinds."""
    return {kind: digest({kind: listing}) for kind, listing in list_source(source, kinds).items()}


def _selection(source: Source) -> list[Any]:
    """The clips and frames that the meta file selects, and the clips left out."""
    listed = read_meta(source.meta) if source.meta else {}
    return [{name: list(frames) for name, frames in listed.items()}, sorted(source.left_out)]


def _load_index(path: str, any_format: bool = False) -> dict[str, Any]:
    where = Path(path, INDEX)
    try:
        index = json.loads(where.read_text(encoding="utf-8"))
        found = index["format"]
        for clip in index["clips"]:
            checked_name(clip["name"], str(where))
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = f"no {e}" if isinstance(e, KeyError) else str(e)
        raise DataError(
            f"cannot read the clip cache: {why}", str(where), "a folder made by scripts/build_clip_cache.py",
            "build it: python scripts/build_clip_cache.py --opt FILE --split SPLIT",
        ) from e  # fmt: skip
    if found != FORMAT and not any_format:
        raise DataError(f"clip cache of format {found}", path, f"format {FORMAT}", "build the cache again")
    return index


def _clip_from(record: dict[str, Any], kinds: Collection[str]) -> Clip:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    return Clip(**values | {kind: () for kind in ("gt", "gt_instants", "spike") if kind not in kinds})

"""What the check of a data set found, for later starts, other ranks and loader workers.

<path.root>/.preflight/<question>.json holds counts and warnings, and beside it <question>.npz the
clips as arrays (data/clips/table.py) with the states of their folders. `question` is a digest of
all options that the check depends on.

Both files are data that anybody may have written. Their sizes and values are bounded, and they are
compared with the data set: the state of every folder, and the files of some clips. A record that
does not fit is as good as none.
"""

import hashlib
import io
import json
import logging
import math
import os
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.clip import Clip
from data.clips import manifest
from data.clips.clip_check import ClipCheck
from data.clips.files import (
    FileEntry,
    State,
    entry_of,
    is_lmdb,
    list_clip,
    state_of,
    stem_of,
)
from data.clips.source import Problem, Source
from data.clips.table import ClipTable, Columns, Texts, kinds_of, refuse_columns, types_of
from data.clips.threads import mapped
from data.spike.formats import SpikeFileError
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import read_plain, write_whole
from utils.json_file import read_json

logger = logging.getLogger(__name__)

# Raise it if the check finds more than before: then stored results of older checks are ignored.
FORMAT = 7
LARGEST = 2**30  # bytes of a record; one of 32,000 clips has 36 million
# Files that a repeated start looks at in any case. Smaller sets are looked at as a whole.
LEAST_FILES = 4096
SHARE = 0.01
# Columns that tell whether the data are still the same.
OF_STATES = {"folders": np.uint8, "folder_states": np.int64}


@dataclass(frozen=True)
class Result:
    """A check without problems. counts: of clips and frames, in words."""

    counts: str
    warnings: list[Problem]
    clips: Sequence[Clip]


# What other ranks are told of a record: its name, and the SHA-256 of the arrays.
Mark = tuple[str, str]


def question(source: Source) -> str:
    """Return 16 hex digits that change with every option of the check, but not with the files."""
    spikes = source.spikes
    asked: list[Any] = [
        FORMAT,
        source.kinds(),
        source.filename_tmpl,
        sorted(source.left_out),
        source.listed,
        source.may_share_frames,
        source.septuplets,
    ]
    if spikes:
        asked.append([
            repr(spikes.geometry), repr(spikes.info), spikes.center, spikes.remainder, spikes.name,
            repr(spikes.options), spikes.rate, spikes.light, spikes.context,
            spikes.timing.describe(),
        ])  # fmt: skip
        for one in (spikes, *source.own_spikes.values()):
            if one.calibration:
                asked.append(one.calibration.digest())
    else:
        asked.append(None)
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def checked_clips(source: Source) -> ClipTable | None:
    """Return the clips of a source if this run has checked them, on any rank.

    Returns None if it has not, or if the record cannot be read here.
    """
    marks: Mapping[str, Sequence[str]] = RUN.checked
    if RUN.kept is None or not marks:
        return None
    mark = marks.get(question(source))
    if mark is None:
        return None
    name, digest = mark
    try:
        content = _read(RUN.kept / f"{name}.npz")
        if hashlib.sha256(content).hexdigest() != digest:
            return None
        columns = _columns_in(content, types_of(kinds_of(source)))
    except (OSError, ValueError):
        return None
    return ClipTable(source, columns, source.part)


class Kept:
    """The record of one source. folder: where it is kept. scale: of the network."""

    def __init__(self, folder: Path, source: Source, scale: int) -> None:
        self.source = source
        self.question = question(source)
        self.name = f"{self.question}_x{scale}"
        self.json = folder / f"{self.name}.json"
        self.arrays = folder / f"{self.name}.npz"
        self.mark: Mark | None = None  # once it is read or written

    def read(self, share: float) -> Result | None:
        """Return the result if the data are still as they were then, else None.

        share: share of the files that are looked at, of 0 to 1.
        """
        types = types_of(kinds_of(self.source))
        try:
            before = read_json(self.json)
            warnings = [Problem(*map(str, warning)) for warning in before["warnings"]]
            counts = str(before["counts"])
            content = _read(self.arrays)
            digest = hashlib.sha256(content).hexdigest()
            if before["arrays"] != digest:
                return None
            columns = _columns_in(content, types | OF_STATES)
            del content
            refuse_columns({name: columns[name] for name in types}, self.source)
            table = ClipTable(self.source, columns)
            if not self._is_as_before(table, columns, share):
                return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        except (DataError, OptionError, SpikeFileError):  # the new check says it
            return None
        self.mark = self.name, digest
        return Result(counts, warnings, table)

    def write(self, result: Result, columns: Columns, states: Mapping[str, State]) -> None:
        """Keep a result. A folder that cannot be written is said in the log.

        columns: the clips. states: of all folders, see `Listing`.
        """
        paths = "".join(f"{path}\0" for path in states).encode(errors="surrogateescape")
        arrays: dict[str, Any] = {
            **columns,
            "folders": np.frombuffer(paths, np.uint8),
            "folder_states": np.array(list(states.values()), np.int64).ravel(),
        }
        file = io.BytesIO()
        np.savez(file, **arrays)
        content = file.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        about = {"counts": result.counts, "warnings": result.warnings, "arrays": digest}
        try:
            write_whole(self.arrays, content)
            write_whole(self.json, json.dumps(about).encode())
        except DataError as e:
            logger.info("the result of the data check cannot be stored: %s", e)
            return
        self.mark = self.name, digest

    # ---- The data now -----------------------------------------------------------------------

    def _is_as_before(self, table: ClipTable, columns: Columns, share: float) -> bool:
        """Whether no folder has changed since, and no file of some clips. share: see `read`."""
        folders = Texts(columns["folders"])
        states = columns["folder_states"].reshape(-1, 2)
        if len(folders) != len(states) or not self._are_all(folders, table):
            return False
        for first in range(0, len(folders), 2**14):
            last = min(first + 2**14, len(folders))
            before = map(tuple, states[first:last].tolist())
            now = mapped(state_of, folders.part(first, last))
            if not all(a == b for a, b in zip(before, now, strict=True)):
                return False
        if not self._is_complete(table):
            return False
        return all(mapped(_Same(table, columns), _chosen(table, share), at_once=4))

    def _are_all(self, folders: Texts, table: ClipTable) -> bool:
        """Whether the record has a state of each root and of each folder of a clip."""
        known = set(folders.part(0, len(folders)))
        for kind, place in kinds_of(self.source).items():
            root = place.root
            if is_lmdb(root):
                continue
            if root not in known:
                return False
            within = table.places[kind]
            for part in set(within.part(0, len(within))):
                folder = table.roots[kind] + part.removesuffix("/")
                if folder not in known and os.path.join(root, "") != table.roots[kind] + part:
                    return False
        return True

    def _is_complete(self, table: ClipTable) -> bool:
        """Whether the folders of the root are those of the clips of the record."""
        root = self.source.dataroot_lq
        if is_lmdb(root) or self.source.listed is not None:
            return True
        names = {name.split("/")[0] for name in table.names.part(0, len(table))}
        with os.scandir(root) as entries:
            now = {entry.name for entry in entries if entry.name[0] != "." and entry.is_dir()}
        return names == now - self.source.left_out


class _Same:
    """Says whether clip `number` of a record has the same files, which still make the same clip."""

    def __init__(self, table: ClipTable, columns: Columns) -> None:
        self.table, self.columns = table, columns
        self.usual = manifest.usual_sizes(table.source, table)

    def __call__(self, number: int) -> bool:
        source = self.table.source
        clip = self.table[number]
        found: dict[str, dict[str, FileEntry] | None] = {}
        for kind, place in kinds_of(source).items():
            known = self._known(kind, number)
            now = known
            if not is_lmdb(place.root):
                # One spike file of the clip may lie in the root, whose names have not changed.
                files = list_clip(*place, clip.name)
                now = list(files.entries().values()) if files else [entry_of(e.path) for e in known]
            if not set(known) <= set(now):
                return False
            found[kind] = {stem_of(entry.path): entry for entry in now}
        sizes = self.usual if number else None
        listed = source.listed[clip.name] if source.listed else None
        check = ClipCheck(clip.name, source, found, sizes)
        return check.run(listed) == clip and not check.problems

    def _known(self, kind: str, number: int) -> list[FileEntry]:
        """Return the files of one kind of clip `number` as they were."""
        first, last = self.table.begins[kind][number : number + 2].tolist()
        return list(
            map(
                FileEntry,
                self.table.paths(kind, number),
                self.columns[f"{kind}_bytes"][first:last].tolist(),
                self.columns[f"{kind}_times"][first:last].tolist(),
            )
        )


def _chosen(table: ClipTable, share: float) -> range:
    """Return the numbers of the clips that are looked at, evenly spaced, others at each start."""
    files = sum(int(begins[-1]) for begins in table.begins.values())
    wanted = max(LEAST_FILES, share * files)
    step = max(1, math.floor(files / wanted))
    return range(time.time_ns() % step, len(table), step)


# ---- Arrays in a file ------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, ValueError."""
    content = read_plain(path, LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    return content


def _columns_in(content: bytes, types: Mapping[str, Any]) -> Columns:
    """Return columns of an .npz that is not compressed. types: {column: the type of its values}.

    Nothing in it is executed, and it takes no more memory than it has bytes. Raises ValueError.
    """
    columns = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name, kind in types.items():
                member = archive.getinfo(f"{name}.npy")
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise ValueError(f"{name} is compressed")
                columns[name] = _column(archive.read(member), kind)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, SyntaxError) as e:
        raise ValueError(f"no arrays: {e}") from e
    return columns


def _column(content: bytes, kind: Any) -> np.ndarray:
    """Return the one-dimensional array in a .npy. kind: of its values. Raises ValueError."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != kind or len(shape) != 1:
        raise ValueError(f"an array {shape} of {dtype}")
    column = np.frombuffer(content, kind, offset=file.tell())
    if len(column) != shape[0]:
        raise ValueError(f"{len(column)} values, not {shape[0]}")
    return column

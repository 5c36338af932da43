"""The stored result of the data check, called a record. Later starts read it instead of all files.

A record is two files in <path.root>/.preflight. Their name is a digest of all options that the
check depends on (`question`) and the scale of the network:

    3f2a90c1d4e5b677_x1.json   {"counts": "22 clips, ...", "warnings": [...], "arrays": SHA-256}
    3f2a90c1d4e5b677_x1.npz    the clips as arrays (data/clips/table.py), and the state of each
                               folder (`State` in data/clips/files.py)

`Record` reads and writes the record of one data root. `checked_clips` gives the clips of a record
to other ranks and to loader workers.

Anybody may have written these files. So their sizes and values are bounded, nothing in them is
executed, and they are compared with the data set: the state of every folder, and the files of some
clips. A record that does not fit is ignored, and the check runs again.

Tests: tests/parts/data/test_kept.py, tests/parts/data/test_preflight.py
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
from data.clips.table import (
    ClipTable,
    Columns,
    Texts,
    first_and_end,
    kinds_of,
    refuse_columns,
    types_of,
)
from data.clips.threads import mapped
from data.spike.formats import SpikeFileError
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import read_plain, write_whole
from utils.json_file import read_json

logger = logging.getLogger(__name__)

# Raise it if the check finds more than before, or if the arrays change. Then records of older
# versions are ignored.
FORMAT = 7
# Largest size of the arrays of a record in bytes. A record of 32,000 clips has 36 million.
LARGEST = 2**30
# Number of files that a repeated start looks at in any case. Smaller sets are looked at as a whole.
LEAST_FILES = 4096
# Default of the option checked_share: the share of the files that a repeated start looks at.
SHARE = 0.01
# Number of folders whose states are compared at once. It bounds the memory for their paths.
FOLDERS_AT_ONCE = 2**14
# Columns that tell whether the data are still the same: the paths of all listed folders, and the
# two numbers of the state of each.
STATE_COLUMNS = {"folders": np.uint8, "folder_states": np.int64}


@dataclass(frozen=True)
class Result:
    """A check without problems.

    counts: numbers of clips and frames, in words. warnings: what the log should say.
    clips: the checked clips.
    """

    counts: str
    warnings: list[Problem]
    clips: Sequence[Clip]


# What other ranks are told of a record: its name, and the SHA-256 of its arrays. The digest makes
# sure that all ranks read the same record.
Mark = tuple[str, str]


def question(source: Source) -> str:
    """Return 16 hex digits that change with every option of the check, but not with the files.

    Whoever adds an option to the check must add it here. Else a record of another value of the
    option would be used.
    """
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
        asked.append(
            [
                repr(spikes.geometry),
                repr(spikes.info),
                spikes.center,
                spikes.remainder,
                spikes.name,
                repr(spikes.options),
                spikes.rate,
                spikes.light,
                spikes.context,
                spikes.timing.describe(),
            ]
        )
        for each in (spikes, *source.own_spikes.values()):
            if each.calibration:
                asked.append(each.calibration.digest())
    else:
        asked.append(None)
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def checked_clips(source: Source) -> ClipTable | None:
    """Return the clips of a source if this run has checked them, on any rank.

    Returns None if it has not, or if the record cannot be read here.
    """
    # Set at the start of a run: {question: mark} and the folder of the records.
    marks: Mapping[str, Sequence[str]] = RUN.checked
    if RUN.kept is None or not marks:
        return None
    mark = marks.get(question(source))
    if mark is None:
        return None
    name, digest = mark
    try:
        content = _read(RUN.kept / f"{name}.npz")
        # Another run may have replaced the record since.
        if hashlib.sha256(content).hexdigest() != digest:
            return None
        columns = _columns_in(content, types_of(kinds_of(source)))
    except (OSError, ValueError):
        return None
    return ClipTable(source, columns, source.name_prefix)


class Record:
    """The record of one data root.

    folder: where the record is stored. source: the data root. scale: scale of the network.
    Raises DataError if the meta file cannot be read.
    """

    def __init__(self, folder: Path, source: Source, scale: int) -> None:
        self.source = source
        self.question = question(source)
        self.name = f"{self.question}_x{scale}"
        self.json = folder / f"{self.name}.json"
        self.arrays = folder / f"{self.name}.npz"
        self.mark: Mark | None = None  # set when the record is read or written

    def read(self, share: float) -> Result | None:
        """Return the stored result if the data are the same as then, else None.

        share: share of the files that are looked at, 0 to 1.
        """
        types = types_of(kinds_of(self.source))
        try:
            about = read_json(self.json)
            warnings = [Problem(*map(str, warning)) for warning in about["warnings"]]
            counts = str(about["counts"])
            content = _read(self.arrays)
            digest = hashlib.sha256(content).hexdigest()
            # If the digests differ, the two files of the record come from different checks.
            if about["arrays"] != digest:
                return None
            columns = _columns_in(content, types | STATE_COLUMNS)
            # The columns are copies, and the content may have a gigabyte.
            del content
            refuse_columns({name: columns[name] for name in types}, self.source)
            table = ClipTable(self.source, columns)
            if not self._is_as_before(table, columns, share):
                return None
        # The files are no correct record, so the check must run again.
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        # The data have changed and are wrong now. The check runs again and says what is wrong.
        except (DataError, OptionError, SpikeFileError):
            return None
        self.mark = (self.name, digest)
        return Result(counts, warnings, table)

    def write(self, result: Result, columns: Columns, states: Mapping[str, State]) -> None:
        """Store a result. If the folder cannot be written, only the log says so.

        columns: the clips as arrays. states: {path: state} of all folders, see `Listing`.
        """
        # Paths may hold bytes that are not UTF-8, which Python reads as lone surrogates.
        paths = "".join(f"{path}\0" for path in states)
        path_bytes = paths.encode(errors="surrogateescape")
        arrays: dict[str, Any] = {
            **columns,
            "folders": np.frombuffer(path_bytes, np.uint8),
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
            # A run does not need the record, so it goes on.
            logger.info("the result of the data check cannot be stored: %s", e)
            return
        self.mark = (self.name, digest)

    # ---- Compare with the data --------------------------------------------------------------

    def _is_as_before(self, table: ClipTable, columns: Columns, share: float) -> bool:
        """Whether no folder has changed since the check, and no file of some clips.

        share: see `read`.
        """
        folders = Texts(columns["folders"])
        states = columns["folder_states"].reshape(-1, 2)
        if len(folders) != len(states) or not self._has_all_folders(folders, table):
            return False
        for first in range(0, len(folders), FOLDERS_AT_ONCE):
            last = min(first + FOLDERS_AT_ONCE, len(folders))
            states_now = mapped(state_of, folders.between(first, last))
            states_then = map(tuple, states[first:last].tolist())
            for then, now in zip(states_then, states_now, strict=True):
                if then != now:
                    return False
        if not self._is_complete(table):
            return False
        is_same = mapped(_SameClip(table, columns), _chosen(table, share), at_once=4)
        return all(is_same)

    def _has_all_folders(self, folders: Texts, table: ClipTable) -> bool:
        """Whether the record has a state of each root and of each folder of a clip.

        A forged record could leave out a folder, whose changes would then stay unseen.
        """
        known = set(folders.all())
        for kind, place in kinds_of(self.source).items():
            root = place.root
            if is_lmdb(root):
                continue
            if root not in known:
                return False
            for place_of_clip in set(table.folders[kind].all()):
                path = table.roots[kind] + place_of_clip  # with "/" at its end
                # A single file of a clip lies in the root itself, whose state is known.
                is_root = path == os.path.join(root, "")
                if path.removesuffix("/") not in known and not is_root:
                    return False
        return True

    def _is_complete(self, table: ClipTable) -> bool:
        """Whether the folders of the lq root are those of the clips of the record."""
        root = self.source.dataroot_lq
        # The state of an LMDB covers its clips. A meta file lists them.
        if is_lmdb(root) or self.source.listed is not None:
            return True
        # A clip "a/b" lies in the folder "a" of the root.
        then = {name.split("/")[0] for name in table.clip_names.all()}
        now = set()
        with os.scandir(root) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir():
                    now.add(entry.name)
        return then == now - self.source.left_out


class _SameClip:
    """A function of the number of a clip: whether its files are the same as in the record.

    They must also still make the same clip, because a forged record may hold a wrong clip.
    """

    def __init__(self, table: ClipTable, columns: Columns) -> None:
        self.table = table
        self.columns = columns
        self.usual = manifest.usual_sizes(table.source, table)

    def __call__(self, number: int) -> bool:
        source = self.table.source
        clip = self.table[number]
        found: dict[str, dict[str, FileEntry] | None] = {}
        for kind, place in kinds_of(source).items():
            then = self._files_then(kind, number)
            # The state of an LMDB was compared already, so its files are the same.
            now = then
            if not is_lmdb(place.root):
                files = list_clip(*place, clip.name)
                if files:
                    now = list(files.entries().values())
                else:
                    # The one spike file of the clip lies in the root.
                    now = [entry_of(entry.path) for entry in then]
            if not set(then) <= set(now):
                return False
            found[kind] = {stem_of(entry.path): entry for entry in now}
        # `usual` has the sizes of the first clip, so the sizes of this clip itself must be read.
        sizes = self.usual if number > 0 else None
        listed = source.listed[clip.name] if source.listed else None
        check = ClipCheck(clip.name, source, found, sizes)
        return check.run(listed) == clip and not check.problems

    def _files_then(self, kind: str, number: int) -> list[FileEntry]:
        """Return the files of one kind of clip `number` as they were at the check."""
        first, last = first_and_end(self.table.first_files[kind], number)
        paths = self.table.paths(kind, number)
        sizes = self.columns[f"{kind}_bytes"][first:last].tolist()
        times = self.columns[f"{kind}_times"][first:last].tolist()
        return [FileEntry(*each) for each in zip(paths, sizes, times, strict=True)]


def _chosen(table: ClipTable, share: float) -> range:
    """Return the numbers of the clips that are looked at: evenly spaced, others at each start.

    With 100,000 files and share 0.01, that is every 24th clip, because LEAST_FILES is larger than
    1000 files.
    """
    files = sum(int(begins[-1]) for begins in table.first_files.values())
    wanted = max(LEAST_FILES, share * files)
    step = max(1, math.floor(files / wanted))
    # The clock makes each start begin with another clip. So in time all clips are looked at.
    first = time.time_ns() % step
    return range(first, len(table), step)


# ---- Arrays in a file ------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, and ValueError if it is too large."""
    content = read_plain(path, LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    return content


def _columns_in(content: bytes, types: Mapping[str, Any]) -> Columns:
    """Return columns of an .npz file. types: {column: its dtype}.

    We do not use np.load: nothing in the file may be executed, and it may take no more memory than
    it has bytes. So arrays must not be compressed. Raises ValueError.
    """
    columns = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name, dtype in types.items():
                member = archive.getinfo(f"{name}.npy")
                is_encrypted = member.flag_bits & 1
                if member.compress_type != zipfile.ZIP_STORED or is_encrypted:
                    raise ValueError(f"{name} is compressed")
                columns[name] = _column(archive.read(member), dtype)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, SyntaxError) as e:
        raise ValueError(f"no arrays: {e}") from e
    return columns


def _column(content: bytes, expected: Any) -> np.ndarray:
    """Return the one-dimensional array in the content of a .npy file.

    expected: dtype of the array. Raises ValueError for any other array.
    """
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != expected or len(shape) != 1:
        raise ValueError(f"an array {shape} of {dtype}")
    # The values stand after the header, which the lines above have read.
    column = np.frombuffer(content, expected, offset=file.tell())
    if len(column) != shape[0]:
        raise ValueError(f"{len(column)} values, not {shape[0]}")
    return column

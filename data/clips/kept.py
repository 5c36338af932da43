"""The stored result of the data check, called a record. Later starts read it in place of all files.

A record is two files in <path.root>/.preflight. Their names begin with a digest of all options that
the check depends on (`digest_of_options`), and the scale of the network:

    3f2a90c1d4e5b677_x1.json   {"counts": "22 clips, ...", "warnings": [...], "arrays": SHA-256}
    3f2a90c1d4e5b677_x1.npz    the clips as arrays (data/clips/columns.py), and the state of
                               each folder (`State` in data/clips/listed_files.py)

`Record` reads and writes the record of one data root. `checked_clips` gives the clips of a record
to other ranks and to loader workers.

Anybody may have written these files. So three kinds of tests come before a record is used:

* Its sizes and values are bounded, and nothing in it is executed (`_columns_in`, `refuse_columns`).
* The state of every folder is the same as at the check (`Record._is_as_before`).
* The files of some clips give the same clip again (`_SameClip`).

If any test fails, the record is ignored and the data check runs again. So a wrong record costs time
but is never used. What must stay: every one of these tests, and a higher FORMAT for every change of
the check. test_a_record_that_does_not_fit_is_as_good_as_none forges records. It does not notice
every missing test, because a forged record mostly fails another test, too. Free to change: how many
files a repeated start looks at (SHARE, LEAST_FILES).

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
from data.clips.clip_folder import list_clip
from data.clips.column_check import refuse_columns
from data.clips.columns import Columns, Texts, kinds_of, types_of
from data.clips.listed_files import FileEntry, State, entry_of, is_lmdb, state_of, stem_of
from data.clips.ranges import first_and_end
from data.clips.source import Kind, Problem, Source
from data.clips.table import ClipTable
from data.clips.threads import map_in_threads
from data.spike.errors import SpikeFileError
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import read_plain, write_whole
from utils.json_file import read_json

logger = logging.getLogger(__name__)

# Version of a record. Raise it if the check finds more than before, or if the arrays change. Then
# records of older versions are ignored, and the data are checked anew.
FORMAT = 7
# Largest size of the arrays of a record in bytes, so that a forged file cannot fill the memory. A
# record of 32,000 clips has 36 million bytes.
LARGEST_RECORD_BYTES = 2**30
# Smallest number of files that a repeated start looks at. So it looks at all files of a data set
# that has no more. A larger number would find more changes, but the start would take longer.
LEAST_FILES = 4096
# Default of the option checked_share: the fraction of the files that a repeated start looks at. A
# larger fraction finds changed files sooner, and a smaller fraction makes starts faster.
SHARE = 0.01
# Number of folders whose states are compared at once. It bounds the memory for their paths. A much
# smaller number would leave threads without work.
FOLDERS_AT_ONCE = 2**14
# Columns that tell whether the data are still the same: the paths of all listed folders, and two
# numbers for each folder, its `State`.
STATE_COLUMNS = {"folders": np.uint8, "folder_states": np.int64}


@dataclass(frozen=True)
class Result:
    """The result of a check that found no problems."""

    counts: str  # numbers of clips and frames, in words
    warnings: list[Problem]  # what the log should say
    clips: Sequence[Clip]  # the checked clips


# What rank 0 tells the other ranks of a record: its name, and the SHA-256 of its arrays. The digest
# makes sure that all ranks read the same record.
RecordId = tuple[str, str]


def digest_of_options(source: Source) -> str:
    """Return 16 hex digits that change with every option of the check, but not with the files.

    Whoever adds an option to the check must add it here. Otherwise a record would also be used for
    another value of the option. Another order of the values gives other digits. This does no harm,
    but all existing records are then ignored.
    """
    spikes = source.spikes
    options: list[Any] = [
        FORMAT,
        source.kinds(),
        source.filename_tmpl,
        sorted(source.excluded_clips),
        source.meta_entries,
        source.may_share_frames,
        source.septuplets,
    ]
    if spikes:
        options.append(
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
        # Clips in `own_spikes` have spike settings of their own. They follow from dataset.json,
        # which is in `spikes.info`. Only their calibrations come from other files.
        for settings in (spikes, *source.own_spikes.values()):
            if settings.calibration:
                options.append(settings.calibration.digest())
    else:
        options.append(None)
    return hashlib.sha256(json.dumps(options).encode()).hexdigest()[:16]


def checked_clips(source: Source) -> ClipTable | None:
    """Return the clips of a source from its record, if this run has checked the source.

    Any rank and any loader worker may call this. Returns None if the run has not checked the
    source, or if this machine cannot read the record. Then the caller must check the files itself.
    """
    # The start of a run sets two values in RUN, the state of the run: {digest of the options: id of
    # the record}, and the folder of the records.
    record_ids: Mapping[str, Sequence[str]] = RUN.record_ids
    folder = RUN.checks_folder
    if folder is None or not record_ids:
        return None
    record_id = record_ids.get(digest_of_options(source))
    if record_id is None:
        return None
    name, digest = record_id
    try:
        content = _read_bounded(folder / f"{name}.npz")
        # Another run may have replaced the record since this run has checked the data. If the
        # digest is the same, rank 0 has checked these very arrays. So they are not checked again.
        if hashlib.sha256(content).hexdigest() != digest:
            return None
        columns = _columns_in(content, types_of(kinds_of(source)))
    except (OSError, ValueError):
        return None
    return ClipTable(source, columns, source.name_prefix)


class Record:
    """The record of one data root."""

    def __init__(self, folder: Path, source: Source, scale: int) -> None:
        """Prepare to read or write a record.

        folder: where the record is stored. source: the data root. scale: scale of the network.
        Raises DataError if the meta file cannot be read.
        """
        self.source = source
        self.options_digest = digest_of_options(source)  # digest of all options of the check
        self.name = f"{self.options_digest}_x{scale}"
        self.json = folder / f"{self.name}.json"
        self.arrays = folder / f"{self.name}.npz"
        # What other ranks are told of the record. None until the record was read or written.
        self.record_id: RecordId | None = None

    def read(self, share: float) -> Result | None:
        """Return the stored result if the data are the same as at the check, else None.

        share: fraction of the files that are looked at, 0 to 1.
        """
        try:
            # A warning is stored as a list of its four texts.
            about = read_json(self.json)
            warnings = []
            for texts in about["warnings"]:
                warnings.append(Problem(*map(str, texts)))
            counts = str(about["counts"])
            digest = str(about["arrays"])
            columns = self._read_columns(digest)
            table = ClipTable(self.source, columns)
            if not self._is_as_before(table, columns, share):
                return None
        # The files are no correct record, so the check must run again.
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        # The data have changed and are wrong now. The check runs again and says what is wrong.
        except (DataError, OptionError, SpikeFileError):
            return None
        self.record_id = (self.name, digest)
        return Result(counts, warnings, table)

    def _read_columns(self, digest: str) -> Columns:
        """Return the columns of the record. They are a correct table of the source.

        So the paths in the table are paths of the source, and may be opened.
        digest: SHA-256 that the .json has for the arrays. Another digest means that the two files
        of the record come from different checks.
        Raises OSError, and ValueError for any other content.
        """
        content = _read_bounded(self.arrays)
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("the arrays of another check")
        types = types_of(kinds_of(self.source))
        columns = _columns_in(content, types | STATE_COLUMNS)
        # The columns are copies. So free the content, which may have a gigabyte.
        del content
        refuse_columns({name: columns[name] for name in types}, self.source)
        return columns

    def write(self, result: Result, columns: Columns, states: Mapping[str, State]) -> None:
        """Store a result. If the folder cannot be written, only the log says so.

        columns: the clips as arrays. states: {path: state} of all listed folders.

        The names of the arrays are part of the format of a record (FORMAT).
        """
        # Paths may hold bytes that are not UTF-8, which Python reads as lone surrogates.
        paths = "".join(f"{path}\0" for path in states)
        path_bytes = paths.encode(errors="surrogateescape")
        state_rows = np.array(list(states.values()), np.int64)  # (folders, 2): mtime, ctime
        arrays: dict[str, Any] = {
            **columns,
            "folders": np.frombuffer(path_bytes, np.uint8),
            "folder_states": state_rows.ravel(),
        }
        file = io.BytesIO()
        np.savez(file, **arrays)
        content = file.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        about = {"counts": result.counts, "warnings": result.warnings, "arrays": digest}
        try:
            # The .json is written last. If the process ends between the two files, the .json has
            # the digest of other arrays, and `read` ignores the record.
            write_whole(self.arrays, content)
            write_whole(self.json, json.dumps(about).encode())
        except DataError as e:
            # A run does not need the record, so it goes on.
            logger.info("the result of the data check cannot be stored: %s", e)
            return
        self.record_id = (self.name, digest)

    # ---- Compare with the data --------------------------------------------------------------

    def _is_as_before(self, table: ClipTable, columns: Columns, share: float) -> bool:
        """Return whether no folder has changed since the check, and no file of some clips.

        share: fraction of the files that are looked at, 0 to 1.
        Raises OSError if a folder is gone, and the errors of the check.
        """
        folders = Texts(columns["folders"])
        states = columns["folder_states"].reshape(-1, 2)  # (folders, 2): mtime, ctime
        if len(folders) != len(states) or not self._has_all_folders(folders, table):
            return False
        if not _have_states(folders, states):
            return False
        if not self._has_all_clips(table):
            return False
        # Look at the files of some clips, because the state of a folder does not change if the
        # content of a file in it changes. A thread gets four clips at once and not the usual 32
        # items, because one clip takes long and all threads should be busy.
        is_same_clip = _SameClip(table, columns)
        return all(map_in_threads(is_same_clip, _clips_to_look_at(table, share), at_once=4))

    def _has_all_folders(self, folders: Texts, table: ClipTable) -> bool:
        """Return whether the record has a state of each root and of each folder of a clip.

        A forged record could leave out a folder. Then no later start would notice that this folder
        has changed.
        """
        recorded = set(folders.read_all())
        for name, kind in kinds_of(self.source).items():  # e.g. "lq", Kind(root="/data/blur", ...)
            # The files of an LMDB have their states in the record in place of folders.
            if is_lmdb(kind.root):
                continue
            if kind.root not in recorded:
                return False
            root_with_slash = os.path.join(kind.root, "")
            for folder_of_clip in set(table.folders[name].read_all()):
                path = table.roots[name] + folder_of_clip  # with "/" at its end
                # A single file of a clip lies in the root itself. Its state is recorded.
                is_root = path == root_with_slash
                if path.removesuffix("/") not in recorded and not is_root:
                    return False
        return True

    def _has_all_clips(self, table: ClipTable) -> bool:
        """Return whether the clips of the record are exactly the folders of the lq root."""
        root = self.source.dataroot_lq
        # If the clips of an LMDB change, its state changes.
        if is_lmdb(root):
            return True
        # A meta file says which clips belong to the data set. `refuse_columns` has compared them.
        if self.source.meta_entries is not None:
            return True
        # A clip "a/b" lies in the folder "a" of the root.
        recorded = {name.split("/")[0] for name in table.clip_names.read_all()}
        folders = set()
        with os.scandir(root) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir():
                    folders.add(entry.name)
        return recorded == folders - self.source.excluded_clips


def _have_states(folders: Texts, states: np.ndarray) -> bool:
    """Return whether all folders still have the states that were stored.

    folders: their paths. states: (folders, 2), the two numbers of each `State`.
    """
    # Some thousand folders at a time, because `between` makes a text of each path.
    for first in range(0, len(folders), FOLDERS_AT_ONCE):
        end = min(first + FOLDERS_AT_ONCE, len(folders))
        states_now = map_in_threads(state_of, folders.read(first, end))
        for then, now in zip(states[first:end].tolist(), states_now, strict=True):
            if tuple(then) != now:
                return False
    return True


class _SameClip:
    """A function: number of a clip -> whether its files are the same as in the record.

    The check of the files must also give the same clip again, because a forged record may hold a
    wrong clip. Several threads call the object at once. This is safe, because a call changes
    nothing in it.
    """

    def __init__(self, table: ClipTable, columns: Columns) -> None:
        self.table = table
        self.columns = columns
        self.usual_sizes = manifest.usual_sizes(table.source, table)

    def __call__(self, number: int) -> bool:
        source = self.table.source
        clip = self.table[number]
        files_of_clip: dict[str, dict[str, FileEntry] | None] = {}  # {kind: {stem: file}}
        for name, kind in kinds_of(source).items():
            recorded = self._recorded_files(name, number)
            files_now = _files_now(kind, clip.name, recorded)
            # Every recorded file must still be there, with the same size and time. There may be
            # further files, e.g. if a meta file lists only some frames of a folder.
            has_all_recorded = set(recorded) <= set(files_now)
            if not has_all_recorded:
                return False
            files_of_clip[name] = {stem_of(entry.path): entry for entry in files_now}
        # The usual sizes are the recorded sizes of the first clip. So the sizes of the first clip
        # itself must be read from its files.
        sizes = self.usual_sizes if number > 0 else None
        meta_entry = source.meta_entries[clip.name] if source.meta_entries else None
        check = ClipCheck(clip.name, source, files_of_clip, sizes=sizes)
        return check.run(meta_entry) == clip and not check.problems

    def _recorded_files(self, kind: str, number: int) -> list[FileEntry]:
        """Return the files of one kind of clip `number` as they were at the check."""
        first, end = first_and_end(self.table.first_files[kind], number)
        paths = self.table.paths(kind, number)
        sizes = self.columns[f"{kind}_bytes"][first:end].tolist()
        times = self.columns[f"{kind}_times"][first:end].tolist()
        entries = []
        for path, size, mtime_ns in zip(paths, sizes, times, strict=True):
            entries.append(FileEntry(path, size, mtime_ns))
        return entries


def _files_now(kind: Kind, clip: str, recorded: list[FileEntry]) -> list[FileEntry]:
    """Return the files of one kind that a clip has now. recorded: the files at the check."""
    # The state of an LMDB was compared already, so its files are the same.
    if is_lmdb(kind.root):
        return recorded
    folder = list_clip(kind.root, kind.folder, kind.endings, clip)
    if folder:
        return list(folder.entries().values())
    # The clip has no folder: its one spike file lies in the root.
    return [entry_of(entry.path) for entry in recorded]


def _clips_to_look_at(table: ClipTable, share: float) -> range:
    """Return the numbers of the clips that are looked at. Each start looks at other clips.

    The numbers are evenly spaced. E.g. a share of 0.01 of 100,000 files is 1000, which is less than
    LEAST_FILES, so 4096 files are wanted. 100,000 / 4096 is 24.4, so every 24th clip is looked at:
    5, 29, 53, ... at one start, and 17, 41, 65, ... at another.

    share: fraction of the files to look at, 0 to 1.
    """
    # The last entry of `first_files` is the number of all files of a kind.
    files = sum(int(first_files[-1]) for first_files in table.first_files.values())
    files_to_look_at = max(LEAST_FILES, share * files)
    step = max(1, math.floor(files / files_to_look_at))
    # The clock decides with which clip a start begins, so that many starts look at all clips.
    first = time.time_ns() % step
    return range(first, len(table), step)


# ---- Arrays in a file ------------------------------------------------------------------------


def _read_bounded(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, and ValueError if it is too large."""
    # Ask for one byte more than allowed. If it comes, the file is too large.
    content = read_plain(path, LARGEST_RECORD_BYTES + 1)
    if len(content) > LARGEST_RECORD_BYTES:
        raise ValueError(f"it has more than {LARGEST_RECORD_BYTES} bytes")
    return content


def _columns_in(content: bytes, types: Mapping[str, Any]) -> Columns:
    """Return columns of an .npz file. Raises ValueError if they are not there in this form.

    content: the file. types: {column: its dtype}.
    We do not use np.load, because nothing in the file may be executed. Arrays must not be
    compressed, because a small compressed file could fill the memory.
    """
    columns = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name, dtype in types.items():
                member = archive.getinfo(f"{name}.npy")
                is_encrypted = member.flag_bits & 1  # bit 0 in the format of zip
                if member.compress_type != zipfile.ZIP_STORED or is_encrypted:
                    raise ValueError(f"{name} is compressed")
                columns[name] = _array_in_npy(archive.read(member), dtype)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, SyntaxError) as e:
        raise ValueError(f"no arrays: {e}") from e
    return columns


def _array_in_npy(content: bytes, expected: Any) -> np.ndarray:
    """Return the one-dimensional array in the content of a .npy file.

    expected: dtype of the array. Raises ValueError for any other array.
    """
    file = io.BytesIO(content)
    # NumPy writes version 1.0 for arrays such as ours. Other versions have other headers.
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

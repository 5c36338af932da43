"""Say whether the data are still as they were when they were checked.

The data check stores its result in files called a record (data/clips/kept.py). The record also has
the state of each folder, which is two times of change (`State` in data/clips/listed_files.py). A
later start skips the check if `is_as_before` returns True. `is_as_before` asks four questions, and
returns False after the first "no":

    _has_all_folders   does the record have a state of each folder of the data?
    _have_states       does each folder still have this state?
    _has_all_clips     are the clips of the record the folders of the root?
    _Comparison        do the files of some clips give the same clips as in the record?

Which question notices which change:

    a file is added, removed or renamed    the state of its folder changes, so `_have_states`
    only the content of a file changes     the state of its folder stays, so only `_Comparison`

`_Comparison` looks at the files themselves. Looking at all files of a large data set would take
long. So each start looks at some of the clips, and the next start looks at different clips.

What must stay: every question, because anybody may have written the record. The docstring of each
function says what would go unnoticed without its question. Free to change: how many files are
looked at (LEAST_FILES, and SHARE in data/clips/kept.py).

Tests: tests/parts/data/test_kept.py
"""

import math
import os
import time

import numpy as np

from data.clips import manifest
from data.clips.clip_check import ClipCheck
from data.clips.clip_folder import list_clip
from data.clips.columns import Columns, Texts, kinds_of
from data.clips.listed_files import FileEntry, State, entry_of, is_lmdb, state_of, stem_of
from data.clips.ranges import first_and_end
from data.clips.source import Kind
from data.clips.table import ClipTable
from data.clips.threads import map_in_threads

# Smallest number of files that a repeated start looks at. E.g. with a share of 1 %, about 4096 of
# 100,000 files are looked at, about 10,000 of a million files, and all of 3000 files. A larger
# number would find more changes, but the start would take longer. The number is chosen by hand. The
# description of checked_share (data/clip_options.py) names this number, too.
LEAST_FILES = 4096
# Number of folders whose states are compared at once. A larger number takes more memory for the
# paths. A much smaller number would leave threads without work. The number is chosen by hand.
FOLDERS_AT_ONCE = 2**14


def is_as_before(table: ClipTable, columns: Columns, share: float) -> bool:
    """Return whether the data are still as they were when the record was written.

    The data are taken as unchanged if each of the four questions in the head of this file is
    answered with "yes".

    table: the clips of the record.
    columns: the arrays of the record, {name: array}. data/clips/columns.py shows the arrays of the
    clips. Two more arrays have the states: "folders" has the paths of the folders, and
    "folder_states" has two numbers for each folder.
    share: fraction of the files to look at, 0 to 1.
    Raises OSError if a folder is gone, and the errors of the check.
    """
    folders = Texts(columns["folders"])
    states = columns["folder_states"].reshape(-1, 2)  # (folders, 2), a `State` in each row
    if len(folders) != len(states) or not _has_all_folders(folders, table):
        return False
    if not _have_states(folders, states):
        return False
    if not _has_all_clips(table):
        return False
    comparison = _Comparison(table, columns)
    clips_to_look_at = _clips_to_look_at(table, share)
    # A thread gets four clips at once and not the usual 32 items (ITEMS_AT_ONCE in threads.py),
    # because one clip takes long and all threads should be busy.
    return all(map_in_threads(comparison.is_same_clip, clips_to_look_at, at_once=4))


# ---- Folders -----------------------------------------------------------------------------------


def _has_all_folders(folders: Texts, table: ClipTable) -> bool:
    """Return whether the record has a state of each root and of each folder of a clip.

    Without this function, a forged record could leave out a folder, and no later start would notice
    a change of this folder (test_a_wrong_record_is_not_used forges a record without states).

    folders: the paths in the record.
    """
    recorded = set(folders.read_all())
    for name, kind in kinds_of(table.source).items():  # e.g. "lq", Kind(root="/data/blur", ...)
        # An LMDB has no folders. The record has the states of its files.
        if is_lmdb(kind.root):
            continue
        if kind.root not in recorded:
            return False
        root_with_slash = os.path.join(kind.root, "")
        for folder_of_clip in set(table.folders[name].read_all()):  # e.g. "/clip_a/blur/"
            path = table.roots[name] + folder_of_clip
            # A clip may be a single file in the root itself. The state of the root is recorded.
            is_root = path == root_with_slash
            if not is_root and path.removesuffix("/") not in recorded:
                return False
    return True


def _have_states(folders: Texts, states: np.ndarray) -> bool:
    """Return whether all folders still have the states of the record.

    Without this function, a file that was added, removed or renamed could go unnoticed
    (test_files_that_changed_are_checked_anew).

    folders: paths of the folders.
    states: (folders, 2), the two numbers of each `State`.
    """
    # Take some thousand folders at a time, because `read` makes a text of each path.
    for first in range(0, len(folders), FOLDERS_AT_ONCE):
        end = min(first + FOLDERS_AT_ONCE, len(folders))
        states_then = states[first:end].tolist()
        states_now = map_in_threads(state_of, folders.read(first, end))
        for then, now in zip(states_then, states_now, strict=True):
            if State(*then) != now:
                return False
    return True


# ---- Clips -------------------------------------------------------------------------------------


def _has_all_clips(table: ClipTable) -> bool:
    """Return whether the clips of the record are exactly the folders of the lq root.

    Without this function, a forged record could leave out a clip. The states of its folders would
    be right, so nothing else would notice it (test_a_record_without_one_of_the_clips_is_not_used).
    """
    root = table.source.dataroot_lq
    # An LMDB has no folders. If its clips change, the state of its files changes.
    if is_lmdb(root):
        return True
    # A meta file lists the clips, and `refuse_columns` (column_check.py) has compared this list
    # already.
    if table.source.meta_entries is not None:
        return True
    # A clip "a/b" lies in the folder "a" of the root.
    recorded = {name.split("/")[0] for name in table.clip_names.read_all()}
    folders = set()
    with os.scandir(root) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                folders.add(entry.name)
    return recorded == folders - table.source.excluded_clips


def _clips_to_look_at(table: ClipTable, share: float) -> range:
    """Return the numbers of the clips whose files are looked at. They change with each start.

    The numbers are evenly spaced. At least LEAST_FILES = 4096 files are looked at. E.g. a share of
    0.01 of 100,000 files is 1000, so 4096 files are wanted. 100,000 / 4096 is 24.4, so every 24th
    clip is looked at. One start looks at the clips 5, 29, 53, ..., and another start at the clips
    17, 41, 65, ...

    share: fraction of the files to look at, 0 to 1.
    """
    files = 0  # number of all files
    for first_files in table.first_files.values():
        files += int(first_files[-1])  # the last entry is the number of all files of a kind
    files_to_look_at = max(LEAST_FILES, share * files)
    step = max(1, math.floor(files / files_to_look_at))
    # The clock decides with which clip a start begins, so that many starts look at all clips.
    first = time.time_ns() % step
    return range(first, len(table), step)


class _Comparison:
    """Compares clips of the record (the stored result of the check) with their files.

    Several threads call `is_same_clip` at once. They do not disturb one another, because
    `is_same_clip` changes no attribute.
    """

    def __init__(self, table: ClipTable, columns: Columns) -> None:
        """Prepare the comparison. table, columns: clips and arrays of the record."""
        self.table = table
        self.columns = columns
        # For Vimeo-90K: the sizes of all clips, from the first clip of the record. For other data:
        # None.
        self.usual_sizes = manifest.usual_sizes(table.source, table)

    def is_same_clip(self, number: int) -> bool:
        """Return whether the files of clip `number` are the same as at the check.

        `is_same_clip` notices a file whose size or time of change differs
        (test_files_that_changed_are_checked_anew). The files must also give the same clip again,
        because a forged record may have a wrong clip, e.g. sharp frames in a wrong order.
        """
        source = self.table.source
        clip = self.table[number]
        files_of_clip: dict[str, dict[str, FileEntry] | None] = {}  # {kind: {stem: file}}
        for name, kind in kinds_of(source).items():
            recorded = self._recorded_files(name, number)
            files_now = _files_now(kind, clip.name, recorded)
            # Every recorded file must still exist, with the same size and time. The folder may have
            # more files, e.g. if a meta file lists only some of its frames.
            has_all_recorded = set(recorded) <= set(files_now)
            if not has_all_recorded:
                return False
            files_of_clip[name] = {stem_of(entry.path): entry for entry in files_now}
        # The usual sizes are the sizes of clip 0 in the record, so they would prove nothing about
        # clip 0 itself. With None, the check reads the sizes of clip 0 from its files.
        sizes = self.usual_sizes if number > 0 else None
        meta_entry = source.meta_entries[clip.name] if source.meta_entries else None
        check = ClipCheck(clip.name, source, files_of_clip, sizes=sizes)
        clip_now = check.run(meta_entry)
        return clip_now == clip and not check.problems

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
    """Return the files of one kind that a clip has now.

    recorded: the files at the check.
    """
    # The states of the files of an LMDB were compared already, so its values are the same.
    if is_lmdb(kind.root):
        return recorded
    folder = list_clip(kind.root, kind.folder, kind.suffixes, clip)
    if folder:
        return list(folder.entries().values())
    # The clip has no folder: its one spike file lies in the root.
    return [entry_of(entry.path) for entry in recorded]

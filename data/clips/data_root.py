"""List the files of every clip below a data root: a folder of clips, or an LMDB.

    <root>/<clip>/<folder>/<files>     e.g. /data/train/clip_a/blur/000000.png
    <root>/<clip>/<files>              without a folder such as "blur"
    <root>/<a>/<clip>/...              clips in groups; the name of the clip is "<a>/<clip>"
    <root>/<clip>.dat                  one file for a clip, for spikes only (`single_files`)

Clips are in natural order ("2" before "10"), and the files of a clip in the order of their names.
Each of these functions reads names only, and no file.

What must stay: names and order of clips and files, because samples are numbered in this order and
results have these names. A name that cannot be the name of an output file is refused. The folders
are listed in threads, so functions that take one clip must share no state. Free to change: how the
folders are searched.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_kept.py (a folder that changes),
tests/parts/data/test_any_bytes.py (odd names)
"""

import os
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from data.clip import checked_name
from data.clips.listed_files import (
    ADVICE_FOR_MISSING_ROOT,
    Folder,
    Listing,
    State,
    is_lmdb,
    os_errors_as_data_errors,
    state_of,
)
from data.clips.lmdb_root import list_lmdb
from data.clips.threads import map_in_threads
from utils.errors import DataError
from utils.name_order import natural_key


def list_root(
    root: str,
    folder: str,
    suffixes: tuple[str, ...],
    single_files: bool = False,
    names: Collection[str] | None = None,
) -> Listing:
    """List the files of every clip below a data root.

    The files of a clip are in <root>/<clip>/<folder>, or in <root>/<clip> if there is no such
    folder. A folder that holds folders and no files is no clip. The folders in it are then the
    clips "<folder>/<clip>".

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg"). If a clip has files with several
    of these endings, only the files with the earliest ending are listed.
    single_files: whether a file directly in the root is a clip, too, e.g. <root>/clip_a.dat. If a
    folder <root>/clip_a has files, the folder is the clip.
    names: list only these clips. A name such as "a/b" is looked up in the folder "a" of the root.
    None: every clip.
    Raises DataError if the root cannot be read or holds no clip, and for names that cannot be used
    as names of output files.

    Clips and files come in an order that is the same on every machine. Callers rely on it.
    """
    if is_lmdb(root):
        listing = list_lmdb(root, names)
    else:
        listing = _list_folders(root, folder, suffixes, single_files, names)
    # Results are written to files with these names, so every name must pass `checked_name`.
    for clip, files in listing.items():
        checked_name(clip, root)
        # A data set may have a million stems, and a test of each takes long. On disk, a stem can
        # only fail by an unprintable character, because the name of a file has no slash. One look
        # at the joined names finds such a character. Only keys of an LMDB can fail in other ways.
        is_in_lmdb = files.lmdb_entries is not None
        if is_in_lmdb or not files.joined_names.isprintable():
            for stem in files.stems:
                checked_name(stem, os.path.join(root, clip))
    return listing


def list_clip(root: str, folder: str, suffixes: tuple[str, ...], name: str) -> Folder | None:
    """Return the files of the clip `name`, or None if it has no folder.

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg").
    """
    clips, _ = _list_clip(root, folder, suffixes, name)
    return clips.get(name)


def _list_folders(
    root: str,
    folder: str,
    suffixes: tuple[str, ...],
    single_files: bool,
    names: Collection[str] | None,
) -> Listing:
    """List a root on disk, with the arguments and errors of `list_root`."""
    listing = Listing()
    expected = "a folder with one folder per clip"
    with os_errors_as_data_errors(root, expected=expected, do=ADVICE_FOR_MISSING_ROOT):
        # Read the state before the list. If the folder changes in between, the stored state is too
        # old. So the next start notices the change and lists the folder again.
        listing.states[root] = state_of(root)
        with os.scandir(root) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        visible.sort(key=lambda entry: natural_key(entry.name))
        if names is None:
            names = [entry.name for entry in visible if entry.is_dir()]
    # The folders are listed in threads, because a file system on a network answers slowly. The
    # results come in the order of the names.
    list_clip_named = partial(_list_clip, root, folder, suffixes)
    for clips, states in map_in_threads(list_clip_named, names):
        listing.update(clips)
        listing.states.update(states)

    # Files that lie directly in the root.
    names_in_root = []
    for entry in visible:
        if entry.name.lower().endswith(suffixes) and entry.is_file():
            names_in_root.append(entry.name)
    if single_files:
        _add_single_files(listing, root, suffixes, names_in_root)
    if not listing:
        raise _no_clip(root, folder, names_in_root)
    return listing


def _add_single_files(
    listing: Listing, root: str, suffixes: tuple[str, ...], names: Sequence[str]
) -> None:
    """Add a clip for each file of the root, if the listing has no files of this clip yet.

    E.g. "a.dat" becomes the clip "a", unless the folder "a" has files. If the root has both "a.dat"
    and "a.npy", the file with the earlier suffix is used.

    names: names of the files that lie directly in the root.
    """
    prefix = os.path.join(root, "")  # the root with a slash at its end
    for suffix in suffixes:
        for name in names:
            if not name.lower().endswith(suffix):
                continue
            stem = name[: -len(suffix)]
            # A clip with files stays. The entry of a folder without files is replaced.
            has_files = bool(listing.get(stem))
            if not has_files:
                listing[stem] = Folder.of_names(prefix, [name])


def _no_clip(root: str, folder: str, names_in_root: Sequence[str]) -> DataError:
    """Return the error for a root without clips.

    folder: name of the folder within a clip, e.g. "blur".
    names_in_root: names of the files that lie directly in the root.
    """
    what = "the data folder holds no clip"
    do = "correct the dataroot"
    if names_in_root:
        # Three names show what kind of files these are.
        shown = ", ".join(names_in_root[:3])
        if len(names_in_root) > 3:
            shown += ", ..."
        what += f", but {len(names_in_root)} files ({shown})"
        do = "put the files of each clip into a folder of its own, or correct the dataroot"
        # Spike files directly in the root may hold a whole clip each. They are only read if
        # spike.exposure says which planes belong to which frame.
        if folder == "spike":
            advice = (
                "if each file holds all planes of a clip, give spike.exposure (docs/data_format.md)"
            )
            do = f"{advice}; otherwise {do}"
    return DataError(what=what, where=root, expected="one folder per clip", do=do)


def _list_clip(
    root: str, folder: str, suffixes: tuple[str, ...], name: str
) -> tuple[dict[str, Folder], dict[str, State]]:
    """List the clip `name` of a root, or the clips in it.

    Returns {clip: its files}, and {path: state} of the folders that were listed. Without a folder
    <root>/<name>, the first dict is empty. If the folder "a" holds folders "b" and "c" and no
    files, the clips are "a/b" and "a/c". Several threads call this at once.

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg").
    name: name of a folder in the root, e.g. "clip_a".
    """
    path = os.path.join(root, name)
    listed_folder = _list_files(path, folder, suffixes)
    if listed_folder is None:
        return {}, {}
    states = {listed_folder.path: listed_folder.state}
    if not listed_folder.inner_clips:
        return {name: listed_folder.files}, states
    clips = {}
    for inner in sorted(listed_folder.inner_clips, key=natural_key):
        inner_path = os.path.join(path, inner)
        inner_listed = _list_files(inner_path, folder, suffixes)
        # None means that the folder was removed a moment ago. `inner_clips` of an inner clip are
        # ignored: only one level of folders is searched.
        if inner_listed is not None:
            clips[f"{name}/{inner}"] = inner_listed.files
            states[inner_listed.path] = inner_listed.state
    return clips, states


# Names of folders within a clip. A folder with such a name is never a clip of its own.
CLIP_FOLDERS = frozenset({"blur", "blur_gamma", "sharp", "instants", "spike"})


class _ListedFolder(NamedTuple):
    """What a folder of a data root holds."""

    path: str  # the folder that was listed: the clip, or its folder "blur" or the like
    state: State  # of this folder
    files: Folder  # the files directly in it, or in its folder "blur" or the like
    inner_clips: list[str]  # names of the folders in it, if these may be the clips; else []


def _list_files(clip: str, folder: str, suffixes: tuple[str, ...]) -> _ListedFolder | None:
    """List a folder that is a clip, or a folder of clips. Returns None if `clip` is no folder.

    It is a folder of clips if nothing shows that it is a clip itself.

    clip: path of the folder, which may be a clip.
    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg").
    """
    with os_errors_as_data_errors(clip, expected="a readable folder"):
        # The files are in <clip>/<folder> if this folder exists, else in <clip>.
        path = os.path.join(clip, folder)
        content = _content_of_folder(path)
        has_inner_folder = content is not None
        if content is None:
            path = clip
            content = _content_of_folder(clip)
        if content is None:
            return None
        entries, state = content
        sorted_out = _sort_out(entries, suffixes, find_folders=not has_inner_folder)

    names = _names_with_first_suffix(sorted_out.names_by_suffix)
    prefix = os.path.join(path, "")  # the path with a slash at its end
    files = Folder.of_names(prefix, names)
    # Four things show that `clip` is a clip, and not a folder of clips: its folder `folder`, its
    # files, a file of another kind, e.g. a text, and a folder with a name such as "blur" or
    # "sharp", because this folder holds one kind of the files of a clip.
    has_files = bool(names)
    has_kinds_of_files = any(name in CLIP_FOLDERS for name in sorted_out.folders)
    is_clip = has_inner_folder or has_files or sorted_out.has_other_files or has_kinds_of_files
    inner_clips = [] if is_clip else sorted_out.folders
    return _ListedFolder(path, state, files, inner_clips)


class _SortedOut(NamedTuple):
    """The entries of a folder, without hidden ones."""

    names_by_suffix: dict[str, list[str]]  # {suffix: names of the files that end with it}
    folders: list[str]  # names of the folders
    has_other_files: bool  # whether there is a file with another suffix


def _sort_out(
    entries: Iterable[os.DirEntry[str]], suffixes: tuple[str, ...], find_folders: bool
) -> _SortedOut:
    """Sort the entries of a folder into files with a suffix, folders, and other files.

    find_folders: whether to tell folders from other files. This is slow on some file systems. If
    False, the result has no folders, and a folder sets `has_other_files` like a file with another
    suffix.
    """
    names_by_suffix: dict[str, list[str]] = {suffix: [] for suffix in suffixes}
    folders = []
    has_other_files = False
    for entry in entries:
        if entry.name.startswith("."):
            continue
        suffix = _suffix_of(entry.name, suffixes)
        if suffix is not None:
            names_by_suffix[suffix].append(entry.name)
        elif find_folders and entry.is_dir():
            folders.append(entry.name)
        else:
            has_other_files = True
    return _SortedOut(names_by_suffix, folders, has_other_files)


def _names_with_first_suffix(names_by_suffix: dict[str, list[str]]) -> list[str]:
    """Return the sorted names with the first suffix that any file has, e.g. .png before .jpg.

    The names with all suffixes would give two files for a frame, if a folder has both "0.png" and
    "0.jpg". names_by_suffix: {suffix: names}, in the order of preference.
    """
    for names in names_by_suffix.values():
        if names:
            return sorted(names)
    return []


def _suffix_of(name: str, suffixes: tuple[str, ...]) -> str | None:
    """Return the first suffix with which a name ends, or None. "A.PNG" has the suffix ".png"."""
    lower = name.lower()
    for suffix in suffixes:
        if lower.endswith(suffix):
            return suffix
    return None


def _content_of_folder(folder: str) -> tuple[list[os.DirEntry[str]], State] | None:
    """Return the entries and the state of a folder, or None if `folder` is no folder."""
    try:
        # Read the state before the list. If the folder changes in between, the stored state is too
        # old, so the next start notices the change.
        state = state_of(folder)
        with os.scandir(folder) as entries:
            return list(entries), state
    except (FileNotFoundError, NotADirectoryError):
        return None

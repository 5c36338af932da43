"""List the files of one folder of a data root, which is a clip or a folder of clips.

    <root>/<clip>/<folder>/<files>     e.g. /data/train/clip_a/blur/000000.png
    <root>/<clip>/<files>              without a folder such as "blur"
    <root>/<a>/<clip>/...              clips in groups. The name of such a clip is "<a>/<clip>"

The suffix of a file is how its name ends, e.g. ".png". Hidden files are left out.

What must stay: which folders are clips, and the order of the files, because samples are numbered in
this order. Several threads call the functions at once, so the functions share no state. Free to
change: how a folder is read.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_kept.py (a folder that changes)
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from data.clips.listed_files import (
    Folder,
    State,
    os_errors_as_data_errors,
    state_of,
)
from utils.name_order import natural_key


def list_clip(root: str, folder: str, suffixes: tuple[str, ...], name: str) -> Folder | None:
    """Return the files of the clip `name`, or None if it has no folder.

    data/clips/unchanged_data.py calls `list_clip` to look up the files of single clips.

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: the suffixes of the files, e.g. (".png", ".jpg"), the preferred suffix first.
    """
    clips, _ = list_clip_or_clips(root, folder, suffixes, name)
    return clips.get(name)


def list_clip_or_clips(
    root: str, folder: str, suffixes: tuple[str, ...], name: str
) -> tuple[dict[str, Folder], dict[str, State]]:
    """List the folder <root>/<name>, which is a clip or a folder of clips.

    If the folder is a clip, the result has this clip only. If the folder holds folders "b" and "c"
    and no files, the clips are "<name>/b" and "<name>/c". If there is no folder <root>/<name>, the
    result has no clip.
    Returns {clip: its files}, and {path: state} of the folders that were listed.

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: the suffixes of the files, e.g. (".png", ".jpg"), the preferred suffix first.
    name: name of a folder in the root, e.g. "clip_a".
    """
    path = os.path.join(root, name)
    listed_folder = _list_files(path, folder, suffixes)
    if listed_folder is None:
        return {}, {}
    states = {listed_folder.path: listed_folder.state}
    if not listed_folder.inner_clips:
        return {name: listed_folder.files}, states
    # Only one level of folders is searched, so `inner_clips` of an inner clip are ignored.
    clips = {}
    for inner in sorted(listed_folder.inner_clips, key=natural_key):
        inner_listed = _list_files(os.path.join(path, inner), folder, suffixes)
        if inner_listed is not None:  # It is None if the folder was removed a moment ago.
            clips[f"{name}/{inner}"] = inner_listed.files
            states[inner_listed.path] = inner_listed.state
    return clips, states


class _ListedFolder(NamedTuple):
    """The content of a folder of a data root."""

    # The folder that was listed: "/data/clip_a/blur" if it exists, else "/data/clip_a".
    path: str
    state: State  # state of the listed folder
    files: Folder  # the files directly in the listed folder
    inner_clips: list[str]  # names of the clips in a folder of clips; [] if the folder is a clip


# Names of folders within a clip. A folder with such a name is never a clip of its own.
# FOLDER_OF_KIND (source.py) and FOLDER_OF_LIGHT (spike_check.py) have these names. If you add a
# name to one of the two, add it here, too.
CLIP_FOLDERS = frozenset({"blur", "blur_gamma", "sharp", "instants", "spike"})


def _list_files(clip: str, folder: str, suffixes: tuple[str, ...]) -> _ListedFolder | None:
    """List a folder that is a clip, or a folder of clips. Returns None if `clip` is not a folder.

    clip: path of the folder, which may be a clip.
    folder: name of the folder within a clip, e.g. "blur".
    suffixes: the suffixes of the files, e.g. (".png", ".jpg"), the preferred suffix first.

    Tests: test_clips_in_nested_folders_have_both_names, test_a_folder_of_files_is_a_clip
    """
    with os_errors_as_data_errors(clip, expected="a readable folder"):
        # The files are in <clip>/<folder> if this folder exists, else in <clip>.
        path = os.path.join(clip, folder)
        content = _content_of_folder(path)
        has_inner_folder = content is not None
        if content is None:
            path = clip
            content = _content_of_folder(clip)
        if content is None:  # `clip` is not a folder
            return None
        entries, state = content
        # With a folder such as "blur", `clip` is a clip, so it has no inner clips to find.
        sorted_out = _sort_out(entries, suffixes, find_folders=not has_inner_folder)

    names = _names_with_first_suffix(sorted_out.names_by_suffix)
    prefix = os.path.join(path, "")  # the path with a slash at its end
    files = Folder.of_names(prefix, names)
    # `clip` is a clip, and not a folder of clips, if it has one of the following:
    #     a folder with the name `folder`, e.g. "blur"
    #     files with one of the suffixes
    #     other files, e.g. a text
    #     a folder for another kind of file, e.g. "sharp"
    has_files = bool(names)
    has_kinds_of_files = any(name in CLIP_FOLDERS for name in sorted_out.folders)
    is_clip = has_inner_folder or has_files or sorted_out.has_other_files or has_kinds_of_files
    inner_clips = [] if is_clip else sorted_out.folders
    return _ListedFolder(path, state, files, inner_clips)


class _SortedOut(NamedTuple):
    """The entries of a folder, without hidden files and folders."""

    # {suffix: names of the files that end with it}, the preferred suffix first.
    names_by_suffix: dict[str, list[str]]
    folders: list[str]  # names of the folders
    has_other_files: bool  # whether there is a file that ends with none of the suffixes


def _sort_out(
    entries: Iterable[os.DirEntry[str]], suffixes: tuple[str, ...], find_folders: bool
) -> _SortedOut:
    """Sort the entries of a folder into files with a suffix, folders, and other files.

    suffixes: the suffixes to look for, e.g. (".png", ".jpg"), the preferred suffix first.
    find_folders: whether to tell folders from other files. This is slow on some file systems.
    False: the result has no folders. A folder sets `has_other_files`, like a file without any of
    `suffixes`.
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


def _suffix_of(name: str, suffixes: tuple[str, ...]) -> str | None:
    """Return the first of `suffixes` with which a name ends, or None. "A.PNG" ends with ".png"."""
    lower = name.lower()
    for suffix in suffixes:
        if lower.endswith(suffix):
            return suffix
    return None


def _names_with_first_suffix(names_by_suffix: dict[str, list[str]]) -> list[str]:
    """Return the sorted names with the first suffix that any file has, e.g. .png before .jpg.

    A folder may have both "0.png" and "0.jpg". If both names were returned, frame 0 would have two
    files.

    names_by_suffix: {suffix: names}, in the order of preference.
    """
    for names in names_by_suffix.values():
        if names:
            return sorted(names)
    return []


def _content_of_folder(folder: str) -> tuple[list[os.DirEntry[str]], State] | None:
    """Return the entries and the state of a folder, or None if `folder` is not a folder."""
    try:
        # Read the state before the list. If the folder changes in between, the stored state is too
        # old, so the next start notices the change.
        state = state_of(folder)
        with os.scandir(folder) as entries:
            return list(entries), state
    except (FileNotFoundError, NotADirectoryError):
        return None

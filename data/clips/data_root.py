"""List the files of every clip below a data root: a folder of clips, or an LMDB.

    <root>/<clip>/...       each folder is a clip, or a folder of clips (data/clips/clip_folder.py)
    <root>/<clip>.dat       one file for a clip. Only spikes may have such files (`single_files`)
    <root>.lmdb             a database for all clips (data/clips/lmdb_root.py)

Clips are in natural order ("2" before "10"), and the files of a clip in the order of their names.
Only names are read, and no file is opened.

What must stay:

* names and order of clips and files, because samples are numbered in this order and results have
  these names,
* the refusal of names that cannot be names of output files.

Free to change: how the folders are searched, and in how many threads.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_kept.py (a folder that changes),
tests/parts/data/test_any_bytes.py (odd names)
"""

import os
from collections.abc import Collection, Sequence
from functools import partial

from data.clip import checked_name
from data.clips.clip_folder import list_clip_or_clips
from data.clips.listed_files import (
    ADVICE_FOR_MISSING_ROOT,
    Folder,
    Listing,
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
    folder. If a folder <root>/<a> holds folders and no files, the clips are "<a>/<clip>".

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: the suffixes of the files, e.g. (".png", ".jpg"). If a clip has files with several of
    these suffixes, only the files with the earliest suffix are listed.
    single_files: whether a file directly in the root is a clip, too, e.g. <root>/clip_a.dat. If
    there is also a folder <root>/clip_a with files, the folder is the clip.
    names: names of the clips to list, e.g. "a" or "a/b". None: every clip.
    Raises DataError if the root cannot be read or holds no clip, and for names that cannot be used
    as names of output files.

    Clips and files come in an order that is the same on every machine. Callers rely on this order.
    """
    if is_lmdb(root):
        listing = list_lmdb(root, names)
    else:
        listing = _list_folders(
            root, folder, suffixes=suffixes, single_files=single_files, names=names
        )
    _refuse_names(listing, root)
    return listing


def _refuse_names(listing: Listing, root: str) -> None:
    """Refuse names that cannot be names of files, because results get these names.

    Test: test_a_listed_name_that_leads_out_of_the_results_is_refused
    """
    for clip, files in listing.items():
        checked_name(clip, root)
        # `checked_name` refuses names that lead to another folder, e.g. "../b", and names with an
        # unprintable character. A key in an LMDB may have both faults. A file name on disk has no
        # slash, so it can only have the second fault. To save time, all names of a folder are
        # first searched at once for unprintable characters.
        is_in_lmdb = files.lmdb_entries is not None
        if is_in_lmdb or not files.joined_names.isprintable():
            for stem in files.stems:
                checked_name(stem, os.path.join(root, clip))


def _list_folders(
    root: str,
    folder: str,
    suffixes: tuple[str, ...],
    single_files: bool,
    names: Collection[str] | None,
) -> Listing:
    """List a root on disk.

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: the suffixes of the files, e.g. (".png", ".jpg"), the preferred suffix first.
    single_files: whether a file directly in the root is a clip, too.
    names: names of the clips to list. None: every clip.
    Raises DataError if the root cannot be read or holds no clip.
    """
    listing = Listing()
    expected = "a folder with one folder per clip"
    # An OSError in the block becomes a DataError with these texts.
    with os_errors_as_data_errors(root, expected=expected, do=ADVICE_FOR_MISSING_ROOT):
        # Read the state before the list. If the folder changes in between, the stored state is too
        # old, so the next start notices the change and lists the folder again.
        listing.states[root] = state_of(root)
        with os.scandir(root) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        visible.sort(key=lambda entry: natural_key(entry.name))
        if names is None:
            names = [entry.name for entry in visible if entry.is_dir()]
    # The folders are listed in threads, because a file system on a network answers slowly. The
    # results come in the order of the names. `list_clip_named(name)` calls
    # `list_clip_or_clips(root, folder, suffixes, name)`.
    list_clip_named = partial(list_clip_or_clips, root, folder, suffixes)
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

    E.g. "a.dat" becomes the clip "a" if there is no folder "a" with files. If the root has both
    "a.dat" and "a.npy", the file with the earlier suffix is used.

    suffixes: the suffixes of the files, e.g. (".dat", ".npy"), the preferred suffix first.
    names: names of the files that lie directly in the root.

    Test: test_a_clip_takes_the_spike_file_of_its_name
    """
    prefix = os.path.join(root, "")  # the root with a slash at its end
    # The files with the first suffix come first. If a later file has the same stem, the clip has a
    # file already, so the later file is not added.
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

    Test: test_the_error_of_a_root_with_one_spike_file_per_clip_says_what_to_do
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

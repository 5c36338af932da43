"""Write a folder of results, and refuse an output folder that holds files of others.

No program of the project changes or removes a file that it did not make. A folder of results or of
a run is new, or holds a file that marks it as ours: the file MARK or RESULTS (utils/files.py). Any
other folder is refused as a whole, before any work is done. "Ours" means: made by a program of this
project.

    Folders     refuse_links, remove_files, scratch_folder, publish_folder
    Refusals    refuse_existing, refuse_foreign, refuse_overlap

A function whose name begins with "refuse" raises an error for the user, or returns if all is well.

What must stay: the checks before a file is written or removed. If a check is loosened, a user may
lose files. Free to change: the texts of refusals that no test quotes.

Tests: tests/parts/utils/test_output_folder.py, tests/parts/data/test_files.py.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePath

from utils.errors import DataError, OptionError
from utils.files import MARK

# ---- Folders of results ------------------------------------------------------------------------


def refuse_links(folder: Path, paths: Iterable[Path]) -> None:
    """Raise DataError if a file that is to be written would lie outside of `folder`.

    A link or ".." in its path can lead outside. Also raises DataError if something else, such as a
    folder, has the name of the file.

    paths: paths of the files, below `folder`.
    """
    refused_paths = []
    for path in dict.fromkeys(paths):  # each path once, in order
        if not _is_plain(folder, path):
            refused_paths.append(path)
    if refused_paths:
        names = _first_names(path.relative_to(folder) for path in refused_paths)
        raise DataError(
            what=f"{names} leads out of the output folder, or is no file",
            where=str(folder),
            expected='files below the folder, without symbolic links and without ".." in names',
            do="choose another output folder, or rename the clip",
        )


def remove_files(folder: Path, paths: Iterable[Path]) -> None:
    """Remove files below `folder`, and then the empty folders around them, but not `folder`.

    Links, and paths outside of `folder`, are not touched.
    """
    folders = set()
    for path in paths:
        if path.is_file() and _is_plain(folder, path):
            path.unlink()
            folders.update(_folders_between(folder, path))
    # The deepest folder first, because a folder is empty only after the folders in it are gone.
    for inner in sorted(folders, key=_depth, reverse=True):
        # rmdir fails if the folder still holds files, or if another rank has removed it.
        with suppress(OSError):
            inner.rmdir()


def _is_plain(folder: Path, path: Path) -> bool:
    """Return whether `path` can be a file that really lies below `folder`.

    A link could lead out of `folder`. So `path` must not be a link, and each folder between
    `folder` and `path` must be a folder and no link.
    """
    if folder not in path.parents:
        return False
    # Where the folder of the file lies if there is no link between `folder` and the file. E.g.
    # /data/out/a for the folder "out" and the file "out/a/0.png". `folder` itself may be a link.
    parent_without_links = folder.resolve() / path.parent.relative_to(folder)
    # ".." would lead out of `folder`.
    if ".." in parent_without_links.parts or path.name == "..":
        return False
    # `resolve` follows links. If it leads elsewhere, there is a link on the way.
    if path.parent.resolve() != parent_without_links or path.is_symlink():
        return False
    if path.is_dir():
        return False
    for inner in _folders_between(folder, path):
        if os.path.lexists(inner) and not inner.is_dir():
            return False
    return True


def _depth(path: Path) -> int:
    """Return how many names a path has, e.g. 3 for out/a/b."""
    return len(path.parts)


def _folders_between(folder: Path, path: Path) -> list[Path]:
    """Return the folders between `folder` and `path`, without these two.

    For the folder out and the path out/a/b/0.png: out/a/b and out/a.
    """
    # A folder around `path` lies below `folder` if `folder` is one of its own parents.
    return [parent for parent in path.parents if folder in parent.parents]


def scratch_folder(path: Path) -> Path:
    """Make a new folder that has only our mark, the file MARK. Returns `path`.

    If the folder exists with our mark, an earlier run has left the folder, and it is removed. An
    empty folder is removed, too. Raises DataError if something else has this name.
    """
    if os.path.lexists(path):
        # A run that was killed before it made the mark leaves an empty folder.
        is_empty = path.is_dir() and not any(path.iterdir())
        is_ours = is_empty or (path / MARK).is_file()
        if path.is_symlink() or not is_ours:
            raise DataError(
                what="this name is needed for a temporary folder, but something else has it",
                where=str(path),
                expected="nothing under this name",
                do="move it away",
            )
        shutil.rmtree(path)
    path.mkdir(parents=True)
    (path / MARK).touch()
    return path


def publish_folder(scratch: Path, target: Path) -> None:
    """Give a finished scratch folder its final name, and remove its mark.

    scratch: the folder that `scratch_folder` made.
    target: the final name. An empty folder of this name is replaced.

    Raises DataError if something else has the name `target`.
    """
    if os.path.lexists(target):
        is_folder = target.is_dir() and not target.is_symlink()
        if not is_folder or any(target.iterdir()):
            raise DataError(
                what="the folder appeared meanwhile",
                where=str(target),
                expected="nothing under this name",
                do="move it away",
            )
    # Remove the mark last. If the program is killed between the two lines, it leaves a complete
    # folder with a mark. In the other order it could leave a scratch folder without a mark, and
    # `scratch_folder` would refuse this folder at the next start.
    os.replace(scratch, target)
    (target / MARK).unlink()


# ---- Refusals of output places -----------------------------------------------------------------


def refuse_existing(path: Path, where: str) -> None:
    """Raise OptionError if an output file exists already.

    where: the flag that named the file, e.g. "--output".
    """
    if os.path.lexists(path):
        raise OptionError(
            what="the file exists already",
            where=f"{where} {path}",
            expected="a new name: no file is overwritten",
            do="choose another name, or remove the file",
        )


def refuse_foreign(folder: Path, ours: Mapping[str, int], what: str) -> None:
    """Raise DataError if `folder` holds files or folders that are not ours.

    A file is ours if it has the name and the size of one of our files. The contents are not read,
    because reading would take minutes for a large data set.

    ours: name of a file that may be there, relative to the folder -> its size in bytes. E.g.
        {"a/0.png": 1234}.
    what: what our files are, for the message, e.g. "this cache".
    """
    foreign_paths = []
    if folder.is_symlink() or not folder.is_dir():
        foreign_paths = [folder]
    else:
        # The folders of our files. E.g. the file "a/b/0.png" has the folders "a/b", "a" and ".".
        our_folders = set()
        for name in ours:
            our_folders.update(parent.as_posix() for parent in PurePath(name).parents)
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            is_our_file = path.is_file() and ours.get(name) == path.stat().st_size
            is_our_folder = path.is_dir() and name in our_folders
            if path.is_symlink() or not (is_our_file or is_our_folder):
                foreign_paths.append(path)
    if foreign_paths:
        raise DataError(
            what=f"the folder holds files that are not part of {what}: "
            f"{_first_names(foreign_paths)}",
            where=str(folder),
            expected=f"an empty folder, or {what}",
            do="choose another folder, or move these files away",
        )


def refuse_overlap(
    output: Path, inputs: Mapping[str, str | Path | None], flag: str = "--output"
) -> None:
    """Raise OptionError if an output folder is, contains or lies in an input.

    Links are followed before the paths are compared.

    inputs: flag of an input -> its path, or None if the input is not given.
    flag: flag of the output.
    """
    target = output.resolve()
    for name, path in inputs.items():
        if path is None:
            continue
        source = Path(path).resolve()
        if target == source:
            how = "is"
        elif target in source.parents:
            how = "contains"
        elif source in target.parents:
            how = "lies in"
        else:
            continue
        raise OptionError(
            what=f"{flag} would write over the input: it {how} {name}",
            where=f"{flag} {output}, {name} {path}",
            expected="an output folder apart from all inputs",
            do=f"change {flag}",
        )


# Largest number of names in a message. More names would make the message long. Chosen by hand.
MOST_SHOWN_NAMES = 5


def _first_names(paths: Iterable[Path]) -> str:
    """Return the first paths for a message, and how many more there are: "a, b and 3 more"."""
    names = [str(path) for path in paths]
    text = ", ".join(names[:MOST_SHOWN_NAMES])
    more_count = len(names) - MOST_SHOWN_NAMES
    if more_count > 0:
        text += f" and {more_count} more"
    return text

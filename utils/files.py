"""Files: order by name, atomic writing, and telling the project's own files from others.

No program of the project changes or removes a file that it did not make. A folder of results or of
a run is new, or holds a file that marks it as ours (MARK, RESULTS). Any other folder is refused as
a whole, before any work is done. "Ours" means: made by a program of this project.

    Names      natural_key, are_values, order_of       in which order frames follow one another
    Reading    open_plain, plain_descriptor, read_plain, rest_of, sha256_of
    Writing    write_whole, temporary_beside, writing, free_bytes
    Of a run   refuse_link, open_kept, claim_run_folder
    Folders    refuse_links, remove_files, scratch_folder, publish_folder
    Refusals   refuse_existing, refuse_foreign, refuse_overlap

Functions that begin with "refuse" return if all is well, else they raise an error for the user.

What must stay: the checks before a file is written or removed. If a check is loosened, a user may
lose files. Tests: tests/parts/utils/test_output_folder.py, tests/parts/data/test_files.py, and for
`claim_run_folder` test_training_refuses_a_folder_with_strangers_under_its_names. The order of names
must stay too, because it decides which frames are neighbours:
test_frames_are_in_the_order_of_their_numbers (`natural_key`),
test_images_are_sorted_by_the_numbers_in_their_names (`are_values`).

Free to change: the texts of refusals that no test quotes, the constants below, and how files are
read.
"""

import errno
import hashlib
import math
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

from utils.errors import DataError, OptionError

# Name of an empty file that marks a folder as made by this project.
MARK = ".spikevrt"
# The mark of a folder of results.
RESULTS = "run.json"
# Largest number of names in a message. More names would make the message unreadable.
MOST_SHOWN_NAMES = 5
# Bytes of one read. A limit keeps a wrong size of a file from asking for all memory at once.
READ_AT_ONCE = 2**24
# What `writing` advises if the folder of a run cannot be written.
OTHER_ROOT = "free some space, or set path.root to another disk"

_DIGITS = re.compile(r"(\d+)")
# A number as Python and C print it, e.g. "-1.50e+3". The limits of the lengths keep a long name of
# a file from taking much time.
_VALUE = re.compile(
    r"([+-]?)"  # sign
    r"(\d{1,100})"  # digits before the point
    r"(?:\.(\d{0,200}))?"  # the point, and digits behind it
    r"([eE][+-]\d{1,3})?",  # exponent; it must have a sign, because "2e5" may also be a checksum
    re.ASCII,
)


# ---- Names -------------------------------------------------------------------------------------


def natural_key(path: str | PurePath) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which "2" comes before "10".

    Runs of digits are compared as numbers, other text letter by letter. Equal numbers written
    differently ("1", "01") keep a fixed order: the shorter first.
    For example, "a12" becomes ((1, 0, "a"), (0, 12, "0002"), (1, 0, "")).
    """
    key = []
    # With a group in the pattern, split returns text and digits in turn, beginning with text: "a12"
    # becomes "a", "12", "". So each second part is digits. Tuples are compared item by item, so 0
    # (digits) comes before 1 (text).
    for index, part in enumerate(_DIGITS.split(str(path))):
        is_digits = index % 2 == 1
        if is_digits:
            digit_count = f"{len(part):04d}"  # "0001" for "1", "0002" for "01"
            key.append((0, int(part), digit_count))
        else:
            key.append((1, 0, part))
    return tuple(key)


class _Value(NamedTuple):
    """The parts of a number in a name, as text. "-1.50e+3" has "-", "1", "50" and "e+3"."""

    sign: str
    whole: str
    fraction: str
    exponent: str


def are_values(names: Collection[str]) -> bool:
    """Return whether all names are numbers that must be compared by value.

    This is so if their digits alone do not tell the order: seconds of different lengths, such as
    432.1 and 432.033333; numbers with exponents; numbers with and without a minus.
    It is not so for a counter behind a point (1.9, 1.10, 1.11), and not if a "-" stands before each
    name, because this may be a hyphen.
    """
    values = []
    for name in names:
        match = _VALUE.fullmatch(name)
        if match is None:
            return False
        values.append(_Value(*match.groups(default="")))
    signs = {value.sign for value in values}
    if "" not in signs:
        return False  # a sign stands before each name: it may be a hyphen
    have_several_signs = len(signs) > 1
    have_exponents = any(value.exponent for value in values)
    if have_several_signs or have_exponents:
        return True
    # Fractions of one length, such as 1.10 and 1.25, have the right order digit by digit.
    fraction_lengths = {len(value.fraction) for value in values}
    return len(fraction_lengths) > 1 and not _is_counter(values)


def _is_counter(values: list[_Value]) -> bool:
    """Return whether numbers count up behind the point without a gap, such as 1.9, 1.10, 1.11."""
    wholes = {value.whole for value in values}
    if len(wholes) > 1:
        return False
    counts = []
    for value in values:
        count = int(value.fraction or "0")
        # A counter has a number behind the point, without leading zeros. So "1." and "1.01" end it.
        if value.fraction != str(count):
            return False
        counts.append(count)
    counts.sort()
    first = counts[0]
    without_gap = list(range(first, first + len(counts)))  # e.g. 9, 10, 11
    return counts == without_gap


def order_of(names: Iterable[str]) -> Callable[[str], Any]:
    """Return the sort key for the names of the frames of a clip, without their suffixes.

    Numbers for which `are_values` holds are ordered by value, other names by `natural_key`.
    """
    if are_values(list(names)):
        return lambda name: (Fraction(name), natural_key(name))
    return natural_key


# ---- Reading -----------------------------------------------------------------------------------


def open_plain(path: str | Path) -> BinaryIO:
    """Open a file to read. Raises OSError, also for a device, which never ends, or a pipe."""
    descriptor, _ = plain_descriptor(path)
    return os.fdopen(descriptor, "rb")


def plain_descriptor(path: str | Path) -> tuple[int, os.stat_result]:
    """Open a file to read. Returns its descriptor, and its state (size, time of change, ...).

    The caller closes the descriptor, and needs no further os.stat, which is slow on a network file
    system. Raises OSError, also for a device or a pipe.
    """
    # Without O_NONBLOCK, opening a pipe would wait until somebody writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode):  # a regular file
        return descriptor, state
    os.close(descriptor)
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # 0: no error of the system has this number, so the text stands alone.
    raise OSError(0, "it is a device or a pipe, not a file", str(path))


def read_plain(path: str | Path, count: int = -1) -> bytes:
    """Return the first `count` bytes of a file, -1: all.

    Raises OSError, also for a device or a pipe.
    """
    descriptor, _ = plain_descriptor(path)
    try:
        return rest_of(descriptor, count)
    finally:
        os.close(descriptor)


def rest_of(descriptor: int, count: int = -1) -> bytes:
    """Return the bytes of an open file that follow the bytes that were read already.

    count: largest number of bytes to return, -1: all.
    """
    has_limit = count >= 0
    parts = []
    bytes_left = count  # stays -1 without a limit
    while bytes_left != 0:
        # os.read may return fewer bytes than asked for, and none at the end of the file.
        byte_count = min(bytes_left, READ_AT_ONCE) if has_limit else READ_AT_ONCE
        part = os.read(descriptor, byte_count)
        if not part:
            break
        parts.append(part)
        if has_limit:
            bytes_left -= len(part)
    return b"".join(parts)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    # Read a megabyte at a time, because a checkpoint may be larger than the free memory.
    # (hashlib.file_digest would do this, but it came with Python 3.11.)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(2**20)
            if not block:  # the end of the file
                break
            digest.update(block)
    return digest.hexdigest()


# ---- Writing -----------------------------------------------------------------------------------


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file that is whole or absent, also on a full disk or after a kill.

    The content is written under another name first, and then gets the name `path`. The folder is
    made if it is missing. Raises DataError.
    """
    path = Path(path)
    with writing(path):
        temporary = temporary_beside(path)
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """Return a name for a file that becomes `path` once it is whole. Makes the folder.

    For example out/.clip.1a2b3c4d.png for out/clip.png. The module tempfile is not used, because
    it ignores the umask, so that other users could not read the result.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}")


@contextmanager
def writing(
    path: Path,
    do: str = "free some space or choose another folder, then start the same command again",
    errors: tuple[type[Exception], ...] = (OSError,),
) -> Generator[None]:
    """Raise an error of the block as a DataError about writing the file or folder `path`.

    do: the advice of the DataError. errors: types of the errors that are turned into it.
    """
    try:
        yield
    except errors as e:
        cause = getattr(e, "strerror", None) or e
        raise DataError(
            what=f"cannot write: {cause}",
            where=str(path),
            expected="room on the disk, and permission to write",
            do=do,
        ) from e


def free_bytes(folder: Path) -> float:
    """Return the free space where `folder` lies, or would lie if it existed.

    Returns infinity if the file system does not tell it.
    """
    while not folder.exists():
        folder = folder.parent
    file_system = os.statvfs(folder)
    if not file_system.f_blocks:  # a file system without a size
        return math.inf
    # Blocks that a user may take, times the bytes of a block.
    return file_system.f_bavail * file_system.f_frsize


# ---- Files of a run ----------------------------------------------------------------------------


def refuse_link(path: Path) -> None:
    """Raise DataError if a file that a run writes is a link, because its target may not be ours."""
    if path.is_symlink():
        raise DataError(
            what="a link has the name of a file of the run",
            where=f"{path} -> {os.readlink(path)}",
            expected="a file of its own (a whole folder, such as checkpoints/, may be a link)",
            do="move the link away",
        )


def open_kept(path: Path, mode: str, permissions: int = 0o666, encoding: str | None = None) -> Any:
    """Open a file that a run keeps open and writes, such as its log.

    Bytes are written at once, text after each line, so that a killed run loses at most a line. If
    `path` itself is a link, the link is not followed, because its target may not be ours.

    permissions: permissions of a new file, from which the umask is subtracted.

    Raises DataError if `path` is a link, OSError as `open` does.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)

    buffering = 0 if "b" in mode else 1  # 0: none, 1: by line
    try:
        return open(path, mode, buffering, encoding, opener=opener)
    except OSError as e:
        # With O_NOFOLLOW, the system reports a link by this number.
        if e.errno == errno.ELOOP:
            refuse_link(path)
        raise


def claim_run_folder(folder: Path, patterns: Iterable[str], is_ours: bool) -> None:
    """Make the folder of a run, and mark it as ours by the file MARK.

    patterns: patterns of the names of files that a run writes there, such as "*.log".
    is_ours: whether the caller knows that an earlier run made the folder.
    Raises OptionError for a folder of results, and if a file fits a pattern although the folder has
    no mark.
    """
    # Files in the folder that the run would write over.
    existing_names = []
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            existing_names.append(path.name)
    # What the folder holds that no run may write over, in words for the error.
    content_of_others = ""
    if not is_ours and (folder / RESULTS).is_file():
        content_of_others = "the results of a test"
    elif existing_names and not is_ours and not (folder / MARK).is_file():
        content_of_others = f"files that no run of this program made: {', '.join(existing_names)}"
    if content_of_others:
        raise OptionError(
            what=f"the folder of the run holds {content_of_others}",
            where=str(folder),
            expected="an empty folder, or one of an earlier run",
            do="choose another task name, or move these files away",
        )
    with writing(folder, OTHER_ROOT):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()


# ---- Folders of results ------------------------------------------------------------------------


def refuse_links(folder: Path, paths: Iterable[Path]) -> None:
    """Raise DataError if a file that is to be written would lie outside of `folder`.

    Also raises it if something else, such as a folder, has the name of the file.
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
    """Remove files below `folder`, and the folders below it that are empty then.

    Paths that are no plain files below `folder` are left alone.
    """
    folders = set()
    for path in paths:
        if path.is_file() and _is_plain(folder, path):
            path.unlink()
            folders.update(_folders_between(folder, path))
    # The deepest folder first, because a folder is empty only after the folders in it are gone.
    for inner in sorted(folders, key=lambda path: -len(path.parts)):
        # rmdir fails if the folder still holds files, or if another rank has removed it.
        with suppress(OSError):
            inner.rmdir()


def _is_plain(folder: Path, path: Path) -> bool:
    """Return whether a file that is written to `path` lies below `folder`, and nowhere else.

    No folder between `folder` and `path` may be a link, and none may be a file.
    """
    if folder not in path.parents:
        return False
    # The folder of the file, if no link is on the way. `folder` itself may be behind links.
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


def _folders_between(folder: Path, path: Path) -> list[Path]:
    """Return the folders between `folder` and `path`, without these two.

    For the folder out and the path out/a/b/0.png: out/a/b and out/a.
    """
    return [parent for parent in path.parents if folder in parent.parents]


def scratch_folder(path: Path) -> Path:
    """Make a new empty folder with our mark.

    A folder with our mark is of an earlier run, and is removed. So is an empty folder. Raises
    DataError if something else has this name.
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
    """Give a finished scratch folder its name, and remove its mark.

    Raises DataError if something else has the name `target`. An empty folder is replaced.
    """
    if os.path.lexists(target):
        is_empty_folder = not target.is_symlink() and target.is_dir() and not any(target.iterdir())
        if not is_empty_folder:
            raise DataError(
                what="the folder appeared meanwhile",
                where=str(target),
                expected="nothing under this name",
                do="move it away",
            )
    # The mark goes last. If the program is killed between the two lines, a complete folder with a
    # mark is left. In the other order it could leave a scratch folder without a mark, which the
    # next start must not clear.
    os.replace(scratch, target)
    (target / MARK).unlink()


# ---- Refusals of output places -----------------------------------------------------------------


def refuse_existing(path: Path, where: str) -> None:
    """Raise OptionError if an output file exists already. where: the flag that named it."""
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
    because that would take minutes for a large data set.

    ours: the files that may be there: name relative to the folder, such as "a/0.png" -> its size in
        bytes.
    what: what our files are, for the message, e.g. "this cache".
    """
    foreign_paths = []
    if folder.is_symlink() or not folder.is_dir():
        foreign_paths = [folder]
    else:
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

    inputs: {flag of an input: its path, or None if the input is not given}.
    flag: flag of the output. Links are resolved first.
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


def _first_names(paths: Iterable[Path]) -> str:
    """Return the first paths for a message, and how many more there are: "a, b and 3 more"."""
    names = [str(path) for path in paths]
    text = ", ".join(names[:MOST_SHOWN_NAMES])
    more_count = len(names) - MOST_SHOWN_NAMES
    if more_count > 0:
        text += f" and {more_count} more"
    return text

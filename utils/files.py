"""Files: order by name, atomic writing, and telling the project's own files from others.

No program of the project changes or removes a file that it did not make: A folder of results or of
a run is new, or holds our mark, else it is refused as a whole, before any work is done.
"""

import errno
import hashlib
import math
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from utils.errors import DataError, OptionError

MARK = ".spikevrt"
RESULTS = "run.json"  # the mark of a folder of results
SHOWN = 5
READ_AT_ONCE = 2**24  # bytes
OTHER_ROOT = "free some space, or set path.root to another disk"
_NUMBER = re.compile(r"(\d+)")
# A number as Python and C print it; an exponent always has a sign, else "2e5" may be a checksum.
_VALUE = re.compile(r"([+-]?)(\d{1,100})(?:\.(\d{0,200}))?([eE][+-]\d{1,3})?", re.ASCII)


def natural_key(path: str | PurePath) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which 2 comes before 10: runs of digits count as numbers, all other text
    letter by letter.

    Equal numbers written differently ("1", "01") keep a fixed order: the shorter first.
    """
    parts = _NUMBER.split(str(path))
    return tuple((0, int(p), f"{len(p):04d}") if i % 2 else (1, 0, p) for i, p in enumerate(parts))


def are_values(names: Collection[str]) -> bool:
    """Whether all names are numbers whose digits alone do not tell their order.

    So it is for seconds of different lengths, 432.1 and 432.033333. It is not for a counter
    behind a point, 1.9, 1.10 and 1.11, and not where "-" stands before each name.
    """
    found = [_VALUE.fullmatch(name) for name in names]
    parts = [match.groups(default="") for match in found if match]
    signs = {sign for sign, _, _, _ in parts}
    if len(parts) < len(found) or "" not in signs:
        return False
    has_exponent = any(exponent for _, _, _, exponent in parts)
    lengths = {len(fraction) for _, _, fraction, _ in parts}
    return len(signs) > 1 or has_exponent or (len(lengths) > 1 and not _is_counter(parts))


def _is_counter(parts: Sequence[tuple[str, ...]]) -> bool:
    """Whether numbers (sign, whole, fraction, exponent) count up behind the point without a gap."""
    wholes = {whole for _, whole, _, _ in parts}
    fractions = [fraction for _, _, fraction, _ in parts]
    if len(wholes) > 1 or not all(fraction == str(int(fraction or "0")) for fraction in fractions):
        return False
    counts = sorted(int(fraction) for fraction in fractions)
    return counts == list(range(counts[0], counts[0] + len(counts)))


def order_of(names: Iterable[str]) -> Callable[[str], Any]:
    """Return the sort key for the names of the frames of a clip, without their endings.

    Numbers for which `are_values` are ordered by value, other names by `natural_key`.
    """
    if are_values(list(names)):
        return lambda name: (Fraction(name), natural_key(name))
    return natural_key


def open_plain(path: str | Path) -> BinaryIO:
    """Open a file to read. Raises OSError, also for a device, which never ends, or a pipe."""
    descriptor, _ = plain_descriptor(path)
    return os.fdopen(descriptor, "rb")


def plain_descriptor(path: str | Path) -> tuple[int, os.stat_result]:
    """Open a file to read. Returns its descriptor and its state, asked for once.

    Raises OSError, see `open_plain`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe would be waited for
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode):
        return descriptor, about
    os.close(descriptor)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(0, "it is a device or a pipe, not a file", str(path))


def read_plain(path: str | Path, count: int = -1) -> bytes:
    """Return the first `count` bytes of a file, -1: all. Raises OSError, see `open_plain`."""
    descriptor, _ = plain_descriptor(path)
    try:
        return rest_of(descriptor, count)
    finally:
        os.close(descriptor)


def rest_of(descriptor: int, count: int = -1) -> bytes:
    """Return what a file holds behind the place that has been read. count: at most, -1: all."""
    parts = []
    left = count
    while part := os.read(descriptor, READ_AT_ONCE if left < 0 else min(left, READ_AT_ONCE)):
        parts.append(part)
        left -= len(part) if left >= 0 else 0
        if left == 0:
            break
    return b"".join(parts)


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file that is whole or absent, also on a full disk or after a kill.

    Makes the folder.
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
    """A name for a file that becomes `path` once it is whole.

    Makes the folder. One of tempfile ignores the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}")


@contextmanager
def writing(
    path: Path,
    do: str = "free some space or choose another folder, then start the same command again",
    errors: tuple[type[Exception], ...] = (OSError,),
) -> Generator[None]:
    """One of `errors` in the block becomes a DataError about the file or folder `path`. do: its
    advice.
    """
    try:
        yield
    except errors as e:
        needed = "room on the disk, and permission to write"
        cause = getattr(e, "strerror", None) or e
        raise DataError(f"cannot write: {cause}", str(path), needed, do) from e


def free_bytes(folder: Path) -> float:
    """Free space where `folder` lies, or would lie; infinity where the file system does not say."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize if found.f_blocks else math.inf


def refuse_link(path: Path) -> None:
    """Raise DataError if `path`, a file that a run writes, is a link: somebody else's file may be
    behind it.
    """
    if path.is_symlink():
        raise DataError(
            "a link has the name of a file of the run",
            f"{path} -> {os.readlink(path)}",
            "a file of its own (a whole folder, such as checkpoints/, may be a link)",
            "move the link away",
        )


def open_kept(path: Path, mode: str, permissions: int = 0o666, encoding: str | None = None) -> Any:
    """Open a file that a run keeps and writes: `open` without buffer for bytes, by line for text.

    No link is followed at the end of the path. permissions: of a file that is made, less the umask.
    Raises DataError if `path` is a link, OSError as `open` does.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)

    try:
        return open(path, mode, 0 if "b" in mode else 1, encoding, opener=opener)
    except OSError as e:
        if e.errno == errno.ELOOP:
            refuse_link(path)
        raise


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hex."""
    digest = hashlib.sha256()  # hashlib.file_digest came with Python 3.11
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def refuse_links(folder: Path, paths: Iterable[Path]) -> None:
    """Raises DataError where one of `paths`, to be written below `folder`, leads out of it, or is
    no plain file.
    """
    wrong = [path for path in dict.fromkeys(paths) if not _is_plain(folder, path)]
    if wrong:
        what = (
            f"{_some(path.relative_to(folder) for path in wrong)} leads out of the output "
            "folder, or is no file"
        )
        expected = 'files below the folder, without symbolic links and without ".." in names'
        raise DataError(
            what, str(folder), expected, "choose another output folder, or rename the clip"
        )


def remove_files(folder: Path, paths: Iterable[Path]) -> None:
    """Remove those of `paths` that are plain files below `folder`, and the folders below it that
    are empty then.
    """
    folders = set()
    for path in paths:
        if path.is_file() and _is_plain(folder, path):
            path.unlink()
            folders |= {p for p in path.parents if folder in p.parents}
    for inner in sorted(folders, key=lambda p: -len(p.parts)):
        with suppress(OSError):  # it holds files, or another rank has removed it
            inner.rmdir()


def _is_plain(folder: Path, path: Path) -> bool:
    """Whether a file can be at `path`: below the folder, with no link below the folder and nothing
    else in its way.
    """
    if folder not in path.parents:
        return False
    parent = folder.resolve() / path.parent.relative_to(folder)
    if (
        ".." in parent.parts
        or path.name == ".."
        or path.parent.resolve() != parent
        or path.is_symlink()
    ):
        return False
    return not path.is_dir() and all(
        p.is_dir() for p in path.parents if folder in p.parents and os.path.lexists(p)
    )


def claim_run_folder(folder: Path, names: Iterable[str], is_ours: bool) -> None:
    """Mark the folder of a run as ours, by a file; a results folder has RESULTS.

    names: patterns of what a run writes there. Raises OptionError for a results folder, and where
    one of these names is taken, and neither the mark nor `is_ours` says that it is ours.
    """
    what, taken = "", [path.name for name in names for path in sorted(folder.glob(name))]
    if not is_ours and (folder / RESULTS).is_file():
        what = "the results of a test"
    elif taken and not is_ours and not (folder / MARK).is_file():
        what = f"files that no run of this program made: {', '.join(taken)}"
    if what:
        expected, do = (
            "an empty folder, or one of an earlier run",
            "choose another task name, or move these files away",
        )
        raise OptionError(f"the folder of the run holds {what}", str(folder), expected, do)
    with writing(folder, OTHER_ROOT):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()


def scratch_folder(path: Path) -> Path:
    """A new empty folder with our mark; one of an earlier run is removed.

    Raises DataError for one without it.
    """
    if os.path.lexists(path):
        is_empty = path.is_dir() and not any(path.iterdir())  # killed before the mark
        if path.is_symlink() or not (is_empty or (path / MARK).is_file()):
            what = "a temporary folder has the name of something that this program did not make"
            raise DataError(what, str(path), "nothing under this name", "move it away")
        shutil.rmtree(path)
    path.mkdir(parents=True)
    (path / MARK).touch()
    return path


def publish_folder(scratch: Path, target: Path) -> None:
    """Give a finished scratch folder its name. Raises DataError where something else has it."""
    if os.path.lexists(target) and (
        target.is_symlink() or not target.is_dir() or any(target.iterdir())
    ):
        raise DataError(
            "the folder appeared meanwhile", str(target), "nothing under this name", "move it away"
        )
    os.replace(scratch, target)
    (target / MARK).unlink()


def refuse_existing(path: Path, where: str) -> None:
    """Raises OptionError where an output file has a name that is taken. where: the flag that named
    it.
    """
    if os.path.lexists(path):
        expected, do = (
            "a new name: no file is overwritten",
            "choose another name, or remove the file",
        )
        raise OptionError("the file exists already", f"{where} {path}", expected, do)


def refuse_foreign(folder: Path, ours: Mapping[str, int], what: str) -> None:
    """Raises DataError where `folder` holds more than `what`: the files `ours` (name below it ->
    bytes) and folders.
    """
    if folder.is_symlink() or not folder.is_dir():
        foreign = [folder]
    else:
        folders, foreign = (
            {parent.as_posix() for name in ours for parent in PurePath(name).parents},
            [],
        )
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            is_ours = (path.is_file() and ours.get(name) == path.stat().st_size) or (
                path.is_dir() and name in folders
            )
            if path.is_symlink() or not is_ours:
                foreign.append(path)
    if foreign:
        what, expected = (
            f"the folder holds what is not part of {what}: {_some(foreign)}",
            f"an empty folder, or {what}",
        )
        raise DataError(
            what, str(folder), expected, "choose another folder, or move these files away"
        )


def refuse_overlap(
    output: Path, inputs: Mapping[str, str | Path | None], flag: str = "--output"
) -> None:
    """Raises OptionError where `output` is, contains or lies in one of `inputs` (flag -> path),
    links resolved.
    """
    place = output.resolve()
    for name, path in inputs.items():
        if path is None:
            continue
        source = Path(path).resolve()
        if place == source or place in source.parents or source in place.parents:
            how = "is" if place == source else "contains" if place in source.parents else "lies in"
            what, where = (
                f"{flag} would write over the input: it {how} {name}",
                f"{flag} {output}, {name} {path}",
            )
            raise OptionError(
                what, where, "an output folder apart from all inputs", f"change {flag}"
            )


def _some(paths: Iterable[Path]) -> str:
    names = [str(path) for path in paths]
    return ", ".join(names[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )

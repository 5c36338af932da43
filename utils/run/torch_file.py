"""Reads files of torch.save: plain types and tensors, and never more than the file holds.

Such a file is a zip archive without compression. Its members are a pickle, `data.pkl`, which
describes nested lists and tables, and a member with the numbers of each tensor. Before torch 1.6 it
was a row of pickles, with the numbers after them.

torch runs no code of a file (weights_only=True). But a file of a kilobyte may still ask for
gigabytes of memory or hours of time. So the archive and its pickle are looked through first
(`_check_file`), and what was read is looked through at the end (`_refuse_repetition`).
"""

import pickletools
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

# An old file, of torch before 1.6, begins with this many pickles.
OLD_PICKLES = 5
# Tables within tables that are followed.
DEEPEST = 100
# Bytes that are read at once.
CHUNK = 2**20


class RefusedFile(UnpicklingError):
    """A file that torch.load would read, but that is not read here.

    Its text is a clause, e.g. "its parts overlap, ...": the caller says which file it is.
    """


class GrowingFile(RefusedFile):
    """A file would take much more memory or time than its size says."""


class DamagedFile(RefusedFile):
    """The bytes of a file are not those that were written."""


def load_plain(path: Path, mmap: bool = False) -> Any:
    """Return what torch.save wrote to `path`, with tensors on the CPU.

    mmap: whether the numbers of tensors are read only when they are used.

    Raises RefusedFile, and whatever torch.load raises for a file of something else.
    """
    operations = _check_file(path)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    # Each operation of a pickle makes a value or puts values together. Ten values for each, and a
    # thousand more, is ample for an honest file.
    _refuse_repetition(content, most=1000 + 10 * operations)
    return content


def is_zip(path: Path) -> bool:
    """Whether a file is one of torch 1.6 or later, whose tensors can be read when they are used."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # it states more than one disk
        return False


# ---- The file, before it is read -------------------------------------------------------------


def _check_file(path: Path) -> int:
    """Return the number of operations of the pickle in a file.

    Raises RefusedFile or OSError. A file of something else passes: torch.load says what is wrong
    with it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            pickles = [member for member in members if member.filename.endswith("data.pkl")]
            if pickles:
                _refuse_packing(members, path.stat().st_size)
                _refuse_flipped_bits(archive, members)
            return sum(_check_pickle(archive.read(member)) for member in pickles)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, RuntimeError):
        pass  # no zip file, or a damaged one
    # The pickles of an old file follow one another. `_check_pickle` leaves the file behind the
    # pickle that it has read.
    with open(path, "rb") as file:
        return sum(_check_pickle(file) for _ in range(OLD_PICKLES))


def _refuse_packing(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse members that are compressed or overlap, as torch.save never writes them.

    size: number of bytes of the file.
    """
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise GrowingFile(
                f"{member.filename} in it is compressed, as torch.save never writes it"
            )
    # Members that lie beside one another are together no larger than the file.
    if sum(member.file_size for member in members) > size:
        raise GrowingFile(f"its {len(members)} parts overlap, as torch.save never writes them")


def _refuse_flipped_bits(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """Refuse members whose bytes do not fit the checksum (CRC-32) beside them.

    torch.load does not look at the checksums. A checksum of 0 was not computed, because of
    torch.serialization.set_crc32_options(False).
    """
    for member in members:
        if member.CRC == 0:
            continue
        try:
            # zipfile compares the checksum at the end of the member.
            with archive.open(member) as content:
                while content.read(CHUNK):
                    pass
        except zipfile.BadZipFile as e:
            raise DamagedFile(f"the bytes of {member.filename} in it have changed: {e}") from e


def _check_pickle(pickle: Any) -> int:
    """Return the number of operations of a pickle, up to the first one that is damaged.

    A pickle is a little program: its operations make values, and put them together.

    pickle: bytes, or an open file, which then stands behind the pickle.

    Raises GrowingFile if the pickle names something that is refused.
    """
    count = 0
    try:
        for _, argument, _ in pickletools.genops(pickle):
            count += 1
            if isinstance(argument, str):
                _refuse_name(argument)
    except GrowingFile:
        raise
    except Exception:
        # pickletools raises anything for what is no pickle. torch does not read on there either.
        return count
    return count


def _refuse_name(name: str) -> None:
    """Refuse a text of a pickle that names a function or a codec which makes much of little."""
    if name in ("bytearray", "builtins bytearray", "__builtin__ bytearray"):
        raise GrowingFile("its pickle makes a bytearray, of as many bytes as a number in it says")
    if name.lower() in ("punycode", "idna"):
        raise GrowingFile(f"its pickle asks for the codec {name}, which takes forever")


# ---- What was read ---------------------------------------------------------------------------


def _refuse_repetition(content: Any, most: int) -> None:
    """Refuse a value that reaches more than `most` values, or that holds itself.

    A list of ten times one list, which holds ten times another list, and so on, is small in memory.
    But whoever goes through it meets 10, 100, 1000, ... values.
    """
    # Go through all values, each as often as it is reached. waiting: (value, its depth).
    waiting = [(content, 0)]
    count = 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        # A value that holds itself is deeper than any limit.
        if count > most or depth > DEEPEST:
            raise GrowingFile("its lists and tables hold one another too often")
        if isinstance(value, dict):
            for key, item in value.items():
                waiting.append((key, depth + 1))
                waiting.append((item, depth + 1))
        elif isinstance(value, (list, tuple, set, frozenset)):
            for item in value:
                waiting.append((item, depth + 1))

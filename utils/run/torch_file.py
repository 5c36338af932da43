"""Reads files of torch.save: plain types and tensors, and never more than the file holds.

Such a file is a zip archive without compression. One member is a pickle, `data.pkl`, which
describes nested lists and tables. Each tensor has another member with its numbers. Versions of
torch before 1.6 wrote five pickles one after the other, and the numbers after them.

With weights_only=True torch runs no code of a file. But a file of a kilobyte may still ask for
gigabytes of memory or hours of time. So `_check_file` checks the archive and its pickle before the
file is read, and `_refuse_repetition` checks what was read.

These checks protect users who load files of others (SECURITY.md). A check may become stricter only
if every file of torch.save still passes.

Tests: tests/parts/models/test_hostile_weights.py, tests/parts/models/test_any_weights.py.
"""

import pickletools
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

# An old file, of torch before 1.6, begins with this many pickles.
OLD_PICKLES = 5
# Greatest depth of dicts and lists within each other, e.g. 2 for {"a": [1]}. A checkpoint has a
# depth below ten.
DEEPEST = 100
# Number of bytes that are read at once, 1 MiB: little memory, and few calls.
CHUNK_BYTES = 2**20


class RefusedFile(UnpicklingError):
    """A file that torch.load would read, but that is not read here.

    Its text is a clause, e.g. "its parts overlap, ...": the caller says which file it is.
    """


class GrowingFile(RefusedFile):
    """A file would take much more memory or time than its size says."""


class DamagedFile(RefusedFile):
    """The bytes of a file have changed since it was written."""


def load_plain(path: Path, mmap: bool = False) -> Any:
    """Return what torch.save wrote to `path`, with tensors on the CPU.

    mmap: whether the numbers of tensors are read only when they are used.

    Raises RefusedFile, and whatever torch.load raises for a file that torch.save did not write.
    """
    operation_count = _check_file(path)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    # Each operation of a pickle makes one value, or puts values together. So an honest file holds
    # about as many values as its pickle has operations. Ten times as many, plus 1000 for small
    # files, is an ample limit.
    _refuse_repetition(content, most=1000 + 10 * operation_count)
    return content


def is_zip(path: Path) -> bool:
    """Whether a file is one of torch 1.6 or later, whose tensors can be read when they are used."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:
        # The end of the file says that the archive continues on further disks. torch.save never
        # writes such an archive.
        return False


# ---- The file, before it is read -------------------------------------------------------------


def _check_file(path: Path) -> int:
    """Return the number of operations of the pickle in a file.

    Raises RefusedFile or OSError. A file that torch.save did not write may pass. torch.load refuses
    it later, and says what is wrong with it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            pickles = [member for member in members if member.filename.endswith("data.pkl")]
            if pickles:
                _refuse_compression(members, path.stat().st_size)
                _refuse_flipped_bits(archive, members)
            operation_count = 0
            for member in pickles:
                operation_count += _check_pickle(archive.read(member))
            return operation_count
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, RuntimeError):
        # zipfile raises one of these errors if the file is no zip archive, or a damaged archive. A
        # damaged archive is then checked like an old file. Later torch.load names the damage.
        pass
    # The pickles of an old file follow one another. `_check_pickle` reads up to the end of a
    # pickle, so the next call reads the next pickle.
    operation_count = 0
    with open(path, "rb") as file:
        for _ in range(OLD_PICKLES):
            operation_count += _check_pickle(file)
    return operation_count


def _refuse_compression(members: list[zipfile.ZipInfo], file_bytes: int) -> None:
    """Refuse members that are compressed or overlap. torch.save writes neither.

    Such members can make a small file stand for gigabytes.

    file_bytes: number of bytes of the file.
    """
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise GrowingFile(
                f"{member.filename} in it is compressed, as torch.save never writes it"
            )
    # If no two members overlap, the sum of their sizes is at most the size of the file.
    members_bytes = sum(member.file_size for member in members)
    if members_bytes > file_bytes:
        raise GrowingFile(f"its {len(members)} parts overlap, as torch.save never writes them")


def _refuse_flipped_bits(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """Refuse members whose bytes do not fit the checksum (CRC-32) in the archive.

    torch.load ignores the checksums. A checksum of 0 means that none was computed, after
    torch.serialization.set_crc32_options(False).
    """
    for member in members:
        if member.CRC == 0:
            continue
        try:
            # At the end of the member, zipfile compares the checksum and raises BadZipFile.
            with archive.open(member) as content:
                while content.read(CHUNK_BYTES):
                    pass  # only the checksum is wanted
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
        # pickletools raises errors of any kind for bytes that are no pickle. torch stops there too,
        # so the operations so far are all that count.
        return count
    return count


def _refuse_name(name: str) -> None:
    """Refuse a text of a pickle that names a function or codec by which a small file does harm.

    A bytearray can be made with any size, and two codecs of Python take very long for long texts.
    """
    if name in ("bytearray", "builtins bytearray", "__builtin__ bytearray"):
        raise GrowingFile("its pickle makes a bytearray, of as many bytes as a number in it says")
    if name.lower() in ("punycode", "idna"):
        raise GrowingFile(f"its pickle asks for the codec {name}, which takes forever")


# ---- What was read ---------------------------------------------------------------------------


def _refuse_repetition(content: Any, most: int) -> None:
    """Refuse a value that contains more than `most` values, or that contains itself.

    E.g. a = [1] * 10; b = [a] * 10; c = [b] * 10 needs little memory, because b holds the same list
    ten times. But a program that goes through c meets 1000 numbers, and ten times as many with each
    further level.
    """
    # Go through all values, and count a value as often as it is met. `waiting` has the values that
    # are still to be counted, each with its depth.
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

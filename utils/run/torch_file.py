"""Read files of torch.save: plain types and tensors, and never more than the file holds.

torch runs no code of a file (weights_only), but a file of a kilobyte may still ask it for
gigabytes. So its pickle is looked through before it is read.
"""

import pickletools
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

# What is read of an old file, whose pickles come before the numbers of its tensors.
OLD_PICKLES = 5
DEEPEST = 100  # of tables within tables
CHUNK = 2**20  # bytes that are read at once


class RefusedFile(UnpicklingError):
    """A file that torch.load would read, and that is not read. Its text is a clause."""


class GrowingFile(RefusedFile):
    """A file would take much more memory or time than its size says."""


class DamagedFile(RefusedFile):
    """The bytes of a file are not those that were written."""


def load_plain(path: Path, mmap: bool = False) -> Any:
    """Return what torch.save wrote to `path`, tensors on the CPU.

    mmap: whether the numbers of tensors are read when they are used.
    Raises RefusedFile, and what torch.load raises for files of something else.
    """
    operations = _check_file(path)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    _refuse_repetition(content, 1000 + 10 * operations)
    return content


def is_zip(path: Path) -> bool:
    """Whether a file is one of torch 1.6 or later, whose tensors can be read when they are used."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # it states more than one disk
        return False


def _check_file(path: Path) -> int:
    """Return the number of operations of the pickle in a file.

    Raises RefusedFile, or OSError. Files of something else pass: torch.load says what is wrong.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            pickles = [m for m in members if m.filename.endswith("data.pkl")]
            if pickles:
                _refuse_packing(members, path.stat().st_size)
                _refuse_flipped_bits(archive, members)
            return sum(_check_pickle(archive.read(member)) for member in pickles)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, RuntimeError):
        pass  # no zip file, or a damaged one
    with open(path, "rb") as file:
        return sum(_check_pickle(file) for _ in range(OLD_PICKLES))


def _refuse_packing(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse members that are compressed or overlap, as torch.save never writes them.

    size: number of bytes of the file.
    """
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise GrowingFile(f"{packed[0]} in it is compressed, as torch.save never writes it")
    if sum(member.file_size for member in members) > size:
        raise GrowingFile(f"its {len(members)} parts overlap, as torch.save never writes them")


def _refuse_flipped_bits(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """Refuse members whose CRC-32 is not the one beside them, which torch.load does not look at.

    A CRC of 0 was not computed: torch.serialization.set_crc32_options(False).
    """
    for member in members:
        if member.CRC == 0:
            continue
        try:
            with archive.open(member) as content:
                while content.read(CHUNK):
                    pass
        except zipfile.BadZipFile as e:
            raise DamagedFile(f"the bytes of {member.filename} in it have changed: {e}") from e


def _check_pickle(pickle: Any) -> int:
    """Return the number of operations of a pickle, up to the first one that is damaged.

    pickle: bytes, or a file, which then stands behind the pickle.
    Raises GrowingFile for one that names what is refused.
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


def _refuse_repetition(content: Any, most: int) -> None:
    """Refuse what holds one thing so often that more than `most` values are reached, or itself."""
    waiting = [(content, 0)]
    count = 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > most or depth > DEEPEST:
            raise GrowingFile("its lists and tables hold one another too often")
        if isinstance(value, dict):
            waiting += [(inner, depth + 1) for pair in value.items() for inner in pair]
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += [(inner, depth + 1) for inner in value]

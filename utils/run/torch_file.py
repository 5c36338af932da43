"""Read files of torch.save safely: only plain types and tensors, in bounded memory and time.

The programs read weights and checkpoints, also files of other projects, only with `load_plain`.
A file of torch.save is a zip archive without compression. Its members, e.g. for a checkpoint:

    archive/data.pkl    a pickle that describes nested lists and dicts, with a place for each tensor
    archive/data/0      the numbers of the first tensor
    archive/data/1      the numbers of the second tensor

Versions of torch before 1.6 wrote five pickles one after the other, and then the numbers of all
tensors. In this module, such a file is called an old file.

With weights_only=True torch runs no code of a file. But a file of a kilobyte may still ask for
gigabytes of memory or hours of time. So `_check_file` checks the archive and its pickle before
torch.load reads the file, and `_refuse_repetition` checks the result of torch.load.

What must stay: each check, because it stops a file that somebody could make to harm a user
(SECURITY.md). test_hostile_weights.py has such files. Free to change: a check may become stricter,
if each file of torch.save still passes (test_the_shipped_weights_and_shared_tensors_are_read).

Tests: tests/parts/models/test_hostile_weights.py, tests/parts/models/test_any_weights.py, and for
checksums tests/stories/test_checkpoint.py.
"""

import pickletools
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

# Number of pickles at the beginning of a file of torch before 1.6. The five pickles are a magic
# number, the version of the format, facts about the machine, the object itself, and the names of
# the tensors' memory.
OLD_PICKLES = 5
# Greatest depth of dicts and lists within each other, e.g. 2 for {"a": [1]}. A checkpoint has a
# depth below ten. A program that follows the lists by recursion fails at a depth of about 1000. The
# limit is chosen by hand between the two.
DEEPEST = 100
# Number of bytes that are read at once, 1 MiB. A larger number needs more memory, and a smaller
# number needs more calls.
CHUNK_BYTES = 2**20


class RefusedFile(UnpicklingError):
    """A file that torch.load would read, but that is not read here.

    The text of the error is a clause about the file, e.g. "its 3 parts overlap, but ...". The
    caller puts the name of the file before the clause.
    """


class GrowingFile(RefusedFile):
    """A small file that would take much memory or time to read."""


class DamagedFile(RefusedFile):
    """A file whose bytes have changed since it was written."""


def load_plain(path: Path) -> Any:
    """Return what torch.save wrote to `path`, with tensors on the CPU.

    Raises RefusedFile, and the errors of torch.load for a file that torch.save did not write
    (checkpoint.UNREADABLE lists them).
    """
    operation_count = _check_file(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    # A pickle is a list of operations. Each operation makes one value, or puts values together. So
    # a usual file has about as many values as operations. The limit is ten times the number of
    # operations, because a file may use some values several times. 1000 is added for files with few
    # operations. Both numbers are chosen by hand.
    _refuse_repetition(content, most=1000 + 10 * operation_count)
    return content


# ---- The file, before it is read -------------------------------------------------------------


def _check_file(path: Path) -> int:
    """Check a file, and return the number of operations of its pickle.

    Raises RefusedFile or OSError. A file that torch.save did not write may pass this check. Then
    torch.load refuses the file, and its error says what is wrong.
    """
    operation_count = _check_archive(path)
    if operation_count is None:
        operation_count = _check_old_file(path)
    return operation_count


def _check_archive(path: Path) -> int | None:
    """Check a file of torch 1.6 or later, and return the number of operations of its pickle.

    Returns None if the file is not such an archive, or if the archive is damaged. Raises
    RefusedFile if a check fails.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            pickles = [member for member in members if member.filename.endswith("data.pkl")]
            # An archive without data.pkl is not a file of torch.save, so torch.load will refuse it.
            if pickles:
                _refuse_compression(members, path.stat().st_size)
                _refuse_flipped_bits(archive, members)
            operation_count = 0
            for member in pickles:
                operation_count += _check_pickle(archive.read(member))
            return operation_count
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, RuntimeError):
        # BadZipFile: the file is not a zip archive, e.g. an old file, or its directory is damaged.
        # ValueError, EOFError: the directory names bytes that are not in the file.
        # NotImplementedError: a compression or a version of zip that Python does not know.
        # RuntimeError: a member of the archive is encrypted.
        # If the file is a damaged archive, torch.load will name the damage. The checks above raise
        # RefusedFile. It must stay out of this list, so that the caller gets it.
        return None


def _check_old_file(path: Path) -> int:
    """Check a file of torch before 1.6, and return the number of operations of its five pickles.

    The caller may give any other file, too. Bytes that are not a pickle count as 0 operations.
    """
    # The pickles follow one another. `_check_pickle` leaves the file at the end of the pickle that
    # it has read, so the next call reads the next pickle.
    operation_count = 0
    with open(path, "rb") as file:
        for _ in range(OLD_PICKLES):
            operation_count += _check_pickle(file)
    return operation_count


def _refuse_compression(members: list[zipfile.ZipInfo], file_bytes: int) -> None:
    """Refuse members that are compressed or overlap. torch.save writes no such members.

    With such members a file of a kilobyte can hold gigabytes. Zeros are compressed to nearly
    nothing, and several members that overlap can be the same bytes of the file. Test:
    test_members_that_are_compressed_are_not_unpacked.

    file_bytes: number of bytes of the file.
    """
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise GrowingFile(
                f"{member.filename} in it is compressed, but torch.save never compresses"
            )
    # Members that do not overlap fit into the file together. So a larger sum shows an overlap.
    members_bytes = sum(member.file_size for member in members)
    if members_bytes > file_bytes:
        raise GrowingFile(
            f"its {len(members)} parts overlap, but the parts of a file of torch.save never do"
        )


def _refuse_flipped_bits(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """Refuse members that do not fit their checksum (CRC-32) in the archive.

    torch.load ignores the checksums, so it would return wrong numbers without an error if the disk
    has damaged the file. Test: test_weights_with_a_flipped_bit_are_refused.
    """
    for member in members:
        # The checksum is 0 if the writer has called torch.serialization.set_crc32_options(False),
        # so that torch.save computed none (test_weights_without_checksums_are_read).
        if member.CRC == 0:
            continue
        try:
            # At the end of the member, zipfile compares the checksum and raises BadZipFile.
            with archive.open(member) as content:
                while content.read(CHUNK_BYTES):
                    pass  # reading is enough: zipfile adds up the checksum
        except zipfile.BadZipFile as e:
            raise DamagedFile(f"the bytes of {member.filename} in it have changed: {e}") from e


def _check_pickle(pickle: Any) -> int:
    """Check a pickle, and return the number of its operations.

    A pickle is a little program: its operations make values, and put them together. If the bytes
    are damaged, only the operations before the damage are checked and counted.

    pickle: the bytes of a pickle, or an open file. If it is a file, one pickle is read, and the
        file's position is then behind this pickle.

    Raises GrowingFile if the pickle names something that `_refuse_name` refuses.
    """
    count = 0
    try:
        # An operation, its argument and its position. Only the argument matters here.
        for _, argument, _ in pickletools.genops(pickle):
            count += 1
            if isinstance(argument, str):
                _refuse_name(argument)
    except GrowingFile:
        raise
    except Exception:
        # pickletools raises errors of any kind for bytes that are not a pickle. torch.load stops at
        # the same byte, so only the operations before this byte are counted.
        return count
    return count


def _refuse_name(name: str) -> None:
    """Refuse a text of a pickle with which a small file can take much memory or time.

    Such a text is the name of a function or of a codec. The function bytearray takes as much memory
    as the pickle says. The codecs punycode and idna, which write the names of web sites, take very
    long for long texts. torch.load with weights_only=True allows all three. Test:
    test_a_small_pickle_that_would_take_much_memory_or_time_is_refused.
    """
    # The text may be the name of the function alone, or module and function with a space between
    # them. Python 2 called the module __builtin__.
    if name in ("bytearray", "builtins bytearray", "__builtin__ bytearray"):
        raise GrowingFile("its pickle makes a bytearray, of as many bytes as a number in it says")
    if name.lower() in ("punycode", "idna"):
        raise GrowingFile(f"its pickle asks for the codec {name}, which takes forever")


# ---- What was read ---------------------------------------------------------------------------


def _refuse_repetition(content: Any, most: int) -> None:
    """Refuse a value that contains more than `most` values, or that contains itself.

    E.g. a = [1] * 10; b = [a] * 10; c = [b] * 10 needs little memory, because b holds the same list
    ten times. But a program that goes through c meets 1000 numbers. In d = [c] * 10, it would meet
    10,000 numbers, and so on. Test: test_nested_lists_with_too_many_leaves_are_refused.

    most: largest number of values. A value that is in several lists counts several times.
    """
    # `values_to_count` has the values that are still to be counted, each with its depth.
    values_to_count = [(content, 0)]
    count = 0
    while values_to_count:
        value, depth = values_to_count.pop()
        count += 1
        # A list that contains itself has no end, so it exceeds the depth.
        if count > most or depth > DEEPEST:
            raise GrowingFile("its lists and tables hold one another too often")
        if isinstance(value, dict):
            for key, item in value.items():
                values_to_count.append((key, depth + 1))
                values_to_count.append((item, depth + 1))
        elif isinstance(value, (list, tuple, set, frozenset)):
            for item in value:
                values_to_count.append((item, depth + 1))

"""Read arrays from an .npz file that anybody may have written.

An .npz is a zip file with a .npy file for each array. np.load does not refuse compressed arrays,
and a small compressed file could fill the memory. So the functions below open the zip file, take
only arrays of the expected types, and execute nothing of the file.

What must stay: nothing is executed, sizes are bounded, and unexpected content raises ValueError
(test_a_wrong_record_is_not_used, test_a_compressed_record_is_not_used). column_check.py checks what
the values mean.

Tests: tests/parts/data/test_kept.py
"""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.clips.columns import Columns
from utils.files import read_plain

# Largest size of the arrays of a record in bytes, so that a forged file cannot fill the memory. A
# record of 32,000 clips has 36 million bytes. The limit must stay below 2^31, because `Texts`
# (columns.py) stores positions in an array as int32.
LARGEST_RECORD_BYTES = 2**30


def read_bounded(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, and ValueError if it is too large."""
    # Ask for one byte more than allowed. If the file has this byte, the file is too large.
    content = read_plain(path, LARGEST_RECORD_BYTES + 1)
    if len(content) > LARGEST_RECORD_BYTES:
        raise ValueError(f"it has more than {LARGEST_RECORD_BYTES} bytes")
    return content


def columns_in(content: bytes, types: Mapping[str, Any]) -> Columns:
    """Return columns of an .npz file.

    A column is an array with one property of all clips, frames or files (columns.py). Raises
    ValueError if a column is missing, is compressed, or has a wrong type.

    content: the file.
    types: {column: its dtype}.
    """
    columns = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name, dtype in types.items():
                member = archive.getinfo(f"{name}.npy")
                is_encrypted = member.flag_bits & 1  # bit 0 in the format of zip
                if member.compress_type != zipfile.ZIP_STORED or is_encrypted:
                    raise ValueError(f"{name} is compressed")
                columns[name] = _array_in_npy(archive.read(member), dtype)
    # The errors of zipfile and NumPy for a damaged file, or for a file without such an array.
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, SyntaxError) as e:
        raise ValueError(f"no arrays: {e}") from e
    return columns


def _array_in_npy(content: bytes, expected: Any) -> np.ndarray:
    """Return the one-dimensional array in the content of a .npy file.

    expected: dtype of the array. Raises ValueError for any other array.
    """
    file = io.BytesIO(content)
    # Plain arrays of numbers have version 1.0. Other versions have other headers.
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != expected or len(shape) != 1:
        raise ValueError(f"an array {shape} of {dtype}")
    # The values begin after the header. `file` is at the end of the header.
    column = np.frombuffer(content, expected, offset=file.tell())
    if len(column) != shape[0]:
        raise ValueError(f"{len(column)} values, not {shape[0]}")
    return column

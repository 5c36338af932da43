"""A digest of the clips on which a score was measured: names, sizes and content.

A best score of one set of clips says nothing about another set, so a checkpoint keeps this digest
beside the score. Times of change are left out, because a copy of the data is the same data.

Tests: tests/parts/data/test_content.py
"""

import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from data.clips import files

WHOLE = 2**16  # a file of up to so many bytes is read as a whole
BLOCK = 2**12  # bytes of each block that is read of a larger file
BLOCKS = 8  # blocks of a larger file, evenly spaced from its beginning to its end
# Files whose content is read, so that a set of 100,000 files does not delay the start by minutes.
# 4096 covers all frames, sharp frames and spikes of the GoPro test set (3333).
MOST_FILES = 4096


def digest_of_clips(readers: Sequence[Any]) -> str:
    """Return 16 hex digits that change with the content of the clips of some readers.

    readers: the clips of a test set, see utils.contract.ClipReader.

    What is hashed of a clip of a data set:

    * names of clip and frames, sizes, and how its spikes are read (`DatasetClip.described`),
    * name and size of each file,
    * of 4096 files, evenly spaced over all clips, the content as well: the whole file up to 64 KiB,
      else eight blocks of 4 KiB from its beginning to its end. A PNG has a checksum of all pixels
      at its end, so any changed pixel changes the digest.

    Of a reader of another kind: its name, its stems, and its first, middle and last frame.

    The digest is compared with digests in existing checkpoints, so the hashed texts must not
    change. Raises DataError if a file cannot be read.
    """
    table = hashlib.sha256()
    paths: list[str] = []
    for reader in readers:
        table.update(f"clip {reader.name} {list(reader.stems)}\n".encode())
        if hasattr(reader, "described"):
            table.update(reader.described().encode())
            paths.extend(reader.paths())
        else:
            _add_frames(table, reader)

    for path in paths:
        size, _ = files.stamp(path)
        table.update(f"{os.path.basename(path)} {size}\n".encode())
    step = math.ceil(len(paths) / MOST_FILES) or 1  # without files: any step but 0
    for path in paths[::step]:
        for block in _sample(path):
            table.update(block)
    return table.hexdigest()[:16]


def _add_frames(table: Any, reader: Any) -> None:
    """Add three frames of a reader that has no files. table: a hash object of hashlib."""
    last = len(reader.stems) - 1
    for index in sorted({0, last // 2, last}):
        frame = reader.frame(index)
        for kind, tensor in sorted(frame.items()):
            table.update(f"{kind} {tuple(tensor.shape)}\n".encode())
            table.update(tensor.contiguous().numpy().tobytes())


def _sample(path: str) -> Iterable[bytes]:
    """Yield the bytes of a file that are hashed. Of a value in an LMDB: its first 64 KiB."""
    if files.LMDB_MARK in path:
        yield files.read_bytes(path, WHOLE)
        return
    with files.reading(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            yield file.read()
            return
        last = size - BLOCK  # where the last block begins
        for block in range(BLOCKS):
            file.seek(block * last // (BLOCKS - 1))
            yield file.read(BLOCK)

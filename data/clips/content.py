"""A digest of the clips on which a score was measured: names, sizes and content.

The best score on one set of clips says nothing about a different set, so a checkpoint has this
digest together with the score. Times of change are not hashed, because a copy of the data is the
same data.

What must stay: every hashed text and byte, and their order. If they changed, the scores in all
existing checkpoints would count as scores of other clips. The first test notices a change of a
text, and the second test notices blocks at other places:

    test_the_digest_that_is_stored_with_a_score_stays
    test_a_large_file_is_sampled_from_its_beginning_to_its_end

Tests: tests/parts/data/test_content.py
"""

import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from data.clips.file_content import read_bytes
from data.clips.listed_files import LMDB_MARK, os_errors_as_data_errors, stamp

# All constants decide the digest, so they must stay, too.
LARGEST_WHOLE_FILE = 2**16  # largest file, in bytes, that is read as a whole
BLOCK_BYTES = 2**12  # size of each block that is read of a larger file
BLOCKS = 8  # number of blocks of a larger file, evenly spaced from its beginning to its end
# Largest number of files whose content is read, so that a set of 100,000 files does not delay the
# start by minutes. All 3333 files of the GoPro test set are read: frames, sharp frames and spikes.
MOST_FILES = 4096


def digest_of_clips(readers: Sequence[Any]) -> str:
    """Return 16 hex digits that change with the content of the clips of some readers.

    readers: one for each clip of a test set. A reader is an object that reads the frames of a clip.
    It has a name, `stems` (the names of the frames) and `frame`, which reads a frame.

    What is hashed for a clip of a data set:

    * names of clip and frames, sizes, and how its spikes are read (`DatasetClip.described`),
    * name and size of each file,
    * the content of at most 4096 files, evenly spaced over all clips. A file of up to 64 KiB is
      hashed as a whole. Of a larger file, eight blocks of 4 KiB are hashed, from its beginning to
      its end. A PNG has a checksum of all pixels at its end, so any changed pixel changes the
      digest.

    A test set that a user adds may have readers of a different class. Of such a reader, its name,
    its stems, and its first, middle and last frame are hashed.

    Raises DataError if a file cannot be read.
    """
    sha256 = hashlib.sha256()
    paths: list[str] = []
    for reader in readers:
        sha256.update(f"clip {reader.name} {list(reader.stems)}\n".encode())
        # `DatasetClip` (readers.py) has two methods: `described` returns a line on the clip, and
        # `paths` returns its files. Other readers lack both methods, because they need not have
        # files.
        if hasattr(reader, "described"):
            sha256.update(reader.described().encode())
            paths.extend(reader.paths())
        else:
            _hash_frames(sha256, reader)

    for path in paths:
        # `stamp` also returns the time of change, which is not hashed.
        size, _ = stamp(path)
        sha256.update(f"{os.path.basename(path)} {size}\n".encode())
    # Every `step`-th file is read, e.g. every third of 10,000 files. Without files, the formula
    # would give the step 0, which a slice refuses.
    step = max(1, math.ceil(len(paths) / MOST_FILES))
    for path in paths[::step]:
        for block in _blocks_of(path):
            sha256.update(block)
    return sha256.hexdigest()[:16]


def _hash_frames(sha256: Any, reader: Any) -> None:
    """Add three frames of a reader that has no files to `sha256`, a hash object of hashlib."""
    last = len(reader.stems) - 1
    # A set, because a short clip has fewer than three different frames.
    for index in sorted({0, last // 2, last}):
        frame = reader.frame(index)  # {kind: tensor}
        for kind, tensor in sorted(frame.items()):
            sha256.update(f"{kind} {tuple(tensor.shape)}\n".encode())
            sha256.update(tensor.contiguous().numpy().tobytes())


def _blocks_of(path: str) -> Iterable[bytes]:
    """Yield the bytes of a file that are hashed.

    If the path names a value in an LMDB (a database file), the first 64 KiB of it are hashed. The
    path of such a value has the text LMDB_MARK, e.g. "/data/train.lmdb::clip_a/000000".

    Test: test_a_large_file_is_sampled_from_its_beginning_to_its_end
    """
    if LMDB_MARK in path:
        yield read_bytes(path, LARGEST_WHOLE_FILE)
        return
    with os_errors_as_data_errors(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LARGEST_WHOLE_FILE:
            yield file.read()
            return
        # The first block begins at 0 and the last block at `last_begin`, with equal distances
        # between them. E.g. with last_begin 70,000 and 8 blocks: 0, 10,000, 20,000, ... 70,000.
        last_begin = size - BLOCK_BYTES
        for block in range(BLOCKS):
            file.seek(block * last_begin // (BLOCKS - 1))
            yield file.read(BLOCK_BYTES)

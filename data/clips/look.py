"""Look at a file for the data check: open it once, and return the result as a `Look`.

A `Look` has the size and the time of change of the file, the size of the picture in it, and what is
wrong with the file. Reading takes nearly all the time of a first check, so as little as possible is
read:

    PNG                    its header and its end. With `decode`, the whole file
    other pictures         the whole file, because it must be decoded
    packed spike planes    the first 64 bytes
    spike arrays (.npy)    nothing: only size and time of change are looked up

data/clips/root_check.py calls `look_at_picture` and `look_at_spikes` in several threads, so the two
functions share no state. A bad file raises no error, because an error would end the check of all
other files. The text of the error becomes the `flaw` of the look.

What must stay: every fault that is found. test_a_picture_with_damaged_content_is_found_by_decoding
and test_a_fault_of_the_data_is_named_before_training notice a fault that is lost. If a function
finds more faults than before, raise FORMAT in data/clips/kept.py, because results of earlier checks
are stored. Free to change: how much of a file is read.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_manifest.py
"""

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from data.clips.file_content import read_bytes
from data.clips.listed_files import FileEntry, entry_of
from data.clips.pictures import HEAD_BYTES, PNG_SIGNATURE, decode_bgr, refuse_header
from data.spike import formats
from data.spike.errors import SpikeFileError
from data.spike.geometry import SPS100_SIDE, SpikeGeometry
from data.spike.headers import refuse_other_format
from utils.errors import DataError
from utils.files import plain_descriptor, rest_of
from utils.picture.header import Header
from utils.picture.read import read_header

# The last bytes of every complete PNG: its chunk IEND and the checksum of this chunk.
PNG_END = b"IEND\xaeB`\x82"
# Number of bytes at the beginning of a spike file that are read. So many bytes are enough to find
# the header of any other format, such as a .npy that is named .dat.
SPIKE_HEAD_BYTES = 64


class Look(NamedTuple):
    """The result of a look at one file."""

    entry: FileEntry  # path, size and time of change
    # (device, inode) of a file on disk. Two names of one file have the same file id. (0, 0) for a
    # file in an LMDB.
    file_id: tuple[int, int] = (0, 0)
    # (H, W) of a picture. None for a spike file, and for a picture that cannot be read.
    shape: tuple[int, int] | None = None
    flaw: str = ""  # why the file cannot be read; "" if it can be read
    # A message if the end of a PNG is missing, else "". The message is not in `flaw`, because the
    # header of such a PNG can be read. If the size in the header is wrong, too, the data check
    # reports the wrong size in place of this message.
    missing_end: str = ""
    # Whether reading the picture as 8-bit RGB may lose something, e.g. the lower 8 bits of a 16-bit
    # picture. If so, `what_is_lost` (picture_losses.py) says what is lost.
    is_reduced: bool = False


# ---- Pictures --------------------------------------------------------------------------------


def look_at_picture(path: str, decode: bool = False, lmdb_entry: FileEntry | None = None) -> Look:
    """Look at a picture: at header and end of a PNG, at the whole file of any other format.

    Returns a `Look`: size and time of the file, size of the picture, and what is wrong (`flaw`).

    decode: whether to decode a PNG, too. Decoding also finds flipped bits.
    lmdb_entry: size and time of a file in an LMDB. None for a file on disk.
    Raises DataError for a broken link.
    """
    if lmdb_entry is None:
        inspect = partial(_look_at_open_picture, decode=decode)
        return _inspect_file(path, inspect)
    look = Look(lmdb_entry)
    try:
        # LMDB gives a value as a whole, so reading only its head would save nothing.
        content = read_bytes(path)
        head = content[:HEAD_BYTES]
        # The content is read already, so `read_all` only returns it.
        return _with_shape(look, head, read_all=lambda: content, decode=decode)
    except DataError as e:
        return look._replace(flaw=e.what)


def _look_at_open_picture(descriptor: int, look: Look, decode: bool) -> Look:
    """Return the look at an open picture.

    descriptor: descriptor of the file, at the beginning of the file.
    look: the look so far, with size and time.
    decode: whether to decode a PNG, too.
    """
    head = os.read(descriptor, HEAD_BYTES)

    def read_all() -> bytes:
        return head + rest_of(descriptor)  # all bytes after `head`

    look = _with_shape(look, head, read_all, decode)
    # `_with_shape` has decoded every picture that is not a PNG, and decoding finds a missing end.
    is_png = head.startswith(PNG_SIGNATURE)
    was_decoded = decode or not is_png
    if was_decoded:
        return look

    # Only the header of this PNG was read. The last bytes of the file show whether the file is
    # complete.
    size = look.entry.size
    offset = max(0, size - len(PNG_END))  # 0 for a file that is shorter than PNG_END
    if os.pread(descriptor, len(PNG_END), offset) != PNG_END:
        return look._replace(missing_end=f"PNG of {size} bytes is cut short")
    return look


def _with_shape(look: Look, head: bytes, read_all: Callable[[], bytes], decode: bool) -> Look:
    """Return the look with `shape` and `is_reduced`, and with `flaw` if pixels are damaged.

    A PNG with damaged pixels gets a `flaw`, and also the `shape` that its header states. Any other
    picture that cannot be read raises DataError, e.g. if it is too large (`refuse_header`) or
    cannot be decoded. The callers turn this error into a look with a `flaw` and without a `shape`.

    head: the beginning of the file.
    read_all: a function that returns the content of the file. It is called at most once, because
    reading a whole file takes most of the time.
    decode: whether to decode a PNG, too.
    """
    if head.startswith(PNG_SIGNATURE):
        return _with_shape_of_png(look, head, read_all, decode)
    # In other formats, damage is only found when the whole picture is decoded. `decode_bgr` also
    # refuses a picture that is too large, before it decodes.
    content = read_all()
    header = read_header(content)
    shape = decode_bgr(content, look.entry.path).shape[:2]
    is_reduced = header is not None and _loses_something(header)
    return look._replace(shape=shape, is_reduced=is_reduced)


def _loses_something(header: Header) -> bool:
    """Return whether a picture has more than 8 bits per value, or is grey.

    Reading such a picture as 8-bit RGB may lose something.
    """
    return header.bits > 8 or header.is_grey


def _with_shape_of_png(
    look: Look, head: bytes, read_all: Callable[[], bytes], decode: bool
) -> Look:
    """Return the look with `shape` and `is_reduced` of a PNG, and with `flaw` if it is damaged.

    head: the beginning of the file.
    read_all: a function that returns the content of the file. It is called only if the header is
    longer than `head`, or if the pixels are decoded.
    decode: whether to decode the pixels. If not, the header alone gives the shape.
    Raises DataError if the picture is too large, has no header, or has values that are not whole
    numbers of 8 or 16 bits.

    Test: test_a_clip_with_a_picture_that_cannot_be_decoded_is_still_counted
    """
    content = b""  # the whole file, as soon as it is needed
    # The header is None if `head` is too short, because a long text or colour profile stands before
    # the pixels. In this case, the whole file is read.
    header = read_header(head)
    if header is None or decode:
        content = read_all()
        header = read_header(content)

    path = look.entry.path
    if header is None:
        # `decode_bgr` refuses every picture without a header. Its DataError says what is wrong.
        decode_bgr(content, path)
        raise AssertionError("a picture without a header was decoded")
    refuse_header(header, path)  # refuses a picture that is too large, even if it is not decoded
    shape = header.size
    flaw = ""
    if decode:
        try:
            shape = decode_bgr(content, path).shape[:2]
        except DataError as e:
            flaw = e.what  # `shape` stays the shape in the header
    return look._replace(shape=shape, flaw=flaw, is_reduced=_loses_something(header))


# ---- Spike files -----------------------------------------------------------------------------


def look_at_spikes(
    path: str, geometry: SpikeGeometry, remainder: str, lmdb_entry: FileEntry | None = None
) -> Look:
    """Look at a spike file. Reads the first bytes of a file of packed planes.

    For an array (.npy, .npz) or a file in the layout "sps100", only size and time are looked up.
    `ClipCheck` (data/clips/clip_check.py) opens such a file later.

    geometry: size and layout of a plane, as the options say.
    remainder: the option spike.remainder. "error" refuses bytes after the last whole plane,
    "truncate" ignores them.
    lmdb_entry: size and time of a file in an LMDB, which is not read. None for a file on disk.
    Raises DataError for a broken link.
    """
    if lmdb_entry is not None:
        return Look(lmdb_entry)
    # `ClipCheck` opens these files later.
    if formats.is_array(path) or geometry.layout == "sps100":
        return Look(entry_of(path))
    # All other files have planes that are packed row by row, the layout "raster".
    if SPS100_SIDE in (geometry.height, geometry.width):  # 1000
        return _look_at_planes_of_1000(path, geometry, remainder)
    return _inspect_file(path, _look_at_open_planes, begin_of_flaw="cannot read spike file")


def _look_at_planes_of_1000(path: str, geometry: SpikeGeometry, remainder: str) -> Look:
    """Look at a file of planes with a side of 1000 pixels, which may come from an SPS100 sensor.

    An SPS100 writes words between the pixels, so its planes are not in the layout "raster". No
    header says which sensor wrote the file. But `open_spikes` looks for the words, and raises
    SpikeFileError if it finds words.

    geometry: size of a plane.
    remainder: what to do with bytes after the last whole plane. "error" refuses them, "truncate"
    ignores them.
    """
    look = Look(entry_of(path))
    try:
        formats.open_spikes(path, geometry, remainder)
    except SpikeFileError as e:
        return look._replace(flaw=e.what)
    return look


def _look_at_open_planes(descriptor: int, look: Look) -> Look:
    """Return the look at an open file of packed planes. Raises SpikeFileError for other formats.

    descriptor: descriptor of the file, at the beginning of the file.
    look: the look so far, with size and time.
    """
    head = os.read(descriptor, SPIKE_HEAD_BYTES)
    # Packed planes have no header, so a file with a header has another format, e.g. .npy.
    refuse_other_format(head, look.entry.path)
    return look


# ---- Opening ---------------------------------------------------------------------------------


def _inspect_file(
    path: str, inspect: Callable[[int, Look], Look], begin_of_flaw: str = "cannot read"
) -> Look:
    """Open a file, look up its size and time, and let `inspect` look into it. Returns the look.

    inspect: a function (descriptor of the open file, look so far) -> the full look.
    begin_of_flaw: first words of the flaw if the system refuses to read the file. E.g. with "cannot
    read", the flaw is "cannot read: Permission denied".
    Only a broken link raises DataError. Any other error becomes the `flaw` of the look, because an
    error would end the check of all other files.
    """
    try:
        # `plain_descriptor` opens a file, and refuses pipes and devices. about: size, time and
        # inode of the file, an os.stat_result.
        descriptor, about = plain_descriptor(path)
    except OSError as e:
        # `entry_of` raises DataError if there is no file at all.
        return Look(entry_of(path), flaw=f"{begin_of_flaw}: {e.strerror or e}")
    entry = FileEntry(path, about.st_size, about.st_mtime_ns)
    look = Look(entry, file_id=(about.st_dev, about.st_ino))
    try:
        return inspect(descriptor, look)
    except OSError as e:
        return look._replace(flaw=f"{begin_of_flaw}: {e.strerror or e}")
    except (DataError, SpikeFileError) as e:
        return look._replace(flaw=e.what)
    finally:
        os.close(descriptor)

"""A small hostile file of the data is refused in words, in two seconds and a gigabyte.

A file from an unknown source may be small, and may state that it has more content than fits into
memory. `assert_refused` and `call_limited` (tests/helpers/limited.py) call a function in a process
of its own. If the call takes more than 2 seconds or 1024 MB, the two functions fail.
"""

import io
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.spike.errors import SpikeFileError
from data.spike.formats import open_spikes, read_spikes
from data.spike.geometry import Crop, SpikeGeometry
from tests.helpers.limited import assert_refused, call_limited

# ---- Pictures ----


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG: the length of its data, its kind, the data, and a checksum."""
    checksum = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + checksum


def png_of_zeros(width: int, height: int) -> bytes:
    """Return a grey PNG of one bit a pixel. It has all its pixels, and they are black."""
    # A row begins with a byte that names its filter, here 0 for no filter. Each of the next bytes
    # has 8 pixels. E.g. 20 pixels need 3 bytes: (20 + 7) // 8.
    row = bytes(1 + (width + 7) // 8)
    packing = zlib.compressobj(9)
    pixels = b"".join(packing.compress(row) for _ in range(height)) + packing.flush()
    # The header has width, height and bits of a pixel. Each 0 stands for a usual choice: grey,
    # deflate, usual filters, no interlacing.
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    return (
        signature
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", pixels)
        + png_chunk(b"IEND", b"")
    )


READERS = ["pictures.read_bgr", "pictures.image_size", "clip_reader.user_clips"]


@pytest.mark.parametrize("reader", READERS)
def test_a_small_png_of_900_million_pixels_is_not_decoded(tmp_path, reader):
    path = tmp_path / "a.png"
    path.write_bytes(png_of_zeros(width=30_000, height=30_000))
    assert path.stat().st_size < 200_000  # so this is a small file

    assert_refused(
        f"data.clips.{reader}", path, by="DataError", saying="30000 x 30000, 900 million pixels"
    )


def test_a_small_bigtiff_that_states_2_to_the_63_entries_is_refused_at_once(tmp_path):
    fields = (
        b"II",  # the byte order
        43,  # the mark of a BigTIFF
        8,  # bytes of a number
        0,
        16,  # where the directory begins: right behind these 16 bytes
        2**63,  # the directory begins with its number of entries, and has none
    )
    # The fields have 2, 2, 2, 2, 8 and 8 bytes.
    (tmp_path / "a.tiff").write_bytes(struct.pack("<2sHHHQQ", *fields))

    message = "24 bytes that are no whole image"
    assert_refused(
        "data.clips.pictures.read_bgr", tmp_path / "a.tiff", by="DataError", saying=message
    )


def test_an_8k_frame_is_read(tmp_path):
    (tmp_path / "a.png").write_bytes(png_of_zeros(width=7680, height=4320))

    ended = call_limited("data.clips.pictures.read_bgr", tmp_path / "a.png")

    assert ended.error == ""


def test_a_png_that_states_a_chunk_of_4_gigabytes_is_not_given_them(tmp_path):
    _, encoded = cv2.imencode(".png", np.zeros((20, 30, 3), np.uint8))
    content = bytearray(encoded.tobytes())
    signature = 8  # bytes
    header = 25  # bytes of the first chunk
    second_chunk = signature + header  # it begins with its length, a number of 4 bytes
    content[second_chunk : second_chunk + 4] = b"\xff\xff\xff\x00"
    (tmp_path / "a.png").write_bytes(content)

    message = "is damaged or cut short"
    assert_refused(
        "data.clips.pictures.read_bgr", tmp_path / "a.png", by="DataError", saying=message
    )


# ---- Arrays ----


def write_npz(
    path: Path,
    shape: tuple[int, ...],
    member: str = "spk.npy",
    packing: int = zipfile.ZIP_DEFLATED,
) -> None:
    """Write a .npz of zeros, a plane at a time, so that the test itself needs little memory.

    shape: shape of the array, e.g. (planes, height, width). member: name of the array in the
    archive. packing: how the archive is compressed.
    """
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w", packing) as archive, archive.open(member, "w") as file:
        file.write(header.getvalue())
        for _ in range(shape[0]):
            file.write(bytes(math.prod(shape[1:])))


def read_one_plane(path: Path) -> np.ndarray:
    """Return the first plane of 250 x 400 pixels of a file."""
    return read_spikes(path, SpikeGeometry(250, 400), first=0, count=1)


def test_a_plane_of_a_small_npz_of_many_planes_does_not_unpack_them_all(tmp_path):
    write_npz(tmp_path / "a.npz", (3_000, 250, 400))
    assert (tmp_path / "a.npz").stat().st_size < 1_000_000  # so this is a small file

    ended = call_limited(f"{__name__}.read_one_plane", tmp_path / "a.npz")

    assert ended.error == "", ended
    # All planes together have 300 MB. If the process takes less than 200 MB, it has not unpacked
    # all planes.
    assert ended.mb < 200, ended


def test_a_large_npz_gives_the_planes_of_its_array(tmp_path):
    # The array has 70 MB. An array of up to 64 MB would be kept in memory, and read in another way.
    # Only one of 256 values is a spike, because NumPy compresses few spikes five times faster.
    noise = np.random.default_rng(0).integers(0, 256, (700, 250, 400), np.uint8)
    planes = (noise == 0).astype(np.uint8)
    np.savez_compressed(tmp_path / "a.npz", spk=planes)

    file = open_spikes(tmp_path / "a.npz", SpikeGeometry(250, 400))

    # Read 90 planes from plane 600 on, and a crop of 20 x 30 pixels of 2 planes.
    assert np.array_equal(file.read(first=600, count=90), planes[600:690])
    crop = Crop(top=5, left=7, height=20, width=30)
    assert np.array_equal(file.read(first=3, count=2, crop=crop), planes[3:5, 5:25, 7:37])
    # Read 150 planes from plane 10 on, in parts of at most 64 planes.
    parts = list(file.parts(first=10, count=150))
    assert [len(part) for part in parts] == [64, 64, 22]
    assert np.array_equal(np.concatenate(parts), planes[10:160])


# The header of a .npy file of bytes, without its first number, the number of planes.
BYTES = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s, 8, 8)}"
# What is wrong in a header -> the header.
HEADS = {
    "more planes than there are": BYTES % 10**9,
    "a huge number": BYTES % 10**30,
    "a negative number": BYTES % -1,
    "a truth": BYTES % True,
    "brackets": "(" * 9000,
    "signs": "-" * 9000 + "1",
    "an odd type": "{'descr': [[]], 'fortran_order': False, 'shape': (1, 8, 8)}",
    "no key": "{}",
    "no text": "\0\x01\x02",
}


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("name", HEADS)
def test_the_header_of_an_array_with_nonsense_is_refused(tmp_path, ending, name):
    text = HEADS[name].encode() + b"\n"
    # A .npy file begins with a mark and its version, 1.0. Then come the length of the header in 2
    # bytes, the header, and the values: here one plane of 64 bytes.
    mark = b"\x93NUMPY\x01\x00"
    content = mark + struct.pack("<H", len(text)) + text + bytes(64)
    path = tmp_path / f"a.{ending}"
    if ending == "npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("spk.npy", content)

    with pytest.raises(SpikeFileError, match="cannot read spike file") as error:
        read_spikes(path, SpikeGeometry(8, 8))

    assert error.value.where == str(path)
    assert error.value.expected
    assert error.value.do


def assert_refused_as(path: Path, words: str) -> None:
    """Check that a file of planes of 8 x 8 pixels is refused with these words."""
    with pytest.raises(SpikeFileError, match=words):
        read_spikes(path, SpikeGeometry(8, 8))


def test_an_npz_of_another_compression_is_refused(tmp_path):
    write_npz(tmp_path / "lzma.npz", (4, 8, 8), packing=zipfile.ZIP_LZMA)

    assert_refused_as(tmp_path / "lzma.npz", "in a way that NumPy")


def test_an_encrypted_npz_is_refused(tmp_path):
    path = tmp_path / "locked.npz"
    write_npz(path, (4, 8, 8), packing=zipfile.ZIP_STORED)
    # A zip archive describes each member in two places. Each description begins with a mark, and
    # the flags come `bytes_to_flags` bytes after the begin of the mark. The lowest flag says that
    # the member is encrypted.
    content = bytearray(path.read_bytes())
    for mark, bytes_to_flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + bytes_to_flags] |= 1
    path.write_bytes(content)

    assert_refused_as(path, "is encrypted")


def test_an_npz_of_many_arrays_is_refused(tmp_path):
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1000):
            archive.writestr(f"{number}.npy", b"")

    assert_refused_as(path, "holds 1000 arrays")


# ---- Devices and pipes ----

# Function -> names of files that it would read.
DEVICES = {
    "data.clips.clip_reader.user_clips": ["x.png", "x.tif", "x.mp4"],
    f"{__name__}.read_one_plane": ["x.npy", "x.npz", "x.dat"],
}


@pytest.mark.parametrize("device", ["/dev/zero", "pipe"])
@pytest.mark.parametrize("reader", DEVICES)
def test_a_device_or_a_pipe_in_place_of_a_file_is_refused(tmp_path, reader, device):
    os.mkfifo(tmp_path / "pipe")
    for name in DEVICES[reader]:
        path = tmp_path / "clip" / name
        path.parent.mkdir(exist_ok=True)
        # "/dev/zero" is an absolute path, so `tmp_path` has no effect on it.
        path.symlink_to(tmp_path / device)

        ended = call_limited(reader, path)

        assert ended.error in ("DataError", "SpikeFileError"), ended
        assert name in ended.text, ended
        path.unlink()

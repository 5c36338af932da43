"""A small hostile file of the data is refused in words, in two seconds and a gigabyte."""

import io
import math
import os
import struct
import zipfile
import zlib

import cv2
import numpy as np
import pytest

from data.spike.formats import Crop, SpikeFileError, SpikeGeometry, open_spikes, read_spikes
from tests.helpers.limited import assert_refused, call_limited


def png_of_zeros(width, height):
    """A grey PNG of one bit a pixel, whose pixels are all there and all black."""

    def chunk(kind, data):
        return (
            len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        )

    row = bytes(1 + (width + 7) // 8)
    packing = zlib.compressobj(9)
    pixels = b"".join(packing.compress(row) for _ in range(height)) + packing.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


READERS = ["files.read_bgr", "files.image_size", "clip_reader.user_clips"]


@pytest.mark.parametrize("reader", READERS)
def test_a_small_png_of_900_million_pixels_is_not_decoded(tmp_path, reader):
    path = tmp_path / "a.png"
    path.write_bytes(png_of_zeros(30_000, 30_000))
    assert path.stat().st_size < 200_000
    assert_refused(
        f"data.clips.{reader}", path, by="DataError", saying="30000 x 30000, 900 million pixels"
    )


def test_an_8k_frame_is_read(tmp_path):
    (tmp_path / "a.png").write_bytes(png_of_zeros(7680, 4320))
    assert call_limited("data.clips.files.read_bgr", tmp_path / "a.png").error == ""


def write_npz(path, shape, member="spk.npy", packing=zipfile.ZIP_DEFLATED, said=None):
    """A .npz of zeros, written in parts. said: the shape in its header, if it is another."""
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": said or shape}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w", packing) as archive, archive.open(member, "w") as file:
        file.write(header.getvalue())
        for _ in range(shape[0]):
            file.write(bytes(math.prod(shape[1:])))


def read_one_plane(path):
    """The first plane of 250 x 400 pixels of a file."""
    return read_spikes(path, SpikeGeometry(250, 400), 0, 1)


def test_a_plane_of_a_small_npz_of_many_planes_does_not_unpack_them_all(tmp_path):
    write_npz(tmp_path / "a.npz", (3_000, 250, 400))
    assert (tmp_path / "a.npz").stat().st_size < 1_000_000
    ended = call_limited(f"{__name__}.read_one_plane", tmp_path / "a.npz")

    assert ended.error == "", ended
    assert ended.mb < 200, ended


def test_planes_of_a_large_npz_are_those_of_the_array(tmp_path):
    # 70 MB: more than the 64 MB up to which an array is kept in memory. Few spikes (1 of 256) are
    # compressed five times as fast as many.
    noise = np.random.default_rng(0).integers(0, 256, (700, 250, 400), np.uint8)
    planes = (noise == 0).astype(np.uint8)
    np.savez_compressed(tmp_path / "a.npz", spk=planes)
    file = open_spikes(tmp_path / "a.npz", SpikeGeometry(250, 400))
    assert np.array_equal(file.read(600, 90), planes[600:690])
    assert np.array_equal(file.read(3, 2, Crop(5, 7, 20, 30)), planes[3:5, 5:25, 7:37])
    parts = list(file.parts(10, 150))

    assert [len(part) for part in parts] == [64, 64, 22]
    assert np.array_equal(np.concatenate(parts), planes[10:160])


BYTES = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s, 8, 8)}"
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
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)
    path = tmp_path / f"a.{ending}"
    if ending == "npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("spk.npy", content)
    with pytest.raises(SpikeFileError, match="cannot read spike file") as e:
        read_spikes(path, SpikeGeometry(8, 8))

    assert e.value.where == str(path)
    assert e.value.expected
    assert e.value.do


def test_an_npz_that_numpy_does_not_write_is_refused(tmp_path):
    geometry = SpikeGeometry(8, 8)
    write_npz(tmp_path / "lzma.npz", (4, 8, 8), packing=zipfile.ZIP_LZMA)
    write_npz(tmp_path / "locked.npz", (4, 8, 8), packing=zipfile.ZIP_STORED)
    content = bytearray((tmp_path / "locked.npz").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + flags] |= 1
    (tmp_path / "locked.npz").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        for number in range(1000):
            archive.writestr(f"{number}.npy", b"")
    said = {"lzma": "in a way that NumPy", "locked": "is encrypted", "many": "holds 1000 arrays"}
    for name, words in said.items():
        with pytest.raises(SpikeFileError, match=words):
            read_spikes(tmp_path / f"{name}.npz", geometry)


def test_a_png_that_states_a_chunk_of_4_gigabytes_is_not_given_them(tmp_path):
    content = bytearray(cv2.imencode(".png", np.zeros((20, 30, 3), np.uint8))[1].tobytes())
    content[33:37] = b"\xff\xff\xff\x00"
    (tmp_path / "a.png").write_bytes(content)
    said = "is damaged or cut short"
    assert_refused("data.clips.files.read_bgr", tmp_path / "a.png", by="DataError", saying=said)


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
        path.symlink_to(tmp_path / device)
        ended = call_limited(reader, path)
        assert ended.error in ("DataError", "SpikeFileError"), ended
        assert name in ended.text, ended
        path.unlink()

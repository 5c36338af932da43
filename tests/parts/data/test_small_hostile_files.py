"""A small hostile file of the data is refused in words, in two seconds and a gigabyte."""

import struct
import zlib

import pytest

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

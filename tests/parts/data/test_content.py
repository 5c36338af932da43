"""data/clips/content.py: the digest of the clips on which a score is measured.

The digest is a short text that stands for the content of the clips. Only a change of the data may
change it. The clips are clip0 and clip1, each with 6 frames of 16 x 24 pixels and 24 spike planes
for each frame. A reader gives the frames of one clip.
"""

import os
import shutil
import struct
import zlib

import numpy as np
import pytest
import torch

from data.clips import content
from data.clips.content import digest_of_clips
from tests.helpers.clip_files import (
    add_cache,
    data_section,
    set_for_testing,
    write_clip,
    write_clips,
    write_info,
    write_png,
)

# Height and width of the frames that `write_clips` writes.
FRAME_SIZE = (16, 24)


@pytest.fixture
def root(tmp_path):
    """Give a folder with the test clips clip0 and clip1."""
    return write_clips(tmp_path / "data", "clip0", "clip1", split="test", first=47)


def digest(root, **changes):
    """Return the digest of the content of all clips. changes: keys of datasets.test."""
    return digest_of_clips(set_for_testing(data_section(root, "test", **changes)).readers())


def file_of_clip1(root, kind, name):
    """Return the path of a file of clip1. kind: e.g. "blur", "sharp" or "spike"."""
    base = "GOPRO_Large_spike_seq" if kind == "spike" else "GOPRO_Large"
    return root / base / "test/clip1" / kind / name


def test_a_copy_with_other_times_of_change_has_the_same_digest(root, tmp_path):
    shutil.copytree(root, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*.*"):
        os.utime(path, (1, 1))

    assert digest(tmp_path / "copy") == digest(root)


def test_one_changed_pixel_changes_the_digest(root):
    path = file_of_clip1(root, "sharp", "000050.png")
    red = np.full(FRAME_SIZE, 100, np.uint8)
    first = digest(root)

    write_png(path, red)
    with_another_picture = digest(root)
    red[7, 11] = 101  # one level more
    write_png(path, red)
    with_another_pixel = digest(root)

    assert with_another_picture != first
    assert with_another_pixel not in (first, with_another_picture)


# at: the index of the changed byte. The first byte, a byte in the middle, and the last byte are
# tested.
@pytest.mark.parametrize("at", [0, 100, -1])
def test_one_changed_byte_of_the_spikes_changes_the_digest(root, at):
    before = digest(root)
    path = file_of_clip1(root, "spike", "000049.dat")
    planes = bytearray(path.read_bytes())
    planes[at] ^= 1
    path.write_bytes(planes)

    assert digest(root) != before


class ReaderOfOneFile:
    """A clip of one frame in one file. `digest_of_clips` uses no other members."""

    name = "x"
    stems = ("0",)

    def __init__(self, path):
        self.path = path

    def described(self):
        return ""

    def paths(self):
        return [str(self.path)]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(slice(0, 1), id="the first byte"),
        # The digest reads only some parts of a large file. At least one part lies in these bytes.
        pytest.param(slice(90_000, 120_000), id="the middle"),
        pytest.param(slice(199_999, 200_000), id="the last byte"),
    ],
)
def test_a_large_file_is_sampled_from_its_beginning_to_its_end(tmp_path, changed):
    path = tmp_path / "x.dat"
    data = np.zeros(200_000, np.uint8)
    path.write_bytes(data.tobytes())
    before = digest_of_clips([ReaderOfOneFile(path)])

    data[changed] = 1
    path.write_bytes(data.tobytes())

    assert digest_of_clips([ReaderOfOneFile(path)]) != before


@pytest.mark.parametrize(
    "changes",
    [
        # Only the first 3 of the 6 frames of each clip are tested.
        {"num_frame": 3},
        # Only the planes 4 ... 19 of the 24 planes of each spike file are read.
        {"spike": {"type": "dat", "center": "file", "first": 4, "count": 16}},
        # The sharp frame belongs to another plane.
        {"spike": {"type": "dat", "center": 11}},
        # The frames are read from another folder.
        {"lq_folder": "sharp"},
    ],
    ids=["num_frame", "planes", "center", "frames"],
)
def test_an_option_that_reads_other_parts_of_the_files_changes_the_digest(root, changes):
    assert digest(root, **changes) != digest(root)


def test_digests_have_16_hex_digits(root):
    first, _ = set_for_testing(data_section(root, "test")).readers()

    # Check the digest of all clips, and the digest of one clip.
    for found in (digest(root), first.digest()):
        assert len(found) == 16
        assert int(found, 16) >= 0  # ValueError for other characters


def test_an_additional_frame_changes_the_digest(root):
    before = digest(root)

    # Write the same clip with 7 frames in place of 6. clip1 was written with the seed 1, so its
    # first 6 frames keep their content.
    write_clip(root, "clip1", split="test", first=47, frames=7, seed=1)

    assert digest(root) != before


def test_another_rate_in_dataset_json_changes_the_digest(root):
    before = digest(root)

    write_info(root, rate=0.5)

    assert digest(root) != before


def test_a_cache_beside_its_files_has_their_digest(root, tmp_path):
    # `add_cache` makes a cache, and returns the section that reads it.
    values = add_cache(data_section(root, "test"), tmp_path / "cache")
    clips = set_for_testing(values).readers()

    assert digest_of_clips(clips) == digest(root)


def test_a_cache_without_its_files_is_hashed_itself(root, tmp_path):
    values = add_cache(data_section(root, "test"), tmp_path / "cache")
    clips = set_for_testing(values).readers()
    shutil.rmtree(root / "GOPRO_Large")
    before = digest_of_clips(clips)

    path = tmp_path / "cache/clip1/gt.u8"
    pixels = bytearray(path.read_bytes())
    pixels[0] ^= 1  # flips the lowest bit of the first byte
    path.write_bytes(pixels)

    assert digest_of_clips(clips) != before


class ReaderWithoutFiles:
    """A clip whose frames are computed. lq: its blurry frames (n, 3, H, W)."""

    name = "x"

    def __init__(self, lq):
        self.lq = lq
        self.stems = [str(number) for number in range(len(lq))]

    def frame(self, index):
        return {"lq": self.lq[index]}


# A reader without files is hashed by its first, middle and last frame. The clip has 4 frames. So
# these three frames are 0, 1 (half of 3, rounded down) and 3.
@pytest.mark.parametrize("number", [0, 1, 3], ids=["first", "middle", "last"])
def test_a_reader_without_files_is_known_by_its_frames(number):
    frames = torch.zeros(4, 3, 5, 6)
    reader = ReaderWithoutFiles(frames)
    before = digest_of_clips([reader])

    frames[number, 2, 4, 5] = 1.0  # changes the frames of the reader, too

    assert digest_of_clips([reader]) != before


def test_the_size_of_a_file_counts_even_if_its_content_is_not_read(root, monkeypatch):
    # If a set has more than MOST_FILES files, the digest reads the content of only MOST_FILES
    # files. Here this limit is 5, and the set has 36 files. The file that is changed below is not
    # one of the 5 files. But the digest also has the size of each file, and this size grows by one
    # byte.
    monkeypatch.setattr(content, "MOST_FILES", 5)
    before = digest(root)

    with open(file_of_clip1(root, "sharp", "000050.png"), "ab") as file:
        file.write(b"x")

    assert digest(root) != before


# ---- Digests that are stored ----
#
# A checkpoint and the results of a test hold such a digest. If these digests changed, all stored
# scores and results would seem to come from other data. So the digests must stay. If one of these
# tests fails, do not replace the expected text: look for the change of content.py.


def plain_png(height: int, width: int) -> bytes:
    """Return a black PNG without compression. So its bytes are the same with every library."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    # 8 bits a value, and 2 for RGB. Each 0 stands for the usual choice: deflate, usual filters, no
    # interlacing.
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = height * bytes(1 + 3 * width)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


@pytest.fixture
def plain_clips(root):
    """Give clips whose files have the same bytes and times of change on every machine."""
    for path in (root / "GOPRO_Large").rglob("*.png"):
        path.write_bytes(plain_png(*FRAME_SIZE))
    for path in root.rglob("*.*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    spike = {"type": "dat", "center": "file", "first": 4, "count": 16, "representation": "voxel"}
    return set_for_testing(data_section(root, "test", spike=spike)).readers()


def test_the_digest_that_is_stored_with_a_score_stays(plain_clips):
    assert digest_of_clips(plain_clips) == "23cd0193d2d10ec9"


def test_the_digest_that_is_stored_with_results_stays(plain_clips):
    assert plain_clips[0].digest() == "7056db89e1a0c5c6"


def test_the_digest_of_a_reader_without_files_stays():
    reader = ReaderWithoutFiles(torch.ones(2, 3, 1, 2))

    assert digest_of_clips([reader]) == "18d8ff29f278a4f4"

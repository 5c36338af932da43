"""A file with any bytes is either read, or refused with its name and the cause.

Hypothesis damages real files of each kind (tests/helpers/damage.py): some bytes get other values,
and some files are cut short. `examples` (tests/helpers/damage.py) says how many damaged files it
tries. No file may end the process, and each error must have all its parts: where, what, expected,
and do.

An LMDB is a database in one file, data.mdb, with a list of its keys beside it, meta_info.txt. KAIR
and BasicSR keep clips in it.
"""

import io
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data.clips.data_root import list_root
from data.clips.file_content import read_bytes
from data.clips.film_times import film_times
from data.clips.picture_losses import what_is_lost
from data.clips.pictures import image_size, read_bgr
from data.spike.errors import SpikeFileError
from data.spike.formats import read_spikes
from data.spike.geometry import SpikeGeometry
from tests.helpers.clip_files import picture
from tests.helpers.damage import damaged_copies, examples
from tests.helpers.film_files import noise_film
from utils.errors import DataError
from utils.video.reader import VideoReader

# Planes of spikes (5, 8, 12).
SPIKES = np.random.default_rng(0).integers(0, 2, (5, 8, 12), np.uint8)


def assert_is_whole(error: DataError | SpikeFileError, path: Path) -> None:
    """Check that an error names the file or folder, and has all its parts."""
    assert str(path) in error.where
    assert error.what
    assert error.expected
    assert error.do


def assert_read_or_refused(read: Callable[[Path], Any], path: Path, content: bytes) -> None:
    """Write bytes to a file and read it. An error must name the file and have all its parts."""
    path.write_bytes(content)
    try:
        read(path)
    except (DataError, SpikeFileError) as error:
        assert_is_whole(error, path)


# ---- Pictures ----


def read_picture(path):
    """Read a picture in the three ways of the program: its size, what is lost in it, its pixels."""
    image_size(str(path))
    what_is_lost(str(path))  # words about lost values, e.g. "has 16 bits: they are cut to 8"
    assert read_bgr(str(path)).dtype == np.uint8


def picture_bytes(kind):
    """Return the bytes of a picture.

    kind: the format, e.g. "png". The words "deep" or "exif" may stand before it. "deep png" has 16
    bits per value. "exif png" has the EXIF data of a camera that was turned by 90 degrees.
    """
    image = picture(height=20, width=30)
    word, _, file_format = kind.rpartition(" ")
    if word == "exif":
        exif = Image.Exif()
        orientation = 0x112  # the number of this entry
        exif[orientation] = 6  # a quarter turn clockwise
        file = io.BytesIO()
        Image.fromarray(image).save(file, file_format, exif=exif)
        return file.getvalue()
    if word == "deep":
        image = image.astype(np.uint16) * 16  # values above 255
    _, encoded = cv2.imencode(f".{file_format}", image)
    return encoded.tobytes()


# Kind -> a file of this kind. cv2 writes the first eight files. PIL writes the files with EXIF
# data. The names of PIL for two of the formats are "jpeg" and "tiff".
PICTURE_BYTES = {
    kind: picture_bytes(kind)
    for kind in (
        "png",
        "jpg",
        "tif",
        "webp",
        "bmp",
        "ppm",
        "deep png",
        "deep tif",
        "exif png",
        "exif jpeg",
        "exif webp",
        "exif tiff",
    )
}


@examples(150)
@given(data=st.data(), kind=st.sampled_from(list(PICTURE_BYTES)))
def test_a_damaged_picture_is_read_or_refused(tmp_path, data, kind):
    content = data.draw(damaged_copies(PICTURE_BYTES[kind]))

    # The content says the format, so any name will do for the file.
    assert_read_or_refused(read_picture, tmp_path / "a.png", content)


# ---- Spikes ----


def read_planes(path):
    """Read planes of 8 x 12 spikes, as many as the file has."""
    return read_spikes(path, SpikeGeometry(8, 12))


def array_bytes(kind):
    """Return a file of NumPy with the spikes. kind: "npy", "stored npz" or "packed npz".

    An .npz also has a second array, so the program must choose the array "spk".
    """
    file = io.BytesIO()
    if kind == "npy":
        np.save(file, SPIKES)
    elif kind == "stored npz":
        np.savez(file, spk=SPIKES, other=SPIKES[0])
    else:
        np.savez_compressed(file, spk=SPIKES, other=SPIKES[0])
    return file.getvalue()


ARRAY_BYTES = {kind: array_bytes(kind) for kind in ("npy", "stored npz", "packed npz")}


@examples(150)
@given(data=st.data(), kind=st.sampled_from(sorted(ARRAY_BYTES)))
def test_a_damaged_array_of_spikes_is_read_or_refused(tmp_path, data, kind):
    _, _, ending = kind.rpartition(" ")  # "packed npz" -> "npz"
    content = data.draw(damaged_copies(ARRAY_BYTES[kind]))

    assert_read_or_refused(read_planes, tmp_path / f"a.{ending}", content)


@examples(150)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_as_packed_planes_or_refused(tmp_path, content):
    assert_read_or_refused(read_planes, tmp_path / "a.dat", content)


# ---- Films ----


def read_film(path):
    """Read the times and the first frames of a film."""
    video = VideoReader(path)
    film_times(path, video.times)
    for number in range(min(video.num_frames, 3)):
        assert video.read(number).ndim == 3


# Name of a film -> its codec.
FILMS = {
    "a.mp4": "libx264",
    "a.mkv": "libx264",
    "b.mkv": "ffv1",
    "a.avi": "mpeg4",
    "a.ts": "libx264",
    "a.mpg": "mpeg2video",
    "a.wmv": "wmv2",
    "a.flv": "flv",
}


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Give the bytes of each film, which has four frames: name -> bytes."""
    folder = tmp_path_factory.mktemp("films")
    for name, codec in FILMS.items():
        # Without options of the codec, only the first frame is stored whole. The other frames are
        # stored as changes.
        noise_film(folder / name, 4, codec=codec, options={})
    return {name: (folder / name).read_bytes() for name in FILMS}


@examples(150)
@given(data=st.data(), name=st.sampled_from(sorted(FILMS)))
def test_a_damaged_film_is_read_or_refused(tmp_path, films, data, name):
    content = data.draw(damaged_copies(films[name]))

    assert_read_or_refused(read_film, tmp_path / name, content)


# ---- LMDBs ----

# Length in bytes of the one large value of `lmdb_content`.
LARGE = 20_000
# Bytes of a page, the unit in which an LMDB is written.
PAGE = 4096


def write_lmdb(root: Path, values: dict[str, bytes]) -> None:
    """Write an LMDB with these values, without the list of its keys."""
    environment = lmdb.open(str(root), map_size=2**22)
    with environment, environment.begin(write=True) as out:
        for key, value in values.items():
            out.put(key.encode(), value)


def write_list(root: Path, keys: Iterable[str]) -> None:
    """Write the list of the keys. A line is a key, the size of the picture, and a compression.

    E.g. "clip/00000000.png (1,2,3) 1". Only the key is read, so any size will do.
    """
    lines = [f"{key}.png (1,2,3) 1\n" for key in keys]
    (root / "meta_info.txt").write_text("".join(lines))


# Keys of `lmdb_content`: 20 small values, and the large value.
KEYS = [f"clip/{number:08d}" for number in range(21)]


@pytest.fixture(scope="module")
def lmdb_content(tmp_path_factory):
    """Give the bytes of an undamaged data.mdb. The last of its values takes several pages."""
    root = tmp_path_factory.mktemp("whole.lmdb")
    values = {key: bytes(500) for key in KEYS[:-1]}
    values[KEYS[-1]] = bytes(LARGE)
    write_lmdb(root, values)
    return (root / "data.mdb").read_bytes()


@examples(40)
@given(data=st.data())
def test_a_damaged_lmdb_is_read_or_refused(tmp_path, lmdb_content, data):
    # Each example has a folder of its own, because an LMDB stays open in this process.
    earlier_examples = len(list(tmp_path.iterdir()))
    root = tmp_path / f"{earlier_examples}.lmdb"
    root.mkdir()
    write_list(root, KEYS)
    (root / "data.mdb").write_bytes(data.draw(damaged_copies(lmdb_content)))

    try:
        listing = list_root(str(root), "blur", (".png",))
        for entry in listing["clip"].values():
            read_bytes(entry.path)
    except DataError as error:
        assert_is_whole(error, root)


def test_an_lmdb_whose_numbers_point_out_of_the_file_is_refused(tmp_path, lmdb_content):
    root = tmp_path / "a.lmdb"
    root.mkdir()
    write_list(root, KEYS[-1:])
    # The file stores the length of the large value as four bytes. `count` shows that these bytes
    # occur only once in the file. Replace them by a length beyond the end of the file.
    length = LARGE.to_bytes(4, "little")
    far_too_long = (2**31).to_bytes(4, "little")
    assert lmdb_content.count(length) == 1
    (root / "data.mdb").write_bytes(lmdb_content.replace(length, far_too_long))

    with pytest.raises(DataError, match="the LMDB is damaged: its numbers point out of the file"):
        list_root(str(root), "blur", (".png",))


def test_a_damaged_page_of_an_lmdb_is_reported(tmp_path):
    root = tmp_path / "a.lmdb"
    values = {f"clip/{number:08d}": os.urandom(1000) for number in range(40)}
    write_lmdb(root, values)
    write_list(root, values)
    # The first two pages say where all other pages are. In each other page, bytes 10 and 11 are the
    # number of its kind. No kind has the number 0, so 0 damages the page.
    content = bytearray((root / "data.mdb").read_bytes())
    for begin in range(2 * PAGE, len(content), PAGE):
        content[begin + 10 : begin + 12] = b"\0\0"
    (root / "data.mdb").write_bytes(content)

    with pytest.raises(DataError, match="the LMDB is damaged") as error:
        list_root(str(root), "blur", (".png",))

    assert error.value.where == str(root)
    assert "make it again" in error.value.do


# A line that is slow to search: if a program searched the rest of the line after each bracket, it
# would take minutes.
MANY_BRACKETS = "a" + " (" * 100_000


@pytest.mark.parametrize(
    ("line", "clip", "stem"),
    [
        ("a/b.png (720,1280,3) 1", "a", "b"),
        ("a/b (1).png (720,1280,3) 1", "a", "b (1)"),
        ("a b/c.png", "a b", "c"),
        ("a/b.png (720,1280,3)", "a", "b"),
        ("a (old)/b.png (720,1280,3) 1", "a (old)", "b"),
        ("a (old)/b (old)", "a (old)", "b (old)"),
        ("a/b (2)", "a", "b (2)"),
        # A key without a folder belongs to a clip with the name of the LMDB, here "a".
        (MANY_BRACKETS, "a", MANY_BRACKETS),
    ],
    ids=[
        "KAIR",
        "brackets in the name",
        "blank in the name",
        "no compression",
        "brackets in the clip",
        "brackets at the end of a name",
        "number in brackets at the end of a name",
        "many brackets",
    ],
)
def test_the_key_in_a_line_of_an_lmdbs_list_is_found_quickly(tmp_path, line, clip, stem):
    root = tmp_path / "a.lmdb"
    write_lmdb(root, {"a/b": b"1"})
    (root / "meta_info.txt").write_text(f"{line}\n")
    start = time.monotonic()

    listing = list_root(str(root), "blur", (".png",))

    assert list(listing[clip]) == [stem]
    # Each line takes milliseconds, also MANY_BRACKETS. The limit is 2 s, because the machine may be
    # busy.
    assert time.monotonic() - start < 2

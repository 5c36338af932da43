"""Whatever the bytes of a file, it is read, or refused with its name and the cause.

Hypothesis damages real files of each kind (tests/helpers/damage.py): some bytes get other values,
and some files are cut short. It tries as many damaged files as `examples` says. No file may end the
process, and no error may come without its parts.
"""

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data.clips import files
from data.clips.film_times import film_times
from data.spike.formats import SpikeFileError, SpikeGeometry, read_spikes
from tests.helpers.clip_files import picture
from tests.helpers.damage import damaged, examples
from tests.helpers.film_files import noise_film
from utils.errors import DataError
from utils.video import VideoReader

# Planes of spikes (5, 8, 12).
SPIKES = np.random.default_rng(0).integers(0, 2, (5, 8, 12), np.uint8)


def read_or_refused(read: Callable[[Path], Any], path: Path, content: bytes) -> None:
    """Write a content to a file and read it. An error must name the file and have all parts."""
    path.write_bytes(content)
    try:
        read(path)
    except (DataError, SpikeFileError) as e:
        assert str(path) in e.where
        assert e.what
        assert e.expected
        assert e.do


def read_picture(path):
    """Read a picture in each way in which the program reads one: its header, and its pixels."""
    files.image_size(str(path))
    files.what_is_lost(str(path))
    assert files.read_bgr(str(path)).dtype == np.uint8


def picture_bytes(kind):
    """Return the bytes of a picture.

    kind: the format, e.g. "png". "deep" before it means 16 bits, "exif" means with the orientation
    6 of a camera, a quarter turn.
    """
    image = picture(20, 30)
    if kind.startswith("exif"):
        exif = Image.Exif()
        exif[0x112] = 6
        file = io.BytesIO()
        Image.fromarray(image).save(file, kind.partition(" ")[2], exif=exif)
        return file.getvalue()
    if kind.startswith("deep"):
        image = image.astype(np.uint16) * 16
    return cv2.imencode(f".{kind.rpartition(' ')[2]}", image)[1].tobytes()


PICTURES = [
    *("png", "jpg", "tif", "webp", "bmp", "ppm", "deep png", "deep tif"),
    *("exif png", "exif jpeg", "exif webp", "exif tiff"),
]
PICTURE_BYTES = {kind: picture_bytes(kind) for kind in PICTURES}


@examples(150)
@given(data=st.data(), kind=st.sampled_from(PICTURES))
def test_a_damaged_picture(tmp_path, data, kind):
    content = data.draw(damaged(PICTURE_BYTES[kind]))
    read_or_refused(read_picture, tmp_path / "a.png", content)


def array_bytes(kind):
    """Return a file of NumPy with the spikes. kind: "npy", "stored npz" or "packed npz"."""
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
def test_a_damaged_array_of_spikes(tmp_path, data, kind):
    content = data.draw(damaged(ARRAY_BYTES[kind]))
    path = tmp_path / f"a.{kind.rpartition(' ')[2]}"
    read_or_refused(lambda path: read_spikes(path, SpikeGeometry(8, 12)), path, content)


@examples(150)
@given(content=st.binary(max_size=200))
def test_any_bytes_as_packed_planes(tmp_path, content):
    path = tmp_path / "a.dat"
    read_or_refused(lambda path: read_spikes(path, SpikeGeometry(8, 12)), path, content)


def read_film(path):
    """Read the times and the first frames of a film."""
    video = VideoReader(path)
    film_times(path, video.times)
    for number in range(min(video.num_frames, 3)):
        assert video.read(number).ndim == 3


# Name of a film -> its codec and its options.
FILMS = {
    "a.mp4": ("libx264", {}),
    "a.mkv": ("libx264", {}),
    "b.mkv": ("ffv1", {}),
    "a.avi": ("mpeg4", {}),
    "a.ts": ("libx264", {}),
    "a.mpg": ("mpeg2video", {}),
    "a.wmv": ("wmv2", {}),
    "a.flv": ("flv", {}),
}


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Give the bytes of each film, which has four frames: name -> bytes."""
    folder = tmp_path_factory.mktemp("films")
    for name, (codec, options) in FILMS.items():
        noise_film(folder / name, 4, codec=codec, options=options)
    return {name: (folder / name).read_bytes() for name in FILMS}


@examples(150)
@given(data=st.data(), name=st.sampled_from(sorted(FILMS)))
def test_a_damaged_film(tmp_path, films, data, name):
    content = data.draw(damaged(films[name]))
    read_or_refused(read_film, tmp_path / name, content)


def lmdb_bytes(folder: Path) -> bytes:
    """Return data.mdb of an LMDB with twenty small values and one that takes several pages."""
    environment = lmdb.open(str(folder), map_size=2**20)
    with environment, environment.begin(write=True) as out:
        for number in range(20):
            out.put(f"clip/{number:08d}".encode(), bytes(500))
        out.put(b"clip/00000020", bytes(20_000))
    return (folder / "data.mdb").read_bytes()


@pytest.fixture(scope="module")
def lmdb_content(tmp_path_factory):
    """Give the bytes of a sound data.mdb."""
    return lmdb_bytes(tmp_path_factory.mktemp("whole.lmdb"))


@examples(40)
@given(data=st.data())
def test_a_damaged_lmdb(tmp_path, lmdb_content, data):
    root = tmp_path / f"{len(list(tmp_path.iterdir()))}.lmdb"  # an LMDB stays open in this process
    root.mkdir()
    (root / "meta_info.txt").write_text("".join(f"clip/{n:08d}.png (1,2,3) 1\n" for n in range(21)))
    (root / "data.mdb").write_bytes(data.draw(damaged(lmdb_content)))
    try:
        listing = files.list_root(str(root), "blur", (".png",))
        for entry in listing["clip"].values():
            files.read_bytes(entry.path)
    except DataError as e:
        assert str(root) in e.where
        assert e.what
        assert e.expected
        assert e.do


def test_numbers_of_an_lmdb_that_point_out_of_the_file_end_no_process(tmp_path, lmdb_content):
    root = tmp_path / "a.lmdb"
    root.mkdir()
    (root / "meta_info.txt").write_text("clip/00000020.png (1,2,3) 1\n")
    size = (20_000).to_bytes(4, "little")
    assert lmdb_content.count(size) == 1
    (root / "data.mdb").write_bytes(lmdb_content.replace(size, (2**31).to_bytes(4, "little")))
    with pytest.raises(DataError, match="the LMDB is damaged: its numbers point out of the file"):
        files.list_root(str(root), "blur", (".png",))


def test_a_damaged_page_of_an_lmdb_is_said(tmp_path):
    root = tmp_path / "a.lmdb"
    names = [f"clip/{number:08d}" for number in range(40)]
    with lmdb.open(str(root), map_size=2**22) as environment, environment.begin(write=True) as out:
        for name in names:
            out.put(name.encode(), os.urandom(1000))
    (root / "meta_info.txt").write_text("".join(f"{name}.png (1,2,3) 1\n" for name in names))
    content = (root / "data.mdb").read_bytes()
    size = 4096
    pages = [bytearray(content[at : at + size]) for at in range(0, len(content), size)]
    for page in pages[2:]:
        page[10:12] = b"\0\0"  # the kind of the page
    (root / "data.mdb").write_bytes(b"".join(pages))
    with pytest.raises(DataError, match="the LMDB is damaged") as e:
        files.list_root(str(root), "blur", (".png",))

    assert e.value.where == str(root)
    assert "make it again" in e.value.do


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("a/b.png (720,1280,3) 1", "a/b"),
        ("a/b (1).png (720,1280,3) 1", "a/b"),
        ("a b/c.png", "a b/c"),
        ("a/b.png (720,1280,3)", "a/b"),
        ("a" + " (" * 100_000, "a" + " (" * 100_000),
    ],
)
def test_a_line_of_an_lmdbs_list_has_its_key_at_once(tmp_path, line, key):
    root = tmp_path / "a.lmdb"
    with lmdb.open(str(root), map_size=2**20) as environment, environment.begin(write=True) as out:
        out.put(b"a/b", b"1")
    (root / "meta_info.txt").write_text(f"{line}\n")
    clip, _, stem = key.rpartition("/")
    start = time.monotonic()
    listing = files.list_root(str(root), "blur", (".png",))

    assert list(listing[clip or "a"]) == [stem]
    assert time.monotonic() - start < 2

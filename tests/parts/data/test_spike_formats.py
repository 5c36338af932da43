"""Spike files of every format: what is written is read back, and what is something else is refused
with what it is.
"""

import gzip
import io
import os
import zipfile
from typing import Any

import cv2
import numpy as np
import pytest

from data.spike.formats import (
    Crop,
    SpikeFileError,
    SpikeGeometry,
    count_planes,
    open_spikes,
    read_spikes,
    write_spikes,
)
from tests.helpers.clip_files import (
    build,
    cached,
    doctor_of_data,
    same,
    section,
    set_for_training,
    write_clips,
    write_png,
)
from tests.helpers.spike_files import sps100_bytes
from utils.errors import DataError

SMALL = SpikeGeometry(2, 8)
CAMERA = SpikeGeometry(250, 400)
SPS100 = SpikeGeometry(1000, 1000, flipud=False, layout="sps100")
GEOMETRIES = {
    "camera.dat": SpikeGeometry(250, 400), "head.dat": SpikeGeometry(250, 400, head_columns=16),
    # planes do not fill whole bytes
    "array.npy": SpikeGeometry(250, 250), "array.npz": SpikeGeometry(250, 250),
    "raw.bin": SpikeGeometry(180, 320),
    "most_bit_first.bin": SpikeGeometry(180, 320, bit_order="big"),
    "top_first.bin": SpikeGeometry(12, 10, flipud=False),
    "rows_within_bytes.dat": SpikeGeometry(8, 13),
    "head_within_bytes.dat": SpikeGeometry(8, 11, head_columns=4),
}  # fmt: skip


def random_spikes(height, width, planes=5, seed=0):
    return (np.random.default_rng(seed).random((planes, height, width)) < 0.3).astype(np.uint8)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_each_format_reads_back_what_was_written_whole_and_in_part(tmp_path, name):
    geometry = GEOMETRIES[name]
    height, width = geometry.height, geometry.width
    spikes = random_spikes(height, width)
    write_spikes(tmp_path / name, iter((spikes[:2], spikes[2:])), geometry)
    file = open_spikes(tmp_path / name, geometry)
    assert count_planes(tmp_path / name, geometry) == file.planes == 5
    assert np.array_equal(file.read(), spikes) and file.read().dtype == np.uint8
    parts = [
        (0, 0, 1, 1),
        (height - 3, width - 3, 3, 3),
        (2, width // 2 - 3, 5, 6),
        (0, 3, height, 5),
    ]
    if width < 20:
        parts += [
            (top, left, 3, w)
            for top in (0, 5)
            for left in range(width)
            for w in range(1, width - left + 1)
        ]
    for top, left, h, w in parts:
        part = file.read(3, 2, Crop(top, left, h, w))
        assert np.array_equal(part, spikes[3:5, top : top + h, left : left + w])
    for first, count in ((5, 1), (4, 2), (0, 6), (-1, 2), (0, 0)):
        with pytest.raises(SpikeFileError, match="were requested"):
            file.read(first, count)
    with pytest.raises(SpikeFileError, match="outside the plane"):
        file.read(crop=Crop(1, 0, height, width))


def test_packed_bytes_are_those_of_the_definition(tmp_path):
    spikes = random_spikes(6, 12, planes=2)
    for order in ("little", "big"):
        write_spikes(tmp_path / f"{order}.bin", spikes, SpikeGeometry(6, 12, bit_order=order))
        bits = spikes[:, ::-1].reshape(-1, 8)
        weights = [1 << i if order == "little" else 128 >> i for i in range(8)]
        assert (tmp_path / f"{order}.bin").read_bytes() == bytes((bits @ weights).tolist())
    upside_down = read_spikes(tmp_path / "little.bin", SpikeGeometry(6, 12, flipud=False))
    assert np.array_equal(upside_down, spikes[:, ::-1])
    wrong = read_spikes(tmp_path / "big.bin", SpikeGeometry(6, 12))
    assert wrong.sum() == spikes.sum() and not np.array_equal(wrong, spikes)  # plausible, and wrong
    for name in ("head.dat", "head.npy"):  # head columns are the last of a row
        write_spikes(tmp_path / name, spikes, SpikeGeometry(6, 12))
        assert np.array_equal(
            read_spikes(tmp_path / name, SpikeGeometry(6, 8, head_columns=4)), spikes[:, :, :8]
        )


def test_a_capture_of_the_sps100_may_start_within_a_plane(tmp_path):
    spikes = random_spikes(1000, 1000, planes=2)
    content = sps100_bytes(spikes)
    (tmp_path / "a.dat").write_bytes(content[80_016:128_000] + content + content[:4000])
    file = open_spikes(tmp_path / "a.dat", SPS100)
    assert file.planes == 2 and np.array_equal(file.read(), spikes)
    # Across the words
    assert np.array_equal(file.read(1, 1, Crop(7, 495, 2, 10)), spikes[1:, 7:9, 495:505])
    for geometry in (
        SpikeGeometry(1000, 1024),
        SpikeGeometry(1000, 1000),
        SpikeGeometry(1000, 1000, head_columns=24),
    ):
        with pytest.raises(SpikeFileError, match="words of an SPS100 sensor"):
            open_spikes(tmp_path / "a.dat", geometry, "truncate")


def array_file(values, **named):
    file = io.BytesIO()
    np.savez(file, **named) if named else np.save(file, values)
    return file.getvalue()


FLAT = random_spikes(8, 12)
NPZ = array_file(None, spk=FLAT)
# Content, and what is said.
REFUSED = {
    "none.dat": (None, "No such file"),
    "none_fits.dat": (bytes(1_625_300), "known geometries that fit this size: none"),
    "others.dat": (bytes(1_612_800), r"360 x 640 \(56 planes\), .*180 x 320 \(224 planes\)"),
    "empty.dat": (b"", "holds no plane"), "zip.bin": (NPZ, r"header of a zip file"),
    "ragged.dat": (bytes(25), "25 bytes holds 2 planes of 8 x 12 and 1 bytes more"),
    "array.dat": (array_file(FLAT), r"header of a NumPy array"),
    "picture.dat": (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
    "photo.dat": (cv2.imencode(".jpg", FLAT[0])[1].tobytes(), "a JPEG image"),
    "compressed.dat": (gzip.compress(bytes(100)), "compressed with gzip"),
    "text.dat": (b"frame 0: 12 spikes, frame 1: 17 spikes, frame 2\n" * 6, "begins with text"),
    "pointer.dat": (b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"),
    "short.npy": (array_file(FLAT)[:-5], "cut short"), "packed.npy": (bytes(480), "magic string"),
    "float.npy": (array_file(FLAT.astype(np.float32)), "float32"), "empty.npy": (b"", "got 0"),
    "grey.npy": (array_file(FLAT * 255), "the value 255"),
    "order.npy": (array_file(FLAT.transpose(1, 2, 0)), r"shape \(8, 12, 5\)"),
    "objects.npy": (array_file(np.array([{}], object)), "Python objects"),
    "short.npz": (NPZ[: len(NPZ) // 2], "not a zip file"),
    "two.npz": (array_file(None, a=FLAT, b=FLAT), r"a \(5, 8, 12\) uint8, b \(5, 8, 12\) uint8"),
    "flat.npz": (array_file(None, spk=FLAT[0]), r"shape \(8, 12\)"),
    "flipped.npz": (NPZ.replace(FLAT.tobytes(), FLAT[:, ::-1].tobytes()), "CRC"),
}  # fmt: skip
OTHER_GEOMETRIES = {"none_fits.dat": SpikeGeometry(360, 640), "others.dat": SpikeGeometry(250, 400)}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_spike_file_is_refused_with_what_was_seen(tmp_path, name):
    content, words = REFUSED[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SpikeFileError, match=words) as error:
        read_spikes(tmp_path / name, OTHER_GEOMETRIES.get(name, SpikeGeometry(8, 12)))
    assert name in str(error.value) and error.value.expected and error.value.do
    assert ("astype(numpy.uint8)" in error.value.do) == (name == "float.npy")


def test_a_ragged_end_is_left_out_where_truncation_is_asked_for(tmp_path):
    (tmp_path / "a.dat").write_bytes(bytes.fromhex("c0010080ff"))
    assert count_planes(tmp_path / "a.dat", SMALL, remainder="truncate") == 2
    assert read_spikes(tmp_path / "a.dat", SMALL, remainder="truncate")[1, 0, 7] == 1
    (tmp_path / "a.dat").write_bytes(b"\x01")
    with pytest.raises(SpikeFileError, match="holds no plane"):
        read_spikes(tmp_path / "a.dat", SMALL, remainder="truncate")
    with pytest.raises(SpikeFileError, match="3 x 5 pixels cannot be packed"):
        count_planes(tmp_path / "a.dat", SpikeGeometry(3, 5))


@pytest.mark.parametrize(
    "begin", [b"\xff\xd8\xff", b"\xff\xd8\xff\xdb\xff\xfe", b"\x1f\x8b\x08", b"\x1f\x8b\x08\xff"]
)
def test_planes_of_a_bright_scene_may_begin_as_a_picture_does(tmp_path, begin):
    (tmp_path / "a.dat").write_bytes(begin.ljust(24, b"\xf7"))
    assert read_spikes(tmp_path / "a.dat", SpikeGeometry(8, 12)).shape == (2, 8, 12)


def test_an_npz_is_known_by_its_key_or_its_only_array_of_three_axes(tmp_path):
    known = (
        {"spk": FLAT.astype(bool), "label": np.zeros((3, 4, 5))},
        {"data": FLAT, "label": np.arange(3)},
    )
    for number, named in enumerate((*known, {"spk": np.asfortranarray(FLAT)})):
        (tmp_path / f"{number}.npz").write_bytes(array_file(None, **named))
        assert np.array_equal(
            read_spikes(tmp_path / f"{number}.npz", SpikeGeometry(8, 12), 1, 3), FLAT[1:4]
        )
    with zipfile.ZipFile(tmp_path / "0.npz", "a") as archive:
        archive.writestr("readme.txt", "no array")
    assert count_planes(tmp_path / "0.npz", SpikeGeometry(8, 12)) == 5


def test_the_name_of_a_geometry_which_resumed_runs_compare_shows_only_what_is_unusual():
    assert str(SMALL) == "SpikeGeometry(height=2, width=8, flipud=True, head_columns=0)"
    assert str(SpikeGeometry(8, 8, bit_order="big")).endswith("head_columns=0, bit_order='big')")


def test_writing_again_replaces_the_file_and_a_failure_leaves_nothing(tmp_path):
    write_spikes(tmp_path / "a.dat", random_spikes(2, 8, seed=1), SMALL)
    write_spikes(tmp_path / "a.dat", random_spikes(2, 8, seed=2), SMALL)
    assert np.array_equal(read_spikes(tmp_path / "a.dat", SMALL), random_spikes(2, 8, seed=2))
    with pytest.raises(SpikeFileError, match="shape"):
        write_spikes(tmp_path / "b.dat", random_spikes(250, 400), SMALL)
    assert os.listdir(tmp_path) == ["a.dat"]


def test_a_file_of_no_plane_is_not_written(tmp_path):
    with pytest.raises(SpikeFileError, match=r"shape \(0, 2, 8\)"):
        write_spikes(tmp_path / "a.dat", np.zeros((0, 2, 8), np.uint8), SMALL)
    assert os.listdir(tmp_path) == []


@pytest.fixture
def clips(tmp_path):
    return write_clips(tmp_path, "seq/0", "seq/1")


def spike_files(root, clip="0"):
    return sorted((root / "GOPRO_Large_spike_seq/train/seq" / clip / "spike").iterdir())


def as_format(root, suffix):
    """Every .dat of the data set in another format, its bits in the other order."""
    for path in [*spike_files(root), *spike_files(root, "1")]:
        spikes = read_spikes(path, SpikeGeometry(8, 12))
        path.unlink()
        write_spikes(path.with_suffix(suffix), spikes, SpikeGeometry(8, 12, bit_order="big"))


@pytest.mark.parametrize("suffix", [".bin", ".npy", ".npz"])
def test_samples_do_not_depend_on_the_format_nor_on_the_cache(clips, suffix):
    turns: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    expected = [build(clips, **turns)[1, i] for i in range(12)]
    as_format(clips, suffix)
    spike = section(clips)["spike"] | {"bit_order": "big"}
    cache = cached(section(clips, spike=spike), clips / "cache")["io_backend"]
    for dataset in (
        build(clips, spike=spike, **turns),
        build(clips, spike=spike, io_backend=cache, **turns),
    ):
        assert all(same(dataset[1, i], item) for i, item in enumerate(expected))
    if suffix == ".bin":
        with pytest.raises(DataError, match="its spikes are"):
            build(clips, io_backend=cache)


def test_samples_of_an_sps100_from_a_cache_are_those_from_its_files(tmp_path):
    scene = np.random.default_rng(0).integers(0, 255, (1000, 1000))
    spikes = random_spikes(1000, 1000, planes=2)
    for folder in ("blur", "sharp"):
        write_png(tmp_path / f"GOPRO_Large/train/clip0/{folder}/000000.png", scene)
    path = tmp_path / "GOPRO_Large_spike_seq/train/clip0/spike/000000.dat"
    path.parent.mkdir(parents=True)
    path.write_bytes(sps100_bytes(spikes))
    spike = section(tmp_path)["spike"] | {"h": 1000, "w": 1000, "layout": "sps100", "rate": 1.0}
    values = section(tmp_path, spike=spike, num_frame=1, gt_size=1000)
    from_cache = set_for_training(cached(values, tmp_path / "cache"))

    sample = from_cache[0, 0]

    assert same(sample, set_for_training(values)[0, 0])
    assert np.array_equal(sample["spike"][0].numpy(), spikes)


def test_a_frame_without_its_file_and_a_file_of_another_kind_are_named_before_a_run(clips, capfd):
    as_format(clips, ".npy")
    assert doctor_of_data(clips, "--decode", train=section(clips)) == 0
    said = capfd.readouterr().out
    assert "train: " in said and "no problem found" in said
    spike_files(clips)[2].unlink()
    np.save(spike_files(clips, "1")[3], np.zeros((24, 8, 13), np.uint8))
    assert doctor_of_data(clips, "--decode", train=section(clips)) == 3
    said = capfd.readouterr().err
    assert "seq/0 | spike lacks 1 of 6 frames: 000002.npy" in said
    assert "an array of shape (24, 8, 13), uint8" in said and "000003.npy" in said


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Thu Nov 26 10:00:00 2026", "HDF5"),
        (b"MATLAB 5.0 MAT-file, Platform: PCWIN64, Created on: Thu Nov 26 10:00:00 2026", "MATLAB"),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", "HDF5"),
    ],
)
def test_a_file_of_matlab_is_said_to_be_one(tmp_path, head, kind):
    (tmp_path / "a.dat").write_bytes(head + bytes(1000))
    with pytest.raises(SpikeFileError, match=f"begins with the header of an? {kind}") as e:
        open_spikes(tmp_path / "a.dat", SpikeGeometry(8, 8), "truncate")
    assert ".npy" in e.value.do

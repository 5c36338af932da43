"""Spike files of every format: what is written is read back, and what is something else is refused with what it is."""

import gzip
import io
import json
import zipfile

import cv2
import numpy as np
import pytest
import torch

from data.clip_cache import build_cache
from data.clip_reader import user_clips
from data.select_dataset import build_dataset
from data.spike.formats import count_planes, open_spikes, read_spikes, write_spikes
from data.spike.stream import Crop, SpikeFileError, SpikeGeometry
from scripts import doctor
from tests.clip_files import section, source_of, write_clip, write_info
from tests.spike_files import restore_dat, tool
from tests.train_files import network
from utils.errors import DataError

SPS100 = SpikeGeometry(1000, 1000, flipud=False, layout="sps100")
EIGHT = {
    "camera.dat": SpikeGeometry(250, 400),
    "head.dat": SpikeGeometry(250, 400, head_columns=16),
    "sps100.dat": SPS100,
    "array.npy": SpikeGeometry(250, 250),  # planes that do not fill whole bytes
    "array.npz": SpikeGeometry(250, 250),
    "raw.bin": SpikeGeometry(180, 320),
    "most_bit_first.bin": SpikeGeometry(180, 320, bit_order="big"),
    "top_first.bin": SpikeGeometry(12, 10, flipud=False),
}


def random_spikes(height, width, planes=5, seed=0):
    return (np.random.default_rng(seed).random((planes, height, width)) < 0.3).astype(np.uint8)


def naive_sps100(spikes):
    """The bytes of planes (T, 1000, 1000), bit by bit as the published reader expects them."""
    content = b""
    for plane in spikes:
        for row, line in enumerate(plane):
            for half in (0, 1):
                word = (500 if (row, half) in ((0, 0), (999, 1)) else 1 + row % 499) << 4
                word |= (0 if (row, half) == (0, 0) else 3 if (row, half) == (999, 1) else 1) << 14
                pixels = sum(int(bit) << i for i, bit in enumerate(line[500 * half : 500 * half + 500]))
                content += (pixels | (word >> 4) << 500).to_bytes(64, "little")
    return content


@pytest.mark.parametrize("name", EIGHT)
def test_each_format_reads_back_what_was_written_whole_and_in_part(tmp_path, name):
    geometry = EIGHT[name]
    height, width = geometry.height, geometry.width
    spikes = random_spikes(height, width)
    write_spikes(tmp_path / name, iter((spikes[:2], spikes[2:])), geometry)

    file = open_spikes(tmp_path / name, geometry)
    assert count_planes(tmp_path / name, geometry) == file.planes == 5
    assert np.array_equal(file.read(), spikes) and file.read().dtype == np.uint8
    for top, left, h, w in ((0, 0, 1, 1), (height - 3, width - 3, 3, 3), (2, width // 2 - 3, 5, 6), (0, 3, height, 5)):
        part = file.read(3, 2, Crop(top, left, h, w))
        assert np.array_equal(part, spikes[3:5, top : top + h, left : left + w])
    for first, count in ((5, 1), (4, 2), (0, 6), (-1, 2), (0, 0)):
        with pytest.raises(SpikeFileError, match="were requested"):
            file.read(first, count)


def test_packed_bytes_are_those_of_the_definition(tmp_path):
    spikes = random_spikes(6, 12, planes=2)
    for order in ("little", "big"):
        write_spikes(tmp_path / f"{order}.bin", spikes, SpikeGeometry(6, 12, bit_order=order))
        bits = spikes[:, ::-1].reshape(-1, 8)
        weights = [1 << i if order == "little" else 128 >> i for i in range(8)]
        assert (tmp_path / f"{order}.bin").read_bytes() == bytes((bits @ weights).tolist())
    wrong = read_spikes(tmp_path / "big.bin", SpikeGeometry(6, 12))
    assert wrong.sum() == spikes.sum() and not np.array_equal(wrong, spikes)  # plausible, and wrong


def test_a_capture_of_the_sps100_may_start_within_a_plane(tmp_path):
    spikes = random_spikes(1000, 1000, planes=2)
    content = naive_sps100(spikes)
    (tmp_path / "a.dat").write_bytes(content[80_016:128_000] + content + content[:4000])

    file = open_spikes(tmp_path / "a.dat", SPS100)
    assert file.planes == 2 and np.array_equal(file.read(), spikes)
    assert np.array_equal(file.read(1, 1, Crop(7, 495, 2, 10)), spikes[1:, 7:9, 495:505])  # across the words
    for geometry in (SpikeGeometry(1000, 1024), SpikeGeometry(1000, 1000), SpikeGeometry(1000, 1000, head_columns=24)):
        with pytest.raises(SpikeFileError, match="words of an SPS100 sensor"):
            open_spikes(tmp_path / "a.dat", geometry, "truncate")


def array_file(values, **named):
    file = io.BytesIO()
    np.savez(file, **named) if named else np.save(file, values)
    return file.getvalue()


FLAT = random_spikes(8, 12)
NPZ = array_file(None, spk=FLAT)
REFUSED = {
    "array.dat": (array_file(FLAT), r"header of a NumPy array"),
    "zip.bin": (NPZ, r"header of a zip file"),
    "picture.dat": (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG picture"),
    "photo.dat": (cv2.imencode(".jpg", FLAT[0])[1].tobytes(), "a JPEG picture"),
    "compressed.dat": (gzip.compress(bytes(100)), "compressed with gzip"),
    "text.dat": (b"frame 0: 12 spikes, frame 1: 17 spikes, frame 2: 9 spikes, frame 3\n" * 4, "begins with text"),
    "pointer.dat": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "pointer of Git LFS"),
    "short.npy": (array_file(FLAT)[:-5], "mmap length"),
    "packed.npy": (bytes(480), "magic string"),
    "empty.npy": (b"", "0 bytes"),
    "grey.npy": (array_file(FLAT * 255), "the value 255"),
    "float.npy": (array_file(FLAT.astype(np.float32)), r"shape \(5, 8, 12\), float32"),
    "order.npy": (array_file(FLAT.transpose(1, 2, 0)), r"shape \(8, 12, 5\)"),
    "objects.npy": (array_file(np.array([{}], object)), "Python objects"),
    "short.npz": (NPZ[: len(NPZ) // 2], "not a zip file"),
    "two.npz": (array_file(None, a=FLAT, b=FLAT), r"a \(5, 8, 12\) uint8, b \(5, 8, 12\) uint8"),
    "flat.npz": (array_file(None, spk=FLAT[0]), r"shape \(8, 12\)"),
    "flipped.npz": (NPZ.replace(FLAT.tobytes(), FLAT[:, ::-1].tobytes()), "CRC"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_spike_file_is_refused_with_what_was_seen(tmp_path, name):
    content, words = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpikeFileError, match=words) as error:
        read_spikes(tmp_path / name, SpikeGeometry(8, 12))
    assert name in str(error.value) and error.value.expected and error.value.do


@pytest.mark.parametrize("begin", [b"\xff\xd8\xff", b"\xff\xd8\xff\xdb\xff\xfe", b"\x1f\x8b\x08", b"\x1f\x8b\x08\xff"])
def test_planes_of_a_bright_scene_may_begin_as_a_picture_does(tmp_path, begin):
    (tmp_path / "a.dat").write_bytes(begin.ljust(24, b"\xf7"))
    assert read_spikes(tmp_path / "a.dat", SpikeGeometry(8, 12)).shape == (2, 8, 12)


def test_an_npz_is_known_by_its_key_or_its_only_array_of_three_axes(tmp_path):
    for number, named in enumerate((
        {"spk": FLAT.astype(bool), "label": np.zeros((3, 4, 5))}, {"data": FLAT, "label": np.arange(3)},
    )):  # fmt: skip
        (tmp_path / f"{number}.npz").write_bytes(array_file(None, **named))
        assert np.array_equal(read_spikes(tmp_path / f"{number}.npz", SpikeGeometry(8, 12), 1, 3), FLAT[1:4])
    with zipfile.ZipFile(tmp_path / "0.npz", "a") as archive:
        archive.writestr("readme.txt", "no array")
    assert count_planes(tmp_path / "0.npz", SpikeGeometry(8, 12)) == 5


def test_an_array_with_its_head_columns_loses_them(tmp_path):
    stored = random_spikes(250, 416, planes=2)
    np.save(tmp_path / "a.npy", stored)
    read = read_spikes(tmp_path / "a.npy", SpikeGeometry(250, 400, head_columns=16))
    assert np.array_equal(read, stored[:, :, :400])


# ---- clips of a data set -------------------------------------------------------------------------------------------


@pytest.fixture
def clips(tmp_path):
    for number in range(2):
        write_clip(tmp_path, f"seq/{number}", seed=number)
    write_info(tmp_path)
    return tmp_path


def spike_files(root, clip="0"):
    return sorted((root / "GOPRO_Large_spike_seq/train/seq" / clip / "spike").iterdir())


def as_format(root, suffix, geometry=None):
    """Every .dat of the data set in another format."""
    for clip in ("0", "1"):
        for path in spike_files(root, clip):
            spikes = read_spikes(path, SpikeGeometry(8, 12))
            path.unlink()
            write_spikes(path.with_suffix(suffix), spikes, geometry or SpikeGeometry(8, 12))


def check(root, **changes):
    """The exit code of scripts/doctor.py --data."""
    options = {"task": "x", "datasets": {"train": section(root, **changes)}, "netG": network()}
    (root / "opt.json").write_text(json.dumps(options | {"train": {"G_lossfn_type": "charbonnier"}}))
    return doctor.main(["--data", "--opt", str(root / "opt.json")])


def build(root, **changes):
    return build_dataset(section(root, **changes), "train", 0)


@pytest.mark.parametrize("suffix", [".bin", ".npy", ".npz"])
def test_samples_do_not_depend_on_the_format_nor_on_the_cache(clips, suffix):
    turns = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    expected = [build(clips, **turns)[1, i] for i in range(12)]
    as_format(clips, suffix, SpikeGeometry(8, 12, bit_order="big"))
    spike = section(clips)["spike"] | {"bit_order": "big"}
    build_cache(source_of(section(clips, spike=spike)), str(clips / "cache"))
    cache = {"type": "cache", "path": str(clips / "cache")}

    for dataset in (build(clips, spike=spike, **turns), build(clips, spike=spike, io_backend=cache, **turns)):
        for i, item in enumerate(expected):
            found = dataset[1, i]
            assert item["key"] == found["key"] and torch.equal(item["spike"], found["spike"])
    if suffix == ".bin":
        with pytest.raises(DataError, match="its spikes are"):
            build(clips, io_backend=cache)


def test_a_frame_without_its_file_and_a_file_of_another_kind_are_named_before_a_run(clips, capfd):
    as_format(clips, ".npy")
    spike_files(clips)[2].unlink()
    np.save(spike_files(clips, "1")[3], np.zeros((24, 8, 13), np.uint8))
    assert check(clips) == 3
    said = capfd.readouterr().err
    assert "seq/0 | spike lacks 1 of 6 frames: 000002.npy" in said
    assert "an array of shape (24, 8, 13), uint8" in said and "000003.npy" in said


def test_a_dat_that_is_text_is_found_by_the_check_of_the_data(clips, capfd):
    path = spike_files(clips)[4]
    path.write_bytes((b"no spikes, but 288 bytes of text; " * 9)[: path.stat().st_size])
    assert check(clips) == 3
    said = capfd.readouterr().err
    assert "begins with text: b'no spikes, but" in said and "000004.dat" in said


def test_a_users_arrays_need_no_size(clips):
    frames = clips / "GOPRO_Large/train/seq/0/blur"
    known = {"type": "dat", "center": "file", "rate": 1.0, "representation": "voxel"}
    dat = user_clips(frames, spike_files(clips)[0].parent, spike_options=known)[0]
    expected = [dat.frame(i)["spike"] for i in range(6)]
    whole = np.concatenate([read_spikes(path, SpikeGeometry(8, 12)) for path in spike_files(clips)])
    for name in ("all.npy", "all.npz"):
        write_spikes(clips / name, whole, SpikeGeometry(8, 12))
        clip = user_clips(frames, clips / name, spike_options=known)[0]
        assert all(torch.equal(clip.frame(i)["spike"], expected[i]) for i in range(6))


# ---- scripts/spike_tool.py -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "203.dat"
    restore_dat("spikezoo_203_part1_planes_0_130-170", path)
    return path


def test_convert_goes_through_every_format_and_back_to_the_same_bytes(tmp_path, published):
    names = ("a.npz", "b.npy", "c.bin", "d.dat")
    read = {"c.bin": ("--out-bit-order", "big"), "d.dat": ("--size", 250, 400, "--bit-order", "big")}
    before, options = published, ("--size", 250, 400)
    for name in names:
        assert tool("convert", before, tmp_path / name, *options, *(read.get(name, ()) if name == "c.bin" else ())) == 0
        before, options = tmp_path / name, read["d.dat"] if name == "c.bin" else ()
    assert (tmp_path / "d.dat").read_bytes() == published.read_bytes()
    assert (tmp_path / "c.bin").read_bytes() != published.read_bytes()


def test_convert_takes_part_of_a_file_and_overwrites_nothing(tmp_path, published, capfd):
    head = SpikeGeometry(250, 400, flipud=False, head_columns=16)
    spikes = read_spikes(published, SpikeGeometry(250, 400))
    write_spikes(tmp_path / "a.dat", spikes, head)
    size = ("--size", 250, 400, "--head-columns", 16, "--no-flip")
    assert tool("convert", tmp_path / "a.dat", tmp_path / "b.npy", *size, "--first", 5, "--count", 7) == 0
    assert np.array_equal(np.load(tmp_path / "b.npy"), spikes[5:12])
    for arguments, words in (
        ((tmp_path / "a.dat", tmp_path / "b.npy", *size), "exists already"),
        ((tmp_path / "a.dat", tmp_path / "c.mat", *size), ".dat, .bin, .npy, .npz"),
        ((tmp_path / "a.dat", tmp_path / "c.npy", *size, "--first", 40, "--count", 3), "within 0 to 41"),
    ):
        assert tool("convert", *arguments) in (2, 3)
        assert words in capfd.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.dat", "b.npy"]


def test_info_judges_a_published_file_its_bit_order_and_what_speaks_against_the_others(tmp_path, published, capfd):
    spikes = read_spikes(published, SpikeGeometry(250, 400))[1:17]
    write_spikes(tmp_path / "big.bin", spikes, SpikeGeometry(250, 400, bit_order="big"))
    assert tool("info", tmp_path / "big.bin", "--size", 250, 400) == 0
    assert "bit order big: the most significant bit is the first pixel" in capfd.readouterr().out
    assert tool("info", published) == 0
    said = capfd.readouterr().out
    assert "250 x 400      42" in said and "bit order little" in said
    write_spikes(tmp_path / "a.npz", spikes, SpikeGeometry(250, 400))
    assert tool("info", tmp_path / "a.npz") == 0
    assert "an array (16, 250, 400)" in capfd.readouterr().out


def test_info_knows_an_sps100_and_says_why_other_sizes_are_wrong(tmp_path, capfd):
    rows = np.linspace(0.1, 0.7, 1000)[:, None]
    light = np.broadcast_to(rows, (1000, 1000))
    spikes = np.stack([np.floor((t + 1) * light) > np.floor(t * light) for t in range(2)]).astype(np.uint8)
    write_spikes(tmp_path / "a.dat", spikes, SPS100)
    assert tool("info", tmp_path / "a.dat") == 0
    said = capfd.readouterr().out
    assert "1000 x 1000 (SPS100)       2" in said and "1000 x 1024" not in said
    (tmp_path / "b.dat").write_text("time x y\n" * 40)
    assert tool("info", tmp_path / "b.dat") == 3
    assert "begins with text" in capfd.readouterr().err

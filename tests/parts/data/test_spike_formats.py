"""data/spike/formats.py: spike files of each format are read back, and other files are refused.

formats.py calls one module per format: packing.py, sps100.py, headers.py and others. A
`SpikeGeometry` says how a plane is stored:

    height, width    size of the picture
    flipud           whether the bottom row of the picture comes first
    bit_order        where the first pixel of a byte is: "little" in the lowest bit, "big" in the
                     highest bit
    head_columns     number of columns at the end of a row that are no part of the picture
    layout           "raster", or "sps100" for the lines of an SPS100 camera

The formats are .dat and .bin (packed bits), .npy and .npz (arrays), and the .dat of an SPS100
camera. The spikes of these tests are random planes of 0 and 1. Packed bits have no header, so any
bytes could be taken for spikes. Therefore a file of another kind must be refused, and the error
must name this kind.
"""

import gzip
import io
import os
import zipfile
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest

from data.spike.errors import SpikeFileError
from data.spike.formats import count_planes, open_spikes, read_spikes, write_spikes
from data.spike.geometry import Crop, SpikeGeometry
from tests.helpers.clip_files import (
    add_cache,
    build_clips,
    data_section,
    doctor_of_data,
    equal_samples,
    set_for_training,
    write_clips,
    write_png,
)
from tests.helpers.spike_files import bytes_of_sps100
from utils.errors import DataError

# A plane of 16 pixels, which are 2 bytes.
SMALL = SpikeGeometry(height=2, width=8)
# A plane of the clips of tests/helpers/clip_files.py: 96 pixels, which are 12 bytes.
OF_CLIPS = SpikeGeometry(height=8, width=12)
SPS100 = SpikeGeometry(height=1000, width=1000, flipud=False, layout="sps100")


def random_spikes(height, width, planes=5, seed=0):
    """Return random planes (planes, height, width) uint8."""
    return (np.random.default_rng(seed).random((planes, height, width)) < 0.3).astype(np.uint8)


# ---- What is written is read back ----

GEOMETRIES = {
    "camera.dat": SpikeGeometry(250, 400),
    "head.dat": SpikeGeometry(250, 400, head_columns=16),
    # A plane of 250 x 250 bits does not fill whole bytes.
    "array.npy": SpikeGeometry(250, 250),
    "array.npz": SpikeGeometry(250, 250),
    "raw.bin": SpikeGeometry(180, 320),
    "most_bit_first.bin": SpikeGeometry(180, 320, bit_order="big"),
    "top_first.bin": SpikeGeometry(12, 10, flipud=False),
    # In these files, rows begin within a byte. A row has 13 pixels, or 11 pixels and 4 head columns
    # (see test_head_columns_are_the_last_of_a_row).
    "rows_within_bytes.dat": SpikeGeometry(8, 13),
    "head_within_bytes.dat": SpikeGeometry(8, 11, head_columns=4),
}


@pytest.fixture(params=GEOMETRIES)
def written_file(request, tmp_path):
    """Give five planes, and their opened file, which was written in two parts."""
    geometry = GEOMETRIES[request.param]
    spikes = random_spikes(geometry.height, geometry.width)
    path = tmp_path / request.param
    write_spikes(path, iter((spikes[:2], spikes[2:])), geometry)
    assert count_planes(path, geometry) == 5
    return spikes, open_spikes(path, geometry)


def test_each_format_reads_back_what_was_written(written_file):
    spikes, file = written_file

    assert file.planes == 5
    assert np.array_equal(file.read(), spikes)
    assert file.read().dtype == np.uint8


def crops_of(height, width):
    """Return crops of a plane: its first pixel, its last pixels, some in the middle, all rows.

    For a plane of less than 20 columns, there are also crops with every left edge and every width,
    from two rows on. So crops begin and end at each bit of a byte.
    """
    crops = [
        Crop(top=0, left=0, height=1, width=1),
        Crop(top=height - 3, left=width - 3, height=3, width=3),
        Crop(top=2, left=width // 2 - 3, height=5, width=6),
        Crop(top=0, left=3, height=height, width=5),
    ]
    if width < 20:
        for top in (0, 5):
            for left in range(width):
                for crop_width in range(1, width - left + 1):
                    crops.append(Crop(top=top, left=left, height=3, width=crop_width))
    return crops


def test_each_format_reads_back_parts_of_what_was_written(written_file):
    spikes, file = written_file

    for crop in crops_of(*spikes.shape[1:]):
        part = file.read(first=3, count=2, crop=crop)

        rows = slice(crop.top, crop.top + crop.height)
        columns = slice(crop.left, crop.left + crop.width)
        assert np.array_equal(part, spikes[3:5, rows, columns])


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(5, 1, id="after the end"),
        pytest.param(4, 2, id="beyond the end"),
        pytest.param(0, 6, id="more than all"),
        pytest.param(-1, 2, id="before the start"),
        pytest.param(0, 0, id="none"),
    ],
)
def test_planes_that_are_not_there_are_refused(written_file, first, count):
    _, file = written_file

    with pytest.raises(SpikeFileError, match="were requested"):
        file.read(first, count)


def test_a_crop_beyond_the_plane_is_refused(written_file):
    spikes, file = written_file
    height, width = spikes.shape[1:]

    with pytest.raises(SpikeFileError, match="outside the plane"):
        file.read(crop=Crop(top=1, left=0, height=height, width=width))


# ---- Packed bits ----


@pytest.mark.parametrize(
    ("order", "weights"),
    [
        pytest.param("little", [1, 2, 4, 8, 16, 32, 64, 128], id="first pixel in the lowest bit"),
        pytest.param("big", [128, 64, 32, 16, 8, 4, 2, 1], id="first pixel in the highest bit"),
    ],
)
def test_packed_bytes_follow_the_definition(tmp_path, order, weights):
    spikes = random_spikes(6, 12, planes=2)

    write_spikes(tmp_path / "a.bin", spikes, SpikeGeometry(6, 12, bit_order=order))

    # A file of a spike camera has the bottom row first (flipud, the default). 12 pixels do not fill
    # whole bytes, and a row is not padded. So the first byte has 8 pixels of the bottom row. The
    # second byte has the last 4 pixels of this row and the first 4 pixels of the row above.
    bottom_row_first = spikes[:, ::-1]
    groups_of_8_pixels = bottom_row_first.reshape(-1, 8)  # (bytes, 8)
    expected = bytes((groups_of_8_pixels @ weights).tolist())
    assert (tmp_path / "a.bin").read_bytes() == expected


def test_planes_are_upside_down_if_they_are_read_with_the_top_row_first(tmp_path):
    spikes = random_spikes(6, 12, planes=2)
    write_spikes(tmp_path / "a.bin", spikes, SpikeGeometry(6, 12))

    found = read_spikes(tmp_path / "a.bin", SpikeGeometry(6, 12, flipud=False))

    assert np.array_equal(found, spikes[:, ::-1])


def test_the_wrong_order_of_bits_gives_plausible_planes_that_are_wrong(tmp_path):
    spikes = random_spikes(6, 12, planes=2)
    write_spikes(tmp_path / "a.bin", spikes, SpikeGeometry(6, 12, bit_order="big"))

    found = read_spikes(tmp_path / "a.bin", SpikeGeometry(6, 12))

    # The spikes of a byte change places, but their number stays. So nothing looks wrong.
    assert found.sum() == spikes.sum()
    assert not np.array_equal(found, spikes)


# Some cameras add columns to each row that are no part of the picture, and are not read. These
# columns are called head columns, although they are the last columns of a row.
@pytest.mark.parametrize("name", ["head.dat", "head.npy"])
def test_head_columns_are_the_last_of_a_row(tmp_path, name):
    spikes = random_spikes(6, 12, planes=2)
    write_spikes(tmp_path / name, spikes, SpikeGeometry(6, 12))

    # Read the 12 columns as 8 columns of the picture and 4 head columns.
    found = read_spikes(tmp_path / name, SpikeGeometry(6, 8, head_columns=4))

    assert np.array_equal(found, spikes[:, :, :8])


@pytest.fixture
def file_with_extra_byte(tmp_path):
    """Give two planes, and a file that holds these planes and one byte more."""
    spikes = random_spikes(2, 8, planes=2)
    path = tmp_path / "a.dat"
    write_spikes(path, spikes, SMALL)
    path.write_bytes(path.read_bytes() + b"\xff")
    return spikes, path


def test_a_ragged_end_is_not_read_if_truncation_is_asked_for(file_with_extra_byte):
    spikes, path = file_with_extra_byte

    found = read_spikes(path, SMALL, remainder="truncate")

    assert np.array_equal(found, spikes)


def test_a_ragged_end_is_not_counted_if_truncation_is_asked_for(file_with_extra_byte):
    _, path = file_with_extra_byte

    assert count_planes(path, SMALL, remainder="truncate") == 2


def test_a_file_of_less_than_a_plane_cannot_be_truncated(tmp_path):
    (tmp_path / "a.dat").write_bytes(b"\x01")

    with pytest.raises(SpikeFileError, match="holds no plane"):
        read_spikes(tmp_path / "a.dat", SMALL, remainder="truncate")


def test_planes_that_do_not_fill_bytes_cannot_be_packed(tmp_path):
    (tmp_path / "a.dat").write_bytes(b"\x01")

    with pytest.raises(SpikeFileError, match="3 x 5 pixels cannot be packed"):
        count_planes(tmp_path / "a.dat", SpikeGeometry(3, 5))


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        pytest.param(
            {}, "SpikeGeometry(height=2, width=8, flipud=True, head_columns=0)", id="usual"
        ),
        pytest.param(
            {"bit_order": "big"},
            "SpikeGeometry(height=2, width=8, flipud=True, head_columns=0, bit_order='big')",
            id="unusual",
        ),
    ],
)
def test_the_name_of_a_geometry_shows_new_fields_only_if_they_are_unusual(field, shown):
    # A resumed run compares this name with the name in its checkpoint. So a field that was added to
    # SpikeGeometry later may only change the names of geometries that use it.
    assert str(SpikeGeometry(2, 8, **field)) == shown


# ---- SPS100 cameras ----
#
# The camera reads a line of 1000 pixels as two half-lines of 500. Each half-line ends with a word
# of 12 bits, the number of the line. So a plane has 2000 half-lines of 500 + 12 = 512 bits.
BYTES_OF_HALF_LINE = 512 // 8
BYTES_OF_PLANE = 2000 * BYTES_OF_HALF_LINE


@pytest.fixture
def sps100(tmp_path):
    """Give two planes, and a capture of them that begins and ends within a plane."""
    spikes = random_spikes(1000, 1000, planes=2)
    content = bytes_of_sps100(spikes)
    first_plane = content[:BYTES_OF_PLANE]
    # The capture begins within a half-line, 16 bytes after the start of this half-line. The capture
    # also ends within a half-line.
    end_of_a_plane = first_plane[1250 * BYTES_OF_HALF_LINE + 16 :]
    begin_of_a_plane = first_plane[: 62 * BYTES_OF_HALF_LINE + 32]
    path = tmp_path / "a.dat"
    path.write_bytes(end_of_a_plane + content + begin_of_a_plane)
    return spikes, path


def test_a_capture_of_the_sps100_may_start_within_a_plane(sps100):
    spikes, path = sps100

    file = open_spikes(path, SPS100)

    assert file.planes == 2
    assert np.array_equal(file.read(), spikes)


def test_a_crop_of_the_sps100_may_lie_in_both_half_lines(sps100):
    spikes, path = sps100
    # Five columns on each side of column 500, where the second half-line begins. In the file, the
    # word of the first half-line lies between columns 499 and 500.
    crop = Crop(top=7, left=495, height=2, width=10)

    found = open_spikes(path, SPS100).read(first=1, count=1, crop=crop)

    assert np.array_equal(found, spikes[1:, 7:9, 495:505])


@pytest.mark.parametrize(
    "geometry",
    [
        SpikeGeometry(1000, 1024),
        SpikeGeometry(1000, 1000),
        SpikeGeometry(1000, 1000, head_columns=24),
    ],
    ids=["1024 columns", "1000 columns", "24 head columns"],
)
def test_a_capture_of_the_sps100_is_no_file_of_another_camera(sps100, geometry):
    _, path = sps100

    # "truncate" accepts bytes after the last whole plane. So the size of the file is no reason to
    # refuse it.
    with pytest.raises(SpikeFileError, match="words of an SPS100 sensor"):
        open_spikes(path, geometry, remainder="truncate")


def write_clip_of_sps100(root, spikes):
    """Write a clip of one frame. Return the section `datasets.train` that reads this clip."""
    scene = np.random.default_rng(0).integers(0, 255, (1000, 1000))
    for folder in ("blur", "sharp"):
        write_png(root / "GOPRO_Large/train/clip0" / folder / "000000.png", scene)
    path = root / "GOPRO_Large_spike_seq/train/clip0/spike/000000.dat"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes_of_sps100(spikes))

    options_of_camera = {"h": 1000, "w": 1000, "layout": "sps100", "rate": 1.0}
    spike = data_section(root)["spike"] | options_of_camera
    return data_section(root, spike=spike, num_frame=1, gt_size=1000)


def first_sample(values):
    """Return sample 0 of epoch 0. values: a section `datasets.train`."""
    dataset = set_for_training(values)
    return dataset[0, 0]


def test_samples_of_an_sps100_hold_its_spikes(tmp_path):
    spikes = random_spikes(1000, 1000, planes=2)

    sample = first_sample(write_clip_of_sps100(tmp_path, spikes))

    # The representation of these clips has two channels. Each channel is one of the two planes.
    assert np.array_equal(sample["spike"][0].numpy(), spikes)


def test_a_cache_of_an_sps100_gives_the_samples_of_its_files(tmp_path):
    values = write_clip_of_sps100(tmp_path, random_spikes(1000, 1000, planes=2))
    from_files = first_sample(values)

    from_cache = first_sample(add_cache(values, tmp_path / "cache"))

    assert equal_samples(from_cache, from_files)


# ---- Files of something else ----


def npy(values):
    """Return the bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def npz(**arrays):
    """Return the bytes of a .npz file with these arrays."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


SPIKES = random_spikes(8, 12)  # (5, 8, 12)
NPZ = npz(spk=SPIKES)


class RefusedFile(NamedTuple):
    """A file that is no spike file."""

    name: str
    content: bytes | None  # None: there is no file
    message: str  # a part of the error, as a regular expression
    geometry: SpikeGeometry = OF_CLIPS


REFUSED = [
    # The sizes of these files do not fit. E.g. a plane of 360 x 640 bits has 28,800 bytes, and 56
    # planes have 1,612,800 bytes. 1,625,300 bytes are no whole number of planes of any known size.
    RefusedFile("none.dat", None, "No such file"),
    RefusedFile(
        "none_fits.dat",
        bytes(1_625_300),
        "known geometries that fit this size: none",
        SpikeGeometry(360, 640),
    ),
    RefusedFile(
        "others.dat",
        bytes(1_612_800),
        r"360 x 640 \(56 planes\), .*180 x 320 \(224 planes\)",
        SpikeGeometry(250, 400),
    ),
    RefusedFile("empty.dat", b"", "holds no plane"),
    # A plane of 8 x 12 bits has 12 bytes.
    RefusedFile("ragged.dat", bytes(25), "25 bytes holds 2 planes of 8 x 12 and 1 byte more"),
    # The content of these files is of another kind.
    RefusedFile("zip.bin", NPZ, r"header of a zip file"),
    RefusedFile("array.dat", npy(SPIKES), r"header of a NumPy array"),
    RefusedFile("picture.dat", b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
    RefusedFile("photo.dat", cv2.imencode(".jpg", SPIKES[0])[1].tobytes(), "a JPEG image"),
    RefusedFile("compressed.dat", gzip.compress(bytes(100)), "compressed with gzip"),
    RefusedFile(
        "text.dat", b"frame 0: 12 spikes, frame 1: 17 spikes, frame 2\n" * 6, "begins with text"
    ),
    RefusedFile(
        "pointer.dat", b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"
    ),
    # These arrays are damaged, or hold something else.
    RefusedFile("short.npy", npy(SPIKES)[:-5], "cut short"),
    RefusedFile("packed.npy", bytes(480), "magic string"),
    RefusedFile("float.npy", npy(SPIKES.astype(np.float32)), "float32"),
    RefusedFile("empty.npy", b"", "got 0"),
    RefusedFile("grey.npy", npy(SPIKES * 255), "the value 255"),
    RefusedFile("order.npy", npy(SPIKES.transpose(1, 2, 0)), r"shape \(8, 12, 5\)"),
    RefusedFile("objects.npy", npy(np.array([{}], object)), "Python objects"),
    RefusedFile("short.npz", NPZ[: len(NPZ) // 2], "not a zip file"),
    RefusedFile("two.npz", npz(a=SPIKES, b=SPIKES), r"a \(5, 8, 12\) uint8, b \(5, 8, 12\) uint8"),
    RefusedFile("flat.npz", npz(spk=SPIKES[0]), r"shape \(8, 12\)"),
    # The numbers were changed, but not the checksum (CRC) of the file.
    RefusedFile("flipped.npz", NPZ.replace(SPIKES.tobytes(), SPIKES[:, ::-1].tobytes()), "CRC"),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_what_is_no_spike_file_is_refused_with_what_was_seen(tmp_path, refused):
    path = tmp_path / refused.name
    if refused.content is not None:
        path.write_bytes(refused.content)

    with pytest.raises(SpikeFileError, match=refused.message) as error:
        read_spikes(path, refused.geometry)

    assert refused.name in str(error.value)
    assert error.value.expected
    assert error.value.do
    # Only float.npy is an array of another type, so only its advice is to convert the type.
    advises_to_convert = "astype(numpy.uint8)" in error.value.do
    assert advises_to_convert == (refused.name == "float.npy")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        pytest.param(
            b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Thu Nov 26 10:00:00 2026",
            "HDF5",
            id="MATLAB 7.3",
        ),
        pytest.param(
            b"MATLAB 5.0 MAT-file, Platform: PCWIN64, Created on: Thu Nov 26 10:00:00 2026",
            "MATLAB",
            id="MATLAB 5.0",
        ),
        pytest.param(b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", "HDF5", id="HDF5"),
    ],
)
def test_a_file_of_matlab_is_said_to_be_one(tmp_path, head, kind):
    (tmp_path / "a.dat").write_bytes(head + bytes(1000))

    with pytest.raises(SpikeFileError, match=f"begins with the header of an? {kind}") as error:
        # With "truncate", the length of the file is no reason to refuse it.
        open_spikes(tmp_path / "a.dat", SpikeGeometry(8, 8), remainder="truncate")

    assert ".npy" in error.value.do


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"\xff\xd8\xff", id="as JPEG"),
        pytest.param(b"\xff\xd8\xff\xdb\xff\xfe", id="as JPEG, longer"),
        pytest.param(b"\x1f\x8b\x08", id="as gzip"),
        pytest.param(b"\x1f\x8b\x08\xff", id="as gzip, longer"),
    ],
)
def test_planes_of_a_bright_scene_may_begin_as_another_file_does(tmp_path, begin):
    # JPEG and gzip files begin with these bytes. The rest of their headers is missing, so the file
    # is read as spikes: two planes of 12 bytes. All other bytes are 0xf7, in which seven of eight
    # bits are 1. So seven of eight pixels fire, as in a bright scene.
    (tmp_path / "a.dat").write_bytes(begin.ljust(24, b"\xf7"))

    assert read_spikes(tmp_path / "a.dat", OF_CLIPS).shape == (2, 8, 12)


def test_planes_of_an_even_scene_may_consist_of_codes_of_letters(tmp_path):
    # A scene of one brightness repeats a few bytes, and here each byte is the code of a letter or
    # digit. The 24 bytes have only six different values. A text would have more, so the file is
    # read as spikes.
    (tmp_path / "a.dat").write_bytes(b"UUUUUU333333ABCDABCDABCD")

    assert read_spikes(tmp_path / "a.dat", OF_CLIPS).shape == (2, 8, 12)


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param(
            {"spk": SPIKES.astype(bool), "label": np.zeros((3, 4, 5))}, id="by its key spk"
        ),
        pytest.param({"data": SPIKES, "label": np.arange(3)}, id="by its only array of three axes"),
        pytest.param({"spk": np.asfortranarray(SPIKES)}, id="in the order of Fortran"),
    ],
)
def test_the_spikes_of_an_npz_are_known(tmp_path, arrays):
    (tmp_path / "a.npz").write_bytes(npz(**arrays))

    found = read_spikes(tmp_path / "a.npz", OF_CLIPS, first=1, count=3)
    assert np.array_equal(found, SPIKES[1:4])


def test_an_npz_may_hold_other_files(tmp_path):
    (tmp_path / "a.npz").write_bytes(NPZ)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "no array")

    assert count_planes(tmp_path / "a.npz", OF_CLIPS) == len(SPIKES)


# ---- Writing ----


def test_writing_again_replaces_the_file(tmp_path):
    write_spikes(tmp_path / "a.dat", random_spikes(2, 8, seed=1), SMALL)

    write_spikes(tmp_path / "a.dat", random_spikes(2, 8, seed=2), SMALL)

    assert np.array_equal(read_spikes(tmp_path / "a.dat", SMALL), random_spikes(2, 8, seed=2))
    assert os.listdir(tmp_path) == ["a.dat"]


def test_planes_of_another_size_leave_no_file(tmp_path):
    with pytest.raises(SpikeFileError, match="shape"):
        write_spikes(tmp_path / "b.dat", random_spikes(250, 400), SMALL)

    assert os.listdir(tmp_path) == []


def test_a_file_of_no_plane_is_not_written(tmp_path):
    with pytest.raises(SpikeFileError, match=r"shape \(0, 2, 8\)"):
        write_spikes(tmp_path / "a.dat", np.zeros((0, 2, 8), np.uint8), SMALL)

    assert os.listdir(tmp_path) == []


# ---- Clips of each format ----


@pytest.fixture
def clips(tmp_path):
    """Give the root folder of two clips."""
    return write_clips(tmp_path, "seq/0", "seq/1")


def spike_files(root, clip="0"):
    """Return the spike files of a clip in their order."""
    return sorted((root / "GOPRO_Large_spike_seq/train/seq" / clip / "spike").iterdir())


def convert(root, suffix):
    """Convert each .dat of the data set to another format. Packed bits get the other order, "big".

    suffix: the ending of the new files, e.g. ".npy".
    """
    for path in [*spike_files(root), *spike_files(root, "1")]:
        spikes = read_spikes(path, OF_CLIPS)
        path.unlink()
        write_spikes(path.with_suffix(suffix), spikes, SpikeGeometry(8, 12, bit_order="big"))


@pytest.mark.parametrize("is_cached", [False, True], ids=["files", "cache"])
@pytest.mark.parametrize("suffix", [".bin", ".npy", ".npz"])
def test_samples_do_not_depend_on_the_format(clips, suffix, is_cached):
    turns: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    of_dat = build_clips(clips, **turns)
    # Compare all samples of epoch 1: two clips of six frames have 12 samples.
    expected = [of_dat[1, index] for index in range(12)]
    convert(clips, suffix)
    spike = data_section(clips)["spike"] | {"bit_order": "big"}
    values = data_section(clips, spike=spike, **turns)
    if is_cached:
        values = add_cache(values, clips / "cache")

    dataset = set_for_training(values)

    for index, sample in enumerate(expected):
        assert equal_samples(dataset[1, index], sample)


def test_a_cache_of_another_order_of_bits_is_refused(clips):
    convert(clips, ".bin")
    spike = data_section(clips)["spike"] | {"bit_order": "big"}
    big = data_section(clips, spike=spike)
    cache = add_cache(big, clips / "cache")["io_backend"]

    # These options have the default order of bits, "little".
    with pytest.raises(DataError, match="its spikes are"):
        build_clips(clips, io_backend=cache)


def test_the_check_of_the_data_finds_no_problem_in_arrays(clips, capfd):
    convert(clips, ".npy")

    code = doctor_of_data(clips, "--decode", train=data_section(clips))

    assert code == 0
    output = capfd.readouterr().out
    assert "train: " in output
    assert "no problem found" in output


def test_a_frame_without_its_file_is_named_before_a_run(clips, capfd):
    convert(clips, ".npy")
    spike_files(clips)[2].unlink()

    code = doctor_of_data(clips, "--decode", train=data_section(clips))

    assert code == 3
    assert "seq/0 | spike lacks 1 of 6 frames: 000002.npy" in capfd.readouterr().err


def test_a_file_of_another_size_is_named_before_a_run(clips, capfd):
    convert(clips, ".npy")
    np.save(spike_files(clips, "1")[3], np.zeros((24, 8, 13), np.uint8))

    code = doctor_of_data(clips, "--decode", train=data_section(clips))

    assert code == 3
    errors = capfd.readouterr().err
    assert "an array of shape (24, 8, 13), uint8" in errors
    assert "000003.npy" in errors

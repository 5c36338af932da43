"""scripts/spike_tool.py: it describes, converts, simulates, shows and plays files of spikes.

The tests use two kinds of spikes:

    a scene     `write_scene` simulates spikes of a smooth picture that is darker at the bottom
    published   42 planes of 250 x 400 pixels of a published stream of a spike camera (simulated)

The exit codes of the tool are 0 for success, 2 for wrong arguments, and 3 for files that cannot be
used.
"""

import contextlib
import io
import subprocess
import sys
import tracemalloc

import cv2
import numpy as np
import pytest

from data.reconstruct import METHODS
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.represent import represent
from data.spike.simulate import IntegrateAndFire
from scripts.spike_tool import GREY_METHODS
from tests.dist.launching import ROOT, run_ranks
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import small_files, write_clips, write_info
from tests.helpers.spike_files import bytes_of_sps100, restore_dat, run_spike_tool
from utils.image import LABEL_HEIGHT as LABEL
from utils.image import imread_rgb
from utils.video.reader import VideoReader

# The planes of the published stream.
PLANE = SpikeGeometry(height=250, width=400)
SIZE = ("--size", 250, 400)
# Bytes of a plane of the published stream. A byte holds the bits of 8 pixels.
BYTES_OF_PLANE = 250 * 400 // 8
# The arguments for the size and the brightness of the published stream. The brightness is explained
# in tests/parts/data/test_published_streams.py.
STREAM_FLAGS = (*SIZE, "--rate", 0.6, "--light", "display")
# The exponent between the values of a picture and the light that it shows.
GAMMA = 2.2
# Pixels between two pictures that stand side by side.
GAP_PX = 2


# ---- The command line ----


@pytest.mark.parametrize(
    "words",
    [
        "info --size 0 400",
        "view --size 250 -4",
        "play --tick-hz nan",
        "play --tick-hz 0",
        "recon --rate nan",
        "recon --rate -1",
    ],
)
def test_a_size_or_a_rate_that_no_camera_has_is_refused(published_stream, tmp_path, capsys, words):
    command, *flags = words.split()
    out = [] if command == "info" else ["--out", tmp_path / "out.mp4"]

    with pytest.raises(SystemExit) as ended:
        run_spike_tool(command, published_stream, *flags, *out)

    assert ended.value.code == 2
    assert f"argument {flags[0]}: invalid" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- Files of spikes ----


@pytest.fixture(scope="module")
def published_stream(tmp_path_factory):
    """Give the path of the published stream: its planes 0 and 130 to 170. No test changes it."""
    path = tmp_path_factory.mktemp("published") / "203.dat"
    # Unpack the stream of tests/data/spike to `path`.
    restore_dat("spikezoo_203_part1_planes_0_130-170", path)
    return path


def smooth_light(h, w):
    """Return light (h, w) in [0, 1], smooth, darker at the bottom."""
    noise = np.random.default_rng(0).random((h, w)).astype(np.float32)
    clouds = cv2.GaussianBlur(noise, (0, 0), 4)
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    ramp = np.linspace(1, 0, h, dtype=np.float32)[:, None]
    return 0.5 * clouds + 0.5 * ramp


def write_scene(path, h, w, planes, geometry=None):
    """Write spikes of `smooth_light`: 0.5 spikes per plane where the scene is 1.

    geometry: layout of the file. None: the usual layout, with the bottom row first.
    """
    if geometry is None:
        geometry = SpikeGeometry(h, w)
    rng = np.random.default_rng(0)
    spikes = IntegrateAndFire(h, w, rate=0.5, rng=rng).run([smooth_light(h, w)] * planes)
    write_spikes(path, spikes, geometry)


def write_grey(path, values):
    """Write values (h, w) in [0, 1] as a grey picture: 1 becomes 255."""
    assert cv2.imwrite(str(path), np.rint(255 * values).astype(np.uint8))


def frames_of(path):
    """Return the frames (h, w) of a grey video."""
    video = VideoReader(path)
    return [video.read(number)[..., 0].astype(float) for number in range(video.num_frames)]


def expected_picture(path, method, plane, **options):
    """Return the picture (250, 400), 0 to 255, that a method computes from the published stream.

    plane: the plane whose picture is shown, as an index into the file.
    """
    spikes = read_spikes(path, PLANE)
    light = represent(method, spikes, plane, rate=0.6, light="display", gamma=GAMMA, **options)[0]
    return 255 * np.clip(light, 0, 1)


# ---- info: the size of a plane ----


def output_of_info(capsys, *arguments):
    """Run `spike_tool.py info`, and return its output."""
    assert run_spike_tool("info", *arguments) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def output_of_scene(tmp_path_factory):
    """Give the output of `info` for 128 planes of 180 x 320, without an argument for the size."""
    path = tmp_path_factory.mktemp("scene") / "a.dat"
    # 128 planes of 180 x 320 have as many bytes as 32 planes of 360 x 640, so both sizes fit.
    write_scene(path, h=180, w=320, planes=128)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert run_spike_tool("info", path) == 0
    return output.getvalue()


def test_info_lists_the_sizes_that_fit(output_of_scene):
    assert "360 x 640      32" in output_of_scene
    assert "180 x 320     128" in output_of_scene


def test_info_finds_the_size_that_gives_a_picture(output_of_scene):
    assert "most likely 180 x 320" in output_of_scene


def test_info_takes_the_size_from_dataset_json(tmp_path, capsys):
    write_clips(tmp_path, "clip0")
    path = tmp_path / "GOPRO_Large_spike_seq/train/clip0/spike/000000.dat"

    # `write_clips` writes files of 24 planes of 8 x 12.
    assert "8 x 12      24" in output_of_info(capsys, path)


def test_info_knows_the_format_of_a_camera_with_words_between_the_pixels(tmp_path, capsys):
    # The light rises from row to row, so that the picture of the right size can be recognised.
    light = np.broadcast_to(np.linspace(0.1, 0.7, 1000)[:, None], (1000, 1000))
    # After n planes a pixel has collected n times its light. It fires when the sum reaches the next
    # whole number.
    fired = [np.floor((plane + 1) * light) > np.floor(plane * light) for plane in range(2)]
    (tmp_path / "a.dat").write_bytes(bytes_of_sps100(np.stack(fired)))

    output = output_of_info(capsys, tmp_path / "a.dat")

    assert "1000 x 1000 (SPS100)       2" in output
    # A line of this camera has 1000 pixels and two words of 12 bits, so it has 1024 bits. But the
    # size of a plane is 1000 x 1000, and not 1000 x 1024.
    assert "1000 x 1024" not in output


@pytest.fixture
def output_of_unknown_camera(tmp_path, capsys):
    """Give the output of `info` for 56 planes of 125 x 200: the bytes of 14 planes of 250 x 400."""
    write_scene(tmp_path / "a.dat", h=125, w=200, planes=56)
    return output_of_info(capsys, tmp_path / "a.dat")


def test_info_derives_a_size_of_no_known_camera_from_the_length(output_of_unknown_camera):
    assert "125 x 200      56" in output_of_unknown_camera
    assert "250 x 400      14" in output_of_unknown_camera


def test_info_prefers_a_size_of_no_known_camera_that_gives_a_picture(output_of_unknown_camera):
    assert "most likely 125 x 200" in output_of_unknown_camera
    assert "most likely 250" not in output_of_unknown_camera
    assert "is the size of a camera" not in output_of_unknown_camera


def test_info_says_which_sizes_it_tried(output_of_unknown_camera):
    tried = "tried: the known cameras; heights and widths from 32 to 2048"
    assert tried in output_of_unknown_camera


def test_info_names_other_sizes_that_fit(output_of_unknown_camera):
    assert "fit too: " in output_of_unknown_camera
    # The file could have 70 planes of 100 x 200: 70 x 100 = 56 x 125.
    assert "100 x 200" in output_of_unknown_camera.partition("fit too: ")[2]


def test_info_takes_the_shape_of_a_plane_from_the_picture(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", h=120, w=200, planes=60)
    write_grey(tmp_path / "frame.png", smooth_light(h=240, w=400))

    output = output_of_info(capsys, tmp_path / "a.dat", "--picture", tmp_path / "frame.png")

    assert "most likely 120 x 200" in output
    assert "tried: the sizes of the shape of the picture, 240 x 400" in output
    # 25 planes of 200 x 288 have as many bytes, but not the shape of the picture.
    assert "200 x 288" not in output


def test_info_refuses_a_picture_whose_shape_fits_no_size(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", h=120, w=200, planes=60)
    write_grey(tmp_path / "upright.png", np.zeros((2000, 33)))

    assert run_spike_tool("info", tmp_path / "a.dat", "--picture", tmp_path / "upright.png") == 3

    message = capsys.readouterr().err
    assert "no size of the picture's shape fits 180000 bytes" in message
    assert "tried: the sizes of the shape of the picture, 2000 x 33" in message


def test_info_names_no_size_if_two_are_as_good(tmp_path, capsys):
    # 100 planes of 64 x 64 have as many bytes as 200 planes of 32 x 64.
    write_scene(tmp_path / "two.dat", h=64, w=64, planes=100)

    output = output_of_info(capsys, tmp_path / "two.dat")

    assert "the size is not clear: it may be 64 x 64 or 32 x 64" in output
    assert "most likely" not in output
    assert "--picture FRAME for its shape" in output


def test_info_names_no_size_if_none_gives_a_picture(tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 256, 4 * BYTES_OF_PLANE, np.uint8)
    (tmp_path / "noise.dat").write_bytes(noise.tobytes())

    output = output_of_info(capsys, tmp_path / "noise.dat")

    assert "the size is not clear: none of them gives an image without doubt" in output
    assert "most likely" not in output
    assert "bit order" not in output


# Each case has the content of a file, additional arguments, and a part of the error.
NO_SPIKES = [
    pytest.param(b"12345", (), "no known geometry fits 5 bytes", id="few bytes"),
    pytest.param(b"", (), "the file is empty", id="empty"),
    pytest.param(
        b"\1" * (2 * BYTES_OF_PLANE + 7),
        (),
        "250 x 400: 2 planes, 7 bytes left over",
        id="two planes and 7 bytes",
    ),
    pytest.param(
        b"\1" * 5120,  # a plane of 64 x 64 has 64 x 64 / 8 = 512 bytes
        SIZE,
        "64 x 64 (10 planes)",
        id="planes of another size than is given",
    ),
    pytest.param(b"time x y\n" * 40, (), "begins with text", id="a table"),
]


@pytest.mark.parametrize(("content", "arguments", "words"), NO_SPIKES)
def test_info_refuses_a_file_without_spikes(tmp_path, capsys, content, arguments, words):
    (tmp_path / "a.dat").write_bytes(content)

    assert run_spike_tool("info", tmp_path / "a.dat", *arguments) == 3

    assert words in capsys.readouterr().err


def test_info_refuses_a_missing_file(tmp_path, capsys):
    assert run_spike_tool("info", tmp_path / "a.dat") == 3

    assert "No such file" in capsys.readouterr().err


def test_info_refuses_an_array_of_one_dimension(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.zeros(50, np.uint8))

    assert run_spike_tool("info", tmp_path / "a.npy") == 3

    assert "expected  (planes, h, w)" in capsys.readouterr().err


def test_info_refuses_a_folder(tmp_path, capsys):
    assert run_spike_tool("info", tmp_path) == 3

    assert "a folder" in capsys.readouterr().err


# ---- info: the order of axes and bits, and the light ----


def consecutive(published):
    """Return 16 planes (16, 250, 400) of the published stream that follow one another in time.

    The file has the planes 0, 130, 131, ..., 170 of the stream, at the indices 0, 1, 2, ..., 41. So
    the indices 1 to 16 are the planes 130 to 145.
    """
    return read_spikes(published, PLANE)[1:17]


def test_info_finds_the_bit_order(tmp_path, published_stream, capsys):
    big = SpikeGeometry(height=250, width=400, bit_order="big")
    write_spikes(tmp_path / "big.bin", consecutive(published_stream), big)

    output = output_of_info(capsys, tmp_path / "big.bin", *SIZE)

    assert "bit order big: the most significant bit is the first pixel" in output


def test_info_describes_a_published_file(published_stream, capsys):
    output = output_of_info(capsys, published_stream)

    # The output has a table. This row has the size of a plane, and the number of planes.
    assert "250 x 400      42" in output
    assert "bit order little" in output


def test_info_describes_an_array(tmp_path, published_stream, capsys):
    write_spikes(tmp_path / "a.npz", consecutive(published_stream), PLANE)

    assert "an array (16, 250, 400)" in output_of_info(capsys, tmp_path / "a.npz")


@pytest.mark.parametrize("command", ["info", "convert"])
def test_an_array_with_its_planes_last_is_named(tmp_path, capsys, command):
    fired = np.random.default_rng(0).random((250, 400, 10)) < 0.3
    np.save(tmp_path / "turned.npy", fired.astype(np.uint8))
    output = [tmp_path / "turned.dat"] if command == "convert" else []

    assert run_spike_tool(command, tmp_path / "turned.npy", *output) == 0

    message = capsys.readouterr().out
    assert "(h, w, planes), but (planes, h, w) is expected" in message
    # The message must not ask about flipped rows, because an array has no rows that are stored from
    # the bottom.
    assert "rows are flipped" not in message


@pytest.mark.parametrize("light", ["linear", "display"])
def test_info_tells_which_light_the_spikes_integrate(tmp_path, capsys, light):
    # Both cases have the same spikes, which integrate the values of `smooth_light` at rate 0.5.
    # Only a picture of the same scene can tell whether these values are light or display values. So
    # the two cases have different pictures.
    write_scene(tmp_path / "a.dat", h=64, w=64, planes=100)
    integrated = smooth_light(h=64, w=64)
    if light == "display":
        # The values of `smooth_light` are display values, and a picture has display values, too.
        values = integrated
    else:
        # The values of `smooth_light` are light. A picture shows light as light ** (1 / GAMMA).
        values = integrated ** (1 / GAMMA)
    # As with a real pair of cameras, a frame has more pixels than a plane: twice as many rows and
    # columns.
    frame = values.repeat(2, axis=0).repeat(2, axis=1)
    write_grey(tmp_path / "a.png", frame)

    output = output_of_info(
        capsys, tmp_path / "a.dat", "--size", 64, 64, "--picture", tmp_path / "a.png"
    )

    assert f'"light": "{light}", "rate": 0.5' in output


def test_info_says_that_a_flat_picture_does_not_show_the_light(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", h=64, w=64, planes=100)
    write_grey(tmp_path / "flat.png", np.full((64, 64), 0.5))

    output = output_of_info(
        capsys, tmp_path / "a.dat", "--size", 64, 64, "--picture", tmp_path / "flat.png"
    )

    assert "does not show which light" in output


def test_info_proposes_no_light_by_the_picture_of_another_scene(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", h=64, w=64, planes=100)
    # This picture becomes darker to the right, but the scene becomes darker to the bottom.
    ramp = np.linspace(1, 0.2, 64, dtype=np.float32)[None]
    write_grey(tmp_path / "other.png", np.repeat(ramp, 64, axis=0))

    output = output_of_info(
        capsys, tmp_path / "a.dat", "--size", 64, 64, "--picture", tmp_path / "other.png"
    )

    assert '"light"' not in output
    assert "does not resemble the spikes" in output


@pytest.mark.parametrize("is_flipped", [False, True], ids=["inverted", "inverted and flipped"])
def test_info_says_that_bits_are_inverted(tmp_path, capsys, is_flipped):
    write_scene(tmp_path / "a.dat", h=64, w=64, planes=100)
    inverted = ~np.fromfile(tmp_path / "a.dat", np.uint8)
    inverted.tofile(tmp_path / "inverted.dat")
    values = smooth_light(h=64, w=64)
    write_grey(tmp_path / "a.png", values[::-1] if is_flipped else values)

    output = output_of_info(
        capsys, tmp_path / "inverted.dat", "--size", 64, 64, "--picture", tmp_path / "a.png"
    )

    assert "the bits seem inverted" in output
    assert "~numpy.fromfile" in output
    assert ("rows seem upside down" in output) == is_flipped
    assert '"light"' not in output


# ---- convert ----


def test_convert_says_what_it_read_and_wrote(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", h=64, w=64, planes=10)
    files = (tmp_path / "a.dat", tmp_path / "b.bin")

    assert run_spike_tool("convert", *files, "--out-bit-order", "big") == 0

    # The output has exactly two lines, so there is no warning.
    read, written = capsys.readouterr().out.splitlines()
    assert "10 planes of 64 x 64, bottom row first" in read
    assert "no --size" in read
    assert "the most significant bit is the first pixel" in written


def test_convert_does_not_ask_for_a_size_that_is_given(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", h=64, w=64, planes=10)

    assert run_spike_tool("convert", tmp_path / "a.dat", tmp_path / "c.dat", "--size", 64, 64) == 0

    assert "no --size" not in capsys.readouterr().out


def test_convert_goes_through_every_format_and_back_to_the_same_bytes(tmp_path, published_stream):
    def convert(source, name, *options):
        assert run_spike_tool("convert", source, tmp_path / name, *options) == 0
        return tmp_path / name

    npz = convert(published_stream, "a.npz", *SIZE)
    npy = convert(npz, "b.npy")
    with_other_bits = convert(npy, "c.bin", "--out-bit-order", "big")
    dat = convert(with_other_bits, "d.dat", *SIZE, "--bit-order", "big")

    assert dat.read_bytes() == published_stream.read_bytes()
    assert with_other_bits.read_bytes() != published_stream.read_bytes()


@pytest.fixture
def with_head(tmp_path, published_stream):
    """Give the published spikes in a file with lines of 416 bits: 400 pixels, then 16 other bits.

    The other bits are called head columns, although they are at the end of a line.
    """
    head = SpikeGeometry(height=250, width=400, flipud=False, head_columns=16)
    write_spikes(tmp_path / "a.dat", read_spikes(published_stream, PLANE), head)
    return tmp_path / "a.dat"


# The arguments with which the file of `with_head` is read.
WITH_HEAD = (*SIZE, "--head-columns", 16, "--no-flip")


def test_convert_takes_some_planes_of_a_file(tmp_path, published_stream, with_head):
    some = ("--first", 5, "--count", 7)

    assert run_spike_tool("convert", with_head, tmp_path / "b.npy", *WITH_HEAD, *some) == 0

    assert np.array_equal(np.load(tmp_path / "b.npy"), read_spikes(published_stream, PLANE)[5:12])


# Each case has the name of the output, additional arguments, a part of the error, and the exit
# code.
WRONG_OUTPUTS = [
    ("there.npy", (), "exists already", 2),
    ("c.mat", (), ".dat, .bin, .npy, .npz", 2),
    # The file has 42 planes, so there is no plane 42.
    ("c.npy", ("--first", 40, "--count", 3), "within 0 to 41", 3),
    ("none/c.npy", (), "cannot read or write: No such file or directory", 3),
    # The file would be larger than the 1000 bytes that the process may write.
    ("c.npy", (), "cannot read or write: File too large", 3),
]


@pytest.mark.parametrize(("output", "arguments", "words", "code"), WRONG_OUTPUTS)
def test_a_refused_convert_leaves_no_file(
    tmp_path, with_head, capsys, output, arguments, words, code
):
    (tmp_path / "there.npy").write_bytes(b"of the user")

    # `small_files` lets no file of this process grow beyond the limit.
    with small_files(limit=1000):
        found = run_spike_tool("convert", with_head, tmp_path / output, *WITH_HEAD, *arguments)

    assert found == code
    assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.dat", "there.npy"]
    assert (tmp_path / "there.npy").read_bytes() == b"of the user"


def test_a_full_disk_names_the_output(tmp_path, with_head, capsys):
    output = tmp_path / "c.npy"

    with small_files(limit=1000):
        run_spike_tool("convert", with_head, output, *WITH_HEAD)

    assert f"in        {output}\n" in capsys.readouterr().err


# ---- simulate ----


def test_simulated_spikes_give_the_picture_back(tmp_path):
    write_grey(tmp_path / "a.png", smooth_light(h=32, w=48) ** (1 / GAMMA))
    options = ("--planes-per-frame", 200, "--ratio", 2, "--rate", 0.8)

    assert run_spike_tool("simulate", tmp_path / "a.png", tmp_path / "a.dat", *options) == 0

    light = read_spikes(tmp_path / "a.dat", SpikeGeometry(height=16, width=24)).mean(axis=0) / 0.8
    light_of_picture = cv2.resize(smooth_light(h=32, w=48), (24, 16), interpolation=cv2.INTER_AREA)
    # With 200 planes, the error of the rate is at most 1 / 200. The light is the rate divided by
    # 0.8, so its error is at most 1 / 200 / 0.8 = 0.006. The rest of the error is the rounding of
    # the picture.
    assert np.abs(light - light_of_picture).max() < 0.02


@pytest.mark.parametrize(
    ("flag", "value", "code", "words"),
    [
        ("--rate", 1.5, 2, "above 0, at most 1"),
        # A side of 20 pixels has 20 / 4 = 5 spike pixels. A plane of 5 x 5 pixels has 25 bits,
        # which do not fill whole bytes.
        ("--ratio", 4, 3, "do not fill whole bytes"),
    ],
)
def test_simulate_refuses_a_wrong_value(tmp_path, capsys, flag, value, code, words):
    write_grey(tmp_path / "small.png", np.zeros((20, 20)))
    files = (tmp_path / "small.png", tmp_path / "b.dat")

    assert run_spike_tool("simulate", *files, flag, value) == code

    assert words in capsys.readouterr().err


def peak_memory(*arguments):
    """Run the tool, and return the largest number of bytes that Python had allocated."""
    tracemalloc.start()
    assert run_spike_tool(*arguments) == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_a_long_stream_is_never_whole_in_memory(tmp_path):
    write_grey(tmp_path / "a.png", np.full((256, 256), 0.35))
    stream = tmp_path / "a.dat"
    video = tmp_path / "a.mp4"
    # In memory, a pixel of a plane takes one byte.
    whole = 1000 * 256 * 256

    simulating = peak_memory("simulate", tmp_path / "a.png", stream, "--planes-per-frame", 1000)
    playing = peak_memory("play", stream, "--size", 256, 256, "--out", video, "--step", 250)

    assert simulating < whole / 2
    assert playing < whole / 2
    # The outputs are complete. In the file, 8 pixels take one byte. The video shows every 250th of
    # the 1000 planes, which are 4 planes.
    assert stream.stat().st_size == whole // 8
    assert len(frames_of(video)) == 4


# ---- view ----


@pytest.fixture(params=[True, False], ids=["bottom row first", "top row first"])
def clip_of_scene(request, tmp_path):
    """Give a spike file of `smooth_light` whose dataset.json tells the order of its rows."""
    folder = tmp_path / "GOPRO_Large_spike_seq" / "train" / "clip0" / "spike"
    folder.mkdir(parents=True)
    geometry = SpikeGeometry(height=64, width=64, flipud=request.param)
    write_scene(folder / "a.dat", h=64, w=64, planes=40, geometry=geometry)
    write_info(tmp_path, h=64, w=64, flip=request.param)
    return folder / "a.dat"


def test_view_shows_the_picture_as_dataset_json_says_beside_the_flipped_one(
    tmp_path, clip_of_scene
):
    assert run_spike_tool("view", clip_of_scene, "--out", tmp_path / "a.png") == 0

    image = read_picture(tmp_path / "a.png", cv2.IMREAD_GRAYSCALE)[LABEL:].astype(float)
    # Pictures of 64 pixels are shown 320 pixels wide.
    left = image[:, :320]
    right = image[:, -320:]
    # The scene is darker at the bottom. The factor 1.3 was chosen by hand.
    assert left[:100].mean() > 1.3 * left[-100:].mean()
    assert np.array_equal(left, right[::-1])


def test_view_refuses_to_write_a_video(tmp_path, clip_of_scene, capsys):
    assert run_spike_tool("view", clip_of_scene, "--out", tmp_path / "a.mp4") == 3

    assert "cannot write a .mp4 image" in capsys.readouterr().err


# ---- play ----


@pytest.fixture(scope="module")
def played_video(published_stream, tmp_path_factory):
    """Give a video of the planes 2, 5, 8 and 11, each beside its reconstruction."""
    out = tmp_path_factory.mktemp("played") / "a.mp4"
    flags = ("--first", 2, "--count", 11, "--step", 3, "--tick-hz", 20000, "--out", out)
    # `method.half_window=9` must come last.
    method = ("--method", "tfi", "method.half_window=9")
    assert run_spike_tool("play", published_stream, *STREAM_FLAGS, *flags, *method) == 0
    return frames_of(out)


# The number of a frame of `played_video`, and the plane that it shows.
FRAMES = [(0, 2), (1, 5), (2, 8), (3, 11)]


def test_play_prints_the_planes_and_the_speed(published_stream, tmp_path, capsys):
    flags = ("--first", 2, "--count", 11, "--step", 3, "--tick-hz", 20000)
    out = ("--out", tmp_path / "a.mp4")

    assert run_spike_tool("play", published_stream, *STREAM_FLAGS, *flags, *out) == 0

    output = capsys.readouterr().out
    assert "4 video frames of 250 x 400, planes 2 to 11, 3 planes per video frame" in output
    # The camera takes 20,000 planes per second. A second of the video covers 25 frames x 3 planes.
    # So the video is 20,000 / 75 = 266.7 times slower than the scene.
    assert "266.7 x slower" in output


def test_play_makes_a_frame_of_every_third_plane(played_video):
    assert len(played_video) == 4
    assert played_video[0].shape == (LABEL + 250, 400 + GAP_PX + 400)


@pytest.mark.parametrize(("number", "plane"), FRAMES)
def test_the_left_half_of_a_video_is_white_where_a_pixel_fired(
    published_stream, played_video, number, plane
):
    spikes = read_spikes(published_stream, PLANE)[plane]

    dots = played_video[number][LABEL:, :400]

    # The compression of the video changes values slightly. The limit is larger than in the next
    # test, because sharp dots change more than smooth pictures. Another plane would differ by far
    # more.
    assert np.abs(dots - 255 * spikes).mean() < 6


@pytest.mark.parametrize(("number", "plane"), FRAMES)
def test_the_right_half_of_a_video_is_the_reconstruction(
    published_stream, played_video, number, plane
):
    picture = played_video[number][LABEL:, 400 + GAP_PX :]

    expected = expected_picture(published_stream, "tfi", plane, half_window=9)
    # Compression changes smooth pictures by 1.4 to 1.6 grey levels on average. The limit is twice
    # this change.
    assert np.abs(picture - expected).mean() < 3


def test_each_frame_of_a_video_has_the_number_of_its_plane(played_video):
    for frame in played_video:
        # The number is written in white digits.
        assert frame[:LABEL].max() > 200

    assert not np.array_equal(played_video[0][:LABEL], played_video[1][:LABEL])


# tfi needs a spike after the plane that it shows. The last plane, 41, has no plane after it.
@pytest.mark.parametrize(
    ("method", "count"),
    [
        pytest.param("tfi", 2, id="tfi shows planes 39 and 40"),
        pytest.param("tfp", 3, id="tfp shows planes 39 to 41"),
    ],
)
def test_play_ends_with_the_last_plane_of_the_method(published_stream, tmp_path, method, count):
    out = tmp_path / "end.mp4"
    flags = ("--first", 39, "--out", out, "--method", method)

    assert run_spike_tool("play", published_stream, *STREAM_FLAGS, *flags) == 0

    assert len(frames_of(out)) == count


# ---- recon ----


def test_recon_has_each_method_that_needs_no_frame():
    grey = tuple(name for name, formula in METHODS.items() if formula.is_grey)

    assert grey == GREY_METHODS


@pytest.mark.parametrize("method", GREY_METHODS)
def test_recon_is_the_registered_representation(published_stream, tmp_path, method):
    out = tmp_path / "a.png"
    flags = ("--method", method, "--planes", 21, "--out", out)

    assert run_spike_tool("recon", published_stream, *STREAM_FLAGS, *flags) == 0

    picture = imread_rgb(out)
    assert picture.shape == (250, 400, 3)
    # Rounding to whole values changes a value by at most 0.5. 0.01 is added for the error of
    # float32.
    expected = expected_picture(published_stream, method, plane=21)
    assert np.abs(picture[..., 0] - expected).max() <= 0.51


@pytest.fixture(scope="module")
def folder_of_pictures(published_stream, tmp_path_factory):
    """Give a folder with pictures of the planes 0, 15 and 30: as files, as a strip, as a video."""
    folder = tmp_path_factory.mktemp("reconstructed")
    for out in ("folder", "a.png", "a.mp4"):
        arguments = ("--planes", 30, 0, 15, "--out", folder / out)
        assert run_spike_tool("recon", published_stream, *STREAM_FLAGS, *arguments) == 0
    return folder


NAMES = ["000000.png", "000015.png", "000030.png"]


def test_recon_writes_nothing_but_its_outputs(folder_of_pictures):
    outputs = sorted(path.name for path in folder_of_pictures.iterdir())
    pictures = sorted(path.name for path in (folder_of_pictures / "folder").iterdir())

    assert outputs == ["a.mp4", "a.png", "folder"]
    assert pictures == NAMES


def test_recon_writes_a_folder_with_a_picture_of_each_plane(published_stream, folder_of_pictures):
    picture = imread_rgb(folder_of_pictures / "folder/000015.png")

    expected = expected_picture(published_stream, "tfp", plane=15)
    # Rounding to whole values changes a value by at most 0.5. 0.01 is added for the error of
    # float32.
    assert np.abs(picture[..., 0] - expected).max() <= 0.51


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES)))
def test_recon_writes_a_strip_of_the_planes(folder_of_pictures, number, name):
    strip = imread_rgb(folder_of_pictures / "a.png")[LABEL:]

    picture = imread_rgb(folder_of_pictures / "folder" / name)
    left = number * (400 + GAP_PX)  # the first column of the picture in the strip
    assert np.array_equal(strip[:, left : left + 400], picture)


def test_recon_writes_a_video_of_the_planes(folder_of_pictures):
    frames = frames_of(folder_of_pictures / "a.mp4")

    last = imread_rgb(folder_of_pictures / "folder/000030.png")[..., 0]
    assert len(frames) == 3
    # Compression changes smooth pictures by about 1.5 grey levels on average.
    assert np.abs(frames[2][LABEL:] - last).mean() < 2


# ---- Arguments and outputs of all commands ----

# Each case has a command, its arguments, the name of the output, and a part of the error. The file
# has the planes 0 to 41. tfi also needs a spike after its plane, so it cannot show the last plane.
WRONG_ARGUMENTS = [
    ("recon", ("--planes", 50, 3, 42, -1), "a.png", "no tfp at plane -1, 42, 50"),
    ("recon", ("--method", "tfi", "--planes", 41), "a.png", "no tfi at plane 41"),
    ("recon", ("--planes", 1), "a.txt", "the suffix of the output is '.txt'"),
    ("play", (), "a.png", "use spike_tool.py recon for images"),
    ("play", ("--first", 42), "a.mp4", "planes within 0 to 41"),
    ("play", ("method.half_windw=3",), "a.mp4", "the nearest is half_window"),
]


@pytest.mark.parametrize(("command", "arguments", "output", "words"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_named_before_anything_is_written(
    published_stream, tmp_path, capsys, command, arguments, output, words
):
    out = ("--out", tmp_path / output)

    # --out comes before the other arguments, because `method.half_windw=3` must come last.
    assert run_spike_tool(command, published_stream, *STREAM_FLAGS, *out, *arguments) == 2

    message = capsys.readouterr().err
    assert words in message, message
    assert list(tmp_path.iterdir()) == []


COMMANDS = [("play", ("--count", "2")), ("view", ()), ("recon", ())]


def test_nothing_is_written_into_the_repository_by_default(published_stream, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    before = sorted(ROOT.iterdir())

    for command, arguments in COMMANDS:
        call = ("scripts/spike_tool.py", command, published_stream, *STREAM_FLAGS, *arguments)
        # The program runs in the repository.
        result = run_ranks(1, *map(str, call), env={"TMPDIR": str(folder)})
        assert result.exit_codes == [0], result.text
        (written,) = folder.glob(f"*/{published_stream.stem}_{command}.*")
        assert str(written) in result.text

    assert sorted(ROOT.iterdir()) == before


@pytest.fixture
def default_outputs(published_stream, tmp_path, monkeypatch):
    """Run all commands without --out in an empty folder, and give this folder."""
    monkeypatch.chdir(tmp_path)
    for command, arguments in COMMANDS:
        assert run_spike_tool(command, published_stream, *STREAM_FLAGS, *arguments) == 0
    return tmp_path


def test_outputs_have_names_by_default(published_stream, default_outputs):
    written = {path.name for path in default_outputs.iterdir()}

    name = published_stream.stem
    assert written >= {f"{name}_view.png", f"{name}_recon.png", f"{name}_play.mp4"}


@pytest.mark.usefixtures("default_outputs")
def test_an_output_with_a_default_name_is_not_overwritten(published_stream, capsys):
    assert run_spike_tool("view", published_stream, *STREAM_FLAGS) == 2

    assert "exists already" in capsys.readouterr().err


def test_programs_that_need_no_network_start_without_torch():
    names = "make_sample_data, prepare_gopro_spike, spike_tool"
    # Exits with 1 if one of the programs has imported torch, else with 0.
    code = f"import sys; from scripts import {names}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0

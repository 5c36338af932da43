"""scripts/spike_tool.py, on made scenes and on a published stream."""

import subprocess
import sys
import tracemalloc

import cv2
import numpy as np
import pytest

from data.reconstruct import METHODS
from data.spike.formats import SpikeGeometry, read_spikes, write_spikes
from data.spike.represent import represent
from data.spike.simulate import IntegrateAndFire
from scripts.spike_tool import GREY_METHODS
from tests.dist.launching import ROOT, run_ranks
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import small_files, write_clips, write_info
from tests.helpers.spike_files import restore_dat, sps100_bytes, tool
from utils.image import LABEL_HEIGHT as LABEL
from utils.image import imread_rgb
from utils.video import VideoReader

PLANE = SpikeGeometry(250, 400)
# See tests/parts/data/test_published_streams.py
CAMERA = (
    "--size",
    250,
    400,
    "--rate",
    0.6,
    "--light",
    "display",
)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """42 planes of a published stream, simulated: its planes 0 and 130 to 170."""
    path = tmp_path_factory.mktemp("published") / "203.dat"
    restore_dat("spikezoo_203_part1_planes_0_130-170", path)
    return path


def scene(h, w, seed=0):
    """(h, w) light in [0, 1], smooth, darker at the bottom."""
    clouds = cv2.GaussianBlur(
        np.random.default_rng(seed).random((h, w)).astype(np.float32), (0, 0), 4
    )
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    return 0.5 * clouds + 0.5 * np.linspace(1, 0, h, dtype=np.float32)[:, None]


def write_scene(path, h, w, planes, geometry=None):
    light = scene(h, w)
    spikes = IntegrateAndFire(h, w, rate=0.5, rng=np.random.default_rng(0)).run([light] * planes)
    write_spikes(path, spikes, geometry or SpikeGeometry(h, w))


def test_info_lists_what_fits_and_finds_the_picture_among_it(tmp_path, capsys):
    def info(path):
        assert tool("info", path) == 0
        return capsys.readouterr().out

    write_scene(tmp_path / "a.dat", 180, 320, 128)  # as many bytes as 32 planes of 360 x 640
    said = info(tmp_path / "a.dat")
    assert "360 x 640      32" in said and "180 x 320     128" in said
    assert "most likely 180 x 320" in said
    write_clips(tmp_path, "clip0")
    # dataset.json
    assert "8 x 12      24" in info(tmp_path / "GOPRO_Large_spike_seq/train/clip0/spike/000000.dat")
    light = np.broadcast_to(np.linspace(0.1, 0.7, 1000)[:, None], (1000, 1000))
    spikes = np.stack([np.floor((t + 1) * light) > np.floor(t * light) for t in range(2)])
    (tmp_path / "a.dat").write_bytes(sps100_bytes(spikes))
    said = info(tmp_path / "a.dat")
    assert "1000 x 1000 (SPS100)       2" in said and "1000 x 1024" not in said


def test_info_derives_a_size_that_no_known_camera_has_from_the_length_of_the_file(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", 125, 200, 56)  # as many bytes as 14 planes of 250 x 400

    assert tool("info", tmp_path / "a.dat") == 0

    said = capsys.readouterr().out
    assert "125 x 200      56" in said and "250 x 400      14" in said
    assert "most likely 125 x 200" in said and "most likely 250" not in said
    assert "tried: the known cameras; heights and widths from 32 to 2048" in said
    assert "fit too: " in said and "100 x 200" in said.partition("fit too: ")[2]
    assert "is the size of a camera" not in said


def test_info_takes_the_shape_from_the_picture(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", 120, 200, 60)
    frame = np.repeat(scene(240, 400)[..., None], 3, axis=2)
    cv2.imwrite(str(tmp_path / "frame.png"), (255 * frame).astype(np.uint8))
    cv2.imwrite(str(tmp_path / "upright.png"), np.zeros((2000, 33, 3), np.uint8))

    assert tool("info", tmp_path / "a.dat", "--picture", tmp_path / "frame.png") == 0
    said = capsys.readouterr().out
    assert "most likely 120 x 200" in said
    assert "tried: the sizes of the shape of the picture, 240 x 400" in said
    assert "200 x 288" not in said  # of another shape

    assert tool("info", tmp_path / "a.dat", "--picture", tmp_path / "upright.png") == 3
    said = capsys.readouterr().err
    assert "no size of the picture's shape fits 180000 bytes" in said
    assert "tried: the sizes of the shape of the picture, 2000 x 33" in said


def test_info_names_no_size_where_two_are_as_good_or_none_gives_an_image(tmp_path, capsys):
    write_scene(tmp_path / "two.dat", 64, 64, 100)
    assert tool("info", tmp_path / "two.dat") == 0
    said = capsys.readouterr().out
    assert "the size is not clear: it may be 64 x 64 or 32 x 64" in said
    assert "most likely" not in said and "--picture FRAME for its shape" in said

    noise = np.random.default_rng(0).integers(0, 256, 12500 * 4, np.uint8)
    (tmp_path / "noise.dat").write_bytes(noise.tobytes())
    assert tool("info", tmp_path / "noise.dat") == 0
    said = capsys.readouterr().out
    assert "the size is not clear: none of them gives an image without doubt" in said
    assert "most likely" not in said and "bit order" not in said


def test_info_of_what_is_no_spike_file_is_an_error(tmp_path, capsys):
    path = tmp_path / "a.dat"
    for content, options, words in (
        (None, (), "No such file"), (b"12345", (), "no known geometry fits 5 bytes"),
        (b"", (), "the file is empty"),
        (b"\1" * (2 * 12500 + 7), (), "250 x 400: 2 planes, 7 bytes left over"),
        (b"\1" * 5120, ("--size", 250, 400), "64 x 64 (10 planes)"),
        (b"time x y\n" * 40, (), "begins with text"),
    ):  # fmt: skip
        if content is not None:
            path.write_bytes(content)
        assert tool("info", path, *options) == 3
        assert words in capsys.readouterr().err
    np.save(tmp_path / "a.npy", np.zeros(50, np.uint8))
    for other, words in ((tmp_path / "a.npy", "expected  (planes, h, w)"), (tmp_path, "a folder")):
        assert tool("info", other) == 3 and words in capsys.readouterr().err


def test_arrays_of_another_order_are_named_and_convert_says_in_words_what_it_read_and_wrote(
    tmp_path, capsys
):
    np.save(
        tmp_path / "turned.npy",
        (np.random.default_rng(0).random((250, 400, 10)) < 0.3).astype(np.uint8),
    )
    for command in (("info",), ("convert", tmp_path / "turned.dat")):
        assert tool(command[0], tmp_path / "turned.npy", *command[1:]) == 0
        said = capsys.readouterr().out
        assert (
            "(h, w, planes), where (planes, h, w) is expected" in said
            and "rows are flipped" not in said
        )
    write_scene(tmp_path / "a.dat", 64, 64, 10)
    assert tool("convert", tmp_path / "a.dat", tmp_path / "b.bin", "--out-bit-order", "big") == 0
    read, *warnings, written = capsys.readouterr().out.splitlines()
    assert "10 planes of 64 x 64, bottom row first" in read and "no --size" in read and not warnings
    assert "the most significant bit is the first pixel" in written
    assert tool("convert", tmp_path / "a.dat", tmp_path / "c.dat", "--size", 64, 64) == 0
    assert "no --size" not in capsys.readouterr().out


@pytest.mark.parametrize("flip", [True, False])
def test_view_shows_the_image_upright_and_flipped_by_the_row_order_of_dataset_json(
    tmp_path, capsys, flip
):
    folder = tmp_path / "GOPRO_Large_spike_seq" / "train" / "clip0" / "spike"
    folder.mkdir(parents=True)
    write_scene(folder / "a.dat", 64, 64, 40, SpikeGeometry(64, 64, flipud=flip))
    write_info(tmp_path, h=64, w=64, flip=flip)
    assert tool("view", folder / "a.dat", "--out", tmp_path / "a.png") == 0
    image = read_picture(tmp_path / "a.png", cv2.IMREAD_GRAYSCALE)[LABEL:].astype(float)
    left, right = image[:, :320], image[:, -320:]
    assert left[:100].mean() > 1.3 * left[-100:].mean() and np.array_equal(left, right[::-1])
    assert tool("view", folder / "a.dat", "--out", tmp_path / "a.mp4") == 3
    assert "cannot write a .mp4 image" in capsys.readouterr().err


def test_programs_that_need_no_network_start_without_torch():
    names = "make_sample_data, prepare_gopro_spike, spike_tool"
    code = f"import sys; from scripts import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("light", ["linear", "display"])
def test_info_tells_which_light_the_spikes_integrate(tmp_path, capsys, light):
    write_scene(tmp_path / "a.dat", 64, 64, 100)  # integrates the values of `scene` at rate 0.5
    shown = scene(64, 64) if light == "display" else scene(64, 64) ** (1 / 2.2)
    cv2.imwrite(
        str(tmp_path / "a.png"), np.rint(255 * shown).astype(np.uint8).repeat(2, 0).repeat(2, 1)
    )
    assert tool("info", tmp_path / "a.dat", "--size", 64, 64, "--picture", tmp_path / "a.png") == 0
    assert f'"light": "{light}", "rate": 0.5' in capsys.readouterr().out
    cv2.imwrite(str(tmp_path / "b.png"), np.full((64, 64), 128, np.uint8))
    assert tool("info", tmp_path / "a.dat", "--size", 64, 64, "--picture", tmp_path / "b.png") == 0
    assert "does not show which light" in capsys.readouterr().out


def test_simulated_spikes_give_the_picture_back_and_planes_that_do_not_fill_bytes_are_refused(
    tmp_path, capsys
):
    picture = np.rint(255 * scene(32, 48) ** (1 / 2.2)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), cv2.cvtColor(picture, cv2.COLOR_GRAY2BGR))
    cv2.imwrite(str(tmp_path / "small.png"), np.zeros((20, 20, 3), np.uint8))
    options = ["--planes-per-frame", 200, "--ratio", 2, "--rate", 0.8]
    assert tool("simulate", tmp_path / "a.png", tmp_path / "a.dat", *options) == 0
    light = read_spikes(tmp_path / "a.dat", SpikeGeometry(16, 24)).mean(axis=0) / 0.8
    expected = cv2.resize(scene(32, 48), (24, 16), interpolation=cv2.INTER_AREA)
    assert np.abs(light - expected).max() < 0.02
    wrong = (("rate", 1.5, 2, "above 0, at most 1"), ("ratio", 4, 3, "do not fill whole bytes"))
    for flag, value, code, words in wrong:
        assert (
            tool("simulate", tmp_path / "small.png", tmp_path / "b.dat", f"--{flag}", value) == code
        )
        assert words in capsys.readouterr().err


def test_a_long_stream_is_made_and_played_in_parts(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((256, 256, 3), 90, np.uint8))
    stream, whole = tmp_path / "a.dat", 1000 * 256 * 256  # a byte for each spike
    for arguments in (
        ("simulate", tmp_path / "a.png", stream, "--planes-per-frame", 1000),
        ("play", stream, "--size", 256, 256, "--out", tmp_path / "a.mp4", "--step", 250),
    ):
        tracemalloc.start()
        assert tool(*arguments) == 0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < whole / 2
    assert stream.stat().st_size == whole // 8 and len(frames_of(tmp_path / "a.mp4")) == 4


def test_convert_goes_through_every_format_and_back_to_the_same_bytes(tmp_path, published):
    before, size = published, ("--size", 250, 400)
    for name, options in (
        ("a.npz", size), ("b.npy", ()), ("c.bin", ("--out-bit-order", "big")),
        ("d.dat", (*size, "--bit-order", "big")),
    ):  # fmt: skip
        assert tool("convert", before, tmp_path / name, *options) == 0
        before = tmp_path / name
    assert (tmp_path / "d.dat").read_bytes() == published.read_bytes()
    assert (tmp_path / "c.bin").read_bytes() != published.read_bytes()


def test_convert_takes_part_of_a_file_and_overwrites_nothing(tmp_path, published, capfd):
    head = SpikeGeometry(250, 400, flipud=False, head_columns=16)
    spikes = read_spikes(published, PLANE)
    write_spikes(tmp_path / "a.dat", spikes, head)
    size = ("--size", 250, 400, "--head-columns", 16, "--no-flip")
    assert (
        tool("convert", tmp_path / "a.dat", tmp_path / "b.npy", *size, "--first", 5, "--count", 7)
        == 0
    )
    assert np.array_equal(np.load(tmp_path / "b.npy"), spikes[5:12])
    for arguments, words in (
        ((tmp_path / "a.dat", tmp_path / "b.npy", *size), "exists already"),
        ((tmp_path / "a.dat", tmp_path / "c.mat", *size), ".dat, .bin, .npy, .npz"),
        (
            (tmp_path / "a.dat", tmp_path / "c.npy", *size, "--first", 40, "--count", 3),
            "within 0 to 41",
        ),
        (
            (tmp_path / "a.dat", tmp_path / "none/c.npy", *size),
            "cannot read or write: No such file or directory",
        ),
        ((tmp_path / "a.dat", tmp_path / "c.npy", *size), "cannot read or write: File too large"),
    ):
        with small_files(1000):
            assert tool("convert", *arguments) in (2, 3)
        assert words in capfd.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.dat", "b.npy"]


def test_info_judges_a_published_file_its_bit_order_and_what_speaks_against_the_others(
    tmp_path, published, capfd
):
    spikes = read_spikes(published, PLANE)[1:17]
    write_spikes(tmp_path / "big.bin", spikes, SpikeGeometry(250, 400, bit_order="big"))
    assert tool("info", tmp_path / "big.bin", "--size", 250, 400) == 0
    assert "bit order big: the most significant bit is the first pixel" in capfd.readouterr().out
    assert tool("info", published) == 0
    said = capfd.readouterr().out
    assert "250 x 400      42" in said and "bit order little" in said
    write_spikes(tmp_path / "a.npz", spikes, PLANE)
    assert tool("info", tmp_path / "a.npz") == 0
    assert "an array (16, 250, 400)" in capfd.readouterr().out


def expected(path, method, plane, **options):
    values = represent(
        method, read_spikes(path, PLANE), plane, rate=0.6, light="display", gamma=2.2, **options
    )[0]
    return 255 * np.clip(values, 0, 1)


def frames_of(path):
    video = VideoReader(path)
    return [video.read(i)[..., 0].astype(float) for i in range(video.num_frames)]


def test_play_shows_each_plane_beside_its_reconstruction(published, tmp_path, capfd):
    out = tmp_path / "a.mp4"
    how = ("--first", 2, "--count", 11, "--step", 3, "--tick-hz", 20000)
    assert (
        tool(
            "play",
            published,
            *CAMERA,
            *how,
            "--out",
            out,
            "--method",
            "tfi",
            "method.half_window=9",
        )
        == 0
    )
    said = capfd.readouterr().out
    assert (
        "4 video frames of 250 x 400, planes 2 to 11, 3 planes per video frame, 266.7 x slower"
        in said
    )
    frames, stream = frames_of(out), read_spikes(published, PLANE)
    assert len(frames) == 4 and frames[0].shape == (LABEL + 250, 802)
    for frame, plane in zip(frames, (2, 5, 8, 11), strict=True):
        dots, picture = frame[LABEL:, :400], frame[LABEL:, 402:]
        # White where a pixel fired, up to the video's loss
        assert np.abs(dots - 255 * stream[plane]).mean() < 6
        assert np.abs(picture - expected(published, "tfi", plane, half_window=9)).mean() < 3
        assert frame[:LABEL].max() > 200  # the number of the plane
    assert not np.array_equal(frames[0][:LABEL], frames[1][:LABEL])
    # Tfi ends with 39 and 40: nothing fires after plane 41
    for method, count in (
        ("tfi", 2),
        ("tfp", 3),
    ):
        end = tmp_path / f"{method}.mp4"
        assert (
            tool("play", published, *CAMERA, "--first", 39, "--out", end, "--method", method) == 0
        )
        assert len(frames_of(end)) == count


def test_recon_is_the_registered_representation_by_each_method_that_needs_no_frame(
    published, tmp_path
):
    assert tuple(name for name, formula in METHODS.items() if formula.is_grey) == GREY_METHODS
    for method in GREY_METHODS:
        out = tmp_path / f"{method}.png"
        assert (
            tool("recon", published, *CAMERA, "--method", method, "--planes", 21, "--out", out) == 0
        )
        picture = imread_rgb(out)
        assert picture.shape == (250, 400, 3)
        assert np.abs(picture[..., 0] - expected(published, method, 21)).max() <= 0.51


def test_recon_writes_a_folder_a_strip_or_a_video_of_several_planes(published, tmp_path):
    where = ("recon", published, *CAMERA, "--planes", 30, 0, 15)
    for out in ("folder", "a.png", "a.mp4"):
        assert tool(*where, "--out", tmp_path / out) == 0
    names = sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert names == ["000000.png", "000015.png", "000030.png"]
    single = [imread_rgb(tmp_path / "folder" / name) for name in names]
    assert np.abs(single[1][..., 0] - expected(published, "tfp", 15)).max() <= 0.51
    strip = imread_rgb(tmp_path / "a.png")[LABEL:]
    assert all(
        np.array_equal(strip[:, 402 * i : 402 * i + 400], picture)
        for i, picture in enumerate(single)
    )
    frames = frames_of(tmp_path / "a.mp4")
    assert len(frames) == 3 and np.abs(frames[2][LABEL:] - single[2][..., 0]).mean() < 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "a.png", "folder"]


def test_wrong_planes_suffixes_and_options_are_named(published, tmp_path, capfd):
    cases = {
        "no tfp at plane -1, 42, 50": (
            "recon",
            "--planes",
            50,
            3,
            42,
            -1,
            "--out",
            tmp_path / "a.png",
        ),
        "no tfi at plane 41": (
            "recon",
            "--method",
            "tfi",
            "--planes",
            41,
            "--out",
            tmp_path / "a.png",
        ),
        "the suffix of the output is '.txt'": ("recon", "--planes", 1, "--out", tmp_path / "a.txt"),
        "use spike_tool.py recon for images": ("play", "--out", tmp_path / "a.png"),
        "planes within 0 to 41": ("play", "--first", 42, "--out", tmp_path / "a.mp4"),
        "the nearest is half_window": ("play", "--out", tmp_path / "a.mp4", "method.half_windw=3"),
    }
    for words, (action, *arguments) in cases.items():
        assert tool(action, published, *CAMERA, *arguments) == 2
        said = capfd.readouterr().err
        assert words in said, said
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_into_the_repository_by_default(published, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    parts = {"play": ("--count", "2"), "view": (), "recon": ()}
    before = sorted(ROOT.iterdir())

    for action, part in parts.items():
        call = ("scripts/spike_tool.py", action, published, *map(str, CAMERA), *part)
        result = run_ranks(1, *map(str, call), env={"TMPDIR": str(folder)})  # from ROOT
        assert result.exit_codes == [0], result.text
        (written,) = folder.glob(f"*/{published.stem}_{action}.*")
        assert str(written) in result.text

    assert sorted(ROOT.iterdir()) == before


def test_outputs_have_names_by_default_and_recon_shows_the_middle(
    published, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    for action, *part in (("view",), ("recon",), ("play", "--count", 2)):
        assert tool(action, published, *CAMERA, *part) == 0
    written = {path.name for path in tmp_path.iterdir() if path != published}
    assert written >= {
        f"{published.stem}_view.png",
        f"{published.stem}_recon.png",
        f"{published.stem}_play.mp4",
    }
    assert tool("view", published, *CAMERA) == 2 and "exists already" in capfd.readouterr().err

import tracemalloc

import cv2
import numpy as np
import pytest

from data.spike.formats import read_spikes, write_spikes
from data.spike.simulate import IntegrateAndFire
from data.spike.stream import SpikeGeometry
from tests.clip_files import write_clip, write_info
from tests.spike_files import tool
from utils.image import LABEL_HEIGHT


def scene(h, w, seed=0):
    """(h, w) light in [0, 1], smooth, darker at the bottom."""
    clouds = cv2.GaussianBlur(np.random.default_rng(seed).random((h, w)).astype(np.float32), (0, 0), 4)
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    return 0.5 * clouds + 0.5 * np.linspace(1, 0, h, dtype=np.float32)[:, None]


def write_scene(path, h, w, planes, geometry=None):
    light = scene(h, w)
    spikes = IntegrateAndFire(h, w, rate=0.5, rng=np.random.default_rng(0)).run([light] * planes)
    write_spikes(path, spikes, geometry or SpikeGeometry(h, w))


def test_info_lists_what_fits_and_finds_the_picture_among_it(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", 180, 320, 128)  # as many bytes as 32 planes of 360 x 640
    assert tool("info", tmp_path / "a.dat") == 0
    said = capsys.readouterr().out
    assert "360 x 640      32" in said and "180 x 320     128" in said
    assert "most likely 180 x 320" in said


def test_info_takes_the_geometry_of_the_data_set(tmp_path, capsys):
    write_clip(tmp_path, "clip0")
    write_info(tmp_path)
    assert tool("info", tmp_path / "GOPRO_Large_spike_seq/train/clip0/spike/000000.dat") == 0
    assert "8 x 12      24" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"12345", "no known geometry fits 5 bytes"),
        (b"", "the file is empty"),
        (b"\1" * (2 * 12500 + 7), "250 x 400: 2 planes, 7 bytes left over"),
        (None, "cannot read"),
    ],
)
def test_info_of_what_is_no_spike_file_is_an_error(tmp_path, capsys, content, words):
    if content is not None:
        (tmp_path / "a.dat").write_bytes(content)
    assert tool("info", tmp_path / "a.dat") == 3
    assert words in capsys.readouterr().err


def test_arrays_of_another_order_or_number_of_axes_are_named(tmp_path, capsys):
    np.save(tmp_path / "flat.npy", np.zeros(50, np.uint8))
    assert tool("info", tmp_path / "flat.npy") == 3
    error = capsys.readouterr().err
    assert "an array of shape (50,)" in error and "(planes, h, w)" in error
    np.save(tmp_path / "turned.npy", (np.random.default_rng(0).random((250, 400, 10)) < 0.3).astype(np.uint8))
    for command in (("info",), ("convert", tmp_path / "a.dat")):
        assert tool(command[0], tmp_path / "turned.npy", *command[1:]) == 0
        said = capsys.readouterr().out
        assert "(h, w, planes), where (planes, h, w) is expected" in said and "rows are flipped" not in said


def test_convert_says_in_words_what_it_read_and_wrote(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", 64, 64, 10)
    assert tool("convert", tmp_path / "a.dat", tmp_path / "b.bin", "--out-bit-order", "big") == 0
    read, *warnings, written = capsys.readouterr().out.splitlines()
    assert "10 planes of 64 x 64, bottom row first" in read and "no --size" in read and not warnings
    assert "the most significant bit is the first pixel" in written
    assert tool("convert", tmp_path / "a.dat", tmp_path / "c.dat", "--size", 64, 64) == 0
    assert "no --size" not in capsys.readouterr().out


def test_info_with_a_wrong_size_names_those_that_fit(tmp_path, capsys):
    write_scene(tmp_path / "a.dat", 64, 64, 10)
    assert tool("info", tmp_path / "a.dat", "--size", "250", "400") == 3
    assert "64 x 64 (10 planes)" in capsys.readouterr().err


def test_view_shows_the_picture_upright_and_flipped(tmp_path):
    write_scene(tmp_path / "a.dat", 64, 64, 40)
    assert tool("view", tmp_path / "a.dat", "--size", 64, 64, "--out", tmp_path / "a.png") == 0
    picture = cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_GRAYSCALE)[LABEL_HEIGHT:].astype(float)
    left, right = picture[:, :320], picture[:, -320:]
    assert left[:100].mean() > 1.3 * left[-100:].mean() and right[:100].mean() < right[-100:].mean() / 1.3


def test_the_row_order_of_dataset_json_is_honoured(tmp_path):
    folder = tmp_path / "GOPRO_Large_spike_seq" / "train" / "clip0" / "spike"
    folder.mkdir(parents=True)
    write_scene(folder / "a.dat", 64, 64, 40, SpikeGeometry(64, 64, flipud=False))
    write_info(tmp_path, h=64, w=64, flip=False)
    assert tool("view", folder / "a.dat", "--out", tmp_path / "a.png") == 0
    left = cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_GRAYSCALE)[LABEL_HEIGHT:, :320].astype(float)
    assert left[:100].mean() > 1.3 * left[-100:].mean()


@pytest.mark.parametrize("light", ["linear", "display"])
def test_info_tells_which_light_the_spikes_integrate(tmp_path, capsys, light):
    write_scene(tmp_path / "a.dat", 64, 64, 100)  # integrates the values of `scene` at rate 0.5
    shown = scene(64, 64) if light == "display" else scene(64, 64) ** (1 / 2.2)
    cv2.imwrite(str(tmp_path / "a.png"), np.rint(255 * shown).astype(np.uint8).repeat(2, 0).repeat(2, 1))
    assert tool("info", tmp_path / "a.dat", "--size", 64, 64, "--picture", tmp_path / "a.png") == 0
    assert f'"light": "{light}", "rate": 0.5' in capsys.readouterr().out
    cv2.imwrite(str(tmp_path / "b.png"), np.full((64, 64), 128, np.uint8))
    assert tool("info", tmp_path / "a.dat", "--size", 64, 64, "--picture", tmp_path / "b.png") == 0
    assert "does not show which light" in capsys.readouterr().out


def test_simulated_spikes_give_the_picture_back(tmp_path):
    picture = np.rint(255 * scene(32, 48) ** (1 / 2.2)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), cv2.cvtColor(picture, cv2.COLOR_GRAY2BGR))
    options = ["--planes-per-frame", 200, "--ratio", 2, "--rate", 0.8]
    assert tool("simulate", tmp_path / "a.png", tmp_path / "a.dat", *options) == 0
    light = read_spikes(tmp_path / "a.dat", SpikeGeometry(16, 24)).mean(axis=0) / 0.8
    expected = cv2.resize(scene(32, 48), (24, 16), interpolation=cv2.INTER_AREA)
    assert np.abs(light - expected).max() < 0.02


def test_simulate_holds_a_part_of_the_stream_at_a_time(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((256, 256, 3), 90, np.uint8))
    tracemalloc.start()
    assert tool("simulate", tmp_path / "a.png", tmp_path / "a.dat", "--planes-per-frame", 1000) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "a.dat").stat().st_size == 1000 * 256 * 256 // 8
    assert peak < 1000 * 256 * 256 / 2  # the whole stream takes a byte for each spike


def test_simulate_refuses_planes_that_do_not_fill_bytes(tmp_path, capsys):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((10, 10, 3), np.uint8))
    assert tool("simulate", tmp_path / "a.png", tmp_path / "a.dat", "--rate", 1.5) == 2
    assert "above 0, at most 1" in capsys.readouterr().err
    assert tool("simulate", tmp_path / "a.png", tmp_path / "a.dat", "--ratio", 2) == 3
    assert "5 x 5 do not fill whole bytes" in capsys.readouterr().err

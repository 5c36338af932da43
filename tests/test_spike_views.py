"""spike_tool.py view, recon and play, on a published stream and on a long one."""

from __future__ import annotations

import tracemalloc

import cv2
import numpy as np
import pytest

from data.spike.formats import read_spikes, write_spikes
from data.spike.represent import represent
from data.spike.stream import SpikeGeometry
from tests.spike_files import restore_dat, tool
from utils.image import LABEL_HEIGHT as LABEL
from utils.image import imread_rgb
from utils.video import VideoReader

PLANE = SpikeGeometry(250, 400)
CAMERA = ("--size", 250, 400, "--rate", 0.6, "--light", "display")  # see tests/test_spike_stream.py


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """42 planes of a published stream, simulated: its planes 0 and 130 to 170."""
    path = tmp_path_factory.mktemp("published") / "203.dat"
    restore_dat("spikezoo_203_part1_planes_0_130-170", path)
    return path


def expected(path, method, plane, **options):
    values = represent(method, read_spikes(path, PLANE), plane, rate=0.6, light="display", gamma=2.2, **options)[0]
    return 255 * np.clip(values, 0, 1)


def frames_of(path):
    video = VideoReader(path)
    return [video.read(i)[..., 0].astype(float) for i in range(video.num_frames)]


def test_play_shows_each_plane_beside_its_reconstruction(published, tmp_path, capfd):
    out = tmp_path / "a.mp4"
    how = ("--first", 2, "--count", 11, "--step", 3, "--tick-hz", 20000)
    assert tool("play", published, *CAMERA, *how, "--out", out, "--method", "tfi", "method.half_window=9") == 0
    said = capfd.readouterr().out
    assert "4 video frames of 250 x 400, planes 2 to 11, 3 planes per video frame, 266.7 x slower" in said

    frames, stream = frames_of(out), read_spikes(published, PLANE)
    assert len(frames) == 4 and frames[0].shape == (LABEL + 250, 802)
    for frame, plane in zip(frames, (2, 5, 8, 11), strict=True):
        dots, picture = frame[LABEL:, :400], frame[LABEL:, 402:]
        assert np.abs(dots - 255 * stream[plane]).mean() < 6  # white where a pixel fired, up to the video's loss
        assert np.abs(picture - expected(published, "tfi", plane, half_window=9)).mean() < 3
        assert frame[:LABEL].max() > 200  # the number of the plane
    assert not np.array_equal(frames[0][:LABEL], frames[1][:LABEL])


def test_play_ends_where_the_method_does(published, tmp_path):
    assert tool("play", published, *CAMERA, "--first", 39, "--out", tmp_path / "a.mp4", "--method", "tfi") == 0
    assert len(frames_of(tmp_path / "a.mp4")) == 2  # 39 and 40: nothing fires after plane 41
    assert tool("play", published, *CAMERA, "--first", 39, "--out", tmp_path / "b.mp4") == 0
    assert len(frames_of(tmp_path / "b.mp4")) == 3


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("tfp", {"half_window": 10}),
        ("tfi", {"half_window": 20}),
        ("tfstp", {"tau_d": 5.0, "tau_f": 10.0, "utilisation": 0.05}),
    ],
)
def test_recon_is_the_registered_representation(published, tmp_path, method, options):
    where = ("recon", published, *CAMERA, "--method", method, "--planes")
    assert tool(*where, 21, "--out", tmp_path / "a.png") == 0
    picture = imread_rgb(tmp_path / "a.png")
    assert picture.shape == (250, 400, 3)
    assert np.abs(picture[..., 0] - expected(published, method, 21, **options)).max() <= 0.51


def test_recon_writes_a_folder_a_strip_or_a_video_of_several_planes(published, tmp_path):
    where = ("recon", published, *CAMERA, "--planes", 30, 0, 15)
    for out in ("folder", "a.png", "a.mp4"):
        assert tool(*where, "--out", tmp_path / out) == 0
    names = sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert names == ["000000.png", "000015.png", "000030.png"]
    single = [imread_rgb(tmp_path / "folder" / name) for name in names]
    assert np.abs(single[1][..., 0] - expected(published, "tfp", 15)).max() <= 0.51
    strip = imread_rgb(tmp_path / "a.png")[LABEL:]
    assert all(np.array_equal(strip[:, 402 * i : 402 * i + 400], picture) for i, picture in enumerate(single))
    frames = frames_of(tmp_path / "a.mp4")
    assert len(frames) == 3 and np.abs(frames[2][LABEL:] - single[2][..., 0]).mean() < 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "a.png", "folder"]


def test_wrong_planes_suffixes_and_options_are_named(published, tmp_path, capfd):
    cases = {
        "no tfp at plane -1, 42, 50": ("recon", "--planes", 50, 3, 42, -1, "--out", tmp_path / "a.png"),
        "no tfi at plane 41": ("recon", "--method", "tfi", "--planes", 41, "--out", tmp_path / "a.png"),
        "the suffix of the output is '.txt'": ("recon", "--planes", 1, "--out", tmp_path / "a.txt"),
        "use spike_tool.py recon for pictures": ("play", "--out", tmp_path / "a.png"),
        "planes within 0 to 41": ("play", "--first", 42, "--out", tmp_path / "a.mp4"),
        "the nearest is half_window": ("play", "--out", tmp_path / "a.mp4", "method.half_windw=3"),
    }
    for words, (action, *arguments) in cases.items():
        assert tool(action, published, *CAMERA, *arguments) == 2
        said = capfd.readouterr().err
        assert words in said, said
    assert list(tmp_path.iterdir()) == []


def test_a_long_stream_is_read_in_parts(tmp_path):
    planes = np.random.default_rng(0).random((3000, 64, 64)) < 0.3
    write_spikes(tmp_path / "a.dat", planes.astype(np.uint8), SpikeGeometry(64, 64))
    del planes
    tracemalloc.start()
    assert tool("play", tmp_path / "a.dat", "--size", 64, 64, "--out", tmp_path / "a.mp4", "--step", 600) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(frames_of(tmp_path / "a.mp4")) == 5
    assert peak < 3000 * 64 * 64 / 2  # the whole stream takes a byte for each spike


def test_outputs_have_names_by_default_and_recon_shows_the_middle(published, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for action in ("view", "recon", "play"):
        assert tool(action, published, *CAMERA) == 0
    written = {path.name for path in tmp_path.iterdir() if path != published}
    assert written >= {f"{published.stem}_view.png", f"{published.stem}_recon.png", f"{published.stem}_play.mp4"}
    assert tool("view", published, *CAMERA) == 2 and "exists already" in capfd.readouterr().err


def test_view_needs_a_picture_file(published, tmp_path, capfd):
    assert tool("view", published, *CAMERA, "--out", tmp_path / "a.png") == 0
    both = cv2.imread(str(tmp_path / "a.png"))[LABEL:]
    assert np.array_equal(both[:, :400], both[::-1, 402:])
    assert tool("view", published, *CAMERA, "--out", tmp_path / "a.mp4") == 3
    assert "cannot write a .mp4 image" in capfd.readouterr().err

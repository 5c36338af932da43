"""Two published streams through the whole path: restore, look at, calibrate.

The streams are those that Spike-Zoo simulated (tests/data/spike), each with the true picture. The
blurry frame is made here, as the mean of all planes. The expected figures were measured with these
files.
"""

import hashlib
import json

import cv2
import numpy as np
import pytest

import main_test_vrt
from data.spike.formats import SpikeGeometry, read_spikes
from data.spike.represent import represent
from scripts import calibrate, spike_tool
from tests.helpers.spike_files import FOLDER, restore_dat
from tests.helpers.two_cameras import error_px, similarity
from utils.image import imread_rgb, imwrite_rgb

SIZE = (250, 400)
PLANE = SpikeGeometry(*SIZE)
# What the simulator integrated: display values, and 0.6 spikes per plane at full light. A test
# below finds the same.
CAMERA = ["spike.rate=0.6", "spike.light=display", "spike.center=file"]
STREAMS = {"200": "spikezoo_200_part3_all_planes", "203": "spikezoo_203_part1_planes_0_130-170"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with a clip for each stream, of one frame.

    blur/<clip>/150.png is the mean of the planes, as a grey RGB frame. sharp/<clip>/150.png is the
    true picture.
    """
    folder = tmp_path_factory.mktemp("streams")
    (folder / "spike").mkdir()
    for clip, name in STREAMS.items():
        path = folder / "spike" / f"{clip}.dat"
        restore_dat(name, path)
        light = read_spikes(path, PLANE).mean(axis=0) / 0.6
        blurry = np.round(255 * np.clip(light, 0, 1)).astype(np.uint8)
        imwrite_rgb(folder / "blur" / clip / "150.png", np.repeat(blurry[..., None], 3, axis=2))
        imwrite_rgb(folder / "sharp" / clip / "150.png", imread_rgb(truth_of(clip)))
    return folder


def truth_of(clip):
    """Return the path of the true picture of a stream."""
    return FOLDER / f"spikezoo_{'200_part3' if clip == '200' else '203_part1'}_truth.png"


@pytest.mark.parametrize(("method", "metric", "least"), [
    # measured 29.83 and 27.18; blurry 23.57 and 24.51
    ("tfp", "psnr_y", {"200": 29.5, "203": 26.9}),
    ("tfi", "psnr_y", {"200": 21.3, "203": 25.4}),  # 21.62 and 25.70
    ("tfstp", "psnr_y", {"200": 28.0, "203": 23.4}),  # 28.37 and 23.67
    ("exposure", "psnr", {"200": 32.6, "203": 28.1}),  # 32.98 and 28.41; blurry 22.25 and 23.19
])  # fmt: skip
def test_every_method_reconstructs_the_streams(home, tmp_path, method, metric, least):
    inputs = [
        "--input",
        home / "blur",
        "--spike",
        home / "spike",
        "--gt",
        home / "sharp",
        "--output",
        tmp_path,
    ]
    assert (
        main_test_vrt.main(
            ["--method", method, *map(str, inputs), *CAMERA, "--spike-size", "250", "400"]
        )
        == 0
    )
    clips = json.loads((tmp_path / "metrics.json").read_text())["clips"]
    found = {clip: about["restored"][metric] for clip, about in clips.items()}

    assert found.keys() == least.keys(), found
    assert all(found[clip] > least[clip] for clip in least), found


# Spike-Zoo's dataset configuration says rate 0.6.
@pytest.mark.parametrize(("clip", "planes", "rate"), [("200", 301, 0.596), ("203", 42, 0.578)])
def test_the_tool_says_what_a_stream_is_and_that_it_integrates_display_values(
    home, capsys, clip, planes, rate
):
    assert (
        spike_tool.main(["info", str(home / f"spike/{clip}.dat"), "--picture", str(truth_of(clip))])
        == 0
    )
    said = capsys.readouterr().out

    assert f"250 x 400 {planes:7}" in said, said
    assert f'"light": "display", "rate": {rate}' in said, said


@pytest.mark.parametrize("clip", list(STREAMS))
def test_a_stream_calibrates_against_its_picture_seen_by_another_camera(home, tmp_path, clip):
    frame = (360, 640)
    first = {"200": 143, "203": 14}[clip]
    known = similarity(2.0, 1.37, SIZE, frame, (9.3, -6.8))
    seen = cv2.warpPerspective(
        imread_rgb(truth_of(clip)), known, frame[::-1], flags=cv2.INTER_CUBIC
    )
    imwrite_rgb(tmp_path / "rgb.png", seen)
    pair = ["--pair", home / "spike" / f"{clip}.dat", tmp_path / "rgb.png", "--size", "250", "400"]
    how = [
        "--planes",
        first,
        "15",
        "--light",
        "display",
        "--model",
        "similarity",
        "--out",
        tmp_path / "c.json",
    ]
    assert calibrate.main([*map(str, (*pair, *how))]) == 0
    # The mean over the frame; at its corners, the error of stream 200, in which everything moves,
    # is 0.9 px.
    mean, largest = error_px(tmp_path / "c.json", known, "none")

    assert mean <= 0.5
    assert largest <= 1.0


def test_published_files_decode_to_their_golden_values_and_give_the_golden_tfp_and_tfi(home):
    assert (
        hashlib.sha256((home / "spike/200.dat").read_bytes()).hexdigest()[:16] == "d6fc184dfd7ef326"
    )
    spikes = read_spikes(home / "spike/200.dat", PLANE)
    assert spikes.shape == (301, 250, 400)
    assert (spikes.sum(), spikes[0].sum(), spikes[150].sum()) == (10615566, 33779, 35559)
    assert [spikes[:, r, c].sum() for r, c in ((0, 0), (0, 399), (249, 0))] == [83, 64, 26]
    slower = read_spikes(home / "spike/203.dat", PLANE)
    assert (slower[0].sum(), slower[21].sum()) == (18869, 21488)
    for stream, tfp, tfi, missing in (
        (spikes[130:171], 0.352987, 0.353169, 0.18), (slower[1:], 0.217085, 0.217102, 3.17),
    ):  # fmt: skip
        assert stream.mean() == pytest.approx(tfp, abs=5e-7)
        assert represent("tfp", stream, 20, half_window=20).mean() == pytest.approx(tfp, abs=5e-7)
        channel = represent("tfi", stream, 20, half_window=20)
        assert channel.mean(dtype=np.float64) == pytest.approx(tfi, abs=5e-7)
        # 1 / 40 is also the value of an interval of 40 planes, which no pixel here has.
        assert 100 * (channel == np.float32(1 / 40)).mean() == pytest.approx(missing, abs=0.005)

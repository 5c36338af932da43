"""Two published streams through the whole path: restore, look at, calibrate.

Spike-Zoo simulated the two streams and published each with the true picture (tests/data/spike). A
stream has planes of 250 x 400 bits: whether each pixel fired at one instant. The tests make the
blurry frame as the mean of all planes. The expected values were measured with these files.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from data.spike.formats import read_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.represent import represent
from scripts import calibrate, spike_tool
from tests.helpers.spike_files import FOLDER, restore_dat
from tests.helpers.two_cameras import error_px, similarity
from tests.helpers.weights_files import read_metrics, restore
from utils.image import imread_rgb, imwrite_rgb

SIZE = (250, 400)
PLANE = SpikeGeometry(*SIZE)
# Share of planes in which a pixel in full light fires. test_the_tool_says_what_a_stream_is measures
# nearly the same share.
RATE = 0.6


class Stream(NamedTuple):
    """A published stream."""

    name: str  # name of the file in tests/data/spike
    truth: Path  # the true picture
    first_plane: int  # number of the first of the 15 planes around the true picture


STREAMS = {
    "200": Stream("spikezoo_200_part3_all_planes", FOLDER / "spikezoo_200_part3_truth.png", 143),
    "203": Stream(
        "spikezoo_203_part1_planes_0_130-170", FOLDER / "spikezoo_203_part1_truth.png", 14
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Give a folder with a clip for each stream, of one frame.

    blur/<clip>/150.png is the mean of the planes, as a grey RGB frame. sharp/<clip>/150.png is the
    true picture. spike/<clip>.dat has the spikes.
    """
    folder = tmp_path_factory.mktemp("streams")
    (folder / "spike").mkdir()
    for clip, stream in STREAMS.items():
        path = folder / "spike" / f"{clip}.dat"
        # Unpack the stream of tests/data/spike to `path`.
        restore_dat(stream.name, path)
        light = read_spikes(path, PLANE).mean(axis=0) / RATE
        grey = np.round(255 * np.clip(light, 0, 1)).astype(np.uint8)
        imwrite_rgb(folder / "blur" / clip / "150.png", np.repeat(grey[..., None], 3, axis=2))
        imwrite_rgb(folder / "sharp" / clip / "150.png", imread_rgb(stream.truth))
    return folder


# ---- Restoring ----

# Each case has the method, the name of its score, and the least score of stream 200 and of stream
# 203, in dB. The comment beside a case has the two measured scores, which are 0.3 dB higher. The
# blurry frames have psnr_y 23.57 and 24.51, and psnr 22.25 and 23.19.
LEAST = [
    pytest.param("tfp", "psnr_y", 29.5, 26.9, id="tfp"),  # 29.83 and 27.18
    pytest.param("tfi", "psnr_y", 21.3, 25.4, id="tfi"),  # 21.62 and 25.70
    # This case is slow, because it takes 3 seconds of a core.
    pytest.param("tfstp", "psnr_y", 28.0, 23.4, id="tfstp", marks=pytest.mark.slow),  # 28.37, 23.67
    pytest.param("exposure", "psnr", 32.6, 28.1, id="exposure"),  # 32.98 and 28.41
]


@pytest.mark.parametrize(("method", "metric", "least_of_200", "least_of_203"), LEAST)
def test_every_method_reconstructs_the_streams(
    home, tmp_path, method, metric, least_of_200, least_of_203
):
    files = ["--input", home / "blur", "--spike", home / "spike", "--gt", home / "sharp"]
    # In the simulator the charge of a pixel grows with the display value of the picture, not with
    # its light. So spike.light is "display".
    camera = [f"spike.rate={RATE}", "spike.light=display", "spike.center=file"]

    restore("--method", method, *files, *camera, "--spike-size", 250, 400, "--output", tmp_path)

    clips = read_metrics(tmp_path)["clips"]
    assert clips.keys() == {"200", "203"}
    assert clips["200"]["restored"][metric] > least_of_200
    assert clips["203"]["restored"][metric] > least_of_203


# ---- Looking at a stream ----


# The configuration of this data set in Spike-Zoo says rate 0.6. The tool measures nearly this rate.
@pytest.mark.parametrize(
    ("clip", "planes", "rate"),
    [pytest.param("200", 301, 0.596, id="200"), pytest.param("203", 42, 0.578, id="203")],
)
def test_the_tool_says_what_a_stream_is(home, capsys, clip, planes, rate):
    truth = str(STREAMS[clip].truth)

    code = spike_tool.main(["info", str(home / f"spike/{clip}.dat"), "--picture", truth])

    output = capsys.readouterr().out
    assert code == 0
    # The tool prints a table. A row has the size of a plane, and the number of planes in 7
    # characters.
    assert f"250 x 400 {planes:7}" in output, output
    assert f'"light": "display", "rate": {rate}' in output, output


# ---- Calibrating ----


@pytest.mark.parametrize("clip", ["200", pytest.param("203", marks=pytest.mark.slow)])
def test_a_stream_calibrates_against_its_picture_seen_by_another_camera(home, tmp_path, clip):
    stream = STREAMS[clip]
    # The other camera is turned by 2 degrees, has 1.37 pixels for each pixel of the stream, and is
    # shifted by 9.3 pixels along x and -6.8 pixels along y.
    frame_size = (360, 640)
    truth = similarity(2.0, 1.37, SIZE, frame_size, shift=(9.3, -6.8))
    height, width = frame_size
    seen = cv2.warpPerspective(
        imread_rgb(stream.truth), truth, (width, height), flags=cv2.INTER_CUBIC
    )
    imwrite_rgb(tmp_path / "rgb.png", seen)
    pair = ["--pair", home / "spike" / f"{clip}.dat", tmp_path / "rgb.png", "--size", 250, 400]
    # Use the 15 planes around the true picture.
    planes = ["--planes", stream.first_plane, 15, "--light", "display"]
    out = tmp_path / "calibration.json"

    command = [*pair, *planes, "--model", "similarity", "--out", out]
    code = calibrate.main([str(word) for word in command])

    assert code == 0
    mean, largest = error_px(out, truth, mirror="none")
    # The limits are in RGB pixels. The error is largest at the corners: 0.9 for stream 200, in
    # which everything moves.
    assert mean <= 0.5
    assert largest <= 1.0


# ---- Golden values: the values that other readers of these files get ----


def test_the_file_of_a_stream_is_the_published_one(home):
    digest = hashlib.sha256((home / "spike/200.dat").read_bytes()).hexdigest()

    assert digest.startswith("d6fc184dfd7ef326")


def test_stream_200_decodes_to_its_golden_values(home):
    spikes = read_spikes(home / "spike/200.dat", PLANE)

    assert spikes.shape == (301, 250, 400)
    # Check the number of spikes of the whole stream, and of two of its planes.
    assert spikes.sum() == 10615566
    assert spikes[0].sum() == 33779
    assert spikes[150].sum() == 35559
    # Check the numbers of spikes of the pixels in three corners. If a plane were mirrored or
    # turned, these numbers would differ.
    assert spikes[:, 0, 0].sum() == 83
    assert spikes[:, 0, 399].sum() == 64
    assert spikes[:, 249, 0].sum() == 26


def test_stream_203_decodes_to_its_golden_values(home):
    spikes = read_spikes(home / "spike/203.dat", PLANE)

    assert spikes[0].sum() == 18869
    assert spikes[21].sum() == 21488


class GoldenMeans(NamedTuple):
    """Means of two representations of 41 planes."""

    clip: str
    first_plane: int  # number of the first of the 41 planes
    tfp: float
    tfi: float
    # Percent of the pixels that lack a spike before or after the middle. Such pixels have no
    # interval between two spikes, from which tfi is computed.
    without_interval: float


GOLDEN = [
    GoldenMeans("200", first_plane=130, tfp=0.352987, tfi=0.353169, without_interval=0.18),
    # The file has plane 0 of the stream, then the planes 130 to 170, from index 1.
    GoldenMeans("203", first_plane=1, tfp=0.217085, tfi=0.217102, without_interval=3.17),
]


@pytest.fixture(params=GOLDEN, ids=lambda golden: golden.clip)
def golden_means(request) -> GoldenMeans:
    """Give the golden values of each stream."""
    return request.param


@pytest.fixture
def planes(home, golden_means) -> np.ndarray:
    """Give the planes (41, 250, 400) from which the golden values were computed."""
    spikes = read_spikes(home / f"spike/{golden_means.clip}.dat", PLANE)
    return spikes[golden_means.first_plane : golden_means.first_plane + 41]


def test_a_stream_gives_the_golden_tfp(golden_means, planes):
    channel = represent("tfp", planes, center=20, half_window=20)

    # All 41 planes are in the window, so the channel has the mean of all planes.
    assert planes.mean() == pytest.approx(golden_means.tfp, abs=5e-7)
    assert channel.mean() == pytest.approx(golden_means.tfp, abs=5e-7)


def test_a_stream_gives_the_golden_tfi(golden_means, planes):
    channel = represent("tfi", planes, center=20, half_window=20)

    assert channel.mean(dtype=np.float64) == pytest.approx(golden_means.tfi, abs=5e-7)
    # A pixel without an interval gets 1 / 40, which is one over the length of the window. A pixel
    # with an interval of 40 planes would get the same value, but no pixel has such an interval.
    is_without = channel == np.float32(1 / 40)
    assert 100 * is_without.mean() == pytest.approx(golden_means.without_interval, abs=0.005)

"""scripts/calibrate.py: the program finds how a spike camera looks at the frame of an RGB camera.

Its input is a pair: spikes (.dat) and a frame (.png) of the same time. The pairs are random scenes,
recorded through a known matrix (tests/helpers/two_cameras.py).

The exit codes are 0: a calibration was found, 2: wrong use of the program, 3: these files cannot be
calibrated.

A calibration is compared with the true matrix. Each of the two matrices maps a spike pixel to a
place on the frame. `error_px` returns the mean and the largest distance between the two places, in
RGB pixels. LIMIT_PX is the largest distance that the tests accept.
"""

import numpy as np
import pytest

from data.cameras.calibration import load_calibration
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from scripts.calibrate import main
from tests.helpers.two_cameras import LIMIT_PX, error_px, similarity, texture, write_pair
from utils.image import imread_rgb, imwrite_rgb

# Height and width of the spike planes and of the frames.
PLANE = (128, 200)
FRAME = (180, 320)
SIZES = {"rgb": FRAME, "spike": PLANE}
SIZE_FLAGS = ["--size", "128", "200"]

# The true matrix from spike pixels to RGB pixels.
TRUTH = similarity(angle_deg=2.0, scale=1.37, spike=PLANE, rgb=FRAME, shift=(7.3, -4.8))
# The matrices of two cameras: one looks slightly from the side, and one looks strongly from the
# side.
SLIGHT_PERSPECTIVE = np.array([[1, 0, 0], [0, 1, 0], [8e-5, -5e-5, 1]]) @ TRUTH
STRONG_PERSPECTIVE = np.array([[1, 0, 0], [0, 1, 0], [4e-4, -3e-4, 1]]) @ TRUTH


def calibrate(*arguments):
    """Run the program, and return its exit code."""
    return main([str(argument) for argument in arguments])


def still_pair(folder, name="a", seed=3, truth=TRUTH):
    """Write a pair of a scene that stands still, and return the flags --pair DAT FRAME."""
    rng = np.random.default_rng(seed)
    return write_pair(folder, name, truth, mirror="none", rng=rng, **SIZES)


# ---- A calibration that is found ----


@pytest.fixture(scope="module")
def turned_camera(tmp_path_factory):
    """Give the folder and the flags of a calibrated pair with noise, blur, and packed bits.

    The folder has the calibration, calibration.json, and its picture, calibration_overlay.png.
    """
    folder = tmp_path_factory.mktemp("turned")
    rng = np.random.default_rng(1)
    camera = {"mirror": "none", "rng": rng, "motion": (6, -4), "noise": 0.02}
    pair_flags = write_pair(folder, "a", TRUTH, **camera, **SIZES)
    _, dat, _ = pair_flags  # --pair DAT FRAME
    # Store the spikes again with the first pixel in the highest bit, as numpy.packbits does.
    spikes = read_spikes(dat, SpikeGeometry(*PLANE))
    write_spikes(dat, spikes, SpikeGeometry(*PLANE, bit_order="big"))

    flags = [*SIZE_FLAGS, "--bit-order", "big", "--model", "similarity", "--tick-hz", 20000]
    assert calibrate(*pair_flags, *flags, "--out", folder / "calibration.json") == 0
    return folder, pair_flags


def test_a_turned_camera_is_found_in_noise_with_blur(turned_camera):
    folder, _ = turned_camera

    # error_px returns the mean and the largest error.
    _, largest = error_px(folder / "calibration.json", TRUTH, mirror="none")

    assert largest <= LIMIT_PX


# "The clock" is the number of planes that the spike camera takes in a second.
def test_the_file_says_the_clock_with_the_sizes(turned_camera):
    folder, _ = turned_camera

    found = load_calibration(folder / "calibration.json")

    assert found.tick_hz == 20000
    assert found.spike_size == list(PLANE)
    assert found.rgb_size == list(FRAME)


def test_the_file_says_how_well_the_pictures_fit(turned_camera):
    folder, _ = turned_camera

    found = load_calibration(folder / "calibration.json")

    # The measured residual is 0.07 RGB pixels. The limit was chosen by hand.
    assert found.made["residual_px"] < 0.5


def test_a_picture_shows_both_cameras_one_above_the_other(turned_camera):
    folder, _ = turned_camera

    assert imread_rgb(folder / "calibration_overlay.png").shape == (2 * FRAME[0], FRAME[1], 3)


# The folder already has calibration.json and calibration_overlay.png:
#
#     case       file of --out                  picture
#     file       calibration.json, exists       calibration_overlay.png, exists
#     picture    b.json, does not exist yet     calibration_overlay.png, exists
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--out", "calibration.json"], id="file"),
        pytest.param(["--out", "b.json", "--overlay", "calibration_overlay.png"], id="picture"),
    ],
)
def test_nothing_is_overwritten(turned_camera, capsys, monkeypatch, flags):
    folder, pair_flags = turned_camera
    before = (folder / "calibration.json").read_bytes()
    monkeypatch.chdir(folder)

    code = calibrate(*pair_flags, *SIZE_FLAGS, *flags)

    assert code == 2
    assert "exists already" in capsys.readouterr().err
    assert (folder / "calibration.json").read_bytes() == before
    assert not (folder / "b.json").exists()


def test_the_file_may_have_the_name_of_the_frame_of_a_pair(tmp_path):
    pair_flags = still_pair(tmp_path, name="cal")  # cal.dat and cal.png

    code = calibrate(*pair_flags, *SIZE_FLAGS, "--out", tmp_path / "cal.json")

    assert code == 0
    assert imread_rgb(tmp_path / "cal.png").shape == (*FRAME, 3)  # still the frame
    assert (tmp_path / "cal_overlay.png").exists()


def test_the_program_prints_how_well_the_pictures_fit(tmp_path, capsys):
    pair_flags = still_pair(tmp_path)

    code = calibrate(*pair_flags, *SIZE_FLAGS, "--out", tmp_path / "calibration.json")

    assert code == 0
    assert "residual" in capsys.readouterr().out


@pytest.fixture(scope="module")
def mirrored_calibration(tmp_path_factory):
    """Give the calibration of two pairs. Their spike camera mirrors, and looks from the side."""
    folder = tmp_path_factory.mktemp("mirrored")
    rng = np.random.default_rng(2)
    pairs = []
    for name in ("a", "b"):
        pairs += write_pair(folder, name, SLIGHT_PERSPECTIVE, "columns", rng, noise=0.02, **SIZES)
    out = folder / "calibration.json"
    assert calibrate(*pairs, *SIZE_FLAGS, "--out", out) == 0
    return out


def test_several_pairs_of_a_camera_with_perspective_are_one_calibration(mirrored_calibration):
    _, largest = error_px(mirrored_calibration, SLIGHT_PERSPECTIVE, "columns")

    assert largest <= LIMIT_PX


def test_a_mirrored_camera_is_found(mirrored_calibration):
    assert load_calibration(mirrored_calibration).mirror == "columns"


# ---- Pairs that are refused ----


def random_frame(path, rows=FRAME[0]):
    """Write a frame of another scene, or its first `rows` rows. Return the path."""
    grey = 255 * texture(np.random.default_rng(5), FRAME)
    imwrite_rgb(path, np.repeat(grey[:rows, :, None], 3, axis=2).astype(np.uint8))
    return path


def flat_spikes(path):
    """Write spikes without a scene: each pixel fires at random. Return the path."""
    random_values = np.random.default_rng(6).random((40, *PLANE))
    write_spikes(path, (random_values < 0.3).astype(np.uint8), SpikeGeometry(*PLANE))
    return path


@pytest.mark.parametrize("wrong", ["frame of another scene", "spikes without a scene"])
def test_pictures_of_different_scenes_are_refused(tmp_path, capsys, wrong):
    _, dat, png = still_pair(tmp_path)
    if wrong == "frame of another scene":
        png = random_frame(tmp_path / "other.png")
    else:
        dat = flat_spikes(tmp_path / "flat.dat")
    before = sorted(tmp_path.iterdir())

    code = calibrate("--pair", dat, png, *SIZE_FLAGS, "--out", tmp_path / "calibration.json")

    assert code == 3
    message = capsys.readouterr().err
    assert "cannot be calibrated" in message
    assert "expected" in message
    assert str(png) in message
    assert sorted(tmp_path.iterdir()) == before  # nothing was written


def test_frames_of_different_sizes_are_refused(tmp_path, capsys):
    pair = still_pair(tmp_path)
    _, dat, _ = pair  # --pair DAT FRAME
    small = random_frame(tmp_path / "small.png", rows=90)
    second_pair = ["--pair", dat, small]
    out = tmp_path / "calibration.json"

    code = calibrate(*pair, *second_pair, *SIZE_FLAGS, "--out", out)

    assert code == 3
    assert "differ in size" in capsys.readouterr().err
    assert not out.exists()


def test_spikes_that_are_not_there_are_named(tmp_path, capsys):
    missing = tmp_path / "none.npy"
    frame = random_frame(tmp_path / "frame.png")
    out = tmp_path / "calibration.json"

    code = calibrate("--pair", missing, frame, "--out", out)

    assert code == 3
    assert str(missing) in capsys.readouterr().err
    assert not out.exists()


def test_a_model_that_cannot_map_all_patches_is_refused(tmp_path, capsys):
    # A similarity turns, scales and shifts a picture. This camera sees the far side of the scene
    # smaller, which no similarity can do.
    pair = still_pair(tmp_path, seed=2, truth=STRONG_PERSPECTIVE)
    out = tmp_path / "calibration.json"

    code = calibrate(*pair, *SIZE_FLAGS, "--model", "similarity", "--out", out)

    assert code == 3
    message = capsys.readouterr().err
    assert "single patches lie" in message
    assert "from where the similarity maps them" in message
    assert not out.exists()


# ---- The time offset between the two cameras ----


@pytest.fixture(scope="module")
def still_calibration(tmp_path_factory):
    """Give the calibration of a pair in which nothing moves."""
    folder = tmp_path_factory.mktemp("known")
    out = folder / "known.json"
    assert calibrate(*still_pair(folder, seed=4), *SIZE_FLAGS, "--out", out) == 0
    return out


def pair_of_late_frame(folder, motion):
    """Write a pair with this motion. Return the flags --pair DAT FRAME.

    The file has 80 planes: 20 planes before the exposure, the 40 planes 20 to 59 of the exposure,
    and 20 planes after it.
    """
    rng = np.random.default_rng(5)
    return write_pair(
        folder, "late", TRUTH, "none", rng, motion=motion, around=20, noise=0.01, **SIZES
    )


def find_time_offset(known, pair, out, planes=(13, 40)):
    """Look for the time offset of a pair of `pair_of_late_frame`. Return the exit code.

    The matrix and the size of a plane come from the known calibration.

    planes: first plane of the exposure and number of its planes, as the program is told. By default
        the program is told the planes 13 to 52. The true exposure has the planes 20 to 59, so the
        true offset is 20 - 13 = 7.
    """
    search = ["--geometry", known, "--search-planes", 12, "--planes", *planes]
    return calibrate(*pair, *search, "--out", out)


@pytest.fixture(scope="module")
def moving_pair(tmp_path_factory):
    """Give a pair of a scene that moves."""
    return pair_of_late_frame(tmp_path_factory.mktemp("moving"), motion=(14, 6))


@pytest.fixture(scope="module")
def late(still_calibration, moving_pair, tmp_path_factory):
    """Give the calibration of the moving pair."""
    out = tmp_path_factory.mktemp("late") / "out.json"
    assert find_time_offset(still_calibration, moving_pair, out) == 0
    return load_calibration(out)


def test_the_time_offset_is_found_if_the_scene_moves(still_calibration, late):
    # `find_time_offset` says why the true offset is 7. Measured: 6.9.
    assert late.time_offset_planes == pytest.approx(7, abs=0.5)
    assert late.matrix == load_calibration(still_calibration).matrix


def test_the_share_of_the_planes_that_was_exposed_is_found(
    still_calibration, moving_pair, tmp_path
):
    out = tmp_path / "out.json"

    # The program is told the 50 planes 8 to 57. The true exposure has the 40 planes 20 to 59, so
    # the share is 40 / 50 = 0.8. The middle 40 of the 50 planes are the planes 13 to 52. So the
    # true offset is 7 planes. Measured: the share 0.802, the offset 6.9.
    code = find_time_offset(still_calibration, moving_pair, out, planes=(8, 50))

    assert code == 0
    found = load_calibration(out)
    assert found.exposure_share == pytest.approx(0.8, abs=0.03)
    assert found.time_offset_planes == pytest.approx(7, abs=0.5)


def test_all_planes_count_as_exposed_if_the_frame_was_exposed_during_all_of_them(late):
    assert late.exposure_share == 1.0


def test_a_time_offset_is_refused_if_the_scene_does_not_move(still_calibration, tmp_path, capsys):
    out = tmp_path / "out.json"
    pair = pair_of_late_frame(tmp_path, motion=(0, 0))

    code = find_time_offset(still_calibration, pair, out)

    assert code == 3
    assert "moves too little" in capsys.readouterr().err
    assert not out.exists()

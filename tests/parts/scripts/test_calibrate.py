import numpy as np
import pytest

from data.cameras.spike_grid import load_calibration
from data.spike.formats import SpikeGeometry, read_spikes, write_spikes
from scripts.calibrate import main
from tests.helpers.two_cameras import LIMIT_PX, error_px, similarity, texture, write_pair
from utils.image import imread_rgb, imwrite_rgb

PLANE, FRAME = (128, 200), (180, 320)
TRUTH = similarity(2.0, 1.37, PLANE, FRAME, (7.3, -4.8))
SIZE = ["--size", "128", "200"]


def calibrate(*args):
    return main([*map(str, args)])


def test_a_turned_enlarged_and_shifted_camera_is_recovered_with_noise_and_blur(tmp_path, capsys):
    rng, out = np.random.default_rng(1), tmp_path / "calibration.json"
    pair = write_pair(
        tmp_path, "a", TRUTH, "none", rng, rgb=FRAME, spike=PLANE, motion=(6, -4), noise=0.02
    )
    stored = SpikeGeometry(*PLANE, bit_order="big")  # as numpy.packbits
    write_spikes(pair[1], read_spikes(pair[1], SpikeGeometry(*PLANE)), stored)
    flags = [*SIZE, "--bit-order", "big", "--model", "similarity", "--tick-hz", 20000]
    assert calibrate(*pair, *flags, "--out", out) == 0
    assert error_px(out, TRUTH, "none")[1] <= LIMIT_PX
    found = load_calibration(out)
    assert (found.tick_hz, found.spike_size, found.rgb_size) == (20000, [128, 200], [180, 320])
    assert found.made["residual_px"] < 0.5 and "residual" in capsys.readouterr().out
    assert imread_rgb(tmp_path / "calibration.png").shape == (2 * 180, 320, 3)
    # Nothing is overwritten, neither the file nor the picture.
    for taken in (
        ["--out", out],
        ["--out", tmp_path / "b.json", "--overlay", tmp_path / "calibration.png"],
    ):
        before = out.read_bytes()
        assert calibrate(*pair, *SIZE, *taken) == 2 and out.read_bytes() == before
        assert "exists already" in capsys.readouterr().err and not (tmp_path / "b.json").exists()


def test_several_pairs_of_a_mirrored_camera_with_perspective_are_one_calibration(tmp_path):
    rng, out = np.random.default_rng(2), tmp_path / "calibration.json"
    truth = np.array([[1, 0, 0], [0, 1, 0], [8e-5, -5e-5, 1]]) @ TRUTH
    a, b = (
        write_pair(tmp_path, name, truth, "columns", rng, rgb=FRAME, spike=PLANE, noise=0.02)
        for name in "ab"
    )
    assert calibrate(*a, *b, *SIZE, "--out", out) == 0
    assert (
        error_px(out, truth, "columns")[1] <= LIMIT_PX and load_calibration(out).mirror == "columns"
    )


def test_pictures_of_different_scenes_are_refused(tmp_path, capsys):
    rng, out = np.random.default_rng(3), tmp_path / "calibration.json"
    pair = write_pair(tmp_path, "a", TRUTH, "none", rng, rgb=FRAME, spike=PLANE)
    other = np.repeat((255 * texture(rng, FRAME))[..., None], 3, axis=2).astype(np.uint8)
    imwrite_rgb(tmp_path / "other.png", other)
    flat = (rng.random((40, *PLANE)) < 0.3).astype(np.uint8)
    write_spikes(tmp_path / "flat.dat", flat, SpikeGeometry(*PLANE))
    for spikes, frame in ((pair[1], tmp_path / "other.png"), (tmp_path / "flat.dat", pair[2])):
        assert calibrate("--pair", spikes, frame, *SIZE, "--out", out) == 3
        error = capsys.readouterr().err
        assert "cannot be calibrated" in error and "expected" in error and str(frame) in error
    imwrite_rgb(tmp_path / "small.png", other[:90])
    assert calibrate(*pair, "--pair", pair[1], tmp_path / "small.png", *SIZE, "--out", out) == 3
    assert "differ in size" in capsys.readouterr().err
    missing = tmp_path / "none.npy"
    assert calibrate("--pair", missing, tmp_path / "other.png", "--out", out) == 3
    assert str(missing) in capsys.readouterr().err
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [
        ".dat",
        ".dat",
        ".png",
        ".png",
        ".png",
    ]


def test_a_model_that_cannot_map_all_patches_is_refused(tmp_path, capsys):
    rng, out = np.random.default_rng(2), tmp_path / "calibration.json"
    bent = np.array([[1, 0, 0], [0, 1, 0], [4e-4, -3e-4, 1]]) @ TRUTH
    pair = write_pair(tmp_path, "a", bent, "none", rng, rgb=FRAME, spike=PLANE)

    assert calibrate(*pair, *SIZE, "--model", "similarity", "--out", out) == 3

    said = capsys.readouterr().err
    assert "single patches lie" in said and "from where the similarity maps them" in said
    assert not out.exists()


@pytest.mark.parametrize("motion", [(14, 6), (0, 0)])
def test_the_time_offset_is_found_where_the_scene_moves_and_refused_where_it_does_not(
    tmp_path, capsys, motion
):
    rng, known, out = np.random.default_rng(4), tmp_path / "known.json", tmp_path / "out.json"
    still = write_pair(tmp_path, "still", TRUTH, "none", rng, rgb=FRAME, spike=PLANE)
    assert calibrate(*still, *SIZE, "--out", known) == 0
    made = {"rgb": FRAME, "spike": PLANE, "motion": motion, "around": 20, "noise": 0.01}
    moving = write_pair(tmp_path, "moving", TRUTH, "none", rng, **made)
    # The exposure is planes 20 to 59; it is looked for around plane 13.
    search = ["--geometry", known, "--search-planes", 12, "--planes", 13, 40]
    code = calibrate(*moving, *SIZE, *search, "--out", out)
    if any(motion):
        assert code == 0 and load_calibration(out).time_offset_planes == pytest.approx(7, abs=0.5)
        assert load_calibration(out).matrix == load_calibration(known).matrix
    else:
        assert code == 3 and "moves too little" in capsys.readouterr().err and not out.exists()

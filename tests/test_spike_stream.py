import hashlib
import os

import cv2
import numpy as np
import pytest

from data.spike.formats import candidate_geometries, count_planes, read_spikes, write_spikes
from data.spike.light import fit_light
from data.spike.represent import represent
from data.spike.stream import Crop, SpikeFileError, SpikeGeometry
from tests.spike_files import FOLDER, restore_dat

CAMERA = SpikeGeometry(250, 400)
SMALL = SpikeGeometry(2, 8)


@pytest.fixture(scope="module")
def whole_stream(tmp_path_factory):
    path = tmp_path_factory.mktemp("spikes") / "200_part3.dat"
    content = restore_dat("spikezoo_200_part3_all_planes", path)
    assert hashlib.sha256(content).hexdigest()[:16] == "d6fc184dfd7ef326"
    return path


def random_spikes(geometry, planes=5, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.random((planes, geometry.height, geometry.width)) < 0.3).astype(np.uint8)


def test_a_published_file_decodes_to_its_golden_values(whole_stream):
    spikes = read_spikes(whole_stream, CAMERA)

    assert spikes.shape == (301, 250, 400)
    assert spikes.sum() == 10615566
    assert (spikes[0].sum(), spikes[150].sum()) == (33779, 35559)
    assert [spikes[:, r, c].sum() for r, c in ((0, 0), (0, 399), (249, 0))] == [83, 64, 26]
    assert spikes[130:171].mean() == pytest.approx(0.352987, abs=5e-7)


def test_published_streams_give_the_golden_tfp_and_tfi(whole_stream, tmp_path):
    restore_dat("spikezoo_203_part1_planes_0_130-170", tmp_path / "203.dat")
    slower = read_spikes(tmp_path / "203.dat", CAMERA)
    faster = read_spikes(whole_stream, CAMERA, first=130, count=41)

    assert (slower[0].sum(), slower[21].sum()) == (18869, 21488)
    for stream, tfp, tfi, missing in ((faster, 0.352987, 0.353169, 0.18), (slower[1:], 0.217085, 0.217102, 3.17)):
        assert represent("tfp", stream, 20, half_window=20).mean() == pytest.approx(tfp, abs=5e-7)
        channel = represent("tfi", stream, 20, half_window=20)
        assert channel.mean(dtype=np.float64) == pytest.approx(tfi, abs=5e-7)
        # 1 / 40 is also the value of an interval of 40 planes, which no pixel here has.
        assert 100 * (channel == np.float32(1 / 40)).mean() == pytest.approx(missing, abs=0.005)


def test_the_worked_example_is_stored_bottom_row_first_and_least_bit_first(tmp_path):
    spikes = np.zeros((2, 2, 8), np.uint8)
    spikes[0, 0, 0] = spikes[0, 1, 6] = spikes[0, 1, 7] = 1
    spikes[1, 0, 7] = 1
    write_spikes(tmp_path / "a.dat", spikes, SMALL)

    assert (tmp_path / "a.dat").read_bytes().hex() == "c0010080"
    assert np.array_equal(read_spikes(tmp_path / "a.dat", SMALL), spikes)
    upside_down = read_spikes(tmp_path / "a.dat", SpikeGeometry(2, 8, flipud=False))
    assert np.array_equal(upside_down, spikes[:, ::-1])


@pytest.mark.parametrize("geometry", [CAMERA, SpikeGeometry(12, 10), SpikeGeometry(4, 400, head_columns=16), SMALL,
                                      SpikeGeometry(6, 12, flipud=False), SpikeGeometry(8, 13)])  # fmt: skip
def test_written_spikes_read_back_whole_and_in_part(tmp_path, geometry):
    spikes = random_spikes(geometry, planes=7)
    write_spikes(tmp_path / "a.dat", spikes, geometry)
    rng = np.random.default_rng(1)

    assert np.array_equal(read_spikes(tmp_path / "a.dat", geometry), spikes)
    for _ in range(20):
        first, count = (int(v) for v in (rng.integers(0, 7), 1))
        top, left = int(rng.integers(geometry.height)), int(rng.integers(geometry.width))
        height = int(rng.integers(1, geometry.height - top + 1))
        width = int(rng.integers(1, geometry.width - left + 1))
        part = read_spikes(tmp_path / "a.dat", geometry, first, count, Crop(top, left, height, width))
        assert np.array_equal(part, spikes[first : first + count, top : top + height, left : left + width])


def test_the_16_head_columns_are_dropped(tmp_path):
    stored = random_spikes(SpikeGeometry(250, 416), planes=2)
    write_spikes(tmp_path / "a.dat", stored, SpikeGeometry(250, 416))

    assert np.array_equal(read_spikes(tmp_path / "a.dat", SpikeGeometry(250, 400, head_columns=16)), stored[:, :, :400])


def test_a_ragged_end_is_an_error_unless_truncation_is_asked_for(tmp_path):
    (tmp_path / "a.dat").write_bytes(bytes.fromhex("c0010080ff"))

    with pytest.raises(SpikeFileError, match="5 bytes holds 2 planes of 2 x 8 and 1 bytes more") as error:
        read_spikes(tmp_path / "a.dat", SMALL)
    assert str(tmp_path / "a.dat") in str(error.value)
    assert count_planes(tmp_path / "a.dat", SMALL, remainder="truncate") == 2
    assert read_spikes(tmp_path / "a.dat", SMALL, remainder="truncate")[1, 0, 7] == 1


@pytest.mark.parametrize("remainder", ["error", "truncate"])
def test_a_file_without_a_whole_plane_is_always_an_error(tmp_path, remainder):
    for content in (b"", b"\x01"):
        (tmp_path / "a.dat").write_bytes(content)
        with pytest.raises(SpikeFileError, match="holds no plane"):
            read_spikes(tmp_path / "a.dat", SMALL, remainder=remainder)


def test_a_wrong_geometry_is_answered_with_those_that_fit(tmp_path):
    with open(tmp_path / "a.dat", "wb") as file:
        file.truncate(1_612_800 + 12_500)
    with pytest.raises(SpikeFileError, match="known geometries that fit this size: none"):
        count_planes(tmp_path / "a.dat", SpikeGeometry(360, 640))
    with open(tmp_path / "a.dat", "wb") as file:
        file.truncate(1_612_800)
    with pytest.raises(SpikeFileError, match=r"360 x 640 \(56 planes\), .*180 x 320 \(224 planes\)"):
        count_planes(tmp_path / "a.dat", CAMERA)
    assert (250, 400, 16, 3) in candidate_geometries(39_000)


def test_the_name_of_a_geometry_which_resumed_runs_compare_shows_only_what_is_unusual():
    assert str(CAMERA) == "SpikeGeometry(height=250, width=400, flipud=True, head_columns=0)"
    assert str(SpikeGeometry(8, 8, bit_order="big")).endswith("head_columns=0, bit_order='big')")


def test_a_plane_that_does_not_fill_bytes_is_refused():
    with pytest.raises(SpikeFileError, match="3 x 5"):
        _ = SpikeGeometry(3, 5).plane_bytes


def test_planes_or_a_crop_outside_of_the_file_are_refused(tmp_path):
    write_spikes(tmp_path / "a.dat", random_spikes(SMALL), SMALL)

    with pytest.raises(SpikeFileError, match="planes 4 to 5"):
        read_spikes(tmp_path / "a.dat", SMALL, first=4, count=2)
    with pytest.raises(SpikeFileError, match="outside the plane"):
        read_spikes(tmp_path / "a.dat", SMALL, crop=Crop(1, 0, 2, 8))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpikeFileError, match="No such file") as error:
        read_spikes(tmp_path / "none.dat", SMALL)
    assert "none.dat" in str(error.value)


def test_writing_again_replaces_the_file_and_a_failure_leaves_nothing(tmp_path):
    write_spikes(tmp_path / "a.dat", random_spikes(SMALL, seed=1), SMALL)
    write_spikes(tmp_path / "a.dat", random_spikes(SMALL, seed=2), SMALL)

    assert np.array_equal(read_spikes(tmp_path / "a.dat", SMALL), random_spikes(SMALL, seed=2))
    with pytest.raises(SpikeFileError, match="shape"):
        write_spikes(tmp_path / "b.dat", random_spikes(CAMERA), SMALL)
    assert os.listdir(tmp_path) == ["a.dat"]


def test_real_spikes_are_seen_to_integrate_display_values(tmp_path):
    # Spike-Zoo's dataset configuration says rate 0.6 for this file.
    restore_dat("spikezoo_203_part1_planes_0_130-170", tmp_path / "203.dat")
    rates = read_spikes(tmp_path / "203.dat", CAMERA)[1:].mean(axis=0).reshape(50, 5, 80, 5).mean(axis=(1, 3))
    truth = cv2.imread(str(FOLDER / "spikezoo_203_part1_truth_80x50.png"), cv2.IMREAD_GRAYSCALE) / 255
    fit = fit_light(rates, truth)

    assert fit.light == "display" and fit.is_clear and fit.rate == pytest.approx(0.59, abs=0.02)
    as_light = fit_light(rates, truth ** (1 / 2.2))  # a brighter picture, of which the spikes are the linear light
    assert as_light.light == "linear" and as_light.rate == pytest.approx(fit.rate)

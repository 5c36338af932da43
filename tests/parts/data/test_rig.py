"""data/cameras/rig.py: two simulated cameras, their conventions and what they record."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from data.augment import Augment
from data.cameras.rig import NAMED, RANGES, Rig
from data.cameras.spike_grid import CalibratedGrid, ScaledGrid
from data.cameras.spike_info import Exposures, Timing
from data.spike import simulate
from data.spike.formats import SpikeGeometry
from tests.helpers.two_cameras import texture
from utils.random_streams import random_stream

RGB, SPIKE, PLANES = (64, 80), (32, 40), 16


def scene(planes=3 * PLANES, step=0.0, seed=0):
    """(planes, H, W, 3) light; it moves by `step` pixels a plane to the left."""
    picture = simulate.to_linear(
        texture(np.random.default_rng(seed), (4 * RGB[0], 4 * RGB[1]))[: RGB[0], : RGB[1] + 60]
    )
    rows = [picture[:, round(step * p) :][:, : RGB[1]] for p in range(planes)]
    return np.stack(rows)[..., None] * np.array([0.9, 1.0, 0.8], np.float32)


def record(rig, lights, planes=PLANES):
    """(n, H, W, 3) uint8 and (n * planes, h, w) uint8."""
    blurry, _, spikes = zip(*rig.record(iter(lights), planes, SPIKE), strict=True)
    return np.stack(blurry), np.concatenate(spikes)


def test_a_pair_without_flaws_records_the_mean_light_and_integrates_the_light_of_each_pixel():
    lights = scene(step=0.5)
    blurry, spikes = record(Rig(), lights)
    sensor = simulate.IntegrateAndFire(*SPIKE, rate=0.9, rng=random_stream("sensor of a rig", 0))
    assert np.array_equal(
        spikes, sensor.run(simulate.bin_pixels(simulate.to_grey(light), 2) for light in lights)
    )
    expected = simulate.to_uint8(simulate.to_display(lights[PLANES : 2 * PLANES].mean(axis=0)))
    assert blurry.shape == (3, *RGB, 3) and np.abs(blurry[1].astype(int) - expected).max() <= 1


def test_the_true_calibration_puts_the_spikes_where_they_belong():
    rig = Rig(shift_x=3.0, shift_y=-2.0, rotation_deg=1.5, scale=0.97, mix=(0.3, 0.5, 0.2))
    lights = scene(30 * PLANES)
    rates = record(rig, lights)[1].mean(axis=0, dtype=np.float32)[None]
    geometry, calibration = SpikeGeometry(*SPIKE), rig.calibration(SPIKE, RGB)
    grids = [CalibratedGrid(calibration, geometry, "rig"), ScaledGrid(geometry, RGB, 1)]
    truth, inside = 0.9 * lights[0] @ np.array([0.3, 0.5, 0.2], np.float32), (slice(8, -8),) * 2
    errors = [
        np.abs(g.window(Augment.whole(RGB)).to_rgb(rates)[0] - truth)[inside].mean() for g in grids
    ]
    assert errors[0] < 0.5 * errors[1] and calibration.made["rig"]["shift_x"] == 3.0
    # Spike pixel (x, y): the middle of the plane looks at the middle of the frame, moved by the
    # shift.
    place = calibration.to_rgb() @ [(SPIKE[1] - 1) / 2, (SPIKE[0] - 1) / 2, 1]
    assert place[:2] == pytest.approx([(RGB[1] - 1) / 2 + 3, (RGB[0] - 1) / 2 - 2])


@pytest.mark.parametrize("offset", [5.0, -3.0, 0.5])
def test_a_spike_camera_that_started_first_shows_each_light_later_as_the_time_offset_says(offset):
    lights = np.zeros((2 * PLANES, *RGB, 3), np.float32)
    lights[PLANES:] = 1.0  # from the second exposure on
    spikes = record(Rig(time_offset=offset, rate=1.0), lights)[1]
    exposure = Timing(
        exposures={"": Exposures(length=PLANES, period=PLANES)}, offset=np.floor(offset)
    )
    start, lit = exposure.span("clip", 1, 3 * PLANES).first, spikes.mean(axis=(1, 2))
    assert len(spikes) == 2 * PLANES and lit[:start].max() == 0
    assert lit[start] == pytest.approx(0.5 if offset == 0.5 else 1.0, abs=0.1)
    assert Rig(time_offset=offset).calibration(SPIKE, RGB).time_offset_planes == offset


def test_the_exposure_is_a_share_of_the_interval_and_rolls_down_the_rows():
    lights = np.zeros((PLANES, *RGB, 3), np.float32)
    lights[PLANES // 2 :] = 0.5
    rig = Rig(exposure=0.5, rolling=0.5, time_offset=2.0)
    blurry = record(rig, lights)[0][0].astype(float)
    light = (blurry[:, 0, 0] / 255) ** 2.2
    assert light[[0, RGB[0] // 2, -1]] == pytest.approx([0.125, 0.25, 0.375], abs=0.01)
    with pytest.raises(ValueError, match="does not fit"):
        Rig(exposure=0.9, rolling=0.2)


def test_a_lens_and_parallax_change_the_place_and_stuck_pixels_stay():
    lights = scene(8 * PLANES)
    sharp, soft, near = (
        record(rig, lights)[1].mean(axis=0)
        for rig in (Rig(), Rig(lens_blur=1.5), Rig(parallax=6.0))
    )
    assert (
        np.abs(np.diff(soft)).mean() < 0.8 * np.abs(np.diff(sharp)).mean()
        and np.abs(near - sharp).mean() > 0.01
    )
    spikes = record(
        Rig(dead=0.1, hot=0.05, light="display", dark_rate=0.02, dark_spread=0.5), lights
    )[1]
    rates = spikes.mean(axis=0)
    assert (rates == 0).mean() == pytest.approx(0.1, abs=0.03) and (
        rates == 1
    ).mean() == pytest.approx(0.05, abs=0.03)


def test_rigs_are_named_or_random_within_their_ranges_and_made_again_from_their_record():
    asked = [
        Rig.asked(name, np.random.default_rng(3)) for name in (*NAMED, "rig,parallax=0,jpeg=90")
    ]
    for rig in asked + [Rig.random(np.random.default_rng(i)) for i in range(30)]:
        plain = json.loads(json.dumps(asdict(rig)))
        assert Rig(**plain) == rig
    for rig in (Rig.random(np.random.default_rng(i)) for i in range(200)):
        for name, (low, high) in RANGES.items():
            value = np.array(asdict(rig)[name])
            assert np.all(value >= np.array(low) - 1e-4) and np.all(value <= np.array(high) + 1e-4)
    lights = scene(PLANES)
    for name in NAMED:
        blurry, spikes = record(Rig.asked(name, np.random.default_rng(0)), lights)
        assert blurry.shape == (1, *RGB, 3) and 0 < spikes.mean() < 0.9


def test_an_exposure_may_be_a_mean_of_display_values_instead_of_light():
    dark, bright = (np.full((16, 16, 3), value, np.float32) for value in (0.0, 1.0))
    lights = [dark] * 4 + [bright] * 4
    frames = {}
    for gamma in (1.0, 2.2):
        rig = Rig.asked(f"ideal,sum_gamma={gamma}", random_stream("a", 0))
        [(blurry, _, stream)] = rig.record(iter(lights), 8, (8, 8))
        frames[gamma] = float(blurry.mean()) / 255, stream
    assert frames[1.0][0] == pytest.approx(0.5 ** (1 / 2.2), abs=0.01)
    assert frames[2.2][0] == pytest.approx(0.5, abs=0.01)
    assert np.array_equal(frames[1.0][1], frames[2.2][1])  # the spike camera sees light

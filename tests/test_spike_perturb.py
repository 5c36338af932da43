import numpy as np
import pytest

from data.camera import CAMERAS
from data.spike import perturb
from data.spike.intervals import plane_light
from data.spike.simulate import IntegrateAndFire
from utils.errors import OptionError


def recorded(light, planes=88, rate=0.9, seed=0):
    sensor = IntegrateAndFire(*light.shape, rate=rate, rng=np.random.default_rng(seed))
    return sensor.run([light] * planes)


RAMP = np.broadcast_to(np.linspace(0, 1, 32, dtype=np.float32), (16, 32))


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.5, 2, 4])
def test_another_threshold_fires_as_a_sensor_with_that_threshold_would(factor):
    changed = perturb.change_threshold(recorded(RAMP), factor, np.random.default_rng(1))
    expected = np.minimum(0.9 * RAMP[0] / factor, 1.0)

    assert set(np.unique(changed)) <= {0, 1}
    assert np.abs(changed.mean(axis=(0, 1)) - expected).max() < 0.02


@pytest.mark.parametrize("factor", [0.5, 0.8])
def test_saturated_pixels_fire_in_every_plane_and_the_others_as_often_as_they_should(factor):
    changed = perturb.change_threshold(recorded(RAMP), factor, np.random.default_rng(1))
    truth = recorded(RAMP, rate=0.9 / factor, seed=5)
    assert np.abs(changed.mean(axis=(0, 1)) - truth.mean(axis=(0, 1))).max() < 0.02


def test_no_spikes_of_a_bright_past_come_in_the_dark():
    # One threshold of light separates two spikes: with half the threshold, two spikes.
    bright, dark = np.ones((16, 16), np.float32), np.zeros((16, 16), np.float32)
    sensor = IntegrateAndFire(16, 16, rate=0.9, rng=np.random.default_rng(0))
    stream = sensor.run([bright] * 20 + [dark] * 19 + [bright] * 10)
    changed = perturb.change_threshold(stream, 0.5, np.random.default_rng(1))

    assert (changed[20:39].sum(axis=0) <= 2).all() and changed[20:39].sum(axis=0).mean() < 2.0
    assert changed[:20].mean() > 0.97 and changed[40:].mean() > 0.9


def test_intervals_stay_as_regular_as_a_sensor_makes_them():
    # Thinning at random would give geometric intervals; a sensor's differ by one plane at most.
    light = np.full((8, 8), 0.5, np.float32)
    changed = perturb.change_threshold(recorded(light, planes=200), 3.0, np.random.default_rng(1))
    for y, x in np.ndindex(8, 8):
        intervals = np.diff(np.flatnonzero(changed[:, y, x]))
        assert np.ptp(intervals) <= 2 and intervals.mean() == pytest.approx(3 / 0.45, rel=0.05)


def test_the_same_threshold_changes_nothing_and_darkness_stays_dark():
    stream = recorded(RAMP)
    assert perturb.change_threshold(stream, 1.0, np.random.default_rng(0)) is stream
    dark = np.zeros((20, 3, 3), np.uint8)
    assert perturb.change_threshold(dark, 0.5, np.random.default_rng(0)).sum() == 0


@pytest.mark.parametrize("factor", [0.05, 0.5, 0.77, 1 - 1e-9, 1 + 1e-9, 1.5, 4.0])
@pytest.mark.parametrize(("planes", "height", "width"), [(1, 3, 3), (56, 96, 50), (264, 20, 16), (1200, 5, 90)])
def test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says(factor, planes, height, width):
    rng = np.random.default_rng([planes, height])
    dense = np.repeat(rng.random((planes // 9 + 1, height, width)) ** 2, 9, axis=0)[:planes]
    stream = (rng.random((planes, height, width)) < dense).astype(np.uint8)

    charge = np.random.default_rng(3).random((height, width), dtype=np.float32)
    light, one, before = plane_light(stream), np.float32(1), np.zeros_like(charge)
    expected = np.empty_like(stream)
    for plane, now in enumerate(light):
        np.fmod(charge, one, out=charge, where=now * (one + before) < np.float32(0.999) * before)
        charge += now / np.float32(factor)
        expected[plane] = charge >= one
        charge -= expected[plane]
        if factor < 1:
            np.add(np.fmod(charge, one), one, out=charge, where=charge >= 2)
        before = now

    assert np.array_equal(perturb.change_threshold(stream, factor, np.random.default_rng(3)), expected)


def test_dropped_planes_are_empty_and_the_others_untouched():
    stream = recorded(RAMP)
    changed = perturb.drop_planes(stream, 0.3, np.random.default_rng(0))
    lost = ~changed.any(axis=(1, 2))
    assert 0.15 < lost.mean() < 0.45 and np.array_equal(changed[~lost], stream[~lost])


def test_stuck_pixels_are_always_or_never_on():
    stream = recorded(np.full((100, 100), 0.3, np.float32), planes=20)
    changed = perturb.stick_pixels(stream, 0.02, 0.05, np.random.default_rng(0))
    assert changed.all(axis=0).mean() == pytest.approx(0.02, abs=0.005)
    assert (~changed.any(axis=0)).mean() == pytest.approx(0.05, abs=0.01)


def camera(**options):
    return CAMERAS.build({"type": "perturb", **options}, "camera")


def test_a_camera_follows_from_the_seed_and_stays_the_same_within_a_sample():
    stream = recorded(RAMP)
    make = camera(threshold_prob=1.0, drop_prob=1.0, hot_prob=1.0, hot_max=0.5, dead_prob=1.0, dead_max=0.5)
    one, same, other = make.draw([0, 1, 2]), make.draw([0, 1, 2]), make.draw([0, 1, 3])

    assert one == same and one != other
    a, b = one.apply(stream, 4), one.apply(stream, 5)
    assert np.array_equal(a, same.apply(stream, 4)) and not np.array_equal(a, b)
    rows = [frame[~(~frame.any(axis=(1, 2)))].all(axis=0) for frame in (a, b)]  # hot pixels, in planes not lost
    assert rows[0].any() and np.array_equal(rows[0] & rows[1], rows[0])


def test_each_change_comes_as_often_and_as_strong_as_asked():
    make = camera(threshold_prob=0.5, threshold_range=[0.5, 4.0], drop_prob=0.25, drop_max=0.2)
    draws = [make.draw([0, 0, i]) for i in range(800)]
    changed = [d.threshold for d in draws if d.threshold != 1.0]

    assert 340 < len(changed) < 460 and min(changed) < 0.6 and max(changed) > 3.3
    assert 150 < sum(d.drop > 0 for d in draws) < 250 and 0.17 < max(d.drop for d in draws) <= 0.2
    assert all(d.hot == d.dead == 0 and d.known_rate_factor == 1 for d in draws)


def test_a_known_rate_is_divided_out():
    draw = camera(threshold_prob=1.0, threshold_range=[2.0, 2.0], known_rate=True).draw([0])
    assert draw.threshold == pytest.approx(2.0) and draw.known_rate_factor == pytest.approx(0.5)


def test_wrong_options_are_named():
    with pytest.raises(OptionError, match=r"camera\.drop_max is 1\.5"):
        camera(drop_max=1.5)
    with pytest.raises(OptionError, match=r"camera\.threshold_range is \[4\.0, 2\.0\]"):
        camera(threshold_range=[4.0, 2.0])

import numpy as np
import pytest

from data.spike import simulate
from data.spike.formats import read_spikes, write_spikes
from data.spike.represent import represent
from data.spike.stream import SpikeGeometry


def sensor(rate=0.5, seed=0, **options):
    return simulate.IntegrateAndFire(8, 8, rate=rate, rng=np.random.default_rng(seed), **options)


def constant(light, planes):
    return [np.full((8, 8), light, np.float32)] * planes


@pytest.mark.parametrize("light", [0.05, 0.3, 0.77, 1.0])
def test_the_mean_rate_is_rate_times_light(light):
    # Soft reset: over T planes the count is exact to one spike.
    spikes = sensor(rate=0.9).run(constant(light, 2000))
    assert np.abs(spikes.sum(0) - 0.9 * light * 2000).max() <= 1.01


def test_a_pixel_fires_at_most_once_per_plane_and_never_in_the_dark():
    assert sensor(rate=3.0).run(constant(1.0, 20)).max() == 1
    assert sensor(initial_charge=0.99).run(constant(0.0, 50)).sum() == 0


@pytest.mark.parametrize("rate", [1.8, 3.0])
def test_a_pixel_that_was_too_bright_does_not_fire_on_in_the_dark(rate):
    # Charge beyond one spike per plane was once kept: (rate - 1) spikes for each bright plane came afterwards.
    bright = sensor(rate=rate)
    assert (bright.run(constant(1.0, 40)) == 1).all()
    assert bright.run(constant(0.0, 60)).sum() == 0 and (bright.charge < bright.threshold).all()


def test_the_threshold_alone_changes_nothing_at_a_given_rate():
    a, b = (sensor(threshold=t).run(constant(0.3, 100)) for t in (1.0, 2.0))
    assert np.array_equal(a, b)


def test_the_published_simulator_is_reproduced():
    # SpkDeblurNet's v2s: A += grey; fire at A >= 2; A -= 2. Here rate = 1 / 2, threshold 2.
    rng = np.random.default_rng(3)
    lights = rng.random((60, 8, 8)).astype(np.float32)
    charge = np.zeros((8, 8), np.float32)
    expected = []
    for light in lights:
        charge += light
        fired = charge >= 2
        charge -= 2.0 * fired
        expected.append(fired)
    found = simulate.IntegrateAndFire(8, 8, rate=0.5, threshold=2.0, rng=rng, initial_charge=0.0).run(lights)
    assert np.array_equal(found, np.array(expected))


def test_the_charge_goes_on_from_one_file_to_the_next():
    whole = sensor().run(constant(0.37, 50))
    parts = sensor()
    assert np.array_equal(np.concatenate([parts.run(constant(0.37, 20)), parts.run(constant(0.37, 30))]), whole)


def test_noise_follows_from_the_seed_and_keeps_the_mean():
    noise = {"shot_noise": 0.1, "dark_rate": 0.01, "threshold_mismatch": 0.05}
    a, b, c = (sensor(seed=s, **noise).run(constant(0.4, 1000)) for s in (0, 0, 1))

    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert a.mean() == pytest.approx(0.5 * 0.4 + 0.01, rel=0.05)
    assert np.ptp(a.sum(0)) > 4  # fixed pattern: pixels differ by more than the one spike of a clean sensor


def test_simulated_spikes_survive_the_file_and_give_the_light_back(tmp_path):
    light = np.random.default_rng(0).uniform(0.1, 1.0, (8, 8)).astype(np.float32)
    spikes = simulate.IntegrateAndFire(8, 8, rate=0.8, rng=np.random.default_rng(0)).run([light] * 400)
    geometry = SpikeGeometry(8, 8)
    write_spikes(tmp_path / "a.dat", spikes, geometry)
    read = read_spikes(tmp_path / "a.dat", geometry)

    assert np.array_equal(read, spikes)
    assert np.abs(represent("tfp", read, 200, rate=0.8, half_window=199)[0] - light).max() < 0.005


def test_a_larger_pixel_collects_the_mean_of_its_block():
    light = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert simulate.bin_pixels(light, 2).tolist() == [[2.5, 4.5], [10.5, 12.5]]
    with pytest.raises(ValueError, match="divisible"):
        simulate.bin_pixels(light, 3)

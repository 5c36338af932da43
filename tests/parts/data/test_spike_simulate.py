"""data/spike/simulate.py, light.py and data/augment.py: simulated sensors, and random draws.

A pixel of the sensor sums light as a charge. When the charge reaches a threshold, the pixel fires a
spike and the threshold is subtracted. A plane says for each pixel whether it fired at one instant.
`plane_light` computes the light from the spikes. `change_threshold` and `CameraDraw` change
recorded spikes into spikes of another camera.

All data are simulated here: constant light, a ramp from dark to bright, or random spikes. Light is
between 0 (dark) and 1 (full light).

A "draw" is a set of random choices. E.g. a `CameraDraw` has all random choices about the camera of
a sample. Draws for one purpose must not depend on draws for other purposes.
"""

import dataclasses
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.augment import CAMERAS, CameraDraw
from data.cameras.rgb_camera import RgbCamera
from data.sample_order import ResumableDistributedSampler
from data.select_dataset import build_dataset
from data.spike import simulate
from data.spike.light import plane_light, window_light
from data.spike.threshold import change_threshold
from tests.helpers.clip_files import data_section, write_clip, write_info
from utils.errors import OptionError
from utils.random_streams import random_stream

# ---- The sensor ----


def sensor(rate: float = 0.5, seed: int = 0, **options: Any) -> simulate.IntegrateAndFire:
    """Return a sensor of 8 x 8 pixels.

    rate: spikes per plane in full light.
    options: more arguments, e.g. initial_charge=0.99: each pixel begins shortly before a spike.
    """
    rng = np.random.default_rng(seed)
    return simulate.IntegrateAndFire(8, 8, rate=rate, rng=rng, **options)


def constant(light: float, planes: int) -> list[np.ndarray]:
    """Return `planes` planes (8, 8) of the same light, which is from 0 to 1."""
    return [np.full((8, 8), light, np.float32)] * planes


@pytest.mark.parametrize("light", [0.05, 0.3, 0.77, 1.0])
def test_the_mean_rate_is_rate_times_light(light):
    spikes = sensor(rate=0.9).run(constant(light, planes=2000))

    count = spikes.sum(axis=0)
    expected = 0.9 * light * 2000
    # A pixel keeps the charge beyond its threshold, so no light is lost. The error of the count is
    # at most the one spike whose charge is not yet complete. 0.01 allows for rounding.
    assert np.abs(count - expected).max() <= 1.01


# A rate above 1 means more than one spike per plane, but a pixel fires at most once per plane. The
# charge of the spikes that cannot be fired must be lost. If a pixel kept this charge, the spikes
# would come later, in the dark.
FAST_RATES = [1.8, 3.0]


@pytest.mark.parametrize("rate", FAST_RATES)
def test_a_pixel_in_the_dark_never_fires(rate):
    dark = sensor(rate=rate, initial_charge=0.99)

    assert dark.run(constant(0.0, planes=50)).sum() == 0


@pytest.mark.parametrize("rate", FAST_RATES)
def test_a_pixel_fires_at_most_once_per_plane(rate):
    bright = sensor(rate=rate, initial_charge=0.99)

    spikes = bright.run(constant(1.0, planes=40))

    assert (spikes == 1).all()


@pytest.mark.parametrize("rate", FAST_RATES)
def test_a_pixel_in_the_dark_does_not_fire_for_light_of_earlier_planes(rate):
    bright = sensor(rate=rate, initial_charge=0.99)
    bright.run(constant(1.0, planes=40))

    assert bright.run(constant(0.0, planes=60)).sum() == 0
    assert (bright.charge < bright.threshold).all()


def test_the_published_simulator_is_reproduced():
    rng = np.random.default_rng(3)
    lights = rng.random((60, 8, 8)).astype(np.float32)
    options: dict[str, Any] = {"rate": 0.5, "threshold": 2.0, "initial_charge": 0.0}

    found = simulate.IntegrateAndFire(8, 8, rng=rng, **options).run(lights)

    # The published simulator of SpkDeblurNet (v2s) adds up the grey values of a pixel. When the sum
    # reaches 2, the pixel fires, and 2 is subtracted.
    charge = np.zeros((8, 8), np.float32)
    expected = []
    for light in lights:
        charge += light
        fired = charge >= 2
        charge -= 2.0 * fired
        expected.append(fired)
    assert np.array_equal(found, np.array(expected))


def test_the_charge_is_kept_from_one_file_to_the_next():
    whole = sensor().run(constant(0.37, planes=50))

    in_parts = sensor()
    first = in_parts.run(constant(0.37, planes=20))
    second = in_parts.run(constant(0.37, planes=30))

    assert np.array_equal(np.concatenate([first, second]), whole)


def noisy_spikes(seed):
    """Return 1000 planes of light 0.4, seen by a noisy sensor with this seed."""
    noise = {"shot_noise": 0.1, "dark_rate": 0.01, "threshold_mismatch": 0.05}
    return sensor(seed=seed, **noise).run(constant(0.4, planes=1000))


def test_noise_follows_from_the_seed():
    assert np.array_equal(noisy_spikes(seed=0), noisy_spikes(seed=0))


def test_another_seed_gives_other_noise():
    assert not np.array_equal(noisy_spikes(seed=0), noisy_spikes(seed=1))


def test_noise_keeps_the_mean():
    signal = 0.5 * 0.4  # rate times light
    dark_current = 0.01  # adds spikes in the dark and in the light

    # The threshold of each pixel is off by about 5 %, so the mean of 64 pixels is off by about
    # 5 % / sqrt(64) = 0.6 %. The tolerance of 5 % is eight times as much.
    assert noisy_spikes(seed=0).mean() == pytest.approx(signal + dark_current, rel=0.05)


def test_a_threshold_mismatch_gives_a_fixed_pattern():
    counts = noisy_spikes(seed=0).sum(axis=0)

    # Without noise, the counts of two pixels differ by at most one spike. Each pixel has about 200
    # spikes, so a mismatch with a standard deviation of 5 % changes a count by about 10 spikes. A
    # difference of more than 4 spikes shows the mismatch.
    most_minus_least = counts.max() - counts.min()
    assert most_minus_least > 4


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"rate": 0.0}, id="no rate"),
        pytest.param({"rate": -0.5}, id="negative rate"),
        pytest.param({"threshold": 0.0}, id="no threshold"),
    ],
)
def test_a_sensor_without_a_rate_or_a_threshold_is_refused(wrong):
    values: dict[str, Any] = {"rate": 0.5, **wrong}

    with pytest.raises(ValueError, match="expected numbers above 0"):
        simulate.IntegrateAndFire(2, 2, rng=np.random.default_rng(0), **values)


# ---- The light between spikes ----


def light_by_definition(spikes: list[int]) -> list[Fraction]:
    """Return the light of each plane of one pixel, exactly.

    In an interval of n planes between two spikes, each plane has the light 1 / n. The planes before
    the first spike have the light of the first interval, and the planes after the last spike have
    the light of the last interval. If the pixel is silent for m > n planes before its first or
    after its last spike, these planes have the light 1 / m. With one spike or no spike, each plane
    has the mean.
    """
    planes = len(spikes)
    fired = [plane for plane, spike in enumerate(spikes) if spike]
    if len(fired) < 2:
        return [Fraction(len(fired), planes)] * planes

    # E.g. spikes in planes 4 and 6: the first interval has 2 planes, but the pixel was silent in
    # the planes 0 to 4. So the light before plane 4 is 1/5 and not 1/2.
    first_interval = fired[1] - fired[0]
    silent_at_begin = fired[0] + 1
    at_begin = min(Fraction(1, first_interval), Fraction(1, silent_at_begin))
    last_interval = fired[-1] - fired[-2]
    silent_at_end = planes - fired[-1]
    at_end = min(Fraction(1, last_interval), Fraction(1, silent_at_end))

    # A spike in plane p ends an interval: plane p belongs to the interval before the spike.
    light = []
    for plane in range(planes):
        before = [spike for spike in fired if spike < plane]
        after = [spike for spike in fired if spike >= plane]
        if not before:
            light.append(at_begin)
        elif not after:
            light.append(at_end)
        else:
            light.append(Fraction(1, after[0] - before[-1]))
    return light


@st.composite
def sparse_or_dense_streams(draw: st.DrawFn) -> np.ndarray:
    """Draw planes (T, 2, 3) uint8. T may be larger than 255, the largest number of a byte."""
    planes = draw(st.one_of(st.integers(1, 40), st.sampled_from([254, 255, 256, 300])))
    density = draw(st.sampled_from([0.01, 0.1, 0.3, 0.9]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (rng.random((planes, 2, 3)) < density).astype(np.uint8)


# Settings of Hypothesis: no time limit for an example, and no file with earlier failures.
many = settings(max_examples=150, deadline=None, database=None)


@many
@given(stream=sparse_or_dense_streams())
def test_the_light_of_a_plane_is_one_threshold_per_interval(stream):
    light = plane_light(stream)

    assert light.dtype == np.float32
    assert light.shape == stream.shape
    for y, x in np.ndindex(2, 3):
        expected = light_by_definition(stream[:, y, x].tolist())
        assert light[:, y, x].tolist() == [np.float32(float(value)) for value in expected]


@many
@given(data=st.data(), stream=sparse_or_dense_streams())
def test_the_light_of_a_window_is_the_sum_of_its_planes(data, stream):
    planes = len(stream)
    times = st.integers(0, planes)
    windows = []
    for _ in range(3):
        first, end = sorted((data.draw(times), data.draw(times)))
        windows.append((first, end))

    sums = window_light(stream, windows)

    for y, x in np.ndindex(2, 3):
        light = light_by_definition(stream[:, y, x].tolist())
        for (first, end), found in zip(windows, sums, strict=True):
            expected = float(sum(light[first:end]))
            # A rounding error of 1e-9 per plane is allowed.
            assert abs(found[y, x] - expected) < 1e-9 * planes


# ---- Spikes of a sensor with another threshold ----

# Light (16, 32) from dark on the left to bright on the right.
RAMP = np.broadcast_to(np.linspace(0, 1, 32, dtype=np.float32), (16, 32))


def record_spikes(
    light: np.ndarray, planes: int = 88, rate: float = 0.9, seed: int = 0
) -> np.ndarray:
    """Return the spikes (planes, h, w) of a steady light (h, w)."""
    rng = np.random.default_rng(seed)
    return simulate.IntegrateAndFire(*light.shape, rate=rate, rng=rng).run([light] * planes)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.5, 2, 4])
def test_changed_spikes_have_the_rate_of_a_sensor_with_the_new_threshold(factor):
    changed = change_threshold(record_spikes(RAMP), factor, np.random.default_rng(1))

    assert set(np.unique(changed)) <= {0, 1}
    # The light is the same in a column, so average over planes and rows.
    rates = changed.mean(axis=(0, 1))
    light_of_column = RAMP[0]
    # `record_spikes` has the rate 0.9, the spikes per plane in full light. With `factor` times the
    # threshold, there are 1 / `factor` times as many spikes. But a pixel fires at most once per
    # plane.
    expected = np.minimum(0.9 * light_of_column / factor, 1.0)
    # One spike more or less in 88 planes changes the rate by 1 / 88 = 0.011. The limit is nearly
    # twice this error.
    assert np.abs(rates - expected).max() < 0.02


@pytest.fixture
def bright_dark_bright():
    """Give spikes of 20 bright planes, 19 dark planes, and 10 bright planes, of 16 x 16 pixels."""
    bright = np.ones((16, 16), np.float32)
    dark = np.zeros((16, 16), np.float32)
    sensor = simulate.IntegrateAndFire(16, 16, rate=0.9, rng=np.random.default_rng(0))
    return sensor.run([bright] * 20 + [dark] * 19 + [bright] * 10)


def test_half_the_threshold_gives_two_spikes_for_the_charge_of_a_dark_time(bright_dark_bright):
    changed = change_threshold(bright_dark_bright, factor=0.5, rng=np.random.default_rng(1))

    # For each pixel, the dark time lies within one interval. E.g. for the planes 19 to 39:
    #
    #     planes              0 ... 18         19        20 ... 38    39       40 ... 48
    #     light               bright           bright    dark         bright   bright
    #     recorded spikes     in most planes   none      none         a spike  in most planes
    #
    # The light of an interval is assumed to be constant: one threshold over its n planes, 1 / n per
    # plane. With half the threshold, this light gives two spikes. One of the two spikes may come in
    # the bright planes at the ends of the interval. So there are at most two spikes in the dark,
    # and fewer in some pixels.
    in_the_dark = changed[20:39].sum(axis=0)
    assert (in_the_dark <= 2).all()
    assert in_the_dark.mean() < 2.0


def test_half_the_threshold_gives_nearly_a_spike_per_plane_in_bright_light(bright_dark_bright):
    changed = change_threshold(bright_dark_bright, factor=0.5, rng=np.random.default_rng(1))

    # 0.9 / 0.5 is more than one spike per plane, so nearly every plane has a spike.
    first_bright_time = changed[:20]
    assert first_bright_time.mean() > 0.97
    # The second bright time has the planes 39 to 48. In most pixels the spike of plane 39 ends the
    # dark interval, so plane 39 is left out. In some pixels the spike of plane 40 ends this
    # interval, and plane 40 then has the low light of the interval. Because of these pixels the
    # limit is 0.9 and not 0.97.
    assert changed[40:].mean() > 0.9


def test_the_same_threshold_changes_nothing(bright_dark_bright):
    stream = bright_dark_bright

    assert change_threshold(stream, factor=1.0, rng=np.random.default_rng(0)) is stream


def test_a_stream_without_spikes_stays_without_spikes():
    dark = np.zeros((20, 3, 3), np.uint8)

    assert change_threshold(dark, factor=0.5, rng=np.random.default_rng(0)).sum() == 0


def changed_by_definition(
    stream: np.ndarray, factor: float, rng: np.random.Generator, dark: float
) -> np.ndarray:
    """Return the spikes (T, h, w) of a sensor with `factor` times the threshold, plane by plane.

    The light comes from the recorded spikes. The unit of the charge is the new threshold.

    dark: charge that each plane adds without light.
    """
    # Each pixel begins with a random part of a threshold.
    charge = rng.random(stream.shape[1:], dtype=np.float32)
    one = np.float32(1)
    former = np.zeros_like(charge)
    expected = np.empty_like(stream)
    for plane, light in enumerate(plane_light(stream)):
        # If the light becomes much less, the whole spikes that are left in the charge are lost. The
        # condition is that the interval becomes longer by more than one plane. An interval is
        # 1 / light, so:
        #
        #     1 / light > 1 / former + 1
        #     former > light + light former       times light and former, which may be 0
        #     former > light (1 + former)
        #
        # If the interval is longer by exactly one plane, both sides are equal. Without the factor
        # 0.999, a rounding error would decide then.
        falls = light * (one + former) < np.float32(0.999) * former
        charge[falls] %= one
        charge += light / np.float32(factor) + np.float32(dark)
        expected[plane] = charge >= one
        charge -= expected[plane]
        # With a lower threshold or a dark current, a plane may add more than 1, but a pixel fires
        # at most once per plane. Of the charge that is left, one whole spike and the fraction of a
        # spike are kept: 2.4 becomes 1.4. With a higher threshold and no dark current, a plane adds
        # at most 1 to a charge below 1. So less than 1 is left after the spike, and nothing is cut.
        if factor < 1 or dark:
            is_too_much = charge >= 2
            part_of_a_spike = charge[is_too_much] % one
            charge[is_too_much] = part_of_a_spike + one
        former = light
    return expected


@pytest.mark.parametrize(
    ("factor", "dark"),
    [
        pytest.param(0.05, 0, id="far lower"),
        pytest.param(0.5, 0, id="half"),
        pytest.param(0.77, 0.1, id="lower, with dark current"),
        pytest.param(1 - 1e-9, 0, id="hardly lower"),
        pytest.param(1.0, 0.02, id="the same, with dark current"),
        pytest.param(1 + 1e-9, 0, id="hardly higher"),
        pytest.param(1.5, 0.5, id="higher, with much dark current"),
        pytest.param(1.5, 0, id="higher"),
        pytest.param(4.0, 0, id="far higher"),
    ],
)
@pytest.mark.parametrize(
    ("planes", "height", "width"),
    [
        pytest.param(1, 3, 3, id="one plane"),
        pytest.param(56, 96, 50, id="large planes"),
        pytest.param(264, 20, 16, id="more planes than a byte counts"),
        pytest.param(1200, 5, 90, id="many planes"),
    ],
)
def test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says(
    factor, dark, planes, height, width
):
    rng = np.random.default_rng([planes, height])
    # The density of spikes changes every 9 planes. The square makes low densities more frequent, as
    # in dark scenes.
    density = rng.random((planes // 9 + 1, height, width)) ** 2
    density = np.repeat(density, 9, axis=0)[:planes]
    stream = (rng.random((planes, height, width)) < density).astype(np.uint8)

    found = change_threshold(stream, factor, np.random.default_rng(3), dark)

    expected = changed_by_definition(stream, factor, np.random.default_rng(3), dark)
    assert np.array_equal(found, expected)


# ---- What a camera of the training augmentation changes ----


def camera_draw(drop: float = 0.0, hot: float = 0.0, dead: float = 0.0) -> CameraDraw:
    """Return a camera that makes only the changes of the arguments.

    drop: the share of planes that are lost. hot: the share of pixels that always fire. dead: the
    share of pixels that never fire.
    """
    # With known_rate_factor 1, the rate of the data stays as it is.
    return CameraDraw(
        seed=(0,), threshold=1.0, drop=drop, hot=hot, dead=dead, known_rate_factor=1.0
    )


def test_dropped_planes_are_empty():
    stream = record_spikes(RAMP)

    changed = camera_draw(drop=0.3).apply(stream, frame=0)

    is_empty = ~changed.any(axis=(1, 2))  # (T,)
    # Each of 88 planes is lost with a probability of 0.3. The standard deviation of the lost share
    # is sqrt(0.3 x 0.7 / 88) = 0.05. The limits are three standard deviations away from 0.3.
    assert 0.15 < is_empty.mean() < 0.45
    assert np.array_equal(changed[~is_empty], stream[~is_empty])


def test_stuck_pixels_are_always_or_never_on():
    stream = record_spikes(np.full((100, 100), 0.3, np.float32), planes=20)

    changed = camera_draw(hot=0.02, dead=0.05).apply(stream, frame=0)

    # There are 10,000 pixels. So the standard deviations of the two shares are 0.0014 and 0.0022.
    # The limits are more than three standard deviations away.
    is_hot = changed.all(axis=0)
    is_dead = ~changed.any(axis=0)
    assert is_hot.mean() == pytest.approx(0.02, abs=0.005)
    assert is_dead.mean() == pytest.approx(0.05, abs=0.01)


def camera(**options: Any) -> Any:
    """Return the camera "perturb" with these options. It draws a `CameraDraw` for a sample."""
    return CAMERAS.build({"type": "perturb", **options}, "camera")


@pytest.fixture
def stuck_camera():
    """Give a camera that always changes the threshold, drops planes, and has stuck pixels."""
    return camera(
        threshold_prob=1.0, drop_prob=1.0, hot_prob=1.0, hot_max=0.5, dead_prob=1.0, dead_max=0.5
    )


# The seed of a draw: seed of the dataset, epoch, and number of the sample.
SEED_OF_SAMPLE = [0, 1, 2]
SEED_OF_NEXT_SAMPLE = [0, 1, 3]


def test_a_camera_follows_from_the_seed(stuck_camera):
    stream = record_spikes(RAMP)

    first = stuck_camera.draw(SEED_OF_SAMPLE)
    second = stuck_camera.draw(SEED_OF_SAMPLE)

    assert first == second
    assert np.array_equal(first.apply(stream, frame=4), second.apply(stream, frame=4))


def test_another_sample_has_another_camera(stuck_camera):
    assert stuck_camera.draw(SEED_OF_SAMPLE) != stuck_camera.draw(SEED_OF_NEXT_SAMPLE)


def test_each_frame_of_a_sample_gets_other_noise(stuck_camera):
    stream = record_spikes(RAMP)
    drawn = stuck_camera.draw(SEED_OF_SAMPLE)

    frame_4 = drawn.apply(stream, frame=4)
    frame_5 = drawn.apply(stream, frame=5)

    assert not np.array_equal(frame_4, frame_5)


def always_on(stream: np.ndarray) -> Any:
    """Return which pixels (h, w) fire in each plane that is not lost. A lost plane has no spike."""
    is_recorded = stream.any(axis=(1, 2))
    return stream[is_recorded].all(axis=0)


def test_the_frames_of_a_sample_have_the_same_hot_pixels(stuck_camera):
    # A hot pixel is a faulty pixel that fires in every plane, also without light. The light is at
    # most half of full light, so that no other pixel fires in every plane.
    stream = record_spikes(RAMP / 2)
    drawn = stuck_camera.draw(SEED_OF_SAMPLE)

    hot_in_frame_4 = always_on(drawn.apply(stream, frame=4))
    hot_in_frame_5 = always_on(drawn.apply(stream, frame=5))

    assert hot_in_frame_4.any()
    assert np.array_equal(hot_in_frame_4, hot_in_frame_5)


@pytest.fixture
def threshold_draws():
    """Give 800 draws of a camera that changes thresholds and drops planes."""
    make = camera(threshold_prob=0.5, threshold_range=[0.5, 4.0], drop_prob=0.25, drop_max=0.2)
    # Each draw has a seed of its own: seed 0 of the dataset, epoch 0, and the number of the sample.
    return [make.draw([0, 0, sample]) for sample in range(800)]


def test_the_threshold_changes_as_often_as_asked(threshold_draws):
    changed = [draw.threshold for draw in threshold_draws if draw.threshold != 1.0]

    # The mean number is half of 800, and its standard deviation is sqrt(800 / 4) = 14. The limits,
    # 400 - 60 and 400 + 60, are four standard deviations away.
    assert 340 < len(changed) < 460


def test_the_threshold_changes_by_all_factors_of_its_range(threshold_draws):
    thresholds = [draw.threshold for draw in threshold_draws]

    # About 400 factors between 0.5 and 4.0 come close to both ends.
    assert 0.5 <= min(thresholds) < 0.6
    assert 3.3 < max(thresholds) <= 4.0


def test_planes_are_dropped_as_often_as_asked(threshold_draws):
    dropping = [draw for draw in threshold_draws if draw.drop > 0]

    # The mean number is a quarter of 800, and its standard deviation is 12. The limits are four
    # standard deviations away.
    assert 150 < len(dropping) < 250


def test_as_many_planes_are_dropped_as_asked(threshold_draws):
    largest_share = max(draw.drop for draw in threshold_draws)

    # Shares are uniform between 0 and 0.2, so the largest of about 200 shares is close to 0.2.
    assert 0.17 < largest_share <= 0.2


def test_changes_that_are_not_asked_for_are_not_drawn(threshold_draws):
    for draw in threshold_draws:
        assert draw.hot == 0
        assert draw.dead == 0
        assert draw.known_rate_factor == 1


def test_a_known_rate_follows_the_threshold():
    make = camera(threshold_prob=1.0, threshold_range=[2.0, 2.0], known_rate=True)

    draw = make.draw([0])

    assert draw.threshold == pytest.approx(2.0)
    # At twice the threshold a pixel fires half as often.
    assert draw.known_rate_factor == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("drop_max", 1.5, id="more than all planes"),
        pytest.param("threshold_range", [4.0, 2.0], id="a range from high to low"),
    ],
)
def test_a_camera_that_cannot_be_is_refused(key, value):
    with pytest.raises(OptionError) as error:
        camera(**{key: value})

    assert f"camera.{key} is {value}" in str(error.value)


# ---- How often a camera is changed ----
#
# The tests draw the cameras of 400 samples. Each of three changes comes with probability 1/2: a
# dark current of up to 0.1, noise of the RGB frames of up to 0.2, and JPEG of a quality from 20 on.
# If something has the probability p, its number among n draws has the standard deviation
# sqrt(n p (1 - p)): 10 for p = 1/2, and 8.7 for p = 1/4.


@pytest.fixture
def rgb_draws():
    """Give 400 draws of a camera with dark current, noise of the frames, and JPEG."""
    make = camera(
        dark_prob=0.5, dark_max=0.1, rgb_prob=0.5, rgb_shot_max=0.2, jpeg_prob=0.5, jpeg_min=20
    )
    # Each draw has a seed of its own: seed 0 of the dataset, epoch 0, and the number of the sample.
    return [make.draw([0, 0, sample]) for sample in range(400)]


def test_a_dark_current_comes_as_often_as_asked(rgb_draws):
    count = sum(draw.dark > 0 for draw in rgb_draws)

    # The mean number is half of 400. The limits are four standard deviations of 10 away.
    assert 160 < count < 240


def test_a_dark_current_is_as_strong_as_asked(rgb_draws):
    strongest = max(draw.dark for draw in rgb_draws)

    # The largest of about 200 draws comes close to the limit dark_max=0.1.
    assert 0.09 < strongest <= 0.1


def test_a_frame_stays_as_it_is_as_often_as_asked(rgb_draws):
    count = sum(draw.rgb is None for draw in rgb_draws)

    # Half of the draws have no noise, and half of these draws have no JPEG either. So the mean
    # number is a quarter of 400. The limits are more than three standard deviations of 8.7 away.
    assert 70 < count < 130


def test_a_dark_current_fires_in_the_dark(rgb_draws):
    darkest = max(rgb_draws, key=lambda draw: draw.dark)

    without_spikes = np.zeros((200, 20, 20), np.uint8)
    black = darkest.apply(without_spikes, frame=0)

    # `dark` is the charge that each plane adds, in thresholds. So `dark` is also the number of
    # spikes per plane. A pixel fires about 20 times in 200 planes. The random charge at the start
    # changes this number by less than one spike, which is 5 %.
    assert black.mean() == pytest.approx(darkest.dark, rel=0.05)


@pytest.fixture
def coloured_ramp():
    """Give a picture (16, 32, 3) uint8 with a ramp in red and in green, and flat blue.

    `RAMP` rises from 0 at the left border to 1 at the right border.
    """
    channels = [RAMP, 0.5 * RAMP, np.full_like(RAMP, 0.2)]
    return np.rint(255 * np.stack(channels, axis=2)).astype(np.uint8)


def test_a_frame_gets_noise_or_jpeg_or_both(rgb_draws, coloured_ramp):
    mean_changes = {}
    for draw in rgb_draws:
        if draw.rgb:
            changed = draw.photograph(coloured_ramp, frame=3).astype(float)
            noise = "noise" if draw.rgb.shot else "no noise"
            jpeg = "JPEG" if draw.rgb.jpeg else "no JPEG"
            mean_changes[noise, jpeg] = np.abs(changed - coloured_ramp).mean()

    assert set(mean_changes) == {("noise", "no JPEG"), ("no noise", "JPEG"), ("noise", "JPEG")}
    # A change is measured in levels of 8 bits. If the mean change is below 0.1, the picture has
    # hardly changed. If the mean change is above 40, a sixth of the range, little of the picture is
    # left.
    for change in mean_changes.values():
        assert 0.1 < change < 40


def test_a_frame_gets_the_same_noise_each_time(rgb_draws, coloured_ramp):
    for draw in rgb_draws:
        if draw.rgb:
            first = draw.photograph(coloured_ramp, frame=3)
            second = draw.photograph(coloured_ramp, frame=3)
            assert np.array_equal(first, second)


def sample_with_camera(folder: Path, camera: dict[str, Any] | None) -> dict[str, Any]:
    """Return the first sample of a training set. camera: the section `camera`, or None."""
    values = data_section(folder, gt_size=16, num_frame=3, camera=camera)
    dataset = build_dataset(values, "train", seed=0)
    epoch = 0
    number = 0
    return dataset[epoch, number]


def test_noise_of_the_rgb_camera_changes_only_the_blurry_frames(tmp_path):
    write_clip(tmp_path, "clip0", frames=3, h=16, w=16)
    write_info(tmp_path, h=16, w=16)
    noise = {"type": "perturb", "rgb_prob": 1.0, "rgb_shot_max": 0.3}

    plain = sample_with_camera(tmp_path, None)
    noisy = sample_with_camera(tmp_path, noise)

    # The mean change is more than one level of 8 bits, which is 1 / 255 = 0.004.
    assert (plain["lq"] - noisy["lq"]).abs().mean() > 0.005
    assert torch.equal(plain["gt"], noisy["gt"])
    assert torch.equal(plain["spike"], noisy["spike"])


# ---- Random draws do not depend on one another ----

# Number of samples that are drawn.
DRAWS = 500
# The largest correlation that may occur by chance. The correlation of n independent pairs of
# numbers has the standard deviation 1 / sqrt(n), which is 0.045 for 500 pairs. The bound is 4.5
# standard deviations, because many correlations are compared with it.
BOUND = 0.2
# A camera that draws every change that it has.
CAMERA = {
    "type": "perturb",
    "threshold_prob": 1.0,
    "drop_prob": 0.5,
    "drop_max": 0.5,
    "hot_prob": 0.5,
    "hot_max": 0.5,
    "dead_prob": 0.5,
    "dead_max": 0.5,
    "dark_prob": 0.5,
    "rgb_prob": 0.5,
    "jpeg_prob": 0.5,
}


def mean_position(is_true: np.ndarray) -> float:
    """Return the mean position of the true values of an array. 0 is its beginning, and 1 its end.

    If no value is true, return the middle, because true values at random places lie in the middle
    on average, too. Another value would be correlated with the number of true values. E.g. "which
    lost" would be correlated with "lost share", although the two are drawn independently.
    """
    positions = np.flatnonzero(is_true)
    if len(positions):
        return positions.mean() / is_true.size
    middle = (is_true.size - 1) / 2
    return middle / is_true.size


def numbers_of_pixels(camera: Any) -> dict[str, Any]:
    """Return numbers for draws of a camera that have no field of their own: name -> number.

    E.g. the camera draws which pixels are hot. These draws are found from what the camera does with
    planes of full light and with planes of darkness.
    """
    full_light = np.ones((24, 16, 16), np.uint8)
    darkness = np.zeros_like(full_light)

    # With the threshold of the data and without dark current, the camera only loses planes and has
    # hot and dead pixels. In darkness only hot pixels fire.
    unscaled = dataclasses.replace(camera, threshold=1.0, dark=0.0)
    white = unscaled.apply(full_light, frame=0)
    black = unscaled.apply(darkness, frame=0)
    is_hot = black.all(axis=0)  # (16, 16)
    # In full light a dead pixel never fires. In a lost plane only hot pixels have spikes.
    is_dead = ~white.any(axis=0)  # (16, 16)
    is_lost = ~white[:, ~is_hot].any(axis=1)  # (24,)

    # Each pixel begins a frame with a random charge. At twice the threshold, a pixel in full light
    # fires in the first plane if this charge is more than half of the threshold.
    twice = dataclasses.replace(camera, threshold=2.0, drop=0.0, hot=0.0, dead=0.0, dark=0.0)
    fires_at_once = twice.apply(full_light, frame=1)[0]
    return {
        "which lost": mean_position(is_lost),
        "which hot": mean_position(is_hot),
        "which dead": mean_position(is_dead),
        "charge of a pixel": fires_at_once[0, 0],
        "charge of another": fires_at_once[0, 1],
    }


def place_in_epoch(seed: int, epoch: int, index: int) -> int:
    """Return the number that the sampler has at this place of the order of an epoch.

    The clip has 24 frames, so an epoch of DRAWS repetitions has 24 x DRAWS samples.
    """
    sampler = ResumableDistributedSampler(
        24 * DRAWS, world_size=1, rank=0, samples_per_step=1, seed=seed
    )
    sampler.seek(epoch)
    return sampler.order()[index]


def drawn_numbers(dataset: Any, epoch: int, index: int) -> dict[str, Any]:
    """Return everything that is drawn for a sample: name -> number.

    If the draws are independent, none of these numbers says anything about another number.
    """
    draw = dataset.draw((epoch, index))
    camera = draw.camera
    rgb = camera.rgb or RgbCamera()
    frames = sorted(draw.frames)
    interval = frames[1] - frames[0]
    # Three frames must fit into the frames 0 to 23.
    last_possible_first_frame = 23 - 2 * interval
    return {
        "interval": interval,
        "first frame": frames[0] / last_possible_first_frame,
        "top": draw.aug.top,
        "left": draw.aug.left,
        "hflip": draw.aug.hflip,
        "vflip": draw.aug.vflip,
        "transpose": draw.aug.transpose,
        "reverse": draw.aug.reverse,
        "threshold": np.log(camera.threshold),
        "lost share": camera.drop,
        "hot share": camera.hot,
        "dead share": camera.dead,
        "dark": camera.dark,
        "noise": rgb.shot,
        "quality": rgb.jpeg,
        **numbers_of_pixels(camera),
        "place in the epoch": place_in_epoch(dataset.seed, epoch, index),
        # The number that the generator gives next, after all draws for the sample.
        "what follows": draw.rng.random(),
    }


def first_samples_of_epochs() -> list[tuple[int, int]]:
    """Return (epoch, index) of the first sample of many epochs."""
    return [(epoch, 0) for epoch in range(DRAWS)]


def samples_of_one_epoch() -> list[tuple[int, int]]:
    """Return (epoch, index) of many samples of an epoch.

    The clip has 24 frames. Sample 23 would begin with the last frame, but then its three frames
    would not fit into the clip. So the first frame of sample 23 is drawn at random. The same holds
    for samples 47, 71, ...
    """
    epoch = 3
    return [(epoch, 24 * repetition + 23) for repetition in range(DRAWS)]


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(first_samples_of_epochs(), id="first sample of many epochs"),
        pytest.param(samples_of_one_epoch(), id="samples of one epoch"),
    ],
)
def test_no_two_draws_of_a_sample_are_correlated(tmp_path, samples):
    write_clip(tmp_path, "clip0", frames=24, h=24, w=32)
    write_info(tmp_path, h=24, w=32)
    values = data_section(
        tmp_path,
        use_hflip=True,
        use_rot=True,
        random_reverse=True,
        gt_size=8,
        num_frame=3,
        interval_list=[1, 2],
        camera=CAMERA,
    )
    dataset = build_dataset(values, "train", seed=0)

    of_samples = [drawn_numbers(dataset, epoch, index) for epoch, index in samples]

    values = {}  # name of a number -> its value in each sample
    for name in of_samples[0]:
        values_of_name = [float(numbers[name]) for numbers in of_samples]
        # A number that is the same for all samples has no correlation, so it is left out.
        if len(set(values_of_name)) > 1:
            values[name] = values_of_name
    # There are 22 numbers. If fewer than 17 numbers varied, the test would compare too little. The
    # limit was chosen by hand.
    assert len(values) >= 17, list(values)

    correlated = {}
    for a, b in itertools.combinations(values, 2):
        correlation = np.corrcoef(values[a], values[b])[0, 1]
        if abs(correlation) >= BOUND:
            correlated[f"{a} and {b}"] = round(correlation, 2)
    assert not correlated


def test_streams_of_different_purposes_or_keys_differ():
    # A key is the purpose of a stream, a text, and then any numbers. Similar keys, e.g. "a 0" and
    # "a", 0, must not give the same stream.
    keys: list[tuple[Any, ...]] = [
        ("a", 0),
        ("a", 0, 0),
        ("a",),
        ("b", 0),
        ("a", 1),
        ("a", 2**40),
        ("a", 2**40, 0),
        ("a 0",),
        ("a", 0, 1),
    ]

    first_values = {random_stream(*key).integers(2**62) for key in keys}

    assert len(first_values) == len(keys)


def test_a_stream_follows_from_its_purpose():
    assert random_stream("a", 0).random() == random_stream("a", 0).random()

"""data/spike/simulate.py and data/augment.py: simulated sensors and cameras, and random draws.

The sensor integrates light and fires. Its spikes give the light back (`plane_light`), and can be
changed into those of another camera (`change_threshold`, `CameraDraw`). All data are simulated
here: constant light, a ramp from dark to bright, or random spikes. Random draws for one purpose
must not depend on draws for another purpose.
"""

import dataclasses
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.augment import CAMERAS, CameraDraw
from data.cameras.rig import RgbCamera
from data.loader import ResumableDistributedSampler
from data.select_dataset import build_dataset
from data.spike import simulate
from data.spike.simulate import plane_light, window_light
from tests.helpers.clip_files import section, write_clip, write_info
from utils.errors import OptionError
from utils.random_streams import random_stream

# ---- The sensor ----


def sensor(rate=0.5, seed=0, **options):
    """Return a sensor of 8 x 8 pixels. rate: spikes per plane at full light."""
    rng = np.random.default_rng(seed)
    return simulate.IntegrateAndFire(8, 8, rate=rate, rng=rng, **options)


def constant(light, planes):
    """Return `planes` planes of the same light."""
    return [np.full((8, 8), light, np.float32)] * planes


@pytest.mark.parametrize("light", [0.05, 0.3, 0.77, 1.0])
def test_the_mean_rate_is_rate_times_light(light):
    spikes = sensor(rate=0.9).run(constant(light, 2000))

    count = spikes.sum(0)
    # A pixel keeps the charge beyond its threshold. So the count is exact to one spike.
    assert np.abs(count - 0.9 * light * 2000).max() <= 1.01


# A rate above 1 would be more than one spike a plane, which no pixel can give. If a pixel kept
# the charge, (rate - 1) spikes for each bright plane would come afterwards.
FAST_RATES = [1.8, 3.0]


@pytest.mark.parametrize("rate", FAST_RATES)
def test_a_pixel_in_the_dark_never_fires(rate):
    dark = sensor(rate=rate, initial_charge=0.99)

    assert dark.run(constant(0.0, 50)).sum() == 0


@pytest.mark.parametrize("rate", FAST_RATES)
def test_a_pixel_fires_once_per_plane_at_most(rate):
    bright = sensor(rate=rate, initial_charge=0.99)

    spikes = bright.run(constant(1.0, 40))

    assert (spikes == 1).all()


@pytest.mark.parametrize("rate", FAST_RATES)
def test_no_spikes_of_a_bright_past_come_in_the_dark(rate):
    bright = sensor(rate=rate, initial_charge=0.99)
    bright.run(constant(1.0, 40))

    assert bright.run(constant(0.0, 60)).sum() == 0
    assert (bright.charge < bright.threshold).all()


def test_the_published_simulator_is_reproduced():
    rng = np.random.default_rng(3)
    lights = rng.random((60, 8, 8)).astype(np.float32)
    options: dict[str, Any] = {"rate": 0.5, "threshold": 2.0, "initial_charge": 0.0}

    found = simulate.IntegrateAndFire(8, 8, rng=rng, **options).run(lights)

    # SpkDeblurNet's v2s: A += grey; fire if A >= 2; A -= 2.
    charge = np.zeros((8, 8), np.float32)
    expected = []
    for light in lights:
        charge += light
        fired = charge >= 2
        charge -= 2.0 * fired
        expected.append(fired)
    assert np.array_equal(found, np.array(expected))


def test_the_charge_goes_on_from_one_file_to_the_next():
    whole = sensor().run(constant(0.37, 50))

    in_parts = sensor()
    first = in_parts.run(constant(0.37, 20))
    second = in_parts.run(constant(0.37, 30))

    assert np.array_equal(np.concatenate([first, second]), whole)


def noisy_spikes(seed):
    """Return 1000 planes of light 0.4, seen by a noisy sensor with this seed."""
    noise = {"shot_noise": 0.1, "dark_rate": 0.01, "threshold_mismatch": 0.05}
    return sensor(seed=seed, **noise).run(constant(0.4, 1000))


def test_noise_follows_from_the_seed():
    assert np.array_equal(noisy_spikes(seed=0), noisy_spikes(seed=0))


def test_another_seed_gives_other_noise():
    assert not np.array_equal(noisy_spikes(seed=0), noisy_spikes(seed=1))


def test_noise_keeps_the_mean():
    signal = 0.5 * 0.4  # rate times light
    dark_current = 0.01

    assert noisy_spikes(seed=0).mean() == pytest.approx(signal + dark_current, rel=0.05)


def test_a_threshold_mismatch_gives_a_fixed_pattern():
    counts = noisy_spikes(seed=0).sum(0)

    # The pixels of a clean sensor differ by one spike at most.
    assert np.ptp(counts) > 4


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

    with pytest.raises(ValueError, match="rate and threshold are positive"):
        simulate.IntegrateAndFire(2, 2, rng=np.random.default_rng(0), **values)


# ---- The light between spikes ----


def light_by_definition(spikes: list[int]) -> list[Fraction]:
    """Return the light of each plane of one pixel, exactly.

    Between two spikes a pixel gets the light of one spike, spread evenly over the interval. Before
    the first spike and after the last one the light is that of the neighbouring interval, but less
    if the pixel stayed silent for longer. One spike or none gives the mean of all planes.
    """
    planes = len(spikes)
    fired = [plane for plane, spike in enumerate(spikes) if spike]
    if len(fired) < 2:
        return [Fraction(len(fired), planes)] * planes

    at_begin = min(Fraction(1, fired[1] - fired[0]), Fraction(1, fired[0] + 1))
    at_end = min(Fraction(1, fired[-1] - fired[-2]), Fraction(1, planes - fired[-1]))
    light = []
    for plane in range(planes):
        before = [p for p in fired if p < plane]
        after = [p for p in fired if p >= plane]
        if not before:
            light.append(at_begin)
        elif not after:
            light.append(at_end)
        else:
            light.append(Fraction(1, after[0] - before[-1]))
    return light


@st.composite
def sparse_or_dense_streams(draw):
    """Draw planes (T, 2, 3) uint8. Some are as long as a byte can count, or longer."""
    planes = draw(st.one_of(st.integers(1, 40), st.sampled_from([254, 255, 256, 300])))
    density = draw(st.sampled_from([0.01, 0.1, 0.3, 0.9]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (rng.random((planes, 2, 3)) < density).astype(np.uint8)


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
            assert abs(found[y, x] - expected) < 1e-9 * planes


# ---- Spikes of a sensor with another threshold ----

# Light (16, 32) from dark on the left to bright on the right.
RAMP = np.broadcast_to(np.linspace(0, 1, 32, dtype=np.float32), (16, 32))


def recorded(light, planes=88, rate=0.9, seed=0):
    """Return the spikes (planes, h, w) of a steady light (h, w)."""
    rng = np.random.default_rng(seed)
    return simulate.IntegrateAndFire(*light.shape, rate=rate, rng=rng).run([light] * planes)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.5, 2, 4])
def test_another_threshold_fires_as_a_sensor_with_that_threshold_would(factor):
    changed = simulate.change_threshold(recorded(RAMP), factor, np.random.default_rng(1))

    assert set(np.unique(changed)) <= {0, 1}
    rates = changed.mean(axis=(0, 1))  # of each column
    expected = np.minimum(0.9 * RAMP[0] / factor, 1.0)
    assert np.abs(rates - expected).max() < 0.02


@pytest.fixture
def bright_dark_bright():
    """Give spikes of 20 bright planes, 19 dark planes, and 10 bright planes, of 16 x 16 pixels."""
    bright = np.ones((16, 16), np.float32)
    dark = np.zeros((16, 16), np.float32)
    sensor = simulate.IntegrateAndFire(16, 16, rate=0.9, rng=np.random.default_rng(0))
    return sensor.run([bright] * 20 + [dark] * 19 + [bright] * 10)


def test_half_the_threshold_gives_two_spikes_for_the_charge_of_a_dark_time(bright_dark_bright):
    changed = simulate.change_threshold(bright_dark_bright, 0.5, np.random.default_rng(1))

    # One threshold of charge separates two spikes. With half the threshold it is two spikes.
    in_the_dark = changed[20:39].sum(axis=0)
    assert (in_the_dark <= 2).all()
    assert in_the_dark.mean() < 2.0


def test_half_the_threshold_gives_nearly_a_spike_per_plane_in_bright_light(bright_dark_bright):
    changed = simulate.change_threshold(bright_dark_bright, 0.5, np.random.default_rng(1))

    assert changed[:20].mean() > 0.97
    assert changed[40:].mean() > 0.9


def test_the_same_threshold_changes_nothing(bright_dark_bright):
    stream = bright_dark_bright

    assert simulate.change_threshold(stream, 1.0, np.random.default_rng(0)) is stream


def test_a_stream_without_spikes_stays_without_spikes():
    dark = np.zeros((20, 3, 3), np.uint8)

    assert simulate.change_threshold(dark, 0.5, np.random.default_rng(0)).sum() == 0


def changed_by_definition(stream, factor, rng, dark):
    """Return the spikes of a sensor with `factor` times the threshold, plane by plane.

    dark: charge that each plane adds without light.
    """
    charge = rng.random(stream.shape[1:], dtype=np.float32)
    one = np.float32(1)
    former = np.zeros_like(charge)
    expected = np.empty_like(stream)
    for plane, light in enumerate(plane_light(stream)):
        # The light falls: whole spikes that were left from the bright time are lost.
        falls = light * (one + former) < np.float32(0.999) * former
        np.fmod(charge, one, out=charge, where=falls)
        charge += light / np.float32(factor) + np.float32(dark)
        expected[plane] = charge >= one
        charge -= expected[plane]
        # A pixel fires once a plane. Of more charge, at most one spike is kept for later.
        if factor < 1 or dark:
            np.add(np.fmod(charge, one), one, out=charge, where=charge >= 2)
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
    # The density of spikes changes each 9 planes.
    density = rng.random((planes // 9 + 1, height, width)) ** 2
    density = np.repeat(density, 9, axis=0)[:planes]
    stream = (rng.random((planes, height, width)) < density).astype(np.uint8)

    found = simulate.change_threshold(stream, factor, np.random.default_rng(3), dark)

    expected = changed_by_definition(stream, factor, np.random.default_rng(3), dark)
    assert np.array_equal(found, expected)


# ---- What a camera of the training augmentation changes ----


def camera_draw(drop=0.0, hot=0.0, dead=0.0):
    """Return a drawn camera that changes nothing else.

    drop: the share of lost planes. hot, dead: the shares of pixels.
    """
    return CameraDraw(
        seed=(0,), threshold=1.0, drop=drop, hot=hot, dead=dead, known_rate_factor=1.0
    )


def test_dropped_planes_are_empty():
    stream = recorded(RAMP)

    changed = camera_draw(drop=0.3).apply(stream, 0)

    is_empty = ~changed.any(axis=(1, 2))
    assert 0.15 < is_empty.mean() < 0.45
    assert np.array_equal(changed[~is_empty], stream[~is_empty])


def test_stuck_pixels_are_always_or_never_on():
    stream = recorded(np.full((100, 100), 0.3, np.float32), planes=20)

    changed = camera_draw(hot=0.02, dead=0.05).apply(stream, 0)

    is_hot = changed.all(axis=0)
    is_dead = ~changed.any(axis=0)
    assert is_hot.mean() == pytest.approx(0.02, abs=0.005)
    assert is_dead.mean() == pytest.approx(0.05, abs=0.01)


def camera(**options):
    """Return the camera "perturb" with these options. It draws a `CameraDraw` for a sample."""
    return CAMERAS.build({"type": "perturb", **options}, "camera")


@pytest.fixture
def stuck_camera():
    """Give a camera that always changes the threshold, drops planes, and has stuck pixels."""
    return camera(
        threshold_prob=1.0, drop_prob=1.0, hot_prob=1.0, hot_max=0.5, dead_prob=1.0, dead_max=0.5
    )


def test_a_camera_follows_from_the_seed(stuck_camera):
    stream = recorded(RAMP)

    one = stuck_camera.draw([0, 1, 2])
    same = stuck_camera.draw([0, 1, 2])

    assert one == same
    assert np.array_equal(one.apply(stream, 4), same.apply(stream, 4))


def test_another_sample_has_another_camera(stuck_camera):
    assert stuck_camera.draw([0, 1, 2]) != stuck_camera.draw([0, 1, 3])


def test_the_frames_of_a_sample_have_noise_of_their_own(stuck_camera):
    stream = recorded(RAMP)
    drawn = stuck_camera.draw([0, 1, 2])

    assert not np.array_equal(drawn.apply(stream, 4), drawn.apply(stream, 5))


def test_the_frames_of_a_sample_have_the_same_hot_pixels(stuck_camera):
    stream = recorded(RAMP)
    drawn = stuck_camera.draw([0, 1, 2])

    hot = []
    for frame in (4, 5):
        changed = drawn.apply(stream, frame)
        has_spikes = changed.any(axis=(1, 2))  # dropped planes have none
        hot.append(changed[has_spikes].all(axis=0))

    assert hot[0].any()
    # In another frame, a bright pixel may look hot as well.
    assert np.array_equal(hot[0] & hot[1], hot[0])


@pytest.fixture
def threshold_draws():
    """Give 800 draws of a camera that changes thresholds and drops planes."""
    make = camera(threshold_prob=0.5, threshold_range=[0.5, 4.0], drop_prob=0.25, drop_max=0.2)
    return [make.draw([0, 0, i]) for i in range(800)]


def test_the_threshold_changes_as_often_as_asked(threshold_draws):
    changed = [d.threshold for d in threshold_draws if d.threshold != 1.0]

    assert 340 < len(changed) < 460  # half of 800


def test_the_threshold_changes_by_all_factors_of_its_range(threshold_draws):
    changed = [d.threshold for d in threshold_draws if d.threshold != 1.0]

    assert min(changed) < 0.6
    assert max(changed) > 3.3


def test_planes_are_dropped_as_often_as_asked(threshold_draws):
    dropping = [d for d in threshold_draws if d.drop > 0]

    assert 150 < len(dropping) < 250  # a quarter of 800


def test_as_many_planes_are_dropped_as_asked(threshold_draws):
    assert 0.17 < max(d.drop for d in threshold_draws) <= 0.2


def test_what_is_not_asked_for_does_not_change(threshold_draws):
    for draw in threshold_draws:
        assert draw.hot == 0
        assert draw.dead == 0
        assert draw.known_rate_factor == 1


def test_a_known_rate_follows_the_threshold():
    make = camera(threshold_prob=1.0, threshold_range=[2.0, 2.0], known_rate=True)

    draw = make.draw([0])

    assert draw.threshold == pytest.approx(2.0)
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


@pytest.fixture
def rgb_draws():
    """Give 400 draws of a camera with dark current, noise of the frames, and JPEG."""
    make = camera(
        dark_prob=0.5, dark_max=0.1, rgb_prob=0.5, rgb_shot_max=0.2, jpeg_prob=0.5, jpeg_min=20
    )
    # The list is the seed of a draw: seed of the dataset, epoch, and number of the sample.
    return [make.draw([0, 0, i]) for i in range(400)]


def test_a_dark_current_comes_as_often_as_asked(rgb_draws):
    assert 160 < sum(draw.dark > 0 for draw in rgb_draws) < 240  # half of 400


def test_a_dark_current_is_as_strong_as_asked(rgb_draws):
    assert 0.09 < max(draw.dark for draw in rgb_draws) <= 0.1


def test_a_frame_stays_as_it_is_as_often_as_asked(rgb_draws):
    # A quarter of 400 has neither noise nor JPEG.
    assert 70 < sum(draw.rgb is None for draw in rgb_draws) < 130


def test_a_dark_current_fires_in_the_dark(rgb_draws):
    darkest = max(rgb_draws, key=lambda draw: draw.dark)

    # 200 planes of a frame without any spike. The frame has the number 0.
    black = darkest.apply(np.zeros((200, 20, 20), np.uint8), 0)

    assert black.mean() == pytest.approx(darkest.dark, rel=0.05)


@pytest.fixture
def coloured_ramp():
    """Give a picture (16, 32, 3) uint8 with a ramp in red and in green, and flat blue."""
    channels = [RAMP, 0.5 * RAMP, np.full_like(RAMP, 0.2)]
    return np.rint(255 * np.stack(channels, axis=2)).astype(np.uint8)


def test_a_frame_gets_noise_or_jpeg_or_both(rgb_draws, coloured_ramp):
    changes = {}  # (has noise, has JPEG) -> mean change of a value
    for draw in rgb_draws:
        if draw.rgb:
            changed = draw.photograph(coloured_ramp, 3).astype(float)  # 3: number of the frame
            kind = (bool(draw.rgb.shot), bool(draw.rgb.jpeg))
            changes[kind] = np.abs(changed - coloured_ramp).mean()

    assert set(changes) == {(True, False), (False, True), (True, True)}
    # In levels of 8 bits, as a mean: each picture has changed, and is far from being destroyed.
    for change in changes.values():
        assert 0.1 < change < 40


def test_a_frame_gets_the_same_noise_each_time(rgb_draws, coloured_ramp):
    for draw in rgb_draws:
        if draw.rgb:
            # 3 is the number of the frame, from which its noise follows.
            first = draw.photograph(coloured_ramp, 3)
            second = draw.photograph(coloured_ramp, 3)
            assert np.array_equal(first, second)


def sample_with_camera(folder, camera):
    """Return the first sample of a training set. camera: the section `camera`, or None."""
    values = section(folder, gt_size=16, num_frame=3, camera=camera)
    # The index of a training sample is (epoch, number of the sample).
    return build_dataset(values, "train", 0)[0, 0]


def test_noise_of_the_rgb_camera_changes_the_blurry_frames_alone(tmp_path):
    write_clip(tmp_path, "clip0", frames=3, h=16, w=16)
    write_info(tmp_path, h=16, w=16)
    noise = {"type": "perturb", "rgb_prob": 1.0, "rgb_shot_max": 0.3}

    plain = sample_with_camera(tmp_path, None)
    noisy = sample_with_camera(tmp_path, noise)

    assert (plain["lq"] - noisy["lq"]).abs().mean() > 0.005
    assert torch.equal(plain["gt"], noisy["gt"])
    assert torch.equal(plain["spike"], noisy["spike"])


# ---- Random draws do not depend on one another ----

# Samples that are drawn.
DRAWS = 500
# The largest correlation that chance may give: 4.5 standard deviations for 500 independent pairs.
BOUND = 0.2
# A camera that draws all that it can.
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


def mean_place(is_true):
    """Return where the true values of an array lie on average, in [0, 1].

    Without true values the result is the middle. True values at random places lie in the middle
    on average, too. So the result does not tell how many true values there are.
    """
    places = np.flatnonzero(is_true)
    if len(places):
        return places.mean() / is_true.size
    return (is_true.size - 1) / 2 / is_true.size


def drawn_numbers(dataset, epoch, index):
    """Return all that is drawn for a sample, as numbers none of which follows from another.

    The draws of the camera cannot be read directly, so they are found from what the camera does.
    """
    draw = dataset.draw((epoch, index))
    camera = draw.camera
    rgb = camera.rgb or RgbCamera()
    frames = sorted(draw.frames)
    interval = frames[1] - frames[0]

    # Full light: planes without spikes are lost, pixels without any spike are dead. Darkness: hot
    # pixels fire.
    unscaled = dataclasses.replace(camera, threshold=1.0, dark=0.0)
    white = unscaled.apply(np.ones((24, 16, 16), np.uint8), 0)
    black = unscaled.apply(np.zeros((24, 16, 16), np.uint8), 0)
    is_hot = black.all(axis=0)
    is_lost = ~white[:, ~black[0].astype(bool)].any(axis=1)
    is_dead = ~white.any(axis=0)

    # The first charge of a pixel, seen in another frame. At twice the threshold, a pixel in full
    # light fires in the first plane if its charge is high.
    twice = dataclasses.replace(camera, threshold=2.0, drop=0.0, hot=0.0, dead=0.0, dark=0.0)
    fires_at_once = twice.apply(np.ones_like(white), 1)[0]

    sampler = ResumableDistributedSampler(
        24 * DRAWS, world_size=1, rank=0, batch_size=1, seed=dataset.seed
    )
    sampler.seek(epoch)
    return {
        "interval": interval,
        "first frame": frames[0] / (23 - 2 * interval),
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
        "which lost": mean_place(is_lost),
        "which hot": mean_place(is_hot),
        "which dead": mean_place(is_dead),
        "charge of a pixel": fires_at_once[0, 0],
        "charge of another": fires_at_once[0, 1],
        "place in the epoch": sampler.order()[index],
        "what follows": draw.rng.random(),
    }


def first_samples_of_epochs():
    """Return (epoch, index) of the first sample of many epochs."""
    return [(epoch, 0) for epoch in range(DRAWS)]


def samples_of_one_epoch():
    """Return (epoch, index) of many samples of an epoch.

    Sample 23 of a clip of 24 frames does not fit into the clip, so its first frame is drawn. The
    clip is repeated, and so is this sample.
    """
    return [(3, 24 * repetition + 23) for repetition in range(DRAWS)]


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
    values = section(
        tmp_path,
        use_hflip=True,
        use_rot=True,
        random_reverse=True,
        gt_size=8,
        num_frame=3,
        interval_list=[1, 2],
        camera=CAMERA,
    )
    dataset = build_dataset(values, "train", 0)

    rows = [drawn_numbers(dataset, epoch, index) for epoch, index in samples]

    # A number that is the same for all samples has no correlation: e.g. one index has one place.
    varying = []
    for name in rows[0]:
        if len({row[name] for row in rows}) > 1:
            varying.append(name)
    assert len(varying) >= 17, varying

    table = np.array([[row[name] for name in varying] for row in rows], float)
    correlation = np.corrcoef(table.T)
    alike = {}
    for a, b in itertools.combinations(range(len(varying)), 2):
        if abs(correlation[a, b]) >= BOUND:
            alike[f"{varying[a]} and {varying[b]}"] = round(correlation[a, b], 2)
    assert not alike


def test_streams_of_different_purposes_or_keys_differ():
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

"""What is drawn for one purpose says nothing of another; the simulated sensor, the light between
spikes, a camera.
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


def sensor(rate=0.5, seed=0, **options):
    return simulate.IntegrateAndFire(8, 8, rate=rate, rng=np.random.default_rng(seed), **options)


def constant(light, planes):
    return [np.full((8, 8), light, np.float32)] * planes


@pytest.mark.parametrize("light", [0.05, 0.3, 0.77, 1.0])
def test_the_mean_rate_is_rate_times_light(light):
    # Soft reset: over T planes the count is exact to one spike.
    spikes = sensor(rate=0.9).run(constant(light, 2000))
    assert np.abs(spikes.sum(0) - 0.9 * light * 2000).max() <= 1.01


@pytest.mark.parametrize("rate", [1.8, 3.0])
def test_a_pixel_fires_once_per_plane_at_most_and_never_in_the_dark(rate):
    # Charge beyond one spike per plane was once kept: (rate - 1) spikes for each bright plane came
    # afterwards.
    bright = sensor(rate=rate, initial_charge=0.99)
    assert bright.run(constant(0.0, 50)).sum() == 0
    assert (bright.run(constant(1.0, 40)) == 1).all()
    assert bright.run(constant(0.0, 60)).sum() == 0 and (bright.charge < bright.threshold).all()


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
    found = simulate.IntegrateAndFire(
        8, 8, rate=0.5, threshold=2.0, rng=rng, initial_charge=0.0
    ).run(lights)
    assert np.array_equal(found, np.array(expected))


def test_the_charge_goes_on_from_one_file_to_the_next_and_noise_keeps_the_mean():
    whole = sensor().run(constant(0.37, 50))
    parts = sensor()
    assert np.array_equal(
        np.concatenate([parts.run(constant(0.37, 20)), parts.run(constant(0.37, 30))]), whole
    )
    noise = {"shot_noise": 0.1, "dark_rate": 0.01, "threshold_mismatch": 0.05}
    a, b, c = (sensor(seed=s, **noise).run(constant(0.4, 1000)) for s in (0, 0, 1))

    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert a.mean() == pytest.approx(0.5 * 0.4 + 0.01, rel=0.05)
    # Fixed pattern: pixels differ by more than the one spike of a clean sensor
    assert np.ptp(a.sum(0)) > 4


def light_by_definition(spikes: list[int]) -> list[Fraction]:
    """The light of each plane of one pixel, exactly."""
    planes, fired = len(spikes), [plane for plane, spike in enumerate(spikes) if spike]
    if len(fired) < 2:
        return [Fraction(len(fired), planes)] * planes
    light = []
    for plane in range(planes):
        before, after = [p for p in fired if p < plane], [p for p in fired if p >= plane]
        if not before:
            light.append(min(Fraction(1, fired[1] - fired[0]), Fraction(1, fired[0] + 1)))
        elif not after:
            light.append(min(Fraction(1, fired[-1] - fired[-2]), Fraction(1, planes - fired[-1])))
        else:
            light.append(Fraction(1, after[0] - before[-1]))
    return light


@settings(max_examples=150, deadline=None, database=None)
@given(data=st.data(), planes=st.one_of(st.integers(1, 40), st.sampled_from([254, 255, 256, 300])))
def test_light_is_one_threshold_per_interval_in_planes_and_in_windows(data, planes):
    seed, density = (
        data.draw(st.integers(0, 2**32 - 1)),
        data.draw(st.sampled_from([0.01, 0.1, 0.3, 0.9])),
    )
    stream = (np.random.default_rng(seed).random((planes, 2, 3)) < density).astype(np.uint8)
    time = st.integers(0, planes)
    windows = [tuple(sorted((data.draw(time), data.draw(time)))) for _ in range(3)]

    single, sums = plane_light(stream), window_light(stream, windows)
    assert single.dtype == np.float32 and single.shape == stream.shape
    for y, x in np.ndindex(2, 3):
        expected = light_by_definition(stream[:, y, x].tolist())
        assert single[:, y, x].tolist() == [np.float32(float(value)) for value in expected]
        for (a, b), found in zip(windows, sums, strict=True):
            assert abs(found[y, x] - float(sum(expected[a:b]))) < 1e-9 * planes


def recorded(light, planes=88, rate=0.9, seed=0):
    sensor = simulate.IntegrateAndFire(*light.shape, rate=rate, rng=np.random.default_rng(seed))
    return sensor.run([light] * planes)


RAMP = np.broadcast_to(np.linspace(0, 1, 32, dtype=np.float32), (16, 32))


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.5, 2, 4])
def test_another_threshold_fires_as_a_sensor_with_that_threshold_would(factor):
    changed = simulate.change_threshold(recorded(RAMP), factor, np.random.default_rng(1))
    expected = np.minimum(0.9 * RAMP[0] / factor, 1.0)

    assert set(np.unique(changed)) <= {0, 1}
    assert np.abs(changed.mean(axis=(0, 1)) - expected).max() < 0.02


def test_no_spikes_of_a_bright_past_come_in_the_dark_and_the_same_threshold_changes_nothing():
    # One threshold of light separates two spikes: with half the threshold, two spikes.
    bright, dark = np.ones((16, 16), np.float32), np.zeros((16, 16), np.float32)
    sensor = simulate.IntegrateAndFire(16, 16, rate=0.9, rng=np.random.default_rng(0))
    stream = sensor.run([bright] * 20 + [dark] * 19 + [bright] * 10)
    changed = simulate.change_threshold(stream, 0.5, np.random.default_rng(1))

    assert (changed[20:39].sum(axis=0) <= 2).all() and changed[20:39].sum(axis=0).mean() < 2.0
    assert changed[:20].mean() > 0.97 and changed[40:].mean() > 0.9
    assert simulate.change_threshold(stream, 1.0, np.random.default_rng(0)) is stream
    dark = np.zeros((20, 3, 3), np.uint8)
    assert simulate.change_threshold(dark, 0.5, np.random.default_rng(0)).sum() == 0


@pytest.mark.parametrize(
    ("factor", "dark"),
    [
        (0.05, 0),
        (0.5, 0),
        (0.77, 0.1),
        (1 - 1e-9, 0),
        (1.0, 0.02),
        (1 + 1e-9, 0),
        (1.5, 0.5),
        (1.5, 0),
        (4.0, 0),
    ],
)
@pytest.mark.parametrize(
    ("planes", "height", "width"), [(1, 3, 3), (56, 96, 50), (264, 20, 16), (1200, 5, 90)]
)
def test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says(
    factor, dark, planes, height, width
):
    rng = np.random.default_rng([planes, height])
    dense = np.repeat(rng.random((planes // 9 + 1, height, width)) ** 2, 9, axis=0)[:planes]
    stream = (rng.random((planes, height, width)) < dense).astype(np.uint8)

    charge = np.random.default_rng(3).random((height, width), dtype=np.float32)
    light, one, before = plane_light(stream), np.float32(1), np.zeros_like(charge)
    expected = np.empty_like(stream)
    for plane, now in enumerate(light):
        np.fmod(charge, one, out=charge, where=now * (one + before) < np.float32(0.999) * before)
        charge += now / np.float32(factor) + np.float32(dark)
        expected[plane] = charge >= one
        charge -= expected[plane]
        if factor < 1 or dark:
            np.add(np.fmod(charge, one), one, out=charge, where=charge >= 2)
        before = now

    assert np.array_equal(
        simulate.change_threshold(stream, factor, np.random.default_rng(3), dark), expected
    )


def test_dropped_planes_are_empty_and_stuck_pixels_are_always_or_never_on():
    stream = recorded(RAMP)
    changed = CameraDraw((0,), 1.0, 0.3, 0.0, 0.0, 1.0).apply(stream, 0)
    lost = ~changed.any(axis=(1, 2))
    assert 0.15 < lost.mean() < 0.45 and np.array_equal(changed[~lost], stream[~lost])
    stream = recorded(np.full((100, 100), 0.3, np.float32), planes=20)
    changed = CameraDraw((0,), 1.0, 0.0, 0.02, 0.05, 1.0).apply(stream, 0)
    assert changed.all(axis=0).mean() == pytest.approx(0.02, abs=0.005)
    assert (~changed.any(axis=0)).mean() == pytest.approx(0.05, abs=0.01)


def camera(**options):
    return CAMERAS.build({"type": "perturb", **options}, "camera")


def test_a_camera_follows_from_the_seed_and_stays_the_same_within_a_sample():
    stream = recorded(RAMP)
    make = camera(
        threshold_prob=1.0, drop_prob=1.0, hot_prob=1.0, hot_max=0.5, dead_prob=1.0, dead_max=0.5
    )
    one, same, other = make.draw([0, 1, 2]), make.draw([0, 1, 2]), make.draw([0, 1, 3])

    assert one == same and one != other
    a, b = one.apply(stream, 4), one.apply(stream, 5)
    assert np.array_equal(a, same.apply(stream, 4)) and not np.array_equal(a, b)
    # Hot pixels, in planes not lost
    rows = [frame[~(~frame.any(axis=(1, 2)))].all(axis=0) for frame in (a, b)]
    assert rows[0].any() and np.array_equal(rows[0] & rows[1], rows[0])


def test_each_change_comes_as_often_and_as_strong_as_asked():
    make = camera(threshold_prob=0.5, threshold_range=[0.5, 4.0], drop_prob=0.25, drop_max=0.2)
    draws = [make.draw([0, 0, i]) for i in range(800)]
    changed = [d.threshold for d in draws if d.threshold != 1.0]

    assert 340 < len(changed) < 460 and min(changed) < 0.6 and max(changed) > 3.3
    assert 150 < sum(d.drop > 0 for d in draws) < 250 and 0.17 < max(d.drop for d in draws) <= 0.2
    assert all(d.hot == d.dead == 0 and d.known_rate_factor == 1 for d in draws)
    draw = camera(threshold_prob=1.0, threshold_range=[2.0, 2.0], known_rate=True).draw([0])
    assert draw.threshold == pytest.approx(2.0) and draw.known_rate_factor == pytest.approx(0.5)
    for key, value in (("drop_max", 1.5), ("threshold_range", [4.0, 2.0])):
        with pytest.raises(OptionError) as error:
            camera(**{key: value})
        assert f"camera.{key} is {value}" in str(error.value)


def test_a_camera_adds_a_dark_current_and_noise_and_jpeg_to_the_blurry_frames_as_often_as_asked(
    tmp_path,
):
    make = camera(
        dark_prob=0.5, dark_max=0.1, rgb_prob=0.5, rgb_shot_max=0.2, jpeg_prob=0.5, jpeg_min=20
    )
    draws = [make.draw([0, 0, i]) for i in range(400)]
    darkest = max(draws, key=lambda draw: draw.dark)
    assert 160 < sum(draw.dark > 0 for draw in draws) < 240 and 0.09 < darkest.dark <= 0.1
    assert 70 < sum(draw.rgb is None for draw in draws) < 130
    black = darkest.apply(np.zeros((200, 20, 20), np.uint8), 0)
    assert black.mean() == pytest.approx(darkest.dark, rel=0.05)

    picture = np.rint(255 * np.stack([RAMP, 0.5 * RAMP, 0.2 + 0 * RAMP], axis=2)).astype(np.uint8)
    changes = {}
    for draw in draws:
        if draw.rgb:
            kind = ("noise" if draw.rgb.shot else "") + ("jpeg" if draw.rgb.jpeg else "")
            changes[kind] = np.abs(draw.photograph(picture, 3).astype(float) - picture).mean()
            assert np.array_equal(draw.photograph(picture, 3), draw.photograph(picture, 3))
    assert set(changes) == {"noise", "jpeg", "noisejpeg"} and all(
        0.1 < change < 40 for change in changes.values()
    )
    write_clip(tmp_path, "clip0", frames=3, h=16, w=16)
    write_info(tmp_path, h=16, w=16)
    how = {"type": "perturb", "rgb_prob": 1.0, "rgb_shot_max": 0.3}
    sections = (section(tmp_path, gt_size=16, num_frame=3, camera=camera) for camera in (None, how))
    plain, noisy = (build_dataset(values, "train", 0)[0, 0] for values in sections)
    assert torch.equal(plain["gt"], noisy["gt"]) and torch.equal(plain["spike"], noisy["spike"])
    assert (plain["lq"] - noisy["lq"]).abs().mean() > 0.005


DRAWS = 500
BOUND = 0.2  # 4.5 standard deviations of the correlation of 500 independent pairs
CAMERA = {
    "type": "perturb", "threshold_prob": 1.0,
    "drop_prob": 0.5, "drop_max": 0.5, "hot_prob": 0.5, "hot_max": 0.5, "dead_prob": 0.5,
    "dead_max": 0.5, "dark_prob": 0.5, "rgb_prob": 0.5, "jpeg_prob": 0.5,
}  # fmt: skip


def middle(found):
    """Where the true values lie on average, whatever their number."""
    places = np.flatnonzero(found)
    return (places.mean() if len(places) else (found.size - 1) / 2) / found.size


def seen(dataset, epoch, index):
    """Everything that is drawn for a sample, as numbers none of which follows from another."""
    draw = dataset.draw((epoch, index))
    aug, camera, frames = draw.aug, draw.camera, sorted(draw.frames)
    interval = frames[1] - frames[0]
    # Full light: planes without spikes were lost, pixels without any spike are dead. Darkness: hot
    # pixels fire.
    plain, rgb = dataclasses.replace(camera, threshold=1.0, dark=0.0), camera.rgb or RgbCamera()
    white, black = (plain.apply(np.full((24, 16, 16), value, np.uint8), 0) for value in (1, 0))
    # Of another frame. At twice the threshold, a pixel in full light fires in the first plane if
    # its charge is high.
    charged = dataclasses.replace(
        camera, threshold=2.0, drop=0.0, hot=0.0, dead=0.0, dark=0.0
    ).apply(np.ones_like(white), 1)[0]
    order = ResumableDistributedSampler(
        24 * DRAWS, world_size=1, rank=0, batch_size=1, seed=dataset.seed
    )
    order.seek(epoch)
    return {
        "interval": interval, "first frame": frames[0] / (23 - 2 * interval),
        "top": aug.top, "left": aug.left, "hflip": aug.hflip, "vflip": aug.vflip,
        "transpose": aug.transpose, "reverse": aug.reverse, "threshold": np.log(camera.threshold),
        "lost share": camera.drop, "hot share": camera.hot, "dead share": camera.dead,
        "dark": camera.dark, "noise": rgb.shot, "quality": rgb.jpeg,
        "which lost": middle(~white[:, ~black[0].astype(bool)].any(axis=1)),
        "which hot": middle(black.all(axis=0)), "which dead": middle(~white.any(axis=0)),
        "charge of a pixel": charged[0, 0], "charge of another": charged[0, 1],
        "place in the epoch": order.order()[index], "what follows": draw.rng.random(),
    }  # fmt: skip


@pytest.mark.parametrize("place", ["first sample of many epochs", "samples of one epoch"])
def test_no_two_draws_of_a_sample_are_correlated(tmp_path, place):
    write_clip(tmp_path, "clip0", frames=24, h=24, w=32)
    write_info(tmp_path, h=24, w=32)
    turns: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    drawn: dict[str, Any] = {
        "gt_size": 8,
        "num_frame": 3,
        "interval_list": [1, 2],
        "camera": CAMERA,
    }
    dataset = build_dataset(section(tmp_path, **turns, **drawn), "train", 0)
    # Sample 23 does not fit into the clip of 24 frames: its first frame is drawn; so is that of its
    # repetitions.
    numbers = [(i, 0) if "epochs" in place else (3, 24 * i + 23) for i in range(DRAWS)]
    rows = [seen(dataset, *number) for number in numbers]
    varying = [name for name in rows[0] if len({row[name] for row in rows}) > 1]
    values = np.array([[row[name] for name in varying] for row in rows], float)

    correlation = np.corrcoef(values.T)
    assert len(varying) >= 17, varying
    alike = {
        f"{varying[a]} and {varying[b]}": round(correlation[a, b], 2)
        for a, b in itertools.combinations(range(len(varying)), 2)
        if abs(correlation[a, b]) >= BOUND
    }
    assert not alike


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": -0.5}, {"threshold": 0.0}], ids=str)
def test_a_sensor_without_a_rate_or_a_threshold_is_refused(wrong):
    values: dict[str, Any] = {"rate": 0.5}
    with pytest.raises(ValueError, match="rate and threshold are positive"):
        simulate.IntegrateAndFire(2, 2, rng=np.random.default_rng(0), **(values | wrong))


def test_streams_of_different_purposes_and_keys_differ():
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

    assert len({random_stream(*key).integers(2**62) for key in keys}) == len(keys)
    assert random_stream("a", 0).random() == random_stream("a", 0).random()

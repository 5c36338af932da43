import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.augment import Augment
from data.spike.formats import Crop
from data.spike.represent import (
    REPRESENTATIONS,
    channel_count,
    exposure_estimate,
    exposure_rates,
    represent,
)
from data.spike.simulate import IntegrateAndFire, plane_light, to_display


def stream(planes=24, height=6, width=5, seed=0, density=0.3):
    return (np.random.default_rng(seed).random((planes, height, width)) < density).astype(np.uint8)


def tfi_by_definition(spikes, center, half_window):
    """1 / (tn - tp) from lists of spike times, pixel by pixel."""
    out = np.empty(spikes.shape[1:], np.float32)
    for y, x in np.ndindex(out.shape):
        times = np.flatnonzero(spikes[:, y, x])
        before = times[(times <= center) & (times > center - half_window)]
        after = times[(times > center) & (times <= center + half_window)]
        out[y, x] = (
            1 / (after[0] - before[-1]) if len(before) and len(after) else 1 / (2 * half_window)
        )
    return out


def test_tfp_is_the_mean_of_the_planes_around_each_centre_as_far_as_there_are_planes():
    s = stream()
    found = represent("tfp", s, 12, half_window=3, offsets=[-4, 0, 4])

    assert found.dtype == np.float32
    assert np.allclose(found, [s[5:12].mean(0), s[9:16].mean(0), s[13:20].mean(0)])
    assert np.allclose(represent("tfp", s, 1, half_window=5), [s[:7].mean(0)])
    assert np.allclose(represent("tfp", s, 23, half_window=5), [s[18:].mean(0)])
    # Counts of more planes than fit into a byte.
    assert represent("tfp", np.ones((700, 1, 1), np.uint8), 350, half_window=300)[0, 0, 0] == 1.0


def test_a_stream_too_short_and_options_that_contradict_one_another_are_refused():
    cases: list[tuple[str, int, dict[str, Any], str]] = [
        ("tfp", 12, {"half_window": 3, "offsets": [20]}, "outside"),
        ("tfp", 12, {"half_window": 13, "num_bins": 4}, "24 planes cannot hold a window of 26"),
        ("tfp", 12, {"half_window": 2, "num_bins": 4, "offsets": [0, 3]}, "have no effect with it"),
        ("tfp", 12, {"half_window": 2, "num_bins": 0}, "at least 1"),
        ("voxel", 2, {"num_bins": 8}, "5 planes evenly around 2 cannot fill 8 bins"),
        ("exposure", 12, {"half_window": 11}, "half_window 11 < half_exposure 11"),
        ("relative", 12, {"half_windows": []}, "half_windows"),
        ("relative", 12, {"half_windows": [-1]}, "half_windows"),
        ("relative", 12, {"half_windows": [11]}, "half_windows"),
        ("relative", 12, {"half_windows": [1.5]}, "whole or below 1"),
        ("relative", 12, {"half_windows": [5], "half_exposure": 5}, "half_windows"),
        ("relative", 12, {"half_windows": [5], "half_exposure": 12}, "half_windows"),
        ("raw", 1, {"window": 5}, "outside"),
        ("raw", 22, {"window": 5}, "outside"),
        ("raw", 12, {"window": 4}, "odd"),
        ("encoding25", 12, {}, "outside"),
    ]
    for name, center, options, words in cases:
        with pytest.raises(ValueError, match=words):
            represent(name, stream(), center, **options)


@pytest.mark.parametrize("planes", [56, 88, 104, 49, 97, 40])
def test_tfp_spread_over_the_file_is_the_formula_of_s_vrt_and_exact_in_reverse(planes):
    s, half, bins = stream(planes=planes), 20, 4
    edges = np.linspace(0, planes, bins + 1)
    middles = np.clip((edges[:-1] + edges[1:]) / 2, half, planes - half).astype(int)
    # A slice ends with the file
    expected = np.stack([s[m - half : m + half + 1].mean(0) for m in middles])
    options: dict[str, Any] = {"half_window": half, "num_bins": bins}

    found = represent("tfp", s, planes // 2, rate=0.5, **options)

    assert np.allclose(found, 2 * expected, atol=1e-6)
    assert np.array_equal(
        represent("tfp", s, planes // 2, rate=0.5, reverse=True, **options), found[::-1]
    )
    assert REPRESENTATIONS["tfp"].ignored(**options) == {"center", "context"}
    if planes in (56, 88, 104):  # as published for the three lengths of Spk-GoPro's files
        assert (
            middles.tolist()
            == {56: [20, 21, 35, 36], 88: [20, 33, 55, 68], 104: [20, 39, 65, 84]}[planes]
        )


def test_voxel_bins_lie_around_the_centre_and_count_every_plane_once():
    s = stream(planes=23)
    found = represent("voxel", s, 11, num_bins=4)
    assert np.allclose((found * 23 / 4).sum(0), s.sum(0))
    assert np.allclose(found[0], (s[:5].sum(0) + 0.75 * s[5]) / 5.75)
    # n = 7 of Spk-GoPro: 56 planes, the sharp frame at plane 24; planes 49 to 55 come after the
    # exposure.
    s = stream(planes=56)
    assert np.allclose(represent("voxel", s, 24, num_bins=7), s[:49].reshape(7, 7, 6, 5).mean(1))
    assert np.allclose(represent("voxel", s, 40, num_bins=1), [s[25:].mean(0)])
    # The middle of a stream of even length lies between two planes; then bins are the whole
    # stream's.
    whole = s.reshape(8, 7, 6, 5).sum(1).astype(np.float32) / np.float32(7)
    assert np.array_equal(represent("voxel", s, 27.5, num_bins=8), whole)


@pytest.mark.parametrize("center", [0, 1, 11, 22])
def test_tfi_is_one_over_the_interval_around_the_centre(center):
    s = stream(density=0.2)
    s[0, 0, 0] = 1  # a spike in plane 0 counts like any other
    assert np.allclose(
        represent("tfi", s, center, half_window=8)[0], tfi_by_definition(s, center, 8)
    )


def tfstp_by_definition(spikes, tau_d, tau_f, step):
    """The synapse of one pixel, spike by spike, in the equations' own variables u and R."""
    times = np.flatnonzero(spikes)
    gap = times[1] - times[0]
    e_d, e_f = math.exp(-gap / tau_d), math.exp(-gap / tau_f)
    u = (step * (1 - e_f) + step * e_f) / (1 - (1 - step) * e_f)
    r = (1 - e_d) / (1 - (1 - u) * e_d)
    for gap in np.diff(times[1:]):
        r = 1 - (1 - r * (1 - u)) * math.exp(-gap / tau_d)
        u = step + (u + step * (1 - u) - step) * math.exp(-gap / tau_f)
    rate = -1 / (tau_d * math.log((1 - r) / (1 - r * (1 - u))))
    return min(rate, 1 / max(len(spikes) - 1 - times[-1], 1))


def test_tfstp_solves_the_equations_of_the_synapse():
    s = stream(planes=60, density=0.25)
    found = represent("tfstp", s, 49, tau_d=4.0, tau_f=15.0, utilisation=0.2)[0]

    expected = [
        tfstp_by_definition(s[:50, y, x], 4.0, 15.0, 0.2) for y, x in np.ndindex(found.shape)
    ]
    assert found.ravel() == pytest.approx(expected, rel=1e-4)
    later = s.copy()
    later[50:] = 1 - later[50:]
    # Causal
    assert np.array_equal(
        represent("tfstp", later, 49, tau_d=4.0, tau_f=15.0, utilisation=0.2)[0], found
    )


def test_tfstp_of_a_regular_train_is_its_rate_and_jitter_is_averaged():
    s = np.zeros((100, 1, 4), np.uint8)
    s[::4, 0, 0] = s[3::40, 0, 1] = s[50, 0, 2] = 1
    assert represent("tfstp", s, 99)[0, 0].tolist() == pytest.approx(
        [1 / 4, 1 / 40, 1 / 100, 0], rel=1e-5
    )
    assert represent("tfstp", s, 0)[0, 0].tolist() == [1.0, 0, 0, 0]
    # tfi keeps the jitter of a sensor.
    sensor = IntegrateAndFire(40, 40, rate=0.35, rng=np.random.default_rng(0), shot_noise=0.2)
    s = sensor.run(np.ones((80, 40, 40), np.float32))
    error = {name: float(np.std(represent(name, s, 40, rate=0.35))) for name in ("tfi", "tfstp")}
    assert error["tfstp"] < 0.7 * error["tfi"]


@pytest.mark.parametrize("interval", [2, 4, 10])
def test_tfstp_has_the_rate_of_a_pixel_at_its_second_spike(interval):
    s = np.zeros((interval + 1, 1, 1), np.uint8)
    s[[0, interval]] = 1

    found = represent("tfstp", s, interval)

    assert found[0, 0, 0] == pytest.approx(1 / interval, rel=1e-5)


def moving_edge(rate, planes=161):
    """Light (planes, 16, 24) of an edge that crosses 12 columns, and what a sensor records."""
    steps = np.arange(24)[None, :] < np.linspace(6, 18, planes)[:, None]
    light = np.where(steps, 0.8, 0.1)[:, None].repeat(16, axis=1).astype(np.float32)
    return light, IntegrateAndFire(16, 24, rate=rate, rng=np.random.default_rng(1)).run(light)


def test_exposure_rates_are_the_mean_light_of_the_windows():
    s = stream(planes=41, density=0.4)
    s[:, 0] = 0
    s[3, 0, 0] = 1
    light = plane_light(s)
    rates = exposure_rates(s, 20, half_window=4, half_exposure=15)
    assert np.allclose(rates, [light[16:25].mean(0), light[5:36].mean(0)])
    # As long as both sides allow
    assert np.allclose(exposure_rates(s, 12, half_window=4)[1], light[1:24].mean(0))

    # One spike shows no change; none is no light.
    short, long = exposure_rates(s, 20, half_window=4)
    assert short[0, 0] == long[0, 0] > 0 and short[0, 1] == long[0, 1] == 0


def test_the_exposure_estimate_undoes_the_blur_of_a_moving_edge_in_colour():
    light, spikes = moving_edge(rate=0.9)
    colour = np.array([1.0, 0.6, 0.3], np.float32)
    blurry, sharp = (to_display(x[..., None] * colour) for x in (light.mean(axis=0), light[80]))

    error = lambda picture: float(np.sqrt(np.mean((picture - sharp) ** 2)))  # noqa: E731
    estimate = exposure_estimate(blurry, represent("exposure", spikes, 80, rate=0.9))
    assert error(estimate) < 0.6 * error(blurry)
    # The scale of the rates has no influence, and pixels without spikes keep the blurry frame.
    assert np.allclose(
        estimate, exposure_estimate(blurry, represent("exposure", spikes, 80)), atol=1e-5
    )
    dark = exposure_estimate(blurry, represent("exposure", 0 * spikes, 80))
    assert np.allclose(dark, blurry, atol=1e-6)


@pytest.mark.parametrize("rate", [0.9, 0.45, 0.225])
def test_relative_light_undoes_the_blur_of_a_moving_edge_whatever_the_threshold(rate):
    light, spikes = moving_edge(rate)
    *ratios, trust = represent("relative", spikes, 80, half_windows=[2, 4], rate=rate)
    blurry, sharp = light.mean(axis=0), light[80]

    for ratio in ratios:
        off = np.sqrt(np.mean((blurry * ratio - sharp) ** 2))
        assert off < 0.5 * np.sqrt(np.mean((blurry - sharp) ** 2))
    assert np.allclose(trust, spikes.sum(axis=0) / (spikes.sum(axis=0) + 4), atol=0.06)
    # The domain of the frames: display values have the ratio to the power of 1 / 2.2, those of a
    # display sensor as is.
    display = represent("relative", spikes, 80, half_windows=[4], gamma=2.2)
    assert np.allclose(display[0], ratios[1] ** (1 / 2.2), rtol=1e-5)
    same = represent("relative", spikes, 80, half_windows=[4], light="display", gamma=2.2)
    assert np.array_equal(same[0], ratios[1])


def test_windows_may_be_shares_of_the_exposure():
    s = (np.random.default_rng(0).random((176, 4, 4)) < 0.3).astype(np.uint8)
    for planes, halves in ((88, [2, 6, 12]), (176, [4, 12, 24]), (44, [1, 3, 6])):
        shares, numbers = (
            represent("relative", s[:planes], planes // 2, half_windows=half)
            for half in ([0.0465, 0.14, 0.28], halves)
        )
        assert np.array_equal(shares, numbers)


def test_parts_of_relative_light_show_when_it_changed_and_are_one_where_nothing_changes():
    s = np.zeros((81, 1, 1), np.uint8)
    s[:41:4] = s[42::2] = 1  # twice the light from the middle of planes 1 ... 80 on
    bins = represent("relative", s, 41, half_windows=[1], num_bins=6)[1:-1, 0, 0]
    assert np.allclose(bins[[0, 1]], 0.66, atol=0.03) and np.allclose(bins[[4, 5]], 1.33, atol=0.03)
    s = np.zeros((60, 1, 5), np.uint8)
    s[1::3, 0, 0] = s[4::7, 0, 1] = s[::, 0, 2] = s[40, 0, 3] = 1  # the last pixel is dark
    *ratios, trust = represent("relative", s, 30, half_windows=[0, 5, 20], num_bins=4)
    assert np.allclose(ratios, 1)
    assert trust[0, 4] == 0 and np.all(np.diff(trust[0, [4, 3, 1, 0, 2]]) > 0)


def test_the_rate_and_gamma_scale_what_is_proportional_to_light_only():
    s = stream()
    cases: dict[str, dict[str, Any]] = {
        "tfp": {"half_window": 3},
        "voxel": {"num_bins": 4},
        "tfi": {"half_window": 8},
    }
    for name, options in cases.items():
        plain = represent(name, s, 12, **options)
        assert np.allclose(
            represent(name, s, 12, rate=0.6, gamma=2.2, **options), (plain / 0.6) ** (1 / 2.2)
        )
    assert np.array_equal(represent("raw", s, 12, rate=0.6, gamma=2.2, window=5), s[10:15])


@pytest.mark.parametrize(("planes", "middles"), [(56, [12, 22, 33, 43]), (88, [12, 33, 54, 75])])
def test_encoding25_spreads_its_windows_over_the_file_or_keeps_their_spacing(planes, middles):
    s, c = stream(planes=planes), planes // 2
    found = represent("encoding25", s, c, num_windows=4)
    assert np.array_equal(found, np.concatenate([s[m - 12 : m + 13] for m in middles]))
    spaced = represent("encoding25", s, c, num_windows=2, spacing=10)
    assert np.array_equal(spaced, np.concatenate([s[c - 17 : c + 8], s[c - 7 : c + 18]]))
    s = stream(planes=20)  # a short file is padded as asked
    edge, zero = (represent("encoding25", s, 10, pad=pad) for pad in ("edge", "zero"))
    assert (
        np.array_equal(edge[2:22], s)
        and np.array_equal(edge[0], s[0])
        and np.array_equal(edge[24], s[-1])
    )
    assert np.array_equal(zero[2:22], s) and zero[[0, 1, 22, 23, 24]].sum() == 0


quick = settings(max_examples=60, deadline=None, database=None)


@st.composite
def representations(draw):
    """(name, options) of any registered representation, for files of 30 planes around plane 15."""
    offsets = draw(st.lists(st.integers(-5, 5), min_size=1, max_size=3))
    options = {
        "tfp": {"half_window": draw(st.integers(0, 20)), "offsets": offsets},
        "tfp spread": {
            "half_window": draw(st.integers(0, 15)),
            "num_bins": draw(st.integers(1, 9)),
        },
        "voxel": {"num_bins": draw(st.integers(1, 30))},
        "tfi": {"half_window": draw(st.integers(1, 20)), "offsets": offsets},
        "raw": {"window": 2 * draw(st.integers(0, 7)) + 1},
        "encoding25": {
            "num_windows": draw(st.integers(1, 3)),
            "spacing": draw(st.sampled_from([None, 1, 2, 4])),
            "pad": draw(st.sampled_from(["edge", "zero"])),
        },
        "tfstp": {
            "tau_d": draw(st.floats(0.5, 50)),
            "tau_f": draw(st.floats(0.5, 50)),
            "offsets": offsets,
        },
        "exposure": {
            "half_window": draw(st.integers(0, 5)),
            "half_exposure": draw(st.integers(6, 40)),
        },
        "relative": {
            "half_windows": draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)),
            "num_bins": draw(st.integers(0, 9)),
        },
    }
    name = draw(st.sampled_from(sorted(options)))
    return name.partition(" ")[0], options[name]


@quick
@given(
    data=st.data(),
    chosen=representations(),
    seed=st.integers(0, 2**32 - 1),
    density=st.floats(0.0, 1.0),
)
def test_cutting_and_turning_before_representing_equals_doing_it_after(data, chosen, seed, density):
    name, options = chosen
    planes = stream(31, 7, 9, seed, density)  # 15 planes on each side of plane 15
    top, left = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 8))
    c = Crop(top, left, data.draw(st.integers(1, 7 - top)), data.draw(st.integers(1, 9 - left)))
    turns = [data.draw(st.booleans()) for _ in range(3)]
    aug = Augment(c.top, c.left, c.height, c.width, *turns)

    def change(planes):
        return aug.flip(planes[(slice(None), *c.slices)])

    before = represent(name, change(planes), 15, rate=0.6, gamma=2.2, **options)
    after = change(represent(name, planes, 15, rate=0.6, gamma=2.2, **options))
    assert before.dtype == np.float32 and np.array_equal(before, after)
    assert len(before) == channel_count(name, **options)


@settings(quick, max_examples=200)
@given(
    chosen=representations(),
    planes=st.integers(12, 60),
    place=st.floats(0.0, 1.0),
    halves=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    density=st.floats(0.0, 1.0),
)
def test_reversed_time_shows_the_same_instants_in_reverse_exactly(
    chosen, planes, place, halves, seed, density
):
    name, options = chosen
    s = stream(planes, 4, 5, seed, density)
    center = round(place * (planes - 1) * (1 + halves)) / (1 + halves)

    def channels(center, s=s, **changed):
        try:
            return represent(name, s, center, rate=0.6, gamma=2.2, **{**options, **changed})
        except ValueError:
            return None  # too few planes around this centre, in both directions

    reverse = channels(center, reverse=True)
    # It knows the past only, in reversed time the future: see the last comparison
    if name == "tfstp":
        forward = reverse
    elif (
        name == "relative" and reverse is not None
    ):  # windows around one instant, parts of the exposure, confidence
        forward, first = channels(center), len(options["half_windows"])
        forward = np.concatenate((forward[:first], forward[first:-1][::-1], forward[-1:]))
    elif name in ("exposure", "relative"):  # windows around one instant
        forward = channels(center)
    elif "offsets" in options:  # an offset of o planes in reversed time is one of -o planes
        forward = channels(center, offsets=[-o for o in options["offsets"]])
    else:
        forward = channels(center)
        forward = forward if forward is None else forward[::-1]
    assert np.array_equal(reverse, forward) if reverse is not None else forward is None
    is_symmetric = name in ("voxel", "raw") or "offsets" in options
    if is_symmetric and name != "tfi" and (name == "voxel" or center == int(center)):
        mirrored = channels(planes - 1 - center, s[::-1])
        assert np.array_equal(reverse, mirrored) if reverse is not None else mirrored is None

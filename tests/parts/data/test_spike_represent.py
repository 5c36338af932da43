"""data/spike/represent.py: what the network sees of a spike stream.

A representation turns planes (T, h, w) of 0 and 1 into channels (C, h, w) of a frame. `center` is
the plane of the sharp frame. The streams are random planes of 6 x 5 pixels, or those of a simulated
sensor before a moving edge. The formulas are written here a second time, as their papers say them.
"""

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

# Exponent from light to display values.
TO_DISPLAY = 1 / 2.2


def stream(planes=24, height=6, width=5, seed=0, density=0.3):
    """Return random planes (T, h, w) uint8. density: the share of ones."""
    values = np.random.default_rng(seed).random((planes, height, width))
    return (values < density).astype(np.uint8)


def zeros(planes, pixels=1):
    """Return planes (T, 1, pixels) uint8 without a spike."""
    return np.zeros((planes, 1, pixels), np.uint8)


def root_mean_square(difference):
    """Return the root of the mean square of an array."""
    return float(np.sqrt(np.mean(difference**2)))


# ---- Options that are refused ----

REFUSED = [
    pytest.param(
        "tfp", 12, {"half_window": 3, "offsets": [20]}, "outside", id="tfp: offset after the end"
    ),
    pytest.param(
        "tfp",
        12,
        {"half_window": 13, "num_bins": 4},
        "24 planes cannot hold a window of 26",
        id="tfp: window longer than the stream",
    ),
    pytest.param(
        "tfp",
        12,
        {"half_window": 2, "num_bins": 4, "offsets": [0, 3]},
        "have no effect with it",
        id="tfp: bins and offsets",
    ),
    pytest.param("tfp", 12, {"half_window": 2, "num_bins": 0}, "at least 1", id="tfp: no bins"),
    pytest.param(
        "voxel",
        2,
        {"num_bins": 8},
        "5 planes evenly around 2 cannot fill 8 bins",
        id="voxel: more bins than planes",
    ),
    pytest.param(
        "exposure",
        12,
        {"half_window": 11},
        "half_window 11 < half_exposure 11",
        id="exposure: window as long as the exposure",
    ),
    pytest.param("relative", 12, {"half_windows": []}, "half_windows", id="relative: no window"),
    pytest.param("relative", 12, {"half_windows": [-1]}, "half_windows", id="relative: negative"),
    pytest.param("relative", 12, {"half_windows": [11]}, "half_windows", id="relative: too long"),
    pytest.param(
        "relative", 12, {"half_windows": [1.5]}, "whole or below 1", id="relative: a broken number"
    ),
    pytest.param(
        "relative",
        12,
        {"half_windows": [5], "half_exposure": 5},
        "half_windows",
        id="relative: window as long as the exposure",
    ),
    pytest.param(
        "relative",
        12,
        {"half_windows": [5], "half_exposure": 12},
        "half_windows",
        id="relative: exposure longer than the stream",
    ),
    pytest.param("raw", 1, {"window": 5}, "outside", id="raw: window before the stream"),
    pytest.param("raw", 22, {"window": 5}, "outside", id="raw: window after the stream"),
    pytest.param("raw", 12, {"window": 4}, "odd", id="raw: an even window"),
    pytest.param("encoding25", 12, {}, "outside", id="encoding25: stream shorter than 25 planes"),
]


@pytest.mark.parametrize(("name", "center", "options", "words"), REFUSED)
def test_a_stream_too_short_or_options_that_contradict_one_another_are_refused(
    name, center, options, words
):
    with pytest.raises(ValueError, match=words):
        represent(name, stream(), center, **options)


# ---- tfp: the mean of the planes in a window ----


def test_tfp_is_the_mean_of_the_planes_around_each_centre():
    s = stream()

    found = represent("tfp", s, 12, half_window=3, offsets=[-4, 0, 4])

    assert found.dtype == np.float32
    assert np.allclose(found, [s[5:12].mean(0), s[9:16].mean(0), s[13:20].mean(0)])


def test_tfp_near_the_begin_is_the_mean_of_the_planes_that_there_are():
    s = stream()

    assert np.allclose(represent("tfp", s, 1, half_window=5), [s[:7].mean(0)])


def test_tfp_near_the_end_is_the_mean_of_the_planes_that_there_are():
    s = stream()

    assert np.allclose(represent("tfp", s, 23, half_window=5), [s[18:].mean(0)])


def test_tfp_counts_more_planes_than_fit_into_a_byte():
    ones = np.ones((700, 1, 1), np.uint8)

    found = represent("tfp", ones, 350, half_window=300)

    assert found[0, 0, 0] == 1.0


# Planes of a file, and the middles of the four windows of S-VRT in it. The lengths 56, 88 and 104
# are those of the files of Spk-GoPro; their middles are published. Others follow from the formula.
MIDDLES_OF_S_VRT = {56: [20, 21, 35, 36], 88: [20, 33, 55, 68], 104: [20, 39, 65, 84]}
HALF_WINDOW_OF_S_VRT = 20


def middles_of_s_vrt(planes):
    """Return the middles of four windows: of equal parts of a file, but within it."""
    edges = np.linspace(0, planes, 5)
    middles = (edges[:-1] + edges[1:]) / 2
    return np.clip(middles, HALF_WINDOW_OF_S_VRT, planes - HALF_WINDOW_OF_S_VRT).astype(int)


@pytest.mark.parametrize("planes", MIDDLES_OF_S_VRT)
def test_the_formula_of_s_vrt_gives_the_published_middles(planes):
    assert middles_of_s_vrt(planes).tolist() == MIDDLES_OF_S_VRT[planes]


@pytest.mark.parametrize("planes", [56, 88, 104, 49, 97, 40])
def test_tfp_spread_over_the_file_is_the_formula_of_s_vrt(planes):
    s = stream(planes=planes)
    half = HALF_WINDOW_OF_S_VRT

    found = represent("tfp", s, planes // 2, rate=0.5, half_window=half, num_bins=4)

    # A window that would reach beyond the file ends with it, as a slice does.
    expected = [s[m - half : m + half + 1].mean(0) for m in middles_of_s_vrt(planes)]
    # A rate of 0.5 spikes per plane at full light: the light is twice the mean.
    assert np.allclose(found, 2 * np.stack(expected), atol=1e-6)


@pytest.mark.parametrize("planes", [56, 88, 104, 49, 97, 40])
def test_tfp_spread_over_the_file_is_exact_in_reverse(planes):
    s = stream(planes=planes)
    options: dict[str, Any] = {"rate": 0.5, "half_window": HALF_WINDOW_OF_S_VRT, "num_bins": 4}

    forward = represent("tfp", s, planes // 2, **options)
    backward = represent("tfp", s, planes // 2, reverse=True, **options)

    assert np.array_equal(backward, forward[::-1])


def test_tfp_spread_over_the_file_says_which_options_have_no_effect():
    ignored = REPRESENTATIONS["tfp"].ignored(half_window=HALF_WINDOW_OF_S_VRT, num_bins=4)

    assert ignored == {"center", "context"}


# ---- voxel: the mean of the planes in each of equal bins ----


def test_voxel_bins_count_every_plane_once():
    s = stream(planes=23)

    found = represent("voxel", s, 11, num_bins=4)

    planes_of_a_bin = 23 / 4
    assert np.allclose((found * planes_of_a_bin).sum(0), s.sum(0))


def test_a_voxel_bin_that_ends_within_a_plane_has_a_part_of_it():
    s = stream(planes=23)

    found = represent("voxel", s, 11, num_bins=4)

    # The first of four bins has 5.75 planes.
    assert np.allclose(found[0], (s[:5].sum(0) + 0.75 * s[5]) / 5.75)


def test_voxel_bins_lie_around_the_centre():
    # A file of Spk-GoPro with 7 frames in 56 planes. The sharp frame is at plane 24, so planes 49
    # to 55 come after the exposure.
    s = stream(planes=56)

    found = represent("voxel", s, 24, num_bins=7)

    assert np.allclose(found, s[:49].reshape(7, 7, 6, 5).mean(1))


def test_one_voxel_bin_is_the_mean_of_the_planes_around_the_centre():
    s = stream(planes=56)

    # 15 planes follow plane 40, so the bin has planes 25 to 55.
    assert np.allclose(represent("voxel", s, 40, num_bins=1), [s[25:].mean(0)])


def test_voxel_bins_around_the_middle_of_an_even_stream_are_the_whole_stream():
    s = stream(planes=56)

    # The middle of 56 planes lies between planes 27 and 28.
    found = represent("voxel", s, 27.5, num_bins=8)

    counts = s.reshape(8, 7, 6, 5).sum(1).astype(np.float32)
    assert np.array_equal(found, counts / np.float32(7))


# ---- tfi: one over the time between two spikes ----


def tfi_by_definition(spikes, center, half_window):
    """Return 1 / (time between the last spike before the centre and the first one after it).

    A pixel without such spikes within the window has 1 / (length of the window).
    """
    out = np.empty(spikes.shape[1:], np.float32)
    for y, x in np.ndindex(out.shape):
        times = np.flatnonzero(spikes[:, y, x])
        before = times[(times <= center) & (times > center - half_window)]
        after = times[(times > center) & (times <= center + half_window)]
        if len(before) and len(after):
            out[y, x] = 1 / (after[0] - before[-1])
        else:
            out[y, x] = 1 / (2 * half_window)
    return out


@pytest.mark.parametrize("center", [0, 1, 11, 22])
def test_tfi_is_one_over_the_interval_around_the_centre(center):
    s = stream(density=0.2)
    s[0, 0, 0] = 1  # a spike in plane 0 counts like any other

    found = represent("tfi", s, center, half_window=8)[0]

    assert np.allclose(found, tfi_by_definition(s, center, 8))


# ---- tfstp: a model of a synapse ----


def tfstp_by_definition(spikes, tau_d, tau_f, step):
    """Return the rate of one pixel (T,), spike by spike, by the equations of the synapse.

    u and R (here r) are the variables of the equations: the utilisation and the resources.
    tau_d, tau_f: their time constants in planes. step: the growth of u at a spike.
    """
    times = np.flatnonzero(spikes)
    # The first interval gives the values of a train that was regular before.
    gap = times[1] - times[0]
    e_d = math.exp(-gap / tau_d)
    e_f = math.exp(-gap / tau_f)
    u = (step * (1 - e_f) + step * e_f) / (1 - (1 - step) * e_f)
    r = (1 - e_d) / (1 - (1 - u) * e_d)

    for gap in np.diff(times[1:]):
        r = 1 - (1 - r * (1 - u)) * math.exp(-gap / tau_d)
        u = step + (u + step * (1 - u) - step) * math.exp(-gap / tau_f)

    rate = -1 / (tau_d * math.log((1 - r) / (1 - r * (1 - u))))
    planes_since_last = max(len(spikes) - 1 - times[-1], 1)
    # If the pixel has not fired for longer than an interval, its light is less.
    return min(rate, 1 / planes_since_last)


SYNAPSE: dict[str, Any] = {"tau_d": 4.0, "tau_f": 15.0, "utilisation": 0.2}


def test_tfstp_solves_the_equations_of_the_synapse():
    s = stream(planes=60, density=0.25)

    found = represent("tfstp", s, 49, **SYNAPSE)[0]

    for y, x in np.ndindex(found.shape):
        expected = tfstp_by_definition(s[:50, y, x], tau_d=4.0, tau_f=15.0, step=0.2)
        assert found[y, x] == pytest.approx(expected, rel=1e-4)


def test_tfstp_does_not_depend_on_planes_after_the_centre():
    s = stream(planes=60, density=0.25)
    changed = s.copy()
    changed[50:] = 1 - changed[50:]

    found = represent("tfstp", changed, 49, **SYNAPSE)

    assert np.array_equal(found, represent("tfstp", s, 49, **SYNAPSE))


@pytest.fixture
def regular_trains():
    """Give 100 planes of four pixels: a spike each 4 planes, each 40 planes, one spike, none."""
    s = zeros(100, pixels=4)
    s[::4, 0, 0] = 1
    s[3::40, 0, 1] = 1
    s[50, 0, 2] = 1
    return s


def test_tfstp_of_a_regular_train_is_its_rate(regular_trains):
    found = represent("tfstp", regular_trains, 99)[0, 0]

    # One spike in 100 planes has a rate of 1 / 100.
    assert found.tolist() == pytest.approx([1 / 4, 1 / 40, 1 / 100, 0], rel=1e-5)


def test_tfstp_at_the_first_plane_is_the_plane(regular_trains):
    found = represent("tfstp", regular_trains, 0)[0, 0]

    assert found.tolist() == [1.0, 0, 0, 0]


def test_tfstp_averages_the_jitter_of_a_sensor_that_tfi_keeps():
    rng = np.random.default_rng(0)
    sensor = IntegrateAndFire(40, 40, rate=0.35, rng=rng, shot_noise=0.2)
    s = sensor.run(np.ones((80, 40, 40), np.float32))

    deviation_of_tfi = float(np.std(represent("tfi", s, 40, rate=0.35)))
    deviation_of_tfstp = float(np.std(represent("tfstp", s, 40, rate=0.35)))

    assert deviation_of_tfstp < 0.7 * deviation_of_tfi


@pytest.mark.parametrize("interval", [2, 4, 10])
def test_tfstp_has_the_rate_of_a_pixel_at_its_second_spike(interval):
    s = zeros(interval + 1)
    s[[0, interval]] = 1

    found = represent("tfstp", s, interval)

    assert found[0, 0, 0] == pytest.approx(1 / interval, rel=1e-5)


# ---- exposure: the light around the centre, and the light of the whole exposure ----


def moving_edge(rate, planes=161):
    """Return light (planes, 16, 24) of a moving edge, and the spikes that a sensor records.

    The edge crosses 12 of the 24 columns.
    """
    column = np.arange(24)[None, :]
    edge = np.linspace(6, 18, planes)[:, None]
    rows = np.where(column < edge, 0.8, 0.1)  # (planes, 24)
    light = rows[:, None].repeat(16, axis=1).astype(np.float32)
    sensor = IntegrateAndFire(16, 24, rate=rate, rng=np.random.default_rng(1))
    return light, sensor.run(light)


@pytest.fixture
def stream_with_dark_pixels():
    """Give 41 planes in which pixel (0, 0) fires once and the other pixels of row 0 never do."""
    s = stream(planes=41, density=0.4)
    s[:, 0] = 0
    s[3, 0, 0] = 1
    return s


def test_exposure_rates_are_the_mean_light_of_the_windows(stream_with_dark_pixels):
    s = stream_with_dark_pixels

    rates = exposure_rates(s, 20, half_window=4, half_exposure=15)

    light = plane_light(s)
    assert np.allclose(rates, [light[16:25].mean(0), light[5:36].mean(0)])


def test_the_exposure_is_as_long_as_both_sides_allow(stream_with_dark_pixels):
    s = stream_with_dark_pixels

    _, long = exposure_rates(s, 12, half_window=4)

    # The edges of a stream, planes 0 and 40, do not count.
    assert np.allclose(long, plane_light(s)[1:24].mean(0))


def test_one_spike_shows_no_change_of_light(stream_with_dark_pixels):
    short, long = exposure_rates(stream_with_dark_pixels, 20, half_window=4)

    assert short[0, 0] == long[0, 0]
    assert long[0, 0] > 0


def test_a_pixel_without_spikes_has_no_light(stream_with_dark_pixels):
    short, long = exposure_rates(stream_with_dark_pixels, 20, half_window=4)

    assert short[0, 1] == 0
    assert long[0, 1] == 0


@pytest.fixture
def coloured_edge():
    """Give the blurry frame and the sharp frame of a moving edge, and its spikes."""
    light, spikes = moving_edge(rate=0.9)
    colour = np.array([1.0, 0.6, 0.3], np.float32)
    blurry = to_display(light.mean(axis=0)[..., None] * colour)
    sharp = to_display(light[80][..., None] * colour)
    return blurry, sharp, spikes


def test_the_exposure_estimate_undoes_the_blur_of_a_moving_edge_in_colour(coloured_edge):
    blurry, sharp, spikes = coloured_edge

    estimate = exposure_estimate(blurry, represent("exposure", spikes, 80, rate=0.9))

    assert root_mean_square(estimate - sharp) < 0.6 * root_mean_square(blurry - sharp)


def test_the_scale_of_the_rates_has_no_influence_on_the_exposure_estimate(coloured_edge):
    blurry, _, spikes = coloured_edge

    scaled = exposure_estimate(blurry, represent("exposure", spikes, 80, rate=0.9))
    unscaled = exposure_estimate(blurry, represent("exposure", spikes, 80))

    assert np.allclose(scaled, unscaled, atol=1e-5)


def test_the_exposure_estimate_of_pixels_without_spikes_is_the_blurry_frame(coloured_edge):
    blurry, _, spikes = coloured_edge

    estimate = exposure_estimate(blurry, represent("exposure", 0 * spikes, 80))

    assert np.allclose(estimate, blurry, atol=1e-6)


# ---- relative: the light around the centre, divided by the mean light of the exposure ----


@pytest.mark.parametrize("rate", [0.9, 0.45, 0.225])
def test_relative_light_undoes_the_blur_of_a_moving_edge_whatever_the_threshold(rate):
    light, spikes = moving_edge(rate)
    blurry = light.mean(axis=0)
    sharp = light[80]

    short, long, _ = represent("relative", spikes, 80, half_windows=[2, 4], rate=rate)

    for ratio in (short, long):
        assert root_mean_square(blurry * ratio - sharp) < 0.5 * root_mean_square(blurry - sharp)


@pytest.mark.parametrize("rate", [0.9, 0.45, 0.225])
def test_the_confidence_of_relative_light_grows_with_the_number_of_spikes(rate):
    _, spikes = moving_edge(rate)

    confidence = represent("relative", spikes, 80, half_windows=[2, 4], rate=rate)[-1]

    count = spikes.sum(axis=0)
    assert np.allclose(confidence, count / (count + 4), atol=0.06)


def test_relative_light_of_display_values_is_the_ratio_to_the_power_of_gamma():
    _, spikes = moving_edge(rate=0.9)

    ratio = represent("relative", spikes, 80, half_windows=[4])[0]
    of_display = represent("relative", spikes, 80, half_windows=[4], gamma=2.2)[0]

    assert np.allclose(of_display, ratio**TO_DISPLAY, rtol=1e-5)


def test_relative_light_of_a_sensor_of_display_values_is_the_ratio_as_it_is():
    _, spikes = moving_edge(rate=0.9)

    ratio = represent("relative", spikes, 80, half_windows=[4])[0]
    found = represent("relative", spikes, 80, half_windows=[4], light="display", gamma=2.2)[0]

    assert np.array_equal(found, ratio)


@pytest.mark.parametrize(
    ("planes", "half_windows"),
    [
        pytest.param(44, [1, 3, 6], id="44 planes"),
        pytest.param(88, [2, 6, 12], id="88 planes"),
        pytest.param(176, [4, 12, 24], id="176 planes"),
    ],
)
def test_windows_may_be_shares_of_the_exposure(planes, half_windows):
    s = stream(176, 4, 4)[:planes]
    shares = [0.0465, 0.14, 0.28]

    found = represent("relative", s, planes // 2, half_windows=shares)

    assert np.array_equal(found, represent("relative", s, planes // 2, half_windows=half_windows))


def test_parts_of_relative_light_show_when_the_light_changed():
    # The light is twice as strong from the middle of planes 1 to 80 on.
    s = zeros(81)
    s[:41:4] = 1
    s[42::2] = 1

    channels = represent("relative", s, 41, half_windows=[1], num_bins=6)

    # Between the one window and the confidence are six parts of the exposure.
    parts = channels[1:-1, 0, 0]
    # The light is 1 and 2, its mean is 1.5. The parts in the middle are not compared.
    assert np.allclose(parts[:2], 1 / 1.5, atol=0.04)
    assert np.allclose(parts[4:], 2 / 1.5, atol=0.04)


WINDOWS = [0, 5, 20]  # one plane, 11 planes, 41 planes


@pytest.fixture
def steady_pixels():
    """Give 60 planes of five pixels with steady light: a spike each 3 planes, each 7 planes, in
    each plane, one spike, none.
    """
    s = zeros(60, pixels=5)
    s[1::3, 0, 0] = 1
    s[4::7, 0, 1] = 1
    s[:, 0, 2] = 1
    s[40, 0, 3] = 1
    return s


def test_relative_light_is_one_if_nothing_changes(steady_pixels):
    *ratios, _ = represent("relative", steady_pixels, 30, half_windows=WINDOWS, num_bins=4)

    assert np.allclose(ratios, 1)


def test_a_pixel_without_spikes_has_no_confidence(steady_pixels):
    confidence = represent("relative", steady_pixels, 30, half_windows=WINDOWS, num_bins=4)[-1]

    assert confidence[0, 4] == 0


def test_a_pixel_with_more_spikes_has_more_confidence(steady_pixels):
    confidence = represent("relative", steady_pixels, 30, half_windows=WINDOWS, num_bins=4)[-1]

    by_number_of_spikes = confidence[0, [4, 3, 1, 0, 2]]
    assert np.all(np.diff(by_number_of_spikes) > 0)


# ---- Rate and gamma ----


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("tfp", {"half_window": 3}, id="tfp"),
        pytest.param("voxel", {"num_bins": 4}, id="voxel"),
        pytest.param("tfi", {"half_window": 8}, id="tfi"),
    ],
)
def test_rate_with_gamma_scales_what_is_proportional_to_light(name, options):
    s = stream()

    found = represent(name, s, 12, rate=0.6, gamma=2.2, **options)

    plain = represent(name, s, 12, **options)
    assert np.allclose(found, (plain / 0.6) ** TO_DISPLAY)


def test_rate_with_gamma_leaves_raw_planes_as_they_are():
    s = stream()

    found = represent("raw", s, 12, rate=0.6, gamma=2.2, window=5)

    assert np.array_equal(found, s[10:15])


# ---- encoding25: windows of 25 planes ----


@pytest.mark.parametrize(("planes", "middles"), [(56, [12, 22, 33, 43]), (88, [12, 33, 54, 75])])
def test_encoding25_spreads_its_windows_over_the_file(planes, middles):
    s = stream(planes=planes)

    found = represent("encoding25", s, planes // 2, num_windows=4)

    windows = [s[m - 12 : m + 13] for m in middles]
    assert np.array_equal(found, np.concatenate(windows))


@pytest.mark.parametrize("planes", [56, 88])
def test_encoding25_keeps_the_spacing_of_its_windows_if_it_is_given(planes):
    s = stream(planes=planes)
    center = planes // 2

    found = represent("encoding25", s, center, num_windows=2, spacing=10)

    # The middles are 5 planes before and 5 planes after the centre.
    first = s[center - 17 : center + 8]
    second = s[center - 7 : center + 18]
    assert np.array_equal(found, np.concatenate([first, second]))


def test_encoding25_repeats_the_outer_planes_of_a_short_file_if_asked():
    s = stream(planes=20)

    found = represent("encoding25", s, 10, pad="edge")

    # 2 planes are missing before, and 3 after.
    assert np.array_equal(found[2:22], s)
    assert np.array_equal(found[0], s[0])
    assert np.array_equal(found[24], s[-1])


def test_encoding25_pads_a_short_file_by_zeros_if_asked():
    s = stream(planes=20)

    found = represent("encoding25", s, 10, pad="zero")

    assert np.array_equal(found[2:22], s)
    assert found[[0, 1, 22, 23, 24]].sum() == 0


# ---- All representations: order of steps, and reversed time ----

quick = settings(max_examples=60, deadline=None, database=None)


@st.composite
def representations(draw):
    """Draw (name, options) of any registered representation.

    The options suit files of 30 planes around plane 15.
    """
    offsets = draw(st.lists(st.integers(-5, 5), min_size=1, max_size=3))
    options = {
        "tfp": {"half_window": draw(st.integers(0, 20)), "offsets": offsets},
        # tfp has two forms. The second one spreads its windows over the file.
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
    form = draw(st.sampled_from(sorted(options)))
    name = form.removesuffix(" spread")
    return name, options[form]


@quick
@given(
    data=st.data(),
    chosen=representations(),
    seed=st.integers(0, 2**32 - 1),
    density=st.floats(0.0, 1.0),
)
def test_cropping_before_representing_equals_cropping_after(data, chosen, seed, density):
    name, options = chosen
    planes = stream(31, 7, 9, seed, density)  # 15 planes on each side of plane 15
    top = data.draw(st.integers(0, 6))
    left = data.draw(st.integers(0, 8))
    height = data.draw(st.integers(1, 7 - top))
    width = data.draw(st.integers(1, 9 - left))
    flips = [data.draw(st.booleans()) for _ in range(3)]  # horizontal, vertical, transposed
    crop = Crop(top, left, height, width)
    augment = Augment(top, left, height, width, *flips)

    def crop_and_flip(planes):
        return augment.flip(planes[(slice(None), *crop.slices)])

    before = represent(name, crop_and_flip(planes), 15, rate=0.6, gamma=2.2, **options)
    after = crop_and_flip(represent(name, planes, 15, rate=0.6, gamma=2.2, **options))

    assert before.dtype == np.float32
    assert np.array_equal(before, after)
    assert len(before) == channel_count(name, **options)


def channels_or_none(name, planes, center, **options):
    """Return the channels of a representation, or None if there are too few planes."""
    try:
        return represent(name, planes, center, rate=0.6, gamma=2.2, **options)
    except ValueError:
        return None


def reversed_channels(name, planes, center, options):
    """Return the channels in reversed time, made from those in the stream's own time.

    Returns None if there are too few planes around the centre.
    """
    if "offsets" in options:
        # An offset of o planes in reversed time is one of -o planes.
        opposite = [-offset for offset in options["offsets"]]
        return channels_or_none(name, planes, center, **{**options, "offsets": opposite})

    forward = channels_or_none(name, planes, center, **options)
    if forward is None or name == "exposure":
        return forward  # windows around one instant are the same in both directions
    if name == "relative":
        # The windows around one instant, then the parts of the exposure, then the confidence.
        count = len(options["half_windows"])
        windows = forward[:count]
        parts = forward[count:-1]
        confidence = forward[-1:]
        return np.concatenate((windows, parts[::-1], confidence))
    return forward[::-1]


def assert_equal_or_both_none(found, expected):
    """Check that two arrays are equal in each bit, or that both are None."""
    if found is None:
        assert expected is None
    else:
        assert np.array_equal(found, expected)


@st.composite
def streams_with_center(draw):
    """Draw planes (T, 4, 5), and a centre: a plane, or an instant between two planes."""
    count = draw(st.integers(12, 60))
    place = draw(st.floats(0.0, 1.0))
    unit = draw(st.sampled_from([1, 2]))  # 2: the centre may be half a plane
    planes = stream(count, 4, 5, draw(st.integers(0, 2**32 - 1)), draw(st.floats(0.0, 1.0)))
    return planes, round(place * (count - 1) * unit) / unit


@settings(quick, max_examples=200)
@given(chosen=representations(), made=streams_with_center())
def test_reversed_time_shows_the_same_instants_in_reverse_exactly(chosen, made):
    name, options = chosen
    planes, center = made
    # tfstp knows the past alone. In reversed time it knows the future, so no channels in the
    # stream's own time are equal. The next test compares it.
    if name == "tfstp":
        return

    found = channels_or_none(name, planes, center, reverse=True, **options)

    assert_equal_or_both_none(found, reversed_channels(name, planes, center, options))


@settings(quick, max_examples=200)
@given(chosen=representations(), made=streams_with_center())
def test_reversed_time_is_that_of_the_reversed_planes(chosen, made):
    name, options = chosen
    planes, center = made
    is_symmetric = name in ("voxel", "raw") or "offsets" in options
    # tfi counts a spike at the centre as the spike before it, so it is not symmetric.
    if not is_symmetric or name == "tfi":
        return
    # A centre between two planes has an exact mirror image for voxel alone.
    if name != "voxel" and center != int(center):
        return

    found = channels_or_none(name, planes, center, reverse=True, **options)

    mirrored_center = len(planes) - 1 - center
    mirrored = channels_or_none(name, planes[::-1], mirrored_center, **options)
    assert_equal_or_both_none(found, mirrored)

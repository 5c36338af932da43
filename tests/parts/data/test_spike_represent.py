"""data/spike/represent.py and its functions: what the network sees of a spike stream.

A plane has a 1 for each pixel of a spike camera that fired at one instant. A representation turns
planes (T, h, w) of a frame into channels (C, h, w), which the network gets. `center` is the plane
at which the sharp frame was taken.

The planes of these tests are random planes of 6 x 5 pixels, or the record of a moving edge by a
simulated sensor. The tests compute the expected channels by the definition of each representation.
Each definition is written here a second time, independently of the code:

    tfp         mean of the planes in a window ("texture from playback")
    tfi         1 / time between two spikes ("texture from interspike interval")
    tfstp       rate by a model of a synapse ("texture from short-term plasticity")
    voxel       mean of the planes in each of several equal bins
    raw         the planes themselves
    encoding25  windows of 25 planes each
    exposure    light around `center`, and mean light of the exposure
    relative    light around `center`, divided by the mean light of the exposure

The representations that show light have two options. `rate` is the share of planes in which a pixel
fires in full light. `gamma`, e.g. 2.2, turns light into display values: light^(1 / gamma).

Other options:

    half_window    number of planes on each side of the middle of a window. E.g. with 3, the window
                   around plane 12 has the planes 9 to 15
    offsets        middles of the windows, counted from `center`. Each offset gives a channel
    half_exposure  number of planes of the exposure on each side of `center`
    num_bins       number of parts into which the planes are divided. Each part gives a channel

A tolerance of 1e-4 to 1e-6 allows for the rounding of float32. Beside each other tolerance stands
its reason.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.augment import Augment
from data.spike.geometry import Crop
from data.spike.light import plane_light
from data.spike.pictures import to_display
from data.spike.ratios import exposure_estimate, exposure_rates
from data.spike.represent import REPRESENTATIONS, channel_count, represent
from data.spike.simulate import IntegrateAndFire

# Exponent from light to display values.
TO_DISPLAY = 1 / 2.2


def random_planes(
    planes: int = 24, height: int = 6, width: int = 5, seed: int = 0, density: float = 0.3
) -> np.ndarray:
    """Return random planes (T, h, w) uint8. density: the share of ones."""
    values = np.random.default_rng(seed).random((planes, height, width))
    return (values < density).astype(np.uint8)


def mean_of_planes(spikes: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return the mean (h, w) of the planes `first` to `last`, both included."""
    return spikes[first : last + 1].mean(axis=0)


def empty_planes(planes: int, pixels: int = 1) -> np.ndarray:
    """Return planes (T, 1, pixels) uint8 without a spike."""
    return np.zeros((planes, 1, pixels), np.uint8)


def root_mean_square(difference: np.ndarray) -> float:
    """Return the root of the mean square of an array."""
    return float(np.sqrt(np.mean(difference**2)))


# ---- Options that are refused ----

# Each case has a name, `center`, options, and a part of the message. The stream has the planes 0 to
# 23. Around center 12, half an exposure has at most 11 planes: planes 1 to 11 before the center,
# and planes 13 to 23 after it. Plane 0 is not used, because a part of its light fell on the sensor
# before the stream began.
REFUSED = [
    pytest.param(
        "tfp", 12, {"half_window": 3, "offsets": [20]}, "outside", id="tfp: offset after the end"
    ),
    # A window with half_window 13 has 13 planes before its middle, the middle, and 13 planes after
    # it. With num_bins, the last plane may be missing: 13 + 1 + 12 = 26 planes are enough.
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
        "offsets \\[0, 3\\] have no effect with num_bins 4",
        id="tfp: bins and offsets",
    ),
    pytest.param(
        "tfp",
        12,
        {"half_window": 2, "num_bins": 0},
        "num_bins is 0, expected at least 1",
        id="tfp: no bins",
    ),
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
        "half_window is 11, expected 0 or more, and less than half_exposure, 11",
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
    pytest.param(
        "raw",
        12,
        {"window": 4},
        "window is 4, expected an odd number of planes",
        id="raw: an even window",
    ),
    pytest.param(
        "encoding25",
        12,
        {"num_windows": 0},
        "num_windows is 0, expected at least 1",
        id="encoding25: no window",
    ),
    pytest.param(
        "encoding25",
        12,
        {"num_windows": 2, "spacing": 0},
        "spacing is 0, expected at least 1",
        id="encoding25: windows at one place",
    ),
    pytest.param(
        "tfstp", 12, {"tau_f": -1.0}, "tau_f is -1.0, expected a number above 0", id="tfstp: tau_f"
    ),
    pytest.param(
        "tfstp",
        12,
        {"utilisation": 1.0},
        "utilisation is 1.0, expected a number between 0 and 1",
        id="tfstp: all is used",
    ),
    pytest.param("encoding25", 12, {}, "outside", id="encoding25: stream shorter than 25 planes"),
]


@pytest.mark.parametrize(("name", "center", "options", "words"), REFUSED)
def test_a_stream_too_short_or_options_that_contradict_one_another_are_refused(
    name, center, options, words
):
    with pytest.raises(ValueError, match=words):
        represent(name, random_planes(planes=24), center=center, **options)


# ---- tfp: the mean of the planes in a window ----


def test_tfp_is_the_mean_of_the_planes_around_each_centre():
    spikes = random_planes()

    found = represent("tfp", spikes, center=12, half_window=3, offsets=[-4, 0, 4])

    assert found.dtype == np.float32
    # The windows have 3 planes on each side of planes 8, 12 and 16.
    windows = [
        mean_of_planes(spikes, first=5, last=11),
        mean_of_planes(spikes, first=9, last=15),
        mean_of_planes(spikes, first=13, last=19),
    ]
    assert np.allclose(found, windows)


def test_tfp_near_the_begin_is_the_mean_of_the_present_planes():
    spikes = random_planes()

    found = represent("tfp", spikes, center=1, half_window=5)

    # The window would begin at plane -4, 5 planes before plane 1. Planes below 0 are missing.
    assert np.allclose(found, [mean_of_planes(spikes, first=0, last=6)])


def test_tfp_near_the_end_is_the_mean_of_the_present_planes():
    spikes = random_planes(planes=24)

    found = represent("tfp", spikes, center=23, half_window=5)

    # The window would end at plane 28, 5 planes after plane 23. Planes after 23 are missing.
    assert np.allclose(found, [mean_of_planes(spikes, first=18, last=23)])


def test_tfp_counts_more_planes_than_fit_into_a_byte():
    # The window has 601 planes. A sum in a byte would overflow at 256.
    ones = np.ones((700, 1, 1), np.uint8)

    found = represent("tfp", ones, center=350, half_window=300)

    assert found[0, 0, 0] == 1.0


# Number of planes of a file -> the middles of the four windows that S-VRT, a published network,
# uses in this file. The data set Spk-GoPro has files of these three lengths.
MIDDLES_OF_S_VRT = {56: [20, 21, 35, 36], 88: [20, 33, 55, 68], 104: [20, 39, 65, 84]}
HALF_WINDOW_OF_S_VRT = 20


def middles_of_s_vrt(planes: int) -> np.ndarray:
    """Return the middles (4,) of four windows in a file of `planes` planes.

    The file is divided into four equal parts. E.g. for 56 planes, the middles of the parts are 7,
    21, 35 and 49.

    A middle that is too near to an edge of the file is moved: at least 20 planes must come before
    it, and at least 19 after it. In a file of 56 planes, 7 becomes 20, and 49 becomes 36, with the
    19 planes 37 to 55 after it.
    """
    edges = np.linspace(0, planes, 5)
    middles = (edges[:-1] + edges[1:]) / 2
    return np.clip(middles, HALF_WINDOW_OF_S_VRT, planes - HALF_WINDOW_OF_S_VRT).astype(int)


@pytest.mark.parametrize("planes", MIDDLES_OF_S_VRT)
def test_the_formula_of_s_vrt_gives_the_published_middles(planes):
    assert middles_of_s_vrt(planes).tolist() == MIDDLES_OF_S_VRT[planes]


# Numbers of planes of a file: the three numbers of Spk-GoPro, then 49 = 56 - 7 and 97 = 104 - 7,
# because the last file of a clip lacks 7 planes. 40 is the smallest number that the formula allows:
# 20 planes from each edge of the file to a middle.
@pytest.mark.parametrize("planes", [56, 88, 104, 49, 97, 40])
def test_tfp_spread_over_the_file_is_the_formula_of_s_vrt(planes):
    spikes = random_planes(planes=planes)
    half = HALF_WINDOW_OF_S_VRT

    found = represent("tfp", spikes, center=planes // 2, rate=0.5, half_window=half, num_bins=4)

    # A window has 20 planes on each side of its middle. If only 19 planes follow the middle, the
    # window ends with the last plane.
    means = []
    for middle in middles_of_s_vrt(planes):
        means.append(mean_of_planes(spikes, first=middle - half, last=middle + half))
    # A pixel in full light fires in half of the planes, so the light is twice the mean.
    assert np.allclose(found, 2 * np.stack(means), atol=1e-6)


@pytest.mark.parametrize("planes", [56, 88, 104, 49, 97, 40])
def test_tfp_spread_over_the_file_is_exact_in_reverse(planes):
    spikes = random_planes(planes=planes)
    options: dict[str, Any] = {"rate": 0.5, "half_window": HALF_WINDOW_OF_S_VRT, "num_bins": 4}

    forward = represent("tfp", spikes, center=planes // 2, **options)
    backward = represent("tfp", spikes, center=planes // 2, reverse=True, **options)

    assert np.array_equal(backward, forward[::-1])


def test_tfp_spread_over_the_file_says_which_options_have_no_effect():
    ignored = REPRESENTATIONS["tfp"].ignored(half_window=HALF_WINDOW_OF_S_VRT, num_bins=4)

    # The windows have the same places for each centre, and need no planes of neighbouring frames.
    assert ignored == {"center", "context"}


# ---- voxel: the mean of the planes in each of equal bins ----


def test_voxel_bins_count_every_plane_once():
    spikes = random_planes(planes=23)

    found = represent("voxel", spikes, center=11, num_bins=4)

    # A channel is a mean, so a channel times the planes of its bin is a number of spikes.
    planes_of_a_bin = 23 / 4
    spikes_of_bins = found * planes_of_a_bin  # (bins, h, w)
    assert np.allclose(spikes_of_bins.sum(axis=0), spikes.sum(axis=0))


def test_a_voxel_bin_that_ends_within_a_plane_has_a_part_of_it():
    spikes = random_planes(planes=23)

    found = represent("voxel", spikes, center=11, num_bins=4)

    # A bin has 23 / 4 = 5.75 planes. So the first bin has planes 0 to 4, and 0.75 of plane 5.
    count = spikes[:5].sum(axis=0) + 0.75 * spikes[5]
    assert np.allclose(found[0], count / 5.75)


def test_voxel_bins_lie_around_the_centre():
    # A file of Spk-GoPro has 56 planes for an exposure. The largest span with its centre at plane
    # 24 is planes 0 to 48. Planes 49 to 55 are not used.
    spikes = random_planes(planes=56)

    found = represent("voxel", spikes, center=24, num_bins=7)

    # The planes 0 to 48 are 7 bins of 7 planes.
    bins = spikes[:49].reshape(7, 7, 6, 5)  # (bin, plane, h, w)
    assert np.allclose(found, bins.mean(axis=1))


def test_one_voxel_bin_is_the_mean_of_the_planes_around_the_centre():
    spikes = random_planes(planes=56)

    found = represent("voxel", spikes, center=40, num_bins=1)

    # 15 planes follow plane 40, so the bin has planes 25 to 55.
    assert np.allclose(found, [mean_of_planes(spikes, first=25, last=55)])


def test_voxel_bins_around_the_middle_of_an_even_stream_are_the_whole_stream():
    spikes = random_planes(planes=56)

    # The middle of 56 planes lies between planes 27 and 28.
    found = represent("voxel", spikes, center=27.5, num_bins=8)

    # The 56 planes are 8 bins of 7 planes. Because a bin has whole planes only, no fraction is
    # rounded, and the channels are bitwise equal.
    bins = spikes.reshape(8, 7, 6, 5)  # (bin, plane, h, w)
    counts = bins.sum(axis=1).astype(np.float32)
    assert np.array_equal(found, counts / np.float32(7))


# ---- tfi: one over the time between two spikes ----


def tfi_by_definition(spikes: np.ndarray, center: int, half_window: int) -> np.ndarray:
    """Return 1 / (time from the last spike up to the centre to the first spike after it).

    The result has the shape (h, w). A pixel without such spikes within the window has the value
    1 / (length of the window).

    spikes: (planes, h, w). center: number of the middle plane. half_window: number of planes of the
        window on each side of the middle plane.
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


# The centers are the first two planes of the stream, a plane in the middle, and the last plane but
# one. After the last plane no spike could follow.
@pytest.mark.parametrize("center", [0, 1, 11, 22])
def test_tfi_is_one_over_the_interval_around_the_centre(center):
    spikes = random_planes(density=0.2)
    spikes[0, 0, 0] = 1  # a spike in plane 0 must be used like any other spike

    found = represent("tfi", spikes, center=center, half_window=8)[0]

    assert np.allclose(found, tfi_by_definition(spikes, center=center, half_window=8))


# ---- tfstp: a model of a synapse ----


def tfstp_by_definition(spikes: np.ndarray, tau_d: float, tau_f: float, step: float) -> float:
    """Return the rate of one pixel (T,), spike by spike, by the equations of the synapse.

    A synapse (Tsodyks and Markram) has resources r. A spike uses the fraction u of r. During the
    time t between two spikes, r and u go back to their values at rest, 1 and `step`:

        r <- 1 - (1 - r (1 - u)) exp(-t / tau_d)
        u <- step + (u + step (1 - u) - step) exp(-t / tau_f)

    In a regular train r and u do not change any more. Then the first equation can be solved for the
    rate 1 / t:

        1 / t = -1 / (tau_d log((1 - r) / (1 - r (1 - u))))

    tau_d, tau_f: time constants of r and u in planes. step: growth of u at a spike.
    """
    times = np.flatnonzero(spikes)
    # Assume that the pixel fired regularly before, always with its first interval. So r and u begin
    # with the values that a spike after this interval does not change. These values are the
    # solutions of the two equations above with the same u, and the same r, on both sides.
    gap = times[1] - times[0]
    e_d = math.exp(-gap / tau_d)
    e_f = math.exp(-gap / tau_f)
    u = (step * (1 - e_f) + step * e_f) / (1 - (1 - step) * e_f)
    r = (1 - e_d) / (1 - (1 - u) * e_d)

    for gap in np.diff(times[1:]):
        r = 1 - (1 - r * (1 - u)) * math.exp(-gap / tau_d)
        u = step + (u + step * (1 - u) - step) * math.exp(-gap / tau_f)

    rate = -1 / (tau_d * math.log((1 - r) / (1 - r * (1 - u))))
    # If the pixel has not fired for longer than 1 / rate, its light has become less. Then the rate
    # is at most 1 / planes_since_last. The last spike may be in the last plane, so the divisor is
    # at least 1.
    planes_since_last = max(len(spikes) - 1 - times[-1], 1)
    return min(rate, 1 / planes_since_last)


# The time constants in planes, and the utilisation, a share from 0 to 1. These values differ from
# the defaults of tfstp. So a test fails if an option has no effect.
SYNAPSE: dict[str, Any] = {"tau_d": 4.0, "tau_f": 15.0, "utilisation": 0.2}


def test_tfstp_solves_the_equations_of_the_synapse():
    spikes = random_planes(planes=60, density=0.25)

    found = represent("tfstp", spikes, center=49, **SYNAPSE)[0]

    for y, x in np.ndindex(found.shape):
        until_center = spikes[:50, y, x]  # the planes 0 to 49
        expected = tfstp_by_definition(until_center, tau_d=4.0, tau_f=15.0, step=0.2)
        assert found[y, x] == pytest.approx(expected, rel=1e-4)


def test_tfstp_does_not_depend_on_planes_after_the_centre():
    spikes = random_planes(planes=60, density=0.25)
    changed = spikes.copy()
    changed[50:] = 1 - changed[50:]  # 0 becomes 1, and 1 becomes 0

    found = represent("tfstp", changed, center=49, **SYNAPSE)

    # The two streams are equal up to plane 49, the centre.
    expected = represent("tfstp", spikes, center=49, **SYNAPSE)
    assert np.array_equal(found, expected)


@pytest.fixture
def regular_trains():
    """Give 100 planes of four pixels.

    Pixel 0 has a spike every 4 planes, pixel 1 every 40 planes. Pixel 2 has one spike, and pixel 3
    has none.
    """
    spikes = empty_planes(100, pixels=4)
    spikes[::4, 0, 0] = 1
    spikes[3::40, 0, 1] = 1
    spikes[50, 0, 2] = 1
    return spikes


def test_tfstp_of_a_regular_train_is_its_rate(regular_trains):
    found = represent("tfstp", regular_trains, center=99)[0, 0]

    # One spike in 100 planes has a rate of 1 / 100.
    assert found.tolist() == pytest.approx([1 / 4, 1 / 40, 1 / 100, 0], rel=1e-5)


def test_tfstp_at_the_first_plane_is_the_plane(regular_trains):
    found = represent("tfstp", regular_trains, center=0)[0, 0]

    # In plane 0 only the first pixel fires.
    assert found.tolist() == [1.0, 0, 0, 0]


def test_tfstp_averages_the_jitter_of_a_sensor_that_tfi_keeps():
    rng = np.random.default_rng(0)
    sensor = IntegrateAndFire(40, 40, rate=0.35, rng=rng, shot_noise=0.2)
    spikes = sensor.run(np.ones((80, 40, 40), np.float32))

    # The light is steady, so every deviation of the channel is noise.
    deviation_of_tfi = float(np.std(represent("tfi", spikes, center=40, rate=0.35)))
    deviation_of_tfstp = float(np.std(represent("tfstp", spikes, center=40, rate=0.35)))

    # tfi has the jitter of a single interval. tfstp averages several intervals, so less jitter is
    # left. Measured: 0.4 of the jitter of tfi.
    assert deviation_of_tfstp < 0.7 * deviation_of_tfi


@pytest.mark.parametrize("interval", [2, 4, 10])
def test_tfstp_has_the_rate_of_a_pixel_at_its_second_spike(interval):
    spikes = empty_planes(interval + 1)
    spikes[[0, interval]] = 1

    found = represent("tfstp", spikes, center=interval)

    assert found[0, 0, 0] == pytest.approx(1 / interval, rel=1e-5)


# ---- exposure: the light around the centre, and the light of the whole exposure ----


def moving_edge(rate: float, planes: int = 161) -> tuple[np.ndarray, np.ndarray]:
    """Return light (planes, 16, 24) of a moving edge, and the spikes that a sensor records.

    The light is 0.8 left of the edge and 0.1 right of it. The edge goes from column 6 at plane 0 to
    column 18 at plane 160. The sharp frame is the light of plane 80, and the blurry frame is the
    mean light of all planes.

    rate: share of planes in which a pixel in full light fires. For a lower rate, the sensor has a
        higher threshold.
    """
    column = np.arange(24)[None, :]
    edge = np.linspace(6, 18, planes)[:, None]
    row = np.where(column < edge, 0.8, 0.1)  # (planes, 24)
    light = row[:, None].repeat(16, axis=1).astype(np.float32)  # all 16 rows are equal
    sensor = IntegrateAndFire(16, 24, rate=rate, rng=np.random.default_rng(1))
    return light, sensor.run(light)


@pytest.fixture
def stream_with_dark_pixels():
    """Give 41 planes in which pixel (0, 0) fires once, and the other pixels of row 0 never fire."""
    spikes = random_planes(planes=41, density=0.4)
    spikes[:, 0] = 0
    spikes[3, 0, 0] = 1
    return spikes


def test_exposure_rates_are_the_mean_light_of_the_windows(stream_with_dark_pixels):
    spikes = stream_with_dark_pixels

    rates = exposure_rates(spikes, center=20, half_window=4, half_exposure=15)

    # `exposure_rates` returns two means of light around plane 20:
    #
    #     of the window      4 planes on each side     planes 16 to 24
    #     of the exposure    15 planes on each side    planes 5 to 35
    light = plane_light(spikes)
    assert np.allclose(
        rates, [mean_of_planes(light, first=16, last=24), mean_of_planes(light, first=5, last=35)]
    )


def test_the_exposure_has_as_many_planes_on_both_sides_as_the_shorter_side(stream_with_dark_pixels):
    spikes = stream_with_dark_pixels

    _, long = exposure_rates(spikes, center=12, half_window=4)

    # Plane 0 is not used. So there are 11 planes before plane 12 (planes 1 to 11), and 28 planes
    # after it. The exposure has 11 planes on each side, as many as the shorter side.
    assert np.allclose(long, mean_of_planes(plane_light(spikes), first=1, last=23))


def test_one_spike_shows_no_change_of_light(stream_with_dark_pixels):
    # Pixel (0, 0) has one spike, so there is no interval between spikes to compare. The light of
    # the short window must be the light of the exposure, and not 0.
    short, long = exposure_rates(stream_with_dark_pixels, center=20, half_window=4)

    assert short[0, 0] == long[0, 0]
    assert long[0, 0] > 0


def test_a_pixel_without_spikes_has_no_light(stream_with_dark_pixels):
    short, long = exposure_rates(stream_with_dark_pixels, center=20, half_window=4)

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

    estimate = exposure_estimate(blurry, represent("exposure", spikes, center=80, rate=0.9))

    # At most 0.6 of the error may be left. Measured: 0.49. The noise of the spikes prevents a
    # smaller error.
    assert root_mean_square(estimate - sharp) < 0.6 * root_mean_square(blurry - sharp)


def test_the_scale_of_the_rates_has_no_influence_on_the_exposure_estimate(coloured_edge):
    blurry, _, spikes = coloured_edge

    scaled = exposure_estimate(blurry, represent("exposure", spikes, center=80, rate=0.9))
    unscaled = exposure_estimate(blurry, represent("exposure", spikes, center=80))

    assert np.allclose(scaled, unscaled, atol=1e-5)


def test_the_exposure_estimate_of_pixels_without_spikes_is_the_blurry_frame(coloured_edge):
    blurry, _, spikes = coloured_edge

    estimate = exposure_estimate(blurry, represent("exposure", 0 * spikes, center=80))

    assert np.allclose(estimate, blurry, atol=1e-6)


# ---- relative: the light around the centre, divided by the mean light of the exposure ----


# A pixel fires at the threshold 1 / rate. So from case to case the threshold is doubled, and the
# number of spikes is halved.
@pytest.mark.parametrize("rate", [0.9, 0.45, 0.225])
def test_relative_light_undoes_the_blur_of_a_moving_edge_whatever_the_threshold(rate):
    light, spikes = moving_edge(rate)
    blurry = light.mean(axis=0)
    sharp = light[80]

    short, long, _ = represent("relative", spikes, center=80, half_windows=[2, 4], rate=rate)

    # The last channel is the confidence, which is not compared here. With each ratio, less than
    # half of the error must be left. Measured: 0.36 to 0.44.
    for ratio in (short, long):
        assert root_mean_square(blurry * ratio - sharp) < 0.5 * root_mean_square(blurry - sharp)


@pytest.mark.parametrize("rate", [0.9, 0.45, 0.225])
def test_the_confidence_of_relative_light_grows_with_the_number_of_spikes(rate):
    _, spikes = moving_edge(rate)

    confidence = represent("relative", spikes, center=80, half_windows=[2, 4], rate=rate)[-1]

    # The confidence of n spikes in the exposure is n / (n + 4), e.g. 0.5 for 4 spikes. `count` is
    # not exactly n, because the exposure lacks planes 0 and 160, and has fractions of spikes at its
    # ends. So 0.06 is allowed.
    count = spikes.sum(axis=0)
    assert np.allclose(confidence, count / (count + 4), atol=0.06)


def test_relative_light_of_display_values_is_the_ratio_to_the_power_of_gamma():
    _, spikes = moving_edge(rate=0.9)

    ratio = represent("relative", spikes, center=80, half_windows=[4])[0]
    of_display = represent("relative", spikes, center=80, half_windows=[4], gamma=2.2)[0]

    assert np.allclose(of_display, ratio**TO_DISPLAY, rtol=1e-5)


def test_relative_light_of_a_sensor_of_display_values_is_the_ratio_as_it_is():
    _, spikes = moving_edge(rate=0.9)

    sensor_of_light = represent("relative", spikes, center=80, half_windows=[4])
    sensor_of_display = represent(
        "relative", spikes, center=80, half_windows=[4], light="display", gamma=2.2
    )

    ratio = 0  # the number of the channel of the one window
    assert np.array_equal(sensor_of_display[ratio], sensor_of_light[ratio])


# A window below 1 is a share of half the exposure, rounded to whole planes. E.g. in 88 planes,
# plane 44 has 43 planes on each side, because plane 0 is not used. Then the shares of the test are
#
#     0.0465 x 43 = 2.0      0.14 x 43 = 6.02      0.28 x 43 = 12.04
@pytest.mark.parametrize(
    ("planes", "half_windows"),
    [
        pytest.param(44, [1, 3, 6], id="44 planes"),
        pytest.param(88, [2, 6, 12], id="88 planes"),
        pytest.param(176, [4, 12, 24], id="176 planes"),
    ],
)
def test_windows_may_be_shares_of_the_exposure(planes, half_windows):
    spikes = random_planes(planes)
    shares = [0.0465, 0.14, 0.28]

    found = represent("relative", spikes, center=planes // 2, half_windows=shares)

    assert np.array_equal(
        found, represent("relative", spikes, center=planes // 2, half_windows=half_windows)
    )


def test_parts_of_relative_light_show_when_the_light_changed():
    # The pixel fires every 4 planes until plane 40, and every 2 planes from plane 42 on. So in the
    # second half, the light is twice as strong as in the first half.
    spikes = empty_planes(81)
    spikes[:41:4] = 1
    spikes[42::2] = 1

    channels = represent("relative", spikes, center=41, half_windows=[1], num_bins=6)

    # The channels are one window, then six parts of the exposure, then the confidence.
    parts = channels[1:-1, 0, 0]
    # In any unit, the light is 1 in the first half and 2 in the second half. So its mean is 1.5,
    # and the channels are light / 1.5. Parts 2 and 3, in the middle, are not compared, because they
    # may show some of both halves.
    assert np.allclose(parts[:2], 1 / 1.5, atol=0.04)
    assert np.allclose(parts[4:], 2 / 1.5, atol=0.04)


HALF_WINDOWS = [0, 5, 20]  # windows of one plane, 11 planes and 41 planes


@pytest.fixture
def steady_pixels():
    """Give 60 planes of five pixels with steady light.

    Pixel 0 has a spike every 3 planes, pixel 1 every 7 planes, and pixel 2 in every plane. Pixel 3
    has one spike, and pixel 4 has none.
    """
    spikes = empty_planes(60, pixels=5)
    spikes[1::3, 0, 0] = 1
    spikes[4::7, 0, 1] = 1
    spikes[:, 0, 2] = 1
    spikes[40, 0, 3] = 1
    return spikes


def test_relative_light_is_one_if_nothing_changes(steady_pixels):
    channels = represent(
        "relative", steady_pixels, center=30, half_windows=HALF_WINDOWS, num_bins=4
    )

    # The last channel is the confidence.
    assert np.allclose(channels[:-1], 1)


def test_a_pixel_without_spikes_has_no_confidence(steady_pixels):
    channels = represent(
        "relative", steady_pixels, center=30, half_windows=HALF_WINDOWS, num_bins=4
    )

    confidence = channels[-1]
    assert confidence[0, 4] == 0


def test_a_pixel_with_more_spikes_has_more_confidence(steady_pixels):
    channels = represent(
        "relative", steady_pixels, center=30, half_windows=HALF_WINDOWS, num_bins=4
    )

    confidence = channels[-1]
    # The order of the pixels is by their spikes: 0, 1, 8, 20 and 60.
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
    spikes = random_planes()

    found = represent(name, spikes, center=12, rate=0.6, gamma=2.2, **options)

    plain = represent(name, spikes, center=12, **options)
    light = plain / 0.6
    assert np.allclose(found, light**TO_DISPLAY)


# Raw planes are bits and no light. The options rate and gamma scale light. So the two options do
# not change raw planes.
def test_rate_with_gamma_leaves_raw_planes_as_they_are():
    spikes = random_planes()

    found = represent("raw", spikes, center=12, rate=0.6, gamma=2.2, window=5)

    assert np.array_equal(found, spikes[10:15])


# ---- encoding25: windows of 25 planes ----


# E.g. a file of 56 planes and 4 windows. The middles are (43 - 12) / 3 = 10.33 planes apart:
#
#     middle    12    22.33, rounded to 22    32.67, rounded to 33    43
#     window    begins with plane 0                                   ends with plane 55
@pytest.mark.parametrize(
    ("planes", "middles"),
    [
        pytest.param(56, [12, 22, 33, 43], id="56 planes"),
        pytest.param(88, [12, 33, 54, 75], id="88 planes"),
    ],
)
def test_encoding25_spreads_its_windows_over_the_file(planes, middles):
    spikes = random_planes(planes=planes)

    found = represent("encoding25", spikes, center=planes // 2, num_windows=4)

    # A window has 12 planes on each side of its middle.
    windows = [spikes[middle - 12 : middle + 13] for middle in middles]
    assert np.array_equal(found, np.concatenate(windows))


@pytest.mark.parametrize("planes", [56, 88])
def test_encoding25_keeps_the_spacing_of_its_windows_if_it_is_given(planes):
    spikes = random_planes(planes=planes)
    center = planes // 2

    found = represent("encoding25", spikes, center=center, num_windows=2, spacing=10)

    # The middles are 5 planes before and 5 planes after the centre. A window has 12 planes on each
    # side of its middle. So the first window has the planes center - 17 to center + 7, and the
    # second window has the planes center - 7 to center + 17.
    first = spikes[center - 17 : center + 8]
    second = spikes[center - 7 : center + 18]
    assert np.array_equal(found, np.concatenate([first, second]))


def test_encoding25_repeats_the_outer_planes_of_a_short_file_if_asked():
    spikes = random_planes(planes=20)

    found = represent("encoding25", spikes, center=10, pad="edge")

    # 12 planes on each side of plane 10 are planes -2 to 22. The file has planes 0 to 19, so 2
    # planes are missing before the file, and 3 after it.
    assert np.array_equal(found[2:22], spikes)
    assert np.array_equal(found[0], spikes[0])
    assert np.array_equal(found[24], spikes[-1])


def test_encoding25_pads_a_short_file_by_zeros_if_asked():
    spikes = random_planes(planes=20)

    found = represent("encoding25", spikes, center=10, pad="zero")

    assert np.array_equal(found[2:22], spikes)
    # The 2 planes before the file and the 3 planes after it are zeros.
    assert found[:2].sum() == 0
    assert found[22:].sum() == 0


# ---- All representations: order of steps, and reversed time ----

# Settings of Hypothesis: no time limit for an example, and no file with earlier failures.
quick = settings(max_examples=60, deadline=None, database=None)


@st.composite
def representations(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw (name, options) of any registered representation.

    The options suit files of 31 planes around plane 15.
    """
    offsets = draw(st.lists(st.integers(-5, 5), min_size=1, max_size=3))
    options = {
        "tfp": {"half_window": draw(st.integers(0, 20)), "offsets": offsets},
        # tfp has two forms. "tfp spread" spreads its windows over the file.
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
    planes = random_planes(31, 7, 9, seed, density)  # 15 planes on each side of plane 15
    top = data.draw(st.integers(0, 6))
    left = data.draw(st.integers(0, 8))
    height = data.draw(st.integers(1, 7 - top))
    width = data.draw(st.integers(1, 9 - left))
    flips = [data.draw(st.booleans()) for _ in range(3)]  # horizontal, vertical, transposed
    crop = Crop(top, left, height, width)
    augment = Augment(top, left, height, width, *flips)

    def crop_and_flip(images):
        """Return a crop of planes or channels (n, h, w), flipped and turned."""
        rows, columns = crop.slices
        return augment.flip(images[:, rows, columns])

    before = represent(name, crop_and_flip(planes), center=15, rate=0.6, gamma=2.2, **options)
    after = crop_and_flip(represent(name, planes, center=15, rate=0.6, gamma=2.2, **options))

    assert before.dtype == np.float32
    assert np.array_equal(before, after)
    assert len(before) == channel_count(name, **options)


def channels_or_none(
    name: str, planes: np.ndarray, center: float, **options: Any
) -> np.ndarray | None:
    """Return the channels (C, h, w) of a representation, or None if there are too few planes."""
    try:
        return represent(name, planes, center, rate=0.6, gamma=2.2, **options)
    except ValueError:
        return None


def reversed_channels(
    name: str, planes: np.ndarray, center: float, options: dict[str, Any]
) -> np.ndarray | None:
    """Return the channels (C, h, w) in reversed time, made from the channels in forward time.

    Returns None if there are too few planes around the centre.
    """
    if "offsets" in options:
        # An offset of o planes in reversed time is an offset of -o planes in forward time.
        opposite = [-offset for offset in options["offsets"]]
        return channels_or_none(name, planes, center, **{**options, "offsets": opposite})

    forward = channels_or_none(name, planes, center, **options)
    if forward is None or name == "exposure":
        return forward  # windows around one instant are the same in both directions
    if name == "relative":
        # The channels are the windows around one instant, then the parts of the exposure, then the
        # confidence. Only the order of the parts is reversed.
        count = len(options["half_windows"])
        windows = forward[:count]
        parts = forward[count:-1]
        confidence = forward[-1:]
        return np.concatenate((windows, parts[::-1], confidence))
    return forward[::-1]


def assert_equal_or_both_none(found: np.ndarray | None, expected: np.ndarray | None) -> None:
    """Check that two arrays are bitwise equal, or that both are None."""
    if found is None or expected is None:
        assert found is expected
    else:
        assert np.array_equal(found, expected)


@st.composite
def streams_with_center(draw: st.DrawFn) -> tuple[np.ndarray, float]:
    """Draw planes (T, 4, 5), and a centre: a plane, or an instant between two planes."""
    count = draw(st.integers(12, 60))
    planes = random_planes(
        count,
        height=4,
        width=5,
        seed=draw(st.integers(0, 2**32 - 1)),
        density=draw(st.floats(0.0, 1.0)),
    )
    share = draw(st.floats(0.0, 1.0))  # 0: the first plane, 1: the last plane
    # Round to whole planes, or to half planes.
    steps_of_a_plane = draw(st.sampled_from([1, 2]))
    center = round(share * (count - 1) * steps_of_a_plane) / steps_of_a_plane
    return planes, center


@settings(quick, max_examples=200)
@given(chosen=representations(), made=streams_with_center())
def test_reversed_time_shows_the_same_instants_in_reverse_exactly(chosen, made):
    name, options = chosen
    planes, center = made
    # tfstp uses only the planes before `center`. In reversed time, the planes before `center` are
    # the planes that come after it in forward time. So the channels of the two directions differ.
    # The next test compares tfstp with reversed planes.
    if name == "tfstp":
        return

    found = channels_or_none(name, planes, center, reverse=True, **options)

    assert_equal_or_both_none(found, reversed_channels(name, planes, center, options))


@settings(quick, max_examples=200)
@given(chosen=representations(), made=streams_with_center())
def test_reversed_time_gives_the_channels_of_the_reversed_planes(chosen, made):
    name, options = chosen
    planes, center = made
    is_symmetric = name in ("voxel", "raw") or "offsets" in options
    # tfi counts a spike at the centre as the spike before the centre, in both directions of time.
    # So tfi has no exact mirror image.
    if not is_symmetric or name == "tfi":
        return
    # Only voxel has an exact mirror image if the centre lies between two planes.
    if name != "voxel" and center != int(center):
        return

    found = channels_or_none(name, planes, center, reverse=True, **options)

    mirrored_center = len(planes) - 1 - center
    mirrored = channels_or_none(name, planes[::-1], mirrored_center, **options)
    assert_equal_or_both_none(found, mirrored)

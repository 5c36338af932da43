"""Model the spike sensor: spikes from light, light from spikes, and another threshold.

A pixel of the sensor collects charge from light. When the charge reaches the threshold, the pixel
gives a spike and is reset. A plane is one read-out of all pixels. A spike is a 1 in the next plane.

    IntegrateAndFire   light -> spikes: the simulated sensor
    plane_light        spikes -> light of each plane
    window_light       spikes -> light of windows of planes
    change_threshold   spikes -> spikes of a sensor with another threshold
    fit_light          whether a sensor integrated linear light or display values
    to_linear, to_display, to_grey, to_uint8, bin_pixels    pictures and light

Units. Light is linear, and 1 at full light. Light that is computed from spikes has the unit
"thresholds per plane": a pixel that fires in every second plane has 0.5. Times are in planes, and
plane p lasts from time p to time p + 1.

Light from spikes. An interval is the time between two spikes of a pixel. Within an interval the
light is taken as constant: one threshold, spread evenly over the planes of the interval. A pixel
collects the charge of a spike before the spike. So a spike in plane p ends an interval at time
p + 1, where the next interval begins. For example, spikes in the planes 3 and 7 give the planes
4 ... 7 the light 1 / 4. Three cases have no whole interval, where T is the number of planes:

    before the first spike, after the last one   the light of the nearest interval. It is less if
                                                 this light would give one more spike in the file
    a pixel with a single spike                  1 / T
    a pixel without spikes                       no light

To change this file:

    keep    all numbers, bit for bit, because made data sets and training samples consist of them.
            So the order of random draws and of sums is fixed
    keep    the module needs numpy alone
    free    how the numbers are computed, if it is as fast
    test    tests/parts/data/test_spike_simulate.py compares with plain loops over pixels and
            planes, test_published_streams.py with published simulators
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Display values of images: light = value ** 2.2.
DISPLAY_GAMMA = 2.2

# Weights of R, G and B in grey, by Rec. 601, as in the published spike simulators.
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


# ---- Spikes from light -------------------------------------------------------------------------


class IntegrateAndFire:
    """A spike sensor that takes one plane of light at a time.

    Per pixel and plane, with the light I >= 0 (1 at full light) and the charge A:

        A <- A + rate * threshold * I + noise
        s = A >= threshold
        A <- A mod threshold   where s

    So `rate` is the firing rate at I = 1 in spikes per plane, which is gain / threshold: 0.5 for
    the threshold 2 and gain 1 of SpkDeblurNet's v2s, 0.9925 for S-SDM.

    Why a modulo? Light of more than one threshold per plane resets a pixel several times in a
    plane. The pixel still gives one spike, and only the charge since the last reset remains. The
    simulator of S-SDM does the same (SimulationSimple_Video). Below one threshold per plane, the
    modulo equals the subtraction of SpkDeblurNet's v2s.

    Source of the pixel: Huang et al., "1000x Faster Camera and Machine Vision with Ordinary
    Devices", Engineering 25, 2023.

    initial_charge: largest first charge of a pixel, in thresholds. The first charge is drawn
    uniformly from 0 to this value.
    shot_noise: standard deviation of the charge of one plane at I = 1, in thresholds. The deviation
    grows with sqrt(I).
    dark_rate: spikes per plane without light.
    threshold_mismatch: relative standard deviation of the threshold over the pixels, fixed in time.
    """

    def __init__(
        self,
        height: int,
        width: int,
        *,
        rate: float,
        threshold: float = 1.0,
        rng: np.random.Generator,
        initial_charge: float = 1.0,
        shot_noise: float = 0.0,
        dark_rate: float = 0.0,
        threshold_mismatch: float = 0.0,
    ) -> None:
        if rate <= 0 or threshold <= 0:
            raise ValueError(f"rate and threshold are positive, not {rate} and {threshold}")
        self.rng = rng
        # Charges of one plane: of the noise, without light, and at full light.
        self.shot_noise = shot_noise * threshold
        self.dark = dark_rate * threshold
        self.gain = rate * threshold
        # The order of the two draws decides which spikes a seed gives: do not change it.
        spread = 1.0 + threshold_mismatch * rng.standard_normal((height, width))
        # A pixel with a threshold near 0 or below would fire in every plane, so a threshold is at
        # least a tenth of the mean.
        least_threshold = 0.1 * threshold
        self.threshold = np.maximum(threshold * spread, least_threshold).astype(np.float32)
        first_charge = rng.uniform(0.0, 1.0, (height, width)) * initial_charge * self.threshold
        self.charge = first_charge.astype(np.float32)

    def step(self, light: np.ndarray) -> np.ndarray:
        """Integrate one plane of light (H, W). Returns its spikes (H, W) uint8 in {0, 1}."""
        # A <- A + rate * threshold * I + noise
        self.charge += self.gain * light.astype(np.float32) + self.dark
        if self.shot_noise:
            noise = self.rng.standard_normal(light.shape, dtype=np.float32)
            deviation = self.shot_noise * np.sqrt(np.clip(light, 0.0, None))
            self.charge += deviation * noise
        # s = A >= threshold, and A <- A mod threshold where s. fmod changes the charge in place.
        has_fired = self.charge >= self.threshold
        np.fmod(self.charge, self.threshold, out=self.charge, where=has_fired)
        return has_fired.astype(np.uint8)

    def run(self, lights: Iterable[np.ndarray]) -> np.ndarray:
        """Return the spikes (T, H, W) uint8 of T planes of light (H, W).

        The charge continues from the last call.
        """
        return np.stack([self.step(light) for light in lights])


# ---- Pictures and light ------------------------------------------------------------------------


def to_linear(picture: np.ndarray, gamma: float = DISPLAY_GAMMA) -> np.ndarray:
    """Turn display values in [0, 1] into linear light in [0, 1], float32."""
    return np.power(picture, gamma, dtype=np.float32)


def to_display(light: np.ndarray) -> np.ndarray:
    """Turn linear light into display values in [0, 1], float32."""
    return np.power(np.clip(light, 0.0, 1.0), 1.0 / DISPLAY_GAMMA, dtype=np.float32)


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """Turn (..., H, W, 3) in R, G, B order into grey (..., H, W) float32."""
    return rgb.astype(np.float32) @ LUMA


def to_uint8(picture: np.ndarray) -> np.ndarray:
    """Turn display values in [0, 1] into uint8, rounded to the nearest."""
    values = np.clip(picture, 0.0, 1.0) * 255.0
    # The conversion cuts off the fraction, so half a step is added to round.
    return (values + 0.5).astype(np.uint8)


def bin_pixels(light: np.ndarray, factor: int) -> np.ndarray:
    """Turn light (H, W) into (H / factor, W / factor), as larger pixels would see it.

    Each value is the mean of a block of factor x factor pixels.
    """
    rows = light.shape[0] // factor
    columns = light.shape[1] // factor
    blocks = light.reshape(rows, factor, columns, factor)  # (rows, y in block, columns, x in block)
    return blocks.mean(axis=(1, 3), dtype=np.float32)


# ---- Light from spikes -------------------------------------------------------------------------

# Fractions of an interval are rounded to multiples of 1 / STEPS. A float64 has 53 bits. 32 of them
# hold the fraction, so sums up to 2^20 are exact. Then the sums of a stream and of the reversed
# stream are equal to the bit, which test_spike_represent.py checks. With more steps, long sums
# would be rounded. With fewer steps, fractions would be less exact.
STEPS = 2.0**32


@dataclass(frozen=True)
class Intervals:
    """Where the intervals of each pixel begin and end."""

    # (T, h, w), for each spike the time at which its interval ends (plane + 1), else 0. The type is
    # the narrowest unsigned one, for speed.
    ends: np.ndarray
    begin: np.ndarray  # (h, w) int32, when the interval of the first spike begins: at most 0
    end: np.ndarray  # (h, w) int32, when the interval after the last spike ends: at least T + 1


def plane_light(stream: np.ndarray) -> np.ndarray:
    """Return the light of each plane of a stream, in thresholds per plane.

    stream: spikes (T, h, w). Returns (T, h, w) float32.

    The light at a plane is 1 / n, where n is the length of its interval: the number of planes from
    the spike before it to the spike at or after it.

    Let the interval of a plane go from time a to time b, so n = b - a. Only the plane of a spike
    tells b, and only the plane after a spike tells a. A running maximum over the planes carries
    both to all planes, which is many times as fast as np.where. For a maximum, a plane that tells
    nothing must have 0, and any other plane more than 0. So a and b are kept as two other numbers:

        since_a = a + T              1 or more, because no interval begins before -T + 1
        until_b = 2 T + 1 - b        1 or more, because no interval ends after 2 T. The next spike
                                     has the smallest b of all later spikes, so the largest until_b
        n = b - a = 3 T + 1 - since_a - until_b

    For example, T = 10 and spikes in the planes 3 and 7. The interval of the planes 4 ... 7 goes
    from a = 4 to b = 8. So since_a = 14, until_b = 13, and n = 31 - 14 - 13 = 4.
    """
    planes = len(stream)
    intervals = _intervals(stream)
    # The narrowest type that holds 3 T + 1, for speed.
    largest = 3 * planes + 1
    number_type = np.int16 if largest <= np.iinfo(np.int16).max else np.int32

    since_a = _since_begin(stream, intervals.begin, number_type)  # (T, h, w)
    until_b = _until_end(stream, intervals.end, number_type)
    lengths = number_type(largest) - since_a - until_b  # n
    # A pixel without spikes has the light 0.
    has_spikes = intervals.ends.any(axis=0)
    return has_spikes.astype(np.float32) / lengths.astype(np.float32)


def _until_end(stream: np.ndarray, end: np.ndarray, number_type: type[np.integer]) -> np.ndarray:
    """Return until_b = 2 T + 1 - b of each plane (T, h, w). b is when its interval ends.

    E.g. T = 10 and spikes in the planes 3 and 7. The intervals end at 4, 8 and 12. So the planes
    0 ... 9 get 17 17 17 17 13 13 13 13 9 9.

    end: (h, w), when the interval after the last spike ends.
    number_type: a type that holds 3 T + 1.
    """
    planes = len(stream)
    plane_numbers = np.arange(planes, dtype=number_type)[:, None, None]  # (T, 1, 1)
    # First the planes with a spike. A spike in plane p ends its interval at b = p + 1, so
    # until_b = 2 T + 1 - (p + 1) = 2 T - p.
    until_b = stream * (number_type(2 * planes) - plane_numbers)  # (T, h, w), 0 without a spike
    # Then all planes: from the last plane to the first, each plane takes the maximum with the plane
    # after it. `plane` is a view, so the maximum is written into `until_b`.
    plane_after = (2 * planes + 1 - end).astype(number_type)  # (h, w), after the last plane
    for plane in reversed(until_b):
        np.maximum(plane_after, plane, out=plane)
        plane_after = plane
    return until_b


def _since_begin(
    stream: np.ndarray, begin: np.ndarray, number_type: type[np.integer]
) -> np.ndarray:
    """Return since_a = a + T of each plane (T, h, w). a is when its interval begins.

    E.g. T = 10 and spikes in the planes 3 and 7. The intervals begin at 0, 4 and 8. So the planes
    0 ... 9 get 10 10 10 10 14 14 14 14 18 18.

    begin: (h, w), when the interval of the first spike begins.
    number_type: a type that holds 3 T + 1.
    """
    planes = len(stream)
    # First the planes after a spike. A spike in plane p - 1 begins the interval of plane p at
    # a = p, so since_a = p + T. Plane 0 is in the first interval, which begins at `begin`.
    plane_0 = (begin + planes).astype(number_type)[None]  # (1, h, w)
    numbers_from_1 = np.arange(1, planes, dtype=number_type)[:, None, None]  # p = 1 ... T - 1
    other_planes = stream[:-1] * (numbers_from_1 + number_type(planes))
    since_a = np.concatenate((plane_0, other_planes))  # (T, h, w), 0 without a spike
    # Then all planes: from the first plane to the last, each plane takes the maximum with the plane
    # before it. The pairs are views of `since_a`, so the maximum is written into `since_a`, and the
    # next pair sees it.
    for plane_before, plane in itertools.pairwise(since_a):
        np.maximum(plane_before, plane, out=plane)
    return since_a


def window_light(stream: np.ndarray, windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Return the sum of the light over planes a ... b - 1, for each window (a, b).

    Each sum is (h, w) float64, in thresholds. The light of one interval is one threshold, so the
    sum is the number of intervals in the window: 2.25 for two whole intervals and a quarter of a
    third one.

        light from a to b = light until b - light until a
        light until t = number of spikes before t + fraction of the interval around t that passed

    The spikes are counted in integers. Only the fractions are computed in float64, for one plane at
    each end of a window, so the function is fast.
    """
    intervals = _intervals(stream)
    # The begins and ends of all windows divide the stream into pieces from a to b. E.g. the
    # windows (2, 6) and (4, 9) of 10 planes give the times 0, 2, 4, 6, 9, 10, and the pieces
    # (0, 2), (2, 4), (4, 6), (6, 9), (9, 10).
    times = {0, len(stream)}
    for window in windows:
        times.update(window)
    pieces = list(itertools.pairwise(sorted(times)))
    interval_end = _interval_ends(intervals, pieces)

    # light_until[t], (h, w). `begin` and `spike_count` belong to the present time.
    light_until = {}
    begin = intervals.begin
    spike_count = np.zeros(begin.shape, intervals.ends.dtype)
    light_until[0] = spike_count + _fraction(0, begin, interval_end[0])
    for a, b in pieces:
        # The interval around time b begins at the last spike before b.
        last_end = intervals.ends[a:b].max(axis=0)  # 0 for a pixel without a spike in the piece
        begin = np.where(last_end, last_end, begin)
        spike_count += stream[a:b].sum(axis=0, dtype=spike_count.dtype)
        light_until[b] = spike_count + _fraction(b, begin, interval_end[b])
    # A pixel without a spike has no light, although fractions of its interval were counted. The
    # factor is 0 there, and 1 elsewhere.
    has_spikes = spike_count > 0
    return [(light_until[b] - light_until[a]) * has_spikes for a, b in windows]


def _interval_ends(
    intervals: Intervals, pieces: Sequence[tuple[int, int]]
) -> dict[int, np.ndarray]:
    """Return, for each time at an end of a piece, when the interval around this time ends, (h, w).

    pieces: (a, b) in the order of time. Together they are the whole stream.

    The interval around time t ends at the first spike after t. A pixel without a spike in a piece
    takes the end from the piece after it. So the pieces are visited from the last to the first.
    """
    _, end_of_stream = pieces[-1]
    interval_end = {end_of_stream: intervals.end}
    for a, b in reversed(pieces):
        # The end at the first spike of the piece, 0 for a pixel without a spike in the piece.
        first_end = _smallest_above_0(intervals.ends[a:b].copy())
        interval_end[a] = np.where(first_end, first_end, interval_end[b])
    return interval_end


def _fraction(time: int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return which fraction of each pixel's interval has passed at a time, (h, w) in 0 ... 1.

    begin, end: (h, w), when the interval of each pixel begins and ends. The fraction is rounded to
    a multiple of 1 / STEPS, because float64 holds sums of such multiples exactly.
    """
    passed = time - begin
    length = end - begin
    fraction = np.divide(passed, length, dtype=np.float64)
    return np.rint(fraction * STEPS) / STEPS


def _intervals(stream: np.ndarray) -> Intervals:
    """Find the intervals of each pixel, from spike to spike.

    The first spike ends an interval that began before the file, and the last spike begins an
    interval that ends after the file. Their lengths are not known. Each is taken to be as long as
    the interval beside it, or longer if this length would put one more spike into the file. A pixel
    with a single spike has no interval beside it, so T planes are taken.

    E.g. T = 10 and spikes in the planes 3 and 7. The ends are 4 and 8, and the interval between
    them has 4 planes. So the first interval goes from 0 to 4, and the last one from 8 to 12.

    What must stay: the numbers, because `plane_light` and `window_light` give the light of training
    samples. tests/parts/data/test_spike_simulate.py compares every pixel with a plain loop.
    """
    planes = len(stream)
    # Time at which each plane ends, 1 ... T.
    plane_ends = np.arange(1, planes + 1, dtype=np.min_scalar_type(planes))
    ends = stream * plane_ends[:, None, None]  # (T, h, w) unsigned, 0 without a spike
    first = _smallest_above_0(ends.copy())  # (h, w), the end at the first spike
    last = ends.max(axis=0)  # (h, w), the end at the last spike

    # The lengths of the intervals beside the two outer ones, e.g. 8 - 4. A plane without a spike
    # has ends = 0, but it never gives the smallest number: 0 - first is below 0, which is a very
    # large unsigned number, and last - 0 is larger than last - ends of any spike.
    after_first = _smallest_above_0(ends - first)  # from the first spike to the second
    before_last = _smallest_above_0(last - ends)  # from the last spike but one to the last

    # The numbers are signed from here on, because `begin` may be negative.
    first = first.astype(np.int32)
    last = last.astype(np.int32)
    is_single = first == last
    after_first = np.where(is_single, planes, after_first.astype(np.int32))
    before_last = np.where(is_single, planes, before_last.astype(np.int32))
    # The spike before the first one is not in the file, so the first interval begins at 0 or
    # earlier, and has at least `first` planes.
    first_length = np.maximum(after_first, first)
    # The spike after the last one is not in the planes 0 ... T - 1, so it ends its interval at
    # T + 1 or later.
    last_length = np.maximum(before_last, planes + 1 - last)
    begin = (first - first_length).astype(np.int32)
    end = (last + last_length).astype(np.int32)
    return Intervals(ends, begin, end)


def _smallest_above_0(numbers: np.ndarray) -> np.ndarray:
    """Return for each pixel the smallest of its numbers that is above 0, (h, w).

    numbers: (t, h, w) unsigned, overwritten to save time. A pixel whose numbers are all 0 gives 0.

    1 is subtracted before the minimum and added after it. For an unsigned number, 0 - 1 is the
    largest number of its type, so a 0 never wins. E.g. in uint8, 0, 8, 12 become 255, 7, 11. The
    minimum is 7, and the result is 8.
    """
    one = numbers.dtype.type(1)
    numbers -= one
    return numbers.min(axis=0) + one


# ---- Spikes of another threshold ---------------------------------------------------------------

# Number of values of a stream that `change_threshold` works on at a time. They fit into the cache
# of a core. With a larger or a smaller number it is slower, with the same result.
BLOCK = 2**18


def change_threshold(
    stream: np.ndarray, factor: float, rng: np.random.Generator, dark: float = 0.0
) -> np.ndarray:
    """Return the spikes that a sensor with `factor` times the threshold would have recorded.

    E.g. factor 4 gives one spike for four, and factor 0.5 gives two spikes for one.

    stream: recorded spikes (T, h, w) uint8.
    rng: the generator of the first charge of each pixel.
    dark: dark current, in spikes per plane, that is added to the light.
    Returns spikes (T, h, w) uint8. With factor 1 and no dark current, this is `stream` itself.

    The light L of each plane (`plane_light`) is integrated again. A is the charge of a pixel in new
    thresholds, at first a random number between 0 and 1:

        A <- A + L / factor + dark
        s = A >= 1
        A <- A - s

    A plane has at most one spike, as in the sensor. With a lower threshold, a plane may bring more
    charge than that. There are three rules for the charge that is left:

        left: 1 to 2      kept, so the next plane has the spike. A read-out rounds spike times to
                          planes: constant light of 0.9 spikes per plane gives intervals of 1 and 2
                          planes, and only their mean is right. Without the kept charge, the new
                          sensor would fire too rarely.
        left: 2 or more   lost but for one kept spike: A <- 1 + A mod 1
        it becomes dark   the kept spike is dropped before the plane is added: A <- A mod 1.
                          Otherwise a dark plane would fire from the light before it.
                          `_has_decreased` says where it becomes dark.

    Another rule or order fails test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says.
    """
    if factor == 1.0 and not dark:
        return stream
    charges = rng.random(stream.shape[1:], dtype=np.float32)  # (h, w), A of each pixel
    # If the factor is above 1 and there is no dark current, a plane adds less than 1 to a charge
    # below 1. Then the charge stays below 2, and the three rules have no effect.
    may_reach_two = factor <= 1 or dark > 0
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, BLOCK // (planes * width))
    for top in range(0, height, rows):
        block = slice(top, top + rows)
        light = plane_light(stream[:, block])  # (T, rows, w)
        charge = charges[block]  # (rows, w), a view

        has_decreased = _has_decreased(light)

        # L / factor + dark, in place.
        light /= np.float32(factor)
        if dark:
            light += np.float32(dark)

        # `_collect` overwrites each plane of `light` with the whole thresholds in the charge, 0, 1,
        # 2, ... The pixel fires where they are 1 or more.
        for plane, is_darker in zip(light, has_decreased, strict=True):
            _collect(charge, plane, is_darker, may_reach_two)
        whole_thresholds = light
        # As bool, because `out` is uint8 in {0, 1}, which has the same bytes.
        spikes = out[:, block].view(bool)
        np.greater_equal(whole_thresholds, np.float32(1.0), out=spikes)
    return out


def _collect(
    charge: np.ndarray, plane: np.ndarray, is_darker: np.ndarray, may_reach_two: bool
) -> None:
    """Add the light of one plane to the charge, and spend the charge of its spikes.

    All arrays are (h, w). `change_threshold` explains the three rules.

    charge: charge in thresholds, changed in place.
    plane: the light of the plane, overwritten with the whole thresholds in the charge.
    is_darker: bool, where the light has decreased, so that a kept spike is dropped.
    may_reach_two: whether the charge may become 2 or more.
    """
    one = np.float32(1.0)
    if may_reach_two:
        # A <- A mod 1 where it is darker. The charge is below 2 here, so 1 is subtracted where the
        # charge is 1 or more: True counts as 1.
        charge -= is_darker & (charge >= one)
    charge += plane
    whole_thresholds = np.floor(charge, out=plane)
    spent = whole_thresholds
    if may_reach_two:
        # At most one threshold is kept. E.g. a charge of 3.4 has 3 whole thresholds: one for the
        # spike, one is lost, and one is kept. So 2 are spent, and 1.4 remains. A charge of 1.4 has
        # only the one for the spike, and 0.4 remains.
        for_spike = np.minimum(whole_thresholds, one)  # 0 or 1
        spent = np.maximum(for_spike, whole_thresholds - one)
    charge -= spent


def _has_decreased(light: np.ndarray) -> np.ndarray:
    """Return where the light has become darker since the plane before.

    The interval must have become longer by more than one plane. A read-out rounds spike times to
    planes, so a difference of one plane may be only rounding.

    light: (T, h, w) of `plane_light`. Returns bool (T, h, w).
    """
    # The length of an interval is 1 / light. So the condition is 1 / now > 1 / before + 1. Times
    # now and before, this is before > now (1 + before), without a division by 0 in the dark. 0.999
    # is a margin for rounding errors. Plane 0 has no interval before it, so it stays False.
    has_decreased = np.zeros(light.shape, bool)
    before = light[:-1]
    now = light[1:]
    np.less(now * (np.float32(1.0) + before), np.float32(0.999) * before, out=has_decreased[1:])
    return has_decreased


# ---- What a sensor integrated ------------------------------------------------------------------

# The better fit is clearly better if its error is below this fraction of the error of the worse
# fit. If the errors are nearer to each other, noise and motion may have decided. With a larger
# ratio, such an answer would count as clear. With a smaller ratio, right answers would not count.
CLEAR_RATIO = 0.8


@dataclass(frozen=True)
class LightFit:
    """The better of two fits."""

    light: str  # "linear" or "display", what the sensor integrated
    rate: float  # spikes per plane at full light
    errors: dict[str, float]  # {"display": ..., "linear": ...}, relative to the rates; 0: exact
    is_clear: bool  # whether one fit is clearly better


def fit_light(rates: np.ndarray, values: np.ndarray) -> LightFit:
    """Fit rates = k values (display) and rates = k values ** 2.2 (linear light) by least squares.

    rates: (h, w), spikes per plane around the time of a frame.
    values: (h, w), grey display values of this frame in [0, 1], resized to the spike camera.
    """
    rates = rates.astype(np.float64)
    values = values.astype(np.float64)
    # The smallest divisor, so that black frames do not divide by 0.
    least = 1e-12
    square_of_rates = max((rates * rates).sum(), least)
    rate_of = {}
    errors = {}
    for light, x in (("display", values), ("linear", values**DISPLAY_GAMMA)):
        # Least squares of rates = k x: k = sum(rates x) / sum(x^2).
        k = float((rates * x).sum() / max((x * x).sum(), least))
        square_of_residuals = ((rates - k * x) ** 2).sum()
        rate_of[light] = k
        errors[light] = float(np.sqrt(square_of_residuals / square_of_rates))
    best = min(errors, key=lambda light: errors[light])
    is_clear = errors[best] < CLEAR_RATIO * max(errors.values())
    return LightFit(best, rate_of[best], errors, is_clear)

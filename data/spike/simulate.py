"""Model the spike sensor: spikes from light, light from spikes, and another threshold.

A pixel of the sensor collects charge from light. When the charge reaches the threshold, the pixel
gives a spike (the bit 1 in the next plane, which is one read-out of all pixels) and is reset.

    IntegrateAndFire   light -> spikes: the simulated sensor
    plane_light        spikes -> light of each plane
    window_light       spikes -> light of windows of planes
    change_threshold   spikes -> spikes of a sensor with another threshold
    fit_light          whether a sensor integrated linear light or display values
    to_linear, to_display, to_grey, to_uint8, bin_pixels    pictures and light

Units. Light is linear, 1 at full light. The light that is found from spikes has the unit
"thresholds per plane": a pixel that fires in every second plane has 0.5.

Light from spikes. In the time between two spikes of a pixel (an interval), the light is taken as
constant: one threshold, spread evenly over the planes of the interval. The light of a spike was
collected before it: a spike in plane p ends an interval at time p + 1, where the next interval
begins. For example, spikes in the planes 3 and 7 give the planes 4 ... 7 the light 1 / 4. Before
the first and after the last spike, the light is the light of the nearest interval, limited to what
a spike just outside of the file would allow. A pixel with a single spike has the light 1 / T, where
T is the number of planes. A pixel without spikes has no light.

The module needs numpy alone. Made data sets and training samples depend on its numbers bit for bit,
so the order of random draws and of sums is fixed.

Tests: tests/parts/data/test_spike_simulate.py, tests/parts/data/test_published_streams.py
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

    Light of more than one threshold per plane resets a pixel several times in a plane. The pixel
    still gives one spike, and only the charge since the last reset remains. This is the reason for
    the modulo, as in S-SDM's simulator (SimulationSimple_Video). Below one threshold per plane, the
    modulo equals the subtraction of SpkDeblurNet's v2s. Source of the pixel: Huang et al., "1000x
    Faster Camera and Machine Vision with Ordinary Devices", Engineering 25, 2023.

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
        self.shot_noise = shot_noise * threshold
        self.dark = dark_rate * threshold
        self.gain = rate * threshold
        # The order of the two draws decides which spikes a seed gives: do not change it.
        spread = 1.0 + threshold_mismatch * rng.standard_normal((height, width))
        # A threshold near 0 or below would fire without end, so it is at least a tenth of the mean.
        self.threshold = np.maximum(threshold * spread, 0.1 * threshold).astype(np.float32)
        first_charge = rng.uniform(0.0, 1.0, (height, width)) * initial_charge * self.threshold
        self.charge = first_charge.astype(np.float32)

    def step(self, light: np.ndarray) -> np.ndarray:
        """Integrate one plane of light (H, W). Returns its spikes (H, W) uint8 in {0, 1}."""
        self.charge += self.gain * light.astype(np.float32) + self.dark
        if self.shot_noise:
            noise = self.rng.standard_normal(light.shape, dtype=np.float32)
            self.charge += self.shot_noise * np.sqrt(np.clip(light, 0.0, None)) * noise
        fired = self.charge >= self.threshold
        np.fmod(self.charge, self.threshold, out=self.charge, where=fired)
        return fired.astype(np.uint8)

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
    return (np.clip(picture, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def bin_pixels(light: np.ndarray, factor: int) -> np.ndarray:
    """Turn light (H, W) into (H / factor, W / factor), as larger pixels would see it.

    Each value is the mean of a block of factor x factor pixels.
    """
    rows = light.shape[0] // factor
    columns = light.shape[1] // factor
    blocks = light.reshape(rows, factor, columns, factor)
    return blocks.mean(axis=(1, 3), dtype=np.float32)


# ---- Light from spikes -------------------------------------------------------------------------

# Fractions of an interval are rounded to 1 / STEPS. So all sums are exact, and equal in both
# directions of time.
STEPS = 2.0**32


def plane_light(stream: np.ndarray) -> np.ndarray:
    """Return the light of each plane of a stream, in thresholds per plane.

    stream: spikes (T, h, w). Returns (T, h, w) float32.

    The light at a plane is 1 / n, where n is the length of its interval: the number of planes from
    the spike before it to the spike at or after it.

    The times of these two spikes are found by running maxima, which are many times as fast as
    np.where. For a maximum, a time must be positive, and 0 must mean "no spike". So two other
    clocks are used. With the interval from time a to time b,

        next_spike = 2 T + 1 - b     counted back, so an earlier spike has the larger number
        last_spike = a + T           a may be as early as -T + 1
        length = b - a = 3 T + 1 - last_spike - next_spike

    For example, T = 10 and spikes in the planes 3 and 7: the interval of the planes 4 ... 7 goes
    from a = 4 to b = 8, so next_spike = 13, last_spike = 14, and length = 31 - 14 - 13 = 4.
    """
    planes = len(stream)
    ends, begin, end = _outer_times(stream)
    whole = 3 * planes + 1
    number_type = np.int16 if whole <= np.iinfo(np.int16).max else np.int32
    numbers = np.arange(planes, dtype=number_type)[:, None, None]  # (T, 1, 1)

    # The next spike. A spike in plane p ends its interval at b = p + 1, which is
    # 2 T + 1 - (p + 1) = 2 T - p on the clock that counts back.
    next_spike = stream * (number_type(2 * planes) - numbers)  # (T, h, w), 0 without a spike
    # After the last plane, the last interval ends at the time `end`.
    end_counted_back = (2 * planes + 1 - end).astype(number_type)  # (h, w)
    # From the last plane to the first, each plane takes the maximum with the plane after it.
    # `plane` is a view, so the result is written into `next_spike`.
    plane_after = end_counted_back
    for plane in reversed(next_spike):
        np.maximum(plane_after, plane, out=plane)
        plane_after = plane

    # The last spike. A spike in plane p - 1 begins the interval of plane p at time a = p, which is
    # p + T on the other clock. The first plane has the begin of the first interval.
    first_plane = (begin + planes).astype(number_type)[None]  # (1, h, w)
    other_planes = stream[:-1] * (numbers[1:] + number_type(planes))  # p = 1 ... T - 1
    last_spike = np.concatenate((first_plane, other_planes))  # (T, h, w)
    # From the first plane to the last, each plane takes the maximum with the plane before it. Both
    # are views of `last_spike`, so each pair sees the result of the pair before.
    for plane_before, plane in itertools.pairwise(last_spike):
        np.maximum(plane_before, plane, out=plane)

    # length = 3 T + 1 - last_spike - next_spike, see the docstring.
    lengths = number_type(whole) - last_spike - next_spike
    has_spikes = ends.any(axis=0)
    return has_spikes.astype(np.float32) / lengths.astype(np.float32)


def window_light(stream: np.ndarray, windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Return the sum of the light over planes a ... b - 1, for each window (a, b).

    Each sum is (h, w) float64, in thresholds. The light of one interval is one threshold, so the
    sum is the number of intervals in the window: 2.25 for two whole intervals and a quarter of a
    third one. Whole intervals are counted as spikes, in integers. Only the fractions at the two
    ends of a window are computed in float64, which keeps this function fast.
    """
    ends, begin, end = _outer_times(stream)
    # The begins and ends of all windows divide the stream into pieces from a to b. E.g. the
    # windows (2, 6) and (4, 9) of 10 planes: (0, 2), (2, 4), (4, 6), (6, 9), (9, 10).
    times = {0, len(ends)}
    for window in windows:
        times.update(window)
    pieces = list(itertools.pairwise(sorted(times)))

    # time -> when the interval that contains this time ends, (h, w). This is at the first spike
    # after the time. The pieces are visited from the last to the first, so that a piece without a
    # spike can take the end found in the piece after it.
    following = {max(times): end}
    for a, b in reversed(pieces):
        first = _first(ends[a:b])
        following[a] = np.where(first, first, following[b])

    # time -> the light from the start of the stream to this time, (h, w): the number of spikes so
    # far, and the fraction that has passed of the interval that contains the time.
    light = {}
    count = np.zeros(begin.shape, ends.dtype)
    light[0] = count + _fraction(0, begin, following[0])
    for a, b in pieces:
        # The interval that contains the time b begins at the last spike before b.
        last = ends[a:b].max(axis=0)  # 0 for a pixel without a spike in the piece
        begin = np.where(last, last, begin)
        count += stream[a:b].sum(axis=0, dtype=count.dtype)
        light[b] = count + _fraction(b, begin, following[b])
    has_spikes = count > 0
    return [(light[b] - light[a]) * has_spikes for a, b in windows]


def _fraction(time: int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return which fraction of each pixel's interval has passed at a time, (h, w) in 0 ... 1.

    begin, end: (h, w), when the interval of each pixel begins and ends. The fraction is rounded to
    1 / STEPS, which makes sums of fractions exact (see `STEPS`).
    """
    fraction = np.divide(time - begin, end - begin, dtype=np.float64)
    return np.rint(fraction * STEPS) / STEPS


def _first(ends: np.ndarray) -> np.ndarray:
    """Return the first of the ends of intervals of each pixel, (h, w); 0 if there is none.

    ends: (t, h, w) unsigned, 0 where an interval does not end. Subtracting 1 turns each 0 into the
    largest number of the type, so that the minimum ignores it.
    """
    one = ends.dtype.type(1)
    return (ends - one).min(axis=0) + one


def _outer_times(stream: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ends of the intervals, and the two outer times.

    ends: (T, h, w), for each spike the time at which its interval ends, else 0. The type is the
    narrowest unsigned one, for speed.
    begin: (h, w) int32, when the interval of the first spike begins. At most 0.
    end: (h, w) int32, when the interval after the last spike ends. At least T + 1.

    The two outer intervals are not seen as a whole. They are taken to be as long as their
    neighbour, and at least so long that they reach out of the file. A single spike has no
    neighbour, so T planes are taken.
    """
    planes = len(stream)
    times = np.arange(1, planes + 1, dtype=np.min_scalar_type(planes))  # of the ends of planes
    ends = stream * times[:, None, None]
    one = ends.dtype.type(1)
    first = _first(ends)  # (h, w), the end of the first interval, and of the last one
    last = ends.max(axis=0)
    # The distance from the first spike to the second is the least distance above 0 from the first
    # spike. 1 is subtracted from each distance before the minimum, and added again behind it. The
    # numbers are unsigned, so what would be negative becomes very large, and the minimum ignores
    # it: the first spike itself (0 - 1), and planes without a spike (0 - first - 1).
    after = (ends - (first + one)).min(axis=0).astype(np.int32) + 1
    # The distance from the last spike but one to the last, in the same way. Here a plane without a
    # spike has the distance last - 0, which is more than that of any other spike.
    before = ((last - one) - ends).min(axis=0).astype(np.int32) + 1
    is_single = first == last
    first = first.astype(np.int32)
    last = last.astype(np.int32)
    # As long as the neighbour, and long enough to reach out of the file: a first interval of at
    # least `first` planes begins at 0 or earlier, and a last interval of at least T + 1 - last
    # planes ends at T + 1 or later.
    first_length = np.maximum(np.where(is_single, planes, after), first)
    last_length = np.maximum(np.where(is_single, planes, before), planes + 1 - last)
    begin = first - first_length
    end = last + last_length
    return ends, begin.astype(np.int32), end.astype(np.int32)


# ---- Spikes of another threshold ---------------------------------------------------------------

# Number of values of a stream that are changed at a time. They fit into the cache of a core.
BLOCK = 2**18


def change_threshold(
    stream: np.ndarray, factor: float, rng: np.random.Generator, dark: float = 0.0
) -> np.ndarray:
    """Return the stream of a sensor with `factor` times the threshold.

    stream: spikes (T, h, w). The new rate is rate / factor spikes per plane, and `dark` more.

    The light L of the stream (see `plane_light`) is integrated again with a new random first
    charge A:

        A <- A + L / factor + dark
        s = A >= 1
        A <- A - s

    So a higher threshold keeps every factor-th spike, and a lower one adds spikes between them. As
    in the sensor (see IntegrateAndFire) there is at most one spike per plane, and charge beyond it
    is lost: where A >= 2 remains, A <- 1 + A mod 1.

    The charge of one spike is kept, because the read-out rounds spike times to planes: constant
    light of 0.9 spikes per plane gives intervals of 1 and 2 planes, of which only the mean is
    right. If an interval is longer than the interval before it by more than this rounding, the
    light has decreased. Then this charge is dropped: A <- A mod 1.
    """
    if factor == 1.0 and not dark:
        return stream
    one = np.float32(1.0)
    charges = rng.random(stream.shape[1:], dtype=np.float32)  # (h, w)
    # Otherwise less than 1 remains and less than 1 is added, so the charge stays below 2, and
    # neither of the two rules for more charge has an effect.
    may_reach_two = factor <= 1 or dark > 0
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, BLOCK // (planes * width))
    for top in range(0, height, rows):
        block = slice(top, top + rows)
        light = plane_light(stream[:, block])  # (T, rows, w)
        charge = charges[block]
        before = light[:-1]
        now = light[1:]
        # Longer by more than one plane: 1 / now > 1 / before + 1, multiplied by both. 0.999 is a
        # margin for rounding errors. The first plane has no interval before it.
        has_decreased = np.zeros(light.shape, bool)
        np.less(now * (one + before), np.float32(0.999) * before, out=has_decreased[1:])
        light /= np.float32(factor)
        if dark:
            light += np.float32(dark)

        # `plane` is a view, so each plane of `light` is replaced by the whole thresholds of the
        # charge. They are 1 or more where the pixel fires.
        for plane, is_darker in zip(light, has_decreased, strict=True):
            if may_reach_two:
                # A mod 1. The charge is below 2 here, so subtract 1 (True) where it is 1 or more.
                charge -= is_darker & (charge >= one)
            charge += plane
            spent = np.floor(charge, out=plane)
            if may_reach_two:
                # Of the whole thresholds 0, 1, 2, 3, ... are spent 0, 1, 1, 2, ...: one for the
                # spike, and what is lost. E.g. a charge of 3.4 becomes 1.4.
                spent = np.maximum(np.minimum(spent, one), spent - one)
            charge -= spent
        np.greater_equal(light, one, out=out[:, block].view(bool))
    return out


# ---- What a sensor integrated ------------------------------------------------------------------

# Largest ratio of the two errors that counts as clear. Above it, noise and motion may decide.
CLEAR = 0.8


@dataclass(frozen=True)
class LightFit:
    """The better of two fits.

    light: "linear" or "display", what the sensor integrated.
    rate: spikes per plane at full light.
    errors: {"display": ..., "linear": ...}, errors of both fits, relative to the rates (0: exact).
    is_clear: whether one fit is clearly better.
    """

    light: str
    rate: float
    errors: dict[str, float]
    is_clear: bool


def fit_light(rates: np.ndarray, values: np.ndarray) -> LightFit:
    """Fit rates = k values (display) and rates = k values ** 2.2 (linear light) by least squares.

    rates: (h, w), spikes per plane around the time of a frame.
    values: (h, w), grey display values of this frame in [0, 1], resized to the spike camera.
    """
    rates = rates.astype(np.float64)
    values = values.astype(np.float64)
    # The smallest number keeps black frames finite.
    least = 1e-12
    rate_of = {}
    errors = {}
    for light, x in (("display", values), ("linear", values**DISPLAY_GAMMA)):
        # Least squares of rates = k x: k = sum(rates x) / sum(x^2).
        k = float((rates * x).sum() / max((x * x).sum(), least))
        square = ((rates - k * x) ** 2).sum()
        rate_of[light] = k
        errors[light] = float(np.sqrt(square / max((rates * rates).sum(), least)))
    best = min(errors, key=lambda light: errors[light])
    is_clear = errors[best] < CLEAR * max(errors.values())
    return LightFit(best, rate_of[best], errors, is_clear)

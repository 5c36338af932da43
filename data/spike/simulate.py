"""The spike sensor: spikes from light, light from spikes, and the spikes of a sensor with another
threshold.

Light from spikes is that of the intervals between them: one threshold in each interval, evenly over
its planes. It is integrated before its spike: a spike in plane p ends an interval at time p + 1,
where the next one begins. Before the first and after the last spike, the light is that of the
nearest interval, limited to what a spike just outside of the file would allow. A pixel with a
single spike has the light 1 / T, one without spikes has none.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Display values of images: light = value ** 2.2.
DISPLAY_GAMMA = 2.2

# Rec. 601 weights, as in the published spike simulators.
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class IntegrateAndFire:
    """A spike sensor that takes one plane of light at a time.

    Per pixel and read-out tick, with I >= 0, 1 at full light:
        A <- A + rate * threshold * I + noise;   s = A >= threshold;   A <- A mod threshold where s
    so `rate` is the firing rate at I = 1 in spikes per tick (gain / threshold; 0.5 for the
    threshold 2 and gain 1 of SpkDeblurNet's v2s, 0.9925 for S-SDM).

    Light of more than one threshold per tick resets a pixel several times and gives one spike: only
    the charge since the last reset remains. Hence the modulo, as in S-SDM's simulator
    (SimulationSimple_Video); below one threshold per tick it equals the subtraction of
    SpkDeblurNet's v2s. Source of the pixel: Huang et al., "1000x Faster Camera and Machine Vision
    with Ordinary Devices", Engineering 25, 2023.

    initial_charge: upper end of the uniform first charge, in thresholds. shot_noise: standard
    deviation of the charge of one tick at I = 1, in thresholds; grows with sqrt(I). dark_rate:
    spikes per tick without light.
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
        spread = 1.0 + threshold_mismatch * rng.standard_normal((height, width))
        self.threshold = np.maximum(threshold * spread, 0.1 * threshold).astype(np.float32)
        self.charge = (
            rng.uniform(0.0, 1.0, (height, width)) * initial_charge * self.threshold
        ).astype(np.float32)

    def step(self, light: np.ndarray) -> np.ndarray:
        """Light (H, W), 1 at full scale -> spikes (H, W) uint8 in {0, 1} of this tick."""
        self.charge += self.gain * light.astype(np.float32) + self.dark
        if self.shot_noise:
            noise = self.rng.standard_normal(light.shape, dtype=np.float32)
            self.charge += self.shot_noise * np.sqrt(np.clip(light, 0.0, None)) * noise
        fired = self.charge >= self.threshold
        np.fmod(self.charge, self.threshold, out=self.charge, where=fired)
        return fired.astype(np.uint8)

    def run(self, lights: Iterable[np.ndarray]) -> np.ndarray:
        """Return spikes (T, H, W) uint8 of T light planes (H, W).

        The charge continues from the last call.
        """
        return np.stack([self.step(light) for light in lights])


def to_linear(picture: np.ndarray, gamma: float = DISPLAY_GAMMA) -> np.ndarray:
    """Display values in [0, 1] -> linear light in [0, 1], float32."""
    return np.power(picture, gamma, dtype=np.float32)


def to_display(light: np.ndarray) -> np.ndarray:
    """Linear light -> display values in [0, 1], float32."""
    return np.power(np.clip(light, 0.0, 1.0), 1.0 / DISPLAY_GAMMA, dtype=np.float32)


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """(..., H, W, 3) in R, G, B order -> (..., H, W) float32."""
    return rgb.astype(np.float32) @ LUMA


def to_uint8(picture: np.ndarray) -> np.ndarray:
    """Display values in [0, 1] -> uint8, rounded to the nearest."""
    return (np.clip(picture, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def bin_pixels(light: np.ndarray, factor: int) -> np.ndarray:
    """Light (H, W) -> (H / factor, W / factor): the mean of each factor x factor block, as for a
    larger pixel.
    """
    rows, columns = (side // factor for side in light.shape)
    return light.reshape(rows, factor, columns, factor).mean(axis=(1, 3), dtype=np.float32)


# Fractions of an interval are rounded to 1 / STEPS. So all sums are exact, and equal in both
# directions of time.
STEPS = 2.0**32


def plane_light(stream: np.ndarray) -> np.ndarray:
    """Return the light of each plane of a stream, in thresholds per plane.

    stream: spikes (T, h, w). The light at a plane is 1 / n, if n planes lie between the spike
    before it and the spike at or after it. Returns (T, h, w) float32.

    The times of these two spikes are found by running maxima, which are many times as fast as
    np.where. For a maximum, a time must be positive, and 0 must mean "no spike". So the time of the
    next spike is counted back from 2 T + 1, and the time of the last spike from -T on.
    """
    planes = len(stream)
    ends, begin, end = _outer_times(stream)
    whole = 3 * planes + 1
    kind = np.int16 if whole <= np.iinfo(np.int16).max else np.int32
    numbers = np.arange(planes, dtype=kind)[:, None, None]

    # The next spike. In place, each row takes the maximum with the row after it.
    next_spike = stream * (kind(2 * planes) - numbers)
    row_after = (2 * planes + 1 - end).astype(kind)
    for row in reversed(next_spike):
        row_after = np.maximum(row_after, row, out=row)

    # The last spike. The interval of a plane begins after the spikes of the planes before it.
    first_row = (begin + planes).astype(kind)[None]
    last_spike = np.concatenate((first_row, stream[:-1] * (numbers[:-1] + kind(planes + 1))))
    for row_before, row in itertools.pairwise(last_spike):
        np.maximum(row_before, row, out=row)

    lengths = kind(whole) - last_spike - next_spike
    has_interval = ends.any(axis=0)
    return has_interval.astype(np.float32) / lengths.astype(np.float32)


def window_light(stream: np.ndarray, windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """The sum (h, w) float64 of the light of planes a ... b - 1 for each window (a, b), in
    thresholds.

    It is the number of the intervals in the window: those inside, and fractions of those at its two
    ends. So only the ends of the windows cost arithmetic in float64.
    """
    ends, begin, end = _outer_times(stream)
    times = sorted({0, len(ends), *(time for window in windows for time in window)})
    following = {times[-1]: end}
    parts = list(itertools.pairwise(times))
    for a, b in reversed(parts):
        first = _first(ends[a:b])
        following[a] = np.where(first, first, following[b])
    light, count = {}, np.zeros(begin.shape, ends.dtype)
    for a, b in [(0, 0), *parts]:
        if b:
            last = ends[a:b].max(axis=0)
            begin = np.where(last, last, begin)
            count += stream[a:b].sum(axis=0, dtype=count.dtype)
        # Of the interval at b: 0 to 1
        passed = np.divide(b - begin, following[b] - begin, dtype=np.float64)
        light[b] = count + np.rint(passed * STEPS) / STEPS
    is_lit = count > 0
    return [(light[b] - light[a]) * is_lit for a, b in windows]


def _first(ends: np.ndarray) -> np.ndarray:
    """(h, w): the first of the ends, 0 where there is none."""
    one = ends.dtype.type(1)
    return (ends - one).min(axis=0) + one  # 0 - 1 is the largest number


def _outer_times(stream: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each spike the time at which its interval ends, else 0: (T, h, w) of a narrow type, for
    speed; and two times.

    Both are (h, w) int32 and lie outside of the file: when the interval of the first spike begins,
    at most 0, and when the one after the last spike ends, at least T + 1.
    """
    planes = len(stream)
    ends = stream * np.arange(1, planes + 1, dtype=np.min_scalar_type(planes))[:, None, None]
    one = ends.dtype.type(1)
    first, last = _first(ends), ends.max(axis=0)
    # The second spike from each side is the nearest one: the spike itself has the distance 0 - 1,
    # the largest number.
    after = (ends - (first + one)).min(axis=0).astype(np.int32) + 1
    before = ((last - one) - ends).min(axis=0).astype(np.int32) + 1
    is_single = first == last
    first, last = first.astype(np.int32), last.astype(np.int32)
    begin = first - np.maximum(np.where(is_single, planes, after), first)
    end = last + np.maximum(np.where(is_single, planes, before), planes + 1 - last)
    return ends, begin.astype(np.int32), end.astype(np.int32)


# So many values of a stream are changed at a time: they fit into the cache of a core.
BLOCK = 2**18


def change_threshold(
    stream: np.ndarray, factor: float, rng: np.random.Generator, dark: float = 0.0
) -> np.ndarray:
    """Stream (T, h, w) of a sensor with `factor` times the threshold: rate / factor spikes per
    tick, and `dark` more.

    Light L is assumed constant between two spikes, one threshold per interval, and integrated again
    with a new random first charge: A <- A + L / factor + dark; s = A >= 1; A <- A - s. So a higher
    threshold keeps every factor-th spike, and a lower one adds spikes between them. As in the
    sensor (see IntegrateAndFire) there is at most one spike per plane, and charge beyond it is
    lost: A <- 1 + A mod 1 where A >= 2 remains. The charge of one spike is kept because the
    read-out rounds spike times to planes: constant light of 0.9 spikes per plane gives intervals of
    1 and 2 planes, of which only the mean is right. Where an interval is longer than its
    predecessor by more than this rounding, the light has decreased and this charge is dropped: A <-
    A mod 1.
    """
    if factor == 1.0 and not dark:
        return stream
    is_one = factor <= 1 or dark > 0  # as much as one threshold may be added in one tick
    charges, one = rng.random(stream.shape[1:], dtype=np.float32), np.float32(1.0)
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, BLOCK // (planes * width))
    for top in range(0, height, rows):
        part = slice(top, top + rows)
        light, charge = plane_light(stream[:, part]), charges[part]
        before, now = light[:-1], light[1:]
        # 1 / now > 1 / before + 1, with a margin for rounding errors.
        has_decreased = np.zeros(light.shape, bool)
        np.less(now * (one + before), np.float32(0.999) * before, out=has_decreased[1:])
        light /= np.float32(factor)
        if dark:
            light += np.float32(dark)
        for plane, is_darker in zip(light, has_decreased, strict=True):
            # Else less than 1 remains, and less than 1 is added: neither limit has an effect
            if is_one:
                charge -= is_darker & (charge >= one)  # it is below 2
            charge += plane
            spent = np.floor(charge, out=plane)
            if is_one:
                spent = np.maximum(np.minimum(spent, one), spent - one)
            charge -= spent
        np.greater_equal(light, one, out=out[:, part].view(bool))
    return out


# Largest ratio of the two errors that counts as clear; above it, noise and motion may decide.
CLEAR = 0.8


@dataclass(frozen=True)
class LightFit:
    """The better fit. light: "linear" or "display"; rate: spikes per plane at full light.

    errors: of both fits, relative to the rates (0: exact). is_clear: whether one fit is clearly
    better.
    """

    light: str
    rate: float
    errors: dict[str, float]
    is_clear: bool


def fit_light(rates: np.ndarray, values: np.ndarray) -> LightFit:
    """Fit rates = k values (display) and rates = k values ** 2.2 (linear light) by least squares.

    rates (h, w): spikes per plane around the time of a frame; values (h, w): the grey display
    values of that frame in [0, 1], resized to the spike camera.
    """
    rates, values = rates.astype(np.float64), values.astype(np.float64)
    found, errors = {}, {}
    for light, seen in (("display", values), ("linear", values**DISPLAY_GAMMA)):
        found[light] = rate = float((rates * seen).sum() / max((seen * seen).sum(), 1e-12))
        errors[light] = float(
            np.sqrt(((rates - rate * seen) ** 2).sum() / max((rates * rates).sum(), 1e-12))
        )
    best = min(errors, key=lambda light: errors[light])
    return LightFit(best, found[best], errors, errors[best] < CLEAR * max(errors.values()))

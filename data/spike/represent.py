"""Turn a spike stream into the channels a network reads.

A representation is a function ``(stream, center, **options) -> (S, h, w) float32``. The stream is
(T, h, w) uint8 in {0, 1}, and `center` is the plane of the sharp frame. S depends on the options
only, never on T. Every formula works per pixel, so it commutes with cropping, flipping and
rotating. To add one, write the function under ``@representation``; its keyword parameters become
option keys.

Time reversal is exact: the channels of a clip played backwards are the channels of the reversed
stream around the same time. Time t of a stream of T planes is T - 1 - t in the reversed stream.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .simulate import DISPLAY_GAMMA, to_display, to_linear, window_light

Numbers = tuple[int, ...] | list[int]
HALF_TRUST = 4.0  # spikes in the exposure that give `relative` the confidence 1/2


@dataclass(frozen=True)
class Representation:
    """A registered function and its use of the keys of the `spike` section.

    proportional: whether its values are firing rates, spikes per tick. `rate`, `light` and `gamma`
    apply to them.
    is_ratio: whether its values are ratios of firing rates. `light` and `gamma` apply to them.
    between: whether it accepts a center between two planes, such as 27.5. Other functions get the
    plane after it.
    lag: its time minus `center`, in half planes, as a function of its options.
    is_centered: whether it uses `center`, as a function of its options.
    takes_context: whether it also uses planes outside of the exposure. It has the option
    half_exposure then.
    mirrors: whether the channels of the reversed stream are, by definition, its own in reverse
    order, as a function of its options. This serves windows spread over the file, whose rounding
    prefers one direction of time.
    """

    function: Callable[..., np.ndarray]
    proportional: bool
    is_ratio: bool = False
    takes_context: bool = False
    between: bool = False
    lag: Callable[..., int] = lambda **_: 0
    is_centered: Callable[..., bool] = lambda **_: True
    mirrors: Callable[..., bool] = lambda **_: False

    def ignored(self, **options: Any) -> set[str]:
        """Return the keys of the `spike` section that have no effect with these options."""
        if self.proportional:
            keys = set()
        elif self.is_ratio:
            keys = {"rate"}
        else:
            keys = {"rate", "light", "gamma"}
        if not self.takes_context:
            keys.add("context")
        if not self.is_centered(**options):
            keys.add("center")
        return keys


REPRESENTATIONS: dict[str, Representation] = {}


def representation(
    name: str, proportional: bool, **about: Any
) -> Callable[..., Callable[..., np.ndarray]]:
    """Register a representation (a decorator). about: the other fields of `Representation`."""

    def add(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        if name in REPRESENTATIONS:
            raise ValueError(f"representation {name!r} is registered twice")
        REPRESENTATIONS[name] = Representation(function, proportional, **about)
        return function

    return add


def represent(
    name: str,
    stream: np.ndarray,
    center: float,
    *,
    reverse: bool = False,
    rate: float = 1.0,
    light: Literal["linear", "display"] = "linear",
    gamma: float = 1.0,
    outside: tuple[int, int] = (0, 0),
    **options: Any,
) -> np.ndarray:
    """Return representation `name` of stream (T, h, w) as (S, h, w) float32.

    center: time of the sharp frame in planes of `stream`, a multiple of 0.5.
    reverse: whether to return the channels of the reversed stream around the same time.
    rate: spikes per tick at full light. A proportional representation is divided by it, so that
    full light gives 1.
    light: what the sensor integrated, linear light or display values of gamma 2.2.
    gamma: the channels are linear light raised to 1 / gamma, as in display values.
    outside: numbers of planes at the begin and at the end that are not of the exposure (context).
    Raises ValueError if the stream is too short for the representation.
    """
    known = REPRESENTATIONS[name]
    if not known.between:
        center = math.ceil(center)
    last = len(stream) - 1
    if known.takes_context and options.get("half_exposure") is None:
        before, after = outside
        options["half_exposure"] = min(center - before - 1, last - after - center)

    is_mirrored = reverse and known.mirrors(**options)
    if reverse and not is_mirrored:
        stream = stream[::-1]
        center = last - center - known.lag(**options)
    channels = known.function(stream, center, **options)
    if is_mirrored:
        channels = np.ascontiguousarray(channels[::-1])

    if not known.proportional and not known.is_ratio:
        return channels
    if known.proportional and rate != 1.0:
        channels *= np.float32(1.0 / rate)
    exponent = (DISPLAY_GAMMA if light == "display" else 1.0) / gamma
    return channels if exponent == 1.0 else np.power(channels, np.float32(exponent))


def channel_count(name: str, **options: Any) -> int:
    """Return S, the number of channels of representation `name` with these options."""
    # Longer than any window on files of a few hundred planes.
    stream = np.zeros((8192, 1, 1), np.uint8)
    return len(REPRESENTATIONS[name].function(stream, len(stream) // 2, **options))


@representation(
    "tfp",
    proportional=True,
    is_centered=lambda num_bins=None, **_: num_bins is None,
    mirrors=lambda num_bins=None, **_: num_bins is not None,
)
def tfp(
    stream: np.ndarray,
    center: int,
    half_window: int = 10,
    offsets: Numbers = (0,),
    num_bins: int | None = None,
) -> np.ndarray:
    """Texture from playback: channel i = mean of s[m - half_window : m + half_window + 1],
    m = center + offsets[i].

    num_bins: instead of offsets, so many windows spread over the file, as in S-VRT.

    Range [0, 1]. At the ends of the stream the window keeps only the planes that exist. With
    num_bins B, m is the middle of bin i of B equal bins of T planes, (i + 1 / 2) T / B rounded
    down, moved into [half_window, T - half_window]. Source: SpikeCV, TFP; without its
    rounding to 8 bits.
    """
    planes = len(stream)
    if num_bins is None:
        middles = [center + offset for offset in offsets]
    elif num_bins < 1 or tuple(offsets) != (0,):
        raise ValueError(
            f"num_bins {num_bins} is at least 1, and offsets {list(offsets)} have no effect with it"
        )
    elif planes < 2 * half_window:
        raise ValueError(f"{planes} planes cannot hold a window of {2 * half_window} planes")
    else:
        middles = [(2 * i + 1) * planes // (2 * num_bins) for i in range(num_bins)]
        middles = [min(max(m, half_window), planes - half_window) for m in middles]
    channels = []
    for m in middles:
        start = m - half_window
        stop = m + half_window + 1
        window = stream[max(start, 0) : max(stop, 0)]
        if not len(window):
            raise ValueError(f"planes {start} to {stop - 1} all lie outside 0 to {planes - 1}")
        channels.append(_counts(window).astype(np.float32) / np.float32(len(window)))
    return np.stack(channels)


def _counts(window: np.ndarray) -> np.ndarray:
    """Return the number of spikes of each pixel (h, w) in a window (t, h, w)."""
    # Up to 255 fit into a byte, and numpy sums bytes fastest.
    fits = len(window) < 256
    return window.sum(axis=0, dtype=np.uint8 if fits else np.uint32)


@representation("voxel", proportional=True, between=True)
def voxel(stream: np.ndarray, center: float, num_bins: int = 4) -> np.ndarray:
    """Disjoint bins of equal length, symmetric about the centre c.

    They divide the n = 2 min(c, T - 1 - c) + 1 planes around c, of which p is the first:
    channel b = mean of s over [p + b n / B, p + (b + 1) n / B), B = num_bins.
    A plane in two bins counts in both in proportion. Range [0, 1]. With c = (T - 1) / 2, the
    middle of the stream, every plane counts once.
    """
    count = int(2 * min(center, len(stream) - 1 - center)) + 1
    if count < num_bins:
        raise ValueError(f"{count} planes evenly around {center:g} cannot fill {num_bins} bins")
    first = int(center - (count - 1) / 2)
    # In units of 1 / B plane, so that all sums are integers and equal in both directions of time.
    edges = [first * num_bins + b * count for b in range(num_bins + 1)]
    channels = []
    for start, stop in itertools.pairwise(edges):
        # The whole planes lo ... hi - 1, then the parts of the planes before and after them.
        lo = -(-start // num_bins)
        hi = stop // num_bins
        counts = _counts(stream[lo:hi]).astype(np.uint32) * np.uint32(num_bins)
        if start % num_bins:
            counts += np.uint32(lo * num_bins - start) * stream[lo - 1]
        if stop % num_bins:
            counts += np.uint32(stop - hi * num_bins) * stream[hi]
        channels.append(counts.astype(np.float32) / np.float32(stop - start))
    return np.stack(channels)


# The time of TFI is half a plane after its centre plane.
@representation("tfi", proportional=True, lag=lambda **_: 1)
def tfi(
    stream: np.ndarray, center: int, half_window: int = 20, offsets: Numbers = (0,)
) -> np.ndarray:
    """Texture from intervals: channel i = 1 / (tn - tp) around the time after plane
    m = center + offsets[i].

    tp = last spike in [m - half_window + 1, m], tn = first spike in [m + 1, m + half_window];
    where one of them is missing the value is 1 / (2 half_window). Range (0, 1]. Planes outside of
    the stream count as empty.
    Source: SpikeCV, TFI (which gives uint8, ignores a spike in plane 0 and fails at the last
    planes).
    """
    channels = []
    for offset in offsets:
        middle = center + offset
        before = stream[max(middle - half_window + 1, 0) : max(middle + 1, 0)]
        after = stream[max(middle + 1, 0) : max(middle + 1 + half_window, 0)]
        if not len(before) or not len(after):
            raise ValueError(
                f"plane {middle} has no planes on both sides within 0 to {len(stream) - 1}"
            )
        seen = before.any(axis=0) & after.any(axis=0)
        # Planes from the last spike to the middle, and from there to the next spike.
        interval = before[::-1].argmax(axis=0) + after.argmax(axis=0) + 1
        channels.append(np.where(seen, 1.0 / interval, 1.0 / (2 * half_window)).astype(np.float32))
    return np.stack(channels)


@representation("raw", proportional=False)
def raw(stream: np.ndarray, center: int, window: int = 21) -> np.ndarray:
    """Raw window of odd length L: channels s[center - L // 2 : center + L // 2 + 1],
    values {0, 1}.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"the raw window is an odd number of planes, not {window}")
    first = center - window // 2
    end = first + window
    if first < 0 or end > len(stream):
        planes = f"planes {first} to {end - 1} around {center}"
        raise ValueError(f"{planes} reach outside 0 to {len(stream) - 1}")
    return stream[first:end].astype(np.float32)


def _lag_of_windows(num_windows: int = 1, spacing: int | None = None, **_: Any) -> int:
    """Return the lag of `encoding25` in half planes.

    The common middle of an even number of windows may lie between two planes, because their
    centres are rounded down.
    """
    if num_windows % 2 == 1 or spacing is None:
        return 0
    return -(spacing % 2)


@representation(
    "encoding25",
    proportional=False,
    lag=_lag_of_windows,
    is_centered=lambda num_windows=1, spacing=None, **_: num_windows == 1 or spacing is not None,
    mirrors=lambda num_windows=1, spacing=None, **_: num_windows > 1 and spacing is None,
)
def encoding25(
    stream: np.ndarray,
    center: int,
    num_windows: int = 1,
    spacing: int | None = None,
    pad: Literal["strict", "edge", "zero"] = "strict",
) -> np.ndarray:
    """Windows of 25 planes for spike optical flow (SCFlow):
    channels 25 i ... 25 i + 24 = s[m - 12 : m + 13], {0, 1}.

    spacing: planes from one centre m to the next, around center; null: spread over the file, as in
    S-VRT. pad: planes outside of the stream: "strict" is an error, "edge" repeats the outermost
    plane, "zero" is empty.

    With spacing, m = center + (i - (num_windows - 1) / 2) spacing, rounded down: the same interval
    in every clip, as the flow weights were trained with. Without,
    m = round(linspace(12, T - 13, num_windows)), rounded symmetrically about the middle of the
    file; or center for a single window. "strict" raises ValueError.
    """
    if num_windows < 1 or (spacing is not None and spacing < 1):
        raise ValueError(f"num_windows {num_windows} and spacing {spacing} are at least 1")
    planes = len(stream)
    if num_windows == 1 or spacing is not None:
        step = spacing or 0
        middles = [center + (2 * i - num_windows + 1) * step // 2 for i in range(num_windows)]
    else:
        # With m there is also planes - 1 - m. The middle is planes // 2.
        spread = np.linspace(12, planes - 13, num_windows)
        before = np.round(spread[: num_windows // 2]).astype(int).tolist()
        middle = [planes // 2] if num_windows % 2 else []
        after = [planes - 1 - m for m in reversed(before)]
        middles = [*before, *middle, *after]
    steps = np.concatenate([np.arange(m - 12, m + 13) for m in middles])
    outside = (steps < 0) | (steps >= planes)
    if pad == "strict" and outside.any():
        raise ValueError(f"windows of 25 planes around {middles} reach outside 0 to {planes - 1}")
    channels = stream[np.clip(steps, 0, planes - 1)].astype(np.float32)
    if pad == "zero":
        channels[outside] = 0.0
    return channels


# Light is integrated before its spike: it belongs half a plane before the plane of the spike.
@representation("exposure", proportional=True, lag=lambda **_: -1)
def exposure_rates(
    stream: np.ndarray, center: int, half_window: int = 6, half_exposure: int | None = None
) -> np.ndarray:
    """Two channels: the light around the sharp frame (short) and over the exposure (long), in
    spikes per plane.

    half_window, half_exposure: planes on each side of center; null: as many as there are, without
    plane 0.

    Light is 1 / interval in all planes between two spikes: where spikes are few, both rates are
    equal, and the estimate is the blurry frame.
    """
    if half_exposure is None:
        half_exposure = min(center - 1, len(stream) - 1 - center)
    if not 0 <= half_window < half_exposure:
        raise ValueError(
            f"0 <= half_window {half_window} < half_exposure {half_exposure} is needed"
        )
    windows = []
    for half in (half_window, half_exposure):
        start = max(center - half, 1)
        stop = min(center + half + 1, len(stream))
        if start >= stop:
            last = len(stream) - 1
            raise ValueError(f"plane {center} has no planes around it within 1 to {last}")
        windows.append((start, stop))
    light = window_light(stream, windows)
    rates = [part / (stop - start) for part, (start, stop) in zip(light, windows, strict=True)]
    return np.stack(rates).astype(np.float32)


def exposure_estimate(blurry: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the sharp frame: blurry light x short rate / long rate, in linear light.

    A grey sensor gives one ratio for the three colours. Where the long rate is 0, the blurry frame
    is returned.

    blurry: (H, W, 3) display values in [0, 1].
    rates: (2, H, W), short and long, as linear light of any scale.
    Returns display values (H, W, 3) float32 in [0, 1].
    """
    short, long = rates
    ratio = np.divide(short, long, out=np.ones_like(long), where=long > 0)
    return to_display(to_linear(blurry) * ratio[..., None])


# Light is integrated before its spike: it belongs half a plane before the plane of the spike.
@representation(
    "relative", proportional=False, is_ratio=True, takes_context=True, lag=lambda **_: -1
)
def relative(
    stream: np.ndarray,
    center: int,
    half_windows: tuple[int | float, ...] | list[int | float] = (2, 6, 12),
    half_exposure: int | None = None,
    num_bins: int = 0,
) -> np.ndarray:
    """Ratios of the light around the sharp frame, and in parts of the exposure, to that of the
    exposure; a confidence.

    half_windows: planes on each side of center, or below 1 a share of half_exposure; one channel
    for each, 1 where there are too few spikes. half_exposure: planes of the exposure on each side
    of center; null: as many as there are, without plane 0. num_bins: channels more, of so many
    equal parts of the exposure.

    The last channel is n / (n + 4), n spikes in the exposure.
    Light is 1 / interval in all planes between two spikes, so a window may be shorter than an
    interval; spike.context completes the intervals at the ends of the exposure. Ratios do not
    depend on threshold or gain. Blurry x ratio estimates the sharp frame: in linear light with
    gamma 1, in display values with gamma 2.2.
    """
    around = min(center - 1, len(stream) - 1 - center)
    if half_exposure is None:
        half_exposure = around
    halves = [round(half * half_exposure) if half < 1 else int(half) for half in half_windows]
    are_whole = all(half < 1 or half % 1 == 0 for half in half_windows)
    fit = bool(halves) and 0 <= min(halves) <= max(halves) < half_exposure <= around
    if num_bins < 0 or not are_whole or not fit:
        raise ValueError(
            f"0 <= half_windows {list(half_windows)} < half_exposure {half_exposure} <= {around} "
            f"planes are needed, whole or below 1, and num_bins {num_bins} >= 0"
        )
    first = center - half_exposure
    planes = 2 * half_exposure + 1
    # In planes of the stream: around the sharp frame, then equal parts of the exposure.
    windows = [(center - half, center + half + 1) for half in halves]
    for i in range(num_bins):
        start = i * planes // num_bins
        stop = -(-(i + 1) * planes // num_bins)
        windows.append((first + start, first + stop))
    exposure = (first, first + planes)

    spikes, *light = window_light(stream, [exposure, *windows])
    long = spikes / planes
    means = [part / (stop - start) for part, (start, stop) in zip(light, windows, strict=True)]
    ratios = [np.divide(mean, long, out=np.ones_like(long), where=long > 0) for mean in means]
    confidence = spikes / (spikes + HALF_TRUST)
    return np.stack((*ratios, confidence)).astype(np.float32)


@representation("tfstp", proportional=True)
def tfstp(
    stream: np.ndarray,
    center: int,
    tau_d: float = 5.0,
    tau_f: float = 10.0,
    utilisation: float = 0.05,
    offsets: Numbers = (0,),
) -> np.ndarray:
    """Texture from short-term plasticity: channel i = the firing rate at plane center + offsets[i],
    in (0, 1].

    tau_d, tau_f: in planes; larger values average over more intervals. utilisation: U, in (0, 1).

    Each pixel drives a synapse of Tsodyks and Markram: between two spikes, dt planes apart, the
    resources R recover to 1 with the time constant tau_d, the utilisation u decays to U with tau_f;
    a spike uses u R and raises u by U (1 - u). Just before the next spike
    u' = U + (u + U (1 - u) - U) exp(-dt / tau_f), R' = 1 - (1 - R (1 - u)) exp(-dt / tau_d).
    For R' = R the rate is 1 / dt = -1 / (tau_d ln((1 - R) / (1 - R (1 - u)))),
    at most 1 / (planes since the last spike). Pixels of fewer than two spikes: spikes / planes.
    Only planes 0 ... center + offsets[i] count, so that the result lags behind motion.
    Source: Zheng et al., CVPR 2021; Zheng et al., IEEE TPAMI 45(7), 2023.
    """
    if tau_d <= 0 or tau_f <= 0 or not 0 < utilisation < 1:
        raise ValueError(
            f"tau_d {tau_d} and tau_f {tau_f} are positive, utilisation {utilisation} is in (0, 1)"
        )
    centers = [center + offset for offset in offsets]
    for time in centers:
        if not 0 <= time < len(stream):
            raise ValueError(f"plane {time} is outside of 0 to {len(stream) - 1}")
    # Index dt - 1: an interval of dt planes.
    intervals = np.arange(1, len(stream) + 1, dtype=np.float64)
    decay_d = np.exp(-intervals / tau_d)
    decay_f = np.exp(-intervals / tau_f)
    # The state of a pixel whose spikes are that far apart. It begins there at its second spike.
    U = utilisation
    steady_u = U / (1 - (1 - U) * decay_f)
    # 1 - R instead of R: R of a dark pixel is so close to 1 that its logarithm would be lost.
    steady_used = decay_d * steady_u / (1 - decay_d * (1 - steady_u))

    shape = stream.shape[1:]
    rates = {}
    last = np.full(shape, -1)  # plane of the last spike
    spikes = np.zeros(shape, np.int64)
    u = np.full(shape, U)
    used = np.zeros(shape)  # 1 - R
    for time, plane in enumerate(stream[: max(centers) + 1]):
        fired = plane > 0
        again = fired & (spikes > 0)
        if again.any():
            index = time - last[again] - 1
            before = u[again]
            is_second = spikes[again] == 1
            facilitated = U + (before + U * (1 - before) - U) * decay_f[index]
            depleted = (used[again] * (1 - before) + before) * decay_d[index]
            u[again] = np.where(is_second, steady_u[index], facilitated)
            used[again] = np.where(is_second, steady_used[index], depleted)
        last[fired] = time
        spikes += fired
        if time in centers:
            interval = -tau_d * np.log(np.maximum(used, 1e-300) / (used * (1 - u) + u))
            rate = 1 / np.maximum(interval, np.maximum(time - last, 1))
            rates[time] = np.where(spikes > 1, rate, spikes / (time + 1)).astype(np.float32)
    return np.stack([rates[time] for time in centers])

"""Turn a spike stream into the channels a network reads.

A representation is a function ``(stream, center, **options) -> (S, h, w) float32`` with stream (T, h, w) uint8 in
{0, 1} and `center` the plane of the sharp frame; S depends on the options only, never on T. Every formula works
per pixel, so it commutes with cropping, flipping and rotating. To add one, write the function under
``@representation``; its keyword parameters become option keys.

Time reversal is exact: the channels of a clip played backwards are those of the reversed stream around the same
time. Time t of a stream of T planes is T - 1 - t in the reversed one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from data.spike.simulate import DISPLAY_GAMMA

Function = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Representation:
    """A registered function and its use of the keys of the `spike` section.

    proportional: its values are firing rates, spikes per tick, to which `rate`, `light` and `gamma` apply.
    is_ratio: its values are ratios of firing rates, to which `light` and `gamma` apply.
    between: it accepts a center between two planes, such as 27.5; other functions get the plane after it.
    lag: its time minus `center`, in half planes, as a function of its options.
    is_centered: whether it uses `center`, as a function of its options.
    takes_context: it also uses planes outside of the exposure, and has the option half_exposure.
    mirrors: whether the channels of the reversed stream are, by definition, its own in reverse order, as a function of
    its options: for windows spread over the file, whose rounding prefers one direction of time.
    """

    function: Function
    proportional: bool
    is_ratio: bool
    takes_context: bool
    between: bool
    lag: Callable[..., int]
    is_centered: Callable[..., bool]
    mirrors: Callable[..., bool]

    def ignored(self, **options: Any) -> set[str]:
        """The keys of the `spike` section that have no effect on this representation with these options."""
        keys = set() if self.proportional else {"rate"} if self.is_ratio else {"rate", "light", "gamma"}
        keys |= set() if self.takes_context else {"context"}
        return keys if self.is_centered(**options) else keys | {"center"}


REPRESENTATIONS: dict[str, Representation] = {}


def representation(
    name: str,
    proportional: bool,
    *,
    is_ratio: bool = False,
    takes_context: bool = False,
    between: bool = False,
    lag: Callable[..., int] = lambda **_: 0,
    is_centered: Callable[..., bool] = lambda **_: True,
    mirrors: Callable[..., bool] = lambda **_: False,
) -> Callable[[Function], Function]:
    """Decorator: register a representation; see `Representation` for the parameters."""

    def add(function: Function) -> Function:
        if name in REPRESENTATIONS:
            raise ValueError(f"representation {name!r} is registered twice")
        REPRESENTATIONS[name] = Representation(
            function, proportional, is_ratio, takes_context, between, lag, is_centered, mirrors
        )
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
    """Representation `name` of stream (T, h, w) as (S, h, w) float32.

    center: the time of the sharp frame in planes of `stream`, a multiple of 0.5.
    reverse: the channels of the reversed stream around the same time.
    rate: spikes per tick at full light; a proportional representation is divided by it, so that full light gives 1.
    light: what the sensor integrated, linear light or display values of gamma 2.2.
    gamma: the channels are linear light raised to 1 / gamma, as in display values.
    outside: so many of the first and of the last planes are not of the exposure (context).
    Raises ValueError where the stream is too short for the representation.
    """
    known = REPRESENTATIONS[name]
    center = center if known.between else math.ceil(center)
    if known.takes_context and options.get("half_exposure") is None:
        options["half_exposure"] = min(center - outside[0] - 1, len(stream) - 1 - outside[1] - center)
    is_mirrored = reverse and known.mirrors(**options)
    if reverse and not is_mirrored:
        stream, center = stream[::-1], len(stream) - 1 - center - known.lag(**options)
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
    """S: the number of channels of representation `name` with these options."""
    length = 8192  # longer than any window on files of a few hundred planes
    return REPRESENTATIONS[name].function(np.zeros((length, 1, 1), np.uint8), length // 2, **options).shape[0]


def _tfp_is_spread(num_bins: int | None = None, **_: Any) -> bool:
    return num_bins is not None


@representation(
    "tfp", proportional=True, is_centered=lambda **options: not _tfp_is_spread(**options), mirrors=_tfp_is_spread
)
def tfp(
    stream: np.ndarray,
    center: int,
    half_window: int = 10,
    offsets: tuple[int, ...] | list[int] = (0,),
    num_bins: int | None = None,
) -> np.ndarray:
    """Texture from playback: channel i = mean of s[m - half_window : m + half_window + 1], m = center + offsets[i].

    Range [0, 1]. At the ends of the stream the window keeps only the planes that exist.
    num_bins B, instead of offsets: windows spread over the file, as in S-VRT; m is the middle of bin i of B equal bins
    of T planes, (i + 1 / 2) T / B rounded down, moved into [half_window, T - half_window]. On short files the windows
    overlap, or coincide; disjoint bins are "voxel". Played backwards, the file has the same windows in reverse order.
    Source: SpikeCV, TFP; without its rounding to 8 bits.
    """
    if num_bins is None:
        middles = [center + offset for offset in offsets]
    else:
        middles = _bin_middles(len(stream), num_bins, half_window)
        if tuple(offsets) != (0,):
            raise ValueError(f"offsets {list(offsets)} have no effect with num_bins {num_bins}")
    return np.stack([_mean(stream, m - half_window, m + half_window + 1) for m in middles])


def _bin_middles(planes: int, count: int, half_window: int) -> list[int]:
    if count < 1:
        raise ValueError(f"num_bins is at least 1, not {count}")
    if planes < 2 * half_window:
        raise ValueError(f"{planes} planes cannot hold a window of {2 * half_window} planes")
    middles = [(2 * i + 1) * planes // (2 * count) for i in range(count)]
    return [min(max(m, half_window), planes - half_window) for m in middles]


@representation("voxel", proportional=True, between=True)
def voxel(stream: np.ndarray, center: float, num_bins: int = 4) -> np.ndarray:
    """Disjoint bins of equal length, symmetric about the centre c.

    They divide the n = 2 min(c, T - 1 - c) + 1 planes around c, of which p is the first:
    channel b = mean of s over [p + b n / B, p + (b + 1) n / B), B = num_bins. A plane in two bins counts
    in both in proportion. Range [0, 1]. With c = (T - 1) / 2, the middle of the stream, every plane counts once.
    """
    count = int(2 * min(center, len(stream) - 1 - center)) + 1
    if count < num_bins:
        raise ValueError(f"{count} planes evenly around {center:g} cannot fill {num_bins} bins")
    first = int(center - (count - 1) / 2)
    # In units of 1 / B plane, so that all sums are integers and equal in both directions of time.
    edges = [first * num_bins + b * count for b in range(num_bins + 1)]
    return np.stack([_part_mean(stream, lo, hi, num_bins) for lo, hi in itertools.pairwise(edges)])


# The time of TFI is half a plane after its centre plane.
@representation("tfi", proportional=True, lag=lambda **_: 1)
def tfi(
    stream: np.ndarray, center: int, half_window: int = 20, offsets: tuple[int, ...] | list[int] = (0,)
) -> np.ndarray:
    """Texture from intervals: channel i = 1 / (tn - tp) around the time after plane m = center + offsets[i].

    tp = last spike in [m - half_window + 1, m], tn = first spike in [m + 1, m + half_window]; where one of them is
    missing the value is 1 / (2 half_window). Range (0, 1]. Planes outside of the stream count as empty.
    Source: SpikeCV, TFI (which gives uint8, ignores a spike in plane 0 and fails at the last planes).
    """
    return np.stack([_interval_rate(stream, center + offset, half_window) for offset in offsets])


@representation("raw", proportional=False)
def raw(stream: np.ndarray, center: int, window: int = 21) -> np.ndarray:
    """Raw window of odd length L: channels s[center - L // 2 : center + L // 2 + 1], values {0, 1}."""
    if window < 1 or window % 2 == 0:
        raise ValueError(f"the raw window is an odd number of planes, not {window}")
    first = center - window // 2
    if first < 0 or first + window > len(stream):
        raise ValueError(f"planes {first} to {first + window - 1} around {center} reach outside 0 to {len(stream) - 1}")
    return stream[first : first + window].astype(np.float32)


def _encoding_lag(num_windows: int = 1, spacing: int | None = None, **_: Any) -> int:
    """-1 where the common middle of the windows lies between two planes, as their centres are rounded down."""
    return -1 if spacing and spacing % 2 and num_windows % 2 == 0 else 0


def _encoding_is_centered(num_windows: int = 1, spacing: int | None = None, **_: Any) -> bool:
    return num_windows == 1 or spacing is not None


@representation(
    "encoding25",
    proportional=False,
    lag=_encoding_lag,
    is_centered=_encoding_is_centered,
    mirrors=lambda **options: not _encoding_is_centered(**options),
)
def encoding25(
    stream: np.ndarray,
    center: int,
    num_windows: int = 1,
    spacing: int | None = None,
    pad: Literal["strict", "edge", "zero"] = "strict",
) -> np.ndarray:
    """Windows of 25 planes for spike optical flow (SCFlow): channels 25 i ... 25 i + 24 = s[m - 12 : m + 13], {0, 1}.

    With `spacing` the centres are m = center + (i - (num_windows - 1) / 2) spacing, rounded down: the same interval in
    every clip, as the flow weights were trained with. Without, m = round(linspace(12, T - 13, num_windows)), as in
    S-VRT, rounded symmetrically about the middle of the file; or `center` for a single window.
    pad: planes outside of the stream: "strict" raises ValueError, "edge" repeats the outermost plane.
    """
    if num_windows < 1 or (spacing is not None and spacing < 1):
        raise ValueError(f"num_windows {num_windows} and spacing {spacing} are at least 1")
    planes = len(stream)
    if spacing is not None or num_windows == 1:
        middles = [center + ((2 * i - num_windows + 1) * (spacing or 0)) // 2 for i in range(num_windows)]
    else:
        middles = _spread(planes, num_windows)
    steps = np.concatenate([np.arange(m - 12, m + 13) for m in middles])
    outside = (steps < 0) | (steps >= planes)
    if pad == "strict" and outside.any():
        raise ValueError(f"windows of 25 planes around {middles} reach outside 0 to {planes - 1}")
    channels = stream[np.clip(steps, 0, planes - 1)].astype(np.float32)
    if pad == "zero":
        channels[outside] = 0.0
    return channels


def _spread(planes: int, count: int) -> list[int]:
    """`count` planes spread evenly over 12 ... planes - 13: with m also planes - 1 - m; the middle is planes // 2."""
    before = np.round(np.linspace(12, planes - 13, count)[: count // 2]).astype(int).tolist()
    return [*before, *([planes // 2] if count % 2 else []), *(planes - 1 - m for m in reversed(before))]


def _mean(stream: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Mean (h, w) float32 of the existing planes among start ... stop - 1."""
    window = stream[max(start, 0) : max(stop, 0)]
    if not len(window):
        raise ValueError(f"planes {start} to {stop - 1} all lie outside 0 to {len(stream) - 1}")
    # Counts up to 255 fit into a byte; numpy sums bytes much faster than wider integers.
    counts = window.sum(axis=0, dtype=np.uint8 if len(window) < 256 else np.uint32)
    return counts.astype(np.float32) / np.float32(len(window))


def _part_mean(stream: np.ndarray, start: int, stop: int, parts: int) -> np.ndarray:
    """Mean (h, w) float32 over [start, stop), in units of 1 / parts plane; at least one plane long."""
    lo, hi = -(-start // parts), stop // parts
    whole = stream[lo:hi]
    counts = whole.sum(axis=0, dtype=np.uint8 if len(whole) < 256 else np.uint32).astype(np.uint32) * np.uint32(parts)
    if start % parts:
        counts += np.uint32(lo * parts - start) * stream[lo - 1]
    if stop % parts:
        counts += np.uint32(stop - hi * parts) * stream[hi]
    return counts.astype(np.float32) / np.float32(stop - start)


def _interval_rate(stream: np.ndarray, center: int, half_window: int) -> np.ndarray:
    before = stream[max(center - half_window + 1, 0) : max(center + 1, 0)]
    after = stream[max(center + 1, 0) : max(center + 1 + half_window, 0)]
    if not len(before) or not len(after):
        raise ValueError(f"plane {center} has no planes on both sides within 0 to {len(stream) - 1}")
    seen = before.any(axis=0) & after.any(axis=0)
    # Planes from the last spike to the centre, and from there to the next spike.
    interval = before[::-1].argmax(axis=0) + after.argmax(axis=0) + 1
    return np.where(seen, 1.0 / interval, 1.0 / (2 * half_window)).astype(np.float32)

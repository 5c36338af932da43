"""Turn a spike stream into the channels a network reads.

A representation is a function ``(stream, center, **options) -> (S, h, w) float32`` with stream (T, h, w) uint8 in
{0, 1} and `center` the plane of the sharp picture; S depends on the options only, never on T. Every formula works
per pixel, so that cutting out a rectangle, flipping or rotating commutes with it. To add one, write the function
under ``@representation``; its keyword parameters become option keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Representation = Callable[..., np.ndarray]

# name -> (function, whether its values are proportional to light and so are divided by the firing rate)
REPRESENTATIONS: dict[str, tuple[Representation, bool]] = {}


def representation(name: str, proportional: bool) -> Callable[[Representation], Representation]:
    """Decorator: register a representation. proportional: its values are firing rates, spikes per tick."""

    def add(function: Representation) -> Representation:
        if name in REPRESENTATIONS:
            raise ValueError(f"representation {name!r} is registered twice")
        REPRESENTATIONS[name] = (function, proportional)
        return function

    return add


def represent(
    name: str, stream: np.ndarray, center: int, *, rate: float = 1.0, gamma: float = 1.0, **options: Any
) -> np.ndarray:
    """Representation `name` of stream (T, h, w) as (S, h, w) float32.

    rate: spikes per tick at full light; values of a proportional representation are divided by it, which gives
    linear light, 1 at full scale. gamma: these are then raised to 1 / gamma, to look like display values.
    Raises ValueError where the stream is too short for the representation.
    """
    function, proportional = REPRESENTATIONS[name]
    channels = function(stream, center, **options)
    if not proportional:
        return channels
    if rate != 1.0:
        channels *= np.float32(1.0 / rate)
    return channels if gamma == 1.0 else np.power(channels, np.float32(1.0 / gamma))


def channel_count(name: str, **options: Any) -> int:
    """S: how many channels representation `name` gives with these options."""
    length = 8192  # longer than any window that a file of a few hundred planes could serve
    return REPRESENTATIONS[name][0](np.zeros((length, 1, 1), np.uint8), length // 2, **options).shape[0]


@representation("tfp", proportional=True)
def tfp(
    stream: np.ndarray, center: int, half_window: int = 10, offsets: tuple[int, ...] | list[int] = (0,)
) -> np.ndarray:
    """Texture from playback: channel i = mean of s[m - half_window : m + half_window + 1], m = center + offsets[i].

    Range [0, 1]. At the ends of the stream the window keeps only the planes that exist.
    Source: SpikeCV, TFP; without its rounding to 8 bits.
    """
    return np.stack([_mean(stream, center + o - half_window, center + o + half_window + 1) for o in offsets])


@representation("voxel", proportional=True)
def voxel(stream: np.ndarray, center: int, num_bins: int = 4) -> np.ndarray:
    """Disjoint bins over the whole stream: channel b = mean of s[floor(b T / B) : floor((b + 1) T / B)], B = num_bins.

    Range [0, 1]; every plane counts once.
    """
    planes = len(stream)
    if planes < num_bins:
        raise ValueError(f"{planes} planes cannot fill {num_bins} bins")
    edges = [b * planes // num_bins for b in range(num_bins + 1)]
    return np.stack([_mean(stream, lo, hi) for lo, hi in itertools.pairwise(edges)])


@representation("tfi", proportional=True)
def tfi(
    stream: np.ndarray, center: int, half_window: int = 20, offsets: tuple[int, ...] | list[int] = (0,)
) -> np.ndarray:
    """Texture from intervals: channel i = 1 / (tn - tp) around the instant after plane m = center + offsets[i].

    tp = last spike in [m - half_window + 1, m], tn = first spike in [m + 1, m + half_window]; where one of them is
    missing the value is 1 / (2 half_window). Range (0, 1]. Planes outside of the stream hold no spike.
    Source: SpikeCV, TFI (there as uint8, ignoring a spike in plane 0 and failing at the last planes).
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


@representation("encoding25", proportional=False)
def encoding25(
    stream: np.ndarray,
    center: int,
    num_windows: int = 1,
    spacing: int | None = None,
    pad: Literal["strict", "edge", "zero"] = "strict",
) -> np.ndarray:
    """Windows of 25 planes for spike optical flow (SCFlow): channels 25 i ... 25 i + 24 = s[m - 12 : m + 13], {0, 1}.

    With `spacing` the centres are m = center + (i - (num_windows - 1) / 2) spacing, rounded down: the same interval in
    every clip, which is what the flow's weights are trained for. Without, m = round(linspace(12, T - 13, num_windows)),
    as S-VRT spreads them over a file, or `center` for a single window.
    pad: what planes outside of the stream hold: "strict" raises ValueError, "edge" repeats the outermost plane.
    """
    if num_windows < 1 or (spacing is not None and spacing < 1):
        raise ValueError(f"num_windows {num_windows} and spacing {spacing} are at least 1")
    planes = len(stream)
    if spacing is not None or num_windows == 1:
        middles = [center + ((2 * i - num_windows + 1) * (spacing or 0)) // 2 for i in range(num_windows)]
    else:
        middles = np.round(np.linspace(12, planes - 13, num_windows)).astype(int).tolist()
    steps = np.concatenate([np.arange(m - 12, m + 13) for m in middles])
    outside = (steps < 0) | (steps >= planes)
    if pad == "strict" and outside.any():
        raise ValueError(f"windows of 25 planes around {middles} reach outside 0 to {planes - 1}")
    channels = stream[np.clip(steps, 0, planes - 1)].astype(np.float32)
    if pad == "zero":
        channels[outside] = 0.0
    return channels


def _mean(stream: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Mean (h, w) float32 of planes start ... stop - 1, as far as they exist."""
    window = stream[max(start, 0) : max(stop, 0)]
    if not len(window):
        raise ValueError(f"planes {start} to {stop - 1} all lie outside 0 to {len(stream) - 1}")
    # Counts up to 255 fit a byte, which numpy adds far faster than wider integers.
    counts = window.sum(axis=0, dtype=np.uint8 if len(window) < 256 else np.uint32)
    return counts.astype(np.float32) / np.float32(len(window))


def _interval_rate(stream: np.ndarray, center: int, half_window: int) -> np.ndarray:
    before = stream[max(center - half_window + 1, 0) : max(center + 1, 0)]
    after = stream[max(center + 1, 0) : max(center + 1 + half_window, 0)]
    if not len(before) or not len(after):
        raise ValueError(f"plane {center} has no planes on both sides within 0 to {len(stream) - 1}")
    seen = before.any(axis=0) & after.any(axis=0)
    # Steps back from the centre to the last spike, and on from it to the next.
    interval = before[::-1].argmax(axis=0) + after.argmax(axis=0) + 1
    return np.where(seen, 1.0 / interval, 1.0 / (2 * half_window)).astype(np.float32)

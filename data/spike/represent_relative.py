"""Rates relative to the exposure's own mean: how bright the sharp instant was, measured in the blurry frame's light."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from data.spike.intervals import window_light
from data.spike.represent import representation
from data.spike.simulate import DISPLAY_GAMMA

# So many spikes in the exposure give the confidence 1/2.
HALF_TRUST = 4.0


# Light is integrated before its spike: it belongs half a plane before the plane of the spike.
@representation("relative", proportional=False, is_ratio=True, takes_context=True, lag=lambda **_: -1)
def relative(
    stream: np.ndarray,
    center: int,
    half_windows: tuple[int, ...] | list[int] = (2, 6, 12),
    half_exposure: int | None = None,
    num_bins: int = 0,
) -> np.ndarray:
    """Ratios of the light around the sharp frame, and in parts of the exposure, to that of the exposure; a confidence.

    Channel i: the mean light of the planes center - half_windows[i] ... center + half_windows[i] over that of the
    planes center - half_exposure ... center + half_exposure (null: as many as there are on both sides of the centre,
    without plane 0); 1 where the exposure has too few spikes to show a change.
    The next num_bins channels: the same ratio of so many equal parts of the exposure, in order of time; a plane that
    two parts share counts in both. Last channel: n / (n + 4) in [0, 1), n spikes in the exposure; gamma applies to it,
    too.
    Light is 1 / interval in all planes of the interval between two spikes. So a window may be shorter than an interval,
    and no spike is lost or gained at its ends. Planes outside of the exposure (spike.context) complete the intervals at
    its ends, which are long where spikes are few. A ratio does not depend on the threshold or the gain of the camera.
    The blurry frame is the mean over the exposure. Hence blurry x ratio estimates the sharp frame: in linear light with
    gamma 1, in display values with gamma 2.2.
    """
    around = min(center - 1, len(stream) - 1 - center)
    half_exposure = around if half_exposure is None else half_exposure
    if num_bins < 0 or not half_windows or not 0 <= min(half_windows) <= max(half_windows) < half_exposure <= around:
        raise ValueError(
            f"0 <= half_windows {list(half_windows)} < half_exposure {half_exposure} <= {around} planes are needed, "
            f"and num_bins {num_bins} >= 0"
        )
    first, planes = center - half_exposure, 2 * half_exposure + 1
    windows = [(half_exposure - half, half_exposure + half + 1) for half in half_windows]
    windows += [(i * planes // num_bins, -(-(i + 1) * planes // num_bins)) for i in range(num_bins)]
    spikes, *light = window_light(stream, [(first + a, first + b) for a, b in [(0, planes), *windows]])
    means = [part / (b - a) for part, (a, b) in zip(light, windows, strict=True)]
    long = spikes / planes
    ratios = [np.divide(mean, long, out=np.ones_like(long), where=long > 0) for mean in means]
    return np.stack((*ratios, spikes / (spikes + HALF_TRUST))).astype(np.float32)


def sharp_light(
    channels: np.ndarray, half_windows: Sequence[int], gamma: float, light: Literal["linear", "display"] = "linear"
) -> np.ndarray:
    """Light around the sharp frame, in display values that reach 1: channels of `relative` (S, H, W) -> (H, W).

    The ratio of the middle one of the windows, times the spikes of the exposure, which the confidence gives.
    gamma, light: with which the channels were made, see `represent`.
    """
    middle = np.argsort(half_windows)[len(half_windows) // 2]
    integrated = DISPLAY_GAMMA if light == "display" else 1.0  # the exponent of linear light from what was integrated
    ratio, trust = np.clip(channels[[middle, -1]], 0, [[[np.inf]], [[0.999]]]) ** (gamma / integrated)
    seen = ratio * trust / (1 - trust)
    return (seen / max(seen.max(), 1e-9)) ** (integrated / DISPLAY_GAMMA)

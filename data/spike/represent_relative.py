"""Rates relative to the exposure's own mean: how bright the sharp instant was, measured in the blurry frame's light."""

from __future__ import annotations

import numpy as np

from data.spike.perturb import interval_light
from data.spike.represent import representation

# So many spikes in the exposure give the confidence 1/2.
HALF_TRUST = 4.0


# Light is integrated before its spike: it belongs half a plane before the plane of the spike.
@representation("relative", proportional=False, is_ratio=True, lag=lambda **_: -1)
def relative(
    stream: np.ndarray,
    center: int,
    half_windows: tuple[int, ...] | list[int] = (2, 6, 12),
    half_exposure: int | None = None,
) -> np.ndarray:
    """Ratios of the light around the sharp frame to that of the exposure, then a confidence.

    Channel i: the mean light of the planes center - half_windows[i] ... center + half_windows[i] over that of the
    planes center - half_exposure ... center + half_exposure (null: as many as there are on both sides of the centre,
    without plane 0); 1 where the exposure has too few spikes to show a change.
    Last channel: n / (n + 4) in [0, 1), n spikes in the exposure; gamma applies to it, too.
    Light is 1 / interval in all planes of the interval between two spikes. So a window may be shorter than an interval,
    and no spike is lost or gained at its ends. A ratio does not depend on the threshold or the gain of the camera.
    The blurry frame is the mean over the exposure. Hence blurry x ratio estimates the sharp frame: in linear light with
    gamma 1, in display values with gamma 2.2.
    """
    around = min(center - 1, len(stream) - 1 - center)
    half_exposure = around if half_exposure is None else half_exposure
    if not half_windows or not 0 <= min(half_windows) <= max(half_windows) < half_exposure <= around:
        raise ValueError(
            f"0 <= half_windows {list(half_windows)} < half_exposure {half_exposure} <= {around} planes are needed"
        )
    light = interval_light(stream)

    def mean(half: int) -> np.ndarray:
        # In float64 the sums are exact, so that they are equal in both directions of time.
        return light[center - half : center + half + 1].mean(axis=0, dtype=np.float64)

    long = mean(half_exposure)
    ratios = [np.divide(mean(half), long, out=np.ones_like(long), where=long > 0) for half in half_windows]
    spikes = long * (2 * half_exposure + 1)
    return np.stack((*ratios, spikes / (spikes + HALF_TRUST))).astype(np.float32)

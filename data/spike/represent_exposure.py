"""The exposure estimate: a blurry frame, sharpened by the spikes of its exposure."""

from __future__ import annotations

import numpy as np

from data.spike.intervals import window_light
from data.spike.represent import representation
from data.spike.simulate import to_display, to_linear


# Light is integrated before its spike: it belongs half a plane before the plane of the spike.
@representation("exposure", proportional=True, lag=lambda **_: -1)
def exposure_rates(
    stream: np.ndarray, center: int, half_window: int = 6, half_exposure: int | None = None
) -> np.ndarray:
    """Two channels: the light around the sharp frame (short) and over the exposure (long), in spikes per plane.

    half_window, half_exposure: the short window is the planes center - half_window ... center + half_window, the
    exposure likewise; null: as many planes as the stream has on both sides of the centre, without plane 0. Only planes
    that exist count, and plane 0 does not.
    Light is 1 / interval in all planes of the interval between two spikes. So a window may be shorter than an interval:
    where spikes are few, both rates are equal, and the estimate is the blurry frame.
    """
    if half_exposure is None:
        half_exposure = min(center - 1, len(stream) - 1 - center)
    if not 0 <= half_window < half_exposure:
        raise ValueError(f"0 <= half_window {half_window} < half_exposure {half_exposure} is needed")
    windows = [(max(center - half, 1), min(center + half + 1, len(stream))) for half in (half_window, half_exposure)]
    if any(a >= b for a, b in windows):
        raise ValueError(f"plane {center} has no planes around it within 1 to {len(stream) - 1}")
    light = window_light(stream, windows)
    return np.stack([part / (b - a) for part, (a, b) in zip(light, windows, strict=True)]).astype(np.float32)


def exposure_estimate(blurry: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """The sharp frame: blurry light x short rate / long rate, in linear light.

    blurry (H, W, 3): display values in [0, 1]; rates (2, H, W): short and long, as linear light of any scale. A grey
    sensor gives one ratio for the three colours. Where the long rate is 0 it is the blurry frame.
    Returns display values (H, W, 3) float32 in [0, 1].
    """
    short, long = rates
    ratio = np.divide(short, long, out=np.ones_like(long), where=long > 0)
    return to_display(to_linear(blurry) * ratio[..., None])

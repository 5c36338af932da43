"""The exposure estimate: a blurry frame, sharpened by the spikes of its exposure."""

from __future__ import annotations

import numpy as np

from data.spike.represent import representation
from data.spike.simulate import to_display, to_linear


@representation("exposure", proportional=True)
def exposure_rates(
    stream: np.ndarray, center: int, half_window: int = 10, half_exposure: int | None = None, prior: float = 0.25
) -> np.ndarray:
    """Two channels: the firing rates around the sharp frame (short) and over the exposure (long), in spikes per plane.

    half_window, half_exposure: the short window is the planes center - half_window ... center + half_window, the
    exposure likewise; null: as many planes as the stream has on both sides of the centre. Only planes that exist count.

    The short rate is (N + prior) / (n + prior / long), N spikes in n planes: the mean of a gamma posterior whose prior
    has the long rate and the weight of `prior` spikes. With few spikes it is close to the long rate, so that the
    estimate is the blurry frame there; without a spike in the exposure both are 0.
    """
    if half_exposure is None:
        half_exposure = min(center, len(stream) - 1 - center)
    if half_window < 0 or half_exposure <= half_window or prior <= 0:
        raise ValueError(
            f"0 <= half_window {half_window} < half_exposure {half_exposure} and prior {prior} > 0 are needed"
        )
    windows = [stream[max(center - half, 0) : center + half + 1] for half in (half_window, half_exposure)]
    if not all(map(len, windows)):
        raise ValueError(f"plane {center} has no planes around it within 0 to {len(stream) - 1}")
    counts = np.stack([window.sum(axis=0, dtype=np.int64) for window in windows])
    long = counts[1] / len(windows[1])
    weight = prior / np.where(long > 0, long, 1.0)
    short = np.where(long > 0, (counts[0] + prior) / (len(windows[0]) + weight), 0.0)
    return np.stack((short, long)).astype(np.float32)


def exposure_estimate(blurry: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """The sharp frame: blurry light x short rate / long rate, in linear light.

    blurry (H, W, 3): display values in [0, 1]; rates (2, H, W): short and long, as linear light of any scale. A grey
    sensor gives one ratio for the three colours. Where the long rate is 0 it is the blurry frame.
    Returns display values (H, W, 3) float32 in [0, 1].
    """
    short, long = rates
    ratio = np.divide(short, long, out=np.ones_like(long), where=long > 0)
    return to_display(to_linear(blurry) * ratio[..., None])

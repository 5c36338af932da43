"""Simulate another camera: change a stream to another threshold, with lost planes or stuck pixels."""

from __future__ import annotations

import numpy as np

from data.spike.intervals import plane_light


def change_threshold(stream: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    """Stream (T, h, w) of a sensor with `factor` times the threshold: rate / factor spikes per tick.

    Light L is assumed constant between two spikes, one threshold per interval, and integrated again with a new random
    first charge: A <- A + L / factor; s = A >= 1; A <- A - s. So a higher threshold keeps every factor-th spike, and a
    lower one adds spikes between them. As in the sensor (see simulate.IntegrateAndFire) there is at most one spike per
    plane, and charge beyond it is lost: A <- 1 + A mod 1 where A >= 2 remains. The charge of one spike is kept because
    the read-out rounds spike times to planes: constant light of 0.9 spikes per plane gives intervals of 1 and 2 planes,
    of which only the mean is right. Where an interval is longer than its predecessor by more than this rounding, the
    light has decreased and this charge is dropped: A <- A mod 1.
    """
    if factor == 1.0:
        return stream
    one = np.float32(1.0)
    charge = rng.random(stream.shape[1:], dtype=np.float32)
    before = np.zeros_like(charge)
    out = np.empty_like(stream)
    for plane, now in enumerate(plane_light(stream)):
        # 1 / now > 1 / before + 1, with a margin for rounding errors.
        np.fmod(charge, one, out=charge, where=now * (one + before) < np.float32(0.999) * before)
        charge += now / np.float32(factor)
        fired = charge >= one
        charge -= fired
        if factor < 1.0:
            np.add(np.fmod(charge, one), one, out=charge, where=charge >= 2)
        out[plane], before = fired, now
    return out


def drop_planes(stream: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Stream with planes lost with probability `fraction`: they are kept, without spikes."""
    kept = rng.random(len(stream)) >= fraction
    return stream * kept[:, None, None].astype(np.uint8)


def stick_pixels(stream: np.ndarray, hot: float, dead: float, rng: np.random.Generator) -> np.ndarray:
    """Stream in which a fraction `hot` of the pixels always fires and a fraction `dead` never fires."""
    draw = rng.random(stream.shape[1:])
    return np.where(draw < hot, np.uint8(1), np.where(draw >= 1.0 - dead, np.uint8(0), stream))

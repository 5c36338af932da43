"""Simulate another camera: change a stream to another threshold, with lost planes or stuck pixels."""

from __future__ import annotations

import numpy as np

from data.spike.intervals import plane_light

# So many values are computed at a time: they fit into the cache of a core.
PART = 2**18


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
    charge = rng.random(stream.shape[1:], dtype=np.float32)
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, PART // (planes * width))
    for top in range(0, height, rows):
        part = slice(top, top + rows)
        out[:, part] = _integrated(plane_light(stream[:, part]), np.float32(factor), charge[part])
    return out


def _integrated(light: np.ndarray, factor: np.float32, charge: np.ndarray) -> np.ndarray:
    """(T, h, w) bool: the spikes of light (T, h, w) / factor. charge (h, w): the first one, in [0, 1); both change."""
    one = np.float32(1.0)
    before, now = light[:-1], light[1:]
    # 1 / now > 1 / before + 1, with a margin for rounding errors.
    has_decreased = np.zeros(light.shape, bool)
    np.less(now * (one + before), np.float32(0.999) * before, out=has_decreased[1:])
    light /= factor
    for plane, is_darker in zip(light, has_decreased, strict=True):
        if factor <= one:  # else less than 1 remains, and less than 1 is added: neither limit has an effect
            charge -= is_darker & (charge >= one)  # it is below 2
        charge += plane
        spent = np.floor(charge, out=plane)
        if factor <= one:
            spent = np.maximum(np.minimum(spent, one), spent - one)
        charge -= spent
    return light >= one


def drop_planes(stream: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Stream with planes lost with probability `fraction`: they are kept, without spikes."""
    kept = rng.random(len(stream)) >= fraction
    return stream * kept[:, None, None].astype(np.uint8)


def stick_pixels(stream: np.ndarray, hot: float, dead: float, rng: np.random.Generator) -> np.ndarray:
    """Stream in which a fraction `hot` of the pixels always fires and a fraction `dead` never fires."""
    draw = rng.random(stream.shape[1:])
    return np.where(draw < hot, np.uint8(1), np.where(draw >= 1.0 - dead, np.uint8(0), stream))

"""Simulate another camera: change a stream to another threshold, with lost planes or stuck pixels."""

from __future__ import annotations

import numpy as np


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
    light = interval_light(stream)
    one = np.float32(1.0)
    charge = rng.random(stream.shape[1:], dtype=np.float32)
    out = np.empty_like(stream)
    for plane, now in enumerate(light):
        if plane:
            before = light[plane - 1]
            # 1 / now > 1 / before + 1, with a margin for rounding errors.
            np.fmod(charge, one, out=charge, where=now * (one + before) < np.float32(0.999) * before)
        charge += now / np.float32(factor)
        fired = charge >= one
        charge -= fired
        if factor < 1.0:
            np.add(np.fmod(charge, one), one, out=charge, where=charge >= 2)
        out[plane] = fired
    return out


def interval_light(stream: np.ndarray) -> np.ndarray:
    """(T, h, w) float32 light in thresholds per tick: 1 / (tn - tp) in planes tp + 1 ... tn of each interval.

    Before the first and after the last spike, the light of the nearest interval is used, limited to what a spike just
    outside of the file would allow. A pixel with a single spike has the light 1 / T, one without spikes has none.
    """
    planes = len(stream)
    steps = np.arange(planes, dtype=np.int16)[:, None, None]
    fired = stream != 0
    # Last spike before plane t, and first spike at or after it; -1 and `planes` where there is none.
    previous = np.maximum.accumulate(np.where(fired, steps, np.int16(-1)), axis=0)
    previous = np.concatenate((np.full_like(previous[:1], -1), previous[:-1]))
    following = np.minimum.accumulate(np.where(fired, steps, np.int16(planes))[::-1], axis=0)[::-1]
    inside = (previous >= 0) & (following < planes)
    light = np.where(inside, np.float32(1.0) / np.maximum(following - previous, 1), np.float32(0.0)).astype(np.float32)
    return _extend(light, inside, fired)


def _extend(light: np.ndarray, inside: np.ndarray, fired: np.ndarray) -> np.ndarray:
    planes = len(light)
    first, last = fired.argmax(axis=0), planes - 1 - fired[::-1].argmax(axis=0)
    some = fired.any(axis=0)
    y, x = np.indices(some.shape)
    has_interval = inside.any(axis=0)
    head = np.where(has_interval, light[np.minimum(first + 1, planes - 1), y, x], some / np.float32(planes))
    tail = np.where(has_interval, light[last, y, x], some / np.float32(planes))
    head = np.minimum(head, np.float32(1.0) / (first + 1))
    tail = np.minimum(tail, np.float32(1.0) / np.maximum(planes - last, 1))
    steps = np.arange(planes)[:, None, None]
    light = np.where(steps <= first, head, light)
    return np.where(steps > last, np.where(some, tail, 0), light).astype(np.float32)


def drop_planes(stream: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Stream with planes lost with probability `fraction`: they are kept, without spikes."""
    kept = rng.random(len(stream)) >= fraction
    return stream * kept[:, None, None].astype(np.uint8)


def stick_pixels(stream: np.ndarray, hot: float, dead: float, rng: np.random.Generator) -> np.ndarray:
    """Stream in which a fraction `hot` of the pixels always fires and a fraction `dead` never fires."""
    draw = rng.random(stream.shape[1:])
    return np.where(draw < hot, np.uint8(1), np.where(draw >= 1.0 - dead, np.uint8(0), stream))

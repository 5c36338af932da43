"""TFSTP: the firing rate from a model of short-term synaptic plasticity at each pixel."""

from __future__ import annotations

import numpy as np

from data.spike.represent import representation


@representation("tfstp", proportional=True)
def tfstp(
    stream: np.ndarray,
    center: int,
    tau_d: float = 5.0,
    tau_f: float = 10.0,
    utilisation: float = 0.05,
    offsets: tuple[int, ...] | list[int] = (0,),
) -> np.ndarray:
    """Texture from short-term plasticity: channel i = the firing rate at plane center + offsets[i], in (0, 1].

    Each pixel drives a synapse of Tsodyks and Markram. Between two spikes, dt planes apart, the available resources R
    recover to 1 with the time constant tau_d, the utilisation u decays to U with tau_f; a spike uses u R and raises u
    by U (1 - u). Just before the next spike they are
        u' = U + (u + U (1 - u) - U) exp(-dt / tau_f),   R' = 1 - (1 - R (1 - u)) exp(-dt / tau_d).
    For a constant interval R' = R, which gives the rate 1 / dt = -1 / (tau_d ln((1 - R) / (1 - R (1 - u)))).
    The first interval sets u and R to their steady state; a rate is at most 1 / (planes since the last spike).
    Pixels of fewer than two spikes: spikes / planes. Only planes 0 ... center + offsets[i] count, so that the result
    lags behind motion. tau_d, tau_f: in planes, > 0; larger values average over more intervals. utilisation: U, in
    (0, 1), also the step of u.
    Source: Zheng, Zheng, Yu, Shi, Tian, Huang, "High-speed image reconstruction through short-term plasticity for
    spiking cameras", CVPR 2021; Zheng et al., "Capture the moment", IEEE TPAMI 45(7), 2023.
    """
    if tau_d <= 0 or tau_f <= 0 or not 0 < utilisation < 1:
        raise ValueError(f"tau_d {tau_d} and tau_f {tau_f} are positive, utilisation {utilisation} is in (0, 1)")
    return np.stack([_rate(stream, center + offset, tau_d, tau_f, utilisation) for offset in offsets])


def _rate(stream: np.ndarray, center: int, tau_d: float, tau_f: float, base: float) -> np.ndarray:
    """(h, w) float32: the rate at plane `center` of stream (T, h, w)."""
    if not 0 <= center < len(stream):
        raise ValueError(f"plane {center} is outside of 0 to {len(stream) - 1}")
    planes = stream[: center + 1]
    intervals = np.arange(1, len(planes) + 1, dtype=np.float64)
    decay_d, decay_f = np.exp(-intervals / tau_d), np.exp(-intervals / tau_f)
    steady_u = base / (1 - (1 - base) * decay_f)
    # 1 - R instead of R: R of a dark pixel is so close to 1 that its logarithm would be lost.
    steady_used = decay_d * steady_u / (1 - decay_d * (1 - steady_u))

    shape = planes.shape[1:]
    last, spikes = np.full(shape, -1), np.zeros(shape, np.int64)
    u, used = np.full(shape, base), np.zeros(shape)
    for time, plane in enumerate(planes):
        fired = plane > 0
        again = fired & (spikes > 0)
        if again.any():
            index, before = time - last[again] - 1, u[again]
            first = spikes[again] == 1
            facilitated = base + (before + base * (1 - before) - base) * decay_f[index]
            depleted = (used[again] * (1 - before) + before) * decay_d[index]
            u[again] = np.where(first, steady_u[index], facilitated)
            used[again] = np.where(first, steady_used[index], depleted)
        last[fired] = time
        spikes += fired
    interval = -tau_d * np.log(np.maximum(used, 1e-300) / (used * (1 - u) + u))
    rate = 1 / np.maximum(interval, np.maximum(center - last, 1))
    return np.where(spikes > 1, rate, spikes / len(planes)).astype(np.float32)

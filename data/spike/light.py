"""Estimate what the sensor of a recording integrated: linear light or display values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.spike.simulate import DISPLAY_GAMMA

# Largest ratio of the two errors that counts as clear; above it, noise and motion may decide.
CLEAR = 0.8


@dataclass(frozen=True)
class LightFit:
    """The better fit. light: "linear" or "display"; rate: spikes per plane at full light.

    errors: of both fits, relative to the rates (0: exact). is_clear: whether one fit is clearly better.
    """

    light: str
    rate: float
    errors: dict[str, float]

    @property
    def is_clear(self) -> bool:
        small, large = sorted(self.errors.values())
        return small < CLEAR * large


def fit_light(rates: np.ndarray, values: np.ndarray) -> LightFit:
    """Fit rates = k values (display) and rates = k values ** 2.2 (linear light) by least squares.

    rates (h, w): spikes per plane around the time of a frame; values (h, w): the grey display values of that frame in
    [0, 1], resized to the spike camera.
    """
    rates, values = rates.astype(np.float64), values.astype(np.float64)
    fits = {}
    for light, seen in (("display", values), ("linear", values**DISPLAY_GAMMA)):
        rate = float((rates * seen).sum() / max((seen * seen).sum(), 1e-12))
        error = float(np.sqrt(((rates - rate * seen) ** 2).sum() / max((rates * rates).sum(), 1e-12)))
        fits[light] = (error, rate)
    best = min(fits, key=lambda light: fits[light][0])
    return LightFit(best, fits[best][1], {light: error for light, (error, _) in fits.items()})

"""What the sensor of a recording integrated: linear light, or the display values of pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.spike.simulate import DISPLAY_GAMMA

# The better of both errors must be this much smaller than the other; noise and motion decide below.
CLEAR = 0.8


@dataclass(frozen=True)
class LightFit:
    """light: "linear" or "display", whichever fits better. rate: spikes per plane at full light, from that fit.

    errors: of both fits, relative to the rates (0: exact). is_clear: whether one is clearly better.
    """

    light: str
    rate: float
    errors: dict[str, float]

    @property
    def is_clear(self) -> bool:
        small, large = sorted(self.errors.values())
        return small < CLEAR * large


def fit_light(rates: np.ndarray, values: np.ndarray) -> LightFit:
    """Fit rates = k values (display) and rates = k values ** 2.2 (linear light), each with the k of least squares.

    rates (h, w): spikes per plane and pixel around the moment of the picture; values (h, w): its grey display values
    in [0, 1], brought to the pixels of the spike camera.
    """
    rates, values = rates.astype(np.float64), values.astype(np.float64)
    fits = {}
    for light, seen in (("display", values), ("linear", values**DISPLAY_GAMMA)):
        rate = float((rates * seen).sum() / max((seen * seen).sum(), 1e-12))
        error = float(np.sqrt(((rates - rate * seen) ** 2).sum() / max((rates * rates).sum(), 1e-12)))
        fits[light] = (error, rate)
    best = min(fits, key=lambda light: fits[light][0])
    return LightFit(best, fits[best][1], {light: error for light, (error, _) in fits.items()})

"""Find what a sensor integrated, linear light or display values, from spikes and a picture.

Two models are fitted by least squares to the firing rates r of all pixels, where v are the display
values of a frame at the same time and place:

    "display"   r = k v
    "linear"    r = k v ** 2.2

The model with the smaller error is the answer, and k is the firing rate at full light. The answer
is shown to the user (scripts/spike_tool.py, warnings of the data check). No training sample depends
on it.

Tests: tests/parts/data/test_spike_simulate.py
"""

from dataclasses import dataclass

import numpy as np

from .pictures import DISPLAY_GAMMA

# The answer is clear if the error of the better fit is below this fraction of the error of the
# worse fit. If the two errors are nearly equal, noise or motion may have decided which of the two
# is smaller. With a smaller fraction, right answers would not count as clear. No measurement of
# other values is recorded.
CLEAR_RATIO = 0.8


@dataclass(frozen=True)
class LightFit:
    """The better of two fits."""

    light: str  # "linear" or "display", what the sensor integrated
    rate: float  # spikes per plane at full light
    # {"display": ..., "linear": ...}, relative to the firing rates. 0 is an exact fit.
    errors: dict[str, float]
    is_clear: bool  # whether one fit is clearly better


def fit_light(rates: np.ndarray, values: np.ndarray) -> LightFit:
    """Fit rates = k values (display) and rates = k values ** 2.2 (linear light) by least squares.

    Returns the fit with the smaller error. The result also has the errors of the two fits.

    rates: (h, w), spikes per plane around the time of a frame.
    values: (h, w), grey display values of this frame in [0, 1], resized to the spike camera.
    """
    rates = rates.astype(np.float64)
    values = values.astype(np.float64)
    # `square_of_rates` and `sum_of_squares` are divisors, so each is at least this number. Without
    # this limit, a black frame, or a recording without spikes, would divide by 0.
    least = 1e-12
    square_of_rates = max((rates * rates).sum(), least)
    rate_of = {}
    errors = {}
    # `light` is the name of a model, and x is what a sensor of this model would have integrated.
    for light, x in (("display", values), ("linear", values**DISPLAY_GAMMA)):
        # Least squares of rates = k x: k = sum(rates x) / sum(x^2).
        sum_of_squares = max((x * x).sum(), least)
        k = float((rates * x).sum() / sum_of_squares)
        square_of_residuals = ((rates - k * x) ** 2).sum()
        rate_of[light] = k
        errors[light] = float(np.sqrt(square_of_residuals / square_of_rates))
    best = min(errors, key=lambda light: errors[light])  # the model with the smaller error
    is_clear = errors[best] < CLEAR_RATIO * max(errors.values())
    return LightFit(best, rate_of[best], errors, is_clear)

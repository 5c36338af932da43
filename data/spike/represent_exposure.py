"""The firing rates of which data.spike.exposure makes its estimate."""

from __future__ import annotations

import numpy as np

from data.spike.exposure import exposure_rates
from data.spike.represent import representation


@representation("exposure", proportional=True)
def exposure(
    stream: np.ndarray, center: int, half_window: int = 10, half_exposure: int | None = None, prior: float = 0.25
) -> np.ndarray:
    """Two channels: the firing rate around the sharp frame and that of the exposure; see `exposure_rates`."""
    return exposure_rates(stream, center, half_window, half_exposure, prior)[0]

"""Say how much light an exposure has.

Tests: tests/parts/data/test_recording.py
"""

import numpy as np

from data.motion.exposure import Recording
from data.motion.view import View
from data.spike.pictures import LUMA, to_linear

# Light below this value counts as this value where light is a divisor, because a black pixel would
# divide by 0. It is the display value 11 of 255.
DARK = 1e-3
# The spike camera is saturated if a pixel fires in more than this share of the planes, in the mean
# over all pixels. A pixel fires at most once in a plane, so brighter light gives no more spikes.
# The limit is a little below 1, because a saturated camera may have some dark or dead pixels.
SATURATED = 0.95


def integrated(frame: np.ndarray, is_display: bool) -> np.ndarray:
    """Return what a spike camera integrates of a frame: its luma (H, W).

    frame: (H, W, 3), display values in [0, 1]. is_display: True if the camera integrates the luma
    of display values. False if it integrates the luma of their light.
    """
    colours = frame if is_display else to_linear(frame)
    return colours @ LUMA


def is_saturated(recording: Recording) -> bool:
    """Return whether nearly all spike pixels fire in each plane of an exposure."""
    exposure = recording.stream[recording.begin : recording.end]
    return float(exposure.mean()) > SATURATED


def spikes_at_full_light(recording: Recording, view: View) -> float:
    """Return how many spikes a spike pixel at full light would have in an exposure.

    It is the mean number of spikes of a pixel, divided by the mean light. So the number says how
    sensitive the camera is: a dark scene gives the same number as a bright scene.
    """
    exposure = recording.stream[recording.begin : recording.end]
    spikes = float(exposure.mean()) * recording.length
    grey = integrated(recording.blurry, view.is_display)  # (H, W)
    light = float(view.means(grey).mean())
    # At least DARK, because a black frame would divide by 0.
    return spikes / max(light, DARK)


# Light is dim if a pixel of median light has fewer spikes than this in an exposure. In dim light,
# the curves have no shake (curves.py), learned.py asks the network, too (`by_both` there has what
# was measured), and joint/groups.py makes fewer groups of planes.
DIM_SPIKES = 5.0
# Spikes are few if a pixel of median light has fewer spikes than this in an exposure: fewer than
# two in a ninth of the exposure. Then DIS compares larger squares, each picture is read from its
# own planes alone, and larger errors are expected. tests/parts/data/test_flow.py passes with 0,
# too, so measure another value (docs/benchmarks/quality_details.md, "Its constants").
FEW_SPIKES = 18.0


def median_spikes(recording: Recording) -> float:
    """Return the number of spikes in the exposure of a pixel of median light."""
    [rates] = recording.spike_rates([(recording.begin, recording.end)])  # spikes per plane, (h, w)
    return float(np.median(rates)) * recording.length

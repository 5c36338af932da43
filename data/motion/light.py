"""Say how much light an exposure has, and how many spikes follow from the light.

    integrated              what the spike camera integrates of a frame
    median_spikes           spikes of a pixel of median light, in the exposure
    spikes_at_full_light    spikes that a pixel would have at full light (light 1), in the exposure
    is_saturated            whether there is more light than the spike camera can count

"A pixel of median light" is a spike pixel: half of the spike pixels have less light than this
pixel. The number n of its spikes in the exposure decides how a frame is improved. With fewer
spikes, everything that is read from them is noisier. So below four limits of n, the program follows
other rules:

    n below    limit                              what changes
    18         NOISY_SPIKES, here                 how optical flow reads and compares pictures
    10         FEW_SPIKES, learned_method.py      other learned steps are taken
    9          CURVE_BELOW, stillness/shares.py   shifts are smoothed before still pixels are found
    5          DIM_SPIKES, here                   what finds the motion, and how

`spikes_at_full_light` decides whether a frame is improved at all (LEAST_SPIKES, restorer.py). n
cannot decide this, because a dark scene may have n = 0 although its few bright things are seen
well.

What must stay: `DIM_SPIKES` and `NOISY_SPIKES`. The fusion operator "motion"
(models/fusion/fusion_motion.py) improves frames by learned steps along the motion. Its weights were
trained with the motions that follow from both limits. With other limits, the weights would fit a
little worse.

Tests: tests/parts/data/test_light.py, tests/parts/data/test_finder.py (dim light),
tests/stories/test_motion_weights.py (few spikes, saturated cameras)
"""

import numpy as np

from data.motion.exposure import Recording
from data.motion.view import View
from data.spike.pictures import LUMA, to_linear

# Light is dim if a pixel of median light has fewer than DIM_SPIKES spikes in an exposure. In dim
# light,
#
#     finder "both"        The network finds a motion, too, and the mean of its motion and the
#                          motion of optical flow is used (finder.py, which has the measurements).
#     optical flow         All searches take the slower, more exact settings (flow.py).
#     curves of a motion   The shake of the camera is not added to them (curves.py).
#     joint/groups.py      It makes fewer groups of planes.
DIM_SPIKES = 5.0
# The pictures for optical flow are noisy if a pixel of median light has fewer than NOISY_SPIKES
# spikes in an exposure. A picture may be made of a ninth of the exposure (the shortest window), so
# in a pixel of median light it has fewer than 18 / 9 = 2 spikes. If the pictures are noisy,
#
#     optical flow         It compares larger squares, and expects larger errors (flow.py).
#     spike_pictures.py    It reads each picture only from its own planes.
#
# No test guards this value, because test_flow.py also passes with 0. Before you change the value,
# measure the effect (docs/benchmarks/quality_details.md, "Its constants").
NOISY_SPIKES = 18.0


def median_spikes(recording: Recording) -> float:
    """Return the number of spikes in the exposure of a pixel of median light."""
    # One window, the exposure. So there is one array (h, w): spikes per plane.
    [rates] = recording.spike_rates([(recording.begin, recording.end)])
    return float(np.median(rates)) * recording.length


# Where light is a divisor, the divisor is at least DARK, because the light of a black pixel is 0.
# The light 1e-3 is the display value 11 of 255. (joint/values.py has another constant DARK, for
# display values.)
DARK = 1e-3


def spikes_at_full_light(recording: Recording, view: View) -> float:
    """Return how many spikes a spike pixel at full light would have in an exposure.

        (mean number of spikes of a pixel) / (mean light of the blurry frame)

    The number says how sensitive the camera is. A dark scene gives the same number as a bright
    scene.

    recording: the blurry frame and the spikes. view: where the spike pixels lie on the frame.

    Without the division by the light,
    test_a_dark_scene_and_a_bright_scene_have_the_same_spikes_at_full_light fails.
    """
    exposure = recording.stream[recording.begin : recording.end]
    spikes = float(exposure.mean()) * recording.length
    grey = integrated(recording.blurry, view.is_display)  # (H, W)
    light = float(view.means(grey).mean())  # `means` has a mean for each spike pixel
    return spikes / max(light, DARK)


def integrated(frame: np.ndarray, is_display: bool) -> np.ndarray:
    """Return what a spike camera integrates of a frame: its luma (H, W).

    frame: (H, W, 3), display values in [0, 1]. is_display: True if the camera integrates the luma
    of display values, e.g. the simulated camera "other" in data/cameras/rig_values.py. False if it
    integrates the luma of their light.
    """
    colours = frame if is_display else to_linear(frame)
    return colours @ LUMA


# The spike camera is saturated if its pixels fire on average in more than this share of the planes.
# A pixel fires at most once in a plane, so brighter light gives no more spikes.
# The limit is a little below 1, because a saturated camera may have some dark or dead pixels.
SATURATED = 0.95


def is_saturated(recording: Recording) -> bool:
    """Return whether nearly all spike pixels fire in each plane of an exposure."""
    exposure = recording.stream[recording.begin : recording.end]
    return float(exposure.mean()) > SATURATED

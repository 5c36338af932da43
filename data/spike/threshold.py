"""Change recorded spikes as if the sensor had a different threshold.

In training, `change_threshold` makes spikes of many cameras from the recorded spikes of one camera
(`CameraPerturb` in data/augment.py).

The light L of each plane (one read-out of the camera; light.py) is integrated again. A is the
charge of a pixel, in units of the new threshold. The first A is a random number between 0 and 1:

    A <- A + L / factor + dark        factor: new threshold / old threshold. dark: a dark current
    s = A >= 1                        the spike of the plane
    A <- A - s

A plane has at most one spike, as in the sensor. With a lower threshold, one plane may bring the
charge of several spikes, and A is still 1 or more after the subtraction. Three rules treat such a
charge:

    1. If A is less than 2, the whole charge is kept, so that the next plane has the second spike.
       This is needed because the sensor rounds spike times to planes. E.g. constant light of 0.9
       spikes per plane gives intervals of 1 or 2 planes, whose light L is 1 or 1/2. Only the mean
       of L is right. If A were not kept, the new sensor would lose charge in the planes with L = 1.
    2. If A is 2 or more, one spike is kept, and all others are lost: A <- 1 + A mod 1.
    3. If a later plane is darker than the plane before it, the kept spike is dropped, A <- A mod 1,
       before the light of the darker plane is added. A dark plane must not fire because of earlier
       light.

What must stay: all numbers, bit for bit, because training samples consist of them. With other rules
or a changed order, test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says fails.
Free to change: how the numbers are computed, if the speed stays the same.

Tests: tests/parts/data/test_spike_simulate.py
"""

import numpy as np

from .light import plane_light

# `change_threshold` computes this many values of a stream at a time, because so many values fit
# into the cache of a core. With a larger or smaller number, the result is the same, but it takes
# longer.
BLOCK = 2**18


def change_threshold(
    stream: np.ndarray, factor: float, rng: np.random.Generator, dark: float = 0.0
) -> np.ndarray:
    """Return the spikes that a sensor with `factor` times the threshold would have recorded.

    E.g. factor 4 gives a quarter of the spikes. Factor 0.5 gives twice as many spikes, but at most
    one in a plane.

    stream: recorded spikes (T, h, w) uint8.
    factor: new threshold / old threshold, above 0.
    rng: the generator of the first charge of each pixel.
    dark: dark current, in spikes per plane, that is added to the light.
    Returns spikes (T, h, w) uint8. With factor 1 and no dark current, this is `stream` itself.

    Test: test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says
    """
    if factor == 1.0 and not dark:
        return stream
    charges = rng.random(stream.shape[1:], dtype=np.float32)  # (h, w), A of each pixel
    # If the factor is above 1 and there is no dark current, a plane adds less than 1. In this case,
    # the charge is always below 2, and below 1 after a spike, so the three rules change nothing.
    may_reach_two = factor <= 1 or dark > 0
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, BLOCK // (planes * width))
    for top in range(0, height, rows):
        block = slice(top, top + rows)
        light = plane_light(stream[:, block])  # (T, rows, w)
        charge = charges[block]  # (rows, w), a view: `_collect` changes `charges`
        has_decreased = _has_decreased(light)

        # To save time, one array first holds the light, then the charge that each plane adds, and
        # after `_collect` the number of whole thresholds in the charge.
        added = light
        added /= np.float32(factor)
        if dark:
            added += np.float32(dark)
        for added_by_plane, is_darker in zip(added, has_decreased, strict=True):
            _collect(charge, added_by_plane, is_darker, may_reach_two)
        whole_thresholds = added  # 0, 1, 2, ... A pixel with one or more fires.
        # In memory, False and True are the bytes 0 and 1, so the comparison can write its booleans
        # into a view of `out`.
        spikes = out[:, block].view(bool)
        np.greater_equal(whole_thresholds, np.float32(1.0), out=spikes)
    return out


def _collect(
    charge: np.ndarray, added: np.ndarray, is_darker: np.ndarray, may_reach_two: bool
) -> None:
    """Add the light of one plane to the charge, and spend the charge of its spikes.

    All arrays are (h, w).

    charge: charge in thresholds, changed in place.
    added: charge that the plane adds. The array is overwritten by the number of whole thresholds in
    the sum: 0 without a spike, 1 or more with a spike.
    is_darker: mask of the pixels whose light has decreased. Their kept spikes are dropped.
    may_reach_two: whether the charge may become 2 or more.

    Test: test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says
    """
    one = np.float32(1.0)
    if may_reach_two:
        # Rule 3: A <- A mod 1 where the plane is darker. The charge is below 2 here, so A mod 1
        # means: subtract 1 where the charge is 1 or more. In a subtraction, True counts as 1.
        charge -= is_darker & (charge >= one)
    charge += added
    whole_thresholds = np.floor(charge, out=added)
    spent = whole_thresholds
    if may_reach_two:
        # Rules 1 and 2: at most one whole threshold is kept after the spike. Examples:
        #
        #     charge 1.4    1 for the spike                       1 is spent, 0.4 remains
        #     charge 3.4    1 for the spike, 1 lost, 1 kept       2 are spent, 1.4 remains
        for_spike = np.minimum(whole_thresholds, one)  # 0 or 1
        spent = np.maximum(for_spike, whole_thresholds - one)
    charge -= spent


def _has_decreased(light: np.ndarray) -> np.ndarray:
    """Return a mask of the planes in which a pixel is darker than in the plane before.

    A pixel counts as darker if its interval has become longer by more than one plane. A difference
    of one plane may be a rounding error, because the sensor rounds spike times to planes.

    light: (T, h, w) of `plane_light`. Returns bool (T, h, w).

    Test: test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says
    """
    # The length of an interval is 1 / light, so the condition is 1 / now > 1 / before + 1. The
    # light may be 0, so both sides are multiplied by now * before:
    #
    #     before > now * (1 + before)
    #
    # E.g. intervals of 2 planes before and of 3 planes now: 1/2 and 1/3 * 3/2 = 1/2 are equal, so
    # the result is False. Rounding could make the result True, so the left side is multiplied by
    # 0.999. Plane 0 has no plane before it, and is False.
    has_decreased = np.zeros(light.shape, bool)
    before = light[:-1]
    now = light[1:]
    limit = now * (np.float32(1.0) + before)
    np.greater(np.float32(0.999) * before, limit, out=has_decreased[1:])
    return has_decreased

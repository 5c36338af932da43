"""Change recorded spikes as if the sensor had another threshold.

In training, this makes spikes of many cameras from the recorded spikes of one camera
(`CameraPerturb` in data/augment.py).

The light L of each plane (light.py) is integrated again. A is the charge of a pixel in new
thresholds. It begins with a random number between 0 and 1:

    A <- A + L / factor + dark        factor: new threshold / old threshold. dark: a dark current
    s = A >= 1                        the spike of the plane
    A <- A - s

A plane has at most one spike, as in the sensor. With a lower threshold, one plane may bring the
charge of several spikes. Then A is still 1 or more after the spike of the plane was subtracted, and
three rules say what happens with A:

    1. If A is less than 2, the whole charge is kept, so the next plane has the second spike. The
       reason is that a read-out rounds spike times to planes. E.g. constant light of 0.9 spikes per
       plane gives intervals of 1 and 2 planes, and only the mean interval is right. If A were not
       kept, the new sensor would fire too rarely.
    2. If A is 2 or more, one spike is kept, and all others are lost: A <- 1 + A mod 1.
    3. If a later plane is darker, the kept spike is dropped before the light of this plane is
       added: A <- A mod 1. Otherwise a dark plane would fire because of the light before it.

What must stay: all numbers, bit for bit, because training samples consist of them. Another rule or
order fails test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says. Free to change: how
the numbers are computed, if it is as fast.

Tests: tests/parts/data/test_spike_simulate.py
"""

import numpy as np

from .light import plane_light

# Number of values of a stream that `change_threshold` computes at a time, because so many values
# fit into the cache of a core. A larger or a smaller number is slower, and gives the same result.
BLOCK = 2**18


def change_threshold(
    stream: np.ndarray, factor: float, rng: np.random.Generator, dark: float = 0.0
) -> np.ndarray:
    """Return the spikes that a sensor with `factor` times the threshold would have recorded.

    E.g. factor 4 gives one spike for four, and factor 0.5 gives two spikes for one.

    stream: recorded spikes (T, h, w) uint8.
    rng: the generator of the first charge of each pixel.
    dark: dark current, in spikes per plane, that is added to the light.
    Returns spikes (T, h, w) uint8. With factor 1 and no dark current, this is `stream` itself.
    """
    if factor == 1.0 and not dark:
        return stream
    charges = rng.random(stream.shape[1:], dtype=np.float32)  # (h, w), A of each pixel
    # If the factor is above 1 and there is no dark current, a plane adds less than 1 to a charge
    # below 1. Then the charge stays below 2, and it is below 1 after a spike. So the three rules in
    # the head of this file have no effect, and need not be computed.
    may_reach_two = factor <= 1 or dark > 0
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, BLOCK // (planes * width))
    for top in range(0, height, rows):
        block = slice(top, top + rows)
        light = plane_light(stream[:, block])  # (T, rows, w)
        charge = charges[block]  # (rows, w), a view
        has_decreased = _has_decreased(light)

        # The array `light` is overwritten twice, to save time: first by what each plane adds to the
        # charge, and then, in `_collect`, by the number of whole thresholds in the charge.
        added = light
        added /= np.float32(factor)
        if dark:
            added += np.float32(dark)
        for added_by_plane, is_darker in zip(added, has_decreased, strict=True):
            _collect(charge, added_by_plane, is_darker, may_reach_two)
        whole_thresholds = added  # 0, 1, 2, ... A pixel with one or more fires.
        # The comparison writes bool. The array `out` is uint8 in {0, 1}, which has the same bytes
        # as bool, so a view of `out` is enough.
        spikes = out[:, block].view(bool)
        np.greater_equal(whole_thresholds, np.float32(1.0), out=spikes)
    return out


def _collect(
    charge: np.ndarray, added: np.ndarray, is_darker: np.ndarray, may_reach_two: bool
) -> None:
    """Add the light of one plane to the charge, and spend the charge of its spikes.

    All arrays are (h, w).

    charge: charge in thresholds, changed in place.
    added: what the plane adds to the charge. It is overwritten by the number of whole thresholds in
    the charge: 0 without a spike, 1 or more with a spike.
    is_darker: bool, true where the light has decreased. There a kept spike is dropped.
    may_reach_two: whether the charge may become 2 or more.
    """
    one = np.float32(1.0)
    if may_reach_two:
        # A <- A mod 1 where the plane is darker. The charge is below 2 here, so subtract 1 where it
        # is 1 or more. In a subtraction, True counts as 1.
        charge -= is_darker & (charge >= one)
    charge += added
    whole_thresholds = np.floor(charge, out=added)
    spent = whole_thresholds
    if may_reach_two:
        # At most one whole threshold is kept after the spike. E.g. a charge of 3.4 has 3 whole
        # thresholds: one is for the spike, one is lost, and one is kept. So 2 are spent, and 1.4
        # remains. A charge of 1.4 has 1 whole threshold, which is for the spike. So 1 is spent, and
        # 0.4 remains.
        for_spike = np.minimum(whole_thresholds, one)  # 0 or 1
        spent = np.maximum(for_spike, whole_thresholds - one)
    charge -= spent


def _has_decreased(light: np.ndarray) -> np.ndarray:
    """Return in which planes the light of a pixel is darker than in the plane before.

    The light counts as darker if the interval of the pixel has become longer by more than one
    plane. A read-out rounds spike times to planes, so a difference of one plane may be rounding.

    light: (T, h, w) of `plane_light`. Returns bool (T, h, w).
    """
    # The length of an interval is 1 / light. So the condition is 1 / now > 1 / before + 1. Both
    # sides are multiplied by now * before, so that darkness does not divide by 0:
    #     before > now * (1 + before)
    # If the interval is longer by exactly one plane, both sides are equal, and a rounding error
    # could make the result True. The factor 0.999 makes it False. Plane 0 has no plane before it,
    # so it stays False.
    has_decreased = np.zeros(light.shape, bool)
    before = light[:-1]
    now = light[1:]
    limit = now * (np.float32(1.0) + before)
    np.greater(np.float32(0.999) * before, limit, out=has_decreased[1:])
    return has_decreased

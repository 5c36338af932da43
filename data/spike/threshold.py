"""Change recorded spikes as if the sensor had another threshold. Training varies the camera so.

The light L of each plane (light.py) is integrated again. A is the charge of a pixel in new
thresholds, at first a random number between 0 and 1:

    A <- A + L / factor + dark        factor: new threshold / old threshold. dark: a dark current
    s = A >= 1                        the spike of the plane
    A <- A - s

A plane has at most one spike, as in the sensor. With a lower threshold, one plane may bring the
charge of several spikes. Three rules say what happens with the charge that is left after a spike:

    1 to 2         All is kept, so the next plane has the second spike. The reason: a read-out
                   rounds spike times to planes. Constant light of 0.9 spikes per plane gives
                   intervals of 1 and 2 planes, and only their mean is right. Without the kept
                   charge, the new sensor would fire too rarely.
    2 or more      One spike is kept, and all others are lost: A <- 1 + A mod 1
    and then the   The kept spike is dropped before the darker plane is added: A <- A mod 1.
    light drops    Otherwise a dark plane would fire from the light before it.

What must stay: all numbers, bit for bit, because training samples consist of them. Another rule or
order fails test_every_pixel_is_integrated_plane_by_plane_as_the_formula_says. Free to change: how
the numbers are computed, if it is as fast.

Tests: tests/parts/data/test_spike_simulate.py
"""

import numpy as np

from .light import plane_light

# Number of values of a stream that `change_threshold` works on at a time. They fit into the cache
# of a core. With a larger or a smaller number it is slower, with the same result.
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
    # below 1. Then the charge stays below 2, and less than 1 is left after a spike. So the three
    # rules have no effect.
    may_reach_two = factor <= 1 or dark > 0
    out = np.empty_like(stream)
    planes, height, width = stream.shape
    rows = max(1, BLOCK // (planes * width))
    for top in range(0, height, rows):
        block = slice(top, top + rows)
        light = plane_light(stream[:, block])  # (T, rows, w)
        charge = charges[block]  # (rows, w), a view
        has_decreased = _has_decreased(light)

        # From here on, each array takes the place of the one before it, to save time.
        added = light
        added /= np.float32(factor)
        if dark:
            added += np.float32(dark)
        for plane, is_darker in zip(added, has_decreased, strict=True):
            _collect(charge, plane, is_darker, may_reach_two)
        whole_thresholds = added  # in the charge, 0, 1, 2, ... The pixel fires where it has one.
        # As bool, because `out` is uint8 in {0, 1}, which has the same bytes.
        spikes = out[:, block].view(bool)
        np.greater_equal(whole_thresholds, np.float32(1.0), out=spikes)
    return out


def _collect(
    charge: np.ndarray, plane: np.ndarray, is_darker: np.ndarray, may_reach_two: bool
) -> None:
    """Add the light of one plane to the charge, and spend the charge of its spikes.

    All arrays are (h, w).

    charge: charge in thresholds, changed in place.
    plane: what the plane adds to the charge. It is overwritten with the whole thresholds in the
    charge, of which one is the spike.
    is_darker: bool, where the light has decreased, so that a kept spike is dropped.
    may_reach_two: whether the charge may become 2 or more.
    """
    one = np.float32(1.0)
    if may_reach_two:
        # A <- A mod 1 where it is darker. The charge is below 2 here, so 1 is subtracted where the
        # charge is 1 or more: True counts as 1.
        charge -= is_darker & (charge >= one)
    charge += plane
    whole_thresholds = np.floor(charge, out=plane)
    spent = whole_thresholds
    if may_reach_two:
        # At most one threshold is kept. E.g. a charge of 3.4 has 3 whole thresholds: one for the
        # spike, one is lost, and one is kept. So 2 are spent, and 1.4 remains. A charge of 1.4 has
        # only the one for the spike, and 0.4 remains.
        for_spike = np.minimum(whole_thresholds, one)  # 0 or 1
        spent = np.maximum(for_spike, whole_thresholds - one)
    charge -= spent


def _has_decreased(light: np.ndarray) -> np.ndarray:
    """Return where the light has become darker since the plane before.

    The interval must have become longer by more than one plane. A read-out rounds spike times to
    planes, so a difference of one plane may be only rounding.

    light: (T, h, w) of `plane_light`. Returns bool (T, h, w).
    """
    # The length of an interval is 1 / light. So the condition is 1 / now > 1 / before + 1. Times
    # now and before, this is before > now (1 + before), without a division by 0 in the dark. If
    # the interval is longer by exactly one plane, both sides are equal, and 0.999 keeps a rounding
    # error from deciding. Plane 0 has no interval before it, so it stays False.
    has_decreased = np.zeros(light.shape, bool)
    before = light[:-1]
    now = light[1:]
    limit = now * (np.float32(1.0) + before)
    np.greater(np.float32(0.999) * before, limit, out=has_decreased[1:])
    return has_decreased

"""Make a picture of the sharp moment from the channels of a frame, for people.

The picture shows what the spike camera saw at the moment of the sharp frame. The picture is used in
the panels of validations and tests, on the page of scripts/show_sample.py, and in the check of
alignment (data/alignment_pictures.py). Channels (S, H, W) are what a network sees of the planes of
a frame, and a plane is one read-out of the spike camera. There are two cases:

    channels of the representation "relative"   `image_of_ratios` turns ratios into light
    all other channels                          `nearest_channels` finds the channels nearest to the
                                                sharp moment, and `image_of_channels` averages them

Gamma: display values are light ** (1 / 2.2). Channels are light ** (1 / gamma), where gamma is the
option spike.gamma.

What must stay: the pictures show the sharp moment, because the check of alignment compares them
with frames. Free to change: their details, because no network gets them.

Tests: tests/parts/data/test_spike_source.py and tests/parts/scripts/test_show_sample.py notice a
picture of a wrong moment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.cameras.spike_source import DatSpikes
from data.clip import Exposure
from data.spike.pictures import DISPLAY_GAMMA
from data.spike.represent import REPRESENTATIONS, represent


def sharp_image(
    spikes: DatSpikes, channels: np.ndarray, exposure: Exposure, reverse: bool = False
) -> np.ndarray:
    """Return a picture of the sharp moment from the channels (S, H, W) of a frame, for people.

    exposure: the planes of the frame. reverse: whether the clip is played backwards.
    Returns display values (H, W) float32, >= 0.
    """
    # "relative" is the name of `relative` in data/spike/ratios.py. Its channels are ratios to the
    # light of the exposure.
    if spikes.name == "relative":
        half_windows = spikes.options["half_windows"]
        return image_of_ratios(channels, half_windows, spikes.light, spikes.gamma)
    nearest = nearest_channels(spikes.name, spikes.options, exposure, reverse)
    return image_of_channels(channels[nearest], spikes.name, spikes.light, spikes.gamma)


# ---- The channels nearest to the moment ---------------------------------------------------------

# A channel is near if its distance from the sharp moment, in planes, is at most the smallest
# distance plus this number.
#
# A channel of a "proportional" representation (e.g. "voxel") is a picture, because it is
# proportional to the light. So only the nearest channel is taken, or two channels if the sharp
# moment lies between the two. The distances of the two channels differ by at most half a plane,
# because of rounding. A larger number would blur the picture.
MORE_PLANES_IF_PROPORTIONAL = 0.51
# If a representation is not proportional (e.g. "raw"), a channel is a single plane, with too few
# spikes for a picture. So channels that are up to 10 planes further away are averaged with the
# nearest channel. 10 was chosen by hand: a smaller number would give more noise, and a larger
# number more blur.
MORE_PLANES_ELSE = 10


def nearest_channels(
    name: str, options: Mapping[str, Any], exposure: Exposure, reverse: bool
) -> list[int]:
    """Return the indices of the channels nearest to the sharp moment, e.g. [1, 2] of four bins.

    name, options: the representation. exposure: the planes of the frame.
    reverse: whether the clip is played backwards.
    """
    # Some representations, e.g. "tfp", have the option `offsets`: the distance of each channel from
    # the sharp moment, in planes. If `num_bins` is given, `offsets` is not used.
    offsets = options.get("offsets")
    if offsets and options.get("num_bins") is None:
        return [int(np.argmin(np.abs(offsets)))]

    # For each channel, compute the mean distance of its planes from the sharp moment. The mean is
    # weighted by how much each plane counts in the channel.
    weights = _weights_of_planes(name, options, exposure, reverse)  # (S, T)
    distances = np.abs(np.arange(exposure.own.count) - exposure.center)  # (T,)
    sum_of_weights = np.maximum(weights.sum(axis=1), 1e-9)  # not 0, because it is a divisor
    mean_distance = (weights @ distances) / sum_of_weights  # (S,)

    more_planes = MORE_PLANES_ELSE
    if REPRESENTATIONS[name].proportional:
        more_planes = MORE_PLANES_IF_PROPORTIONAL
    is_near = mean_distance <= mean_distance.min() + more_planes
    return np.flatnonzero(is_near).tolist()


def _weights_of_planes(
    name: str, options: Mapping[str, Any], exposure: Exposure, reverse: bool
) -> np.ndarray:
    """Return the weight of each of the T planes in each of the S channels, (S, T).

    A trial finds the weights of any representation. Its stream has one row of T pixels, and pixel t
    fires only in plane t. So the value of pixel t in channel s is the weight of plane t.

    name, options: the representation. reverse: whether the clip is played backwards.
    """
    planes = exposure.own.count  # T
    impulses = np.eye(planes, dtype=np.uint8)[:, None]  # (T, 1, T): planes, rows, columns
    channels = represent(name, impulses, exposure.center, reverse=reverse, **options)  # (S, 1, T)
    return channels[:, 0]


# ---- From channels to display values ------------------------------------------------------------


def image_of_channels(channels: np.ndarray, name: str, light: str, gamma: float) -> np.ndarray:
    """Return the mean of channels (n, H, W) as display values (H, W) float32, >= 0.

    name: the representation. light: what the sensor integrated, "linear" light or "display" values.
    gamma: gamma of the channels, which are light ** (1 / gamma).
    """
    image = np.maximum(channels.mean(axis=0), 0)
    # The channels of a representation that is not proportional are single planes. Their mean is a
    # firing rate, in the unit that the sensor integrated. If the sensor integrated display values,
    # the mean has display values already.
    if not REPRESENTATIONS[name].proportional and light == "display":
        return image
    # (light ** (1 / gamma)) ** (gamma / 2.2) = light ** (1 / 2.2)
    return image ** (gamma / DISPLAY_GAMMA)


def image_of_ratios(
    channels: np.ndarray, half_windows: Sequence[float], light: str, gamma: float
) -> np.ndarray:
    """Return channels (S, H, W) of the representation "relative" as display values (H, W).

    The light of the sharp moment follows from two of the channels:

        r   channel of a window: the light of the sharp moment, divided by the light of the exposure
        c   last channel: the confidence n / (n + a), where n is the number of spikes in the
            exposure, and a is a constant (SPIKES_OF_HALF_CONFIDENCE in data/spike/ratios.py)

    The light of the exposure is proportional to n, so the light of the sharp moment is proportional
    to r * n. Solving c = n / (n + a) for n gives n = a * c / (1 - c). The result is divided by its
    brightest pixel, so a has no effect, and r * c / (1 - c) is enough.

    half_windows: the option of this name, half the length of each window.
    light, gamma: as in `image_of_channels`.

    Without the division by 1 - c, test_ratios_are_shown_as_the_light_of_the_scene fails.
    """
    # Take the channel of the window with the middle length. E.g. for the half_windows (12, 2, 6),
    # by_length is (1, 2, 0): the indices of 2, 6 and 12. The middle window is channel 2.
    by_length = np.argsort(half_windows)
    middle_window = by_length[len(by_length) // 2]
    # The sensor integrated values, light ** (1 / sensor_gamma): display values, or the light
    # itself. r and c were computed from the spikes, so they are in the unit of the integrated
    # values. Then `represent` has raised all channels to the power sensor_gamma / gamma. `exponent`
    # undoes this power.
    sensor_gamma = DISPLAY_GAMMA if light == "display" else 1.0
    exponent = gamma / sensor_gamma
    channels = channels.astype(np.float64)  # the confidence may be close to 1
    ratio = np.maximum(channels[middle_window], 0) ** exponent  # r
    # c is at most 0.999, because c = 1 would divide by 0.
    confidence = np.clip(channels[-1], 0, 0.999) ** exponent
    integrated = ratio * confidence / (1 - confidence)  # r * c / (1 - c)
    brightest = max(integrated.max(), 1e-9)  # not 0, because it is a divisor
    # integrated = light ** (1 / sensor_gamma), so the result is light ** (1 / 2.2).
    return (integrated / brightest) ** (sensor_gamma / DISPLAY_GAMMA)

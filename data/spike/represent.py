"""Turn a spike stream into the channels that a network reads.

A representation is a function

    function(stream, center, **options) -> channels

    stream    (T, h, w) uint8 in {0, 1}: T planes (read-outs of the spike camera)
    center    number of the plane of the sharp frame
    channels  (S, h, w) float32; S depends on the options only, never on T

`represent` calls the function. `represent` also does what all representations share: it reverses
time, divides firing rates by the rate, and applies gamma. For example, four bins of a stream of 56
planes:

    represent("voxel", stream, center=27.5, num_bins=4)        # (4, h, w)

To add a representation, write a function with the decorator ``@representation`` (registry.py). The
function must return a new array, because `represent` changes it in place. The keyword parameters of
the function become keys of the option `spike.representation`. docs/options.md is made from the
docstring of the function: from the first paragraph, and the paragraphs that explain keys.

Two rules hold for every representation:

    * Every formula works per pixel. So a crop, a flip or a turn of the planes gives the same crop,
      flip or turn of the channels.
    * Time reversal is exact. A clip that is played backwards has the channels of the reversed
      stream around the same time. Plane t of T planes is plane T - 1 - t of the reversed stream.

What must stay: every number of every representation, because trained networks expect these
channels. A better formula gets a new name. The names and defaults of options must stay, too,
because option files rely on them.

Tests: tests/parts/data/test_spike_represent.py (tries both rules with random options)
"""

import math
from typing import Any, Literal

import numpy as np

from . import averages, interval_rate, plane_windows, ratios, synapses
from .moved import moved_names
from .pictures import DISPLAY_GAMMA
from .registry import REPRESENTATIONS, Representation, representation

# The modules with the representations:
#
#     averages         tfp, voxel
#     interval_rate    tfi
#     plane_windows    raw, encoding25
#     ratios           exposure, relative
#     synapses         tfstp
#
# Each module fills REPRESENTATIONS while it is imported above. The order of the imports is the
# order of the representations in docs/options.md.
MODULES = (averages, interval_rate, plane_windows, ratios, synapses)

# A user's file imports `representation` from here (docs/extending.md).
__all__ = ("REPRESENTATIONS", "channel_count", "represent", "representation")


def represent(
    name: str,
    stream: np.ndarray,
    center: float,
    *,
    reverse: bool = False,
    rate: float = 1.0,
    light: Literal["linear", "display"] = "linear",
    gamma: float = 1.0,
    outside: tuple[int, int] = (0, 0),
    **options: Any,
) -> np.ndarray:
    """Return representation `name` of stream (T, h, w) as (S, h, w) float32.

    Training and testing call this function for each frame, by `DatSpikes.represent`
    (data/cameras/spike_source.py).

    center: time of the sharp frame in planes of `stream`, a multiple of 0.5.
    reverse: whether to return the channels of the reversed stream around the same time.
    rate: spikes per plane at full light. A proportional representation is divided by the rate, so
    that full light gives 1.
    light: what the sensor integrated, linear light or display values of gamma 2.2.
    gamma: gamma of the returned channels. 1: linear light, 2.2: display values. Only
    representations of light have a gamma: `proportional` or `is_ratio` is True (registry.py). A
    gamma has no effect on other representations, e.g. "raw".
    outside: (before, after), the numbers of context planes, i.e. of the planes of `stream` before
    and after the exposure.
    Raises ValueError if the stream is too short for the representation.
    """
    chosen = REPRESENTATIONS[name]
    if not chosen.accepts_half_planes:
        # Take the next plane: 27.5 -> 28. For `exposure` and `relative`, the next plane is exact.
        # The light of plane 28 was collected between the planes 27 and 28, so around plane 28 the
        # two functions show the time 27.5.
        center = math.ceil(center)
    # A function that takes context must know where the exposure ends. Its option half_exposure is
    # the number of planes of the exposure on each side of the center. If the user has not set this
    # option, `_half_exposure` computes the number. `options` is a dict of this call, so the options
    # of the caller do not change.
    if chosen.takes_context and options.get("half_exposure") is None:
        options["half_exposure"] = _half_exposure(len(stream), center, outside)

    if reverse:
        channels = _channels_in_reverse(chosen, stream, center, options)
    else:
        channels = chosen.function(stream, center, **options)

    if chosen.proportional and rate != 1.0:
        # Change the channels in place. This is safe, because a representation returns a new array.
        channels *= np.float32(1.0 / rate)
    if chosen.proportional or chosen.is_ratio:
        channels = _with_gamma(channels, light, gamma)
    return channels


def _channels_in_reverse(
    chosen: Representation, stream: np.ndarray, center: float, options: dict[str, Any]
) -> np.ndarray:
    """Return the channels of the reversed stream around the same time.

    There are two ways (`Representation.reverses_channels` says which one a function needs):

        * Most functions get the reversed stream.
        * Some functions spread windows over the stream, e.g. 5 windows over 56 planes. They get the
          stream as it is, and their channels are put in reverse order.

    The second way is needed because the middles of spread windows are rounded to planes. The
    rounding would move the windows in the reversed stream. E.g. the middle of 56 planes is 27.5.
    This middle is rounded to plane 28 in both streams:

        in the stream             plane 28
        in the reversed stream    plane 28, which is plane 55 - 28 = 27 of the stream

    options: arguments of the function besides stream and center.

    Test: test_reversed_time_shows_the_same_instants_in_reverse_exactly
    """
    if chosen.reverses_channels(**options):
        channels = chosen.function(stream, center, **options)
        return np.ascontiguousarray(channels[::-1])
    # The time that the channels show, minus the center, in half planes (registry.py).
    lag = chosen.lag_in_half_planes(**options)
    reversed_center = _center_in_reversed(len(stream), center, lag)
    return chosen.function(stream[::-1], reversed_center, **options)


def _center_in_reversed(planes: int, center: float, lag: int) -> float:
    """Return the center with which a function shows the same time in the reversed stream.

    planes: number of planes of the stream.
    center: the center in the stream that is not reversed.
    lag: the time that the channels show, minus the center, in half planes. `Representation`
    (registry.py) has the lag of each function.

    A function shows the time center + lag / 2. In the reversed stream, this is the time
    last - center - lag / 2. The function adds lag / 2 to the center that it gets, so this center
    must be last - center - lag.

    E.g. TFI has the lag 1, so around plane 5 of the planes 0 ... 20 it shows the time 5.5. In the
    reversed stream, this is the time 14.5, which TFI shows around plane 20 - 5 - 1 = 14.

    Test: test_reversed_time_shows_the_same_instants_in_reverse_exactly
    """
    last = planes - 1
    return last - center - lag


def _with_gamma(channels: np.ndarray, light: str, gamma: float) -> np.ndarray:
    """Return channels of a wanted gamma.

    light: what the channels hold: "linear" light, or "display" values of gamma 2.2.
    gamma: gamma of the result. 1: linear light, 2.2: display values.

    Test: test_relative_light_of_a_sensor_of_display_values_is_the_ratio_as_it_is
    """
    # Display values to the power of 2.2 are linear light. Linear light to the power of 1 / gamma
    # has the wanted gamma. The two powers are computed as one power.
    gamma_of_channels = DISPLAY_GAMMA if light == "display" else 1.0
    exponent = gamma_of_channels / gamma
    if exponent == 1.0:
        return channels
    return np.power(channels, np.float32(exponent))


def _half_exposure(planes: int, center: float, outside: tuple[int, int]) -> float:
    """Return the number of planes of the exposure before or after the center, the smaller of both.

    The first plane of the exposure is not counted. Without context, the first plane is plane 0 of
    the file, and a part of its light came before the file began. With context, the first plane of
    the exposure is not counted either, so that the windows are the same in both cases
    (test_relative_light_undoes_the_blur_of_a_moving_edge_whatever_the_threshold).

    E.g. the stream has the planes 0 ... 71, with 8 planes of context on both sides, and the center
    is 36. The exposure has the planes 8 ... 63, of which 9 ... 63 are counted. There are 36 - 9 =
    27 planes before the center and 63 - 36 = 27 planes after it, so the result is 27.

    planes: number of planes of the stream, with context.
    center: plane of the sharp frame.
    outside: (before, after), numbers of context planes before and after the exposure.
    """
    before, after = outside
    first_counted = before + 1
    last_of_exposure = planes - 1 - after
    return min(center - first_counted, last_of_exposure - center)


def channel_count(name: str, **options: Any) -> int:
    """Return S, the number of channels of representation `name` with these options.

    Only the function knows how many channels its options give, so it is run on a stream of one
    pixel without spikes. The 8192 planes of the stream are enough for any window, because files
    have a few hundred planes.
    """
    stream = np.zeros((8192, 1, 1), np.uint8)
    center = len(stream) // 2
    return len(REPRESENTATIONS[name].function(stream, center, **options))


# Names that stood here in version 0.9.0.
__getattr__ = moved_names(__name__, {"exposure_estimate": "data.spike.ratios"})

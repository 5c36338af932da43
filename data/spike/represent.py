"""Turn a spike stream into the channels that a network reads.

A representation is a function

    function(stream, center, **options) -> channels

    stream    (T, h, w) uint8 in {0, 1}: T planes (read-outs of the spike camera)
    center    number of the plane of the sharp frame
    channels  (S, h, w) float32; S depends on the options only, never on T

`represent` calls the function and does what all representations share: reversed time, brightness,
gamma. For example, four bins of a stream of 56 planes:

    represent("voxel", stream, center=27.5, num_bins=4)        # (4, h, w)

To add a representation, write a function under ``@representation``. It returns a new array, which
`represent` may change. Its keyword parameters become option keys of `spike.representation`.
docs/options.md is made from the first paragraph of its docstring and from the paragraphs that
explain keys.

Two rules hold for every representation, and tests/parts/data/test_spike_represent.py tries both
with random options:

    * Every formula works per pixel. So the channels of a crop are the crop of the channels. The
      same holds for mirrored and turned planes.
    * Time reversal is exact. The channels of a clip played backwards are the channels of the
      reversed stream around the same time. Plane t of a stream of T planes is plane T - 1 - t of
      the reversed stream.

Words: the firing rate is the number of spikes per plane. A tick is the time of one plane. The
exposure is the time during which the blurry frame was taken. By default the stream holds exactly
the planes of the exposure.

What must stay: every number of every representation, because trained networks expect these
channels. A better formula gets a new name. Option names and defaults are part of option files.

Tests: tests/parts/data/test_spike_represent.py, tests/parts/data/test_published_streams.py
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .simulate import DISPLAY_GAMMA, to_display, to_linear, window_light

Numbers = tuple[int, ...] | list[int]
# Number of spikes in the exposure that gives `relative` the confidence 1/2: n / (n + 4). With 4
# spikes, the light of an exposure is known to about a quarter. The number must stay, because
# trained networks expect it.
SPIKES_OF_HALF_CONFIDENCE = 4.0


# ---- The registry ------------------------------------------------------------------------------


# The defaults of three fields of `Representation`, which are functions of the options.
def _no_lag(**_: Any) -> int:
    return 0


def _always(**_: Any) -> bool:
    return True


def _never(**_: Any) -> bool:
    return False


@dataclass(frozen=True)
class Representation:
    """A registered function, and how it uses the keys of the `spike` section."""

    function: Callable[..., np.ndarray]
    # Whether the channels are firing rates. Then the option keys `rate`, `light` and `gamma` apply.
    proportional: bool
    # Whether the channels are ratios of firing rates. Then `light` and `gamma` apply. `rate` has no
    # effect, because a ratio does not depend on it.
    is_ratio: bool = False
    # Whether the function also uses planes outside of the exposure. Then it must have the option
    # half_exposure, which tells the function where the exposure ends.
    takes_context: bool = False
    # Whether the function accepts a center between two planes, such as 27.5. Other functions get
    # the next plane, 28. Around plane 28, `exposure` and `relative` show the time 27.5.
    accepts_half_planes: bool = False

    # The next three fields are functions of the options, because the answer depends on the options.
    # The time that the channels show, minus `center`, in half planes. For example, 1 if the
    # channels show the time between `center` and the next plane. `_center_in_reversed` needs it to
    # reverse time exactly.
    lag_in_half_planes: Callable[..., int] = _no_lag
    # Whether the function uses `center`. Windows that are spread over the whole stream do not.
    is_centered: Callable[..., bool] = _always
    # How time is reversed. True: the channels are put in reverse order. False: the function gets
    # the reversed stream. True is needed for windows spread over the stream: their centres are
    # rounded, which prefers one direction of time, so the windows of the reversed stream would lie
    # elsewhere.
    reverses_channels: Callable[..., bool] = _never

    def ignored(self, **options: Any) -> set[str]:
        """Return the keys of the `spike` section that have no effect with these options."""
        if self.proportional:
            keys = set()
        elif self.is_ratio:
            keys = {"rate"}
        else:
            keys = {"rate", "light", "gamma"}
        if not self.takes_context:
            keys.add("context")
        if not self.is_centered(**options):
            keys.add("center")
        return keys


# Name -> representation.
REPRESENTATIONS: dict[str, Representation] = {}


def representation(
    name: str, proportional: bool, **properties: Any
) -> Callable[..., Callable[..., np.ndarray]]:
    """Register a function as a representation (a decorator).

    name: the value of `spike.representation.type` that chooses it.
    proportional, properties: fields of `Representation`.
    """

    def register(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        if name in REPRESENTATIONS:
            raise ValueError(f"representation {name!r} is registered twice")
        REPRESENTATIONS[name] = Representation(function, proportional, **properties)
        return function

    return register


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

    center: time of the sharp frame in planes of `stream`, a multiple of 0.5.
    reverse: whether to return the channels of the reversed stream around the same time.
    rate: spikes per tick at full light. A proportional representation is divided by it, so that
    full light gives 1.
    light: what the sensor integrated, linear light or display values of gamma 2.2.
    gamma: gamma of the returned channels. 1: linear light, 2.2: display values. No effect on a
    representation that is neither proportional to light nor a ratio of lights, such as "raw".
    outside: number of context planes (before, after) the exposure in the stream.
    Raises ValueError if the stream is too short for the representation.
    """
    chosen = REPRESENTATIONS[name]
    if not chosen.accepts_half_planes:
        # The next plane: 27.5 -> 28. `exposure` and `relative` show the time 27.5 around plane 28.
        center = math.ceil(center)
    if chosen.takes_context and options.get("half_exposure") is None:
        options["half_exposure"] = _half_exposure(len(stream), center, outside)

    # To reverse time, a function gets the reversed stream, with a center that makes up for its lag
    # (the time that the channels show, minus their center). If the function rounds the centres of
    # its windows, they would lie elsewhere in the reversed stream. Then the channels are put in
    # reverse order instead.
    if not reverse:
        channels = chosen.function(stream, center, **options)
    elif chosen.reverses_channels(**options):
        channels = chosen.function(stream, center, **options)
        channels = np.ascontiguousarray(channels[::-1])
    else:
        lag = chosen.lag_in_half_planes(**options)
        reversed_center = _center_in_reversed(len(stream), center, lag)
        channels = chosen.function(stream[::-1], reversed_center, **options)

    if chosen.proportional and rate != 1.0:
        # Changed in place, which is safe because a representation returns a new array.
        channels *= np.float32(1.0 / rate)
    if chosen.proportional or chosen.is_ratio:
        channels = _with_gamma(channels, light, gamma)
    return channels


def _center_in_reversed(planes: int, center: float, lag: int) -> float:
    """Return the center with which a function shows the same time in the reversed stream.

    planes: number of planes of the stream. center: the center in the stream that is not reversed.
    lag: time that the channels show, minus their center, in half planes.

    E.g. TFI has the lag 1, so around plane 5 of the planes 0 ... 20 it shows the time 5.5. In the
    reversed stream, this is the time 20 - 5.5 = 14.5, which TFI shows around plane 14. So the
    result is 20 - 5 - 1 = 14.

    In general, the time center + lag / 2 becomes last - center - lag / 2. The function itself adds
    another lag / 2 to its center, so lag / 2 is subtracted twice.

    Test: test_reversed_time_shows_the_same_instants_in_reverse_exactly
    """
    last = planes - 1
    return last - center - lag


def _with_gamma(channels: np.ndarray, light: str, gamma: float) -> np.ndarray:
    """Return channels of a wanted gamma.

    light: what the channels hold: "linear" light, or "display" values of gamma 2.2.
    gamma: gamma of the result. 1: linear light, 2.2: display values.

    Test: test_relative_light_of_display_values_is_the_ratio_to_the_power_of_gamma
    """
    # Display values to the power of 2.2 are linear light. Linear light to the power of 1 / gamma
    # has the wanted gamma. Both steps are one power.
    gamma_of_channels = DISPLAY_GAMMA if light == "display" else 1.0
    exponent = gamma_of_channels / gamma
    if exponent == 1.0:
        return channels
    return np.power(channels, np.float32(exponent))


def _half_exposure(planes: int, center: float, outside: tuple[int, int]) -> float:
    """Return how many planes of the exposure lie on each side of the center: the smaller number.

    planes: number of planes of the stream, with context. center: plane of the sharp frame.
    outside: number of context planes (before, after) the exposure.

    The first plane of the exposure does not count. Without context it is plane 0, and a part of its
    light came before the file began. With context it does not count either, so that the windows are
    the same with and without context. E.g. planes 0 ... 71 with 8 planes of context on both sides
    and center 36: the exposure has the planes 8 ... 63, and the result is
    min(36 - 9, 63 - 36) = 27. If the first plane counted,
    test_relative_light_undoes_the_blur_of_a_moving_edge_whatever_the_threshold would fail.
    """
    before, after = outside
    first_counted = before + 1
    last_of_exposure = planes - 1 - after
    return min(center - first_counted, last_of_exposure - center)


def channel_count(name: str, **options: Any) -> int:
    """Return S, the number of channels of representation `name` with these options.

    The function is run on one pixel of an empty stream, because only the function knows how many
    channels its options give. The stream has 8192 planes, more than any window needs, because files
    have a few hundred planes.
    """
    stream = np.zeros((8192, 1, 1), np.uint8)
    center = len(stream) // 2
    return len(REPRESENTATIONS[name].function(stream, center, **options))


# ---- Means of windows of planes ----------------------------------------------------------------


# TFP is "texture from playback". With num_bins, its windows are spread over the stream. Without
# num_bins, they lie around the center.
def _tfp_is_centered(num_bins: int | None = None, **_: Any) -> bool:
    return num_bins is None


def _tfp_is_spread(num_bins: int | None = None, **_: Any) -> bool:
    return num_bins is not None


@representation(
    "tfp", proportional=True, is_centered=_tfp_is_centered, reverses_channels=_tfp_is_spread
)
def tfp(
    stream: np.ndarray,
    center: int,
    half_window: int = 10,
    offsets: Numbers = (0,),
    num_bins: int | None = None,
) -> np.ndarray:
    """Texture from playback: channel i = mean of s[m - half_window : m + half_window + 1],
    m = center + offsets[i].

    num_bins: number of windows that are spread over the file instead of lying at offsets, as in
    S-VRT.

    s is the stream. Values are in [0, 1]. At the ends of the stream a window has only the planes
    that exist. With num_bins = B, the T planes are divided into B equal bins. m is the middle of
    bin i, (i + 1 / 2) T / B rounded down, and is moved into [half_window, T - half_window].
    Source: SpikeCV, TFP, without its rounding to 8 bits.
    """
    planes = len(stream)
    if num_bins is None:
        middles = [center + offset for offset in offsets]
    else:
        if num_bins < 1 or tuple(offsets) != (0,):
            raise ValueError(
                f"num_bins {num_bins} is at least 1, and offsets {list(offsets)} have no effect "
                "with it"
            )
        middles = _middles_of_bins(num_bins, planes, half_window)

    channels = []
    for m in middles:
        # The window has the planes start ... stop - 1, as far as the stream has them. A window
        # before plane 0 would get negative numbers, with which a slice counts from the end of the
        # stream.
        start = m - half_window
        stop = m + half_window + 1
        window = stream[max(start, 0) : max(stop, 0)]
        if not len(window):
            raise ValueError(f"planes {start} to {stop - 1} all lie outside 0 to {planes - 1}")
        counts = _counts(window).astype(np.float32)
        channels.append(counts / np.float32(len(window)))
    return np.stack(channels)


def _middles_of_bins(num_bins: int, planes: int, half_window: int) -> list[int]:
    """Return the middle m of each window of `tfp` with num_bins.

    m is the middle of a bin, (i + 1 / 2) T / B, moved into [half_window, T - half_window]. Other
    middles fail test_tfp_spread_over_the_file_is_the_formula_of_s_vrt.
    Raises ValueError if a window does not fit into the stream.
    """
    if planes < 2 * half_window:
        raise ValueError(f"{planes} planes cannot hold a window of {2 * half_window} planes")
    middles = []
    for i in range(num_bins):
        # In whole numbers, rounded down: 7, 21, 35, 49 for T = 56 and B = 4.
        middle_of_bin = (2 * i + 1) * planes // (2 * num_bins)
        at_least_half_window = max(middle_of_bin, half_window)
        middles.append(min(at_least_half_window, planes - half_window))
    return middles


def _counts(window: np.ndarray) -> np.ndarray:
    """Return the number of spikes of each pixel (h, w) in a window (t, h, w)."""
    # Up to 255 fit into a byte, and numpy sums bytes fastest.
    fits_into_a_byte = len(window) < 256
    return window.sum(axis=0, dtype=np.uint8 if fits_into_a_byte else np.uint32)


@representation("voxel", proportional=True, accepts_half_planes=True)
def voxel(stream: np.ndarray, center: float, num_bins: int = 4) -> np.ndarray:
    """Disjoint bins of equal length, symmetric about the centre c.

    s is the stream, B = num_bins. The bins divide the largest range of planes that is symmetric
    about c. It has n = 2 min(c, T - 1 - c) + 1 planes, of which p is the first. Then

        channel b = mean of s over the time from p + b n / B to p + (b + 1) n / B

    A plane that lies in two bins counts in both in proportion. Values are in [0, 1]. If c is the
    middle of the stream, (T - 1) / 2, all planes are used.
    """
    last = len(stream) - 1
    # E.g. 20 planes and center 6: n = 2 * 6 + 1 = 13, p = 0, the planes 0 ... 12.
    n = int(2 * min(center, last - center)) + 1
    if n < num_bins:
        raise ValueError(f"{n} planes evenly around {center:g} cannot fill {num_bins} bins")
    p = int(center - (n - 1) / 2)

    # Times are counted in B-th parts of a plane, so that all times are whole numbers. Plane t
    # begins at the time t B, and bin b lasts from p B + b n to p B + (b + 1) n.
    channels = []
    for b in range(num_bins):
        start = p * num_bins + b * n
        counts = _counts_in_parts(stream, start, stop=start + n, parts=num_bins)
        # A bin is n parts long, and a plane has B parts. So counts / n is the mean of s.
        channels.append(counts.astype(np.float32) / np.float32(n))
    return np.stack(channels)


def _counts_in_parts(stream: np.ndarray, start: int, stop: int, parts: int) -> np.ndarray:
    """Return the number of spikes of each pixel from `start` to `stop`, times `parts`, (h, w).

    start, stop: times, counted in parts of a plane. A plane has `parts` parts, so plane t begins at
    the time t * parts. A spike counts once for each part of its plane that lies between the times.
    E.g. with 2 parts a plane, from 0 to 13: a spike in one of the planes 0 ... 5 counts 2, and a
    spike in plane 6 counts 1, because the second half of plane 6 lies after 13.

    All numbers are whole numbers, so the result is equal in both directions of time.
    """
    # The planes that lie between the times as a whole: first ... end - 1.
    first = math.ceil(start / parts)
    end = stop // parts
    counts = _counts(stream[first:end]).astype(np.uint32) * np.uint32(parts)
    # If `start` lies within a plane, add the parts of this plane after `start`.
    parts_before_first = first * parts - start
    if parts_before_first:
        counts += np.uint32(parts_before_first) * stream[first - 1]
    # If `stop` lies within a plane, add the parts of this plane before `stop`.
    parts_from_end = stop - end * parts
    if parts_from_end:
        counts += np.uint32(parts_from_end) * stream[end]
    return counts


# ---- Intervals between spikes ------------------------------------------------------------------


def _lag_of_tfi(**_: Any) -> int:
    """Return 1: TFI shows the time half a plane after its centre plane."""
    return 1


@representation("tfi", proportional=True, lag_in_half_planes=_lag_of_tfi)
def tfi(
    stream: np.ndarray, center: int, half_window: int = 20, offsets: Numbers = (0,)
) -> np.ndarray:
    """Texture from intervals: channel i = 1 / (tn - tp) around the time after plane
    m = center + offsets[i].

    tp is the plane of the last spike in [m - half_window + 1, m], tn the plane of the first spike
    in [m + 1, m + half_window]. If a pixel lacks one of them, its value is 1 / (2 half_window).
    Values are in (0, 1]. Planes outside of the stream count as empty.
    Source: SpikeCV, TFI (which gives uint8, ignores a spike in plane 0 and fails at the last
    planes).
    """
    channels = []
    for offset in offsets:
        m = center + offset
        # The planes m - half_window + 1 ... m, and m + 1 ... m + half_window. A negative number in
        # a slice would count from the end of the stream.
        before = stream[max(m - half_window + 1, 0) : max(m + 1, 0)]
        after = stream[max(m + 1, 0) : max(m + 1 + half_window, 0)]
        if not len(before) or not len(after):
            raise ValueError(f"plane {m} has no planes on both sides within 0 to {len(stream) - 1}")
        has_both = before.any(axis=0) & after.any(axis=0)
        # argmax along time is the index of the first spike. E.g. m = 5, tp = 3, tn = 7: 2 planes
        # from m back to tp, 1 plane from m + 1 on to tn, and the interval tn - tp = 2 + 1 + 1 = 4.
        m_minus_tp = before[::-1].argmax(axis=0)
        tn_minus_next = after.argmax(axis=0)
        interval = m_minus_tp + tn_minus_next + 1
        rates = np.where(has_both, 1.0 / interval, 1.0 / (2 * half_window))
        channels.append(rates.astype(np.float32))
    return np.stack(channels)


# ---- The planes themselves ---------------------------------------------------------------------


@representation("raw", proportional=False)
def raw(stream: np.ndarray, center: int, window: int = 21) -> np.ndarray:
    """Raw window of odd length L: channels s[center - L // 2 : center + L // 2 + 1],
    values {0, 1}.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"the raw window is an odd number of planes, not {window}")
    first = center - window // 2
    end = first + window
    if first < 0 or end > len(stream):
        planes = f"planes {first} to {end - 1} around {center}"
        raise ValueError(f"{planes} reach outside 0 to {len(stream) - 1}")
    return stream[first:end].astype(np.float32)


def _lag_of_windows(num_windows: int = 1, spacing: int | None = None, **_: Any) -> int:
    """Return 0 or -1: whether the windows of `encoding25` show a time half a plane earlier.

    The middle of an even number of windows lies between two windows. If the spacing is odd too, the
    middle lies between two planes, and the centres of the windows are rounded down. So their middle
    is half a plane earlier than `center`. E.g. two windows with a spacing of 5 around plane 50 have
    the centres 47 and 52. The middle of the two is 49.5.
    """
    if num_windows % 2 == 1 or spacing is None:
        return 0
    is_odd = spacing % 2 == 1
    return -1 if is_odd else 0


def _windows_are_centered(num_windows: int = 1, spacing: int | None = None, **_: Any) -> bool:
    return num_windows == 1 or spacing is not None


def _windows_are_spread(num_windows: int = 1, spacing: int | None = None, **_: Any) -> bool:
    return num_windows > 1 and spacing is None


@representation(
    "encoding25",
    proportional=False,
    lag_in_half_planes=_lag_of_windows,
    is_centered=_windows_are_centered,
    reverses_channels=_windows_are_spread,
)
def encoding25(
    stream: np.ndarray,
    center: int,
    num_windows: int = 1,
    spacing: int | None = None,
    pad: Literal["strict", "edge", "zero"] = "strict",
) -> np.ndarray:
    """Windows of 25 planes for spike optical flow (SCFlow):
    channels 25 i ... 25 i + 24 = s[m - 12 : m + 13], {0, 1}.

    spacing: planes from one centre m to the next, around center; null: spread over the file, as in
    S-VRT. pad: planes outside of the stream: "strict" is an error, "edge" repeats the outermost
    plane, "zero" is empty.

    With spacing, m = center + (i - (num_windows - 1) / 2) spacing, rounded down. The windows are at
    the same distance in every clip, as in the training of the flow weights.
    Without spacing, a single window has m = center. Several windows have
    m = round(linspace(12, T - 13, num_windows)), rounded symmetrically about the middle of the
    file. "strict" raises ValueError.
    """
    if num_windows < 1 or (spacing is not None and spacing < 1):
        raise ValueError(f"num_windows {num_windows} and spacing {spacing} are at least 1")
    planes = len(stream)
    if num_windows == 1:
        middles = [center]
    elif spacing is not None:
        # center + (i - (num_windows - 1) / 2) spacing, rounded down. Twice the distance from the
        # center is a whole number: -5 and 5 for two windows with a spacing of 5. Half of it,
        # rounded down, is -3 and 2.
        middles = []
        for i in range(num_windows):
            twice_distance = (2 * i - (num_windows - 1)) * spacing
            middles.append(center + twice_distance // 2)
    else:
        middles = _spread_middles(num_windows, planes)

    # The plane of each channel, (S,): 12 planes before m, m itself, and 12 planes after m.
    windows = [np.arange(m - 12, m + 13) for m in middles]
    plane_numbers = np.concatenate(windows)
    is_outside = (plane_numbers < 0) | (plane_numbers >= planes)
    if pad == "strict" and is_outside.any():
        raise ValueError(f"windows of 25 planes around {middles} reach outside 0 to {planes - 1}")
    # Outside of the stream, np.clip takes the outermost plane ("edge").
    channels = stream[np.clip(plane_numbers, 0, planes - 1)].astype(np.float32)
    if pad == "zero":
        channels[is_outside] = 0.0
    return channels


def _spread_middles(num_windows: int, planes: int) -> list[int]:
    """Return the centres of windows of 25 planes that are spread over a file.

    The centres must be symmetric (with m also planes - 1 - m), which is not certain if each one is
    rounded. So only the first half is rounded, and the second half mirrors it. An odd number of
    windows has one more centre at planes // 2. E.g. 3 windows in 56 planes: 12, 28, 43.
    """
    # The first window has the planes 0 ... 24, and the last window has the last 25 planes.
    spread = np.linspace(12, planes - 13, num_windows)
    exact_first_half = spread[: num_windows // 2]
    first_half = np.round(exact_first_half).astype(int).tolist()
    second_half = [planes - 1 - m for m in reversed(first_half)]
    if num_windows % 2 == 1:
        return [*first_half, planes // 2, *second_half]
    return [*first_half, *second_half]


# ---- Light of the sharp moment and of the exposure ---------------------------------------------


def _lag_of_light(**_: Any) -> int:
    """Return -1: the light of plane m was collected between the planes m - 1 and m."""
    return -1


@representation("exposure", proportional=True, lag_in_half_planes=_lag_of_light)
def exposure_rates(
    stream: np.ndarray, center: int, half_window: int = 6, half_exposure: int | None = None
) -> np.ndarray:
    """Two channels: the light around the sharp frame (short) and over the exposure (long), in
    spikes per plane.

    half_window, half_exposure: planes on each side of center; null: as many as there are, without
    plane 0.

    The light is 1 / interval in all planes between two spikes (data/spike/simulate.py). A pixel
    with few spikes has one interval around both windows. Then both rates are equal, and
    `exposure_estimate` returns the blurry frame.
    """
    planes = len(stream)
    if half_exposure is None:
        half_exposure = min(center - 1, planes - 1 - center)
    if not 0 <= half_window < half_exposure:
        raise ValueError(
            f"0 <= half_window {half_window} < half_exposure {half_exposure} is needed"
        )
    # The planes start ... stop - 1 of both windows: the short one and the exposure.
    windows = []
    for half in (half_window, half_exposure):
        start = max(center - half, 1)
        stop = min(center + half + 1, planes)
        if start >= stop:
            raise ValueError(f"plane {center} has no planes around it within 1 to {planes - 1}")
        windows.append((start, stop))

    # The light of a window, (h, w), summed over its planes, in spikes. A window with fewer planes
    # has a smaller sum, so divide by the number of planes.
    lights = window_light(stream, windows)
    rates = []
    for light, (start, stop) in zip(lights, windows, strict=True):
        rates.append(light / (stop - start))  # (h, w), spikes per plane
    return np.stack(rates).astype(np.float32)


def exposure_estimate(blurry: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the sharp frame: blurry light x short rate / long rate, in linear light.

    A grey sensor gives one ratio for the three colours. Where the long rate is 0, the blurry frame
    is returned.

    blurry: (H, W, 3) display values in [0, 1].
    rates: (2, H, W), short and long, as linear light of any scale.
    Returns display values (H, W, 3) float32 in [0, 1].
    """
    short, long = rates
    ratio = _ratio(short, long)  # (H, W)
    sharp = to_linear(blurry) * ratio[..., None]  # (H, W, 3)
    return to_display(sharp)


def _ratio(light: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return light / reference for each pixel, and 1 where the reference is 0."""
    # np.divide writes into `ratio`, but only where the reference is above 0.
    ratio = np.ones_like(reference)
    return np.divide(light, reference, out=ratio, where=reference > 0)


@representation(
    "relative",
    proportional=False,
    is_ratio=True,
    takes_context=True,
    lag_in_half_planes=_lag_of_light,
)
def relative(
    stream: np.ndarray,
    center: int,
    half_windows: tuple[int | float, ...] | list[int | float] = (2, 6, 12),
    half_exposure: int | None = None,
    num_bins: int = 0,
) -> np.ndarray:
    """The mean light of each window divided by the mean light of the exposure, and a confidence.

    half_windows: one window around the sharp frame for each number. A number is how many planes the
    window has on each side of center; below 1 it is a share of half_exposure. half_exposure: planes
    of the exposure on each side of center; null: as many as there are, without plane 0. num_bins:
    number of further windows, which are equal parts of the exposure. Each window is a channel,
    which is 1 where there are too few spikes.

    The last channel is the confidence n / (n + 4), where n is the number of spikes in the exposure.
    The light is 1 / interval in all planes between two spikes (data/spike/simulate.py), so a window
    may be shorter than an interval. With spike.context, the intervals at the ends of the exposure
    are seen as a whole. Ratios do not depend on the threshold or the gain of the sensor.
    The blurry frame times the ratio estimates the sharp frame: in linear light with gamma 1, in
    display values with gamma 2.2.
    """
    # As many planes as there are on both sides of the center, without plane 0.
    most_planes = min(center - 1, len(stream) - 1 - center)
    if half_exposure is None:
        half_exposure = most_planes
    halves, are_whole = _half_windows_in_planes(half_windows, half_exposure)
    # Each window must be shorter than the exposure, and the exposure must lie in the stream.
    are_inside = bool(halves) and min(halves) >= 0 and max(halves) < half_exposure
    fits_stream = half_exposure <= most_planes
    if not are_whole or not are_inside or not fits_stream or num_bins < 0:
        raise ValueError(
            f"0 <= half_windows {list(half_windows)} < half_exposure {half_exposure} <= "
            f"{most_planes} planes are needed, whole or below 1, and num_bins {num_bins} >= 0"
        )

    # Each window is (start, stop), with the planes start ... stop - 1. First come the windows
    # around the sharp frame, then the equal parts of the exposure.
    first = center - half_exposure
    planes = 2 * half_exposure + 1
    exposure = (first, first + planes)
    windows = [(center - half, center + half + 1) for half in halves]
    windows += _equal_parts(first, planes, num_bins)

    # The light of the exposure is its number of spikes, with fractions at its ends. All are (h, w).
    lights = window_light(stream, [exposure, *windows])
    spikes = lights[0]
    lights_of_windows = lights[1:]
    mean_of_exposure = spikes / planes
    ratios = []
    for light, (start, stop) in zip(lights_of_windows, windows, strict=True):
        mean_of_window = light / (stop - start)
        ratios.append(_ratio(mean_of_window, mean_of_exposure))
    confidence = spikes / (spikes + SPIKES_OF_HALF_CONFIDENCE)
    return np.stack((*ratios, confidence)).astype(np.float32)


def _half_windows_in_planes(
    half_windows: tuple[int | float, ...] | list[int | float], half_exposure: int
) -> tuple[list[int], bool]:
    """Return the option half_windows of `relative` in planes, and whether its values are allowed.

    A value below 1 is a share: 0.28 of a half_exposure of 50 planes is 14 planes. A value of 1 or
    more is a number of planes, so it must be whole.
    """
    halves = []
    are_whole = True
    for half in half_windows:
        if half < 1:
            halves.append(round(half * half_exposure))
        else:
            halves.append(int(half))
            are_whole = are_whole and half % 1 == 0
    return halves, are_whole


def _equal_parts(first: int, planes: int, parts: int) -> list[tuple[int, int]]:
    """Divide the planes first ... first + planes - 1 into equal parts. Returns (start, stop) each.

    A plane that lies in two parts counts in both as a whole: 2 parts of the planes 10 ... 14 are
    the planes 10 ... 12 and 12 ... 14, so (10, 13) and (12, 15).
    """
    windows = []
    for i in range(parts):
        start = i * planes // parts
        stop = math.ceil((i + 1) * planes / parts)
        windows.append((first + start, first + stop))
    return windows


# ---- A model of synapses -----------------------------------------------------------------------


@representation("tfstp", proportional=True)
def tfstp(
    stream: np.ndarray,
    center: int,
    tau_d: float = 5.0,
    tau_f: float = 10.0,
    utilisation: float = 0.05,
    offsets: Numbers = (0,),
) -> np.ndarray:
    """Texture from short-term plasticity: channel i = the firing rate at plane center + offsets[i],
    in (0, 1].

    tau_d, tau_f: in planes; larger values average over more intervals. utilisation: U, in (0, 1).

    Each pixel drives a model of a synapse (Tsodyks and Markram) with two state variables. Between
    two spikes, the resources R recover to 1 with the time constant tau_d, and the utilisation u
    decays to U with the time constant tau_f. A spike uses up u R and raises u by U (1 - u). After
    an interval of dt planes, just before the next spike, the state is

        u' = U + (u + U (1 - u) - U) exp(-dt / tau_f)
        R' = 1 - (1 - R (1 - u)) exp(-dt / tau_d)

    With R' = R, the second equation gives the interval from the state, and 1 / dt is the rate:

        dt = -tau_d ln((1 - R) / (1 - R (1 - u)))

    The rate is at most 1 / (planes since the last spike). A pixel of fewer than two spikes has the
    rate spikes / planes. Only planes 0 ... center + offsets[i] count, so the result lags behind
    motion.
    Source: Zheng et al., CVPR 2021; Zheng et al., IEEE TPAMI 45(7), 2023.
    """
    if tau_d <= 0 or tau_f <= 0 or not 0 < utilisation < 1:
        raise ValueError(
            f"tau_d {tau_d} and tau_f {tau_f} are positive, utilisation {utilisation} is in (0, 1)"
        )
    centers = [center + offset for offset in offsets]
    for time in centers:
        if not 0 <= time < len(stream):
            raise ValueError(f"plane {time} is outside of 0 to {len(stream) - 1}")

    synapses = _Synapses(stream.shape, tau_d, tau_f, utilisation)
    rates = {}  # plane -> firing rate
    for time, plane in enumerate(stream[: max(centers) + 1]):
        synapses.add_plane(time, has_fired=plane > 0)
        if time in centers:
            rates[time] = synapses.rates(time)
    return np.stack([rates[time] for time in centers])


class _Synapses:
    """The model of `tfstp`: one synapse for each pixel. The docstring of `tfstp` has the equations.

    The state of each pixel is (h, w), and changes only where the pixel fires:

        u            the utilisation u
        used         1 - R. R of a dark pixel is so close to 1 that float64 would lose 1 - R
        last_spike   plane of the last spike, -1 before the first
        spikes       number of spikes so far
    """

    def __init__(
        self, shape: tuple[int, ...], tau_d: float, tau_f: float, utilisation: float
    ) -> None:
        """Begin before plane 0. shape: (T, h, w) of the stream."""
        planes, height, width = shape
        self.tau_d = tau_d
        self.U = utilisation
        # exp(-dt / tau) for every interval dt = 1 ... T. The interval dt has the index dt - 1.
        intervals = np.arange(1, planes + 1, dtype=np.float64)
        self.decay_d = np.exp(-intervals / tau_d)
        self.decay_f = np.exp(-intervals / tau_f)
        # At its second spike, a pixel has seen one interval dt. It gets the steady state of this
        # interval: the state that no longer changes if the pixel fires every dt planes. From u' = u
        # and R' = R follow
        #     u = U / (1 - (1 - U) exp(-dt / tau_f))
        #     1 - R = exp(-dt / tau_d) u / (1 - exp(-dt / tau_d) (1 - u))
        steady_u = self.U / (1 - (1 - self.U) * self.decay_f)
        steady_used = self.decay_d * steady_u / (1 - self.decay_d * (1 - steady_u))
        self.steady_u = steady_u  # (T,), of every interval
        self.steady_used = steady_used

        self.u = np.full((height, width), self.U)
        self.used = np.zeros((height, width))
        self.last_spike = np.full((height, width), -1)
        self.spikes = np.zeros((height, width), np.int64)

    def add_plane(self, time: int, has_fired: np.ndarray) -> None:
        """Change the state by one plane. has_fired: bool (h, w). Planes come in order of time."""
        # The pixels that end an interval. An array indexed with it is (n,), for n such pixels.
        ends_interval = has_fired & (self.spikes > 0)
        if ends_interval.any():
            index = time - self.last_spike[ends_interval] - 1  # dt - 1
            u = self.u[ends_interval]
            used = self.used[ends_interval]
            is_second = self.spikes[ends_interval] == 1
            # u' = U + (u + U (1 - u) - U) exp(-dt / tau_f)
            next_u = self.U + (u + self.U * (1 - u) - self.U) * self.decay_f[index]
            # 1 - R' = (1 - R (1 - u)) exp(-dt / tau_d), where 1 - R (1 - u) = (1 - R) (1 - u) + u
            next_used = (used * (1 - u) + u) * self.decay_d[index]
            self.u[ends_interval] = np.where(is_second, self.steady_u[index], next_u)
            self.used[ends_interval] = np.where(is_second, self.steady_used[index], next_used)
        self.last_spike[has_fired] = time
        self.spikes += has_fired

    def rates(self, time: int) -> np.ndarray:
        """Return the firing rate of each pixel at a plane, (h, w) float32.

        time: number of the plane that was added last.
        """
        # dt = -tau_d ln((1 - R) / (1 - R (1 - u))), where `used` is 1 - R. It is at least 1e-300,
        # because the logarithm of 0 is infinite.
        used_after_spike = self.used * (1 - self.u) + self.u  # 1 - R (1 - u)
        interval = -self.tau_d * np.log(np.maximum(self.used, 1e-300) / used_after_spike)
        planes_since_spike = np.maximum(time - self.last_spike, 1)
        rate = 1 / np.maximum(interval, planes_since_spike)
        rate_of_few_spikes = self.spikes / (time + 1)
        return np.where(self.spikes > 1, rate, rate_of_few_spikes).astype(np.float32)

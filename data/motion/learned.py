"""Find the motion within an exposure by a small network, by DIS, or by both.

The weights say what finds the motion (`finder_of`):

    dis      DIS, an optical flow (data/motion/flow.py), also used by `--method joint`
    network  the network alone
    both     in good light DIS alone. In dim light DIS begins its search at the motion of the
             network, and the result is the mean of the two motions.

In good light DIS is at least as good as the network. In dim light each of the two is better at some
pixels: the network hardly follows noise, and DIS finds small things that move by themselves. The
network and DIS both give an expected error for each pixel. In the mean of both motions, the motion
with the smaller expected error counts more.

The fusion "motion" (models/fusion/fusion_motion.py) calls `finder_of`. A plane is one binary
picture (h, w) of the spike camera. RGB frames have H x W pixels.

The network (models/fusion/motion_net.py) sees the spikes in windows of time around the sharp
instant, the time of the wanted sharp frame. The data flow is

    spike_windows     spike planes -> number of spikes and light in each window
    pictures_of       windows -> inputs of the network: two pictures for each window, and the scene
    network           inputs -> a curve in time for each spike pixel
    _on_frame         curves -> shifts of RGB pixels

The light of a window comes from the intervals between spikes. In dim light an interval reaches over
several windows. Then the light is the same in all of these windows, and only the number of spikes
tells when light came. So the network sees both light and number.

What must stay: the inputs of the network, in values and order. weights/motion.pth was trained on
them. In other inputs the network finds a wrong motion, and no error says so.
test_what_the_network_sees_has_the_order_of_its_training notices another order or unit. Whoever
changes the inputs trains the network anew with lab/train_motion_net.py, which also calls
`pictures_of`.

Tests: tests/parts/data/test_learned_motion.py (spikes and light of windows, and what the network
makes of them)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from data.motion.flow import DIM_SPIKES, Motion, median_spikes, motion_times
from data.motion.flow import motion_of as motion_by_dis
from data.motion.recording import Recording, View, mapped
from data.spike.pictures import LUMA, to_display, to_linear
from utils.contract import MotionNetwork

FinderName = Literal["dis", "network", "both"]
# A function that finds a motion: (recording, view, gain) -> motion. The gain (h, w) is the number
# of spikes per plane of each spike pixel at full light.
Finder = Callable[[Recording, View, np.ndarray], Motion]

# Least expected error in the weights of a mean, in pixels. At the sharp instant both errors are 0,
# so both weights would be infinite. Everywhere else errors are far larger than this value.
LEAST_ERROR = 1e-3

# ---- Constants of the inputs of the network, which was trained with these values ----

# An exposure is divided into this many parts of equal length, "elevenths". Each of the windows
# within the exposure is an eleventh long.
ELEVENTHS = 11
# Planes of an eleventh in training: an exposure had 11 x 8 = 88 planes. For another exposure, a
# "usual plane" is 1/88 of the exposure. E.g. in an exposure of 176 planes it is 2 planes long.
USUAL_PLANES = 8
# Sigma in spike pixels by which brightness is smoothed. With a larger value there is less noise,
# but more of the neighbours is mixed in.
BRIGHTNESS_SIGMA = 2.0
# Least mean number of spikes of a pixel in an eleventh. It is a divisor, and in the dark the mean
# may be 0. With 8e-4, 100 pixels have about one spike in an exposure, so nothing can be seen.
LEAST_MEAN = 8e-4
# Least number of spikes in an eleventh around a pixel: the logarithm of 0 is infinite.
LEAST_AROUND = 8e-3
# A dark pixel counts as bright as this share of the mean brightness, and ADDED_VARIANCE is added to
# the variance of its number of spikes. Otherwise a single spike in the dark would look like a large
# change.
LEAST_SHARE_OF_MEAN = 0.1
ADDED_VARIANCE = 0.05
# Limits of the inputs, so that a pixel that always fires does not make them large.
MOST_LIGHT = 9.0  # of light, in multiples of the mean light
MOST_DEVIATIONS = 4.0  # of the change of a number of spikes, in standard deviations
# Factor of the contrast of the blurry frame. Most display values differ from their mean by less
# than 0.5, so that most contrasts are below 1.
CONTRAST = 2.0

# ---- Constants of the network ----

# The network takes inputs whose sides are multiples of this number, because a pixel of its coarsest
# level covers 8 x 8 spike pixels.
MULTIPLE = 8
# Range of the logarithm of the expected error in spike pixels: the error is between 0.007 and 55.
# The training had the same range (lab/train_motion_net.py), so values beyond it mean nothing.
LOG_ERRORS = (-5.0, 4.0)


@dataclass(frozen=True)
class Windows:
    """The spikes of an exposure in K windows of time."""

    counts: np.ndarray  # (K, h, w): number of spikes
    # (K, h, w): light, counted in spikes. A pixel fires when it has collected a fixed amount of
    # light. E.g. a window that has half of an interval between two spikes has the light 0.5.
    light: np.ndarray
    lengths: np.ndarray  # (K,): number of planes of each window
    are_recorded: np.ndarray  # (K,) bool: whether all planes of a window were recorded


# ---- The choice ------------------------------------------------------------------------------


def finder_of(name: FinderName, network: MotionNetwork | None, device: torch.device) -> Finder:
    """Return the function that finds a motion: by DIS, by the network, or by both.

    network: may be None if the name is "dis". device: where the network computes.
    """
    if name == "dis":
        return motion_by_dis
    assert network is not None  # weights that say "network" or "both" have a network

    # The network needs no gain, but all finders are called with the same arguments.
    def by_network(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        return learned_motion(recording, view, network, device)

    def by_both(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        # DIM_SPIKES is 5 spikes in a pixel of median light. With fewer spikes, the mean of both
        # motions gives the better frames. Measured on dim frames of the training videos and stills:
        # the PSNR of the joint solution (data/motion/joint.py) along the mean motion, minus its
        # PSNR along the motion of DIS.
        #
        #     spikes in a pixel of median light    difference of the PSNR
        #     below 5                              +0.1 to +0.3 dB
        #     5 to 18                              down to -0.1 dB
        if median_spikes(recording) >= DIM_SPIKES:
            return motion_by_dis(recording, view, gain)
        of_network = by_network(recording, view, gain)
        of_dis = motion_by_dis(recording, view, gain, start_motion=of_network)
        return mean_motion(of_network, of_dis)

    return by_network if name == "network" else by_both


def mean_motion(a: Motion, b: Motion) -> Motion:
    """Return the mean of two motions at the same times.

    The weight of a shift is 1 / (expected error)^2. E.g. with the expected errors 1 and 2 pixels,
    the first motion has four times the weight. The expected error of the mean is the smaller of the
    two expected errors: 1 pixel. It is not less than that, because the errors of a and b are not
    independent.
    """
    weight_a = 1 / np.maximum(a.errors, LEAST_ERROR) ** 2  # (K, H, W)
    weight_b = 1 / np.maximum(b.errors, LEAST_ERROR) ** 2
    share_a = (weight_a / (weight_a + weight_b))[..., None]  # (K, H, W, 1)
    shifts = share_a * a.shifts + (1 - share_a) * b.shifts
    return Motion(a.times, shifts.astype(np.float32), np.minimum(a.errors, b.errors))


# ---- The motion by the network ---------------------------------------------------------------


@torch.no_grad()
def learned_motion(
    recording: Recording, view: View, network: MotionNetwork, device: torch.device
) -> Motion:
    """Find the motion within an exposure by the network."""
    inputs = network_inputs(recording, view, network)

    # The sides must be multiples of 8. So the last row and column are repeated up to the next
    # multiple. E.g. 250 rows need 6 more rows: -250 % 8 = 6.
    height, width = view.plane
    below = -height % MULTIPLE
    right = -width % MULTIPLE

    def padded(values: np.ndarray) -> torch.Tensor:
        """Return an input (..., h, w) with repeated edges, as a batch of one, on the device."""
        larger = F.pad(torch.from_numpy(values), (0, right, 0, below), mode="replicate")
        return larger[None].to(device)

    # The network returns its result at several resolutions, the finest last.
    levels = network(padded(inputs.pictures), padded(inputs.scene))
    finest = levels[-1]
    # The only exposure of the batch, without the padding. The six coefficients of a curve are x and
    # y of c_1, c_2 and c_3 (`_on_frame`).
    curve = finest.coefficients[0, :, :height, :width]  # (6, h, w)
    log_error = finest.log_error[0, 0, :height, :width]  # (h, w)
    log_error = log_error.clamp(*LOG_ERRORS)
    return _on_frame(recording, view, curve.cpu().numpy(), log_error.cpu().numpy())


def _on_frame(recording: Recording, view: View, curve: np.ndarray, log_error: np.ndarray) -> Motion:
    """Turn the curves of spike pixels into the motion of RGB pixels.

    A point moves from the sharp instant to the time tau by

        q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3

    tau counts halves of an exposure. If the sharp instant is the middle of the exposure, tau is -1
    at its begin and 1 at its end.

    curve: (6, h, w) in spike pixels: x and y of c_1, then of c_2, then of c_3.
    log_error: (h, w), the logarithm of the expected error of q in spike pixels, where the error is
    the mean over the exposure.
    """
    on_plane = view.pixels_on_plane()  # (H, W, 2): x and y of each RGB pixel on the spike plane
    coefficients = []  # c_1, c_2, c_3 at each RGB pixel: (H, W, 2) each
    for x_index in range(0, len(curve), 2):  # 0, 2 and 4; y follows x
        c_x = _interpolated(curve[x_index], on_plane)
        c_y = _interpolated(curve[x_index + 1], on_plane)
        coefficients.append(np.stack((c_x, c_y), axis=-1))

    # The error in RGB pixels. A spike pixel with an area of e.g. 9 RGB pixels is 3 of them wide.
    error_on_plane = _interpolated(np.exp(log_error), on_plane)  # (H, W) in spike pixels
    mean_error = error_on_plane * np.float32(np.sqrt(view.pixel_area))  # (H, W) in RGB pixels

    # The times of `motion_by_dis`, because `mean_motion` needs two motions at the same times.
    times = sorted([0.0, *motion_times(recording)])
    without_motion = mapped(view.to_rgb, on_plane)
    shifts = []  # (H, W, 2) in RGB pixels, for each time
    errors = []  # (H, W) in RGB pixels, for each time
    for time in times:
        tau = np.float32(time / (recording.length / 2))
        q = np.zeros_like(on_plane)  # (H, W, 2) in spike pixels
        for power, c in enumerate(coefficients, start=1):
            q = q + c * tau**power
        # q moves each point on the spike plane. The shift is the way of the point on the frame.
        shifts.append(mapped(view.to_rgb, on_plane + q) - without_motion)
        # The error is 0 at the sharp instant, and is taken to grow in proportion to |tau|. The mean
        # of |tau| over the exposure is 1/2. So with the factor 2, the mean error is `mean_error`.
        errors.append((mean_error * 2 * abs(tau)).astype(np.float32))
    return Motion(np.array(times), np.stack(shifts), np.stack(errors))


def _interpolated(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Interpolate values (h, w) of spike pixels at places (H, W, 2) on the spike plane.

    Returns (H, W) float32. Places beyond the edge get the value of the nearest edge pixel.
    """
    x = places[..., 0]
    y = places[..., 1]
    values = values.astype(np.float32)
    return cv2.remap(values, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


# ---- What the network sees -------------------------------------------------------------------
#
# All functions below belong to the trained weights. The network still runs after a change of them,
# but then its motion is worse, until lab/train_motion_net.py trains it anew. That program calls
# `spike_windows` and `pictures_of` on simulated spikes.


class NetworkInputs(NamedTuple):
    """What the network sees of one exposure.

    The network takes batches: `learned_motion` puts an axis in front of each array.
    """

    # (K, 2, h, w) float32: for each window the relative light, and by how much the number of spikes
    # differs from the expected number.
    pictures: np.ndarray
    # (3, h, w) float32: brightness around each pixel, mean brightness, and the blurry frame.
    scene: np.ndarray


def network_inputs(recording: Recording, view: View, network: MotionNetwork) -> NetworkInputs:
    """Return the pictures of all windows and the scene, from the spikes and the blurry frame."""
    # `network.edges` are the edges of its windows, in elevenths of an exposure after the begin of
    # the sharp plane. The sharp instant is the middle of this plane, half a plane later. Here they
    # become edges in planes, counted from the begin of the stream.
    planes_per_eleventh = recording.length / ELEVENTHS
    begin_of_sharp_plane = recording.sharp - 0.5
    edges = []
    for edge in network.edges:
        edges.append(round(begin_of_sharp_plane + edge * planes_per_eleventh))
    windows = spike_windows(recording.stream, np.array(edges))

    # The luma of the blurry frame in display values, as the spike pixels would see it, (h, w).
    light = view.means(to_linear(recording.blurry) @ LUMA)
    blurry = to_display(np.clip(light, 0, 1))
    return pictures_of(windows, blurry, network.inside, planes_per_eleventh)


def spike_windows(stream: np.ndarray, edges: np.ndarray) -> Windows:
    """Count the spikes and the light of K windows. Each window begins where the last one ends.

    E.g. the edges -2, 0, 4, 6 give three windows: the planes -2 and -1, which were not recorded,
    the planes 0 to 3, and the planes 4 and 5.

    stream: (T, h, w) in {0, 1}. edges: (K + 1,) planes, ascending. Edges may lie outside of the
    stream: planes that were not recorded have no spikes.
    """
    planes = len(stream)
    recorded_edges = np.clip(edges, 0, planes)
    # Count from the begin of the stream to each edge. A window has the difference between the
    # counts at its two edges.
    spikes_before = []  # (h, w) for each edge
    # (h, w) for each edge: the spikes, plus the share of the present interval that has passed. E.g.
    # 3.6 after three spikes and 60 % of the interval up to the fourth spike.
    light_before = []
    for edge in recorded_edges.tolist():
        spikes = stream[:edge].sum(axis=0, dtype=np.int32)
        spikes_before.append(spikes)
        light_before.append(spikes + _passed_share(stream, edge))
    counts = np.diff(np.stack(spikes_before), axis=0).astype(np.float32)  # (K, h, w)
    light = np.diff(np.stack(light_before), axis=0).astype(np.float32)  # (K, h, w)
    lengths = np.diff(edges)
    # In an exposure of few planes a window may have no plane. It tells nothing, so it counts as not
    # recorded.
    are_recorded = (edges[:-1] >= 0) & (edges[1:] <= planes) & (lengths > 0)
    return Windows(counts, light, lengths.astype(np.float32), are_recorded)


def _passed_share(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return the share (h, w) of the present interval that has passed at an edge, in [0, 1).

    The present interval goes from the last spike before the edge to the first spike after it.

    For example, between spikes at the times 4 and 14, a share of 0.6 has passed at the edge 10.

    stream: (T, h, w) in {0, 1}. edge: 0 to T. Plane p lies between the edges p and p + 1, and its
    spikes have the time p + 1. So a spike at the time 10 lies before the edge 10.
    """
    last = _time_of_last_spike(stream, edge)  # at most `edge`
    following = _time_of_next_spike(stream, edge)  # at least `edge` + 1, so never equal to `last`
    return (edge - last) / (following - last)


def _time_of_last_spike(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return the time (h, w) of the last spike before an edge, 0 if there is no spike before it.

    For example, with spikes in the planes 3 and 13, it is 4 at the edge 10.
    """
    if edge == 0:  # no plane lies before the edge, and `argmax` refuses an empty array
        return np.zeros(stream.shape[1:], np.int32)
    has_spike = stream[:edge] > 0  # (edge, h, w)
    # Walk backwards from the edge. `argmax` finds the first plane with a spike, and so counts the
    # planes without a spike. E.g. 6 at the edge 10: the planes 9, 8, 7, 6, 5 and 4.
    empty_planes = has_spike[::-1].argmax(axis=0)
    return np.where(has_spike.any(axis=0), edge - empty_planes, 0)


def _time_of_next_spike(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return the time (h, w) of the first spike after an edge.

    For example, with spikes in the planes 3 and 13, it is 14 at the edge 10. If no spike follows,
    it is one plane after the end of the stream: a spike may come there at the earliest.
    """
    planes = len(stream)
    if edge == planes:  # no plane lies after the edge, and `argmax` refuses an empty array
        return np.full(stream.shape[1:], planes + 1)
    has_spike = stream[edge:] > 0  # (planes - edge, h, w)
    # Walk forwards from the edge. E.g. 3 at the edge 10: the planes 10, 11 and 12 have no spike.
    # The spike is in plane edge + empty_planes, and its time is 1 more.
    empty_planes = has_spike.argmax(axis=0)
    return np.where(has_spike.any(axis=0), edge + empty_planes + 1, planes + 1)


@dataclass(frozen=True)
class _Brightness:
    """The brightness of the spikes, as rates: spikes per usual plane (see `USUAL_PLANES`)."""

    of_windows: np.ndarray  # (K, h, w): the rate in each window
    of_pixels: np.ndarray  # (h, w): the mean rate over the exposure
    around_pixels: np.ndarray  # (h, w): `of_pixels`, smoothed over the neighbours of each pixel
    mean: float  # the mean rate of all pixels, at least LEAST_MEAN in an eleventh


def pictures_of(
    windows: Windows, blurry: np.ndarray, inside: slice, planes_per_eleventh: float
) -> NetworkInputs:
    """Make the inputs of the network. Each is about 1 or less, in good and in dim light.

    Windows that were not recorded are 0 in the pictures.

    blurry: luma (h, w) of the blurry frame in display values.
    inside: which windows divide the exposure.
    planes_per_eleventh: number of planes in an eleventh of the exposure.
    """
    # Times are counted in usual planes here, so that exposures of all lengths look alike: each
    # exposure has 88 usual planes. E.g. an exposure of 176 planes has 16 planes in an eleventh, and
    # 8 usual planes. So a usual plane is 2 planes long.
    planes_per_usual_plane = np.float32(planes_per_eleventh / USUAL_PLANES)
    lengths = (windows.lengths / planes_per_usual_plane)[:, None, None]  # (K, 1, 1)
    brightness = _brightness_of(windows, lengths, inside)

    was_recorded = windows.are_recorded[:, None, None].astype(np.float32)  # (K, 1, 1), 1 or 0
    light = _relative_light(brightness) * was_recorded  # (K, h, w)
    deviations = _deviations(windows.counts, lengths, brightness) * was_recorded  # (K, h, w)
    pictures = np.stack((light, deviations), axis=1)  # (K, 2, h, w)
    scene = _scene(brightness, blurry)  # (3, h, w)
    return NetworkInputs(pictures.astype(np.float32), scene.astype(np.float32))


def _brightness_of(windows: Windows, lengths: np.ndarray, inside: slice) -> _Brightness:
    """Measure the brightness in each window, of each pixel, around each pixel, and in the mean.

    lengths: (K, 1, 1), of the windows in usual planes.
    inside: which windows divide the exposure.
    """
    # A window without any plane has no light. The length 1 only keeps 0 / 0 away.
    divisors = np.where(lengths > 0, lengths, 1)
    # The light up to an edge never falls from one edge to the next. So a rate is negative only by
    # rounding, which `maximum` mends.
    of_windows = np.maximum(windows.light / divisors, 0)  # (K, h, w)

    # The mean over the recorded windows of the exposure. If the sharp instant lies at the edge of
    # what was recorded, there may be no such window: then all windows count.
    is_used = np.zeros(len(of_windows), bool)
    is_used[inside] = windows.are_recorded[inside]
    if not is_used.any():
        is_used[:] = True
    of_pixels = of_windows[is_used].mean(axis=0)  # (h, w)

    # LEAST_MEAN is for an eleventh, and an eleventh has USUAL_PLANES usual planes.
    mean = max(float(of_pixels.mean()), LEAST_MEAN / USUAL_PLANES)
    # The size (0, 0) lets OpenCV choose how far the Gaussian reaches.
    around_pixels = cv2.GaussianBlur(of_pixels, (0, 0), BRIGHTNESS_SIGMA)  # (h, w)
    return _Brightness(of_windows, of_pixels, around_pixels, mean)


def _relative_light(brightness: _Brightness) -> np.ndarray:
    """Return picture 0 (K, h, w): sqrt(light / mean light) - 1.

    0 is the mean light, and -1 is no light. The root brings bright and dark places closer together.
    """
    relative = np.minimum(brightness.of_windows / brightness.mean, MOST_LIGHT)
    return np.sqrt(relative) - 1


def _deviations(counts: np.ndarray, lengths: np.ndarray, brightness: _Brightness) -> np.ndarray:
    """Return picture 1 (K, h, w): (count - expected count) / sqrt(variance).

    0 means that the light of the pixel did not change in the window. A value of 2 means a change of
    two standard deviations, so it is probably no noise.

    counts: (K, h, w), number of spikes in each window. lengths: (K, 1, 1), in usual planes.
    """
    expected = brightness.of_pixels * lengths  # (K, h, w)
    # As for a Poisson distribution, the variance is the expected count. But this count comes from
    # the smoothed rate, because the rate of a single pixel is noisy itself, and 0 in a pixel that
    # never fired.
    least_rate = LEAST_SHARE_OF_MEAN * brightness.mean
    rate = np.maximum(brightness.around_pixels, least_rate)  # (h, w)
    variance = rate * lengths + ADDED_VARIANCE  # (K, h, w)
    deviations = (counts - expected) / np.sqrt(variance)
    return np.clip(deviations, -MOST_DEVIATIONS, MOST_DEVIATIONS)


def _scene(brightness: _Brightness, blurry: np.ndarray) -> np.ndarray:
    """Return the channels (3, h, w) that all windows share.

        0    logarithm of the number of spikes in an eleventh, around each pixel
        1    logarithm of the number of spikes in an eleventh, in the mean of all pixels
        2    contrast of the blurry frame: by how much it differs from its mean

    blurry: luma (h, w) in display values.
    """
    # A rate times USUAL_PLANES is a number of spikes in an eleventh.
    spikes_around = np.maximum(brightness.around_pixels * USUAL_PLANES, LEAST_AROUND)  # (h, w)
    log_around = np.log(spikes_around)
    log_mean = np.full_like(log_around, np.log(brightness.mean * USUAL_PLANES))
    contrast = (blurry - blurry.mean()) * CONTRAST
    return np.stack((log_around, log_mean, contrast))

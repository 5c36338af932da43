"""Find the motion within an exposure by a small network, by DIS, or by both.

There are three ways to find a motion (`finder_of`), and the weights say which one is used:

    dis      optical flow (`data.motion.flow`), as for `--method joint`
    network  the network alone
    both     in dim light the mean of two motions: that of the network, and that of DIS, whose
             search begins at the motion of the network; in good light DIS alone

In good light DIS is at least as good as the network. In dim light each of the two is better at some
pixels: the network hardly follows noise, and DIS finds small things that move by themselves. The
network and DIS both give an expected error for each pixel, and the mean weighs by these errors.

The network (models/fusion/motion_net.py) sees the spikes in windows of time around the sharp
instant. The data flow is

    spike_windows     spike planes -> number of spikes and light in each window
    pictures_of       windows -> inputs of the network: two pictures for each window, and the scene
    network           inputs -> a curve in time for each spike pixel
    _on_frame         curves -> shifts of RGB pixels

The light of a window comes from the intervals between spikes. In dim light an interval reaches over
several windows, so only the number of spikes still tells when light came.

The inputs belong to the trained weights of the network: `pictures_of` must stay as it is, down to
its constants.

Tests: tests/parts/data/test_learned_motion.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from data.motion.flow import DIM, Motion, median_spikes, motion_of, motion_times
from data.motion.recording import Recording, View, mapped
from data.spike.simulate import LUMA, to_display, to_linear
from utils.contract import MotionNetwork

FinderName = Literal["dis", "network", "both"]
# Finds a motion from a recording, its view, and the gain (h, w) of the spike pixels.
Finder = Callable[[Recording, View, np.ndarray], Motion]

# Least expected error in the weights of a mean, in pixels. At the sharp instant errors are 0, so
# weights would be infinite.
LEAST_ERROR = 1e-3

# ---- Constants of the inputs of the network, which was trained with these values ----

# An exposure is divided into so many parts of equal length. Such a part is an "eleventh" here.
ELEVENTHS = 11
# Planes of an eleventh in training: an exposure had 11 x 8 = 88 planes.
USUAL_PLANES = 8
SMOOTH = 2.0  # sigma in spike pixels of the brightness around a pixel
# Least mean spikes in an eleventh: relative light divides by the mean, which may be 0 in the dark.
LEAST_MEAN = 8e-4
# Least spikes in an eleventh around a pixel: the logarithm of 0 is infinite.
LEAST_AROUND = 8e-3
# In the expected noise, a pixel is at least this share of the mean as bright ...
LEAST_SHARE_OF_MEAN = 0.1
# ... and this variance is added, so that a number of spikes is never divided by almost 0.
ADDED_VARIANCE = 0.05
# Limits of the inputs: light in multiples of the mean, and by how many standard deviations the
# number of spikes of a window may differ from the expected number.
MOST_LIGHT = 9.0
MOST_DEVIATIONS = 4.0
CONTRAST = 2.0  # factor of the contrast of the blurry frame

# ---- Constants of the network ----

# Sides of the inputs are multiples of this: the size of a pixel of its coarsest level.
MULTIPLE = 8
# Range of the logarithm of the expected error in spike pixels: exp is between 0.007 and 55.
LOG_ERRORS = (-5.0, 4.0)


@dataclass(frozen=True)
class Windows:
    """The spikes of an exposure in K windows of time."""

    counts: np.ndarray  # (K, h, w): number of spikes
    # (K, h, w): light in spikes. A pixel fires when it has collected a fixed amount of light. So
    # half of an interval between two spikes is 0.5.
    light: np.ndarray
    lengths: np.ndarray  # (K,): number of planes of each window
    are_recorded: np.ndarray  # (K,) bool: whether all planes of a window were recorded


# ---- The choice ------------------------------------------------------------------------------


def finder_of(name: FinderName, network: MotionNetwork | None, device: torch.device) -> Finder:
    """Return the function that finds a motion. network: None if the name is "dis"."""
    if name == "dis":
        return motion_of
    assert network is not None

    def by_network(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        return learned_motion(recording, view, network, device)

    def by_both(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        # In dim light the joint solution along the mean motion gains 0.1 to 0.3 dB more than along
        # DIS alone, on dim frames of the training videos and stills. With 5 to 18 spikes it gains
        # up to 0.1 dB less.
        if median_spikes(recording) >= DIM:
            return motion_of(recording, view, gain)
        motion = by_network(recording, view, gain)
        return mean_motion(motion, motion_of(recording, view, gain, begin=motion))

    return by_network if name == "network" else by_both


def mean_motion(a: Motion, b: Motion) -> Motion:
    """Return the mean of two motions at the same times.

    The weight of a shift is 1 / (expected error)^2. The expected error of the mean is the smaller
    of the two expected errors. It is not smaller still, because the errors of a and b are not
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
    pictures, scene = network_inputs(recording, view, network)

    # Repeat the last row and column up to the next multiple. E.g. 250 rows need 6 more: -250 % 8.
    height, width = view.plane
    below = -height % MULTIPLE
    right = -width % MULTIPLE

    def padded(values: np.ndarray) -> torch.Tensor:
        """Return an input with an axis for the batch, on the device."""
        larger = F.pad(torch.from_numpy(values), (0, right, 0, below), mode="replicate")
        return larger[None].to(device)

    levels = network(padded(pictures), padded(scene))
    finest = levels[-1]
    curve = finest.coefficients[0, :, :height, :width].cpu().numpy()
    log_error = finest.log_error[0, 0, :height, :width].clamp(*LOG_ERRORS).cpu().numpy()
    return _on_frame(recording, view, curve, log_error)


def _on_frame(recording: Recording, view: View, curve: np.ndarray, log_error: np.ndarray) -> Motion:
    """Turn the curves of spike pixels into the motion of RGB pixels.

    curve: (6, h, w) in spike pixels: x and y of c_1, then of c_2, then of c_3, with the
    displacement q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3.
    log_error: (h, w), the logarithm of the expected error in the mean over the exposure.
    """
    # Interpolate the values of spike pixels to the RGB pixels.
    on_plane = view.spike_places()  # (H, W, 2): where the RGB pixels lie on the spike plane
    x = on_plane[..., 0]
    y = on_plane[..., 1]
    values = np.concatenate((curve, np.exp(log_error)[None])).astype(np.float32)  # (7, h, w)
    on_frame = []  # (H, W) of each value
    for value in values:
        on_frame.append(cv2.remap(value, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))

    # The error in RGB pixels. A spike pixel is as wide as the root of its area in RGB pixels.
    area = abs(np.linalg.det(view.to_rgb[:2, :2]))
    mean_error = on_frame[-1] * np.float32(np.sqrt(area))  # (H, W)

    coefficients = []  # c_1, c_2, c_3: (H, W, 2) each
    for index in range(0, len(curve), 2):
        coefficients.append(np.stack(on_frame[index : index + 2], axis=-1))
    without_motion = mapped(view.to_rgb, on_plane)
    times = sorted([0.0, *motion_times(recording)])
    shifts = []
    errors = []
    for time in times:
        tau = np.float32(time / (recording.length / 2))
        # q = c_1 tau + c_2 tau^2 + c_3 tau^3
        q = np.zeros_like(on_plane)
        for number, c in enumerate(coefficients, 1):
            q = q + c * tau**number
        shifts.append(mapped(view.to_rgb, on_plane + q) - without_motion)
        # The error grows with the time from the sharp instant, in proportion to |tau|. The mean of
        # |tau| over the exposure is 1/2, so the mean of 2 |tau| is 1. So the mean of these errors
        # over the exposure is `mean_error`.
        errors.append((mean_error * 2 * abs(tau)).astype(np.float32))
    return Motion(np.array(times), np.stack(shifts), np.stack(errors))


# ---- What the network sees -------------------------------------------------------------------


def network_inputs(
    recording: Recording, view: View, network: MotionNetwork
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures (K, 2, h, w) of all windows, and the scene (3, h, w)."""
    # The network gives the edges of its windows in elevenths of an exposure. They count from the
    # begin of the sharp plane. The sharp instant is the middle of this plane, half a plane later.
    planes_per_eleventh = recording.length / ELEVENTHS
    begin_of_sharp_plane = recording.sharp - 0.5
    edges = np.array(
        [round(begin_of_sharp_plane + edge * planes_per_eleventh) for edge in network.edges]
    )
    windows = spike_windows(recording.stream, edges)

    # The luma of the blurry frame in display values, as the spike pixels would see it, (h, w).
    light = view.means(to_linear(recording.blurry) @ LUMA)
    blurry = to_display(np.clip(light, 0, 1))
    return pictures_of(windows, blurry, network.inside, planes_per_eleventh)


def spike_windows(stream: np.ndarray, edges: np.ndarray) -> Windows:
    """Count the spikes and the light of windows, each of which begins where the last one ends.

    stream: (T, h, w) in {0, 1}. edges: (K + 1,) planes, ascending. Edges may lie outside of the
    stream: planes that were not recorded have no spikes.
    """
    planes = len(stream)
    recorded_edges = np.clip(edges, 0, planes)
    # Count from the begin of the stream to each edge. A window has the difference of two edges.
    spikes_before = []  # (h, w) for each edge
    # (h, w) for each edge: the spikes, plus the share of the present interval that has passed. E.g.
    # 3.6 after three spikes and 60 % of the interval up to the fourth spike.
    light_before = []
    for edge in recorded_edges.tolist():
        spikes = stream[:edge].sum(axis=0, dtype=np.int32)
        spikes_before.append(spikes)
        light_before.append(spikes + _passed_share(stream, edge))
    counts = np.diff(np.stack(spikes_before), axis=0).astype(np.float32)
    light = np.diff(np.stack(light_before), axis=0).astype(np.float32)
    are_recorded = (edges[:-1] >= 0) & (edges[1:] <= planes)
    return Windows(counts, light, np.diff(edges).astype(np.float32), are_recorded)


def _passed_share(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return which share (h, w) of the interval around an edge has passed, in [0, 1).

    For example, between spikes at the times 4 and 14, a share of 0.6 has passed at the edge 10.
    The interval before the first spike begins at 0. The interval after the last spike ends one
    plane after the stream.
    """
    planes = len(stream)
    fired_before = stream[:edge] > 0
    fired_after = stream[edge:] > 0

    # The time of the last spike before the edge. A spike in plane p has the time p + 1. `argmax`
    # finds the first plane with a spike, here counted backwards: 0 is the plane edge - 1. So the
    # spike is in plane edge - 1 - planes_back, and its time is edge - planes_back.
    last = np.zeros(stream.shape[1:], np.int32)
    if edge > 0:
        planes_back = fired_before[::-1].argmax(axis=0)
        last = np.where(fired_before.any(axis=0), edge - planes_back, 0)

    # The time of the first spike after the edge. `planes_on` counts forwards from the plane `edge`.
    # So the spike is in plane edge + planes_on, and its time is 1 more.
    end_of_last_interval = planes + 1
    following = np.full(stream.shape[1:], end_of_last_interval)
    if edge < planes:
        planes_on = fired_after.argmax(axis=0)
        following = np.where(fired_after.any(axis=0), edge + planes_on + 1, end_of_last_interval)
    # An interval has at least one plane, because last <= edge < following. So `maximum` changes
    # nothing, and only excludes a division by 0.
    return (edge - last) / np.maximum(following - last, 1)


def pictures_of(
    windows: Windows, blurry: np.ndarray, inside: slice, planes_per_eleventh: float
) -> tuple[np.ndarray, np.ndarray]:
    """Make the inputs of the network, each about 1 or less, whatever the light.

    blurry: luma (h, w) of the blurry frame in display values. inside: the windows of the exposure.
    planes_per_eleventh: planes of an eleventh of the exposure.
    Returns the pictures (K, 2, h, w) and the scene (3, h, w). Windows that were not recorded are 0.
    """
    # Rates are spikes per usual plane: an exposure of any length counts as one of 88 planes, which
    # is the length in training. In usual planes, an eleventh has the length USUAL_PLANES. E.g. an
    # exposure of 176 planes has 16 planes per eleventh, so a usual plane is 2 planes long.
    planes_per_usual_plane = np.float32(planes_per_eleventh / USUAL_PLANES)
    lengths = (windows.lengths / planes_per_usual_plane)[:, None, None]  # (K, 1, 1)
    # The light up to an edge never falls from one edge to the next, so no rate is negative.
    # `maximum` only excludes that rounding makes one negative.
    rates = np.maximum(windows.light / lengths, 0)  # (K, h, w)

    # The mean rate over the exposure. A sharp instant at the edge of what was recorded may leave
    # no recorded window: then all windows count.
    is_used = np.zeros(len(rates), bool)
    is_used[inside] = windows.are_recorded[inside]
    used_rates = rates[is_used] if is_used.any() else rates
    rate = used_rates.mean(axis=0)  # (h, w)
    # LEAST_MEAN is for an eleventh, and an eleventh has USUAL_PLANES usual planes.
    mean = max(float(rate.mean()), LEAST_MEAN / USUAL_PLANES)
    around = cv2.GaussianBlur(rate, (0, 0), SMOOTH)  # (h, w)

    # Picture 0: the root of relative light, which brings bright and dark places closer together. 0
    # is the mean light, and -1 is no light.
    light = np.sqrt(np.minimum(rates / mean, MOST_LIGHT)) - 1
    # Picture 1: by how many standard deviations the number of spikes differs from the number that
    # the mean rate of the pixel lets expect. As for a Poisson distribution, the variance is the
    # expected number. Here this number comes from the smoothed rate `around`, because the rate of a
    # single pixel is noisy itself, and 0 in a pixel that never fired.
    expected = rate * lengths  # (K, h, w)
    variance = np.maximum(around, LEAST_SHARE_OF_MEAN * mean) * lengths + ADDED_VARIANCE
    deviations = (windows.counts - expected) / np.sqrt(variance)
    deviations = np.clip(deviations, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    recorded = windows.are_recorded[:, None, None].astype(np.float32)  # 1 or 0
    pictures = np.stack((light * recorded, deviations * recorded), axis=1)

    # The scene: logarithms of the spikes in an eleventh, around the pixel and in the mean; and the
    # blurry frame. A rate times USUAL_PLANES is a number of spikes in an eleventh.
    log_around = np.log(np.maximum(around * USUAL_PLANES, LEAST_AROUND))
    log_mean = np.full_like(around, np.log(mean * USUAL_PLANES))
    contrast = (blurry - blurry.mean()) * CONTRAST
    scene = np.stack((log_around, log_mean, contrast))
    return pictures.astype(np.float32), scene.astype(np.float32)

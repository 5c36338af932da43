"""Motion within an exposure by a small network, and the choice between it and DIS.

The network (models/fusion/motion_net.py) sees the spikes in windows of time around the sharp
instant. Each window has two pictures: its light, from the intervals between spikes, and its number
of spikes. In dim light an interval reaches over several windows, so only the number still tells
when light came. The network gives a curve in time for each spike pixel. This module turns the
curves into shifts of RGB pixels.

There are three ways to find a motion (`finder_of`), and the weights say which one is used:

    dis      `data.motion.flow`, as for `--method joint`
    network  the network alone
    both     in dim light the mean of the network and of DIS that begins at the motion of the
             network; else DIS alone

DIS is as good or better where light is good. In dim light each of both is better somewhere: the
network hardly follows noise, and DIS finds small things that move by themselves. Both expect an
error of each pixel, so each counts by its expected error in the mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from data.motion.flow import Motion, median_spikes, motion_of, motion_times
from data.motion.recording import Recording, View, mapped
from data.spike.simulate import LUMA, to_display, to_linear
from utils.contract import MotionNetwork

FinderName = Literal["dis", "network", "both"]
# Takes a recording, its view and the gain of the spike pixels.
Finder = Callable[[Recording, View, np.ndarray], Motion]

# Light is dim if a pixel of median light has fewer spikes than this in an exposure. There the joint
# solution along the mean of both gains 0.1 to 0.3 dB more than along DIS alone, on dim frames of
# the training videos and stills. Along spikes of 5 to 18 it gains up to 0.1 dB less.
DIM = 5.0
LEAST_ERROR = 1e-3  # pixels; it keeps weights finite at the sharp instant, where errors are 0

# Of the inputs of the network. It was trained with them, so they belong to its weights.
USUAL_PLANES = 8  # planes of an eleventh of the exposure in its training
ELEVENTHS = 11
SMOOTH = 2.0  # sigma in spike pixels of the brightness around a pixel
LEAST_MEAN = 8e-4  # spikes in an eleventh; it keeps the light of a dark frame finite
LEAST_AROUND = 8e-3  # spikes in an eleventh around a pixel; its logarithm is an input
LEAST_PART = 0.1  # a pixel counts as at least this share as bright as the mean
MOST_LIGHT = 9.0  # times the mean
MOST_NOISE = 4.0  # deviations by which a number of spikes may differ from the expected one
LEAST_VARIANCE = 0.05  # of a number of spikes
CONTRAST = 2.0  # by which the blurry frame is enlarged
MULTIPLE = 8  # sides of the pictures that the network takes are multiples of it
# Range of the logarithm of the expected error in spike pixels.
LOG_ERRORS = (-5.0, 4.0)


@dataclass(frozen=True)
class Windows:
    """The spikes of an exposure in windows of time.

    counts: (K, h, w) number of spikes. light: (K, h, w) thresholds that passed, by the intervals
    between spikes. lengths: (K,) planes of each window. are_recorded: (K,) whether all planes of a
    window were recorded.
    """

    counts: np.ndarray
    light: np.ndarray
    lengths: np.ndarray
    are_recorded: np.ndarray


# ---- The choice ------------------------------------------------------------------------------


def finder_of(name: FinderName, network: MotionNetwork | None, device: torch.device) -> Finder:
    """Return what finds a motion. network: None if the name is "dis", which needs none."""
    if name == "dis":
        return motion_of
    assert network is not None

    def by_network(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        return learned_motion(recording, view, network, device)

    def by_both(recording: Recording, view: View, gain: np.ndarray) -> Motion:
        if median_spikes(recording) >= DIM:
            return motion_of(recording, view, gain)
        motion = by_network(recording, view, gain)
        return mean_motion(motion, motion_of(recording, view, gain, begin=motion))

    return by_network if name == "network" else by_both


def mean_motion(a: Motion, b: Motion) -> Motion:
    """Return the mean of two motions at the same times. Each counts by 1 / (expected error)^2.

    The expected error is the smaller one of both, because their errors are not independent.
    """
    weight_a = 1 / np.maximum(a.errors, LEAST_ERROR) ** 2
    weight_b = 1 / np.maximum(b.errors, LEAST_ERROR) ** 2
    share = (weight_a / (weight_a + weight_b))[..., None]
    shifts = share * a.shifts + (1 - share) * b.shifts
    return Motion(a.times, shifts.astype(np.float32), np.minimum(a.errors, b.errors))


# ---- The motion by the network ---------------------------------------------------------------


@torch.no_grad()
def learned_motion(
    recording: Recording, view: View, network: MotionNetwork, device: torch.device
) -> Motion:
    """Find the motion within an exposure by the network."""
    pictures, scene = network_inputs(recording, view, network)
    height, width = view.plane
    below = -height % MULTIPLE
    right = -width % MULTIPLE

    def put(values: np.ndarray) -> torch.Tensor:
        padded = F.pad(torch.from_numpy(values), (0, right, 0, below), mode="replicate")
        return padded[None].to(device)

    finest = network(put(pictures), put(scene))[-1]
    curve = finest.coefficients[0, :, :height, :width].cpu().numpy()
    log_error = finest.log_error[0, 0, :height, :width].clamp(*LOG_ERRORS).cpu().numpy()
    return _on_frame(recording, view, curve, log_error)


def _on_frame(recording: Recording, view: View, curve: np.ndarray, log_error: np.ndarray) -> Motion:
    """Turn the curves of spike pixels into the motion of RGB pixels.

    curve: coefficients (2 D, h, w) in spike pixels; x and y of each power of tau, in turn.
    log_error: (h, w), the logarithm of the expected error in the mean over the exposure.
    """
    places = view.spike_places()  # (H, W, 2), of the RGB pixels on the spike plane
    x, y = places[..., 0], places[..., 1]
    values = np.concatenate((curve, np.exp(log_error)[None])).astype(np.float32)
    on_frame = []
    for value in values:
        on_frame.append(cv2.remap(value, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
    # RGB pixels in a spike pixel: the root of the area.
    side = np.sqrt(abs(np.linalg.det(view.to_rgb[:2, :2])))
    error = on_frame[-1] * np.float32(side)

    here = mapped(view.to_rgb, places)
    times = sorted([0.0, *motion_times(recording)])
    shifts, errors = [], []
    for time in times:
        tau = np.float32(time / (recording.length / 2))
        q = np.zeros_like(places)
        for power in range(len(curve) // 2):
            c = np.stack(on_frame[2 * power : 2 * power + 2], axis=-1)  # x and y
            q = q + c * tau ** (power + 1)
        shifts.append(mapped(view.to_rgb, places + q) - here)
        # The mean of |tau| over the exposure is 1/2, so this has the mean that was expected.
        errors.append((error * 2 * abs(tau)).astype(np.float32))
    return Motion(np.array(times), np.stack(shifts), np.stack(errors))


# ---- What the network sees -------------------------------------------------------------------


def network_inputs(
    recording: Recording, view: View, network: MotionNetwork
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures (K, 2, h, w) of all windows, and the scene (3, h, w)."""
    unit = recording.length / ELEVENTHS  # planes
    # Half a plane before the sharp instant, which is the middle of its plane.
    middle = recording.sharp - 0.5
    edges = np.array([round(middle + edge * unit) for edge in network.edges])
    windows = spike_windows(recording.stream, edges)
    blurry = view.means(to_linear(recording.blurry) @ LUMA)
    return pictures_of(windows, to_display(np.clip(blurry, 0, 1)), network.inside, unit)


def spike_windows(stream: np.ndarray, edges: np.ndarray) -> Windows:
    """Count the spikes and the light of windows, of which each begins where the last one ends.

    stream: (T, h, w) in {0, 1}. edges: (K + 1,) planes, ascending. Planes that were not recorded
    count as none.
    """
    planes = len(stream)
    inside = np.clip(edges, 0, planes)
    fired = []  # number of spikes before each edge
    thresholds = []  # the same, with the part of the interval that an edge lies in
    for edge in inside.tolist():
        before = stream[:edge].sum(axis=0, dtype=np.int32)
        fired.append(before)
        thresholds.append(before + _passed(stream, edge))
    counts = np.diff(np.stack(fired), axis=0).astype(np.float32)
    light = np.diff(np.stack(thresholds), axis=0).astype(np.float32)
    are_recorded = (edges[:-1] >= 0) & (edges[1:] <= planes)
    return Windows(counts, light, np.diff(edges).astype(np.float32), are_recorded)


def _passed(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return which share (h, w) of the interval around an edge has passed, in [0, 1).

    An interval before the first spike begins at 0, and one after the last spike ends a plane after
    the stream.
    """
    planes = len(stream)
    before, after = stream[:edge] > 0, stream[edge:] > 0
    # A spike in plane p ends its interval at p + 1.
    last = np.zeros(stream.shape[1:], np.int32)
    if edge:
        from_edge = before[::-1].argmax(axis=0)  # 0 for the plane before the edge
        last = np.where(before.any(axis=0), edge - from_edge, 0)
    following = np.full(stream.shape[1:], planes + 1)
    if edge < planes:
        following = np.where(after.any(axis=0), edge + after.argmax(axis=0) + 1, planes + 1)
    return (edge - last) / np.maximum(following - last, 1)


def pictures_of(
    windows: Windows, blurry: np.ndarray, inside: slice, unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Make the inputs of the network, each about 1 or less, whatever the light.

    blurry: luma (h, w) of the blurry frame in display values. inside: the windows of the exposure.
    unit: planes of an eleventh of the exposure.
    Returns the pictures (K, 2, h, w) and the scene (3, h, w). Windows that were not recorded are 0.
    """
    to_usual = unit / USUAL_PLANES  # exposures of other lengths are counted as one of 88 planes
    lengths = (windows.lengths / np.float32(to_usual))[:, None, None]
    rates = np.maximum(windows.light / lengths, 0)
    is_used = np.zeros(len(rates), bool)
    is_used[inside] = windows.are_recorded[inside]
    # A sharp instant at the edge of what was recorded may leave no window.
    rate = rates[is_used if is_used.any() else slice(None)].mean(axis=0)
    mean = max(float(rate.mean()), LEAST_MEAN / USUAL_PLANES)
    around = cv2.GaussianBlur(rate, (0, 0), SMOOTH)

    light = np.sqrt(np.minimum(rates / mean, MOST_LIGHT)) - 1
    variance = np.maximum(around, LEAST_PART * mean) * lengths + LEAST_VARIANCE
    more = (windows.counts - rate * lengths) / np.sqrt(variance)
    more = np.clip(more, -MOST_NOISE, MOST_NOISE)
    recorded = windows.are_recorded[:, None, None].astype(np.float32)
    pictures = np.stack((light * recorded, more * recorded), axis=1)

    bright = np.log(np.maximum(around * USUAL_PLANES, LEAST_AROUND))
    of_all = np.full_like(around, np.log(mean * USUAL_PLANES))
    scene = np.stack((bright, of_all, (blurry - blurry.mean()) * CONTRAST))
    return pictures.astype(np.float32), scene.astype(np.float32)

"""Make the inputs of the network of motion from the spikes and the blurry frame of an exposure.

The network (models/fusion/motion_net.py) sees the spikes in K windows of time around the sharp
instant, the time of the wanted sharp frame. It gets pictures (h, w) on the grid of the spike
camera:

    of each window     picture 0    sqrt(light / mean light) - 1               0: the mean light
                       picture 1    (count - expected count) / sqrt(variance)  0: no change
    of the exposure    scene 0      logarithm of the brightness around each pixel
                       scene 1      logarithm of the mean brightness
                       scene 2      contrast of the blurry frame

The pictures of the windows have values of about 1, in good and in dim light. spike_windows.py says
what the count and the light of a window are.

What must stay: the values of all inputs and their order, because weights/motion.pth was trained on
them. With other inputs the network finds a wrong motion, and no error says so.
test_what_the_network_sees_has_the_order_of_its_training notices another order or unit. If you
change the inputs, train the network anew with lab/train_motion_net.py, which calls `pictures_of` on
simulated spikes.

Tests: tests/parts/data/test_network_inputs.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from data.motion.exposure import Recording
from data.motion.spike_windows import Windows, spike_windows
from data.motion.view import View
from data.spike.pictures import LUMA, to_display, to_linear
from utils.contract import MotionNetwork

# The exposures of the training had 88 planes, in 11 windows of 8 planes (a plane is one binary
# picture of the spike camera). An exposure with another number of planes must look alike to the
# network. So time is not measured in planes, but in two parts of the exposure:
#
#     unit           part of the exposure    in the training    in an exposure of 176 planes
#     eleventh       1/11                    8 planes           16 planes
#     usual plane    1/88                    1 plane             2 planes
#
# A window within the exposure is an eleventh long. A rate is a number of spikes per usual plane.
ELEVENTHS = 11  # number of elevenths in an exposure
USUAL_PLANES = 8  # number of usual planes in an eleventh


class NetworkInputs(NamedTuple):
    """What the network sees of one exposure.

    The network takes batches: `motion_by_network` (learned.py) puts an axis in front of each array.
    """

    pictures: np.ndarray  # (K, 2, h, w) float32: picture 0 and picture 1 of each window
    scene: np.ndarray  # (3, h, w) float32, see `_scene`


def network_inputs(recording: Recording, view: View, network: MotionNetwork) -> NetworkInputs:
    """Return the inputs of the network for an exposure.

    recording: the blurry frame and the spikes. view: where the spike pixels lie on the frame.
    network: its `edges` and `inside` (models/fusion/motion_net.py) say which windows of time the
    network sees, and which of these windows lie within the exposure.

    If the edges are counted from another plane, test_the_windows_outside_of_a_clip_are_empty fails.
    """
    # The edges of the windows, in planes after the start of the stream. `network.edges` has the
    # edges in elevenths after the start of the sharp plane. E.g. in an exposure of 88 planes whose
    # sharp plane is plane 50, the edge 1.5 becomes 50 + 1.5 * 8 = 62.
    planes_per_eleventh = recording.length / ELEVENTHS
    begin_of_sharp_plane = recording.sharp - 0.5  # the sharp instant is the middle of this plane
    edges = []
    for edge in network.edges:
        edges.append(round(begin_of_sharp_plane + edge * planes_per_eleventh))
    windows = spike_windows(recording.stream, np.array(edges))

    # The blurry frame as the spike pixels would see it: its luma in display values, (h, w).
    light = view.means(to_linear(recording.blurry) @ LUMA)
    blurry = to_display(np.clip(light, 0, 1))
    return pictures_of(windows, blurry, network.inside, planes_per_eleventh)


def pictures_of(
    windows: Windows, blurry: np.ndarray, inside: slice, planes_per_eleventh: float
) -> NetworkInputs:
    """Make the inputs of the network. Windows that were not recorded are 0 in the pictures.

    blurry: luma (h, w) of the blurry frame in display values.
    inside: which windows lie within the exposure.
    planes_per_eleventh: number of planes in an eleventh of the exposure.
    """
    planes_per_usual_plane = np.float32(planes_per_eleventh / USUAL_PLANES)
    lengths = (windows.lengths / planes_per_usual_plane)[:, None, None]  # (K, 1, 1)
    brightness = _brightness_of(windows, lengths, inside)

    was_recorded = windows.are_recorded[:, None, None].astype(np.float32)  # (K, 1, 1), 1 or 0
    light = _relative_light(brightness) * was_recorded  # (K, h, w)
    deviations = _deviations(windows.counts, lengths, brightness) * was_recorded  # (K, h, w)
    pictures = np.stack((light, deviations), axis=1)  # (K, 2, h, w)
    scene = _scene(brightness, blurry)  # (3, h, w)
    return NetworkInputs(pictures.astype(np.float32), scene.astype(np.float32))


# ---- The brightness, from which all inputs are made --------------------------------------------


@dataclass(frozen=True)
class _Brightness:
    """The brightness of the spikes, as rates: spikes per usual plane."""

    of_windows: np.ndarray  # (K, h, w): the rate in each window
    of_pixels: np.ndarray  # (h, w): the mean rate over the exposure
    around_pixels: np.ndarray  # (h, w): `of_pixels`, smoothed over the neighbours of each pixel
    mean: float  # the mean rate of all pixels, at least LEAST_MEAN / USUAL_PLANES


# Sigma in spike pixels by which brightness is smoothed. With a larger value there is less noise,
# but the brightness of a pixel has more of the brightness of its neighbours.
BRIGHTNESS_SIGMA = 2.0
# Least mean number of spikes of a pixel in an eleventh (8 usual planes). The mean is a divisor, and
# in the dark it may be 0. With so few spikes nothing can be seen anyway, because 100 pixels have
# about one spike in an exposure (100 * 11 * 8e-4 = 0.88).
LEAST_MEAN = 8e-4


def _brightness_of(windows: Windows, lengths: np.ndarray, inside: slice) -> _Brightness:
    """Measure the brightness in each window, of each pixel, around each pixel, and in the mean.

    lengths: (K, 1, 1), of the windows in usual planes. (A usual plane is 1/88 of an exposure, and
    an eleventh of an exposure has 8 usual planes.)
    inside: which windows lie within the exposure.
    """
    # A window without planes has no light. Divide it by 1, because 0 / 0 would be NaN.
    divisors = np.where(lengths > 0, lengths, 1)
    # A rate is at least 0, but rounding errors may make it e.g. -1e-9. `maximum` sets it to 0.
    of_windows = np.maximum(windows.light / divisors, 0)  # (K, h, w)

    # Take the mean over the windows within the exposure that were recorded. There may be no such
    # window, e.g. if the sharp instant lies at the first or the last recorded plane. In this case
    # take the mean over all windows.
    is_used = np.zeros(len(of_windows), bool)
    is_used[inside] = windows.are_recorded[inside]
    if not is_used.any():
        is_used[:] = True
    of_pixels = of_windows[is_used].mean(axis=0)  # (h, w)

    mean = max(float(of_pixels.mean()), LEAST_MEAN / USUAL_PLANES)
    # The size (0, 0) lets OpenCV choose how far the Gaussian reaches.
    around_pixels = cv2.GaussianBlur(of_pixels, (0, 0), BRIGHTNESS_SIGMA)  # (h, w)
    return _Brightness(of_windows, of_pixels, around_pixels, mean)


# ---- The pictures and the scene ----------------------------------------------------------------

# Limits of both pictures, so that the values of a hot pixel are not huge. All numbers of this
# section are the numbers of the training, so another number needs a new training.
MOST_LIGHT = 9.0  # limit of the light, in multiples of the mean light
MOST_DEVIATIONS = 4.0  # limit of the change of a count, in standard deviations


def _relative_light(brightness: _Brightness) -> np.ndarray:
    """Return picture 0 (K, h, w): sqrt(light / mean light) - 1.

    0 is the mean light, and -1 is no light. The root brings bright and dark places closer together.
    """
    relative = np.minimum(brightness.of_windows / brightness.mean, MOST_LIGHT)
    return np.sqrt(relative) - 1


# The next two numbers make the variance of a count larger in the dark. Without them, a single spike
# in the dark would look like a large change.
LEAST_SHARE_OF_MEAN = 0.1  # least rate in the variance, as a share of the mean rate of all pixels
ADDED_VARIANCE = 0.05  # added to the variance of each count


def _deviations(counts: np.ndarray, lengths: np.ndarray, brightness: _Brightness) -> np.ndarray:
    """Return picture 1 (K, h, w): (count - expected count) / sqrt(variance).

    0 means that the light of the pixel did not change in the window. A value of 2 means a change of
    two standard deviations, which is probably not noise.

    counts: (K, h, w), number of spikes in each window.
    lengths: (K, 1, 1), in usual planes (1/88 of an exposure). All rates are spikes per usual plane.
    """
    expected = brightness.of_pixels * lengths  # (K, h, w)
    # The variance is an expected count, as in a Poisson distribution. But `expected` would be 0 for
    # a pixel that never fired, and noisy for other pixels. So the variance is computed from the
    # smoothed rate.
    least_rate = LEAST_SHARE_OF_MEAN * brightness.mean
    rate = np.maximum(brightness.around_pixels, least_rate)  # (h, w)
    variance = rate * lengths + ADDED_VARIANCE  # (K, h, w)
    deviations = (counts - expected) / np.sqrt(variance)
    return np.clip(deviations, -MOST_DEVIATIONS, MOST_DEVIATIONS)


# Least number of spikes in an eleventh around a pixel. The network sees the logarithm of the number
# of spikes, and log(0) is infinite. The weights were trained with this number.
LEAST_AROUND = 8e-3
# Factor of the contrast of the blurry frame. Most display values differ from their mean by less
# than 0.5, so with this factor most contrasts are below 1.
CONTRAST = 2.0


def _scene(brightness: _Brightness, blurry: np.ndarray) -> np.ndarray:
    """Return the channels (3, h, w) that all windows share.

        0    logarithm of the number of spikes in an eleventh, around each pixel
        1    logarithm of the mean number of spikes of a pixel in an eleventh
        2    contrast of the blurry frame: by how much it differs from its mean

    blurry: luma (h, w) in display values.
    """
    # A rate is a number of spikes per usual plane, and an eleventh of the exposure has USUAL_PLANES
    # = 8 of them. So a rate times USUAL_PLANES is a number of spikes in an eleventh.
    spikes_around = np.maximum(brightness.around_pixels * USUAL_PLANES, LEAST_AROUND)  # (h, w)
    log_around = np.log(spikes_around)
    log_mean = np.full_like(log_around, np.log(brightness.mean * USUAL_PLANES))
    contrast = (blurry - blurry.mean()) * CONTRAST
    return np.stack((log_around, log_mean, contrast))

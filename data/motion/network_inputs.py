"""Make the inputs of the network of motion from the spikes and the blurry frame.

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


@dataclass(frozen=True)
class _Brightness:
    """The brightness of the spikes, as rates: spikes per usual plane (see `USUAL_PLANES`)."""

    of_windows: np.ndarray  # (K, h, w): the rate in each window
    of_pixels: np.ndarray  # (h, w): the mean rate over the exposure
    around_pixels: np.ndarray  # (h, w): `of_pixels`, smoothed over the neighbours of each pixel
    mean: float  # the mean rate of all pixels, at least LEAST_MEAN in an eleventh


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

"""Make grey pictures of some instants of an exposure from its spikes, for optical flow.

    spikes -> rates        spikes per plane of each spike pixel, in a window of planes around each
                           instant (`_rates_at`)
    rates -> pictures      rate / gain as display values, on the grid of the frame, smoothed

An instant is a time within the exposure (`motion_of` in flow.py asks for nine instants). A plane is
one binary picture (h, w) of the spike camera. A frame has H x W RGB pixels. A window is the planes
around an instant that make a picture. Its length is given as a share of the exposure.

A long window has less noise, and a short window has less blur. So bright pixels have short windows,
and dark pixels have long windows. E.g. if a star moves through a dark sky, the star is sharp and
the sky has little noise. A pixel with n spikes in the exposure has a window of about
SPIKES_OF_PICTURE = 3 spikes:

    share = 3 / n          at least LEAST_PICTURE and at most MOST_PICTURE

E.g. with 12 spikes the window is a quarter of the exposure. A pixel that is darker than the median
pixel has the window of the median pixel (`_rates_at`).

Only flow.py calls `pictures_at`. The fusion operator "motion" (models/fusion/fusion_motion.py)
improves frames by learned steps along the motion. Its weights were trained with motions that were
found in these pictures. With another constant, the weights fit a little worse until they are
trained anew. test_spike_pictures.py notices wrong pictures, and test_flow.py notices wrong motions.
Neither test notices a constant that is a little worse.

Tests: tests/parts/data/test_spike_pictures.py, tests/parts/data/test_flow.py
"""

import cv2
import numpy as np

from data.motion.exposure import Recording
from data.motion.light import NOISY_SPIKES
from data.motion.view import View
from data.spike.light import window_light
from data.spike.pictures import to_display, to_uint8

# Sigma in RGB pixels by which pictures are smoothed before optical flow sees them. A smaller value
# leaves more noise of the spikes, a larger value blurs small things. No measurement of other values
# is recorded.
PICTURE_SIGMA = 1.5


def pictures_at(
    recording: Recording, view: View, gain: np.ndarray, times: list[float], spikes: float
) -> list[np.ndarray]:
    """Return pictures (H, W) uint8 on the grid of the frame, one for each time.

    view: where the spike pixels lie on the frame.
    gain: (h, w), spikes per plane of each spike pixel at full light.
    times: K times, in planes after the sharp instant.
    spikes: number of spikes of a pixel of median light in the exposure.
    """
    rates = _rates_at(recording, times, spikes)

    # Where the RGB pixels lie on the spike plane, (H, W) each.
    on_plane = view.pixels_on_plane()  # (H, W, 2)
    x = on_plane[..., 0]
    y = on_plane[..., 1]
    pictures = []
    for rate in rates:
        # A spike pixel at full light has the rate `gain`, so rate / gain is 1 at full light. If the
        # camera integrates light, rate / gain is light. If the camera integrates display values
        # (is_display), rate / gain is already a display value.
        value = np.clip(rate / gain, 0, 1).astype(np.float32)  # (h, w)
        display = value if view.is_display else to_display(value)
        picture = cv2.remap(display, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        # The size (0, 0) lets OpenCV choose the size of the kernel for this sigma.
        smooth_picture = cv2.GaussianBlur(picture, (0, 0), PICTURE_SIGMA)
        pictures.append(to_uint8(smooth_picture))
    return pictures


# Wanted number of spikes in the window of a pixel. With fewer spikes, a picture would have more
# noise, and with more spikes, more blur. No measurement of other values is recorded.
SPIKES_OF_PICTURE = 3.0
# Share of the exposure in the shortest window, which bright pixels have. Two neighbours of the nine
# pictures of an exposure are an eighth apart, 0.125 (`motion_times` in shifts.py). This share is a
# little less, so the shortest windows do not overlap. A larger value would blur. With a smaller
# value, the windows of a short exposure would have too few planes, so pictures would be uneven.
LEAST_PICTURE = 0.11
# Largest share of the exposure in a window. A larger value would blur, and a smaller value would
# leave more noise. No measurement of other values is recorded.
MOST_PICTURE = 0.4
# `_rates_at` divides by the number of spikes of a pixel of median light, which may be 0. So the
# divisor is at least LEAST_DIVISOR.
LEAST_DIVISOR = 1e-6


def _rates_at(recording: Recording, times: list[float], spikes: float) -> list[np.ndarray]:
    """Return the spikes per plane (h, w) around each time, each pixel in a window of its own.

    A window is the planes around a time. A pixel with n spikes in the exposure needs a window with
    the share SPIKES_OF_PICTURE / n of the exposure. To save time, rates are measured only in two
    windows: the shortest one, which bright pixels need, and the longest one, which a pixel of
    median light needs. Darker pixels also get the longest window. Each pixel mixes the two rates:

        weight of the longest window = log(share / shortest) / log(longest / shortest)

    With the logarithm, each doubling of the share adds the same weight. E.g. the shortest window
    has the share 0.1, and the longest has 0.4:

        share that the pixel needs        0.1    0.2    0.4
        weight of the longest window      0      1/2    1

    Windows that depend on the light were compared with one window for all pixels. With one window,
    the photographs of lab/joint_gain.py would lose 0.05 dB, and its videos "seven" would lose 0.12
    dB. No test measures this.

    times, spikes: as in `pictures_at`.
    """
    is_noisy = spikes < NOISY_SPIKES
    shortest = LEAST_PICTURE
    short_rates = _rates_of_windows(recording, times, shortest, is_noisy)  # (K, h, w)

    # The longest window is the window that a pixel of median light needs. E.g. if this pixel has 10
    # spikes, the window is 3 / 10 of the exposure.
    spikes_at_median = max(spikes, LEAST_DIVISOR)
    longest = float(np.clip(SPIKES_OF_PICTURE / spikes_at_median, shortest, MOST_PICTURE))
    # In bright light, all pixels get the shortest window. E.g. a pixel of median light with 30
    # spikes needs only the share 3 / 30 = 0.1, which is less than LEAST_PICTURE = 0.11.
    if longest <= shortest:
        return list(short_rates)

    # The window that each pixel needs, (h, w). Darker pixels count as pixels of median light.
    most_spikes = _most_spikes(short_rates, recording.length)
    counted_spikes = np.maximum(most_spikes, spikes_at_median)
    share = np.clip(SPIKES_OF_PICTURE / counted_spikes, shortest, longest)

    weight_of_long = np.log(share / shortest) / np.log(longest / shortest)
    weight_of_long = weight_of_long.astype(np.float32)  # (h, w)
    long_rates = _rates_of_windows(recording, times, longest, is_noisy)
    return list((1 - weight_of_long) * short_rates + weight_of_long * long_rates)


# Sigma in spike pixels of the Gaussian mean that measures the light around a pixel. No measurement
# of other values is recorded.
LIGHT_SIGMA = 1.5


def _most_spikes(short_rates: np.ndarray, planes: int) -> np.ndarray:
    """Return how many spikes an exposure would have in each pixel at its brightest light, (h, w).

    The light around a pixel is measured in each of the K pictures. The brightest of these lights is
    taken for the whole exposure. E.g. if a star comes by, the pixel has the shortest window in all
    pictures.

    short_rates: (K, h, w), spikes per plane around each time.
    planes: number of planes of the exposure.
    """
    rates_around = [cv2.GaussianBlur(rate, (0, 0), LIGHT_SIGMA) for rate in short_rates]
    return np.max(rates_around, axis=0) * planes


def _rates_of_windows(
    recording: Recording, times: list[float], share: float, is_noisy: bool
) -> np.ndarray:
    """Return the spikes per plane in a window around each time, (K, h, w) float32.

    times: planes after the sharp instant. share: length of a window, as a share of the exposure.
    is_noisy: whether there are few spikes, so that each window is read alone.

    If all windows lie around the sharp instant, test_a_picture_shows_the_light_at_its_own_time
    fails.
    """
    planes = share * recording.length
    windows = [recording.window(recording.sharp + time, planes) for time in times]
    if not is_noisy:
        return recording.spike_rates(windows)
    # With few spikes, an interval between two spikes may reach over several windows. `spike_rates`
    # would spread the light of the interval evenly over these windows. All of them would show the
    # same light, so nothing would seem to move. Therefore each window is read as if only its own
    # planes were recorded.
    rates = []
    for first, end in windows:
        planes_of_window = recording.stream[first:end]
        count = end - first
        [light] = window_light(planes_of_window, [(0, count)])  # one window: all these planes
        rates.append(light / count)
    return np.stack(rates).astype(np.float32)

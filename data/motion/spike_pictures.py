"""Make grey pictures of some instants of an exposure from its spikes.

Tests: tests/parts/data/test_flow.py
"""

import cv2
import numpy as np

from data.motion.exposure import Recording
from data.motion.light import FEW_SPIKES
from data.motion.view import View
from data.spike.light import window_light
from data.spike.pictures import to_display, to_uint8

# A pixel of a picture has as many planes as bring this number of spikes. With fewer spikes it
# would have more noise. With more spikes it would have more blur.
SPIKES_OF_PICTURE = 3.0
# A picture has at least this share of the planes of the exposure. It matters in bright light: a
# larger value would blur, a smaller value would make the pictures of few planes uneven. The
# nine instants are about an eighth of an exposure (0.125) apart, so these pictures do not overlap.
LEAST_PICTURE = 0.11
# A picture has at most this share of the planes of the exposure. It matters in dim light: a larger
# value would blur, a smaller value would leave more noise.
MOST_PICTURE = 0.4
# The light around a pixel decides how many planes it has. It is a Gaussian mean with this sigma, in
# spike pixels. The same number of planes for all pixels lost 0.05 dB on the photographs of
# lab/joint_gain.py and 0.12 dB on its part "seven". No test notices.
LIGHT_SIGMA = 1.5
# Least number of spikes in an exposure where it is a divisor: without it, an exposure without any
# spike would divide by 0.
LEAST_SPIKES = 1e-6
# Sigma in RGB pixels by which pictures are smoothed before DIS sees them. A smaller value leaves
# more noise of the spikes, a larger value blurs small things.
PICTURE_SIGMA = 1.5


def pictures_at(
    recording: Recording, view: View, gain: np.ndarray, times: list[float], spikes: float
) -> list[np.ndarray]:
    """Return pictures (H, W) uint8 on the RGB grid, one for each time.

    times: planes after the sharp instant. spikes: number of spikes of a pixel of median light in
    the exposure.
    """
    rates = _rates_at(recording, times, spikes)

    # Where the RGB pixels lie on the spike plane, (H, W) each.
    on_plane = view.pixels_on_plane()  # (H, W, 2)
    x = on_plane[..., 0]
    y = on_plane[..., 1]
    pictures = []
    for rate in rates:
        # A spike pixel at full light has the rate `gain`, so rate / gain is what it integrates.
        integrated = np.clip(rate / gain, 0, 1).astype(np.float32)  # (h, w)
        display = integrated if view.is_display else to_display(integrated)
        picture = cv2.remap(display, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        # The size (0, 0) lets OpenCV choose the size of the kernel for this sigma.
        smooth_picture = cv2.GaussianBlur(picture, (0, 0), PICTURE_SIGMA)
        pictures.append(to_uint8(smooth_picture))
    return pictures


def _rates_at(recording: Recording, times: list[float], spikes: float) -> list[np.ndarray]:
    """Return the spikes per plane (h, w) around each time.

    The number of planes differs from pixel to pixel: it brings about SPIKES_OF_PICTURE = 3 spikes.
    So a star moves sharply through a dark sky, whose pixels have many planes and so little noise.

    A window is the planes around a time that make a picture. Its length is a share of the exposure.
    Rates are measured in the shortest and in the longest window only, and each pixel mixes both.
    times, spikes: as in `pictures_at`.
    """
    has_few_spikes = spikes < FEW_SPIKES
    # 1. The shortest windows. E.g. 30 spikes in the exposure: 3 / 30 = 0.1 of it brings 3 spikes,
    # which is less than LEAST_PICTURE, so all pixels have the shortest window.
    share_at_median = SPIKES_OF_PICTURE / max(spikes, LEAST_SPIKES)
    longest_share = float(np.clip(share_at_median, LEAST_PICTURE, MOST_PICTURE))
    short_rates = _rates_of_windows(recording, times, LEAST_PICTURE, has_few_spikes)  # (K, h, w)
    if longest_share <= LEAST_PICTURE:
        return list(short_rates)

    # 2. The share of the exposure that each pixel needs. The most light that it sees at any time
    # decides: if a star comes by, the pixel has the shortest window in all nine pictures. A pixel
    # of less light than the median has the longest window.
    rates_around = [cv2.GaussianBlur(rate, (0, 0), LIGHT_SIGMA) for rate in short_rates]
    most_spikes = np.max(rates_around, axis=0) * recording.length  # in the exposure, (h, w)
    needed_share = SPIKES_OF_PICTURE / np.maximum(most_spikes, max(spikes, LEAST_SPIKES))
    share = np.clip(needed_share, LEAST_PICTURE, longest_share)

    # 3. The mix: 0 at the shortest share, 1 at the longest share, linear in the logarithm between.
    weight_of_long = np.log(share / LEAST_PICTURE) / np.log(longest_share / LEAST_PICTURE)
    weight_of_long = weight_of_long.astype(np.float32)  # (h, w)
    long_rates = _rates_of_windows(recording, times, longest_share, has_few_spikes)
    return list((1 - weight_of_long) * short_rates + weight_of_long * long_rates)


def _rates_of_windows(
    recording: Recording, times: list[float], share: float, has_few_spikes: bool
) -> np.ndarray:
    """Return the spikes per plane in a window around each time, (K, h, w) float32.

    times: planes after the sharp instant. share: length of a window, as a share of the exposure.
    """
    planes = share * recording.length
    windows = [recording.window(recording.sharp + time, planes) for time in times]
    if not has_few_spikes:
        return recording.spike_rates(windows)
    # With few spikes, an interval between two spikes reaches into several windows. All of these
    # windows would show the same light, so nothing would seem to move. So each window is read as if
    # no other planes had been recorded.
    rates = []
    for first, end in windows:
        planes_of_window = recording.stream[first:end]
        count = end - first
        [light] = window_light(planes_of_window, [(0, count)])
        rates.append(light / count)
    return np.stack(rates).astype(np.float32)

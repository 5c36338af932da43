"""Measure the gain of each spike pixel: its spikes per plane at full light (light 1).

    gain = spikes per plane / light

The light comes from the blurry frames, because both cameras collect the same light in an exposure.
So the threshold of the sensor and its fixed pattern need not be known. `RecordedClip`
(recording.py) calls two functions:

    gain_over_exposures     the gain for a clip, and which pixels can be trusted
    gain_in_exposure        the gain for one exposure, if the RGB camera changed its exposure time

With automatic exposure, the RGB camera records the same light with different values in each frame.
The level of a frame shows such a change:

    level = (sum of the spikes per plane) / (sum of the light of the frame)      over the pixels

E.g. one frame is exposed only half as long as the others. The frame shows the same scene half as
bright, but the spikes per plane are the same. So the level and the gain are twice as large. The
gain of a clip is the gain at the median level of its frames.

What must stay: the numbers of both functions. The fusion operator "motion"
(models/fusion/fusion_motion.py) improves frames by learned steps along the motion. Its shipped
weights were trained on grey values rate / gain. With other gains the weights still run, but fit a
little worse. test_gain.py compares gains with the known rates of simulated cameras.

Tests: tests/parts/data/test_gain.py, tests/stories/test_motion_weights.py (cameras that change
their exposure, broken pixels, a clipped sky)
"""

from typing import NamedTuple

import numpy as np

from data.motion.exposure import Recording
from data.motion.light import DARK, SATURATED, integrated
from data.motion.view import View
from data.spike.pictures import DISPLAY_GAMMA

# ---- The light of one exposure -----------------------------------------------------------------

# A spike pixel counts as clipped by the RGB camera if its light in the frame is CLIPPED or more. (A
# camera clips light that is above its largest value. A clip, the short video, is something else.)
# The RGB camera clips at light 1. E.g. at the edge of a lamp, a spike pixel sees three clipped RGB
# pixels and a fourth one with light 0.7. Their mean is 0.93, so the limit must be below 1. The
# value is a judgement:
#
#     larger       edges of lamps would not count as clipped
#     smaller      bright pixels would count as clipped, although they are not
#     no limit     test_pixels_at_full_light_do_not_change_the_level_of_a_frame fails
CLIPPED = 0.9


class ExposureLight(NamedTuple):
    """The light of an exposure on the spike pixels, as each camera measures it."""

    spike_rates: np.ndarray  # by the spike camera: spikes per plane, (h, w)
    frame_light: np.ndarray  # by the RGB camera: light in [0, 1], (h, w)
    planes: int  # number of planes in the exposure

    def level(self, is_good: np.ndarray | None = None) -> float:
        """Return the level of the frame: the sum of its spikes per plane over the sum of its light.

        A clipped pixel of the frame shows too little light. E.g. if a lamp comes into view, the
        spikes increase more than the light of the frame, and this looks like a change of the
        exposure time. So clipped pixels are left out:

            some pixels are good and not clipped    these pixels count
            all good pixels are clipped             the good pixels count
            no pixel is good                        as if all pixels were good

        is_good: (h, w) bool, or None if all pixels are good.
        """
        if is_good is None or not is_good.any():
            is_good = np.ones(self.frame_light.shape, bool)
        is_counted = is_good & (self.frame_light < CLIPPED)
        if not is_counted.any():
            is_counted = is_good
        spikes_per_plane = float(self.spike_rates[is_counted].sum())
        light = float(self.frame_light[is_counted].sum())
        return spikes_per_plane / max(light, DARK)


# An exposure is cut into 8 parts. The spikes of each part are counted, to see whether the light
# changes within the exposure. With fewer parts, the light could change within a part. With more
# parts, the counts of the parts would be noisier. The value is a judgement.
PARTS = 8


def exposure_light(recording: Recording, view: View) -> ExposureLight:
    """Return the light of an exposure, as each camera measures it.

    recording: the blurry frame and the spikes. view: where the spike pixels lie on the frame.
    """
    rates = recording.spike_rates(recording.parts(PARTS))  # (parts, h, w)
    # The blurry frame in the unit that a spike pixel sums up: light, or display values if
    # `is_display`. The rest of this file calls both "light".
    grey = integrated(recording.blurry, view.is_display)  # (H, W)
    frame_light = view.means(grey)  # (h, w)
    if view.is_display:
        # The spikes give the mean of the display values in the exposure. But the blurry frame gives
        # the display value of the mean light.
        frame_light *= _display_correction(rates)
    return ExposureLight(rates.mean(axis=0), frame_light, planes=recording.length)


def _display_correction(rates: np.ndarray) -> np.ndarray:
    """Return (mean display value) / (display value of the mean light), (h, w), at most 1.

    The two differ if the light changes within the exposure, because a display value is
    light^(1 / 2.2). E.g. a pixel is black for half of the time, and white for the other half:

        mean display value                 (0 + 1) / 2 = 0.5
        mean light                         (0 + 1) / 2 = 0.5
        display value of the mean light    0.5^(1 / 2.2) = 0.73
        result                             0.5 / 0.73 = 0.68

    rates: (parts, h, w), proportional to the display values in parts of an exposure.
    """
    mean_light = np.mean(rates**DISPLAY_GAMMA, axis=0)
    # The divisor is at least 1e-12, because a pixel without any spike would divide by 0. The
    # quotient of this pixel is not used below.
    display_of_mean = np.maximum(mean_light, 1e-12) ** (1 / DISPLAY_GAMMA)
    # The light of a pixel without any spike does not change, so its factor is 1.
    return np.where(mean_light > 0, rates.mean(axis=0) / display_of_mean, 1.0)


# ---- The gain for a clip -----------------------------------------------------------------------

# 3 spikes are added to the spikes of each pixel, and the light that gives 3 spikes at the usual
# gain is added to the light of the pixel (`gain_over_exposures` has an example). Without these 3
# spikes, the gain of a pixel with one or no spike would be noise. The gain of a pixel with many
# spikes hardly changes. Tried: any value from 3 to 30 gives the same PSNR within 0.02 dB, on dim
# and on bright clips. The value 400 loses up to 0.04 dB. No test notices another value.
USUAL_SPIKES = 3.0


def gain_over_exposures(exposures: list[ExposureLight]) -> tuple[np.ndarray, np.ndarray]:
    """Return the gain of each spike pixel over some exposures, and whether it can be trusted.

        gain = (spikes + s) / (light + s / usual)        s = USUAL_SPIKES

    Spikes and light are summed over the exposures. "usual" is the median of the gains of the
    pixels (`_usual_gain`). The fewer spikes a pixel has, the nearer is its gain to the usual gain.
    E.g. with the usual gain 0.5, the 3 added spikes come with the light 3 / 0.5 = 6:

        spikes    light    spikes / light    gain
        1         10       0.1               (1 + 3) / (10 + 6)     = 0.25
        100       1000     0.1               (100 + 3) / (1000 + 6) = 0.102

    exposures: at least one, of the same view.
    Returns the gain (h, w) float32, and (h, w) bool. A pixel that cannot be trusted has the usual
    gain.
    """
    usable = _usable_exposures(exposures)
    spikes, light = _sums_at_usual_level(usable)
    is_clipped = _clipped_pixels(usable)
    usual = _usual_gain(spikes[~is_clipped], light[~is_clipped])
    gain = (spikes + USUAL_SPIKES) / (light + USUAL_SPIKES / usual)

    # Which pixels are trusted, by their number of spikes:
    #
    #     plausible             trusted
    #     far more or fewer     not trusted, e.g. a hot pixel
    #     more, and the RGB     trusted, because the true light is brighter than the frame shows
    #     camera clips here
    expected = usual * light  # number of spikes
    # Without the third case,
    # test_a_sky_that_the_rgb_camera_clips_is_not_taken_for_hot_pixels fails.
    has_more_true_light = is_clipped & (spikes > expected)
    is_good = has_more_true_light | _is_plausible(spikes, expected)
    return np.where(is_good, gain, usual).astype(np.float32), is_good


def _usable_exposures(exposures: list[ExposureLight]) -> list[ExposureLight]:
    """Return the exposures from which the gain can be measured.

    An exposure is left out if it has no spike, or if the spike camera is saturated (fires in nearly
    every plane). If no exposure is left, all exposures are returned, because the caller needs a
    gain. The value of this gain hardly matters, because the restored frames are not improved from
    the spikes (`MotionRestorer._keeps_first_estimate`).
    """
    usable = []
    for exposure in exposures:
        spikes_per_plane = exposure.spike_rates.mean()
        if 0 < spikes_per_plane < SATURATED:
            usable.append(exposure)
    return usable or exposures


def _sums_at_usual_level(exposures: list[ExposureLight]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of spikes and of light over all planes of some exposures, (h, w) each.

    First the light of each exposure is brought to the median level of all exposures. The level of a
    frame is the sum of its spikes per plane over the sum of its light. E.g. a frame of twice the
    median level shows half of the light, so its light is multiplied by 2.

    Without the change to the median level,
    test_exposures_of_other_levels_give_the_gain_at_the_median_level fails.
    """
    levels = np.array([exposure.level() for exposure in exposures])
    usual_level = float(np.median(levels))
    size = exposures[0].frame_light.shape  # (h, w)
    spikes = np.zeros(size)
    light = np.zeros(size)
    planes = 0
    for exposure, level in zip(exposures, levels.tolist(), strict=True):
        to_usual_level = _level_change(level, usual_level)
        spikes += exposure.spike_rates * exposure.planes
        light += exposure.frame_light * to_usual_level * exposure.planes
        planes += exposure.planes
    # The light is at least DARK in each plane, because callers divide by the light of a pixel,
    # which may be 0.
    return spikes, np.maximum(light, DARK * planes)


def _clipped_pixels(exposures: list[ExposureLight]) -> np.ndarray:
    """Return at which pixels the RGB camera clips, e.g. in the sky: (h, w) bool.

    The true light of these pixels is brighter than the frame shows, so the gain (spikes per plane
    over light) cannot be measured there. If all pixels are clipped, the result is False everywhere,
    because the usual gain needs some pixels.
    """
    is_clipped = np.mean([exposure.frame_light for exposure in exposures], axis=0) >= CLIPPED
    if is_clipped.all():
        is_clipped[:] = False
    return is_clipped


# Least usual gain, in spikes per plane. Without this limit, the grey values rate / gain of a clip
# without any spike would be 0 / 0. Other clips are not affected, because no real camera has a gain
# as small as one spike in a million planes.
LEAST_GAIN = 1e-6


def _usual_gain(spikes: np.ndarray, light: np.ndarray) -> float:
    """Return the usual gain: the median of the gains, weighted by the light of the pixels.

    The weights are for dark scenes, in which most pixels may have no spike at all. E.g. three
    pixels have the gains 0, 0 and 0.6, and the light 1, 1 and 10. The plain median would be 0. The
    total light is 12, and its half, 6, is reached at the third pixel, so the usual gain is 0.6.

    spikes, light: sums of each pixel over the same planes, arrays of one shape. The light is above
    0.
    """
    gain = (spikes / light).ravel()  # (pixels,)
    by_gain = np.argsort(gain)  # indices of the pixels, the smallest gain first
    light_so_far = np.cumsum(light.ravel()[by_gain])
    total_light = light_so_far[-1]
    # The first pixel at which half of the light is reached. In the example, the sums 1, 2, 12 reach
    # 6 at index 2.
    middle = np.searchsorted(light_so_far, total_light / 2)
    usual = float(gain[by_gain[middle]])
    if usual == 0:
        # There are so few spikes that even most bright pixels have none. So take the mean gain.
        usual = float(spikes.sum() / light.sum())
    return max(usual, LEAST_GAIN)


# A pixel is not trusted if it is beyond two limits: MOST_GAIN_RATIO, the ratio of its spikes to the
# expected number (or the inverse), and CHANCE, the distance from the expected number in standard
# deviations (`_is_plausible`). Such a pixel is hot or dead, or was too dark in all frames. E.g.
#
#     expected    spikes    ratio    deviations
#     16          50        3.1      6.1           not trusted
#     1           3         3        1.5           trusted: it may be chance
#     1000        1200      1.2      6.0           trusted: pixels differ a little
#
# A smaller ratio would also distrust good pixels of a sensor whose pixels differ much. The value is
# a judgement. With a very large ratio, test_dead_and_hot_pixels_are_not_trusted fails.
MOST_GAIN_RATIO = 2.5
# With 4 deviations, about one of 10,000 good pixels is beyond this limit by chance. With 0,
# test_pixels_are_trusted_although_most_of_them_have_no_spike fails.
CHANCE = 4.0


def _is_plausible(spikes: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return which pixels have about as many spikes as expected, or differ by chance: (h, w) bool.

    spikes: number of spikes of each pixel, (h, w).
    expected: number of spikes that each pixel would have at the usual gain, (h, w).
    """
    is_far = (spikes > expected * MOST_GAIN_RATIO) | (spikes < expected / MOST_GAIN_RATIO)
    # The square root of a count has about the standard deviation 1/2, whatever the count is. So
    # twice the difference of two roots is a number of standard deviations. E.g. 9 spikes where 16
    # are expected: 2 * |3 - 4| = 2 deviations, which may be chance.
    deviations = 2 * np.abs(np.sqrt(spikes) - np.sqrt(expected))
    return ~(is_far & (deviations > CHANCE))


# ---- The gain for one exposure -----------------------------------------------------------------


def gain_in_exposure(exposure: ExposureLight, gain: np.ndarray, is_good: np.ndarray) -> np.ndarray:
    """Return the gain (h, w) float32 for one exposure.

        gain of the exposure = gain of the clip * level / expected level

    The level of a frame is the sum of its spikes per plane over the sum of its light. The expected
    level is the level that the frame would have with the gain of the clip. Both levels are measured
    at the same pixels. E.g. a clip has the gain 0.5, so 0.5 is the expected level, too. A frame of
    the level 1 was exposed for half of the usual time, and its gain is 0.5 * 1 / 0.5 = 1.

    gain, is_good: (h, w) each, of the clip, from `gain_over_exposures`. Only trusted pixels are
    used, because the spikes of hot pixels would look like a change of the exposure time.
    """
    level = exposure.level(is_good)
    # The same frame, with the spikes per plane that its light would give at the gain of the clip.
    expected = exposure._replace(spike_rates=gain * exposure.frame_light)
    expected_level = expected.level(is_good)
    return gain * np.float32(_level_change(level, expected_level))


# If the levels of two frames differ by more than this factor, the RGB camera has changed its
# exposure time or its gain between them. Smaller differences have other reasons: noise, and things
# that move into or out of view. With 1.0, test_hot_pixels_do_not_look_like_another_exposure fails.
SAME_LEVEL = 1.1


def _level_change(level: float, usual_level: float) -> float:
    """Return level / usual_level, or 1 if both differ by less than the factor `SAME_LEVEL`.

    A level is the sum of the spikes per plane of a frame over the sum of its light. Callers
    multiply by the result, and 1 changes nothing. So a clip without automatic exposure has the same
    gain in all its frames.
    """
    # The divisor is at least LEAST_GAIN, because the level of a clip without any spike is 0.
    change = level / max(usual_level, LEAST_GAIN)
    if 1 / SAME_LEVEL < change < SAME_LEVEL:
        return 1.0
    return change

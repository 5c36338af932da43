"""data/motion/spike_pictures.py: the pictures between which optical flow searches.

Each pixel of a stream fires at equal intervals, so the light that a picture shows is known.
"""

import numpy as np
import pytest

from data.motion.exposure import Recording
from data.motion.light import NOISY_SPIKES, median_spikes
from data.motion.spike_pictures import pictures_at
from data.motion.view import View
from data.spike.pictures import to_display

PLANES = 120  # of a stream, all of them in the exposure
SIDE = 16  # of a frame and of a plane, in pixels
VIEW = View(size=(SIDE, SIDE), plane=(SIDE, SIDE), to_rgb=np.eye(3), is_display=False)
TIMES = [0.0, -30.0, 45.0]  # planes after the sharp instant


def recording_of(stream: np.ndarray) -> Recording:
    """Return a recording whose blurry frame is black, because pictures do not depend on it."""
    blurry = np.zeros((SIDE, SIDE, 3), np.float32)
    return Recording(blurry=blurry, stream=stream, begin=0, end=PLANES, sharp=PLANES / 2)


def firing(each: int) -> np.ndarray:
    """Return a stream (PLANES, SIDE, SIDE) in which each pixel fires once in `each` planes."""
    stream = np.zeros((PLANES, SIDE, SIDE), np.uint8)
    stream[each - 1 :: each] = 1
    return stream


@pytest.mark.parametrize("each", [2, 10], ids=["bright", "noisy"])
def test_a_picture_shows_the_display_value_of_rate_over_gain(each):
    recording = recording_of(firing(each))
    spikes = median_spikes(recording)
    assert (spikes < NOISY_SPIKES) == (each == 10)
    # The light is the spikes per plane, 1 / each, divided by the gain. With this gain it is a
    # quarter of full light.
    gain = np.full((SIDE, SIDE), 4 / each, np.float32)

    pictures = pictures_at(recording, VIEW, gain, TIMES, spikes)

    expected = 255 * to_display(np.array([0.25]))[0]
    for picture in pictures:
        assert picture.dtype == np.uint8
        assert picture.shape == (SIDE, SIDE)
        # A window has few planes, so one spike more or less changes the value by up to 20 %.
        assert picture.astype(float) == pytest.approx(expected, rel=0.2)


def test_a_picture_shows_the_light_at_its_own_time():
    # The left half is bright before the sharp instant, the right half after it.
    stream = np.zeros((PLANES, SIDE, SIDE), np.uint8)
    stream[: PLANES // 2 : 2, :, : SIDE // 2] = 1
    stream[PLANES // 2 :: 2, :, SIDE // 2 :] = 1
    gain = np.ones((SIDE, SIDE), np.float32)

    before, after = pictures_at(recording_of(stream), VIEW, gain, [-30.0, 30.0], spikes=30.0)

    # A bright half fires every 2 planes, so its light is 0.5, which is the display value 186 of
    # 255. A dark half is silent for 60 planes, so its light is at most 1/60, the display value 40.
    assert before[8, 2] > 150
    assert before[8, -3] < 50
    assert after[8, 2] < 50
    assert after[8, -3] > 150


def test_no_spike_at_all_gives_black_pictures():
    recording = recording_of(np.zeros((PLANES, SIDE, SIDE), np.uint8))
    gain = np.ones((SIDE, SIDE), np.float32)

    for picture in pictures_at(recording, VIEW, gain, TIMES, median_spikes(recording)):
        assert picture.max() < 30

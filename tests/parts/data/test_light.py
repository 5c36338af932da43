"""data/motion/light.py: how much light an exposure has, by its spikes and by its frame.

Light goes from 0 to 1, full light. E.g. a pixel that sees the light 0.5 and has 30 spikes would
have 60 spikes at full light.
"""

import numpy as np
import pytest

from data.motion.exposure import Recording
from data.motion.light import is_saturated, median_spikes, spikes_at_full_light
from data.motion.view import View
from data.spike.pictures import to_display

# A spike pixel sees the same as the pixel of the frame at its place. Spike pixels integrate light.
VIEW = View(size=(4, 4), plane=(4, 4), to_rgb=np.eye(3), is_display=False)


def recording_of(light: float, each: int) -> Recording:
    """Return a recording of 60 planes.

    light: light of all pixels, from 0 to 1. each: all pixels fire in every n-th plane, where n is
    `each`. E.g. 2 gives 30 spikes for each pixel.
    """
    blurry = to_display(np.full((4, 4, 3), light, np.float32))
    stream = np.zeros((60, 4, 4), np.uint8)
    stream[each - 1 :: each] = 1
    return Recording(blurry=blurry, stream=stream, begin=0, end=60, sharp=30)


def test_a_dark_scene_and_a_bright_scene_have_the_same_spikes_at_full_light():
    # A pixel has 30 spikes at the light 0.5, and 6 spikes at the light 0.1.
    bright = spikes_at_full_light(recording_of(0.5, each=2), VIEW)
    dark = spikes_at_full_light(recording_of(0.1, each=10), VIEW)

    assert bright == pytest.approx(60, rel=1e-3)
    assert dark == pytest.approx(60, rel=1e-3)


def test_a_pixel_of_median_light_has_the_spikes_that_half_of_the_pixels_have():
    recording = recording_of(0.5, each=2)  # 30 spikes
    recording.stream[:, :1] = 0  # the first of 4 rows, a quarter of the pixels, never fires

    assert median_spikes(recording) == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize(("each", "expected"), [(1, True), (2, False)])
def test_a_camera_that_fires_in_each_plane_is_saturated(each, expected):
    assert is_saturated(recording_of(0.5, each)) == expected

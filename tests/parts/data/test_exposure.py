"""data/motion/exposure.py: windows of the planes of an exposure, and spikes of broken pixels.

The clips are rendered scenes (tests/helpers/moving_scene.py). A spike pixel covers 2 x 2 RGB
pixels. A clip has three exposures of 60 planes, which follow one another.
"""

import numpy as np
import pytest

from data.motion.exposure import Recording
from data.motion.recording import RecordedClip
from tests.helpers.moving_scene import Scene, reader_of

# The tests use the middle one of the three frames, because planes before and after it were
# recorded, too.
FRAME = 1


def test_a_pixel_that_is_not_trusted_repeats_its_nearest_neighbour(tmp_path):
    # A frame of the scene has 96 x 96 RGB pixels, so a spike plane has 48 x 48.
    recording = RecordedClip(reader_of(Scene().write(tmp_path / "clip")), context=None).read(FRAME)
    is_good = np.ones((48, 48), bool)
    is_good[:, 1:] = False  # only column 0 is good

    replaced = recording.with_repaired_pixels(is_good)

    assert np.array_equal(replaced.stream[..., 0], recording.stream[..., 0])
    assert np.array_equal(replaced.stream[..., 1], recording.stream[..., 0])
    assert np.array_equal(replaced.stream[..., 47], recording.stream[..., 0])


def recording_of(stream: np.ndarray, begin: int, end: int) -> Recording:
    """Return a recording whose exposure has the planes `begin` to `end` - 1 of the stream.

    stream: (T, h, w). The frame is black, and the sharp instant is the middle of the exposure.
    """
    blurry = np.zeros((*stream.shape[1:], 3), np.float32)
    return Recording(blurry, stream, begin=begin, end=end, sharp=(begin + end) / 2)


# window: (first plane, plane after the last). E.g. 9 planes around the time 44.5 are the planes 40
# to 48. The stream has only the planes 0 to 99, and a window leaves all other planes out. E.g. 8
# planes around the time 2.0 would be the planes -2 to 5, so the window has the planes 0 to 5.
@pytest.mark.parametrize(
    ("time", "planes", "window"),
    [
        (44.5, 9, (40, 49)),
        (2.0, 8, (0, 6)),
        # 8 planes around 98.0 are the planes 94 to 101. The stream ends with plane 99.
        (98.0, 8, (94, 100)),
        # A window outside of the stream has the nearest plane.
        (-9.0, 4, (0, 1)),
        (120, 4, (99, 100)),
    ],
)
def test_a_window_has_the_planes_around_a_time(time, planes, window):
    recording = recording_of(np.zeros((100, 2, 2), np.uint8), begin=20, end=80)

    assert recording.window(time, planes) == window


def test_the_parts_of_an_exposure_divide_its_planes():
    recording = recording_of(np.zeros((12, 2, 2), np.uint8), begin=2, end=10)

    # 8 planes in 3 parts are 2.67 planes each. So the parts meet at 2 + 2.67 = 4.67 and at 7.33,
    # which are rounded to the planes 5 and 7.
    assert recording.parts(3) == [(2, 5), (5, 7), (7, 10)]
    # There are never more parts than planes.
    assert recording.parts(20) == [(plane, plane + 1) for plane in range(2, 10)]


def test_an_interval_counts_in_each_window_by_the_part_that_lies_there():
    stream = np.zeros((12, 1, 1), np.uint8)
    stream[[1, 5, 9]] = 1  # spikes at the times 2, 6 and 10

    # An interval has the light of one spike:
    #
    #     window           intervals in the window       spikes per plane
    #     planes 3, 4      half of 2 to 6                0.5 / 2
    #     planes 2 to 9    2 to 6, and 6 to 10           2 / 8
    rates = recording_of(stream, 0, 12).spike_rates([(3, 5), (2, 10)])

    assert rates[:, 0, 0] == pytest.approx([0.5 / 2, 2 / 8])


def test_times_of_an_exposure_are_shifted_if_planes_before_it_are_removed():
    stream = np.arange(12, dtype=np.uint8).reshape(12, 1, 1)  # each plane has its number as value
    whole = recording_of(stream, begin=4, end=8)  # its sharp instant is 6.0

    cut = whole.with_planes(3, 12)  # without planes 0, 1 and 2

    # All times become less by 3, the number of removed planes.
    assert cut.begin == 4 - 3
    assert cut.end == 8 - 3
    assert cut.sharp == 6.0 - 3
    assert np.array_equal(cut.stream[cut.begin : cut.end], stream[4:8])

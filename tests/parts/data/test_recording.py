"""data/motion/recording.py: which planes are read around the exposure of a frame.

The clips are rendered scenes (tests/helpers/moving_scene.py). A spike pixel covers 2 x 2 RGB
pixels. A clip has three exposures of 60 planes, which follow one another.
"""

import pytest

from data.clips.clip_reader import user_clips
from data.motion.recording import RecordedClip
from tests.helpers.moving_scene import Scene, reader_of
from utils.errors import DataError

# The tests use the middle one of the three frames, because planes before and after it were
# recorded, too.
FRAME = 1


def test_half_an_exposure_is_read_on_each_side_if_planes_were_recorded_there(tmp_path):
    reader = reader_of(Scene().write(tmp_path / "clip"))
    clip = RecordedClip(reader, context=None)  # None: half as many planes as the exposure has

    planes = [len(clip.read(frame).stream) for frame in range(3)]

    # Each frame has the 60 planes of its exposure, and 30 planes on each side. But no planes were
    # recorded before the first frame, and none after the last frame.
    assert planes == [60 + 30, 30 + 60 + 30, 30 + 60]


def test_without_context_an_exposure_is_read_alone(tmp_path):
    reader = reader_of(Scene().write(tmp_path / "clip"))

    alone = RecordedClip(reader, context=0).read(FRAME)

    assert alone.begin == 0
    assert alone.end == 60
    assert alone.sharp == 30.5  # the middle of plane 30, which lasts from 30 to 31


def test_a_clip_without_spikes_is_refused(tmp_path):
    folder = Scene().write(tmp_path / "clip")
    [reader] = user_clips(folder / "blur")

    with pytest.raises(DataError, match="no spikes"):
        RecordedClip(reader, context=None)

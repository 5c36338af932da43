"""lab/true_motion.py: the true motion of a frame, and the table.

The program as a whole makes clips and restores them. This takes minutes.
"""

import numpy as np
import pytest

from data.making.photo_scene import PhotoScene
from data.motion.exposure import Recording
from data.motion.view import View
from lab.true_motion import TrueMotion, table_of

PLANES = 40  # number of planes in a frame interval
SIDE = 32  # side of a frame in pixels


@pytest.fixture(scope="module")
def scene():
    """Give a photograph of noise in motion, of two frames."""
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (100, 120, 3), np.uint8)
    return PhotoScene(photo, side=48, intervals=2, planes=PLANES, crop=SIDE, rng=rng)


def test_the_motion_belongs_to_the_frame_whose_picture_is_seen(scene):
    size = (SIDE, SIDE)
    first = np.zeros((*size, 3), np.float32)
    second = np.ones((*size, 3), np.float32)
    no_spikes = np.zeros((PLANES, *size), np.uint8)
    recording = Recording(blurry=second, stream=no_spikes, begin=0, end=PLANES, sharp=PLANES / 2)
    # Each spike pixel lies on the RGB pixel of the same place.
    view = View(size=size, plane=size, to_rgb=np.eye(3), is_display=False)
    # A recording does not say the number of its frame. `find` compares its picture with the two
    # frames.
    find = TrueMotion(scene, PLANES, blurry=[first, second])

    motion = find(recording, view, gain=np.ones(size, np.float32))

    # The second frame has the planes 40 ... 79, and its sharp frame is the middle, 40 + 20 = 60.
    # Motions are measured every quarter of the 20 planes to the end of the exposure. So the first
    # time after the sharp frame is 5 planes later, plane 65.
    after = motion.times.tolist().index(5.0)
    np.testing.assert_array_equal(motion.shifts[after], scene.shifts(plane=60, other=65))


def test_the_table_has_the_gains_and_their_means():
    scores = {
        "operator": {"a": 20.0, "b": 30.0},
        "found": {"a": 21.0, "b": 31.5},
        "true": {"a": 22.0, "b": 34.0},
    }

    table = table_of({"ideal": scores})

    rows = [line.replace(" ", "") for line in table.splitlines()]
    # Gains over the operator: found 21 - 20 and true 22 - 20. The means are (1 + 1.5) / 2 and
    # (2 + 4) / 2.
    assert "|ideal|a|+1.00|+2.00|" in rows
    assert "|ideal|mean|+1.25|+3.00|" in rows

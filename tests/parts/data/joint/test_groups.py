"""data/motion/joint/groups.py: the groups of planes of an exposure, and their shares in rows."""

import numpy as np
import pytest

from data.motion.exposure import Recording
from data.motion.joint.groups import exposure_shares, group_count
from data.motion.shifts import Motion
from data.motion.view import View
from tests.helpers.made_exposures import ALIGNED, exposure_with

# ---- How many groups there are ----


def motion_over(distance: float) -> Motion:
    """Return a motion by `distance` pixels to the right within an exposure of 40 planes."""
    times = np.array([-20.0, 0.0, 20.0])  # planes after the sharp instant
    shifts = np.zeros((3, 16, 16, 2), np.float32)
    shifts[0, ..., 0] = -distance / 2  # x, at the begin of the exposure
    shifts[2, ..., 0] = distance / 2  # x, at its end
    no_errors = np.zeros((3, 16, 16), np.float32)
    return Motion(times, shifts, no_errors)


# distance: how far each pixel moves during the exposure, in pixels.
# spikes: spikes of each pixel during the exposure. 30 spikes are good light, and 3 are dim light.
#
# In good light a pixel may move by 1.25 pixels from one group to the next, and in dim light by 2.5
# pixels. At least 6 groups are made, and this test allows at most 20.
@pytest.mark.parametrize(
    ("distance", "spikes", "groups"),
    [
        pytest.param(0, 30, 6, id="still: the least number"),
        pytest.param(10, 30, 8, id="slow: 10 / 1.25"),
        pytest.param(20, 30, 16, id="faster: 20 / 1.25"),
        pytest.param(60, 30, 20, id="fastest: 60 / 1.25 = 48, but 20 are allowed"),
        pytest.param(20, 3, 8, id="dim: 20 / 2.5"),
    ],
)
def test_a_faster_motion_gets_more_groups(distance, spikes, groups):
    assert group_count(exposure_with(spikes), motion_over(distance), most_groups=20) == groups


def test_the_solver_limits_the_groups_of_a_still_scene_too():
    assert group_count(exposure_with(30), motion_over(0), most_groups=2) == 2


# ---- A rolling shutter ----

# Times between 14 groups of 4 planes. The first row is exposed from time 12 on, and the last row
# until time 68.
EDGES_OF_GROUPS = np.linspace(12, 68, 15)


@pytest.fixture
def rolling_shares():
    """Give the share (14, 9) of each of 14 groups in the exposure of each of 9 rows.

    The middle row is exposed in the planes 20 to 59 of 80 planes. The shutter rolls by 0.4 of the
    exposure, which are 16 planes. So the first row is exposed 8 planes earlier, and the last row is
    exposed 8 planes later.
    """
    recording = Recording(
        blurry=np.zeros((9, 4, 3), np.float32),
        stream=np.zeros((80, 2, 2), np.uint8),
        begin=20,
        end=60,
        sharp=40,
    )
    view = View(size=(9, 4), plane=(2, 2), to_rgb=ALIGNED, is_display=False, rolling=0.4)
    return exposure_shares(recording, EDGES_OF_GROUPS, view.delays())


def test_a_rolling_shutter_exposes_all_rows_for_the_same_time(rolling_shares):
    of_rows = rolling_shares.sum(0)  # (9,)
    assert np.allclose(of_rows, 1)


def test_a_rolling_shutter_exposes_each_row_later(rolling_shares):
    middles = (EDGES_OF_GROUPS[:-1] + EDGES_OF_GROUPS[1:]) / 2

    mean_times = middles @ rolling_shares  # (9,), of each row

    # The exposure of the middle row has its middle at time 40, and lasts 40 planes. The shutter
    # rolls by 0.4 of the exposure, which are 16 planes. So the first row is exposed 8 planes
    # earlier, and the last row 8 planes later.
    expected = 40 + np.linspace(-8, 8, 9)
    assert np.allclose(mean_times, expected, atol=0.1)

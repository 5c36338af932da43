"""data/motion/network_inputs.py: the inputs of the network that finds the motion.

data/motion/spike_windows.py counts the spikes. Words of this file:

    window    some planes in a row; the network gets the spikes and the light of each window
    edge      where a window begins or ends
    eleventh  the unit of edges: the exposure is divided into eleven windows of equal length

tests/helpers/moving_scene.py renders the clips.
"""

import numpy as np
import pytest

from data.motion.network_inputs import NetworkInputs, network_inputs, pictures_of
from data.motion.recording import RecordedClip
from data.motion.spike_windows import Windows, spike_windows
from models.fusion.motion_windows import EDGES, INSIDE
from tests.helpers.motion_network import constant_network
from tests.helpers.moving_scene import Scene, reader_of

# Planes at which the windows of the network begin and end, for an exposure of the planes 0 to 87.
# EDGES are elevenths of the exposure (8 planes) after its middle (44). E.g.
#
#     edge     -7.5    -5.5    -4.5    ...    4.5    5.5    7.5
#     plane    -16     0       8       ...    80     88     104
#
# The eleven windows from -5.5 to 5.5 divide the exposure. The other windows lie before and after
# the exposure.
PLANES_OF_EDGES = np.array([round(44 + 8 * edge) for edge in EDGES])


@pytest.fixture(scope="module")
def windows() -> Windows:
    """Give five windows, from 12 planes of two pixels.

        window     0         1         2       3          4
        planes     -2, -1    0 to 3    4, 5    6 to 11    12, 13
        spikes               in 2      in 5    in 8                  planes with a spike of pixel 0

    The windows 0 and 4 lie outside of the planes. Pixel 1 never fires.
    """
    stream = np.zeros((12, 1, 2), np.uint8)
    stream[[2, 5, 8], 0, 0] = 1
    edges = np.array([-2, 0, 4, 6, 12, 14])
    return spike_windows(stream, edges)


def test_the_spikes_of_a_window_are_counted(windows):
    assert windows.counts[:, 0, 0].tolist() == [0, 1, 1, 1, 0]
    assert not windows.counts[:, 0, 1].any()


def test_the_light_of_a_window_follows_from_the_intervals_in_it(windows):
    # A spike in plane p ends an interval at the time p + 1. The last interval has no such spike. It
    # is treated as if the plane after the stream, plane 12, had a spike:
    #
    #     spike in plane    2         5         8         12
    #     interval          0 to 3    3 to 6    6 to 9    9 to 13
    #
    # An interval has the light of one spike. If a third of an interval lies in a window, the window
    # gets a third of this light:
    #
    #     window 1, times 0 to 4     the interval 0 to 3, and 1/3 of 3 to 6        4/3
    #     window 2, times 4 to 6     the other 2/3 of 3 to 6                       2/3
    #     window 3, times 6 to 12    the interval 6 to 9, and 3/4 of 9 to 13       1.75
    #
    assert windows.light[:, 0, 0] == pytest.approx([0, 4 / 3, 2 / 3, 1.75, 0])


def test_a_pixel_without_spikes_has_less_light_than_one_spike(windows):
    # The only interval of pixel 1 goes from 0 to 13, so 12 / 13 of it lie in the windows.
    assert windows.light[:, 0, 1].sum() < 1


def test_windows_outside_of_the_planes_are_not_recorded(windows):
    assert windows.are_recorded.tolist() == [False, True, True, True, False]


def test_what_the_network_sees_has_the_order_of_its_training():
    # There are three windows of 8 planes. In each window, a pixel of the left half has 4 spikes. A
    # pixel of the right half has 1 spike. The mean is 2.5. The light has the same values, because
    # it is measured in spikes, and no interval reaches from one window into the next.
    spikes = np.ones((3, 4, 8), np.float32)
    spikes[:, :, :4] = 4
    lengths = np.full(3, 8, np.float32)
    windows = Windows(counts=spikes, light=spikes, lengths=lengths, are_recorded=np.ones(3, bool))
    blurry = np.zeros((4, 8), np.float32)
    blurry[0] = 0.5  # one row of four, so the mean is 1/8

    inputs = pictures_of(windows, blurry, inside=slice(0, 3), planes_per_eleventh=8)

    # Channel 0: sqrt(light / mean light) - 1, here in the left half.
    # Channel 1: the change of the number of spikes from window to window, which is 0.
    assert inputs.pictures[:, 0, :, 0] == pytest.approx(np.sqrt(4 / 2.5) - 1, abs=1e-4)
    assert inputs.pictures[:, 1] == pytest.approx(0)
    # The scene has three parts: the spikes around each pixel, the mean of the spikes, and the
    # contrast of the blurry frame.
    around, mean, contrast = inputs.scene
    assert around[0, 0] > around[0, 7]
    assert mean == pytest.approx(np.log(2.5))
    assert contrast[0] == pytest.approx(2 * (0.5 - 0.125))  # 2 is CONTRAST (network_inputs.py)


def test_the_inputs_hardly_depend_on_the_number_of_planes_of_the_exposure():
    rng = np.random.default_rng(0)
    blurry = rng.random((16, 20)).astype(np.float32)
    # Each pixel fires every 4 planes. An eleventh of the exposure has 8 planes.
    stream = np.zeros((176, 16, 20), np.uint8)
    stream[::4] = 1
    # Keep the planes 0, 2, 4, ... The other planes have no spike. Now each pixel fires every 2
    # planes, and an eleventh has 4 planes. E.g. the edge of a window at plane 44 moves to plane 22.
    half_as_many_planes = stream[::2]
    half_edges = PLANES_OF_EDGES // 2

    usual_windows = spike_windows(stream, PLANES_OF_EDGES)
    usual = pictures_of(usual_windows, blurry, INSIDE, planes_per_eleventh=8.0)
    short_windows = spike_windows(half_as_many_planes, half_edges)
    short = pictures_of(short_windows, blurry, INSIDE, planes_per_eleventh=4.0)

    for of_usual, of_short in zip(usual, short, strict=True):  # the pictures, then the scene
        assert np.isfinite(of_usual).all()
        assert np.isfinite(of_short).all()
        assert np.abs(of_usual).max() < 5  # most values are about 1 or less
    # INSIDE selects the eleven windows that divide the exposure. The inputs are about 1. The
    # windows of the short exposure have half the planes, so their numbers of spikes are rounded
    # more coarsely. So the tolerance is large.
    assert np.allclose(usual.pictures[INSIDE], short.pictures[INSIDE], atol=0.3)
    assert np.allclose(usual.scene, short.scene, atol=0.3)


@pytest.fixture(scope="module", params=[0.6, 0.001], ids=["bright", "nearly dark"])
def inputs_of_frames(request, tmp_path_factory) -> list[NetworkInputs]:
    """Give the inputs of the network for each of three frames."""
    scene = Scene(velocity=(5.0, 0.0), rate=request.param)
    folder = tmp_path_factory.mktemp("inputs")
    reader = reader_of(scene.write(folder / "clip"))
    clip = RecordedClip(reader, context=None)
    return [network_inputs(clip.read(frame), clip.view, constant_network()) for frame in range(3)]


def test_the_inputs_are_finite_in_all_light(inputs_of_frames):
    for pictures, scene in inputs_of_frames:
        assert np.isfinite(pictures).all()
        assert np.isfinite(scene).all()


@pytest.mark.parametrize("inputs_of_frames", [0.6], ids=["bright"], indirect=True)
def test_the_windows_outside_of_a_clip_are_empty(inputs_of_frames):
    for frame, (pictures, _) in enumerate(inputs_of_frames):
        is_recorded = np.abs(pictures).max(axis=(1, 2, 3)) > 0  # (15,): whether a window is not 0
        # Two of the 15 windows lie before the exposure (0 and 1), and two after it (13 and 14).
        # The first frame has no planes before it, and the last frame has no planes after it.
        assert is_recorded[:2].any() == (frame > 0)
        assert is_recorded[13:].any() == (frame < 2)

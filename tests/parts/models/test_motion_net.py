"""models/fusion/motion_net.py: the network that finds the motion from spikes in windows of time.

The pictures and scenes here are random or made by hand. tests/parts/data/test_learned.py tests
which motion the network finds from the spikes of rendered scenes.

Shapes: B exposures, WINDOWS = 15 windows of time, h x w pixels.
"""

import pytest
import torch

from models.fusion.least_squares import least_squares
from models.fusion.motion_net import LEVELS, SCENE_CHANNELS, MotionNet, add_shared_motion
from models.fusion.motion_windows import PICTURE_CHANNELS, WINDOWS, displacements, move_back
from tests.helpers.checked import not_none

# Number of the window around the sharp instant. Seven windows lie before this window, and seven
# after it.
MIDDLE = 7


@pytest.fixture
def net():
    """Give a network with the weights of seed 0."""
    torch.manual_seed(0)
    return MotionNet()


def random_inputs(batch, height, width):
    """Return random pictures (B, 15, 2, h, w) and a random scene (B, 3, h, w)."""
    pictures = torch.randn(batch, WINDOWS, PICTURE_CHANNELS, height, width)
    scene = torch.randn(batch, SCENE_CHANNELS, height, width)
    return pictures, scene


# ---- The whole network ----


def test_the_network_is_small(net):
    # The network has 266,595 parameters. A network with many more parameters would be too slow on a
    # CPU.
    assert sum(parameter.numel() for parameter in net.parameters()) < 300_000


def test_the_network_gives_a_motion_at_each_level(net):
    found = net(*random_inputs(batch=2, height=16, width=24))

    for curves, level in zip(found, LEVELS, strict=True):
        size = (16 // level.size, 24 // level.size)
        assert curves.coefficients.shape == (2, 6, *size)
        assert curves.log_error.shape == (2, 1, *size)


def test_the_network_stops_at_a_coarse_level_if_told(net):
    found = net(*random_inputs(batch=1, height=8, width=8), levels=2)

    assert [curves.size for curves in found] == [8, 4]  # sides of a pixel, in spike pixels


def test_all_parameters_of_the_network_learn(net):
    found = net(*random_inputs(batch=1, height=16, width=16))

    loss = torch.zeros(())
    for curves in found:
        loss = loss + curves.coefficients.square().sum() + curves.log_error.square().sum()
    loss.backward()

    for parameter in net.parameters():
        assert not_none(parameter.grad).any()


def test_weights_files_hold_only_the_parameters_of_the_network(net):
    # The times of the windows and the matrix that fits them follow from constants of the code.
    names = {name for name, _ in net.named_parameters()}

    assert set(net.state_dict()) == names


# ---- Curves ----


def test_a_curve_is_the_sum_of_its_powers_of_time():
    # A curve is q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3. Its channels are x and y of c_1, of c_2,
    # and of c_3.
    curve = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).view(1, 6, 1, 1)
    tau = torch.tensor([0.0, 1.0, 2.0])

    q = displacements(curve, tau)  # (1, 3, 2, 1, 1)

    at_0, at_1, at_2 = q[0, :, :, 0, 0].tolist()
    assert at_0 == [0, 0]  # the sharp instant
    assert at_1 == [1 + 3 + 5, 2 + 4 + 6]
    assert at_2 == [2 * 1 + 4 * 3 + 8 * 5, 2 * 2 + 4 * 4 + 8 * 6]


def test_pictures_that_moved_are_moved_back_to_the_sharp_instant():
    # The picture moves to the right, by one pixel from each window to the next.
    sharp = torch.rand(8, 8)
    steps = [window - MIDDLE for window in range(WINDOWS)]  # pixels
    moved = torch.stack([torch.roll(sharp, step, dims=1) for step in steps])  # (15, 8, 8)
    pictures = moved[:, None].repeat(1, PICTURE_CHANNELS, 1, 1)  # (15, 2, 8, 8)
    shifts = torch.zeros(1, WINDOWS, 2, 8, 8)
    shifts[:, :, 0] = torch.tensor(steps).view(1, WINDOWS, 1, 1)  # x

    back = move_back(pictures, shifts)  # (1, 30, 8, 8): two channels of each window

    # Compare columns 3 and 4 in the windows up to two steps from the middle. With a shift of 2 or
    # less, these columns come from columns 1 to 6 of the 8 columns, so from within the picture.
    # Other columns, or columns of other windows, may come from beyond the edge of the picture.
    columns = slice(3, 5)
    for window in range(MIDDLE - 2, MIDDLE + 3):
        first_channel = back[0, PICTURE_CHANNELS * window]
        assert torch.allclose(first_channel[:, columns], sharp[:, columns], atol=1e-5)


# ---- Parts of a correction ----


def test_least_squares_find_a_small_motion_between_windows(net):
    # The pattern moves to the right by 0.4 pixels in a unit of tau. A unit of tau is half an
    # exposure. The pattern does not move down. E.g. at tau = 1, the value at x = 10 is the value
    # that was at
    # x = 10 - 0.4 = 9.6 at the sharp instant (tau = 0).
    speed = 0.4
    x = torch.arange(24.0)[None, :]
    y = torch.arange(24.0)[:, None]
    tau = net.tau.view(WINDOWS, 1, 1)
    pattern = torch.sin((x - speed * tau) / 3) + torch.cos(y / 3)  # (15, 24, 24)
    # Both channels of a window, light and number of spikes, have the pattern.
    moved = pattern.repeat_interleave(PICTURE_CHANNELS, dim=0)[None]  # (1, 30, 24, 24)
    no_scene = torch.zeros(1, SCENE_CHANNELS, 24, 24)

    # `least_squares` finds four motions. Each explains one change of the pixels: two changes of the
    # light, and two changes of the number of spikes. Channels 0 to 3 have x of the four motions,
    # and channels 4 to 7 have y.
    found = least_squares(moved, no_scene, net.parabola_fit)  # (1, 8, 24, 24)

    inside = found[0, :, 6:-6, 6:-6].mean((1, 2))  # without edges, where squares are cut off
    x_by_light = inside[0]  # by the change of the light that grows with tau
    y_by_light = inside[4]
    # Least squares assume that a picture changes in proportion to the motion, e.g. twice as much
    # for twice the motion. This picture changes only nearly in proportion, so the found motion is
    # not exact.
    assert x_by_light == pytest.approx(speed, abs=0.1)
    assert y_by_light == pytest.approx(0, abs=0.05)


def test_the_shared_motion_is_the_weighted_mean_of_all_pixels():
    # There are two pixels with 14 channels. Channels 0 to 5 are the changes of a pixel. Channels 7
    # to 12 are its estimate of the motion that all pixels share. Channel 13 is the logarithm of the
    # weight of this estimate.
    changes = torch.zeros(1, 14, 1, 2)
    # Channels 0 and 7 belong to c_1 in x. Apart from the weight, all other channels stay 0.
    changes[0, 0, 0] = torch.tensor([0.0, 1.0])
    changes[0, 7, 0] = torch.tensor([2.0, 8.0])
    # The weights are 1 and 3: the second pixel counts three times.
    changes[0, 13, 0] = torch.tensor([1.0, 3.0]).log()

    c_1 = add_shared_motion(changes)[0, 0, 0]

    shared = (1 * 2.0 + 3 * 8.0) / 4
    assert torch.allclose(c_1, torch.tensor([0.0 + shared, 1.0 + shared]))


def test_seven_channels_have_no_shared_motion():
    changes = torch.rand(1, 7, 2, 2)

    assert add_shared_motion(changes) is changes

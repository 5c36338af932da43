"""The network that finds the motion from spikes in windows of time."""

import numpy as np
import torch

from models.fusion.motion_net import (
    INSIDE,
    LEVELS,
    WINDOWS,
    MotionNet,
    displacements,
    moved_back,
    with_shared,
)


def test_it_is_small_and_gives_a_motion_at_each_level():
    torch.manual_seed(0)
    net = MotionNet()
    assert sum(p.numel() for p in net.parameters()) < 300_000
    found = net(torch.randn(2, WINDOWS, 2, 16, 24), torch.randn(2, 3, 16, 24))
    for curves, level in zip(found, LEVELS, strict=True):
        shape = (16 // level.size, 24 // level.size)
        assert curves.coefficients.shape == (2, 6, *shape)
        assert curves.log_error.shape == (2, 1, *shape)
    coarse = net(torch.randn(1, WINDOWS, 2, 8, 8), torch.randn(1, 3, 8, 8), levels=2)

    assert [curves.size for curves in coarse] == [8, 4]


def test_all_its_parameters_learn_and_its_times_are_not_saved():
    torch.manual_seed(0)
    net = MotionNet()
    found = net(torch.randn(1, WINDOWS, 2, 16, 16), torch.randn(1, 3, 16, 16))
    sum(c.coefficients.square().sum() + c.log_error.square().sum() for c in found).backward()

    assert all(p.grad is not None and p.grad.any() for p in net.parameters())
    assert set(net.state_dict()) == {name for name, _ in net.named_parameters()}


def test_a_curve_is_0_at_the_sharp_instant_and_follows_its_powers():
    curve = torch.tensor([1.0, 2, 3, 4, 5, 6]).view(1, 6, 1, 1)
    at = displacements(curve, torch.tensor([0.0, 1, 2]))[0, ..., 0, 0]
    assert at.tolist() == [[0, 0], [9, 12], [54, 68]]


def test_pictures_that_moved_are_moved_back_to_the_sharp_instant():
    picture = torch.rand(8, 8)
    moved = [torch.roll(picture, (0, number - 7), (0, 1)) for number in range(WINDOWS)]
    pictures = torch.stack(moved)[:, None].repeat(1, 2, 1, 1)
    shifts = torch.zeros(1, WINDOWS, 2, 8, 8)
    shifts[:, :, 0] = (torch.arange(WINDOWS) - 7).view(1, -1, 1, 1)
    back = moved_back(pictures, shifts)
    middle = slice(3, 5)  # elsewhere a picture comes from beyond its edge
    for number in range(5, 10):
        assert torch.allclose(back[0, 2 * number, :, middle], picture[:, middle], atol=1e-5)


def test_least_squares_find_a_small_motion_between_windows():
    net = MotionNet()
    y, x = np.mgrid[:24, :24] / 3
    speed = 0.4  # pixels in half an exposure
    light = []
    for tau in net.tau.tolist():
        light.append(np.sin(x - speed / 3 * tau) + np.cos(y))
    pictures = torch.from_numpy(np.stack(light)).float()[None, :, None].repeat(1, 1, 2, 1, 1)
    found = net._least_squares(pictures.flatten(1, 2), torch.zeros(1, 3, 24, 24))
    inside = found[0, :, 6:-6, 6:-6].mean((1, 2))

    assert abs(inside[0] - speed) < 0.1  # x by tau, from the light
    assert abs(inside[4]) < 0.05  # y
    assert INSIDE.stop - INSIDE.start == 11


def test_the_shared_motion_is_the_mean_by_weight():
    changes = torch.zeros(1, 14, 1, 2)
    changes[0, 7, 0] = torch.tensor([2.0, 8.0])  # c_1 in x as each pixel sees it
    changes[0, 13, 0] = torch.tensor([0.0, np.log(3)])  # the second counts three times
    changes[0, 0, 0] = torch.tensor([0.0, 1.0])
    assert torch.allclose(with_shared(changes)[0, 0, 0], torch.tensor([6.5, 7.5]))
    alone = torch.rand(1, 7, 2, 2)

    assert with_shared(alone) is alone

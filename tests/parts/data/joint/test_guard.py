"""data/motion/joint/guard.py: where the solution does not fit, the guard falls back to the start.

"Measured" in a comment is the value when the test was written. The limit beside it leaves room for
other versions of torch.
"""

import pytest
import torch

from tests.helpers.joint_case import MOVING, Case, true_motion


@pytest.fixture(scope="module")
def wrong_solution(moving_clip):
    """Give (case, start, z): a case along a wrong motion, a good start, and the bad solution z.

    The scene moves, but the motion says that nothing moves (factor 0). The start is the sharp frame
    with a little noise.
    """
    case = Case(moving_clip, true_motion(MOVING, factor=0.0))
    torch.manual_seed(0)
    noise = 0.03 * torch.randn_like(case.sharp)
    start = (case.sharp + noise).clamp(0, 1)
    return case, start, case.equations.solve(start)


def test_the_guard_saves_a_good_start_from_a_wrong_motion(wrong_solution):
    case, start, z = wrong_solution

    frame = case.guarded(z, start, guard=3.0).frame

    loss_of_solution = case.psnr(start) - case.psnr(z)
    loss_of_guarded = case.psnr(start) - case.psnr(frame)
    assert loss_of_solution > 1  # dB; measured: 4.4. Only a bad solution tests the guard.
    assert loss_of_guarded < loss_of_solution / 2  # measured: 0.3 dB


def test_the_guard_weighs_each_pixel_between_start_and_solution(wrong_solution):
    case, start, z = wrong_solution

    weight = case.guarded(z, start, guard=3.0).weight_of_z

    assert float(weight.min()) >= 0
    assert float(weight.max()) <= 1


def test_a_guard_of_0_gives_the_solution_as_it_is(wrong_solution):
    case, start, z = wrong_solution

    frame = case.guarded(z, start, guard=0.0).frame

    assert torch.equal(frame, z)

"""data/motion/joint/: the sharp frame that fits the RGB frame and the spikes along a motion.

The data are simulated scenes whose motion is known (tests/helpers/moving_scene.py). The equations
say what both cameras see of a sharp frame that moves along the motion:

    RGB equations      the mean of the moving frame over the exposure is the blurry frame
    spike equations    a pixel collects one threshold of light between two neighbouring spikes

"Measured" in a comment is the value when the test was written. Other versions of torch may give
slightly other values, so the limit is wider than the measured value.
"""

import copy
from typing import NamedTuple

import pytest
import torch

from data.motion.joint import solution
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.linearised import Linearised
from data.motion.joint.values import DARK
from tests.helpers.joint_case import CPU, EDGE, INSIDE, Case

# Index of spike planes (M, h, w) without their edges. A plane has half as many rows and columns as
# a frame.
INSIDE_SPIKES = (slice(None), slice(EDGE // 2, -EDGE // 2), slice(EDGE // 2, -EDGE // 2))


# ---- The equations ----


class Misfit(NamedTuple):
    """Root mean squares of residuals, in multiples of the expected error."""

    rgb: float
    spikes: float


def root_mean_square(values: torch.Tensor) -> float:
    """Return the root of the mean square of a tensor."""
    return float(values.square().mean().sqrt())


def misfit(equations: Equations, frame: torch.Tensor) -> Misfit:
    """Return how badly a frame fits the equations. 1 is as good as noise allows."""
    r_b, r_s = equations.system.residuals(frame)
    # A weight is 1 / (expected error). So weight times residual is a residual in multiples of its
    # expected error. If an interval between two spikes is not used, it has the weight 0.
    of_rgb = (equations.system.rgb.weights * r_b)[INSIDE]
    counts = equations.system.spikes.weights[INSIDE_SPIKES] > 0
    of_spikes = (equations.system.spikes.weights * r_s)[INSIDE_SPIKES][counts]
    return Misfit(root_mean_square(of_rgb), root_mean_square(of_spikes))


def test_the_sharp_frame_along_the_true_motion_fits_all_equations(true_case):
    of_sharp = misfit(true_case.equations, true_case.sharp)

    # A misfit of 1 is the expected error. The misfits were measured as
    #
    #     blurry frame                                       0.2
    #     spikes of a camera that integrates light           0.6
    #     spikes of a camera that integrates display values  0.8
    assert of_sharp.rgb < 1.5
    assert of_sharp.spikes < 1.5


def test_the_blurry_frame_fits_the_equations_worse_than_the_sharp_frame(true_case):
    of_sharp = misfit(true_case.equations, true_case.sharp)
    of_blurry = misfit(true_case.equations, true_case.blurry)

    # The ratios of the two misfits were measured as
    #
    #     blurry frame                                       9
    #     spikes of a camera that integrates light           2.0
    #     spikes of a camera that integrates display values  1.5
    #
    # The limit for spikes is lower, because a single interval between spikes is noisy.
    assert of_blurry.rgb > 3 * of_sharp.rgb
    assert of_blurry.spikes > 1.3 * of_sharp.spikes


# ---- The solution ----


def test_the_divisor_has_the_row_sums_of_the_normal_equations(true_case):
    # `row_sums` assumes that all pixels have the same slope dx / dz, so all pixels are 0.5.
    z = torch.full_like(true_case.blurry, 0.5)

    linearised = Linearised(true_case.equations.system, z)

    row_sums = linearised.row_sums()
    for colour in range(3):
        # The product of A^T W A with a picture of ones in this colour adds up each row of A^T W A.
        ones = torch.zeros_like(z)
        ones[colour] = 1
        product = linearised.adjoint(*linearised.weighted_change(ones))
        assert torch.allclose(row_sums[colour], product[colour], rtol=1e-3)


def test_the_frame_is_far_sharper_than_its_start(moving_clip):
    case = Case(moving_clip)

    frame = case.equations.solve(case.blurry)

    gain = case.psnr(frame) - case.psnr(case.blurry)
    assert gain > 5  # dB; measured: 6.3


def test_the_first_step_changes_the_frame_as_the_equations_pull_it(true_case, monkeypatch):
    # data/motion/joint/solution.py explains the letters. From z_0, the first step of conjugate
    # gradients goes along A^T W r, divided by the preconditioner M = lambda + DIVISOR +
    # DIVISOR_BY_ROW_SUM R. With a large DIVISOR, and without R, M is nearly the same everywhere. So
    # the step is proportional to A^T W r, which the lines below compute by hand.
    monkeypatch.setattr(solution, "DIVISOR", 1e6)
    monkeypatch.setattr(solution, "DIVISOR_BY_ROW_SUM", 0.0)
    equations = copy.copy(true_case.equations)
    equations.solver = Solver(linearisations=1, steps=1)
    z_0 = true_case.blurry

    z = equations.solve(z_0)

    r_b, r_s = equations.system.residuals(z_0)
    w_b, w_s = equations.system.robust_weights(r_b, r_s)
    # A^T W r has two parts: by_x for the light x that the RGB camera sees, and by_l for the luma l
    # that the spike camera sees. The chain rule turns the two parts into a change of z.
    by_x, by_l = equations.system.cameras.adjoint(w_b**2 * r_b, w_s**2 * r_s)
    luma_weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    slope = 2.2 * z_0.clamp(min=DARK) ** 1.2  # dx / dz of x = z^2.2
    if equations.system.is_display:
        expected = slope * by_x + luma_weights * by_l
    else:
        expected = slope * (by_x + luma_weights * by_l)
    inside = (z > 0) & (z < 1)  # the solution is limited to these values
    change = (z - z_0)[inside]
    # The cosine of the angle between the two directions is 1 if the directions are equal.
    cosine = torch.cosine_similarity(change, expected[inside], dim=0)
    assert float(cosine) > 0.9999


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_gives_the_frame_that_the_cpu_gives(moving_clip):
    frames = []
    for device in (CPU, torch.device("cuda")):
        case = Case(moving_clip, device=device)
        start = case.blurry.to(device)
        frame = case.guarded(case.equations.solve(start), start, guard=3.0).frame
        frames.append(frame.cpu())

    on_cpu, on_gpu = frames
    # The GPU takes sums in another order, and the steps of the solver enlarge the difference. The
    # limit is below the steps in which a frame is saved, 1/255 = 4e-3.
    assert (on_cpu - on_gpu).abs().max() < 1e-3

"""Take a few steps of conjugate gradients towards the solution of normal equations.

Conjugate gradients solve N d = right_side for a positive definite matrix N that is only known as a
map, here

    N = A^T A + prior

    A        linear map from a frame to the values of both cameras: the blurry frame (3, H, W), and
             a grey value for each interval between two spikes of a pixel, (intervals, h, w)
    prior    positive, (H, W): how strongly each pixel of d is held near 0

Each step goes along a line, and ends at the point of this line at which the error is smallest. The
directions p of two lines are conjugate (p_1^T N p_2 = 0), so no step undoes an earlier step. After
a few steps, what the cameras see clearly has converged, and noise has not.

The residuals are divided by M, (3, H, W): a number for each pixel and colour (a preconditioner). M
stands for a diagonal matrix. The nearer this matrix is to N, the fewer steps are needed. If all
numbers of M are 1, M has no effect.

The algorithm is 9.1 of Saad, Iterative Methods for Sparse Linear Systems, 2003. The letters of
Saad:

    name in the code       letter of Saad
    direction              p
    residual               r = right_side - N d
    divided_residual       z = M^-1 r
    energy                 (r, z), the sum of the products of r and z
    curvature              (N p, p)
    step_length            alpha = energy / curvature
    weight_of_direction    beta = energy / energy of the step before

The first three are frames (3, H, W), and the last four are scalars. E.g. with the numbers N = 4, M
= 1 and right_side = 8 in place of frames: p = 8, energy 64, curvature 256, alpha 0.25, and d = 0.25
* 8 = 2. d is the solution 8 / 4 after one step.

What must stay: each step, because callers stop after a few steps, before the solution is reached.

Tests: tests/parts/data/joint/test_conjugate_gradients.py notices a wrong step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# A linear map from a frame (3, H, W) to the values of both cameras, (3, H, W) and
# (intervals, h, w).
Linear = Callable[[Tensor], tuple[Tensor, Tensor]]
# The map back, from the values of both cameras to a frame.
Adjoint = Callable[[Tensor, Tensor], Tensor]


def conjugate_gradients(
    linear: Linear,
    adjoint: Adjoint,
    prior: Tensor,
    right_side: Tensor,
    divisor: Tensor,
    steps: int,
) -> Tensor:
    """Return d after `steps` steps from 0 towards the solution of N d = right_side.

    linear: A. adjoint: A^T. `adjoint` must return a new tensor, because its result is overwritten.
    prior: (H, W), positive, so N is positive definite.
    right_side: (3, H, W). steps: number of steps.
    divisor: M, (3, H, W), positive: the preconditioner, by which residuals are divided.
    """
    d = torch.zeros_like(right_side)
    residual = right_side.clone()  # right_side - N d, with d = 0
    divided_residual = residual / divisor  # M^-1 residual
    direction = divided_residual.clone()
    energy = _product(residual, divided_residual)  # <residual, M^-1 residual>
    # `curvature` and `previous_energy` are divisors below. If the residual is 0 after a few steps,
    # both divisors are 0, too, and 0 / 0 would be NaN. So both divisors are raised to at least
    # `tiny`.
    tiny = torch.finfo(right_side.dtype).tiny
    # All is computed in place, because each tensor of a large frame has ten megabytes or more.
    for number in range(1, steps + 1):
        # <direction, N direction> = |linear direction|^2 + <direction, prior direction>
        blurry, spikes = linear(direction)
        prior_direction = prior * direction
        curvature = (
            _product(blurry, blurry)
            + _product(spikes, spikes)
            + _product(direction, prior_direction)
        )
        step_length = energy / curvature.clamp(min=tiny)
        d.addcmul_(step_length, direction)  # + step_length direction
        if number == steps:
            break  # no direction follows, so the adjoint is not needed
        normal_direction = adjoint(blurry, spikes).add_(prior_direction)  # N direction
        residual.addcmul_(step_length, normal_direction, value=-1)  # - step_length N direction
        torch.div(residual, divisor, out=divided_residual)
        # The next direction: divided_residual + weight_of_direction * (this direction).
        previous_energy = energy
        energy = _product(residual, divided_residual)
        weight_of_direction = energy / previous_energy.clamp(min=tiny)
        direction.mul_(weight_of_direction).add_(divided_residual)
    return d


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return <a, b>, the sum of the products of all values (a scalar)."""
    return torch.dot(a.flatten(), b.flatten())

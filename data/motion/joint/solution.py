"""Solve the equations of both cameras for the sharp frame.

The unknown is the sharp frame z, (3, H, W), display values; its light is x = z^2.2. The solution
minimises

    sum rho(w_b (b - B x)) + sum rho(w_s (y - S l)) + sum lambda |z - z_0|^2

    B x = b, S l = y    what both cameras recorded, with the weights w_b and w_s (system.py)
    rho                 Cauchy's function: equations with large residuals count little
    z_0                 first estimate of z
    lambda              how strongly each pixel is held near z_0, more where the motion is uncertain

The problem is not linear, because of x = z^2.2 and of rho. So it is linearised a few times
(linearised.py). Each time, a few steps of conjugate gradients go towards the change d of z that
solves the normal equations

    (A^T W A + lambda) d = A^T W r - lambda (z - z_0)

    A    the map from a change of z to the change of what both cameras see
    W    diagonal matrix of the squares of the weights, smaller where rho counts less. (In a shape
         such as (3, H, W), W is the width of the frame.)
    r    residuals of both cameras, (b - B x, y - S l)

E.g. one equation with A = 1 and the weight w = 10, so W = 100, lambda = 25, and z at z_0: with the
residual r = 0.1, d = 100 * 0.1 / (100 + 25) = 0.08. With lambda = 0, it would be 0.1.

More steps would fit the noise. Few steps are enough, because conjugate gradients use a
preconditioner. They divide the residuals by a number M for each pixel and colour.

What must stay: the solution. The fusion operator "motion" (models/fusion/fusion_motion.py) improves
frames by learned steps along the motion. Its network was trained on this solution.

Tests: tests/parts/data/joint/test_equations.py. What is wrong, and the test that fails:

    the solution      test_the_frame_is_far_sharper_than_its_start
    the right side    test_the_first_step_changes_the_frame_as_the_equations_pull_it

The tests do not guard the constants below: they pass with 0, too. So measure the effect of another
value (docs/benchmarks/quality_details.md, "Its constants").
"""

from torch import Tensor

from data.motion.joint.conjugate_gradients import conjugate_gradients
from data.motion.joint.linearised import Linearised
from data.motion.joint.system import System

# Factor of the errors of the motion in lambda (`prior_weight_of`). With half of this value, frames
# in dim light gain 0.2 dB of PSNR, but photographs lose 0.15 dB. With 2.5 times this value, frames
# in good light lose 0.2 dB.
PRIOR_BY_MOTION_ERROR = 0.008


def prior_weight_of(motion_error: Tensor, sigma_b: float) -> Tensor:
    """Return lambda, how strongly each pixel is held near z_0, (H, W).

        lambda = 1 + PRIOR_BY_MOTION_ERROR (q / sigma_b)^2

    E.g. with sigma_b = 0.01, lambda is 1.8 where the expected error q of the motion is 0.1 pixels,
    and 81 where it is 1 pixel.

    motion_error: q, in pixels, (H, W).
    sigma_b: expected error of a blurry pixel, in display values.
    """
    return 1 + PRIOR_BY_MOTION_ERROR * (motion_error / sigma_b) ** 2


def solve(
    system: System, prior_weight: Tensor, z_0: Tensor, linearisations: int, steps: int
) -> Tensor:
    """Return the solution z (3, H, W) of the equations.

    prior_weight: lambda, (H, W). z_0: first estimate, (3, H, W).
    linearisations: number of times that the equations are linearised.
    steps: number of steps of conjugate gradients after each linearisation.
    """
    z = z_0
    for _ in range(linearisations):
        z = _solve_linearised(system, prior_weight, z=z, z_0=z_0, steps=steps)
    return z


# The preconditioner M, a number for each pixel and colour, by which conjugate gradients divide the
# residuals. It is the diagonal of a matrix near the matrix of the normal equations:
#
#     M = lambda + DIVISOR + DIVISOR_BY_ROW_SUM R        R: sum of each row of A^T W A
#
# Without M, pixels of large lambda would converge long after other pixels. Values 3 times as large
# or as small change the PSNR by 0.03 dB at most. With DIVISOR = 0, a pixel that fits no equation
# follows noise.
DIVISOR = 300.0
DIVISOR_BY_ROW_SUM = 0.1


def _solve_linearised(
    system: System, prior_weight: Tensor, z: Tensor, z_0: Tensor, steps: int
) -> Tensor:
    """Return z (3, H, W) after the equations are linearised at z and solved.

    prior_weight: lambda, (H, W). z: where the equations are linearised, (3, H, W).
    z_0: first estimate, near which z is held, (3, H, W). steps: steps of conjugate gradients.
    """
    linearised = Linearised(system, z)
    # A^T W r - lambda (z - z_0), and M
    right_side = linearised.gradient() - prior_weight * (z - z_0)
    divisor = prior_weight + DIVISOR + DIVISOR_BY_ROW_SUM * linearised.row_sums()
    d = conjugate_gradients(
        linearised.weighted_change,
        linearised.adjoint,
        prior=prior_weight,
        right_side=right_side,
        divisor=divisor,
        steps=steps,
    )
    return (z + d).clamp(0, 1)  # display values lie in [0, 1]

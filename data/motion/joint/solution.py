"""Solve the equations of both cameras for the sharp frame.

The unknown is the sharp frame z, (3, H, W), display values; its light is x = z^2.2. The solution
minimises

    sum rho(w_b (b - B x)) + sum rho(w_s (y - S l)) + sum lambda |z - z_0|^2

    B x = b, S l = y    what both cameras recorded, with the weights w_b and w_s (system.py)
    rho                 Cauchy's function: equations with large residuals count little
    z_0                 first estimate of z
    lambda              how strongly each pixel is held near z_0, more where the motion is uncertain

This is no linear problem, because of x = z^2.2 and of rho. So it is linearised a few times. Each
time, a few steps of conjugate gradients go towards the change d of z that solves the normal
equations

    (A^T W A + lambda) d = A^T W r - lambda (z - z_0)

    A    the map from a change of z to the change of what both cameras see
    W    squares of the weights, which are smaller where rho counts less
    r    residuals of both cameras, (b - B x, y - S l)

More steps would fit the noise. Few steps are enough, because residuals are divided by a number M
for each pixel and colour (`_divisor`): without M, pixels of large lambda would converge long after
other pixels.

In tests/parts/data/joint/test_equations.py, test_the_frame_is_far_sharper_than_its_start notices a
wrong solution, and test_the_first_step_changes_the_frame_as_the_equations_pull_it a wrong right
side. The tests pass with K = 0 or M_0 = M_1 = 0: measure another value
(docs/benchmarks/quality_details.md, "Its constants").
"""

from torch import Tensor

from data.motion.joint.conjugate_gradients import conjugate_gradients
from data.motion.joint.system import System
from data.motion.joint.values import luma, luma_weights, slope_of

# K in lambda = 1 + K (q / sigma_b)^2. E.g. with sigma_b = 0.01, lambda is 1.8 for an expected error
# of the motion of q = 0.1 pixels, and 81 for q = 1. Half of it gains 0.2 dB in dim light, but loses
# 0.15 dB on photographs. 2.5 times as much loses 0.2 dB in good light.
K = 0.008


def prior_weight_of(motion_error: Tensor, sigma_b: float) -> Tensor:
    """Return lambda, how strongly each pixel is held near z_0, (H, W).

    motion_error: q, expected error of the motion in pixels, (H, W).
    sigma_b: expected error of a blurry pixel, in display values.
    """
    return 1 + K * (motion_error / sigma_b) ** 2


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
        z = _solve_linearised(system, prior_weight, z, z_0, steps)
    return z


def _solve_linearised(
    system: System, prior_weight: Tensor, z: Tensor, z_0: Tensor, steps: int
) -> Tensor:
    """Return z (3, H, W) after the equations are linearised at z and solved.

    `apply_adjoint` must stay the adjoint of `apply_map`.
    test_the_first_step_changes_the_frame_as_the_equations_pull_it notices a wrong adjoint.
    """
    r_b, r_s = system.residuals(z)
    w_b, w_s = system.robust_weights(r_b, r_s)
    slope = slope_of(z)  # dx / dz

    def apply_map(d: Tensor) -> tuple[Tensor, Tensor]:
        """Return w A d: by how much a change d of z changes what the cameras see, times w."""
        change_of_light = slope * d
        # A camera that integrates light sees the luma of the change of light.
        change_integrated = luma(d) if system.is_display else None
        blurry, spikes = system.cameras(change_of_light, change_integrated)
        return blurry.mul_(w_b), spikes.mul_(w_s)

    def apply_adjoint(blurry: Tensor, spikes: Tensor) -> Tensor:
        """Return A^T w of (blurry, spikes): the adjoint of `apply_map`, (3, H, W)."""
        # Back to light x (3, H, W), and to what the spike camera integrates, l (1, H, W).
        to_x, to_l = system.cameras.adjoint(w_b * blurry, w_s * spikes)
        # The adjoint of the luma: `weights * to_l`, (3, H, W). In place, to save memory.
        weights = luma_weights(to_l.device)
        if system.is_display:
            return to_x.mul_(slope).addcmul_(weights, to_l)  # slope to_x + weights to_l
        return to_x.addcmul_(weights, to_l).mul_(slope)  # slope (to_x + weights to_l)

    # The right side: A^T W r - lambda (z - z_0)
    right_side = apply_adjoint(w_b * r_b, w_s * r_s) - prior_weight * (z - z_0)
    d = conjugate_gradients(
        apply_map,
        apply_adjoint,
        prior=prior_weight,
        right_side=right_side,
        divisor=_divisor(system, prior_weight, w_b, w_s, slope),
        steps=steps,
    )
    return (z + d).clamp(0, 1)


# M_0 and M_1 in M = lambda + M_0 + M_1 R, by which residuals are divided. Values 3 times as large
# or as small change the PSNR gain on coffee and walker by 0.03 dB at most. With M_0 = 0 these clips
# gain 0.03 dB less, because a pixel that fits no equation follows noise.
M_0 = 300.0
M_1 = 0.1


def _divisor(
    system: System, prior_weight: Tensor, w_b: Tensor, w_s: Tensor, slope: Tensor
) -> Tensor:
    """Return M = lambda + M_0 + M_1 R, (3, H, W), the divisor of residuals.

    R: the sum of each row of A^T W A over the pixels of one colour. It is taken as if the
    slope were the same at all pixels that an equation adds up.
    w_b, w_s: weights of the equations. slope: dx / dz, (3, H, W).
    """
    # The sums of all rows of a matrix are its product with a picture of ones. B takes means, so
    # B 1 = 1, and the sums of B^T w_b^2 B are B^T w_b^2. S takes means, too.
    sums_x, sums_l = system.cameras.adjoint(w_b**2, w_s**2)
    # The luma has a weight for each colour. It comes twice, once in S and once in S^T.
    sums_rgb = luma_weights(sums_l.device) ** 2 * sums_l  # (3, H, W)
    if system.is_display:
        row_sums = slope**2 * sums_x + sums_rgb
    else:
        row_sums = slope**2 * (sums_x + sums_rgb)
    return prior_weight + M_0 + M_1 * row_sums

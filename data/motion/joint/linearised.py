"""Linearise the equations of both cameras at a frame.

The equations B x = b and S l = y are linear in the light x = z^2.2. But the display values z are
wanted, and the equations are not linear in z. If z changes by a small d, what the cameras see
changes nearly in proportion to d:

    A d = (B (slope d), S luma(slope d))    if the spike camera integrates light
    A d = (B (slope d), S luma(d))          if it integrates display values

    slope = dx / dz = 2.2 z^1.2, (3, H, W), at the z of each pixel and colour

E.g. at z = 0.5 the slope is 0.96. So d = 0.1 changes the light of the pixel by about 0.096.

The normal equations of the change d need three results of A. W is the diagonal matrix of the
squares w^2. (In a shape such as (3, H, W), W is the width of the frame.)

    A^T W A d    in two steps: `weighted_change` gives y = w A d, and `adjoint` gives A^T w y
    A^T W r      `gradient`; r are the residuals at z
    R            `row_sums`: the sum of each row of A^T W A over the pixels of one colour

`System.robust_weights` gives the weights w = (w_b, w_s) at z. cameras.py has B and S, with their
adjoints. S l, y and w_s are (M, h, w), because each of the h x w spike pixels has M equations, one
for each interval between two spikes.

What must stay: `adjoint` is the adjoint of `weighted_change`.

Tests: tests/parts/data/joint/test_equations.py, for both kinds of spike cameras. What is wrong, and
the test that fails:

    `adjoint`     test_the_first_step_changes_the_frame_as_the_equations_pull_it
    `row_sums`    test_the_divisor_has_the_row_sums_of_the_normal_equations
"""

import torch
from torch import Tensor

from data.motion.joint.system import System
from data.motion.joint.values import luma, luma_weights, slope_of


class Linearised:
    """The equations of a system, linearised at a frame z (3, H, W)."""

    def __init__(self, system: System, z: Tensor) -> None:
        self._cameras = system.cameras
        self._is_display = system.is_display
        self._r_b, self._r_s = system.residuals(z)
        self._w_b, self._w_s = system.robust_weights(self._r_b, self._r_s)
        self._slope = slope_of(z)  # dx / dz, (3, H, W)
        # B^T w_b^2 r_b for `gradient`, and B^T w_b^2 for `row_sums`. Mapping both pictures back at
        # once takes less time.
        squares = self._w_b**2
        pictures = torch.stack((squares * self._r_b, squares))
        mapped_back = self._cameras.adjoints_of_blurry(pictures)
        self._gradient_x = mapped_back[0]
        self._sums_x = mapped_back[1]

    def weighted_change(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return w A d, (3, H, W) and (M, h, w). d: change of z, (3, H, W)."""
        change_of_light = self._slope * d
        change_integrated = luma(d) if self._is_display else luma(change_of_light)
        blurry, spikes = self._cameras(change_of_light, change_integrated)
        # Multiply in place, which is safe because `Cameras` returns new tensors.
        return blurry.mul_(self._w_b), spikes.mul_(self._w_s)

    def adjoint(self, blurry: Tensor, spikes: Tensor) -> Tensor:
        """Return A^T w (blurry, spikes), (3, H, W). blurry: (3, H, W). spikes: (M, h, w).

        The result is a new tensor, because `conjugate_gradients` overwrites it.
        """
        # Back to light x (3, H, W), and to what the spike camera integrates, l (1, H, W).
        to_x, to_l = self._cameras.adjoint(self._w_b * blurry, self._w_s * spikes)
        return self._to_display(to_x, to_l)

    def _to_display(self, to_x: Tensor, to_l: Tensor) -> Tensor:
        """Return a change of z (3, H, W) from changes of x (3, H, W) and l (1, H, W).

        to_x is overwritten, to save memory.
        """
        # The adjoint of the luma: `weights * to_l`, (3, H, W).
        weights = luma_weights(to_l.device)
        if self._is_display:
            return to_x.mul_(self._slope).addcmul_(weights, to_l)  # slope to_x + weights to_l
        return to_x.addcmul_(weights, to_l).mul_(self._slope)  # slope (to_x + weights to_l)

    def gradient(self) -> Tensor:
        """Return A^T W r, (3, H, W): how the equations would change z."""
        to_l = self._cameras.adjoint_of_spikes(self._w_s**2 * self._r_s)
        # Pass a copy, because `_to_display` overwrites its first argument.
        return self._to_display(self._gradient_x.clone(), to_l)

    def row_sums(self) -> Tensor:
        """Return R, (3, H, W): the sums of the rows of A^T W A over the pixels of one colour.

        The sums are computed as if the slope were the same at all pixels that an equation adds up.
        """
        # The row sums of a matrix are its product with a picture of ones. B takes means, so B 1 is
        # 1, and the row sums of B^T w_b^2 B are B^T w_b^2. In the same way, S takes means, and the
        # row sums of S^T w_s^2 S are S^T w_s^2.
        sums_x = self._sums_x
        sums_l = self._cameras.adjoint_of_spikes(self._w_s**2)
        # The luma has a weight for each colour. The weight is squared, because it is a factor of S
        # and of S^T.
        sums_rgb = luma_weights(sums_l.device) ** 2 * sums_l  # (3, H, W)
        if self._is_display:
            return self._slope**2 * sums_x + sums_rgb
        return self._slope**2 * (sums_x + sums_rgb)

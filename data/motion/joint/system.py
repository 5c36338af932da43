"""Hold the equations of both cameras, and say by how much a frame misses each of them.

The unknown is the sharp frame z, (3, H, W), display values. Both cameras have recorded this frame
along its motion:

    x = z^2.2    light of z
    l            what the spike camera integrates, (1, H, W): luma of x if the camera integrates
                 light, luma of z if it integrates display values

    B x = b      RGB equations, one per pixel and colour of the blurry frame, weights w_b
    S l = y      spike equations, one per interval between two spikes of a pixel, weights w_s:
                 (M, h, w), i.e. M for each of the h x w spike pixels

A residual r is the right side minus the left side: b - B x, or y - S l. A weight w is 1 / (expected
error). So w r is a residual in multiples of its expected error, about 1 if all is well.

Some equations are wrong, e.g. where one thing hides another. So the sum of rho(w r) over all
equations is minimised, in place of the sum of (w r)^2:

    rho(e) = c^2 log(1 + (e / c)^2)        Cauchy's function

rho(e) is about e^2 for a small error e, and far less than e^2 for a large error. E.g. with c = 2,
rho(0.1) is 0.01, and rho(20) is 18 in place of 400. The minimum of the sum is found by least
squares with smaller weights where residuals are large (`System.robust_weights`).

What must stay: residuals and weights. The fusion operator "motion" (models/fusion/fusion_motion.py)
improves frames by learned steps along the motion. Its network was trained on these residuals and
weights.

Tests: tests/parts/data/joint/test_equations.py. With wrong residuals,
test_the_sharp_frame_along_the_true_motion_fits_all_equations fails. No test notices another
`CAUCHY`, so measure it (docs/benchmarks/quality_details.md, "Its constants").
"""

import torch
from torch import Tensor

from data.motion.joint.cameras import Cameras
from data.motion.joint.rgb_equations import RgbEquations
from data.motion.joint.spike_equations import SpikeEquations
from data.motion.joint.values import light_of, luma

# Residuals of both cameras: b - B x (3, H, W), and y - S l (M, h, w).
Residuals = tuple[Tensor, Tensor]

# c of Cauchy's rho, in multiples of the expected error. A smaller value would weaken equations that
# are right but noisy. With a larger value, wrong equations would change the frame more. Chosen by
# hand.
CAUCHY = 2.0


class System:
    """All equations of an exposure. They do not change after the object is made.

    cameras: the linear maps B and S, together called A: what both cameras see of a frame.
    rgb: right side b and weights w_b of B x = b.
    spikes: right side y and weights w_s of S l = y.
    is_display: True if the spike camera integrates display values. False if it integrates light.
    """

    def __init__(
        self, cameras: Cameras, rgb: RgbEquations, spikes: SpikeEquations, is_display: bool
    ) -> None:
        self.cameras = cameras
        self.rgb = rgb
        self.spikes = spikes
        self.is_display = is_display
        # The first frame whose residuals were computed, and these residuals. This frame is the
        # first estimate z_0: the solution begins at z_0, and then the steps of a network begin at
        # z_0 again. The attribute is None until `residuals` is called.
        self._first_residuals: tuple[Tensor, Residuals] | None = None

    def residuals(self, z: Tensor) -> Residuals:
        """Return the residuals b - B x (3, H, W) and y - S l (M, h, w) of a frame z (3, H, W).

        The residuals of the first frame are kept, because this method is called again with the same
        frame, and the map of the cameras takes long. The second call may have another tensor with
        the same values, so the values are compared. Do not change z or the result in place
        afterwards: a later call compares and returns the same tensors.
        """
        if self._first_residuals is None:
            self._first_residuals = (z, self._compute_residuals(z))
        first_z, residuals_of_first = self._first_residuals
        if torch.equal(z, first_z):
            return residuals_of_first
        return self._compute_residuals(z)

    def _compute_residuals(self, z: Tensor) -> Residuals:
        """Compute what `residuals` returns."""
        x = light_of(z)
        integrated = luma(z) if self.is_display else luma(x)  # l, (1, H, W)
        blurry_seen, spikes_seen = self.cameras(x, integrated)
        return self.rgb.b - blurry_seen, self.spikes.y - spikes_seen

    def robust_weights(self, r_b: Tensor, r_s: Tensor) -> tuple[Tensor, Tensor]:
        """Return w_b and w_s, made smaller where the residuals r are large.

            w / sqrt(1 + (w r / c)^2)       c = CAUCHY

        Least squares with these weights find the minimum of the sum of Cauchy's rho if weights and
        frame are computed in turn, several times. The option `linearisations` says how often.

        E.g. with c = 2, an equation whose residual is twice its expected error 1 / w gets the
        weight w / sqrt(2).

        r_b: (3, H, W). r_s: (M, h, w). Returns weights of the same shapes. The three colours of a
        pixel get one factor, from the mean of their squares, because one motion moves all three.
        """
        # (w r / c)^2 of each equation. It is 1 where the residual is c times its expected error.
        squares_b = ((self.rgb.weights * r_b) ** 2).mean(0, keepdim=True) / CAUCHY**2  # (1, H, W)
        squares_s = (self.spikes.weights * r_s) ** 2 / CAUCHY**2  # (M, h, w)
        weights_b = self.rgb.weights / (1 + squares_b).sqrt()
        weights_s = self.spikes.weights / (1 + squares_s).sqrt()
        return weights_b, weights_s

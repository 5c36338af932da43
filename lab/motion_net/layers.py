"""Move a layer, which is a flat picture, along an exact curve.

What must stay: the picture and the shifts of a layer follow the same equation. The docstring of
`Layer` has the equation.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from lab.motion_net.instants import HALF, INSTANTS, MARGIN, SIDE


@dataclass(frozen=True)
class Layer:
    """A flat picture that moves: the background, or a thing in front of it.

    tau is the time after the sharp instant, in halves of an exposure: INSTANTS / HALF. A point p of
    the picture at the sharp instant has moved, at the time tau, to

        p' = A(tau) @ (p - center) + center + trajectory(tau)

    A is the matrix of `linear`. n = SIDE + 2 * MARGIN is the side of the picture of a layer, and N
    is the number of INSTANTS.

    Both `picture_at` and `shifts` follow this equation. Change them together, because the network
    learns that the shifts explain the pictures. No test compares them. In a trial, y of `shifts`
    alone got the wrong sign, and the training found no motion.
    """

    light: np.ndarray  # (n, n) what it shows, linear light in [0, 1]
    cover: np.ndarray  # (n, n) 1 where it hides the layers behind it, 0 elsewhere
    center: np.ndarray  # (2,) x and y of the point about which it turns, in pixels of the scene
    trajectory: np.ndarray  # (N, 2) x and y of its shift at INSTANTS, in pixels
    turn: np.ndarray  # (2,) angle in radians: turn[0] * tau + turn[1] * tau^2
    zoom: np.ndarray  # (2,) logarithm of its size: zoom[0] * tau + zoom[1] * tau^2
    shear: np.ndarray  # (2,) shear of x by y, and of y by x, at tau = 1

    def linear(self, tau: float) -> np.ndarray:
        """Return the matrix A(tau), (2, 2): a rotation times a scale, plus a shear."""
        angle = self.turn[0] * tau + self.turn[1] * tau * tau
        scale = np.exp(self.zoom[0] * tau + self.zoom[1] * tau * tau)
        cosine = np.cos(angle)
        sine = np.sin(angle)
        A = np.array([[cosine, -sine], [sine, cosine]]) * scale
        A[0, 1] += self.shear[0] * tau
        A[1, 0] += self.shear[1] * tau
        return A

    def picture_at(self, instant_index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return light x cover, and cover, of this layer in the scene, (SIDE, SIDE) each.

        instant_index: index of the time in INSTANTS.
        """
        # WARP_INVERSE_MAP needs the map from p' to p. The equation of the class, solved for p:
        #     p = A^-1 @ p' + (center - A^-1 @ (center + trajectory))
        tau = INSTANTS[instant_index] / HALF
        A_inverse = np.linalg.inv(self.linear(tau))
        offset = self.center - A_inverse @ (self.center + self.trajectory[instant_index])
        # The scene begins at the pixel (MARGIN, MARGIN) of the picture of the layer.
        offset = offset + MARGIN
        p_of_p_prime = np.column_stack((A_inverse, offset))  # (2, 3)

        # Beyond the edge of its picture, the background continues as a mirror image. Around the
        # picture of a thing, light and cover are 0.
        is_background = self.cover.all()
        moved = cv2.warpAffine(
            np.stack([self.light * self.cover, self.cover], axis=2),  # (n, n, 2)
            p_of_p_prime,
            (SIDE, SIDE),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT_101 if is_background else cv2.BORDER_CONSTANT,
        )
        covered_light = moved[..., 0]
        cover = moved[..., 1]
        return covered_light, cover

    def shifts(self, time: float) -> np.ndarray:
        """Return the exact shifts (SIDE, SIDE, 2), x and y in pixels, from the sharp instant.

        time: planes after the sharp instant, e.g. the middle of a window.
        """
        # The equation of the class, minus p:  p' - p = (A - 1) @ (p - center) + trajectory
        tau = float(np.float32(time / HALF))  # `MotionNet.tau` has float32 as well
        change = self.linear(tau) - np.eye(2)
        trajectory_x = np.interp(time, INSTANTS, self.trajectory[:, 0])
        trajectory_y = np.interp(time, INSTANTS, self.trajectory[:, 1])
        y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32)
        x = x - self.center[0]
        y = y - self.center[1]
        shift_x = change[0, 0] * x + change[0, 1] * y + trajectory_x
        shift_y = change[1, 0] * x + change[1, 1] * y + trajectory_y
        return np.stack([shift_x, shift_y], axis=2)

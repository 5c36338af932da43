"""Take the means of a picture over the area of a spike pixel, at each place of the frame.

A spike pixel sees the mean of a part of the frame. While the scene moves, this part moves over the
sharp frame. So the means are taken once for the sharp frame, at each place where a spike pixel may
lie. Then chunk.py samples the means at each moment of the exposure:

    m = K L l

    l    (1, H, W), a grey picture
    L    blur by the lens of the spike camera, a Gaussian
    K    mean over the points of a spike pixel whose middle lies at this place
    m    (1, H + 1, W + 1), the means

The places form a grid with a step of one RGB pixel, and with one row and one column more than the
frame. The grid is shifted so that one of its places is the middle of the central spike pixel. E.g.
along x, for 4 RGB pixels and aligned cameras, if a spike pixel covers 2 RGB pixels:

    middles of the RGB pixels             0     1     2     3
    middles of the spike pixels              0.5         2.5
    places                            -0.5   0.5   1.5   2.5   3.5      shift 0.5

So each place lies between two RGB pixels along x (four RGB pixels in the plane), and m is their
mean.

We assume that all spike pixels have the size and the rotation of the central spike pixel. If one
camera is tilted, the means are a little wrong near the edges. The time of K grows with the number
of points in a spike pixel: with 2 x 2 points, K takes a tenth of the time of the samples
(chunk.py).

What must stay: `adjoint` is the adjoint of `__call__`, because conjugate gradients do not converge
with another adjoint.

Tests: tests/parts/data/joint/test_cameras.py. What is wrong, and the test that fails:

    `__call__`    test_the_cameras_see_what_their_equations_say
    `adjoint`     test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.joint.lens import blur
from data.motion.view import View

# If a position lies less than SAME_PLACE below a whole pixel, it counts as the whole pixel, because
# it differs only by rounding. E.g. 7.9999 counts as 8, so its fraction is 0 and not 0.9999. The
# number is chosen by hand.
SAME_PLACE = 1e-3


class AreaMeans:
    """K L: the linear map from a grey picture to its means over the area of a spike pixel.

    view: where the spike pixels lie on the frame.
    kernel: the Gaussian of the lens, (n,), or None if the lens does not blur.

    Attributes:
    size: (H + 1, W + 1) of the picture of the means.
    middles: (h, w, 2) float32, x and y of the middle of each spike pixel on this picture.
    """

    def __init__(self, view: View, kernel: Tensor | None, device: torch.device) -> None:
        self._kernel = kernel
        self._frame_size = view.size
        height, width = view.size
        self.size = (height + 1, width + 1)

        places = _places_of(view)
        self.middles = torch.from_numpy(places.middles).to(device)
        # A mean is a weighted sum of RGB pixels. `_weighted_steps` has (y, x, weight) of each of
        # them. (y, x) is the step from the RGB pixel above and to the left of the place. E.g. with
        # aligned cameras and 2 x 2 RGB pixels in a spike pixel, the steps are (0, 0), (0, 1),
        # (1, 0) and (1, 1), with the weight 1/4 each.
        #
        # The place lies at `shift` from this RGB pixel, and each of `points` is counted from the
        # place. So shift + points are counted from this RGB pixel.
        self._weighted_steps = _weighted_steps_to(places.shift + places.points)
        # Number of rows and columns by which the frame is extended on each side, so that each step
        # ends on the extended frame. The number is 1 more than the longest step, because the steps
        # of the first place begin at the pixel (-1, -1). E.g. the steps 0 and 1 above need a border
        # of 2.
        longest_step = 0
        for y, x, _ in self._weighted_steps:
            longest_step = max(longest_step, abs(y), abs(x))
        self._border = longest_step + 1

    def __call__(self, l: Tensor) -> Tensor:  # noqa: E741
        """Return K L l (1, H + 1, W + 1). l: (1, H, W)."""
        if self._kernel is not None:
            [l] = blur(l[None], self._kernel)  # noqa: E741
        border = self._border
        # `pad` takes batches. [[ ]] takes the only channel of the only picture.
        [[extended]] = F.pad(l[None], (border, border, border, border), mode="replicate")
        means = torch.zeros(self.size, dtype=l.dtype, device=l.device)
        for y, x, weight in self._weighted_steps:
            means.add_(self._pixels_at_step(extended, y, x), alpha=weight)
        return means[None]

    def adjoint(self, means: Tensor) -> Tensor:
        """Return the adjoint L^T K^T (1, H, W) of means (1, H + 1, W + 1)."""
        height, width = self._frame_size
        border = self._border
        extended = means.new_zeros(height + 2 * border, width + 2 * border)
        for y, x, weight in self._weighted_steps:
            self._pixels_at_step(extended, y, x).add_(means[0], alpha=weight)
        # `__call__` repeats the edge pixels, so the adjoint adds what lies in the border to the
        # edge pixels. E.g. a row of 3 pixels a b c with a border of 2:
        #
        #     __call__    a a a b c c c
        #     adjoint     p q r s t u v -> p + q + r, s, t + u + v
        #
        # First the rows of the border are added, and then the columns.
        end_row = border + height
        extended[border] += extended[:border].sum(0)
        extended[end_row - 1] += extended[end_row:].sum(0)
        rows = extended[border:end_row]  # (H, W + 2 border)
        end_column = border + width
        rows[:, border] += rows[:, :border].sum(1)
        rows[:, end_column - 1] += rows[:, end_column:].sum(1)
        l = rows[None, :, border:end_column].contiguous()  # noqa: E741
        if self._kernel is None:
            return l
        # L^T by autograd: the gradient of a linear map is its adjoint. The gradient is the same at
        # all inputs, so we take it at zeros. Gradients are switched on here, because callers may
        # run under no_grad.
        with torch.enable_grad():
            zeros = torch.zeros_like(l).requires_grad_()
            [blurred_zeros] = blur(zeros[None], self._kernel)
        [adjoint] = torch.autograd.grad(blurred_zeros, zeros, grad_outputs=l)
        return adjoint

    def _pixels_at_step(self, extended: Tensor, y: int, x: int) -> Tensor:
        """Return for each place the pixel of the extended frame at a step (y, x), (H + 1, W + 1).

        The step begins at the pixel above and to the left of the place, which is the RGB pixel
        (-1, -1) for the first place. The result is a view: a change of it changes `extended`.
        """
        rows, columns = self.size
        # The frame begins at row `border` of the extended frame, so its row -1 is at border - 1.
        # E.g. with a border of 2 and y = 1, the first place gets row 2: row 0 of the frame.
        first_row = self._border - 1 + y
        first_column = self._border - 1 + x
        return extended[first_row : first_row + rows, first_column : first_column + columns]


class _Places(NamedTuple):
    """The places, and the points over which the mean of a place is taken, in RGB pixels.

    A place is a position of the frame where the middle of a spike pixel may lie. The places form a
    grid with a step of one RGB pixel.
    """

    # (2,), in [0, 1): by how much the places lie to the right of RGB pixels and below them.
    shift: np.ndarray
    middles: np.ndarray  # (h, w, 2): middle of each spike pixel, from the first place
    points: np.ndarray  # (N, 2): the points of a spike pixel, from its middle


def _places_of(view: View) -> _Places:
    """Return the places of a view. The central spike pixel of the plane decides their shift.

    E.g. along x, as in the docstring of this file: two spike pixels have their middles at 0.5 and
    2.5, and their points at 0, 1 and 2, 3. The central spike pixel is the second one:

        shift      2.5 % 1 = 0.5            the first place is at 0.5 - 1 = -0.5
        middles    0.5 and 2.5 become 1 and 3, the numbers of their places
        points     2 and 3 become -0.5 and 0.5, from the middle 2.5
    """
    plane_height, plane_width = view.plane
    down, across = view.points_in_pixel
    # (h down, w across, 2) -> (h, down, w, across, 2): the axes 1 and 3 are the points of a spike
    # pixel. `View.points_on_frame` promises this order.
    points = view.points_on_frame().reshape(plane_height, down, plane_width, across, 2)
    middles = points.mean(axis=(1, 3))  # (h, w, 2)
    row = plane_height // 2
    column = plane_width // 2
    central_middle = middles[row, column]  # (2,)
    central_points = points[row, :, column]  # (down, across, 2)

    shift = central_middle % 1
    # E.g. a middle of 1.9999 should be 2, which has the shift 0.
    shift[shift > 1 - SAME_PLACE] = 0
    # The first place has the x and y of shift - 1, e.g. -0.5, so that no RGB pixel lies outside the
    # grid. So the middles from the first place are middles - (shift - 1).
    return _Places(
        shift=shift,
        middles=middles - shift + 1,
        points=(central_points - central_middle).reshape(-1, 2),
    )


def _weighted_steps_to(points: np.ndarray) -> list[tuple[int, int, float]]:
    """Return y, x and weight of each pixel that the mean over some points is made of.

    Each point is interpolated from four pixels. Pixels that several points share come once, with
    the sum of their weights. E.g. one point at x = 0.25, y = 0 gives the steps (0, 0, 0.75) and
    (0, 1, 0.25). The two pixels of the row y = 1 have the weight 0, and are left out.

    points: (N, 2), x and y in pixels.
    """
    weights: dict[tuple[int, int], float] = {}  # (y, x) -> weight
    for point_x, point_y in points.tolist():
        left = math.floor(point_x)
        above = math.floor(point_y)
        for y in (above, above + 1):
            for x in (left, left + 1):
                weight_y = 1 - abs(point_y - y)  # 1 on row y, 0 on the rows beside it
                weight_x = 1 - abs(point_x - x)
                weight = weight_y * weight_x / len(points)  # the mean over all points
                weights[y, x] = weights.get((y, x), 0.0) + weight
    weighted_steps = []
    for (y, x), weight in weights.items():
        if weight > SAME_PLACE**2:  # a smaller weight differs from 0 only by rounding
            weighted_steps.append((y, x, weight))
    return weighted_steps

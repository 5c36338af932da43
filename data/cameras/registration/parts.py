"""Change the matrix by one round on parts of the plane, and say how exact the matrix is.

A round improves the estimate once (rounds.py). A view is one blurry frame with its spikes. The
spike plane is cut into PARTS x PARTS parts, and a round takes three steps:

    1. For each part, find the shift d (2,), to the right and down, with which the spikes of the
       part match the frame best (`_equations_of_parts`, `_shifts`).
    2. Find the one change of the matrix that makes all these shifts as well as possible
       (joint_change.py).
    3. Compute the error of the matrix from what remains of the shifts (`_set_errors`). Something
       remains, because objects at other depths move differently (parallax).

The shift of a part is a Gauss-Newton step towards the least sum of w r^2:

    H_ij = sum of w r_i r_j        g_i = sum of w r_i r        d = -H^-1 g

The sums are over the n compared pixels of the part.

    r (n,)      residuals: details of the spikes minus what the frame predicts of them
    w (n,)      weights of the residuals, 1 or less (explanation.py)
    r_0, r_1    derivatives of r by a shift to the right and by a shift down, (n,) each
    d (2,)      the shift, in half sides of the plane (half of its longer side is 1)

d is the shift at which the sum would be least, if r were linear in d. g is half of the slope of the
sum. The sign is negative, because the step leads down the slope. E.g. in one direction, with three
pixels of weight 1:

    r = (0.1, 0.2, 0)    r_0 = (-1, -2, 0)    H = 1 + 4 = 5    g = -0.1 - 0.4 = -0.5

gives d = 0.1. After this shift, all three residuals are 0: r + r_0 d = (0, 0, 0).

np.einsum names the axes of its arrays by letters, and sums over each letter that is not behind the
arrow. Here v is the view, t the part, and i and j are directions (0 right, 1 down). In a shape, v
and t are the numbers of views and parts. E.g. np.einsum("vtij,tj->vti", H, shifts) is, for each
view v, part t and direction i, the sum over j of H[v, t, i, j] * shifts[t, j].

Do not replace an einsum by a product `@`. The product may sum in another order, which changes the
last bit of a result.

What must stay: PARTS, the limits of a usable part, and every bit of each result. fit.py says why
the bits must stay, and how to check them.

Tests: tests/parts/data/test_registration_parts.py tries the limits. lab/calibration_trials.py
prints how well the computed errors agree with the true errors.
"""

from typing import NamedTuple

import numpy as np

from data.cameras.registration.derivatives import compared_coordinates, derivatives, tiles
from data.cameras.registration.details import Details
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.explanation import Explanation, explain, shared_noise
from data.cameras.registration.joint_change import JointChange, join_shifts

# Number of parts along each side of the plane, so there are 25 parts. With more parts, each part
# has fewer pixels, and its shift is noisier.
PARTS = 5


class PartEquations(NamedTuple):
    """The normal equations of the shifts of t parts, for each of v views."""

    # H_ij is the sum of w r_i r_j over the pixels of a part, and g_i the sum of w r_i r. r are the
    # residuals, w their weights, and r_i the derivatives of r by a shift right (0) or down (1).
    H: np.ndarray  # (v, t, 2, 2)
    g: np.ndarray  # (v, t, 2)
    # (t, 3): three sums over the compared pixels of a part, in all views together. The sum of x,
    # the sum of y, and the sum of 1, which is the number of these pixels.
    sums_of_x_y_1: np.ndarray

    @property
    def pixels(self) -> np.ndarray:
        """The number of compared pixels of each part, (t,)."""
        return self.sums_of_x_y_1[:, 2]

    @property
    def centers(self) -> np.ndarray:
        """The center of each part, (t, 3): mean x, mean y, 1. Each part must have a pixel."""
        return self.sums_of_x_y_1 / self.pixels[:, None]

    def selected(self, is_selected: np.ndarray) -> "PartEquations":
        """Return the equations of some of the parts. is_selected: bool (t,)."""
        return PartEquations(
            H=self.H[:, is_selected],
            g=self.g[:, is_selected],
            sums_of_x_y_1=self.sums_of_x_y_1[is_selected],
        )


def round_on_parts(estimate: Estimate, views: list[Details], sigma: float) -> np.ndarray:
    """Change the matrix by one round, and set its error. The times of the exposure do not change.

    Returns the amounts (k,) of the change, one for each of the k CHANGES (matrix.py) that are
    fitted: 4 for the model "similarity", 6 for "affine", 8 for "homography". If the clip does not
    determine the amounts, returns zeros. After zeros, rounds.py makes no further round.

    views: the details of each view, at least one.
    sigma: size of the details in spike pixels. rounds.py passes FINE_SIGMA.
    """
    explanation = explain(views)
    equations = _equations_of_parts(estimate, views, explanation)

    # Use only parts with texture. If there are fewer usable parts than changes, the clip does not
    # determine the amounts.
    H_of_all_views = equations.H.sum(axis=0)  # (PARTS^2, 2, 2)
    is_usable = usable_parts(H_of_all_views, equations.pixels)  # (PARTS^2,)
    if is_usable.sum() < len(estimate.changes):
        estimate.matrix_error = np.inf
        estimate.remaining_shifts = np.empty(0)
        return np.zeros(len(estimate.changes))

    # The shift of each usable part, and its variance. `noise` is the variance of a residual,
    # increased because neighbours share their noise. All views have the same stride, the distance
    # of the compared pixels.
    usable = equations.selected(is_usable)
    noise = shared_noise(explanation, sigma, views[0].stride)
    shifts, variances = _shifts(usable.H, usable.g, noise)

    # Turn the shifts of the parts into one change of the matrix. `_set_errors` must come before
    # `change_matrix`, because `_set_errors` converts to pixels with the scale of the present
    # matrix.
    joint = join_shifts(shifts, variances, usable.centers, estimate.changes)
    _set_errors(estimate, joint)
    return estimate.change_matrix(joint.amounts)


def _set_errors(estimate: Estimate, joint: JointChange) -> None:
    """Set matrix_error and remaining_shifts, both in pixels of the binned frame.

    In a large frame, 2 x 2 or 3 x 3 pixels are joined to one (fit.py). The result is the binned
    frame.

    Coordinates of the plane go from -1 to 1, so the unit is half a side of the plane.

        variance     = of_shifts + of_others                        in squared half sides
        of_shifts    = sum of the variances of right and down
        of_others    = mean(x^2 + y^2) * sum of the variances of all other changes
        matrix_error = sqrt(variance) * pixels per half side

    The variance is a mean over the points (x, y) of the plane. How far an amount of 1 moves a
    point:

        right, down                        1
        larger, turned, wider, sheared     the distance from the middle, whose square is x^2 + y^2
        the last two of "homography"       x * this distance, or y * this distance

    The last two are treated as "larger". In a square plane, the mean of x^2 + y^2 is 0.67, and the
    mean of x^2 (x^2 + y^2) is 0.31. So their part of the variance becomes about twice as large as
    it should be. This is safe, because the computed error becomes too large, and not too small.
    """
    x = estimate.coordinates.x
    y = estimate.coordinates.y
    mean_square_distance = float((x**2 + y**2).mean())
    variance_of_change = np.diag(joint.covariance)  # (k,); right and down are the first two changes
    of_shifts = variance_of_change[:2].sum()
    of_others = mean_square_distance * variance_of_change[2:].sum()
    variance = of_shifts + of_others  # in squared half sides of the plane
    # From here on, half sides become pixels of the binned frame.
    estimate.matrix_error = estimate.rgb_per_half_side * float(np.sqrt(variance))
    # What remains of the shift of each part after the joint change, (t, 2) in half sides. Only its
    # length is kept.
    remaining_x, remaining_y = joint.remaining.T  # (t,) each
    estimate.remaining_shifts = estimate.rgb_per_half_side * np.hypot(remaining_x, remaining_y)


# ---- The equations of each part ----------------------------------------------------------------


def _equations_of_parts(
    estimate: Estimate, views: list[Details], explanation: Explanation
) -> PartEquations:
    """Sum H and g over the pixels of each part, for each view.

        H_ij = sum of w r_i r_j        g_i = sum of w r_i r

    r are the residuals, w their weights, and r_i the derivatives of r by a shift to the right
    (i = 0) and by a shift down (i = 1).
    """
    a = explanation.a.astype(np.float32)  # coefficients of the features, (5,)
    H = np.zeros((len(views), PARTS**2, 2, 2))
    g = np.zeros((len(views), PARTS**2, 2))
    sums_of_x_y_1 = np.zeros((PARTS**2, 3))
    of_views = zip(views, explanation.weights, explanation.residuals, strict=True)
    for v, (details, w, r) in enumerate(of_views):
        # `tiles` numbers the cells of a grid. Here the cells are the parts.
        part_of_pixel = tiles(estimate.coordinates, details, PARTS)  # (n,)
        # The details of the spikes as the frame predicts them: (h, w, 5) @ (5,) -> (h, w).
        predicted = details.features @ a
        # The first two of the seven derivatives of r are by the shifts right and down, (h, w) each.
        # `is_compared` (h, w) selects the n compared pixels.
        by_right, by_down, *_ = derivatives(estimate, details, predicted)
        by_shifts = (by_right[details.is_compared], by_down[details.is_compared])  # (n,) each
        # E.g. i = 0 and j = 1: w * (derivative by right) * (derivative by down), summed.
        for i, r_i in enumerate(by_shifts):
            g[v, :, i] = _sums_of_parts(part_of_pixel, w * r_i * r)
            for j, r_j in enumerate(by_shifts):
                H[v, :, i, j] = _sums_of_parts(part_of_pixel, w * r_i * r_j)
        x, y = compared_coordinates(estimate.coordinates, details)
        sums_of_x_y_1[:, 0] += _sums_of_parts(part_of_pixel, x)
        sums_of_x_y_1[:, 1] += _sums_of_parts(part_of_pixel, y)
        sums_of_x_y_1[:, 2] += _sums_of_parts(part_of_pixel, np.ones_like(x))
    return PartEquations(H, g, sums_of_x_y_1)


def _sums_of_parts(part_of_pixel: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the sum of the values of each part, (PARTS^2,).

    E.g. the parts 0, 0, 2 of three pixels and their values 5, 6, 7 give 11, 0, 7, 0, 0, ...

    part_of_pixel: number of the part of each pixel, (n,). values: (n,).
    """
    return np.bincount(part_of_pixel, values, minlength=PARTS**2)


# Limits of `usable_parts`. The three limits are low, because a part with weak texture has a large
# variance in `_shifts` and so a small weight. With limits of 0, H of a part may have no inverse.
# Larger limits would leave out useful parts. lab/calibration_trials.py shows whether the fits
# become less exact.
LEAST_PIXELS_OF_PART = 0.3  # fraction of the pixels of the part with the most pixels
LEAST_TEXTURE_OF_PART = 1e-3  # fraction of the median texture of the parts that have any
# Least value of l1 l2 / (l1 + l2)^2, where l1 and l2 are the eigenvalues of H: the strengths of the
# texture along its two main directions.
#
#     l1 = l2            1/4
#     l2 much smaller    about l2 / l1. So l2 may be as small as 1/10000 of l1
#     l2 = 0             0: all texture has one direction, as at a straight edge
LEAST_OF_TWO_DIRECTIONS = 1e-4


def usable_parts(H: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Return which parts have enough pixels, and texture in two directions, bool (t,).

    A straight edge alone does not determine the shift of a part, because a shift along the edge
    changes nothing.

    H: (t, 2, 2), the structure tensor of each of t parts: sums of the products of the gradients
    right and down.
    pixels: (t,), number of compared pixels of each part.

    test_parts_without_texture_in_two_directions_are_not_used has a part that fails for each of the
    three reasons: hardly any texture, a straight edge, and few pixels.
    """
    # The trace of H is l1 + l2: the sum of the squared gradients, right and down together.
    texture = np.trace(H, axis1=1, axis2=2)  # (t,)
    textures_above_0 = texture[texture > 0]
    if len(textures_above_0) == 0:
        return np.zeros(len(H), bool)  # there is no median, and no part is usable
    median_texture = np.median(textures_above_0)
    has_pixels = pixels > LEAST_PIXELS_OF_PART * pixels.max()
    has_texture = texture > LEAST_TEXTURE_OF_PART * median_texture
    # The determinant of H is l1 l2.
    has_two_directions = np.linalg.det(H) > LEAST_OF_TWO_DIRECTIONS * texture**2
    return has_pixels & has_texture & has_two_directions


# ---- The shift of each part, and its variance --------------------------------------------------


def _shifts(H: np.ndarray, g: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the shifts d (t, 2) of the parts and their variances (t, 2, 2).

        d_t = -H_t^-1 g_t          H_t and g_t: sums of H_vt and g_vt over the views v

    A part has one shift for all views. With several views, the variance of the shift is the mean of
    two estimates: one from the noise, and one from the spread of the views. No test of
    test_registration_fit.py notices if the first estimate alone is taken.

    H, g: (v, t, 2, 2) and (v, t, 2), the normal equations of each view and part.
    noise: the variance of a residual, increased because neighbours share their noise
    (`shared_noise` in explanation.py).
    """
    inverse = np.linalg.inv(H.sum(axis=0))  # H_t^-1, (t, 2, 2)
    # d[t, i] = -(sum over v and j of inverse[t, i, j] g[v, t, j])
    shifts = -np.einsum("tij,vtj->ti", inverse, g)  # (t, 2)
    from_noise = inverse * noise  # (t, 2, 2)
    if len(H) == 1:
        # One view has no spread.
        return shifts, from_noise
    from_spread = _variance_from_spread(H, g, inverse, shifts)
    return shifts, (from_noise + from_spread) / 2


def _variance_from_spread(
    H: np.ndarray, g: np.ndarray, inverse: np.ndarray, shifts: np.ndarray
) -> np.ndarray:
    """Return the variance (t, 2, 2) of the shift of each part, from how far the views disagree.

        m_vt = H_t^-1 (g_vt + H_vt d_t)                      (2,)
        variance = n / (n - 1) sum over v of m_vt m_vt'      n: number of views, at least 2

    The term in brackets is the gradient of view v at the common shift d_t. m_vt is 0 if view v
    agrees with the common shift, and larger if the view would move it. (The sign of m does not
    matter, because only products of m with itself are used.) The common shift is a sum of
    contributions of the views, so its variance is the sum of their variances. n / (n - 1) is the
    usual correction, because the shift was fitted to the same views.

    E.g. in one direction, two views with H_vt = 1 find the shifts 2 and 4. The common shift is 3,
    and m is 0.5 and -0.5. So the variance is 2 / (2 - 1) * (0.25 + 0.25) = 1. This is the variance
    of the mean of 2 and 4 in statistics.

    H, g: (v, t, 2, 2) and (v, t, 2). inverse: H_t^-1 (t, 2, 2). shifts: d (t, 2).
    """
    number_of_views = len(H)
    # gradient[v, t, i] = g[v, t, i] + sum over j of H[v, t, i, j] d[t, j]
    gradient = g + np.einsum("vtij,tj->vti", H, shifts)  # (v, t, 2)
    # m[v, t, i] = sum over j of inverse[t, i, j] gradient[v, t, j]
    moves = np.einsum("tij,vtj->vti", inverse, gradient)  # m, (v, t, 2)
    # The sum over v of m[v, t, i] m[v, t, j], which is m m' of each part.
    sum_of_squares = np.einsum("vti,vtj->tij", moves, moves)  # (t, 2, 2)
    return sum_of_squares * number_of_views / (number_of_views - 1)

"""Find the one change of the matrix that fits the shifts of t parts of the plane best.

The spike plane is cut into parts (parts.py). Part t matches the frame best if it is shifted by
d_t (2,), to the right and down. But a change of the matrix moves all parts together. E.g. a
"larger" plane shifts the parts at its right edge to the right, and the parts at its left edge to
the left. A change is a linear combination of the k CHANGES of the model (matrix.py), with the
amounts c (k,). Such a change shifts part t by J_t c. The symbols of one part, without the index t:

    d (2,)      shift with which the part matches the frame best
    J (2, k)    how far an amount of 1 of each change shifts the part (`motions_of_places`)
    V (2, 2)    variance of d
    extra       additional variance, the same for all parts and directions: the shift also depends
                on the depth of the objects in the part (parallax)
    W (2, 2)    weight of the part: (V + extra I)^-1

In general no c makes all shifts exactly. So c is found by weighted least squares:

    c = (sum J' W J)^-1 sum J' W d        the sums are over the parts, J' is the transpose of J

E.g. one change that moves every part to the right by 1 (J = (1, 0)), and two parts with shifts of
2 and 4 to the right and equal weights: c = (2 + 4) / (1 + 1) = 3, the mean shift. What remains of
the shifts is -1 and 1. The unit of d and c is half a side of the plane. The unit of V and extra is
the square of half a side.

np.einsum names the axes of its arrays by letters, and sums over each letter that is not behind the
arrow. E.g. np.einsum("tij,tj->ti", A, x) is the product A x of each part t. The letters here are
t: part, i and j: directions (0 right, 1 down), a and b: changes of the matrix. In a shape, t is the
number of parts. Do not replace an einsum by a product `@`, nor one of the products `@` below by an
einsum. The other form may sum in another order, which changes the last bit of a result.

What must stay: the bits of the result (fit.py says why).

Tests: tests/parts/data/test_registration_parts.py notices a wrong change and a wrong variance.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class JointChange:
    """The one change of the matrix: a sum of k changes, each times its amount."""

    amounts: np.ndarray  # c (k,)
    covariance: np.ndarray  # (k, k), the covariance of the amounts
    remaining: np.ndarray  # (t, 2), shifts of the parts minus the shifts that this change makes


def join_shifts(
    shifts: np.ndarray, variances: np.ndarray, places: np.ndarray, changes: np.ndarray
) -> JointChange:
    """Find the one change of the matrix that moves t parts by their shifts.

    shifts: d (t, 2) of the parts. variances: V (t, 2, 2) of the shifts.
    places: centers of the parts, (t, 3): x, y, 1. changes: (k, 3, 3).

    test_the_joint_change_makes_the_shifts_of_the_parts finds known amounts of all eight CHANGES
    again.
    """
    J = motions_of_places(changes, places)  # (t, 2, k)
    extra = _extra_variance(J, shifts, variances)
    joint, _ = _joint_change(J, shifts, variances, extra)
    return joint


def _extra_variance(J: np.ndarray, shifts: np.ndarray, variances: np.ndarray) -> float:
    """Return the variance of the shifts that comes from parallax, in (half a side of the plane)^2.

    What remains of each shift after the change, divided by its standard deviation, should have a
    size of about 1. Then the sum of the squares of these quotients is about the number of shifts
    minus the number of changes (the degrees of freedom). E.g. 16 parts have 32 shifts, so with 4
    changes the sum should be 28. The result is the `extra` for which the sum is equal to this
    number (the method of Paule and Mandel). If the sum is smaller even without an additional
    variance, the result is nearly 0.

    J, shifts, variances: as in `_joint_change`.

    With an extra variance of 0, test_parallax_makes_the_change_less_sure fails.
    """
    parts, directions, changes = J.shape
    degrees_of_freedom = parts * directions - changes
    # Bisection: the result lies between `low` and `high`. With a larger `extra`, the weights are
    # smaller, so the sum of the weighted squares is smaller, too.
    low = 0.0
    high = 1.0  # larger than any parallax: its square root is half a side of the plane
    while high > 1e-9:  # a smaller `extra` has the same effect as 0
        extra = (low + high) / 2
        _, squares = _joint_change(J, shifts, variances, extra)
        if squares > degrees_of_freedom:
            low = extra
        else:
            high = extra
        if high - low < 1e-3 * high:  # known within 0.1 %
            break
    return high


def motions_of_places(changes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return J (t, 2, k): how far each of k changes moves each of t places right and down.

    E.g. the place (1, 0.5, 1) has these columns of J:

        change                   motion (dx, dy, dz)    J
        right                    (1, 0, 0)              (1, 0)
        larger                   (1, 0.5, 0)            (1, 0.5)
        nearer at the right      (0, 0, -1)             (0 - 1 * -1, 0 - 0.5 * -1) = (1, 0.5)

    test_a_change_of_the_matrix_moves_places_as_computed compares J with moved places.

    changes: (k, 3, 3), some of CHANGES (matrix.py). places: (t, 3), homogeneous coordinates x, y, z
    with z = 1.
    """
    # The motion (dx, dy, dz) of a place t by a change k is the change (3, 3) times (x, y, z):
    # moved[t, k] = changes[k] @ places[t].
    moved = np.einsum("kij,tj->tki", changes, places)  # (t, k, 3)
    dx_dy = moved[..., :2]  # (t, k, 2)
    dz = moved[..., 2:]  # (t, k, 1)
    # The point in the image is (x / z, y / z). By the quotient rule, the derivative of x / z is
    # (dx z - x dz) / z^2. With z = 1, it is dx - x dz. In the same way, y / z moves by dy - y dz.
    x_y = places[:, None, :2]  # (t, 1, 2)
    J = dx_dy - x_y * dz  # (t, k, 2)
    return J.swapaxes(1, 2)


def _joint_change(
    J: np.ndarray, shifts: np.ndarray, variances: np.ndarray, extra: float
) -> tuple[JointChange, float]:
    """Find the change that moves the parts as their shifts say, with a given extra variance.

    J: (t, 2, k), how far each change moves each part. shifts: d (t, 2). variances: V (t, 2, 2).
    extra: additional variance of each shift. A larger value makes the weights of all parts smaller
    and more equal.

    Returns the change, and the sum of the weighted squares of what remains: e' W e, summed over the
    parts. e = d - J c (2,) is what remains of the shift of a part.
    """
    W = np.linalg.inv(variances + extra * np.eye(2))  # (t, 2, 2)
    # JWJ[a, b] = sum over t, i and j of J[t, i, a] W[t, i, j] J[t, j, b]
    JWJ = np.einsum("tia,tij,tjb->ab", J, W, J)  # (k, k)
    # JWd[a] = sum over t, i and j of J[t, i, a] W[t, i, j] d[t, j]
    JWd = np.einsum("tia,tij,tj->a", J, W, shifts)  # (k,)
    # The covariance of c, (k, k), because the variance of each shift is taken as W^-1.
    covariance = np.linalg.inv(JWJ)
    c = covariance @ JWd
    e = shifts - J @ c  # (t, 2)
    # The sum over t, i and j of e[t, i] W[t, i, j] e[t, j]: one number.
    squares = float(np.einsum("ti,tij,tj->", e, W, e))
    return JointChange(amounts=c, covariance=covariance, remaining=e), squares

"""Find the one change of the matrix that fits the shifts of the parts of the plane."""

from dataclasses import dataclass

import numpy as np

from data.cameras.registration.matrix import motions_of_places


@dataclass(frozen=True)
class JointChange:
    """The one change of the matrix that fits the shifts of t parts best (`_joint_change`).

    It is a sum of the k changes of the model, each times its amount.
    """

    amounts: np.ndarray  # c (k,)
    covariance: np.ndarray  # (k, k), the covariance of the amounts
    remaining: np.ndarray  # (t, 2), shifts of the parts minus the shifts that this change makes


def join_shifts(
    shifts: np.ndarray, variances: np.ndarray, places: np.ndarray, changes: np.ndarray
) -> JointChange:
    """Find the one change of the matrix that moves t parts by their shifts.

    shifts: d (t, 2) of the parts. variances: (t, 2, 2) of the shifts.
    places: centers of the parts, (t, 3): x, y, 1. changes: (k, 3, 3).

    Parts at other depths have another shift (parallax). Parallax is taken as one more variance,
    `extra`, the same for all parts and directions. It is chosen so that the shifts that remain are
    as large as their variances say (Paule-Mandel): the sum of their weighted squares is then the
    number of shifts minus the number of changes, the degrees of freedom.

    test_the_joint_change_makes_the_shifts_of_the_parts notices a wrong change, and
    test_parallax_makes_the_change_less_sure a wrong variance.
    """
    J = motions_of_places(changes, places)  # (t, 2, k)
    degrees_of_freedom = 2 * len(shifts) - len(changes)
    # Bisection: more extra variance makes the weights smaller, and so the sum of the squares. It
    # ends if `extra` is known within 0.1 %, or if `extra` is below 1e-9, which is 0 in effect.
    low = 0.0
    high = 1.0  # in squared half sides of the plane, larger than any parallax
    while high > 1e-9:
        extra = (low + high) / 2
        _, squares = _joint_change(J, shifts, variances, extra)
        if squares > degrees_of_freedom:
            low = extra
        else:
            high = extra
        if high - low < 1e-3 * high:
            break
    joint, _ = _joint_change(J, shifts, variances, high)
    return joint


def _joint_change(
    J: np.ndarray, shifts: np.ndarray, variances: np.ndarray, extra: float
) -> tuple[JointChange, float]:
    """Find the change that moves the parts as their shifts say, with a given extra variance.

        W = (V + extra I)^-1                     weight of a part, (2, 2). V: variance of its shift
        c = (sum J' W J)^-1 sum J' W d           amounts of the changes, (k,). Sums over the parts
        e = d - J c                              what remains of the shift of a part, (2,)

    J: (t, 2, k), how far each change moves each part. shifts: d (t, 2). variances: V (t, 2, 2).
    Returns the change, and the sum of e' W e over the parts.

    This is a weighted least-squares fit of d = J c. A part with a large variance has a small
    weight. A larger `extra` makes the weights of all parts smaller and more equal.
    """
    W = np.linalg.inv(variances + extra * np.eye(2))  # (t, 2, 2)
    # JWJ[a, b] = sum over t, i and j of J[t, i, a] W[t, i, j] J[t, j, b]
    JWJ = np.einsum("tia,tij,tjb->ab", J, W, J)  # (k, k)
    # JWd[a] = sum over t, i and j of J[t, i, a] W[t, i, j] d[t, j]
    JWd = np.einsum("tia,tij,tj->a", J, W, shifts)  # (k,)
    covariance = np.linalg.inv(JWJ)  # of c, (k, k)
    c = covariance @ JWd
    e = shifts - J @ c  # (t, 2)
    # The sum over t, i and j of e[t, i] W[t, i, j] e[t, j]: one number.
    squares = float(np.einsum("ti,tij,tj->", e, W, e))
    return JointChange(amounts=c, covariance=covariance, remaining=e), squares

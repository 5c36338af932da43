"""Smooth the motion of each pixel in time: a curve near its shifts.

Optical flow searches the shift of a pixel anew for each time (data/motion/flow.py), so its errors
differ from time to time. But an object has a mass, so it moves along a smooth curve. A curve has 3
coefficients in place of 8 shifts, so the errors of the shifts average out. On the photographs of
lab/joint_gain.py, smoothing alone lowered the end-point error from 1.30 to 1.24 pixels.

    shifts -> curves    for each pixel, the curve of third degree that is nearest to its shifts
    curves -> curves    the shake of the camera is added, because such a curve cannot follow it

K is the number of times, 9: the sharp instant and 8 other times. H x W is the size of a frame.
Shifts are x and y in RGB pixels. Times are planes after the sharp instant: 0 is the sharp instant.

What must stay: a curve is 0 at the sharp instant. The fusion operator "motion"
(models/fusion/fusion_motion.py) improves frames by learned steps along the motion. Its weights were
trained with motions along these curves. With other curves, the weights fit a little worse.

Tests: tests/parts/data/test_flow.py compares motions with the true motion of simulated scenes.
test_flow.py does not guard RIDGE and STEP_OF_SHAKE: it passes with RIDGE = 0 or 0.01, and with
STEP_OF_SHAKE = 1.
"""

import numpy as np

# Degree of a curve. Tried: degrees 2, 3 and 4, on photographs in good light. The frames of
# weights/motion.pth are best with 3: 0.2 dB better than with 2, and 0.06 dB better than with 4.
DEGREE = 3
# A small number is added to the diagonal of the equations of a pixel: RIDGE times the sum of the
# diagonal. So the equations always have a single solution. Without this number, many curves would
# fit the shifts if there are fewer times than DEGREE. (This is rare: an exposure has eight times
# beside the sharp instant.)
RIDGE = 1e-4
# The shake is a median over the pixels. The pixels of every fourth row and column are enough for
# this median.
STEP_OF_SHAKE = 4


def curves_of(
    times: list[float], shifts: np.ndarray, errors: np.ndarray, with_shake: bool
) -> np.ndarray:
    """Return shifts (K, H, W, 2) that lie on a smooth curve in time for each pixel.

    The curve of a pixel is

        q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3        tau = time / longest time

    E.g. the times -40, -20, 0, 24, 48 are tau = -0.83, -0.42, 0, 0.5, 1. The coefficients are in
    RGB pixels.

    The coefficients of a pixel are the coefficients that make this sum over the times least:

        sum_k w_k |q(tau_k) - shift_k|^2                w_k = 1 / error_k^2

    times: K times in planes after the sharp instant. One of them is 0, the sharp instant.
    shifts: (K, H, W, 2), x and y in RGB pixels, from the sharp instant to each time.
    errors: (K, H, W), expected errors of the shifts in pixels. The error of the sharp instant is
    not used.
    with_shake: whether the shake of the camera is added (`_add_shake`).
    """
    tau = (np.array(times) / np.abs(times).max()).astype(np.float32)  # (K,), -1 to 1
    coefficients = _coefficients_of(tau, shifts, errors)

    # At each time k, q(tau_k) is the sum of c_d tau_k^d over the degrees d.
    curves = np.zeros_like(shifts)
    for k, tau_k in enumerate(tau.tolist()):
        for d, c_d in enumerate(coefficients, start=1):
            curves[k] += np.float32(tau_k**d) * c_d
    if with_shake:
        _add_shake(curves, shifts)
    return curves


def _coefficients_of(tau: np.ndarray, shifts: np.ndarray, errors: np.ndarray) -> list[np.ndarray]:
    """Return c_1, c_2 and c_3 of the curve of each pixel, (H, W, 2) each.

    The sum in `curves_of` is least where its derivatives by c_1, c_2 and c_3 are 0. This gives
    three linear equations for each pixel, the normal equations of least squares:

        S_2 c_1 + S_3 c_2 + S_4 c_3 = T_1        S_n = sum_k w_k tau_k^n
        S_3 c_1 + S_4 c_2 + S_5 c_3 = T_2        T_d = sum_k w_k tau_k^d shift_k
        S_4 c_1 + S_5 c_2 + S_6 c_3 = T_3

    tau: (K,). shifts, errors: as in `curves_of`.
    """
    # The error of the sharp instant is 0. Replace the error by 1, because 1 / 0 would be infinite.
    # The weight of the sharp instant has no effect, because its tau is 0.
    w = 1 / np.where(errors > 0, errors, 1) ** 2  # (K, H, W)
    weighted_shifts = w[..., None] * shifts  # (K, H, W, 2)

    # With axes=1, tensordot sums over the K times: (K,) and (K, H, W) give (H, W).
    S = {}  # n -> S_n, (H, W), for n = 2 ... 6
    for n in range(2, 2 * DEGREE + 1):
        S[n] = np.tensordot(tau**n, w, axes=1)
    degrees = range(1, DEGREE + 1)
    # Equation d has the coefficient S_(d + e) before the unknown c_e.
    matrix = []
    for d in degrees:
        row = [S[d + e] for e in degrees]
        matrix.append(row)
    T = [np.tensordot(tau**d, weighted_shifts, axes=1) for d in degrees]  # (H, W, 2) each

    sum_of_diagonal = sum(matrix[index][index] for index in range(DEGREE))
    for index in range(DEGREE):
        matrix[index][index] = matrix[index][index] + RIDGE * sum_of_diagonal
    return _solve_for_pixels(matrix, right_sides=T)


def _add_shake(curves: np.ndarray, shifts: np.ndarray) -> None:
    """Add the shake of the camera to the curves, in place.

    A camera that shakes fast, e.g. on a motor, moves back and forth within an exposure. No curve of
    third degree can follow this. But the shake moves all pixels alike, and noise does not. So at
    each time

        shake = median over the pixels of (shift - curve)
        noise = median over the pixels of |shift - curve - shake|

    and the shake is added if it is longer than the noise. A shorter shake may be only noise.

    In dim light callers leave the shake out, because dim photographs lost 0.1 dB with the shake.

    curves, shifts: (K, H, W, 2), for the same times.

    Without this function, test_the_error_of_the_motion_of_a_scene_is_small fails for the shaking
    scene.
    """
    for curve, shift in zip(curves, shifts, strict=True):
        residuals = (shift - curve)[::STEP_OF_SHAKE, ::STEP_OF_SHAKE]  # (H / 4, W / 4, 2)
        shake = np.median(residuals, axis=(0, 1))  # x and y
        noise = np.median(np.linalg.norm(residuals - shake, axis=-1))
        if np.linalg.norm(shake) > noise:
            curve += shake


def _solve_for_pixels(
    matrix: list[list[np.ndarray]], right_sides: list[np.ndarray]
) -> list[np.ndarray]:
    """Solve n equations for each pixel, by Gaussian elimination. Return the n unknowns (H, W, 2).

    A coefficient of the equations is not a number, but an array with a number for each pixel. So
    all pixels are solved at once.

    matrix: n rows of n coefficients, (H, W) each. It is symmetric and positive definite, so no
    divisor is 0. right_sides: n right sides, (H, W, 2) each. Both arguments stay as they are.
    """
    # Copies of the lists, so that the arguments stay. The arrays in them are replaced, not changed.
    left = [list(row) for row in matrix]
    right = list(right_sides)
    n = len(left)
    # Eliminate one unknown after the other: subtract a multiple of each equation from all equations
    # below it. E.g. for 2 a + b = 3 and 4 a + 5 b = 9, the factor is 4 / 2 = 2. The second equation
    # minus two times the first equation is 3 b = 3.
    for above in range(n):
        for below in range(above + 1, n):
            factor = left[below][above] / left[above][above]
            # The columns before `above` are left out, because their unknowns are eliminated.
            for column in range(above, n):
                left[below][column] = left[below][column] - factor * left[above][column]
            right[below] = right[below] - factor[..., None] * right[above]
    # Now the last equation has one unknown, and each equation above it has one unknown more. So
    # they are solved from the last to the first. In the example b = 1, and then 2 a + 1 = 3.
    unknowns: dict[int, np.ndarray] = {}
    for row in reversed(range(n)):
        right_side = right[row]
        for column in range(row + 1, n):  # the unknowns that are solved already
            right_side = right_side - left[row][column][..., None] * unknowns[column]
        unknowns[row] = right_side / left[row][row][..., None]
    return [unknowns[row] for row in range(n)]

"""Each step of a round on parts of the plane (data/cameras/registration/parts.py), tested alone.

The spike plane is cut into parts. Matching a part with the frame gives the shift of this part. Then
one change of the matrix (from spike pixels to frame pixels) is found that explains all shifts
together. CHANGES has the eight kinds of small changes, e.g. "right", "larger" and "turned".
Coordinates count from the middle of the plane, in units of half its longer side: -1 is one edge,
and 1 is the opposite edge.
"""

import numpy as np
import pytest

from data.cameras.registration.joint_change import join_shifts, motions_of_places
from data.cameras.registration.matrix import CHANGES
from data.cameras.registration.parts import usable_parts

# Centers of nine parts, (9, 3): x, y, 1.
CENTERS = np.array([[x, y, 1.0] for y in (-0.8, 0, 0.8) for x in (-0.8, 0, 0.8)])
# Covariances of the shifts of nine parts, (9, 2, 2): an error of 0.001 half sides in x and in y.
VARIANCES = np.repeat(1e-6 * np.eye(2)[None], 9, axis=0)


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_change_of_the_matrix_moves_places_as_computed(number):
    J = motions_of_places(CHANGES, CENTERS)  # (9, 2, 8): part, x or y, kind of change

    # Measure the same motions: change the matrix a little, and see how far each center moves.
    amount = 1e-6
    moved = CENTERS @ (np.eye(3) + amount * CHANGES[number]).T
    measured = (moved[:, :2] / moved[:, 2:] - CENTERS[:, :2]) / amount
    assert np.allclose(J[:, :, number], measured, atol=1e-5)


def test_the_joint_change_makes_the_shifts_of_the_parts():
    amounts = np.array([0.02, -0.01, 0.005, 0.01, 0.002, -0.003, 0.001, 0.004])
    shifts = motions_of_places(CHANGES, CENTERS) @ amounts

    joint = join_shifts(shifts, VARIANCES, CENTERS, CHANGES)

    assert np.allclose(joint.amounts, amounts)
    assert np.allclose(joint.remaining, 0)


def test_parallax_makes_the_change_less_sure():
    aligned = np.zeros((9, 2))
    # Every second part is nearer to the cameras, and shifts by 0.05 half sides more.
    with_parallax = aligned.copy()
    with_parallax[::2, 0] = 0.05
    similarity = CHANGES[:4]  # right, down, larger, turned

    sure = join_shifts(aligned, VARIANCES, CENTERS, similarity)
    unsure = join_shifts(with_parallax, VARIANCES, CENTERS, similarity)

    # A shift is 0 or 0.05, so it differs from the mean of the shifts by about 0.025. The error of
    # the mean of nine shifts is a third of 0.025, because sqrt(9) is 3.
    error_of_shift = np.sqrt(unsure.covariance[0, 0])
    assert error_of_shift == pytest.approx(0.025 / 3, rel=0.4)
    assert np.sqrt(sure.covariance[0, 0]) == pytest.approx(0.001 / 3, rel=0.4)


def test_parts_without_texture_in_two_directions_are_not_used():
    # H of a part, (2, 2), says how much its details change if the part is shifted to the right and
    # down. Without texture nothing changes, so H is 0.
    H = np.repeat(100 * np.eye(2)[None], 4, axis=0)
    H[1] = 0.01 * np.eye(2)  # hardly any texture
    H[2] = [[100, 100], [100, 100]]  # an edge: all texture has one direction
    pixels = np.array([50, 50, 50, 10])  # the last part has few pixels

    assert usable_parts(H, pixels).tolist() == [True, False, False, False]


@pytest.mark.filterwarnings("error")
def test_no_part_of_a_picture_without_texture_is_used_and_no_warning_appears():
    H = np.zeros((4, 2, 2))
    pixels = np.full(4, 50)

    assert not usable_parts(H, pixels).any()

"""The result of a fit of two cameras: which of its values are sure, and which are applied.

A fit finds three values: the matrix from spike pixels to RGB pixels, the offset of the exposure in
planes, and the share of the planes that were exposed. Each value has a standard error, by which the
value is sure or not. A value is applied if it is sure, and differs enough from the start: by three
times its error, and by the distance in this table.

    value     sure if the error is at most    applied at a distance from the start of
    matrix    0.15 pixels                     0.15 pixels
    offset    0.7 planes                      0.75 planes
    share     0.03                            0.04

The matrix is also applied if it is not sure, but moved by three times its error. The limits are in
data/cameras/registration/result.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from data.cameras.registration.result import Decisions, FitResult

# A fit that is sure of all its values, and changes all of them.
SURE = FitResult(
    matrix=np.eye(3),
    offset=3.0,
    share=0.7,
    gain=0.5,
    dark=0.0,
    errors=(0.1, 0.5, 0.02),
    explained=0.9,
    moved=2.0,
)
PRECISE = (0.01, 0.1, 0.001)  # errors of matrix, offset and share
ALL = Decisions(matrix=True, offset=True, share=True)
NONE = Decisions(matrix=False, offset=False, share=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, ALL, id="all are sure"),
        pytest.param({"explained": 0.2}, NONE, id="another scene"),
        pytest.param({"errors": (0.6, 0.5, 0.02)}, NONE, id="no matrix is found"),
        # The matrix moves far more than its error, but too little to matter.
        pytest.param(
            {"errors": PRECISE, "moved": 0.1}, ALL._replace(matrix=False), id="a small move"
        ),
        pytest.param(
            {"errors": PRECISE, "offset": -0.7}, ALL._replace(offset=False), id="a small offset"
        ),
        # 1.12 * 87 % = 97.4 % of the planes are read, so only 2.6 % are left out.
        pytest.param(
            {"errors": PRECISE, "share": 0.87}, ALL._replace(share=False), id="a large share"
        ),
        # 1.12 * 97 % are more than all planes, so all planes are read, as without a fit.
        pytest.param({"share": 0.97}, ALL._replace(share=False), id="a share of nearly all"),
        pytest.param({"errors": (0.3, 0.5, 0.02)}, ALL, id="the matrix is not sure"),
        pytest.param(
            {"errors": (0.1, 0.8, 0.04)},
            ALL._replace(offset=False, share=False),
            id="times are not sure",
        ),
        pytest.param(
            {"errors": (0.1, 0.5, 0.02), "offset": 1.4},
            ALL._replace(offset=False),
            id="an offset below three times its error",
        ),
    ],
)
def test_a_value_is_applied_if_it_is_sure_and_differs_from_the_start(changes, expected):
    assert replace(SURE, **changes).is_applied == expected


def test_a_value_with_a_large_error_is_not_sure():
    assert SURE.is_sure == ALL
    assert replace(SURE, errors=(0.2, 0.8, 0.04)).is_sure == NONE

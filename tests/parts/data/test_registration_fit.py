"""A whole fit of two cameras (data/cameras/registration/fit.py), and which estimate it uses.

test_self_calibration.py and test_calibrate.py test fits of whole clips. If a test of this file
fails, look at the other files test_registration_*.py, because they test each step of a fit.

Words of this file (data/cameras/registration/result.py explains all values of a fit):

    matrix    maps a spike pixel to an RGB pixel. `nominal_matrix` is the true matrix here, because
              the two simulated cameras see the same (tests/helpers/registration_views.py)
    offset    by how many planes the exposure is later than the files say
    share     fraction of the planes during which the RGB camera is exposed
    moved     how far the fit moved a spike pixel on the frame, in RGB pixels
    applied   a value is used for the clip, because it is sure and differs from the start
"""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from data.cameras.registration import fit as fit_module
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.fit import fit
from data.cameras.registration.matrix import nominal_matrix
from data.cameras.registration.result import SURE_WITHIN_PLANES, Decisions
from data.cameras.registration.rounds import TIME_SIGMA, after_all_rounds, explained_share
from data.cameras.registration.view import Pair, View
from tests.helpers import registration_views
from tests.helpers.registration_views import RATE, RGB, SIDE, SPIKE, cat, pan
from tests.helpers.two_cameras import texture

# The decisions of a fit that applies none of its estimates.
NONE = Decisions(matrix=False, offset=False, share=False)


@pytest.fixture(scope="module")
def moving_view() -> View:
    """Give a view of a picture that swings by 16 pixels."""
    return registration_views.moving_view()


@pytest.mark.parametrize("most_pixels", [120_000, 2_000], ids=["whole", "binned"])
def test_a_camera_is_found_from_a_start_that_is_off(moving_view, monkeypatch, most_pixels):
    # A spike plane has 64 x 64 = 4096 pixels. If at most 2,000 pixels are allowed, each 2 x 2
    # pixels become one pixel.
    monkeypatch.setattr(fit_module, "MOST_PIXELS", most_pixels)
    truth = nominal_matrix(SPIKE, RGB)
    start = truth.copy()
    start[:2, 2] += (3.0, -2.0)  # RGB pixels

    found = fit([moving_view], start, model="similarity")

    # The corners of the spike plane of 64 x 64 pixels, (1, 4, 2) float as OpenCV needs them.
    corners = np.array([[[0, 0], [63, 0], [0, 63], [63, 63]]], float)
    off = cv2.perspectiveTransform(corners, found.matrix) - cv2.perspectiveTransform(corners, truth)
    assert np.abs(off).max() < 0.2  # RGB pixels
    assert found.offset == pytest.approx(0, abs=0.3)  # planes
    assert found.share == pytest.approx(1, abs=0.02)
    assert found.gain == pytest.approx(RATE, rel=0.02)
    assert found.moved == pytest.approx(np.hypot(3, 2), abs=0.2)


def test_a_fixed_matrix_stays(moving_view):
    start = nominal_matrix(SPIKE, RGB)

    found = fit([moving_view], start, model=None)

    assert np.allclose(found.matrix, start, atol=1e-6)
    assert found.matrix_error == np.inf


# ---- A pan ----


# In a pan, the whole picture moves at one speed. So a camera that is moved along the pan looks like
# a camera with a time offset. A speed is (x, y) in RGB pixels per plane. E.g. at 0.17 the picture
# moves by 0.17 x 40 = 7 pixels in an exposure.
@pytest.mark.parametrize(
    ("seed", "speed", "frames"),
    [
        pytest.param(1, (0.17, 0.07), 3, id="slow"),
        pytest.param(1, (0.17, 0.07), 6, id="slow, six frames"),
        pytest.param(2, (0.3, 0.1), 6, id="fast"),
    ],
)
def test_a_pan_leaves_aligned_cameras_as_they_are(seed, speed, frames):
    picture = texture(np.random.default_rng(seed), (2 * SIDE, 2 * SIDE))

    found = fit(pan(picture, speed, frames), nominal_matrix(SPIKE, RGB))

    assert found.is_applied == NONE
    assert found.moved < 0.2  # RGB pixels


def test_an_offset_that_explains_hardly_more_than_none_is_not_used():
    # In a fast pan, new parts of the picture enter at the edges. So a time offset does not look
    # exactly like a moved camera. The rounds of the fit find an offset of -1.0 planes with an error
    # of 0.2, although the true offset is 0. This offset is not used, because it explains hardly
    # more spikes than no offset (DOUBTFUL_OWN_MIDDLE). `cat` gives a photograph with soft edges.
    found = fit(pan(cat(), (0.5, -0.3), frames=3), nominal_matrix(SPIKE, RGB))

    assert found.is_applied == NONE
    assert found.moved < 0.2  # RGB pixels


def test_a_moved_camera_is_found_in_a_pan():
    picture = texture(np.random.default_rng(2), (2 * SIDE, 2 * SIDE))
    start = nominal_matrix(SPIKE, RGB)
    start[:2, 2] += (1.5, -1.0)  # RGB pixels

    found = fit(pan(picture, (0.3, 0.1), frames=6), start)

    assert found.is_applied.matrix
    assert found.matrix == pytest.approx(nominal_matrix(SPIKE, RGB), abs=0.1)


def test_the_offset_of_a_known_camera_is_found_in_a_pan_even_if_it_is_not_sure():
    picture = texture(np.random.default_rng(1), (2 * SIDE, 2 * SIDE))
    # Take the second view, because the first view has no planes before its exposure.
    view = pan(picture, (0.17, 0.07), frames=2)[1]
    # The files give an exposure that is five planes too early. So the true exposure is five planes
    # later.
    true_offset = 5
    misdated = replace(view, before=view.before - true_offset)

    found = fit([misdated], nominal_matrix(SPIKE, RGB), model=None)

    # The offset is not sure, but it is near the truth, and clearly not 0. Measured: the offset 4.1,
    # the error 1.0.
    assert found.offset_error > SURE_WITHIN_PLANES
    assert found.offset == pytest.approx(true_offset, abs=2 * found.offset_error)
    assert found.offset > 2 * found.offset_error


# In a slow pan over soft edges, a longer exposure looks like a sharper lens. The exposure has 40
# planes. Without limits, the first rounds would make the exposure 200 planes longer.
@pytest.mark.parametrize("speed", [(0.05, 0.02), (0.1, -0.06)])
def test_a_moved_camera_is_found_although_the_length_steps_to_its_limit(speed):
    start = nominal_matrix(SPIKE, RGB)
    start[:2, 2] += (1.5, -1.0)  # RGB pixels

    found = fit(pan(cat(), speed, frames=6), start)

    assert found.is_applied.matrix
    assert found.matrix == pytest.approx(nominal_matrix(SPIKE, RGB), abs=0.15)


# In a pan, a shorter exposure has less blur, as if the lens were sharper.
def test_a_share_that_looks_like_a_sharper_lens_is_not_used():
    picture = texture(np.random.default_rng(4), (2 * SIDE, 2 * SIDE))
    start = nominal_matrix(SPIKE, RGB)
    start[:2, 2] += (1.5, -1.0)  # RGB pixels

    found = fit(pan(picture, (0.22, 0.0), frames=6, share=0.75), start)

    # The fit finds a share of 0.68, but the true share is 0.75. So the share must not be used.
    assert not found.is_sure.share
    assert found.is_applied.matrix


def test_the_share_is_found_in_a_fast_pan():
    picture = texture(np.random.default_rng(4), (2 * SIDE, 2 * SIDE))

    found = fit(pan(picture, (0.4, 0.1), frames=6, share=0.75), nominal_matrix(SPIKE, RGB))

    assert found.is_applied.share
    assert found.share == pytest.approx(0.75, abs=0.03)  # measured: 0.757


def test_the_explained_part_belongs_to_the_last_estimate(moving_view):
    start = nominal_matrix(SPIKE, RGB)
    start[:2, 2] += (3.0, -2.0)  # RGB pixels
    pair = Pair(moving_view, factor=1, light="linear")

    estimate = after_all_rounds(Estimate([pair], start, "similarity", most_offset=20.0))

    assert estimate.explained == explained_share(estimate, TIME_SIGMA)


def test_rounds_that_go_astray_are_undone():
    found = fit(pan(cat(), (0.25, 0.1), frames=3), nominal_matrix(SPIKE, RGB))

    assert found.moved < 0.2  # RGB pixels
    assert found.explained > 0.99


def test_a_repeated_pattern_does_not_move_aligned_cameras_by_half_a_period():
    # The picture has light and dark spots, which repeat after 24 pixels to the right and 30 pixels
    # down. Half a period to the right, the pattern is inverted. At this place, negative
    # coefficients explain the spikes nearly as well. The rounds of the fit move the cameras to this
    # place, with and without an offset. Only the start explains more spikes.
    y, x = np.indices((2 * SIDE, 2 * SIDE)) - SIDE
    pattern = 0.5 + 0.3 * np.sin(2 * np.pi * x / 24) * np.sin(2 * np.pi * y / 30)

    found = fit(pan(pattern.astype(np.float32), (0.1, 0.2), frames=2), nominal_matrix(SPIKE, RGB))

    assert found.is_applied == NONE
    # `moved` is in RGB pixels. If the fit were not compared with the start, it would move the
    # cameras by 12 pixels, and this matrix would be applied.
    assert found.moved < 0.2

"""data/cameras/registration.py: the steps of a fit of two cameras, each tried alone.

test_self_calibration.py and test_calibrate.py try whole fits. If they fail, the tests of this file
say which step is wrong. Letters as in registration.py: s are the details of the summed spikes of an
exposure, F the details of the features of the frame, a their coefficients, and r = s - F a.
"""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import skimage.data

from data.cameras import registration
from data.cameras.registration import CHANGES, Decisions, FitResult, Pair, State, View, fit, nominal
from data.spike.pictures import to_display, to_linear, to_uint8
from data.spike.simulate import IntegrateAndFire
from tests.helpers.checked import not_none
from tests.helpers.two_cameras import texture

SIDE = 128  # of a frame, in pixels
SPIKE = (SIDE // 2, SIDE // 2)
RGB = (SIDE, SIDE)
PLANES = 40  # of an exposure
AROUND = 20  # planes that are recorded before and after the exposure
# Spikes per plane at full light. No camera has so many, but so the spikes have hardly any noise.
RATE = 200
REACH = registration.MOST_REACH


@pytest.fixture(scope="module")
def moving_view() -> View:
    """Give a view of a picture that swings by 16 pixels. Both cameras see the same.

    A steady motion would not show the times: a later exposure would look like a moved camera.
    """
    picture = texture(np.random.default_rng(1), (2 * SIDE, 2 * SIDE))
    plane = np.arange(PLANES + 2 * AROUND)
    x_of_planes = SIDE + 8 * np.sin(2 * np.pi * plane / 60)
    y_of_planes = SIDE + 8 * np.cos(2 * np.pi * plane / 42)
    lights = []
    planes = []
    for x, y in zip(x_of_planes.tolist(), y_of_planes.tolist(), strict=True):
        light = cv2.getRectSubPix(picture, RGB, (x, y))
        of_spike_pixels = cv2.resize(light, SPIKE, interpolation=cv2.INTER_AREA)
        lights.append(light)
        planes.append(np.rint(RATE * of_spike_pixels).astype(np.uint8))
    mean_light = np.mean(lights[AROUND : AROUND + PLANES], axis=0)
    frame = np.repeat(to_uint8(to_display(mean_light))[..., None], 3, axis=2)
    return View(frame, np.stack(planes), before=AROUND, count=PLANES)


# ---- The result ----

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
        # Far above their errors, but too small to matter.
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
        # 1.12 * 97 % are more than all planes, so all are read as before.
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


# ---- A whole fit ----


@pytest.mark.parametrize("most_pixels", [120_000, 2_000], ids=["whole", "binned"])
def test_a_camera_is_found_from_a_start_that_is_off(moving_view, monkeypatch, most_pixels):
    # A spike plane has 64 x 64 = 4096 pixels. With at most 2,000, 2 x 2 pixels become one.
    monkeypatch.setattr(registration, "MOST_PIXELS", most_pixels)
    truth = nominal(SPIKE, RGB)
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
    start = nominal(SPIKE, RGB)

    found = fit([moving_view], start, model=None)

    assert np.allclose(found.matrix, start, atol=1e-6)
    assert found.matrix_error == np.inf


# ---- A pan ----


def pan(
    picture: np.ndarray, speed: tuple[float, float], frames: int, share: float = 1.0
) -> list[View]:
    """Return the views of two aligned cameras that pan over a picture at one speed.

    picture: light, (2 SIDE, 2 SIDE). speed: x and y in RGB pixels per plane. share: exposed share
    of the planes.
    """
    x_speed, y_speed = speed
    planes = PLANES * frames
    lights = []
    for plane in range(planes):
        time = plane - planes / 2
        lights.append(
            cv2.getRectSubPix(picture, RGB, (SIDE + x_speed * time, SIDE + y_speed * time))
        )
    # 24 spikes per exposure at full light, as of a real camera, so with its noise. The charge of
    # each pixel begins at random: with `initial_charge` 1, anywhere below the threshold.
    sensor = IntegrateAndFire(*SPIKE, rate=0.6, rng=np.random.default_rng(3), initial_charge=1.0)
    spikes = sensor.run(cv2.resize(light, SPIKE, interpolation=cv2.INTER_AREA) for light in lights)
    views = []
    for begin in range(0, planes, PLANES):
        end = begin + PLANES
        unexposed = round(PLANES * (1 - share) / 2)  # planes at each end: 5 if the share is 0.75
        mean_light = np.mean(lights[begin + unexposed : end - unexposed], axis=0)
        frame = np.repeat(to_uint8(to_display(mean_light))[..., None], 3, axis=2)
        before = min(AROUND, begin)
        views.append(View(frame, spikes[begin - before : end + AROUND], before, count=PLANES))
    return views


def cat() -> np.ndarray:
    """Return the light of a photograph with soft edges, (2 SIDE, 2 SIDE)."""
    light = to_linear(skimage.data.chelsea().astype(np.float32) / 255).mean(axis=2)
    top = 40  # of the part of the photograph. Other parts would give other pans, and other results
    left = 180
    return np.ascontiguousarray(light[top : top + 2 * SIDE, left : left + 2 * SIDE])


# In a pan, a moved camera and a time offset look the same.
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

    found = fit(pan(picture, speed, frames), nominal(SPIKE, RGB))

    assert found.is_applied == NONE
    assert found.moved < 0.2  # RGB pixels


def test_an_offset_that_explains_hardly_more_than_none_is_not_used():
    # In a fast pan, new parts of the picture enter at the edges. So an offset does not look quite
    # like a moved camera, and the rounds find -1.0 planes with an error of 0.2 where 0 is true. It
    # is not used, because it explains hardly more spikes (DOUBTFUL_OWN_MIDDLE).
    found = fit(pan(cat(), (0.5, -0.3), frames=3), nominal(SPIKE, RGB))

    assert found.is_applied == NONE
    assert found.moved < 0.2  # RGB pixels


def test_a_moved_camera_is_found_in_a_pan():
    picture = texture(np.random.default_rng(2), (2 * SIDE, 2 * SIDE))
    start = nominal(SPIKE, RGB)
    start[:2, 2] += (1.5, -1.0)  # RGB pixels

    found = fit(pan(picture, (0.3, 0.1), frames=6), start)

    assert found.is_applied.matrix
    assert found.matrix == pytest.approx(nominal(SPIKE, RGB), abs=0.1)


def test_the_offset_of_a_known_camera_is_found_in_a_pan_even_if_it_is_not_sure():
    picture = texture(np.random.default_rng(1), (2 * SIDE, 2 * SIDE))
    # The second view, because the first has no planes before its exposure.
    view = pan(picture, (0.17, 0.07), frames=2)[1]
    # The files name the exposure five planes too early. So it is five planes later than they say.
    true_offset = 5
    misdated = replace(view, before=view.before - true_offset)

    found = fit([misdated], nominal(SPIKE, RGB), model=None)

    # Not sure, yet near the truth and clearly not 0.
    assert found.offset_error > registration.SURE_WITHIN_PLANES
    assert found.offset == pytest.approx(true_offset, abs=2 * found.offset_error)
    assert found.offset > 2 * found.offset_error


# In a slow pan over soft edges, a longer exposure looks like a sharper lens. Without limits, the
# first rounds would make the exposure 200 planes longer, and it has 40.
@pytest.mark.parametrize("speed", [(0.05, 0.02), (0.1, -0.06)])
def test_a_moved_camera_is_found_although_the_length_steps_to_its_limit(speed):
    start = nominal(SPIKE, RGB)
    start[:2, 2] += (1.5, -1.0)  # RGB pixels

    found = fit(pan(cat(), speed, frames=6), start)

    assert found.is_applied.matrix
    assert found.matrix == pytest.approx(nominal(SPIKE, RGB), abs=0.15)


# In a pan, the blur of a shorter exposure looks like a sharper lens.
def test_a_share_that_looks_like_a_sharper_lens_is_not_used():
    picture = texture(np.random.default_rng(4), (2 * SIDE, 2 * SIDE))
    start = nominal(SPIKE, RGB)
    start[:2, 2] += (1.5, -1.0)  # RGB pixels

    found = fit(pan(picture, (0.22, 0.0), frames=6, share=0.75), start)

    # The fit finds 0.68 where 0.75 is true.
    assert not found.is_sure.share
    assert found.is_applied.matrix


def test_the_share_is_found_in_a_fast_pan():
    picture = texture(np.random.default_rng(4), (2 * SIDE, 2 * SIDE))

    found = fit(pan(picture, (0.4, 0.1), frames=6, share=0.75), nominal(SPIKE, RGB))

    assert found.is_applied.share
    assert found.share == pytest.approx(0.75, abs=0.03)


def test_the_explained_part_belongs_to_the_last_estimate(moving_view):
    start = nominal(SPIKE, RGB)
    start[:2, 2] += (3.0, -2.0)  # RGB pixels
    pair = Pair(moving_view, factor=1, light="linear")

    state = registration._after_all_rounds(State([pair], start, "similarity", most_offset=20.0))

    assert state.explained == state.explained_share(registration.TIME_SIGMA)


def test_rounds_that_go_astray_are_undone():
    found = fit(pan(cat(), (0.25, 0.1), frames=3), nominal(SPIKE, RGB))

    assert found.moved < 0.2  # RGB pixels
    assert found.explained > 0.99


def test_a_repeated_pattern_does_not_move_aligned_cameras_by_half_a_period():
    # Light and dark spots, repeated after 24 pixels to the right and 30 down. Half a period to the
    # right, the pattern is inverted, and negative coefficients explain the spikes nearly as well.
    # The rounds lead there, with and without an offset. Only the start explains more.
    y, x = np.indices((2 * SIDE, 2 * SIDE)) - SIDE
    pattern = 0.5 + 0.3 * np.sin(2 * np.pi * x / 24) * np.sin(2 * np.pi * y / 30)

    found = fit(pan(pattern.astype(np.float32), (0.1, 0.2), frames=2), nominal(SPIKE, RGB))

    assert found.is_applied == NONE
    assert found.moved < 0.2  # RGB pixels. Without the start it is 12, and applied


# ---- A round on all pixels ----


def residuals_after(
    pair: Pair, change: dict[str, float], step: list[float], a: np.ndarray
) -> np.ndarray:
    """Return r (h, w) of a view, with given coefficients a, after the times and the matrix change.

    change: what is added to fields of `State`. step: amounts of the first four CHANGES.
    """
    state = State([pair], nominal(SPIKE, RGB), model="similarity", most_offset=20.0)
    for field, amount in change.items():
        setattr(state, field, getattr(state, field) + amount)
    state._change_matrix(np.array(step))
    details = not_none(state._details(pair, pair.features(BLUR), SIGMA))
    return details.spikes - details.features @ a


SIGMA = 2.0  # size of the details in spike pixels
BLUR = 4.0  # of the frame, in RGB pixels


# The rates around start and end are measured over REACH planes on each side. So the times are
# changed by as much: later by REACH moves both ends by REACH, and so does longer by 2 REACH.
#
# Two columns are only about right. The column of the scale leaves out that the filter of the
# details does not grow with the image. And the roll moves rows near the middle by less than REACH.
@pytest.mark.parametrize(
    ("column", "change", "step", "limit"),
    [
        pytest.param(0, {}, [0.01, 0, 0, 0], 0.1, id="right"),
        pytest.param(1, {}, [0, 0.01, 0, 0], 0.1, id="down"),
        pytest.param(2, {}, [0, 0, 0.01, 0], 0.4, id="larger"),
        pytest.param(3, {}, [0, 0, 0, 0.01], 0.1, id="turned"),
        pytest.param(registration.MIDDLE_COLUMN, {"middle": REACH}, [0] * 4, 0.01, id="later"),
        pytest.param(registration.LENGTH_COLUMN, {"length": 2 * REACH}, [0] * 4, 0.01, id="longer"),
        pytest.param(registration.ROLL_COLUMN, {"roll": REACH}, [0] * 4, 0.4, id="rolled"),
    ],
)
def test_each_column_is_the_derivative_of_the_residuals(moving_view, column, change, step, limit):
    pair = Pair(moving_view, factor=1, light="linear")
    state = State([pair], nominal(SPIKE, RGB), model="similarity", most_offset=20.0)
    details = not_none(state._details(pair, pair.features(BLUR), SIGMA))
    a = registration._explain([details]).a
    predicted = details.features @ a.astype(np.float32)
    computed = state._columns(details, predicted)[column]

    later = residuals_after(pair, change, step, a)
    back = {field: -amount for field, amount in change.items()}
    earlier = residuals_after(pair, back, [-amount for amount in step], a)
    amount = max([*change.values(), *step])
    measured = (later - earlier) / (2 * amount)
    if column == registration.LENGTH_COLUMN:
        # This column leaves out the part of the gain that larger coefficients explain.
        measured = measured - predicted / state.length

    # Without the edges, where the filter repeats pixels.
    inside = (slice(12, -12), slice(12, -12))
    error = computed[inside] - measured[inside]
    assert np.linalg.norm(error) < limit * np.linalg.norm(measured[inside])


def test_the_other_values_follow_a_time_that_stops_at_its_limit():
    rng = np.random.default_rng(0)
    J = rng.standard_normal((30, registration.MATRIX_AND_TIMES + registration.FEATURES))
    A = J.T @ J
    gradient = rng.standard_normal(len(A))
    least = np.array([-100.0, -100, -100])
    free = registration._step_within_limits(A, gradient, (least, -least))
    # The middle and the length may make a tenth of their free steps.
    most = np.abs(free[registration.TIME_COLUMNS]) * (0.1, 0.1, 100)

    step = registration._step_within_limits(A, gradient, (-most, most))

    assert np.allclose(A @ free, -gradient)
    assert np.allclose(np.abs(step[4:6]), most[:2])
    is_free = np.delete(np.arange(len(A)), (4, 5))
    assert np.allclose((A @ step + gradient)[is_free], 0)


def test_pixels_with_large_residuals_count_less():
    weights = registration._huber_weights(np.array([1.0, -2, 4, -8]), limit=2)

    assert weights.tolist() == [1, 1, 0.5, 0.25]


def test_a_count_varies_by_its_part_behind_the_point():
    # 0.43 spikes per plane in 10 planes: 4 or 5 spikes, 5 with the probability 0.3.
    variance = registration._variance_of_counts(np.full((2, 2), 0.43), planes=10)

    assert variance == pytest.approx(0.3 * 0.7)


def test_broken_pixels_repeat_their_neighbours(moving_view):
    whole = moving_view.stream // 4  # up to 50 spikes per plane
    broken = whole.copy()
    broken[:, 20, 20] = 255  # fires far more often than its neighbours
    broken[:, 40, 40] = 0  # never fires

    mended = Pair(replace(moving_view, stream=broken), factor=1, light="linear").sums

    for y, x in ((20, 20), (40, 40)):
        spikes = float(mended[-1, y, x])
        assert spikes == pytest.approx(float(whole[:, y, x].sum()), rel=0.3)


# ---- A round on parts of the plane ----

# Centers of nine parts, (9, 3): x, y, 1.
CENTERS = np.array([[x, y, 1.0] for y in (-0.8, 0, 0.8) for x in (-0.8, 0, 0.8)])
# Variances of the shifts of nine parts, (9, 2, 2): an error of 0.001 half sides.
VARIANCES = np.repeat(1e-6 * np.eye(2)[None], 9, axis=0)


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_change_of_the_matrix_moves_places_as_computed(number):
    J = registration._motions_of_places(CHANGES, CENTERS)  # (9, 2, 8)

    amount = 1e-6
    moved = CENTERS @ (np.eye(3) + amount * CHANGES[number]).T
    measured = (moved[:, :2] / moved[:, 2:] - CENTERS[:, :2]) / amount
    assert np.allclose(J[:, :, number], measured, atol=1e-5)


def test_the_joint_change_makes_the_shifts_of_the_parts():
    amounts = np.array([0.02, -0.01, 0.005, 0.01, 0.002, -0.003, 0.001, 0.004])
    shifts = registration._motions_of_places(CHANGES, CENTERS) @ amounts

    joint = registration._join_shifts(shifts, VARIANCES, CENTERS, CHANGES)

    assert np.allclose(joint.amounts, amounts)
    assert np.allclose(joint.remaining, 0)


def test_parallax_makes_the_change_less_sure():
    aligned = np.zeros((9, 2))
    # Every second part is nearer, and shifts by 0.05 half sides more.
    with_parallax = aligned.copy()
    with_parallax[::2, 0] = 0.05
    similarity = CHANGES[:4]

    sure = registration._join_shifts(aligned, VARIANCES, CENTERS, similarity)
    unsure = registration._join_shifts(with_parallax, VARIANCES, CENTERS, similarity)

    # The parts differ from their mean by 0.025. The error of the mean of nine parts is a third.
    error_of_shift = np.sqrt(unsure.covariance[0, 0])
    assert error_of_shift == pytest.approx(0.025 / 3, rel=0.4)
    assert np.sqrt(sure.covariance[0, 0]) == pytest.approx(0.001 / 3, rel=0.4)


def test_parts_without_texture_in_two_directions_are_not_used():
    H = np.repeat(100 * np.eye(2)[None], 4, axis=0)
    H[1] = 0.01 * np.eye(2)  # hardly any texture
    H[2] = [[100, 100], [100, 100]]  # an edge: all texture has one direction
    pixels = np.array([50, 50, 50, 10])  # the last part has few pixels

    assert registration._usable_parts(H, pixels).tolist() == [True, False, False, False]

"""data/disagreement.py: the words for spikes and frames that do not agree.

The tests give measures by hand (data/edge_shift.py). `shift` is how far the spikes lie to the right
and below the frame, in RGB pixels. `response` is the height of the peak of the phase correlation:
a high peak means that spikes and frame show the same scene, maybe shifted.
"""

import numpy as np
import pytest

from data.disagreement import what_differs
from data.edge_shift import Measures, Pair


@pytest.fixture(scope="module")
def unlike_pairs():
    """Give two pictures of noise, which no flip makes alike."""
    rng = np.random.default_rng(0)
    spikes, frame = rng.random((2, 64, 64), np.float32)
    return [Pair(spikes, frame)]


def test_a_shift_is_said_in_pixels_and_directions(unlike_pairs):
    # The shift is (to the right, down), so -1.5 is 1.5 pixels up.
    measures = Measures(correlation=0.2, shift=(3.0, -1.5), response=0.6)

    words = what_differs(unlike_pairs, measures, pixel_side=2, is_calibrated=False)

    assert words.startswith("the spikes are shifted by 3.0 px to the right and 1.5 px up: check")


def test_a_shift_of_less_than_a_pixel_is_not_said_to_be_the_cause(unlike_pairs):
    measures = Measures(correlation=0.2, shift=(0.2, -0.1), response=0.6)

    words = what_differs(unlike_pairs, measures, pixel_side=2, is_calibrated=False)

    assert words.startswith("check spike.flip, spike.h and spike.w, spike.calibration")


def test_a_clear_shift_names_the_options_that_can_cause_it(unlike_pairs):
    measures = Measures(correlation=0.9, shift=(3.0, -1.5), response=0.9)

    words = what_differs(unlike_pairs, measures, pixel_side=1, is_calibrated=False)

    assert "3.0 px to the right and 1.5 px up" in words
    options = ("spike.calibration", "spike.head_columns", "spike.first", "spike.exposure")
    for option in (*options, "spike.center"):
        assert option in words


def test_spikes_that_show_nothing_are_named(unlike_pairs):
    [pair] = unlike_pairs
    dark = [Pair(np.zeros_like(pair.spikes), pair.frame)]
    measures = Measures(correlation=0.0, shift=(0.0, 0.0), response=0.0)

    words = what_differs(dark, measures, pixel_side=2, is_calibrated=False)

    assert words.startswith("the picture of the spikes has one value everywhere")

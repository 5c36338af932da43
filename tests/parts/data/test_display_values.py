"""data/spike/pictures.py: display values and linear light, grey, and pixels of 8 bits.

Made data sets and training samples consist of these numbers. If a test here fails, old data sets
cannot be made again, and trained networks get other inputs.
"""

import numpy as np
import pytest

from data.spike.pictures import bin_pixels, to_display, to_grey, to_linear, to_uint8


def test_the_display_value_of_light_is_its_root_of_2_2():
    values = np.array([0.0, 0.25, 0.5, 1.0], np.float32)
    light = np.array([0.0, 0.0473661, 0.2176376, 1.0])  # value ** 2.2

    assert to_linear(values) == pytest.approx(light, abs=1e-6)
    assert to_display(light) == pytest.approx(values, abs=1e-6)


def test_another_gamma_can_be_given():
    assert to_linear(np.array([0.5], np.float32), gamma=1.0) == pytest.approx([0.5])
    assert to_linear(np.array([0.5], np.float32), gamma=2.0) == pytest.approx([0.25])


def test_light_outside_of_0_to_1_has_the_display_value_of_the_limit():
    assert to_display(np.array([-0.5, 2.0])).tolist() == [0.0, 1.0]


def test_grey_has_the_weights_of_rec_601():
    red_green_blue = np.eye(3, dtype=np.float32)[None]  # (1, 3, 3), a row of three pixels

    assert to_grey(red_green_blue) == pytest.approx(np.array([[0.299, 0.587, 0.114]]), abs=1e-6)


def test_display_values_are_rounded_to_the_nearest_of_8_bits():
    # The values are below, at and above the step 100. The next array is outside of the range.
    values = np.array([99.4, 99.6, 100.0, 100.4, 100.6]) / 255

    assert to_uint8(values).tolist() == [99, 100, 100, 100, 101]
    assert to_uint8(np.array([-0.2, 1.3])).tolist() == [0, 255]


def test_a_large_pixel_sees_the_mean_of_its_block():
    light = np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.float32)

    # The blocks of 2 x 2 pixels are (0, 1, 4, 5) and (2, 3, 6, 7).
    assert bin_pixels(light, factor=2).tolist() == [[2.5, 4.5]]

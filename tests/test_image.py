import cv2
import numpy as np
import pytest

from tests.clip_files import picture
from utils.errors import DataError
from utils.image import LABEL_HEIGHT, comparison, comparison_strip, imwrite_rgb, list_images


def test_a_png_comes_back_as_it_went_out(tmp_path):
    imwrite_rgb(tmp_path / "a" / "x.png", picture())
    assert np.array_equal(cv2.imread(str(tmp_path / "a" / "x.png"))[..., ::-1], picture())
    assert [p.name for p in list_images(tmp_path / "a")] == ["x.png"]


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        list_images(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        list_images(tmp_path / "none")


def test_a_strip_shows_what_there_is():
    blurry, restored, light = picture(20, 30), picture(40, 60), np.linspace(0, 0.4, 600).reshape(20, 30)
    full = comparison_strip(comparison(blurry, light, restored, restored))
    assert full.shape == (40 + LABEL_HEIGHT, 5 * 60 + 4 * 2, 3) and full.dtype == np.uint8
    assert (full[LABEL_HEIGHT:, -60:] == 0).all()  # no error where restored is sharp
    assert comparison_strip(comparison(blurry, None, restored, None)).shape == (40 + LABEL_HEIGHT, 2 * 60 + 2, 3)


@pytest.mark.parametrize(("sharp", "error"), [(110, 50), (10, 255)])
def test_the_error_is_five_times_the_difference_and_the_brightest_spikes_are_white(sharp, error):
    a = np.full((10, 10, 3), 100, np.uint8)
    light = np.linspace(0, 0.4, 100).reshape(10, 10)
    panels = comparison(a, light, a, np.full_like(a, sharp))
    assert (panels["error x5"] == error).all()
    assert panels["spikes"].shape == (10, 10, 3) and panels["spikes"][0, 0, 0] == 0
    assert panels["spikes"][-1, -1, 0] == 255 and (comparison(a, 0 * light, a, None)["spikes"] == 0).all()

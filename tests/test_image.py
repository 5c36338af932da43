import cv2
import numpy as np
import pytest
import torch

from utils.errors import DataError
from utils.files import write_whole
from utils.image import (
    LABEL_HEIGHT,
    comparison,
    comparison_strip,
    error_picture,
    imwrite_rgb,
    list_images,
    spike_picture,
)


def picture(height=48, width=64, seed=0):
    rows, cols = np.mgrid[:height, :width]
    return np.stack((rows * 4 % 256, cols * 3 % 256, (rows + cols + 40 * seed) % 256), axis=2).astype(np.uint8)


def test_a_png_comes_back_as_it_went_out(tmp_path):
    imwrite_rgb(tmp_path / "a" / "x.png", picture())
    assert np.array_equal(cv2.imread(str(tmp_path / "a" / "x.png"))[..., ::-1], picture())
    assert [p.name for p in list_images(tmp_path / "a")] == ["x.png"]


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        list_images(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        list_images(tmp_path / "none")


def test_write_whole_replaces_and_leaves_nothing_beside(tmp_path):
    write_whole(tmp_path / "x", b"one")
    write_whole(tmp_path / "x", b"two")
    assert [p.name for p in tmp_path.iterdir()] == ["x"] and (tmp_path / "x").read_bytes() == b"two"


def test_a_strip_shows_what_there_is():
    lq, spike, restored = torch.rand(3, 20, 30), np.random.default_rng(0).random((20, 30)), torch.rand(3, 40, 60)
    full = comparison_strip(comparison(lq, spike, restored, restored))
    assert full.shape == (40 + LABEL_HEIGHT, 5 * 60 + 4 * 2, 3) and full.dtype == np.uint8
    assert (full[LABEL_HEIGHT:, -60:] == 0).all()  # no error where restored is sharp
    assert comparison_strip(comparison(lq, None, restored, None), labels=False).shape == (40, 2 * 60 + 2, 3)


def test_error_and_spike_pictures():
    a = np.full((2, 2, 3), 100, np.uint8)
    assert (error_picture(a, a + 10) == 50).all() and (error_picture(a, a - 90) == 255).all()
    grey = spike_picture(np.linspace(0, 0.4, 100).reshape(10, 10))
    assert grey.shape == (10, 10, 3) and grey[0, 0, 0] == 0 and grey[-1, -1, 0] == 255
    assert (spike_picture(np.zeros((4, 4))) == 0).all()

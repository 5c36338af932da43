"""Files that are damaged, removed or unreadable after a run has started: an error that names the file, never zeros."""

import cv2
import numpy as np
import pytest

from data.select_dataset import build_dataset
from tests.clip_files import PLANES, section, write_clip, write_info
from tests.ordinary_user import as_ordinary_user, readable_folder
from utils.errors import DataError


def build(root, **changes):
    return build_dataset(section(root, "train", **changes), "train", 0)


@pytest.mark.parametrize("damage", ["gone", "empty", "half", "text"])
def test_a_frame_that_breaks_after_the_start_is_an_error_naming_it(tmp_path, damage):
    write_clip(tmp_path, "clip0")
    write_info(tmp_path)
    dataset = build(tmp_path, num_frame=6)
    path = tmp_path / "GOPRO_Large/train/clip0/blur/000003.png"
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "text": b"<html>"}[damage])
    with pytest.raises(DataError, match="cannot read") as error:
        dataset[(0, 0)]
    assert str(path) in str(error.value)


@pytest.mark.parametrize("size", [None, 0, 12 * PLANES - 1, 12 * PLANES * 2])
def test_a_spike_file_that_breaks_after_the_start_is_an_error_naming_it(tmp_path, size):
    write_clip(tmp_path, "clip0")
    write_info(tmp_path)
    dataset = build(tmp_path, num_frame=6)
    path = tmp_path / "GOPRO_Large_spike_seq/train/clip0/spike/000002.dat"
    path.unlink()
    if size is not None:
        path.write_bytes(b"\1" * size)
    with pytest.raises(DataError) as error:
        dataset[(0, 0)]
    assert str(path) in str(error.value)


def test_a_frame_of_another_size_is_an_error(tmp_path):
    write_clip(tmp_path, "clip0")
    write_info(tmp_path)
    path = tmp_path / "GOPRO_Large/train/clip0/sharp/000001.png"
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(DataError, match="frame of 8 x 8"):
        build(tmp_path, num_frame=6)[(0, 0)]


def test_half_a_jpeg_is_not_taken_for_a_picture(tmp_path):
    write_clip(tmp_path, "clip0")
    write_info(tmp_path)
    folder = tmp_path / "GOPRO_Large/train/clip0"
    for path in sorted(folder.rglob("*.png")):
        picture = cv2.imread(str(path))
        path.unlink()
        cv2.imwrite(str(path.with_suffix(".jpg")), picture)
    dataset = build(tmp_path, filename_ext="jpg", num_frame=6)
    dataset[(0, 0)]
    broken = folder / "blur/000004.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    with pytest.raises(DataError, match="cut short"):
        dataset[(0, 0)]


@pytest.mark.parametrize("name", ["GOPRO_Large/train/clip0/blur/000002.png",
                                  "GOPRO_Large_spike_seq/train/clip0/spike/000002.dat"])  # fmt: skip
def test_a_file_without_permission_is_named(name):
    with readable_folder() as folder:
        write_clip(folder, "clip0")
        write_info(folder)
        dataset = build(folder, num_frame=6)
        with as_ordinary_user():
            dataset[(0, 0)]
        (folder / name).chmod(0)
        with as_ordinary_user(), pytest.raises(DataError, match="Permission denied") as error:
            dataset[(0, 0)]
    assert name in str(error.value)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    write_clip(tmp_path, "clip0")
    write_info(tmp_path)
    dataset = build(tmp_path, num_frame=6)
    path = tmp_path / "GOPRO_Large/train/clip0/blur/000002.png"
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="Is a directory") as error:
        dataset[(0, 0)]
    assert str(path) in str(error.value)

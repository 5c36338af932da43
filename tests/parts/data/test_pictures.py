"""Pictures are read upright, and what their values lose or why they cannot be read is said."""

from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from data.clips.clip_reader import user_clips
from data.clips.files import FrameSource, image_size, read_bgr
from data.clips.preflight import preflight
from tests.helpers.clip_files import picture, resolved, section, write_clips
from utils.errors import DataError
from utils.options.models import DatasetsOptions

ORIENTATION = 0x112  # the tag of Exif and TIFF
# Lossless ones, and JPEG at its best.
WRITING: dict[str, dict[str, Any]] = {
    "png": {},
    "tif": {},
    "webp": {"lossless": True},
    "jpg": {"quality": 100, "subsampling": 0},
}


def write_turned(path, image, orientation):
    """Write (H, W, 3) RGB with an Exif orientation 1 ... 8; the upright image by Pillow."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    how = WRITING[path.suffix[1:]]
    Image.fromarray(image).save(path, exif=exif, **how)
    with Image.open(path) as stored:
        return np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))


@pytest.mark.parametrize("ending", WRITING)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_orientation_says(tmp_path, ending, orientation):
    blocks = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)
    path = tmp_path / f"a.{ending}"
    shown = write_turned(path, np.kron(blocks, np.ones((16, 16, 1), np.uint8)), orientation)

    found = read_bgr(str(path))[..., ::-1]
    assert found.shape == (*image_size(str(path)), 3)
    assert shown.shape == (*image_size(str(path)), 3)
    assert np.abs(found.astype(int) - shown).mean() < 3


def test_a_turned_png_with_much_before_its_pixels_has_its_upright_size(tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    noise = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8).tobytes()
    image = Image.fromarray(picture(32, 48))
    image.save(tmp_path / "a.png", exif=exif, icc_profile=noise)

    assert image_size(str(tmp_path / "a.png")) == (48, 32)


def write_deep(path, bits, height=32, width=32):
    """A picture whose largest value is the largest one of so many bits, stored in 16."""
    values = np.random.default_rng(0).integers(0, 2**bits, (height, width, 3), np.uint16)
    values[0, 0] = 2**bits - 1
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), values)


@pytest.mark.parametrize("ending", ["png", "tiff"])
@pytest.mark.parametrize("bits", [10, 12, 14])
def test_fewer_bits_in_16_are_said_of_a_users_frames(tmp_path, caplog, ending, bits):
    for number in range(2):
        write_deep(tmp_path / f"clip/{number}.{ending}", bits)
    user_clips(tmp_path / "clip")
    first = tmp_path / f"clip/0.{ending}"
    question = f"{first} has 16 bits, but no value is above {2**bits - 1}: {bits} bits?"

    assert question in caplog.text


@pytest.mark.parametrize("ending", ["png", "tiff"])
def test_12_bits_in_16_are_said_once_before_a_training(tmp_path, caplog, ending):
    write_clips(tmp_path, "a", "b", regrouped=True)
    for kind in ("train_GT", "train_GT_blurred"):
        for path in sorted((tmp_path / "GOPRO_Large" / kind).rglob("*.png")):
            path.unlink()
            write_deep(path.with_suffix(f".{ending}"), 12, 16, 24)
    values = section(tmp_path, regrouped=True, filename_ext=ending)
    preflight(DatasetsOptions(train=resolved(values)), tmp_path / "stored")
    said = [text for text in caplog.messages if "no value is above 4095: 12 bits?" in text]

    assert len(said) == 1


def test_full_16_bits_are_said_to_be_cut(tmp_path, caplog):
    write_deep(tmp_path / "a.png", 16)
    FrameSource(tmp_path / "a.png")
    assert caplog.messages == [f"{tmp_path / 'a.png'} has 16 bits: they are cut to 8"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_picture_of_floating_point_values_is_said_to_be_one(tmp_path, dtype):
    assert cv2.imwrite(str(tmp_path / "a.tif"), picture().astype(dtype) / 255)
    bits = 8 * np.dtype(dtype).itemsize
    with pytest.raises(DataError, match=f"TIFF holds floating-point numbers of {bits} bits") as e:
        FrameSource(tmp_path / "a.tif")

    assert "a.tif" in e.value.where
    assert "16 bits" in e.value.do


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1", "HEIC"),
        (b"GIF89a\x10\0\x10\0", "GIF"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
    ],
)
def test_a_file_of_another_kind_with_the_ending_of_a_picture_is_named(tmp_path, content, kind):
    (tmp_path / "a.jpg").write_bytes(content + bytes(100))
    with pytest.raises(DataError, match=f"its content is {kind}"):
        FrameSource(tmp_path / "a.jpg")

"""Pictures are read upright. Messages say which values are lost, or why a picture cannot be read.

A picture may have an orientation (in Exif or a TIFF tag): a number 1 ... 8, which says how the
stored pixels must be turned or mirrored to stand upright. A picture may also have 16 bits per value
although its camera has fewer, e.g. 12. The frames of a clip are read as 8 bits.
"""

from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from data.clips.clip_reader import user_clips
from data.clips.pictures import image_size, read_bgr
from data.clips.preflight import preflight
from data.clips.user_frames import FrameSource
from tests.helpers.clip_files import data_section, picture, resolve_section, write_clips
from utils.errors import DataError
from utils.options.loader_options import DatasetsOptions

ORIENTATION = 0x112  # the tag of Exif and TIFF
# Ending -> arguments of Pillow's `save` with which a picture loses as little as its format allows.
WRITING: dict[str, dict[str, Any]] = {
    "png": {},
    "tif": {},
    "webp": {"lossless": True},
    "jpg": {"quality": 100, "subsampling": 0},
}


def write_turned(path, image, orientation):
    """Write an image (H, W, 3) with an Exif orientation. Return the upright image.

    orientation: 1 ... 8. Pillow, an independent reader, turns the image upright.
    """
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    save_options = WRITING[path.suffix[1:]]
    Image.fromarray(image).save(path, exif=exif, **save_options)
    with Image.open(path) as stored:
        return np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))


@pytest.mark.parametrize("ending", WRITING)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_orientation_says(tmp_path, ending, orientation):
    # The image has 3 x 5 blocks of one colour each. A block has 16 x 16 pixels, so JPEG keeps it
    # nearly unchanged.
    colours = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)
    image = colours.repeat(16, axis=0).repeat(16, axis=1)
    path = tmp_path / f"a.{ending}"
    upright = write_turned(path, image, orientation)

    found = read_bgr(str(path))[..., ::-1]

    assert found.shape == (*image_size(str(path)), 3)
    assert upright.shape == (*image_size(str(path)), 3)
    # JPEG changes values by less than 3 in the mean. With a wrong orientation, each block would be
    # compared with another random colour. Two random values of 0 to 255 differ by 85 (256 / 3) in
    # the mean.
    assert np.abs(found.astype(int) - upright).mean() < 3


def test_a_turned_png_with_much_before_its_pixels_has_its_upright_size(tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # a quarter turn, so height and width change places
    # `image_size` first reads 4096 bytes. The colour profile stands before the orientation. The
    # profile has 10,000 random bytes, which cannot be compressed. So the orientation comes after
    # byte 4096.
    profile = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8).tobytes()
    image = Image.fromarray(picture(height=32, width=48))
    image.save(tmp_path / "a.png", exif=exif, icc_profile=profile)

    assert image_size(str(tmp_path / "a.png")) == (48, 32)


def write_deep(path, bits, height=32, width=32):
    """Write a picture of random values of `bits` bits, stored as 16-bit values.

    Pixel (0, 0) has the largest value, 2^bits - 1. So the picture certainly uses all bits.
    """
    values = np.random.default_rng(0).integers(0, 2**bits, (height, width, 3), np.uint16)
    values[0, 0] = 2**bits - 1
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), values)


@pytest.mark.parametrize("ending", ["png", "tiff"])
@pytest.mark.parametrize("bits", [10, 12, 14])
def test_16_bit_frames_of_a_user_that_use_fewer_bits_are_named(tmp_path, caplog, ending, bits):
    for number in range(2):
        write_deep(tmp_path / f"clip/{number}.{ending}", bits)

    user_clips(tmp_path / "clip")

    first = tmp_path / f"clip/0.{ending}"
    question = f"{first} has 16 bits, but no value is above {2**bits - 1}: {bits} bits?"
    assert question in caplog.text


@pytest.mark.parametrize("ending", ["png", "tiff"])
def test_16_bit_frames_that_use_12_bits_are_named_once_before_a_training(tmp_path, caplog, ending):
    # With regrouped=True, sharp frames are below train_GT, and blurry frames below
    # train_GT_blurred.
    write_clips(tmp_path, "a", "b", regrouped=True)
    # Replace every frame by a picture of 12 bits. The frames of `write_clips` are 16 x 24 pixels.
    for kind in ("train_GT", "train_GT_blurred"):
        for path in sorted((tmp_path / "GOPRO_Large" / kind).rglob("*.png")):
            path.unlink()
            write_deep(path.with_suffix(f".{ending}"), bits=12, height=16, width=24)
    values = data_section(tmp_path, regrouped=True, filename_ext=ending)

    # `preflight` checks the data before a training. `resolve_section` adds the defaults to the
    # section.
    preflight(DatasetsOptions(train=resolve_section(values)), stored=tmp_path / "stored")

    # The largest value of 12 bits is 2^12 - 1 = 4095.
    found = [text for text in caplog.messages if "no value is above 4095: 12 bits?" in text]
    assert len(found) == 1


def test_full_16_bits_are_said_to_be_cut(tmp_path, caplog):
    write_deep(tmp_path / "a.png", bits=16)

    FrameSource(tmp_path / "a.png")

    assert caplog.messages == [f"{tmp_path / 'a.png'} has 16 bits: they are cut to 8"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_picture_of_floating_point_values_is_said_to_be_one(tmp_path, dtype):
    assert cv2.imwrite(str(tmp_path / "a.tif"), picture().astype(dtype) / 255)
    bits = 8 * np.dtype(dtype).itemsize  # 32 or 64

    message = f"TIFF holds floating-point numbers of {bits} bits"
    with pytest.raises(DataError, match=message) as error:
        FrameSource(tmp_path / "a.tif")

    assert "a.tif" in error.value.where
    assert "16 bits" in error.value.do


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1", "HEIC"),
        (b"GIF89a\x10\0\x10\0", "GIF"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
    ],
)
def test_a_file_of_another_kind_with_the_ending_of_a_picture_is_named(tmp_path, content, kind):
    # The zero bytes stand for the rest of the file.
    (tmp_path / "a.jpg").write_bytes(content + bytes(100))

    with pytest.raises(DataError, match=f"its content is {kind}"):
        FrameSource(tmp_path / "a.jpg")

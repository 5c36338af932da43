"""Decode images; every failure is a DataError that names the file."""

from __future__ import annotations

import struct

import cv2
import numpy as np

from data.roots import read_bytes
from utils.errors import DataError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def decode_bgr(encoded: bytes, path: str) -> np.ndarray:
    """An encoded image -> (H, W, 3) uint8 in OpenCV's order B, G, R; the EXIF rotation is ignored."""
    if encoded[:2] == b"\xff\xd8" and b"\xff\xd9" not in encoded[-64:]:
        # OpenCV fills the missing part of a truncated JPEG with grey and reports it on stderr only.
        raise _no_picture(path, f"JPEG of {len(encoded)} bytes is cut short")
    buffer = np.frombuffer(encoded, np.uint8)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        picture = cv2.imdecode(buffer, flags) if len(buffer) else None
    except cv2.error as e:  # for instance a damaged header that states too many pixels
        raise _no_picture(path, str(e).splitlines()[0]) from e
    if picture is None:
        raise _no_picture(path, f"{len(encoded)} bytes that are no whole picture")
    return picture


def read_bgr(path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """The image in a file as (H, W, 3) uint8 in the order B, G, R. Raises DataError naming the file.

    size: the expected (H, W), that of the first frame of the clip; None: any.
    """
    picture = decode_bgr(read_bytes(path), path)
    if size is not None and picture.shape[:2] != size:
        raise DataError(
            f"frame of {picture.shape[0]} x {picture.shape[1]}", path,
            f"{size[0]} x {size[1]}, as the first frame of its clip", "remove the frame, or make it again",
        )  # fmt: skip
    return picture


def picture_size(path: str) -> tuple[int, int]:
    """(height, width) of an image; a PNG is not decoded, only its header is read."""
    head = read_bytes(path, 24)[:24]
    if head[:8] == PNG_SIGNATURE and len(head) == 24:
        width, height = struct.unpack(">II", head[16:24])
        if not width or not height:
            raise _no_picture(path, f"its header says {height} x {width}")
        return height, width
    height, width = read_bgr(path).shape[:2]
    return height, width


def reduction(path: str) -> str:
    """What reading a PNG as 8-bit RGB changes, in words; "" for nothing, and for other files."""
    head = read_bytes(path, 26)
    depth, color = head[24:26] if head[:8] == PNG_SIGNATURE and len(head) > 25 else (8, 2)
    grey = "is a grey picture: its value is used for R, G and B" if color in (0, 4) else ""
    return "has 16 bits: they are cut to 8" if depth == 16 else grey


def _no_picture(path: str, reason: str) -> DataError:
    return DataError(
        f"cannot read picture: {reason}", path, "a whole PNG or JPEG file", "restore the file, or remove its clip"
    )

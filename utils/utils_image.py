"""Pictures and video on disk, and the side-by-side strips. Images are (H, W, 3) uint8 RGB everywhere in the project."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from utils.utils_errors import DataError
from utils.utils_files import natural_key, write_whole
from utils.utils_metrics import tensor_to_uint8

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
# VP9 plays in every browser; builds of OpenCV without it have MPEG-4 part 2.
VIDEO_CODECS = ("vp09", "mp4v")
LABEL_HEIGHT = 18
# Of the frames before one that a video was wound back to.
KEPT_BYTES = 128 * 2**20


def imwrite_rgb(path: str | Path, image: np.ndarray) -> None:
    """Write (H, W, 3) uint8 in the format of the suffix; the file is whole or absent. Makes the folder."""
    write_whole(path, encode_rgb(path, image))


def encode_rgb(path: str | Path, image: np.ndarray) -> bytes:
    """(H, W, 3) uint8 as the bytes of a file `path`, in the format of its suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in IMAGE_SUFFIXES:
        raise DataError(
            f"cannot write a {suffix or 'nameless'} image", str(path), ", ".join(IMAGE_SUFFIXES), "use .png"
        )
    _, encoded = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return encoded.tobytes()


def list_images(folder: str | Path) -> list[Path]:
    """The images of a folder in the natural order of their names. Raises DataError where there is none."""
    folder = Path(folder)
    found = [p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES] if folder.is_dir() else []
    found.sort(key=lambda path: natural_key(path.name))
    if not found:
        what = "the folder holds no images" if folder.is_dir() else "no such folder"
        raise DataError(what, str(folder), f"frames as {', '.join(IMAGE_SUFFIXES)}", "check the path")
    return found


class VideoReader:
    """Frames of a video by number. Opens the file at the first read.

    The number of frames is counted by decoding once: what containers state is often wrong. Seeking is not to be
    trusted either: jumping back decodes from the start again, and keeps some frames before, for a clip read backwards.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        capture = self._open()
        self.fps = float(capture.get(cv2.CAP_PROP_FPS)) or 25.0
        self.num_frames = 0
        while capture.grab():
            self.num_frames += 1
        capture.release()
        if self.num_frames == 0:
            raise self._unreadable("no frame can be decoded")
        self._capture: cv2.VideoCapture | None = None
        self._next = 0
        self._kept: dict[int, np.ndarray] = {}

    def read(self, index: int) -> np.ndarray:
        """Frame `index` as (H, W, 3) uint8."""
        if index not in self._kept:
            self._decode(index)
        return self._kept[index]

    def _decode(self, index: int) -> None:
        first = index
        if self._capture is None or index < self._next:
            if self._kept:
                one = next(iter(self._kept.values()))
                first = index - max(1, KEPT_BYTES // one.nbytes)
            self.close()
            self._capture, self._next = self._open(), 0
        self._kept = {}
        while self._next <= index:
            found = self._capture.grab()
            if found and self._next >= first:
                found, frame = self._capture.retrieve()
                if found:
                    self._kept[self._next] = cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
            if not found:
                raise self._unreadable(f"frame {self._next} of {self.num_frames} cannot be decoded")
            self._next += 1

    def close(self) -> None:
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    def _open(self) -> cv2.VideoCapture:
        if not self.path.is_file():
            raise self._unreadable("no such file")
        capture = cv2.VideoCapture(str(self.path), cv2.CAP_FFMPEG)
        if not capture.isOpened():
            raise self._unreadable(f"not a video ({self.path.stat().st_size} bytes)")
        return capture

    def _unreadable(self, what: str) -> DataError:
        return DataError(
            what,
            str(self.path),
            "a video that FFmpeg can decode",
            "play it in a player, or give its frames as a folder",
        )


class VideoWriter:
    """An mp4 that appears under its name only when it is whole.

    Use as a context manager: leaving it after an error removes what was written. Frames (H, W, 3) uint8 of one size.
    """

    def __init__(self, path: str | Path, fps: float) -> None:
        self.path, self.fps = Path(path), fps
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self.path.with_name(f".{self.path.stem}.part{self.path.suffix}")
        self._writer: cv2.VideoWriter | None = None
        self._count = 0

    def write(self, frame: np.ndarray) -> None:
        if self._writer is None:
            self._writer = self._open(frame.shape[1], frame.shape[0])
        self._writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        self._count += 1

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.release()
        try:
            if kind is None and self._count:
                self._check_whole()
                os.replace(self._temporary, self.path)
        finally:
            self._temporary.unlink(missing_ok=True)

    def _open(self, width: int, height: int) -> cv2.VideoWriter:
        for codec in VIDEO_CODECS:
            writer = cv2.VideoWriter(
                str(self._temporary), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*codec), self.fps, (width, height)
            )
            if writer.isOpened():
                return writer
        raise DataError(
            "cannot encode video", str(self.path), f"one of the codecs {VIDEO_CODECS}", "write frames instead"
        )

    def _check_whole(self) -> None:
        # FFmpeg inside OpenCV says nothing when the disk is full: only reading back tells.
        capture, readable = cv2.VideoCapture(str(self._temporary), cv2.CAP_FFMPEG), 0
        while capture.grab():
            readable += 1
        capture.release()
        if readable != self._count:
            raise DataError(
                f"the video could not be written: {readable} of {self._count} frames can be read back", str(self.path),
                "a whole file", "free some space, then start the same command again",
            )  # fmt: skip


def spike_picture(spike: Tensor) -> np.ndarray:
    """Spike representation (S, H, W) -> (H, W, 3) uint8 for the eye: the mean over its middle third, a short TFP.

    Scaled so that the 99.5th percentile is white, gamma 1/2.2 (firing rates are linear in light).
    """
    # Over all channels it would be as blurry as the RGB frame of the same exposure.
    width = max(1, len(spike) // 3)
    first = (len(spike) - width) // 2
    rate = spike[first : first + width].detach().float().mean(0).clamp(min=0).cpu().numpy()
    white = max(float(np.percentile(rate, 99.5)), 1e-6)
    grey = np.round(255 * np.clip(rate / white, 0, 1) ** (1 / 2.2)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


def error_picture(restored: np.ndarray, gt: np.ndarray, factor: float = 5.0) -> np.ndarray:
    """|restored - gt| x factor, (H, W, 3) uint8, saturating at white."""
    difference = np.abs(restored.astype(np.int16) - gt.astype(np.int16))
    return np.clip(difference * factor, 0, 255).astype(np.uint8)


def comparison_strip(
    lq: Tensor, spike: Tensor | None, restored: Tensor, gt: Tensor | None, labels: bool = True
) -> np.ndarray:
    """Panels blur | spikes | restored | sharp | error x5 side by side, at the size of `restored`, (H', W', 3) uint8.

    lq (3, h, w), spike (S, h, w) or None, restored (3, H, W), gt (3, H, W) or None. Panels without data are left out.
    """
    output = tensor_to_uint8(restored)
    panels = {"blurry": tensor_to_uint8(lq[:3])}
    if spike is not None:
        panels["spikes"] = spike_picture(spike)
    panels["restored"] = output
    if gt is not None:
        sharp = tensor_to_uint8(gt)
        panels |= {"sharp": sharp, "error x5": error_picture(output, sharp)}
    return side_by_side(list(panels.values()), list(panels) if labels else None, output.shape[:2])


def side_by_side(images: Sequence[np.ndarray], labels: Sequence[str] | None, size: tuple[int, int]) -> np.ndarray:
    """Images (h, w, 3) in one row, each enlarged to `size` (height, width) by repetition; names above them."""
    height, width = size
    row = [
        image if image.shape[:2] == size else cv2.resize(image, (width, height), interpolation=cv2.INTER_NEAREST)
        for image in images
    ]
    if labels is not None:
        row = [np.concatenate((_label(text, width), image)) for text, image in zip(labels, row, strict=True)]
    gap = np.full((row[0].shape[0], 2, 3), 255, np.uint8)
    return np.concatenate([part for image in row for part in (image, gap)][:-1], axis=1)


def _label(text: str, width: int) -> np.ndarray:
    band = np.full((LABEL_HEIGHT, width, 3), 32, np.uint8)
    return cv2.putText(
        band, text, (4, LABEL_HEIGHT - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1, cv2.LINE_AA
    )

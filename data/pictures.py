"""The frames of one clip by number, and the clips that a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from data.frame_io import read_bgr
from utils.errors import DataError
from utils.files import natural_key
from utils.image import IMAGE_SUFFIXES, list_images
from utils.video import VIDEO_SUFFIXES, VideoReader


class Frames(Protocol):
    """Frames by number: (H, W, 3) uint8 in the order R, G, B."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> np.ndarray: ...


class Pictures:
    """The frames of a folder of images (in the natural order of their names), of a single image, or of a video.

    stems: name of each frame. size: (H, W) of the first frame. fps, times: see `VideoReader`; None for images.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.fps, self.times = path, None, None, None
        self._video: VideoReader | None = None
        if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
            self.files = list_images(path) if path.is_dir() else [path]
            self.stems = [file.stem for file in self.files]
        else:
            self._video, self.files = VideoReader(path), [path]
            self.fps, self.times = self._video.fps, self._video.times
            digits = max(6, len(str(self._video.num_frames)))
            self.stems = [f"{i:0{digits}d}" for i in range(self._video.num_frames)]
        self.size = self.read(0).shape[:2]

    def __len__(self) -> int:
        return len(self.stems)

    @property
    def is_video(self) -> bool:
        return self._video is not None

    def read(self, index: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB. Raises DataError for an unreadable frame or one of another size."""
        if self._video is not None:
            return self._video.read(index)
        return np.ascontiguousarray(read_bgr(str(self.files[index]), self.size)[..., ::-1])


def clips_in(root: Path, inner: str = "") -> list[tuple[str, Path]]:
    """(name, path) of the clips in the folder `root`, in natural order: videos and folders of images.

    inner: the images may also lie in a folder of this name within the folder of the clip.
    """
    found = []
    for path in sorted(root.iterdir(), key=lambda p: natural_key(p.name)):
        folder = subfolder(path, inner)
        if path.name.startswith("."):
            continue
        if path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES:
            found.append((path.stem, path))
        elif holds_images(folder):
            found.append((path.name, folder))
    return found


def holds_images(folder: Path) -> bool:
    return folder.is_dir() and any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir())


def subfolder(folder: Path, name: str) -> Path:
    """The folder `name` within `folder`, or `folder` itself where there is none."""
    return folder / name if (folder / name).is_dir() else folder


def check_same_view(frame: tuple[int, int], spikes: tuple[int, int], where: str) -> None:
    """Raise DataError where the aspect ratios of frame (H, W) and spike plane (h, w) differ by more than 2 %."""
    (height, width), (h, w) = frame, spikes
    if abs(width * h - height * w) > 0.02 * width * h:
        raise DataError(
            f"spikes of {h} x {w} for frames of {height} x {width}", where,
            "the same field of view, that is the same ratio of height to width",
            "correct the size of the spike planes; for a camera with another view, scripts/calibrate.py and "
            "spike.calibration",
        )  # fmt: skip

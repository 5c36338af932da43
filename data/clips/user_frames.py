"""Read the frames of a user: a folder of images, a single image, or a video.

`FrameSource` opens the frames, and its method `read` returns a frame as (H, W, 3) uint8 RGB,
upright. The stem of a frame is its name without a suffix: "000012" for "000012.png". Frames of a
video have no names, so they get their numbers.

What must stay: the stems, because the results of a user have these names, and the order of the
frames (test_images_are_sorted_by_the_numbers_in_their_names). Free to change: the warnings.

Tests: tests/parts/data/test_files.py, tests/parts/data/test_pictures.py,
tests/parts/data/test_frame_times.py, tests/stories/test_foreign_files.py
"""

import logging
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np

from data.clips.picture_losses import what_is_lost
from data.clips.pictures import read_bgr
from data.clips.user_folders import files_in, may_be_frames, warn_left_out
from utils.errors import DataError
from utils.image import IMAGE_SUFFIXES
from utils.name_order import natural_key
from utils.video.reader import VideoReader
from utils.video.upright import SQUARE

logger = logging.getLogger(__name__)


class UserFrames(Protocol):
    """Describes the attributes of the frames of one clip of a user.

    Two classes have these attributes: `FrameSource` below, and `LongExposures` in
    data/spikes_alone.py. The frames of `LongExposures` are made of spikes.
    """

    path: Path  # path of the folder, image or video, as the user gave it
    # The file of each frame. The images of a folder are sorted by the numbers in their names: "2"
    # before "10". The frames of a video all have the path of the video.
    files: list[Path]
    stems: list[str]  # the name of each frame, without a suffix
    size: tuple[int, int]  # (H, W) of the first frame
    fps: float | None  # frames per second of a video; None for images
    # Time of each frame of a video in seconds. None for images.
    times: list[Fraction] | None
    pixel_aspect: Fraction  # width / height of a pixel, 1 for images
    is_video: bool

    def __len__(self) -> int: ...

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8 RGB."""
        ...


class FrameSource(UserFrames):
    """The frames of a clip that is a folder of images, a single image, or a video.

    `UserFrames` only declares the attributes. It is the base class, so that a type checker notices
    an attribute of a wrong type in this class.

    What must stay: the stems, because the results of a user have these names.
    """

    def __init__(self, path: Path, go_on: Callable[[], object] = lambda: None) -> None:
        """Open the frames. Decodes the first frame, so that damage shows at once.

        go_on: called again and again while a video is read, so that the watchdog sees progress. The
        watchdog ends a program that makes no progress. The default does nothing.
        """
        if not path.exists():
            raise DataError(
                what="no such file or folder",
                where=str(path),
                expected="a video, or images",
                do="check the path",
            )
        self.path = path
        self.fps = None
        self.times = None
        self.pixel_aspect = SQUARE  # 1, as for all images
        # A file without the suffix of an image is tried as a video. `VideoReader` raises an error
        # if the file is not a video.
        self.is_video = not path.is_dir() and path.suffix.lower() not in IMAGE_SUFFIXES
        if self.is_video:
            self._open_video(go_on)
        else:
            self._list_images()
        self.size = self._size_of_first()
        # Warn after the first image was decoded. If it is damaged, the user sees only its error,
        # and no warnings before the error.
        if not self.is_video:
            self._warn_of_losses()

    def _open_video(self, go_on: Callable[[], object]) -> None:
        """Open the video, and name its frames by their numbers. go_on: as in `__init__`."""
        self._video = VideoReader(self.path, go_on)
        self.fps = self._video.fps
        self.times = self._video.times
        self.pixel_aspect = self._video.pixel_aspect
        count = self._video.num_frames
        self.files = [self.path] * count
        # "000000", "000001", ...: the frames of the published datasets have such names. A video of
        # more than a million frames has longer names, so that all names have one length.
        digits = max(6, len(str(count)))
        self.stems = [f"{number:0{digits}d}" for number in range(count)]

    def _list_images(self) -> None:
        """List the images of the folder, or take the one image. Raises DataError for no image."""
        self.files = files_in(self.path) if self.path.is_dir() else [self.path]
        self.stems = [file.stem for file in self.files]
        if not self.files:
            raise DataError(
                what="the folder holds no images",
                where=str(self.path),
                expected=f"frames as {', '.join(IMAGE_SUFFIXES)}",
                do="check the path",
            )

    def _size_of_first(self) -> tuple[int, int]:
        """Return (H, W) of the first frame. The frame is decoded, so that damage shows at once."""
        if self.is_video:
            first = self._video.read(0)
        else:
            first = read_bgr(str(self.files[0]))
        height, width = first.shape[:2]
        return height, width

    def _warn_of_losses(self) -> None:
        """Warn of files that are left out, and of bits that are lost, e.g. the lower 8 of 16 bits.

        Only the first image is searched for lost bits.
        """
        if self.path.is_dir():
            left_out = []
            for path in set(self.path.iterdir()) - set(self.files):
                if path.is_file() and may_be_frames(path):
                    left_out.append(path.name)
            warn_left_out(self.path, sorted(left_out, key=natural_key))
        lost = what_is_lost(str(self.files[0]))  # e.g. "has 16 bits: they are cut to 8"
        if lost:
            logger.warning("%s %s", self.files[0], lost)

    def __len__(self) -> int:
        return len(self.stems)

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8 RGB.

        Raises DataError for a frame that cannot be read, or whose size is not the size of the first
        frame.
        """
        if self.is_video:
            return self._video.read(index)
        bgr = read_bgr(str(self.files[index]), self.size)
        return np.ascontiguousarray(bgr[..., ::-1])

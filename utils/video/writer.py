"""Write frames as a film in H.264.

    with VideoWriter("out.mp4", fps=24) as writer:
        writer.write(image)                   # out.mp4 appears when the block ends without an error

Every time stamp and every row of a frame is kept: nothing is dropped, doubled or scaled.

What must stay: the times of the frames (test_every_frame_of_a_video_keeps_its_time). The file gets
the name of the film only when it is complete. Free to change: RATE_FACTOR.

Tests: tests/parts/utils/test_video.py, tests/parts/data/test_files.py
"""

import logging
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from utils.files import temporary_beside, writing
from utils.video.container import FFMPEG_ERRORS, open_container
from utils.video.upright import SQUARE

logger = logging.getLogger(__name__)

# Suffixes of files that have two clocks: one of the film, and one of the whole file
# (movie_timescale). The file states the start of each stream in ticks of the second clock.
MP4_SUFFIXES = (".mp4", ".mov", ".m4v")
# The finest clock of a written film, in ticks per second. A time stamp between two ticks is
# rounded to a tick. Chosen by hand.
FINEST_CLOCK = 2**24
# The constant rate factor (crf) of the encoder x264: 0 is lossless, and 18 counts as visually
# lossless. With a larger factor, the file is smaller and the quality is lower.
RATE_FACTOR = "10"
# FFmpeg's numbers for colours. They are written into the file, because otherwise players guess the
# colours from the size of the frame.
BT709 = 1  # AVCOL_SPC_BT709, AVCOL_PRI_BT709 and AVCOL_TRC_BT709 all have this number
LIMITED = 1  # AVCOL_RANGE_MPEG


class VideoWriter(AbstractContextManager):
    """A video in H.264, near lossless. Its file appears only when it is complete.

    A writer is used in a `with` block. Frames go into a temporary file. If the block ends without
    an error, the temporary file is read back and gets its name. If the block ends with an error,
    the temporary file is removed.
    """

    def __init__(
        self,
        path: str | Path,
        fps: float | Fraction,
        *,
        times: Sequence[Fraction] | None = None,
        chroma: str = "420",
        pixel_aspect: Fraction = SQUARE,
    ) -> None:
        """Prepare a video. The file is opened with the first frame, because its size is needed.

        path: the file. The video stream in the file is called the film here.
        fps: frames per second.
        times: seconds at which each frame is shown, or None for `fps` frames per second.
        chroma: "444" keeps the colour of every pixel. "420" keeps one colour for 2 x 2 pixels, and
            plays everywhere. It needs even sizes: if a size is odd, the last row or column is
            repeated.
        pixel_aspect: width of a pixel divided by its height. The file states it for players.
        """
        self.path = Path(path)
        self.chroma = chroma
        self.pixel_aspect = pixel_aspect
        # A float such as 29.97002997 stands for 30000 / 1001. But the exact fraction of the float
        # has a power of two as denominator, e.g. 2^48. A film counts time in ticks, and ticks of
        # 1 / 2^48 s are too short for it. So the denominator is limited to 100,000: 29.97002997
        # becomes 30000 / 1001, and a rate with up to five decimals stays exact.
        self._fps = Fraction(fps).limit_denominator(100_000)
        self._times = times
        # Without `times`, the time of the second frame is enough to choose the ticks.
        self._ticks_per_second = _ticks_per_second(times or [1 / self._fps])
        self._temporary = temporary_beside(self.path)
        # `_open` sets `_out`, the opened file, and `_stream`, the film in it.
        self._out: av.container.OutputContainer | None = None
        self._frame_count = 0  # number of frames written so far

    def write(self, frame: np.ndarray) -> None:
        """Write a frame (H, W, 3) uint8 RGB. All frames have one size.

        Raises DataError if the frame cannot be written.
        """
        with writing(self.path, errors=FFMPEG_ERRORS):
            if self._out is None:
                self._open(frame)
            assert self._out is not None
            # Any, because the types of PyAV do not know uint8 arrays.
            rgb: Any = self._as_large_as_film(frame)
            image = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            image = image.reformat(
                format=self._stream.pix_fmt, dst_colorspace="ITU709", dst_color_range="MPEG"
            )
            image.time_base = Fraction(1, self._ticks_per_second)
            image.pts = self._time_stamp()
            self._out.mux(self._stream.encode(image))
            self._frame_count += 1

    def _as_large_as_film(self, frame: np.ndarray) -> np.ndarray:
        """Return a frame (H, W, 3) in the size of the film.

        The film may have even sides where a side of the frame is odd. Then the last row or column
        is repeated.
        """
        height = self._stream.height
        width = self._stream.width
        if frame.shape[:2] == (height, width):
            return frame
        return cv2.copyMakeBorder(
            frame,
            top=0,
            bottom=height - frame.shape[0],
            left=0,
            right=width - frame.shape[1],
            borderType=cv2.BORDER_REPLICATE,
        )

    def _time_stamp(self) -> int:
        """Return the time of the next frame, in ticks."""
        if self._times:
            seconds = self._times[self._frame_count]
        else:
            seconds = self._frame_count / self._fps
        return round(seconds * self._ticks_per_second)

    def _open(self, frame: np.ndarray) -> None:
        """Open the temporary file and add a film for frames as large as `frame`, (H, W, 3)."""
        height, width = frame.shape[:2]
        if self.chroma == "420" and (height % 2 or width % 2):
            logger.info(
                "%s: the last row or column is repeated, as %s x %s is odd",
                self.path,
                width,
                height,
            )
            height = height + height % 2  # the next even number
            width = width + width % 2

        options = {}
        if self.path.suffix.lower() in MP4_SUFFIXES:
            # By default, the clock of the whole file counts milliseconds, and the start of the film
            # would be rounded to a millisecond. So set this clock to the ticks of the film.
            # faststart lets players begin before they have the whole file.
            options = {"movie_timescale": str(self._ticks_per_second), "movflags": "+faststart"}
        self._out = open_container(str(self._temporary), "w", options=options)

        quality = {"crf": RATE_FACTOR}
        self._stream = self._out.add_stream("libx264", rate=self._fps, options=quality)
        self._stream.height = height
        self._stream.width = width
        self._stream.pix_fmt = f"yuv{self.chroma}p"
        tick = Fraction(1, self._ticks_per_second)  # seconds
        context = self._stream.codec_context
        self._stream.time_base = tick
        context.time_base = tick
        if self.pixel_aspect != SQUARE:
            context.sample_aspect_ratio = self.pixel_aspect
        context.color_range = LIMITED
        context.colorspace = BT709
        context.color_primaries = BT709
        context.color_trc = BT709

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the file and give it its name, or remove it after an error.

        kind: type of the error that has ended the block, or None without an error.
        """
        try:
            with writing(self.path, errors=FFMPEG_ERRORS):
                self._close(is_complete=kind is None)
                # A video without a frame is not written.
                if kind is None and self._frame_count:
                    self._refuse_unreadable()
                    os.replace(self._temporary, self.path)
        finally:
            # The temporary file does not exist if it has been renamed, or was never made (because
            # there was no frame, or the name was too long).
            with suppress(OSError):
                self._temporary.unlink()

    def _close(self, is_complete: bool) -> None:
        """Close the temporary file.

        is_complete: whether to write what the encoder still holds.
        """
        if self._out is None:
            return
        try:
            if is_complete:
                self._out.mux(self._stream.encode())
        finally:
            self._out.close()

    def _refuse_unreadable(self) -> None:
        """Raise OSError if not all frames can be read back from the temporary file.

        FFmpeg does not report every error of a write. Reading back finds all of them.
        """
        with open_container(str(self._temporary)) as container:
            readable_count = 0
            # x264 puts each frame into a packet of its own.
            for packet in container.demux(container.streams.video[0]):
                if packet.size > 0:  # PyAV ends with an empty packet
                    readable_count += 1
        if readable_count != self._frame_count:
            raise OSError(0, f"{readable_count} of {self._frame_count} frames can be read back")


def _ticks_per_second(instants: Sequence[Fraction]) -> int:
    """Return the speed of a clock on which each instant is a whole number of ticks.

    A film states its time stamps in ticks of such a clock. A coarser clock would move frames
    (test_every_frame_of_a_video_keeps_its_time). E.g.

        instants          ticks per second
        1/24 s, 1/25 s    600, the least common multiple of 24 and 25
        1001/30000 s      30000

    The result is at most FINEST_CLOCK. If more ticks are needed, the caller rounds the instants.

    instants: times in seconds.
    """
    denominators = [instant.denominator for instant in instants]
    return min(math.lcm(*denominators), FINEST_CLOCK)

"""Video in and out, through FFmpeg's libraries (PyAV): time stamps, sound and every row of the picture are kept.

Images are (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.logging
import cv2
import numpy as np

from utils.errors import DataError

logger = logging.getLogger(__name__)


VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
# Of the frames before one that a video was wound back to.
KEPT_BYTES = 128 * 2**20
# x264's constant rate factor: 0 is lossless, 18 counts as visually lossless.
QUALITY = "10"
# AVCOL_SPC_BT709 and its companions, AVCOL_RANGE_MPEG: said in the file, or players guess from the size.
BT709, LIMITED = 1, 1
# Sound that mp4 takes as it is; other sound is encoded again.
COPIED_SOUND = ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac")
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}
FINEST_CLOCK = 2**24  # ticks a second


def open_container(path: str, mode: str = "r", **options: Any) -> Any:
    """A container of PyAV.

    PyAV's own log callback needs the GIL: a decoder thread that logs while close() waits for it, GIL in hand, never
    ends (PyAV #751). FFmpeg's own needs none; its lines are silenced, errors come as exceptions. Each time, because
    importing torchvision 0.23 switches PyAV's on again.
    """
    av.logging.restore_default_callback()
    av.logging.set_libav_level(av.logging.PANIC)
    return av.open(path, mode, **options)


class VideoReader:
    """Frames of a video by number. Opens the file at the first read.

    num_frames; fps: the average; times: of each frame, in seconds. All frames are decoded once for them, as containers
    often state wrong numbers. Seeking is not to be trusted either: jumping back decodes from the start again, and keeps
    some frames before, for a clip read backwards.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        stamps, fps = self._scan()
        self.num_frames, self.fps = len(stamps), float(fps)
        if None in stamps or any(a >= b for a, b in itertools.pairwise(stamps)):
            logger.warning("%s: the frames have no usable time stamps; taken as %.3f a second", path, self.fps)
            stamps = [i / fps for i in range(len(stamps))]
        self.times: list[Fraction] = stamps
        self._frames: Iterator[np.ndarray] | None = None
        self._next = 0
        self._kept: dict[int, np.ndarray] = {}

    def read(self, index: int) -> np.ndarray:
        """Frame `index` as (H, W, 3) uint8, upright as players show it."""
        if index not in self._kept:
            self._decode(index)
        return self._kept[index]

    def close(self) -> None:
        self._frames = None  # ends the generator, which closes the file

    def _scan(self) -> tuple[list[Fraction | None], Fraction]:
        stamps: list[Fraction | None] = []
        with self._errors("not a video"), open_container(str(self.path)) as container:
            if not container.streams.video:
                raise self._unreadable("the file holds no video")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                stamps.append(None if frame.pts is None else frame.pts * frame.time_base)
            fps = Fraction(stream.average_rate or stream.guessed_rate or 25)
        if not stamps:
            raise self._unreadable("no frame can be decoded")
        return stamps, fps

    def _decode(self, index: int) -> None:
        first = index
        if self._frames is None or index < self._next:
            if self._kept:
                one = next(iter(self._kept.values()))
                first = index - max(1, KEPT_BYTES // one.nbytes)
            self._frames, self._next = _pictures(self.path, lambda number: number >= first), 0
        self._kept = {}
        with self._errors(f"frame {self._next} of {self.num_frames} cannot be decoded"):
            while self._next <= index:
                picture = next(self._frames, None)
                if picture is None:
                    raise self._unreadable(f"frame {self._next} of {self.num_frames} cannot be decoded")
                if picture.size and self._next >= first:
                    self._kept[self._next] = picture
                self._next += 1

    def _errors(self, what: str) -> AbstractContextManager[None]:
        if not self.path.is_file():
            raise self._unreadable("no such file")
        return _ffmpeg_errors(lambda e: self._unreadable(f"{what} ({self.path.stat().st_size} bytes): {e.strerror}"))

    def _unreadable(self, what: str) -> DataError:
        return DataError(
            what,
            str(self.path),
            "a video that FFmpeg can decode",
            "play it in a player, or give its frames as a folder",
        )


def _pictures(path: Path, is_wanted: Callable[[int], bool]) -> Iterator[np.ndarray]:
    """All frames in order; those that are not wanted as empty arrays, not converted."""
    # Not a method: in a reference cycle with the reader, the file could stay open until a forked worker collects it,
    # and that worker would wait for decoder threads that a fork does not copy.
    with open_container(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for number, frame in enumerate(container.decode(stream)):
            if not is_wanted(number):
                yield np.empty(0, np.uint8)
                continue
            # Of the display matrix: quarter turns, counter-clockwise, as phones write them.
            turns = round(frame.rotation / 90) % 4
            yield np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))


class VideoWriter:
    """A video in H.264, near lossless, that appears under its name only when it is whole.

    Use as a context manager: leaving it after an error removes what was written. Frames (H, W, 3) uint8 of one size.
    times: seconds at which each frame is shown; default: `fps` frames a second. sound: a video whose sound is taken
    over. chroma: "444" keeps the colour of every pixel; "420", a quarter of it, plays everywhere, and needs even sizes:
    the last row and column are then repeated.
    """

    def __init__(
        self,
        path: str | Path,
        fps: float,
        *,
        times: Sequence[Fraction] | None = None,
        sound: Path | None = None,
        chroma: str = "420",
    ) -> None:
        self.path, self.chroma = Path(path), chroma
        self._fps = Fraction(fps).limit_denominator(100_000)
        self._times, self._source = times, sound
        self._clock = min(
            math.lcm(*((t.denominator for t in times) if times else (self._fps.numerator,))), FINEST_CLOCK
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One of tempfile ignores the umask.
        self._temporary = self.path.with_name(f".{self.path.stem}.{uuid.uuid4().hex[:8]}{self.path.suffix}")
        self._out: av.container.OutputContainer | None = None
        self._sound: _Sound | None = None
        self._count = 0

    def write(self, frame: np.ndarray) -> None:
        with _ffmpeg_errors(self._unwritable):
            if self._out is None:
                self._open(*frame.shape[:2])
            begin, end = self._time(self._count), self._time(self._count + 1)
            if self._sound:
                self._sound.copy(begin)
            if frame.shape[:2] != (self._stream.height, self._stream.width):
                below, beside = self._stream.height - frame.shape[0], self._stream.width - frame.shape[1]
                frame = cv2.copyMakeBorder(frame, 0, below, 0, beside, cv2.BORDER_REPLICATE)
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture = picture.reformat(format=self._stream.pix_fmt, dst_colorspace="ITU709", dst_color_range="MPEG")
            picture.time_base = Fraction(1, self._clock)
            picture.pts = round(begin * self._clock)
            picture.duration = round(end * self._clock) - picture.pts
            self._out.mux(self._stream.encode(picture))
            self._count += 1

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._count:
                with _ffmpeg_errors(self._unwritable):
                    self._out.mux(self._stream.encode())
                    if self._sound:
                        self._sound.copy(None)
                    self._close()
                self._check_whole()
                os.replace(self._temporary, self.path)
        finally:
            try:
                with _ffmpeg_errors(self._unwritable):
                    self._close()
            finally:
                self._temporary.unlink(missing_ok=True)

    def _time(self, number: int) -> Fraction:
        """Seconds at which frame `number` is shown; the last one is shown as long as the one before it."""
        if self._times is None:
            return number / self._fps
        if number < len(self._times):
            return self._times[number]
        return self._times[-1] + (self._times[-1] - self._times[-2] if len(self._times) > 1 else 1 / self._fps)

    def _open(self, height: int, width: int) -> None:
        if self.chroma == "420" and (height % 2 or width % 2):
            logger.info("%s: the last row or column is repeated, as %s x %s is odd", self.path, width, height)
            height, width = height + height % 2, width + width % 2
        # mp4 and mov give the start of each stream in a clock of their own, of milliseconds by default.
        is_mp4 = self.path.suffix.lower() in (".mp4", ".mov", ".m4v")
        options = {"movie_timescale": str(self._clock), "movflags": "+faststart"} if is_mp4 else {}
        self._out = open_container(str(self._temporary), "w", options=options)
        self._stream = self._out.add_stream("libx264", rate=self._fps, options={"crf": QUALITY})
        self._stream.height, self._stream.width = height, width
        self._stream.pix_fmt = f"yuv{self.chroma}p"
        self._stream.time_base = self._stream.codec_context.time_base = Fraction(1, self._clock)
        context = self._stream.codec_context
        context.color_range = LIMITED
        context.colorspace = context.color_primaries = context.color_trc = BT709
        self._sound = _Sound(self._source, self._out) if self._source else None

    def _close(self) -> None:
        if self._sound is not None:
            self._sound.close()
        if self._out is not None:
            out, self._out = self._out, None
            out.close()

    def _check_whole(self) -> None:
        # Not every error of a write is told when it happens: only reading back shows that all is there.
        with _ffmpeg_errors(self._unwritable), open_container(str(self._temporary)) as container:
            readable = sum(packet.size > 0 for packet in container.demux(container.streams.video[0]))
        if readable != self._count:
            raise self._unwritable(OSError(0, f"{readable} of {self._count} frames can be read back"))

    def _unwritable(self, e: OSError) -> DataError:
        return DataError(
            f"the video could not be written: {e.strerror}", str(self.path),
            "a whole file", "free some space, then start the same command again",
        )  # fmt: skip


class _Sound:
    """The sound of one video, on its way into another, in step with the frames."""

    def __init__(self, source: Path, out: av.container.OutputContainer) -> None:
        self._out, self._in = out, open_container(str(source))
        self._streams = {}
        for stream in self._in.streams.audio:
            name = stream.codec_context.name
            if name in COPIED_SOUND:
                self._streams[stream.index] = (out.add_stream_from_template(stream), True)
                continue
            logger.warning("%s: sound as %s does not go into %s; encoded again as AAC", source, name, out.format.name)
            encoder = out.add_stream("aac", rate=stream.codec_context.sample_rate)
            # Old formats state a number of channels and no layout, which the encoder refuses.
            channels = stream.codec_context.channels
            encoder.codec_context.layout = LAYOUTS.get(channels, stream.codec_context.layout)
            self._streams[stream.index] = (encoder, False)
        left = [s.type for s in self._in.streams if s.type not in ("video", "audio")]
        if left or len(self._in.streams.video) > 1:
            logger.warning(
                "%s: only the first picture and the sound are kept, no %s", source, ", ".join(left) or "more"
            )
        self._packets = self._in.demux(*self._in.streams.audio) if self._streams else iter(())
        self._waiting = next(self._packets, None)

    def copy(self, until: Fraction | None) -> None:
        """All sound that begins before `until` seconds; None: to the end."""
        while self._waiting is not None:
            packet = self._waiting
            if until is not None and packet.pts is not None and packet.pts * packet.time_base > until:
                return
            target, is_copied = self._streams[packet.stream.index]
            if not is_copied:
                for frame in packet.decode():  # the empty packet at the end flushes the decoder
                    self._out.mux(target.encode(frame))
            elif packet.dts is not None:
                packet.stream = target
                self._out.mux(packet)
            self._waiting = next(self._packets, None)
        if until is None:
            for target, is_copied in self._streams.values():
                if not is_copied:
                    self._out.mux(target.encode())

    def close(self) -> None:
        self._in.close()


@contextmanager
def _ffmpeg_errors(translate: Callable[[OSError], DataError]) -> Iterator[None]:
    """An error of FFmpeg or the system in the block becomes a DataError."""
    try:
        yield
    except (OSError, av.error.FFmpegError) as e:
        raise translate(e) from e

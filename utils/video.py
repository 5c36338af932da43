"""Video in and out, through FFmpeg's libraries (PyAV): time stamps and every row of the frames are
kept.

Images are (H, W, 3) uint8 RGB.
"""

import logging
import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av.logging
import cv2
import numpy as np
from av.stream import Disposition

from utils.errors import DataError
from utils.files import open_plain, temporary_beside, writing
from utils.picture import MOST_PIXELS, UPRIGHT, Orientation, upright

logger = logging.getLogger(__name__)

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")  # written and read
FILM_SUFFIXES = (
    *VIDEO_SUFFIXES, ".mts", ".m2ts", ".ts", ".mpg", ".mpeg", ".vob", ".wmv", ".asf", ".flv",
    ".f4v", ".3gp", ".3g2", ".ogv", ".mxf", ".gif", ".apng", ".y4m",
)  # fmt: skip
# FFmpeg's names of the containers that are read. Others name files of their own, or are no films.
CONTAINERS = (
    "mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "ogg", "mxf", "gif",
    "apng",
    "yuv4mpegpipe", "nut", "ivf", "obu", "h264", "hevc", "vvc", "m4v", "mjpeg", "dv", "cine", "rm",
)  # fmt: skip
# Of the frames before one that a video was wound back to.
KEPT_BYTES = 128 * 2**20
# x264's constant rate factor: 0 is lossless, 18 counts as visually lossless.
QUALITY = "10"
# AVCOL_SPC_BT709 and its companions, AVCOL_RANGE_MPEG: said in the file, or players guess from the
# size.
BT709, LIMITED = 1, 1
UNSPECIFIED = 2  # AVCOL_SPC_UNSPECIFIED
HDR = {16: "PQ", 18: "HLG"}  # AVCOL_TRC_SMPTE2084, AVCOL_TRC_ARIB_STD_B67
# Quarter turns, counter-clockwise.
TURNS = (
    UPRIGHT,
    Orientation(True, False, True),
    Orientation(False, True, True),
    Orientation(True, True, False),
)
SQUARE = Fraction(1)  # the width of a pixel over its height
TOO_LARGE = f"more than {MOST_PIXELS / 1e6:.0f} million pixels (8K frames have 33)"
LARGE = 2**24  # pixels; a 4K frame has half of them
FINEST_CLOCK = 2**24  # ticks a second
FFMPEG_ERRORS = (OSError, av.error.FFmpegError)  # of the system, or of FFmpeg


def open_container(path: str, mode: str = "r", **options: Any) -> Any:
    """A container of PyAV.

    PyAV's own log callback needs the GIL: a decoder thread that logs while close() waits for it,
    GIL in hand, never ends (PyAV #751). FFmpeg's own needs none; its lines are silenced, errors
    come as exceptions. Each time, because importing torchvision 0.23 switches PyAV's on again.

    Of what is read, FFmpeg takes films alone: a list of other files (ffconcat) or a text is none,
    whatever its name. It decodes no frame of more than MOST_PIXELS. Raises OSError,
    av.error.FFmpegError.
    """
    av.logging.restore_default_callback()
    av.logging.set_libav_level(av.logging.PANIC)
    if mode == "r":
        open_plain(path).close()
    place = f"file:{path}"  # else "12:30:05.mp4" is a protocol named 12
    if mode != "r":
        av_open: Any = av.open  # its overloads know literal modes alone
        return av_open(place, mode, **options)
    limits = {
        "format_whitelist": ",".join(CONTAINERS),
        "protocol_whitelist": "file",
        "max_pixels": str(MOST_PIXELS),
    }
    try:
        return av.open(place, mode, options=limits, metadata_errors="replace", **options)
    except av.error.ArgumentError as e:
        text = "its content is damaged, or no film of a kind that is read"
        raise OSError(e.errno, text) from e


class VideoReader:
    """Frames of a video by number. Opens the file at the first read.

    num_frames; fps: the average; times: of each frame, in seconds. All frames are decoded once for
    them, as containers often state wrong numbers. Seeking is not to be trusted either: jumping back
    decodes from the start again, and keeps some frames before, for a clip read backwards. go_on:
    called after each decoded frame.
    pixel_aspect: width over height of a pixel, upright; 1 where the film does not say it.
    Raises DataError for a file without a film, and for frames of different sizes.
    """

    def __init__(self, path: str | Path, go_on: Callable[[], object] = lambda: None) -> None:
        self.path, self._go_on = Path(path), go_on
        stamps: list[Fraction | None] = []
        with self._errors("not a video"), open_container(str(self.path)) as container:
            stream = _film_in(container)
            first = None
            is_interlaced = False
            for frame in container.decode(stream):
                if first is None:
                    first = frame
                elif _upright_size(frame) != _upright_size(first):
                    raise _other_size(path, len(stamps), frame, first)
                is_interlaced = is_interlaced or frame.interlaced_frame
                stamps.append(None if frame.pts is None else frame.pts * frame.time_base)
                go_on()
            fps = Fraction(stream.average_rate or stream.guessed_rate or 25)
            if first is None:
                raise OSError(0, "no frame can be decoded")
            self.pixel_aspect = _upright_aspect(stream, first)
            _warn_of_kind(path, stream, is_interlaced)
        self.num_frames, self.fps = len(stamps), float(fps)
        times = [stamp for stamp in stamps if stamp is not None]
        if len(times) < len(stamps) or times != sorted(set(times)):
            logger.warning(
                "%s: the frames have no usable time stamps; taken as %.3f a second", path, self.fps
            )
            times = [i / fps for i in range(len(stamps))]
        self.times = times
        self._frames: Iterator[np.ndarray] | None = None
        self._next = 0
        self._kept: dict[int, np.ndarray] = {}

    def read(self, index: int) -> np.ndarray:
        """Frame `index` as (H, W, 3) uint8, upright as players show it."""
        if index in self._kept:
            return self._kept[index]
        first = index
        if self._frames is None or index < self._next:
            if self._kept:
                first = index - max(1, KEPT_BYTES // next(iter(self._kept.values())).nbytes)
            self._frames, self._next = _decoded(self.path, first), 0
        self._kept = {}
        with self._errors(f"frame {self._next} of {self.num_frames} cannot be decoded"):
            while self._next <= index:
                frame = next(self._frames, None)
                if frame is None:
                    raise OSError(0, "the video ends there")
                self._go_on()
                if self._next >= first:
                    self._kept[self._next] = frame
                self._next += 1
        return self._kept[index]

    @contextmanager
    def _errors(self, what: str) -> Generator[None]:
        try:
            yield
        except FFMPEG_ERRORS as e:
            size = f" ({self.path.stat().st_size} bytes)" if self.path.is_file() else ""
            expected, do = (
                "a video that FFmpeg can decode",
                "play it in a player, or give its frames as a folder",
            )
            reason = e.strerror
            if isinstance(e, av.error.ArgumentError):  # also where FFmpeg refuses to decode so much
                reason = f"a frame is damaged, or has {TOO_LARGE}"
            raise DataError(f"{what}{size}: {reason}", str(self.path), expected, do) from e


def _decoded(path: Path, first: int) -> Iterator[np.ndarray]:
    """All frames in order; those before number `first` as empty arrays, not converted."""
    # Not a method: in a reference cycle with the reader, the file could stay open until a forked
    # worker collects it, and that worker would wait for decoder threads that a fork does not copy.
    with open_container(str(path)) as container:
        for number, frame in enumerate(container.decode(_film_in(container))):
            if number < first:
                yield np.empty(0, np.uint8)
                continue
            image = upright(_pixels(frame), _orientation(frame))
            yield np.ascontiguousarray(image)


def _film_in(container: Any) -> Any:
    """Return the stream that players show, which is no cover picture.

    Raises OSError if there is none.
    """
    films = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    if not films:
        raise OSError(0, "the file holds no video")
    marked = [stream for stream in films if stream.disposition & Disposition.default]
    film = (marked or films)[0]
    if film.codec_context is None:
        raise OSError(0, "FFmpeg has no decoder for this kind of film")
    pixels = film.width * film.height
    if pixels > MOST_PIXELS:
        raise OSError(0, f"its frames are {film.width} x {film.height}, {TOO_LARGE}")
    # With AUTO, each thread decodes a frame of its own.
    film.thread_type = "AUTO" if pixels < LARGE else "SLICE"
    return film


def _other_size(path: str | Path, number: int, frame: Any, first: Any) -> DataError:
    """Return the refusal of a frame of PyAV that has another size than the first one."""
    (height, width), (first_height, first_width) = _upright_size(frame), _upright_size(first)
    return DataError(
        what=f"frame {number} is {width} x {height}, those before are {first_width} x "
        f"{first_height}",
        where=str(path),
        expected="frames of one size",
        do="cut the film where its size changes, and give each part as a film of its own",
    )


# ---- As players show it ------------------------------------------------------------------------


def _pixels(frame: Any) -> np.ndarray:
    """Return a frame of PyAV as (H, W, 3) uint8 RGB.

    FFmpeg takes colours that nobody describes for BT.601, players do so for small frames alone.
    Source of the sizes: mpv, mp_csp_guess_colorspace.
    """
    is_yuv = not frame.format.is_rgb and not frame.format.has_palette
    is_large = frame.width >= 1280 or frame.height > 576
    if is_yuv and is_large and frame.colorspace == UNSPECIFIED:
        return frame.to_ndarray(format="rgb24", src_colorspace="ITU709")
    return frame.to_ndarray(format="rgb24")


def _warn_of_kind(path: str | Path, stream: Any, is_interlaced: bool) -> None:
    """Warn of films whose frames look other than in a player."""
    transfer = HDR.get(stream.codec_context.color_trc)
    if transfer:
        logger.warning(
            "%s: the film is HDR (%s): its values are read as they are, so frames look pale; "
            "convert it to SDR first",
            path,
            transfer,
        )
    if is_interlaced:
        logger.warning(
            "%s: the film is interlaced: a frame shows two moments, a row of each in turn; "
            "deinterlace it first (ffmpeg -i FILM -vf bwdif=send_frame NEW)",
            path,
        )


def _orientation(frame: Any) -> Orientation:
    """Return what the display matrix of a frame asks for, to the nearest quarter turn.

    The pixel (x, y) is shown at (a x + c y, b x + d y). Source: FFmpeg, libavutil/display.h.
    """
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV does not know each kind of data beside a frame, such as Exif. It still tells the
        # angle.
        return TURNS[round(frame.rotation / 90) % 4]
    if matrix is None:
        return UPRIGHT
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
    if abs(a) + abs(d) < abs(b) + abs(c):
        return Orientation(True, c < 0, b < 0)
    return Orientation(False, a < 0, d < 0)


def _upright_size(frame: Any) -> tuple[int, int]:
    """Return (height, width) of a frame of PyAV as it is shown."""
    if _orientation(frame).is_transposed:
        return frame.width, frame.height
    return frame.height, frame.width


def _upright_aspect(stream: Any, frame: Any) -> Fraction:
    """Return width over height of a pixel of the stream as it is shown; 1 if it is not known."""
    aspect = stream.sample_aspect_ratio or SQUARE
    if aspect <= 0:
        return SQUARE
    if _orientation(frame).is_transposed:
        return Fraction(aspect.denominator, aspect.numerator)
    return aspect


class VideoWriter(AbstractContextManager):
    """A video in H.264, near lossless, that appears under its name only when it is whole.

    Leaving it after an error removes what was written. Frames (H, W, 3) uint8 of one size.
    times: seconds at which each frame is shown; default: `fps` frames a second.
    pixel_aspect: width over height of a pixel, which players then show. chroma: "444" keeps the
    colour of every pixel; "420", a quarter of it, plays everywhere, and needs even sizes: the last
    row and column are then repeated.
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
        self.path, self.chroma, self.pixel_aspect = Path(path), chroma, pixel_aspect
        self._fps, self._times = Fraction(fps).limit_denominator(100_000), times
        denominators = [time.denominator for time in times] if times else [self._fps.numerator]
        self._clock = min(math.lcm(*denominators), FINEST_CLOCK)
        self._temporary = temporary_beside(self.path)
        self._out: av.container.OutputContainer | None = None
        self._count = 0

    def write(self, frame: np.ndarray) -> None:
        with writing(self.path, errors=FFMPEG_ERRORS):
            if self._out is None:
                height, width = frame.shape[:2]
                if self.chroma == "420" and (height % 2 or width % 2):
                    logger.info(
                        "%s: the last row or column is repeated, as %s x %s is odd",
                        self.path,
                        width,
                        height,
                    )
                    height, width = height + height % 2, width + width % 2
                # mp4 and mov give the start of each stream in a clock of their own, of milliseconds
                # by default.
                is_mp4 = self.path.suffix.lower() in (".mp4", ".mov", ".m4v")
                options = (
                    {"movie_timescale": str(self._clock), "movflags": "+faststart"}
                    if is_mp4
                    else {}
                )
                self._out = open_container(str(self._temporary), "w", options=options)
                self._stream = self._out.add_stream(
                    "libx264", rate=self._fps, options={"crf": QUALITY}
                )
                self._stream.height, self._stream.width = height, width
                self._stream.pix_fmt = f"yuv{self.chroma}p"
                context = self._stream.codec_context
                self._stream.time_base = context.time_base = Fraction(1, self._clock)
                if self.pixel_aspect != SQUARE:
                    context.sample_aspect_ratio = self.pixel_aspect
                context.color_range = LIMITED
                context.colorspace = context.color_primaries = context.color_trc = BT709
            if frame.shape[:2] != (self._stream.height, self._stream.width):
                below, beside = (
                    self._stream.height - frame.shape[0],
                    self._stream.width - frame.shape[1],
                )
                frame = cv2.copyMakeBorder(frame, 0, below, 0, beside, cv2.BORDER_REPLICATE)
            rgb: Any = frame  # uint8
            image = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            image = image.reformat(
                format=self._stream.pix_fmt, dst_colorspace="ITU709", dst_color_range="MPEG"
            )
            image.time_base = Fraction(1, self._clock)
            time = self._times[self._count] if self._times else self._count / self._fps
            image.pts = round(time * self._clock)
            self._out.mux(self._stream.encode(image))
            self._count += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with writing(self.path, errors=FFMPEG_ERRORS):
                try:
                    if kind is None and self._out:
                        self._out.mux(self._stream.encode())
                finally:
                    if self._out:
                        self._out.close()
                if kind is not None or not self._count:
                    return
                # Not every error of a write is raised when it happens: only reading back shows that
                # all is there.
                with open_container(str(self._temporary)) as container:
                    readable = sum(
                        packet.size > 0 for packet in container.demux(container.streams.video[0])
                    )
                if readable != self._count:
                    raise OSError(0, f"{readable} of {self._count} frames can be read back")
                os.replace(self._temporary, self.path)
        finally:
            with suppress(OSError):  # its name may be too long
                self._temporary.unlink()

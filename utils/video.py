"""Read and write videos with FFmpeg's libraries (PyAV).

    reader = VideoReader("clip.mp4")          # decodes the film once, for its time stamps
    reader.num_frames, reader.fps, reader.times
    image = reader.read(7)                    # (H, W, 3) uint8 RGB, upright as players show it

    with VideoWriter("out.mp4", fps=24) as writer:
        writer.write(image)                   # out.mp4 appears when the block ends without an error

Every time stamp and every row of a frame is kept: nothing is dropped, doubled or scaled. A file may
come from anybody, so `open_container` limits what FFmpeg may open and decode.

"A frame of PyAV" below is an `av.VideoFrame`; "a film" is the video stream in a file.

What must stay: the frames and the times of a film, because they decide the samples of a run
(test_every_frame_of_a_video_keeps_its_time, test_the_frames_of_a_video_are_read_in_any_order); and
the limits of `open_container`, because a film may be hostile
(test_a_small_film_of_huge_frames_is_refused_before_memory_is_taken). Free to change: RATE_FACTOR,
and how much is kept in memory.

Tests: tests/parts/utils/test_video.py, tests/stories/test_foreign_files.py
"""

import logging
import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av.logging
import cv2
import numpy as np
from av.stream import Disposition

from utils.errors import DataError
from utils.files import open_plain, temporary_beside, writing
from utils.picture import MOST_PIXELS, UPRIGHT, Orientation, upright

logger = logging.getLogger(__name__)

# Suffixes of films that can be written, and read.
WRITABLE_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
# Suffixes of films that can be read.
READABLE_SUFFIXES = (
    *WRITABLE_SUFFIXES, ".mts", ".m2ts", ".ts", ".mpg", ".mpeg", ".vob", ".wmv", ".asf", ".flv",
    ".f4v", ".3gp", ".3g2", ".ogv", ".mxf", ".gif", ".apng", ".y4m",
)  # fmt: skip
# FFmpeg's names of the containers that are read. All others are refused: some of them
# name further files, which FFmpeg would open as well, and some are no films.
CONTAINERS = (
    "mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "ogg", "mxf", "gif",
    "apng",
    "yuv4mpegpipe", "nut", "ivf", "obu", "h264", "hevc", "vvc", "m4v", "mjpeg", "dv", "cine", "rm",
)  # fmt: skip
# These containers state the start of each stream in a clock of the whole file (movie_timescale).
MP4_SUFFIXES = (".mp4", ".mov", ".m4v")

# When `VideoReader.read` goes back, it also keeps frames before the wanted frame. This is the
# largest number of bytes that they may take: about 48 frames of 720p. A larger number takes more
# memory in each loader process; with a smaller one, a clip that is read backwards is decoded from
# its start more often.
MOST_KEPT_BYTES = 128 * 2**20
# x264's constant rate factor: 0 is lossless, 18 counts as visually lossless.
RATE_FACTOR = "10"

# FFmpeg's numbers for colours. They are written into the file, because otherwise players guess the
# colours from the size of the frame.
BT709 = 1  # AVCOL_SPC_BT709, and its companions for primaries and transfer
LIMITED = 1  # AVCOL_RANGE_MPEG
UNSPECIFIED = 2  # AVCOL_SPC_UNSPECIFIED
HDR = {16: "PQ", 18: "HLG"}  # AVCOL_TRC_SMPTE2084, AVCOL_TRC_ARIB_STD_B67

# TURNS[n] turns a frame by n quarter turns counter-clockwise, as the file asks a player to do. E.g.
# TURNS[1] shows the right column of the stored frame as the top row.
TURNS = (
    UPRIGHT,
    Orientation(is_transposed=True, has_reversed_columns=False, has_reversed_rows=True),
    Orientation(is_transposed=False, has_reversed_columns=True, has_reversed_rows=True),
    Orientation(is_transposed=True, has_reversed_columns=True, has_reversed_rows=False),
)
# Aspect of a square pixel: width divided by height.
SQUARE = Fraction(1)

# Words for the message about a frame that is not decoded.
TOO_LARGE = f"more than {MOST_PIXELS / 1e6:.0f} million pixels (8K frames have 33)"
# A frame of at least this many pixels is decoded alone, because several of them would take much
# memory. Smaller frames, e.g. 4K frames with 8.3 million pixels, are decoded several at a time.
LARGE_FRAME_PIXELS = 2**24
# The finest clock of a written film, in ticks a second. Finer time stamps are rounded to it.
FINEST_CLOCK = 2**24
# The operating system raises OSError, FFmpeg its own errors.
#
# In this file OSError(0, text) is an error that this program has found itself. 0 stands for "no
# error of the system". The text becomes `strerror`, which `_as_data_error` shows to the user.
FFMPEG_ERRORS = (OSError, av.error.FFmpegError)


def open_container(path: str, mode: str = "r", **options: Any) -> Any:
    """Open a film with PyAV. Returns a container of PyAV.

    mode: "r" to read, "w" to write. options: further arguments of `av.open`.

    For reading, FFmpeg is limited. It takes only films: a list of other files (ffconcat) or a text
    is refused, whatever its name. It decodes no frame of more than MOST_PIXELS.
    Raises OSError or av.error.FFmpegError.
    """
    # PyAV's own log callback can hang: a decoder thread that logs needs the GIL, while close()
    # holds the GIL and waits for this thread (PyAV #751). FFmpeg's own callback needs no GIL, so it
    # is restored. Its lines are silenced, because errors come as exceptions. Both calls are made
    # each time, because importing torchvision 0.23 switches PyAV's callback on again.
    av.logging.restore_default_callback()
    av.logging.set_libav_level(av.logging.PANIC)

    # Without "file:", FFmpeg would take "12:30:05.mp4" for a protocol named 12.
    url = f"file:{path}"
    if mode != "r":
        av_open: Any = av.open  # the type checker knows only literal modes
        return av_open(url, mode, **options)

    open_plain(path).close()  # raises OSError for a device or a pipe
    limits = {
        "format_whitelist": ",".join(CONTAINERS),
        "protocol_whitelist": "file",
        "max_pixels": str(MOST_PIXELS),
    }
    try:
        return av.open(url, mode, options=limits, metadata_errors="replace", **options)
    except av.error.ArgumentError as e:
        # FFmpeg's text is "Invalid argument", which tells a user nothing. FFmpeg raises this error
        # for a damaged file, and for a container that is not in CONTAINERS.
        text = "its content is damaged, or no film of a kind that is read"
        raise OSError(e.errno, text) from e


# ---- Reading -----------------------------------------------------------------------------------


class VideoReader:
    """The frames of a video, by number.

    num_frames: number of frames that can be decoded.
    fps: mean number of frames a second.
    times: seconds of each frame, rising.
    pixel_aspect: width over height of a pixel of the upright frame. 1 if the film does not say it.

    The film is decoded once for these values, because containers often state wrong numbers.
    Seeking cannot be trusted either. So reading an earlier frame decodes from the start again, and
    then keeps some frames before it, for a clip that is read backwards.
    """

    def __init__(self, path: str | Path, go_on: Callable[[], object] = lambda: None) -> None:
        """Decode the film once. Reading opens the file again.

        go_on: called after each decoded frame, for instance to tell a watchdog that work goes on.
        Raises DataError for a file without a film, and for frames of different sizes.
        """
        self.path = Path(path)
        self._go_on = go_on
        with self._as_data_error("not a video"), open_container(str(self.path)) as container:
            facts = _read_through(container, path, go_on)
        self.num_frames = len(facts.stamps)
        self.fps = float(facts.fps)
        self.times = _usable_times(path, facts.stamps, facts.fps)
        self.pixel_aspect = facts.pixel_aspect

        # The decoded frames from number `_next_index` on. None: the film was not opened yet.
        self._frames: Iterator[np.ndarray] | None = None
        self._next_index = 0
        # Decoded frames by number. As long as the caller reads forwards, this is the last frame
        # alone. After a step back it also has the frames before the last one, because the caller
        # will ask for them next. E.g. after read(0), read(1) and read(5) it is {5: ...}, and
        # `_next_index` is 6. Then read(4) decodes from the start again. With memory for 3 more
        # frames it keeps the frames 1, 2, 3 and 4, so that read(3), read(2) and read(1) decode
        # nothing.
        self._kept: dict[int, np.ndarray] = {}

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8, upright as players show it.

        Raises DataError if the frame cannot be decoded.
        """
        if index in self._kept:
            return self._kept[index]

        # Index of the first frame that is kept. Frames before it are decoded but not converted.
        first_kept = index
        is_behind = index < self._next_index  # the decoder has passed this frame already
        if self._frames is None or is_behind:
            first_kept = index - self._frames_to_keep_before()
            self._frames = _decoded_frames(self.path, first_kept)  # from the start of the film
            self._next_index = 0

        # Decode up to frame `index`.
        self._kept = {}
        while self._next_index <= index:
            frame = self._next_frame(self._frames)
            if self._next_index >= first_kept:
                self._kept[self._next_index] = frame
            self._next_index += 1
        return self._kept[index]

    def _frames_to_keep_before(self) -> int:
        """Return how many frames before the wanted frame are kept when decoding begins again.

        If frames were read before, the caller reads backwards, and will ask for the frames before
        the wanted frame next. E.g. 48 frames of 720p fit into MOST_KEPT_BYTES.
        """
        if not self._kept:
            return 0  # the first call of `read`
        frame_bytes = max(frame.nbytes for frame in self._kept.values())
        return max(1, MOST_KEPT_BYTES // frame_bytes)

    def _next_frame(self, frames: Iterator[np.ndarray]) -> np.ndarray:
        """Return the next frame of the decoder. Raises DataError if there is none."""
        with self._as_data_error(
            f"frame {self._next_index} of {self.num_frames} cannot be decoded"
        ):
            frame = next(frames, None)  # None at the end of the film
            if frame is None:
                raise OSError(0, "the video ends there")
        self._go_on()
        return frame

    @contextmanager
    def _as_data_error(self, what: str) -> Generator[None]:
        """Turn an error of FFmpeg or of the system in the block into a DataError about the film.

        what: begin of the error's text, e.g. "not a video".
        """
        try:
            yield
        except FFMPEG_ERRORS as e:
            size = ""
            if self.path.is_file():
                size = f" ({self.path.stat().st_size} bytes)"
            reason = e.strerror
            # FFmpeg raises this error also for a frame of more than MOST_PIXELS.
            if isinstance(e, av.error.ArgumentError):
                reason = f"a frame is damaged, or has {TOO_LARGE}"
            raise DataError(
                what=f"{what}{size}: {reason}",
                where=str(self.path),
                expected="a video that FFmpeg can decode",
                do="play it in a player, or give its frames as a folder",
            ) from e


class _FilmFacts(NamedTuple):
    """What `VideoReader` must know of a film before it reads frames."""

    stamps: list[Fraction | None]  # seconds of each frame; None if the container has no time stamp
    fps: Fraction  # mean number of frames a second
    pixel_aspect: Fraction  # width over height of a pixel of the upright frame


def _read_through(container: Any, path: str | Path, go_on: Callable[[], object]) -> _FilmFacts:
    """Decode all frames of a film once. Returns its time stamps, rate and pixel aspect.

    Logs a warning for HDR and for interlaced films, which look different in a player. Raises
    OSError or FFmpegError if no frame can be decoded, and DataError for frames of different sizes.

    go_on: called after each decoded frame
    """
    stream = _film_in(container)
    stamps: list[Fraction | None] = []
    first = None  # the first frame. All others must have its size
    is_interlaced = False
    for frame in container.decode(stream):
        if first is None:
            first = frame
        elif _upright_size(frame) != _upright_size(first):
            raise _other_size_error(path, len(stamps), frame, first)
        is_interlaced = is_interlaced or frame.interlaced_frame
        # `pts` counts ticks, and time_base is the seconds of a tick.
        has_stamp = frame.pts is not None
        stamps.append(frame.pts * frame.time_base if has_stamp else None)
        go_on()
    if first is None:
        raise OSError(0, "no frame can be decoded")
    _warn_of_hdr_or_interlaced(path, stream, is_interlaced)
    # If neither the container nor the codec gives a rate, take 25 frames a second.
    fps = Fraction(stream.average_rate or stream.guessed_rate or 25)
    return _FilmFacts(stamps, fps, _upright_aspect(stream, first))


def _decoded_frames(path: Path, first_kept: int) -> Iterator[np.ndarray]:
    """Yield all frames of a film in order. Frames before number `first_kept` are empty arrays.

    The caller needs none of these frames, so they are not converted to RGB. They are yielded all
    the same, because the caller counts frames by its calls of `next`.

    This is a function and not a method of the reader, because a method could hang a worker:

    * The reader holds this generator. In a method, the generator would hold the reader too, and
      Python frees such a cycle late, perhaps in a worker that was forked meanwhile.
    * Freeing the generator closes the film, which waits for the threads of the decoder.
    * A fork does not copy threads. So the worker would wait for ever.
    """
    with open_container(str(path)) as container:
        for number, frame in enumerate(container.decode(_film_in(container))):
            if number < first_kept:
                yield np.empty(0, np.uint8)
                continue
            image = upright(_pixels(frame), _orientation(frame))
            yield np.ascontiguousarray(image)


def _film_in(container: Any) -> Any:
    """Return the stream of PyAV that players show. A cover picture is no film.

    Raises OSError if there is no film, or if its frames are too large.
    """
    films = []
    for stream in container.streams.video:
        is_cover = stream.disposition & Disposition.attached_pic
        if not is_cover:
            films.append(stream)
    if not films:
        raise OSError(0, "the file holds no video")

    # If a file has several films, players show the film that is marked as the default.
    default_films = [stream for stream in films if stream.disposition & Disposition.default]
    film = default_films[0] if default_films else films[0]
    if film.codec_context is None:
        raise OSError(0, "FFmpeg has no decoder for this kind of film")
    pixels = film.width * film.height
    if pixels > MOST_PIXELS:
        raise OSError(0, f"its frames are {film.width} x {film.height}, {TOO_LARGE}")
    # With AUTO, each thread decodes a frame of its own, which takes memory for each. With SLICE,
    # the threads share one frame.
    film.thread_type = "AUTO" if pixels < LARGE_FRAME_PIXELS else "SLICE"
    return film


def _usable_times(path: str | Path, stamps: list[Fraction | None], fps: Fraction) -> list[Fraction]:
    """Return the time stamps, or times i / fps if a stamp is missing or the stamps do not rise."""
    times = [stamp for stamp in stamps if stamp is not None]
    has_all = len(times) == len(stamps)
    # A list that equals its sorted set has no number twice, and each is larger than the one before.
    if has_all and times == sorted(set(times)):
        return times
    logger.warning(
        "%s: the frames have no usable time stamps; taken as %.3f a second", path, float(fps)
    )
    return [i / fps for i in range(len(stamps))]


def _other_size_error(path: str | Path, number: int, frame: Any, first: Any) -> DataError:
    """Return the refusal of a frame of PyAV that has another size than the first one."""
    height, width = _upright_size(frame)
    first_height, first_width = _upright_size(first)
    return DataError(
        what=f"frame {number} is {width} x {height}, the frames before are {first_width} x "
        f"{first_height}",
        where=str(path),
        expected="frames of one size",
        do="cut the film where its size changes, and give each part as a film of its own",
    )


# ---- As players show it ------------------------------------------------------------------------
# Tests: test_a_turned_or_mirrored_film_is_read_as_players_show_it (`_orientation`),
# test_a_film_that_does_not_describe_its_colours_gets_them_by_its_size (`_pixels`).


def _pixels(frame: Any) -> np.ndarray:
    """Return a frame of PyAV as (H, W, 3) uint8 RGB.

    If a film does not say how its colours are coded, FFmpeg takes them for BT.601. Players do so
    only for small frames, and take large frames for BT.709. We do as players do.
    Source of the sizes: mpv, mp_csp_guess_colorspace.
    """
    is_yuv = not frame.format.is_rgb and not frame.format.has_palette
    is_large = frame.width >= 1280 or frame.height > 576
    if is_yuv and is_large and frame.colorspace == UNSPECIFIED:
        return frame.to_ndarray(format="rgb24", src_colorspace="ITU709")
    return frame.to_ndarray(format="rgb24")


def _warn_of_hdr_or_interlaced(path: str | Path, stream: Any, is_interlaced: bool) -> None:
    """Warn of films that look different here than in a player."""
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
    """Return how a frame of PyAV becomes upright, to the nearest quarter turn.

    The film has a display matrix: the pixel (x, y) is shown at (a x + c y, b x + d y).
    Source: FFmpeg, libavutil/display.h.
    """
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV fails if data that it does not know, such as Exif, lies beside the frame. The angle
        # can still be read. It counts counter-clockwise, as TURNS does, and may be negative: -90
        # degrees are three quarter turns.
        quarter_turns = round(frame.rotation / 90)
        return TURNS[quarter_turns % 4]
    if matrix is None:
        return UPRIGHT
    # The matrix is stored as nine integers: a b u, c d v, x y w. Only a, b, c and d are needed.
    numbers = np.frombuffer(bytes(matrix), np.int32).tolist()
    a, b, _, c, d = numbers[:5]
    # x and y are exchanged if b and c are larger than a and d. A negative factor reverses an axis:
    # b and d belong to the rows that are shown, a and c to the columns. E.g., with 1 for 65536:
    #
    #     a  b  c  d
    #     1  0  0  1    upright
    #     0  1 -1  0    a quarter turn: exchanged, with reversed columns
    #    -1  0  0 -1    upside down: both axes are reversed
    is_transposed = abs(a) + abs(d) < abs(b) + abs(c)
    if is_transposed:
        return Orientation(is_transposed=True, has_reversed_columns=c < 0, has_reversed_rows=b < 0)
    return Orientation(is_transposed=False, has_reversed_columns=a < 0, has_reversed_rows=d < 0)


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


# ---- Writing -----------------------------------------------------------------------------------


class VideoWriter(AbstractContextManager):
    """A video in H.264, near lossless. Its file appears only when it is whole.

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

        times: seconds at which each frame is shown. None: `fps` frames a second.
        chroma: "444" keeps the colour of every pixel. "420" keeps a quarter of the colours, plays
        everywhere, and needs even sizes: the last row or column of an odd size is repeated.
        pixel_aspect: width over height of a pixel, which players then show.
        """
        self.path = Path(path)
        self.chroma = chroma
        self.pixel_aspect = pixel_aspect
        # The float 29.97002997 stands for 30000 / 1001, which needs a denominator of 1001. With a
        # limit of 100,000 each rate with up to five decimals is exact. Without a limit the
        # denominator would be a power of two, e.g. 2^48, which is no clock for a film.
        self._fps = Fraction(fps).limit_denominator(100_000)
        self._times = times
        # A film has a clock, a number of ticks a second. Each time stamp is a whole number of
        # ticks. E.g. times in 1/24 s and 1/25 s need 600 ticks a second, the least common multiple.
        # At 30000 / 1001 frames a second a frame lasts 1001 / 30000 s, so 30000 ticks are needed.
        # If more than FINEST_CLOCK ticks are needed, times are rounded to this clock in `write`.
        # A coarser clock moves frames (test_every_frame_of_a_video_keeps_its_time).
        instants = times or [1 / self._fps]
        denominators = [instant.denominator for instant in instants]
        self._ticks_a_second = min(math.lcm(*denominators), FINEST_CLOCK)
        self._temporary = temporary_beside(self.path)
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
            height = self._stream.height
            width = self._stream.width
            if frame.shape[:2] != (height, width):
                # The video has even sides, and a side of the frame is odd: repeat the last row or
                # column.
                below = height - frame.shape[0]
                beside = width - frame.shape[1]
                frame = cv2.copyMakeBorder(frame, 0, below, 0, beside, cv2.BORDER_REPLICATE)

            rgb: Any = frame  # Any, because the types of PyAV do not know uint8 arrays
            image = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            image = image.reformat(
                format=self._stream.pix_fmt, dst_colorspace="ITU709", dst_color_range="MPEG"
            )
            image.time_base = Fraction(1, self._ticks_a_second)
            if self._times:
                seconds = self._times[self._frame_count]
            else:
                seconds = self._frame_count / self._fps
            image.pts = round(seconds * self._ticks_a_second)  # the time stamp
            self._out.mux(self._stream.encode(image))
            self._frame_count += 1

    def _open(self, frame: np.ndarray) -> None:
        """Open the temporary file and add a film for frames as large as `frame`."""
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
            # The clock of the file, in which it states the start of each stream, counts
            # milliseconds by default. faststart lets players begin before they have the whole file.
            options = {"movie_timescale": str(self._ticks_a_second), "movflags": "+faststart"}
        self._out = open_container(str(self._temporary), "w", options=options)

        quality = {"crf": RATE_FACTOR}
        self._stream = self._out.add_stream("libx264", rate=self._fps, options=quality)
        self._stream.height = height
        self._stream.width = width
        self._stream.pix_fmt = f"yuv{self.chroma}p"
        tick = Fraction(1, self._ticks_a_second)  # seconds
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
        """Finish the file and give it its name. After an error of type `kind`, remove it."""
        try:
            with writing(self.path, errors=FFMPEG_ERRORS):
                self._close(is_complete=kind is None)
                # A video without a frame is not written.
                if kind is None and self._frame_count:
                    self._refuse_unreadable()
                    os.replace(self._temporary, self.path)
        finally:
            # There may be no temporary file: it has got its name, or it was never made (no frame,
            # or a name that is too long).
            with suppress(OSError):
                self._temporary.unlink()

    def _close(self, is_complete: bool) -> None:
        """Close the temporary file. is_complete: whether to write what the encoder still holds."""
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

"""Read the frames of a film by number, each with its time.

    reader = VideoReader("clip.mp4")          # decodes the film once, for its time stamps
    reader.num_frames, reader.fps, reader.times
    image = reader.read(7)                    # (H, W, 3) uint8 RGB, upright as players show it

Every time stamp and every row of a frame is kept: nothing is dropped, doubled or scaled.

Below, a "frame of PyAV" is an `av.VideoFrame`, and the "film" is the video stream in a file. PyAV
is the package `av`, which calls the libraries of FFmpeg.

What must stay: the frames and the times of a film, because they decide the samples of a run
(test_every_frame_of_a_video_keeps_its_time, test_the_frames_of_a_video_are_read_in_any_order). Free
to change: how much is kept in memory.

Tests: tests/parts/utils/test_video.py, tests/parts/data/test_files.py,
tests/stories/test_foreign_files.py
"""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.stream import Disposition

from utils.errors import DataError
from utils.picture.header import MOST_PIXELS
from utils.picture.orientation import upright
from utils.video.container import FFMPEG_ERRORS, TOO_LARGE, open_container
from utils.video.upright import orientation, pixels, upright_aspect, upright_size

logger = logging.getLogger(__name__)

# Memory for the frames before the wanted frame, about 48 frames of 720p. `VideoReader.read` keeps
# these frames after a step back. With a larger number, each loader process takes more memory. With
# a smaller number, a clip that is read backwards is decoded from its start more often.
MOST_KEPT_BYTES = 128 * 2**20


class VideoReader:
    """The frames of a video, by number.

    num_frames: number of frames that can be decoded.
    fps: mean number of frames per second.
    times: seconds of each frame, rising.
    pixel_aspect: width over height of a pixel of the upright frame. 1 if the film does not say it.

    These values come from decoding the whole film once, because containers often state wrong
    numbers.

    Jumping to a frame (seek) is not reliable, either. So if an earlier frame is read, the film is
    decoded from its start again. Then some frames before the wanted frame are kept, because a clip
    may be read backwards.
    """

    def __init__(self, path: str | Path, go_on: Callable[[], object] = lambda: None) -> None:
        """Decode the film once. `read` opens the file again.

        go_on: function that is called after each decoded frame, e.g. to tell a watchdog that the
            process still works. The default does nothing.

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

        # The decoder yields the frames from number `_next_index` on. None before the first `read`.
        self._frames: Iterator[np.ndarray] | None = None
        self._next_index = 0
        # Number of a frame -> the decoded frame. As long as the caller reads forwards, only the
        # frame that was read last is kept. After a step back, the frames before the wanted frame
        # are kept too, because the caller will ask for them next. E.g. with memory for 3 more
        # frames:
        #
        #     call       decodes       `_kept` then   `_next_index` then
        #     read(5)    up to 5       5              6
        #     read(4)    0 ... 4       1, 2, 3, 4     5
        #     read(3)    nothing       1, 2, 3, 4     5
        self._kept: dict[int, np.ndarray] = {}

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8, upright as players show it.

        Raises DataError if the frame cannot be decoded.
        """
        if index in self._kept:
            return self._kept[index]

        first_kept = index  # the first frame that is kept
        is_behind = index < self._next_index  # the decoder has passed this frame already
        if self._frames is None or is_behind:
            # Begin again at the start of the film.
            first_kept = index - self._frames_to_keep_before()
            self._frames = _decoded_frames(self.path, first_kept)
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
        """Return how many frames before the wanted frame are kept when decoding begins.

        At the first `read`, the result is 0. After a step back, decoding begins again at the start
        of the film. Then the caller probably reads the clip backwards, and asks for the frames
        before the wanted frame next. So as many frames are kept as fit into MOST_KEPT_BYTES, e.g.
        48 frames of 720p, but at least 1.
        """
        if not self._kept:  # nothing was read yet, or the last `read` failed
            return 0
        # All kept frames have the same size, so max() takes the size of any frame.
        frame_bytes = max(frame.nbytes for frame in self._kept.values())
        return max(1, MOST_KEPT_BYTES // frame_bytes)

    def _next_frame(self, frames: Iterator[np.ndarray]) -> np.ndarray:
        """Return the next frame of the decoder. Raises DataError if there is none."""
        with self._as_data_error(
            f"frame {self._next_index} of {self.num_frames} cannot be decoded"
        ):
            frame = next(frames, None)  # None at the end of the film
            if frame is None:
                # Raise an OSError, because `_as_data_error` turns it into a DataError with this
                # text.
                raise OSError(0, "the video ends there")
        self._go_on()  # e.g. tells a watchdog that one more frame is decoded
        return frame

    @contextmanager
    def _as_data_error(self, what: str) -> Generator[None]:
        """Turn an error of FFmpeg or of the system in the block into a DataError about the film.

        what: beginning of the text of the error, e.g. "not a video".
        """
        try:
            yield
        except FFMPEG_ERRORS as e:
            size = ""
            if self.path.is_file():
                size = f" ({self.path.stat().st_size} bytes)"
            reason = e.strerror  # the cause in words, e.g. "the video ends there"
            # FFmpeg raises ArgumentError for a damaged frame, and for a frame of more than
            # MOST_PIXELS. TOO_LARGE is "more than 67 million pixels ...".
            if isinstance(e, av.error.ArgumentError):
                reason = f"a frame is damaged, or has {TOO_LARGE}"
            raise DataError(
                what=f"{what}{size}: {reason}",
                where=str(self.path),
                expected="a video that FFmpeg can decode",
                do="play it in a player, or give its frames as a folder",
            ) from e


class _FilmFacts(NamedTuple):
    """What `VideoReader` finds out about a film by decoding it once."""

    stamps: list[Fraction | None]  # seconds of each frame. None if the container has no time stamp
    fps: Fraction  # mean number of frames per second
    pixel_aspect: Fraction  # width over height of a pixel of the upright frame


def _read_through(container: Any, path: str | Path, go_on: Callable[[], object]) -> _FilmFacts:
    """Decode all frames of a film once. Returns its time stamps, rate and pixel aspect.

    Logs a warning for HDR and for interlaced films, which look different in a player. Raises
    OSError or FFmpegError if no frame can be decoded, and DataError for frames of different sizes.

    container: the opened file, an object of PyAV.
    path: path of the file, for messages.
    go_on: function that is called after each decoded frame.
    """
    stream = _film_in(container)
    stamps: list[Fraction | None] = []
    first = None  # the first frame. All other frames must have its size
    is_interlaced = False
    for frame in container.decode(stream):
        if first is None:
            first = frame
        elif upright_size(frame) != upright_size(first):
            raise _other_size_error(path, len(stamps), frame, first)
        is_interlaced = is_interlaced or frame.interlaced_frame
        # `pts` is the time stamp in ticks, and `time_base` is the length of a tick in seconds.
        has_stamp = frame.pts is not None
        stamps.append(frame.pts * frame.time_base if has_stamp else None)
        go_on()
    if first is None:
        raise OSError(0, "no frame can be decoded")
    _warn_of_hdr_or_interlaced(path, stream, is_interlaced)
    # A rate is None or 0 if it is not known. If FFmpeg cannot guess it either, take 25 frames per
    # second (chosen by hand).
    rate = stream.average_rate or stream.guessed_rate
    fps = Fraction(rate or 25)
    return _FilmFacts(stamps, fps, upright_aspect(stream, first))


def _decoded_frames(path: Path, first_kept: int) -> Iterator[np.ndarray]:
    """Yield all frames of a film in order, (H, W, 3) uint8 each.

    first_kept: number of the first frame that the caller needs. Earlier frames are not converted to
        RGB. Each is replaced by an empty array, because the caller counts the frames that it gets.

    This must be a function and not a method of `VideoReader`, because with a method a loader
    process could wait forever:

    * The reader keeps this generator. The generator of a method would keep the reader (`self`) as
      well. Then the reader and the generator keep each other.
    * Python frees such a cycle late, perhaps in a loader process that was forked meanwhile.
    * When the generator is freed, the film is closed. Closing waits for the threads of the decoder.
    * A fork does not copy threads, so the loader process waits for threads that do not exist there.
    """
    with open_container(str(path)) as container:
        for number, frame in enumerate(container.decode(_film_in(container))):
            if number < first_kept:
                yield np.empty(0, np.uint8)
                continue
            image = upright(pixels(frame), orientation(frame))
            yield np.ascontiguousarray(image)


# Frames of this number of pixels (16.8 million) or more are decoded one at a time, because several
# of them would take much memory. Several smaller frames are decoded at a time, e.g. 4K frames with
# 8.3 million pixels. The limit was chosen by hand, between 4K and 8K (33 million pixels).
LARGE_FRAME_PIXELS = 2**24


def _film_in(container: Any) -> Any:
    """Return the film that players show, a stream of PyAV. A cover picture is not a film.

    Raises OSError if there is no film, or if its frames are too large.

    container: the opened file, an object of PyAV.
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
    pixel_count = film.width * film.height
    if pixel_count > MOST_PIXELS:
        raise OSError(0, f"its frames are {film.width} x {film.height}, {TOO_LARGE}")
    # With AUTO, each thread decodes a frame of its own, and each of these frames takes memory. With
    # SLICE, the threads share one frame.
    film.thread_type = "AUTO" if pixel_count < LARGE_FRAME_PIXELS else "SLICE"
    return film


def _usable_times(path: str | Path, stamps: list[Fraction | None], fps: Fraction) -> list[Fraction]:
    """Return the time of each frame in seconds: the time stamps, or else i / fps for frame i.

    If a time stamp is missing, or if the time stamps do not rise (e.g. 0, 0.04, 0.04), no time
    stamp is used. Then all times are i / fps, and a warning is logged.

    path: the film, for the warning.
    stamps: time stamp of each frame in seconds, None if it is missing.
    fps: number of frames per second.
    """
    times = [stamp for stamp in stamps if stamp is not None]
    has_all = len(times) == len(stamps)
    is_rising = times == sorted(set(times))  # the set also drops repeated times
    if has_all and is_rising:
        return times
    logger.warning(
        "%s: the frames have no usable time stamps; taken as %.3f a second", path, float(fps)
    )
    return [i / fps for i in range(len(stamps))]


def _other_size_error(path: str | Path, number: int, frame: Any, first: Any) -> DataError:
    """Return the error for a frame of PyAV that has another size than the first frame.

    path: the file of the film.
    number: number of the frame, from 0.
    frame: this frame.
    first: the first frame of the film.
    """
    height, width = upright_size(frame)
    first_height, first_width = upright_size(first)
    return DataError(
        what=f"frame {number} is {width} x {height}, the frames before are {first_width} x "
        f"{first_height}",
        where=str(path),
        expected="frames of one size",
        do="cut the film where its size changes, and give each part as a film of its own",
    )


# FFmpeg's numbers of the two HDR codings of brightness -> their names. In FFmpeg they are called
# AVCOL_TRC_SMPTE2084 and AVCOL_TRC_ARIB_STD_B67.
HDR = {16: "PQ", 18: "HLG"}


def _warn_of_hdr_or_interlaced(path: str | Path, stream: Any, is_interlaced: bool) -> None:
    """Log a warning for a film that looks different here than in a player.

    path: the file, for the message.
    stream: the film, an object of PyAV.
    is_interlaced: whether a frame has two fields: its even rows and its odd rows show two moments.
    """
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

"""Open a film with FFmpeg's libraries (PyAV), within limits.

A file may come from anybody, so `open_container` limits what FFmpeg may open and decode. FFmpeg
opens only films, and no other file that a film names. It decodes no frame that would take much
memory.

What must stay: these limits
(test_a_small_film_of_huge_frames_is_refused_before_memory_is_taken). Free to change: a suffix or a
container may be added, if FFmpeg reads it and such a file cannot name other files.

Tests: tests/parts/utils/test_video.py, tests/stories/test_foreign_files.py
"""

from typing import Any

import av.logging

from utils.files import open_plain
from utils.picture.header import MOST_PIXELS

# Suffixes of films that can be read and written.
WRITABLE_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
# Suffixes of films that can be read.
READABLE_SUFFIXES = (
    *WRITABLE_SUFFIXES, ".mts", ".m2ts", ".ts", ".mpg", ".mpeg", ".vob", ".wmv", ".asf", ".flv",
    ".f4v", ".3gp", ".3g2", ".ogv", ".mxf", ".gif", ".apng", ".y4m",
)  # fmt: skip
# FFmpeg's names of the containers that are read. All other containers are refused. Some of them
# name other files, and FFmpeg would open these files as well. Some are not films.
CONTAINERS = (
    "mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "ogg", "mxf", "gif",
    "apng", "yuv4mpegpipe", "nut", "ivf", "obu", "h264", "hevc", "vvc", "m4v", "mjpeg", "dv",
    "cine", "rm",
)  # fmt: skip
# Words for the message about a frame that is not decoded.
TOO_LARGE = f"more than {MOST_PIXELS / 1e6:.0f} million pixels (8K frames have 33)"
# The errors of reading or writing a film: OSError of the operating system, and errors of FFmpeg.
# Messages quote their attribute `strerror`. utils/video also raises OSError(0, text) for a fault
# that it has found itself, e.g. a file without a film. Then `strerror` is the text. No error of the
# system has the number 0.
FFMPEG_ERRORS = (OSError, av.error.FFmpegError)


def open_container(path: str, mode: str = "r", **options: Any) -> Any:
    """Open a film with PyAV. Returns a container of PyAV.

    A file to read must be a film. Whatever its name is, a text or a list of other files (ffconcat)
    is refused. No frame of more than MOST_PIXELS is decoded.

    mode: "r" to read, "w" to write.
    options: additional arguments of `av.open`.

    Raises OSError or av.error.FFmpegError.
    """
    # PyAV's function for log lines can hang (PyAV #751). A decoder thread that logs a line waits
    # for the GIL, the lock of Python. Meanwhile close() holds the GIL and waits for this thread. So
    # restore FFmpeg's own function, because it needs no GIL. Silence its lines, because errors come
    # as exceptions. Do both steps each time, because importing torchvision 0.23 switches PyAV's
    # function on again.
    av.logging.restore_default_callback()
    av.logging.set_libav_level(av.logging.PANIC)

    # Without "file:", FFmpeg would take the "12" of a file "12:30:05.mp4" for a protocol, such as
    # "http".
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
        # metadata_errors: a film is read even if its title is damaged.
        return av.open(url, mode, options=limits, metadata_errors="replace", **options)
    except av.error.ArgumentError as e:
        # FFmpeg's text "Invalid argument" tells a user nothing. FFmpeg raises this error for a
        # damaged file, and for a container that is not in CONTAINERS.
        text = "its content is damaged, or no film of a kind that is read"
        raise OSError(e.errno, text) from e

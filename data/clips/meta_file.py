"""Read a meta file: the list of the clips of a data set, as KAIR, BasicSR and S-VRT write it.

    000 100 (720, 1280, 3) 0        clip, number of frames, shape, number of the first frame

The option meta_info_file names a meta file. `Source.meta_entries` (data/clips/source.py) calls
`read_meta_file` to read it.

What must stay: what a line means (test_a_meta_file_fits_however_numbers_are_written). A line
without this form is refused (test_lines_of_a_meta_file_that_say_nothing_certain_are_refused). Free
to change: the texts of errors, together with the tests that compare them.

Tests: tests/parts/data/test_manifest.py
"""

import re
import reprlib
from typing import Any, NamedTuple

from data.clip import checked_name
from utils.errors import DataError, address_of
from utils.files import open_plain
from utils.user_path import advice_on

# Meta files that come with KAIR: {path in KAIR's option files: number of clips}. Each file lists
# all clips of a training set. So if such a file is missing, all folders are used in its place, and
# `Source.notes` warns with the number of clips.
KAIR_LISTS = {
    "data/meta_info/meta_info_REDS_GT.txt": 270,
    "data/meta_info/meta_info_DVD_train_GT.txt": 61,
    "data/meta_info/meta_info_GoPro_train_GT.txt": 22,
    "data/meta_info/meta_info_DAVIS_train_GT.txt": 90,
}
# A line of a meta file: clip, number of frames, shape, number of the first frame. The shape is not
# used, because the headers of the frames give it. A line has one of three forms:
#     000 100 (720, 1280, 3) 0   KAIR and BasicSR, with or without blanks in the shape
#     000 100 (720,1280,3)       the first frame may be left out after a shape in brackets
#     000 100 0 0                S-VRT has a number in place of the shape
# Other lines are refused (test_lines_of_a_meta_file_that_say_nothing_certain_are_refused). E.g. in
# "000 100 0", the last number could be the shape of S-VRT or the first frame.
_LINE_OF_META = re.compile(
    r"(?P<clip>\S+)\s+"
    r"(?P<frames>\d{1,7})\s+"  # MOST_FRAMES has 7 digits
    # A shape in brackets, or a number with a blank after it, (?=\s). The number of the first frame
    # comes after the blank. "000 100 0" has no such blank, and is refused.
    r"(?:\(.*\)|\d+(?=\s))"
    r"(?:\s+(?P<first>\d{1,18}))?",  # 18 digits fit into a number of 64 bits
    re.ASCII,
)
# The form of a line in words, for the error message.
_FORM_OF_LINE = (
    "<clip> <frames> <shape or 0> <first frame>; after a shape the first frame may be left out"
)
# Largest number of frames of a clip. A meta file with a larger number must be wrong: a million
# frames are 9 hours at 30 frames per second.
MOST_FRAMES = 1_000_000


def read_meta_file(path: str, needs_list: bool) -> dict[str, list[Any]]:
    """Return {clip: [number of frames, number of the first frame]}, e.g. {"000": [100, "0"]}.

    The number of the first frame is a text, as it is written in the file. The values are lists,
    because the index of a clip cache stores them as JSON (`Source.meta_entries`).

    needs_list: whether the data set cannot be read without the list, e.g. Vimeo-90K. False: if the
    file is missing, the error also advises to use all folders.
    Raises DataError, which names the line.
    """
    clips: dict[str, list[Any]] = {}
    for number, line in enumerate(_lines_of(path, needs_list), 1):
        if not line.strip():
            continue
        values = _values_of_line(line, path, number)
        if values.clip in clips:
            raise DataError(
                what=f"line {number} lists clip {values.clip} again",
                where=path,
                expected="one line per clip",
                do="join the lines",
            )
        clips[values.clip] = [values.frames, values.first]
    if not clips:
        raise DataError(
            what="the meta file lists no clip",
            where=path,
            expected="one line per clip",
            do="correct meta_info_file",
        )
    return clips


def _lines_of(path: str, needs_list: bool) -> list[str]:
    """Return the lines of the meta file. Raises DataError.

    needs_list: as in `read_meta_file`.
    """
    try:
        with open_plain(path) as file:  # refuses pipes and devices
            # "utf-8-sig" removes the byte order mark, which some editors on Windows put before the
            # first line.
            return file.read().decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        if isinstance(e, OSError):
            why = e.strerror
            do = "correct meta_info_file"
        else:
            why = "it is not UTF-8 text"
            do = "save it as UTF-8"
        if not needs_list:
            do += ", or set meta_info_file to null to use all folders"
        # E.g. the advice "correct meta_info_file; set the variable $DATA, which has no value here".
        # `address_of` adds "; download: ..." for a released file. `advice_on` adds what is wrong
        # with the path. Each function may add nothing, "".
        raise DataError(
            what=f"cannot read the meta file: {why}",
            where=path,
            expected="a text file with one line per clip",
            do=do + address_of(path) + advice_on(path),
        ) from e


class _LineOfMeta(NamedTuple):
    """The content of a line of a meta file: "000 100 (720,1280,3) 0" -> ("000", 100, "0")."""

    clip: str
    frames: int  # number of frames
    first: str  # number of the first frame, as it is written; "0" if it is left out


def _values_of_line(line: str, path: str, number: int) -> _LineOfMeta:
    """Read a line of a meta file. Raises DataError for a line that does not match _LINE_OF_META.

    path, number: the meta file and the number of the line, for the message.

    Test: test_lines_of_a_meta_file_that_say_nothing_certain_are_refused
    """
    values = _LINE_OF_META.fullmatch(line.strip())
    if not values or not 1 <= int(values["frames"]) <= MOST_FRAMES:
        raise DataError(
            what=f"line {number} is {reprlib.repr(line)}",
            where=path,
            expected=_FORM_OF_LINE,
            do="correct the line",
        )
    # Results are written to files with the name of the clip, so the name must be usable.
    clip = checked_name(values["clip"], f"{path}, line {number}")
    # "first" is None if the line does not have it.
    return _LineOfMeta(clip, frames=int(values["frames"]), first=values["first"] or "0")

"""Find the pictures and films in a folder of a user.

    files_in    the pictures of a folder, in order
    clips_in    the clips of a folder: films, and folders of pictures
    clip_path   where one kind of files of a clip is, e.g. the spikes of "clip_a": the file
                "clip_a.dat", or the folder "clip_a/spike"

What must stay: the order of `files_in`, because it is the order of the frames
(test_images_are_sorted_by_the_numbers_in_their_names). The names of the clips must stay, too,
because results have these names. Free to change: the texts of warnings.

Tests: tests/parts/data/test_user_folders.py, tests/parts/data/test_frame_times.py,
tests/stories/test_foreign_files.py
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.spike.formats import FORMATS
from utils.image import IMAGE_SUFFIXES
from utils.name_order import natural_key, order_of
from utils.video.container import READABLE_SUFFIXES


def files_in(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> list[Path]:
    """Return the files of a folder with these suffixes, by default its images.

    The files are in the order of their stems:

        natural order   "2" before "10", "a2" before "a10"
        by value        if all stems are numbers, but not all have the same form: "432.033333"
                        before "432.1"

    Hidden files are left out.

    Test: test_images_are_sorted_by_the_numbers_in_their_names
    """
    paths = []
    for path in folder.iterdir():
        if path.suffix.lower() in suffixes and not path.name.startswith("."):
            paths.append(path)
    # `order_of` returns a function: stem -> sort key. `order_of` needs all stems, because all stems
    # get the natural order if a single stem is not a number.
    key_of_stem = order_of(path.stem for path in paths)

    def sort_key(path: Path) -> tuple[Any, Any]:
        # The second key decides between files of one stem, "0.jpg" and "0.png".
        return key_of_stem(path.stem), natural_key(path.name)

    return sorted(paths, key=sort_key)


def clips_in(root: Path, inner: str = "", also_read: Sequence[str] = ()) -> list[tuple[str, Path]]:
    """Return (name, path) of the clips in a folder, in natural order.

    A clip is a film, or a folder of images. The images may also lie in a folder `inner` of this
    folder. E.g. with inner "blur", a root with "a.mp4", "b/0.png" and "c/blur/0.png" has the clips

        ("a", <root>/a.mp4), ("b", <root>/b), ("c", <root>/c/blur)

    Warns of files and folders that may be clips but cannot be read.

    also_read: suffixes of files that the caller reads besides the clips. No warning names them.
    """
    clips = []
    left_out = []
    for path in sorted(root.iterdir(), key=lambda path: natural_key(path.name)):
        if path.name.startswith("."):
            continue
        is_film = path.is_file() and path.suffix.lower() in READABLE_SUFFIXES
        frames = clip_path(path, inner)  # <path>/<inner> if this folder exists, else `path`
        is_read_by_caller = path.is_file() and path.suffix.lower() in also_read
        if is_film:
            clips.append((path.stem, path))
        elif frames.is_dir() and files_in(frames):
            clips.append((path.name, frames))
        elif not is_read_by_caller and may_be_frames(frames):
            left_out.append(path.name)
    warn_left_out(root, left_out)
    return clips


def clip_path(path: Path, inner: str, suffixes: Sequence[str] = ()) -> Path:
    """Return the path of one kind of files of a clip.

    The result is the first of these paths that exists:

        a file with one of the suffixes    e.g. "<path>.dat"
        the folder "<path>/<inner>"        e.g. "<path>/spike"

    If neither the file nor the folder exists, the result is `path`.
    """
    for suffix in suffixes:
        # Some cameras and programs write suffixes in capital letters.
        for spelling in (suffix, suffix.upper()):
            file = path.with_name(path.name + spelling)
            if file.is_file():
                return file
    if (path / inner).is_dir():
        return path / inner
    return path


# Suffixes of files that often lie beside frames and films. No warning names such files. A file with
# any other suffix may be a picture or a film, so a warning says that it was not read.
SUFFIXES_BESIDE_FRAMES = (
    *FORMATS, ".json", ".txt", ".md", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".html", ".log",
    ".srt", ".vtt", ".ass", ".wav", ".mp3", ".m4a", ".aac", ".flac", ".mdb", ".sha256", ".md5",
)  # fmt: skip


def may_be_frames(path: Path) -> bool:
    """Return whether a file that was not read may be a picture or a film, e.g. "0.heic".

    For a folder, return whether any file directly in it may be a picture or a film. Three kinds of
    files do not count: files without a suffix, hidden files, and files with one of
    `SUFFIXES_BESIDE_FRAMES`.

    Test: test_frames_of_a_kind_that_is_not_read_are_named
    """
    if path.is_dir():
        return any(may_be_frames(inner) for inner in path.iterdir() if not inner.is_dir())
    if path.name.startswith("."):
        return False
    suffix = path.suffix.lower()
    return suffix != "" and suffix not in SUFFIXES_BESIDE_FRAMES


logger = logging.getLogger(__name__)


def warn_left_out(folder: Path, names: Sequence[str]) -> None:
    """Warn of files that are left out.

    names: names of the files. The first five are shown.
    """
    if not names:
        return
    # Five names show what kind of files these are, and fit into one line of a terminal.
    shown = ", ".join(names[:5])
    if len(names) > 5:
        shown += f", ... ({len(names)} in all)"
    logger.warning("%s: left out, as no film or picture that is read: %s", folder, shown)

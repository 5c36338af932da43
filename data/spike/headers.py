"""Refuse files that are not packed planes: text, images, archives and other files with a header.

Packed planes are bits without a header, so any file can be read as packed planes, and a wrong file
would give noise. `refuse_other_format` looks at the first 64 bytes of a file and raises
SpikeFileError if they are the beginning of another format, or text.

What must stay: real spikes are never refused. Spikes look like random bits, so a rule must be so
strict that the spikes of a scene practically never match it.
Free to add: a mark with as many fixed bits as the marks in MARKS.

Tests: tests/parts/data/test_spike_formats.py, tests/parts/data/test_any_bytes.py
"""

import re

from .errors import PathLike, SpikeFileError

# Beginning of a file that is not packed planes, as a regular expression -> name of the kind of
# file. If the name has the word MATLAB, `refuse_other_format` advises to save the planes again.
#
# A mark must be long. Random bits of any firing rate match these marks with a probability below
# 1e-9. The first three bytes of a JPEG alone would be too short a mark: two of 100,000 spike files
# of a bright scene have these bytes.
MARKS = {
    rb"\x93NUMPY": "the header of a NumPy array (.npy)",
    # The fifth byte is ten times the version of the zip format, 1.0 to 6.3.
    rb"PK\x03\x04[\x0a-\x3f]\x00": "the header of a zip file (.npz)",
    rb"\x89PNG\r\n\x1a\n": "a PNG image",
    # The first two bytes start an image. Then comes a segment of JFIF (e0), Exif (e1) or Adobe
    # (ee), or a quantisation table (db) of 67 (0x43) or 132 (0x84) bytes.
    rb"\xff\xd8\xff(\xe0..JFIF|\xe1..(Exif|http)|\xee..Adobe|\xdb\x00[\x43\x84])": "a JPEG image",
    # The bytes of a header of gzip: two fixed bytes, the method deflate (8), flags, four bytes of
    # time, the level of compression, and the system.
    rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]": "a file compressed with gzip",
    rb"(\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07)": "an archive (xz, 7z or RAR)",
    rb"MATLAB 5\.0 MAT-file": "the header of a MATLAB file",
    rb"MATLAB 7\.3 MAT-file|\x89HDF\r\n\x1a\n": "the header of an HDF5 or MATLAB 7.3 file",
    rb"version https://git-lfs": "a pointer of Git LFS, whose file was not fetched",
}
# Number of bytes at the beginning of a file that are compared with the marks, and tested for text.
# Each mark must match within these bytes. With fewer bytes, spikes would look like text more often.
# The number is chosen by hand. (arrays.py has another constant HEAD_BYTES, for arrays.)
HEAD_BYTES = 64


def refuse_other_format(head: bytes, path: PathLike) -> None:
    """Raise SpikeFileError if a file begins with a header or with text.

    head: the first HEAD_BYTES bytes of the file. Packed planes have no header.
    """
    seen = _content_of(head)
    if not seen:
        return
    do = "give it its own suffix (.npy, .npz), restore the file, or cut off its header"
    if "MATLAB" in seen:
        # A MATLAB file is not read under any suffix, so its planes must be saved again.
        do = "save its planes as an array (planes, h, w) of uint8 in a .npy file"
    raise SpikeFileError(
        what=f"the file begins with {seen}: {head[:24]!r}",
        where=str(path),
        expected="packed planes, which have no header",
        do=do,
    )


def _content_of(head: bytes) -> str:
    """Return what the first bytes of a file show, e.g. "a PNG image"; "" for packed planes.

    Test: test_what_is_no_spike_file_is_refused_with_what_was_seen
    """
    for mark, kind in MARKS.items():
        if re.match(mark, head, re.DOTALL):
            return kind
    return "text" if _is_text(head) else ""


def _is_text(head: bytes) -> bool:
    """Return whether bytes are printable text with more than 6 different characters.

    Bytes with at most 6 different characters count as spikes, because planes of a scene of constant
    brightness repeat a few bytes, which may be codes of characters
    (test_planes_of_an_even_scene_may_consist_of_codes_of_letters). With a larger limit than 6,
    short texts such as a table of numbers would count as spikes.
    """
    if len(set(head)) <= 6:
        return False
    # The printable characters of ASCII have the codes 32 ... 126.
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)

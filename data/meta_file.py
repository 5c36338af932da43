"""Meta files in the format of KAIR and S-VRT: the clips of a data set and their frames."""

from __future__ import annotations

import re
from pathlib import Path

from data.names import checked_name
from utils.errors import DataError

# The shape may contain blanks, "(720,1280,3)" or "(720, 1280, 3)"; S-VRT writes 0 instead.
_LINE = re.compile(r"(\S+)\s+(\d+)\s+(?:\(.*\)|\d+(?=\s))(?:\s+(\d+))?", re.ASCII)
# KAIR brings these lists of whole training sets along; path in its option files -> number of clips.
KAIR_LISTS = {
    f"data/meta_info/meta_info_{name}_GT.txt": clips
    for name, clips in (("REDS", 270), ("DVD_train", 61), ("GoPro_train", 22), ("DAVIS_train", 90))
}
_FORM = "<clip> <frames> <shape or 0> <first frame>; after a shape the first frame may be left out"


def read_meta(path: str, first: str = "0", is_required: bool = False) -> dict[str, tuple[int, str]]:
    """Clip name -> (number of frames, number of the first one as written). Raises DataError, naming the line.

    first: the number of the first frame where a line gives none. is_required: the folders cannot replace the list.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "it is not UTF-8 text"
        do = "correct meta_info_file" if isinstance(e, OSError) else "save it as UTF-8"
        raise DataError(
            f"cannot read the meta file: {reason}", path, "a text file with one line per clip",
            do + ("" if is_required else ", or set meta_info_file to null to use all folders"),
        ) from e  # fmt: skip
    clips: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line.strip())
        if not found or int(found[2]) < 1:
            raise DataError(f"line {number} is {line!r}", path, _FORM, "correct the line")
        name = checked_name(found[1], f"{path}, line {number}")
        if name in clips:
            raise DataError(
                f"line {number} lists clip {name} again", path, "one line per clip", "remove or join the lines"
            )
        clips[name] = (int(found[2]), found[3] or first)
    if not clips:
        raise DataError("the meta file lists no clip", path, "one line per clip", "correct meta_info_file")
    return clips

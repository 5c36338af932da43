"""Choose where a program writes a picture, page or video that the user has given no name."""

import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def default_output(name: str) -> Path:
    """Return the path of a new file: in the current folder, but never in the repository.

    If the current folder is in the repository, the file goes to a new folder for temporary files,
    which only this user can read.
    """
    if not Path.cwd().resolve().is_relative_to(ROOT):
        return Path(name)
    return Path(tempfile.mkdtemp(prefix="spikevrt_")) / name

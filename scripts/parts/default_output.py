"""Choose where a program writes a picture, page or video that the user has given no name.

What must stay: no such file is written into the repository
(test_nothing_is_written_into_the_repository_by_default).

Test: tests/parts/scripts/test_spike_tool.py
"""

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

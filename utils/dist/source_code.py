"""Compute a digest of the source code. The ranks compare it to find hosts with other versions.

Free to change: how the digest is computed, because all ranks must have the same version anyway.

Tests: test_source_files_that_differ_between_ranks_are_refused (tests/faults/test_startup.py)
"""

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The folders whose code computes the steps. Users put parts of their own into these folders, too
# (docs/extending.md). The error of `utils_dist.begin` names these folders, so change both together.
FOLDERS = ("data", "models", "utils")


def digest_of_source() -> str:
    """Return 12 hex digits that change with the names and the content of the source files.

    The files come in a fixed order, because the order changes the digest as well.
    """
    sha256 = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT)
            # An editor may keep copies in a hidden folder, e.g. .ipynb_checkpoints.
            if any(part.startswith(".") for part in name.parts):
                continue
            sha256.update(f"{name.as_posix()}\n".encode(errors="replace"))
            sha256.update(path.read_bytes())
    return sha256.hexdigest()[:12]

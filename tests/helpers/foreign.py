"""Other people's files where a program is about to write, and what became of them."""

import hashlib
import os
from pathlib import Path

import numpy as np

CONTENT = b"somebody's only copy"


def snapshot(root: Path) -> dict[str, str]:
    """Name below `root` -> kind, mode and digest of everything there, links not followed."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path)] = f"link to {os.readlink(path)}"
            elif path.is_dir():
                found[str(path)] = "folder"
            else:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[str(path)] = f"{path.stat().st_mode:o} {path.stat().st_mtime_ns} {digest}"
    return found


def populate(folder: Path, outside: Path, names: list[str], rng: np.random.Generator) -> None:
    """Put files, links out of the tree and read-only files under some of `names`, and strangers
    beside them.

    names: files that a program writes below `folder`.
    """
    for number in range(2):
        (outside / f"album {number}").mkdir(parents=True, exist_ok=True)
        (outside / f"album {number}" / "000000.png").write_bytes(CONTENT)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("my notes..txt", "other run/run.json", ".hidden/x", "clip..1/000000.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(CONTENT)
    (folder / "a link").symlink_to(outside)
    for name in rng.permutation(names)[: int(rng.integers(0, 4))]:
        path = folder / str(name)
        if not path.resolve().is_relative_to(folder.resolve()) or os.path.lexists(path):
            continue
        kind = int(rng.integers(4))
        if kind == 3 and path.parent != folder and not os.path.lexists(path.parent):
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.symlink_to(outside / "album 0")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == 2:
            path.symlink_to(outside / "album 1" / "000000.png")
        else:
            path.write_bytes(CONTENT)
            path.chmod(0o444 if kind == 1 else 0o644)

"""Other people's files where a program is about to write, and what became of them."""

import hashlib
import os
from pathlib import Path

import numpy as np

CONTENT = b"somebody's only copy"


def snapshot(root: Path) -> dict[str, str]:
    """Return {path: what it is} of all files, folders and links below a folder.

    What a file is: its mode, its time of change, and a digest of its content. A link is not
    followed.
    """
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
    """Put foreign files into a folder, some of them under the names of a program's files.

    Under up to three of `names` there is then a file, a file that may only be read, a link to a
    file outside, or a link to a folder outside in place of its folder.

    outside: a folder that is made for the links to lead to, e.g. a user's album.
    names: files that a program writes below `folder`.
    """
    # Folders and files outside, which a program would change if it followed a link.
    for number in range(2):
        (outside / f"album {number}").mkdir(parents=True, exist_ok=True)
        (outside / f"album {number}" / "000000.png").write_bytes(CONTENT)
    # Files under names that no program has, and a link to the outside.
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("my notes..txt", "other run/run.json", ".hidden/x", "clip..1/000000.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(CONTENT)
    (folder / "a link").symlink_to(outside)
    # 0 to 3 of the names. The order of the draws must stay: it decides what each test meets.
    for name in rng.permutation(names)[: int(rng.integers(0, 4))]:
        path = folder / str(name)
        # An earlier name may have made its folder a link to the outside, or the name may be taken.
        if not path.resolve().is_relative_to(folder.resolve()) or os.path.lexists(path):
            continue
        kind = int(rng.integers(4))
        # A link to a folder outside, in place of the folder of this name.
        if kind == 3 and path.parent != folder and not os.path.lexists(path.parent):
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.symlink_to(outside / "album 0")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == 2:
            path.symlink_to(outside / "album 1" / "000000.png")
        else:
            path.write_bytes(CONTENT)
            path.chmod(0o444 if kind == 1 else 0o644)  # 0o444: may only be read

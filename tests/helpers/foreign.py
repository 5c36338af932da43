"""Other people's files where a program is about to write. The program must not change these files.

`populate` writes such foreign files. Two calls of `snapshot`, before and after the program, show
whether the program has changed any of them.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

CONTENT = b"somebody's only copy"


def snapshot(root: Path) -> dict[str, str]:
    """Return path -> text, for all files, folders and links below a folder.

    What the text of each says:

        a link       "link to <path>"
        a folder     "folder"
        a file       its mode, its time of change, and a digest of its content
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

    Up to three of `names` are taken for foreign files. What each of these names becomes is drawn at
    random:

        0    a file
        1    a file that may only be read
        2    a link to a file outside
        3    its folder becomes a link to a folder outside; a file, if the folder exists already

    folder: where a program is about to write.
    outside: a folder to which the links lead, e.g. a user's album. This function makes it.
    names: files that a program writes below `folder`.
    rng: decides which files a test finds. So the order of the draws must stay.
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
    # Take 0 to 3 of the names.
    shuffled = rng.permutation(names)
    count = int(rng.integers(0, 4))
    for name in shuffled[:count]:
        path = folder / str(name)
        # Leave out a name that exists already, and a name whose folder was made a link to the
        # outside by an earlier round.
        if not path.resolve().is_relative_to(folder.resolve()) or os.path.lexists(path):
            continue
        kind = int(rng.integers(4))  # as in the table above
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

"""Atomic checkpoints: each file is written under a temporary name, then renamed, and verified when it is read.

A file `X.pth` has a sidecar `X.pth.sha256`. Before a new file takes its name, the old pair is renamed to
`X_previous.pth`, that one to `X_previous2.pth` and so on. Whenever the process dies, a whole file has the name, with
its sidecar or, between two renames, without one.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from utils import utils_dist
from utils.errors import CheckpointError
from utils.files import free_bytes, sha256_of

# What torch.load raises for a file of something else, or one that cannot be read.
UNREADABLE = (UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, OSError)

logger = logging.getLogger(__name__)

_PLAIN = (str, int, float, bool, type(None), torch.Tensor)


def save(state: dict[str, Any], path: Path, keep: int = 1) -> None:
    """Write `state` to `path` atomically. Returns only when file, sidecar and folder are on the disk.

    keep: former versions to keep; 0: the new file takes the place of the newest one, whose state it completes.
    Raises CheckpointError where `state` holds anything but plain types and tensors (it could not be loaded with
    ``weights_only=True``), where the disk is too full, or where writing fails; the former file is left as it was.
    """
    with _writing(path, state) as temp:
        sidecar, digest = _sidecar(path), _write_hashed(state, temp)
        sidecar_temp = path.with_name(f".{sidecar.name}.{os.getpid()}.tmp")
        with open(sidecar_temp, "w") as file:
            file.write(digest + "\n")
            file.flush()
            os.fsync(file.fileno())
        if keep:
            _keep_previous(path, keep)
        sidecar.unlink(missing_ok=True)  # meanwhile the file, old or new, is taken as it is
        os.replace(temp, path)
        os.replace(sidecar_temp, sidecar)
        _fsync_folder(path.parent)


def save_bare(state: dict[str, Any], path: Path) -> None:
    """As `save`, without a sidecar and without keeping a former file: for weights, which nothing resumes from."""
    with _writing(path, state) as temp:
        _write_hashed(state, temp)
        os.replace(temp, path)


@contextmanager
def _writing(path: Path, state: dict[str, Any]) -> Iterator[Path]:
    """A temporary file beside `path`, removed afterwards. Raises CheckpointError for every failure to write."""
    check_plain(state)
    sizes: list[int] = []  # of all tensors: together nearly the size of the file
    utils_dist.map_tensors(state, lambda tensor: sizes.append(tensor.nbytes))
    need_mb = 1.2 * sum(sizes) / 2**20
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (free_mb := free_bytes(path.parent) / 2**20) < need_mb:
            raise CheckpointError(
                f"the disk is too full for a checkpoint: {free_mb:.0f} MB free", str(path),
                f"at least {need_mb:.0f} MB", "free some space or set path.root to another disk, then resume",
            )  # fmt: skip
        _sweep(path)
        yield temp
    except (OSError, RuntimeError) as e:  # torch.save reports a full disk as a RuntimeError
        raise CheckpointError(
            f"cannot write the checkpoint: {e}", str(path),
            f"a writable folder with room for {need_mb:.0f} MB ({free_bytes(path.parent) / 2**20:.0f} MB are free)",
            "free some space or quota, or set path.root to another disk, then resume",
        ) from e  # fmt: skip
    finally:
        with suppress(OSError):  # the error of the body names a folder that cannot be written
            _sweep(path)


def load(path: Path) -> dict[str, Any]:
    """The state in `path`, on the CPU. In place of a damaged file the previous one is read, with a warning.

    A file is data only: code in it is refused, not run. Raises CheckpointError, with the fault of each file, where none
    can be read.
    """
    faults = []
    for candidate in (path, *_versions(path)):
        if not os.path.lexists(candidate):
            faults.append(f"{candidate.name} does not exist")
            continue
        fault = _fault(candidate)
        if fault is None:
            try:
                state = torch.load(candidate, map_location="cpu", weights_only=True)
                if candidate != path:
                    logger.warning("the former version is used instead: %s", candidate)
                return state
            except UNREADABLE as e:
                fault = f"{e}" if isinstance(e, OSError) else "not a file of plain types and tensors alone"
        logger.warning("%s is damaged (%s)", candidate, fault)
        faults.append(f"{candidate.name}: {fault}")
    raise CheckpointError(
        f"no readable checkpoint: {'; '.join(faults)}", str(path), "a file of this project, sha256 as its sidecar says",
        "go on from another checkpoint of this run (--resume .../checkpoint_best.pth), or choose another task name",
    )  # fmt: skip


def exists(path: Path) -> bool:
    """Whether `path` or its kept previous version is there to resume from; `load` says whether it can be read."""
    return os.path.lexists(path) or any(_versions(path))


def check_plain(value: Any, where: str = "state") -> None:
    """Raises CheckpointError, naming the place, for anything that ``weights_only=True`` would refuse."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_plain(key, f"{where} (a key)")
            check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_plain(item, f"{where}[{index}]")
    elif type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
        raise CheckpointError(
            f"{type(value).__name__} in a checkpoint", where, "plain types and tensors only", "convert it before saving"
        )


class _HashingWriter:
    """A binary file that hashes what is written, so that the bytes need not be read again."""

    def __init__(self, file: Any) -> None:
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _write_hashed(state: dict[str, Any], temp: Path) -> str:
    with open(temp, "wb") as file:
        writer = _HashingWriter(file)
        torch.save(state, writer)
        file.flush()
        os.fsync(file.fileno())
    return writer.sha256.hexdigest()


def _fault(path: Path) -> str | None:
    """What is wrong with the file, or None."""
    sidecar = _sidecar(path)
    try:
        if not sidecar.exists():
            return None  # weights from elsewhere have no sidecar
        found, expected = sha256_of(path), sidecar.read_text(errors="replace").strip()
    except OSError as e:
        return f"{e}"
    return None if found == expected else f"sha256 {found[:12]}, expected {expected[:12]}"


def _sweep(path: Path) -> None:
    """Remove the temporary files of saves that failed or were killed, or they would fill the disk."""
    for left in path.parent.glob(f".{path.stem}*.tmp"):
        left.unlink(missing_ok=True)


def _keep_previous(path: Path, keep: int) -> None:
    """Each version becomes the one before; a damaged newest one is not kept."""
    if not path.exists() or _fault(path) is not None:
        return
    for number in range(keep, 1, -1):
        newer, older = _previous(path, number - 1), _previous(path, number)
        if newer.exists():
            _link(_sidecar(newer), _sidecar(older))
            _link(newer, older)
    _link(_sidecar(path), _sidecar(_previous(path)))
    _link(path, _previous(path))


def _link(source: Path, target: Path) -> None:
    """`target` becomes another name of the file `source`, atomically."""
    if not source.exists():
        return
    link = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    link.unlink(missing_ok=True)
    try:
        os.link(source, link)
    except OSError:  # a file system without hard links
        shutil.copy2(source, link)
    os.replace(link, target)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # some file systems sync no folders
            raise
    finally:
        os.close(descriptor)


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _previous(path: Path, number: int = 1) -> Path:
    return path.with_name(f"{path.stem}_previous{number if number > 1 else ''}{path.suffix}")


def _versions(path: Path) -> list[Path]:
    """The kept former versions, newest first."""
    return sorted(path.parent.glob(f"{path.stem}_previous*{path.suffix}"), key=lambda p: (len(p.name), p.name))

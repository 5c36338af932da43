"""Write and read the file of a checkpoint, so that a run always finds a complete file.

The files in the folder `checkpoints` of a run:

    checkpoint_latest.pth            the newest state
    checkpoint_latest.pth.sha256     its sidecar: 64 hexadecimal digits, the SHA-256 of the file
    checkpoint_latest_previous.pth   the state before, with its own sidecar
    checkpoint_latest_previous2.pth  the state two saves ago, if train.keep_checkpoints is above 1
    checkpoint_best.pth              the state with the best PSNR; it also has a sidecar and former
                                     versions

`save` writes a file under a temporary name, e.g. `.checkpoint_latest.pth.<random>.tmp`, and then
renames the file, because a rename is atomic. So even if the process dies, `checkpoint_latest.pth`
is a complete file. Only its sidecar may be missing, if the process dies between two renames
(`_put_in_place`). `load` compares the file with its sidecar. If the file is damaged, `load` reads
the former version.

`Experiment.save` (experiment.py) calls `save`. `find_checkpoint` (resume.py) calls `load_version`.
One round trip of a checkpoint, from call to call:

    to the disk    Run.save, Experiment.save, ModelState.training_state, `save`
    from disk      find_checkpoint, `load_version`, load_plain, refuse_wrong_types
    into the run   restore_progress (the position), ModelState.init_train (weights and moments)
    into the data  TrainLoader.start(epoch, batch)

What must stay:

    the names of the files, because runs of earlier versions are resumed
        test_which_checkpoint_wins
    the order of the renames, so that a kill leaves the old or the new file
        test_a_kill_while_saving_leaves_a_readable_file
    a file is read as data only, never as a pickle that runs code (`load_plain`)
        test_code_in_a_file_does_not_run

Tests: tests/stories/test_checkpoint.py, tests/faults/test_interruptions.py.
"""

import errno
import logging
import os
import re
import shutil
import struct
import uuid
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch

from utils.errors import CheckpointError
from utils.files import free_bytes, sha256_of
from utils.run.torch_file import RefusedFile, load_plain

logger = logging.getLogger(__name__)


def own_checkpoint(folder: Path, name: str) -> Path:
    """Return the file of checkpoint `name` ("latest" or "best") in a run's folder."""
    return folder / "checkpoints" / f"checkpoint_{name}.pth"


# ---- Writing a file --------------------------------------------------------------------------


# The advice of the errors about a full disk.
MAKE_ROOM = "free some space or quota, or set path.root to another disk, then resume"


def save(state: dict[str, Any], path: Path, keep: int = 1, has_sidecar: bool = True) -> None:
    """Write `state` to `path` atomically, and wait until the content of the file is on the disk.

    The sidecar is the small file with the digest of the checkpoint, e.g.
    checkpoint_latest.pth.sha256. With a sidecar, `save` also waits until sidecar and folder are on
    the disk. Without a sidecar, `save` does not wait for the folder. Then `path` may still be the
    former file, or be missing, after a power failure.

    keep: number of former versions to keep. With 1 or more, the present file at `path` becomes the
        newest former version, <name>_previous.pth. With 0, the new file replaces the present file,
        and the former versions stay as they are. `Experiment.save` needs 0 if it saves a step again
        after its validation.
    has_sidecar: False for bare weights, because no run resumes from them. Such a file has no former
        versions, and `keep` has no effect.

    Raises CheckpointError, and leaves the former file as it was, if
    * `state` holds anything but plain types (numbers, texts, None, lists, dicts) and tensors,
      because `load` could not read it with ``weights_only=True``,
    * the disk is too full, or
    * writing fails.
    """
    # `_plain_bytes` adds up the tensors, and refuses types that could not be loaded again. The file
    # is a little larger than its tensors, because it also holds names and shapes. So the disk needs
    # room for 1.2 times the size of the tensors (chosen by hand). With a smaller factor, the disk
    # could be full before the end of the file. With a larger factor, a save that fits would be
    # refused.
    need_mb = 1.2 * _plain_bytes(state) / 2**20
    new_file = _temporary_name(path)
    new_sidecar = _temporary_name(_sidecar_of(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_full_disk(path, need_mb)
        _remove_temporary_files(path)  # of an earlier save that was killed

        # Write the file. Mode "x" creates a new file. It raises an error if there is a file of this
        # name, or a link that somebody has put there.
        with open(new_file, "xb") as file:
            torch.save(state, file)
        _wait_for_disk(new_file)
        if not has_sidecar:
            os.replace(new_file, path)
            return
        with open(new_sidecar, "x", encoding="ascii") as file:
            file.write(f"{sha256_of(new_file)}\n")
        _wait_for_disk(new_sidecar)

        if keep:
            _keep_present_file(path, keep)
        _put_in_place(new_file, new_sidecar, path)
    except (OSError, RuntimeError) as e:  # torch.save raises a RuntimeError if the disk is full
        raise CheckpointError(
            what=f"cannot write the checkpoint: {e}",
            where=str(path),
            expected=f"a writable folder with room for {need_mb:.0f} MB "
            f"({free_bytes(path.parent) / 2**20:.0f} MB are free)",
            do=MAKE_ROOM,
        ) from e
    finally:
        # In a folder that cannot be written, removing fails, too. Suppress this second error,
        # because the error above already names the folder.
        with suppress(OSError):
            _remove_temporary_files(path)


def _put_in_place(new_file: Path, new_sidecar: Path, path: Path) -> None:
    """Give a new file the name `path`, and its sidecar the name of the sidecar of `path`.

    The sidecar is the small file with the digest of the checkpoint.

    The process may die after any line, so the order of the lines must stay. `load` then finds:

        at first                         the old file and its sidecar
        after `unlink`                   the old file, without a sidecar
        after `replace` of the file      the new file, without a sidecar
        after `replace` of the sidecar   the new file and its sidecar

    If a file has no sidecar, `load` reads the file without a check. If the order of the lines were
    different, the new file could stand beside the old sidecar, and `load` would refuse a good file.

    test_a_kill_while_saving_leaves_a_readable_file kills only eight saves, at random moments. So
    the test may pass although the order is wrong. `make faults` kills 200 saves.
    """
    sidecar = _sidecar_of(path)
    sidecar.unlink(missing_ok=True)
    os.replace(new_file, path)
    os.replace(new_sidecar, sidecar)
    _wait_for_disk(path.parent)


def _refuse_full_disk(path: Path, need_mb: float) -> None:
    """Raise CheckpointError if the disk of `path` has less than `need_mb` MB free."""
    free_mb = free_bytes(path.parent) / 2**20
    if free_mb < need_mb:
        raise CheckpointError(
            what=f"the disk is too full for a checkpoint: {free_mb:.0f} MB free",
            where=str(path),
            expected=f"at least {need_mb:.0f} MB",
            do=MAKE_ROOM,
        )


def _plain_bytes(value: Any, where: str = "state") -> int:
    """Return the number of bytes of all tensors in `value`, which is nearly the size of the file.

    value: a state, or a part of it.
    where: the place of the part, e.g. "state['optimizer'][0]".

    Raises CheckpointError for a type that torch.load refuses with ``weights_only=True``.
    """
    if isinstance(value, torch.Tensor):
        return value.nbytes
    byte_count = 0
    if isinstance(value, dict):
        for key in value:
            # This call only refuses keys of other types, because a text or a number has 0 bytes of
            # tensors.
            byte_count += _plain_bytes(key, f"{where} (a key)")
        for key, item in value.items():
            byte_count += _plain_bytes(item, f"{where}[{key!r}]")
        return byte_count
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            byte_count += _plain_bytes(item, f"{where}[{index}]")
        return byte_count
    # Compare the exact types. torch.load with weights_only=True refuses a subclass, e.g.
    # numpy.float64, which is a subclass of float (test_only_plain_types_are_saved).
    if type(value) not in (str, int, float, bool, type(None)):
        raise CheckpointError(
            what=f"{type(value).__name__} in a checkpoint",
            where=where,
            expected="plain types and tensors only",
            do="convert it before saving",
        )
    return 0


def _keep_present_file(path: Path, keep: int) -> None:
    """Keep the file at `path` as the newest former version, before a new file replaces it.

    If the file does not match its sidecar, it is damaged, and is not kept. If a damaged file were
    kept, the oldest version would be lost. This version may be the only good one
    (test_a_save_after_a_file_that_cannot_be_read_keeps_the_version_that_can).

    keep: number of former versions that stay.
    """
    if path.exists() and _fault(path) is None:
        _rename_versions(path, keep)


def _rename_versions(path: Path, keep: int) -> None:
    """Rename each version: `X.pth` -> `X_previous.pth` -> `X_previous2.pth` -> ...

    The oldest version is overwritten. `X.pth` gets a second name, and also keeps its own name until
    the new file replaces it. So there is a file `X.pth` at any time, even if the process dies.

    keep: number of former versions that stay. E.g. with 2, X_previous becomes X_previous2, whose
        old content is lost, and then X becomes X_previous.
    """
    # Rename the oldest version first, so that no version is overwritten before it has a new name:
    # the number is e.g. 2 first (X_previous -> X_previous2), and then 1 (X -> X_previous). Test:
    # test_as_many_former_versions_as_asked_for_are_used_in_turn.
    for number in range(keep, 0, -1):
        newer = _version(path, number - 1)
        older = _version(path, number)
        if newer.exists():
            # If the process dies between the two lines, the file `older` does not match its
            # sidecar, and `load` refuses this version. `X.pth` is still good.
            _link(_sidecar_of(newer), _sidecar_of(older))
            _link(newer, older)


def _version(path: Path, number: int) -> Path:
    """Return the file of a version: 0 is X.pth, 1 X_previous.pth, 2 X_previous2.pth, ..."""
    if number == 0:
        return path
    count = "" if number == 1 else str(number)
    return path.with_name(f"{path.stem}_previous{count}{path.suffix}")


def _link(source: Path, target: Path) -> None:
    """Make `target` another name of the file `source`, atomically.

    Does nothing if there is no `source`, e.g. if a former version has no sidecar.
    """
    if not source.exists():
        return
    link = _temporary_name(target)
    try:
        os.link(source, link)
    except OSError:  # a file system without hard links
        shutil.copy2(source, link)
    os.replace(link, target)


def _wait_for_disk(path: Path) -> None:
    """Wait until the file or folder is on the disk, so that a power failure cannot lose it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        # Some file systems cannot do this for folders, and answer with one of these errors.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def _temporary_name(path: Path) -> Path:
    """Return a name beside `path` that nobody can foresee: `.<name>.<32 random digits>.tmp`."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


# The names that `_temporary_name` gives. A file with such a name may be removed, so the pattern
# must match no other name:
#
#     .netG.pth.<32 hexadecimal digits>.tmp           a file
#     .netG.pth.sha256.<32 hexadecimal digits>.tmp    its sidecar
#     .netG.pth.4711.tmp                              of an earlier version, with a process id
#     netG.pth                                        no match
TEMPORARY = re.compile(r"\..+\.pth(\.sha256)?\.([0-9a-f]{32}|\d{1,10})\.tmp")


def _remove_temporary_files(path: Path) -> None:
    """Remove the temporary files of saves that failed or were killed, before they fill the disk.

    Only files of this user with a name of the form TEMPORARY are removed.
    """
    # The pattern also finds the temporary names of sidecars and of former versions.
    for candidate in path.parent.glob(f".{path.stem}*.tmp"):
        if TEMPORARY.fullmatch(candidate.name) and candidate.lstat().st_uid == os.geteuid():
            candidate.unlink(missing_ok=True)


# ---- Reading a file --------------------------------------------------------------------------


# The errors that torch.load may raise for a damaged file, or for a file that is not a checkpoint.
# The list is long, because torch.load has no error class of its own for such files. After one of
# these errors `load` reads a former version. Any other error ends the run, even if a former version
# is good.
UNREADABLE = (
    UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
    MemoryError,  # e.g. a damaged size in the file asks for more memory than there is
    OSError,  # e.g. the disk cannot read a part of the file
)


class LoadedFile(NamedTuple):
    """What `load_version` has read."""

    state: dict[str, Any]
    file: Path  # the file itself, or the former version that was read instead


def load(path: Path) -> dict[str, Any]:
    """Return the state in `path`, or in a former version. See `load_version`."""
    return load_version(path).state


def load_version(path: Path) -> LoadedFile:
    """Read the state in `path`, with its tensors on the CPU.

    If the file is damaged, the former version is read instead, with a warning
    (test_a_damaged_file_gives_way_to_the_previous_one). Only data is read from a file: `load_plain`
    refuses a file with code in it, and never runs the code (test_code_in_a_file_does_not_run).

    Raises CheckpointError if no version can be read. The error has the fault of each version.
    """
    faults = []  # what is wrong with each version, for the error
    if not os.path.lexists(path):
        faults.append(f"{path.name} does not exist")
    for candidate in existing_versions(path):
        fault = _fault(candidate)  # compares the file with its sidecar
        if fault is None:
            try:
                state = load_plain(candidate)
                if candidate != path:
                    logger.warning("the former version is used instead: %s", candidate)
                return LoadedFile(state, candidate)
            except UNREADABLE as e:
                fault = _fault_in_words(e)
        logger.warning("%s is damaged (%s)", candidate, fault)
        faults.append(f"{candidate.name}: {fault}")
    raise CheckpointError(
        what=f"no readable checkpoint: {'; '.join(faults)}",
        where=str(path),
        expected="a file of this project, sha256 as its sidecar says",
        do="go on from another checkpoint of this run (--resume .../checkpoint_best.pth), or "
        "choose another task name",
    )


def _fault_in_words(error: BaseException) -> str:
    """Return what is wrong with a file that `load_plain` could not read."""
    # The texts of OSError and RefusedFile say what is wrong with the file. The texts of torch's
    # errors are about the code of torch, so they get other words.
    if isinstance(error, (OSError, RefusedFile)):
        return f"{error}"
    if isinstance(error, MemoryError):
        return "the memory does not hold it"
    return "not a file of plain types and tensors alone"


def existing_versions(path: Path) -> list[Path]:
    """Return the existing files among `path` and its former versions, the newest first.

    A version in this list may be damaged, because only `load` compares it with its sidecar.
    """

    # The shorter name comes first: X_previous.pth, X_previous2.pth, ..., X_previous10.pth. If they
    # were sorted only by name, X_previous10 would come before X_previous2.
    def length_and_name(version: Path) -> tuple[int, str]:
        return len(version.name), version.name

    former = sorted(path.parent.glob(f"{path.stem}_previous*{path.suffix}"), key=length_and_name)
    # lexists is also true for a link to a file that is gone. `load` then warns that the file cannot
    # be read.
    if os.path.lexists(path):
        return [path, *former]
    return former


def _fault(path: Path) -> str | None:
    """Compare the file with the digest in its sidecar. Returns what is wrong, or None."""
    sidecar = _sidecar_of(path)
    try:
        if not sidecar.exists():
            return None  # weights from elsewhere have no sidecar
        digest = sha256_of(path)
        expected = sidecar.read_text(errors="replace").strip()
    except OSError as e:
        return f"{e}"
    if digest == expected:
        return None
    # 12 of 64 digits are enough to compare two digests by eye.
    return f"sha256 {digest[:12]}, expected {expected[:12]}"


def _sidecar_of(path: Path) -> Path:
    """Return the name of the file that holds the SHA-256 of the file `path`."""
    return Path(f"{path}.sha256")

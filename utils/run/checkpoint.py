"""Checkpoints: atomic files, and where a run resumes: from which file, whether it fits the options
and the data.

Each file is written under a temporary name, then renamed, and verified when it is read. A file
`X.pth` has a sidecar `X.pth.sha256`. Before a new file takes its name, the old pair is renamed to
`X_previous.pth`, that one to `X_previous2.pth` and so on. Whenever the process dies, a whole file
has the name, with its sidecar or, between two renames, without one.

The option file takes precedence over the options in the checkpoint; the log lists every key that
differs. From the checkpoint come weights, averages, moments, the loss scale, the count of skipped
steps and the position in the data.
"""

import errno
import json
import logging
import math
import os
import re
import shutil
import struct
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch

from utils import utils_dist
from utils.errors import CheckpointError, DataError, OptionError
from utils.files import free_bytes, sha256_of
from utils.options.models import TrainOptions
from utils.run.saved_state import DO, refuse_wrong_types
from utils.run.torch_file import RefusedFile, load_plain

# What torch.load raises for a file of something else, or one that cannot be read.
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
    MemoryError,
    OSError,
)

# The names of `_temporary`; those of former versions end with a process id.
TEMPORARY = re.compile(r"\..+\.pth(\.sha256)?\.([0-9a-f]{32}|\d{1,10})\.tmp")

ROOM = "free some space or quota, or set path.root to another disk, then resume"

logger = logging.getLogger(__name__)

# Where and how a run is started, not what is trained.
NO_DIFFERENCE = ("opt_path", "task", "path")
# What the scores of a validation depend on; without effect on them.
OF_SCORES = ("datasets.test.", "val.", "metric.")
NO_SCORE = (
    "val.save_img",
    "val.batch_tiles",
    "metric.more",
    "datasets.test.dataloader_",
    "datasets.test.cache_data",
)


def save(state: dict[str, Any], path: Path, keep: int | None = 1) -> None:
    """Write `state` to `path` atomically.

    Returns only when file, sidecar and folder are on the disk.

    keep: former versions to keep; 0: the new file takes the place of the newest one, whose state it
    completes; None: neither a former version nor a sidecar, for weights, which nothing resumes
    from.
    Raises CheckpointError where `state` holds anything but plain types and tensors (it could not be
    loaded with ``weights_only=True``), where the disk is too full, or where writing fails; the
    former file is left as it was.
    """
    need_mb, sidecar = 1.2 * _plain_bytes(state) / 2**20, Path(f"{path}.sha256")
    temp, sidecar_temp = _temporary(path), _temporary(sidecar)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (free_mb := free_bytes(path.parent) / 2**20) < need_mb:
            what = f"the disk is too full for a checkpoint: {free_mb:.0f} MB free"
            raise CheckpointError(what, str(path), f"at least {need_mb:.0f} MB", ROOM)
        _sweep(path)
        with open(temp, "xb") as file:  # x: a new file, never one that is there, nor behind a link
            torch.save(state, file)
        _sync(temp)
        if keep is None:
            os.replace(temp, path)
            return
        with open(sidecar_temp, "x", encoding="ascii") as file:
            file.write(f"{sha256_of(temp)}\n")
        _sync(sidecar_temp)
        if keep and path.exists() and _fault(path) is None:  # a damaged newest one is not kept
            endings = ("", *range(2, keep + 1))
            versions = [
                path,
                *(path.with_name(f"{path.stem}_previous{end}{path.suffix}") for end in endings),
            ]
            for number in range(keep, 0, -1):  # each version becomes the one before
                newer, older = versions[number - 1], versions[number]
                if newer.exists():
                    _link(Path(f"{newer}.sha256"), Path(f"{older}.sha256"))
                    _link(newer, older)
        sidecar.unlink(missing_ok=True)  # meanwhile the file, old or new, is taken as it is
        os.replace(temp, path)
        os.replace(sidecar_temp, sidecar)
        _sync(path.parent)
    except (OSError, RuntimeError) as e:  # torch.save reports a full disk as a RuntimeError
        room = (
            f"a writable folder with room for {need_mb:.0f} MB "
            f"({free_bytes(path.parent) / 2**20:.0f} MB are free)"
        )
        raise CheckpointError(f"cannot write the checkpoint: {e}", str(path), room, ROOM) from e
    finally:
        with suppress(OSError):  # the error of the body names a folder that cannot be written
            _sweep(path)


def load(path: Path) -> dict[str, Any]:
    """The state in `path`, on the CPU.

    In place of a damaged file the previous one is read, with a warning.

    A file is data only: code in it is refused, not run. Raises CheckpointError, with the fault of
    each file, where none can be read.
    """
    faults = [] if os.path.lexists(path) else [f"{path.name} does not exist"]
    for candidate in _versions(path):
        fault = _fault(candidate)
        if fault is None:
            try:
                state = load_plain(candidate)
                if candidate != path:
                    logger.warning("the former version is used instead: %s", candidate)
                return state
            except UNREADABLE as e:
                fault = "not a file of plain types and tensors alone"
                if isinstance(e, (OSError, RefusedFile)):
                    fault = f"{e}"
                elif isinstance(e, MemoryError):
                    fault = "the memory does not hold it"
        logger.warning("%s is damaged (%s)", candidate, fault)
        faults.append(f"{candidate.name}: {fault}")
    expected = "a file of this project, sha256 as its sidecar says"
    do = (
        "go on from another checkpoint of this run (--resume .../checkpoint_best.pth), or "
        "choose another task name"
    )
    raise CheckpointError(f"no readable checkpoint: {'; '.join(faults)}", str(path), expected, do)


def _plain_bytes(value: Any, where: str = "state") -> int:
    """Bytes of all tensors, nearly those of the file.

    Raises CheckpointError for what `weights_only` would refuse.
    """
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        keys = sum(_plain_bytes(key, f"{where} (a key)") for key in value)
        return keys + sum(_plain_bytes(item, f"{where}[{key!r}]") for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(_plain_bytes(item, f"{where}[{index}]") for index, item in enumerate(value))
    if type(value) not in (str, int, float, bool, type(None)):
        what = f"{type(value).__name__} in a checkpoint"
        raise CheckpointError(
            what, where, "plain types and tensors only", "convert it before saving"
        )
    return 0


def _fault(path: Path) -> str | None:
    """What is wrong with the file, or None."""
    sidecar = Path(f"{path}.sha256")
    try:
        if not sidecar.exists():
            return None  # weights from elsewhere have no sidecar
        found, expected = sha256_of(path), sidecar.read_text(errors="replace").strip()
    except OSError as e:
        return f"{e}"
    return None if found == expected else f"sha256 {found[:12]}, expected {expected[:12]}"


def _sweep(path: Path) -> None:
    """Remove our temporary files of saves that failed or were killed, or they would fill the
    disk.
    """
    for left in path.parent.glob(f".{path.stem}*.tmp"):
        if TEMPORARY.fullmatch(left.name) and left.lstat().st_uid == os.geteuid():
            left.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """Return a name beside `path` that nobody can foresee."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _link(source: Path, target: Path) -> None:
    """`target` becomes another name of the file `source`, atomically."""
    if not source.exists():
        return
    link = _temporary(target)
    try:
        os.link(source, link)
    except OSError:  # a file system without hard links
        shutil.copy2(source, link)
    os.replace(link, target)


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        # Some file systems sync no folders
        if e.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
            errno.ENOSYS,
        ):
            raise
    finally:
        os.close(descriptor)


def _versions(path: Path) -> list[Path]:
    """The file and its kept former versions, those that are there, newest first; `load` says which
    can be read.
    """
    former = sorted(
        path.parent.glob(f"{path.stem}_previous*{path.suffix}"), key=lambda p: (len(p.name), p.name)
    )
    return [path, *former] if os.path.lexists(path) else former


@dataclass
class Progress:
    """Where a run stands: optimizer steps done, and the position of the next one in the data."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # next global batch of the epoch
    best_psnr: float | None = None
    best_step: int = 0
    scored_on: str | None = None  # digest of the test clips of best_psnr; None: not known
    validated: int = 0  # step of the last complete validation
    validation_stops: int = 0  # how often a signal ended the validation of this step
    saved: int = -1  # step of the run's newest checkpoint_latest
    wandb_id: str | None = None

    def advance(self) -> None:
        """Count one more step. Its validation, if one is due, has not been stopped yet."""
        self.step += 1
        self.batch += 1
        self.validation_stops = 0

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = 0


@dataclass(frozen=True)
class DataOrder:
    """What a position in the data refers to; equal orders hand out the same samples at the same
    position.

    samples: in an epoch. sample_list: digest of the names and sizes of clips and frames. seed: of
    the shuffling;
    None: no shuffling. steps: in an epoch, at the batch size of the run.
    """

    samples: int
    sample_list: str
    seed: int | None
    steps: int


@contextmanager
def restoring(resumed: "Resumed | None") -> Generator[None]:
    """Within the block a checkpoint is restored: what does not fit in it becomes a
    CheckpointError.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        if resumed is None:
            raise
        raise CheckpointError(
            f"the checkpoint holds what no run saves: {type(e).__name__}: {e}",
            str(resumed.path),
            "options, moments and averages of the same network",
            DO,
        ) from e


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run resumes from. is_named: the user named it (`--resume PATH`)."""

    path: Path
    state: dict[str, Any]
    is_named: bool = False


def find_checkpoint(resume: str | None, folder: Path) -> Resumed | None:
    """The full checkpoint that the run in `folder` resumes from, or None for a fresh start.

    Collective.

    path.resume            with a checkpoint_latest of its own     without
    null                   refused                                 fresh start*
    "auto"                 that one                                fresh start*
    a file of another run  that one, whatever the steps of both    the named one
    a file of this run     the further one; if it can be read      the named one

    * refused if the folder holds a checkpoint_best, for a fresh start would overwrite it.

    So a command with a path can be repeated after an interruption, and overwrites nothing. A folder
    means the latest checkpoint of the run in it. Raises OptionError where the run is refused,
    CheckpointError where a file is missing, damaged, or no checkpoint. Rank 0 alone reads the
    folder, which other hosts may not have.
    """
    found = _find(resume, folder) if utils_dist.is_main_process() else None
    shared = utils_dist.state_from_rank_0(found and vars(found))
    return shared and Resumed(**shared)


def _find(resume: str | None, folder: Path) -> Resumed | None:
    latest = own_checkpoint(folder, "latest")
    has_own = bool(_versions(latest))
    if resume is None and has_own:
        what, expected = (
            "path.resume is null, yet the folder holds a run",
            "an empty folder for a run from zero",
        )
        do = "--resume auto resumes it; for a new run set another task name or move the folder away"
        raise OptionError(what, str(latest), expected, do)
    if resume in (None, "auto"):
        if has_own:
            return Resumed(latest, _read_state(latest))
        _refuse_if_best_is_left(folder, latest)
        return None
    named = Path(resume)
    if named.is_dir():  # that of a run, or the one of its checkpoints
        named = own_checkpoint(named.parent if named.name == "checkpoints" else named, "latest")
    if not has_own or named.parent.resolve() == latest.parent.resolve():
        if not _versions(named):
            expected = "an existing file, auto, or null for a fresh start"
            raise CheckpointError("no such checkpoint", str(named), expected, "correct it")
        found = Resumed(named, _read_state(named), is_named=True)
        if not has_own or named.name == latest.name:
            return found
        try:
            state = _read_state(latest)
        except CheckpointError:
            return found
        if state["step"] <= found.state["step"]:
            return found
    else:
        state = _read_state(latest)
    logger.warning(
        "%s is not used: this run has a checkpoint of its own at iter %d; to go back to that "
        "file, choose another "
        "task name", named, state["step"],
    )  # fmt: skip
    return Resumed(latest, state)


def _refuse_if_best_is_left(folder: Path, latest: Path) -> None:
    best = own_checkpoint(folder, "best")
    if not _versions(best):
        return
    raise OptionError(
        f"the folder holds a run, yet its {latest.name} is missing: only {best.name} is left",
        str(best),
        f"{latest.name}, to go on where the run ended, or a folder without a run",
        f"--resume {best} goes on from that file; for a new run set another task name",
    )


def own_checkpoint(folder: Path, name: str) -> Path:
    """The file of checkpoint `name` ("latest", "best") in a run's folder."""
    return folder / "checkpoints" / f"checkpoint_{name}.pth"


def _read_state(path: Path) -> dict[str, Any]:
    """The checkpoint in `path`.

    Raises CheckpointError where it holds weights alone, or something else.
    """
    state = load(path)
    needed = {"model_state_dict", "optimizer", "step", "epoch", "batch", "options"}
    if isinstance(state, dict) and needed <= state.keys():
        refuse_wrong_types(state, path)
        return state
    what = "not a checkpoint to resume from: it holds no optimizer state and no position"
    do = f"give such a file; to start a new run from these weights: path.pretrained_netG={path}"
    raise CheckpointError(what, str(path), "a file checkpoints/checkpoint_*.pth of a run", do)


def left_to_do(
    progress: Progress, total_iter: int, test_every: int
) -> Literal["validation", "steps", "nothing"]:
    """What comes next in the life of a run; "nothing": it is finished. The one place that decides.

    A run is finished when its last step is validated, and the checkpoint records that
    (`validated`). A validation that a signal stopped twice is left out: a run whose allocations are
    too short for it would never go on.
    test_every: steps between validations; the last step has one in any case. 0: no test split.
    """
    is_last = progress.step >= total_iter
    is_due = test_every and (is_last or progress.step % test_every == 0)
    if is_due and progress.validated != progress.step and progress.validation_stops < 2:
        return "validation"
    return "nothing" if is_last else "steps"


def restore_progress(
    resumed: Resumed,
    folder: Path,
    options: dict[str, Any],
    train: TrainOptions,
    order: DataOrder,
    scored_on: str | None = None,
) -> Progress:
    """The position of the run in `order`, this run's data.

    Raises OptionError or DataError where it cannot continue.

    folder: of the run. options: all, plain and without secrets; those that differ from the
    checkpoint's are logged.
    scored_on: digest of this start's test clips; None: it has none.
    """
    state, is_own = (
        resumed.state,
        resumed.path.parent.resolve() == own_checkpoint(folder, "latest").parent.resolve(),
    )
    progress = Progress(
        **{field.name: state.get(field.name, field.default) for field in fields(Progress)}
    )
    # Older versions did not write it, newer ones may write more
    was = (
        DataOrder(**{field.name: state["order"][field.name] for field in fields(DataOrder)})
        if state.get("order")
        else None
    )
    if progress.batch == (was or order).steps:
        progress.next_epoch()
    changes = differences(state["options"], options)
    if changes and utils_dist.is_main_process():
        texts = {key: [json.dumps(value) for value in values] for key, values in changes.items()}
        short = {
            key: [t if len(t) <= 80 else f"{t[:77]}..." for t in pair]
            for key, pair in texts.items()
        }
        lines = [f"  {key}: {' -> '.join(pair)}" for key, pair in short.items()]
        logger.warning(
            "options that differ from those of the checkpoint, and win:\n%s", "\n".join(lines)
        )
    progress.saved = progress.step if is_own else -1
    if not is_own:
        progress.wandb_id, progress.validated, progress.validation_stops = None, 0, 0
    if state["options"].get("task") != options.get("task"):
        progress.wandb_id = (
            None  # a copied folder is another run: the task is its name, not the folder
        )
    other_test = [
        key for key in changes if key.startswith(OF_SCORES) and not key.startswith(NO_SCORE)
    ]
    _forget_best_of_others(progress, folder, other_test, scored_on)
    if progress.step < planned_steps(train, (was or order).steps, progress):
        _find_place(progress, was, order, resumed, options)
    return progress


def _forget_best_of_others(
    progress: Progress, folder: Path, changed: list[str], scored_on: str | None
) -> None:
    """Forget a best score that this start cannot be compared with, and say why.

    changed: options of the scores that changed. scored_on: see `restore_progress`. Without a test
    split nothing is scored, and the best score keeps what it was measured on.
    """
    if progress.best_psnr is None:
        return
    if changed:
        reason = f"{', '.join(changed)} changed"
    elif not _versions(own_checkpoint(folder, "best")):
        reason = "this run's folder holds no checkpoint_best.pth"
    elif scored_on and progress.scored_on and scored_on != progress.scored_on:
        reason = "the test clips are not those it was measured on"
    else:
        return
    logger.info("the best PSNR so far, %.2f dB, does not count: %s", progress.best_psnr, reason)
    progress.best_psnr, progress.best_step, progress.scored_on = None, 0, None


def planned_steps(train: TrainOptions, steps_per_epoch: int, progress: Progress) -> int:
    """Return the optimizer steps of the whole run: `total_iter` or `epochs`, what ends first."""
    total = math.inf if train.total_iter is None else train.total_iter
    if train.epochs is not None:
        # Counted from where the run stands: its former epochs may have had another length.
        left = (train.epochs - progress.epoch) * steps_per_epoch - progress.batch
        total = min(total, progress.step + left)
    return int(total)  # the options have one of both


def differences(
    was: dict[str, Any], now: dict[str, Any], where: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value then, value now) of the options that differ.

    A key that one side lacks is left out.
    """
    found = {}
    for key in sorted(was.keys() & now.keys()):
        name, then, current = f"{where}{key}", was[key], now[key]
        if name in NO_DIFFERENCE or then == current:
            continue
        if isinstance(then, dict) and isinstance(current, dict):
            found |= differences(then, current, f"{name}.")
        else:
            found[name] = (then, current)
    return found


def _find_place(
    progress: Progress,
    was: DataOrder | None,
    order: DataOrder,
    resumed: Resumed,
    options: dict[str, Any],
) -> None:
    """Start the next epoch, with a warning, where a position in the data means other samples than
    before.

    With the same number of samples a step, a run continues with the next sample on any number of
    ranks. Raises OptionError where that number differs, and DataError where the samples do, unless
    the user named the checkpoint: a run that a queue starts again must not continue with half of
    its GPUs or clips because a host or disk is missing.
    """
    ranks, ranks_then = utils_dist.get_world_size(), resumed.state["world_size"]
    now, before = (
        count
        * tree["datasets"]["train"]["dataloader_batch_size"]
        * tree["train"]["accumulation_steps"]
        for count, tree in ((ranks, options), (ranks_then, resumed.state["options"]))
    )
    pairs = [("samples a step", before, now)]
    if was is not None:
        pairs += [
            ("samples an epoch", was.samples, order.samples),
            ("seed of the order", was.seed, order.seed),
        ]
    changed = [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
    is_other = was is not None and was.sample_list != order.sample_list
    changed += ["other clips, frames or spikes"] * is_other
    if (is_other or now != before) and not resumed.is_named:
        raise (DataError if is_other else OptionError)(
            "the training data or the batch are not those of the checkpoint: "
            f"{', '.join(changed)}", str(resumed.path),
            f"the same clips, frames, sizes, dataset.json and calibration, and {before} samples "
            "a step, as before",
            "bring the files back, and choose ranks x datasets.train.dataloader_batch_size x "
            f"train.accumulation_steps = {before}; or, to continue with the present ones from a "
            f"new epoch: --resume {resumed.path}",
        )  # fmt: skip
    if not changed and progress.batch > order.steps:
        changed = [f"position {progress.batch}, yet {order.steps} steps an epoch"]
    if changed and progress.batch:
        progress.next_epoch()
    if changed and utils_dist.is_main_process():
        logger.warning(
            "the training data or the batch changed since the checkpoint (%s): epoch %d begins "
            "with its first sample",
            ", ".join(changed), progress.epoch + 1,
        )  # fmt: skip
    elif ranks != ranks_then and utils_dist.is_main_process():
        logger.warning(
            "%d ranks now, %d before: the same samples in the same order, but sums round "
            "differently",
            ranks,
            ranks_then,
        )

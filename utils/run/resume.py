"""Choose the checkpoint from which a run resumes, or find that it starts from the beginning.

`find_checkpoint` decides by the option path.resume and by the files in the folder of the run. If a
checkpoint does not fit the network, `restoring` turns the error into one that names the file.

What must stay: the table of `find_checkpoint`, so that a repeated command loses no step and
overwrites no run (test_which_checkpoint_wins).

Tests: tests/stories/test_checkpoint.py, tests/dist/test_resume.py.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils import utils_dist
from utils.errors import CheckpointError, OptionError
from utils.run.checkpoint import existing_versions, load_version, own_checkpoint
from utils.run.saved_state import TAKE_ANOTHER, refuse_wrong_types

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run resumes from. `find_checkpoint` sends these fields to all ranks."""

    path: Path  # the file of the checkpoint
    state: dict[str, Any]  # the content of the file, as `Experiment.save` wrote it
    is_named: bool = False  # whether the user has named this file (`--resume PATH`)
    # Whether the file could not be read, and `state` is the content of its former version.
    is_former: bool = False


def find_checkpoint(resume: str | None, folder: Path) -> Resumed | None:
    """Return the checkpoint that the run in `folder` resumes from, or None for a fresh start.

    Collective: all ranks must call it, because rank 0 sends its answer to the others.

    resume: the option path.resume. It is None (null in the file), "auto", or the path of a file or
        folder.

        path.resume            the folder has a checkpoint_latest  the folder has none
        null                   refused                             fresh start (1)
        "auto"                 checkpoint_latest                   fresh start (1)
        a file of another run  checkpoint_latest (2)               the named file (2)
        a file of this run     the file with more steps (3)        the named file

    (1) If the folder holds a checkpoint_best, or weights models/<step>_G.pth, a fresh start is
        refused, because it would overwrite these files and the history of the run.
    (2) The first start uses the named file, and later starts go on from checkpoint_latest of this
        run. So the user can repeat the same command after an interruption.
    (3) If checkpoint_latest cannot be read, the named file is used.

    A path to a folder means the checkpoint_latest in this folder.

    The table must stay, so that a repeated command loses no step and overwrites no run. Its cases
    are in test_which_checkpoint_wins.

    Raises OptionError if the run is refused. Raises CheckpointError if the file is missing or
    damaged, or if it is not a checkpoint.
    """
    # Only rank 0 reads the folder, because other hosts may not have the folder. Rank 0 sends the
    # fields as a dict, because a message between ranks holds plain types only. The other ranks give
    # None to `state_from_rank_0`, and get what rank 0 has given.
    values_on_rank_0 = None
    if utils_dist.is_main_process():
        # An error on rank 0 ends the whole run, because the caller runs this within
        # `utils_dist.all_ranks_or_none`.
        checkpoint = _find(resume, folder)
        if checkpoint is not None:
            values_on_rank_0 = vars(checkpoint)  # name of field -> value
    values = utils_dist.state_from_rank_0(values_on_rank_0)
    if values is None:
        return None
    return Resumed(**values)


def _find(resume: str | None, folder: Path) -> Resumed | None:
    """Do the work of `find_checkpoint` on rank 0."""
    latest = own_checkpoint(folder, "latest")
    # Whether this run has a checkpoint_latest, or a former version of it. Former versions are kept
    # beside the file as checkpoint_latest_previous.pth, ..., because the file may be damaged.
    has_own = bool(existing_versions(latest))
    # The option is null. A fresh start must not overwrite a run.
    if resume is None and has_own:
        raise OptionError(
            what="path.resume is null, yet the folder holds a run",
            where=str(latest),
            expected="an empty folder for a run from zero",
            do="give --resume auto to resume it; for a new run set another task name or move the "
            "folder away",
        )
    # The option is a path.
    if resume is not None and resume != "auto":
        named = _named_file(Path(resume))
        return _find_named(named, latest, has_own)
    # The option is "auto".
    if has_own:
        return _read(latest)
    # The option is "auto" or null, and there is no checkpoint_latest, so this is a fresh start.
    _refuse_if_only_best_is_left(folder, latest)
    _refuse_if_only_weights_are_left(folder, latest)
    return None


def _find_named(named: Path, latest: Path, has_own: bool) -> Resumed:
    """Return the checkpoint to resume from if the user has named a file.

    The last two rows of the table of `find_checkpoint` say which file is used.

    named: the file that the user has named. It may not exist.
    latest: path of this run's checkpoint_latest. It may not exist.
    has_own: whether this run has a checkpoint_latest, or a former version of it.
    """
    is_of_this_run = named.parent.resolve() == latest.parent.resolve()
    if has_own and not is_of_this_run:
        own = _read(latest)
        _warn_not_used(named, own.state)
        return own

    # `existing_versions` finds a file X.pth and its former versions beside it, X_previous.pth, ...
    if not existing_versions(named):
        raise CheckpointError(
            what="no such checkpoint",
            where=str(named),
            expected="an existing file, auto, or null for a fresh start",
            do="correct it",
        )
    named_checkpoint = _read(named, is_named=True)
    if not has_own:
        return named_checkpoint  # there is no checkpoint_latest to compare with
    # Here the named file lies in the folder of checkpoint_latest, so it is a file of this run. The
    # first `if` has handled the files of other runs.
    if named.name == latest.name:
        return named_checkpoint  # the user has named checkpoint_latest itself

    # Use the file with more steps. If checkpoint_latest cannot be read, use the named file.
    try:
        own = _read(latest)
    except CheckpointError:
        return named_checkpoint
    if own.state["step"] <= named_checkpoint.state["step"]:
        return named_checkpoint
    _warn_not_used(named, own.state)
    return own


def _named_file(named: Path) -> Path:
    """Return the file that `--resume` names.

    `--resume` may name the folder of a run, or the folder `checkpoints` in it. Then the file is the
    latest checkpoint of the run.
    """
    if not named.is_dir():
        return named
    folder_of_run = named.parent if named.name == "checkpoints" else named
    return own_checkpoint(folder_of_run, "latest")  # checkpoints/checkpoint_latest.pth in it


def _warn_not_used(named: Path, state: dict[str, Any]) -> None:
    """Log that the checkpoint of this run is used, and not the file `named`.

    state: the content of the checkpoint of this run.
    """
    logger.warning(
        "%s is not used: this run has a checkpoint of its own at iter %d; to go back to that "
        "file, choose another task name",
        named,
        state["step"],
    )


def _refuse_if_only_best_is_left(folder: Path, latest: Path) -> None:
    """Raise OptionError if a folder without a checkpoint_latest has a checkpoint_best."""
    best = own_checkpoint(folder, "best")
    if not existing_versions(best):
        return
    raise OptionError(
        what=f"the folder holds a run, yet its {latest.name} is missing: only {best.name} is left",
        where=str(best),
        expected=f"{latest.name}, to go on where the run ended, or a folder without a run",
        do=f"give --resume {best} to go on from that file; for a new run set another task name",
    )


def _refuse_if_only_weights_are_left(folder: Path, latest: Path) -> None:
    """Raise OptionError if a folder without a checkpoint has weights models/<step>_G.pth.

    `Run.save` writes a checkpoint before it writes the weights. So a run that ended before its
    first save has no weights, and starts again. If there are weights, the folder did have a
    checkpoint, and somebody has removed it.
    """
    weights_by_step = {}  # {500: .../models/500_G.pth, ...}
    for path in (folder / "models").glob("*_G.pth"):
        step = path.name.removesuffix("_G.pth")
        if step.isdecimal():
            weights_by_step[int(step)] = path
    if not weights_by_step:
        return
    newest = weights_by_step[max(weights_by_step)]
    raise OptionError(
        what="the folder holds a run, yet its checkpoints are missing: only weights are left, and "
        "the run cannot go on from them",
        where=str(newest),
        expected=f"checkpoints/{latest.name}, to go on where the run ended, or a folder without a "
        "run",
        do="put the folder checkpoints back; for a new run from these weights set another task "
        f"name and path.pretrained_netG={newest}; for a run from zero set another task name, or "
        "move the folder away",
    )


def _read(path: Path, is_named: bool = False) -> Resumed:
    """Read the checkpoint in `path`, with its tensors on the CPU.

    If the file is damaged, `load_version` reads its former version instead. Raises CheckpointError
    if no version can be read, or if the file is not a checkpoint, e.g. if it holds only weights.
    """
    state, file = load_version(path)
    # Checkpoints of all versions have these keys. A key that a later version added must not stand
    # here, because older checkpoints lack it.
    required_keys = {"model_state_dict", "optimizer", "step", "epoch", "batch", "options"}
    if isinstance(state, dict) and required_keys.issubset(state):
        refuse_wrong_types(state, path)
        return Resumed(path, state, is_named=is_named, is_former=file != path)
    raise CheckpointError(
        what="the file is no checkpoint to resume from: it holds no optimizer state and no "
        "position",
        where=str(path),
        expected="a file checkpoints/checkpoint_*.pth of a run",
        do=f"give such a file; to start a new run from these weights: path.pretrained_netG={path}",
    )


@contextmanager
def restoring(resumed: Resumed | None) -> Generator[None]:
    """Turn an error within the block into a CheckpointError that names the file.

    The block restores a checkpoint: it gives weights, moments and averages to network and
    optimizer. If a value does not fit, network and optimizer raise errors of many types, and these
    errors do not name the file.

    resumed: the checkpoint, or None for a fresh start. The errors of a fresh start are not changed,
        because no file is their cause.
    """
    try:
        yield
    except CheckpointError as e:
        if resumed is not None and str(resumed.path) not in e.where:
            e.where = f"{e.where}, {resumed.path}"
        raise
    # RuntimeError is not in this list, because torch also raises it if the memory of a GPU is full.
    # If weights or moments do not fit, `load_weights` (models/loading.py) and `load_moments`
    # (models/optim.py) raise CheckpointError themselves.
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        if resumed is None:
            raise
        raise CheckpointError(
            what=f"the checkpoint holds something that no run saves: {type(e).__name__}: {e}",
            where=str(resumed.path),
            expected="options, moments and averages of the same network",
            do=TAKE_ANOTHER,
        ) from e

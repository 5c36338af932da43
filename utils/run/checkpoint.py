"""Checkpoints of a run: how they are written and read, and where a run resumes.

The parts of this page, in the order of a run's life:

* `find_checkpoint` chooses the file that a run resumes from, if there is one.
* `restore_progress` checks that its position fits the options and the data of this start.
* `planned_steps` and `left_to_do` say how long the run is and what comes next.
* `save` and `load` write and read one file.

The files in the folder `checkpoints` of a run:

    checkpoint_latest.pth            the newest state
    checkpoint_latest.pth.sha256     its sidecar: 64 hexadecimal digits, the SHA-256 of the file
    checkpoint_latest_previous.pth   the state before, with its own sidecar
    checkpoint_latest_previous2.pth  the state before that one, if train.keep_checkpoints is above 1
    checkpoint_best.pth              the state with the best PSNR, with the same companions

Each file is written under a temporary name, e.g. `.checkpoint_latest.pth.<random>.tmp`, and then
renamed, because a rename is atomic. So if the process dies, `checkpoint_latest.pth` is always a
complete file. Only its sidecar is missing if the process dies between the renames of the two.

The option file takes precedence over the options in the checkpoint. The log lists every option that
differs. A checkpoint provides weights, their moving averages, the moments of the optimizer, the
loss scale, the count of skipped steps and the position in the data.

What must stay:

    names of files and keys, because runs of earlier versions are resumed. A new key has a default
    for files without it
        test_which_checkpoint_wins, and test_resume.py
    the order of the renames in `save`, so that a kill leaves the old or the new file
        test_a_kill_while_saving_leaves_a_readable_file
    a file is read as data only, never as a pickle that runs code (`load_plain`)
        test_code_in_a_file_does_not_run

Free to change: the texts of warnings and errors that no test quotes, and what is compared between
the options of two starts (the constants below).

Tests: tests/stories/test_checkpoint.py, tests/faults/test_interruptions.py,
tests/dist/test_changed_resume.py.
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
from collections.abc import Generator, Iterable
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
from utils.run.saved_state import TAKE_ANOTHER, refuse_wrong_types
from utils.run.torch_file import RefusedFile, load_plain

logger = logging.getLogger(__name__)

# Options that say where and how a run is started, not what is trained. So a difference in them is
# not reported.
UNCOMPARED_OPTIONS = ("opt_path", "task", "path")

# Beginnings of the options that the PSNR of a validation depends on. If one of them has changed
# between two starts, the best PSNR so far is forgotten, because a new PSNR cannot be compared with
# it.
PSNR_OPTIONS = ("datasets.test.", "val.", "metric.")
# Exceptions among PSNR_OPTIONS: beginnings of options without an effect on the PSNR. Add a new
# option here if it changes only speed or output. Otherwise its change would forget the best PSNR.
EXCEPT_PSNR_OPTIONS = (
    "val.save_img",
    "val.batch_tiles",
    "metric.more",  # metrics of the user's own, which are computed beside the PSNR
    "datasets.test.dataloader_",
    "datasets.test.cache_data",
)

# The advice of the errors about a full disk.
MAKE_ROOM = "free some space or quota, or set path.root to another disk, then resume"

# The errors of torch.load for a damaged file, or a file that is no checkpoint. torch.load has no
# error class of its own for this, so such a file can raise any of these. `load` then reads a former
# version. An error that is missing here would end the run, although a former version may be good.
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

# The names that `_temporary_name` gives, e.g. ".netG.pth.sha256.<32 digits>.tmp". The temporary
# names of earlier versions have a process id in place of the 32 digits.
TEMPORARY = re.compile(r"\..+\.pth(\.sha256)?\.([0-9a-f]{32}|\d{1,10})\.tmp")


# ---- Where a run stands ----------------------------------------------------------------------


@dataclass
class Progress:
    """Where a run stands: optimizer steps done, and the position of the next step in the data.

    A checkpoint holds each of these fields by its name. A new field needs a default, which is the
    value for a checkpoint of an earlier version. A field must not be renamed.
    """

    step: int = 0  # number of optimizer steps done
    epoch: int = 0  # number of epochs done
    # Number of steps done in the current epoch. Steps are counted from 0, so it is also the number
    # of the next step.
    batch: int = 0
    best_psnr: float | None = None  # in dB; None before the first validation
    best_step: int = 0  # step of best_psnr
    scored_on: str | None = None  # digest of the test clips of best_psnr; None if it is not known
    validated: int = 0  # step of the last complete validation
    validation_stops: int = 0  # how often a signal ended the validation of this step
    saved: int = -1  # step of the run's newest checkpoint_latest; -1 if it has none
    wandb_id: str | None = None  # id of the run at W&B

    def advance(self) -> None:
        """Count one more step. No signal has stopped a validation of the new step, so count 0."""
        self.step += 1
        self.batch += 1
        self.validation_stops = 0

    def next_epoch(self) -> None:
        """Move to the first batch of the next epoch."""
        self.epoch += 1
        self.batch = 0


@dataclass(frozen=True)
class DataOrder:
    """The order of the training samples: it decides which samples a position in the data means.

    Two starts with equal orders train on the same samples at the same position. A checkpoint holds
    these fields by their names.
    """

    samples: int  # number of samples in an epoch
    sample_list: str  # digest of the names and sizes of clips and frames
    seed: int | None  # seed of the shuffling, or None if the samples are not shuffled
    steps: int  # number of steps in an epoch, at the batch size of the run


def planned_steps(train: TrainOptions, steps_per_epoch: int, progress: Progress) -> int:
    """Return the optimizer steps of the whole run: `total_iter` or `epochs`, whichever ends first.

    E.g. 3 epochs of 100 steps and total_iter 250 give 250. The options have at least one of the
    two, so the result is finite. Test: test_the_planned_end.
    """
    total = math.inf if train.total_iter is None else train.total_iter
    if train.epochs is not None:
        # Count from the present position, because earlier epochs may have had another length.
        epochs_left = train.epochs - progress.epoch  # including the current epoch
        # `batch` steps of the current epoch are done.
        steps_left = epochs_left * steps_per_epoch - progress.batch
        total = min(total, progress.step + steps_left)
    return int(total)


def left_to_do(
    progress: Progress, total_iter: int, test_every: int
) -> Literal["validation", "steps", "nothing"]:
    """Return what comes next in a run. "nothing" means that the run is finished.

    Only this function decides it, so that training and resuming agree. A run is finished if its
    last step is done and validated. Each rule below has a case in test_when_a_run_is_finished.

    total_iter: number of steps of the run.
    test_every: number of steps between two validations, or 0 if there is no test split. The last
        step has a validation in any case.
    """
    is_last = progress.step >= total_iter
    if not test_every:
        is_due = False
    else:
        is_due = is_last or progress.step % test_every == 0

    # `validated` is the step of the last validation, and 0 before the first one. So step 0 counts
    # as validated, and a run does not begin with a validation.
    is_done = progress.validated == progress.step
    # Leave out a validation that a signal has stopped twice. A cluster may end each job before a
    # long validation is done. Without this rule, the run would repeat the validation for ever.
    is_left_out = progress.validation_stops >= 2
    if is_due and not is_done and not is_left_out:
        return "validation"
    return "nothing" if is_last else "steps"


# ---- Which file a run resumes from -----------------------------------------------------------


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run resumes from. `find_checkpoint` sends these fields to all ranks."""

    path: Path  # the file
    state: dict[str, Any]  # the content of the file, as it was given to `save`
    is_named: bool = False  # whether the user has named this file (`--resume PATH`)


def own_checkpoint(folder: Path, name: str) -> Path:
    """Return the file of checkpoint `name` ("latest" or "best") in a run's folder."""
    return folder / "checkpoints" / f"checkpoint_{name}.pth"


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

    (1) It is refused if the folder holds a checkpoint_best, because a fresh start would overwrite
        this file.
    (2) So the user can repeat the same command after an interruption: the first start uses the
        named file, and later starts go on from their own checkpoint_latest.
    (3) If checkpoint_latest cannot be read, the named file is used.

    A path to a folder means the checkpoint_latest in this folder.

    The table must stay, so that a repeated command loses no step and overwrites no run. Its cases
    are in test_which_checkpoint_wins.

    Raises OptionError if the run is refused, and CheckpointError if a file is missing, damaged, or
    no checkpoint.
    """
    # Only rank 0 reads the folder, because other hosts may not have it. Rank 0 sends the fields as
    # a dict, because a message between ranks holds plain types only. The other ranks send None,
    # which is ignored.
    values_on_rank_0 = None
    if utils_dist.is_main_process():
        # An error on rank 0 ends the whole run, because the caller runs this within
        # `utils_dist.all_ranks_or_none`.
        checkpoint = _find(resume, folder)
        if checkpoint is not None:
            values_on_rank_0 = vars(checkpoint)  # name of field -> value
    values = utils_dist.state_from_rank_0(values_on_rank_0)
    return None if values is None else Resumed(**values)


def _find(resume: str | None, folder: Path) -> Resumed | None:
    """Do the work of `find_checkpoint` on rank 0."""
    latest = own_checkpoint(folder, "latest")
    # Whether this run has a checkpoint_latest, or a former version of it. Former versions are kept
    # beside the file as checkpoint_latest_previous.pth, ..., in case that the newest is damaged.
    has_own = bool(_existing_versions(latest))
    if resume is None and has_own:
        raise OptionError(
            what="path.resume is null, yet the folder holds a run",
            where=str(latest),
            expected="an empty folder for a run from zero",
            do="--resume auto resumes it; for a new run set another task name or move the folder "
            "away",
        )
    if resume is not None and resume != "auto":
        return _find_named(_named_file(Path(resume)), latest, has_own)
    if has_own:
        return Resumed(latest, _read_state(latest))
    _refuse_if_only_best_is_left(folder, latest)
    return None


def _find_named(named: Path, latest: Path, has_own: bool) -> Resumed:
    """Return the checkpoint to resume from if the user has named a file.

    The last two rows of the table of `find_checkpoint` say which file is used.

    named: the file that the user has named
    latest: where the checkpoint_latest of this run is, if it exists
    has_own: whether this run has a checkpoint_latest, or a former version of it
    """
    if has_own and named.parent.resolve() != latest.parent.resolve():  # a file of another run
        state = _read_state(latest)
        _warn_not_used(named, state)
        return Resumed(latest, state)

    if not _existing_versions(named):
        raise CheckpointError(
            what="no such checkpoint",
            where=str(named),
            expected="an existing file, auto, or null for a fresh start",
            do="correct it",
        )
    named_checkpoint = Resumed(named, _read_state(named), is_named=True)
    if not has_own:
        return named_checkpoint  # there is no checkpoint_latest to compare with
    if named.name == latest.name:
        return named_checkpoint  # the user has named checkpoint_latest itself

    # The named file and checkpoint_latest belong to the same run. Use the one with more steps. If
    # checkpoint_latest cannot be read, the named file remains.
    try:
        state = _read_state(latest)
    except CheckpointError:
        return named_checkpoint
    if state["step"] <= named_checkpoint.state["step"]:
        return named_checkpoint
    _warn_not_used(named, state)
    return Resumed(latest, state)


def _named_file(named: Path) -> Path:
    """Return the file that `--resume` names.

    `--resume` may name the folder of a run, or the folder `checkpoints` in it. Then the file is the
    latest checkpoint of the run.
    """
    if not named.is_dir():
        return named
    folder_of_run = named.parent if named.name == "checkpoints" else named
    return own_checkpoint(folder_of_run, "latest")


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
    """Raise OptionError if the folder, which has no checkpoint_latest, has a checkpoint_best."""
    best = own_checkpoint(folder, "best")
    if not _existing_versions(best):
        return
    raise OptionError(
        what=f"the folder holds a run, yet its {latest.name} is missing: only {best.name} is left",
        where=str(best),
        expected=f"{latest.name}, to go on where the run ended, or a folder without a run",
        do=f"--resume {best} goes on from that file; for a new run set another task name",
    )


def _read_state(path: Path) -> dict[str, Any]:
    """Return the content of the checkpoint in `path`.

    Raises CheckpointError if the file holds weights alone, or something else.
    """
    state = load(path)
    # Checkpoints of all versions have these keys. A key that came later must not be asked for.
    required_keys = {"model_state_dict", "optimizer", "step", "epoch", "batch", "options"}
    if isinstance(state, dict) and required_keys.issubset(state):
        refuse_wrong_types(state, path)
        return state
    raise CheckpointError(
        what="not a checkpoint to resume from: it holds no optimizer state and no position",
        where=str(path),
        expected="a file checkpoints/checkpoint_*.pth of a run",
        do=f"give such a file; to start a new run from these weights: path.pretrained_netG={path}",
    )


@contextmanager
def restoring(resumed: Resumed | None) -> Generator[None]:
    """Turn errors of the block, in which a checkpoint is restored, into a CheckpointError.

    The block gives the weights, moments and averages of the checkpoint to network and optimizer,
    which raise many kinds of errors for a value that does not fit.

    resumed: the checkpoint, or None for a fresh start. The errors of a fresh start are not changed,
        because no file is their cause.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        if resumed is None:
            raise
        raise CheckpointError(
            what=f"the checkpoint holds something that no run saves: {type(e).__name__}: {e}",
            where=str(resumed.path),
            expected="options, moments and averages of the same network",
            do=TAKE_ANOTHER,
        ) from e


# ---- Whether the position fits options and data ----------------------------------------------


def restore_progress(
    resumed: Resumed,
    folder: Path,
    options: dict[str, Any],
    train: TrainOptions,
    order: DataOrder,
    scored_on: str | None = None,
) -> Progress:
    """Return the position in the checkpoint, as a position in the data of this start.

    resumed: the checkpoint.
    folder: the folder of the run.
    options: all options of this start, plain and without secrets. Options that differ from the
        options in the checkpoint are logged.
    train: the section `train` of the options.
    order: the order of this start's training data.
    scored_on: digest of this start's test clips, or None if it has none.

    Raises OptionError or DataError if the run cannot continue from here.
    """
    state = resumed.state
    progress = _progress_in(state)

    # A checkpoint of the last step of an epoch was saved before `next_epoch` was called. Call it
    # here, because no step is left in that epoch. Here and below, `..._then` is a value of the
    # checkpoint, because an epoch may have had another number of steps then. An early version did
    # not save the number of steps. For its checkpoints, take the present number.
    order_then = _order_in(state)
    steps_per_epoch_then = order.steps if order_then is None else order_then.steps
    if progress.batch == steps_per_epoch_then:
        progress.next_epoch()

    # The options of this start count, and not the options in the checkpoint. Log what differs.
    changes = differences(state["options"], options)
    if changes and utils_dist.is_main_process():
        _log_changed_options(changes)

    # The steps below change `progress` in place.
    own_folder = own_checkpoint(folder, "latest").parent
    is_own = resumed.path.parent.resolve() == own_folder.resolve()
    if is_own:
        progress.saved = progress.step
    else:
        _forget_files_of_other_run(progress)
    # W&B knows a run by its task and not by its folder. If somebody has copied the folder and given
    # the copy another task, the copy is another run for W&B.
    if state["options"].get("task") != options.get("task"):
        progress.wandb_id = None
    _forget_incomparable_best(progress, folder, _options_of_psnr(changes), scored_on)

    # A finished run reads no more samples, so its data may have changed.
    if progress.step < planned_steps(train, steps_per_epoch_then, progress):
        _fit_position_to_data(progress, order_then, order, resumed, options)
    return progress


def _progress_in(state: dict[str, Any]) -> Progress:
    """Return the position in a checkpoint.

    A field that an earlier version did not save gets its default.
    """
    values = {}
    for field in fields(Progress):
        values[field.name] = state.get(field.name, field.default)
    return Progress(**values)


def _forget_files_of_other_run(progress: Progress) -> None:
    """Forget the files and validations that `progress` records. Changes `progress`.

    The checkpoint comes from another run, and this run has none of its files and validations.
    """
    progress.saved = -1  # this run has no checkpoint_latest yet
    progress.wandb_id = None
    progress.validated = 0
    progress.validation_stops = 0


def _options_of_psnr(keys: Iterable[str]) -> list[str]:
    """Return the dotted keys among `keys` that the PSNR of a validation depends on.

    A new PSNR may be compared with the best PSNR so far only if none of these keys has changed.
    E.g. of ["metric.mean", "val.save_img", "train.epochs"] only "metric.mean" is returned.
    """
    psnr_keys = []
    for key in keys:
        if key.startswith(PSNR_OPTIONS) and not key.startswith(EXCEPT_PSNR_OPTIONS):
            psnr_keys.append(key)
    return psnr_keys


def _order_in(state: dict[str, Any]) -> DataOrder | None:
    """Return the order of the data that a checkpoint was written with.

    Returns None if the checkpoint comes from an earlier version, which did not save the order. A
    checkpoint of a later version may hold further fields, which are ignored.
    """
    if not state.get("order"):
        return None
    values = {}
    for field in fields(DataOrder):
        values[field.name] = state["order"][field.name]
    return DataOrder(**values)


def _log_changed_options(changes: dict[str, tuple[Any, Any]]) -> None:
    """Log one line for each changed option, e.g. "  train.G_optimizer_lr: 0.0004 -> 0.0002".

    changes: dotted key -> (value in the checkpoint, value now).
    """
    lines = []
    for key, (then, now) in changes.items():
        lines.append(f"  {key}: {_short_json(then)} -> {_short_json(now)}")
    logger.warning(
        "these options differ from the checkpoint; their values of this start are used:\n%s",
        "\n".join(lines),
    )


def _short_json(value: Any) -> str:
    """Return an option in JSON, with at most 80 characters, the length of a line of a terminal."""
    text = json.dumps(value)  # some options are long lists
    return text if len(text) <= 80 else f"{text[:77]}..."


def differences(
    then: dict[str, Any], now: dict[str, Any], where: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return the options that differ: dotted key -> (value then, value now).

    A key that only one side has is left out.

    where: text in front of each key, e.g. "train." if then and now are sections `train`.
    """
    changed_options = {}
    for key in sorted(then.keys() & now.keys()):  # the keys that are in `then` and in `now`
        name = f"{where}{key}"
        value_then = then[key]
        value_now = now[key]
        if name in UNCOMPARED_OPTIONS or value_then == value_now:
            continue
        if isinstance(value_then, dict) and isinstance(value_now, dict):
            changed_options |= differences(value_then, value_now, f"{name}.")
        else:
            changed_options[name] = (value_then, value_now)
    return changed_options


def _forget_incomparable_best(
    progress: Progress, folder: Path, changed_psnr_options: list[str], scored_on: str | None
) -> None:
    """Forget the best PSNR if new PSNR values cannot be compared with it. Changes `progress`.

    The reason is logged. A start without a test split measures no PSNR. So its `scored_on` is None,
    and the test clips are not compared. Test: test_a_best_score_of_other_test_clips_does_not_count.

    changed_psnr_options: keys of changed options that the PSNR depends on.
    scored_on: digest of the test clips of this start, or None without a test split.
    """
    if progress.best_psnr is None:
        return
    if changed_psnr_options:
        reason = f"{', '.join(changed_psnr_options)} changed"
    elif not _existing_versions(own_checkpoint(folder, "best")):
        reason = "this run's folder holds no checkpoint_best.pth"
    elif scored_on and progress.scored_on and scored_on != progress.scored_on:
        reason = "it was measured on other test clips"
    else:
        return
    logger.info("the best PSNR so far, %.2f dB, does not count: %s", progress.best_psnr, reason)
    progress.best_psnr = None
    progress.best_step = 0
    progress.scored_on = None


def _fit_position_to_data(
    progress: Progress,
    order_then: DataOrder | None,
    order: DataOrder,
    resumed: Resumed,
    options: dict[str, Any],
) -> None:
    """Move `progress` to the next epoch if its position means other samples than before.

    E.g. batch 100 of an epoch means other samples if the clips are shuffled by another seed. What
    has changed since the checkpoint, and what the run does:

        nothing                             goes on with the next sample
        the seed or the number of samples   goes on with the next epoch
        the number of samples per step      OptionError
        the clips, frames or spikes         DataError

    The number of ranks may change: e.g. 4 ranks with 2 samples each and 2 ranks with 4 samples each
    have the same number of samples per step.

    order_then: the order that the checkpoint was written with, or None if it is not known.
    order: the order of this start.

    The two errors are needed, because a queue may start a run again after a host or a disk was
    lost. The run must not continue with half of its GPUs or half of its clips. But if the user has
    named the checkpoint (--resume FILE), the change is intended: the run goes on with the next
    epoch, and the change is only logged. tests/dist/test_changed_resume.py tries each case.
    """
    ranks = utils_dist.get_world_size()
    ranks_then = resumed.state["world_size"]
    per_step = _samples_per_step(ranks, options)
    per_step_then = _samples_per_step(ranks_then, resumed.state["options"])

    # What has changed, in words, e.g. ["samples a step 8 -> 4"].
    changes = []
    if per_step_then != per_step:
        changes.append(f"samples a step {per_step_then} -> {per_step}")
    is_other_data = False
    if order_then is not None:
        changes += _changes_of_order(order_then, order)
        is_other_data = order_then.sample_list != order.sample_list
    is_intended = resumed.is_named
    if (is_other_data or per_step != per_step_then) and not is_intended:
        raise _other_data_or_batch(is_other_data, changes, per_step_then, resumed.path)

    # The number of steps in an epoch follows from the number of samples and the samples per step.
    # If neither has changed, a position behind the end of the epoch is impossible, so somebody has
    # changed the file.
    if not changes and progress.batch > order.steps:
        changes = [f"position {progress.batch}, yet {order.steps} steps an epoch"]
    # A position at the start of an epoch can stay: no sample of the epoch has been used.
    if changes and progress.batch:
        progress.next_epoch()

    if utils_dist.is_main_process():
        _warn_of_changes(changes, progress.epoch, ranks, ranks_then)


def _warn_of_changes(changes: list[str], epoch: int, ranks: int, ranks_then: int) -> None:
    """Warn if the data, the batch or the number of ranks changed since the checkpoint.

    changes: what has changed, e.g. ["samples a step 8 -> 4"]
    epoch: number of the epoch that begins, from 0
    """
    if changes:
        logger.warning(
            "the training data or the batch changed since the checkpoint (%s): epoch %d begins "
            "with its first sample",
            ", ".join(changes),
            epoch + 1,
        )
    elif ranks != ranks_then:
        logger.warning(
            "%d ranks now, %d before: the same samples in the same order, but sums round "
            "differently",
            ranks,
            ranks_then,
        )


def _changes_of_order(order_then: DataOrder, order: DataOrder) -> list[str]:
    """Return in words how two orders of the data differ, e.g. ["samples an epoch 90 -> 80"]."""
    changes = []
    if order_then.samples != order.samples:
        changes.append(f"samples an epoch {order_then.samples} -> {order.samples}")
    if order_then.seed != order.seed:
        changes.append(f"seed of the order {order_then.seed} -> {order.seed}")
    if order_then.sample_list != order.sample_list:
        changes.append("other clips, frames or spikes")
    return changes


def _samples_per_step(ranks: int, options: dict[str, Any]) -> int:
    """Return the number of samples of one optimizer step, over all ranks."""
    batch_size = options["datasets"]["train"]["dataloader_batch_size"]
    return ranks * batch_size * options["train"]["accumulation_steps"]


def _other_data_or_batch(
    is_other_data: bool, changes: list[str], per_step_then: int, path: Path
) -> DataError | OptionError:
    """Return the error of a run that would continue with other data or another batch.

    is_other_data: whether the samples differ. If not, the number of samples per step differs.
    changes: what has changed, e.g. ["samples a step 8 -> 4"].
    per_step_then: number of samples per step of the checkpoint.
    path: the file of the checkpoint.

    The message gives two ways out. Either the user restores the old data and the old batch. Or the
    run continues with the data and batch of now, from a new epoch: --resume with the file.
    """
    error_class = DataError if is_other_data else OptionError
    return error_class(
        what=f"the training data or the batch differ from the checkpoint: {', '.join(changes)}",
        where=str(path),
        expected="the same clips, frames, sizes, dataset.json and calibration, and "
        f"{per_step_then} samples a step, as before",
        do="bring the files back, and choose ranks x datasets.train.dataloader_batch_size x "
        f"train.accumulation_steps = {per_step_then}; or, to continue with the present ones from a "
        f"new epoch: --resume {path}",
    )


# ---- Writing a file --------------------------------------------------------------------------


def save(state: dict[str, Any], path: Path, keep: int | None = 1) -> None:
    """Write `state` to `path` atomically. Returns when file, sidecar and folder are on the disk.

    The sidecar is the small file with the digest of the checkpoint, e.g.
    checkpoint_latest.pth.sha256.

    keep: number of former versions to keep, e.g. 1: the file that was the newest so far becomes
        X_previous.pth.
        0: the new file replaces the newest file, and the former versions stay as they are. This is
            used to add the result of a validation to a state that was saved before the validation.
        None: like 0, but without a sidecar. This is used for bare weights, because no run resumes
            from them.

    Raises CheckpointError, and leaves the former file as it was, if
    * `state` holds anything but plain types and tensors: it could not be loaded with
      ``weights_only=True``,
    * the disk is too full, or
    * writing fails.
    """
    # The file is a little larger than its tensors, because it also holds names and shapes. A fifth
    # more is ample: with much less a save could fill the disk and fail, and with much more a save
    # that fits would be refused. `_plain_bytes` also refuses types that could not be loaded again.
    need_mb = 1.2 * _plain_bytes(state) / 2**20
    new_file = _temporary_name(path)
    new_sidecar = _temporary_name(_sidecar_of(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_full_disk(path, need_mb)
        _remove_temporary_files(path)

        # Write the file. Mode "x" creates a new file. It raises an error if there is a file of this
        # name, or a link that somebody has put there.
        with open(new_file, "xb") as file:
            torch.save(state, file)
        _wait_for_disk(new_file)
        if keep is None:
            os.replace(new_file, path)
            return
        with open(new_sidecar, "x", encoding="ascii") as file:
            file.write(f"{sha256_of(new_file)}\n")
        _wait_for_disk(new_sidecar)

        # Give the file at `path`, the newest so far, the name of a former version, too. It keeps
        # the name `path` until the new file takes this name. So there is a file `path` at any time,
        # even if the process dies. But a damaged file (its digest is not the digest in its sidecar)
        # must not become a former version, because it would push out a good one
        # (test_a_save_after_a_file_that_cannot_be_read_keeps_the_version_that_can).
        if keep and path.exists() and _fault(path) is None:
            _rename_versions(path, keep)

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
        # If the folder cannot be written, this fails as well. The error above names the folder.
        with suppress(OSError):
            _remove_temporary_files(path)


def _put_in_place(new_file: Path, new_sidecar: Path, path: Path) -> None:
    """Give a new file the name `path`, and its sidecar the name of the sidecar of `path`.

    The process may die after any line, so the order of the lines must stay. A reader then finds:

        at first                         the old file and its sidecar
        after `unlink`                   the old file, without a sidecar
        after `replace` of the file      the new file, without a sidecar
        after `replace` of the sidecar   the new file and its sidecar

    A file without a sidecar is read without a check. In another order, a reader could compare a
    good file with the digest of the other one, and refuse it.

    test_a_kill_while_saving_leaves_a_readable_file kills eight saves at random moments, so it may
    miss a wrong order. `make faults` kills 200.
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

    value: a state, or a part of it. where: the place of the part, e.g. "state['optimizer'][0]".

    Raises CheckpointError for a type that torch.load refuses with ``weights_only=True``.
    """
    if isinstance(value, torch.Tensor):
        return value.nbytes
    byte_count = 0
    if isinstance(value, dict):
        for key in value:
            byte_count += _plain_bytes(key, f"{where} (a key)")  # a key may be of a refused type
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


def _rename_versions(path: Path, keep: int) -> None:
    """Rename each version: `X.pth` -> `X_previous.pth` -> `X_previous2.pth` -> ...

    The oldest version is overwritten. `X.pth` keeps its name as well, until the new file replaces
    it, so that there is a file `X.pth` at any time.

    keep: number of former versions that stay. E.g. 2: X_previous -> X_previous2, and then X ->
        X_previous. The X_previous2 from before is lost.
    """
    # The names from the newest version to the oldest, e.g. for keep 2: X, X_previous, X_previous2.
    versions = [path, path.with_name(f"{path.stem}_previous{path.suffix}")]
    for number in range(2, keep + 1):
        versions.append(path.with_name(f"{path.stem}_previous{number}{path.suffix}"))
    # Rename the oldest version first, so that no version is overwritten before it has a new name.
    # E.g. keep 2: first number 2 (from versions[1] to versions[2]), then number 1. Test:
    # test_as_many_former_versions_as_asked_for_are_used_in_turn.
    for number in range(keep, 0, -1):
        newer = versions[number - 1]
        older = versions[number]
        if newer.exists():
            _link(_sidecar_of(newer), _sidecar_of(older))
            _link(newer, older)


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


def _remove_temporary_files(path: Path) -> None:
    """Remove the temporary files of saves that failed or were killed, before they fill the disk.

    Only files of this user with a name of the form TEMPORARY are removed.
    """
    for candidate in path.parent.glob(f".{path.stem}*.tmp"):
        if TEMPORARY.fullmatch(candidate.name) and candidate.lstat().st_uid == os.geteuid():
            candidate.unlink(missing_ok=True)


# ---- Reading a file --------------------------------------------------------------------------


def load(path: Path) -> dict[str, Any]:
    """Return the state in `path`, with its tensors on the CPU.

    If the file is damaged, the former version is read instead, with a warning
    (test_a_damaged_file_gives_way_to_the_previous_one). Only data is read from a file: `load_plain`
    refuses a file with code in it, and never runs the code (test_code_in_a_file_does_not_run).

    Raises CheckpointError, with the fault of each version, if none can be read.
    """
    faults = []
    if not os.path.lexists(path):
        faults.append(f"{path.name} does not exist")
    for candidate in _existing_versions(path):
        fault = _fault(candidate)
        if fault is None:
            try:
                state = load_plain(candidate)
                if candidate != path:
                    logger.warning("the former version is used instead: %s", candidate)
                return state
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


def _existing_versions(path: Path) -> list[Path]:
    """Return the file `path` and its former versions, as far as they exist, the newest first.

    A version in this list may be damaged: `load` finds out.
    """
    # Sorted by length and then by name: X_previous.pth, X_previous2.pth, ..., X_previous10.pth. By
    # name alone, X_previous10 would come before X_previous2.
    former = sorted(
        path.parent.glob(f"{path.stem}_previous*{path.suffix}"),
        key=lambda version: (len(version.name), version.name),
    )
    # lexists is also true for a link to a file that is gone. `load` then fails to read it, and
    # warns.
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

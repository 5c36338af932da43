"""Find where a resumed run goes on: the position in its checkpoint, fitted to options and data.

A run may be started several times, and each start resumes from a checkpoint of an earlier start.
Between two starts a user may change options, data or the number of ranks. So `restore_progress`
checks what it reads from the checkpoint:

    options         the options of this start are used; differences are logged
    best PSNR       forgotten if a new PSNR cannot be compared with it
    position        kept, moved to the next epoch, or refused: the table of `_fit_position_to_data`

In this module, a name that ends with `_then` is a value of the checkpoint.

What must stay: a run never continues on other samples without a warning.
tests/dist/test_changed_resume.py tries each change. Free to change: the texts of warnings that no
test quotes.

Tests: tests/dist/test_changed_resume.py, tests/stories/test_checkpoint.py.
"""

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from utils import utils_dist
from utils.errors import DataError, OptionError
from utils.options.train_options import TrainOptions
from utils.run.changed_options import differences, log_changed_options, options_of_psnr
from utils.run.checkpoint import existing_versions, own_checkpoint
from utils.run.position import DataOrder, Progress, planned_steps
from utils.run.resume import Resumed
from utils.secrets import redact

logger = logging.getLogger(__name__)


def restore_progress(
    resumed: Resumed,
    folder: Path,
    options: dict[str, Any],
    train: TrainOptions,
    order: DataOrder,
    scored_on: str | None = None,
) -> Progress:
    """Return where the run continues: the position in the checkpoint, fitted to the present data.

    A start is one launch of the run, and "this start" is the present one.

    resumed: the checkpoint.
    folder: the folder of the run.
    options: all options of this start, as a dict without secrets. Options that differ from the
        options in the checkpoint are logged.
    train: the section `train` of the options.
    order: the order of this start's training data.
    scored_on: digest of this start's test clips, or None if it has none.

    Raises OptionError or DataError if the run cannot continue from here.
    """
    state = resumed.state
    progress = _progress_in(state)

    # The order of the data when the checkpoint was written, and the steps per epoch. Checkpoints of
    # early versions do not have them. For such a checkpoint, take the present number of steps.
    order_then = _order_in(state)
    steps_per_epoch_then = order.steps if order_then is None else order_then.steps

    # If the checkpoint was saved after the last step of an epoch, no step is left in that epoch.
    # `next_epoch` was called only after the save, so call it here.
    if progress.batch == steps_per_epoch_then:
        progress.next_epoch()

    # The run uses the options of this start, and not the options in the checkpoint. Log what
    # differs. `options` has no secrets, but checkpoints of older versions may have some. `redact`
    # hides them, so that a hidden secret does not count as a changed option.
    changes = differences(redact(state["options"]), options)
    if changes and utils_dist.is_main_process():
        log_changed_options(changes)

    # The calls below change `progress` in place. If another run has written the checkpoint, forget
    # its files and validations.
    _forget_records_of_other_run(progress, resumed, folder, options)
    # The best PSNR does not count if, for example, it was measured on other test clips.
    # `options_of_psnr(changes)` gives the changed options on which a PSNR depends.
    _forget_incomparable_best(progress, folder, options_of_psnr(changes), scored_on)

    # A finished run reads no more samples, so changed data do not matter. To find out whether the
    # run is finished, use the number of steps per epoch in the checkpoint, and not the present
    # number. E.g. a run stopped in its last epoch after 90 of 100 steps, and an epoch has 80 steps
    # now. With 80, the unfinished run would look finished.
    planned_then = planned_steps(train, steps_per_epoch_then, progress)
    is_finished = progress.step >= planned_then
    if not is_finished:
        _fit_position_to_data(progress, order_then, order, resumed, options)
    return progress


def _progress_in(state: dict[str, Any]) -> Progress:
    """Return the position in a checkpoint.

    A field that an earlier version did not save gets its default.

    state: the content of the checkpoint.
    """
    values = {}
    for field in fields(Progress):
        values[field.name] = state.get(field.name, field.default)
    return Progress(**values)


def _order_in(state: dict[str, Any]) -> DataOrder | None:
    """Return the order of the data that a checkpoint was written with.

    Returns None if the checkpoint comes from an earlier version, which did not save the order. A
    checkpoint of a later version may hold additional fields, which are ignored.

    state: the content of the checkpoint.
    """
    if not state.get("order"):
        return None
    values = {}
    for field in fields(DataOrder):
        values[field.name] = state["order"][field.name]
    return DataOrder(**values)


def _forget_records_of_other_run(
    progress: Progress, resumed: Resumed, folder: Path, options: dict[str, Any]
) -> None:
    """Forget files, validations and W&B id in `progress` if they belong to another run.

    Changes `progress`. A checkpoint counts as a file of this run if it lies in the folder
    `checkpoints` of this run.

    resumed: the checkpoint.
    folder: the folder of this run.
    options: all options of this start, as a dict.
    """
    latest = own_checkpoint(folder, "latest")
    is_own = resumed.path.parent.resolve() == latest.parent.resolve()
    # `saved` is the step of the newest checkpoint_latest. It decides what the next save of the
    # present step does with this file (`Experiment.save`):
    #
    #     checkpoint that was read          `saved`            the next save of this step
    #     the newest checkpoint_latest      the present step   replaces checkpoint_latest
    #     any other file                    -1, no step        keeps it as a former version
    #
    # In the second case checkpoint_latest may be newer than the file that was read, e.g. if its
    # disk did not answer for a moment. So checkpoint_latest must not be lost.
    is_latest = is_own and resumed.path.name == latest.name and not resumed.is_former
    progress.saved = progress.step if is_latest else -1
    if not is_own:
        # This run has none of the files and validations of the other run.
        progress.wandb_id = None
        progress.validated = 0
        progress.validation_stops = 0
    # The id of the run at W&B belongs to the task, e.g. "deblur". If somebody copies the folder of
    # "deblur" and resumes the copy with the task "deblur2", the copy must get an id of its own.
    if resumed.state["options"].get("task") != options.get("task"):
        progress.wandb_id = None


def _forget_incomparable_best(
    progress: Progress, folder: Path, changed_psnr_options: list[str], scored_on: str | None
) -> None:
    """Forget the best PSNR if new PSNR values cannot be compared with it. Changes `progress`.

    The reason is logged. Test: test_a_best_score_of_other_test_clips_does_not_count.

    changed_psnr_options: keys of changed options that the PSNR depends on.
    scored_on: digest of the test clips of this start. None without a test split. This start then
        measures no PSNR, so the test clips are not compared.
    """
    if progress.best_psnr is None:
        return
    if changed_psnr_options:
        reason = f"{', '.join(changed_psnr_options)} changed"
    # The folder has neither checkpoints/checkpoint_best.pth nor a former version of this file.
    elif not existing_versions(own_checkpoint(folder, "best")):
        reason = "this run's folder holds no checkpoint_best.pth"
    # A digest is None if this start has no test clips, or if an early version saved the checkpoint.
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

    The last two cases are errors, because the change may be an accident: the queue of a cluster may
    start a run again after a host or a disk was lost. Then the run must not continue with half of
    its GPUs or half of its clips. But if the user has named the checkpoint (--resume FILE), the
    change is intended. Then the run goes on with the next epoch, and the change is only logged.
    tests/dist/test_changed_resume.py tries each case.

    order_then: the order that the checkpoint was written with, or None if it is not known.
    order: the order of this start.
    resumed: the checkpoint.
    options: all options of this start.
    """
    ranks = utils_dist.get_world_size()
    ranks_then = resumed.state.get("world_size", 1)  # missing in early versions
    per_step = _samples_per_step(ranks, options)
    per_step_then = _samples_per_step(ranks_then, resumed.state["options"])

    # What has changed, in words, e.g. ["samples a step 8 -> 4"].
    changes = []
    is_other_batch = per_step_then != per_step
    if is_other_batch:
        changes.append(f"samples a step {per_step_then} -> {per_step}")
    is_other_data = False
    if order_then is not None:
        changes += _changes_of_order(order_then, order)
        is_other_data = order_then.sample_list != order.sample_list
    is_intended = resumed.is_named
    if (is_other_data or is_other_batch) and not is_intended:
        global_batch_size = options["train"].get("global_batch_size")
        raise _other_data_or_batch(
            is_other_data, changes, per_step_then, resumed.path, global_batch_size
        )

    # No run saves a position beyond the end of an epoch. If the position is there although nothing
    # has changed, somebody has edited the checkpoint. Count this as a change, too.
    if not changes and progress.batch > order.steps:
        changes = [f"position {progress.batch}, yet {order.steps} steps an epoch"]
    # At the start of an epoch the position can stay, because no sample of the epoch has been used.
    if changes and progress.batch:
        progress.next_epoch()

    if utils_dist.is_main_process():
        _warn_of_changes(changes, progress.epoch, ranks, ranks_then)


def _warn_of_changes(changes: list[str], epoch: int, ranks: int, ranks_then: int) -> None:
    """Warn if the data, the batch or the number of ranks changed since the checkpoint.

    changes: what has changed, e.g. ["samples a step 8 -> 4"].
    epoch: number of the epoch that begins, from 0.
    ranks: number of ranks now.
    ranks_then: number of ranks of the start that wrote the checkpoint.
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
    """Return the number of samples of one optimizer step, over all ranks.

    options: all options of a start, as a dict.
    """
    batch_size = options["datasets"]["train"]["dataloader_batch_size"]
    return ranks * batch_size * options["train"]["accumulation_steps"]


def _other_data_or_batch(
    is_other_data: bool,
    changes: list[str],
    per_step_then: int,
    path: Path,
    global_batch_size: int | None,
) -> DataError | OptionError:
    """Return the error of a run that would continue with other data or another batch.

    The message proposes two things. Either the user restores the old data and the old batch. Or the
    user names the checkpoint with --resume: then the run continues with the present data and batch,
    from a new epoch.

    is_other_data: whether the samples differ. If not, the number of samples per step differs.
    changes: what has changed, e.g. ["samples a step 8 -> 4"].
    per_step_then: number of samples per step of the checkpoint.
    path: the file of the checkpoint.
    global_batch_size: the option of this start, or None. If it is set, the program computes
        accumulation_steps from it, so the user must not write accumulation_steps.
    """
    if global_batch_size is None:
        old_batch = (
            "choose ranks x datasets.train.dataloader_batch_size x train.accumulation_steps = "
            f"{per_step_then}"
        )
    else:
        old_batch = f"write train.global_batch_size={per_step_then}"
    error_class = DataError if is_other_data else OptionError
    return error_class(
        what=f"the training data or the batch differ from the checkpoint: {', '.join(changes)}",
        where=str(path),
        expected="the same clips, frames, sizes, dataset.json and calibration, and "
        f"{per_step_then} samples a step, as before",
        do=f"bring the files back, and {old_batch}; or, to continue with the present ones from a "
        f"new epoch: --resume {path}",
    )

"""Record how far a run is, in steps and in its data, and decide what comes next.

    Progress        optimizer steps done, and the position of the next step in the data
    DataOrder       the order of the training samples
    planned_steps   number of steps of the whole run
    left_to_do      what comes next: a validation, steps, or nothing

A position in the data is (epoch, batch): `epoch` epochs and `batch` steps of the next epoch are
done. The order of the samples decides which samples the next step takes.

What must stay: the names of the fields of both classes, because checkpoints hold them by name. A
new field of `Progress` needs a line in utils/run/saved_state.py.

Tests: test_the_planned_end_is_the_first_of_steps_and_epochs and test_when_a_run_is_finished
(tests/stories/test_checkpoint.py).
"""

import math
from dataclasses import dataclass
from typing import Literal

from utils.options.train_options import TrainOptions


@dataclass
class Progress:
    """How far a run is: optimizer steps done, and the position of the next step in the data.

    A checkpoint holds each of these fields by its name, so a field must not be renamed. A new field
    needs a default, because checkpoints of earlier versions lack the field.
    """

    step: int = 0  # number of optimizer steps done
    epoch: int = 0  # number of epochs done
    # Number of steps done in the current epoch. E.g. 100 means that the steps 0 to 99 of the epoch
    # are done, and that step 100 comes next.
    batch: int = 0
    best_psnr: float | None = None  # in dB; None before the first validation
    best_step: int = 0  # step of best_psnr
    scored_on: str | None = None  # digest of the test clips of best_psnr; None if it is not known
    validated: int = 0  # step of the last complete validation
    validation_stops: int = 0  # how many times a signal has ended the validation at `step`
    saved: int = -1  # step of the run's newest checkpoint_latest; -1 if it has none
    wandb_id: str | None = None  # id of the run at W&B

    @property
    def is_validation_left_out(self) -> bool:
        """Whether signals have ended the validation at `step` twice, so that it is left out.

        After the first time, the next start repeats the validation. But a cluster may end each job
        before a long validation is done. Then the run would repeat it forever.
        """
        return self.validation_stops >= 2

    def advance(self) -> None:
        """Count one more step. No signal has ended a validation at the new step yet."""
        self.step += 1
        self.batch += 1
        self.validation_stops = 0

    def next_epoch(self) -> None:
        """Move to the first batch of the next epoch."""
        self.epoch += 1
        self.batch = 0


@dataclass(frozen=True)
class DataOrder:
    """The order of the training samples.

    If two starts have equal orders, they train on the same samples at the same position (epoch,
    batch). A checkpoint holds these fields by their names.
    """

    samples: int  # number of samples in an epoch
    # Digest of `TrainClips.sample_names`: properties of clips, spike settings, names of samples.
    sample_list: str
    seed: int | None  # seed of the shuffling, or None if the samples are not shuffled
    steps: int  # number of steps in an epoch, at the batch size of the run


def planned_steps(train: TrainOptions, steps_per_epoch: int, progress: Progress) -> int:
    """Return the number of optimizer steps of the whole run.

    The options `total_iter` and `epochs` limit this number, and the smaller limit is used. E.g. 3
    epochs of 100 steps and total_iter 250 give 250. At least one of the two options is set, so the
    result is finite. Test: test_the_planned_end_is_the_first_of_steps_and_epochs.

    train: the section `train` of the options.
    steps_per_epoch: number of steps of an epoch of this start.
    progress: how far the run is.
    """
    total = math.inf if train.total_iter is None else train.total_iter
    if train.epochs is not None:
        # Earlier epochs may have had another number of steps. So count only the steps that are
        # left. E.g. train.epochs is 3, and 1 epoch of 100 steps and 40 steps of the next one are
        # done: 2 * 100 - 40 = 160 steps are left.
        epochs_left = train.epochs - progress.epoch  # the current epoch counts, too
        steps_left = epochs_left * steps_per_epoch - progress.batch
        total = min(total, progress.step + steps_left)
    return int(total)


def left_to_do(
    progress: Progress, total_iter: int, test_every: int
) -> Literal["validation", "steps", "nothing"]:
    """Return what comes next in a run. "nothing" means that the run is finished.

    A run is finished if its last step is done and validated. A run asks this function at its start
    and after each step, so a resumed run decides by the same rules. E.g. with total_iter 25 and
    test_every 10:

        step   validated (last validated step)   result
        0      0                                 "steps"
        10     0                                 "validation"
        10     10                                "steps"
        25     20                                "validation"
        25     25                                "nothing"

    A validation that signals have ended twice is left out. Each rule has a case in
    test_when_a_run_is_finished.

    total_iter: number of steps of the run.
    test_every: number of steps between two validations, or 0 if there is no test split. If there is
        one, the last step has a validation, too.
    """
    is_last = progress.step >= total_iter
    if not test_every:
        is_due = False
    else:
        is_due = is_last or progress.step % test_every == 0

    # `validated` is the step of the last validation, and 0 before the first one. So step 0 counts
    # as validated, and a run does not begin with a validation.
    is_done = progress.validated == progress.step
    if is_due and not is_done and not progress.is_validation_left_out:
        return "validation"
    return "nothing" if is_last else "steps"

"""Log the first lines of a run: a line for each rank, the head of the log, and the position.

The head is the table of `utils.run.overview`. `Run.opened` calls `log_start` on every rank.

What must stay: all ranks call `log_start`, because rank 0 gathers the lines of all ranks. The
status file shows the facts that `log_start` gives to `utils.dist.state.tell`, so these facts stay,
too. Free to change: the texts.

Tests: tests/stories/test_main_train.py
"""

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from utils import utils_dist
from utils.contract import ClipReader
from utils.dist import state, status
from utils.options.models import Options
from utils.options.train_options import TrainOptions
from utils.run.overview import overview
from utils.run.position import Progress, planned_steps
from utils.run.trained_model import TrainedModel

logger = logging.getLogger(__name__)


def log_start(
    opt: Options,
    model: TrainedModel,
    loader: Any,
    clips: Sequence[ClipReader] | None,
    total_iter: int,
    progress: Progress,
    origin: str,
) -> None:
    """Log a line for every rank, the head of the log, and the position of the start.

    Collective: every rank must call it.

    opt: all options.
    model: the network with its optimizer.
    loader: yields the training batches.
    clips: the clips to validate on. None if there is no test split.
    total_iter: number of steps of the whole run.
    progress: position where the run starts.
    origin: text for the log: "fresh start", or "resumed from" and the checkpoint's path.
    """
    # Warn if the batch size and the number of workers may be totals over all GPUs. They are totals
    # in option files of KAIR, the toolbox in which VRT was published, and this program reads such
    # files, too. Here they are numbers per GPU.
    note = opt.note_on_totals(utils_dist.get_world_size())
    if note and utils_dist.is_main_process():
        logger.warning("%s", note)
    _log_if_epochs_are_cut(opt.train, loader.steps_per_epoch, total_iter, progress)

    # The line of each rank names its first three samples, so that a user can see that the ranks
    # have different samples. The sampler yields pairs: (epoch, index of the sample).
    sampler = loader.sampler
    sampler.seek(progress.epoch, progress.batch)
    first_three = [index for _, index in itertools.islice(sampler, 3)]
    # The status file, and the line of the rank below, show these facts.
    state.tell(
        device=str(model.device),
        samples=loader.steps_per_epoch * sampler.samples_per_step,
        first=first_three,
        loss_is_finite=True,  # until the first step has a loss
        weights=model.weights_hash(),
        weights_step=progress.step,
    )
    ranks = utils_dist.gather_objects(status.status_line())
    logger.info("%s", "\n".join(ranks))
    test_clips = len(clips) if clips is not None else None
    lines = overview(opt, model, loader, test_clips, total_iter)
    for name, text in lines.items():
        logger.info("%-9s %s", f"{name}:", text)
    logger.info(
        "%s: starting at iter %d of %d, epoch %d, batch %d",
        origin,
        progress.step,
        total_iter,
        progress.epoch + 1,  # progress.epoch counts from 0, and the log from 1
        progress.batch,
    )


def _log_if_epochs_are_cut(
    train: TrainOptions, steps_per_epoch: int, total_iter: int, progress: Progress
) -> None:
    """Log if train.total_iter ends the run before all of train.epochs are done.

    train: the section `train` of the options.
    steps_per_epoch: number of steps of an epoch.
    total_iter: number of steps of the whole run.
    progress: position where the run starts.
    """
    if train.epochs is None:
        return
    # The number of steps that the run would have without train.total_iter.
    without_total_iter = train.model_copy(update={"total_iter": None})
    steps_by_epochs = planned_steps(without_total_iter, steps_per_epoch, progress)
    if total_iter < steps_by_epochs:
        logger.info(
            "train.total_iter = %d ends the run before train.epochs = %d; to let "
            "train.epochs decide, give --epochs or set total_iter to null",
            total_iter,
            train.epochs,
        )

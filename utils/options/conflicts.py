"""Raise OptionError for values of options that contradict one another, or the file system.

pydantic first checks each key of an option file separately. Then `Options` (models.py) calls these
functions one after the other. The first contradiction is raised. Contradictions between options and
network, or between options and data, are found later, when network and data are loaded.

To add a check: add a function here, and a line at the end of `Options._check_conflicts`.

What must stay: a check changes no value. Free to change: the texts of the errors that no test
quotes.

Tests: tests/parts/utils/test_option.py
"""

import os
import sys

from utils.errors import OptionError
from utils.options.loader_options import LoaderOptions
from utils.options.train_options import TrainOptions


def refuse_task(task: str) -> None:
    """Raise OptionError if `task` cannot be the name of the folder of a run."""
    try:
        # The folder ".preflight" holds results of data checks (`Options.checks_folder`). This
        # folder lies beside the folders of the runs, so no run may have the same name. A name has
        # at most 255 bytes on most file systems. A Chinese character has 3 bytes in UTF-8, so count
        # bytes.
        is_no_folder = task == ".preflight" or len(os.fsencode(task)) > 255
    except UnicodeEncodeError:  # the locale has no such character, e.g. an ASCII locale
        is_no_folder = True
    if is_no_folder:
        # The message shows 80 characters, so that it stays on one line.
        dots = "..." if len(task) > 80 else ""
        raise OptionError(
            what=f"task is {task[:80]}{dots}",
            where="task",
            expected="a folder name: at most 255 bytes in the locale's encoding, "
            f"{sys.getfilesystemencoding()}, and not .preflight, which holds the data checks",
            do="choose another name",
        )


def refuse_static_graph(
    use_static_graph: bool,
    find_unused_parameters: bool,
    accumulation_steps: int,
    global_batch_size: int | None = None,
) -> None:
    """Raise OptionError if use_static_graph is set with an option that DDP cannot combine with it.

    DDP is torch's DistributedDataParallel, which adds up the gradients of the ranks. With a static
    graph, DDP assumes that every later step uses the same parameters as the first step.

    global_batch_size: the option from which accumulation_steps was computed. None if
        accumulation_steps is the user's own value or its default.
    """
    if not use_static_graph:
        return
    if find_unused_parameters:
        raise OptionError(
            what="use_static_graph and find_unused_parameters are both true",
            where="find_unused_parameters",
            expected="one of them: a static graph already copes with unused parameters",
            do="set find_unused_parameters to false",
        )
    # With accumulation, a step has several backward passes. The last pass adds up the gradients of
    # the ranks. The earlier passes run within DDP's no_sync() (models/ddp.py). With a static graph,
    # no_sync() crashes, or silently leaves reductions out (pytorch issue #143580).
    if accumulation_steps > 1:
        origin = ""
        if global_batch_size is not None:
            origin = f" (because of train.global_batch_size {global_batch_size})"
        raise OptionError(
            what=f"train.accumulation_steps is {accumulation_steps}{origin} and use_static_graph "
            "is true",
            where="use_static_graph",
            expected="false with accumulation: DDP cannot skip the reduction of a static graph",
            do="set use_static_graph to false",
        )


def refuse_other_accumulation(
    train: TrainOptions, accumulation_steps: int, samples_per_batch: int
) -> None:
    """Raise OptionError if the user's accumulation_steps contradicts global_batch_size.

    accumulation_steps: the value that global_batch_size needs. The user may have written another
        value of this option.
    samples_per_batch: number of samples that all ranks together take at once.
    """
    # `model_fields_set` (of pydantic) has the keys that the user has written, not the defaults.
    is_written = "accumulation_steps" in train.model_fields_set
    if is_written and train.accumulation_steps != accumulation_steps:
        raise OptionError(
            what=f"train.accumulation_steps is {train.accumulation_steps}, but "
            f"train.global_batch_size {train.global_batch_size} needs {accumulation_steps}: all "
            f"ranks together take {samples_per_batch} at once",
            where="train.accumulation_steps",
            expected="one of the two options",
            do="leave train.accumulation_steps out, or write train.global_batch_size=null",
        )


def refuse_endless_run(train: TrainOptions) -> None:
    """Raise OptionError if total_iter and epochs are both null, because the run would not end."""
    if train.total_iter is None and train.epochs is None:
        raise OptionError(
            what="train.total_iter and train.epochs are both null",
            where="train.total_iter",
            expected="steps or epochs",
            do="set one of them",
        )


def refuse_slow_loader(loader: LoaderOptions | None, stall_s: float) -> None:
    """Raise OptionError if the watchdog would end the run before the loader gives up.

    The loader gives up after datasets.train.dataloader_timeout_s. If this key is null, nothing is
    checked, because data/loader.py gives up after 4/5 of stall_s (SHARE_OF_STALL).

    stall_s: seconds after which the watchdog ends the run.
    """
    timeout_s = loader.dataloader_timeout_s if loader else None
    if timeout_s is not None and timeout_s >= stall_s:
        raise OptionError(
            what=f"datasets.train.dataloader_timeout_s is {timeout_s:g}, "
            f"watchdog.stall_s {stall_s:g}",
            where="datasets.train.dataloader_timeout_s",
            expected="less than watchdog.stall_s: the loader can name the samples, the "
            "watchdog cannot",
            do="lower or remove it, or raise watchdog.stall_s",
        )


def refuse_milestones(train: TrainOptions) -> None:
    """Raise OptionError if MultiStepLR has no milestones, or milestones that do not rise."""
    # [10, 20] rises. [20, 10] and [10, 10] do not rise: sorting them, or removing repetitions,
    # changes them.
    steps = train.G_scheduler_milestones
    are_rising = len(steps) > 0 and steps == sorted(set(steps))
    if train.G_scheduler_type == "MultiStepLR" and not are_rising:
        raise OptionError(
            what=f"train.G_scheduler_milestones is {steps}",
            where="train.G_scheduler_milestones",
            expected="rising steps, at least one",
            do="correct them, or choose CosineAnnealingWarmRestarts",
        )


def refuse_other_scale(upscale: int, scale: int) -> None:
    """Raise OptionError if netG.upscale and the option `scale` are different factors."""
    if upscale != scale:
        raise OptionError(
            what=f"netG.upscale is {upscale}, scale is {scale}",
            where="netG.upscale",
            expected="the same number",
            do="correct one of them",
        )

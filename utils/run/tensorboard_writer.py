"""Write the numbers and pictures of a run for TensorBoard.

`Experiment.log_training` and `log_validation` (experiment.py) give the writer numbers with their
names, and the writer puts them into files that TensorBoard reads.

A run may be started several times, and each start writes a file of its own. TensorBoard merges
these files. A resumed run repeats the steps after its checkpoint, so the new file hides what an
earlier start wrote after the step of the checkpoint.

What must stay: each step is shown once, also if the clock of the host went back
(test_tensorboard_shows_each_step_once_after_a_second_start,
test_tensorboard_shows_the_newer_start_after_a_clock_that_went_back).

Tests: tests/dist/test_changed_resume.py.
"""

import json
import re
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from utils.files import OTHER_ROOT, writing
from utils.logger import best_effort
from utils.options.section import flatten_options

# The option sections that TensorBoard shows as hyperparameters, and the tags (names of scalars, as
# experiment.py writes them) that it shows next to them.
HYPERPARAMETER_SECTIONS = ("datasets", "netG", "train")
TAGS_BESIDE_HYPERPARAMETERS = ("val/psnr", "val/ssim", "train/loss")


class TensorBoardWriter:
    """Writes scalars and pictures for TensorBoard."""

    def __init__(
        self,
        folder: Path,
        step: int,
        options: dict[str, Any],
        repeated_scalars: Mapping[str, float] | None = None,
    ) -> None:
        """Open a new file, and hide what an earlier start wrote after `step`.

        A start is one launch of the program, and `step` is the step from which it resumes the run.
        The start repeats the later steps, so their old points must not be shown
        (test_tensorboard_shows_each_step_once_after_a_second_start).

        folder: where TensorBoard's files are, e.g. <run>/tb_logger.
        step: number of steps done when this start begins.
        options: all options, without secrets. They are shown as text, and some sections also as
            hyperparameters next to the newest scores.
        repeated_scalars: scalars to write at `step`. The old points of `step` are then hidden, too.
            If it is None, the old points of `step` stay, and nothing is written.
        """
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides the entries of earlier files from this step on (`purge_step` below).
        first_hidden_step = step + 1 if repeated_scalars is None else step
        # SummaryWriter starts a thread, which `_silence` needs. To find this thread, compare the
        # threads before and after.
        threads_before = set(threading.enumerate())
        with writing(folder, OTHER_ROOT):
            put_before_now(folder)  # so that TensorBoard reads the new file last
            self.writer = SummaryWriter(str(folder), purge_step=first_hidden_step)
        new_threads = set(threading.enumerate()) - threads_before
        _silence(new_threads)
        # The methods `image` and `close` of this writer are methods of SummaryWriter.
        self.image = partial(self.writer.add_image, dataformats="HWC")  # height, width, channels
        self.close = self.writer.close

        with best_effort(str(folder)):
            self._write_options(options, step)
            if repeated_scalars is not None:
                self.scalars(repeated_scalars, step)

    def _write_options(self, options: dict[str, Any], step: int) -> None:
        """Write all options as text, and some sections as hyperparameters beside the scores.

        step: number of steps done when this start begins.
        """
        from torch.utils.tensorboard import summary

        # TensorBoard shows text as Markdown, which leaves indented lines as they are.
        lines = json.dumps(options, indent=2).splitlines()
        text = "\n".join(f"    {line}" for line in lines)
        self.writer.add_text("options", text, step)
        # `SummaryWriter.add_hparams` would write the hyperparameters into a second run, so these
        # lines do its work in this run. TensorBoard takes the values of the metrics from the
        # scalars of this run.
        hyperparameters: dict[str, Any] = {}  # e.g. "train.G_optimizer_lr" -> 0.0004
        for name in HYPERPARAMETER_SECTIONS:
            hyperparameters.update(flatten_options(options.get(name), name))
        file_writer: Any = self.writer.file_writer  # open until `close`
        # tag -> None, because `hparams` wants a dict, but reads only its keys.
        metrics = dict.fromkeys(TAGS_BESIDE_HYPERPARAMETERS)
        for entry in summary.hparams(hyperparameters, metrics):
            file_writer.add_summary(entry)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write a point of each curve.

        values: tag -> value, e.g. "train/loss" -> 0.0234.
        step: number of optimizer steps so far.
        """
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)


def _silence(threads: set[threading.Thread]) -> None:
    """Keep Python from printing uncaught errors of these threads, which belong to TensorBoard.

    No error is lost: TensorBoard raises the error of a thread again in the next call of its writer,
    and then `Experiment.to_writers` logs the error.
    """
    # Python calls threading.excepthook for each uncaught error in a thread.
    usual_hook = threading.excepthook

    def hook_for_other_threads(args: Any) -> None:
        if args.thread not in threads:
            usual_hook(args)

    threading.excepthook = hook_for_other_threads


# A file of TensorBoard, e.g. "events.out.tfevents.1764255931.gpu7.4711.0": second of the start,
# host, process, number.
EVENTS_NAME = re.compile(r"events\.out\.tfevents\.(?P<second>\d{10})\.(?P<rest>.+)")


def put_before_now(folder: Path) -> None:
    """Rename the files of earlier starts so that their names sort before the name of a new file.

    TensorBoard reads the files of a folder in the order of their names. A name begins with the
    second in which the file was made. The new file may have an earlier second than an old file if
    the clock of the host was set back, or the same second if two starts follow quickly. Then
    TensorBoard would take the new file for the older file, and hide the wrong entries.

    E.g. now is second 1000, and the names have the seconds 980, 1005 and 1007. The new names have
    980, 998 and 999. Test: test_tensorboard_shows_the_newer_start_after_a_clock_that_went_back.
    """
    # Go from the last name to the first. A file that is later than `latest` gets `latest` as its
    # second. `latest` only becomes smaller, so the order of the files stays.
    latest = int(time.time()) - 1
    for path in sorted(folder.glob("events.out.tfevents.*"), reverse=True):
        match = EVENTS_NAME.fullmatch(path.name)
        if match is None or path.is_symlink():  # this is not a file of TensorBoard
            continue
        second = int(match["second"])
        if second <= latest:
            latest = second
            continue
        path.rename(folder / f"events.out.tfevents.{latest:010d}.{match['rest']}")
        latest -= 1

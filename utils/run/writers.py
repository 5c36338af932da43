"""Build the writers of a run, which write its numbers and pictures.

There are three kinds:

* the history (utils.run.history_writer). Every run has this writer. The history also makes a
  report, unless the option `logging.use_report` is false.
* TensorBoard and W&B, if the options ask for them (tensorboard_writer.py, wandb_writer.py)
* the user's own writers, which the option `logging.writers` names. They are classes in files
  utils/writer_<name>.py.

A writer has a method `scalars(values, step)`, and may have `image(tag, rgb, step)` and `close()`.
docs/extending.md shows an example. Only rank 0 has writers. One process has one run at a time.

Free to change: a new kind of output is a new writer.

Tests: tests/parts/utils/test_history.py and test_writers.py, tests/stories/test_main_train.py.
"""

from pathlib import Path
from typing import Any

from utils.dist import status
from utils.options.log_options import LoggingOptions
from utils.options.registry import Registry, import_parts
from utils.run import history, history_writer, report
from utils.run.position import Progress
from utils.run.tensorboard_writer import TensorBoardWriter
from utils.run.wandb_writer import WandbWriter

# The classes of `logging.writers`, by their names. TensorBoard and W&B have options of their own.
WRITERS = Registry("log writer")

# The names of all files and folders that a run writes into its folder. A new file needs an entry.
# A start is refused if its folder has a file with such a name that no run has made. So a run never
# overwrites a file of another program (`claim_run_folder`, utils/files.py).
WRITTEN = (
    "log",
    "options",
    "checkpoints",
    "models",
    "images",
    history.LINES_NAME,
    history.HISTORY_NAME,
    history_writer.CURVES_NAME,
    history_writer.REPORT_NAME,
    report.ENVIRONMENT_NAME,
    status.STATUS_NAME,
    "tb_logger",
    "wandb",
    ".lock",
    "nonfinite_*.json",
)
# Files to which a run appends, besides the log. A start is refused if one of them is a link,
# because the run would write into a file elsewhere.
APPENDED = (history.LINES_NAME,)


def build_writers(
    section: LoggingOptions, folder: Path, options: dict[str, Any], progress: Progress
) -> list[Any]:
    """Return the writers that the options `logging` ask for. The history is always the first.

    section: the section `logging` of the options.
    folder: the folder of the run.
    options: all options, without secrets.
    progress: the position at which this start begins. `progress.wandb_id` is the W&B run to
        continue. If it is None, this function sets it to the id of the new W&B run.
    """
    writers: list[Any] = [
        history_writer.HistoryWriter(folder, progress.step, draws_report=section.use_report)
    ]
    for writer_section in section.writers:
        writer = WRITERS.build(writer_section, "logging.writers", folder=folder, step=progress.step)
        writers.append(writer)
    if section.use_tensorboard:
        repeated_scalars = None
        if progress.validated < progress.step:
            # This start repeats the validation of this step. An earlier start may have written the
            # validation and died before it saved the score, so TensorBoard must hide the entries of
            # this step. TensorBoard then also hides the training scalars of the step, which this
            # start does not compute again. So read them from the history, and let the writer write
            # them again.
            repeated_scalars = history.training_scalars(folder, progress.step)
        writers.append(
            TensorBoardWriter(folder / "tb_logger", progress.step, options, repeated_scalars)
        )
    if section.use_wandb:
        writer = WandbWriter(section, folder, options, progress.wandb_id)
        progress.wandb_id = writer.run.id
        writers.append(writer)
    return writers


# Import the files utils/writer_*.py. Each file registers its class in WRITERS.
import_parts("utils", "writer_*")

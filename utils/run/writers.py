"""What a run writes into its folder: log lines, numbers, pictures and checkpoints.

`utils.run.run.Run` has one `Experiment`, and calls its methods after a step, an epoch or a
validation. An `Experiment` logs a line, and hands numbers and pictures on to the writers:

* the history with its report (utils.run.history_writer), always,
* TensorBoard and W&B, if the options ask for them,
* further writers of the option `logging.writers`: classes in files utils/writer_<name>.py.

A writer has a method `scalars(values, step)`, and may have `image(tag, rgb, step)` and `close()`.
docs/extending.md shows an example. Only rank 0 has writers. One process has one run at a time.

A number has a tag, e.g. `train/loss`, `val/psnr`, or `ranks/data_s/3` (seconds per step that rank 3
waits for data).

What must stay: tags, log lines and keys of a checkpoint. Scripts, dashboards and later starts read
them (test_event_files_hold_the_curves, test_the_log_has_a_line_for_a_step). A writer that fails
never ends a run. Free to change: a new number gets a new tag, a new kind of output a new writer.

Tests: tests/parts/utils/test_history.py and test_writers.py, tests/stories/test_main_train.py.
"""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils import VERSION, utils_dist
from utils import device as devices
from utils.dist import gpu, status
from utils.files import OTHER_ROOT, write_whole, writing
from utils.image import comparison_strip, imwrite_rgb
from utils.logger import best_effort
from utils.options.models import LoggingOptions
from utils.options.override import argument_without_secrets
from utils.options.registry import Registry, import_parts
from utils.options.section import flatten_options
from utils.run import checkpoint, history, history_writer, report
from utils.run.folder import FolderMovedError, RunFolder
from utils.run.health import Health
from utils.run.measured import Measured, log_values
from utils.run.position import DataOrder, Progress
from utils.run.progress import duration
from utils.run.timing import StepTimer

logger = logging.getLogger(__name__)

# The option sections that TensorBoard shows as hyperparameters, and the tags beside them.
HYPERPARAMETER_SECTIONS = ("datasets", "netG", "train")
TAGS_BESIDE_HYPERPARAMETERS = ("val/psnr", "val/ssim", "train/loss")

# The classes of `logging.writers`, by their names. TensorBoard and W&B have options of their own.
WRITERS = Registry("log writer")

# The names of all files and folders that a run writes into its folder. A new file needs an entry:
# the start of a run checks that it can write each of them.
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
# Files that grow while the run writes them, besides the log.
APPENDED = (history.LINES_NAME,)

# A file of TensorBoard, e.g. "events.out.tfevents.1764255931.gpu7.4711.0": second of the start,
# host, process, number.
EVENTS_NAME = re.compile(r"events\.out\.tfevents\.(?P<second>\d{10})\.(?P<rest>.+)")

# The folder of this program.
ROOT = Path(__file__).resolve().parents[2]


# ---- Experiment ------------------------------------------------------------------------------


class Experiment:
    """Writes log lines, numbers, pictures and checkpoints of a run.

    Every rank has an Experiment, but only the Experiment of rank 0 writes files.
    """

    def __init__(
        self,
        folder: Path,
        options: dict[str, Any],
        order: DataOrder,
        health: Health,
        locked_folder: RunFolder | None = None,
    ) -> None:
        """folder: the folder of the run.
        options: all options, plain and without secrets. Each checkpoint holds the options.
        order: the order of the training data. Each checkpoint holds the order.
        health: object that judges the numbers of log lines and validations, and warns.
        locked_folder: the folder of the run with its lock, on rank 0. None on the other ranks.
        """
        self.locked_folder = locked_folder
        self.folder = folder
        self.options = options
        self.order = order
        self.health = health
        self.writers: list[Any] = []  # `Run.opened` fills it, on rank 0
        self.is_main = utils_dist.is_main_process()
        self.table = ""  # the table of the newest validation
        self.last_values = ""  # numbers of the newest log line, for the progress bar

    def log_training(
        self, progress: Progress, ranks: list[Measured], grad_norms: list[float], eta: str
    ) -> None:
        """Log a line, e.g. "Epoch: 1, Iter: 100, Loss: 0.0234, ...", and write its numbers.

        The writers also get some numbers of each rank. Scripts read this line, so its form stays
        (test_the_log_has_a_line_for_a_step).

        ranks: what each rank measured in the steps since the last line.
        grad_norms: gradient norms of these steps; empty if all of them were skipped.
        eta: the time that remains, e.g. "1 d 03:12:00". Empty if it is not known.
        """
        values = log_values(ranks)  # {"loss": 0.0234, "lr": 0.0004, "it_per_s": 2.1, ...}
        loss = f"{values['loss']:.4f}" if grad_norms else "none (all steps skipped)"
        lr = values["lr"]
        self.last_values = f"loss {loss}, lr {lr:.1e}"
        # Speed and remaining time are not known at the first line.
        speed_and_time = ""
        speed = values.get("it_per_s")
        if speed:
            speed_and_time += f", it/s: {speed:.3g}"
        if eta:
            speed_and_time += f", eta: {eta}"
        logger.info(
            "Epoch: %d, Iter: %d, Loss: %s, lr: %.3e%s",
            progress.epoch + 1,
            progress.step,
            loss,
            lr,
            speed_and_time,
        )

        scalars = {f"train/{name}": value for name, value in values.items()}
        scalars |= _scalars_of_ranks(ranks)
        self.to_writers("scalars", scalars, progress.step)  # calls the method `scalars` of each
        self.health.judge_log_line(ranks, grad_norms)

    def log_epoch(self, epoch: int, values: dict[str, float], timer: StepTimer) -> None:
        """Log a line on the epoch that has ended, and begin to measure the time of the next epoch.

        epoch: number of the epoch that has ended, from 1.
        values: mean loss and numbers of steps of the epoch: "loss", "steps", "skipped".
        timer: the times of the epoch. Its field `epoch` holds the sums since the epoch began.
        """
        # {"it_per_s": 2.1, "data_share": 0.03, ...}, or {} if the epoch had no step.
        speed = timer.epoch.values()
        skipped = values["skipped"]
        took = f"took {duration(time.perf_counter() - timer.epoch_begin)}"
        if timer.epoch.paused_s >= 1:  # a shorter pause would be shown as 0 seconds
            took += f" ({duration(timer.epoch.paused_s)} of it validation and saving)"

        parts = [f"{values['steps']:,} steps", f"mean loss {values['loss']:.4f}"]
        if speed:
            parts.append(f"{speed['it_per_s']:.3g} it/s")
            parts.append(f"data wait {100 * speed['data_share']:.0f} %")
        parts.append(took)
        if skipped:
            parts.append(f"{skipped} steps skipped")
        logger.info("Epoch %d ended: %s", epoch, ", ".join(parts))
        timer.begin_epoch()

    def log_validation(
        self,
        progress: Progress,
        scalars: dict[str, float],
        panels: dict[str, dict[str, np.ndarray]],
    ) -> None:
        """Log the means of a validation, and write its curves and pictures.

        scalars: tag -> number: means over the clips and scores of single clips. E.g. "val/psnr" is
            the mean of the restored frames, and "val/psnr_input" is the mean of the blurry frames.
        panels: clip -> title -> panel, a picture, e.g. the restored frame. The panels of a clip
            stand side by side in one file (a strip), images/<clip>/<step>.png.
        """
        further_metrics = ""  # the user's own metrics, of the option metric.more
        for name in history.further_metrics(scalars):
            value = scalars[f"val/{name}"]
            of_input = scalars[f"val/{name}_input"]
            further_metrics += f", {name}: {value:.4f} (input {of_input:.4f})"
        restored = f"PSNR: {scalars['val/psnr']:.2f} dB, SSIM: {scalars['val/ssim']:.4f}"
        blurry = f"(input {scalars['val/psnr_input']:.2f}, {scalars['val/ssim_input']:.4f})"
        logger.info(
            "Epoch: %d, Iter: %d, validation %s %s%s",
            progress.epoch + 1,
            progress.step,
            restored,
            blurry,
            further_metrics,
        )
        self.health.judge_validation(scalars["val/psnr"])

        for clip, panels_of_clip in panels.items():
            strip = comparison_strip(panels_of_clip)
            with best_effort("images of the validation"):
                imwrite_rgb(self.folder / "images" / clip / f"{progress.step}.png", strip)
                # The titles of the panels, by which the report cuts a strip into its panels. All
                # strips of a run have the same panels, so one file is enough. Each strip writes it
                # anew, so that it is there if an earlier write has failed.
                titles = json.dumps(list(panels_of_clip)).encode()
                write_whole(self.folder / "images" / report.PANELS_NAME, titles)
            self.to_writers("image", f"val/{clip}", strip, progress.step)
        # The scalars come last: the history then writes the report, which shows the pictures
        # (test_the_page_of_a_run_shows_each_clip_and_the_command).
        self.to_writers("scalars", scalars, progress.step)

    def save(self, name: str, state_of: Callable[[], dict[str, Any]], progress: Progress) -> None:
        """Write the file checkpoints/checkpoint_<name>.pth.

        It holds the state of the model, the position of the run (`progress`), the options and the
        version of this program. Earlier and later versions read the file, so a key is never renamed
        or removed. All ranks may call this; only rank 0 writes.

        name: "latest" or "best".
        state_of: returns the state of the model. It is called on rank 0 only, because it copies all
            weights and moments to the CPU.

        Raises FolderMovedError if somebody has moved the folder of the run. If the new place is
        known, the checkpoint is written there before the error is raised, so that no step is lost.
        """
        # `progress.saved` is the step of the newest checkpoint_latest. This step may be saved a
        # second time: the first save comes before the validation, the second adds its score.
        is_second_save = name == "latest" and progress.saved == progress.step
        if name == "latest":
            progress.saved = progress.step
        if not self.is_main:
            return

        begin = time.perf_counter()
        new_place = self._new_place()
        path = checkpoint.own_checkpoint(new_place or self.folder, name)
        state = {
            **state_of(),
            **asdict(progress),
            "order": asdict(self.order),
            "world_size": utils_dist.get_world_size(),
            "version": VERSION,
            "options": self.options,
        }
        # `keep` is the number of former versions to keep. It is 0 for a second save of a step,
        # which replaces the first save. If the first save became a former version, it would push
        # out the state of an earlier step
        # (test_the_former_checkpoint_has_the_state_of_the_former_step).
        keep = 0 if is_second_save else self.options["train"]["keep_checkpoints"]
        checkpoint.save(state, path, keep)
        seconds = time.perf_counter() - begin
        logger.info("saved %s at iter %d (%.1f s)", path, progress.step, seconds)
        if new_place is not None:
            # The run ends here: its other files would go to the old place. `saved` tells the user
            # which file the run can resume from.
            raise FolderMovedError(self.folder, new_place, saved=path)

    def _new_place(self) -> Path | None:
        """Return where somebody has moved the folder of the run, or None if it is in its place.

        Raises FolderMovedError if the folder was moved and its new place is not known.
        """
        try:
            self.check_folder()
        except FolderMovedError as e:
            if e.now is None:
                raise
            return e.now
        return None

    def check_folder(self) -> None:
        """Raise FolderMovedError if the folder is not the one that this run has locked."""
        if self.locked_folder is not None:  # on rank 0
            self.locked_folder.check()

    # ---- The writers of an Experiment ----

    def to_writers(self, method: str, *values: Any) -> None:
        """Call a method of each writer, e.g. `to_writers("scalars", values, step)`.

        A writer that fails is left out from then on, with one warning. So an error in TensorBoard
        or W&B (a full disk, a lost connection) never ends a run.
        """
        for writer in tuple(self.writers):  # a copy, because a failing writer leaves the list
            self._to_writer(writer, method, *values)

    def _to_writer(self, writer: Any, method: str, *values: Any) -> None:
        """Call a method of one writer, if the writer has it. E.g. the history has no `image`."""
        try:
            if hasattr(writer, method):
                getattr(writer, method)(*values)
        except Exception as e:
            self.writers.remove(writer)
            name = type(writer).__name__
            logger.warning(
                "%s failed and is left out from now on: %s: %s", name, type(e).__name__, e
            )

    def close(self, limit_s: float | None = None) -> None:
        """Close the writers.

        limit_s: longest time to wait, in seconds. Then the run goes on, even if a writer is still
            closing, e.g. a dashboard without a network. None for no limit.
        """
        if limit_s is None:
            self.to_writers("close")
        else:
            self._close_within(limit_s)
        self.writers.clear()

    def _close_within(self, limit_s: float) -> None:
        """Close all writers at the same time, and wait at most `limit_s` for all of them."""
        # Each thread calls `self._to_writer(writer, "close")`. The threads are daemons, so that a
        # thread that hangs does not keep the process alive.
        threads = []
        for writer in tuple(self.writers):
            name = type(writer).__name__  # for the warning; two writers may have the same class
            arguments = (writer, "close")
            thread = threading.Thread(
                target=self._to_writer, args=arguments, name=name, daemon=True
            )
            thread.start()
            threads.append(thread)

        deadline = time.monotonic() + limit_s
        for thread in threads:
            time_left = deadline - time.monotonic()
            thread.join(max(0.0, time_left))  # 0: only ask whether it has ended
            if thread.is_alive():
                logger.warning(
                    "%s did not end within %.0f s and is left behind", thread.name, limit_s
                )


def _scalars_of_ranks(ranks: list[Measured]) -> dict[str, float]:
    """Return the seconds per step of each rank, which show the slow rank.

    E.g. {"ranks/data_s/0": 0.02, "ranks/data_s/1": 0.31, ...}. Returns {} if no step was measured,
    because there are no seconds to divide.
    """
    scalars: dict[str, float] = {}
    if not ranks[0].steps:  # all ranks have made the same number of steps
        return scalars
    for name in ("data_s", "forward_s", "compute_s"):
        for number, rank in enumerate(ranks):
            seconds = getattr(rank, name)
            scalars[f"ranks/{name}/{number}"] = seconds / rank.steps
    return scalars


def write_environment(folder: Path, parameters: int) -> None:
    """Write environment.json into the folder of a run, for its report. Only rank 0 calls this.

    The file tells command, versions, device and size of the last start that trained, e.g.
    {"command": "main_train_vrt.py --opt ...", "torch": "2.8.0", "parameters": "18.32 M", ...}. A
    start that finds the run finished does not write it.

    parameters: number of parameters of the network.
    """
    device = utils_dist.get_device()
    values = {
        "command": " ".join(map(argument_without_secrets, sys.argv)),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "SpikeVRT": VERSION,
        "commit": _commit() or None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "CUDA": torch.version.cuda if gpu.is_cuda(device) else None,
        "device": devices.name(device),
        "ranks": utils_dist.get_world_size(),
        "parameters": f"{parameters / 1e6:.2f} M",
    }
    path = folder / report.ENVIRONMENT_NAME
    with best_effort(str(path)):
        # None: no GPU of CUDA, or no git.
        known_values = {name: value for name, value in values.items() if value is not None}
        write_whole(path, f"{json.dumps(known_values, indent=2)}\n".encode())


def _commit() -> str:
    """Return the git commit of this program, with "-dirty" if files were changed, e.g. "47c71ae".

    Returns "" if there is no git, or if the program lies in no repository.
    """
    environment = {
        **os.environ,
        # Let git look for a repository no higher than the folder of this program. Otherwise it
        # could name the commit of another repository that contains this folder.
        "GIT_CEILING_DIRECTORIES": str(ROOT.parent),
        # Let git take no lock, because somebody may be working in the repository.
        "GIT_OPTIONAL_LOCKS": "0",
    }
    # --exclude=*: name the commit and no tag.
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


# ---- TensorBoard -----------------------------------------------------------------------------


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

        A start is one run of the program, and `step` is the step that it resumes from. It repeats
        the later steps, so their old points must not be shown
        (test_tensorboard_shows_each_step_once_after_a_second_start).

        folder: where TensorBoard's files are, e.g. <run>/tb_logger.
        step: number of steps done when this start begins.
        options: all options, without secrets. They are shown as text, and some sections also as
            hyperparameters beside the newest scores.
        repeated_scalars: scalars of `step` itself, or None. With scalars, the entries of `step` are
            hidden too, and these scalars are written in their place. With None, the entries of
            `step` stay.
        """
        from torch.utils.tensorboard import SummaryWriter, summary

        first_hidden_step = step + 1 if repeated_scalars is None else step
        # SummaryWriter starts a thread. Find it by comparing the threads before and after.
        threads_before = set(threading.enumerate())
        with writing(folder, OTHER_ROOT):
            put_before_now(folder)
            self.writer = SummaryWriter(str(folder), purge_step=first_hidden_step)
        new_threads = set(threading.enumerate()) - threads_before
        _silence(new_threads)
        # The methods `image` and `close` of this writer are methods of SummaryWriter.
        self.image = partial(self.writer.add_image, dataformats="HWC")  # height, width, channels
        self.close = self.writer.close

        with best_effort(str(folder)):
            # TensorBoard shows text as Markdown, which leaves indented lines as they are.
            lines = json.dumps(options, indent=2).splitlines()
            text = "\n".join(f"    {line}" for line in lines)
            self.writer.add_text("options", text, step)
            # `SummaryWriter.add_hparams` would write the hyperparameters into a second run. So
            # these lines do its work in this run. TensorBoard takes the values of the metrics from
            # the scalars of this run.
            hyperparameters: dict[str, Any] = {}  # e.g. "train.G_optimizer_lr" -> 0.0004
            for name in HYPERPARAMETER_SECTIONS:
                hyperparameters.update(flatten_options(options.get(name), name))
            file_writer: Any = self.writer.file_writer  # open until `close`
            metrics = dict.fromkeys(TAGS_BESIDE_HYPERPARAMETERS)  # tag -> None
            for entry in summary.hparams(hyperparameters, metrics):
                file_writer.add_summary(entry)
            self.scalars(repeated_scalars or {}, step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write a point of each curve."""
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)


def _silence(threads: set[threading.Thread]) -> None:
    """Keep Python from printing uncaught errors of these threads, which belong to TensorBoard.

    TensorBoard raises such an error again in the next call of its writer, and `_to_writer` then
    logs it.
    """
    # Python calls threading.excepthook for each uncaught error in a thread.
    usual_hook = threading.excepthook

    def hook_for_other_threads(args: Any) -> None:
        if args.thread not in threads:
            usual_hook(args)

    threading.excepthook = hook_for_other_threads


def put_before_now(folder: Path) -> None:
    """Rename the files of earlier starts so that their names sort before the name of a new file.

    TensorBoard reads the files of a folder in the order of their names. A name begins with the time
    of the start of its run, in seconds. The new file may have an earlier time than an old one, or
    the same: if the clock of the host was set back, or if two starts have the same second. Then
    TensorBoard would take the new file for the older one, and hide the wrong entries.

    E.g. now is second 1000, and the names have the seconds 980, 1005 and 1007. The new names have
    980, 998 and 999. Test: test_tensorboard_shows_the_newer_start_after_a_clock_that_went_back.
    """
    # Go from the last name to the first. A file that is later than `latest` gets `latest` as its
    # second. `latest` only becomes smaller, so the order of the files stays.
    latest = int(time.time()) - 1
    for path in sorted(folder.glob("events.out.tfevents.*"), reverse=True):
        match = EVENTS_NAME.fullmatch(path.name)
        if match is None or path.is_symlink():  # no file of TensorBoard's
            continue
        second = int(match["second"])
        if second <= latest:
            latest = second
            continue
        path.rename(folder / f"events.out.tfevents.{latest:010d}.{match['rest']}")
        latest -= 1


# ---- Weights & Biases ------------------------------------------------------------------------


class WandbWriter:
    """Writes to Weights & Biases. After a resume it continues the same W&B run.

    wandb gets the secret key only through the environment of this process, because the login of
    wandb would write the key to a file. Keep it so: a test looks for the key in all files of a run
    (test_weights_and_biases_runs_offline_and_the_key_reaches_no_file).
    """

    def __init__(
        self, section: LoggingOptions, folder: Path, options: dict[str, Any], run_id: str | None
    ) -> None:
        """section: the options `logging`.
        options: all options, without secrets. W&B shows them as its config.
        run_id: id of the W&B run to continue, or None for a new one.
        """
        import wandb

        if section.wandb_api_key:
            os.environ["WANDB_API_KEY"] = section.wandb_api_key
        # wandb copies the command line into its files, so secrets in it are replaced first.
        sys.argv = [argument_without_secrets(argument) for argument in sys.argv]
        about: dict[str, Any] = {
            "project": section.wandb_project,
            "entity": section.wandb_entity,
            "name": options["task"],
            "dir": str(folder),
            "id": run_id,
            "resume": "allow" if run_id else None,
            "config": options,
        }
        self.image_of = wandb.Image
        try:
            with _no_input():
                self.run = wandb.init(**about)
        except wandb.Error as e:  # no key, a wrong one, or no network
            self.run = wandb.init(**about, mode="offline")
            logger.warning(
                "W&B cannot be used (%s): this run is recorded offline; upload it later with: "
                "wandb sync %s",
                str(e).partition("\n")[0],  # its first line
                Path(self.run.dir).parent,
            )
        # The methods `scalars` and `close` of this writer are methods of wandb's run.
        self.scalars = self.run.log
        self.close = self.run.finish

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """Write a picture."""
        self.run.log({tag: self.image_of(rgb)}, step=step)


@contextmanager
def _no_input() -> Generator[None]:
    """Give an empty stdin to the block.

    Without a key, wandb on a terminal would wait until the user types a key, and would store it.
    """
    stdin = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = stdin


# ---- The writers that the options ask for ----------------------------------------------------


def build_writers(
    section: LoggingOptions, folder: Path, options: dict[str, Any], progress: Progress
) -> list[Any]:
    """Return the writers that the options `logging` ask for. The history is always the first.

    options: all options, without secrets.
    progress: the position at which this start begins. `progress.wandb_id` is the W&B run to
        continue. If it is None, this function sets it to the id of the new W&B run.
    """
    writers: list[Any] = [history_writer.HistoryWriter(folder, progress.step)]
    for writer_section in section.writers:
        writer = WRITERS.build(writer_section, "logging.writers", folder=folder, step=progress.step)
        writers.append(writer)
    if section.use_tensorboard:
        repeated_scalars = None
        if progress.validated < progress.step:
            # An earlier start may have recorded a validation of this step, and then died before its
            # checkpoint was written. This start repeats the validation, so hide its entries.
            repeated_scalars = history.training_scalars(folder, progress.step)
        writers.append(
            TensorBoardWriter(folder / "tb_logger", progress.step, options, repeated_scalars)
        )
    if section.use_wandb:
        writer = WandbWriter(section, folder, options, progress.wandb_id)
        progress.wandb_id = writer.run.id
        writers.append(writer)
    return writers


# Find the files utils/writer_*.py: each registers its class in WRITERS.
import_parts("utils", "writer_*")

"""Write what a run leaves in its folder: log lines, numbers, pictures and checkpoints.

`utils.run.run.Run` has one `Experiment`, and calls its methods:

    log_training      at a log line, e.g. "Epoch: 1, Iter: 100, Loss: 0.0234, ..."
    log_epoch         at the end of an epoch
    log_validation    after a validation
    save              when a checkpoint is due. checkpoint.py writes the file, and `training_state`
                      (models/model_state.py) returns the model's part of a checkpoint

`log_training` and `log_validation` also give numbers and pictures to the writers, e.g. TensorBoard
(utils/run/writers.py).

The name of a number is called its tag, e.g. `train/loss`, `val/psnr`, or `ranks/data_s/3` (seconds
per step that rank 3 waits for data).

What must stay: tags, log lines and keys of a checkpoint, because scripts, dashboards and later
starts read them (test_event_files_hold_the_curves, test_the_log_has_a_line_for_a_step). A writer
that fails never ends a run. Free to change: a new number may be added under a new tag.

Tests: tests/parts/utils/test_writers.py, tests/stories/test_main_train.py.
"""

import copy
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from utils import VERSION, utils_dist
from utils.files import write_whole
from utils.image import comparison_strip, imwrite_rgb
from utils.logger import best_effort
from utils.run import checkpoint, history, report
from utils.run.folder import FolderMovedError, RunFolder
from utils.run.health import Health
from utils.run.measured import Measured, log_values
from utils.run.position import DataOrder, Progress
from utils.run.progress import duration
from utils.run.timing import StepTimer
from utils.words import counted

logger = logging.getLogger(__name__)


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
        """Prepare to write. `Run.opened` adds the writers later.

        folder: the folder of the run.
        options: all options, as a dict without secrets. Each checkpoint holds the options.
        order: the order of the training data. Each checkpoint holds the order.
        health: object that judges the numbers of log lines and validations, and warns.
        locked_folder: the same folder with its lock, on rank 0. Its method `check` finds out if
            somebody has moved or removed the folder (`check_folder`). None on the other ranks,
            which write nothing.
        """
        self.locked_folder = locked_folder
        self.folder = folder
        self.options = options
        self.order = order
        self.health = health
        # `Run.opened` sets this list on rank 0. A writer has a method `scalars(values, step)`, and
        # may have `image(tag, rgb, step)` and `close()` (utils/run/writers.py).
        self.writers: list[Any] = []
        self.is_main = utils_dist.is_main_process()
        self.table = ""  # the table of the newest validation
        self.last_values = ""  # numbers of the newest log line, for the progress bar

    def log_training(
        self, progress: Progress, ranks: list[Measured], grad_norms: list[float], eta: str
    ) -> None:
        """Log a line, e.g. "Epoch: 1, Iter: 100, Loss: 0.0234, ...", and write its numbers.

        Scripts read this log line, so its form stays (test_the_log_has_a_line_for_a_step). The
        writers also get some numbers of each rank.

        progress: where the run stands.
        ranks: what each rank measured in the steps since the last line.
        grad_norms: gradient norms of these steps; empty if all of them were skipped.
        eta: the time that remains, e.g. "1 d 03:12:00". Empty if it is not known.
        """
        values = log_values(ranks)  # {"loss": 0.0234, "lr": 0.0004, "it_per_s": 2.1, ...}
        loss = f"{values['loss']:.4f}" if grad_norms else "none (all steps skipped)"
        lr = values["lr"]
        self.last_values = f"loss {loss}, lr {lr:.1e}"
        # At the first line, speed and remaining time may not be known yet.
        speed_and_time = ""
        speed = values.get("it_per_s")
        if speed:
            speed_and_time += f", it/s: {speed:.3g}"
        if eta:
            speed_and_time += f", eta: {eta}"
        logger.info(
            "Epoch: %d, Iter: %d, Loss: %s, lr: %.3e%s",
            progress.epoch + 1,  # progress.epoch counts from 0, and the log from 1
            progress.step,
            loss,
            lr,
            speed_and_time,
        )

        scalars = {f"train/{name}": value for name, value in values.items()}
        scalars |= _scalars_of_ranks(ranks)
        self.to_writers("scalars", scalars, progress.step)
        self.health.judge_log_line(ranks, grad_norms)

    def log_epoch(self, epoch: int, values: dict[str, float], timer: StepTimer) -> None:
        """Log a line on the epoch that has ended, and begin to measure the time of the next epoch.

        epoch: number of the epoch that has ended, from 1.
        values: mean loss and numbers of steps of the epoch: "loss", "steps", "skipped".
        timer: the times of the epoch. Its field `epoch` holds the sums since the epoch began.
        """
        # {"it_per_s": 2.1, "data_share": 0.03, ...}, or {} if the epoch had no step.
        speed = timer.epoch.speed_and_shares()
        skipped = values["skipped"]
        epoch_s = time.perf_counter() - timer.epoch_begin
        took = f"took {duration(epoch_s)}"
        pauses_s = timer.epoch.paused_s  # seconds of the validations and saves
        if pauses_s >= 1:  # a shorter pause would be shown as 0 seconds
            took += f" ({duration(pauses_s)} of it validation and saving)"

        # counted(12000, "step", ",") is "12,000 steps".
        parts = [counted(int(values["steps"]), "step", ","), f"mean loss {values['loss']:.4f}"]
        if speed:
            parts.append(f"{speed['it_per_s']:.3g} it/s")
            parts.append(f"data wait {100 * speed['data_share']:.0f} %")
        parts.append(took)
        if skipped:
            parts.append(f"{counted(int(skipped), 'step')} skipped")
        logger.info("Epoch %d ended: %s", epoch, ", ".join(parts))
        timer.begin_epoch()

    def log_validation(
        self,
        progress: Progress,
        scalars: dict[str, float],
        panels: dict[str, dict[str, np.ndarray]],
    ) -> None:
        """Log the means of a validation, and write its curves and pictures.

        progress: where the run stands.
        scalars: tag -> number. The numbers are means over the clips, and scores of single clips.
            E.g. "val/psnr" is the mean of the restored frames, and "val/psnr_input" is the mean of
            the blurry frames.
        panels: clip -> title -> picture, e.g. the restored frame. The pictures (panels) of a clip
            stand side by side in one file (a strip), images/<clip>/<step>.png.
        """
        own_scores = ""  # of the metrics that the option metric.more names
        for name in history.names_of_own_metrics(scalars):
            value = scalars[f"val/{name}"]
            value_of_input = scalars[f"val/{name}_input"]
            own_scores += f", {name}: {value:.4f} (input {value_of_input:.4f})"
        restored = f"PSNR: {scalars['val/psnr']:.2f} dB, SSIM: {scalars['val/ssim']:.4f}"
        blurry = f"(input {scalars['val/psnr_input']:.2f}, {scalars['val/ssim_input']:.4f})"
        logger.info(
            "Epoch: %d, Iter: %d, validation %s %s%s",
            progress.epoch + 1,  # progress.epoch counts from 0, and the log from 1
            progress.step,
            restored,
            blurry,
            own_scores,
        )
        # Warns if the PSNR falls from validation to validation while the loss falls (overfitting).
        self.health.judge_validation(scalars["val/psnr"])

        for clip, panels_of_clip in panels.items():
            strip = comparison_strip(panels_of_clip)  # the pictures side by side
            with best_effort("images of the validation"):
                imwrite_rgb(self.folder / "images" / clip / f"{progress.step}.png", strip)
                # Write the titles of the panels, because the report needs the titles to cut a strip
                # into its panels. All strips of a run have the same panels, so one file is enough.
                # Write this file with each strip, so that it exists even if an earlier write has
                # failed.
                titles = json.dumps(list(panels_of_clip)).encode()
                write_whole(self.folder / "images" / report.PANELS_NAME, titles)
            self.to_writers("image", f"val/{clip}", strip, progress.step)
        # The scalars must come after the pictures. When the history gets the scalars of a
        # validation, it writes the report, which shows the pictures
        # (test_the_page_of_a_run_shows_each_clip_and_the_command).
        self.to_writers("scalars", scalars, progress.step)

    def save(self, name: str, state_of: Callable[[], dict[str, Any]], progress: Progress) -> None:
        """Write the file checkpoints/checkpoint_<name>.pth.

        The file holds the state of the model, the position of the run (`progress`), the options and
        the version of this program. Earlier and later versions read the file, so a key is never
        renamed or removed. All ranks may call this; only rank 0 writes.

        name: "latest" or "best".
        state_of: returns the state of the model. It is called on rank 0 only, because it copies all
            weights and moments to the CPU.

        Raises FolderMovedError if somebody has moved the folder of the run. If the new place is
        known, the checkpoint is written there before the error is raised, so that no step is lost.
        """
        # `progress.saved` is the step of the newest checkpoint_latest. If this step is the present
        # step, this is a second save of the same step, e.g. after a validation.
        is_latest = name == "latest"
        is_second_save = is_latest and progress.saved == progress.step
        # Note the new save before the file is written, because the file holds `progress`. All ranks
        # note it, so that `progress` stays equal on all ranks.
        if is_latest:
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
        # `keep` is the number of former versions to keep. The second save of a step replaces the
        # first save, so `keep` is 0. E.g. step 500 is saved twice, and the one former version has
        # step 400. If the first save of step 500 became the former version, the state of step 400
        # would be lost (test_the_former_checkpoint_has_the_state_of_the_former_step).
        keep = 0 if is_second_save else self.options["train"]["keep_checkpoints"]
        checkpoint.save(state, path, keep)
        seconds = time.perf_counter() - begin
        logger.info("saved %s at iter %d (%.1f s)", path, progress.step, seconds)
        if new_place is not None:
            # End the run, because its log and its other files would still go to the old place. The
            # error names the file from which the user can resume (`saved`).
            raise FolderMovedError(self.folder, new_place, saved=path)

    def _new_place(self) -> Path | None:
        """Return where somebody has moved the folder of the run, or None if nobody has moved it.

        Raises FolderMovedError if the folder was moved and its new place is not known.
        """
        try:
            self.check_folder()
        except FolderMovedError as e:
            if e.new_path is None:
                raise
            return e.new_path
        return None

    def check_folder(self) -> None:
        """Raise FolderMovedError if the folder is not the one that this run has locked."""
        if self.locked_folder is not None:  # on rank 0
            self.locked_folder.check()

    # ---- The writers of an Experiment ----

    def to_writers(self, method: str, *values: Any) -> None:
        """Call a method of each writer, i.e. of the history, TensorBoard, W&B and a user's writers.

        E.g. `to_writers("scalars", values, step)` calls `writer.scalars(values, step)` of each
        writer. A writer that fails is left out from then on, with one warning. So an error in
        TensorBoard or W&B (a full disk, a lost connection) never ends a run.

        method: name of the method.
        values: the arguments of the method.
        """
        for writer in tuple(self.writers):  # a copy, because a writer that fails is removed
            self._to_writer(writer, method, *values)

    def _to_writer(self, writer: Any, method: str, *values: Any) -> None:
        """Call a method of one writer, if the writer has it. E.g. the history has no `image`.

        The writer gets copies of the values, because a writer of a user may change them, e.g. add
        the step to the dict of scalars.
        """
        try:
            if hasattr(writer, method):
                copies = [copy.copy(value) for value in values]
                getattr(writer, method)(*copies)
        except Exception as e:
            self.writers.remove(writer)
            name = type(writer).__name__
            logger.warning(
                "%s failed and is left out from now on: %s: %s", name, type(e).__name__, e
            )

    def close(self, limit_s: float | None = None) -> None:
        """Close the writers.

        limit_s: longest time to wait, in seconds. After this time the method returns even if a
            writer is still closing, e.g. a dashboard without a network. None for no limit.
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
            thread = threading.Thread(
                target=self._to_writer,
                args=(writer, "close"),
                name=type(writer).__name__,  # for the warning below
                daemon=True,
            )
            thread.start()
            threads.append(thread)

        deadline = time.monotonic() + limit_s
        for thread in threads:
            time_left = deadline - time.monotonic()
            thread.join(max(0.0, time_left))  # with 0 s, `join` returns at once
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
    for name in ("data_s", "forward_s", "compute_s"):  # fields of `Measured`
        for number, rank in enumerate(ranks):
            seconds = getattr(rank, name)
            scalars[f"ranks/{name}/{number}"] = seconds / rank.steps
    return scalars

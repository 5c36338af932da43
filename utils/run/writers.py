"""What a run writes into its folder: log lines, numbers and pictures (`Experiment`), by writers;
one run at a time.

Writers are the history with its report, TensorBoard, W&B, and those of `logging.writers`. Only rank
0 has writers.
"""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from utils.options.load import shown_argument
from utils.options.models import LoggingOptions
from utils.options.section import Registry, flat, import_parts
from utils.run import checkpoint, history
from utils.run.checkpoint import DataOrder, Progress
from utils.run.folder import FolderMovedError, RunFolder
from utils.run.measure import Health, Measured, StepTimer, log_values
from utils.run.progress import duration

logger = logging.getLogger(__name__)

HPARAMS, METRICS = ("datasets", "netG", "train"), ("val/psnr", "val/ssim", "train/loss")

WRITERS = Registry("log writer")  # of `logging.writers`; the others have keys of their own

# What a run writes into its folder.
WRITTEN = (
    "log", "options", "checkpoints", "models", "images", history.LINES_NAME, history.HISTORY_NAME,
    history.CURVES_NAME,
    history.REPORT_NAME, history.ENVIRONMENT_NAME, status.STATUS_NAME, "tb_logger", "wandb",
    ".lock", "nonfinite_*.json",
)  # fmt: skip
# second of the start, host, process, number
EVENTS_NAME = re.compile(r"events\.out\.tfevents\.(?P<second>\d{10})\.(?P<rest>.+)")
APPENDED = (history.LINES_NAME,)  # files that grow, besides the log
ROOT = Path(__file__).resolve().parents[2]


class Experiment:
    """The log line, numbers, images and checkpoints of a run. Only rank 0 writes."""

    def __init__(
        self,
        folder: Path,
        options: dict[str, Any],
        order: DataOrder,
        health: Health,
        held: RunFolder | None = None,
    ) -> None:
        """options: all of them, plain and without secrets, for each checkpoint. held: the lock of
        the folder.
        """
        self.held = held
        self.folder, self.options, self.order, self.health = folder, options, order, health
        self.writers: list[Any] = []  # see docs/extending.md
        self.is_main = utils_dist.is_main_process()
        self.table = ""  # of the newest validation
        self.last_values = ""  # of the newest log line, for the progress bar

    def log_training(
        self, progress: Progress, ranks: list[Measured], grad_norms: list[float], eta: str
    ) -> None:
        """One line ``Epoch: 1, Iter: 100, Loss: 0.0234, ...``; its values, and those of each rank,
        to the writers.

        ranks: of the steps since the last line. grad_norms: of these steps. eta: see
        RunProgress.eta.
        """
        values = log_values(ranks)
        loss, lr, speed = values["loss"], values["lr"], values.get("it_per_s")
        said = f"{loss:.4f}" if grad_norms else "none (all steps skipped)"
        self.last_values = f"loss {said}, lr {lr:.1e}"
        fields = (f", it/s: {speed:.3g}" if speed else "") + (f", eta: {eta}" if eta else "")
        logger.info(
            "Epoch: %d, Iter: %d, Loss: %s, lr: %.3e%s",
            progress.epoch + 1,
            progress.step,
            said,
            lr,
            fields,
        )
        tagged = {f"train/{name}": value for name, value in values.items()}
        # Seconds per step of each rank
        for name in ("data_s", "forward_s", "compute_s") if ranks[0].steps else ():
            tagged |= {
                f"ranks/{name}/{i}": getattr(rank, name) / rank.steps
                for i, rank in enumerate(ranks)
            }
        self.to_writers("scalars", tagged, progress.step)
        self.health.logged(ranks, grad_norms)

    def log_epoch(self, epoch: int, values: dict[str, float], timer: StepTimer) -> None:
        """One line on the epoch that ended, the `epoch`-th. values: see ModelVRT.epoch_log."""
        speed, skipped = timer.epoch.values(), values["skipped"]
        pauses = (
            f" ({duration(timer.epoch.paused)} of it validation and saving)"
            if timer.epoch.paused >= 1
            else ""
        )
        parts = [f"{values['steps']:,} steps", f"mean loss {values['loss']:.4f}"]
        parts += (
            [f"{speed['it_per_s']:.3g} it/s", f"data wait {100 * speed['data_share']:.0f} %"]
            if speed
            else []
        )
        parts += [f"took {duration(time.perf_counter() - timer.epoch_begin)}{pauses}"]
        parts += [f"{skipped} steps skipped"] if skipped else []
        logger.info("Epoch %d ended: %s", epoch, ", ".join(parts))
        timer.begin_epoch()

    def log_validation(
        self,
        progress: Progress,
        scalars: dict[str, float],
        panels: dict[str, dict[str, np.ndarray]],
    ) -> None:
        """The validation's means as one line and curves; strips of its panels to
        images/<clip>/<step>.png.
        """
        further = ""
        for name in history.further_metrics(scalars):
            value = scalars[f"val/{name}"]
            of_input = scalars[f"val/{name}_input"]
            further += f", {name}: {value:.4f} (input {of_input:.4f})"
        logger.info(
            "Epoch: %d, Iter: %d, validation PSNR: %.2f dB, SSIM: %.4f (input %.2f, %.4f)%s",
            progress.epoch + 1,
            progress.step,
            scalars["val/psnr"],
            scalars["val/ssim"],
            scalars["val/psnr_input"],
            scalars["val/ssim_input"],
            further,
        )
        self.health.validated(scalars["val/psnr"])
        for name, images in panels.items():
            strip = comparison_strip(images)
            with best_effort("images of the validation"):
                imwrite_rgb(self.folder / "images" / name / f"{progress.step}.png", strip)
                write_whole(
                    self.folder / "images" / history.PANELS_NAME, json.dumps(list(images)).encode()
                )
            self.to_writers("image", f"val/{name}", strip, progress.step)
        self.to_writers("scalars", scalars, progress.step)  # last: the report shows the pictures

    def save(self, name: str, state_of: Callable[[], dict[str, Any]], progress: Progress) -> None:
        """checkpoints/checkpoint_<name>.pth: the state of the model plus the position, the options
        and the versions.

        state_of: called on rank 0 only, for it copies all weights and moments to the CPU.
        Raises FolderMovedError if the folder was moved: the checkpoint is saved where the folder is
        now.
        """
        is_again = name == "latest" and progress.saved == progress.step
        if name == "latest":
            progress.saved = progress.step
        if not self.is_main:
            return
        begin = time.perf_counter()
        path, moved = checkpoint.own_checkpoint(self.folder, name), None
        try:
            self.check_folder()
        except FolderMovedError as e:
            if e.now is None:
                raise
            path, moved = checkpoint.own_checkpoint(e.now, name), e
        position = {
            **asdict(progress),
            "order": asdict(self.order),
            "world_size": utils_dist.get_world_size(),
        }
        position["version"] = VERSION
        keep = 0 if is_again else self.options["train"]["keep_checkpoints"]
        checkpoint.save({**state_of(), **position, "options": self.options}, path, keep)
        logger.info(
            "saved %s at iter %d (%.1f s)", path, progress.step, time.perf_counter() - begin
        )
        if moved is not None:
            raise FolderMovedError(self.folder, moved.now, saved=path)

    def check_folder(self) -> None:
        """Check that the folder is still the one that this run holds: see RunFolder.check."""
        if self.held is not None:
            self.held.check()

    def close(self, limit_s: float | None = None) -> None:
        """Close the writers.

        limit_s: seconds after which the run goes on without those that have not ended, a dashboard
        without a network for example. None: no limit.
        """
        if limit_s is None:
            self.to_writers("close")
        else:
            self._close_within(limit_s)
        self.writers.clear()

    def _close_within(self, limit_s: float) -> None:
        threads = {}
        for writer in tuple(self.writers):
            name = type(writer).__name__
            call = (writer, "close")
            threads[name] = threading.Thread(target=self._to_writer, args=call, daemon=True)
            threads[name].start()
        deadline = time.monotonic() + limit_s
        for name, thread in threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning("%s did not end within %.0f s and is left behind", name, limit_s)

    def to_writers(self, method: str, *values: Any) -> None:
        """Call a method of each writer.

        One that fails is left out from then on, with one warning: no error in TensorBoard or W&B (a
        full disk, a lost connection) ends a run.
        """
        for writer in tuple(self.writers):
            self._to_writer(writer, method, *values)

    def _to_writer(self, writer: Any, method: str, *values: Any) -> None:
        try:
            if hasattr(writer, method):  # the history takes no images
                getattr(writer, method)(*values)
        except Exception as e:
            self.writers.remove(writer)
            name = type(writer).__name__
            logger.warning(
                "%s failed and is left out from now on: %s: %s", name, type(e).__name__, e
            )


def write_environment(folder: Path, parameters: int) -> None:
    """folder/environment.json, for the report: command, versions, device, size, of each start that
    trains. Rank 0.
    """
    # Without the ceiling, git would name the commit of a repository that this folder happens to lie
    # in.
    environment = os.environ | {
        "GIT_CEILING_DIRECTORIES": str(ROOT.parent),
        "GIT_OPTIONAL_LOCKS": "0",
    }
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit, device = "", utils_dist.get_device()
    with suppress(OSError, subprocess.SubprocessError):  # no git, or no repository
        commit = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    values = {
        "command": " ".join(map(shown_argument, sys.argv)),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "SpikeVRT": VERSION,
        "commit": commit.strip() or None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "CUDA": torch.version.cuda if gpu.is_cuda(device) else None,
        "device": devices.name(device),
        "ranks": utils_dist.get_world_size(),
        "parameters": f"{parameters / 1e6:.2f} M",
    }
    path = folder / history.ENVIRONMENT_NAME
    with best_effort(str(path)):
        known = {name: value for name, value in values.items() if value is not None}
        write_whole(path, f"{json.dumps(known, indent=2)}\n".encode())


class TensorBoardWriter:
    """Scalars and pictures for TensorBoard."""

    def __init__(
        self,
        folder: Path,
        step: int,
        options: dict[str, Any],
        repeated: Mapping[str, float] | None = None,
    ) -> None:
        """Hide what an earlier start wrote after `step`.

        options: without secrets; shown as text, and those of HPARAMS as hyperparameters beside the
        newest METRICS.
        repeated: scalars of `step` itself, whose entries are hidden and written again; None to keep
        its entries.
        """
        from torch.utils.tensorboard import SummaryWriter, summary

        before = set(threading.enumerate())
        first_hidden = step + 1 if repeated is None else step
        with writing(folder, OTHER_ROOT):
            put_before_now(folder)
            self.writer = SummaryWriter(str(folder), purge_step=first_hidden)
        self.image, self.close = (
            partial(self.writer.add_image, dataformats="HWC"),
            self.writer.close,
        )
        # Its thread raises an error in the next call here, and prints it as an uncaught one as
        # well.
        threads, hook = set(threading.enumerate()) - before, threading.excepthook
        threading.excepthook = lambda args: None if args.thread in threads else hook(args)
        lines = json.dumps(options, indent=2).splitlines()
        values = {key: value for name in HPARAMS for key, value in flat(options.get(name), name)}
        with best_effort(str(folder)):
            # indented: verbatim
            self.writer.add_text("options", "\n".join(f"    {line}" for line in lines), step)
            # add_hparams would write a second run. TensorBoard takes the metrics from the scalars
            # of this one.
            file_writer: Any = self.writer.file_writer  # open until `close`
            for part in summary.hparams(values, dict.fromkeys(METRICS)):
                file_writer.add_summary(part)
            self.scalars(repeated or {}, step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)


def put_before_now(folder: Path) -> None:
    """Rename the files of earlier starts so that their names sort before the one of a file of now.

    TensorBoard reads a folder in the order of the names, which begin with the second of their
    start. If the clock went back, or two starts share a second, it would take the newer file for
    the older one, and hide what the older one holds.
    """
    latest = int(time.time()) - 1
    for path in sorted(folder.glob("events.out.tfevents.*"), reverse=True):
        found = EVENTS_NAME.fullmatch(path.name)
        if found is None or path.is_symlink():
            continue
        second = int(found["second"])
        if second <= latest:
            latest = second
            continue
        path.rename(folder / f"events.out.tfevents.{latest:010d}.{found['rest']}")
        latest -= 1


class WandbWriter:
    """Weights & Biases; continues the same W&B run after a resume.

    The key reaches wandb through the environment of this process only: its own login would write it
    to a file.
    """

    def __init__(
        self, section: LoggingOptions, folder: Path, options: dict[str, Any], run_id: str | None
    ) -> None:
        """options: those of the run without secrets, as W&B's config."""
        import wandb

        if key := section.wandb_api_key:
            os.environ["WANDB_API_KEY"] = key
        # wandb copies the command line into its files.
        sys.argv = [shown_argument(argument) for argument in sys.argv]
        about: dict[str, Any] = {
            "project": section.wandb_project,
            "entity": section.wandb_entity,
            "name": options["task"],
            "dir": str(folder),
            "id": run_id,
            "resume": "allow" if run_id else None,
            "config": options,
        }
        self.image_of, stdin = wandb.Image, sys.stdin
        try:
            # On a terminal, without a key, wandb would wait for one, and store it.
            with open(os.devnull, encoding="utf-8") as sys.stdin:
                try:
                    self.run = wandb.init(**about)
                finally:
                    sys.stdin = stdin
        except wandb.Error as e:  # no key, a wrong one, or no network
            self.run = wandb.init(**about, mode="offline")
            logger.warning(
                "W&B cannot be used (%s): this run is recorded offline; upload it later with: "
                "wandb sync %s",
                str(e).splitlines()[0], Path(self.run.dir).parent,
            )  # fmt: skip
        self.scalars, self.close = self.run.log, self.run.finish

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        self.run.log({tag: self.image_of(rgb)}, step=step)


def build_writers(
    section: LoggingOptions, folder: Path, options: dict[str, Any], progress: Progress
) -> list[Any]:
    """The writers of `logging`. progress: where the run starts; its W&B run is continued, or noted
    there.
    """
    writers: list[Any] = [history.HistoryWriter(folder, progress.step)]
    writers += [
        WRITERS.build(own, "logging.writers", folder=folder, step=progress.step)
        for own in section.writers
    ]
    if section.use_tensorboard:
        repeated = None
        if progress.validated < progress.step:
            # A validation of this step may be recorded, and comes again.
            repeated = history.training_scalars(folder, progress.step)
        writers.append(TensorBoardWriter(folder / "tb_logger", progress.step, options, repeated))
    if section.use_wandb:
        writers.append(WandbWriter(section, folder, options, progress.wandb_id))
        progress.wandb_id = writers[-1].run.id
    return writers


import_parts("utils", "writer_*")

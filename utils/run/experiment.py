"""The folder of a run: one run at a time in it, the lines at the start of its log, and the files that rank 0 writes."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from utils import utils_dist
from utils.dist.gpu import device_name
from utils.dist.state import STATUS_NAME
from utils.errors import OptionError
from utils.files import OTHER_ROOT, claim_run_folder, write_whole, writing
from utils.image import comparison_strip, imwrite_rgb
from utils.logger import best_effort
from utils.options.load import shown_argument
from utils.run import checkpoint
from utils.run.checkpoint import DataOrder, Progress, own_checkpoint
from utils.run.health import Health
from utils.run.history import CURVES_NAME, ENVIRONMENT_NAME, HISTORY_NAME, LINES_NAME, PANELS_NAME, REPORT_NAME
from utils.run.measure import Measured, StepTimer, log_values, rank_values
from utils.run.progress import duration
from utils.run.writers import Writers

logger = logging.getLogger(__name__)

Panels = dict[str, np.ndarray]  # see utils.image.comparison

# What a run writes into its folder.
WRITTEN = (
    "log", "options", "checkpoints", "models", "images", LINES_NAME, HISTORY_NAME, CURVES_NAME, REPORT_NAME,
    ENVIRONMENT_NAME, STATUS_NAME, "tb_logger", "wandb", ".lock", "nonfinite_*.json",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
# A rank that was killed a moment ago may still be ending. The lock of a host that crashed lasts until the file server
# releases it: 90 s by default for NFS.
PATIENCE_S, PATIENCE_WITH_HOSTS_S = 3.0, 180.0


class Experiment:
    """The log line, numbers, images and checkpoints of a run. Only rank 0 writes."""

    def __init__(
        self, folder: Path, options: dict[str, Any], order: DataOrder, health: Health, writers: Writers | None = None
    ) -> None:
        """options: all of them, plain and without secrets, for each checkpoint. writers: None where there are none."""
        self.folder, self.options, self.order, self.health = folder, options, order, health
        self.writers, self.is_main = writers or Writers(), utils_dist.is_main_process()
        self.table = ""  # of the newest validation
        self.last_values = ""  # of the newest log line, for the progress bar

    def log_training(self, progress: Progress, ranks: list[Measured], grad_norms: list[float], eta: str) -> None:
        """One line ``Epoch: 1, Iter: 100, Loss: 0.0234, ...``; its values, and those of each rank, to the writers.

        ranks: of the steps since the last line. grad_norms: of these steps. eta: see RunProgress.eta.
        """
        values = log_values(ranks)
        loss, lr, speed = values["loss"], values["lr"], values.get("it_per_s")
        said = f"{loss:.4f}" if grad_norms else "none (all steps skipped)"
        self.last_values = f"loss {said}, lr {lr:.1e}"
        fields = (f", it/s: {speed:.3g}" if speed else "") + (f", eta: {eta}" if eta else "")
        logger.info("Epoch: %d, Iter: %d, Loss: %s, lr: %.3e%s", progress.epoch + 1, progress.step, said, lr, fields)
        tagged = {f"train/{name}": value for name, value in values.items()}
        self.writers.scalars(tagged | {f"ranks/{k}": value for k, value in rank_values(ranks).items()}, progress.step)
        self.health.logged(ranks, grad_norms)

    def log_epoch(self, epoch: int, values: dict[str, float], timer: StepTimer) -> None:
        """One line on the epoch that ended, the `epoch`-th. values: see ModelVRT.epoch_log."""
        speed, skipped = timer.epoch.values(), values["skipped"]
        pauses = f" ({duration(timer.epoch.paused)} of it validation and saving)" if timer.epoch.paused >= 1 else ""
        parts = [f"{values['steps']:,} steps", f"mean loss {values['loss']:.4f}"]
        parts += [f"{speed['it_per_s']:.3g} it/s", f"data wait {100 * speed['data_share']:.0f} %"] if speed else []
        parts += [f"took {duration(time.perf_counter() - timer.epoch_begin)}{pauses}"]
        parts += [f"{skipped} steps skipped"] if skipped else []
        logger.info("Epoch %d ended: %s", epoch, ", ".join(parts))
        timer.begin_epoch()

    def log_validation(
        self, progress: Progress, scalars: dict[str, float], panels: dict[str, dict[str, np.ndarray]]
    ) -> None:
        """The validation's means as one line and curves; strips of its panels to images/<clip>/<step>.png."""
        logger.info(
            "Epoch: %d, Iter: %d, validation PSNR: %.2f dB, SSIM: %.4f (input %.2f, %.4f)",
            progress.epoch + 1, progress.step,
            scalars["val/psnr"], scalars["val/ssim"], scalars["val/psnr_input"], scalars["val/ssim_input"],
        )  # fmt: skip
        self.health.validated(scalars["val/psnr"])
        for name, images in panels.items():
            strip = comparison_strip(images)
            with best_effort("images of the validation"):
                imwrite_rgb(self.folder / "images" / name / f"{progress.step}.png", strip)
                write_whole(self.folder / "images" / PANELS_NAME, json.dumps(list(images)).encode())
            self.writers.image(f"val/{name}", strip, progress.step)
        self.writers.scalars(scalars, progress.step)  # last: the report shows the pictures

    def save(self, name: str, state: Callable[[], dict[str, Any]], progress: Progress) -> None:
        """checkpoints/checkpoint_<name>.pth: the state of the model plus the position, the options and the versions.

        state: called on rank 0 only, for it copies all weights and moments to the CPU.
        """
        is_again = name == "latest" and progress.saved == progress.step
        if name == "latest":
            progress.saved = progress.step
        if not self.is_main:
            return
        begin = time.perf_counter()
        path = own_checkpoint(self.folder, name)
        position = {**asdict(progress), "order": asdict(self.order), "world_size": utils_dist.get_world_size()}
        keep = 0 if is_again else self.options["train"]["keep_checkpoints"]
        checkpoint.save({**state(), **position, "options": self.options}, path, keep)
        logger.info("saved %s at iter %d (%.1f s)", path, progress.step, time.perf_counter() - begin)

    def close(self) -> None:
        self.writers.close()


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Rank 0 marks the folder of the run, and holds <folder>/.lock inside the block: a second run there would delete
    the first one's temporary files and mix their logs. Collective.

    The kernel releases the lock when rank 0 dies. It is a record lock: forked loader processes do not inherit it, and
    NFS passes it to its server, so that it holds between hosts as well, unless mounted with `nolock` or `local_lock`. A
    file system without locks gives a warning.
    Raises OptionError where another process holds it, or where files that no run made have the names of ours.
    """
    file = None
    with utils_dist.all_ranks_or_none():
        if utils_dist.is_main_process():
            # Runs of former versions left no mark. Those of others have options/*.json, models/*.pth, checkpoints, too.
            claim_run_folder(folder, WRITTEN, is_ours=any(folder.glob("checkpoints/checkpoint_*.pth.sha256")))
            file = _take_lock(folder / ".lock")
    try:
        yield
    finally:
        if file is not None:
            file.close()


def _take_lock(path: Path) -> BinaryIO:
    with writing(path, OTHER_ROOT):
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open until the end of the run
    start, is_told = time.monotonic(), False
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EAGAIN):
                logger.warning("%s cannot be locked (%s): start no second run in this folder", path, e.strerror)
                return file
        file.seek(0)
        holder = file.read().decode(errors="replace").strip()
        is_elsewhere = holder.startswith("process ") and f" on {socket.gethostname()}," not in holder
        if is_elsewhere and not is_told:
            is_told = True
            logger.warning("%s is held by %s: waiting up to %.0f s", path, holder, PATIENCE_WITH_HOSTS_S)
        if time.monotonic() - start > (PATIENCE_WITH_HOSTS_S if is_elsewhere else PATIENCE_S):
            raise OptionError(
                "another run is at work in this folder", f"{path}: {holder}",
                "one run in a folder", "wait for it or end it; for a second run set another task name",
            )  # fmt: skip
        time.sleep(0.1)
    with suppress(OSError):  # a full disk is for the first save to report
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}\n".encode())
    return file


def write_environment(folder: Path) -> None:
    """folder/environment.json, for the report: command, versions and device, of each start that trains. On rank 0."""
    # Without the ceiling, git would name the commit of a repository that this folder happens to lie in.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(ROOT.parent), "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit, device = "", utils_dist.get_device()
    with suppress(OSError, subprocess.SubprocessError):  # no git, or no repository
        commit = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=True).stdout
    values = {
        "command": " ".join(map(shown_argument, sys.argv)),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "commit": commit.strip() or None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda if device.type == "cuda" else None,
        "device": device_name(device),
        "ranks": utils_dist.get_world_size(),
    }
    path = folder / ENVIRONMENT_NAME
    with best_effort(str(path)):
        known = {name: value for name, value in values.items() if value is not None}
        write_whole(path, f"{json.dumps(known, indent=2)}\n".encode())

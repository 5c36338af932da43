"""Collect the measurements of each rank since the last log line, and make the log line's numbers.

    StepTimer, DeviceClock   measure the steps of this rank (utils/run/timing.py)
    measurements(...)        collects the values of this rank: `Measured`
    gather_objects           brings the `Measured` of all ranks together (utils_dist)
    log_values(...)          makes the numbers of the log line from them
    Health.judge_log_line    warns if they show a fault (utils/run/health.py)

What must stay: the names of the numbers of a log line (`log_values`), because they are the tags of
a run's history. A new number needs no code here: if all ranks have the number in `Measured.values`,
its mean becomes a number of the log line.

Tests: tests/parts/utils/test_gpu.py, tests/stories/test_main_train.py.
"""

import socket
import statistics
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from utils import device as devices
from utils import system, utils_dist
from utils.dist import gpu
from utils.host_memory import Use, host_memory


@dataclass(frozen=True)
class Measured:
    """The measurements of one rank since the last log line.

    The first step of a process is left out, because the process also starts its loader processes
    and compiles in this step. The ranks exchange these fields as messages (`message.pack`), so a
    new field must hold only numbers, texts, and lists, tuples or dicts of them.
    """

    host: str  # name of the host
    cores: tuple[int, ...]  # numbers of the cores that the process may use
    steps: int  # number of steps that were measured
    # Wall-clock seconds of all these steps. The three times below are parts of these seconds:
    #
    #     seconds   = data_s + compute_s + the rest
    #     compute_s = forward_s + backward passes + optimizer
    seconds: float
    # Seconds of waiting for batches. The first batch of an epoch does not count, because it waits
    # for new loader processes.
    data_s: float
    # Seconds of the forward passes, a part of compute_s. A backward pass waits for other ranks, and
    # a forward pass does not. So forward_s shows whether this rank itself is slow.
    forward_s: float
    compute_s: float  # seconds of all computing of the steps: forward, backward, optimizer
    values: dict[str, float]  # numbers of the log line, e.g. "loss", "lr", "memory_gb"
    # "GPU" and "host" -> (used, total) in GB. A memory that is not known is missing.
    memory: dict[str, Use]
    # How busy the GPU is, and how much of its memory is used, e.g. {"busy": 0.9, "used_gb": 61.2}.
    # This is the result of `gpu.usage`. None if it is not known.
    gpu: dict[str, float] | None


def measurements(steps: int, model_log: dict[str, Any], timed: dict[str, float]) -> Measured:
    """Return the measurements of this rank since the last log line.

    steps: number of steps that were measured.
    model_log: what `StepLog.read_line` (utils.run.steps) returns, and the seconds of the forward
        passes: {"loss": ..., other losses, "lr": ..., "grad_norms": [...], "forward_s": ...}.
    timed: what `StepTimer.read` returns for these steps: {"it_per_s": ..., "data_share": ...,
        "epoch_start_share": ..., "compute_share": ..., other shares, "memory_gb": ...}. The share
        of a kind of work that was not done is missing. Without a step there is only "memory_gb".
    """
    values: dict[str, Any] = model_log | timed
    # Take out the three values that are not numbers of the log line.
    forward_s = values.pop("forward_s")
    grad_norms = values.pop("grad_norms")
    epoch_start_share = values.pop("epoch_start_share", 0.0)
    if grad_norms:  # empty if all steps were skipped
        values["grad_norm"] = statistics.median(grad_norms)
    # The timer gives steps per second and shares, because the log line shows both. The timer gives
    # no seconds, so compute the seconds here. E.g. 10 steps at 2 steps per second took 5 s, and a
    # share of 0.3 is 1.5 s. Without a step there is no speed, and each time is 0.
    seconds = steps / timed["it_per_s"] if steps else 0.0
    # `data_share` contains the wait for the first batch of an epoch (`epoch_start_share`). Subtract
    # this wait, because it does not mean that the loader is slow. `values` keeps the whole
    # `data_share`, because the log line shows the whole wait.
    data_share = values.get("data_share", 0.0) - epoch_start_share
    compute_share = values.get("compute_share", 0.0)
    device = utils_dist.get_device()
    return Measured(
        host=socket.gethostname(),
        cores=system.cores(),
        steps=steps,
        seconds=seconds,
        data_s=data_share * seconds,
        forward_s=forward_s,
        compute_s=compute_share * seconds,
        values=values,
        memory=_memory(device),
        gpu=gpu.usage(device),
    )


def _memory(device: torch.device) -> dict[str, Use]:
    """Return "GPU" and "host" -> (used, total) in GB. A memory that is not known is missing."""
    memory = {}
    host = host_memory()
    if host:
        memory["host"] = host
    with suppress(RuntimeError):  # the driver does not report its memory
        use = devices.memory_gb(device)
        if use:
            memory["GPU"] = use
    return memory


def log_values(ranks: list[Measured]) -> dict[str, float]:
    """Return the numbers of the log line. Their names are tags of the history, so they must stay.

        each name of `Measured.values`   mean over the ranks
        "memory_gb"                      largest over the ranks

    If all ranks report their GPU, three numbers are added
    (test_the_log_line_has_the_idlest_and_the_fullest_gpu):

        "gpu_busy_min", "gpu_busy_mean"  smallest and mean share of the time in which a GPU computes
        "gpu_used_gb_max"                used memory of the fullest GPU

    ranks: the measurements of each rank, in the order of the ranks.
    """
    values = {}
    for name in ranks[0].values:
        # Leave out a number that only some ranks have, because it has no mean over all ranks.
        if all(name in rank.values for rank in ranks):
            values[name] = statistics.fmean(rank.values[name] for rank in ranks)
    values["memory_gb"] = max(rank.values["memory_gb"] for rank in ranks)

    gpus = [rank.gpu for rank in ranks if rank.gpu]
    if len(gpus) == len(ranks):
        busy_shares = [use["busy"] for use in gpus]
        values["gpu_busy_min"] = min(busy_shares)
        values["gpu_busy_mean"] = statistics.fmean(busy_shares)
        values["gpu_used_gb_max"] = max(use["used_gb"] for use in gpus)
    return values

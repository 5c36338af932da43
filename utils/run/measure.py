"""What the ranks measured since the last log line, brought together by one exchange."""

from __future__ import annotations

import os
import socket
import statistics
from dataclasses import dataclass
from typing import Any

from utils import utils_dist
from utils.dist import gpu_use
from utils.run.memory import Use, memory_of


@dataclass(frozen=True)
class Measured:
    """Of one rank. Times in seconds, over `steps` steps; the first step of a process is left out.

    data_s: waiting for batches, without the first one of an epoch, which waits for new workers. forward_s: computing
    forward passes: these wait for no other rank, as the backward pass does. compute_s: all of the steps. values: of
    the log line. cores: that the process may use. memory: see `memory_of`.
    """

    host: str
    cores: frozenset[int]
    steps: int
    seconds: float
    data_s: float
    forward_s: float
    compute_s: float
    values: dict[str, float]
    memory: dict[str, Use]
    gpu: dict[str, float] | None


def measured(steps: int, model_log: dict[str, Any], timed: dict[str, float]) -> Measured:
    """Of this rank. model_log: `current_log` of the model. timed: `StepTimer.read`, of `steps` steps."""
    values, device = model_log | timed, utils_dist.get_device()
    forward_s, norms = values.pop("forward_s"), values.pop("grad_norms")
    if norms:
        values["grad_norm"] = statistics.median(norms)
    seconds = steps / timed["it_per_s"] if steps else 0.0
    data_s = (timed.get("data_share", 0.0) - values.pop("epoch_start_share", 0.0)) * seconds
    return Measured(
        socket.gethostname(), frozenset(os.sched_getaffinity(0)), steps, seconds, data_s, forward_s,
        timed.get("compute_share", 0.0) * seconds, values, memory_of(device), gpu_use.usage(device),
    )  # fmt: skip


def log_values(ranks: list[Measured]) -> dict[str, float]:
    """For the log line: means over the ranks; of memory_gb the most."""
    names = [name for name in ranks[0].values if all(name in rank.values for rank in ranks)]
    values = {name: statistics.fmean(rank.values[name] for rank in ranks) for name in names}
    values["memory_gb"] = max(rank.values["memory_gb"] for rank in ranks)
    return values | gpu_use.log_values([rank.gpu for rank in ranks])


def rank_values(ranks: list[Measured]) -> dict[str, float]:
    """For the writers: seconds per step of each rank, as "data_s/<rank>" and so on; empty without a step."""
    names = ("data_s", "forward_s", "compute_s") if ranks[0].steps else ()
    return {f"{name}/{i}": getattr(rank, name) / rank.steps for name in names for i, rank in enumerate(ranks)}

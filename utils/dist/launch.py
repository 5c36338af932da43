"""Who started this process, and as which rank: read from the environment alone, without side effects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from utils.errors import DistError


@dataclass(frozen=True)
class LaunchInfo:
    """mode: "single", "torchrun", "platform" (variables injected by hand or by a cloud) or "slurm"."""

    mode: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    master_addr: str = ""
    master_port: int = 0


def read_launch(env: Mapping[str, str], gpu_count: int = 0) -> LaunchInfo:
    """The launch that `env` describes: WORLD_SIZE > 1, else SLURM_NTASKS > 1 with SLURM_PROCID, else one process.

    gpu_count: GPUs of this host; 0 where there are none, and then LOCAL_RANK has no upper bound.
    Raises one DistError that lists every variable that is missing, no number or out of range.
    """
    faults: list[str] = []
    world_size = _number(env, "WORLD_SIZE", faults, default=1, low=1)
    tasks = _number(env, "SLURM_NTASKS", faults, default=1, low=1) if "SLURM_PROCID" in env and world_size == 1 else 1
    if world_size > 1:
        mode = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "platform"
        rank = _number(env, "RANK", faults, low=0, high=world_size - 1, bound="WORLD_SIZE")
        addr = env.get("MASTER_ADDR", "").strip()
        if not addr:
            faults.append("MASTER_ADDR is missing (host name or address of rank 0)")
        port = _number(env, "MASTER_PORT", faults, low=1, high=65535)
    elif tasks > 1:
        mode, world_size = "slurm", tasks
        rank = _number(env, "SLURM_PROCID", faults, low=0, high=world_size - 1, bound="SLURM_NTASKS")
        addr, port = _slurm_master(env, faults)
    else:
        mode, rank, addr, port = "single", 0, "", 0
    local_rank = 0
    if mode != "single":
        name = "LOCAL_RANK" if env.get("LOCAL_RANK") else "SLURM_LOCALID"
        high = gpu_count - 1 if gpu_count > 0 else None
        local_rank = _number(env, name, faults, default=0, low=0, high=high, bound="the number of GPUs on this host")
    if faults:
        raise DistError(
            f"the launch variables are wrong: {'; '.join(faults)}",
            "the environment of " + (f"rank {env['RANK']}" if env.get("RANK", "").isdigit() else "this process"),
            "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as docs/ddp.md describes them",
            "correct these variables, or unset WORLD_SIZE to train in one process",
        )
    return LaunchInfo(mode, rank, local_rank, world_size, addr, port)


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list, zero padding kept: "gpu[003-007,9],cpu1" -> "gpu003"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist.strip())
    return re.sub(r"\[([^\],\-]*)[^\]]*\]", r"\1", first.group(0) if first else "")


def _slurm_master(env: Mapping[str, str], faults: list[str]) -> tuple[str, int]:
    """Address and port, the same in every task of the step; the user's own MASTER_* take precedence."""
    # The step's list: with `srun --nodelist` task 0 need not sit on the first host of the job.
    nodelist = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
    addr = env.get("MASTER_ADDR", "").strip() or first_host(nodelist)
    if not addr:
        faults.append("SLURM_JOB_NODELIST is missing (first host of the job)")
    if env.get("MASTER_PORT"):
        return addr, _number(env, "MASTER_PORT", faults, low=1, high=65535)
    return addr, 15000 + _number(env, "SLURM_JOB_ID", faults, low=0) % 10000


def _number(
    env: Mapping[str, str],
    name: str,
    faults: list[str],
    *,
    default: int | None = None,
    low: int,
    high: int | None = None,
    bound: str = "",
) -> int:
    """The variable as an integer within [low, high]; after a fault, which is added to `faults`, `low`."""
    text = env.get(name, "").strip()
    if not text:
        if default is None:
            faults.append(f"{name} is missing")
        return low if default is None else default
    try:
        value = int(text)
    except ValueError:
        faults.append(f"{name} is {text!r}, no number")
        return low
    if value < low or (high is not None and value > high):
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        faults.append(f"{name} is {value}, expected {limit}" + (f" (below {bound})" if bound else ""))
        return low
    return value

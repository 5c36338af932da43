"""The launch of this process, as the environment describes it."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress

from utils.dist.state import LaunchInfo
from utils.errors import DistError

# torchrun's names for a node, which Kubeflow sets in part, and the names that other platforms give
# the same.
NODE_NAMES = {
    "PET_NPROC_PER_NODE": "NPROC_PER_NODE", "PET_NNODES": "WORLD_SIZE", "PET_NODE_RANK": "RANK",
    "PET_MASTER_ADDR": "MASTER_ADDR", "PET_MASTER_PORT": "MASTER_PORT",
}  # fmt: skip


def read_launch(env: Mapping[str, str], gpu_count: int = 0, command: str = "COMMAND") -> LaunchInfo:
    """The launch that `env` describes: WORLD_SIZE > 1, else SLURM_NTASKS > 1 with SLURM_PROCID,
    else one process.

    gpu_count: GPUs that this process sees; with 0 or 1 of them LOCAL_RANK has no upper bound
    (`utils_dist.get_device`).
    command: what started this process, for the advice of an error.
    Raises one DistError that lists every variable that is missing, no number or out of range.
    """
    faults: list[str] = []
    # torchrun's own variables win: in an sbatch shell those of SLURM describe the allocation.
    is_task = "SLURM_PROCID" in env and "TORCHELASTIC_RUN_ID" not in env
    if _is_batch_script(env) and env.get("WORLD_SIZE") == "1":
        is_task = False  # the user wants one process
    tasks = _number(env, "SLURM_NTASKS", faults, default=1, low=1) if is_task else 1
    world_size = _count(env, "WORLD_SIZE", faults, is_required=tasks == 1)
    if world_size > 1:
        mode = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "platform"
        rank, addr, port = _place(env, ["WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"], faults)
    elif tasks > 1:
        mode, world_size = "slurm", tasks
        _refuse_batch_script(env, tasks, command)
        _refuse_idle_gpus(env, tasks, gpu_count, command)
        rank = _number(
            env, "SLURM_PROCID", faults, low=0, high=world_size - 1, bound="SLURM_NTASKS"
        )
        # Address and port are the same in every task of the step; the user's own MASTER_* take
        # precedence. The step's list: with `srun --nodelist` task 0 need not sit on the first host
        # of the job.
        hosts = (
            env.get("SLURM_STEP_NODELIST")
            or env.get("SLURM_JOB_NODELIST")
            or env.get("SLURM_NODELIST", "")
        )
        addr = env.get("MASTER_ADDR", "").strip() or first_host(hosts)
        if not addr:
            faults.append("SLURM_JOB_NODELIST is missing (first host of the job)")
        if env.get("MASTER_PORT"):
            port = _number(env, "MASTER_PORT", faults, low=1, high=65535)
        else:
            port = 15000 + _number(env, "SLURM_JOB_ID", faults, low=0) % 10000
    else:
        mode, rank, addr, port = "single", 0, "", 0
    local_rank, join_s, timeout_s = 0, 300.0, 0.0
    if mode != "single":
        join_s, timeout_s = (
            _seconds(env, "SPIKEVRT_JOIN_TIMEOUT", join_s),
            _seconds(env, "NCCL_TIMEOUT", timeout_s),
        )
        name = "LOCAL_RANK" if env.get("LOCAL_RANK") else "SLURM_LOCALID"
        high = gpu_count - 1 if gpu_count > 1 else None
        local_rank = _number(
            env, name, faults, default=0, low=0, high=high, bound="the number of GPUs on this host"
        )
        if mode == "platform" and gpu_count > 1 and not env.get(name) and not faults:
            raise DistError(
                f"WORLD_SIZE is {world_size}, LOCAL_RANK and NPROC_PER_NODE are missing, "
                f"{gpu_count} GPUs are visible",
                f"the environment of rank {rank}",
                "LOCAL_RANK if the platform starts one process per GPU, "
                "NPROC_PER_NODE if it starts one per node",
                f"one process per GPU:  LOCAL_RANK=$((RANK % {gpu_count})) {command}\n"
                f"{'':<12}one process per node: NPROC_PER_NODE={gpu_count} {command}",
            )
    _refuse(faults, env)
    by_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return LaunchInfo(mode, rank, local_rank, world_size, addr, port, by_agent, join_s, timeout_s)


def _refuse_idle_gpus(env: Mapping[str, str], tasks: int, gpu_count: int, command: str) -> None:
    """Raise DistError if SLURM started one task on each node of several GPUs: all but one would
    idle.
    """
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    nodes = host_count(hosts)
    if gpu_count > 1 and nodes == tasks:
        raise DistError(
            f"SLURM started one task on each of {nodes} nodes, and each sees {gpu_count} GPUs: "
            f"{gpu_count - 1} of them would idle",
            "the environment of this task",
            "one task for each GPU",
            f"sbatch --nodes={nodes} --ntasks-per-node={gpu_count} submit_job.sh FILE\n"
            f"{'':<12}or: srun --ntasks-per-node={gpu_count} {command}\n"
            f"{'':<12}one GPU of each node: CUDA_VISIBLE_DEVICES=0 srun {command}",
        )


def _is_batch_script(env: Mapping[str, str]) -> bool:
    """Whether sbatch started this process, or a process that did, and srun did not.

    srun passes the variables of the batch script on to its tasks, and adds SLURM_STEP_ID.
    """
    return env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env


def _refuse_batch_script(env: Mapping[str, str], tasks: int, command: str) -> None:
    """Raise DistError if this is the batch script of a job of several tasks: it would wait in vain
    for tasks that nobody starts.
    """
    if _is_batch_script(env):
        raise DistError(
            f"the job has {tasks} tasks, and this process is its batch script: srun starts tasks",
            "the environment of the batch script: SLURM_PROCID without SLURM_STEP_ID",
            "a process that srun has started",
            f"sbatch submit_job.sh FILE, or in your own script: srun {command}\n"
            f"{'':<12}one process alone: WORLD_SIZE=1 {command}",
        )


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    with suppress(ValueError):
        if not text or 0 < float(text) < 10**6:
            return float(text or default)
    raise DistError(
        f"{name} is {text!r}", "the environment", "seconds > 0", f"correct or unset {name}"
    )


def node_variables(env: Mapping[str, str], gpu_count: int = 0) -> dict[str, str]:
    """torchrun's variables for the ranks of this node, where a platform starts one process per
    node; {} for a rank.

    Such a platform sets NPROC_PER_NODE (PAI-DLC) or PET_NPROC_PER_NODE (Kubeflow), and no
    LOCAL_RANK. Its RANK counts nodes, and so does its WORLD_SIZE, unless it sets PET_NNODES:
    Kubeflow's WORLD_SIZE counts processes.
    gpu_count: GPUs that this process sees, for NPROC_PER_NODE "auto" and "gpu". Raises DistError as
    `read_launch`.
    """
    names = [own if env.get(own) else other for own, other in NODE_NAMES.items()]
    found = {
        own: env[name].strip() for own, name in zip(NODE_NAMES, names, strict=True) if env.get(name)
    }
    is_task = "SLURM_PROCID" in env and "WORLD_SIZE" not in env
    if "PET_NPROC_PER_NODE" not in found or env.get("LOCAL_RANK") or is_task:
        return {}
    if found["PET_NPROC_PER_NODE"] in ("auto", "gpu"):
        found["PET_NPROC_PER_NODE"] = str(max(1, gpu_count))
    elif found["PET_NPROC_PER_NODE"] == "cpu":  # as torchrun counts
        found["PET_NPROC_PER_NODE"] = str(os.cpu_count())
    if "PET_RDZV_ENDPOINT" in env:  # an elastic job, described by torchrun's variables alone
        return found
    faults: list[str] = []
    ranks = _number({names[0]: found["PET_NPROC_PER_NODE"]}, names[0], faults, low=1)
    nodes = _count(env, names[1], faults)
    if nodes > 1:
        _place(env, names[1:], faults)
    else:
        found["PET_STANDALONE"] = "1"
    _refuse(faults, env)
    return {} if ranks == 1 and env.get("WORLD_SIZE", "1") == str(nodes) else found


def _count(env: Mapping[str, str], name: str, faults: list[str], is_required: bool = True) -> int:
    """The number of ranks or nodes; 1 where it is missing and no RANK with an address says that
    there are others.
    """
    is_one = not (is_required and env.get("RANK") and env.get("MASTER_ADDR"))
    return _number(env, name, faults, default=1 if is_one else None, low=1)


def _place(env: Mapping[str, str], names: list[str], faults: list[str]) -> tuple[int, str, int]:
    """(rank, address, port) among several ranks or nodes; names: of their number and of these
    three.
    """
    count, rank, addr, port = names
    number = _number(env, rank, faults, low=0, high=int(env[count]) - 1, bound=count)
    if not env.get(addr, "").strip():
        faults.append(f"{addr} is missing (host name or address of rank 0)")
    return number, env.get(addr, "").strip(), _number(env, port, faults, low=1, high=65535)


def _refuse(faults: list[str], env: Mapping[str, str]) -> None:
    if faults:
        who = f"rank {env['RANK']}" if env.get("RANK", "").isdigit() else "this process"
        where = f"the environment of {who}"
        expected = (
            "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
            "as docs/ddp.md describes them"
        )
        do = "correct these variables, or unset WORLD_SIZE to train in one process"
        raise DistError(f"the launch variables are wrong: {'; '.join(faults)}", where, expected, do)


def host_count(nodelist: str) -> int:
    """Return the number of hosts of a SLURM node list: 6 for "gpu[003-007],cpu1"."""
    count = 0
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        hosts = 1
        for numbers in re.findall(r"\[([^\]]*)\]", name):
            hosts *= sum(_numbers_in(part) for part in numbers.split(","))
        count += hosts
    return count


def _numbers_in(part: str) -> int:
    """Return how many numbers "003-007" stands for, or 1 for "9"."""
    low, dash, high = part.partition("-")
    if not dash or not (low.isdigit() and high.isdigit()):
        return 1
    return int(high) - int(low) + 1


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list, zero padding kept: "gpu[003-007,9],cpu1" -> "gpu003"."""
    first, *_ = re.findall(r"(?:[^,\[]|\[[^\]]*\])*", nodelist.strip())
    return re.sub(r"\[([^\],\-]*)[^\]]*\]", r"\1", first)


def _number(
    env: Mapping[str, str], name: str, faults: list[str], low: int, high: int | None = None,
    bound: str = "",
    default: int | None = None,
) -> int:  # fmt: skip
    """The variable as an integer within [low, high]; after a fault, which is added to `faults`,
    `low`.
    """
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
        faults.append(
            f"{name} is {value}, expected {limit}" + (f" (below {bound})" if bound else "")
        )
        return low
    return value

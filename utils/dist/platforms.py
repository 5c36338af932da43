"""The launch of this process, as the environment describes it.

`read_launch` reads the variables of one rank: which rank it is, of how many, and where rank 0 is.
It knows torchrun, SLURM (tasks of srun), and platforms or users that set the same variables:

    WORLD_SIZE=8 RANK=3 LOCAL_RANK=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

`node_variables` is for platforms that start one process for each node. This process then becomes
torchrun, which starts the ranks of the node.

`utils_dist.ranks` calls both, after `utils.dist.launchers` has added the standard names.

Most functions here collect what is wrong in a list `faults`, and return a harmless value in its
place. So one error can list all variables that are wrong.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from utils.dist.state import LaunchInfo
from utils.errors import DistError

Env = Mapping[str, str]

# torchrun's names for a node, which Kubeflow sets in part -> the names that other platforms give
# the same. If both are set, torchrun's name counts.
NODE_NAMES = {
    "PET_NPROC_PER_NODE": "NPROC_PER_NODE",
    "PET_NNODES": "WORLD_SIZE",
    "PET_NODE_RANK": "RANK",
    "PET_MASTER_ADDR": "MASTER_ADDR",
    "PET_MASTER_PORT": "MASTER_PORT",
}

# An error shows its advice behind 12 characters. Further lines of the advice begin with as many
# blanks.
BLANKS = " " * 12


class Place(NamedTuple):
    """Where a rank (or node) is among the others, and where they meet.

    number: number of this rank or node, from 0. addr, port: host and port of rank 0.
    """

    number: int
    addr: str
    port: int


# ---- One rank --------------------------------------------------------------------------------


def read_launch(env: Env, gpu_count: int = 0, command: str = "COMMAND") -> LaunchInfo:
    """Return the launch that `env` describes.

    If WORLD_SIZE is above 1, the variables of torchrun count. Else, if SLURM_NTASKS is above 1 and
    there is a SLURM_PROCID, the variables of SLURM count. Else this is the only process.

    gpu_count: number of GPUs that this process sees. With 0 or 1 of them, LOCAL_RANK has no upper
        bound, because the launcher may have shown each rank its own GPU alone.
    command: what started this process, for the advice of an error.

    Raises one DistError that lists every variable that is missing, no number or out of range.
    """
    faults: list[str] = []
    # torchrun's own variables win: in an sbatch shell those of SLURM describe the allocation.
    is_task = "SLURM_PROCID" in env and "TORCHELASTIC_RUN_ID" not in env
    if _is_batch_script(env) and env.get("WORLD_SIZE") == "1":
        is_task = False  # the user wants one process
    tasks = 1
    if is_task:
        tasks = _number(env, "SLURM_NTASKS", faults, default=1, low=1)
    world_size = _count(env, "WORLD_SIZE", faults, is_required=tasks == 1)

    if world_size > 1:
        mode = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "platform"
        place = _place(env, ["WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"], faults)
    elif tasks > 1:
        mode = "slurm"
        world_size = tasks
        _refuse_batch_script(env, tasks, command)
        _refuse_idle_gpus(env, tasks, gpu_count, command)
        place = _place_of_task(env, tasks, faults)
    else:
        _refuse(faults, env)
        return LaunchInfo(mode="single", by_agent=_is_store_of_agent(env))

    join_s = _seconds(env, "SPIKEVRT_JOIN_TIMEOUT", default=300.0)
    timeout_s = _seconds(env, "NCCL_TIMEOUT", default=0.0)
    local_name = "LOCAL_RANK" if env.get("LOCAL_RANK") else "SLURM_LOCALID"
    local_rank = _number(
        env,
        local_name,
        faults,
        default=0,
        low=0,
        high=gpu_count - 1 if gpu_count > 1 else None,
        bound="the number of GPUs on this host",
    )
    if mode == "platform" and gpu_count > 1 and not env.get(local_name) and not faults:
        raise _unknown_local_rank(world_size, place.number, gpu_count, command)
    _refuse(faults, env)
    return LaunchInfo(
        mode=mode,
        rank=place.number,
        local_rank=local_rank,
        world_size=world_size,
        master_addr=place.addr,
        master_port=place.port,
        by_agent=_is_store_of_agent(env),
        join_s=join_s,
        timeout_s=timeout_s,
    )


def _is_store_of_agent(env: Env) -> bool:
    """Whether torchrun's agent has opened the store at MASTER_PORT, and not rank 0."""
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _place_of_task(env: Env, tasks: int, faults: list[str]) -> Place:
    """Return the place of a task of SLURM.

    Address and port are derived alike in every task of a step. The user's own MASTER_ADDR and
    MASTER_PORT take precedence.
    """
    rank = _number(env, "SLURM_PROCID", faults, low=0, high=tasks - 1, bound="SLURM_NTASKS")
    # The hosts of the step come first: with `srun --nodelist` task 0 need not sit on the first host
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
        # Two jobs on one host have different numbers, so they seldom share a port.
        port = 15000 + _number(env, "SLURM_JOB_ID", faults, low=0) % 10000
    return Place(rank, addr, port)


# ---- One process for each node ---------------------------------------------------------------


def node_variables(env: Env, gpu_count: int = 0) -> dict[str, str]:
    """Return torchrun's variables for the ranks of this node, or {} if this process is a rank.

    They are returned if a platform starts one process for each node. Such a platform sets
    NPROC_PER_NODE (PAI-DLC) or PET_NPROC_PER_NODE (Kubeflow), and no LOCAL_RANK. Its RANK counts
    nodes. So does its WORLD_SIZE, unless it sets PET_NNODES: Kubeflow's WORLD_SIZE counts
    processes. E.g. from PAI-DLC

        NPROC_PER_NODE=8 WORLD_SIZE=2 RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

    becomes PET_NPROC_PER_NODE=8 PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=10.0.0.1 ...

    gpu_count: number of GPUs that this process sees, for NPROC_PER_NODE "auto" and "gpu".

    Raises DistError as `read_launch`.
    """
    # The name under which each variable is looked up, and what it says.
    names = []
    found = {}
    for torchruns_name, other_name in NODE_NAMES.items():
        name = torchruns_name if env.get(torchruns_name) else other_name
        names.append(name)
        if env.get(name):
            found[torchruns_name] = env[name].strip()

    is_task_of_slurm = "SLURM_PROCID" in env and "WORLD_SIZE" not in env
    if "PET_NPROC_PER_NODE" not in found or env.get("LOCAL_RANK") or is_task_of_slurm:
        return {}  # a rank
    if found["PET_NPROC_PER_NODE"] in ("auto", "gpu"):
        found["PET_NPROC_PER_NODE"] = str(max(1, gpu_count))
    elif found["PET_NPROC_PER_NODE"] == "cpu":  # as torchrun counts
        found["PET_NPROC_PER_NODE"] = str(os.cpu_count())
    if "PET_RDZV_ENDPOINT" in env:  # an elastic job, described by torchrun's variables alone
        return found

    faults: list[str] = []
    ranks_name, nodes_name, *_ = names
    ranks = _number({ranks_name: found["PET_NPROC_PER_NODE"]}, ranks_name, faults, low=1)
    nodes = _count(env, nodes_name, faults)
    if nodes > 1:
        _place(env, names[1:], faults)  # only to find faults
    else:
        found["PET_STANDALONE"] = "1"  # torchrun chooses address and port itself
    _refuse(faults, env)
    # One rank on each node, and a WORLD_SIZE that counts nodes: it counts ranks as well, so this
    # process can be the rank itself.
    if ranks == 1 and env.get("WORLD_SIZE", "1") == str(nodes):
        return {}
    return found


# ---- Lists of hosts --------------------------------------------------------------------------


def host_count(nodelist: str) -> int:
    """Return the number of hosts of a SLURM node list: 6 for "gpu[003-007],cpu1"."""
    count = 0
    # The names are divided by commas, but not by commas within brackets.
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        # "rack[1-2]gpu[1-4]" stands for 2 x 4 hosts.
        hosts = 1
        for numbers in re.findall(r"\[([^\]]*)\]", name):
            hosts *= sum(_numbers_in(text) for text in numbers.split(","))
        count += hosts
    return count


def _numbers_in(text: str) -> int:
    """Return how many numbers "003-007" stands for, here 5. "9" stands for 1."""
    low, dash, high = text.partition("-")
    if not dash or not (low.isdigit() and high.isdigit()):
        return 1
    return int(high) - int(low) + 1


def first_host(nodelist: str) -> str:
    """Return the first host of a SLURM node list: "gpu[003-007,9],cpu1" -> "gpu003".

    The zeros in front of a number stay.
    """
    # All up to the first comma that is not within brackets.
    first = re.findall(r"(?:[^,\[]|\[[^\]]*\])*", nodelist.strip())[0]
    # In place of each bracket, its first number.
    return re.sub(r"\[([^\],\-]*)[^\]]*\]", r"\1", first)


# ---- Reading variables -----------------------------------------------------------------------


def _count(env: Env, name: str, faults: list[str], is_required: bool = True) -> int:
    """Return the number of ranks or nodes.

    If the variable is missing, this is 1. But a RANK with a MASTER_ADDR says that there are others:
    then the missing variable is a fault, if it is required.
    """
    has_others = env.get("RANK") and env.get("MASTER_ADDR")
    default = None if is_required and has_others else 1
    return _number(env, name, faults, default=default, low=1)


def _place(env: Env, names: list[str], faults: list[str]) -> Place:
    """Return the place of a rank or node among several.

    names: of the variables of count, number, address and port.
    """
    count_name, number_name, addr_name, port_name = names
    last = int(env[count_name]) - 1
    number = _number(env, number_name, faults, low=0, high=last, bound=count_name)
    addr = env.get(addr_name, "").strip()
    if not addr:
        faults.append(f"{addr_name} is missing (host name or address of rank 0)")
    port = _number(env, port_name, faults, low=1, high=65535)
    return Place(number, addr, port)


def _number(
    env: Env,
    name: str,
    faults: list[str],
    low: int,
    high: int | None = None,
    bound: str = "",
    default: int | None = None,
) -> int:
    """Return a variable as an integer from `low` to `high`.

    If it is wrong, a text is added to `faults`, and `low` is returned.

    high: the largest number, or None if there is no limit.
    bound: what the limit comes from, for the text, e.g. "WORLD_SIZE".
    default: returned if the variable is missing. None if a missing variable is a fault.
    """
    text = env.get(name, "").strip()
    if not text:
        if default is not None:
            return default
        faults.append(f"{name} is missing")
        return low
    try:
        value = int(text)
    except ValueError:
        faults.append(f"{name} is {text!r}, no number")
        return low
    if value < low or (high is not None and value > high):
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        source = f" (below {bound})" if bound else ""
        faults.append(f"{name} is {value}, expected {limit}{source}")
        return low
    return value


def _seconds(env: Env, name: str, default: float) -> float:
    """Return a variable as seconds. Raises DistError if it is none.

    default: returned if the variable is missing or empty.
    """
    text = env.get(name)
    if not text:
        return default
    with suppress(ValueError):
        seconds = float(text)
        # A million seconds, 11 days, is no limit that anybody means.
        if 0 < seconds < 10**6:
            return seconds
    raise DistError(
        what=f"{name} is {text!r}",
        where="the environment",
        expected="seconds > 0",
        do=f"correct or unset {name}",
    )


# ---- Refusals --------------------------------------------------------------------------------


def _refuse(faults: list[str], env: Env) -> None:
    """Raise one DistError for all faults, if there are any."""
    if not faults:
        return
    who = f"rank {env['RANK']}" if env.get("RANK", "").isdigit() else "this process"
    raise DistError(
        what=f"the launch variables are wrong: {'; '.join(faults)}",
        where=f"the environment of {who}",
        expected="RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
        "as docs/ddp.md describes them",
        do="correct these variables, or unset WORLD_SIZE to train in one process",
    )


def _unknown_local_rank(world_size: int, rank: int, gpu_count: int, command: str) -> DistError:
    """Return the error of a process that cannot know which GPU is its own."""
    return DistError(
        what=f"WORLD_SIZE is {world_size}, LOCAL_RANK and NPROC_PER_NODE are missing, "
        f"{gpu_count} GPUs are visible",
        where=f"the environment of rank {rank}",
        expected="LOCAL_RANK if the platform starts one process per GPU, "
        "NPROC_PER_NODE if it starts one per node",
        do=f"one process per GPU:  LOCAL_RANK=$((RANK % {gpu_count})) {command}\n"
        f"{BLANKS}one process per node: NPROC_PER_NODE={gpu_count} {command}",
    )


def _refuse_idle_gpus(env: Env, tasks: int, gpu_count: int, command: str) -> None:
    """Raise DistError if SLURM started one task on each node of several GPUs.

    All GPUs of a node but one would idle.
    """
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    nodes = host_count(hosts)
    if gpu_count > 1 and nodes == tasks:
        raise DistError(
            what=f"SLURM started one task on each of {nodes} nodes, and each sees {gpu_count} "
            f"GPUs: {gpu_count - 1} of them would idle",
            where="the environment of this task",
            expected="one task for each GPU",
            do=f"sbatch --nodes={nodes} --ntasks-per-node={gpu_count} submit_job.sh FILE\n"
            f"{BLANKS}or: srun --ntasks-per-node={gpu_count} {command}\n"
            f"{BLANKS}one GPU of each node: CUDA_VISIBLE_DEVICES=0 srun {command}",
        )


def _is_batch_script(env: Env) -> bool:
    """Whether sbatch started this process, or a process that did, and srun did not.

    srun passes the variables of the batch script on to its tasks, and adds SLURM_STEP_ID.
    """
    return env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env


def _refuse_batch_script(env: Env, tasks: int, command: str) -> None:
    """Raise DistError if this is the batch script of a job of several tasks.

    It would wait in vain for tasks that nobody starts.
    """
    if _is_batch_script(env):
        raise DistError(
            what=f"the job has {tasks} tasks, and this process is its batch script: srun starts "
            "tasks",
            where="the environment of the batch script: SLURM_PROCID without SLURM_STEP_ID",
            expected="a process that srun has started",
            do=f"sbatch submit_job.sh FILE, or in your own script: srun {command}\n"
            f"{BLANKS}one process alone: WORLD_SIZE=1 {command}",
        )

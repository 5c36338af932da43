"""The launch of this process, as the environment describes it.

`read_launch` reads the variables of one rank: the number of this rank, the number of all ranks, and
the host of rank 0. `read_launch` understands the variables of SLURM (of tasks that srun starts) and
the variables of torchrun, which many platforms and users set too:

    WORLD_SIZE=8 RANK=3 LOCAL_RANK=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

`node_variables` is for platforms that start one process for each node (host). torchrun then takes
the place of this process, and starts the ranks of the node.

`utils_dist.ranks` calls `node_variables` and then `read_launch`. Before, `utils.dist.launchers` has
added these names to an environment that has other names.

Most functions here append a text to a list `faults` when a variable is wrong, and return a harmless
value (mostly the least allowed number). They do not raise at once, because one error shall list all
wrong variables. `_refuse` raises this error.

What must stay: which variables count, because users' job scripts rely on it. These tests notice a
change:

    read_launch      test_the_variables_tell_who_started_the_ranks
    node_variables   test_a_process_that_stands_for_a_node_knows_its_place
                     test_a_rank_does_not_stand_for_a_node
    lists of hosts   test_the_hosts_of_a_node_list_are_counted
                     test_the_first_host_of_a_node_list
    refusals         test_a_wrong_variable_is_named
                     test_slurm_with_one_task_on_each_node_of_several_gpus_is_refused
                     test_a_command_for_each_case_is_given_if_ranks_cannot_be_told_from_nodes

Free to change: the texts of faults and of advice, together with test_launch.py.

Tests: tests/stories/test_launch.py.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from utils.dist.state import LaunchInfo
from utils.errors import INDENT_OF_DO, DistError

Env = Mapping[str, str]

# The variables that describe a node: torchrun's name -> the name on other platforms. torchrun's
# names stand for its flags, e.g. PET_NNODES for --nnodes. Kubeflow sets some of them. If an
# environment has both names of a variable, torchrun's name counts.
NODE_NAMES = {
    "PET_NPROC_PER_NODE": "NPROC_PER_NODE",  # number of ranks on this node
    "PET_NNODES": "WORLD_SIZE",  # number of nodes
    "PET_NODE_RANK": "RANK",  # number of this node
    "PET_MASTER_ADDR": "MASTER_ADDR",  # host of node 0
    "PET_MASTER_PORT": "MASTER_PORT",  # free port of this host
}

# A piece of a host name in a node list of SLURM: a single character, or a bracket with all that it
# encloses. A comma is a piece only within a bracket, so the names of "gpu[003-007,9],cpu1" are
# "gpu[003-007,9]" and "cpu1".
PIECE_OF_NAME = r"(?:[^,\[]|\[[^\]]*\])"

# The port of rank 0 of a SLURM job without MASTER_PORT lies in 15000 ... 24999: FIRST_PORT plus the
# last four digits of the job's number. Linux gives the ports from 32768 on to outgoing connections,
# and torchrun's own default is 29500, so neither of them takes such a port. All ranks must compute
# the same port, so a change here breaks a job with ranks of different versions.
FIRST_PORT = 15000
PORT_COUNT = 10000


class Member(NamedTuple):
    """A rank (or a node) of a launch: its number, and the address where all ranks meet."""

    number: int  # of this rank or node, from 0
    addr: str  # host of rank 0
    port: int  # port of rank 0 on this host


class MemberNames(NamedTuple):
    """The names of the four variables that describe a `Member`, for a rank or for a node."""

    count: str  # number of ranks or nodes, e.g. "WORLD_SIZE"
    number: str  # number of this rank or node, e.g. "RANK"
    addr: str  # e.g. "MASTER_ADDR"
    port: str  # e.g. "MASTER_PORT"


# ---- One rank --------------------------------------------------------------------------------


def read_launch(env: Env, gpu_count: int = 0, command: str = "COMMAND") -> LaunchInfo:
    """Return the launch that `env` describes.

    The first line of this table that is true of `env` decides which variables are read:

        WORLD_SIZE is above 1                              the variables of torchrun
        SLURM_NTASKS is above 1, and SLURM_PROCID is set   the variables of SLURM
        else                                               none: this is the only process

    gpu_count: number of GPUs that this process sees. If it is above 1, LOCAL_RANK must be below it.
        If it is 1, the launcher may have shown each rank only the GPU of this rank, so that
        LOCAL_RANK may be any number.
    command: what started this process, for the advice of an error.

    Raises one DistError that lists every variable that is missing, no number or out of range.
    """
    faults: list[str] = []
    task_count = _task_count(env, faults)
    # With tasks of SLURM, WORLD_SIZE may be missing. Else it alone tells the number of ranks.
    is_required = task_count == 1
    world_size = _count_of_members(env, "WORLD_SIZE", faults, is_required)

    # The number of this rank, and the host and port of rank 0.
    if world_size > 1:
        mode = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "platform"
        names = MemberNames(
            count="WORLD_SIZE", number="RANK", addr="MASTER_ADDR", port="MASTER_PORT"
        )
        member = _member(env, names, faults)
    elif task_count > 1:
        mode = "slurm"
        world_size = task_count
        _refuse_batch_script(env, task_count, command)
        _refuse_idle_gpus(env, task_count, gpu_count, command)
        member = _member_of_step(env, task_count, faults)
    else:
        _refuse(faults, env)
        return LaunchInfo(mode="single", by_agent=_is_store_of_agent(env))

    # Seconds that the ranks wait for each other at the start.
    join_s = _seconds(env, "SPIKEVRT_JOIN_TIMEOUT", default=300.0)
    # Time-out of a collective. 0 means that the user has set none.
    timeout_s = _seconds(env, "NCCL_TIMEOUT", default=0.0)
    local_rank = _local_rank(env, gpu_count, faults)
    # With several GPUs, a missing LOCAL_RANK must not count as 0. Otherwise all ranks of a host
    # would take GPU 0, be slow, and run out of memory. torchrun and SLURM always set it.
    has_local_rank = bool(env.get(_name_of_local_rank(env)))
    if mode == "platform" and gpu_count > 1 and not has_local_rank and not faults:
        raise _unknown_local_rank(world_size, member.number, gpu_count, command)
    _refuse(faults, env)
    return LaunchInfo(
        mode=mode,
        rank=member.number,
        local_rank=local_rank,
        world_size=world_size,
        master_addr=member.addr,
        master_port=member.port,
        by_agent=_is_store_of_agent(env),
        join_s=join_s,
        timeout_s=timeout_s,
    )


def _task_count(env: Env, faults: list[str]) -> int:
    """Return the number of tasks of SLURM if this process is one of them, or else 1."""
    # torchrun sets TORCHELASTIC_RUN_ID for its ranks. If torchrun runs within a SLURM job, its
    # ranks have the variables of SLURM too, but these describe the whole job and no rank.
    is_slurm_task = "SLURM_PROCID" in env and "TORCHELASTIC_RUN_ID" not in env
    if _is_batch_script(env) and env.get("WORLD_SIZE") == "1":
        is_slurm_task = False  # the user has set WORLD_SIZE=1 to get a single process
    if not is_slurm_task:
        return 1
    return _number(env, "SLURM_NTASKS", faults, default=1, low=1)


def _name_of_local_rank(env: Env) -> str:
    """Return the variable that has the number of this rank among the ranks of its host."""
    return "LOCAL_RANK" if env.get("LOCAL_RANK") else "SLURM_LOCALID"


def _local_rank(env: Env, gpu_count: int, faults: list[str]) -> int:
    """Return the number of this rank among the ranks of its host, or 0 if no variable has it."""
    # With one visible GPU or none there is no limit: the launcher may show each rank only its own
    # GPU.
    highest = gpu_count - 1 if gpu_count > 1 else None
    return _number(
        env,
        _name_of_local_rank(env),
        faults,
        default=0,
        low=0,
        high=highest,
        high_is_from="the number of GPUs on this host",
    )


def _is_store_of_agent(env: Env) -> bool:
    """Whether torchrun's agent, the parent process of the ranks, has opened the key-value store.

    Otherwise rank 0 opens the store at MASTER_PORT.
    """
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _member_of_step(env: Env, task_count: int, faults: list[str]) -> Member:
    """Return the number of a task of SLURM, and where all tasks of its step meet.

    Each task computes address and port by itself, and all tasks of one srun must get the same
    values. MASTER_ADDR and MASTER_PORT count if the user has set them.
    """
    last = task_count - 1
    rank = _number(env, "SLURM_PROCID", faults, low=0, high=last, high_is_from="SLURM_NTASKS")
    # All tasks meet at task 0, which runs on the first host of its step (one srun). With `srun
    # --nodelist` this need not be the first host of the job. So take the first of these lists that
    # is there:
    hosts = (
        env.get("SLURM_STEP_NODELIST")  # the hosts of the step
        or env.get("SLURM_JOB_NODELIST")  # the hosts of the job
        or env.get("SLURM_NODELIST", "")  # the hosts of the job, in older versions of SLURM
    )
    addr = env.get("MASTER_ADDR", "").strip() or first_host(hosts)
    if not addr:
        faults.append("SLURM_JOB_NODELIST is missing (first host of the job)")
    if env.get("MASTER_PORT"):
        port = _number(env, "MASTER_PORT", faults, low=1, high=65535)
    else:
        # Two jobs on one host have different numbers, so they seldom get the same port. E.g. job
        # 4712345 gets port 15000 + 2345.
        job_number = _number(env, "SLURM_JOB_ID", faults, low=0)
        port = FIRST_PORT + job_number % PORT_COUNT
    return Member(number=rank, addr=addr, port=port)


# ---- One process for each node ---------------------------------------------------------------


def node_variables(env: Env, gpu_count: int = 0) -> dict[str, str]:
    """Return torchrun's variables for the ranks of this node, or {} if this process is a rank.

    A platform that starts one process for each node sets no LOCAL_RANK. There are two kinds:

        platform   ranks of a node      number of nodes   number of this node   WORLD_SIZE counts
        PAI-DLC    NPROC_PER_NODE       WORLD_SIZE        RANK                  nodes
        Kubeflow   PET_NPROC_PER_NODE   PET_NNODES        RANK                  ranks

    For example, these variables of PAI-DLC

        NPROC_PER_NODE=8 WORLD_SIZE=2 RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

    become PET_NPROC_PER_NODE=8 PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=10.0.0.1 ...

    gpu_count: number of GPUs that this process sees, for NPROC_PER_NODE "auto" and "gpu".

    Raises one DistError that lists every variable that is missing, no number or out of range.
    """
    # Take torchrun's own variable if it is set, else the platform's: NODE_NAMES is the table of the
    # two names, e.g. "PET_NNODES": "WORLD_SIZE".
    name_of = {}  # torchrun's name of a variable -> the name that this environment uses
    values = {}  # torchrun's name of a variable -> its value
    for torchruns_name, other_name in NODE_NAMES.items():
        name = torchruns_name if env.get(torchruns_name) else other_name
        name_of[torchruns_name] = name
        if env.get(name):
            values[torchruns_name] = env[name].strip()
    if "PET_NPROC_PER_NODE" not in values or _is_rank(env):
        return {}

    # torchrun takes these three words in place of a number.
    if values["PET_NPROC_PER_NODE"] in ("auto", "gpu"):
        values["PET_NPROC_PER_NODE"] = str(max(1, gpu_count))
    elif values["PET_NPROC_PER_NODE"] == "cpu":
        values["PET_NPROC_PER_NODE"] = str(os.cpu_count())
    # An elastic job, whose nodes may come and go, has this variable. It is described by torchrun's
    # own variables alone, and torchrun checks them.
    if "PET_RDZV_ENDPOINT" in env:
        return values

    faults: list[str] = []
    ranks_text = values["PET_NPROC_PER_NODE"]
    ranks_per_node = _checked_number(ranks_text, name_of["PET_NPROC_PER_NODE"], faults, low=1)
    node_count = _count_of_members(env, name_of["PET_NNODES"], faults)
    if node_count > 1:
        names = MemberNames(
            count=name_of["PET_NNODES"],
            number=name_of["PET_NODE_RANK"],
            addr=name_of["PET_MASTER_ADDR"],
            port=name_of["PET_MASTER_PORT"],
        )
        _member(env, names, faults)  # called for the faults alone; torchrun reads the values itself
    else:
        values["PET_STANDALONE"] = "1"  # torchrun then chooses address and port itself
    _refuse(faults, env)
    # With one rank on each node, nodes and ranks have the same numbers, e.g. NPROC_PER_NODE=1
    # WORLD_SIZE=2 RANK=1 is node 1 and rank 1. Then this process is the rank itself, and needs no
    # torchrun. (WORLD_SIZE must be the number of nodes; a missing one stands for 1.)
    if ranks_per_node == 1 and env.get("WORLD_SIZE", "1") == str(node_count):
        return {}
    return values


def _is_rank(env: Env) -> bool:
    """Whether this process is a rank itself, so that it needs no torchrun."""
    if env.get("LOCAL_RANK"):
        return True  # this process has a number among the ranks of its node
    # srun sets SLURM_PROCID, and starts one process for each rank. A platform on top of SLURM that
    # starts one process for each node sets WORLD_SIZE as well, and srun does not.
    return "SLURM_PROCID" in env and "WORLD_SIZE" not in env


# ---- Lists of hosts --------------------------------------------------------------------------


def host_count(nodelist: str) -> int:
    """Return the number of hosts of a SLURM node list: 6 for "gpu[003-007],cpu1"."""
    count = 0
    # A name is one or more pieces, so that a comma within a bracket does not end it. E.g.
    # "gpu[003-007],cpu1" has the names "gpu[003-007]" and "cpu1".
    names = re.findall(rf"{PIECE_OF_NAME}+", nodelist)
    for name in names:
        # If a name has several brackets, their numbers multiply: "rack[1-2]gpu[1-4]" stands for
        # 2 x 4 hosts. A name without a bracket is one host.
        hosts_of_name = 1
        # The text within each bracket, e.g. "003-007,9", which stands for 5 + 1 numbers.
        for ranges in re.findall(r"\[([^\]]*)\]", name):
            numbers_in_bracket = sum(_length_of_range(text) for text in ranges.split(","))
            hosts_of_name *= numbers_in_bracket
        count += hosts_of_name
    return count


def _length_of_range(text: str) -> int:
    """Return how many numbers "003-007" stands for, here 5. "9" stands for 1."""
    low, dash, high = text.partition("-")
    is_range = dash and low.isdecimal() and high.isdecimal()
    if not is_range:
        return 1
    return int(high) - int(low) + 1


def first_host(nodelist: str) -> str:
    """Return the first host of a SLURM node list: "gpu[003-007,9],cpu1" -> "gpu003".

    The zeros in front of a number stay.
    """
    # The name up to the first comma outside of brackets: "gpu[003-007,9]". The pattern also matches
    # an empty text, so there always is a first match.
    first_name = re.findall(rf"{PIECE_OF_NAME}*", nodelist.strip())[0]
    # Replace each bracket by its first number, which ends at "-", "," or "]": "gpu003".
    return re.sub(r"\[([^\],\-]*)[^\]]*\]", r"\1", first_name)


# ---- Reading variables -----------------------------------------------------------------------


def _count_of_members(env: Env, name: str, faults: list[str], is_required: bool = True) -> int:
    """Return the variable `name`, which is the number of ranks or nodes.

    A missing variable means 1. But RANK together with MASTER_ADDR shows that other ranks exist. A
    missing variable is then a fault, if is_required is True.
    """
    has_others = env.get("RANK") and env.get("MASTER_ADDR")
    default = None if is_required and has_others else 1
    return _number(env, name, faults, default=default, low=1)


def _member(env: Env, names: MemberNames, faults: list[str]) -> Member:
    """Return the number of a rank or node, and where all meet.

    The caller has read the count of ranks or nodes, so that variable is a valid number here.
    """
    last = int(env[names.count]) - 1
    number = _number(env, names.number, faults, low=0, high=last, high_is_from=names.count)
    addr = env.get(names.addr, "").strip()
    if not addr:
        faults.append(f"{names.addr} is missing (host name or address of rank 0)")
    port = _number(env, names.port, faults, low=1, high=65535)
    return Member(number, addr, port)


def _checked_number(
    text: str,
    name: str,
    faults: list[str],
    low: int,
    high: int | None = None,
    high_is_from: str = "",
) -> int:
    """Return a text as an integer from `low` to `high`.

    A wrong text adds a sentence to `faults`, e.g. "RANK is 8, expected 0 to 7 (below WORLD_SIZE)".
    `low` is returned in its place.

    text: the value of a variable, without blanks around it; "" if it is missing.
    name: the name of this variable, for the sentence.
    high: the largest allowed number, or None if there is no limit.
    high_is_from: where the limit comes from, for the sentence, e.g. "WORLD_SIZE".
    """
    if not text:
        faults.append(f"{name} is missing")
        return low
    try:
        value = int(text)
    except ValueError:
        faults.append(f"{name} is {text!r}, no number")
        return low
    if value < low or (high is not None and value > high):
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        source = f" (below {high_is_from})" if high_is_from else ""
        faults.append(f"{name} is {value}, expected {limit}{source}")
        return low
    return value


def _number(
    env: Env,
    name: str,
    faults: list[str],
    low: int,
    high: int | None = None,
    high_is_from: str = "",
    default: int | None = None,
) -> int:
    """Return the variable `name` of `env` as an integer from `low` to `high`.

    A wrong variable adds a sentence to `faults`, and `low` is returned, as in `_checked_number`.

    high: the largest allowed number, or None if there is no limit.
    high_is_from: where this limit comes from, e.g. "WORLD_SIZE".
    default: returned if the variable is missing. None if a missing variable is a fault.
    """
    text = env.get(name, "").strip()
    if not text and default is not None:
        return default
    return _checked_number(text, name, faults, low, high, high_is_from)


def _seconds(env: Env, name: str, default: float) -> float:
    """Return a variable as seconds. Raises DistError if it is no number from 0 to a million.

    0 and a million are wrong too. A million seconds are 11 days, so a larger number is taken for a
    mistake, e.g. for milliseconds.

    default: returned if the variable is missing or empty.
    """
    text = env.get(name)
    if not text:
        return default
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds < 10**6:
            return seconds
    raise DistError(
        what=f"{name} is {text!r}",
        where="the environment",
        expected="seconds, above 0 and below 1000000",
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
    """Return the error of a process that cannot know which of the visible GPUs it shall use."""
    return DistError(
        what=f"WORLD_SIZE is {world_size}, LOCAL_RANK and NPROC_PER_NODE are missing, "
        f"{gpu_count} GPUs are visible",
        where=f"the environment of rank {rank}",
        expected="LOCAL_RANK if the platform starts one process per GPU, "
        "NPROC_PER_NODE if it starts one per node",
        do=f"one process per GPU:  LOCAL_RANK=$((RANK % {gpu_count})) {command}\n"
        f"{INDENT_OF_DO}one process per node: NPROC_PER_NODE={gpu_count} {command}",
    )


def _refuse_idle_gpus(env: Env, task_count: int, gpu_count: int, command: str) -> None:
    """Raise DistError if each node has several GPUs, but SLURM started only one task on each node.

    A task uses one GPU, so the other GPUs of the node would idle.
    """
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    node_count = host_count(hosts)
    if gpu_count > 1 and node_count == task_count:
        raise DistError(
            what=f"SLURM started one task on each of {node_count} nodes, and each sees {gpu_count} "
            f"GPUs: {gpu_count - 1} of them would idle",
            where="the environment of this task",
            expected="one task for each GPU",
            do=f"sbatch --nodes={node_count} --ntasks-per-node={gpu_count} "
            f"--gpus-per-node={gpu_count} submit_job.sh FILE\n"
            f"{INDENT_OF_DO}or: srun --ntasks-per-node={gpu_count} {command}\n"
            f"{INDENT_OF_DO}one GPU of each node: CUDA_VISIBLE_DEVICES=0 srun {command}",
        )


def _is_batch_script(env: Env) -> bool:
    """Whether this process belongs to the batch script of a job, and is no task of srun.

    sbatch sets ENVIRONMENT=BATCH for its script. srun passes this variable on to its tasks, and
    adds SLURM_STEP_ID.
    """
    return env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env


def _refuse_batch_script(env: Env, task_count: int, command: str) -> None:
    """Raise DistError if this is the batch script of a job of several tasks.

    sbatch runs the script once, so this process would wait in vain for the other tasks.
    """
    if _is_batch_script(env):
        raise DistError(
            what=f"the job has {task_count} tasks, and this process is its batch script: "
            "srun starts tasks",
            where="the environment of the batch script: SLURM_PROCID without SLURM_STEP_ID",
            expected="a process that srun has started",
            do=f"sbatch submit_job.sh FILE, or in your own script: srun {command}\n"
            f"{INDENT_OF_DO}one process alone: WORLD_SIZE=1 {command}",
        )

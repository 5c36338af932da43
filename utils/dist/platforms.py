"""Read the launch of this process from the environment: its rank, and where all ranks meet.

`read_launch` reads the number of this rank, the number of all ranks, and the host of rank 0. It
understands the variables of SLURM (of tasks that srun starts) and the variables of torchrun, which
many platforms and users set too:

    WORLD_SIZE=8 RANK=3 LOCAL_RANK=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

`utils_dist.ranks` calls `read_launch`. Before this call, utils/dist/launchers.py has added these
names to an environment with other names, and utils/dist/node_launch.py has found out whether this
process stands for a whole node.

A wrong variable does not raise an error at once. It adds a text to the list `faults`, and at the
end one error lists all texts (utils/dist/launch_variables.py). In all functions, `env` is the
environment: name of a variable -> its text.

What must stay: which variables are read, because users' job scripts rely on them. These tests
notice a change:

    read_launch   test_the_variables_tell_who_started_the_ranks
    refusals      test_a_wrong_variable_is_named
                  test_slurm_with_one_task_on_each_node_of_several_gpus_is_refused
                  test_a_command_for_each_case_is_given_if_ranks_cannot_be_told_from_nodes

Free to change: the texts of advice, together with test_launch.py.

Tests: tests/stories/test_launch.py.
"""

from utils.dist.host_list import first_host, host_count
from utils.dist.launch_variables import (
    Member,
    MemberNames,
    count_of_members,
    member_of,
    number_in,
    refuse_faults,
    seconds_in,
)
from utils.dist.launcher_cells import Env
from utils.dist.state import JOIN_S, LaunchInfo
from utils.errors import INDENT_OF_DO, DistError


def read_launch(env: Env, gpu_count: int = 0, command: str = "COMMAND") -> LaunchInfo:
    """Return the launch that `env` describes.

    The first line of this table that is true of `env` decides which variables are read:

        WORLD_SIZE is above 1                              the variables of torchrun
        SLURM_NTASKS is above 1, and SLURM_PROCID is set   the variables of SLURM
        else                                               none: this is the only process

    gpu_count: number of GPUs that this process sees. With several GPUs, LOCAL_RANK must be below
        this number. With one GPU, LOCAL_RANK may be any number, because the launcher may show each
        rank only the GPU of this rank.
    command: what started this process, for the advice of an error.

    Raises one DistError that lists every variable that is missing, not a number, or out of range.
    Raises another DistError if the variables are right, but the launch would hang, leave GPUs idle,
    or give GPU 0 to several ranks.
    """
    faults: list[str] = []
    task_count = _task_count(env, faults)
    # A task of SLURM has the number of ranks in SLURM_NTASKS, so WORLD_SIZE may be missing. Without
    # SLURM, WORLD_SIZE is required if RANK and MASTER_ADDR are set (`count_of_members`).
    is_required = task_count == 1
    world_size = count_of_members(env, "WORLD_SIZE", faults, is_required)

    # `member` is the number of this rank, and the host and port of rank 0.
    if world_size > 1:
        mode = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "platform"
        names = MemberNames(
            count="WORLD_SIZE", number="RANK", addr="MASTER_ADDR", port="MASTER_PORT"
        )
        member = member_of(env, names, faults)
    elif task_count > 1:
        mode = "slurm"
        world_size = task_count
        _refuse_batch_script(env, task_count, command)
        _refuse_idle_gpus(env, task_count, gpu_count, command)
        member = _member_of_step(env, task_count, faults)
    else:
        refuse_faults(faults, env)
        return LaunchInfo(mode="single", is_store_of_agent=_is_store_of_agent(env))

    # Seconds that the ranks wait for each other at the start.
    join_s = seconds_in(env, "SPIKEVRT_JOIN_TIMEOUT", default=JOIN_S)
    # Time-out of a collective. 0 means that the user has set none.
    timeout_s = seconds_in(env, "NCCL_TIMEOUT", default=0.0)
    local_rank = _local_rank(env, gpu_count, faults)
    # If some variables are wrong, `faults` lists them, and `refuse_faults` raises the error. So all
    # variables must be read before this call.
    refuse_faults(faults, env)
    # With several GPUs, a missing LOCAL_RANK must not count as 0, because all ranks of a host would
    # take GPU 0. torchrun and SLURM always set the variable.
    has_local_rank = bool(env.get(_name_of_local_rank(env)))
    if mode == "platform" and gpu_count > 1 and not has_local_rank:
        raise _unknown_local_rank(world_size, member.number, gpu_count, command)
    return LaunchInfo(
        mode=mode,
        rank=member.number,
        local_rank=local_rank,
        world_size=world_size,
        master_addr=member.addr,
        master_port=member.port,
        is_store_of_agent=_is_store_of_agent(env),
        join_s=join_s,
        timeout_s=timeout_s,
    )


def _task_count(env: Env, faults: list[str]) -> int:
    """Return the number of tasks of SLURM if this process is one of them, or else 1."""
    # SLURM sets SLURM_PROCID for each of its tasks. torchrun sets TORCHELASTIC_RUN_ID for its
    # ranks. If torchrun runs within a SLURM job, each of its ranks also has the variables of SLURM.
    # But these variables describe the task that has started torchrun, and not the rank.
    is_slurm_task = "SLURM_PROCID" in env and "TORCHELASTIC_RUN_ID" not in env
    if _is_batch_script(env) and env.get("WORLD_SIZE") == "1":
        is_slurm_task = False  # the user has set WORLD_SIZE=1 to get a single process
    if not is_slurm_task:
        return 1
    return number_in(env, "SLURM_NTASKS", faults, default=1, low=1)


def _name_of_local_rank(env: Env) -> str:
    """Return the variable that has the number of this rank among the ranks of its host."""
    return "LOCAL_RANK" if env.get("LOCAL_RANK") else "SLURM_LOCALID"


def _local_rank(env: Env, gpu_count: int, faults: list[str]) -> int:
    """Return the number of this rank among the ranks of its host, or 0 if no variable has it."""
    # With several visible GPUs, the number must be the number of one of them. With one visible GPU
    # or none, any number is allowed, because the launcher may show each rank only its own GPU.
    highest = gpu_count - 1 if gpu_count > 1 else None
    return number_in(
        env,
        _name_of_local_rank(env),
        faults,
        default=0,
        low=0,
        high=highest,
        below="the number of GPUs on this host",  # for the error: what `highest` + 1 is
    )


def _is_store_of_agent(env: Env) -> bool:
    """Return whether torchrun's agent, the parent of the ranks, has opened the key-value store.

    If the agent has not, rank 0 opens the store at MASTER_PORT.
    """
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


# If a SLURM job has no MASTER_PORT, the port of rank 0 is FIRST_PORT plus the last four digits of
# the job's number. So the port lies in 15000 ... 24999. Linux takes ports from 32768 on for
# outgoing connections, and torchrun's default port is 29500, so both are outside of this range.
#
# All ranks must compute the same port, so a change here breaks a job with ranks of different
# versions. launchers.py takes the same range for launches of other programs, but the two ranges
# need not be equal.
FIRST_PORT = 15000
PORT_COUNT = 10000


def _member_of_step(env: Env, task_count: int, faults: list[str]) -> Member:
    """Return the number of a task of SLURM, and where all tasks of its step meet.

    Each task computes address and port by itself, and all tasks of one srun must get the same
    values. If the user has set MASTER_ADDR or MASTER_PORT, this value is used. Wrong variables are
    appended to `faults`.
    """
    last = task_count - 1
    rank = number_in(env, "SLURM_PROCID", faults, low=0, high=last, below="SLURM_NTASKS")
    # All tasks meet at task 0, which runs on the first host of its step.
    addr = env.get("MASTER_ADDR", "").strip() or first_host(_hosts_of_step(env))
    if not addr:
        faults.append("SLURM_JOB_NODELIST is missing (first host of the job)")
    if env.get("MASTER_PORT"):
        port = number_in(env, "MASTER_PORT", faults, low=1, high=65535)
    else:
        # Two jobs on one host have different numbers, so they rarely get the same port. E.g. job
        # 4712345 gets port 15000 + 2345.
        job_number = number_in(env, "SLURM_JOB_ID", faults, low=0)
        port = FIRST_PORT + job_number % PORT_COUNT
    return Member(number=rank, addr=addr, port=port)


# ---- Refusals --------------------------------------------------------------------------------
# The errors of launches that would hang, leave GPUs idle, or give one GPU to several ranks.
# INDENT_OF_DO (12 blanks) puts a further line of an advice below its first line.


def _unknown_local_rank(world_size: int, rank: int, gpu_count: int, command: str) -> DistError:
    """Return the error of a process that cannot know which of the visible GPUs it shall use.

    gpu_count: number of visible GPUs.
    command: what the user typed, for the advice.
    """
    return DistError(
        what=f"WORLD_SIZE is {world_size}, LOCAL_RANK and NPROC_PER_NODE are missing, "
        f"{gpu_count} GPUs are visible",
        where=f"the environment of rank {rank}",
        expected="LOCAL_RANK if the platform starts one process per GPU, "
        "NPROC_PER_NODE if it starts one per node",
        do=f"type, for one process per GPU: LOCAL_RANK=$((RANK % {gpu_count})) {command}\n"
        f"{INDENT_OF_DO}or, for one process per node: NPROC_PER_NODE={gpu_count} {command}",
    )


def _hosts_of_step(env: Env) -> str:
    """Return SLURM's list of the hosts of this step, e.g. "n[1-2]". Returns "" if none is set.

    A step is one call of srun. With `srun --nodelist` its first host need not be the first host of
    the job. So the list of the step comes before the list of the job.
    """
    return (
        env.get("SLURM_STEP_NODELIST")
        or env.get("SLURM_JOB_NODELIST")
        or env.get("SLURM_NODELIST", "")  # the hosts of the job, in older versions of SLURM
    )


def _refuse_idle_gpus(env: Env, task_count: int, gpu_count: int, command: str) -> None:
    """Raise DistError if each node has several GPUs, but SLURM started only one task on each node.

    A task uses one GPU, so the other GPUs of the node would idle.

    gpu_count: number of visible GPUs.
    command: what the user typed, for the advice.
    """
    node_count = host_count(_hosts_of_step(env))
    if gpu_count > 1 and node_count == task_count:
        raise DistError(
            what=f"SLURM started one task on each of {node_count} nodes, and each sees {gpu_count} "
            f"GPUs: {gpu_count - 1} of them would idle",
            where="the environment of this task",
            expected="one task for each GPU",
            do=f"type: sbatch --nodes={node_count} --ntasks-per-node={gpu_count} "
            f"--gpus-per-node={gpu_count} submit_job.sh FILE\n"
            f"{INDENT_OF_DO}or: srun --ntasks-per-node={gpu_count} {command}\n"
            f"{INDENT_OF_DO}or, for one GPU of each node: CUDA_VISIBLE_DEVICES=0 srun {command}",
        )


def _is_batch_script(env: Env) -> bool:
    """Return whether this process belongs to the batch script of a job, and is not a task of srun.

    sbatch sets ENVIRONMENT=BATCH for its script. srun passes this variable on to its tasks, and
    adds SLURM_STEP_ID.
    """
    return env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env


def _refuse_batch_script(env: Env, task_count: int, command: str) -> None:
    """Raise DistError if this is the batch script of a job of several tasks.

    sbatch runs the script once, so this process would wait for other tasks that never come.
    """
    if _is_batch_script(env):
        raise DistError(
            what=f"the job has {task_count} tasks, and this process is its batch script: "
            "srun starts tasks",
            where="the environment of the batch script: SLURM_PROCID without SLURM_STEP_ID",
            expected="a process that srun has started",
            do=f"type: sbatch submit_job.sh FILE, or in your own script: srun {command}\n"
            f"{INDENT_OF_DO}or, for one process alone: WORLD_SIZE=1 {command}",
        )

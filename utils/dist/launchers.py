"""Translate the environment variables of MPI launchers and cloud platforms to torchrun's names.

Each platform tells a process its rank by environment variables, under names of its own.
`with_standard_names` looks up the platform in a table (utils/dist/launcher_table.py) and adds the
same values under torchrun's names, the standard names of this project. E.g. Open MPI sets

    OMPI_COMM_WORLD_SIZE=4  OMPI_COMM_WORLD_RANK=2  OMPI_COMM_WORLD_LOCAL_RANK=2  ...

and `with_standard_names` adds

    WORLD_SIZE=4  RANK=2  LOCAL_RANK=2  MASTER_ADDR=127.0.0.1  MASTER_PORT=17301

`utils_dist.ranks` passes the result to `read_launch` (platforms.py), which reads the standard names
and the names of SLURM.

What must stay: the order of the steps in `with_standard_names`, because several of them may fit one
environment. E.g. a script sets NNODES as a platform would, and then calls srun
(test_a_task_of_srun_is_a_rank_even_if_a_platform_counts_the_nodes). Free to change: the ports.

Tests: tests/stories/test_launch.py.
"""

import hashlib
import os

from utils.dist.launcher_cells import Env
from utils.dist.launcher_table import (
    COUNT_ONLY,
    PER_NODE,
    PER_PROCESS,
    CountOnly,
    PerNode,
    PerProcess,
)
from utils.errors import INDENT_OF_DO, DistError

LOOPBACK = "127.0.0.1"  # the address by which a host reaches itself
# The default of torchrun as well. The commands in launcher_table.py have this port, too.
DEFAULT_PORT = "29500"


def with_standard_names(env: Env, gpu_count: int = 0, command: str = "COMMAND") -> dict[str, str]:
    """Return a copy of `env`, with torchrun's variables added if the table has the platform.

    `env` may have the variables of several programs, e.g. of MPI and of SLURM if MPI runs within a
    job of SLURM. The first line that is true of `env` decides:

        1  WORLD_SIZE or NPROC_PER_NODE is set          nothing is added
        2  a launcher in PER_PROCESS has several ranks  the variables of this rank are added
        3  srun of SLURM has started this process       nothing is added: platforms.py knows srun
        4  a platform in PER_NODE has several nodes     the variables of this node are added
           or GPUs
        5  a row of COUNT_ONLY has a count above 1      DistError
        6  none of these                                nothing is added

    The launchers (line 2) come before SLURM and the platforms (lines 3 to 5), because a job of
    SLURM or of a platform may call a launcher. Because of line 1, a user who sets WORLD_SIZE=1 gets
    a single process.

    gpu_count: number of GPUs that this process sees.
    command: what the user typed, for the advice of an error.

    Raises DistError if there are several processes, but the platform does not say which of them
    this process is, or where rank 0 is.
    """
    # 1. The standard names are set already. Two more names say so, too: torchrun sets
    # TORCHELASTIC_RUN_ID for its ranks, and PET_NPROC_PER_NODE is the variable for its flag
    # --nproc-per-node.
    has_size = env.get("WORLD_SIZE") or "TORCHELASTIC_RUN_ID" in env
    has_ranks_per_node = env.get("NPROC_PER_NODE") or env.get("PET_NPROC_PER_NODE")
    if has_size or has_ranks_per_node:
        return dict(env)
    # 2. A launcher that starts one process for each rank. The fields of a row are functions:
    # `launcher.size(env)` reads the number of ranks from `env`, as a text.
    # {**env, **variables} is a copy of `env` with the variables added.
    for launcher in PER_PROCESS:
        rank_count = _number(launcher.size(env))
        if rank_count > 1:
            return {**env, **_variables_of_rank(launcher, env, command)}
    # 3. A task of srun: `utils.dist.platforms` reads the variables of SLURM.
    if "SLURM_PROCID" in env:
        return dict(env)
    # 4. A platform that starts one process for each node, with several nodes, or with several GPUs
    # on its only node.
    for platform in PER_NODE:
        node_count = _number(platform.nodes(env))
        gpus_per_node = _number(platform.gpus(env))
        if node_count > 1 or (node_count == 1 and gpus_per_node > 1):
            return {**env, **_variables_of_node(platform, env, gpu_count)}
    # 5. Several processes, but no variable says which of them this process is.
    for row in COUNT_ONLY:
        if _number(row.count(env)) > 1:
            raise _unknown_rank(row, env, command)
    # 6. No row fits: this is the only process.
    return dict(env)


def process_count(env: Env) -> int:
    """Return how many processes the launcher has started, or 1 if no variable has the number.

    env: the environment of this process, without the names that `with_standard_names` adds.

    utils/dist/failure.py calls this for an error that comes before the ranks have met, to find out
    whether other processes of this host may report the same error. It does not call
    `with_standard_names`, because this error may come from `with_standard_names`. The platforms of
    PER_NODE are left out, because they start a single process on each host.
    """
    sizes = [env.get("WORLD_SIZE", "")]
    for row in PER_PROCESS:
        sizes.append(row.size(env))
    if "SLURM_PROCID" in env:
        sizes.append(env.get("SLURM_NTASKS", ""))
    # Take the first size that is set.
    for size in sizes:
        if size.strip():
            return _number(size.strip())
    return 1


def _variables_of_rank(row: PerProcess, env: Env, command: str) -> dict[str, str]:
    """Return the standard variables of a process that is a rank, under torchrun's names.

    MASTER_ADDR and MASTER_PORT keep their values if the user has set them.

    row: the row of the launcher in launcher_table.py. Its fields are functions: `row.size(env)`
        reads the number of ranks from `env`, as a text, e.g. "8".

    If there are several hosts, and no variable has the host of rank 0, raises DistError
    (test_the_command_to_type_is_given_if_only_the_number_of_processes_is_known).
    """
    size = row.size(env)
    is_one_host = row.local_size(env) == size
    address = env.get("MASTER_ADDR", "").strip() or row.address(env)
    if not address and is_one_host:
        address = LOOPBACK  # rank 0 is on this host, too
    if not address:
        raise DistError(
            what=f"{row.name} started {size} processes, and does not say on which host rank 0 is: "
            "MASTER_ADDR is missing",
            where=f"the environment of rank {row.rank(env)}",
            expected="MASTER_ADDR and MASTER_PORT: the host of rank 0, and a free port there",
            do=row.advice.format(command=command),
        )
    port = env.get("MASTER_PORT", "").strip()
    if not port:
        # Several jobs may run on one host at once, so each job gets a port of its own. Ranks of
        # several hosts share no value that differs from job to job, so they take DEFAULT_PORT.
        port = _port_of_job(env) if is_one_host else DEFAULT_PORT
    return {
        "RANK": row.rank(env),
        "WORLD_SIZE": size,
        "LOCAL_RANK": row.local_rank(env),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def _variables_of_node(row: PerNode, env: Env, gpu_count: int) -> dict[str, str]:
    """Return the standard variables of a process that stands for a node.

    Here RANK is the number of the node, and WORLD_SIZE is the number of nodes, not the number of
    ranks. The platform PAI-DLC uses the two names in this way. `node_launch.node_variables` reads
    the result. Because it finds NPROC_PER_NODE there, it takes RANK and WORLD_SIZE as numbers of
    nodes. E.g. for node 1 of 2 with 8 GPUs each:

        RANK=1 WORLD_SIZE=2 NPROC_PER_NODE=8 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500

    row: the row of the platform in launcher_table.py. Its fields are functions: `row.nodes(env)`
        reads the number of nodes from `env`, as a text, e.g. "2".
    gpu_count: number of GPUs that this process sees.
    """
    # The number of ranks of the node:
    #
    #     the platform says   visible GPUs   ranks
    #     8                   8              8
    #     8                   2              2: CUDA_VISIBLE_DEVICES hides some GPUs
    #     8                   0              8
    #     no number           4              4
    #     no number           0              1: one rank on the CPU
    gpus = _number(row.gpus(env))
    if gpus == 0:  # the platform gives no number
        gpus = max(1, gpu_count)
    if gpu_count:
        gpus = min(gpus, gpu_count)
    # MASTER_ADDR and MASTER_PORT of the environment take precedence over the cells of the table.
    address = env.get("MASTER_ADDR", "").strip() or row.address(env)
    port = env.get("MASTER_PORT", "").strip() or row.port(env) or DEFAULT_PORT
    variables = {
        "RANK": row.node_rank(env),
        "WORLD_SIZE": row.nodes(env),
        "NPROC_PER_NODE": str(gpus),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    # If each of several nodes has one GPU, this process is the only rank of its node. So it gets
    # LOCAL_RANK=0 (test_the_only_rank_of_a_node_takes_the_first_of_several_visible_gpus). A single
    # node needs no LOCAL_RANK, because WORLD_SIZE=1 already says that there is only one process.
    if row.nodes(env) != "1" and gpus == 1:
        variables["LOCAL_RANK"] = "0"
    return variables


def _unknown_rank(row: CountOnly, env: Env, command: str) -> DistError:
    """Return the error for a process that cannot know which rank it is."""
    return DistError(
        what=f"{row.name} says that there are {row.count(env)} processes or hosts, and not which "
        "one this is",
        where="the environment of this process",
        expected="one process for each GPU, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT",
        # INDENT_OF_DO (12 blanks) puts the second line of the advice below the first one.
        do=f"{row.advice.format(command=command)}\n"
        f"{INDENT_OF_DO}or, for one process alone: WORLD_SIZE=1 {command}",
    )


# The port of a launch on one host lies in 15000 ... 24999. Linux gives the ports from 32768 on to
# outgoing connections, and DEFAULT_PORT is 29500. So outgoing connections and launches with
# DEFAULT_PORT use ports above this range.
# platforms.py takes the same range for jobs of SLURM, but the two ranges need not be equal.
FIRST_PORT = 15000
PORT_COUNT = 10000


def _port_of_job(env: Env) -> str:
    """Return a port for the ranks of one launch on this host, e.g. "17301".

    Each rank computes the port by itself, and all ranks must get the same one. So the port is
    computed from a value that all ranks of a launch share: Open MPI's name of the job, or else the
    process id of the launcher, which is the parent of all ranks. Test:
    test_two_jobs_on_one_host_meet_at_different_ports.
    """
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or str(os.getppid())
    # The names of two jobs may differ in a single digit, but their digests differ everywhere. So
    # two jobs rarely get the same port. The first 4 bytes of a digest, a number below 4.3e9, are
    # enough for 10,000 ports.
    digest = hashlib.sha256(job.encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    return str(FIRST_PORT + number % PORT_COUNT)


def _number(text: str) -> int:
    """Return the number in a text such as "8", or 0 if the text is not a number."""
    return int(text) if text.isdecimal() else 0

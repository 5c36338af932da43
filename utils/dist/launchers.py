"""The environment variables of MPI launchers and cloud platforms, translated to torchrun's names.

A platform starts either one process for each rank, or one process for each node (host). Each
platform describes a process in environment variables, and each has its own names for them. This
module has a table of these names. `with_standard_names` looks up the platform in the table, and
adds torchrun's names, which we call the standard names. E.g. Open MPI sets

    OMPI_COMM_WORLD_SIZE=4  OMPI_COMM_WORLD_RANK=2  OMPI_COMM_WORLD_LOCAL_RANK=2  ...

and `with_standard_names` adds

    WORLD_SIZE=4  RANK=2  LOCAL_RANK=2  MASTER_ADDR=127.0.0.1  MASTER_PORT=17301

`utils_dist.ranks` calls `with_standard_names`, and gives the result to `utils.dist.platforms`. That
module reads the standard names, and the names of SLURM.

The names in the table come from the documentation of the platforms. Open MPI and MPICH were tried
with real processes, all others with environments that were made after their documentation.

What must stay: the order of the rows, because the first row that fits is taken
(test_a_rank_of_another_launcher_joins_the_others has an environment of each launcher); and the
order of the steps in `with_standard_names`
(test_a_task_of_srun_is_a_rank_even_if_a_platform_counts_the_nodes). Free to change: a new platform
is a new row at the end of its list, a `PerProcess`, a `PerNode` or an `Unplaced`; it changes
nothing for the platforms before it.

Tests: tests/stories/test_launch.py.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from utils.errors import INDENT_OF_DO, DistError

Env = Mapping[str, str]

# A cell of the table is a function that reads one value from an environment, e.g. the number of
# ranks. It returns a text, and "" if the environment does not have the value. The columns of the
# table are the fields of `PerProcess`, `PerNode` and `Unplaced` below.
Cell = Callable[[Env], str]

LOOPBACK = "127.0.0.1"  # the address by which a host reaches itself
DEFAULT_PORT = "29500"  # the default of torchrun as well

# The port of a launch on one host lies in 15000 ... 24999. Linux gives the ports from 32768 on to
# outgoing connections, and DEFAULT_PORT lies outside too, so neither of them takes such a port.
FIRST_PORT = 15000
PORT_COUNT = 10000


# ---- Cells of the table ----------------------------------------------------------------------


def var(name: str) -> Cell:
    """Return a cell of the table (a function env -> text) that reads the variable `name`."""
    return lambda env: env.get(name, "").strip()


# A cell that always returns "", for a value that a platform has in no variable.
NOWHERE = var("")


def items(text: str) -> list[str]:
    """Split a list of hosts, or of other items.

    The list is in JSON, or divided by commas, blanks or lines: '["a", "b"]', "a,b", "a b". Of
    "a:8,b:8" (hosts with their numbers of processes) the hosts are returned.
    """
    if text.startswith("["):
        try:
            all_items = [str(item) for item in json.loads(text)]
        except ValueError:  # no JSON
            all_items = []
    else:
        all_items = re.split(r"[,\s]+", text.strip())
    hosts = []
    for item in all_items:
        if item:  # an empty text has the item ""
            hosts.append(item.partition(":")[0])  # "a:8" -> "a"
    return hosts


def first_of(name: str) -> Cell:
    """Return a cell that reads the first item of the list `name`."""

    def read(env: Env) -> str:
        hosts = items(env.get(name, ""))
        return hosts[0] if hosts else ""

    return read


def count_of(name: str) -> Cell:
    """Return a cell that reads the number of items of the list `name`."""

    def read(env: Env) -> str:
        hosts = items(env.get(name, ""))
        return str(len(hosts)) if hosts else ""

    return read


def position_in(name: str, host_name: str) -> Cell:
    """Return a cell that reads the position of this host in the list `name`, from 0.

    E.g. "1" for the list "a,b" and the host "b".

    host_name: name of the variable that says which host this is.
    """

    def read(env: Env) -> str:
        hosts = items(env.get(name, ""))
        host = env.get(host_name, "")
        return str(hosts.index(host)) if host in hosts else ""

    return read


def _flux_ranks_on_one_host(env: Env) -> str:
    """Read the number of ranks on this host, which Flux tells only for a job of one host."""
    if env.get("FLUX_JOB_NNODES") == "1":
        return env.get("FLUX_JOB_SIZE", "")
    return ""


def _hydra_size(env: Env) -> str:
    """Read the number of ranks if the launcher Hydra has started them.

    Other launchers set PMI_SIZE as well, but only Hydra sets MPI_LOCALRANKID.
    """
    if "MPI_LOCALRANKID" in env:
        return env.get("PMI_SIZE", "")
    return ""


def _pmi_size(env: Env) -> str:
    """Read the number of processes of any launcher that sets PMI_RANK and PMI_SIZE.

    Hydra sets these two as well. But `with_standard_names` tries Hydra's row before, so this cell
    counts for the other launchers only.
    """
    if "PMI_RANK" in env:
        return env.get("PMI_SIZE", "")
    return ""


def _lsf_hosts(env: Env) -> str:
    """Read the number of hosts of LSF: 2 from "hosta 4 hostb 4", each host with its slots.

    A slot may be a core or a process, so the slots do not tell the number of ranks.
    """
    words = env.get("LSB_MCPU_HOSTS", "").split()
    return str(len(words) // 2)  # two words for each host


# ---- The table -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerProcess:
    """A launcher that starts one process for each rank."""

    name: str  # name of the launcher, for errors
    size: Cell  # number of ranks
    rank: Cell  # number of this rank
    local_rank: Cell  # number of this rank among the ranks of its host
    local_size: Cell  # number of ranks on this host; if it equals `size`, there is only one host
    address: Cell  # host of rank 0
    # For an error: the command that passes MASTER_ADDR to the ranks. {command} in this text stands
    # for what the user typed.
    advice: str


@dataclass(frozen=True)
class PerNode:
    """A platform that starts one process for each node. torchrun then starts the ranks of the node.

    There is one rank for each GPU.
    """

    name: str  # name of the platform; nothing reads it, it names the row
    nodes: Cell  # number of nodes
    node_rank: Cell  # number of this node, from 0
    gpus: Cell  # number of GPUs of a node
    address: Cell  # host of node 0
    port: Cell  # free port of node 0


@dataclass(frozen=True)
class Unplaced:
    """A platform that tells the number of processes or hosts, but not which of them this one is.

    A run cannot start there by itself, so these rows lead to an error with advice.
    """

    name: str  # name of the platform, for errors
    count: Cell  # number of processes or hosts
    advice: str  # command to type instead; {command} stands for what the user typed


# The texts of `advice`. {command} becomes what the user typed. mpirun and mpiexec usually start
# rank 0 on the host where they are typed, so $(hostname) is the name of this host. jsrun and flux
# usually start rank 0 on another host, so the user must write its name.
MPIRUN = "mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 {command}"
MPIEXEC = "mpiexec -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 {command}"
JSRUN = "jsrun -E MASTER_ADDR=HOST_OF_RANK_0 -E MASTER_PORT=29500 {command}"
FLUX = "flux run --env=MASTER_ADDR=HOST_OF_RANK_0 --env=MASTER_PORT=29500 {command}"
DETERMINED = "python3 -m determined.launch.torch_distributed {command}"
BY_HAND = (
    "on each host K = 0, 1, ...: torchrun --nnodes=HOSTS --node-rank=K --nproc_per_node=GPUS "
    "--master-addr=FIRST_HOST --master-port=29500 main_train_vrt.py --opt FILE"
)

# Launchers that start one process for each rank. `with_standard_names` takes the first row that
# reads a `size` above 1. NOWHERE: no variable of the launcher has this value.
PER_PROCESS = (
    PerProcess(
        name="Open MPI",
        size=var("OMPI_COMM_WORLD_SIZE"),
        rank=var("OMPI_COMM_WORLD_RANK"),
        local_rank=var("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=var("OMPI_COMM_WORLD_LOCAL_SIZE"),
        # Azure ML starts Open MPI, and names the host of rank 0.
        address=first_of("AZ_BATCH_MASTER_NODE"),
        advice=MPIRUN,
    ),
    PerProcess(
        name="MVAPICH2",
        size=var("MV2_COMM_WORLD_SIZE"),
        rank=var("MV2_COMM_WORLD_RANK"),
        local_rank=var("MV2_COMM_WORLD_LOCAL_RANK"),
        local_size=var("MV2_COMM_WORLD_LOCAL_SIZE"),
        address=NOWHERE,
        advice=MPIEXEC,
    ),
    PerProcess(
        name="jsrun",
        size=var("JSM_NAMESPACE_SIZE"),
        rank=var("JSM_NAMESPACE_RANK"),
        local_rank=var("JSM_NAMESPACE_LOCAL_RANK"),
        local_size=var("JSM_NAMESPACE_LOCAL_SIZE"),
        address=NOWHERE,
        advice=JSRUN,
    ),
    PerProcess(
        name="Flux",
        size=var("FLUX_JOB_SIZE"),
        rank=var("FLUX_TASK_RANK"),
        local_rank=var("FLUX_TASK_LOCAL_ID"),
        local_size=_flux_ranks_on_one_host,
        address=NOWHERE,
        advice=FLUX,
    ),
    # The launcher Hydra belongs to MPICH and to Intel MPI, and sets the same names for both.
    PerProcess(
        name="MPICH or Intel MPI",
        size=_hydra_size,
        rank=var("PMI_RANK"),
        local_rank=var("MPI_LOCALRANKID"),
        local_size=var("MPI_LOCALNRANKS"),
        address=NOWHERE,
        advice=MPIEXEC,
    ),
)

# Platforms that start one process for each node. `with_standard_names` takes the first row that
# reads several nodes, or one node with several GPUs. NOWHERE: no variable of the platform's own has
# this value; `_variables_of_node` says what is taken instead.
PER_NODE = (
    PerNode(
        name="SageMaker",
        nodes=count_of("SM_HOSTS"),
        node_rank=position_in("SM_HOSTS", "SM_CURRENT_HOST"),
        gpus=var("SM_NUM_GPUS"),
        address=first_of("SM_HOSTS"),
        port=var("SM_MASTER_PORT"),
    ),
    PerNode(
        name="SkyPilot",
        nodes=var("SKYPILOT_NUM_NODES"),
        node_rank=var("SKYPILOT_NODE_RANK"),
        gpus=var("SKYPILOT_NUM_GPUS_PER_NODE"),
        address=first_of("SKYPILOT_NODE_IPS"),
        port=NOWHERE,
    ),
    # ModelArts sets names of Volcano (VC_...) too, so its row stands before the row of Volcano.
    PerNode(
        name="ModelArts",
        nodes=var("MA_NUM_HOSTS"),
        node_rank=var("VC_TASK_INDEX"),
        gpus=var("MA_NUM_GPUS"),
        address=first_of("VC_WORKER_HOSTS"),
        port=NOWHERE,
    ),
    PerNode(
        name="Volcengine",
        nodes=var("MLP_WORKER_NUM"),
        node_rank=var("MLP_ROLE_INDEX"),
        gpus=var("MLP_WORKER_GPU"),
        address=var("MLP_WORKER_0_HOST"),
        port=var("MLP_WORKER_0_PORT"),
    ),
    PerNode(
        name="Tencent TI",
        nodes=count_of("NODE_IP_SLOT_LIST"),
        node_rank=var("INDEX"),
        gpus=var("GPU_NUM"),
        address=first_of("NODE_IP_SLOT_LIST"),
        port=NOWHERE,
    ),
    # Volcano without its plugins for PyTorch, which set the standard names.
    PerNode(
        name="Volcano",
        nodes=var("VC_WORKER_NUM"),
        node_rank=var("VC_TASK_INDEX"),
        gpus=NOWHERE,
        address=first_of("VC_WORKER_HOSTS"),
        port=NOWHERE,
    ),
    # A script of the user's own. It sets MASTER_ADDR and MASTER_PORT by their standard names, which
    # `_variables_of_node` reads in each row, so the two cells need no variable.
    PerNode(
        name="NNODES",
        nodes=var("NNODES"),
        node_rank=var("NODE_RANK"),
        gpus=NOWHERE,
        address=NOWHERE,
        port=NOWHERE,
    ),
)

# Platforms that tell the number of processes or hosts, but not which of them this process is. A run
# cannot start like this. So the first row that reads a `count` above 1 leads to an error, which
# shows `advice`: the command to type instead.
UNPLACED = (
    Unplaced(name="Determined", count=count_of("DET_SLOT_IDS"), advice=DETERMINED),
    Unplaced(name="LSF", count=_lsf_hosts, advice=BY_HAND),
    Unplaced(name="PBS", count=var("PBS_NUM_NODES"), advice=BY_HAND),
    Unplaced(name="a launcher with PMI", count=_pmi_size, advice=MPIEXEC),
)


# ---- Reading the table -----------------------------------------------------------------------


def with_standard_names(env: Env, gpu_count: int = 0, command: str = "COMMAND") -> dict[str, str]:
    """Return a copy of `env`, with torchrun's variables added if the table has the platform.

    Several platforms may have set their variables, e.g. MPI within a job of SLURM. The first line
    that is true of `env` decides:

        1  it has WORLD_SIZE or NPROC_PER_NODE        copied unchanged
        2  a row of PER_PROCESS reads several ranks   the variables of this rank are added
        3  srun of SLURM has started this process     copied unchanged, platforms.py reads SLURM's
        4  a row of PER_NODE reads several nodes,     the variables of this node are added
           or one node with several GPUs
        5  a row of UNPLACED reads several processes  DistError
        6  else                                       copied unchanged

    Launchers (2) come before SLURM and platforms (3 to 5), because a job of these may start its
    ranks by a launcher. With line 1 a user can train in one process on any platform: WORLD_SIZE=1.

    gpu_count: number of GPUs that this process sees.
    command: what the user typed, for the advice of an error.

    Raises DistError if the platform tells that there are several processes, but not which of them
    this process is, or not where rank 0 is.
    """
    # 1. torchrun sets TORCHELASTIC_RUN_ID for its ranks. The names PET_... stand for its flags,
    # here for --nproc-per-node.
    is_rank = env.get("WORLD_SIZE") or "TORCHELASTIC_RUN_ID" in env
    is_node = env.get("NPROC_PER_NODE") or env.get("PET_NPROC_PER_NODE")
    if is_rank or is_node:
        return dict(env)
    # 2. A launcher that starts one process for each rank.
    # {**a, **b} is a copy of a, in which the entries of b are added or replaced.
    for launcher in PER_PROCESS:
        rank_count = _number(launcher.size(env))
        if rank_count > 1:
            return {**env, **_variables_of_rank(launcher, env, command)}
    # 3. A task of srun: `utils.dist.platforms` reads the variables of SLURM.
    if "SLURM_PROCID" in env:
        return dict(env)
    # 4. A platform that starts one process for each node.
    for platform in PER_NODE:
        node_count = _number(platform.nodes(env))
        gpus_per_node = _number(platform.gpus(env))
        if node_count > 1 or (node_count == 1 and gpus_per_node > 1):
            return {**env, **_variables_of_node(platform, env, gpu_count)}
    # 5. Several processes, but no variable tells which of them this process is.
    for unplaced in UNPLACED:
        if _number(unplaced.count(env)) > 1:
            raise _not_placed(unplaced, env, command)
    return dict(env)


def process_count(env: Env) -> int:
    """Return how many processes the launcher has started, or 1 if no variable tells the number."""
    sizes = [env.get("WORLD_SIZE", "")]
    for row in PER_PROCESS:
        sizes.append(row.size(env))
    if "SLURM_PROCID" in env:
        sizes.append(env.get("SLURM_NTASKS", ""))
    # The first size that is set counts.
    for size in sizes:
        if size.strip():
            return _number(size.strip())
    return 1


def _variables_of_rank(row: PerProcess, env: Env, command: str) -> dict[str, str]:
    """Return the standard variables of a process that is a rank.

    Raises DistError if no variable tells the host of rank 0, and there are several hosts
    (test_the_command_to_type_is_given_if_only_the_number_of_processes_is_known).
    """
    size = row.size(env)
    is_one_host = row.local_size(env) == size
    address = env.get("MASTER_ADDR", "").strip() or row.address(env)
    if not address and is_one_host:
        address = LOOPBACK
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
        # Several jobs may run on one host at once, so each job gets a different port. For several
        # hosts no such port can be computed: no value is known to all ranks and different for each
        # job.
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

    They have the names that the platform PAI-DLC uses, where RANK and WORLD_SIZE count nodes.
    `platforms.node_variables` reads them. For each value the first of these that is known counts:

        MASTER_ADDR      MASTER_ADDR of `env`, the cell `address`
        MASTER_PORT      MASTER_PORT of `env`, the cell `port`, DEFAULT_PORT
        NPROC_PER_NODE   the cell `gpus`, at most the visible GPUs; the visible GPUs; 1
    """
    gpus = _number(row.gpus(env))
    if gpus == 0:  # the platform does not tell the number
        gpus = max(1, gpu_count)  # without GPUs, one process on the CPU
    if gpu_count:
        gpus = min(gpus, gpu_count)  # CUDA_VISIBLE_DEVICES may hide some GPUs
    variables = {
        "RANK": row.node_rank(env),
        "WORLD_SIZE": row.nodes(env),
        "NPROC_PER_NODE": str(gpus),
        "MASTER_ADDR": env.get("MASTER_ADDR", "").strip() or row.address(env),
        "MASTER_PORT": env.get("MASTER_PORT", "").strip() or row.port(env) or DEFAULT_PORT,
    }
    # With one GPU on each of several nodes, this process is the only rank of its node: LOCAL_RANK
    # says so (test_the_only_rank_of_a_node_takes_the_first_of_several_visible_gpus). On a single
    # node, WORLD_SIZE=1 already says that there is only one process.
    if row.nodes(env) != "1" and gpus == 1:
        variables["LOCAL_RANK"] = "0"
    return variables


def _not_placed(row: Unplaced, env: Env, command: str) -> DistError:
    """Return the error of a process that cannot know which rank it is."""
    return DistError(
        what=f"{row.name} says that there are {row.count(env)} processes or hosts, and not which "
        "one this is",
        where="the environment of this process",
        expected="one process for each GPU, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT",
        do=f"{row.advice.format(command=command)}\n"
        f"{INDENT_OF_DO}one process alone: WORLD_SIZE=1 {command}",
    )


def _port_of_job(env: Env) -> str:
    """Return a port for the ranks of one launch on this host, e.g. "17301".

    Each rank computes the port by itself, and all ranks must get the same one. So the port is
    computed from a value that all ranks of a launch share: Open MPI's name of the job, or else the
    process id of the launcher, which is the parent of all ranks. Test:
    test_two_jobs_on_one_host_meet_at_different_ports.
    """
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or str(os.getppid())
    # A digest spreads similar names over all ports. Its first 4 bytes are enough for 10,000 ports.
    digest = hashlib.sha256(job.encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    return str(FIRST_PORT + number % PORT_COUNT)


def _number(text: str) -> int:
    """Return the number in a text such as "8", or 0 if the text is no number."""
    return int(text) if text.isdecimal() else 0

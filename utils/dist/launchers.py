"""Launches of MPI and of cloud platforms, told in torchrun's names.

A platform starts either one process for each rank, or one for each node (host). It says so in
environment variables with names of its own. This module has a table of these names, and
`with_standard_names` adds the standard ones. E.g. Open MPI sets

    OMPI_COMM_WORLD_SIZE=4  OMPI_COMM_WORLD_RANK=2  OMPI_COMM_WORLD_LOCAL_RANK=2  ...

and the result has, beside these,

    WORLD_SIZE=4  RANK=2  LOCAL_RANK=2  MASTER_ADDR=127.0.0.1  MASTER_PORT=17301

`utils.dist.platforms` reads the standard names alone. `utils_dist.ranks` calls both.

The names come from the documentation of the platforms. Open MPI and MPICH were tried with real
processes, all others with environments as they are documented.

A new platform is a new row of the table: see `PerProcess`, `PerNode` and `Unplaced`.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from utils.errors import DistError

Env = Mapping[str, str]

# A cell of the table: takes an environment, and returns a text, e.g. a number. It returns "" if the
# platform does not say it.
Read = Callable[[Env], str]

ONE_HOST = "127.0.0.1"
PORT = "29500"  # torchrun's own default


# ---- Cells of the table ----------------------------------------------------------------------


def var(name: str) -> Read:
    """Return a cell that reads the variable `name`."""
    return lambda env: env.get(name, "").strip()


# A cell of what a platform never says.
NOWHERE = var("")


def items(text: str) -> list[str]:
    """Split a list of hosts, or of other items.

    The list is in JSON, or divided by commas, blanks or lines: '["a", "b"]', "a,b", "a b". Of
    "a:8,b:8" (hosts with their numbers of processes) the hosts are returned.
    """
    if text.startswith("["):
        try:
            found = [str(item) for item in json.loads(text)]
        except ValueError:
            found = []
    else:
        found = re.split(r"[,\s]+", text.strip())
    return [item.partition(":")[0] for item in found if item]


def first_of(name: str) -> Read:
    """Return a cell that reads the first item of the list `name`."""

    def read(env: Env) -> str:
        found = items(env.get(name, ""))
        return found[0] if found else ""

    return read


def count_of(name: str) -> Read:
    """Return a cell that reads the number of items of the list `name`."""

    def read(env: Env) -> str:
        found = items(env.get(name, ""))
        return str(len(found)) if found else ""

    return read


def place_in(name: str, own: str) -> Read:
    """Return a cell that reads the position of this host in the list `name`.

    own: variable that names this host.
    """

    def read(env: Env) -> str:
        hosts = items(env.get(name, ""))
        host = env.get(own, "")
        return str(hosts.index(host)) if host in hosts else ""

    return read


def _flux_ranks_on_one_host(env: Env) -> str:
    """Read the number of ranks of Flux on this host. It is known only if there is one host."""
    if env.get("FLUX_JOB_NNODES") == "1":
        return env.get("FLUX_JOB_SIZE", "")
    return ""


def _hydra_size(env: Env) -> str:
    """Read the number of ranks if Hydra has started them. Other launchers set PMI_SIZE as well."""
    if "MPI_LOCALRANKID" in env:
        return env.get("PMI_SIZE", "")
    return ""


def _pmi_size(env: Env) -> str:
    """Read the number of processes of a launcher that tells no more than PMI_RANK and PMI_SIZE."""
    if "PMI_RANK" in env:
        return env.get("PMI_SIZE", "")
    return ""


def _lsf_hosts(env: Env) -> str:
    """Read the number of hosts of LSF, from "hosta 4 hostb 4": each host with its slots.

    The slots are cores as well as processes, so they do not tell the number of ranks.
    """
    words = env.get("LSB_MCPU_HOSTS", "").split()
    return str(len(words) // 2)


# ---- The table -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerProcess:
    """A launcher that starts one process for each rank.

    name: name of the launcher, for errors.
    size: number of ranks.
    rank: number of this rank.
    local_rank: its number among the ranks of its host.
    local_size: number of ranks on this host. If it equals `size`, all ranks are here.
    address: host of rank 0, if the launcher says it.
    give: command that tells the ranks of several hosts where rank 0 is. {command} is our own.
    """

    name: str
    size: Read
    rank: Read
    local_rank: Read
    local_size: Read
    address: Read
    give: str


@dataclass(frozen=True)
class PerNode:
    """A platform that starts one process for each node. torchrun then starts the ranks of the node.

    name: name of the platform.
    nodes: number of nodes.
    node_rank: number of this node.
    gpus: number of ranks on a node. If the platform does not say it, the number of visible GPUs.
    address: host of node 0.
    port: a free port of node 0.
    """

    name: str
    nodes: Read
    node_rank: Read
    gpus: Read
    address: Read
    port: Read


@dataclass(frozen=True)
class Unplaced:
    """A platform that says that there are several processes, but not which one this is.

    name: name of the platform, for errors.
    several: number of processes or hosts.
    give: command to type instead. {command} is our own.
    """

    name: str
    several: Read
    give: str


# The commands of the advice. {command} becomes what the user typed.
MPIRUN = "mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 {command}"
MPIEXEC = "mpiexec -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 {command}"
JSRUN = "jsrun -E MASTER_ADDR=HOST_OF_RANK_0 -E MASTER_PORT=29500 {command}"
FLUX = "flux run --env=MASTER_ADDR=HOST_OF_RANK_0 --env=MASTER_PORT=29500 {command}"
DETERMINED = "python3 -m determined.launch.torch_distributed {command}"
BY_HAND = (
    "on each host K = 0, 1, ...: torchrun --nnodes=HOSTS --node-rank=K --nproc_per_node=GPUS "
    "--master-addr=FIRST_HOST --master-port=29500 main_train_vrt.py --opt FILE"
)

# The first row whose `size` is above 1 decides.
PER_PROCESS = (
    PerProcess(
        name="Open MPI",
        size=var("OMPI_COMM_WORLD_SIZE"),
        rank=var("OMPI_COMM_WORLD_RANK"),
        local_rank=var("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=var("OMPI_COMM_WORLD_LOCAL_SIZE"),
        # Azure ML starts Open MPI, and names the host of rank 0.
        address=first_of("AZ_BATCH_MASTER_NODE"),
        give=MPIRUN,
    ),
    PerProcess(
        name="MVAPICH2",
        size=var("MV2_COMM_WORLD_SIZE"),
        rank=var("MV2_COMM_WORLD_RANK"),
        local_rank=var("MV2_COMM_WORLD_LOCAL_RANK"),
        local_size=var("MV2_COMM_WORLD_LOCAL_SIZE"),
        address=NOWHERE,
        give=MPIEXEC,
    ),
    PerProcess(
        name="jsrun",
        size=var("JSM_NAMESPACE_SIZE"),
        rank=var("JSM_NAMESPACE_RANK"),
        local_rank=var("JSM_NAMESPACE_LOCAL_RANK"),
        local_size=var("JSM_NAMESPACE_LOCAL_SIZE"),
        address=NOWHERE,
        give=JSRUN,
    ),
    PerProcess(
        name="Flux",
        size=var("FLUX_JOB_SIZE"),
        rank=var("FLUX_TASK_RANK"),
        local_rank=var("FLUX_TASK_LOCAL_ID"),
        local_size=_flux_ranks_on_one_host,
        address=NOWHERE,
        give=FLUX,
    ),
    # Both are started by the launcher Hydra.
    PerProcess(
        name="MPICH or Intel MPI",
        size=_hydra_size,
        rank=var("PMI_RANK"),
        local_rank=var("MPI_LOCALRANKID"),
        local_size=var("MPI_LOCALNRANKS"),
        address=NOWHERE,
        give=MPIEXEC,
    ),
)
# The first row with several nodes, or with one node of several GPUs, decides.
PER_NODE = (
    PerNode(
        name="SageMaker",
        nodes=count_of("SM_HOSTS"),
        node_rank=place_in("SM_HOSTS", "SM_CURRENT_HOST"),
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
    # A script of the user's own. It sets MASTER_ADDR and MASTER_PORT by their standard names.
    PerNode(
        name="NNODES",
        nodes=var("NNODES"),
        node_rank=var("NODE_RANK"),
        gpus=NOWHERE,
        address=NOWHERE,
        port=NOWHERE,
    ),
)
UNPLACED = (
    Unplaced(name="Determined", several=count_of("DET_SLOT_IDS"), give=DETERMINED),
    Unplaced(name="LSF", several=_lsf_hosts, give=BY_HAND),
    Unplaced(name="PBS", several=var("PBS_NUM_NODES"), give=BY_HAND),
    Unplaced(name="a launcher with PMI", several=_pmi_size, give=MPIEXEC),
)


# ---- Reading the table -----------------------------------------------------------------------


def with_standard_names(env: Env, gpu_count: int = 0, command: str = "COMMAND") -> dict[str, str]:
    """Return `env` with torchrun's names for what a platform of the table says in its own.

    An environment that has WORLD_SIZE, or torchrun's variables for a node, comes back as it is. So
    WORLD_SIZE=1 trains one process anywhere.

    gpu_count: number of GPUs that this process sees.
    command: what the user typed, for the advice of an error.

    Raises DistError if the platform says that there are several processes, but not where they are.
    """
    # The order of these questions decides if several platforms have set their names, e.g. MPI
    # within a SLURM job: launchers first, then the schedulers around them.
    has_standard_names = env.get("WORLD_SIZE") or "TORCHELASTIC_RUN_ID" in env
    if has_standard_names or env.get("NPROC_PER_NODE") or env.get("PET_NPROC_PER_NODE"):
        return dict(env)
    for process in PER_PROCESS:
        if _number(process.size(env)) > 1:
            return {**env, **_of_process(process, env, command)}
    if "SLURM_PROCID" in env:
        return dict(env)  # a task of srun, whose variables `utils.dist.platforms` reads itself
    for node in PER_NODE:
        nodes = _number(node.nodes(env))
        gpus = _number(node.gpus(env))
        if nodes > 1 or (nodes == 1 and gpus > 1):
            return {**env, **_of_node(node, env, gpu_count)}
    for platform in UNPLACED:
        if _number(platform.several(env)) > 1:
            raise _not_placed(platform, env, command)
    return dict(env)


def processes_said(env: Env) -> int:
    """Return how many processes the launcher of this one started, or 1 if it does not say."""
    sizes = [env.get("WORLD_SIZE", "")]
    for row in PER_PROCESS:
        sizes.append(row.size(env))
    if "SLURM_PROCID" in env:
        sizes.append(env.get("SLURM_NTASKS", ""))
    # The first that is set counts.
    for size in sizes:
        if size.strip():
            return _number(size.strip())
    return 1


def _of_process(row: PerProcess, env: Env, command: str) -> dict[str, str]:
    """Return the standard names of a process that is a rank.

    Raises DistError if nothing tells the host of rank 0.
    """
    size = row.size(env)
    is_one_host = row.local_size(env) == size
    address = env.get("MASTER_ADDR", "").strip() or row.address(env)
    if not address and is_one_host:
        address = ONE_HOST
    if not address:
        raise DistError(
            what=f"{row.name} started {size} processes, and does not say on which host rank 0 is: "
            "MASTER_ADDR is missing",
            where=f"the environment of rank {row.rank(env)}",
            expected="MASTER_ADDR and MASTER_PORT: the host of rank 0, and a free port there",
            do=row.give.format(command=command),
        )
    port = env.get("MASTER_PORT", "").strip()
    if not port:
        # On one host several jobs may run at once, so each has a port of its own. On several hosts
        # nothing that all ranks know tells the jobs apart.
        port = _port_of_job(env) if is_one_host else PORT
    return {
        "RANK": row.rank(env),
        "WORLD_SIZE": size,
        "LOCAL_RANK": row.local_rank(env),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def _of_node(row: PerNode, env: Env, gpu_count: int) -> dict[str, str]:
    """Return the standard names of a process that stands for a node.

    They are those of the platform PAI-DLC, where RANK and WORLD_SIZE count nodes. See
    `platforms.node_variables`, which reads them.
    """
    gpus = _number(row.gpus(env)) or max(1, gpu_count)
    if gpu_count:
        gpus = min(gpus, gpu_count)  # CUDA_VISIBLE_DEVICES may hide some
    found = {
        "RANK": row.node_rank(env),
        "WORLD_SIZE": row.nodes(env),
        "NPROC_PER_NODE": str(gpus),
        "MASTER_ADDR": env.get("MASTER_ADDR", "").strip() or row.address(env),
        "MASTER_PORT": env.get("MASTER_PORT", "").strip() or row.port(env) or PORT,
    }
    if row.nodes(env) != "1" and gpus == 1:
        found["LOCAL_RANK"] = "0"  # the process is the only rank of its node
    return found


def _not_placed(row: Unplaced, env: Env, command: str) -> DistError:
    """Return the error of a process that cannot know which rank it is."""
    # An error shows its advice behind 12 characters, so its second line begins with as many blanks.
    blanks = " " * 12
    return DistError(
        what=f"{row.name} says that there are {row.several(env)} processes or hosts, and not which "
        "one this is",
        where="the environment of this process",
        expected="one process for each GPU, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT",
        do=f"{row.give.format(command=command)}\n{blanks}one process alone: WORLD_SIZE=1 {command}",
    )


def _port_of_job(env: Env) -> str:
    """Return a port between 15000 and 24999 that all ranks of one launch on this host derive alike.

    It comes from a name of the job, or from the process id of the launcher, which is the parent of
    all ranks.
    """
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or str(os.getppid())
    digest = hashlib.sha256(job.encode()).digest()
    return str(15000 + int.from_bytes(digest[:4], "big") % 10000)


def _number(text: str) -> int:
    """Return a number, or 0 for a text that is none."""
    return int(text) if text.isdigit() else 0

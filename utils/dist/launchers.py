"""Launches of MPI and of cloud platforms, told in torchrun's names.

A platform starts either one process for each rank, or one for each node. It says so in variables of
its own. `with_standard_names` adds the standard ones, and `utils.dist.platforms` reads those alone.

The names come from the platforms' documentation. Tried on real processes: Open MPI, MPICH. All
others are tried with environments as documented.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from utils.errors import DistError

Env = Mapping[str, str]
Read = Callable[[Env], str]  # returns "" if the variable is missing

ONE_HOST = "127.0.0.1"
PORT = "29500"  # torchrun's own default


def var(name: str) -> Read:
    return lambda env: env.get(name, "").strip()


def items(text: str) -> list[str]:
    """Split a list in JSON, or divided by commas, blanks or lines; "host:slots" is the host."""
    if text.startswith("["):
        try:
            found = [str(item) for item in json.loads(text)]
        except ValueError:
            found = []
    else:
        found = re.split(r"[,\s]+", text.strip())
    return [item.partition(":")[0] for item in found if item]


def first_of(name: str) -> Read:
    return lambda env: next(iter(items(env.get(name, ""))), "")


def count_of(name: str) -> Read:
    return lambda env: str(len(items(env.get(name, ""))) or "")


def place_in(name: str, own: str) -> Read:
    """Read the position of the value of `own` in the list `name`."""

    def read(env: Env) -> str:
        hosts = items(env.get(name, ""))
        host = env.get(own, "")
        return str(hosts.index(host)) if host in hosts else ""

    return read


# ---- The table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerProcess:
    """A launcher that starts one process for each rank.

    size, rank, local_rank: number of ranks, number of this one, its number on its host.
    local_size: number of ranks on this host. If it equals `size`, all ranks are here.
    address: host of rank 0, if the launcher says it.
    give: command that tells the ranks of several hosts where rank 0 is; {command} is ours.
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
    """A platform that starts one process for each node; torchrun starts the ranks of the node.

    nodes, node_rank: number of nodes, number of this one. gpus: number of ranks on a node; if it is
    missing, the number of visible GPUs. address, port: of node 0.
    """

    name: str
    nodes: Read
    node_rank: Read
    gpus: Read
    address: Read
    port: Read


@dataclass(frozen=True)
class Unplaced:
    """A platform that says that there are several processes, and not which one this is.

    several: number of processes or hosts. give: command to type instead; {command} is ours.
    """

    name: str
    several: Read
    give: str


NOWHERE = var("")
MPIRUN = "mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 {command}"
MPIEXEC = "mpiexec -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 {command}"
JSRUN = "jsrun -E MASTER_ADDR=HOST_OF_RANK_0 -E MASTER_PORT=29500 {command}"
FLUX = "flux run --env=MASTER_ADDR=HOST_OF_RANK_0 --env=MASTER_PORT=29500 {command}"
DETERMINED = "python3 -m determined.launch.torch_distributed {command}"
BY_HAND = (
    "on each host K = 0, 1, ...: torchrun --nnodes=HOSTS --node-rank=K --nproc_per_node=GPUS "
    "--master-addr=FIRST_HOST --master-port=29500 main_train_vrt.py --opt FILE"
)

# The first row whose size, nodes or number is there decides.
PER_PROCESS = (
    # Azure ML starts Open MPI, and names the host of rank 0.
    PerProcess(
        "Open MPI", var("OMPI_COMM_WORLD_SIZE"), var("OMPI_COMM_WORLD_RANK"),
        var("OMPI_COMM_WORLD_LOCAL_RANK"), var("OMPI_COMM_WORLD_LOCAL_SIZE"),
        first_of("AZ_BATCH_MASTER_NODE"), MPIRUN,
    ),
    PerProcess(
        "MVAPICH2", var("MV2_COMM_WORLD_SIZE"), var("MV2_COMM_WORLD_RANK"),
        var("MV2_COMM_WORLD_LOCAL_RANK"), var("MV2_COMM_WORLD_LOCAL_SIZE"), NOWHERE, MPIEXEC,
    ),
    PerProcess(
        "jsrun", var("JSM_NAMESPACE_SIZE"), var("JSM_NAMESPACE_RANK"),
        var("JSM_NAMESPACE_LOCAL_RANK"), var("JSM_NAMESPACE_LOCAL_SIZE"), NOWHERE, JSRUN,
    ),
    PerProcess(
        "Flux", var("FLUX_JOB_SIZE"), var("FLUX_TASK_RANK"), var("FLUX_TASK_LOCAL_ID"),
        lambda env: env.get("FLUX_JOB_SIZE", "") if env.get("FLUX_JOB_NNODES") == "1" else "",
        NOWHERE, FLUX,
    ),
    # Hydra, the launcher of MPICH and of Intel MPI.
    PerProcess(
        "MPICH or Intel MPI",
        lambda env: env.get("PMI_SIZE", "") if "MPI_LOCALRANKID" in env else "",
        var("PMI_RANK"), var("MPI_LOCALRANKID"), var("MPI_LOCALNRANKS"), NOWHERE, MPIEXEC,
    ),
)  # fmt: skip
PER_NODE = (
    PerNode(
        "SageMaker", count_of("SM_HOSTS"), place_in("SM_HOSTS", "SM_CURRENT_HOST"),
        var("SM_NUM_GPUS"), first_of("SM_HOSTS"), var("SM_MASTER_PORT"),
    ),
    PerNode(
        "SkyPilot", var("SKYPILOT_NUM_NODES"), var("SKYPILOT_NODE_RANK"),
        var("SKYPILOT_NUM_GPUS_PER_NODE"), first_of("SKYPILOT_NODE_IPS"), NOWHERE,
    ),
    PerNode(
        "ModelArts", var("MA_NUM_HOSTS"), var("VC_TASK_INDEX"), var("MA_NUM_GPUS"),
        first_of("VC_WORKER_HOSTS"), NOWHERE,
    ),
    PerNode(
        "Volcengine", var("MLP_WORKER_NUM"), var("MLP_ROLE_INDEX"), var("MLP_WORKER_GPU"),
        var("MLP_WORKER_0_HOST"), var("MLP_WORKER_0_PORT"),
    ),
    PerNode(
        "Tencent TI", count_of("NODE_IP_SLOT_LIST"), var("INDEX"), var("GPU_NUM"),
        first_of("NODE_IP_SLOT_LIST"), NOWHERE,
    ),
    PerNode(  # without its plugins for PyTorch
        "Volcano", var("VC_WORKER_NUM"), var("VC_TASK_INDEX"), NOWHERE,
        first_of("VC_WORKER_HOSTS"), NOWHERE,
    ),
    PerNode(  # a script of one's own
        "NNODES", var("NNODES"), var("NODE_RANK"), NOWHERE, NOWHERE, NOWHERE,
    ),
)  # fmt: skip
UNPLACED = (
    Unplaced("Determined", count_of("DET_SLOT_IDS"), DETERMINED),
    # "hosta 4 hostb 4": a host with its slots, which are cores as well as processes.
    Unplaced(
        "LSF", lambda env: str(len(env.get("LSB_MCPU_HOSTS", "").split()) // 2), BY_HAND
    ),
    Unplaced("PBS", var("PBS_NUM_NODES"), BY_HAND),
    Unplaced("a launcher with PMI", lambda env: _pmi_size(env), MPIEXEC),
)  # fmt: skip


# ---- Reading it ---------------------------------------------------------------------------------


def with_standard_names(env: Env, gpu_count: int = 0, command: str = "COMMAND") -> dict[str, str]:
    """Return `env` with torchrun's names for what a platform of the table says in its own.

    An environment that has WORLD_SIZE, or torchrun's variables for a node, comes back as it is, so
    WORLD_SIZE=1 trains one process anywhere.
    gpu_count: number of GPUs that this process sees. command: what the user typed, for advice.
    Raises DistError if the platform says that there are several processes, and not where they are.
    """
    has_standard = env.get("WORLD_SIZE") or "TORCHELASTIC_RUN_ID" in env
    if has_standard or env.get("NPROC_PER_NODE") or env.get("PET_NPROC_PER_NODE"):
        return dict(env)
    for process in PER_PROCESS:
        if _number(process.size(env)) > 1:
            return {**env, **_of_process(process, env, command)}
    if "SLURM_PROCID" in env:  # a task of srun, which describes itself
        return dict(env)
    for node in PER_NODE:
        nodes, gpus = _number(node.nodes(env)), _number(node.gpus(env))
        if nodes > 1 or (nodes == 1 and gpus > 1):
            return {**env, **_of_node(node, env, gpu_count)}
    for platform in UNPLACED:
        if _number(platform.several(env)) > 1:
            raise _not_placed(platform, env, command)
    return dict(env)


def processes_said(env: Env) -> int:
    """Return how many processes the launcher of this one started, 1 if it does not say."""
    tasks = env.get("SLURM_NTASKS", "") if "SLURM_PROCID" in env else ""
    sizes = [env.get("WORLD_SIZE", ""), *(row.size(env) for row in PER_PROCESS), tasks]
    return next((_number(size.strip()) for size in sizes if size.strip()), 1)


def _of_process(row: PerProcess, env: Env, command: str) -> dict[str, str]:
    size = row.size(env)
    is_one_host = row.local_size(env) == size
    address = env.get("MASTER_ADDR", "").strip() or row.address(env)
    if not address and is_one_host:
        address = ONE_HOST
    if not address:
        raise DistError(
            f"{row.name} started {size} processes, and does not say on which host rank 0 is: "
            "MASTER_ADDR is missing",
            f"the environment of rank {row.rank(env)}",
            "MASTER_ADDR and MASTER_PORT: the host of rank 0, and a free port there",
            row.give.format(command=command),
        )
    port = env.get("MASTER_PORT", "").strip()
    if not port:
        port = _port_of_job(env) if is_one_host else PORT
    return {
        "RANK": row.rank(env),
        "WORLD_SIZE": size,
        "LOCAL_RANK": row.local_rank(env),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def _of_node(row: PerNode, env: Env, gpu_count: int) -> dict[str, str]:
    """Return the variables of PAI-DLC, whose RANK and WORLD_SIZE count nodes."""
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
        found["LOCAL_RANK"] = "0"  # the process is the rank of its node
    return found


def _not_placed(row: Unplaced, env: Env, command: str) -> DistError:
    return DistError(
        f"{row.name} says that there are {row.several(env)} processes or hosts, and not which one "
        "this is",
        "the environment of this process",
        "one process for each GPU, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        f"{row.give.format(command=command)}\n{'':<12}one process alone: WORLD_SIZE=1 {command}",
    )


def _pmi_size(env: Env) -> str:
    return env.get("PMI_SIZE", "") if "PMI_RANK" in env else ""


def _port_of_job(env: Env) -> str:
    """Return a port that all ranks of one launch on this host derive alike."""
    mark = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or str(os.getppid())
    digest = hashlib.sha256(mark.encode()).digest()
    return str(15000 + int.from_bytes(digest[:4], "big") % 10000)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0

"""List the environment variables by which MPI launchers and cloud platforms describe a process.

Each row of the table describes one launcher or platform. There are three kinds of rows:

    PerProcess   the launcher starts one process for each rank
    PerNode      the platform starts one process for each node (host)
    CountOnly    the platform gives the number of processes, but not the number of this process

The columns are the fields of a row. Most fields are cells: functions that read one value from the
environment (utils/dist/launcher_cells.py). E.g. the row of Open MPI has

    size=var("OMPI_COMM_WORLD_SIZE")      row.size(env) is "4" if the variable is "4"

`with_standard_names` (utils/dist/launchers.py) reads the table.

The names of the variables come from the documentation of the platforms. Open MPI and MPICH were
tried with real processes, all others only with environments made after their documentation.

What must stay: the order of the rows, because the first row that fits is taken
(test_a_rank_of_another_launcher_joins_the_others has an environment of each launcher). Free to
change: a new platform is a new row at the end of its list. The platforms before it are not
affected.

Tests: tests/stories/test_launch.py.
"""

from dataclasses import dataclass

from utils.dist.launcher_cells import (
    Cell,
    count_of,
    first_of,
    flux_ranks_on_one_host,
    hydra_size,
    lsf_hosts,
    no_variable,
    pmi_size,
    position_in,
    var,
)


@dataclass(frozen=True)
class PerProcess:
    """A launcher that starts one process for each rank.

    A `Cell` is a function that reads one value from an environment, as a text, e.g. "4".
    """

    name: str  # name of the launcher, for errors
    size: Cell  # number of ranks
    rank: Cell  # number of this rank
    local_rank: Cell  # number of this rank among the ranks of its host
    local_size: Cell  # number of ranks on this host; if it equals `size`, there is only one host
    address: Cell  # host of rank 0
    advice: str  # for an error: the command that passes MASTER_ADDR to the ranks


@dataclass(frozen=True)
class PerNode:
    """A platform that starts one process for each node. torchrun then starts the ranks of the node.

    There is one rank for each GPU. A `Cell` is a function that reads one value from an environment,
    as a text.
    """

    name: str  # name of the platform, only for readers of this table
    nodes: Cell  # number of nodes
    node_rank: Cell  # number of this node, from 0
    gpus: Cell  # number of GPUs of a node
    address: Cell  # host of node 0
    port: Cell  # free port of node 0


@dataclass(frozen=True)
class CountOnly:
    """A platform that gives the number of processes or hosts, but not the number of this one.

    A process that does not know its own number cannot be a rank. So such a row leads to an error
    with advice.
    """

    name: str  # name of the platform, for errors
    count: Cell  # number of processes or hosts
    advice: str  # for the error: the command to type instead


# The commands for `advice`. {command} stands for what the user typed. mpirun and mpiexec usually
# start rank 0 on the host where they are typed, so $(hostname) is the host of rank 0. jsrun and
# flux usually start rank 0 on another host, so the user must replace HOST_OF_RANK_0.
MPIRUN = "mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 {command}"
MPIEXEC = "mpiexec -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 {command}"
JSRUN = "jsrun -E MASTER_ADDR=HOST_OF_RANK_0 -E MASTER_PORT=29500 {command}"
FLUX = "flux run --env=MASTER_ADDR=HOST_OF_RANK_0 --env=MASTER_PORT=29500 {command}"
DETERMINED = "python3 -m determined.launch.torch_distributed {command}"
BY_HAND = (
    "type on each host K = 0, 1, ...: python scripts/torchrun_quiet.py --nnodes=HOSTS "
    "--node-rank=K --nproc_per_node=GPUS --master-addr=FIRST_HOST --master-port=29500 "
    "main_train_vrt.py --opt FILE"
)

# Launchers that start one process for each rank. `with_standard_names` takes the first row that
# reads a `size` above 1.
PER_PROCESS = (
    PerProcess(
        name="Open MPI",
        size=var("OMPI_COMM_WORLD_SIZE"),
        rank=var("OMPI_COMM_WORLD_RANK"),
        local_rank=var("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=var("OMPI_COMM_WORLD_LOCAL_SIZE"),
        # Azure ML starts Open MPI, and sets this variable to "host:port" of rank 0. `first_of`
        # takes this text for a list of one item, and drops the port.
        address=first_of("AZ_BATCH_MASTER_NODE"),
        advice=MPIRUN,
    ),
    PerProcess(
        name="MVAPICH2",
        size=var("MV2_COMM_WORLD_SIZE"),
        rank=var("MV2_COMM_WORLD_RANK"),
        local_rank=var("MV2_COMM_WORLD_LOCAL_RANK"),
        local_size=var("MV2_COMM_WORLD_LOCAL_SIZE"),
        address=no_variable,
        advice=MPIEXEC,
    ),
    PerProcess(
        name="jsrun",
        size=var("JSM_NAMESPACE_SIZE"),
        rank=var("JSM_NAMESPACE_RANK"),
        local_rank=var("JSM_NAMESPACE_LOCAL_RANK"),
        local_size=var("JSM_NAMESPACE_LOCAL_SIZE"),
        address=no_variable,
        advice=JSRUN,
    ),
    PerProcess(
        name="Flux",
        size=var("FLUX_JOB_SIZE"),
        rank=var("FLUX_TASK_RANK"),
        local_rank=var("FLUX_TASK_LOCAL_ID"),
        local_size=flux_ranks_on_one_host,
        address=no_variable,
        advice=FLUX,
    ),
    # The launcher Hydra belongs to MPICH and to Intel MPI, and sets the same names for both.
    PerProcess(
        name="MPICH or Intel MPI",
        size=hydra_size,
        rank=var("PMI_RANK"),
        local_rank=var("MPI_LOCALRANKID"),
        local_size=var("MPI_LOCALNRANKS"),
        address=no_variable,
        advice=MPIEXEC,
    ),
)

# Platforms that start one process for each node. `with_standard_names` takes the first row that
# reads several nodes, or one node with several GPUs. Where a cell is `no_variable`,
# `_variables_of_node` (launchers.py) says what is taken instead.
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
        port=no_variable,
    ),
    # ModelArts also sets variables of Volcano (VC_...), so its row comes before the row of Volcano.
    PerNode(
        name="ModelArts",
        nodes=var("MA_NUM_HOSTS"),
        node_rank=var("VC_TASK_INDEX"),
        gpus=var("MA_NUM_GPUS"),
        address=first_of("VC_WORKER_HOSTS"),
        port=no_variable,
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
        port=no_variable,
    ),
    # Volcano without its PyTorch plugin, which would set torchrun's names.
    PerNode(
        name="Volcano",
        nodes=var("VC_WORKER_NUM"),
        node_rank=var("VC_TASK_INDEX"),
        gpus=no_variable,
        address=first_of("VC_WORKER_HOSTS"),
        port=no_variable,
    ),
    # A script of the user. It sets MASTER_ADDR and MASTER_PORT, which `_variables_of_node`
    # (launchers.py) reads for every row, so the two cells need no variable.
    PerNode(
        name="NNODES",
        nodes=var("NNODES"),
        node_rank=var("NODE_RANK"),
        gpus=no_variable,
        address=no_variable,
        port=no_variable,
    ),
)

# The first row that reads a `count` above 1 leads to an error, which shows `advice`: the command to
# type instead.
COUNT_ONLY = (
    CountOnly(name="Determined", count=count_of("DET_SLOT_IDS"), advice=DETERMINED),
    CountOnly(name="LSF", count=lsf_hosts, advice=BY_HAND),
    CountOnly(name="PBS", count=var("PBS_NUM_NODES"), advice=BY_HAND),
    CountOnly(name="a launcher with PMI", count=pmi_size, advice=MPIEXEC),
)

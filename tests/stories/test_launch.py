"""How a process learns who started it, and the two shell scripts that start ranks.

A launcher is e.g. torchrun, SLURM, MPI or a cloud platform. It sets environment variables that tell
a process which of all processes it is. E.g. RANK=1 and WORLD_SIZE=2: the second of two processes.
The dictionaries below hold the variables of each launcher, as its documents give them. Most tests
give such a dictionary to the product, and compare the rank that the product reads with the expected
rank. Other tests start real launchers, or launch_train.sh with a `python` that only prints its
arguments.

A rank is one process of a run, usually with one GPU. A node, or host, is a machine. The local rank
is the number of a process on its node, counted from 0.

If you add a launcher, add a dictionary of its variables here, and a row to a test:

    the launcher starts a process    test
    for each rank                    test_a_rank_of_another_launcher_joins_the_others
    for each node                    test_a_process_of_a_platform_stands_for_its_node

What is tested:

    utils/dist/platforms.py      read_launch: the rank of this process
    utils/dist/node_launch.py    node_variables: the ranks of its node
    utils/dist/launchers.py      with_standard_names: the variables of other launchers
    utils/dist/launcher_table.py the variables of each launcher
    scripts/torchrun_quiet.py    starts the ranks as torchrun does
    launch_train.sh, launch_test.sh
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.dist.launching import (
    ROOT,
    fork_client_variable,
    forking_python,
    run_command,
    run_ranks,
    write_command,
)
from tests.helpers.train_files import odd_command, write_odd_options, write_options
from utils import utils_dist
from utils.dist.host_list import first_host, host_count
from utils.dist.launchers import with_standard_names
from utils.dist.node_launch import node_variables
from utils.dist.platforms import read_launch
from utils.dist.state import RUN, LaunchInfo
from utils.errors import DistError

EXIT_REFUSED = 2  # exit code of a program whose options or variables are wrong
SAMPLE_OPTIONS = "options/vrt/000_train_vrt_sample_rgbspike.json"  # the recipe of `make sample`

# A process that is not one of several ranks.
SINGLE_PROCESS = LaunchInfo("single")

# A rank on a platform, with the variables that PyTorch defines.
PLATFORM = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
# A task of srun.
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NODELIST": "gpu[003-007,9],cpu1",
}
# The variables of PAI-DLC, which starts one process for each node of eight GPUs. Its RANK and
# WORLD_SIZE count nodes.
NODE = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "NPROC_PER_NODE": "8",
}
# The variables of Kubeflow for the same process. Here WORLD_SIZE counts ranks: 2 nodes of 8 ranks.
KUBEFLOW = {
    "RANK": "1",
    "WORLD_SIZE": "16",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "PET_NPROC_PER_NODE": "8",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
}


def without(env, name):
    """Return the variables without the variable `name`."""
    return {key: value for key, value in env.items() if key != name}


# ---- torchrun, SLURM, and platforms with PyTorch's variables ----


def on_platform(kind="platform", local_rank=1):
    """Return what must be read from the variables of PLATFORM.

    kind: who started the rank. It is "torchrun" if torchrun set the variables.
    """
    return LaunchInfo(
        kind,
        rank=3,
        local_rank=local_rank,
        world_size=4,
        master_addr="10.0.0.1",
        master_port=29500,
    )


def on_slurm(master_addr="gpu003", master_port=15000 + 4567):
    """Return what must be read from the variables of SLURM.

    Rank 0 is on the first host of the list, gpu003. The port is 15000 plus the last four digits of
    the job, 4567, so that two jobs have two ports.
    """
    return LaunchInfo(
        "slurm",
        rank=5,
        local_rank=1,
        world_size=8,
        master_addr=master_addr,
        master_port=master_port,
    )


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({}, SINGLE_PROCESS, id="no variables"),
        pytest.param({"WORLD_SIZE": "1", "RANK": "0"}, SINGLE_PROCESS, id="a world of one"),
        pytest.param(
            {"SLURM_NTASKS": "4"}, SINGLE_PROCESS, id="an allocation of SLURM, no task of srun"
        ),
        pytest.param(
            {
                **SLURM,
                "SLURM_PROCID": "0",
                "TORCHELASTIC_RUN_ID": "x",
                "WORLD_SIZE": "1",
                "RANK": "0",
            },
            SINGLE_PROCESS,
            id="torchrun of one rank in the shell of an allocation",
        ),
        pytest.param(PLATFORM, on_platform(), id="platform"),
        pytest.param({**PLATFORM, **SLURM}, on_platform(), id="platform within SLURM"),
        pytest.param(
            {**PLATFORM, "TORCHELASTIC_RUN_ID": "none"}, on_platform("torchrun"), id="torchrun"
        ),
        pytest.param(
            without(PLATFORM, "LOCAL_RANK"), on_platform(local_rank=0), id="no local rank"
        ),
        pytest.param(
            without(PLATFORM, "LOCAL_RANK") | {"SLURM_LOCALID": "2"},
            on_platform(local_rank=2),
            id="local rank of SLURM",
        ),
        pytest.param(SLURM, on_slurm(), id="SLURM"),
        pytest.param(
            {**SLURM, "MASTER_ADDR": "head", "MASTER_PORT": "4000"},
            on_slurm("head", 4000),
            id="SLURM with an address",
        ),
        pytest.param(
            {**SLURM, "ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "0"},
            on_slurm(),
            id="a task that srun started from a batch script",
        ),
        pytest.param(
            {**SLURM, "ENVIRONMENT": "BATCH", "WORLD_SIZE": "1"},
            SINGLE_PROCESS,
            id="the batch script",
        ),
    ],
)
def test_the_variables_tell_who_started_the_ranks(env, expected):
    assert read_launch(env) == expected


# SLURM shortens a list of hosts: gpu[003-007,9] stands for gpu003, gpu004, ... gpu007, and gpu9.
@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu7", "gpu7"),
        ("a,b", "a"),
        ("gpu[003-007,9]", "gpu003"),
        ("n[1,3]-ib,x", "n1-ib"),
        ("r[01-02]n[10-12]", "r01n10"),
        ("node-a[9-11]", "node-a9"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_node_list_is_read(nodelist, host):
    assert first_host(nodelist) == host


def test_the_hosts_of_a_node_list_are_counted():
    # 5 hosts gpu003 to gpu007, gpu9, and cpu1.
    assert host_count("gpu[003-007,9],cpu1") == 7


# The variables of a task of srun, if srun starts one task on each of two nodes.
TASK_OF_NODE = {
    **SLURM,
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_JOB_NODELIST": "n[1-2]",
}


def test_slurm_with_one_task_on_each_node_of_one_gpu_is_accepted():
    assert read_launch(TASK_OF_NODE, gpu_count=1).world_size == 2


def test_slurm_with_one_task_on_each_node_of_several_gpus_is_refused():
    # A rank uses one GPU, so the only rank of a node leaves 3 of its 4 GPUs idle.
    with pytest.raises(DistError, match="3 of them would idle") as error:
        read_launch(TASK_OF_NODE, gpu_count=4)

    # The command must give the number of GPUs, 4. Without this number, sbatch would ask for 8 GPUs
    # per node, the default in submit_job.sh.
    job = "sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 submit_job.sh FILE"
    assert job in error.value.do


@pytest.mark.parametrize("name", ["SLURM_STEP_NODELIST", "SLURM_NODELIST"])
def test_the_idle_gpus_are_found_by_each_list_of_hosts(name):
    # SLURM_STEP_NODELIST has the hosts of one srun. Older versions of SLURM set SLURM_NODELIST.
    env = {**TASK_OF_NODE, "SLURM_JOB_NODELIST": "", name: "n[1-2]"}

    with pytest.raises(DistError, match="3 of them would idle"):
        read_launch(env, gpu_count=4)


@pytest.mark.parametrize(
    ("local_rank", "gpu_count", "index"),
    [
        pytest.param(0, 8, 0, id="first of 8"),
        pytest.param(3, 8, 3, id="fourth of 8"),
        pytest.param(3, 1, 0, id="fourth rank, which sees one GPU"),
        pytest.param(0, 1, 0, id="first rank, which sees one GPU"),
    ],
)
def test_a_process_that_sees_one_gpu_takes_it(local_rank, gpu_count, index, monkeypatch):
    launch = read_launch({**PLATFORM, "LOCAL_RANK": str(local_rank)}, gpu_count)
    monkeypatch.setattr(RUN, "launch", launch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpu_count)

    assert utils_dist.get_device() == torch.device("cuda", index)


# ---- A process for each node: it must start the ranks of its node ----

# The variables by which torchrun knows the number of ranks of a node, the number of nodes, and the
# number of this node.
NODE_NAMES = ("PET_NPROC_PER_NODE", "PET_NNODES", "PET_NODE_RANK")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        # expected: number of ranks of a node, number of nodes, number of this node.
        pytest.param(NODE, ("8", "2", "1"), id="PAI-DLC"),
        pytest.param(KUBEFLOW, ("8", "2", "1"), id="Kubeflow"),
        pytest.param(
            {**KUBEFLOW, "PET_NPROC_PER_NODE": "auto", "WORLD_SIZE": "2"},
            ("4", "2", "1"),
            id="as many ranks as GPUs",
        ),
        pytest.param({**NODE, "RANK": "0", "WORLD_SIZE": "1"}, ("8", "1", "0"), id="one node"),
        pytest.param(
            {**KUBEFLOW, "PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "a:1"},
            ("8", "1:4", "1"),
            id="elastic: one to four nodes",
        ),
        pytest.param({**NODE, **SLURM}, ("8", "2", "1"), id="srun starts a process per node"),
        # `launch_train.sh 1` asks for one rank per node. So WORLD_SIZE, 16 ranks, is not used.
        pytest.param(
            {**KUBEFLOW, "PET_NPROC_PER_NODE": "1"}, ("1", "2", "1"), id="one rank asked for"
        ),
    ],
)
def test_a_process_that_stands_for_a_node_knows_its_place(env, expected):
    # gpu_count is used only if PET_NPROC_PER_NODE is "auto". The other cases give a number.
    found = node_variables(env, gpu_count=4)

    assert tuple(found[name] for name in NODE_NAMES) == expected
    assert found["PET_MASTER_ADDR"] == "10.0.0.1"
    assert found["PET_MASTER_PORT"] == "29500"


def test_a_process_may_know_only_the_number_of_ranks_of_its_node():
    found = node_variables({"NPROC_PER_NODE": "8"}, gpu_count=4)

    assert [found.get(name) for name in NODE_NAMES] == ["8", None, None]


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(PLATFORM, id="rank on a platform"),
        pytest.param({}, id="no variables"),
        pytest.param({**NODE, "LOCAL_RANK": "0"}, id="a local rank"),
        # A task of srun is a rank, although its shell has the variable NPROC_PER_NODE for torchrun.
        pytest.param({"NPROC_PER_NODE": "8", **SLURM}, id="task of srun"),
        pytest.param({**NODE, "NPROC_PER_NODE": "1"}, id="one GPU per node"),
    ],
)
def test_a_rank_does_not_stand_for_a_node(env):
    assert not node_variables(env, gpu_count=4)


# Two processes on two nodes. These variables do not say whether a process is a rank, or stands for
# a node of 8 GPUs.
UNCLEAR = without(NODE, "NPROC_PER_NODE")


def test_a_command_for_each_case_is_given_if_ranks_cannot_be_told_from_nodes():
    command = "python -u main_train_vrt.py --opt my.json"

    with pytest.raises(DistError) as error:
        read_launch(UNCLEAR, gpu_count=8, command=command)

    message = str(error.value)
    assert f"LOCAL_RANK=$((RANK % 8)) {command}\n" in message
    assert message.endswith(f"NPROC_PER_NODE=8 {command}")


def test_a_process_with_one_gpu_is_a_rank():
    assert read_launch(UNCLEAR, gpu_count=1).world_size == 2


# ---- Other launchers with variables of their own ----

# Each dictionary below has the variables that a launcher gives to process 1, counted from 0:
#
#     OPEN_MPI, MVAPICH, HYDRA, FLUX    process 1 is one of two ranks on one host
#     JSRUN                             process 1 is one of four ranks
#     SAGEMAKER and the next ones       process 1 stands for one of two nodes
#
# ADDRESS is the address of rank 0. Only some users and launchers give this address.
ADDRESS = {"MASTER_ADDR": "h0", "MASTER_PORT": "23456"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "job7",
}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
}
# The launcher of MPICH and Intel MPI.
HYDRA = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "LSB_MCPU_HOSTS": "b 1 a 4",  # hosts, each with its number of slots
}
FLUX = {
    "FLUX_TASK_RANK": "1",
    "FLUX_JOB_SIZE": "2",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_NNODES": "1",
}
SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "8",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}
MODELARTS = {
    "MA_NUM_HOSTS": "2",
    "MA_NUM_GPUS": "8",
    "VC_WORKER_HOSTS": "w-0.w,w-1.w",
    "VC_WORKER_NUM": "2",
    "VC_TASK_INDEX": "1",
}
VOLCENGINE = {
    "MLP_WORKER_0_HOST": "h0",
    "MLP_WORKER_0_PORT": "2222",
    "MLP_WORKER_NUM": "2",
    "MLP_WORKER_GPU": "8",
    "MLP_ROLE_INDEX": "1",
}
TENCENT = {
    "NODE_NUM": "2",
    "INDEX": "1",
    "GPU_NUM": "8",
    "NODE_IP_SLOT_LIST": "10.0.0.1:8,10.0.0.2:8",
}
VOLCANO = {
    "VC_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "j-0.j,j-1.j",
    "VC_WORKER_NUM": "2",
}


class Place(NamedTuple):
    """What rank 1 must learn from the variables, apart from its own number."""

    local_rank: int  # number on its host
    world_size: int  # number of ranks
    address: str  # host of rank 0


# Two ranks on one host. These ranks need no address of another host.
ON_ONE_HOST = Place(local_rank=1, world_size=2, address="127.0.0.1")
# Two ranks on one host, if the launcher gives the address h0.
ON_HOST_H0 = Place(local_rank=1, world_size=2, address="h0")


@pytest.mark.parametrize(
    ("env", "place"),
    [
        # Launchers that start a process for each rank.
        pytest.param(OPEN_MPI, ON_ONE_HOST, id="Open MPI"),
        pytest.param(OPEN_MPI | ADDRESS, ON_HOST_H0, id="Open MPI with an address"),
        pytest.param(OPEN_MPI | SLURM, ON_ONE_HOST, id="Open MPI within SLURM"),
        pytest.param(
            # A local size of 1 means that this host has only one of the two ranks. So the other
            # rank is on another host. The variable of Azure says where rank 0 is.
            OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "AZ_BATCH_MASTER_NODE": "10.0.0.4:6105"},
            Place(local_rank=1, world_size=2, address="10.0.0.4"),
            id="Open MPI on Azure Batch",
        ),
        pytest.param(HYDRA, ON_ONE_HOST, id="Hydra"),
        pytest.param(HYDRA | ADDRESS, ON_HOST_H0, id="Hydra with an address"),
        pytest.param(JSRUN | ADDRESS, Place(local_rank=1, world_size=4, address="h0"), id="jsrun"),
        pytest.param(FLUX | HYDRA, ON_ONE_HOST, id="Flux"),
        pytest.param(MVAPICH | ADDRESS, ON_HOST_H0, id="MVAPICH"),
        # Platforms that start a process for each node. In these cases a node has one GPU, so the
        # process is a rank.
        pytest.param(
            SAGEMAKER | {"SM_NUM_GPUS": "1"},
            Place(local_rank=0, world_size=2, address="algo-1"),
            id="SageMaker",
        ),
        pytest.param(VOLCANO, Place(local_rank=0, world_size=2, address="j-0.j"), id="Volcano"),
    ],
)
def test_a_rank_of_another_launcher_joins_the_others(env, place):
    named = with_standard_names(env, gpu_count=1)

    # The process itself is a rank, so no variables may be made with which torchrun starts ranks.
    assert not node_variables(named, gpu_count=1)
    found = read_launch(named, gpu_count=1)
    assert found.rank == 1
    assert Place(found.local_rank, found.world_size, found.master_addr) == place
    assert found.master_port > 0


@pytest.mark.parametrize(
    ("env", "address"),
    [
        pytest.param(SAGEMAKER, "algo-1:29500", id="SageMaker"),
        pytest.param(
            SAGEMAKER | {"SM_MASTER_PORT": "7777"}, "algo-1:7777", id="SageMaker with a port"
        ),
        pytest.param(SKYPILOT, "10.0.0.1:29500", id="SkyPilot"),
        pytest.param(MODELARTS, "w-0.w:29500", id="ModelArts"),
        pytest.param(VOLCENGINE, "h0:2222", id="Volcengine"),
        pytest.param(TENCENT, "10.0.0.1:29500", id="Tencent"),
        pytest.param(VOLCANO, "j-0.j:29500", id="Volcano"),
        pytest.param(
            ADDRESS | {"NNODES": "2", "NODE_RANK": "1"}, "h0:23456", id="variables of torchrun"
        ),
    ],
)
def test_a_process_of_a_platform_stands_for_its_node(env, address):
    # `with_standard_names` adds torchrun's variables for the platform's variables. From torchrun's
    # variables, `node_variables` makes the PET_* variables with which torchrun starts the ranks of
    # this node.
    found = node_variables(with_standard_names(env, gpu_count=8), gpu_count=8)

    assert found["PET_NPROC_PER_NODE"] == "8"
    assert found["PET_NNODES"] == "2"
    assert found["PET_NODE_RANK"] == "1"
    assert f"{found['PET_MASTER_ADDR']}:{found['PET_MASTER_PORT']}" == address


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(SKYPILOT | {"SKYPILOT_NODE_IPS": "fe80::1\nfe80::2"}, id="plain"),
        pytest.param(SAGEMAKER | {"SM_HOSTS": '["fe80::1","fe80::2"]'}, id="JSON"),
        # Brackets divide the address from the number of processes that follows it.
        pytest.param(TENCENT | {"NODE_IP_SLOT_LIST": "[fe80::1]:8,[fe80::2]:8"}, id="brackets"),
    ],
)
def test_an_ipv6_address_in_a_list_of_hosts_is_not_cut_at_a_colon(env):
    named = with_standard_names(env, gpu_count=8)

    assert named["MASTER_ADDR"] == "fe80::1"
    assert named["WORLD_SIZE"] == "2"


def test_a_node_starts_no_more_ranks_than_it_sees_gpus():
    # SageMaker says that a host has 8 GPUs, but CUDA_VISIBLE_DEVICES leaves only 2 GPUs.
    found = node_variables(with_standard_names(SAGEMAKER, gpu_count=2), gpu_count=2)

    assert found["PET_NPROC_PER_NODE"] == "2"


def test_the_only_rank_of_a_node_takes_the_first_of_several_visible_gpus():
    # SageMaker gives this job 1 GPU of each host, but 8 GPUs are visible.
    named = with_standard_names(SAGEMAKER | {"SM_NUM_GPUS": "1"}, gpu_count=8)

    # The process itself is the only rank of its node, so torchrun starts no ranks.
    assert not node_variables(named, gpu_count=8)
    assert read_launch(named, gpu_count=8).local_rank == 0


def test_a_single_node_of_several_gpus_starts_a_rank_for_each_gpu():
    env = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_NUM_GPUS": "8"}

    found = node_variables(with_standard_names(env, gpu_count=8), gpu_count=8)

    assert found["PET_NPROC_PER_NODE"] == "8"
    assert found["PET_STANDALONE"] == "1"


def test_a_task_of_srun_is_a_rank_even_if_a_platform_counts_the_nodes():
    # E.g. a script may set NNODES for another program, and then call srun.
    env = SLURM | {"NNODES": "2", "NODE_RANK": "1"}

    assert read_launch(with_standard_names(env)) == read_launch(SLURM)


def test_two_jobs_on_one_host_meet_at_different_ports():
    ports = set()
    for job in ("job7", "job8"):
        named = with_standard_names(OPEN_MPI | {"PMIX_NAMESPACE": job})
        ports.add(read_launch(named).master_port)

    assert len(ports) == 2


# In these cases the launcher tells how many processes there are. The launcher does not tell the
# host of rank 0, or does not tell the rank of this process. So the run must be refused. message:
# the part of the error with the command that the user should type.
INCOMPLETE = [
    pytest.param(
        without(OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), "mpirun -x MASTER_ADDR=", id="Open MPI"
    ),
    pytest.param(JSRUN, "jsrun -E MASTER_ADDR=", id="jsrun"),
    pytest.param(without(FLUX, "FLUX_JOB_NNODES"), "flux run", id="Flux"),
    pytest.param({"LSB_MCPU_HOSTS": "a 4 b 4"}, "torchrun_quiet.py --nnodes", id="LSF"),
    pytest.param(
        {"PBS_NUM_NODES": "2", "PBS_NODENUM": "1"}, "torchrun_quiet.py --nnodes", id="PBS"
    ),
    pytest.param(
        {"DET_SLOT_IDS": "[0,1]"}, "determined.launch.torch_distributed COMMAND", id="Determined"
    ),
    pytest.param({"PMI_RANK": "0", "PMI_SIZE": "4"}, "mpiexec", id="PMI"),
]


@pytest.mark.parametrize(("env", "message"), INCOMPLETE)
def test_the_command_to_type_is_given_if_only_the_number_of_processes_is_known(env, message):
    with pytest.raises(DistError) as error:
        read_launch(with_standard_names(env))

    assert message in str(error.value)


@pytest.mark.parametrize(("env", "_message"), INCOMPLETE)
def test_a_process_with_a_world_size_of_1_is_the_only_process(env, _message):
    assert read_launch(with_standard_names(env | {"WORLD_SIZE": "1"})) == SINGLE_PROCESS


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"LSB_MCPU_HOSTS": "a 8"}, id="LSF"),
        pytest.param({"PBS_NUM_NODES": "1"}, id="PBS"),
        pytest.param({"DET_SLOT_IDS": "[0]"}, id="Determined"),
        pytest.param({"NNODES": "1", "NODE_RANK": "0"}, id="variables of torchrun"),
        pytest.param({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, id="Open MPI"),
        pytest.param({"SM_HOSTS": '["a"]', "SM_NUM_GPUS": "0"}, id="SageMaker"),
        # More brackets than Python's json can read. The program takes such a text, like any other
        # text that is not JSON, for an empty list.
        pytest.param({"SM_HOSTS": "[" * 5000}, id="a list that cannot be read"),
    ],
)
def test_one_process_of_another_launcher_is_one_process(env):
    assert read_launch(with_standard_names(env)) == SINGLE_PROCESS


# ---- MPI, if it is installed ----

# Each command starts two ranks. --oversubscribe allows more ranks than cores.
OPEN_MPI_RUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
MPICH_RUN = ["mpirun.mpich", "-np", "2"]
NEEDS_OPEN_MPI = pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs openmpi-bin")
NEEDS_MPICH = pytest.mark.skipif(not shutil.which("mpirun.mpich"), reason="needs mpich")


@pytest.fixture
def two_steps(tmp_path):
    """Give the command of a training run of two steps: a script and its arguments."""
    return odd_command(write_odd_options(tmp_path), "datasets.test={}", "train.total_iter=2")


# This script asks the fork server to start another script. The fork server has imported torch, so
# the other script need not import torch.
FORK_CLIENT = ["tests/dist/fork_client.py"]


@pytest.mark.parametrize(
    ("mpirun", "client"),
    [
        pytest.param(OPEN_MPI_RUN, FORK_CLIENT, id="Open MPI", marks=NEEDS_OPEN_MPI),
        # With MPICH, both ranks are new Pythons, which import torch.
        pytest.param(MPICH_RUN, [], id="MPICH", marks=[NEEDS_MPICH, pytest.mark.slow]),
    ],
)
def test_mpirun_starts_ranks_that_meet(two_steps, mpirun, client):
    command = [*mpirun, sys.executable, *client, *two_steps]

    result = run_command(command, limit_s=60, env=fork_client_variable())

    assert result.exit_codes == [0], result.text
    assert "rank 1 of 2" in result.text
    assert "Finished at iter 2" in result.text


@NEEDS_OPEN_MPI
def test_ranks_that_do_not_know_where_rank_0_is_are_refused_once(two_steps):
    # With a local size of 1, each rank seems to be the only rank of its host. So no rank can know
    # that rank 0 is on the same host.
    elsewhere = ["env", "OMPI_COMM_WORLD_LOCAL_SIZE=1"]

    # The ranks are processes of their own, not forks, because a rank waits for the other ranks that
    # its launcher has started. A fork begins only when its client has asked for it. So on a busy
    # machine a fork could find no other rank, report the error, and end. Then the other rank would
    # report the error a second time.
    command = [*OPEN_MPI_RUN, *elsewhere, sys.executable, *two_steps]
    result = run_command(command, limit_s=60)

    assert result.exit_codes == [EXIT_REFUSED], result.text
    assert result.text.count("MASTER_ADDR is missing") == 1


# ---- torchrun, as scripts/torchrun_quiet.py starts it ----

# A program that removes two options from torchrun, because older versions of torchrun do not have
# these options. Then the program runs scripts/torchrun_quiet.py, with `print_instead` in place of
# torchrun's `run`. So no rank is started. Instead, the settings with which torchrun would start the
# ranks are printed.
#
# argparse has no public way to remove an option, so the program changes private lists of argparse.
# A new version of Python may need other changes.
OLDER_TORCHRUN = """
import os
import signal

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import PContext

from scripts import torchrun_quiet

parser = run.get_args_parser()
for action in list(parser._actions):
    if action.dest in ("signals_to_handle", "shutdown_timeout"):
        for group in parser._action_groups:
            if action in group._group_actions:
                group._group_actions.remove(action)
        parser._remove_action(action)
        for name in action.option_strings:
            del parser._option_string_actions[name]


def print_instead(args):
    print(
        signal.getsignal(signal.SIGUSR1).__name__,
        PContext.close.__defaults__,
        args.nproc_per_node,
        "ranks, threads",
        os.environ["OMP_NUM_THREADS"],
    )


run.get_args_parser = lambda: parser
run.run = print_instead
del os.environ["OMP_NUM_THREADS"]
torchrun_quiet.main(["--standalone", "--nproc_per_node=2", "x.py"])
"""


def test_an_older_torchrun_starts_ranks_like_a_new_torchrun(tmp_path):
    script = tmp_path / "older.py"
    script.write_text(OLDER_TORCHRUN)

    result = run_ranks(1, script)

    # `print_instead` prints these settings:
    #     on_signal      the function that handles SIGUSR1
    #     (None, 180)    defaults of PContext.close: no special signal, 180 s until ranks are killed
    #     2 ranks        as the command line asks
    #     threads        half of the cores, because two ranks share the cores of this machine
    threads_of_rank = max(1, len(os.sched_getaffinity(0)) // 2)
    expected = f"on_signal (None, 180) 2 ranks, threads {threads_of_rank}\n"
    assert result.text.startswith(expected), result.text


# A program that asks scripts/torchrun_quiet.py for ranks on a machine that seems to have two GPUs.
# Its argument is the number of ranks.
FEW_GPUS = """
import sys

import torch

from scripts import torchrun_quiet

torch.cuda.device_count = lambda: 2
sys.exit(torchrun_quiet.main(["--standalone", f"--nproc_per_node={sys.argv[1]}", "x.py"]))
"""


def test_more_ranks_than_gpus_are_refused_before_torchrun_starts(tmp_path):
    script = tmp_path / "few.py"
    script.write_text(FEW_GPUS)

    # One process runs the script. The argument of the script asks for three ranks.
    result = run_ranks(1, script, "3")

    assert result.exit_codes == [DistError.exit_code], result.text
    assert "3 ranks on 2 GPUs" in result.text
    assert "start 2" in result.text


# ---- Wrong variables ----

# Number of GPUs of the host in these cases. So a right LOCAL_RANK is 0 or 1.
GPU_COUNT = 2


def wrong_case(read, env, message, **change):
    """Return a case of the test below, with one wrong variable.

    read: the function that reads the variables. env: right variables. change: the wrong variable
        and its value. An empty value stands for a missing variable. message: a part of the error.
    """
    [name] = change  # the one key of `change`, e.g. "RANK" of {"RANK": "4"}
    return pytest.param(read, {**env, **change}, message, id=f"{read.__name__}: {name}: {message}")


@pytest.mark.parametrize(
    ("read", "env", "message"),
    [
        # A platform gives the variables of each rank.
        wrong_case(read_launch, PLATFORM, "WORLD_SIZE is 'two', no number", WORLD_SIZE="two"),
        wrong_case(read_launch, PLATFORM, "WORLD_SIZE is -4, expected 1 or more", WORLD_SIZE="-4"),
        wrong_case(read_launch, PLATFORM, "RANK is missing", RANK=""),
        wrong_case(
            read_launch, PLATFORM, "RANK is 4, expected 0 to 3 (below WORLD_SIZE)", RANK="4"
        ),
        wrong_case(
            read_launch,
            PLATFORM,
            # The error continues with the name of this host.
            "LOCAL_RANK is 2, expected 0 to 1 (below the number of GPUs on ",
            LOCAL_RANK="2",
        ),
        wrong_case(read_launch, PLATFORM, "MASTER_ADDR is missing", MASTER_ADDR=" "),
        wrong_case(read_launch, PLATFORM, "MASTER_PORT is 'abc', no number", MASTER_PORT="abc"),
        wrong_case(
            read_launch,
            PLATFORM,
            "MASTER_PORT is 70000, expected 1 to 65535",
            MASTER_PORT="70000",
        ),
        # srun gives the variables of each rank.
        wrong_case(read_launch, SLURM, "SLURM_JOB_ID is missing", SLURM_JOB_ID=""),
        wrong_case(read_launch, SLURM, "SLURM_JOB_NODELIST is missing", SLURM_JOB_NODELIST=""),
        # A platform gives the variables of a node, and launch_train.sh starts its ranks.
        wrong_case(
            node_variables, NODE, "NPROC_PER_NODE is 'many', no number", NPROC_PER_NODE="many"
        ),
        wrong_case(
            node_variables, NODE, "NPROC_PER_NODE is 0, expected 1 or more", NPROC_PER_NODE="0"
        ),
        wrong_case(node_variables, NODE, "RANK is 2, expected 0 to 1 (below WORLD_SIZE)", RANK="2"),
        wrong_case(node_variables, NODE, "WORLD_SIZE is missing", WORLD_SIZE=""),
        wrong_case(node_variables, NODE, "MASTER_ADDR is missing", MASTER_ADDR=""),
        wrong_case(node_variables, NODE, "MASTER_PORT is 'x', no number", MASTER_PORT="x"),
    ],
)
def test_a_wrong_variable_is_named(read, env, message):
    with pytest.raises(DistError) as error:
        read(env, gpu_count=GPU_COUNT)

    assert message in str(error.value)
    assert error.value.exit_code == EXIT_REFUSED


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(DistError) as error:
        read_launch(without(PLATFORM, "WORLD_SIZE"), gpu_count=GPU_COUNT)

    assert "WORLD_SIZE is missing" in str(error.value)


def test_all_wrong_variables_are_named_in_one_message():
    with pytest.raises(DistError) as error:
        read_launch({"WORLD_SIZE": "2", "RANK": "x", "MASTER_PORT": "0"})

    for message in ("RANK is 'x'", "MASTER_ADDR is missing", "MASTER_PORT is 0"):
        assert message in error.value.what


# ---- launch_train.sh on a platform that starts processes itself ----
# Such a platform starts the user's command on each node: once for each rank, or once for the node.
# If the command is `launch_train.sh 8`, each start of the command would start eight more ranks. So
# launch_train.sh refuses to start, and suggests another command for the platform:
#
#     once for each rank     python -u main_train_vrt.py ...
#     once for each node     NPROC_PER_NODE=8 python -u main_train_vrt.py ...


def start_launcher(env, *options):
    """Run launch_train.sh for eight ranks, and return its result.

    env: the variables of the platform. options: arguments after the option file.
    """
    return run_command(
        [ROOT / "launch_train.sh", "8", SAMPLE_OPTIONS, *options], limit_s=10, env=env
    )


# "canary" is a secret that must not appear in the output.
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param(
            ["scale=1", "task=a b", 'logging={"wandb_api_key": "canary"}'],
            " scale=1 task=a\\ b logging=...",
            id="a section with a secret",
        ),
        pytest.param(["--hf-token", "canary", "scale=1"], " --hf-token ... scale=1", id="a token"),
        pytest.param(
            ["logging.x=pwd:canary", "a=https://bob:canary@h"],
            " logging.x=... a=...",
            id="passwords",
        ),
    ],
)
def test_the_launcher_refuses_and_suggests_a_command_without_the_secrets(given, shown):
    result = start_launcher(PLATFORM, *given)

    # `exit_codes` has a code for each process, so one code for this one process.
    assert result.exit_codes == [EXIT_REFUSED]
    assert f"do        python -u main_train_vrt.py --opt {SAMPLE_OPTIONS}{shown}" in result.text
    assert "canary" not in result.text


def test_the_launcher_suggests_one_command_to_a_platform_that_starts_each_rank():
    # PLATFORM has LOCAL_RANK, the number of a rank on its node. So this platform starts each rank.
    result = start_launcher(PLATFORM)

    assert f"do        python -u main_train_vrt.py --opt {SAMPLE_OPTIONS}" in result.text
    assert "NPROC_PER_NODE=8" not in result.text


def test_without_local_rank_the_launcher_suggests_a_command_for_ranks_and_one_for_nodes():
    # An empty value removes the variable. Without LOCAL_RANK, the platform may start each rank, or
    # one process for each node.
    result = start_launcher({**PLATFORM, "LOCAL_RANK": ""})

    assert result.exit_codes == [EXIT_REFUSED]
    command = f"python -u main_train_vrt.py --opt {SAMPLE_OPTIONS}\n"
    assert f"do        {command}" in result.text
    assert f"NPROC_PER_NODE=8 {command}" in result.text


@pytest.mark.parametrize("count", ["", "0", "two"])
def test_the_launcher_needs_a_number_of_processes(count):
    result = run_command([ROOT / "launch_train.sh", count], limit_s=10)

    assert result.exit_codes == [EXIT_REFUSED]


# ---- The launchers start a `python` that prints its variables and arguments ----


# Exit code of the false `python`. No launcher itself ends with code 3.
FAKE_EXIT_CODE = 3


def environment_of_fake_python(folder):
    """Write a false `python`, and return the environment in which a launcher starts it.

    The false `python` prints its environment variables and its arguments, and ends with
    FAKE_EXIT_CODE. The environment has no variable that the launcher sets by itself. So a test sees
    which variables the launcher sets.

    folder: the false `python` is written into this folder.
    """
    script = f'env\necho "arguments $*"\nexit {FAKE_EXIT_CODE}'
    python = write_command(folder / "bin/python", script)
    unset = {  # an empty value removes a variable (`run_command`)
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "",
        "OMP_NUM_THREADS": "",
        "NCCL_IB_DISABLE": "",
        "OMP_WAIT_POLICY": "",
        "GOMP_SPINCOUNT": "",
        "PYTORCH_ALLOC_CONF": "",
        "PYTORCH_CUDA_ALLOC_CONF": "",
    }
    path = f"{python.parent}:{os.environ['PATH']}"
    # The launcher takes the `python` of VIRTUAL_ENV (scripts/environment.sh).
    return {"VIRTUAL_ENV": str(folder), "PATH": path, **unset}


@pytest.fixture
def fake_python(tmp_path):
    """Give the environment of a launcher, with a `python` that prints variables and arguments."""
    return environment_of_fake_python(tmp_path)


def launch(env, count=1, *options):
    """Run launch_train.sh with `count` ranks and the false `python`, and return its result.

    The `text` of the result has one line for each environment variable.
    """
    command = [ROOT / "launch_train.sh", str(count), SAMPLE_OPTIONS, *options]
    return run_command(command, limit_s=20, env=env)


@pytest.fixture(scope="module")
def results_of_launch(tmp_path_factory):
    """Give {number of ranks: result} of launch_train.sh, for 1 and for 2 ranks.

    The launcher of one rank sets GOMP_SPINCOUNT only if most cores are idle. So a false `getconf`
    says that the machine has 100,000 cores. The user has set CUDA_DEVICE_MAX_CONNECTIONS and
    NCCL_DEBUG.
    """
    folder = tmp_path_factory.mktemp("idle")
    env = environment_of_fake_python(folder)
    write_command(folder / "bin/getconf", "echo 100000")
    env |= {"CUDA_DEVICE_MAX_CONNECTIONS": "7", "NCCL_DEBUG": "INFO"}
    return {
        1: launch(env, 1, "scale=1", "task=a b"),
        2: launch(env, 2, "scale=1", "task=a b"),
    }


@pytest.mark.parametrize("count", [1, 2])
def test_the_launcher_ends_with_the_code_of_the_run(results_of_launch, count):
    assert results_of_launch[count].exit_codes == [FAKE_EXIT_CODE]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "line",
    [
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "NCCL_ASYNC_ERROR_HANDLING=1",
        "OMP_WAIT_POLICY=passive",
        "PYTORCH_ALLOC_CONF=expandable_segments:True",
    ],
)
def test_the_launcher_sets_what_the_user_has_not_set(results_of_launch, count, line):
    assert line in results_of_launch[count].text.splitlines()


@pytest.mark.parametrize("count", [1, 2])
def test_the_launcher_keeps_what_the_user_has_set(results_of_launch, count):
    lines = results_of_launch[count].text.splitlines()

    assert "CUDA_DEVICE_MAX_CONNECTIONS=7" in lines
    assert "NCCL_DEBUG=INFO" in lines


@pytest.mark.parametrize("count", [1, 2])
def test_infiniband_is_switched_off_on_a_machine_without_it(results_of_launch, count):
    # The false `python` prints the environment that the launcher gives to it, one variable in a
    # line.
    lines = results_of_launch[count].text.splitlines()

    has_infiniband = any(Path("/sys/class/infiniband").glob("*"))
    is_switched_off = "NCCL_IB_DISABLE=1" in lines
    expected = not has_infiniband
    assert is_switched_off == expected


# scripts/launch.sh sets GOMP_SPINCOUNT only for one rank.
@pytest.mark.parametrize(("count", "expected"), [(1, True), (2, False)])
def test_the_threads_of_one_rank_wait_actively_for_a_moment(results_of_launch, count, expected):
    lines = results_of_launch[count].text.splitlines()

    # GOMP_SPINCOUNT is the number of turns of a loop in which a thread waits actively, before it
    # sleeps. scripts/launch.sh sets this number. On busy cores the loop would make a step slower.
    waits_actively = "GOMP_SPINCOUNT=3000" in lines
    assert waits_actively == expected


# For one rank, launch_train.sh sets the number of threads. For several ranks, torchrun sets it.
@pytest.mark.parametrize(("count", "expected"), [(1, True), (2, False)])
def test_one_rank_has_all_cores(results_of_launch, count, expected):
    lines = results_of_launch[count].text.splitlines()

    cores = len(os.sched_getaffinity(0))
    has_all_cores = f"OMP_NUM_THREADS={cores}" in lines
    assert has_all_cores == expected


@pytest.mark.parametrize(
    ("count", "started"),
    [
        pytest.param(1, "-u", id="one rank"),
        pytest.param(
            2, "scripts/torchrun_quiet.py --standalone --nproc_per_node=2", id="two ranks"
        ),
    ],
)
def test_the_launcher_hands_its_arguments_to_the_program(results_of_launch, count, started):
    lines = results_of_launch[count].text.splitlines()

    # The false `python` prints its arguments in a line that begins with "arguments".
    assert f"arguments {started} main_train_vrt.py --opt {SAMPLE_OPTIONS} scale=1 task=a b" in lines


# `fake_python` is the environment with the false `python`, which prints its arguments.
@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        pytest.param(
            f"{SAMPLE_OPTIONS} val.save_img=true",
            f"--opt {SAMPLE_OPTIONS} val.save_img=true",
            id="option file",
        ),
        pytest.param(
            "--weights my.pth --input in --output out",
            "--weights my.pth --input in --output out",
            id="a user's files",
        ),
    ],
)
def test_the_launcher_of_tests_takes_both_forms(fake_python, given, passed_on):
    # launch_test.sh takes an option file or flags. It puts --opt before an option file, and passes
    # flags on unchanged.
    result = run_command(
        [ROOT / "launch_test.sh", "1", *given.split()], limit_s=20, env=fake_python
    )

    assert f"arguments -u main_test_vrt.py {passed_on}" in result.text.splitlines()


@pytest.fixture
def busy_cores():
    """Keep all cores busy with other processes during a test. Gives no value."""
    processes = []
    for _ in range(os.cpu_count() or 1):
        processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    yield
    for process in processes:
        process.kill()
        process.wait()


# This test is slow, because it keeps all cores busy for 5 seconds. This delays other tests.
@pytest.mark.slow
def test_threads_do_not_wait_actively_if_others_keep_the_cores_busy(fake_python, busy_cores):
    text = launch(fake_python).text

    assert "OMP_WAIT_POLICY=passive" in text
    assert "GOMP_SPINCOUNT" not in text


# This test is slow for the same reason as the test above.
@pytest.mark.slow
def test_threads_wait_as_the_user_says_also_on_busy_cores(fake_python, busy_cores):
    text = launch(fake_python | {"GOMP_SPINCOUNT": "7"}).text

    assert "GOMP_SPINCOUNT=7" in text.splitlines()


def launch_in_bash(env, before=""):
    """Run `before` and then launch_train.sh in one shell. Return the text that both print."""
    command = f"{before}{ROOT}/launch_train.sh 1 {SAMPLE_OPTIONS}"
    return run_command(["bash", "-c", command], limit_s=20, env=env).text


def test_a_limited_address_space_is_warned_of_before_it_can_cause_an_error(fake_python):
    text = launch_in_bash(fake_python, before="ulimit -v 4000000; ")

    assert "warning: ulimit -v limits the address space to 4 GB" in text
    assert "arguments" in text  # the program starts nevertheless


def test_an_address_space_without_a_limit_is_not_mentioned(fake_python):
    assert "ulimit" not in launch_in_bash(fake_python)


# ---- Which Python, and which files ----


def chosen_python(env):
    """Return the Python that scripts/environment.sh chooses."""
    show = ["bash", "-c", "source scripts/environment.sh; echo $python"]
    return run_command(show, limit_s=10, env=env).text.strip()


def test_an_active_environment_with_python_is_taken(fake_python):
    assert chosen_python(fake_python) == "python"


def test_an_active_environment_without_python_is_not_used(tmp_path, fake_python):
    # There is a `python` on PATH, but it does not belong to the active environment.
    (tmp_path / "conda/bin").mkdir(parents=True)
    env = fake_python | {"CONDA_PREFIX": str(tmp_path / "conda"), "VIRTUAL_ENV": ""}

    found = chosen_python(env)

    # The repository's own Python comes next, and then the Python of the system.
    own = ROOT / ".venv/bin/python"
    expected = str(own) if own.exists() else "python3"
    assert found == expected


def test_a_launcher_in_another_folder_uses_the_files_of_the_callers_folder(tmp_path):
    # The caller's folder has an option file, data and a program with the same names as in the
    # repository. The launcher must use the option file and the data, but not the program.
    options = write_options(tmp_path).read_text()
    mine = tmp_path / SAMPLE_OPTIONS
    mine.parent.mkdir(parents=True)
    relative = options.replace(f"{tmp_path}/", "").replace('"task": "run"', '"task": "mine"')
    mine.write_text(relative)
    (tmp_path / "main_train_vrt.py").write_text("raise SystemExit('not the program')")
    one_step = ["datasets.test={}", "train.total_iter=1"]
    command = [ROOT / "launch_train.sh", "1", SAMPLE_OPTIONS, *one_step]

    result = run_command(command, limit_s=120, env=forking_python(tmp_path), cwd=tmp_path)

    assert result.exit_codes == [0], result.text
    assert (tmp_path / "experiments/mine/models").is_dir()


# ---- A process group that another program made ----

# This program makes a process group itself, and then trains. At the end the group must still exist.
JOINS_A_GROUP = """
import sys

sys.path.insert(0, {root!r})
import torch.distributed as dist

dist.init_process_group("gloo")
import main_train_vrt

code = main_train_vrt.main(sys.argv[1:])
assert dist.is_initialized() and dist.get_world_size() == 2
dist.destroy_process_group()
sys.exit(code)
"""


def test_a_process_group_that_is_there_already_is_used_then_left(tmp_path):
    # Ray Train makes such a group before it calls the function of its user.
    program = tmp_path / "ray.py"
    program.write_text(JOINS_A_GROUP.format(root=str(ROOT)))
    options = write_options(tmp_path)

    result = run_ranks(
        2, program, "--opt", options, "datasets.test={}", "train.total_iter=2", limit_s=90
    )

    assert result.exit_codes == [0, 0], result.text
    assert "rank 1 of 2" in result.text
    assert result.text.count("Finished at iter 2") == 1

"""Who started the ranks, and the two shell scripts that start them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.dist.launching import ROOT, run_command, run_ranks, write_command
from tests.helpers.train_files import odd_command, write_odd, write_options
from utils import utils_dist
from utils.dist.launchers import with_standard_names
from utils.dist.platforms import first_host, host_count, node_variables, read_launch
from utils.dist.state import RUN, LaunchInfo
from utils.errors import DistError

PLATFORM = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NODELIST": "gpu[003-007,9],cpu1",
}  # fmt: skip
# One process per node of eight GPUs: PAI-DLC, and Kubeflow, whose WORLD_SIZE counts processes.
NODE = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "NPROC_PER_NODE": "8",
}
KUBEFLOW = {
    "RANK": "1", "WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
    "PET_NPROC_PER_NODE": "8", "PET_NNODES": "2", "PET_NODE_RANK": "1",
}  # fmt: skip
SINGLE = LaunchInfo("single")
SAMPLE = "options/vrt/000_train_vrt_sample_rgbspike.json"


def without(env, name):
    return {key: value for key, value in env.items() if key != name}


@pytest.mark.parametrize(("env", "expected"), [
    ({}, SINGLE), ({"WORLD_SIZE": "1", "RANK": "0"}, SINGLE),
    ({"SLURM_NTASKS": "4"}, SINGLE),  # an allocation, not a task of srun
    # torchrun in the shell of an allocation
    ({**SLURM, "SLURM_PROCID": "0", "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1", "RANK": "0"},
     SINGLE),
    (PLATFORM, LaunchInfo("platform", 3, 1, 4, "10.0.0.1", 29500)),
    ({**PLATFORM, **SLURM}, LaunchInfo("platform", 3, 1, 4, "10.0.0.1", 29500)),
    ({**PLATFORM, "TORCHELASTIC_RUN_ID": "none"},
     LaunchInfo("torchrun", 3, 1, 4, "10.0.0.1", 29500)),
    (without(PLATFORM, "LOCAL_RANK"), LaunchInfo("platform", 3, 0, 4, "10.0.0.1", 29500)),
    (without(PLATFORM, "LOCAL_RANK") | {"SLURM_LOCALID": "2"},
     LaunchInfo("platform", 3, 2, 4, "10.0.0.1", 29500)),
    # the first host, and a port from the job
    (SLURM, LaunchInfo("slurm", 5, 1, 8, "gpu003", 15000 + 4567)),
    ({**SLURM, "MASTER_ADDR": "head", "MASTER_PORT": "4000"},
     LaunchInfo("slurm", 5, 1, 8, "head", 4000)),
    # a task that srun started from a batch script, and the script itself
    ({**SLURM, "ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "0"},
     LaunchInfo("slurm", 5, 1, 8, "gpu003", 15000 + 4567)),
    ({**SLURM, "ENVIRONMENT": "BATCH", "WORLD_SIZE": "1"}, SINGLE),
])  # fmt: skip
def test_the_variables_tell_who_started_the_ranks(env, expected):
    assert read_launch(env) == expected


@pytest.mark.parametrize(("env", "expected"), [
    (PLATFORM, None), ({}, None), (NODE, ("8", "2", "1")), (KUBEFLOW, ("8", "2", "1")),
    ({**KUBEFLOW, "PET_NPROC_PER_NODE": "auto", "WORLD_SIZE": "2"}, ("4", "2", "1")),
    ({**NODE, "RANK": "0", "WORLD_SIZE": "1"}, ("8", "1", "0")),
    ({"NPROC_PER_NODE": "8"}, ("8", None, None)),
    ({**KUBEFLOW, "PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "a:1"}, ("8", "1:4", "1")),  # elastic
    ({**NODE, **SLURM}, ("8", "2", "1")),  # srun starts a process per node, and says so
    ({**NODE, "LOCAL_RANK": "0"}, None),  # a rank already
    # a task of srun, whose shell has the variable for torchrun
    ({"NPROC_PER_NODE": "8", **SLURM}, None),
    ({**NODE, "NPROC_PER_NODE": "1"}, None),  # a GPU per node: the process is its rank
    # launch_train.sh 1: not the 16 of WORLD_SIZE
    ({**KUBEFLOW, "PET_NPROC_PER_NODE": "1"}, ("1", "2", "1")),
])  # fmt: skip
def test_a_process_that_stands_for_a_node_is_told_apart_from_a_rank(env, expected):
    found = node_variables(env, gpu_count=4)
    names = ("PET_NPROC_PER_NODE", "PET_NNODES", "PET_NODE_RANK")
    assert (tuple(map(found.get, names)) if found else None) == expected
    if expected and expected[1]:
        assert (found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"]) == ("10.0.0.1", "29500")


ADDRESS = {"MASTER_ADDR": "h0", "MASTER_PORT": "23456"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job7",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
JSRUN = {
    "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "1",
    "LSB_MCPU_HOSTS": "b 1 a 4",
}  # fmt: skip
FLUX = {
    "FLUX_TASK_RANK": "1",
    "FLUX_JOB_SIZE": "2",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_NNODES": "1",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "8"}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}  # fmt: skip
MODELARTS = {
    "MA_NUM_HOSTS": "2", "MA_NUM_GPUS": "8", "VC_WORKER_HOSTS": "w-0.w,w-1.w", "VC_WORKER_NUM": "2",
    "VC_TASK_INDEX": "1",
}  # fmt: skip
VOLCENGINE = {
    "MLP_WORKER_0_HOST": "h0", "MLP_WORKER_0_PORT": "2222", "MLP_WORKER_NUM": "2",
    "MLP_WORKER_GPU": "8", "MLP_ROLE_INDEX": "1",
}  # fmt: skip
TENCENT = {
    "NODE_NUM": "2", "INDEX": "1", "GPU_NUM": "8", "NODE_IP_SLOT_LIST": "10.0.0.1:8,10.0.0.2:8",
}  # fmt: skip
VOLCANO = {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "j-0.j,j-1.j", "VC_WORKER_NUM": "2"}


@pytest.mark.parametrize(("env", "rank", "local", "world", "address"), [
    # a process for each rank: what each launcher sets, as documented
    (OPEN_MPI | ADDRESS, 1, 1, 2, "h0"), (OPEN_MPI, 1, 1, 2, "127.0.0.1"),
    (OPEN_MPI | SLURM, 1, 1, 2, "127.0.0.1"),  # mpirun in an allocation of SLURM
    (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "AZ_BATCH_MASTER_NODE": "10.0.0.4:6105"},
     1, 1, 2, "10.0.0.4"),
    (HYDRA, 1, 1, 2, "127.0.0.1"), (HYDRA | ADDRESS, 1, 1, 2, "h0"),
    (JSRUN | ADDRESS, 1, 1, 4, "h0"), (FLUX | HYDRA, 1, 1, 2, "127.0.0.1"),
    (ADDRESS | {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2",
                "MV2_COMM_WORLD_LOCAL_RANK": "1"}, 1, 1, 2, "h0"),
    # a process for each node of one GPU
    (SAGEMAKER | {"SM_NUM_GPUS": "1"}, 1, 0, 2, "algo-1"), (VOLCANO, 1, 0, 2, "j-0.j"),
])  # fmt: skip
def test_a_rank_of_another_launcher_joins_the_others(env, rank, local, world, address):
    named = with_standard_names(env, gpu_count=1)
    assert not node_variables(named, gpu_count=1)
    found = read_launch(named, gpu_count=1)
    assert (found.rank, found.local_rank, found.world_size) == (rank, local, world)
    assert found.master_addr == address and found.master_port > 0


@pytest.mark.parametrize(("env", "address"), [
    (SAGEMAKER, "algo-1:29500"), (SAGEMAKER | {"SM_MASTER_PORT": "7777"}, "algo-1:7777"),
    (SKYPILOT, "10.0.0.1:29500"), (MODELARTS, "w-0.w:29500"), (VOLCENGINE, "h0:2222"),
    (TENCENT, "10.0.0.1:29500"), (VOLCANO, "j-0.j:29500"),
    (ADDRESS | {"NNODES": "2", "NODE_RANK": "1"}, "h0:23456"),
])  # fmt: skip
def test_a_process_of_a_platform_stands_for_its_node(env, address):
    found = node_variables(with_standard_names(env, gpu_count=8), gpu_count=8)
    place = (found["PET_NPROC_PER_NODE"], found["PET_NNODES"], found["PET_NODE_RANK"])
    assert place == ("8", "2", "1")
    assert f"{found['PET_MASTER_ADDR']}:{found['PET_MASTER_PORT']}" == address


@pytest.mark.parametrize(("env", "said"), [
    (without(OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), "mpirun -x MASTER_ADDR="),
    (JSRUN, "jsrun -E MASTER_ADDR="), (without(FLUX, "FLUX_JOB_NNODES"), "flux run"),
    ({"LSB_MCPU_HOSTS": "a 4 b 4"}, "torchrun --nnodes"),
    ({"PBS_NUM_NODES": "2", "PBS_NODENUM": "1"}, "torchrun --nnodes"),
    ({"DET_SLOT_IDS": "[0,1]"}, "determined.launch.torch_distributed COMMAND"),
    ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "mpiexec"),
])  # fmt: skip
def test_where_only_the_number_of_processes_is_known_the_command_to_type_is_given(env, said):
    with pytest.raises(DistError) as error:
        read_launch(with_standard_names(env))
    assert said in str(error.value)
    alone = with_standard_names(env | {"WORLD_SIZE": "1"})
    assert read_launch(alone) == SINGLE


@pytest.mark.parametrize("env", [
    {"LSB_MCPU_HOSTS": "a 8"}, {"PBS_NUM_NODES": "1"}, {"DET_SLOT_IDS": "[0]"},
    {"NNODES": "1", "NODE_RANK": "0"}, {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    {"SM_HOSTS": '["a"]', "SM_NUM_GPUS": "0"},
])  # fmt: skip
def test_one_process_of_another_launcher_is_one_process(env):
    assert read_launch(with_standard_names(env)) == SINGLE


@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs openmpi-bin")
def test_mpirun_of_open_mpi_starts_ranks_that_meet(tmp_path):
    mpirun = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    _train_by(mpirun, tmp_path)


@pytest.mark.skipif(not shutil.which("mpirun.mpich"), reason="needs mpich")
def test_mpirun_of_mpich_starts_ranks_that_meet(tmp_path):
    _train_by(("mpirun.mpich", "-np", "2"), tmp_path)


@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs openmpi-bin")
def test_ranks_that_do_not_know_where_rank_0_is_are_refused_once(tmp_path):
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    command = odd_command(write_odd(tmp_path), "datasets.test={}", "train.total_iter=2")
    elsewhere = ["env", "OMPI_COMM_WORLD_LOCAL_SIZE=1"]  # as with one rank on each of two hosts
    result = run_command([*mpirun, *elsewhere, sys.executable, *command], limit_s=60)
    assert result.exit_codes == [2], result.text
    assert result.text.count("MASTER_ADDR is missing") == 1


def _train_by(launcher, folder):
    options = write_odd(folder)
    command = odd_command(options, "datasets.test={}", "train.total_iter=2")
    result = run_command([*launcher, sys.executable, *command], limit_s=60)
    assert result.exit_codes == [0], result.text
    assert "rank 1 of 2" in result.text and "Finished at iter 2" in result.text


def test_slurm_with_one_task_on_each_node_of_several_gpus_is_refused():
    env = {**SLURM, "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert host_count("gpu[003-007,9],cpu1") == 7
    assert read_launch(env, gpu_count=1).world_size == 2
    with pytest.raises(DistError, match="7 of them would idle"):
        read_launch(env, gpu_count=8)


def test_where_ranks_and_nodes_cannot_be_told_apart_the_line_for_each_is_given():
    env = without(NODE, "NPROC_PER_NODE")
    command = "python -u main_train_vrt.py --opt my.json"
    with pytest.raises(DistError) as error:
        read_launch(env, gpu_count=8, command=command)
    assert f"LOCAL_RANK=$((RANK % 8)) {command}\n" in str(error.value)
    assert str(error.value).endswith(f"NPROC_PER_NODE=8 {command}")
    # One GPU for each process: nothing is unclear
    assert read_launch(env, gpu_count=1).world_size == 2


@pytest.mark.parametrize(
    ("local_rank", "gpu_count", "index"), [(0, 8, 0), (3, 8, 3), (3, 1, 0), (0, 1, 0)]
)
def test_where_each_process_sees_one_gpu_it_takes_that_one(
    local_rank, gpu_count, index, monkeypatch
):
    monkeypatch.setattr(
        RUN, "launch", read_launch({**PLATFORM, "LOCAL_RANK": str(local_rank)}, gpu_count)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpu_count)
    assert utils_dist.get_device() == torch.device("cuda", index)


OLDER_TORCHRUN = """
import os, signal
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import PContext
from scripts import torchrun_quiet
made = run.get_args_parser()
for action in [a for a in made._actions if {a.dest} & {"signals_to_handle", "shutdown_timeout"}]:
    for group in made._action_groups:
        if action in group._group_actions:
            group._group_actions.remove(action)
    made._remove_action(action)
    for name in action.option_strings:
        del made._option_string_actions[name]
run.get_args_parser = lambda: made
run.run = lambda args: print(
    signal.getsignal(signal.SIGUSR1).__name__, PContext.close.__defaults__, args.nproc_per_node,
    "ranks, threads", os.environ["OMP_NUM_THREADS"],
)
del os.environ["OMP_NUM_THREADS"]
torchrun_quiet.main(["--standalone", "--nproc_per_node=2", "x.py"])
"""


def test_ranks_of_an_older_torchrun_have_its_signals_and_their_time_too_and_share_the_cores(
    tmp_path,
):
    (tmp_path / "older.py").write_text(OLDER_TORCHRUN)
    result = run_ranks(1, tmp_path / "older.py")
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert result.text.startswith(f"on_signal (None, 180) 2 ranks, threads {threads}\n"), (
        result.text
    )


FEW_GPUS = """
import sys
import torch
from scripts import torchrun_quiet
torch.cuda.device_count = lambda: 2
sys.exit(torchrun_quiet.main(["--standalone", f"--nproc_per_node={sys.argv[1]}", "x.py"]))
"""


def test_more_ranks_than_gpus_are_refused_before_torchrun_starts(tmp_path):
    (tmp_path / "few.py").write_text(FEW_GPUS)

    result = run_ranks(1, tmp_path / "few.py", "3")

    assert result.exit_codes == [DistError.exit_code], result.text
    assert "3 ranks on 2 GPUs" in result.text and "start 2" in result.text


@pytest.mark.parametrize(("nodelist", "host"), [
    ("gpu7", "gpu7"), ("a,b", "a"), ("gpu[003-007,9]", "gpu003"), ("n[1,3]-ib,x", "n1-ib"),
    ("r[01-02]n[10-12]", "r01n10"), ("node-a[9-11]", "node-a9"), ("", ""),
])  # fmt: skip
def test_the_first_host_of_a_node_list(nodelist, host):
    assert first_host(nodelist) == host


@pytest.mark.parametrize(("read", "env", "change", "fault"), [
    (read_launch, PLATFORM, {"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', no number"),
    (read_launch, PLATFORM, {"WORLD_SIZE": "-4"}, "WORLD_SIZE is -4, expected 1 or more"),
    (read_launch, PLATFORM, {"RANK": ""}, "RANK is missing"),
    (read_launch, PLATFORM, {"RANK": "4"}, "RANK is 4, expected 0 to 3 (below WORLD_SIZE)"),
    (read_launch, PLATFORM, {"LOCAL_RANK": "2"},
     "LOCAL_RANK is 2, expected 0 to 1 (below the number of GPUs on"),
    (read_launch, PLATFORM, {"MASTER_ADDR": " "}, "MASTER_ADDR is missing"),
    (read_launch, PLATFORM, {"MASTER_PORT": "abc"}, "MASTER_PORT is 'abc', no number"),
    (read_launch, PLATFORM, {"MASTER_PORT": "70000"}, "MASTER_PORT is 70000, expected 1 to 65535"),
    (read_launch, without(PLATFORM, "WORLD_SIZE"), {}, "WORLD_SIZE is missing"),
    (read_launch, SLURM, {"SLURM_JOB_ID": ""}, "SLURM_JOB_ID is missing"),
    (read_launch, SLURM, {"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST is missing"),
    (node_variables, NODE, {"NPROC_PER_NODE": "many"}, "NPROC_PER_NODE is 'many', no number"),
    (node_variables, NODE, {"NPROC_PER_NODE": "0"}, "NPROC_PER_NODE is 0, expected 1 or more"),
    (node_variables, NODE, {"RANK": "2"}, "RANK is 2, expected 0 to 1 (below WORLD_SIZE)"),
    (node_variables, NODE, {"WORLD_SIZE": ""}, "WORLD_SIZE is missing"),
    (node_variables, NODE, {"MASTER_ADDR": ""}, "MASTER_ADDR is missing"),
    (node_variables, NODE, {"MASTER_PORT": "x"}, "MASTER_PORT is 'x', no number"),
])  # fmt: skip
def test_a_wrong_variable_is_named(read, env, change, fault):
    with pytest.raises(DistError) as error:
        read({**env, **change}, gpu_count=2)
    assert fault in str(error.value)
    assert error.value.exit_code == 2
    # All faults stand in one message.
    with pytest.raises(DistError) as error:
        read_launch({"WORLD_SIZE": "2", "RANK": "x", "MASTER_PORT": "0"})
    for name in ("RANK is 'x'", "MASTER_ADDR is missing", "MASTER_PORT is 0"):
        assert name in error.value.what


@pytest.mark.parametrize(("given", "shown", "env"), [
    (("scale=1", "task=a b", 'logging={"wandb_api_key": "canary"}'),
     " scale=1 task=a\\ b logging=...", PLATFORM),
    (("--hf-token", "canary", "scale=1"), " --hf-token ... scale=1", PLATFORM),
    (("logging.x=pwd:canary", "a=https://bob:canary@h"), " logging.x=... a=...", PLATFORM),
    ((), "\n", {**PLATFORM, "LOCAL_RANK": ""}),  # the variables of ranks, or of nodes
])  # fmt: skip
def test_the_launcher_refuses_to_start_inside_a_platform_launch_and_gives_the_command(
    given, shown, env
):
    result = run_command([ROOT / "launch_train.sh", "8", SAMPLE, *given], 10, env)

    assert result.exit_codes == [2]
    command = f"python -u main_train_vrt.py --opt {SAMPLE}{shown}"
    assert f"do        {command}" in result.text and "canary" not in result.text
    assert (f"NPROC_PER_NODE=8 {command}" in result.text) == (env is not PLATFORM)


@pytest.mark.parametrize("count", ["", "0", "two"])
def test_the_launcher_needs_a_number_of_processes(count):
    assert run_command([ROOT / "launch_train.sh", count], 10).exit_codes == [2]


@pytest.fixture
def fake_python(tmp_path):
    """The environment of a launcher whose python prints its variables and arguments, and ends with
    3.
    """
    python = write_command(tmp_path / "bin/python", 'env\necho "arguments $*"\nexit 3')
    names = (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "OMP_NUM_THREADS",
        "NCCL_IB_DISABLE",
        "OMP_WAIT_POLICY",
        "GOMP_SPINCOUNT",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
    )
    unset = dict.fromkeys(names, "")
    return {"VIRTUAL_ENV": str(tmp_path), "PATH": f"{python.parent}:{os.environ['PATH']}", **unset}


@pytest.mark.parametrize("count", [1, 2])
def test_the_launcher_sets_what_the_user_has_not_set_and_ends_with_the_code_of_the_run(
    tmp_path, count, fake_python
):
    # So many cores that most of them are idle
    write_command(tmp_path / "bin/getconf", "echo 100000")
    own = {"CUDA_DEVICE_MAX_CONNECTIONS": "7", "NCCL_DEBUG": "INFO"}

    result = run_command(
        [ROOT / "launch_train.sh", str(count), SAMPLE, "scale=1", "task=a b"], 20, fake_python | own
    )

    assert result.exit_codes == [3]
    lines = result.text.splitlines()
    for line in ("TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "NCCL_ASYNC_ERROR_HANDLING=1",
                 "CUDA_DEVICE_MAX_CONNECTIONS=7", "NCCL_DEBUG=INFO", "OMP_WAIT_POLICY=passive",
                 "PYTORCH_ALLOC_CONF=expandable_segments:True"):  # fmt: skip
        assert line in lines
    has_infiniband = any(Path("/sys/class/infiniband").glob("*"))
    assert ("NCCL_IB_DISABLE=1" in lines) == (not has_infiniband)
    assert ("GOMP_SPINCOUNT=3000" in lines) == (count == 1)
    started = "-u" if count == 1 else "scripts/torchrun_quiet.py --standalone --nproc_per_node=2"
    assert f"arguments {started} main_train_vrt.py --opt {SAMPLE} scale=1 task=a b" in lines
    assert (f"OMP_NUM_THREADS={len(os.sched_getaffinity(0))}" in lines) == (count == 1)


@pytest.mark.parametrize(
    "form", [f"--opt {SAMPLE} val.save_img=true", "--weights my.pth --input in --output out"]
)
def test_the_launcher_of_tests_takes_both_forms(fake_python, form):
    given = [ROOT / "launch_test.sh", "1", *form.removeprefix("--opt ").split()]
    assert (
        f"arguments -u main_test_vrt.py {form}"
        in run_command(given, 20, fake_python).text.splitlines()
    )


def test_a_launcher_of_another_folder_takes_the_files_of_the_callers_folder(tmp_path):
    # The caller's folder has an option file and data by the same relative names as the repository.
    options = write_options(tmp_path)
    mine = tmp_path / SAMPLE
    mine.parent.mkdir(parents=True)
    text = options.read_text().replace(f"{tmp_path}/", "")
    mine.write_text(text.replace('"task": "run"', '"task": "mine"'))
    (tmp_path / "main_train_vrt.py").write_text("raise SystemExit('not the program')")

    changes = ("datasets.test={}", "train.total_iter=1")
    result = run_command([ROOT / "launch_train.sh", "1", SAMPLE, *changes], 120, cwd=tmp_path)

    assert result.exit_codes == [0], result.text
    assert (tmp_path / "experiments/mine/models").is_dir()


def test_an_active_environment_without_python_is_passed_over(tmp_path, fake_python):
    (tmp_path / "conda/bin").mkdir(parents=True)
    show = [
        "bash",
        "-c",
        "source scripts/environment.sh; echo $python",
    ]  # "python" of PATH is not that environment's

    passed_over = run_command(
        show, 10, fake_python | {"CONDA_PREFIX": str(tmp_path / "conda"), "VIRTUAL_ENV": ""}
    )
    taken = run_command(show, 10, fake_python)

    own = ROOT / ".venv/bin/python"
    assert passed_over.text.strip() == (str(own) if own.exists() else "python3")
    assert taken.text.strip() == "python"


def test_threads_do_not_spin_where_others_keep_the_cores_busy(fake_python):
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        text = run_command([ROOT / "launch_train.sh", "1", SAMPLE], 20, fake_python).text
        own = run_command(
            [ROOT / "launch_train.sh", "1", SAMPLE], 20, fake_python | {"GOMP_SPINCOUNT": "7"}
        ).text
    finally:
        for process in others:
            process.kill()
            process.wait()

    assert "OMP_WAIT_POLICY=passive" in text and "GOMP_SPINCOUNT" not in text
    assert "GOMP_SPINCOUNT=7" in own.splitlines()


def test_a_limited_address_space_is_said_before_anything_can_fail_by_it(fake_python):
    launch = f"{ROOT}/launch_train.sh 1 {SAMPLE}"

    limited = run_command(["bash", "-c", f"ulimit -v 4000000; {launch}"], 20, fake_python).text
    unlimited = run_command(["bash", "-c", launch], 20, fake_python).text

    assert "warning: ulimit -v limits the address space to 4 GB" in limited
    assert "arguments" in limited and "ulimit" not in unlimited


JOINS_A_GROUP = """
import sys
import torch.distributed as dist

dist.init_process_group("gloo")
import main_train_vrt

code = main_train_vrt.main(sys.argv[1:])
assert dist.is_initialized() and dist.get_world_size() == 2
dist.destroy_process_group()
sys.exit(code)
"""


def test_a_process_group_that_is_there_already_is_used_and_left(tmp_path):
    # As Ray Train does, before it calls a function of the user.
    program = tmp_path / "ray.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{JOINS_A_GROUP}")
    options = write_options(tmp_path)
    result = run_ranks(
        2, program, "--opt", options, "datasets.test={}", "train.total_iter=2", limit_s=90
    )
    assert result.exit_codes == [0, 0], result.text
    assert "rank 1 of 2" in result.text and result.text.count("Finished at iter 2") == 1

"""Which GPUs a process uses, what is logged about GPUs, and when a step waits for its GPU.

The tests need no GPU, because they replace what torch and the driver report. The last test runs a
training step on the CPU, in the network's form for GPUs. It notes the operations whose results the
program would wait for on a GPU.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.vrt import forms
from scripts.parts.doctor.doctor_ranks import check_ranks
from tests.dist.launching import RankResult, write_command
from tests.helpers.checked import options_of_part
from tests.helpers.train_files import train, write_options
from utils.dist.gpu import choose_gpus, claim, describe, torch_to_install, usage
from utils.dist.state import RUN, LaunchInfo
from utils.dist.status import status_line
from utils.errors import DistError
from utils.run.measured import Measured, log_values

# Exit codes of a run: the user must change an option (OptionError or DistError), or the data are
# missing or wrong (DataError).
CHANGE_OPTIONS = 2
BAD_DATA = 3

# ---- The option gpu_ids ----


def launch_of(ranks: int, rank: int = 0) -> LaunchInfo:
    """Return what the launcher tells a rank. ranks: number of ranks, all on one host."""
    if ranks == 1:
        return LaunchInfo("single")
    return LaunchInfo(
        "torchrun",
        rank=rank,
        local_rank=rank,
        world_size=ranks,
        master_addr="localhost",
        master_port=29500,
    )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A start with gpu_ids, and the GPUs that the process sees after it."""

    # The given values: the option gpu_ids, the number of visible GPUs that torch finds, the number
    # of ranks, and environment variables.
    ids: list[int] | None
    gpus: int
    ranks: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    # The expected values: the value of CUDA_VISIBLE_DEVICES (None: it is not set), and words of the
    # log ("": there is no message).
    visible: str | None
    message: str = ""


CHOICES = [
    # In this case there is one rank.
    pytest.param(Choice(ids=None, gpus=4, visible=None), id="nothing is asked for"),
    pytest.param(
        Choice(
            ids=[2, 3],
            gpus=2,
            visible="2,3",
            message="CUDA_VISIBLE_DEVICES=2,3 ./launch_train.sh 2 my.json",
        ),
        id="two GPUs for one rank, which can use one: the log names the command for two ranks",
    ),
    # There is no message, because there is only one GPU: a command for three ranks would not help.
    pytest.param(
        Choice(ids=[0, 1, 2], gpus=1, visible="0,1,2"),
        id="the published file on a machine with one GPU",
    ),
    pytest.param(
        Choice(
            ids=[0, 1],
            gpus=1,
            visible="3",
            message="CUDA_VISIBLE_DEVICES=3 takes precedence over gpu_ids [0,1]",
            variables={"CUDA_VISIBLE_DEVICES": "3"},
        ),
        id="the user has chosen another GPU",
    ),
    pytest.param(
        Choice(ids=[0, 1], gpus=0, visible="", variables={"CUDA_VISIBLE_DEVICES": ""}),
        id="the user has chosen no GPU",
    ),
    pytest.param(
        Choice(
            ids=[],
            gpus=1,
            visible="0",
            message="CUDA_VISIBLE_DEVICES=0 takes precedence over gpu_ids []",
            variables={"CUDA_VISIBLE_DEVICES": "0"},
        ),
        id="the option asks for the CPU, and the user for a GPU",
    ),
    pytest.param(Choice(ids=[], gpus=0, visible=""), id="the option asks for the CPU"),
    # The next cases have several ranks. Then rank n takes GPU n of the machine, and gpu_ids has no
    # effect. No message is needed if the ranks take all GPUs of gpu_ids that the machine has, as in
    # the next two cases.
    pytest.param(
        Choice(ids=[0, 1, 2, 3], gpus=2, visible=None, ranks=2),
        id="two of four GPUs are there, and both are taken",
    ),
    pytest.param(
        Choice(ids=[0, 1], gpus=4, visible=None, ranks=2), id="the GPUs that two ranks take anyway"
    ),
    pytest.param(
        Choice(
            ids=[0, 1, 2, 3],
            gpus=4,
            visible=None,
            message="gpu_ids [0,1,2,3] has no effect with several ranks",
            ranks=2,
        ),
        id="more GPUs than ranks",
    ),
    pytest.param(
        Choice(
            ids=[0, 1, 2, 3],
            gpus=4,
            visible=None,
            message="gpu_ids [0,1,2,3] has no effect",
            ranks=4,
            variables={"LOCAL_WORLD_SIZE": "2"},
        ),
        id="more GPUs than ranks on each of two nodes",
    ),
    pytest.param(
        Choice(
            ids=[2, 3],
            gpus=4,
            visible=None,
            message="gpu_ids [2,3] has no effect with several ranks",
            ranks=2,
        ),
        id="other GPUs than two ranks take",
    ),
    pytest.param(
        Choice(
            ids=[],
            gpus=2,
            visible=None,
            message="gpu_ids [] has no effect with several ranks",
            ranks=2,
        ),
        id="the option asks for the CPU, and two ranks take GPUs",
    ),
]


@pytest.fixture
def without_choice(monkeypatch) -> None:
    """Remove the variables by which a user or a launcher chooses GPUs, until the test ends."""
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE"):
        # The program may set the variable, and monkeypatch must undo this after the test. If the
        # variable does not exist, `monkeypatch.delenv` remembers nothing to undo, but `setenv`
        # remembers that it did not exist. So set the variable first, and then remove it.
        monkeypatch.setenv(name, "")
        del os.environ[name]


@pytest.mark.usefixtures("without_choice")
@pytest.mark.parametrize("case", CHOICES)
def test_gpu_ids_choose_the_gpus_if_nothing_else_has_chosen_them(monkeypatch, caplog, case):
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: case.gpus)
    monkeypatch.setattr(RUN, "launch", launch_of(case.ranks))

    choose_gpus(case.ids, "my.json")

    assert os.environ.get("CUDA_VISIBLE_DEVICES") == case.visible
    # The log has a message if the option does not have its effect, and no message if it has.
    assert case.message in caplog.text
    assert bool(caplog.text) == bool(case.message)


# ---- GPUs that this torch cannot use ----

# The architectures for which two builds of torch have code, as torch.cuda.get_arch_list returns
# them. A GPU has a compute capability, e.g. 8.9. Code for "sm_86" runs on GPUs of compute
# capability 8.6 to 8.9. "compute_120" is PTX. The driver can compile PTX for any later GPU.
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU132 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built_for", "wheel"),
    [
        pytest.param((7, 0), CU132, "cu126", id="V100 with a new torch"),
        pytest.param((6, 1), CU132, "cu126", id="GTX 1080 with a new torch"),
        pytest.param((12, 0), CU126, "CUDA 12.8 or later", id="5090 with an old torch"),
        pytest.param((8, 0), ["sm_86"], "CUDA 12.8 or later", id="A100 with code for later ones"),
        pytest.param((3, 5), CU132, "another GPU", id="too old for any wheel"),
    ],
)
def test_a_gpu_that_this_torch_was_not_built_for_gets_the_name_of_a_wheel(
    capability, built_for, wheel
):
    assert wheel in torch_to_install(capability, built_for)


@pytest.mark.parametrize(
    ("capability", "built_for"),
    [
        pytest.param((6, 1), CU126, id="GTX 1080 by sm_60"),
        pytest.param((7, 5), CU132, id="T4"),
        pytest.param((8, 9), CU132, id="4090 by sm_86"),
        pytest.param((9, 0), CU132, id="H100"),
        pytest.param((12, 1), CU132, id="by sm_120"),
        pytest.param((13, 0), CU132, id="a later GPU by PTX"),
        pytest.param((9, 0), ["sm_90a"], id="code only for this GPU"),
        # AMD names its GPUs in another way, so the function cannot judge them.
        pytest.param((9, 0), ["gfx90a", "gfx942"], id="AMD"),
    ],
)
def test_a_gpu_that_this_torch_was_built_for_needs_no_wheel(capability, built_for):
    assert torch_to_install(capability, built_for) == ""


def test_two_ranks_on_one_gpu_are_both_named():
    store = torch.distributed.HashStore()
    claim(store, rank=0, uuid="GPU-a")
    claim(store, rank=1, uuid="GPU-b")

    with pytest.raises(DistError, match="ranks 1 and 2 use the same GPU, GPU-b"):
        claim(store, rank=2, uuid="GPU-b")


def start_with_unusable_gpus(folder: Path, visible: str) -> RankResult:
    """Start a training where the driver knows two GPUs that torch cannot use.

    The folder of the sharp frames does not exist. So the run ends at the latest when it looks for
    its data.

    visible: value of CUDA_VISIBLE_DEVICES. "" removes the variable.
    """
    driver = write_command(folder / "bin/nvidia-smi", "echo 470.82.01\necho 470.82.01")
    variables = {
        "PATH": f"{driver.parent}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": visible,
    }
    options = write_options(folder)
    return train(options, "datasets.train.dataroot_gt=/nowhere", env=variables)


needs_no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="torch can use the GPUs of this machine"
)


@needs_no_gpu
def test_a_gpu_that_torch_cannot_use_is_an_error(tmp_path):
    result = start_with_unusable_gpus(tmp_path, visible="")

    assert result.exit_codes == [CHANGE_OPTIONS]
    assert "torch cannot use the 2 GPUs of this machine" in result.text
    assert "NVIDIA driver 470.82.01" in result.text
    assert f"torch {torch.__version__}" in result.text
    # The advice for a user who wants to train on the CPU.
    assert 'CUDA_VISIBLE_DEVICES=""' in result.text


@needs_no_gpu
def test_a_gpu_that_torch_cannot_use_is_no_error_if_the_cpu_is_asked_for(tmp_path):
    # -1 asks for no GPU. So the missing GPUs are no error, and the start goes on until it looks for
    # the data.
    result = start_with_unusable_gpus(tmp_path, visible="-1")

    assert result.exit_codes == [BAD_DATA]
    assert "/nowhere" in result.text


# ---- The use of GPUs ----

# The use of the GPUs of two ranks: the share of the time for which a GPU is busy, and its memory.
GPUS = [
    {"busy": 0.9, "used_gb": 40.0, "total_gb": 80.0},
    {"busy": 0.5, "used_gb": 41.5, "total_gb": 80.0},
]
# The facts that a rank tells about itself in the status.
FACTS = {
    "device": "cuda:1",
    "loss_is_finite": True,  # whether the loss of the newest step is finite
    "weights": "0",  # digest of all weights after step `weights_step`
    "weights_step": 3,
    "samples": 4,  # number of samples of this rank in an epoch
    "first": [1],  # numbers of the first samples of this start of the run
}
# The facts that a rank tells about its work in each beat.
STATE = {
    "host": "a",
    "pid": 7,
    "step": 3,
    "age": 0.1,  # seconds since the phase began
    "phase": "data",  # what the rank does: it waits for data
}


def rank_with(use: dict[str, float] | None) -> Measured:
    """Return the figures of a rank at a line of the log. use: the use of its GPU, or None."""
    return Measured(
        host="a",
        cores=(),
        steps=0,
        seconds=0.0,
        data_s=0.0,
        forward_s=0.0,
        compute_s=0.0,
        values={"memory_gb": 1.0},
        memory={},
        gpu=use,
    )


def test_the_use_of_a_gpu_is_said_in_percent_and_gigabytes(monkeypatch):
    pytest.importorskip("pynvml")
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 25)
    # torch returns the free bytes and all bytes. So 20 GB are used.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 10**9, 80 * 10**9))

    found = usage(torch.device("cuda", 0))

    assert found is not None
    assert describe(found) == "GPU 25% busy, 20.0 of 80.0 GB used"


def test_the_log_line_has_the_idlest_and_the_fullest_gpu():
    assert log_values([rank_with(use) for use in GPUS]) == {
        "memory_gb": 1.0,
        "gpu_busy_min": 0.5,
        "gpu_busy_mean": pytest.approx(0.7),  # mean of 0.9 and 0.5
        "gpu_used_gb_max": 41.5,
    }


def test_the_log_line_says_nothing_of_gpus_if_a_rank_does_not_know_its_own():
    ranks = [rank_with(GPUS[0]), rank_with(use=None)]

    assert log_values(ranks) == {"memory_gb": 1.0}


def test_the_status_line_of_a_rank_ends_with_its_gpu():
    without_gpu = status_line(1, STATE | {"facts": FACTS})

    with_gpu = status_line(1, STATE | {"facts": FACTS | {"gpu": describe(GPUS[1])}})

    assert with_gpu == f"{without_gpu}; GPU 50% busy, 41.5 of 80.0 GB used"


def test_the_status_line_says_that_no_sample_of_the_epoch_is_left():
    line = status_line(0, STATE | {"facts": FACTS | {"first": []}})

    assert line.endswith("first none left of this epoch")


def test_a_cpu_has_no_use_of_a_gpu():
    assert usage(torch.device("cpu")) is None


@needs_no_gpu
def test_the_doctor_says_nothing_of_gpus_if_there_are_none():
    assert "GPUs" not in {finding.check for finding in check_ranks()}


# ---- The start of CUDA ----


@pytest.mark.usefixtures("without_choice")
@pytest.mark.parametrize(
    ("launch", "visible"),
    [
        pytest.param(launch_of(ranks=1), "2,3", id="one rank, for which gpu_ids chooses"),
        pytest.param(launch_of(ranks=2, rank=1), None, id="the second of two ranks"),
    ],
)
def test_nothing_starts_cuda_before_the_process_has_its_gpu(tmp_path, monkeypatch, launch, visible):
    # If a process starts CUDA too early, CUDA takes memory of GPU 0, even if this process has
    # another GPU.
    monkeypatch.setattr(RUN, "launch", launch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("_lazy_init", "is_available"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("CUDA starts on GPU 0"))

    opt = read_options(
        ["--opt", str(write_options(tmp_path)), "gpu_ids=[2,3]", "netG.checkpoint=auto"]
    )

    assert options_of_part(opt.netG).checkpoint == "auto"
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


# ---- How often a step waits ----


class Waits(TorchDispatchMode):
    """Notes the operations whose result a program waits for on a GPU, in a `with` block.

    The result of such an operation is a number or a size. The program needs this result to
    continue.
    """

    NAMES = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "equal",
        "is_nonzero",
        "_unique2",
        "item",
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        # An index that is a mask makes the program wait, because the size of the result is the
        # number of true values. args[1] has an index for each axis.
        has_mask = False
        if name in ("index", "index_put_"):
            for index in args[1]:
                has_mask = has_mask or (index is not None and index.dtype is torch.bool)
        if name in self.NAMES or has_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


# A CPU cannot run the form for GPUs in bfloat16. So bfloat16 is tried in the plain form.
@pytest.mark.parametrize(
    ("form", "amp"),
    [
        pytest.param("auto", False, id="the form for GPUs"),
        pytest.param("plain", True, id="the plain form in bfloat16", marks=pytest.mark.slow),
    ],
)
def test_a_step_waits_for_the_gpu_once(tmp_path, monkeypatch, form, amp):
    # CPU_FORM has the types of device for which the network uses its form for CPUs. If there are
    # none, a CPU runs the form for GPUs.
    monkeypatch.setattr(forms, "CPU_FORM", ())
    changed = [
        f"train.amp.enable={str(amp).lower()}",
        f"netG.kernels={form}",
        "train.G_optimizer_clipgrad=1.0",
    ]
    opt = read_options(["--opt", str(write_options(tmp_path)), *changed])
    model = ModelVRT(opt)
    model.init_train(state=None)
    for group in model.optimizer.param_groups:
        group["fused"] = True  # as on a GPU
    # A clip of 2 frames of 32 x 32 pixels: (B, frames, channels, H, W).
    batch = {
        "lq": torch.rand(1, 2, 3, 32, 32),
        "gt": torch.rand(1, 2, 3, 32, 32),
        "spike": torch.rand(1, 2, 2, 32, 32),
        "key": ["a"],
    }
    # The first step is not watched, because it also measures memory. It also makes tensors that all
    # later steps use.
    model.optimize_parameters(step=1, micro_batches=[batch])

    with Waits() as waits:
        model.optimize_parameters(step=2, micro_batches=[batch])

    # The program reads only the norm of the gradients. It decides whether the step is taken.
    assert waits.found == ["_local_scalar_dense"]

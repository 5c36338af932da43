"""Which GPUs a process uses, what is said of GPUs, and when a step waits for its GPU.

This machine need not have a GPU: the tests replace what torch and the driver say of GPUs. A step
runs on the CPU in the form for GPUs, and each operation is noted for whose result a GPU would let
the program wait.
"""

import os
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.vrt import forms
from scripts.parts.doctor_checks import check_ranks
from tests.dist.launching import write_command
from tests.helpers.checked import of_part
from tests.helpers.train_files import train, write_options
from utils.dist.gpu import choose_gpus, claim, describe, missing_wheel, usage
from utils.dist.state import RUN, LaunchInfo
from utils.dist.status import status_line
from utils.errors import DistError
from utils.run.measure import Measured, log_values

SINGLE = LaunchInfo("single")
PAIR, FOUR = (LaunchInfo("torchrun", 0, 0, ranks, "localhost", 29500) for ranks in (2, 4))


@pytest.mark.parametrize(("launch", "ids", "env", "count", "visible", "said"), [
    (SINGLE, None, {}, 4, None, ""),
    (SINGLE, [2, 3], {}, 2, "2,3", "CUDA_VISIBLE_DEVICES=2,3 ./launch_train.sh 2 my.json"),
    (SINGLE, [0, 1, 2], {}, 1, "0,1,2", ""),  # the reference file on a machine with one GPU
    (SINGLE, [0, 1], {"CUDA_VISIBLE_DEVICES": "3"}, 1, "3",
     "CUDA_VISIBLE_DEVICES=3 wins over gpu_ids [0,1]"),
    (SINGLE, [0, 1], {"CUDA_VISIBLE_DEVICES": ""}, 0, "", ""),
    (PAIR, [0, 1, 2, 3], {}, 2, None, ""),
    (PAIR, [0, 1], {}, 4, None, ""),  # two ranks on a machine of four
    (PAIR, [0, 1, 2, 3], {}, 4, None, "gpu_ids [0,1,2,3] has no effect with several ranks"),
    # two nodes
    (FOUR, [0, 1, 2, 3], {"LOCAL_WORLD_SIZE": "2"}, 4, None, "gpu_ids [0,1,2,3] has no effect"),
    (PAIR, [2, 3], {}, 4, None, "gpu_ids [2,3] has no effect with several ranks"),
])  # fmt: skip
def test_gpu_ids_choose_where_nobody_else_has_chosen_and_what_differs_is_said(
    monkeypatch, caplog, launch, ids, env, count, visible, said
):
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, env.get(name, ""))  # pytest restores what was there
        if name not in env:
            del os.environ[name]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    monkeypatch.setattr(RUN, "launch", launch)
    choose_gpus(ids, "my.json")

    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


# The architectures for which two builds of torch have code, as torch.cuda.get_arch_list says.
# "sm_86" runs on GPUs of compute capability 8.6 to 8.9. "compute_120" (PTX) can be compiled for any
# later GPU.
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU132 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(("capability", "built_for", "wheel"), [
    # V100, GTX 1080, by sm_60
    ((7, 0), CU132, "cu126"), ((6, 1), CU132, "cu126"), ((6, 1), CU126, ""),
    # 4090: by sm_86
    ((7, 5), CU132, ""), ((8, 9), CU132, ""), ((9, 0), CU132, ""), ((12, 1), CU132, ""),
    # 5090 with an old torch
    ((12, 0), CU126, "CUDA 12.8 or later"), ((8, 0), ["sm_86"], "CUDA 12.8 or later"),
    # a later GPU, by PTX
    ((13, 0), CU132, ""), ((9, 0), ["sm_90a"], ""), ((3, 5), CU132, "another GPU"),
    ((9, 0), ["gfx90a", "gfx942"], ""),
])  # fmt: skip
def test_a_gpu_that_this_torch_was_not_built_for_is_told_with_the_wheel_that_was(
    capability, built_for, wheel
):
    found = missing_wheel(capability, built_for)
    assert wheel in found
    assert bool(found) == bool(wheel)


def test_two_ranks_on_one_gpu_are_both_named():
    store = torch.distributed.HashStore()
    for rank, uuid in enumerate(["GPU-a", "GPU-b"]):
        claim(store, rank, uuid)
    with pytest.raises(DistError, match="ranks 1 and 2 use the same GPU, GPU-b"):
        claim(store, 2, "GPU-b")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs of this machine are of use")
def test_a_gpu_that_torch_cannot_use_is_an_error_unless_the_cpu_is_asked_for(tmp_path):
    fake = write_command(tmp_path / "bin/nvidia-smi", "echo 470.82.01\necho 470.82.01")
    options = write_options(tmp_path)
    path = f"{fake.parent}:{os.environ['PATH']}"

    refused, allowed = (
        train(
            options,
            "datasets.train.dataroot_gt=/nowhere",
            env={"PATH": path, "CUDA_VISIBLE_DEVICES": devices},
        )
        for devices in ("", "-1")  # "" unsets it
    )

    assert refused.exit_codes == [2]
    assert "torch cannot use the 2 GPUs of this machine" in refused.text
    assert "NVIDIA driver 470.82.01" in refused.text
    assert f"torch {torch.__version__}" in refused.text
    assert 'CUDA_VISIBLE_DEVICES=""' in refused.text
    assert allowed.exit_codes == [3]
    assert "/nowhere" in allowed.text


# The use of the GPUs of two ranks: busy share of the time, and used memory.
GPUS = [
    {"busy": 0.9, "used_gb": 40.0, "total_gb": 80.0},
    {"busy": 0.5, "used_gb": 41.5, "total_gb": 80.0},
]
# What a rank tells of itself in the status.
FACTS = {
    "device": "cuda:1",
    "loss_is_finite": True,
    "weights": "0",
    "weights_step": 3,
    "samples": 4,
    "first": [1],
}
STATE = {"host": "a", "pid": 7, "step": 3, "age": 0.1, "phase": "data"}


def rank_with(use):
    """Return the figures of a rank at a line of the log. use: the use of its GPU, or None."""
    return Measured("a", (), 0, 0.0, 0.0, 0.0, 0.0, {"memory_gb": 1.0}, {}, use)


def test_the_use_of_a_gpu_is_said_in_percent_and_gigabytes(monkeypatch):
    pytest.importorskip("pynvml")
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 25)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 10**9, 80 * 10**9))

    found = usage(torch.device("cuda", 0))

    assert found is not None
    assert describe(found) == "GPU 25% busy, 20.0 of 80.0 GB used"


def test_the_log_line_has_the_idlest_and_the_fullest_gpu():
    assert log_values([rank_with(use) for use in GPUS]) == {
        "memory_gb": 1.0, "gpu_busy_min": 0.5, "gpu_busy_mean": pytest.approx(0.7),
        "gpu_used_gb_max": 41.5,
    }  # fmt: skip
    assert log_values([rank_with(use) for use in (GPUS[0], None)]) == {"memory_gb": 1.0}


def test_the_status_line_of_a_rank_has_its_gpu_where_it_has_one():
    with_gpu, without = (
        status_line(1, STATE | {"facts": FACTS | more}) for more in ({"gpu": describe(GPUS[1])}, {})
    )

    assert with_gpu == without + "; GPU 50% busy, 41.5 of 80.0 GB used"


def test_without_a_gpu_nothing_is_asked_and_nothing_said():
    assert usage(torch.device("cpu")) is None
    if not torch.cuda.is_available():
        assert "GPUs" not in {finding.check for finding in check_ranks()}


@pytest.mark.parametrize(
    ("launch", "visible"),
    [(LaunchInfo("single"), "2,3"), (LaunchInfo("torchrun", 1, 1, 2, "localhost", 29500), None)],
)
def test_nothing_starts_cuda_before_the_process_has_its_gpu(tmp_path, monkeypatch, launch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # pytest restores what was there
    del os.environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(RUN, "launch", launch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("_lazy_init", "is_available"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("CUDA starts on GPU 0"))

    opt = read_options(
        ["--opt", str(write_options(tmp_path)), "gpu_ids=[2,3]", "netG.checkpoint=auto"]
    )

    assert of_part(opt.netG).checkpoint == "auto"
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


class Waits(TorchDispatchMode):
    """Notes the operations for whose result a program waits on a GPU, within a `with` block.

    The result of such an operation is a number or a size, which the program needs to go on.
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
        masked = name in ("index", "index_put_") and any(
            i is not None and i.dtype is torch.bool for i in args[1]
        )
        if name in self.NAMES or masked:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


# The form for GPUs, and the plain form in bfloat16, because a CPU cannot run the form for GPUs in
# bfloat16.
@pytest.mark.parametrize(("form", "amp"), [("auto", False), ("plain", True)])
def test_a_step_waits_for_the_gpu_once_for_the_norm_that_decides_on_it(
    tmp_path, monkeypatch, form, amp
):
    monkeypatch.setattr(forms, "CPU_FORM", ())
    changed = [
        f"train.amp.enable={str(amp).lower()}",
        f"netG.kernels={form}",
        "train.G_optimizer_clipgrad=1.0",
    ]
    opt = read_options(["--opt", str(write_options(tmp_path)), *changed])
    model = ModelVRT(opt)
    model.init_train(None)
    for group in model.optimizer.param_groups:
        group["fused"] = True  # as on a GPU
    batch = {
        "lq": torch.rand(1, 2, 3, 32, 32), "gt": torch.rand(1, 2, 3, 32, 32),
        "spike": torch.rand(1, 2, 2, 32, 32), "key": ["a"],
    }  # fmt: skip
    model.optimize_parameters(1, [batch])  # fits, and makes the constant tensors

    with Waits() as waits:
        model.optimize_parameters(2, [batch])

    assert waits.found == ["_local_scalar_dense"]

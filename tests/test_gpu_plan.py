"""What the first day on a GPU must not meet, as far as a machine without one can tell: programs, memory, waits."""

import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.vrt import chunks
from tests.test_fake_gpu import counted
from tests.train_files import write_options
from utils.dist.launch import LaunchInfo
from utils.dist.state import RUN


@pytest.mark.parametrize(
    ("launch", "visible"), [(LaunchInfo("single"), "2,3"), (LaunchInfo("torchrun", 1, 1, 2, "localhost", 29500), None)]
)
def test_nothing_starts_cuda_before_the_process_has_its_gpu(tmp_path, monkeypatch, launch, visible):
    # pytest restores the variable only if it was there.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    del os.environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(RUN, "launch", launch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("_lazy_init", "is_available"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("CUDA starts on GPU 0"))

    opt = read_options(["--opt", str(write_options(tmp_path)), "gpu_ids=[2,3]", "netG.checkpoint=auto"])

    assert opt.netG.checkpoint == "auto" and os.environ.get("CUDA_VISIBLE_DEVICES") == visible


class Waits(TorchDispatchMode):
    """The operations for whose result a host waits, on a GPU."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "item")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        masked = name in ("index", "index_put_") and any(i is not None and i.dtype is torch.bool for i in args[1])
        if name in self.NAMES or masked:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


# The form for GPUs and, in bfloat16, in which a CPU cannot run that, the plain form.
@pytest.mark.parametrize(("form", "amp"), [("auto", False), ("plain", True)])
def test_a_step_waits_for_the_gpu_once_for_the_norm_that_decides_on_it(tmp_path, monkeypatch, form, amp):
    monkeypatch.setattr(chunks, "PUBLIC_ATTENTION", ("cuda", "cpu"))
    changed = [f"train.amp.enable={str(amp).lower()}", f"netG.kernels={form}", "train.G_optimizer_clipgrad=1.0"]
    opt = read_options(["--opt", str(write_options(tmp_path)), *changed])
    model = ModelVRT(opt)
    model.init_train(None)
    for group in model.optimizer.param_groups:
        group["fused"] = True  # as on a GPU
    batch = {
        "lq": torch.rand(1, 2, 3, 32, 32), "gt": torch.rand(1, 2, 3, 32, 32), "spike": torch.rand(1, 2, 2, 32, 32),
        "key": ["a"],
    }  # fmt: skip
    model.optimize_parameters(1, [batch])  # fits, and makes the constant tensors

    with Waits() as waits:
        model.optimize_parameters(2, [batch])

    assert waits.found == ["_local_scalar_dense"]


def test_the_estimate_of_the_alignment_is_what_it_holds_in_backward_or_a_little_more():
    for case, held, estimated in counted("--align"):
        assert held < estimated < 1.15 * held, case

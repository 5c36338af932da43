"""Precision that a GPU would lose, the type that mixed precision chooses, and caches that outlive inference_mode."""

import logging

import pytest
import torch

from models.model_vrt import amp_dtype, choose_dtype
from models.network_vrt import VRT
from models.vrt import chunks
from models.vrt.block import Block
from models.vrt.deform_align import deform_conv
from tests.cuda_autocast import CudaAutocast
from tests.test_vrt_modules import SMALL
from utils.options.models import AmpOptions


def test_a_far_offset_keeps_its_fraction_in_bfloat16():
    # In bfloat16, 20.0625 is 20.0 and column 301 does not exist. Steps between the columns show the fraction.
    x = (torch.arange(320) % 2).float().expand(1, 1, 4, 320)
    offset, mask = torch.full((1, 18, 4, 320), 20.0625), torch.ones(1, 9, 4, 320)
    offset[:, 0::2] = 0
    weight = torch.zeros(1, 1, 3, 3)
    weight[0, 0, 1, 1] = 1
    exact = deform_conv(x, offset, mask, weight, torch.zeros(1))

    with torch.autocast("cpu", torch.bfloat16):
        rough = deform_conv(x.bfloat16(), offset, mask, weight, torch.zeros(1))

    assert rough.dtype is torch.bfloat16
    assert torch.equal(rough, exact.bfloat16())


def precision() -> tuple[bool, bool]:
    """Whether torch may use TF32 in convolutions, and in matrix products."""
    if hasattr(torch.backends.cudnn, "conv"):
        parts = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
        return tuple(part.fp32_precision == "tf32" for part in parts)
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.mark.filterwarnings("error")
def test_the_flow_is_computed_in_full_float32_and_the_settings_come_back():
    net, seen = VRT(**SMALL), set()
    for conv in (m for m in net.spynet.modules() if isinstance(m, torch.nn.Conv2d)):
        conv.register_forward_pre_hook(lambda _, args: seen.add((args[0].dtype, *precision())))
    before = precision()
    assert before[0]  # torch's default, without which the test shows nothing

    with torch.autocast("cpu", torch.bfloat16):
        net(torch.rand(1, 2, 3, 32, 32))
    assert seen == {(torch.float32, False, False)} and precision() == before

    net.spynet.basic_module[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(torch.rand(1, 2, 3, 32, 32))
    assert precision() == before


@pytest.mark.parametrize("device_types", [("cuda",), ("cuda", "cpu")])  # with public attention; else with our own
def test_under_autocast_every_block_takes_and_gives_the_dtype_of_autocast(device_types, monkeypatch):
    monkeypatch.setattr(chunks, "PUBLIC_ATTENTION", device_types)
    net, seen = VRT(**SMALL), set()
    for block in (m for m in net.modules() if isinstance(m, Block)):
        block.register_forward_hook(lambda _, args, out: seen.update((args[0].dtype, out.dtype)))

    with torch.autocast("cpu", torch.bfloat16), CudaAutocast("cpu"):
        restored = net(torch.rand(1, 2, 3, 32, 32))

    assert seen == {torch.bfloat16} and torch.isfinite(restored).all()


def test_a_network_first_used_in_inference_mode_still_trains():
    # A size of its own: constant tensors are cached per size.
    net, x = VRT(**SMALL, kernels="plain"), torch.rand(1, 2, 3, 40, 56)
    with torch.inference_mode():
        net(x)
    net(x).square().mean().backward()
    assert net.conv_first.weight.grad is not None


@pytest.mark.parametrize(
    ("wanted", "has_bfloat16", "chosen"),
    [
        ("auto", [True], "bfloat16"),
        ("auto", [False], "float16"),  # V100, MX450
        ("auto", [True, False], "float16"),  # one type on all ranks: only float16 gradients are scaled
        ("bfloat16", [False], "bfloat16"),
        ("float16", [True], "float16"),
    ],
)
def test_auto_takes_bfloat16_only_where_every_device_has_it(wanted, has_bfloat16, chosen):
    assert choose_dtype(wanted, has_bfloat16) == chosen


def test_the_cpu_trains_in_bfloat16_and_the_log_says_so(caplog):
    caplog.set_level(logging.INFO)

    assert amp_dtype(AmpOptions(enable=True), torch.device("cpu")) is torch.bfloat16
    assert amp_dtype(AmpOptions(), torch.device("cpu")) is None

    assert [record.message for record in caplog.records] == ["mixed precision in bfloat16"]

"""Every form of a block gives the numbers of the plain one in float64: output, and gradients of input and weights."""

import pytest
import torch

from models.vrt import attention, block, chunks
from models.vrt.block import BlockGroup

FLAGS = [{}, {"checkpoint_attn": True}, {"checkpoint_ffn": True}, {"checkpoint_attn": True, "checkpoint_ffn": True}]
# 7 x 6 pixels in windows of 4 x 4 need padding.
SIZES = {"whole windows": (4, 8, 8), "padded": (4, 7, 6)}


@pytest.fixture(params=["own attention", "public attention"])
def form(request, monkeypatch):
    """The form for a CPU, or that for a GPU, in chunks of one to five windows."""
    monkeypatch.setattr(chunks, "CPU_TOKENS", 100)
    monkeypatch.setattr(block, "CPU_TOKENS", 100)
    if request.param == "public attention":
        monkeypatch.setattr(chunks, "PUBLIC_ATTENTION", ("cuda", "cpu"))
        monkeypatch.setattr(attention, "HEAD_BYTES", {"cpu": 64})  # heads of 6 channels get 8
        monkeypatch.setattr(block, "GPU_TOKENS", 160)
    return request.param


def groups(mutual: bool, **options):
    """(plain, in chunks): two blocks, the second shifted and dropped by stochastic depth for one sample."""
    window = (2, 4, 4) if mutual else (3, 4, 4)
    plain = BlockGroup(12, 2, 2, window, mutual, [0.0, 0.4], kernels="plain").double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = BlockGroup(12, 2, 2, window, mutual, [0.0, 0.4], **options).double()
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def step(group, x):
    torch.manual_seed(3)  # drops the branches of one sample
    y = group(x)
    wanted = {"input": x, **{name: p for name, p in group.named_parameters() if p.requires_grad}}
    loss = (y.double() * torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)).sum()
    return {"output": y, **dict(zip(wanted, torch.autograd.grad(loss, wanted.values()), strict=True))}


def assert_equal(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        scale = expected[name].abs().max()
        assert (value - expected[name]).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flags", FLAGS)
def test_output_and_gradients_are_those_of_the_plain_form(form, mutual, size, flags):
    plain, ours = groups(mutual, **flags)
    x = torch.randn(2, *SIZES[size], 12, dtype=torch.float64, requires_grad=True)

    assert_equal(step(ours, x), step(plain, x), 1e-9)


@pytest.mark.parametrize("mutual", [False, True])
def test_the_plain_form_with_every_branch_recomputed_has_its_own_numbers(mutual):
    plain, _ = groups(mutual)
    x = torch.randn(2, 4, 7, 6, 12, dtype=torch.float64, requires_grad=True)
    for flags in FLAGS[1:]:
        _, saving = groups(mutual, kernels="plain", **flags)
        saving.load_state_dict(plain.state_dict())
        assert_equal(step(saving, x), step(plain, x), 1e-12)


@pytest.mark.parametrize("frozen", ["qkv", "fc2", "norm", "relative_position_bias_table"])
def test_frozen_weights_get_no_gradient_and_the_others_keep_theirs(form, frozen):
    plain, ours = groups(mutual=True)
    for name, parameter in [*plain.named_parameters(), *ours.named_parameters()]:
        parameter.requires_grad_(frozen not in name)
    x = torch.randn(2, 4, 7, 6, 12, dtype=torch.float64, requires_grad=True)

    assert_equal(step(ours, x), step(plain, x), 1e-9)


@pytest.mark.parametrize("mutual", [False, True])
def test_under_autocast_the_numbers_are_near_and_gradients_keep_the_dtype_of_their_weights(form, mutual):
    plain, ours = groups(mutual)
    x = torch.randn(2, 4, 7, 6, 12, dtype=torch.float64, requires_grad=True)
    expected = step(plain, x)

    with torch.autocast("cpu", torch.bfloat16):
        found, by_autograd = (step(group.float(), x.detach().float().requires_grad_()) for group in (ours, plain))

    for name, value in found.items():
        assert value.dtype is (torch.bfloat16 if name == "output" else torch.float32), name
        error, usual = ((other - expected[name]).norm() for other in (value, by_autograd[name]))
        # The sums of chunks are rounded one by one, and the weights of this loss make them cancel.
        assert error < 0.1 * expected[name].norm() + usual, name
    every = [torch.cat([t[name].flatten().double() for name in found]) for t in (found, expected)]
    assert (every[0] - every[1]).norm() < 0.02 * every[1].norm()

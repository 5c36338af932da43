"""The form of a block for GPUs, run on a CPU: the numbers of the plain form, and what it keeps."""

from __future__ import annotations

import pytest
import torch

from models.vrt import attention_core, kernels
from models.vrt.block import BlockGroup

FLAGS = [{}, {"checkpoint_attn": True}, {"checkpoint_ffn": True}, {"checkpoint_attn": True, "checkpoint_ffn": True}]


def groups(monkeypatch, mutual: bool, dtype: torch.dtype, **block):
    """(plain, for GPUs): two blocks, the second shifted; 7 x 6 pixels in windows of 4 x 4 need padding."""
    monkeypatch.setattr(kernels, "AT_ONCE", ("cuda", "cpu"))
    monkeypatch.setattr(attention_core, "HEAD_BYTES", {"cpu": 64})  # heads of 6 channels get 8
    window = (2, 4, 4) if mutual else (3, 4, 4)
    plain = BlockGroup(12, 2, 2, window, mutual, [0.0, 0.4], kernels="plain").to(dtype)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = BlockGroup(12, 2, 2, window, mutual, [0.0, 0.4], **block).to(dtype)
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def step(group, x):
    torch.manual_seed(3)  # drops the branches of one sample
    y = group(x)
    grads = torch.autograd.grad(
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum(), [x, *group.parameters()]
    )
    return y, *grads


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("flags", FLAGS)
def test_output_and_gradients_are_those_of_the_plain_form(monkeypatch, mutual, flags):
    plain, ours = groups(monkeypatch, mutual, torch.float64, **flags)
    x = torch.randn(2, 4, 7, 6, 12, dtype=torch.float64, requires_grad=True)

    for found, expected in zip(step(ours, x), step(plain, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

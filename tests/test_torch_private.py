"""Attention: without torch's private functions, and with heads padded for a GPU, it gives the same numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.vrt import attention

# Golden vectors of attention groups, forward and backward, in a torch that lacks the functions.
WITHOUT = """
import json, torch
names = ("_scaled_dot_product_flash_attention_for_cpu", "_softmax_backward_data")
for name in names:
    setattr(torch.ops.aten, name, None)
from models.vrt import attention
for name in names:
    delattr(torch.ops.aten, name)  # torch's own modules need them
from models.vrt.block import BlockGroup
from tests import golden

assert attention.fused_attention is attention.public_attention
assert attention.softmax_backward is attention.public_softmax_backward
found = {}
for path in sorted(golden.FOLDER.glob("mod_tmsag*.npz")):
    c, t = golden.load(path.stem)
    group = BlockGroup(
        c["dim"], c["depth"], c["num_heads"], tuple(c["window_size"]), c["mut_attn"], [0.0] * c["depth"],
        mlp_ratio=c["mlp_ratio"], qkv_bias=c["qkv_bias"],
    ).double()
    group.load_state_dict(golden.entries(t, "sd/"))
    x = t["input"].requires_grad_()
    y = group(x.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3)
    (y * golden.cotangent(y)).sum().backward()
    pairs = {"output": (y, t["output"]), "input": (x.grad, t["grad/input"])}
    pairs |= {key: (parameter.grad, t[f"grad/{key}"]) for key, parameter in group.named_parameters()}
    found[path.stem] = max(float(golden.difference(*pair)) for pair in pairs.values())
assert found and max(found.values()) < golden.TOLERANCE, found
"""


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_public_attention_gives_the_output_and_the_sums_of_exponentials(is_masked, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_BYTES", 2000)  # several blocks
    q, k, v = torch.randn(3, 5, 2, 6, 4, dtype=torch.float64)
    added = torch.randn(1, 2, 6, 6, dtype=torch.float64) if is_masked else None

    out, sums = attention.public_attention(q, k, v, added, 0.5)

    logits = 0.5 * q @ k.transpose(2, 3) + (0 if added is None else added)
    torch.testing.assert_close(out, logits.softmax(3) @ v)
    torch.testing.assert_close(sums, logits.exp().sum(3).log())


def test_the_public_gradient_of_a_softmax_is_autograds():
    logits, grad = torch.randn(2, 7, 5, dtype=torch.float64).unbind(0)
    weights = logits.requires_grad_().softmax(1)
    weights.backward(grad)

    attention.public_softmax_backward(found := grad.clone(), weights.detach())

    torch.testing.assert_close(found, logits.grad)


def test_this_torch_has_the_private_functions_with_the_numbers_of_the_public_ones():
    assert attention.fused_attention is not attention.public_attention
    assert attention.softmax_backward is not attention.public_softmax_backward


def test_the_golden_vectors_hold_without_the_private_functions():
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=root, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("is_masked", "is_biased"), [(True, True), (True, False), (False, True), (False, False)])
def test_padded_heads_and_few_windows_a_call_change_no_number(is_masked, is_biased, monkeypatch):
    q, k, v = (torch.randn(7, 6, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(3, 6, 6, dtype=torch.float64, requires_grad=True) if is_biased else None
    mask = torch.randn(6, 6, dtype=torch.float64) if is_masked else None
    inputs = [q, k, v, bias] if is_biased else [q, k, v]
    weight = torch.randn(7, 6, 3, 5, dtype=torch.float64)

    def numbers():
        out = attention.attend(q, k, v, 0.3, bias, mask)
        return out, *torch.autograd.grad((out * weight).sum(), inputs)

    plain = numbers()
    monkeypatch.setattr(attention, "HEAD_BYTES", {"cpu": 64})  # 5 channels to 8
    monkeypatch.setattr(attention, "MOST_HEADS", 10)  # three windows a call
    for found, expected in zip(numbers(), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

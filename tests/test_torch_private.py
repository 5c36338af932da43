"""The CPU path without torch's private functions: the public forms give the same numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.vrt import torch_private

# Golden vectors of attention groups, forward and backward, in a torch that lacks the functions.
WITHOUT = """
import json, torch
names = ("_scaled_dot_product_flash_attention_for_cpu", "_softmax_backward_data")
for name in names:
    setattr(torch.ops.aten, name, None)
from models.vrt import torch_private
for name in names:
    delattr(torch.ops.aten, name)  # torch's own modules need them
from models.vrt.block import BlockGroup
from tests import golden

assert torch_private.fused_attention is torch_private.public_attention
assert torch_private.softmax_backward is torch_private.public_softmax_backward
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
    monkeypatch.setattr(torch_private, "BLOCK_BYTES", 2000)  # several blocks
    q, k, v = torch.randn(3, 5, 2, 6, 4, dtype=torch.float64)
    added = torch.randn(1, 2, 6, 6, dtype=torch.float64) if is_masked else None

    out, sums = torch_private.public_attention(q, k, v, added, 0.5)

    logits = 0.5 * q @ k.transpose(2, 3) + (0 if added is None else added)
    torch.testing.assert_close(out, logits.softmax(3) @ v)
    torch.testing.assert_close(sums, logits.exp().sum(3).log())


def test_the_public_gradient_of_a_softmax_is_autograds():
    logits, grad = torch.randn(2, 7, 5, dtype=torch.float64).unbind(0)
    weights = logits.requires_grad_().softmax(1)
    weights.backward(grad)

    torch_private.public_softmax_backward(found := grad.clone(), weights.detach())

    torch.testing.assert_close(found, logits.grad)


def test_this_torch_has_the_private_functions_with_the_numbers_of_the_public_ones():
    assert torch_private.fused_attention is not torch_private.public_attention
    assert torch_private.softmax_backward is not torch_private.public_softmax_backward


def test_the_golden_vectors_hold_without_the_private_functions():
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=root, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr

"""Attention: without torch's private functions, and with heads padded for a GPU, it gives the same numbers."""

import pytest
import torch

from models.vrt import attention
from tests.dist.launching import run_ranks

# The golden vectors of attention groups, forward and backward, in a torch that lacks the functions.
WITHOUT = """
import sys
import pytest, torch
names = ("_scaled_dot_product_flash_attention_for_cpu", "_softmax_backward_data")
for name in names:
    setattr(torch.ops.aten, name, None)
from models.vrt import attention
for name in names:
    delattr(torch.ops.aten, name)  # torch's own modules need them
assert attention.fused_attention is attention.public_attention
assert attention.softmax_backward is attention.public_softmax_backward
attention.BLOCK_BYTES = attention.CORE_BYTES = 2000  # several blocks
sys.exit(pytest.main(["tests/test_vrt_modules.py", "-k", "attention_group and auto"]))
"""


def test_this_torch_has_the_private_functions_with_the_numbers_of_the_public_ones():
    assert attention.fused_attention is not attention.public_attention
    assert attention.softmax_backward is not attention.public_softmax_backward


def test_the_golden_vectors_hold_without_the_private_functions(tmp_path):
    (tmp_path / "without.py").write_text(WITHOUT)
    done = run_ranks(1, tmp_path / "without.py")

    assert done.exit_codes == [0] and " passed" in done.text, done.text


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


@pytest.mark.parametrize("factor", [1, 500])  # 500: exp of the logits would overflow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_and_log_sums_are_right_for_logits_of_any_size(dtype, factor):
    q, k, v = (torch.randn(5, 2, 9, 4).to(dtype) for _ in range(3))
    added = torch.randn(1, 2, 9, 9).to(dtype)

    out, sums = attention.public_attention(q * factor, k, v, added, 0.5)

    logits = (0.5 * factor) * q.double() @ k.double().transpose(2, 3) + added.double()
    tolerance = {"rtol": 0, "atol": 1e-4 if dtype == torch.float32 else 0.1}
    if factor == 1:
        torch.testing.assert_close(out.double(), logits.softmax(3) @ v.double(), **tolerance)
    scale = logits.abs().max()
    torch.testing.assert_close(sums.double() / scale, logits.logsumexp(3) / scale, **tolerance)
    assert out.isfinite().all() and sums.dtype == torch.float32

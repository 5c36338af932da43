"""Attention on a GPU: which kernel torch would choose, and that what is done to get it changes no number."""

from __future__ import annotations

import pytest
import torch

from models.vrt import attention
from tests.sdpa_rules import backend, copies_mask

BF16, F32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("dtype", "head", "tokens", "mask", "expected"),
    [
        (BF16, 16, 384, "gradient", "efficient"),  # cuDNN takes no mask with a gradient, flash no mask
        (BF16, 16, 64, "constant", "cudnn"),
        (BF16, 16, 64, "none", "cudnn"),
        (BF16, 20, 384, "gradient", "math"),  # 40 bytes a head
        (BF16, 20, 64, "none", "flash"),
        (BF16, 24, 384, "gradient", "efficient"),
        (F32, 20, 384, "gradient", "efficient"),  # 80 bytes
        (F32, 18, 384, "gradient", "math"),
        (torch.float64, 16, 64, "none", "math"),
    ],
)
def test_the_kernel_that_torch_chooses(dtype, head, tokens, mask, expected):
    q, k, v = torch.empty(3, 2, 6, tokens, head, dtype=dtype)
    added = None if mask == "none" else torch.empty(1, 6, tokens, tokens, dtype=dtype, requires_grad=mask == "gradient")
    assert backend(q, k, v, added) == expected


def test_misaligned_storage_and_too_many_windows_are_refused():
    q = torch.empty(2 * 6 * 64 * 16 + 3, dtype=BF16)[3:].view(2, 6, 64, 16)
    many = torch.empty(1, 1, 64, 16, dtype=BF16).expand(65_536, 6, 64, 16)
    mask = torch.empty(1, 1, 64, 64, dtype=BF16)
    assert backend(q, q, q, mask) == "cudnn" and backend(q, q, q, mask.requires_grad_()) == "math"
    assert backend(many, many, many, mask.detach()) == "efficient"
    assert copies_mask(torch.empty(6, 63, 63)) and not copies_mask(torch.empty(128, 128)[:64, :64])


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

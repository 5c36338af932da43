"""models/vrt/attention/: torch's attention and our own form for CPUs, without a network.

tests/parts/models/test_triton.py tests our form for GPUs.
"""

import pytest
import torch

from models.vrt import forms
from models.vrt.attention import cpu_forward, window


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("is_biased", [False, True])
def test_padded_heads_in_several_calls_change_no_number(is_masked, is_biased, monkeypatch):
    # torch's fast kernels take only heads of certain widths, and only a limited number of heads in
    # a call. So the program pads heads with channels of zeros, and calls torch several times. The
    # result must be the same as of one call without padding. The shape has 7 windows, 3 heads, 6
    # tokens, and 5 channels of a head.
    shape = (7, 3, 6, 5)
    q = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    k = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    v = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64)  # the gradient of each output number
    inputs = [q, k, v]
    bias = None
    mask = None
    if is_biased:
        bias = torch.randn(3, 6, 6, dtype=torch.float64, requires_grad=True)
        inputs.append(bias)
    if is_masked:
        mask = torch.randn(6, 6, dtype=torch.float64)

    def output_with_gradients():
        out = window.attend(q, k, v, scale=0.3, bias=bias, mask=mask)
        return out, *torch.autograd.grad((out * weight).sum(), inputs)

    plain = output_with_gradients()
    # Heads are padded to a multiple of 64 bytes. So 5 channels become 8, of 8 bytes each.
    monkeypatch.setattr(forms, "HEAD_BYTES", {"cpu": 64})
    # A call takes at most 10 heads. Three windows have 9 heads, so a call takes three windows. So 7
    # windows take three calls.
    monkeypatch.setattr(window, "MOST_HEADS", 10)
    padded = output_with_gradients()

    for found, expected in zip(padded, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class RandomAttention:
    """Random q, k, v and a bias, with the results of `cpu_attention`.

    There are 5 windows, 2 heads, 9 tokens, and 4 channels of a head. So q, k and v are (5, 2, 9,
    4). All windows have the same bias, (1, 2, 9, 9).

    factor: multiplies q, and therefore the logits. With 500, the logits are so large that their
    exponentials overflow.
    """

    SCALE = 0.5

    def __init__(self, dtype: torch.dtype, factor: int) -> None:
        q = torch.randn(5, 2, 9, 4).to(dtype)
        k = torch.randn(5, 2, 9, 4).to(dtype)
        v = torch.randn(5, 2, 9, 4).to(dtype)
        bias = torch.randn(1, 2, 9, 9).to(dtype)

        # cpu_attention computes 2^x in place of e^x, so its bias is multiplied by log2(e). It takes
        # the bias of each head of each window: (5 * 2, 9, 9).
        offset = (bias * cpu_forward.LOG2_E).expand(5, 2, 9, 9).flatten(0, 1)
        self.out, self.sums = cpu_forward.cpu_attention(q * factor, k, v, offset, self.SCALE)

        products = q.double() @ k.double().transpose(2, 3)
        self.logits = self.SCALE * factor * products + bias.double()
        self.v = v.double()
        # The largest error that is accepted. bfloat16 keeps only 8 significant bits, so its errors
        # are far larger.
        self.tolerance = 1e-4 if dtype == torch.float32 else 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_equals_softmax_times_values_in_float64(dtype):
    made = RandomAttention(dtype, factor=1)

    expected = made.logits.softmax(3) @ made.v
    torch.testing.assert_close(made.out.double(), expected, rtol=0, atol=made.tolerance)


@pytest.mark.parametrize("factor", [1, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_finite_for_logits_of_any_size(dtype, factor):
    assert RandomAttention(dtype, factor).out.isfinite().all()


@pytest.mark.parametrize("factor", [1, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_sums_equal_logsumexp_for_logits_of_any_size(dtype, factor):
    made = RandomAttention(dtype, factor)

    assert made.sums.dtype == torch.float32
    # The sums (5, 2, 9, 1) are logarithms to the base 2. Convert them to natural logarithms.
    log_sums = made.sums.double().squeeze(3) / cpu_forward.LOG2_E
    # The errors grow with the logits, so divide by the largest one.
    scale = made.logits.abs().max()
    expected = made.logits.logsumexp(3) / scale
    torch.testing.assert_close(log_sums / scale, expected, rtol=0, atol=made.tolerance)

"""The gate of the MLP for GPUs in Triton, gelu(a) * b, forward and backward in one kernel each.

Not yet run on a GPU: tests compare it with torch in Triton's interpreter, and compile it for GPUs.

What it wins on paper over single operations, for the network of 006, 8 clips of 6 x 192 x 192 in bfloat16:
* forward: a, b read and the product written, 3 tensors instead of 5 moved;
* backward: a, b and one gradient read; two gradients and the product written: 6 instead of 14;
* together about 300 GB less of 3,300 a step, 0.07 s at 4.3 TB/s, and 4 kernels less per block.
The rounding differs: intermediates are float32, where single operations round each to bfloat16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _place(N, H, BLOCK: tl.constexpr):
    """Index in the product, index of its a, and whether it is inside."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at // H * (2 * H) + at % H, at < N * H


@triton.jit
def _gate(ab, h, N, H, BLOCK: tl.constexpr):
    at, place, inside = _place(N, H, BLOCK)
    a = tl.load(ab + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(ab + place + H, mask=inside, other=0.0).to(tl.float32)
    gelu = a * 0.5 * (1.0 + tl.erf(a * 0.7071067811865476))
    tl.store(h + at, (gelu * b).to(h.dtype.element_ty), mask=inside)


@triton.jit
def _gate_backward(ab, grad_h, grad_ab, h, N, H, BLOCK: tl.constexpr):
    at, place, inside = _place(N, H, BLOCK)
    a = tl.load(ab + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(ab + place + H, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad_h + at, mask=inside, other=0.0).to(tl.float32)
    share = 0.5 * (1.0 + tl.erf(a * 0.7071067811865476))
    slope = share + a * 0.3989422804014327 * tl.exp(-0.5 * a * a)
    kind = h.dtype.element_ty
    tl.store(h + at, (a * share * b).to(kind), mask=inside)
    tl.store(grad_ab + place, (g * b * slope).to(kind), mask=inside)
    tl.store(grad_ab + place + H, (g * a * share).to(kind), mask=inside)


@torch.library.custom_op("spikevrt::gate", mutates_args=(), schema="(Tensor ab) -> Tensor")
def triton_gate(ab: Tensor) -> Tensor:
    """gelu(a) * b, (.., H), of ab (.., 2 H), contiguous, a first. Without autograd: gpu_block.py computes it anew."""
    h = _product(ab)
    width = h.shape[-1]
    _gate[(triton.cdiv(h.numel(), BLOCK),)](ab, h, h.numel() // width, width, BLOCK=BLOCK)
    return h


@triton_gate.register_fake
def _product(ab: Tensor) -> Tensor:
    return ab.new_empty(*ab.shape[:-1], ab.shape[-1] // 2)


@torch.library.custom_op(
    "spikevrt::gate_backward", mutates_args=(), schema="(Tensor ab, Tensor grad) -> (Tensor, Tensor)"
)
def triton_gate_backward(ab: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of ab from that of the product, and the product."""
    grad_ab, h = _gradients(ab, grad)
    width = h.shape[-1]
    _gate_backward[(triton.cdiv(h.numel(), BLOCK),)](ab, grad, grad_ab, h, h.numel() // width, width, BLOCK=BLOCK)
    return grad_ab, h


@triton_gate_backward.register_fake
def _gradients(ab: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(ab), torch.empty_like(grad)

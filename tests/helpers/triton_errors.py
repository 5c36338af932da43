"""Relative errors of our Triton kernels against float64, as a program: one line of JSON.

usage: python -m tests.helpers.triton_errors [cuda]

Without a GPU it runs in Triton's interpreter (TRITON_INTERPRET=1), at small sizes and in float16 or
float32, because the interpreter truncates products of bfloat16. torch.empty gives NaN here, so an
output that a kernel leaves unwritten is found.
"""

import json
import sys
from collections.abc import Callable, Sequence
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from models.vrt import attention, triton_attention, triton_rows
from models.vrt.windows import Span, window_chunks

# T, channels of a head, mutual, whether windows are masked.
SHAPES = [
    (64, 16, True, False),
    (64, 16, True, True),
    (64, 20, False, True),
    (128, 16, False, True),
    (128, 30, False, False),
    (192, 16, False, True),
    (256, 16, False, True),
    (384, 20, False, True),
]
WINDOWS = {
    64: (1, 8, 8),
    128: (2, 8, 8),
    192: (3, 8, 8),
    256: (4, 8, 8),
    384: (6, 8, 8),
    512: (8, 8, 8),
}


def main(device: str) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    is_gpu = device == "cuda"
    if not is_gpu:
        # Few programs, so that each of them walks over windows.
        mock.patch.object(triton_attention, "PROGRAMS", 12).start()
        mock.patch.object(triton_rows, "PROGRAMS", 3).start()
    dtypes = [torch.bfloat16, torch.float16] if is_gpu else [torch.float16]
    # The interpreter takes seconds a shape: it gets the smallest and the largest alone.
    shapes = [shape for shape in SHAPES if shape[0] not in (192, 256)]
    if is_gpu:
        shapes = [*SHAPES, (512, 16, False, True)]
    found = {}
    for dtype in dtypes:
        for number, (t, channels, mutual, is_masked) in enumerate(shapes):
            name = f"attention {t} {channels} {mutual} {is_masked} {dtype}"
            found[name] = attention_errors(t, channels, mutual, is_masked, dtype, number, device)
        for channels in (96, 120):
            found[f"layer norm {channels} {dtype}"] = norm_errors(channels, dtype, device)
            found[f"gated {channels} {dtype}"] = gated_errors(channels, dtype, device)
    print(json.dumps(found))


def attention_errors(
    t: int, channels: int, mutual: bool, is_masked: bool, dtype: torch.dtype, seed: int, device: str
) -> list[float]:
    """Return the errors of the output and of the gradients of qkv and bias."""
    generator = torch.Generator().manual_seed(seed)
    heads = 6 if device == "cuda" else 2
    tokens = 2 * t if mutual else t
    spans = _spans(WINDOWS[tokens], is_masked, device)
    n = spans[-1].stop
    qkv = torch.randn(n, tokens, 3, heads, channels, generator=generator)
    inputs = [qkv.to(device, dtype)]
    if not mutual:
        inputs.append(0.5 * torch.randn(heads, tokens, tokens, generator=generator).to(device))
    # A gradient as it comes from the first half of two concatenated outputs.
    wide = torch.randn(n, tokens, 2 * heads * channels, generator=generator).to(device, dtype)
    grad = wide[..., : heads * channels]
    scale = channels**-0.5

    def kernel(qkv: Tensor, bias: Tensor | None = None) -> Tensor:
        return triton_attention.window_attention(qkv, bias, spans, scale, mutual)

    def exact(qkv: Tensor, bias: Tensor | None = None) -> Tensor:
        return attention.window_attention(qkv, bias, spans, scale, mutual, None, is_plain=True)

    return _errors(kernel, exact, inputs, grad)


def norm_errors(channels: int, dtype: torch.dtype, device: str) -> list[float]:
    """Return the errors of the output and of the gradients of x, weight and bias."""
    generator = torch.Generator().manual_seed(channels)
    x = 3 * torch.randn(333, channels, generator=generator) + 1
    weight, bias = torch.randn(2, channels, generator=generator)
    grad = torch.randn(333, channels, generator=generator).to(device, dtype)

    def kernel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return triton_rows.layer_norm(x, weight, bias, 1e-5)

    def exact(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (channels,), weight, bias, 1e-5)

    return _errors(kernel, exact, [x.to(device, dtype), weight.to(device), bias.to(device)], grad)


def gated_errors(channels: int, dtype: torch.dtype, device: str) -> list[float]:
    """Return the errors of the output and of the gradients of x, w11, b11, w12 and b12."""
    generator = torch.Generator().manual_seed(channels)
    hidden = 2 * channels
    shapes = [(130, channels), (hidden, channels), (hidden,), (hidden, channels), (hidden,)]
    inputs = [0.1 * torch.randn(shape, generator=generator) for shape in shapes]
    inputs[0] *= 10
    grad = torch.randn(130, hidden, generator=generator).to(device, dtype)

    def exact(x: Tensor, w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w11, b11)) * F.linear(x, w12, b12)

    return _errors(triton_rows.gated, exact, [t.to(device, dtype) for t in inputs], grad)


def _errors(
    kernel: Callable[..., Tensor],
    exact: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    grad: Tensor,
) -> list[float]:
    """Return the relative error of the output and of each gradient, in the norm of Frobenius."""

    def results(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        out = function(*leaves)
        gradients = torch.autograd.grad(out, leaves, grad.to(out.dtype))
        return [out.detach(), *gradients]

    found = results(kernel, inputs)
    expected = results(exact, [tensor.double() for tensor in inputs])
    pairs = zip(found, expected, strict=True)
    return [float((a.double() - b).norm() / b.norm()) for a, b in pairs]


def _spans(window: tuple[int, int, int], is_masked: bool, device: str) -> tuple[Span, ...]:
    """Return the spans of a few windows."""
    frames, height, width = window
    shift = (frames // 2, 4, 4) if is_masked else (0, 0, 0)
    size = (frames, 2 * height, 3 * width)
    return window_chunks(size, window, shift, torch.device(device))[0].spans


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")

"""Measures the relative errors of our Triton kernels against float64, as a program.

    python -m tests.helpers.triton_errors [cuda | long]

It prints one line of JSON: for each case, the error of the output and then the error of each
gradient, e.g. {"layer norm 96 torch.float16": [2e-4, 3e-4, ...], ...}.
tests/parts/models/test_triton.py starts this program and compares the errors with limits. It also
counts the cases, so a new case in SHAPES changes the count there.

    argument    device    cases
    cuda        GPU       all
    long        CPU       attention in long windows (LONG), which take most of the time
    none        CPU       all other cases

On the CPU the kernels run in Triton's interpreter, for which TRITON_INTERPRET=1 must be set. There
the sizes are small, because the interpreter is slow. The dtype is float16, because the interpreter
truncates products of bfloat16.

On both devices torch.empty gives tensors of NaN. So if a kernel leaves an output unwritten, the
error is NaN.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from models.vrt.attention import gpu, window
from models.vrt.attention.kernels import launches
from models.vrt.chunk import Span
from models.vrt.row_kernels import geglu, layer_norm, tiles
from models.vrt.windows import window_chunks


class Shape(NamedTuple):
    """A case of window attention."""

    # Tokens of one attention matrix.
    t: int
    # Channels of a head.
    channels: int
    # Whether the two halves of a window attend to each other (mutual attention). Such a window has
    # 2 t tokens and no bias.
    mutual: bool
    # Whether some windows have a mask, as after a shift.
    is_masked: bool


SHAPES = [
    Shape(t=64, channels=16, mutual=True, is_masked=False),
    Shape(t=64, channels=16, mutual=True, is_masked=True),
    Shape(t=64, channels=20, mutual=False, is_masked=True),
    Shape(t=128, channels=16, mutual=False, is_masked=True),
    Shape(t=128, channels=30, mutual=False, is_masked=False),
    Shape(t=192, channels=16, mutual=False, is_masked=True),
    Shape(t=256, channels=16, mutual=False, is_masked=True),
    Shape(t=384, channels=20, mutual=False, is_masked=True),
]
# The interpreter takes seconds for each shape, so it leaves out these numbers of tokens.
ON_A_GPU_ONLY = (192, 256)
# A window with at least this number of tokens is long. The interpreter takes most of its time for
# long windows.
LONG = 128
# Only a GPU computes this shape, in addition to SHAPES.
LARGE = Shape(t=512, channels=16, mutual=False, is_masked=True)
# Number of tokens of a window -> frames, height, width.
WINDOWS = {
    64: (1, 8, 8),
    128: (2, 8, 8),
    192: (3, 8, 8),
    256: (4, 8, 8),
    384: (6, 8, 8),
    512: (8, 8, 8),
}
# Numbers of rows of the inputs. A kernel computes a tile of rows at a time. With these numbers, the
# last tile is not full.
NORM_ROWS = 333  # of the layer norm
GATED_ROWS = 130  # of the gated MLP
EPS = 1e-5  # of layer norm, as torch has it by default


def main(cases: str) -> None:
    """Print the errors of the cases "cuda", "long", or "cpu": all on the CPU that are not long."""
    device = "cuda" if cases == "cuda" else "cpu"
    # With this setting torch.empty gives NaN.
    torch.use_deterministic_algorithms(True, warn_only=True)
    if device == "cuda":
        dtypes = [torch.bfloat16, torch.float16]
        shapes = [*SHAPES, LARGE]
    else:
        dtypes = [torch.float16]
        shapes = [shape for shape in SHAPES if shape.t not in ON_A_GPU_ONLY]
        # A program is Triton's word for a block of threads. With so few programs, each program
        # computes several windows or tiles, as on a GPU with large inputs.
        mock.patch.object(launches, "PROGRAMS", 12).start()
        mock.patch.object(tiles, "PROGRAMS", 3).start()

    # Layer norm and gated unit compute on rows with this number of channels.
    channels_of_rows = [] if cases == "long" else [96, 120]

    found = {}
    for dtype in dtypes:
        for seed, shape in enumerate(shapes):
            # The number of a shape in `shapes` is the seed of its inputs. Leave shapes out here and
            # not in `shapes`, so that a shape has the same seed with "long" and without it.
            is_long = shape.t >= LONG
            wants_long = cases == "long"
            if device == "cpu" and is_long != wants_long:
                continue
            name = f"attention {shape.t} {shape.channels} {shape.mutual} {shape.is_masked} {dtype}"
            found[name] = attention_errors(shape, dtype, seed, device)
        for channels in channels_of_rows:
            found[f"layer norm {channels} {dtype}"] = norm_errors(channels, dtype, device)
            found[f"gated {channels} {dtype}"] = gated_errors(channels, dtype, device)
    print(json.dumps(found))


def attention_errors(shape: Shape, dtype: torch.dtype, seed: int, device: str) -> list[float]:
    """Return the errors of the output, of the gradient of qkv, and of the gradient of the bias.

    Mutual attention has no bias. Its result has only the first two errors.

    seed: seed of the inputs.
    device: "cpu" or "cuda".
    """
    t, channels, mutual, is_masked = shape
    generator = torch.Generator().manual_seed(seed)
    heads = 6 if device == "cuda" else 2
    tokens = 2 * t if mutual else t
    spans = _spans(WINDOWS[tokens], is_masked, device)
    n = spans[-1].stop  # number of windows

    qkv = torch.randn(n, tokens, 3, heads, channels, generator=generator)
    inputs = [qkv.to(device, dtype)]
    if not mutual:
        # The factor 0.5 was chosen by hand.
        bias = 0.5 * torch.randn(heads, tokens, tokens, generator=generator)
        inputs.append(bias.to(device))
    # The network concatenates two outputs. So the gradient of an output is one half of a wider
    # tensor, and is not contiguous.
    wide = torch.randn(n, tokens, 2 * heads * channels, generator=generator).to(device, dtype)
    grad = wide[..., : heads * channels]
    scale = channels**-0.5

    def kernel(qkv: Tensor, bias: Tensor | None = None) -> Tensor:
        return gpu.window_attention(qkv, bias, spans, scale, mutual)

    def exact(qkv: Tensor, bias: Tensor | None = None) -> Tensor:
        return window.window_attention(
            qkv, bias, spans=spans, scale=scale, mutual=mutual, tape=None, is_plain=True
        )

    return _errors(kernel, exact, inputs, grad)


def norm_errors(channels: int, dtype: torch.dtype, device: str) -> list[float]:
    """Return the errors of the output and of the gradients of x, weight and bias."""
    generator = torch.Generator().manual_seed(channels)
    # A mean of 1 and a deviation of 3, both of which layer norm must remove.
    x = 3 * torch.randn(NORM_ROWS, channels, generator=generator) + 1
    weight, bias = torch.randn(2, channels, generator=generator)
    grad = torch.randn(NORM_ROWS, channels, generator=generator).to(device, dtype)

    def kernel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm.layer_norm(x, weight, bias, EPS)

    def exact(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (channels,), weight, bias, EPS)

    inputs = [x.to(device, dtype), weight.to(device), bias.to(device)]
    return _errors(kernel, exact, inputs, grad)


def gated_errors(channels: int, dtype: torch.dtype, device: str) -> list[float]:
    """Return the errors of the output and of the gradients of x, w11, b11, w12 and b12."""
    generator = torch.Generator().manual_seed(channels)
    hidden = 2 * channels
    shapes = [
        (GATED_ROWS, channels),  # x
        (hidden, channels),  # w11
        (hidden,),  # b11
        (hidden, channels),  # w12
        (hidden,),  # b12
    ]
    inputs = [0.1 * torch.randn(shape, generator=generator) for shape in shapes]
    inputs[0] *= 10  # x has a standard deviation of 1, the weights of 0.1
    grad = torch.randn(GATED_ROWS, hidden, generator=generator).to(device, dtype)

    def exact(x: Tensor, w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w11, b11)) * F.linear(x, w12, b12)

    return _errors(geglu.geglu, exact, [t.to(device, dtype) for t in inputs], grad)


def _errors(
    kernel: Callable[..., Tensor],
    exact: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    grad: Tensor,
) -> list[float]:
    """Return the relative error of the output and of each gradient.

    An error is the Frobenius norm of the difference, divided by the norm of the exact result.

    kernel: the function under test.
    exact: the same function by plain operations. It runs on the inputs in float64.
    inputs: the arguments of both functions.
    grad: the gradient of the output.
    """

    def results(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        out = function(*leaves)
        gradients = torch.autograd.grad(out, leaves, grad.to(out.dtype))
        return [out.detach(), *gradients]

    found = results(kernel, inputs)
    expected = results(exact, [tensor.double() for tensor in inputs])
    errors = []
    for result, exact_result in zip(found, expected, strict=True):
        difference = (result.double() - exact_result).norm()
        errors.append(float(difference / exact_result.norm()))
    return errors


def _spans(window: tuple[int, int, int], is_masked: bool, device: str) -> tuple[Span, ...]:
    """Return the spans of a clip of 2 x 3 windows. A span is a range of windows with one mask.

    window: frames, height and width of a window.
    """
    frames, height, width = window
    shift = (frames // 2, 4, 4) if is_masked else (0, 0, 0)
    size = (frames, 2 * height, 3 * width)
    return window_chunks(size, window, shift, torch.device(device))[0].spans


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")

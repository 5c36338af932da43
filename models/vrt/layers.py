"""Layers with one dtype on purpose, TF32, activation checkpointing, and convolutions applied per
frame.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from models.vrt.forms import has_kernels, in_cpu_form


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of autocast on the device of x, else that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, is_plain: bool = True
) -> Tensor:
    """Return the layer norm over the last axis in the dtype of x.

    is_plain: torch's operator in any case. Mean and variance are float32 or float64 either way.
    """
    if not is_plain and has_kernels(x):
        from models.vrt import triton_rows  # Triton is not everywhere

        return triton_rows.layer_norm(x, weight, bias, eps)
    # On a CPU weight and bias keep float32, because their gradients are summed in their dtype:
    # in bfloat16 these sums would be 40 % off. Elsewhere they take the dtype of x.
    if not in_cpu_form(x):
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis whose result has the dtype of autocast, as that of a linear
    layer.

    torch's own returns float32 on a GPU, so the sum of the residual branches would be float32 in
    the first stage and cast before each linear layer.
    """

    def forward(self, input: Tensor) -> Tensor:
        x = input.to(compute_dtype(input))
        with torch.autocast(x.device.type, enabled=False):
            return layer_norm(x, self.weight, self.bias, self.eps)


@contextmanager
def tf32(is_on: bool) -> Generator[None]:
    """Convolutions and matrix products of float32 inside use TF32, or do not; the settings come
    back.
    """
    if hasattr(torch.backends.cudnn, "conv"):
        key, value = "fp32_precision", "tf32" if is_on else "ieee"
        parts = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    else:  # torch 2.8; in later versions this form warns, and the two forms may not be mixed
        key, value = "allow_tf32", is_on
        parts = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [getattr(part, key) for part in parts]
    try:
        for part in parts:
            setattr(part, key, value)
        yield
    finally:
        for part, setting in zip(parts, before, strict=True):
            setattr(part, key, setting)


def recomputed(
    function: Callable[..., Tensor], *args: Tensor, weights: Iterable[Tensor], when: bool = True
) -> Tensor:
    """Return function(*args) without keeping what it computes on the way; backward computes it
    again, under the same autocast.

    function: must draw no random numbers. weights: tensors that it uses beside args, so that they
    get gradients. when: if false, everything is kept, as usual.
    """
    if not when or not torch.is_grad_enabled():
        return function(*args)
    # torch's own checkpoint imports the compiler, which takes two seconds of each process. So it
    # serves torch.compile alone.
    if torch.compiler.is_compiling():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return Recomputed.apply(function, len(args), *args, *weights)


class Seed(torch.autograd.Function):
    """Starts a backward pass from given gradients.

    Seed.apply(*outputs, *gradients) returns a scalar 0. Its backward hands each output the gradient
    at the same place. torch.autograd.grad(outputs, inputs, gradients) does so too, but imports
    sympy for it: a quarter of a second.
    """

    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        ctx.gradients = tensors[len(tensors) // 2 :]
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.gradients, *(None for _ in ctx.gradients)


class Recomputed(torch.autograd.Function):
    """function(*tensors[:count]); the other tensors are its weights.

    Only these inputs are saved.
    """

    @staticmethod
    def forward(ctx, function: Callable[..., Tensor], count: int, *tensors: Tensor) -> Tensor:
        kind = tensors[0].device.type
        ctx.function, ctx.count = function, count
        # Without autocast's cache of weights: its entries have no graph here, and would outlive the
        # backward.
        ctx.autocast = (
            kind,
            torch.get_autocast_dtype(kind),
            torch.is_autocast_enabled(kind),
            False,
        )
        ctx.save_for_backward(*tensors)
        with torch.autocast(*ctx.autocast):
            return function(*tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed, saved = ctx.needs_input_grad[2:], ctx.saved_tensors
        args = [
            t.detach().requires_grad_(needs)
            for t, needs in zip(saved[: ctx.count], needed, strict=False)
        ]
        with torch.enable_grad(), torch.autocast(*ctx.autocast):
            seed = Seed.apply(ctx.function(*args), grad)  # the output itself is not kept
        wanted = [t for t, needs in zip((*args, *saved[ctx.count :]), needed, strict=True) if needs]
        found = iter(torch.autograd.grad(seed, wanted, allow_unused=True))
        return None, None, *(next(found) if needs else None for needs in needed)


class FrameConv(nn.Conv3d):
    """3x3 convolution of frames (n, C, H, W); its weight has the shape of the checkpoints, (C', C,
    1, 3, 3).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.weight[:, :, 0], self.bias, padding=1)

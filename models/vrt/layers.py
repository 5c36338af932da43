"""Small layers and tools that all parts of the network share.

`LayerNorm` and `compute_dtype` say in which dtype a layer computes. `tf32` switches the TF32
arithmetic of NVIDIA's GPUs. `recomputed` is activation checkpointing: backward computes a function
again instead of keeping its intermediate tensors. `FrameConv` is a convolution of single frames.

Tests: tests/parts/models/test_vrt_modules.py, test_gradients.py, test_block.py
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from models.vrt.forms import has_kernels, in_cpu_form

# ---- Dtypes ----------------------------------------------------------------------------------


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a layer computes x.

    Under autocast this is the dtype of autocast, e.g. bfloat16. Else it is the dtype of x.
    """
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, is_plain: bool = True
) -> Tensor:
    """Return the layer norm over the last axis, in the dtype of x.

    Mean and variance are computed in float32 or float64, whatever the dtype of x is.

    is_plain: use torch's operator on every device.
    """
    if not is_plain and has_kernels(x):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt import triton_rows

        return triton_rows.layer_norm(x, weight, bias, eps)
    # On a CPU weight and bias keep float32, because their gradients are summed in their dtype:
    # in bfloat16 these sums would be 40 % off. Elsewhere they take the dtype of x.
    if not in_cpu_form(x):
        weight = weight.to(x.dtype)
        bias = bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis. Its result has the dtype of autocast, like a linear layer's.

    torch's own layer norm returns float32 on a GPU under autocast. So the sums of the residual
    branches in the first stage would be float32, and each linear layer would have to cast them.
    """

    def forward(self, input: Tensor) -> Tensor:
        x = input.to(compute_dtype(input))
        with torch.autocast(x.device.type, enabled=False):
            return layer_norm(x, self.weight, self.bias, self.eps)


@contextmanager
def tf32(is_on: bool) -> Generator[None]:
    """Use TF32, or do not, for float32 convolutions and matrix products within this context.

    TF32 is a faster, less exact arithmetic of NVIDIA's GPUs. The former settings come back at the
    end.
    """
    matmul = torch.backends.cuda.matmul
    value: str | bool
    if hasattr(torch.backends.cudnn, "conv"):
        settings = (torch.backends.cudnn.conv, matmul)
        key = "fp32_precision"
        value = "tf32" if is_on else "ieee"
    else:
        # torch 2.8. Later versions warn of this setting, and the two may not be mixed.
        settings = (torch.backends.cudnn, matmul)
        key = "allow_tf32"
        value = is_on
    before = [getattr(setting, key) for setting in settings]
    try:
        for setting in settings:
            setattr(setting, key, value)
        yield
    finally:
        for setting, former_value in zip(settings, before, strict=True):
            setattr(setting, key, former_value)


# ---- Activation checkpointing ----------------------------------------------------------------


def recomputed(
    function: Callable[..., Tensor], *args: Tensor, weights: Iterable[Tensor], when: bool = True
) -> Tensor:
    """Return function(*args) without keeping its intermediate tensors for backward.

    Backward computes the function again, with the same autocast settings.

    function: must draw no random numbers, because the second run would draw others.
    weights: the tensors that the function uses beside `args`. They get gradients too.
    when: whether to recompute. If false, autograd keeps everything, as usual.
    """
    if not when or not torch.is_grad_enabled():
        return function(*args)
    # Only torch.compile uses torch's own checkpoint, because that one imports the compiler, which
    # takes two seconds in each process.
    if torch.compiler.is_compiling():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return Recomputed.apply(function, len(args), *args, *weights)


class Seed(torch.autograd.Function):
    """Starts a backward pass from given gradients.

    Seed.apply(*outputs, *gradients) returns a scalar 0. Its backward hands each output the gradient
    at the same place. torch.autograd.grad(outputs, inputs, gradients) does the same, but it imports
    sympy, which takes a quarter of a second.
    """

    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        count = len(tensors) // 2  # as many gradients as outputs
        ctx.gradients = tensors[count:]
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        of_gradients = [None] * len(ctx.gradients)  # they are data and get no gradient themselves
        return (*ctx.gradients, *of_gradients)


class Recomputed(torch.autograd.Function):
    """Computes a function in forward, and again in backward. See `recomputed`.

    Recomputed.apply(function, count, *tensors): the first `count` tensors are the arguments of the
    function, the rest are weights that it uses. Autograd must see the weights as arguments, so that
    it asks for their gradients. Only these tensors are saved.
    """

    @staticmethod
    def forward(ctx, function: Callable[..., Tensor], count: int, *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.count = count
        kind = tensors[0].device.type
        # Autocast can cache the weights that it casts. The cache is off here, because its entries
        # would have no graph, and would live on after backward.
        ctx.autocast = {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
            "cache_enabled": False,
        }
        ctx.save_for_backward(*tensors)
        with torch.autocast(**ctx.autocast):
            return function(*tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]  # of the tensors; function and count come before them

        # The arguments are new leaves, so that the graph of this second run ends at them. The
        # weights are leaves of the function already.
        args = []
        for tensor, is_needed in zip(saved[: ctx.count], needed[: ctx.count], strict=True):
            args.append(tensor.detach().requires_grad_(is_needed))
        inputs = [*args, *saved[ctx.count :]]
        with torch.enable_grad(), torch.autocast(**ctx.autocast):
            # The output has no name here, so that it is freed early.
            seed = Seed.apply(ctx.function(*args), grad)

        # Ask autograd for the needed gradients alone, and put each one at the place of its tensor.
        places = [place for place, is_needed in enumerate(needed) if is_needed]
        found = torch.autograd.grad(seed, [inputs[place] for place in places], allow_unused=True)
        gradients: list[Tensor | None] = [None] * len(inputs)
        for place, gradient in zip(places, found, strict=True):
            gradients[place] = gradient
        return (None, None, *gradients)


# ---- Convolution -----------------------------------------------------------------------------


class FrameConv(nn.Conv3d):
    """3x3 convolution of frames (n, C, H, W).

    It is a Conv3d because the published weights files hold (C', C, 1, 3, 3) for it.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.weight[:, :, 0], self.bias, padding=1)

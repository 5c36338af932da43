"""Small layers and tools that all parts of the network share.

    compute_dtype, LayerNorm   in which dtype a layer computes
    tf32                       switches the TF32 arithmetic of NVIDIA's GPUs
    recompute_in_backward      activation checkpointing: backward computes a function again, so that
                               its intermediate tensors need not be kept
    Seed                       starts a backward pass from given gradients
    FrameConv                  a convolution of single frames

What must stay: `recompute_in_backward` gives the same numbers and gradients as the plain call, bit
for bit; the names and shapes of the layers' weights, because the released weights have them; and
the dtypes, because another dtype changes the numbers of a training.
Free to change: what is recomputed.

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

    Under autocast this is the dtype of autocast, e.g. bfloat16. Otherwise it is the dtype of x.
    """
    device_type = x.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return x.dtype


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, is_plain: bool = True
) -> Tensor:
    """Return the layer norm over the last axis, in the dtype of x.

    Mean and variance are computed in float32 or float64, whatever the dtype of x is.

    is_plain: whether torch's operator computes on every device. If false, our kernel computes where
        it can.
    """
    if not is_plain and has_kernels(x):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt.row_kernels import layer_norm as kernel

        return kernel.layer_norm(x, weight, bias, eps)
    # Weight and bias take the dtype of x, but not on a CPU: there torch sums their gradients in
    # their dtype, and in bfloat16 these sums would be wrong by 40 %.
    if not in_cpu_form(x):
        weight = weight.to(x.dtype)
        bias = bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis. Under autocast its result has the dtype of autocast.

    torch's own layer norm returns float32 on a GPU under autocast. With it, the sums of the
    residual branches would be float32, and each linear layer would have to convert them.
    """

    def forward(self, input: Tensor) -> Tensor:
        x = input.to(compute_dtype(input))
        with torch.autocast(x.device.type, enabled=False):
            return layer_norm(x, self.weight, self.bias, self.eps)


@contextmanager
def tf32(is_on: bool) -> Generator[None]:
    """Switch TF32 on or off for float32 convolutions and matrix products within this context.

    TF32 is a faster, less exact arithmetic of NVIDIA's GPUs. At the end of the context, the former
    settings come back.
    """
    matmul = torch.backends.cuda.matmul
    value: str | bool
    # torch has two kinds of settings for this, which may not be mixed. torch 2.8 has the old kind
    # alone. Later versions warn if the old kind is used.
    if hasattr(torch.backends.cudnn, "conv"):
        settings = (torch.backends.cudnn.conv, matmul)
        key = "fp32_precision"
        value = "tf32" if is_on else "ieee"
    else:
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


def recompute_in_backward(
    function: Callable[..., Tensor], *args: Tensor, weights: Iterable[Tensor], when: bool = True
) -> Tensor:
    """Return function(*args) without keeping its intermediate tensors for backward.

    Backward computes the function again, with the same autocast settings.

    function: must draw no random numbers, because the second run would draw others.
    weights: the tensors that the function uses beside `args`. They get gradients, too. A tensor
        that is missing here gets no gradient, without an error.
    when: whether to recompute. If false, autograd keeps the intermediate tensors, as usual.
    """
    if not when or not torch.is_grad_enabled():
        return function(*args)
    # torch's own `checkpoint` imports the compiler, which takes two seconds in each process. So use
    # it only if torch.compile is at work and has imported the compiler already.
    if torch.compiler.is_compiling():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return RecomputeInBackward.apply(function, len(args), *args, *weights)


class Seed(torch.autograd.Function):
    """Starts a backward pass from given gradients.

    Seed.apply(*outputs, *gradients) returns a scalar 0. The backward pass of this scalar hands the
    first gradient to the first output, the second gradient to the second output, and so on.
    torch.autograd.grad(outputs, inputs, gradients) does the same, but it imports sympy, which takes
    a quarter of a second.
    """

    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        output_count = len(tensors) // 2  # as many gradients as outputs
        ctx.gradients = tensors[output_count:]
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        # One result for each argument of forward. The given gradients are data, so they get none.
        nothing = [None] * len(ctx.gradients)
        return (*ctx.gradients, *nothing)


class RecomputeInBackward(torch.autograd.Function):
    """Computes a function in forward, and again in backward. `recompute_in_backward` calls it.

    RecomputeInBackward.apply(function, count, *tensors): the first `count` tensors are the
    arguments of the function, the other tensors are weights that the function uses. The weights
    must be arguments of `apply`, too, or autograd would not ask for their gradients. Only these
    tensors are saved.
    """

    @staticmethod
    def forward(ctx, function: Callable[..., Tensor], count: int, *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.count = count
        device_type = tensors[0].device.type
        # The settings of autocast, for the second run. Autocast can cache the weights that it
        # converts. The cache is off, because its entries would have no graph here, and would stay
        # in memory after backward.
        ctx.autocast = {
            "device_type": device_type,
            "dtype": torch.get_autocast_dtype(device_type),
            "enabled": torch.is_autocast_enabled(device_type),
            "cache_enabled": False,
        }
        ctx.save_for_backward(*tensors)
        with torch.autocast(**ctx.autocast):
            return function(*tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        # Which of the tensors need a gradient. The arguments before them are function and count.
        needs_gradient = ctx.needs_input_grad[2:]

        # The arguments of the function are new leaves, so that the graph of this second run ends at
        # them. The function finds the weights by itself.
        args = []
        for tensor, is_needed in zip(saved[: ctx.count], needs_gradient[: ctx.count], strict=True):
            args.append(tensor.detach().requires_grad_(is_needed))
        weights = saved[ctx.count :]
        inputs = [*args, *weights]
        with torch.enable_grad(), torch.autocast(**ctx.autocast):
            # The output of the function has no name here, so that it is freed early.
            seed = Seed.apply(ctx.function(*args), grad)

        # Ask autograd for the needed gradients alone, and put each gradient at the index of its
        # tensor. The other gradients are None.
        indices = [index for index, is_needed in enumerate(needs_gradient) if is_needed]
        inputs_with_gradient = [inputs[index] for index in indices]
        needed_gradients = torch.autograd.grad(seed, inputs_with_gradient, allow_unused=True)
        gradients: list[Tensor | None] = [None] * len(inputs)
        for index, gradient in zip(indices, needed_gradients, strict=True):
            gradients[index] = gradient
        return (None, None, *gradients)


# ---- Convolution -----------------------------------------------------------------------------


class FrameConv(nn.Conv3d):
    """3x3 convolution of frames (n, C, H, W).

    The class is a Conv3d, because the weights in the published files are (C', C, 1, 3, 3).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, kernel_size=(1, 3, 3), padding=(0, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight[:, :, 0]  # (C', C, 3, 3)
        return F.conv2d(input, weight, self.bias, padding=1)

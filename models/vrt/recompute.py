"""Activation checkpointing: backward computes a function again, so that its tensors are not kept.

    recompute_in_backward    calls a function without keeping its intermediate tensors
    Seed                     starts a backward pass from given gradients

What must stay: the same numbers and gradients as the plain call, bit for bit.
tests/parts/models/test_gradients.py and test_block.py compare them. Free to change: what is
recomputed.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


def recompute_in_backward(
    function: Callable[..., Tensor], *args: Tensor, weights: Iterable[Tensor], when: bool = True
) -> Tensor:
    """Return function(*args) without keeping its intermediate tensors for backward.

    Backward computes the function again, with the same autocast settings.

    function: the function to call. It must not draw random numbers, because the second run would
        draw other numbers.
    weights: all tensors that the function uses besides `args`. A tensor that is missing here gets
        no gradient, and there is no error.
    when: whether to recompute. If false, autograd keeps the intermediate tensors.
    """
    if not when or not torch.is_grad_enabled():
        return function(*args)
    # torch's own `checkpoint` imports the compiler. The import takes two seconds in each process.
    # Under torch.compile the compiler is imported already.
    if torch.compiler.is_compiling():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return RecomputeInBackward.apply(function, len(args), *args, *weights)


class RecomputeInBackward(torch.autograd.Function):
    """Computes a function in forward, and again in backward. `recompute_in_backward` calls it.

    RecomputeInBackward.apply(function, count, *tensors): the first `count` tensors are the
    arguments of the function. The other tensors are the weights that the function uses. The weights
    are arguments of `apply`, because autograd asks only for the gradients of arguments.
    """

    @staticmethod
    def forward(ctx, function: Callable[..., Tensor], count: int, *tensors: Tensor) -> Tensor:
        """Return the result of the function, and save only its arguments and weights."""
        ctx.function = function
        ctx.count = count
        device_type = tensors[0].device.type
        # The settings of autocast, for both runs. The cache of autocast is off, because it would
        # keep each converted weight in memory until after backward. The second run could not use
        # these weights. They have no graph, because autograd is off in this method.
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
        """Run the function again, with a graph, and return the gradients of the tensors.

        grad: the gradient of the result.
        """
        saved = ctx.saved_tensors
        saved_args = saved[: ctx.count]
        weights = saved[ctx.count :]
        # Whether each tensor needs a gradient. The entries 0 and 1 are for function and count.
        needs_gradient = ctx.needs_input_grad[2:]

        # The second run makes a graph of its own, which must end at the arguments and not lead on
        # into earlier layers. So the arguments are detached. The weights are not detached, because
        # the function reads them itself, e.g. self.weight.
        args = []
        for arg, is_needed in zip(saved_args, needs_gradient[: ctx.count], strict=True):
            args.append(arg.detach().requires_grad_(is_needed))
        with torch.enable_grad(), torch.autocast(**ctx.autocast):
            # The scalar from which backward starts. The output of the function gets no name, so
            # that it is freed early.
            seed = Seed.apply(ctx.function(*args), grad)

        # Ask autograd only for the gradients that are needed. All others are None. E.g. three
        # tensors, of which 0 and 2 need gradients a and b: indices 0 2, gradients [a, None, b].
        inputs = [*args, *weights]
        indices = [index for index, is_needed in enumerate(needs_gradient) if is_needed]
        inputs_with_gradient = [inputs[index] for index in indices]
        needed_gradients = torch.autograd.grad(seed, inputs_with_gradient, allow_unused=True)
        gradients: list[Tensor | None] = [None] * len(inputs)
        for index, gradient in zip(indices, needed_gradients, strict=True):
            gradients[index] = gradient
        # Return one result for each argument of forward. function and count have no gradient.
        return (None, None, *gradients)


class Seed(torch.autograd.Function):
    """Starts a backward pass from given gradients.

    Seed.apply(*outputs, *gradients) returns a scalar 0. The backward pass of this scalar hands the
    first gradient to the first output, the second gradient to the second output, and so on.
    torch.autograd.grad(outputs, inputs, gradients) does the same, but it imports sympy. The import
    takes a quarter of a second in each process.
    """

    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        """Return 0. The first half of the tensors are the outputs, the second their gradients."""
        output_count = len(tensors) // 2
        ctx.gradients = tensors[output_count:]
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the given gradients for the outputs, and None for the gradients themselves."""
        nothing = [None] * len(ctx.gradients)
        return (*ctx.gradients, *nothing)

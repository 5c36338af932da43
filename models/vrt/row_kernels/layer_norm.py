"""LayerNorm on an NVIDIA GPU, in Triton, with gradients:

    y = u * weight + bias,     u = (x - mean) * factor,     factor = 1 / sqrt(var + eps)

x has n rows of C channels. Mean and variance are over the channels of a row. Mean, variance and the
gradients of weight and bias are computed in float32. layers.layer_norm calls `layer_norm`, which
gives no gradients of gradients.

A kernel runs many times at once, and each run is called a program. A program works on a tile: ROWS
rows, each padded from C channels to PADDED numbers, because Triton needs powers of two. E.g. for 96
channels PADDED is 128. A tile has 4096 numbers, so ROWS is 4096 / 128 = 32 (`tile`), and program 1
computes the rows 32 ... 63.

A tile may reach beyond the tensor: it has padding, and the last tile may have fewer than ROWS rows.
So each load and store has a mask. Where the mask is false, a load gives 0 and a store writes
nothing. Indices have 64 bits (`.to(tl.int64)`), because a tensor may have more than 2^31 numbers.

What must stay: the order of the sums, because another order changes the last bits of a training. No
test notices this. tests/parts/models/test_triton.py compares the results with float64, but it runs
the kernels in Triton's interpreter, which sums in an order of its own. So after a change, compare
the bits before and after it on a GPU. Free to change: names, and how an index is computed.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.row_kernels.tiles import backward_programs, jit, tile, tl


@jit
def _normalized(x, CHANNELS: tl.constexpr, is_inside, eps):
    """Return u = (x - mean) * factor, (ROWS, PADDED), and factor = 1 / sqrt(var + eps), (ROWS,).

    x: a tile, (ROWS, PADDED), with 0 at padding, so that padding adds nothing to the mean.
    is_inside: whether each number of the tile is inside the tensor, (ROWS, PADDED).
    """
    mean = tl.sum(x, 1) / CHANNELS  # (ROWS,)
    # Set padding to 0. At padding, x - mean is -mean, which would add to the variance.
    centred = tl.where(is_inside, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / CHANNELS  # (ROWS,)
    factor = 1 / tl.sqrt(variance + eps)
    return centred * factor[:, None], factor


# do_not_specialize: by default Triton compiles a kernel again for an argument that is 1 or
# divisible by 16. row_count changes with the size of the frames.
@jit(do_not_specialize=["row_count"])
def _norm_forward(
    x,  # input (rows, C)
    weight,  # input (C,), float32
    bias,  # input (C,), float32
    y,  # result (rows, C), in the dtype of x
    row_count,
    eps,  # small number that is added to the variance
    CHANNELS: tl.constexpr,  # C, the channels of a row
    PADDED: tl.constexpr,  # channels of a row with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write y = u * weight + bias for one tile, where u are the normalized rows.

    Each program computes one tile. E.g. 96 channels, 100 rows, ROWS = 32: 4 programs. Program 1
    computes the rows 32 ... 63. Program 3 has the rows 96 ... 127, of which 100 ... 127 do not
    exist: they are neither read nor written.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    channel = tl.arange(0, PADDED)  # (PADDED,)
    is_channel = channel < CHANNELS  # false for padding
    # (ROWS, PADDED): false for padding and for rows beyond the last one.
    is_inside = (row < row_count)[:, None] & is_channel[None, :]
    # The positions of the tile's numbers in x and y, (ROWS, PADDED). E.g. for 96 channels, channel
    # 5 of row 33 is number 33 * 96 + 5 = 3173.
    index = row[:, None].to(tl.int64) * CHANNELS + channel[None, :]

    values = tl.load(x + index, mask=is_inside, other=0.0).to(tl.float32)
    u, _ = _normalized(values, CHANNELS, is_inside, eps)
    w = tl.load(weight + channel, mask=is_channel, other=0.0)  # (PADDED,)
    b = tl.load(bias + channel, mask=is_channel, other=0.0)  # (PADDED,)
    result = u * w[None, :] + b[None, :]
    tl.store(y + index, result.to(y.dtype.element_ty), mask=is_inside)


@jit(do_not_specialize=["row_count"])
def _norm_backward(
    x,  # input of forward, (rows, C)
    weight,  # input of forward, (C,)
    grad,  # the gradient of y, (rows, C)
    grad_x,  # result (rows, C): dx
    program_sums,  # result (programs, 2, C): the sums of each program, for dweight and for dbias
    row_count,
    eps,  # small number that is added to the variance
    CHANNELS: tl.constexpr,  # C, the channels of a row
    PADDED: tl.constexpr,  # channels of a row with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write dx, the gradient of x, and the sums of this program for dweight and dbias.

    u are the normalized rows, and factor is 1 / sqrt(var + eps) of each row:

        g       = grad * weight                                the gradient of u
        dx      = (g - mean(g) - u * mean(g * u)) * factor     means over the channels of a row
        dweight = sum of grad * u over the rows
        dbias   = sum of grad over the rows

    The formula of dx is the chain rule. Channel i of x changes channel j of u directly (d_ij, which
    is 1 if i = j and otherwise 0), through the mean (1 / C) and through the variance (u_i u_j / C):

        du_j / dx_i = (d_ij - 1 / C - u_i u_j / C) * factor
        dx_i        = sum over j of g_j * du_j / dx_i
                    = (g_i - mean(g) - u_i * mean(g * u)) * factor

    Forward saves neither mean nor variance. Computing them again costs little, because each row is
    read anyway.

    A program computes several tiles, so that program_sums stays small. E.g. with 3 programs and
    tiles of 32 rows, program 1 computes the rows 32 ... 63, then, 3 * 32 = 96 rows later, the rows
    128 ... 159, then 224 ... 255, and so on.
    """
    channel = tl.arange(0, PADDED)
    is_channel = channel < CHANNELS
    w = tl.load(weight + channel, mask=is_channel, other=0.0)[None, :]  # (1, PADDED)
    # The sums over the tiles of this program, still one for each of the ROWS rows.
    sum_weight = tl.zeros((ROWS, PADDED), tl.float32)
    sum_bias = tl.zeros((ROWS, PADDED), tl.float32)
    # Program p of P takes the tiles p, p + P, p + 2 P, ...
    first_row = tl.program_id(0) * ROWS
    rows_to_next_tile = tl.num_programs(0) * ROWS
    for start in range(first_row, row_count, rows_to_next_tile):
        row = start + tl.arange(0, ROWS)
        # (ROWS, PADDED): false for padding and for rows beyond the last row. Where it is false,
        # grad_y is loaded as 0 and adds nothing to the sums.
        is_inside = (row < row_count)[:, None] & is_channel[None, :]
        index = row[:, None].to(tl.int64) * CHANNELS + channel[None, :]
        values = tl.load(x + index, mask=is_inside, other=0.0).to(tl.float32)
        u, factor = _normalized(values, CHANNELS, is_inside, eps)
        grad_y = tl.load(grad + index, mask=is_inside, other=0.0).to(tl.float32)
        sum_weight += grad_y * u
        sum_bias += grad_y

        g = grad_y * w
        mean_g = tl.sum(g, 1) / CHANNELS  # (ROWS,)
        mean_gu = tl.sum(g * u, 1) / CHANNELS  # (ROWS,)
        result = (g - mean_g[:, None] - u * mean_gu[:, None]) * factor[:, None]
        tl.store(grad_x + index, result.to(grad_x.dtype.element_ty), mask=is_inside)
    # Add up the ROWS rows of the sums. Program p writes them to row p of program_sums
    # (programs, 2, C): first the C sums for dweight, then the C sums for dbias.
    sums_of_program = program_sums + tl.program_id(0) * 2 * CHANNELS + channel
    tl.store(sums_of_program, tl.sum(sum_weight, 0), mask=is_channel)
    tl.store(sums_of_program + CHANNELS, tl.sum(sum_bias, 0), mask=is_channel)


class _LayerNorm(torch.autograd.Function):
    """Launches the kernels of the layer norm. `layer_norm` calls it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Return the layer norm of x (..., C) over the last axis, in the dtype of x."""
        x = x.contiguous()  # then row r begins at number r * C, as the kernels expect
        y = torch.empty_like(x)
        channels = x.shape[-1]
        n = x.numel() // channels
        shape = tile(channels)
        tiles = math.ceil(n / shape["ROWS"])
        # kernel[(programs,)](arguments) is Triton's syntax to start a number of programs, here one
        # per tile.
        _norm_forward[(tiles,)](x, weight, bias, y, n, eps, CHANNELS=channels, **shape)
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias. grad: the gradient of the result."""
        x, weight = ctx.saved_tensors
        channels = x.shape[-1]
        n = x.numel() // channels
        shape = tile(channels)
        grad = grad.contiguous()
        grad_x = torch.empty_like(x)
        # Each program writes its sums to a row of program_sums. The sum of the rows is the result.
        tiles = math.ceil(n / shape["ROWS"])
        programs = backward_programs(tiles)
        program_sums = x.new_empty(programs, 2, channels, dtype=torch.float32)
        _norm_backward[(programs,)](
            x, weight, grad, grad_x, program_sums, n, ctx.eps, CHANNELS=channels, **shape
        )
        grad_weight, grad_bias = program_sums.sum(0).unbind(0)
        return grad_x, grad_weight, grad_bias, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the layer norm of x (..., C) over its last axis, in the dtype of x.

    x: on an NVIDIA GPU. In the network it is bfloat16 or float16 (`forms.has_kernels`).
    weight, bias: (C,), float32.
    eps: small number that is added to the variance, so that no division is by 0.
    """
    return _LayerNorm.apply(x, weight, bias, eps)

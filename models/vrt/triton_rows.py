"""Passes over rows of channels on an NVIDIA GPU, in Triton: LayerNorm and GEGLU, with gradients.

A row is the channels of one token. torch's LayerNorm gives one row to a block of threads, which is
slow for 96 channels. Here a program (one instance of a kernel) computes a tile: all channels of
several rows.

Statistics and the gradients of weights and biases are float32. In backward each program sums these
gradients over its rows. Then the sums of the programs are added in a fixed order. So a step gives
the same numbers each time.

layers.layer_norm and gated_mlp.geglu call the two functions `layer_norm` and `geglu` of this file.
Both give gradients, but no gradients of gradients (`once_differentiable`).

Names in the kernels:

    n              number of rows
    C or H, PAD    channels of a row; the same, padded to a power of two
    ROWS           rows of a tile
    row            (ROWS,)      numbers of the rows of the tile
    channel        (PAD,)       numbers of the channels
    is_channel     (PAD,)       false for padding
    is_inside      (ROWS, PAD)  false for padding and for rows beyond n
    index          (ROWS, PAD)  positions of the numbers of the tile in memory
    program_sums   the sums of each program, one row per program

Forward has one program per tile. In backward, program p of P takes the tiles p, p + P, p + 2 P, ...
In both, the last tile may have fewer than ROWS rows. So each load and store has a mask: a masked
load gives 0, and a masked store writes nothing. Without the mask a program would write beyond the
tensor.

The position of a number in memory is computed with 64 bits (`.to(tl.int64)`), because a tensor may
have more than 2^31 numbers.

To change a kernel:

    keep     the order of the sums, because another order changes the last bits of a training
    free     names, comments, and how an index is computed
    test     tests/parts/models/test_triton.py compares all results with float64. It needs no GPU,
             because Triton's interpreter runs the kernels on a CPU. test_cuda.py does the same on a
             GPU
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language
from torch import Tensor
from torch.autograd.function import once_differentiable

# The bodies of kernels are in Triton's own language, which only looks like Python. So the type
# checker must not check them: Any.
tl: Any = triton.language
jit: Any = triton.jit
# Largest number of programs of a backward pass: 4 for each of the 132 multiprocessors of an H100.
# With fewer programs, some multiprocessors would have nothing to do. With more programs, more sums
# would be written. Another number changes the last bits of the gradients of weights and biases.
PROGRAMS = 528
# Numbers in a tile. A larger tile would not fit into the registers of a program. A smaller tile
# would give a program less work for each start. Another number changes the last bits of the
# gradients of weights and biases.
ELEMENTS = 4096
# 1 / sqrt(2) and 1 / sqrt(2 pi), for the normal distribution in GELU. A kernel can only read a
# global constant that is a tl.constexpr.
INVERSE_ROOT_2 = tl.constexpr(0.7071067811865476)
INVERSE_ROOT_2_PI = tl.constexpr(0.3989422804014327)


def tile(channels: int, elements: int = ELEMENTS) -> dict[str, int]:
    """Return the tile of a kernel as its constants: {"ROWS": rows, "PAD": padded channels}.

    E.g. 96 channels, 4096 numbers -> {"ROWS": 32, "PAD": 128}, because Triton needs powers of two.

    channels: numbers in a row. elements: numbers in the tile, padding included.
    """
    padded = 1 << (channels - 1).bit_length()  # the next power of two
    rows = max(1, elements // padded)  # at least one row, even if it is longer than the tile
    return {"ROWS": rows, "PAD": padded}


# ---- LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) weight + bias ---------------------------


@jit
def _normalized(x, C: tl.constexpr, is_inside, eps):
    """Return u = (x - mean) factor, (ROWS, PAD), and factor = 1 / sqrt(var + eps), (ROWS,).

    Mean and variance are over the channels of a row. x must be 0 for padding, so that padding adds
    nothing to the mean.
    """
    # Padding would be -mean here, and would add to the variance. So it becomes 0.
    centred = tl.where(is_inside, x - tl.sum(x, 1)[:, None] / C, 0.0)
    factor = 1 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
    return centred * factor[:, None], factor


# `do_not_specialize`: without it, Triton compiles a kernel once more if n is 1, or is divisible by
# 16. The number of rows n changes with the size of the frames.


@jit(do_not_specialize=["n"])
def _norm_forward(
    x,  # input (n, C)
    weight,  # input (C,), float32
    bias,  # input (C,), float32
    y,  # result (n, C), in the dtype of x
    n,  # number of rows
    eps,  # what is added to the variance
    C: tl.constexpr,  # channels of a row
    PAD: tl.constexpr,  # channels of a row with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write y = u weight + bias for one tile, where u are the normalized rows.

    E.g. 96 channels: a tile has 32 rows, so program 1 computes the rows 32 ... 63.
    """
    # The rows and channels of this program's tile, and where their numbers are in memory.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, PAD)
    is_channel = channel < C
    is_inside = (row < n)[:, None] & is_channel[None, :]
    index = row[:, None].to(tl.int64) * C + channel[None, :]

    values = tl.load(x + index, mask=is_inside, other=0.0).to(tl.float32)
    u, _ = _normalized(values, C, is_inside, eps)
    w = tl.load(weight + channel, mask=is_channel, other=0.0)
    b = tl.load(bias + channel, mask=is_channel, other=0.0)
    result = u * w[None, :] + b[None, :]
    tl.store(y + index, result.to(y.dtype.element_ty), mask=is_inside)


@jit(do_not_specialize=["n"])
def _norm_backward(
    x,  # input of forward, (n, C)
    weight,  # input of forward, (C,)
    grad,  # the gradient of y, (n, C)
    grad_x,  # result: dx, (n, C)
    program_sums,  # result: the sums of each program, (programs, 2, C): dweight, then dbias
    n,  # number of rows
    eps,  # what is added to the variance
    C: tl.constexpr,  # channels of a row
    PAD: tl.constexpr,  # channels of a row with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write the gradients of x, and the sums of this program for the gradients of weight and bias.

    With the normalized rows u, and factor = 1 / sqrt(var + eps) of each row:

        g = grad weight
        dx = (g - mean(g) - u mean(g u)) factor      the means are over the channels of a row
        dweight = sum of grad u over the rows
        dbias = sum of grad over the rows

    Mean and variance of a row are computed a second time. This costs little, because the row is
    read for the gradients anyway.

    A program computes several tiles. E.g. 3 programs and tiles of 32 rows: program 1 has the rows
    32 ... 63, 128 ... 159, 224 ... 255, and so on.
    """
    channel = tl.arange(0, PAD)
    is_channel = channel < C
    w = tl.load(weight + channel, mask=is_channel, other=0.0)[None, :]  # (1, PAD)
    # The sums over the tiles of this program. At the end the ROWS rows of the sums are added.
    grad_w = tl.zeros((ROWS, PAD), tl.float32)
    grad_b = tl.zeros((ROWS, PAD), tl.float32)
    # The first row of each tile of this program: tile p, then each P-th tile, of P programs.
    for start in range(tl.program_id(0) * ROWS, n, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        is_inside = (row < n)[:, None] & is_channel[None, :]
        index = row[:, None].to(tl.int64) * C + channel[None, :]
        values = tl.load(x + index, mask=is_inside, other=0.0).to(tl.float32)
        u, factor = _normalized(values, C, is_inside, eps)
        g = tl.load(grad + index, mask=is_inside, other=0.0).to(tl.float32)
        grad_w += g * u
        grad_b += g

        g *= w  # from here g is grad weight, as in the equations
        mean_g = tl.sum(g, 1) / C
        mean_gu = tl.sum(g * u, 1) / C
        result = (g - mean_g[:, None] - u * mean_gu[:, None]) * factor[:, None]
        tl.store(grad_x + index, result.to(grad_x.dtype.element_ty), mask=is_inside)
    # Add the ROWS rows of the sums. Entry p of program_sums has 2 C numbers: dweight, then dbias.
    sums_of_program = program_sums + tl.program_id(0) * 2 * C + channel
    tl.store(sums_of_program, tl.sum(grad_w, 0), mask=is_channel)
    tl.store(sums_of_program + C, tl.sum(grad_b, 0), mask=is_channel)


class _LayerNorm(torch.autograd.Function):
    """Launches the kernels of the layer norm. `layer_norm` calls it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Return the layer norm of x (..., C) over the last axis, in the dtype of x."""
        x = x.contiguous()  # the kernels find row r at r * C
        y = torch.empty_like(x)
        channels = x.shape[-1]
        n = x.numel() // channels
        shape = tile(channels)
        tiles = math.ceil(n / shape["ROWS"])
        # Triton's way to launch: kernel[(number of programs,)](arguments). Here each tile is a
        # program.
        _norm_forward[(tiles,)](x, weight, bias, y, n, eps, C=channels, **shape)
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
        # No more programs than tiles. Each program writes its sums to one row of program_sums.
        tiles = math.ceil(n / shape["ROWS"])
        programs = min(PROGRAMS, tiles)
        program_sums = x.new_empty(programs, 2, channels, dtype=torch.float32)
        _norm_backward[(programs,)](
            x, weight, grad, grad_x, program_sums, n, ctx.eps, C=channels, **shape
        )
        grad_weight, grad_bias = program_sums.sum(0).unbind(0)
        return grad_x, grad_weight, grad_bias, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the layer norm of x over its last axis. weight, bias: float32."""
    return _LayerNorm.apply(x, weight, bias, eps)


# ---- GEGLU: gelu(a) b, of a = x w11^T + b11 and b = x w12^T + b12 ------------------------------
#
# One matrix product of x with w11 and w12 gives z (n, 2 H). A row of z holds a (H numbers), then b
# (H numbers). The kernels begin with z.


@jit(do_not_specialize=["n"])
def _geglu_forward(
    z,  # input (n, 2 H)
    y,  # result (n, H)
    n,  # number of rows
    H: tl.constexpr,  # numbers in a row of y
    PAD: tl.constexpr,  # numbers in a row of y with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write y = gelu(a) b for one tile, with gelu(a) = a / 2 (1 + erf(a / sqrt(2))).

    E.g. H = 192: a tile has 16 rows, so program 1 computes the rows 16 ... 31.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, PAD)
    is_inside = (row < n)[:, None] & (channel < H)[None, :]
    # Where the numbers a of the tile are in z, whose rows have 2 H numbers. In each row the numbers
    # b lie H places after the numbers a.
    index = row[:, None].to(tl.int64) * (2 * H) + channel[None, :]
    a = tl.load(z + index, mask=is_inside, other=0.0).to(tl.float32)
    b = tl.load(z + index + H, mask=is_inside, other=0.0).to(tl.float32)
    result = 0.5 * a * (1 + tl.erf(a * INVERSE_ROOT_2)) * b
    index_y = row[:, None].to(tl.int64) * H + channel[None, :]
    tl.store(y + index_y, result.to(y.dtype.element_ty), mask=is_inside)


@jit(do_not_specialize=["n"])
def _geglu_backward(
    z,  # a and b of each row, (n, 2 H)
    grad,  # the gradient of y, (n, H)
    grad_z,  # result: da and db of each row, (n, 2 H)
    program_sums,  # result: the sum of each program over its rows of grad_z, (programs, 2 H)
    n,  # number of rows
    H: tl.constexpr,  # numbers in a row of y
    PAD: tl.constexpr,  # numbers in a row of y with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write the gradients of a and b in y = gelu(a) b, and their sums over the rows.

        gelu(a) = a Phi(a)
        da = grad b (Phi(a) + a phi(a))
        db = grad a Phi(a)

    Phi is the distribution function of the normal distribution, and phi is its density. The sum of
    program_sums over the programs is the gradient of the two biases.
    """
    channel = tl.arange(0, PAD)
    is_channel = channel < H
    sum_a = tl.zeros((ROWS, PAD), tl.float32)
    sum_b = tl.zeros((ROWS, PAD), tl.float32)
    # The first row of each tile of this program: tile p, then each P-th tile, of P programs. E.g. 3
    # programs and tiles of 8 rows: program 1 begins at the rows 8, 32, 56, ...
    for start in range(tl.program_id(0) * ROWS, n, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        is_inside = (row < n)[:, None] & is_channel[None, :]
        # Rows of z and grad_z have 2 H numbers, rows of grad have H numbers.
        index = row[:, None].to(tl.int64) * (2 * H) + channel[None, :]
        index_grad = row[:, None].to(tl.int64) * H + channel[None, :]
        a = tl.load(z + index, mask=is_inside, other=0.0).to(tl.float32)
        b = tl.load(z + index + H, mask=is_inside, other=0.0).to(tl.float32)
        g = tl.load(grad + index_grad, mask=is_inside, other=0.0).to(tl.float32)
        Phi = 0.5 * (1 + tl.erf(a * INVERSE_ROOT_2))
        phi = INVERSE_ROOT_2_PI * tl.exp(-0.5 * a * a)
        of_a = g * b * (Phi + a * phi)
        of_b = g * a * Phi
        sum_a += of_a
        sum_b += of_b
        tl.store(grad_z + index, of_a.to(grad_z.dtype.element_ty), mask=is_inside)
        tl.store(grad_z + index + H, of_b.to(grad_z.dtype.element_ty), mask=is_inside)
    # Add the ROWS rows of the sums. Entry p of program_sums has 2 H numbers: of da, then of db.
    sums_of_program = program_sums + tl.program_id(0) * (2 * H) + channel
    tl.store(sums_of_program, tl.sum(sum_a, 0), mask=is_channel)
    tl.store(sums_of_program + H, tl.sum(sum_b, 0), mask=is_channel)


class _GatedLinear(torch.autograd.Function):
    """Both linear layers and the product of the gated MLP. `geglu` calls it.

    Forward keeps x and z for backward, so backward computes no linear layer again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> Tensor:
        """Return gelu(a) b of rows x (n, C): (n, H). w11, w12: (H, C). b11, b12: (H,)."""
        weight = torch.cat((w11, w12))  # (2 H, C)
        bias = torch.cat((b11, b12))  # (2 H,)
        z = F.linear(x, weight, bias)  # (n, 2 H): a, then b
        n = len(x)
        hidden = len(w11)  # H
        y = x.new_empty(n, hidden)
        shape = tile(hidden)
        tiles = math.ceil(n / shape["ROWS"])  # each tile is a program
        _geglu_forward[(tiles,)](z, y, n, H=hidden, **shape)
        ctx.save_for_backward(x, weight, z)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of x, w11, b11, w12 and b12. grad: the gradient of y, (n, H)."""
        x, weight, z = ctx.saved_tensors
        n, hidden = grad.shape
        grad = grad.contiguous()
        grad_z = torch.empty_like(z)
        # Half the tile of the forward pass, because backward holds more values at a time.
        shape = tile(hidden, ELEMENTS // 2)
        tiles = math.ceil(n / shape["ROWS"])
        programs = min(PROGRAMS, tiles)
        program_sums = z.new_empty(programs, 2 * hidden, dtype=torch.float32)
        _geglu_backward[(programs,)](z, grad, grad_z, program_sums, n, H=hidden, **shape)
        # z = x weight^T + bias, so with G = grad_z:
        #     gradient of weight  G^T x
        #     gradient of bias    the sum of G over the rows
        #     gradient of x       G weight
        grad_weight = grad_z.t() @ x  # (2 H, C)
        grad_bias = program_sums.sum(0).to(weight.dtype)  # (2 H,)
        grad_w11, grad_w12 = grad_weight.chunk(2)
        grad_b11, grad_b12 = grad_bias.chunk(2)
        grad_x = grad_z @ weight
        return grad_x, grad_w11, grad_b11, grad_w12, grad_b12


def geglu(x: Tensor, w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> Tensor:
    """Return gelu(x w11^T + b11) * (x w12^T + b12) of rows (n, C): (n, H).

    Both products are one matrix product, and the rest is one pass over its result.
    """
    return _GatedLinear.apply(x, w11, b11, w12, b12)

"""The gated unit GEGLU on an NVIDIA GPU, in Triton, with gradients.

    y = gelu(a) * b,     a = x w11^T + b11,     b = x w12^T + b12,     gelu(a) = a * Phi(a)

Phi is the distribution function of the normal distribution. torch computes a and b as one matrix
product, z (n, 2 H): a row of z holds the H numbers of a, then the H numbers of b. The kernels begin
with z. gated_mlp.geglu calls `geglu`, which gives no gradients of gradients.

A kernel runs many times at once, and each run is called a program. A program works on a tile: ROWS
rows, each padded from HIDDEN (H) to PADDED numbers, because Triton needs powers of two. E.g. for
H = 192 PADDED is 256. A tile has 4096 numbers, so ROWS is 4096 / 256 = 16 (`tile`), and program 1
computes the rows 16 ... 31.

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
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.row_kernels.tiles import ELEMENTS, backward_programs, jit, tile, tl

# Constants of the normal distribution in GELU. A kernel can read a global constant only if it is a
# tl.constexpr.
INVERSE_ROOT_2 = tl.constexpr(0.7071067811865476)  # 1 / sqrt(2)
INVERSE_ROOT_2_PI = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)


# do_not_specialize: by default Triton compiles a kernel again for an argument that is 1 or
# divisible by 16. row_count changes with the size of the frames.
@jit(do_not_specialize=["row_count"])
def _geglu_forward(
    z,  # input (rows, 2 H): a and b of each row
    y,  # result (rows, H)
    row_count,
    HIDDEN: tl.constexpr,  # H, the numbers in a row of y
    PADDED: tl.constexpr,  # numbers in a row of y with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write y = gelu(a) * b for one tile, with gelu(a) = a / 2 * (1 + erf(a / sqrt(2))).

    Each program computes one tile. E.g. H = 192, 100 rows, ROWS = 16: 7 programs. Program 1
    computes the rows 16 ... 31. Program 6 has the rows 96 ... 111, of which 100 ... 111 do not
    exist: they are neither read nor written.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    channel = tl.arange(0, PADDED)  # (PADDED,)
    # (ROWS, PADDED): false for padding and for rows beyond the last one.
    is_inside = (row < row_count)[:, None] & (channel < HIDDEN)[None, :]
    # The positions of the tile's numbers, (ROWS, PADDED). A row of z has the H numbers of a, then
    # the H numbers of b. E.g. H = 192, channel 5 of row 33: a is number 33 * 384 + 5 = 12,677 of z,
    # b is number 12,677 + 192 of z, and y is number 33 * 192 + 5 = 6341 of y.
    index_a = row[:, None].to(tl.int64) * (2 * HIDDEN) + channel[None, :]
    index_b = index_a + HIDDEN
    index_y = row[:, None].to(tl.int64) * HIDDEN + channel[None, :]

    a = tl.load(z + index_a, mask=is_inside, other=0.0).to(tl.float32)
    b = tl.load(z + index_b, mask=is_inside, other=0.0).to(tl.float32)
    result = 0.5 * a * (1 + tl.erf(a * INVERSE_ROOT_2)) * b
    tl.store(y + index_y, result.to(y.dtype.element_ty), mask=is_inside)


@jit(do_not_specialize=["row_count"])
def _geglu_backward(
    z,  # input (rows, 2 H): a and b of each row
    grad,  # input (rows, H): the gradient of y
    grad_z,  # result (rows, 2 H): da and db of each row
    program_sums,  # result (programs, 2 H): for each program, the sum of its rows of grad_z
    row_count,
    HIDDEN: tl.constexpr,  # H, the numbers in a row of y
    PADDED: tl.constexpr,  # numbers in a row of y with padding, a power of two
    ROWS: tl.constexpr,  # rows of a tile
):
    """Write da and db, the gradients of a and b, and their sums over the rows.

        y  = gelu(a) * b = a * Phi(a) * b
        da = grad * b * (Phi(a) + a * phi(a))
        db = grad * a * Phi(a)

    Phi is the distribution function of the normal distribution, and phi its derivative, the
    density. The sum of program_sums over the programs is the gradient of the two biases.

    A program computes several tiles, one after the other, so that program_sums stays small.
    """
    channel = tl.arange(0, PADDED)  # (PADDED,)
    is_channel = channel < HIDDEN  # false for padding
    # The sums over the tiles of this program, still one for each of the ROWS rows.
    sum_a = tl.zeros((ROWS, PADDED), tl.float32)
    sum_b = tl.zeros((ROWS, PADDED), tl.float32)
    # Program p of P takes the tiles p, p + P, p + 2 P, ... E.g. 3 programs, tiles of 8 rows: the
    # tiles of program 1 begin at the rows 8, 8 + 24 = 32, 56, ...
    first_row = tl.program_id(0) * ROWS
    rows_to_next_tile = tl.num_programs(0) * ROWS
    for start in range(first_row, row_count, rows_to_next_tile):
        row = start + tl.arange(0, ROWS)
        is_inside = (row < row_count)[:, None] & is_channel[None, :]
        # The same positions as in forward. grad_z has the order of z, and grad has the order of y.
        # Padding and rows beyond the last one are loaded as 0, so their da and db are 0, and add
        # nothing to the sums.
        index_a = row[:, None].to(tl.int64) * (2 * HIDDEN) + channel[None, :]
        index_b = index_a + HIDDEN
        index_y = row[:, None].to(tl.int64) * HIDDEN + channel[None, :]

        a = tl.load(z + index_a, mask=is_inside, other=0.0).to(tl.float32)
        b = tl.load(z + index_b, mask=is_inside, other=0.0).to(tl.float32)
        grad_y = tl.load(grad + index_y, mask=is_inside, other=0.0).to(tl.float32)
        Phi = 0.5 * (1 + tl.erf(a * INVERSE_ROOT_2))
        phi = INVERSE_ROOT_2_PI * tl.exp(-0.5 * a * a)
        grad_a = grad_y * b * (Phi + a * phi)
        grad_b = grad_y * a * Phi
        sum_a += grad_a
        sum_b += grad_b
        tl.store(grad_z + index_a, grad_a.to(grad_z.dtype.element_ty), mask=is_inside)
        tl.store(grad_z + index_b, grad_b.to(grad_z.dtype.element_ty), mask=is_inside)
    # Add up the ROWS rows of the sums. Program p writes them to row p of program_sums
    # (programs, 2 H): first the H sums of da, then the H sums of db.
    sums_of_program = program_sums + tl.program_id(0) * (2 * HIDDEN) + channel
    tl.store(sums_of_program, tl.sum(sum_a, 0), mask=is_channel)
    tl.store(sums_of_program + HIDDEN, tl.sum(sum_b, 0), mask=is_channel)


class _GatedLinear(torch.autograd.Function):
    """Both linear layers and the product of the gated MLP. `geglu` calls it.

    Forward keeps x and z for backward, so backward computes no linear layer again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> Tensor:
        """Return gelu(a) * b of rows x (n, C): (n, H). w11, w12: (H, C). b11, b12: (H,)."""
        weight = torch.cat((w11, w12))  # (2 H, C)
        bias = torch.cat((b11, b12))  # (2 H,)
        z = F.linear(x, weight, bias)  # (n, 2 H): a, then b
        n = len(x)
        hidden = len(w11)  # H
        y = x.new_empty(n, hidden)
        shape = tile(hidden)
        tiles = math.ceil(n / shape["ROWS"])  # each tile is a program
        _geglu_forward[(tiles,)](z, y, n, HIDDEN=hidden, **shape)
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
        # Tiles of half the size, because backward holds more values at a time.
        shape = tile(hidden, ELEMENTS // 2)
        tiles = math.ceil(n / shape["ROWS"])
        programs = backward_programs(tiles)
        program_sums = z.new_empty(programs, 2 * hidden, dtype=torch.float32)
        _geglu_backward[(programs,)](z, grad, grad_z, program_sums, n, HIDDEN=hidden, **shape)
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

    torch computes both products as one matrix product. One kernel then computes the rest in a
    single pass over this product.
    """
    return _GatedLinear.apply(x, w11, b11, w12, b12)

"""Start the attention kernels: how many programs of a kernel, and which memory they fill.

    launch_forward           O, the output, and L, the log-sum-exp of each query
    launch_one_pass          backward for windows of up to 128 tokens: one kernel
    launch_several_passes    backward for larger windows: two or three kernels

A program is one instance of a kernel. A program computes one tile, i.e. a part of the T x T matrix,
of one head, in a group of successive windows. Usually a group has one window, so that as many
programs as possible run. Only the programs that sum dS, the gradient of the logits, go through
several windows: each group writes one (T, T) sum per head, and with fewer groups there are fewer
sums to write.

E.g. 576 windows of 6 x 8 x 8 = 384 tokens, 120 channels in 6 heads:

    kernel                 tile: queries x keys    programs
    forward_kernel         128 x 64                6 heads *  3 tiles * 576 windows = 10,368
    gradient_of_queries     64 x 64                6 heads *  6 tiles * 576 windows = 20,736
    gradients_of_keys       64 x 64                6 heads *  6 tiles * 576 windows = 20,736
    gradient_of_bias        64 x 64                6 heads * 36 tiles *   3 groups  =    648

Letters:

    n        number of windows. In mutual attention each of the two frames of a window counts as a
             window here
    T        tokens in a window
    O, dO    output of the attention, and its gradient
    L        log-sum-exp of each query
    delta    sum of dO * O over the channels, for each query

The kernels compute 2^x in place of e^x, so the bias and the scale get the factor log2(e).

What must stay: the number of programs of each launch. A kernel computes head, tile and windows from
the number of the program (parts.py), and checks nothing. With fewer programs, a part of the result
stays unwritten. With more programs, the kernels that sum dS write beyond the end of their memory.
tests/parts/models/test_triton.py notices an unwritten result.

What must also stay: the number of windows in a group that sums dS, because it decides the order of
the sum, and so the last bits of the gradient of the bias. No test notices another order.

Free to change: the order of the launches, but gradient_of_queries must stay first. It writes delta,
which the other two kernels read.
"""

import math
from typing import Any, NamedTuple

from torch import Tensor

from models.vrt.attention.kernels.all_gradients import all_gradients
from models.vrt.attention.kernels.forward import forward_kernel
from models.vrt.attention.kernels.parts import LOG2_E
from models.vrt.attention.kernels.several_passes import (
    gradient_of_bias,
    gradient_of_queries,
    gradients_of_keys,
)
from models.vrt.attention.kernels.tiles import backward_tile, forward_tile


def kernel_constants(
    qkv: Tensor, mutual: bool, has_bias: bool, has_mask: bool
) -> dict[str, int | bool]:
    """Return the constants that Triton compiles into all kernels, by their names in the kernels.

    parts.py explains the names.

    qkv: (windows, tokens, 3, heads, channels).
    mutual: whether the two frames of a window attend to each other.
    """
    _, tokens, _, heads, channels = qkv.shape
    next_power_of_two = 1 << (channels - 1).bit_length()  # e.g. 20 channels -> 32
    return {
        "TOKENS": tokens // 2 if mutual else tokens,
        "HEADS": heads,
        "CHANNELS": channels,
        # Channels of a head with padding: tl.dot, the matrix product, needs at least 16, and
        # Triton's arrays need a power of two. The kernels load the padding as 0.
        "PADDED": max(16, next_power_of_two),
        "MUTUAL": mutual,
        "HAS_BIAS": has_bias,
        "HAS_MASK": has_mask,
    }


# ---- Forward ---------------------------------------------------------------------------------


def launch_forward(
    qkv: Tensor,
    bias: Tensor | None,
    region_row: Tensor | None,
    regions: Tensor | None,
    out: Tensor,
    log_sums: Tensor,
    scale: float,
    constants: dict[str, Any],
) -> None:
    """Fill `out` with the output O, and `log_sums` with the log-sum-exp L of each query.

    qkv: (n, T, 3, heads, channels) in memory, contiguous.
    bias: (heads, queries, keys), times log2(e) because the kernels compute 2^x, or None.
    region_row: (n,), for each window its row in `regions`. None without masks.
    regions: (rows, T), for each token the number of its region. Only tokens of the same region
        attend to each other. None without masks.
    out: (n, T, heads, channels) in memory.
    log_sums: (n, heads, T).
    scale: factor of q k^T in the logits.
    constants: result of `kernel_constants`.
    """
    n, heads, t = log_sums.shape
    tile = forward_tile(t)
    # One program for each window, head and tile of queries. E.g. 1000 windows, 6 heads, 128 tokens
    # in 2 tiles of 64 queries: 12,000 programs. T is a multiple of both sides of a tile (tiles.py),
    # so no remainder is lost.
    programs = n * heads * (t // tile.queries)
    # `kernel[(programs,)](...)` is Triton's syntax to start this number of programs.
    forward_kernel[(programs,)](
        qkv=qkv,
        bias=bias,
        region_row=region_row,
        regions=regions,
        out=out,
        log_sums=log_sums,
        window_count=n,
        group_size=1,  # a program computes one window
        exp2_scale=scale * LOG2_E.value,  # .value: the number of a constant of Triton
        **constants,
        QUERIES=tile.queries,
        KEYS=tile.keys,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


# ---- Backward --------------------------------------------------------------------------------


class BackwardPass(NamedTuple):
    """The tensors of one backward pass, and `launch`, which starts a kernel on them."""

    # Queries, keys and values: (n, T, 3, heads, channels) in memory. Index 0 of the 3 is the query,
    # 1 the key and 2 the value.
    qkv: Tensor
    # The masks, as regions.mask_table makes them. Only tokens of the same region attend to each
    # other. Windows with the same mask share a row of `regions`. Both are None without masks.
    region_row: Tensor | None  # (n,): for each window, its row in `regions`
    regions: Tensor | None  # (rows, T): for each token, the number of its region
    out: Tensor  # O: (n, T, heads, channels) in memory
    # dO, the gradient of O, in the same order. It need not be contiguous: a row, i.e. the channels
    # of all heads of one token, begins `grad.stride(1)` numbers after the row before it.
    grad: Tensor
    log_sums: Tensor  # L, (n, heads, T)
    # Memory for the sum of dO * O over the channels, for each query: (n, heads, T). None for
    # `all_gradients`, which computes these sums where it needs them.
    delta: Tensor | None
    grad_qkv: Tensor  # memory for the result, in the order of qkv
    scale: float  # factor of q k^T in the logits
    constants: dict[str, Any]  # result of `kernel_constants`

    def launch(
        self,
        kernel: Any,
        bias: Tensor | None,
        tiles: int,
        group_size: int = 1,
        grad_bias: Tensor | None = None,
    ) -> None:
        """Start one backward kernel: a program for each head, tile and group of windows.

        All backward kernels take the same arguments, and ignore what they do not need.

        bias: the bias times log2(e), or None. (heads, queries, keys) for `gradient_of_queries`.
            (heads, keys, queries) for the other kernels, because they compute transposed logits.
        tiles: number of tiles of a head in one window. It must fit the kernel: T / QUERIES for
            `gradient_of_queries`, T / KEYS for `gradients_of_keys`, the product of both for
            `gradient_of_bias`, and 1 for `all_gradients`.
        group_size: number of successive windows that a program goes through.
        grad_bias: memory for the sums of dS, one for each group, (groups, heads, keys, queries).
            None for a kernel that does not sum dS.
        """
        n, heads, t = self.log_sums.shape
        groups = math.ceil(n / group_size)
        programs = heads * tiles * groups  # e.g. 6 heads * 6 tiles * 1000 groups = 36000
        tile = backward_tile(t)
        kernel[(programs,)](
            qkv=self.qkv,
            bias=bias,
            region_row=self.region_row,
            regions=self.regions,
            out=self.out,
            grad=self.grad,
            grad_stride=self.grad.stride(1),
            log_sums=self.log_sums,
            delta=self.delta,
            grad_qkv=self.grad_qkv,
            grad_bias=grad_bias,
            window_count=n,
            group_size=group_size,
            exp2_scale=self.scale * LOG2_E.value,  # the kernels compute exp2 instead of exp
            scale=self.scale,
            **self.constants,
            QUERIES=tile.queries,
            KEYS=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


def launch_one_pass(backward_pass: BackwardPass, transposed_bias: Tensor | None) -> Tensor | None:
    """Fill grad_qkv for windows of up to 128 tokens, by one launch. dS: gradient of the logits.

    transposed_bias: the bias times log2(e), (heads, keys, queries), or None.

    Returns the sums of dS, one for each group of windows, (groups, heads, keys, queries). Returns
    None without a bias.
    """
    group_size = 1
    sums = None
    if transposed_bias is not None:
        group_size = _group_size(backward_pass.log_sums, tiles=1)
        sums = _memory_for_sums(backward_pass.log_sums, group_size)
    backward_pass.launch(
        all_gradients, transposed_bias, tiles=1, group_size=group_size, grad_bias=sums
    )
    return sums


def launch_several_passes(
    backward_pass: BackwardPass, bias: Tensor | None, transposed_bias: Tensor | None
) -> Tensor | None:
    """Fill grad_qkv for windows of more than 128 tokens, by two launches, or three with a bias.

    dS is the gradient of the logits. Its sum over the windows is the gradient of the bias.

    bias: the bias times log2(e), (heads, queries, keys), or None.
    transposed_bias: the same numbers, (heads, keys, queries), or None.

    Returns the sums of dS, (groups, heads, keys, queries), or None without a bias.
    """
    t = backward_pass.log_sums.shape[2]
    tile = backward_tile(t)
    # No remainder is lost: `takes_windows` (tiles.py) accepts only multiples of 64 tokens, and a
    # tile for more than 128 tokens has 64 queries and 64 keys.
    tiles_of_queries = t // tile.queries
    tiles_of_keys = t // tile.keys
    # `gradient_of_queries` comes first, because it writes delta, which the other two kernels read.
    backward_pass.launch(gradient_of_queries, bias, tiles=tiles_of_queries)
    backward_pass.launch(gradients_of_keys, transposed_bias, tiles=tiles_of_keys)
    if transposed_bias is None:
        return None

    tiles = tiles_of_queries * tiles_of_keys
    group_size = _group_size(backward_pass.log_sums, tiles)
    sums = _memory_for_sums(backward_pass.log_sums, group_size)
    backward_pass.launch(
        gradient_of_bias, transposed_bias, tiles=tiles, group_size=group_size, grad_bias=sums
    )
    return sums


# ---- Sums over windows -----------------------------------------------------------------------

# About how many programs sum dS, the gradient of the logits, in a launch: 4 for each of the 132
# multiprocessors of an H100. With fewer programs, some multiprocessors would idle. With more
# programs, more sums would be written, one (T, T) matrix per group and head.
PROGRAMS = 528


def _group_size(log_sums: Tensor, tiles: int) -> int:
    """Return how many windows a program that sums dS goes through, so that about PROGRAMS run.

    E.g. for 6 heads:

        windows    tiles    programs per head and tile         windows per program
        1000       1        528 / 6 = 88                       1000 / 88, rounded up = 12
        576        36       528 / (36 * 6), rounded up = 3     576 / 3 = 192

    log_sums: (n, heads, T).
    tiles: number of tiles of a head in one window.
    """
    n, heads, _ = log_sums.shape
    programs_of_tile = math.ceil(PROGRAMS / (tiles * heads))  # for each tile of each head
    return math.ceil(n / programs_of_tile)


def _memory_for_sums(log_sums: Tensor, group_size: int) -> Tensor:
    """Return memory for the sum of dS of each group: (groups, heads, T, T), float32."""
    n, heads, t = log_sums.shape
    groups = math.ceil(n / group_size)
    return log_sums.new_empty(groups, heads, t, t)  # in the dtype of log_sums, float32

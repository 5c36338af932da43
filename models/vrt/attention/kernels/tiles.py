"""Say which windows the attention kernels take, and how large their tiles are.

A kernel computes the T x T matrix of a window (T tokens) in parts, the tiles. E.g. T = 384, and
tiles of 128 queries x 64 keys: 3 x 6 tiles. With larger tiles a kernel reads memory less often, but
a tile must fit into the registers of a program (one instance of a kernel).

What must stay:

    T is a multiple of both sides of a tile. If it is not, the kernels give wrong numbers without an
    error. tests/parts/models/test_triton.py notices.

    The sizes of the tiles, and their warps. Other sizes change the order of sums, and so the last
    bits of a training. Existing runs would not resume exactly. No test notices this.

To take larger windows or heads, raise a limit, and add a case of this size to SHAPES in
tests/helpers/triton_errors.py. Free to change: stages, which decide only the speed.
"""

from typing import NamedTuple

# The largest windows and heads that the kernels take. The published networks have windows of up to
# 8 x 8 x 8 = 512 tokens, and heads of up to 30 channels. The kernels were not tried with larger
# windows or heads, so torch's attention computes these.
MOST_TOKENS = 512  # tokens in a window
MOST_CHANNELS_OF_HEAD = 32


def takes_windows(tokens: int, channels: int) -> bool:
    """Say whether the kernels compute windows of this many tokens with heads of these channels.

    forms.attention_has_kernel asks this before each call of the kernels.

    tokens: T, the number of tokens that attend to each other.
    channels: channels of a head.
    """
    fits_tiles = tokens % 64 == 0  # the smallest tile has 64 queries and 64 keys
    return fits_tiles and tokens <= MOST_TOKENS and channels <= MOST_CHANNELS_OF_HEAD


class Tile(NamedTuple):
    """The part of a T x T matrix that a program of a kernel computes at a time."""

    queries: int  # rows of the tile, QUERIES in the kernels
    keys: int  # columns of the tile, KEYS in the kernels
    warps: int  # groups of 32 threads in a program
    # How many rounds of the loop over tiles overlap. With 2, a program loads the tile of the next
    # round while it computes this round.
    stages: int


def forward_tile(tokens: int) -> Tile:
    """Return the tile of the forward kernel, the fastest tile that was measured on an H200.

    tokens: T, a multiple of 64 (`takes_windows`).
    """
    if tokens == 128:
        return Tile(queries=64, keys=128, warps=4, stages=2)
    if tokens % 128 == 0:
        return Tile(queries=128, keys=64, warps=4, stages=2)
    return Tile(queries=64, keys=64, warps=4, stages=2)


# Largest T for which a single kernel, all_gradients, computes the backward pass. With more tokens
# its sums would not fit into the registers.
MOST_TOKENS_OF_ONE_PASS = 128


def backward_tile(tokens: int) -> Tile:
    """Return the tile of the backward kernels.

    `all_gradients`, the kernel for 64 or 128 tokens, needs all keys of a window in a tile. So
    `keys` is T for 64 and for 128 tokens. `all_gradients` asserts this when it is compiled.

    tokens: T, a multiple of 64 (`takes_windows`).
    """
    if tokens == 128:
        return Tile(queries=64, keys=128, warps=8, stages=2)
    return Tile(queries=64, keys=64, warps=4, stages=2)

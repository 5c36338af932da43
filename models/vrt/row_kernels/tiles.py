"""The size of a tile and the number of programs, for the Triton kernels over rows of channels.

A row is the channels of one token. torch's LayerNorm gives one row to a block of threads, which is
slow for short rows, e.g. of 96 channels. Here a program (one instance of a kernel) computes a tile:
all channels of several rows, padded to a power of two.

Forward has one program per tile. In backward, program p of P takes the tiles p, p + P, p + 2 P, and
so on, and sums the gradients of weights over them. Then the sums of the programs are added in a
fixed order, so that a step always gives the same numbers.

What must stay: the numbers here, because they decide the order of the sums, and so the last bits of
a training. No test notices this. tests/parts/models/test_triton.py compares the results with
float64, but it runs the kernels in Triton's interpreter, which sums in an order of its own.
"""

from typing import Any

import triton
import triton.language

# Kernels are in Triton's own language, which only looks like Python. Any keeps the type checker
# from checking them.
tl: Any = triton.language
jit: Any = triton.jit
# Numbers in a tile. A larger tile would not fit into the registers of a program, and smaller tiles
# would need more programs. Another number changes the last bits of the gradients of weights and
# biases.
ELEMENTS = 4096


def tile(channels: int, elements: int = ELEMENTS) -> dict[str, int]:
    """Return the size of a tile as the constants of a kernel.

    Triton needs powers of two. E.g. 96 channels, 4096 numbers -> {"ROWS": 32, "PADDED": 128}.

    channels: numbers in a row.
    elements: numbers in the tile, padding included.
    """
    padded = 1 << (channels - 1).bit_length()  # the next power of two
    rows = max(1, elements // padded)  # at least one row, even if it is longer than the tile
    return {"ROWS": rows, "PADDED": padded}


# Largest number of programs of a backward pass: 4 for each of the 132 multiprocessors of an H100.
# With fewer programs, some multiprocessors would idle. With more programs, more sums would be
# written. Another number changes the last bits of the gradients of weights and biases.
# The attention has a number of its own (attention/kernels/launches.py). The two numbers need not be
# equal.
PROGRAMS = 528


def backward_programs(tiles: int) -> int:
    """Return the number of programs of a backward pass: no more than tiles."""
    return min(PROGRAMS, tiles)

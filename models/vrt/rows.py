"""Read rows of a tensor, and write rows into a tensor.

What must stay: `take` gives the gradient of x[rows] if no row is named twice.
tests/parts/models/test_block.py compares gradients. Free to change: everything else.
"""

from typing import Any

import torch
from torch import Tensor


def take(x: Tensor, rows: Tensor | slice | None) -> Tensor:
    """Return x[rows], or x itself if `rows` is None.

    torch's own gradient of x[rows] is slow, because it allows for rows that are named twice and
    adds up their gradients. The gradient here only copies rows. Copying is many times faster.

    So if a gradient is needed, `rows` must name each row at most once. The fields `results` and
    `kept` of a chunk name each row once. The field `rows` of a chunk names row 0 at each padding,
    too. So chunks.py passes `Chunk.rows` only where no gradient is needed.
    """
    if rows is None:
        return x
    if isinstance(rows, slice):
        return x[rows]
    return _Take.apply(x, rows)


class _Take(torch.autograd.Function):
    """x[rows], with a gradient that copies rows. `take` calls it."""

    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor) -> Tensor:
        """Return x[rows]. rows: int64, without a number that occurs twice."""
        ctx.save_for_backward(rows)
        ctx.shape = x.shape
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        """Return the gradient of x, which is 0 at all rows that were not read."""
        (grad,) = grads  # forward has one result
        (rows,) = ctx.saved_tensors
        grad_x = grad.new_zeros(ctx.shape).index_copy_(0, rows, grad)
        return grad_x, None


def put(out: Tensor, rows: slice | Tensor, values: Any) -> None:
    """Write values (n, C) to the n `rows` of out, in place. No row may be named twice."""
    if isinstance(rows, slice):
        out[rows] = values
    else:
        out.index_copy_(0, rows, values)

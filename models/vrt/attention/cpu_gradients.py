"""The gradients of our own attention for CPUs, for the windows of one round.

With the weights P = softmax(logits), the output O = P v, and its gradient dO:

    gradient of v         dv = P^T dO
    gradient of logits    dS = P * (dO v^T - sum(dO * O))     the sum is over the channels
    gradient of q         dq = scale dS k
    gradient of k         dk = scale dS^T q

A * B is the product number by number, and A B the matrix product. P is computed again:

    P = 2^(scale log2(e) q k^T + offset - log-sum-exp)

The offset is bias and mask times log2(e), and the log-sum-exp comes from the forward pass.

From each row of a T x T matrix a number is subtracted: the log-sum-exp from the logits, and
sum(dO * O) from dO v^T. `append_two_channels` widens q, k, v and dO, so that the matrix products
subtract these numbers. A separate subtraction would be one more pass over the matrix.

Letters: n windows, T tokens in a window, hd channels of a head.

What must stay: the gradients, which tests/parts/models/test_block.py compares. The order of the
operations must stay, too, because another order changes the last bits of a training. No test
notices another order.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from models.vrt.attention.cpu_forward import LOG2_E, logits

# ---- Two additional channels ------------------------------------------------------------------


class WideTensors(NamedTuple):
    """q, k, v and dO with two additional channels each, (n, heads, T, hd + 2).

    With these channels the matrix products are

        q k^T  - log-sum-exp / (scale log2(e))     instead of q k^T
        dO v^T - sum(dO * O)                       instead of dO v^T

    E.g. hd = 2, bfloat16, and 5.03 is to be subtracted from 6.5, the product of these two rows:

        row of q    0.5    2.0    -5.03125    0.00125    -5.03 as two numbers (`_with_column`)
        row of k    1.0    3.0     1          1
        products    0.5  + 6.0   - 5.03125  + 0.00125  = 6.5 - 5.03 = 1.47
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor  # dO

    def windows(self, some: slice) -> "WideTensors":
        """Return some of the windows, each tensor as (windows * heads, T, hd + 2).

        The axis of windows and the axis of heads become one axis, because torch.bmm takes tensors
        with three axes.
        """
        parts = [part[some].reshape(-1, *part.shape[2:]) for part in self]
        return WideTensors(*parts)


def append_two_channels(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, out: Tensor, log_sums: Tensor, scale: float
) -> WideTensors:
    """Append two channels to each tensor, so that the products of `WideTensors` come out.

    q and dO get the number to subtract, with a minus, as two channels that add up to it. k and v
    get two channels of ones.

    q, k, v: (n, heads, T, hd).
    grad: dO, the same shape.
    out: O, the same shape.
    log_sums: the log-sum-exp of each row, (n, heads, T, 1).
    scale: factor of q k^T in the logits.
    """
    n, heads, t, _ = q.shape
    # `gradients_of_round` multiplies the product by scale * LOG2_E, so divide by this factor here.
    minus_log_sums = log_sums / (-scale * LOG2_E)  # (n, heads, T, 1)
    minus_products = -(grad.to(log_sums.dtype) * out).sum(3, keepdim=True)  # (n, heads, T, 1)
    ones = q.new_ones(()).expand(n, heads, t, 2)
    return WideTensors(
        q=_with_column(q, minus_log_sums),
        k=torch.cat((k, ones), dim=3),
        v=torch.cat((v, ones), dim=3),
        grad=_with_column(grad, minus_products),
    )


def _with_column(x: Tensor, column: Tensor) -> Tensor:
    """Append a number to each row of x (n, heads, T, hd), as two channels that add up to it.

    The first channel is the number, rounded to the dtype of x. The second channel is what the
    rounding has lost. E.g. bfloat16 has 8 significant bits, so 5.03 becomes 5.03125 and -0.00125.
    With the first channel alone the weights P would be wrong by up to 2 %, because the number is an
    exponent of P.

    column: the numbers, (n, heads, T, 1), float32 or float64.
    """
    rounded = column.to(x.dtype)
    lost = (column - rounded).to(x.dtype)
    return torch.cat((x, rounded, lost), dim=3)


# ---- Gradients of a round ---------------------------------------------------------------------


class RoundGradients(NamedTuple):
    """Gradients for the windows of one round."""

    q: Tensor  # (windows * heads, T, hd)
    k: Tensor  # (windows * heads, T, hd)
    v: Tensor  # (windows * heads, T, hd)
    # dS, (windows * heads, T, T). Use it before the next round, which overwrites this memory.
    logits: Tensor


def gradients_of_round(
    wide: WideTensors, offset: Tensor | None, scale: float, p_memory: Tensor, ds_memory: Tensor
) -> RoundGradients:
    """Compute the gradients of q, k, v and the logits, for the windows of one round.

    Each comment below has the equation of the next lines.

    wide: the result of `WideTensors.windows`, each tensor (windows * heads, T, hd + 2).
    offset: bias and mask, (windows * heads or more, T, T), times log2(e), or None.
    p_memory, ds_memory: memory for P and dS, (windows * heads, T, T), which is overwritten.
    """
    hd = wide.q.shape[2] - 2  # channels of a head, without the two additional channels

    # P = 2^(scale log2(e) q k^T + offset - log-sum-exp), (windows * heads, T, T). The two
    # additional channels subtract the log-sum-exp.
    p = logits(wide.q, wide.k, offset, scale * LOG2_E, out=p_memory).exp2_()

    # dv = P^T dO = (dO^T P)^T. Transposing the thin matrix dO costs less than transposing P. Here
    # the product is still transposed, (windows * heads, hd, T).
    grad_transposed = wide.grad[..., :hd].transpose(1, 2).contiguous()
    grad_v_transposed = torch.bmm(grad_transposed, p)

    # dS = P * (dO v^T - sum(dO * O)), (windows * heads, T, T). The two additional channels subtract
    # the sum. The product with P is in place.
    grad_logits = torch.bmm(wide.grad, wide.v.transpose(1, 2), out=ds_memory).mul_(p)

    # dk = scale dS^T q = scale (q^T dS)^T. Again only the thin matrix is transposed.
    q_transposed = wide.q[..., :hd].transpose(1, 2).contiguous()
    grad_k_transposed = torch.bmm(q_transposed, grad_logits).mul_(scale)

    # dq = scale dS k, (windows * heads, T, hd).
    grad_q = torch.bmm(grad_logits, wide.k[..., :hd]).mul_(scale)
    return RoundGradients(
        q=grad_q,
        k=grad_k_transposed.transpose(1, 2),
        v=grad_v_transposed.transpose(1, 2),
        logits=grad_logits,
    )

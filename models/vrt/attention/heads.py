"""Queries, keys and values of the heads of a window, and what is added to their logits.

The linear layer of a block writes q, k and v into one tensor, "packed heads": (n, T, 3, heads, hd)
with n windows, T tokens in a window, and hd channels of a head. Attention computes

    softmax(scale q k^T + bias + mask) v,     logits = scale q k^T + bias + mask

In mutual attention the two frames of a window attend to each other: the queries of each frame meet
the keys and values of the other frame.

What must stay: the results, which tests/parts/models/test_block.py and test_vrt_modules.py compare.
`heads_of` must return views, because CpuAttention.backward writes to them. Free to change: how the
axes are moved.
"""

import torch
from torch import Tensor


def heads_of(qkv: Tensor, mutual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Unpack q, k, v from packed heads (n, T, 3, heads, hd). Each is (n, heads, T, hd).

    The results are views of qkv. CpuAttention.backward passes empty memory as qkv, and fills it by
    writing the gradients to q, k and v.

    With `mutual`, each of the two frames becomes a window, so the results are
    (2 n, heads, T / 2, hd). In this case q is a copy, because the queries of the two frames are
    swapped.
    """
    if not mutual:
        heads_first = qkv.transpose(1, 3)  # (n, heads, 3, T, hd)
        q, k, v = heads_first.unbind(2)
        return q, k, v
    by_frame = qkv.unflatten(1, (2, -1))  # (n, 2, T / 2, 3, heads, hd)
    heads_first = by_frame.transpose(2, 4)  # (n, 2, heads, 3, T / 2, hd)
    q, k, v = heads_first.unbind(3)  # (n, 2, heads, T / 2, hd) each
    q_of_other_frame = q.flip(1)  # swaps the two frames
    return q_of_other_frame.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def put_gradients_of_swapped_queries(grad_q: Tensor, grad_qkv: Tensor) -> None:
    """Write the gradients of the queries of mutual attention into grad_qkv, in place.

    `heads_of` has swapped the queries of the two frames, so their gradients are swapped back here.

    grad_q: (2 n, heads, T / 2, hd). Entry 0 has the gradients of the queries of frame 1, entry 1
        the gradients of the queries of frame 0, and so on.
    grad_qkv: (n, T, 3, heads, hd).
    """
    by_frame = grad_q.unflatten(0, (-1, 2))  # (n, 2, heads, T / 2, hd)
    by_frame = by_frame.flip(1)  # swaps the two frames
    memory = grad_qkv[:, :, 0]  # (n, T, heads, hd): a view of the gradients of q
    memory = memory.unflatten(1, (2, -1))  # (n, 2, T / 2, heads, hd), still a view
    memory[:] = by_frame.transpose(2, 3)


def logit_offset(
    bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype, factor: float = 1.0
) -> Tensor | None:
    """Return factor * (bias + mask), which is added to the logits: (1, heads or 1, T, T).

    bias: (heads, T, T) or None.
    mask: (T, T) or None.
    dtype: dtype of the result, which is the dtype of q.
    factor: log2(e) for our attention for CPUs, which computes 2^x instead of e^x. 1 for torch's
        attention.

    Returns None if bias and mask are both None.
    """
    if mask is None:
        total = bias  # (heads, T, T), or None
    elif bias is None:
        total = mask[None]  # (1, T, T)
    else:
        total = bias + mask  # (heads, T, T)
    if total is None:
        return None
    return (total[None] * factor).to(dtype)

"""Attention inside windows: softmax(scale q k^T + bias + mask) v.

A block calls `window_attention`, which chooses among three forms of the same computation:

    our kernels     gpu.py, on GPUs, for windows that `attention_has_kernel` accepts
    our CPU form    cpu.py, on CPUs, if the caller gives a tape (tape.py). The tape keeps the output
                    for backward, and backward computes the T x T matrices again
    torch's form    `attend`, on every device, in all other cases

Letters: n windows, T tokens in a window, hd channels of a head. In mutual attention, the two frames
of a window attend to each other, and `attend` gets each frame as a window of T / 2 tokens. The
logits, scale q k^T + bias + mask, are a T x T matrix for each window and head.

What must stay: the forms agree within rounding, gradients too. tests/parts/models/test_block.py and
test_triton.py compare them. Free to change: which form runs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.vrt.attention.cpu import CpuAttention
from models.vrt.attention.heads import heads_of, logit_offset
from models.vrt.chunk import Span
from models.vrt.forms import attention_has_kernel, fused_attention, head_multiple
from models.vrt.tape import Tape


def window_attention(
    qkv: Tensor,
    bias: Tensor | None,
    spans: tuple[Span, ...],
    scale: float,
    mutual: bool,
    tape: Tape | None,
    is_plain: bool = False,
) -> Tensor:
    """Compute the attention among the tokens of each window, or between its two frames.

    qkv: packed heads, i.e. q, k and v in one tensor, (n, T, 3, heads, hd).
    bias: (heads, T, T), added to the logits, or None.
    spans: ranges of the n windows. The windows of a span have the same mask.
    mutual: whether the attention is between the two frames of a window. If so, a token attends to
        T / 2 tokens, and `bias` is None.
    tape: where `CpuAttention` keeps its results, or None if it is not used.
    is_plain: whether torch's attention is used on every device.

    Returns (n, T, heads * hd).
    """
    all_tokens = qkv.shape[1]  # with mutual attention, the tokens of both frames
    channels = qkv.shape[4]
    t = all_tokens // 2 if mutual else all_tokens  # tokens that attend to each other
    # The caller gives a tape if our CPU form is to run.
    if not is_plain and tape is None and attention_has_kernel(qkv, t, channels):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt.attention import gpu

        return gpu.window_attention(qkv, bias, spans, scale, mutual)

    # Compute span by span, because the windows of a span share one mask. Cut by `split` and not by
    # slices, because for each slice autograd would allocate a gradient of the size of the whole
    # qkv.
    results = []
    lengths = [span.stop - span.start for span in spans]
    for qkv_of_span, span in zip(qkv.split(lengths), spans, strict=True):
        # Both frames of a window have the same mask, so mutual attention takes the mask of the
        # first frame: the upper left corner.
        mask = None if span.mask is None else span.mask[:t, :t]
        if tape is not None:
            out = CpuAttention.apply(qkv_of_span, bias, mask, scale, mutual, tape)
        else:
            q, k, v = heads_of(qkv_of_span, mutual)
            out = attend(q, k, v, scale, bias, mask)
        out = out.transpose(1, 2)  # (n, heads, T, hd) -> (n, T, heads, hd)
        # With `mutual`, out is (2 n, T / 2, heads, hd). The two frames of a window follow each
        # other, so `reshape` joins them to a window of T tokens.
        results.append(out.reshape(len(qkv_of_span), all_tokens, -1))
    if len(results) == 1:  # torch.cat would make a copy
        return results[0]
    return torch.cat(results)


# Largest product of windows and heads in one call of torch's attention. torch starts a thread block
# for each head of each window, along an axis of the GPU's grid that has at most 65,535 blocks.
MOST_HEADS = 65_535


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None
) -> Tensor:
    """Compute the attention by torch's operator: q, k, v (n, heads, T, hd) -> the same shape.

    bias: (heads, T, T) or None.
    mask: (T, T) or None. All n windows have this bias and mask.
    """
    added = logit_offset(bias, mask, q.dtype)  # (1, heads or 1, T, T), or None
    n, heads, _, channels = q.shape
    # torch's fused kernels take only heads of certain widths, so add channels of zeros. Zeros do
    # not change the logits, because `scale` is given and does not depend on the width.
    padding = -channels % head_multiple(q)  # e.g. 4, from 20 channels to a multiple of 8
    if padding:
        q = F.pad(q, (0, padding))
        k = F.pad(k, (0, padding))
        v = F.pad(v, (0, padding))

    results = []
    windows_at_a_time = max(1, MOST_HEADS // heads)  # at least one window
    with fused_attention(q):
        for first in range(0, n, windows_at_a_time):
            in_round = slice(first, first + windows_at_a_time)  # the windows of this call
            result = F.scaled_dot_product_attention(
                q[in_round], k[in_round], v[in_round], attn_mask=added, scale=scale
            )
            results.append(result)
    out = results[0] if len(results) == 1 else torch.cat(results)
    return out[..., :channels]

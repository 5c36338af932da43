"""Window attention on an NVIDIA GPU, in Triton: softmax(scale q k^T + bias + mask) v and gradients.

models.vrt.attention.window calls `window_attention` for bfloat16 and float16, if the kernels take
windows and heads of these sizes (kernels/tiles.py). The kernels are in the folder kernels/:

    tiles.py            which windows the kernels take, and the sizes of their tiles
    regions.py          numbers that the kernels read instead of masks
    parts.py            functions that all kernels call: addresses and logits
    forward.py          the output
    all_gradients.py    backward for windows of up to 128 tokens
    several_passes.py   backward for larger windows
    launches.py         how many programs of each kernel run

The kernels need fewer copies and less memory than torch's attention. torch's attention takes q, k
and v as three tensors, and heads whose channels are a multiple of 8. So torch's attention needs
transposed and padded copies, and it writes one gradient of the bias for each window. Our kernels
read q, k and v from the single tensor that the linear layer has written. One launch computes all
windows of a call, even if their masks differ.

What must stay: the results up to rounding, which tests/parts/models/test_triton.py compares with
float64. This test needs no GPU, because Triton's interpreter runs the kernels on a CPU.
test_cuda.py does the same on a GPU. Free to change: what forward keeps for backward.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.attention.kernels.launches import (
    BackwardPass,
    kernel_constants,
    launch_forward,
    launch_one_pass,
    launch_several_passes,
)
from models.vrt.attention.kernels.parts import LOG2_E
from models.vrt.attention.kernels.regions import mask_table
from models.vrt.attention.kernels.tiles import MOST_TOKENS_OF_ONE_PASS
from models.vrt.chunk import Span


def window_attention(
    qkv: Tensor, bias: Tensor | None, spans: tuple[Span, ...], scale: float, mutual: bool
) -> Tensor:
    """Return the attention of each window, (n, S, heads * channels).

    S: all tokens of a window. T: tokens that attend to each other. T is S, or S / 2 if `mutual`.

    qkv: (n, S, 3, heads, channels), bfloat16 or float16.
    bias: (heads, T, T), contiguous, added to the logits, or None. Mutual attention has no bias.
    spans: ranges of the n windows. The windows of a span have the same mask.
    scale: factor of q k^T in the logits.
    mutual: whether the two frames of a window attend to each other.
    """
    frames_of_window = 2 if mutual else 1
    tokens = qkv.shape[1] // frames_of_window  # T, e.g. 128 of S = 128, or 64 if `mutual`
    region_row, regions = mask_table(spans, tokens, mutual, qkv.device)
    # The kernels compute addresses in qkv. With another layout they would read wrong numbers, and
    # there would be no error.
    qkv = qkv.contiguous()
    return GpuAttention.apply(qkv, bias, region_row, regions, scale, mutual)


class GpuAttention(torch.autograd.Function):
    """Launches the kernels, forward and backward. `window_attention` calls it."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        bias: Tensor | None,
        region_row: Tensor | None,
        regions: Tensor | None,
        scale: float,
        mutual: bool,
    ) -> Tensor:
        """Return the output O, (windows, tokens, heads * channels), in the dtype of qkv.

        In mutual attention the two frames of a window attend to each other. For the kernels, each
        of these frames is a window of its own. E.g. 1000 windows of 128 tokens:

                               not mutual    mutual
            windows            1000          1000
            tokens             128           128       S, all tokens of a window
            windows_of_kernel  1000          2000
            tokens_of_kernel   128           64        T, the tokens of a window of the kernels

        qkv: (windows, tokens, 3, heads, channels).
        bias: (heads, T, T) or None.
        regions: (rows, T): for each token, the number of its region. Only tokens of the same region
            attend to each other. None without masks.
        region_row: for each window of the kernels, its row in `regions`. None without masks.
        """
        windows, tokens, _, heads, channels = qkv.shape
        constants = kernel_constants(
            qkv, mutual, has_bias=bias is not None, has_mask=region_row is not None
        )
        windows_of_kernel = 2 * windows if mutual else windows
        tokens_of_kernel = constants["TOKENS"]  # T
        out = qkv.new_empty(windows, tokens, heads * channels)
        log_sums = qkv.new_empty(windows_of_kernel, heads, tokens_of_kernel, dtype=torch.float32)
        # The kernels compute 2^x instead of e^x, so all logits need the factor log2(e). The bias
        # gets the factor here. `scale` gets the factor in `launch_forward` and
        # `BackwardPass.launch`. LOG2_E is a constant of Triton, and `.value` is its number.
        scaled_bias = None if bias is None else (bias * LOG2_E.value).to(qkv.dtype)
        launch_forward(
            qkv=qkv,
            bias=scaled_bias,
            region_row=region_row,
            regions=regions,
            out=out,  # filled with O
            log_sums=log_sums,  # filled with the log-sum-exp of each query
            scale=scale,
            constants=constants,
        )
        ctx.save_for_backward(qkv, scaled_bias, region_row, regions, out, log_sums)
        ctx.scale = scale
        ctx.constants = constants
        return out

    # A second derivative would be wrong, because autograd does not see what the kernels compute. So
    # @once_differentiable makes torch raise an error for a second derivative.
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of qkv and of the bias. grad: dO, the gradient of the output.

        The gradient of the bias is dS, the gradient of the logits, summed over all windows. The
        head of kernels/all_gradients.py has the equations of all gradients.
        """
        qkv, scaled_bias, region_row, regions, out, log_sums = ctx.saved_tensors
        is_one_pass = ctx.constants["TOKENS"] <= MOST_TOKENS_OF_ONE_PASS
        grad_qkv = torch.empty_like(qkv)  # the launches fill it
        backward_pass = BackwardPass(
            qkv=qkv,
            region_row=region_row,
            regions=regions,
            out=out,
            grad=_with_even_rows(grad),  # the kernels need rows at equal distances
            log_sums=log_sums,
            # Memory for sum(dO * O) of each query, which the gradient of the softmax contains. The
            # kernel of one pass computes the sum where it needs it, so there is no memory.
            delta=None if is_one_pass else torch.empty_like(log_sums),
            grad_qkv=grad_qkv,
            scale=ctx.scale,
            constants=ctx.constants,
        )
        # Most backward kernels compute the logits transposed, keys x queries, because dV and dK
        # need the weights and dS in this order. So these kernels read a transposed bias.
        transposed_bias = None
        if scaled_bias is not None:
            transposed_bias = scaled_bias.transpose(1, 2).contiguous()  # (heads, keys, queries)

        # One sum of dS for each group of windows, (groups, heads, keys, queries). A program, i.e.
        # one instance of a Triton kernel, sums the windows of a group (`_group_size` in
        # kernels/launches.py).
        if is_one_pass:
            sums = launch_one_pass(backward_pass, transposed_bias)
        else:
            sums = launch_several_passes(backward_pass, scaled_bias, transposed_bias)
        grad_bias = None
        if sums is not None:
            grad_bias = sums.sum(0).transpose(1, 2)  # (heads, queries, keys)
        # Return one result for each argument of forward.
        return grad_qkv, grad_bias, None, None, None, None


def _with_even_rows(grad: Tensor) -> Tensor:
    """Return the gradient (windows, tokens, channels) with its rows at equal distances in memory.

    A row is the channels of a token, side by side. The kernels need the same distance from each row
    to the next, also from the last row of a window to the first row of the next window. Only a
    gradient with another layout is copied.

    E.g. half the channels of a tensor (windows, 128, 240) are a gradient (windows, 128, 120):

        strides                         (128 * 240, 240, 1)
        from row to row                 240 numbers
        from window to window           128 * 240 numbers, i.e. 128 rows

    So all rows lie 240 numbers apart, and this gradient is not copied.
    """
    _, tokens, _ = grad.shape
    to_next_window, to_next_row, to_next_channel = grad.stride()
    has_whole_rows = to_next_channel == 1
    has_even_rows = to_next_window == tokens * to_next_row
    if has_whole_rows and has_even_rows:
        return grad
    return grad.contiguous()

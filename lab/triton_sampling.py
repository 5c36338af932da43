"""Compute a deformable convolution on an NVIDIA GPU with Triton. No GPU has run this file yet.

A deformable convolution reads the input at shifted positions. `deform_conv` of this file gives the
same results as `models.vrt.deform_conv.deform_conv`, which calls torchvision on a GPU. The two
forms differ in their cost:

    torchvision     samples in float32, and writes 9 samples per pixel and channel in float32. Its
                    backward pass samples three times: for the gradient of the weights, for the
                    gradients of positions and masks, and for the gradient of the input.
    this form       samples in 16 bits if the input has 16 bits. Positions stay float32, because
                    rounding them to 16 bits would move the samples. The backward pass samples
                    once.

In a training step on an H200 (network 006, 8 clips of 6 x 192 x 192) torchvision takes 0.46 s, and
this form should take 0.2 s. `lab/gpu_next.py` measures both. If this form saves at least 3 % of a
step, move it to models/vrt. If it saves less, remove it.

A column is the list of all samples that one output pixel reads. The convolution is the matrix
product of the columns and the weights. The kernels in lab/triton_kernels.py make the columns. The
head of lab/triton_kernels.py explains the words of both files, e.g. group and tap.

Free to change: every line, if the test passes, because no training uses this file.
tests/parts/house/test_triton_sampling.py compares all results with float64. It needs no GPU,
because Triton's interpreter runs the kernels on a CPU.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lab.triton_kernels import sample, sample_backward

# Points of a 3 x 3 kernel. lab/triton_kernels.py has the numbers 9 and 3 in its code, so another
# number needs changes there, too.
TAPS = 9
# Number of output pixels that one program of a kernel computes: its argument ROWS, a power of two.
# 128 is a usual size of a block. No size was measured. Another number changes only the last bits of
# the gradient of x. These bits change from run to run anyway, because the backward kernel adds
# atomically, in any order. The test has 126 output pixels. Keep PIXELS larger, because the test
# then also tests rows beyond the last pixel.
PIXELS = 128


# A column is the list of all samples that one output pixel reads: 9 taps (points of the 3 x 3
# kernel) of each channel. The channels are divided twice, for sampling and for the product with the
# weights:
#
#     c, c'   input channels, output channels                                  c = 64, c' = 64
#     G, C    groups for sampling, and channels of such a group: c = G * C     G = 8,  C = 8
#     k       groups of the weights (`groups` of torch's convolution)          k = 2
#     K       entries of a column that one group of the weights reads:         K = 4 * 9 * 8 = 288
#             G / k groups for sampling, 9 taps, C channels each
#     k * K   all entries of a column: G groups, 9 taps, C channels            576
#
# In the example on the right, a group of the weights reads c / k = 32 input channels, which are
# G / k = 4 groups for sampling, and computes c' / k = 32 output channels.


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what models.vrt.deform_conv.deform_conv returns, (n, c', h, w) in the dtype of x.

    x: (n, c, h, w), 16 bits or float32.
    offset: (n, 18 * G, h, w), float32: dy and dx of each group and tap.
    mask: (n, 9 * G, h, w).
    weight: (c', c / k, 3, 3) with k weight groups.
    bias: (c',).
    """
    # offset and mask must be contiguous, because the kernels compute addresses in them. x and
    # weight need not be: `_channels_innermost` and `_weights_of_columns` copy them into another
    # order.
    return _DeformConv.apply(x, offset.contiguous(), mask.contiguous(), weight, bias)


class _DeformConv(torch.autograd.Function):
    """Sample the columns A, then multiply them by the weights B: the output is A B^T.

    There is one product for each of the k groups of the weights. A, B and D, the gradient of the
    output, have the group as their first axis, because torch.bmm needs it there:

        A    (k, pixels, K)       the columns
        B    (k, c'/k, K)         the weights
        D    (k, pixels, c'/k)    the gradient of the output

    The letters of the shapes (the comment above `deform_conv` has more):

        n, h, w    images, height and width. pixels = n * h * w
        c, c'      input channels, output channels
        G, C       groups for sampling, and channels of such a group
        k          groups of the weights
        K          entries of a column that one group of the weights reads: G / k * 9 * C

    The last bits of the gradient of x differ from run to run, as with torchvision (see PIXELS).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Return (n, c', h, w) in the dtype of x.

        `deform_conv` gives the shapes of the arguments. offset and mask are contiguous.
        """
        n, _, h, w = x.shape
        groups = mask.shape[1] // TAPS
        grouped = _channels_innermost(x, groups)  # (n, G, h, w, C)
        columns = _columns_like(grouped)  # (n * h * w, G, 9, C), still without values
        _launch(sample, grouped, offset, mask, columns)  # fills `columns`

        B = _weights_of_columns(weight, grouped)  # (k, c'/k, K)
        k = len(B)
        # The G * 9 * C entries of a column are k parts of K entries, one part for each group of the
        # weights. E.g. for G = 8, C = 8, k = 2:
        #
        #     columns            (pixels, 8, 9, 8)    4 groups for sampling, then 4 more
        #     columns.view(...)  (pixels, 2, 288)     the same numbers in the same order
        #     A B^T              (2, pixels, 288) x (2, 288, 32) -> (2, pixels, 32)
        A = columns.view(n * h * w, k, -1).transpose(0, 1)  # (k, pixels, K)
        out = torch.bmm(A, B.transpose(1, 2))  # (k, pixels, c'/k)
        out = out.transpose(0, 1).reshape(n, h, w, -1) + bias.to(x.dtype)  # (n, h, w, c')
        # To save memory, the columns are not saved: the backward pass samples them again.
        ctx.save_for_backward(grouped, offset, mask, weight)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of all arguments of forward. grad: (n, c', h, w).

        The output is A B^T, with the columns A and the weights B, and D is its gradient. So

            gradient of A    D B
            gradient of B    D^T A
        """
        grouped, offset, mask, weight = ctx.saved_tensors
        n, groups, h, w, channels = grouped.shape  # (n, G, h, w, C)
        B = _weights_of_columns(weight, grouped)  # (k, c'/k, K)
        k = len(B)
        grad = grad.permute(0, 2, 3, 1).to(grouped.dtype)  # (n, h, w, c')
        # E.g. 64 output channels and k = 2: (n, h, w, 64) -> (pixels, 2, 32) -> (2, pixels, 32).
        D = grad.reshape(n * h * w, k, -1).transpose(0, 1)  # (k, pixels, c'/k)
        grad_bias = grad.float().sum((0, 1, 2))  # (c',)

        # The columns have 9 times as many numbers as x. So one buffer serves twice, to save memory:
        #
        #     before the kernel runs    the buffer holds the gradient of the columns, D B
        #     after it                  the buffer holds the columns, A
        #
        # The kernel reads each gradient, and writes the entry of the column in its place.
        #
        # `columns` and `buffer` are the same memory: (pixels, G, 9, C) for the kernel, and
        # (k, pixels, K) for the matrix products.
        columns = _columns_like(grouped)  # (n * h * w, G, 9, C)
        buffer = columns.view(n * h * w, k, -1).transpose(0, 1)  # (k, pixels, K)
        buffer.copy_(torch.bmm(D, B))  # without a name, bmm's result is freed before the kernel
        grad_x = torch.zeros_like(grouped, dtype=torch.float32)  # 0, because the kernel adds to it
        grad_offset = torch.empty_like(offset)
        grad_mask = torch.empty_like(mask, dtype=torch.float32)
        # The kernel reads grouped, offset, mask and columns. It overwrites columns, adds to grad_x,
        # and writes grad_offset and grad_mask.
        _launch(sample_backward, grouped, offset, mask, columns, grad_x, grad_offset, grad_mask)

        # D^T A: (k, c'/k, pixels) x (k, pixels, K) -> (k, c'/k, K).
        A = buffer  # now it holds the columns
        grad_weights = torch.bmm(D.transpose(1, 2), A)  # (k, c'/k, K)
        grad_x = grad_x.permute(0, 1, 4, 2, 3)  # (n, G, C, h, w)
        grad_x = grad_x.reshape(n, groups * channels, h, w)
        # In the order of the arguments of `forward`. `_as_weight` turns (k, c'/k, K) into the shape
        # of `weight`, (c', c / k, 3, 3).
        return (
            grad_x.to(grouped.dtype),
            grad_offset,
            grad_mask.to(mask.dtype),
            _as_weight(grad_weights, weight, grouped).to(weight.dtype),
            grad_bias.to(weight.dtype),
        )


def _launch(kernel: Any, grouped: Tensor, offset: Tensor, mask: Tensor, *others: Tensor) -> None:
    """Run a kernel for all output pixels and all G groups of C channels.

    The kernel computes addresses in all tensors, so they must be contiguous.

    kernel: `sample` or `sample_backward` of lab/triton_kernels.py.
    grouped: the input, (n, G, h, w, C).
    offset: (n, 18 * G, h, w).
    mask: (n, 9 * G, h, w).
    others: the other tensors of the kernel, in the order of its arguments.
    """
    n, groups, h, w, channels = grouped.shape
    pixels = n * h * w
    # A program, one instance of the kernel, computes PIXELS output pixels of one group. E.g.
    # 1000 pixels, 16 groups: 8 x 16 programs.
    #
    #     program (0, 5)    the pixels   0 ... 127 of group 5
    #     program (7, 5)    the pixels 896 ... 999 of group 5. It has 24 rows more than pixels. The
    #                       kernels neither read nor write these rows
    programs = (math.ceil(pixels / PIXELS), groups)
    next_power_of_two = 1 << (channels - 1).bit_length()  # e.g. 6 channels -> 8
    kernel[programs](
        grouped,
        offset,
        mask,
        *others,
        pixels,
        h,
        w,
        G=groups,
        C=channels,
        # The length of a block in Triton must be a power of two. The kernels neither read nor write
        # the channels C ... PAD - 1.
        PAD=next_power_of_two,
        ROWS=PIXELS,  # a row of a block is an output pixel
    )


def _channels_innermost(x: Tensor, groups: int) -> Tensor:
    """Return x (n, c, h, w) as (n, G, h, w, C): the c channels as G groups of C channels.

    This order makes reading fast. A sample reads all channels of a group, so they lie side by side
    in memory. Neighbouring output pixels mostly read neighbouring pixels of the input, so the
    pixels of a row follow one another.
    """
    n, c, h, w = x.shape
    x = x.reshape(n, groups, c // groups, h, w)  # (n, G, C, h, w)
    return x.permute(0, 1, 3, 4, 2).contiguous()


def _columns_like(grouped: Tensor) -> Tensor:
    """Return memory for the columns: (n * h * w, G, 9, C) in the dtype of the input."""
    n, groups, h, w, channels = grouped.shape
    return grouped.new_empty(n * h * w, groups, TAPS, channels)


def _weights_of_columns(weight: Tensor, grouped: Tensor) -> Tensor:
    """Return the weights (c', c / k, 3, 3) in the order of the columns: (k, c'/k, K).

    The two orders of the entries, for 2 channels a and b, and the taps 0 ... 8:

        weight      a0 a1 ... a8 b0 b1 ... b8    (C, 9)
        a column    a0 b0 a1 b1 ... a8 b8        (9, C)

    So the two axes are swapped. `_as_weight` swaps them back, so change both functions together.

    E.g. 64 input channels, 64 output channels, G = 8 groups of C = 8 channels for sampling, and
    k = 2 groups of the weights, each with K = 4 * 9 * 8 = 288 entries of a column:

        weight     (64, 32, 3, 3)
        ordered    (2, 32, 4, 8, 9), then (2, 32, 4, 9, 8) with swapped axes
        result     (2, 32, 288)
    """
    _, groups, _, _, channels = grouped.shape
    outputs = len(weight)
    # c is G * C, and weight.shape[1] is c / k. E.g. k = 8 * 8 // 32 = 2.
    k = groups * channels // weight.shape[1]
    # The c / k input channels of a weight group are G / k groups for sampling of C channels each.
    ordered = weight.view(k, -1, groups // k, channels, TAPS)  # (k, c'/k, G/k, C, 9)
    ordered = ordered.permute(0, 1, 2, 4, 3)  # (k, c'/k, G/k, 9, C)
    return ordered.reshape(k, outputs // k, -1).to(grouped.dtype)


def _as_weight(grads: Tensor, weight: Tensor, grouped: Tensor) -> Tensor:
    """Return the gradient of the weights in the shape and order of `weight`, (c', c / k, 3, 3).

    This function undoes `_weights_of_columns`.

    grads: the gradient in the order of the columns, (k, c'/k, K).
    """
    _, groups, _, _, channels = grouped.shape
    k, outputs, _ = grads.shape
    ordered = grads.view(k, outputs, groups // k, TAPS, channels)  # (k, c'/k, G/k, 9, C)
    ordered = ordered.permute(0, 1, 2, 4, 3)  # (k, c'/k, G/k, C, 9)
    return ordered.reshape(weight.shape)

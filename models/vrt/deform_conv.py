"""Deformable convolution: a 3x3 convolution that samples its input at shifted positions.

On a GPU torchvision computes it. Elsewhere `_deform_conv_by_sampling` computes it by one
grid_sample and one matrix product.

Letters:

    n, h, w     images, and the pixels of an image
    c, c'       input channels, output channels
    g           offset groups: the channels of a group have the same offsets
    k           weight groups (`groups` of torch's convolutions)

A space in a shape is a product: (n g, h, w) has n times g images.

Both kinds of groups divide the c input channels. E.g. two neighbours of 120 channels:

    c = 240, g = 16    an offset group has 240 / 16 = 15 input channels
    k = 2, c' = 120    a weight group reads 120 input channels, and makes 60 output channels

Each offset group has nine taps, the positions of a 3x3 kernel:

    0 1 2
    3 4 5
    6 7 8

Each tap has an offset (dy, dx) in pixels, and a factor, the mask. Their layout:

    offset, channel    0    1    2    3   ...  16   17    18   19   ...
                       dy   dx   dy   dx       dy   dx    dy   dx
    mask, channel      0         1        ...  8          9         ...
    group, tap         0, 0      0, 1          0, 8       1, 0

What must stay: the layout of the offsets, because the released weights rely on it, and the results,
up to rounding. tests/parts/models/test_network_vrt.py and test_autocast.py notice both.
Free to change: how the samples are computed.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn

from models.vrt.forms import has_deform_conv
from models.vrt.layers import compute_dtype

TAPS = 9  # positions of a 3x3 kernel


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute a 3x3 convolution that samples x at shifted positions.

        out(p) = bias + sum over the taps t of   weight_t (mask_t(p) x(p + tap_t + offset_t(p)))

    p is an output pixel. tap_t is the position of tap t relative to p, e.g. (-1, -1) for t = 0.
    weight_t is the (c' x c) matrix of tap t. If k > 1, each of the k weight groups has a matrix.

    x: (n, c, h, w). Outside the image it is zero.
    offset: shift of each sample, (n, 18 g, h, w), float32 or float64, whatever the dtype of x is.
    mask: factor of each sample, (n, 9 g, h, w). The docstring of this file shows both layouts.
    weight: (c', c / k, 3, 3).
    bias: (c',).

    Returns (n, c', h, w), under autocast in the dtype of autocast. All tensors get gradients.
    """
    dtype = compute_dtype(x)  # dtype of the result
    if not has_deform_conv(x):  # e.g. on a CPU or a GPU of Apple (DEFORM_CONV in forms.py)
        return _deform_conv_by_sampling(x, offset, mask, weight, bias).to(dtype)

    from torchvision.ops import deform_conv2d  # here, because the import takes seconds

    # torchvision needs one dtype for all tensors. Take at least float32, because bfloat16 is too
    # coarse: its numbers from 16 to 32 are 1/8 apart, so an offset of 20.06 pixels would become 20.
    precise = torch.promote_types(x.dtype, torch.float32)
    x = x.to(precise)
    offset = offset.to(precise)
    mask = mask.to(precise)
    weight = weight.to(precise)
    bias = bias.to(precise)
    with torch.autocast(x.device.type, enabled=False):
        return deform_conv2d(x, offset, weight, bias, padding=(1, 1), mask=mask).to(dtype)


def _deform_conv_by_sampling(
    x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Compute `deform_conv` by one grid_sample and one matrix product.

    On a CPU this is 3 times as fast as torchvision, and 7 times as fast with gradients, because
    torchvision computes pixel by pixel on a CPU. On a GPU of Apple, torchvision has no gradients of
    this convolution.

    `deform_conv` explains the arguments:

    x: (n, c, h, w).
    offset: (n, 18 g, h, w).
    mask: (n, 9 g, h, w).
    weight: (c', c / k, 3, 3).
    bias: (c',).
    """
    n, c, h, w = x.shape
    columns = _columns(x, offset, mask)  # (n, c, 9, h w)

    # The convolution is a matrix product for each weight group. A weight group reads c/k channels
    # with nine taps each, and makes c'/k channels. All n images use the same matrices
    # (broadcasting). `matrices` and `columns` are float32 (float64 in a float64 network). Under
    # autocast, @ converts them to the dtype of autocast.
    weight_groups = c // weight.shape[1]  # k
    outputs_of_group = len(weight) // weight_groups  # c'/k
    matrices = weight.view(weight_groups, outputs_of_group, -1)  # (k, c'/k, 9 c/k)
    columns = columns.view(n, weight_groups, -1, h * w)  # (n, k, 9 c/k, h w)
    out = matrices @ columns  # (n, k, c'/k, h w)
    return out.view(n, -1, h, w) + bias.view(-1, 1, 1)


def _columns(x: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
    """Return what each output pixel reads: nine samples of each channel, times their masks.

    x: (n, c, h, w).
    offset: shift of each sample, (n, 18 g, h, w).
    mask: factor of each sample, (n, 9 g, h, w).

    Returns (n, c, 9, h w) in the dtype of the offsets.
    """
    n, _, h, w = x.shape
    groups = mask.shape[1] // TAPS  # g
    # Convert the mask first, because a product of tensors of two dtypes takes five times as long.
    mask = mask.to(offset.dtype)

    # grid_sample makes one output image of each input image, but an offset group needs nine, one
    # for each tap. So the output image has 9 h rows: nine images of h rows, one below the other.
    images = x.reshape(n * groups, -1, h, w).to(offset.dtype)  # (n g, c/g, h, w)
    grid = _sampling_grid(offset, groups)  # (n g, 9 h, w, 2)
    samples = nn.functional.grid_sample(images, grid, align_corners=True)  # (n g, c/g, 9 h, w)
    samples = samples.view(n, groups, -1, TAPS, h * w)  # (n, g, c/g, 9, h w)
    # One factor for all channels of a group, so the axis of channels has length 1.
    factors = mask.view(n, groups, 1, TAPS, h * w)
    if torch.is_grad_enabled():
        columns = samples * factors
    else:
        columns = samples.mul_(factors)  # in place: without a graph nobody needs the samples
    return columns.flatten(1, 2)  # (n, g, c/g, 9, h w) -> (n, c, 9, h w)


def _sampling_grid(offset: Tensor, groups: int) -> Tensor:
    """Return where grid_sample samples each tap of each offset group, (n g, 9 h, w, 2).

    offset: (n, 18 g, h, w).
    groups: number of offset groups, g.

    The last axis is (x, y). grid_sample counts from -1 (first pixel) to 1 (last pixel).
    """
    n, _, h, w = offset.shape
    dy, dx = offset.view(n * groups, TAPS, 2, h, w).unbind(2)  # (n g, 9, h, w) each
    base_y, base_x = _tap_positions(h, w, offset.dtype, offset.device)
    # From pixels to grid_sample's units: multiply by 2 / (pixels - 1), and subtract 1. E.g. 5
    # pixels: 0 -> -1, 2 -> 0, 4 -> 1. An axis of one pixel has no length, so divide by at least 1.
    scale_y = 2.0 / max(h - 1, 1)
    scale_x = 2.0 / max(w - 1, 1)
    sample_x = (dx + base_x) * scale_x - 1.0
    sample_y = (dy + base_y) * scale_y - 1.0
    # grid_sample takes pairs (x, y), which may be apart in memory. Writing all x and then all y is
    # faster than writing pairs. So stack x and y, and permute.
    grid = torch.stack((sample_x, sample_y), dim=1)  # (n g, 2, 9, h, w)
    return grid.view(n * groups, 2, TAPS * h, w).permute(0, 2, 3, 1)


# maxsize: 32 results, because training and validation together have a few sizes of frames, each at
# four scales.
# inference_mode(False): the first call may come from inference mode, and a training may get its
# result from the cache. If a tensor was made in inference mode, autograd cannot save it for
# backward (test_a_network_first_used_in_inference_mode_still_trains).
@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _tap_positions(
    h: int, w: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return row and column of each tap of each output pixel: (9, h, 1) and (9, 1, w).

    The tensors are cached: do not modify them.
    """
    tap = torch.arange(3, dtype=dtype, device=device) - 1  # -1, 0, 1
    rows_of_taps = tap.repeat_interleave(3).view(TAPS, 1, 1)  # -1, -1, -1, 0, 0, 0, 1, 1, 1
    columns_of_taps = tap.repeat(3).view(TAPS, 1, 1)  # -1, 0, 1, -1, 0, 1, -1, 0, 1
    rows_of_pixels = torch.arange(h, dtype=dtype, device=device).view(1, h, 1)
    columns_of_pixels = torch.arange(w, dtype=dtype, device=device).view(1, 1, w)
    return rows_of_taps + rows_of_pixels, columns_of_taps + columns_of_pixels

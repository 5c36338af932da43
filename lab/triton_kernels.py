"""The kernels of lab/triton_sampling.py: they write the columns of a deformable convolution.

Words:

    image       one of the n images of the input, of h x w pixels
    group       a part of the c channels: G groups of C channels. All channels of a group are
                sampled at the same positions
    tap         one of the 3 x 3 points of the kernel, row by row: 0 ... 8. An output pixel has 9
                taps in each group
    sample      the value of a channel at the position of a tap
    mask        the factor of a sample, one for each group and tap of an output pixel
    column      what one output pixel reads: G x 9 x C samples, each times its mask. E.g. c = 64,
                G = 8, C = 8: 576 numbers. It is not a column of an image: the position of a pixel
                in its image is called `row` and `across`
    corner      one of the four pixels of the input around a sample

There are two kernels: `sample` in the forward pass, and `sample_backward`. Both interpolate a
sample s between its corners. fx and fy, in [0, 1], say where the sample lies between the corners:

    upper = v_00 + fx * (v_01 - v_00)       v_00 v_01   the corners above
    lower = v_10 + fx * (v_11 - v_10)       v_10 v_11   the corners below
    s     = upper + fy * (lower - upper)

What must stay: the results. tests/parts/house/test_triton_sampling.py compares them with float64.
The test needs no GPU, because Triton's interpreter runs the kernels on a CPU. Free to change: how
the results are computed.
"""

from typing import Any

import triton
import triton.language

# The bodies of kernels only look like Python. They are in Triton's own language. So the type
# checker must not check them: Any.
tl: Any = triton.language
jit: Any = triton.jit


# A program is one instance of a kernel. It computes ROWS output pixels of one group in parallel.
# ROWS is 128, PIXELS in lab/triton_sampling.py. Names of the values in a kernel:
#
#     pixels          a number      how many output pixels all images have: n * h * w
#     pixel           (ROWS,)       number of the output pixel, counted through all images
#     is_pixel        (ROWS,)       false beyond the last output pixel, where nothing is read or
#                                   written
#     image           (ROWS,)       number of the pixel's image, 0 ... n - 1
#     pixel_of_image  (ROWS,)       number of the pixel within its image, row by row
#     channel         (PAD,)        number of the channel within the group. PAD is C rounded up to a
#                                   power of two, because Triton requires such sizes.
#     is_used         (ROWS, PAD)   false beyond the last output pixel, and for the padding
#     first_index     (ROWS, PAD)   index in x (n, G, h, w, C) of pixel 0 of the image, for each
#                                   channel: (image * G + group) * h * w * C + channel. E.g. image
#                                   0, group 1, h * w = 100, C = 8: 800 + channel. Pixel p is at
#                                   first_index + p * C
#     H, W, HW        numbers       height and width of an image, and its number of pixels
#     mask            a pointer     the factors of the taps. The argument `mask=` of tl.load and
#                                   tl.store is something else: it says which elements are read or
#                                   written.
#
# A flat index counts the last axis fastest. E.g. for columns (n * h * w, G, 9, C) the entry (pixel,
# group, tap, channel) has the index ((pixel * G + group) * 9 + tap) * C + channel. With G = 8 and
# C = 8 the entry (2, 1, 4, 3) has the index ((2 * 8 + 1) * 9 + 4) * 8 + 3 = 1259.
#
# A value of each pixel, (ROWS,), and a value of each channel, (PAD,), are joined by `[:, None]` and
# `[None, :]`: (ROWS, 1) and (1, PAD) give (ROWS, PAD), an entry for each pixel and channel.


@jit
def _pixels_of_program(pixels, HW, W, ROWS: tl.constexpr):
    """Return which output pixels this program computes, and where they are. All are (ROWS,).

    pixel: number of the output pixel, counted through all images.
    is_pixel: false beyond the last output pixel.
    image: number of the pixel's image. pixel_of_image: number of the pixel within its image.
    row, across: where the output pixel is in its image, from the top and from the left.
    """
    # 64 bits, because the addresses made from this number may need more than 32.
    pixel = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_pixel = pixel < pixels
    image = pixel // HW
    pixel_of_image = pixel % HW
    row = pixel_of_image // W
    across = pixel_of_image % W
    return pixel, is_pixel, image, pixel_of_image, row, across


@jit
def _channels_of_group(
    image, group, is_pixel, HW, G: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr
):
    """Return channel (PAD,), is_used (ROWS, PAD) and first_index (ROWS, PAD).

    A group is a part of the channels, all sampled at the same positions.

    channel: number of the channel within the group.
    is_used: false beyond the last output pixel, and for the padding of the channels.
    first_index: index in x (n, G, h, w, C) of the values of pixel 0 of the image.
    """
    channel = tl.arange(0, PAD)
    # (ROWS, 1) and (1, PAD) give (ROWS, PAD), in this line and the next.
    is_used = is_pixel[:, None] & (channel < C)[None, :]
    first_index = ((image * G + group) * HW * C)[:, None] + channel[None, :]
    return channel, is_used, first_index


@jit
def _position(offset, dy_plane, pixel_of_image, row, across, is_pixel, HW, TAP: tl.constexpr):
    """Return where a tap samples: top, left, fy and fx, all (ROWS,).

    A tap is one of the 3 x 3 points of the kernel. Its sample lies between four pixels, its
    corners.

    top, left: y and x of the corner above and on the left, int32.
    fy, fx: the distances of the sample from this corner, in [0, 1].

    offset: (n, G, 9, 2, h, w), the shifts dy and dx of each tap. In memory it is a row of planes
        (h, w) with HW numbers each: first dy of tap 0, then dx of tap 0, then dy of tap 1, ...
    dy_plane: number of the plane of dy, 2 * ((image * G + group) * 9 + tap). E.g. in image 0 and
        group 0, tap 1 has the plane 2 for dy, and the plane 3 for dx. A plane has HW numbers, so dy
        of a pixel is at dy_plane * HW + pixel_of_image.

    E.g. tap 1, the place above the output pixel, of the pixel at y = 5 and x = 7, with dy = 0.25
    and dx = -0.5: the sample is at y = 5 - 1 + 0.25 = 4.25 and x = 7 + 0 - 0.5 = 6.5. So top = 4,
    left = 6, fy = 0.25 and fx = 0.5.
    """
    dy = tl.load(offset + dy_plane * HW + pixel_of_image, mask=is_pixel, other=0.0)
    dx = tl.load(offset + (dy_plane + 1) * HW + pixel_of_image, mask=is_pixel, other=0.0)
    # Tap 0 is one row above and one column left of the output pixel, and tap 4 is the pixel itself.
    tap_y = TAP // 3 - 1  # -1, 0 or 1: the row above, the same row, or the row below
    tap_x = TAP % 3 - 1
    y = row + tap_y + dy
    x = across + tap_x + dx
    top = tl.floor(y)
    left = tl.floor(x)
    fy = y - top
    fx = x - left
    return top.to(tl.int32), left.to(tl.int32), fy, fx


@jit
def _corner_index(first_index, y, x, W, C: tl.constexpr):
    """Return the index in the input (n, G, h, w, C) of the channels of a corner, (ROWS, PAD).

    first_index: index of the channels of pixel 0 of the image, (ROWS, PAD).
    y, x: position of the corner, (ROWS,). It is pixel y * W + x, and each pixel has C channels.
    """
    pixel = (y * W + x).to(tl.int64)
    return first_index + (pixel * C)[:, None]


@jit
def _is_corner(is_used, y, x, H, W):
    """Return whether a corner may be read or written, (ROWS, PAD) bool.

    The result is true if the corner is in the image and `is_used` is true. Any other corner has an
    address that may belong to another image, or to no tensor.
    """
    is_in_image = (y >= 0) & (y < H) & (x >= 0) & (x < W)  # (ROWS,)
    return is_in_image[:, None] & is_used


@jit
def _corner(values, first_index, is_used, H, W, C: tl.constexpr, y, x):
    """Return the channels of a corner, (ROWS, PAD) float32. They are 0 outside of the image.

    values: the input of the convolution, (n, G, h, w, C). y, x: position of the corner, (ROWS,).
    """
    index = _corner_index(first_index, y, x, W, C)
    is_read = _is_corner(is_used, y, x, H, W)
    return tl.load(values + index, mask=is_read, other=0.0).to(tl.float32)


@jit
def _corners(values, first_index, is_used, top, left, H, W, C: tl.constexpr):
    """Return the corners of each sample: upper left, upper right, lower left, lower right."""
    bottom = top + 1
    right = left + 1
    v_00 = _corner(values, first_index, is_used, H, W, C, y=top, x=left)
    v_01 = _corner(values, first_index, is_used, H, W, C, y=top, x=right)
    v_10 = _corner(values, first_index, is_used, H, W, C, y=bottom, x=left)
    v_11 = _corner(values, first_index, is_used, H, W, C, y=bottom, x=right)
    return v_00, v_01, v_10, v_11


@jit
def _interpolate(v_00, v_01, v_10, v_11, fy, fx):
    """Interpolate between the corners of each sample. Returns upper, lower and s, all (ROWS, PAD).

    s is the sample. `upper` and `lower` are the values between the two upper corners and between
    the two lower corners. The backward kernel needs all three.

    fy, fx: (ROWS,), where the sample lies between the corners, in [0, 1].
    """
    upper = v_00 + fx[:, None] * (v_01 - v_00)
    lower = v_10 + fx[:, None] * (v_11 - v_10)
    s = upper + fy[:, None] * (lower - upper)
    return upper, lower, s


@jit
def _entry_index(pixel, group, channel, G: tl.constexpr, C: tl.constexpr, TAP: tl.constexpr):
    """Return the index in columns (n * h * w, G, 9, C) of the entries of a tap, (ROWS, PAD).

    pixel: (ROWS,). group: a number. channel: (PAD,).

    The index is ((pixel * G + group) * 9 + tap) * C + channel. E.g. with G = 8 and C = 8 the entry
    (2, 1, 4, 3) has the index ((2 * 8 + 1) * 9 + 4) * 8 + 3 = 1259.
    """
    first_entry = ((pixel * G + group) * 9 + TAP)[:, None] * C  # index of channel 0
    return first_entry + channel[None, :]


@jit
def _add_to_corner(grad_x, first_index, is_used, gradient, H, W, C: tl.constexpr, y, x):
    """Add a gradient (ROWS, PAD) to a corner of each sample in grad_x, if it is in the image.

    y, x: position of the corner, (ROWS,).

    The addition is atomic, because several samples may have the same corner. With a plain load, sum
    and store, two programs could overwrite each other's sums.
    """
    index = _corner_index(first_index, y, x, W, C)
    is_added = _is_corner(is_used, y, x, H, W)
    tl.atomic_add(grad_x + index, gradient, mask=is_added)


@jit
def _add_to_corners(
    grad_x, first_index, is_used, gradient, top, left, fy, fx, H, W, C: tl.constexpr
):
    """Add the gradient of each sample (ROWS, PAD) to its four corners in grad_x.

    A corner gets the gradient times the weight of the corner in the interpolation. The weights are

        (1 - fy) * (1 - fx)    (1 - fy) * fx        the corners above
        fy * (1 - fx)          fy * fx              the corners below

    E.g. with fy = 0.25 and fx = 0.5: 0.375 and 0.375 above, 0.125 and 0.125 below.
    """
    gradient_above = gradient * (1 - fy)[:, None]
    gradient_below = gradient * fy[:, None]
    g_00 = gradient_above * (1 - fx)[:, None]
    g_01 = gradient_above * fx[:, None]
    g_10 = gradient_below * (1 - fx)[:, None]
    g_11 = gradient_below * fx[:, None]
    bottom = top + 1
    right = left + 1
    _add_to_corner(grad_x, first_index, is_used, g_00, H, W, C, y=top, x=left)
    _add_to_corner(grad_x, first_index, is_used, g_01, H, W, C, y=top, x=right)
    _add_to_corner(grad_x, first_index, is_used, g_10, H, W, C, y=bottom, x=left)
    _add_to_corner(grad_x, first_index, is_used, g_11, H, W, C, y=bottom, x=right)


# Triton compiles another version of a kernel if an integer argument is 1 or divisible by 16. The
# number of pixels changes with the size of the clip. With `do_not_specialize`, one version serves
# for all numbers of pixels.


@jit(do_not_specialize=["pixels"])
def sample(
    x,  # input: the values that are sampled, (n, G, h, w, C)
    offset,  # input: dy and dx of each tap, (n, G, 9, 2, h, w)
    mask,  # input: factor of each tap, (n, G, 9, h, w)
    columns,  # result: (n * h * w, G, 9, C)
    pixels,  # n * h * w
    H, W,  # h, w
    G: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr,  # groups, channels of a group, C padded
    ROWS: tl.constexpr,  # output pixels of a program
):  # fmt: skip
    """Write the columns of ROWS output pixels of one group.

        entry = m * s       m: the factor of a tap (`mask`)       s: the sample

    E.g. 1000 pixels, 16 groups of C = 6 channels, PAD = 8 and ROWS = 128: 8 x 16 programs.

        program (3, 5)    the pixels 384 ...  511 of group 5, the channels 30 ... 35 of x
        program (7, 5)    the pixels 896 ... 1023 of group 5. 1000 ... 1023 do not exist

    The missing pixels and the channels C ... PAD - 1 are padding: they are neither read nor
    written.
    """
    # What this program computes: ROWS output pixels, where they are (all (ROWS,)), and the group.
    HW = H * W
    pixel, is_pixel, image, pixel_of_image, row, across = _pixels_of_program(pixels, HW, W, ROWS)
    group = tl.program_id(1)
    channel, is_used, first_index = _channels_of_group(image, group, is_pixel, HW, G, C, PAD)
    # Triton repeats the code below for each of the 9 taps (static_range), so TAP is a constant.
    for TAP in tl.static_range(9):
        # The position of the sample of this tap. For each image, group and tap, `mask` has a plane
        # (h, w), and `offset` has two planes: dy, then dx.
        mask_plane = (image * G + group) * 9 + TAP
        dy_plane = 2 * mask_plane
        top, left, fy, fx = _position(
            offset, dy_plane, pixel_of_image, row, across, is_pixel, HW, TAP
        )

        # The samples s, (ROWS, PAD).
        v_00, v_01, v_10, v_11 = _corners(x, first_index, is_used, top, left, H, W, C)
        _, _, s = _interpolate(v_00, v_01, v_10, v_11, fy, fx)

        # An entry of the column is the sample times its factor m. The factors are in the plane
        # mask_plane of `mask`, one for each pixel.
        m = tl.load(mask + mask_plane * HW + pixel_of_image, mask=is_pixel, other=0.0)  # (ROWS,)
        entry = s * m.to(tl.float32)[:, None]
        entry_index = _entry_index(pixel, group, channel, G, C, TAP)
        tl.store(columns + entry_index, entry.to(columns.dtype.element_ty), mask=is_used)


@jit(do_not_specialize=["pixels"])
def sample_backward(
    x, offset, mask,  # inputs, in the shapes that `sample` has
    # Input and result, (n * h * w, G, 9, C). The kernel reads the gradients g of the columns from
    # it. Then it writes the columns, with the entries m * s (see the docstring).
    columns,
    grad_x,  # result: (n, G, h, w, C), float32. 0 at the start, because the kernel adds to it
    grad_offset, grad_mask,  # results, in the shapes of offset and mask
    pixels,  # n * h * w
    H, W,  # h, w
    G: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr,  # groups, channels of a group, C padded
    ROWS: tl.constexpr,  # output pixels of a program
):  # fmt: skip
    """Read the gradients of the columns, and write the columns themselves in their place.

    An entry of a column is m * s: the sample s times its mask m. Let g be the gradient of this
    entry, and let sum() run over the channels of the group. Then the gradients are

        of the mask    sum(g * s)
        of dy          m * sum(g * ds/dy),  ds/dy = lower - upper
        of dx          m * sum(g * ds/dx),  ds/dx = (1 - fy) * (v_01 - v_00) + fy * (v_11 - v_10)
        of a corner    m * g * weight of the corner, e.g. (1 - fy) * (1 - fx) for v_00

    The programs are as in `sample`. Each program writes its own entries of columns, grad_offset and
    grad_mask. Several programs add to the same entries of grad_x, so these additions are atomic.
    Padding is loaded as 0, so it adds nothing to a sum.

    test_sampling_and_its_gradients_are_near_float64 checks all gradients.
    """
    # What this program computes: ROWS output pixels, where they are (all (ROWS,)), and the group.
    HW = H * W
    pixel, is_pixel, image, pixel_of_image, row, across = _pixels_of_program(pixels, HW, W, ROWS)
    group = tl.program_id(1)
    channel, is_used, first_index = _channels_of_group(image, group, is_pixel, HW, G, C, PAD)
    for TAP in tl.static_range(9):
        # The samples s, computed as in `sample`, because the forward pass does not keep them.
        mask_plane = (image * G + group) * 9 + TAP
        dy_plane = 2 * mask_plane
        dx_plane = dy_plane + 1
        top, left, fy, fx = _position(
            offset, dy_plane, pixel_of_image, row, across, is_pixel, HW, TAP
        )
        v_00, v_01, v_10, v_11 = _corners(x, first_index, is_used, top, left, H, W, C)
        upper, lower, s = _interpolate(v_00, v_01, v_10, v_11, fy, fx)

        # The derivatives of s, (ROWS, PAD). ds_dx is (1 - fy) * (v_01 - v_00) + fy * (v_11 - v_10),
        # written with one product less.
        ds_dy = lower - upper
        ds_dx = (v_01 - v_00) + fy[:, None] * ((v_11 - v_10) - (v_01 - v_00))

        # Read the gradient g of an entry, then write the entry over it.
        m = tl.load(mask + mask_plane * HW + pixel_of_image, mask=is_pixel, other=0.0)  # (ROWS,)
        m = m.to(tl.float32)
        entry_index = _entry_index(pixel, group, channel, G, C, TAP)
        g = tl.load(columns + entry_index, mask=is_used, other=0.0).to(tl.float32)
        entry = s * m[:, None]
        tl.store(columns + entry_index, entry.to(columns.dtype.element_ty), mask=is_used)

        # The gradients of mask and offset: sums over the channels (axis 1).
        grad_m = tl.sum(g * s, 1)  # (ROWS,). grad_dy and grad_dx have this shape, too.
        grad_dy = m * tl.sum(g * ds_dy, 1)
        grad_dx = m * tl.sum(g * ds_dx, 1)
        tl.store(grad_mask + mask_plane * HW + pixel_of_image, grad_m, mask=is_pixel)
        tl.store(grad_offset + dy_plane * HW + pixel_of_image, grad_dy, mask=is_pixel)
        tl.store(grad_offset + dx_plane * HW + pixel_of_image, grad_dx, mask=is_pixel)

        # The gradients of the corners, from the gradient of the sample.
        grad_s = g * m[:, None]
        _add_to_corners(grad_x, first_index, is_used, grad_s, top, left, fy, fx, H, W, C)

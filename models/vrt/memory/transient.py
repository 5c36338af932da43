"""Estimate what the backward pass of a module takes on a GPU for a moment, in bytes.

The tensors that forward saves are not counted here, because count.py counts them.

What must stay: the estimates follow what the modules do. If you change what is recomputed, or how a
block or an alignment computes, change its estimate, too. tests/parts/models/test_fake_gpu.py
compares the estimates with a count of all tensors: for an alignment they are 2 to 10 % above it.
"""

from torch import Tensor

from models.vrt.block import Block
from models.vrt.chunk import Chunk
from models.vrt.chunk_sizes import has_kernel
from models.vrt.deform_align import DeformAlign
from models.vrt.deform_conv import TAPS
from models.vrt.forms import has_deform_conv, in_cpu_form
from models.vrt.layers import compute_dtype


def block_transient(block: Block, x: Tensor) -> int:
    """Estimate what the backward pass of a block takes on a GPU, in bytes.

    x: input of the block, (B, D, H, W, C).

    Returns 0 on a CPU, because chunks are small there. Also returns 0 for the plain form, which
    computes all windows at once. There, autograd saves the tensors of the forward pass, and
    count.py counts them. What the backward pass of the plain form allocates is not estimated.
    """
    if in_cpu_form(x) or block.runs_plain(x):
        return 0
    x = x.to(compute_dtype(x))
    largest_chunk = max(block.plan(x), key=_positions_of_chunk)
    # Backward holds the gradients of the block's output and input.
    numbers_of_gradients = 2 * x.numel()
    # For each token of a chunk, backward holds 13 numbers per channel, as counted with
    # tests/helpers/fake_gpu.py. With a smaller number, `netG.checkpoint=auto` would plan steps that
    # do not fit into the memory.
    numbers_per_token = 13 * x.shape[-1]
    if not has_kernel(x, largest_chunk.positions_per_window, block.attn.heads):
        # torch's attention writes a bias gradient (heads, T, T) for each window of T tokens. E.g. 6
        # heads and T = 128: 6 * 128 = 768 numbers of this gradient for each token.
        numbers_per_token += block.attn.heads * largest_chunk.positions_per_window
    numbers_of_chunk = len(largest_chunk.rows) * numbers_per_token
    return x.element_size() * (numbers_of_gradients + numbers_of_chunk)


def _positions_of_chunk(chunk: Chunk) -> int:
    """Return the number of positions of a chunk of windows, padding included."""
    return len(chunk.rows)


def alignment_transient(align: DeformAlign, target: Tensor) -> int:
    """Estimate what the backward pass of an alignment takes on a GPU, in bytes.

    target: the target frames, (n, d, h, w): n frames of d channels.

    Returns 0 on a CPU, where the tensors are small, because align_clip.py aligns a few frames at a
    time.
    """
    if in_cpu_form(target):
        return 0
    n, d, h, w = target.shape
    # Numbers per pixel of a frame. Each tap of an offset group has an offset (dy, dx) and a mask.
    offsets_and_masks = 3 * TAPS * align.offset_groups
    inputs_of_conv_net = (1 + align.source_count) * d  # the target and the sources
    samples = TAPS * align.source_count * d

    # In memory for all frames:
    #     three tensors of the size of the offsets and masks: the offsets and masks, their
    #         gradients, and their float32 copies
    #     four tensors of the size of the conv net's input
    #     the gradient of the result, d numbers
    # The sum has one term for each line of this list, in this order.
    for_all_frames = n * (3 * offsets_and_masks + 4 * inputs_of_conv_net + d)
    # In memory only for the frames that are sampled at a time.
    if has_deform_conv(target):
        for_sampled_frames = _frames_at_once_in_torchvision(n) * samples
    else:
        # deform_conv samples all frames at once, and there are four copies of the samples: the
        # samples, their products with the masks, and the gradients of both.
        for_sampled_frames = n * 4 * samples
    bytes_per_number = 4  # float32
    return h * w * bytes_per_number * (for_all_frames + for_sampled_frames)


# torchvision's kernel for GPUs samples at most this many frames at a time (kMaxParallelImgs in its
# source). Another number changes only the estimate.
MOST_FRAMES_OF_TORCHVISION = 32


def _frames_at_once_in_torchvision(n: int) -> int:
    """Return how many of n frames torchvision's kernel for GPUs samples at a time.

    The kernel divides the frames into batches of equal size, of at most 32 frames. E.g. 40 frames
    are two batches of 20 frames. So the size is the largest divisor of n up to 32.
    """
    largest = 1
    for count in range(1, MOST_FRAMES_OF_TORCHVISION + 1):
        if n % count == 0:
            largest = count
    return largest

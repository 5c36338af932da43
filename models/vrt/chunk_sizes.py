"""Say how many tokens or windows are computed at a time: the size of a chunk.

On a CPU a chunk is small enough for its tensors to stay in the cache. On a GPU a chunk is large
enough to keep the GPU busy. Larger chunks need more memory, smaller chunks need more calls.

What must stay: all numbers. Gradients are summed chunk by chunk, so another size changes the last
bits of a training, and existing runs would not resume exactly. No test notices this.
tests/parts/models/test_fake_gpu.py counts what a chunk needs in memory.
"""

from torch import Tensor

from models.vrt.forms import attention_has_kernel, has_kernels, in_cpu_form

# Tokens of a chunk on a CPU. The widest intermediate tensor of a chunk should fit the last-level
# cache, e.g. q, k and v of 120 channels each: 2048 tokens x 360 channels x 4 bytes = 3 MB.
CPU_TOKENS = 2048
# Tokens of a chunk on a GPU without our kernels, 131,072. The number was chosen by hand. E.g. with
# 360 channels of 2 bytes, each intermediate tensor of a chunk takes 94 MB.
GPU_TOKENS = 2**17
# With our kernels a chunk is 4 times as large, because the kernels need no memory per window.
# Fewer chunks need fewer launches: a step of eight clips on an H200 took 2.4 s instead of 3.4 s.
FACTOR_WITH_KERNELS = 4


def most_tokens(x: Tensor) -> int:
    """Return the largest number of tokens in a chunk.

    x: a tensor with the device and the dtype of the tokens.
    """
    if in_cpu_form(x):
        return CPU_TOKENS
    if has_kernels(x):
        return FACTOR_WITH_KERNELS * GPU_TOKENS
    return GPU_TOKENS


# On a GPU torch's attention writes one bias gradient per window. The bias gradients of a chunk may
# take at most this number of bytes, 537 MB. The bias gradient of a large window is large, so a
# chunk has fewer windows if they are large.
MOST_BYTES_OF_BIAS_GRADIENTS = 2**29


def most_windows(x: Tensor, window: tuple[int, int, int], heads: int) -> int:
    """Return the largest number of windows in a chunk of x (B, D, H, W, C), at least 1.

    On a GPU the windows of all samples count together.

    window: frames, height and width of a window.
    heads: number of heads of the attention.
    """
    tokens_of_window = 1
    for length, window_length in zip(x.shape[1:4], window, strict=True):
        tokens_of_window *= min(length, window_length)  # a window is never larger than the clip

    # E.g. windows of 6 x 8 x 8 = 384 tokens on a CPU: 2048 // 384 = 5 windows.
    windows = most_tokens(x) // tokens_of_window
    if not in_cpu_form(x) and not has_kernel(x, tokens_of_window, heads):
        # torch's attention writes one bias gradient (heads, T, T) per window of T tokens. E.g. 6
        # heads, 384 tokens, 2 bytes: 1.8 MB per window, so at most 303 windows.
        bias_bytes = heads * tokens_of_window**2 * x.element_size()
        windows = min(windows, MOST_BYTES_OF_BIAS_GRADIENTS // bias_bytes)
    return max(1, windows)  # at least one window, even if it exceeds a limit


def has_kernel(x: Tensor, tokens: int, heads: int) -> bool:
    """Say whether our kernel computes the attention of x (..., C) on a GPU.

    forms.has_kernels asks about the device and the dtype alone. Here the size of a window and of a
    head counts, too.

    tokens: number of tokens in a window.
    heads: number of heads of the attention.
    """
    channels_of_head = x.shape[-1] // heads
    return attention_has_kernel(x, tokens, channels_of_head)

"""Cut a clip into windows of tokens, and the windows into chunks.

A clip of D x H x W tokens (frames, height, width) is cut into windows, e.g. of 6 x 8 x 8 tokens.
Attention works within a window. `window_chunks` returns the cut as lists of token numbers, in three
steps:

    pad        each axis to a multiple of the window, by positions without a token
    shift      roll the tokens, so that shifted windows hold tokens of neighbouring windows of the
               block before
    partition  number the windows, and list the tokens of each window

E.g. 7 tokens along the width, windows of 4, a shift of 2, and -1 for a position without a token:

    not shifted   [0 1 2 3] [4 5 6 -1]
    shifted       [2 3 4 5] [6 -1 0 1]

After a shift, the last window along an axis holds tokens from both ends of the clip, here 6 and 0.
Tokens from different ends must not attend to each other, so this window has a mask.

The result is a tuple of `Chunk` (chunk.py). A chunk has the numbers of the tokens that are computed
together, and spans: a `Span` is a range of successive windows with the same mask.

Letters: T, the number of tokens in a window.

What must stay, and which test notices (in tests/parts/models):

    which token is in which window, and the masks       test_vrt_modules.py compares an attention
                                                        group with the published network
    the order of windows and of tokens                  test_windows.py. Another order changes the
                                                        last bits of the sums of gradients, so
                                                        existing runs would not resume exactly

The chunks depend only on sizes. The chunks are cached and shared by all blocks and networks of the
process, so do not modify a chunk. Free to change: how the numbers are computed.
"""

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from models.vrt.chunk import Chunk, Span

# Added to the logit of two tokens that must not attend to each other. The number is not -inf,
# because the published weights were trained with -100. attention/kernels/parts.py has the same
# number times log2(e): change both together.
MASKED = -100.0
Triple = tuple[int, int, int]  # frames, height, width


# maxsize: 128 results, because training and validation together have a few sizes, each with several
# windows and shifts. The tables are small compared with the weights. `mask_table`
# (attention/kernels/regions.py) caches two tables for each of these results: change both together.
# inference_mode(False): if a tensor was made in inference mode, autograd cannot save it for
# backward. If the first call came from inference mode, a training would later get such a tensor
# from the cache (test_a_network_first_used_in_inference_mode_still_trains).
@lru_cache(maxsize=128)
@torch.inference_mode(False)
def window_chunks(
    size: Triple,
    window: Triple,
    shift: Triple,
    device: torch.device,
    batch: int = 1,
    most: int | None = None,
) -> tuple[Chunk, ...]:
    """Pad, shift and partition the tokens of a clip into windows, and the windows into chunks.

    size: tokens of a clip (D, H, W).
    window: size of a window. If the clip is not longer than the window along an axis, there is one
        window along this axis. This window has the length of the clip, and is not shifted.
    shift: by how many tokens the windows are shifted along each axis.
    batch: number of clips in the batch. The tokens are numbered through all clips, clip after clip.
    most: largest number of windows in a chunk. None if one chunk is to hold all windows.

    Each token is in exactly one window. The windows are sorted by mask, so that the windows with
    the same mask are one span. There are at most 2 x 2 x 2 masks: along each of the three axes a
    window is the last one, or it is not.
    """
    window, shift = _fit_to_clip(size, window, shift)
    windows_of_clip = _partition(size, window, shift)  # (windows along D, along H, along W, T)
    tokens_of_clip = math.prod(size)
    windows, spans = _sorted_by_mask(windows_of_clip, window, shift, batch, tokens_of_clip, device)

    # Cut the list of windows into chunks. E.g. 10 windows with most=4: 0 ... 3, 4 ... 7, 8 ... 9.
    has_padding = windows_of_clip.numel() != tokens_of_clip  # some position holds no token
    if most is None:
        most = len(windows)
    chunks = []
    for first in range(0, len(windows), most):
        numbers = windows[first : first + most]
        spans_of_chunk = _cut_spans(spans, first, len(numbers))
        chunks.append(_make_chunk(numbers.flatten(), spans_of_chunk, has_padding, device))
    return tuple(chunks)


# ---- Pad, shift and partition ----------------------------------------------------------------


def _fit_to_clip(size: Triple, window: Triple, shift: Triple) -> tuple[Triple, Triple]:
    """Return a window that is no larger than the clip, and the shift of this window.

    The shift is 0 along each axis that has only one window.
    E.g. size (4, 64, 64), window (6, 8, 8), shift (3, 4, 4) -> (4, 8, 8) and (0, 4, 4).
    """
    fitted_window = list(window)
    fitted_shift = list(shift)
    for axis in range(3):
        if size[axis] <= window[axis]:
            fitted_window[axis] = size[axis]
            fitted_shift[axis] = 0
    return _triple(fitted_window), _triple(fitted_shift)


def _triple(sizes: list[int]) -> Triple:
    """Return a list of three numbers as a tuple, so that the type checker knows its length."""
    frames, height, width = sizes
    return frames, height, width


def _partition(size: Triple, window: Triple, shift: Triple) -> Tensor:
    """Return the numbers of the tokens in each window, (windows along D, along H, along W, T).

    Padding has the number -1. E.g. 7 tokens along the width, windows of 4, a shift of 2:

        padded        0 1 2 3 4 5 6 -1
        shifted       2 3 4 5 6 -1 0 1
        partitioned   [2 3 4 5] [6 -1 0 1]
    """
    # Pad.
    window_counts = []  # along each axis
    padded_size = []  # number of positions along each axis
    for length, window_length in zip(size, window, strict=True):
        window_count = math.ceil(length / window_length)
        window_counts.append(window_count)
        padded_size.append(window_count * window_length)
    frames, height, width = size
    numbers = torch.full(padded_size, -1)
    numbers[:frames, :height, :width] = torch.arange(math.prod(size)).view(size)

    # Shift. A negative number rolls towards the beginning of an axis.
    backwards = [-tokens for tokens in shift]
    numbers = numbers.roll(backwards, dims=(0, 1, 2))

    # Partition. Along each axis: nd, nh, nw windows of wd, wh, ww tokens. E.g. a width of 8 is
    # split into 2 windows of 4: position 6 becomes window 1, token 2.
    nd, nh, nw = window_counts
    wd, wh, ww = window
    numbers = numbers.view(nd, wd, nh, wh, nw, ww)
    numbers = numbers.permute(0, 2, 4, 1, 3, 5)  # (nd, nh, nw, wd, wh, ww)
    return numbers.reshape(nd, nh, nw, wd * wh * ww)


# ---- Windows with the same mask --------------------------------------------------------------


def _sorted_by_mask(
    windows_of_clip: Tensor,
    window: Triple,
    shift: Triple,
    batch: int,
    tokens_of_clip: int,
    device: torch.device,
) -> tuple[Tensor, list[Span]]:
    """List the windows of all clips, sorted by mask, and the spans of windows with the same mask.

    windows_of_clip: the token numbers of one clip, (windows along D, along H, along W, T).
    window, shift: size and shift of the windows along the three axes.
    batch: number of clips.
    tokens_of_clip: number of tokens of a clip.
    device: device of the masks.

    Returns two results:

        windows    the token numbers of all clips, (windows, T), -1 at padding
        spans      ranges of these windows, one range for each mask, in the same order
    """
    groups = []
    spans = []
    start = 0
    for group in _groups_of_mask(windows_of_clip, window, shift):
        # Token numbers: (windows of one clip, T) -> (windows of all clips, T).
        numbers = _in_all_clips(group.numbers, batch, tokens_of_clip)
        mask = None if group.mask is None else group.mask.to(device)
        stop = start + len(numbers)
        spans.append(Span(start, stop, mask))
        groups.append(numbers)
        start = stop
    return torch.cat(groups), spans


class _Group(NamedTuple):
    """The windows of a clip that have the same mask."""

    numbers: Tensor  # token numbers, (windows, T), -1 at padding
    mask: Tensor | None  # (T, T), on the CPU, or None for no mask


class _WindowRange(NamedTuple):
    """The windows first ... end - 1 along one axis. They need the same mask along this axis."""

    first: int
    end: int
    # Number of tokens at the end of each window that come from the other end of the clip.
    wrapped: int


def _groups_of_mask(windows_of_clip: Tensor, window: Triple, shift: Triple) -> Iterator[_Group]:
    """Yield the windows of one clip, group by group. The windows of a group have the same mask.

    Along a shifted axis the last window holds tokens from both ends of the clip, so it needs a
    mask. All windows before it need none. So a shifted axis has two ranges: the windows before the
    last one, and the last window. An axis without a shift is one range. Each combination of ranges
    is a group. E.g. 2 x 3 x 3 windows with a shift along height and width, but not along time:

        range in time   in height   in width   windows   mask
        0 ... 1         0 ... 1     0 ... 1    8         none
        0 ... 1         0 ... 1     2          4         along the width
        0 ... 1         2           0 ... 1    4         along the height
        0 ... 1         2           2          2         along both

    What must stay: the order of the groups, because it decides the order of sums, and so the last
    bits of every training result.

    windows_of_clip: the token numbers of one clip, (windows along D, along H, along W, T).
    """
    ranges_of_axes = []
    for count, shift_of_axis in zip(windows_of_clip.shape[:3], shift, strict=True):
        if shift_of_axis == 0:
            ranges_of_axes.append([_WindowRange(first=0, end=count, wrapped=0)])
        else:
            # E.g. a shift of 2 gives the last window [6 -1 0 1]: the tokens 0 and 1 come from the
            # other end. Padding (-1) comes before them, so their number is always the shift.
            before_last = _WindowRange(first=0, end=count - 1, wrapped=0)
            last = _WindowRange(first=count - 1, end=count, wrapped=shift_of_axis)
            ranges_of_axes.append([before_last, last])

    for in_time, in_height, in_width in itertools.product(*ranges_of_axes):
        numbers = windows_of_clip[
            in_time.first : in_time.end,
            in_height.first : in_height.end,
            in_width.first : in_width.end,
        ]
        numbers = numbers.reshape(-1, windows_of_clip.shape[3])  # (windows, T)
        if len(numbers) > 0:  # the range before the last window is empty if there is only one
            wrapped = (in_time.wrapped, in_height.wrapped, in_width.wrapped)
            yield _Group(numbers, _mask(window, wrapped))


def _mask(window: Triple, wrapped: tuple[int, ...]) -> Tensor | None:
    """Return the mask (T, T) of a window: MASKED for pairs from different ends of the clip, else 0.

    Returns None if no mask is needed, because all of `wrapped` are 0.

    wrapped: for each axis, the number of tokens at the end of the window that come from the other
        end of the clip.
    """
    if not any(wrapped):
        return None
    # Number the regions of the window: only tokens of the same region may attend to each other.
    # Each axis with wrapped tokens doubles the number of regions. E.g. a row of 4 tokens, of which
    # 2 are wrapped: 0 0 1 1. If 1 of 3 rows is wrapped, too:
    #
    #     0 0 1 1
    #     0 0 1 1
    #     2 2 3 3
    region = torch.zeros(window, dtype=torch.long)
    for axis, wrapped_count in enumerate(wrapped):
        if wrapped_count > 0:
            length = window[axis]
            is_wrapped = (torch.arange(length) >= length - wrapped_count).long()  # 0 or 1
            along_axis = [1, 1, 1]  # a shape that has a length only along this axis, e.g. (1, 4, 1)
            along_axis[axis] = length
            # Double the numbers, and add 1 where this axis is wrapped.
            region = 2 * region + is_wrapped.view(along_axis)
    region = region.flatten()  # (T,)
    is_same_region = region[:, None] == region[None, :]  # (T, T)
    return torch.where(is_same_region, 0.0, MASKED)


def _in_all_clips(numbers: Tensor, batch: int, tokens_of_clip: int) -> Tensor:
    """Return the windows (windows, T) of clip 0, then the same windows of clip 1, and so on.

    numbers: token numbers in clip 0, -1 at padding. E.g. clips of 7 tokens: the window 5 6 -1 of
        clip 0 is 12 13 -1 in clip 1.
    batch: number of clips.
    """
    is_padding = numbers < 0
    numbers_of_clips = []
    for clip_index in range(batch):
        in_clip = numbers + clip_index * tokens_of_clip
        numbers_of_clips.append(torch.where(is_padding, numbers, in_clip))  # padding stays -1
    return torch.cat(numbers_of_clips)


# ---- Chunks ----------------------------------------------------------------------------------


def _cut_spans(spans: list[Span], first: int, count: int) -> tuple[Span, ...]:
    """Return the spans of a chunk with the windows first ... first + count - 1.

    The result counts the windows from the first window of the chunk. E.g. the windows 0 ... 5 and
    6 ... 9 are spans, and the chunk has the windows 4 ... 7: Span(0, 6) and Span(6, 10), with
    first=4 and count=4, give Span(0, 2) and Span(2, 4).
    """
    spans_of_chunk = []
    for span in spans:
        # A span may begin before the chunk and end after it: take only the part in the chunk.
        start = max(span.start - first, 0)
        stop = min(span.stop - first, count)
        if start < stop:  # the span has a window of the chunk
            spans_of_chunk.append(Span(start, stop, span.mask))
    return tuple(spans_of_chunk)


def _make_chunk(
    numbers: Tensor, spans: tuple[Span, ...], has_padding: bool, device: torch.device
) -> Chunk:
    """Make the chunk of windows with these token numbers, (positions,), -1 at padding.

    `Chunk` has an example of its fields. If a clip has padding anywhere, all its chunks have the
    tensors `padding` and `kept`, also the chunks without padding.
    """
    if not has_padding:
        rows = numbers.to(device)
        return Chunk(rows=rows, results=rows, spans=spans)
    # E.g. numbers 6 -1 0 1: rows 6 0 0 1, results 6 0 1, padding F T F F, kept 0 2 3.
    kept = (numbers >= 0).nonzero().flatten()  # the positions that hold a token
    return Chunk(
        rows=numbers.clamp(min=0).to(device),
        results=numbers[kept].to(device),
        padding=(numbers < 0)[:, None].to(device),
        kept=kept.to(device),
        spans=spans,
    )

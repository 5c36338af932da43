"""Give each token the number of its region, which the attention kernels read instead of a mask.

Tokens of one region attend to each other, tokens of two regions do not. So one number for each
token is enough. A mask would be a T x T matrix for a window of T tokens.

What must stay: two tokens have the same number if the mask allows them to attend to each other, and
different numbers otherwise. tests/parts/models/test_triton.py has cases with masks. Free to change:
the numbers.
"""

from functools import lru_cache

import torch
from torch import Tensor

from models.vrt.chunk import Span


# 256 results: windows.window_chunks caches 128 plans of chunks, and each plan may need two tables
# here, one for self attention and one for mutual attention. With fewer results, tables would be
# made again.
@lru_cache(maxsize=256)
# The tables are saved for backward. torch does not save tensors that are made in inference mode, so
# this mode is off here.
@torch.inference_mode(False)
def mask_table(
    spans: tuple[Span, ...], tokens: int, mutual: bool, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Return what the kernels read instead of masks, or (None, None) if no window has a mask.

    spans: ranges of successive windows. All windows of a span have the same mask.
    tokens: number of tokens that attend to each other, T.
    mutual: whether the two frames of a window attend to each other. Then each frame counts as a
        window: n in the shapes below is twice the number of windows in `spans`.

    Returns (region_row, regions), both int32. regions (rows, T) has a row for each span: the number
    of the region of each token. region_row (n,) has for each window the number of its row in
    `regions`. E.g. two spans of 3 and 2 windows: region_row is 0 0 0 1 1. Both tensors are cached,
    so do not change them.
    """
    if all(span.mask is None for span in spans):
        return None, None
    regions = [_regions_of_tokens(span.mask, tokens).to(device, torch.int32) for span in spans]
    frames_of_window = 2 if mutual else 1
    windows_of_spans = torch.tensor([(span.stop - span.start) * frames_of_window for span in spans])
    region_row = torch.arange(len(spans)).repeat_interleave(windows_of_spans)
    return region_row.to(device, torch.int32), torch.stack(regions)


def _regions_of_tokens(mask: Tensor | None, tokens: int) -> Tensor:
    """Return the number of the region of each token, (T,): the first token of the region.

    E.g. tokens 0 to 3 and tokens 4 to 7 are two regions: 0 0 0 0 4 4 4 4.

    mask: 0 for two tokens of one region. None: all tokens are one region. The shape is (T, T). For
        a window of two frames it is (2 T, 2 T). Both frames have the same mask, so the first T
        rows and columns are enough.
    """
    if mask is None:
        return torch.zeros(tokens)
    # Tokens of one region have the same row of the mask. The first 0 in the row is the first token
    # of the region.
    attends = mask[:tokens, :tokens] == 0
    return attends.float().argmax(1)

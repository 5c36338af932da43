"""Number the regions of a window, so that the attention kernels need no mask.

The tokens of a window belong to regions. Two tokens may attend to each other only if they are in
the same region. So the kernels read one number per token, the number of its region, instead of a
T x T mask for a window of T tokens.

What must stay: two tokens have the same number if the mask allows them to attend to each other, and
different numbers otherwise. tests/parts/models/test_triton.py has cases with masks. Free to change:
which number a region has.
"""

from functools import lru_cache

import torch
from torch import Tensor

from models.vrt.chunk import Span


# maxsize: 256 results, because windows.window_chunks caches 128 results, and each of them may need
# two tables, one for self attention and one for mutual attention.
# inference_mode(False): the first call may come from inference mode, and a training may get its
# result from the cache. If a tensor was made in inference mode, autograd cannot save it for
# backward (test_a_network_first_used_in_inference_mode_still_trains).
@lru_cache(maxsize=256)
@torch.inference_mode(False)
def mask_table(
    spans: tuple[Span, ...], tokens: int, mutual: bool, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Return what the kernels read instead of masks, or (None, None) if no window has a mask.

    spans: ranges of successive windows. All windows of a span have the same mask.
    tokens: number of tokens that attend to each other, T.
    mutual: whether the two frames of a window attend to each other. If so, each frame counts as a
        window, and n in the shapes below is twice the number of windows in `spans`.

    Returns (region_row, regions), both int32:

        regions     (rows, T), one row per span: for each token, the number of its region
        region_row  (n,): for each window, its row in `regions`. E.g. for a span of 3 windows and a
                    span of 2 windows: 0 0 0 1 1

    Both tensors are cached: do not modify them.
    """
    if all(span.mask is None for span in spans):
        return None, None
    frames_of_window = 2 if mutual else 1
    regions = []
    region_row = []
    for row, span in enumerate(spans):
        regions.append(_regions_of_tokens(span.mask, tokens).to(device, torch.int32))
        window_count = (span.stop - span.start) * frames_of_window
        region_row += window_count * [row]
    return torch.tensor(region_row, dtype=torch.int32, device=device), torch.stack(regions)


def _regions_of_tokens(mask: Tensor | None, tokens: int) -> Tensor:
    """Return the number of the region of each token, (T,): the first token of the region.

    E.g. tokens 0 to 3 and tokens 4 to 7 are two regions: 0 0 0 0 4 4 4 4.

    mask: (T, T), with 0 for two tokens of one region. None if all tokens are one region. For a
        window of two frames, the shape is (2 T, 2 T). Both frames have the same mask, so the first
        T rows and columns are enough.
    """
    if mask is None:
        return torch.zeros(tokens)
    is_same_region = mask[:tokens, :tokens] == 0  # (T, T)
    # In the row of a token, the first True is the first token of its region. argmax finds the first
    # of several equal maxima. E.g. the row of token 5 is F F F F T T T T, so its region is 4.
    return is_same_region.float().argmax(1)

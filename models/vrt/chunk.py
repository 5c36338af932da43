"""Describe which tokens are computed together: a chunk, and the spans of windows in it.

windows.py makes the chunks of a block, and gated_mlp.py makes the chunks of a gated MLP.

What must stay: the meaning of the fields, because all computations of a block rely on it. Free to
change: new fields may be added. Tests: test_windows.py and test_block.py in tests/parts/models.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


# eq=False: a span is equal only to itself. regions.mask_table uses spans as keys of a cache. The
# cache compares its keys, and two tensors `mask` cannot be compared by value, because == gives a
# tensor.
@dataclass(frozen=True, eq=False)
class Span:
    """The windows start ... stop - 1 of a chunk, which share one mask."""

    start: int
    stop: int
    mask: Tensor | None  # (T, T), added to the logits, or None for no mask


@dataclass(frozen=True)
class Chunk:
    """Windows whose tokens are computed together.

    A window has positions. A position holds a token or padding. Example: the tokens 0 ... 6 in
    windows of 4 positions, shifted by 2:

        0 1 2 3   4 5 6 none      padded to two windows
        2 3 4 5 | 6 none 0 1      rolled by 2 to the left, and cut into windows

    The second window is this chunk:

        position   0   1     2   3
        token      6   none  0   1

        rows       6   0     0   1      one entry per position, 0 at padding
        padding    no  yes   no  no     one entry per position
        kept       0         2   3      the positions that hold a token
        results    6         0   1      the tokens at these positions

    A layer reads its input at `rows`, and writes its output to `results`.

    gated_mlp.GatedMlp computes each token separately, so it needs no windows. Its chunks are slices
    of consecutive tokens: rows and results are the same slice, and there are no spans.
    """

    # The index of the token at each position, window after window, 0 at padding: (positions,)
    # int64. `rows` is a slice in a chunk of `GatedMlp`. The type is Any and not Tensor | slice,
    # because each caller uses only one of the two.
    rows: Any
    # The indices of the tokens, without padding, in the order of `rows`: (tokens,) int64. In a
    # chunk of `GatedMlp`, `results` is the same slice as `rows`.
    results: Any
    # True at padding, (positions, 1). None if no position is padding.
    padding: Tensor | None = None
    # The positions that hold a token, (tokens,) int64. None if every position holds a token.
    kept: Tensor | None = None
    # Ranges of windows with the same mask, in order. Together they are all windows of the chunk.
    spans: tuple[Span, ...] = ()

    @property
    def positions_per_window(self) -> int:
        """Return T, the number of positions in a window, padding included.

        It is not defined for a chunk of `GatedMlp`, which has no windows.
        """
        window_count = self.spans[-1].stop  # the last span ends with the last window
        return len(self.rows) // window_count

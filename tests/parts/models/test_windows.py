"""models/vrt/windows.py: the order of the windows, and of the tokens in them.

Gradients are sums over the windows in this order. If a new version had another order, a run that
resumes with it would get other last bits.
"""

import torch

from models.vrt.windows import window_chunks
from tests.helpers.checked import not_none

NONE = -1  # a position without a token


def test_windows_and_tokens_keep_their_order():
    # Two clips of one frame of 3 x 5 tokens, numbered row by row:
    #
    #     0  1  2  3  4        15 16 17 18 19
    #     5  6  7  8  9        20 21 22 23 24
    #    10 11 12 13 14        25 26 27 28 29
    #
    # Each frame is padded to 4 x 8 tokens, and rolled by one row and two columns. A frame has four
    # windows, of 2 x 4 tokens each. These are the windows of the first frame (a point is a position
    # without a token):
    #
    #      7  8  9  . |  .  .  5  6
    #     12 13 14  . |  .  . 10 11
    #     ------------+------------
    #      .  .  .  . |  .  .  .  .
    #      2  3  4  . |  .  .  0  1
    [chunk] = window_chunks(
        size=(1, 3, 5), window=(1, 2, 4), shift=(0, 1, 2), device=torch.device("cpu"), batch=2
    )

    tokens = chunk.rows.masked_fill(not_none(chunk.padding).flatten(), NONE)
    assert tokens.view(-1, 8).tolist() == [
        # The upper left window of the first clip comes first, then the upper left window of the
        # second clip.
        [7, 8, 9, NONE, 12, 13, 14, NONE],
        [22, 23, 24, NONE, 27, 28, 29, NONE],
        # The upper right windows have columns of both ends of the frame.
        [NONE, NONE, 5, 6, NONE, NONE, 10, 11],
        [NONE, NONE, 20, 21, NONE, NONE, 25, 26],
        # The lower left windows.
        [NONE, NONE, NONE, NONE, 2, 3, 4, NONE],
        [NONE, NONE, NONE, NONE, 17, 18, 19, NONE],
        # The lower right windows.
        [NONE, NONE, NONE, NONE, NONE, NONE, 0, 1],
        [NONE, NONE, NONE, NONE, NONE, NONE, 15, 16],
    ]
    assert [(span.start, span.stop) for span in chunk.spans] == [(0, 2), (2, 4), (4, 6), (6, 8)]

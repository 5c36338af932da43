"""Find numbers in ranges that follow one another: the samples of clips, the files of clips, ...

Clips of 2, 3 and 1 frames have, among the frames of all clips, the numbers

    clip 0    0 1
    clip 1    2 3 4
    clip 2    5

The ranges are stored as `begins`: the first number of each range, and then the end of the last
range, here [0, 2, 5, 6]. So range i has the numbers begins[i] ... begins[i + 1] - 1.

What must stay: the results, because samples are numbered with these functions.

Tests: tests/parts/data/test_sample_numbers.py, tests/parts/data/test_kept.py
"""

from collections.abc import Sequence

import numpy as np


def begins_of(counts: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the first number of each range, and then the end of the last range.

    counts: how many numbers each range has. E.g. [2, 3] gives [0, 2, 5].
    """
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def first_and_end(begins: np.ndarray, index: int) -> tuple[int, int]:
    """Return the first number of range `index`, and the number after its last number.

    begins: result of `begins_of`. E.g. [0, 2, 5] and index 1 give (2, 5).
    """
    return int(begins[index]), int(begins[index + 1])


def range_of(number: int, begins: np.ndarray) -> int:
    """Return the index of the range that contains a number.

    begins: result of `begins_of`. With [0, 3, 8], the numbers 0 ... 2 are in range 0 and the
    numbers 3 ... 7 are in range 1.
    """
    ends = begins[1:]
    # The result is the number of ranges that end at or before `number`. E.g. with the ends [3, 8],
    # one range ends at or before number 3, so number 3 is in range 1.
    return int(np.searchsorted(ends, number, side="right"))

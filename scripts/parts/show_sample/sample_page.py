"""The records of the page of show_sample.py, which utils/templates/sample.html reads.

    Page            what the page shows
        Verdict     whether spikes and frames agree
        Section     a title, and rows of pictures
    enlarge         an image in which single pixels can be seen

What must stay: the names of the fields, because the template uses them. So rename a field in both
places (test_the_page_is_whole_in_a_browser).
Free to change: LEAST_WIDTH. Free to add: a field. The page shows it only if the template uses it.

Tests: tests/parts/scripts/test_show_sample.py
"""

import math
from typing import Any, NamedTuple

import cv2
import numpy as np

# Narrower images are enlarged by repeating pixels, so that a reader can see single pixels.
LEAST_WIDTH = 256


class Picture(NamedTuple):
    """An image of the page and the text below it."""

    caption: str
    image: np.ndarray  # (H, W, 3) uint8


class Row(NamedTuple):
    """Pictures that the page shows side by side."""

    title: str  # "" for no title
    pictures: list[Picture]


class Section(NamedTuple):
    """Rows of pictures under a title."""

    title: str
    rows: list[Row]


class Verdict(NamedTuple):
    """Whether spikes and frames show the same thing at the same place."""

    sentence: str  # the first sentence of the page
    style: str  # class of the style sheet of the page: "none", "right" or "wrong"
    numbers: str  # what was measured, in words. "" without spikes
    # A data.alignment.Comparison, or None without spikes. The type is Any, because the module of
    # Comparison imports torch, and --help must not wait for torch.
    comparison: Any


class Page(NamedTuple):
    """What the page shows."""

    title: str
    verdict: Verdict
    # The rows of the table: name of a row -> text. `main` puts the row "options" before them.
    facts: dict[str, str]
    sections: list[Section]


def enlarge(image: np.ndarray) -> np.ndarray:
    """Return a copy of an image (H, W, 3), at least LEAST_WIDTH wide, with each pixel repeated."""
    factor = math.ceil(LEAST_WIDTH / image.shape[1])
    return cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)

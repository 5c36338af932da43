"""Draw the PSNR of each frame of a clip as an SVG, for the page of results.

report.py passes the PSNR of each frame. `psnr_plot` returns numbers, from which the template
utils/templates/test.html draws the plot.

What must stay: the keys of the result, which are names in the template. Free to change: the sizes.
The template repeats the margins, so change them in both files.

Tests: tests/parts/utils/test_results.py
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def psnr_plot(lines: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the numbers of an SVG of PSNR over the frame number, for the template of the report.

    Infinite values (equal images) are drawn at the upper end
    (test_an_infinite_psnr_is_drawn_within_the_plot).

    lines: "restored" and "input" -> dB of each frame.
    """
    low, high = _range_of_psnr(lines)

    # Size of the picture in pixels, and the margins. The template draws the numbers of the axes in
    # the margins. All sizes were chosen by hand. utils/templates/test.html repeats the margins, so
    # change them in both files.
    width = 760
    height = 150
    left = 44
    right = 10
    above = 10
    below = 24
    plot_width = width - left - right
    plot_height = height - above - below
    frame_count = max(len(values) for values in lines.values())
    # Number of steps from the first to the last frame. It must be at least 1, because `x` is
    # divided by this number.
    steps = max(frame_count - 1, 1)
    polylines = {}
    for kind, values in lines.items():
        level = (np.minimum(values, high) - low) / (high - low)  # 0 (low) to 1 (high)
        x = left + plot_width * np.arange(len(values)) / steps
        # Pixels are counted from the top, so level 1 is at 10, and level 0 is at 10 + 116 = 126.
        y = above + plot_height * (1 - level)
        # The form of an SVG polyline: "44.0,75.2 58.6,70.1 ..."
        points = [f"{px:.1f},{py:.1f}" for px, py in zip(x, y, strict=True)]
        polylines[kind] = " ".join(points)
    # The keys are names in the template of the report.
    return {
        "width": width,
        "height": height,
        "low": low,
        "high": high,
        "count": frame_count,
        "lines": polylines,
    }


def _range_of_psnr(lines: Mapping[str, Sequence[float]]) -> tuple[int, int]:
    """Return the ends (low, high) of the vertical axis of `psnr_plot`, in whole dB.

    E.g. values from 28.3 to 31.2 dB -> (28, 32). The range has at least 1 dB. Without a finite
    value it is (0, 1).
    """
    finite_values = []
    for values in lines.values():
        finite_values += [value for value in values if np.isfinite(value)]
    if not finite_values:
        finite_values = [0.0]
    low = int(np.floor(min(finite_values)))
    high = int(np.ceil(max(finite_values)))
    if high == 0:  # e.g. no finite value: the axis goes from 0 to 1 dB
        high = 1
    if high == low:  # all values are the same whole number
        high = low + 1
    return low, high

"""Print what `spike_tool.py info` says of a spike file.

    print_info             all of it: the lines below, in this order
        print_candidates   a row for each size that the file may have
        print_verdict      the most likely size, or why no size is clear
        print_bit_order    which bit of a byte is the first pixel
        print_intervals    planes between two spikes of a pixel
        print_fit          with a picture: order of the rows, kind of light, and rate

spike_ranking.py decides which size is most likely. This module only prints the decision.

What must stay: what needs the right geometry is printed only if the geometry is clear
(test_info_names_no_size_if_none_gives_a_picture).
Free to change: the words, except where tests/parts/scripts/test_spike_tool.py quotes them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from data.clips.pictures import read_bgr
from data.clips.spike_check import LEAST_CORRELATION
from data.clips.user_spike_files import check_same_view
from data.disagreement import INVERT_ADVICE, INVERTED_CORRELATION
from data.spike import formats
from data.spike.geometry import SpikeGeometry
from data.spike.light_fit import fit_light
from data.spike.pictures import to_grey
from scripts.parts.spike_tool.spike_geometry import BIT_ORDERS, GeometryOptions
from scripts.parts.spike_tool.spike_ranking import Candidate, Ranking
from scripts.parts.spike_tool.spike_sizes import correlation

# Largest number of sizes that the line "fit too: ..." names. More would fill the screen.
MOST_NAMED = 40
# Least difference in smoothness between the two bit orders. With a smaller difference, the bit
# order is not judged. This limit is smaller than CLEAR_LEAD of spike_ranking.py, because a wrong
# bit order changes only the correlation along the rows.
CLEAR_ORDER = 0.01


def print_info(path: Path, options: GeometryOptions, picture: Path | None) -> None:
    """Print which geometries a file may have, and, if one is clear, what its spikes show.

    picture: file of a frame that was taken in the middle of the spike file, or None.
    """
    shape = formats.array_shape(path)  # None for a packed file
    is_packed = shape is None
    grey = None
    picture_size = None
    if picture is not None:
        grey = read_grey(picture)
        picture_size = grey.shape

    ranking = Ranking(path, options, picture_size)
    form = "packed planes" if is_packed else f"an array {shape}"
    print(f"{path}: {path.stat().st_size} bytes, {form}")
    print_candidates(ranking.shown)
    print_verdict(ranking)
    # What follows needs the right geometry.
    if not ranking.is_clear:
        return

    best = ranking.shown[0]
    # An array has no bit order, and the bit order of an SPS100 file is known.
    if is_packed and best.file.geometry.layout == "raster":
        print_bit_order(path, best.file.geometry)
    print_intervals(best.spikes)
    if picture is not None and grey is not None:
        print_fit(best.rates, grey, picture)
    elif is_packed:
        print("  only the image shows whether rows are flipped: spike_tool.py view, or --picture")


def read_grey(picture: Path) -> np.ndarray:
    """Return a picture as grey values (h, w) in [0, 1]."""
    bgr = read_bgr(str(picture))  # (h, w, 3), blue first
    rgb = bgr[..., ::-1]
    return to_grey(rgb) / 255.0


def print_candidates(shown: Sequence[Candidate]) -> None:
    """Print a row for each candidate, and below it what speaks against it."""
    best = shown[0]
    print("  smoothness  height x width  planes  spikes per plane and pixel")
    for candidate in shown:
        rates = candidate.rates
        print(
            f"  {candidate.score:10.3f}  {candidate.name:>14}  {candidate.file.planes:6}  "
            f"{rates.mean():.4f} (pixels {rates.min():.3f} to {rates.max():.3f})"
        )
        # The doubts are printed below the last column, so each line begins with three empty
        # columns, as wide as the columns of the row.
        for doubt in candidate.doubts(best):
            print(f"  {'':10}  {'':>14}  {'':6}  against it: {doubt}")


def print_verdict(ranking: Ranking) -> None:
    """Print the most likely size, or the sizes that may be right. Then print which were tried.

    Prints nothing if the size is given.
    """
    if ranking.is_given:
        return
    if ranking.is_clear:
        best = ranking.shown[0]
        print(f"  most likely {best.name}: neighbouring pixels resemble one another")
    else:
        do = "--size H W" if ranking.picture else "--size H W, or --picture FRAME for its shape"
        print(f"  the size is not clear: {why_unclear(ranking)}; give {do}")

    print(f"  tried: {ranking.tried()}")
    if ranking.others:
        names = [f"{height} x {width}" for height, width in ranking.others[:MOST_NAMED]]
        unnamed = len(ranking.others) - len(names)
        more = f" and {unnamed} more" if unnamed else ""
        print(f"  fit too: {', '.join(names)}{more}")


def why_unclear(ranking: Ranking) -> str:
    """Return why no size of a ranking is clear, for the sentence "the size is not clear: ..."."""
    best = ranking.shown[0]
    if best.doubts(best):
        return "none of them gives an image without doubt"
    names = [candidate.name for candidate in ranking.nearly_best()]
    return f"it may be {' or '.join(names)}"


def print_bit_order(path: Path, geometry: SpikeGeometry) -> None:
    """Print which bit of a byte is its first pixel.

    A wrong bit order mirrors each group of 8 pixels in a row. So neighbouring columns resemble one
    another less. The file is read with both bit orders, and the smoother image has the right one.

    Test: test_info_finds_the_bit_order
    """
    # The smoothness along the rows, i.e. the correlation of each column with the next column.
    little = Candidate(path, replace(geometry, bit_order="little")).smooth["columns"]
    big = Candidate(path, replace(geometry, bit_order="big")).smooth["columns"]
    order = "little" if little >= big else "big"
    verdict = "the bit order cannot be judged"
    if abs(little - big) >= CLEAR_ORDER:
        verdict = f"bit order {order}: {BIT_ORDERS[order]}"
    print(f"  {verdict} (smoothness along rows: little {little:.3f}, big {big:.3f})")


def print_intervals(spikes: np.ndarray) -> None:
    """Print how many planes lie between two spikes of a pixel: least, most and median.

    spikes: (planes, h, w), 0 or 1.
    """
    spikes_of_pixels = spikes.reshape(len(spikes), -1).T  # (pixels, planes)
    # np.nonzero lists the spikes pixel by pixel, and the spikes of a pixel in the order of time. So
    # the difference between two successive spikes is an interval, if both belong to the same pixel.
    # E.g. three spikes of the pixels 0, 0 and 1, in the planes 3, 7 and 2:
    #
    #     differences of planes    4  -5
    #     same pixel               yes no     -> one interval, 4
    pixels, planes = np.nonzero(spikes_of_pixels)
    is_same_pixel = np.diff(pixels) == 0
    intervals = np.diff(planes)[is_same_pixel]
    if intervals.size:
        print(
            f"  planes between spikes: {intervals.min()} to {intervals.max()}, median "
            f"{np.median(intervals):.0f}"
        )


def print_fit(rates: np.ndarray, grey: np.ndarray, path: Path) -> None:
    """Print what a picture of the same time says about the spikes.

    rates: (h, w), spikes per plane.
    grey: the picture, (H, W) in [0, 1].
    path: path of the picture, for errors.
    """
    check_same_view(grey.shape, rates.shape, str(path))
    height, width = rates.shape
    grey = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    print(f"  {fit_in_words(rates, grey)}")


def fit_in_words(rates: np.ndarray, grey: np.ndarray) -> str:
    """Return the light and the rate for dataset.json, or why the picture does not show them.

    The light is what the sensor integrates: "linear" light, or "display" values, as a screen shows.

    rates: (h, w), spikes per plane. grey: the picture in the same size, in [0, 1].

    Tests: test_info_tells_which_light_the_spikes_integrate,
    test_info_proposes_no_light_by_the_picture_of_another_scene,
    test_info_says_that_bits_are_inverted
    """
    upright = correlation(grey, rates)
    flipped = correlation(grey, rates[::-1])  # the rows in reversed order
    # Spikes of inverted bits are dark where the picture is bright: their correlation is negative.
    # The strongest of the correlations tells what the file holds.
    lowest = min(upright, flipped)
    if lowest <= INVERTED_CORRELATION and -lowest > max(upright, flipped):
        rows = ", and the rows seem upside down" if flipped < upright else ""
        return (
            f"the bits seem inverted{rows}: correlation with the picture {upright:.2f}, flipped "
            f"{flipped:.2f}. Cure: {INVERT_ADVICE}"
        )
    if flipped > max(upright, 0.0):
        return (
            f"the rows seem upside down: correlation with the picture {upright:.2f}, "
            f"flipped {flipped:.2f}"
        )
    # A picture of another place or time may fit one kind of light by chance. So do not look for the
    # light with such a picture.
    if grey.std() > 0 and upright < LEAST_CORRELATION:
        return (
            f"the picture does not resemble the spikes: correlation {upright:.2f}. So it does not "
            "tell their light and rate"
        )
    fit = fit_light(rates, grey)  # tries both kinds of light
    errors = ", ".join(f"{light} {100 * error:.0f} %" for light, error in fit.errors.items())
    if not fit.is_clear:
        return (
            "the picture does not show which light the spikes integrate (error of the "
            f"fits: {errors})"
        )
    return (
        f'for dataset.json: "light": "{fit.light}", "rate": {fit.rate:.3f} (error of '
        f"the fits: {errors})"
    )

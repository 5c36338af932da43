"""Say in words why spikes and frames do not agree, and which options to check.

Four causes are tried one after the other:

    flipped    the spikes correlate with the frame after a flip
    inverted   the spikes are dark where the frame is bright
    shifted    the phase correlation is sure of a shift
    unknown    none of these is found. E.g. the spikes belong to another frame, the size of the
               planes is wrong, or the picture has no texture

What must stay: the options that a text names, because the user checks them. Free to change: the
other words.

Tests: tests/parts/data/test_disagreement.py, tests/parts/scripts/test_show_sample.py
"""

from collections.abc import Sequence

import numpy as np

from data.edge_shift import LEAST_CORRELATION, LEAST_RESPONSE, Measures, Pair, measure

# What the user can do if the files have 0 for a spike. Other files show this text, too.
INVERT_ADVICE = (
    "a bit of 1 must mean a spike. Invert a packed file by "
    "(~numpy.fromfile(FILE, numpy.uint8)).tofile(NEW_FILE), or read the files by a spike source "
    "that inverts them (docs/extending.md)"
)
# The brightness of two pictures must have at most this correlation to count as inverted. On a demo
# clip, the correlation is 0.97 and more, and with inverted bits -0.93 and less, with the
# representations relative, tfp, voxel and raw. Spikes of another place reached -0.62.
INVERTED_CORRELATION = -0.8
# The same limit if the edges of both pictures are at the same places, which is a second sign that
# both show the same. Blur weakens the correlation of the brightness. Chosen by hand.
INVERTED_CORRELATION_IF_EDGES_AGREE = -0.5


def are_inverted(pairs: Sequence[Pair], measures: Measures) -> bool:
    """Return whether the spikes are dark where the frame is bright, in the mean of the pairs.

    Inverted spikes have edges at the same places as the frame, so `measure` does not notice them:
    it compares how strong the edges are, and not which side is brighter.

    pairs: two pictures of each measured frame. measures: the result of `measure` for them.
    """
    correlations = []
    for pair in pairs:
        # The correlation of a picture of one colour would be 0 / 0.
        if pair.spikes.std() == 0 or pair.frame.std() == 0:
            return False
        # corrcoef returns a matrix (2, 2) with 1 on its diagonal.
        correlations.append(np.corrcoef(pair.spikes.ravel(), pair.frame.ravel())[0, 1])
    limit = INVERTED_CORRELATION
    if measures.correlation >= LEAST_CORRELATION:
        limit = INVERTED_CORRELATION_IF_EDGES_AGREE
    return bool(np.mean(correlations) <= limit)


def what_differs(
    pairs: Sequence[Pair], measures: Measures, pixel_side: int, is_calibrated: bool
) -> str:
    """Return in words why spikes and frames do not agree. The text names the options to check.

    pairs: two pictures of each measured frame, one from the spikes and one of the frame.
    measures: the result of `measure` for these pairs: `correlation` of the edges, `shift` (right,
    down) in RGB pixels, and `response`, which says how sure the shift is.
    pixel_side: number of RGB pixels along a spike pixel.
    is_calibrated: whether a calibration says where the spikes lie.
    """
    # A picture of one value has neither edges nor brightness to compare.
    if all(pair.spikes.std() == 0 for pair in pairs):
        return (
            "the picture of the spikes has one value everywhere, as if no pixel fired, or all: "
            "check that the file holds spikes"
        )

    # Flipped: the spikes correlate with the frame only after a flip.
    if measures.correlation < LEAST_CORRELATION:
        flipped = _flip_in_words(pairs, measures, pixel_side)
        if flipped:
            return flipped

    # Inverted: tried before a shift, because inverted spikes also look shifted by about a pixel.
    if are_inverted(pairs, measures):
        return f"the bits of the spikes seem inverted: {INVERT_ADVICE}"

    # Shifted: the phase correlation has a clear peak (a high response), so the shift is sure. A
    # shift that is too small to be named gives "" here.
    shift = _shift_in_words(measures.shift)
    if shift and measures.response >= LEAST_RESPONSE:
        return (
            f"the spikes are shifted by {shift}: check spike.calibration of two cameras, "
            "spike.head_columns, and the planes (spike.first, spike.exposure, spike.center)"
        )

    # With a calibration, the sizes spike.h and spike.w come from its file.
    keys = "spike.flip, spike.h and spike.w, spike.calibration"
    if is_calibrated:
        keys = "spike.calibration, spike.flip"
    return (
        f"check {keys}, and that these are the spikes of this frame. Without texture, no geometry "
        "can be judged: look at other samples"
    )


# The flips that are tried on the spikes: {words of the warning: index into a picture (H, W)}. E.g.
# np.s_[::-1] reverses the rows.
FLIPS = {
    "upside down (spike.flip)": np.s_[::-1],
    "mirrored left to right (spike.calibration, key mirror)": np.s_[:, ::-1],
    "turned by 180 degrees (spike.calibration, key mirror, and spike.flip)": np.s_[::-1, ::-1],
}


def _flip_in_words(pairs: Sequence[Pair], measures: Measures, pixel_side: int) -> str:
    """Return in words the first flip after which the spikes correlate with the frame, or "".

    pairs: two pictures of each measured frame.
    measures: the result of `measure` without a flip.
    pixel_side: number of RGB pixels along a spike pixel.
    """
    # slices: the index that flips a picture, e.g. np.s_[::-1].
    for flip, slices in FLIPS.items():
        flipped_pairs = [Pair(pair.spikes[slices], pair.frame) for pair in pairs]
        correlation = measure(flipped_pairs, pixel_side).correlation
        if correlation >= LEAST_CORRELATION:
            return (
                f"the spikes are {flip}; correlation {measures.correlation:.2f}, flipped "
                f"{correlation:.2f}"
            )
    return ""


# Smallest shift along one axis that the warning names, in RGB pixels. Smaller shifts are noise.
# Chosen by hand.
SMALLEST_NAMED_SHIFT = 0.35


def _shift_in_words(shift: tuple[float, float]) -> str:
    """Return a shift (right, down) in words: (3.0, -1.5) -> "3.0 px to the right and 1.5 px up".

    Returns "" if the shift is smaller than `SMALLEST_NAMED_SHIFT` along both axes.
    """
    right, down = shift
    to_the_side = "to the left" if right < 0 else "to the right"
    up_or_down = "up" if down < 0 else "down"
    words = []
    if abs(right) >= SMALLEST_NAMED_SHIFT:
        words.append(f"{abs(right):.1f} px {to_the_side}")
    if abs(down) >= SMALLEST_NAMED_SHIFT:
        words.append(f"{abs(down):.1f} px {up_or_down}")
    return " and ".join(words)

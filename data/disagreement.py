"""Say in words why spikes and frames do not agree, and which options to check.

Three causes are tried one after the other:

    flipped    the spikes correlate with the frame after a flip
    shifted    the phase correlation is sure of a shift
    unknown    neither a flip nor a shift is found. E.g. the spikes belong to another frame, the
               size of the planes is wrong, or the picture has no texture

What must stay: the options that a text names, because the user checks them. Free to change: the
other words.

Tests: tests/parts/data/test_disagreement.py, tests/parts/scripts/test_show_sample.py
"""

from collections.abc import Sequence

import numpy as np

from data.edge_shift import LEAST_CORRELATION, LEAST_RESPONSE, Measures, Pair, measure


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
    # Flipped: the spikes correlate with the frame only after a flip.
    if measures.correlation < LEAST_CORRELATION:
        flipped = _flip_in_words(pairs, measures, pixel_side)
        if flipped:
            return flipped

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

"""Compare the spikes of one sample with its frames: do they show the same scene, at the same place?

The sharp instant is the time of the sharp frame. The spikes around this instant are compared with
the sharp frame. If there is no sharp frame, the spikes of the whole exposure are compared with the
blurry frame, because the mean of these spikes is as blurry as the blurry frame.

`compare` works in three steps. data/alignment_check.py and scripts/show_sample.py call `compare`.

    1. pictures of some frames and of their spikes are read (data/alignment_pictures.py)
    2. their correlation and their shift are measured (data/edge_shift.py)
    3. a sentence says the result (data/disagreement.py makes it if spikes and frames disagree)

What must stay: the names of the fields of `Comparison`, because scripts/show_sample.py reads them.
Free to change: the limits, if they are measured anew, and the sentence, together with the tests.

Tests: tests/parts/scripts/test_show_sample.py (which shift is found),
tests/parts/data/test_two_cameras.py
"""

import dataclasses
from typing import Any

import numpy as np

from data.alignment_pictures import MiddleFrame, pairs_of_sample, with_mean_of_exposure
from data.clip_reading import Draw
from data.disagreement import are_inverted, what_differs
from data.edge_shift import LEAST_CORRELATION, measure

# Largest shift in spike pixels that counts as agreement. A blurry frame may differ more, because
# the middle of its blur may show another instant than the sharp frame. Larger limits would hide a
# wrong calibration. Smaller limits would warn of shifts that come only from the noise of few
# spikes.
MOST_SHIFT_OF_SHARP = 0.5  # from a sharp frame
MOST_SHIFT_OF_BLURRY = 2.0  # from a blurry frame


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How well the frames of a sample fit their spikes. scripts/show_sample.py reads the fields."""

    # `Measures` (data/edge_shift.py) also has the first three fields.
    correlation: float  # of the gradients of spikes and frames, 1 if the gradients are alike
    shift: tuple[float, float]  # of the spikes from the frame, (right, down) in RGB pixels
    response: float  # height of the peak of the phase correlation, by which the shift was found
    is_right: bool  # whether spikes and frames show the same at the same place
    sentence: str  # the result in words, e.g. "Spikes and frame agree to 0.3 px."
    kind: str  # kind of the compared frames, "gt" or "lq"
    frame_count: int  # number of compared frames
    middle: MiddleFrame


def compare(dataset: Any, draw: Draw, count: int) -> Comparison:
    """Compare the spikes of a sample with its frames.

    dataset: the dataset of the sample, a `ClipDataset` (data/clip_reading.py). Its method `read`
        returns the tensors of a draw.
    draw: the sample: its clip, the numbers of its frames, and its crop. The clip must have spikes.
    count: number of frames to measure, evenly spaced in the sample. The middle frame is measured,
        too, so there may be one frame more. If the sample has fewer frames, all are measured.
    """
    kind = "gt" if draw.clip.gt else "lq"  # sharp frames, or blurry frames
    if kind == "lq":
        # A blurry frame shows the whole exposure. So compare it with a single spike channel, the
        # mean of all planes of the exposure. (A plane is one binary picture of the spike camera.)
        draw = with_mean_of_exposure(draw)
    pairs, middle = pairs_of_sample(dataset, draw, count, kind)

    pixel_side = draw.clip.grid.rgb_per_spike_pixel  # number of RGB pixels along a spike pixel
    measures = measure(pairs, pixel_side)
    right, down = measures.shift
    distance = float(np.hypot(right, down))  # RGB pixels
    # E.g. 0.5 spike pixels are 1 RGB pixel if a spike pixel has a side of 2 RGB pixels.
    most_spike_pixels = MOST_SHIFT_OF_SHARP if kind == "gt" else MOST_SHIFT_OF_BLURRY
    is_near = distance <= pixel_side * most_spike_pixels
    has_same_edges = measures.correlation >= LEAST_CORRELATION
    is_right = has_same_edges and is_near and not are_inverted(pairs, measures)
    if is_right:
        # The distance is in RGB pixels. A very small distance would be printed as 0.0 px, so the
        # text says at least 0.1 px.
        sentence = f"Spikes and frame agree to {max(distance, 0.1):.1f} px."
    else:
        is_calibrated = draw.clip.spikes.calibration is not None
        wrong = what_differs(pairs, measures, pixel_side, is_calibrated)
        sentence = f"They do not agree: {wrong}."
    return Comparison(
        correlation=measures.correlation,
        shift=measures.shift,
        response=measures.response,
        is_right=is_right,
        sentence=sentence,
        kind=kind,
        frame_count=len(pairs),
        middle=middle,
    )

"""Compare the spikes of one sample with its frames: do they show the same at the same place?

The spikes around the sharp instant are compared with the sharp frame. If there is no sharp frame,
the spikes of the whole exposure are compared with the blurry frame. The reason: strong motion blurs
the frame, and then the frame shows no edges of the sharp instant.

`compare` reads some frames, turns their spikes into pictures, measures (data/edge_shift.py), and
says the result in a sentence (data/disagreement.py, if they do not agree). data/alignment_check.py
and scripts/show_sample.py use it.

"gt" is the sharp frame, and "lq" is the blurry frame. A draw (class `Draw`) says what a sample is:
the clip, the numbers of its frames, and the crop. A spike pixel is `pixel` RGB pixels wide.

Tests: tests/parts/scripts/test_show_sample.py (which shift is found),
tests/parts/data/test_two_cameras.py
"""

import dataclasses
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from data.augment import Augment
from data.clip import Exposure
from data.clip_reading import Draw
from data.disagreement import what_differs
from data.edge_shift import LEAST_CORRELATION, Pair, measure
from data.spike.pictures import to_grey
from utils.image import tensor_to_uint8

# Largest shift in spike pixels that counts as agreement. A blurry frame may differ more, because
# the middle of its blur need not be the sharp instant.
MOST_SHIFT_OF_SHARP = 0.5
MOST_SHIFT_OF_BLURRY = 2.0


class MiddleFrame(NamedTuple):
    """The middle frame of a sample and its spikes, for the page of scripts/show_sample.py."""

    name: str  # kind and file name without ending, e.g. "gt 000012"
    frame: np.ndarray  # (sH, sW, 3) uint8; s is the scale, 1 without super-resolution
    spikes: np.ndarray  # (H, W) display values, picture of the spikes at the sharp instant


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How well the frames of a sample fit their spikes. Whole frames are compared, no crops.

    With two cameras, only the region is compared that both of them see. scripts/show_sample.py
    reads the fields.
    """

    # The first three are explained in `Measures`.
    correlation: float
    shift: tuple[float, float]
    response: float
    is_right: bool  # whether spikes and frames show the same at the same place
    sentence: str  # the result in words, e.g. "Spikes and frame agree to 0.3 px."
    kind: str  # kind of the compared frames, "gt" or "lq"
    frame_count: int  # number of compared frames
    middle: MiddleFrame


def compare(dataset: Any, draw: Draw, count: int) -> Comparison:
    """Compare the spikes of a sample with its frames.

    dataset: the dataset of the draw. It reads the frames and spikes.
    draw: the sample.
    count: number of frames of the sample to measure. The middle frame is measured in any case.
    """
    kind = "gt" if draw.clip.gt else "lq"
    if kind == "lq":
        draw = _with_mean_of_exposure(draw)
    pairs, middle = _pairs_of_sample(dataset, draw, count, kind)

    pixel = draw.clip.grid.pixel  # number of RGB pixels along a spike pixel
    measures = measure(pairs, pixel)
    distance = float(np.hypot(*measures.shift))  # RGB pixels
    most_spike_pixels = MOST_SHIFT_OF_SHARP if kind == "gt" else MOST_SHIFT_OF_BLURRY
    is_near = distance <= pixel * most_spike_pixels
    is_right = measures.correlation >= LEAST_CORRELATION and is_near
    if is_right:
        # A very small distance would be printed as 0.0 px. So the text says at least 0.1 px.
        sentence = f"Spikes and frame agree to {max(distance, 0.1):.1f} px."
    else:
        is_calibrated = draw.clip.spikes.calibration is not None
        wrong = what_differs(pairs, measures, pixel, is_calibrated)
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


def _pairs_of_sample(
    dataset: Any, draw: Draw, count: int, kind: str
) -> tuple[list[Pair], MiddleFrame]:
    """Read about `count` frames of a sample, evenly spaced, and the middle frame to show.

    kind: "gt" or "lq", the frames to read.
    """
    # E.g. for a sample of 6 frames and count 2, the positions 0, 3 (the middle) and 5.
    frame_count = len(draw.frames)
    middle_position = frame_count // 2
    positions = {middle_position, *evenly_spaced(frame_count, wanted=count)}
    pairs = []
    for position in sorted(positions):
        image, pair = _read_pair(dataset, draw, position, kind)
        pairs.append(pair)
        if position == middle_position:
            stem = draw.clip.stems[draw.frames[position]]
            middle = MiddleFrame(f"{kind} {stem}", tensor_to_uint8(image), pair.spikes)
    return pairs, middle


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """Return about `wanted` of the numbers 0 ... count - 1, the first and the last among them.

    Of 10 numbers, 4 wanted: 0, 3, 6, 9. Returns [] if count is 0.
    """
    if count == 0:
        return []
    evenly_spaced = np.linspace(0, count - 1, wanted)
    # A set, because neighbours are rounded to one number if count < wanted.
    return sorted({round(number) for number in evenly_spaced})


def _read_pair(dataset: Any, draw: Draw, position: int, kind: str) -> tuple[torch.Tensor, Pair]:
    """Read one frame of a sample: the frame (3, sH, sW), and the pair of pictures to compare.

    position: number of the frame in the sample. kind: "gt" or "lq".
    """
    # Read the whole region that both cameras see, because a crop has less texture. An `Augment`
    # says which part of a frame is cut out, and how it is flipped; here it is not flipped.
    region = draw.clip.grid.region
    crop_of_region = Augment(region.top, region.left, region.height, region.width)
    frame = draw.frames[position]  # number of the frame in the clip
    is_backwards = draw.backwards[position]  # whether the spike planes come in reversed time
    one_frame = dataclasses.replace(
        draw, frames=[frame], backwards=[is_backwards], aug=crop_of_region
    )
    item = dataset.read(one_frame)  # (1, channels, height, width) for each kind

    # The picture of the spikes, from all spike channels (S of them). For "gt" it shows the sharp
    # instant. For "lq" the only channel is the mean of the exposure (`_with_mean_of_exposure`).
    channels = item["spike"][0].numpy()  # (S, H, W)
    exposure = draw.clip.exposures[frame]
    spike_picture = draw.clip.spikes.sharp_image(channels, exposure, is_backwards)  # (H, W)

    # The picture of the frame. s is the scale of the kind: 1 for "lq". A sharp frame of a data set
    # for super-resolution has s times as many pixels along each side as a blurry frame.
    image = item[kind][0, :3]  # (3, sH, sW), without the noise map that lq may have
    grey = to_grey(image.permute(1, 2, 0).numpy())  # (sH, sW)
    size = (region.width, region.height)  # OpenCV's order
    frame_picture = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)  # (H, W)
    return image, Pair(spike_picture, frame_picture)


def _with_mean_of_exposure(draw: Draw) -> Draw:
    """Return the draw with one spike channel: the mean of all planes of the exposure.

    This mean is as blurry as the blurry frame, so their edges can be compared.
    """
    # One bin of the representation "voxel" is the mean of its planes.
    spikes = draw.clip.spikes.changed(
        name="voxel",
        options={"num_bins": 1},
        channels=1,
        without_effect=frozenset(),  # options without effect on the representation: none
        rate=1.0,  # no division by a rate, because a constant factor changes no correlation
    )
    exposures = []
    for exposure in draw.clip.exposures:
        # Read the planes of the exposure without context. The sharp instant is set to their middle.
        planes = exposure.own
        exposures.append(
            Exposure(
                own=planes,
                pieces=(planes,),  # one range of planes: no plane between two files is missing
                before=0,  # no context before `own`
                center=(planes.count - 1) / 2,
                origin=exposure.origin,
            )
        )
    clip = dataclasses.replace(draw.clip, exposures=tuple(exposures), spikes=spikes)
    return dataclasses.replace(draw, clip=clip)

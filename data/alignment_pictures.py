"""Read the pictures of a sample that are compared: frames, and what the spikes show of them.

For each frame of a sample there is a `Pair` of pictures (data/edge_shift.py) on the pixels of the
frame:

    "gt"   the sharp frame, and the spikes around the sharp instant
    "lq"   the blurry frame, and the mean of all planes of its exposure. Both are equally blurry

A sample is a `Draw` (data/clip_reading.py): the clip, the numbers of its frames, and the crop. Here
the crop is replaced by the region that both cameras see, because a crop has less texture. With one
view for both cameras, this region is the whole frame. A plane is one read-out of the spike camera,
with one bit for each pixel.

What must stay: both pictures of a pair lie on the same pixels and show the same time. If the pixels
or the times differed, data/edge_shift.py would find a shift although the data are right. Free to
change: which frames of a sample are read.

Tests: tests/parts/scripts/test_show_sample.py, tests/parts/data/test_two_cameras.py
"""

import dataclasses
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from data.augment import Augment
from data.cameras.sharp_image import sharp_image
from data.clip import Exposure
from data.clip_reading import Draw
from data.edge_shift import Pair
from data.spike.geometry import Crop
from data.spike.pictures import to_grey
from utils.image import tensor_to_uint8


class MiddleFrame(NamedTuple):
    """The middle frame of a sample and its spikes, for the page of scripts/show_sample.py."""

    name: str  # kind and file name without suffix, e.g. "gt 000012"
    frame: np.ndarray  # (sH, sW, 3) uint8. s is the scale, 1 without super-resolution
    # The picture of the spikes, (H, W) display values. It shows the sharp instant if `frame` is
    # sharp, and the mean of the exposure if `frame` is blurry.
    spikes: np.ndarray


def pairs_of_sample(
    dataset: Any, draw: Draw, count: int, kind: str
) -> tuple[list[Pair], MiddleFrame]:
    """Read about `count` frames of a sample, evenly spaced, and the middle frame to show.

    dataset: reads a `Draw` by its method `read`.
    draw: clip, frames and crop of the sample.
    kind: "gt" (sharp) or "lq" (blurry), the frames to read.
    Returns a pair of pictures for each frame, in the order of the sample, and the middle frame.
    """
    # E.g. for a sample of 6 frames and count 2, read the positions 0, 3 (the middle) and 5. The set
    # keeps the middle once if it is also one of the evenly spaced positions.
    frame_count = len(draw.frames)
    middle_position = frame_count // 2
    positions = {middle_position, *evenly_spaced(frame_count, wanted=count)}
    images = {}  # {position: the frame, (3, sH, sW)}
    pairs = {}  # {position: the two pictures to compare}
    for position in sorted(positions):
        images[position], pairs[position] = _read_pair(dataset, draw, position, kind)
    stem = draw.clip.stems[draw.frames[middle_position]]
    middle = MiddleFrame(
        name=f"{kind} {stem}",
        frame=tensor_to_uint8(images[middle_position]),
        spikes=pairs[middle_position].spikes,
    )
    return list(pairs.values()), middle


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """Return about `wanted` of the numbers 0 ... count - 1, the first and the last among them.

    E.g. count 10 and wanted 4 give 0, 3, 6, 9. Returns [] if count is 0.
    """
    if count == 0:
        return []
    exact = np.linspace(0, count - 1, wanted)
    # If count < wanted, some neighbours are rounded to the same number. The set keeps it once.
    return sorted({round(number) for number in exact})


def _read_pair(dataset: Any, draw: Draw, position: int, kind: str) -> tuple[torch.Tensor, Pair]:
    """Read one frame of a sample: the frame (3, sH, sW), and the pair of pictures to compare.

    position: number of the frame in the sample.
    kind: "gt" or "lq".
    """
    # An `Augment` says which part of a frame is cut out, and how it is flipped: here the whole
    # region that both cameras see, not flipped.
    region = draw.clip.grid.region
    crop_of_region = Augment(region.top, region.left, region.height, region.width)
    frame = draw.frames[position]  # number of the frame in the clip
    is_backwards = draw.backwards[position]  # whether the spike planes come in reversed time
    one_frame = dataclasses.replace(
        draw, frames=[frame], backwards=[is_backwards], aug=crop_of_region
    )
    item = dataset.read(one_frame)  # (1, channels, height, width) for each kind

    # Make the picture of the spikes from all S spike channels. For "gt" it shows the sharp instant.
    # For "lq" the only channel is the mean of the exposure (`with_mean_of_exposure`).
    channels = item["spike"][0].numpy()  # (S, H, W)
    exposure = draw.clip.exposures[frame]
    spike_picture = sharp_image(draw.clip.spikes, channels, exposure, is_backwards)  # (H, W)

    image = item[kind][0, :3]  # (3, sH, sW), without the noise map that lq may have
    return image, Pair(spike_picture, _grey_picture(image, region))


def _grey_picture(image: torch.Tensor, region: Crop) -> np.ndarray:
    """Return a frame (3, sH, sW) as grey display values on the pixels of the region, (H, W).

    s is the scale of the frame: 1 for a blurry frame. A sharp frame of a data set for
    super-resolution has s times as many pixels along each side.
    """
    grey = to_grey(image.permute(1, 2, 0).numpy())  # (sH, sW)
    size = (region.width, region.height)  # OpenCV's order
    return cv2.resize(grey, size, interpolation=cv2.INTER_AREA)


def with_mean_of_exposure(draw: Draw) -> Draw:
    """Return the draw with one spike channel: the mean of all planes of the exposure.

    This mean is as blurry as the blurry frame, so the edges of the mean and of the frame can be
    compared.
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
        # Read only the planes of the exposure. `center`, the sharp instant, is set to their middle,
        # because the mean shows the whole exposure.
        planes = exposure.own
        exposures.append(
            Exposure(
                own=planes,
                pieces=(planes,),  # all planes that are read
                before=0,  # no context (planes before the exposure) is read
                center=(planes.count - 1) / 2,  # e.g. 19.5 for the planes 0 ... 39
                origin=exposure.origin,
            )
        )
    clip = dataclasses.replace(draw.clip, exposures=tuple(exposures), spikes=spikes)
    return dataclasses.replace(draw, clip=clip)

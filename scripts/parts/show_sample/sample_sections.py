"""Make the sections of the page of show_sample.py, from the whole frame to the spike channels.

    sections                a list of all sections of a sample
        whole_frame         the first frame, and the crop in it
        alignment           edges of the spikes over frames
        frames_of_network   the blurry and the sharp frames
        spike_channels      every spike channel of every frame

What must stay: the page shows the frames and channels that the network gets
(test_the_page_shows_the_frames_of_the_sample, test_the_page_shows_every_channel_of_the_spikes).
Free to change: all else. A new section is an entry in the list of `sections`.

Some values have the type Any, because their modules import torch, and --help must not wait for
torch. `dataset` is a data set of clips from files, a `ClipDataset` (data/clip_reading.py). It is
the data set of `sample`. `sample.draw` says which clip, frames, crop and flips were chosen.

Tests: tests/parts/scripts/test_show_sample.py
"""

from typing import Any

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.sharp_image import sharp_image
from data.spike.geometry import Crop
from scripts.parts.show_sample.sample_edges import edges_over
from scripts.parts.show_sample.sample_page import Picture, Row, Section, enlarge
from scripts.parts.show_sample.sample_read import Sample
from utils.image import tensor_to_uint8

# Colours (R, G, B) of frames that are drawn.
YELLOW = (255, 220, 0)  # around the crop
CYAN = (0, 220, 255)  # around the region that crops are drawn from


def sections(dataset: Any, sample: Sample, comparison: Any) -> list[Section]:
    """Return the sections of the page, from the whole frame to the single spike channels.

    dataset: the data set of the sample, a `ClipDataset` (data/clip_reading.py).
    comparison: the `Comparison` of spikes and frames (data/alignment.py). None if there are no
        spikes.
    """
    item = sample.item
    names = {}  # "lq", "gt" -> a name for each frame
    for kind in ("lq", "gt"):
        if kind in item:
            names[kind] = frame_names(dataset, sample, kind)

    chosen = [whole_frame(dataset, sample, names["lq"][0])]
    if comparison:
        chosen.append(alignment(sample, names, comparison))
    chosen += tensor_sections(item, names)
    return chosen


def tensor_sections(item: dict[str, Any], names: dict[str, list[str]]) -> list[Section]:
    """Return the sections of the tensors: the frames, and the spike channels if there are any.

    item: kind of the tensor -> (frames, channels, H, W), as the data set returns it.
    names: kind of the tensor, "lq" or "gt" -> a name for each frame. The spike channels are shown
        under the names of "lq".
    """
    chosen = []
    for kind, names_of_kind in names.items():
        chosen.append(frames_of_network(kind, item[kind], names_of_kind))
    if "spike" in item:
        chosen.append(spike_channels(item["spike"], names["lq"]))
    return chosen


def whole_frame(dataset: Any, sample: Sample, name: str) -> Section:
    """Return the first blurry frame with a rectangle around the crop.

    If the spikes do not cover the whole frame, a second rectangle shows the region from which crops
    are drawn.

    dataset: the data set of the sample. name: name of the frame.
    """
    clip = sample.draw.clip
    aug = sample.draw.aug  # a `Crop` with flips
    first_frame = sample.draw.frames[:1]
    whole_size = Augment.whole(clip.size)  # a crop as large as the frame, without flips
    whole_bgr = dataset.backend.images(clip, "lq", first_frame, whole_size)[0]  # (H, W, 3)
    whole = whole_bgr[..., ::-1]  # from B, G, R to R, G, B
    image = enlarge(whole)
    factor = image.shape[1] // whole.shape[1]  # pixels of the page per pixel of the frame

    note = "yellow: the crop"
    boxes: list[tuple[tuple[int, int, int], Crop]] = []  # (colour, rectangle), painted in order
    if clip.spikes and clip.grid.coverage < 1:
        note += "; blue: the region that crops are drawn from"
        boxes.append((CYAN, clip.grid.region))
    boxes.append((YELLOW, aug))  # painted last, so that no other rectangle covers it
    thickness = max(1, round(image.shape[1] / 500))  # pixels: thin, but visible in a large frame
    for colour, box in boxes:
        left = factor * box.left
        top = factor * box.top
        rectangle = (left, top, factor * box.width, factor * box.height)  # the form of OpenCV
        cv2.rectangle(image, rectangle, colour, thickness)
    return Section(f"Whole frame {name}", [Row(title="", pictures=[Picture(note, image)])])


def alignment(sample: Sample, names: dict[str, list[str]], comparison: Any) -> Section:
    """Return frames with the edges of the spikes over them: of the crop, and of the whole frame.

    names: {"lq": a name for each frame, "gt": a name for each frame}.
    comparison: the `Comparison` of spikes and frames (data/alignment.py).
    """
    item = sample.item
    clip = sample.draw.clip
    pictures = []

    # The crop: the middle frame of the sample.
    middle = len(item["spike"]) // 2
    spike_image = image_of_spikes(sample, middle)
    for kind, names_of_kind in names.items():
        # "lq" has the middle frame. If "gt" has fewer frames, its last frame is shown.
        number = min(middle, len(item[kind]) - 1)
        frame_image = tensor_to_uint8(item[kind][number][:3])  # [:3]: without a noise level
        with_edges = edges_over(frame_image, spike_image, clip.grid.rgb_per_spike_pixel)
        pictures.append(Picture(f"{kind} {names_of_kind[number]}", with_edges))

    # The whole frame: the middle one of the frames that were compared, a `MiddleFrame`
    # (data/alignment_pictures.py).
    name, whole_frame_image, whole_spike_image = comparison.middle
    with_edges = edges_over(whole_frame_image, whole_spike_image, clip.grid.rgb_per_spike_pixel)
    pictures.append(Picture(f"{name}, before the crop", with_edges))
    return Section(
        "Alignment: edges of the spikes around the sharp instant over the frame",
        [Row(title="", pictures=pictures)],
    )


def image_of_spikes(sample: Sample, number: int) -> np.ndarray:
    """Return the grey image (H, W) that the spike channels hold at the instant of the sharp frame.

    number: number of the frame in the sample.
    """
    draw = sample.draw
    clip = draw.clip
    channels = sample.item["spike"][number].numpy()  # (channels, H, W)
    exposure = clip.exposures[draw.frames[number]]  # the planes that the channels were made from
    is_backwards = draw.backwards[number]  # whether the order of these planes was reversed
    return sharp_image(clip.spikes, channels, exposure, is_backwards)


def frames_of_network(kind: str, frames: Any, names: list[str]) -> Section:
    """Return the frames as the network gets them (kind "lq") or is compared with them ("gt").

    frames: (frames, 3, H, W), or (frames, 4, H, W) with the noise level as fourth channel.
    """
    pictures = []
    # strict=False: "gt" may have fewer frames than names.
    for name, frame in zip(names, frames, strict=False):
        rgb = frame[:3]
        pictures.append(Picture(name, enlarge(tensor_to_uint8(rgb))))
    title = tensor_title(kind, frames)
    if frames.shape[1] > 3:
        level = frames[0, 3].mean()
        title += f"; channel 3, the noise level, is {level:.3f}"
    return Section(title, [Row(title="", pictures=pictures)])


def spike_channels(spikes: Any, names: list[str]) -> Section:
    """Return the spike channels of each frame as grey pictures, all with the same brightness.

    spikes: (frames, channels, H, W). names: a name for each frame.
    """
    # The brightest half percent is white, so that a few hot pixels do not darken all other pixels.
    # `white` is at least 1e-6, because channels without a spike are divided by this number, too.
    bright = float(np.percentile(spikes.numpy(), 99.5))
    white = max(bright, 1e-6)
    rows = []
    for name, channels in zip(names, spikes, strict=False):
        one_colour = (channels / white)[:, None]  # (channels, 1, H, W)
        grey = one_colour.expand(-1, 3, -1, -1)  # (channels, 3, H, W)
        pictures = []
        for number, image in enumerate(tensor_to_uint8(grey)):
            values = channels[number]
            caption = (
                f"channel {number}: {values.min():.2f} to {values.max():.2f}, mean "
                f"{values.mean():.3f}"
            )
            pictures.append(Picture(caption, enlarge(image)))
        rows.append(Row(name, pictures))
    title = tensor_title("spike", spikes)
    return Section(f"{title}; white is {white:.3g}", rows)


# ---- Names and titles -------------------------------------------------------------------------


def frame_names(dataset: Any, sample: Sample, kind: str) -> list[str]:
    """Return a name for each frame of the tensor "lq" or "gt".

    dataset: the data set of the sample, a `ClipDataset`. kind: "lq" or "gt".
    """
    clip = sample.draw.clip
    # The frames of "lq" and "gt" may differ: a set that trains interpolation reads every second
    # frame as "lq", and another frame as "gt".
    stems = [clip.stems[frame] for frame in dataset.frames_of(kind, sample.draw.frames)]
    # A padded sequence has more frames than names, because its last frame is repeated. E.g. four
    # frames and the names "000" and "001" -> "000", "001", "001, repeated", "001, repeated".
    missing = len(sample.item[kind]) - len(stems)
    return stems + [f"{stems[-1]}, repeated"] * missing


def tensor_title(kind: str, values: Any) -> str:
    """Return name, shape and range of a tensor, e.g. "lq: 3 x 3 x 48 x 48, 0.0118 to 0.98"."""
    shape = " x ".join(map(str, values.shape))
    return f"{kind}: {shape}, {float(values.min()):.3g} to {float(values.max()):.3g}"

#!/usr/bin/env python3
"""Show one sample as the network sees it, in a page of one file: frames, every spike channel, crop,
flips, alignment.

    python scripts/show_sample.py --opt options/vrt/000_train_vrt_sample_rgbspike.json
    python scripts/show_sample.py --opt FILE --index 3 --split test --out test3.html \\
        datasets.test.spike.flip=false
    python scripts/show_sample.py --opt FILE --motion

The sample is the one that training gets for (epoch, index). Of a test clip, the first frames are
shown. One sentence says whether the spikes lie where the frames show the same. Read it before a
long run. With --motion the page also shows the motion within an exposure that the spikes tell, and
where it is not trusted. It takes seconds for large frames. Nothing is overwritten.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.sharp_image import sharp_image
from data.spike.geometry import Crop
from scripts.parts.default_output import default_output
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.spike_geometry import in_words
from utils.errors import OptionError
from utils.files import write_whole
from utils.image import render, tensor_to_uint8
from utils.options.load import load_options
from utils.output_folder import refuse_existing

# A sample has three kinds of images: "lq" (low quality) is the blurry frame, "gt" (ground
# truth) is the sharp frame, and "spike" has the channels that are computed from the spikes.
#
# More words of this file:
#   plane   one readout of the spike camera: a bit for each spike pixel
#   draw    which clip, frames, crop and flips were chosen for the sample
#
# What must stay: the page is made from utils/templates/sample.html, which reads the records
# `Section`, `Row` and `Picture`. So the names of their fields change there, too
# (test_the_page_is_whole_in_a_browser). The sample is the one that training gets
# (test_the_page_shows_the_frames_of_the_sample).
# Free to change: all else, because only people read the page. A new section is an entry in the list
# of `sections`.
# Test: tests/parts/scripts/test_show_sample.py

# Frames that are shown of a test clip. The page holds every image, so more frames make it larger.
SHOWN = 6
# Frames of which the alignment is measured, besides the middle frame. More frames make the measured
# shift less noisy, and take more time.
MEASURED = 5
# Narrower images are enlarged by repeating pixels, so that a reader can see single pixels.
LEAST_WIDTH = 256
# Colours (R, G, B): of the crop, of the region that crops are drawn from, and of the edges.
YELLOW = (255, 220, 0)
CYAN = (0, 220, 255)
GREEN = (0, 255, 60)


# Some fields below have the type Any, and a comment names their class. These classes are not
# imported here, because their modules import torch, and --help must not wait for torch.


class Sample(NamedTuple):
    """One sample of a data set, as it is read for the network."""

    title: str  # e.g. "Sample 3 of datasets.train, epoch 0"
    draw: Any  # data.clip_reading.Draw: clip, frames, crop and flips that were chosen
    # "lq", "gt", "spike" -> (frames, channels, H, W). "key" -> clip and first frame, e.g.
    # "clip0/00000"; for a test clip the clip alone.
    item: dict[str, Any]


# `RecordedClip` (data/motion/recording.py) measures the motion of a test clip. It gets the reader
# of the clip, and this reader has the data set of the clip. The next two classes make a sample of
# training look like a test clip: `SampleReader` replaces the reader, and `OneSample` replaces the
# data set. They have only the members that `RecordedClip` uses.


class OneSample(NamedTuple):
    """Takes the place of a data set of test clips. It holds the clip of one sample."""

    backend: Any  # an io backend
    of_sample: Any  # data.clip_reading.Draw: its clip and its camera are used

    def draw(self, clip_index: int, first: int, count: int) -> Any:
        """Return the draw of the sample.

        The arguments are ignored. `RecordedClip` asks for the draw of a frame to get its camera,
        and all frames of a sample have the same camera.
        """
        return self.of_sample


class SampleReader(NamedTuple):
    """Takes the place of the reader of a test clip (data.clips.readers.DatasetClip)."""

    clip: Any  # data.clip.Clip
    stems: tuple[str, ...]  # names of the frames of the clip
    dataset: OneSample
    clip_index: int = 0  # number of the clip in the data set, which has only this clip


class Picture(NamedTuple):
    """An image of the page and the text below it."""

    caption: str
    image: np.ndarray  # (H, W, 3) uint8


class Row(NamedTuple):
    """Pictures that the page shows side by side."""

    title: str  # "" for no title
    pictures: list[Picture]


class Section(NamedTuple):
    """A chapter of the page."""

    title: str
    rows: list[Row]


class Verdict(NamedTuple):
    """Whether spikes and frames show the same thing at the same place."""

    sentence: str  # the first sentence of the page
    style: str  # class of the style sheet of the page: "none", "right" or "wrong"
    numbers: str  # what was measured, in words; "" without spikes
    comparison: Any  # data.alignment.Comparison; None without spikes


class Page(NamedTuple):
    """What the page shows."""

    title: str
    verdict: Verdict
    facts: dict[str, str]  # the table of the page, besides its first row: name of a row -> text
    sections: list[Section]


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Write the page of one sample, and print the verdict. Returns the exit code 0."""
    command = parse(arguments)
    # Imported here, so that --help does not wait for torch, which both modules import.
    from data.select_dataset import build_dataset
    from main_train_vrt import PARTS  # the networks, data sets and losses that options may name

    if command.out is None:
        command.out = default_output(f"sample_{command.split}_{command.index}.html")
    refuse_existing(command.out, "--out")
    opt = load_options(command.opt, command.overrides, parts=PARTS)
    section = getattr(opt.datasets, command.split)
    if section is None:
        raise OptionError(
            what=f"no datasets.{command.split}",
            where=command.opt,
            expected="a data set",
            do="choose another --split",
        )
    dataset: Any = build_dataset(section, command.split, opt.train.manual_seed)
    refuse_missing_sample(dataset, command)
    # Only the data sets of clips from files have a draw. A user's data set may be of another kind
    # (docs/extending.md).
    if not hasattr(dataset, "draw"):
        write_page(command, dataset, page_of_any_set(dataset, command))
        return 0
    sample = read_sample(dataset, command)
    draw = sample.draw
    if command.motion and not draw.clip.spikes:
        raise OptionError(
            what="this data set has no spikes, so no motion can be shown",
            where="--motion",
            expected="a data set with spikes",
            do="leave out --motion",
        )

    verdict = verdict_of(dataset, draw)
    chosen = sections(dataset, sample, verdict.comparison)
    if command.motion:
        chosen.append(motion_within_exposure(dataset, sample))
    title = f"{sample.title}: {sample.item['key']}"
    write_page(command, dataset, Page(title, verdict, facts(draw), chosen))
    return 0


def write_page(command: argparse.Namespace, dataset: Any, content: Page) -> None:
    """Write the page, and print its title and its verdict."""
    verdict = content.verdict
    about = {"options": f"{command.opt}; {type(dataset).__name__}", **content.facts}
    page = render(
        "sample",
        title=content.title,
        verdict=verdict.sentence,
        verdict_class=verdict.style,
        numbers=verdict.numbers,
        about=about,
        sections=content.sections,
    )
    write_whole(command.out, page.encode())
    print(f"{command.out}: {content.title}\n{verdict.sentence}")


def verdict_of(dataset: Any, draw: Any) -> Verdict:
    """Compare the edges of the spikes with the edges of the frames.

    draw: data.clip_reading.Draw, the clip and its frames.
    """
    if not draw.clip.spikes:
        return Verdict("This data set has no spikes.", style="none", numbers="", comparison=None)
    from data.alignment import compare  # here, so that --help does not wait for torch

    found = compare(dataset, draw, MEASURED)
    right, down = found.shift  # in RGB pixels
    numbers = (
        f"Gradients correlate with {found.correlation:.2f}; shift {right:+.2f} px in "
        f"x, {down:+.2f} px in y (phase correlation, response {found.response:.2f}), "
        f"over {found.frame_count} {found.kind} frames before the crop."
    )
    style = "right" if found.is_right else "wrong"
    return Verdict(found.sentence, style, numbers, comparison=found)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line as opt, index, split, epoch, motion, out and overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--opt", required=True, help="option file")
    parser.add_argument(
        "--index",
        type=int,
        default=0,
        metavar="N",
        help="number of the sample or of the test clip (default: %(default)s)",
    )
    parser.add_argument(
        "--split", choices=("train", "test"), default="train", help="which data set; default train"
    )
    parser.add_argument(
        "--epoch",
        type=int,
        default=0,
        help="epoch of a training sample, from 0 (default: %(default)s)",
    )
    parser.add_argument(
        "--motion",
        action="store_true",
        help="also show the motion within the exposure of the middle frame; takes seconds",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PAGE",
        help="a new file; default: sample_SPLIT_INDEX.html in the current folder, or in a "
        "temporary folder if the current folder is the repository",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser.parse_intermixed_args(arguments)


def refuse_missing_sample(dataset: Any, command: argparse.Namespace) -> None:
    """Raise OptionError if the data set has no sample of this index and epoch."""
    # A test set of another kind has no length, but a reader for each clip.
    count = len(dataset.readers() if command.split == "test" else dataset)
    if 0 <= command.index < count and command.epoch >= 0:
        return
    raise OptionError(
        what=f"sample {command.index} of epoch {command.epoch} does not exist",
        where="--index, --epoch",
        expected=f"an index of 0 to {count - 1}, an epoch of at least 0",
        do="correct them",
    )


def read_sample(dataset: Any, command: argparse.Namespace) -> Sample:
    """Read a sample of training, or the first frames of a test clip."""
    title = f"Sample {command.index} of datasets.{command.split}"
    if dataset.is_training:
        # The same (epoch, index) gives the same draw each time, so both calls have the same crop.
        sample_id = (command.epoch, command.index)
        title = f"{title}, epoch {command.epoch}"
        return Sample(title, dataset.draw(sample_id), dataset[sample_id])
    count = min(SHOWN, dataset.frame_count(command.index))
    # Both read the frames 0 ... count - 1 of the clip.
    draw = dataset.draw(command.index, 0, count)
    return Sample(title, draw, dataset.read_frames(command.index, 0, count))


# ---- Data sets of other kinds -----------------------------------------------------------------
#
# Test: test_samples_of_other_data_sets_are_shown


def page_of_any_set(dataset: Any, command: argparse.Namespace) -> Page:
    """Return the page of a data set that has no files: its tensors, without a verdict.

    How its spikes became channels is not known, so they cannot be compared with the frames.
    """
    if command.motion:
        raise OptionError(
            what=f"{type(dataset).__name__} has no spike files, so no motion can be shown",
            where="--motion",
            expected="a data set of spike files",
            do="leave out --motion",
        )
    title = f"Sample {command.index} of datasets.{command.split}"
    if command.split == "train":
        title = f"{title}, epoch {command.epoch}"
        item = dataset[(command.epoch, command.index)]
        names = [f"frame {number}" for number in range(len(item["lq"]))]
        key = item.get("key", "")
    else:
        reader = dataset.readers()[command.index]
        names = list(reader.stems[:SHOWN])
        item = stacked([reader.frame(number) for number in range(len(names))])
        key = reader.name

    chosen = []
    for kind in ("lq", "gt"):
        if kind in item:
            chosen.append(frames_of_network(kind, item[kind], names))
    sentence = "This data set has no spikes."
    if "spike" in item:
        sentence = (
            "Whether spikes and frames agree is not known, because this data set has no files."
        )
        chosen.append(spike_channels(item["spike"], names, tensor_title("spike", item["spike"])))
    verdict = Verdict(sentence, style="none", numbers="", comparison=None)
    return Page(f"{title}: {key}", verdict, {"frames": ", ".join(names)}, chosen)


def stacked(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the frames of a clip, {kind: (C, H, W)} each, to {kind: (frames, C, H, W)}."""
    import torch  # here, so that --help does not wait for it

    clip = {}
    for kind in frames[0]:
        clip[kind] = torch.stack([frame[kind] for frame in frames])
    return clip


# ---- How the sample was drawn, in words -------------------------------------------------------
#
# Test: test_the_page_names_the_crop_and_the_flips


def facts(draw: Any) -> dict[str, str]:
    """Return the table of the page, name of a row -> text: what was drawn, how spikes are read.

    E.g. {"frames": "000010, 000011", "crop": "rows 16 to 79, columns 0 to 63 of 128 x 128", ...}.

    draw: data.clip_reading.Draw.
    """
    aug = draw.aug  # crop, flips and the direction of time
    clip = draw.clip
    height, width = clip.size

    frames = ", ".join(clip.stems[frame] for frame in draw.frames)
    if aug.reverse:
        frames += " (played backwards)"
    # The last row and the last column of the crop.
    bottom = aug.top + aug.height - 1
    right = aug.left + aug.width - 1
    flips = []
    if aug.hflip:
        flips.append("mirrored left to right")
    if aug.vflip:
        flips.append("mirrored top to bottom")
    if aug.transpose:
        flips.append("axes swapped")
    about = {
        "frames": frames,
        "crop": f"rows {aug.top} to {bottom}, columns {aug.left} to {right} of {height} x {width}",
        "drawn": ", then ".join(flips) if flips else "no flip and no rotation",
    }
    if clip.spikes:
        about.update(spike_facts(draw))
    return about


def spike_facts(draw: Any) -> dict[str, str]:
    """Return the rows of the table that concern spikes, e.g. "planes" and "channels".

    The row "planes" is about the first frame of the sample.
    """
    clip = draw.clip
    spikes = clip.spikes  # how this data set reads its spikes
    frame = draw.frames[0]
    exposure = clip.exposures[frame]  # which planes of the spike file belong to this frame
    own = exposure.own  # the planes of the exposure itself, without planes of neighbours
    # The instant of the sharp frame, counted from the first plane of the file.
    sharp_plane = exposure.origin + exposure.center
    planes = (
        f"{own.count} from plane {own.first} of {clip.planes[frame]}; sharp frame at plane "
        f"{sharp_plane:g}"
    )
    if draw.backwards[0]:
        planes += ", time runs backwards"
    about = {
        "spikes": f"{in_words(spikes.geometry)}; rate {spikes.rate}, {spikes.light} light, "
        f"gamma {spikes.gamma:g}",
        "planes": planes,
        "channels": f"{spikes.channels}: {spikes.name} ({in_short(spikes.options)})",
        "camera": in_short(vars(draw.camera)) if draw.camera else "as recorded",
    }
    if spikes.calibration:
        grid = clip.grid
        about["calibration"] = (
            f"{spikes.calibration.digest()}: the spikes cover {grid.coverage:.1%} of the frame; "
            f"crops are drawn from {grid.region.in_words()}"
        )
    return about


def in_short(values: dict[str, Any]) -> str:
    """Return options as words, e.g. "half_windows 2 6 12, num_bins 8". None is left out."""
    texts = []
    for key, value in values.items():
        if value is None:
            continue
        words = [key]
        for number in np.ravel(value).tolist():  # `ravel` makes a list of a single value, too
            words.append(f"{number:.3g}" if isinstance(number, float) else str(number))
        texts.append(" ".join(words))
    return ", ".join(texts)


# ---- The pictures -----------------------------------------------------------------------------
#
# Tests: test_the_page_shows_every_channel_of_the_spikes, test_spikes_upside_down_are_named,
# test_the_motion_within_the_exposure_is_shown_if_asked_for


def sections(dataset: Any, sample: Sample, found: Any) -> list[Section]:
    """Return the sections of the page, from the whole frame to the single spike channels.

    found: the Comparison of spikes and frames. None if there are no spikes.
    """
    item = sample.item
    names = {}  # "lq", "gt" -> a name for each frame
    for kind in ("lq", "gt"):
        if kind in item:
            names[kind] = frame_names(dataset, sample, kind)

    chosen = [whole_frame(dataset, sample, names["lq"][0])]
    if found:
        chosen.append(alignment(sample, names, found))
    for kind, names_of_kind in names.items():
        chosen.append(frames_of_network(kind, item[kind], names_of_kind))
    if "spike" in item:
        title = tensor_title("spike", item["spike"])
        chosen.append(spike_channels(item["spike"], names["lq"], title))
    return chosen


def tensor_title(kind: str, values: Any) -> str:
    """Return name, shape and range of a tensor, e.g. "lq: 3 x 3 x 48 x 48, 0.0118 to 0.98"."""
    shape = " x ".join(map(str, values.shape))
    return f"{kind}: {shape}, {float(values.min()):.3g} to {float(values.max()):.3g}"


def frames_of_network(kind: str, frames: Any, names: list[str]) -> Section:
    """Return the frames as the network gets them (kind "lq") or is compared with them ("gt").

    frames: (frames, 3, H, W), or (frames, 4, H, W) with the noise level as fourth channel.
    """
    pictures = []
    # strict=False: "gt" may have fewer frames than names.
    for name, frame in zip(names, frames, strict=False):
        rgb = frame[:3]
        pictures.append(Picture(name, enlarged(tensor_to_uint8(rgb))))
    title = tensor_title(kind, frames)
    if frames.shape[1] > 3:
        level = frames[0, 3].mean()
        title += f"; channel 3, the noise level, is {level:.3f}"
    return Section(title, [Row(title="", pictures=pictures)])


def frame_names(dataset: Any, sample: Sample, kind: str) -> list[str]:
    """Return a name for each frame of the tensor "lq" or "gt"."""
    clip = sample.draw.clip
    # The frames of "lq" and "gt" may differ: a set that trains interpolation reads every second
    # frame as "lq", and another frame as "gt".
    stems = [clip.stems[frame] for frame in dataset.frames_of(kind, sample.draw.frames)]
    # A padded sequence has more frames than names: its last frame is repeated.
    missing = len(sample.item[kind]) - len(stems)
    return stems + [f"{stems[-1]}, repeated"] * missing


def whole_frame(dataset: Any, sample: Sample, name: str) -> Section:
    """Return the first blurry frame with a rectangle around the crop.

    If the spikes do not cover the whole frame, a second rectangle shows the region from which crops
    are drawn.
    """
    clip = sample.draw.clip
    aug = sample.draw.aug  # a `Crop` with flips
    first_frame = sample.draw.frames[:1]
    whole_size = Augment.whole(clip.size)  # a crop as large as the frame, without flips
    whole_bgr = dataset.backend.images(clip, "lq", first_frame, whole_size)[0]  # (H, W, 3)
    whole = whole_bgr[..., ::-1]  # from B, G, R to R, G, B
    image = enlarged(whole)
    factor = image.shape[1] // whole.shape[1]  # pixels of the page for a pixel of the frame

    note = "yellow: the crop"
    boxes: list[tuple[tuple[int, int, int], Crop]] = []  # (colour, rectangle), painted in order
    if clip.spikes and clip.grid.coverage < 1:
        note += "; blue: the region that crops are drawn from"
        boxes.append((CYAN, clip.grid.region))
    boxes.append((YELLOW, aug))  # the last, so that the crop stays visible where both meet
    thickness = max(1, round(image.shape[1] / 500))  # pixels: thin, but visible in a large frame
    for colour, box in boxes:
        left = factor * box.left
        top = factor * box.top
        rectangle = (left, top, factor * box.width, factor * box.height)  # the form of OpenCV
        cv2.rectangle(image, rectangle, colour, thickness)
    return Section(f"Whole frame {name}", [Row(title="", pictures=[Picture(note, image)])])


def alignment(sample: Sample, names: dict[str, list[str]], found: Any) -> Section:
    """Return frames with the edges of the spikes over them: of the crop, and of the whole frame.

    names: {"lq": a name for each frame, "gt": a name for each frame}.
    found: the `Comparison` of spikes and frames (data/alignment.py).
    """
    item = sample.item
    clip = sample.draw.clip
    middle = len(item["spike"]) // 2
    frame = sample.draw.frames[middle]
    channels = item["spike"][middle].numpy()  # (S, H, W)
    is_backwards = sample.draw.backwards[middle]  # whether the order of its planes is reversed
    # The grey image (H, W) that the spike channels hold at the instant of the sharp frame.
    sharp = sharp_image(clip.spikes, channels, clip.exposures[frame], is_backwards)

    pictures = []
    for kind, names_of_kind in names.items():
        # "gt" may have a single frame, which is then shown.
        number = min(middle, len(item[kind]) - 1)
        image = tensor_to_uint8(item[kind][number][:3])
        over = edges_over(image, sharp, clip.grid.pixel)
        pictures.append(Picture(f"{kind} {names_of_kind[number]}", over))
    # A `MiddleFrame` (data/alignment_pictures.py): the middle one of the frames that were compared.
    name, image, spikes = found.middle
    over = edges_over(image, spikes, clip.grid.pixel)
    pictures.append(Picture(f"{name}, before the crop", over))
    return Section(
        "Alignment: edges of the spikes around the sharp instant over the frame",
        [Row(title="", pictures=pictures)],
    )


def motion_within_exposure(dataset: Any, sample: Sample) -> Section:
    """Return the motion within the exposure of the middle frame, and its expected error.

    It is the motion that `--method joint` takes, by optical flow between pictures of the spikes. It
    is shown for the whole frame, as recorded: without crop, flips or reversed time.
    """
    # Imported here, so that --help does not wait for torch, which these modules import.
    from data.motion.drawing import LEGEND, pictures_of
    from data.motion.flow import motion_of
    from data.motion.recording import RecordedClip

    clip = sample.draw.clip
    frame = sample.draw.frames[len(sample.draw.frames) // 2]
    # `RecordedClip` expects the reader of a clip in a test set. Here is no test set, so two classes
    # stand in: `OneSample` for the set, and `SampleReader` for the reader.
    one_sample = OneSample(dataset.backend, sample.draw)
    reader: Any = SampleReader(clip, clip.stems, one_sample)
    recorded = RecordedClip(reader, context=None)  # None: half an exposure on each side
    # The gain is the spikes per plane at full light, of each spike pixel, (h, w). The second result
    # names the pixels whose own gain can be trusted; all others already have the usual gain.
    gain, _ = recorded.gain()
    motion = motion_of(recorded.read(frame), recorded.view, gain)

    pictures = []
    for picture in pictures_of(motion):
        pictures.append(Picture(picture.caption, enlarged(picture.image)))
    title = f"Motion within the exposure of {clip.stems[frame]}, before the crop and the flips"
    return Section(title, [Row(LEGEND, pictures)])


def spike_channels(spikes: Any, names: list[str], title: str) -> Section:
    """Return the spike channels of each frame as grey pictures, all with the same brightness.

    spikes: (frames, channels, H, W). names: a name for each frame.
    """
    # The brightest half percent is white, so that a few hot pixels do not darken all other pixels.
    # At least 1e-6, because channels without a spike are divided by this number, too.
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
            pictures.append(Picture(caption, enlarged(image)))
        rows.append(Row(name, pictures))
    return Section(f"{title}; white is {white:.3g}", rows)


def edges_over(image: np.ndarray, spikes: np.ndarray, pixel: int) -> np.ndarray:
    """Return an image with the strongest edges of the spikes painted in green.

    image: (sH, sW, 3) uint8, s times as large as `spikes` along an axis.
    spikes: grey image (H, W), made from the spikes and brought to the size of the frames.
    pixel: pixels of `spikes` for one pixel of the spike camera, along an axis.
    """
    shown = enlarged(image)
    height, width = shown.shape[:2]
    # Bring the spikes to the size of the image, and smooth over one spike pixel. Without smoothing,
    # the noise of single spikes would have the strongest edges.
    large = cv2.resize(spikes.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    enlargement = width / spikes.shape[1]  # pixels of `large` for one pixel of `spikes`
    sigma = max(1.0, pixel * enlargement)  # one pixel of the spike camera, in pixels of `large`
    smooth = cv2.GaussianBlur(large, (0, 0), sigma)
    # The gradient in x and in y, (height, width) each.
    gradient_x = cv2.Sobel(smooth, cv2.CV_32F, dx=1, dy=0)
    gradient_y = cv2.Sobel(smooth, cv2.CV_32F, dx=0, dy=1)
    # Canny takes gradients as int16, up to 32767. So scale the largest gradient to 10000: then
    # |x| + |y| is at most 20000.
    largest_x = float(np.abs(gradient_x).max())
    largest_y = float(np.abs(gradient_y).max())
    largest = max(largest_x, largest_y, 1e-6)  # 1e-6: an image without edges is not divided by 0
    scale = 10000 / largest
    # An edge begins among the strongest 8 % of gradients, and goes on among the strongest 20 %.
    # With larger shares, weak texture would be painted as well.
    strength = scale * (abs(gradient_x) + abs(gradient_y))
    high = float(np.percentile(strength, 92))
    low = float(np.percentile(strength, 80))
    lines = cv2.Canny(
        (scale * gradient_x).astype(np.int16), (scale * gradient_y).astype(np.int16), low, high
    )
    shown[lines > 0] = GREEN
    return shown


def enlarged(image: np.ndarray) -> np.ndarray:
    """Return a copy of an image (H, W, 3), at least LEAST_WIDTH wide, with each pixel repeated."""
    factor = math.ceil(LEAST_WIDTH / image.shape[1])
    return cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)


if __name__ == "__main__":
    sys.exit(main())

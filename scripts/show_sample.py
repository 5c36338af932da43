#!/usr/bin/env python3
"""Show one sample as the network sees it, in a page of one file: frames, every spike channel, crop,
flips, alignment.

    python scripts/show_sample.py --opt options/vrt/000_train_vrt_sample_rgbspike.json python
    scripts/show_sample.py --opt FILE --index 3 --split test --out test3.html
    datasets.test.spike.flip=false

The sample is the one that training gets for (epoch, index); of a test clip, the first frames are
shown. One sentence says whether the spikes lie where the frames show the same: look at it before a
long run. Nothing is overwritten.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np

from data.augment import Augment
from scripts.parts.default_output import default_output
from scripts.parts.exit_codes import with_exit_code
from scripts.spike_tool import in_words
from utils.errors import OptionError
from utils.files import refuse_existing, write_whole
from utils.image import render, tensor_to_uint8
from utils.options.load import load_options

SHOWN = 6  # frames of a test clip
MEASURED = 5  # frames of which the alignment is measured, and the middle one
LEAST_WIDTH = 256  # smaller images are enlarged by repetition
YELLOW, CYAN, GREEN = (255, 220, 0), (0, 220, 255), (0, 255, 60)

# Names, each of a few images (H, W, 3) uint8 with their names
Rows = list[tuple[str, list[tuple[str, np.ndarray]]]]


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--opt", required=True, help="option file")
    parser.add_argument(
        "--index", type=int, default=0, metavar="N", help="of the sample or test clip; default 0"
    )
    parser.add_argument(
        "--split", choices=("train", "test"), default="train", help="default %(default)s"
    )
    parser.add_argument("--epoch", type=int, default=0, help="of training, the first is 0")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PAGE",
        help="a new file; default: sample_SPLIT_INDEX.html in this folder, in the repository a "
        "temporary one",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    command = parser.parse_intermixed_args(arguments)
    from data.alignment_check import compare  # not before --help: they bring torch
    from data.select_dataset import build_dataset
    from main_train_vrt import PARTS

    command.out = command.out or default_output(f"sample_{command.split}_{command.index}.html")
    refuse_existing(command.out, "--out")
    opt = load_options(command.opt, command.overrides, parts=PARTS)
    section = getattr(opt.datasets, command.split)
    if section is None:
        raise OptionError(
            f"no datasets.{command.split}", command.opt, "a data set", "choose another --split"
        )
    dataset: Any = build_dataset(section, command.split, opt.train.manual_seed)
    if not 0 <= command.index < len(dataset) or command.epoch < 0:
        what = f"sample {command.index} of epoch {command.epoch} does not exist"
        expected = f"an index of 0 to {len(dataset) - 1}, an epoch of at least 0"
        raise OptionError(what, "--index, --epoch", expected, "correct them")
    title, found = f"Sample {command.index} of datasets.{command.split}", None
    if dataset.is_training:
        which = (command.epoch, command.index)
        draw, item, title = dataset.draw(which), dataset[which], f"{title}, epoch {command.epoch}"
    else:
        which = (command.index, 0, min(SHOWN, dataset.frame_count(command.index)))
        draw, item = dataset.draw(*which), dataset.read_frames(*which)
    title, verdict, kind, numbers = (
        f"{title}: {item['key']}",
        "This data set has no spikes.",
        "none",
        "",
    )
    if draw.clip.spikes:
        found = compare(dataset, draw, MEASURED)
        verdict, kind = found.sentence, "right" if found.is_right else "wrong"
        numbers = (
            f"Gradients correlate with {found.correlation:.2f}; shift {found.shift[0]:+.2f} px in "
            f"x, {found.shift[1]:+.2f} px in y (phase correlation, response {found.response:.2f}), "
            f"over {found.measured} {found.kind} frames before the crop."
        )
    page = render(
        "sample", title=title, verdict=verdict, verdict_class=kind, numbers=numbers,
        about={"options": f"{command.opt}; {type(dataset).__name__}", **facts(draw)},
        sections=sections(dataset, draw, item, found),
    )  # fmt: skip
    write_whole(command.out, page.encode())
    print(f"{command.out}: {title}\n{verdict}")
    return 0


def facts(draw: Any) -> dict[str, str]:
    """How the sample was drawn, in words."""
    aug, clip, spikes, frames = draw.aug, draw.clip, draw.clip.spikes, draw.frames
    flips = {
        "mirrored left to right": aug.hflip,
        "mirrored top to bottom": aug.vflip,
        "axes swapped": aug.transpose,
    }
    about = {
        "frames": ", ".join(clip.stems[i] for i in frames)
        + (" (played backwards)" if aug.reverse else ""),
        "crop": f"rows {aug.top} to {aug.top + aug.height - 1}, columns {aug.left} to "
        f"{aug.left + aug.width - 1} of {clip.size[0]} x {clip.size[1]}",
        "drawn": ", then ".join(name for name, is_on in flips.items() if is_on)
        or "no flip and no rotation",
    }
    if not spikes:
        return about
    exposure = clip.exposures[frames[0]]
    about |= {
        "spikes": f"{in_words(spikes.geometry)}; rate {spikes.rate}, {spikes.light} light, "
        f"gamma {spikes.gamma:g}",
        "planes": f"{exposure.own.count} from plane {exposure.own.first} of "
        f"{clip.planes[frames[0]]}; sharp frame at plane {exposure.origin + exposure.center:g}"
        + (", time runs backwards" if draw.backwards[0] else ""),
        "channels": f"{spikes.channels}: {spikes.name} ({in_short(spikes.options)})",
        "camera": in_short(vars(draw.camera)) if draw.camera else "as recorded",
    }
    if spikes.calibration:
        grid = clip.grid
        top, left, height, width = grid.region
        about["calibration"] = (
            f"{spikes.calibration.digest()}: the spikes cover {grid.coverage:.1%} of the frame; "
            f"crops are drawn from rows {top} to {top + height - 1}, columns {left} to "
            f"{left + width - 1}"
        )
    return about


def in_short(values: dict[str, Any]) -> str:
    """E.g. "half_windows 2 6 12, num_bins 8"."""
    lists = {key: np.ravel(value).tolist() for key, value in values.items() if value is not None}
    words = (
        [key, *(f"{v:.3g}" if isinstance(v, float) else str(v) for v in found)]
        for key, found in lists.items()
    )
    return ", ".join(map(" ".join, words))


def sections(dataset: Any, draw: Any, item: dict[str, Any], found: Any) -> list[tuple[str, Rows]]:
    """Title and rows of each section of the page. found: None without spikes."""
    clip, names, titles = draw.clip, {}, {}
    for kind in [kind for kind in ("lq", "gt", "spike") if kind in item]:
        values = item[kind]
        shape, low, high = (
            " x ".join(map(str, values.shape)),
            float(values.min()),
            float(values.max()),
        )
        titles[kind] = f"{kind}: {shape}, {low:.3g} to {high:.3g}"
        if kind != "spike":
            stems = [clip.stems[i] for i in dataset.frames_of(kind, draw.frames)]
            # A padded sequence has more frames than names.
            names[kind] = stems + [f"{stems[-1]}, repeated"] * (len(values) - len(stems))

    whole = dataset.files.images(clip, "lq", draw.frames[:1], Augment.whole(clip.size))[0]
    image, aug, note = enlarged(whole[..., ::-1]), draw.aug, "yellow: the crop"
    factor, boxes = (
        image.shape[1] // whole.shape[1],
        {YELLOW: (aug.top, aug.left, aug.height, aug.width)},
    )
    if clip.spikes and clip.grid.coverage < 1:
        boxes = {CYAN: clip.grid.region, **boxes}
        note += "; blue: the region that crops are drawn from"
    for colour, box in boxes.items():
        top, left, height, width = (factor * side for side in box)
        cv2.rectangle(
            image, (left, top, width, height), colour, max(1, round(image.shape[1] / 500))
        )
    parts = [(f"Whole frame {names['lq'][0]}", [("", [(note, image)])])]
    if found:
        middle = len(item["spike"]) // 2
        frame, back, overlays = draw.frames[middle], draw.backwards[middle], []
        sharp = clip.spikes.sharp_image(item["spike"][middle].numpy(), clip.exposures[frame], back)
        for kind, stems in names.items():
            number = min(middle, len(item[kind]) - 1)
            image = tensor_to_uint8(item[kind][number][:3])
            overlays.append((f"{kind} {stems[number]}", edges_over(image, sharp, clip.grid.pixel)))
        shown, image, spikes = found.shown
        overlays.append((f"{shown}, before the crop", edges_over(image, spikes, clip.grid.pixel)))
        parts.append(
            (
                "Alignment: edges of the spikes around the sharp instant over the frame",
                [("", overlays)],
            )
        )
    for kind, stems in names.items():
        images = [
            (n, enlarged(tensor_to_uint8(frame[:3])))
            for n, frame in zip(stems, item[kind], strict=False)
        ]
        noise = (
            f"; channel 3, the noise level, is {item[kind][0, 3].mean():.3f}"
            if item[kind].shape[1] > 3
            else ""
        )
        parts.append((f"{titles[kind]}{noise}", [("", images)]))
    if "spike" in item:
        white, rows = max(float(np.percentile(item["spike"].numpy(), 99.5)), 1e-6), []
        for name, channels in zip(names["lq"], item["spike"], strict=False):
            grey = tensor_to_uint8((channels / white)[:, None].expand(-1, 3, -1, -1))
            ranges = (f"{c.min():.2f} to {c.max():.2f}, mean {c.mean():.3f}" for c in channels)
            pictures = zip(ranges, map(enlarged, grey), strict=True)
            rows.append(
                (
                    name,
                    [(f"channel {i}: {text}", image) for i, (text, image) in enumerate(pictures)],
                )
            )
        parts.append((f"{titles['spike']}; white is {white:.3g}", rows))
    return parts


def edges_over(image: np.ndarray, spikes: np.ndarray, pixel: int) -> np.ndarray:
    """Image (sH, sW, 3) uint8 with the strongest edges of spikes (H, W) in green. pixel: RGB pixels
    per spike pixel.
    """
    shown = enlarged(image)
    height, width = shown.shape[:2]
    large = cv2.resize(spikes.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    smooth = cv2.GaussianBlur(large, (0, 0), max(1.0, pixel * width / spikes.shape[1]))
    x, y = cv2.Sobel(smooth, cv2.CV_32F, 1, 0), cv2.Sobel(smooth, cv2.CV_32F, 0, 1)
    scale = 10000 / max(float(np.abs(x).max()), float(np.abs(y).max()), 1e-6)
    high, low = (float(np.percentile(scale * (abs(x) + abs(y)), share)) for share in (92, 80))
    lines = cv2.Canny((scale * x).astype(np.int16), (scale * y).astype(np.int16), low, high)
    shown[lines > 0] = GREEN
    return shown


def enlarged(image: np.ndarray) -> np.ndarray:
    """A copy of (H, W, 3), enlarged by repetition where it is small."""
    factor = -(-LEAST_WIDTH // image.shape[1])
    return cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)


if __name__ == "__main__":
    sys.exit(main())

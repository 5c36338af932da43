#!/usr/bin/env python3
"""Show one sample as the network sees it, in a page of one file: frames, every spike channel, crop, flips, alignment.

    python scripts/show_sample.py --opt options/vrt/000_train_vrt_sample_rgbspike.json --index 0 --out sample.html
    python scripts/show_sample.py --opt FILE --index 3 --split test --out test3.html datasets.test.spike.flip=false

The sample is the one that training gets for (epoch, index); of a test clip, the first frames are shown. One sentence
says whether the spikes lie where the frames show the same: look at it before a long run. Nothing is overwritten.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np
from torch import Tensor

from data.agreement import judge, sharp_channels
from data.augment import Augment
from data.clip_dataset import Draw
from data.registration import scale_of
from data.select_dataset import build_dataset
from data.spike.simulate import to_grey
from main_train_vrt import PARTS
from scripts.exit_codes import with_exit_code
from scripts.sample_page import Sample, build_page
from utils.errors import OptionError
from utils.files import refuse_existing, write_whole
from utils.metrics import tensor_to_uint8
from utils.options.load import load_options
from utils.options.models import Options

SHOWN = 6  # frames of a test clip
MEASURED = 5  # frames of which the alignment is measured, and the middle one


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt", required=True, help="option file")
    parser.add_argument("--index", type=int, required=True, metavar="N", help="of the sample; in testing, of the clip")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="default %(default)s")
    parser.add_argument("--epoch", type=int, default=0, help="of training, the first is 0")
    parser.add_argument("--out", type=Path, required=True, metavar="PAGE", help="a new file, .html")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    command = parser.parse_intermixed_args(arguments)
    refuse_existing(command.out, "--out")
    opt = load_options(command.opt, command.overrides, parts=PARTS)
    sample = read_sample(opt, command)
    write_whole(command.out, build_page(sample).encode())
    print(f"{command.out}: {sample.title}\n{sample.verdict}")
    return 0


def read_sample(opt: Options, command: argparse.Namespace) -> Sample:
    """Raises OptionError for a split without data and an index or epoch that does not exist."""
    section = getattr(opt.datasets, command.split)
    if section is None:
        raise OptionError(
            f"datasets.{command.split} is empty", command.opt, "a data set of this split", "choose another --split"
        )
    dataset = build_dataset(section, command.split, opt.train.manual_seed)
    if not 0 <= command.index < len(dataset) or command.epoch < 0:
        raise OptionError(
            f"sample {command.index} of epoch {command.epoch} does not exist", "--index, --epoch",
            f"an index of 0 to {len(dataset) - 1}, an epoch of at least 0", "correct them",
        )  # fmt: skip
    if dataset.is_training:
        draw, item = dataset.draw((command.epoch, command.index)), dataset[(command.epoch, command.index)]
    else:
        count = min(SHOWN, dataset.frame_count(command.index))
        draw, item = dataset.draw(command.index, 0, count), dataset.read_frames(command.index, 0, count)
    epoch = f", epoch {command.epoch}" if dataset.is_training else ""
    whole = dataset.files.pictures(draw.clip, "lq", draw.played[0][:1], Augment.whole(draw.clip.size))[0]
    spikes = dataset.spikes
    return Sample(
        title=f"Sample {command.index} of datasets.{command.split}{epoch}: {item['key']}",
        item=item,
        draw=draw,
        whole=np.ascontiguousarray(whole[..., ::-1]),
        stems={kind: [draw.clip.stems[i] for i in dataset.frames_of(kind, draw.played[0])] for kind in ("lq", "gt")},
        grid=spikes.grid(draw.clip.size) if spikes else None,
        pixel=pixel_of(dataset, draw) if spikes else 1,
        near=sharp_channels(spikes, draw.clip, draw.frames[0], is_backwards(draw)) if spikes else [],
        facts=facts(dataset, draw, command.opt),
        **(compare(dataset, draw) if spikes else {}),
    )


def is_backwards(draw: Draw) -> bool:
    return draw.played[1][0]


def pixel_of(dataset: Any, draw: Draw) -> int:
    """RGB pixels per spike pixel, at least 1."""
    calibration = dataset.spikes.calibration
    return max(1, round(scale_of(calibration.to_rgb()))) if calibration else dataset.spikes.grid(draw.clip.size).step


def compare(dataset: Any, draw: Draw) -> dict[str, Any]:
    """The alignment of whole frames (with a calibration: of its region), as fields of `Sample`; a crop shows less."""
    region = Augment(*dataset.spikes.grid(draw.clip.size).region)
    played = list(zip(*draw.played, strict=True))
    middle = len(played) // 2
    chosen = sorted({middle, *(round(i) for i in np.linspace(0, len(played) - 1, MEASURED))})
    kind = "gt" if draw.clip.gt else "lq"
    pairs = []
    for place in chosen:
        frame, back = played[place]
        item = dataset.read(dataclasses.replace(draw, frames=[frame], backwards=[back], aug=region))
        near = sharp_channels(dataset.spikes, draw.clip, frame, back)
        spikes = item["spike"][0, near].mean(0).numpy()
        pairs.append((spikes, grey_of(item[kind][0], region)))
        if place == middle:
            shown = (f"{kind} {draw.clip.stems[frame]}", tensor_to_uint8(item[kind][0][:3]), spikes)
    calibrated = dataset.spikes.calibration is not None
    found, is_right, sentence = judge(pairs, pixel_of(dataset, draw), kind == "gt", calibrated)
    numbers = (
        f"Gradients correlate with {found.correlation:.2f}; shift {found.shift[0]:+.2f} px in x, {found.shift[1]:+.2f} "
        f"px in y (phase correlation, response {found.response:.2f}), over {len(pairs)} {kind} frames before the crop."
    )
    return {"verdict": sentence, "is_right": is_right, "numbers": numbers, "aligned": shown}


def grey_of(frame: Tensor, size: Augment) -> np.ndarray:
    """(3, sH, sW) -> (H, W) float32, of the size of the lq frame."""
    grey = to_grey(frame[:3].permute(1, 2, 0).numpy())
    return cv2.resize(grey, (size.width, size.height), interpolation=cv2.INTER_AREA)


def facts(dataset: Any, draw: Draw, option_file: str) -> dict[str, str]:
    aug, clip, spikes = draw.aug, draw.clip, dataset.spikes
    frames, backwards = draw.played
    flips = {"mirrored left to right": aug.hflip, "mirrored top to bottom": aug.vflip, "axes swapped": aug.transpose}
    about = {
        "options": f"{option_file}; {type(dataset).__name__}",
        "frames": ", ".join(clip.stems[i] for i in frames) + (" (played backwards)" if aug.reverse else ""),
        "crop": f"rows {aug.top} to {aug.top + aug.height - 1}, columns {aug.left} to {aug.left + aug.width - 1} of "
        f"{clip.size[0]} x {clip.size[1]}",
        "drawn": ", then ".join(name for name, is_on in flips.items() if is_on) or "no flip and no rotation",
    }
    if not spikes:
        return about
    span, first = spikes.span(clip, frames[0]), frames[0]
    center = span.origin + spikes.center_plane(clip.name, span.count, span)
    options = ", ".join(f"{key} {value}" for key, value in spikes.options.items())
    about |= {
        "spikes": f"{spikes.geometry!r}, rate {spikes.rate}, {spikes.light} light, gamma {spikes.gamma:g}",
        "planes": f"{span.count} from plane {span.first} of {clip.planes[first]}; sharp frame at plane {center:g}"
        + (", time runs backwards" if backwards[0] else ""),
        "channels": f"{spikes.channels}: {spikes.name} ({options})",
        "camera": f"{draw.camera}" if draw.camera else "as recorded",
    }
    if spikes.calibration:
        grid = spikes.grid(clip.size)
        top, left, height, width = grid.region
        about["calibration"] = (
            f"{spikes.calibration.digest()}: the spikes cover {grid.coverage:.1%} of the frame; crops are drawn from "
            f"rows {top} to {top + height - 1}, columns {left} to {left + width - 1}"
        )
    return about


if __name__ == "__main__":
    sys.exit(main())

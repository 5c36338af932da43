#!/usr/bin/env python3
"""Show one sample as the network sees it, in a page of one file: frames, every spike channel, crop, flips, alignment.

    python scripts/show_sample.py --opt options/vrt/000_train_vrt_sample_rgbspike.json
    python scripts/show_sample.py --opt FILE --index 3 --split test --out test3.html datasets.test.spike.flip=false

The sample is the one that training gets for (epoch, index); of a test clip, the first frames are shown. One sentence
says whether the spikes lie where the frames show the same: look at it before a long run. Nothing is overwritten.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from data.agreement import sharp_picture
from data.augment import Augment
from data.clip_dataset import Draw
from data.first_look import compare, pixel_of
from data.select_dataset import build_dataset
from main_train_vrt import PARTS
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.sample_page import Sample, build_page
from scripts.parts.spike_guess import in_words
from utils.errors import OptionError
from utils.files import refuse_existing, write_whole
from utils.options.load import load_options
from utils.options.models import Options

SHOWN = 6  # frames of a test clip
MEASURED = 5  # frames of which the alignment is measured, and the middle one


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt", required=True, help="option file")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="of the sample or test clip; default 0")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="default %(default)s")
    parser.add_argument("--epoch", type=int, default=0, help="of training, the first is 0")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="a new file; default: sample_SPLIT_INDEX.html")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    command = parser.parse_intermixed_args(arguments)
    command.out = command.out or Path(f"sample_{command.split}_{command.index}.html")
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
        sharp=middle_picture(spikes, draw, item["spike"].numpy()) if spikes else None,
        facts=facts(dataset, draw, command.opt),
        **(aligned(dataset, draw) if spikes else {}),
    )


def middle_picture(spikes: Any, draw: Draw, channels: np.ndarray) -> np.ndarray:
    """What the channels (N, S, H, W) show of the sharp instant of the middle frame, (H, W)."""
    middle = len(channels) // 2
    frame, is_back = (played[middle] for played in draw.played)
    return sharp_picture(spikes, channels[middle], draw.clip.exposures[frame], is_back)


def aligned(dataset: Any, draw: Draw) -> dict[str, Any]:
    """The alignment, as fields of `Sample`."""
    look = compare(dataset, draw, MEASURED)
    found = look.found
    numbers = (
        f"Gradients correlate with {found.correlation:.2f}; shift {found.shift[0]:+.2f} px in x, {found.shift[1]:+.2f} "
        f"px in y (phase correlation, response {found.response:.2f}), over {look.measured} {look.kind} frames before "
        "the crop."
    )
    return {"verdict": look.sentence, "is_right": look.is_right, "numbers": numbers, "aligned": look.shown}


def in_short(values: Mapping[str, Any]) -> str:
    """E.g. "half_windows 2 6 12, num_bins 8"."""
    shown = {key: np.array2string(np.asarray(value), precision=3).strip("[]'") for key, value in values.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())


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
    first = frames[0]
    exposure, own = clip.exposures[first], clip.exposures[first].own
    about |= {
        "spikes": f"{in_words(spikes.geometry)}; rate {spikes.rate}, {spikes.light} light, gamma {spikes.gamma:g}",
        "planes": f"{own.count} from plane {own.first} of {clip.planes[first]}; "
        f"sharp frame at plane {exposure.origin + exposure.center:g}"
        + (", time runs backwards" if backwards[0] else ""),
        "channels": f"{spikes.channels}: {spikes.name} ({in_short(spikes.options)})",
        "camera": in_short(vars(draw.camera)) if draw.camera else "as recorded",
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

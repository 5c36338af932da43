#!/usr/bin/env python3
"""Robustness to another spike camera: PSNR on the test split for different firing thresholds.

    python scripts/threshold_table.py --opt options/vrt/000_train_vrt_sample_rgbspike.json
    python scripts/threshold_table.py --opt FILE --weights models/500_G.pth --factors 0.5,1,2

The recorded streams are integrated again with each factor times the threshold (data/spike/perturb.py), which divides
the firing rate by that factor. The representation divides by a rate; columns: the rate of the data ("unknown": the
change is not corrected), the changed rate ("known"), the rate measured from the blurry frame ("match").
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from data.camera import CAMERAS
from data.clip_reader import dataset_clips
from data.select_dataset import build_dataset
from main_test_vrt import read_options
from models.portable import portable_options, read_saved
from models.restore.restorer import Restorer
from models.restore.setup import find_weights
from models.restore.tiling import Tiling
from utils.errors import OptionError, SpikeVRTError
from utils.metrics import psnr, tensor_to_uint8
from utils.options.models import LoaderOptions

RATES = ("unknown", "known", "match")


def main(arguments: list[str] | None = None) -> int:
    command = parse(arguments)
    try:
        print(table(command))
    except SpikeVRTError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt", required=True, help="option file of the run")
    parser.add_argument("--weights", help="default: the run's best checkpoint")
    parser.add_argument("--factors", type=numbers, default="0.5,1,2,4", help="of the threshold (default: %(default)s)")
    parser.add_argument("--rates", type=rate_names, default=",".join(RATES), help="default: %(default)s")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    return parser.parse_args(arguments)


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def rate_names(text: str) -> list[str]:
    names = text.split(",")
    if set(names) - set(RATES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(RATES)}")
    return names


def table(command: argparse.Namespace) -> str:
    """The table as Markdown, below a line with the PSNR of the blurry input."""
    opt = read_options(command.opt, command.overrides)
    section = opt.datasets.test
    if section is None or not section.spike_channels:
        raise OptionError("datasets.test has no spikes", command.opt, "an RGB + spike test set", "choose another file")
    saved = read_saved(find_weights(opt.path, opt.folder, command.weights), portable_options(opt))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    restorer = Restorer(saved.build(), Tiling.of(opt.val, saved.spec), device)
    lines = ["| threshold | " + " | ".join(f"rate {rate}" for rate in command.rates) + " |"]
    lines.append("|---" * (len(command.rates) + 1) + "|")
    blurry = float("nan")
    for factor in command.factors:
        cells = []
        for rate in command.rates:
            blurry, restored = score(restorer, camera_section(section, factor, rate), opt.train.manual_seed)
            cells.append(f"{restored:.2f}")
        lines.append(f"| x {factor:g} | " + " | ".join(cells) + " |")
    return "\n".join([f"PSNR in dB on datasets.test; blurry input {blurry:.2f}; weights {saved.path}", "", *lines])


def camera_section(test: LoaderOptions, factor: float, rate: str) -> LoaderOptions:
    """The test section for a camera with `factor` times the threshold."""
    camera = {"threshold_prob": 1.0, "threshold_range": [factor, factor], "known_rate": rate == "known"}
    spike = test.spike.model_copy(update={"rate": "match"} if rate == "match" else {})
    resolved = CAMERAS.resolve({"type": "perturb", **camera}, "camera")
    return test.model_copy(update={"camera": resolved, "spike": spike})


def score(restorer: Restorer, section: LoaderOptions, seed: int) -> tuple[float, float]:
    """(PSNR of the blurry input, PSNR of the restored frames): means over frames, then over clips."""
    means = []
    for clip in dataset_clips(build_dataset(section, "test", seed)):
        values = []
        for index, restored in enumerate(restorer.frames(clip, range(len(clip.stems)))):
            item = clip.frame(index)
            blurry, output, sharp = (tensor_to_uint8(frame) for frame in (item["lq"], restored, item["gt"]))
            values.append((psnr(blurry, sharp), psnr(output, sharp)))
        means.append(np.mean(values, axis=0))
    blurry, restored = np.mean(means, axis=0)
    return float(blurry), float(restored)


if __name__ == "__main__":
    sys.exit(main())

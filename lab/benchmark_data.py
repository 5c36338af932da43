"""benchmark.py data: how fast samples of GoPro size are read from files and from the clip cache."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from data.io_backend import build_cache
from data.select_dataset import DATASETS, build_dataset
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_grey, to_linear
from lab.tools import in_turn, seconds
from scripts.parts.sample_scenes import texture
from utils.metrics import markdown_table as table

HEIGHT, WIDTH, RATIO, PLANES = 720, 1280, 2, 88


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=6, help="frames of a sample")
    parser.add_argument("--crop", type=int, default=192, help="side of the crop, in RGB pixels")
    parser.add_argument("--repeats", type=int, default=10, help="timed samples of each kind")
    parser.add_argument("--clips", type=int, default=2)


def run(args: argparse.Namespace) -> dict[str, Any]:
    # One thread, as in a loader worker.
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for clip in range(args.clips):
            make_clip(root, f"GOPR{clip:04d}_11_00", 2 * args.frames, clip)
        cache = str(root / "cache")
        options = DATASETS.resolve(section(root, args), "datasets.train")
        build_cache(options.constructor.source(options), cache)
        return {"samples": time_samples(root, cache, args)}


def make_clip(root: Path, name: str, frames: int, seed: int) -> None:
    """A clip of GoPro size and layout, whose PNGs compress about as much as those of GoPro."""
    rng = np.random.default_rng(seed)
    picture = (255 * texture(rng, WIDTH)[:HEIGHT]).astype(np.uint8)
    light = cv2.resize(to_grey(to_linear(picture / np.float32(255))), (WIDTH // RATIO, HEIGHT // RATIO))
    sensor = IntegrateAndFire(*light.shape, rate=0.5, rng=rng)
    for frame in range(frames):
        grain = rng.normal(0, 2.0, picture.shape).astype(np.float32)
        noisy = np.clip(np.roll(picture, 4 * frame, axis=1) + grain, 0, 255).astype(np.uint8)
        for kind in ("blur", "sharp"):
            path = root / "GOPRO_Large/train" / name / kind / f"{frame:06d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), noisy)
        path = root / "GOPRO_Large_spike_seq/train" / name / "spike" / f"{frame:06d}.dat"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_spikes(path, sensor.run([light] * PLANES), SpikeGeometry(*light.shape))


def section(root: Path, args: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    rgb = str(root / "GOPRO_Large/train")
    values = {
        "dataset_type": "TrainDatasetRGBSpike", "dataroot_gt": rgb, "dataroot_lq": rgb,
        "dataroot_spike": str(root / "GOPRO_Large_spike_seq/train"), "num_frame": args.frames, "gt_size": args.crop,
        "use_hflip": True, "use_rot": True, "random_reverse": True,
        "spike": {"type": "dat", "h": HEIGHT // RATIO, "w": WIDTH // RATIO, "representation": "voxel"},
    }  # fmt: skip
    return {key: value for key, value in (values | changes).items() if value is not None}


def time_samples(root: Path, cache: str, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per sample: decoding its PNGs only, RGB, RGB + spikes, and both from the cache."""
    rgb = {"dataset_type": "VideoRecurrentTrainDataset", "dataroot_spike": None, "spike": None}
    cached = {"io_backend": {"type": "cache", "path": cache}}
    datasets = {
        "png": build_dataset(section(root, args, **rgb), "train", 0),
        "png + .dat": build_dataset(section(root, args), "train", 0),
        "cache, RGB": build_dataset(section(root, args, **rgb, **cached), "train", 0),
        "cache, RGB + spikes": build_dataset(section(root, args, **cached), "train", 0),
    }
    clip = datasets["png"].clips[0]
    paths = [*clip.lq[: args.frames], *clip.gt[: args.frames]]
    turn = iter(range(10**9))
    runs: dict[str, Callable[[], Any]] = {"OpenCV decodes the PNGs": lambda: [cv2.imread(p) for p in paths]}
    for name, dataset in datasets.items():
        runs[name] = lambda d=dataset: d[(0, next(turn) % len(d))]
    best = median_ms(runs, args.repeats, 2)
    decode = best["OpenCV decodes the PNGs"]
    print(
        f"\nOne sample: {args.frames} frames of {WIDTH} x {HEIGHT}, crop {args.crop}, {PLANES} planes of 640 x 360 each"
    )
    rows = [[name, f"{ms:.1f}", f"{1e3 / ms:.1f}", f"{ms / decode:.3f}"] for name, ms in best.items()]
    print(table(rows, ["", "ms", "samples/s", "of decoding"]))
    print(f"spikes add {100 * (best['png + .dat'] / best['png'] - 1):.1f} % to the PNG path")
    return best


def median_ms(runs: dict[str, Callable[[], Any]], repeats: int, warmup: int) -> dict[str, float]:
    times = in_turn(runs, lambda run: seconds(run, torch.device("cpu")), repeats, warmup)
    return {name: 1e3 * float(np.median(values)) for name, values in times.items()}

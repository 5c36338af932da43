#!/usr/bin/env python3
"""Time and memory of the network and of the data. Prints tables; --json FILE writes the numbers.

    python lab/benchmark.py net --quick python lab/benchmark.py train --config 006 --crop 64
    --against naive --threads 1 --json train.json python lab/benchmark.py data --crop 128 --repeats
    20

net: restoring one clip. train: one training step. data: samples of GoPro size, from files and from
the clip cache. start: the first and the second start of a training on a large data set.

    python lab/benchmark.py start --clips 4000
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from data.clip_dataset import TrainClips
from data.clips.io_backend import build_cache
from data.select_dataset import DATASETS, build_dataset
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_grey, to_linear
from lab import large_set
from lab.tools import CHECKPOINTED, NAMED, compared, environment, matmul_rate
from models.network_vrt import VRT
from scripts.make_sample_data import texture
from tests.helpers.naive_vrt import NaiveVRT
from utils.results import markdown_table as table

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HEIGHT, WIDTH, RATIO, PLANES = 720, 1280, 2, 88


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("start").add_argument
    add("--clips", type=int, default=500, help="clips of 8 frames, of three files each")
    add("--folder", type=Path, help="where the set is made, and removed (default: a temporary one)")
    add("--json", type=Path, help="write the numbers to this new file")
    for name in ("net", "train", "data"):
        add = commands.add_parser(name).add_argument
        add("--frames", type=int, default=6)
        add("--repeats", type=int, default=10 if name == "data" else 3)
        add("--json", type=Path, help="write the numbers to this new file")
        if name == "data":
            add("--crop", type=int, default=192, help="side of the crop, in RGB pixels")
            add("--clips", type=int, default=2)
            continue
        add(
            "--config",
            default="006",
            help=f"{', '.join(NAMED)}, or an option file, whose checkpointing holds",
        )
        add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        add("--dtype", choices=DTYPES, default="float32", help="of autocast; float32: no autocast")
        add("--crop", type=int, nargs="+", default=[64], help="side, or height and width")
        add("--batch", type=int, default=1)
        add("--threads", type=int, help="CPU threads (default: all)")
        add("--checkpoint", action="store_true", help="activation checkpointing of every block")
        add(
            "--against",
            choices=["naive"],
            help="also run the unoptimised tests/helpers/naive_vrt.py",
        )
        add("--quick", action="store_true", help="the small network on 2 x 32 x 32, once")
    args = parser.parse_args(argv)
    assert not (args.json and args.json.exists()), f"{args.json} exists already"
    runs = {"data": run_data, "start": run_start}
    numbers = runs.get(args.command, run)(args)
    if args.json:
        args.json.write_text(
            json.dumps({"command": " ".join(argv), **environment(), **numbers}, indent=2) + "\n"
        )
    return 0


class Clip:
    """A random clip, and the runs of a network on it."""

    def __init__(
        self, args: argparse.Namespace, options: dict[str, Any], size: tuple[int, int, int]
    ) -> None:
        """size: frames, height, width."""
        generator = torch.Generator().manual_seed(0)
        self.size = batch, frames, height, width = (args.batch, *size)
        channels = 3 if options.get("fusion", "none") != "none" else options.get("in_chans") or 3
        counts = (
            channels + int(options.get("nonblind_denoising", False)),
            options.get("spike_channels", 0),
        )
        self.device, self.amp = torch.device(args.device), DTYPES[args.dtype]
        sizes = [(batch, frames, count, height, width) for count in counts if count]
        self.inputs = [torch.rand(size, generator=generator).to(self.device) for size in sizes]

    def __call__(self, net: nn.Module) -> Tensor:
        with torch.autocast(self.device.type, self.amp, enabled=self.amp is not torch.float32):
            return net(*self.inputs)

    @torch.no_grad()
    def restore(self, net: nn.Module) -> Tensor:
        return self(net)

    def train_step(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        (self(net).float() - 0.5).square().add(1e-9).sqrt().mean().backward()
        optimizer.step()


def networks(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, nn.Module]:
    """The network ("ours") and, with --against naive, the naive VRT with the same weights."""
    torch.manual_seed(0)
    # On a CPU stochastic depth skips branches, and all of them are to be measured.
    changes: dict[str, Any] = {"drop_path_rate": 0.0} | (CHECKPOINTED if args.checkpoint else {})
    net = VRT(**(options | changes))
    nn.init.normal_(net.conv_last.weight, std=0.01)  # zero weights would hide every difference
    found: dict[str, nn.Module] = {"ours": net}
    if args.against:
        found["naive"] = NaiveVRT(**options)
        found["naive"].load_state_dict(net.state_dict())
    return {name: each.to(args.device) for name, each in found.items()}


def flops(options: dict[str, Any], size: tuple[int, ...]) -> int:
    """FLOPs (two per multiply-add) of a forward pass on (batch, frames, height, width), without
    fusion and sampling.
    """
    batch, frames, height, width = size
    without = {"in_chans": 3, "nonblind_denoising": False, "fusion": "none", "spike_channels": 0}
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        # And its tables, which are made on the CPU
        naive = NaiveVRT(**{**options, **without}).to("meta")
        naive(torch.rand(batch, frames, 3, height, width))
    return counter.get_total_flops()


def run(args: argparse.Namespace) -> dict[str, Any]:
    warmup = 0 if args.quick else 1
    if args.quick:
        args.config, args.frames, args.crop, args.repeats = "small", 2, [32], 1
    if args.threads:
        torch.set_num_threads(args.threads)
    trains, options = args.command == "train", dict(NAMED.get(args.config, ()))
    if not options:
        from main_train_vrt import read_options  # takes a second

        opt = read_options(["--opt", args.config])
        options = {**opt.netG.plain(), "spike_channels": opt.spike_channels}
        assert options.pop("net_type") == "vrt", "only vrt is measured"
    nets = {name: net.train(trains) for name, net in networks(args, options).items()}
    clip = Clip(args, options, (args.frames, args.crop[0], args.crop[-1]))
    jobs: dict[str, Callable[[], Any]] = {}
    for name, net in nets.items():
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=clip.device.type == "cuda")
        jobs[name] = (
            partial(clip.train_step, net, optimizer) if trains else partial(clip.restore, net)
        )
    found: dict[str, Any] = {
        "config": args.config,
        "dtype": args.dtype,
        "training": trains,
        "size": clip.size,
    }
    if args.against:
        a, b = (clip.restore(net).double() for net in nets.values())
        found["largest_difference"] = float((a - b).abs().max() / b.abs().max())
    found["runs"] = compared(jobs, clip.device, args.repeats, warmup)
    # A backward pass takes two more products for each.
    found["model_flops"] = (3 if trains else 1) * flops(options, clip.size)
    found["matmul_flops_per_s"] = matmul_rate(clip.device, clip.amp)
    for figures in found["runs"].values():
        figures["flops_per_s"] = found["model_flops"] / figures["median_s"]
        figures["share_of_matmul_rate"] = figures["flops_per_s"] / found["matmul_flops_per_s"]
    print(
        f"{args.config}, {args.command}, {args.dtype}, "
        f"batch x frames x height x width = {clip.size}"
    )
    keys = list(found["runs"]["ours"])
    print(
        table(
            [[name, *(each[key] for key in keys)] for name, each in found["runs"].items()],
            ["", *keys],
        )
    )
    if args.against:
        runs = found["runs"]
        found["ratio"] = {
            key: runs["ours"][key] / runs["naive"][key]
            for key in ("median_s", "min_s", "process_mb")
        }
        print("ours / naive:", found["ratio"], "largest difference", found["largest_difference"])
    return found


def run_data(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per sample: decoding its PNGs, RGB, RGB + spikes, and both from the cache."""
    cv2.setNumThreads(0)  # one thread, as in a loader worker
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for clip in range(args.clips):
            make_clip(root, f"GOPR{clip:04d}_11_00", 2 * args.frames, clip)
        rgb = {"dataset_type": "VideoRecurrentTrainDataset"}
        size = {"h": HEIGHT // RATIO, "w": WIDTH // RATIO}
        spikes = {
            "dataset_type": "TrainDatasetRGBSpike",
            "dataroot_spike": str(root / "GOPRO_Large_spike_seq/train"),
            "spike": {"type": "dat", **size, "representation": "voxel"},
        }
        both: dict[str, Any] = {
            "dataroot_gt": str(root / "GOPRO_Large/train"),
            "dataroot_lq": str(root / "GOPRO_Large/train"),
            "num_frame": args.frames,
            "gt_size": args.crop,
            "use_hflip": True,
            "use_rot": True,
            "random_reverse": True,
        }
        options = DATASETS.resolve(both | spikes, "datasets.train")
        build_cache(options.constructor.sources_of(options)[0], str(root / "cache"))
        cached = {"io_backend": {"type": "cache", "path": str(root / "cache")}}
        kinds = {
            "png": rgb,
            "png + .dat": spikes,
            "cache, RGB": rgb | cached,
            "cache, RGB + spikes": spikes | cached,
        }
        datasets = {}
        for name, changes in kinds.items():
            dataset = build_dataset(both | changes, "train", 0)
            assert isinstance(dataset, TrainClips)
            datasets[name] = dataset
        clip, turn = datasets["png"].clips[0], iter(range(10**9))
        paths = [*clip.lq[: args.frames], *clip.gt[: args.frames]]
        runs: dict[str, Callable[[], Any]] = {
            "OpenCV decodes the PNGs": lambda: [cv2.imread(p) for p in paths]
        }
        for name, dataset in datasets.items():
            runs[name] = lambda d=dataset: d[(0, next(turn) % len(d))]
        found = compared(runs, torch.device("cpu"), args.repeats, 2)
    best = {name: 1e3 * figures["median_s"] for name, figures in found.items()}
    decode = best["OpenCV decodes the PNGs"]
    print(
        f"\n{args.frames} frames of {WIDTH} x {HEIGHT}, crop {args.crop}, "
        f"{PLANES} planes of 640 x 360 each"
    )
    rows = [
        [name, f"{ms:.1f}", f"{1e3 / ms:.1f}", f"{ms / decode:.3f}"] for name, ms in best.items()
    ]
    print(table(rows, ["", "ms", "samples/s", "of decoding"]))
    print(f"spikes add {100 * (best['png + .dat'] / best['png'] - 1):.1f} % to the PNG path")
    return {"samples": best}


def run_start(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds, memory and calls of a first start of a training, and of a second one."""
    few = large_set.costs(2, args.folder)
    found = large_set.costs(args.clips, args.folder)
    files = args.clips * large_set.FILES
    rows = []
    for name, costs in found.items():
        row = [name, f"{costs['seconds']:.1f}", f"{costs['cpu_seconds']:.1f}", f"{costs['gb']:.2f}"]
        for kind in large_set.CALLS:
            if kind in costs:  # without strace there are none
                # What a set of two clips asks for is asked by the imports.
                costs[kind] -= few[name][kind]
                row.append(f"{costs[kind] / files:.3f}")
        if "slow_seconds" in costs:
            costs["slow_seconds"] -= few[name]["slow_seconds"]
            row.append(f"{costs['slow_seconds']:.1f}")
        rows.append(row)
    print(f"\n{args.clips} clips, {files} files")
    kinds = [f"{kind} a file" for kind in large_set.CALLS]
    heads = ["start", "s", "CPU s", "GB", *kinds, "s more at 0.5 ms a call"]
    print(table(rows, heads[: len(rows[0])]))
    return {"clips": args.clips, "files": files, "starts": found}


def make_clip(root: Path, name: str, frames: int, seed: int) -> None:
    """A clip of GoPro size and layout, whose PNGs compress about as much as those of GoPro."""
    rng = np.random.default_rng(seed)
    picture = (255 * texture(rng, WIDTH)[:HEIGHT]).astype(np.uint8)
    light = cv2.resize(
        to_grey(to_linear(picture / np.float32(255))), (WIDTH // RATIO, HEIGHT // RATIO)
    )
    sensor, rgb = (
        IntegrateAndFire(*light.shape, rate=0.5, rng=rng),
        root / "GOPRO_Large/train" / name,
    )
    spikes = root / "GOPRO_Large_spike_seq/train" / name / "spike"
    for folder in (rgb / "blur", rgb / "sharp", spikes):
        folder.mkdir(parents=True)
    for frame in range(frames):
        grain = rng.normal(0, 2.0, picture.shape).astype(np.float32)
        noisy = np.clip(np.roll(picture, 4 * frame, axis=1) + grain, 0, 255).astype(np.uint8)
        for kind in ("blur", "sharp"):
            cv2.imwrite(str(rgb / kind / f"{frame:06d}.png"), noisy)
        write_spikes(
            spikes / f"{frame:06d}.dat", sensor.run([light] * PLANES), SpikeGeometry(*light.shape)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

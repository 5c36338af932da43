#!/usr/bin/env python3
"""Measure time and memory of the network and of the data. Prints tables.

    python lab/benchmark.py net --quick
    python lab/benchmark.py train --config 006 --crop 64 --against naive --threads 1 \\
        --json train.json
    python lab/benchmark.py data --crop 128 --repeats 20
    python lab/benchmark.py start --clips 4000

net: restoring one clip.
train: one training step.
data: reading training samples of GoPro size, from files and from the clip cache.
start: the first and the second start of a training on a large data set.

--json FILE also writes the numbers to a new file. docs/benchmarks has the results.

What must stay: `networks` and `Clip`, which lab/gpu.py uses, and the keys of the numbers, because
the files in docs/benchmarks have them. test_the_benchmark_compares_with_the_naive_network runs net
and train. No test runs data and start: try them after a change. Free to change: sizes, repeats and
the form of the tables.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from data.clip_dataset import TrainClips
from data.clips.cache_builder import build_cache
from data.select_dataset import DATASETS, build_dataset
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_grey, to_linear
from data.spike.simulate import IntegrateAndFire
from lab import large_set
from lab.tools import CHECKPOINTED, NAMED, compared, environment, matmul_rate
from models.network_vrt import VRT
from scripts.make_sample_data import texture
from tests.helpers.naive_vrt import NaiveVRT
from utils.results import markdown_table as table

# Values of --dtype. float32 means no autocast.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main(argv: list[str]) -> int:
    """Run one command. Returns the exit code 0. An existing --json file is an AssertionError."""
    args = parse(argv)
    assert not (args.json and args.json.exists()), f"{args.json} exists already"

    if args.command == "data":
        numbers = run_data(args)
    elif args.command == "start":
        numbers = run_start(args)
    else:
        numbers = run_network(args)

    if args.json:
        content = {"command": " ".join(argv), **environment(), **numbers}
        args.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments of the command line. `command` is net, train, data or start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    json_help = "write the numbers to this new file"

    add = commands.add_parser("start").add_argument
    add("--clips", type=int, default=500, help="clips of 8 frames, of three files each")
    add("--folder", type=Path, help="where the set is made, and removed (default: a temporary one)")
    add("--json", type=Path, help=json_help)

    add = commands.add_parser("data").add_argument
    add("--frames", type=int, default=6, help="frames of a sample, default 6")
    add("--repeats", type=int, default=10, help="measured samples of each way, default 10")
    add("--json", type=Path, help=json_help)
    add("--crop", type=int, default=192, help="side of the crop, in RGB pixels")
    add("--clips", type=int, default=2, help="clips of the data set, default 2")

    for name in ("net", "train"):
        add = commands.add_parser(name).add_argument
        add("--frames", type=int, default=6, help="frames of a clip, default 6")
        add("--repeats", type=int, default=3, help="measured runs, default 3")
        add("--json", type=Path, help=json_help)
        add(
            "--config",
            default="006",
            help=f"{', '.join(NAMED)}, or an option file; its own checkpointing stays",
        )
        add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        add("--dtype", choices=DTYPES, default="float32", help="of autocast; float32: no autocast")
        add("--crop", type=int, nargs="+", default=[64], help="side, or height and width")
        add("--batch", type=int, default=1, help="clips at once, default 1")
        add("--threads", type=int, help="CPU threads (default: all)")
        add("--checkpoint", action="store_true", help="activation checkpointing of every block")
        add(
            "--against",
            choices=["naive"],
            help="also run the unoptimised tests/helpers/naive_vrt.py",
        )
        add("--quick", action="store_true", help="the small network on 2 x 32 x 32, once")
    return parser.parse_args(argv)


# ---- net and train: the network --------------------------------------------------------------


def run_network(args: argparse.Namespace) -> dict[str, Any]:
    """Measure restorations (command net) or training steps (command train). Prints a table.

    Returns the numbers for --json: the setting, `runs` with the figures of each network
    (lab.tools.compared), and with --against naive also their difference and their ratio.
    """
    warmup = 1  # runs before the timed runs, in which caches are filled
    if args.quick:
        args.config = "small"
        args.frames = 2
        args.crop = [32]
        args.repeats = 1
        warmup = 0
    if args.threads:
        torch.set_num_threads(args.threads)
    is_training = args.command == "train"

    # The networks, "ours" and perhaps "naive", and the clip that all of them get.
    options = network_options(args.config)
    nets = networks(args, options)
    for net in nets.values():
        net.train(is_training)
    height, width = args.crop[0], args.crop[-1]  # --crop has one number or two
    clip = Clip(args, options, (args.frames, height, width))

    # These are the keys of the file --json. docs/benchmarks cites them, so they must stay.
    numbers: dict[str, Any] = {
        "config": args.config,
        "dtype": args.dtype,
        "training": is_training,
        "size": clip.size,
    }
    if args.against:
        # Compare the outputs before a training step changes the weights.
        numbers["largest_difference"] = relative_difference(
            clip.restore(nets["ours"]), clip.restore(nets["naive"])
        )
    jobs = {name: _job(net, clip, is_training) for name, net in nets.items()}
    numbers["runs"] = compared(jobs, clip.device, args.repeats, warmup)

    model_flops = flops(options, clip.size)
    if is_training:
        # For each matrix product of the forward pass, the backward pass has two: one gives the
        # gradient of the input, and one gives the gradient of the weights.
        model_flops *= 3
    _add_share_of_speed(numbers, model_flops, matmul_rate(clip.device, clip.amp))

    _print_network_figures(args, numbers)
    if args.against:
        ours = numbers["runs"]["ours"]
        naive = numbers["runs"]["naive"]
        ratio = {}
        for key in ("median_s", "min_s", "process_mb"):
            ratio[key] = ours[key] / naive[key]
        numbers["ratio"] = ratio
        print("ours / naive:", ratio, "largest difference", numbers["largest_difference"])
    return numbers


def _job(net: nn.Module, clip: "Clip", is_training: bool) -> Callable[[], Any]:
    """Return the function that is timed: a training step, or a restoration."""
    if not is_training:
        return partial(clip.restore, net)
    is_on_gpu = clip.device.type == "cuda"
    # fused: one kernel changes all weights, as in a training (models/optim.py).
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=is_on_gpu)
    return partial(clip.train_step, net, optimizer)


def _add_share_of_speed(
    numbers: dict[str, Any], model_flops: int, matmul_flops_per_s: float
) -> None:
    """Add to `numbers` which share of the device's speed each run uses. Changes `numbers`.

    model_flops: floating-point operations of a run. Each product counts once. With --checkpoint a
    product is computed twice, but the second time is no useful work.
    matmul_flops_per_s: speed of the device in a large matrix product.
    """
    numbers["model_flops"] = model_flops
    numbers["matmul_flops_per_s"] = matmul_flops_per_s
    for figures in numbers["runs"].values():
        figures["flops_per_s"] = model_flops / figures["median_s"]
        figures["share_of_matmul_rate"] = figures["flops_per_s"] / matmul_flops_per_s


def _print_network_figures(args: argparse.Namespace, numbers: dict[str, Any]) -> None:
    """Print a table with a row for each network and a column for each figure."""
    print(
        f"{args.config}, {args.command}, {args.dtype}, "
        f"batch x frames x height x width = {numbers['size']}"
    )
    keys = list(numbers["runs"]["ours"])
    rows = []
    for name, figures in numbers["runs"].items():
        rows.append([name, *(figures[key] for key in keys)])
    print(table(rows, ["", *keys]))


def network_options(config: str) -> dict[str, Any]:
    """Return the arguments of VRT. config: a name in lab.tools.NAMED, or an option file."""
    if config in NAMED:
        return dict(NAMED[config])
    from main_train_vrt import read_options  # takes a second

    opt = read_options(["--opt", config])
    # `plain` returns the section as a dict.
    options = {**opt.netG.plain(), "spike_channels": opt.spike_channels}
    net_type = options.pop("net_type")  # removed, because VRT has no argument of this name
    assert net_type == "vrt", "only vrt is measured"
    return options


def networks(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, nn.Module]:
    """Return {"ours": network}, and with --against naive also "naive", with the same weights.

    args: its `against`, `checkpoint` and `device` are used.
    options: arguments of VRT.
    """
    torch.manual_seed(0)
    # In training, stochastic depth drops branches at random. On a CPU a dropped branch is not
    # computed, so the time would depend on chance. With the rate 0 all branches are computed.
    ours_options: dict[str, Any] = {**options, "drop_path_rate": 0.0}
    # Activation checkpointing: each block computes its activations a second time in the backward
    # pass, so that they need not be kept in memory.
    if args.checkpoint:
        ours_options |= CHECKPOINTED
    ours = VRT(**ours_options)
    # The last layer begins with zero weights, which would hide every difference of the networks. No
    # test notices if they stay zero.
    nn.init.normal_(ours.conv_last.weight, std=0.01)

    nets: dict[str, nn.Module] = {"ours": ours}
    if args.against:
        # The naive network has neither stochastic depth nor activation checkpointing. It takes
        # `drop_path_rate` and the keys of CHECKPOINTED as arguments and ignores them. So it gets
        # the options as they are.
        naive = NaiveVRT(**options)
        naive.load_state_dict(ours.state_dict())
        nets["naive"] = naive
    for net in nets.values():
        net.to(args.device)
    return nets


class Clip:
    """A random clip as a network gets it, and what a network does with it."""

    def __init__(
        self, args: argparse.Namespace, options: dict[str, Any], size: tuple[int, int, int]
    ) -> None:
        """Draw the clip.

        args: its `batch`, `device` and `dtype` are used.
        options: arguments of VRT, which say how many channels the network expects.
        size: frames, height, width.
        """
        frames, height, width = size
        self.size = (args.batch, frames, height, width)
        self.device = torch.device(args.device)
        self.amp = DTYPES[args.dtype]  # dtype of autocast

        # With a fusion the frames are RGB, and `in_chans` is the number of channels after the
        # fusion. Without one, `in_chans` is the number of channels of a frame.
        has_fusion = options.get("fusion", "none") != "none"
        frame_channels = 3
        if not has_fusion:
            frame_channels = options.get("in_chans") or 3
        if options.get("nonblind_denoising", False):
            frame_channels += 1  # the map of the noise level
        spike_channels = options.get("spike_channels", 0)

        # Inputs of the network: frames (B, T, C, H, W), and spikes (B, T, S, H, W) if it has them.
        generator = torch.Generator().manual_seed(0)
        self.inputs = []
        for channels in (frame_channels, spike_channels):
            if channels:
                shape = (args.batch, frames, channels, height, width)
                self.inputs.append(torch.rand(shape, generator=generator).to(self.device))

    def __call__(self, net: nn.Module) -> Tensor:
        """Return the output of a network, computed under autocast if --dtype has 16 bits."""
        has_autocast = self.amp is not torch.float32
        with torch.autocast(self.device.type, self.amp, enabled=has_autocast):
            return net(*self.inputs)

    @torch.no_grad()
    def restore(self, net: nn.Module) -> Tensor:
        """Return the output of a network without gradients."""
        return self(net)

    def train_step(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Train for one step with the Charbonnier loss, towards a grey picture of 0.5."""
        optimizer.zero_grad(set_to_none=True)
        error = self(net).float() - 0.5
        loss = error.square().add(1e-9).sqrt().mean()
        loss.backward()
        optimizer.step()


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two outputs, divided by the largest value of b."""
    a = a.double()
    b = b.double()
    return float((a - b).abs().max() / b.abs().max())


def flops(options: dict[str, Any], size: tuple[int, ...]) -> int:
    """Count the FLOPs of a forward pass: two for each multiplication with its addition.

    The operations of the naive network are counted, because it computes each product of the
    definition exactly once. Our network leaves some products out or computes them in other forms to
    be faster, so its own count would not be comparable. Fusion and deformable sampling are not
    counted.

    options: arguments of VRT. size: batch, frames, height, width.
    """
    batch, frames, height, width = size
    without_fusion: dict[str, Any] = {
        "in_chans": 3,
        "nonblind_denoising": False,
        "fusion": "none",
        "spike_channels": 0,
    }
    # On the device "meta" tensors have a shape and no values. So counting takes little time.
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        naive = NaiveVRT(**{**options, **without_fusion})
        naive = naive.to("meta")  # moves tables too, which the constructor makes on the CPU
        naive(torch.rand(batch, frames, 3, height, width))
    return counter.get_total_flops()


# ---- data: samples of a training -------------------------------------------------------------

# Sizes as in GoPro with spikes.
HEIGHT = 720
WIDTH = 1280
RATIO = 2  # RGB pixels along a side of a spike pixel
PLANES = 88  # spike planes of a frame


def run_data(args: argparse.Namespace) -> dict[str, Any]:
    """Measure how long a training sample takes, for each way to read it. Prints a table.

    The ways are PNG files without and with spike files, and the clip cache without and with
    spikes. The time to decode the PNGs of a sample is measured too, because it is most of the work.

    Returns {"samples": way -> milliseconds of a sample}.
    """
    # One thread, as in a worker process of the loader. 0 means that OpenCV starts no threads.
    cv2.setNumThreads(0)
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for clip_index in range(args.clips):
            # Twice the frames of a sample, so that a sample may begin at different frames. The name
            # is like one of GoPro: "_11_" says that 11 raw frames are averaged.
            name = f"GOPR{clip_index:04d}_11_00"
            make_clip(root, name, frames=2 * args.frames, seed=clip_index)
        datasets = make_datasets(root, args)

        clip = datasets["png"].clips[0]
        pngs = [*clip.lq[: args.frames], *clip.gt[: args.frames]]
        runs: dict[str, Callable[[], Any]] = {
            "OpenCV decodes the PNGs": lambda: [cv2.imread(path) for path in pngs]
        }
        # The counter is shared by all ways, so that no sample is read twice in succession. The
        # second time its files would be in the cache of the system.
        counter = count()
        for name, dataset in datasets.items():
            runs[name] = partial(_read_next_sample, dataset, counter)
        figures_of_ways = compared(runs, torch.device("cpu"), args.repeats, warmup=2)

    ms = {name: 1e3 * figures["median_s"] for name, figures in figures_of_ways.items()}
    _print_ways(args, ms)
    return {"samples": ms}


def _print_ways(args: argparse.Namespace, ms: dict[str, float]) -> None:
    """Print a table with a row for each way. ms: way -> milliseconds of a sample."""
    decoding_ms = ms["OpenCV decodes the PNGs"]
    print(
        f"\n{args.frames} frames of {WIDTH} x {HEIGHT}, crop {args.crop}, "
        f"{PLANES} planes of 640 x 360 each"
    )
    rows = []
    for name, way_ms in ms.items():
        samples_per_s = 1e3 / way_ms
        of_decoding = way_ms / decoding_ms
        rows.append([name, f"{way_ms:.1f}", f"{samples_per_s:.1f}", f"{of_decoding:.3f}"])
    print(table(rows, ["", "ms", "samples/s", "of decoding"]))
    added_share = ms["png + .dat"] / ms["png"] - 1
    print(f"spikes add {100 * added_share:.1f} % to the PNG path")


def _read_next_sample(dataset: TrainClips, counter: Iterator[int]) -> Any:
    """Read a sample of a data set. counter: counts the samples that have been read."""
    index = next(counter) % len(dataset)
    return dataset[(0, index)]  # (epoch, index)


def make_datasets(root: Path, args: argparse.Namespace) -> dict[str, TrainClips]:
    """Return a training set for each way to read the clips in `root`. Writes the clip cache.

    args: its `frames` and `crop` are the size of a sample.
    """
    # Keys of an option file's section datasets.train.
    of_all: dict[str, Any] = {
        "dataroot_gt": str(root / "GOPRO_Large/train"),
        "dataroot_lq": str(root / "GOPRO_Large/train"),
        "num_frame": args.frames,
        "gt_size": args.crop,
        "use_hflip": True,
        "use_rot": True,
        "random_reverse": True,
    }
    rgb = {"dataset_type": "VideoRecurrentTrainDataset"}
    spikes = {
        "dataset_type": "TrainDatasetRGBSpike",
        "dataroot_spike": str(root / "GOPRO_Large_spike_seq/train"),
        "spike": {
            "type": "dat",
            "h": HEIGHT // RATIO,
            "w": WIDTH // RATIO,
            "representation": "voxel",
        },
    }
    cached = {"io_backend": {"type": "cache", "path": str(root / "cache")}}

    section = DATASETS.resolve(of_all | spikes, "datasets.train")
    # The set has one root, so one source: its folders, and how its spikes are read.
    [source] = section.constructor.sources_of(section)
    build_cache(source, str(root / "cache"))

    # Way -> the keys that differ between the ways.
    ways = {
        "png": rgb,
        "png + .dat": spikes,
        "cache, RGB": rgb | cached,
        "cache, RGB + spikes": spikes | cached,
    }
    datasets = {}
    for name, keys_of_way in ways.items():
        dataset = build_dataset(of_all | keys_of_way, "train", 0)
        assert isinstance(dataset, TrainClips)
        datasets[name] = dataset
    return datasets


def make_clip(root: Path, name: str, frames: int, seed: int) -> None:
    """Write a clip of GoPro size: blurry and sharp PNGs and spike files.

    The scene is a texture that moves to the right. Noise is added, so that the PNGs are about as
    large as the PNGs of GoPro: the time of decoding depends on the size of a file.
    """
    rng = np.random.default_rng(seed)
    picture = (255 * texture(rng, WIDTH)[:HEIGHT]).astype(np.uint8)

    # The spike camera sees the texture in grey, at half the resolution.
    grey = to_grey(to_linear(picture / np.float32(255)))
    light = cv2.resize(grey, (WIDTH // RATIO, HEIGHT // RATIO))
    sensor = IntegrateAndFire(*light.shape, rate=0.5, rng=rng)

    rgb = root / "GOPRO_Large/train" / name
    spikes = root / "GOPRO_Large_spike_seq/train" / name / "spike"
    for folder in (rgb / "blur", rgb / "sharp", spikes):
        folder.mkdir(parents=True)

    for frame in range(frames):
        noise = rng.normal(0, 2.0, picture.shape).astype(np.float32)
        moved = np.roll(picture, 4 * frame, axis=1)
        noisy = np.clip(moved + noise, 0, 255).astype(np.uint8)
        # Blur does not matter here. Both files have the same picture.
        for kind in ("blur", "sharp"):
            cv2.imwrite(str(rgb / kind / f"{frame:06d}.png"), noisy)
        planes = sensor.run([light] * PLANES)
        write_spikes(spikes / f"{frame:06d}.dat", planes, SpikeGeometry(*light.shape))


# ---- start: a training on a large set --------------------------------------------------------


def run_start(args: argparse.Namespace) -> dict[str, Any]:
    """Measure a first start of a training on many clips, and a second one. Prints a table.

    If strace is installed, the table also says how often a start asks the file system, for each
    file of the set, and how many seconds longer it takes on a slow file system.
    """
    # A start on two clips costs little more than the imports. Two of its figures are subtracted
    # below: its calls, and its seconds on a slow file system. What is left belongs to the files of
    # the set.
    costs_of_two_clips = large_set.costs(2, args.folder)
    costs_of_starts = large_set.costs(args.clips, args.folder)
    files = args.clips * large_set.FILES_OF_CLIP

    rows = []
    for name, costs in costs_of_starts.items():  # "first", "again"
        row = [name, f"{costs['seconds']:.1f}", f"{costs['cpu_seconds']:.1f}", f"{costs['gb']:.2f}"]
        for kind in large_set.CALLS:
            if kind in costs:
                costs[kind] -= costs_of_two_clips[name][kind]
                row.append(f"{costs[kind] / files:.3f}")
        if "slow_seconds" in costs:
            costs["slow_seconds"] -= costs_of_two_clips[name]["slow_seconds"]
            row.append(f"{costs['slow_seconds']:.1f}")
        rows.append(row)

    print(f"\n{args.clips} clips, {files} files")
    heads = ["start", "s", "CPU s", "GB"]
    heads += [f"{kind} a file" for kind in large_set.CALLS]
    heads += ["s more at 0.5 ms a call"]
    columns = len(rows[0])  # without strace only the first four
    print(table(rows, heads[:columns]))
    return {"clips": args.clips, "files": files, "starts": costs_of_starts}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

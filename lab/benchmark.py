#!/usr/bin/env python3
"""Time and memory of the network and of the data. Prints tables; --json FILE writes the numbers.

    python lab/benchmark.py net --quick
    python lab/benchmark.py train --config 006 --crop 64 --against naive --threads 1 --json train.json
    python lab/benchmark.py data --crop 128 --repeats 20

net: restoring one clip. train: one training step. data: samples from files and from the clip cache.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from lab import benchmark_data
from lab.tools import CHECKPOINTED, NAMED, compared, environment, matmul_rate
from models.network_vrt import VRT
from models.vrt.block import Block
from models.vrt.deform_align import DeformAlign
from models.vrt.fit_memory import block_flops
from models.vrt.flow import SpyNet
from models.vrt.layers import FrameConv
from models.vrt.stage import RefineLayer, Stage
from tests.naive_vrt import NaiveVRT
from utils.metrics import markdown_table as table

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def flops(net: nn.Module, size: tuple[int, int, int, int]) -> dict[str, float]:
    """FLOPs (two per multiply-add) of one forward pass on (batch, frames, height, width), per part of the network.

    "mutual attention": all attention in the blocks that have mutual attention.
    """
    batch, frames, height, width = size
    pixels, pairs = batch * frames * height * width, 2 * batch * (frames - 1) * height * width
    parts = ("flow", "alignment", "mutual attention", "self attention", "MLP", "convolutions", "linears")
    work = dict.fromkeys(parts, 0.0)
    scales = dict(zip((f"stage{i}" for i in range(1, 8)), (1, 2, 4, 8, 4, 2, 1), strict=True))
    for name, part in net.named_children():
        scale = scales.get(name, 1)
        area = scale**2
        if isinstance(part, SpyNet):
            work["flow"] += pairs * sum(2 * _weight_count(part.basic_module[i]) / 4 ** (5 - i) for i in range(6))
        elif isinstance(part, Stage) or name == "stage8":
            for block in (m for m in part.modules() if isinstance(m, Block)):
                attention, mlp = block_flops(block, (batch, frames, height // scale, width // scale))
                work["mutual attention" if block.attn.mutual else "self attention"] += attention
                work["MLP"] += mlp
            owners = (m for m in part.modules() if isinstance(m, Stage | RefineLayer | nn.Sequential))
            linears = [m for owner in owners for m in owner.children()]
            work["linears"] += pixels / area * 2 * sum(m.weight.numel() for m in linears if isinstance(m, nn.Linear))
            if isinstance(part, Stage) and part.aligns:
                align: DeformAlign = part.pa_deform
                work["alignment"] += pairs / area * 2 * (_weight_count(align.conv_offset) + align.weight.numel())
                work["MLP"] += pixels / area * 2 * _weight_count(part.pa_fuse)
        elif name in ("norm", "conv_after_body"):
            work["linears"] += pixels * 2 * _weight_count(part)
        else:
            kernels = sum(m.weight.numel() for m in part.modules() if isinstance(m, FrameConv | nn.Linear | nn.Conv2d))
            work["convolutions"] += pixels * 2 * kernels
    return work


def _weight_count(module: nn.Module) -> int:
    """Parameters without the biases."""
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("net", "train"):
        add_arguments(commands.add_parser(name))
    benchmark_data.add_arguments(commands.add_parser("data"))
    for sub in commands.choices.values():
        sub.add_argument("--json", type=Path, help="write the numbers to this new file")
    args = parser.parse_args(argv)
    assert not (args.json and args.json.exists()), f"{args.json} exists already"
    numbers = benchmark_data.run(args) if args.command == "data" else run(args)
    if args.json:
        args.json.write_text(json.dumps({"command": " ".join(argv), **environment(), **numbers}, indent=2) + "\n")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", default="006", help=f"{', '.join(NAMED)}, or an option file, whose checkpointing holds")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--dtype", choices=DTYPES, default="float32", help="of autocast; float32: no autocast")
    add("--frames", type=int, default=6)
    add("--crop", type=int, nargs="+", default=[64], help="side, or height and width")
    add("--batch", type=int, default=1)
    add("--repeats", type=int, default=3)
    add("--warmup", type=int, default=1)
    add("--threads", type=int, help="CPU threads (default: all)")
    add("--kernels", help="netG.kernels")
    add("--compile", action="store_true", help="torch.compile the network")
    add("--checkpoint", action="store_true", help="activation checkpointing of every block")
    add("--against", choices=["naive"], help="also run the unoptimised tests/naive_vrt.py")
    add("--profile", type=int, default=0, metavar="N", help="also the N costliest operations of one run")
    add("--quick", action="store_true", help="the small network on 2 x 32 x 32, once")


def net_options(config: str) -> dict[str, Any]:
    """The options of netG without net_type, with spike_channels."""
    if config in NAMED:
        return dict(NAMED[config])
    from main_train_vrt import read_options  # takes a second

    opt = read_options(["--opt", config])
    if opt.netG.net_type != "vrt":
        sys.exit(f"{config}: netG.net_type is {opt.netG.net_type}, and only vrt is measured")
    options = {key: value for key, value in opt.netG.plain().items() if key != "net_type"}
    return {**options, "spike_channels": opt.spike_channels}


class Clip:
    """A random clip, and the runs of a network on it."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any], size: tuple[int, int, int]) -> None:
        """size: frames, height, width."""
        generator = torch.Generator().manual_seed(0)
        self.size = batch, frames, height, width = (args.batch, *size)
        channels = 3 if options.get("fusion", "none") != "none" else options.get("in_chans") or 3
        counts = (channels + int(options.get("nonblind_denoising", False)), options.get("spike_channels", 0))
        self.device, self.amp = torch.device(args.device), DTYPES[args.dtype]
        self.inputs = [
            torch.rand(batch, frames, count, height, width, generator=generator).to(self.device)
            for count in counts if count
        ]  # fmt: skip

    def __call__(self, net: nn.Module) -> Tensor:
        with torch.autocast(self.device.type, self.amp, enabled=self.amp is not torch.float32):
            return net(*self.inputs)

    def restore(self, net: nn.Module) -> Tensor:
        with torch.no_grad():
            return self(net)

    def train_step(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        (self(net).float() - 0.5).square().add(1e-9).sqrt().mean().backward()
        optimizer.step()


def networks(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, nn.Module]:
    """The network ("ours") and, with --against naive, the naive VRT with the same weights."""
    # On a CPU stochastic depth skips branches, and all of them are to be measured.
    changes = {"drop_path_rate": 0.0, **(CHECKPOINTED if args.checkpoint else {})}
    changes |= {"kernels": args.kernels} if args.kernels else {}
    torch.manual_seed(0)
    net = VRT(**{**options, **changes})
    nn.init.normal_(net.conv_last.weight, std=0.01)  # zero weights would hide every difference
    found: dict[str, nn.Module] = {"ours": net}
    if args.against:
        found["naive"] = NaiveVRT(**options)
        weights = {k: v for k, v in net.state_dict().items() if not k.startswith("fusion.")}
        found["naive"].load_state_dict(weights)
    if args.compile:
        net.compile()
    return {name: each.to(args.device) for name, each in found.items()}


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.quick:
        args.config, args.frames, args.crop, args.repeats, args.warmup = "small", 2, [32], 1, 0
    if args.threads:
        torch.set_num_threads(args.threads)
    is_training = args.command == "train"
    options = net_options(args.config)
    nets = {name: net.train(is_training) for name, net in networks(args, options).items()}
    optimizers = {
        name: torch.optim.Adam(net.parameters(), lr=1e-4, fused=args.device.startswith("cuda"))
        for name, net in nets.items() if is_training
    }  # fmt: skip
    clip = Clip(args, options, (args.frames, args.crop[0], args.crop[-1]))
    found = measure(args, clip, nets, optimizers)
    print(f"{args.config}, {'training step' if is_training else 'inference'}, batch {args.batch}, {args.dtype}")
    print(runs_table(found))
    return {"config": args.config, "dtype": args.dtype, "training": is_training, **found}


def measure(
    args: argparse.Namespace, clip: Clip, nets: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer]
) -> dict[str, Any]:
    """Figures of one clip size: times, memory and FLOP/s of each network, and how far they differ."""
    jobs: dict[str, Callable[[], Any]] = {
        name: functools.partial(clip.train_step, net, optimizers[name])
        if optimizers
        else functools.partial(clip.restore, net)
        for name, net in nets.items()
    }
    result: dict[str, Any] = {"size": clip.size}
    if len(nets) == 2:
        a, b = (clip.restore(net).double() for net in nets.values())
        result["largest_difference"] = float((a - b).abs().max() / b.abs().max())
    result["runs"] = compared(jobs, clip.device, args.repeats, args.warmup)
    # A backward pass takes two more products for each.
    total = (3 if optimizers else 1) * sum(flops(nets["ours"], clip.size).values())
    result |= {"model_flops": total, "matmul_flops_per_s": matmul_rate(clip.device, clip.amp)}
    for figures in result["runs"].values():
        figures["flops_per_s"] = total / figures["median_s"]
        figures["share_of_matmul_rate"] = figures["flops_per_s"] / result["matmul_flops_per_s"]
    if len(nets) == 2:
        keys = ("median_s", "min_s", "median_cpu_s", "process_mb")
        result["ratio"] = {key: result["runs"]["ours"][key] / result["runs"]["naive"][key] for key in keys}
    if args.profile:
        print(costliest(jobs["ours"], clip.device, args.profile))
    return result


def costliest(job: Callable[[], Any], device: torch.device, count: int) -> str:
    """The table of torch's profiler of one run, by the time of each operation itself."""
    is_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_gpu) as profiled:
        job()
    key = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    return profiled.key_averages().table(sort_by=key, row_limit=count, max_name_column_width=60)


def runs_table(result: dict[str, Any]) -> str:
    keys = ("median_s", "min_s", "median_cpu_s", "median_system_s", "process_mb", "rise_mb")
    rows = [
        [name, *(run[key] for key in keys), run.get("allocated_mb", "-"), run["flops_per_s"] / 1e9,
         f"{run['share_of_matmul_rate']:.0%}"]
        for name, run in result["runs"].items()
    ]  # fmt: skip
    header = ["", "median s", "min s", "cpu s", "system s", "process MB", "rise MB", "allocated MB", "GFLOP/s"]
    text = f"batch x frames x height x width = {result['size']}\n" + table(rows, [*header, "of matmul rate"])
    if ratio := result.get("ratio"):
        text += (
            f"\nours / naive: time {ratio['median_s']:.3f} (median), {ratio['min_s']:.3f} (min), "
            f"{ratio['median_cpu_s']:.3f} (CPU time), process peak {ratio['process_mb']:.3f}; "
            f"largest difference {result['largest_difference']:.1e}"
        )
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

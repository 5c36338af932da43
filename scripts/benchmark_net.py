"""benchmark.py net (one restored clip) and train (one training step): time, memory, shares, and against the oracle."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.network_vrt import VRT
from models.vrt.cost import flops
from scripts.benchmark_tools import compared, matmul_rate, table

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The deblurring network of the GoPro recipe, the same with half its blocks (the oracle's training step takes 16 GB at
# 6x64x64, this one half of it), and one like that of the sample run.
NAMED: dict[str, dict[str, Any]] = {
    "006": {
        "upscale": 1, "img_size": [6, 192, 192], "window_size": [6, 8, 8], "depths": [8] * 7 + [4] * 4,
        "indep_reconsts": [9, 10], "embed_dims": [96] * 7 + [120] * 4, "num_heads": [6] * 11, "pa_frames": 2,
        "deformable_groups": 16,
    },
    "small": {
        "upscale": 1, "img_size": [6, 32, 32], "window_size": [6, 4, 4], "depths": [2] * 7 + [1, 1],
        "indep_reconsts": [8], "embed_dims": [32] * 9, "num_heads": [4] * 9, "pa_frames": 2, "deformable_groups": 4,
    },
}  # fmt: skip
NAMED["006-half"] = {**NAMED["006"], "depths": [4] * 7 + [2] * 4}
# Profiler events that stand for a part of the network, most specific first; a backward event belongs to its forward.
PARTS = {
    "attention": ("AttentionBranch", "scaled_dot_product", "WindowAttention"),
    "MLP": ("FeedBranch", "PlainMlp"),
    "alignment": ("CheckpointFunction", "deform_conv", "grid_sampler", "GridSampler"),
    "convolutions": ("aten::conv2d", "aten::conv3d", "ConvolutionBackward"),
    "linears": ("aten::linear", "AddmmBackward", "MmBackward", "aten::layer_norm", "NativeLayerNormBackward"),
    "optimiser": ("Optimizer.step",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default="006", help=f"{', '.join(NAMED)}, or an option file (default 006)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of autocast; float32: none")
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--crop", type=int, nargs="+", default=[64], help="side, or height and width")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--against", choices=["naive"], help="also run the plain transcription in tests/naive_vrt.py")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    parser.add_argument("--checkpoint", action="store_true", help="activation checkpointing of every block")
    parser.add_argument("--no-shares", action="store_true", help="skip the profile of one run")


def net_options(config: str) -> dict[str, Any]:
    """netG's options without net_type; spike_channels is among them."""
    if config in NAMED:
        return dict(NAMED[config])
    from main_train_vrt import read_options  # needs the data side, which named configs do not

    opt = read_options(["--opt", config])
    section = opt["datasets"].get("train") or opt["datasets"]["test"]
    return {**{k: v for k, v in opt["netG"].items() if k != "net_type"}, "spike_channels": section["spike_channels"]}


class Clip:
    """A random clip and what a network does with it."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any]) -> None:
        height, width = (args.crop * 2)[:2]
        generator = torch.Generator().manual_seed(0)
        shape = (args.batch, args.frames)
        self.device = torch.device(args.device)
        channels = 3 if options.get("fusion", "none") != "none" else options.get("in_chans", 3)
        channels += int(options.get("nonblind_denoising", False))
        self.lq = torch.rand(*shape, channels, height, width, generator=generator).to(self.device)
        spikes = options.get("spike_channels", 0)
        self.spike = torch.rand(*shape, spikes, height, width, generator=generator).to(self.device) if spikes else None
        self.size = (*shape, height, width)
        self.amp = DTYPES[args.dtype]

    def autocast(self) -> contextlib.AbstractContextManager:
        return torch.autocast(self.device.type, self.amp, enabled=self.amp is not torch.float32)

    def restore(self, net: nn.Module) -> Tensor:
        with torch.no_grad(), self.autocast():
            return self._call(net)

    def train_step(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            y = self._call(net)
        (y.float() - 0.5).square().add(1e-9).sqrt().mean().backward()
        optimizer.step()

    def _call(self, net: nn.Module) -> Tensor:
        return net(self.lq) if self.spike is None else net(self.lq, self.spike)


def networks(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, nn.Module]:
    """The network, and beside it the oracle with the same weights, if asked for."""
    device = torch.device(args.device)
    saving = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True} if args.checkpoint else {}
    torch.manual_seed(0)
    # Stochastic depth would skip work; all of it is to be measured.
    net = VRT(**{**options, **saving, "drop_path_rate": 0.0}).to(device)
    nn.init.normal_(net.conv_last.weight, std=0.01)  # zero would hide every difference
    result = {"ours": torch.compile(net) if args.compile else net}
    if args.against == "naive":
        from tests.naive_vrt import NaiveVRT

        naive = NaiveVRT(**options)
        naive.load_state_dict({k: v for k, v in net.state_dict().items() if not k.startswith("fusion.")})
        result["naive"] = naive.to(device)
    return result


def run(args: argparse.Namespace, training: bool) -> dict[str, Any]:
    if args.threads:
        torch.set_num_threads(args.threads)
    options = net_options(args.config)
    clip, nets = Clip(args, options), networks(args, options)
    jobs: dict[str, Callable[[], Any]] = {}
    for name, net in nets.items():
        net.train(training)
        if training:
            fused = {"fused": True} if clip.device.type == "cuda" else {}
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, **fused)
            jobs[name] = lambda net=net, optimizer=optimizer: clip.train_step(net, optimizer)
        else:
            jobs[name] = lambda net=net: clip.restore(net)

    result: dict[str, Any] = {"config": args.config, "dtype": args.dtype, "size": clip.size, "training": training}
    if len(nets) == 2:
        a, b = (clip.restore(net).double() for net in nets.values())
        result["largest_difference"] = float((a - b).abs().max() / b.abs().max())
    result["runs"] = compared(jobs, clip.device, args.repeats, args.warmup)
    rate = matmul_rate(clip.device, clip.amp)
    work = flops(nets["ours"]._orig_mod if args.compile else nets["ours"], clip.size)
    total = sum(work.values()) * (3 if training else 1)
    result["model_flops"], result["matmul_flops_per_s"] = total, rate
    for figures in result["runs"].values():
        figures["s_per_frame"] = figures["median_s"] / (clip.size[0] * clip.size[1])
        figures["share_of_matmul_rate"] = total / figures["median_s"] / rate
    if len(nets) == 2:
        result["ratio"] = {
            key: result["runs"]["ours"][key] / result["runs"]["naive"][key]
            for key in ("median_s", "min_s", "median_cpu_s", "process_mb")
        }
    if not args.no_shares:
        result["shares"] = shares(jobs["ours"], clip.device)
    report(result)
    return result


def shares(job: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Share of one run's time per part, forward and backward together."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=kinds) as profile:
        job()
    on_gpu = device.type == "cuda"
    found, covered = dict.fromkeys(PARTS, 0.0), 0.0
    roots = [e for e in profile.events() if e.cpu_parent is None]
    whole = sum(e.device_time_total if on_gpu else e.cpu_time_total for e in roots)
    stack = list(roots)
    while stack:
        event = stack.pop()
        part = next((p for p, names in PARTS.items() if any(n in event.name for n in names)), None)
        if part is None:
            stack.extend(event.cpu_children)
            continue
        spent = event.device_time_total if on_gpu else event.cpu_time_total
        found[part] += spent
        covered += spent
    return {**{p: t / whole for p, t in found.items()}, "other": 1 - covered / whole}


def report(result: dict[str, Any]) -> None:
    kind = "training step" if result["training"] else "inference"
    print(f"{result['config']}, {kind}, batch x frames x height x width = {result['size']}, {result['dtype']}")
    keys = ("median_s", "min_s", "median_cpu_s", "s_per_frame", "process_mb", "rise_mb")
    rows = [
        [name, *(run[key] for key in keys), run.get("allocated_mb", "-"), f"{run['share_of_matmul_rate']:.0%}"]
        for name, run in result["runs"].items()
    ]
    header = ["", "median s", "min s", "cpu s", "s/frame", "process MB", "rise MB", "allocated MB", "of matmul rate"]
    print(table(rows, header))
    if "ratio" in result:
        ratio = result["ratio"]
        print(
            f"ours / naive: time {ratio['median_s']:.3f} (median), {ratio['min_s']:.3f} (min), "
            f"{ratio['median_cpu_s']:.3f} (processor time), process peak {ratio['process_mb']:.3f}; "
            f"largest difference {result['largest_difference']:.1e}"
        )
    if "shares" in result:
        print("shares: " + ", ".join(f"{part} {share:.0%}" for part, share in result["shares"].items()))


SUBCOMMANDS = {
    "net": ("time and memory of restoring one clip", add_arguments, lambda args: run(args, training=False)),
    "train": ("time and memory of one training step", add_arguments, lambda args: run(args, training=True)),
}

"""benchmark.py net (restoring one clip) and train (one training step): time, memory, parts, comparison with naive."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor, nn

from models.network_vrt import VRT
from models.vrt.cost import flops
from models.vrt.kernels import Kernels
from scripts.benchmark_parts import Profile
from scripts.benchmark_tools import compared, matmul_rate, table
from utils.errors import OptionError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# 006: the deblurring network of the GoPro options; 006-half: with half the blocks, as a training step of the naive VRT
# takes 16 GB at 6x64x64; small: similar to the sample run.
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
# What else the option files of these networks set for training.
RECIPES: dict[str, dict[str, Any]] = {
    "006": {
        "use_checkpoint_attn": True, "use_checkpoint_ffn": True, "no_checkpoint_attn_blocks": [2, 3, 4],
        "no_checkpoint_ffn_blocks": [1, 2, 3, 4, 5, 9], "drop_path_rate": 0.2,
    },
    "small": {"drop_path_rate": 0.0},
}  # fmt: skip
RECIPES["006-half"] = RECIPES["006"]


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """Network, device, clip and repeats, for every benchmark that runs a network."""
    parser.add_argument("--config", default="006", help=f"{', '.join(NAMED)}, or an option file (default 006)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of autocast; float32: no autocast")
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--crop", type=int, nargs="+", default=[64], help="side, or height and width")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    parser.add_argument("--kernels", choices=get_args(Kernels), help="netG.kernels")
    flags = parser.add_mutually_exclusive_group()
    flags.add_argument("--checkpoint", action="store_true", help="activation checkpointing of every block")
    flags.add_argument(
        "--recipe-flags",
        action="store_true",
        help="stochastic depth and, for a named network, checkpointing as in its option file; without this flag no "
        "branch is dropped",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape_arguments(parser)
    parser.add_argument("--sizes", type=sizes, help="several sizes: FRAMESxSIDE,.. or FRAMESxHEIGHTxWIDTH,..")
    parser.add_argument("--against", choices=["naive"], help="also run the unoptimised tests/naive_vrt.py")
    parser.add_argument(
        "--warm",
        action="store_true",
        help="keep freed memory between runs, as training does; memory peaks then have no meaning",
    )
    parser.add_argument("--no-shares", action="store_true", help="skip the profile of one run")


def sizes(text: str) -> list[tuple[int, int, int]]:
    """ "6x64,6x720x1280" -> [(6, 64, 64), (6, 720, 1280)]: frames, height, width."""
    numbers = [[int(n) for n in size.split("x")] for size in text.split(",")]
    if any(len(n) not in (2, 3) for n in numbers):
        raise ValueError(text)
    return [(n[0], n[1], n[-1]) for n in numbers]


def net_options(config: str) -> dict[str, Any]:
    """The options of netG without net_type, with spike_channels."""
    if config in NAMED:
        return dict(NAMED[config])
    from main_train_vrt import read_options  # imports the datasets, which named configs do not need

    opt = read_options(["--opt", config])
    if opt.netG.net_type != "vrt":
        raise OptionError(
            f"netG.net_type is {opt.netG.net_type}", f"{config}, netG.net_type", "vrt, the network that is measured",
            "choose another option file",
        )  # fmt: skip
    netG = {key: value for key, value in opt.netG.plain().items() if key != "net_type"}
    return {**netG, "spike_channels": opt.spike_channels}


class Clip:
    """A random clip, and the runs of a network on it."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any], size: tuple[int, int, int]) -> None:
        """size: frames, height, width."""
        height, width = size[1:]
        generator = torch.Generator().manual_seed(0)
        shape = (args.batch, size[0])
        self.device = torch.device(args.device)
        channels = 3 if options.get("fusion", "none") != "none" else options.get("in_chans") or 3
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


def networks(args: argparse.Namespace, options: dict[str, Any], against: str | None = None) -> dict[str, nn.Module]:
    """The network ("ours") and, if against is "naive", the naive VRT with the same weights."""
    device = torch.device(args.device)
    saving = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True} if args.checkpoint else {}
    # On a CPU stochastic depth skips branches, and all of them are to be measured.
    training = RECIPES.get(args.config, {}) if args.recipe_flags else {"drop_path_rate": 0.0}
    kernels = {"kernels": args.kernels} if args.kernels else {}
    torch.manual_seed(0)
    net = VRT(**{**options, **saving, **training, **kernels}).to(device)
    nn.init.normal_(net.conv_last.weight, std=0.01)  # zero weights would hide every difference
    if args.compile:
        net.compile()
    result = {"ours": net}
    if against == "naive":
        from tests.naive_vrt import NaiveVRT

        naive = NaiveVRT(**options)
        naive.load_state_dict({k: v for k, v in net.state_dict().items() if not k.startswith("fusion.")})
        result["naive"] = naive.to(device)
    return result


def run(args: argparse.Namespace, training: bool) -> dict[str, Any]:
    if args.threads:
        torch.set_num_threads(args.threads)
    options = net_options(args.config)
    nets, optimizers = networks(args, options, args.against), {}
    for name, net in nets.items():
        net.train(training)
        if training:
            fused = {"fused": True} if args.device.startswith("cuda") else {}
            optimizers[name] = torch.optim.Adam(net.parameters(), lr=1e-4, **fused)
    shape = {
        "config": args.config, "dtype": args.dtype, "training": training, "kernels": nets["ours"].stage1.kernels,
        "recipe_flags": args.recipe_flags,
    }  # fmt: skip
    if not args.sizes:
        clip = Clip(args, options, (args.frames, *(args.crop * 2)[:2]))
        result = {**shape, **measure(args, clip, nets, optimizers)}
        report(result)
        return result
    args.no_shares = True
    found = [measure(args, Clip(args, options, size), nets, optimizers) for size in args.sizes]
    print(f"{args.config}, {'training step' if training else 'inference'}, batch {args.batch}, {args.dtype}")
    print(growth_table(found))
    return {**shape, "sizes": found}


def measure(
    args: argparse.Namespace, clip: Clip, nets: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer]
) -> dict[str, Any]:
    """Figures of one clip size: times and memory of each network, its FLOP, and the parts of ours."""
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
    result["runs"] = compared(jobs, clip.device, args.repeats, args.warmup, args.warm)
    rate = matmul_rate(clip.device, clip.amp)
    passes = 3 if optimizers else 1  # a backward pass takes two more products for each
    work = {part: passes * count for part, count in flops(nets["ours"], clip.size).items()}
    total = sum(work.values())
    result["model_flops"], result["matmul_flops_per_s"] = total, rate
    for figures in result["runs"].values():
        figures["s_per_frame"] = figures["median_s"] / (clip.size[0] * clip.size[1])
        figures["flops_per_s"] = total / figures["median_s"]
        figures["share_of_matmul_rate"] = total / figures["median_s"] / rate
    if len(nets) == 2:
        result["ratio"] = {
            key: result["runs"]["ours"][key] / result["runs"]["naive"][key]
            for key in ("median_s", "min_s", "median_cpu_s", "process_mb")
        }
    # The graphs of torch.compile have no parts.
    if not args.no_shares and not args.compile:
        seconds = Profile(nets["ours"], jobs["ours"], clip.device).seconds()
        result["shares"] = {part: s / sum(seconds.values()) for part, s in seconds.items()}
        result["parts"] = parts(result, work, seconds, clip.device)
    return result


def parts(
    result: dict[str, Any], work: dict[str, float], seconds: dict[str, float], device: torch.device
) -> dict[str, dict[str, float]]:
    """For each part whose FLOP are known: FLOP, FLOP/s, and FLOP/s over the matmul rate.

    On a CPU the seconds of a part are its share of the median run, as profiling slows down small operations; on a GPU
    they are those of its kernels.
    """
    found = {}
    for part, count in work.items():
        own = seconds[part] if device.type == "cuda" else result["shares"][part] * result["runs"]["ours"]["median_s"]
        if own > 0:
            speed = count / own
            found[part] = {
                "flops": count, "flops_per_s": speed, "share_of_matmul_rate": speed / result["matmul_flops_per_s"],
            }  # fmt: skip
    return found


def report(result: dict[str, Any]) -> None:
    kind = "training step" if result["training"] else "inference"
    print(f"{result['config']}, {kind}, batch x frames x height x width = {result['size']}, {result['dtype']}")
    keys = ("median_s", "min_s", "median_cpu_s", "median_system_s", "s_per_frame", "process_mb", "rise_mb")
    rows = [
        [
            name, *(run[key] for key in keys), run.get("allocated_mb", "-"), run["flops_per_s"] / 1e9,
            f"{run['share_of_matmul_rate']:.0%}",
        ]
        for name, run in result["runs"].items()
    ]  # fmt: skip
    header = ["", "median s", "min s", "cpu s", "system s", "s/frame", "process MB", "rise MB", "allocated MB"]
    print(table(rows, [*header, "GFLOP/s", "of matmul rate"]))
    if "ratio" in result:
        ratio = result["ratio"]
        print(
            f"ours / naive: time {ratio['median_s']:.3f} (median), {ratio['min_s']:.3f} (min), "
            f"{ratio['median_cpu_s']:.3f} (CPU time), process peak {ratio['process_mb']:.3f}; "
            f"largest difference {result['largest_difference']:.1e}"
        )
    if "shares" in result:
        print(
            "\nParts in one profiled run of ours; the matmul rate is",
            f"{result['matmul_flops_per_s'] / 1e9:.3g} GFLOP/s",
        )
        rows = []
        for part, share in result["shares"].items():
            speeds = ["-"] * 3
            if figures := result["parts"].get(part):
                of_matmul = f"{figures['share_of_matmul_rate']:.0%}"
                speeds = [figures["flops"] / 1e9, figures["flops_per_s"] / 1e9, of_matmul]
            rows.append([part, f"{share:.1%}", *speeds])
        print(table(rows, ["part", "share", "GFLOP", "GFLOP/s", "of matmul rate"]))


def growth_table(found: list[dict[str, Any]]) -> str:
    """Time, memory and FLOP by clip size; ns are of the median run and its CPU time."""
    rows = []
    for result in found:
        batch, frames, height, width = result["size"]
        values, run = batch * frames * height * width, result["runs"]["ours"]
        rows.append(
            [
                f"{frames} x {height} x {width}", run["median_s"], run["median_cpu_s"], run["median_s"] / values * 1e9,
                run["median_cpu_s"] / values * 1e9, run["rise_mb"], run.get("allocated_mb", run["process_mb"]),
                result["model_flops"] / 1e9, run["flops_per_s"] / 1e9,
            ]
        )  # fmt: skip
    per = "per pixel and frame, ns"
    header = ["frames x height x width", "median s", "cpu s", per, f"cpu {per}", "rise MB"]
    return table(rows, [*header, "peak MB", "GFLOP", "GFLOP/s"])


SUBCOMMANDS = {
    "net": (add_arguments, lambda args: run(args, training=False)),
    "train": (add_arguments, lambda args: run(args, training=True)),
}

"""The commands `net` and `train` measure time and memory of a restoration or a training step.

With --against naive, the naive network is measured as well: VRT in its plainest form, without any
optimisation (tests/helpers/naive_vrt.py). Both networks have the same weights and get the same
clip. So their times can be compared, and their outputs differ only by rounding.

What must stay: the keys of the numbers, because the files in docs/benchmarks have them, and
`networks` and `Clip`, which lab/gpu.py uses. test_the_benchmark_compares_with_the_naive_network
runs both commands. Free to change: the form of the table.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lab.tools import CHECKPOINTED, NAMED, matmul_rate, measure_in_turn
from models.network_vrt import VRT
from tests.helpers.naive_vrt import NaiveVRT
from utils.results import markdown_table as table

# Values of --dtype. float32 means no autocast.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run_network(args: argparse.Namespace) -> dict[str, Any]:
    """Measure restorations (command net) or training steps (command train). Prints a table.

    Returns the numbers for --json: the setting, and the figures of each network under the key
    "runs". With --against naive, it also returns the difference and the ratio of the two networks.
    """
    if args.quick:
        _make_quick(args)
    # Number of runs before the timed runs. They fill caches and are not measured.
    warmup = 0 if args.quick else 1
    if args.threads:
        torch.set_num_threads(args.threads)
    is_training = args.command == "train"

    # Make the networks, "ours" and with --against also "naive", and one clip for both networks.
    options = network_options(args.config)
    has_naive = args.against == "naive"  # the only value of --against
    nets = networks(options, args.device, is_checkpointed=args.checkpoint, with_naive=has_naive)
    for net in nets.values():
        net.train(is_training)
    clip = _clip_of(options, args)

    # The keys of the file --json. docs/benchmarks has files with these keys, so the keys must stay.
    numbers: dict[str, Any] = {
        "config": args.config,
        "dtype": args.dtype,
        "training": is_training,
        "size": clip.size,
    }
    if has_naive:
        # Compare the outputs before a training step changes the weights.
        numbers["largest_difference"] = relative_difference(
            clip.restore(nets["ours"]), clip.restore(nets["naive"])
        )
    jobs = {name: _job(net, clip, is_training) for name, net in nets.items()}
    # The networks take turns, so that other programs on the machine slow both networks equally. The
    # result has the figures of each network, e.g. {"ours": {"median_s": 1.2, "min_s": 1.1,
    # "process_mb": 800, ...}, "naive": {...}}.
    numbers["runs"] = measure_in_turn(jobs, clip.device, args.repeats, warmup)

    model_flops = flops(options, clip.size)
    if is_training:
        # For each matrix product of the forward pass, the backward pass has two: one gives the
        # gradient of the input, and one gives the gradient of the weights.
        model_flops *= 3
    _add_share_of_speed(numbers, model_flops, matmul_rate(clip.device, clip.amp))

    _print_network_figures(args, numbers)
    if has_naive:
        ratio = _ratio_to_naive(numbers["runs"])
        numbers["ratio"] = ratio
        print("ours / naive:", ratio, "largest difference", numbers["largest_difference"])
    return numbers


def _make_quick(args: argparse.Namespace) -> None:
    """Set the small network, a small clip and a single run, for --quick. Changes `args`."""
    args.config = "small"
    args.frames = 2
    args.crop = [32]
    args.repeats = 1


def _clip_of(options: dict[str, Any], args: argparse.Namespace) -> "Clip":
    """Return a clip of the size that the command line asks for. options: arguments of VRT."""
    # --crop has one number, for height and width, or two.
    height = args.crop[0]
    width = args.crop[-1]
    size = (args.frames, height, width)
    return Clip(options, size, batch=args.batch, device=args.device, dtype=args.dtype)


def _ratio_to_naive(runs: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return each figure of our network, divided by the same figure of the naive network.

    The figures are the median time, the shortest time and the peak memory.

    runs: "ours" and "naive" -> figures of the network, as `measure_in_turn` returns them.
    """
    ratio = {}
    for key in ("median_s", "min_s", "process_mb"):
        ratio[key] = runs["ours"][key] / runs["naive"][key]
    return ratio


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
    """Add the model FLOPs utilization (MFU) of each network to `numbers`, in place.

    model_flops: floating-point operations of a restoration or a training step. With --checkpoint,
        the backward pass repeats operations of the forward pass. The repetitions do not count.
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
        cells = [figures[key] for key in keys]
        rows.append([name, *cells])
    print(table(rows, ["", *keys]))


def network_options(config: str) -> dict[str, Any]:
    """Return the arguments of VRT. config: a name in lab.tools.NAMED, or an option file."""
    if config in NAMED:
        return dict(NAMED[config])
    from main_train_vrt import read_options  # takes a second

    opt = read_options(["--opt", config])
    section = opt.netG.plain()  # a dict
    assert section["net_type"] == "vrt", "only vrt is measured"
    del section["net_type"]  # VRT has no argument of this name
    return {**section, "spike_channels": opt.spike_channels}


def networks(
    options: dict[str, Any], device: str, *, is_checkpointed: bool, with_naive: bool
) -> dict[str, nn.Module]:
    """Return our network as "ours". With `with_naive`, also return the naive network as "naive".

    Both networks have the same weights.

    options: arguments of VRT.
    device: where the networks are, e.g. "cpu".
    is_checkpointed: whether our network computes the activations of each block again in the
        backward pass, so that they need not be kept in memory (activation checkpointing).
    with_naive: whether the naive network (tests/helpers/naive_vrt.py) is made, too.
    """
    torch.manual_seed(0)
    # In training, stochastic depth drops branches at random. On a CPU a dropped branch is not
    # computed, so the time would depend on chance. With the rate 0 no branch is dropped.
    ours_options: dict[str, Any] = {**options, "drop_path_rate": 0.0}
    if is_checkpointed:
        ours_options |= CHECKPOINTED
    ours = VRT(**ours_options)
    # The last layer begins with zero weights. With zero weights, both networks would return the
    # input frames, and differences in the other layers could not be seen. So give the last layer
    # small random weights. No test notices if this line is missing.
    nn.init.normal_(ours.conv_last.weight, std=0.01)

    nets: dict[str, nn.Module] = {"ours": ours}
    if with_naive:
        # The naive network gets `options` and not `ours_options`, because it has neither stochastic
        # depth nor activation checkpointing. It ignores the arguments for stochastic depth and for
        # checkpointing.
        naive = NaiveVRT(**options)
        naive.load_state_dict(ours.state_dict())
        nets["naive"] = naive
    for net in nets.values():
        net.to(device)
    return nets


class Clip:
    """A random clip. A network can restore this clip, or make a training step with it."""

    def __init__(
        self,
        options: dict[str, Any],
        size: tuple[int, int, int],
        *,
        batch: int,
        device: str,
        dtype: str,
    ) -> None:
        """Draw the clip.

        options: arguments of VRT. The arguments say how many channels the network expects.
        size: frames, height, width.
        batch: number of clips of this size, which are restored together.
        device: where the clip is, e.g. "cpu".
        dtype: a key of DTYPES, the dtype of autocast.
        """
        frames, height, width = size
        self.size = (batch, frames, height, width)
        self.device = torch.device(device)
        self.amp = DTYPES[dtype]  # dtype of autocast

        # A fusion is the first module of a network. It joins frames and spikes. With a fusion the
        # frames are RGB, and `in_chans` is the number of channels after the fusion. Without a
        # fusion, `in_chans` is the number of channels of a frame, and None means 3.
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
                shape = (batch, frames, channels, height, width)
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
        loss = error.square().add(1e-9).sqrt().mean()  # 1e-9 as in models/losses.py
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

    options: arguments of VRT.
    size: batch, frames, height, width.
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

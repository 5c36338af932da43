#!/usr/bin/env python3
"""What could be faster on a GPU, measured before it becomes a part of the program. One minute.

    python lab/gpu_next.py                 on an NVIDIA GPU
    python lab/gpu_next.py --device cpu    tiny sizes, to try the script itself

1. Deformable sampling by `lab/triton_sampling.py` beside torchvision's: time and error of a forward
   and a backward pass, at the sizes of a step of 8 clips. Expected: half the time, and errors like
   those of rounding to 16 bits (4e-3).
2. A training step as a CUDA graph. A first try took 0.28 to 0.35 s in place of 0.67 s, and its loss
   became NaN. Here the graph notes for each module whether its output was finite, so that the first
   module that makes NaN is named; and its losses stand beside the losses of the same steps without
   a graph.

Prints a line of JSON for each measurement. The two measurements have not run on a GPU yet.
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from lab.gpu import prepared
from lab.tools import compared
from models.vrt.deform_align import TAPS
from models.vrt.deform_align import deform_conv as present_form

DEFORM_CONV_INPUTS = ("x", "offset", "mask", "weight", "bias")
# Sizes of network 006 with 8 clips of 6 frames.
PAIRS = 40  # 8 clips with 5 pairs of neighbouring frames each
CHANNELS = 96
GROUPS = 16  # the channels of a group are sampled at the same positions
SIDES = (192, 96, 48)  # height and width of the features at the first three scales
GRAPH_STEPS = 5  # steps whose losses are compared
# Measured calls, and calls before them that compile kernels and fill caches.
REPEATS = 3
WARMUP = 1


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args(argv)
    if args.device == "cuda":
        pairs = PAIRS
        sides = SIDES
    else:  # tiny, only to try the script
        pairs = 1
        sides = (8,)
    for side in sides:
        print(json.dumps({"sampling": sampling(pairs, side, args.device)}), flush=True)
    print(json.dumps({"graph": graph(args.device)}), flush=True)
    return 0


# ---- Deformable sampling ----


def sampling(pairs: int, side: int, device: str) -> dict[str, Any]:
    """Return the seconds of both forms, and the largest error of each result of the Triton form.

    The present form is `models.vrt.deform_align.deform_conv`, which calls torchvision on a GPU. The
    results are the output and the gradients of the five inputs. An error is relative to the largest
    value that the present form gives in float32.

    pairs: number of pairs of frames. side: height and width of the features.
    """
    from lab.triton_sampling import deform_conv  # here: Triton is not installed everywhere

    inputs = _sampling_inputs(pairs, side, device)
    # One pair is enough to measure the errors, and takes little memory. x, offset and mask have an
    # axis of pairs; weight and bias have none.
    x, offset, mask, weight, bias = inputs
    one_pair = [x[:1], offset[:1], mask[:1], weight, bias]
    in_float32 = _forward_and_backward(present_form, [tensor.float() for tensor in one_pair])
    by_triton = _forward_and_backward(deform_conv, one_pair)
    errors = {}
    names = ("out", *DEFORM_CONV_INPUTS)
    for name, result, expected in zip(names, by_triton, in_float32, strict=True):
        largest_error = (result.float() - expected).abs().max()
        errors[name] = float(largest_error / expected.abs().max())
    forms: dict[str, Callable[[], Any]] = {
        "present": lambda: _forward_and_backward(present_form, inputs),
        "triton": lambda: _forward_and_backward(deform_conv, inputs),
    }
    figures = compared(forms, torch.device(device), repeats=REPEATS, warmup=WARMUP)
    return {"side": side, "errors": errors, **figures}


def _sampling_inputs(pairs: int, side: int, device: str) -> list[Tensor]:
    """Return x, offset, mask, weight and bias, as a layer gets them in a step in bfloat16.

    On a GPU x is bfloat16. The offsets are float32 as in the network, because rounding them to 16
    bits would move the samples. Mask, weight and bias are float32.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (pairs, CHANNELS, side, side),
        (pairs, 2 * TAPS * GROUPS, side, side),
        (pairs, TAPS * GROUPS, side, side),
        (CHANNELS, CHANNELS, 3, 3),
        (CHANNELS,),
    ]
    x, offset, mask, weight, bias = (torch.rand(shape, generator=generator) for shape in shapes)
    # The random numbers lie in 0 ... 1. x becomes -0.5 ... 0.5, and offsets become -4 ... 4 pixels.
    # Weights become -1/16 ... 1/16, so that an output, a sum of 864 products, is about as large as
    # x.
    x = (x - 0.5).to(device)
    if device == "cuda":
        x = x.to(torch.bfloat16)
    offset = (8 * (offset - 0.5)).to(device)
    weight = ((weight - 0.5) / 8).to(device)
    return [x, offset, mask.to(device), weight, bias.to(device)]


def _forward_and_backward(form: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the output, then the gradient of a loss with respect to each input.

    The loss is the sum of squares of the output.
    """
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = form(*leaves)
    loss = out.float().square().sum()
    gradients = torch.autograd.grad(loss, leaves)
    return [out.detach(), *gradients]


# ---- A step as a CUDA graph ----


@dataclass
class FiniteOutputs:
    """Whether the output of each module was finite, noted on the device while a step runs."""

    names: list[str] = field(default_factory=list)
    flags: list[Tensor] = field(default_factory=list)

    def watch(self, net: nn.Module) -> None:
        for name, module in net.named_modules():
            if not list(module.children()):
                module.register_forward_hook(self._hook(name))

    def clear(self) -> None:
        self.names.clear()
        self.flags.clear()

    def first_bad(self, limit: int = 5) -> list[str]:
        """Return the names of the first modules, in the order of the step, that gave NaN or Inf."""
        bad = [name for name, flag in zip(self.names, self.flags, strict=True) if not flag]
        return bad[:limit]

    def _hook(self, name: str) -> Callable[..., None]:
        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.names.append(name)
                self.flags.append(torch.isfinite(output.detach()).all())

        return note


def graph(device: str) -> dict[str, Any]:
    """Return the losses of some steps with and without a graph, the seconds of a step, and the
    modules whose output was not finite within the graph. On a CPU there are no graphs: the steps
    run one by one.
    """
    # `clip` is a function: clip(net) is the output of the network for a made clip. The optimizer of
    # `prepared` is not used, because a graph needs another form of Adam (see `_adam`).
    setup = prepared(device)
    net = setup.net
    clip = setup.clip
    start = copy.deepcopy(net.state_dict())
    without = _losses(_plain_step(net, clip, _adam(net)))

    net.load_state_dict(start)
    outputs = FiniteOutputs()
    outputs.watch(net)
    optimizer = _adam(net)
    step = _plain_step(net, clip, optimizer)
    if device == "cuda":
        step = _captured(net, step, outputs)
        # The steps of the warm-up have changed the weights and the moments. The graph holds their
        # addresses, so both are set back in place.
        net.load_state_dict(start)
        for moments in optimizer.state.values():
            for tensor in moments.values():
                tensor.zero_()
    losses = _losses(step)
    figures = compared({"step": step}, torch.device(device), repeats=REPEATS, warmup=WARMUP)
    return {
        "losses without": without,
        "losses": losses,
        "s": figures["step"]["median_s"],
        "first bad": outputs.first_bad(),
    }


def _adam(net: nn.Module) -> torch.optim.Adam:
    """Return an optimizer that keeps the number of its step on the device, as a graph needs."""
    on_gpu = next(net.parameters()).is_cuda
    return torch.optim.Adam(net.parameters(), lr=1e-4, capturable=on_gpu)


def _plain_step(
    net: nn.Module, clip: Callable[[nn.Module], Tensor], optimizer: torch.optim.Optimizer
) -> Callable[[], Tensor]:
    """Return a training step that returns its loss as a tensor."""

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = (clip(net).float() - 0.5).square().add(1e-9).sqrt().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(
    net: nn.Module, step: Callable[[], Tensor], outputs: FiniteOutputs
) -> Callable[[], Tensor]:
    """Return the step as a CUDA graph. Its loss is one tensor, which each replay fills anew."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # makes constant tensors, compiles kernels, fills the optimizer's state
            step()
    torch.cuda.current_stream().wait_stream(stream)
    outputs.clear()
    for parameter in net.parameters():
        parameter.grad = None  # so that gradients are allocated within the graph
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()

    def replay() -> Tensor:
        captured.replay()
        return loss

    return replay


def _losses(step: Callable[[], Tensor]) -> list[float]:
    return [float(step()) for _ in range(GRAPH_STEPS)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

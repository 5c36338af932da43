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

Prints lines of JSON. Neither has run on a GPU yet.
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
# Of network 006 with 8 clips of 6 frames: pairs of neighbouring frames, channels, groups.
PAIRS, CHANNELS, GROUPS = 40, 96, 16
SIDES = (192, 96, 48)  # pixels, of the first three scales
GRAPH_STEPS = 5


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args(argv)
    if args.device == "cuda":
        for side in SIDES:
            print(json.dumps({"sampling": sampling(PAIRS, side, args.device)}), flush=True)
        print(json.dumps({"graph": graph(args.device)}), flush=True)
    else:
        print(json.dumps({"sampling": sampling(1, 8, args.device)}), flush=True)
        print(json.dumps({"graph": graph(args.device)}), flush=True)
    return 0


# ---- Deformable sampling ----


def sampling(pairs: int, side: int, device: str) -> dict[str, Any]:
    """Return seconds of both forms, and the largest error of each result of ours.

    An error is relative to the largest value of the present form in float32.
    """
    from lab.triton_sampling import deform_conv  # here: Triton is not installed everywhere

    inputs = _sampling_inputs(pairs, side, device)
    small = [tensor[:1] if number < 3 else tensor for number, tensor in enumerate(inputs)]
    exact = _forward_and_backward(present_form, [tensor.float() for tensor in small])
    ours = _forward_and_backward(deform_conv, small)
    errors = {}
    for name, a, b in zip(("out", *DEFORM_CONV_INPUTS), ours, exact, strict=True):
        errors[name] = float((a.float() - b).abs().max() / b.abs().max())
    forms: dict[str, Callable[[], Any]] = {
        "present": lambda: _forward_and_backward(present_form, inputs),
        "triton": lambda: _forward_and_backward(deform_conv, inputs),
    }
    return {"side": side, "errors": errors, **compared(forms, torch.device(device), 3, 1)}


def _sampling_inputs(pairs: int, side: int, device: str) -> list[Tensor]:
    """Return what a layer gets in bfloat16: offsets of some pixels in float32."""
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (pairs, CHANNELS, side, side),
        (pairs, 2 * TAPS * GROUPS, side, side),
        (pairs, TAPS * GROUPS, side, side),
        (CHANNELS, CHANNELS, 3, 3),
        (CHANNELS,),
    ]
    x, offset, mask, weight, bias = (torch.rand(shape, generator=generator) for shape in shapes)
    x = (x - 0.5).to(device)
    if device == "cuda":
        x = x.to(torch.bfloat16)
    offset = (8 * (offset - 0.5)).to(device)
    weight = ((weight - 0.5) / 8).to(device)
    return [x, offset, mask.to(device), weight, bias.to(device)]


def _forward_and_backward(form: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the output, and the gradient of each input, of the sum of squares."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = form(*leaves)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]


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
    net, clip, _ = prepared(device)
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
    seconds = compared({"": step}, torch.device(device), 3, 1)[""]["median_s"]
    return {
        "losses without": without,
        "losses": losses,
        "s": seconds,
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

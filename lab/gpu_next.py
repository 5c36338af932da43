#!/usr/bin/env python3
"""Measure two ideas that may make training on a GPU faster. No training uses them yet.

    python lab/gpu_next.py        on an NVIDIA GPU
    TRITON_INTERPRET=1 python lab/gpu_next.py --device cpu
                                  tiny sizes, to try the script itself: Triton needs the variable to
                                  run without a GPU

1. Deformable sampling by lab/triton_sampling.py in place of torchvision's. The program measures the
   time and the error of a forward and a backward pass, at the sizes of a step of 8 clips. Triton
   should take half of the time. Errors of at most 4e-3 are expected, from rounding to 16 bits.
2. A training step as a CUDA graph: the GPU repeats a recorded step, and Python starts no kernels.
   In an earlier try, a step took 0.28 to 0.35 s in place of 0.67 s, but the loss became NaN
   (docs/gpu.md). So the graph records for each module whether its output was finite, and the
   program names the modules that first gave NaN. It prints the losses of the graph beside the
   losses of the same steps without a graph.

The program prints a line of JSON for each measurement:

    {"sampling": {"side": 192, "errors": {"out": 0.003, ...}, "present": {"median_s": 0.1, ...},
                  "triton": {...}}}
    {"graph": {"losses without": [...], "losses": [...], "s": 0.3, "first bad": []}}

"first bad" names the first modules whose output was NaN or Inf. If it begins with the first module
of the network, the weights were NaN before the step. Then the cause is in the backward pass or in
the optimizer of an earlier step.

No GPU has run this program yet. It should take about a minute. No other program uses this file, so
change it freely. tests/parts/house/test_lab.py tests `FiniteOutputs` and `watched_losses`. The rest
has no test.
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from lab.gpu import prepare
from lab.tools import measure_in_turn
from models.vrt.deform_conv import TAPS
from models.vrt.deform_conv import deform_conv as by_torchvision

# Sizes of network 006 (lab/tools.py has its options) with 8 clips of 6 frames.
PAIRS = 40  # 8 clips with 5 pairs of neighbouring frames each
CHANNELS = 96
GROUPS = 16  # the channels of a group are sampled at the same positions
SIDES = (192, 96, 48)  # height and width of the features at the first three scales
# The next three numbers are chosen by hand.
GRAPH_STEPS = 5  # number of steps whose losses are compared
REPEATS = 3  # number of measured calls of a function
WARMUP = 1  # number of calls before the measured calls, which compile kernels and fill caches


def main(argv: list[str]) -> int:
    """Make both measurements and print their figures. Returns the exit code 0."""
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
        figures = sampling(pairs, side, args.device)
        print(json.dumps({"sampling": figures}), flush=True)
    print(json.dumps({"graph": graph(args.device)}), flush=True)
    return 0


# ---- Deformable sampling ----


def sampling(pairs: int, side: int, device: str) -> dict[str, Any]:
    """Compare the present form of deformable sampling, by torchvision, with the form in Triton.

    Returns a dict. "present" and "triton" have the times of the two forms, as
    `lab.tools.measure_in_turn` gives them. "errors" has the errors of the results of the Triton
    form. The results are the output ("out"), and a gradient for each of the five inputs.

        error = largest difference from torchvision in float32 / largest value by torchvision

    pairs: number of pairs of frames. side: height and width of the features.
    """
    # Imported here, because Triton is not installed everywhere.
    from lab.triton_sampling import deform_conv as by_triton

    inputs = _sampling_inputs(pairs, side, device)

    # Measure the errors on the first pair only. One pair shows them as well as 40 pairs, and needs
    # a fortieth of the memory in float32.
    x, offset, mask, weight, bias = inputs
    first_pair = [x[:1], offset[:1], mask[:1], weight, bias]
    first_pair_in_float32 = [tensor.float() for tensor in first_pair]
    expected_results = _forward_and_backward(by_torchvision, first_pair_in_float32)
    triton_results = _forward_and_backward(by_triton, first_pair)
    errors = {}
    for name, expected in expected_results.items():
        largest_error = (triton_results[name].float() - expected).abs().max()
        errors[name] = float(largest_error / expected.abs().max())

    forms: dict[str, Callable[[], Any]] = {
        "present": partial(_forward_and_backward, by_torchvision, inputs),
        "triton": partial(_forward_and_backward, by_triton, inputs),
    }
    # The two forms take turns (a, b, a, b, ...), so that both have the same load.
    figures = measure_in_turn(forms, torch.device(device), repeats=REPEATS, warmup=WARMUP)
    return {"side": side, "errors": errors, **figures}


def _sampling_inputs(pairs: int, side: int, device: str) -> list[Tensor]:
    """Return random x, offset, mask, weight and bias, with the types that a layer gets.

    The layer is a deformable convolution in a training step under autocast to bfloat16. On a GPU, x
    is bfloat16, and the other four are float32. The offsets stay float32, because rounding them to
    16 bits would move the samples.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        """Return random numbers from 0 to 1."""
        return torch.rand(shape, generator=generator)

    x = random(pairs, CHANNELS, side, side) - 0.5
    # Offsets of -4 to 4 pixels. Each group has two offsets, in y and in x, for each of the TAPS = 9
    # points of the 3 x 3 kernel.
    offset = 8 * (random(pairs, 2 * TAPS * GROUPS, side, side) - 0.5)
    mask = random(pairs, TAPS * GROUPS, side, side)
    # Weights of -1/16 to 1/16. An output value is the sum of 96 x 9 products: 96 channels, and 9
    # points of the kernel. With these weights, the output is about as large as x.
    weight = (random(CHANNELS, CHANNELS, 3, 3) - 0.5) / 8
    bias = random(CHANNELS)

    if device == "cuda":
        x = x.to(torch.bfloat16)
    return [tensor.to(device) for tensor in (x, offset, mask, weight, bias)]


def _forward_and_backward(form: Callable[..., Tensor], inputs: list[Tensor]) -> dict[str, Tensor]:
    """Run a form and its backward pass. Returns the output, and the gradient of each input.

    The gradients are the gradients of a loss, the sum of the squares of the output.

    inputs: x, offset, mask, weight and bias, e.g. of `_sampling_inputs`.
    """
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = form(*leaves)
    loss = out.float().square().sum()
    grad_x, grad_offset, grad_mask, grad_weight, grad_bias = torch.autograd.grad(loss, leaves)
    return {
        "out": out.detach(),
        "x": grad_x,
        "offset": grad_offset,
        "mask": grad_mask,
        "weight": grad_weight,
        "bias": grad_bias,
    }


# ---- A step as a CUDA graph ----


@dataclass
class FiniteOutputs:
    """Notes whether the output of each module is finite, in the order in which a step calls them.

    A plain step appends a name and a flag for each module. A graph is different: Python runs only
    while the step is recorded, so only this step appends. Its flags are tensors of the graph, and
    each replay overwrites them with its own results. So call `first_bad` after each replay.
    """

    names: list[str] = field(default_factory=list)  # the modules in the order of their calls
    # One bool tensor of shape () for each name, on the device of the output. True: all finite.
    flags: list[Tensor] = field(default_factory=list)

    def watch(self, net: nn.Module) -> None:
        """From now on, note whether the output of each module is finite.

        Only modules without submodules are watched.
        """
        for name, module in net.named_modules():
            is_leaf = not list(module.children())
            if is_leaf:
                module.register_forward_hook(self._hook(name))

    def clear(self) -> None:
        """Forget what was noted, e.g. in the steps before a graph is recorded."""
        self.names.clear()
        self.flags.clear()

    def first_bad(self, limit: int = 5) -> list[str]:
        """Return the names of the first modules, in the order of the step, that gave NaN or Inf."""
        bad = [name for name, flag in zip(self.names, self.flags, strict=True) if not flag]
        return bad[:limit]

    def _hook(self, name: str) -> Callable[..., None]:
        """Return the function that torch calls after the module of this name."""

        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            # A list of tensors, e.g. the pyramid of the optical flow, is not noted, because NaN in
            # one of its tensors shows in the next modules.
            if isinstance(output, Tensor):
                # Do not call bool() here. It would wait for the GPU, and torch refuses to wait
                # while a graph is recorded.
                self.names.append(name)
                self.flags.append(torch.isfinite(output.detach()).all())

        return note


def graph(device: str) -> dict[str, Any]:
    """Run the same steps with and without a graph, from the same weights.

    Returns a dict:

        losses without    the losses of GRAPH_STEPS steps without a graph
        losses            the losses of as many steps with a graph
        s                 seconds of a step with a graph
        first bad         the modules that first gave NaN or Inf within the graph

    A CPU has no graphs, so on a CPU the plain steps run twice.
    """
    # `prepare` makes a network, a clip and an optimizer. The optimizer is not used, because a
    # graph needs another form of Adam (`_adam`). `run_clip(net)` returns the network's output for
    # the clip.
    setup = prepare(device)
    net = setup.net
    run_clip = setup.clip
    initial_weights = copy.deepcopy(net.state_dict())

    # `watched_losses` runs GRAPH_STEPS steps. It returns their losses, and the modules that first
    # gave NaN or Inf. It takes the modules from the flags of its second argument.
    #
    # Steps without a graph. No module is watched, so `nothing_noted` stays empty.
    optimizer = _adam(net)
    step = _plain_step(net, run_clip, optimizer)
    nothing_noted = FiniteOutputs()
    losses_without, _ = watched_losses(step, nothing_noted)

    # Steps with a graph. After `watch`, each module appends a flag to `outputs` whenever it runs.
    # `_capture` empties `outputs` before it records a step, so that only flags of the graph are
    # left.
    net.load_state_dict(initial_weights)
    outputs = FiniteOutputs()
    outputs.watch(net)
    optimizer = _adam(net)
    step = _plain_step(net, run_clip, optimizer)
    if device == "cuda":
        step = _capture(net, step, outputs)
        # `_capture` has made some steps before the recording, which changed weights and optimizer.
        _set_back(net, optimizer, initial_weights)
    losses, first_bad = watched_losses(step, outputs)
    # `measure_in_turn` measures several functions, here one.
    figures = measure_in_turn({"step": step}, torch.device(device), repeats=REPEATS, warmup=WARMUP)
    return {
        "losses without": losses_without,
        "losses": losses,
        "s": figures["step"]["median_s"],
        "first bad": first_bad,
    }


def _adam(net: nn.Module) -> torch.optim.Adam:
    """Return Adam in the form that a graph can record.

    This form keeps the number of steps on the GPU ("capturable"), where each replay increases it.
    The learning rate is the same as in `prepare`.
    """
    is_on_gpu = next(net.parameters()).is_cuda
    return torch.optim.Adam(net.parameters(), lr=1e-4, capturable=is_on_gpu)


def _set_back(
    net: nn.Module, optimizer: torch.optim.Adam, initial_weights: dict[str, Tensor]
) -> None:
    """Set the weights and the state of Adam back to their values before the first step.

    The tensors are changed in place, because a graph holds the addresses of their memory.
    """
    net.load_state_dict(initial_weights)
    # Adam keeps three tensors for each parameter: the mean of its gradient, the mean of its squared
    # gradient, and the number of steps. All three begin with 0.
    for state_of_parameter in optimizer.state.values():
        for tensor in state_of_parameter.values():
            tensor.zero_()


def _plain_step(
    net: nn.Module, run_clip: Callable[[nn.Module], Tensor], optimizer: torch.optim.Optimizer
) -> Callable[[], Tensor]:
    """Return a training step: a function that changes the weights, and returns the loss.

    The target of each pixel is grey, 0.5, chosen by hand. The loss is the mean of the Charbonnier
    error, sqrt(error^2 + 1e-9).
    """

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        error = run_clip(net).float() - 0.5
        loss = error.square().add(1e-9).sqrt().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _capture(
    net: nn.Module, step: Callable[[], Tensor], outputs: FiniteOutputs
) -> Callable[[], Tensor]:
    """Record a step as a CUDA graph. Returns a function that repeats it.

    The function always returns the same tensor, which holds the loss of the last replay.
    """
    # The documentation of torch.cuda.graph asks for a few steps on another stream first. The steps
    # make constant tensors, compile kernels, and allocate the state of the optimizer. The two calls
    # of `wait_stream` keep the order: the new stream waits until earlier work is done, and later
    # work waits until the new stream is done.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)

    outputs.clear()  # the flags of the three steps are no tensors of the graph
    for parameter in net.parameters():
        parameter.grad = None  # so that the graph allocates the gradients itself
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        loss = step()

    def replay() -> Tensor:
        recorded.replay()
        return loss

    return replay


def watched_losses(
    step: Callable[[], Tensor], outputs: FiniteOutputs
) -> tuple[list[float], list[str]]:
    """Run GRAPH_STEPS steps. Returns their losses, and the modules that first gave NaN or Inf.

    The modules are taken from the first step with NaN or Inf. This step makes the weights NaN, so
    in each later step all modules give NaN. The flags must be read after each step, because the
    flags of a graph show only its last replay. Test:
    test_the_module_where_nan_began_is_named_although_replays_overwrite_the_flags
    """
    losses = []
    first_bad: list[str] = []
    for _ in range(GRAPH_STEPS):
        loss = float(step())  # waits until the GPU has set all flags of the step
        losses.append(loss)
        if not first_bad:
            first_bad = outputs.first_bad()
    return losses, first_bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Train SpyNet, the flow network of VRT, on procedural scenes with exact flow; or measure the weights in a file.

    python lab/train_flow.py --out experiments/flow
    python lab/train_flow.py --weights models/vrt/spynet_scenes.pth

Each scene shows two frames: blurry and sharp ones, and pictures from spikes (netG.flow_input "spike" and "both"). The
pyramid is trained from coarse to fine, each finer level from the weights of the one before (Ranjan and Black, CVPR
2017). --out, a new folder, then holds spynet_scenes.pth, for netG.spynet_path, in half precision, and flow.json:
end-point errors on scenes that were not trained on, beside those of zero flow.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.flow_scenes import KINDS, Pair, make_pair
from lab.tools import environment
from models.vrt.flow import LEVELS, SpyNet
from models.weights import read_weights
from utils.metrics import markdown_table as table
from utils.random_streams import published_stream

TRAIN, TEST, DRAW = range(3)  # of seeds: scenes to train on, scenes to measure, samples of a step
LEARNING_RATE = 1e-3


class Phase(NamedTuple):
    """A share of the steps, in which these levels are trained on crops of these sizes; coarser levels are frozen."""

    levels: range
    crops: tuple[int, ...]
    batch: int
    share: float
    is_shared: bool = False  # the levels have the same weights


# A level costs four times as much as the one before: most steps train the coarse ones, which find the large motion.
# With weights of their own from the start, they stay at zero flow for many more steps.
PHASES = (
    Phase(range(0, 4), (64,), 16, 0.5, is_shared=True),
    Phase(range(0, 4), (32, 64, 128), 16, 0.22),
    Phase(range(4, 5), (32, 64), 16, 0.17),
    Phase(range(5, 6), (32, 64), 8, 0.11),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="new folder to train in")
    what.add_argument("--weights", type=Path, help="SpyNet weights in the published form, to measure")
    add("--seed", type=int, default=0)
    add("--steps", type=int, default=6000, help="of training; default %(default)s")
    add("--scenes", type=int, default=600, help="to train on; default %(default)s")
    add("--test", type=int, default=32, metavar="SCENES", help="to measure; default %(default)s")
    command = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    net = SpyNet(return_levels=(LEVELS - 1,))
    if command.weights is not None:
        weights = read_weights(command.weights)
        net.load_state_dict({"mean": net.mean, "std": net.std, **weights})
    else:
        command.out.mkdir(parents=True)
        train(net, command)
    held_out = (make_pair(published_stream(command.seed, TEST, number)) for number in range(command.test))
    found = errors(net, held_out)
    columns = ("input of SpyNet", "end-point error in px", "relative to zero flow")
    print(table([(name, error, error / found["zero flow"]) for name, error in found.items()], columns))
    if command.out is not None:
        about = {"seed": command.seed, "steps": command.steps, "scenes": command.scenes, "test_scenes": command.test}
        content = {**about, **environment(), "end_point_error_px": found}
        (command.out / "flow.json").write_text(json.dumps(content, indent=2) + "\n")
    return 0


def train(net: SpyNet, command: argparse.Namespace) -> None:
    """Train `net`, and round it to the weights written to --out. A step depends on (seed, step) and the weights."""
    # Zero flow, in weights that keep the size of the activations: torch's own let them fade from layer to layer.
    torch.manual_seed(command.seed)
    for conv in (module for module in net.modules() if isinstance(module, nn.Conv2d)):
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        nn.init.zeros_(conv.bias)
    net.start_at_zero()
    pairs = [make_pair(published_stream(command.seed, TRAIN, number)) for number in range(command.scenes)]
    start, modules = 0, net.basic_module
    for phase in PHASES:
        stop = command.steps if phase is PHASES[-1] else min(start + round(phase.share * command.steps), command.steps)
        trained = phase.levels[:1] if phase.is_shared else phase.levels
        part = SpyNet(return_levels=phase.levels)  # up to these levels, with the weights of `net`
        levels = range(phase.levels.stop)
        part.basic_module = nn.ModuleList(modules[0 if phase.is_shared else level] for level in levels)
        for level in levels:
            modules[level].requires_grad_(level in trained)
        parameters = list(modules[trained.start : trained.stop].parameters())
        optimizer = torch.optim.Adam(parameters)
        for step in range(start, stop):
            # A cosine that ends at a fiftieth, after a warm-up of 50 steps.
            done, cosine = step - start, math.cos(math.pi * (step - start) / (stop - start))
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, (1 + done) / 50) * (0.51 + 0.49 * cosine)
            loss = loss_of(part, phase, pairs, published_stream(command.seed, DRAW, step))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step}: levels to {phase.levels[-1]}, loss {loss.item():.3f}", flush=True)
        for finer in modules[trained[-1] + 1 :]:  # the finer levels begin with these weights
            finer.load_state_dict(modules[trained[-1]].state_dict())
        start = stop
    halved = {name: value.half() for name, value in net.state_dict().items()}
    torch.save({"params": halved}, command.out / "spynet_scenes.pth")
    net.load_state_dict(halved)


def loss_of(part: SpyNet, phase: Phase, pairs: Sequence[Pair], rng: np.random.Generator) -> Tensor:
    """End-point error in pixels of each trained level, summed over the levels."""
    crop = int(rng.choice(phase.crops))
    samples = [draw(pairs[rng.integers(len(pairs))], crop, rng) for _ in range(phase.batch)]
    frames, flow = (torch.stack(tensors) for tensors in zip(*samples, strict=True))
    loss = flow.new_zeros(())
    with torch.autocast("cpu", torch.bfloat16):
        flows = part(frames[:, 0], frames[:, 1])
    for found in flows:
        scale = crop // found.shape[-1]
        loss = loss + end_point_error(found, F.avg_pool2d(flow, scale) / scale)
    return loss


def draw(pair: Pair, crop: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A random sample of a scene: frames (2, 3, crop, crop), and the flow (2, crop, crop) of the first."""
    frames = pair.pictures[KINDS[rng.integers(len(KINDS))]]
    frames = frames.expand(2, 3, *frames.shape[2:])
    first = int(rng.integers(2))
    frames, flow = (frames.flip(0) if first else frames), pair.flow[first]
    y, x = rng.integers(0, frames.shape[-1] - crop + 1, 2)
    frames, flow = (t[..., y : y + crop, x : x + crop] for t in (frames, flow))
    for axis, channel in ((-1, 0), (-2, 1)):
        if rng.integers(2):
            sign = torch.ones(2, 1, 1)
            sign[channel] = -1
            frames, flow = frames.flip(axis), sign * flow.flip(axis)
    if rng.integers(2):
        frames, flow = frames.transpose(-1, -2), flow.transpose(-1, -2).flip(0)
    return frames, flow


def end_point_error(found: Tensor, true: Tensor) -> Tensor:
    """Mean distance of two flows (n, 2, h, w), in pixels."""
    return ((found - true).square().sum(1) + 1e-12).sqrt().mean()


@torch.no_grad()
def errors(net: SpyNet, pairs: Iterator[Pair]) -> dict[str, float]:
    """Mean end-point error over whole frames: of zero flow, and of SpyNet on each kind of input."""
    found: dict[str, list[float]] = {name: [] for name in ("zero flow", *KINDS)}
    for pair in pairs:
        found["zero flow"].append(end_point_error(torch.zeros_like(pair.flow), pair.flow).item())
        for kind in KINDS:
            frames = pair.pictures[kind]
            flow = net(frames, frames.flip(0))[0]
            found[kind].append(end_point_error(flow, pair.flow).item())
    return {name: float(np.mean(values)) for name, values in found.items()}


if __name__ == "__main__":
    sys.exit(main())

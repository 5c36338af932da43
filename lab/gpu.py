#!/usr/bin/env python3
"""How fast a GPU trains and restores with network 006, and how much memory that takes: one command,
5 minutes.

    python lab/gpu.py --out gpu.json
    python lab/gpu.py --out gpu.json --only "step, batch 8, no checkpointing"

The step comes first. A measurement that fails or runs out of memory is noted, and the next begins.
FILE is written after each. Whether the results are right: pytest -m cuda. --device cpu: tiny sizes,
to try it.
"""

import argparse
import gc
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.profiler import ProfilerActivity

from lab.benchmark import Clip, networks
from lab.tools import NAMED, compared, environment, matmul_rate, seconds
from models.vrt.fit_memory import MARGIN, fit_memory
from models.vrt.layers import tf32
from tests.helpers.tensor_clip import restore_clip

BUDGET_S = 300.0  # of all measurements
Figures = dict[str, Any]


def made(
    device: str, net: str = "ours", small: bool = False, **how: Any
) -> tuple[Any, Clip, torch.optim.Optimizer]:
    """(network, clip, optimizer) of benchmark.py, as in the GoPro recipe on a GPU; small on a CPU.

    how: batch, dtype, checkpoint, as there.
    """
    options, size = (
        (NAMED["006"], (6, 192, 192))
        if device == "cuda" and not small
        else (NAMED["small"], (2, 32, 32))
    )
    usual = {"batch": 1, "dtype": "bfloat16", "checkpoint": False, "against": net == "naive"}
    if device == "cpu":  # torchvision has no deformable convolution in bfloat16 there
        how = {**how, "batch": 1, "dtype": "float32"}
    args = argparse.Namespace(device=device, **usual | how)
    chosen = networks(args, options)[net].train()
    return (
        chosen,
        Clip(args, options, size),
        torch.optim.Adam(chosen.parameters(), lr=1e-4, fused=device == "cuda"),
    )


def figures_of(run: Any, device: str, repeats: int = 3) -> Figures:
    """Median seconds, and peak GB: of tensors on a GPU, else of the process."""
    found = compared({"": run}, torch.device(device), repeats, 1)[""]
    return {
        "s": found["median_s"],
        "peak GB": found.get("allocated_mb", found["process_mb"]) * 2**20 / 1e9,
    }


def ceilings(device: str) -> Figures:
    """What no kernel can exceed: GB/s of a copy, TFLOP/s of a matrix product."""
    place = torch.device(device)
    source = torch.empty(2**28 if place.type == "cuda" else 2**20, device=place)
    target = torch.empty_like(source)
    copy_s = min(seconds(lambda: target.copy_(source), place) for _ in range(5))
    found = {"copy GB/s": 2 * source.nbytes / copy_s / 1e9}
    # A CPU may take half a minute for a product in 16 bits.
    for dtype in (torch.float32, torch.bfloat16, torch.float16)[: 3 if place.type == "cuda" else 1]:
        found[f"{dtype} TFLOP/s"] = matmul_rate(place, dtype) / 1e12
    with tf32(True):
        return {**found, "TF32 TFLOP/s": matmul_rate(place, torch.float32) / 1e12}


def step(device: str, **how: Any) -> Figures:
    """A training step."""
    net, clip, optimizer = made(device, **how)
    return figures_of(partial(clip.train_step, net, optimizer), device)


def counted(device: str, checkpoint: bool) -> Figures:
    """The GB of a step on one clip that netG.checkpoint "auto" counts, without its margin."""
    net, clip, _ = made(device, checkpoint=checkpoint)
    with torch.autocast(device, torch.bfloat16):  # as in training: blocks are counted one by one
        return {
            "counted GB": fit_memory(net, partial(clip, net), 0.0 if checkpoint else math.inf)
            / MARGIN
        }


def profile(device: str) -> Figures:
    """The costliest operations of a training step, by the time of each operation itself."""
    is_gpu = device == "cuda"
    net, clip, optimizer = made(device, batch=8 if is_gpu else 1)
    clip.train_step(net, optimizer)
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_gpu
    ) as profiled:
        clip.train_step(net, optimizer)
    key = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    table = profiled.key_averages().table(sort_by=key, row_limit=30, max_name_column_width=60)
    return {"table": table.splitlines()}


@torch.no_grad()
def restore(device: str, side: int, dtype: str) -> Figures:
    """12 frames of 1280 x 720, in tiles of `side` pixels; 0: whole."""
    size, (net, _, _) = (12, 3, 720, 1280) if device == "cuda" else (2, 3, 48, 64), made(device)
    tiling = {
        "size_patch_testing": side if device == "cuda" else min(side, 32),
        "size_patch_overlapping": 16, "window_size": net.input_spec.window_size,
        "least_size": net.input_spec.least_size,
    }  # fmt: skip
    net, frames = net.eval(), torch.rand(1, *size, device=device)
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
        found = figures_of(lambda: restore_clip(net, frames, **tiling), device, 2)
    return {**found, "s a frame": found["s"] / size[0]}


@torch.no_grad()
def restore_small(device: str, net: str) -> Figures:
    """12 frames of 256 x 256 at once, the clip that the published code restores as one tile."""
    size = (12, 3, 256, 256) if device == "cuda" else (2, 3, 32, 32)
    chosen, _, _ = made(device, net=net)
    frames = torch.rand(1, *size, device=device)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return figures_of(partial(chosen.eval(), frames), device, 3)


def curve(device: str, dtype: str, seed: int) -> Figures:
    """Mean loss of every 25 of 300 steps of the small network on moving random textures."""
    net, _, optimizer = made(device, small=True)
    optimizer.param_groups[0]["lr"] = 1e-3
    losses, generator = [], torch.Generator().manual_seed(seed)
    for _ in range(300 if device == "cuda" else 2):
        coarse = torch.rand(1, 3, 20, 20, generator=generator)
        texture = torch.nn.functional.interpolate(coarse, scale_factor=4)[..., :64, :64].to(device)
        moments = torch.stack(
            [texture.roll((i, 2 * i), (2, 3)) for i in range(48)], dim=1
        ).unflatten(1, (6, 8))
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            restored = net(moments[:, :, :7].mean(2))
        loss = (restored.float() - moments[:, :, 3]).square().add(1e-6).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"loss": [round(float(part.mean()), 5) for part in torch.stack(losses).split(25)]}


MEASUREMENTS: dict[str, Any] = {
    "step, batch 8, no checkpointing": partial(step, batch=8),
    "step, batch 1, no checkpointing": partial(step, batch=1),
    "naive step, batch 1": partial(step, batch=1, net="naive"),
    "restore, 12 x 256 x 256": partial(restore_small, net="ours"),
    "naive restore, 12 x 256 x 256": partial(restore_small, net="naive"),
    "ceilings": ceilings,
    "step, batch 8, all checkpointing": partial(step, batch=8, checkpoint=True),
    "step, batch 1, all checkpointing": partial(step, batch=1, checkpoint=True),
    "restore, whole": partial(restore, side=0, dtype="bfloat16"),
    "restore, tiles of 256": partial(restore, side=256, dtype="bfloat16"),
    "profile of a step": profile,
    "counted, no checkpointing": partial(counted, checkpoint=False),
    "counted, all checkpointing": partial(counted, checkpoint=True),
    "step, batch 1, float32": partial(step, dtype="float32"),
    "naive step, batch 1, float32": partial(step, dtype="float32", net="naive"),
    "restore, whole, float32": partial(restore, side=0, dtype="float32"),
    "curve, float32, seed 0": partial(curve, dtype="float32", seed=0),
    "curve, float32, seed 1": partial(curve, dtype="float32", seed=1),
    "curve, bfloat16, seed 0": partial(curve, dtype="bfloat16", seed=0),
}
# A process measures the names from one of these to the next. It loads torch and compiles kernels
# once; a process that fails costs its own part alone.
FIRST_OF_PROCESS = ("step, batch 8, no checkpointing", "ceilings", "step, batch 1, float32")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="new file for the figures, JSON", metavar="FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--only", choices=MEASUREMENTS, metavar="NAME", help=", ".join(MEASUREMENTS)
    )
    parser.add_argument("--here", nargs="+", help="measure these here, print a line of JSON each")
    args = parser.parse_args(argv)
    if args.here:
        for name in args.here:
            print(json.dumps({name: measured_here(name, args.device)}), flush=True)
        return 0
    if not args.out or args.out.exists():
        parser.error("--out needs a new file")
    found: Figures = {**environment(), "figures": {}}
    end = time.monotonic() + BUDGET_S
    for names in [[args.only]] if args.only else processes():
        for name, figures in in_process(names, args.device, end - time.monotonic()):
            found["figures"][name] = figures
            args.out.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name}: {json.dumps(figures)[:150]}", flush=True)
    return int(any("failed" in figures for figures in found["figures"].values()))


def processes() -> list[list[str]]:
    """Return the names of the measurements of each process."""
    found: list[list[str]] = []
    for name in MEASUREMENTS:
        if name in FIRST_OF_PROCESS:
            found.append([])
        found[-1].append(name)
    return found


def measured_here(name: str, device: str) -> Figures:
    """Return the figures of a measurement, or why it failed: the next ones go on."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    try:
        return MEASUREMENTS[name](device)
    except RuntimeError as e:  # out of memory, for example
        return {"failed": str(e).splitlines()[0]}


def in_process(names: list[str], device: str, limit_s: float) -> Iterator[tuple[str, Figures]]:
    """Yield each name with its figures, as one process of its own measures them."""
    command = [sys.executable, __file__, "--device", device, "--here", *names]
    left = list(names)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        limit = threading.Timer(max(1.0, limit_s), process.kill)
        limit.start()
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.startswith("{"):
                (item,) = json.loads(line).items()
                left.remove(item[0])
                yield item
        limit.cancel()
        last = (process.stderr.read().splitlines() or ["no message"])[-1]
    if process.returncode == -signal.SIGKILL:
        last = f"killed, by the limit of {limit_s:.0f} s for all or for want of memory"
    for name in left:
        yield name, {"failed": last, "code": process.returncode}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

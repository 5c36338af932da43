#!/usr/bin/env python3
"""Measure how fast a GPU trains and restores with network 006, and how much memory it needs.

Network 006 is the deblurring network of the GoPro option files. lab/tools.py has its sizes.

    python lab/gpu.py --out gpu.json
    python lab/gpu.py --out gpu.json --only "step, batch 8, no checkpointing"
    python lab/gpu.py --out try.json --device cpu      tiny sizes, to try the program itself

All measurements together take 5 minutes at most, and the training step comes first. The file is
written after each measurement:

    {"gpu": "NVIDIA H200", ..., "figures": {"step, batch 1, no checkpointing":
        {"s": 0.67, "peak GB": 5.1}, "naive step, batch 1, float32": {"failed": "out of memory"}}}

The measurements run in three processes, so that a process that crashes loses only its own figures.
`main` starts this program again with `--here NAME ...` for each process.

If a measurement fails, the file has the reason in place of its figures, and the exit code is 1. The
failure decides what happens to the measurements after it:

    a RuntimeError, e.g. too little memory    the process goes on with its next measurement
    another error                             the process ends, so its other measurements fail, too
    all 5 minutes have passed                 the process is killed, and all later measurements fail

This program measures speed and memory, and `pytest -m cuda` tests whether the results are right.
docs/gpu.md has figures of an H200.

What must stay: the names of the measurements, because docs/gpu.md and stored files contain them.
lab/gpu_next.py calls `prepare`. Free to add: a measurement, as an entry of MEASUREMENTS. Test:
test_a_measurement_of_a_gpu_writes_its_figures runs one measurement on a CPU.
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.profiler import ProfilerActivity

from lab.speed.network import Clip, networks
from lab.tools import MB, NAMED, environment, matmul_rate, measure_in_turn, seconds
from models.vrt.layers import tf32
from models.vrt.memory.fit_memory import MARGIN, fit_memory
from tests.helpers.tensor_clip import restore_clip

# Seconds for all measurements together. A measurement that is not finished after this time has
# failed.
BUDGET_S = 300.0

# The figures of one measurement, e.g. {"s": 0.67, "peak GB": 5.1}.
Figures = dict[str, Any]


# ---- The command -----------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Make the measurements, and write their figures. Returns 1 if a measurement failed, else 0."""
    args = parse(argv)
    # With --here, `run_in_process` of another process has started this process, and reads the
    # lines that are printed here: one line of JSON for each measurement.
    if args.here:
        for name in args.here:
            print(json.dumps({name: measure_here(name, args.device)}), flush=True)
        return 0

    if args.only:
        names_of_processes = [[args.only]]
    else:
        names_of_processes = names_by_process()

    content: dict[str, Any] = {**environment(), "figures": {}}
    end = time.monotonic() + BUDGET_S
    for names in names_of_processes:
        time_left_s = end - time.monotonic()
        for name, figures in run_in_process(names, args.device, limit_s=time_left_s):
            content["figures"][name] = figures
            args.out.write_text(json.dumps(content, indent=1) + "\n")
            # Print only the beginning, because the table of the profile has 30 lines.
            print(f"{name}: {json.dumps(figures)[:150]}", flush=True)
    has_failed = any("failed" in figures for figures in content["figures"].values())
    return int(has_failed)


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments of the command line. Ends the program if --out is no new file.

    With --here the figures are printed, so --out is not needed.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="new file for the figures, JSON", metavar="FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--only", choices=MEASUREMENTS, metavar="NAME", help=", ".join(MEASUREMENTS)
    )
    parser.add_argument("--here", nargs="+", help="for this program: measure these in this process")
    args = parser.parse_args(argv)
    # True if --out names a file that does not exist. Without --out, the value is None, which counts
    # as False.
    is_out_new = args.out and not args.out.exists()
    if not args.here and not is_out_new:
        parser.error("--out needs a new file")
    return args


def names_by_process() -> list[list[str]]:
    """Return for each process the names of the measurements that it makes, in their order.

    E.g. the measurements a, b, c, d, of which a and c are in FIRST_OF_PROCESS: [[a, b], [c, d]].
    The first of all MEASUREMENTS must be in FIRST_OF_PROCESS, because it begins the first list.
    """
    names_of_processes: list[list[str]] = []
    for name in MEASUREMENTS:
        if name in FIRST_OF_PROCESS:
            names_of_processes.append([])
        names_of_processes[-1].append(name)
    return names_of_processes


def run_in_process(names: list[str], device: str, limit_s: float) -> Iterator[tuple[str, Figures]]:
    """Start a process that makes some measurements. Yields each name with its figures.

    The process prints a line for each measurement that it has finished, e.g.

        {"step, batch 1, no checkpointing": {"s": 0.67, "peak GB": 5.1}}

    The figures of a measurement that it did not finish are {"failed": the last line of its error
    output, "code": its exit code}.

    limit_s: seconds after which the process is killed.
    """
    command = [sys.executable, __file__, "--device", device, "--here", *names]
    unfinished = list(names)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        # Give the process at least a second. If earlier measurements have used up the time, limit_s
        # is negative.
        timer = threading.Timer(max(1.0, limit_s), process.kill)
        timer.start()

        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.startswith("{"):  # other lines are messages of libraries
                # A line is an object with a single entry: the name, and its figures.
                [(name, figures)] = json.loads(line).items()
                unfinished.remove(name)
                yield name, figures

        timer.cancel()
        # The error output is read only now. If it is longer than a pipe holds (64 KiB), the process
        # waits for a reader until the timer kills it.
        messages = process.stderr.read().splitlines()

    reason = messages[-1] if messages else "no message"
    # A killed process leaves no message. Either the timer above has killed the process after
    # `limit_s`, or the system has killed it because memory ran out. The exit code is the same.
    if process.returncode == -signal.SIGKILL:
        reason = f"killed, by the limit of {limit_s:.0f} s for all, or because memory ran out"
    for name in unfinished:
        yield name, {"failed": reason, "code": process.returncode}


def measure_here(name: str, device: str) -> Figures:
    """Make a measurement in this process. Returns its figures, or {"failed": the reason}."""
    # The previous measurement may have left memory that is no longer used. Free this memory for the
    # present measurement.
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    try:
        return MEASUREMENTS[name](device)
    except RuntimeError as e:
        # E.g. out of memory. The next measurement may need less.
        return {"failed": str(e).splitlines()[0]}


# ---- What is measured: network, clip, optimizer ----------------------------------------------


class Setup(NamedTuple):
    """What a training step needs."""

    net: Any
    # A random clip on the device. `clip(net)` restores it, and `clip.train_step(net, optimizer)`
    # trains on it.
    clip: Clip
    optimizer: torch.optim.Optimizer


def prepare(
    device: str,
    net: str = "ours",
    small: bool = False,
    batch: int = 1,
    dtype: str = "bfloat16",
    checkpoint: bool = False,
) -> Setup:
    """Return a network, a clip and an optimizer.

    device: "cuda" or "cpu". On a CPU, network and clip are always small, to try the program.
    net: "ours" for the network of this project, or "naive" for the unoptimised network in
        tests/helpers/naive_vrt.py.
    small: whether to take the small network of lab/tools.py on a GPU, too.
    batch: number of clips.
    dtype: "float32" for no autocast, else the dtype of autocast. Only `Setup.clip` uses it.
    checkpoint: whether every block is computed again in the backward pass.
    """
    # NAMED (lab/tools.py) has arguments of VRT by name. "006" is the network of the GoPro option
    # files.
    options = NAMED["006"]
    size = (6, 192, 192)  # frames, height, width of a training clip in the GoPro option files
    if device == "cpu" or small:
        options = NAMED["small"]
        size = (2, 32, 32)
    if device == "cpu":
        batch = 1
        dtype = "float32"  # torchvision has no deformable convolution in bfloat16 on a CPU

    # {"ours": network of this project}, and with `with_naive` also "naive".
    nets = networks(options, device, is_checkpointed=checkpoint, with_naive=net == "naive")
    network = nets[net].train()
    clip = Clip(options, size, batch=batch, device=device, dtype=dtype)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=device == "cuda")
    return Setup(network, clip, optimizer)


def figures_of(run: Callable[[], Any], device: str, repeats: int = 3) -> Figures:
    """Call a function once to warm up, then measure `repeats` calls. Returns {"s", "peak GB"}.

    s: median wall time in seconds. peak GB: peak memory of the tensors on a GPU. On a CPU it is the
    peak memory of the process, because torch does not count the memory of tensors there.
    """
    runs = {"run": run}  # `measure_in_turn` measures several functions, here one
    figures = measure_in_turn(runs, torch.device(device), repeats, warmup=1)["run"]
    if "allocated_mb" in figures:
        peak_mb = figures["allocated_mb"]
    else:
        peak_mb = figures["process_mb"]
    # lab/tools.py gives MB of 2^20 bytes. The result has GB of 1e9 bytes.
    return {"s": figures["median_s"], "peak GB": peak_mb * MB / 1e9}


# ---- The measurements ------------------------------------------------------------------------


def step(device: str, **settings: Any) -> Figures:
    """Measure a training step. settings: arguments of `prepare`."""
    net, clip, optimizer = prepare(device, **settings)
    return figures_of(partial(clip.train_step, net, optimizer), device)


def ceilings(device: str) -> Figures:
    """Measure what no kernel can exceed: GB/s of a copy, TFLOP/s of a matrix product."""
    place = torch.device(device)
    is_gpu = place.type == "cuda"

    # Copy 2^28 float32 numbers of 4 bytes on a GPU: 1 GB takes so long that the start of the kernel
    # does not count. On a CPU copy 4 MB, only to try the program.
    count = 2**28 if is_gpu else 2**20
    source = torch.empty(count, device=place)
    target = torch.empty_like(source)
    copy = partial(target.copy_, source)
    times_s = [seconds(copy, place) for _ in range(5)]
    copy_s = min(times_s)  # the fastest, because other work can only make a copy slower
    bytes_moved = 2 * source.nbytes  # each byte is read and written
    figures = {"copy GB/s": bytes_moved / copy_s / 1e9}

    dtypes = [torch.float32]
    if is_gpu:  # not on a CPU, which may take half a minute for a product in 16 bits
        dtypes += [torch.bfloat16, torch.float16]
    for dtype in dtypes:
        figures[f"{dtype} TFLOP/s"] = matmul_rate(place, dtype) / 1e12
    # With TF32, newer GPUs round the float32 factors to a mantissa of 10 bits, which makes a
    # product faster.
    with tf32(True):
        figures["TF32 TFLOP/s"] = matmul_rate(place, torch.float32) / 1e12
    return figures


def count_memory(device: str, checkpoint: bool) -> Figures:
    """Estimate the memory of a training step of one clip in GB, as netG.checkpoint "auto" does.

    The result is the estimate without its margin. Compare it with the measured "peak GB" of `step`.

    checkpoint: whether every block is computed again in the backward pass.
    """
    setup = prepare(device, checkpoint=checkpoint)
    net = setup.net
    run_clip = partial(setup.clip, net)
    # `fit_memory` chooses as many blocks to compute again as the budget requires: all blocks with a
    # budget of 0, and no block with an unlimited budget.
    budget_gb = 0.0 if checkpoint else math.inf
    # Autocast, because `step` uses it on a GPU. With it, autograd keeps tensors of 16 bits.
    with torch.autocast(device, torch.bfloat16):
        with_margin_gb = fit_memory(net, run_clip, budget_gb)
    return {"counted GB": with_margin_gb / MARGIN}


def profile(device: str) -> Figures:
    """Profile a training step. Returns the table of the 30 operations with the largest self time.

    The self time of an operation excludes the operations that it calls.
    """
    is_gpu = device == "cuda"
    activities = [ProfilerActivity.CPU]
    time_key = "self_cpu_time_total"
    if is_gpu:
        activities.append(ProfilerActivity.CUDA)
        time_key = "self_device_time_total"

    net, clip, optimizer = prepare(device, batch=8)  # on a CPU `prepare` makes one clip
    clip.train_step(net, optimizer)  # not profiled, because the first step compiles kernels
    with torch.profiler.profile(activities=activities) as profiled:
        clip.train_step(net, optimizer)

    averages = profiled.key_averages()
    table = averages.table(sort_by=time_key, row_limit=30, max_name_column_width=60)
    return {"table": table.splitlines()}


@torch.no_grad()
def restore(device: str, side: int, dtype: str) -> Figures:
    """Measure restoring 12 frames of 1280 x 720.

    side: height and width of a tile in pixels. 0 restores whole frames.
    dtype: "bfloat16" for autocast, else "float32".
    """
    frames = (12, 3, 720, 1280)  # (T, C, H, W), the size of GoPro's frames
    if device == "cpu":  # tiny, only to try the program
        frames = (2, 3, 48, 64)
        side = min(side, 32)
    net = prepare(device).net.eval()
    blurry = torch.rand(1, *frames, device=device)
    tiling = {
        "size_patch_testing": side,
        "size_patch_overlapping": 16,
        "window_size": net.input_spec.window_size,
        "least_size": net.input_spec.least_size,
    }
    run = partial(restore_clip, net, blurry, **tiling)
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
        figures = figures_of(run, device, repeats=2)
    number_of_frames, _, _, _ = frames
    figures["s a frame"] = figures["s"] / number_of_frames
    return figures


@torch.no_grad()
def restore_small(device: str, net: str) -> Figures:
    """Measure restoring 12 frames of 256 x 256 at once.

    The published code restores a clip of this size as one tile. So both networks can be compared
    on it.

    net: "ours" for the network of this project, or "naive" for the unoptimised network in
        tests/helpers/naive_vrt.py.
    """
    frames = (12, 3, 256, 256)  # (T, C, H, W)
    if device == "cpu":  # tiny, only to try the program
        frames = (2, 3, 32, 32)
    network = prepare(device, net=net).net.eval()
    blurry = torch.rand(1, *frames, device=device)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return figures_of(partial(network, blurry), device, repeats=3)


def curve(device: str, dtype: str, seed: int) -> Figures:
    """Train the small network for 300 steps. Returns {"loss": mean loss of each 25 steps}.

    The curves of two dtypes show whether training in 16 bits is as good. The curves of two seeds
    show how much a curve changes by chance. Steps, 25 and learning rate are chosen by hand. The
    curves in docs/gpu.md depend on them.

    dtype: "bfloat16" for autocast, else "float32".
    seed: seed of the random textures on which the network is trained.
    """
    setup = prepare(device, small=True)
    net = setup.net
    optimizer = setup.optimizer
    optimizer.param_groups[0]["lr"] = 1e-3
    generator = torch.Generator().manual_seed(seed)
    steps = 300 if device == "cuda" else 2  # on a CPU only to try the program
    losses = []
    for _ in range(steps):
        blurry, sharp = moving_texture(generator, device)
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            restored = net(blurry)
        # The Charbonnier loss: the mean of sqrt(error^2 + 1e-6).
        loss = (restored.float() - sharp).square().add(1e-6).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    means = []
    for losses_of_25_steps in torch.stack(losses).split(25):
        means.append(round(float(losses_of_25_steps.mean()), 5))
    return {"loss": means}


def moving_texture(generator: torch.Generator, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a blurry clip and its sharp clip, (1, 6, 3, 64, 64) each, of a random texture.

    The curves of docs/gpu.md depend on the clips, so motion and exposure must stay as they are.
    """
    # A texture of squares of 4 x 4 pixels, each with a random colour.
    coarse = torch.rand(1, 3, 20, 20, generator=generator)
    texture = torch.nn.functional.interpolate(coarse, scale_factor=4)  # (1, 3, 80, 80)
    texture = texture[..., :64, :64].to(device)
    # The clip has 48 moments, 8 for each frame. The texture moves by 1 row and 2 columns from each
    # moment to the next.
    shifted = []
    for moment in range(48):
        shifted.append(texture.roll((moment, 2 * moment), dims=(2, 3)))
    moments = torch.stack(shifted, dim=1)  # (1, 48, 3, 64, 64)
    moments = moments.unflatten(1, (6, 8))  # (1, frame, moment, 3, 64, 64)
    # A frame is exposed for 7 of its 8 moments, 0 to 6. Its target is the middle moment, 3.
    blurry = moments[:, :, :7].mean(dim=2)
    sharp = moments[:, :, 3]
    return blurry, sharp


# Name of a measurement -> function of the device. The measurements are made in this order, the most
# important ones first, because the time may not suffice for all.
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
    "counted, no checkpointing": partial(count_memory, checkpoint=False),
    "counted, all checkpointing": partial(count_memory, checkpoint=True),
    "step, batch 1, float32": partial(step, dtype="float32"),
    "naive step, batch 1, float32": partial(step, dtype="float32", net="naive"),
    "restore, whole, float32": partial(restore, side=0, dtype="float32"),
    "curve, float32, seed 0": partial(curve, dtype="float32", seed=0),
    "curve, float32, seed 1": partial(curve, dtype="float32", seed=1),
    "curve, bfloat16, seed 0": partial(curve, dtype="bfloat16", seed=0),
}
# With each of these three measurements, a new process begins. Fewer processes would save time,
# because each process loads torch and compiles kernels. With more processes, a crash would lose
# fewer figures, because a process that crashes loses the rest of its measurements.
FIRST_OF_PROCESS = ("step, batch 8, no checkpointing", "ceilings", "step, batch 1, float32")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

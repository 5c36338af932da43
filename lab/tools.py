"""Functions of the measurements in lab/: networks by name, timing, peak memory, speed of a device.

lab/benchmark.py, lab/gpu.py and lab/gpu_next.py time functions with `measure_in_turn`. It returns
figures such as

    measure_in_turn({"ours": step, "naive": other_step}, device, repeats=3, warmup=1)
    -> {"ours": {"median_s": 7.5, "median_cpu_s": 7.4, "min_s": 7.3, "runs": 3,
                 "process_mb": 4300.0},
        "naive": ...}

`measure_in_turn` calls `measure_once` for one run, and `measure_once` calls `seconds`.

What must stay: the keys of the figures, because files in docs/benchmarks have these keys. The
networks of NAMED must stay, too, because figures of two versions are compared. Free to change: how
a time is measured, if all compared functions are measured in the same way. Test:
tests/parts/house/test_lab.py
"""

import ctypes
import gc
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from utils.system import peak_process_gb

ROOT = Path(__file__).resolve().parent.parent
# Bytes of an MB. In docs/benchmarks an MB has 2**20 bytes. Other programs call this a MiB.
MB = 2**20

# ---- Networks --------------------------------------------------------------------------------

# Arguments of models.network_vrt.VRT by the name of the network. VRT has eight stages of blocks:
#
#     depths, embed_dims, num_heads   numbers of blocks, of channels and of attention heads. E.g.
#                                     [8] * 7 + [4] * 4: 8 blocks in each of the stages 1 to 7, and
#                                     4 blocks in each of the four layers of stage 8
#     indep_reconsts                  indices in `depths` of the layers that process each frame
#                                     separately
#     pa_frames                       number of neighbour frames that are aligned to each frame
#     deformable_groups               number of groups of channels in this alignment. The channels
#                                     of a group are sampled at the same positions
NAMED: dict[str, dict[str, Any]] = {
    # The deblurring network of the GoPro option files, options/vrt/006_*.json. Change the files and
    # this entry together (test_the_named_network_equals_the_network_of_the_option_file).
    "006": {
        "upscale": 1, "img_size": [6, 192, 192], "window_size": [6, 8, 8],
        "depths": [8] * 7 + [4] * 4, "indep_reconsts": [9, 10], "embed_dims": [96] * 7 + [120] * 4,
        "num_heads": [6] * 11, "pa_frames": 2, "deformable_groups": 16,
    },
    # A network that is about as small as the network of `make sample`.
    "small": {
        "upscale": 1, "img_size": [6, 32, 32], "window_size": [6, 4, 4], "depths": [2] * 7 + [1, 1],
        "indep_reconsts": [8], "embed_dims": [32] * 9, "num_heads": [4] * 9, "pa_frames": 2,
        "deformable_groups": 4,
    },
}  # fmt: skip
# 006 with half the blocks, to compare with the naive VRT (tests/helpers/naive_vrt.py). The naive
# VRT needs much memory: a training step of all blocks on a clip of 6 x 64 x 64 takes 16 GB.
NAMED["006-half"] = {**NAMED["006"], "depths": [4] * 7 + [2] * 4}

# Arguments of VRT that compute the activations of every block again in the backward pass.
CHECKPOINTED = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}


# ---- Conditions of a measurement -------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Return the conditions of a measurement: commit, GPU, CPU, threads, version of torch.

    E.g. {"commit": "a5bc65a-dirty", "gpu": None, "cpu": "model name : AMD EPYC", ...}. "-dirty"
    says that the checkout has changes that are not committed.
    """
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    commit = git.stdout.strip()

    gpu = None
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()

    return {
        "commit": commit or None,  # git prints nothing if this is no checkout
        "gpu": gpu,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _cpu_name() -> str | None:
    """Return the first line of /proc/cpuinfo that names the processor. None if no line does."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line
    return None  # e.g. on ARM


# ---- Timing ----------------------------------------------------------------------------------


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Call a function once. Returns the wall time in seconds."""
    _wait_for(device)
    start = time.perf_counter()
    run()
    _wait_for(device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    """Wait until the device has finished, because a call returns before the GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure_once(run: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Call a function once, and measure its time and its peak memory.

    Returns a dict with the keys

        s               wall time in seconds
        cpu_s           CPU seconds, the sum over all threads of this process
        process_mb      peak memory of this process, in MB
        allocated_mb    peak memory of the tensors on the GPU, in MB, only on a GPU
    """
    # Python may still hold memory that an earlier run has freed. Give this memory back to the
    # system, so that it does not count in the peak of this run.
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    # If 5 is written to this file, Linux sets the peak memory of the process to its present memory.
    Path("/proc/self/clear_refs").write_text("5")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    cpu_before = time.process_time()
    wall_s = seconds(run, device)
    cpu_s = time.process_time() - cpu_before

    process_bytes = peak_process_gb() * 1e9  # a GB has 1e9 bytes, and an MB of this file 2^20 bytes
    figures = {"s": wall_s, "cpu_s": cpu_s, "process_mb": process_bytes / MB}
    if device.type == "cuda":
        figures["allocated_mb"] = torch.cuda.max_memory_allocated(device) / MB
    return figures


def measure_in_turn(
    runs: dict[str, Callable[[], Any]], device: torch.device, repeats: int, warmup: int
) -> dict[str, dict[str, float]]:
    """Measure several functions in turn. Returns the figures of each.

    runs: name -> function.
    repeats: number of measured calls of each function.
    warmup: number of calls of each function before the measured calls. Their figures are not used.

    The figures of a function are

        median_s, min_s             median and least wall time
        median_cpu_s                median of the CPU seconds
        runs                        number of measured calls
        process_mb, allocated_mb    largest peak memory of a call (`measure_once`)

    The functions take turns (a, b, a, b, ...), so that other programs on the machine slow all
    functions equally. On a busy machine compare the CPU seconds, because they do not contain the
    time of other programs.
    """
    measured_rounds = []  # for each round: name -> figures of the call
    for round_index in range(warmup + repeats):
        figures_of_round = {}
        for name, run in runs.items():
            figures_of_round[name] = measure_once(run, device)
        if round_index >= warmup:
            measured_rounds.append(figures_of_round)

    summaries = {}
    for name in runs:
        calls = [figures_of_round[name] for figures_of_round in measured_rounds]
        summaries[name] = _summary(calls)
    return summaries


def _summary(calls: list[dict[str, float]]) -> dict[str, float]:
    """Return the figures of a function over all its calls. calls: the figures of each call."""
    wall = [call["s"] for call in calls]
    cpu = [call["cpu_s"] for call in calls]
    summary = {
        "median_s": statistics.median(wall),
        "median_cpu_s": statistics.median(cpu),
        "min_s": min(wall),
        "runs": len(calls),
    }
    for key in ("process_mb", "allocated_mb"):
        if key in calls[0]:
            summary[key] = max(call[key] for call in calls)
    return summary


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return how many FLOP/s this device reaches in a large matrix product: the best of 8 runs."""
    # The product takes some milliseconds. The time to start the kernel is much shorter, so it
    # hardly changes the result.
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)

    times = []
    for _ in range(9):  # one call to warm up, and 8 calls that count
        times.append(seconds(lambda: a @ b, device))
    times_after_warmup = times[1:]  # the first call loads the kernel

    # Each of the size^2 numbers of the product takes `size` multiplications and `size` additions.
    flops = 2 * size**3
    return flops / min(times_after_warmup)

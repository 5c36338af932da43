"""Shared by the measurements: the networks, timing of runs in turn, peak memory, the matmul rate of
a device.
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
MB = 2**20
# 006: the deblurring network of the GoPro options; 006-half: with half the blocks, as a training
# step of the naive VRT takes 16 GB at 6x64x64; small: similar to the sample run.
NAMED: dict[str, dict[str, Any]] = {
    "006": {
        "upscale": 1, "img_size": [6, 192, 192], "window_size": [6, 8, 8],
        "depths": [8] * 7 + [4] * 4, "indep_reconsts": [9, 10], "embed_dims": [96] * 7 + [120] * 4,
        "num_heads": [6] * 11, "pa_frames": 2, "deformable_groups": 16,
    },
    "small": {
        "upscale": 1, "img_size": [6, 32, 32], "window_size": [6, 4, 4], "depths": [2] * 7 + [1, 1],
        "indep_reconsts": [8], "embed_dims": [32] * 9, "num_heads": [4] * 9, "pa_frames": 2,
        "deformable_groups": 4,
    },
}  # fmt: skip
NAMED["006-half"] = {**NAMED["006"], "depths": [4] * 7 + [2] * 4}
CHECKPOINTED = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}


def environment() -> dict[str, Any]:
    """Device, versions and commit of a measurement."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    about_cpu = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "commit": commit or None, "gpu": gpu,
        "cpu": next(line for line in about_cpu if line.startswith("model name")),
        "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one run."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def measured(run: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Of one run: seconds, CPU seconds of all threads, peak memory of the process in MB, and that
    on a GPU.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # the next run must not count what this one freed
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    used = time.process_time()
    wall, used = seconds(run, device), time.process_time() - used
    figures = {"s": wall, "cpu_s": used, "process_mb": peak_process_gb() * 1e9 / MB}
    if device.type == "cuda":
        figures["allocated_mb"] = torch.cuda.max_memory_allocated(device) / MB
    return figures


def compared(
    runs: dict[str, Callable[[], Any]], device: torch.device, repeats: int, warmup: int
) -> dict[str, dict[str, float]]:
    """Median and least seconds, median CPU seconds and largest memory of each run.

    In turn, so that all runs have the same load on a shared machine; CPU seconds compare runs even
    on a busy one.
    """
    turns = [
        {name: measured(run, device) for name, run in runs.items()} for _ in range(warmup + repeats)
    ][warmup:]
    found = {}
    for name in runs:
        of_run = {key: [turn[name][key] for turn in turns] for key in turns[0][name]}
        medians = {f"median_{key}": statistics.median(of_run[key]) for key in ("s", "cpu_s")}
        memory = {key: max(values) for key, values in of_run.items() if key.endswith("_mb")}
        found[name] = {**medians, "min_s": min(of_run["s"]), "runs": repeats, **memory}
    return found


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large square matrix product on this device: best of several."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = [seconds(lambda: a @ b, device) for _ in range(9)]
    return 2 * size**3 / min(times[1:])

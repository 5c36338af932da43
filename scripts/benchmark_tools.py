"""Shared by the benchmarks: timing of runs in turn, peak memory, the device's matmul rate, tables."""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from scripts.shown import tracked

MB = 2**20
T = TypeVar("T")


def environment() -> dict[str, Any]:
    """Device, versions and commit of a measurement."""
    here = Path(__file__).resolve().parent
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=here, capture_output=True, text=True) if shutil.which("git") else None
    return {
        "commit": commit.stdout.strip() or None if commit else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one run."""
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if is_cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measured(run: Callable[[], Any], device: torch.device, warm: bool = False) -> dict[str, float]:
    """Of one run: seconds, CPU seconds of all threads and of the kernel, peak memory of the process in MB and its rise,
    and peak memory on a GPU. warm: the process keeps memory that was freed before, so its peak has no meaning."""
    gc.collect()
    if not warm:
        _trim_heap()
    before = _status_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    used, system = time.process_time(), _system_s()
    wall = seconds(run, device)
    used, system = time.process_time() - used, _system_s() - system
    peak = _status_mb("VmHWM")
    figures = {"s": wall, "cpu_s": used, "system_s": system, "process_mb": peak, "rise_mb": peak - before}
    if device.type == "cuda":
        figures["allocated_mb"] = torch.cuda.max_memory_allocated(device) / MB
    return figures


def in_turn(
    runs: dict[str, Callable[[], Any]], measure: Callable[[Callable[[], Any]], T], repeats: int, warmup: int
) -> dict[str, list[T]]:
    """`measure` of each run, `repeats` times in turn, so that all runs have the same load on a shared machine."""
    found: dict[str, list[T]] = {name: [] for name in runs}
    turns = [(turn, name) for turn in range(warmup + repeats) for name in runs]
    for turn, name in tracked(turns, len(turns), "measuring", "runs"):
        result = measure(runs[name])
        if turn >= warmup:
            found[name].append(result)
    return found


def compared(
    runs: dict[str, Callable[[], Any]], device: torch.device, repeats: int, warmup: int, warm: bool = False
) -> dict[str, dict[str, float]]:
    """Median and least seconds, median CPU seconds and largest memory of each run, measured in turn.

    CPU seconds compare runs even on a busy machine.
    """
    found = in_turn(runs, lambda run: measured(run, device, warm), repeats, warmup)
    return {name: _summary(figures) for name, figures in found.items()}


def _summary(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    walls = [run["s"] for run in runs]
    summary = {
        "median_s": statistics.median(walls),
        "min_s": min(walls),
        "median_cpu_s": statistics.median(run["cpu_s"] for run in runs),
        "median_system_s": statistics.median(run["system_s"] for run in runs),
        "runs": len(runs),
    }
    return summary | {key: max(run[key] for run in runs) for key in runs[0] if key.endswith("_mb")}


def _system_s() -> float:
    """Seconds that the kernel worked for this process; on a CPU mostly for page faults of new memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def _status_mb(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


def _trim_heap() -> None:
    """Ask the C library to return freed memory, so that the next run does not count it."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except OSError:  # another C library; the memory of the process is then an upper bound
        return


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large square matrix product on this device: best of several."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    times = [seconds(lambda: a @ b, device) for _ in range(9)]
    return 2 * size**3 / min(times[1:])


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Rows as a Markdown table."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(header), *cells]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *cells]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)

"""What every benchmark needs: timing of interleaved runs, peak memory, the device's matmul rate, tables."""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

MB = 2**20


def environment() -> dict[str, Any]:
    """Device, versions and commit that a number belongs to."""
    here = Path(__file__).resolve().parent
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "commit": commit.stdout.strip() or None,
        "gpu": gpu,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(run: Callable[[], Any], device: torch.device, warm: bool = False) -> dict[str, float]:
    """One run: seconds, processor seconds of all threads and how many of these the kernel's, peak MB of the process,
    its rise, and torch's on a GPU. warm: memory freed before stays with the process, and the peak tells nothing."""
    gc.collect()
    if not warm:
        _give_back()
    before = _status("VmRSS")
    _reset_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    synchronize(device)
    start, used, system = time.perf_counter(), time.process_time(), _system_s()
    run()
    synchronize(device)
    wall, used, system = time.perf_counter() - start, time.process_time() - used, _system_s() - system
    peak = _status("VmHWM")
    figures = {"s": wall, "cpu_s": used, "system_s": system, "process_mb": peak, "rise_mb": peak - before}
    if device.type == "cuda":
        figures["allocated_mb"] = torch.cuda.max_memory_allocated(device) / MB
    return figures


def interleaved(
    runs: dict[str, Callable[[], Any]], device: torch.device, repeats: int, warmup: int
) -> dict[str, list[float]]:
    """Seconds of each run, `repeats` times in turn: on a shared machine all of them then run under the same load."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warmup + repeats):
        for name, run in runs.items():
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            if turn >= warmup:
                times[name].append(time.perf_counter() - start)
    return times


def compared(
    runs: dict[str, Callable[[], Any]], device: torch.device, repeats: int, warmup: int, warm: bool = False
) -> dict[str, dict[str, float]]:
    """As `interleaved`, for long runs: median and smallest seconds, median processor seconds, largest memory of each.

    Processor seconds tell runs apart even where others keep the machine busy.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for turn in range(warmup + repeats):
        for name, run in runs.items():
            figures = measured(run, device, warm)
            if turn >= warmup:
                found[name].append(figures)
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
    """Seconds the kernel worked for this process: on a CPU mostly to find memory for first writes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _give_back() -> None:
    """Ask the C library to return freed memory, so that one run's leavings do not count for the next."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except OSError:  # another C library; the process figures are then upper bounds
        return


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """FLOP/s of a large square matrix product on this device: best of several."""
    size = size or (8192 if device.type == "cuda" else 1024)
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / min(interleaved({"": lambda: a @ b}, device, repeats=8, warmup=1)[""])


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Rows as a Markdown table."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(header), *cells]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *cells]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)

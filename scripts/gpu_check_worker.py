"""What the processes of gpu_check run: the machine in words, and the measurements of a part one after the other."""

from __future__ import annotations

import gc
import importlib.metadata
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # optimisers import it at their first step, which takes seconds: once, before the processes begin

from scripts import gpu_check_infer, gpu_check_kernels, gpu_check_profile, gpu_check_right, gpu_check_step
from scripts.benchmark_tools import environment
from scripts.gpu_check_tools import Measurement, Setting, Skipped, cache_folder

MEASUREMENTS = {
    "check": gpu_check_right.measurements,
    "kernels": gpu_check_kernels.measurements,
    "step": gpu_check_step.measurements,
    "profile": gpu_check_profile.measurements,
    "infer": gpu_check_infer.measurements,
}
# The last lines of a traceback say where; all of them are too many for a report.
TRACEBACK_LINES = 12


def machine(device: str | None) -> dict[str, Any]:
    """Device, versions and commit; starts CUDA. device: "cuda", "cpu", or None for the GPU if there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = {"device": device, **environment(), "python": sys.version.split()[0], "cuda": torch.version.cuda}
    for package in ("torchvision", "triton", "pydantic"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {"memory GB": properties.total_memory / 1e9, "capability": f"{properties.major}.{properties.minor}"}
        found |= {"multiprocessors": properties.multi_processor_count, "cudnn": torch.backends.cudnn.version()}
    return found


def names(part: str, device: str) -> list[str]:
    """The measurements of a part, in their order. Starts no CUDA."""
    return list(MEASUREMENTS[part](Setting(torch.device(device))))


def work(
    pipe: Connection, part: str, todo: list[str], device: str, found: Mapping[str, dict[str, Any]], left_s: float
) -> None:
    """Send (name, result) after each measurement of `todo`, in their order, until `left_s` seconds are over.

    After a fault of CUDA every later call in the process would fail, so the process ends there.
    """
    end = time.monotonic() + left_s
    setting = Setting(torch.device(device), dict(found))
    measurements = MEASUREMENTS[part](setting)
    with tempfile.TemporaryDirectory() as empty, cache_folder(empty):
        for name in todo:
            if time.monotonic() >= end:
                return
            result, is_fault = _measured(measurements[name], setting)
            setting.found[name] = result
            pipe.send((name, result))
            if is_fault:
                return


def _measured(measurement: Measurement, setting: Setting) -> tuple[dict[str, Any], bool]:
    """(result, whether CUDA is of no more use in this process)."""
    begin, is_fault = time.monotonic(), False
    try:
        result = measurement(setting)
    except Skipped as e:
        result = {"skipped": str(e)}
    except torch.OutOfMemoryError as e:
        result = {"out of memory": str(e).partition(". ")[2].partition(". ")[0]}
    except Exception as e:
        text = (str(e).strip() or type(e).__name__).splitlines()[0]
        lines = traceback.format_exc().splitlines()[-TRACEBACK_LINES:]
        result = {"error": f"{type(e).__name__}: {text}", "traceback": lines}
        is_fault = "CUDA error" in str(e) or type(e).__name__ == "AcceleratorError"
    result = {**result, "took_s": time.monotonic() - begin}
    gc.collect()
    if setting.device.type == "cuda" and not is_fault:
        torch.cuda.empty_cache()
    return result, is_fault

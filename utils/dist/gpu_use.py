"""How busy each rank's GPU is and how full its memory, from the driver (NVML); nothing where there is no GPU."""

from __future__ import annotations

from typing import Any

import torch

from utils import utils_dist


def usage(device: torch.device) -> dict[str, float] | None:
    """{"busy": 0..1 over the driver's last sample, "used_gb", "total_gb"} of the whole GPU, in 1e9 bytes.

    None on the CPU, and where the driver does not report it (no nvidia-ml-py, a slice of a GPU).
    """
    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        busy = torch.cuda.utilization(device) / 100
        free, total = torch.cuda.mem_get_info(device)
    except (RuntimeError, pynvml.NVMLError):
        return None
    return {"busy": busy, "used_gb": (total - free) / 1e9, "total_gb": total / 1e9}


def usage_of_all_ranks() -> list[dict[str, float] | None]:
    """`usage` of every rank's GPU, in the order of the ranks. Collective where ranks have GPUs, else without any."""
    device = utils_dist.get_device()
    return utils_dist.gather_objects(usage(device)) if device.type == "cuda" else []


def describe(found: dict[str, float]) -> str:
    """One GPU in words."""
    return f"GPU {found['busy']:.0%} busy, {found['used_gb']:.1f} of {found['total_gb']:.1f} GB used"


def log_values(found: list[dict[str, float] | None]) -> dict[str, Any]:
    """For the log line and the curves: the least and the mean busy GPU, the fullest one; nothing unless all ranks report."""
    known = [one for one in found if one]
    if not known or len(known) < len(found):
        return {}
    busy = [one["busy"] for one in known]
    return {
        "gpu_busy_min": min(busy), "gpu_busy_mean": sum(busy) / len(busy),
        "gpu_used_gb_max": max(one["used_gb"] for one in known),
    }  # fmt: skip

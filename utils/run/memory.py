"""How full the memory is that a rank uses: of its GPU, and of its host or container."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

GB = 1e9
Use = tuple[float, float]  # used, total, in GB (1e9 bytes)


def memory_of(device: torch.device) -> dict[str, Use]:
    """Of "GPU" and "host", those that are known."""
    found = {"GPU": gpu_memory(device) if device.type == "cuda" else None, "host": host_memory()}
    return {name: use for name, use in found.items() if use}


def gpu_memory(device: torch.device) -> Use | None:
    """Peak of torch's tensors plus what others hold of the GPU.

    Memory that torch keeps for reuse does not count: it grows to the size of the GPU in a healthy run.
    """
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return None
    others = max(0, total - free - torch.cuda.memory_reserved(device))
    return (torch.cuda.max_memory_allocated(device) + others) / GB, total / GB


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Use | None:
    """The fullest of the host and the control groups around this process (containers, SLURM jobs).

    proc, groups: where the kernel mounts them.
    """
    found = [use for use in (_host(proc), *_groups(proc, groups)) if use and use[1] > 0]
    return max(found, key=lambda use: use[0] / use[1], default=None)


def _host(proc: Path) -> Use | None:
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        total, free = (int(lines[key].split()[0]) * 1024 / GB for key in ("MemTotal", "MemAvailable"))
        return total - free, total
    return None


def _groups(proc: Path, groups: Path) -> list[Use]:
    """Of each control group with a limit, from that of this process up; the kernel counts all of its processes."""
    found = []
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):  # version 1
                root, names = groups / "memory", ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_")
            elif not controllers:  # version 2
                root, names = groups, ("memory.current", "memory.max", "")
            else:
                continue
            inner = root / path.lstrip("/")
            # In a container the path may be that of the host, which the container does not see.
            folders = [inner, *inner.parents] if inner.is_dir() else [root]
            found += [use for folder in folders if folder.is_relative_to(root) and (use := _group(folder, *names))]
    return found


def _group(folder: Path, used: str, limit: str, prefix: str) -> Use | None:
    """None without a limit. The file cache does not count, also what was read twice: the kernel drops it first."""
    with suppress(OSError, ValueError, KeyError):  # "max": no limit
        total = int((folder / limit).read_text())
        if total >= 2**60:  # version 1 says so where there is none
            return None
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        cache = sum(int(stat[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
        return (int((folder / used).read_text()) - cache) / GB, total / GB
    return None

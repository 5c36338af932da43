"""Find how much memory this process may use, and how much of this memory is in use.

A container or a SLURM job limits the memory of its processes below the memory of the host. Linux
shows this in files: /proc/meminfo has the memory of the host, and the files of control groups have
the limits. A control group is a set of processes whose memory Linux counts and limits together.
`host_memory` reads all of these files, and returns the memory that is fullest.

What must stay: a missing or strange file is skipped, and never ends a run, because these files
differ from system to system. Free to change: another source of a limit may be added.

Tests: tests/parts/utils/test_host_memory.py, with the files of a container and of an old Linux.
"""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GB = 1e9  # bytes
Use = tuple[float, float]  # (used, total) of a memory, in GB


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Use | None:
    """Return (used, total) in GB of the fullest memory that this process may use.

    A process is in control groups of Linux, one within another. A container or a SLURM job limits
    the memory of its group. So a group may be full while the host has much free memory.

    The fullest memory is the memory with the largest share in use. E.g. if 40 of 500 GB of the host
    and 15 of 16 GB of a container are in use, the result is (15, 16). Returns None if no memory is
    known.

    `used` is the memory of all processes of a group. Files that the kernel keeps in memory (the
    file cache) do not count, because the kernel drops them when memory is short.

    proc: the folder with the files meminfo and self/cgroup of the kernel.
    groups: the folder with the files of the control groups.

    Tests give folders of their own. See test_the_memory_of_a_container_is_its_limit for the files
    of a container, and test_the_limit_of_the_first_version_of_cgroups_is_read for the files of an
    old Linux.
    """
    uses: list[Use] = []  # of the host and of each group
    with suppress(OSError, KeyError, ValueError):  # no /proc, or other lines in meminfo
        uses.append(_use_of_host(proc))
    with suppress(OSError):  # a system without control groups
        # The file has a line for each group of this process, e.g. "0::/user.slice".
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            uses += _uses_of_groups(line, groups)
    # If a group of version 1 has no limit, Linux shows a limit of about 2**63 bytes. No host has
    # 2**60 bytes, so a larger number means that there is no limit. A limit of 0 is skipped, because
    # `_used_share` would divide by 0.
    no_limit_gb = 2**60 / GB
    limited = [(used, total) for used, total in uses if 0 < total < no_limit_gb]
    return max(limited, key=_used_share, default=None)


def _used_share(use: Use) -> float:
    """Return the share of a memory that is in use, e.g. 0.9375 for (15, 16)."""
    used, total = use
    return used / total


def _use_of_host(proc: Path) -> Use:
    """Return (used, total) in GB of the host. Raises OSError, KeyError or ValueError."""
    # Lines such as "MemTotal:       32768000 kB" -> "MemTotal": "       32768000 kB".
    texts = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, text = line.split(":", 1)
        texts[name] = text
    total_kb = int(texts["MemTotal"].split()[0])
    free_kb = int(texts["MemAvailable"].split()[0])
    total = total_kb * 1024 / GB
    free = free_kb * 1024 / GB
    return total - free, total


class _GroupFiles(NamedTuple):
    """The names of the files of one version of control groups."""

    used: str  # name of the file with the used bytes
    limit: str  # name of the file with the limit: how many bytes the group may use
    prefix: str  # what the names in memory.stat begin with, e.g. "total_" in "total_active_file"


def _uses_of_groups(line: str, groups: Path) -> list[Use]:
    """Return (used, total) of a control group and of the groups around it, the innermost first.

    line: a line of /proc/self/cgroup, "<number>:<controllers>:<path>". The controllers say what the
        group counts, e.g. "memory". Linux has two versions of groups: "4:memory:/slurm/job_7" is a
        group of version 1, and "0::/user.slice" is a group of version 2.
    groups: the folder in which the kernel shows the control groups, "/sys/fs/cgroup".

    Returns [] if the group counts no memory, or has no limit.
    """
    _, controllers, path = line.split(":", 2)
    if "memory" in controllers.split(","):  # version 1
        root = groups / "memory"
        names = _GroupFiles(
            used="memory.usage_in_bytes", limit="memory.limit_in_bytes", prefix="total_"
        )
    elif not controllers:  # version 2
        root = groups
        names = _GroupFiles(used="memory.current", limit="memory.max", prefix="")
    else:
        return []
    inner = root / path.lstrip("/")
    if inner.is_dir():
        # All folders up to "/". The folders above `root` have no such files, so the loop below
        # skips them.
        folders = [inner, *inner.parents]
    else:
        # In a container, the line may have the path on the host. The container does not see this
        # path, but sees the files of its own group in `root`.
        folders = [root]

    uses = []
    for folder in folders:
        # An OSError comes from a folder above `root`, which has no such files. A ValueError comes
        # from a file with the text "max", which means that there is no limit.
        with suppress(OSError, ValueError, KeyError):
            uses.append(_use_of_group(folder, names))
    return uses


def _use_of_group(folder: Path, names: _GroupFiles) -> Use:
    """Return (used, total) in GB of one control group.

    folder: the folder with the files of the group. test_the_memory_of_a_container_is_its_limit has
        such files.

    Raises OSError, ValueError or KeyError if a file is missing or has another form.
    """
    total_bytes = int((folder / names.limit).read_text())
    # memory.stat has lines such as "active_file 1048576". The kernel counts the file cache as two
    # parts, active and inactive. Neither counts as used here, because the kernel frees the cache
    # when memory is short.
    texts = {}
    for stat_line in (folder / "memory.stat").read_text().splitlines():
        name, text = stat_line.split(" ", 1)
        texts[name] = text
    active_bytes = int(texts[f"{names.prefix}active_file"])
    inactive_bytes = int(texts[f"{names.prefix}inactive_file"])
    cache_bytes = active_bytes + inactive_bytes
    used_bytes = int((folder / names.used).read_text()) - cache_bytes
    return used_bytes / GB, total_bytes / GB

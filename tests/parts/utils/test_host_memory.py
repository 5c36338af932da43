"""The memory that a process may use: of the host, or up to the limit of a container.

Linux limits the memory of a container by control groups (cgroups). There are two versions of
cgroups. Most tests write files of /proc and /sys/fs/cgroup into a folder, with the content that
they have on a machine. `host_memory` returns the used memory and the whole memory in GB.
"""

import pytest

from tests.helpers.checked import not_none
from utils.host_memory import host_memory

GB = 10**9  # bytes of a gigabyte, as `host_memory` counts it


@pytest.fixture
def machine(tmp_path):
    """Give the folders /proc and /sys/fs/cgroup of a machine.

    The machine has 65.536 GB. 49.152 GB of them are available. The process belongs to a step of a
    job of SLURM. SLURM divides the machines of a cluster among users.
    """
    proc = tmp_path / "proc"
    groups = tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    # In this file, a kB has 1024 bytes.
    memory = "MemTotal: 64000000 kB\nMemFree: 100 kB\nMemAvailable: 48000000 kB\n"
    (proc / "meminfo").write_text(memory)
    (proc / "self" / "cgroup").write_text("0::/slurm/job_7/step_0\n")
    for group in ("slurm", "slurm/job_7", "slurm/job_7/step_0"):
        folder = groups / group
        folder.mkdir(parents=True)
        # The group has no limit of its own. It uses 7 GB. 1.5 GB of them are a cache of files.
        (folder / "memory.max").write_text("max\n")
        (folder / "memory.current").write_text(f"{7 * GB}\n")
        cache = f"anon 1\ninactive_file {GB}\nactive_file {GB // 2}\n"
        (folder / "memory.stat").write_text(cache)
    return proc, groups


def test_the_memory_of_a_container_is_its_limit(machine):
    proc, groups = machine
    (groups / "slurm/job_7/memory.max").write_text(f"{8 * GB}\n")

    # The kernel frees the cache of files if memory is needed, so the cache does not count. So
    # 7 - 1.5 = 5.5 GB of 8 GB are used.
    assert host_memory(proc, groups) == (5.5, 8.0)


def test_without_a_limit_the_memory_of_the_host_counts(machine):
    proc, groups = machine

    # The machine has 64,000,000 kB. 16,000,000 kB of them are not available.
    assert host_memory(proc, groups) == pytest.approx((16.384, 65.536))


def test_the_limit_of_the_first_version_of_cgroups_is_read(machine):
    proc, groups = machine
    # The first version has a tree of groups for each resource.
    (proc / "self" / "cgroup").write_text("5:cpu,cpuacct:/job\n4:memory:/job\n")
    job = groups / "memory" / "job"
    job.mkdir(parents=True)
    (job / "memory.usage_in_bytes").write_text(str(3 * GB))
    (job / "memory.limit_in_bytes").write_text(str(4 * GB))
    cache = f"cache 7\ntotal_inactive_file 0\ntotal_active_file {GB // 2}\n"
    (job / "memory.stat").write_text(cache)

    # The group uses 3 GB. The cache of files, 0.5 GB, does not count.
    assert host_memory(proc, groups) == (2.5, 4.0)


def test_the_memory_of_this_machine_is_known():
    used, total = not_none(host_memory())

    assert 0 < used < total

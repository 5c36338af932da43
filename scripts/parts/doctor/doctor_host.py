"""Check a host: launch, environment variables, devices, disk and memory.

Each rank makes these checks for itself. A check gives a `Finding`: what was seen and, if something
is wrong, why it matters and the cure.

Free to change: limits and words, unless docs/troubleshooting.md quotes the words
(test_the_doctor_prints_the_findings_that_the_page_quotes). Free to add: a finding, by `yield` in
one of these functions.

Tests: tests/parts/scripts/test_doctor.py
"""

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from scripts.parts.doctor.doctor_failures import OK, WARN, Finding
from utils import device as devices
from utils.dist.state import RUN

# If the disk has less free space than this, the check warns. A few checkpoints of VRT take some GB.
LEAST_FREE_GB = 5
# If /dev/shm (shared memory) has less free space than this, the check warns. Docker gives a
# container only 64 MB by default.
LEAST_SHARED_MB = 1024


def check_host() -> Iterator[Finding]:
    """Yield what this rank sees of its launch, its environment and its host."""
    launch = RUN.launch  # how this rank was started: by torchrun, srun, ...
    what = (
        f"{launch.mode}, rank {launch.rank} of {launch.world_size}, local rank {launch.local_rank}"
    )
    yield Finding(OK, "launch", what)
    yield from check_environment()
    yield from check_devices()
    yield from check_room()


def check_environment() -> Iterator[Finding]:
    """Yield environment variables that are known to cause failures or slow runs."""
    yield from check_timeout()
    yield from check_threads()
    yield from check_blocking_wait()


def check_timeout() -> Iterator[Finding]:
    """Yield the timeout of collectives in NCCL_TIMEOUT, if it is set."""
    timeout = os.environ.get("NCCL_TIMEOUT")
    if not timeout:
        return
    what = f"{timeout} s for every collective"
    # 10**5 s are more than a day, so a value of 10**5 or more is probably in milliseconds. The
    # launch has already refused a value that is no number (`seconds_in`).
    if float(timeout) < 10**5:
        yield Finding(OK, "NCCL_TIMEOUT", what)
    else:
        yield Finding(
            WARN,
            "NCCL_TIMEOUT",
            f"{what}; that looks like milliseconds",
            why="NCCL does not read it; this project takes it as seconds",
            cure="give seconds",
        )


def check_threads() -> Iterator[Finding]:
    """Yield a warning if the ranks of this host start more threads than it has cores."""
    launch = RUN.launch
    # Without OMP_NUM_THREADS, torch starts a thread for each core in each process, so several ranks
    # start more threads than there are cores.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    cores = os.cpu_count() or 1  # cpu_count gives None if the system does not tell the number
    # If the launcher does not set LOCAL_WORLD_SIZE, assume that all ranks are on this host.
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or launch.world_size
    # E.g. 4 threads in each of 8 ranks are 32 threads, too many for 16 cores.
    has_too_many = not threads.isdigit() or int(threads) * ranks_here > cores
    if launch.world_size > 1 and has_too_many:
        yield Finding(
            WARN,
            "threads",
            f"OMP_NUM_THREADS is {threads or 'not set'}, {ranks_here} ranks share {cores} cores",
            why="ranks that fight for cores are slow in all they do",
            cure="start through launch_train.sh, or set it to 1",
        )


def check_blocking_wait() -> Iterator[Finding]:
    """Yield a warning if NCCL waits for the end of each collective."""
    # The variable has a new name and an old name. If both are set, the new name counts.
    name = "NCCL_BLOCKING_WAIT"
    if "TORCH_NCCL_BLOCKING_WAIT" in os.environ:
        name = "TORCH_NCCL_BLOCKING_WAIT"
    if os.environ.get(name, "0") not in ("0", ""):
        yield Finding(
            WARN,
            "environment",
            f"{name} is set",
            why="each collective blocks the host",
            cure="unset it",
        )


def check_devices() -> Iterator[Finding]:
    """Yield the GPUs of this host. Yield a warning if the GPUs or InfiniBand are not used."""
    kind = devices.kind()  # "cuda", "cpu", ...
    names = [devices.name(torch.device(kind, index)) for index in range(devices.count())]

    has_infiniband = any(Path("/sys/class/infiniband").glob("*"))
    is_disabled = os.environ.get("NCCL_IB_DISABLE") == "1"
    if names and RUN.launch.world_size > 1 and has_infiniband and is_disabled:
        yield Finding(
            WARN,
            "network",
            "the host has InfiniBand, but NCCL_IB_DISABLE is 1",
            why="NCCL uses slow sockets instead",
            cure="unset it",
        )

    if names:
        what = f"{len(names)} x {names[0]}"  # the GPUs of a host are usually of one kind
    else:
        what = "no GPU: ranks run on the CPU"
    yield Finding(OK, "devices", f"torch {torch.__version__}; {what}")
    # A device of the host that this installation of torch cannot use.
    for reason in devices.notes_on_unused(torch.device(kind)):
        yield Finding(
            WARN,
            "devices",
            reason,
            why="the CPU takes many times as long",
            cure="install the build of torch for this device, or its package (docs/gpu.md)",
        )


def check_room() -> Iterator[Finding]:
    """Yield the free space of the disk, of the shared memory and of the address space."""
    yield check_disk()
    yield from check_shared_memory()
    yield from check_address_space()


def check_disk() -> Finding:
    """Return the free space of the disk of the current folder."""
    free_gb = shutil.disk_usage(".").free / 2**30
    what = f"{free_gb:.0f} GB free here"
    if free_gb >= LEAST_FREE_GB:
        return Finding(OK, "disk", what)
    return Finding(
        WARN,
        "disk",
        what,
        why="checkpoints need room",
        cure="free some space, or set path.root",
    )


def check_shared_memory() -> Iterator[Finding]:
    """Yield a warning if the shared memory is nearly full or small."""
    # Linux keeps shared memory in this folder. Other systems have no such folder.
    shared = Path("/dev/shm")
    if not shared.exists():
        return
    shared_mb = shutil.disk_usage(shared).free / 2**20
    if shared_mb < LEAST_SHARED_MB:
        yield Finding(
            WARN,
            "shared memory",
            f"/dev/shm has {shared_mb:.0f} MB free",
            why="loader processes hand batches over in it and die with 'Bus error' when it is full",
            cure="docker run --shm-size=8g, or fewer dataloader_num_workers",
        )


def check_address_space() -> Iterator[Finding]:
    """Yield a warning if the address space of a process is limited (ulimit -v)."""
    # The limit in force, and the highest limit that could be set, which does not matter here.
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield Finding(
            WARN,
            "address space",
            f"limited to {limit / 1e9:.1f} GB",
            why="torch maps several GB of files, CUDA far more; programs abort or crash at the "
            "limit",
            cure="ulimit -v unlimited",
        )

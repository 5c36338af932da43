"""Make the process group of torch, through which the ranks exchange tensors.

    init_dist         makes the group, with the backend of the device: NCCL for CUDA, gloo for CPUs
    launch_of_group   reads rank and world size from a group that another library has made before

When `init_dist` begins, all ranks are connected to the store, and each rank knows that the others
have arrived (utils/dist/rendezvous.py).

What must stay: the variables of torchrun in the environment, because libraries and scripts of users
read them. The order of the requests to the store must stay equal on all ranks.

Tests: tests/dist/test_dist.py, tests/parts/utils/test_gpu.py, tests/stories/test_launch.py
(test_a_process_group_that_is_there_already_is_used_then_left).
"""

import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from utils import device as devices
from utils.dist import gpu
from utils.dist.identity import get_device
from utils.dist.open_store import is_loopback_name
from utils.dist.state import RUN, LaunchInfo


def init_dist(timeout_s: float = 1800) -> None:
    """Make the process group, with the backend of the device.

    Collective: every rank must call it, within the block of `utils_dist.ranks`.

    timeout_s: time-out of every collective, in seconds. NCCL_TIMEOUT in the environment takes
        precedence. The default equals the default of the option dist_timeout_s
        (utils/options/models.py).

    Raises DistError if this machine has GPUs that torch cannot use, or if two ranks have the same
    GPU.
    """
    gpu.require_usable_gpus()
    launch = RUN.launch
    device = get_device()
    gpu.require_kernels(device)  # kernels are the programs of torch for a kind of GPU
    if launch.world_size == 1:
        return
    RUN.timeout_s = launch.timeout_s or timeout_s  # launch.timeout_s is NCCL_TIMEOUT, 0 if not set
    backend = devices.backend(device)
    if device.type != "cpu":
        devices.make_current(device)
        # Note in the store that this rank has this GPU. If another rank has noted it, this raises.
        gpu.claim(RUN.store, launch.rank, gpu.identity(device))

    _set_launch_variables(launch)
    # NCCL exchanges its ids through the store, and a slow rank may come late. So requests to the
    # store may now take longer than the 10 s that were allowed at the start (open_store.py).
    RUN.store.set_timeout(timedelta(seconds=RUN.timeout_s))
    # If another library has made the process group before (`launch_of_group`), use this group.
    if not dist.is_initialized():
        # With a device, NCCL connects at once, and not at the first collective.
        device_of_group = device if gpu.is_cuda(device) else None
        dist.init_process_group(
            backend,
            store=PrefixStore("group", RUN.store),
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=RUN.timeout_s),
            device_id=device_of_group,
        )
    _print_setup(launch)


def _set_launch_variables(launch: LaunchInfo) -> None:
    """Set the variables of torchrun in the environment of this process.

    Scripts, libraries and DDP itself read these variables. Some launchers, e.g. Slurm, set none of
    them.
    """
    os.environ["RANK"] = str(launch.rank)
    os.environ["LOCAL_RANK"] = str(launch.local_rank)
    os.environ["WORLD_SIZE"] = str(launch.world_size)
    os.environ["MASTER_ADDR"] = launch.master_addr
    os.environ["MASTER_PORT"] = str(launch.master_port)
    if is_loopback_name(launch.master_addr):
        # All ranks are on this host, so gloo uses the loopback network "lo", which no other host
        # reaches.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _print_setup(launch: LaunchInfo) -> None:
    """Print which rank this is, and where the ranks have met."""
    line = "=" * 40
    text = (
        f"{line}\nDistributed Training Setup\n{line}\n"
        f"Backend: {dist.get_backend()}\nWorld Size: {launch.world_size}\nRank: {launch.rank}\n"
        f"Local Rank: {launch.local_rank}\nMaster: "
        f"{launch.master_addr}:{launch.master_port}\n{line}\n"
    )
    with suppress(OSError):  # the output may go to a full disk
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), text.encode())  # one write, so that ranks do not interleave


def launch_of_group(launch: LaunchInfo) -> LaunchInfo:
    """Return the launch for a process group that another library has made before.

    Collective: every rank must call it.

    The result has rank and world size of the process group, and a port that rank 0 chooses. Local
    rank and time limits stay as in `launch`. Test:
    test_a_process_group_that_is_there_already_is_used_then_left.

    launch: what the environment says of this process.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return launch  # a single process needs no store
    # The watchdog needs a store of this program, at a port that nobody else uses. So rank 0 finds a
    # free port, and sends its number to the other ranks by `dist.broadcast`.
    #
    # The tensor for the number must lie on a device that the backend of the group can send from:
    # the device of this rank if the backend is made for this device, or else the CPU. E.g. it is
    # the CPU for gloo on a machine with GPUs.
    own_device = get_device()
    device = torch.device("cpu")
    if dist.get_backend() == devices.backend(own_device):
        device = torch.device(own_device.type)
    port = torch.zeros(1, dtype=torch.int64, device=device)
    if dist.get_rank() == 0:
        # For port 0, the system takes any free port. The port is free again until the store is
        # opened. If another program takes it meanwhile, the start ends with an error that names it.
        with socket.socket() as free_socket:
            free_socket.bind(("", 0))
            _, free_port = free_socket.getsockname()
            port[0] = free_port
    dist.broadcast(port, 0)
    return replace(
        launch,
        mode="platform",
        rank=dist.get_rank(),
        world_size=world_size,
        master_addr=launch.master_addr or os.environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=int(port),
        is_store_of_agent=False,  # rank 0 opens the store
    )

"""Say which rank this process is, and which device it computes on.

Each function reads RUN.launch, which `utils_dist.ranks` sets when the ranks start. Before the
start, and in a program without ranks, the answers are as in a single process: rank 0 of 1.

What must stay: rank 0 exists in every run, because only rank 0 writes the files of a run.

Test: test_collectives_give_the_same_on_every_rank (tests/dist/test_dist.py).
"""

import torch

from utils import device as devices
from utils.dist.state import RUN


def get_rank() -> int:
    """Return the number of this rank: 0 ... world size - 1."""
    return RUN.launch.rank


def get_world_size() -> int:
    """Return the number of ranks."""
    return RUN.launch.world_size


def is_main_process() -> bool:
    """Return whether this is rank 0, which writes the files of a run."""
    return RUN.launch.rank == 0


def get_device() -> torch.device:
    """Return the accelerator of this rank, or the CPU if there is none."""
    return devices.device_of_rank(RUN.launch.local_rank)

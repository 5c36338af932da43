"""How every program of one or several ranks starts and ends."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from utils import utils_dist
from utils.dist.launch import node_variables, read_launch
from utils.dist.process import open_closed_streams
from utils.options.load import shown_argument
from utils.options.models import WatchdogOptions
from utils.run.logger import setup_logging


@contextmanager
def ranks(log: bool = True) -> Iterator[None]:
    """Wrap the whole program in it: the ranks meet, and end together with one message and one exit code. Collective.

    Where a platform has started one process for all GPUs of a node, torchrun takes its place.

    Read the options next, within `utils_dist.all_ranks_or_none`, then call `begin`. Without options: `init_dist`.
    log: set up the log of a run; tools that print their results need none.
    """
    open_closed_streams()
    with utils_dist.exit_together():
        gpu_count = torch.cuda.device_count()
        if node := node_variables(os.environ, gpu_count):
            torchrun = str(Path(__file__).parents[2] / "scripts/torchrun_quiet.py")
            os.execve(sys.executable, [sys.executable, "-u", torchrun, *sys.argv], os.environ | node)
        launch = read_launch(os.environ, gpu_count, shlex.join(["python", "-u", *map(shown_argument, sys.argv)]))
        if log:
            setup_logging(launch.rank)
        utils_dist.join(launch)
        yield


def begin(budgets: WatchdogOptions | None = None, timeout_s: float = 1800, digest: str = "") -> None:
    """Make the process group, check that all ranks have the same options, and start the watchdog. Collective.

    budgets: of the watchdog; None for a test without an option file. timeout_s: of a collective, at least. digest: of
    all options.
    """
    utils_dist.init_dist(budgets.timeout_s(timeout_s) if budgets else timeout_s)
    utils_dist.check_same_on_all_ranks("the options", digest)
    # A single process without options may be as slow as it likes: no other rank waits for it.
    if budgets or utils_dist.get_world_size() > 1:
        utils_dist.watch(budgets or WatchdogOptions())

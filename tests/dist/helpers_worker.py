"""One rank of tests/dist/test_dist.py: runs the case that its first argument names."""

from __future__ import annotations

import json
import os
import sys
import time

import torch

from utils import utils_dist, utils_process
from utils.utils_errors import DataError, OptionError
from utils.utils_launch import read_launch


def collectives() -> None:
    rank = utils_dist.get_rank()
    utils_dist.barrier()
    mean = utils_dist.all_reduce_mean(torch.tensor([1.0, 10.0]) * (rank + 1))
    sums = utils_dist.reduce_sums({"b": 0.1, "a": rank} if rank % 2 else {"a": rank, "b": 0.1})
    gathered = utils_dist.gather_objects({"rank": rank})
    with utils_dist.all_ranks_or_none():
        utils_dist.check_same_on_all_ranks("the seeds", 7)
    print(json.dumps({"mean": mean.tolist(), "sums": sums, "gathered": gathered}))


def different_values() -> None:
    utils_dist.check_same_on_all_ranks("the seeds", utils_dist.get_rank() // 2)


def same_option_error() -> None:
    with utils_dist.all_ranks_or_none():
        raise OptionError("unknown option x", "file", "y", "z")


def error_on_last_rank() -> None:
    with utils_dist.all_ranks_or_none():
        if utils_dist.get_rank() == utils_dist.get_world_size() - 1:
            raise DataError("clip 7 is short", "7.dat", "100 bytes", "copy it again")


def exception_while_others_stand_in_a_collective() -> None:
    if utils_dist.get_rank() == utils_dist.get_world_size() - 1:
        raise ValueError("a plain mistake")
    utils_dist.barrier()


def exception_while_others_compute() -> None:
    if utils_dist.get_rank() == 0:
        raise DataError("clip 8 is short", "8.dat", "100 bytes", "copy it again")
    time.sleep(600)


def barrier_without_the_last_rank() -> None:
    if utils_dist.get_rank() == utils_dist.get_world_size() - 1:
        time.sleep(600)
    utils_dist.barrier()


def main() -> None:
    with utils_dist.one_door():
        launch = read_launch(os.environ)
        utils_dist.init_dist(launch, 60)
        globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
    utils_process.end(0)

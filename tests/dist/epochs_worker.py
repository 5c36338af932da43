"""main_train_vrt.py on one rank, with the moments of its epoch turns; rank 1 takes long to start its loader.

    epochs_worker.py ARGUMENTS OF main_train_vrt.py

Prints {"loader": [...], "progress": [...]}: when the loader of each epoch had started, and when its progress was shown,
in seconds of the host's one monotonic clock.
"""

import json
import sys
import time
from typing import Any

import main_train_vrt
from data.loader import TrainLoader
from tests.dist import one_conv  # noqa: F401 - its network
from utils import utils_dist
from utils.dist import process
from utils.run.progress import RunProgress

SLOW_S = 0.3

moments: dict[str, list[float]] = {"loader": [], "progress": []}
start, begin_epoch = TrainLoader.start, RunProgress.begin_epoch


def slow_start(self: TrainLoader, *position: int) -> Any:
    iterator = start(self, *position)
    time.sleep(SLOW_S if utils_dist.get_rank() == 1 else 0)
    moments["loader"].append(time.monotonic())
    return iterator


def noted_epoch(self: RunProgress, *position: int) -> None:
    moments["progress"].append(time.monotonic())
    begin_epoch(self, *position)


if __name__ == "__main__":
    TrainLoader.start, RunProgress.begin_epoch = slow_start, noted_epoch
    code = main_train_vrt.main(sys.argv[1:])
    print(json.dumps(moments), flush=True)
    process.end(code)

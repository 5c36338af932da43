"""One rank of a small DDP training that is struck by one fault: the subject of the stall trials.

    stall_worker.py KIND RANK STEP STALL_S [MINUTES]

KIND "none" trains for MINUTES instead and prints what the watchdog saw.
"""

import json
import os
import re
import signal
import sys
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from utils import utils_dist
from utils.dist import watchdog
from utils.dist.process import die_with_parent
from utils.errors import DataError
from utils.options.models import WatchdogOptions

KIND, RANK, STEP, STALL_S = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
MINUTES = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0


def strike(kind: str, step: int) -> None:
    if kind != KIND or utils_dist.get_rank() != RANK or step != STEP:
        return
    os.write(1, f"FAULT at {time.time()}\n".encode())
    if kind in ("barrier", "forward", "rank0"):
        time.sleep(3600)
    elif kind == "gil":
        re.match(r"(a+)+$", "a" * 64 + "b")  # C code that never lets go
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exception":
        raise DataError("clip 7 is short", "7.dat", "100 bytes", "copy it again")


class Numbers(Dataset):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        if KIND == "worker" and os.environ.get("RANK", "0") == str(RANK) and index == STEP:
            os.write(1, f"FAULT at {time.time()}\n".encode())
            time.sleep(3600)
        return torch.full((8,), float(index % 7))


def main() -> None:
    with utils_dist.ranks(log=False):
        utils_dist.begin(WatchdogOptions(stall_s=STALL_S, start_s=60, validate_s=1, save_s=1), 600)
        train()


def train() -> None:
    net: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    net = DistributedDataParallel(net) if utils_dist.get_world_size() > 1 else net
    # Its process goes with its rank, as those of data/loader.py do.
    loader = iter(
        DataLoader(
            Numbers(), num_workers=1, prefetch_factor=1, worker_init_fn=lambda _: die_with_parent()
        )
    )
    started, longest, last = time.monotonic(), 0.0, time.monotonic()
    step = 0
    while (time.monotonic() - started < 60 * MINUTES) if MINUTES else step < 100:
        watchdog.phase("data", step)
        batch = next(loader)
        watchdog.phase("forward", step)
        for kind in ("forward", "gil", "stop", "kill", "exception"):
            strike(kind, step)
        loss = net(batch).sum()
        watchdog.phase("backward", is_sync=True)
        loss.backward()
        watchdog.phase("print", step)
        strike("rank0", step)
        step += 1
        if step % 5 == 0:
            watchdog.phase("validate", step)
            strike("barrier", step)
            utils_dist.barrier()
        if MINUTES:
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if any(utils_dist.gather_objects(time.monotonic() - started >= 60 * MINUTES)):
                break
        else:
            time.sleep(0.02)
    print(json.dumps({"steps": step, "longest_step_s": round(longest, 2)}), flush=True)


if __name__ == "__main__":
    main()

"""Train one rank of a small DDP training, in which one fault strikes. The stall trials run it.

    stall_worker.py KIND RANK STEP STALL_S [MINUTES]

KIND is a kind of fault, see `strike` and `Numbers`. RANK and STEP say where the fault strikes, and
STALL_S is the option watchdog.stall_s. Just before the fault happens, the rank prints "FAULT at
TIME". With MINUTES, KIND is "none": the ranks train for this time without a fault, and print the
number of steps and the longest step.

Free to change: the network and the samples. What must stay: "FAULT at", the function names `strike`
and `__getitem__`, and "clip 7 is short", because tests/faults/stalls.py looks for these texts.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from utils import utils_dist
from utils.dist import watchdog
from utils.dist.process import die_with_parent
from utils.errors import DataError
from utils.options.watchdog_options import WatchdogOptions

KIND = sys.argv[1]
RANK = int(sys.argv[2])
STEP = int(sys.argv[3])
STALL_S = float(sys.argv[4])
MINUTES = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0

FOREVER_S = 3600  # seconds for which a hanging rank sleeps. This is longer than any trial
STEPS = 100  # length of a run without MINUTES
STEP_S = 0.02  # pause after each step of a run without MINUTES
EXCHANGE_STEPS = 5  # the ranks meet at a barrier every fifth step, as in a validation


def say_fault() -> None:
    """Print the time of the fault at once, without the buffer of stdout."""
    os.write(1, f"FAULT at {time.time()}\n".encode())


def wait_in_c_code() -> None:
    """Wait forever in C code that holds Python's lock (GIL), without work for the processor.

    The code waits for a mutex that nobody releases. A signal ends a `sleep`, but does not end this
    wait. Functions of ctypes.PyDLL keep Python's lock. Functions of ctypes.CDLL would release it.
    """
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)  # zeros: a free mutex, of 40 bytes on most machines
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def strike(kind: str, step: int) -> None:
    """Let a fault of this kind happen, if it is the fault of this trial, rank and step.

    The name of this function is in the stack that the watchdog prints, and the trials look for it.
    """
    is_struck = utils_dist.get_rank() == RANK or kind == "gil on all ranks"
    if kind != KIND or not is_struck or step != STEP:
        return
    say_fault()
    if kind in ("barrier", "forward", "rank0"):
        time.sleep(FOREVER_S)
    elif kind in ("gil", "gil on all ranks"):
        wait_in_c_code()
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exception":
        raise DataError("clip 7 is short", "7.dat", "100 bytes", "copy it again")


class Numbers(Dataset):
    """Samples of eight equal numbers, 0 to 6. The kind "worker" sleeps at index STEP."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Tensor:
        # A loader process is no rank, but it has the environment variables of its rank. So the
        # variable RANK tells to which rank the loader process belongs.
        is_struck_rank = os.environ.get("RANK", "0") == str(RANK)
        if KIND == "worker" and is_struck_rank and index == STEP:
            say_fault()
            time.sleep(FOREVER_S)
        return torch.full((8,), float(index % 7))


def main() -> None:
    """Train under the watchdog, as main_train_vrt.py does."""
    with utils_dist.ranks(log=False):
        # A trial is about STALL_S, so STALL_S must hold in the phase "validate", too. A limit below
        # STALL_S counts as STALL_S, so the smallest value, 1, is given for this phase. The other
        # two limits are never reached. 60 s are enough for the imports on a busy machine. The
        # watchdog ends the rank long before a connection times out after 600 s.
        limits = WatchdogOptions(stall_s=STALL_S, start_s=60, validate_s=1, save_s=1)
        utils_dist.begin(limits, timeout_s=600)
        train()


def batches() -> Iterator[Tensor]:
    """Return batches of one loader process. It ends with its rank, as in the product."""
    loader = DataLoader(
        Numbers(), num_workers=1, prefetch_factor=1, worker_init_fn=lambda _: die_with_parent()
    )
    return iter(loader)


def train() -> None:
    """Train for STEPS steps, or for MINUTES. Prints the number of steps and the longest step."""
    net: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    if utils_dist.get_world_size() > 1:
        net = DistributedDataParallel(net)
    loader = batches()
    begun_at = time.monotonic()
    last_at = begun_at
    longest_s = 0.0
    step = 0
    is_over = False
    while not is_over:
        train_step(net, loader, step)
        step += 1
        if step % EXCHANGE_STEPS == 0:
            watchdog.phase("validate", step)
            strike("barrier", step)
            utils_dist.barrier()
        if MINUTES:
            now = time.monotonic()
            longest_s = max(longest_s, now - last_at)
            last_at = now
            # The clocks of the ranks differ a little. All ranks end once the time of one rank is
            # over, because a rank that ends alone would leave the other ranks waiting.
            is_own_time_over = now - begun_at >= 60 * MINUTES
            is_over = any(utils_dist.gather_objects(is_own_time_over))
        else:
            time.sleep(STEP_S)
            is_over = step == STEPS
    print(json.dumps({"steps": step, "longest_step_s": round(longest_s, 2)}), flush=True)


def train_step(net: nn.Module, loader: Iterator[Tensor], step: int) -> None:
    """Take one step. Its phases have the names of a real training. The fault may strike in it."""
    watchdog.phase("data", step)
    batch = next(loader)
    watchdog.phase("forward", step)
    for kind in ("forward", "gil", "gil on all ranks", "stop", "kill", "exception"):
        strike(kind, step)
    loss = net(batch).sum()
    # is_sync: DDP exchanges gradients in backward, so backward waits for the other ranks.
    watchdog.phase("backward", step, is_sync=True)
    loss.backward()
    watchdog.phase("print", step)
    strike("rank0", step)


if __name__ == "__main__":
    main()

"""One rank of tests/dist/test_dist.py: runs the case that its first argument names.

A case is a function of this page, e.g. `collectives`. Before it, the ranks meet, unless the case
does this itself. Several cases make one rank fail or stand still. The test then reads what the
ranks say, and their exit codes.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from torch.distributed import DistBackendError

from utils import utils_dist
from utils.dist import process, watchdog
from utils.dist.leave import leave
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.options.watchdog_options import WatchdogOptions

# What torch says when NCCL, the library by which GPUs exchange tensors, has failed. Tests have no
# GPUs, so the cases raise these errors themselves.
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:94, {}\n"
    "Last error:\n{}"
)
SYSTEM = (
    "unhandled system error\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed."
)
REMOTE = (
    "remote process exited\nncclRemoteError: A call failed possibly due to a remote process "
    "exiting prematurely."
)
CLOSED = "socketProgress: Connection closed by remote peer"
FULL = "/dev/shm/nccl-x, error: No space left on device"


def collectives() -> None:
    """Call each collective once, and print what the rank got."""
    rank = utils_dist.get_rank()
    assert utils_dist.is_main_process() == (rank == 0)
    assert rank < utils_dist.get_world_size()
    assert RUN.launch.local_rank == int(os.environ.get("LOCAL_RANK", 0))
    utils_dist.barrier()
    gathered = utils_dist.gather_objects({"rank": rank})
    with utils_dist.all_ranks_or_none():
        utils_dist.check_same_on_all_ranks("the seeds", value=7)
    store = RUN.store
    print(json.dumps({
        "gathered": gathered, "store_s": store.timeout.total_seconds() if store else 60,
        "network": os.environ.get("GLOO_SOCKET_IFNAME"),
    }))  # fmt: skip


def four_beats() -> None:
    """Live under the watchdog for two seconds, in which each rank writes four beats."""
    utils_dist.begin(WatchdogOptions(stall_s=5, start_s=60, validate_s=1, save_s=1), timeout_s=60)
    time.sleep(2)
    utils_dist.barrier()
    print(json.dumps({"pid": os.getpid()}))


def work() -> None:
    """Take steps of one collective each until the file exists that the second argument names."""
    utils_dist.begin(WatchdogOptions(stall_s=4, start_s=60, validate_s=4, save_s=4), timeout_s=60)
    print("at work", flush=True)
    step = 0
    is_over = False
    while not is_over:
        step += 1
        watchdog.phase("compute", step)
        time.sleep(0.05)
        is_over = utils_dist.from_rank(source=0, obj=Path(sys.argv[2]).exists())


def write_much() -> None:
    """Write 200 kB to a terminal that is paused meanwhile, in a phase of at most two seconds."""
    utils_dist.begin(WatchdogOptions(stall_s=2), timeout_s=60)
    for step in range(200):
        watchdog.phase("compute", step)
        print(f"line {step} " + "x" * 1000, flush=True)


def nccl_of_a_peer_and_of_its_own_host() -> None:
    """Rank 0 hears that a peer has gone before rank 1 tells why."""
    if utils_dist.get_rank() == 0:
        raise DistBackendError(NCCL.format(REMOTE, CLOSED))
    time.sleep(1)
    raise DistBackendError(NCCL.format(SYSTEM, FULL))


def nccl_of_a_peer() -> None:
    """Rank 0 hears that a peer has gone. The peer itself says nothing for ten minutes."""
    if utils_dist.get_rank() == 0:
        raise DistBackendError(NCCL.format(REMOTE, CLOSED))
    time.sleep(600)


def second_life() -> None:
    """Meet the other ranks, and say so.

    Rank 1 died in its first life, before it met the others, see `main`. The second argument is a
    file that it left behind, so that its second life knows of the first.
    """
    utils_dist.barrier()
    print(f"second life of rank {utils_dist.get_rank()}", flush=True)


def different_values() -> None:
    """Compare a value that differs between pairs of ranks."""
    utils_dist.check_same_on_all_ranks("the seeds", utils_dist.get_rank() // 2)


def same_option_error() -> None:
    """Fail on all ranks with the same error, which must be reported once."""
    with utils_dist.all_ranks_or_none():
        raise OptionError("unknown option x", "file", "y", "z")


def error_on_last_rank() -> None:
    """Fail on the last rank, in a block that all ranks leave together."""
    with utils_dist.all_ranks_or_none():
        if utils_dist.get_rank() == utils_dist.get_world_size() - 1:
            raise DataError("clip 7 is short", "7.dat", "100 bytes", "copy it again")


def two_different_errors() -> None:
    """Fail on ranks 1 and 2 with two errors, in a block that all ranks leave together."""
    with utils_dist.all_ranks_or_none():
        if utils_dist.get_rank() == 1:
            raise DataError("clip 9 is short", "9.dat", "100 bytes", "copy it again")
        if utils_dist.get_rank() == 2:
            raise OptionError("unknown option y", "file", "y", "z")


def exception_while_others_stand_in_a_collective() -> None:
    """Fail on the last rank, while the other ranks wait for it."""
    if utils_dist.get_rank() == utils_dist.get_world_size() - 1:
        raise ValueError("a plain mistake")
    utils_dist.barrier()


def exception_while_others_compute() -> None:
    """Fail on rank 0, while the other ranks compute for ten minutes and notice nothing."""
    if utils_dist.get_rank() == 0:
        raise DataError("clip 8 is short", "8.dat", "100 bytes", "copy it again")
    time.sleep(600)


def two_threads_leave() -> None:
    """Let two threads of rank 1 end the process at the same time.

    Rank 0 waits until this process is gone, and tells how often it signed off.
    """
    pids = utils_dist.gather_objects(os.getpid())
    if utils_dist.get_rank():
        for _ in range(2):
            threading.Thread(target=leave, args=(3, RUN.store)).start()
        time.sleep(600)
    while Path(f"/proc/{pids[1]}").exists():
        time.sleep(0.01)
    print(json.dumps({"signed off": RUN.store.add("left", 0)}), flush=True)
    raise DataError("the end", "x", "y", "z")


def barrier_without_the_last_rank() -> None:
    """Wait for the last rank, which does not come for ten minutes."""
    if utils_dist.get_rank() == utils_dist.get_world_size() - 1:
        time.sleep(600)
    utils_dist.barrier()


def main() -> None:
    """Run the case of the first argument."""
    # The first life of rank 1 in `second_life`.
    if (
        sys.argv[1] == "second_life"
        and os.environ["RANK"] == "1"
        and not Path(sys.argv[2]).exists()
    ):
        Path(sys.argv[2]).touch()
        sys.exit(1)
    with utils_dist.ranks(log=False):
        # These cases meet by `begin`, which also starts the watchdog.
        if sys.argv[1] not in ("four_beats", "work", "write_much"):
            utils_dist.init_dist(timeout_s=60)
        globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
    process.end(0)

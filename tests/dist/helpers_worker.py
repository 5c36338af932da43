"""One rank of a test of several ranks: runs the case that its first argument names.

    helpers_worker.py CASE [FILE]

A case is a function of this module, e.g. `collectives`. Before the case, `main` makes the process
group, unless the case does this itself (BEGINS_ITSELF). Several cases make one rank fail or stand
still. The test reads what the ranks print, and their exit codes.

A new case is a new function here. A test gives its name as an argument. tests/dist/test_dist.py,
test_trust.py and tests/faults/test_startup.py run the present cases. These tests look for the texts
of the errors, and the time limits of the tests depend on the sleeps. So if you change a text or a
sleep, change the test, too.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch.distributed import DistBackendError

from utils import utils_dist
from utils.dist import process, watchdog
from utils.dist.leave import leave
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.options.watchdog_options import WatchdogOptions

# What torch says when NCCL, the library by which GPUs exchange tensors, has failed. Tests have no
# GPUs, so the cases raise errors with these texts themselves.
NCCL_PLACE = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:94, "
# The error on a rank whose peer has gone.
NCCL_PEER_HAS_GONE = (
    f"{NCCL_PLACE}remote process exited\n"
    "ncclRemoteError: A call failed possibly due to a remote process exiting prematurely.\n"
    "Last error:\n"
    "socketProgress: Connection closed by remote peer"
)
# The error on the rank that has the cause.
NCCL_DISK_IS_FULL = (
    f"{NCCL_PLACE}unhandled system error\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"
    "Last error:\n"
    "/dev/shm/nccl-x, error: No space left on device"
)
TEN_MINUTES_S = 600  # longer than every limit of a test


def collectives() -> None:
    """Call each collective once, and print what the rank got."""
    rank = utils_dist.get_rank()
    assert utils_dist.is_main_process() == (rank == 0)
    assert rank < utils_dist.get_world_size()
    assert RUN.launch.local_rank == int(os.environ.get("LOCAL_RANK", 0))
    utils_dist.barrier()
    gathered = utils_dist.gather_objects({"rank": rank})
    # Every second value of a tensor, so that the values have gaps between them in memory.
    state = {"weights": torch.arange(6.0)[::2]} if rank == 0 else None
    received = utils_dist.state_from_rank_0(state)
    with utils_dist.all_ranks_or_none():
        utils_dist.check_same_on_all_ranks("the seeds", value=7)
    # A single rank has no store. It prints 60, the limit of the store of several ranks, so that the
    # test can expect the same number of all ranks.
    store_s = RUN.store.timeout.total_seconds() if RUN.store else 60
    network = os.environ.get("GLOO_SOCKET_IFNAME")  # set by init_dist, of several ranks
    values = {
        "gathered": gathered,
        "weights": received["weights"].tolist(),
        "store_s": store_s,
        "network": network,
    }
    print(json.dumps(values))


def four_beats() -> None:
    """Live under the watchdog for two seconds. A rank beats each 0.5 s, so it writes four beats."""
    utils_dist.begin(WatchdogOptions(stall_s=5, start_s=60, validate_s=1, save_s=1), timeout_s=60)
    time.sleep(2)
    utils_dist.barrier()
    print(json.dumps({"pid": os.getpid()}))


def work() -> None:
    """Take steps of one collective each, until the file of the second argument exists."""
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
    """Write 200 kB to a terminal that is paused meanwhile. A phase may last at most two seconds."""
    utils_dist.begin(WatchdogOptions(stall_s=2), timeout_s=60)
    for step in range(200):
        watchdog.phase("compute", step)
        print(f"line {step} " + "x" * 1000, flush=True)


def nccl_of_a_peer_and_of_its_own_host() -> None:
    """Rank 0 hears that a peer has gone before rank 1 tells why."""
    if utils_dist.get_rank() == 0:
        raise DistBackendError(NCCL_PEER_HAS_GONE)
    time.sleep(1)
    raise DistBackendError(NCCL_DISK_IS_FULL)


def nccl_of_a_peer() -> None:
    """Rank 0 hears that a peer has gone. The peer itself says nothing for ten minutes."""
    if utils_dist.get_rank() == 0:
        raise DistBackendError(NCCL_PEER_HAS_GONE)
    time.sleep(TEN_MINUTES_S)


def second_life() -> None:
    """Meet the other ranks, and print this. Before, rank 1 has died once (`end_first_life`)."""
    utils_dist.barrier()
    print(f"second life of rank {utils_dist.get_rank()}", flush=True)


def end_first_life(mark: Path) -> None:
    """End rank 1 before it meets the others, unless it has died once.

    mark: a file that rank 1 makes before its first end. If the file exists, rank 1 goes on.
    """
    if os.environ["RANK"] == "1" and not mark.exists():
        mark.touch()
        sys.exit(1)


def different_values() -> None:
    """Compare a value that is 0 on ranks 0 and 1, and 1 on rank 2."""
    utils_dist.check_same_on_all_ranks("the seeds", utils_dist.get_rank() // 2)


def same_option_error() -> None:
    """Fail on all ranks with the same error. It must be reported once."""
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
    time.sleep(TEN_MINUTES_S)


def two_threads_leave() -> None:
    """Let two threads of rank 1 end the process at the same time.

    Rank 0 waits until this process is gone, and tells how often it signed off.
    """
    pids = utils_dist.gather_objects(os.getpid())
    if utils_dist.get_rank() == 1:
        exit_code = 3
        for _ in range(2):
            threading.Thread(target=leave, args=(exit_code, RUN.store)).start()
        time.sleep(TEN_MINUTES_S)
    while Path(f"/proc/{pids[1]}").exists():
        time.sleep(0.01)
    sign_offs = RUN.store.add("left", 0)  # adds nothing, and returns the counter
    print(json.dumps({"signed off": sign_offs}), flush=True)
    raise DataError("the end", "x", "y", "z")


def barrier_without_the_last_rank() -> None:
    """Wait for the last rank. It does not come for ten minutes."""
    if utils_dist.get_rank() == utils_dist.get_world_size() - 1:
        time.sleep(TEN_MINUTES_S)
    utils_dist.barrier()


# Cases that call `begin`. `begin` makes the process group, and gives the watchdog its limits of
# time. In the other cases `main` makes the group, and no phase has a limit.
BEGINS_ITSELF = ("four_beats", "work", "write_much")


def main() -> None:
    """Run the case of the first argument."""
    case = sys.argv[1]
    if case == "second_life":
        end_first_life(mark=Path(sys.argv[2]))
    with utils_dist.ranks(log=False):
        if case not in BEGINS_ITSELF:
            utils_dist.init_dist(timeout_s=60)
        function_of_case = globals()[case]
        function_of_case()


if __name__ == "__main__":
    main()
    process.end(0)

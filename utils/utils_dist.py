"""The ranks of a run: how they start, what they exchange, and how all of them end together.

A rank is one process of a run; usually it has one GPU. A program uses this module like this:

    with utils_dist.ranks():                      # the ranks meet; all end together
        with utils_dist.all_ranks_or_none():      # an error on one rank is an error on all
            opt = read_options(argv)
        utils_dist.begin(opt.watchdog, ...)       # process group, and the watchdog
        utils_dist.stop_on(*STOP_SIGNALS)         # these signals now ask for a stop
        ...
        every_rank = utils_dist.gather_objects(value)

A function marked "Collective." must be called by every rank, by all ranks in the same order. A rank
that leaves one out lets the others wait for it, until the watchdog ends the run.

In a single process there is no process group, and every function works the same.

The parts of this page: identity, start and end, collectives, agreement of the ranks, errors,
signals. The modules in utils/dist do the work below:

    launchers, platforms   which rank this is, from the variables of the environment
    rendezvous             how the ranks meet, in a key-value store
    watchdog, beats        end a run that hangs, and name the rank that stands still
    process                processes and signals of this host
    message                objects as bytes
    state                  `RUN`: what this process knows of its run

What must stay:

    the order of the collectives, and of the requests to the store: all ranks must make them in the
    same order, and every rank must reach each of them, even a rank that has nothing to send.
        test_collectives_give_the_same_on_every_rank
    an error ends all ranks, with one report and one exit code.
        test_an_error_ends_all_ranks_with_one_message_and_one_code

Free to change: the texts of errors (tests and documents quote some of them), the waits below, and
what a function does on its own rank between two collectives.

Tests: tests/dist/test_dist.py, tests/dist/test_life.py, tests/faults/test_startup.py.
"""

import logging
import os
import re
import shlex
import signal
import socket
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DistNetworkError, PrefixStore

from utils import device as devices
from utils import system
from utils.dist import gpu, message, process, rendezvous, watchdog
from utils.dist.beats import FAILURE, claim_failure, read_states, where
from utils.dist.launchers import process_count, with_standard_names
from utils.dist.platforms import node_variables, read_launch
from utils.dist.rendezvous import FailedRank, Round
from utils.dist.state import RUN, LaunchInfo
from utils.dist.store_values import Failure, ForeignValueError, State, read_state
from utils.dist.watchdog import Watchdog
from utils.errors import DistError, SpikeVRTError, StallError
from utils.logger import setup_logging
from utils.options.load import argument_without_secrets
from utils.options.models import SLOW_LIMIT_FACTORS, WatchdogOptions

logger = logging.getLogger(__name__)

# The environment variable by which a launcher gives all ranks of a start the same secret.
JOB_KEY = "SPIKEVRT_JOB_KEY"

# Exit code of a run that a signal has stopped: "temporary failure, try again" (sysexits.h).
# submit_job.sh queues the job again if it sees this code.
PREEMPTED = 75
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

# Signal -> seconds after the first signal. A second signal that comes later than this ends the rank
# at once. A second signal that comes earlier may belong to the same request: scancel sends SIGTERM
# to the step and to the job, a moment apart, and some launchers pass on the SIGINT that a terminal
# has already sent to all processes. A signal that is not listed here never ends the rank at once.
LEAST_S_BETWEEN_REQUESTS = {signal.SIGTERM: 2.0, signal.SIGINT: 0.5}

# Seconds that closing a resource may take after an error. They must be fewer than watchdog.EXIT_S,
# 8 s, within which a rank has to end after an error.
CLOSE_S = 5.0

# Seconds that a rank with a broken connection waits for the report of the rank that failed first. A
# longer wait delays the end of the run. A shorter wait could name this rank's lost connection, and
# not the error behind it.
WAIT_FOR_REPORT_S = 3.0

# Seconds that a rank waits if a watchdog reports the failure. The watchdog of this rank ends the
# rank within watchdog.EXIT_S, 8 s. So the wait is longer, and the watchdog always comes first.
WAIT_FOR_WATCHDOG_S = 10.0

# Seconds that a rank waits for lower ranks that may have failed at the same time, see
# `all_ranks_or_none`. A rank that fails later than this still ends, but a higher rank reports.
WAIT_FOR_LOWER_RANKS_S = 5.0

# Texts in the errors of gloo, NCCL and the store about another rank (a peer) that is gone or does
# not answer. The cause is then on the other rank. Other errors of NCCL, e.g. a GPU given to two
# ranks or a full /dev/shm, have their cause on this rank.
PEER_IS_GONE = re.compile(
    r"[Cc]onnection|Broken pipe|gloo/transport|Timed out waiting|wait timeout|"
    r"client socket has timed out|ncclRemoteError|remote process|communicator was aborted|"
    r"pair closure"
)


class _PeerFailed(BaseException):
    """The exception on this rank if another rank has failed. This rank ends without a message.

    It is a BaseException, so that no `except Exception` of a caller swallows it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code  # the exit code of the rank that has failed


# ---- Identity --------------------------------------------------------------------------------


def get_rank() -> int:
    """Return the number of this rank: 0 ... world size - 1."""
    return RUN.launch.rank


def get_world_size() -> int:
    """Return the number of ranks."""
    return RUN.launch.world_size


def is_main_process() -> bool:
    """Whether this is rank 0, which writes the files of a run."""
    return RUN.launch.rank == 0


def get_device() -> torch.device:
    """Return the accelerator of this rank, or the CPU if there is none."""
    return devices.device_of_rank(RUN.launch.local_rank)


# ---- Start and end ---------------------------------------------------------------------------


@contextmanager
def ranks(log: bool = True) -> Generator[None]:
    """Start the ranks, and end all of them together. The whole program runs within the block.

    Collective. At the start the ranks meet. From then on, an error on one rank ends all ranks, with
    one message and one exit code. After an error the ranks end by os._exit, because destroying a
    broken process group can block for ever.

    Callers rely on two facts: no rank is left over after the block, and RUN is empty again, so that
    a notebook may start the next run. The order of the lines in `_start`, `_end_without_error` and
    `_end_after_error` must stay; each comment says what would go wrong otherwise. Tests:
    tests/faults and tests/dist/test_life.py.

    A cloud platform may have started one process for all GPUs of a node. This process then becomes
    torchrun, which starts this program again, once for each GPU.

    Next, read the options within `all_ranks_or_none`, then call `begin`. A program without options
    calls `init_dist`.

    log: whether to set up the log of a run. Tools that print their results need no log.
    """
    process.open_closed_streams()
    try:
        # Another library, e.g. Ray Train, may have made a process group already. Then this run uses
        # that group, and the library destroys the group later.
        is_group_of_others = dist.is_initialized()
        _start(is_group_of_others, log)
        yield
        _end_without_error(is_group_of_others)
    except SystemExit:
        # The program ends on purpose, and has written why.
        _forget_run()
        raise
    except BaseException as e:
        _end_after_error(e)


def _start(is_group_of_others: bool, log: bool) -> None:
    """Find out which rank this is, and meet the other ranks. Collective. Sets the fields of RUN."""
    launch = _read_own_launch()
    if is_group_of_others:
        launch = _launch_of_group(launch)
    if log:
        setup_logging(launch.rank)
    RUN.launch = launch
    # `pop` takes the key out of the environment, so that no child process and no report has it. A
    # second run in this process finds no key there any more. It takes the key of the first run.
    RUN.job_key = os.environ.pop(JOB_KEY, "").encode() or RUN.job_key
    if launch.mode == "torchrun":
        # If somebody kills torchrun, no rank is left over.
        process.die_with_parent()
    if launch.world_size == 1:
        return
    # The watchdog writes its first beat (its record in the store) when it is made. It is made
    # before the meeting, so that every rank that has arrived has a beat.
    RUN.store = rendezvous.open_store(launch)
    RUN.watchdog = Watchdog()
    rendezvous.meet(RUN.store, launch)
    # Rank 0 and its store may be lost before the watchdog has read the first beat of rank 0. With
    # the state that is read here, the watchdog can still name rank 0.
    first_state = read_state(rank=0, value=RUN.store.get("beat/0"))
    RUN.watchdog.beats.states.setdefault(0, first_state)


def _end_without_error(is_group_of_others: bool) -> None:
    """Leave the other ranks when all have finished. Collective. Empties RUN."""
    if RUN.watchdog is not None:
        # From here on, a rank without a process is no failure for the watchdog.
        RUN.watchdog.ending = True
        barrier()  # after the barrier no rank needs another rank
        RUN.watchdog.stop()
    if dist.is_initialized() and not is_group_of_others:
        dist.destroy_process_group()
    RUN.watchdog = None
    _forget_run()


def _end_after_error(error: BaseException) -> NoReturn:
    """Report the error, unless another rank reports, and end this process with its exit code."""
    code = _report(error)
    # RUN.reported holds the error, and its traceback holds the tensors of the run. Free them.
    RUN.reported = None
    if get_world_size() > 1:
        watchdog.leave(code, RUN.store)  # ends this process
    # This is a single process, or one of several that failed before it knew its rank.
    process.write_exit_file(code)
    # If several ranks fail alike, one has claimed the report for all. The claim ends with its
    # process, so it waits for the others. Otherwise a later one would report the same error again.
    process.outlast_siblings()
    process.kill_trees()  # loader processes, for which Python's exit handlers could wait for ever
    _forget_run()
    sys.exit(code)


def _read_own_launch() -> LaunchInfo:
    """Return how the environment describes this process: its rank, the number of ranks, ...

    If a platform has started one process for all GPUs of this node, this function does not return:
    torchrun takes the place of this process.
    """
    gpu_count = devices.count()
    # What the user typed, for the advice in errors, which must show no secret.
    command = shlex.join(["python", "-u", *map(argument_without_secrets, sys.argv)])
    env = with_standard_names(os.environ, gpu_count, command)
    # `variables_for_torchrun` is empty unless this is the only process of a node with several GPUs.
    # execve replaces this program by torchrun, in the same process, so it does not return.
    variables_for_torchrun = node_variables(env, gpu_count)
    if variables_for_torchrun:
        torchrun = str(Path(__file__).parents[1] / "scripts/torchrun_quiet.py")
        arguments = [sys.executable, "-u", torchrun, *sys.argv]
        os.execve(sys.executable, arguments, os.environ | variables_for_torchrun)
    # Otherwise this process is a rank, or alone. Several ranks need /proc, e.g. to see which
    # process of the host is a rank.
    launch = read_launch(env, gpu_count, command)
    if launch.world_size > 1:
        system.refuse_ranks_without_proc()
    return launch


def begin(
    budgets: WatchdogOptions | None = None,
    timeout_s: float = 1800,
    digest: str = "",
    checks_folder: Path | None = None,
) -> None:
    """Make the process group, check that all ranks have the same options, and watch the phases.

    Collective. From now on a rank that stays too long in one phase ends the run, see
    utils.dist.watchdog.

    budgets: the options `watchdog`, or None for a test without an option file.
    timeout_s: least time-out of a collective, in seconds.
    digest: a digest of all options, e.g. "3f9a0c12b4de". It must be equal on all ranks.
    checks_folder: folder in which results of checks of the data are kept for later runs, or None.
    """
    RUN.checks_folder = checks_folder
    is_single = get_world_size() == 1
    # A test in one process without an option file needs no watchdog: no other rank waits for it,
    # and the user has set no limits.
    needs_watchdog = budgets is not None or not is_single
    if budgets is None:
        budgets = WatchdogOptions()  # the default limits
    # `budgets.timeout_s` makes the time-out of the process group longer than all limits of the
    # watchdog, because only the watchdog can name the rank that stands still. The user's
    # NCCL_TIMEOUT takes precedence and may be shorter, see `_fitted_to_timeout`.
    init_dist(budgets.timeout_s(timeout_s))
    check_same_on_all_ranks("the options", digest)
    if not needs_watchdog:
        return
    if not is_single:
        budgets = _fitted_to_timeout(budgets)
    if RUN.watchdog is None:  # a single process; with several ranks, `ranks` has made a watchdog
        RUN.watchdog = Watchdog()
    RUN.watchdog.watch(budgets)


def _fitted_to_timeout(budgets: WatchdogOptions) -> WatchdogOptions:
    """Return the limits of the watchdog, fitted to the time-out of the process group.

    A user may have set this time-out by NCCL_TIMEOUT. If it came before a limit of the watchdog,
    the process group would end the run, and it cannot name the rank that stands still.

    Raises DistError if the time-out would always come before the watchdog
    (test_a_time_out_of_collectives_that_comes_before_the_watchdog_is_refused). Logs a warning if
    the time-out would come first in slow phases only.

    budgets: the options `watchdog`, in seconds. `stall_s` is the limit of most phases. start_s,
        validate_s and save_s (the keys of SLOW_LIMIT_FACTORS) are the limits of the slow phases.
    """
    # launch.timeout_s is NCCL_TIMEOUT if the user has set it. RUN.timeout_s is the time-out of the
    # process group.
    if RUN.launch.timeout_s:
        budgets = _raised_to_timeout(budgets)

    # Find the limits that are not shorter than the time-out. For them, the time-out comes first.
    late_limits = []
    for name in ("stall_s", *SLOW_LIMIT_FACTORS):
        limit_s = budgets.limit(name)
        if limit_s >= RUN.timeout_s:
            late_limits.append(f"{name} is {limit_s:g} s")
    if not late_limits:
        return budgets
    limits_in_words = ", ".join(late_limits)
    what = f"watchdog: {limits_in_words}; the time-out of the process group is {RUN.timeout_s:g} s"
    if budgets.stall_s >= RUN.timeout_s:
        raise DistError(
            what=what,
            where="NCCL_TIMEOUT",
            expected="the watchdog first: only it can say which rank stands still, and where",
            do="raise or unset NCCL_TIMEOUT, or lower watchdog.stall_s",
        )
    if is_main_process():
        logger.warning("%s: a rank that takes so long is ended without a name", what)
    return budgets


def _raised_to_timeout(budgets: WatchdogOptions) -> WatchdogOptions:
    """Return the limits of the watchdog, with longer limits of the slow phases. Logs all limits.

    A user sets NCCL_TIMEOUT if a rank may be slow while the other ranks wait for it. So each limit
    of a slow phase becomes at least 90 % of the time-out. A larger share would leave the watchdog
    too little time to come first. A limit that the user has set (not None) stays. Test:
    test_a_longer_time_out_of_collectives_makes_the_limits_of_the_watchdog_longer.
    """
    raised_limits = {}
    for name in SLOW_LIMIT_FACTORS:
        if getattr(budgets, name) is None:
            raised_limits[name] = max(budgets.limit(name), 0.9 * RUN.timeout_s)
    budgets = budgets.model_copy(update=raised_limits)
    limits = ", ".join(
        f"{name} {budgets.limit(name):g}" for name in ("stall_s", *SLOW_LIMIT_FACTORS)
    )
    logger.info(
        "NCCL_TIMEOUT is %g s; the limits of the watchdog are then: %s", RUN.timeout_s, limits
    )
    return budgets


def init_dist(timeout_s: float = 1800) -> None:
    """Make the process group, with the backend of the device. Called within `ranks`. Collective.

    timeout_s: time-out of every collective. NCCL_TIMEOUT in the environment, in seconds, takes
        precedence.

    Raises DistError if this machine has GPUs that torch cannot use, or if two ranks have the same
    GPU.
    """
    gpu.require_usable_gpus()
    launch = RUN.launch
    device = get_device()
    gpu.require_kernels(device)
    if launch.world_size == 1:
        return
    RUN.timeout_s = launch.timeout_s or timeout_s
    backend = devices.backend(device)
    if device.type != "cpu":
        devices.make_current(device)
        gpu.claim(RUN.store, launch.rank, gpu.identity(device))

    _set_launch_variables(launch)
    # NCCL exchanges its ids through the store, and slow ranks may come late. The time-out that the
    # store has had so far, 10 s, would be too short.
    RUN.store.set_timeout(timedelta(seconds=RUN.timeout_s))
    if not dist.is_initialized():
        dist.init_process_group(
            backend,
            store=PrefixStore("group", RUN.store),
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=RUN.timeout_s),
            device_id=device if gpu.is_cuda(device) else None,  # NCCL connects at once with it
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
    if rendezvous.is_loopback_name(launch.master_addr):
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


def _forget_run() -> None:
    """Forget a run that has ended, and stop its watchdog.

    The process may live on, e.g. in a notebook. A watchdog that is not stopped would take such a
    process for a run that hangs, and end it. A new field of RUN that belongs to one run needs a
    line here.
    """
    if RUN.watchdog is not None:
        RUN.watchdog.stop()
    RUN.store = None
    RUN.watchdog = None
    RUN.launch = LaunchInfo("single")
    RUN.rounds = 0
    RUN.checks_folder = None
    RUN.stop_requested = 0.0
    RUN.record_ids = {}


def _launch_of_group(launch: LaunchInfo) -> LaunchInfo:
    """Return the launch of a process group that another library has made before. Collective.

    Rank and world size come from the process group, the port from rank 0. Local rank and all
    fields that are not named below stay as in `launch`. Test:
    test_a_process_group_that_is_there_already_is_used_then_left.

    launch: what the environment says of this process.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return launch  # a single process needs no store
    # A process group of gloo takes CPU tensors only.
    own_device = get_device()
    takes_own_device = dist.get_backend() == devices.backend(own_device)
    device = torch.device(own_device.type if takes_own_device else "cpu")
    # The watchdog needs a store of this program, at a port that nobody else uses. Rank 0 asks its
    # system for a free port (by binding port 0), and sends the number to the other ranks. The port
    # is free again until the store is opened. If another program takes the port in this moment, the
    # start ends with an error that names the port, so no run uses a wrong store.
    port = torch.zeros(1, dtype=torch.int64, device=device)
    if dist.get_rank() == 0:
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
        by_agent=False,  # rank 0 opens the store
    )


# ---- Collectives -----------------------------------------------------------------------------
# Each function tells the watchdog the name of its collective: `watchdog.collective("barrier")`. The
# watchdog counts the collectives that a rank has entered. If the run hangs, the ranks wait for the
# rank with the smallest count.


def barrier() -> None:
    """Wait until every rank is here. Collective."""
    if dist.is_initialized():
        with watchdog.collective("barrier"):
            device = get_device()
            # NCCL needs the number of the device. gloo, the backend of the CPU, accepts none.
            dist.barrier(device_ids=None if device.type == "cpu" else [device.index])


def gather_objects(obj: Any) -> list[Any]:
    """Return the object of every rank, in the order of the ranks, on every rank. Collective.

    obj: plain values, arrays and tensors; `message.pack` lists the types.
    """
    if get_world_size() == 1:
        return [obj]
    device = get_device()
    own_bytes = _bytes_tensor(obj)
    # The watchdog counts one collective for the two all_gathers below. This is enough, because
    # every rank calls both, one right after the other.
    with watchdog.collective("all_gather"):
        # Exchange the sizes first, because all tensors of an all_gather must have the same size.
        # `sizes` and `padded_bytes` are lists of one tensor for each rank, filled by all_gather.
        sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(get_world_size())]
        own_size = torch.tensor([len(own_bytes)], device=device)
        dist.all_gather(sizes, own_size)
        byte_counts = [int(size) for size in sizes]
        # A wrong size would make the next lines ask for any amount of memory.
        for rank, byte_count in enumerate(byte_counts):
            message.refuse_size(byte_count, rank)

        # Then exchange the bytes, padded with zeros to the largest size.
        largest = max(byte_counts)
        own_padded = torch.zeros(largest, dtype=torch.uint8)
        own_padded[: len(own_bytes)] = own_bytes
        padded_bytes = []
        for _ in byte_counts:
            padded_bytes.append(torch.empty(largest, dtype=torch.uint8, device=device))
        dist.all_gather(padded_bytes, own_padded.to(device))
    objects = []
    for rank, byte_count in enumerate(byte_counts):
        content = bytes(padded_bytes[rank][:byte_count].cpu().numpy())  # without the padding
        objects.append(message.unpack(content, rank))
    return objects


def _bytes_tensor(obj: Any) -> Tensor:
    """Return an object as a tensor of its bytes on the CPU, (number of bytes,)."""
    # `frombuffer` shares the memory of its argument, and warns if this memory must not be written.
    # `bytes` must not be written, a `bytearray` may.
    return torch.frombuffer(bytearray(message.pack(obj)), dtype=torch.uint8)


def from_rank(source: int, obj: Any) -> Any:
    """Return the object of rank `source`, on every rank. Collective.

    source: number of the rank that sends.
    obj: the object to send, of the types of `gather_objects`. The objects of the other ranks are
        ignored; they may be None.
    """
    if get_world_size() == 1:
        return obj
    device = get_device()
    is_source = get_rank() == source
    data = _bytes_tensor(obj if is_source else None)
    with watchdog.collective("broadcast"):
        # Send the size first, because the other ranks have to make a tensor for the bytes.
        size = torch.tensor([len(data)], device=device)
        dist.broadcast(size, source)
        message.refuse_size(int(size), source)
        if not is_source:
            data = torch.empty(int(size), dtype=torch.uint8)
        data = data.to(device)
        dist.broadcast(data, source)
    if is_source:
        return obj
    return message.unpack(bytes(data.cpu().numpy()), source)


def share_record_ids(record_ids: dict[str, Any] | None) -> None:
    """Give all ranks the results of the checks of the data, as RUN.record_ids. Collective.

    Only rank 0 checks the data, because the ranks read the same files. The other ranks, and the
    loader processes, find the results by RUN.record_ids (data/clips/kept.py).

    record_ids: on rank 0, digest of the options of a data set -> id of the record of the results.
        The value of the other ranks is ignored. If it is None on rank 0, nothing was checked, and
        RUN.record_ids is {}.
    """
    RUN.record_ids = from_rank(source=0, obj=record_ids) or {}


def all_reduce_mean(tensor: Tensor) -> Tensor:
    """Return the mean of `tensor` over all ranks, on every rank. Collective.

    tensor: a tensor of a floating type, with the same shape on all ranks. It is not changed.
    """
    mean = tensor.detach().clone()
    if dist.is_initialized():
        with watchdog.collective("all_reduce"):
            dist.all_reduce(mean)
        mean /= get_world_size()
    return mean


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a copy of a nested value in which each tensor t is replaced by change(t).

    E.g. {"a": t1, "b": [t2, 3]} -> {"a": change(t1), "b": [change(t2), 3]}. The calls come in the
    order in which the tensors stand in `value`. `state_from_rank_0` relies on this order, because
    it calls a collective for each tensor.

    value: tensors and plain values in dicts, lists and tuples.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def state_from_rank_0(state: Any) -> Any:
    """Return the nested `state` of rank 0 on every rank, with its tensors on the CPU. Collective.

    The tensors are sent one by one, because a checkpoint may be larger than the memory that is free
    on the device.

    state: tensors and plain values in dicts, lists and tuples. Only rank 0 needs it.
    """
    if get_world_size() == 1:
        return state
    # First send everything except the numbers of the tensors. A tensor on torch's device "meta" has
    # only a shape and a type.
    outline = from_rank(source=0, obj=map_tensors(state, lambda tensor: tensor.to("meta")))

    def broadcast(tensor: Tensor) -> Tensor:
        """Send the numbers of a tensor from rank 0 to the other ranks. Returns the whole tensor.

        On the other ranks, `tensor` is the tensor of the outline.
        """
        if is_main_process():
            flat = tensor.reshape(-1)
        else:
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        # Send the numbers as bytes, because gloo does not know every dtype.
        content = flat.view(torch.uint8).to(get_device())
        dist.broadcast(content, 0)
        if is_main_process():
            return tensor
        return content.cpu().view(tensor.dtype).view(tensor.shape)

    # All ranks go through the tensors in the same order.
    with watchdog.collective("broadcast"):
        return map_tensors(state if is_main_process() else outline, broadcast)


# ---- Agreement of the ranks ------------------------------------------------------------------


def check_same_on_all_ranks(
    name: str, value: Any, do: str = "start all ranks from the same files"
) -> None:
    """Raise DistError, on all ranks, if `value` differs between ranks. Collective.

    name: what the value is, as the plural subject of the error, e.g. "the options".
    value: a value of the types of `gather_objects`.
    do: the advice of the error.
    """
    values = gather_objects(value)
    if all(other == values[0] for other in values):
        return
    # Equal values are listed together, e.g. "rank 0, 1, 3: 'a'; rank 2: 'b'".
    ranks_of_value: dict[str, list[str]] = {}
    for rank, other in enumerate(values):
        ranks_of_value.setdefault(repr(other), []).append(str(rank))
    groups = []
    for text, rank_numbers in ranks_of_value.items():
        groups.append(f"rank {', '.join(rank_numbers)}: {text}")
    raise DistError(
        what=f"{name} differ between the ranks",
        where="; ".join(groups),
        expected="the same on all ranks",
        do=do,
    )


@contextmanager
def all_ranks_or_none() -> Generator[None]:
    """Run the block on every rank. If any rank fails in it, all ranks end.

    Collective. The lowest rank that failed reports its error. The ranks exchange success or failure
    through the store, because the block may run before there is a process group.
    """
    if get_world_size() == 1 or RUN.store is None:
        yield
        return
    # A Round is one meeting of all ranks in the store: each rank arrives, with its exit code if it
    # has failed, and can wait until all ranks have arrived. The number of the call makes the keys
    # of this round different from the keys of earlier rounds. All ranks make the same calls, so the
    # number is the same on all ranks.
    RUN.rounds += 1
    meeting = Round(RUN.store, f"round/{RUN.rounds}", get_rank(), get_world_size())
    try:
        yield
    except Exception as e:
        code = getattr(e, "exit_code", 1)
        meeting.arrive(code)
        # A lower rank may have failed as well, and then the lower rank reports. So wait a while
        # until all ranks have arrived. Rank 0 has no lower rank, so it need not wait.
        if get_rank() > 0:
            # `wait` returns the lowest rank that failed, with its exit code.
            lowest_failure = meeting.wait(WAIT_FOR_LOWER_RANKS_S)
            own_failure = FailedRank(get_rank(), code)
            if lowest_failure != own_failure:
                raise _PeerFailed(code) from e
        raise
    meeting.arrive()
    with watchdog.collective("the other ranks"):
        # If another rank fails outside of its block, the watchdog ends this rank here.
        lowest_failure = meeting.wait()
    if lowest_failure is not None:
        raise _PeerFailed(lowest_failure.code)


# ---- Errors ----------------------------------------------------------------------------------


@contextmanager
def closed_after_report(resource: Any) -> Generator[Any]:
    """Call `resource.close()` after the block, as contextlib.closing does.

    Closing may hang, e.g. closing a dashboard without a network. So an error in the block is
    reported before `close` is called. If `close` then takes longer than CLOSE_S (5 s), this rank
    ends.

    resource: any object with a method `close`.
    """

    def leave() -> None:
        """End this rank with the exit code of the error. The timer calls this."""
        # The timer is started only after an error has been reported, so RUN.reported is not None.
        reported: Any = RUN.reported
        _, code = reported
        watchdog.leave(code, RUN.store)

    timer = threading.Timer(CLOSE_S, leave)
    timer.daemon = True
    with ExitStack() as at_end:
        # An ExitStack calls its callbacks in reverse order: it closes the resource, and then
        # cancels the timer.
        at_end.callback(timer.cancel)
        at_end.callback(resource.close)
        try:
            yield resource
        except BaseException as e:
            _report(e)
            timer.start()  # runs while the resource is closed
            raise


class _Ending(NamedTuple):
    """How this rank ends after an error."""

    cause: BaseException  # the error to report, which need not be the error that was raised
    code: int  # the exit code
    is_reporter: bool  # whether this rank reports the cause; if not, another rank does


def _report(error: BaseException) -> int:
    """Report the error that ends this rank, unless another rank reports. Returns the exit code.

    Only the rank that failed first reports, so a user reads one error and not one of each rank.
    """
    if RUN.reported is not None:
        reported_error, reported_code = RUN.reported
        if reported_error is error:
            return reported_code  # `closed_after_report` has reported it
    if isinstance(error, _PeerFailed):
        ending = _Ending(error, error.exit_code, is_reporter=False)
    elif RUN.store is None:
        ending = _Ending(error, _exit_code(error), _is_reporter_without_store(error))
    else:
        ending = _ending_with_store(error)
    if ending.is_reporter:
        watchdog.write_to_log_and_stderr(_text_of(ending.cause))
        # RuntimeError: the store is gone, so no other rank waits for the report.
        with suppress(RuntimeError):
            if RUN.store is not None:
                # The other ranks wait for this key before they end.
                RUN.store.set(watchdog.REPORTED, "1")
    RUN.reported = (error, ending.code)
    return ending.code


def _exit_code(error: BaseException) -> int:
    """Return the exit code for an error: 130 for Ctrl-C as in a shell, 1 for unknown errors."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return getattr(error, "exit_code", 1)


def _is_reporter_without_store(error: BaseException) -> bool:
    """Return whether this process reports an error that comes before the ranks have a store.

    The ranks open the store when they meet. A single process always reports. If one launcher has
    started several ranks on this host, only the first rank with this error reports
    (test_ranks_of_one_launch_report_the_same_error_once). A rank of a later start reports again,
    because its launcher is another process.
    """
    if process_count(os.environ) == 1:
        return True
    # The same error on two ranks differs in the number of the rank, e.g. "rank 3 of 8 on host a".
    # So leave the number out.
    where_without_rank = re.sub(r"rank \d+", "rank", getattr(error, "where", ""))
    what = getattr(error, "what", error)
    launcher_pid = os.getppid()
    # True for the first process on this host that calls it with this text.
    return process.first_to_claim(f"{what} {where_without_rank} {launcher_pid}")


def _ending_with_store(error: BaseException) -> _Ending:
    """Return how this rank ends after an error. The ranks agree through the store who reports.

    The cause of the error is on this rank, or another rank has gone (`_is_caused_by_peer`). Then
    the connection to the other rank breaks, which raises the error on this rank. What this rank
    does in each row of the table:

        the store                          cause on this rank   cause on another rank
        1  has no failure yet              reports its error    reports "lost contact"
        2  has a failure of another rank   is silent            is silent
        3  has a value that no rank wrote  reports its error    one rank of the host reports it
        4  is gone                         is silent            is silent

    In row 4 the store is gone together with the rank that hosts the store, and a watchdog reports
    this. Tests:

        rows 1, 2   test_an_error_ends_all_ranks_with_one_message_and_one_code
                    test_a_lost_connection_without_a_cause_is_reported_once_in_the_words_of_torch
        row 3       test_a_forged_failure_ends_the_run_with_a_report
        row 4       test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end, kind "kill"
    """
    is_cause_here = not _is_caused_by_peer(error)
    if is_cause_here:
        cause = error
        code = _exit_code(error)
    else:
        cause = _lost_contact_error(error)
        code = cause.exit_code

    # The first rank that writes its failure into the store reports. `claim_failure` returns None to
    # the first rank, and the failure of the first rank to all other ranks.
    own_failure = Failure(rank=get_rank(), code=code, by=get_rank())
    try:
        first_failure = claim_failure(RUN.store, own_failure, get_world_size())
    except ForeignValueError as e:
        # Row 3. A process that is no rank of this run has written under the key of the failure, so
        # the ranks cannot agree who reports.
        if is_cause_here:
            return _Ending(cause, code, is_reporter=True)
        # The connection is broken because the other ranks have left, and they have left because of
        # the foreign value. So the foreign value is the cause to report.
        return _Ending(e, e.exit_code, is_reporter=watchdog.is_first_to_report_stranger())
    except RuntimeError:
        # Row 4.
        time.sleep(WAIT_FOR_WATCHDOG_S)
        return _Ending(cause, StallError.exit_code, is_reporter=False)
    if first_failure is None:
        # Row 1.
        return _Ending(cause, code, is_reporter=True)
    # Row 2. A stall is reported by a watchdog, which may still write its report.
    if first_failure.code == StallError.exit_code:
        time.sleep(WAIT_FOR_WATCHDOG_S)
    return _Ending(cause, first_failure.code, is_reporter=False)


def _is_caused_by_peer(error: BaseException) -> bool:
    """Return whether an error says that another rank (a peer) is gone or does not answer."""
    if isinstance(error, DistNetworkError):
        return True
    # torch raises other errors of a connection as RuntimeError, which only their text tells apart.
    return isinstance(error, RuntimeError) and PEER_IS_GONE.search(str(error)) is not None


def _lost_contact_error(error: BaseException) -> StallError:
    """Return the error of a broken connection. It names the ranks that may be the cause.

    Before naming a rank, this waits for the report of another rank, which may know the cause.
    """
    suspects = ""
    # Reading the beats fails if the store is lost as well, or if a process that is no rank has
    # written into it. The watchdog reports both.
    with suppress(RuntimeError, ForeignValueError):
        suspects = _suspects()
    return StallError(
        what="lost contact with another rank",
        where=suspects or f"rank {get_rank()}",
        expected="all ranks connected",
        do="look into the logs of the other ranks (was the run suspended? raise dist_timeout_s); "
        f"torch says:\n{error}",
    )


def _suspects() -> str:
    """Wait for the report of another rank. Returns the ranks that may have caused the error here.

    E.g. 'rank 3 on gpu7, last seen in phase "forward" at step 120'. Returns "" if another rank has
    noted a failure, if another rank compares the beats, or if no rank differs from the others.
    """
    store = RUN.store
    # Only one rank, the observer, compares the beats of all ranks before and after the wait. The
    # observer is the first rank that comes here: `add` counts the calls of all ranks and returns 1
    # to the first one. The other ranks wait twice as long, so that the observer can report first.
    is_observer = store.add("lost contact", 1) == 1
    before = read_states(store, get_world_size()) if is_observer else {}
    wait_s = WAIT_FOR_REPORT_S if is_observer else 2 * WAIT_FOR_REPORT_S
    deadline = time.monotonic() + wait_s
    # FAILURE is the key of the first failure in the store. It is empty until a rank has failed.
    while not store.get(FAILURE) and time.monotonic() < deadline:
        time.sleep(0.1)
    if not is_observer or store.get(FAILURE):
        return ""
    after = read_states(store, get_world_size())
    # The beats show within half a second which collective a rank has entered. So `after` shows it,
    # and `before` may not yet.
    suspects = _silent_ranks(before, after) or _ranks_behind(after)
    places = []
    for rank in suspects:
        state = after[rank]
        places.append(f"rank {rank} on {state['host']}, last seen in {where(state)}")
    return "; ".join(places)


def _silent_ranks(before: dict[int, State], after: dict[int, State]) -> list[int]:
    """Return the other ranks that did not beat between two readings of all states.

    A rank beats every half second: it writes its state with a growing number into the store.
    """
    ranks = []
    for rank, state in after.items():
        if rank != get_rank() and state["beat"] == before[rank]["beat"]:
            ranks.append(rank)
    return ranks


def _ranks_behind(states: dict[int, State]) -> list[int]:
    """Return the ranks that have entered the fewest collectives, if other ranks have entered more.

    A collective ends only when every rank has entered it. So if it runs into its time-out while all
    ranks beat, the others have waited for these ranks.
    """
    counts = {rank: state["syncs"] for rank, state in states.items()}
    fewest = min(counts.values())
    if max(counts.values()) == fewest:
        return []
    return [rank for rank, count in counts.items() if count == fewest]


def _text_of(cause: BaseException) -> str:
    """Return the text that reports an error to the user."""
    if isinstance(cause, SpikeVRTError):
        return str(cause)
    if isinstance(cause, KeyboardInterrupt):
        return "Interrupted (Ctrl-C). The same command continues from what was saved last."
    # For an unforeseen error, return the whole traceback, with the rank in front of each line.
    prefix = f"[rank {get_rank()}] " if get_world_size() > 1 else ""
    lines = "".join(traceback.format_exception(cause)).rstrip()
    # `indent` leaves out empty lines, unless a function returns True for them.
    return textwrap.indent(lines, prefix, lambda line: True)


# ---- Signals ---------------------------------------------------------------------------------


def stop_on(*numbers: signal.Signals) -> None:
    """From now on, take these signals as requests to stop.

    After a request the run finishes its step, saves and ends: all ranks agree by `stop_vote`. A
    repeated signal ends this rank at once, if it comes at least LEAST_S_BETWEEN_REQUESTS later.
    """
    is_torchrun = RUN.launch.mode == "torchrun"
    if signal.SIGUSR1 in numbers and is_torchrun and is_main_process():
        # In this variable torchrun lists the signals that it passes on to its ranks. torch 2.8 does
        # not set the variable.
        if "SIGUSR1" not in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", ""):
            logger.warning(
                "SIGUSR1 would kill torchrun before the ranks can save: "
                "start scripts/torchrun_quiet.py in its place, which takes the same arguments"
            )
    for number in numbers:
        if _is_to_be_handled(number, is_torchrun):
            signal.signal(number, _on_signal)


def _is_to_be_handled(number: signal.Signals, is_torchrun: bool) -> bool:
    """Whether the run shall take this signal as a request to stop."""
    if number in (signal.SIGTERM, signal.SIGUSR1):
        return True
    # torchrun handles Ctrl-C itself: it passes the signal on, and kills ranks that do not end. So
    # the ranks must handle it even if they were started so that they ignore it.
    if number == signal.SIGINT and is_torchrun:
        return True
    # `nohup` starts a program that ignores SIGHUP, and a shell script starts `command &` so that it
    # ignores Ctrl-C. The user wants this, so such a run goes on ignoring the signal.
    return signal.getsignal(number) is not signal.SIG_IGN


def _on_signal(number: int, _: Any) -> None:
    """Handle a signal: note the time of the first request to stop, or end at a repeated request.

    The second argument is the interrupted stack frame, which Python gives to every signal handler.
    """
    if RUN.stop_requested:
        seconds_since = time.monotonic() - RUN.stop_requested
        if seconds_since > LEAST_S_BETWEEN_REQUESTS.get(number, float("inf")):
            os._exit(128 + number)  # the exit code of a shell for a program that a signal has ended
        return
    if number == signal.SIGINT and is_main_process():
        # Use os.write, because `print` fails if the signal has interrupted another `print`.
        text = "\nCtrl-C: the run saves after this step and ends; Ctrl-C again ends it at once\n"
        with suppress(OSError):
            os.write(2, text.encode())
    RUN.stop_requested = time.monotonic()


def stop_vote() -> Callable[[], bool]:
    """Begin to ask all ranks whether one of them was asked to stop.

    Returns a function that waits for the answer: True if any rank was asked. Collective. The ranks
    exchange their answers while the step computes, so the exchange costs no time:

        wait_for_result = stop_vote()
        ...                            # the step
        if wait_for_result(): ...      # the same answer on all ranks

    All ranks must stop after the same step. If a rank stopped earlier, the others would wait for it
    in a collective.
    """
    device = get_device()
    # torch.full writes the number directly on the device. torch.tensor would copy the number from
    # the host, and on a GPU this copy would wait until the last step has been computed.
    flag = torch.full((), float(RUN.stop_requested > 0), device=device)
    exchange = None
    if dist.is_initialized():
        # The sum over the ranks is above 0 if any rank was asked to stop.
        exchange = dist.all_reduce(flag, async_op=True)

    # A device without pinned memory, e.g. the CPU: wait for the exchange itself.
    if not devices.pins_memory(device):

        def is_stop() -> bool:
            if exchange is not None:
                exchange.wait()
            return bool(flag > 0)

        return is_stop

    # A GPU does its work in the order of its queue. Here the copy of the answer to the host comes
    # into the queue before the step. So `is_stop_on_gpu` waits for the copy and not for the step.
    if exchange is not None:
        exchange.wait()  # the GPU waits for the exchange, the host does not
    answer = torch.empty((), pin_memory=True).copy_(flag, non_blocking=True)
    copy_done = torch.Event(device)
    copy_done.record()

    def is_stop_on_gpu() -> bool:
        copy_done.synchronize()
        return bool(answer > 0)

    return is_stop_on_gpu

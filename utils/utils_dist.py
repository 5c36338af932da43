"""The ranks of a run: start, identity, collectives, and the one door by which they leave.

Everything works the same in a single process, where no group exists.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store

from utils.dist import gpu, rendezvous, watchdog
from utils.dist.beats import REPORTED, claim_failure, is_gone, read_states
from utils.dist.failure import is_consequence, lost_contact, text_of
from utils.dist.launch import LaunchInfo
from utils.dist.process import children_of, die_with_parent, kill_tree
from utils.dist.rendezvous import JOINED, MET, Round
from utils.dist.watchdog import Watchdog, say
from utils.errors import DistError, StallError
from utils.options.models import WatchdogOptions

logger = logging.getLogger(__name__)


@dataclass
class _Run:
    launch: LaunchInfo = field(default_factory=lambda: LaunchInfo("single"))
    store: Store | None = None
    hosts_store: bool = False
    watchdog: Watchdog | None = None
    timeout_s: float = float("inf")  # of the process group
    rounds: int = 0  # of all_ranks_or_none, equal on all ranks


_run = _Run()


class _PeerFailed(BaseException):
    """Another rank failed and has said why; this one leaves without a word."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


# ---- identity -------------------------------------------------------------------------------------------------------


def get_launch() -> LaunchInfo:
    return _run.launch


def get_rank() -> int:
    return _run.launch.rank


def get_local_rank() -> int:
    return _run.launch.local_rank


def get_world_size() -> int:
    return _run.launch.world_size


def is_main_process() -> bool:
    return _run.launch.rank == 0


def get_store() -> Store | None:
    """What all ranks share, small values by name; None in a single process. Other threads need a clone() of it."""
    return _run.store


def get_device() -> torch.device:
    """The GPU of the local rank, or the CPU where there is none."""
    return torch.device("cuda", _run.launch.local_rank) if torch.cuda.is_available() else torch.device("cpu")


# ---- start and end --------------------------------------------------------------------------------------------------


def join(launch: LaunchInfo) -> None:
    """Meet the other ranks: from here on an error on one ends all, and is said once. Collective, no GPU work."""
    _run.launch = launch
    if launch.mode == "torchrun":
        die_with_parent()
    if launch.world_size > 1:
        _run.store, _run.hosts_store = rendezvous.open_store(launch)
        _start_watchdog()
        rendezvous.meet(_run.store, launch)
        _run.watchdog.beats.meet_rank_0(_run.store)


def watch(budgets: WatchdogOptions) -> None:
    """From now on a rank that stays too long in one phase ends the run, by name (utils_watchdog)."""
    if _run.watchdog is None:
        _start_watchdog()
    warning = budgets.check_against(_run.timeout_s)
    if warning and is_main_process():
        logger.warning(warning)
    _run.watchdog.watch(budgets)


def _start_watchdog() -> None:
    store = _run.store.clone() if _run.store else None
    _run.watchdog = Watchdog(get_rank(), get_world_size(), store, _leave)
    _run.watchdog.start()


def init_dist(launch: LaunchInfo, timeout_s: float = 1800) -> None:
    """Make the process group (nccl with CUDA, gloo without), joining first where `join` was not called. Collective.

    timeout_s: of every collective; the environment's NCCL_TIMEOUT, in seconds, wins.
    Raises DistError where GPUs are here that torch cannot use.
    """
    if _run.store is None:
        join(launch)
    gpu.require_usable_gpus()
    if launch.world_size == 1:
        return
    _run.timeout_s = _timeout_s(timeout_s)
    device = get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Scripts, libraries and DDP itself read these; SLURM sets none of them.
    os.environ |= {
        "RANK": str(launch.rank), "LOCAL_RANK": str(launch.local_rank), "WORLD_SIZE": str(launch.world_size),
        "MASTER_ADDR": launch.master_addr, "MASTER_PORT": str(launch.master_port),
    }  # fmt: skip
    # NCCL hands its ids through the store, whose own time-out would end that after 10 s.
    _run.store.set_timeout(timedelta(seconds=_run.timeout_s))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", _run.store),
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timedelta(seconds=_run.timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    _print_setup(launch)


def close() -> None:
    """Normal shutdown after all ranks have finished. Collective."""
    if _run.watchdog is not None:
        _run.watchdog.ending = True
        barrier()
        _run.watchdog.stop()
    if dist.is_initialized():
        dist.destroy_process_group()
    _run.store, _run.watchdog, _run.launch, _run.rounds = None, None, LaunchInfo("single"), 0


def _timeout_s(option: float) -> float:
    text = os.environ.get("NCCL_TIMEOUT", "")
    try:
        seconds = float(text) if text else option
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 10**6:
        raise DistError(f"NCCL_TIMEOUT is {text!r}", "the environment", "seconds > 0", "correct or unset NCCL_TIMEOUT")
    return seconds


def _print_setup(launch: LaunchInfo) -> None:
    line = "=" * 40
    text = (
        f"{line}\nDistributed Training Setup\n{line}\n"
        f"Backend: {dist.get_backend()}\nWorld Size: {launch.world_size}\nRank: {launch.rank}\n"
        f"Local Rank: {launch.local_rank}\nMaster: {launch.master_addr}:{launch.master_port}\n{line}\n"
    )
    with suppress(OSError):  # a full disk behind the output does not end the run
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), text.encode())  # one write, so that ranks do not interleave


# ---- collectives ----------------------------------------------------------------------------------------------------


def barrier() -> None:
    """Collective."""
    if dist.is_initialized():
        with watchdog.collective("barrier"):
            dist.barrier(device_ids=[get_local_rank()] if get_device().type == "cuda" else None)


def all_reduce_mean(tensor: Tensor) -> Tensor:
    """Mean over the ranks, element by element, same shape and dtype, without a graph; summed in float64. Collective."""
    if get_world_size() == 1:
        return tensor.detach().clone()
    total = tensor.detach().to(device=get_device(), dtype=torch.float64, copy=True)
    with watchdog.collective("all_reduce"):
        dist.all_reduce(total)
    return (total / get_world_size()).to(device=tensor.device, dtype=tensor.dtype)


def gather_objects(obj: Any) -> list[Any]:
    """The object of every rank, in the order of the ranks, on every rank. Collective."""
    if get_world_size() == 1:
        return [obj]
    found: list[Any] = [None] * get_world_size()
    with watchdog.collective("all_gather"):
        dist.all_gather_object(found, obj)
    return found


def from_rank(source: int, obj: Any) -> Any:
    """The object of rank `source`, on every rank; that of the others is not looked at. Collective."""
    if get_world_size() == 1:
        return obj
    holder = [obj if get_rank() == source else None]
    with watchdog.collective("broadcast"):
        dist.broadcast_object_list(holder, source, device=get_device())
    return holder[0]


def check_same_on_all_ranks(name: str, value: Any, do: str = "start all ranks from the same files") -> None:
    """Raises DistError, on all ranks, where `value` differs between ranks; do: what helps then. Collective."""
    found = gather_objects(value)
    if all(other == found[0] for other in found):
        return
    groups: dict[str, list[int]] = {}
    for rank, other in enumerate(found):
        groups.setdefault(repr(other), []).append(rank)
    listed = "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in groups.items())
    raise DistError(f"{name} differ between the ranks", listed, "the same on all ranks", do)


# ---- the one door ---------------------------------------------------------------------------------------------------


@contextmanager
def all_ranks_or_none(grace_s: float = 5.0) -> Iterator[None]:
    """Run the body on every rank; where any rank fails, all leave, and the lowest one that failed says why. Collective.

    grace_s: how long a rank that failed waits for those below it to fail as well.
    """
    if get_world_size() == 1 or _run.store is None:
        yield
        return
    _run.rounds += 1
    meeting = Round(_run.store, f"round/{_run.rounds}", get_rank(), get_world_size())
    try:
        yield
    except Exception as e:
        code = getattr(e, "exit_code", 1)
        meeting.arrive(code)
        if get_rank() and meeting.wait(grace_s) != (get_rank(), code):
            raise _PeerFailed(code) from e
        raise
    meeting.arrive()
    with watchdog.collective("the other ranks"):
        failed = meeting.wait()  # the watchdog ends this wait where a rank fails without coming here
    if failed:
        raise _PeerFailed(failed[1])


@contextmanager
def one_door() -> Iterator[None]:
    """Wrap the entire run in it: however the run ends, every rank leaves, with one message and one exit code.

    A failure leaves by os._exit: destroying a broken group can block for ever.
    """
    try:
        yield
        close()
    except SystemExit:
        raise
    except BaseException as e:
        _fail(e)


def _fail(error: BaseException) -> NoReturn:
    code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
    if _run.store is None:
        if rendezvous.speaks_alone(error):
            say(text_of(error, get_rank(), get_world_size()))
        write_exit_file(code)
        sys.stdout.flush()
        _be_deaf_to_children()
        for child in multiprocessing.active_children():  # at exit Python waits for them, for ever if one is stopped
            child.kill()
        if get_world_size() == 1:
            sys.exit(code)
        os._exit(code)
    if not isinstance(error, _PeerFailed):
        if is_consequence(error):
            error, code = lost_contact(error, _run.store, get_rank(), get_world_size()), StallError.exit_code
        first = _speak_first(error, code)
        if first == StallError.exit_code:
            time.sleep(10)  # the watchdog thread is at work, here or elsewhere, and ends this process
        code = first or code
    _leave(code, _run.store)


def _speak_first(error: BaseException, code: int) -> int | None:
    """None where this rank is the first to fail, and has said why; else the exit code of the one that was."""
    try:
        noted = claim_failure(_run.store, get_rank(), code, get_rank())
    except RuntimeError:  # the store went with its rank; the watchdog says so
        return StallError.exit_code
    if noted:
        return noted["code"]
    say(text_of(error, get_rank(), get_world_size()))
    with suppress(RuntimeError):
        _run.store.set(REPORTED, "1")  # those that wait for the words of a stall may go; nobody else is to be blamed
    return None


def _leave(code: int, store: Store | None) -> NoReturn:
    """End this rank at once; the host of the store waits until the others have gone, or they would blame it."""
    with suppress(Exception):
        write_exit_file(code)
        if store is not None:
            _say_goodbye(store)
    _be_deaf_to_children()
    for child in children_of(os.getpid()):
        kill_tree(child)
    with suppress(Exception):
        _run.watchdog.clean()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _be_deaf_to_children() -> None:
    """torch's handler would raise an error here for each loader process that is killed."""
    with suppress(ValueError):  # only the main thread may, and only there would it be raised
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _say_goodbye(store: Store) -> None:
    """Tell the host of the store that this rank goes; the host itself waits for all that live."""
    store.set(f"left/{get_rank()}", "1")
    count, deadline = store.add("left", 1), time.monotonic() + 3
    if not _run.hosts_store:
        return
    states = read_states(store, get_world_size()) if store.check([MET]) else {}
    speechless: dict[int, bool] = {}  # ranks whose process is gone: whether they went without a word
    while count + sum(speechless.values()) < store.add(JOINED, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
        gone = [rank for rank, state in states.items() if rank not in speechless and is_gone(state)]
        speechless |= {rank: not store.check([f"left/{rank}"]) for rank in gone}
        count = store.add("left", 0)


def write_exit_file(code: int) -> None:
    """torchrun turns every exit code into 1; launch_train.sh finds the true one here."""
    path = os.environ.get("SPIKEVRT_EXIT_FILE")
    if path:
        # Appended, and the first line counts: the rank that failed comes before those that leave because of it.
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{code}\n")

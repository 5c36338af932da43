"""How the ranks find each other: one key-value store on rank 0, joined under a deadline of our own.

torch alone waits for ever where something else answers on the port, says "timed out" where a name does not resolve,
and counts the ranks that are missing without naming them.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from torch.distributed import DistError as TorchDistError
from torch.distributed import PrefixStore, Store, TCPStore

from utils.utils_errors import DistError
from utils.utils_launch import LaunchInfo
from utils.utils_process import first_to_claim

logger = logging.getLogger(__name__)

# Each single check is decided within this time (or SPIKEVRT_JOIN_TIMEOUT, if that is shorter): with the start of Python
# and torch before it, a fault is explained within 15 s.
CHECK_S = 10.0
T = TypeVar("T")


def open_store(launch: LaunchInfo) -> tuple[Store, bool]:
    """(the store that all ranks share, whether this process hosts it). Raises DistError within its deadlines."""
    # torchrun's agent keeps a store on that port already, and it outlives the ranks.
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    hosts = launch.rank == 0 and not by_agent
    _check_resolves(launch)
    tcp = _serve(launch) if hosts else _connect(launch)
    return PrefixStore(f"spikevrt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", tcp), hosts


def _check_resolves(launch: LaunchInfo) -> None:
    deadline = time.monotonic() + _check_s()
    while True:
        try:
            _within(deadline - time.monotonic(), lambda: socket.getaddrinfo(launch.master_addr, launch.master_port))
            return
        except (OSError, TimeoutError) as e:
            # A job's DNS entry may appear a moment after its containers.
            if time.monotonic() > deadline - CHECK_S / 2:
                raise DistError(
                    f"MASTER_ADDR does not resolve: {launch.master_addr}", _place(launch),
                    "the name or address of the host of rank 0", f"correct MASTER_ADDR ({e})",
                ) from e  # fmt: skip
        time.sleep(0.5)


def _serve(launch: LaunchInfo) -> TCPStore:
    def listen() -> TCPStore:
        return TCPStore(launch.master_addr, launch.master_port, is_master=True, wait_for_workers=False)

    try:
        return _within(_check_s(), listen)
    except TimeoutError as e:
        what = f"rank 0 cannot reach its own store at {launch.master_addr}:{launch.master_port}"
        raise DistError(
            what, _place(launch), "MASTER_ADDR names the host that rank 0 runs on", "correct MASTER_ADDR"
        ) from e
    except (TorchDistError, OSError) as e:
        in_use = "EADDRINUSE" in str(e) or "in use" in str(e)
        what = f"port {launch.master_port} is in use" if in_use else f"cannot open port {launch.master_port}"
        raise DistError(
            what, _place(launch), "a free MASTER_PORT on the host of rank 0",
            "choose another MASTER_PORT (the same on all ranks), or end what listens there"
            + ("" if in_use else f"; torch says: {str(e).splitlines()[0]}"),
        ) from e  # fmt: skip


def _connect(launch: LaunchInfo) -> TCPStore:
    """A client of rank 0's store; waits for rank 0 to open it."""
    address, start, told = (launch.master_addr, launch.master_port), time.monotonic(), False
    limit_s = _limit_s()
    while True:
        try:
            socket.create_connection(address, timeout=5).close()
            break
        except OSError as e:
            waited = time.monotonic() - start
            if waited > limit_s:
                raise DistError(
                    f"nobody answers at {address[0]}:{address[1]} after {waited:.0f} s ({_errno_name(e)})",
                    _place(launch),
                    "rank 0 listening on MASTER_ADDR:MASTER_PORT",
                    "see whether rank 0 was started, MASTER_ADDR is its host, and no firewall lies between",
                ) from e  # fmt: skip
            if waited > _check_s() and not told:
                told = True
                logger.warning("rank %d waits for rank 0 at %s:%d", launch.rank, *address)
        time.sleep(0.1)
    try:
        # A foreign listener accepts and stays silent; torch ignores its own time-out then.
        return _within(_check_s(), lambda: TCPStore(*address, is_master=False, timeout=timedelta(seconds=_check_s())))
    except (TimeoutError, TorchDistError) as e:
        raise DistError(
            f"what listens at {address[0]}:{address[1]} is not the store of this run", _place(launch),
            "rank 0 of the same run on that port", "choose another MASTER_PORT, the same on all ranks",
        ) from e  # fmt: skip


def meet(store: Store, launch: LaunchInfo) -> None:
    """Wait until every rank has arrived. Collective.

    Ranks may be started minutes apart: those missing are named after 10 s, and given up after SPIKEVRT_JOIN_TIMEOUT
    seconds (default 300) with a DistError.
    """
    limit_s = _limit_s()
    me = f"{socket.gethostname()} pid {os.getpid()}"
    if store.add(f"arrived/{launch.rank}", 1) > 1:
        raise DistError(
            f"rank {launch.rank} arrived twice", _place(launch), "each RANK from 0 to WORLD_SIZE - 1 once",
            "correct RANK, or end the other run that uses this MASTER_PORT",
        )  # fmt: skip
    store.set(f"place/{launch.rank}", me)
    start, told = time.monotonic(), False
    missing = list(range(launch.world_size))
    while missing := [rank for rank in missing if not store.check([f"arrived/{rank}"])]:
        waited = time.monotonic() - start
        names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        if waited > limit_s:
            raise DistError(
                f"{names} of {launch.world_size} did not arrive in {waited:.0f} s", _place(launch),
                "WORLD_SIZE processes, each with its own RANK",
                "look into the logs of these ranks; SPIKEVRT_JOIN_TIMEOUT sets the seconds to wait",
            )  # fmt: skip
        if waited > _check_s() and not told and launch.rank == 0:
            told = True
            logger.warning("waiting for %s of %d", names, launch.world_size)
        time.sleep(0.02 if waited < 2 else 0.2)


def speaks_alone(error: BaseException) -> bool:
    """Whether this rank is the first of its launch, on this host, to say this: before joining, no store can tell."""
    if "RANK" not in os.environ and "SLURM_PROCID" not in os.environ:
        return True
    # Where the launch has no name of its own, the same words from the same parent within 10 s are taken for the same.
    names = (
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_RESTART_COUNT",
    )
    name = " ".join(os.environ.get(key, "") for key in names).strip()
    window_s = 600 if name else 10
    what = f"{getattr(error, 'what', error)} {name} {os.getppid()} {os.getuid()}"
    return first_to_claim(f"said-{hashlib.sha256(what.encode()).hexdigest()[:16]}", window_s)


def _check_s() -> float:
    return min(CHECK_S, _limit_s())


def _limit_s() -> float:
    return float(os.environ.get("SPIKEVRT_JOIN_TIMEOUT", "300"))


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "") or str(error) or type(error).__name__


def _place(launch: LaunchInfo) -> str:
    return f"rank {launch.rank} of {launch.world_size} on {socket.gethostname()} ({launch.mode} launch)"


def _within(seconds: float, function: Callable[[], T]) -> T:
    """function(), or TimeoutError; what hangs is left behind in a thread, for nothing can end it."""
    box: list[T | BaseException] = []

    def call() -> None:
        try:
            box.append(function())
        except BaseException as e:
            box.append(e)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]

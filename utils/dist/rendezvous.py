"""How the ranks find each other: one key-value store on rank 0, with our own time limits.

torch alone waits for ever where another program listens on the port, says "timed out" where a name
does not resolve, and does not name the ranks that are missing.
"""

import errno
import ipaddress
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from torch.distributed import DistError as TorchDistError
from torch.distributed import PrefixStore, Store, TCPStore

from utils.dist.process import AwakeClock
from utils.dist.state import RUN, LaunchInfo
from utils.dist.store_values import (
    FAILURE_CODES,
    ForeignValueError,
    foreign,
    sealed,
    unsealed,
)
from utils.errors import DistError

logger = logging.getLogger(__name__)

# Time limit of each check (or SPIKEVRT_JOIN_TIMEOUT, if that is shorter): with the start of Python
# and torch, a fault is reported within 15 s.
CHECK_S = 10.0
# store key: number of processes that have joined; a rank that joined twice counts twice
JOINED = "joined"
MET = "met"  # store key: all ranks have arrived
T = TypeVar("T")


def open_store(launch: LaunchInfo) -> Store:
    """The store of all ranks. Raises DistError within the time limits."""
    hosts, address = (
        launch.rank == 0 and not launch.by_agent,
        (launch.master_addr, launch.master_port),
    )
    clock, limit_s = AwakeClock(), min(CHECK_S, launch.join_s)
    while True:
        try:
            _within(limit_s - clock.now(), lambda: socket.getaddrinfo(*address))
            break
        except (OSError, TimeoutError) as e:
            # A job's DNS entry may appear a moment after its containers.
            if clock.now() > limit_s - CHECK_S / 2:
                what, do = (
                    f"MASTER_ADDR does not resolve: {launch.master_addr}",
                    f"correct MASTER_ADDR ({e})",
                )
                raise DistError(
                    what, _place(launch), "the name or address of the host of rank 0", do
                ) from e
        time.sleep(0.5)
    try:
        tcp = _within(limit_s, lambda: _hosted_store(launch)) if hosts else None
    except TimeoutError as e:
        what, do = (
            f"rank 0 cannot reach its own store at {address[0]}:{address[1]}",
            "correct MASTER_ADDR",
        )
        raise DistError(
            what, _place(launch), "MASTER_ADDR names the host that rank 0 runs on", do
        ) from e
    except (TorchDistError, OSError) as e:
        in_use = "EADDRINUSE" in str(e) or "in use" in str(e)
        what = (
            f"port {launch.master_port} is in use"
            if in_use
            else f"cannot open port {launch.master_port}"
        )
        do = "choose another MASTER_PORT (the same on all ranks), or end what listens there"
        do += "" if in_use else f"; torch says: {str(e).splitlines()[0]}"
        raise DistError(what, _place(launch), "a free MASTER_PORT on the host of rank 0", do) from e
    tcp = tcp or _connect(launch)
    return PrefixStore(f"spikevrt/{_name_of_start(tcp, launch) if launch.by_agent else ''}", tcp)


def _hosted_store(launch: LaunchInfo) -> TCPStore:
    """Open the store of the run on the address of MASTER_ADDR alone.

    torch listens on every address of the host, though MASTER_ADDR may be its loopback.
    """
    address = (launch.master_addr, launch.master_port)
    listener = _listener(*address)
    if listener is None:
        return TCPStore(*address, is_master=True, wait_for_workers=False)
    # The store closes the descriptor with itself.
    descriptor = listener.detach()
    return TCPStore(*address, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)


def _listener(name: str, port: int) -> socket.socket | None:
    """Return a socket that listens on the address of MASTER_ADDR.

    Returns None if the other hosts know the host of rank 0 by another address: behind a service of
    a cloud, or if this host itself calls its name by a loopback address, as Debian does.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
    is_loopback = ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback
    if is_loopback and not is_loopback_name(name):
        return None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(socket.SOMAXCONN)
    except OSError as e:
        listener.close()
        if e.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return listener


def is_loopback_name(name: str) -> bool:
    """Whether MASTER_ADDR is a name of the loopback on every host."""
    if name.lower() in ("localhost", "ip6-localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _connect(launch: LaunchInfo) -> TCPStore:
    """A client of rank 0's store; waits for rank 0 to open it."""
    address, clock, told = (launch.master_addr, launch.master_port), AwakeClock(), False
    check_s = min(CHECK_S, launch.join_s)
    while True:
        try:
            socket.create_connection(address, timeout=5).close()
            break
        except OSError as e:
            waited = clock.now()
            if waited > launch.join_s:
                reason = errno.errorcode.get(e.errno, e)
                what = (
                    f"nobody answers at {address[0]}:{address[1]} after {waited:.0f} s ({reason})"
                )
                do = (
                    "check that rank 0 was started, that MASTER_ADDR is its host, "
                    "and that no firewall blocks the port"
                )
                raise DistError(
                    what, _place(launch), "rank 0 listening on MASTER_ADDR:MASTER_PORT", do
                ) from e
            if waited > check_s and not told:
                told = True
                logger.warning("rank %d waits for rank 0 at %s:%d", launch.rank, *address)
        time.sleep(0.1)
    try:
        # Another program may accept and never answer; torch ignores its own time-out then.
        return _within(
            check_s, lambda: TCPStore(*address, is_master=False, timeout=timedelta(seconds=check_s))
        )
    except (TimeoutError, TorchDistError) as e:
        what = f"what listens at {address[0]}:{address[1]} is not the store of this run"
        do = "choose another MASTER_PORT, the same on all ranks"
        raise DistError(what, _place(launch), "rank 0 of the same run on that port", do) from e


def _name_of_start(tcp: Store, launch: LaunchInfo) -> str:
    """A name for this start of the ranks, chosen by rank 0: the store also holds the keys of starts
    before a restart.

    TORCHELASTIC_RESTART_COUNT differs between the agents of torchrun: each counts only the restarts
    that it asked for. So every rank sends a request with a random id, which only a rank 0 of the
    same start answers.
    """
    mine = uuid.uuid4().hex
    if launch.rank == 0:
        request = tcp.clone(), mine, launch.join_s
        threading.Thread(
            target=_answer_requests, args=request, daemon=True, name="rendezvous"
        ).start()
        return mine
    tcp.set(f"request/{tcp.add('requests', 1)}", mine)
    if not wait_for(tcp, f"answer/{mine}", launch.join_s, lambda: "rank 0"):
        raise _not_arrived("rank 0", launch)
    return tcp.get(f"answer/{mine}").decode()


def _answer_requests(tcp: Store, name: str, limit_s: float) -> None:
    """In a thread of rank 0, until all ranks have met.

    Nobody reads the answers to ranks of an earlier start.
    """
    heard, unanswered, clock = 0, set(), AwakeClock(1.0)
    with suppress(RuntimeError):  # the store is lost
        while clock.now() < limit_s and not tcp.check([f"spikevrt/{name}/{MET}"]):
            count = tcp.add("requests", 0)
            unanswered |= set(range(heard + 1, count + 1))
            heard = count
            for number in [n for n in unanswered if tcp.check([f"request/{n}"])]:
                tcp.set(f"answer/{tcp.get(f'request/{number}').decode()}", name)
                unanswered.remove(number)
            time.sleep(0.1)


def meet(store: Store, launch: LaunchInfo) -> None:
    """Wait until every rank has arrived: a few requests per rank, whatever the number of ranks.

    Collective.

    Ranks may be started minutes apart: rank 0 names the missing ones after 10 s, and raises
    DistError after SPIKEVRT_JOIN_TIMEOUT seconds (default 300).
    """
    store.add(JOINED, 1)
    if RUN.job_key:
        store.set(f"proof/{launch.rank}", sealed(f"proof/{launch.rank}", "here"))
    if store.add(f"arrived/{launch.rank}", 1) > 1:
        expected, do = (
            "each RANK once",
            "correct RANK, or end the other run that uses this MASTER_PORT",
        )
        raise DistError(f"rank {launch.rank} arrived twice", _place(launch), expected, do)
    if store.add("arrived", 1) == launch.world_size:
        store.set(MET, "1")

    def missing() -> str:
        ranks = [rank for rank in range(launch.world_size) if not store.check([f"arrived/{rank}"])]
        noun = "ranks" if len(ranks) > 1 else "rank"
        return f"{noun} {', '.join(map(str, ranks))} of {launch.world_size}"

    # Only rank 0 looks up the missing ranks. The others end after its report; if rank 0 is missing,
    # they report it.
    is_first = launch.rank == 0
    if not wait_for(
        store, MET, launch.join_s + (0 if is_first else 3), missing if is_first else None
    ):
        raise _not_arrived(missing() if is_first else "rank 0", launch)
    if RUN.job_key:
        # Rank 0 asks every rank for its proof, and every rank asks rank 0.
        _refuse_strangers(store, range(launch.world_size) if is_first else [0], launch)


def _refuse_strangers(store: Store, ranks: Iterable[int], launch: LaunchInfo) -> None:
    """Raise DistError if one of these ranks does not have the job key."""
    for rank in ranks:
        key = f"proof/{rank}"
        try:
            # A stranger that has not read this program leaves no proof at all.
            unsealed(key, store.get(key) if store.check([key]) else b"")
        except ForeignValueError as e:
            raise DistError(
                what=f"what arrived as rank {rank} does not have the key of this start",
                where=_place(launch),
                expected="ranks of one start alone; each has SPIKEVRT_JOB_KEY from its launcher",
                do="if you start the ranks yourself, give all of them the same SPIKEVRT_JOB_KEY, "
                "or unset it; else somebody else reaches the port: see docs/ddp.md on trust",
            ) from e


def _not_arrived(ranks: str, launch: LaunchInfo) -> DistError:
    what = f"{ranks} did not arrive in {launch.join_s:.0f} s"
    do = "look into the logs of these ranks; SPIKEVRT_JOIN_TIMEOUT sets the seconds to wait"
    return DistError(what, _place(launch), "WORLD_SIZE processes, each with its own RANK", do)


class Round:
    """A barrier at which each rank reports success or failure: a few requests per rank, however
    many ranks.
    """

    def __init__(self, store: Store, name: str, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.arrived, self.failed, self.over = (
            f"{name}/{key}" for key in ("arrived", "failed", "over")
        )

    def arrive(self, code: int | None = None) -> None:
        """Arrive. The last rank to arrive lets all ranks read the outcome.

        code: the exit code if this rank failed.
        """
        mine = "" if code is None else sealed(self.failed, f"{self.rank} {code}")
        noted = self.store.compare_set(self.failed, "", mine)
        while mine:
            failure = self._failure(noted)
            if failure is None or failure[0] <= self.rank:  # the lowest rank that failed counts
                break
            noted = self.store.compare_set(self.failed, noted.decode(), mine)
        if self.store.add(self.arrived, 1) == self.world_size:
            self.store.set(self.over, "1")

    def wait(self, seconds: float = float("inf")) -> tuple[int, int] | None:
        """Return the lowest rank that failed and its exit code, or None if none failed.

        Waits until all ranks have arrived, or the time is over.
        """
        wait_for(self.store, self.over, seconds)
        return self._failure(self.store.get(self.failed))

    def _failure(self, value: bytes) -> tuple[int, int] | None:
        """Return what `arrive` noted. Raises ForeignValueError if no rank of the run wrote it."""
        if not value:
            return None
        try:
            rank, code = (int(word) for word in unsealed(self.failed, value).split())
        except ValueError as e:
            raise foreign(self.failed) from e
        if rank not in range(self.world_size) or code not in FAILURE_CODES:
            raise foreign(self.failed)
        return rank, code


def wait_for(
    store: Store, key: str, seconds: float, missing: Callable[[], str] | None = None
) -> bool:
    """Whether the key comes within this time. missing: what to say after 10 s that this waits for.

    Polls, in the end four times a second: torch's own wait ignores Ctrl-C, and prints when the time
    is over.
    """
    clock, pause_s, told = AwakeClock(1.0), 0.01, False
    while not store.check([key]):
        waited = clock.now()
        if waited > seconds:
            return False
        if missing and waited > CHECK_S and not told:
            told = True
            logger.warning("waiting for %s", missing())
        time.sleep(pause_s)
        pause_s = min(0.25, 1.3 * pause_s)
    return True


def _place(launch: LaunchInfo) -> str:
    place = f"rank {launch.rank} of {launch.world_size} on {socket.gethostname()}"
    return f"{place} ({launch.mode} launch)"


def _within(seconds: float, function: Callable[[], T]) -> T:
    """function(), or TimeoutError; a call that hangs stays behind in its thread, which cannot be
    ended.
    """
    call, clock = futures.ThreadPoolExecutor(1).submit(function), AwakeClock(1.0)
    while not call.done() and (left_s := seconds - clock.now()) > 0:
        futures.wait([call], min(0.5, left_s))
    if not call.done():
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return call.result()

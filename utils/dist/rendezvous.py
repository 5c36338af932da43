"""How the ranks find each other: through a key-value store on rank 0, within time limits.

The store is a server within a process, mostly rank 0. All ranks connect to it, and exchange short
texts under keys.

torch alone would wait for ever if another program listens on the port. It says "timed out" if the
name of a host has no address, and it does not name the ranks that are missing. So this module
checks each step of the meeting itself:

1. `open_store`: rank 0 opens the store at MASTER_ADDR:MASTER_PORT, the other ranks connect.
2. `meet`: each rank notes in the store that it has arrived, and waits until all ranks have.

Later in the run, `Round` is a barrier through the same store, at which each rank says whether it
has failed. `utils_dist.all_ranks_or_none` uses it. `utils_dist.ranks` calls the rest.

The keys of the meeting, in a run of 4 ranks:

    arrived/0 ... arrived/3   1 each; 2 if two processes have the same RANK
    arrived                   4, the number of ranks that have arrived; the last one then sets `met`
    met                       1
    joined                    4, the number of processes that have begun to arrive; a second process
                              with the same RANK counts too
    proof/0 ... proof/3       present if the launcher has given all ranks a job key, a secret

What must stay:

    the requests of a rank and their order, because all ranks wait for the keys in the same order
        test_ranks_that_do_not_meet_end_with_one_message_that_says_why
    the number of requests of a rank, which does not grow with the number of ranks
        test_each_request_of_a_start_is_for_one_key

Free to change: time limits and texts.

Tests: tests/faults/test_startup.py, tests/dist/test_torchrun.py, tests/dist/test_trust.py.
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
from typing import NamedTuple, TypeVar

from torch.distributed import DistError as TorchDistError
from torch.distributed import PrefixStore, Store, TCPStore

from utils.dist.awake_clock import AwakeClock
from utils.dist.state import RUN, LaunchInfo
from utils.dist.store_values import (
    FAILURE_CODES,
    ForeignValueError,
    foreign_value,
    seal,
    unseal,
)
from utils.errors import DistError

logger = logging.getLogger(__name__)

# Time limit of each check in seconds. SPIKEVRT_JOIN_TIMEOUT counts if it is shorter. The start of
# Python and torch comes before, so with 10 s a user sees a wrong launch within 15 s.
CHECK_S = 10.0

# The key of the number of processes that have joined. A rank that joined twice counts twice.
JOINED = "joined"
# The key that the last rank sets when it arrives.
MET = "met"

# The type of the result of the function that `_within` calls.
Result = TypeVar("Result")


# ---- Opening the store -----------------------------------------------------------------------


def open_store(launch: LaunchInfo) -> Store:
    """Open the store on rank 0, or connect to it on the other ranks. Returns the store.

    The store puts a prefix in front of each key: "spikevrt/", or "spikevrt/<name of the start>" if
    torchrun's agent has opened the store.

    Raises DistError if this does not succeed within the time limits.
    """
    _check_address_resolves(launch)
    # torchrun's agent (the parent process of the ranks) may have opened a store already. Then rank
    # 0 only connects to this store, as the other ranks do.
    is_host = launch.rank == 0 and not launch.by_agent
    tcp_store = _open_on_rank_0(launch) if is_host else _connect(launch)
    # An agent keeps its store if it restarts the ranks, so the keys of each start need a name.
    start = _name_of_start(tcp_store, launch) if launch.by_agent else ""
    return PrefixStore(f"spikevrt/{start}", tcp_store)


def _check_address_resolves(launch: LaunchInfo) -> None:
    """Raise DistError if the name MASTER_ADDR has no address.

    A cloud may enter the name into its DNS a moment after it has started the containers, so this
    looks up the name again for a while.
    """
    clock = AwakeClock()
    limit_s = min(CHECK_S, launch.join_s)
    while True:
        left_s = limit_s - clock.now()
        try:
            _within(left_s, lambda: socket.getaddrinfo(launch.master_addr, launch.master_port))
            return
        except (OSError, TimeoutError) as e:
            # A single look-up may take seconds. So look up once more only if 5 s are left.
            least_left_s = CHECK_S / 2
            if clock.now() > limit_s - least_left_s:
                raise DistError(
                    what=f"MASTER_ADDR does not resolve: {launch.master_addr}",
                    where=_place(launch),
                    expected="the name or address of the host of rank 0",
                    do=f"correct MASTER_ADDR ({e})",
                ) from e
        time.sleep(0.5)


def _open_on_rank_0(launch: LaunchInfo) -> TCPStore:
    """Open the store. Raises DistError if the port is in use, or MASTER_ADDR is another host."""
    address = f"{launch.master_addr}:{launch.master_port}"
    try:
        return _within(min(CHECK_S, launch.join_s), lambda: _hosted_store(launch))
    except TimeoutError as e:
        # torch's store also connects to itself at MASTER_ADDR. This hangs if MASTER_ADDR is
        # another host.
        raise DistError(
            what=f"rank 0 cannot reach its own store at {address}",
            where=_place(launch),
            expected="MASTER_ADDR names the host that rank 0 runs on",
            do="correct MASTER_ADDR",
        ) from e
    except (TorchDistError, OSError) as e:
        do = "choose another MASTER_PORT (the same on all ranks), or end what listens there"
        if "EADDRINUSE" in str(e) or "in use" in str(e):
            what = f"port {launch.master_port} is in use"
        else:
            what = f"cannot open port {launch.master_port}"
            do += f"; torch says: {str(e).splitlines()[0]}"
        raise DistError(
            what=what,
            where=_place(launch),
            expected="a free MASTER_PORT on the host of rank 0",
            do=do,
        ) from e


def _hosted_store(launch: LaunchInfo) -> TCPStore:
    """Open the store of the run on the address of MASTER_ADDR alone.

    torch by itself would listen on every address of the host, so that any host of the network could
    write into the store, even if MASTER_ADDR is 127.0.0.1. Test:
    test_ranks_of_one_host_listen_on_the_loopback_alone.
    """
    host = launch.master_addr
    port = launch.master_port
    # wait_for_workers=False below, because `meet` waits for the other ranks.
    listener = _listener(host, port)
    if listener is None:  # let torch listen on every address
        return TCPStore(host, port, is_master=True, wait_for_workers=False)
    # The store takes over the open socket, and closes it with itself.
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _listener(name: str, port: int) -> socket.socket | None:
    """Return a socket that listens on the address of MASTER_ADDR, and on no other address.

    Returns None if this host cannot know the address that the other hosts use. There are two such
    cases: a cloud forwards MASTER_ADDR to this host, or this host resolves its own name to a
    loopback address, as Debian does. The store then listens on every address.
    """
    # The first address that the system knows for the name. `address` is what `bind` takes, e.g.
    # ("10.0.0.1", 29500).
    addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = addresses[0]
    # An IPv6 address may have a suffix that names a network card, e.g. "fe80::1%eth0".
    host = str(address[0]).partition("%")[0]
    if ipaddress.ip_address(host).is_loopback and not is_loopback_name(name):
        return None  # as on Debian
    listener = socket.socket(family, kind, protocol)
    try:
        # Without this option the port could not be used for a minute after an earlier run.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as e:
        listener.close()
        if e.errno == errno.EADDRNOTAVAIL:  # no address of this host: a cloud forwards it
            return None
        raise
    return listener


def is_loopback_name(name: str) -> bool:
    """Whether a name means "this host itself" on every host, e.g. "localhost" or "127.0.0.1"."""
    if name.lower() in ("localhost", "ip6-localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:  # another name
        return False


def _connect(launch: LaunchInfo) -> TCPStore:
    """Wait until the store is open, and connect to it. Returns a client of the store."""
    _wait_until_open(launch)
    host = launch.master_addr
    port = launch.master_port
    check_s = min(CHECK_S, launch.join_s)
    try:
        # Another program may listen at the port, accept the connection and never answer. In this
        # case torch ignores its own time-out.
        return _within(
            check_s,
            lambda: TCPStore(host, port, is_master=False, timeout=timedelta(seconds=check_s)),
        )
    except (TimeoutError, TorchDistError) as e:
        raise DistError(
            what=f"what listens at {host}:{port} is not the store of this run",
            where=_place(launch),
            expected="rank 0 of the same run on that port",
            do="choose another MASTER_PORT, the same on all ranks",
        ) from e


def _wait_until_open(launch: LaunchInfo) -> None:
    """Wait until somebody accepts connections at MASTER_ADDR:MASTER_PORT.

    This tries plain connections, because their errors tell more than the errors of torch. Raises
    DistError after SPIKEVRT_JOIN_TIMEOUT seconds. A line in the log tells of a long wait.
    """
    host = launch.master_addr
    port = launch.master_port
    clock = AwakeClock()
    has_warned = False
    while True:
        try:
            # An attempt takes 5 s at most. Otherwise a lost packet could cost minutes, the system's
            # own time-out.
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as e:
            waited_s = clock.now()
            if waited_s > launch.join_s:
                reason = errno.errorcode.get(e.errno, e)  # e.g. "ECONNREFUSED"
                raise DistError(
                    what=f"nobody answers at {host}:{port} after {waited_s:.0f} s ({reason})",
                    where=_place(launch),
                    expected="rank 0 listening on MASTER_ADDR:MASTER_PORT",
                    do="check that rank 0 was started, that MASTER_ADDR is its host, "
                    "and that no firewall blocks the port",
                ) from e
            if waited_s > min(CHECK_S, launch.join_s) and not has_warned:
                has_warned = True
                logger.warning("rank %d waits for rank 0 at %s:%d", launch.rank, host, port)
        time.sleep(0.1)


# ---- Several starts in one store -------------------------------------------------------------


def _name_of_start(tcp_store: Store, launch: LaunchInfo) -> str:
    """Return a name for this start of the ranks, e.g. "9f86d081884c...". Rank 0 chooses the name.

    If torchrun restarts the ranks, its store still holds the keys of the earlier start. The name of
    the start is a prefix of all keys, so that ranks never read keys of an earlier start.

    torchrun's own count of restarts (TORCHELASTIC_RESTART_COUNT) cannot be the name. The count
    differs between the agents of torchrun, because each agent counts only the restarts that it
    asked for. So every other rank asks rank 0 for the name:

        requests            5, the number of requests so far
        request/5           a random id, from the rank that has sent the fifth request
        answer/<random id>  the name of the start, from rank 0

    The rank 0 of an earlier start has ended, so only the rank 0 of this start can answer.
    """
    own_id = uuid.uuid4().hex
    if launch.rank == 0:
        # The id of rank 0 is the name. A thread tells it to the other ranks. `clone`, because each
        # thread needs a connection of its own.
        arguments = (tcp_store.clone(), own_id, launch.join_s)
        threading.Thread(
            target=_answer_requests, args=arguments, daemon=True, name="rendezvous"
        ).start()
        return own_id
    request_number = tcp_store.add("requests", 1)  # adds 1, and returns the new number
    tcp_store.set(f"request/{request_number}", own_id)
    key = f"answer/{own_id}"
    if not wait_for(tcp_store, key, launch.join_s, what_is_missing=lambda: "rank 0"):
        raise _not_arrived("rank 0", launch)
    return tcp_store.get(key).decode()


def _answer_requests(tcp_store: Store, name: str, limit_s: float) -> None:
    """Answer the requests of `_name_of_start`, until all ranks have met.

    This runs in a thread of rank 0. It also answers requests of an earlier start. Those ranks have
    ended, so nobody reads these answers.

    name: the name of this start.
    limit_s: seconds after which the thread ends in any case.
    """
    known_count = 0  # number of requests that this thread knows of; they are counted from 1
    unanswered = set()  # numbers of requests
    clock = AwakeClock(slice_s=1.0)
    with suppress(RuntimeError):  # the store is lost
        while clock.now() < limit_s and not tcp_store.check([f"spikevrt/{name}/{MET}"]):
            count = tcp_store.add("requests", 0)  # adding 0 reads the number
            # E.g. 3 requests were known and now there are 5: requests 4 and 5 are new.
            unanswered.update(range(known_count + 1, count + 1))
            known_count = count
            # A rank takes its number first and writes its request after that. So a request may not
            # be there yet.
            for number in list(unanswered):
                if tcp_store.check([f"request/{number}"]):
                    # "replace": a request that is no text, which a stranger wrote, must not end
                    # this thread. Nobody reads the answer to it.
                    asker_id = tcp_store.get(f"request/{number}").decode(errors="replace")
                    tcp_store.set(f"answer/{asker_id}", name)
                    unanswered.remove(number)
            time.sleep(0.1)


# ---- The meeting -----------------------------------------------------------------------------


def meet(store: Store, launch: LaunchInfo) -> None:
    """Wait until every rank has arrived. Collective: every rank calls it.

    Each rank makes a few requests to the store, whatever the number of ranks. Ranks may be started
    minutes apart. After 10 s, rank 0 logs which ranks are missing.

    Raises DistError if not all ranks have arrived after SPIKEVRT_JOIN_TIMEOUT seconds (default
    300), or if two processes have the same rank.
    """
    _note_arrival(store, launch)
    _wait_for_all(store, launch)
    if RUN.job_key:
        # Rank 0 checks the proof of every rank. Every other rank checks the proof of rank 0.
        ranks_to_check = range(launch.world_size) if launch.rank == 0 else [0]
        _refuse_strangers(store, ranks_to_check, launch)


def _note_arrival(store: Store, launch: LaunchInfo) -> None:
    """Write into the store that this rank has arrived. The last rank writes MET.

    The order of the requests must stay. E.g. the proof must be in the store before MET, because the
    other ranks read it as soon as they see MET.
    """
    store.add(JOINED, 1)
    # `seal` adds a signature that only a process with the job key can make.
    if RUN.job_key:
        proof_key = f"proof/{launch.rank}"
        store.set(proof_key, seal(proof_key, "here"))
    # `add` returns the new number. It is 2 if another process had this rank before.
    if store.add(f"arrived/{launch.rank}", 1) > 1:
        raise DistError(
            what=f"rank {launch.rank} arrived twice",
            where=_place(launch),
            expected="each RANK once",
            do="correct RANK, or end the other run that uses this MASTER_PORT",
        )
    if store.add("arrived", 1) == launch.world_size:  # this rank is the last one
        store.set(MET, "1")


def _wait_for_all(store: Store, launch: LaunchInfo) -> None:
    """Wait until the last rank has written MET. Raises DistError after SPIKEVRT_JOIN_TIMEOUT s."""
    if launch.rank == 0:
        # Only rank 0 looks up the missing ranks, with one request for each rank.
        def missing_ranks() -> str:
            return _missing_ranks(store, launch.world_size)

        if not wait_for(store, MET, launch.join_s, what_is_missing=missing_ranks):
            raise _not_arrived(missing_ranks(), launch)
    else:
        # The other ranks wait 3 s longer, so that rank 0 can report first and end the run. If the
        # run has not ended then, rank 0 is missing.
        if not wait_for(store, MET, launch.join_s + 3):
            raise _not_arrived("rank 0", launch)


def _missing_ranks(store: Store, world_size: int) -> str:
    """Return the ranks that have not arrived, e.g. "ranks 2, 5 of 8"."""
    numbers = []
    for rank in range(world_size):
        if not store.check([f"arrived/{rank}"]):
            numbers.append(str(rank))
    noun = "ranks" if len(numbers) > 1 else "rank"
    return f"{noun} {', '.join(numbers)} of {world_size}"


def _refuse_strangers(store: Store, ranks: Iterable[int], launch: LaunchInfo) -> None:
    """Raise DistError if one of these ranks does not have the job key."""
    for rank in ranks:
        key = f"proof/{rank}"
        # A process of another program leaves no proof at all. The empty text is a wrong proof.
        proof = store.get(key) if store.check([key]) else b""
        try:
            unseal(key, proof)
        except ForeignValueError as e:
            raise DistError(
                what=f"what arrived as rank {rank} does not have the key of this start",
                where=_place(launch),
                expected="ranks of one start alone; each has SPIKEVRT_JOB_KEY from its launcher",
                do="if you start the ranks yourself, give all of them the same SPIKEVRT_JOB_KEY, "
                "or unset it; else somebody else reaches the port: see docs/ddp.md on trust",
            ) from e


def _not_arrived(ranks: str, launch: LaunchInfo) -> DistError:
    """Return the error of a meeting that lasts too long. ranks: e.g. "ranks 2, 5 of 8"."""
    return DistError(
        what=f"{ranks} did not arrive in {launch.join_s:.0f} s",
        where=_place(launch),
        expected="WORLD_SIZE processes, each with its own RANK",
        do="look into the logs of these ranks; SPIKEVRT_JOIN_TIMEOUT sets the seconds to wait",
    )


# ---- A barrier with outcomes -----------------------------------------------------------------


class FailedRank(NamedTuple):
    """A rank that reported a failure at a `Round`."""

    rank: int
    code: int  # its exit code


class Round:
    """A barrier at which each rank reports success or failure.

    Each rank calls `arrive`. After that, `wait` returns the same outcome on all ranks. Each rank
    makes a few requests to the store, whatever the number of ranks. The keys of a round named
    "round/7":

        round/7/arrived   number of ranks that have arrived
        round/7/failed    "3 2": rank 3 failed with exit code 2, and no lower rank failed; empty if
                          no rank failed
        round/7/over      present when all ranks have arrived
    """

    def __init__(self, store: Store, name: str, rank: int, world_size: int) -> None:
        """name: name of this round. It is the same on all ranks, and no other round has it.
        rank: number of this rank.
        """
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.arrived_key = f"{name}/arrived"
        self.failed_key = f"{name}/failed"
        self.over_key = f"{name}/over"

    def arrive(self, code: int | None = None) -> None:
        """Report success or failure, and count this rank as arrived.

        The failure must be in the store before this rank counts as arrived, because the other ranks
        read the outcome as soon as the last rank has arrived. The lowest rank that failed counts.
        E.g. the ranks 5, 2 and 3 fail, in this order, with exit code 1:

            rank 5   finds ""      writes "5 1"
            rank 2   finds "5 1"   writes "2 1"
            rank 3   finds "2 1"   writes nothing

        code: the exit code if this rank failed, or None if it did not.
        """
        # compare_set(key, expected, new) writes `new` if the key holds `expected`, and returns what
        # the key then holds. A rank without a failure writes "", because `get` in `wait` would
        # wait for a key that nobody has written.
        own_value = "" if code is None else seal(self.failed_key, f"{self.rank} {code}")
        value = self.store.compare_set(self.failed_key, "", own_value)
        if own_value:
            # Replace the failure of a higher rank. Between two requests, a third rank may replace
            # it too. Then compare_set writes nothing and returns the new failure, which is compared
            # in the next turn.
            failure = self._failure(value)
            while failure is not None and failure.rank > self.rank:
                value = self.store.compare_set(self.failed_key, value.decode(), own_value)
                failure = self._failure(value)
        if self.store.add(self.arrived_key, 1) == self.world_size:
            self.store.set(self.over_key, "1")

    def wait(self, seconds: float = float("inf")) -> FailedRank | None:
        """Wait until all ranks have arrived, or the time is over.

        Returns the lowest rank that has failed so far, or None if none has failed.
        """
        wait_for(self.store, self.over_key, seconds)
        return self._failure(self.store.get(self.failed_key))

    def _failure(self, value: bytes) -> FailedRank | None:
        """Return the failure that `arrive` noted, or None for an empty value.

        value: what the store holds under the key <name>/failed, e.g. b"3 2".

        Raises ForeignValueError if no rank of the run wrote the value.
        """
        if not value:
            return None
        try:
            rank_text, code_text = unseal(self.failed_key, value).split()
            rank = int(rank_text)
            code = int(code_text)
        except ValueError as e:  # not two words, or no numbers
            raise foreign_value(self.failed_key) from e
        if rank not in range(self.world_size) or code not in FAILURE_CODES:
            raise foreign_value(self.failed_key)
        return FailedRank(rank, code)


# ---- Waiting ---------------------------------------------------------------------------------


def wait_for(
    store: Store, key: str, seconds: float, what_is_missing: Callable[[], str] | None = None
) -> bool:
    """Wait until the store has the key. Returns whether it has, False if the time is over.

    torch's own wait ignores Ctrl-C, and prints a message when its time is over. So this function
    asks the store again and again: first after 10 ms, then less and less often, in the end four
    times a second.

    seconds: longest time to wait. Time in which the process is suspended does not count.
    what_is_missing: function that returns what this waits for, e.g. "rank 0". The text is logged
        once, after 10 s. None to log nothing.
    """
    clock = AwakeClock(slice_s=1.0)
    pause_s = 0.01
    has_warned = False
    while not store.check([key]):
        waited_s = clock.now()
        if waited_s > seconds:
            return False
        if what_is_missing and waited_s > CHECK_S and not has_warned:
            has_warned = True
            logger.warning("waiting for %s", what_is_missing())
        time.sleep(pause_s)
        pause_s = min(0.25, 1.3 * pause_s)
    return True


def _within(seconds: float, function: Callable[[], Result]) -> Result:
    """Return the result of `function`, or raise TimeoutError if it takes longer than `seconds`.

    The function runs in a thread. If the function hangs, its thread stays behind, because Python
    cannot end a thread.
    """
    call = futures.ThreadPoolExecutor(max_workers=1).submit(function)
    clock = AwakeClock(slice_s=1.0)
    while not call.done():
        left_s = seconds - clock.now()
        if left_s <= 0:
            break
        # Wait in slices of half a second. If the clock is asked less than once a second, it takes
        # the time for a suspended process.
        futures.wait([call], min(0.5, left_s))
    if not call.done():
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return call.result()


def _place(launch: LaunchInfo) -> str:
    """Return the rank and its host, for errors: "rank 1 of 4 on host a (torchrun launch)"."""
    rank = f"rank {launch.rank} of {launch.world_size}"
    return f"{rank} on {socket.gethostname()} ({launch.mode} launch)"

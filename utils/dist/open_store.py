"""Open the key-value store of a run on rank 0, and connect to it on the other ranks.

The store is a server in the process of rank 0, or in torchrun. All ranks connect to it, and
exchange short texts under keys.

If another program listens on the port, torch itself waits forever. If the name of a host has no
address, torch says only "timed out". So `open_store` checks each step, and says which step failed:

    MASTER_ADDR has an address    `_check_address_resolves`
    rank 0 can open the port      `_open_on_rank_0`
    somebody listens there        `_wait_until_open`
    it is the store of this run   `_connect`, `_refuse_run_under_way`

The functions here take `launch`, the `LaunchInfo` (state.py) of this process. It has the number of
this rank, the address of the store, and the longest time to wait (`join_s`).

If torchrun restarts the ranks, its store still has the keys of the earlier start. So the keys of
each start get a prefix of their own (`name_of_start`).

What must stay: the ranks of one host listen only on the loopback address
(test_ranks_of_one_host_listen_on_the_loopback_alone); the number of requests of a rank does not
grow with the number of ranks (test_each_request_of_a_start_is_for_one_key). Free to change: time
limits and texts.

Tests: tests/faults/test_startup.py, tests/faults/test_scale.py, tests/dist/test_torchrun.py,
tests/dist/test_trust.py.
"""

import errno
import ipaddress
import logging
import socket
import threading
import time
import uuid
from contextlib import suppress
from datetime import timedelta

from torch.distributed import DistError as TorchDistError
from torch.distributed import PrefixStore, Store, TCPStore

from utils.dist.awake_clock import AwakeClock
from utils.dist.rendezvous import MET, not_arrived
from utils.dist.state import LaunchInfo
from utils.dist.waiting import CHECK_S, rank_on_host, wait_for, within
from utils.errors import DistError

logger = logging.getLogger(__name__)

# The limit of the requests that rank 0 looks for at a time is at least this number
# (`_answer_requests`). It must be larger than the number of ranks of the start before, because
# these ranks may ask until they end. Chosen by hand: looking for 1024 requests took 0.13 s on one
# host.
LEAST_BOUND = 1024


def open_store(launch: LaunchInfo) -> Store:
    """Open the store on rank 0, or connect to it on the other ranks. Returns the store.

    The store puts a prefix in front of each key: "spikevrt/", or "spikevrt/<name of the start>" if
    torchrun's agent has opened the store.

    Raises DistError if this does not succeed within the time limits.
    """
    _check_address_resolves(launch)
    # torchrun's agent (the parent process of the ranks) may have opened a store already. Then rank
    # 0 only connects to this store, as the other ranks do.
    opens_store = launch.rank == 0 and not launch.is_store_of_agent
    tcp_store = _open_on_rank_0(launch) if opens_store else _connect(launch)
    # An agent keeps its store if it restarts the ranks, so the keys of each start need a name.
    start = name_of_start(tcp_store, launch) if launch.is_store_of_agent else ""
    store = PrefixStore(f"spikevrt/{start}", tcp_store)
    if not opens_store:  # nobody can have met yet in a store that this rank has just opened
        _refuse_run_under_way(store, launch)
    return store


def _check_address_resolves(launch: LaunchInfo) -> None:
    """Raise DistError if the name MASTER_ADDR has no address.

    A cloud may enter the name into its DNS after it has started the containers. So this function
    looks up the name several times, for at most CHECK_S seconds (10 s).
    """
    clock = AwakeClock()  # counts the seconds in which this process runs
    limit_s = min(CHECK_S, launch.join_s)
    # A single look-up may take seconds. So no look-up begins in the last 5 s. E.g. if limit_s is
    # 10, the last look-up begins at 5 s at the latest. If limit_s is below 5 s, there is a single
    # look-up.
    last_begin_s = limit_s - CHECK_S / 2

    def look_up() -> None:
        socket.getaddrinfo(launch.master_addr, launch.master_port)

    while True:
        left_s = limit_s - clock.now()
        try:
            within(left_s, look_up)  # raises TimeoutError after left_s
            return
        except (OSError, TimeoutError) as e:
            if clock.now() > last_begin_s:
                raise DistError(
                    what=f"MASTER_ADDR does not resolve: {launch.master_addr}",
                    where=rank_on_host(launch),
                    expected="the name or address of the host of rank 0",
                    do=f"correct MASTER_ADDR ({e})",
                ) from e
        time.sleep(0.5)


def _open_on_rank_0(launch: LaunchInfo) -> TCPStore:
    """Open the store. Raises DistError if the port is in use, or MASTER_ADDR is another host."""
    address = f"{launch.master_addr}:{launch.master_port}"
    check_s = min(CHECK_S, launch.join_s)

    def hosted_store() -> TCPStore:
        return _hosted_store(launch)

    try:
        return within(check_s, hosted_store)  # raises TimeoutError after check_s
    except TimeoutError as e:
        # torch's store also connects to itself at MASTER_ADDR. This hangs if MASTER_ADDR is
        # another host.
        raise DistError(
            what=f"rank 0 cannot reach its own store at {address}",
            where=rank_on_host(launch),
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
            where=rank_on_host(launch),
            expected="a free MASTER_PORT on the host of rank 0",
            do=do,
        ) from e


def _hosted_store(launch: LaunchInfo) -> TCPStore:
    """Open the store of the run on the address of MASTER_ADDR, and on no other address.

    Without the socket of `_listener`, torch would listen on every address of the host, even if
    MASTER_ADDR is 127.0.0.1. Then any host of the network could write into the store. Test:
    test_ranks_of_one_host_listen_on_the_loopback_alone.
    """
    host = launch.master_addr
    port = launch.master_port
    listener = _listener(host, port)
    # wait_for_workers=False: this call does not wait for the other ranks. `meet` (rendezvous.py)
    # waits for them later.
    if listener is None:  # let torch listen on every address
        return TCPStore(host, port, is_master=True, wait_for_workers=False)
    # The store takes over the open socket, and closes it with itself.
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _listener(name: str, port: int) -> socket.socket | None:
    """Return a socket that listens on the address of MASTER_ADDR, and on no other address.

    Returns None if this host does not know the address by which other hosts reach it. The store
    then listens on every address. There are two such cases:

    * A cloud forwards MASTER_ADDR to this host, which has another address itself.
    * This host resolves its own name to a loopback address (127...), as Debian does.
    """
    # Take the first address that the system knows for the name. It has five values: the three
    # arguments of `socket.socket` (family, kind, protocol), a name that is not needed, and the
    # argument of `bind`, e.g. ("10.0.0.1", 29500).
    addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = addresses[0]
    # An IPv6 address may have a suffix that names a network card, e.g. "fe80::1%eth0".
    host = str(address[0]).partition("%")[0]
    if ipaddress.ip_address(host).is_loopback and not is_loopback_name(name):
        return None  # the second case above
    listener = socket.socket(family, kind, protocol)
    try:
        # Without this option the port could not be used for a minute after an earlier run.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as e:
        listener.close()
        # This host does not have the address, because a cloud forwards connections to this host.
        if e.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return listener


def is_loopback_name(name: str) -> bool:
    """Return whether a name means "this host itself" on every host: "localhost", "127.0.0.1"."""
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
    check_s = min(CHECK_S, launch.join_s)  # join_s is the user's SPIKEVRT_JOIN_TIMEOUT

    def client() -> TCPStore:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=check_s))

    try:
        # Another program may listen at the port, accept the connection and never answer. In this
        # case torch ignores its own time-out. So `within` raises TimeoutError after check_s.
        return within(check_s, client)
    except (TimeoutError, TorchDistError) as e:
        raise DistError(
            what=f"what listens at {host}:{port} is not the store of this run",
            where=rank_on_host(launch),
            expected="rank 0 of the same run on that port",
            do="choose another MASTER_PORT, the same on all ranks",
        ) from e


def _wait_until_open(launch: LaunchInfo) -> None:
    """Wait until somebody accepts connections at MASTER_ADDR:MASTER_PORT.

    This tries plain connections, because their errors say more than the errors of torch. A wait of
    more than CHECK_S (10 s) is logged once. Raises DistError after SPIKEVRT_JOIN_TIMEOUT seconds.
    """
    host = launch.master_addr
    port = launch.master_port
    clock = AwakeClock()
    has_warned = False
    while True:
        try:
            # An attempt takes 5 s at most. Without this limit, an attempt whose packet is lost
            # could last for minutes, until the system's own time-out.
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as e:
            waited_s = clock.now()
            if waited_s > launch.join_s:
                # The name of the error's number, e.g. "ECONNREFUSED", or the error if it has none.
                reason = errno.errorcode.get(e.errno, e)
                raise DistError(
                    what=f"nobody answers at {host}:{port} after {waited_s:.0f} s ({reason})",
                    where=rank_on_host(launch),
                    expected="rank 0 listening on MASTER_ADDR:MASTER_PORT",
                    do="check that rank 0 was started, that MASTER_ADDR is its host, "
                    "and that no firewall blocks the port",
                ) from e
            if waited_s > min(CHECK_S, launch.join_s) and not has_warned:
                has_warned = True
                logger.warning("rank %d waits for rank 0 at %s:%d", launch.rank, host, port)
        time.sleep(0.1)


def _refuse_run_under_way(store: Store, launch: LaunchInfo) -> None:
    """Raise DistError if another run uses this port: a run whose ranks have all met.

    A second run may have the same MASTER_PORT by mistake. Its rank 0 finds the port in use, but its
    other ranks reach the store of the first run. If they wrote into this store, the first run would
    read values that no rank of it can have written, and would end by a ForeignValueError. So this
    check comes before a rank writes anything
    (test_a_second_run_at_the_same_port_leaves_the_first_run_alone).
    """
    # The last rank of a run writes MET. This rank has not arrived yet, so its own run has no MET.
    if not store.check([MET]):
        return
    raise DistError(
        what=f"another run is under way at {launch.master_addr}:{launch.master_port}: "
        "all of its ranks have met",
        where=rank_on_host(launch),
        expected="rank 0 of the same run on that port, and each RANK once",
        do="choose another MASTER_PORT, the same on all ranks, or end the other run",
    )


# ---- Several starts in one store -------------------------------------------------------------


def name_of_start(tcp_store: Store, launch: LaunchInfo) -> str:
    """Return a name for this start of the ranks, e.g. "9f86d081884c...". Rank 0 chooses the name.

    If torchrun restarts the ranks, its store still holds the keys of the earlier start. The name of
    the start is a prefix of all keys, so that ranks never read keys of an earlier start.

    torchrun's own count of restarts (TORCHELASTIC_RESTART_COUNT) cannot be the name. Each agent of
    torchrun counts only the restarts that it asked for, so the agents have different counts. So
    every other rank asks rank 0 for the name. The keys of this request:

        requests            5, the number of requests so far
        request/5           a random id, from the rank that has sent the fifth request
        answer/<random id>  the name of the start, from rank 0

    The rank 0 of an earlier start has ended, so only the rank 0 of this start can answer.
    """
    # On rank 0 this is the name of the start. On any other rank it is the id of its request.
    own_id = uuid.uuid4().hex
    if launch.rank == 0:
        # A thread sends the name to the other ranks. It gets a clone of the store, because each
        # thread needs a connection of its own.
        arguments = (tcp_store.clone(), own_id, launch)
        threading.Thread(
            target=_answer_requests, args=arguments, daemon=True, name="rendezvous"
        ).start()
        return own_id
    request_number = tcp_store.add("requests", 1)  # adds 1, and returns the new number
    tcp_store.set(f"request/{request_number}", own_id)
    key = f"answer/{own_id}"

    def missing_rank() -> str:
        return "rank 0"

    if not wait_for(tcp_store, key, launch.join_s, what_is_missing=missing_rank):
        raise not_arrived("rank 0", launch)
    return tcp_store.get(key).decode()


def _answer_requests(tcp_store: Store, name: str, launch: LaunchInfo) -> None:
    """Answer the requests of `name_of_start`, until all ranks have met, or join_s seconds are over.

    This runs in a thread of rank 0. It may also answer requests of an earlier start. The ranks of
    the earlier start have ended, so nobody reads the answers to them.

    Any program that reaches the port can write a huge number of requests into the store. So only
    the newest requests are looked for, at most 2 * world_size or LEAST_BOUND (1024), whichever is
    larger. The requests of this start are among them, because each rank asks once per start. Ranks
    of the start before may ask at the last moment. They are as many as this start has, or with an
    elastic launch (`--nnodes 1:4`) more, hence LEAST_BOUND.

    name: the name of this start.
    """
    most = max(2 * launch.world_size, LEAST_BOUND)
    known_count = 0  # number of requests that this thread knows of; they are counted from 1
    unanswered: set[int] = set()  # numbers of requests, at most `most`
    clock = AwakeClock(slice_s=1.0)
    # `open_store` puts the prefix "spikevrt/<name>/" in front of the keys of this start.
    # `tcp_store` has no prefix, so the key MET needs the prefix here.
    with suppress(RuntimeError):  # the store is lost
        while clock.now() < launch.join_s and not tcp_store.check([f"spikevrt/{name}/{MET}"]):
            count = tcp_store.add("requests", 0)  # adding 0 reads the number
            # E.g. if 3 requests were known and now there are 5, requests 4 and 5 are new. If there
            # are 9000 now, and `most` is 1024, only the requests 7977 ... 9000 are looked for.
            first_new = max(known_count, count - most) + 1
            unanswered.update(range(first_new, count + 1))
            known_count = count
            oldest_first = sorted(unanswered)
            unanswered = set(oldest_first[-most:])  # the newest requests, `most` of them at most
            unanswered -= _answer_written(tcp_store, unanswered, name)
            time.sleep(0.1)


def _answer_written(tcp_store: Store, numbers: set[int], name: str) -> set[int]:
    """Answer the requests that are in the store. Returns the numbers of the answered requests.

    A rank first takes its number, and then writes its request. So a request may still be missing.

    numbers: numbers of the requests that are not answered yet.
    name: the name of this start, which is the answer.
    """
    answered = set()
    for number in numbers:
        if not tcp_store.check([f"request/{number}"]):
            continue
        # Another program may have written a request that is not a text. Such a request must not end
        # this thread, so replace its wrong bytes. Nobody reads the answer to it.
        asker_id = tcp_store.get(f"request/{number}").decode(errors="replace")
        tcp_store.set(f"answer/{asker_id}", name)
        answered.add(number)
    return answered

"""Let all ranks meet in the store of the run, and name the ranks that are missing.

utils/dist/open_store.py has opened the store. Each rank notes in the store that it has arrived, and
waits until all ranks have arrived. The keys of the meeting, in a run of 4 ranks:

    arrived/0 ... arrived/3   1 each; 2 if two processes have the same RANK
    arrived                   4, the number of ranks that have arrived; the last rank sets `met`
    met                       1
    joined                    4, the number of processes that use the store, for which the store
                              waits before it ends (leave.py); a second process with the same RANK
                              counts too
    world_size                "4", written by the first rank; all ranks must expect this number
    proof/0 ... proof/3       present if the launcher has given all ranks a job key, a secret

The functions here take `launch`, the `LaunchInfo` (state.py) of this process. It has the number of
this rank, the number of ranks, and the longest time to wait (`join_s`).

What must stay:

    the requests of a rank and their order, because all ranks wait for the keys in the same order
        test_ranks_that_do_not_meet_end_with_one_message_that_says_why
    the number of requests of a rank, which does not grow with the number of ranks
        test_each_request_of_a_start_is_for_one_key

Free to change: time limits and texts.

Tests: tests/faults/test_startup.py, tests/faults/test_scale.py, tests/dist/test_torchrun.py,
tests/dist/test_trust.py.
"""

from collections.abc import Iterable

from torch.distributed import Store

from utils.dist.state import RUN, LaunchInfo
from utils.dist.store_values import ForeignValueError, seal, unseal
from utils.dist.waiting import rank_on_host, wait_for
from utils.errors import DistError, printable

# The key of the number of processes that use the store. Two processes with one RANK count twice.
JOINED = "joined"
# The key that the last rank sets when it arrives.
MET = "met"


def meet(store: Store, launch: LaunchInfo) -> None:
    """Wait until every rank has arrived. Collective: every rank calls it.

    Each rank makes a few requests to the store, whatever the number of ranks. Ranks may be started
    minutes apart. After 10 s, rank 0 logs which ranks are missing.

    Raises DistError if not all ranks have arrived after SPIKEVRT_JOIN_TIMEOUT seconds (default
    `JOIN_S` of state.py), or if two processes have the same rank.
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
    other ranks read the proof as soon as they see MET.
    """
    # Count this process first, because it may raise an error below. If it does, `leave` (leave.py)
    # waits for every process that was counted.
    store.add(JOINED, 1)
    _refuse_another_world_size(store, launch)
    # `seal` adds a signature that only a process with the job key can make.
    if RUN.job_key:
        proof_key = f"proof/{launch.rank}"
        store.set(proof_key, seal(proof_key, "here"))
    # `add` adds 1, and returns the new number: 2 if another process has the same rank.
    count_of_this_rank = store.add(f"arrived/{launch.rank}", 1)
    if count_of_this_rank > 1:
        raise DistError(
            what=f"rank {launch.rank} arrived twice",
            where=rank_on_host(launch),
            expected="each RANK once",
            do="correct RANK, or end the other run that uses this MASTER_PORT",
        )
    arrived_count = store.add("arrived", 1)
    if arrived_count == launch.world_size:  # this rank is the last one
        store.set(MET, "1")


def _refuse_another_world_size(store: Store, launch: LaunchInfo) -> None:
    """Raise DistError if another rank expects another number of ranks.

    Without this check, the ranks would wait for ranks that nobody starts, or begin without some
    ranks.
    """
    own_size = str(launch.world_size)
    # compare_set writes if there is no such key, and returns what the key then holds, as bytes.
    first_size = store.compare_set("world_size", "", own_size).decode(errors="replace")
    if first_size != own_size:
        raise DistError(
            what=f"this rank has WORLD_SIZE {own_size}, and another rank {printable(first_size)}",
            where=rank_on_host(launch),
            expected="the same number of ranks on all ranks",
            do="correct WORLD_SIZE, or the number of nodes and processes of the launcher",
        )


def _wait_for_all(store: Store, launch: LaunchInfo) -> None:
    """Wait until the last rank has written MET. Raises DistError after SPIKEVRT_JOIN_TIMEOUT s."""
    if launch.rank == 0:
        # Only rank 0 looks up the missing ranks, with one request for each rank.
        def missing_ranks() -> str:
            return _missing_ranks(store, launch.world_size)

        if not wait_for(store, MET, launch.join_s, what_is_missing=missing_ranks):
            raise not_arrived(missing_ranks(), launch)
    else:
        # The other ranks wait 3 s longer (chosen by hand), so that rank 0 can report first and end
        # the run. If the run has not ended after these 3 s, rank 0 is missing.
        if not wait_for(store, MET, launch.join_s + 3):
            raise not_arrived("rank 0", launch)


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
        # If another program has arrived as this rank, there is no proof, and `get` would wait for
        # it. Then take an empty text, which is a wrong proof.
        proof = store.get(key) if store.check([key]) else b""
        try:
            unseal(key, proof)
        except ForeignValueError as e:
            raise DistError(
                what=f"what arrived as rank {rank} does not have the key of this start",
                where=rank_on_host(launch),
                expected="ranks of one start alone; each has SPIKEVRT_JOB_KEY from its launcher",
                do="if you start the ranks yourself, give all of them the same SPIKEVRT_JOB_KEY, "
                "or unset it; else somebody else reaches the port: see docs/ddp_reference.md on "
                "trust",
            ) from e


def not_arrived(ranks: str, launch: LaunchInfo) -> DistError:
    """Return the error of a meeting that lasts too long.

    ranks: e.g. "ranks 2, 5 of 8".
    """
    return DistError(
        what=f"{ranks} did not arrive in {launch.join_s:.0f} s",
        where=rank_on_host(launch),
        expected="WORLD_SIZE processes, each with its own RANK",
        do="look into the logs of these ranks; SPIKEVRT_JOIN_TIMEOUT sets the seconds to wait",
    )

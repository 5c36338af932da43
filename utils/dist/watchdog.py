"""Ends a run that hangs: every rank publishes its phase each half second, and a stalled rank is named with its stack.

The main thread notes its phase (a tuple; no lock, no request to the store). The watchdog thread, with its own
connection, publishes it, watches a few other ranks, and ends all ranks within seconds when one is SILENT (no beat),
STUCK (too long in one phase), DEAD (its process is gone) or FAILED (it raised; see utils_dist).

A beat costs two requests, whatever the number of ranks: a rank writes its own state, and reads the shared failure and
the states of rank 0, of the next rank and of the next rank on its host. So of any ranks that fall silent, at least one
is watched by a rank that still beats. Which rank the others wait for shows only in the states of all ranks: one rank at
a time reads them, and only while it has been too long in a phase itself.

Ages are measured on the observer's AwakeClock, so the clocks of the hosts need not agree, and a pause is no age.
"""

import faulthandler
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn

from torch.distributed import Store

from utils.dist import process
from utils.dist.rendezvous import JOINED, MET, wait_for
from utils.dist.state import RUN, Place
from utils.errors import StallError
from utils.options.models import WatchdogOptions

FAILURE = (
    "failure"  # store key: the first failure, {"rank", "code", "by"}; empty while there is none
)
REPORTED = "reported"  # store key: the failure has been reported; all ranks may end
QUIET_S = 3.0  # a rank that beats, on a machine with eight times as many processes as cores, is heard within 2.2 s
LOOKING = "looking"  # store key: the rank that reads all states; empty while none does

State = dict[str, Any]
Verdict = tuple[
    int, str, str
]  # the rank that stops the run, STUCK, SILENT or DEAD, and what was seen
STALL_CODE = StallError.exit_code
EXIT_S = 8.0  # a rank that knows of a failure ends within this time


def phase(name: str, step: int | None = None, is_sync: bool = False) -> None:
    """The main thread enters phase `name`; step: optimizer steps so far (None: as before).

    is_sync: the phase ends only when all ranks have entered it.
    """
    before, staged = RUN.place, name if name.endswith(RUN.stage) else name + RUN.stage
    RUN.place = Place(
        staged, before.step if step is None else step, time.monotonic(), before.syncs + is_sync
    )


def go_on() -> None:
    """The main thread makes progress within its phase: the time of the phase starts again."""
    phase(RUN.place.phase)


def asleep_s() -> float:
    """Seconds in which this process was suspended, from any start; see AwakeClock."""
    return time.monotonic() - RUN.watchdog.beats.clock.now() if RUN.watchdog else 0.0


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Within the block a phase is called "<phase> in `name`", and has the time limit of `name`."""
    RUN.stage = f" in {name}"
    try:
        yield
    finally:
        RUN.stage, inner = "", RUN.place.phase.removesuffix(RUN.stage)
        phase(inner)


@contextmanager
def collective(name: str) -> Iterator[None]:
    """Around a collective: the phase is "`name` in <phase>" meanwhile."""
    outer = RUN.place.phase
    phase(f"{name} in {outer}", is_sync=True)
    yield
    phase(outer)


class Beats:
    """The beats of one rank. store: None in a single process. machine_name: of simulated hosts."""

    def __init__(
        self, rank: int, world_size: int, store: Store | None, machine_name: str = ""
    ) -> None:
        self.rank, self.world_size, self.store = rank, world_size, store
        self.machine = machine_name or process.machine()
        self.number, self.clock = 0, process.AwakeClock(1.0)
        self.watched: list[int] | None = None  # None until all ranks have met
        self.states: dict[int, State] = {}  # the newest known of each rank
        self.seen: dict[
            int, tuple[int, float]
        ] = {}  # watched rank -> (its last beat, when it came)
        self.is_looking = False
        self.first_look: dict[
            int, tuple[int, float]
        ] = {}  # as `seen`, of ranks that are read only while looking
        if store is not None:
            store.compare_set(FAILURE, "", "")  # so that multi_get can read it with the states
            self.place = store.add(f"on/{self.machine}", 1) - 1  # index among the ranks of its host
            store.set(f"on/{self.machine}/{self.place}", str(rank))

    def publish(self, state: State) -> None:
        self.number += 1
        self.states[self.rank] = {"beat": self.number, "machine": self.machine, **state}
        if self.store is not None:
            self.store.set(f"beat/{self.rank}", json.dumps(self.states[self.rank]))

    def read(self) -> State | None:
        """Reads the watched ranks; the failure that ends the run, if there is one."""
        if self.store is None:
            return None
        if self.watched is None and self.store.check([MET]):
            # Rank 0, which may host the store, the next rank, and the next rank on this host: only from the same host
            # can the end of a process be seen.
            on_host = self.store.add(f"on/{self.machine}", 0)
            next_on_host = int(self.store.get(f"on/{self.machine}/{(self.place + 1) % on_host}"))
            self.watched = sorted(
                {0, (self.rank + 1) % self.world_size, next_on_host} - {self.rank}
            )
        found = self.store.multi_get([FAILURE, *(f"beat/{rank}" for rank in self.watched or ())])
        for rank, text in zip(self.watched or (), found[1:], strict=True):
            state = self.states[rank] = json.loads(text)
            if self.seen.get(rank, (-1, 0.0))[0] != state["beat"]:
                self.seen[rank] = (state["beat"], self.clock.now())
        return json.loads(found[0]) if found[0] else None

    def verdict(self, stall_s: float | None) -> Verdict | None:
        """What stops the run, or None. stall_s: None before the watch has begun, when only deaths count.

        A rank whose process is gone is DEAD; one that is watched and does not beat is SILENT. All seconds are those of
        AwakeClocks, so a rank is late only by the time in which its observer ran: a run that is suspended as a whole
        ages by one slice, a rank that is stopped alone falls silent.
        """
        now, silent = self.clock.now(), None
        for rank, (_, when) in self.seen.items():
            state = self.states[rank]
            if is_gone(state):
                return rank, "DEAD", f"its process {state['pid']} is gone"
            # A beat is half a second. How long a rank has been in its phase counts only beside the others.
            if (
                not silent
                and stall_s is not None
                and state["budget"]
                and now - when > stall_s - 0.5
            ):
                silent = rank, "SILENT", f"no beat for {now - when:.1f} s"
        if silent:
            return silent
        own, mine = self.states[self.rank], str(self.rank)
        if stall_s is None or not 0 < own["budget"] < own["age"]:
            self.stop_looking()
            return None
        # It has been too long in its phase itself: it looks for the cause, unless another rank does already.
        if self.store is not None:
            self.is_looking = (
                self.is_looking or self.store.compare_set(LOOKING, "", mine).decode() == mine
            )
            if not self.is_looking:
                return None
            self.states.update(read_states(self.store, self.world_size))
        if not all(state["budget"] for state in self.states.values()):
            return None  # one has not called `watch` yet
        # The others wait for the longest over its budget of those that entered the fewest collectives.
        fewest = min(state["syncs"] for state in self.states.values())
        over, rank = max(
            (s["age"] - s["budget"], rank)
            for rank, s in self.states.items()
            if s["syncs"] == fewest
        )
        return self._cause(rank, min(QUIET_S, stall_s / 2)) if over > 0 else None

    def _cause(self, rank: int, quiet_s: float) -> Verdict | None:
        """Whether `rank` is stuck, or waits for a silent rank that entered as few collectives; None: not known yet.

        The age that a rank published does not grow after it fell silent: the oldest may be that of a rank that waits.
        """
        now, is_known = self.clock.now(), True
        for other, state in self.states.items():
            if other in (rank, self.rank) or state["syncs"] != self.states[rank]["syncs"]:
                continue
            beat, when = self.seen.get(other) or self.first_look.setdefault(
                other, (state["beat"], now)
            )
            if other not in self.seen and beat != state["beat"]:
                continue  # heard since the first look
            if now - when > quiet_s:
                return other, "SILENT", f"no beat for {now - when:.1f} s"
            is_known &= other in self.seen
        return (rank, "STUCK", f"{self.states[rank]['age']:.1f} s") if is_known else None

    def stop_looking(self) -> None:
        """Let another rank look for the cause."""
        if self.is_looking:
            self.store.compare_set(LOOKING, str(self.rank), "")
            self.is_looking = False
            self.first_look.clear()


class Watchdog(threading.Thread):
    """The watchdog thread of this rank, with a connection of its own to the store; it runs once it is made."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.rank, self.store = RUN.launch.rank, RUN.store.clone() if RUN.store else None
        if self.store is not None:
            self.store.set_timeout(
                timedelta(days=365)
            )  # a pause is no failure; the guard has the limit
        self.beats = Beats(self.rank, RUN.launch.world_size, self.store)
        self.budgets: WatchdogOptions | None = (
            None  # None until `watch`: follows failures and deaths only
        )
        self.interval_s = 0.5
        self.ending = (
            False  # the main thread has finished: a peer whose process is gone is not DEAD
        )
        self.failure: State | None = None  # the failure that ends the run, once it is known
        self.stopped = threading.Event()
        self.turns = 0
        self.guard: subprocess.Popen | None = None  # the process; it has a heartbeat from each turn
        self.place, self.entered = (
            RUN.place,
            self.beats.clock.now(),
        )  # the phase of the last beat, and when it began
        self.host = socket.gethostname()
        # In memory, so that nothing is left on the disk; others open it by its name.
        descriptor = os.memfd_create("spikevrt-stack")
        self.stack_file = open(f"/proc/{os.getpid()}/fd/{descriptor}", "a+b", buffering=0)  # noqa: SIM115
        # The C-level handler answers even while another thread holds the GIL; loader processes inherit it.
        faulthandler.register(signal.SIGUSR2, file=self.stack_file, all_threads=True, chain=False)
        self.beats.publish(self._own_state())
        self.start()

    def _guard(self) -> None:
        """End the process if the thread hangs in a call to the store: if packets are dropped, its time-out fails."""
        clock, seen, since = process.AwakeClock(2 * self.interval_s), 0, 0.0
        while not self.stopped.wait(self.interval_s):
            clock.slice_s, now = 2 * self.interval_s, clock.now()
            if seen != self.turns or self.budgets is None or self.ending:
                seen, since = self.turns, now
                continue
            host = None if RUN.launch.by_agent else self.beats.states.get(0)
            patience_s = (
                min(1.5, self.budgets.stall_s) if host and is_gone(host) else self.budgets.stall_s
            )
            if now - since > (EXIT_S if self.failure else patience_s):
                self._store_lost()

    def run(self) -> None:
        threading.Thread(target=self._guard, daemon=True, name="watchdog's guard").start()
        while not self.stopped.wait(self.interval_s):
            self.turns += 1
            if self.guard:
                with suppress(OSError):
                    self.guard.stdin.write(b".")
            try:
                self._turn()
            except RuntimeError:  # the store is lost
                if self.ending or self.stopped.wait(0.3):
                    return
                self._store_lost()

    def watch(self, budgets: WatchdogOptions) -> None:
        """From now on a stall ends the run."""
        go_on()
        self.interval_s = min(0.5, budgets.stall_s / 6)
        self.beats.clock.slice_s = 2 * self.interval_s
        # After the other ranks, which see more.
        self.guard = process.start_guard(
            self.rank, budgets.stall_s + 4, self.stack_file.name, self.store is None
        )
        self.budgets = budgets
        # Others report a silent rank only once its beat has shown that it is watched: beat before going on.
        self.beats.publish(self._own_state())

    def stop(self) -> None:
        self.stopped.set()
        self.join()
        faulthandler.unregister(signal.SIGUSR2)
        if self.guard:
            self.guard.kill()
            self.guard.wait()

    def _turn(self) -> None:
        """Beat; where another rank failed, or reports a stall, end after its report; else look for the first stall."""
        self.beats.publish(self._own_state())
        failure, verdict = self.beats.read(), None
        if self.ending:
            self.beats.stop_looking()
        elif not failure:
            verdict = self.beats.verdict(self.budgets.stall_s if self.budgets else None)
        if verdict and self.store is not None:
            failure = claim_failure(self.store, verdict[0], STALL_CODE, self.rank)
        if failure:
            self.failure = failure
            if failure["by"] == self.rank:
                self.stopped.wait()  # the main thread is ending this process
                return
            if failure["code"] == STALL_CODE:
                if failure["rank"] == self.rank:
                    self.store.set(f"stacks/{self.rank}", process.dump_stacks(self.stack_file))
                wait_for(self.store, REPORTED, 5.0)
            leave(failure["code"], self.store)
        elif verdict:
            self._report(*verdict)

    def _own_state(self) -> State:
        place, now = RUN.place, self.beats.clock.now()
        if place is not self.place:
            self.place, self.entered = (
                place,
                now - min(time.monotonic() - place.since, self.beats.clock.slice_s),
            )
        return {
            "phase": place.phase, "step": place.step, "syncs": place.syncs,
            "age": now - self.entered, "budget": self.budgets.of(place.phase) if self.budgets else 0.0,
            "pid": os.getpid(), "host": self.host, "stack_file": self.stack_file.name, "facts": RUN.facts,
        }  # fmt: skip

    def _report(self, rank: int, kind: str, what: str) -> None:
        state, stacks = self.beats.states[rank], ""
        if self.store is not None:
            self.beats.states.update(read_states(self.store, self.beats.world_size))
        if kind != "DEAD":
            # A silent rank will hardly answer; half a second is for one that is only slow.
            stacks = (
                self._stacks_of(rank, 0.5 if kind == "SILENT" else 1.5) or "(it does not answer)"
            )
        self._say(rank, kind, what, stacks)
        # Set only now: the guard would end this process while it still collects stacks.
        self.failure = {"rank": rank, "code": STALL_CODE, "by": self.rank}
        if self.store is not None:
            self.store.set(REPORTED, "1")
            if rank != self.rank and is_here(state) and kind != "DEAD":
                time.sleep(0.5)  # it ends by itself if it can
                process.kill_trees([state["pid"]])
        leave(STALL_CODE, self.store)

    def _stacks_of(self, rank: int, wait_s: float = 0.0) -> str:
        """Its own; those that another rank puts into the store in this time, or, on this machine, gives at a signal."""
        state, key = self.beats.states[rank], f"stacks/{rank}"
        if rank == self.rank:
            return process.dump_stacks(self.stack_file)
        if wait_s and wait_for(self.store, key, wait_s):
            return self.store.get(key).decode()
        if is_here(state):
            with suppress(OSError), open(state["stack_file"], "a+b", buffering=0) as file:
                return process.dump_stacks(file, state["pid"])
        return ""

    def _say(self, rank: int, kind: str, what: str, stacks: str) -> None:
        """Name the rank that ends the run, with its stacks and the last place of every rank."""
        state, now = self.beats.states[rank], self.beats.clock.now()
        expected = {
            "DEAD": "all ranks alive", "SILENT": "a beat of every rank each half second (option watchdog.stall_s)",
            "STUCK": f"a new phase within {state['budget']:.0f} s (options watchdog.*)",
        }  # fmt: skip
        error = StallError(
            f"rank {rank} is {kind}: {what}{' in' if kind == 'STUCK' else '; last seen in'} {where(state)}",
            f"host {state['host']}, pid {state['pid']}",
            expected[kind],
            "see its stack below"
            if stacks
            else "look for the out-of-memory killer or a signal on that host",
        )
        lines = [str(error), "", "rank  host              pid  step  seconds  collectives  phase"]
        for other, s in sorted(self.beats.states.items()):
            age, host = s["age"], s["host"][:12]
            age += now - self.beats.seen[other][1] if other in self.beats.seen else 0.0
            numbers = f"{s['pid']:>8} {s['step']:>5} {age:>8.1f} {s['syncs']:>12}"
            lines.append(f"{other:>4}  {host:<12} {numbers}  {s['phase']}")
        say("\n".join([*lines, *([f"\nStacks of rank {rank}:", stacks] if stacks else []), ""]))

    def _store_lost(self) -> None:
        """The store does not answer any more; one rank of each host reports it."""
        if self.failure:  # known, and reported by another rank
            leave(self.failure["code"], None)
        launch, first = RUN.launch, self.beats.states.get(0)
        # Ranks notice it up to seconds apart; the same port and process are the same run.
        if not process.first_to_claim(f"lost {launch.master_port} {first and first['pid']}"):
            time.sleep(
                2.0
            )  # for the rank that reports; torchrun ends all ranks when the first has ended
        elif first is None or launch.by_agent:
            say(str(StallError(
                f"rank {self.rank} has lost the store of the run",
                f"host {self.host}; the store is at {launch.master_addr}:{launch.master_port}",
                "torchrun's first node alive and connected", "look at the network and at the logs of that node",
            )))  # fmt: skip
        elif is_gone(first):
            self._say(0, "DEAD", f"its process {first['pid']} is gone, and the store with it", "")
        else:
            self._say(0, "SILENT", "its store does not answer", self._stacks_of(0))
            if is_here(first):
                process.kill_trees([first["pid"]])
        leave(STALL_CODE, None)


def say(text: str) -> None:
    """One write to stderr, and to the log file where this rank has one."""
    text = text.encode(
        errors="backslashreplace"
    ).decode()  # under LC_ALL=C, arguments hold bytes that are no text
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
    record = logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)


def read_states(store: Store, world_size: int) -> dict[int, State]:
    """The last beat of each rank; all have met."""
    return dict(
        enumerate(map(json.loads, store.multi_get([f"beat/{rank}" for rank in range(world_size)])))
    )


def claim_failure(store: Store, rank: int, code: int, by: int) -> State | None:
    """None where this is the first failure of the run, else the one that was."""
    mine = json.dumps({"rank": rank, "code": code, "by": by})
    noted = store.compare_set(FAILURE, "", mine).decode()
    return None if noted == mine else json.loads(noted)


def is_gone(state: State) -> bool:
    """Whether the rank's process ran on this machine and is gone."""
    return is_here(state) and process.process_state(state["pid"]) in (None, "Z", "X")


def is_here(state: State) -> bool:
    """Whether the rank runs on this machine, so that its process id is valid here."""
    return state["machine"] == process.machine()


def where(state: State) -> str:
    return f'phase "{state["phase"]}" at step {state["step"]}'


def leave(code: int, store: Store | None) -> NoReturn:
    """End this rank at once, or once the others have seen the failure where they would report the loss of the store.

    store: None where it does not answer.
    """
    # The main thread and the watchdog may both come here; a rank that signs off twice lets the host leave too early.
    if not RUN.leaving.acquire(timeout=EXIT_S):
        os._exit(code)  # the other thread hangs
    with suppress(Exception):
        process.write_exit_file(code)
        if store is not None:
            store.set(f"left/{RUN.launch.rank}", "1")
            count, deadline = store.add("left", 1), time.monotonic() + 3
            # A rank that may take the store along waits for all ranks that are alive.
            is_last = RUN.launch.rank == 0 or RUN.launch.by_agent
            states = (
                read_states(store, RUN.launch.world_size) if is_last and store.check([MET]) else {}
            )
            gone: dict[
                int, bool
            ] = {}  # rank whose process is gone -> whether it ended without signing off
            while (
                is_last
                and count + sum(gone.values()) < store.add(JOINED, 0)
                and time.monotonic() < deadline
            ):
                time.sleep(0.02)
                new = [
                    rank for rank, state in states.items() if rank not in gone and is_gone(state)
                ]
                gone |= {rank: not store.check([f"left/{rank}"]) for rank in new}
                count = store.add("left", 0)
        process.outlast_siblings()  # with the loader processes alive: their end would raise an error in the main thread
    process.kill_trees(process.children_of(os.getpid()))
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

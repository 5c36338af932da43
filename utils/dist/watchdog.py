"""End a run that hangs, and name the rank that stands still, with its stack.

The main thread notes its phase: a tuple, without a lock and without a request to the store. The
watchdog thread has a connection of its own to the store. Every half second it publishes the phase
and watches a few other ranks (`utils.dist.beats`). It ends all ranks within seconds if a rank is
SILENT (no beat), STUCK (too long in one phase), DEAD (its process is gone) or has FAILED (an error,
see `utils_dist`).

A main thread that waits for a paused terminal (Ctrl-S, a selection, `less`) does not stand still:
the run goes on as soon as the terminal does. So nothing here writes to the terminal before it has
written to the log file, and nothing waits for the terminal.
"""

import faulthandler
import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn

from torch.distributed import Store

from utils import system
from utils.dist import process
from utils.dist.beats import (
    BEAT_S,
    Beats,
    Verdict,
    claim_failure,
    is_gone,
    read_states,
    where,
)
from utils.dist.rendezvous import JOINED, MET, wait_for
from utils.dist.state import RUN, Place
from utils.dist.store_values import Failure, ForeignValueError, State, sealed, shown, unsealed
from utils.errors import StallError
from utils.options.models import WatchdogOptions

REPORTED = "reported"  # store key: the failure has been reported; all ranks may end
STALL_CODE = StallError.exit_code
EXIT_S = 8.0  # a rank that knows of a failure ends within this time
# The system is asked what the main thread does only in a phase that takes this long.
LONG_PHASE_S = 1.0
PATIENCE_S = 10.0  # after this time, what does not answer is said in the log
SAY_S = 1.0  # longest wait for a terminal

# ---- Where the main thread is ----------------------------------------------------------------


def phase(name: str, step: int | None = None, is_sync: bool = False) -> None:
    """Note that the main thread enters a phase.

    name: name of the phase. step: number of optimizer steps so far; None: as before.
    is_sync: whether the phase ends only when all ranks have entered it.
    """
    before = RUN.place
    staged = name if name.endswith(RUN.stage) else name + RUN.stage
    now_at = before.step if step is None else step
    RUN.place = Place(staged, now_at, time.monotonic(), before.syncs + is_sync)


def go_on() -> None:
    """Note that the main thread makes progress: the time of its phase begins again."""
    phase(RUN.place.phase)


def asleep_s() -> float:
    """Return the seconds in which this process was suspended, from any start; see AwakeClock."""
    if RUN.watchdog is None:
        return 0.0
    return time.monotonic() - RUN.watchdog.beats.clock.now()


@contextmanager
def stage(name: str) -> Generator[None]:
    """Within the block, call each phase "<phase> in `name`", with the time limit of `name`."""
    RUN.stage = f" in {name}"
    try:
        yield
    finally:
        inner = RUN.place.phase.removesuffix(RUN.stage)
        RUN.stage = ""
        phase(inner)


@contextmanager
def collective(name: str) -> Generator[None]:
    """Call the phase "`name` in <phase>" during a collective."""
    outer = RUN.place.phase
    phase(f"{name} in {outer}", is_sync=True)
    yield
    phase(outer)


def stack_file_name(rank: int) -> str:
    """Return the name of the memory file into which a rank of this run writes its stacks."""
    return f"spikevrt-rank-{rank}{run_mark()}"


def run_mark() -> str:
    """Return the end of the names of this run's memory files, which other runs do not share."""
    launch = RUN.launch
    run = f"{launch.master_addr}:{launch.master_port} {launch.world_size} {launch.mode}"
    mark = hashlib.sha256(run.encode() + RUN.job_key).hexdigest()[:16]
    return f"-of-{mark}"


# ---- The thread ------------------------------------------------------------------------------


class Watchdog(threading.Thread):
    """The watchdog thread of this rank. It runs as soon as it is made."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.rank = RUN.launch.rank
        self.store: Store | None = None
        if RUN.store is not None:
            self.store = RUN.store.clone()
            # A pause is no failure; `_watch_this_thread` has the limit.
            self.store.set_timeout(timedelta(days=365))
        self.beats = Beats(self.rank, RUN.launch.world_size, self.store)
        # None until `watch`: the thread follows failures and deaths only.
        self.budgets: WatchdogOptions | None = None
        self.interval_s = BEAT_S
        # The main thread has finished: a peer whose process is gone is not DEAD.
        self.ending = False
        self.failure: Failure | None = None  # the failure that ends the run, once it is known
        self.stopped = threading.Event()
        self.turns = 0
        self.guard: subprocess.Popen[bytes] | None = None  # hears a heartbeat from each turn
        self.place = RUN.place  # the phase of the last beat
        self.entered = self.beats.clock.now()  # when this phase began
        self.blocked_since: float | None = None  # since when the main thread waits for a terminal
        self.is_block_told = False
        self.host = socket.gethostname()
        # In memory, so that nothing is left on the disk. Its name proves to other ranks of this
        # host that the process is a rank of this run.
        self.stack_file, self.stack_path = system.file_in_memory(stack_file_name(self.rank))
        # The C-level handler answers even while another thread holds the GIL; loader processes
        # inherit it.
        faulthandler.register(signal.SIGUSR2, file=self.stack_file, all_threads=True, chain=False)
        self.beats.publish(self._own_state())
        self.start()

    def watch(self, budgets: WatchdogOptions) -> None:
        """End the run on a stall from now on."""
        go_on()
        self.interval_s = min(BEAT_S, budgets.stall_s / 6)
        self.beats.clock.slice_s = 2 * self.interval_s
        # The guard comes after the other ranks, which see more.
        limit_s = budgets.stall_s + 4
        is_alone = self.store is None
        self.guard = process.start_guard(self.rank, limit_s, self.stack_path, is_alone, log_file())
        self.budgets = budgets
        # Others report a silent rank only once its beat has shown that it is watched: beat before
        # going on.
        self.beats.publish(self._own_state())

    def stop(self) -> None:
        self.stopped.set()
        self.join()
        faulthandler.unregister(signal.SIGUSR2)
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()

    def run(self) -> None:
        threading.Thread(
            target=self._watch_this_thread, daemon=True, name="watchdog's guard"
        ).start()
        while not self.stopped.wait(self.interval_s):
            self.turns += 1
            if self.guard is not None and self.guard.stdin is not None:
                with suppress(OSError):
                    self.guard.stdin.write(b".")
            try:
                self._turn()
            except ForeignValueError as e:
                self._end_by_foreign_value(e)
            except RuntimeError:  # the store is lost
                if self.ending or self.stopped.wait(0.3):
                    return
                self._store_lost()

    def _turn(self) -> None:
        """Beat. End if another rank failed or reports a stall; else look for the first stall."""
        self.beats.publish(self._own_state())
        failure = self.beats.read()
        verdict = None
        if self.ending:
            self.beats.stop_looking()
        elif failure is None:
            verdict = self.beats.verdict(self.budgets.stall_s if self.budgets else None)

        if verdict is not None and self.store is not None:
            stall = Failure(verdict.rank, STALL_CODE, self.rank)
            failure = claim_failure(self.store, stall, self.beats.world_size)
        if failure is not None:
            self._follow(failure)
        elif verdict is not None:
            self._report(verdict)

    def _follow(self, failure: Failure) -> None:
        """End after a failure that another rank, or the main thread of this rank, has claimed."""
        self.failure = failure
        if failure.by == self.rank:
            self.stopped.wait()  # the main thread is ending this process
            return
        if failure.code == STALL_CODE and self.store is not None:
            if failure.rank == self.rank:
                key = f"stacks/{self.rank}"
                self.store.set(key, sealed(key, process.dump_stacks(self.stack_file)))
            wait_for(self.store, REPORTED, 5.0)
        leave(failure.code, self.store)

    def _own_state(self) -> State:
        place = RUN.place
        now = self.beats.clock.now()
        if place is not self.place:
            self.place = place
            in_phase_s = time.monotonic() - place.since
            self.entered = now - min(in_phase_s, self.beats.clock.slice_s)
        if self._waits_for_terminal(now):
            self.entered = now
        return {
            "phase": place.phase,
            "step": place.step,
            "syncs": place.syncs,
            "age": now - self.entered,
            "budget": self.budgets.of(place.phase) if self.budgets else 0.0,
            "pid": os.getpid(),
            "host": self.host,
            "facts": RUN.facts,
        }

    def _waits_for_terminal(self, now: float) -> bool:
        """Whether the main thread waits in a write to a paused terminal. The log file says so."""
        is_new_phase = now - self.entered < LONG_PHASE_S
        if self.blocked_since is None and is_new_phase:
            return False
        if not process.main_thread_writes():
            self.blocked_since = None
            self.is_block_told = False
            return False
        if self.blocked_since is None:
            self.blocked_since = now
        if now - self.blocked_since > PATIENCE_S and not self.is_block_told:
            self.is_block_told = True
            write_to_log_file(
                f"rank {self.rank} waits for its terminal, which takes no output (Ctrl-S, a "
                "selection, a pager); the run goes on as soon as the terminal does"
            )
        return True

    def _watch_this_thread(self) -> None:
        """End the process if the thread hangs in a call to the store.

        The time-out of the store does not hold if packets are dropped.
        """
        clock = process.AwakeClock(2 * self.interval_s)
        seen = 0
        since = 0.0
        is_told = False
        while not self.stopped.wait(self.interval_s):
            clock.slice_s = 2 * self.interval_s
            now = clock.now()
            if seen != self.turns or self.budgets is None or self.ending:
                seen = self.turns
                since = now
                is_told = False
                continue
            if now - since > PATIENCE_S and not is_told:
                is_told = True
                write_to_log_file(
                    f"rank {self.rank}: the store of the run at {RUN.launch.master_addr}:"
                    f"{RUN.launch.master_port} has not answered for {now - since:.0f} s"
                )
            if now - since > self._patience_s(self.budgets.stall_s):
                self._store_lost()

    def _patience_s(self, stall_s: float) -> float:
        """Return how long the store may be silent before this rank ends."""
        if self.failure is not None:
            return EXIT_S
        host = None if RUN.launch.by_agent else self.beats.states.get(0)
        if host is not None and is_gone(host):
            return min(1.5, stall_s)
        return stall_s

    # ---- Reports -----------------------------------------------------------------------------

    def _report(self, verdict: Verdict) -> NoReturn:
        """Say what stops the run, and end it."""
        rank = verdict.rank
        stacks = ""
        if self.store is not None:
            self.beats.states.update(read_states(self.store, self.beats.world_size))
        if verdict.kind != "DEAD":
            # A silent rank will hardly answer; half a second is for a rank that is only slow.
            wait_s = 0.5 if verdict.kind == "SILENT" else 1.5
            stacks = self._stacks_of(rank, wait_s) or "(it does not answer)"
        self._say(verdict, stacks)
        # Set only now: `_watch_this_thread` would end this process while it still collects stacks.
        self.failure = Failure(rank, STALL_CODE, self.rank)
        if self.store is not None:
            self.store.set(REPORTED, "1")
            if rank != self.rank and verdict.kind != "DEAD":
                time.sleep(0.5)  # it ends by itself if it can
                process.kill_rank(self.beats.states[rank]["pid"], stack_file_name(rank))
        leave(STALL_CODE, self.store)

    def _stacks_of(self, rank: int, wait_s: float = 0.0) -> str:
        """Return the stacks of a rank, or "" if there are none.

        A rank puts its stacks into the store if it can. On this host it gives them at a signal.
        """
        if rank == self.rank:
            return process.dump_stacks(self.stack_file)
        key = f"stacks/{rank}"
        if wait_s and self.store is not None and wait_for(self.store, key, wait_s):
            text = unsealed(key, self.store.get(key))
            return "\n".join(shown(line) for line in text.splitlines())
        return process.stacks_of(self.beats.states[rank]["pid"], stack_file_name(rank))

    def _say(self, verdict: Verdict, stacks: str) -> None:
        """Name the rank that ends the run, with its stacks and the last place of every rank."""
        rank, kind, what = verdict
        state = self.beats.states[rank]
        now = self.beats.clock.now()
        expected = {
            "DEAD": "all ranks alive",
            "SILENT": "a beat of every rank each half second (option watchdog.stall_s)",
            "STUCK": f"a new phase within {state['budget']:.0f} s (options watchdog.*)",
        }
        link = " in" if kind == "STUCK" else "; last seen in"
        if stacks:
            do = "see its stack below"
        else:
            do = "look for the out-of-memory killer or a signal on that host"
        error = StallError(
            what=f"rank {rank} is {kind}: {what}{link} {where(state)}",
            where=f"host {state['host']}, pid {state['pid']}",
            expected=expected[kind],
            do=do,
        )

        lines = [str(error), "", "rank  host              pid  step  seconds  collectives  phase"]
        for other, s in sorted(self.beats.states.items()):
            age = s["age"]
            if other in self.beats.seen:
                _, when = self.beats.seen[other]
                age += now - when
            numbers = f"{s['pid']:>8} {s['step']:>5} {age:>8.1f} {s['syncs']:>12}"
            lines.append(f"{other:>4}  {s['host'][:12]:<12} {numbers}  {s['phase']}")
        if stacks:
            lines += [f"\nStacks of rank {rank}:", stacks]
        say("\n".join([*lines, ""]))

    def _end_by_foreign_value(self, error: ForeignValueError) -> NoReturn:
        """End the run because a stranger wrote into its store. The first rank to see it says so."""
        own = Failure(self.rank, error.exit_code, self.rank)
        if self.store is not None:
            with suppress(ForeignValueError, RuntimeError):
                first = claim_failure(self.store, own, self.beats.world_size)
                if first is not None:
                    self._follow(first)
        # If the failure itself is the foreign value, each host says so once.
        if first_to_say_foreign():
            say(str(error))
        self.failure = own
        if self.store is not None:
            with suppress(RuntimeError):
                self.store.set(REPORTED, "1")
        leave(own.code, self.store)

    def _store_lost(self) -> NoReturn:
        """End because the store does not answer any more; one rank of each host reports it."""
        if self.failure is not None:  # known, and reported by another rank
            leave(self.failure.code, None)
        launch = RUN.launch
        first = self.beats.states.get(0)
        # Ranks notice it up to seconds apart; the same port and process are the same run.
        pid = first["pid"] if first is not None else None
        if not process.first_to_claim(f"lost {launch.master_port} {pid}"):
            # Wait for the rank that reports: torchrun ends all ranks when the first has ended.
            time.sleep(2.0)
        elif first is None or launch.by_agent:
            address = f"{launch.master_addr}:{launch.master_port}"
            error = StallError(
                what=f"rank {self.rank} has lost the store of the run",
                where=f"host {self.host}; the store is at {address}",
                expected="torchrun's first node alive and connected",
                do="look at the network and at the logs of that node",
            )
            say(str(error))
        elif is_gone(first):
            gone = Verdict(0, "DEAD", f"its process {pid} is gone, and the store with it")
            self._say(gone, "")
        else:
            silent = Verdict(0, "SILENT", "its store does not answer")
            self._say(silent, self._stacks_of(0))
            process.kill_rank(first["pid"], stack_file_name(0))
        leave(STALL_CODE, None)


# ---- The last words, and the end -------------------------------------------------------------


def first_to_say_foreign() -> bool:
    """Whether no other rank of this host has said that a stranger wrote into the store."""
    return process.first_to_claim(f"foreign value {RUN.launch.master_port}")


def say(text: str) -> None:
    """Write to the log file, then to stderr, for which nobody waits longer than SAY_S."""
    # Under LC_ALL=C, arguments hold bytes that are no text.
    text = text.encode(errors="backslashreplace").decode()
    write_to_log_file(text)

    def to_terminal() -> None:
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(OSError):
            os.write(2, f"{text}\n".encode())

    within_say_s(to_terminal)


def within_say_s(write: Callable[[], None]) -> None:
    """Call `write`, and go on after SAY_S even if a paused terminal holds it."""
    thread = threading.Thread(target=write, daemon=True, name="last words")
    thread.start()
    thread.join(SAY_S)


def write_to_log_file(text: str) -> None:
    """Write an error to the log file, if this rank has one."""
    record = logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)


def log_file() -> str | None:
    """Return the path of the log file of this rank, or None if it has none."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) and handler.baseFilename.endswith(".log"):
            return handler.baseFilename
    return None


def leave(code: int, store: Store | None) -> NoReturn:
    """End this rank, once the other ranks have seen the failure if they could lose the store by it.

    store: None if it does not answer.
    """
    # The main thread and the watchdog may both come here. A rank that signs off twice lets the
    # host of the store leave too early.
    if not RUN.leaving.acquire(timeout=EXIT_S):
        os._exit(code)  # the other thread hangs
    with suppress(Exception):
        process.write_exit_file(code)
        if store is not None:
            _sign_off(store)
        if RUN.watchdog is not None and RUN.watchdog.guard is not None:
            RUN.watchdog.guard.kill()  # it would count the wait below as a stall
        process.outlast_siblings(None if RUN.watchdog is None else run_mark())

    def flush() -> None:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()

    within_say_s(flush)
    # Last of all: the end of a loader process raises an error in the main thread, which would still
    # have the time to write it.
    process.kill_trees(process.children_of(os.getpid()))
    os._exit(code)


def _sign_off(store: Store) -> None:
    """Sign off. A rank that may take the store along waits for all ranks that are alive."""
    store.set(f"left/{RUN.launch.rank}", "1")
    count = store.add("left", 1)
    deadline = time.monotonic() + 3
    if RUN.launch.rank != 0 and not RUN.launch.by_agent:
        return
    states = {}
    with suppress(ForeignValueError):
        if store.check([MET]):
            states = read_states(store, RUN.launch.world_size)
    # Rank whose process is gone -> whether it ended without signing off.
    gone: dict[int, bool] = {}
    while count + sum(gone.values()) < store.add(JOINED, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
        for rank, state in states.items():
            if rank not in gone and is_gone(state):
                gone[rank] = not store.check([f"left/{rank}"])
        count = store.add("left", 0)

"""The watchdog: ends a run that hangs, and names the rank that stands still, with its stack.

A run of several ranks hangs if one rank stops, because the others wait for it in a collective. So
each rank has three threads of ours and one small process:

* The main thread trains. It notes its *phase* in `RUN.place`, e.g. "forward" at step 120, whenever
  it enters one. This costs no lock and no request.
* The watchdog thread (`Watchdog.run`) has a connection of its own to the key-value store of the
  run. Every half second it writes the phase into the store (a *beat*), and reads the beats of a few
  other ranks (`utils.dist.beats`).
* A second thread (`Watchdog._watch_watchdog`) ends the process if the watchdog thread itself hangs
  in a request to the store.
* The guard (`utils.dist.process.guard`) is a process. It ends the rank if no Python code of the
  rank can run at all.

The watchdog ends all ranks within seconds if a rank is

    SILENT   no beat
    STUCK    too long in one phase; the options `watchdog` have the limits
    DEAD     its process is gone
    failed   it raised an error, see `utils_dist`

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

# Store key: the failure has been reported, so all ranks may end.
REPORTED = "reported"
STALL_CODE = StallError.exit_code
# Seconds within which a rank ends after it knows of a failure.
EXIT_S = 8.0
# Only in a phase that takes longer than this is the system asked what the main thread does.
LONG_PHASE_S = 1.0
# Seconds after which the log file says what does not answer.
PATIENCE_S = 10.0
# Longest wait for a terminal, in seconds.
SAY_S = 1.0

# ---- Where the main thread is ----------------------------------------------------------------


def phase(name: str, step: int | None = None, is_sync: bool = False) -> None:
    """Note that the main thread enters a phase. Its time begins at 0.

    name: name of the phase, e.g. "forward".
    step: number of optimizer steps so far, or None if it has not changed.
    is_sync: whether the phase ends only when all ranks have entered it, as a collective does.
    """
    before = RUN.place
    # Within `stage`, RUN.stage is " in <name>", e.g. " in validate".
    full_name = name if name.endswith(RUN.stage) else name + RUN.stage
    step_now = before.step if step is None else step
    # One assignment of a new tuple: the watchdog thread never sees half of it.
    RUN.place = Place(full_name, step_now, time.monotonic(), before.syncs + is_sync)


def go_on() -> None:
    """Note that the main thread makes progress: the time of its phase begins again."""
    phase(RUN.place.phase)


def asleep_s() -> float:
    """Return seconds in which this process was suspended. Only differences of it have a meaning.

    The clock of the watchdog stands still while the process is suspended, see AwakeClock.
    """
    if RUN.watchdog is None:
        return 0.0
    return time.monotonic() - RUN.watchdog.beats.clock.now()


@contextmanager
def stage(name: str) -> Generator[None]:
    """Within the block, call each phase "<phase> in `name`", with the time limit of `name`.

    E.g. "forward in validate" may take as long as the limit of "validate" says.
    """
    RUN.stage = f" in {name}"
    try:
        yield
    finally:
        inner = RUN.place.phase.removesuffix(RUN.stage)
        RUN.stage = ""
        phase(inner)


@contextmanager
def collective(name: str) -> Generator[None]:
    """Within the block, which runs a collective, call the phase "`name` in <phase>".

    The rank that has entered the fewest collectives is the one that the others wait for. After an
    error in the block the phase stays, because the rank failed in it.
    """
    outer = RUN.place.phase
    phase(f"{name} in {outer}", is_sync=True)
    yield
    phase(outer)


def stack_file_name(rank: int) -> str:
    """Return the name of the memory file into which a rank of this run writes its stacks.

    E.g. "spikevrt-rank-3-of-5f0c2a9be81d4477". A memory file is never on a disk.
    """
    return f"spikevrt-rank-{rank}{run_mark()}"


def run_mark() -> str:
    """Return the end of the names of this run's memory files, which other runs do not share."""
    launch = RUN.launch
    run = f"{launch.master_addr}:{launch.master_port} {launch.world_size} {launch.mode}"
    mark = hashlib.sha256(run.encode() + RUN.job_key).hexdigest()[:16]
    return f"-of-{mark}"


# ---- The thread ------------------------------------------------------------------------------


class Watchdog(threading.Thread):
    """The watchdog thread of this rank. It begins to beat as soon as the object is made.

    Before `watch` it follows only failures of other ranks and the end of their processes. After
    `watch` it ends the run if a rank stands still.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.rank = RUN.launch.rank
        self.host = socket.gethostname()
        self.store: Store | None = None  # None in a single process
        if RUN.store is not None:
            self.store = RUN.store.clone()  # each thread needs a connection of its own
            # A pause of the store is no failure. `_watch_watchdog` has the limit.
            self.store.set_timeout(timedelta(days=365))
        self.beats = Beats(self.rank, RUN.launch.world_size, self.store)

        # What this thread does.
        self.budgets: WatchdogOptions | None = None  # limits of the phases; None until `watch`
        self.interval_s = BEAT_S  # seconds between two beats
        self.passes = 0  # how often `run` has gone through its loop
        self.stopped = threading.Event()
        self.guard: subprocess.Popen[bytes] | None = None  # gets a byte in each pass
        # Set by the main thread when it has finished. Then other ranks may end: they are not DEAD.
        self.ending = False
        self.failure: Failure | None = None  # the failure that ends the run, once it is known

        # What the main thread does.
        self.place = RUN.place  # the phase of the last beat
        self.entered = self.beats.clock.now()  # when the main thread entered this phase
        self.blocked_since: float | None = None  # since when the main thread waits for a terminal
        self.is_block_told = False

        # The stacks go into a file in memory, so that nothing is left on the disk. The name of the
        # file proves to other ranks of this host that the process is a rank of this run.
        self.stack_file, self.stack_path = system.file_in_memory(stack_file_name(self.rank))
        # faulthandler writes the stacks at SIGUSR2. Its handler is C code, which answers even while
        # another thread holds Python's lock (the GIL). Loader processes inherit it.
        faulthandler.register(signal.SIGUSR2, file=self.stack_file, all_threads=True, chain=False)
        self.beats.publish(self._own_state())
        self.start()

    def watch(self, budgets: WatchdogOptions) -> None:
        """End the run from now on if a rank stands still. budgets: the options `watchdog`."""
        go_on()
        # At least six beats within the shortest limit.
        self.interval_s = min(BEAT_S, budgets.stall_s / 6)
        # The clock has to be asked at least once in slice_s seconds. Each beat asks it.
        self.beats.clock.slice_s = 2 * self.interval_s
        # The guard comes 4 s after the other ranks, which see more.
        limit_s = budgets.stall_s + 4
        is_alone = self.store is None
        self.guard = process.start_guard(self.rank, limit_s, self.stack_path, is_alone, log_file())
        self.budgets = budgets
        # Others report a silent rank only if its last beat has shown that it is watched. So beat
        # before the main thread goes on, which may hang at once.
        self.beats.publish(self._own_state())

    def stop(self) -> None:
        """End the thread and the guard, at the normal end of a run."""
        # The loops of both threads look at this event.
        self.stopped.set()
        self.join()
        faulthandler.unregister(signal.SIGUSR2)
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()

    def run(self) -> None:
        """Beat until the run ends. `threading.Thread` calls this in the thread."""
        threading.Thread(target=self._watch_watchdog, daemon=True, name="watchdog's guard").start()
        while not self.stopped.wait(self.interval_s):
            self.passes += 1
            if self.guard is not None and self.guard.stdin is not None:
                # A heartbeat for the guard. This fails if the guard is gone, or does not read.
                with suppress(OSError):
                    self.guard.stdin.write(b".")
            try:
                self.beat_once()
            except ForeignValueError as e:
                self._end_by_foreign_value(e)
            except RuntimeError:
                # The store is lost. At the normal end it goes with rank 0, and `stop` comes soon.
                if self.ending or self.stopped.wait(0.3):
                    return
                self._store_lost()

    def beat_once(self) -> None:
        """Beat. End if another rank failed or reports a stall; else look for the first stall."""
        self.beats.publish(self._own_state())
        failure = self.beats.read()
        verdict = None
        if self.ending:
            self.beats.stop_looking()
        elif failure is None:
            verdict = self.beats.verdict(self.budgets.stall_s if self.budgets else None)

        # Several ranks may see the same stall. The first to claim it in the store reports it;
        # `claim_failure` returns None to this rank, and the failure of the first one to the others.
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
                # This rank stands still itself. Its stacks go to the rank that reports.
                key = f"stacks/{self.rank}"
                self.store.set(key, sealed(key, process.dump_stacks(self.stack_file)))
            # The reporter may need this rank's answers until it has reported, at most 5 s.
            wait_for(self.store, REPORTED, 5.0)
        leave(failure.code, self.store)

    def _own_state(self) -> State:
        """Return the next beat: where the main thread is, and how long it has been there."""
        place = RUN.place
        now = self.beats.clock.now()
        if place is not self.place:
            # A new phase. It began since the last beat, so at most one slice of the clock ago: a
            # longer time says that the process was suspended.
            self.place = place
            in_phase_s = time.monotonic() - place.since
            self.entered = now - min(in_phase_s, self.beats.clock.slice_s)
        if self._waits_for_terminal(now):
            self.entered = now  # the time of the phase stands still at 0
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
        """Whether the main thread waits in a write to a paused terminal. The log file says so.

        now: time of the clock of the beats.
        """
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

    # ---- The thread that watches the watchdog thread -----------------------------------------

    def _watch_watchdog(self) -> None:
        """End the process if the watchdog thread hangs in a request to the store.

        The time-out of the store does not hold if packets are dropped.
        """
        clock = process.AwakeClock(2 * self.interval_s)
        seen_passes = 0
        since = 0.0  # when the number of passes last changed
        is_told = False
        while not self.stopped.wait(self.interval_s):
            clock.slice_s = 2 * self.interval_s  # `watch` may have changed the interval
            now = clock.now()
            if seen_passes != self.passes or self.budgets is None or self.ending:
                seen_passes = self.passes
                since = now
                is_told = False
                continue
            silent_s = now - since
            if silent_s > PATIENCE_S and not is_told:
                is_told = True
                write_to_log_file(
                    f"rank {self.rank}: the store of the run at {RUN.launch.master_addr}:"
                    f"{RUN.launch.master_port} has not answered for {silent_s:.0f} s"
                )
            if silent_s > self._patience_s(self.budgets.stall_s):
                self._store_lost()

    def _patience_s(self, stall_s: float) -> float:
        """Return how many seconds the store may be silent before this rank ends."""
        if self.failure is not None:
            return EXIT_S
        # Rank 0 hosts the store, unless an agent of torchrun does. Without its process the store
        # will not answer again.
        host = None if RUN.launch.by_agent else self.beats.states.get(0)
        if host is not None and is_gone(host):
            return min(1.5, stall_s)
        return stall_s

    # ---- Reports -----------------------------------------------------------------------------

    def _report(self, verdict: Verdict) -> NoReturn:
        """Say what stops the run, and end it."""
        rank = verdict.rank
        if self.store is not None:
            self.beats.states.update(read_states(self.store, self.beats.world_size))
        if verdict.kind == "DEAD":
            stacks = ""
        else:
            # A silent rank will hardly answer; half a second is for a rank that is only slow.
            wait_s = 0.5 if verdict.kind == "SILENT" else 1.5
            stacks = self._stacks_of(rank, wait_s) or "(it does not answer)"
        self._say(verdict, stacks)
        # Set only now: once a failure is known, `_watch_watchdog` has less patience, and would end
        # this process while it still collects stacks.
        self.failure = Failure(rank, STALL_CODE, self.rank)
        if self.store is not None:
            self.store.set(REPORTED, "1")
            if rank != self.rank and verdict.kind != "DEAD":
                time.sleep(0.5)  # it ends by itself if it can
                process.kill_rank(self.beats.states[rank]["pid"], stack_file_name(rank))
        leave(STALL_CODE, self.store)

    def _stacks_of(self, rank: int, wait_s: float = 0.0) -> str:
        """Return the stacks of a rank, or "" if there are none.

        A rank that can puts its stacks into the store, see `_follow`. A rank of this host can also
        be asked by a signal.

        wait_s: seconds to wait for the stacks in the store; 0 if the store does not answer.
        """
        if rank == self.rank:
            return process.dump_stacks(self.stack_file)
        key = f"stacks/{rank}"
        if wait_s and self.store is not None and wait_for(self.store, key, wait_s):
            text = unsealed(key, self.store.get(key))
            return "\n".join(shown(line) for line in text.splitlines())
        return process.stacks_of(self.beats.states[rank]["pid"], stack_file_name(rank))

    def _say(self, verdict: Verdict, stacks: str) -> None:
        """Report the rank that ends the run, with its stacks and the last place of every rank."""
        lines = [str(self._stall_error(verdict, stacks)), ""]
        lines.append("rank  host              pid  step  seconds  collectives  phase")
        now = self.beats.clock.now()
        for other, state in sorted(self.beats.states.items()):
            # The age is that of the last beat. For watched ranks it is known when that beat came.
            age = state["age"]
            if other in self.beats.seen:
                _, when = self.beats.seen[other]
                age += now - when
            host = f"{other:>4}  {state['host'][:12]:<12}"
            numbers = f"{state['pid']:>8} {state['step']:>5} {age:>8.1f} {state['syncs']:>12}"
            lines.append(f"{host} {numbers}  {state['phase']}")
        if stacks:
            lines.append(f"\nStacks of rank {verdict.rank}:")
            lines.append(stacks)
        lines.append("")
        say("\n".join(lines))

    def _stall_error(self, verdict: Verdict, stacks: str) -> StallError:
        """Return the error that names the rank: what it does, where, and what to do."""
        rank, kind, what = verdict
        state = self.beats.states[rank]
        expected = {
            "DEAD": "all ranks alive",
            "SILENT": "a beat of every rank each half second (option watchdog.stall_s)",
            "STUCK": f"a new phase within {state['budget']:.0f} s (options watchdog.*)",
        }
        # "rank 3 is STUCK: 312.4 s in phase ...", but "...: no beat for 9.1 s; last seen in ..."
        link = " in" if kind == "STUCK" else "; last seen in"
        if stacks:
            do = "see its stack below"
        else:
            do = "look for the out-of-memory killer or a signal on that host"
        return StallError(
            what=f"rank {rank} is {kind}: {what}{link} {where(state)}",
            where=f"host {state['host']}, pid {state['pid']}",
            expected=expected[kind],
            do=do,
        )

    def _end_by_foreign_value(self, error: ForeignValueError) -> NoReturn:
        """End the run because a stranger wrote into its store. The first rank to see it says so."""
        own = Failure(self.rank, error.exit_code, self.rank)
        if self.store is not None:
            with suppress(ForeignValueError, RuntimeError):
                earlier = claim_failure(self.store, own, self.beats.world_size)
                if earlier is not None:
                    self._follow(earlier)
        # If the stranger wrote under the key of the failure itself, no rank can claim the failure.
        # Then one rank of each host says so.
        if first_to_say_foreign():
            say(str(error))
        self.failure = own
        if self.store is not None:
            with suppress(RuntimeError):
                self.store.set(REPORTED, "1")
        leave(own.code, self.store)

    def _store_lost(self) -> NoReturn:
        """End because the store does not answer any more. One rank of each host reports it."""
        if self.failure is not None:  # known, and reported by another rank
            leave(self.failure.code, None)
        launch = RUN.launch
        rank_0 = self.beats.states.get(0)  # the last beat of rank 0, or None if none was read
        # Ranks notice the loss up to seconds apart. They agree on who reports by a name that is the
        # same on all ranks of the run: the port and the process of rank 0.
        pid = rank_0["pid"] if rank_0 is not None else None
        if not process.first_to_claim(f"lost {launch.master_port} {pid}"):
            # Wait for the rank that reports: torchrun ends all ranks when the first has ended.
            time.sleep(2.0)
        elif rank_0 is None or launch.by_agent:
            # An agent of torchrun hosts the store, or nothing is known of rank 0.
            address = f"{launch.master_addr}:{launch.master_port}"
            error = StallError(
                what=f"rank {self.rank} has lost the store of the run",
                where=f"host {self.host}; the store is at {address}",
                expected="torchrun's first node alive and connected",
                do="look at the network and at the logs of that node",
            )
            say(str(error))
        elif is_gone(rank_0):
            gone = Verdict(0, "DEAD", f"its process {pid} is gone, and the store with it")
            self._say(gone, stacks="")
        else:
            silent = Verdict(0, "SILENT", "its store does not answer")
            self._say(silent, self._stacks_of(0))
            process.kill_rank(rank_0["pid"], stack_file_name(0))
        leave(STALL_CODE, None)


# ---- The last words, and the end -------------------------------------------------------------


def first_to_say_foreign() -> bool:
    """Whether no other rank of this host has said that a stranger wrote into the store."""
    return process.first_to_claim(f"foreign value {RUN.launch.master_port}")


def say(text: str) -> None:
    """Write to the log file, then to stderr, for which nobody waits longer than SAY_S."""
    # If the system's encoding is not UTF-8 (LC_ALL=C), arguments of the command line hold bytes
    # that are no text. They become escapes, e.g. "\udce4".
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
    """Write an error to the log file, if this rank has one. Nothing goes to the terminal."""
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
    """End this process with an exit code.

    If the store goes with this rank, the rank first waits until the other ranks have seen the
    failure.

    store: the store of the run, or None if it does not answer.
    """
    # The main thread and the watchdog may both come here. A rank that signs off twice would let the
    # host of the store leave too early. So the second thread waits, and is ended with the process.
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
    """Tell the other ranks that this rank leaves. The host of the store waits for all of them.

    Rank 0 hosts the store, or an agent of torchrun that may end with this rank. It waits until
    every rank has signed off or its process is gone, 3 s at most.
    """
    store.set(f"left/{RUN.launch.rank}", "1")
    left = store.add("left", 1)
    deadline = time.monotonic() + 3
    if RUN.launch.rank != 0 and not RUN.launch.by_agent:
        return
    # The beats of all ranks, to see whose process is gone. Before the ranks have met, not all of
    # them have a beat.
    states = {}
    with suppress(ForeignValueError):
        if store.check([MET]):
            states = read_states(store, RUN.launch.world_size)
    # Ranks whose process is gone -> whether the rank ended without signing off. A rank that has
    # signed off is counted in `left` already.
    gone: dict[int, bool] = {}
    while left + sum(gone.values()) < store.add(JOINED, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
        for rank, state in states.items():
            if rank not in gone and is_gone(state):
                gone[rank] = not store.check([f"left/{rank}"])
        left = store.add("left", 0)  # adding 0 reads the number

"""Ends a run that hangs: every rank publishes its phase each half second, and a stalled rank is named with its stack.

The main thread notes its phase (a tuple; no lock, no request to the store). The watchdog thread, with its own
connection, publishes it, watches a few other ranks (beats.py), and ends all ranks within seconds when one is SILENT (no
beat), STUCK (too long in one phase), DEAD (its process is gone) or FAILED (it raised; see utils_dist).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from torch.distributed import Store

from utils.options.models import WatchdogOptions
from utils.dist.beats import REPORTED, Beats, State, claim_failure, is_gone, is_here, where
from utils.errors import StallError
from utils.dist.guard import dump_stacks, open_stack_file, start_guard
from utils.dist.process import AwakeClock, first_to_claim, kill_tree
from utils.dist.state import RUN, Place

STALL_CODE = StallError.exit_code
EXIT_S = 8.0  # a rank that knows of a failure ends within this time


def phase(name: str, step: int | None = None) -> None:
    """The main thread enters phase `name`; step: optimizer steps so far (None: as before)."""
    RUN.place = Place(_staged(name), RUN.place.step if step is None else step, time.monotonic(), RUN.place.syncs)


def go_on() -> None:
    """The main thread makes progress within its phase: the time of the phase starts again."""
    phase(RUN.place.phase)


def sync(name: str) -> None:
    """As `phase`, for a phase that ends only when all ranks have entered it."""
    RUN.place = Place(_staged(name), RUN.place.step, time.monotonic(), RUN.place.syncs + 1)


def awake_s() -> float:
    """Seconds in which this process ran, from any start; see AwakeClock."""
    return RUN.watchdog.beats.clock.now() if RUN.watchdog else time.monotonic()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Within the block a phase is called "<phase> in `name`", and has the time limit of `name`."""
    RUN.stage = f" in {name}"
    try:
        yield
        RUN.stage, inner = "", RUN.place.phase.removesuffix(RUN.stage)
        phase(inner)
    finally:
        RUN.stage = ""


def _staged(name: str) -> str:
    return name if name.endswith(RUN.stage) else name + RUN.stage


@contextmanager
def collective(name: str) -> Iterator[None]:
    """Around a collective: the phase is "`name` in <phase>" meanwhile."""
    outer = RUN.place.phase
    sync(f"{name} in {outer}")
    yield
    phase(outer)


class Watchdog(threading.Thread):
    """The watchdog thread of one rank. leave: ends this process with an exit code and must not return; it is given the
    store, or None where that does not answer."""

    def __init__(
        self, rank: int, world_size: int, store: Store | None, leave: Callable[[int, Store | None], None]
    ) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.rank, self.store, self.leave = rank, store, leave
        self.beats = Beats(rank, world_size, store)
        self.budgets: WatchdogOptions | None = None  # None until `watch`: follows failures and deaths only
        self.interval_s = 0.5
        self.ending = False  # the main thread has finished: a peer whose process is gone is not DEAD
        self.failure: State | None = None  # the failure that ends the run, once it is known
        self.stopped = threading.Event()
        self.hurried, self.has_turned = threading.Event(), threading.Event()  # of the next turn
        self.turns = 0
        self.guard: subprocess.Popen | None = None  # the process; it has a heartbeat from each turn
        self.place, self.entered = RUN.place, self.beats.clock.now()  # the phase of the last beat, and when it began
        self.host = socket.gethostname()
        self.by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # then the store outlives rank 0
        self.stack_file = open_stack_file()
        # The C-level handler answers even while another thread holds the GIL; loader processes inherit it.
        faulthandler.register(signal.SIGUSR2, file=self.stack_file, all_threads=True, chain=False)
        self.beats.publish(self._own_state())

    # ---- the thread ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        super().start()
        threading.Thread(target=self._guard, daemon=True, name="watchdog's guard").start()

    def _guard(self) -> None:
        """End the process if the thread hangs in a call to the store: if packets are dropped, its time-out fails."""
        clock, seen, since = AwakeClock(), 0, 0.0
        while not self.stopped.wait(self.interval_s):
            clock.slice_s, now = 2 * self.interval_s, clock.now()
            if seen != self.turns or self.budgets is None or self.ending:
                seen, since = self.turns, now
                continue
            host = None if self.by_agent else self.beats.states.get(0)
            patience_s = min(1.5, self.budgets.stall_s) if host and is_gone(host) else self.budgets.stall_s
            if now - since > (EXIT_S if self.failure else patience_s):
                self._store_lost()

    def run(self) -> None:
        while True:
            self.hurried.wait(self.interval_s)
            self.hurried.clear()
            if self.stopped.is_set():
                return
            self.turns, is_watching = self.turns + 1, self.budgets is not None
            if self.guard:
                with suppress(OSError):
                    self.guard.stdin.write(b".")
            try:
                self._turn()
            except RuntimeError:  # the store is lost
                if self.ending or self.stopped.wait(0.3):
                    return
                self._store_lost()
            if is_watching:
                self.has_turned.set()

    def watch(self, budgets: WatchdogOptions) -> None:
        """From now on a stall ends the run."""
        go_on()
        self.interval_s = min(0.5, budgets.stall_s / 6)
        self.beats.clock.slice_s = 2 * self.interval_s
        self._end_guard()
        # After the other ranks, which see more.
        self.guard = start_guard(self.rank, budgets.stall_s + 4, self.stack_file.name, is_alone=self.store is None)
        self.budgets = budgets
        # Others report a silent rank only once its beat has shown that it is watched: beat before going on.
        self.has_turned.clear()
        self.hurried.set()
        self.has_turned.wait(budgets.stall_s)

    def stop(self) -> None:
        self.stopped.set()
        self.hurried.set()
        self.join()
        faulthandler.unregister(signal.SIGUSR2)
        self._end_guard()

    def _end_guard(self) -> None:
        if self.guard:
            self.guard.kill()
            self.guard.wait()

    def _turn(self) -> None:
        self.beats.publish(self._own_state())
        if failure := self.beats.read():
            self._follow(failure)
        if self.ending:
            self.beats.stop_looking()
        elif verdict := self.beats.verdict(self.budgets.stall_s if self.budgets else None):
            self._report(*verdict)

    def _own_state(self) -> State:
        place, now = RUN.place, self.beats.clock.now()
        if place is not self.place:
            self.place, self.entered = place, now - min(time.monotonic() - place.since, self.beats.clock.slice_s)
        return {
            "phase": place.phase, "step": place.step, "syncs": place.syncs,
            "age": now - self.entered, "budget": self.budgets.of(place.phase) if self.budgets else 0.0,
            "pid": os.getpid(), "host": self.host, "stack_file": self.stack_file.name, "facts": RUN.facts,
        }  # fmt: skip

    # ---- failures --------------------------------------------------------------------------------------------------

    def _follow(self, failure: State) -> None:
        """Another rank failed, or saw a stall: give it our stacks if it asks for them, and end after its report."""
        self.failure = failure
        if failure["by"] == self.rank:
            self.stopped.wait()  # the main thread is ending this process
            return
        if failure["code"] == STALL_CODE:
            if failure["rank"] == self.rank:
                self.store.set(f"stacks/{self.rank}", dump_stacks(self.stack_file))
            self._wait_for([REPORTED], 5.0)
        self.leave(failure["code"], self.store)

    def _report(self, rank: int, kind: str, what: str) -> None:
        if self.store is not None:
            if noted := claim_failure(self.store, rank, STALL_CODE, self.rank):
                self._follow(noted)
                return
            self.beats.read_all()
        stacks, key = "", f"stacks/{rank}"
        if rank == self.rank:
            stacks = dump_stacks(self.stack_file)
        elif kind != "DEAD":
            # A silent rank will hardly answer; half a second is for one that is only slow.
            answers = self._wait_for([key], 0.5 if kind == "SILENT" else 1.5)
            stacks = self.store.get(key).decode() if answers else self._stacks_by_signal(rank)
            stacks = stacks or "(it does not answer)"
        say(self._message(rank, kind, what, stacks))
        # Set only now: the guard would end this process while it still collects stacks.
        self.failure = {"rank": rank, "code": STALL_CODE, "by": self.rank}
        if self.store is not None:
            self.store.set(REPORTED, "1")
            if rank != self.rank and is_here(self.beats.states[rank]) and kind != "DEAD":
                time.sleep(0.5)  # it ends by itself if it can
                kill_tree(self.beats.states[rank]["pid"])
        self.leave(STALL_CODE, self.store)

    def _message(self, rank: int, kind: str, what: str, stacks: str) -> str:
        state = self.beats.states[rank]
        error = StallError(
            f"rank {rank} is {kind}: {what}",
            f"host {state['host']}, pid {state['pid']}",
            {"DEAD": "all ranks alive", "SILENT": "a beat of every rank each half second (option watchdog.stall_s)"}.get(
                kind, f"a new phase within {state['budget']:.0f} s (options watchdog.*)"
            ),
            "see its stack below" if stacks else "look for the out-of-memory killer or a signal on that host",
        )
        lines = [str(error), "", "rank  host              pid  step  seconds  collectives  phase"]
        now = self.beats.clock.now()
        for other, s in sorted(self.beats.states.items()):
            unheard_s = now - self.beats.seen[other][1] if other in self.beats.seen else 0.0
            age, host = s["age"] + unheard_s, s["host"][:12]
            lines.append(
                f"{other:>4}  {host:<12} {s['pid']:>8} {s['step']:>5} {age:>8.1f} {s['syncs']:>12}  {s['phase']}"
            )
        return "\n".join([*lines, *([f"\nStacks of rank {rank}:", stacks] if stacks else []), ""])

    def _stacks_by_signal(self, rank: int) -> str:
        """The same, from a silent rank on this machine; '' for one elsewhere."""
        state = self.beats.states[rank]
        if is_here(state):
            with suppress(OSError), open(state["stack_file"], "a+b", buffering=0) as file:
                return dump_stacks(file, state["pid"])
        return ""

    def _wait_for(self, keys: list[str], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.store.check(keys):
                return True
            time.sleep(0.05)
        return False

    def _store_lost(self) -> None:
        """The store does not answer any more; one rank of each host reports it."""
        if self.failure:  # known, and reported by another rank
            self.leave(self.failure["code"], None)
        names = [os.environ.get(key, "") for key in ("MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")]
        # Ranks notice it up to seconds apart; the same port, restart and process are the same run.
        pid = self.beats.states[0]["pid"] if 0 in self.beats.states else 0
        if not first_to_claim(f"lost-{self.host}-{'-'.join(names)}-{pid}"):
            time.sleep(2.0)  # for the rank that reports; torchrun ends all ranks when the first has ended
            self.leave(STALL_CODE, None)
        host = None if self.by_agent else self.beats.states.get(0)
        if host is None:
            address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            say(str(StallError(
                f"rank {self.rank} has lost the store of the run", f"host {self.host}; the store is at {address}",
                "torchrun's first node alive and connected", "look at the network and at the logs of that node",
            )))  # fmt: skip
        elif is_gone(host):
            what = f"its process {host['pid']} is gone, and the store with it; last seen in {where(host)}"
            say(self._message(0, "DEAD", what, ""))
        else:
            what = f"its store does not answer; last seen in {where(host)}"
            say(self._message(0, "SILENT", what, self._stacks_by_signal(0)))
            if is_here(host):
                kill_tree(host["pid"])
        self.leave(STALL_CODE, None)


def say(text: str) -> None:
    """One write to stderr, and to the log file where this rank has one."""
    text = text.encode(errors="backslashreplace").decode()  # under LC_ALL=C, arguments hold bytes that are no text
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
    record = logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)

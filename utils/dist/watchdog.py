"""The watchdog: ends a run that hangs, and names the rank that stands still, with its stack.

A run of several ranks hangs if one rank stops, because the other ranks wait in a collective for
this rank. So each rank has three threads and one small process:

* The main thread trains. When it begins another part of its work, it notes the name of this part,
  the *phase*, in `RUN.place`, e.g. "forward" at step 120. This needs no lock, and no request to the
  key-value store of the run.
* The watchdog thread (`Watchdog.run`) has its own connection to this store. Every half second it
  writes the phase of the main thread into the store (a *beat*), and reads the beats of a few other
  ranks (`utils.dist.beats`).
* A second thread (`Watchdog._watch_watchdog`) ends the process if the watchdog thread hangs in a
  request to the store.
* The guard (`utils.dist.process.guard`) is a process. It ends the rank if none of the three threads
  can run, because C code holds Python's lock.

The watchdogs end all ranks within seconds if a rank is

    SILENT   the rank writes no beat
    STUCK    its main thread is too long in one phase; the options `watchdog` have the limits
    DEAD     its process is gone
    failed   the rank raised an error, which `utils_dist` reports

A main thread that waits for a paused terminal (Ctrl-S, a selection, `less`) is not STUCK: the run
goes on as soon as the terminal does. The watchdog must not hang there itself, so this module writes
to the log file first and to the terminal last, and never waits for the terminal longer than
TERMINAL_WAIT_S.

What must stay: the order in `leave` and `_report`, which is first the report, then the key
REPORTED, then the end of the process. If a rank ended earlier, the store would end with it, or the
other ranks would never learn the cause
(test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end). Free to change: limits and texts.
test_stalls.py measures how long a run takes to end, and reads the texts.

Tests: tests/faults/test_stalls.py, tests/faults/test_scale.py, tests/dist/test_life.py.
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
from utils.dist.store_values import Failure, ForeignValueError, State, printable_text, seal, unseal
from utils.errors import StallError
from utils.options.models import WatchdogOptions

# Store key: the failure has been reported, so all ranks may end.
REPORTED = "reported"
STALL_CODE = StallError.exit_code  # exit code of a run that hangs
# Seconds that a rank waits in `_follow` for the report of another rank, which may still need the
# stacks or the store of the waiting rank.
REPORT_WAIT_S = 5.0
# Seconds that a rank waits in `_sign_off` for the other ranks, if the store ends with it.
SIGN_OFF_WAIT_S = 3.0
# So a rank ends within these seconds, 8 s, after it knows of a failure.
EXIT_S = REPORT_WAIT_S + SIGN_OFF_WAIT_S
# Seconds of a phase after which the watchdog asks the system whether the main thread waits for a
# terminal. Most phases are shorter, so most beats need no such question.
LONG_PHASE_S = 1.0
# Seconds after which the log file tells that the store or the terminal does not answer. A shorter
# silence, e.g. while a user selects text in the terminal, needs no line.
TELL_AFTER_S = 10.0
# Longest wait for a terminal, in seconds. A terminal that is not paused takes the text at once.
TERMINAL_WAIT_S = 1.0
# Seconds that the reporting rank waits for the stacks of another rank. A stuck rank still beats,
# twice a second: it sees the failure with its next beat, so three beats are enough. A silent rank
# will hardly answer, so the shorter wait is for a rank that is only slow.
STUCK_ANSWERS_S = 1.5
SILENT_ANSWERS_S = 0.5
# Seconds that a stuck rank gets to end itself, before it is killed: one beat, as it ends with it.
STUCK_ENDS_S = 0.5
# Seconds without an answer of the store, three beats, after which a rank ends if the process that
# hosts the store is gone. The store will never answer again, so a longer wait only delays the end.
HOST_GONE_S = 1.5

# ---- Where the main thread is ----------------------------------------------------------------


def phase(name: str, step: int | None = None, is_sync: bool = False) -> None:
    """Note that the main thread enters a phase. The time in the phase begins at 0.

    The main thread calls this several times in a step, so it must stay cheap.

    name: name of the phase, e.g. "forward".
    step: number of optimizer steps so far, or None if the number has not changed.
    is_sync: whether the phase is a collective, which ends only when all ranks have entered it.
    """
    former = RUN.place
    # Within `stage`, RUN.stage is " in <name>", e.g. " in validate".
    full_name = name if name.endswith(RUN.stage) else name + RUN.stage
    step_now = former.step if step is None else step
    collective_count = former.syncs + 1 if is_sync else former.syncs
    # Replace the whole tuple in one assignment. The watchdog thread reads the tuple without a lock,
    # and must never see a new phase with an old time.
    RUN.place = Place(
        phase=full_name, step=step_now, since=time.monotonic(), syncs=collective_count
    )


def go_on() -> None:
    """Note that the main thread makes progress: the time of its phase begins again at 0.

    A long phase calls this after each part of its work, e.g. after each file that it has read.
    """
    phase(RUN.place.phase)


def asleep_s() -> float:
    """Return a number of seconds that grows only while this process is suspended, e.g. by Ctrl-Z.

    A single number means nothing. A caller asks twice, and the difference is the number of seconds
    for which the process was suspended in between. While the process is suspended, the clock of the
    watchdog (an AwakeClock) stands still, and the clock of the system goes on.
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

    This also counts the collective. The ranks wait for the rank with the smallest count, so every
    collective that may hang needs this block, on every rank.
    """
    outer = RUN.place.phase
    phase(f"{name} in {outer}", is_sync=True)
    # There is no `finally`: after an error in the block, the phase stays, because the report names
    # the phase in which the rank failed.
    yield
    phase(outer)


def stack_file_name(rank: int) -> str:
    """Return the name of the memory file into which a rank of this run writes its stacks.

    E.g. "spikevrt-rank-3-of-5f0c2a9be81d4477". A memory file exists in memory only, not on a disk.
    """
    return f"spikevrt-rank-{rank}{run_mark()}"


def run_mark() -> str:
    """Return the end of the names of the memory files of this run, e.g. "-of-5f0c2a9be81d4477".

    It is the same on all ranks of the run, and different in other runs. The job key goes in, so
    that nobody who does not know the key can compute it.
    """
    launch = RUN.launch
    run = f"{launch.master_addr}:{launch.master_port} {launch.world_size} {launch.mode}"
    digest = hashlib.sha256(run.encode() + RUN.job_key).hexdigest()
    return f"-of-{digest[:16]}"


# ---- The thread ------------------------------------------------------------------------------


class Watchdog(threading.Thread):
    """The watchdog thread of this rank. The thread begins to beat as soon as the object is made.

    Before `watch` is called, the thread ends this rank only if another rank has failed, or if the
    process of another rank is gone. After `watch`, it also ends the run if a rank stands still.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.rank = RUN.launch.rank
        self.host = socket.gethostname()
        self.store: Store | None = None  # None in a single process
        if RUN.store is not None:
            self.store = RUN.store.clone()  # each thread needs a connection of its own
            # The host of the store may be suspended for a while, which is no failure. So torch's
            # time limit is set so high that it never comes; `_watch_watchdog` has the real limit.
            self.store.set_timeout(timedelta(days=365))
        self.beats = Beats(self.rank, RUN.launch.world_size, self.store)

        # What this thread does.
        self.budgets: WatchdogOptions | None = None  # limits of the phases; None until `watch`
        self.interval_s = BEAT_S  # seconds between two beats
        self.passes = 0  # how often `run` has gone through its loop
        self.stopped = threading.Event()  # set by `stop`
        self.guard: subprocess.Popen[bytes] | None = None  # `run` sends a byte to it in each pass
        # `utils_dist.ranks` sets this when the program has finished. From then on the other ranks
        # may end as well, and must not be taken for DEAD.
        self.ending = False
        # The failure that ends the run, once it is known: its rank, exit code, and who claimed it.
        self.failure: Failure | None = None

        # What the main thread does.
        self.place = RUN.place  # the phase of the last beat
        # When this phase began, on the clock of the beats. While the main thread waits for a paused
        # terminal, each beat sets it to the present, so that the wait does not count.
        self.phase_began = self.beats.clock.now()
        self.blocked_since: float | None = None  # since when the main thread waits for a terminal
        self.has_told_of_block = False  # whether the log file has the line about this wait

        # The stacks go into a file in memory, so that nothing is left on the disk. The name of the
        # file proves to other ranks of this host that the process is a rank of this run.
        self.stack_file, self.stack_path = system.file_in_memory(stack_file_name(self.rank))
        # When another rank, or the guard, sends SIGUSR2, faulthandler writes the stacks. Its
        # handler is C code, which runs even while another thread holds Python's lock (the GIL).
        # Loader processes inherit the handler.
        faulthandler.register(signal.SIGUSR2, file=self.stack_file, all_threads=True, chain=False)
        self.beats.publish(self._own_state())
        self.start()

    def watch(self, budgets: WatchdogOptions) -> None:
        """End the run from now on if a rank stands still. budgets: the options `watchdog`."""
        go_on()  # the time of the present phase counts from now on
        # With at least six beats within the shortest limit, one late beat makes no rank silent.
        self.interval_s = min(BEAT_S, budgets.stall_s / 6)
        # The clock asks for the time at each beat. If more than slice_s have passed since the last
        # question, it takes the rest for a suspended process and does not count it. Twice the
        # interval leaves room for a late beat.
        self.beats.clock.slice_s = 2 * self.interval_s
        # The other ranks can tell more about a silent rank than the guard can. So the guard waits
        # 4 s longer than the other ranks, in which they report and end this rank.
        guard_limit_s = budgets.stall_s + 4
        is_alone = self.store is None  # a single process
        self.guard = process.start_guard(
            self.rank, guard_limit_s, self.stack_path, is_alone, log_file()
        )
        self.budgets = budgets
        # Other ranks report a silent rank only if its last beat has a budget above 0. So write such
        # a beat before the main thread goes on, because the main thread may hang at once.
        self.beats.publish(self._own_state())

    def stop(self) -> None:
        """End the thread and the guard, at the normal end of a run."""
        # The loops of `run` and `_watch_watchdog` end at this event.
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
                # Any byte tells the guard that this process runs. Writing fails if the guard is
                # gone, or does not read.
                with suppress(OSError):
                    self.guard.stdin.write(b".")
            try:
                self.beat_once()
            except ForeignValueError as e:
                self._end_by_foreign_value(e)
            except RuntimeError:
                # The store does not answer. At the normal end of a run, rank 0 ends with its store,
                # and the main thread of this rank calls `stop` within a moment, for which 0.3 s are
                # ample.
                if self.ending or self.stopped.wait(0.3):
                    return
                self._end_without_store()

    def beat_once(self) -> None:
        """Write a beat, read the beats of other ranks, and end the run if there is a reason.

        If another rank has claimed a failure, this rank ends too. Otherwise this rank looks for a
        rank that stands still, and reports it. A verdict names such a rank, and says how it stands
        still: SILENT, STUCK or DEAD.
        """
        self.beats.publish(self._own_state())
        failure = self.beats.read()
        verdict = None
        if self.ending:
            self.beats.stop_looking()
        elif failure is None:
            stall_s = self.budgets.stall_s if self.budgets else None  # None before `watch`
            verdict = self.beats.verdict(stall_s)

        # Several ranks may see the same stall. The first rank that claims the stall in the store
        # also reports the stall. `claim_failure` returns None to this first rank, and the failure
        # that the first rank has claimed to all other ranks.
        if verdict is not None and self.store is not None:
            stall = Failure(verdict.rank, STALL_CODE, self.rank)
            failure = claim_failure(self.store, stall, self.beats.world_size)
        if failure is not None:
            self._follow(failure)
        elif verdict is not None:
            self._report(verdict)

    def _follow(self, failure: Failure) -> None:
        """End this rank after a failure that another rank, or its own main thread, has claimed."""
        self.failure = failure
        if failure.by == self.rank:
            self.stopped.wait()  # the main thread is ending this process
            return
        if failure.code == STALL_CODE and self.store is not None:
            if failure.rank == self.rank:
                # The main thread of this rank stands still. Its stacks go to the rank that reports.
                key = f"stacks/{self.rank}"
                self.store.set(key, seal(key, process.dump_stacks(self.stack_file)))
            # The reporting rank may still need the stacks or the store of this rank.
            wait_for(self.store, REPORTED, seconds=REPORT_WAIT_S)
        leave(failure.code, self.store)

    def _own_state(self) -> State:
        """Return the next beat: the phase of the main thread, and how long it has been there.

        utils.dist.beats explains the keys.
        """
        place = RUN.place
        now = self.beats.clock.now()
        if place is not self.place:
            # The phase is new, so it began after the last beat, at most one slice of the clock ago.
            # If `time.monotonic` shows a longer time, the process was suspended in between, and the
            # longer time does not count.
            self.place = place
            in_phase_s = time.monotonic() - place.since
            self.phase_began = now - min(in_phase_s, self.beats.clock.slice_s)
        if self._waits_for_terminal(now):
            self.phase_began = now  # so the age of the phase stays 0
        return {
            "phase": place.phase,
            "step": place.step,
            "syncs": place.syncs,
            "age": now - self.phase_began,
            "budget": self.budgets.limit_of_phase(place.phase) if self.budgets else 0.0,
            "pid": os.getpid(),
            "host": self.host,
            "facts": RUN.facts,
        }

    def _waits_for_terminal(self, now: float) -> bool:
        """Return whether the main thread waits in a write to a paused terminal.

        After TELL_AFTER_S seconds this writes a line into the log file. Test:
        test_a_paused_terminal_is_no_stall.

        now: time of the clock of the beats.
        """
        # In a new phase do not ask the system, because asking costs time. But ask on if the last
        # answer was yes (`blocked_since` is set): the phase then looks new because `_own_state`
        # keeps its age at 0.
        is_new_phase = now - self.phase_began < LONG_PHASE_S
        was_blocked = self.blocked_since is not None
        if is_new_phase and not was_blocked:
            return False
        if not process.main_thread_writes():
            self.blocked_since = None
            self.has_told_of_block = False
            return False
        if self.blocked_since is None:
            self.blocked_since = now
        if now - self.blocked_since > TELL_AFTER_S and not self.has_told_of_block:
            self.has_told_of_block = True
            write_to_log_file(
                f"rank {self.rank} waits for its terminal, which takes no output (Ctrl-S, a "
                "selection, a pager); the run goes on as soon as the terminal does"
            )
        return True

    # ---- The thread that watches the watchdog thread -----------------------------------------

    def _watch_watchdog(self) -> None:
        """End the process if the watchdog thread hangs in a request to the store.

        torch's own time limit of a request does not work if the network drops all packets.
        """
        # The clock stands still while the process is suspended, because it counts at most `slice_s`
        # between two calls of `now`. The loop calls `now` once in an interval, so two are enough.
        clock = process.AwakeClock(slice_s=2 * self.interval_s)
        seen_passes = 0
        changed_at = 0.0  # when the number of passes of the watchdog thread last changed
        is_told = False  # whether the log file has the line about this silence
        while not self.stopped.wait(self.interval_s):
            clock.slice_s = 2 * self.interval_s  # `watch` may have changed the interval
            now = clock.now()
            # The silence begins again if the watchdog thread has made a pass. Before `watch`, and
            # at the end of the run, the thread may be silent for any time.
            has_passed = seen_passes != self.passes
            if has_passed or self.budgets is None or self.ending:
                seen_passes = self.passes
                changed_at = now
                is_told = False
                continue
            silent_s = now - changed_at
            if silent_s > TELL_AFTER_S and not is_told:
                is_told = True
                write_to_log_file(
                    f"rank {self.rank}: the store of the run at {RUN.launch.master_addr}:"
                    f"{RUN.launch.master_port} has not answered for {silent_s:.0f} s"
                )
            if silent_s > self._longest_silence_s(self.budgets.stall_s):
                self._end_without_store()  # ends this process

    def _longest_silence_s(self, stall_s: float) -> float:
        """Return how many seconds the store may be silent before this rank ends.

        the run is ending                                        EXIT_S
        the process of rank 0, which hosts the store, is gone    HOST_GONE_S, at most stall_s
        otherwise                                                stall_s
        """
        if self.failure is not None:
            return EXIT_S
        # Without an agent of torchrun, rank 0 hosts the store.
        state_of_host = None if RUN.launch.by_agent else self.beats.states.get(0)
        if state_of_host is not None and is_gone(state_of_host):
            return min(HOST_GONE_S, stall_s)
        return stall_s

    # ---- Reports -----------------------------------------------------------------------------

    def _report(self, verdict: Verdict) -> NoReturn:
        """Report the rank that stops the run, with its stacks, and end the run.

        The caller has written the failure into the store (`claim_failure`), where every rank reads
        it with its next beat. So what the ranks do now, in this order:

            1  a stuck rank reads the failure, and writes its stacks into the store (`_follow`)
            2  this rank takes these stacks, and writes the report
            3  this rank sets the key REPORTED, for which the other ranks wait before they end
            4  this rank kills the rank that stops the run, if it has not ended itself
        """
        rank = verdict.rank
        if self.store is not None:
            self.beats.states.update(read_states(self.store, self.beats.world_size))
        if verdict.kind == "DEAD":
            stacks = ""
        else:
            wait_s = SILENT_ANSWERS_S if verdict.kind == "SILENT" else STUCK_ANSWERS_S
            stacks = self._stacks_of(rank, wait_s) or "(it does not answer)"
        self._write_report(verdict, stacks)
        # Set `failure` only now. As soon as it is set, `_watch_watchdog` waits for EXIT_S only, and
        # would end this process while it still collects stacks.
        self.failure = Failure(rank, STALL_CODE, self.rank)
        if self.store is not None:
            self.store.set(REPORTED, "1")
            if rank != self.rank and verdict.kind != "DEAD":
                # A silent rank cannot end itself, so it is killed.
                time.sleep(STUCK_ENDS_S)
                process.kill_rank(self.beats.states[rank]["pid"], stack_file_name(rank))
        leave(STALL_CODE, self.store)

    def _stacks_of(self, rank: int, wait_s: float = 0.0) -> str:
        """Return the stacks of a rank, or "" if there are none.

        A rank that has failed puts its stacks into the store, if its watchdog thread runs. If it
        does not, `process.stacks_of` asks the rank by a signal. This works for a rank of this host.
        For a rank of another host the result is "", because this host has no process that holds the
        memory file of that rank.

        wait_s: seconds to wait for the stacks in the store; 0 if the store does not answer.
        """
        if rank == self.rank:
            return process.dump_stacks(self.stack_file)
        key = f"stacks/{rank}"
        if wait_s and self.store is not None and wait_for(self.store, key, wait_s):
            # `unseal` refuses a text that no rank of this run wrote. `printable_text` replaces
            # characters that would move the cursor of a terminal.
            text = unseal(key, self.store.get(key))
            return "\n".join(printable_text(line) for line in text.splitlines())
        return process.stacks_of(self.beats.states[rank]["pid"], stack_file_name(rank))

    def _write_report(self, verdict: Verdict, stacks: str) -> None:
        """Write the report: the error, a table of the last beat of every rank, and the stacks.

        docs/ddp.md explains the columns of this table:

            rank  host              pid  step  seconds  collectives  phase
               0  gpu7             4711   120      0.4         2211  all_reduce in backward
        """
        lines = [str(self._stall_error(verdict, stacks)), ""]
        lines.append("rank  host              pid  step  seconds  collectives  phase")
        now = self.beats.clock.now()
        for other, state in sorted(self.beats.states.items()):
            lines.append(self._row_of_table(other, state, now))
        if stacks:
            lines.append(f"\nStacks of rank {verdict.rank}:")
            lines.append(stacks)
        lines.append("")
        write_to_log_and_stderr("\n".join(lines))

    def _row_of_table(self, rank: int, state: State, now: float) -> str:
        """Return the row of a rank in the table of `_write_report`.

        The widths of the cells are the widths of the columns there, so change both together.

        state: the last beat of the rank
        now: time of the clock of the beats
        """
        # `age` is how long the phase had lasted when the rank wrote its last beat. This rank
        # watches a few other ranks, and `heard` knows when their last beats came. So add the
        # seconds since then.
        age = state["age"]
        if rank in self.beats.heard:
            age += now - self.beats.heard[rank].when
        # ">4" is four characters wide, to the right; "<12" is twelve, to the left.
        host = f"{rank:>4}  {state['host'][:12]:<12}"
        numbers = f"{state['pid']:>8} {state['step']:>5} {age:>8.1f} {state['syncs']:>12}"
        return f"{host} {numbers}  {state['phase']}"

    def _stall_error(self, verdict: Verdict, stacks: str) -> StallError:
        """Return the error that names the rank, its phase and its host.

        Its first line is e.g. 'rank 3 is STUCK: 312.4 s in phase "forward" at step 120', or 'rank 3
        is SILENT: no beat for 9.1 s; last seen in phase "forward" at step 120'.

        stacks: the stacks of the rank, or "" if there are none. The advice depends on this.
        """
        rank, kind, what = verdict  # e.g. 3, "STUCK", "312.4 s"
        last_state = self.beats.states[rank]  # the last beat of the rank
        expected_of_kind = {
            "DEAD": "all ranks alive",
            "SILENT": "a beat of every rank each half second (option watchdog.stall_s)",
            "STUCK": f"a new phase within {last_state['budget']:.0f} s (options watchdog.*)",
        }
        # A STUCK rank is still in its phase. A DEAD or SILENT rank may have left it unseen.
        link = " in" if kind == "STUCK" else "; last seen in"
        if stacks:
            do = "see its stack below"
        else:
            do = "look for the out-of-memory killer or a signal on that host"
        return StallError(
            what=f"rank {rank} is {kind}: {what}{link} {where(last_state)}",
            where=f"host {last_state['host']}, pid {last_state['pid']}",
            expected=expected_of_kind[kind],
            do=do,
        )

    def _end_by_foreign_value(self, error: ForeignValueError) -> NoReturn:
        """End the run because a stranger wrote into its store.

        A stranger is a process that is no rank of this run. The first rank that sees the foreign
        value claims a failure in the store, and reports. All other ranks follow it.
        """
        # No rank has failed, but a failure must name a rank. So this rank names itself.
        own_failure = Failure(rank=self.rank, code=error.exit_code, by=self.rank)
        if self.store is not None:
            # Two errors are possible here. ForeignValueError: the stranger has written under the
            # key of the failure. RuntimeError: the store does not answer. After either error, no
            # rank can claim the failure.
            with suppress(ForeignValueError, RuntimeError):
                earlier = claim_failure(self.store, own_failure, self.beats.world_size)
                if earlier is not None:
                    # Another rank was first, and reports. `_follow` ends this process, unless the
                    # main thread of this rank is ending it already.
                    self._follow(earlier)

        # This rank has claimed the failure, or no rank can claim it. In the second case every rank
        # comes here, so only the first rank of each host reports.
        if is_first_to_report_stranger():
            write_to_log_and_stderr(str(error))
        self.failure = own_failure
        if self.store is not None:
            with suppress(RuntimeError):
                self.store.set(REPORTED, "1")
        leave(own_failure.code, self.store)

    def _end_without_store(self) -> NoReturn:
        """End because the store does not answer any more. One rank of each host reports it.

        The store is in the process of rank 0, or in an agent of torchrun. So the report says:

            an agent has the store, or no beat of rank 0 was read    the store is lost
            the process of rank 0 is gone                            rank 0 is DEAD
            otherwise                                                rank 0 is SILENT
        """
        if self.failure is not None:  # known, and reported by another rank
            leave(self.failure.code, store=None)
        launch = RUN.launch
        rank_0 = self.beats.states.get(0)  # the last beat of rank 0, or None if none was read

        # The ranks of a host notice the loss up to seconds apart, and only one of them shall
        # report: the first that claims a name. The name has the port of the run and the process id
        # of rank 0, so it is the same on all ranks of the run.
        pid = rank_0["pid"] if rank_0 is not None else None
        if not process.first_to_claim(f"lost {launch.master_port} {pid}"):
            # Another rank reports. Give it time, because torchrun ends all ranks as soon as one
            # rank has ended.
            time.sleep(2.0)
        elif rank_0 is None or launch.by_agent:
            address = f"{launch.master_addr}:{launch.master_port}"
            error = StallError(
                what=f"rank {self.rank} has lost the store of the run",
                where=f"host {self.host}; the store is at {address}",
                expected="torchrun's first node alive and connected",
                do="look at the network and at the logs of that node",
            )
            write_to_log_and_stderr(str(error))
        elif is_gone(rank_0):
            gone = Verdict(
                rank=0, kind="DEAD", what=f"its process {pid} is gone, and the store with it"
            )
            self._write_report(gone, stacks="")
        else:
            silent = Verdict(rank=0, kind="SILENT", what="its store does not answer")
            self._write_report(silent, self._stacks_of(rank=0))
            # The name of its memory file proves that the process with this pid still is rank 0.
            process.kill_rank(rank_0["pid"], stack_file_name(rank=0))
        leave(STALL_CODE, store=None)


# ---- The last words, and the end -------------------------------------------------------------


def is_first_to_report_stranger() -> bool:
    """Return whether this rank is the first of its host to report a stranger in the store."""
    return process.first_to_claim(f"foreign value {RUN.launch.master_port}")


def write_to_log_and_stderr(text: str) -> None:
    """Write a text to the log file, then to stderr, and go on after TERMINAL_WAIT_S at the latest.

    The log file comes first, because a paused terminal takes no output.
    """
    # A byte that is no UTF-8, e.g. in an argument of the command line, is a "surrogate" in a text
    # of Python, and cannot be written. So write it as an escape, e.g. "\udce4".
    text = text.encode(errors="backslashreplace").decode()
    write_to_log_file(text)

    def to_terminal() -> None:
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(OSError):
            # Not sys.stderr: the main thread may hold its lock, while it waits for the terminal.
            os.write(2, f"{text}\n".encode())

    call_with_time_limit(to_terminal)


def call_with_time_limit(write: Callable[[], None]) -> None:
    """Call `write`, and go on after TERMINAL_WAIT_S even if a paused terminal holds it."""
    thread = threading.Thread(target=write, daemon=True, name="last words")
    thread.start()
    thread.join(TERMINAL_WAIT_S)


def write_to_log_file(text: str) -> None:
    """Write an error to the log file, if this rank has one. Nothing goes to the terminal."""
    record = logging.LogRecord(
        name=__name__,
        level=logging.ERROR,
        pathname=__file__,
        lineno=0,  # the log file shows no line number
        msg=text,
        args=None,
        exc_info=None,
    )
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
    """End this process with an exit code. The order of the steps below must stay.

    If the store ends with this process, the process first waits until the other ranks have read the
    failure from the store.

    store: the store of the run, or None if the store does not answer.
    """
    # 1. Let only one thread pass. The main thread and the watchdog thread may both call this
    # function. If a rank signed off twice, the host of the store would count one rank too many and
    # end too early. So the first thread never releases the lock, and the other thread waits until
    # the process ends (test_a_rank_signs_off_once_though_two_of_its_threads_end_it).
    if not RUN.leaving.acquire(timeout=EXIT_S):
        os._exit(code)  # the thread that has the lock hangs
    # 2. Note the exit code, sign off, and wait for the ranks that need this process.
    with suppress(Exception):
        process.write_exit_file(code)
        if store is not None:
            _sign_off(store)
        if RUN.watchdog is not None and RUN.watchdog.guard is not None:
            RUN.watchdog.guard.kill()  # the guard would take the wait below for a stall
        # The mark is in the names of the memory files. Ranks have such files only if they have a
        # watchdog.
        process.outlast_siblings(None if RUN.watchdog is None else run_mark())

    def flush() -> None:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()

    # 3. Write what is still in the buffers of Python, unless a paused terminal holds it.
    call_with_time_limit(flush)
    # 4. End the loader processes last. The end of a loader process raises an error in the main
    # thread, which must not have the time to print it.
    process.kill_trees(process.descendants_of(os.getpid()))
    os._exit(code)


def _sign_off(store: Store) -> None:
    """Note in the store that this rank leaves. If the store ends with it, wait for the others.

    The store ends with rank 0, or, if an agent of torchrun has opened the store, perhaps with any
    rank. In these cases this rank waits until every rank has signed off or its process is gone, but
    SIGN_OFF_WAIT_S at most.

    The keys: left/<rank> of each rank that has signed off, and `left`, the number of these ranks.
    """
    store.set(f"left/{RUN.launch.rank}", "1")
    signed_off = store.add("left", 1)  # number of ranks that have signed off
    deadline = time.monotonic() + SIGN_OFF_WAIT_S
    ends_store = RUN.launch.rank == 0 or RUN.launch.by_agent
    if not ends_store:
        return
    # The beats of all ranks, which have their process ids. Before the ranks have met, some ranks
    # have no beat, and reading would hang.
    states = {}
    with suppress(ForeignValueError):
        if store.check([MET]):
            states = read_states(store, RUN.launch.world_size)
    # Wait until each process that has joined has signed off, or is gone without signing off.
    known_as_gone: set[int] = set()  # ranks whose process is gone
    gone_without_sign = 0  # number of these ranks that have not signed off
    while signed_off + gone_without_sign < store.add(JOINED, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
        for rank, state in states.items():
            if rank in known_as_gone or not is_gone(state):
                continue
            known_as_gone.add(rank)
            # A rank that signed off before it ended is counted in `signed_off` already.
            if not store.check([f"left/{rank}"]):
                gone_without_sign += 1
        signed_off = store.add("left", 0)  # adding 0 reads the number

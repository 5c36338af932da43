"""Run the watchdog thread of a rank, which watches other ranks and ends a run that hangs.

utils/dist/watchdog.py explains the watchdog as a whole. `Watchdog.run` is the loop of the thread.
Every half second it calls `beat_once`, which writes a beat (the phase of the main thread) into the
store, reads the beats of a few other ranks, and judges them. The loop of a second thread,
`_watch_watchdog`, notices if the first thread hangs. In four cases the run ends:

    a rank stands still                          `_report`
    another rank has claimed a failure           `_follow`
    the store does not answer any more           `_end_without_store`
    another program wrote into the store         `_end_by_foreign_value`

A rank stands still if it is

    SILENT   it writes no beat
    STUCK    it writes beats, but its main thread stays in one phase for too long
    DEAD     its process is gone

What must stay: the order in `_report` (report, key REPORTED, end of the process), because the other
ranks wait for REPORTED before they end
(test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end). Free to change: the waits, within the
limits that their comments name. test_stalls.py measures how long a run takes to end.

Tests: tests/faults/test_stalls.py, tests/faults/test_scale.py, tests/dist/test_life.py.
"""

import faulthandler
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn

from torch.distributed import Store

from utils import system
from utils.dist import watchdog
from utils.dist.awake_clock import AwakeClock
from utils.dist.beats import BEAT_S, Beats, claim_failure, is_gone, read_states, where
from utils.dist.claims import first_to_claim
from utils.dist.guard import GuardedRank, start_guard
from utils.dist.leave import (
    EXIT_S,
    REPORT_WAIT_S,
    REPORTED,
    is_first_to_report_foreign_value,
    leave,
    log_file,
    write_to_log_and_stderr,
    write_to_log_file,
)
from utils.dist.paused_terminal import PausedTerminal
from utils.dist.stacks import dump_stacks, kill_rank, run_mark, stack_file_name, stacks_of
from utils.dist.stall_report import text_of_stall
from utils.dist.state import RUN, Place
from utils.dist.store_values import Failure, ForeignValueError, State, printable_text, seal, unseal
from utils.dist.verdict import Judge, Verdict
from utils.dist.waiting import wait_for
from utils.errors import StallError
from utils.options.watchdog_options import WatchdogOptions

STALL_CODE = StallError.exit_code  # exit code of a run that hangs

# Seconds without an answer of the store after which a line is written to the log file. Chosen by
# hand. paused_terminal.py has a constant of the same name, for another wait; the two need not be
# equal.
TELL_AFTER_S = 10.0
# The next four times are multiples of the time between two beats (BEAT_S of beats.py, half a
# second). If BEAT_S changes, change these times, too.
#
# Seconds that `_report` waits for the stacks of a stuck rank: the time of three beats.
STUCK_ANSWERS_S = 1.5
# Seconds that `_report` waits for the stacks of a silent rank. A rank that is silent because it is
# slow may answer in this time. Other silent ranks do not answer.
SILENT_ANSWERS_S = 0.5
# Seconds that `_report` waits until a stuck rank has ended itself: one beat.
STUCK_ENDS_S = 0.5
# Seconds without an answer of the store, three beats, after which a rank ends if the process that
# hosts the store is gone. The store will never answer again, so a longer wait only delays the end.
HOST_GONE_S = 1.5
# Seconds that the guard waits longer than stall_s. After stall_s the other ranks report and end
# this rank. Their report is better than the report of the guard, because it has the last beat of
# this rank.
GUARD_LATER_S = 4
# At the normal end of a run, the store ends with rank 0, and soon after that the main thread of
# each other rank calls `Watchdog.stop`. If this takes longer than these seconds, the store counts
# as failed. Chosen by hand.
STOP_FOLLOWS_S = 0.3
# torch's time limit of a request to the store. It must never be reached, because the host of the
# store may be suspended for hours, which is not a failure. `_watch_watchdog` has the real limit,
# in seconds in which this process ran.
NEVER = timedelta(days=365)


class _PhaseClock:
    """Measures how long the main thread of this rank has been in its phase."""

    def __init__(self, rank: int, clock: AwakeClock) -> None:
        """Begin with the present phase of the main thread.

        clock: the clock of the beats, which stands still while the process is suspended.
        """
        self.clock = clock
        self.place = RUN.place  # the phase at the last call of `age_of`
        self.phase_began = clock.now()  # time at which this phase began
        self.paused_terminal = PausedTerminal(rank)

    def age_of(self, place: Place) -> float:
        """Return the seconds since the phase began.

        Time in which the process is suspended, or waits for a paused terminal, does not count.

        place: the present value of RUN.place. It is a new object in each phase.
        """
        now = self.clock.now()
        if place is not self.place:
            # The phase is new: it began `in_phase_s` seconds ago, after the last call. If the
            # process was suspended in between, this number is too large, because `time.monotonic`
            # goes on during a suspension. So count at most `slice_s`, as the clock does.
            self.place = place
            in_phase_s = time.monotonic() - place.since
            self.phase_began = now - min(in_phase_s, self.clock.slice_s)
        # While the main thread waits for a paused terminal, the time in the phase stays 0.
        if self.paused_terminal.holds_main_thread(now, in_phase_s=now - self.phase_began):
            self.phase_began = now
        return now - self.phase_began


class Watchdog(threading.Thread):
    """The watchdog thread of this rank. The thread begins to beat as soon as the object is made.

    To beat is to write the state of this rank (the phase of its main thread) into the store, the
    key-value store of all ranks. Other ranks read the beats.

    Before `watch` is called, the thread ends this rank in two cases: another rank has failed, or
    the process of another rank is gone. After `watch`, it also ends the run if a rank stands still.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.rank = RUN.launch.rank
        self.host = socket.gethostname()
        self.store: Store | None = None  # None in a single process
        if RUN.store is not None:
            self.store = RUN.store.clone()  # each thread needs a connection of its own
            self.store.set_timeout(NEVER)
        self.beats = Beats(self.rank, RUN.launch.world_size, self.store)
        self.judge = Judge(self.beats)

        # What this thread does.
        self.budgets: WatchdogOptions | None = None  # limits of the phases; None until `watch`
        self.interval_s = BEAT_S  # seconds between two beats; `watch` may make it shorter
        self.passes = 0  # how often the loop in `run` has begun again
        self.stopped = threading.Event()  # set by `stop`
        # The process that ends this rank if none of its threads can run; None until `watch`. `run`
        # sends a byte to it in each pass.
        self.guard: subprocess.Popen[bytes] | None = None
        # The thread that ends this process if the watchdog thread hangs.
        self.overseer = threading.Thread(
            target=self._watch_watchdog, daemon=True, name="watchdog's overseer"
        )
        # `utils_dist.ranks` sets this when the program has finished. From then on the other ranks
        # may end, too, and a rank without a process does not count as DEAD.
        self.is_ending = False
        # The failure that ends the run, or None: the failed rank, the exit code, and the rank that
        # reports.
        self.failure: Failure | None = None
        self.is_reported = False  # whether this rank knows that the stall has been reported

        # Measures how long the main thread has been in its phase.
        self.phase_clock = _PhaseClock(self.rank, self.beats.clock)

        # The stacks are written into a file in memory, so that nothing is left on the disk. The
        # file also proves that this process is a rank of this run: before another rank signals or
        # kills a process, it looks for a file of this name among the open files of the process
        # (stacks.py).
        self.stack_file, self.stack_path = system.file_in_memory(stack_file_name(self.rank))
        # faulthandler writes the stacks when another rank, or the guard, sends SIGUSR2. Its handler
        # is C code, so it runs even while a thread holds Python's lock (the GIL). Loader processes
        # inherit the handler.
        faulthandler.register(signal.SIGUSR2, file=self.stack_file, all_threads=True, chain=False)
        # Write the first beat now: when all ranks have met, every rank must have one.
        self.beats.publish(self._own_state())
        self.start()

    def watch(self, budgets: WatchdogOptions) -> None:
        """End the run from now on if a rank stands still.

        budgets: the options `watchdog`.
        """
        watchdog.go_on()  # the time of the present phase counts from now on
        # The shortest limit, stall_s, must be longer than several beats, so that one late beat
        # makes no rank silent. E.g. stall_s 2 gives a beat every 0.33 s. `Judge.verdict`
        # (verdict.py) relies on at least six beats in stall_s.
        self.interval_s = min(BEAT_S, budgets.stall_s / 6)
        # Each beat calls `now` of the clock. Between two calls, the clock counts at most slice_s,
        # because in a longer time the process may have been suspended. Twice the interval leaves
        # room for a late beat.
        self.beats.clock.slice_s = 2 * self.interval_s
        is_single = self.store is None
        self.guard = start_guard(
            GuardedRank(
                number=self.rank,
                pid=os.getpid(),
                limit_s=budgets.stall_s + GUARD_LATER_S,
                stack_file=self.stack_path,
                mark=None if is_single else run_mark(),
                log_file=log_file(),
            )
        )
        self.budgets = budgets
        # Other ranks report a silent rank only if its last beat has a budget (the limit of its
        # phase) above 0. So write such a beat now, because the main thread may hang at once.
        self.beats.publish(self._own_state())

    def stop(self) -> None:
        """End both threads and the guard, at the normal end of a run. The process may live on."""
        self.stopped.set()  # the loops of `run` and `_watch_watchdog` end at this event
        self.join()  # so that this thread makes no request to a store that ends
        self.overseer.join()  # so that no thread of the run is left in the process
        faulthandler.unregister(signal.SIGUSR2)  # its file is closed when this object is freed
        if self.guard is not None:
            # This process sends no heartbeat any more, so the guard would end it.
            self.guard.kill()
            # Without `wait`, the ended guard would stay as a zombie while this process lives.
            self.guard.wait()

    def run(self) -> None:
        """Beat until the run ends. `threading.Thread` calls this in the thread."""
        self.overseer.start()
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
                # and the main thread of this rank calls `stop` soon.
                if self.is_ending or self.stopped.wait(STOP_FOLLOWS_S):
                    return
                self._end_without_store()

    def beat_once(self) -> None:
        """Write a beat, read the beats of other ranks, and end the run if there is a reason.

        The first two columns decide:

            the store has a failure   the program has finished   what this rank does
            yes                       yes or no                  ends, too (`_follow`)
            no                        no                         judges the beats (`_judge_ranks`)
            no                        yes                        nothing: other ranks may end now
        """
        self.beats.publish(self._own_state())
        failure = self.beats.read()
        if self.is_ending:
            self.judge.stop_looking()
        if failure is not None:  # a rank has claimed it in the store
            self._follow(failure)
        elif not self.is_ending:
            self._judge_ranks()

    def _judge_ranks(self) -> None:
        """Look for a rank that stands still. If there is one, end the run."""
        stall_s = self.budgets.stall_s if self.budgets else None  # None before `watch`
        # A verdict names the rank, and says how it stands still: SILENT, STUCK or DEAD.
        verdict = self.judge.verdict(stall_s)
        if verdict is None:
            return
        # Several ranks may see the same stall. Each claims a failure in the store, and only the
        # rank that was first reports.
        if self.store is not None:
            own_failure = Failure(rank=verdict.rank, code=STALL_CODE, by=self.rank)
            first_failure = claim_failure(self.store, own_failure, self.beats.world_size)
            if first_failure != own_failure:
                self._follow(first_failure)
                return
        self._report(verdict)

    def _follow(self, failure: Failure) -> None:
        """End this rank after a failure that another rank, or its own main thread, has claimed.

        To claim a failure is to write it into the store as the first rank (`claim_failure`).

        failure: the failure in the store. `failure.rank` has failed, and `failure.by` reports it.
        """
        self.failure = failure
        if failure.by == self.rank:
            # The main thread has claimed the failure, and is ending this process. Nobody sets
            # `stopped` any more, so this waits until the process ends.
            self.stopped.wait()
            return
        if failure.code == STALL_CODE and self.store is not None:
            if failure.rank == self.rank:
                # The main thread of this rank stands still. Its stacks go to the rank that reports,
                # which reads them under this key (`_stacks_of`).
                key = f"stacks/{self.rank}"
                self.store.set(key, seal(key, dump_stacks(self.stack_file)))
            # The reporting rank may still need the stacks or the store of this rank.
            self.is_reported = wait_for(self.store, REPORTED, seconds=REPORT_WAIT_S)
            self._report_if_nobody_did(failure)
        leave(failure.code, self.store)

    def _report_if_nobody_did(self, failure: Failure) -> None:
        """Report a stall whose reporter ended before its report, e.g. by the out-of-memory killer.

        One rank of each host reports
        (test_a_stall_is_reported_although_the_reporting_rank_is_killed).

        failure: the failure in the store. `failure.by` should have reported it.
        """
        is_own = failure.by == self.rank
        if is_own or self.is_reported:
            return  # another thread of this rank reports, or somebody has reported
        if failure.code != STALL_CODE:
            return  # `failure.by` reports other failures before it ends
        self.is_reported = True
        # Another rank of this host may have missed the failure. That other rank finds that the
        # store is lost, and would report the loss as a second error. Both ranks claim the same
        # name, so only the first of them reports.
        if not first_to_claim(self._name_of_loss()):
            return
        last_seen = ""
        place = ""
        state = self.beats.states.get(failure.rank)  # None if this rank has read no beat of it
        if state is not None:
            last_seen = f"; last seen in {where(state)}"
            place = f"host {state['host']}, pid {state['pid']}; "
        error = StallError(
            what=f"rank {failure.rank} stands still or is gone{last_seen}",
            where=f"{place}seen by rank {failure.by}, which gave no report",
            expected=f"a report of rank {failure.by} within {REPORT_WAIT_S:g} s",
            do=f"look for the out-of-memory killer or a signal on the host of rank {failure.by}",
        )
        write_to_log_and_stderr(str(error))

    def _own_state(self) -> State:
        """Return the next beat: the phase of the main thread, the time in this phase, and so on.

        utils.dist.beats explains the keys.
        """
        place = RUN.place
        age_s = self.phase_clock.age_of(place)
        # The budget is the limit of the phase. Before `watch` is called, there is no limit (0.0).
        budget_s = self.budgets.limit_of_phase(place.phase) if self.budgets else 0.0
        return {
            "phase": place.phase,
            "step": place.step,
            "syncs": place.syncs,
            "age": age_s,
            "budget": budget_s,
            "pid": os.getpid(),
            "host": self.host,
            "facts": RUN.facts,
        }

    # ---- The thread that watches the watchdog thread -----------------------------------------

    def _watch_watchdog(self) -> None:
        """End the process if the watchdog thread hangs in a request to the store.

        torch's own time limit of a request does not work if the network drops all packets.
        """
        # Between two calls of `now` the clock advances by at most `slice_s`, so a suspension of an
        # hour does not count as silence. The loop calls `now` once in an interval. A slice of two
        # intervals leaves room for a late call.
        clock = AwakeClock(slice_s=2 * self.interval_s)
        seen_passes = 0
        changed_at = 0.0  # when the number of passes of the watchdog thread last changed
        is_told = False  # whether the log file has the line about this silence
        while not self.stopped.wait(self.interval_s):
            clock.slice_s = 2 * self.interval_s  # `watch` may have changed the interval
            now = clock.now()
            # Count the silence from the last pass of the watchdog thread. Before `watch` (`budgets`
            # is None), and at the end of the run, there is no limit.
            has_passed = seen_passes != self.passes
            if has_passed or self.budgets is None or self.is_ending:
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

            a failure ends the run already                       EXIT_S (8 s)
            rank 0 hosts the store, and its process is gone      HOST_GONE_S, at most stall_s
            otherwise, e.g. if an agent of torchrun hosts it     stall_s

        stall_s: the option watchdog.stall_s, in seconds.
        """
        if self.failure is not None:
            return EXIT_S
        rank_0 = self.beats.states.get(0)  # the last beat of rank 0, or None if none was read
        is_rank_0_host = not RUN.launch.is_store_of_agent
        if is_rank_0_host and rank_0 is not None and is_gone(rank_0):
            return min(HOST_GONE_S, stall_s)
        return stall_s

    # ---- Reports -----------------------------------------------------------------------------
    # A rank stands still if it is SILENT (it writes no beat), STUCK (too long in a phase) or DEAD.
    # The store is the key-value store of all ranks.

    def _report(self, verdict: Verdict) -> NoReturn:
        """Report the rank that stops the run, with its stacks, and end the run.

        The caller has written the failure into the store (`claim_failure`), where every rank reads
        it with its next beat. E.g. if rank 3 is stuck, this happens now, in this order:

            within 1.5 s   rank 3 reads the failure, and writes its stacks into the store
                           (STUCK_ANSWERS_S)
            then           this rank writes the report, and sets the key REPORTED
            within 0.5 s   rank 3 and all others see REPORTED, and end (`_follow`, STUCK_ENDS_S)
            then           this rank kills rank 3, if it has not ended, and ends itself
        """
        rank = verdict.rank
        if self.store is not None:
            # The report has a table of all ranks, so read the beats of all, not only of the watched
            # ranks.
            self.beats.states.update(read_states(self.store, self.beats.world_size))
        stacks = self._stacks_for_report(verdict)
        write_to_log_and_stderr(text_of_stall(verdict, stacks, self.beats))
        # Set `failure` only after the report. Once `failure` is set, `_watch_watchdog` ends this
        # process if the watchdog thread makes no pass for EXIT_S. Collecting the stacks may take
        # longer.
        self.failure = Failure(rank=rank, code=STALL_CODE, by=self.rank)
        if self.store is not None:
            self.store.set(REPORTED, "1")
            if rank != self.rank and verdict.kind != "DEAD":
                # A stuck rank ends itself within this time, and a silent rank cannot end itself.
                # `kill_rank` ends the process if it is still there, on this host.
                time.sleep(STUCK_ENDS_S)
                kill_rank(self.beats.states[rank]["pid"], stack_file_name(rank))
        leave(STALL_CODE, self.store)

    def _stacks_for_report(self, verdict: Verdict) -> str:
        """Return the stacks of the rank that stands still, or a note if the rank does not answer.

        Returns "" for a DEAD rank, which has no stacks. For other ranks this waits, up to
        SILENT_ANSWERS_S or STUCK_ANSWERS_S.
        """
        if verdict.kind == "DEAD":
            return ""
        if verdict.kind == "SILENT":
            wait_s = SILENT_ANSWERS_S
        else:
            wait_s = STUCK_ANSWERS_S
        return self._stacks_of(verdict.rank, wait_s) or "(it does not answer)"

    def _stacks_of(self, rank: int, wait_s: float = 0.0) -> str:
        """Return the stacks of a rank, or "" if there are none.

        The watchdog thread of a stuck rank puts its stacks into the store. If the store has none,
        `stacks_of` asks the rank by a signal, which works only on this host. For a rank of another
        host the result is then "".

        wait_s: seconds to wait for the stacks in the store; 0 if the store does not answer.
        """
        if rank == self.rank:
            return dump_stacks(self.stack_file)
        key = f"stacks/{rank}"
        if wait_s and self.store is not None and wait_for(self.store, key, wait_s):
            # `unseal` refuses a text that no rank of this run wrote. `printable_text` replaces
            # characters that would move the cursor of a terminal.
            text = unseal(key, self.store.get(key))
            return "\n".join(printable_text(line) for line in text.splitlines())
        return stacks_of(self.beats.states[rank]["pid"], stack_file_name(rank))

    def _end_by_foreign_value(self, error: ForeignValueError) -> NoReturn:
        """End the run because a process that is not a rank of this run wrote into its store.

        The first rank that reads the foreign value claims a failure in the store, and reports. All
        other ranks read this failure and end (`_follow`).
        """
        # A failure must name a rank, but no rank has failed. So this rank names itself.
        own_failure = Failure(rank=self.rank, code=error.exit_code, by=self.rank)
        if self.store is not None:
            # ForeignValueError: the other process has also written under the key of the failure.
            # RuntimeError: the store does not answer. In both cases no rank can claim the failure.
            with suppress(ForeignValueError, RuntimeError):
                first_failure = claim_failure(self.store, own_failure, self.beats.world_size)
                if first_failure != own_failure:
                    # Another rank was first, and reports. `_follow` ends this process, unless the
                    # main thread of this rank is ending it already.
                    self._follow(first_failure)

        # This rank has claimed the failure, or no rank can claim one. In the second case every rank
        # wants to report, so only the first rank of each host reports.
        if is_first_to_report_foreign_value():
            write_to_log_and_stderr(str(error))
        self.failure = own_failure
        if self.store is not None:
            with suppress(RuntimeError):
                self.store.set(REPORTED, "1")
        leave(own_failure.code, self.store)

    def _name_of_loss(self) -> str:
        """Return the name that a rank claims (`first_to_claim`) before it reports for its host.

        The name has the port of the run and the process id of rank 0. So all ranks of the run have
        the same name, and another run has another name.
        """
        rank_0 = self.beats.states.get(0)
        pid = rank_0["pid"] if rank_0 is not None else None
        return f"lost {RUN.launch.master_port} {pid}"

    def _end_without_store(self) -> NoReturn:
        """End this rank, because the store does not answer any more.

        Who reports:

            a failure ends the run already        usually another rank has reported the failure
            this rank is the first of its host    this rank reports that the store is lost
            otherwise                             the first rank of the host reports the loss
        """
        if self.failure is not None:
            self._report_if_nobody_did(self.failure)
            leave(self.failure.code, store=None)
        # The ranks of a host notice the loss seconds apart. The first of them gets this name.
        if first_to_claim(self._name_of_loss()):
            self._report_loss()
        else:
            # Give the other rank time for its report, because torchrun ends all ranks as soon as
            # one of them ends. The 2 s are chosen by hand.
            time.sleep(2.0)
        leave(STALL_CODE, store=None)

    def _report_loss(self) -> None:
        """Report that the store does not answer any more.

        The store is in the process of rank 0, or in an agent of torchrun. So the report says:

            an agent has the store, or no beat of rank 0 was read    the store is lost
            the process of rank 0 is gone                            rank 0 is DEAD
            otherwise                                                rank 0 is SILENT
        """
        launch = RUN.launch
        rank_0 = self.beats.states.get(0)  # the last beat of rank 0, or None if none was read
        if rank_0 is None or launch.is_store_of_agent:
            address = f"{launch.master_addr}:{launch.master_port}"
            error = StallError(
                what=f"rank {self.rank} has lost the store of the run",
                where=f"host {self.host}; the store is at {address}",
                expected="torchrun's first node alive and connected",
                do="look at the network and at the logs of that node",
            )
            write_to_log_and_stderr(str(error))
        elif is_gone(rank_0):
            what = f"its process {rank_0['pid']} is gone, and the store with it"
            gone = Verdict(rank=0, kind="DEAD", what=what)
            write_to_log_and_stderr(text_of_stall(gone, "", self.beats))
        else:
            silent = Verdict(rank=0, kind="SILENT", what="its store does not answer")
            stacks = self._stacks_of(rank=0)
            write_to_log_and_stderr(text_of_stall(silent, stacks, self.beats))
            # `kill_rank` ends the process only if the process has the memory file of rank 0.
            kill_rank(rank_0["pid"], stack_file_name(rank=0))

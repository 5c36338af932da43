"""Find the rank because of which a run has to stop: a rank that is dead, silent or stuck.

Every half second each rank writes a *beat*: a record of its state in the store of the run
(beats.py). Each rank reads the beats of a few other ranks, the ranks that it *watches*. After each
beat, `Watchdog.beat_once` asks `Judge.verdict` whether the run has to stop. There are two reasons:

    a watched rank is DEAD or SILENT     its beats are enough to see this (`_dead_or_silent`)
    this rank is too long in its phase   this rank may be stuck itself, or it may be waiting for
                                         another rank. So it *looks* for the cause
                                         (`_cause_of_wait`)

To look, a rank reads the states of all ranks in one request. This request is large if there are
many ranks. So only one rank at a time looks, and only after it has been too long in a phase.

In a state, `age` is the time since the phase began, and `budget` is the limit of this time. A
budget of 0 means that the rank has no limits yet: it has not called `Watchdog.watch`, and may still
be loading libraries. A verdict names such a rank only if it is DEAD.

The rank that judges measures all seconds with its own AwakeClock, so the clocks of the hosts need
not agree. This clock stands still while the process is suspended, so no rank is late after a
suspension of the whole run. A rank that is suspended alone writes no beats, and is SILENT.

What must stay: a verdict names exactly one rank, and this rank is the cause
(test_a_host_that_falls_silent_is_named_once, test_a_rank_that_is_waited_for_is_named_once). Free to
change: QUIET_S, within the limits that its comment names, and the words of a verdict.

Tests: tests/faults/test_scale.py, tests/faults/test_stalls.py.
"""

from typing import NamedTuple

from torch.distributed import Store

from utils.dist.beats import BEAT_S, Beats, Heard, is_gone, read_states

# Store key: number of the rank that reads all states. The value is empty if no rank does.
LOOKING = "looking"
# Seconds without a beat after which a rank counts as silent. There are two such limits:
#
#     QUIET_S, or half of stall_s if this is less   any rank, while this rank looks for the cause
#     stall_s (an option)                           a watched rank, at any time (`_dead_or_silent`)
#
# Two beats follow each other within 2.2 s even on a host with eight processes for each core. With a
# smaller QUIET_S, a rank of a busy host could count as silent. A larger QUIET_S delays the report.
QUIET_S = 3.0


class Verdict(NamedTuple):
    """Why the run has to stop, e.g. (3, "SILENT", "no beat for 9.1 s")."""

    rank: int  # the rank that is the reason
    kind: str  # "STUCK" (too long in a phase), "SILENT" (no beat) or "DEAD" (no process)
    what: str  # what was seen, for the report


class Judge:
    """Judges the beats that one rank has read.

    A beat is the record of its state that each rank writes into the store every half second. In the
    state, `age` is how long the rank has been in its phase, and `budget` is the limit of this time.
    """

    def __init__(self, beats: Beats) -> None:
        """Judge the beats of one rank from now on.

        beats: what this rank has read. `beats.states` has the newest known beat of each rank.
            `beats.heard` has the time at which the last beat of a watched rank was read, on
            `beats.clock`.
        """
        self.beats = beats
        self.is_looking = False  # whether this rank looks for the cause of a wait
        # Rank that this rank does not watch -> its beat when this rank began to look, e.g. beat
        # 512. If a later look reads beat 513, that rank lives. Empty while this rank does not look.
        self.first_look: dict[int, Heard] = {}

    def verdict(self, stall_s: float | None) -> Verdict | None:
        """Return the reason for which the run has to stop, or None if there is none.

        The first line of this table that is true decides:

            a watched rank is DEAD or SILENT         this watched rank is the reason
            this rank is within the limit of its     None. If this rank was looking, it stops
            phase, or has no limit yet
            another rank already looks               None: the other rank will find the cause
            otherwise                                this rank looks. Returns the rank that the
                                                     others wait for, which is STUCK or SILENT.
                                                     None as long as the cause is not known

        stall_s: seconds without a beat after which a rank is silent. None before `Watchdog.watch`.
            With None, only the end of a process is a reason.
        """
        dead_or_silent = self._dead_or_silent(stall_s)
        if dead_or_silent is not None:
            return dead_or_silent
        own_state = self.beats.states[self.beats.rank]
        # Before `Watchdog.watch`, the budget is 0, and stall_s is None. Both are tested, because
        # `watch` may have been called after the beat was made.
        has_limits = own_state["budget"] > 0
        is_late = stall_s is not None and has_limits and own_state["age"] > own_state["budget"]
        if not is_late:
            # If this rank was late before, it still holds the key LOOKING. Give the key back, so
            # that another rank can look.
            self.stop_looking()
            return None
        # This rank has been too long in its phase. It looks for the cause, unless another rank
        # already does. A single process has no store, and is the cause itself.
        if self.beats.store is not None:
            if not self._may_look(self.beats.store):
                return None
            self.beats.states.update(read_states(self.beats.store, self.beats.world_size))
        # stall_s is not None here, because this rank is late. A silent rank must be found before
        # stall_s is over. E.g. if stall_s is 2 s, quiet_s is 1 s, and beats come every 0.33 s. A
        # rank beats at least six times in stall_s (`Watchdog.watch`).
        quiet_s = min(QUIET_S, stall_s / 2)
        return self._cause_of_wait(quiet_s)

    def _dead_or_silent(self, stall_s: float | None) -> Verdict | None:
        """Return a watched rank that is DEAD. If there is none, return the first that is SILENT.

        Returns None if all watched ranks live and beat. With stall_s None, no rank is SILENT.
        """
        now = self.beats.clock.now()
        # The first SILENT rank. It is returned only at the end, because a later rank may be DEAD.
        silent = None
        for rank, last in self.beats.heard.items():
            state = self.beats.states[rank]
            if is_gone(state):
                return Verdict(rank, "DEAD", f"its process {state['pid']} is gone")
            has_limits = state["budget"] > 0
            if silent is None and stall_s is not None and has_limits:
                # `last.when` is the time at which this rank read the last beat. The other rank may
                # have written the beat up to BEAT_S (half a second) earlier, and may then be silent
                # for BEAT_S longer than `silent_s`. So compare with stall_s - BEAT_S. E.g. if
                # stall_s is 10 s, the verdict comes after 9.5 s.
                silent_s = now - last.when
                if silent_s > stall_s - BEAT_S:
                    silent = Verdict(rank, "SILENT", f"no beat for {silent_s:.1f} s")
        return silent

    def _may_look(self, store: Store) -> bool:
        """Return whether this rank may look for the cause: True for the first rank that asks.

        The rank looks until it calls `stop_looking`.
        """
        if not self.is_looking:
            # compare_set writes if the key is empty, and returns what the key then holds. Compare
            # bytes, because another program may have written bytes that are not a text.
            own_number = str(self.beats.rank)
            looking_rank = store.compare_set(LOOKING, "", own_number)
            self.is_looking = looking_rank == own_number.encode()
        return self.is_looking

    def _cause_of_wait(self, quiet_s: float) -> Verdict | None:
        """Return the rank that the others wait for, or None if it is not known yet.

        A collective ends only when every rank has entered it. So the ranks wait for the ranks that
        have entered the fewest collectives. Of these, the rank that is longest over its budget is
        the cause. E.g. rank 1 is the cause in the table below, because it has entered the fewest
        collectives (`syncs`), and is 312 - 300 = 12 s over its budget. Age and budget are seconds
        in the phase and their limit.

            rank   syncs   age   budget
            0      2211    290   300       in an all_reduce
            1      2210    312   300       in its forward pass

        quiet_s: seconds without a beat after which a rank is silent.
        """
        # A rank without limits (budget 0) may still be loading libraries, while the others wait for
        # it. So blame no rank.
        if any(state["budget"] == 0 for state in self.beats.states.values()):
            return None
        fewest_collectives = min(state["syncs"] for state in self.beats.states.values())
        latest_rank = None
        most_over_s = 0.0
        # If two ranks are equally late, take the higher rank. With a fixed order, two looks name
        # the same rank.
        for rank in sorted(self.beats.states, reverse=True):
            state = self.beats.states[rank]
            over_s = state["age"] - state["budget"]
            if state["syncs"] == fewest_collectives and over_s > most_over_s:
                latest_rank = rank
                most_over_s = over_s
        if latest_rank is None:
            return None
        return self._stuck_or_silent(latest_rank, quiet_s)

    def _stuck_or_silent(self, rank: int, quiet_s: float) -> Verdict | None:
        """Return `rank` as STUCK, or the silent rank for which it waits, or None if not known yet.

        `rank` may itself wait for a silent rank. A silent rank never seems late, because it writes
        no beats, and the age in its last beat is small. A silent rank for which `rank` waits has
        entered as few collectives as `rank`. So all ranks with this number are candidates. E.g.
        with `rank` 2 and quiet_s 3:

            rank   syncs   age   last beat read
            2      2210    312   0.4 s ago       `rank`: it waits in an all_reduce
            4      2211    300   0.3 s ago       no candidate: it has entered one collective more
            5      2210    0.2   9.1 s ago       candidate, silent: the result names rank 5
            6      2210    0.3   0.2 s ago       candidate that beats: it is not the cause

        Without rank 5, all candidates beat. Then rank 2 is STUCK. Test:
        test_a_rank_that_falls_silent_after_the_others_began_to_wait_is_named.

        rank: of the ranks that have entered the fewest collectives, the rank that is longest over
            its budget.
        quiet_s: seconds without a beat after which a rank is silent.
        """
        candidates = []
        for other, state in self.beats.states.items():
            # Only other ranks are candidates. The rank that judges is not silent, because it runs.
            is_other = other not in (rank, self.beats.rank)
            if is_other and state["syncs"] == self.beats.states[rank]["syncs"]:
                candidates.append(other)

        now = self.beats.clock.now()
        all_are_known = True  # whether every candidate is known to beat
        for candidate in candidates:
            last = self._last_beat(candidate, now)
            if last is None:
                continue  # the candidate beats
            silent_s = now - last.when
            if silent_s > quiet_s:
                return Verdict(candidate, "SILENT", f"no beat for {silent_s:.1f} s")
            # A watched rank is known to beat, because its last beat is at most quiet_s old. Of a
            # rank that is not watched, only this beat was read. Its next beat, or the end of
            # quiet_s, will tell whether it beats.
            is_watched = candidate in self.beats.heard
            if not is_watched:
                all_are_known = False
        if all_are_known:
            return Verdict(rank, "STUCK", f"{self.beats.states[rank]['age']:.1f} s")
        return None

    def _last_beat(self, rank: int, now: float) -> Heard | None:
        """Return the last beat of a rank, and when this rank first read it.

        If this rank watches `rank`, it has noted the time of the last beat (`beats.heard`). The
        state of any other rank has the number of its beat, but no time. So this function notes the
        beat at the first look, and compares the numbers at later looks:

            first look   beat 512    noted in `first_look`, and returned
            later        beat 512    no new beat: the noted beat is returned
               or        beat 513    the rank beats: None is returned

        now: present time, on the clock of the beats.
        """
        if rank in self.beats.heard:
            return self.beats.heard[rank]
        beat = self.beats.states[rank]["beat"]
        if rank not in self.first_look:
            self.first_look[rank] = Heard(beat, now)
        noted = self.first_look[rank]
        return noted if noted.beat == beat else None

    def stop_looking(self) -> None:
        """Let another rank look for the cause. Does nothing if this rank does not look."""
        if self.is_looking and self.beats.store is not None:
            self.beats.store.compare_set(LOOKING, str(self.beats.rank), "")
            self.is_looking = False
            self.first_look.clear()

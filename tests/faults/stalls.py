"""Strikes one rank of a small training, and measures who is named, how fast, and when all are gone.

`run_stall` starts tests/faults/stall_worker.py on several ranks, watches their output and their
processes, and returns a `Trial`. tests/faults/test_stalls.py runs a few trials, and
tests/faults/trials.py runs many.

A new kind of fault needs two things: a branch in the worker that lets it happen, and an entry in
KINDS. What must stay: `Trial.is_right` is as strict as it is now, because docs/reliability.md
counts the right trials.
"""

import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.dist.launching import Ranks
from utils.dist.process import process_state

WORKER = "tests/faults/stall_worker.py"
START_S = 60.0  # seconds that the ranks may take to start


class ExpectedOutput(NamedTuple):
    """What the ranks must print about a fault.

    E.g. a rank that stands still in a forward pass must be named by "rank 1 is STUCK", and the
    output must have the line "in strike" of its stack: ExpectedOutput("STUCK", "in strike").

    verdict: "STUCK" (the rank gives beats, but makes no progress), "SILENT" (it gives no beats) or
        "DEAD" (its process has ended). With `is_error`, the name of the error.
    words: text that must be in the output as well.
    is_error: whether the rank itself raises an error. The ranks report it in place of a verdict.
    """

    verdict: str
    words: str
    is_error: bool = False


# Kind of fault (`strike` in stall_worker.py) -> what the ranks must print. A comment says what the
# struck rank does.
KINDS = {
    "barrier": ExpectedOutput("STUCK", "in strike"),  # sleeps before a barrier
    "forward": ExpectedOutput("STUCK", "in strike"),  # sleeps before the forward pass
    "rank0": ExpectedOutput("STUCK", "in strike"),  # sleeps after the backward pass ("print")
    "worker": ExpectedOutput("STUCK", "in __getitem__"),  # its loader process sleeps
    "gil": ExpectedOutput("SILENT", "in strike"),  # runs C code that holds Python's lock
    "gil on all ranks": ExpectedOutput("SILENT", "in strike"),
    "stop": ExpectedOutput("SILENT", "the process is stopped"),
    "kill": ExpectedOutput("DEAD", "is gone"),
    "exception": ExpectedOutput("DataError", "clip 7 is short", is_error=True),
}
# A regular expression that finds every text that blames a cause, e.g. "rank 1 is STUCK". All ranks
# together must write exactly one such text. (?=:) means that a ":" must follow "DataError", but
# does not belong to the found text.
BLAME = re.compile(
    r"rank \d+ is (?:STUCK|SILENT|DEAD)|DataError(?=:)|lost contact|has lost the store|Traceback"
)


@dataclass
class Trial:
    """The outcome of a training in which a fault struck a rank.

    kind: kind of the fault, a key of `KINDS`.
    ranks: number of ranks.
    rank: the rank that was struck.
    detected_s: seconds from the fault to the first message. Infinite if no message came.
    gone_s: seconds from the fault to the end of the last process, loader processes included.
        Infinite if a process did not end.
    left: processes that still lived at the time limit, in words.
    blamed: all texts that match `BLAME`, of all ranks.
    has_stack: whether the output has the words that `KINDS` names for this kind, usually a line of
        the stack.
    exit_codes: exit codes of all ranks.
    text: output of all ranks.
    """

    kind: str
    ranks: int
    rank: int
    detected_s: float
    gone_s: float
    left: list[str]
    blamed: list[str]
    has_stack: bool
    exit_codes: list[int]
    text: str

    @property
    def is_right(self) -> bool:
        """Whether only the struck rank was named, once, and all processes ended with an error."""
        expected = KINDS[self.kind]
        blame = expected.verdict
        if not expected.is_error:
            blame = f"rank {self.rank} is {expected.verdict}"
        is_named_once = self.blamed == [blame]
        has_every_rank_failed = 0 not in self.exit_codes
        return is_named_once and self.has_stack and has_every_rank_failed and not self.left

    def __str__(self) -> str:
        named = ", ".join(self.blamed) if self.blamed else "nothing"
        times = f"{named} after {self.detected_s:.2f} s, all gone after {self.gone_s:.2f} s"
        left = f", left behind: {', '.join(self.left)}" if self.left else ""
        return f"{self.kind}, rank {self.rank} of {self.ranks}: {times}{left}"


def run_stall(
    kind: str, ranks: int, rank: int, step: int = 10, stall_s: float = 5.0, limit_s: float = 60.0
) -> Trial:
    """Run one trial.

    kind: kind of the fault.
    rank, step: the rank and the step that the fault strikes.
    stall_s: option of the watchdog, the seconds that a phase may take.
    limit_s: seconds for the trial without its start. All processes must end within START_S +
        limit_s.
    """
    with Ranks(ranks, WORKER, kind, str(rank), str(step), str(stall_s)) as running:
        # Each rank leads a session, so the number of its session is its pid.
        sessions = [process.pid for process in running.processes]
        moments = watch(running, sessions, deadline=time.time() + START_S + limit_s)
        left = processes_of(sessions) if moments.gone is None else []
        result = running.wait(limit_s=1)
    return Trial(
        kind=kind,
        ranks=ranks,
        rank=rank,
        detected_s=seconds_between(moments.fault, moments.detected),
        gone_s=seconds_between(moments.fault, moments.gone),
        left=left,
        blamed=BLAME.findall(result.text),
        has_stack=KINDS[kind].words in result.text,
        exit_codes=result.exit_codes,
        text=result.text,
    )


@dataclass
class Moments:
    """The times (`time.time()`) of the three events of a trial. None: the event has not come.

    fault: the rank was struck.
    detected: a rank has written the first error, within the 0.02 s between two looks.
    gone: all processes of the ranks have ended.
    """

    fault: float | None = None
    detected: float | None = None
    gone: float | None = None


def watch(running: Ranks, sessions: list[int], deadline: float) -> Moments:
    """Watch the ranks until all their processes are gone, or until the deadline."""
    moments = Moments()
    while time.time() < deadline and moments.gone is None:
        output = "".join(running.output(rank) for rank in range(len(sessions)))
        now = time.time()
        # The worker prints the time of the fault. This time is more exact than `now`.
        fault_line = re.search(r"FAULT at ([\d.]+)", output)
        if moments.fault is None and fault_line:
            moments.fault = float(fault_line[1])
        if moments.detected is None and re.search(r"StallError|DataError", output):
            moments.detected = now
        # Searching all processes takes long, so search only after the ranks themselves have ended.
        # process_state returns None if there is no such process, and "Z" (zombie) if it has ended.
        have_ranks_ended = all(process_state(pid) in (None, "Z") for pid in sessions)
        if have_ranks_ended and not processes_of(sessions):
            moments.gone = now
        time.sleep(0.02)
    return moments


def seconds_between(fault: float | None, event: float | None) -> float:
    """Return the seconds from the fault to an event. Infinite if one of the two never came."""
    if fault is None or event is None:
        return math.inf
    return event - fault


def processes_of(sessions: list[int]) -> list[str]:
    """Return the living processes in words: the ranks, and all processes that they started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # The file has "71 (pt main) S 60 71 71 ...": pid, (name), state, parent, group, session.
        # The name may contain spaces, so take what comes after its closing bracket.
        try:
            values = stat.read_text().rpartition(")")[2].split()
            state = values[0]
            session = int(values[3])
        except (OSError, ValueError, IndexError):
            continue  # the process has ended meanwhile
        is_living = state not in ("Z", "X")  # zombie, dead
        if session in sessions and is_living:
            pid = int(stat.parent.name)
            who = "the rank itself" if pid == session else f"process {pid}"
            found.append(f"{who} of rank {sessions.index(session)} (state {state})")
    return found

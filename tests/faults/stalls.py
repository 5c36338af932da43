"""Stall trials: strike one rank of a small training, and measure who is named, how fast, and when
all are gone.
"""

import math
import re
import time
from dataclasses import dataclass
from pathlib import Path

from tests.dist.launching import Ranks
from utils.dist.process import process_state

WORKER = "tests/faults/stall_worker.py"
# kind -> (verdict, text that the message must show besides the rank)
VERDICTS = (
    r"rank \d+ is (?:STUCK|SILENT|DEAD)|DataError(?=:)|lost contact|has lost the store|Traceback"
)
KINDS = {
    **dict.fromkeys(("barrier", "forward", "rank0"), ("STUCK", "in strike")),
    "worker": ("STUCK", "in __getitem__"), "gil": ("SILENT", "in strike"),
    "stop": ("SILENT", "the process is stopped"), "kill": ("DEAD", "is gone"),
    "exception": ("DataError", "clip 7 is short"),
}  # fmt: skip


@dataclass
class Trial:
    """detected_s: from the fault to the first word; gone_s: to the end of the last process, loader
    workers included.

    Both infinite where it never came. left: processes still there at the limit. blamed: all "rank N
    is X" that any rank printed, and errors.
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
        """Named once, rightly, with the stack where there can be one, nobody ended with 0, nobody
        stayed.
        """
        verdict, _ = KINDS[self.kind]
        expected = verdict if verdict == "DataError" else f"rank {self.rank} is {verdict}"
        return (
            self.blamed == [expected]
            and self.has_stack
            and 0 not in self.exit_codes
            and not self.left
        )

    def __str__(self) -> str:
        said, left = (
            ", ".join(self.blamed) or "nothing",
            f", left behind: {', '.join(self.left)}" if self.left else "",
        )
        times = f"{said} after {self.detected_s:.2f} s, all gone after {self.gone_s:.2f} s"
        return f"{self.kind}, rank {self.rank} of {self.ranks}: {times}{left}"


def run_stall(
    kind: str, ranks: int, rank: int, step: int = 10, stall_s: float = 5.0, limit_s: float = 60.0
) -> Trial:
    with Ranks(ranks, WORKER, kind, str(rank), str(step), str(stall_s)) as running:
        sessions = [p.pid for p in running.processes]
        deadline = time.time() + limit_s + 60
        fault = detected = gone = math.nan
        while time.time() < deadline and math.isnan(gone):
            outputs = [running.output(r) for r in range(ranks)]
            now = time.time()
            if math.isnan(fault) and (found := re.search(r"FAULT at ([\d.]+)", "".join(outputs))):
                fault = float(found[1])
            if math.isnan(detected) and re.search(r"StallError|DataError", "".join(outputs)):
                detected = now
            if all(process_state(pid) in (None, "Z") for pid in sessions):
                gone = math.nan if processes_of(sessions) else now
            time.sleep(0.02)
        left = processes_of(sessions) if math.isnan(gone) else []
        result = running.wait(1)
    text = result.text
    seconds = [
        math.inf if math.isnan(event - fault) else event - fault for event in (detected, gone)
    ]
    return Trial(
        kind, ranks, rank, *seconds, left,
        re.findall(VERDICTS, text),
        KINDS[kind][1] in text, result.exit_codes, text,
    )  # fmt: skip


def processes_of(sessions: list[int]) -> list[str]:
    """The living processes of these ranks' sessions: the ranks themselves and all that they
    started.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it went meanwhile
            continue
        if int(session) in sessions and state not in ("Z", "X"):
            who = (
                "the rank itself" if stat.parent.name == session else f"process {stat.parent.name}"
            )
            found.append(f"{who} of rank {sessions.index(int(session))} (state {state})")
    return found

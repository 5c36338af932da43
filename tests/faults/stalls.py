"""Stall trials: strike one rank of a small training, and measure who is named, how fast, and when all are gone."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from tests.dist.launching import Ranks
from utils.utils_process import process_state

WORKER = "tests/faults/stall_worker.py"
# kind -> (verdict, text that the message must show besides the rank)
KINDS = {
    "barrier": ("STUCK", "in strike"),
    "forward": ("STUCK", "in strike"),
    "rank0": ("STUCK", "in strike"),
    "worker": ("STUCK", "in __getitem__"),
    "gil": ("SILENT", "in strike"),
    "stop": ("SILENT", "the process is stopped"),
    "kill": ("DEAD", "is gone"),
    "exception": ("DataError", "clip 7 is short"),
}


@dataclass
class Trial:
    """seconds: after the fault. blamed: all "rank N is X" that any rank printed, and errors."""

    kind: str
    ranks: int
    rank: int
    detected_s: float
    gone_s: float
    blamed: list[str]
    has_stack: bool
    exit_codes: list[int]
    text: str

    @property
    def is_right(self) -> bool:
        """Named once, rightly, with the stack where there can be one, and nobody ended with 0."""
        verdict, _ = KINDS[self.kind]
        expected = verdict if verdict == "DataError" else f"rank {self.rank} is {verdict}"
        return self.blamed == [expected] and self.has_stack and 0 not in self.exit_codes


def run_stall(kind: str, ranks: int, rank: int, step: int = 10, stall_s: float = 5.0, limit_s: float = 60.0) -> Trial:
    with Ranks(ranks, WORKER, kind, str(rank), str(step), str(stall_s)) as running:
        deadline = time.time() + limit_s + 60
        fault = detected = gone = 0.0
        while time.time() < deadline and not gone:
            outputs = [running.output(r) for r in range(ranks)]
            now = time.time()
            if not fault and (found := re.search(r"FAULT at ([\d.]+)", "".join(outputs))):
                fault = float(found[1])
            if not detected and re.search(r"StallError|DataError", "".join(outputs)):
                detected = now
            if all(process_state(p.pid) in (None, "Z") for p in running.processes):
                gone = now
            time.sleep(0.02)
        result = running.wait(1)
    text = result.text
    return Trial(
        kind, ranks, rank, detected - fault, gone - fault if gone else float("inf"),
        re.findall(r"rank \d+ is (?:STUCK|SILENT|DEAD)|DataError(?=:)|lost contact|Traceback", text),
        KINDS[kind][1] in text, result.exit_codes, text,
    )  # fmt: skip

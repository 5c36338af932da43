"""What doctor.py finds, as a table, and what the known failures in a log mean."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from utils.errors import printable

# Rows of name, pattern, meaning and cure; {0} in a meaning is the first group of the pattern.
TABLE = Path(__file__).with_name("known_failures.json")
IN_WORDS = {"STUCK": "stuck", "SILENT": "silent", "DEAD": "dead"}
OK, WARN, FAIL = "ok", "warn", "fail"
MOST = 200  # characters of a line of a log: a stall is told with rank, phase and step


@dataclass(frozen=True)
class Finding:
    """status: "ok", "warn" or "fail". what was seen, why it matters, and the cure (both empty where
    all is well).
    """

    status: str
    check: str
    what: str
    why: str = ""
    cure: str = ""


def table(findings: list[Finding]) -> str:
    """The findings as text, the worst last."""
    lines = []
    for f in sorted(findings, key=lambda f: (OK, WARN, FAIL).index(f.status)):
        lines.append(f"{f.status:<5} {f.check:<14} {f.what}")
        lines += [
            f"{'':<20} {label:<4} {text}"
            for label, text in (("why", f.why), ("cure", f.cure))
            if text
        ]
    counts = {status: sum(f.status == status for f in findings) for status in (OK, WARN, FAIL)}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    return printable("\n".join([*lines, "", summary]))


def read_log(text: str) -> list[Finding]:
    """What the known failures in a log mean, in the order in which they appeared; each kind once.

    A log holds all starts of a run: the last one counts.
    """
    known, begin = json.loads(TABLE.read_text(encoding="utf-8")), max(text.rfind("] rank 0 of "), 0)
    last_start = text[begin:]
    findings: dict[str, Finding] = {}
    for number, line in enumerate(last_start.splitlines(), 1 + text.count("\n", 0, begin)):
        if not line.strip():
            continue
        for name, pattern, meaning, cure in known:
            if found := re.search(pattern, line):
                why = meaning.format(
                    *(IN_WORDS.get(word, word) for word in found.groups(default=""))
                )
                findings.setdefault(
                    name, Finding(FAIL, name, f"line {number}: {line.strip()[:MOST]}", why, cure)
                )
                break
    if findings:
        return list(findings.values())
    if error := re.search(r"^(\[rank \d+\] )?(Traceback|\w+Error: ).*", last_start, re.MULTILINE):
        why = "the last start ended with this error"
        return [Finding(FAIL, "log", error[0][:MOST], why, "read the lines below it")]
    if re.search("Finished at iter|already finished", last_start):
        return [Finding(OK, "log", "the run finished")]
    why = "the run may have been killed from outside, or still runs"
    cure = "look at the logs of the other ranks, of the scheduler, and at dmesg"
    return [Finding(WARN, "log", "no known failure in this log", why, cure)]

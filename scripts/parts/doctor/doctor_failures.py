"""Show what doctor.py finds as a table, and explain the known failures in a log.

doctor.py calls `read_log` for its option --log, and `table` for its output. A `Finding` is a row of
this table.

Free to add: a row of known_failures.json, which explains a failure. The first row that matches a
line counts, so put a special row before a general row.

Tests: tests/parts/scripts/test_doctor.py
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from utils.errors import printable
from utils.secrets import without_secrets

# Rows of [name, pattern, meaning, cure], e.g.
#
#     ["watchdog",
#      "rank (\\d+) is (STUCK|SILENT|DEAD)",
#      "rank {0} was {1} and stopped the run; ...",
#      "read the stack below that line; ..."]
#
# The pattern is a regular expression for a line of a log. {0} in a meaning is replaced by the text
# that the first group of the pattern matched, and {1} by the text of the second group.
KNOWN_FAILURES = Path(__file__).with_name("known_failures.json")
# The state of a rank as the watchdog logs it -> the word for {1} in the meaning of the row
# "watchdog", e.g. "rank 3 was stuck and stopped the run".
STATE_WORDS = {"STUCK": "stuck", "SILENT": "silent", "DEAD": "dead"}
# The statuses of a finding, the best first.
OK = "ok"
WARN = "warn"
FAIL = "fail"
# Characters of a line of a log that are shown. A line about a stall names rank, phase and step
# within its first 200 characters.
SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Finding:
    """What one check has found: a row of the table."""

    status: str  # "ok", "warn" or "fail"
    check: str  # what was looked at, e.g. "disk"
    what: str  # what was seen
    why: str = ""  # why it matters, "" if all is well
    cure: str = ""  # what to do, "" if all is well


def table(findings: list[Finding]) -> str:
    """Return the findings as text, the worst last, and the count of each status.

    For example:

        ok    disk           80 GB free here
        warn  threads        OMP_NUM_THREADS is not set, 8 ranks share 16 cores
                             why  ranks that fight for cores are slow in all they do
                             cure start through launch_train.sh, or set it to 1

        1 ok, 1 warn, 0 fail
    """
    severity = (OK, WARN, FAIL)
    lines = []
    for finding in sorted(findings, key=lambda finding: severity.index(finding.status)):
        lines.append(f"{finding.status:<5} {finding.check:<14} {finding.what}")
        # `why` and `cure` stand below `what`: 20 blanks are as wide as the first two columns,
        # 5 + 1 + 14 characters.
        if finding.why:
            lines.append(f"{'':<20} why  {finding.why}")
        if finding.cure:
            lines.append(f"{'':<20} cure {finding.cure}")
    counts = []
    for status in severity:
        count = sum(finding.status == status for finding in findings)
        counts.append(f"{count} {status}")
    text = "\n".join([*lines, "", ", ".join(counts)])
    return printable(without_secrets(text))  # a finding may quote an option, or a log


def read_log(text: str) -> list[Finding]:
    """Return what the known failures in a log mean, in the order in which they appear.

    Each kind of failure is returned once. A log may hold several starts of a run. Only the last
    start is read.

    Test: test_only_the_failure_of_the_last_start_is_explained
    """
    # Each start logs one line such as "[2025-11-06 10:00:00] rank 0 of 8 on host7, ..."
    # (`status_line` in utils/dist/status.py). The last start begins with the last such line.
    begin = text.rfind("] rank 0 of ")
    if begin == -1:  # a log without such a line is read as a whole
        begin = 0
    last_start = text[begin:]
    lines_before = text.count("\n", 0, begin)
    first_line = 1 + lines_before
    findings = without_consequences(known_failures(last_start, first_line))
    return findings or [end_of_start(last_start)]


def end_of_start(text: str) -> Finding:
    """Return how a start without a known failure ended: with an error, finished, or unclear.

    text: the log of the start.

    Tests: test_a_log_is_a_success_if_its_last_start_ended_well,
    test_a_log_without_an_end_is_no_success
    """
    # Only the first error counts, because later errors often follow from it. An error is a line
    # that begins e.g. with "Traceback", "KeyError: " or "[rank 3] ValueError: ". The run may have
    # gone on after the error, so the finding only says that it is the first error of the start.
    error = re.search(r"^(\[rank \d+\] )?(Traceback|\w+Error: ).*", text, re.MULTILINE)
    if error:
        return Finding(
            FAIL,
            "log",
            error[0][:SHOWN_CHARACTERS],
            why="it is the first error of the last start",
            cure="read the lines below it",
        )
    if re.search("Finished at iter|already finished", text):  # texts of utils/run/run.py
        return Finding(OK, "log", "the run finished")
    return Finding(
        WARN,
        "log",
        "no known failure in this log",
        why="the run may have been killed from outside, or still runs",
        cure="look at the logs of the other ranks, of the scheduler, and at dmesg",
    )


def without_consequences(findings: list[Finding]) -> list[Finding]:
    """Leave out the finding "killed" if the watchdog killed the rank.

    Two cases have both findings, "watchdog" and "killed". The words STUCK, SILENT and DEAD are the
    state of the rank in the report of the watchdog:

        STUCK or SILENT    the watchdog killed the rank, and then the launcher reported the kill.
                           The kill is a consequence, so its finding is left out.
        DEAD               something else had killed the rank before the watchdog noticed it. The
                           kill is the cause, so its finding stays.

    Tests: test_a_rank_that_the_watchdog_ended_is_not_said_to_lack_memory,
    test_a_rank_whose_process_was_gone_counts_as_killed
    """
    by_name = {finding.check: finding for finding in findings}
    by_watchdog = by_name.get("watchdog")
    if by_watchdog is None:
        return findings
    if " is DEAD" in by_watchdog.what:  # the words of utils/dist/stall_report.py
        return findings
    return [finding for finding in findings if finding.check != "killed"]


def known_failures(text: str, first_line: int) -> list[Finding]:
    """Return a finding for each kind of failure in a text, about the first line of this kind.

    first_line: number of the first line of the text in its file.

    Test: test_a_known_failure_is_explained
    """
    rows = json.loads(KNOWN_FAILURES.read_text(encoding="utf-8"))
    findings: dict[str, Finding] = {}  # name of the failure -> finding
    for line_number, line in enumerate(text.splitlines(), first_line):
        finding = _known_failure(line, line_number, rows)
        if finding is not None and finding.check not in findings:  # an earlier line stays
            findings[finding.check] = finding
    return list(findings.values())


def _known_failure(line: str, line_number: int, rows: list[list[str]]) -> Finding | None:
    """Return the finding of the first row that matches a line of a log, or None if no row does.

    line_number: number of the line in its file, for the finding.
    rows: the content of KNOWN_FAILURES.
    """
    if not line.strip():
        return None
    for name, pattern, meaning, cure in rows:
        match = re.search(pattern, line)
        if match:
            # What the groups of the pattern matched, for {0}, {1} ... of the meaning. E.g.
            # ["3", "STUCK"] becomes ["3", "stuck"].
            words = [STATE_WORDS.get(word, word) for word in match.groups(default="")]
            what = f"line {line_number}: {line.strip()[:SHOWN_CHARACTERS]}"
            return Finding(FAIL, name, what, why=meaning.format(*words), cure=cure)
    return None

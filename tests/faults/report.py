"""Makes the first sections of docs/reliability.md from the results of the trials.

tests/faults/trials.py calls `page` with the results of docs/benchmarks/faults.json. This file has
figures for each kind of trial, e.g.

    "kills": {"trials": 50, "identical": 50, "gone_s_max": 2.87, "wrong": [], ...}

`ROWS` has a template for each kind, with the names of figures in braces. E.g. the template of
"kills", and the row that the page gets:

    | kill -9 of a random rank at a random time, resumed | {trials} trials | {identical} identical |
    | kill -9 of a random rank at a random time, resumed | 50 trials | 50 identical |

A new kind of trial needs a row in ROWS. Otherwise the page does not mention this kind. After a
change of this file, `python -m tests.faults.trials --write` writes the page, without any new trial.
"""

# ruff: noqa: E501 - a line of the page is one line here

from collections.abc import Iterator
from typing import Any, NamedTuple

# The part of the page before the rows.
HEAD = """# Reliability

**If something goes wrong, the run ends with an error that names the cause, and the same command resumes it.** This page says which faults were tried, how often, and with which result. [ddp.md](ddp.md#it-has-ended) says what you do after a failure.

| question | answer | section |
|---|---|---|
| Does a run that hangs end by itself? | Yes. The log names the process that hung. | [Faults that were tried](#faults-that-were-tried) |
| Is a checkpoint lost if the run is killed while saving? | No. | [Faults that were tried](#faults-that-were-tried) |
| Is a resumed run the same as a run without the fault? | Yes, bit for bit on a CPU with the same number of processes. | [Faults that were tried](#faults-that-were-tried) |
| Does this hold for thousands of ranks (processes)? | In a simulation of 4096 ranks, yes. | [Many ranks](#many-ranks) |
| Who can do what to a run, on a cluster that is shared? | At worst, a stranger who reaches a port of the run can end it or disturb its numbers, but runs no code. | [Trust](#trust) |
| Which situations have tests? | a long list, with the tests of each situation | [What is tested](#what-is-tested) |

## Faults that were tried

The runs of these trials had up to eight ranks (processes) on CPUs of one machine, which exchanged data by gloo. NCCL, several hosts with a real network, and power loss were not tried.

| word | meaning |
|---|---|
| T | `watchdog.stall_s`, the time that a rank may stay in one phase of its work: 5 s in these trials, 300 s by default |
| struck rank | the rank that the trial stops, kills or disturbs |
| stall | the rank stands still in one of 6 ways: before an exchange between ranks; in the forward pass; on rank 0 alone; in a loader process; in C code that holds Python's lock; stopped by a signal |
| named | the log of every rank names the struck rank, its phase, its step and its stack, and no rank ends with exit code 0 |
| gone | the process has ended |
| identical | weights, their running average, optimizer and position in the data are the same bit for bit as in a run without the fault |
| store | a small server in rank 0, through which the ranks report their states |

A row that begins with "no fault" is a check that nothing happens to a healthy run.
"""

# The head of the table of the rows.
TABLE_HEAD = """
| fault | tried | result |
|---|---|---|"""

# The part of the page after the rows.
TAIL = """[faults.json](benchmarks/faults.json) has each trial. `make faults` repeats all of them, in an hour on two cores."""

# From this heading on, `page` keeps the present text, because people and other programs write it.
FIRST_HEADING_THAT_STAYS = "\n## Many ranks"


class Row(NamedTuple):
    """A row of the table: its three cells, with names of figures in braces.

    The braces have the form of `str.format`: {percent:.3f} has three decimals, and {last[steps]} is
    the figure "steps" within the figure "last".
    """

    fault: str  # what happens to the run
    tried: str  # how often it was tried
    result: str


# The result of the kinds of trials in which one rank is struck. "median" and "worst" are over all
# trials of the kind.
NAMED = "{right} named; found after {detected_s_median} s (median) and {detected_s_max} s (worst); all processes gone after {gone_s_max} s at worst"

# Kind of trial -> the template of its row. The page has the rows in this order. Kinds that begin
# with "no fault" check a healthy run.
ROWS = {
    "stalls": Row(
        fault="a rank stalls, 6 kinds, 2/4/8 ranks",
        tried="{trials} trials",
        result=NAMED,
    ),
    "deaths": Row(
        fault="kill -9 or exception, 2/4/8 ranks",
        tried="{trials} trials",
        result=NAMED,
    ),
    "store_host": Row(
        fault="rank 0, which holds the store, stopped, stuck in C code or killed, 2/4/8 ranks",
        tried="{trials} trials",
        result=NAMED,
    ),
    "false_alarms": Row(
        fault="no fault: {ranks} ranks on busy cores",
        tried="{minutes:g} minutes",
        result="{alarms} alarms, {last[steps]} steps",
    ),
    "overhead": Row(
        fault="no fault: time that the watchdog takes",
        tried="10^6 phases, 1000 beats",
        result="{phase_ns} ns a phase and {turn_us} us a beat: {percent:.3f} % of a step of 100 ms, which has five phases and a fifth of a beat",
    ),
    "kills": Row(
        fault="kill -9 of a random rank at a random time, resumed",
        tried="{trials} trials",
        result="{identical} identical",
    ),
    "saves": Row(
        fault="kill -9 while saving",
        tried="{trials} trials, {torn} in the middle of a write",
        result="{unreadable} unreadable, {lost} saves lost that the run had reported as done",
    ),
    "preemptions": Row(
        fault="{signals} to one or all ranks, resumed",
        tried="{trials} trials",
        result="{codes_right} ended with 75, {identical} identical; gone after {gone_s_max} s at worst",
    ),
    "suspensions": Row(
        fault="the whole run is suspended for longer than T",
        tried="{trials} trials",
        result="{right} went on and finished",
    ),
    "environments": Row(
        fault="environments in which a launch cannot work",
        tried="{trials} kinds",
        result="each explained; the slowest after {seconds_max} s",
    ),
    "broken_files": Row(
        fault="frames or spikes vanish or are cut during training, 2/4 ranks",
        tried="{trials} trials",
        result="{right} named; all ranks gone after {gone_s_max} s at worst",
    ),
    "readers": Row(
        fault="files of every kind with changed, missing or foreign bytes, {readers} tests",
        tried="{trials} files",
        result="{right} read, or refused with their name and the cause",
    ),
    "epochs": Row(
        fault="no fault: {epochs} epochs of a few steps, one rank starts its loader late",
        tried="{runs} runs",
        result="{finished} finished",
    ),
    "agents": Row(
        fault="one of two torchrun agents restarts its rank",
        tried="{trials} trials",
        result="{right} went on after one restart",
    ),
    "launcher": Row(
        fault="{signals} to launch_train.sh, 2/4 ranks",
        tried="{trials} trials",
        result="{right} ended with 75; gone after {gone_s_max} s at worst",
    ),
}
# Results until 2026-11-23 do not have the figure "signals". Their trials sent these two signals.
FORMER_SIGNALS = "SIGTERM or SIGUSR1"


def page(results: dict[str, Any], former_page: str) -> str:
    """Return the text of docs/reliability.md.

    results: kind of trial -> its figures. former_page: the present text of the file.
    """
    begin_of_rest = former_page.index(FIRST_HEADING_THAT_STAYS)
    rest = former_page[begin_of_rest:]
    lines = [HEAD, summary(results), TABLE_HEAD, *rows(results), "", *exceptions(results)]
    lines += [TAIL, rest]
    return "\n".join(lines)


def summary(results: dict[str, Any]) -> str:
    """Return the sentence before the table. It says whether all trials ended as they should."""
    wrong = sum(len(figures.get("wrong", [])) for figures in results.values())
    if wrong:
        return f"**{wrong} trials did not end as they should;** they are listed below the table:"
    return "**All trials ended as they should:**"


def rows(results: dict[str, Any]) -> Iterator[str]:
    """Yield a row of the table for each kind of trial that has results."""
    for kind, row in ROWS.items():
        if kind not in results:
            continue
        figures = dict(results[kind])
        figures.setdefault("signals", FORMER_SIGNALS)
        if kind == "overhead":
            figures["percent"] = 100 * figures["share_of_100_ms_step"]
        cells = [cell.format(**figures) for cell in row]
        yield f"| {' | '.join(cells)} |"


def exceptions(results: dict[str, Any]) -> Iterator[str]:
    """Yield a list of the trials that did not end as they should, if there are such trials."""
    wrong = []
    for figures in results.values():
        wrong += figures.get("wrong", [])
    if wrong:
        items = [f"* {text}" for text in wrong]
        yield "\n".join(["Trials that did not end as they should:", "", *items, ""])

"""Makes the first table of docs/reliability.md from the results of the trials.

tests/faults/trials.py calls `page` with the results of docs/benchmarks/faults.json. There, each kind
of trial has its figures, e.g.

    "kills": {"trials": 50, "identical": 50, "gone_s_max": 2.87, "wrong": [], ...}

and `ROWS` has the row for this kind, with the names of these figures in braces. A new kind of trial
needs a row here, or the page says nothing of it.
"""

# ruff: noqa: E501 - rows of a table are one line each

from collections.abc import Iterator
from typing import Any

# The part of the page before the rows.
HEAD = """# Reliability

What happens when something goes wrong, and how often it was tried, with gloo on CPUs. Not tried: NCCL, several hosts with a real network, power loss. `make faults` repeats it (an hour on two cores); `docs/benchmarks/faults.json`
has each trial.

| fault | tried | result |
|---|---|---|"""

# The part of the page after the rows.
TAIL = """T is `watchdog.stall_s`: 5 s in these trials, 300 s by default. "Named": all ranks name the struck rank, its phase and step, with its stack, and none ends with exit code 0. "Identical": weights,
average, optimizer and position, bit for bit."""

# From this heading on, the page is written by hand and by other programs. This part stays.
FIRST_HEADING_THAT_STAYS = "\n## Many ranks"

# The last two columns of the kinds of trials in which one rank is struck.
NAMED = "{trials} trials | {right} named; detected after {detected_s_median} s (median), {detected_s_max} s (worst); all processes gone after {gone_s_max} s at worst"

# Kind of trial -> its row: fault | tried | result. The rows stand in this order.
ROWS = {
    "stalls": "a rank stalls, 6 kinds, 2/4/8 ranks | " + NAMED,
    "deaths": "kill -9 or exception, 2/4/8 ranks | " + NAMED,
    "store_host": "rank 0, which holds the store, stopped, stuck in C code or killed, 2/4/8 ranks | "
    + NAMED,
    "false_alarms": "none: {ranks} healthy ranks on busy cores | {minutes:g} minutes | {alarms} alarms, {last[steps]} steps",
    "overhead": "none: cost of the watchdog | 10^6 phases, 1000 beats | {phase_ns} ns a phase, {turn_us} us a beat: {percent:.3f} % of a 100 ms step",
    "kills": "kill -9 of a random rank at a random time, resumed | {trials} trials | {identical} identical",
    "saves": "kill -9 while saving | {trials} trials, {torn} in the middle of a write | {unreadable} unreadable, {lost} acknowledged saves lost",
    "preemptions": "{signals} to one or all ranks, resumed | {trials} trials | {codes_right} ended with 75, {identical} identical; gone after {gone_s_max} s at worst",
    "suspensions": "the whole run is suspended for longer than T | {trials} trials | {right} went on and finished",
    "environments": "environments in which a launch cannot work | {trials} kinds | each explained; the slowest after {seconds_max} s",
    "broken_files": "frames or spikes vanish or are cut during training, 2/4 ranks | {trials} trials | {right} named; all ranks gone after {gone_s_max} s at worst",
    "readers": "files of every kind with changed, missing or foreign bytes, {readers} tests | {trials} files | {right} read, or refused with their name and the cause",
    "epochs": "none: {epochs} epochs of a few steps, one rank starts its loader late | {runs} runs | {finished} finished",
    "agents": "one of two torchrun agents restarts its rank | {trials} trials | {right} went on after one restart",
    "launcher": "{signals} to launch_train.sh, 2/4 ranks | {trials} trials | {right} ended with 75; gone after {gone_s_max} s at worst",
}
# Results until 2026-11-23 do not have the names of their signals. They had these two.
FORMER_SIGNALS = "SIGTERM or SIGUSR1"


def page(results: dict[str, Any], former_page: str) -> str:
    """Return the text of docs/reliability.md.

    results: kind of trial -> its figures. former_page: the present text of the file.
    """
    begin_of_rest = former_page.index(FIRST_HEADING_THAT_STAYS)
    rest = former_page[begin_of_rest:]
    lines = [HEAD, *rows(results), "", *exceptions(results), TAIL, rest]
    return "\n".join(lines)


def rows(results: dict[str, Any]) -> Iterator[str]:
    """Yield a row of the table for each kind of trial that has results."""
    for kind, row in ROWS.items():
        if kind not in results:
            continue
        figures = dict(results[kind])
        figures.setdefault("signals", FORMER_SIGNALS)
        if kind == "overhead":
            figures["percent"] = 100 * figures["share_of_100_ms_step"]
        yield f"| {row.format(**figures)} |"


def exceptions(results: dict[str, Any]) -> Iterator[str]:
    """Yield a list of all trials that did not end as they should. Yield nothing if there is none."""
    wrong = []
    for figures in results.values():
        wrong += figures.get("wrong", [])
    if wrong:
        items = [f"* {text}" for text in wrong]
        yield "\n".join(["Trials that did not end as they should:", "", *items, ""])

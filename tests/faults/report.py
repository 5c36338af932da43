"""docs/reliability.md from the results of the trials."""

# ruff: noqa: E501 - rows of a table are one line each

from collections.abc import Iterator
from typing import Any


def page(results: dict[str, Any], former: str) -> str:
    """The page with these results.

    Of the former one its last section stays, a measurement on its own.
    """
    return "\n".join(
        [
            HEAD,
            *rows(results),
            "",
            *exceptions(results),
            TAIL,
            former[former.index("\n## Many ranks") :],
        ]
    )


HEAD = """# Reliability

What happens when something goes wrong, and how often it was tried, with gloo on CPUs. Not tried: NCCL, several hosts with a real network, power loss. `make faults` repeats it (an hour on two cores); `docs/benchmarks/faults.json`
has each trial.

| fault | tried | result |
|---|---|---|"""

TAIL = """T is `watchdog.stall_s`: 5 s in these trials, 300 s by default. "Named": all ranks name the struck rank, its phase and step, with its stack, and none ends with exit code 0. "Identical": weights,
average, optimizer and position, bit for bit."""


def exceptions(results: dict[str, Any]) -> Iterator[str]:
    """Every trial that did not end as it should, in its own words."""
    wrong = [text for result in results.values() for text in result.get("wrong", ())]
    if wrong:
        yield "\n".join(
            ["Trials that did not end as they should:", "", *(f"* {text}" for text in wrong), ""]
        )


NAMED = "{trials} trials | {right} named; detected after {detected_s_median} s (median), {detected_s_max} s (worst); all processes gone after {gone_s_max} s at worst"
# Kind of trial -> its row, filled with its results.
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


def rows(results: dict[str, Any]) -> Iterator[str]:
    for kind, row in ROWS.items():
        if found := results.get(kind):
            more = {"signals": "SIGTERM or SIGUSR1"} | found  # of results until 2026-11-23
            if kind == "overhead":
                more["percent"] = 100 * found["share_of_100_ms_step"]
            yield f"| {row.format(**more)} |"

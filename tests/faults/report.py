"""docs/reliability.md from the results of the trials."""

# ruff: noqa: E501 - rows of a table are one line each

from collections.abc import Iterator
from typing import Any


def page(results: dict[str, Any], scale: list[dict[str, Any]]) -> str:
    return "\n".join([HEAD, *rows(results), "", *exceptions(results), TAIL, *watching_at_scale(scale)])


HEAD = """# Reliability

What happens when something goes wrong, and how often it was tried, with gloo on CPUs; NCCL was not tried. `make faults` repeats it (an hour on two cores), `make test` a quick part of it.
`docs/benchmarks/faults.json` has each trial.

| fault | tried | result |
|---|---|---|"""

TAIL = """T is `watchdog.stall_s`: 5 s in these trials, 300 s by default. "Named": the only verdict of all ranks names the struck rank, its phase and step,
with the stack of the culprit and of its loader processes, and no rank ends with exit code 0. "Identical": weights, average, optimizer moments and position, bit for bit.
Kinds of stall: asleep before a barrier, in the forward pass, on rank 0 alone, in a loader process; the GIL held by C code; SIGSTOP.

Not shown: several hosts with a real network between them, NCCL's own failures, and power loss."""


def watching_at_scale(sizes: list[dict[str, Any]]) -> Iterator[str]:
    """The section on many ranks."""
    yield SCALE.format(**sizes[-1])
    for s in sizes:
        faults = " | ".join(f"{s[kind]['detected_s']} s, {s[kind]['named'][0]}" for kind in ("silent", "host", "stuck"))
        start = f"{s['start_requests_median']}, {s['start_s']} s" if "start_s" in s else "not simulated"
        yield (
            f"| {s['ranks']} | {s['load']} | {s['beat_s']:g} s ({s['achieved_beat_s']:g}) | {s['stall_s']:g} s | "
            f"{max(s['requests_a_beat']):g}, {max(s['keys_a_beat']):g} keys | {s['requests_a_second']} | "
            f"{start} | {s['alarms']} | {faults} |"
        )


SCALE = """
## Watching at scale

A beat costs a rank two requests, whatever the number of ranks: it sets its own state, and reads the verdict and the states of rank 0, of the next rank and of the next rank on its host.
So one rank always follows one that still beats, even if a whole host is lost. All states are read by one rank at a time, and only while it is too long in its phase.

Simulated with `python -m tests.faults.scale` on {date}, on {cores} cores: the watchdog's own code for each rank against one real TCPStore, eight ranks to a host. Where the beat is slower than 0.5 s,
these cores could not do the work of all ranks faster; T is longer there.

| ranks | load of the machine before | beat (achieved) | T | requests a beat and rank | requests a second, all ranks | requests of the start (median rank), all met in | false alarms | a rank silent | a host silent | a rank stuck |
|---|---|---|---|---|---|---|---|---|---|---|"""


def exceptions(results: dict[str, Any]) -> Iterator[str]:
    """Every trial that did not end as it should, in its own words."""
    wrong = [text for result in results.values() for text in result.get("wrong", ())]
    if wrong:
        yield "\n".join(["Trials that did not end as they should:", "", *(f"* {text}" for text in wrong), ""])


NAMED = "{trials} trials | {right} named rightly; detected after {detected_s_median} s (median), {detected_s_max} s (worst), T = {stall_s:g} s; all processes gone after {gone_s_max} s at worst; {left_behind} left behind"
# Kind of trial -> its row, filled with its results.
ROWS = {
    "stalls": "a rank stalls, 6 kinds, 2/4/8 ranks | " + NAMED,
    "deaths": "kill -9 or exception, 2/4/8 ranks | " + NAMED,
    "store_host": "rank 0, which holds the store, stopped, stuck in C code or killed, 2/4/8 ranks | " + NAMED,
    "false_alarms": "none: {ranks} healthy ranks, a busy loop on each core, T = {stall_s:g} s | {minutes:g} minutes | {alarms} alarms, {finished} ranks finished, {last[steps]} steps",
    "overhead": "none: cost of the watchdog | 10^6 phases, 1000 beats | {phase_ns} ns a phase, {turn_us} us a beat: {percent:.3f} % of a 100 ms step",
    "kills": "kill -9 of a random rank at a random time, 1/2/4 ranks, resumed | {trials} trials | {identical} identical",
    "saves": "kill -9 while saving | {trials} trials, {torn} in the middle of a write | {unreadable} unreadable, {lost} acknowledged saves lost",
    "preemptions": "{signals} to one or all ranks, 1/2/4 ranks, resumed | {trials} trials | {codes_right} ended with 75 on all ranks, {identical} identical; gone after {gone_s_max} s at worst",
    "suspensions": "a run is suspended as a whole for longer than T, 1/2/4 ranks | {trials} trials | {right} went on when they woke and finished",
    "environments": "environments in which a launch cannot work | {trials} kinds | each explained; the slowest after {seconds_max} s: {slowest}",
    "broken_files": "frames or spikes vanish or are cut in the middle of training, 2/4 ranks | {trials} trials | {right} named rightly; all ranks gone after {gone_s_max} s at worst",
    "epochs": "none: {epochs} epochs of a few steps, 2/4 ranks, loader processes new in each epoch or kept | {runs} runs | {finished} finished; one rank starts its loader late in every epoch",
    "agents": "one of two torchrun agents restarts its rank, the other follows | {trials} trials | {right} went on after that one restart",
    "launcher": "{signals} to launch_train.sh, 2/4 ranks | {trials} trials | {right} ended with 75; gone after {gone_s_max} s at worst",
}


def rows(results: dict[str, Any]) -> Iterator[str]:
    for kind, row in ROWS.items():
        if found := results.get(kind):
            more = {"signals": "SIGTERM or SIGUSR1"} | found  # of results until 2026-11-23
            if kind == "false_alarms":
                more["finished"] = found["exit_codes"].count(0)
            elif kind == "overhead":
                more["percent"] = 100 * found["share_of_100_ms_step"]
            elif kind == "environments":
                more["slowest"] = max(found["each"], key=found["each"].get)
            yield f"| {row.format(**more)} |"

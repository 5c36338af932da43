"""docs/reliability.md from the results of the trials."""

# ruff: noqa: E501 - rows of a table are one line each

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BEFORE = "SIGTERM or SIGUSR1"  # of results until 2026-11-23


def page(results: dict[str, Any], scale: list[dict[str, Any]]) -> str:
    return "\n".join([HEAD, *rows(results), "", *exceptions(results), TAIL, *watching_at_scale(scale)])


HEAD = """# Reliability

What happens when something goes wrong, and how often it was tried. Measured with gloo on CPU; nothing here was run with
NCCL. Repeat it with `make faults` (an hour on two cores); a quick part of it runs in `make test`. `docs/benchmarks/faults.json`
has each trial, and the load of the two cores before each kind.

| fault | tried | result |
|---|---|---|"""

TAIL = """T is `watchdog.stall_s`: 5 s in these trials, 300 s by default. "Named" means: the first and only verdict of all ranks
names the struck rank, its phase and its step, with the Python stack of the culprit and of its loader processes, and no
rank ends with exit code 0. "Identical" compares sha256 over weights, average, optimizer moments and position.

Kinds of stall: asleep before a barrier, in the forward pass, in code of rank 0 alone, in a loader process; the GIL held
by C code; SIGSTOP.

What is not shown here: several hosts with a real network between them, NCCL's own failures, and power loss (kill -9 leaves
the page cache alone; fsync is there for that)."""


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

A beat costs a rank two requests, whatever the number of ranks: it sets its own state, and reads in one request the shared
verdict and the states of rank 0, of the next rank and of the next rank on its host. Whichever ranks fall silent, one of them
follows a rank that still beats, so the loss of a whole host is seen as well. Which rank the others wait for, only all states
together tell: one rank at a time reads them, and only while it is itself too long in its phase. The meetings of the start
count the ranks that have come, so that each rank asks for a few single keys.

Simulated with `python -m tests.faults.scale` on {date}, on {cores} cores:
the watchdog's own code (`utils/dist/beats.py`, `rendezvous.meet`) for each rank, a connection each, in two processes,
against one real TCPStore in a third; eight ranks to a host. Where the beat is slower than 0.5 s, these cores could not do the
work of all ranks faster; T is longer there. The start asks more often the longer it waits.

| ranks | load of the machine before | beat (achieved) | T | requests a beat and rank | requests a second, all ranks | requests of the start (median rank), all met in | false alarms | a rank silent | a host silent | a rank stuck |
|---|---|---|---|---|---|---|---|---|---|---|"""


def exceptions(results: dict[str, Any]) -> Iterator[str]:
    """Every trial that did not end as it should, in its own words."""
    wrong = [text for result in results.values() for text in result.get("wrong", ())]
    if wrong:
        yield "\n".join(["Trials that did not end as they should:", "", *(f"* {text}" for text in wrong), ""])


def gone(result: dict[str, Any]) -> str:
    """When the last process had gone, and how many were left behind."""
    worst, left = result["gone_s_max"], result["left_behind"]
    return (f"; all processes gone after {worst} s at worst" if worst else "") + f"; {left} left behind"


def rows(results: dict[str, Any]) -> Iterator[str]:
    for name, label in (
        ("stalls", "a rank stalls, 6 kinds, 2/4/8 ranks"),
        ("deaths", "kill -9 or exception, 2/4/8 ranks"),
        ("store_host", "rank 0, which holds the store, stopped, stuck in C code or killed, 2/4/8 ranks"),
    ):
        if r := results.get(name):
            yield (
                f"| {label} | {r['trials']} trials | {r['right']} named rightly; detected after {r['detected_s_median']} s "
                f"(median), {r['detected_s_max']} s (worst), T = {r['stall_s']:g} s{gone(r)} |"
            )
    if r := results.get("false_alarms"):
        yield (
            f"| none: {r['ranks']} healthy ranks, a busy loop on each core, T = {r['stall_s']:g} s | {r['minutes']:g} minutes | "
            f"{r['alarms']} alarms, {r['exit_codes'].count(0)} ranks finished, {r['last']['steps']} steps |"
        )
    if r := results.get("overhead"):
        yield (
            f"| none: cost of the watchdog | 10^6 phases, 1000 beats | {r['phase_ns']} ns a phase, {r['turn_us']} us a beat: "
            f"{100 * r['share_of_100_ms_step']:.3f} % of a 100 ms step |"
        )
    if r := results.get("kills"):
        yield f"| kill -9 of a random rank at a random time, {r.get('ranks', '1/2/4')} ranks, resumed | {r['trials']} trials | {r['identical']} identical |"
    if r := results.get("saves"):
        yield (
            f"| kill -9 while saving | {r['trials']} trials, {r['torn']} in the middle of a write | {r['unreadable']} unreadable, "
            f"{r['lost']} acknowledged saves lost |"
        )
    if r := results.get("preemptions"):
        yield (
            f"| {r.get('signals', BEFORE)} to one or all ranks, {r.get('ranks', '1/2/4')} ranks, resumed | {r['trials']} trials | {r['codes_right']} ended "
            f"with 75 on all ranks, {r['identical']} identical; gone after {r['gone_s_max']} s at worst |"
        )
    if r := results.get("suspensions"):
        yield (
            f"| a run is suspended as a whole for longer than T, 1/2/4 ranks | {r['trials']} trials | {r['right']} went on when they "
            "woke and finished |"
        )
    if r := results.get("environments"):
        worst = max(r["each"], key=r["each"].get)
        yield f"| environments in which a launch cannot work | {r['trials']} kinds | each explained; the slowest after {r['seconds_max']} s: {worst} |"
    if r := results.get("broken_files"):
        yield (
            f"| frames or spikes vanish or are cut in the middle of training, 2/4 ranks | {r['trials']} trials | {r['right']} named rightly; "
            f"all ranks gone after {r['gone_s_max']} s at worst |"
        )
    if r := results.get("epochs"):
        yield (
            f"| none: {r['epochs']} epochs of a few steps, 2/4 ranks, loader processes new in each epoch or kept | {r['runs']} runs | "
            f"{r['finished']} finished; one rank starts its loader late in every epoch |"
        )
    if r := results.get("agents"):
        yield (
            f"| one of two torchrun agents restarts its rank, the other follows | {r['trials']} trials | {r['right']} went on after "
            "that one restart |"
        )
    if r := results.get("launcher"):
        yield (
            f"| {r.get('signals', BEFORE)} to launch_train.sh, 2/4 ranks | {r['trials']} trials | {r['right']} ended with 75; gone after "
            f"{r['gone_s_max']} s at worst |"
        )

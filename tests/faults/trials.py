#!/usr/bin/env python3
"""Run the whole fault suite, with many trials of each kind, and make docs/reliability.md.

    python -m tests.faults.trials
    python -m tests.faults.trials --only stalls,kills --share 0.1
    python -m tests.faults.trials --write

--share is the part of the full number of trials that is run. The results of each kind of trial are
written into docs/benchmarks/faults.json as soon as it ends. --write makes the page from this file.

Each kind of trial is a function (see `KINDS_OF_TRIAL`). It takes the share, and returns figures and
a list "wrong" with the trials that did not end as they should. tests/faults/report.py has the line
of the page for each kind.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tests.dist.launching import ROOT, Ranks
from tests.faults.refusals import BROKEN, ENVIRONMENTS, break_file, seconds_until_explained
from tests.faults.report import page
from tests.faults.runs import (
    STEPS,
    interrupt,
    reference,
    restart_of_one_agent,
    signal_launcher,
    suspend,
)
from tests.faults.saving import kill_while_saving
from tests.faults.simulated import seconds_until_named
from tests.faults.stalls import KINDS, Trial, run_stall
from tests.helpers.train_files import odd_command, write_odd, write_options

RESULTS = ROOT / "docs/benchmarks/faults.json"
PAGE = ROOT / "docs/reliability.md"
# Kinds of fault in which a process stands still; in the other kinds it ends.
STALL_KINDS = [kind for kind, each in KINDS.items() if each.verdict in ("STUCK", "SILENT")]
STALL_S = 5.0  # watchdog.stall_s of the trials
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGHUP")
WORLD_SIZES = (2, 4, 8)
STOPPED_BY_SIGNAL = 75  # exit code of a run that was stopped by a signal

Results = dict[str, Any]


def number_of(trials: int, share: float, at_least: int = 1) -> int:
    """Return the number of trials to run: this share of the full number."""
    return max(at_least, round(trials * share))


def results_of(wrong: list[str], **more: Any) -> Results:
    """Return the results of trials.

    wrong: for each trial what went wrong, or "" if nothing did. more: further figures.
    """
    last_words = [text[-500:] for text in wrong if text]
    return {"trials": len(wrong), "right": wrong.count(""), **more, "wrong": last_words}


# ---- Stalls and deaths ---------------------------------------------------------------------------

# (kind of the fault, seed, number of ranks) -> the rank that is struck
Victim = Callable[[str, int, int], int]


def stalls(kinds: Iterable[str], full_number: int, victim: Victim, share: float) -> Results:
    """Strike a rank of 2, 4 and 8 ranks by each kind of fault.

    full_number: number of trials of each kind and each number of ranks.
    """
    trials = []
    seeds = range(number_of(full_number, share))
    for seed, ranks, kind in product(seeds, WORLD_SIZES, kinds):
        rank = victim(kind, seed, ranks)
        trials.append(run_stall(kind, ranks, rank, step=10 + 5 * seed, stall_s=STALL_S))
    return summary_of_stalls(trials)


def summary_of_stalls(trials: list[Trial]) -> Results:
    """Return the figures of stall trials. Times that are infinite (it never came) do not count."""
    detected = [trial.detected_s for trial in trials if math.isfinite(trial.detected_s)]
    gone = [trial.gone_s for trial in trials if math.isfinite(trial.gone_s)]
    wrong = [trial for trial in trials if not trial.is_right]
    return {
        "trials": len(trials),
        "right": len(trials) - len(wrong),
        "stall_s": STALL_S,
        "detected_s_max": round(max(detected, default=0.0), 2),
        "detected_s_median": round(statistics.median(detected or [0.0]), 2),
        "gone_s_max": round(max(gone, default=0.0), 2),
        "left_behind": sum(len(trial.left) for trial in trials),
        "each": [str(trial) for trial in trials],
        "wrong": [f"{trial} (exit codes {trial.exit_codes})" for trial in wrong],
    }


def waiting_rank(kind: str, seed: int, ranks: int) -> int:
    """Return the rank that a stall strikes. The kind "rank0" strikes rank 0, which prints."""
    if kind == "rank0":
        return 0
    return (seed + 1) % ranks


def each_rank_in_turn(kind: str, seed: int, ranks: int) -> int:
    """Return the rank that a death strikes."""
    return seed % ranks


def rank_0(kind: str, seed: int, ranks: int) -> int:
    """Return rank 0, which holds the store of all ranks."""
    return 0


def false_alarms(share: float) -> Results:
    """Let eight healthy ranks train for ten minutes, beside a busy loop on each core."""
    minutes = 10 * share
    ranks = 8
    busy_loops = []
    for _ in range(os.cpu_count() or 1):
        busy_loops.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    # KIND RANK STEP STALL_S MINUTES
    arguments = ("none", "0", "0", str(STALL_S), str(minutes))
    try:
        with Ranks(ranks, "tests/faults/stall_worker.py", *arguments) as running:
            result = running.wait(60 * minutes + 180)
    finally:
        for process in busy_loops:
            process.kill()
    return {
        "minutes": minutes,
        "ranks": ranks,
        "stall_s": STALL_S,
        "alarms": result.text.count("StallError"),
        "exit_codes": result.exit_codes,
        "last": result.jsons[0],
    }


def overhead(share: float) -> Results:
    """Measure what the watchdog takes from the training thread, and its own use of a core."""
    script = (
        "import time; from utils.dist import watchdog as w\n"
        "n = 10**6; t = time.perf_counter()\n"
        "for i in range(n): w.phase('data', i)\n"
        "print((time.perf_counter() - t) / n * 1e9)\n"
        "from torch.distributed import TCPStore\n"
        "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "store.set('met', '1')\n"
        "w.RUN.store = store; dog = w.Watchdog(); dog.budgets = w.WatchdogOptions()\n"
        "dog.beat_once()\n"
        "t = time.perf_counter()\n"
        "for i in range(1000): dog.beat_once()\n"
        "print((time.perf_counter() - t) / 1000 * 1e6)\n"
        "import os; os._exit(0) if not __import__('sys').stdout.flush() else None\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    phase_ns, turn_us = (float(number) for number in ended.stdout.split())
    # A step of 100 ms has five phases. A beat comes each 0.5 s, so a step has a fifth of a beat.
    step_s = 0.1
    per_step_s = 5 * phase_ns / 1e9 + turn_us / 1e6 * step_s / 0.5
    return {
        "phase_ns": round(phase_ns),
        "turn_us": round(turn_us, 1),
        "share_of_100_ms_step": round(per_step_s / step_s, 6),
    }


# ranks, seconds between two beats, watchdog.stall_s in seconds
MANY = ((64, 0.5, 5.0), (512, 0.5, 5.0), (4096, 4.0, 20.0))


def many_ranks(share: float) -> Results:
    """Strike a rank or a host among simulated ranks, and measure when it is named.

    A part of the trials (share below 1) has the largest number of ranks alone.
    """
    each = {}
    for ranks, beat_s, stall_s in MANY if share == 1 else MANY[-1:]:
        for fault in ("silent", "host", "stuck"):
            name = f"{ranks} ranks, beat {beat_s:g} s, T {stall_s:g} s, {fault}"
            each[name] = seconds_until_named(ranks, fault, beat_s, stall_s)
    wrong = [f"{name}: {found}" for name, found in each.items() if found["wrong"]]
    return {"trials": len(each), "right": len(each) - len(wrong), "each": each, "wrong": wrong}


# ---- Interruptions -------------------------------------------------------------------------------


def interruptions(how: str, share: float) -> Results:
    """Interrupt runs of the real training at random moments, then finish them.

    how: "kill" (SIGKILL), or "signal" (SIGTERM, SIGUSR1 and SIGHUP in turn).
    """
    number_of_trials = {1: 18, 2: 20, 4: 12}  # number of ranks -> trials
    found = []
    with tempfile.TemporaryDirectory() as folder:
        options = write_options(Path(folder))
        for ranks, full_number in number_of_trials.items():
            expected = reference(ranks)
            for seed in range(number_of(full_number, share)):
                kind = how if how == "kill" else SIGNALS[seed % len(SIGNALS)]
                found.append(interrupt(options, ranks, kind, seed, expected))

    wrong = []
    codes_right = 0
    for trial in found:
        # A rank that is killed ends with any code.
        has_code = how == "kill" or set(trial.exit_codes) == {STOPPED_BY_SIGNAL}
        codes_right += has_code
        if not (has_code and trial.identical):
            wrong.append(
                f"{trial.struck} of {trial.ranks}: resumed at {trial.at_iter}, exit codes "
                f"{trial.exit_codes}, identical: {trial.identical}"
            )
    resumed_at = [trial.at_iter for trial in found]
    return {
        "trials": len(found),
        "signals": ", ".join(SIGNALS),
        "identical": sum(trial.identical for trial in found),
        "codes_right": codes_right,
        "resumed_at": [resumed_at.count(step) for step in range(STEPS + 1)],
        "gone_s_max": round(max(trial.gone_s for trial in found), 2),
        "wrong": wrong,
    }


def suspensions(share: float) -> Results:
    """Suspend whole runs of 1, 2 and 4 ranks for longer than the watchdog waits, and wake them."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        options = write_odd(Path(folder))
        for ranks in (1, 2, 4):
            for seed in range(number_of(5, share)):
                wrong.append(suspend(options, ranks, seed, STALL_S))
    return results_of(wrong)


def launcher(share: float) -> Results:
    """Send SIGTERM, SIGUSR1 or SIGHUP to launch_train.sh.

    Its torchrun makes each exit code 1, and the script must end with 75 all the same.
    """
    wrong = []
    gone_s = []
    with tempfile.TemporaryDirectory() as folder:
        options = write_options(Path(folder))
        for ranks in (2, 4):
            for seed in range(number_of(10, share)):
                code, seconds = signal_launcher(options, ranks, seed)
                is_right = code == STOPPED_BY_SIGNAL
                wrong.append("" if is_right else f"launch_train.sh ended with {code}")
                gone_s.append(seconds)
    return results_of(wrong, signals=", ".join(SIGNALS), gone_s_max=round(max(gone_s), 2))


def agents(share: float) -> Results:
    """Let a rank die under one of two torchruns."""
    return results_of([restart_of_one_agent() for _ in range(number_of(5, share))])


def saves(share: float) -> Results:
    """Kill a process while it saves checkpoints."""
    return kill_while_saving(number_of(200, share))


# ---- Environments, files and epochs --------------------------------------------------------------


def environments(share: float) -> Results:
    """Launch where it cannot work, with the time limits that users have."""
    cases = ENVIRONMENTS[: number_of(len(ENVIRONMENTS), share)]
    seconds = {case.name: round(seconds_until_explained(case), 1) for case in cases}
    return {"trials": len(cases), "seconds_max": max(seconds.values()), "each": seconds}


def broken_files(share: float) -> Results:
    """Remove or cut files while 2 and 4 ranks train on them."""
    wrong = []
    gone_s = []
    for _, ranks, kind in product(range(number_of(2, share)), (2, 4), BROKEN):
        trial = break_file(kind, ranks)
        gone_s.append(trial.seconds)
        wrong.append("" if trial.is_named else f"{trial.text}\n{trial.kind}, {trial.ranks} ranks")
    return results_of(wrong, gone_s_max=round(max(gone_s), 2))


def readers(share: float) -> Results:
    """Read damaged files of every kind: the property tests of `make test`, with more examples."""
    profile = "30-times" if share == 1 else "3-times"
    examples = {}  # name of a test -> number of files that it has tried
    wrong = []
    for path in sorted((ROOT / "tests/parts").rglob("test_*.py")):
        if "tests.helpers.damage" not in path.read_text(encoding="utf-8"):
            continue
        command = [sys.executable, "-m", "pytest", "-n0", "-p", "tests.helpers.damage", str(path)]
        options = [f"--hypothesis-profile={profile}", "--hypothesis-show-statistics"]
        ended = subprocess.run(
            [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
        )
        # The statistics of a test begin with its name and ":".
        for statistics_of_test in ended.stdout.split("\ntests/")[1:]:
            counts = re.search(r"(\d+) passing\D+(\d+) failing", statistics_of_test)
            if counts:
                name = statistics_of_test.partition(":\n")[0]
                examples[name] = int(counts[1]) + int(counts[2])
        wrong += re.findall(r"(?m)^FAILED .*", ended.stdout)
    return {
        "trials": sum(examples.values()),
        "readers": len(examples),
        "right": sum(examples.values()) - len(wrong),
        "each": examples,
        "wrong": wrong,
    }


def epochs(share: float) -> Results:
    """Train for many short epochs, with loader processes that live for an epoch or for the run."""
    full_number = number_of(200, share, at_least=2)
    each = {}  # run, in words -> number of epochs that it came through
    for ranks, persistent in product((2, 4), ("false", "true")):
        with tempfile.TemporaryDirectory() as folder:
            options = write_odd(Path(folder))
            name = f"{ranks} ranks, persistent: {persistent}"
            each[name] = finished_epochs(options, ranks, full_number, persistent)
    finished = list(each.values()).count(full_number)
    return {"epochs": full_number, "runs": len(each), "finished": finished, "each": each}


def finished_epochs(options: Path, ranks: int, full_number: int, persistent: str) -> int:
    """Return how many of the epochs a run came through; 0 if it failed."""
    changes = (
        f"train.epochs={full_number}",
        "train.total_iter=1000000",
        "datasets.test={}",
        f"datasets.train.dataloader_persistent_workers={persistent}",
        "datasets.train.dataloader_num_workers=2",
    )
    # Rank 1 starts its loader late in each epoch.
    with Ranks(ranks, *odd_command(options, *changes, case="late", struck=(1, 0))) as running:
        result = running.wait(120 + 10 * full_number)
    if result.exit_codes != [0] * ranks:
        return 0
    return min(len(moments["progress"]) for moments in result.jsons if moments)


# ---- All kinds -----------------------------------------------------------------------------------

# Kind of trial -> share of the full number of trials -> results. The names are keys of faults.json.
KINDS_OF_TRIAL: dict[str, Callable[[float], Results]] = {
    "stalls": partial(stalls, STALL_KINDS, 3, waiting_rank),
    "deaths": partial(stalls, ("kill", "exception"), 3, each_rank_in_turn),
    "store_host": partial(stalls, ("stop", "gil", "kill"), 1, rank_0),
    "saves": saves,
    "kills": partial(interruptions, "kill"),
    "preemptions": partial(interruptions, "signal"),
    "suspensions": suspensions,
    "launcher": launcher,
    "agents": agents,
    "environments": environments,
    "broken_files": broken_files,
    "epochs": epochs,
    "overhead": overhead,
    "readers": readers,
    "many_ranks": many_ranks,
    "false_alarms": false_alarms,
}


def read_results() -> dict[str, Results]:
    """Return kind of trial -> its results, of the trials so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main() -> None:
    """Run the trials that were asked for, and make the page."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", default=",".join(KINDS_OF_TRIAL), help="kinds of trial, with commas"
    )
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument(
        "--write", action="store_true", help="write docs/reliability.md and run nothing"
    )
    args = parser.parse_args()
    results = read_results()
    for name in [] if args.write else args.only.split(","):
        start = time.monotonic()
        load = os.getloadavg()[0]
        found = KINDS_OF_TRIAL[name](args.share)
        found |= {"seconds": round(time.monotonic() - start), "load_before": round(load, 1)}
        results = {**read_results(), name: found}  # others may have written meanwhile
        print(name, json.dumps(found, indent=2), flush=True)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(results, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

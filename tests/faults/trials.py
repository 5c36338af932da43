#!/usr/bin/env python3
"""Run the whole fault suite, with many trials of each kind, and make docs/reliability.md.

    python -m tests.faults.trials
    python -m tests.faults.trials --only stalls,kills --share 0.1
    python -m tests.faults.trials --write

--share says which part of the full number of trials is run, e.g. 0.1. When a kind of trial ends,
its results are written into docs/benchmarks/faults.json. --write makes docs/reliability.md from
this file.

Each kind of trial is a function (see `KINDS_OF_TRIAL`). It takes the share, and returns figures,
e.g. of "suspensions":

    {"trials": 15, "right": 15, "wrong": []}

"wrong" has a text for each trial that did not end as it should.

A new kind of trial needs an entry in KINDS_OF_TRIAL, and a row in tests/faults/report.py that names
the figures of this kind. So if you rename a figure here, rename the figure there, too. What must
stay: which outcomes count as right, because docs/reliability.md describes them.
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
from tests.faults.refusals import BAD_LAUNCHES, BROKEN, break_file, seconds_until_explained
from tests.faults.report import page
from tests.faults.runs import (
    STEPS,
    interrupt,
    restart_of_one_agent,
    signal_launcher,
    state_without_interruption,
    suspend,
)
from tests.faults.saving import kill_while_saving
from tests.faults.simulated import seconds_until_named
from tests.faults.stalls import KINDS, Trial, run_stall
from tests.helpers.train_files import odd_command, write_odd_options, write_options

RESULTS = ROOT / "docs/benchmarks/faults.json"
PAGE = ROOT / "docs/reliability.md"
# Kinds of fault in which a process stops working, but does not end. In the other kinds the process
# ends.
STALL_KINDS = [kind for kind, each in KINDS.items() if each.verdict in ("STUCK", "SILENT")]
# Value of watchdog.stall_s in the trials: seconds without progress after which the watchdog calls a
# rank stalled. docs/reliability.md names this value. The default, 300 s, would make each trial
# minutes long.
STALL_S = 5.0
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGHUP")  # signals after which a run saves and ends
WORLD_SIZES = (2, 4, 8)  # numbers of ranks
STOPPED_BY_SIGNAL = 75  # exit code of a run that was stopped by a signal

Results = dict[str, Any]


def number_of(trials: int, share: float, at_least: int = 1) -> int:
    """Return the number of trials to run: this share of the full number.

    trials: the full number. at_least: the smallest number to return, however small the share is.
    """
    return max(at_least, round(trials * share))


def results_of(outcomes: list[str], **more: Any) -> Results:
    """Return the results of trials.

    outcomes: for each trial, a text about what went wrong, or "" if nothing went wrong. more:
        additional figures.
    """
    # The error is at the end of a text. The last 500 characters hold the error, and faults.json
    # stays short.
    last_words = [text[-500:] for text in outcomes if text]
    return {"trials": len(outcomes), "right": outcomes.count(""), **more, "wrong": last_words}


# ---- Stalls and deaths ---------------------------------------------------------------------------

# A function that returns the rank that is struck, e.g. `waiting_rank`. Its arguments are the kind
# of the fault, the seed and the number of ranks.
ChooseVictim = Callable[[str, int, int], int]


def stalls(
    kinds: Iterable[str], full_number: int, choose_victim: ChooseVictim, share: float
) -> Results:
    """Let each kind of fault happen in one rank of runs of 2, 4 and 8 ranks.

    The fault "strikes" this rank. The watchdog must name only the struck rank, and all processes
    must end with an error.

    kinds: names of faults, keys of tests.faults.stalls.KINDS.
    full_number: number of trials of each kind and each number of ranks.
    choose_victim: chooses the rank that is struck.
    """
    trials = []
    seeds = range(number_of(full_number, share))
    for seed, ranks, kind in product(seeds, WORLD_SIZES, kinds):
        rank = choose_victim(kind, seed, ranks)
        step = 10 + 5 * seed  # each seed strikes at another step
        trials.append(run_stall(kind, ranks, rank, step=step, stall_s=STALL_S))
    return summary_of_stalls(trials)


def summary_of_stalls(trials: list[Trial]) -> Results:
    """Return the figures of stall trials.

    A trial has two times. detected_s are the seconds from the fault to the message of the watchdog.
    gone_s are the seconds from the fault to the end of the last process. If an event never came,
    its time is infinite. Infinite times are left out of the figures, and the trial is in "wrong".
    """
    detected = [trial.detected_s for trial in trials if math.isfinite(trial.detected_s)]
    gone = [trial.gone_s for trial in trials if math.isfinite(trial.gone_s)]
    wrong = [trial for trial in trials if not trial.is_right]
    median_s = statistics.median(detected) if detected else 0.0
    return {
        "trials": len(trials),
        "right": len(trials) - len(wrong),
        "stall_s": STALL_S,
        "detected_s_max": round(max(detected, default=0.0), 2),
        "detected_s_median": round(median_s, 2),
        "gone_s_max": round(max(gone, default=0.0), 2),
        "left_behind": sum(len(trial.left) for trial in trials),
        "each": [str(trial) for trial in trials],
        "wrong": [f"{trial} (exit codes {trial.exit_codes})" for trial in wrong],
    }


def waiting_rank(kind: str, seed: int, ranks: int) -> int:
    """Return the rank that a stall strikes. The kind "rank0" strikes rank 0."""
    if kind == "rank0":
        return 0
    return (seed + 1) % ranks


def each_rank_in_turn(kind: str, seed: int, ranks: int) -> int:
    """Return the rank that a death strikes: rank 0 for seed 0, rank 1 for seed 1, and so on."""
    return seed % ranks


def rank_0(kind: str, seed: int, ranks: int) -> int:
    """Return rank 0. It holds the store of all ranks."""
    return 0


def false_alarms(share: float) -> Results:
    """Let eight healthy ranks train for ten minutes, beside a busy loop on each core.

    The watchdog must raise no alarm: 0 alarms, and each rank ends with exit code 0.

    share: which part of the ten minutes is run.
    """
    minutes = 10 * share
    ranks = 8
    busy_loops = []
    for _ in range(os.cpu_count() or 1):
        busy_loops.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    # The arguments of stall_worker.py: KIND RANK STEP STALL_S MINUTES.
    arguments = ("none", "0", "0", str(STALL_S), str(minutes))
    try:
        with Ranks(ranks, "tests/faults/stall_worker.py", *arguments) as running:
            # The start of the ranks beside the busy loops may take 180 s.
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


# A program that prints the two figures of `overhead`: the nanoseconds of a phase, then the
# microseconds of a beat. The program runs in a process of its own, because it replaces the store of
# its process.
OVERHEAD_SCRIPT = """
import os
import sys
import time

from torch.distributed import TCPStore

from utils.dist import watchdog, watchdog_thread

PHASES = 10**6
start = time.perf_counter()
for step in range(PHASES):
    watchdog.phase("data", step)
print((time.perf_counter() - start) / PHASES * 1e9)

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("met", "1")  # tells the watchdog that the ranks have met
watchdog_thread.RUN.store = store
dog = watchdog_thread.Watchdog()
dog.budgets = watchdog_thread.WatchdogOptions()
dog.beat_once()

BEATS = 1000
start = time.perf_counter()
for _ in range(BEATS):
    dog.beat_once()
print((time.perf_counter() - start) / BEATS * 1e6)

# A normal exit would wait for the threads of the store.
sys.stdout.flush()
os._exit(0)
"""


def overhead(share: float) -> Results:
    """Measure how much time the watchdog takes from the training thread, and in its own thread.

    The figures:

        phase_ns    nanoseconds that the training thread needs to note a new phase of its work
        turn_us     microseconds of a beat: the watchdog's thread reads and writes the ranks' store

    share: has no effect. The measurement is always the same.
    """
    command = [sys.executable, "-c", OVERHEAD_SCRIPT]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    phase_ns, turn_us = (float(number) for number in ended.stdout.split())

    # Take a step of 100 ms as an example. The step has five phases. A beat comes each 500 ms, so a
    # step has 100 / 500 = 0.2 beats.
    step_s = 0.1
    beat_s = 0.5  # time from one beat to the next
    phases_per_step = 5
    beats_per_step = step_s / beat_s
    per_step_s = phases_per_step * phase_ns / 1e9 + beats_per_step * turn_us / 1e6
    return {
        "phase_ns": round(phase_ns),
        "turn_us": round(turn_us, 1),
        "share_of_100_ms_step": round(per_step_s / step_s, 6),
    }


# (ranks, seconds between two beats, watchdog.stall_s in seconds). One process sends the beats of
# all simulated ranks, so 4096 ranks beat less often.
MANY = ((64, 0.5, 5.0), (512, 0.5, 5.0), (4096, 4.0, 20.0))


def many_ranks(share: float) -> Results:
    """Strike a rank or a host among simulated ranks, and measure when it is named.

    The watchdog must name the rank or host that was struck, and no other. If share is below 1, only
    the largest number of ranks is tried.
    """
    each = {}
    cases = MANY if share == 1 else MANY[-1:]
    for ranks, beat_s, stall_s in cases:
        for fault in ("silent", "host", "stuck"):
            name = f"{ranks} ranks, beat {beat_s:g} s, T {stall_s:g} s, {fault}"
            each[name] = seconds_until_named(ranks, fault, beat_s, stall_s)
    wrong = [f"{name}: {found}" for name, found in each.items() if found["wrong"]]
    return {"trials": len(each), "right": len(each) - len(wrong), "each": each, "wrong": wrong}


# ---- Interruptions -------------------------------------------------------------------------------


def interruptions(how: str, share: float) -> Results:
    """Interrupt runs of the real training at random moments, then finish them.

    The finished run must be identical to a run that was not interrupted. After a signal other than
    SIGKILL, each rank must have ended with exit code 75.

    how: "kill" (SIGKILL), or "signal" (SIGTERM, SIGUSR1 and SIGHUP in turn).
    """
    # Number of ranks -> number of trials, 50 in all. The division is arbitrary, because the moments
    # of the interruptions are random.
    number_of_trials = {1: 18, 2: 20, 4: 12}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        options = write_options(Path(folder))
        for ranks, full_number in number_of_trials.items():
            expected = state_without_interruption(ranks)
            for seed in range(number_of(full_number, share)):
                kind = how if how == "kill" else SIGNALS[seed % len(SIGNALS)]
                found.append(interrupt(options, ranks, kind, seed, expected))

    wrong = []
    codes_right = 0
    for trial in found:
        # After SIGKILL any exit codes are right. The system sets the code of the killed rank. The
        # other ranks may notice its end in several ways.
        are_codes_right = how == "kill" or set(trial.exit_codes) == {STOPPED_BY_SIGNAL}
        codes_right += are_codes_right  # True counts as 1
        if not (are_codes_right and trial.identical):
            wrong.append(
                f"{trial.interrupted_by} of {trial.ranks}: resumed at {trial.at_iter}, exit codes "
                f"{trial.exit_codes}, identical: {trial.identical}"
            )
    # The numbers of trials that resumed at step 0, at step 1, ..., and at step STEPS.
    steps = [trial.at_iter for trial in found]
    resumed_at_step_counts = [steps.count(step) for step in range(STEPS + 1)]
    return {
        "trials": len(found),
        "signals": ", ".join(SIGNALS),
        "identical": sum(trial.identical for trial in found),
        "codes_right": codes_right,
        "resumed_at": resumed_at_step_counts,
        # The longest time from the signal until all processes of the run had ended.
        "gone_s_max": round(max(trial.gone_s for trial in found), 2),
        "wrong": wrong,
    }


def suspensions(share: float) -> Results:
    """Suspend whole runs of 1, 2 and 4 ranks for longer than the watchdog waits, and wake them.

    The watchdog must raise no alarm: each run goes on, and each rank ends with exit code 0.
    """
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        options = write_odd_options(Path(folder))
        for ranks in (1, 2, 4):
            for seed in range(number_of(trials=5, share=share)):
                outcomes.append(suspend(options, ranks, seed, STALL_S))
    return results_of(outcomes)


def launcher(share: float) -> Results:
    """Send SIGTERM, SIGUSR1 or SIGHUP to launch_train.sh.

    The script starts torchrun. torchrun always ends with exit code 1, whatever the exit codes of
    its ranks are. But the script must end with exit code 75. This code tells the user's scheduler
    to start the run again.
    """
    outcomes = []
    gone_s = []  # seconds from the signal until the script had ended, of each trial
    with tempfile.TemporaryDirectory() as folder:
        options = write_options(Path(folder))
        for ranks in (2, 4):
            for seed in range(number_of(trials=10, share=share)):
                code, seconds = signal_launcher(options, ranks, seed)
                is_right = code == STOPPED_BY_SIGNAL
                outcomes.append("" if is_right else f"launch_train.sh ended with {code}")
                gone_s.append(seconds)
    return results_of(outcomes, signals=", ".join(SIGNALS), gone_s_max=round(max(gone_s), 2))


def agents(share: float) -> Results:
    """Let a rank die while it starts, under one of two torchruns ("agents") with one rank each.

    Both agents must start their rank anew, and the new ranks must find each other.
    """
    return results_of([restart_of_one_agent() for _ in range(number_of(trials=5, share=share))])


def saves(share: float) -> Results:
    """Kill a process while it saves checkpoints. No file that it leaves may be incomplete."""
    return kill_while_saving(number_of(trials=200, share=share))


# ---- Environments, files and epochs --------------------------------------------------------------


def environments(share: float) -> Results:
    """Launch runs that cannot work, with the time limits that users have.

    E.g. another program may listen at the port. Each launch must end with a message that names the
    cause. `seconds_until_explained` fails if the message does not come.
    """
    cases = BAD_LAUNCHES[: number_of(len(BAD_LAUNCHES), share)]
    seconds = {case.name: round(seconds_until_explained(case), 1) for case in cases}
    return {"trials": len(cases), "seconds_max": max(seconds.values()), "each": seconds}


def broken_files(share: float) -> Results:
    """Remove or cut files while 2 and 4 ranks train on them.

    The message must name the damaged file, and each rank must end with exit code 3 (wrong data).
    """
    outcomes = []
    gone_s = []  # seconds from the damage until all ranks had gone, of each trial
    for _, ranks, kind in product(range(number_of(trials=2, share=share)), (2, 4), BROKEN):
        trial = break_file(kind, ranks)
        gone_s.append(trial.seconds)
        error = f"{trial.text}\n{trial.kind}, {trial.ranks} ranks"
        outcomes.append("" if trial.is_named else error)
    return results_of(outcomes, gone_s_max=round(max(gone_s), 2))


def readers(share: float) -> Results:
    """Read damaged files of every kind: the property tests of `make test`, with more examples."""
    profile = "30-times" if share == 1 else "3-times"
    examples = {}  # name of a test -> number of files that it has tried
    wrong = []
    for path in sorted((ROOT / "tests/parts").rglob("test_*.py")):
        # The property tests of readers import this module, because it damages files.
        if "tests.helpers.damage" not in path.read_text(encoding="utf-8"):
            continue
        # -p loads tests/helpers/damage.py before pytest reads --hypothesis-profile, because this
        # module registers the profiles.
        command = [sys.executable, "-m", "pytest", "-n0", "-p", "tests.helpers.damage", str(path)]
        options = [f"--hypothesis-profile={profile}", "--hypothesis-show-statistics"]
        ended = subprocess.run(
            [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
        )
        # For each test, Hypothesis prints its name and how many examples it has tried:
        #
        #     tests/parts/data/test_any_bytes.py::test_name:
        #
        #       - during generate phase (1.05 seconds):
        #         - 300 passing examples, 0 failing examples, 12 invalid examples
        #
        # A piece of the split is the text between two "tests/" at the beginning of a line:
        #
        #     parts/data/test_any_bytes.py::test_name:\n ... 300 passing examples, 0 failing ...
        #
        # The first piece is the text before the statistics, so it is left out.
        for statistics_of_test in ended.stdout.split("\ntests/")[1:]:
            counts = re.search(r"(\d+) passing\D+(\d+) failing", statistics_of_test)
            if counts:
                name = statistics_of_test.partition(":\n")[0]
                examples[name] = int(counts[1]) + int(counts[2])
        # Each failed test has a line of its own, e.g. "FAILED tests/parts/data/...::test_name -
        # ...".
        wrong += re.findall(r"(?m)^FAILED .*", ended.stdout)
    return {
        "trials": sum(examples.values()),
        "readers": len(examples),
        # A failed test counts as one wrong file.
        "right": sum(examples.values()) - len(wrong),
        "each": examples,
        "wrong": wrong,
    }


def epochs(share: float) -> Results:
    """Train for many short epochs, with loader processes that live for an epoch or for the run.

    share: which part of the full number of 200 epochs each run has. 2 epochs is the least number.
    """
    full_number = number_of(trials=200, share=share, at_least=2)
    each = {}  # run, in words -> number of epochs that it came through
    # persistent: whether the loader processes live for the whole run, "true", or for an epoch,
    # "false". It is a text, because it becomes an option on the command line.
    for ranks, persistent in product((2, 4), ("false", "true")):
        with tempfile.TemporaryDirectory() as folder:
            options = write_odd_options(Path(folder))
            name = f"{ranks} ranks, persistent: {persistent}"
            each[name] = finished_epochs(options, ranks, full_number, persistent)
    finished = list(each.values()).count(full_number)
    return {"epochs": full_number, "runs": len(each), "finished": finished, "each": each}


def finished_epochs(options: Path, ranks: int, full_number: int, persistent: str) -> int:
    """Return how many of the epochs a run came through. 0 if it failed.

    full_number: number of epochs of the run. persistent: "true" or "false", whether the loader
    processes live for the whole run.
    """
    changes = (
        f"train.epochs={full_number}",
        "train.total_iter=1000000",  # more steps than the epochs have, so the epochs end the run
        "datasets.test={}",
        f"datasets.train.dataloader_persistent_workers={persistent}",
        "datasets.train.dataloader_num_workers=2",
    )
    # Case "late" of odd_worker.py: rank 1 starts its loader late in each epoch. Each rank prints
    # {"loader": [...], "progress": [...]}, the times at which each epoch has begun.
    command = odd_command(options, *changes, case="late", struck_rank=1)
    with Ranks(ranks, *command) as running:
        # The start may take 120 s, and each epoch 10 s. Both limits are chosen by hand.
        result = running.wait(120 + 10 * full_number)
    if result.exit_codes != [0] * ranks:
        return 0
    # jsons: what each rank has printed as JSON. An epoch counts if all ranks have begun the epoch.
    return min(len(moments["progress"]) for moments in result.jsons if moments)


# ---- All kinds -----------------------------------------------------------------------------------

# Name of each kind of trial -> its function. The function takes `share`, the fraction of the full
# number of trials that is run (e.g. 0.5: half of them), and returns the results. The names are keys
# of faults.json. "stop", "gil", "kill" and "exception" are kinds of faults
# (tests/faults/stalls.py). choose_victim says which rank a fault strikes.
KINDS_OF_TRIAL: dict[str, Callable[..., Results]] = {
    "stalls": partial(stalls, kinds=STALL_KINDS, full_number=3, choose_victim=waiting_rank),
    "deaths": partial(
        stalls, kinds=("kill", "exception"), full_number=3, choose_victim=each_rank_in_turn
    ),
    "store_host": partial(
        stalls, kinds=("stop", "gil", "kill"), full_number=1, choose_victim=rank_0
    ),
    "saves": saves,
    "kills": partial(interruptions, how="kill"),
    "preemptions": partial(interruptions, how="signal"),
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
    names = [] if args.write else args.only.split(",")
    for name in names:
        start = time.monotonic()
        load = os.getloadavg()[0]
        found = KINDS_OF_TRIAL[name](share=args.share)
        found |= {"seconds": round(time.monotonic() - start), "load_before": round(load, 1)}
        results = {**read_results(), name: found}  # the file may have changed meanwhile
        print(name, json.dumps(found, indent=2), flush=True)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(results, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

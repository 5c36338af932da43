#!/usr/bin/env python3
"""The whole fault suite, many trials each, and the table of docs/reliability.md.

    python -m tests.faults.trials
    python -m tests.faults.trials --only stalls,kills --share 0.1
    python -m tests.faults.trials --write

Each kind of trial adds its results to docs/benchmarks/faults.json as it goes; --write makes the
page from that file. --share: the part of the full number of trials to run.
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
STALL_KINDS = [kind for kind, each in KINDS.items() if each.verdict in ("STUCK", "SILENT")]
STALL_S = 5.0
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGHUP")


def stalls(
    kinds: Iterable[str], count: int, rank_of: Callable[[str, int, int], int], share: float
) -> dict[str, Any]:
    """Each kind of stall or death on 2, 4 and 8 ranks. rank_of: of the kind, the seed and the
    ranks, who is struck.
    """
    return summary_of_stalls([
        run_stall(kind, ranks, rank_of(kind, seed, ranks), step=10 + 5 * seed, stall_s=STALL_S)
        for seed, ranks, kind in product(range(max(1, round(count * share))), (2, 4, 8), kinds)
    ])  # fmt: skip


def summary_of_stalls(trials: list[Trial]) -> dict[str, Any]:
    detected = [t.detected_s for t in trials if math.isfinite(t.detected_s)]
    gone = [t.gone_s for t in trials if math.isfinite(t.gone_s)]
    return {
        "trials": len(trials), "right": sum(t.is_right for t in trials), "stall_s": STALL_S,
        "detected_s_max": round(max(detected, default=0.0), 2),
        "detected_s_median": round(statistics.median(detected or [0.0]), 2),
        "gone_s_max": round(max(gone or [0.0]), 2),
        "left_behind": sum(len(t.left) for t in trials),
        "each": [str(t) for t in trials],
        "wrong": [f"{t} (exit codes {t.exit_codes})" for t in trials if not t.is_right],
    }  # fmt: skip


def false_alarms(share: float) -> dict[str, Any]:
    """Eight healthy ranks on this machine, with a busy loop on each core."""
    minutes = 10 * share
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        with Ranks(
            8, "tests/faults/stall_worker.py", "none", "0", "0", str(STALL_S), str(minutes)
        ) as running:
            result = running.wait(60 * minutes + 180)
    finally:
        for process in busy:
            process.kill()
    return {
        "minutes": minutes, "ranks": 8, "stall_s": STALL_S,
        "alarms": result.text.count("StallError"), "exit_codes": result.exit_codes,
        "last": result.jsons[0],
    }  # fmt: skip


def interruptions(how: str, share: float) -> dict[str, Any]:
    """Runs of the real training struck at random moments, on 1, 2 and 4 ranks, then finished by the
    same command.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        options = write_options(Path(folder))
        for ranks, count in {1: 18, 2: 20, 4: 12}.items():
            expected = reference(ranks)
            for seed in range(max(1, round(count * share))):
                kind = how if how == "kill" else SIGNALS[seed % 3]
                found.append(interrupt(options, ranks, kind, seed, expected))
    codes_right = [t for t in found if how == "kill" or set(t.exit_codes) == {75}]
    return {
        "trials": len(found), "signals": ", ".join(SIGNALS),
        "identical": sum(t.identical for t in found), "codes_right": len(codes_right),
        "resumed_at": [sum(t.at_iter == i for t in found) for i in range(STEPS + 1)],
        "gone_s_max": round(max(t.gone_s for t in found), 2),
        "wrong": [
            f"{t.struck} of {t.ranks}: resumed at {t.at_iter}, exit codes {t.exit_codes}, "
            f"identical: {t.identical}"
            for t in found
            if not t.identical or t not in codes_right
        ],
    }  # fmt: skip


def suspensions(share: float) -> dict[str, Any]:
    """Whole runs of 1, 2 and 4 ranks, stopped for longer than the watchdog waits, and woken, each
    in a random order.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = write_odd(Path(folder))
        count = max(1, round(5 * share))
        found = [
            suspend(options, ranks, seed, STALL_S) for ranks in (1, 2, 4) for seed in range(count)
        ]
    return told(found)


def told(wrong: list[str], **more: Any) -> dict[str, Any]:
    """The results of trials, by what went wrong in each of them ("": nothing)."""
    return {
        "trials": len(wrong),
        "right": wrong.count(""),
        **more,
        "wrong": [text[-500:] for text in wrong if text],
    }


def launcher(share: float) -> dict[str, Any]:
    """SIGTERM, SIGUSR1 or SIGHUP to launch_train.sh, whose torchrun makes every exit code 1."""
    with tempfile.TemporaryDirectory() as folder:
        options = write_options(Path(folder))
        count = max(1, round(10 * share))
        found = [signal_launcher(options, ranks, seed) for ranks in (2, 4) for seed in range(count)]
    wrong = ["" if code == 75 else f"launch_train.sh ended with {code}" for code, _ in found]
    return told(
        wrong, signals=", ".join(SIGNALS), gone_s_max=round(max(seconds for _, seconds in found), 2)
    )


def environments(share: float) -> dict[str, Any]:
    """Launches that cannot work, with the deadlines that users have."""
    cases = ENVIRONMENTS[: max(1, round(len(ENVIRONMENTS) * share))]
    seconds = {case.name: round(seconds_until_explained(case), 1) for case in cases}
    return {"trials": len(cases), "seconds_max": max(seconds.values()), "each": seconds}


def broken_files(share: float) -> dict[str, Any]:
    """Files that vanish or are cut while 2 and 4 ranks train on them."""
    found = [
        break_file(kind, ranks)
        for _ in range(max(1, round(2 * share)))
        for ranks in (2, 4)
        for kind in BROKEN
    ]
    wrong = ["" if t.is_named else f"{t.text}\n{t.kind}, {t.ranks} ranks" for t in found]
    return told(wrong, gone_s_max=round(max(t.seconds for t in found), 2))


def epochs(share: float) -> dict[str, Any]:
    """Many short epochs through the real loop, with loader processes that live for an epoch or for
    the run.
    """
    count, each = max(2, round(200 * share)), {}
    for ranks in (2, 4):
        for persistent in ("false", "true"):
            with tempfile.TemporaryDirectory() as folder:
                options = write_odd(Path(folder))
                each[f"{ranks} ranks, persistent: {persistent}"] = count_epochs(
                    options, ranks, count, persistent
                )
    return {
        "epochs": count,
        "runs": len(each),
        "finished": sum(n == count for n in each.values()),
        "each": each,
    }


def count_epochs(options: Path, ranks: int, count: int, persistent: str) -> int:
    """Epochs that a run of so many came through."""
    loader = (
        f"datasets.train.dataloader_persistent_workers={persistent}",
        "datasets.train.dataloader_num_workers=2",
    )
    changes = (f"train.epochs={count}", "train.total_iter=1000000", "datasets.test={}", *loader)
    with Ranks(ranks, *odd_command(options, *changes, case="late", struck=(1, 0))) as running:
        result = running.wait(120 + 10 * count)
    opened = [len(moments["progress"]) for moments in result.jsons if moments]
    return min(opened) if result.exit_codes == [0] * ranks else 0


MANY = ((64, 0.5, 5.0), (512, 0.5, 5.0), (4096, 4.0, 20.0))  # ranks, seconds a beat, stall_s


def many_ranks(share: float) -> dict[str, Any]:
    """Simulated ranks against one real store: when a rank or host that is struck is named."""
    each = {
        f"{n} ranks, beat {beat_s:g} s, T {stall_s:g} s, {fault}": seconds_until_named(
            n, fault, beat_s, stall_s
        )
        for n, beat_s, stall_s in (MANY if share == 1 else MANY[-1:])
        for fault in ("silent", "host", "stuck")
    }
    wrong = [f"{name}: {found}" for name, found in each.items() if found["wrong"]]
    return {"trials": len(each), "right": len(each) - len(wrong), "each": each, "wrong": wrong}


def readers(share: float) -> dict[str, Any]:
    """Damaged files of every kind that is read: the property tests of `make test`, many times."""
    profile = "30-times" if share == 1 else "3-times"
    found, wrong = {}, []
    for path in sorted((ROOT / "tests/parts").rglob("test_*.py")):
        if "tests.helpers.damage" not in path.read_text(encoding="utf-8"):
            continue
        command = [sys.executable, "-m", "pytest", "-n0", "-p", "tests.helpers.damage", str(path)]
        options = [f"--hypothesis-profile={profile}", "--hypothesis-show-statistics"]
        text = subprocess.run(
            [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
        for report in text.split("\ntests/")[1:]:
            if counts := re.search(r"(\d+) passing\D+(\d+) failing", report):
                found[report.partition(":\n")[0]] = int(counts[1]) + int(counts[2])
        wrong += re.findall(r"(?m)^FAILED .*", text)
    return {
        "trials": sum(found.values()),
        "readers": len(found),
        "right": sum(found.values()) - len(wrong),
        "each": found,
        "wrong": wrong,
    }


def overhead(share: float) -> dict[str, Any]:
    """What the watchdog takes from the training thread, and its own use of a core."""
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
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    phase_ns, turn_us = map(float, out.split())
    per_step = 5 * phase_ns / 1e9 + turn_us / 1e6 * 0.1 / 0.5
    return {
        "phase_ns": round(phase_ns),
        "turn_us": round(turn_us, 1),
        "share_of_100_ms_step": round(per_step / 0.1, 6),
    }


def stalled_rank(kind: str, seed: int, ranks: int) -> int:
    return 0 if kind == "rank0" else (seed + 1) % ranks


KINDS_OF_TRIAL = {
    "stalls": partial(stalls, STALL_KINDS, 3, stalled_rank),
    "deaths": partial(stalls, ("kill", "exception"), 3, lambda kind, seed, ranks: seed % ranks),
    # it has the store of all
    "store_host": partial(stalls, ("stop", "gil", "kill"), 1, lambda kind, seed, ranks: 0),
    "saves": lambda share: kill_while_saving(max(1, round(200 * share))),
    "kills": partial(interruptions, "kill"), "preemptions": partial(interruptions, "signal"),
    "suspensions": suspensions, "launcher": launcher,
    "agents": lambda share: told([restart_of_one_agent() for _ in range(max(1, round(5 * share)))]),
    "environments": environments, "broken_files": broken_files, "epochs": epochs,
    "overhead": overhead, "readers": readers, "many_ranks": many_ranks,
    "false_alarms": false_alarms,
}  # fmt: skip


def read_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main() -> None:
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
        start, load = time.monotonic(), os.getloadavg()[0]
        found = KINDS_OF_TRIAL[name](args.share)
        found |= {"seconds": round(time.monotonic() - start), "load_before": round(load, 1)}
        results = {**read_results(), name: found}  # others may have written meanwhile
        print(name, json.dumps(found, indent=2), flush=True)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(results, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

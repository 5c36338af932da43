"""benchmark.py threads: a training step under each wait policy of OpenMP, alone and beside a busy process.

The wheels of torch contain GNU OpenMP: before a waiting thread sleeps, it spins for GOMP_SPINCOUNT turns, which
OMP_WAIT_POLICY sets (active: 30 billion, passive: none, unset: 300,000).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scripts.benchmark_tools import table
from scripts.shown import tracked

ROOT = Path(__file__).resolve().parent.parent
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
RULES: dict[str, dict[str, str]] = {
    "unset": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "active": {"OMP_WAIT_POLICY": "active"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 3000": {"GOMP_SPINCOUNT": "3000"},
}
# One step per line of standard input; the first one is a warm-up.
STEPS = """
import sys, time, torch
from models.network_vrt import VRT
from scripts.benchmark_net import NAMED
from utils.dist.process import die_with_parent
die_with_parent()
frames, crop = map(int, sys.argv[1:])
net, clip = VRT(**NAMED["small"]), torch.rand(1, frames, 3, crop, crop)
for _ in sys.stdin:
    start = time.perf_counter()
    net(clip).sum().backward()
    print(time.perf_counter() - start, flush=True)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="OpenMP threads (default: all cores)")
    parser.add_argument("--neighbours", type=int, default=1, help="busy processes beside it (default 1)")
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--crop", type=int, default=32)
    parser.add_argument("--rules", nargs="+", choices=list(RULES)[1:], default=list(RULES)[1:], metavar="RULE",
                        help=f"to compare with unset: {', '.join(list(RULES)[1:])} (default: all)")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=9, help="steps under each rule, taken in turn (default 9)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step by rule and company (alone or busy), and their median ratio to "unset" in the same turn."""
    places = [(rule, company) for company in ("alone", "busy") for rule in ("unset", *args.rules)]
    seconds: dict[tuple[str, str], list[float]] = {place: [] for place in places}
    with ExitStack() as stack:
        steps = {rule: stack.enter_context(step_process(args, RULES[rule])) for rule in ("unset", *args.rules)}
        for _ in tracked(range(args.repeats), args.repeats, "threads", "turns"):
            for company in ("alone", "busy"):
                with busy_processes(args.neighbours if company == "busy" else 0):
                    for rule, process in steps.items():
                        seconds[rule, company].append(one_step(process))
    found, rows = [], []
    for rule, company in places:
        pairs = zip(seconds[rule, company], seconds["unset", company], strict=True)
        ratio, times = statistics.median(a / b for a, b in pairs), seconds[rule, company]
        found.append({"rule": rule, "company": company, "seconds": times, "ratio": ratio})
        rows.append([rule, company, min(times), statistics.median(times), max(times), f"{ratio:.2f}"])
    print(f"training step, small, {args.frames} x {args.crop} x {args.crop}, {args.threads} OpenMP threads")
    print(table(rows, ["OMP", "company", "least s", "median s", "most s", "to unset"]))
    return {"steps": found}


@contextmanager
def step_process(args: argparse.Namespace, rule: dict[str, str]) -> Iterator[subprocess.Popen]:
    """A process that runs a step on demand, after a warm-up; stopped between steps, as waiting threads may spin."""
    env = {k: v for k, v in os.environ.items() if k not in VARIABLES} | rule
    env |= {"OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", STEPS, str(args.frames), str(args.crop)]
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    try:
        one_step(process)
        yield process
    finally:
        process.kill()
        process.wait()


def one_step(process: subprocess.Popen) -> float:
    """Seconds of the process's next step."""
    process.send_signal(signal.SIGCONT)
    process.stdin.write("step\n")
    seconds = float(process.stdout.readline())
    process.send_signal(signal.SIGSTOP)
    return seconds


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes that keep one core busy each."""
    program = "from utils.dist.process import die_with_parent; die_with_parent()\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


SUBCOMMANDS = {"threads": (add_arguments, run)}

"""Trials on the real training: kill or signal a run at a random moment, start it again, compare the
final weights.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.dist.launching import ROOT, RankResult, Ranks, free_port, started, wait_for
from tests.helpers.train_files import (
    MAIN,
    experiment,
    odd_command,
    same,
    state_of,
    train,
    write_options,
)
from utils.run.history import read_history

STEPS = 6
EVERY = ("train.checkpoint_save=1", f"train.total_iter={STEPS}", "datasets.test={}")


@dataclass
class Interruption:
    """How a run was struck, and what became of it. identical: final state equals that of the
    reference, bit for bit.
    """

    ranks: int
    struck: str
    at_iter: int
    exit_codes: list[int]
    gone_s: float
    identical: bool
    text: str


@cache
def reference(ranks: int) -> dict[str, Any]:
    """The last checkpoint of a run that was never interrupted; one run for all trials on so many
    ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = write_options(Path(folder))
        result = train(options, *EVERY, ranks=ranks, limit_s=300)
        assert result.exit_codes == [0] * ranks, result.text
        return state_of(options)


def interrupt(
    options: Path, ranks: int, how: str, seed: int, expected: dict[str, Any]
) -> Interruption:
    """Strike a fresh run once, at a random moment from its start on, and let the same command
    finish it.

    how: "kill" (SIGKILL to a random rank), "SIGTERM", "SIGUSR1" or "SIGHUP" (to a random rank, or
    to all). `identical` also means that the history has each step once. at_iter of the result is 0
    where the run was struck before its first checkpoint.
    """
    rng, task = random.Random(seed), f"{how}-{ranks}-{seed}"
    command = ("--opt", str(options), f"task={task}", *EVERY)
    with Ranks(ranks, MAIN, *command) as running:
        step = rng.randint(0, STEPS - 3)  # so that a signal is heard before the end
        running.wait_for(f"Iter: {step}," if step else "starting at iter 0 of", 0, 300)
        time.sleep(rng.uniform(0, 0.3))
        targets = (
            [rng.randrange(ranks)] if how == "kill" or rng.random() < 0.5 else list(range(ranks))
        )
        number = signal.SIGKILL if how == "kill" else getattr(signal, how)
        # To all ranks as torchrun does it: to their whole process groups.
        send = os.kill if len(targets) == 1 else os.killpg
        for rank in targets:
            send(running.processes[rank].pid, number)
        struck = time.monotonic()
        first = running.wait(120)
    gone_s = time.monotonic() - struck
    again: RankResult = train(options, *command[2:], ranks=ranks, limit_s=300)
    found = re.findall(r"resumed from \S+ at iter (\d+)", again.text)
    identical = again.exit_codes == [0] * ranks and same(state_of(options, task), expected)
    steps = [step for step, _ in read_history(experiment(options, task))["train/loss"]]
    identical &= steps == list(range(1, STEPS + 1))
    shutil.rmtree(experiment(options, task))
    return Interruption(
        ranks, f"{how} to rank {', '.join(map(str, targets))}", int(found[0]) if found else 0,
        first.exit_codes, gone_s, identical, first.text + again.text,
    )  # fmt: skip


def suspend(options: Path, ranks: int, seed: int, stall_s: float) -> str:
    """Stop all processes of a run for longer than what follows from `stall_s`; "" if it then goes
    on and ends.

    The ranks, each with its process group, stop and wake in random orders.
    """
    rng = random.Random(seed)
    changes = (f"task=suspend-{ranks}-{seed}", "datasets.test={}", "train.total_iter=300")
    with Ranks(ranks, *odd_command(options, *changes, f"watchdog.stall_s={stall_s}")) as running:
        running.wait_for(f"Iter: {rng.randint(5, 40)},", 0, 300)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in rng.sample(running.processes, ranks):
                os.killpg(process.pid, number)
                time.sleep(rng.uniform(0, 0.5))
            if number == signal.SIGSTOP:
                time.sleep(stall_s + 6)
        result = running.wait(180)
    is_right = result.exit_codes == [0] * ranks and "StallError" not in result.text
    return "" if is_right else f"exit codes {result.exit_codes}: {result.text}"


def signal_launcher(options: Path, ranks: int, seed: int) -> tuple[int, float]:
    """launch_train.sh, sent a signal while it trains: its exit code, and the seconds until it was
    gone.
    """
    rng, task = random.Random(seed), f"launcher-{ranks}-{seed}"
    changes = (f"task={task}", "train.total_iter=1000", "datasets.test={}")
    command = [ROOT / "launch_train.sh", str(ranks), options, *changes]
    with tempfile.NamedTemporaryFile() as log, started(command, Path(log.name)) as process:
        wait_for(Path(log.name), f"Iter: {rng.randint(1, 4)},", 300)
        process.send_signal((signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)[seed % 3])
        struck = time.monotonic()
        code = process.wait(120)
    shutil.rmtree(experiment(options, task))
    return code, time.monotonic() - struck


def restart_of_one_agent(limit_s: float = 120) -> str:
    """What went wrong, or '': rank 1 dies before it meets rank 0, and both must find each other
    after one restart.

    The agent whose rank dies counts a restart; the other one, whose rank waits for it, follows and
    counts none.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"agent{i}.log" for i in range(2)]
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1",
            "--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
            "--rdzv-id=elastic", "tests/dist/helpers_worker.py", "second_life", f"{folder}/mark",
        ]  # fmt: skip
        with started(command, logs[0]) as first, started(command, logs[1]) as second:
            try:
                codes: object = [agent.wait(limit_s) for agent in (first, second)]
            except subprocess.TimeoutExpired:
                codes = f"still running after {limit_s:g} s"
        text = "".join(log.read_text(errors="replace") for log in logs)
    lives = sorted(re.findall(r"second life of rank (\d)", text))
    return "" if codes == [0, 0] and lives == ["0", "1"] else f"exit codes {codes}: {text[-2000:]}"

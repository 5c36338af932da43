"""Strikes the real training at a random moment, then lets the same command finish the run.

    interrupt             sends SIGKILL or a signal of a scheduler, and compares the final weights
    suspend               stops all processes (SIGSTOP) for longer than the watchdog waits
    signal_launcher       sends a signal to launch_train.sh
    restart_of_one_agent  lets a rank die before the ranks have met, under torchrun

Each trial draws its moment and the struck ranks ("victims") from a seed. So a seed always strikes
the same ranks in the same step. tests/faults/trials.py runs many trials, and
tests/faults/test_interruptions.py runs a few. These tests name the victims of their seeds. So if
you add a random draw, it must come after the present draws.
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

from tests.dist.launching import (
    ROOT,
    RankResult,
    Ranks,
    free_port,
    run_ranks,
    start_command,
    wait_for,
)
from tests.helpers.train_files import (
    MAIN,
    equal_checkpoints,
    folder_of_run,
    odd_command,
    state_of,
    write_odd_options,
    write_options,
)
from utils.run.history import read_history

STEPS = 6  # steps of an interrupted run
NO_TEST = "datasets.test={}"
# Options of an interrupted run. The start after the interruption continues at the last saved step.
SAVE_EACH_STEP = ("train.checkpoint_save=1", f"train.total_iter={STEPS}", NO_TEST)
START_S = 300  # longest time of a start, on a busy machine


@dataclass
class Interruption:
    """How a run was interrupted, and how it ended.

    ranks: number of ranks.
    interrupted_by: signal and ranks, e.g. "SIGTERM to rank 0, 1".
    at_iter: step at which the second start continued, or 0 if there was no checkpoint yet.
    exit_codes: exit codes of the ranks of the first start.
    gone_s: seconds from the signal until all ranks had ended.
    identical: whether the final state has the same bits as after an uninterrupted run, and the
        history has each step once.
    text: output of both starts.
    """

    ranks: int
    interrupted_by: str
    at_iter: int
    exit_codes: list[int]
    gone_s: float
    identical: bool
    text: str


def training(options: Path, *arguments: str) -> tuple[str, ...]:
    """Return the command that trains the network of an option file.

    The network "odd" is not part of the project, so another program trains it.
    """
    if '"net_type": "odd"' in options.read_text():
        return odd_command(options, *arguments)
    return (MAIN, "--opt", str(options), *arguments)


@cache
def state_without_interruption(ranks: int, is_odd: bool = False) -> dict[str, Any]:
    """Return the last checkpoint of a run that was never interrupted.

    All trials with this number of ranks are compared with one such run. is_odd: whether the network
    is "odd" (tests/dist/odd_worker.py). "odd" is much faster than a tiny VRT.
    """
    write = write_odd_options if is_odd else write_options
    with tempfile.TemporaryDirectory() as folder:
        options = write(Path(folder))
        result = run_ranks(ranks, *training(options, *SAVE_EACH_STEP), limit_s=START_S)
        assert result.exit_codes == [0] * ranks, result.text
        return state_of(options)


def interrupt(
    options: Path, ranks: int, how: str, seed: int, expected: dict[str, Any]
) -> Interruption:
    """Strike a new run once, at a random moment, and start it again to let it finish.

    options: the option file. ranks: number of ranks.
    how: "kill" sends SIGKILL to a random rank. "SIGTERM", "SIGUSR1" or "SIGHUP" goes to a random
    rank or to all ranks.
    seed: decides the moment and the ranks. expected: the final state of a run without interruption.
    """
    rng = random.Random(seed)
    task = f"{how}-{ranks}-{seed}"
    number = signal.SIGKILL if how == "kill" else getattr(signal, how)

    command = training(options, f"task={task}", *SAVE_EACH_STEP)
    with Ranks(ranks, *command) as running:
        wait_for_random_moment(running, rng)
        victims = struck_ranks(rng, ranks, how)
        send_signal(running, victims, number)
        struck_at = time.monotonic()
        first = running.wait(limit_s=120)
    gone_s = time.monotonic() - struck_at

    # Repeat the command. If the first start has saved nothing, the run begins anew.
    second: RankResult = run_ranks(ranks, *command, limit_s=START_S)
    resumed_at = re.findall(r"resumed from \S+ at iter (\d+)", second.text)
    trained_steps = [step for step, _ in read_history(folder_of_run(options, task))["train/loss"]]
    has_finished = second.exit_codes == [0] * ranks
    has_same_state = has_finished and equal_checkpoints(state_of(options, task), expected)
    has_each_step_once = trained_steps == list(range(1, STEPS + 1))
    shutil.rmtree(folder_of_run(options, task))
    return Interruption(
        ranks=ranks,
        interrupted_by=f"{how} to rank {', '.join(str(rank) for rank in victims)}",
        at_iter=int(resumed_at[0]) if resumed_at else 0,
        exit_codes=first.exit_codes,
        gone_s=gone_s,
        identical=has_same_state and has_each_step_once,
        text=first.text + second.text,
    )


def wait_for_random_moment(running: Ranks, rng: random.Random) -> None:
    """Wait until up to 0.3 s after a step, or after the start of the training (step 0)."""
    # The last steps are left out, because the run would already end when the signal comes.
    step = rng.randint(0, STEPS - 3)
    words = "starting at iter 0 of" if step == 0 else f"Iter: {step},"
    running.wait_for(words, rank=0, limit_s=START_S)
    time.sleep(rng.uniform(0, 0.3))


def struck_ranks(rng: random.Random, ranks: int, how: str) -> list[int]:
    """Draw the ranks to strike: one rank for SIGKILL, and one or all ranks for other signals."""
    if how == "kill" or rng.random() < 0.5:
        return [rng.randrange(ranks)]
    return list(range(ranks))


def send_signal(running: Ranks, victims: list[int], number: int) -> None:
    """Send a signal to one rank, or to all ranks. number: number of the signal."""
    for rank in victims:
        pid = running.processes[rank].pid
        if len(victims) == 1:
            os.kill(pid, number)
        else:
            # As torchrun does, send the signal to the whole process group of each rank.
            os.killpg(pid, number)


def suspend(options: Path, ranks: int, seed: int, stall_s: float) -> str:
    """Stop all processes of a run for longer than the limits of `stall_s` allow, then wake them.

    Each rank stops and wakes together with its process group. The order of the ranks is random.
    Returns "" if the run continues and finishes, else what went wrong.
    """
    rng = random.Random(seed)
    task = f"task=suspend-{ranks}-{seed}"
    changes = (task, NO_TEST, "train.total_iter=300", f"watchdog.stall_s={stall_s}")
    with Ranks(ranks, *odd_command(options, *changes)) as running:
        running.wait_for(f"Iter: {rng.randint(5, 40)},", 0, START_S)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in rng.sample(running.processes, ranks):
                os.killpg(process.pid, number)
                time.sleep(rng.uniform(0, 0.5))
            if number == signal.SIGSTOP:
                time.sleep(stall_s + 6)  # the 6 s beyond the limit were chosen by hand
        result = running.wait(limit_s=180)
    if result.exit_codes == [0] * ranks and "StallError" not in result.text:
        return ""
    return f"exit codes {result.exit_codes}: {result.text}"


def signal_launcher(options: Path, ranks: int, seed: int) -> tuple[int, float]:
    """Send a signal to launch_train.sh while it trains.

    Returns the exit code of the script, and the seconds until it had ended.
    """
    rng = random.Random(seed)
    task = f"launcher-{ranks}-{seed}"
    changes = (f"task={task}", "train.total_iter=1000", NO_TEST)
    command = [ROOT / "launch_train.sh", str(ranks), options, *changes]
    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    with tempfile.NamedTemporaryFile() as log, start_command(command, Path(log.name)) as process:
        wait_for(Path(log.name), f"Iter: {rng.randint(1, 4)},", START_S)
        process.send_signal(signals[seed % len(signals)])
        struck_at = time.monotonic()
        code = process.wait(120)
    shutil.rmtree(folder_of_run(options, task))
    return code, time.monotonic() - struck_at


def restart_of_one_agent(limit_s: float = 120) -> str:
    """Let rank 1 die before it meets rank 0, under torchrun with one restart.

    Two torchruns ("agents") have one rank each. When rank 1 dies, its agent starts rank 1 anew and
    counts a restart. Rank 0 still waits at this time. Its agent starts rank 0 anew, too, but counts
    no restart.

    Returns "" if both ranks find each other in their second life, else what went wrong.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"agent{number}.log" for number in range(2)]
        agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"]
        # The address at which the agents meet ("rendezvous").
        meeting = [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d", "--rdzv-id=elastic"]
        worker = ["tests/dist/helpers_worker.py", "second_life", f"{folder}/mark"]
        command = [*agent, "--max-restarts=1", *meeting, *worker]
        codes: object  # exit codes of both agents, or that they still run
        with start_command(command, logs[0]) as first, start_command(command, logs[1]) as second:
            try:
                codes = [first.wait(limit_s), second.wait(limit_s)]
            except subprocess.TimeoutExpired:
                codes = f"still running after {limit_s:g} s"
        text = "".join(log.read_text(errors="replace") for log in logs)
    ranks_of_second_life = sorted(re.findall(r"second life of rank (\d)", text))
    if codes == [0, 0] and ranks_of_second_life == ["0", "1"]:
        return ""
    return f"exit codes {codes}: {text[-2000:]}"

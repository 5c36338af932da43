"""Two agents of torchrun on this machine, of which one alone restarts its rank."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.dist.launching import free_port, started


def restart_of_one_agent(limit_s: float = 120) -> str:
    """What went wrong, or '': rank 1 dies before it meets rank 0, and both must find each other after one restart.

    The agent whose rank dies counts a restart; the other one, whose rank waits for it, follows and counts none.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"agent{i}.log" for i in range(2)]
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", "--max-restarts=1",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic",
            "tests/dist/helpers_worker.py", "second_life", f"{folder}/mark",
        ]  # fmt: skip
        with started(command, logs[0]) as first, started(command, logs[1]) as second:
            try:
                codes: object = [agent.wait(limit_s) for agent in (first, second)]
            except subprocess.TimeoutExpired:
                codes = f"still running after {limit_s:g} s"
        text = "".join(log.read_text(errors="replace") for log in logs)
    lives = sorted(re.findall(r"second life of rank (\d)", text))
    return "" if codes == [0, 0] and lives == ["0", "1"] else f"exit codes {codes}: {text[-2000:]}"

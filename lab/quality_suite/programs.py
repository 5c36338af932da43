"""Run a program of the project in a process of its own.

What must stay: the process ends if this one ends, so that a stopped comparison leaves no training
behind. Free to change: where its output goes.
"""

import os
import subprocess
import sys
from pathlib import Path

from lab.tools import ROOT
from utils.dist.process import die_with_parent


def call(program: str, *arguments: str, out: Path, name: str) -> None:
    """Run a program of the project, and wait. It is ended if this process ends.

    What the program prints goes to <out>/logs/<name>.txt. If it fails, this program ends, too.
    """
    log = out / "logs" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Each line is in the log at once, so that one can follow the program.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=die_with_parent,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{program} of {name} ended with exit code {done.returncode}: see {log}")

"""Run a program of the project in a process of its own.

What must stay: the started process ends if this process ends, so that a stopped comparison leaves
no training behind. Free to change: where the output of the program goes.
"""

import os
import subprocess
import sys
from pathlib import Path

from lab.tools import ROOT
from utils.dist.process import die_with_parent


def call(program: str, *arguments: str, out: Path, name: str) -> None:
    """Run a program of the project, and wait. If this process ends, the program is ended, too.

    The output of the program goes to <out>/logs/<name>.txt. If the program fails, this process
    ends.
    """
    log = out / "logs" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Python writes each line at once, so the log shows how far the program is.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=die_with_parent,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{program} of {name} ended with exit code {done.returncode}: see {log}")

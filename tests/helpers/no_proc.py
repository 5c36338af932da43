"""Imitates a system that does not show its processes in /proc, such as macOS.

A command that begins with PREFIX runs in a mount namespace, in which it sees other files than the
rest of the machine. In place of /proc, it sees a folder that has only cpuinfo. This file must stay,
because libraries of torch choose their arithmetic by it. tests/parts/utils/test_system.py runs
trainings in this way.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# A script that covers /proc with an empty file system, puts cpuinfo back, and runs the command,
# which are the arguments of the script ("$@").
HIDE = """
info=$(mktemp) && cp /proc/cpuinfo "$info" && mount -t tmpfs none /proc &&
mv "$info" /proc/cpuinfo && exec "$@"
"""
PREFIX = ("unshare", "--mount", "sh", "-c", HIDE, "sh")


def reason_to_skip() -> str:
    """Return why this machine allows no such namespace, or "" if it does."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "needs root and unshare"
    look = [*PREFIX, sys.executable, "-c", "import os; assert os.listdir('/proc') == ['cpuinfo']"]
    done = subprocess.run(look, capture_output=True, check=False)
    return "" if done.returncode == 0 else "mount namespaces are not allowed"


def write_spawning_path(folder: Path) -> str:
    """Return a PYTHONPATH with which multiprocessing starts processes by spawn, as on macOS.

    Python runs a file sitecustomize.py on this path at its start.

    folder: where this file is written.
    """
    line = "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
    (folder / "sitecustomize.py").write_text(line)
    return f"{folder}:{Path(__file__).parents[2]}"

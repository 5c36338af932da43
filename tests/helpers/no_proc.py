"""A system that does not show its processes in /proc, as macOS: a mount namespace with none in it.

Only cpuinfo stays, by which libraries of torch choose their arithmetic.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HIDE = """
info=$(mktemp) && cp /proc/cpuinfo "$info" && mount -t tmpfs none /proc &&
mv "$info" /proc/cpuinfo && exec "$@"
"""
PREFIX = ("unshare", "--mount", "sh", "-c", HIDE, "sh")


def missing() -> str:
    """Why there can be no such namespace here, or ''."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "needs root and unshare"
    look = [*PREFIX, sys.executable, "-c", "import os; assert os.listdir('/proc') == ['cpuinfo']"]
    done = subprocess.run(look, capture_output=True, check=False)
    return "" if done.returncode == 0 else "mount namespaces are not allowed"


def spawning(folder: Path) -> str:
    """A PYTHONPATH with which multiprocessing starts processes by spawn, as on macOS."""
    line = "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
    (folder / "sitecustomize.py").write_text(line)
    return f"{folder}:{Path(__file__).parents[2]}"

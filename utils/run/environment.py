"""What a run was started with: command, versions, device. For its report; written anew at each start that trains."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from utils import utils_dist
from utils.dist.gpu import device_name
from utils.files import write_own
from utils.options.file import shown_argument
from utils.run.logger import best_effort
from utils.run.report import ENVIRONMENT_NAME, environment_of

ROOT = Path(__file__).resolve().parents[2]


def write_environment(folder: Path) -> None:
    """folder/environment.json, on rank 0."""
    if not utils_dist.is_main_process():
        return
    device = utils_dist.get_device()
    values = {
        "command": " ".join(map(shown_argument, sys.argv)),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda if device.type == "cuda" else None,
        "device": device_name(device),
        "ranks": utils_dist.get_world_size(),
    }
    known = {name: value for name, value in values.items() if value is not None}
    path = folder / ENVIRONMENT_NAME
    with best_effort(str(path)):
        write_own(path, f"{json.dumps(known, indent=2)}\n".encode(), lambda path: bool(environment_of(path)))


def commit() -> str | None:
    """The commit of this program, with "-dirty" where files differ from it; None without git or a repository."""
    # Without the ceiling, git would name the commit of a repository that this folder happens to lie in.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(ROOT.parent), "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=True)
        return found.stdout.strip()
    return None

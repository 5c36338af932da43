"""Write environment.json into the folder of a run: command, versions, device and size.

The report of the run (utils/run/report.py) shows all entries, and scripts/compare_runs.py shows
"parameters". Free to change: a new entry may be added.

Test: test_the_page_of_a_run_shows_its_scores (tests/parts/utils/test_results.py).
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from utils import VERSION, utils_dist
from utils import device as devices
from utils.dist import gpu
from utils.files import write_whole
from utils.logger import best_effort
from utils.options.override import argument_without_secrets
from utils.run import report


def write_environment(folder: Path, parameters: int) -> None:
    """Write environment.json into the folder of a run, for its report. Only rank 0 calls this.

    The file tells command, versions, device and size of the last start that trained, e.g.
    {"command": "main_train_vrt.py --opt ...", "torch": "2.8.0", "parameters": "18.32 M", ...}. A
    start that finds the run finished does not write it.

    parameters: number of parameters of the network.
    """
    device = utils_dist.get_device()
    values = {
        "command": " ".join(map(argument_without_secrets, sys.argv)),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "SpikeVRT": VERSION,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "CUDA": torch.version.cuda if gpu.is_cuda(device) else None,
        "device": devices.name(device),
        "ranks": utils_dist.get_world_size(),
        "parameters": f"{parameters / 1e6:.2f} M",
    }
    path = folder / report.ENVIRONMENT_NAME
    with best_effort(str(path)):
        # Leave out a value of None. "CUDA" is None without a CUDA GPU, and "commit" without git.
        known_values = {name: value for name, value in values.items() if value is not None}
        write_whole(path, f"{json.dumps(known_values, indent=2)}\n".encode())


# The folder of this program.
ROOT = Path(__file__).resolve().parents[2]


def _commit() -> str | None:
    """Return the git commit of this program, with "-dirty" if files were changed, e.g. "47c71ae".

    Returns None if there is no git, or if the program lies in no repository.
    """
    environment = {
        **os.environ,
        # Let git look for a repository only in the folder of this program. In a folder above, git
        # could find another repository, and would name the commit of the other repository.
        "GIT_CEILING_DIRECTORIES": str(ROOT.parent),
        # Let git take no lock, because somebody may be working in the repository.
        "GIT_OPTIONAL_LOCKS": "0",
    }
    # With --exclude=* git ignores all tags, so it names the commit. After 10 s (chosen by hand),
    # the commit counts as unknown.
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None

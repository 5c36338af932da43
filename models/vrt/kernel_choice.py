"""Which kernels "auto" takes on a GPU: those that a measurement on this very machine found right and faster.

`scripts/gpu_check.py kernels` measures and writes the file; without it, on another GPU or after an update of
torch, Triton or the kernels, "auto" stays with the plain form.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import torch

from utils.dist.gpu import device_name
from utils.errors import DataError
from utils.files import write_whole

Kernel = Literal["attention", "deform_conv", "mlp", "rows"]
Form = Literal["plain", "triton"]

logger = logging.getLogger(__name__)


def read_choice(kernel: Kernel, device: torch.device) -> Form:
    """The form that was chosen for `kernel` on this machine; "plain" where none was, or where it cannot be read."""
    return _choices(device).get(kernel, "plain")


def write_choice(choice: Mapping[Kernel, Form], device: torch.device) -> Path:
    """Note the forms that were found best on this machine; returns the file. Other entries of the file stay.

    For processes that start later: one that has read its choice keeps it. Raises DataError where the file is not one of
    these, or cannot be written.
    """
    try:
        path = choice_file()
        entries = _read(path)
    except (OSError, RuntimeError, ValueError) as e:
        raise DataError(
            "the choice of kernels cannot be noted", str(e), "a file that read_choice can read, or none",
            "move the file away, or set XDG_CACHE_HOME to a folder of yours",
        ) from e  # fmt: skip
    entries[machine_key(device)] = dict(choice)
    write_whole(path, json.dumps(entries, indent=1).encode())
    return path


def choice_file() -> Path:
    """kernels.json in the user's cache folder. Raises RuntimeError where the user has no home."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "spikevrt" / "kernels.json"


def machine_key(device: torch.device) -> str:
    """What a measurement holds for: GPU, torch, Triton, and the code of the kernels."""
    import triton  # takes a second to import, and is optional

    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("triton_*.py")))
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    return f"{device_name(device)}, {versions}, kernels {hashlib.sha256(code).hexdigest()[:12]}"


@cache
def _choices(device: torch.device) -> dict[Kernel, Form]:
    """The entry of this machine. Read once: the kernels must not change in the middle of a run."""
    try:
        entries = _read(choice_file())
        return entries.get(machine_key(device), {}) if entries else {}
    except ImportError:  # of Triton
        return {}
    except (OSError, RuntimeError, ValueError) as e:
        logger.warning("the kernels that were measured on this machine cannot be read (%s); the plain form runs", e)
        return {}


def _read(path: Path) -> dict[str, dict[Kernel, Form]]:
    """The entries of the file, {} if there is none. Raises OSError or ValueError."""
    try:
        entries = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from e
    is_ours = isinstance(entries, dict) and all(
        isinstance(entry, dict) and all(_is_choice(*item) for item in entry.items()) for entry in entries.values()
    )
    if not is_ours:
        raise ValueError(f"{path}: not {{machine: {{kernel: form}}}}")
    return entries


def _is_choice(kernel: str, form: object) -> bool:
    return kernel in get_args(Kernel) and form in get_args(Form)

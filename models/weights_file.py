"""Read the tensors of a weights file, by name.

`read_weights` takes the path of a file that torch.save wrote, in this project or another one, and
returns its state dict. foreign_weights.py reads the file itself, and accepts only plain types.
loading.py loads the tensors into a network, and portable.py finds the network that they belong to.

What must stay: CONTAINERS, the keys by which published files are read. `refuse_odd_tensors`, which
refuses sparse and quantized tensors, must be called before the tensors are returned
(tests/parts/models/test_hostile_weights.py). Free to change: the texts of errors.

Tests: tests/parts/models/test_weights.py, test_any_weights.py, test_foreign_weights.py
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from models.foreign_weights import load_content
from models.untrusted_weights import refuse_odd_tensors
from utils.errors import CheckpointError, address_of

# Keys under which published files and ours hold the state dict. `read_weights` first looks for its
# argument `prefer`, and then for these keys in this order. E.g. a checkpoint has the keys
# "model_state_dict" and "ema_state_dict" (averaged weights). With prefer="ema_state_dict" the
# result is the averaged weights. With the default, it is the normal weights. A file may also be a
# state dict itself.
CONTAINERS = ("params_ema", "params", "model_state_dict", "state_dict")


def read_weights(
    path: str | Path, prefer: str = "params", key: str = "the path"
) -> dict[str, Tensor]:
    """Return the state dict in a weights file, on the CPU.

    The file is a state dict, or holds it under one of the keys CONTAINERS.

    prefer: the key of the file to take if the file has several.
    key: the option that names the file, e.g. "--weights", for the error.

    Raises CheckpointError if the file is missing or holds no weights.
    """
    path = Path(path)
    return tensors_in(read_content(path, key), path, prefer)


def read_content(path: Path, key: str) -> Any:
    """Return all that is in a weights file, with tensors on the CPU.

    key: the option that names the file, e.g. "--weights", for the error.

    Raises CheckpointError if the file is missing or torch.save did not write it.
    """
    if not path.is_file():
        raise CheckpointError(
            what="there is no such weights file",
            where=str(path),
            expected="an existing file",
            # `address_of` adds where to download the file, if it is a published one.
            do=f"correct {key}{address_of(path)}",
        )
    return load_content(path)


def tensors_in(content: Any, path: Path, prefer: str = "params") -> dict[str, Tensor]:
    """Return the state dict in the content of the weights file `path`.

    prefer: the key to take if the content has several of the keys CONTAINERS.

    Raises CheckpointError if there is no state dict.
    """
    # If the file holds its state dict under a key, take what is under the first key that the file
    # has.
    if isinstance(content, dict):
        for name in (prefer, *CONTAINERS):
            if isinstance(content.get(name), dict):
                content = content[name]
                break
    if not _is_state_dict(content):
        what = f"a {type(content).__name__}"
        if isinstance(content, dict):
            keys = sorted(str(name) for name in content)
            what += f" with the keys {keys[:5]}"  # five keys are enough to recognise the file
        raise CheckpointError(
            what=f"the file holds {what} instead of a state dict",
            where=str(path),
            expected=f"tensors by name, directly or under {', '.join(CONTAINERS)}",
            do="choose another file",
        )
    refuse_odd_tensors(content, path)
    return {without_wrappers(name): tensor for name, tensor in content.items()}


def _is_state_dict(content: Any) -> bool:
    """Return whether `content` is a table of tensors by name, and not empty."""
    if not isinstance(content, dict) or not content:
        return False
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            return False
    return True


def without_wrappers(name: str) -> str:
    """Return the name of a tensor without what DataParallel and torch.compile add to it.

    E.g. "module._orig_mod.conv_first.weight" -> "conv_first.weight".
    """
    return name.replace("_orig_mod.", "").removeprefix("module.")

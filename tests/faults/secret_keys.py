"""Keys of Weights & Biases that must not be found in anything that a run writes.

They are made up, and have the length of real keys. A test gives KEY in the environment (ENV) and
KEY_OF_OPTIONS in the options (SECRET), and then looks for both.
"""

from pathlib import Path

KEY = "0123456789abcdef0123456789abcdef01canary"
KEY_OF_OPTIONS = "fedcba9876543210fedcba9876543210canary10"
SECRET = f"logging.wandb_api_key={KEY_OF_OPTIONS}"
ENV = {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"}


def files_with_a_key(folder: Path) -> list[Path]:
    """Return the files below a folder that hold one of the keys."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [
        path
        for path in files
        if any(key.encode() in path.read_bytes() for key in (KEY, KEY_OF_OPTIONS))
    ]

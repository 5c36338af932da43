"""Keys of Weights & Biases that must not be found in anything that a run writes.

The keys are made up, and have the length of real keys. A test runs with both keys: one is in the
environment (ENV_WITH_SECRET), and the other in the options (OPTION_WITH_SECRET). Then the test
looks for both keys in all that the run wrote.
"""

from pathlib import Path

SECRET_IN_ENV = "0123456789abcdef0123456789abcdef01canary"
SECRET_IN_OPTIONS = "fedcba9876543210fedcba9876543210canary10"
OPTION_WITH_SECRET = f"logging.wandb_api_key={SECRET_IN_OPTIONS}"
ENV_WITH_SECRET = {"WANDB_API_KEY": SECRET_IN_ENV, "WANDB_MODE": "offline"}


def files_with_a_secret(folder: Path) -> list[Path]:
    """Return the files below a folder that hold one of the keys."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files  # an empty folder would show nothing about a run
    found = []
    for path in files:
        content = path.read_bytes()
        if SECRET_IN_ENV.encode() in content or SECRET_IN_OPTIONS.encode() in content:
            found.append(path)
    return found

"""Ctrl-C as on a terminal; a browser; and the long files begin first, or one worker would end long
after the others.
"""

import gc
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dist.fork_server import fork_server
from tests.helpers.pages import headless_browser

# In the background of a shell script it is ignored, and so it would be in the programs that the
# tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest holds a million objects, and Python would search them again and again.
gc.set_threshold(100_000)
# Files that wait, for SLURM or for limits of time, beside those that compute.
LONG = (
    "test_slurm", "test_torchrun", "test_network_vrt", "test_lab", "test_fake_gpu",
    "test_main_test", "test_kair_files", "test_gradients", "test_main_train", "test_stalls",
    "test_fit_memory", "test_weights", "test_startup", "test_history", "test_interruptions",
    "test_changed_resume", "test_process", "test_dist",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        fork_server()  # one for all workers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all pages that a worker looks at."""
    with headless_browser() as driver:
        yield driver

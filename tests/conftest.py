"""Settings of pytest that all tests share: Ctrl-C, the garbage collector, one process that starts
the ranks, one browser, and the order in which the test files begin.
"""

import gc
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dist.fork_server import fork_server
from tests.helpers.pages import headless_browser

# A shell script that starts pytest in the background makes it ignore Ctrl-C (SIGINT). The programs
# that the tests start would inherit this, and the tests of Ctrl-C would fail. So restore Python's
# own handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest holds a million objects. With the default of 700 new objects between two collections,
# Python would search them again and again.
gc.set_threshold(100_000)

# Test files in the order in which they begin. Several workers (`make test` has four) take a file
# each. A long file that begins last would keep one worker busy long after the others have ended.
# Files that mostly wait, for SLURM or for a time-out, stand beside files that compute. Otherwise
# the file with most processor time is first: test_torchrun takes 75 s, test_dist 12 s (busy cores).
LONG_FILES = (
    "test_slurm",
    "test_torchrun",
    "test_main_test",
    "test_interruptions",
    "test_kair_files",
    "test_main_train",
    "test_network_vrt",
    "test_life",
    "test_stalls",
    "test_weights",
    "test_coming_from",
    "test_startup",
    "test_changed_resume",
    "test_hostile_options",
    "test_health",
    "test_gradients",
    "test_fit_memory",
    "test_process",
    "test_disk_full",
    "test_launch",
    "test_any_bytes",
    "test_cpu_memory",
    "test_steps",
    "test_triton",
    "test_quality_command",
    "test_lab",
    "test_fake_gpu",
    "test_history",
    "test_dist",
)


def pytest_configure(config: pytest.Config) -> None:
    """Start one fork server for all workers, if pytest runs with workers (-n).

    The fork server is a process that has imported torch already. It forks a rank in milliseconds
    instead of seconds.
    """
    has_workers = getattr(config.option, "dist", "no") != "no"
    is_worker = hasattr(config, "workerinput")
    if has_workers and not is_worker:
        fork_server()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of LONG_FILES to the front, in the order of LONG_FILES."""

    def place(item: pytest.Item) -> int:
        name = item.path.stem
        if name in LONG_FILES:
            return LONG_FILES.index(name)
        return len(LONG_FILES)

    items.sort(key=place)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Give one browser, which all tests of a worker share."""
    with headless_browser() as driver:
        yield driver

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

# pytest holds a million objects. With the default of 700 new objects between two searches for
# garbage, Python would search them again and again. While pytest collects the tests, nearly nothing
# is garbage (see pytest_collection_finish).
gc.set_threshold(100_000)
gc.disable()

# Test files in the order in which they begin. Several workers (`make test` has four) take a file
# each. A long file that begins last would keep one worker busy long after the others have ended. So
# these are all files that take 8 s or more, about the longest first. test_main_test takes 45 s of a
# core, test_documents 8 s. Files that mostly wait for a time-out (test_stalls, test_startup,
# test_dist, test_life, test_trust) stand between files that compute, so that the cores are never
# without work. test_slurm waits longest, three minutes in `make slow`, so it begins first. A name
# stands for all files of this name.
LONG_FILES = (
    "test_slurm",
    "test_main_test",
    "test_stalls",
    "test_kair_files",
    "test_startup",
    "test_network_vrt",
    "test_main_train",
    "test_dist",
    "test_torchrun",
    "test_weights",
    "test_life",
    "test_self_calibration",
    "test_trust",
    "test_kept",
    "test_motion_weights",
    "test_launch",
    "test_system",
    "test_changed_resume",
    "test_steps",
    "test_interruptions",
    "test_gradients",
    "test_joint",
    "test_shutter",
    "test_equations",
    "test_disk_full",
    "test_flow",
    "test_fit_memory",
    "test_protocols",
    "test_cpu_memory",
    "test_published_streams",
    "test_scale",
    "test_resume",
    "test_vrt_curve",
    "test_coming_from",
    "test_foreign_files",
    "test_spike_simulate",
    "test_health",
    "test_two_cameras",
    "test_spike_tool",
    "test_process",
    "test_released",
    "test_checkpoint",
    "test_sample_data",
    "test_uploaded_clip",
    "test_documents",
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


def pytest_collection_finish() -> None:
    """Leave the objects that exist before the first test out of all later searches for garbage.

    They live until the end. A search of them takes a third of a second or more, in tests that ask
    for it, in their loader processes, and several times when pytest ends: in all 4 seconds of a
    core of each worker.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Give one browser, which all tests of a worker share."""
    with headless_browser() as driver:
        yield driver

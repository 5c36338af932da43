"""Settings of pytest that all tests share: Ctrl-C, the garbage collector, one process that starts
the ranks, one browser, and the order in which the test files begin.

pytest finds the functions pytest_... by their names and calls each at its moment, e.g.
pytest_collection_finish after all tests have been found.
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

# By default, Python searches its objects for garbage after each 700 new objects. pytest holds a
# million objects, so these searches would take long. 100,000 in place of 700 makes them rare. While
# pytest finds the tests, nearly nothing is garbage, so there are no searches at all until
# pytest_collection_finish.
gc.set_threshold(100_000)
gc.disable()

# Test files in the order in which they begin. pytest has several worker processes (four in `make
# test`), and each worker runs one file at a time. A long file that begins last would keep one
# worker busy long after the other workers have ended. So this list has all files that take 8 s of a
# core or more. Three rules give their order:
#
#     1. test_slurm is first. It waits longest, three minutes in `make slow`.
#     2. The other files follow, roughly the longest first: test_main_test takes 45 s,
#        test_documents takes 8 s.
#     3. Files that mostly wait for a time-out stand between files that compute, so that the cores
#        are never without work: test_stalls, test_startup, test_dist, test_life and test_trust.
#
# If files in several folders have the same name, the name stands for all of them.
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
    """Move the tests of LONG_FILES to the front, in the order of LONG_FILES.

    Tests of the same file, and of all files that LONG_FILES does not name, keep their order.
    """

    def place(item: pytest.Item) -> int:
        name = item.path.stem
        if name in LONG_FILES:
            return LONG_FILES.index(name)
        return len(LONG_FILES)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Exclude all objects that exist before the first test from later searches for garbage.

    These objects live until pytest ends, so a search finds no garbage among them. But each search
    would take a third of a second or more. Searches are made

        in tests that call gc.collect,
        in the loader processes of tests, and
        several times when pytest ends.

    Together these searches would take 4 seconds of a core in each worker.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Give one browser, which all tests of a worker share."""
    with headless_browser() as driver:
        yield driver

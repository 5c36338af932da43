"""utils/system.py: a process can keep the memory that it has freed, or give it back."""

import os
import platform
import subprocess
import sys

import pytest

from tests.dist.launching import ROOT

# This program makes and frees three arrays of 16 MB twenty times. It prints how many pages of
# memory the system has given for the arrays after the first time. If the process keeps freed
# memory, it uses the pages of the first time again.
PROGRAM = """
import resource
import sys

import numpy as np

from utils.system import keep_freed_memory


def pages_so_far():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if "keep" in sys.argv:
    keep_freed_memory()
for number in range(20):
    if number == 1:
        pages_of_first_time = pages_so_far()
    arrays = [np.ones(4_000_000, np.float32) for _ in range(3)]
    del arrays
print(pages_so_far() - pages_of_first_time)
"""

# This program keeps freed memory, and frees some arrays of 16 MB. An array that is made later
# stays. So the freed memory is not at the end of the memory of the process, where giving it back
# would be easy. The program prints by how many MB the process is smaller after it has given the
# memory back. Linux counts the memory of a process in pages of 4096 bytes.
GIVING_PROGRAM = """
import sys

import numpy as np

from utils.system import PROC, give_back_much_freed_memory, keep_freed_memory


def resident_mb():
    return int((PROC / "self/statm").read_text().split()[1]) * 4096 / 1e6


keep_freed_memory()
arrays = [np.ones(4_000_000, np.float32) for _ in range(int(sys.argv[1]))]
last = np.ones(4_000_000, np.float32)
del arrays
before = resident_mb()
give_back_much_freed_memory()
print(round(before - resident_mb()))
"""


def pages_given(*arguments: str) -> int:
    """Run PROGRAM, and return the number that it prints."""
    return number_of(PROGRAM, *arguments)


def number_of(program: str, *arguments: str) -> int:
    """Run a program, and return the number that it prints."""
    command = [sys.executable, "-c", program, *arguments]
    # `make test` sets variables MALLOC_... They ask glibc to keep memory. Leave these variables
    # out, so that glibc keeps memory only if the program asks for it.
    variables = {name: value for name, value in os.environ.items() if "MALLOC_" not in name}
    return int(subprocess.check_output(command, cwd=ROOT, env=variables, text=True))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_the_system_gives_no_memory_anew_if_freed_memory_is_kept():
    # Each time, the three arrays (48 MB) take 12,000 pages of 4 kB, or 24 pages of 2 MB. The limit
    # is a ratio, because it holds for both sizes of a page.
    assert pages_given("keep") < pages_given() / 5


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these functions")
@pytest.mark.parametrize(
    ("arrays", "least_mb", "most_mb"),
    [
        pytest.param("30", 400, 490, id="much: 480 MB"),
        pytest.param("3", 0, 5, id="little: 48 MB"),
    ],
)
def test_much_freed_memory_is_given_back_and_little_is_kept(arrays, least_mb, most_mb):
    assert least_mb <= number_of(GIVING_PROGRAM, arrays) <= most_mb

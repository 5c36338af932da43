"""Call a function in a process of its own that may take a gigabyte and two seconds at most.

Tests of hostile files use it: a small file must not make a reader take all memory, or run for
hours.

    tests/helpers/limited.py MODULE FUNCTION ARGUMENT ...

This program prints a `CallResult` as JSON. Its process is a fork of one that has imported torch
(tests/dist/fork_server.py), so it starts within milliseconds.
"""

import importlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.dist.launching import run_ranks

PROGRAM = "tests/helpers/limited.py"
# The limits of a call, chosen by hand. The memory is what the call takes beyond the memory that the
# process has after the import of its modules.
MOST_MB = 1024
MOST_SECONDS = 2.0
# On a busy machine, a process may wait this number of times as long as it computes.
PATIENCE = 5


class CallResult(NamedTuple):
    """How a call ended, and what it took."""

    error: str  # name of the exception's class; "" if the function returned
    text: str  # text of the exception
    seconds: float
    mb: float  # memory beyond what the process had before the call, in MB


def call_limited(function: str, *arguments: object) -> CallResult:
    """Call a function of the project. Fails if the call takes too much memory or time.

    function: its dotted name, e.g. "utils.image.imread_rgb".
    arguments: its arguments. They go through a command line, so the function gets texts.
    """
    module, _, name = function.rpartition(".")
    # The call may take PATIENCE * MOST_SECONDS = 10 s. The remaining 14 s are for the imports.
    done = run_ranks(1, PROGRAM, module, name, *map(str, arguments), limit_s=24)
    assert done.exit_codes == [0], done.text
    ended = CallResult(**done.json)
    assert ended.error != "MemoryError", ended
    assert ended.seconds < MOST_SECONDS, ended
    assert ended.mb < MOST_MB, ended
    return ended


def assert_refused(function: str, *arguments: object, by: str, saying: str) -> CallResult:
    """Call a function, and check that it raises an error with all four parts.

    by: name of the error's class, e.g. "DataError".
    saying: a part of its text.
    """
    ended = call_limited(function, *arguments)
    assert ended.error == by, ended
    assert saying in ended.text, ended
    # The first part, what is wrong, has no name.
    for part in ("\n  in ", "\n  expected ", "\n  do "):
        assert part in ended.text, ended
    return ended


def _main(module: str, name: str, *arguments: str) -> None:
    """Call a function with limited memory, in this process. Print a `CallResult` as JSON.

    module, name: the module of the function, and its name in the module.
    """
    function = getattr(importlib.import_module(module), name)
    # Limit the address space: what the process has now, and MOST_MB more. The first number of
    # statm is the size of the address space in pages.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))

    mb_before = _peak_mb()
    begin = time.monotonic()
    begin_of_computing = time.process_time()
    error = text = ""
    try:
        function(*arguments)
    except Exception as e:
        error = type(e).__name__
        text = str(e)
    # Count the time in which this process computed, because it does not depend on what else the
    # machine does. But a function may also wait without computing. So the passed time counts, too,
    # divided by PATIENCE.
    computed_s = time.process_time() - begin_of_computing
    passed_s = time.monotonic() - begin
    seconds = max(computed_s, passed_s / PATIENCE)
    ended = CallResult(error, text, seconds, mb=_peak_mb() - mb_before)
    # The line break gives the result a line of its own, even if the function has printed half a
    # line.
    print("\n" + json.dumps(ended._asdict()))


def _peak_mb() -> float:
    """Return the most memory that this process has used so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    _main(*sys.argv[1:])

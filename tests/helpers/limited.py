"""Call a function in a process of its own that may not take more than a gigabyte or two seconds.

`tests/helpers/limited.py MODULE FUNCTION ARGUMENT ...` prints the result as JSON. The process is a
fork of one that has imported torch (tests/dist/fork_server.py), so it starts within milliseconds.
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
MOST_MB = 1024  # beyond what the process takes once the modules are loaded
MOST_SECONDS = 2.0
PATIENCE = 5


class Ended(NamedTuple):
    """How a call ended. error: name of the exception's class; "" if it returned. text: of it."""

    error: str
    text: str
    seconds: float
    mb: float


def call_limited(function: str, *arguments: object) -> Ended:
    """Call "module.function" of the project with texts. Fails if it takes too much."""
    module, _, name = function.rpartition(".")
    done = run_ranks(1, PROGRAM, module, name, *map(str, arguments), limit_s=24)
    assert done.exit_codes == [0], done.text
    ended = Ended(**done.json)
    assert ended.error != "MemoryError", ended
    assert ended.seconds < MOST_SECONDS, ended
    assert ended.mb < MOST_MB, ended
    return ended


def assert_refused(function: str, *arguments: object, by: str, saying: str) -> Ended:
    """Call it, and check that it raises an error of four parts. by: class. saying: a part of it."""
    ended = call_limited(function, *arguments)
    assert ended.error == by, ended
    assert saying in ended.text, ended
    for part in ("\n  in ", "\n  expected ", "\n  do "):
        assert part in ended.text, ended
    return ended


def _main(module: str, name: str, *arguments: str) -> None:
    """Call a function with limited memory, in this process. Print an `Ended` as JSON."""
    function = getattr(importlib.import_module(module), name)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    before = _peak_mb()
    begin = time.monotonic()
    start = time.process_time()
    error = text = ""
    try:
        function(*arguments)
    except Exception as e:
        error = type(e).__name__
        text = str(e)
    # The time in which this process computed. If it waits, all time counts, but on a busy machine
    # it may take PATIENCE times as long.
    seconds = max(time.process_time() - start, (time.monotonic() - begin) / PATIENCE)
    ended = Ended(error, text, seconds, _peak_mb() - before)
    print("\n" + json.dumps(ended._asdict()))


def _peak_mb() -> float:
    """Return the most memory that this process has used so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    _main(*sys.argv[1:])

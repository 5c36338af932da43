"""Find the sizes of the values of an LMDB, in a separate process.

In a damaged file, a number may point to a byte outside of the file. The library of LMDB reads this
byte, and the system ends the process with the signal SIGBUS or SIGSEGV. So `sizes` starts a
separate process, and damage ends only the separate process:

    python lmdb_sizes.py ROOT

    stdin    clip_a/000000      a key in each line
    stdout   81234              the number of bytes under the key, or NONE

data/clips/lmdb_root.py calls `sizes` when it lists an LMDB.

What must stay: this file imports nothing of the project, so that the process starts fast. The
process writes one line for each key, in the order of the keys.

Tests: tests/parts/data/test_any_bytes.py, tests/parts/data/test_io_backend.py
"""

import signal
import subprocess
import sys
from collections.abc import Sequence

# The process writes NONE if there is no value under a key. Callers test for a negative size.
NONE = -1
# Exit code of the process if the library of LMDB finds the damage itself. Python itself exits with
# 1 or 2, so 3 tells a person who runs this file what has happened. `sizes` treats every exit code
# above 0 alike.
REFUSED = 3


class DamagedLmdbError(Exception):
    """An LMDB cannot be read. Its text says why, e.g. "its numbers point out of the file (SIGBUS)".

    `damaged_lmdb` (data/clips/lmdb_database.py) writes "the LMDB is damaged: " before the text.
    """


def sizes(root: str, keys: Sequence[str]) -> list[int]:
    """Return the number of bytes under each key, or NONE for a key without a value.

    root: the folder of the LMDB. Raises DamagedLmdbError.

    Test: test_an_lmdb_whose_numbers_point_out_of_the_file_is_refused
    """
    # -I: neither the environment nor the current folder changes what Python imports.
    command = [sys.executable, "-I", __file__, root]
    lines = "".join(f"{key}\n" for key in keys)
    process = subprocess.run(command, input=lines.encode(), capture_output=True, check=False)
    # A negative exit code is the signal that ended the process.
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise DamagedLmdbError(f"its numbers point out of the file ({name})")
    if process.returncode > 0:
        raise DamagedLmdbError(process.stderr.decode(errors="replace").strip())
    return [int(line) for line in process.stdout.split()]


def _main(root: str) -> int:
    """Write the sizes for the keys on stdin. Returns the exit code."""
    import lmdb

    try:
        # An environment is an open database. `_open_lmdb` (data/clips/lmdb_database.py) uses the
        # same settings. Keep the settings of both calls equal, so that the sizes are the sizes of
        # the values that are read later.
        environment = lmdb.open(root, readonly=True, lock=False, readahead=False, meminit=False)
        with environment.begin(buffers=True) as transaction:
            for line in sys.stdin.buffer:
                value = transaction.get(line.removesuffix(b"\n"))
                if value is None:
                    print(NONE)
                    continue
                # Read the last byte, and do nothing with it. If the last byte is outside of the
                # file, the system ends the process here.
                value[-1:].tobytes()
                print(len(value))
    except lmdb.Error as e:
        print(e, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))

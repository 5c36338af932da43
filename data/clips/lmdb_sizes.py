"""Find the sizes of the values of an LMDB, in a process of its own.

The library of LMDB follows the numbers in a damaged file wherever they point. The system then ends
the process that reads there, with the signal SIGBUS or SIGSEGV. So `sizes` starts a process that
may end, which looks at each value first:

    python lmdb_sizes.py ROOT    reads a key from each line, and writes the size of its value

This file imports nothing of the project, so that the process starts fast.

Tests: tests/parts/data/test_any_bytes.py, tests/parts/data/test_io_backend.py
"""

import signal
import subprocess
import sys
from collections.abc import Sequence

# Written in place of a size if there is no value under the key.
NONE = -1
# Exit code of the process if liblmdb finds the damage and names it.
REFUSED = 3


class DamagedLmdbError(Exception):
    """An LMDB cannot be read. Its text can follow "the LMDB is damaged: "."""


def sizes(root: str, keys: Sequence[str]) -> list[int]:
    """Return the number of bytes under each key; NONE for a key without a value.

    root: the folder of the LMDB. Raises DamagedLmdbError.
    """
    # -I: neither the environment nor the current folder changes what Python imports.
    command = [sys.executable, "-I", __file__, root]
    asked = "".join(f"{key}\n" for key in keys).encode()
    found = subprocess.run(command, input=asked, capture_output=True, check=False)
    # A negative code is the signal that ended the process.
    if found.returncode < 0:
        name = signal.Signals(-found.returncode).name
        raise DamagedLmdbError(f"its numbers point out of the file ({name})")
    if found.returncode > 0:
        raise DamagedLmdbError(found.stderr.decode(errors="replace").strip())
    return [int(line) for line in found.stdout.split()]


def _main(root: str) -> int:
    """Write the sizes for the keys on stdin. Returns the exit code."""
    import lmdb

    try:
        # The same settings as in data/clips/files.py.
        environment = lmdb.open(root, readonly=True, lock=False, readahead=False, meminit=False)
        with environment.begin(buffers=True) as transaction:
            for line in sys.stdin.buffer:
                value = transaction.get(line.removesuffix(b"\n"))
                if value is None:
                    print(NONE)
                    continue
                # Read the last byte, because the end of the value must lie in the file, too.
                value[-1:].tobytes()
                print(len(value))
    except lmdb.Error as e:
        print(e, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))

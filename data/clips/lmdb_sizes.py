"""The sizes of the values of an LMDB, found by a process of its own.

liblmdb follows the numbers in a damaged file wherever they point, and the system ends the process
that reads there (SIGBUS, SIGSEGV). So a process that may end looks at each value first.

    python lmdb_sizes.py ROOT    reads a key a line, and writes the size of its value a line

This file imports nothing of the project, so that the process starts fast.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence

NONE = -1  # in place of the size of a value that is not there
REFUSED = 3  # exit code if liblmdb says what is wrong


class DamagedLmdbError(Exception):
    """An LMDB cannot be read. Its text is a clause."""


def sizes(root: str, keys: Sequence[str]) -> list[int]:
    """Return the number of bytes under each key, or NONE.

    Raises DamagedLmdbError.
    """
    command = [sys.executable, "-I", __file__, root]
    asked = "".join(f"{key}\n" for key in keys).encode()
    found = subprocess.run(command, input=asked, capture_output=True, check=False)
    if found.returncode < 0:
        name = signal.Signals(-found.returncode).name
        raise DamagedLmdbError(f"its numbers point out of the file ({name})")
    if found.returncode:
        raise DamagedLmdbError(found.stderr.decode(errors="replace").strip())
    return [int(line) for line in found.stdout.split()]


def _main(root: str) -> int:
    import lmdb

    try:
        environment = lmdb.open(root, readonly=True, lock=False, readahead=False, meminit=False)
        with environment.begin(buffers=True) as transaction:
            for line in sys.stdin.buffer:
                value = transaction.get(line.removesuffix(b"\n"))
                if value is None:
                    print(NONE)
                    continue
                value[-1:].tobytes()  # the end of the value must lie in the file, too
                print(len(value))
    except lmdb.Error as e:
        print(e, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))

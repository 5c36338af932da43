"""Define the error of a spike file: what is wrong, where, what was expected, and what to do.

All modules of this folder raise `SpikeFileError`. The rest of the project turns a `SpikeFileError`
into a DataError (data/cameras/spike_errors.py). In the texts of errors, "packed planes" are planes
(read-outs of the spike camera) with 8 pixels in a byte. `file_errors` turns the errors of damaged
files into a `SpikeFileError`, so a caller has to handle only one class of errors.

What must stay: random bytes in a file raise SpikeFileError and nothing else. Free to change: the
words of the errors, together with the tests that quote them.

Tests: tests/parts/data/test_any_bytes.py
"""

import os
import zipfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager

PathLike = str | os.PathLike[str]
# Name of the array in a .npz. The name must stay, because users and published data have such files.
NPZ_KEY = "spk"


class SpikeFileError(ValueError):
    """A spike file does not have the expected form.

    The error has four parts: what is wrong, where, what was expected, and what to do. The errors in
    utils/errors.py have the same parts. This folder does not import utils/errors.py, because
    data/spike/ needs only numpy.
    """

    def __init__(self, what: str, where: str = "", expected: str = "", do: str = "") -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.do = do
        super().__init__(what, where, expected, do)

    def __str__(self) -> str:
        """Return the parts that are given, one a line."""
        lines = [self.what]
        parts = {"in": self.where, "expected": self.expected, "do": self.do}
        for name, text in parts.items():
            if text:
                # Each name is filled up to 9 characters, so that all texts begin in one column.
                lines.append(f"  {name:<9} {text}")
        return "\n".join(lines)


@contextmanager
def file_errors(path: PathLike) -> Generator[None]:
    """Turn errors of a missing, unreadable or damaged file in the block into a SpikeFileError.

        with file_errors(path):
            size = os.stat(path).st_size

    path: the file that the block reads. The error names it.

    For damaged files, numpy, zipfile and zlib raise only the classes of errors that are listed
    below. If you read files with another package, run tests/parts/data/test_any_bytes.py, and add
    the classes of errors that it shows.
    """
    try:
        yield
    except SpikeFileError:
        # A SpikeFileError is a ValueError. Without this branch, the next branch would wrap it
        # again.
        raise
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        NotImplementedError,
    ) as e:
        # str() of an OSError also names the file, but `where` names the file already. So take
        # `strerror`, if it is not None.
        reason = str(e)
        if isinstance(e, OSError) and e.strerror:
            reason = e.strerror
        raise SpikeFileError(
            what=f"cannot read spike file: {reason}",
            where=str(path),
            expected="packed planes, or an array (planes, h, w); in a .npz, the array named "
            f'"{NPZ_KEY}", or the only array with 3 axes',
            do="restore the file, or save the array again",
        ) from e

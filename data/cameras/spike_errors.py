"""Turn the errors of data/spike into the errors of this project.

The modules of data/spike import only numpy, so they cannot raise the errors of this project. Use
`spike_errors_as_data_errors` around each call that reads spike files.

What must stay: the four parts of an error, because the programs show them to the user.
"""

from collections.abc import Generator
from contextlib import contextmanager

from data.spike.errors import SpikeFileError
from utils.errors import DataError


@contextmanager
def spike_errors_as_data_errors() -> Generator[None]:
    """Turn a SpikeFileError into a DataError with the same four parts."""
    try:
        yield
    except SpikeFileError as e:
        raise DataError(e.what, e.where, e.expected, e.do) from e

"""Find the weights to test with: of the command line, or of a run.

main_test_vrt.py passes --weights, and values of the option file of a run. `find_weights` returns
the path of a file, which `read_saved` (models/portable.py) reads. `find_weights` is called only for
a test on datasets.test, because for a user's own clips --weights always has a value (request.py).

What must stay: the order in which files are tried, because another file has other scores.
test_main_test.py has a test for each row of the table in `find_weights`.

Tests: tests/stories/test_main_test.py
"""

from pathlib import Path

from models.released import is_name
from utils.errors import CheckpointError
from utils.options.models import PathOptions
from utils.run.checkpoint import own_checkpoint


def find_weights(path: PathOptions, folder: Path, weights: str | None) -> str:
    """Return the weights to test with.

    weights: the value of --weights. If it is given, it is returned. path: the section `path` of the
    option file. folder: the folder of the run.

    A name of released weights, such as "vrt/006", counts as an existing file.

    Without --weights, path.resume decides where to look. The first existing file is taken:

        path.resume    files
        "auto"         best, then latest checkpoint of the run, then the pretrained weights
        null           the pretrained weights
        a folder       best, then latest checkpoint of the run in this folder
        a file         this file

    Raises CheckpointError if no file exists.
    """
    if weights:
        return weights
    # One branch for each row of the table above, in the same order.
    if path.resume == "auto":
        candidates = [*_checkpoints_of(folder), *_pretrained_files(path)]
    elif path.resume is None:
        candidates = _pretrained_files(path)
    elif Path(path.resume).is_dir():
        candidates = _checkpoints_of(_run_folder(Path(path.resume)))
    else:
        candidates = [Path(path.resume)]
    for candidate in candidates:
        is_released = is_name(str(candidate))  # e.g. "vrt/006"
        if candidate.is_file() or is_released:
            return str(candidate)
    raise CheckpointError(
        what="there are no weights to test",
        where=", ".join(map(str, candidates)),
        expected="a checkpoint of this run, or path.pretrained_netG",
        do="give --weights FILE",
    )


def _checkpoints_of(run: Path) -> list[Path]:
    """Return the paths of the best and the latest checkpoint of a run. The files need not exist.

    run: the folder of the run.
    """
    return [own_checkpoint(run, "best"), own_checkpoint(run, "latest")]


def _pretrained_files(path: PathOptions) -> list[Path]:
    """Return the files path.pretrained_netE (averaged weights) and path.pretrained_netG, if set."""
    files = (path.pretrained_netE, path.pretrained_netG)
    return [Path(file) for file in files if file]


def _run_folder(named: Path) -> Path:
    """Return the folder of a run.

    named: the folder that path.resume names, which may be the subfolder "checkpoints" of the run.
    """
    return named.parent if named.name == "checkpoints" else named

"""Take an output folder for one test, or refuse it.

A test restores clips with main_test_vrt.py, and scores them. If the folder has results of the same
test, the test is continued. If the folder has files of a user, it is refused.

run_job.py calls `claim_folder` on rank 0, before any rank restores a frame. The arguments are an
`Outputs`, which says where each file of the test will lie, and the settings of the test.
`claim_folder` writes run.json. A later test recognises the folder by this file.

What must stay:

* No file of a user is overwritten or removed.
  (test_a_foreign_file_under_any_name_that_is_written_is_refused_at_the_start)
* An interrupted test is continued, also a test of an older version. So a new setting of a test
  needs a line in `refuse_another_test` (earlier_results.py).
  (test_overwrite_removes_what_a_test_of_an_earlier_version_saved)

Free to change: the texts of errors.

Tests: tests/parts/utils/test_output_folder.py tests each refusal
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.restore.earlier_results import (
    FILES_OF_ALL_CLIPS,
    files_of_earlier_tests,
    read_run_json,
    refuse_another_test,
)
from models.restore.outputs import Outputs
from utils.errors import DataError, OptionError
from utils.files import MARK as TRAINING_MARK  # the file that marks the folder of a training run
from utils.files import RESULTS, write_whole  # RESULTS is "run.json"
from utils.output_folder import refuse_links, remove_files
from utils.results import json_bytes
from utils.secrets import redact


def claim_folder(
    outputs: Outputs,
    settings: dict[str, Any],
    inputs: dict[str, str],
    stems: Mapping[str, Sequence[str]],
    overwrite: bool,
) -> None:
    """Take the output folder for one test.

    What the folder holds, and what happens:

        nothing, or there is no folder            the folder is taken
        results of this test                      the results stay, and the test continues
        results of another test                   refused
        results of any test, with `overwrite`     the results are removed, and the test begins anew
        files that no test wrote                  refused
        a training run                            refused

    The file run.json shows that a test of this program made the folder. It holds the settings, the
    inputs and the names of all results. All checks come before the first change of the folder, so a
    refused test changes nothing. Put a new check next to `_refuse_occupied`.

    settings: everything that the results depend on.
    inputs: name of a clip -> digest of its files.
    stems: name of a clip -> names of the frames to restore.
    overwrite: whether existing results are removed.

    Raises OptionError if the folder is the folder of a training run, or holds results of other
    settings or inputs. Raises DataError if the folder holds files that no test wrote, if a result
    would replace a symbolic link, or if two results would have one name.
    """
    folder = outputs.folder
    run_json = folder / RESULTS
    settings = redact(settings)  # a path may hold a secret
    _refuse_training_run(folder)
    earlier_run = read_run_json(run_json)
    planned_files = {
        clip: outputs.planned_files(clip, frame_names) for clip, frame_names in stems.items()
    }
    owners = _owners_of(planned_files, folder)

    # 1. Refuse a folder with files of a user, and file names that clash.
    if earlier_run is None:
        # No test of this program made the folder, so it must be new or empty.
        if folder.is_dir():
            _refuse_foreign(sorted(path.name for path in folder.iterdir()), folder)
        earlier_files: set[Path] = set()
    else:
        earlier_files = files_of_earlier_tests(outputs, earlier_run, stems)
    _refuse_occupied(owners, earlier_files, folder)

    # 2. Remove the results of the earlier test, or continue the earlier test.
    all_inputs = inputs  # name of a clip -> digest of its files
    files_of_clips = {}  # name of a clip -> names of its results
    if earlier_run is not None and overwrite:
        # The old run.json stays until the new one replaces it. If the program is interrupted in
        # between, a later test still recognises the folder.
        remove_files(folder, earlier_files - {run_json})
    elif earlier_run is not None:
        # Continue: the clips of the earlier test stay in run.json.
        refuse_another_test(earlier_run, settings, inputs, folder)
        # Clips of the earlier test that this test does not restore. Their files stay, so no file of
        # this test may have the same name.
        kept_clips = sorted(earlier_run["inputs"].keys() - stems.keys())
        _refuse_names_of_kept_clips(owners, kept_clips, outputs)
        all_inputs = earlier_run["inputs"] | inputs
        # The files of the earlier test. Step 3 adds the files of this test. Older versions did not
        # write "files".
        files_of_clips = dict(earlier_run.get("files", {}))

    # 3. Write run.json. After this line nothing is refused.
    for name, files in planned_files.items():
        files_of_clips[name] = [str(path.relative_to(folder)) for path in files]
    content = {"settings": settings, "inputs": all_inputs, "files": files_of_clips}
    write_whole(run_json, json_bytes(content))


def _owners_of(planned_files: Mapping[str, Sequence[Path]], folder: Path) -> dict[str, list[Path]]:
    """Return {owner: files} for all files that a test writes.

    The owner says in words what the files belong to: "clip street", or "all clips". An error about
    two results of one name names both owners.

    E.g. {"all clips": [<folder>/run.json, ...], "clip street": [<folder>/street.mp4, ...]}.

    planned_files: name of a clip -> files that the test writes for this clip.
    """
    owners = {"all clips": [folder / name for name in FILES_OF_ALL_CLIPS]}
    for name, files in planned_files.items():
        owners[f"clip {name}"] = list(files)
    return owners


def _refuse_training_run(folder: Path) -> None:
    """Raise OptionError if the folder is the folder of a training run."""
    if (folder / TRAINING_MARK).is_file():
        raise OptionError(
            what="--output is the folder of a training run",
            where=f"--output {folder}",
            expected="a folder only for results",
            do=f"choose another folder, such as {folder / 'test'}",
        )


def _refuse_occupied(
    owners: Mapping[str, Sequence[Path]], written: set[Path], folder: Path
) -> None:
    """Raise DataError if a file of this test would replace another file.

    The function refuses two results of one name, links, and files that no earlier test wrote.

    owners: owner, e.g. "clip street" -> its files.
    written: the files that earlier tests wrote.
    """
    planned = []
    for files in owners.values():
        planned += files
    _refuse_same_names(owners, folder)
    refuse_links(folder, planned)
    foreign = []
    for path in planned:
        if path not in written and path.exists():
            foreign.append(str(path.relative_to(folder)))
    _refuse_foreign(foreign, folder)


def _refuse_foreign(foreign: Sequence[str], folder: Path) -> None:
    """Raise DataError if there are files that no test wrote.

    foreign: names of these files, [] if there are none.
    """
    if foreign:
        raise DataError(
            what="the output folder holds files that no test of this program made: "
            f"{', '.join(foreign[:5])}",
            where=str(folder),
            expected=f"a new or empty folder, or the folder of a test, which has a {RESULTS}",
            do="choose another folder, or move these files away",
        )


def _refuse_same_names(owners: Mapping[str, Sequence[Path]], folder: Path) -> None:
    """Raise DataError if two results, or a file and a folder, would have one name.

    E.g. a clip "street.mp4" has a folder street.mp4/ for its frames, and the video of a clip
    "street" is the file street.mp4.

    owners: owner, e.g. "clip street" -> its files.
    """
    owner_of_path: dict[Path, str] = {}
    conflicts = []  # (a path that has an owner already, its second owner)
    for owner, files in owners.items():
        for path in files:
            if path not in owner_of_path:
                owner_of_path[path] = owner
            elif owner_of_path[path] != owner:
                conflicts.append((path, owner))
    # Find the files at whose path another result needs a folder.
    for path, owner in owner_of_path.items():
        for parent in path.parents:
            if parent in owner_of_path:
                conflicts.append((parent, owner))
    if conflicts:
        path, second_owner = conflicts[0]
        raise DataError(
            what=f"two results would have the name {path.relative_to(folder)}",
            where=f"{owner_of_path[path]}, {second_owner}",
            expected="one file for every name",
            do="rename one of the clips, or save fewer kinds of files",
        )


def _refuse_names_of_kept_clips(
    owners: Mapping[str, Sequence[Path]], kept_clips: Sequence[str], outputs: Outputs
) -> None:
    """Raise DataError if a file of this test has the name of a file that stays in the folder.

    Without this check, a file of this test would replace a result of the earlier test
    (test_a_clip_does_not_replace_the_results_of_an_earlier_clip).

    owners: owner, e.g. "clip street" -> its files. kept_clips: clips of the earlier test that this
        test does not restore. The files of these clips stay.
    """
    all_owners = dict(owners)
    for name in kept_clips:
        # The frames of the clip are not known. Without stems, `planned_files` returns the files of
        # the clip itself: its JSON, its example and its videos.
        all_owners[f"clip {name}, which is there already"] = outputs.planned_files(name, stems=())
    _refuse_same_names(all_owners, outputs.folder)

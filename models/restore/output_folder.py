"""Take an output folder for one test, or refuse it.

`claim_folder` looks at what the folder holds. A folder of the same test is continued, and a folder
with files of a user is refused. job.py calls it on rank 0, before any rank restores a frame. It
leaves run.json, by which a later test knows the folder.

What must stay: no file of a user is overwritten or removed
(test_a_foreign_file_under_any_name_that_is_written_is_refused_at_the_start), and an interrupted
test, also of an older version, is continued
(test_overwrite_removes_what_a_test_of_an_earlier_version_saved). A new setting of a test needs a
line in `_refuse_another_test`.
Free to change: the texts of errors.

Tests: tests/parts/utils/test_output_folder.py tests each refusal
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.restore.outputs import Outputs
from utils.errors import DataError, OptionError
from utils.files import MARK as TRAINING_MARK  # the file that marks the folder of a training run
from utils.files import RESULTS, refuse_links, remove_files, write_whole  # RESULTS is "run.json"
from utils.results import json_bytes, read_json

# Files that a test writes once, not per clip.
FILES_OF_ALL_CLIPS = (RESULTS, "metrics.json", "table.txt", "report.html")


def claim_folder(
    outputs: Outputs,
    settings: dict[str, Any],
    inputs: dict[str, str],
    stems: Mapping[str, Sequence[str]],
    overwrite: bool,
) -> None:
    """Take the output folder for one test.

    What the folder holds, and what happens:

        nothing, or there is no folder       the folder is taken
        results of this test                 the test continues: the results stay
        results of another test              refused; with `overwrite`, these results are removed
        files that no test wrote             refused
        a training run                       refused

    The file run.json shows that a test of this program made the folder. It holds settings, inputs
    and the names of all results. It is written only after all checks, so a refused test changes
    nothing. A new check goes before this write.

    settings: everything that the results depend on.
    inputs: name of a clip -> digest of its files.
    stems: name of a clip -> names of the frames to restore.
    overwrite: whether existing results are removed.

    Raises OptionError if the folder is the folder of a training run, or holds results of other
    settings or inputs. Raises DataError if the folder holds files that no test wrote, if a result
    would replace a symbolic link, or if two results would have one name.

    Rank 0 calls this before any rank restores a frame (job.py).
    tests/parts/utils/test_output_folder.py tests each refusal.
    """
    folder = outputs.folder
    run_json = folder / RESULTS
    _refuse_training_run(folder)
    earlier_run = _read_run_json(run_json)
    # The files that this test will write, for each clip.
    planned_files = {
        clip: outputs.planned_files(clip, frame_names) for clip, frame_names in stems.items()
    }
    # Owner of files, in words for errors -> its files.
    owners = {"all clips": [folder / name for name in FILES_OF_ALL_CLIPS]}
    for name, files in planned_files.items():
        owners[f"clip {name}"] = files

    files_of_clips = {}  # name of a clip -> names of its files, for run.json
    if earlier_run is None:
        # No test of this program made the folder. So it must be new or empty.
        if folder.is_dir():
            _refuse_foreign(sorted(path.name for path in folder.iterdir()), folder)
        # Even in an empty folder, two results may want one name.
        _refuse_occupied(owners, written=set(), folder=folder)
    else:
        earlier_files = _files_of_earlier_tests(outputs, earlier_run, stems)
        _refuse_occupied(owners, earlier_files, folder)
        if overwrite:
            # run.json stays until the new run.json replaces it. So if the program is interrupted
            # here, a later test still knows the folder.
            remove_files(folder, earlier_files - {run_json})
        else:
            # Go on with the earlier test. Its clips stay in run.json, also if this test does not
            # restore them.
            _refuse_another_test(earlier_run, settings, inputs, folder)
            clips_that_stay = sorted(earlier_run["inputs"].keys() - stems)
            _refuse_names_of_kept_clips(owners, clips_that_stay, outputs)
            # run.json lists the clips of both tests. Where both have a clip, the digests are equal
            # (`_refuse_another_test`). A run.json of an older version has no "files".
            inputs = earlier_run["inputs"] | inputs
            files_of_clips = earlier_run.get("files", {})

    # From here on nothing is refused.
    for name, files in planned_files.items():
        files_of_clips[name] = [str(path.relative_to(folder)) for path in files]
    content = {"settings": settings, "inputs": inputs, "files": files_of_clips}
    write_whole(run_json, json_bytes(content))


def _read_run_json(path: Path) -> dict[str, Any] | None:
    """Return the content of run.json, or None if a test of this program did not write the file."""
    if not path.is_file() or path.is_symlink():  # a test never writes a link
        return None
    content = read_json(path)
    return content if _is_run_json(content) else None


def _is_run_json(content: Any) -> bool:
    """Return whether the content has the keys and types that a test of this program writes.

    The content names files that are removed with `overwrite`. So a damaged run.json, or a run.json
    of another program, must not pass.
    """
    if not isinstance(content, dict):
        return False
    settings = content.get("settings")
    inputs = content.get("inputs")
    files = content.get("files", {})  # older versions did not write this key
    if not all(isinstance(table, dict) for table in (settings, inputs, files)):
        return False
    # Each must be a list of texts: what was saved, e.g. ["frames"], and the files of each clip.
    lists = [settings.get("save", []), *files.values()]
    for names in lists:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return False
    return True


def _files_of_earlier_tests(
    outputs: Outputs, earlier_run: dict[str, Any], stems: Mapping[str, Sequence[str]]
) -> set[Path]:
    """Return the files that earlier tests in this folder wrote.

    earlier_run: the content of run.json. stems: name of a clip -> names of its frames in this test.
    """
    files_of_clips = earlier_run.get("files", {})
    written = {outputs.folder / file for file in FILES_OF_ALL_CLIPS}
    for files in files_of_clips.values():
        written |= {outputs.folder / file for file in files}

    # Older versions of SpikeVRT wrote a run.json without "files". For a clip of such a test, the
    # names follow from the setting "save" of the test and from the frames of the clip.
    saved_then = earlier_run["settings"].get("save", ())
    outputs_then = replace(outputs, save=tuple(saved_then))
    clips_without_files = earlier_run["inputs"].keys() - files_of_clips.keys()
    for name in clips_without_files:
        content_of_clip = outputs.load_clip(name)
        if content_of_clip is None:
            # The clip was not finished, so no file says which frames it had. If this test restores
            # the clip too, take its frames.
            stems_then = stems.get(name, ())
        else:
            stems_then = content_of_clip["stems"]
        written |= set(outputs_then.planned_files(name, stems_then))
    return written


def _refuse_training_run(folder: Path) -> None:
    """Raise OptionError if the folder is the folder of a training run."""
    if (folder / TRAINING_MARK).is_file():
        raise OptionError(
            what="--output is the folder of a training run",
            where=f"--output {folder}",
            expected="a folder for results alone",
            do=f"choose another folder, such as {folder / 'test'}",
        )


def _refuse_occupied(
    owners: Mapping[str, Sequence[Path]], written: set[Path], folder: Path
) -> None:
    """Raise DataError if this test cannot write one of its files without harm.

    Two results of one name, links, and files that no earlier test wrote are refused.

    owners: owner, e.g. "clip street" -> its files. written: the files that earlier tests wrote.
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
    """Raise DataError if there is a file that no test wrote. foreign: names of such files."""
    if foreign:
        raise DataError(
            what="the output folder holds files that no test of this program made: "
            f"{', '.join(foreign[:5])}",
            where=str(folder),
            expected=f"a new or empty folder, or the folder of a test, which has a {RESULTS}",
            do="choose another folder, or move these files away",
        )


def _refuse_another_test(
    earlier_run: dict[str, Any], settings: dict[str, Any], inputs: dict[str, str], folder: Path
) -> None:
    """Raise OptionError if this test has other settings or input files than the earlier test."""
    # Older versions of SpikeVRT did not record these settings, and always had these values. A new
    # setting needs a line here. Otherwise no test of an older version could be continued.
    defaults = {"metric.values": "uint8", "metric.more": []}
    changed = _differences(defaults | earlier_run["settings"], defaults | settings)
    # The two tests may have different clips. A clip that both have must have the same files.
    for name, digest_then in earlier_run["inputs"].items():
        if name in inputs and inputs[name] != digest_then:
            changed.append(f"the files of clip {name} have changed")
    if changed:
        raise OptionError(
            what=f"the folder holds results of another test: {'; '.join(changed[:3])}",
            where=str(folder),
            expected="the same settings and input files, to continue that test",
            do="choose another --output, or add --overwrite",
        )


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Return "key was OLD, is NEW" for every value that differs, with dotted keys.

    E.g. {"spike": {"rate": 1}} and {"spike": {"rate": 2}} -> ["spike.rate was 1, is 2"].
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old == new:
            return []
        return [f"{key} was {old}, is {new}"]
    # Both are dicts: compare the values of each key, in the order of `new`, then the keys that only
    # `old` has. A missing value counts as None.
    sentences = []
    only_old = [name for name in old if name not in new]
    for name in [*new, *only_old]:
        dotted = f"{key}.{name}" if key else str(name)
        sentences += _differences(old.get(name), new.get(name), dotted)
    return sentences


def _refuse_same_names(planned: Mapping[str, Sequence[Path]], folder: Path) -> None:
    """Raise DataError if two results, or a file and a folder, would have one name.

    E.g. a clip "street.mp4" has a folder street.mp4/ for its frames, and the video of a clip
    "street" is the file street.mp4.

    planned: owner, e.g. "clip street" -> its files.
    """
    owner_of_path: dict[Path, str] = {}
    conflicts = []  # (a path that has an owner already, its second owner)
    for owner, files in planned.items():
        for path in files:
            if path not in owner_of_path:
                owner_of_path[path] = owner
            elif owner_of_path[path] != owner:
                conflicts.append((path, owner))
    # A file where another result needs a folder.
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

    owners: owner, e.g. "clip street" -> its files. kept_clips: clips of the earlier test that this
    test does not restore, so that their files stay.
    """
    all_owners = dict(owners)
    for name in kept_clips:
        # This test does not know the frames of the clip. Without stems, `planned_files` returns the
        # files of the clip itself: its JSON, its example and its videos.
        all_owners[f"clip {name}, which is there already"] = outputs.planned_files(name, stems=())
    _refuse_same_names(all_owners, outputs.folder)

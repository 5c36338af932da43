"""Read run.json of an earlier test in an output folder, and compare it with this test.

A test restores clips with main_test_vrt.py, and scores them. output_folder.py asks which files the
earlier test wrote. If the earlier test had other settings or input files, `refuse_another_test`
raises an error. run.json holds

    {"settings": {...}, "inputs": {clip: digest of its files}, "files": {clip: [names]}}

What must stay: a test of an older version is continued, too
(test_overwrite_removes_what_a_test_of_an_earlier_version_saved). A new setting of a test needs a
line in `refuse_another_test`.

Tests: tests/parts/utils/test_output_folder.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.restore.outputs import Outputs
from utils.errors import OptionError
from utils.files import RESULTS  # RESULTS is "run.json"
from utils.results import read_json
from utils.secrets import redact

# Files that a test writes once, not per clip. report.py writes the last three. A new file of this
# kind belongs here, so that --overwrite removes it.
FILES_OF_ALL_CLIPS = (RESULTS, "metrics.json", "table.txt", "report.html")


def read_run_json(path: Path) -> dict[str, Any] | None:
    """Return the content of run.json, or None if a test of this program did not write the file."""
    if not path.is_file() or path.is_symlink():  # a test never writes a link
        return None
    content = read_json(path)
    return content if _is_run_json(content) else None


def _is_run_json(content: Any) -> bool:
    """Return whether the content has the keys and types that a test of this program writes.

    With --overwrite, the files that run.json names are removed. So a damaged run.json, or a
    run.json of another program, must be refused (test_a_damaged_run_json_marks_no_folder_as_ours).
    """
    if not isinstance(content, dict):
        return False
    settings = content.get("settings")
    inputs = content.get("inputs")
    files = content.get("files", {})  # older versions did not write this key
    if not all(isinstance(table, dict) for table in (settings, inputs, files)):
        return False
    # The kinds of saved files, e.g. ["frames"], and the files of each clip must be lists of texts.
    kinds_of_files = settings.get("save", [])
    lists_of_names = [kinds_of_files, *files.values()]
    for names in lists_of_names:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return False
    return True


def files_of_earlier_tests(
    outputs: Outputs, earlier_run: dict[str, Any], stems: Mapping[str, Sequence[str]]
) -> set[Path]:
    """Return the files that earlier tests in this folder wrote.

    With --overwrite, output_folder.py removes these files. So no file of a user may be among them.

    earlier_run: the content of run.json.
    stems: {name of a clip: names of its frames without endings} of this test.
    """
    files_of_clips = earlier_run.get("files", {})
    written = {outputs.folder / file for file in FILES_OF_ALL_CLIPS}
    for files in files_of_clips.values():
        written |= {outputs.folder / file for file in files}

    # Older versions of SpikeVRT wrote a run.json without "files". The files of a clip of such a
    # test follow from the kinds of files that the test saved, and from the names of the frames.
    saved_then = earlier_run["settings"].get("save", ())
    outputs_then = replace(outputs, save=tuple(saved_then))
    clips_without_files = earlier_run["inputs"].keys() - files_of_clips.keys()
    for name in clips_without_files:
        content_of_clip = outputs.load_clip(name)
        if content_of_clip is None:
            # No file says which frames an unfinished clip had. If this test has the clip, take the
            # frames of this test.
            stems_then = stems.get(name, ())
        else:
            stems_then = content_of_clip["stems"]
        written |= set(outputs_then.planned_files(name, stems_then))
    return written


def refuse_another_test(
    earlier_run: dict[str, Any], settings: dict[str, Any], inputs: dict[str, str], folder: Path
) -> None:
    """Raise OptionError if this test has other settings or input files than the earlier test.

    earlier_run: the content of the run.json of the earlier test.
    settings: the settings of this test, without secrets.
    inputs: {clip: digest of its files} of this test.
    folder: the output folder, for the error.
    """
    # Settings that older versions did not record, with the values that they used. If a new setting
    # has no line here, no test of an older version can be continued.
    not_recorded = {"metric.values": "uint8", "metric.more": []}
    # With `a | b`, the value of b wins, so the values of `not_recorded` are used only for keys that
    # a run.json lacks. Secrets are hidden anew, because older versions hid fewer of them.
    settings_then = not_recorded | redact(earlier_run["settings"])
    settings_now = not_recorded | settings
    changed = _differences(settings_then, settings_now)  # a sentence for each difference
    # The two tests may have different clips. A clip of both tests must have the same files.
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

    old, new: two values. If both are dicts, the function calls itself for each of their keys.
    key: the dotted key of both values, "" for the whole settings.
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old == new:
            return []
        return [f"{key} was {old}, is {new}"]
    # First the keys of `new` in its order, then the keys that only `old` has.
    only_old = [name for name in old if name not in new]
    sentences = []
    for name in [*new, *only_old]:
        dotted = f"{key}.{name}" if key else str(name)
        # A missing value counts as None.
        sentences += _differences(old.get(name), new.get(name), dotted)
    return sentences

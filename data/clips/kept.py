"""Store the result of the data check, so that a later start need not read all files again.

A stored result is called a record. A record is two files in <path.root>/.preflight. The name of the
two files is a digest of all options that change the check (`digest_of_options`), and the scale of
the network:

    3f2a90c1d4e5b677_x1.json   {"counts": "22 clips, ...", "warnings": [...], "arrays": SHA-256}
    3f2a90c1d4e5b677_x1.npz    the clips as arrays (data/clips/columns.py), and the state of
                               each folder (`State` in data/clips/listed_files.py)

`Record` reads and writes the record of one data root. `checked_clips` gives the clips of a record
to other ranks and to loader workers.

Anybody may have written these files, so `Record.read` asks four questions before it uses the files:

    read_bounded     stored_arrays.py     are the arrays small enough for the memory?
    columns_in       stored_arrays.py     are there only arrays, with nothing to execute?
    refuse_columns   column_check.py      are their values a correct table of this data root?
    is_as_before     unchanged_data.py    are the data the same as at the check?

If the answer to one question is "no", the record is ignored and the data check runs again. So a
wrong record costs time, but is never used.

What must stay: each of these questions, and a higher FORMAT for each change of the check.
test_a_wrong_record_is_not_used forges records. This test does not notice every missing question,
because most forged records fail at another question, too. Free to change: how many files a repeated
start looks at (SHARE; LEAST_FILES in unchanged_data.py).

Tests: tests/parts/data/test_kept.py, tests/parts/data/test_preflight.py
"""

import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.clip import Clip
from data.clips.column_check import refuse_columns
from data.clips.columns import Columns, kinds_of, types_of
from data.clips.listed_files import State
from data.clips.source import Problem, Source
from data.clips.stored_arrays import columns_in, read_bounded
from data.clips.table import ClipTable
from data.clips.unchanged_data import is_as_before
from data.spike.errors import SpikeFileError
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.json_file import read_json

logger = logging.getLogger(__name__)

# Version of a record. Raise it if the check finds more than before, or if the arrays change.
# Records of older versions are then ignored, and the data are checked anew.
FORMAT = 7
# Default of the option checked_share: the fraction of the files that a repeated start looks at. A
# larger fraction finds changed files sooner, and a smaller fraction makes starts faster. The
# default is chosen by hand.
SHARE = 0.01
# Columns that tell whether the data are still the same. "folders": the paths of all listed folders.
# "folder_states": two numbers for each folder, its `State`.
STATE_COLUMNS = {"folders": np.uint8, "folder_states": np.int64}


@dataclass(frozen=True)
class Result:
    """The result of a check that found no problems."""

    counts: str  # numbers of clips and frames, in words
    warnings: list[Problem]  # warnings for the log
    clips: Sequence[Clip]  # the checked clips


# Rank 0 checks the data, and tells the other ranks which record to read: (name of the record,
# SHA-256 of its arrays). The digest makes sure that all ranks read the same arrays.
RecordId = tuple[str, str]


def digest_of_options(source: Source) -> str:
    """Return 16 hex digits that change with every option of the check, but not with the files.

    The options decide which clips and planes a record has, and what the check demands. If you add
    an option to the check, add the option here. If it were missing, a record would be used although
    the value of the option has changed. The order of the values may change. A new order changes the
    digits, so all existing records are ignored once, and the data are checked again.

    Test: test_each_partition_has_a_record_of_its_own, which tries one of the options
    """
    # FORMAT is hashed, too, so records of an older version have other names and are never found.
    spikes = source.spikes
    options: list[Any] = [
        FORMAT,
        source.kinds(),  # root, folder and suffixes of each kind of file
        source.filename_tmpl,  # form of the frames' names
        sorted(source.excluded_clips),  # clips that are left out
        source.meta_entries,  # clips and frames that the meta file lists
        source.may_share_frames,  # whether lq and gt may be the same files
        source.septuplets,  # whether the data set is Vimeo-90K
    ]
    if spikes:
        options.append(
            [
                repr(spikes.geometry),  # size and layout of a plane
                repr(spikes.info),  # content of dataset.json
                spikes.center,  # the plane of the sharp frame
                spikes.remainder,  # what is done with bytes after the last whole plane
                spikes.name,  # name of the representation, e.g. "voxel"
                repr(spikes.options),  # options of the representation
                spikes.rate,  # spikes per plane at full light
                spikes.light,  # what the spikes integrate, "linear" or "display"
                spikes.context,  # planes that are read before and after an exposure
                spikes.timing.describe(),  # which planes belong to which frame
            ]
        )
        # `own_spikes` are the spike settings of the clips that dataset.json describes one by one. A
        # calibration is a separate file, so its content is hashed here. All other settings follow
        # from dataset.json, which is hashed above as `spikes.info`.
        for settings in (spikes, *source.own_spikes.values()):
            if settings.calibration:
                options.append(settings.calibration.digest())
    else:
        options.append(None)
    text = json.dumps(options)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checked_clips(source: Source) -> ClipTable | None:
    """Return the clips of a source from its record, if this run has checked the source.

    Any rank and any loader worker may call `checked_clips`. Returns None if the run has not checked
    the source, or if this machine cannot read the record. In these cases, the caller must check the
    files itself.

    Test: test_a_rank_reads_only_the_record_and_makes_the_same_samples
    """
    # RUN is the state of the run. At its start, the run sets `record_ids` and `checks_folder`.
    # `record_ids` is {digest of the options: RecordId}.
    record_ids: Mapping[str, Sequence[str]] = RUN.record_ids
    folder = RUN.checks_folder  # the folder of the records; None if no records are kept
    if folder is None or not record_ids:
        return None
    record_id = record_ids.get(digest_of_options(source))
    if record_id is None:
        return None
    name, digest = record_id
    try:
        content = read_bounded(folder / f"{name}.npz")
        # Another run may have replaced the record since this run checked the data. An equal digest
        # proves that these are the arrays that rank 0 has checked.
        if hashlib.sha256(content).hexdigest() != digest:
            return None
        # The columns that a table of this source has, as {column: dtype}, e.g. "lq_bytes": int64.
        columns = columns_in(content, types_of(kinds_of(source)))
    except (OSError, ValueError):
        return None
    # The names get the prefix of the root, e.g. "0/", because a run may have several data roots
    # with equal clip names.
    return ClipTable(source, columns, source.name_prefix)


class Record:
    """The record of one data root: its stored result of the data check, in two files."""

    def __init__(self, folder: Path, source: Source, scale: int) -> None:
        """Prepare to read or write a record.

        folder: where the record is stored.
        source: the data root.
        scale: scale of the network.
        Raises DataError if the meta file cannot be read.
        """
        self.source = source
        self.options_digest = digest_of_options(source)  # digest of all options of the check
        self.name = f"{self.options_digest}_x{scale}"
        self.json = folder / f"{self.name}.json"
        self.arrays = folder / f"{self.name}.npz"
        # Other ranks find the record by this id. None until the record was read or written.
        self.record_id: RecordId | None = None

    def read(self, share: float) -> Result | None:
        """Return the stored result if the data are the same as at the check, else None.

        share: fraction of the files that are looked at, 0 to 1.

        Test: test_a_wrong_record_is_not_used
        """
        try:
            about = read_json(self.json)
            # A warning is stored as the four texts of a `Problem`, e.g. ["clip_a", "lq has 16 bits:
            # ...", "/data/clip_a/0.png", ""]. Anybody may have written other values, so `str` makes
            # texts of them.
            warnings = [Problem(*map(str, texts)) for texts in about["warnings"]]
            counts = str(about["counts"])
            digest = str(about["arrays"])
            columns = self._read_columns(digest)
            # The names of the clips get no prefix (`source.name_prefix`), because one record serves
            # all runs, and the prefix of this data root may differ between runs.
            table = ClipTable(self.source, columns)
            if not is_as_before(table, columns, share):
                return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            # The files are not a correct record, so the check must run again. JSON that is nested
            # too deeply raises RecursionError.
            return None
        except (DataError, OptionError, SpikeFileError):
            # The data have changed and are wrong now. The check runs again and says what is wrong.
            return None
        self.record_id = (self.name, digest)
        return Result(counts, warnings, table)

    def _read_columns(self, digest: str) -> Columns:
        """Return the columns of the record, after the check that they are a correct table.

        All paths in a correct table are below the roots of the source, so they may be opened.

        digest: the SHA-256 of the arrays, as the .json says. If the digest of the arrays differs,
        the two files of the record come from different checks.
        Raises OSError if the file cannot be read, and ValueError if its content is not a correct
        table.
        """
        content = read_bounded(self.arrays)
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("the arrays of another check")
        types = types_of(kinds_of(self.source))
        columns = columns_in(content, types | STATE_COLUMNS)
        # The columns are copies, so free the content, which may have a gigabyte.
        del content
        refuse_columns({name: columns[name] for name in types}, self.source)
        return columns

    def write(self, result: Result, columns: Columns, states: Mapping[str, State]) -> None:
        """Store a result. If the folder cannot be written, the log says so, and no error is raised.

        columns: the clips as arrays.
        states: {path: state} of all listed folders.

        Test: test_a_folder_that_cannot_be_written_only_prevents_the_record
        """
        # The paths become a column of texts, with a zero byte after each path
        # (data/clips/columns.py). A path may have bytes that are not UTF-8. Python reads such a
        # byte as a special character, and "surrogateescape" turns this character into the same byte
        # again.
        paths = "".join(f"{path}\0" for path in states)
        path_bytes = paths.encode(errors="surrogateescape")
        state_rows = np.array(list(states.values()), np.int64)  # (folders, 2): mtime, ctime
        arrays: dict[str, Any] = {
            **columns,
            "folders": np.frombuffer(path_bytes, np.uint8),
            "folder_states": state_rows.ravel(),
        }
        # Make the .npz in memory, because the .json needs its digest.
        file = io.BytesIO()
        np.savez(file, **arrays)
        content = file.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        about = {"counts": result.counts, "warnings": result.warnings, "arrays": digest}
        try:
            # The .json is written last. If the process ends between the two files, the .json has
            # the digest of other arrays, and `read` ignores the record.
            write_whole(self.arrays, content)
            write_whole(self.json, json.dumps(about).encode())
        except DataError as e:
            # A run does not need the record, so it goes on.
            logger.info("the result of the data check cannot be stored: %s", e)
            return
        self.record_id = (self.name, digest)

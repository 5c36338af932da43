"""Check all data before a run, and report all problems in one table.

The flow of a first start:

    preflight               checks each split (train, test) of the option file
      check_source          checks each data root of a split
        Record.read         returns the stored result if the data are the same (data/clips/kept.py)
        RootCheck.run       without such a result: checks all files (data/clips/root_check.py)
        Record.write        stores the result of the check

The result of the check is stored under <path.root>/.preflight. While no folder changes, a repeated
start reads the stored result, and looks at only 1 % of the files, but at least at 4096.

What must stay: one error names the problems of all roots of all splits
(test_a_missing_root_hides_no_problem_of_the_other_split), and of all roots of one split
(test_a_missing_root_hides_no_problem_of_another_root_of_its_split). A result with problems is not
stored.
Free to change: the lines of the log, together with test_preflight.py.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_kept.py,
tests/stories/test_bad_input.py
"""

import logging
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from data.clips import manifest
from data.clips.kept import SHARE, Record, RecordId, Result
from data.clips.root_check import OpenProgress, Report, RootCheck
from data.clips.source import Source
from utils.errors import DataError
from utils.options.loader_options import DatasetsOptions
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)

# This function is `open_progress` with its first argument, the kind of progress bar, set to "none".
# The kind "none" shows nothing.
NO_PROGRESS_BAR: OpenProgress = partial(open_progress, "none")


def preflight(
    datasets: DatasetsOptions, stored: Path, show: OpenProgress = NO_PROGRESS_BAR, scale: int = 1
) -> dict[str, RecordId]:
    """Check the data of all splits, each by its dataset class.

    Only rank 0 may call `preflight`, because it writes the stored results. The other ranks wait,
    and then read the stored results (`checked_clips` in data/clips/kept.py).

    datasets: the sections of the splits.
    stored: folder of stored results.
    show: a function that opens a progress bar over the number of files.
    scale: scale of the network, the side of gt over the side of lq.
    Returns {options_digest: record_id} of each stored result. The other ranks need this dict to
    find the results.
    Raises DataError (exit code 3) with every problem of every split.
    """
    reports: list[Report] = []
    unreadable = []  # errors of whole roots
    for split, section in datasets:
        # A split may be left out. `section.constructor` is the class of the dataset. A class
        # without the method `check` reads no clips.
        if section is None or not hasattr(section.constructor, "check"):
            continue
        try:
            reports_of_split = section.constructor.check(
                section, split, stored=stored, show=show, scale=scale
            )
        except DataError as e:
            # A root cannot be read, e.g. because a folder is missing. Go on with the next split, so
            # that one error at the end names the problems of all splits
            # (test_a_missing_root_hides_no_problem_of_the_other_split).
            unreadable.append(e)
            continue
        reports += reports_of_split
        for report in reports_of_split:
            _log(report, split)
    problems = [(report.source, report.problems) for report in reports]
    manifest.raise_problems(problems, unreadable=unreadable)
    # A report without a stored result has record_id None, and is left out.
    return {report.options_digest: report.record_id for report in reports if report.record_id}


def _log(report: Report, split: str) -> None:
    """Log the warnings of a report, and its counts if there are no problems."""
    for warning in report.warnings:
        logger.warning("data %s: %s", split, warning)
    if not report.problems:
        note = report.note or f"{report.counts()}, checked in {report.seconds:.1f} s"
        logger.info("data %s: %s", report.name, note)


def check_source(
    source: Source,
    name: str,
    stored: Path | None = None,
    decode: bool = False,
    show: OpenProgress = NO_PROGRESS_BAR,
    scale: int = 1,
    share: float = SHARE,
) -> Report:
    """Check the clips of one data root, and return the report. Problems raise no error.

    `ClipDataset.check` calls `check_source`, for `preflight` and for scripts/doctor.py.

    source: the data root.
    name: name of the split, and of the root if there are several, e.g. "train".
    stored: folder of stored results. If the data have not changed since their result was stored,
    the stored result is returned. None: all files are checked, and nothing is stored.
    decode: whether to decode every image, which also finds flipped bits. If not, only header and
    end of a PNG are read.
    show: a function that opens a progress bar over the number of files.
    scale: scale of the network, the side of gt over the side of lq.
    share: fraction of the files that are looked at if no folder has changed.
    """
    # Use the stored result if there is one and the data have not changed.
    record = None
    if stored:
        # The name of a stored result depends on the meta file. If the meta file cannot be read,
        # there is no record, and `check.run` below raises the error.
        with suppress(DataError):
            record = Record(stored, source, scale)
    if record:
        stored_result = record.read(share)
        if stored_result:
            return Report(
                name,
                source,
                stored_result.clips,
                warnings=stored_result.warnings,
                note=f"{stored_result.counts}, as checked before",
                options_digest=record.options_digest,
                record_id=record.record_id,
            )

    # No stored result can be used, so check everything. Only a result without problems is stored.
    start = time.monotonic()
    check = RootCheck(source, decode)
    report = check.run(name, show, scale)
    report.seconds = time.monotonic() - start
    if record and not report.problems:
        result = Result(report.counts(), report.warnings, report.clips)
        record.write(result, check.columns, check.states)
        report.options_digest = record.options_digest
        report.record_id = record.record_id
    return report

"""Write the history of a run, and after each validation its curves and its report.

`HistoryWriter` is one of the writers of a run (utils/run/writers.py). It appends an entry to
training_history.jsonl, and brings training_history.json, curves.png and report.html up to date
(utils/run/history.py describes the two files of the history). With `logging.use_report` false, the
curves and the report are left out.

What must stay: an entry is a whole line or no line, and a resumed run leaves no step twice in the
file (test_a_full_disk_cuts_no_line_and_later_entries_are_written_again,
test_a_resume_drops_later_entries_once_and_doubles_no_step). Free to change: when the report is
made.

Tests: tests/parts/utils/test_history.py.
"""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.files import open_kept, write_whole
from utils.logger import best_effort
from utils.run.figures import draw_panels, encode
from utils.run.history import HISTORY_NAME, LINES_NAME, History, entries_of, read_history
from utils.run.report import build_report

logger = logging.getLogger(__name__)

REPORT_NAME = "report.html"
CURVES_NAME = "curves.png"


class HistoryWriter:
    """Writes the history of a run, and after each validation its curves and its report.

    An entry has the scalars that were logged together at one step, e.g. {"step": 100, "train/loss":
    0.0234}. Each entry is appended to the file at once, so a killed process loses at most the line
    that it is writing. The time of an append does not depend on the length of the file.
    """

    def __init__(self, folder: Path, start: int, draws_report: bool = True) -> None:
        """Prepare to write. The first call of `scalars` writes the file.

        folder: the folder of the run.
        start: step of the checkpoint that the run resumes from, or 0 for a fresh start.
        draws_report: whether the curves and the report are drawn. This takes about half a second of
            a CPU.
        """
        self.folder = folder
        self.draws_report = draws_report
        self.file = folder / LINES_NAME
        self.resumed_step = start
        # A resumed run repeats the steps after its checkpoint, and writes their entries again. So
        # the old entries of these steps are removed, before the first new entry is written.
        self.has_removed_repeated = False
        self.is_report_old = False  # whether curves and report lack the newest entry

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Append an entry.

        values: tag -> value, e.g. "train/loss" -> 0.0234.
        """
        self.is_report_old = True
        # If the disk fails within the block, `best_effort` logs a warning, and the run goes on
        # without this entry.
        with best_effort(str(self.file)):
            # Before the first new entry, remove the entries that will be written again. The flag is
            # set last. So if the removal fails, the next call of `scalars` tries it again.
            if not self.has_removed_repeated:
                earlier_lines = [_line(entry) for entry in self._entries_that_stay(values, step)]
                write_whole(self.file, b"".join(earlier_lines))
                self.has_removed_repeated = True
            entry: dict[str, Any] = {"step": step}
            for tag, value in values.items():
                # JSON has no NaN and no Inf, so None (null in the file) takes their place.
                entry[tag] = float(value) if math.isfinite(value) else None
            self._append(_line(entry))
        # Only the entry of a validation has this tag. Drawing after each entry would take too long.
        if "val/psnr" in values:
            self._update_report()

    def _entries_that_stay(self, values: Mapping[str, float], step: int) -> list[dict[str, Any]]:
        """Return the entries in the file that this start of the run does not write again.

        A start resumes from a checkpoint, so it repeats all later steps and writes their entries
        again. If the earlier start was killed before it saved the score of a validation, this start
        also repeats the validation at the step of the checkpoint. E.g. the checkpoint has step 200,
        and the first new entry is the validation of step 200. Then the entries of the file are
        handled like this:

            {"step": 100, "train/loss": ...}   stays
            {"step": 200, "train/loss": ...}   stays: the new entry has no "train/loss"
            {"step": 200, "val/psnr": ...}     is left out: the new entry replaces it
            {"step": 300, "train/loss": ...}   is left out: step 300 comes again

        values: scalars of the first new entry.
        step: step of the first new entry. It is the step of the checkpoint, or a later step.

        Tests: test_a_resume_drops_later_entries_once_and_doubles_no_step,
        test_a_validation_that_is_repeated_at_the_step_of_the_resume_replaces_the_former_one.
        """
        if not self.resumed_step:
            return []  # a fresh start keeps no entry
        # Old versions of this program wrote only the .json.
        earlier_file = self.file if self.file.is_file() else self.folder / HISTORY_NAME
        if not earlier_file.is_file():
            return []
        entries = entries_of(earlier_file)  # None in place of a broken line
        broken_count = entries.count(None)
        if broken_count:
            left_out = f"{broken_count} lines are no entries and are left out"
            if broken_count == 1:
                left_out = "1 line is no entry and is left out"
            logger.warning("%s: %s", earlier_file, left_out)
        remaining_entries = []
        for entry in entries:
            if entry is None or entry["step"] > self.resumed_step:
                continue
            # Here entry["step"] <= resumed_step <= step. So the entry has the step of the new entry
            # only if both are the step of the checkpoint.
            is_same_step = entry["step"] == step
            # A step may have two entries: a log line and a validation. The earlier entry is written
            # again only if the new entry has a scalar of the same name.
            has_same_scalar = any(tag in entry for tag in values)
            if not (is_same_step and has_same_scalar):
                remaining_entries.append(entry)
        return remaining_entries

    def _append(self, line: bytes) -> None:
        """Append the whole line or nothing. Raises OSError if the line cannot be written.

        Test: test_a_full_disk_cuts_no_line_and_later_entries_are_written_again.
        """
        # `open_kept` opens without a buffer, so `write` returns how many bytes of the line went
        # into the file. A symbolic link is refused, because it would lead to another file.
        with open_kept(self.file, "ab") as file:
            # If the disk gets full in the middle of the line, cut the file back to this size.
            size = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise

    def close(self) -> None:
        """Bring the report up to date at the end of a run. There is no open file to close."""
        self._update_report()

    def _update_report(self) -> None:
        """Bring curves, report and training_history.json up to date."""
        if not self.is_report_old:
            return
        self.is_report_old = False
        # `best_effort` logs an error and goes on, by default only for OSError and DataError. Here
        # it catches every Exception, because an error in a plot must not end the run.
        with best_effort("the report of the run", Exception):
            history = read_history(self.folder)
            write_whole(self.folder / HISTORY_NAME, _as_json(history))
            if not self.draws_report:
                return
            # The name of the run is "", because the legend of a single run shows no name.
            curves = encode(draw_panels({"": history}))
            page = build_report(self.folder, history, curves)
            write_whole(self.folder / CURVES_NAME, curves)
            write_whole(self.folder / REPORT_NAME, page.encode())


def _line(entry: dict[str, Any]) -> bytes:
    """Return an entry as a line of the .jsonl. Raises ValueError for NaN and Inf."""
    return f"{json.dumps(entry, allow_nan=False)}\n".encode()


def _as_json(history: History) -> bytes:
    """Return a history as training_history.json: NaN becomes null."""
    plain: dict[str, list[list[float | None]]] = {}
    for tag, curve in history.items():
        plain[tag] = []
        for step, value in curve:
            plain[tag].append([step, value if math.isfinite(value) else None])
    return json.dumps(plain, allow_nan=False).encode()

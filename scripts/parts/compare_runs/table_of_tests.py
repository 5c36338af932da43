"""Make the table of tests of main_test_vrt.py: the scores of each test, on the same frames.

What must stay: tests of different frames, or with scores of different kinds, are never in one table
(test_a_test_on_other_frames_is_refused_in_the_table,
test_results_of_different_protocols_are_not_compared).
Free to change: the columns.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.metrics import COLUMNS, METRICS_OF_TESTS, format_score
from models.restore.scores import START_OF_LPIPS_NOTE
from scripts.parts.compare_runs.table import Table
from utils.errors import DataError
from utils.results import read_json

# The file with the scores of a test. A folder with this file is a folder of a test.
METRICS_FILE = "metrics.json"
# Number of clips that an error names. Other clips probably differ for the same reason.
SHOWN_CLIPS = 5


class TestRow(NamedTuple):
    """A row of the table of tests: a test, or the input, i.e. the blurry frames."""

    method: str  # e.g. "tfp", or "network, " and its weights
    averages: dict[str, float]  # metric -> mean over the clips, or over all frames (metric.mean)


class InputOfClip(NamedTuple):
    """What a test has read of one clip. It must be equal in two tests of the same clip."""

    # Names of the frames without suffix, e.g. "000012". None if metrics.json does not have them.
    stems: list[str] | None
    scores: dict[str, float]  # metric -> score of the blurry frames


class ScoredTest(NamedTuple):
    """A test, and what must be the same in another test so that the two can be compared."""

    name: str  # name of the test in the table
    # How the metrics were computed, in words (`protocol_text` of models/restore/scores.py).
    scoring: str
    clips: dict[str, InputOfClip]  # name of a clip -> its input


def tests_table(folders: Mapping[str, Path]) -> Table:
    """Return a table of several tests on the same frames: first the input, then a row for each.

    A metric that a test does not have is a dash. For example, if the test test_tfp has no LPIPS:

        test                   method  PSNR dB    SSIM   LPIPS
        input                            25.10  0.7801  0.3102
        test      network, motion.pth    30.25  0.9104  0.1207
        test_tfp                  tfp    27.00  0.8523       -

    Raises DataError if a test has no scores, or if two tests were scored differently or on
    different frames.

    folders: name of a test in the table -> folder with its metrics.json.
    """
    table_rows: dict[str, TestRow] = {}
    first: ScoredTest | None = None
    for name, folder in folders.items():
        result = read_test(name, folder)  # the content of metrics.json
        averages = result["averages"]
        test = scored_test(name, result)
        # The first test gives the row of the input. All other tests must have the same input.
        if first is None:
            first = test
            table_rows["input"] = TestRow(method="", averages=averages.get("input", {}))
        refuse_other_scoring(first, test)
        refuse_other_frames(first, test)
        # The protocol of a formula such as tfp has the key "method", and the protocol of a network
        # has the key "weights".
        protocol = result["protocol"]
        method = protocol.get("method")
        if not method:
            method = f"network, {protocol.get('weights', '')}"
        table_rows[name] = TestRow(method, averages["restored"])
    return _as_table(table_rows)


def _as_table(table_rows: Mapping[str, TestRow]) -> Table:
    """Return the rows as texts, with a column for each metric that any row has.

    The columns are in the order of COLUMNS, e.g. PSNR, SSIM, LPIPS.

    table_rows: name of a test, or "input" -> its row.
    """
    metrics = []
    for metric in COLUMNS:
        if any(metric in row.averages for row in table_rows.values()):
            metrics.append(metric)
    titles = [COLUMNS[metric].title for metric in metrics]
    rows = []
    for name, row in table_rows.items():
        # `format_score` returns "-" for None, a metric that the row does not have.
        scores = [format_score(metric, row.averages.get(metric)) for metric in metrics]
        rows.append([name, row.method, *scores])
    return Table(rows, header=["test", "method", *titles])


def scored_test(name: str, result: dict[str, Any]) -> ScoredTest:
    """Return what a test must have in common with another test.

    result: the content of its metrics.json.
    """
    # The text says how PSNR and SSIM were computed. If LPIPS was computed, the text ends with
    # "; LPIPS: AlexNet, version 0.1". Cut this end off, so that a test with LPIPS may be compared
    # with a test without LPIPS.
    scoring, _, _ = result["protocol"].get("metrics", "").partition(START_OF_LPIPS_NOTE)
    # Two sets of test clips differ in the frames of a clip, or in the scores of its blurry frames.
    clips = {}
    for clip, of_clip in result["clips"].items():
        clips[clip] = InputOfClip(of_clip.get("stems"), of_clip.get("input", {}))
    return ScoredTest(name, scoring, clips)


def read_test(name: str, folder: Path) -> dict[str, Any]:
    """Return the content of a test's metrics.json.

        "protocol"    how the test was made, e.g. {"weights": "motion.pth", "metrics": "PSNR ..."}
        "clips"       name of a clip -> its frames ("stems") and its scores ("input", "restored")
        "averages"    the means (metric.mean): {"restored": {"psnr": 30.1, ...}, "input": {...}},
                      where "input" are the blurry frames

    Raises DataError if main_test_vrt.py has not written the file, or if the test has no scores.

    name: name of the test in the table, for the error
    """
    test = read_json(folder / METRICS_FILE)
    has_all_keys = False
    if isinstance(test, dict):
        has_all_keys = all(key in test for key in ("protocol", "clips", "averages"))
    if not has_all_keys:
        raise DataError(
            what="no results of a test",
            where=str(folder / METRICS_FILE),
            expected="what main_test_vrt.py writes",
            do="repeat it",
        )
    if not test["averages"].get("restored"):
        raise DataError(
            what="a test without scores",
            where=name,
            expected="a test with sharp frames",
            do="leave it out",
        )
    return test


def refuse_other_scoring(first: ScoredTest, test: ScoredTest) -> None:
    """Raise DataError if a test was scored in another way than the first test."""
    if test.scoring != first.scoring:
        raise DataError(
            what=f"{first.name} and {test.name} were scored differently: {first.scoring}, "
            f"{test.scoring}",
            where=test.name,
            expected="tests with the same options metric.values and metric.mean",
            do="repeat one of the tests",
        )


def refuse_other_frames(first: ScoredTest, test: ScoredTest) -> None:
    """Raise DataError if a test has other clips, frames or input than the first test."""
    different = []
    clips_of_both = {**first.clips, **test.clips}  # each clip once
    for clip in clips_of_both:
        if not is_same_input(first.clips.get(clip), test.clips.get(clip)):
            different.append(clip)
    if different:
        raise DataError(
            what=f"{first.name} and {test.name} were not scored on the same frames and input: "
            f"{', '.join(different[:SHOWN_CLIPS])}",
            where=test.name,
            expected="tests of the same clips, frames and input",
            do="repeat one of the tests",
        )


def is_same_input(first: InputOfClip | None, second: InputOfClip | None) -> bool:
    """Return whether two tests of a clip had the same frames, and the same scores of the input."""
    if first is None or second is None:  # one of the tests does not have this clip
        return False
    has_same_frames = first.stems == second.stems
    return has_same_frames and _rounded(first.scores) == _rounded(second.scores)


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores that every test has (METRICS_OF_TESTS), with 6 digits.

    LPIPS does not count, because it differs a little between devices. Metrics of metric.more do not
    count, because each test may have others.
    """
    return {name: round(scores[name], 6) for name in METRICS_OF_TESTS if name in scores}

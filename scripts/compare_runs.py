#!/usr/bin/env python3
"""Compare training runs, or the scores of tests, in a table or a figure. It also writes the report
of one run, and checks the gain of runs.

    python scripts/compare_runs.py experiments/a experiments/b
    python scripts/compare_runs.py experiments/a/test experiments/a/test_tfp \\
        experiments/a/test_exposure --md
    python scripts/compare_runs.py experiments/a experiments/b --out curves.png
    python scripts/compare_runs.py experiments/a experiments/b --out scalars.pdf \\
        --tags val/ train/loss
    python scripts/compare_runs.py experiments/a --out report.html
    python scripts/compare_runs.py experiments/000_train_vrt_sample_rgbspike --at-least 3

Runs of main_train_vrt.py are given by their folder, their training_history.jsonl or their
training_history.json. The table has a row for each run. A second table has the options that differ.
Tests of main_test_vrt.py are given by their folder. The table has a row for each test. All tests
must have scored the same frames.

--out FILE      draws curves of loss, PSNR, learning rate and speed. With --tags, it draws a panel
                for each scalar that begins with one of the words.
--out FILE.html writes the report of one run with its images. The run itself writes the same report
                at each validation.
--at-least DB   checks the gain of the last validation over its input. The exit code is 1 if a run
                gains fewer dB.
"""

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.metrics import COLUMNS, METRICS_OF_TESTS, format_score
from models.restore.scores import START_OF_LPIPS_NOTE
from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.options.section import flatten_options
from utils.output_folder import refuse_existing
from utils.results import markdown_table, plain_table, read_json
from utils.run import figures, history, report

# What must stay: the exit code of --at-least, on which users' scripts rely
# (test_a_run_must_gain_three_decibels_in_its_last_validation); and tests are compared only if they
# have scored the same frames.
# Free to change: tables and figures, which are for people.
# Tests: tests/parts/utils/test_results.py and test_history.py. For the table of tests:
# tests/stories/test_reconstruct.py and test_protocols.py.
#
# Throughout this file, `runs` is the name of each run (or test) in the output -> its path, and a
# history is the name of each scalar, e.g. "train/loss", -> its entries (step, value).

METRICS_FILE = "metrics.json"  # the scores of a test; a folder with this file is a folder of a test
RESTORED_PSNR = "val/psnr"  # scalar: PSNR of the restored frames at a validation
BLURRY_PSNR = "val/psnr_input"  # scalar: PSNR of the blurry frames at the same validation
LINE_WIDTH = 100  # characters in a line of a table
ALWAYS_DIFFERENT = (".task", ".path.root")  # options that are not compared, because all runs differ
SHOWN_CLIPS = 5  # clips that an error names; the others are probably different for the same reason


class Table(NamedTuple):
    """A table to print. Each row has a cell for each word of the header."""

    rows: list[list[str]]
    header: list[str]


class TestRow(NamedTuple):
    """A row of the table of tests: a test, or the input."""

    method: str  # e.g. "tfp", or "network, " and its weights
    averages: dict[str, float]  # metric -> mean over the clips


class InputOfClip(NamedTuple):
    """What a test read of one clip. Two tests of the same clip must agree in it."""

    stems: list[str] | None  # names of the frames
    scores: dict[str, float]  # metric -> score of the blurry frames


class ScoredTest(NamedTuple):
    """A test, with what another test must have too, so that the two can be compared."""

    name: str  # of the test in the table
    scoring: str  # how metrics were computed, in words
    clips: dict[str, InputOfClip]


@with_exit_code
def main(argv: list[str]) -> int:
    """Compare, draw or check. Returns the exit code: 1 if a run gains less than --at-least."""
    args = parse(argv)
    if args.at_least is not None:
        codes = [check_gain(run, args.at_least) for run in args.runs]
        return max(codes)  # 1 if any run gains too little

    names = history.run_names(args.runs)
    runs = dict(zip(names, args.runs, strict=True))
    if args.out:
        draw(runs, args.tags, args.out)
        print(f"{args.out}: {', '.join(runs)}")
        return 0

    # Either all paths must be training runs, or all must be tests.
    not_tests = [str(folder) for folder in args.runs if not (folder / METRICS_FILE).is_file()]
    if not_tests and len(not_tests) < len(args.runs):
        raise DataError(
            what=f"no {METRICS_FILE}",
            where=", ".join(not_tests),
            expected="folders of tests, as the others",
            do="leave it out",
        )
    tables = runs_tables(runs) if not_tests else [tests_table(runs)]
    texts = []
    for table in tables:
        if args.md:
            texts.append(markdown_table(table.rows, table.header))
        else:
            texts.append(plain_table(table.rows, table.header, line_width=LINE_WIDTH))
    print("\n\n".join(texts))
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the command line as runs, at_least, md, out and tags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument(
        "--at-least",
        type=float,
        metavar="DB",
        help="check that the last validation gains at least DB",
    )
    parser.add_argument(
        "--md",
        action="store_true",
        help=f"print Markdown; without, lines are cut at {LINE_WIDTH} columns",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file; its suffix sets the format"
    )
    parser.add_argument(
        "--tags",
        nargs="+",
        default=[],
        metavar="PREFIX",
        help="with --out: draw a panel for each of these scalars",
    )
    return parser.parse_args(argv)


# ---- Figures and reports ----------------------------------------------------------------------
#
# Tests: test_scalars_that_are_named_get_a_panel_each,
# test_compare_runs_makes_the_same_page_again_and_overwrites_no_file


def draw(runs: Mapping[str, Path], tags: list[str], out: Path) -> None:
    """Write the figure of the runs, or the report of the only run, to the new file `out`.

    tags: beginnings of the names of scalars. If empty, the usual four panels are drawn.
    """
    refuse_existing(out, "--out")
    histories = {name: history.read_history(run) for name, run in runs.items()}
    suffix = out.suffix.removeprefix(".")
    if suffix == "html":
        write_report(runs, histories, out)
        return

    if tags:
        figure = figures.draw_scalars(chosen_scalars(histories, tags))
    else:
        figure = figures.draw_panels(histories)
    kinds = figure.canvas.get_supported_filetypes()
    if suffix not in kinds:
        raise OptionError(
            what=f"no image format {suffix!r}",
            where=str(out),
            expected=f"html, {', '.join(sorted(kinds))}",
            do="use another suffix",
        )
    write_whole(out, figures.encode(figure, suffix))


def write_report(
    runs: Mapping[str, Path], histories: Mapping[str, history.History], out: Path
) -> None:
    """Write the page about one run. Raises DataError if there are several, or no folder."""
    paths = list(runs.values())
    # The page shows images of the folder, so the history file alone is not enough.
    if len(paths) > 1 or not paths[0].is_dir():
        raise DataError(
            what=f"{', '.join(map(str, paths))}: not the folder of one run",
            where="RUN",
            expected="the folder of one run, for .html",
            do="correct the path",
        )
    scalars = next(iter(histories.values()))  # the history of the only run
    # A run without a name, because the curves of one run need no legend.
    curves = figures.encode(figures.draw_panels({"": scalars}))
    write_whole(out, report.build_report(paths[0], scalars, curves).encode())


def chosen_scalars(
    histories: Mapping[str, history.History], prefixes: list[str]
) -> dict[str, history.History]:
    """Return the histories with only the scalars whose names begin with one of the prefixes.

    Raises DataError if no run has such a scalar.
    """
    chosen: dict[str, history.History] = {}
    names_of_all = set()
    for run, scalars in histories.items():
        names_of_all.update(scalars)
        chosen[run] = {}
        for name, entries in scalars.items():
            if name.startswith(tuple(prefixes)):
                chosen[run][name] = entries
    if not any(chosen.values()):
        raise DataError(
            what=f"no scalar begins with {' or '.join(prefixes)}",
            where="--tags",
            expected=", ".join(sorted(names_of_all)) or "a history that is not empty",
            do="choose among these",
        )
    return chosen


# ---- The gain of a run ------------------------------------------------------------------------


def check_gain(run: Path, at_least: float) -> int:
    """Print the gain of the last validation over its input. Return the exit code.

    The code is 0 if the gain is `at_least` dB or more, else 1.
    """
    scalars = history.read_history(run)
    if not scalars.get(RESTORED_PSNR) or not scalars.get(BLURRY_PSNR):
        raise DataError(
            what="the run has no validation",
            where=str(run),
            expected=f"{RESTORED_PSNR} and {BLURRY_PSNR}",
            do="let it train to its end",
        )
    step, restored = scalars[RESTORED_PSNR][-1]
    _, blurry = scalars[BLURRY_PSNR][-1]
    gain = restored - blurry
    is_enough = gain >= at_least  # False for NaN, too
    verdict = "as expected" if is_enough else "NOT as expected"
    print(f"gain after {step} iterations: {gain:+.2f} dB, {verdict}: at least {at_least:g} dB")
    return 0 if is_enough else 1


# ---- The tables of training runs --------------------------------------------------------------
#
# Test: test_training_runs_give_a_table_of_scores_speed_size_and_the_options_that_differ


def runs_tables(runs: Mapping[str, Path]) -> list[Table]:
    """Return a table of the scores of training runs.

    If options of the runs differ, a second table has a row for each of these options.
    """
    rows = []
    options_of_runs = []  # of each run: dotted key -> value, e.g. ".netG.depths" -> [8, 8]
    for name, run in runs.items():
        rows.append([name, *run_cells(run)])
        options: dict[str, Any] = {}
        file = report.newest_options(history.folder_of(run) / "options")
        if file:  # a history file alone has no options beside it
            options = dict(flatten_options(read_json(file), name=""))
        options_of_runs.append(options)
    tables = [Table(rows, ["run", "best PSNR dB", "at iter", "loss", "it/s", "parameters"])]

    rows_of_options = different_options(options_of_runs)
    if rows_of_options:
        tables.append(Table(rows_of_options, ["option", *runs]))
    return tables


def different_options(options_of_runs: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each option that differs: its key, and its value in each run or "-"."""
    # All keys of any run, each once, in the order in which they appear first.
    keys: list[str] = []
    for options in options_of_runs:
        for key in options:
            if key not in keys:
                keys.append(key)
    rows = []
    for key in keys:
        values = [str(options.get(key, "-")) for options in options_of_runs]
        is_equal = len(set(values)) == 1
        if not is_equal and key not in ALWAYS_DIFFERENT:
            rows.append([key.removeprefix("."), *values])
    return rows


def run_cells(run: Path) -> list[Any]:
    """Return the cells of a run: best PSNR, its step, last loss, last speed, parameters.

    A cell without a value is "-".
    """
    scalars = history.read_history(run)

    # The best validation. Of equal validations it is the last one, because `max` compares the steps
    # of equal values. A validation with NaN does not count.
    best = "-"
    best_step = "-"
    validations = []
    for step, value in scalars.get(RESTORED_PSNR, []):
        if math.isfinite(value):
            validations.append((value, step))
    if validations:
        psnr, step = max(validations)
        best = f"{psnr:.2f}"
        best_step = str(step)

    last_values = []
    for tag in ("train/loss", "train/it_per_s"):
        if tag in scalars:
            _, value = scalars[tag][-1]
            last_values.append(f"{value:.4g}")
        else:
            last_values.append("-")

    # The file about the machine and the network, which older runs do not have.
    environment = history.folder_of(run) / report.ENVIRONMENT_NAME
    about = read_json(environment) if environment.is_file() else {}
    return [best, best_step, *last_values, about.get("parameters", "-")]


# ---- The table of tests -----------------------------------------------------------------------
#
# Two tests that scored other frames, or scored in another way, must never stand in one table
# (test_a_test_on_other_frames_is_refused_in_the_table,
# test_results_of_different_protocols_are_not_compared).


def tests_table(folders: Mapping[str, Path]) -> Table:
    """Return a table of several tests on the same frames: first the input, then a row for each.

    A metric that a test does not have, such as RGB PSNR of grey frames, is a dash. Raises DataError
    if a test has no scores, or if two tests were scored differently or on different frames.
    """
    table_rows: dict[str, TestRow] = {}
    first: ScoredTest | None = None
    for name, folder in folders.items():
        result = read_test(name, folder)
        averages = result["averages"]
        test = scored_test(name, result)
        # All tests have the same input, so the first test says its scores.
        if first is None:
            first = test
            table_rows["input"] = TestRow(method="", averages=averages.get("input", {}))
        refuse_other_scoring(first, test)
        refuse_other_frames(first, test)
        # A formula has the key "method" in its protocol, a network the key "weights".
        about = result["protocol"]
        method = about.get("method")
        if not method:
            method = f"network, {about.get('weights', '')}"
        table_rows[name] = TestRow(method, averages["restored"])

    # A column for each metric that any row has, in the order of COLUMNS.
    metrics = []
    for metric in COLUMNS:
        if any(metric in row.averages for row in table_rows.values()):
            metrics.append(metric)
    rows = []
    for name, row in table_rows.items():
        scores = [format_score(metric, row.averages.get(metric)) for metric in metrics]
        rows.append([name, row.method, *scores])
    return Table(rows, ["test", "method", *(COLUMNS[metric].title for metric in metrics)])


def scored_test(name: str, result: dict[str, Any]) -> ScoredTest:
    """Return what a test must have in common with another test.

    result: the content of its metrics.json.
    """
    # If LPIPS was computed, the text goes on with its network and weights, e.g. "...; LPIPS: ...".
    # Tests with other weights of LPIPS may be compared, so this part is cut off.
    scoring, _, _ = result["protocol"].get("metrics", "").partition(START_OF_LPIPS_NOTE)
    # The frames of each clip and the scores of its input tell two test sets apart.
    clips = {}
    for clip, of_clip in result["clips"].items():
        clips[clip] = InputOfClip(of_clip.get("stems"), of_clip.get("input", {}))
    return ScoredTest(name, scoring, clips)


def read_test(name: str, folder: Path) -> dict[str, Any]:
    """Return the metrics.json of a test. Raises DataError if it is no result with scores."""
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
            expected="the same metric.values and metric.mean",
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

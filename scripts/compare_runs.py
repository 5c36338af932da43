#!/usr/bin/env python3
"""Compare training runs, or the scores of tests, in a table or a figure. This program also writes
the report of one run, and checks the gain of runs.

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
import sys
from collections.abc import Mapping
from pathlib import Path

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.compare_runs.table_of_tests import METRICS_FILE, tests_table
from scripts.parts.compare_runs.tables_of_runs import RESTORED_PSNR, runs_tables
from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.output_folder import refuse_existing
from utils.results import markdown_table, plain_table
from utils.run import figures, history, report

# This file has the command line, the figures and the gain. The tables are in
# scripts/parts/compare_runs/.
#
# What must stay: the exit code of --at-least, on which users' scripts rely
# (test_a_run_must_gain_three_decibels_in_its_last_validation).
# Free to change: figures, which are for people.
# Tests: tests/parts/utils/test_results.py and test_history.py; for the table of tests
# tests/stories/test_reconstruct.py and test_protocols.py.
#
# Throughout this file:
#     runs       name of a run (or test) in the output -> its path
#     history    name of a scalar, e.g. "train/loss" -> its entries (step, value)

# Name of the scalar with the PSNR of the blurry frames. Each validation writes this scalar beside
# RESTORED_PSNR, the PSNR of the restored frames. models/restore/validation.py and
# utils/run/experiment.py have the same name, so change all three files.
BLURRY_PSNR = "val/psnr_input"
LINE_WIDTH = 100  # characters in a line of a table


@with_exit_code
def main(argv: list[str]) -> int:
    """Compare, draw or check. Returns the exit code: 1 if a run gains less than --at-least."""
    args = parse(argv)
    if args.at_least is not None:
        codes = [check_gain(run, args.at_least) for run in args.runs]
        return max(codes)  # each code is 0 or 1, so the result is 1 if any run gains too little

    names = history.run_names(args.runs)
    runs = dict(zip(names, args.runs, strict=True))  # name -> path
    if args.out:
        draw(runs, args.tags, args.out)
        print(f"{args.out}: {', '.join(runs)}")
        return 0

    # Either all paths must be training runs, or all must be tests. Only the folder of a test has
    # the file METRICS_FILE (metrics.json). If no path is a run, all paths are tests. If every path
    # is a run, none is a test.
    runs_among_paths = [str(path) for path in args.runs if not (path / METRICS_FILE).is_file()]
    are_tests = len(runs_among_paths) == 0
    are_runs = len(runs_among_paths) == len(args.runs)
    if not are_tests and not are_runs:
        raise DataError(
            what=f"no {METRICS_FILE}",
            where=", ".join(runs_among_paths),
            expected="folders of tests, as the others",
            do="give only tests, or only training runs",
        )
    tables = [tests_table(runs)] if are_tests else runs_tables(runs)
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
    """Write the page about one run. Raises DataError for several runs, or without a folder.

    runs: name of a run -> its path. histories: name of a run -> its scalars.
    out: the new file.
    """
    paths = list(runs.values())
    # The page shows images of the folder, so a history file without its folder is not enough.
    if len(paths) > 1 or not paths[0].is_dir():
        raise DataError(
            what=f"{', '.join(map(str, paths))}: not the folder of one run",
            where="RUN",
            expected="the folder of one run, for .html",
            do="correct the path",
        )
    scalars = next(iter(histories.values()))  # the history of the only run
    # The name of the run is "", because the curves of one run need no legend.
    curves = figures.encode(figures.draw_panels({"": scalars}))
    write_whole(out, report.build_report(paths[0], scalars, curves).encode())


def chosen_scalars(
    histories: Mapping[str, history.History], prefixes: list[str]
) -> dict[str, history.History]:
    """Return the histories with only the scalars whose names begin with one of the prefixes.

    Raises DataError if no run has a scalar with such a name.
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
    """Print how many dB a run gains over the blurry frames. Return the exit code.

    The gain is PSNR of the restored frames - PSNR of the blurry frames, at the last validation. The
    exit code is 0 if the gain is `at_least` dB or more, else 1.
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

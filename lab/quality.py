#!/usr/bin/env python3
"""Find out which method restores best: train, test and compare option files.

    python lab/quality.py
    python lab/quality.py --suite real --videos VIDEOS --steps 500

A method is an option file (a network with its fusion), trained for a number of steps, or a formula
that needs no training. The suite says what the methods are trained and tested on:

    sample   the made scenes of `make sample`. This suite only tests that the program runs
    real     eleven videos. Seven of them are for training, together with photographs and the made
             scenes. Two (--part choose) are for choosing between methods, and two (--part report,
             the default) for the reported results. The clips of a test video are made once for each
             condition. A condition is a rig, i.e. a pair of simulated cameras, e.g. "dim"
             (data/cameras/rig_values.py)

The program works in this order. The modules are in lab/quality_suite/:

    module     functions               input                   output
    sets       make_made, make_real    scenes and videos    -> Data (the sets of clips)
    methods    read_method             an option file       -> Method
    runs       train_and_test          a method and a seed  -> results/<run>_<part>.json
    tables     tables                  all results          -> table_<part>.md

If the program is stopped, repeat the command: it resumes where it stopped. A finished run is
repeated only if its options have changed. The runs in docs/benchmarks/quality count as finished.
docs/benchmarks/quality_networks.md has the figures.

What must stay: the lists in quality_suite/sources.py and quality_suite/sets.py, because finished
results were measured with these lists. Never train on the videos of the parts "choose" and
"report". Free to add: a method (an option file), or a formula (a value of --method of
main_test_vrt.py, in FORMULAS).
tests/parts/house/test_quality_command.py, a slow test, runs this program on the suite `sample`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.quality_suite.methods import Method, read_method, refuse_unequal_pixels_per_step
from lab.quality_suite.outcomes import Outcome
from lab.quality_suite.runs import (
    finished_result,
    has_all_conditions,
    scores_on_tests,
    train_and_test,
    write_result,
)
from lab.quality_suite.sets import CONDITIONS, Data, make_made, make_real
from lab.quality_suite.tables import tables
from lab.tools import ROOT
from utils.results import read_json

# Formulas that need no training: values of --method of main_test_vrt.py. "tfp" and "tfi" compute a
# frame from firing rates of the spikes alone (docs/data_reference.md). "exposure" multiplies a
# blurry frame by a ratio of spikes, as the published method S-SDM does (docs/links.md), but in
# linear light.
FORMULAS = ("tfp", "tfi", "exposure")


def main(argv: list[str]) -> int:
    """Make the data, train and test what is not finished, and print the tables.

    Returns the exit code 0. An error ends the program earlier, with a message.
    """
    args = parse(argv)
    out = args.out
    (out / "results").mkdir(parents=True, exist_ok=True)
    if args.suite == "real":
        data = make_real(out, args.videos, args.part, args.conditions)
    else:
        data = make_made(out)
    # A method is an option file with a number of steps. All files of --opt are read, because the
    # tables also show finished results of files that --only leaves out.
    methods = []
    for steps in args.steps:
        for file in args.opt:
            methods.append(read_method(file, data, steps))
    # Methods are compared after the same number of steps. A method with more pixels per step would
    # be trained on more data than the other methods.
    refuse_unequal_pixels_per_step(methods)

    # The seeds are the outer loop: seed 0 of all methods is finished before seed 1 of any method.
    # So if the program is stopped, methods can be compared over the seeds that are finished.
    for seed in args.seeds:
        for method in methods:
            # `finished_result` returns the result of a run, or None if the run is not finished.
            is_chosen = args.only is None or method.file.stem in args.only
            if is_chosen and not finished_result(out, data, method, seed):
                train_and_test(out, data, method, seed)

    text = report(out, data, methods, args.seeds)
    (out / f"table_{args.part}.md").write_text(text)
    print(text)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments of the command line, with the defaults of `out` and `opt` filled in.

    Ends the program if --only names a file that --opt does not have.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--suite", choices=("sample", "real"), default="sample", help="default %(default)s")
    add("--videos", type=Path, help="suite real: folder of the eleven videos")
    add(
        "--part",
        choices=("choose", "report"),
        default="report",
        help="suite real: which videos the methods are tested on, default %(default)s",
    )
    add(
        "--conditions",
        nargs="+",
        choices=CONDITIONS,
        default=CONDITIONS,
        help="suite real: cameras of the test clips (default: all)",
    )
    add(
        "--opt",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="option files of the methods (default: all of options/benchmark)",
    )
    add("--only", nargs="+", metavar="NAME", help="train only these files (names without .json)")
    add("--seeds", type=int, nargs="+", default=[0, 1], help="seeds of each method, default 0 1")
    add(
        "--steps",
        type=int,
        nargs="+",
        default=[500],
        help="number of training steps; with several numbers, each file is trained once for each "
        "number (default 500)",
    )
    add("--out", type=Path, help="results folder (default experiments/quality/SUITE)")
    args = parser.parse_args(argv)
    args.out = (args.out or ROOT / "experiments/quality" / args.suite).resolve()
    args.opt = args.opt or sorted((ROOT / "options/benchmark").glob("*.json"))
    names = [file.stem for file in args.opt]
    for name in args.only or []:
        if name not in names:
            parser.error(f"--only {name}: choose from {', '.join(names)}")
    return args


def report(out: Path, data: Data, methods: Sequence[Method], seeds: Sequence[int]) -> str:
    """Return the tables of the formulas and of all finished runs, as Markdown.

    If the results of a formula do not exist, this function tests the formula first.
    """
    # A formula has no network. It needs an option file only to know how clips are read.
    option_file = methods[0].file
    outcomes = []
    for formula in FORMULAS:
        outcomes.append(outcome_of_formula(out, data, formula, option_file))
    for method in methods:
        runs = {}  # seed -> result of a finished run
        for seed in seeds:
            result = finished_result(out, data, method, seed)
            if result:
                runs[seed] = result
        if runs:
            outcomes.append(Outcome(method.name, method.parameters, runs))
    return tables(outcomes, list(data.tests))


def outcome_of_formula(out: Path, data: Data, formula: str, option_file: Path) -> Outcome:
    """Return the results of a formula. Tests the formula if a condition has no results yet.

    A result that exists is used again, also if it was measured under more conditions.
    """
    file = out / "results" / f"{formula}_{data.part}.json"
    is_finished = file.exists() and has_all_conditions(read_json(file), data)
    if not is_finished:
        clips = scores_on_tests(out, data, formula, option_file, "--method", formula)
        write_result(out, data, formula, {"clips": clips})
    # A formula has no parameters and no seed. Its only run gets the seed 0.
    return Outcome(formula, parameters=0, runs={0: read_json(file)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

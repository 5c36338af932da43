"""benchmark.py quality: trains option files alike, tests them under several cameras and ranks them.

Every file is trained with the same seeds, data and steps by main_train_vrt.py and tested by main_test_vrt.py. Repeat
the command to go on where it stopped; a finished run is repeated only if its options have changed. Several commands may
work in one folder at the same time, for instance with different --only. docs/benchmarks/quality.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from models.restore.results import read_json
from scripts.make_sample_data import CAMERAS, SIZES
from scripts.quality_data import conditions, locked, make_data
from scripts.quality_report import Outcome, report, strip
from scripts.quality_runs import Method, check_alike, estimate_name, read_method, result_file, run_estimate, run_one
from utils.errors import OptionError
from utils.files import Made

ROOT = Path(__file__).resolve().parent.parent
ESTIMATE = "exposure estimate"  # main_test_vrt.py --method exposure: no network, no training

TABLES = ("table.md", "table.json", "strip.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--suite", choices=SIZES, default="sample", help="which scenes (default %(default)s)")
    parser.add_argument("--opt", type=Path, nargs="+", metavar="FILE", help="default: all of options/benchmark")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="train these option files only (names without .json)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    parser.add_argument("--steps", type=int, default=500, help="default %(default)s")
    parser.add_argument("--reference", default="concat", metavar="NAME", help="compared with (default %(default)s)")
    parser.add_argument("--clips", type=int, nargs=2, metavar=("TRAIN", "TEST"), help="default: those of the suite")
    parser.add_argument("--frames", type=int, help="of a clip (default: those of the suite)")
    parser.add_argument("--out", type=Path, help="results folder (default experiments/quality/SUITE)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The numbers of all runs of these option files that are finished, also by other commands."""
    out = (args.out or ROOT / "experiments/quality" / args.suite).resolve()
    files = args.opt or sorted((ROOT / "options/benchmark").glob("*.json"))
    made = Made(out)
    made.check(out / name for name in TABLES)
    clips = dict(zip(("train", "test"), args.clips, strict=True)) if args.clips else None
    data, digest = make_data(out, args.suite, clips, args.frames)
    methods = [read_method(file, data, digest, args.steps) for file in files]
    check_alike(methods)
    for seed in args.seeds:
        for method in chosen(methods, args.only):
            run_one(out, data, method, seed)
    estimate = run_estimate(out, data, methods[0], digest)
    found = {
        method.name: {seed: read_json(file) for seed in args.seeds if (file := result_file(out, method, seed)).exists()}
        for method in methods
    }
    outcomes = [Outcome(method.name, method.parameters, runs) for method in methods if (runs := found[method.name])]
    outcomes.append(Outcome(ESTIMATE, 0, dict.fromkeys(args.seeds, estimate)))
    text, numbers = report(outcomes, args.reference, list(conditions(CAMERAS)))
    text = f"{args.suite} suite, {args.steps} steps, data {digest}\n\n{text}"
    tests = {m.name: out / "tests" / m.run_name(s) for m in methods for s in args.seeds[:1] if s in found[m.name]}
    # A result that came from another machine has no pictures here.
    tests = {name: folder for name, folder in tests.items() if folder.is_dir()}
    tests[ESTIMATE] = out / "tests" / estimate_name(digest)
    numbers = {"suite": args.suite, "steps": args.steps, "seeds": args.seeds, "data": digest, **numbers}
    contents = (text.encode(), (json.dumps(numbers, indent=1) + "\n").encode(), strip(data, tests))
    with locked(out / ".table.lock"):
        for name, content in zip(TABLES, contents, strict=True):
            made.write(out / name, content)
    print(text)
    return numbers


def chosen(methods: list[Method], only: list[str] | None) -> list[Method]:
    names = [method.name for method in methods]
    if wrong := sorted(set(only or ()) - set(names)):
        raise OptionError(f"no option file is called {wrong[0]}", "--only", ", ".join(names), "correct --only")
    return [method for method in methods if only is None or method.name in only]


SUBCOMMANDS = {"quality": (add_arguments, run)}

#!/usr/bin/env python3
"""Compare training runs, or the scores of tests, in a table; or the loss curves of two runs with those of other seeds.

    python scripts/compare_runs.py experiments/a experiments/b
    python scripts/compare_runs.py experiments/a/test experiments/a/test_tfp experiments/a/test_exposure --md
    python scripts/compare_runs.py experiments/000_train_vrt_sample_rgbspike --at-least 3
    python scripts/compare_runs.py experiments/fp32 experiments/bf16 --noise experiments/seed1 --out docs/benchmarks/amp

Folders of runs (main_train_vrt.py): a row for each, and the options that differ. Folders of tests (main_test_vrt.py): a
row for each; they must have scored the same frames. With --at-least: exit code 1 where the last validation of a run
gains fewer dB over its input. With --noise, one or more repetitions of the first run with another train.manual_seed:
writes the smoothed curves to OUT.png and OUT.json; exit code 1 where the difference is larger than that between seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import refuse_existing, write_whole
from utils.metrics import COLUMNS, format_score, markdown_table, plain_table, read_json
from utils.options.section import flat
from utils.run.history import ENVIRONMENT_NAME, folder_of, newest_options, read_history, run_names

METRICS, VALIDATED = "metrics.json", ("val/psnr", "val/psnr_input")
WIDTH = 100  # characters in a line of a table
OF_ONE_RUN = (".task", ".path.root")  # options that differ in any case
Table = tuple[list[list[str]], list[str]]  # rows and header


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--at-least", type=float, metavar="DB", help="the least gain of the last validation")
    parser.add_argument("--noise", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--tag", default="train/loss", help="scalar of the history (default %(default)s)")
    parser.add_argument("--smooth", type=int, default=5, help="log entries in a running mean (default %(default)s)")
    parser.add_argument("--out", type=Path, help="path without suffix")
    parser.add_argument("--md", action="store_true", help=f"Markdown, uncut; else at most {WIDTH} columns")
    args = parser.parse_args(argv)
    if args.at_least is not None:
        return max(check_gain(run, args.at_least) for run in args.runs)
    if args.noise or args.out:
        if len(args.runs) != 2 or not args.noise or not args.out:
            what = f"{len(args.runs)} runs, with --noise or --out"
            raise OptionError(what, "the command line", "two runs, --noise and --out", "add what is missing")
        return compare_losses(args)
    runs = dict(zip(run_names(args.runs), args.runs, strict=True))
    without = [str(folder) for folder in args.runs if not (folder / METRICS).is_file()]
    if without and len(without) < len(args.runs):
        raise DataError(f"no {METRICS}", ", ".join(without), "folders of tests, as the others", "leave it out")
    tables = runs_tables(runs) if without else [tests_table(runs)]
    print("\n\n".join(markdown_table(*table) if args.md else plain_table(*table, most=WIDTH) for table in tables))
    return 0


def check_gain(run: Path, at_least: float) -> int:
    """Exit code 0 where the last validation of the run gains `at_least` dB over its input, 1 where it does not."""
    history = read_history(run)
    if not all(history.get(tag) for tag in VALIDATED):
        raise DataError("the run has no validation", str(run), " and ".join(VALIDATED), "let it train to its end")
    (step, restored), (_, blurry) = (history[tag][-1] for tag in VALIDATED)
    is_enough = restored - blurry >= at_least  # False also for NaN
    judged = "as expected" if is_enough else "NOT as expected"
    print(f"gain after {step} iterations: {restored - blurry:+.2f} dB, {judged}: at least {at_least:g} dB")
    return int(not is_enough)


def runs_tables(runs: Mapping[str, Path]) -> list[Table]:
    """Scores, speed and size of training runs by name, and the options that differ between them, one in a row."""
    rows, options = [], []
    for name, run in runs.items():
        history, folder = read_history(run), folder_of(run)
        psnr = [(value, step) for step, value in history.get("val/psnr", []) if math.isfinite(value)]
        best, at = (f"{max(psnr)[0]:.2f}", str(max(psnr)[1])) if psnr else ("-", "-")
        last = [f"{history[tag][-1][1]:.4g}" if tag in history else "-" for tag in ("train/loss", "train/it_per_s")]
        about = read_json(file) if (file := folder / ENVIRONMENT_NAME).is_file() else {}
        rows.append([name, best, at, *last, about.get("parameters", "-")])
        saved = newest_options(folder / "options")
        options.append(dict(flat(read_json(saved), "")) if saved else {})
    scores = (rows, ["run", "best PSNR dB", "at iter", "loss", "it/s", "parameters"])
    values = {key: [str(known.get(key, "-")) for known in options] for known in options for key in known}
    changed = [[key[1:], *found] for key, found in values.items() if len(set(found)) > 1 and key not in OF_ONE_RUN]
    return [scores, (changed, ["option", *runs])] if changed else [scores]


def tests_table(folders: Mapping[str, Path]) -> Table:
    """A table of several tests on the same frames: the input, then one row for each.

    A metric that a test does not have, such as RGB PSNR of grey frames, is a dash. Raises DataError for tests without
    scores and for tests of different frames.
    """
    scores: dict[str, tuple[str, dict[str, Any]]] = {}  # name -> method, averages
    reference: dict[str, Any] = {}
    for name, folder in folders.items():
        test = read_json(folder / METRICS)
        if not isinstance(test, dict) or not {"protocol", "clips", "averages"} <= test.keys():
            raise DataError("no results of a test", str(folder / METRICS), "what main_test_vrt.py writes", "repeat it")
        about, averages = test["protocol"], test["averages"]
        if not averages.get("restored"):
            raise DataError("a test without scores", name, "a test with sharp frames", "leave it out")
        # The frames of each clip and the scores of its input tell two test sets apart.
        clips = {
            clip: (found.get("stems"), {m: round(v, 6) for m, v in found.get("input", {}).items() if m != "lpips"})
            for clip, found in test["clips"].items()
        }
        if not scores:
            first, reference = name, clips
            scores["input"] = ("", averages.get("input", {}))
        if odd := [clip for clip in {**reference, **clips} if reference.get(clip) != clips.get(clip)]:
            what = f"{first} and {name} were not scored on the same frames and input: {', '.join(odd[:5])}"
            raise DataError(what, name, "tests of the same clips, frames and input", "repeat one of the tests")
        scores[name] = (about.get("method") or f"network, {about.get('weights', '')}", averages["restored"])
    metrics = [m for m in COLUMNS if any(m in found for _, found in scores.values())]
    rows = [[name, about, *(format_score(m, found.get(m)) for m in metrics)] for name, (about, found) in scores.items()]
    return rows, ["test", "method", *(COLUMNS[m] for m in metrics)]


def compare_losses(args: argparse.Namespace) -> int:
    from matplotlib.figure import Figure  # takes half a second to import, and a comparison of tests draws nothing

    for suffix in (".json", ".png"):
        refuse_existing(args.out.with_suffix(suffix), "--out")
    names = run_names(args.runs)
    runs, histories = [*args.runs, *args.noise], []
    for run in runs:
        history = read_history(run)
        if args.tag not in history:
            raise DataError(f"no {args.tag} in {run}", "--tag", ", ".join(sorted(history)), "choose one of these")
        histories.append(dict(history[args.tag]))
    steps = sorted(set.intersection(*map(set, histories)))
    if len(steps) < args.smooth:
        what, do = f"{len(steps)} steps with {args.tag} in common", "give runs with the same checkpoint_print"
        raise DataError(what, ", ".join(map(str, runs)), f"{args.smooth} or more", do)
    kernel = np.full(args.smooth, 1 / args.smooth)
    curves = np.array([np.convolve([history[step] for step in steps], kernel, "valid") for history in histories])
    # Relative to the first curve: the second one, and those of other seeds, of which the largest count.
    relative = (curves[1:] - curves[0]) / np.abs(curves[0])
    figures = [
        {"rms": float(np.sqrt(np.mean(d**2))), "largest": float(np.abs(d).max()), "last": float(abs(d[-1]))}
        for d in relative
    ]
    difference, noise = figures[0], {key: max(f[key] for f in figures[1:]) for key in figures[0]}
    is_within_noise = difference["rms"] <= noise["rms"]
    result = {"tag": args.tag, "runs": names, "smooth": args.smooth, "difference": difference, "noise": noise}
    result["is_within_noise"] = is_within_noise
    write_whole(args.out.with_suffix(".json"), (json.dumps(result, indent=2) + "\n").encode())
    figure = Figure(figsize=(7, 6), layout="tight")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for curve, label in zip(curves, [*names, *["another seed"] * len(args.noise)], strict=True):
        top.plot(steps[args.smooth - 1 :], curve, label=label, linewidth=1.2)
        bottom.plot(steps[args.smooth - 1 :], 100 * (curve / curves[0] - 1), linewidth=1.2)
    top.set(ylabel=args.tag, yscale="log")
    top.legend()
    bottom.set(xlabel="step", ylabel=f"% from {names[0]}")
    figure.savefig(args.out.with_suffix(".png"), dpi=110)
    rows = [[f"{names[1]} - {names[0]}", *difference.values()], [f"another seed - {names[0]}", *noise.values()]]
    print(markdown_table(rows, ["smoothed difference, relative", *difference]))
    print("within noise" if is_within_noise else "NOT within noise")
    return int(not is_within_noise)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Compare the loss curves of two runs. Do they differ by more than curves of two seeds differ?

    python -m lab.compare_curves experiments/fp32 experiments/bf16 \\
        --noise experiments/seed1 --out docs/benchmarks/amp

--noise: repetitions of the first run with another train.manual_seed.

The program writes OUT.json with the figures, and OUT.png with the curves. The exit code is 1 if the
second run differs more from the first run than each repetition does.

All curves are smoothed by a running mean. The smoothed curve of the first run is the reference. The
figure `rms` says how much another curve differs from the reference:

    rms = root mean square, over all steps, of (curve - reference) / |reference|

The `rms` of the second run is compared with the largest `rms` of the repetitions.

What must stay: the keys of OUT.json, because files in docs/benchmarks have them. No other program
uses this file. Test:
test_a_difference_is_compared_with_the_difference_between_two_seeds in
tests/parts/utils/test_history.py.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from utils.errors import DataError
from utils.run.history import read_history, run_names


def main(argv: list[str]) -> int:
    """Compare the curves, and write the differences and the plot.

    Returns the exit code: 0 if `rms` of the second run is at most the largest `rms` of the
    repetitions, else 1.
    """
    args = read_arguments(argv)
    names = run_names(args.runs)
    steps, curves = read_curves([*args.runs, *args.noise], args.tag, args.smooth)

    # A curve is a row of `curves`, (N,):
    #
    #     row 0         the first run, the reference
    #     row 1         the second run
    #     other rows    the repetitions of the first run with other seeds
    #
    # All other rows are compared with row 0. The star puts the rows from 2 on into a list.
    reference, curve_of_second, *curves_of_seeds = curves
    difference_of_runs = difference(curve_of_second, reference)
    differences_of_seeds = [difference(curve, reference) for curve in curves_of_seeds]
    # For each of "rms", "largest" and "last", take the largest value of all seeds. The three values
    # may come from different seeds.
    noise = {}  # e.g. {"rms": 0.02, "largest": 0.09, "last": 0.01}
    for key in difference_of_runs:
        noise[key] = max(of_seed[key] for of_seed in differences_of_seeds)

    result = {
        "tag": args.tag,
        "runs": names,
        "smooth": args.smooth,
        "difference": difference_of_runs,
        "noise": noise,
        "is_within_noise": difference_of_runs["rms"] <= noise["rms"],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    labels_of_seeds = ["another seed"] * len(args.noise)
    labels = [*names, *labels_of_seeds]  # in the order of `curves`
    figure = plot(steps, curves, labels, args.tag)
    figure.savefig(args.out.with_suffix(".png"), dpi=110)

    print(json.dumps(result, indent=2))
    return 0 if result["is_within_noise"] else 1


def read_arguments(argv: list[str]) -> argparse.Namespace:
    """Read the flags of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("runs", type=Path, nargs=2, metavar="RUN")
    add("--noise", type=Path, nargs="+", metavar="RUN", required=True)
    add("--tag", default="train/loss", help="scalar of the history (default %(default)s)")
    help_of_smooth = "log entries in a running mean (default %(default)s)"
    add("--smooth", type=int, default=5, help=help_of_smooth)
    add("--out", type=Path, required=True, help="path without suffix")
    return parser.parse_args(argv)


def read_curves(runs: list[Path], tag: str, smooth: int) -> tuple[list[int], np.ndarray]:
    """Read a scalar of several runs, at the steps that all of them have logged.

    tag: name of the scalar in the history, e.g. "train/loss".
    smooth: number of log entries in a running mean.

    Returns the N steps, and the smoothed curves (runs, N). Each value is the mean of the last
    `smooth` entries. So the first `smooth` - 1 common steps have no value, and are left out. E.g.
    smooth = 3 and the common steps 10, 20, 30, 40 give values at the steps 30 and 40.

    Raises DataError if the runs have fewer common steps than `smooth`.
    """
    # For each run: step -> value. `read_history(run)[tag]` is the list of the pairs (step, value).
    histories = []
    for run in runs:
        histories.append({int(step): value for step, value in read_history(run)[tag]})

    common = set(histories[0])
    for history in histories[1:]:
        common = common & set(history)
    steps = sorted(common)
    # If there are fewer values than weights, np.convolve exchanges the two. Its results would not
    # be running means. So require at least as many values as weights.
    if len(steps) < smooth:
        raise DataError(
            what=f"{len(steps)} common steps, fewer than the {smooth} entries of a running mean",
            where=", ".join(map(str, runs)),
            expected=f"runs that have logged {tag} at {smooth} common steps or more",
            do="lower --smooth, or give longer runs",
        )

    weights = np.full(smooth, 1 / smooth)
    curves = []
    for history in histories:
        values = [history[step] for step in steps]
        curves.append(np.convolve(values, weights, "valid"))
    return steps[smooth - 1 :], np.array(curves)


def difference(curve: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Return how much a curve differs from a reference, as a fraction of the reference.

    rms: root mean square of the difference over all steps.
    largest: largest absolute difference of all steps.
    last: absolute difference at the last step.

    curve, reference: (N,), the values at N steps.
    """
    change = (curve - reference) / np.abs(reference)
    return {
        "rms": float(np.sqrt(np.mean(change**2))),
        "largest": float(np.abs(change).max()),
        "last": float(abs(change[-1])),
    }


def plot(steps: list[int], curves: np.ndarray, labels: list[str], tag: str) -> Figure:
    """Plot the curves in the upper half, and their difference from the first curve below.

    The difference is in percent of the first curve.

    steps: the N steps. curves: (runs, N). labels: a label for each run.
    """
    figure = Figure(figsize=(7, 6), layout="tight")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for curve, label in zip(curves, labels, strict=True):
        top.plot(steps, curve, label=label, linewidth=1.2)
        percent = 100 * (curve / curves[0] - 1)
        bottom.plot(steps, percent, linewidth=1.2)
    top.set(ylabel=tag, yscale="log")
    top.legend()
    bottom.set(xlabel="step", ylabel=f"% from {labels[0]}")
    return figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

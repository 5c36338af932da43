#!/usr/bin/env python3
"""Is the difference of two runs' loss curves larger than that between seeds?

Writes OUT.json and OUT.png.

python -m lab.compare_curves experiments/fp32 experiments/bf16 --noise experiments/seed1 --out
docs/benchmarks/amp

--noise: repetitions of the first run with another train.manual_seed. Exit code 1 where the
difference is larger.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from utils.run.history import read_history, run_names


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN")
    parser.add_argument("--noise", type=Path, nargs="+", metavar="RUN", required=True)
    parser.add_argument(
        "--tag", default="train/loss", help="scalar of the history (default %(default)s)"
    )
    parser.add_argument(
        "--smooth", type=int, default=5, help="log entries in a running mean (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, help="path without suffix")
    args = parser.parse_args(argv)
    names = run_names(args.runs)
    scalars = (read_history(run)[args.tag] for run in (*args.runs, *args.noise))
    histories = [{int(step): value for step, value in scalar} for scalar in scalars]
    steps = sorted(set.intersection(*map(set, histories)))
    kernel = np.full(args.smooth, 1 / args.smooth)
    curves = np.array(
        [np.convolve([history[step] for step in steps], kernel, "valid") for history in histories]
    )
    # Relative to the first curve: the second one, and those of other seeds, of which the largest
    # count.
    figures = [
        {
            "rms": float(np.sqrt(np.mean(d**2))),
            "largest": float(np.abs(d).max()),
            "last": float(abs(d[-1])),
        }
        for d in (curves[1:] - curves[0]) / np.abs(curves[0])
    ]
    noise = {key: max(f[key] for f in figures[1:]) for key in figures[0]}
    result = {
        "tag": args.tag,
        "runs": names,
        "smooth": args.smooth,
        "difference": figures[0],
        "noise": noise,
    }
    result["is_within_noise"] = figures[0]["rms"] <= noise["rms"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    figure = Figure(figsize=(7, 6), layout="tight")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for curve, label in zip(curves, [*names, *["another seed"] * len(args.noise)], strict=True):
        top.plot(steps[args.smooth - 1 :], curve, label=label, linewidth=1.2)
        bottom.plot(steps[args.smooth - 1 :], 100 * (curve / curves[0] - 1), linewidth=1.2)
    top.set(ylabel=args.tag, yscale="log")
    top.legend()
    bottom.set(xlabel="step", ylabel=f"% from {names[0]}")
    figure.savefig(args.out.with_suffix(".png"), dpi=110)
    print(json.dumps(result, indent=2))
    return int(not result["is_within_noise"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

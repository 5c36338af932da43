#!/usr/bin/env python3
"""Compare the scores of several tests, or the smoothed loss curves of two runs with the difference between seeds.

    python scripts/compare_runs.py experiments/a/test experiments/a/test_tfp experiments/a/test_exposure
    python scripts/compare_runs.py experiments/fp32 experiments/bf16 --noise experiments/seed1 --out docs/benchmarks/amp

Folders of tests (main_test_vrt.py): prints one table with a row for each; they must have scored the same frames.
Runs: each is given by its folder, its training_history.jsonl or .json. --noise: one or more repetitions of the first
run with another train.manual_seed. Writes OUT.png and OUT.json, prints a table. Exit code 1 where the difference is
larger than that between seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from models.restore.results import compare as compare_tests
from models.restore.results import read_json
from scripts.benchmark_tools import table
from scripts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import refuse_existing, write_whole
from utils.run.history import read_history, run_names

METRICS = "metrics.json"


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--noise", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--tag", default="train/loss", help="scalar of the history (default %(default)s)")
    parser.add_argument("--smooth", type=int, default=5, help="log entries in a running mean (default %(default)s)")
    parser.add_argument("--out", type=Path, help="path without suffix")
    args = parser.parse_args(argv)
    without = [str(folder) for folder in args.runs if not (folder / METRICS).is_file()]
    if len(without) < len(args.runs):
        if without:
            do = "test there with main_test_vrt.py, or leave it out"
            raise DataError(f"no {METRICS}", ", ".join(without), "folders of tests, as the others", do)
        header, rows = compare_tests({str(folder): read_json(folder / METRICS) for folder in args.runs})
        print(table(rows, header))
        return 0
    if len(args.runs) != 2 or not args.noise or not args.out:
        raise OptionError(
            f"{len(args.runs)} runs", "the command line", "two runs, --noise and --out; or folders of tests",
            "see --help",
        )  # fmt: skip
    return compare_losses(args)


def compare_losses(args: argparse.Namespace) -> int:
    for suffix in (".json", ".png"):
        refuse_existing(args.out.with_suffix(suffix), "--out")
    steps, curves = aligned([*args.runs, *args.noise], args.tag, args.smooth)
    names = run_names(args.runs)
    result = {"tag": args.tag, "runs": names, "smooth": args.smooth, **compare(curves)}
    write_whole(args.out.with_suffix(".json"), (json.dumps(result, indent=2) + "\n").encode())
    draw(steps, curves, names, args.tag, args.out.with_suffix(".png"))
    keys = ("rms", "largest", "last")
    rows = [[f"{names[1]} - {names[0]}", *(result["difference"][key] for key in keys)]]
    rows.append(["another seed - " + names[0], *(result["noise"][key] for key in keys)])
    print(table(rows, ["smoothed difference, relative", *keys]))
    print("within noise" if result["is_within_noise"] else "NOT within noise")
    return int(not result["is_within_noise"])


def aligned(runs: list[Path], tag: str, smooth: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps that all runs logged, (n,), and the running mean of `tag` over `smooth` entries per run, (runs, n)."""
    histories = [dict(entries_of(run, tag)) for run in runs]
    steps = sorted(set.intersection(*(set(history) for history in histories)))
    if len(steps) < smooth:
        what = f"{len(steps)} steps with {tag} in common"
        raise DataError(
            what, ", ".join(map(str, runs)), f"{smooth} or more", "give runs with the same checkpoint_print"
        )
    kernel = np.full(smooth, 1 / smooth)
    curves = [np.convolve([history[step] for step in steps], kernel, "valid") for history in histories]
    return np.array(steps[smooth - 1 :]), np.array(curves)


def entries_of(run: Path, tag: str) -> list[list[float]]:
    """[[step, value], ...] of one scalar. Raises DataError where the run has no such scalar."""
    history = read_history(run)
    if tag not in history:
        raise DataError(f"no {tag} in {run}", "--tag", f"one of {', '.join(sorted(history))}", "choose one of these")
    return history[tag]


def compare(curves: np.ndarray) -> dict[str, Any]:
    """Differences from the first curve, relative to it: of the second curve, and the largest of the others (seeds)."""
    relative = (curves[1:] - curves[0]) / np.abs(curves[0])
    figures = [
        {"rms": float(np.sqrt(np.mean(d**2))), "largest": float(np.abs(d).max()), "last": float(abs(d[-1]))}
        for d in relative
    ]
    noise = {key: max(f[key] for f in figures[1:]) for key in figures[0]}
    return {"difference": figures[0], "noise": noise, "is_within_noise": figures[0]["rms"] <= noise["rms"]}


def draw(steps: np.ndarray, curves: np.ndarray, names: list[str], tag: str, path: Path) -> None:
    from matplotlib.figure import Figure  # takes half a second to import, and a comparison of tests draws nothing

    figure = Figure(figsize=(7, 6))
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    labels = [*names, *["another seed"] * (len(curves) - 2)]
    for curve, label in zip(curves, labels, strict=True):
        top.plot(steps, curve, label=label, linewidth=1.2)
        bottom.plot(steps, 100 * (curve / curves[0] - 1), linewidth=1.2)
    top.set(ylabel=tag, yscale="log")
    top.legend()
    bottom.set(xlabel="step", ylabel=f"% from {names[0]}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

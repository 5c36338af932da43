#!/usr/bin/env python3
"""Compare training runs, or the scores of tests, in a table; or the loss curves of two runs with those of other seeds.

    python scripts/compare_runs.py experiments/a experiments/b
    python scripts/compare_runs.py experiments/a/test experiments/a/test_tfp experiments/a/test_exposure --md
    python scripts/compare_runs.py experiments/fp32 experiments/bf16 --noise experiments/seed1 --out docs/benchmarks/amp

Folders of runs (main_train_vrt.py): a row for each, and the options that differ. Folders of tests (main_test_vrt.py): a
row for each; they must have scored the same frames. With --noise, one or more repetitions of the first run with another
train.manual_seed: writes the smoothed curves to OUT.png and OUT.json; exit code 1 where the difference is larger than
that between seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from models.restore.results import compare as compare_tests
from models.restore.results import read_json
from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import refuse_existing, write_whole
from utils.run.history import read_history, run_names
from utils.run.report import newest_options
from utils.run.writers import flat

METRICS = "metrics.json"
COLUMNS, LEAST_WIDTH = 100, 8  # of a table, of a column that is cut
OF_ONE_RUN = (".task", ".path.root")  # options that differ in any case
Table = tuple[list[str], list[list[str]]]  # header and rows


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--noise", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--tag", default="train/loss", help="scalar of the history (default %(default)s)")
    parser.add_argument("--smooth", type=int, default=5, help="log entries in a running mean (default %(default)s)")
    parser.add_argument("--out", type=Path, help="path without suffix")
    parser.add_argument("--md", action="store_true", help=f"Markdown, uncut; else at most {COLUMNS} columns")
    args = parser.parse_args(argv)
    if args.noise or args.out:
        if len(args.runs) != 2 or not args.noise or not args.out:
            raise OptionError(
                f"{len(args.runs)} runs, with --noise or --out", "the command line", "two runs, --noise and --out",
                "add what is missing, or give the runs alone",
            )  # fmt: skip
        return compare_losses(args)
    without = [str(folder) for folder in args.runs if not (folder / METRICS).is_file()]
    if without and len(without) < len(args.runs):
        do = "test there with main_test_vrt.py, or leave it out"
        raise DataError(f"no {METRICS}", ", ".join(without), "folders of tests, as the others", do)
    names = run_names(args.runs)
    if without:
        tables = runs_table(dict(zip(names, args.runs, strict=True)))
    else:
        tests = zip(names, (read_json(folder / METRICS) for folder in args.runs), strict=True)
        tables = [compare_tests(dict(tests))]
    print("\n\n".join(table(rows, header) if args.md else shown(header, rows) for header, rows in tables))
    return 0


def runs_table(runs: dict[str, Path]) -> list[Table]:
    """Scores, speed and size of training runs by name, and the options that differ between them, one in a row."""
    rows, options = [], []
    for name, run in runs.items():
        history, folder = read_history(run), run.parent if run.suffix in (".json", ".jsonl") else run
        psnr = [(value, step) for step, value in history.get("val/psnr", []) if math.isfinite(value)]
        best, at = (f"{max(psnr)[0]:.2f}", str(max(psnr)[1])) if psnr else ("-", "-")
        last = [f"{history[tag][-1][1]:.4g}" if tag in history else "-" for tag in ("train/loss", "train/it_per_s")]
        log = folder / "log" / "train.log"
        sizes = re.findall(r"([\d.]+ M) parameters", log.read_text(encoding="utf-8")) if log.is_file() else []
        rows.append([name, best, at, *last, sizes[-1] if sizes else "-"])
        saved = newest_options(folder / "options")
        options.append(dict(flat(json.loads(saved.read_text(encoding="utf-8")), "")) if saved else {})
    scores = (["run", "best PSNR dB", "at iter", "loss", "it/s", "parameters"], rows)
    values = {key: [known.get(key, "-") for known in options] for known in options for key in known}
    changed = [[key[1:], *found] for key, found in values.items() if len(set(found)) > 1 and key not in OF_ONE_RUN]
    return [scores, (["option", *runs], changed)] if changed else [scores]


def shown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A text table of at most COLUMNS columns: the middle of long cells is left out, in the widest columns first."""
    lines = [list(map(str, line)) for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > COLUMNS and max(widths) > LEAST_WIDTH:
        widths[widths.index(max(widths))] -= 1
    cut = [[_cut(cell, width).ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cut)


def _cut(text: str, width: int) -> str:
    tail = (width - 2) // 2
    return text if len(text) <= width else f"{text[: width - 2 - tail]}..{text[-tail:]}"


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Rows as a Markdown table."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(header), *cells]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *cells]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


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

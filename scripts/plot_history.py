#!/usr/bin/env python3
"""Plot the curves of one or more runs from their training_history.json.

    python scripts/plot_history.py experiments/first experiments/second --out curves.png

A run is given by its folder or its training_history.json. One panel per scalar, with all runs in it. --tags selects
the scalars by the beginning of their names, e.g. --tags val/ train/loss. The suffix of --out sets the file format.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.exit_codes import with_exit_code
from utils.errors import DataError
from utils.files import refuse_existing
from utils.run.curves import draw_curves, read_history, run_name


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--tags", nargs="+", default=[""], metavar="PREFIX", help="which scalars (default: all)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args(argv)
    refuse_existing(args.out, "--out")
    histories = chosen(args.runs, tuple(args.tags))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw_curves(histories, args.out)
    count = len({tag for history in histories.values() for tag in history})
    print(f"{args.out}: {count} scalars of {len(args.runs)} runs")
    return 0


def chosen(runs: list[Path], prefixes: tuple[str, ...]) -> dict[str, dict[str, list[list[float]]]]:
    """{run: history} with the scalars of these prefixes. Raises DataError for none, or for two runs of one name."""
    histories = {run_name(run): read_history(run) for run in runs}
    if len(histories) < len(runs):
        names = ", ".join(run_name(run) for run in runs)
        raise DataError(f"runs of the same name: {names}", "the command line", "runs in folders of different names",
                        "give each run once, or rename a folder")  # fmt: skip
    found = sorted({tag for history in histories.values() for tag in history})
    kept = {
        name: {tag: entries for tag, entries in history.items() if tag.startswith(prefixes)}
        for name, history in histories.items()
    }
    if not any(kept.values()):
        what = f"no scalar begins with {' or '.join(prefixes)}"
        raise DataError(what, "--tags", ", ".join(found) or "a history that is not empty", "choose among these")
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

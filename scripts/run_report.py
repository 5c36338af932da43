#!/usr/bin/env python3
"""Write the report of a training run as it stands now: one HTML file with its pictures, to open or to send.

    python scripts/run_report.py experiments/000_train_vrt_sample_rgbspike --out report.html
    python scripts/run_report.py experiments/my_experiment --out ~/my_experiment.html

A run writes the same page as report.html into its folder at each validation and at its end.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError
from utils.files import refuse_existing, write_whole
from utils.run.history import read_history
from utils.run.report import build_report, curves_of


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", type=Path, required=True, metavar="PAGE", help="a new file, .html")
    args = parser.parse_args(argv)
    refuse_existing(args.out, "--out")
    if not args.run.is_dir():
        raise DataError(f"{args.run} is no folder", "RUN", "the folder of a run", "correct the path")
    history = read_history(args.run)
    write_whole(args.out, build_report(args.run, history, curves_of(args.run, history)).encode())
    print(f"{args.out}: {args.run}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

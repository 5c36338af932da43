#!/usr/bin/env python3
"""Check that a run has learned: exit code 1 where its last validation gains less than --at-least dB over its input.

    python scripts/check_gain.py experiments/000_train_vrt_sample_rgbspike --at-least 3
    python scripts/check_gain.py experiments/mine/training_history.json

RUN is the folder of a run, or its training_history.jsonl or .json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError
from utils.run.history import read_history

TAGS = ("val/psnr", "val/psnr_input")


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--at-least", type=float, default=3.0, metavar="DB", help="default %(default)s")
    args = parser.parse_args(argv)
    step, restored, blurry = last_validation(args.run)
    is_enough = restored - blurry >= args.at_least  # False also for NaN
    print(
        f"gain after {step} iterations: {restored - blurry:+.2f} dB, "
        f"{'as expected' if is_enough else 'NOT as expected'}: at least {args.at_least:g} dB"
    )
    return 0 if is_enough else 1


def last_validation(run: Path) -> tuple[int, float, float]:
    """(iteration, PSNR of the restored clips, PSNR of the blurry ones). Raises DataError without a validation."""
    history = read_history(run)
    if not all(history.get(tag) for tag in TAGS):
        raise DataError("the run has no validation", str(run), " and ".join(TAGS), "let it train to its end")
    (step, restored), (_, blurry) = (history[tag][-1] for tag in TAGS)
    return int(step), restored, blurry


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

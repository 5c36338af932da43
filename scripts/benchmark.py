#!/usr/bin/env python3
"""Benchmarks, one subcommand each. Prints tables; --json FILE writes the numbers as JSON.

    python scripts/benchmark.py data --crop 128 --repeats 20
    python scripts/benchmark.py train --crop 64 --frames 6 --json train.json
    python scripts/benchmark.py net --help

Only the module of the subcommand is imported: a machine for measuring a GPU may lack what the others need. net and
train with a named network need torch alone, with an option file all. A module has a dict SUBCOMMANDS: name ->
(add_arguments(parser), run(args) -> dict). `run` prints its tables and returns the contents of the JSON file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.benchmark_tools import environment
from scripts.exit_codes import with_exit_code
from scripts.gpu_check_bare import stand_in_for_pydantic
from utils.files import refuse_existing, write_whole

# Subcommand -> (module, help).
MODULES = {
    "net": ("benchmark_net", "time and memory of restoring one clip"),
    "train": ("benchmark_net", "time and memory of one training step"),
    "scale": ("benchmark_scale", "steps per second of 1, 2, .. processes, and their efficiency"),
    "data": ("benchmark_data", "samples per second from files and from the clip cache"),
    "prepare": ("benchmark_prepare", "prepare_gopro_spike.py: speed-up with processes, memory"),
    "threads": ("benchmark_threads", "a training step under each wait policy of OpenMP"),
    "quality": ("benchmark_quality", "option files trained alike, tested under several cameras and ranked"),
}


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, text) in MODULES.items():
        sub = commands.add_parser(name, help=text, description=text)
        if name in argv[:1]:
            if module == "benchmark_net":
                stand_in_for_pydantic()
            add_arguments, run = importlib.import_module(f"scripts.{module}").SUBCOMMANDS[name]
            add_arguments(sub)
            sub.add_argument("--json", type=Path, help="write the numbers to this file")
            sub.set_defaults(run=run)
    args = parser.parse_args(argv)
    if args.json:
        refuse_existing(args.json, "--json")
    numbers = args.run(args)
    result = {"command": " ".join(argv), **environment(), **numbers}
    if args.json:
        write_whole(args.json, (json.dumps(result, indent=2) + "\n").encode())
        print(f"written to {args.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
